"""What releases and budgets cost, in whole units of ρ = μ²/2."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dplinked.errors import StudyError
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.secret_sample import mu_beside

UNITS = 10**15  # units per ρ of 1: one unit is a ρ of 1e-15
_LARGEST = 1000.0  # largest ε of a budget or a booking, so that sums of units stay within 64 bits


def cost(mu: float) -> int:
    """Units that a release of μ costs, rounded up.

    Proof that costs add: releases of μ₁, μ₂, … chosen one after the other are together √(Σμᵢ²)-GDP (Dong, Roth and Su 2022), so ρ = μ²/2 adds.
    """
    if not (math.isfinite(mu) and mu > 0.0):
        raise StudyError("A release's mu must be a finite number above 0.")
    return math.ceil(mu * mu / 2.0 * UNITS * (1.0 + 1e-12))


def budget_units(epsilon: float, delta: float) -> int:
    """Units of a budget (ε, δ), rounded down: the largest μ within it, converted once.

    `privacy_mu` leaves a ten-millionth of μ unused. Half of that is given back here, so that a budget allows one release of its own size.
    """
    return math.floor(privacy_mu(epsilon, delta) ** 2 / 2.0 * UNITS * (1.0 + 1e-7))


def sample_units(epsilon: float, delta: float, earlier: Sequence[SecretSample], new: SecretSample) -> int:
    """Units that a release from a further secret sample costs in a budget (ε, δ): what Gaussian releases beside it can no longer have.

    Proof that all costs together keep the budget. The samples' costs add up to the budget's units less those of μ, the largest that Gaussian releases may have beside all these
    samples within (ε, δ) (:func:`dplinked.privacy.secret_sample.mu_beside`). What Gaussian releases cost fits into the rest, so they stay below that μ.
    """
    before = _units_beside(epsilon, delta, earlier) if earlier else budget_units(epsilon, delta)
    return max(0, before - _units_beside(epsilon, delta, [*earlier, new]))


def _units_beside(epsilon: float, delta: float, samples: Sequence[SecretSample]) -> int:
    """Units that Gaussian releases may have beside secret samples, rounded down; -1 if the samples alone are too much."""
    mu = mu_beside(samples, epsilon, delta)
    return math.floor(mu**2 / 2.0 * UNITS) if mu else -1


def check_size(epsilon: float) -> None:
    """Refuse an ε that the ledger's integers cannot hold."""
    if epsilon > _LARGEST:
        raise StudyError(f"epsilon={epsilon:g} is beyond what a ledger holds; use at most {_LARGEST:g}.")


def pure_mu(epsilon: float) -> float:
    """μ of the Gaussian release that is no more private than any ε-DP one: ``μ = 2Φ⁻¹(e^ε/(1+e^ε))``.

    Proof. Among ε-DP mechanisms randomised response with odds e^ε is the least private. Its trade-off function is made up of two chords, from
    (0, 1) to (α, α) to (1, 0) with α = 1/(1+e^ε). That of N(0,1) against N(μ,1) is convex and passes through the same three
    points for this μ, so it lies below.
    """
    from scipy.special import ndtri_exp

    return float(-2.0 * ndtri_exp(-math.log1p(math.exp(epsilon)) if epsilon < 30 else -epsilon))
