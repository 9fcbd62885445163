"""Engines behind one interface: where linked rows are, and the passes over them that releases are made of."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from dplinked.sums.numpy import instrument as memory
from dplinked.sums.numpy import residuals
from dplinked.sums.numpy.prepare import Encoded, Parts, Progress, encode
from dplinked.sums.numpy.stream import StreamRows
from dplinked.sums.sql.passes import SqlRows
from dplinked.sums.types import BlockFacts, CellFacts, Predictor, PrivateCounts, PrivateMeat, PrivateSums

Floats = NDArray[np.float64]

IN_MEMORY = 1 << 19  # rows of Parquet files up to which they are read once, whole
_LOOKED_AT = 1_000_000
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

    def look_at(self, name: str, low: float, high: float) -> CellFacts:
        """What the cells of a numeric column are like. FOR THE STEWARD."""

    def count_keys(self, name: str) -> Mapping[str | None, int]:
        """Rows per key. FOR THE STEWARD."""


@dataclass(frozen=True, repr=False)
class Tables:
    """Rows that NumPy sums part by part: a table in memory, or Parquet files."""

    rows: Parts
    progress: Progress | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return self.rows.columns

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.rows.count

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """See :class:`Source`."""
        self.rows.require(names, numeric=numeric)

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> TablePass:
        """See :class:`Source`."""
        return TablePass(encode(self.rows, design, linkage, unit, self.progress))

    def look_at(self, name: str, low: float, high: float) -> CellFacts:
        """See :class:`Source`; the middle is that of a million rows, evenly spread."""
        step, seen, outside = -(-self.count // _LOOKED_AT), [], np.zeros(3, np.int64)
        for part in range(self.rows.parts):
            for rows in self.rows.read(part, [name]):
                values = rows.numbers(name, 0, rows.count)
                finite = np.isfinite(values)
                outside += [(~finite).sum(), (values[finite] < low).sum(), (values[finite] > high).sum()]
                seen.append(values[::step][finite[::step]])
        inside = np.concatenate(seen)
        missing, below, above = outside.tolist()
        middle = tuple(np.quantile(inside, [0.15, 0.85]).tolist()) if inside.size else None
        return CellFacts(missing, below, above, middle)

    def count_keys(self, name: str) -> Mapping[str | None, int]:
        """See :class:`Source`."""
        keys = self.rows.find_keys(name)
        counts = keys.counts[keys.counts > 0] if keys.texts is None else keys.counts
        return dict(zip(keys.distinct().to_pylist(), counts.tolist(), strict=True))


@dataclass(frozen=True, repr=False)
class TablePass:
    """Passes by NumPy over parts of a table; see :class:`Pass`."""

    data: Encoded

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""
        return self.data.design

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.data.rows.count

    @property
    def blocks(self) -> BlockFacts | None:
        """Facts about the blocks, if there are any."""
        return None if self.data.blocks is None else self.data.blocks.facts()

    def with_design(self, design: Design) -> TablePass:
        """See :class:`Pass`; so are the others."""
        return TablePass(replace(self.data, design=design))

    def instrument_sums(self) -> PrivateSums:
        return memory.instrument_sums(self.data)

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        return memory.paper_sums(self.data, row_norm, response_bound)

    def column_counts(self, bins: int) -> PrivateCounts:
        return memory.column_counts(self.data, bins)

    def residual_counts(self, predictor: Predictor, edges: Floats) -> PrivateCounts:
        return residuals.residual_counts(self.data, predictor, edges)

    def row_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        return residuals.row_meat(self.data, predictor, weights, norm)

    def block_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        return residuals.block_meat(self.data, predictor, weights, norm)


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
