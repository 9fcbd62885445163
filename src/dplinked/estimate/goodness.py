"""How well the line fits: residual standard deviation and R², with intervals, from released squares of residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from dplinked.records import Record

Estimated = tuple[float, float, float]  # a value and the ends of its interval

CLIPS = (4.0, 8.0)  # deviations at which residuals are clipped before they are squared: least and most
_WORTH = 0.01  # noise of the sum of squares, relative to it, up to which they are clipped further out
_CLEAR = 0.3  # noise of the squares of contributions, relative to what normal errors would make of them, up to which they tell of other errors
_NORMAL = NormalDist()


@dataclass(frozen=True)
class SumOfSquares(Record):
    """A noisy sum of squared residuals of right links, the standard deviation of its noise, and its variance by sampling and wrong links."""

    total: float
    noise: float
    variance: float

    @property
    def whole_variance(self) -> float:
        """By noise as well."""
        return self.noise**2 + self.variance


@dataclass(frozen=True)
class Goodness(Record):
    """What tells how well the line fits, on the scaled response.

    Attributes
    ----------
    error, whole
        Squares around the line, and around the mean; around zero without an intercept.
    shared
        Covariance of the two by sampling, if errors do not follow the regressors.
    weight, weight_error
        What rows weigh together in these sums, and the relative error of that.
    added
        What the error of the line itself adds to the squares around it.
    """

    error: SumOfSquares
    whole: SumOfSquares
    shared: float
    weight: float
    weight_error: float
    added: float

    def residual_sd(self, level: float) -> Estimated:
        """Standard deviation of the errors of right links, and its interval."""
        variance = (self.error.total - self.added) / self.weight
        spread = math.hypot(math.sqrt(self.error.whole_variance) / self.weight, variance * self.weight_error)
        reach = _quantile(level) * spread
        found = (math.sqrt(max(0.0, end)) for end in (variance, variance - reach, variance + reach))
        value, low, high = found
        return value, low, high

    def r_squared(self, level: float) -> Estimated:
        """Share of the response's variance that the line explains, and its interval; from 0 to 1 if noise hides the variance itself."""
        error, whole = self.error.total - self.added, self.whole.total
        if whole <= _quantile(level) * math.sqrt(self.whole.whole_variance):
            return min(1.0, max(0.0, 1.0 - error / whole)) if whole > 0.0 else 0.0, 0.0, 1.0
        ratio = error / whole
        variance = self.error.whole_variance + ratio**2 * self.whole.whole_variance - 2.0 * ratio * self.shared
        reach = _quantile(level) * math.sqrt(max(0.0, variance)) / whole
        value, low, high = (min(1.0, max(0.0, 1.0 - end)) for end in (ratio, ratio + reach, ratio - reach))
        return value, low, high

    def scaled(self, factor: float) -> Goodness:
        """The same, if squares of residuals are a `factor` as large."""
        sums = (
            replace(one, total=factor * one.total, noise=factor * one.noise, variance=factor**2 * one.variance)
            for one in (self.error, self.whole)
        )
        error, whole = sums
        return replace(self, error=error, whole=whole, shared=factor**2 * self.shared, added=factor * self.added)


def choose_square_clip(noise: float, weight: float, errors: str) -> float:
    """At how many deviations residuals are clipped before they are squared, if the sum of these squares has `noise` per unit of its largest term; rows weigh `weight` together."""
    close, far = CLIPS
    return far if errors == "skewed" else min(far, max(close, math.sqrt(_WORTH * weight / noise)))


def spread_of_squares(total: float, squares: float, noise: float, rows: float, normal: float) -> float:
    """Variance of a sum of squares by sampling and wrong links: what the squares of contributions tell if they are clear of their `noise`, else that of `normal` errors; `rows` have contributed."""
    if noise > _CLEAR * normal:
        return normal
    return max(_CLEAR * normal, squares - total**2 / rows)


def normal_spread(squares: float, contrast: float, accuracy: float, right: float, wrong: float, limit: float) -> float:
    """What :func:`spread_of_squares` is of normal errors of variance `right`, if wrong links bring residuals of variance `wrong`; squares of what rows weigh add up to `squares`."""
    fourth = 3.0 * (accuracy * right**2 + (1.0 - accuracy) * min(wrong**2, limit**2 / 3.0))
    return squares * max(2.0 * (contrast * right) ** 2, fourth - (contrast * right) ** 2)


def _quantile(level: float) -> float:
    return _NORMAL.inv_cdf((1.0 + level) / 2.0)
