"""Events and counts: from linked rows to the coefficients of a logistic or Poisson regression.

With a curve m that the outcome's mean follows, right links would tell ``Σ a s (1, h)(y - m) = 0``, and linked rows tell its left side: see :mod:`dplinked.sums.partners`. What has
responses in it does not hang on the coefficients. So it is released once, and every step releases what is left: the curve's means and slopes, of rows by themselves.

What decides here (lengths, shares of the budget, steps) is public or released by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.curve import (
    NEARLY_ALL,
    WORTH_A_SEARCH,
    Instruments,
    choose_instruments,
    choose_slope_share,
    column_covariance,
    expect_outcome,
    find_start,
    furthest_count,
    limit_step,
    spread_of_outcome,
    with_firm_corner,
)
from dplinked.estimate.descent import solve_descent
from dplinked.estimate.groups import Groups
from dplinked.estimate.variance import NoisyVariance, accuracy_variance, link_dependence, repeated_rows, split_errors
from dplinked.privacy.quantities.curve import release_expected, release_slope, response_share
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.meat import SCALE_ALONE, MeatRoute, choose_route
from dplinked.privacy.quantities.residual_scale import plan_residual_scale, release_residual_size, residual_edges
from dplinked.privacy.quantities.right_residuals import release_residual_meat, release_right_residuals
from dplinked.privacy.spending import CLIPPING, CURVE_SLOPE, LEVEL_SLOPE, MEAT, NEARER, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.second_stage import prior_scale
from dplinked.study.family import Curve
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import MeatClip, Predictor, ResidualClip

Floats = NDArray[np.float64]

_FAR = 0.2  # deviations of η: after a step longer than this, and than noise makes it, another one comes before the last
_BY_NOISE = 2.5  # times what noise moves η by
_PLAUSIBLE = (
    1.5  # size of slopes on the curve, by which the straight line's are drawn towards zero where noise asks for it
)
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
    instruments
        How long instruments and columns are.
    """

    curve: Curve
    rows: LinkedRows
    groups: Groups
    instruments: Instruments

    @property
    def intercept(self) -> bool:
        """Whether there is one."""
        return self.rows.design.intercept

    @property
    def all_sizes(self) -> Floats:
        """Root mean square of each column, the intercept's 1 first (p)."""
        return np.concatenate([np.ones(int(self.intercept)), self.instruments.sizes])

    @property
    def level_line(self) -> Floats:
        """Coefficients of the level line (p): with an intercept, half of all outcomes happen along it."""
        beta = np.zeros(len(self.rows.design.names))
        beta[: int(self.intercept)] = self.curve.level(self.intercept)[0]
        return beta

    @property
    def level(self) -> float:
        """The mean outcome along the level line."""
        return self.curve.level(self.intercept)[1]

    def around(self, beta: Floats, *, exposed: bool = True) -> ResidualClip:
        """What the rows' sums along the curve are told."""
        used = self.instruments
        return ResidualClip(beta, used.limit, used.iota, 1.0, curve=self.curve, exposed=exposed)


def fit_curve(study: Study, rows: LinkedRows, groups: Groups, spending: Spending) -> Release:
    """The response's part of the equation once, then steps along the curve, and a variance where intervals are asked for."""
    declared, rows = rows.design, clip_counts(rows, spending)
    equation = write_equation(rows, groups, spending)
    route = choose_outcome_route(equation, spending) if study.intervals else SCALE_ALONE
    steep = release_level_slope(equation, spending)
    strength = centred_core(steep.matrix, equation.intercept)
    last = choose_slope_share(strength, equation.curve, equation.instruments, rows.exposure, rows.count, spending.mu)
    keep = last + (0.0 if route is SCALE_ALONE else MEAT)
    share = spending.unspent(keep + 2.0 * NEARER) * response_share(rows.exposure)
    told, scale = release_responses(equation, spending, share)
    straight = replace(steep, vector=told, vector_scale=scale)
    beta, mean, explained = start_from_line(equation, straight)
    beta = approach(equation, told, scale, beta, spending, keep)
    sums = release_step(equation, told, scale, beta, spending, spending.unspent(keep), last)
    estimate = solve_descent(sums, equation.intercept, prior_scale(rows.design))
    estimate = replace(estimate, beta=limit_step(beta, estimate.beta, equation.all_sizes)[0])
    deviation, share = spread_of_outcome(equation.curve, groups.accuracy, mean, explained)
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
    planned = plan_residual_scale(rows.exposure, rows.count, spending.share(CLIPPING), NEARLY_ALL)
    if curve.largest < WORTH_A_SEARCH or planned is None:
        return rows
    flat = Predictor(np.zeros(len(design.names)), np.zeros(len(design.columns)), 1.0)
    counts = rows.residual_counts(flat, residual_edges(curve.largest / 2.0))
    size, level, _ = release_residual_size(counts, spending, CLIPPING, NEARLY_ALL)
    rest = spending.rest(MEAT + LEVEL_SLOPE + 2.0 * NEARER + CURVE_SLOPE[0])
    return rows.with_design(design.with_largest(furthest_count(design, rows.exposure, rows.count, rest, size, level)))


def write_equation(rows: LinkedRows, groups: Groups, spending: Spending) -> Equation:
    """Choose the instruments, and the length that they are shortened to."""
    curve = rows.design.curve
    assert curve is not None
    instruments = choose_instruments(rows.design, rows.exposure, spending.mu, groups.squares)
    return Equation(curve, rows.with_design(instruments.design), groups, instruments)


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


def release_outcome_variance(
    study: Study, equation: Equation, route: MeatRoute, beta: Floats, deviation: float, spending: Spending
) -> NoisyVariance:
    """The variance of the equation around the released coefficients.

    Contributions are cut no closer than single rows of rare outcomes lie. By the size of outcomes alone, it is what the curve itself implies.
    """
    rows, groups, p = equation.rows, equation.groups, len(equation.rows.design.names)
    used = equation.instruments
    weights = 1.0 / (used.kept * np.concatenate([np.ones(int(equation.intercept)), used.ratios]))
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
        repeated=repeated_rows(study.linkage, study.unit, route.name),
    )


def choose_outcome_route(equation: Equation, spending: Spending) -> MeatRoute:
    """Whose contributions are squared, from public values."""
    rows = equation.rows
    largest = None if rows.blocks is None else rows.blocks.largest
    return choose_route(len(rows.design.names), rows.exposure, largest, rows.count, spending.share(MEAT))
