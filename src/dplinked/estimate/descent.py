"""Coefficients from a released gradient descent, finished with its released curvature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.coefficients import Estimate, solve_sums
from dplinked.privacy.quantities.descent import ReleasedDescent
from dplinked.privacy.quantities.instrument import ReleasedSums

Floats = NDArray[np.float64]


def descent_sums(path: ReleasedDescent, curvature: ReleasedSums) -> ReleasedSums:
    """(H̃, b̃) around the mean iterate β°: every step tells ``b = Hβ_t - g_t``, and their mean is taken.

    ``b̃ - H̃β`` then carries the mean of the steps' noise, and H̃'s noise times β° - β only.
    """
    centre = path.path[:-1].mean(axis=0)
    vector = curvature.matrix @ centre - path.gradients.mean(axis=0)
    scale = np.full(centre.size, path.scale / np.sqrt(len(path.gradients)))
    return replace(curvature, vector=vector, vector_scale=scale, centre=centre)


def solve_descent(
    released: ReleasedSums, intercept: bool, prior_scale: float, turned: Floats | None = None
) -> Estimate:
    """Finish the descent: from its mean iterate, solve for what is left to go, shrunk towards it; `turned` as in :func:`solve_sums`."""
    left = replace(released, vector=released.vector - released.matrix @ released.centre)
    estimate = solve_sums(left, intercept=intercept, prior_scale=prior_scale, turned=turned)
    return replace(estimate, beta=released.centre + estimate.beta)
