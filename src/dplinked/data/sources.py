"""Where rows are if not in a table: a query, a Spark table, a stream; and data settled before it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dplinked.data.files import Files, find_files
from dplinked.errors import StudyError


@dataclass(frozen=True)
class Query:
    """Rows that a SELECT of DuckDB gives.

    Parameters
    ----------
    query
        One SELECT statement; it may name Parquet files, ``select * from 'part-*.parquet'``, and attached databases. CSV and JSON files are given by
        their path instead: in a query their types would be guessed from cells.
    attach
        Databases by the names they have in the query: the path of a DuckDB or SQLite file, or ``postgres:…``.
    folder
        Where relative paths count from; by default the working directory.
    """

    query: str
    attach: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class SparkTable:
    """Rows of the Spark session at work: a table's name, or a SELECT."""

    table: str


@dataclass(frozen=True)
class Stream:
    """Batches that come once.

    Parameters
    ----------
    batches
        A ``pyarrow.RecordBatchReader``.
    contiguous
        Whether rows of a block follow each other. If so, and the number of rows is declared, a study without intervals and private
        ranges is summed as the batches come; otherwise they are kept in a temporary file.
    rows
        Number of rows, public.
    """

    batches: Any
    contiguous: bool = False
    rows: int | None = None


def is_spark(data: Any) -> bool:
    """Whether this is a Spark frame, classic or Connect."""
    return type(data).__module__.startswith("pyspark.sql") and type(data).__name__ == "DataFrame"


def resolve_source(source: Any) -> Any:
    """The same data for the fingerprint and for the sums: links in a path followed once, a lazy frame collected once."""
    import narwhals as nw

    if isinstance(source, (str, Path)):
        files = find_files(source)
        return replace(files, paths=tuple(path.resolve() for path in files.paths)) if files.root is None else files
    if isinstance(source, Stream) or type(source).__name__ == "RecordBatchReader":
        raise StudyError("A stream cannot be known again. With a ledger, give a file, a table or a query.")
    if (
        isinstance(source, (Files, Query, SparkTable))
        or is_spark(source)
        or type(source).__name__ == "DuckDBPyRelation"
    ):
        return source
    frame = nw.from_native(source, pass_through=True)
    return frame.collect().to_native() if isinstance(frame, nw.LazyFrame) else source
