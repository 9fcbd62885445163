"""What a pass over linked rows leaves behind: a few small private arrays, and how exact they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-53
TILE = 1 << 18  # most rows that are summed before anything is merged
STRIP = 1 << 14  # rows that are: few enough to stay in the cache


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


def rounding_bound(count: int, largest: float) -> float:
    """Largest distance of a computed sum entry from the exact sum of the same floating-point terms.

    Parameters
    ----------
    count
        Number of rows.
    largest
        Bound on the absolute value of one row's term.

    Notes
    -----
    A strip of s rows, or a tile of at most k, is summed in any order (relative error at most k roundings of the sum of
    absolute values). Parts but the last have 16 strips or more, all but one of them whole, so there are at most ``2n/s + 1`` strips, however the
    data is laid out; totals of blocks of at most k rows may be added row by row, those of larger ones add each strip once, or keep what rounding loses, then those of at most 64 threads are added, and sums are merged
    the same way. (SQL engines stay below, see :mod:`dplinked.sums.exact`.) A product of two block totals carries both errors, and
    ``o·Σ|h|·Σ|x| ≤ 2m·largest`` for a block of m ≥ 2 rows since ``o ≤ 1/(m-1)``; the paper's
    ``(2ao + mo²)ss'`` is at most three times that. Hence, with room to spare,

        error ≤ 16 · (min(k, n) + 2n/s + 80) · 2⁻⁵³ · n · largest.
    """
    depth = min(TILE, count) + 2.0 * count / STRIP + 80.0
    return 16.0 * depth * UNIT_ROUNDOFF * count * largest


def rounding_slack(count: int, largest: float, entries: int) -> float:
    """What rounding adds to an l2 sensitivity: both neighbours may be off, in every entry."""
    return 2.0 * math.sqrt(entries) * rounding_bound(count, largest)
