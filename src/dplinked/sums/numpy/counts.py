"""Histograms of columns, from which private ranges are found, and how large weights are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.study.design import Design
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import PreparedRows, Strip
from dplinked.sums.numpy.reduce import Sums, sum_strips, sum_tiles
from dplinked.sums.types import PrivateCounts, PrivateMoments

Floats = NDArray[np.float64]


def column_counts(data: PreparedRows, bins: int) -> PrivateCounts:
    """Histogram of each numeric column over its bounds, on a public grid (numeric groups×bins)."""
    data, title = replace(data.without_links(), design=_numeric_alone(data.design)), "Counting"
    columns = data.design.columns
    grids = np.zeros((len(columns), 2))
    for k, column in enumerate(columns):
        low, high = ((edge - column.shift) / column.scale for edge in column.interval)
        grids[k] = low, bins / (high - low)
    if kernel.KERNEL is not None:
        (counts,), _ = sum_tiles(data, partial(kernel.ColumnCounts, data.design, grids, bins), title)
        return PrivateCounts(counts)

    def work(strip: Strip) -> tuple[Sums, None]:
        places = ((x - low) * factor for x, (low, factor) in zip(strip.x, grids, strict=True))
        found = [np.bincount(np.clip(place.astype(np.int64), 0, bins - 1), minlength=bins) for place in places]
        return [np.array(found, np.int64).reshape(len(columns), bins)], None

    (counts,), _ = sum_strips(data, work, 0, title)
    return PrivateCounts(counts)


def weight_moments(data: PreparedRows) -> PrivateMoments:
    """Sums of what rows count, of its square and of its fourth power (3), of rows by themselves."""
    alone = replace(data.without_links(), design=data.design.weights_alone(), dropped=True)

    def work(strip: Strip) -> tuple[Sums, None]:
        return [moments_of(np.broadcast_to(strip.known, strip.z.shape))], None

    (sums,), _ = sum_strips(alone, work, 0, "Weighing")
    return PrivateMoments(sums)


def moments_of(counted: Floats) -> Floats:
    """Sums of what some rows count, of its square and of its fourth power (3)."""
    squared = counted * counted
    return np.array([counted.sum(), squared.sum(), (squared * squared).sum()])


def _numeric_alone(design: Design) -> Design:
    """The first column of each numeric group; nothing else is read, and where a response is expected, a column stands."""
    columns = tuple(design.columns[group.start] for group in design.groups if group.numeric)
    used = {name for column in columns for factor in column.numeric for name in factor.variables}
    used |= {name for column in columns for name, _ in column.cell}
    return replace(
        design,
        columns=columns,
        groups=(),
        response=columns[0] if columns else design.response,
        bounds={name: ends for name, ends in design.bounds.items() if name in used or not columns},
        levels={name: listed for name, listed in design.levels.items() if name in used or not columns},
        half_widths=None,
        counting=None,
    )
