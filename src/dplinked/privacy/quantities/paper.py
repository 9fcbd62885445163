"""The paper's sums, ``W'W``, ``W'z`` and ``z'z`` with ``W = QX``: sensitivities with their proofs, plan and draw."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, allocate, make_room_for_draw
from dplinked.privacy.quantities.descent import ReleasedDescent, plan_descent, run_descent
from dplinked.privacy.quantities.instrument import ReleasedSums, rank_one_range
from dplinked.privacy.spending import Spending
from dplinked.privacy.symmetric import pack_symmetric, unpack_symmetric
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.clipped import ClippedPaperSums
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

_SUMS = "W'W and W'z"
_GRAM = "W'W"
_SQUARES = "z'z"


def paper_constants(study: Study, design: Design) -> tuple[float, float]:
    """c and R of the paper: as declared, else what the bounds imply."""
    c = study.row_norm or math.hypot(design.radius, float(design.intercept))
    return c, study.response_bound or design.response.peak


def gram_sensitivity(c: float, exposure: LinkageExposure, kappa: float = 0.0) -> float:
    """Frobenius sensitivity of ``W'W``, rows of norm at most c.

    Proof. The paper's: ``Σ‖w_i - w'_i‖ ≤ c(M + 2S)``, so ``‖ΔW'W‖ ≤ 2c²(M + 2S)``, a sum of rank-one
    terms in which Frobenius and spectral norm agree. With Q fixed and ``κ ≤ Σ_i q_ij²`` the change is
    ``κ(pp' - rr')`` with p, r in a ball of radius c around a point at distance at most (1-κ)c/κ, so at most
    ``c² g(κ)``; a change of Q then adds 2c² per unit of M. The smaller of the two. Responses do not enter.
    """
    M, S = exposure.matrix_change, exposure.column_sum
    paper = 2.0 * c * c * (M + 2.0 * S)
    if S != 1.0:
        return paper
    return min(paper, c * c * (rank_one_range(1.0 if exposure.exact else kappa) + 2.0 * M))


def cross_sensitivity(c: float, R: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``W'z``: ``Rc(M + 2S + 2)``, 2Rc more for each relinked row; 2Rc for an exact join.

    Proof. ``‖(W - W')'z‖ ≤ Rc(M + 2S)``, and each response that changes moves 2R on a row of norm at most c:
    row p's and those of the relinked rows.
    """
    if exposure.exact:
        return 2.0 * R * c
    return R * c * (exposure.paper_change + 2.0 * exposure.column_sum + 2.0)


def paper_ngd_sensitivity(c: float, R: float, C: float, exposure: LinkageExposure) -> float:
    """B of Theorem 4.1(i) of [LPK24]: ``Rc(M+4) + 2Cc²(M+2)``, for gradient sums with ‖β‖ ≤ C."""
    M, S = exposure.paper_change, exposure.column_sum
    return R * c * (M + 2.0 + 2.0 * S) + 2.0 * C * c * c * (M + 2.0 * S)


def paper_ssp_sensitivity(c: float, R: float, exposure: LinkageExposure) -> float:
    """B of Theorem 4.1(ii) of [LPK24]: ``Rc(M+4) + max{2c²(M+2), 2R²}``.

    It bounds a spectral norm; it is safe for the upper triangle of W'W and W'z as they are released,
    since ``√(Δ_G² + Δ_b²) ≤ Δ_G + Δ_b``.
    """
    M, S = exposure.paper_change, exposure.column_sum
    return R * c * (M + 2.0 + 2.0 * S) + max(2.0 * c * c * (M + 2.0 * S), 2.0 * R * R)


def squares_sensitivity(R: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``z'z``: R² for each row whose response may change.

    Proof. ``z_i²`` lies in [0, R²]. The response changes on one row that holds the person's, and on every relinked row. Q does not enter.
    """
    return R * R * (1 + exposure.relinked)


# --- plan and draw --------------------------------------------------------------------------------------


def plan_paper_sums(
    p: int, c: float, R: float, exposure: LinkageExposure, mu: float, count: int, *, squares: bool
) -> NoisePlan:
    """Plan the noise of Algorithm 2: B of Theorem 4.1(ii) over μ, the same for the upper triangle of W'W and for W'z.

    With `squares`, z'z is released in the same draw, and the noise of the rest stays what it is.

    Proof. B exceeds the joint sensitivity of W'W and W'z: ``B ≥ Δ_G + Δ_b``, so ``B² - Δ_G² - Δ_b² ≥ 2Δ_GΔ_b > 0``. With
    ``scale_zz = scale·Δ_zz/√(B² - Δ_G² - Δ_b²)`` the squared distances over squared scales add up to at most ``B²/scale² = μ²``. (The paper's B has
    a term 2R² for z'z, which Algorithm 2 never uses; so scale_zz is at most the scale of the rest unless links are displaced.)
    """
    entries, norm = p * (p + 1) // 2 + p, c * exposure.column_sum
    largest = norm * max(norm, R)
    B, slack = paper_ssp_sensitivity(c, R, exposure), rounding_slack(count, largest, entries)
    part = Part(_SUMS, entries, B + slack, 1.0, (B + slack) / mu)
    if not squares:
        return make_room_for_draw(NoisePlan((part,), mu), count * largest)
    gram, cross = gram_sensitivity(c, exposure), cross_sensitivity(c, R, exposure)
    spare = B - gram - cross
    left = math.sqrt(
        2.0 * gram * cross + spare * (B + gram + cross)
    )  # √(B² - Δ_G² - Δ_b²); slack on both sides only adds to it
    moved = squares_sensitivity(R, exposure) + rounding_slack(count, R * R, 1)
    own = replace(part, sensitivity=math.hypot(gram, cross) + slack)
    beside = Part(_SQUARES, 1, moved, 1.0, part.scale * moved / left)
    return make_room_for_draw(NoisePlan((own, beside), mu), count * largest, count * R * R)


@dataclass(frozen=True)
class PaperMoments:
    """Released sums of the paper's algorithms, with ``z'z`` and the scale of its noise; None where it was not released."""

    sums: ReleasedSums
    squares: float | None
    squares_scale: float


def release_paper_sums(private: ClippedPaperSums, spending: Spending, *, squares: bool) -> PaperMoments:
    """Release (W'W, W'z) as Algorithm 2 of [LPK24] does, the same noise in every entry; with `squares`, z'z beside them.

    Privacy
    -------
    μ-GDP, hence (ε, δ) for a μ from :func:`~dplinked.privacy.calibration.noise_multiplier`, given ‖x‖ ≤ c and |z| ≤ R,
    which the sums enforce by clipping. Unlike in the paper, noise is never redrawn.
    """
    sums, p, mu = private.sums, private.sums.vector.size, spending.take_rest()
    c, R, exposure = private.row_norm, private.response_bound, private.exposure
    plan = spending.note(plan_paper_sums(p, c, R, exposure, mu, sums.count, squares=squares))
    upper = np.triu_indices(p)
    values = [sums.matrix[upper], sums.vector, np.full(int(squares), sums.squares)]
    drawn = noise.add_gaussian(np.concatenate(values), plan.scales())
    gram, cross, rest = np.split(drawn, [upper[0].size, upper[0].size + p])
    matrix, scale = np.zeros((p, p)), plan.scale(_SUMS)
    matrix[upper] = gram
    matrix.T[upper] = gram
    released = ReleasedSums(matrix, cross, np.full((p, p), scale), np.full(p, scale), True, np.zeros(p))
    return PaperMoments(released, float(rest[0]) if squares else None, plan.scale(_SQUARES))


def plan_paper_moments(p: int, c: float, R: float, exposure: LinkageExposure, mu: float, count: int) -> NoisePlan:
    """Plan the noise of W'W and z'z beside Algorithm 1, which intervals need.

    W'W is packed so that its norm is the Frobenius norm, and κ is at least the square of the smallest declared accuracy: ``Σ_i q_ij² ≥ q_jj²``.
    Relative to their sizes, W'W counts four times as much: it tells both terms of the variance.
    """
    entries, norm = p * (p + 1) // 2, c * exposure.column_sum
    gram = gram_sensitivity(c, exposure, exposure.accuracy_min**2) + rounding_slack(count, norm * norm, 2 * entries)
    squares = squares_sensitivity(R, exposure) + rounding_slack(count, R * R, 1)
    parts = (Part(_GRAM, entries, gram, 4.0 / c**4), Part(_SQUARES, 1, squares, 1.0 / R**4))
    return make_room_for_draw(allocate(parts, mu), count * math.sqrt(2.0) * norm * norm, count * R * R)


def release_paper_moments(private: ClippedPaperSums, spending: Spending) -> PaperMoments:
    """Release W'W and z'z beside Algorithm 1, for what its own noise leaves of the budget; W'z is then 0, with no claim to it.

    Privacy
    -------
    μ-GDP by one Gaussian draw of two parts, each scaled so that ``Σ (Δ/scale)² ≤ μ²``.
    """
    sums, p, mu = private.sums, private.sums.vector.size, spending.take_rest()
    c, R = private.row_norm, private.response_bound
    plan = spending.note(plan_paper_moments(p, c, R, private.exposure, mu, sums.count))
    drawn = noise.add_gaussian(np.append(pack_symmetric(sums.matrix), sums.squares), plan.scales())
    scale = unpack_symmetric(plan.scale(_GRAM), p)
    released = ReleasedSums(unpack_symmetric(drawn[:-1], p), np.zeros(p), scale, np.zeros(p), True, np.zeros(p))
    return PaperMoments(released, float(drawn[-1]), plan.scale(_SQUARES))


def release_paper_descent(
    private: ClippedPaperSums, spending: Spending, descent: Descent, steps: Floats, start: Floats, *, keep: float = 0.0
) -> ReleasedDescent:
    """Release the iterates of Algorithm 1 of [LPK24] with declared constants, for all of the budget but the share `keep`.

    Privacy
    -------
    As :func:`~dplinked.privacy.quantities.descent.release_descent`, with B of Theorem 4.1(i) as a step's sensitivity.
    """
    sums, c, R, exposure = private.sums, private.row_norm, private.response_bound, private.exposure
    plan = plan_paper_descent(sums.vector.size, c, R, exposure, spending.take_rest(keep), sums.count, descent)
    return run_descent(sums, spending.note(plan), descent, steps, start)


def plan_paper_descent(
    p: int, c: float, R: float, exposure: LinkageExposure, mu: float, count: int, descent: Descent
) -> NoisePlan:
    """Plan the noise of Algorithm 1: B of Theorem 4.1(i) over μ, times √T in each step."""
    norm = c * exposure.column_sum
    sensitivity = paper_ngd_sensitivity(c, R, descent.radius, exposure)
    largest = norm * (norm * descent.radius * math.sqrt(p) + R)
    return plan_descent(p, sensitivity, 1.0 / mu, descent, count, largest)
