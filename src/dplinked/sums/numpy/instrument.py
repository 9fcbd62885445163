"""Sums of the bounded instrument: ``h'QX`` and ``h'z``.

Under exchangeable linkage errors ``h'Qx = a Σ h_i x_i' + o s_h s_x'`` in each block, with block totals s and the weights of
:mod:`dplinked.sums.blocks`. So Q is never built: one pass gives the row products and the block totals.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import add_border, symmetrise
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.circle import SHARES
from dplinked.sums.numpy.prepare import PreparedRows, Strip, cut_strips
from dplinked.sums.numpy.reduce import Sums, Totals, merge, sum_strips, sum_tiles
from dplinked.sums.types import PrivateSums

Floats = NDArray[np.float64]


def instrument_sums(data: PreparedRows) -> PrivateSums:
    """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first.

    Rows with a missing regressor can be dropped where rows are by themselves; under links their cells are those of others too.
    """
    assert not (data.dropped and data.has_links), "under links every row's regressors are needed"
    data = data if data.dropped else replace(data, design=data.design.counted_alike())
    design = data.design
    if data.matching is not None:
        return _matched_sums(data)
    if kernel.KERNEL is not None:
        begin = partial(kernel.InstrumentSums, design, data.blocks, data.large, dropped=data.dropped)
        sums, totals = sum_tiles(data, begin, "Summing")
        if totals.arrays:
            counted = totals.arrays[:: 1 + data.large]  # the arrays in between have what rounding lost
            data.kept[SHARES] = [array[-1].astype(np.uint32) for array in counted]
    else:
        sums, totals = _sum_strips(data)
    return complete_sums(data, sums, totals)


def complete_sums(data: PreparedRows, sums: Sums, totals: Totals) -> PrivateSums:
    """What links within blocks add to the sums of rows, and the border of the intercept."""
    design, d, (core, b, sum_h, sum_x, sum_z, known, complete) = data.design, len(data.design.columns), sums
    blocks, weight, symmetric = data.blocks, None, data.design.half_widths is None
    if blocks is not None and totals.arrays and d:
        o = blocks.o if blocks.weights is None else blocks.weights * blocks.o
        core = core + totals.product(slice(0 if symmetric else d, d if symmetric else 2 * d), slice(d), o)
    if blocks is not None and blocks.weights is not None:
        weight = blocks.total_weight
    core = symmetrise(core) if symmetric else core
    if data.dropped:  # h'z is no matter of these sums
        own = add_border(design, data.rows.count, core, np.zeros_like(b), sum_h, sum_x, 0.0, float(known))
        return replace(own, known=float(known), complete=float(complete))
    return add_border(design, data.rows.count, core, b, sum_h, sum_x, float(sum_z), weight)


def _sum_strips(data: PreparedRows) -> tuple[Sums, Totals]:
    """Sum all rows by NumPy, strip by strip, where there is no kernel; the totals are those of regressors and, if they differ, of instruments."""
    design, d, blocks = data.design, len(data.design.columns), data.blocks
    symmetric = design.half_widths is None

    def work(strip: Strip) -> tuple[list[Floats], Floats | None]:
        x, z = strip.x, strip.z
        totalled = x if symmetric else np.empty((2 * d, z.size))
        if not symmetric:
            totalled[:d] = x
            design.instruments(x, totalled[d:])
        h = totalled[-d:] if d else totalled
        weighted = x * (1.0 if blocks is None else strip.take(blocks.a))
        # x is a copy also where a is 1: NumPy multiplies an array by itself slowly
        heavy = np.broadcast_to(strip.known, z.shape)
        if blocks is not None and blocks.weights is not None:
            heavy = heavy * strip.take(blocks.weights)
        h, x, z = h * heavy, x * heavy, z * heavy
        sum_x = np.add.reduce(x, axis=1)
        sum_h = sum_x if symmetric else np.add.reduce(h, axis=1)
        rows = np.asarray(np.add.reduce(heavy)), np.asarray(np.add.reduce(heavy * strip.answered))
        totals = [sum_h, sum_x, np.asarray(np.add.reduce(z)), *rows]
        return [np.dot(h, weighted.T), np.dot(h, strip.z), *totals], totalled

    linked = blocks is not None and bool(blocks.o.any())
    return sum_strips(data, work, d * (1 if symmetric else 2) if linked else 0, "Summing")


def _matched_sums(data: PreparedRows) -> PrivateSums:
    """The sums under an explicit Q. All regressors are held in memory, since any row may be matched with any other."""
    design, Q, (x, z) = data.design, data.matching, data.whole()
    x = np.ascontiguousarray(x.T).T  # row by row, as products with Q need them

    def work(rows: slice) -> list[Floats]:
        h = np.empty_like(x[:, rows])
        design.instruments(x[:, rows], h)
        w = np.asarray(Q[rows] @ x.T)
        return [h @ w, h @ z[rows], h.sum(axis=1), w.sum(axis=0), np.asarray(z[rows].sum())]

    core, b, sum_h, sum_x, sum_z = merge([work(rows) for rows in cut_strips(z.size)])
    return add_border(design, data.rows.count, core, b, sum_h, sum_x, float(sum_z))
