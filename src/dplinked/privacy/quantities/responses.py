"""``b = h'z`` of several outcomes beside one matrix ``H = h'QX``, which all of them share: how the budget is divided, plan and draw.

One person changes their regressors and all of their outcomes at once, so all values move together. Each moves by no more than its own sensitivity, and noise is drawn for each by itself:
neighbours are ``√(Σ (Δ/scale)²)`` apart in all, which is what shares of μ² add up to. H has no response in it, and is drawn once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, allocate, make_room_for_draw
from dplinked.privacy.quantities.instrument import (
    INSTRUMENT_RESPONSE,
    RESPONSE_TOTAL,
    ReleasedSums,
    instrument_parts,
)
from dplinked.privacy.spending import Spending
from dplinked.study.design import Design
from dplinked.sums.clipped import ClippedSums

_RESPONSES = (RESPONSE_TOTAL, INSTRUMENT_RESPONSE)


def divide_share(
    design: Design, exposure: LinkageExposure, count: int, outcomes: int, *, intervals: bool
) -> tuple[float, float]:
    """How a share of the budget is divided between H and the b of the outcomes together, and what H had of it beside a single one.

    Notes
    -----
    :func:`~dplinked.privacy.noise_plan.allocate` minimises ``Σ importance·scale²`` by costs in proportion to ``Δ√importance``. H's noise is met by each of K outcomes, so its importance
    is K-fold, its weight ``√K·Σ_H Δ√importance``, and that of the outcomes ``K·Σ_b Δ√importance``.
    """
    weights = {True: 0.0, False: 0.0}
    for part in instrument_parts(design, exposure, count, intervals):
        weights[part.name in _RESPONSES] += part.sensitivity * math.sqrt(part.importance)
    matrix, response = math.sqrt(outcomes) * weights[False], outcomes * weights[True]
    return matrix / (matrix + response), weights[False] / (weights[False] + weights[True])


def plan_response(design: Design, exposure: LinkageExposure, count: int, mu: float, *, intervals: bool) -> NoisePlan:
    """Plan the noise of b alone for μ."""
    parts = [part for part in instrument_parts(design, exposure, count, intervals) if part.name in _RESPONSES]
    largest = 2.0 * exposure.column_sum * max(1.0, design.radius) * max(1.0, design.instrument_radius)
    return make_room_for_draw(allocate(parts, mu), count * largest)


def release_response(
    private: ClippedSums, spending: Spending, matrix: ReleasedSums, share: float, *, intervals: bool
) -> ReleasedSums:
    """Release b of one outcome, beside a matrix that was released before.

    Privacy
    -------
    μ-GDP for its share of the budget, with the sensitivities of b in :mod:`~dplinked.privacy.quantities.instrument`.
    """
    design, exposure, first = private.design, private.exposure, int(private.design.intercept)
    plan = plan_response(design, exposure, private.sums.count, spending.take(share), intervals=intervals)
    drawn = noise.add_gaussian(private.sums.vector, spending.note(plan).scales())
    assert drawn.size == first + len(design.columns)
    return replace(matrix, vector=drawn, vector_scale=plan.scales(), centre=np.zeros_like(drawn))
