"""How rows are weighed before the first stage, and what both stages take for granted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.groups import Groups, choose_weights, find_groups
from dplinked.estimate.residuals import CLIPS, INTERCEPT_WEIGHT
from dplinked.estimate.tails import far_columns
from dplinked.privacy.quantities.instrument import ReleasedSums, entry_noise, guess_length, plan_sums
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity
from dplinked.privacy.quantities.weights import release_weight_moments
from dplinked.privacy.spending import WEIGHTS, Spending
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows

_UNSURE = 2.0  # standard errors that are added to what the first stage tells of slopes, so that these are rarely longer
_SPECTRAL = 2.0  # times the noise of an entry and the root of their number in a row: the spectral size of noise
_CLEARLY = (
    5.0  # times the spectral size of its noise: what the weakest direction of H keeps at least where slopes are short
)


def prior_scale(design: Design) -> float:
    """Size of a coefficient's prior variance, where released sums are weak."""
    return 1.0 / max(1, len(design.columns))


def all_rows(study: Study, rows: LinkedRows) -> Groups:
    """The rows as one group, with the declared mean accuracy."""
    return find_groups(study.linkage.public, None, rows.count, mean_contrast(study, rows))


def weigh_groups(study: Study, rows: LinkedRows, spending: Spending) -> tuple[LinkedRows, Groups]:
    """Weigh groups of different accuracies by what they contribute. Only declared accuracies and public sizes decide."""
    groups = find_groups(study.linkage.public, rows.blocks, rows.count, mean_contrast(study, rows))
    if len(groups.keys) == 1 or not rows.design.columns:
        return rows, groups
    columns = len(rows.design.columns) + INTERCEPT_WEIGHT**2
    noise = right_residuals_sensitivity(CLIPS[1], rows.exposure) / spending.share(0.5) * math.sqrt(columns)
    groups = replace(groups, weights=choose_weights(groups, noise))
    return rows.with_weights(groups.weighed), groups


def measure_weights(rows: LinkedRows, spending: Spending, part: float = 1.0) -> LinkedRows:
    """The same rows, of which it is known by then how large their weights are; a `part` of the usual share is spent on that, if it was not known before."""
    counting = rows.design.counting
    if counting is None or counting.weight is None or counting.moments is not None:
        return rows
    moments = release_weight_moments(rows.weight_moments(), spending, part * WEIGHTS)
    return rows.with_design(replace(rows.design, counting=replace(counting, moments=moments)))


def one_stage_design(design: Design) -> Design:
    """The design whose sums end a release of one stage. An instrument that is aimed at middles, beyond which columns may reach far, would tell the middles' line: it follows the columns."""
    if design.half_widths is None or not far_columns(design, np.sqrt(column_spread(design))).any():
        return design
    return replace(design, half_widths=None)


def told_length(rows: LinkedRows, start: ReleasedSums, mu: float, *, intervals: bool) -> float | None:
    """How long slopes are together as far as the first stage's sums tell it, for which the same sums divide μ when they are released again.

    Noise of H counts times the slopes, and most often they are shorter than a guess has to allow for. They are taken to be longer where H would not stand clear of its noise; None where no length leaves it clear.
    """
    design, first, d = rows.design, int(rows.design.intercept), len(rows.design.columns)
    found = solve_sums(start, intercept=design.intercept, prior_scale=prior_scale(design))
    told = math.sqrt(float((found.beta[first:] ** 2 + (_UNSURE * found.plain_error[first:]) ** 2).sum()))
    drawn = float(np.sqrt((start.matrix_scale[first:, first:] ** 2).mean()))
    strength = np.linalg.svd(centred_core(start.matrix, design.intercept), compute_uv=False)
    weakest = float(strength[-1]) - _SPECTRAL * drawn * math.sqrt(d)
    usual = guess_length(d, intervals)
    for length in np.geomspace(min(told, usual), usual, 8).tolist():
        plan = plan_sums(design, rows.exposure, rows.count, mu, intervals=intervals, slopes=length)
        if weakest >= _CLEARLY * _SPECTRAL * entry_noise(plan).core * math.sqrt(d):
            return float(length)
    return None


def mean_contrast(study: Study, rows: LinkedRows) -> float:
    """Mean of γ - o, what right links have over others; the mean accuracy where blocks are not public. An explicit Q is unlinked whole."""
    if not rows.exposure.symmetric:
        return 1.0
    return study.linkage.public.mean_accuracy if rows.blocks is None else rows.blocks.contrast
