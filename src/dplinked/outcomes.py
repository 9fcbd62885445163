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
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.curve import (
    NEARLY_ALL,
    WORTH_A_SEARCH,
    Instruments,
    Means,
    Told,
    choose_instruments,
    choose_slope_share,
    column_covariance,
    expect_outcome,
    expected_slope,
    find_start,
    furthest_count,
    limit_step,
    spread_of_outcome,
    with_firm_corner,
)
from dplinked.estimate.descent import solve_descent
from dplinked.estimate.groups import Groups
from dplinked.estimate.residuals import counted_sizes
from dplinked.estimate.variance import NoisyVariance, accuracy_variance, link_dependence, repeated_rows, split_errors
from dplinked.privacy.quantities.curve import (
    Answered,
    release_answered,
    release_expected,
    release_slope,
    response_share,
)
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.meat import SCALE_ALONE, MeatRoute, choose_route
from dplinked.privacy.quantities.residual_scale import plan_residual_scale, release_residual_size, residual_edges
from dplinked.privacy.quantities.right_residuals import release_residual_meat, release_right_residuals
from dplinked.privacy.spending import (
    ANSWERED,
    CLIPPING,
    CURVE_SLOPE,
    FIRST_ANSWERS,
    LAST_ANSWERS,
    LEVEL_SLOPE,
    MEAT,
    NEARER,
    Spending,
)
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.second_stage.start import measure_weights, prior_scale
from dplinked.study.family import Curve
from dplinked.study.study import Study
from dplinked.sums.clipped import ResidualCounts
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import MeatClip, Predictor, ResidualClip

Floats = NDArray[np.float64]

_FAR = 0.2  # deviations of η: after a step longer than this, and than noise makes it, another one comes before the last
_BY_NOISE = 2.5  # times what noise moves η by
_PLAUSIBLE = (
    1.5  # size of slopes on the curve, by which the straight line's are drawn towards zero where noise asks for it
)
_PARTS = 4  # that what is left for means is divided into; the last step gets what earlier ones leave
_MANY = 0.07  # of the responses may be missing without their means being taken twice
_LEAST_PRESENT = 0.01  # share of complete rows
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
    answered
        The share of responses that are there, where missing ones are dropped.
    """

    curve: Curve
    rows: LinkedRows
    groups: Groups
    instruments: Instruments
    answered: float = 1.0

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

    def at(self, beta: Floats, *, exposed: bool = True, around: float | None = None) -> ResidualClip:
        """What the rows' sums along the curve are told."""
        used = self.instruments
        return ResidualClip(beta, used.limit, used.iota, 1.0, curve=self.curve, exposed=exposed, around=around)


def fit_curve(study: Study, rows: LinkedRows, groups: Groups, spending: Spending) -> Release:
    """The equation solved along its curve, and a variance where intervals are asked for."""
    declared, rows = rows.design, rows.without_missing() if study.drops_missing else rows
    rows, groups, answered = count_rows(rows, groups, spending)
    equation = write_equation(clip_counts(rows, groups, spending), groups, spending, answered.share)
    route = choose_outcome_route(equation, spending) if study.intervals else SCALE_ALONE
    steep = release_level_slope(equation, spending)
    sums, mean, explained = follow_curve(equation, steep, spending, 0.0 if route is SCALE_ALONE else MEAT)
    estimate = solve_descent(sums, equation.intercept, prior_scale(rows.design))
    estimate = replace(estimate, beta=limit_step(sums.centre, estimate.beta, equation.all_sizes)[0])
    deviation, share = spread_of_outcome(equation.curve, groups.accuracy, mean, explained)
    variance = None
    if study.intervals:
        variance = release_outcome_variance(study, equation, route, estimate.beta, deviation, spending)
    errors = split_errors(equation.rows.design, equation.groups, estimate, sums, variance, share)
    design = replace(equation.rows.design, bounds=declared.bounds, fill=declared.fill)
    counted = (answered.complete, answered.noise) if study.where else None
    return build_release(study, design, rows.count, spending, estimate, errors, sums=sums, counted=counted)


def follow_curve(
    equation: Equation, steep: ReleasedSums, spending: Spending, keep: float
) -> tuple[ReleasedSums, float, float]:
    """The response's part of the equation, then steps along the curve: the last one as a linear system, the mean outcome, and the variance of outcomes that a straight line explains.

    Where missing cells are dropped, responses are told again when it is known what to expect of missing ones; twice, if these are many. `keep` is the share of the budget that is kept
    for what comes later.
    """
    last = share_slope(equation, expected_slope(steep.matrix, equation.curve), spending)
    share = spending.unspent(keep + last + NEARER) * response_share(equation.rows.exposure)
    first, again = (FIRST_ANSWERS * share, LAST_ANSWERS * share) if equation.rows.dropped else (0.0, 0.0)
    told = release_first_responses(equation, steep, spending, first, share - first - again)
    beta, mean, explained = start_from_line(equation, steep, told)
    beta, means = approach(equation, told, beta, spending, keep + last + again)
    left = spending.unspent(keep + last + again)
    if 1.0 - equation.answered > _MANY and left > 2.0 * NEARER:
        told = release_responses(equation, beta, spending, again / 3.0)
        means = release_means(equation, beta, spending, left / _PARTS, NEARER, means)
        beta, again = take_step(equation, told, means)[0], 2.0 * again / 3.0
    if again:
        once_more = release_responses(equation, beta, spending, again)
        told = once_more if equation.answered < 1.0 else once_more.joined(told)
    last = min(share_slope(equation, means.slope, spending), spending.unspent(keep) / 2.0)
    means = release_means(equation, beta, spending, spending.unspent(keep + last), last, means)
    return write_step(equation, told, means), mean, explained


def count_rows(rows: LinkedRows, groups: Groups, spending: Spending) -> tuple[LinkedRows, Groups, Answered]:
    """The rows and their groups, of which it is known by then how many are complete and what these count, and how many of the responses are there; where missing cells are dropped."""
    if not rows.dropped:
        return rows, groups, Answered()
    found, uneven = release_answered(rows.complete_rows(), spending, ANSWERED), rows.design.counting is not None
    whole = float(rows.count) if uneven or rows.blocks is None else groups.contrast * groups.total
    present = min(1.0, max(_LEAST_PRESENT, found.complete / max(whole, 1.0)))
    rows = measure_weights(rows, spending)
    sizes = counted_sizes(rows.design, present)
    return rows, replace(groups, present=present, mean=sizes.mean, square=sizes.square), found


def clip_counts(rows: LinkedRows, groups: Groups, spending: Spending) -> LinkedRows:
    """The same rows with counts clipped where few of them lie beyond, found privately, if the declared largest is further out.

    Noise follows the largest count. The curve knows that counts are clipped, so it bends nothing.
    """
    if searched_level(rows, spending) is None:
        return rows
    size, level, _ = release_residual_size(bin_counts(rows), spending, CLIPPING, NEARLY_ALL)
    return clip_beyond(rows, groups, spending, size, level)


def searched_level(rows: LinkedRows, spending: Spending) -> float | None:
    """The share of counts below the one that is looked for, from public values; None where the declared largest is taken."""
    curve, mu = rows.design.curve, spending.share(CLIPPING)
    assert curve is not None
    planned = plan_residual_scale(rows.exposure, rows.count, mu, NEARLY_ALL, counted=rows.dropped)
    return planned[1] if curve.largest >= WORTH_A_SEARCH and planned is not None else None


def bin_counts(rows: LinkedRows) -> ResidualCounts:
    """Histogram of the counts."""
    design, curve = rows.design, rows.design.curve
    assert curve is not None
    flat = Predictor(np.zeros(len(design.names)), np.zeros(len(design.columns)), 1.0)
    return rows.residual_counts(flat, residual_edges(curve.largest / 2.0))


def clip_beyond(rows: LinkedRows, groups: Groups, spending: Spending, size: float, level: float) -> LinkedRows:
    """The same rows with counts clipped, if a share `level` of them was found to lie below `size`, with what is left of the budget then."""
    rest = spending.rest(MEAT + LEVEL_SLOPE + NEARER + CURVE_SLOPE[0])
    largest = furthest_count(rows.design, rows.exposure, rows.count * groups.present * groups.square, rest, size, level)
    return rows.with_design(rows.design.with_largest(largest))


def write_equation(rows: LinkedRows, groups: Groups, spending: Spending, answered: float = 1.0) -> Equation:
    """Choose the instruments, and the length that they are shortened to."""
    curve = rows.design.curve
    assert curve is not None
    instruments = choose_instruments(rows.design, rows.exposure, spending.mu, groups.squares)
    return Equation(curve, rows.with_design(instruments.design), groups, instruments, answered)


def release_level_slope(equation: Equation, spending: Spending) -> ReleasedSums:
    """``Σ a s (1, h)(1, x)'``: the slope along the level line, where the curve is equally steep everywhere, over that steepness."""
    line = equation.at(equation.level_line, exposed=False)
    private = equation.rows.curve_sums(line, equation.level)
    matrix, scale = release_slope(private, spending, LEVEL_SLOPE)
    eta = np.array([equation.level_line[: int(equation.intercept)].sum()])
    steep = float(equation.curve.mean_and_slope(eta)[1][0])
    none = np.zeros(len(matrix))
    sums = ReleasedSums(matrix / steep, none, scale / steep, none, False, none)
    return with_firm_corner(sums, equation.intercept)


def release_first_responses(
    equation: Equation, steep: ReleasedSums, spending: Spending, first: float, share: float
) -> Told:
    """What responses tell before any coefficients are known. Where they may be missing, a `first` look tells the mean outcome, and missing ones count as that in what follows."""
    level = equation.level_line
    if not first or not equation.intercept:
        told = release_responses(equation, level, spending, first + share)
        return replace(told, missing=1.0 - equation.answered)
    look = replace(release_responses(equation, level, spending, first), missing=1.0 - equation.answered)
    mean = expect_outcome(equation.curve, equation.level, straight_sums(equation, steep, look), equation.groups.total)
    level[0] = equation.curve.find_eta(mean)
    found = release_responses(equation, level, spending, share, exposed=False)
    filled = (mean - equation.level) * steep.matrix[:, 0]
    return replace(found, missing=look.missing, filled=filled) if look.missing else found.joined(look)


def release_responses(
    equation: Equation, beta: Floats, spending: Spending, share: float, *, exposed: bool = True
) -> Told:
    """``Σ s (1, h)[(1-o)(z_i - level) - (1-γ) mean (z_l - level)]`` with its noise: all that responses ever tell.

    Missing ones, if they are dropped, count as what the curve at `beta` expects of the row that meets them.
    """
    private = equation.rows.right_residuals(equation.at(beta, exposed=exposed, around=equation.level))
    return Told(*release_right_residuals(private, spending, spending.take(share)))


def straight_sums(equation: Equation, steep: ReleasedSums, told: Told) -> ReleasedSums:
    """The straight line's equation: missing responses count as the mean outcome in it, as far as it was known by then."""
    return replace(
        steep,
        matrix=equation.answered * steep.matrix,
        matrix_scale=equation.answered * steep.matrix_scale,
        vector=told.vector - told.missing * told.filled,
        vector_scale=told.scale,
    )


def start_from_line(equation: Equation, steep: ReleasedSums, told: Told) -> tuple[Floats, float, float]:
    """Coefficients to start from (p), the mean outcome, and the variance of outcomes that a straight line explains."""
    design, first, curve = equation.rows.design, int(equation.intercept), equation.curve
    straight = straight_sums(equation, steep, told)
    mean = expect_outcome(curve, equation.level, straight, equation.groups.total) if first else equation.level
    rise = float(curve.mean_and_slope(np.array([curve.find_eta(mean)]))[1][0])
    prior = prior_scale(design) * (_PLAUSIBLE * rise) ** 2
    slopes = solve_sums(straight, intercept=equation.intercept, prior_scale=prior).beta[first:]
    covariance = column_covariance(straight, np.array(design.half_widths), equation.intercept)
    explained = max(0.0, float(slopes @ covariance @ slopes))
    if not first:
        return slopes / rise, mean, explained
    means = straight.matrix[0, 1:] / straight.matrix[0, 0]
    start = find_start(curve, mean, slopes, means, covariance)
    if design.exposure is not None:
        start[0] -= math.log(float(np.exp(design.exposure.interval).mean()))
    return start, mean, explained


def approach(equation: Equation, told: Told, beta: Floats, spending: Spending, keep: float) -> tuple[Floats, Means]:
    """Steps of little precision towards the solution: one, and further ones after long ones. And what their means tell, which is not lost for the last step.

    `keep` is the share of the budget that is kept for what comes later, the last step's means not included.
    """
    share, known = (spending.unspent(keep) - NEARER) / _PARTS, None
    for _ in range(_PARTS - 1):
        known = release_means(equation, beta, spending, share, NEARER, known)
        beta, way, noise = take_step(equation, told, known)
        if way <= max(_FAR, _BY_NOISE * noise) or spending.unspent(keep) < 2.0 * share + NEARER:
            break
    assert known is not None
    return beta, known


def take_step(equation: Equation, told: Told, means: Means) -> tuple[Floats, float, float]:
    """Coefficients after a step (p), how far it led, and what noise makes of that."""
    sums, sizes = write_step(equation, told, means), equation.all_sizes
    after = solve_descent(sums, equation.intercept, prior_scale(equation.rows.design))
    beta, way = limit_step(means.centre, after.beta, sizes)
    return beta, way, math.sqrt(float(sizes**2 @ np.diag(after.covariance)))


def release_means(
    equation: Equation, beta: Floats, spending: Spending, share: float, slope_share: float, before: Means | None
) -> Means:
    """The expected equation and its slope at `beta`, released for a share of the budget each, together with what was released `before`."""
    private = equation.rows.curve_sums(equation.at(beta), equation.level)
    expected, noise = release_expected(private, spending, share)
    slope, slope_scale = release_slope(private, spending, slope_share)
    return Means(beta, expected, noise**2, slope, slope_scale).joined(before, equation.all_sizes)


def write_step(equation: Equation, told: Told, means: Means) -> ReleasedSums:
    """The equation around the coefficients of its means, as a linear system."""
    mixing = min(1.0, equation.groups.accuracy / max(equation.groups.contrast, 1e-3))
    slope, slope_scale = equation.answered * means.slope, equation.answered * means.slope_scale
    vector, noise = told.beside(means) - means.vector + slope @ means.centre, np.sqrt(told.scale**2 + means.variance)
    sums = ReleasedSums(slope, vector, slope_scale, noise, False, means.centre, mixing)
    return with_firm_corner(sums, equation.intercept)


def release_outcome_variance(
    study: Study, equation: Equation, route: MeatRoute, beta: Floats, deviation: float, spending: Spending
) -> NoisyVariance:
    """The variance of the equation around the released coefficients.

    Contributions are cut no closer than single rows of rare outcomes lie. By the size of outcomes alone, it is what the curve itself implies.
    """
    rows, groups, p = equation.rows, equation.groups, len(equation.rows.design.names)
    used, heavy = equation.instruments, counted_sizes(equation.rows.design, equation.groups.present).large
    own, instruments = used.kept
    weights = 1.0 / np.concatenate([np.full(int(equation.intercept), own), instruments * used.ratios])
    least = _ROOM * math.sqrt(p) * min(float(equation.curve.largest), 2.0 + 4.0 * deviation)
    meat, noise = groups.squares * deviation**2 * np.eye(p), 0.0
    if route is not SCALE_ALONE:
        private = rows.right_residuals(
            equation.at(beta), MeatClip(route.name, weights, heavy * max(route.clip * deviation, least))
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


def share_slope(equation: Equation, slope: Floats, spending: Spending) -> float:
    """Share of the budget for the last step's slope, from what is expected of it (p×p)."""
    rows = equation.rows
    return choose_slope_share(slope, equation.curve, equation.instruments, rows.exposure, rows.count, spending.mu)


def choose_outcome_route(equation: Equation, spending: Spending) -> MeatRoute:
    """Whose contributions are squared, from public and released values."""
    rows, groups = equation.rows, equation.groups
    largest = None if rows.blocks is None else rows.blocks.largest
    heavy = counted_sizes(rows.design, groups.present).large  # of rows that most of the squares come from
    count = max(1, round(rows.count * groups.present * groups.square / heavy**2))
    return choose_route(len(rows.design.names), rows.exposure, largest, count, spending.share(MEAT))
