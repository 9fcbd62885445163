"""The clipped residual equation of right links, and the squares of its contributions: sensitivities with their proofs, plans and draws.

:mod:`dplinked.sums.partners` says why linked rows tell it. Throughout, ``g_il`` is what row i makes of the response on row l, ``(ι, h_i)`` times a clipped
residual, of norm at most K; or ``c_i u_i`` times one, the instruments of a whitened row times what it counts. What these are does not enter, but that they are
functions of public values and of row i's own regressors, and that terms are at most K long, which their clips ``K/‖c_i u_i‖`` see to. A row's own response weighs ``1-o`` and those of its c partners ``(1-γ)/c`` each, so that rows and columns of weights add up to
``2-γ-o``, and to ``1-γ`` without the row's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.meat import (
    block_meat_sensitivity,
    centred_meat_sensitivity,
    plan_meat,
    squares_sensitivity,
)
from dplinked.privacy.spending import MEAT, TOTALS_MEAT, Spending
from dplinked.privacy.symmetric import pack_symmetric, unpack_symmetric
from dplinked.sums.clipped import ClippedResiduals
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

RIGHT_RESIDUALS = "right residuals"
_REGROUPED = 2.0  # how much more weights change than Q, if rows are grouped anew; for 16 partners or more


def pair_weights(exposure: LinkageExposure) -> tuple[float, float, float]:
    """Bounds on the absolute weights of a row, of a column, and of a column without its own row.

    Proof. Under exchangeable errors they are ``2-γ``, ``2-γ`` and ``1-γ``, times the weight of the row's group, at most those of the smallest accuracy; an exact join has 1, 1 and 0. An explicit Q
    is unlinked by ``C = Σ_{j<k} (I-Q)^j``. Rows of I-Q add up to at most ``r = 2(1-γ)`` in absolute value and columns to ``s = 1 + S - 2γ``, so those of C
    to ``Σ_j r^j`` and ``Σ_j s^j``; its own row is one of a column's.
    """
    if exposure.exact:
        return 1.0, 1.0, 0.0
    if exposure.symmetric:
        whole = max(weight * (2.0 - gamma) for weight, gamma in exposure.groups)
        return whole, whole, max(weight * (1.0 - gamma) for weight, gamma in exposure.groups)
    r, s, k = *_spread(exposure), _terms(exposure)
    column = sum(s**j for j in range(k))
    return sum(r**j for j in range(k)), column, column


def weight_change(exposure: LinkageExposure) -> float:
    """Bound on ``Σ|c'_il - c_il|``, the change of all weights if Q changes.

    Proof. *A move.* Row j leaves a block of m rows for another. Its own row may change in any way and is counted elsewhere. Of the m-1 rows that stay, c had
    it as a partner and take another instead, ``2(1-γ)/c`` each; with all others as partners they had it with weight ``(1-γ)/(m-1)``, which goes to the rest:
    ``2(1-γ)`` in all. Their o grows by ``(1-γ)/((m-1)(m-2))`` each, ``(1-γ)/(m-2)`` in all, at most 1-γ; in a block of two the other row's own weight grows by
    1-γ and its partner's is gone, ``2(1-γ)`` together. So at most ``3(1-γ)``, and joining is leaving in reverse: ``6(1-γ)``.

    *Any other change of Q, by M in l1: at most 2M.* Let row i be in a block B of m rows before and in B' of m' after, with ``w = 1-γ`` and ``w' = 1-γ'`` (0 in a block of
    one), and let A be the a rows of both. Write ``x = 1 - a/m``, ``y = 1 - a/m'`` and ``Δ = |w - w'|``; where the order matters, w is the larger. M_i and D_i are what row i changes
    of Q and of the weights, and V_i is the l1 distance of the means over its partners before and after. Then

    1. ``M_i = Δ + (a-1)|o - o'| + (m-a)o + (m'-a)o'``, where ``w = (m-1)o`` and ``w' = (m'-1)o'``. So ``M_i ≥ 2(Δ + w'y)`` and ``M_i ≥ 2wx``, and if o is the larger,
       ``|o - o'| ≤ M_i/(2(m-1))``.
    2. ``D_i ≤ |o - o'| + Δ + V_i min(w, w')``.
    3. *In a circle of n > c rows*, a of which are in A, let k_i be how many of the next c rows are in A too. Over the rows of A, ``a + 2Σk_i`` is the sum of
       ``1_A(i)1_A(i+s)`` over all i and ``|s| ≤ c``, a quadratic form whose eigenvalues are those of Dirichlet's kernel: ``2c+1`` for the constant part of 1_A, whose square is
       a²/n, and at least ``-δ(2c+1)`` for the rest. Hence the mean of ``1 - k_i/c`` over A is at most ``R(1 - a/n)``, ``R = (1 + 1/(2c))(1 + δ)``. The
       kernel is ``sin(u)/sin(v)``, v = u/(2c+1) up to π/2. With ``sin(u)/u ≥ -.2173`` and ``sin(v) ≥ v(1 - v²/6)`` up to u = 2π, and ``sin(v) ≥ sin(2π/(2c+1))`` beyond,
       ``δ < .219`` for c ≥ 16; so ``R < 1.26``.
    4. The sum of ``a(1 - a/m)(2a/m - 1)`` over the parts of a block is not above 0: if one has more than half of the rows, a share α, every other share β is at most 1-α, and
       ``β(1-β)(1-2β) ≥ βα(2α-1)``. So it is enough that D_i, on average over the rows of A, is at most ``2M_i`` plus ``(R/2)wx(1-2x)`` if m > c+1, and plus ``(R/2)w'y(1-2y)`` if m' > c+1.

    *Both blocks have at most c+1 rows.* Off the diagonal the weights are Q's entries: ``D_i ≤ M_i + |o - o'| ≤ 1.5M_i``.

    *Both have more.* The next c rows of B ∪ B' that are in A are partners before and after, all of them in the order of their random numbers, and
    ``a/(m + m' - a) ≥ (1-x)(1-y)``. So V_i is at most ``2R(x+y-xy)`` on average. With ``μ = max(Δ + w'y, wx)``, ``w = w' + Δ`` and ``e = x - y``,

        3μ + (wx(1-2x) + w'y(1-2y))/2 - Δ - 2w'(x+y-xy) = 1.5|Δ(1-x) - w'e| + Δ(1/2 + 2x - x²) - w'e²,

    which is not below 0: the first term is at least ``|e||Δ(1-x) - w'e|``, and ``e ≤ x``. Times R, D_i is at most ``1.5R·M_i + M_i/(2(c+1))`` and the terms of 4: below ``1.92M_i``.

    *B has at most c+1 rows, B' more* (or the reverse). All others of B are partners, so of c partners in B' those in A stay: V_i is at most ``2·min(1, Ry)`` on average. If ``y ≤ 1/2``,
    both blocks have at least a ≥ c/2 + 1 rows, and ``D_i ≤ M_i/2 + R·M_i + M_i/c < 1.83M_i``. Else ``D_i ≤ M_i/2 + Δ + 2min(w, w')·min(1, Ry)``, and with the term of 4 on this side
    it is at most ``M_i/2 + M_i(min(1/y, R) + (R/4)(2y-1))``, because ``M_i ≥ 2(Δ + w'y)`` if w' is the smaller and, as ``Ry ≥ 1/2``, ``Δ + 2w·min(1, Ry) ≤ 2w'·min(1, Ry)`` if it is the
    larger. The bracket is largest at ``y = 1/R``, and D_i below ``(1 + .75R)M_i < 1.95M_i``.

    *An explicit Q.* ``(I-Q)^j - (I-Q')^j`` is a sum of j products with one factor Q' - Q between powers of I-Q and of I-Q', and an entrywise l1 norm grows by at
    most the largest column sum of what stands on the left and the largest row sum of what stands on the right.
    """
    M = exposure.matrix_change
    if exposure.symmetric:
        return exposure.moved_change + _REGROUPED * (M - exposure.moved_change)
    r, s, k = *_spread(exposure), _terms(exposure)
    return M * sum(s**i * r ** (j - 1 - i) for j in range(1, k) for i in range(j))


def _spread(exposure: LinkageExposure) -> tuple[float, float]:
    """Bounds on absolute row and column sums of I - Q."""
    gamma = exposure.accuracy_min
    return 2.0 * (1.0 - gamma), 1.0 + exposure.column_sum - 2.0 * gamma


def _terms(exposure: LinkageExposure) -> int:
    terms = unlinking_terms(exposure.accuracy_min)
    assert terms is not None, "a second stage is not planned for such a matrix"
    return terms


def right_residuals_sensitivity(norm: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``S = Σ c_il g_il`` with ``‖g_il‖ ≤ norm`` (K).

    Proof. With Q as it is: x_j changes the terms of its row, each by at most 2K. A response changes the terms of its column, each by at most 2K; that happens
    on each row that carries the person's response (ν) and on each displaced row (k). If links are displaced, row j is linked anew as well. Its own term is one of
    its row, which may change in any way already; the others of its column weigh what a column does without its own row. If Q changes,
    ``ΔS = Σ c'(g' - g) + Σ (c' - c)g``, and the second sum is at most K times :func:`weight_change`.

    *Levels side by side.* Row i counts in its own level alone, so the equations of all levels are one of terms ``e ⊗ g_il``, e the unit vector of row i's level, times K over the
    level's own K. They are as long as g_il, functions of row i's regressors and of the response l, and nothing else was used: all levels together move by no more than one.
    """
    row, column, others = pair_weights(exposure)
    if exposure.exact:
        return 2.0 * norm
    pairs = row + column * (exposure.carriers + exposure.displaced) + others * (exposure.displaced > 0)
    return norm * (2.0 * pairs + weight_change(exposure))


def longest_contribution(largest: float, exposure: LinkageExposure) -> float:
    """How long a row's contribution can be that is at most `largest` long for each response that it meets: as many times as its weights together."""
    return pair_weights(exposure)[0] * largest


def residual_meat_sensitivity(norm: float, largest: float, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ u_i u_i'``, ``u_i = v_i B_i`` a row's contribution cut to ‖u_i‖ ≤ norm (N), with ``‖v_i‖|ψ_i| ≤ largest`` (T).

    Proof. N counts up to the longest contribution that there can be (:func:`longest_contribution`). Row j changes in any way. Rows that hold the person's response, and displaced ones, keep the
    direction v_i and change their length within [0, N²]: N² each. Rows whose partner has another response change their bracket B_i, the weights of the partner times at most 2ψ; ``min(‖v‖²B², N²)``
    has slope at most ``2N‖v‖``, so for each response they add up to ``4NT`` times a column's weights without its own row. A change of the weights moves brackets by ψ times it: ``2NT`` each. All of
    these keep their directions, so :func:`squares_sensitivity` has the rest. Of several levels side by side, each other row stays in its own.
    """
    _, _, others = pair_weights(exposure)
    norm = min(norm, longest_contribution(largest, exposure))
    if exposure.exact:
        return squares_sensitivity(norm, 0.0)
    changed = exposure.carriers + exposure.displaced
    met = 4.0 * norm * largest * others * (changed + (exposure.displaced > 0))
    return squares_sensitivity(norm, norm**2 * changed + met + 2.0 * norm * largest * weight_change(exposure))


def changed_totals(route: str, exposure: LinkageExposure) -> tuple[float, float]:
    """How many totals of contributions may change in any way, and the weights of changed responses that all other totals meet, each of which moves a contribution by at most twice its length.

    *Clusters*, whose cells are private. Row j may leave one total for another: 2. Each row that holds the person's response and each displaced one changes its own total: ν + k. Rows whose
    partners have other responses may be anywhere; their brackets move by the weights of a column without its own row, for each changed response, and for row j's if links are displaced. A change of
    the weights counts half, since it moves brackets by ψ and not by 2ψ. Of several levels side by side, the rows of a cluster and a level are a total, which is a division of rows by private cells as
    clusters are: the same numbers.

    *Persons*, whose ids are public, with up to L rows and responses and links that stay. All rows of a person are one total, and L·ν rows hold the responses: ``1 + Lν`` in all, and the L-th part of
    it for each of the steps that noise is planned for.
    """
    if route == "person":
        _, _, others = pair_weights(exposure)
        assert exposure.displaced == 0
        assert exposure.matrix_change == 0.0, "persons of several rows have links that stay"
        assert exposure.levels == 1, "a person's rows may be of several levels"
        carriers = 0.0 if exposure.exact else float(exposure.carriers)
        return 1.0 / exposure.persons + carriers, 2.0 * others * carriers
    assert route == "cluster"
    if exposure.exact:
        return 2.0, 0.0
    return 2.0 + exposure.carriers + exposure.displaced, met_by_others(exposure)


def met_by_others(exposure: LinkageExposure) -> float:
    """The weights of changed responses that rows meet whose own responses stay, and of changes of the weights themselves, for which half counts: they move brackets by ψ and not by 2ψ."""
    if exposure.exact:
        return 0.0
    _, _, others = pair_weights(exposure)
    changed = exposure.carriers + exposure.displaced
    return 2.0 * others * (changed + (exposure.displaced > 0)) + weight_change(exposure)


def total_meat_sensitivity(norm: float, largest: float, route: str, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ_c T_c T_c'``, totals of contributions of persons or clusters (`route`) cut to ‖T_c‖ ≤ norm (K), contributions at most `largest` long (T) per response met.

    Proof. So many totals as :func:`changed_totals` says change in any way. To cut totals brings no two of them further apart, so all others together move by T times its second number, and their
    squares by ``2K`` times that in trace norm; :func:`~dplinked.privacy.quantities.meat.squares_sensitivity` has the rest.
    """
    changed, met = changed_totals(route, exposure)
    return squares_sensitivity(norm, 2.0 * norm * largest * met, changed)


def plan_right_residuals(
    entries: int, limit: float, intercept_weight: float, exposure: LinkageExposure, count: int, mu: float
) -> NoisePlan:
    """Plan the noise of the equation, the intercept's entry times ι."""
    largest = 2.0 * limit * pair_weights(exposure)[0]
    sensitivity = right_residuals_sensitivity(limit, exposure) + rounding_slack(count, largest, entries)
    part = Part(RIGHT_RESIDUALS, entries, sensitivity, 1.0, sensitivity / mu)
    return make_room_for_draw(NoisePlan((part,), mu), count * largest)


def release_right_residuals(private: ClippedResiduals, spending: Spending, mu: float) -> tuple[Floats, Floats]:
    """Release the equation in one Gaussian draw: the noisy vector, and the standard deviation of the noise in each entry (p each).

    `mu` was taken from the spending for it.

    Privacy
    -------
    μ-GDP: terms, with the intercept's entry times ι, are at most K long, whatever the rows, so neighbours are at most
    :func:`right_residuals_sensitivity` apart.
    """
    entries = private.vector.size
    weights = np.ones(entries)
    weights[: int(private.intercept_weight > 0.0)] = private.intercept_weight
    plan = plan_right_residuals(entries, private.limit, private.intercept_weight, private.exposure, private.rows, mu)
    drawn = noise.add_gaussian(private.vector * weights, spending.note(plan).scales())
    return drawn / weights, plan.scales() / weights


def release_residual_meat(
    private: ClippedResiduals, spending: Spending, share: float | None = None
) -> tuple[Floats, float]:
    """Release the squares of the equation's contributions for a `share` of the budget, by default that of a variance: the noisy matrix, and the noise in an entry of its packed form.

    Privacy
    -------
    μ-GDP for that share, for the route and the norm that the value was made with, which are public by then.
    """
    clip, exposure = private.meat_clip, private.exposure
    assert clip is not None
    assert private.meat is not None
    if clip.centres is not None and clip.route == "row":
        sensitivity = centred_meat_sensitivity(clip.norm, private.largest * met_by_others(exposure), exposure)
    elif clip.route == "block":
        sensitivity = block_meat_sensitivity(clip.norm, exposure)
    elif clip.clustered:
        sensitivity = total_meat_sensitivity(clip.norm, private.largest, clip.route, exposure)
    else:
        sensitivity = residual_meat_sensitivity(clip.norm, private.largest, exposure)
    p, largest = private.meat.shape[0], clip.norm * max(clip.norm, 2.0 * private.largest * pair_weights(exposure)[0])
    mu = spending.take(share or (TOTALS_MEAT if clip.clustered else MEAT))
    plan = spending.note(plan_meat(p, sensitivity, largest, private.rows, mu))
    drawn = noise.add_gaussian(pack_symmetric(private.meat), plan.scales())
    return unpack_symmetric(drawn, p), plan.parts[0].scale
