"""How a release's budget is divided, and a purse that cannot be overdrawn.

Releases of μ₁, μ₂, … chosen one after the other are together √(Σμᵢ²)-GDP, so a budget of μ is divided in shares of μ².
All shares stand here; what none of them names goes to the coefficients.
"""

from __future__ import annotations

import math

from dplinked.errors import ReleaseError
from dplinked.privacy.noise_plan import NoisePlan, Part

RANGES = 0.03  # of μ²: private ranges
RESIDUAL_SCALE = 0.03  # the size of residuals
MEAT = 0.05  # the variance of the estimating equation
VARIANCE = RESIDUAL_SCALE + MEAT  # all that intervals need
CURVATURE = 0.2  # H beside a gradient descent, which finishes it
WEIGHTS = 0.015  # how large weights are
FIRST_STAGE = (0.05, 0.25)  # sums from which the second stage starts: least and most
CLIPPING = 0.015  # the size of right links' residuals, before each step of the second stage
TAILS = 0.03  # the squares of the equation's contributions before the last step, where columns may reach far out
FOLLOWED = 0.1  # the slope again, where tails were seen
GRAM = (0.05, 0.4)  # the slope of the second stage's equation: least and most
WHITENED = 0.25  # the same of whitened rows: most
ROUNDS = (0.05, 0.1)  # squares of whitened rows by which they are whitened anew, before that slope
FIRST_STEP = 0.25  # of what is left for the second stage: its first step
LEVEL_SLOPE = 0.03  # the slope of a curve's equation along a level line, from which its shares and its start follow
NEARER = 0.02  # the expected equation, and again its slope, at each step that is not the last
CURVE_SLOPE = (0.05, 0.3)  # the slope at the last step: least and most

_ROUNDING = 1e-9  # room for the last digits of sums of squares


class Spending:
    """One release's budget. It hands out shares, refuses to hand out more than there is, and knows what was drawn.

    Parameters
    ----------
    mu
        μ of the whole release.
    """

    def __init__(self, mu: float) -> None:
        if not (math.isfinite(mu) and mu > 0.0):
            raise ReleaseError("A release needs a budget above 0.")
        self.mu = mu
        self._handed_out = 0.0  # share of μ²
        self._kept = 0.0  # share of μ² that was kept for later when the rest was handed out
        self._planned = 0.0  # μ² of the noise plans that were drawn
        self._plans: list[NoisePlan] = []

    def share(self, share: float) -> float:
        """μ of a share of the budget, for planning; nothing is taken."""
        return self.mu * math.sqrt(share)

    def rest(self, keep: float = 0.0) -> float:
        """μ of what is left when `keep` is kept for later, for planning; nothing is taken."""
        return self.share(self.unspent(keep))

    def unspent(self, keep: float = 0.0) -> float:
        """Share of the budget that is left when `keep` is kept for later; nothing is taken."""
        return max(0.0, 1.0 - self._handed_out - keep)

    def take(self, share: float) -> float:
        """Hand out a share of the budget, as its μ."""
        if not 0.0 < share <= 1.0 - self._handed_out + _ROUNDING:
            raise ReleaseError("The release would spend more than its budget. Nothing was drawn for this part.")
        self._handed_out += share
        self._kept = max(0.0, self._kept - share)
        return self.share(share)

    def take_rest(self, keep: float = 0.0) -> float:
        """Hand out what is left, but for a share that is kept for later, as its μ."""
        rest = self.take(1.0 - self._handed_out - keep)
        self._kept = keep
        return rest

    def note(self, plan: NoisePlan) -> NoisePlan:
        """Note what is about to be drawn; refused where it costs more than was handed out for it."""
        planned = self._planned + plan.mu**2
        if not planned <= self._handed_out * self.mu**2 * (1.0 + _ROUNDING):
            raise ReleaseError("A part of the release would cost more than was handed out for it. It was not drawn.")
        self._planned = planned
        self._plans.append(plan)
        return plan

    @property
    def spent(self) -> float:
        """μ of all that was handed out or kept for later: what is kept is spent, drawn or not."""
        used = self._handed_out + self._kept
        return self.share(used) if used < 1.0 - _ROUNDING else self.mu

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts that were drawn, in order, with their sensitivities and noise."""
        return tuple(part for plan in self._plans for part in plan.parts)
