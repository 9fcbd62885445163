"""Where rows are if not in a table: a query, a Spark table, a stream; and how such data is told apart without importing its library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dplinked.data.files import Files


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


def is_duckdb(data: Any) -> bool:
    """Whether this is an object of DuckDB's, like a relation."""
    return type(data).__module__.split(".")[0] in ("duckdb", "_duckdb")


def is_stream(data: Any) -> bool:
    """Whether this is an Arrow stream."""
    return isinstance(data, Stream) or type(data).__name__ == "RecordBatchReader"


def is_path(data: Any) -> bool:
    """Whether this is the path of files, or files that were found already."""
    return isinstance(data, (str, Files)) or hasattr(data, "__fspath__")
