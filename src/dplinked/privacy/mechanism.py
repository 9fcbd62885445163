"""The one door between private values and released ones.

Everything that leaves passes through :func:`release_sums`, :func:`release_paper_sums`,
:func:`release_descent`, :func:`release_ranges`, :func:`release_right_links`, :func:`release_scale` or
:func:`release_meat`. What each
draws, and with how much noise, was laid down from public values before (:mod:`dplinked.privacy.plan`).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.plan import (
    RANGE_LEVELS,
    RANGE_STEPS,
    SCALE_STEPS,
    NoisePlan,
    is_symmetric,
    plan_meat,
    plan_paper_sums,
    plan_sums,
)
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.sums.types import PrivateCounts, PrivateMeat, PrivateSums

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedSums:
    """Noisy sums: released, so anything may be done with them.

    Attributes
    ----------
    matrix, vector
        Noisy ``h'QX`` (p×p) and ``h'z`` (p), or ``W'W`` and ``W'z``.
    matrix_scale, vector_scale
        Standard deviation of the noise in each entry; 0 where an entry is public.
    symmetric
        Whether the matrix and its noise are symmetric.
    """

    matrix: Floats
    vector: Floats
    matrix_scale: Floats
    vector_scale: Floats
    symmetric: bool
    count: int
    plan: NoisePlan


@dataclass(frozen=True)
class ReleasedDescent:
    """The transcript of a noisy gradient descent.

    Attributes
    ----------
    path
        Iterates β⁰ … β^T ((T+1)×p); gradients (T×p) are the noisy gradient sums that led from one to the next.
    scale
        Standard deviation of the noise in each entry of a gradient sum.
    """

    path: Floats
    gradients: Floats
    steps: Floats
    scale: float
    count: int
    plan: NoisePlan


def release_sums(
    sums: PrivateSums,
    design: Design,
    links: LinkageExposure,
    mu: float,
    *,
    matrix_only: bool = False,
    intervals: bool = False,
) -> ReleasedSums:
    """Release (H, b) of the bounded instrument, or H alone (b is then 0, with no claim to it).

    Privacy
    -------
    μ-GDP for the unit behind `links`: one Gaussian draw of all parts, each scaled so that
    ``Σ (Δ/scale)² ≤ μ²``; for an exact join with h = x the joint distance of the parts is used.
    """
    plan = plan_sums(design, links, sums.count, mu, matrix_only=matrix_only, intervals=intervals)
    d, first = len(design.columns), int(design.intercept)
    symmetric = is_symmetric(design, links)
    core = sums.matrix[first:, first:]
    upper = np.triu_indices(d)
    weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    values = {
        "response total": sums.vector[:first],
        "instrument × response": sums.vector[first:],
        "regressor totals": sums.matrix[0, first:],
        "instrument totals": sums.matrix[first:, 0],
        "symmetric matrix": core[upper] * weight,
        "instrument × regressors": core.ravel(),
    }
    noisy = {}
    if plan.parts:
        drawn = noise.add_gaussian(np.concatenate([values[part.name] for part in plan.parts]), plan.scales())
        pieces = np.split(drawn, np.cumsum([part.entries for part in plan.parts])[:-1])
        noisy = dict(zip((part.name for part in plan.parts), pieces, strict=True))

    matrix, matrix_scale = np.zeros_like(sums.matrix), np.zeros_like(sums.matrix)
    vector, vector_scale = np.zeros_like(sums.vector), np.zeros_like(sums.vector)
    if first:
        matrix[0, 0] = sums.count
    if first and not matrix_only:
        vector[0], vector_scale[0] = noisy["response total"][0], plan.scale("response total")
    if d and not matrix_only:
        vector[first:], vector_scale[first:] = noisy["instrument × response"], plan.scale("instrument × response")
    if d:
        inner = (slice(first, None), slice(first, None))
        if symmetric:
            matrix[inner], matrix_scale[inner] = (
                _unpack_symmetric(noisy["symmetric matrix"] / weight, upper, d),
                (_unpack_symmetric(plan.scale("symmetric matrix") / weight, upper, d)),
            )
        else:
            matrix[inner] = noisy["instrument × regressors"].reshape(d, d)
            matrix_scale[inner] = plan.scale("instrument × regressors")
        if first:
            rows, columns = "regressor totals", "regressor totals" if symmetric else "instrument totals"
            matrix[0, 1:], matrix_scale[0, 1:] = noisy[rows], plan.scale(rows)
            matrix[1:, 0], matrix_scale[1:, 0] = noisy[columns], plan.scale(columns)
    return ReleasedSums(matrix, vector, matrix_scale, vector_scale, symmetric, sums.count, plan)


def release_paper_sums(sums: PrivateSums, sensitivity: float, multiplier: float, largest: float) -> ReleasedSums:
    """Release (W'W, W'z) as Algorithm 2 of [LPK24] does: the same noise in every entry.

    Privacy
    -------
    ``1/multiplier``-GDP, hence (ε, δ) for a multiplier from :func:`~dplinked.privacy.calibration.noise_multiplier`,
    given ‖x‖ ≤ c and |z| ≤ R, which the sums enforce by clipping. Unlike the paper, noise is never redrawn.
    """
    p = sums.vector.size
    plan = plan_paper_sums(p, sensitivity, multiplier, sums.count, largest)
    upper = np.triu_indices(p)
    drawn = noise.add_gaussian(np.concatenate([sums.matrix[upper], sums.vector]), plan.scales())
    scale = plan.parts[0].scale
    matrix = _unpack_symmetric(drawn[:-p], upper, p)
    return ReleasedSums(matrix, drawn[-p:], np.full((p, p), scale), np.full(p, scale), True, sums.count, plan)


def release_descent(sums: PrivateSums, plan: NoisePlan, descent: Descent, steps: Floats) -> ReleasedDescent:
    """Noisy gradient descent on the sums: ``β ← Π_C(β - η/n · (Hβ - b + noise))`` from β = 0.

    Privacy
    -------
    Each step is one Gaussian draw with sensitivity at most the plan's (‖β‖ ≤ C holds throughout), so T
    steps are μ-GDP with the plan's μ, whatever the iterates.
    """
    path, gradients = [np.zeros_like(sums.vector)], []
    for _ in range(descent.iterations):
        gradient = noise.add_gaussian(sums.matrix @ path[-1] - sums.vector, plan.scales())
        moved = path[-1] - steps * gradient / sums.count
        norm = float(np.linalg.norm(moved))
        path.append(moved * min(1.0, descent.radius * (1.0 - 1e-12) / norm) if norm > 0 else moved)
        gradients.append(gradient)
    return ReleasedDescent(np.array(path), np.array(gradients), steps, plan.parts[0].scale, sums.count, plan)


def release_ranges(counts: PrivateCounts, plan: NoisePlan) -> Floats:
    """Find the middle 70 % of each column by noisy bisection; returns (low, high) as shares of the bounds.

    Privacy
    -------
    RANGE_STEPS draws of two counts per column. Each count moves by at most 1 between neighbours, so all
    steps together are μ-GDP with the plan's ``μ = √(steps · queries)/scale``. Linkage does not enter: only x is counted.
    """
    columns = np.repeat(counts.counts, 2, axis=0)
    found = _bisect(columns, np.tile(RANGE_LEVELS, len(counts.counts)), RANGE_STEPS, plan).reshape(-1, 2)
    return np.asarray((np.sort(found, axis=1) + np.array([0, 1])) / counts.counts.shape[1], np.float64)


def _bisect(counts: NDArray[np.int64], levels: Floats, steps: int, plan: NoisePlan) -> NDArray[np.int64]:
    """Bin in which each row's count reaches its level, by noisy bisection (bins: 2**steps)."""
    rows = np.arange(len(counts))
    below = np.concatenate([np.zeros((len(counts), 1), dtype=np.int64), counts.cumsum(axis=1)], axis=1)
    low, high = np.zeros(len(counts), dtype=np.int64), np.full(len(counts), counts.shape[1], dtype=np.int64)
    for _ in range(steps):
        middle = (low + high) // 2
        drawn = noise.add_gaussian(below[rows, middle].astype(np.float64), plan.parts[0].scale)
        under = drawn < levels * counts.sum(axis=1)
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return low


def release_right_links(counts: PrivateCounts, plan: NoisePlan) -> Floats:
    """Numbers of right links per group, in one Gaussian draw.

    Privacy
    -------
    μ-GDP with the plan's μ: the counts move by at most `right_links_sensitivity` between neighbours.
    """
    return noise.add_gaussian(counts.counts.ravel().astype(np.float64), plan.scales())


def release_scale(counts: PrivateCounts, plan: NoisePlan, level: float, edges: Floats) -> float:
    """Residual standard deviation from a noisy quantile of the rows' own absolute residuals.

    Privacy
    -------
    SCALE_STEPS draws of one count that moves by at most `residual_count_sensitivity`: μ-GDP with the plan's μ.
    """
    found = int(_bisect(counts.counts, np.array([level]), SCALE_STEPS, plan)[0])
    return float(edges[min(found, edges.size - 1)] / statistics.NormalDist().inv_cdf((1.0 + level) / 2.0))


def release_meat(
    meat: PrivateMeat, sensitivity: float, largest: float, count: int, mu: float
) -> tuple[Floats, NoisePlan]:
    """Release the meat: svec with one Gaussian draw.

    Privacy
    -------
    μ-GDP with ``μ·√MEAT_SHARE``, given the sensitivity of the route and clips that are public by now.
    """
    p = meat.matrix.shape[0]
    upper = np.triu_indices(p)
    weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    plan = plan_meat(p, sensitivity, largest, count, mu)
    drawn = noise.add_gaussian(meat.matrix[upper] * weight, plan.scales())
    return _unpack_symmetric(drawn / weight, upper, p), plan


def _unpack_symmetric(values: Floats, upper: tuple[NDArray[np.intp], NDArray[np.intp]], size: int) -> Floats:
    matrix = np.zeros((size, size))
    matrix[upper] = values
    matrix.T[upper] = values
    return matrix
