"""The bounded instrument's sums, ``b = h'z`` and ``H = h'QX``: sensitivities with their proofs, plan and draw."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, allocate, make_room_for_draw
from dplinked.privacy.quantities.residual_scale import residual_count_sensitivity
from dplinked.privacy.spending import CURVATURE, VARIANCE, Spending
from dplinked.privacy.symmetric import pack_symmetric, unpack_symmetric
from dplinked.records import Record
from dplinked.study.design import Design
from dplinked.sums.clipped import ClippedSums
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

# Public guesses that divide the budget between the parts of these sums; they affect precision only. On the scale where
# responses lie in [-1, 1]: the size of the slopes, the size of the intercept, and how much an error in the intercept's
# own equation matters for the slopes.
SLOPE_GUESS = 0.5
INTERCEPT_GUESS = 0.5
INTERCEPT_EQUATION = 0.25

RESPONSE_TOTAL = "response total"
INSTRUMENT_RESPONSE = "instrument × response"
_REGRESSOR_TOTALS = "regressor totals"
_INSTRUMENT_TOTALS = "instrument totals"
_SYMMETRIC_CORE = "symmetric matrix"
_CORE = "instrument × regressors"
_ROWS = "rows with all regressors"
_COMPLETE = "complete rows"
_LEAST_ANSWERED = 0.1  # share of responses that are taken to be there at least


def response_total_sensitivity(R: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``Σ z_i``, the intercept's entry of b.

    Proof. One row's response (row p) changes by at most 2R, and so does that of every row linked anew: the
    displaced ones, row j itself where there are such, and further carriers of the person's response. (If links are one to one the sum stays that of all
    responses, and 2R would do; this does not rely on it.)
    """
    return 2.0 * R * (1 + exposure.relinked)


def instrument_response_sensitivity(R: float, h: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``Σ h_i z_i``.

    Proof. Row j goes from ``h z`` to ``h' z'``, each of norm at most hR, whether its response changes or not:
    2hR, which is all for an exact join. Otherwise row p's response changes under an instrument that stays,
    ``‖h_p (z' - z)‖ ≤ 2hR``; j = p is the exact case and smaller. Each displaced link changes one more row's
    response: 2hR, and so does each further row that carries the person's (one-to-many links). Q does not enter.
    """
    own = 2.0 if exposure.exact else 2.0 + 2.0 * exposure.carriers
    return h * R * (own + 2.0 * exposure.displaced)


def instrument_total_sensitivity(h: float) -> float:
    """Sensitivity of ``Σ h_i``, the intercept's column of H.

    Proof. ``h'Q1 = h'1`` since rows of Q sum to one; only row j's instrument changes, by at most 2h.
    """
    return 2.0 * h


def row_total_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of the number of rows with all regressors, each times a public weight of at most 1: the intercept's entry of H where others are dropped.

    Proof. Whether a row counts is seen from its own regressors, and those of row j alone change: 1. Terms of the other sums go from ``ω u`` to ``ω' u'`` with ω
    and ω' 0 or 1, so they change by no more than from u to u' where both count, or by the length of one of them; sensitivities of rows by themselves stay as they are.
    Beside other levels, row j may leave one for another: numbers move by √2, and of the other sums one loses ``ωu`` and another gains ``ω'u'``, which is no further than from ``ωu`` to ``-ω'u'`` in one.
    """
    return exposure.counted


def regressor_total_sensitivity(E: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``1'QX``, the intercept's row of H.

    Proof. ``1'QX = Σ_j s_j x_j`` with s the column sums of Q. Doubly stochastic: s = 1 for both
    neighbours whatever happens to Q, and only x_j changes, by at most 2E. With column sums up to S the
    change of x_j weighs S, and a change of Q by M in l1 adds at most ME.
    """
    if exposure.column_sum == 1.0:
        return 2.0 * E
    return 2.0 * E * exposure.column_sum + exposure.matrix_change * E


def instrument_matrix_sensitivity(h: float, E: float, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of the core of ``H = h'QX``.

    Proof. Let Q stay first. Only row j's (h_j, x_j) change, from (s, t) to (s', t') in units of h and E. With
    ``γ = q_jj`` and ``(1-γ)û``, ``(1-γ)v̂`` the weighted means of the other rows' instruments and regressors
    (‖û‖, ‖v̂‖ ≤ 1, doubly stochastic), the change is ``γA + (1-γ)B`` with ``A = s't'ᵀ - stᵀ`` and
    ``B = û(t'-t)ᵀ + (s'-s)v̂ᵀ``. Its norm is convex in γ, at most 4 at γ = 0 and 2 at γ = 1. At γ = 1/2 twice
    the change is ``2[a(v̂+l)ᵀ + (û+m)bᵀ]`` with ``a, m = (s'∓s)/2`` and ``b, l = (t'∓t)/2``; all points may be taken on
    spheres (the expression is affine in each), so a⊥m, b⊥l, and its square is at most ``16(1-‖m‖²‖l‖²)`` by
    ``2(a·û)(b·v̂) ≤ ‖a‖²v₁² + ‖b‖²u₁²`` and ``‖v̂+l‖² + v₁² ≤ 2 + 2‖l‖²`` (u₁, v₁ the components along a, b).
    So at most 2 at γ = 1/2, and the chords give ``2hE·max(1, 2(1-γ))``, decreasing in γ: the smallest
    declared accuracy counts; of groups that are weighed, the largest product of weight and this. With column sums up to S, by the triangle inequality
    ``‖ΔH‖ ≤ γ·2hE + (S-γ)·2hE + (1-γ)·2hE = 2hE(1 + S - γ)``.
    If Q changes as well, ``‖h'(Q - Q')X‖_F ≤ Σ|q_ij - q'_ij|·‖h_i‖‖x_j‖ ≤ M hE``.
    """
    if exposure.exact:
        return 2.0 * h * E
    if exposure.column_sum == 1.0:
        factor = max(2.0 * weight * max(1.0, 2.0 * (1.0 - gamma)) for weight, gamma in exposure.groups)
    else:
        factor = 2.0 * (1.0 + exposure.column_sum - exposure.accuracy_min)
    return h * E * (factor + exposure.matrix_change)


def symmetric_matrix_sensitivity(E: float, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of ``X'QX`` for a symmetric doubly stochastic Q (the instrument h = x).

    Proof. With Q fixed the change is ``γ(pp' - rr')``, p and r in a ball of radius E around
    ``u/γ``, ``‖u‖ ≤ (1-γ)E``: :func:`rank_one_range` at κ = γ, times the weight of the row's group. M adds at most M·E².
    """
    return E**2 * (max(weight * rank_one_range(gamma) for weight, gamma in exposure.groups) + exposure.matrix_change)


def rank_one_range(kappa: float) -> float:
    """g(κ): largest ``κ‖pp' - rr'‖_F`` for p, r in the unit ball around a point at distance (1-κ)/κ.

    Proof. With the centre w at distance c = (1-κ)/κ: for fixed r, ``‖pp' - rr'‖²`` is convex in λ² along the ray λp,
    so p and r may lie on the sphere (p = 0 is no better than a point orthogonal to r). Write ``p, r = w + m ± a``:
    a·m = 0, ``‖a‖² = 1-e²``, e = ‖m‖, and ``‖pp' - rr'‖² = 8(‖a‖²‖w+m‖² + (a·w)²) ≤ 8(1-e²)(2c² + 2e² - (w₂-e)²)``,
    w₂ ≤ c the component of w along m. For e ≤ c, w₂ = e gives ``16(1-e²)(c²+e²)``, largest at
    ``e² = max(0, (1-c²)/2)``: 4c if c ≥ 1, 2(1+c²) if 1/3 ≤ c² < 1. For e ≥ c, w₂ = c gives ``8(1-e²)(e+c)²``, largest
    at ``e = (√(c²+8)-c)/4``, which is at least c iff c² ≤ 1/3. Equality for w in the plane of a and m.
    Decreasing in κ, from 4 at κ = 0 to √2 at κ = 1.
    """
    if kappa <= 0.0:
        return 4.0
    c = (1.0 - kappa) / kappa
    if c >= 1.0:
        return 4.0 * (1.0 - kappa)
    if 3.0 * c * c >= 1.0:
        return 2.0 * kappa * (1.0 + c * c)
    e = (math.sqrt(c * c + 8.0) - c) / 4.0
    return kappa * math.sqrt(8.0 * (1.0 - e * e)) * (c + e)


def joint_distance(E: float, R: float, matrix_scale: float, vector_scale: float) -> float:
    """Largest joint distance of ``(svec X'X, X'z)`` in units of their noise, for an exact join.

    Proof. Both squared changes are convex in z and z' and, for a fixed angle, grow with the norms: take
    ‖x‖ = ‖x'‖ = E, |z| = |z'| = R, and t = |x·x'|. Then ``‖xx' - x'x''‖_F² = 2E⁴ - 2t²`` and
    ``‖xz - x'z'‖² ≤ 2R²E² + 2R²t``. The weighted sum is concave in t and largest at ``t = min(R²B/2A, E²)`` with
    ``A = 1/matrix_scale²``, ``B = 1/vector_scale²``.
    """
    A, B = matrix_scale**-2, vector_scale**-2
    t = min(R * R * B / (2.0 * A), E * E)
    return math.sqrt(2.0 * A * (E**4 - t * t) + 2.0 * B * R * R * (E * E + t))


# --- the plan, from public values only -----------------------------------------------------------------


def is_symmetric(design: Design, exposure: LinkageExposure) -> bool:
    """Whether ``h'QX`` is symmetric: the instrument is x itself and Q symmetric."""
    return design.half_widths is None and exposure.symmetric


def plan_sums(
    design: Design,
    exposure: LinkageExposure,
    count: int,
    mu: float,
    *,
    matrix_only: bool = False,
    intervals: bool = False,
    dropped: LinkageExposure | None = None,
    slopes: float | None = None,
) -> NoisePlan:
    """Plan the noise of (H, b) for μ in all, or of H alone.

    H gets as much of the budget as suits slopes of the length `slopes`, a released value if it is given, and a public guess if not. Then, for intervals and with few columns, it gets more: it must stand clear of its noise. If rows with missing regressors are dropped, which
    they are where no link enters, the number of the others is drawn too, and how many of them have a response; `dropped` says what one person can change about those.
    """
    assert exposure.exact or dropped is None, "under links every row's regressors are needed"
    parts = instrument_parts(design, exposure, count, intervals, slopes)
    if matrix_only:
        parts = [part for part in parts if part.name not in (RESPONSE_TOTAL, INSTRUMENT_RESPONSE)]
    if dropped is not None:
        parts += row_parts(dropped, count)
    if not parts:  # an intercept alone: its matrix is n, public
        return NoisePlan((), mu)
    plan = allocate(parts, mu)
    if exposure.exact and is_symmetric(design, exposure) and design.columns and not matrix_only:
        plan = _use_joint_distance(design, plan)
    largest = 2.0 * exposure.column_sum * max(1.0, design.radius) * max(1.0, design.instrument_radius)
    return make_room_for_draw(plan, count * largest)


def guess_length(columns: int, intervals: bool) -> float:
    """How long slopes are taken to be together where nothing tells."""
    return max(SLOPE_GUESS, math.sqrt(1.5 / max(1, columns)) if intervals else 0.0)


def instrument_parts(
    design: Design, exposure: LinkageExposure, count: int, intervals: bool, slopes: float | None = None
) -> list[Part]:
    """Parts of (H, b) with their sensitivities, rounding included; `slopes` as in :func:`plan_sums`. Responses lie within ±1."""
    d, E, h = len(design.columns), design.radius, design.instrument_radius
    R = design.response.peak

    unit = rounding_slack(count, 1.0, 1)  # of terms that are at most 1, per entry

    def part(name: str, entries: int, sensitivity: float, importance: float, largest: float) -> Part:
        return Part(name, entries, sensitivity + unit * largest * math.sqrt(entries), importance)

    slope = (guess_length(d, intervals) if slopes is None else slopes) ** 2
    intercept, equation = INTERCEPT_GUESS**2, INTERCEPT_EQUATION**2
    parts = []
    if design.intercept:
        parts.append(part(RESPONSE_TOTAL, 1, response_total_sensitivity(R, exposure), equation, R))
    if d == 0:
        return parts
    parts.append(part(INSTRUMENT_RESPONSE, d, instrument_response_sensitivity(R, h, exposure), 1.0, h * R))
    totals = regressor_total_sensitivity(E, exposure)
    if is_symmetric(design, exposure):
        if design.intercept:
            parts.append(part(_REGRESSOR_TOTALS, d, totals, intercept, E))
        core = symmetric_matrix_sensitivity(E, exposure)
        parts.append(part(_SYMMETRIC_CORE, d * (d + 1) // 2, core, slope / 2.0, math.sqrt(2.0) * E * E))
        return parts
    if design.intercept:
        parts.append(part(_REGRESSOR_TOTALS, d, totals, equation * slope, E * exposure.column_sum))
        parts.append(part(_INSTRUMENT_TOTALS, d, instrument_total_sensitivity(h), intercept, h))
    core = instrument_matrix_sensitivity(h, E, exposure)
    parts.append(part(_CORE, d * d, core, slope, h * E * exposure.column_sum))
    return parts


def row_parts(exposure: LinkageExposure, count: int) -> list[Part]:
    """The numbers of rows with all regressors, and of complete ones, where others are dropped."""
    importance, room = (INTERCEPT_GUESS * INTERCEPT_EQUATION) ** 2, rounding_slack(count, 1.0, 1)
    return [
        Part(_ROWS, 1, row_total_sensitivity(exposure) + room, importance),
        Part(_COMPLETE, 1, residual_count_sensitivity(exposure) + room, importance / 4.0),
    ]


def share_answered(known: float, complete: float) -> float:
    """The share of rows with a response, among those with all regressors, from noisy numbers of both."""
    return min(1.0, max(_LEAST_ANSWERED, complete / max(known, 1.0)))


def _use_joint_distance(design: Design, plan: NoisePlan) -> NoisePlan:
    """For an exact join, matrix and vector cannot both move maximally: shrink all scales accordingly.

    Neighbours are then at most ``√(joint² + others²)`` apart, and rounding, which is in the parts' sensitivities,
    adds its own distance by the triangle inequality.
    """
    ideal = {
        _SYMMETRIC_CORE: math.sqrt(2.0) * design.radius**2,
        INSTRUMENT_RESPONSE: 2.0 * design.radius * design.response.peak,
    }
    joint = joint_distance(design.radius, design.response.peak, *(plan.scale(name) for name in ideal))
    others = [part.sensitivity / part.scale for part in plan.parts if part.name not in ideal]
    rounding = [(part.sensitivity - ideal[part.name]) / part.scale for part in plan.parts if part.name in ideal]
    factor = min(1.0, (math.hypot(joint, *others) + math.hypot(*rounding)) / plan.mu)
    return NoisePlan(tuple(replace(part, scale=part.scale * factor) for part in plan.parts), plan.mu)


@dataclass(frozen=True)
class EntryNoise:
    """Standard deviation of the noise in each kind of entry of (H, b); 0 where a plan has no such part.

    Attributes
    ----------
    response_total, response
        Of the intercept's entry of b, and of the others.
    row, column
        Of the intercept's row and column of H.
    core, diagonal
        Of an entry of the rest of H, and of one on its diagonal, which has more noise where H is symmetric.
    """

    response_total: float
    response: float
    row: float
    column: float
    core: float
    diagonal: float


def entry_noise(plan: NoisePlan) -> EntryNoise:
    """The noise of a plan of these sums, entry by entry."""
    symmetric = plan.scale(_SYMMETRIC_CORE)
    row = plan.scale(_REGRESSOR_TOTALS)
    return EntryNoise(
        plan.scale(RESPONSE_TOTAL),
        plan.scale(INSTRUMENT_RESPONSE),
        row,
        row if symmetric else plan.scale(_INSTRUMENT_TOTALS),
        symmetric / math.sqrt(2.0) if symmetric else plan.scale(_CORE),
        symmetric or plan.scale(_CORE),
    )


# --- the draw ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReleasedSums(Record):
    """Noisy sums: released, so anything may be done with them.

    Attributes
    ----------
    matrix, vector
        Noisy ``h'QX`` (p×p) and ``h'z`` (p), or ``W'W`` and ``W'z``.
    matrix_scale, vector_scale
        Standard deviation of the noise in each entry; 0 where an entry is public.
    symmetric
        Whether the matrix and its noise are symmetric.
    centre
        The coefficients around which the vector was taken (p): noise of the matrix counts for the distance from them. 0,
        the mean iterate of a descent, or that of the second stage's steps.
    mixing
        What an error of the accuracy, relative to it, does to ``b - Hβ``, as a share of the slopes' part of Hβ.
    basis
        B (p×p), if noise has the scales above in other coordinates, ``Bβ``, in which the sums were released: that of the matrix is ``B'UB`` and that of the
        vector ``B'u``. The intercept's coordinate comes first, and the others depend on slopes alone.
    """

    matrix: Floats
    vector: Floats
    matrix_scale: Floats
    vector_scale: Floats
    symmetric: bool
    centre: Floats
    mixing: float = 1.0
    basis: Floats | None = None


def release_sums(
    private: ClippedSums,
    spending: Spending,
    *,
    intervals: bool,
    share: float | None = None,
    keep: float = VARIANCE,
    slopes: float | None = None,
) -> ReleasedSums:
    """Release (H, b) of the bounded instrument, for a share of the budget or for all that is left but what intervals need, which is kept; `slopes` as in :func:`plan_sums`.

    Privacy
    -------
    μ-GDP for the unit behind the value's exposure: one Gaussian draw of all parts, each scaled so that
    ``Σ (Δ/scale)² ≤ μ²``; for an exact join with h = x the joint distance of the parts is used.
    """
    mu = spending.take_rest(keep=keep if intervals else 0.0) if share is None else spending.take(share)
    return _draw(private, spending, mu, intervals=intervals, slopes=slopes)


def release_curvature(
    private: ClippedSums, spending: Spending, *, intervals: bool, share: float = CURVATURE
) -> ReleasedSums:
    """Release H alone, beside a descent or for the second stage; b is then 0, with no claim to it.

    Where missing cells are dropped, H is that of rows with all regressors, times the share of responses among them. That share is taken to be the same in all rows: what is
    wrong with it counts for the way that is left to go only, like all that is wrong with the slope of the second stage.

    Privacy
    -------
    As :func:`release_sums`, with the parts of H alone. No row moves all parts the most at once: with instruments h the squared distance is convex in each of h, x, h' and x', so largest at full lengths, and there linear in the cosine of h and h' and in
    that of x and x'. So it is at most the core's square and the larger of both totals', or both totals': .86 of what is claimed in the search.
    """
    return _draw(private, spending, spending.take(share), matrix_only=True, intervals=intervals)


def pool_sums(one: ReleasedSums, two: ReleasedSums) -> ReleasedSums:
    """Two releases of the same sums as one, each entry weighed by its precision."""
    vector, vector_scale = _pool(one.vector, one.vector_scale, two.vector, two.vector_scale)
    return replace(pool_by_precision(one, two), vector=vector, vector_scale=vector_scale)


def pool_by_precision(one: ReleasedSums, two: ReleasedSums) -> ReleasedSums:
    """Two releases of the same matrix as one, each entry weighed by its precision; the vector is the first's."""
    matrix, scale = _pool(one.matrix, one.matrix_scale, two.matrix, two.matrix_scale)
    return replace(one, matrix=matrix, matrix_scale=scale)


def _pool(one: Floats, noise_of_one: Floats, two: Floats, noise_of_two: Floats) -> tuple[Floats, Floats]:
    """The mean of two draws of the same values, weighed by their precisions, and its noise; values without noise are public."""
    noisy = noise_of_one > 0.0
    left, right = (np.where(noisy, scale, 1.0) ** -2 for scale in (noise_of_one, noise_of_two))
    mean = np.where(noisy, (left * one + right * two) / (left + right), one)
    return mean, np.where(noisy, (left + right) ** -0.5, 0.0)


def _draw(
    private: ClippedSums,
    spending: Spending,
    mu: float,
    *,
    matrix_only: bool = False,
    intervals: bool,
    slopes: float | None = None,
) -> ReleasedSums:
    sums, design, exposure = private.sums, private.design, private.exposure
    plan = plan_sums(
        design,
        exposure,
        sums.count,
        mu,
        matrix_only=matrix_only,
        intervals=intervals,
        dropped=private.dropped,
        slopes=slopes,
    )
    spending.note(plan)
    d, first = len(design.columns), int(design.intercept)
    symmetric = is_symmetric(design, exposure)
    core = sums.matrix[first:, first:]
    values = {
        RESPONSE_TOTAL: sums.vector[:first],
        INSTRUMENT_RESPONSE: sums.vector[first:],
        _REGRESSOR_TOTALS: sums.matrix[0, first:],
        _INSTRUMENT_TOTALS: sums.matrix[first:, 0],
        _SYMMETRIC_CORE: pack_symmetric(core),
        _CORE: core.ravel(),
        _ROWS: np.array([sums.known]),
        _COMPLETE: np.array([sums.complete]),
    }
    noisy = {}
    if plan.parts:
        drawn = noise.add_gaussian(np.concatenate([values[part.name] for part in plan.parts]), plan.scales())
        pieces = np.split(drawn, np.cumsum([part.entries for part in plan.parts])[:-1])
        noisy = dict(zip((part.name for part in plan.parts), pieces, strict=True))

    matrix, matrix_scale = np.zeros_like(sums.matrix), np.zeros_like(sums.matrix)
    vector, vector_scale = np.zeros_like(sums.vector), np.zeros_like(sums.vector)
    if first and private.dropped is not None:
        matrix[0, 0], matrix_scale[0, 0] = noisy[_ROWS][0], plan.scale(_ROWS)
    elif first:
        matrix[0, 0] = sums.matrix[0, 0]  # rows times the weights of their groups, public
    if first and not matrix_only:
        vector[0], vector_scale[0] = noisy[RESPONSE_TOTAL][0], plan.scale(RESPONSE_TOTAL)
    if d and not matrix_only:
        vector[first:], vector_scale[first:] = noisy[INSTRUMENT_RESPONSE], plan.scale(INSTRUMENT_RESPONSE)
    if d:
        inner = (slice(first, None), slice(first, None))
        if symmetric:
            matrix[inner] = unpack_symmetric(noisy[_SYMMETRIC_CORE], d)
            matrix_scale[inner] = unpack_symmetric(plan.scale(_SYMMETRIC_CORE), d)
        else:
            matrix[inner] = noisy[_CORE].reshape(d, d)
            matrix_scale[inner] = plan.scale(_CORE)
        if first:
            columns = _REGRESSOR_TOTALS if symmetric else _INSTRUMENT_TOTALS
            matrix[0, 1:], matrix_scale[0, 1:] = noisy[_REGRESSOR_TOTALS], plan.scale(_REGRESSOR_TOTALS)
            matrix[1:, 0], matrix_scale[1:, 0] = noisy[columns], plan.scale(columns)
    if private.dropped is not None:
        answered = share_answered(noisy[_ROWS][0], noisy[_COMPLETE][0])
        matrix, matrix_scale = answered * matrix, answered * matrix_scale
    return ReleasedSums(matrix, vector, matrix_scale, vector_scale, symmetric, np.zeros_like(vector))
