"""Histograms of columns, from which private ranges are found."""

from __future__ import annotations

from functools import partial

import numpy as np

from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import PreparedRows, Strip
from dplinked.sums.numpy.reduce import Sums, sum_strips, sum_tiles
from dplinked.sums.types import PrivateCounts


def column_counts(data: PreparedRows, bins: int) -> PrivateCounts:
    """Histogram of each numeric column over its bounds, on a public grid (numeric groups×bins)."""
    data, title = data.without_links(), "Counting"
    numeric = [group.start for group in data.design.groups if group.numeric]
    grids = np.zeros((len(data.design.columns), 2))
    for k in numeric:
        column = data.design.columns[k]
        low, high = ((edge - column.shift) / column.scale for edge in column.interval)
        grids[k] = low, bins / (high - low)
    if kernel.KERNEL is not None:
        (counts,), _ = sum_tiles(data, partial(kernel.ColumnCounts, data.design, grids, bins), title)
        return PrivateCounts(counts[numeric])

    def work(strip: Strip) -> tuple[Sums, None]:
        places = ((strip.x[k] - grids[k, 0]) * grids[k, 1] for k in numeric)
        found = [np.bincount(np.clip(place.astype(np.int64), 0, bins - 1), minlength=bins) for place in places]
        return [np.array(found, np.int64).reshape(len(numeric), bins)], None

    (counts,), _ = sum_strips(data, work, 0, title)
    return PrivateCounts(counts)
