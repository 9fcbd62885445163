"""Events and counts: from linked rows to the coefficients of a logistic or Poisson regression.

With a curve m that the outcome's mean follows, right links would tell ``Σ a s (1, h)(y - m) = 0``, and linked rows tell its left side: see :mod:`dplinked.sums.partners`. What has
responses in it does not hang on the coefficients. So it is released once, and every step releases what is left: the curve's means and slopes, of rows by themselves.

What decides here (lengths, shares of the budget, steps) is public or released by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.curve import (
    choose_limit,
    column_covariance,
    expect_outcome,
    find_start,
    limit_step,
    with_firm_corner,
)
from dplinked.estimate.descent import solve_descent
from dplinked.estimate.groups import Groups
from dplinked.estimate.residuals import CLEAR, INTERCEPT_WEIGHT, instrument_sizes
from dplinked.estimate.variance import NoisyVariance, accuracy_variance, link_dependence, split_errors
from dplinked.privacy.quantities.curve import (
    own_rows_sensitivity,
    plan_slope,
    release_expected,
    release_slope,
)
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.meat import SCALE_ALONE, MeatRoute, choose_route
from dplinked.privacy.quantities.residual_scale import plan_residual_scale, release_residual_size, residual_edges
from dplinked.privacy.quantities.right_residuals import (
    release_residual_meat,
    release_right_residuals,
    right_residuals_sensitivity,
)
from dplinked.privacy.spending import CLIPPING, CURVE_SLOPE, LEVEL_SLOPE, MEAT, NEARER, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.second_stage import prior_scale
from dplinked.study.family import Curve
from dplinked.study.instrument import column_spread
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import MeatClip, Predictor, ResidualClip

Floats = NDArray[np.float64]

_WIDE = 2.0  # times its root mean square: how far a column's instrument follows it
_FAR = 0.2  # deviations of η: after a step longer than this, and than noise makes it, another one comes before the last
_BY_NOISE = 2.5  # times what noise moves η by
_PLAUSIBLE = (
    1.5  # size of slopes on the curve, by which the straight line's are drawn towards zero where noise asks for it
)
_NEARLY_ALL = 0.99  # of the counts lie below the one that is looked for, or fewer where noise asks for it
_BEYOND = 0.995  # how far counts are clipped beyond it, as a normal deviate relates to that of the level
_LITTLE = 0.35  # noise, relative to the sampling error, up to which counts are clipped further out
_DEVIATIONS = 4.5  # of counts, as which the one that nearly all lie below is taken
_WORTH_A_SEARCH = 4  # largest counts from which on a smaller one is looked for
_ROOM = 1.3  # times its root mean square: norm of a row's shortened instruments


def check_outcome(study: Study, rows: LinkedRows) -> None:
    """Refuse linkage that cannot be undone pair by pair, from public values."""
    if not rows.exposure.symmetric and unlinking_terms(rows.exposure.accuracy_min) is None:
        raise StudyError(
            f"family={study.family!r} needs a matching matrix whose own links are more certain: declare an accuracy_min of about .77 or more, or fit a line."
        )


@dataclass(frozen=True, eq=False)
class Equation:
    """What all steps share, public by then.

    Attributes
    ----------
    curve, rows, groups
        The outcome's curve, the rows with their instruments, and their groups.
    sizes, ratios
        Root mean square of each column, and of each instrument (d).
    iota, limit, kept
        What the intercept's 1 counts for, the length of instruments, and the root mean square of what shortening leaves of them.
    level
        The mean of the outcome along the level line.
    """

    curve: Curve
    rows: LinkedRows
    groups: Groups
    sizes: Floats
    ratios: Floats
    iota: float
    limit: float
    kept: float

    @property
    def intercept(self) -> bool:
        """Whether there is one."""
        return self.rows.design.intercept

    @property
    def all_sizes(self) -> Floats:
        """Root mean square of each column, the intercept's 1 first (p)."""
        return np.concatenate([np.ones(int(self.intercept)), self.sizes])

    @property
    def level_line(self) -> Floats:
        """Coefficients of the level line (p): with an intercept, half of all outcomes happen along it."""
        beta = np.zeros(len(self.rows.design.names))
        beta[: int(self.intercept)] = self.curve.find_eta(self.curve.largest / 2.0)
        return beta

    @property
    def level(self) -> float:
        """The mean outcome along the level line."""
        return float(self.curve.mean(np.array([self.level_line[: int(self.intercept)].sum()]))[0])

    def around(self, beta: Floats, *, exposed: bool = True) -> ResidualClip:
        """What the rows' sums along the curve are told."""
        return ResidualClip(beta, self.limit, self.iota, 1.0, curve=self.curve, exposed=exposed)


def fit_curve(study: Study, rows: LinkedRows, groups: Groups, spending: Spending) -> Release:
    """The response's part of the equation once, then steps along the curve, and a variance where intervals are asked for."""
    declared, rows = rows.design, clip_counts(rows, spending)
    equation = write_equation(rows, groups, spending)
    route = choose_outcome_route(equation, spending) if study.intervals else SCALE_ALONE
    steep = release_level_slope(equation, spending)
    last = choose_slope_share(equation, steep, spending)
    keep = last + (0.0 if route is SCALE_ALONE else MEAT)
    share = spending.unspent(keep + 2.0 * NEARER) * response_share(equation)
    told, scale = release_responses(equation, spending, share)
    straight = replace(steep, vector=told, vector_scale=scale)
    beta, mean, explained = start_from_line(equation, straight)
    beta = approach(equation, told, scale, beta, spending, keep)
    sums = release_step(equation, told, scale, beta, spending, spending.unspent(keep), last)
    estimate = solve_descent(sums, equation.intercept, prior_scale(rows.design))
    estimate = replace(estimate, beta=limit_step(beta, estimate.beta, equation.all_sizes)[0])
    deviation, share = spread_of_outcome(equation, mean, explained)
    variance = None
    if study.intervals:
        variance = release_outcome_variance(study, equation, route, estimate.beta, deviation, spending)
    errors = split_errors(equation.rows.design, groups, estimate, sums, variance, share)
    design = replace(equation.rows.design, bounds=declared.bounds, fill=declared.fill)
    return build_release(study, design, rows.count, spending, estimate, errors, sums=sums)


def clip_counts(rows: LinkedRows, spending: Spending) -> LinkedRows:
    """The same rows with counts clipped where few of them lie beyond, found privately, if the declared largest is further out.

    Noise follows the largest count. The curve knows that counts are clipped, so it bends nothing.
    """
    design, curve = rows.design, rows.design.curve
    assert curve is not None
    planned = plan_residual_scale(rows.exposure, rows.count, spending.share(CLIPPING), _NEARLY_ALL)
    if curve.largest < _WORTH_A_SEARCH or planned is None:
        return rows
    flat = Predictor(np.zeros(len(design.names)), np.zeros(len(design.columns)), 1.0)
    counts = rows.residual_counts(flat, residual_edges(curve.largest / 2.0))
    size, level = release_residual_size(counts, spending, CLIPPING, _NEARLY_ALL)
    further = max(1.0, NormalDist().inv_cdf(_BEYOND) / NormalDist().inv_cdf(level), _room_for_counts(rows, spending))
    return rows.with_design(design.with_largest(math.ceil(min(curve.largest, size * further))))


def _room_for_counts(rows: LinkedRows, spending: Spending) -> float:
    """How many times as far out as nearly all counts lie they can be clipped, if noise is to stay small beside the sampling error.

    Counts that vary more than by Poisson's law bend the slopes where they are clipped, so that they are clipped as far out as costs little.
    """
    noise = _noise_per_length(rows) / spending.rest(MEAT + LEVEL_SLOPE + 2.0 * NEARER + CURVE_SLOPE[0])
    length = math.sqrt(len(rows.design.columns) + INTERCEPT_WEIGHT**2)
    return _LITTLE * math.sqrt(rows.count) / (_DEVIATIONS * noise * length)


def write_equation(rows: LinkedRows, groups: Groups, spending: Spending) -> Equation:
    """Choose the instruments, and the length that they are shortened to."""
    design = rows.design
    curve = design.curve
    assert curve is not None
    sizes = np.sqrt(column_spread(design))
    wide = rows.with_design(design.with_instrument((_WIDE * sizes).tolist()))
    ratios = instrument_sizes(wide.design, sizes)
    typical = math.sqrt(float((ratios**2).mean())) if ratios.size else 1.0
    iota = INTERCEPT_WEIGHT * typical * design.intercept
    noise = _noise_per_length(rows) / spending.share(1.0 - MEAT - LEVEL_SLOPE - 2.0 * NEARER - CURVE_SLOPE[0])
    limit, kept = choose_limit(ratios, iota, noise, groups.squares)
    return Equation(curve, wide, groups, sizes, ratios, iota, limit, kept)


def _noise_per_length(rows: LinkedRows) -> float:
    """Sensitivity of the equation per unit of K and of the outcome's largest, if responses and means share one budget as well as they can."""
    return right_residuals_sensitivity(0.5, rows.exposure) + own_rows_sensitivity(0.5, rows.exposure)


def response_share(equation: Equation) -> float:
    """The responses' share of what they and the last step's means get together: noise is least in proportion to sensitivities."""
    responses = right_residuals_sensitivity(0.5, equation.rows.exposure)
    return responses / _noise_per_length(equation.rows)


def release_level_slope(equation: Equation, spending: Spending) -> ReleasedSums:
    """``Σ a s (1, h)(1, x)'``: the slope along the level line, where the curve is equally steep everywhere, over that steepness."""
    line = equation.around(equation.level_line, exposed=False)
    private = equation.rows.curve_sums(line, equation.level)
    matrix, scale = release_slope(private, spending, LEVEL_SLOPE)
    eta = np.array([equation.level_line[: int(equation.intercept)].sum()])
    steep = float(equation.curve.mean_and_slope(eta)[1][0])
    none = np.zeros(len(matrix))
    sums = ReleasedSums(matrix / steep, none, scale / steep, none, False, none)
    return with_firm_corner(sums, equation.intercept)


def choose_slope_share(equation: Equation, steep: ReleasedSums, spending: Spending) -> float:
    """Share of the budget for the last step's slope: as large as its weakest direction asks for to stand clear of the noise.

    The curve is taken to be a quarter as steep as it can be, on average.
    """
    design, d = equation.rows.design, len(equation.sizes)
    least, most = CURVE_SLOPE
    if not d:
        return least
    strength = np.linalg.svd(centred_core(steep.matrix, equation.intercept), compute_uv=False)
    weakest = 0.25 * equation.curve.steepest * float(strength[-1])
    share = least
    while share < most:
        plan = plan_slope(
            len(design.names), d, equation.limit, equation.curve.steepest, design.radius, equation.rows.exposure,
            equation.rows.count, spending.share(share),
        )  # fmt: skip
        if weakest >= CLEAR * plan.parts[-1].scale * math.sqrt(2.0 * d):
            break
        share = min(most, share + 0.05)
    return share


def release_responses(equation: Equation, spending: Spending, share: float) -> tuple[Floats, Floats]:
    """``Σ s (1, h)[(1-o)(z_i - level) - (1-γ) mean (z_l - level)]`` with its noise (p each): all that responses ever tell."""
    private = equation.rows.right_residuals(equation.around(equation.level_line, exposed=False))
    return release_right_residuals(private, spending, spending.take(share))


def start_from_line(equation: Equation, straight: ReleasedSums) -> tuple[Floats, float, float]:
    """Coefficients to start from (p), the mean outcome, and the variance of outcomes that a straight line explains."""
    design, first, curve = equation.rows.design, int(equation.intercept), equation.curve
    mean = expect_outcome(curve, equation.level, straight, equation.groups.total) if first else equation.level
    steep = float(curve.mean_and_slope(np.array([curve.find_eta(mean)]))[1][0])
    prior = prior_scale(design) * (_PLAUSIBLE * steep) ** 2
    slopes = solve_sums(straight, intercept=equation.intercept, prior_scale=prior).beta[first:]
    covariance = column_covariance(straight, np.array(design.half_widths), equation.intercept)
    explained = max(0.0, float(slopes @ covariance @ slopes))
    if not first:
        return slopes / steep, mean, explained
    means = straight.matrix[0, 1:] / straight.matrix[0, 0]
    start = find_start(curve, mean, slopes, means, covariance)
    if design.exposure is not None:
        start[0] -= math.log(float(np.exp(design.exposure.interval).mean()))
    return start, mean, explained


def approach(equation: Equation, told: Floats, scale: Floats, beta: Floats, spending: Spending, keep: float) -> Floats:
    """Steps of little precision towards the solution: one, and further ones after long ones, as long as they leave the last step half of what it was to get.

    `keep` is the share of the budget that is kept for what comes later, the last step's means not included.
    """
    sizes = equation.all_sizes
    least = (spending.unspent(keep) - 2.0 * NEARER) / 2.0
    while spending.unspent(keep) - 2.0 * NEARER >= least:
        sums = release_step(equation, told, scale, beta, spending, NEARER, NEARER)
        after = solve_descent(sums, equation.intercept, prior_scale(equation.rows.design))
        beta, way = limit_step(beta, after.beta, sizes)
        if way <= max(_FAR, _BY_NOISE * math.sqrt(float(sizes**2 @ np.diag(after.covariance)))):
            break
    return beta


def release_step(
    equation: Equation, told: Floats, scale: Floats, beta: Floats, spending: Spending, share: float, slope_share: float
) -> ReleasedSums:
    """The equation around `beta` as a linear system: its means and its slope along the curve are released for a share of the budget each."""
    private = equation.rows.curve_sums(equation.around(beta), equation.level)
    expected, noise = release_expected(private, spending, share)
    slope, slope_scale = release_slope(private, spending, slope_share)
    mixing = min(1.0, equation.groups.accuracy / max(equation.groups.contrast, 1e-3))
    sums = ReleasedSums(slope, told - expected + slope @ beta, slope_scale, np.hypot(scale, noise), False, beta, mixing)
    return with_firm_corner(sums, equation.intercept)


def spread_of_outcome(equation: Equation, mean: float, explained: float) -> tuple[float, float]:
    """Deviation of outcomes around their means, wrong links included, and the share of its square that these cause."""
    curve, accuracy = equation.curve, equation.groups.accuracy
    whole = mean if curve.counts else mean * (1.0 - mean)
    wrong = (1.0 - accuracy**2) * explained
    if curve.counts:
        whole += wrong
    return math.sqrt(whole), float(np.clip(wrong / whole, 0.0, 0.95))


def release_outcome_variance(
    study: Study, equation: Equation, route: MeatRoute, beta: Floats, deviation: float, spending: Spending
) -> NoisyVariance:
    """The variance of the equation around the released coefficients.

    Contributions are cut no closer than single rows of rare outcomes lie. By the size of outcomes alone, it is what the curve itself implies.
    """
    rows, groups, p = equation.rows, equation.groups, len(equation.rows.design.names)
    weights = 1.0 / (equation.kept * np.concatenate([np.ones(int(equation.intercept)), equation.ratios]))
    least = _ROOM * math.sqrt(p) * min(float(equation.curve.largest), 2.0 + 4.0 * deviation)
    meat, noise = groups.squares * deviation**2 * np.eye(p), 0.0
    if route is not SCALE_ALONE:
        private = rows.right_residuals(
            equation.around(beta), MeatClip(route.name, weights, max(route.clip * deviation, least))
        )
        meat, noise = release_residual_meat(private, spending)
    return NoisyVariance(
        route.name,
        meat,
        weights,
        noise,
        deviation,
        accuracy_variance(study.linkage.public, rows.blocks),
        link_dependence(study.linkage, route.name, rows.blocks),
    )


def choose_outcome_route(equation: Equation, spending: Spending) -> MeatRoute:
    """Whose contributions are squared, from public values."""
    rows = equation.rows
    largest = None if rows.blocks is None else rows.blocks.largest
    return choose_route(len(rows.design.names), rows.exposure, largest, rows.count, spending.share(MEAT))
