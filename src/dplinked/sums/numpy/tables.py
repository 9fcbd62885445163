"""Linked rows that NumPy sums part by part: tables in memory and Parquet files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.fingerprint import content_bytes
from dplinked.data.sources import Progress
from dplinked.data.table import Rows
from dplinked.linkage import Linkage, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.engine import Source
from dplinked.sums.numpy import counts, curve, instrument, kernel, paper, residuals, right_residuals
from dplinked.sums.numpy.prepare import Parts, PreparedRows, prepare_rows
from dplinked.sums.types import (
    BlockFacts,
    CellFacts,
    Centres,
    MeatClip,
    Predictor,
    PrivateCounts,
    PrivateMeat,
    PrivateMoments,
    PrivateResiduals,
    PrivateSizes,
    PrivateSquares,
    PrivateStrata,
    PrivateSums,
    ResidualClip,
    Whitening,
)

Floats = NDArray[np.float64]

_SAMPLED = 1_000_000  # rows from which the middle of a column is told to the steward


class Tables(Source):
    """Rows in memory or in Parquet files.

    Parameters
    ----------
    rows
        Reads the rows part by part.
    progress
        Called with a title, what is done and what is to be done.
    origin
        The table or the files that the rows come from, by which a ledger knows them again.
    """

    def __init__(self, rows: Parts, progress: Progress | None = None, origin: Any = None) -> None:
        self.rows, self.progress, self._origin = rows, progress, origin
        self.columns, self.count, self.origins = rows.columns, rows.count, rows.origins

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, and the numeric ones numbers."""
        self.rows.require(names, numeric=numeric)

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> TablePass:
        """Find the blocks; only what is public under the unit can make it fail."""
        return TablePass(prepare_rows(self.rows, design, linkage, unit, self.progress))

    def content(self) -> Iterator[bytes]:
        """The bytes of the files, or the columns of the table, that the rows come from."""
        return content_bytes(self._origin)

    def summarise_column(self, name: str, low: float, high: float) -> CellFacts:
        """Missing and clipped cells, middle 70 % and ends of a numeric column. The middle is that of a million rows, evenly spread."""
        step, seen, outside, ends = -(-self.count // _SAMPLED), [], np.zeros(3, np.int64), (math.inf, -math.inf)
        for part in range(self.rows.parts):
            for rows in self.rows.read(part, [name]):
                values = rows.numbers(name, 0, rows.count)
                finite = np.isfinite(values)
                outside += [(~finite).sum(), (values[finite] < low).sum(), (values[finite] > high).sum()]
                known = values[finite]
                ends = min(ends[0], known.min(initial=math.inf)), max(ends[1], known.max(initial=-math.inf))
                seen.append(values[::step][finite[::step]])
        inside = np.concatenate(seen)
        missing, below, above = outside.tolist()
        middle = tuple(np.quantile(inside, [0.15, 0.85]).tolist()) if inside.size else None
        return CellFacts(missing, below, above, middle, ends if missing < self.count else None)

    def holds_texts(self, name: str) -> bool:
        """Whether a column may hold texts, by its type."""
        return self.rows.holds_texts(name)

    def count_keys(self, name: str) -> Mapping[str | None, int]:
        """Rows per key."""
        keys = self.rows.find_keys(name)
        found = keys.counts[keys.counts > 0] if keys.texts is None else keys.counts
        return dict(zip(keys.distinct().to_pylist(), found.tolist(), strict=True))


@dataclass(frozen=True, repr=False)
class TablePass:
    """The passes of :class:`dplinked.sums.engine.Pass`, by NumPy over parts of a table."""

    data: PreparedRows
    known: PrivateSums | None = None  # its sums, if an earlier pass found them on its way

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
        return None if self.data.blocks is None else self.data.blocks.facts

    def with_design(self, design: Design) -> TablePass:
        """The same rows with another scaling or instrument."""
        return TablePass(replace(self.data, design=design))

    def instrument_sums(self) -> PrivateSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
        return instrument.instrument_sums(self.data) if self.known is None else self.known

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """``W'W``, ``W'z*`` and ``z*'z*`` of the paper's algorithms."""
        return paper.paper_sums(self.data, row_norm, response_bound)

    def column_counts(self, bins: int) -> PrivateCounts:
        """Histogram of each numeric column over its bounds."""
        return counts.column_counts(self.data, bins)

    def residual_counts(self, predictor: Predictor, edges: Floats, ahead: bool = False) -> PrivateCounts:
        """Histogram of absolute residuals between public edges; what comes next is looked at on the way if it is to be."""
        if ahead and kernel.KERNEL is not None and self.data.matching is None:
            return right_residuals.measure_ahead(self.data, predictor, edges)
        return residuals.residual_counts(self.data, predictor, edges)

    def weight_moments(self) -> PrivateMoments:
        """Sums of what rows count, of its square and of its fourth power."""
        moments = right_residuals.known_moments(self.data)
        return counts.weight_moments(self.data) if moments is None else PrivateMoments(moments)

    def row_meat(
        self, predictor: Predictor, weights: Floats, norm: float, centres: Centres | None = None
    ) -> PrivateMeat:
        """Sum of squared contributions of rows, around the centres of strata if there are some, scaled to a norm."""
        return residuals.row_meat(self.data, predictor, weights, norm, centres)

    def row_strata(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateStrata:
        """Totals of contributions of rows, scaled to a norm, and numbers of rows of each stratum."""
        return residuals.row_strata(self.data, predictor, weights, norm)

    def block_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """Sum of squared contributions of blocks, scaled to a norm."""
        return residuals.block_meat(self.data, predictor, weights, norm)

    def with_weights(self, weights: Mapping[str | None, float]) -> TablePass:
        """The same rows, the instruments of each group's multiplied by its weight."""
        blocks = self.data.blocks
        return self if blocks is None else TablePass(replace(self.data, blocks=blocks.weighed(weights)))

    def without_missing(self) -> TablePass:
        """The same rows, of which missing responses and rows with a missing regressor count 0."""
        return TablePass(replace(self.data, dropped=True))

    def own_rows(self, weighted: bool = False) -> TablePass:
        """The same rows without their links, weighed by the weight and the contrast of their groups if they are to be."""
        as_known = weighted == self.data.fixed_blocks
        return TablePass(self.data.own_rows(weighted), right_residuals.known_sums(self.data) if as_known else None)

    def whitened_squares(self, whitening: Whitening) -> PrivateMeat:
        """Sum of squares of whitened rows by themselves."""
        return right_residuals.whitened_squares(self.data, whitening)

    def right_residuals(self, clip: ResidualClip, meat: MeatClip | None = None) -> PrivateResiduals:
        """The clipped residual equation of right links, and the squares of its contributions if they are asked for."""
        return right_residuals.right_residuals(self.data, clip, meat)

    def contribution_sizes(self, clip: ResidualClip, meat: MeatClip, norms: Floats) -> PrivateSizes:
        """How long the totals are that `meat` squares."""
        return right_residuals.contribution_sizes(self.data, clip, meat, norms)

    def stratum_totals(self, clip: ResidualClip, clustered: bool) -> PrivateStrata:
        """The equation of the rows of each stratum, and how many rows or clusters it has."""
        return right_residuals.stratum_totals(self.data, clip, clustered)

    def squared_residuals(self, clip: ResidualClip) -> PrivateSquares:
        """Sum of clipped squares of right links' residuals, and the squares of what rows contribute to it."""
        return right_residuals.squared_residuals(self.data, clip)

    def curve_sums(self, clip: ResidualClip, level: float) -> PrivateSums:
        """The outcome's expected equation along a curve, and its slope, of rows by themselves."""
        return curve.curve_sums(self.data, clip, level)


def resolve_data(data: Any) -> Any:
    """The table; a lazy frame is collected once, so that fingerprint and sums see the same rows."""
    import narwhals as nw

    frame = nw.from_native(data, pass_through=True)
    return frame.collect().to_native() if isinstance(frame, nw.LazyFrame) else data


def open_data(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> Tables:
    """Open a table: pandas, polars, Arrow, or a mapping of arrays."""
    return Tables(Rows(data, columns), progress, data)


def data_content(data: Any) -> Iterator[bytes]:
    """The columns of the table, as Arrow writes them."""
    return content_bytes(resolve_data(data))
