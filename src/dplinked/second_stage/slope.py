"""The slope of the equation, and what of the budget it gets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.groups import Groups
from dplinked.estimate.residuals import CLEAR, FEW, INTERCEPT_WEIGHT, instrument_sizes, told_gram
from dplinked.estimate.tails import far_columns
from dplinked.estimate.whitening import Geometry, choose_norm, rounds_needed, whiten
from dplinked.linkage import EXACT
from dplinked.privacy.quantities.instrument import (
    ReleasedSums,
    entry_noise,
    plan_sums,
    pool_by_precision,
    release_curvature,
)
from dplinked.privacy.quantities.whitened_gram import release_whitened_gram, whitened_gram_sensitivity
from dplinked.privacy.spending import FOLLOWED, GRAM, ROUNDS, Spending
from dplinked.second_stage.stage import SecondStage
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.types import Whitening

Floats = NDArray[np.float64]

_LARGER = 3.0  # times what its middle says: how large a column is at most taken to be
_CALM_SLOPE = 0.25  # noise of the equation's slope, relative to it, up to which it does


def is_calm(
    design: Design, count: int, groups: Groups, sizes: Floats, spending: Spending, most: float = _CALM_SLOPE
) -> bool:
    """Whether noise of the slope of an equation with these instruments is at most so large, relative to it, if it gets the share of one that follows tails."""
    plan = plan_sums(design, EXACT, count, spending.share(FOLLOWED), matrix_only=True)
    signal = groups.total * groups.contrast * sizes * instrument_sizes(design, sizes)
    return entry_noise(plan).core <= most * float(signal.min())


def release_slope(
    study: Study, rows: LinkedRows, spending: Spending, start: ReleasedSums, stage: SecondStage
) -> tuple[ReleasedSums, Geometry]:
    """The equation's slope before clipping, and the geometry of its instruments.

    It is ``Σ (γ-o)(1, h)(1, x)'`` of rows by themselves, together with what the first stage tells of it; or the squares of whitened rows, which are whitened
    anew by what they tell until whitening is clear of noise.
    """
    groups, geometry, wide = stage.groups, stage.geometry, stage.rows
    factor = groups.contrast if rows.blocks is None else 1.0  # then rows were not weighed by their blocks
    if geometry.whitening is None:
        gram = release_curvature(wide.own_gram(), spending, intervals=study.intervals, share=stage.gram)
        gram = times_factor(gram, factor)
        if rows.design.intercept and wide.dropped:
            usual = groups.contrast * groups.total
            most = usual / (groups.present * groups.mean)  # what all rows have together
            gram.matrix[0, 0] = np.clip(gram.matrix[0, 0], min(most / 20.0, usual / 10.0), most)
        if stage.same:
            gram = pool_by_precision(gram, told_gram(start, groups.accuracy, groups.contrast, rows.design.intercept))
        return gram, _measure_columns(gram, stage) if stage.far else geometry
    matrix, weight = geometry.whitening.matrix, groups.total * groups.contrast
    for share in ROUNDS[: geometry.rounds - 1]:
        rough = cut_whitened(matrix, wide.design, spending.share(share), weight)
        gram = times_factor(release_whitened_gram(wide.whitened_gram(rough), spending, share), factor / weight)
        turned, strengths = whiten(gram.matrix, gram.matrix_scale, INTERCEPT_WEIGHT * rows.design.intercept)
        matrix = turned @ matrix
        if rounds_needed(strengths) == 1:
            break
    whitening = cut_whitened(matrix, wide.design, spending.share(stage.gram), weight)
    gram = times_factor(
        release_whitened_gram(wide.whitened_gram(whitening, counted=wide.dropped), spending, stage.gram), factor
    )
    told = np.diag(gram.matrix)[int(rows.design.intercept) :] / weight
    return gram, replace(geometry, whitening=whitening, ratios=np.sqrt(np.clip(told, 1.0, _LARGER**2)))


def _measure_columns(gram: ReleasedSums, stage: SecondStage) -> Geometry:
    """The geometry of columns that are as large as the slope tells, where their middles tell too little of how far they reach."""
    design, groups, geometry = stage.rows.design, stage.groups, stage.geometry
    found = np.diag(gram.matrix)[int(design.intercept) :] / (groups.contrast * groups.total)
    larger = np.sqrt(np.clip(found / (geometry.ratios * geometry.sizes), 1.0, _LARGER**2))
    larger = np.where(far_columns(design, geometry.sizes), larger, 1.0)
    return replace(geometry, ratios=geometry.ratios * larger, sizes=geometry.sizes * larger)


def cut_whitened(matrix: Floats, design: Design, mu: float, weight: float) -> Whitening:
    """Whitened rows of a design with the norm that they are cut to, if their squares are released for μ: no larger than the longest of them can be."""
    longest = float(np.linalg.norm(matrix, 2)) * math.hypot(design.radius, float(design.intercept))
    return Whitening(matrix, min(longest, choose_norm(len(matrix), whitened_gram_sensitivity(1.0) / mu, weight)))


def times_factor(gram: ReleasedSums, factor: float) -> ReleasedSums:
    """A released matrix and its noise times a public factor."""
    return replace(gram, matrix=gram.matrix * factor, matrix_scale=gram.matrix_scale * factor)


def choose_gram_share(
    spending: Spending,
    start: ReleasedSums,
    rows: LinkedRows,
    same: bool,
    sizes: Floats,
    groups: Groups,
    least: float = GRAM[0],
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
    share, clear = least, CLEAR * math.sqrt(2.0 * (max(d, FEW) if rows.dropped else d))
    while True:
        plan = plan_sums(wide, EXACT, rows.count, spending.share(share), matrix_only=True, dropped=dropped)
        noise = 1.0 / math.hypot(1.0 / entry_noise(plan).core, 1.0 / told)
        if share >= GRAM[1] or weakest >= clear * noise:
            return share, noise
        share = min(GRAM[1], share + 0.05)
