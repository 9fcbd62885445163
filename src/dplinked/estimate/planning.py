"""What a release would be worth, from public values only. No data is touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.design import Design
from dplinked.linkage import LinkageExposure
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.mechanism import INTERCEPT_GUESS, SLOPE_GUESS, NoisePlan, is_symmetric, plan_sums

Floats = NDArray[np.float64]

MIDDLE = 0.7  # share of the rows that a typical range is meant to hold


@dataclass(frozen=True)
class PlannedError:
    """Expected standard error of one coefficient, in the user's units, by where it comes from."""

    epsilon: float
    name: str
    sampling: float
    privacy: float

    @property
    def total(self) -> float:
        """Both together."""
        return math.hypot(self.sampling, self.privacy)


@dataclass(frozen=True)
class Plan:
    """Expected standard errors over a list of ε, from public values and guesses alone."""

    count: int
    delta: float
    rows: tuple[PlannedError, ...]
    assumptions: str

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [
            f"Expected standard errors at n = {self.count:,}, delta = {self.delta:g} (no data touched)",
            f"{'epsilon':>8}  {'coefficient':<{max(width, 11)}}  {'sampling':>11}  {'privacy':>11}  {'total':>11}",
        ]
        lines += [
            f"{row.epsilon:>8g}  {row.name:<{max(width, 11)}}  {row.sampling:>11.4g}  {row.privacy:>11.4g}  {row.total:>11.4g}"
            for row in self.rows
        ]
        return "\n".join([*lines, self.assumptions])


def plan_errors(
    design: Design,
    links: LinkageExposure,
    accuracy: float,
    count: int,
    epsilons: Sequence[float],
    delta: float,
    response: tuple[float, float],
    r_squared: float,
) -> tuple[PlannedError, ...]:
    """Expected standard errors of all coefficients for each ε.

    `response` is the guessed mean and standard deviation of the response on its scaled column. Every column
    is taken to explain an equal part of the variance.
    """
    to_user, _ = design.to_user()
    level, deviation = response
    d = max(1, len(design.columns))
    guess = np.sqrt(r_squared * deviation**2 / (d * column_spread(design)))
    residual = deviation * math.sqrt(1.0 - r_squared)
    rows = []
    for epsilon in epsilons:
        plan = plan_sums(design, links, count, privacy_mu(epsilon, delta))
        privacy = np.sqrt(to_user**2 @ expected_noise(design, links, accuracy, count, plan, guess, level) ** 2)
        sampling = np.sqrt(to_user**2 @ expected_sampling(design, accuracy, count, residual) ** 2)
        for name, s, p in zip(design.names, sampling, privacy, strict=True):
            rows.append(PlannedError(float(epsilon), name, float(s), float(p)))
    return tuple(rows)


def expected_noise(
    design: Design,
    links: LinkageExposure,
    accuracy: float,
    count: int,
    plan: NoisePlan,
    guess: Floats | float = SLOPE_GUESS,
    level: float = INTERCEPT_GUESS,
) -> Floats:
    """Expected standard error by privacy noise on the scaled columns, slopes (`guess`) taken as uncorrelated."""
    d = len(design.columns)
    signal, _ = _moments(design)
    slope = math.sqrt(float(np.sum(np.square(guess)))) if np.ndim(guess) else float(guess)
    if is_symmetric(design, links):
        core = plan.scale("symmetric matrix") / math.sqrt(2.0)
        border = plan.scale("regressor totals")
    else:
        core = plan.scale("instrument × regressors")
        border = plan.scale("instrument totals")
    variance = plan.scale("instrument × response") ** 2 + (core * slope) ** 2
    slopes = np.sqrt(variance + (border * level) ** 2) / (count * accuracy * signal) if d else np.zeros(0)
    if not design.intercept:
        return slopes
    own = math.hypot(plan.scale("response total"), plan.scale("regressor totals") * slope) / count
    return np.concatenate([[own], slopes])


def expected_sampling(design: Design, accuracy: float, count: int, residual: float) -> Floats:
    """Expected sampling standard error on the scaled columns, for a guessed residual deviation."""
    signal, square = _moments(design)
    slopes = residual * np.sqrt(square / count) / (accuracy * signal)
    return np.concatenate([[residual / math.sqrt(count)], slopes]) if design.intercept else slopes


def _moments(design: Design) -> tuple[Floats, Floats]:
    """``E[h x]`` and ``E[h²]`` per column, columns uniform around their declared middle."""
    signal, square = np.ones(len(design.columns)), np.ones(len(design.columns))
    for group in design.groups:
        for k in range(group.start, group.stop):
            column = design.columns[k]
            if not group.numeric:
                share = 1.0 / (group.stop - group.start + 1)
                signal[k] = square[k] = share * (1.0 - share) / column.scale**2
            elif design.halves is None:
                # uniform over the bounds; without an intercept, over the whole scaled interval
                low, high = ((edge - column.shift) / column.scale for edge in column.interval)
                signal[k] = square[k] = (low * low + low * high + high * high) / 3.0
            else:
                half = design.halves[k]
                width = min(half / MIDDLE, column.peak)
                inside = min(half, width)
                signal[k] = (inside**3 / (3.0 * half) + (width**2 - inside**2) / 2.0) / width
                square[k] = (inside**3 / (3.0 * half**2) + (width - inside)) / width
    return signal, square


def better_instrument(aimed: Design, plain: Design, links: LinkageExposure, count: int, mu: float) -> Design:
    """Choose, from public values only, between the aimed bounded instrument and the symmetric one (h = x).

    The symmetric one has less noise per entry, which pays with many columns; the aimed one pulls with
    full weight where the rows lie. Columns are taken to lie where the aimed design says.
    """
    if not links.symmetric:
        return aimed
    errors = []
    for design in (aimed, plain):
        plan = plan_sums(design, links, count, mu)
        noise = expected_noise(design, links, 1.0, count, plan)
        if design is plain:  # the spread that the aimed design implies, under the other instrument
            noise = noise * np.concatenate([np.ones(int(plain.intercept)), _moments(plain)[0] / column_spread(aimed)])
        errors.append(float(np.log(noise[int(design.intercept) :]).mean()))
    return aimed if errors[0] <= errors[1] else plain


def column_spread(design: Design) -> Floats:
    """``E[x²]`` per column (about its middle if there is an intercept), uniform around its declared middle."""
    _, square = _moments(design)
    spread = np.array(square)
    for group in design.groups:
        for k in range(group.start, group.stop):
            if group.numeric and design.halves is not None:
                spread[k] = min(design.halves[k] / MIDDLE, design.columns[k].peak) ** 2 / 3.0
    return spread
