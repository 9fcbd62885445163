"""How large residuals are, and how far they are clipped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.groups import Groups
from dplinked.estimate.residuals import (
    Residuals,
    closest_clip,
    counted_sizes,
    expect_residuals,
    level_of_right_links,
    right_deviation,
)
from dplinked.estimate.whitening import Geometry
from dplinked.privacy.quantities.residual_scale import Present, release_residual_size, residual_edges
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity
from dplinked.privacy.spending import CLIPPING, Spending
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.types import Predictor, ResidualClip, Whitening

Floats = NDArray[np.float64]


def measure_deviation(
    groups: Groups,
    rows: LinkedRows,
    spending: Spending,
    estimate: Estimate,
    explained: float,
    present: Present | None = None,
) -> tuple[float, Present]:
    """Measure the deviation of right links' residuals around released coefficients. The first time, it is measured how many rows are `present` too, and rows will be summed by themselves next."""
    accuracy = groups.plain_accuracy
    around = Predictor(estimate.beta, np.zeros(len(rows.design.columns)), 1.0)
    counts = rows.residual_counts(around, residual_edges(rows.design.response.peak), ahead=present is None)
    size, level, present = release_residual_size(counts, spending, CLIPPING, level_of_right_links(accuracy), present)
    return right_deviation(size, level, accuracy, explained), present


def expect_clip(
    study: Study,
    groups: Groups,
    spending: Spending,
    estimate: Estimate,
    explained: float,
    deviation: float,
    rows: LinkedRows,
    geometry: Geometry,
    share: float,
    wider: float = 1.0,
    errors: str | None = None,
) -> Residuals:
    """Choose how far the equation clips residuals of a deviation, `wider` than otherwise if there are tails; it will get a `share` of the budget."""
    design, first = rows.design, int(rows.design.intercept)
    unit = right_residuals_sensitivity(1.0, rows.exposure) / spending.share(share)
    closest = closest_clip(deviation, geometry.way(estimate.covariance[first:, first:]))
    most = None if geometry.whitening is None else geometry.whitening.norm**2
    largest = 4.0 * design.response.peak
    return expect_residuals(
        deviation,
        explained,
        geometry.ratios,
        design.intercept,
        unit,
        groups.squares,
        largest,
        errors or study.errors,
        closest,
        most,
        counted_sizes(design),
        wider,
    )


def clip_around(beta: Floats, residuals: Residuals, design: Design, whitening: Whitening | None) -> ResidualClip:
    """The clip of residuals around released coefficients."""
    weight = residuals.intercept_weight if whitening is None else 0.0
    return ResidualClip(beta, residuals.limit, weight, 4.0 * design.response.peak, whitening)
