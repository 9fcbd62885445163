"""What a plan holds: errors that are to be expected, and what would make them smaller."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedError:
    """Expected standard error of one coefficient, in the user's units, by where it comes from.

    `accuracy` is the part of `linkage` that the accuracy's own error makes.
    """

    epsilon: float
    count: int
    name: str
    sampling: float
    linkage: float
    privacy: float
    accuracy: float = 0.0

    @property
    def total(self) -> float:
        """All together."""
        return math.hypot(self.sampling, self.linkage, self.privacy)

    def half_width(self, level: float = 0.95) -> float:
        """Expected half-width of a confidence interval."""
        return statistics.NormalDist().inv_cdf((1.0 + level) / 2.0) * self.total

    def ratio(self, level: float = 0.95) -> float:
        """By what factor an odds ratio or a rate ratio is expected to lie apart from the ends of its interval."""
        return math.exp(min(self.half_width(level), 700.0))


@dataclass(frozen=True)
class Lever:
    """What one change would do to the standard error of a coefficient: its factor, below 1 if it helps."""

    change: str
    name: str
    factor: float


@dataclass(frozen=True)
class Curve:
    """Expected half-widths of one coefficient's 95 % interval over one quantity, all else as in :class:`Point`.

    Attributes
    ----------
    quantity
        ``"epsilon"``, ``"rows"``, ``"accuracy"``, ``"checked"`` (links), ``"review"`` (so many times as many links as were checked, where their
        number is not said) or ``"bounds"`` (their width, the study's own being 1).
    values, half_width, floor
        Places, the half-width at each, and what it would be without privacy noise.
    now, place
        The half-width at the plan's own point, and where that is.
    """

    quantity: str
    name: str
    values: tuple[float, ...]
    half_width: tuple[float, ...]
    floor: tuple[float, ...]
    now: float
    place: float


@dataclass(frozen=True)
class Point:
    """Where levers and curves start from."""

    epsilon: float
    count: int
    accuracy: float


@dataclass(frozen=True)
class Expectations:
    """The figures of a plan; see :class:`~dplinked.Plan`."""

    delta: float
    rows: tuple[PlannedError, ...]
    levers: tuple[Lever, ...]
    needed: tuple[tuple[str, float, float | None], ...]
    assumptions: str
    formula: str
    point: Point
    curves: tuple[Curve, ...]
    limits: tuple[str, ...] = ()
    family: str = "linear"

    @property
    def slopes_at_point(self) -> list[PlannedError]:
        """What is expected of each slope at the plan's own point; of the intercept, if there is no slope."""
        here = [row for row in self.rows if (row.epsilon, row.count) == (self.point.epsilon, self.point.count)]
        return [row for row in here if row.name != "Intercept"] or here
