"""How far a computed sum may be from the exact one, and the sizes that the proof rests on."""

from __future__ import annotations

import math

from dplinked.data.sizes import LARGEST_PIECE, PART

UNIT_ROUNDOFF = 2.0**-53
TILE = 1 << 18  # rows that the compiled pass sums in one call, and rows of a block that may be added one by one
STRIP = 1 << 14  # rows that NumPy sums in one go; few enough for the cache
MOST_THREADS = 32  # threads that hold totals of blocks, in up to two arrays each

# What the proof below assumes of the sizes.
assert TILE >= STRIP, "a tile takes the place of a strip"
assert min(PART, LARGEST_PIECE) >= 16 * STRIP, "a part has 16 strips or more"
assert PART % STRIP == LARGEST_PIECE % STRIP == 0, "only the last strip of a part is shorter than others"


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
    Write n for `count`, L for `largest`, u for 2⁻⁵³, s for `STRIP`, k for `TILE`, and ``D = min(k, n) + 2n/s + 80``. A sum in
    which each term passes through at most D additions is off by at most ``D·u`` times the sum of absolute values.

    1. *Strip.* NumPy sums a strip of s rows, and the compiled pass a tile of k, in any order: at most min(k, n) additions.
    2. *Part.* The strips or tiles of a part are added one after the other. A part is one table of at least 16 strips, or one
       row group that is read in batches of at least 16 strips; the exceptions are the last part and a part that a large row group
       follows. Only the last strip of a table or batch is short, so all parts together have at most ``2n/s + 1`` strips.
    3. *Merge.* The sums of parts are added pairwise, which is 50 additions at most. With steps 1 and 2 that is fewer than D, so
       ``Σ h x``, ``Σ h z`` and the totals of columns are off by at most ``D·u·nL``.
    4. *Block totals.* A thread adds the rows of a block with at most k rows in any order. The rows of a larger block are added once
       a strip, after those of the strip have been summed; or they are added once a run within a tile while what rounding loses is kept
       (Neumaier), which counts as one addition for fewer than 2⁴⁰ rows. So a thread needs at most ``min(k, n) + 2n/s + 1`` additions.
    5. *Threads.* The arrays of all threads, at most twice `MOST_THREADS`, are added one after the other. With step 4 that
       is fewer than D, so a total is off by at most ``D·u`` times the sum of absolute values in the block.
    6. *Products of totals.* ``o·s_h·s_x'`` carries the errors of both totals. In a block of m ≥ 2 rows ``o ≤ 1/(m-1)``, so
       ``o·Σ|h|·Σ|x| ≤ 2mL``, and the product is off by at most ``2D·u·2mL``. Products of at most s blocks are summed in any order and
       merged pairwise, another ``D·u·2mL`` each. Over all blocks that is ``6D·u·nL``.
    7. *The paper's W.* Its products are ``(2ao + mo²)·s·s'``. Since ``a + mo = 1``, the weight is ``o(1 + a) ≤ 2o``, so step 6 doubles
       to ``12D·u·nL``.
    8. *Explicit matrices.* A row of ``QX`` sums the row's candidates: with c of them on average the sums are off by ``c·u·nL`` more, and
       those of W by twice that. Row products take the place of steps 4 to 7, and ``2c ≤ 12D`` for fewer than 2⁴⁰ pairs.

    Steps 3 and 7 add up to ``13D·u·nL``. The rest of 16 is room for the roundings of weights and products, and for the
    last addition:

        error ≤ 16 · (min(k, n) + 2n/s + 80) · 2⁻⁵³ · n · largest.

    SQL engines stay below that bound, see :mod:`dplinked.sums.sql.exact_sums`.
    """
    depth = min(TILE, count) + 2.0 * count / STRIP + 80.0
    return 16.0 * depth * UNIT_ROUNDOFF * count * largest


def rounding_slack(count: int, largest: float, entries: int) -> float:
    """What rounding adds to an l2 sensitivity: both neighbours may be off, in every entry."""
    return 2.0 * math.sqrt(entries) * rounding_bound(count, largest)
