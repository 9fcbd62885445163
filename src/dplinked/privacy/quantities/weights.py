"""How large the weights of rows are: sums of what rows count, of its square and of its fourth power. Sensitivity with its proof, plan and draw."""

from __future__ import annotations

import math

import numpy as np

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.spending import WEIGHTS, Spending
from dplinked.sums.clipped import WeightMoments
from dplinked.sums.rounding import rounding_slack

_CLEAR = 2.0  # times its noise: what is added to the fourth power, so that heavy rows are not taken for light ones, and the least that sums are taken for


def weight_moments_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of ``(Σ ω, Σ ω², Σ ω⁴)``, ω what a row counts, from 0 to 1.

    Proof. ω is a function of the row's own regressors' side, and those of row j alone change. Each of the three sums moves by at most 1, so all together by √3. Links do not enter. Beside
    other levels, row j may leave one for another: six sums move by at most 1 each.
    """
    return math.sqrt(3.0) * exposure.counted


def plan_weight_moments(exposure: LinkageExposure, count: int, mu: float) -> NoisePlan:
    """Plan the noise of the three sums."""
    sensitivity = weight_moments_sensitivity(exposure) + rounding_slack(count, 1.0, 3)
    part = Part("weights", 3, sensitivity, 1.0, sensitivity / mu)
    return make_room_for_draw(NoisePlan((part,), mu), float(count))


def release_weight_moments(
    private: WeightMoments, spending: Spending, share: float = WEIGHTS
) -> tuple[float, float, float]:
    """Means of ω, ω² and ω⁴ over all rows, made possible ones: each is at most the one before it, and at least its square.

    Privacy
    -------
    μ-GDP for its share of the budget: neighbours are at most :func:`weight_moments_sensitivity` apart.
    """
    plan = spending.note(plan_weight_moments(private.exposure, private.rows, spending.take(share)))
    drawn = noise.add_gaussian(private.sums, plan.scales()) / private.rows
    room = _CLEAR * plan.parts[0].scale / private.rows
    mean = float(np.clip(drawn[0], min(room, 1.0), 1.0))
    square = float(np.clip(drawn[1], mean**2, mean))
    return mean, square, float(np.clip(drawn[2] + room, square**2, square))
