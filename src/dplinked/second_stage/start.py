"""How rows are weighed before the first stage, and what both stages take for granted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dplinked.estimate.groups import Groups, choose_weights, find_groups
from dplinked.estimate.residuals import CLIPS, INTERCEPT_WEIGHT
from dplinked.estimate.tails import far_columns
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity
from dplinked.privacy.quantities.weights import release_weight_moments
from dplinked.privacy.spending import WEIGHTS, Spending
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows


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


def mean_contrast(study: Study, rows: LinkedRows) -> float:
    """Mean of γ - o, what right links have over others; the mean accuracy where blocks are not public. An explicit Q is unlinked whole."""
    if not rows.exposure.symmetric:
        return 1.0
    return study.linkage.public.mean_accuracy if rows.blocks is None else rows.blocks.contrast
