"""Expected standard errors on the scaled columns, from public values and guesses."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy.noise_plan import NoisePlan
from dplinked.privacy.quantities.instrument import INTERCEPT_GUESS, SLOPE_GUESS, entry_noise, plan_sums
from dplinked.study.design import Design
from dplinked.study.instrument import choose_instrument, instrument_signal, instrument_squares

Floats = NDArray[np.float64]


def expected_noise(
    design: Design,
    accuracy: float,
    count: int,
    plan: NoisePlan,
    guess: Floats | float = SLOPE_GUESS,
    level: float = INTERCEPT_GUESS,
) -> Floats:
    """Expected standard error by privacy noise on the scaled columns, slopes (`guess`) taken as uncorrelated."""
    signal, noise = instrument_signal(design), entry_noise(plan)
    slope = math.sqrt(float(np.sum(np.square(guess)))) if np.ndim(guess) else float(guess)
    variance = noise.response**2 + (noise.core * slope) ** 2
    slopes = np.sqrt(variance + (noise.column * level) ** 2) / (count * accuracy * signal)
    if not design.intercept:
        return np.asarray(slopes, np.float64)
    own = math.hypot(noise.response_total, noise.row * slope) / count
    return np.concatenate([[own], slopes])


def expected_sampling(design: Design, accuracy: float, count: int, residual: float) -> Floats:
    """Expected sampling standard error on the scaled columns, for a guessed residual deviation."""
    slopes = residual * np.sqrt(instrument_squares(design) / count) / (accuracy * instrument_signal(design))
    return np.concatenate([[residual / math.sqrt(count)], slopes]) if design.intercept else slopes


def better_instrument(aimed: Design, plain: Design, exposure: LinkageExposure, count: int, mu: float) -> Design:
    """Choose, from public values only, between the aimed bounded instrument and the symmetric one (h = x)."""
    if not exposure.symmetric:
        return aimed
    return choose_instrument(
        aimed, plain, lambda design: expected_noise(design, 1.0, count, plan_sums(design, exposure, count, mu))
    )
