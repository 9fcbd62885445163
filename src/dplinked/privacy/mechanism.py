"""The one door between private values and released ones.

Everything that leaves passes through :func:`release_sums`, :func:`release_paper_sums`,
:func:`release_descent`, :func:`release_ranges`, :func:`release_scale` or :func:`release_meat`. Each first lays down, from public values alone, what it
will release and with how much noise (:class:`NoisePlan`), and then draws once per planned call.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.design import Design
from dplinked.errors import StudyError
from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy import sensitivity as sens
from dplinked.sums.sums import PrivateCounts, PrivateMeat, PrivateSums, rounding_slack

Floats = NDArray[np.float64]

# Public guesses that divide the budget between parts; they affect precision only. On the scale where
# responses lie in [-1, 1]: size of the slopes, size of the intercept, and how much an error in the
# intercept's own equation matters for the slopes.
SLOPE_GUESS = 0.5  # and √(1.5/d) where that is more: with few columns H must stand clear of its noise
INTERCEPT_GUESS = 0.5
INTERCEPT_EQUATION = 0.25

RANGE_SHARE = 0.05  # of μ², for private ranges
RANGE_STEPS = 12
RANGE_LEVELS = (0.15, 0.85)

SCALE_SHARE = 0.03  # of μ², for the size of residuals
SCALE_STEPS = 6
SCALE_BINS = 1 << SCALE_STEPS
MEAT_SHARE = 0.05  # of μ², for the variance of the estimating equation
CURVATURE_SHARE = 0.2  # of μ², for H beside a gradient descent


@dataclass(frozen=True)
class Part:
    """A group of released entries that share a sensitivity and a noise scale.

    `importance` weighs the variance of this part's noise in the error of the estimate.
    """

    name: str
    entries: int
    sensitivity: float
    importance: float
    scale: float = math.nan


@dataclass(frozen=True)
class NoisePlan:
    """What one draw will release, from public values alone: its parts, and μ of the whole."""

    parts: tuple[Part, ...]
    mu: float

    def scale(self, name: str) -> float:
        """Noise scale of a part; 0 if the plan has no such part."""
        return next((part.scale for part in self.parts if part.name == name), 0.0)

    def scales(self) -> Floats:
        """Noise scale of each entry, in the order of the draw."""
        return np.concatenate([np.full(part.entries, part.scale) for part in self.parts])


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
class Descent:
    """Settings of noisy gradient descent, all public.

    Parameters
    ----------
    radius
        C: coefficients are kept within this l2 norm (on the scaled columns; in the user's units with
        ``calibration="paper"``).
    iterations
        T: number of steps, 2 to 4 is best with ``calibration="tight"``.
    step
        η: step size; by default from the second moment that the declared typical ranges imply.
    """

    radius: float = 1.0
    iterations: int = 3
    step: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise StudyError(f"The descent's radius must be a finite number above 0, not {self.radius!r}.")
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise StudyError(f"The descent's iterations must be a whole number above 0, not {self.iterations!r}.")
        if self.step is not None and not (math.isfinite(self.step) and self.step > 0):
            raise StudyError(f"The descent's step must be a finite number above 0, not {self.step!r}.")


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


# --- plans: public values only ---------------------------------------------------------------------


def is_symmetric(design: Design, links: LinkageExposure) -> bool:
    """Whether ``h'QX`` is symmetric: the instrument is x itself and Q symmetric."""
    return design.halves is None and links.symmetric


def instrument_parts(design: Design, links: LinkageExposure, count: int) -> list[Part]:
    """Parts of (H, b) with their sensitivities, rounding included. Responses lie within ±1."""
    d, E, h = len(design.columns), design.radius, design.instrument_radius
    R = design.response.peak

    def part(name: str, entries: int, sensitivity: float, importance: float, largest: float) -> Part:
        return Part(name, entries, sensitivity + rounding_slack(count, largest, entries), importance)

    slope, intercept, equation = max(SLOPE_GUESS**2, 1.5 / max(1, d)), INTERCEPT_GUESS**2, INTERCEPT_EQUATION**2
    parts = []
    if design.intercept:
        parts.append(part("response total", 1, sens.response_total_sensitivity(R, links), equation, R))
    if d == 0:
        return parts
    parts.append(part("instrument × response", d, sens.instrument_response_sensitivity(R, h, links), 1.0, h * R))
    if is_symmetric(design, links):
        if design.intercept:
            parts.append(part("regressor totals", d, sens.regressor_total_sensitivity(E, links), intercept, E))
        core = sens.symmetric_matrix_sensitivity(E, links)
        parts.append(part("symmetric matrix", d * (d + 1) // 2, core, slope / 2.0, math.sqrt(2.0) * E * E))
        return parts
    if design.intercept:
        total = sens.regressor_total_sensitivity(E, links)
        parts.append(part("regressor totals", d, total, equation * slope, E * links.column_sum))
        parts.append(part("instrument totals", d, sens.instrument_total_sensitivity(h), intercept, h))
    core = sens.instrument_matrix_sensitivity(h, E, links)
    parts.append(part("instrument × regressors", d * d, core, slope, h * E * links.column_sum))
    return parts


def allocate(parts: Sequence[Part], mu: float) -> NoisePlan:
    """Divide μ between parts so that ``Σ importance·scale²`` is least at ``Σ (Δ/scale)² = μ²``.

    Notes
    -----
    By Lagrange ``scale² = Δ/√importance · Σ Δ√importance / μ²``.
    """
    total = sum(part.sensitivity * math.sqrt(part.importance) for part in parts)
    scaled = [
        replace(part, scale=math.sqrt(part.sensitivity / math.sqrt(part.importance) * total) / mu) for part in parts
    ]
    return NoisePlan(tuple(scaled), mu)


def plan_sums(design: Design, links: LinkageExposure, count: int, mu: float, *, matrix_only: bool = False) -> NoisePlan:
    """Noise of the tight sufficient-statistics release, from public values only."""
    parts = instrument_parts(design, links, count)
    parts = [part for part in parts if not (matrix_only and "response" in part.name)]
    if not parts:  # an intercept alone: its matrix is n, public
        return NoisePlan((), mu)
    plan = allocate(parts, mu)
    if links.exact and is_symmetric(design, links) and design.columns and not matrix_only:
        plan = _use_joint_distance(design, plan)
    largest = 2.0 * links.column_sum * max(1.0, design.radius) * max(1.0, design.instrument_radius)
    return _make_room_for_draw(plan, count * largest)


def _use_joint_distance(design: Design, plan: NoisePlan) -> NoisePlan:
    """For an exact join, matrix and vector cannot both move maximally: shrink all scales accordingly.

    Neighbours are then at most ``√(joint² + others²)`` apart, and rounding, which is in the parts' sensitivities,
    adds its own distance by the triangle inequality.
    """
    ideal = {
        "symmetric matrix": math.sqrt(2.0) * design.radius**2,
        "instrument × response": 2.0 * design.radius * design.response.peak,
    }
    joint = sens.joint_distance(design.radius, design.response.peak, *(plan.scale(name) for name in ideal))
    others = [part.sensitivity / part.scale for part in plan.parts if part.name not in ideal]
    rounding = [(part.sensitivity - ideal[part.name]) / part.scale for part in plan.parts if part.name in ideal]
    factor = min(1.0, (math.hypot(joint, *others) + math.hypot(*rounding)) / plan.mu)
    return NoisePlan(tuple(replace(part, scale=part.scale * factor) for part in plan.parts), plan.mu)


def _make_room_for_draw(plan: NoisePlan, largest: float) -> NoisePlan:
    """Widen all scales by what grid and quotient rounding can add (`noise.draw_slack`)."""
    entries = sum(part.entries for part in plan.parts)
    slack = noise.draw_slack(entries, largest / min(part.scale for part in plan.parts))
    if not slack < plan.mu / 2.0:
        raise StudyError("The budget is too small, or the data too many, for noise on this machine's numbers.")
    factor = plan.mu / (plan.mu - slack)
    return NoisePlan(tuple(replace(part, scale=part.scale * factor) for part in plan.parts), plan.mu)


def plan_paper_sums(p: int, sensitivity: float, multiplier: float, count: int, largest: float) -> NoisePlan:
    """Noise of Algorithm 2: one scale for the upper triangle of W'W and for W'z."""
    entries = p * (p + 1) // 2 + p
    total = sensitivity + rounding_slack(count, largest, entries)
    part = Part("W'W and W'z", entries, total, 1.0, total * multiplier)
    return _make_room_for_draw(NoisePlan((part,), 1.0 / multiplier), count * largest)


def plan_descent(
    p: int, sensitivity: float, multiplier: float, descent: Descent, count: int, largest: float
) -> NoisePlan:
    """Noise of T gradient sums: T adaptive steps cost one Gaussian release with √T the sensitivity."""
    total = sensitivity + rounding_slack(count, largest, p)
    T = descent.iterations
    step = Part("gradient", p, total, 1.0, total * multiplier * math.sqrt(T))
    room = _make_room_for_draw(NoisePlan((step,), 1.0 / (multiplier * math.sqrt(T))), count * largest)
    return NoisePlan(room.parts, 1.0 / multiplier)


def descent_sensitivity(design: Design, links: LinkageExposure, descent: Descent) -> float:
    """Sensitivity of a gradient sum ``Hβ - b`` with ``‖β‖ ≤ C``: ``Δ_b + CΔ_H``, with h = x.

    The intercept's own entry of H is n, public; its row and column are counted once each.
    """
    E, R = design.radius, design.response.peak
    b = [sens.instrument_response_sensitivity(R, E, links)]
    if links.symmetric:
        H = [sens.symmetric_matrix_sensitivity(E, links)]
    else:
        H = [sens.instrument_matrix_sensitivity(E, E, links)]
    if design.intercept:
        b.append(sens.response_total_sensitivity(R, links))
        H += [sens.regressor_total_sensitivity(E, links), sens.instrument_total_sensitivity(E)]
    return math.hypot(*b) + descent.radius * math.hypot(*H)


# --- releases --------------------------------------------------------------------------------------


def release_sums(
    sums: PrivateSums, design: Design, links: LinkageExposure, mu: float, *, matrix_only: bool = False
) -> ReleasedSums:
    """Release (H, b) of the bounded instrument, or H alone (b is then 0, with no claim to it).

    Privacy
    -------
    μ-GDP for the unit behind `links`: one Gaussian draw of all parts, each scaled so that
    ``Σ (Δ/scale)² ≤ μ²``; for an exact join with h = x the joint distance of the parts is used.
    """
    plan = plan_sums(design, links, sums.count, mu, matrix_only=matrix_only)
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


def plan_ranges(queries: int, count: int, mu: float) -> NoisePlan | None:
    """Noise of the private range search, for its share of μ; None where so noisy a search could only mislead."""
    share = mu * math.sqrt(RANGE_SHARE)
    sensitivity = sens.counts_sensitivity(queries)
    step = Part("counts below", queries, sensitivity, 1.0, sensitivity * math.sqrt(RANGE_STEPS) / share)
    if not queries or step.scale >= count / 10.0:
        return None
    room = _make_room_for_draw(NoisePlan((step,), share / math.sqrt(RANGE_STEPS)), float(count))
    return NoisePlan(room.parts, share)


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


# --- variance --------------------------------------------------------------------------------------


def residual_edges(R: float) -> Floats:
    """Public grid for the size of residuals: from 2R down in steps of 2^(1/4), SCALE_BINS bins."""
    return np.asarray(2.0 * R * 2.0 ** (-np.arange(SCALE_BINS - 1, 0, -1) / 4.0), np.float64)


def plan_scale(links: LinkageExposure, count: int, mu: float) -> tuple[NoisePlan, float] | None:
    """Noise of the search for the residuals' size, and the quantile to look for; None if it could only mislead.

    The quantile is as high as the noise allows: clipping levels follow from it, and wrong links sit in the tail.
    """
    share, sensitivity = mu * math.sqrt(SCALE_SHARE), sens.residual_count_sensitivity(links)
    step = Part("residuals below", 1, sensitivity, 1.0, sensitivity * math.sqrt(SCALE_STEPS) / share)
    level = min(0.97, 1.0 - 3.0 * step.scale / count)
    if level < 0.6:
        return None
    room = _make_room_for_draw(NoisePlan((step,), share / math.sqrt(SCALE_STEPS)), float(count))
    return NoisePlan(room.parts, share), level


def release_scale(counts: PrivateCounts, plan: NoisePlan, level: float, edges: Floats) -> float:
    """Residual standard deviation from a noisy quantile of the rows' own absolute residuals.

    Privacy
    -------
    SCALE_STEPS draws of one count that moves by at most `residual_count_sensitivity`: μ-GDP with the plan's μ.
    """
    found = int(_bisect(counts.counts, np.array([level]), SCALE_STEPS, plan)[0])
    return float(edges[min(found, edges.size - 1)] / statistics.NormalDist().inv_cdf((1.0 + level) / 2.0))


@dataclass(frozen=True)
class MeatRoute:
    """How the variance will be released: route, and the clipping level in units of the residual deviation."""

    name: str
    clip: float


def choose_meat(p: int, links: LinkageExposure, largest_block: int | None, count: int, mu: float) -> MeatRoute:
    """Choose the route from public values: the expected noise relative to the meat decides.

    Instruments are weighted to mean square one, so that the meat's diagonal is about ``n·τ²``. Block meat is
    right at every block size but needs many blocks; row meat does not see that links within a block hang
    together; where both drown in noise, so does the sampling error, and the residuals' size is enough. Clipping
    is as wide as a twentieth of relative noise allows.
    """
    signal = mu * math.sqrt(MEAT_SHARE) * count
    if largest_block is not None and links.matrix_change == 0.0 and not links.exact:
        unit = sens.block_meat_sensitivity(1.0, links) * largest_block * p / signal
        least = 3.0 + 4.0 / math.sqrt(largest_block)
        if unit * least**2 <= 0.2:
            return MeatRoute("block", min(14.0, max(least, math.sqrt(0.05 / unit))) * math.sqrt(largest_block * p))
    unit = sens.row_meat_sensitivity(1.0, links) * p / signal
    if unit * 16.0 <= 0.25:
        return MeatRoute("row", min(14.0, max(4.0, math.sqrt(0.05 / unit))) * math.sqrt(p))
    return MeatRoute("scale", 0.0)


def meat_sensitivity(route: str, norm: float, h: float, reach: float, links: LinkageExposure) -> float:
    """Sensitivity of the chosen meat, for contributions of at most `norm`; `h` bounds weighted instruments, `reach` |x'β|."""
    if route == "block":
        return sens.block_meat_sensitivity(norm, links)
    if links.symmetric:
        return sens.row_meat_sensitivity(norm, links)
    return sens.matching_meat_sensitivity(norm, h, reach, links)


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
    share, total = mu * math.sqrt(MEAT_SHARE), sensitivity + rounding_slack(count, largest, len(weight))
    plan = _make_room_for_draw(
        NoisePlan((Part("meat", len(weight), total, 1.0, total / share),), share), 2.0 * count * largest
    )
    drawn = noise.add_gaussian(meat.matrix[upper] * weight, plan.scales())
    return _unpack_symmetric(drawn / weight, upper, p), plan


def _unpack_symmetric(values: Floats, upper: tuple[NDArray[np.intp], NDArray[np.intp]], size: int) -> Floats:
    matrix = np.zeros((size, size))
    matrix[upper] = values
    matrix.T[upper] = values
    return matrix
