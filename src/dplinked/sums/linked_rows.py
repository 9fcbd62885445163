"""Linked rows ready to be summed: every private value leaves here together with what it was clipped to.

The door computes a sensitivity from the value it is given, so it cannot be that of another clip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import Linkage, LinkageExposure, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.engine import Pass, Source
from dplinked.sums.types import (
    BlockFacts,
    ClippedMeat,
    ClippedPaperSums,
    ClippedSums,
    ColumnCounts,
    Predictor,
    ResidualCounts,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class LinkedRows:
    """An engine's pass over linked rows, and what one person can change about their links."""

    engine: Pass
    exposure: LinkageExposure

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""
        return self.engine.design

    @property
    def count(self) -> int:
        """Number of rows, public."""
        return self.engine.count

    @property
    def blocks(self) -> BlockFacts | None:
        """Facts about the blocks, if there are any."""
        return self.engine.blocks

    def with_design(self, design: Design) -> LinkedRows:
        """The same rows with another scaling or instrument."""
        return replace(self, engine=self.engine.with_design(design))

    def instrument_sums(self) -> ClippedSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
        return ClippedSums(self.engine.instrument_sums(), self.design, self.exposure)

    def paper_sums(self, row_norm: float, response_bound: float) -> ClippedPaperSums:
        """``W'W`` and ``W'z*`` of the paper's algorithms."""
        sums = self.engine.paper_sums(row_norm, response_bound)
        return ClippedPaperSums(sums, row_norm, response_bound, self.exposure)

    def column_counts(self, bins: int) -> ColumnCounts:
        """Histogram of each numeric column over its bounds."""
        return ColumnCounts(self.engine.column_counts(bins).counts, self.count)

    def residual_counts(self, predictor: Predictor, edges: Floats) -> ResidualCounts:
        """Histogram of absolute residuals between increasing public edges."""
        found = self.engine.residual_counts(predictor, edges)
        return ResidualCounts(found.counts[0], self.count, edges, self.exposure)

    def meat(self, route: str, predictor: Predictor, weights: Floats, norm: float) -> ClippedMeat:
        """Sum of squared contributions of rows or of blocks (`route`), each scaled down to norm at most `norm`."""
        squares = self.engine.block_meat if route == "block" else self.engine.row_meat
        matrix = squares(predictor, weights, norm).matrix
        first = int(self.design.intercept)
        instrument = math.hypot(self.design.instrument_radius, float(first)) * float(weights.max())
        reach = self.design.radius * float(np.linalg.norm(predictor.beta[first:]))
        return ClippedMeat(matrix, route, self.count, norm, instrument, reach, self.exposure)


def open_linked_rows(source: Source, design: Design, linkage: Linkage, unit: PrivacyUnit) -> LinkedRows:
    """Find the blocks or pairs; only what is public under the unit can make it fail."""
    return LinkedRows(source.open(design, linkage, unit), linkage.exposure(unit))
