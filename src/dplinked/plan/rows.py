"""What a plan takes the rows to be: columns spread evenly around their typical ranges, uncorrelated, slopes of equal weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.study.design import Design, Group
from dplinked.study.instrument import MIDDLE, cell_moments, instrument_signal, instrument_squares

Floats = NDArray[np.float64]

_EXAMPLES = 1024


@dataclass(frozen=True)
class Guess:
    """The guesses that a plan rests on.

    Attributes
    ----------
    level, deviation
        Mean and standard deviation of the response, in the user's units; the deviation of events and counts follows from their mean.
    r_squared
        Share of the response's variance that the model explains.
    accuracy, accuracy_variance
        Share of right links, and the relative variance of what is declared for it, ``Var(γ̂)/γ²``.
    subgroup
        Share of rows that count at all.
    """

    level: float
    deviation: float
    r_squared: float
    accuracy: float
    accuracy_variance: float
    subgroup: float = 1.0


@dataclass(frozen=True, eq=False)
class ExpectedRows:
    """Moments of the rows on the scale of a design (p each, the intercept first), and the coefficients that the guesses imply.

    Attributes
    ----------
    mean, spread
        Mean and variance of each regressor.
    instrument, signal, squares
        Mean of each instrument, its covariance with its regressor, and its variance.
    beta
        Coefficients: each column explains an equal part of the response's variance, with a positive slope.
    sampling, linkage
        Variance of a response around what its row predicts: the model's own residuals, and what wrong links add, ``(1-γ²)Var(x'β)``.
    """

    mean: Floats
    spread: Floats
    instrument: Floats
    signal: Floats
    squares: Floats
    beta: Floats
    sampling: float
    linkage: float

    def gram(self, accuracy: float) -> Floats:
        """``E[ww']`` (p×p) of the paper's ``W = QX`` in large blocks: wrong links draw a row towards the mean."""
        return np.asarray(np.outer(self.mean, self.mean) + accuracy**2 * np.diag(self.spread), np.float64)

    def cross(self, assumed: float, accuracy: float) -> Floats:
        """``E[wz]`` (p), w by an assumed accuracy and the responses by the true one."""
        mixed = np.outer(self.mean, self.mean) + assumed * accuracy * np.diag(self.spread)
        return np.asarray(mixed @ self.beta, np.float64)

    def matrix(self, accuracy: float) -> Floats:
        """``E[hw']`` (p×p): the bounded instrument's matrix, by row."""
        return np.asarray(np.outer(self.instrument, self.mean) + accuracy * np.diag(self.signal), np.float64)

    def instrument_gram(self) -> Floats:
        """``E[hh']`` (p×p)."""
        return np.asarray(np.outer(self.instrument, self.instrument) + np.diag(self.squares), np.float64)


def expect_rows(aimed: Design, design: Design, guess: Guess, largest: float = math.inf) -> ExpectedRows:
    """The rows on the scale of `design`, spread as `aimed`, the design with the declared typical ranges, says, within ±`largest`."""
    scale = np.array([column.scale for column in design.columns])
    shift = np.array([column.shift for column in design.columns])
    moments = [
        cut_spread(*_column_moments(aimed, group, k), largest)
        for group in aimed.groups
        for k in range(group.start, group.stop)
    ]
    mean = (np.array([moment[0] for moment in moments]) - shift) / scale
    spread = np.array([moment[1] for moment in moments]) / scale**2
    instrument, signal, squares = mean.copy(), spread.copy(), spread.copy()
    if design.half_widths is not None:
        numeric = [group.start for group in design.groups if group.numeric]
        instrument[numeric] = 0.0
        signal[numeric] = instrument_signal(design)[numeric]
        squares[numeric] = instrument_squares(design)[numeric]
    deviation = guess.deviation / design.response.scale
    level = (guess.level - design.response.shift) / design.response.scale
    explained = guess.r_squared * deviation**2
    slopes = np.sqrt(explained / (max(1, mean.size) * spread))
    ahead = np.ones(int(design.intercept))
    return ExpectedRows(
        mean=np.concatenate([ahead, mean]),
        spread=np.concatenate([0.0 * ahead, spread]),
        instrument=np.concatenate([ahead, instrument]),
        signal=np.concatenate([0.0 * ahead, signal]),
        squares=np.concatenate([0.0 * ahead, squares]),
        beta=np.concatenate([(level - mean @ slopes) * ahead, slopes]),
        sampling=deviation**2 - explained,
        linkage=explained * (1.0 - guess.accuracy**2),
    )


def example_rows(aimed: Design, design: Design) -> tuple[Floats, Floats]:
    """Examples of rows on the scale of `design` (k×d), spread as `aimed` says and uncorrelated, and the logarithms of their exposures (k).

    Columns of one group share its levels. The examples fill the space evenly: they are multiples of numbers that are far from all fractions, modulo 1.
    """
    places = _even_places(2 * len(aimed.groups) + 1)
    cells = np.zeros((len(places), len(aimed.columns)))
    for which, group in enumerate(aimed.groups):
        level, inside = places[:, 2 * which], places[:, 2 * which + 1]
        chosen = np.floor(level * (group.stop - group.start + 1))
        for k in range(group.start, group.stop):
            mean, variance = _column_moments(aimed, group, k)
            if group.numeric:
                cells[:, k] = mean + math.sqrt(12.0 * variance) * (level - 0.5)
            else:
                low, high = aimed.columns[k].interval if aimed.columns[k].numeric else (1.0, 1.0)
                cells[:, k] = (chosen == k - group.start) * (low + (high - low) * inside)
    shift, scale = (np.array([getattr(column, name) for column in design.columns]) for name in ("shift", "scale"))
    exposed = np.zeros(len(places))
    if design.exposure is not None:
        low, high = np.exp(design.exposure.interval)
        exposed = np.log(low + (high - low) * places[:, -1])
    return (cells - shift) / scale, exposed


def _even_places(dimensions: int) -> Floats:
    """Points that fill a cube evenly (k×dimensions): multiples of powers of the root of ``x^(d+1) = x + 1``, modulo 1."""
    root = 1.5
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1.0)
    return np.asarray((0.5 + np.outer(np.arange(1, _EXAMPLES + 1), steps)) % 1.0, np.float64)


def numeric_columns(design: Design) -> NDArray[np.bool_]:
    """Which columns are numbers rather than levels (d)."""
    numeric = np.zeros(len(design.columns), bool)
    for group in design.groups:
        numeric[group.start : group.stop] = group.numeric
    return numeric


def guess_response(design: Design, typical: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Mean and standard deviation of the response, spread evenly around what the typical ranges make of it, or over its interval."""
    low, high = design.response_range(typical) if typical else design.response.interval
    return (low + high) / 2.0, (high - low) / (2.0 * math.sqrt(3.0) * (MIDDLE if typical else 1.0))


def cut_spread(mean: float, variance: float, largest: float) -> tuple[float, float]:
    """Mean and variance of even values of which none is beyond ±`largest`: what was beyond is left out."""
    half = math.sqrt(3.0 * variance)
    low, high = max(mean - half, -largest), min(mean + half, largest)
    if (low, high) == (mean - half, mean + half) or not low < high:
        return mean, variance
    return (low + high) / 2.0, (high - low) ** 2 / 12.0


def _column_moments(aimed: Design, group: Group, k: int) -> tuple[float, float]:
    """Mean and variance of a column in its own units."""
    column = aimed.columns[k]
    if not group.numeric:
        return cell_moments(column, 1.0 / (group.stop - group.start + 1))
    if aimed.half_widths is None:
        low, high = column.interval
        return (low + high) / 2.0, (high - low) ** 2 / 12.0
    width = min(aimed.half_widths[k] / MIDDLE, column.peak) * column.scale
    return column.shift, width**2 / 3.0
