"""How far a computed sum may be from the exact one, and the sizes that the proof rests on."""

from __future__ import annotations

import math

from dplinked.data.sizes import BATCH, PART

UNIT_ROUNDOFF = 2.0**-53
TILE = 1 << 18  # rows that the compiled pass sums in one call, and rows of a block that may be added one by one
STRIP = 1 << 14  # rows that NumPy sums in one go; few enough for the cache
MOST_THREADS = 32  # threads that hold totals of blocks, in up to two arrays each

# What the proof below assumes of the sizes.
assert TILE >= STRIP, "a tile takes the place of a strip"
assert PART >= 16 * STRIP, "a part has 16 strips or more"
assert PART % STRIP == BATCH % STRIP == 0, "only the last strip of a part is shorter than others"


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
       row group of more than 16 strips that is read in batches of `BATCH` rows, which are whole strips; the exceptions are the last part and a part
       that a large row group follows. Only the last strip of a table or row group is short, so all parts together have at most ``2n/s + 1`` strips.
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
    9. *Weights of groups* are at most 1, so that steps 1 to 6 stay as they are. The total of weights is summed as products of totals are.
    10. *Right residuals.* A clipped residual ψ is a function of one row's regressors and one response, so its own rounding, jump and all, is
        the same for neighbours that share them. A row's term ``w(1, h)[(1-o)ψ - (1-γ)·mean ψ]`` is made of at most 17 of them by fewer than 30
        roundings, ``30u·nL`` over all rows. With steps 1 to 3 that is less than ``2D·u·nL``. Under an explicit matrix a term sums the c
        entries of a row of C, which t products of sparse matrices have made: ``(t + 1)(c + 2)·u·nL`` as in step 8, and t ≤ 6.
    11. *Squares of contributions.* Contributions u, of rows or totals of blocks, are cut to length N, which brings no two of them further
        apart. So ``uu'`` is off by at most 2N times what u is off by. Over all rows, or blocks, the latter adds up to ``2D·u·nℓ`` by steps 4, 5
        and 10, ℓ a bound on the length of a row's contribution. The sum of squares adds ``D·u·nN²``. With ``L = N·max(N, ℓ)`` that is
        ``5D·u·nL``.
    12. *Along a curve.* Its mean and slope at a row are functions of the row's regressors, so that their own rounding is the same for neighbours that share
        these, as in step 10. A term ``w a s m'(1, h)(1, x)'`` or ``w a s (1, h)(m - level)`` takes fewer than 30 further roundings. With steps 1 to 3 that is less
        than ``2D·u·nL``. The mean that a missing response counts as is one, too.

    13. *Whitened rows.* What whitening makes of a row, and what the row counts, are functions of that row alone, rounding and all, and lengths are bounded
        with room for their last digits. So steps 10 and 11 hold for their terms, and the sum of their squares is one of steps 1 to 3. Weights and conditions are such
        functions too, and multiply terms by at most 1.

    14. *Levels side by side.* Terms of a row are in one level and 0 in the others, so that the sums of absolute values of all levels add up to at most nL, and what they are off by, as one vector, to no more than one sum may be.

    For steps 10 to 13 `largest` follows from the clip: residuals of a row are at most ``K/√(ι² + ‖h‖²)``, and the weights of the responses that
    it meets add up to at most 2, or to t under an explicit matrix (:func:`~dplinked.sums.partners.unlinking_terms`). So a term of the equation is at
    most ``2K·max(1, 1/ι)``, without an intercept 2K, and ℓ is 2K times the largest weight of a contribution's entries, that of the intercept's
    divided by ι. Under an explicit matrix t takes the place of 2, where t is larger.

    Steps 3 and 7 add up to ``13D·u·nL``, and no other sums to more. The rest of 16 is room for the roundings of weights and products, and for the
    last addition:

        error ≤ 16 · (min(k, n) + 2n/s + 80) · 2⁻⁵³ · n · largest.

    SQL engines stay below that bound, see :mod:`dplinked.sums.sql.exact_sums`.
    """
    depth = min(TILE, count) + 2.0 * count / STRIP + 80.0
    return 16.0 * depth * UNIT_ROUNDOFF * count * largest


def rounding_slack(count: int, largest: float, entries: int) -> float:
    """What rounding adds to an l2 sensitivity: both neighbours may be off, in every entry."""
    return 2.0 * math.sqrt(entries) * rounding_bound(count, largest)
