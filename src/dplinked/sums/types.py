"""What a pass over linked rows leaves behind: a few small private arrays, and what they were clipped to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.study.design import Design

Floats = NDArray[np.float64]


class Private:
    """A value before any noise. Nothing of it may be shown, so its text withholds it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(values withheld)"


# --- what an engine finds ---------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PrivateSums(Private):
    """Sums over linked rows, before any noise.

    Attributes
    ----------
    matrix
        ``h'QX`` (p×p, intercept first), or ``W'W`` for the paper's estimators.
    vector
        ``h'z`` (p), or ``W'z``.
    count
        Number of rows, public.
    """

    matrix: Floats
    vector: Floats
    count: int


@dataclass(frozen=True, repr=False)
class PrivateCounts(Private):
    """Rows per bin of a public grid; each row of `counts` is one histogram (histograms×bins)."""

    counts: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class PrivateMeat(Private):
    """Sum of squared, clipped contributions to ``b - Hβ`` (p×p)."""

    matrix: Floats


# --- the same, bound to what it was clipped to: this is what the door takes -----------------------------


@dataclass(frozen=True, repr=False)
class ClippedSums(Private):
    """``h'QX`` and ``h'z`` of rows clipped and scaled as `design` says, under the declared linkage."""

    sums: PrivateSums
    design: Design
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class ClippedPaperSums(Private):
    """``W'W`` and ``W'z`` of rows of norm at most `row_norm` and responses within ±`response_bound`."""

    sums: PrivateSums
    row_norm: float
    response_bound: float
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class ColumnCounts(Private):
    """Histograms of the numeric columns of `rows` rows, each over its bounds (columns×bins)."""

    counts: NDArray[np.int64]
    rows: int


@dataclass(frozen=True, repr=False)
class ResidualCounts(Private):
    """Histogram of the absolute residuals of `rows` rows between increasing public edges; the last bin is open (bins)."""

    counts: NDArray[np.int64]
    rows: int
    edges: Floats
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class ClippedMeat(Private):
    """Sum of squared contributions (p×p), each of norm at most `norm`.

    Attributes
    ----------
    route
        ``"row"`` or ``"block"``: whose contributions they are.
    rows
        Number of rows, public.
    norm
        The norm that every contribution was scaled down to.
    instrument
        Bound on the norm of a row's weighted instruments.
    reach
        Bound on ``|x'β|``.
    """

    matrix: Floats
    route: str
    rows: int
    norm: float
    instrument: float
    reach: float
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class RightLinks(Private):
    """Numbers of right links per group among `checked` links in all."""

    counts: NDArray[np.int64]
    checked: int
    exposure: LinkageExposure


# --- what engines are told, and what they tell of public things -----------------------------------------


@dataclass(frozen=True)
class BlockFacts:
    """What a release needs to know of public block sizes.

    Attributes
    ----------
    largest
        Rows of the largest block.
    by_key
        Rows per key of an accuracy table, the other block under None; empty without a table.
    dependence
        Mean over rows of ``min(.5, .9/√m)``, m the size of the row's block, blocks of one counting 0.
    """

    largest: int
    by_key: Mapping[str | None, int]
    dependence: float


@dataclass(frozen=True)
class CellFacts:
    """Missing cells of a numeric column, those below and above its bounds, and where the middle 70 % lie (None without cells)."""

    missing: int
    below: int
    above: int
    middle: tuple[float, ...] | None


@dataclass(frozen=True)
class Predictor:
    """Public by then: released coefficients (p), released means of the regressors (d), declared accuracy."""

    beta: Floats
    mean: Floats
    accuracy: float
