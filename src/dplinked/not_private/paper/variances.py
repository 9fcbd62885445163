"""The paper's error bounds and variances: Theorems 4.4 to 4.7 and Corollary 4.1 of [LPK24]. NOT PRIVATE: they take true values.

They are used for the paper's figures, and to see orders of magnitude. Intervals of a release use released values only.

The bounds are orders: the paper gives them without constants, so their values mean something only beside each other. Both rest on the event
that no response is clipped (:func:`unclipped_probability`).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from dplinked.estimate.theorems import descent_variance, sums_variance

Floats = NDArray[np.float64]

ngd_variance_not_private = descent_variance
ssp_variance_not_private = sums_variance


def ngd_bias_not_private(gram: Floats, beta: Floats, n: int, eta: float, T: int) -> Floats:
    """Bias of stopping after T steps from zero: ``-(I-A)^T β``."""
    values, vectors = np.linalg.eigh(eta * gram / n)
    return np.asarray(-(vectors * (1.0 - values) ** T) @ vectors.T @ beta)


def ngd_excess_error(n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``‖β_priv - β_RL‖²`` by Theorem 4.4: ``1/n + σ²d³ ln²n ln(1/δ)/(nε)²``, the second term without its constant."""
    return 1.0 / n + sigma**2 * _noise_order(n, d, epsilon, delta)


def ssp_excess_error(n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``‖β_priv - β_RL‖²`` by Theorem 4.5: ``σ⁴d³ ln²n ln(1/δ)/(nε)²``, without its constant."""
    return sigma**4 * _noise_order(n, d, epsilon, delta)


def ngd_total_error(rl_trace: float, n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``E‖β_priv - β‖²`` by Corollary 4.1(i): ``tr Σ^RL`` and the noise term of Theorem 4.4, without constants.

    The 1/n of the theorem is left out, since ``tr Σ^RL`` is never of a smaller order.
    """
    return rl_trace + sigma**2 * _noise_order(n, d, epsilon, delta)


def ssp_total_error(rl_trace: float, n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of the squared error of Algorithm 2 by Corollary 4.1(ii): ``tr Σ^RL`` and the bound of Theorem 4.5, without constants.

    The corollary prints an expectation. There is none: W'W has Gaussian noise, its inverse has no finite mean, and ``E‖β_priv - β‖²`` is
    infinite at every n. Read it as the order of a quantile, or truncate the estimate.
    """
    return rl_trace + ssp_excess_error(n, d, sigma, epsilon, delta)


def _noise_order(n: int, d: int, epsilon: float, delta: float) -> float:
    """What both bounds share: ``d³ ln²n ln(1/δ)/(nε)²``."""
    return d**3 * math.log(n) ** 2 * math.log(1.0 / delta) / (n * epsilon) ** 2


_gauss_points = functools.cache(np.polynomial.legendre.leggauss)


def unclipped_probability(n: int, sigma: float, signal: float = 1.0) -> float:
    """Probability that no response is clipped at ``R = σ√(2 ln n)`` if ``y = signal·x + e`` with x ~ U(-1, 1) and e ~ N(0, σ²).

    The paper calls this a high-probability event. It is not, not even without a signal: ``n·P(|e| > R)`` is about ``1/√(π ln n)``, no
    power of n. With a signal the expected number of clipped responses grows with n, and the probability goes to 0.
    """
    R = math.sqrt(2.0 * math.log(n))
    nodes, weights = _gauss_points(200)
    above = np.exp(log_ndtr(signal * nodes / sigma - R)) + np.exp(log_ndtr(-signal * nodes / sigma - R))
    return float(np.exp(n * (weights @ np.log1p(-above)) / 2.0))


def ssp_excess_quantile(gram: float, slope: float, omega: float, share: float) -> float:
    """Quantile of ``|β_priv - β_RL|`` of Algorithm 2 with a single column, exactly: that of ``|(u - βU)/(W'W + U)|``.

    Parameters
    ----------
    gram, slope, omega
        ``W'W``, the estimate without noise, and the standard deviation of u and U.
    share
        Probability of the quantile, below 1: the mean is infinite, quantiles are not.
    """
    U = omega * norm.ppf((np.arange(4000) + 0.5) / 4000)
    reach = np.abs(gram + U)

    def missing(t: float) -> float:
        within = ndtr((slope * U + t * reach) / omega) - ndtr((slope * U - t * reach) / omega)
        return float(within.mean()) - share

    return float(brentq(missing, 0.0, 1e6 * omega / gram))
