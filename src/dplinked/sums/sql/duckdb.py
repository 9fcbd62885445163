"""Linked rows that DuckDB reads: files, a SELECT over databases, a relation."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dplinked.data.files import Files, find_files
from dplinked.data.sources import Progress, Query
from dplinked.errors import StudyError, raise_alone
from dplinked.sums.sql.duckdb_engine import RELATION, DuckDBEngine, connect
from dplinked.sums.sql.duckdb_files import file_source, json_source, read_through
from dplinked.sums.sql.rows import SqlRows


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
    """

    def __init__(
        self,
        engine: DuckDBEngine,
        source: str,
        names: Sequence[str] | None = None,
        parsed: frozenset[str] = frozenset(),
        files: Files | None = None,
    ) -> None:
        super().__init__(engine, *engine.read_columns(source, names, parsed), files)


def resolve_data(data: Any) -> Any:
    """The data as it is: a query is known by the rows that it gives."""
    return data


def open_data(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> DuckDBRows:
    """Open a query, files, or a relation."""
    match data:
        case Query():
            return open_query(data.query, data.attach, folder=data.folder)
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
    found = find_files(paths).paths if isinstance(paths, str) else tuple(Path(path) for path in paths)
    return _open_files(Files(found, kind), columns, threads)


def _open_files(files: Files, columns: Sequence[str] | None, threads: int | None = None) -> DuckDBRows:
    connection = connect(threads)
    engine = DuckDBEngine(connection)
    if files.kind == "json":
        return DuckDBRows(engine, *json_source(connection, files.paths, columns), files)
    source, names, parsed = file_source(files.paths, files.kind)
    if files.kind == "csv":
        read_through(connection, source, files.paths)
    engine.checks_cells = files.kind != "csv"
    return DuckDBRows(engine, source, names, parsed, files)


def open_query(
    query: str,
    attach: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    threads: int | None = None,
) -> DuckDBRows:
    """Rows that a single SELECT gives. Files and attached databases are read in one transaction, as they were at one moment."""
    statements = None
    try:
        statements = duckdb.extract_statements(query)
    except Exception:
        raise_alone(StudyError("The query cannot be read as SQL."))
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise StudyError("Give one SELECT statement, and nothing else.")
    query, connection = _bare(query), connect(threads)
    if folder is not None:
        connection.execute(f"set file_search_path = {_quoted(_plain_path(connection, folder))}")
    for name, database in (attach or {}).items():
        _attach(connection, name, database, folder)
    connection.execute("begin transaction")
    names, plan = None, ""
    try:
        relation = connection.sql(query)
        names = relation.columns  # in a subquery DuckDB would rename those that differ in case only
        plan = relation.explain()
    except Exception:
        raise_alone(StudyError("The query fails: DuckDB finds a fault in it, or a table or file is missing."))
    _refuse_guessed_types(plan)
    return DuckDBRows(DuckDBEngine(connection), f"({query}\n) query", names)


def _bare(query: str) -> str:
    """A statement without the semicolons and comments behind it."""
    content = query.encode()
    for start, kind in reversed(duckdb.tokenize(query)):
        if kind != duckdb.token_type.comment and content[start : start + 1] != b";":
            break
        content = content[:start]
    return content.decode()


def _plain_path(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """A folder's path. If it has commas, DuckDB would take it for a list of paths, so a link to it is made."""
    path = folder.resolve()
    if "," not in str(path):
        return str(path)
    place = tempfile.mkdtemp(prefix="dplinked-")
    weakref.finalize(connection, shutil.rmtree, place, ignore_errors=True)
    link = Path(place) / "rows"
    try:
        link.symlink_to(path, target_is_directory=True)
    except OSError:
        raise_alone(StudyError("DuckDB cannot look for files in a folder whose path has a comma. Rename it."))
    return str(link)


def _refuse_guessed_types(plan: str) -> None:
    """Refuse queries over CSV and JSON files and pandas' objects: DuckDB takes their types from cells, so one cell would change what others mean."""
    if re.search(r"READ_(CSV|JSON|NDJSON)|PANDAS_SCAN", plan):
        raise StudyError(
            "A query over a CSV or JSON file, or over a pandas frame, would guess types from cells. Give the file's path or the frame itself, or "
            "convert it to Parquet."
        )


def _attach(connection: duckdb.DuckDBPyConnection, name: str, database: str, folder: Path | None) -> None:
    """Attach a database to be read, with an extension that is installed already."""
    extension = "postgres" if database.startswith(("postgres:", "postgresql:")) else None
    if extension is None:
        path = (folder or Path()) / database
        if not path.is_file():
            raise StudyError(f"There is no database {path.name!r} at the given path.")
        with path.open("rb") as file:
            extension = "sqlite" if file.read(15) == b"SQLite format 3" else None
        database = str(path.resolve())
    if extension is not None:
        try:
            connection.execute(f"load {extension}")
        except Exception:
            raise_alone(
                StudyError(
                    f"Database {name!r} needs DuckDB's extension {extension!r}. Install it once, with access to the "
                    f'network: duckdb.sql("install {extension}").'
                )
            )
    kind = "" if extension is None else f"type {extension}, "
    identifier = '"' + name.replace('"', '""') + '"'
    try:
        connection.execute(f"attach {_quoted(database)} as {identifier} ({kind}read_only)")
    except Exception:
        raise_alone(StudyError(f"Database {name!r} cannot be opened."))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def open_relation(relation: Any) -> DuckDBRows:
    """Rows of a relation. Statements run on its own connection, where a few temporary tables come and go."""
    _refuse_guessed_types(relation.explain())
    return DuckDBRows(DuckDBEngine(None, relation), RELATION, list(relation.columns))
