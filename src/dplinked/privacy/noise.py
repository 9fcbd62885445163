"""The only place where a release draws noise."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

GRID = -40  # noise lives on multiples of 2**GRID of its own scale


def add_gaussian(values: ArrayLike, scale: ArrayLike) -> Floats:
    """Add Gaussian noise with the given standard deviations, from OpenDP's exact sampler.

    Parameters
    ----------
    values
        What is to be released (any shape), finite.
    scale
        Standard deviation of the noise, positive: one number, or one per value.

    Notes
    -----
    Values are divided by their scale, rounded to a grid of 2⁻⁴⁰ and given discrete Gaussian noise on
    that grid; :func:`draw_slack` bounds what division and grid add to a sensitivity. Randomness comes
    from the operating system through OpenSSL and cannot be seeded.

    Privacy
    -------
    If neighbours' ``values/scale`` differ by at most μ in l2 norm, one call is μ-GDP, up to the slack.
    Callers look this function up in its module at call time, so that a check can replace and replay it.
    """
    values, scale = np.asarray(values, dtype=np.float64), np.asarray(scale, dtype=np.float64)
    scales = np.broadcast_to(scale, values.shape)
    if not (np.isfinite(values).all() and np.isfinite(scales).all() and (scales > 0).all()):
        raise ValueError("Values and scales must be finite, and scales positive.")
    if values.size == 0:
        return values.copy()
    drawn = _unit_mechanism(values.size)((values / scales).ravel().tolist())
    noisy: Floats = np.asarray(drawn, dtype=np.float64).reshape(values.shape) * scales
    return noisy


def draw_slack(entries: int, largest: float) -> float:
    """What one draw adds to an l2 distance in units of the noise: the grid, and rounding of the quotients.

    `largest` bounds ``|value/scale|``. Each neighbour's quotient is off by at most one rounding of the
    division and half a step of the grid.
    """
    return 2.0 * math.sqrt(entries) * (2.0**GRID + largest * 2.0**-52)


@lru_cache(maxsize=64)
def _unit_mechanism(size: int) -> Any:
    """OpenDP's mechanism for so many values; it takes longer to make than to draw from."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=1.0, k=GRID)
