"""Algorithms 1 and 2 of [LPK24] to the letter, for reproduction: NOT PRIVATE.

Their constants come from the data (σ from the residuals, L from the eigenvalues of W'W, c from max‖x‖). Their noise
is NumPy's. If the noisy matrix is singular, noise is drawn again, which looks at the data again. Nothing here
can make a Release; ``dplinked.fit(..., calibration="paper")`` is the private version of both algorithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError

Floats = NDArray[np.float64]

# Gaussian noise makes a matrix singular with probability zero, so even a second draw is a sign that there is no noise to speak of.
_MOST_DRAWS = 100


@dataclass(frozen=True)
class Constants:
    """The paper's constants R, c, L, C and M, and what the theorems derive from them: η = d/L and T = ⌈L² ln(c0² n)⌉."""

    R: float
    c: float
    L: float
    eta: float
    T: int
    C: float
    M: float

    @property
    def ngd_sensitivity(self) -> float:
        """B of Theorem 4.1(i)."""
        return self.R * self.c * (self.M + 4.0) + 2.0 * self.C * self.c**2 * (self.M + 2.0)

    @property
    def ssp_sensitivity(self) -> float:
        """B of Theorem 4.1(ii)."""
        return self.R * self.c * (self.M + 4.0) + max(2.0 * self.c**2 * (self.M + 2.0), 2.0 * self.R**2)


def constants_not_private(
    X: Floats, W: Floats, sigma: float, *, M: float, c0: float, C: float | None = None, c: float | None = None
) -> Constants:
    """The constants as the paper sets them, from the data (Theorems 4.4 and 4.5).

    Parameters
    ----------
    X, W
        Design (n×d) and ``QX``.
    sigma
        Residual standard deviation. It is known in the simulations; in the application it comes from the mean squared error.
    M, c0
        Bounds on the change of Q and on ‖β‖.
    C, c
        Radius of the projection (by default c0) and bound on ‖x‖ (by default the largest one in the data).
    """
    n, d = X.shape
    eigenvalues = d * np.linalg.eigvalsh(W.T @ W / n)
    L = float(max(eigenvalues[-1], 1.0 / eigenvalues[0]))
    return Constants(
        R=sigma * math.sqrt(2.0 * math.log(n)),
        c=float(np.linalg.norm(X, axis=1).max()) if c is None else c,
        L=L,
        eta=d / L,
        T=math.ceil(L**2 * math.log(c0**2 * n)),
        C=c0 if C is None else C,
        M=M,
    )


def ssp_noise(constants: Constants, epsilon: float, delta: float) -> float:
    """ω of Algorithm 2: standard deviation of the noise in every entry."""
    return constants.ssp_sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def ngd_noise(constants: Constants, n: int, epsilon: float, delta: float) -> float:
    """ω of Algorithm 1: standard deviation of the noise that a step adds to β."""
    k = constants
    return 2.0 * k.eta * k.ngd_sensitivity * math.sqrt(k.T * math.log(1.0 / delta)) / (n * epsilon)


def ssp_not_private(
    gram: Floats, cross: Floats, constants: Constants, epsilon: float, delta: float, rng: np.random.Generator
) -> Floats:
    """Algorithm 2 on ``W'W`` and ``W'z*``, where the caller has clipped z to ±R.

    A singular matrix is drawn again, as in the paper, but a hundred times at most. Drawing again is not free, as Remark 3.1 has it: the
    second draw uses the data once more, and which data lead to it is told by the result.
    """
    d, omega = cross.size, ssp_noise(constants, epsilon, delta)
    for _ in range(_MOST_DRAWS):
        U = np.triu(rng.normal(0.0, omega, (d, d)))
        noisy = gram + U + np.triu(U, 1).T
        u = rng.normal(0.0, omega, d)
        if np.linalg.cond(noisy) < 1.0 / np.finfo(float).eps:
            return np.asarray(np.linalg.solve(noisy, cross + u), np.float64)
    raise StudyError(
        f"The noisy matrix was singular in {_MOST_DRAWS} draws, so its noise is nothing beside it. Check epsilon and the constants, "
        "and leave out columns that are sums of others."
    )


def ngd_not_private(
    gram: Floats,
    cross: Floats,
    n: int,
    constants: Constants,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    repetitions: int = 1,
) -> Floats:
    """Algorithm 1, run on the sums, `repetitions` times at once; returns one β per run (repetitions×d).

    `cross` is ``W'z*``, one for all runs (d) or one for each (repetitions×d). As only sums are used, a step costs d², not nd.
    """
    k, omega = constants, ngd_noise(constants, n, epsilon, delta)
    beta = np.zeros((repetitions, gram.shape[0]))
    for _ in range(k.T):
        beta = beta - k.eta / n * (beta @ gram - cross) + rng.normal(0.0, omega, beta.shape)
        norms = np.linalg.norm(beta, axis=1, keepdims=True)
        beta *= np.minimum(1.0, k.C / np.maximum(norms, np.finfo(float).tiny))
    return beta
