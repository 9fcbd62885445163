"""The paper's variances and error bounds: Theorems 4.2 to 4.5 of [LPK24]. NOT PRIVATE: they take true values.

They are used for the paper's figures, and to see orders of magnitude. Intervals of a release use released values only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def ngd_variance_not_private(gram: Floats, meat: Floats, n: int, eta: float, T: int, omega: float) -> Floats:
    """Theorem 4.4: variance of the T-th iterate without projections.

    Parameters
    ----------
    gram, meat
        ``W'W`` and ``W'Σ_z W`` (d×d), the latter from :func:`dplinked.not_private.baseline.rl_meat`.
    omega
        Standard deviation of the noise that a step adds to β.

    Notes
    -----
    ``Σ = S (η/n)² W'Σ_zW S + ω² Σ_t (I-A)^(2t-2)`` with ``A = ηW'W/n`` and ``S = Σ_t (I-A)^(t-1)``,
    summed in closed form over the eigenvalues of A.
    """
    values, vectors = np.linalg.eigh(eta * gram / n)
    left = 1.0 - values
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(values == 0, T, (1.0 - left**T) / values)
        squares = np.where(left**2 == 1, T, (1.0 - left ** (2 * T)) / (1.0 - left**2))
    S = (vectors * steps) @ vectors.T
    return np.asarray(S @ meat @ S * (eta / n) ** 2 + omega**2 * (vectors * squares) @ vectors.T)


def ngd_bias_not_private(gram: Floats, beta: Floats, n: int, eta: float, T: int) -> Floats:
    """Bias of stopping after T steps from zero: ``-(I-A)^T β``."""
    values, vectors = np.linalg.eigh(eta * gram / n)
    return np.asarray(-(vectors * (1.0 - values) ** T) @ vectors.T @ beta)


def ssp_variance_not_private(gram: Floats, rl_covariance: Floats, beta: Floats, omega: float) -> Floats:
    """Theorem 4.5: first-order variance of Algorithm 2, with noise of standard deviation ω in every entry."""
    bread = np.linalg.inv(gram)
    inner = np.eye(beta.size)
    for moment in (np.outer(beta, beta), rl_covariance, omega**2 * bread @ bread):
        inner = inner + moment - np.diag(np.diag(moment)) + np.trace(moment) * np.eye(beta.size)
    return np.asarray(rl_covariance + omega**2 * bread @ inner @ bread)


def ngd_excess_error(n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``‖β_priv - β_RL‖²`` by Theorem 4.2, without constants."""
    return 1.0 / n + sigma**2 * d**3 * math.log(n) ** 2 * math.log(1.0 / delta) / (n * epsilon) ** 2


def ssp_excess_error(n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``‖β_priv - β_RL‖²`` by Theorem 4.3, without constants."""
    return sigma**4 * d**3 * math.log(n) ** 2 * math.log(1.0 / delta) / (n * epsilon) ** 2
