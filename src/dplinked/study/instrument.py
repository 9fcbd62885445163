"""What the bounded instrument tells of each column, columns taken to spread evenly around their declared middle.

Public guesses: they decide how precise a release is, never how private.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dplinked.study.descent import Descent
from dplinked.study.design import Column, Design

Floats = NDArray[np.float64]

MIDDLE = 0.7  # share of the rows that a typical range is meant to hold


def _moments(design: Design) -> tuple[Floats, Floats]:
    """``E[h x]`` and ``E[h²]`` per column, columns uniform around their declared middle."""
    signal, square = np.ones(len(design.columns)), np.ones(len(design.columns))
    for group in design.groups:
        for k in range(group.start, group.stop):
            column = design.columns[k]
            if not group.numeric:
                share = 1.0 / (group.stop - group.start + 1)
                signal[k] = square[k] = cell_moments(column, share)[1] / column.scale**2
            elif design.half_widths is None:
                # uniform over the bounds; without an intercept, over the whole scaled interval
                low, high = ((edge - column.shift) / column.scale for edge in column.interval)
                signal[k] = square[k] = (low * low + low * high + high * high) / 3.0
            else:
                half = design.half_widths[k]
                width = min(half / MIDDLE, column.peak)
                inside = min(half, width)
                signal[k] = (inside**3 / (3.0 * half) + (width**2 - inside**2) / 2.0) / width
                square[k] = (inside**3 / (3.0 * half**2) + (width - inside)) / width
    return signal, square


def cell_moments(column: Column, share: float) -> tuple[float, float]:
    """Mean and variance of a column that is 0 outside a cell with a share of the rows."""
    low, high = column.interval if column.numeric else (1.0, 1.0)
    mean, square = share * (low + high) / 2.0, share * (low * low + low * high + high * high) / 3.0
    return mean, square - mean**2


def instrument_signal(design: Design) -> Floats:
    """``E[h x]`` per column, columns spread evenly around their declared middle."""
    return _moments(design)[0]


def instrument_squares(design: Design) -> Floats:
    """``E[h²]`` per column, columns spread evenly around their declared middle."""
    return _moments(design)[1]


def column_spread(design: Design) -> Floats:
    """``E[x²]`` per column (about its middle if there is an intercept), uniform around its declared middle."""
    _, square = _moments(design)
    spread = np.array(square)
    for group in design.groups:
        for k in range(group.start, group.stop):
            if group.numeric and design.half_widths is not None:
                spread[k] = min(design.half_widths[k] / MIDDLE, design.columns[k].peak) ** 2 / 3.0
    return spread


def choose_instrument(aimed: Design, plain: Design, expected_noise: Callable[[Design], Floats]) -> Design:
    """Choose between the aimed bounded instrument and the symmetric one (h = x).

    The symmetric one has less noise per entry, which pays with many columns; the aimed one pulls with full weight where
    the rows lie. `expected_noise` gives the standard error that privacy noise would cause under a design, the intercept's
    first. Columns are taken to lie where the aimed design says.
    """
    errors = []
    for design in (aimed, plain):
        noise = expected_noise(design)[int(design.intercept) :]
        if design is plain:  # the spread that the aimed design implies, under the other instrument
            noise = noise * (instrument_signal(plain) / column_spread(aimed))
        errors.append(float(np.log(noise).mean()))
    return aimed if errors[0] <= errors[1] else plain


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
