"""How far a computed sum may be from the exact one, and the sizes of tiles and strips that the proof rests on."""

from __future__ import annotations

import math

UNIT_ROUNDOFF = 2.0**-53
TILE = 1 << 18  # most rows that are summed before anything is merged
STRIP = 1 << 14  # rows summed in one go; few enough for the cache


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
    the same way. (SQL engines stay below, see :mod:`dplinked.sums.sql.exact_sums`.) A product of two block totals carries both errors, and
    ``o·Σ|h|·Σ|x| ≤ 2m·largest`` for a block of m ≥ 2 rows since ``o ≤ 1/(m-1)``; the paper's
    ``(2ao + mo²)ss'`` is at most three times that. Hence, with room to spare,

        error ≤ 16 · (min(k, n) + 2n/s + 80) · 2⁻⁵³ · n · largest.
    """
    depth = min(TILE, count) + 2.0 * count / STRIP + 80.0
    return 16.0 * depth * UNIT_ROUNDOFF * count * largest


def rounding_slack(count: int, largest: float, entries: int) -> float:
    """What rounding adds to an l2 sensitivity: both neighbours may be off, in every entry."""
    return 2.0 * math.sqrt(entries) * rounding_bound(count, largest)
