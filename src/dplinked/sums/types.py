"""What a pass over linked rows leaves behind: a few small private arrays, and how exact they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class PrivateSums:
    """Sums over linked rows, before any noise. Nothing here may be shown.

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

    def __repr__(self) -> str:
        return f"PrivateSums({self.matrix.shape[0]} columns, values withheld)"


@dataclass(frozen=True, repr=False)
class PrivateCounts:
    """Histogram of each numeric column on a public grid of its bounds; row k counts column k (d×bins)."""

    counts: NDArray[np.int64]

    def __repr__(self) -> str:
        return "PrivateCounts(values withheld)"


@dataclass(frozen=True, repr=False)
class PrivateMeat:
    """Sum of squared, clipped contributions to ``b - Hβ`` (p×p), before any noise."""

    matrix: Floats

    def __repr__(self) -> str:
        return "PrivateMeat(values withheld)"


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
    """What a numeric column's cells are like: how many are missing, below and above the bounds, and where the middle 70 % lie."""

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
