"""How each method goes from linked rows to a release: what is released, in which order, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import CalibrationError
from dplinked.estimate.coefficients import Estimate, solve_sums
from dplinked.estimate.centring import centred_core
from dplinked.estimate.descent import descent_sums, solve_descent
from dplinked.estimate.paper import (
    declared_gram,
    is_usable,
    last_iterate,
    paper_variance,
    positive,
    solve_paper_sums,
    split_paper_errors,
)
from dplinked.estimate.variance import (
    MOMENTS,
    ErrorParts,
    NoisyVariance,
    accuracy_variance,
    explained_variance,
    link_dependence,
    split_errors,
)
from dplinked.estimate.intervals import noise_covariance
from dplinked.estimate.second_stage import (
    CLEAR,
    INTERCEPT_WEIGHT,
    WIDE,
    Residuals,
    Step,
    clipped_square,
    column_sizes,
    combine_steps,
    derivative,
    expect_residuals,
    right_deviation,
    told_gram,
)
from dplinked.linkage import Exact, PrivacyUnit
from dplinked.plan.expected import better_instrument
from dplinked.privacy.calibration import noise_multiplier, privacy_mu
from dplinked.privacy.quantities.descent import release_descent
from dplinked.privacy.quantities.instrument import (
    ReleasedSums,
    entry_noise,
    plan_sums,
    pool_by_precision,
    pool_sums,
    release_curvature,
    release_sums,
)
from dplinked.privacy.quantities.meat import SCALE_ALONE, choose_route, release_meat
from dplinked.privacy.quantities.paper import (
    PaperMoments,
    paper_constants,
    release_paper_descent,
    release_paper_moments,
    release_paper_sums,
)
from dplinked.privacy.quantities.ranges import BINS, plan_ranges, release_ranges
from dplinked.privacy.quantities.residual_scale import (
    plan_residual_scale,
    release_residual_scale,
    release_residual_size,
    residual_edges,
)
from dplinked.privacy.quantities.right_residuals import (
    release_residual_meat,
    release_right_residuals,
    right_residuals_sensitivity,
)
from dplinked.privacy.spending import (
    CLIPPING,
    CURVATURE,
    FIRST_STAGE,
    FIRST_STEP,
    GRAM,
    MEAT,
    RANGES,
    RESIDUAL_SCALE,
    VARIANCE,
    Spending,
)
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal, instrument_squares, public_steps
from dplinked.study.study import Study
from dplinked.sums.linked_rows import ClippedResiduals, LinkedRows
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import MeatClip, Predictor, ResidualClip

Floats = NDArray[np.float64]

EXACT = Exact().exposure(PrivacyUnit())  # rows by themselves, without their links

_MOST_OF_IT = 0.999  # share of μ that a paper's algorithm may use for itself if intervals are asked for


@dataclass(frozen=True)
class Method:
    """One way to a release.

    Attributes
    ----------
    rule
        The rule that turns (ε, δ) into noise; see :func:`~dplinked.privacy.calibration.noise_multiplier`.
    prepare
        The design it needs, made from the study's.
    run
        From the study, linked rows and the budget to a release.
    """

    rule: str
    prepare: Callable[[Design], Design]
    run: Callable[[Study, LinkedRows, Spending], Release]

    def mu(self, study: Study) -> float:
        """μ that a release of this study spends."""
        if self.rule == "analytic":
            return privacy_mu(study.epsilon, study.delta)
        own = paper_mu(study)
        if study.method == "ngd" and study.intervals:
            whole = privacy_mu(study.epsilon, study.delta)
            if own > _MOST_OF_IT * whole:
                raise CalibrationError(
                    "Algorithm 1's own noise leaves nothing of this epsilon and delta for intervals. Fit with intervals=False, or with a smaller epsilon."
                )
            return min(whole, math.hypot(own, whole * math.sqrt(CURVATURE)))
        return own


def paper_mu(study: Study) -> float:
    """μ of a paper's algorithm itself: one over the noise multiplier of its rule."""
    return 1.0 / noise_multiplier(study.epsilon, study.delta, method_of(study).rule)


def method_of(study: Study) -> Method:
    """The way that a study declares."""
    return METHODS[study.method, study.calibration]


# --- tightly calibrated --------------------------------------------------------------------------------


def fit_sums(study: Study, rows: LinkedRows, spending: Spending) -> Release:
    """Sufficient statistics of the bounded instrument, and then a second stage on residuals where it pays (the default)."""
    rows = rows.with_design(aim_instrument(study, rows, spending))
    private, intercept = rows.instrument_sums(), rows.design.intercept
    start = None
    if may_take_second_stage(study, rows, spending):
        start = release_sums(private, spending, intervals=study.intervals, share=FIRST_STAGE)
        second = expect_second_stage(study, rows, spending, start)
        if second is not None:
            return fit_residuals(study, rows, spending, start, second)
    rest = spending.unspent(VARIANCE if study.intervals else 0.0)
    sums = release_sums(private, spending, intervals=study.intervals)
    if start is not None:
        sums = pool_sums(start, sums, FIRST_STAGE / (FIRST_STAGE + rest))
    estimate = solve_sums(sums, intercept=intercept, prior_scale=_prior_scale(rows.design), ridge=study.ridge)
    variance = release_variance(study, rows, spending, sums, estimate.beta)
    errors = split_errors(rows.design, study.linkage, rows.count, estimate, sums, variance)
    return build_release(study, rows.design, rows.count, spending, estimate, errors, sums=sums)


def aim_instrument(study: Study, rows: LinkedRows, spending: Spending) -> Design:
    """The design whose instrument is aimed at declared or privately found middles, if that is expected to pay."""
    design, keep = rows.design, VARIANCE if study.intervals else 0.0
    if study.ranges == "private":
        design = search_ranges(rows, spending)
    if design.half_widths is None:
        return design
    unaimed = replace(study, typical={}).prepare()[0]
    return better_instrument(design, unaimed, rows.exposure, rows.count, spending.rest(keep))


# --- the second stage ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SecondStage:
    """What the second stage starts from, public by then.

    Attributes
    ----------
    beta
        Released coefficients (p).
    rows
        The rows, with the instrument of the second stage.
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
    """

    beta: Floats
    rows: LinkedRows
    sizes: Floats
    explained: float
    residuals: Residuals
    bent: float
    gram: float
    same: bool


def may_take_second_stage(study: Study, rows: LinkedRows, spending: Spending) -> bool:
    """Whether the data, the linkage and the budget allow a second stage, from public values."""
    if study.ridge is not None or rows.read_once or not rows.design.columns:
        return False
    if not rows.exposure.symmetric and unlinking_terms(rows.exposure.accuracy_min) is None:
        return False
    level = _level_of_right_links(study)
    return plan_residual_scale(rows.exposure, rows.count, spending.share(CLIPPING), level) is not None


def expect_second_stage(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums
) -> SecondStage | None:
    """Measure the residuals around the first stage's coefficients; None if a second stage is not expected to be more precise."""
    design, accuracy = rows.design, study.linkage.public.mean_accuracy
    estimate = solve_sums(start, intercept=design.intercept, prior_scale=_prior_scale(design))
    beta = estimate.beta
    sizes = column_sizes(design, start, column_spread(design), accuracy)
    explained = max(0.0, explained_variance(design, start, beta, accuracy, rows.count))
    wide = rows.with_design(widen_instrument(design, sizes))
    same = design.half_widths is None and wide.design.half_widths is None and rows.exposure.symmetric
    gram, bend = choose_gram_share(spending, start, wide.design, same, sizes, accuracy, rows.count)
    share = spending.unspent(keep=_kept_for_meat(study) + 2.0 * CLIPPING + gram)
    residuals = measure_residuals(study, wide, spending, beta, explained, sizes, share)
    left = float(np.trace(estimate.covariance[int(design.intercept) :, int(design.intercept) :]))
    stage = SecondStage(beta, wide, sizes, explained, residuals, bend**2 * left, gram, same)
    return stage if _pays(study, rows, spending, start, stage, share) else None


def widen_instrument(design: Design, sizes: Floats) -> Design:
    """The design of the second stage, whose instruments follow their columns as far as WIDE times their size."""
    wide = design.with_instrument((WIDE * sizes).tolist())
    numeric = [group.start for group in design.groups if group.numeric]
    assert wide.half_widths is not None
    if all(wide.half_widths[k] == design.columns[k].peak for k in numeric):
        return replace(design, half_widths=None)
    return wide


def measure_residuals(
    study: Study,
    rows: LinkedRows,
    spending: Spending,
    beta: Floats,
    explained: float,
    sizes: Floats,
    share: float,
) -> Residuals:
    """Measure residuals around released coefficients, and choose how far the equation clips them; it will get a `share` of the budget."""
    design, exposure, accuracy = rows.design, rows.exposure, study.linkage.public.mean_accuracy
    around = Predictor(beta, np.zeros(len(design.columns)), 1.0)
    counts = rows.residual_counts(around, residual_edges(design.response.peak))
    size, level = release_residual_size(counts, spending, CLIPPING, _level_of_right_links(study))
    deviation = right_deviation(size, level, accuracy, explained)
    unit = right_residuals_sensitivity(1.0, exposure) / spending.share(share)
    largest = 4.0 * design.response.peak
    return expect_residuals(
        deviation, explained, _instrument_sizes(design, sizes), design.intercept, unit, rows.count, largest
    )


def _instrument_sizes(design: Design, sizes: Floats) -> Floats:
    """Root mean square of each instrument (d)."""
    if design.half_widths is None:
        return sizes
    numeric = np.zeros(sizes.size, bool)
    for group in design.groups:
        numeric[group.start : group.stop] = group.numeric
    return np.where(numeric, sizes / np.array(design.half_widths), sizes)


def _level_of_right_links(study: Study) -> float:
    """The share of all rows below the size that is looked for: nearly all right links, and few wrong ones."""
    accuracy = study.linkage.public.mean_accuracy
    return 0.97 * accuracy + 0.3 * (1.0 - accuracy)


def _kept_for_meat(study: Study) -> float:
    return MEAT if study.intervals else 0.0


def _pays(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums, stage: SecondStage, share: float
) -> bool:
    """Whether the second stage's slopes are expected to have smaller errors than those of the first, released again for the rest of the budget."""
    design, n, first = rows.design, rows.count, int(rows.design.intercept)
    accuracy, residuals, wide = study.linkage.public.mean_accuracy, stage.residuals, stage.rows.design
    deviation, explained = residuals.deviation, stage.explained
    again = math.sqrt(FIRST_STAGE / (FIRST_STAGE + spending.unspent(VARIANCE if study.intervals else 0.0)))
    noise = np.diag(noise_covariance(start, stage.beta))[first:] * again**2
    plain = design.half_widths is None
    signal = stage.sizes**2 if plain else instrument_signal(design)
    squares = stage.sizes**2 if plain else instrument_squares(design)
    spread = n * squares * (deviation**2 + (1.0 - accuracy**2) * explained)
    one = np.sqrt(noise + spread) / (accuracy * n * signal)
    ratios = _instrument_sizes(wide, stage.sizes)
    limit = residuals.limit
    drawn = right_residuals_sensitivity(limit, rows.exposure) / spending.share(share)
    width = residuals.clip * deviation
    wrong = clipped_square(width, math.sqrt(deviation**2 + 2.0 * explained))
    met = n * ratios**2 * (accuracy * clipped_square(width, deviation) + (1.0 - accuracy) * wrong)
    bent = stage.bent * (_contrast(study, rows) * residuals.kept[2]) ** 2
    two = np.sqrt(drawn**2 + met + bent) / (_contrast(study, rows) * residuals.kept[2] * n * ratios * stage.sizes)
    return bool(np.log(two).mean() < np.log(one).mean())


def _contrast(study: Study, rows: LinkedRows) -> float:
    """Mean of γ - o, what right links have over others; the mean accuracy where blocks are not public. An explicit Q is unlinked whole."""
    if not rows.exposure.symmetric:
        return 1.0
    return study.linkage.public.mean_accuracy if rows.blocks is None else rows.blocks.contrast


def fit_residuals(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums, stage: SecondStage
) -> Release:
    """Two steps on the clipped residual equation of right links, around the coefficients of the first stage."""
    wide, intercept, contrast = stage.rows, rows.design.intercept, _contrast(study, rows)
    gram = release_curvature(wide.own_gram(), spending, intervals=study.intervals, share=stage.gram)
    if stage.same:
        gram = pool_by_precision(gram, told_gram(start, study.linkage.public.mean_accuracy, intercept))
    rest = spending.unspent(keep=_kept_for_meat(study) + CLIPPING)
    residuals, beta, steps = stage.residuals, stage.beta, list[Step]()
    for part in (FIRST_STEP * rest, (1.0 - FIRST_STEP) * rest):
        if steps:
            residuals = measure_residuals(study, wide, spending, beta, stage.explained, stage.sizes, part)
        slope = derivative(gram, residuals, contrast, intercept)
        clip = ResidualClip(beta, residuals.limit, INTERCEPT_WEIGHT * intercept, 4.0 * wide.design.response.peak)
        meat = plan_meat_clip(study, wide, residuals, spending) if steps and study.intervals else None
        private = wide.right_residuals(clip, meat)
        vector, scale = release_right_residuals(private, spending, spending.take(part))
        steps.append(Step(beta, vector, scale, residuals.kept[2]))
        sums = combine_steps(steps, slope)
        estimate = solve_descent(sums, intercept, _prior_scale(wide.design))
        beta = estimate.beta
    variance = None if not study.intervals else _residual_variance(study, wide, spending, private, residuals)
    errors = split_errors(wide.design, study.linkage, rows.count, estimate, sums, variance)
    return build_release(study, wide.design, rows.count, spending, estimate, errors, sums=sums)


def choose_gram_share(
    spending: Spending, start: ReleasedSums, wide: Design, same: bool, sizes: Floats, accuracy: float, count: int
) -> tuple[float, float]:
    """Share of the budget for the equation's slope, and the noise that it will have in an entry.

    It is as large as the weakest direction of the first stage's matrix asks for to stand clear of the noise. Where both stages have the same
    instrument, that matrix tells of the slope as well.
    """
    first, d = int(wide.intercept), len(wide.columns)
    core = centred_core(start.matrix, wide.intercept)
    strength = np.linalg.svd(core, compute_uv=False)
    signal = count * float((sizes * _instrument_sizes(wide, sizes)).mean())
    weakest = signal * float(strength[-1] / max(strength.mean(), 1e-300))
    told = float(np.sqrt((start.matrix_scale[first:, first:] ** 2).mean())) / accuracy if same else math.inf
    share = GRAM[0]
    while True:
        plan = plan_sums(wide, EXACT, count, spending.share(share), matrix_only=True)
        noise = 1.0 / math.hypot(1.0 / entry_noise(plan).core, 1.0 / told)
        if share >= GRAM[1] or weakest >= CLEAR * noise * math.sqrt(2.0 * d):
            return share, noise
        share = min(GRAM[1], share + 0.05)


def fit_descent(study: Study, rows: LinkedRows, spending: Spending) -> Release:
    """Noisy gradient descent on (H, b) with h = x, finished by solving for what few steps leave to go.

    H is released too. The steps' noisy gradients tell b around the iterates, ``b̃ = mean(H̃β_t - g̃_t)``, in which H̃'s noise counts only for
    the distance left to go.
    """
    design, descent = rows.design, study.descent or Descent()
    private = rows.instrument_sums()
    steps = public_steps(study.prepare()[0], study.linkage.public.mean_accuracy, descent)
    start = descent.first_iterate(design.scaling)
    path = release_descent(private, spending, descent, steps, start, intervals=study.intervals)
    sums = descent_sums(path, release_curvature(private, spending, intervals=study.intervals))
    estimate = solve_descent(sums, design.intercept, _prior_scale(design))
    variance = release_variance(study, rows, spending, sums, estimate.beta)
    errors = split_errors(design, study.linkage, rows.count, estimate, sums, variance)
    return build_release(study, design, rows.count, spending, estimate, errors, sums=sums, descent=path)


def search_ranges(rows: LinkedRows, spending: Spending) -> Design:
    """Aim the instrument at privately found middles; the design as it is where a search could only mislead."""
    numeric = [group.start for group in rows.design.groups if group.numeric]
    if plan_ranges(len(numeric), rows.count, spending.share(RANGES)) is None:
        return rows.design
    middles = {}
    for k, (low, high) in zip(numeric, release_ranges(rows.column_counts(BINS), spending), strict=True):
        start, stop = rows.design.columns[k].interval
        middles[k] = (start + low * (stop - start), start + high * (stop - start))
    return rows.design.centred(middles)


def release_variance(
    study: Study, rows: LinkedRows, spending: Spending, sums: ReleasedSums, beta: Floats
) -> NoisyVariance | None:
    """Release the variance around the released coefficients: first the residual scale, then the meat clipped by it."""
    if not study.intervals:
        return None
    design, exposure, count = rows.design, rows.exposure, rows.count
    p, R = len(design.names), design.response.peak
    predictor = _predictor(study, design, sums, beta, count)
    blocks = rows.blocks
    residual, route = R / 2.0, SCALE_ALONE
    if plan_residual_scale(exposure, count, spending.share(RESIDUAL_SCALE)) is not None:
        residual = release_residual_scale(rows.residual_counts(predictor, residual_edges(R)), spending)
        route = choose_route(p, exposure, None if blocks is None else blocks.largest, count, spending.share(MEAT))
    weights = _instrument_weights(design, sums, predictor.accuracy, count)
    if route is SCALE_ALONE:
        meat, noise = count * residual**2 * np.eye(p), 0.0
    else:
        meat, noise = release_meat(rows.meat(route.name, predictor, weights, route.clip * residual), spending)
    return NoisyVariance(
        route.name,
        meat,
        weights,
        noise,
        residual,
        accuracy_variance(study.linkage.public, blocks),
        link_dependence(study.linkage, route.name, blocks),
    )


def plan_meat_clip(study: Study, rows: LinkedRows, residuals: Residuals, spending: Spending) -> MeatClip | None:
    """Whose contributions to the equation are squared, and how far they are cut; None where the residuals' size has to do."""
    p, blocks = len(rows.design.names), rows.blocks
    route = choose_route(p, rows.exposure, None if blocks is None else blocks.largest, rows.count, spending.share(MEAT))
    if route is SCALE_ALONE:
        return None
    sizes = residuals.sizes
    weights = 1.0 / np.concatenate([np.ones(int(rows.design.intercept)), sizes])
    return MeatClip(route.name, weights, route.clip * residuals.spread(study.linkage.public.mean_accuracy))


def _residual_variance(
    study: Study, rows: LinkedRows, spending: Spending, private: ClippedResiduals, residuals: Residuals
) -> NoisyVariance:
    """The variance of the second stage's equation."""
    p, clip = len(rows.design.names), private.meat_clip
    spread = residuals.spread(study.linkage.public.mean_accuracy)
    weights = 1.0 / np.concatenate([np.ones(int(rows.design.intercept)), residuals.sizes])
    route, noise = SCALE_ALONE.name, 0.0
    meat = rows.count * spread**2 * np.eye(p)
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


def _predictor(study: Study, design: Design, sums: ReleasedSums, beta: Floats, count: int) -> Predictor:
    """What residuals are taken around: released coefficients, released means of the regressors, declared accuracy."""
    mean = np.zeros(beta.size)
    if design.intercept:
        mean = np.clip(sums.matrix[0, 1:] / count, -design.radius, design.radius)
    return Predictor(beta, mean, study.linkage.public.mean_accuracy)


def _instrument_weights(design: Design, sums: ReleasedSums, accuracy: float, count: int) -> Floats:
    """Weights that bring instruments to mean square one, from public and released values (p)."""
    first, squares = int(design.intercept), instrument_squares(design)
    if sums.symmetric:  # h = x: the released matrix tells its mean squares
        found = np.diag(sums.matrix)[first:] / (count * accuracy)
        squares = np.clip(found, squares / 100.0, squares * 3.0)
    return np.asarray(1.0 / np.sqrt(np.concatenate([np.ones(first), squares])), np.float64)


def _prior_scale(design: Design) -> float:
    return 1.0 / max(1, len(design.columns))


# --- as published --------------------------------------------------------------------------------------


def fit_paper_sums(study: Study, rows: LinkedRows, spending: Spending) -> Release:
    """Algorithm 2 of [LPK24] with Theorem 4.1's noise, with declared constants and no redraw.

    For intervals z'z is released too, within the noise that Theorem 4.1 asks for anyhow.
    """
    design, (c, R) = rows.design, paper_constants(study, rows.design)
    moments = release_paper_sums(rows.paper_sums(c, R), spending, squares=study.intervals)
    estimate, shrunken = solve_paper_sums(moments.sums, (R / c) ** 2, study.ridge)
    errors = _paper_errors(study, rows, moments, estimate, shrunken.beta, R)
    beside = None if is_usable(moments.sums, study.ridge or 0.0) else shrunken
    return build_release(
        study,
        design,
        rows.count,
        spending,
        estimate,
        errors,
        sums=moments.sums,
        squares=moments.squares,
        shrunken=beside,
    )


def fit_paper_descent(study: Study, rows: LinkedRows, spending: Spending) -> Release:
    """Algorithm 1 of [LPK24] with Theorem 4.1's noise and declared constants.

    For intervals W'W and z'z are released too, within the (ε, δ) that Algorithm 1's calibration leaves unused; its own noise stays the same.
    """
    design, (c, R), count = rows.design, paper_constants(study, rows.design), rows.count
    descent = (study.descent or Descent()).settled(len(design.names), count)
    steps, start = public_steps(design, 1.0, descent), descent.first_iterate(design.scaling)
    private = rows.paper_sums(c, R)
    own = (paper_mu(study) / spending.mu) ** 2
    path = release_paper_descent(private, spending, descent, steps, start, keep=1.0 - own if study.intervals else 0.0)
    if not study.intervals:
        estimate = last_iterate(path, declared_gram(path, count), count)
        errors = _paper_errors(study, rows, None, estimate, estimate.beta, R)
        return build_release(study, design, count, spending, estimate, errors, descent=path)
    found = release_paper_moments(private, spending)
    moments = replace(found, sums=descent_sums(path, found.sums))
    estimate = last_iterate(path, positive(moments.sums.matrix), count)
    errors = _paper_errors(study, rows, moments, estimate, estimate.beta, R)
    return build_release(
        study, design, count, spending, estimate, errors, sums=moments.sums, descent=path, squares=moments.squares
    )


def _paper_errors(
    study: Study, rows: LinkedRows, moments: PaperMoments | None, estimate: Estimate, beta: Floats, R: float
) -> ErrorParts:
    """What the coefficients' errors are made of: privacy noise alone where no moments were released for intervals."""
    if moments is None or moments.squares is None:
        return ErrorParts(np.diag(estimate.covariance))
    dependence = link_dependence(study.linkage, MOMENTS, rows.blocks)
    variance = paper_variance(moments, beta, rows.count, R, study.linkage, dependence, rows.design.intercept)
    return split_paper_errors(estimate, variance, accuracy_variance(study.linkage.public, rows.blocks))


def _without_instrument(design: Design) -> Design:
    return replace(design, half_widths=None)


METHODS = {
    ("ssp", "tight"): Method("analytic", lambda design: design, fit_sums),
    ("ngd", "tight"): Method("analytic", _without_instrument, fit_descent),
    ("ssp", "paper"): Method("classic", Design.unscaled, fit_paper_sums),
    ("ngd", "paper"): Method("paper-zcdp", Design.unscaled, fit_paper_descent),
}
