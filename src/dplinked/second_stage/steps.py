"""The steps on the clipped residual equation, and the release that they end in."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    budget, in the place of one around other coefficients.
    """
    gram, geometry = released or release_slope(study, rows, spending, start, stage)
    walk = _Walk(study, rows, spending, start, stage, gram, geometry, stage.residuals, stage.estimate)
    if stage.near and not stage.bent:
        walk.take(walk.left(), last=True)
    else:
        rest = walk.left(CLIPPING + TAILS * stage.far)
        if stage.far or stage.looks:
            walk.residuals = walk.choose(rest, errors="alike" if stage.looks else None)
        walk.take(FIRST_STEP * rest, last=False)
        if walk.began_near():
            walk.repeat()
        else:
            walk.take(walk.look_around((1.0 - FIRST_STEP) * rest), last=True)
    return _end(walk)


@dataclass(eq=False)
class _Walk:
    """The way to the coefficients, and what is known on it, all of it public or released by then but for the last private sums.

    Attributes
    ----------
    stage, gram, geometry
        The second stage, the equation's slope before clipping, and how its instruments are scaled.
    residuals, estimate
        What is expected of residuals, and the coefficients that they are taken around next.
    before
        The coefficients of the step before.
    steps, sums, private, strata
        The steps that count so far and the linear system that they make; the latest one's private sums, and the strata that their squares are around.
    may_end
        Whether the first step may be the last one.
    """

    study: Study
    rows: LinkedRows
    spending: Spending
    start: ReleasedSums
    stage: SecondStage
    gram: ReleasedSums
    geometry: Geometry
    residuals: Residuals
    estimate: Estimate

    def __post_init__(self) -> None:
        self.before, self.deviation, self.steps = self.estimate, self.residuals.deviation, list[Step]()
        self._wider = 1.0  # times as far out as otherwise the last step clips
        self.may_end = self.stage.near and _may_end(self.study, self.wide, self.spending)

    @property
    def wide(self) -> LinkedRows:
        """The rows with the instruments of the second stage."""
        return self.stage.rows

    def left(self, after: float = 0.0) -> float:
        """Share of the budget that is left for steps, when what intervals need and what comes `after` is kept."""
        return self.spending.unspent(keep=kept_for_meat(self.study, self.wide, self.spending) + after)

    def choose(self, share: float, wider: float = 1.0, errors: str | None = None) -> Residuals:
        """How far a step that gets a `share` of the budget clips residuals."""
        known = self.study, self.stage.groups, self.spending, self.estimate, self.stage.explained, self.deviation
        return expect_clip(*known, self.wide, self.geometry, share, wider, errors)

    def take(self, share: float, *, last: bool) -> None:
        """Release the equation around the present coefficients for a `share` of the budget; its contributions are squared on the way where this may be the `last` step."""
        study, groups, wide, beta = self.study, self.stage.groups, self.wide, self.estimate.beta
        clip = clip_around(beta, self.residuals, wide.design, self.geometry.whitening)
        meat, self.strata = None, None
        if study.intervals and (last or self.may_end):
            self.strata = release_centres(study, groups, wide, self.residuals, clip, self.spending)
            centres = None if self.strata is None else self.strata.centres
            meat = plan_meat_clip(study, groups, wide, self.residuals, clip, self.spending, self._wider, centres)
        self.private = wide.right_residuals(clip, meat)
        self._release(share, _turned(beta, self.geometry))

    def repeat(self) -> None:
        """Release the same private equation once more, for all that is left."""
        self._release(self.left(), self.steps[0].centre)

    def _release(self, share: float, centre: Floats) -> None:
        """Release the private equation around a centre, and solve what all steps tell."""
        self.steps.append(_take_step(self.private, self.spending, share, centre, self.residuals))
        slope = derivative(self.gram, self.residuals, self.rows.design.intercept)
        self.sums = combine_steps(self.steps, slope)
        self.before, self.estimate = self.estimate, _solve(self.wide.design, self.sums, self.geometry)

    def began_near(self) -> bool:
        """Whether the first step shows that it may be the last."""
        return self.may_end and began_near(
            self.stage, self.geometry, self.residuals, self.sums, self.before, self.estimate
        )

    def look_around(self, share: float) -> float:
        """Measure residuals around the first step's coefficients, and choose how far the last one clips. Returns its share of the budget, of which looks take some.

        If the first step led not near, but not far either, residuals are not measured again. It is forgotten where it tells another line than the last one will.
        """
        stage, way = self.stage, self.estimate.beta - self.before.beta
        known = self.may_end and most_changed(way, self.geometry.sizes) ** 2 <= _ALIKE * self.deviation**2
        if self.wide.dropped and _began_far(stage, self.before, self.estimate):
            self.steps.clear()
        if known:
            share = self.left()
        else:
            measured = stage.groups, self.wide, self.spending, self.estimate, stage.explained, stage.present
            self.deviation, _ = measure_deviation(*measured)
        self.residuals = self.choose(share)
        if stage.far:
            share = self._look_for_tails(share)
        return self._look_at_sides(share) if stage.looks and self._wider == 1.0 else share

    def _look_for_tails(self, share: float) -> float:
        """Follow tails, if there are any; what that leaves of the last step's share."""
        self._wider, share = look_for_tails(
            self.stage, self.geometry, self.estimate, self.residuals, self.spending, share
        )
        if self._wider > 1.0:
            self.steps.clear()
            if (followed := follow_tails(self.stage, self.geometry, self.spending, share)) is not None:
                self.stage, share = followed, share - FOLLOWED
                released = release_slope(self.study, self.rows, self.spending, self.start, followed)
                self.gram, self.geometry = released
            self.residuals = self.choose(share, self._wider)
        return share

    def _look_at_sides(self, share: float) -> float:
        """Clip closer, if residuals are alike on both sides of the line; what that look leaves of the last step's share."""
        share -= SIDES
        near = self.choose(share, errors="near")
        known = self.stage, self.geometry, self.gram, self.estimate
        alike = are_alike(*known, self.residuals, near, self.spending)
        self.residuals = self.choose(share, errors="alike" if alike else None)
        if not alike:
            self.steps.clear()
        return share


def _end(walk: _Walk) -> Release:
    """The release at the end of the way: its variance, its errors and how well it fits."""
    study, rows, spending, stage = walk.study, walk.rows, walk.spending, walk.stage
    groups, wide, residuals, estimate, sums = stage.groups, stage.rows, walk.residuals, walk.estimate, walk.sums
    mixing = groups.accuracy * residuals.wrong / (groups.contrast * residuals.kept[2])
    sums, whitening = replace(sums, mixing=min(1.0, mixing)), walk.geometry.whitening
    sums = sums if whitening is None else coefficient_sums(sums, whitening.matrix)
    variance = None
    if study.intervals:
        variance = residual_variance(study, groups, wide, spending, walk.private, residuals, walk.strata)
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
