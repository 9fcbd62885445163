"""Where rows are if not in a table: a query, a Spark table, a stream; and how such data is told apart without importing its library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from dplinked.data.files import Files
from dplinked.data.format import File
from dplinked.errors import StudyError, shown
from dplinked.records import PlainlyShown

Progress = Callable[[str, int, int], None]  # called with a title, the parts that are done, and their number


@dataclass(frozen=True, repr=False)
class Query(PlainlyShown):
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
    attach: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a password
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.query, str):
            raise StudyError(f"A query must be the text of one SELECT statement, not {shown(self.query)}.")
        listed = [*self.attach, *self.attach.values()] if isinstance(self.attach, Mapping) else [None]
        if not all(isinstance(text, str) for text in listed):
            raise StudyError("attach must be a mapping of texts: attach={'name in the query': 'path of the database'}.")
        if self.folder is not None and not isinstance(self.folder, (str, PathLike)):
            raise StudyError(f"folder must be a path, not {shown(self.folder)}.")
        object.__setattr__(self, "folder", None if self.folder is None else Path(self.folder))


@dataclass(frozen=True, repr=False)
class SparkTable(PlainlyShown):
    """Rows in the active Spark session, given by a table's name or a SELECT statement."""

    table: str

    def __post_init__(self) -> None:
        if not isinstance(self.table, str):
            raise StudyError(f"A Spark table is given by its name or a SELECT statement, not by {shown(self.table)}.")


@dataclass(frozen=True, repr=False)
class Stream(PlainlyShown):
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

    batches: Any = field(repr=False)
    contiguous: bool = False
    rows: int | None = None

    def __post_init__(self) -> None:
        if type(self.batches).__name__ != "RecordBatchReader":
            raise StudyError(f"A stream is given as a pyarrow.RecordBatchReader, not as {shown(self.batches)}.")
        if not isinstance(self.contiguous, bool):
            raise StudyError(f"contiguous must be true or false, not {shown(self.contiguous)}.")
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int)):
            raise StudyError(f"rows must be the number of rows, not {shown(self.rows)}.")


def is_spark(data: Any) -> bool:
    """Whether the data is a Spark frame, classic or Connect."""
    return type(data).__module__.startswith("pyspark.sql") and type(data).__name__ == "DataFrame"


def is_duckdb(data: Any) -> bool:
    """Whether this is an object of DuckDB's, like a relation."""
    return type(data).__module__.split(".")[0] in ("duckdb", "_duckdb")


def is_stream(data: Any) -> bool:
    """Whether this is an Arrow stream."""
    return isinstance(data, Stream) or type(data).__name__ == "RecordBatchReader"


def is_path(data: Any) -> bool:
    """Whether this is the path of files, or files that were found already."""
    return isinstance(data, (str, Files, File)) or hasattr(data, "__fspath__")
