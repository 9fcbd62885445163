"""Outcomes that are not linear: how the mean of an event or of a count follows the line ``η = β₀ + x'β``, and how steeply.

Everything is bounded by public numbers, whatever η is: sensitivities rest on that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FAMILIES = ("linear", "logistic", "poisson")
RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio"}  # what the exponential of a coefficient is
MOST_COUNTS = 300  # the largest count that can be declared: the sums below have so many terms
LEAST_ETA = -30.0  # η below this is taken for this


@dataclass(frozen=True)
class Curve:
    """The mean of an outcome as a function of η: that of an event, ``1/(1 + e^-η)``, or that of a count which is clipped to `largest`.

    A count Y with mean ``λ = e^η`` by Poisson's law, clipped to L, has the mean ``E min(Y, L) = L - Σ_{k<L} (L-k) P(Y=k)``. So clipping counts bends no slope as
    far as counts follow that law; ``min(λ, L)`` in its place would, by as much as the clipped counts weigh.

    Attributes
    ----------
    family
        ``"logistic"`` or ``"poisson"``.
    largest
        L: the outcome lies between 0 and this.
    """

    family: str
    largest: int = 1

    @property
    def counts(self) -> bool:
        """Whether the outcome is a count."""
        return self.family == "poisson"

    @cached_property
    def highest(self) -> float:
        """η above this is taken for this: clipped counts are then all at their largest, and so are events."""
        return math.log(2.0 * self.largest + 40.0) if self.counts else -LEAST_ETA

    @cached_property
    def steepest(self) -> float:
        """D: bound on the slope of the mean, ``dm/dη``, which is cut there."""
        if not self.counts:
            return 0.25
        return 1.001 * float(self._of_counts(np.linspace(LEAST_ETA, self.highest, 4001))[1].max())

    def mean_and_slope(self, eta: Floats) -> tuple[Floats, Floats]:
        """m within [0, L], and ``dm/dη`` within [0, D] (k each)."""
        eta = np.clip(eta, LEAST_ETA, self.highest)
        mean, slope = self._of_counts(eta) if self.counts else self._of_events(eta)
        return np.clip(mean, 0.0, float(self.largest)), np.clip(slope, 0.0, self.steepest)

    def mean(self, eta: Floats) -> Floats:
        """m within [0, L] (k)."""
        return self.mean_and_slope(eta)[0]

    def find_eta(self, mean: float) -> float:
        """η of a mean; that of the nearest one that η can have."""
        from scipy.optimize import brentq

        ends = LEAST_ETA, self.highest

        def excess(eta: float) -> float:
            return float(self.mean(np.array([eta]))[0]) - mean

        low, high = excess(ends[0]), excess(ends[1])
        return ends[0] if low >= 0.0 else ends[1] if high <= 0.0 else float(brentq(excess, *ends))

    def level(self, intercept: bool) -> tuple[float, float]:
        """η along the level line, and the mean outcome there: with an intercept, half of all outcomes happen along it."""
        eta = self.find_eta(self.largest / 2.0) if intercept else 0.0
        return eta, float(self.mean(np.array([eta]))[0])

    @staticmethod
    def _of_events(eta: Floats) -> tuple[Floats, Floats]:
        mean = 1.0 / (1.0 + np.exp(-eta))
        return mean, mean * (1.0 - mean)

    def _of_counts(self, eta: Floats) -> tuple[Floats, Floats]:
        """``Σ_{k<L} (L-k) λ^k/k!`` and ``Σ_{k<L} λ^k/k!`` by Horner's rule; all terms are positive."""
        rate, short, below = np.exp(eta), np.zeros_like(eta), np.zeros_like(eta)
        for k in range(self.largest - 1, 0, -1):
            share = rate / k
            short, below = (short + (self.largest - k)) * share, (below + 1.0) * share
        none = np.exp(-rate)
        return self.largest - none * (short + self.largest), rate * none * (below + 1.0)
