"""Whether a second stage pays, and how it is expected to go: by columns, or by whitened rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.coefficients import Estimate, solve_sums
from dplinked.estimate.groups import Groups
from dplinked.estimate.intervals import noise_covariance
from dplinked.estimate.residuals import (
    INTERCEPT_WEIGHT,
    Residuals,
    choose_width,
    column_sizes,
    counted_sizes,
    instrument_sizes,
    is_worth_a_look,
    level_of_right_links,
    widen_instrument,
    wider_width,
)
from dplinked.estimate.tails import far_columns
from dplinked.estimate.variance import explained_variance
from dplinked.estimate.whitening import (
    Geometry,
    first_moments,
    has_rare_levels,
    invert_moments,
    rounds_needed,
    spectral_noise,
    whiten,
)
from dplinked.privacy.quantities.instrument import ReleasedSums, entry_noise, plan_sums
from dplinked.privacy.quantities.residual_scale import Present, plan_residual_scale
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity
from dplinked.privacy.quantities.whitened_gram import whitened_gram_sensitivity
from dplinked.privacy.spending import CLIPPING, GRAM, ROUNDS, SIDES, STRATA, TAILS, VARIANCE, WHITENED, Spending
from dplinked.second_stage.clips import expect_clip, measure_deviation
from dplinked.second_stage.meat import kept_for_meat
from dplinked.second_stage.slope import choose_gram_share, cut_whitened, is_calm
from dplinked.second_stage.stage import LEAST_CLIP, MOST_BENT, MOST_OFF, SecondStage
from dplinked.second_stage.start import measure_weights, one_stage_design, prior_scale, told_length
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal, instrument_squares
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.partners import unlinking_terms

Floats = NDArray[np.float64]

_AFTER_ONE_STEP = 0.15  # share of the squared way that is left after the first step
_LEAST_CONTRAST = 0.1  # mean of γ - o above which missing cells are reason enough for a second stage
_CALM_ENOUGH = 0.1  # spectral noise of a whitened slope, relative to it, above which it gets more of the budget
_HANGING = 0.2  # mean logarithm of what correlations multiply variances of slopes by, above which rows may be whitened
_WORTH = 0.1  # how much smaller errors of slopes must be, relative to them, for rows to be whitened
_LEAST_LEFT = 4.0  # times what a look at both sides costs: least share for the steps where there is one
_AS_GOOD = 0.02  # how much larger an error, relative to it, is taken for the same
# The same of the second stage, beside one: its line is closer to that of least squares, and where the first stage's noise was bad, it looks worse than it is (residuals are larger around a bad line), and one
# stage, whose sums have that noise in them, looks better.
_BETTER_THAN_IT_LOOKS = 0.1


def may_take_second_stage(study: Study, rows: LinkedRows, groups: Groups, spending: Spending) -> bool:
    """Whether the data, the linkage and the budget allow a second stage, from public values."""
    if study.ridge is not None or rows.read_once or not rows.design.columns:
        return False
    if not rows.exposure.symmetric and unlinking_terms(rows.exposure.accuracy_min) is None:
        return False
    if (
        groups.contrast <= 0.0
    ):  # links that are no better than chance: nothing of right ones can be told from the others
        return False
    mu, level, counted = spending.share(CLIPPING), level_of_right_links(groups.plain_accuracy), study.drops_missing
    return plan_residual_scale(rows.exposure, rows.count, mu, level, counted=counted) is not None


def expect_second_stage(
    study: Study, rows: LinkedRows, groups: Groups, spending: Spending, start: ReleasedSums
) -> SecondStage | None:
    """Measure the residuals around the first stage's coefficients; None if a second stage is not expected to be more precise."""
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
    return stage if bent or _pays(stage, expectation.one_stage(sizes)) else None


def expect_by_columns(
    study: Study,
    rows: LinkedRows,
    groups: Groups,
    spending: Spending,
    start: ReleasedSums,
    slope: Spending,
    least: float,
) -> SecondStage:
    """Measure the residuals around the first stage's coefficients, for a second stage by columns, which looks for no tails and at no sides; the equation's slope gets `least` of the purse `slope`, or more."""
    expectation, wide, sizes = _measure(study, rows, groups, spending, start)
    return replace(expectation.by_columns(wide, sizes, slope, least), far=False, looks=False)


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
    wide = measure_weights(wide, spending)
    design = replace(design, counting=wide.design.counting)
    rows = rows.with_design(design)
    moments, scale = first_moments(design, start, accuracy, groups.total)
    counted = counted_sizes(design, present.complete)
    groups = replace(groups, present=present.complete, mean=counted.mean, square=counted.square)
    inverse = invert_moments(moments, scale, design.intercept, sizes)
    known = _Expectation(study, rows, groups, spending, start, estimate, explained, deviation, inverse, present)
    return known, wide, sizes


def _follow(rows: LinkedRows, groups: Groups, spending: Spending, sizes: Floats, width: float) -> Design:
    """The design of the second stage, whose instruments follow their columns by a width, or by a wider one if the equation's slope stays clear of its noise."""
    further = widen_instrument(rows.design, sizes, wider_width(width))
    calm = is_calm(further, rows.count, groups, sizes, spending)
    return further if calm else widen_instrument(rows.design, sizes, width)


def _hang_together(inverse: Floats, sizes: Floats) -> bool:
    """Whether columns of these sizes hang together, by what that adds to the variances of their slopes; `inverse` is that of their second moments (d×d)."""
    return bool(np.log(np.diag(inverse) * sizes**2).mean() > _HANGING)


def _choose(by_columns: SecondStage, whitened: SecondStage) -> SecondStage:
    """Whitened rows, if slopes are expected to have errors that are enough smaller, and none a larger one; what they cost is a pass of their own."""
    ratios = np.log(whitened.errors / by_columns.errors)
    return whitened if ratios.mean() < -_WORTH and ratios.max() < _AS_GOOD else by_columns


def _pays(stage: SecondStage, one: Floats) -> bool:
    """Whether the second stage's slopes are expected to have smaller errors than those of the first, released again for the rest of the budget (d)."""
    return bool(np.log(stage.errors).mean() < np.log(one).mean() + _BETTER_THAN_IT_LOOKS)


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
        """The stage, and in the place of errors the noise of its equation, if noise of the slope adds the variance `bent` to it and clips stay wide."""
        study, groups, spending = self.study, self.groups, self.spending
        far = study.errors != "symmetric" and bool(far_columns(rows.design, geometry.sizes).any())
        share = spending.unspent(keep=kept_for_meat(study, self.rows, spending) + CLIPPING + gram + TAILS * far)
        unit = right_residuals_sensitivity(1.0, rows.exposure)

        def clip(share: float, errors: str) -> tuple[Residuals, float]:
            known = study, groups, spending, self.estimate, self.explained, self.deviation
            return expect_clip(*known, rows, geometry, share, errors=errors), unit / spending.share(share)

        residuals, noise = clip(share, study.errors)
        looks = study.errors == "any" and share > _LEAST_LEFT * SIDES
        if looks:
            close, after = clip(share - SIDES, "alike")
            looks = is_worth_a_look(residuals, close, groups.accuracy, groups.squares, (noise, after))
        near = _is_near(groups, residuals, float(np.trace(geometry.way(self._left))), bent)
        near = near and not (far or looks) and rows.exposure.levels == 1  # all levels take the same steps
        elsewhere = self.present.is_incomplete or rows.design.counting is not None
        bent *= 1.0 if near else _AFTER_ONE_STEP
        met = math.sqrt((noise * residuals.limit) ** 2 + bent * (groups.contrast * residuals.kept[2]) ** 2)
        return SecondStage(
            estimate=self.estimate,
            rows=rows,
            groups=groups,
            geometry=geometry,
            explained=self.explained,
            residuals=residuals,
            gram=gram,
            same=same,
            near=near,
            bent=elsewhere,
            far=far,
            looks=looks,
            errors=np.full(geometry.ratios.size, met),
            present=self.present,
        )

    def _errors(self, noise: Floats, spread: float, residuals: Residuals) -> Floats:
        """Errors of slopes, if noise has these variances in the columns' equations (d), and `spread` along whitened directions."""
        groups = self.groups
        met = spread + groups.squares * residuals.spread(groups.accuracy) ** 2
        variance = self.inverse**2 @ noise + met * np.diag(self.inverse)
        return np.sqrt(variance) / (groups.contrast * residuals.kept[2] * groups.total)

    def one_stage(self, sizes: Floats) -> Floats:
        """Errors of one stage's slopes, if its sums are released for the rest of the budget: again, where they are the first stage's."""
        design, groups, first = one_stage_design(self.rows.design), self.groups, int(self.rows.design.intercept)
        stratified = self.study.strata is not None and self.rows.exposure.symmetric
        keep = VARIANCE + STRATA * stratified if self.study.intervals else 0.0
        rest, rows, intervals, slopes = self.spending.rest(keep), self.rows, self.study.intervals, None
        plain = design.half_widths is None
        signal = sizes**2 if plain else instrument_signal(design)
        squares = sizes**2 if plain else instrument_squares(design)
        factors = (sizes**2 / signal) ** 2
        if design is rows.design:
            slopes = told_length(rows, self.start, rest, intervals=intervals)
        entries = entry_noise(plan_sums(design, rows.exposure, rows.count, rest, intervals=intervals, slopes=slopes))
        length = float((self.estimate.beta[first:] ** 2 + self.estimate.plain_error[first:] ** 2).sum())
        noise = np.full(sizes.size, entries.response**2 + entries.core**2 * length)
        if design is rows.design:
            before = np.diag(noise_covariance(self.start, self.estimate.beta))[first:]
            noise = factors / (1.0 / noise + 1.0 / before)
        met = groups.squares * (self.deviation**2 + (1.0 - groups.accuracy**2) * self.explained)
        variance = self.inverse**2 @ noise + met * squares / sizes**2 * factors * np.diag(self.inverse)
        return np.asarray(np.sqrt(variance) / (groups.accuracy * groups.total), np.float64)


def _is_near(groups: Groups, residuals: Residuals, off: float, bent: float) -> bool:
    """Whether one step does, from what noise of the start adds to the variance of residuals (`off`) and noise of the slope to that of the equation."""
    met = groups.squares * (float(residuals.sizes.min()) * residuals.spread(groups.accuracy)) ** 2
    return residuals.clip >= LEAST_CLIP and off <= MOST_OFF * residuals.deviation**2 and bent <= MOST_BENT * met
