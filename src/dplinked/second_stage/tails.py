"""Whether columns have tails that count, and clips and instruments that follow them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.residuals import Residuals, instrument_sizes, widen_instrument
from dplinked.estimate.tails import choose_norm as choose_tail_norm
from dplinked.estimate.tails import known_excess, widen_clip
from dplinked.estimate.whitening import Geometry
from dplinked.privacy.quantities.right_residuals import (
    longest_contribution,
    release_residual_meat,
    residual_meat_sensitivity,
    right_residuals_sensitivity,
)
from dplinked.privacy.spending import FOLLOWED, TAILS, Spending
from dplinked.second_stage.clips import clip_around
from dplinked.second_stage.slope import is_calm
from dplinked.second_stage.stage import SecondStage
from dplinked.sums.types import MeatClip

_CALM_ENOUGH = 0.3  # noise of that slope, relative to it, up to which it does: noise is times the way that is left to go, and falls as often on either side, while what lies beyond the instrument's reach bends the line. With noise of half the slope intervals were unbounded in one release of twenty
_FURTHER = (20.0, 14.0, 10.0, 7.0)  # times its size: how far a column's instrument follows it where tails were seen


def look_for_tails(
    stage: SecondStage, geometry: Geometry, estimate: Estimate, residuals: Residuals, spending: Spending, share: float
) -> tuple[float, float]:
    """How many times as far out the last step clips, by the squares of its contributions, which are released before it, and its `share` of the budget, larger where they would drown in noise and are not."""
    rows, groups, d = stage.rows, stage.groups, residuals.sizes.size
    spread, weights = residuals.spread(groups.accuracy), residuals.meat_weights(rows.design.intercept)
    expected, largest = groups.squares * spread**2, residuals.limit * float(weights.max()) / spread

    def chance(norm: float) -> float:
        return residual_meat_sensitivity(norm, largest, rows.exposure) / (spending.share(TAILS) * groups.squares)

    norm = choose_tail_norm(weights.size, chance, longest_contribution(largest, rows.exposure))
    if norm is None:
        return 1.0, share + TAILS
    clip = clip_around(estimate.beta, residuals, rows.design, geometry.whitening)
    private = rows.right_residuals(clip, MeatClip("row", weights, norm * spread))
    squares, scale = release_residual_meat(private, spending, TAILS)
    off = float(np.trace(geometry.way(estimate.covariance[-d:, -d:])))
    known = known_excess(off, (1.0 - groups.accuracy) * residuals.explained) / spread**2
    drawn = right_residuals_sensitivity(residuals.limit, rows.exposure) / spending.share(share)
    noise = drawn / (math.sqrt(groups.squares * float((residuals.sizes**2).mean())) * spread)
    return widen_clip(np.diag(squares)[-d:] / expected - known, scale / expected, noise), share


def follow_tails(stage: SecondStage, geometry: Geometry, spending: Spending, share: float) -> SecondStage | None:
    """The stage whose instruments follow their columns out to where tails were seen, as far as its slope, which is released anew, stays clear of its noise.

    None if it does not, or if that would take more than half of the last step's `share` of the budget.
    """
    sizes = stage.geometry.sizes
    if geometry.whitening is not None or FOLLOWED > share / 2.0:
        return None
    for width in _FURTHER:
        design = widen_instrument(stage.rows.design, sizes, width)
        if design.half_widths == stage.rows.design.half_widths:
            return None
        if is_calm(design, stage.rows.count, stage.groups, geometry.sizes, spending, _CALM_ENOUGH):
            further = Geometry(instrument_sizes(design, sizes), sizes)
            return replace(stage, rows=stage.rows.with_design(design), geometry=further, gram=FOLLOWED, same=False)
    return None
