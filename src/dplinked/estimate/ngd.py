"""Coefficients from a released gradient descent, and its public step sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.ssp import Estimate, solve_sums
from dplinked.privacy.mechanism import ReleasedDescent, ReleasedSums
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread

Floats = NDArray[np.float64]


def public_steps(design: Design, accuracy: float, descent: Descent) -> Floats:
    """Step size per coefficient: one over the curvature that the declared ranges imply.

    Columns are taken as spread evenly around their typical range (else over their bounds). Steps are
    shortened by a quarter for every further column, since correlated columns add up their curvature; a
    declared step overrides all. Only public values enter, so a poor guess costs precision, not privacy.
    """
    p = len(design.names)
    if descent.step is not None:
        return np.full(p, descent.step)
    curvature = np.concatenate([np.ones(int(design.intercept)), accuracy * column_spread(design)])
    return 1.0 / (curvature * (1.0 + 0.25 * (p - 1)))


def last_iterate(released: ReleasedDescent) -> Estimate:
    """The last iterate, with the noise that the steps carried into it.

    The curvature is read off the transcript's step sizes (1/η), so the covariance is approximate: each
    step's noise is damped by ``1 - η·curvature`` ≈ 0 in the next.
    """
    beta = released.path[-1]
    per_step = (released.steps * released.scale / released.count) ** 2
    return Estimate(beta, np.diag(per_step), np.diag(released.steps / released.count), np.sqrt(per_step))


def descent_sums(path: ReleasedDescent, curvature: ReleasedSums) -> tuple[ReleasedSums, Floats]:
    """(H̃, b̃) around the mean iterate β°: every step tells ``b = Hβ_t - g_t``, and their mean is taken.

    ``b̃ - H̃β`` then carries the mean of the steps' noise, and H̃'s noise times β° - β only.
    """
    centre = path.path[:-1].mean(axis=0)
    vector = curvature.matrix @ centre - path.gradients.mean(axis=0)
    scale = np.full(centre.size, path.scale / np.sqrt(len(path.gradients)))
    return replace(curvature, vector=vector, vector_scale=scale), centre


def solve_descent(released: ReleasedSums, centre: Floats, intercept: bool, prior_scale: float) -> Estimate:
    """Finish the descent: from its mean iterate, solve for what is left to go, shrunk towards it."""
    left = replace(released, vector=released.vector - released.matrix @ centre)
    estimate = solve_sums(left, intercept=intercept, prior_scale=prior_scale)
    return replace(estimate, beta=centre + estimate.beta)
