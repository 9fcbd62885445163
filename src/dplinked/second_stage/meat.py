"""The variance of the equation, and how well the line fits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.goodness import Goodness, SumOfSquares, choose_square_clip, normal_spread, spread_of_squares
from dplinked.estimate.groups import Groups
from dplinked.estimate.residuals import Residuals
from dplinked.estimate.variance import NoisyVariance, accuracy_variance, link_dependence, repeated_rows
from dplinked.privacy.quantities.contribution_sizes import (
    choose_total_norm,
    is_hopeless,
    ladder,
    long_ladder,
    release_contribution_sizes,
)
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.meat import SCALE_ALONE, MeatRoute, choose_route
from dplinked.privacy.quantities.right_residuals import release_residual_meat
from dplinked.privacy.quantities.squared_residuals import release_squared_residuals, squared_residuals_sensitivity
from dplinked.privacy.quantities.stratum_totals import FOR_MEANS, ReleasedStrata, release_strata
from dplinked.privacy.spending import GOODNESS, MEAT, STRATA, TOTALS_MEAT, TOTALS_SIZES, Spending
from dplinked.second_stage.stage import SecondStage
from dplinked.study.study import Study
from dplinked.sums.clipped import ClippedResiduals
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.types import Centres, MeatClip, ResidualClip

Floats = NDArray[np.float64]

_TELLING = 0.25  # noise of a meat of clusters, relative to it, above which twice the noise is added, so that intervals are too long rather than too short


def kept_for_meat(study: Study, rows: LinkedRows, spending: Spending) -> float:
    """Share of the budget for the variance that intervals need; 0 where the residuals' size has to do, which public values decide."""
    if not study.intervals:
        return 0.0
    paid = (GOODNESS if study.goodness else 0.0) + (STRATA if centres_rows(study, rows, spending) else 0.0)
    if squared_together(study, rows, spending) is not None:
        return paid + TOTALS_SIZES + TOTALS_MEAT
    return paid + (MEAT if meat_route(study, rows, spending) is not SCALE_ALONE else 0.0)


def centres_rows(study: Study, rows: LinkedRows, spending: Spending) -> bool:
    """Whether squares are taken around the means of strata: if there are strata, and squares do not drown in noise. Public values decide."""
    squared = study.cluster is not None or meat_route(study, rows, spending) is not SCALE_ALONE
    return study.strata is not None and squared


def squared_together(study: Study, rows: LinkedRows, spending: Spending) -> str | None:
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


def meat_route(study: Study, rows: LinkedRows, spending: Spending) -> MeatRoute:
    """Whose contributions to the equation are squared. Blocks are not: their rows may be of several strata."""
    largest, mu, p = None if rows.blocks is None else rows.blocks.largest, spending.share(MEAT), len(rows.design.names)
    return choose_route(p, rows.exposure, largest, rows.count, mu, centred=study.strata is not None)


def plan_meat_clip(
    study: Study,
    groups: Groups,
    rows: LinkedRows,
    residuals: Residuals,
    clip: ResidualClip,
    spending: Spending,
    wider: float,
    centres: Centres | None = None,
) -> MeatClip | None:
    """Whose contributions to the equation are squared, around which centres, and how far they are cut; None where the residuals' size has to do."""
    weights, size = residuals.meat_weights(rows.design.intercept), residuals.counted * residuals.spread(groups.accuracy)
    together, least = squared_together(study, rows, spending), rows.least_norm(clip, weights)
    if together is not None:
        unit = max(math.sqrt(weights.size) * size, 2.0 * least)
        if together == "cluster":
            norms = long_ladder(unit, math.sqrt(rows.count) / 4.0)
        else:
            norms = ladder(unit, float(rows.exposure.persons))
        private = rows.contribution_sizes(clip, MeatClip(together, weights, float(norms[-1]), centres), norms)
        norm = choose_total_norm(weights.size, *release_contribution_sizes(private, spending), private, spending)
        if norm is None and together == "cluster":
            norm = float(norms[-1])  # nothing is cut, and noise tells how little is known
        if norm is not None:
            return MeatClip(together, weights, norm, centres)
    route = meat_route(study, rows, spending)
    norm = wider * route.clip * size
    norm = norm if route.name == "block" else max(norm, least)
    return None if route is SCALE_ALONE else MeatClip(route.name, weights, norm, centres)


def release_centres(
    study: Study, groups: Groups, rows: LinkedRows, residuals: Residuals, clip: ResidualClip, spending: Spending
) -> ReleasedStrata | None:
    """What contributions are taken around, if there are strata. Means need no far tails: residuals are clipped to a few deviations at rows of usual size, and the intercept's entry gets as much noise as others."""
    if not centres_rows(study, rows, spending):
        return None
    weights, size = residuals.meat_weights(rows.design.intercept), residuals.counted * residuals.spread(groups.accuracy)
    usual = 1.0 / weights
    if clip.intercept_weight > 0.0:
        usual[0] = float(np.sqrt((usual[1:] ** 2).mean()))
        clip = replace(clip, intercept_weight=float(usual[0]))
    clip = replace(clip, limit=min(clip.limit, FOR_MEANS * size * float(np.linalg.norm(usual))))
    private = rows.stratum_totals(clip, clustered=study.cluster is not None)
    return release_strata(private, weights, spending)


def residual_variance(
    study: Study,
    groups: Groups,
    rows: LinkedRows,
    spending: Spending,
    private: ClippedResiduals,
    residuals: Residuals,
    strata: ReleasedStrata | None,
) -> NoisyVariance:
    """The variance of the second stage's equation, within strata if there are some."""
    p, clip = len(rows.design.names), private.meat_clip
    spread = residuals.spread(groups.accuracy)
    weights = residuals.meat_weights(rows.design.intercept)
    route, noise = SCALE_ALONE.name, 0.0
    meat = groups.squares * spread**2 * np.eye(p)
    if clip is not None:
        route = clip.route
        meat, noise = release_residual_meat(private, spending)
    within = 1.0
    if strata is not None:
        meat, within = strata.within(meat)
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
        within=within,
    )


def release_goodness(
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
