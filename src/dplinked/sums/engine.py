"""Engines behind one interface: where linked rows are, and the passes over them that releases are made of."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dplinked.data.files import Files, find_files, read_file
from dplinked.data.fingerprint import content_bytes
from dplinked.data.parquet import ParquetRows
from dplinked.data.sources import Query, SparkTable, Stream, is_spark, resolve_source
from dplinked.data.stream import spill
from dplinked.data.table import Rows
from dplinked.errors import StudyError
from dplinked.linkage import Linkage, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.numpy.prepare import Progress
from dplinked.sums.numpy.stream import StreamRows
from dplinked.sums.numpy.tables import Tables
from dplinked.sums.sql.rows import SqlRows
from dplinked.sums.types import BlockFacts, CellFacts, Predictor, PrivateCounts, PrivateMeat, PrivateSums

Floats = NDArray[np.float64]

IN_MEMORY = 1 << 19  # rows of Parquet files up to which they are read once, whole
LARGEST_TEXT = 1 << 30  # bytes of a CSV file beyond which DuckDB reads it


class Pass(Protocol):
    """Rows ready to be summed: blocks found, cells not read yet. What the methods return is private, the attributes are public."""

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""

    @property
    def count(self) -> int:
        """Number of rows."""

    @property
    def blocks(self) -> BlockFacts | None:
        """Facts about the blocks, if there are any."""

    def with_design(self, design: Design) -> Pass:
        """The same rows with another scaling or instrument."""

    def instrument_sums(self) -> PrivateSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """``W'W`` and ``W'z*`` of the paper's algorithms."""

    def column_counts(self, bins: int) -> PrivateCounts:
        """Histogram of each numeric column over its bounds."""

    def residual_counts(self, predictor: Predictor, edges: Floats) -> PrivateCounts:
        """Histogram of absolute residuals between public edges."""

    def row_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """Sum of squared contributions of rows, scaled to a norm."""

    def block_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """Sum of squared contributions of blocks, scaled to a norm."""


class Source(Protocol):
    """Linked rows behind an engine. Schema and number of rows are public."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""

    @property
    def count(self) -> int:
        """Number of rows."""

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, and the numeric ones numbers."""

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> Pass:
        """Find the blocks; only what is public under the unit can make it fail."""

    def summarise_column(self, name: str, low: float, high: float) -> CellFacts:
        """Missing, clipped and middle-70 % counts of a numeric column. FOR THE STEWARD."""

    def count_keys(self, name: str) -> Mapping[str | None, int]:
        """Rows per key. FOR THE STEWARD."""


def open_source(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> Source:
    """Open linked rows with the engine that fits them.

    Parameters
    ----------
    data
        A table, a mapping of arrays, the path of files, a :class:`Query`, a Spark frame or table, an Arrow stream.
    columns
        Names to read; all of them unless given.
    once
        Whether one pass is all that the study needs, so that a stream need not be kept.
    progress
        Called with a title, what is done and what is to be done.
    """
    if isinstance(data, Query):
        return _engine("duckdb").open_query(data.query, data.attach, folder=data.folder)  # type: ignore[no-any-return]
    if isinstance(data, SparkTable) or is_spark(data):
        spark = _engine("spark")
        return spark.open_table(data.table) if isinstance(data, SparkTable) else spark.open_frame(data)  # type: ignore[no-any-return]
    if _is_duckdb(data):
        return _engine("duckdb").open_relation(data)  # type: ignore[no-any-return]
    if type(data).__name__ == "RecordBatchReader":
        data = Stream(data)
    if isinstance(data, Stream):
        return StreamRows(data) if once and data.contiguous else Tables(spill(data, columns), progress)
    if isinstance(data, (str, Files)) or hasattr(data, "__fspath__"):
        return _open_files(data if isinstance(data, Files) else find_files(data), columns, progress)
    return Tables(Rows(data, columns), progress)


def _engine(name: str) -> Any:
    """The module of an optional engine."""
    try:
        importlib.import_module({"spark": "pyspark"}.get(name, name))
    except ImportError:
        raise StudyError(f"This data needs an engine that is not installed: pip install 'dplinked[{name}]'.") from None
    return importlib.import_module(f"dplinked.sums.sql.{name}")


def source_bytes(data: Any) -> Iterator[bytes]:
    """Content of data, to know it again: bytes of files, columns of tables, and of a query's rows a digest that their order does not change."""
    if not isinstance(data, SqlRows):
        data = resolve_source(data)
    if isinstance(data, (Query, SparkTable)) or is_spark(data) or _is_duckdb(data):
        data = open_source(data)
    if isinstance(data, SqlRows):
        yield repr(data.columns).encode()
        yield data.digest()
    else:
        yield from content_bytes(data)


def _is_duckdb(data: Any) -> bool:
    return type(data).__module__.split(".")[0] in ("duckdb", "_duckdb")


def _open_files(files: Files, columns: Sequence[str] | None, progress: Progress | None) -> Source:
    if files.kind == "parquet":
        rows = ParquetRows(files.paths, files.root, progress)
        return Tables(rows.load(columns) if rows.count <= IN_MEMORY else rows, progress)
    if files.kind == "csv" and len(files.paths) == 1 and files.paths[0].stat().st_size <= LARGEST_TEXT:
        return Tables(Rows(read_file(files.paths[0], columns, "csv")[0]), progress)
    return _engine("duckdb").open_files(list(files.paths), files.kind)  # type: ignore[no-any-return]
