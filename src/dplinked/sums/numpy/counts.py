"""Histograms of columns, from which private ranges are found."""

from __future__ import annotations

import numpy as np

from dplinked.sums.numpy.prepare import PreparedRows, Strip
from dplinked.sums.numpy.reduce import Sums, sum_strips
from dplinked.sums.types import PrivateCounts


def column_counts(data: PreparedRows, bins: int) -> PrivateCounts:
    """Histogram of each numeric column over its bounds, on a public grid (numeric groups×bins)."""
    data = data.without_links()
    numeric = [group.start for group in data.design.groups if group.numeric]

    def work(strip: Strip) -> tuple[Sums, None]:
        counts = np.zeros((len(numeric), bins), dtype=np.int64)
        for row, k in zip(counts, numeric, strict=True):
            column = data.design.columns[k]
            low, high = ((edge - column.shift) / column.scale for edge in column.interval)
            place = ((strip.x[k] - low) * (bins / (high - low))).astype(np.int64)
            row += np.bincount(np.clip(place, 0, bins - 1), minlength=bins)
        return [counts], None

    (counts,), _ = sum_strips(data, work, 0, "Counting")
    return PrivateCounts(counts)
