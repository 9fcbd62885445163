"""Several results in one release: outcomes that share their regressors, and levels that rows count in one of.

Outcomes each have an equal part of the budget, and pay together for what is about the regressors alone. Levels are released side by side: every row counts in one of them, so that all of them cost
what one does. In both, what the first stage and the slopes need is decided once, from public and released values; rows are not whitened.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from dplinked.errors import StudyError
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.groups import Groups
from dplinked.estimate.variance import split_errors
from dplinked.methods import aim_instrument, kept_for_variance, release_variance, spending_of
from dplinked.plan.expected import first_share
from dplinked.privacy.quantities.instrument import ReleasedSums, release_curvature, release_sums
from dplinked.privacy.quantities.responses import divide_share, release_response
from dplinked.privacy.spending import GRAM, Spending
from dplinked.release.build import build_release
from dplinked.release.release import Release
from dplinked.release.releases import Releases
from dplinked.second_stage.expectation import expect_by_columns, may_take_second_stage
from dplinked.second_stage.slope import release_slope, times_factor
from dplinked.second_stage.start import measure_weights, prior_scale, weigh_groups
from dplinked.second_stage.steps import fit_residuals
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.engine import Source
from dplinked.sums.linked_rows import LinkedRows

Linked = Mapping[str, LinkedRows]


def link_parts(study: Study, opened: Source) -> Linked:
    """Rows ready to be summed for each outcome; levels are those of the same rows."""
    parts = dict(list(study.parts.items())[:1]) if study.by is not None else study.parts
    return {name: opened.linked_rows(part.prepare()[0], study.linkage, study.unit) for name, part in parts.items()}


def check_parts(study: Study, linked: Linked) -> None:
    """Refuse what cannot be released, from public values."""
    (name, rows), spending = next(iter(linked.items())), spending_of(study)
    lead = study.parts[name]
    if not study.needs_second_stage:
        return
    purse = spending if study.by is not None else spending.slices(len(linked))[0]
    weighed, groups = weigh_groups(lead, rows, purse)
    beside = weighed.beside(len(study.parts)) if study.by is not None else weighed
    if not may_take_second_stage(lead, beside, groups, purse):
        raise StudyError(
            "Weights, conditions, levels and clusters need a second stage, for which there are too few rows, too small a budget, links of too small an accuracy, or rows that come as a stream and are "
            "read once. Take a larger epsilon or another source, or leave them out."
        )


def fit_parts(study: Study, linked: Linked, spending: Spending) -> Releases:
    """All results of a study."""
    if study.by is not None:
        results = fit_levels(study, next(iter(linked.values())), spending)
    else:
        results = fit_outcomes(study, linked, spending)
    return Releases(study.formula, study.by, results)


# --- outcomes ------------------------------------------------------------------------------------------


def fit_outcomes(study: Study, linked: Linked, spending: Spending) -> dict[str, Release]:
    """The regressions of several outcomes on the same regressors.

    Privacy
    -------
    Each outcome has a purse of an equal part of μ². What is drawn of regressors alone (middles, sizes of weights, H, the equation's slope) is drawn once, and taken from all purses.
    """
    purses = dict(zip(linked, spending.slices(len(linked)), strict=True))
    name, lead = next(iter(study.parts.items()))
    share = 1.0 / len(linked)  # what all have in common need not cost more than it does for one
    design = aim_instrument(lead, linked[name], spending, share)
    design = measure_weights(linked[name].with_design(design), spending, share).design
    weighed = {
        key: weigh_groups(study.parts[key], rows.with_design(_with_outcome(design, rows.design)), purses[key])
        for key, rows in linked.items()
    }
    rows, groups = {key: found[0] for key, found in weighed.items()}, weighed[name][1]
    if not may_take_second_stage(lead, rows[name], groups, purses[name]):
        return _fit_one_stage(study, rows, groups, spending, purses)
    exposure, count = rows[name].exposure, rows[name].count
    first = first_share(design, exposure, count, purses[name].mu)
    matrix, alone = divide_share(design, exposure, count, len(linked), intervals=study.intervals)
    response = first * (1.0 - alone)  # as beside a single outcome
    starts = _release_sums(study, rows, spending, purses, response * matrix / (1.0 - matrix), response)
    least = GRAM[0] * share
    stages = {
        key: expect_by_columns(part, rows[key], groups, purses[key], starts[key], spending, least)
        for key, part in study.parts.items()
    }
    agreed = replace(stages[name], gram=max(stage.gram for stage in stages.values()))
    gram, geometry = release_slope(lead, rows[name], spending, starts[name], agreed)
    present = agreed.present.complete
    return {
        key: fit_residuals(
            part,
            rows[key],
            purses[key],
            starts[key],
            stages[key],
            (times_factor(gram, stages[key].present.complete / present), geometry),
        )
        for key, part in study.parts.items()
    }


def _with_outcome(design: Design, own: Design) -> Design:
    """A design's regressors and instruments with the outcome of another."""
    fill = {
        name: own.fill[name] if name in own.response_variables else design.fill.get(name, value)
        for name, value in own.fill.items()
    }
    return replace(design, formula=own.formula, response=own.response, bounds=own.bounds, levels=own.levels, fill=fill)


def _release_sums(
    study: Study, rows: Linked, spending: Spending, purses: Mapping[str, Spending], matrix: float, response: float
) -> dict[str, ReleasedSums]:
    """H once, for a share of the whole budget, and b of each outcome, for a share of its own."""
    private = {key: own.instrument_sums() for key, own in rows.items()}
    shared = release_curvature(next(iter(private.values())), spending, intervals=study.intervals, share=matrix)
    return {
        key: release_response(sums, purses[key], shared, response, intervals=study.intervals)
        for key, sums in private.items()
    }


def _fit_one_stage(
    study: Study, rows: Linked, groups: Groups, spending: Spending, purses: Mapping[str, Spending]
) -> dict[str, Release]:
    """All outcomes from H and b alone, where there cannot be a second stage."""
    assert not study.needs_second_stage, "one stage counts all rows the same, and squares no clusters"
    lead = next(iter(rows.values()))
    matrix, _ = divide_share(lead.design, lead.exposure, lead.count, len(rows), intervals=study.intervals)
    rest = spending.unspent(kept_for_variance(study, lead))
    sums = _release_sums(study, rows, spending, purses, rest * matrix, rest * (1.0 - matrix))
    results = {}
    for key, part in study.parts.items():
        design, purse = rows[key].design, purses[key]
        scale = prior_scale(design)
        estimate = solve_sums(sums[key], intercept=design.intercept, prior_scale=scale, ridge=study.ridge)
        variance = release_variance(part, rows[key], groups, purse, sums[key], estimate.beta)
        errors = split_errors(design, groups, estimate, sums[key], variance)
        results[key] = build_release(part, design, lead.count, purse, estimate, errors, sums=sums[key])
    return results


# --- levels --------------------------------------------------------------------------------------------


def fit_levels(study: Study, rows: LinkedRows, spending: Spending) -> dict[str, Release]:
    """The same regression in every level of a column.

    Privacy
    -------
    The first stage is that of all rows. From then on levels are released side by side, see :meth:`~dplinked.privacy.spending.Spending.side_by_side`: each draw of theirs is one
    draw of a vector with all levels in it, in which a person moves as much as :class:`~dplinked.linkage.LinkageExposure` with `levels` says.
    """
    lead = next(iter(study.parts.values()))
    design = aim_instrument(lead, rows, spending)
    rows, groups = weigh_groups(lead, rows.with_design(design), spending)
    share = first_share(design, rows.exposure, rows.count, spending.mu)
    start = release_sums(rows.instrument_sums(), spending, intervals=study.intervals, share=share)
    purses = dict(zip(study.parts, spending.side_by_side(len(study.parts)), strict=True))
    levels, stages = {}, {}
    for level, part in study.parts.items():
        counting = part.prepare()[0].counting
        own = rows.with_design(replace(design, counting=counting)).beside(len(study.parts))
        levels[level] = own = measure_weights(own, purses[level])
        stages[level] = expect_by_columns(part, own, groups, purses[level], start, purses[level], GRAM[0])
    gram = statistics.median_high(stage.gram for stage in stages.values())
    return {
        level: fit_residuals(part, levels[level], purses[level], start, replace(stages[level], gram=gram))
        for level, part in study.parts.items()
    }
