"""The paper's sums, ``W'W`` and ``W'z`` with ``W = QX``: sensitivities with their proofs, plan and draw."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.descent import ReleasedDescent, plan_descent, run_descent
from dplinked.privacy.quantities.instrument import ReleasedSums, rank_one_range
from dplinked.privacy.spending import Spending
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.linked_rows import ClippedPaperSums
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]


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


# --- plan and draw --------------------------------------------------------------------------------------


def plan_paper_sums(p: int, sensitivity: float, multiplier: float, count: int, largest: float) -> NoisePlan:
    """Plan the noise of Algorithm 2: one scale for the upper triangle of W'W and for W'z."""
    entries = p * (p + 1) // 2 + p
    total = sensitivity + rounding_slack(count, largest, entries)
    part = Part("W'W and W'z", entries, total, 1.0, total * multiplier)
    return make_room_for_draw(NoisePlan((part,), 1.0 / multiplier), count * largest)


def release_paper_sums(private: ClippedPaperSums, spending: Spending) -> ReleasedSums:
    """Release (W'W, W'z) as Algorithm 2 of [LPK24] does: the same noise in every entry.

    Privacy
    -------
    μ-GDP, hence (ε, δ) for a μ from :func:`~dplinked.privacy.calibration.noise_multiplier`, given ‖x‖ ≤ c and |z| ≤ R,
    which the sums enforce by clipping. Unlike in the paper, noise is never redrawn.
    """
    sums, c, R = private.sums, private.row_norm, private.response_bound
    p, largest = sums.vector.size, c * private.exposure.column_sum
    sensitivity = paper_ssp_sensitivity(c, R, private.exposure)
    multiplier = 1.0 / spending.take_rest()
    plan = spending.note(plan_paper_sums(p, sensitivity, multiplier, sums.count, largest * max(largest, R)))
    upper = np.triu_indices(p)
    drawn = noise.add_gaussian(np.concatenate([sums.matrix[upper], sums.vector]), plan.scales())
    matrix, scale = np.zeros((p, p)), plan.parts[0].scale
    matrix[upper] = drawn[:-p]
    matrix.T[upper] = drawn[:-p]
    return ReleasedSums(matrix, drawn[-p:], np.full((p, p), scale), np.full(p, scale), True, np.zeros(p))


def release_paper_descent(
    private: ClippedPaperSums, spending: Spending, descent: Descent, steps: Floats
) -> ReleasedDescent:
    """Release the iterates of Algorithm 1 of [LPK24] with declared constants.

    Privacy
    -------
    As :func:`~dplinked.privacy.quantities.descent.release_descent`, with B of Theorem 4.1(i) as a step's sensitivity.
    """
    sums, c, R = private.sums, private.row_norm, private.response_bound
    p, norm = sums.vector.size, c * private.exposure.column_sum
    sensitivity = paper_ngd_sensitivity(c, R, descent.radius, private.exposure)
    largest = norm * (norm * descent.radius * math.sqrt(p) + R)
    plan = plan_descent(p, sensitivity, 1.0 / spending.take_rest(), descent, sums.count, largest)
    return run_descent(sums, spending.note(plan), descent, steps)
