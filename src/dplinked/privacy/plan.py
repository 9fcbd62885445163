"""What a release will draw, laid down from public values alone: parts, sensitivities, noise, shares of the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy import sensitivity as sens
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

# Public guesses that divide the budget between parts; they affect precision only. On the scale where
# responses lie in [-1, 1]: size of the slopes, size of the intercept, and how much an error in the
# intercept's own equation matters for the slopes.
SLOPE_GUESS = 0.5
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


# --- plans: public values only ---------------------------------------------------------------------


def is_symmetric(design: Design, links: LinkageExposure) -> bool:
    """Whether ``h'QX`` is symmetric: the instrument is x itself and Q symmetric."""
    return design.half_widths is None and links.symmetric


def instrument_parts(design: Design, links: LinkageExposure, count: int, intervals: bool) -> list[Part]:
    """Parts of (H, b) with their sensitivities, rounding included. Responses lie within ±1.

    For intervals, with few columns, H gets more of the budget: it must stand clear of its noise.
    """
    d, E, h = len(design.columns), design.radius, design.instrument_radius
    R = design.response.peak

    def part(name: str, entries: int, sensitivity: float, importance: float, largest: float) -> Part:
        return Part(name, entries, sensitivity + rounding_slack(count, largest, entries), importance)

    slope, intercept, equation = SLOPE_GUESS**2, INTERCEPT_GUESS**2, INTERCEPT_EQUATION**2
    if intervals:
        slope = max(slope, 1.5 / max(1, d))
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


def plan_sums(
    design: Design,
    links: LinkageExposure,
    count: int,
    mu: float,
    *,
    matrix_only: bool = False,
    intervals: bool = False,
) -> NoisePlan:
    """Noise of the tight sufficient-statistics release, from public values only."""
    parts = instrument_parts(design, links, count, intervals)
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


def plan_ranges(queries: int, count: int, mu: float) -> NoisePlan | None:
    """Noise of the private range search, for its share of μ; None where so noisy a search could only mislead."""
    share = mu * math.sqrt(RANGE_SHARE)
    sensitivity = sens.counts_sensitivity(queries)
    step = Part("counts below", queries, sensitivity, 1.0, sensitivity * math.sqrt(RANGE_STEPS) / share)
    if not queries or step.scale >= count / 10.0:
        return None
    room = _make_room_for_draw(NoisePlan((step,), share / math.sqrt(RANGE_STEPS)), float(count))
    return NoisePlan(room.parts, share)


def plan_right_links(groups: int, links: LinkageExposure, checked: int, mu: float) -> NoisePlan:
    """Noise of the numbers of right links among `checked` ones, in groups."""
    sensitivity = sens.right_links_sensitivity(links)
    part = Part("right links", groups, sensitivity, 1.0, sensitivity / mu)
    return _make_room_for_draw(NoisePlan((part,), mu), float(checked))


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


def plan_meat(p: int, sensitivity: float, largest: float, count: int, mu: float) -> NoisePlan:
    """Noise of the meat's upper triangle, for its share of μ; terms of its sums are at most `largest`."""
    entries = p * (p + 1) // 2
    share, total = mu * math.sqrt(MEAT_SHARE), sensitivity + rounding_slack(count, largest, entries)
    part = Part("meat", entries, total, 1.0, total / share)
    return _make_room_for_draw(NoisePlan((part,), share), 2.0 * count * largest)
