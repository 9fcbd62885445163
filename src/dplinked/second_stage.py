"""The second stage: from the first stage's coefficients to those of the clipped residual equation of right links.

What decides here (whether it pays, shares of the budget, clips) is public or released by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import Estimate, solve_sums
from dplinked.estimate.descent import solve_descent
from dplinked.estimate.goodness import Goodness, SumOfSquares, choose_square_clip, normal_spread, spread_of_squares
from dplinked.estimate.groups import Groups, choose_weights, find_groups
from dplinked.estimate.intervals import noise_covariance
from dplinked.estimate.residuals import (
    CLEAR,
    CLIPS,
    FEW,
    INTERCEPT_WEIGHT,
    Residuals,
    Step,
    choose_width,
    closest_clip,
    column_sizes,
    combine_steps,
    counted_sizes,
    derivative,
    expect_residuals,
    instrument_sizes,
    level_of_right_links,
    right_deviation,
    told_gram,
    widen_instrument,
    wider_width,
)
from dplinked.estimate.tails import choose_norm as choose_tail_norm
from dplinked.estimate.tails import far_columns, known_excess, widen_clip
from dplinked.estimate.variance import (
    NoisyVariance,
    accuracy_variance,
    explained_variance,
    link_dependence,
    repeated_rows,
    split_errors,
)
from dplinked.estimate.whitening import (
    Geometry,
    choose_norm,
    coefficient_sums,
    estimate_coefficients,
    first_moments,
    has_rare_levels,
    invert_moments,
    rounds_needed,
    spectral_noise,
    whiten,
    whiten_coefficients,
)
from dplinked.linkage import EXACT
from dplinked.privacy.quantities.contribution_sizes import (
    choose_total_norm,
    is_hopeless,
    ladder,
    long_ladder,
    release_contribution_sizes,
)
from dplinked.privacy.quantities.instrument import (
    ReleasedSums,
    entry_noise,
    plan_sums,
    pool_by_precision,
    release_curvature,
)
from dplinked.privacy.quantities.meat import SCALE_ALONE, MeatRoute, choose_route
from dplinked.privacy.quantities.residual_scale import (
    Present,
    plan_residual_scale,
    release_residual_size,
    residual_edges,
)
from dplinked.privacy.quantities.right_residuals import (
    release_residual_meat,
    release_right_residuals,
    residual_meat_sensitivity,
    right_residuals_sensitivity,
)
from dplinked.privacy.quantities.squared_residuals import release_squared_residuals, squared_residuals_sensitivity
from dplinked.privacy.quantities.whitened_gram import release_whitened_gram, whitened_gram_sensitivity
from dplinked.privacy.spending import (
    CLIPPING,
    FIRST_STEP,
    FOLLOWED,
    GOODNESS,
    GRAM,
    MEAT,
    ROUNDS,
    TAILS,
    TOTALS_MEAT,
    TOTALS_SIZES,
    VARIANCE,
    WHITENED,
    Spending,
)
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal, instrument_squares
from dplinked.study.study import Study
from dplinked.sums.linked_rows import ClippedResiduals, LinkedRows
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import MeatClip, Predictor, ResidualClip, Whitening

Floats = NDArray[np.float64]

_AFTER_ONE_STEP = 0.15  # share of the squared way that is left after the first step
_NEAR = (
    6.0,
    0.02,
    0.01,
)  # least clip in deviations, most of their variance by a wrong start, most of the equation's by a wrong slope: one step does
_LEAST_CONTRAST = 0.1  # mean of γ - o above which missing cells are reason enough for a second stage
_FAR = 3.0  # errors by which the first step may lead away from the first stage's slopes
_CALM_ENOUGH = 0.1  # spectral noise of a whitened slope, relative to it, above which it gets more of the budget
_LARGER = 3.0  # times what its middle says: how large a column is at most taken to be
_FURTHER = (20.0, 14.0, 10.0, 7.0)  # times its size: how far a column's instrument follows it where tails were seen
_CALM_SLOPE = 0.25  # noise of the equation's slope, relative to it, up to which it does
_HANGING = 0.2  # mean logarithm of what correlations multiply variances of slopes by, above which rows may be whitened
_WORTH = 0.1  # how much smaller errors of slopes must be, relative to them, for rows to be whitened
_TELLING = 0.25  # noise of a meat of clusters, relative to it, above which twice the noise is added, so that intervals are too long rather than too short
_AS_GOOD = 0.02  # how much larger an error, relative to it, is taken for the same: the second stage's line is closer to that of least squares


def prior_scale(design: Design) -> float:
    """Size of a coefficient's prior variance, where released sums are weak."""
    return 1.0 / max(1, len(design.columns))


def all_rows(study: Study, rows: LinkedRows) -> Groups:
    """The rows as one group, with the declared mean accuracy."""
    return find_groups(study.linkage.public, None, rows.count, _contrast(study, rows))


def weigh_groups(study: Study, rows: LinkedRows, spending: Spending) -> tuple[LinkedRows, Groups]:
    """Weigh groups of different accuracies by what they contribute. Only declared accuracies and public sizes decide."""
    groups = find_groups(study.linkage.public, rows.blocks, rows.count, _contrast(study, rows))
    if len(groups.keys) == 1 or not rows.design.columns:
        return rows, groups
    columns = len(rows.design.columns) + INTERCEPT_WEIGHT**2
    noise = right_residuals_sensitivity(CLIPS[1], rows.exposure) / spending.share(0.5) * math.sqrt(columns)
    groups = replace(groups, weights=choose_weights(groups, noise))
    return rows.with_weights(groups.weighed), groups


@dataclass(frozen=True, eq=False)
class SecondStage:
    """What the second stage starts from, public by then.

    Attributes
    ----------
    estimate
        Released coefficients.
    rows, groups
        The rows, with the instrument of the second stage, and their groups.
    geometry
        How its instruments are scaled.
    explained
        Variance of the response that the coefficients explain.
    residuals
        What is expected of residuals around them.
    gram
        Share of the budget for the equation's slope.
    same
        Whether both stages have the regressors themselves as instruments.
    near
        Whether one step does. Where hardly any residual is clipped, the equation is a line whose slope is released, and a second step from
        elsewhere would tell the same.
    far
        Whether columns may reach so far out that tails are looked for before the last step.
    errors
        Expected errors of the slopes (d).
    present
        Share of rows that are complete, where others are dropped.
    """

    estimate: Estimate
    rows: LinkedRows
    groups: Groups
    geometry: Geometry
    explained: float
    residuals: Residuals
    gram: float
    same: bool
    near: bool
    far: bool
    errors: Floats
    present: Present


def may_take_second_stage(study: Study, rows: LinkedRows, groups: Groups, spending: Spending) -> bool:
    """Whether the data, the linkage and the budget allow a second stage, from public values."""
    if study.ridge is not None or rows.read_once or not rows.design.columns:
        return False
    if not rows.exposure.symmetric and unlinking_terms(rows.exposure.accuracy_min) is None:
        return False
    mu, level, counted = spending.share(CLIPPING), level_of_right_links(groups.plain_accuracy), study.drops_missing
    return plan_residual_scale(rows.exposure, rows.count, mu, level, counted=counted) is not None


def expect_second_stage(
    study: Study, rows: LinkedRows, groups: Groups, spending: Spending, start: ReleasedSums, first: float
) -> SecondStage | None:
    """Measure the residuals around the first stage's coefficients; None if a second stage is not expected to be more precise.

    `first` is the share of the budget that the first stage had.
    """
    expectation, wide, sizes = _measure(study, rows, groups, spending, start)
    stage, design = expectation.by_columns(wide, sizes), rows.design
    moments, scale = first_moments(design, start, groups.accuracy, groups.total)
    weak = stage.gram >= GRAM[1]  # the slope by columns hardly stands clear of its noise, however much it gets
    if (weak or _hang_together(expectation.inverse, sizes)) and not has_rare_levels(design, moments):
        matrix, strengths = whiten(moments, scale, INTERCEPT_WEIGHT * design.intercept)
        stage = _choose(stage, expectation.whitened(matrix, rounds_needed(strengths), sizes))
    bent = stage.present.is_incomplete and groups.contrast > _LEAST_CONTRAST  # by filled cells
    bent = bent or design.counting is not None  # the first stage's line is that of all rows
    bent = bent or study.needs_second_stage
    return stage if bent or _pays(stage, expectation.one_stage(sizes, first)) else None


def expect_by_columns(
    study: Study,
    rows: LinkedRows,
    groups: Groups,
    spending: Spending,
    start: ReleasedSums,
    slope: Spending,
    least: float,
) -> SecondStage:
    """Measure the residuals around the first stage's coefficients, for a second stage by columns, which looks for no tails; the equation's slope gets `least` of the purse `slope`, or more."""
    expectation, wide, sizes = _measure(study, rows, groups, spending, start)
    return replace(expectation.by_columns(wide, sizes, slope, least), far=False)


def _measure(
    study: Study, rows: LinkedRows, groups: Groups, spending: Spending, start: ReleasedSums
) -> tuple[_Expectation, LinkedRows, Floats]:
    """What is known once residuals are measured, the rows with the instrument of a second stage by columns, and the sizes of columns (d)."""
    design, accuracy = rows.design, groups.accuracy
    estimate = solve_sums(start, intercept=design.intercept, prior_scale=prior_scale(design))
    sizes = column_sizes(design, start, column_spread(design), accuracy, groups.total)
    explained = max(0.0, explained_variance(design, start, estimate.beta, accuracy, groups.total))
    noise = right_residuals_sensitivity(1.0, rows.exposure) / spending.share(0.5)
    if study.drops_missing:
        rows = rows.without_missing()
    wide = rows.with_design(_follow(rows, groups, spending, sizes, choose_width(noise, groups.squares)))
    deviation, present = measure_deviation(groups, wide, spending, estimate, explained)
    moments, scale = first_moments(design, start, accuracy, groups.total)
    counted = counted_sizes(design, present.complete)
    groups = replace(groups, present=present.complete, mean=counted.mean, square=counted.square)
    inverse = invert_moments(moments, scale, design.intercept, sizes)
    known = _Expectation(study, rows, groups, spending, start, estimate, explained, deviation, inverse, present)
    return known, wide, sizes


def _follow(rows: LinkedRows, groups: Groups, spending: Spending, sizes: Floats, width: float) -> Design:
    """The design of the second stage, whose instruments follow their columns by a width, or by a wider one if the equation's slope stays clear of its noise."""
    further = widen_instrument(rows.design, sizes, wider_width(width))
    calm = _is_calm(further, rows.count, groups, sizes, spending)
    return further if calm else widen_instrument(rows.design, sizes, width)


def _is_calm(design: Design, count: int, groups: Groups, sizes: Floats, spending: Spending) -> bool:
    """Whether the slope of an equation with these instruments stays clear of its noise if it gets the share of one that follows tails."""
    plan = plan_sums(design, EXACT, count, spending.share(FOLLOWED), matrix_only=True)
    signal = groups.total * groups.contrast * sizes * instrument_sizes(design, sizes)
    return entry_noise(plan).core <= _CALM_SLOPE * float(signal.min())


def _hang_together(inverse: Floats, sizes: Floats) -> bool:
    """Whether columns of these sizes hang together, by what that adds to the variances of their slopes; `inverse` is that of their second moments (d×d)."""
    return bool(np.log(np.diag(inverse) * sizes**2).mean() > _HANGING)


def _choose(by_columns: SecondStage, whitened: SecondStage) -> SecondStage:
    """Whitened rows, if slopes are expected to have errors that are enough smaller, and none a larger one; what they cost is a pass of their own."""
    ratios = np.log(whitened.errors / by_columns.errors)
    return whitened if ratios.mean() < -_WORTH and ratios.max() < _AS_GOOD else by_columns


def _pays(stage: SecondStage, one: Floats) -> bool:
    """Whether the second stage's slopes are expected to have smaller errors than those of the first, released again for the rest of the budget (d)."""
    return bool(np.log(stage.errors).mean() < np.log(one).mean() + _AS_GOOD)


def one_stage_design(design: Design) -> Design:
    """The design whose sums end a release of one stage. An instrument that is aimed at middles, beyond which columns may reach far, would tell the middles' line: it follows the columns."""
    if design.half_widths is None or not far_columns(design, np.sqrt(column_spread(design))).any():
        return design
    return replace(design, half_widths=None)


@dataclass(frozen=True, eq=False)
class _Expectation:
    """What is known when the way to go on is chosen: the first stage, the `deviation` of residuals, and the inverse of the columns' second moments (d×d)."""

    study: Study
    rows: LinkedRows
    groups: Groups
    spending: Spending
    start: ReleasedSums
    estimate: Estimate
    explained: float
    deviation: float
    inverse: Floats
    present: Present

    def by_columns(
        self, wide: LinkedRows, sizes: Floats, slope: Spending | None = None, least: float = GRAM[0]
    ) -> SecondStage:
        """A second stage whose instruments are the columns themselves, as far as they follow them. The purse `slope` pays for the equation's slope, if it is another one."""
        same = self.rows.design.half_widths is None and wide.design.half_widths is None and self.rows.exposure.symmetric
        same = same and not wide.dropped  # the first stage's rows are filled
        gram, bend = choose_gram_share(slope or self.spending, self.start, wide, same, sizes, self.groups, least)
        geometry = Geometry(instrument_sizes(wide.design, sizes), sizes)
        stage = self._stage(wide, geometry, gram, same, bend**2 * float(np.trace(self._left)))
        drawn, factors = stage.errors, sizes / geometry.ratios
        return replace(stage, errors=self._errors((drawn * factors) ** 2, 0.0, stage.residuals))

    def whitened(self, matrix: Floats, rounds: int, sizes: Floats) -> SecondStage:
        """A second stage whose instruments are whitened rows."""
        rows = self.rows.with_design(replace(self.rows.design, half_widths=None))
        weight, p = self.groups.total * self.groups.contrast, len(matrix)
        share = GRAM[0]
        while True:
            whitening = cut_whitened(matrix, rows.design, self.spending.share(share), weight)
            scale = whitened_gram_sensitivity(whitening.norm) / self.spending.share(share)
            if share >= WHITENED or spectral_noise(p, scale, weight) <= _CALM_ENOUGH:
                break
            share = min(WHITENED, share + 0.05)
        geometry = Geometry(np.ones(sizes.size), sizes, whitening, rounds)
        left = float(np.trace(geometry.way(self._left)))
        gram = share + sum(ROUNDS[: rounds - 1])
        stage = self._stage(rows, geometry, gram, False, scale**2 / 2.0 * left)
        return replace(
            stage, gram=share, errors=self._errors(np.zeros(sizes.size), stage.errors[0] ** 2, stage.residuals)
        )

    @property
    def _left(self) -> Floats:
        """Covariance of the first stage's slopes (d×d)."""
        first = int(self.rows.design.intercept)
        return self.estimate.covariance[first:, first:]

    def _stage(self, rows: LinkedRows, geometry: Geometry, gram: float, same: bool, bent: float) -> SecondStage:
        """The stage, and in the place of errors the noise of its equation, if noise of the slope adds the variance `bent` to it."""
        study, groups, spending = self.study, self.groups, self.spending
        far = study.errors != "symmetric" and bool(far_columns(rows.design, geometry.sizes).any())
        share = spending.unspent(keep=_kept_for_meat(study, self.rows, spending) + CLIPPING + gram + TAILS * far)
        residuals = expect_clip(
            study, groups, rows, spending, self.estimate, self.explained, geometry, share, self.deviation
        )
        near = _is_near(groups, residuals, float(np.trace(geometry.way(self._left))), bent)
        near = near and not (far or self.present.is_incomplete) and rows.design.counting is None
        bent *= 1.0 if near else _AFTER_ONE_STEP
        drawn = right_residuals_sensitivity(residuals.limit, rows.exposure) / spending.share(share)
        noise = np.full(geometry.ratios.size, math.sqrt(drawn**2 + bent * (groups.contrast * residuals.kept[2]) ** 2))
        return SecondStage(
            self.estimate, rows, groups, geometry, self.explained, residuals, gram, same, near, far, noise, self.present
        )

    def _errors(self, noise: Floats, spread: float, residuals: Residuals) -> Floats:
        """Errors of slopes, if noise has these variances in the columns' equations (d), and `spread` along whitened directions."""
        groups = self.groups
        met = spread + groups.squares * residuals.spread(groups.accuracy) ** 2
        variance = self.inverse**2 @ noise + met * np.diag(self.inverse)
        return np.sqrt(variance) / (groups.contrast * residuals.kept[2] * groups.total)

    def one_stage(self, sizes: Floats, begun: float) -> Floats:
        """Errors of one stage's slopes, if its sums are released for the rest of the budget: again, where they are the first stage's, for which they had the share `begun`."""
        design, groups, first = one_stage_design(self.rows.design), self.groups, int(self.rows.design.intercept)
        keep = VARIANCE if self.study.intervals else 0.0
        again = begun / (begun + self.spending.unspent(keep))
        plain = design.half_widths is None
        signal = sizes**2 if plain else instrument_signal(design)
        squares = sizes**2 if plain else instrument_squares(design)
        factors = (sizes**2 / signal) ** 2
        if design is self.rows.design:
            noise = np.diag(noise_covariance(self.start, self.estimate.beta))[first:] * again * factors
        else:
            entries = entry_noise(plan_sums(design, self.rows.exposure, self.rows.count, self.spending.rest(keep)))
            slopes = float(self.estimate.beta[first:] @ self.estimate.beta[first:])
            noise = np.full(sizes.size, entries.response**2 + entries.core**2 * slopes)
        met = groups.squares * (self.deviation**2 + (1.0 - groups.accuracy**2) * self.explained)
        variance = self.inverse**2 @ noise + met * squares / sizes**2 * factors * np.diag(self.inverse)
        return np.sqrt(variance) / (groups.accuracy * groups.total)


def _is_near(groups: Groups, residuals: Residuals, off: float, bent: float) -> bool:
    """Whether one step does, from what noise of the start adds to the variance of residuals (`off`) and noise of the slope to that of the equation."""
    clip, start, slope = _NEAR
    met = groups.squares * (float(residuals.sizes.min()) * residuals.spread(groups.accuracy)) ** 2
    return residuals.clip >= clip and off <= start * residuals.deviation**2 and bent <= slope * met


def measure_deviation(
    groups: Groups,
    rows: LinkedRows,
    spending: Spending,
    estimate: Estimate,
    explained: float,
    present: Present | None = None,
) -> tuple[float, Present]:
    """Measure the deviation of right links' residuals around released coefficients. The first time, it is measured how many rows are `present` too, and rows will be summed by themselves next."""
    accuracy = groups.plain_accuracy
    around = Predictor(estimate.beta, np.zeros(len(rows.design.columns)), 1.0)
    counts = rows.residual_counts(around, residual_edges(rows.design.response.peak), ahead=present is None)
    size, level, present = release_residual_size(counts, spending, CLIPPING, level_of_right_links(accuracy), present)
    return right_deviation(size, level, accuracy, explained), present


def expect_clip(
    study: Study,
    groups: Groups,
    rows: LinkedRows,
    spending: Spending,
    estimate: Estimate,
    explained: float,
    geometry: Geometry,
    share: float,
    deviation: float,
    wider: float = 1.0,
) -> Residuals:
    """Choose how far the equation clips residuals of a deviation, `wider` than otherwise if there are tails; it will get a `share` of the budget."""
    design, first = rows.design, int(rows.design.intercept)
    unit = right_residuals_sensitivity(1.0, rows.exposure) / spending.share(share)
    closest = closest_clip(deviation, geometry.way(estimate.covariance[first:, first:]))
    most = None if geometry.whitening is None else geometry.whitening.norm**2
    largest = 4.0 * design.response.peak
    return expect_residuals(
        deviation,
        explained,
        geometry.ratios,
        design.intercept,
        unit,
        groups.squares,
        largest,
        study.errors,
        closest,
        most,
        counted_sizes(design),
        wider,
    )


def _kept_for_meat(study: Study, rows: LinkedRows, spending: Spending) -> float:
    """Share of the budget for the variance that intervals need; 0 where the residuals' size has to do, which public values decide."""
    if not study.intervals:
        return 0.0
    paid = GOODNESS if study.goodness else 0.0
    if _squared_together(study, rows, spending) is not None:
        return paid + TOTALS_SIZES + TOTALS_MEAT
    return paid + (MEAT if _route(rows, spending) is not SCALE_ALONE else 0.0)


def _squared_together(study: Study, rows: LinkedRows, spending: Spending) -> str | None:
    """Whose totals of contributions are squared: those of clusters, if some are declared, or of persons of several rows, unless these would drown in noise, or have rows in several levels. Public values decide."""
    if study.cluster is not None:
        return "cluster"
    persons, p = rows.exposure.persons, len(rows.design.names)
    if (
        persons == 1
        or rows.exposure.levels > 1
        or is_hopeless(p, "person", rows.exposure, rows.count / persons, spending.share(TOTALS_MEAT))
    ):
        return None
    return "person"


def _route(rows: LinkedRows, spending: Spending) -> MeatRoute:
    """Whose contributions to the equation are squared."""
    largest = None if rows.blocks is None else rows.blocks.largest
    return choose_route(len(rows.design.names), rows.exposure, largest, rows.count, spending.share(MEAT))


def _contrast(study: Study, rows: LinkedRows) -> float:
    """Mean of γ - o, what right links have over others; the mean accuracy where blocks are not public. An explicit Q is unlinked whole."""
    if not rows.exposure.symmetric:
        return 1.0
    return study.linkage.public.mean_accuracy if rows.blocks is None else rows.blocks.contrast


def fit_residuals(
    study: Study,
    rows: LinkedRows,
    spending: Spending,
    start: ReleasedSums,
    stage: SecondStage,
    released: tuple[ReleasedSums, Geometry] | None = None,
) -> Release:
    """Two steps on the clipped residual equation of right links, around the coefficients of the first stage; one where these are near.

    The equation's slope is released first, unless it was `released` before.
    """
    wide, groups, intercept = stage.rows, stage.groups, rows.design.intercept
    gram, geometry = released or release_slope(study, rows, spending, start, stage)
    whitening = geometry.whitening
    residuals, estimate, steps, wider = stage.residuals, stage.estimate, list[Step](), 1.0
    deviation = residuals.deviation
    after = 0.0 if stage.near else CLIPPING + TAILS * stage.far
    rest = spending.unspent(keep=_kept_for_meat(study, wide, spending) + after)
    parts = [rest] if stage.near else [FIRST_STEP * rest, (1.0 - FIRST_STEP) * rest]
    for place, part in enumerate(parts):
        if place:
            deviation, _ = measure_deviation(groups, wide, spending, estimate, stage.explained, stage.present)
        if place or stage.far:
            share = part if place else rest
            residuals = expect_clip(
                study, groups, wide, spending, estimate, stage.explained, geometry, share, deviation
            )
        if place and stage.far:
            wider, part = look_for_tails(stage, geometry, estimate, residuals, spending, part)
            if wider > 1.0:
                steps.clear()
                if (followed := follow_tails(stage, geometry, spending, part)) is not None:
                    stage, part = followed, part - FOLLOWED
                    (gram, geometry), wide = release_slope(study, rows, spending, start, stage), stage.rows
                residuals = expect_clip(
                    study, groups, wide, spending, estimate, stage.explained, geometry, part, deviation, wider
                )
        slope, beta = derivative(gram, residuals, intercept), estimate.beta
        clip = clip_around(beta, residuals, wide.design, whitening)
        is_last = place + 1 == len(parts)
        meat = None
        if is_last and study.intervals:
            meat = plan_meat_clip(study, groups, wide, residuals, clip, spending, wider)
        private = wide.right_residuals(clip, meat)
        vector, scale = release_right_residuals(private, spending, spending.take(part))
        steps.append(
            Step(
                beta if whitening is None else whiten_coefficients(beta, whitening.matrix),
                vector,
                scale,
                residuals.kept[2],
            )
        )
        sums = combine_steps(steps, slope)
        before, estimate = estimate, _solve(wide.design, sums, geometry)
        if wide.dropped and not is_last and _began_far(stage, before, estimate):
            steps.clear()
    mixing = groups.accuracy * residuals.wrong / (groups.contrast * residuals.kept[2])
    sums = replace(sums, mixing=min(1.0, mixing))
    sums = sums if whitening is None else coefficient_sums(sums, whitening.matrix)
    variance = None
    if study.intervals:
        variance = replace(_residual_variance(study, groups, wide, spending, private, residuals), basis=sums.basis)
    wrong = residuals.wrong_share(groups.accuracy)
    errors = split_errors(wide.design, groups, estimate, sums, variance, wrong)
    goodness = _release_goodness(study, stage, spending, estimate, sums, residuals) if study.goodness else None
    present = (rows.count * stage.present.drawn, rows.count * stage.present.noise) if study.where else None
    return build_release(
        study, wide.design, rows.count, spending, estimate, errors, sums=sums, counted=present, goodness=goodness
    )


def _began_far(stage: SecondStage, before: Estimate, after: Estimate) -> bool:
    """Whether the first step led further than the errors of its start explain: filled cells bent the start, and the step tells little of where it ends."""
    first = before.beta.size - stage.errors.size
    way = np.abs(after.beta - before.beta)[first:]
    noise = np.sqrt(np.diag(before.covariance) + np.diag(after.covariance))[first:]
    return bool(np.any(way > _FAR * np.hypot(noise, stage.errors)))


def _solve(design: Design, sums: ReleasedSums, geometry: Geometry) -> Estimate:
    """The coefficients that the steps tell."""
    prior = prior_scale(design)
    if geometry.whitening is None:
        return solve_descent(sums, design.intercept, prior)
    found = solve_descent(sums, design.intercept, prior, geometry.turned)
    return estimate_coefficients(found, geometry.whitening.matrix)


def release_slope(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums, stage: SecondStage
) -> tuple[ReleasedSums, Geometry]:
    """The equation's slope before clipping, and the geometry of its instruments.

    It is ``Σ (γ-o)(1, h)(1, x)'`` of rows by themselves, together with what the first stage tells of it; or the squares of whitened rows, which are whitened
    anew by what they tell until whitening is clear of noise.
    """
    groups, geometry, wide = stage.groups, stage.geometry, stage.rows
    factor = groups.contrast if rows.blocks is None else 1.0  # then rows were not weighed by their blocks
    if geometry.whitening is None:
        gram = release_curvature(wide.own_gram(), spending, intervals=study.intervals, share=stage.gram)
        gram = times_factor(gram, factor)
        if rows.design.intercept and wide.dropped:
            usual = groups.contrast * groups.total
            most = usual / (groups.present * groups.mean)  # what all rows have together
            gram.matrix[0, 0] = np.clip(gram.matrix[0, 0], min(most / 20.0, usual / 10.0), most)
        if stage.same:
            gram = pool_by_precision(gram, told_gram(start, groups.accuracy, groups.contrast, rows.design.intercept))
        return gram, _measure_columns(gram, stage) if stage.far else geometry
    matrix, weight = geometry.whitening.matrix, groups.total * groups.contrast
    for share in ROUNDS[: geometry.rounds - 1]:
        rough = cut_whitened(matrix, wide.design, spending.share(share), weight)
        gram = times_factor(release_whitened_gram(wide.whitened_gram(rough), spending, share), factor / weight)
        turned, strengths = whiten(gram.matrix, gram.matrix_scale, INTERCEPT_WEIGHT * rows.design.intercept)
        matrix = turned @ matrix
        if rounds_needed(strengths) == 1:
            break
    whitening = cut_whitened(matrix, wide.design, spending.share(stage.gram), weight)
    gram = times_factor(
        release_whitened_gram(wide.whitened_gram(whitening, counted=wide.dropped), spending, stage.gram), factor
    )
    return gram, replace(geometry, whitening=whitening)


def _measure_columns(gram: ReleasedSums, stage: SecondStage) -> Geometry:
    """The geometry of columns that are as large as the slope tells, where their middles tell too little of how far they reach."""
    design, groups, geometry = stage.rows.design, stage.groups, stage.geometry
    found = np.diag(gram.matrix)[int(design.intercept) :] / (groups.contrast * groups.total)
    larger = np.sqrt(np.clip(found / (geometry.ratios * geometry.sizes), 1.0, _LARGER**2))
    larger = np.where(far_columns(design, geometry.sizes), larger, 1.0)
    return replace(geometry, ratios=geometry.ratios * larger, sizes=geometry.sizes * larger)


def cut_whitened(matrix: Floats, design: Design, mu: float, weight: float) -> Whitening:
    """Whitened rows of a design with the norm that they are cut to, if their squares are released for μ: no larger than the longest of them can be."""
    longest = float(np.linalg.norm(matrix, 2)) * math.hypot(design.radius, float(design.intercept))
    return Whitening(matrix, min(longest, choose_norm(len(matrix), whitened_gram_sensitivity(1.0) / mu, weight)))


def times_factor(gram: ReleasedSums, factor: float) -> ReleasedSums:
    """A released matrix and its noise times a public factor."""
    return replace(gram, matrix=gram.matrix * factor, matrix_scale=gram.matrix_scale * factor)


def choose_gram_share(
    spending: Spending,
    start: ReleasedSums,
    rows: LinkedRows,
    same: bool,
    sizes: Floats,
    groups: Groups,
    least: float = GRAM[0],
) -> tuple[float, float]:
    """Share of the budget for the equation's slope, and the noise that it will have in an entry.

    It is as large as the weakest direction of the first stage's matrix asks for to stand clear of the noise. Where both stages have the same
    instrument, that matrix tells of the slope as well.
    """
    wide, dropped = rows.design, rows.exposure if rows.dropped else None
    first, d = int(wide.intercept), len(wide.columns)
    core = centred_core(start.matrix, wide.intercept)
    strength = np.linalg.svd(core, compute_uv=False)
    signal = groups.total * float((sizes * instrument_sizes(wide, sizes)).mean())
    weakest = signal * float(strength[-1] / max(strength.mean(), 1e-300))
    told = float(np.sqrt((start.matrix_scale[first:, first:] ** 2).mean())) / groups.accuracy if same else math.inf
    share, clear = least, CLEAR * math.sqrt(2.0 * (max(d, FEW) if rows.dropped else d))
    while True:
        plan = plan_sums(wide, EXACT, rows.count, spending.share(share), matrix_only=True, dropped=dropped)
        noise = 1.0 / math.hypot(1.0 / entry_noise(plan).core, 1.0 / told)
        if share >= GRAM[1] or weakest >= clear * noise:
            return share, noise
        share = min(GRAM[1], share + 0.05)


def look_for_tails(
    stage: SecondStage, geometry: Geometry, estimate: Estimate, residuals: Residuals, spending: Spending, share: float
) -> tuple[float, float]:
    """How many times as far out the last step clips, by the squares of its contributions, which are released before it, and its `share` of the budget, larger where they would drown in noise and are not."""
    rows, groups, d = stage.rows, stage.groups, residuals.sizes.size
    spread, weights = residuals.spread(groups.accuracy), residuals.meat_weights(rows.design.intercept)
    expected, largest = groups.squares * spread**2, residuals.limit * float(weights.max()) / spread

    def chance(norm: float) -> float:
        return residual_meat_sensitivity(norm, largest, rows.exposure) / (spending.share(TAILS) * groups.squares)

    norm = choose_tail_norm(weights.size, chance)
    if norm is None:
        return 1.0, share + TAILS
    clip = clip_around(estimate.beta, residuals, rows.design, geometry.whitening)
    private = rows.right_residuals(clip, MeatClip("row", weights, norm * spread))
    squares, scale = release_residual_meat(private, spending, TAILS)
    off = float(np.trace(geometry.way(estimate.covariance[-d:, -d:])))
    known = known_excess(off, (1.0 - groups.accuracy) * residuals.explained) / spread**2
    drawn = right_residuals_sensitivity(residuals.limit, rows.exposure) / spending.share(share)
    noise = drawn / (math.sqrt(groups.squares * float((residuals.sizes**2).mean())) * spread)
    return widen_clip(np.diag(squares)[-d:] / expected - known, scale / expected, noise), share


def follow_tails(stage: SecondStage, geometry: Geometry, spending: Spending, share: float) -> SecondStage | None:
    """The stage whose instruments follow their columns out to where tails were seen, as far as its slope, which is released anew, stays clear of its noise.

    None if it does not, or if that would take more than half of the last step's `share` of the budget.
    """
    sizes = stage.geometry.sizes
    if geometry.whitening is not None or FOLLOWED > share / 2.0:
        return None
    for width in _FURTHER:
        design = widen_instrument(stage.rows.design, sizes, width)
        if design.half_widths == stage.rows.design.half_widths:
            return None
        if _is_calm(design, stage.rows.count, stage.groups, geometry.sizes, spending):
            further = Geometry(instrument_sizes(design, sizes), sizes)
            return replace(stage, rows=stage.rows.with_design(design), geometry=further, gram=FOLLOWED, same=False)
    return None


def clip_around(beta: Floats, residuals: Residuals, design: Design, whitening: Whitening | None) -> ResidualClip:
    """The clip of residuals around released coefficients."""
    weight = residuals.intercept_weight if whitening is None else 0.0
    return ResidualClip(beta, residuals.limit, weight, 4.0 * design.response.peak, whitening)


def plan_meat_clip(
    study: Study,
    groups: Groups,
    rows: LinkedRows,
    residuals: Residuals,
    clip: ResidualClip,
    spending: Spending,
    wider: float,
) -> MeatClip | None:
    """Whose contributions to the equation are squared, and how far they are cut; None where the residuals' size has to do."""
    weights, size = residuals.meat_weights(rows.design.intercept), residuals.counted * residuals.spread(groups.accuracy)
    together, least = _squared_together(study, rows, spending), rows.least_norm(clip, weights)
    if together is not None:
        unit = max(math.sqrt(weights.size) * size, 2.0 * least)
        if together == "cluster":
            norms = long_ladder(unit, math.sqrt(rows.count) / 4.0)
        else:
            norms = ladder(unit, float(rows.exposure.persons))
        private = rows.contribution_sizes(clip, MeatClip(together, weights, float(norms[-1])), norms)
        norm = choose_total_norm(weights.size, *release_contribution_sizes(private, spending), private, spending)
        if norm is None and together == "cluster":
            norm = float(norms[-1])  # nothing is cut, and noise tells how little is known
        if norm is not None:
            return MeatClip(together, weights, norm)
    route = _route(rows, spending)
    norm = wider * route.clip * size
    norm = norm if route.name == "block" else max(norm, least)
    return None if route is SCALE_ALONE else MeatClip(route.name, weights, norm)


def _residual_variance(
    study: Study, groups: Groups, rows: LinkedRows, spending: Spending, private: ClippedResiduals, residuals: Residuals
) -> NoisyVariance:
    """The variance of the second stage's equation."""
    p, clip = len(rows.design.names), private.meat_clip
    spread = residuals.spread(groups.accuracy)
    weights = residuals.meat_weights(rows.design.intercept)
    route, noise = SCALE_ALONE.name, 0.0
    meat = groups.squares * spread**2 * np.eye(p)
    if clip is not None:
        route = clip.route
        meat, noise = release_residual_meat(private, spending)
    if route == "cluster" and noise > _TELLING * np.trace(meat) / p:
        meat = meat + 2.0 * noise * np.eye(p)
    return NoisyVariance(
        route,
        meat,
        weights,
        noise,
        spread,
        accuracy_variance(study.linkage.public, rows.blocks),
        link_dependence(study.linkage, route, rows.blocks),
        repeated=repeated_rows(study.linkage, study.unit, route),
    )


def _release_goodness(
    study: Study, stage: SecondStage, spending: Spending, estimate: Estimate, sums: ReleasedSums, residuals: Residuals
) -> Goodness:
    """Squares of residuals around the coefficients and around the mean, for R² and the residual standard deviation."""
    rows, groups, first = stage.rows, stage.groups, int(stage.rows.design.intercept)
    counted = stage.present.is_incomplete or study.counts_unevenly
    weight = groups.contrast * groups.total / (1.0 if counted else groups.present)
    means = sums.matrix[0, 1:] / sums.matrix[0, 0] if first else np.zeros(estimate.beta.size)
    level = np.zeros_like(estimate.beta)
    level[:first] = estimate.beta[:first] + means @ estimate.beta[first:]
    explained = max(stage.explained, float((estimate.beta[first:] ** 2) @ stage.geometry.sizes**2))
    unit = squared_residuals_sensitivity(1.0, rows.exposure) / spending.share(0.4 * GOODNESS)
    clip = choose_square_clip(unit, weight, study.errors)
    right, whole = residuals.deviation**2, residuals.deviation**2 + explained
    repeated = float(study.unit.rows)

    def draw(beta: Floats, variance: float, wrong: float) -> SumOfSquares:
        private = rows.squared_residuals(beta, clip * math.sqrt(variance))
        total, noise, squares, squares_noise = release_squared_residuals(private, spending)
        normal = normal_spread(groups.squares, groups.contrast, groups.accuracy, variance, wrong, private.limit)
        spread = spread_of_squares(total, squares, squares_noise, groups.present * rows.count, normal)
        return SumOfSquares(total, noise, repeated * spread)

    error, around_mean = draw(estimate.beta, right, right + 2.0 * explained), draw(level, whole, whole)
    found = max(0.0, error.total / weight)
    moments = np.diag(np.concatenate([np.ones(first), stage.geometry.sizes**2]))
    moments[:first, first:], moments[first:, :first] = means[None, :] * first, means[:, None] * first
    off = float(np.trace(estimate.covariance @ moments)) + estimate.beta.size * found / rows.count
    shared = repeated * min(error.variance / repeated, 2.0 * groups.squares * (groups.contrast * found) ** 2)
    blurred = stage.present.noise / stage.present.complete if counted else 0.0
    return Goodness(error, around_mean, shared, weight, blurred, weight * max(0.0, off))
