"""Tails: whether few rows far out carry much of the equation, and how much further out it is clipped then.

Where a column may reach far beyond its size, and what lies there is no line, a clip that suits most rows cuts the rows that decide the least-squares line. How much of
the equation's variance comes from afar is seen in the squares of its contributions, which are released before the last step. If they are
larger than normal residuals around a line would have them, the least-squares line itself has a larger sampling error, and noise may be larger too: the last step clips further out, up to
`_MOST` times as far, and its instruments follow their columns further. Nothing here sees data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dplinked.study.design import Design

Floats = NDArray[np.float64]

_FAR = 5.0  # times its size: a column that reaches further may have a tail
_LEAST = 4.0  # the least norm that contributions are cut to, per column, in deviations
_NOISY = 0.2  # noise of the squares, relative to them, up to which their norm grows
_DROWNED = 0.4  # the same above which they are not looked at
_EXPECTED = 1.1  # times what they are expected to be: squares up to which nothing is seen
_STEEP = 8.0  # how fast clips widen with the squares
_MOST = 8.0
_OFF = 20.0  # times the mean square by which a line is off: what that adds to the squares, by rows far out
_MIXED = 1.0  # times the explained variance that wrong links mix up: what that adds beyond what residuals' size says
_SEEN = 1.25  # least widening that is worth a wider clip


def far_columns(design: Design, sizes: Floats) -> NDArray[np.bool_]:
    """Which columns are numeric and may reach so far beyond their size that few rows could decide the line; `sizes` are root mean squares (d)."""
    numeric = np.concatenate([np.full(group.stop - group.start, group.numeric) for group in design.groups])
    return np.asarray(numeric & (np.array([column.peak for column in design.columns]) > _FAR * sizes))


def choose_norm(columns: int, noise: Callable[[float], float], longest: float) -> float | None:
    """The norm that contributions are cut to, in deviations, as far out as their noise allows, which is `noise` of a norm, relative to their squares; None if they would drown in it.

    None is cut at the `longest` that there can be, beyond which noise grows no more.
    """
    norm = _LEAST * math.sqrt(columns)
    if noise(norm) > _DROWNED:
        return None
    while norm < longest and noise(1.1 * norm) <= _NOISY:
        norm *= 1.1
    return norm


def known_excess(off: float, mixed: float) -> float:
    """What squares of contributions have beyond those of residuals that are as large in all rows: by a line that is `off` by a mean square, and by wrong links that mix up explained variance.

    In rows far out both are larger than elsewhere.
    """
    return _OFF * off + _MIXED * mixed


def widen_clip(squares: Floats, chance: float, noise: float) -> float:
    """How many times as far out the last step clips, by released squares of the slopes' contributions relative to what was expected (d), and what these are off by `chance`.

    Of many columns one will seem to have a tail by chance, so as many more deviations are taken off as the largest of so many has. Otherwise the equation would have `noise` times its sampling
    error, and the more of that, the less is added.
    """
    seen = float(squares.max()) - (1.0 + math.sqrt(2.0 * math.log(squares.size))) * chance
    wider = min(_MOST / max(1.0, noise) ** 2, (max(0.0, seen) / _EXPECTED) ** _STEEP)
    return wider if wider >= _SEEN else 1.0
