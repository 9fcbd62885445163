"""Sums of the paper's W = QX, for Algorithms 1 and 2 of [LPK24].

In a block of m rows ``W'W = a²X'X + (2ao + mo²)ss'`` and ``W'z = aX'z + o s Σz`` with the block's totals s of its rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import symmetrise
from dplinked.sums.numpy.prepare import PreparedRows, Strip, cut_strips
from dplinked.sums.numpy.reduce import merge, sum_strips
from dplinked.sums.types import PrivateSums

Floats = NDArray[np.float64]


def paper_sums(data: PreparedRows, row_norm: float, response_bound: float) -> PrivateSums:
    """``W'W``, ``W'z*`` and ``z*'z*``, with rows scaled to norm at most `row_norm` and responses clipped to ±`response_bound`."""
    p, blocks = len(data.design.names), data.blocks

    def scaled(x: Floats, z: Floats) -> tuple[Floats, Floats]:
        rows = np.vstack([np.ones(z.size), x]) if data.design.intercept else x.copy()
        scale_rows(rows, row_norm)
        return rows, np.clip(z, -response_bound, response_bound)

    if data.matching is not None:
        x, z = scaled(*data.whole())
        x = np.ascontiguousarray(x.T).T  # row by row, as products with Q need them
        w = [(np.asarray(data.matching[rows] @ x.T).T, z[rows]) for rows in cut_strips(z.size)]
        gram, cross, squares = merge([[mixed @ mixed.T, mixed @ part, np.dot(part, part)] for mixed, part in w])
        return PrivateSums(gram, cross, data.rows.count, float(squares))

    def work(strip: Strip) -> tuple[list[Floats], Floats | None]:
        x, z = scaled(strip.x, strip.z)
        totalled = np.vstack([x, z])
        if blocks is not None:
            x *= strip.take(blocks.a)
        return [np.dot(x, x.T), np.dot(x, z), np.dot(z, z)], totalled

    (gram, cross, squares), totals = sum_strips(data, work, p + 1, "Summing")
    if blocks is not None:
        a, o, m = blocks.a, blocks.o, blocks.sizes
        gram = gram + totals.product(slice(p), slice(p), 2.0 * a * o + m * o**2)
        cross = cross + totals.product(slice(p), slice(p, None), o)[:, 0]
    return PrivateSums(symmetrise(gram), cross, data.rows.count, float(squares))


def scale_rows(x: Floats, row_norm: float) -> None:
    """Scale the columns of `x` (one per data row) to l2 norm at most `row_norm`, in place."""
    largest = np.abs(x).max(axis=0, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)  # 1e200 squared would overflow
    norms = safe * np.sqrt(np.einsum("ij,ij->j", x / safe, x / safe))
    x *= row_norm / np.maximum(norms * (1.0 + 1e-12), row_norm)
