"""The steps on the clipped residual equation, and the release that they end in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.descent import solve_descent
from dplinked.estimate.residuals import Step, combine_steps, derivative
from dplinked.estimate.variance import split_errors
from dplinked.estimate.whitening import Geometry, coefficient_sums, estimate_coefficients, whiten_coefficients
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.right_residuals import release_right_residuals
from dplinked.privacy.spending import CLIPPING, FIRST_STEP, FOLLOWED, TAILS, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.second_stage.clips import clip_around, expect_clip, measure_deviation
from dplinked.second_stage.meat import kept_for_meat, plan_meat_clip, release_goodness, residual_variance
from dplinked.second_stage.slope import release_slope
from dplinked.second_stage.stage import SecondStage
from dplinked.second_stage.start import prior_scale
from dplinked.second_stage.tails import follow_tails, look_for_tails
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows

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

    The equation's slope is released first, unless it was `released` before.
    """
    wide, groups, intercept = stage.rows, stage.groups, rows.design.intercept
    gram, geometry = released or release_slope(study, rows, spending, start, stage)
    whitening = geometry.whitening
    residuals, estimate, steps, wider = stage.residuals, stage.estimate, list[Step](), 1.0
    deviation = residuals.deviation
    after = 0.0 if stage.near else CLIPPING + TAILS * stage.far
    rest = spending.unspent(keep=kept_for_meat(study, wide, spending) + after)
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
        variance = replace(residual_variance(study, groups, wide, spending, private, residuals), basis=sums.basis)
    wrong = residuals.wrong_share(groups.accuracy)
    errors = split_errors(wide.design, groups, estimate, sums, variance, wrong)
    goodness = release_goodness(study, stage, spending, estimate, sums, residuals) if study.goodness else None
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
