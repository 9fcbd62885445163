"""The pass over rows: read in parts, clip, scale, sum, merge in a fixed order.

Under exchangeable linkage errors ``h'Qx = a Σ h_i x_i' + o s_h s_x'`` per block, with ``a = γ - o`` and
block totals s, so Q is never built: one pass gives the row products and the block totals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import add_border, symmetrise
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import Encoded, Piece, Strip, cut_strips
from dplinked.sums.numpy.reduce import Totals, add_up, merge, sum_parts, sum_strips
from dplinked.sums.types import PrivateCounts, PrivateSums

Floats = NDArray[np.float64]


# --- the bounded instrument -----------------------------------------------------------------------


def instrument_sums(data: Encoded) -> PrivateSums:
    """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
    design, d = data.design, len(data.design.columns)
    if data.matching is not None:
        return _matched_sums(data)
    symmetric = design.half_widths is None
    if kernel.KERNEL is not None:
        (core, b, sum_h, sum_x, sum_z), totals = _sum_compiled(data)
    else:
        (core, b, sum_h, sum_x, sum_z), totals = _sum_instruments(data, symmetric)
    if data.blocks is not None and d:
        core = core + totals.product(slice(-d, None), slice(d), data.blocks.o)
    core = symmetrise(core) if symmetric else core
    return add_border(design, data.rows.count, core, b, sum_h, sum_x, float(sum_z))


def _sum_compiled(data: Encoded) -> tuple[list[NDArray[Any]], Totals]:
    """Sums, and totals of regressors and instruments, tile by tile."""
    a = None if data.blocks is None else data.blocks.a

    def begin() -> tuple[Callable[[Piece], list[NDArray[Any]]], list[Floats]]:
        mine = kernel.InstrumentSums(data.design, a, data.large)

        def add(piece: Piece) -> list[NDArray[Any]]:
            tiles = (mine.add(tile.count, tile.raw, tile.levels, tile.codes) for tile in data.tiles(piece))
            return add_up(tiles)

        return add, mine.totals

    return sum_parts(data, begin, "Summing")


def _sum_instruments(data: Encoded, symmetric: bool) -> tuple[list[NDArray[Any]], Totals]:
    """The same by NumPy."""
    design, d = data.design, len(data.design.columns)

    def work(strip: Strip) -> tuple[list[Floats], Floats | None]:
        x, z = strip.x, strip.z
        held = x if symmetric else np.empty((2 * d, z.size))
        if not symmetric:
            held[:d] = x
            design.instruments(x, held[d:])
        h = held[-d:] if d else held
        weights = 1.0 if data.blocks is None else data.blocks.weights(strip)
        weighted = x * weights  # a copy also where they are 1: NumPy multiplies an array by itself slowly
        sum_x = np.add.reduce(x, axis=1)
        sum_h = sum_x if symmetric else np.add.reduce(h, axis=1)
        return [np.dot(h, weighted.T), np.dot(h, z), sum_h, sum_x, np.asarray(np.add.reduce(z))], held

    return sum_strips(data, work, d * (1 if symmetric else 2), "Summing")


def _matched_sums(data: Encoded) -> PrivateSums:
    """The same under an explicit Q: regressors are held whole, since any row may be matched with any other."""
    design, Q, (x, z) = data.design, data.matching, data.whole()
    x = np.ascontiguousarray(x.T).T  # row by row, as products with Q need them

    def work(rows: slice) -> list[Floats]:
        h = np.empty_like(x[:, rows])
        design.instruments(x[:, rows], h)
        w = np.asarray(Q[rows] @ x.T)
        return [h @ w, h @ z[rows], h.sum(axis=1), w.sum(axis=0), np.asarray(z[rows].sum())]

    core, b, sum_h, sum_x, sum_z = merge([work(rows) for rows in cut_strips(z.size)])
    return add_border(design, data.rows.count, core, b, sum_h, sum_x, float(sum_z))


# --- the paper's W ---------------------------------------------------------------------------------


def paper_sums(data: Encoded, row_norm: float, response_bound: float) -> PrivateSums:
    """``W'W`` and ``W'z*`` of Algorithms 1 and 2: rows scaled to norm ≤ c, responses clipped to ±R."""
    p, blocks = len(data.design.names), data.blocks

    def scaled(x: Floats, z: Floats) -> tuple[Floats, Floats]:
        rows = np.vstack([np.ones(z.size), x]) if data.design.intercept else x.copy()
        scale_rows(rows, row_norm)
        return rows, np.clip(z, -response_bound, response_bound)

    if data.matching is not None:
        x, z = scaled(*data.whole())
        x = np.ascontiguousarray(x.T).T  # row by row, as products with Q need them
        w = [(np.asarray(data.matching[rows] @ x.T).T, z[rows]) for rows in cut_strips(z.size)]
        gram, cross = merge([[mixed @ mixed.T, mixed @ part] for mixed, part in w])
        return PrivateSums(gram, cross, data.rows.count)

    def work(strip: Strip) -> tuple[list[Floats], Floats | None]:
        x, z = scaled(strip.x, strip.z)
        held = np.vstack([x, z])
        if blocks is not None:
            x *= blocks.weights(strip)
        return [np.dot(x, x.T), np.dot(x, z)], held

    (gram, cross), totals = sum_strips(data, work, p + 1, "Summing")
    if blocks is not None:
        a, o, m = blocks.a, blocks.o, blocks.sizes
        gram = gram + totals.product(slice(p), slice(p), 2.0 * a * o + m * o**2)
        cross = cross + totals.product(slice(p), slice(p, None), o)[:, 0]
    return PrivateSums(symmetrise(gram), cross, data.rows.count)


def scale_rows(x: Floats, row_norm: float) -> None:
    """Scale the columns of `x` (one per data row) to l2 norm at most `row_norm`, in place."""
    largest = np.abs(x).max(axis=0, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)  # 1e200 squared would overflow
    norms = safe * np.sqrt(np.einsum("ij,ij->j", x / safe, x / safe))
    x *= row_norm / np.maximum(norms * (1.0 + 1e-12), row_norm)


# --- counting, for private ranges ------------------------------------------------------------------


def column_counts(data: Encoded, bins: int) -> PrivateCounts:
    """Histogram of each numeric column over its bounds, on a public grid (rows: numeric groups)."""
    numeric = [group.start for group in data.design.groups if group.numeric]

    def work(strip: Strip) -> tuple[list[NDArray[Any]], None]:
        counts = np.zeros((len(numeric), bins), dtype=np.int64)
        for row, k in zip(counts, numeric, strict=True):
            low, high = (
                (edge - data.design.columns[k].shift) / data.design.columns[k].scale
                for edge in data.design.columns[k].interval
            )
            place = ((strip.x[k] - low) * (bins / (high - low))).astype(np.int64)
            row += np.bincount(np.clip(place, 0, bins - 1), minlength=bins)
        return [counts], None

    (counts,), _ = sum_strips(data, work, 0, "Counting")
    return PrivateCounts(counts)
