"""Which instrument is expected to have less noise, from public values alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy.noise_plan import NoisePlan
from dplinked.privacy.quantities.instrument import INTERCEPT_GUESS, SLOPE_GUESS, entry_noise, plan_sums
from dplinked.privacy.spending import FIRST_STAGE
from dplinked.study.design import Design
from dplinked.study.instrument import choose_instrument, column_spread, instrument_signal

Floats = NDArray[np.float64]

_CLOSE_ENOUGH = 0.1


def expected_noise(design: Design, count: int, plan: NoisePlan) -> Floats:
    """Expected standard error by privacy noise on the scaled columns, for slopes and an intercept of the size that divides the budget."""
    signal, noise = instrument_signal(design), entry_noise(plan)
    variance = noise.response**2 + (noise.core * SLOPE_GUESS) ** 2 + (noise.column * INTERCEPT_GUESS) ** 2
    slopes = math.sqrt(variance) / (count * signal)
    if not design.intercept:
        return np.asarray(slopes, np.float64)
    own = math.hypot(noise.response_total, noise.row * SLOPE_GUESS) / count
    return np.concatenate([[own], slopes])


def first_share(design: Design, exposure: LinkageExposure, count: int, mu: float) -> float:
    """Share of a budget of μ for the sums from which a second stage starts: as small as leaves what they predict within a tenth of the response's bounds.

    Steps of the second stage make what is left a small part of that.
    """
    spread = np.concatenate([np.ones(int(design.intercept)), column_spread(design)])
    least, most = FIRST_STAGE
    for share in np.geomspace(least, most, 6).tolist():
        noise = expected_noise(design, count, plan_sums(design, exposure, count, mu * math.sqrt(share)))
        if float((noise**2 * spread).sum()) <= _CLOSE_ENOUGH**2:
            return float(share)
    return most


def better_instrument(aimed: Design, plain: Design, exposure: LinkageExposure, count: int, mu: float) -> Design:
    """Choose, from public values only, between the aimed bounded instrument and the symmetric one (h = x)."""
    if not exposure.symmetric:
        return aimed
    return choose_instrument(
        aimed, plain, lambda design: expected_noise(design, count, plan_sums(design, exposure, count, mu))
    )
