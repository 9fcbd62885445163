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
TOTALS_SIZES = 0.03  # how long totals of persons or clusters are
TOTALS_MEAT = 0.08  # their squares, in the place of those of rows
STRATA = 0.04  # totals and sizes of strata, before squares are taken around their means
GOODNESS = 0.03  # squares of residuals around the line and around the mean, where they are asked for
VARIANCE = RESIDUAL_SCALE + MEAT  # all that intervals need
CURVATURE = 0.2  # H beside a gradient descent, which finishes it
WEIGHTS = 0.015  # how large weights are
FIRST_STAGE = (0.05, 0.25)  # sums from which the second stage starts: least and most
CLIPPING = 0.015  # the size of right links' residuals, before each step of the second stage
TAILS = 0.03  # the squares of the equation's contributions before the last step, where columns may reach far out
SIDES = 0.03  # the equation of residuals near the line, before the last step, where a closer clip pays if they are alike on both sides
FOLLOWED = 0.1  # the slope again, where tails were seen
GRAM = (0.05, 0.4)  # the slope of the second stage's equation: least and most
WHITENED = 0.25  # the same of whitened rows: most
ROUNDS = (0.05, 0.1)  # squares of whitened rows by which they are whitened anew, before that slope
FIRST_STEP = 0.25  # of what is left for the second stage: its first step
LEVEL_SLOPE = 0.03  # the slope of a curve's equation along a level line, from which its shares and its start follow
ANSWERED = 0.01  # how many rows have a response, where missing cells are dropped
FIRST_ANSWERS = 0.05  # of what responses get, where missing cells are dropped: a first look, which tells their mean
LAST_ANSWERS = 0.65  # of the same: when it is known what to expect of missing ones
NEARER = 0.02  # the slope of a curve's equation at each step that is not the last
CURVE_SLOPE = (0.05, 0.3)  # the slope at the last step: least and most

_ROUNDING = 1e-9  # room for the last digits of sums of squares
_ROOM = 1.0 - 1e-6  # of μ, for draws of levels
_ROUNDING_OF_DRAWS = 1e-3  # room for what rounding adds to sensitivities; it only makes noise larger


class Spending:
    """One release's budget. It hands out shares, refuses to hand out more than there is, and knows what was drawn.

    Parameters
    ----------
    mu
        μ of the whole release.

    Notes
    -----
    Of several results in one release, each has a purse of its own: :meth:`slices` for outcomes, which share what is about the regressors, and :meth:`side_by_side` for levels.
    """

    def __init__(self, mu: float) -> None:
        if not (math.isfinite(mu) and mu > 0.0):
            raise ReleaseError("A release needs a budget above 0.")
        self.mu = mu
        self._handed_out = 0.0  # share of μ²
        self._kept = 0.0  # share of μ² that was kept for later when the rest was handed out
        self._planned = 0.0  # μ² of the noise plans that were drawn
        self._plans: list[NoisePlan] = []
        self._parent: Spending | None = None
        self._slices: list[Spending] = []
        self._schedule: list[NoisePlan] | None = None  # what purses side by side have drawn so far

    def slices(self, number: int) -> list[Spending]:
        """Purses of equal parts of the whole, with the same shares handed out already. What is taken from this one later is taken from each of them.

        Costs in μ² add up, whatever is drawn from one before the other is planned. A share of one is its `number`-th part of the same share of the whole, so that what all of them pay for together
        costs that share of the whole.
        """
        self._slices = [self._child(self.mu / math.sqrt(number)) for _ in range(number)]
        for one in self._slices:
            one._planned = self._planned / number
        return self._slices

    def side_by_side(self, number: int) -> list[Spending]:
        """Purses of the whole budget each, for levels that rows count in one of: what they draw at the same place costs what one of them draws.

        Every purse must draw the same parts for the same costs in the same order; :meth:`note` refuses anything else. Then the draws of all levels at one place are one draw of values
        that move together by no more than one level's sensitivity says, which the sensitivities under an exposure with levels have proofs of. A level's draws depend on its own and on what was
        released before the levels parted, so the order in which levels are worked on does not matter. A millionth of μ is left as room for the grid, on which each level's draw is rounded by itself.
        """
        schedule: list[NoisePlan] = []
        purses = [self._child(self.mu * _ROOM) for _ in range(number)]
        for one in purses:
            one._planned, one._schedule = self._planned * _ROOM**2, schedule
        return purses

    def _child(self, mu: float) -> Spending:
        child = Spending(mu)
        child._handed_out, child._parent = self._handed_out, self
        return child

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
        for one in self._slices:
            one.take(share)
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
        if self._schedule is not None:
            _keep_to(self._schedule, len(self._plans), plan)
        self._planned = planned
        self._plans.append(plan)
        return plan

    @property
    def spent(self) -> float:
        """μ of all that was handed out or kept for later: what is kept is spent, drawn or not."""
        used = self._handed_out + self._kept
        whole = self.mu if self._parent is None else self._parent.mu
        return whole * math.sqrt(used) if used < 1.0 - _ROUNDING else whole

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts that were drawn, in order, with their sensitivities and noise; those that several purses paid for together first."""
        before = () if self._parent is None else self._parent.parts
        return (*before, *(part for plan in self._plans for part in plan.parts))


def _keep_to(schedule: list[NoisePlan], place: int, plan: NoisePlan) -> None:
    """Refuse a plan that is not that of the other levels at the same place: other parts, another cost, or otherwise divided."""
    if place == len(schedule):
        schedule.append(plan)
        return
    known = schedule[place]
    same = known.mu == plan.mu and len(known.parts) == len(plan.parts)
    pairs = zip(known.parts, plan.parts, strict=False)
    same = same and all(
        one.name == other.name
        and math.isclose(one.sensitivity / one.scale, other.sensitivity / other.scale, rel_tol=_ROUNDING_OF_DRAWS)
        for one, other in pairs
    )
    if not same:
        raise ReleaseError("Levels that are released side by side would draw differently. It was not drawn.")
