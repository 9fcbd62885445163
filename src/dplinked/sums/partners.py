"""Partners: other rows of a block whose responses tell what wrong links bring.

Under exchangeable linkage errors any function of linked pairs can be unlinked exactly. For a block of m rows with ``q_ii = γ``,
``q_il = o = (1-γ)/(m-1)`` and ``a = γ - o``, and for any g,

    E Σ_i g(x_i, z_i) = a Σ_i g(x_i, y_i) + o Σ_i Σ_l g(x_i, y_l),

and the double sum does not change when responses are permuted within the block, so it is seen: ``Σ_il g(x_i, z_l)``. Hence

    E Σ_i [(1-o) g(x_i, z_i) - o Σ_{l≠i} g(x_i, z_l)] = a Σ_i g(x_i, y_i).

The inner sum need not run over the whole block. Put its rows into a circle in random order, and let the partners of a row be the next c of
them: every other row is equally likely to be one, so ``(1-γ)`` times the mean over partners has the expectation of ``o Σ_{l≠i}``. Each response
is the partner of exactly c rows. With all others as partners (c = m-1) nothing is random. Drawing them adds at most (1-γ)/c to the variance that
wrong links cause.

The order must not depend on cells. It follows from the places of rows within their block where blocks are the same for all neighbours;
where they are not, every row has a random number of its own, and rows of a block are ordered by it: a row that joins or leaves changes one
partner of c others.

Here ``g(x, z) = (1, h) ψ(z - t)``, t a line of x, and ψ keeps residuals up to `NEAR` times their clip and takes those beyond for the clip itself: what lies beyond
is on average further out than the point where ψ leaves the residual, so a mean is bent less than if it were cut there.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTNERS = 16  # c: partners of a row in blocks of more rows than that
NEAR = 0.7  # of a residual's clip: beyond, it counts as the clip
_ADDED = 1.0 / 32.0  # to the variance that wrong links cause, by drawing partners where as few as possible are drawn
_LEFT = 0.01  # of a pair's weight that an explicit matrix may leave mixed
_MOST_TERMS = 6


def clip_residuals(residuals: Floats, widths: Floats) -> Floats:
    """ψ of residuals whose clips are ±`widths`."""
    near = NEAR * widths
    return np.asarray(np.where(np.abs(residuals) <= near, residuals, np.copysign(widths, residuals)), np.float64)


def enough_partners(accuracy: float, *, regrouped: bool) -> int:
    """How many partners are enough, for engines in which each costs much: drawing them adds at most a thirty-second to the variance that wrong links cause.

    No more than half of `PARTNERS` are taken; where fewer than three links in four are right, drawing them adds up to a sixteenth. Where rows may be `regrouped` between neighbours
    (a linkage_change above 0) all `PARTNERS` are: :func:`dplinked.privacy.quantities.right_residuals.weight_change` bounds what that does for so many, not for fewer.
    """
    if regrouped:
        return PARTNERS
    return max(1, min(PARTNERS // 2, math.ceil((1.0 - accuracy) / _ADDED)))


def unlinking_terms(accuracy_min: float) -> int | None:
    """Number of terms k of ``C = Σ_{j<k} (I-Q)^j``, which unlinks pairs under an explicit Q: ``CQ = I - (I-Q)^k``. None if too many were needed.

    Rows of I-Q add up to at most ``2(1-γ)`` in absolute value, γ the smallest declared accuracy; k is the least for which that to the power k is
    at most a hundredth.
    """
    rest = 2.0 * (1.0 - accuracy_min)
    if rest <= 0.0:
        return 1
    if rest >= 1.0:
        return None
    needed = math.ceil(math.log(_LEFT) / math.log(rest))
    return needed if needed <= _MOST_TERMS else None
