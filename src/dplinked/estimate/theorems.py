"""The variances of [LPK24]'s estimates, Theorems 4.6 and 4.7, as functions of sums: released ones for intervals, expected ones for plans, true
ones in simulations.

Theorems have the numbers that the paper's LaTeX gives them: lemmas and theorems share a counter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def descent_variance(gram: Floats, meat: Floats, n: int, eta: float, T: int, omega: float) -> Floats:
    """Theorem 4.6: variance of the T-th iterate without projections.

    Parameters
    ----------
    gram, meat
        ``W'W`` and ``W'Σ_z W`` (d×d).
    omega
        Standard deviation of the noise that a step adds to β.

    Notes
    -----
    ``Σ = S (η/n)² W'Σ_zW S + ω² Σ_t (I-A)^(2t-2)`` with ``A = ηW'W/n`` and ``S = Σ_t (I-A)^(t-1)``,
    summed in closed form over the eigenvalues of A.
    """
    gain = descent_gain(gram, n, eta, T)
    return np.asarray(gain @ meat @ gain.T + omega**2 * descent_noise(gram, n, eta, T))


def descent_gain(gram: Floats, n: int, eta: float, T: int) -> Floats:
    """``S η/n``: what a change of W'z does to the T-th iterate (d×d)."""
    values, vectors = np.linalg.eigh(eta * gram / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(values == 0, T, (1.0 - (1.0 - values) ** T) / values)
    return np.asarray((vectors * steps) @ vectors.T * (eta / n))


def descent_noise(gram: Floats, n: int, eta: float, T: int) -> Floats:
    """``Σ_t (I-A)^(2t-2)``: variance of the T-th iterate by steps' noise of variance one (d×d)."""
    values, vectors = np.linalg.eigh(eta * gram / n)
    left = (1.0 - values) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(left == 1, T, (1.0 - left**T) / (1.0 - left))
    return np.asarray((vectors * squares) @ vectors.T)


def sums_variance(gram: Floats, rl_covariance: Floats, beta: Floats, omega: float) -> Floats:
    """Theorem 4.7: first-order variance of Algorithm 2, with noise of standard deviation ω in every entry."""
    bread = np.linalg.inv(gram)
    inner = np.eye(beta.size)
    for moment in (np.outer(beta, beta), rl_covariance, omega**2 * bread @ bread):
        inner = inner + moment - np.diag(np.diag(moment)) + np.trace(moment) * np.eye(beta.size)
    return np.asarray(rl_covariance + omega**2 * bread @ inner @ bread)
