"""The steps on the clipped residual equation, and the release that they end in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.descent import solve_descent
from dplinked.estimate.residuals import Residuals, Step, combine_steps, derivative, most_changed
from dplinked.estimate.variance import split_errors
from dplinked.estimate.whitening import Geometry, coefficient_sums, estimate_coefficients, whiten_coefficients
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.right_residuals import release_right_residuals
from dplinked.privacy.spending import CLIPPING, FIRST_STEP, FOLLOWED, SIDES, TAILS, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.second_stage.clips import clip_around, expect_clip, measure_deviation
from dplinked.second_stage.meat import (
    centres_rows,
    kept_for_meat,
    plan_meat_clip,
    release_centres,
    release_goodness,
    residual_variance,
    squared_together,
)
from dplinked.second_stage.sides import are_alike
from dplinked.second_stage.slope import release_slope
from dplinked.second_stage.stage import MOST_BENT, MOST_OFF, SecondStage
from dplinked.second_stage.start import prior_scale
from dplinked.second_stage.tails import follow_tails, look_for_tails
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.clipped import ClippedResiduals
from dplinked.sums.linked_rows import LinkedRows

Floats = NDArray[np.float64]

_ALIKE = 0.25  # of the residuals' variance: what a way may add to it for their size to be taken for known
_FAR = 3.0  # errors by which the first step may lead away from the first stage's slopes


def fit_residuals(
    study: Study,
    rows: LinkedRows,
    spending: Spending,
    start: ReleasedSums,
    stage: SecondStage,
    released: tuple[ReleasedSums, Geometry] | None = None,
) -> Release:
    """Two steps on the clipped residual equation of right links, around the coefficients of the first stage; one where these are near.

    The equation's slope is released first, unless it was `released` before. Where a bent start may be near, the first step tells: if it is, the same equation is released again for the rest of the
    budget, in the place of one around other coefficients. If it is not, but not far either, residuals are not measured again.
    """
    wide, groups, intercept = stage.rows, stage.groups, rows.design.intercept
    gram, geometry = released or release_slope(study, rows, spending, start, stage)
    whitening = geometry.whitening
    residuals, estimate, steps, wider = stage.residuals, stage.estimate, list[Step](), 1.0
    deviation = residuals.deviation
    at_once, may_end = stage.near and not stage.bent, stage.near and _may_end(study, wide, spending)
    after = 0.0 if at_once else CLIPPING + TAILS * stage.far
    rest = spending.unspent(keep=kept_for_meat(study, wide, spending) + after)
    parts, is_known = [rest] if at_once else [FIRST_STEP * rest, (1.0 - FIRST_STEP) * rest], False
    for place, part in enumerate(parts):
        if is_known:
            part = spending.unspent(keep=kept_for_meat(study, wide, spending))
        elif place:
            deviation, _ = measure_deviation(groups, wide, spending, estimate, stage.explained, stage.present)
        choose = partial(expect_clip, study, groups, spending, estimate, stage.explained, deviation)
        if not place and (stage.far or stage.looks):
            residuals = choose(wide, geometry, rest, errors="alike" if stage.looks else None)
        if place:
            residuals = choose(wide, geometry, part)
        if place and stage.far:
            wider, part = look_for_tails(stage, geometry, estimate, residuals, spending, part)
            if wider > 1.0:
                steps.clear()
                if (followed := follow_tails(stage, geometry, spending, part)) is not None:
                    stage, part = followed, part - FOLLOWED
                    (gram, geometry), wide = release_slope(study, rows, spending, start, stage), stage.rows
                residuals = choose(wide, geometry, part, wider)
        if place and stage.looks and wider == 1.0:
            part -= SIDES
            near = choose(wide, geometry, part, errors="near")
            alike = are_alike(stage, geometry, gram, estimate, residuals, near, spending)
            residuals = choose(wide, geometry, part, errors="alike" if alike else None)
            if not alike:
                steps.clear()
        slope, beta = derivative(gram, residuals, intercept), estimate.beta
        clip = clip_around(beta, residuals, wide.design, whitening)
        is_last = place + 1 == len(parts)
        meat, strata = None, None
        if study.intervals and (is_last or may_end):
            strata = release_centres(study, groups, wide, residuals, clip, spending)
            centres = None if strata is None else strata.centres
            meat = plan_meat_clip(study, groups, wide, residuals, clip, spending, wider, centres)
        private = wide.right_residuals(clip, meat)
        steps.append(_take_step(private, spending, part, _turned(beta, geometry), residuals))
        sums = combine_steps(steps, slope)
        before, estimate = estimate, _solve(wide.design, sums, geometry)
        if may_end and not is_last and began_near(stage, geometry, residuals, sums, before, estimate):
            again = spending.unspent(keep=kept_for_meat(study, wide, spending))
            steps.append(_take_step(private, spending, again, steps[0].centre, residuals))
            sums = combine_steps(steps, slope)
            estimate = _solve(wide.design, sums, geometry)
            break
        is_known = may_end and most_changed(estimate.beta - before.beta, geometry.sizes) ** 2 <= _ALIKE * deviation**2
        if wide.dropped and not is_last and _began_far(stage, before, estimate):
            steps.clear()
    mixing = groups.accuracy * residuals.wrong / (groups.contrast * residuals.kept[2])
    sums = replace(sums, mixing=min(1.0, mixing))
    sums = sums if whitening is None else coefficient_sums(sums, whitening.matrix)
    variance = None
    if study.intervals:
        variance = residual_variance(study, groups, wide, spending, private, residuals, strata)
        variance = replace(variance, basis=sums.basis)
    wrong = residuals.wrong_share(groups.accuracy)
    errors = split_errors(wide.design, groups, estimate, sums, variance, wrong)
    goodness = release_goodness(study, stage, spending, estimate, sums, residuals) if study.goodness else None
    present = (rows.count * stage.present.drawn, rows.count * stage.present.noise) if study.where else None
    return build_release(
        study, wide.design, rows.count, spending, estimate, errors, sums=sums, counted=present, goodness=goodness
    )


def _may_end(study: Study, rows: LinkedRows, spending: Spending) -> bool:
    """Whether the first step may be the last one: the squares of its contributions are then the variance. Totals take a share of the budget to find how far they are cut, and strata for their means, which is not spent twice."""
    if not study.intervals:
        return True
    return squared_together(study, rows, spending) is None and not centres_rows(study, rows, spending)


def _take_step(
    private: ClippedResiduals, spending: Spending, share: float, centre: Floats, residuals: Residuals
) -> Step:
    """Release the equation around a centre for a share of the budget."""
    vector, scale = release_right_residuals(private, spending, spending.take(share))
    return Step(centre, vector, scale, residuals.kept[2])


def _turned(beta: Floats, geometry: Geometry) -> Floats:
    """Coefficients in the coordinates of the equation."""
    return beta if geometry.whitening is None else whiten_coefficients(beta, geometry.whitening.matrix)


def began_near(
    stage: SecondStage, geometry: Geometry, residuals: Residuals, sums: ReleasedSums, before: Estimate, after: Estimate
) -> bool:
    """Whether the first step led so little away that a second one would tell the same.

    Along its way residuals must change little beside their deviation, and the noise of the slope must be little beside the equation's own deviation.
    """
    groups, first = stage.groups, before.beta.size - geometry.sizes.size
    off = most_changed(after.beta - before.beta, geometry.sizes)
    turned = _turned(after.beta, geometry) - sums.centre
    bent = sums.matrix_scale**2 @ turned**2
    met = groups.squares * (residuals.spread(groups.accuracy) / residuals.meat_weights(bool(first))) ** 2
    return bool(off**2 <= MOST_OFF * residuals.deviation**2 and np.all(bent <= MOST_BENT * met))


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
