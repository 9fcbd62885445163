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
    derivative,
    expect_residuals,
    instrument_sizes,
    level_of_right_links,
    right_deviation,
    told_gram,
    widen_instrument,
)
from dplinked.estimate.variance import (
    NoisyVariance,
    accuracy_variance,
    explained_variance,
    link_dependence,
    split_errors,
)
from dplinked.linkage import EXACT
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
    right_residuals_sensitivity,
)
from dplinked.privacy.spending import CLIPPING, FIRST_STEP, GRAM, MEAT, VARIANCE, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal, instrument_squares
from dplinked.study.study import Study
from dplinked.sums.linked_rows import ClippedResiduals, LinkedRows
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import MeatClip, Predictor, ResidualClip

Floats = NDArray[np.float64]

_AFTER_ONE_STEP = 0.15  # share of the squared way that is left after the first step
_NEAR = (
    6.0,
    0.02,
    0.01,
)  # least clip in deviations, most of their variance by a wrong start, most of the equation's by a wrong slope: one step does
_LEAST_CONTRAST = 0.1  # mean of γ - o above which missing cells are reason enough for a second stage
_FAR = 3.0  # errors of the first stage's slopes by which a step may lead away from them
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
    sizes
        Root mean square of each column (d).
    explained
        Variance of the response that the coefficients explain.
    residuals
        What is expected of residuals around them.
    bent
        Expected variance in the equation by noise of its slope.
    gram
        Share of the budget for that slope.
    same
        Whether both stages have the regressors themselves as instruments.
    near
        Whether one step does. Where hardly any residual is clipped, the equation is a line whose slope is released, and a second step from
        elsewhere would tell the same.
    present
        Share of rows that are complete, where others are dropped.
    """

    estimate: Estimate
    rows: LinkedRows
    groups: Groups
    sizes: Floats
    explained: float
    residuals: Residuals
    bent: float
    gram: float
    same: bool
    near: bool
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
    design, accuracy = rows.design, groups.accuracy
    estimate = solve_sums(start, intercept=design.intercept, prior_scale=prior_scale(design))
    beta = estimate.beta
    sizes = column_sizes(design, start, column_spread(design), accuracy, groups.total)
    explained = max(0.0, explained_variance(design, start, beta, accuracy, groups.total))
    noise = right_residuals_sensitivity(1.0, rows.exposure) / spending.share(0.5)
    wide = rows.with_design(widen_instrument(design, sizes, choose_width(noise, groups.squares)))
    if study.drops_missing:
        wide = wide.without_missing()
    same = design.half_widths is None and wide.design.half_widths is None and rows.exposure.symmetric
    same = same and not wide.dropped  # the first stage's rows are filled
    gram, bend = choose_gram_share(spending, start, wide, same, sizes, groups)
    share = spending.unspent(keep=_kept_for_meat(study, rows, spending) + 2.0 * CLIPPING + gram)
    residuals, present = measure_residuals(study, groups, wide, spending, estimate, explained, sizes, share)
    groups = replace(groups, present=present.complete)
    left = np.diag(estimate.covariance)[int(design.intercept) :]
    bent = bend**2 * float(left.sum())
    near = not present.is_incomplete and _is_near(groups, residuals, float(sizes**2 @ left), bent)
    bent *= 1.0 if near else _AFTER_ONE_STEP
    stage = SecondStage(estimate, wide, groups, sizes, explained, residuals, bent, gram, same, near, present)
    filled = present.is_incomplete and groups.contrast > _LEAST_CONTRAST
    return stage if filled or _pays(study, rows, spending, start, stage, share, first) else None


def _is_near(groups: Groups, residuals: Residuals, off: float, bent: float) -> bool:
    """Whether one step does, from what noise of the start adds to the variance of residuals (`off`) and noise of the slope to that of the equation."""
    clip, start, slope = _NEAR
    met = groups.squares * (float(residuals.sizes.min()) * residuals.spread(groups.accuracy)) ** 2
    return residuals.clip >= clip and off <= start * residuals.deviation**2 and bent <= slope * met


def measure_residuals(
    study: Study,
    groups: Groups,
    rows: LinkedRows,
    spending: Spending,
    estimate: Estimate,
    explained: float,
    sizes: Floats,
    share: float,
    present: Present | None = None,
) -> tuple[Residuals, Present]:
    """Measure residuals around released coefficients, and choose how far the equation clips them; it will get a `share` of the budget.

    The first time, which rows are there is measured too (`present`), and rows will be summed by themselves next.
    """
    design, exposure, accuracy = rows.design, rows.exposure, groups.plain_accuracy
    around = Predictor(estimate.beta, np.zeros(len(design.columns)), 1.0)
    counts = rows.residual_counts(around, residual_edges(design.response.peak), ahead=present is None)
    size, level, present = release_residual_size(counts, spending, CLIPPING, level_of_right_links(accuracy), present)
    deviation = right_deviation(size, level, accuracy, explained)
    unit = right_residuals_sensitivity(1.0, exposure) / spending.share(share)
    largest = 4.0 * design.response.peak
    ratios, first = instrument_sizes(design, sizes), int(design.intercept)
    closest = closest_clip(deviation, estimate.covariance[first:, first:], sizes)
    residuals = expect_residuals(
        deviation, explained, ratios, design.intercept, unit, groups.squares, largest, study.errors, closest
    )
    return residuals, present


def _kept_for_meat(study: Study, rows: LinkedRows, spending: Spending) -> float:
    """Share of the budget for the variance that intervals need; 0 where the residuals' size has to do, which public values decide."""
    return MEAT if study.intervals and _route(rows, spending) is not SCALE_ALONE else 0.0


def _route(rows: LinkedRows, spending: Spending) -> MeatRoute:
    """Whose contributions to the equation are squared."""
    largest = None if rows.blocks is None else rows.blocks.largest
    return choose_route(len(rows.design.names), rows.exposure, largest, rows.count, spending.share(MEAT))


def _pays(
    study: Study,
    rows: LinkedRows,
    spending: Spending,
    start: ReleasedSums,
    stage: SecondStage,
    share: float,
    begun: float,
) -> bool:
    """Whether the second stage's slopes are expected to have smaller errors than those of the first, released again for the rest of the budget."""
    design, groups, first = rows.design, stage.groups, int(rows.design.intercept)
    residuals, wide, accuracy = stage.residuals, stage.rows.design, groups.accuracy
    again = math.sqrt(begun / (begun + spending.unspent(VARIANCE if study.intervals else 0.0)))
    noise = np.diag(noise_covariance(start, stage.estimate.beta))[first:] * again**2
    plain = design.half_widths is None
    signal = stage.sizes**2 if plain else instrument_signal(design)
    squares = stage.sizes**2 if plain else instrument_squares(design)
    spread = groups.squares * squares * (residuals.deviation**2 + (1.0 - accuracy**2) * stage.explained)
    one = np.sqrt(noise + spread) / (accuracy * groups.total * signal)
    ratios = instrument_sizes(wide, stage.sizes)
    drawn = right_residuals_sensitivity(residuals.limit, rows.exposure) / spending.share(share)
    met = groups.squares * (ratios * residuals.spread(accuracy)) ** 2
    kept = groups.contrast * residuals.kept[2]
    two = np.sqrt(drawn**2 + met + stage.bent * kept**2) / (kept * groups.total * ratios * stage.sizes)
    return bool(np.log(two).mean() < np.log(one).mean() + _AS_GOOD)


def _contrast(study: Study, rows: LinkedRows) -> float:
    """Mean of γ - o, what right links have over others; the mean accuracy where blocks are not public. An explicit Q is unlinked whole."""
    if not rows.exposure.symmetric:
        return 1.0
    return study.linkage.public.mean_accuracy if rows.blocks is None else rows.blocks.contrast


def fit_residuals(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums, stage: SecondStage
) -> Release:
    """Two steps on the clipped residual equation of right links, around the coefficients of the first stage; one where these are near."""
    wide, groups, intercept = stage.rows, stage.groups, rows.design.intercept
    gram = release_slope(study, rows, spending, start, stage)
    rest = spending.unspent(keep=_kept_for_meat(study, wide, spending) + (0.0 if stage.near else CLIPPING))
    residuals, estimate, steps = stage.residuals, stage.estimate, list[Step]()
    parts = [rest] if stage.near else [FIRST_STEP * rest, (1.0 - FIRST_STEP) * rest]
    for place, part in enumerate(parts):
        if place:
            residuals, _ = measure_residuals(
                study, groups, wide, spending, estimate, stage.explained, stage.sizes, part, stage.present
            )
        slope = derivative(gram, residuals, intercept)
        beta = estimate.beta
        clip = ResidualClip(beta, residuals.limit, residuals.intercept_weight, 4.0 * wide.design.response.peak)
        is_last = place + 1 == len(parts)
        meat = plan_meat_clip(groups, wide, residuals, spending) if is_last and study.intervals else None
        private = wide.right_residuals(clip, meat)
        vector, scale = release_right_residuals(private, spending, spending.take(part))
        steps.append(Step(beta, vector, scale, residuals.kept[2]))
        sums = combine_steps(steps, slope)
        before, estimate = estimate, solve_descent(sums, intercept, prior_scale(wide.design))
        if wide.dropped and not is_last and _began_far(stage, before, estimate):
            steps.clear()
    mixing = groups.accuracy * residuals.wrong / (groups.contrast * residuals.kept[2])
    sums = replace(sums, mixing=min(1.0, mixing))
    variance = None if not study.intervals else _residual_variance(study, groups, wide, spending, private, residuals)
    share = residuals.wrong_share(groups.accuracy)
    errors = split_errors(wide.design, groups, estimate, sums, variance, share)
    return build_release(study, wide.design, rows.count, spending, estimate, errors, sums=sums)


def _began_far(stage: SecondStage, before: Estimate, after: Estimate) -> bool:
    """Whether the first step led further than the errors of its start explain: filled cells bent the start, and the step tells little of where it ends."""
    groups, residuals, first = stage.groups, stage.residuals, len(before.beta) - stage.sizes.size
    spread = math.sqrt(groups.squares) * residuals.spread(groups.accuracy)
    sampling = spread / (groups.contrast * residuals.kept[2] * groups.total * stage.sizes)
    way = np.abs(after.beta - before.beta)[first:]
    noise = np.sqrt(np.diag(before.covariance) + np.diag(after.covariance))[first:]
    return bool(np.any(way > _FAR * np.hypot(noise, sampling)))


def release_slope(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums, stage: SecondStage
) -> ReleasedSums:
    """The equation's slope before clipping, ``Σ (γ-o)(1, h)(1, x)'`` of rows by themselves, together with what the first stage tells of it."""
    groups = stage.groups
    gram = release_curvature(stage.rows.own_gram(), spending, intervals=study.intervals, share=stage.gram)
    if rows.blocks is None:  # then rows were not weighed by their blocks
        gram = replace(gram, matrix=gram.matrix * groups.contrast, matrix_scale=gram.matrix_scale * groups.contrast)
    if rows.design.intercept and stage.rows.dropped:
        most = groups.contrast * groups.total / stage.present.complete  # what all rows have together
        gram.matrix[0, 0] = np.clip(gram.matrix[0, 0], most / 20.0, most)
    if not stage.same:
        return gram
    return pool_by_precision(gram, told_gram(start, groups.accuracy, groups.contrast, rows.design.intercept))


def choose_gram_share(
    spending: Spending, start: ReleasedSums, rows: LinkedRows, same: bool, sizes: Floats, groups: Groups
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
    share, clear = GRAM[0], CLEAR * math.sqrt(2.0 * (max(d, FEW) if rows.dropped else d))
    while True:
        plan = plan_sums(wide, EXACT, rows.count, spending.share(share), matrix_only=True, dropped=dropped)
        noise = 1.0 / math.hypot(1.0 / entry_noise(plan).core, 1.0 / told)
        if share >= GRAM[1] or weakest >= clear * noise:
            return share, noise
        share = min(GRAM[1], share + 0.05)


def plan_meat_clip(groups: Groups, rows: LinkedRows, residuals: Residuals, spending: Spending) -> MeatClip | None:
    """Whose contributions to the equation are squared, and how far they are cut; None where the residuals' size has to do."""
    route = _route(rows, spending)
    if route is SCALE_ALONE:
        return None
    weights = residuals.meat_weights(rows.design.intercept)
    return MeatClip(route.name, weights, route.clip * residuals.spread(groups.accuracy))


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
    return NoisyVariance(
        route,
        meat,
        weights,
        noise,
        spread,
        accuracy_variance(study.linkage.public, rows.blocks),
        link_dependence(study.linkage, route, rows.blocks),
    )
