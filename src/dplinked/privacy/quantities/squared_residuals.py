"""The sum of clipped squares of right links' residuals, and the squares of what rows contribute to it: sensitivities with their proofs, plan and draw."""

from __future__ import annotations

import math

import numpy as np

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.right_residuals import pair_weights, weight_change
from dplinked.privacy.spending import GOODNESS, Spending
from dplinked.sums.clipped import SquaredResiduals
from dplinked.sums.rounding import rounding_slack

_FOR_THE_TOTAL = 0.8  # of the share: the rest is for the squares of contributions


def squared_residuals_sensitivity(limit: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``Σ c_il g_il``, ``g_il = ω_i min(r², K)`` of row i with the response on row l, from 0 to `limit` (K).

    Proof. As for the equation (:func:`~dplinked.privacy.quantities.right_residuals.right_residuals_sensitivity`), but each term moves by at most K and not by 2K, since none is below 0: x_j and ω_j change the terms of
    their row, each changed response those of its column, and row j's new response those of its column without its own row. A change of the weights counts K for each unit of it. Of several levels side by side,
    each over its own K, row j may take its terms from one and bring others to another: √2 times those of its row.
    """
    if exposure.exact:
        return limit * exposure.counted
    row, column, others = pair_weights(exposure)
    changed = exposure.carriers + exposure.displaced
    pairs = row * exposure.counted + column * changed + others * (exposure.displaced > 0)
    return limit * (pairs + weight_change(exposure))


def squared_contributions_sensitivity(limit: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``Σ B_i²``, B_i what row i contributes, ``Σ_l c_il g_il``.

    Proof. Own terms weigh at most 1 and those of partners at most 1 - γ with the other sign, so that ``|B_i| ≤ K``; under an explicit Q it is at most K times a row's weights: N. Row j and each row with another response move
    their squares within [0, N²]; row j, of several levels side by side, in two of them. Other rows move B_i by K times the weights of what they meet of changed responses, and squares by 2N times that.
    """
    if exposure.exact:
        return limit**2 * exposure.counted
    others = pair_weights(exposure)[2]
    longest = longest_contribution(limit, exposure)
    changed = exposure.carriers + exposure.displaced
    met = others * (changed + (exposure.displaced > 0)) + weight_change(exposure)
    return longest**2 * (exposure.counted + changed) + 2.0 * longest * limit * met


def longest_contribution(limit: float, exposure: LinkageExposure) -> float:
    """N: the largest that a row contributes."""
    return limit if exposure.exact or exposure.symmetric else limit * pair_weights(exposure)[0]


def release_squared_residuals(private: SquaredResiduals, spending: Spending) -> tuple[float, float, float, float]:
    """Release both sums: the total and its noise, the squares of contributions and theirs.

    Privacy
    -------
    μ-GDP for half of its share of the budget: the sums have Gaussian noise for their own sensitivities and shares.
    """
    exposure, limit, share = private.exposure, private.limit, GOODNESS / 2.0
    longest = longest_contribution(limit, exposure)
    mu = spending.take(share)
    bounds = (squared_residuals_sensitivity(limit, exposure), squared_contributions_sensitivity(limit, exposure))
    largest = 2.0 * limit * pair_weights(exposure)[0]
    slacks = (
        rounding_slack(private.rows, largest, 1),
        rounding_slack(private.rows, longest * max(longest, largest), 1),
    )
    shares = (_FOR_THE_TOTAL, 1.0 - _FOR_THE_TOTAL)
    names = ("squared residuals", "squares of squared residuals")
    parts = tuple(
        Part(name, 1, bound + slack, 1.0, (bound + slack) / (mu * math.sqrt(part)))
        for name, bound, slack, part in zip(names, bounds, slacks, shares, strict=True)
    )
    plan = spending.note(make_room_for_draw(NoisePlan(parts, mu), private.rows * largest, private.rows * longest**2))
    drawn = noise.add_gaussian(np.array([private.total, private.squares]), plan.scales())
    scales = plan.scales()
    return float(drawn[0]), float(scales[0]), float(drawn[1]), float(scales[1])
