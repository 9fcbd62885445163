"""Rows that are not in a table or file: the results of a query, a Spark table, a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dplinked.data.files import Files, find_files
from dplinked.errors import StudyError


@dataclass(frozen=True)
class Query:
    """Rows that a SELECT statement gives in DuckDB.

    Parameters
    ----------
    query
        One SELECT statement. It may name Parquet files, as in ``select * from 'part-*.parquet'``, and attached databases. Give CSV and JSON files
        by their path instead of in a query, where their types would be guessed from their cells.
    attach
        Databases that the query uses, each under its name there: the path of a DuckDB or SQLite file, or ``postgres:…``.
    folder
        The folder that relative paths start from; by default the working directory.
    """

    query: str
    attach: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class SparkTable:
    """Rows in the active Spark session, given by a table's name or a SELECT statement."""

    table: str


@dataclass(frozen=True)
class Stream:
    """Record batches that can be read only once.

    Parameters
    ----------
    batches
        A ``pyarrow.RecordBatchReader``.
    contiguous
        Whether the rows of each block follow each other. If they do, and `rows` is given, a study without intervals and private
        ranges is summed while the batches arrive. Otherwise the batches are first written to a temporary file.
    rows
        Number of rows, which is public.
    """

    batches: Any
    contiguous: bool = False
    rows: int | None = None


def is_spark(data: Any) -> bool:
    """Whether the data is a Spark frame, classic or Connect."""
    return type(data).__module__.startswith("pyspark.sql") and type(data).__name__ == "DataFrame"


def resolve_source(source: Any) -> Any:
    """Resolve symlinks and collect lazy frames once, so that the fingerprint and the sums see the same data."""
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
