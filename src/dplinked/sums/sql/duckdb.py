"""Linked rows that DuckDB reads: files, a SELECT over databases, a relation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dplinked.data.arrow import Origins
from dplinked.data.files import Files, find_files
from dplinked.data.sources import Progress, Query
from dplinked.linkage import ELE, Linkage, Matching, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.linked_rows import Pass
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.tables import Tables
from dplinked.sums.sql.duckdb_copy import copy_cells
from dplinked.sums.sql.duckdb_engine import RELATION, DuckDBEngine, connect
from dplinked.sums.sql.duckdb_files import Utf8Files, file_source, json_source, parquet_origins, read_through
from dplinked.sums.sql.duckdb_query import FrozenQuery, freeze, refuse_guessed_types
from dplinked.sums.sql.rows import SqlRows, key_columns


class DuckDBRows(SqlRows):
    """Linked rows in DuckDB.

    Parameters
    ----------
    engine
        Runs the statements.
    source
        What stands behind ``from``.
    names
        Names of the columns, if they are others than DuckDB gives them.
    parsed
        Columns of texts that hold whatever a CSV or JSON file held.
    files
        The files that the rows come from; None for a query or relation.
    known
        Names of all columns, if only some of them are read.
    kept
        What must live as long as the rows, like a table that holds them.
    """

    def __init__(
        self,
        engine: DuckDBEngine,
        source: str,
        names: Sequence[str] | None = None,
        parsed: frozenset[str] = frozenset(),
        files: Files | None = None,
        *,
        known: Sequence[str] | None = None,
        kept: Any = None,
    ) -> None:
        self._kept = kept
        self._duckdb = engine
        super().__init__(engine, *engine.read_columns(source, names, parsed), files, known)

    def begin(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> Pass:
        """Find the blocks in a copy that the kernel adds. Where there is an explicit matrix, no kernel or no room, DuckDB adds the rows itself."""
        if kernel.KERNEL is None or isinstance(linkage, Matching):
            return super().begin(design, linkage, unit)
        keys = [*design.levels, *key_columns(design, linkage)]
        columns = [self._stored[name] for name in dict.fromkeys([*design.bounds, *keys])]
        blocks = linkage.accuracy if isinstance(linkage, ELE) and isinstance(linkage.accuracy, Mapping) else ()
        named = [str(name) for names in (*design.levels.values(), blocks) for name in names]
        copied = copy_cells(self._duckdb, self._source, columns, keys, named, self.count)
        return super().begin(design, linkage, unit) if copied is None else Tables(copied).open(design, linkage, unit)


def resolve_data(data: Any) -> Any:
    """The rows of a query or relation as they are now; files as they are."""
    match data:
        case Query():
            return open_query(data)
        case Files():
            return data
    return _freeze_relation(data)


def open_data(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> DuckDBRows:
    """Open a query, files, or a relation."""
    match data:
        case Query():
            return open_query(data, columns)
        case Files():
            return _open_files(data, columns)
    return open_relation(data)


def data_content(data: Any) -> Iterator[bytes]:
    """The names of the columns and a digest of the rows."""
    return open_data(data).content()


def open_files(
    paths: Sequence[str | Path] | str, kind: str, columns: Sequence[str] | None = None, *, threads: int | None = None
) -> DuckDBRows:
    """Rows of files of one kind: ``"csv"``, ``"json"`` (an array, or a record per line) or ``"parquet"``.

    CSV and JSON files have no types, and guessing them would look at cells: all columns are texts, and a cell is a
    number if its text is. JSON files have no columns either: those to read are named by `columns`. CSV and JSON files are read through once, so
    that one that cannot be read is found out now.
    """
    found = find_files(paths) if isinstance(paths, str) else Files(tuple(Path(path) for path in paths), kind)
    return _open_files(replace(found, kind=kind), columns, threads)


def _open_files(files: Files, columns: Sequence[str] | None, threads: int | None = None) -> DuckDBRows:
    connection = connect(threads)
    engine = DuckDBEngine(connection)
    if files.kind == "json":
        return DuckDBRows(engine, *json_source(connection, files.paths, columns), files)
    read = Utf8Files(files)
    source, names, parsed = file_source(read.files)
    if files.kind == "csv":
        read_through(engine.run, source, files.paths)
    engine.checks_cells = files.kind != "csv"
    rows = DuckDBRows(engine, source, names, parsed, files, kept=read)
    rows.origins = parquet_origins(files.paths) if files.kind == "parquet" else Origins()
    return rows


def open_query(query: Query, columns: Sequence[str] | None = None, *, threads: int | None = None) -> DuckDBRows:
    """Rows that a single SELECT gives. It runs once, and its result is kept."""
    frozen = FrozenQuery(query, columns, threads)
    return DuckDBRows(frozen.engine, frozen.source, frozen.names, known=frozen.known, kept=frozen)


def open_relation(relation: Any) -> DuckDBRows:
    """Rows of a relation. Statements run on its own connection, where a few temporary tables come and go."""
    refuse_guessed_types(relation.explain())
    return DuckDBRows(DuckDBEngine(None, relation), RELATION, list(relation.columns))


def _freeze_relation(relation: Any) -> DuckDBRows:
    """Rows of a relation as they are now, kept in a temporary table on its own connection."""
    refuse_guessed_types(relation.explain())
    engine, names = DuckDBEngine(None, relation), list(relation.columns)
    kept = freeze(engine, RELATION, len(names), range(len(names)))
    return DuckDBRows(engine, kept.name, names, kept=kept)
