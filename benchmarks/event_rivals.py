"""Private logistic regression by others, written from their papers, on the terms of `rivals.py`: rows in the cube, one replaced, n public, y 0 or 1.

- Objective perturbation: Kifer, Smith and Thakurta (2012), "Private convex empirical risk minimization and high-dimensional regression", Algorithm 1 with Gaussian noise;
  and Chaudhuri, Monteleoni and Sarwate (2011), "Differentially private empirical risk minimization", Algorithm 2, pure ε.
- diffprivlib: what LogisticRegression of 0.6.6 computes with its default C = 1; the package itself needs an older scikit-learn. It claims pure ε, with the norm of rows in a place
  where scaling them to norm 1, as its theorem asks, would have the square: it is spared that here.
- DP-GD: gradient descent on all rows, whose gradients are clipped row by row, averaged over its last half.
"""

from __future__ import annotations

import math

import numpy as np

from dplinked.privacy.calibration import privacy_mu
from rivals import DataSet, Floats, with_constant

_STEEPEST = 0.25  # second derivative of the loss along the line
_TINY = 1e-8


def maximum_likelihood(data: DataSet) -> Floats:
    """The slopes of maximum likelihood, which have no privacy (1×d)."""
    X = with_constant(data)
    return minimise_loss(X, data.y, np.zeros((1, X.shape[1])), np.zeros(X.shape[1]))[:, int(data.intercept) :]


def minimise_loss(X: Floats, y: Floats, tilts: Floats, ridge: Floats) -> Floats:
    """``argmin Σ loss + ½ θ'diag(ridge)θ + tilt'θ`` for each tilt (draws×p), by damped Newton steps."""
    p = X.shape[1]
    start = np.zeros(p)
    found = np.empty_like(tilts)
    for k, tilt in enumerate(tilts):
        theta = start
        for _ in range(60):
            mean = 1.0 / (1.0 + np.exp(-np.clip(X @ theta, -30.0, 30.0)))
            gradient = X.T @ (mean - y) + ridge * theta + tilt
            hessian = (X * (mean * (1.0 - mean))[:, None]).T @ X + np.diag(ridge) + _TINY * np.eye(p)
            step = np.linalg.solve(hessian, gradient)
            theta = theta - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-300))
            if np.abs(step).max() < 1e-6:
                break
        found[k] = theta
        start = found[0]  # near the others
    return found


def _tilt_by_gamma(scale: float, draws: int, p: int, rng: np.random.Generator) -> Floats:
    """Vectors of even direction whose norm has the density ∝ r^(p-1) e^(-r/scale) (draws×p)."""
    way = rng.standard_normal((draws, p))
    return np.asarray(way / np.linalg.norm(way, axis=1)[:, None] * rng.gamma(p, scale, draws)[:, None])


def draw_kifer(
    data: DataSet,
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
    *,
    reach: float = 1.0,
    ridge: float = 0.0,
) -> Floats:
    """Objective perturbation with Gaussian noise; an oracle may shorten rows to `reach`·√p, and add a `ridge`."""
    X = with_constant(data)
    p = X.shape[1]
    longest = reach * math.sqrt(p)
    X = X * np.minimum(1.0, longest / np.linalg.norm(X, axis=1))[:, None]
    scale = longest * math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * epsilon) / epsilon
    added = 2.0 * _STEEPEST * longest**2 / epsilon + ridge
    tilts = scale * rng.standard_normal((draws, p))
    return minimise_loss(X, data.y, tilts, np.full(p, added))[:, int(data.intercept) :]


def draw_chaudhuri(
    data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator, *, ridge: float = 0.0
) -> Floats:
    """Objective perturbation with pure ε, rows scaled to norm 1; without a ridge of its own it adds the least it needs."""
    X = with_constant(data)
    p = X.shape[1]
    shrunk = ridge / p  # of rows that are scaled
    left = epsilon - 2.0 * math.log1p(_STEEPEST / shrunk) if shrunk else 0.0
    added = 0.0 if left > 0.0 else max(0.0, _STEEPEST / math.expm1(epsilon / 4.0) - shrunk)
    left = left if left > 0.0 else epsilon / 2.0
    tilts = _tilt_by_gamma(2.0 / left, draws, p, rng) * math.sqrt(p)
    return minimise_loss(X, data.y, tilts, np.full(p, p * (shrunk + added)))[:, int(data.intercept) :]


def draw_diffprivlib(data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator) -> Floats:
    """diffprivlib's LogisticRegression with C = 1, which takes rows as they are and leaves the intercept out of C's ridge."""
    X = with_constant(data)
    p = X.shape[1]
    norm = math.sqrt(p)
    left, added = epsilon - 2.0 * math.log1p(_STEEPEST * norm), 0.0
    if left <= 0.0:
        left, added = epsilon / 2.0, _STEEPEST * norm / math.expm1(epsilon / 4.0) - 1.0
    ridge = np.full(p, added)
    ridge[int(data.intercept) :] += 1.0
    tilts = _tilt_by_gamma(2.0 * norm / left, draws, p, rng)
    return minimise_loss(X, data.y, tilts, ridge)[:, int(data.intercept) :]


def draw_descent(
    data: DataSet,
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
    *,
    steps: int,
    clip: float,
    rate: float,
) -> Floats:
    """DP-GD: gradients clipped to `clip`·√p, steps of `rate` over the largest curvature at zero, which only an oracle knows."""
    X = with_constant(data)
    n, p = X.shape
    longest = clip * math.sqrt(p)
    reach = longest / np.linalg.norm(X, axis=1)[:, None]
    step = rate / (_STEEPEST * np.linalg.eigvalsh(X.T @ X)[-1] / n)
    scale = 2.0 * longest * math.sqrt(steps) / privacy_mu(epsilon, delta) / n
    theta, late = np.zeros((draws, p)), np.zeros((draws, p))
    for k in range(steps):
        mean = 1.0 / (1.0 + np.exp(-np.clip(X @ theta.T, -30.0, 30.0)))
        clipped = np.clip(mean - data.y[:, None], -reach, reach)
        theta = theta - step * ((X.T @ clipped).T / n + scale * rng.standard_normal((draws, p)))
        if k >= steps // 2:
            late += theta / (steps - steps // 2)
    return late[:, int(data.intercept) :]
