"""What a curve makes of the regressors of rows by themselves: the outcome's expected equation, and its slope. No response is read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.study.design import Design
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import PreparedRows, Strip
from dplinked.sums.numpy.reduce import Sums, sum_strips, sum_tiles
from dplinked.sums.numpy.residuals import instruments_of
from dplinked.sums.types import PrivateSums, ResidualClip

Floats = NDArray[np.float64]

_TITLE = "Along the curve"


def curve_sums(data: PreparedRows, clip: ResidualClip, level: float) -> PrivateSums:
    """``Σ w a s m' (1, h)(1, x)'`` (p×p) and ``Σ w a s (1, h)(m - level)`` (p), m the curve's mean at the line and m' its slope."""
    data = replace(data.own_rows(weighted=True), design=_without_response(data.design))
    if kernel.KERNEL is not None:
        (matrix, vector), _ = sum_tiles(
            data, partial(kernel.CurveSums, data.design, clip, level, data.blocks, dropped=data.dropped), _TITLE
        )
    else:
        (matrix, vector), _ = sum_strips(data, partial(_sum_strip, data, clip, level), 0, _TITLE)
    return PrivateSums(matrix, vector, data.rows.count)


def _without_response(design: Design) -> Design:
    """A design whose rows have a regressor in the response's place, if there is one, so that the response's cells are not read."""
    if not design.columns:
        return design
    bounds = {name: ends for name, ends in design.bounds.items() if name not in design.response_variables}
    levels = {name: listed for name, listed in design.levels.items() if name not in design.response_variables}
    return replace(design, response=design.columns[0], bounds=bounds, levels=levels)


def _sum_strip(data: PreparedRows, clip: ResidualClip, level: float, strip: Strip) -> tuple[Sums, None]:
    """The sums of a strip."""
    first, curve = int(data.design.intercept), clip.curve
    assert curve is not None
    h, x = instruments_of(data, strip.x), np.vstack([np.ones((first, strip.z.size)), strip.x])
    mean, slope = curve.mean_and_slope(clip.beta[:first].sum() + clip.beta[first:] @ strip.x)
    shares = clip.widths(h[first:]) * strip.known
    if data.blocks is not None and data.blocks.weights is not None:
        shares *= strip.take(data.blocks.weights)
    return [np.dot(h * (shares * slope), x.T), np.dot(h, shares * (mean - level))], None
