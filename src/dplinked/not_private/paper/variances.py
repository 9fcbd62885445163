"""The paper's variances and error bounds: Theorems 4.4 to 4.7 of [LPK24]. NOT PRIVATE: they take true values.

They are used for the paper's figures, and to see orders of magnitude. Intervals of a release use released values only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.theorems import descent_variance, sums_variance

Floats = NDArray[np.float64]

ngd_variance_not_private = descent_variance
ssp_variance_not_private = sums_variance


def ngd_bias_not_private(gram: Floats, beta: Floats, n: int, eta: float, T: int) -> Floats:
    """Bias of stopping after T steps from zero: ``-(I-A)^T β``."""
    values, vectors = np.linalg.eigh(eta * gram / n)
    return np.asarray(-(vectors * (1.0 - values) ** T) @ vectors.T @ beta)


def ngd_excess_error(n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``‖β_priv - β_RL‖²`` by Theorem 4.4, without constants."""
    return 1.0 / n + sigma**2 * d**3 * math.log(n) ** 2 * math.log(1.0 / delta) / (n * epsilon) ** 2


def ssp_excess_error(n: int, d: int, sigma: float, epsilon: float, delta: float) -> float:
    """Order of ``‖β_priv - β_RL‖²`` by Theorem 4.5, without constants."""
    return sigma**4 * d**3 * math.log(n) ** 2 * math.log(1.0 / delta) / (n * epsilon) ** 2
