"""How each method goes from linked rows to a release: what is released, in which order, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import CalibrationError, StudyError
from dplinked.estimate.coefficients import Estimate, solve_sums
from dplinked.estimate.descent import descent_sums, solve_descent
from dplinked.estimate.groups import Groups
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
    link_dependence,
    repeated_rows,
    split_errors,
)
from dplinked.outcomes import check_outcome, fit_curve
from dplinked.plan.expected import better_instrument, first_share
from dplinked.privacy.calibration import noise_multiplier, privacy_mu
from dplinked.privacy.quantities.descent import release_descent
from dplinked.privacy.quantities.instrument import ReleasedSums, pool_sums, release_curvature, release_sums
from dplinked.privacy.quantities.meat import SCALE_ALONE, choose_route, release_meat
from dplinked.privacy.quantities.paper import (
    PaperMoments,
    paper_constants,
    release_paper_descent,
    release_paper_moments,
    release_paper_sums,
)
from dplinked.privacy.quantities.ranges import BINS, plan_ranges, release_ranges
from dplinked.privacy.quantities.residual_scale import plan_residual_scale, release_residual_scale, residual_edges
from dplinked.privacy.quantities.stratum_totals import FOR_MEANS, release_strata
from dplinked.privacy.spending import CURVATURE, MEAT, RANGES, RESIDUAL_SCALE, STRATA, VARIANCE, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.second_stage.expectation import expect_second_stage, may_take_second_stage
from dplinked.second_stage.start import all_rows, one_stage_design, prior_scale, told_length, weigh_groups
from dplinked.second_stage.steps import fit_residuals
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.instrument import instrument_squares, public_steps
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.types import Predictor

Floats = NDArray[np.float64]

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
    check
        Refuses rows that it cannot be run on, from public values alone.
    """

    rule: str
    prepare: Callable[[Design], Design]
    run: Callable[[Study, LinkedRows, Spending], Release]
    check: Callable[[Study, LinkedRows], None] = lambda study, rows: None

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


def spending_of(study: Study) -> Spending:
    """The purse of a release, whose noise is planned for changes of one row.

    A person of L rows takes L such steps from a file to its neighbour: one row's regressors and one response at a time, links and blocks as they are. Whatever was released before, each value
    moves by no more than its sensitivity at each step, so by L times that in all. Noise for μ/L then makes the release μ-GDP for the person.
    """
    return Spending(method_of(study).mu(study) / study.unit.rows)


def method_of(study: Study) -> Method:
    """The way that a study declares."""
    return METHODS[study.method, study.calibration] if study.family == "linear" else OUTCOMES


# --- tightly calibrated --------------------------------------------------------------------------------


def fit_sums(study: Study, rows: LinkedRows, spending: Spending) -> Release:
    """Sufficient statistics of the bounded instrument, and then a second stage on residuals where it pays (the default)."""
    rows = rows.with_design(aim_instrument(study, rows, spending))
    rows, groups = weigh_groups(study, rows, spending)
    private, intercept = rows.instrument_sums(), rows.design.intercept
    start, slopes = None, None
    if may_take_second_stage(study, rows, groups, spending):
        first = first_share(rows.design, rows.exposure, rows.count, spending.mu)
        start = release_sums(private, spending, intervals=study.intervals, share=first)
        stage = expect_second_stage(study, rows, groups, spending, start)
        if stage is not None:
            return fit_residuals(study, rows, spending, start, stage)
    assert not study.needs_second_stage, "one stage counts all rows the same, and squares no clusters"
    kept, last = kept_for_variance(study, rows), rows.design
    if start is not None and (last := one_stage_design(rows.design)) is not rows.design:
        rows = rows.with_design(last)
        private, start = rows.instrument_sums(), None
    if start is not None:
        slopes = told_length(rows, start, spending.rest(kept), intervals=study.intervals)
    sums = release_sums(private, spending, intervals=study.intervals, keep=kept, slopes=slopes)
    if start is not None:
        sums = pool_sums(start, sums)
    estimate = solve_sums(sums, intercept=intercept, prior_scale=prior_scale(rows.design), ridge=study.ridge)
    variance = release_variance(study, rows, groups, spending, sums, estimate.beta)
    errors = split_errors(rows.design, groups, estimate, sums, variance)
    return build_release(study, rows.design, rows.count, spending, estimate, errors, sums=sums)


def check_counting(study: Study, rows: LinkedRows) -> None:
    """Refuse weights, conditions and clusters where there cannot be a second stage, from public values."""
    if not study.needs_second_stage:
        return
    spending = spending_of(study)
    weighed, groups = weigh_groups(study, rows, spending)
    if not may_take_second_stage(study, weighed, groups, spending):
        raise StudyError(
            "Weights, conditions, clusters and goodness need a second stage, for which there are too few rows, too small a budget, no regressor, links of too small an accuracy, or rows that "
            "come as a stream and are read once. Take a larger epsilon or another source, or leave out weights, where, cluster and goodness."
        )


def fit_outcome(study: Study, rows: LinkedRows, spending: Spending) -> Release:
    """Events and counts: a logistic or Poisson regression."""
    if study.searches_ranges:
        rows = rows.with_design(search_ranges(rows, spending))
    return fit_curve(study, *weigh_groups(study, rows, spending), spending)


def aim_instrument(study: Study, rows: LinkedRows, spending: Spending, part: float = 1.0) -> Design:
    """The design whose instrument is aimed at declared or privately found middles, if that is expected to pay; a `part` of the usual share is spent on finding them."""
    design, keep = rows.design, VARIANCE if study.intervals else 0.0
    if study.searches_ranges and not rows.read_once:
        design = search_ranges(rows, spending, part * RANGES)
    if design.half_widths is None:
        return design
    if study.drops_missing:
        design = design.fill_middles(study.fill)
    unaimed = replace(study, typical={}).prepare()[0]
    chosen = better_instrument(design, unaimed, rows.exposure, rows.count, spending.rest(keep))
    return replace(chosen, fill=design.fill)


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
    estimate = solve_descent(sums, design.intercept, prior_scale(design))
    groups = all_rows(study, rows)
    variance = release_variance(study, rows, groups, spending, sums, estimate.beta)
    errors = split_errors(design, groups, estimate, sums, variance)
    return build_release(study, design, rows.count, spending, estimate, errors, sums=sums, descent=path)


def search_ranges(rows: LinkedRows, spending: Spending, share: float = RANGES) -> Design:
    """Aim the instrument at privately found middles; the design as it is where a search could only mislead."""
    numeric = [group.start for group in rows.design.groups if group.numeric]
    if plan_ranges(len(numeric), rows.count, spending.share(share)) is None:
        return rows.design
    middles = {}
    for k, (low, high) in zip(numeric, release_ranges(rows.column_counts(BINS), spending, share), strict=True):
        start, stop = rows.design.columns[k].interval
        middles[k] = (start + low * (stop - start), start + high * (stop - start))
    return rows.design.centred(middles)


def kept_for_variance(study: Study, rows: LinkedRows) -> float:
    """Share of the budget that is kept for the variance of one stage."""
    return (VARIANCE + STRATA * _is_stratified(study, rows)) if study.intervals else 0.0


def _is_stratified(study: Study, rows: LinkedRows) -> bool:
    """Whether squares of one stage are taken around the means of strata: if others' residuals stay as they are, which under an explicit Q they do not."""
    return study.strata is not None and rows.exposure.symmetric


def release_variance(
    study: Study, rows: LinkedRows, groups: Groups, spending: Spending, sums: ReleasedSums, beta: Floats
) -> NoisyVariance | None:
    """Release the variance around the released coefficients: first the residual scale, then the meat clipped by it."""
    if not study.intervals:
        return None
    design, exposure, count = rows.design, rows.exposure, rows.count
    p, R = len(design.names), design.response.peak
    predictor = _predictor(groups, design, sums, beta)
    blocks = rows.blocks
    residual, route = R / 2.0, SCALE_ALONE
    if plan_residual_scale(exposure, count, spending.share(RESIDUAL_SCALE)) is not None:
        residual = release_residual_scale(rows.residual_counts(predictor, residual_edges(R)), spending)
        largest, centred = None if blocks is None else blocks.largest, _is_stratified(study, rows)
        route = choose_route(p, exposure, largest, count, spending.share(MEAT), centred=centred)
    within, weights = 1.0, _instrument_weights(design, sums, groups)
    if route is SCALE_ALONE:
        meat, noise = groups.squares * residual**2 * np.eye(p), 0.0
    elif _is_stratified(study, rows):
        totals = rows.row_strata(predictor, weights, FOR_MEANS * math.sqrt(p) * residual)
        strata = release_strata(totals, np.ones(p), spending)
        private = rows.meat("row", predictor, weights, route.clip * residual, strata.centres)
        meat, noise = release_meat(private, spending)
        meat, within = strata.within(meat)
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
        repeated=repeated_rows(study.linkage, study.unit, route.name),
        within=within,
    )


def _predictor(groups: Groups, design: Design, sums: ReleasedSums, beta: Floats) -> Predictor:
    """What residuals are taken around: released coefficients, released means of the regressors, declared accuracy."""
    mean = np.zeros(beta.size)
    if design.intercept:
        mean = np.clip(sums.matrix[0, 1:] / sums.matrix[0, 0], -design.radius, design.radius)
    return Predictor(beta, mean, groups.accuracy)


def _instrument_weights(design: Design, sums: ReleasedSums, groups: Groups) -> Floats:
    """Weights that bring instruments to mean square one, from public and released values (p)."""
    first, squares = int(design.intercept), instrument_squares(design)
    if sums.symmetric:  # h = x: the released matrix tells its mean squares
        found = np.diag(sums.matrix)[first:] / (groups.total * groups.accuracy)
        squares = np.clip(found, squares / 100.0, squares * 3.0)
    return np.asarray(1.0 / np.sqrt(np.concatenate([np.ones(first), squares])), np.float64)


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
    ("ssp", "tight"): Method("analytic", lambda design: design, fit_sums, check_counting),
    ("ngd", "tight"): Method("analytic", _without_instrument, fit_descent),
    ("ssp", "paper"): Method("classic", Design.unscaled, fit_paper_sums),
    ("ngd", "paper"): Method("paper-zcdp", Design.unscaled, fit_paper_descent),
}
OUTCOMES = Method("analytic", lambda design: design, fit_outcome, check_outcome)
