"""Intervals and tests from released values only, by inverting tests (Anderson-Rubin, Fieller).

At the true coefficients ``b̃ - H̃β`` is Gaussian around zero whatever the state of H̃, also when H̃ is
nearly singular, with covariance

    V(β) = meat + noise of b̃ + Cov(U(β - β°)) + error of the accuracy,

U the noise of H̃ and β° the point around which b̃ was taken (0, or a descent's mean iterate). A set of
coefficients that no test rejects is a confidence set. It may be unbounded: then this budget does not
identify the coefficient, and that is the honest answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core

Floats = NDArray[np.float64]

_ROUNDS = 15  # steps towards the least distance; one or two do where noise is small


@dataclass(frozen=True)
class Evidence:
    """Everything released that bears on the coefficients, on the scaled columns.

    Attributes
    ----------
    matrix, vector
        H̃ (p×p) and b̃ (p).
    matrix_scale, vector_scale
        Standard deviation of the noise in each entry.
    symmetric
        Whether the noise of the matrix is symmetric.
    meat
        Variance of ``b - Hβ`` by sampling and wrong links (p×p).
    centre
        β° (p).
    accuracy_variance
        Relative variance of the declared accuracy, ``Var(γ̂)/γ²``.
    left, right
        Restrictions ``left β = right`` (q×p, q) that the model imposes; none unless it is a submodel.
    basis
        B (p×p), if the scales of the noise are those of other coordinates, ``Bβ``; see :class:`~dplinked.privacy.quantities.instrument.ReleasedSums`.
    held
        How firmly each coefficient is held at plausible values (p), one over their squared size; 0 where nothing is known of it.
    """

    matrix: Floats
    vector: Floats
    matrix_scale: Floats
    vector_scale: Floats
    symmetric: bool
    meat: Floats
    centre: Floats
    intercept: bool
    accuracy_variance: float
    left: Floats
    right: Floats
    basis: Floats | None = None
    held: Floats | float = 0.0

    @property
    def size(self) -> int:
        """Number of coefficients, those held at zero included."""
        return self.vector.size

    def moment(self, beta: Floats) -> Floats:
        """``b̃ - H̃β``."""
        return self.vector - self.matrix @ beta

    def noise(self, beta: Floats) -> Floats:
        """Covariance of the privacy noise in ``b̃ - H̃β``."""
        return noise_covariance(self, beta)

    def accuracy_error(self, beta: Floats) -> Floats:
        """Covariance that the accuracy's own error causes: H's slopes are proportional to it."""
        if self.accuracy_variance == 0.0:
            return np.zeros_like(self.matrix)
        moved = self._moved @ beta
        return np.asarray(self.accuracy_variance * np.outer(moved, moved), np.float64)

    @cached_property
    def _moved(self) -> Floats:
        """``γ ∂H/∂γ``: the slopes' part of H, the means taken out."""
        first, moved = int(self.intercept), np.zeros_like(self.matrix)
        moved[first:, first:] = centred_core(self.matrix, self.intercept)
        return moved

    def covariance(self, beta: Floats) -> Floats:
        """V(β)."""
        return self.meat + self.noise(beta) + self.accuracy_error(beta)

    def measure(self, beta: Floats) -> Measured:
        """The distance of β: ``(b̃ - H̃β)'V(β)⁻¹(b̃ - H̃β)``, χ² with p degrees of freedom at the true coefficients; and what holds coefficients at plausible values."""
        moment, covariance = self.moment(beta), self.covariance(beta)
        weighted = np.asarray(np.linalg.solve(covariance, moment), np.float64)
        return Measured(beta, covariance, weighted, float(moment @ weighted + (self.held * beta) @ beta))

    def half_gradient(self, at: Measured) -> Floats:
        """Half the gradient of the distance: ``-H̃'w - ½ w'(∂V/∂β)w`` with ``w = V⁻¹(b̃ - H̃β)``, and the pull of plausible values."""
        beta, w = at.beta, at.weighted
        bend = self._bend(beta - self.centre, w)
        if self.accuracy_variance:
            moved, first = self._moved, int(self.intercept)
            bend[first:] += self.accuracy_variance * (w @ moved @ beta) * (moved.T @ w)[first:]
        return np.asarray(-self.matrix.T @ w - bend + self.held * beta, np.float64)

    def _bend(self, offset: Floats, w: Floats) -> Floats:
        """Half the gradient of ``w'V(β)w`` by the noise of the matrix, so far from the centre."""
        variance = self.matrix_scale**2
        if self.basis is not None:
            offset, w = self.basis @ offset, self.basis @ w
        bend = offset * (variance.T @ w**2)
        if self.symmetric:
            bend += w * (variance @ (offset * w)) - np.diag(variance) * offset * w**2
        return np.asarray(bend if self.basis is None else self.basis.T @ bend, np.float64)


@dataclass(frozen=True)
class Measured:
    """Coefficients with V(β) (p×p), ``w = V⁻¹(b̃ - H̃β)`` (p) and their distance."""

    beta: Floats
    covariance: Floats
    weighted: Floats
    distance: float


class NoisySums(Protocol):
    """Sums with the scales of their noise."""

    @property
    def matrix_scale(self) -> Floats:
        """Of each entry of the matrix (p×p)."""

    @property
    def vector_scale(self) -> Floats:
        """Of each entry of the vector (p)."""

    @property
    def symmetric(self) -> bool:
        """Whether the noise of the matrix is symmetric."""

    @property
    def centre(self) -> Floats:
        """The coefficients around which the vector was taken (p)."""

    @property
    def basis(self) -> Floats | None:
        """B (p×p), if the scales are those of other coordinates, ``Bβ``."""


def noise_covariance(sums: NoisySums, beta: Floats) -> Floats:
    """Covariance of the privacy noise in ``b̃ - H̃β`` (p×p)."""
    offset, variance, basis = beta - sums.centre, sums.matrix_scale**2, sums.basis
    offset = offset if basis is None else basis @ offset
    covariance = np.diag(sums.vector_scale**2 + variance @ offset**2)
    if sums.symmetric:
        shared = variance * np.outer(offset, offset)
        covariance += shared - np.diag(np.diag(shared))
    return np.asarray(covariance if basis is None else basis.T @ covariance @ basis, np.float64)


def fit_restricted(evidence: Evidence, start: Floats, left: Floats, right: Floats) -> tuple[Floats, float]:
    """Least distance subject to ``left β = right`` (q×p, q) and the model's own restrictions.

    Generalised least squares with V taken at `start`, then Gauss-Newton steps on the distance itself,
    which knows that V moves with β.
    """
    p = evidence.size
    left, right = np.vstack([evidence.left, left]), np.concatenate([evidence.right, right])
    beta = np.asarray(np.linalg.lstsq(left, right, rcond=None)[0] if right.size else np.zeros(p), np.float64)
    basis = _null_space(left, p)
    if not basis.size:
        return beta, evidence.measure(beta).distance
    slope, pull = evidence.matrix @ basis, basis.T @ (np.broadcast_to(evidence.held, p)[:, None] * basis)
    weighted = np.linalg.solve(evidence.covariance(start), np.column_stack([slope, evidence.moment(beta)]))
    curvature, target = slope.T @ weighted[:, :-1] + pull, slope.T @ weighted[:, -1] - basis.T @ (evidence.held * beta)
    found = evidence.measure(beta + basis @ np.linalg.lstsq(curvature, target, rcond=None)[0])
    for _ in range(_ROUNDS):
        curvature = slope.T @ np.linalg.solve(found.covariance, slope) + pull
        step = basis @ np.linalg.lstsq(curvature, -(basis.T @ evidence.half_gradient(found)), rcond=None)[0]
        for shorter in (1.0, 0.5, 0.25, 0.0625):
            closer = evidence.measure(found.beta + shorter * step)
            if closer.distance < found.distance:
                break
        else:
            break
        gained, found = found.distance - closer.distance, closer
        if gained < 1e-7 * (1.0 + found.distance):
            break
    return found.beta, found.distance


def _null_space(constraints: Floats, p: int) -> Floats:
    if not constraints.size:
        return np.eye(p)
    _, s, right = np.linalg.svd(constraints)
    rank = int((s > 1e-12 * s.max()).sum())
    return np.asarray(right[rank:].T, np.float64)


@dataclass(frozen=True)
class Solution:
    """Minimum-distance coefficients, their distance, and their covariance where H̃ is taken at its word."""

    beta: Floats
    distance: float
    covariance: Floats


def solve_evidence(evidence: Evidence) -> Solution:
    """The point that no test can reject, with its Wald covariance."""
    none = np.zeros((0, evidence.size))
    beta, distance = fit_restricted(evidence, evidence.centre, none, np.zeros(0))
    return Solution(beta, distance, wald_covariance(evidence, beta))


def wald_covariance(evidence: Evidence, beta: Floats, part: Floats | None = None) -> Floats:
    """Covariance of the minimum-distance estimate at β; of one part of V if given (p×p)."""
    V = evidence.covariance(beta)
    basis = _null_space(evidence.left, evidence.size)
    weighted = np.linalg.solve(V, evidence.matrix @ basis)
    gain = basis @ np.linalg.pinv((evidence.matrix @ basis).T @ weighted) @ weighted.T
    return np.asarray(gain @ (V if part is None else part) @ gain.T, np.float64)


def invert_test(
    evidence: Evidence, solution: Solution, direction: Floats, quantile: float, largest: float
) -> tuple[float, float]:
    """All values of ``direction'β`` that the test at χ² quantile `quantile` does not reject, as an interval.

    Looks for where the least distance crosses the quantile on either side of the solution. Far away the
    distance is the same on both sides, so a set that reaches `largest` on one side is unbounded on both,
    whatever it leaves out in between.
    """
    middle = float(direction @ solution.beta)
    spread = math.sqrt(max(float(direction @ solution.covariance @ direction), 0.0))
    starts = {-1: solution.beta, 1: solution.beta}

    def excess(value: float, side: int) -> float:
        beta, distance = fit_restricted(evidence, starts[side], direction[None, :], np.array([value]))
        starts[side] = beta
        return distance - solution.distance - quantile

    def reach(side: int) -> float:
        return _first_crossing(lambda step: excess(middle + side * step, side), spread, largest, quantile)

    left = reach(-1)
    right = reach(1) if math.isfinite(left) else math.inf
    return (middle - left, middle + right) if math.isfinite(right) else (-math.inf, math.inf)


def _first_crossing(excess: Callable[[float], float], spread: float, largest: float, quantile: float) -> float:
    """Distance at which `excess` first turns positive; infinite if it does not up to `largest`."""
    guess = spread * math.sqrt(quantile)
    if not (math.isfinite(guess) and guess > 0):
        guess = largest / 1e6
    low, f_low, step = 0.0, -quantile, guess
    while (f_step := excess(step)) <= 0:
        low, f_low = step, f_step
        if step >= largest:
            return math.inf
        step *= 1.15 if step < 2.0 * guess else 2.0
    high, f_high, middle = step, f_step, step
    for _ in range(60):
        # distances grow about quadratically: interpolate in squares
        share = f_low / (f_low - f_high)
        middle = math.sqrt(low**2 + share * (high**2 - low**2))
        if not low < middle < high or high - low > 0.9 * high:
            middle = (low + high) / 2.0
        f_middle = excess(middle)
        if f_middle <= 0:
            low, f_low = middle, f_middle
        else:
            high, f_high = middle, f_middle
        if high - low <= 1e-7 * high or abs(f_middle) < 1e-6 * quantile:
            break
    return middle
