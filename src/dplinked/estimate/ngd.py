"""Coefficients from a released gradient descent, and its public step sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.design import Design
from dplinked.estimate.ssp import Estimate
from dplinked.privacy.mechanism import Descent, ReleasedDescent

Floats = NDArray[np.float64]


def public_steps(design: Design, accuracy: float, descent: Descent) -> Floats:
    """Step size per coefficient: one over the curvature that the declared ranges imply.

    Columns are taken as uniform within their typical range (else their bounds) and uncorrelated; a
    declared step overrides it for all. Only public values enter, so a poor guess costs precision, not privacy.
    """
    p = len(design.names)
    if descent.step is not None:
        return np.full(p, descent.step)
    first = int(design.intercept)
    curvature = np.ones(p)
    for group in design.groups:
        for k in range(group.start, group.stop):
            half = design.columns[k].peak if design.halves is None else design.halves[k]
            share = 1.0 if group.numeric else 1.0 / (group.stop - group.start + first)
            curvature[first + k] = accuracy * share * (half**2 / 3.0 if group.numeric else 1.0)
    return 1.0 / curvature


def last_iterate(released: ReleasedDescent) -> Estimate:
    """The last iterate, with the noise that the steps carried into it.

    The curvature is read off the transcript's step sizes (1/η), so the covariance is approximate: each
    step's noise is damped by ``1 - η·curvature`` ≈ 0 in the next.
    """
    beta = released.path[-1]
    per_step = (released.steps * released.scale / released.count) ** 2
    return Estimate(beta, np.diag(per_step), np.sqrt(per_step))
