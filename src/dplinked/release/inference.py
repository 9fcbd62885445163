"""Intervals and tests from released values, in the user's units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_number, shown
from dplinked.estimate.hypotheses import TestResult, parse_hypotheses
from dplinked.estimate.intervals import Evidence, Solution, fit_restricted, invert_test, solve_evidence
from dplinked.estimate.paper import descent_covariance
from dplinked.estimate.variance import ReleasedVariance
from dplinked.privacy.quantities.descent import ReleasedDescent
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.study.scaling import Scaling

Floats = NDArray[np.float64]
Interval = tuple[float, float]
Grounds = tuple[Evidence, Solution]

LEVEL = 0.95  # of intervals that nothing else is said of
PLAUSIBLE = 3.0  # size of slopes on the scaled columns: a slope that crosses both bounds is 1 or 2
_FAR = 1e4  # a value so many times a coefficient's declared range away counts as infinitely far
_BEYOND = 1.0 + 1e-6  # a statistic just large enough to be rejected


@dataclass(frozen=True, eq=False)
class Inference:
    """All that released sums and their variance tell about the coefficients.

    Attributes
    ----------
    sums, variance, scaling
        As the release has them.
    dropped
        Names of coefficients that a smaller model holds at zero.
    count, descent
        Number of rows, and the transcript of a descent whose last iterate is the estimate, as in Algorithm 1 of the paper; None if the estimate
        solves the sums.
    bounded, plausible
        Whether columns and response lie within about ±1, so that it is known which coefficients are plausible, and how large these are.
    """

    sums: ReleasedSums
    variance: ReleasedVariance
    scaling: Scaling
    dropped: tuple[str, ...] = ()
    count: int = 0
    descent: ReleasedDescent | None = None
    bounded: bool = False
    plausible: float = PLAUSIBLE
    _intervals: dict[tuple[float, str], dict[str, Interval]] = field(default_factory=dict, init=False, repr=False)
    _grounds: dict[str, Grounds] = field(default_factory=dict, init=False, repr=False)

    def conf_int(self, level: float, method: str) -> dict[str, Interval]:
        """Confidence interval of each coefficient; kept, since many coefficients take seconds to invert."""
        if method not in ("test", "wald"):
            raise StudyError(f"method must be 'test' or 'wald', not {shown(method)}.")
        level = checked_level(level)
        if (level, method) not in self._intervals:
            quantile, (rows, offsets) = chi2_quantile(level, 1), self._to_user
            found = {}
            for k, name in enumerate(self.scaling.names):
                if name in self.dropped:
                    continue
                if method == "wald":
                    found[name] = self._wald(rows[k], float(offsets[k]), quantile)
                    continue
                found[name], grounds = self._invert(rows[k], float(offsets[k]), quantile)
                if level == LEVEL:
                    self._grounds[name] = grounds
            self._intervals[level, method] = found
        return dict(self._intervals[level, method])

    def p_values(self) -> dict[str, float]:
        """Of each coefficient, the p-value of the test that it is zero: of the very test that its 95 % interval inverts.

        It is below .05 where that interval leaves out zero, and nowhere else. An interval ends where the test first rejects. Should the test accept again further out,
        or reject something within an interval that has no ends, the interval counts.
        """
        quantile, (rows, offsets), found = chi2_quantile(LEVEL, 1), self._to_user, {}
        for name, (low, high) in self.conf_int(LEVEL, "test").items():
            k, (evidence, solution) = self.scaling.names.index(name), self._grounds[name]
            _, distance = fit_restricted(evidence, solution.beta, rows[k][None, :], np.array([-offsets[k]]))
            statistic = max(0.0, distance - solution.distance)
            inside = low <= 0.0 <= high
            found[name] = chi2_tail(min(statistic, quantile) if inside else max(statistic, _BEYOND * quantile), 1)
        return found

    def interval(self, direction: Floats, offset: float, quantile: float) -> Interval:
        """Interval of ``direction'β + offset`` on the scaled columns, by inverting a test."""
        return self._invert(direction, offset, quantile)[0]

    def _wald(self, direction: Floats, offset: float, quantile: float) -> Interval:
        """Estimate give or take standard errors."""
        middle = float(direction @ self.solution.beta) + offset
        variance = float(direction @ self.solution.covariance @ direction)  # rounding may leave it below 0
        reach = math.sqrt(quantile * max(0.0, variance))
        return middle - reach, middle + reach

    def _invert(self, direction: Floats, offset: float, quantile: float) -> tuple[Interval, Grounds]:
        """The interval that no test rejects, and what these tests rest on."""
        grounds = self.evidence, self.solution
        largest = _FAR * float(np.abs(direction).sum()) * max(1.0, float(np.abs(self.solution.beta).max()))
        low, high = invert_test(*grounds, direction, quantile, largest)
        if self.bounded and not high - low <= 2.0 * self.plausible * float(np.abs(direction).sum()):
            grounds = self._held_plausible(direction)
            low, high = invert_test(*grounds, direction, quantile, largest)
        return (low + offset, high + offset), grounds

    def _held_plausible(self, direction: Floats) -> Grounds:
        """The evidence with all other slopes held at plausible values: one that cannot be told need not make the others unbounded."""
        slopes = np.arange(direction.size) >= int(self.scaling.intercept)
        own = direction != 0.0 if (direction[slopes] != 0.0).sum() == 1 else ~slopes
        evidence = replace(self.evidence, held=np.where(slopes & ~own, self.plausible**-2, 0.0))
        return evidence, solve_evidence(evidence)

    def test(self, hypothesis: str | Sequence[str]) -> TestResult:
        """Test linear hypotheses jointly."""
        left, right, text = parse_hypotheses(hypothesis, self.scaling.names)
        matrix, offset = self._to_user
        scaled = left @ matrix
        rows = np.vstack([self.evidence.left, scaled])
        if np.linalg.matrix_rank(rows / np.linalg.norm(rows, axis=1, keepdims=True)) < len(rows):
            raise StudyError(f"The hypotheses {shown(text)} contradict or repeat each other, or a dropped column.")
        _, distance = fit_restricted(self.evidence, self.solution.beta, scaled, right - left @ offset)
        statistic = max(0.0, distance - self.solution.distance)
        return TestResult(text, statistic, len(left), chi2_tail(statistic, len(left)))

    def coefficients(self) -> tuple[Floats, Floats]:
        """Minimum-distance coefficients in the user's units, and their covariance (p, p×p)."""
        matrix, offset = self._to_user
        return matrix @ self.solution.beta + offset, matrix @ self.solution.covariance @ matrix.T

    @cached_property
    def _to_user(self) -> tuple[Floats, Floats]:
        return self.scaling.to_user()

    @cached_property
    def evidence(self) -> Evidence:
        """All that bears on the coefficients."""
        if self.descent is not None:
            return self._last_iterate(self.descent)
        sums, (matrix, offset) = self.sums, self._to_user
        zero = [self.scaling.names.index(name) for name in self.dropped]
        return Evidence(
            sums.matrix,
            sums.vector,
            sums.matrix_scale,
            sums.vector_scale,
            sums.symmetric,
            self.variance.meat,
            sums.centre,
            self.scaling.intercept,
            (self.variance.accuracy or 0.0) * sums.mixing**2,
            matrix[zero],
            -offset[zero],
            sums.basis,
        )

    def _last_iterate(self, descent: ReleasedDescent) -> Evidence:
        """The last iterate as evidence of the coefficients themselves, with its own covariance: tests are Wald's."""
        matrix, offset = self._to_user
        zero, p = [self.scaling.names.index(name) for name in self.dropped], len(self.scaling.names)
        covariance = descent_covariance(descent, self.sums.matrix, self.variance, self.count, self.scaling.intercept)
        none = np.zeros(p)
        return Evidence(
            np.eye(p), descent.path[-1], np.zeros((p, p)), none, True, covariance, none, self.scaling.intercept, 0.0,
            matrix[zero], -offset[zero],
        )  # fmt: skip

    @cached_property
    def solution(self) -> Solution:
        """The coefficients of the least distance."""
        return solve_evidence(self.evidence)


def checked_level(level: float) -> float:
    """Refuse a level that is not one."""
    if not 0.0 < plain_number(level) < 1.0:
        raise StudyError(f"level must lie strictly between 0 and 1, not {shown(level)}.")
    return float(level)


def chi2_quantile(level: float, degrees: int) -> float:
    """Quantile of the χ² distribution."""
    from scipy.special import chdtri

    return float(chdtri(degrees, 1.0 - level))


def chi2_tail(value: float, degrees: int) -> float:
    """Upper tail of the χ² distribution."""
    from scipy.special import chdtrc

    return float(chdtrc(degrees, value))
