"""The second pass: residuals around released coefficients, for the variance of the estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import symmetrise
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import Blocks, PreparedRows, Strip, cut_strips
from dplinked.sums.numpy.reduce import Sums, Totals, merge, sum_strips, sum_tiles
from dplinked.sums.types import Centres, MeatClip, Predictor, PrivateCounts, PrivateMeat, PrivateStrata

Floats = NDArray[np.float64]

MEASURING, _VARIANCE = "Measuring residuals", "Variance"


def residual_counts(data: PreparedRows, predictor: Predictor, edges: Floats) -> PrivateCounts:
    """Histogram of the absolute residuals that rows have on their own, between increasing public edges; the last bin is open.

    If rows are dropped, it has those of complete ones, and then the number of others.
    """
    data, bins = data.without_links(), edges.size + 1
    if kernel.KERNEL is not None:
        (counts,), _ = sum_tiles(data, lambda: begin_counts(data, predictor, edges), MEASURING)
        return PrivateCounts(counts[None, :])

    def work(strip: Strip) -> tuple[Sums, None]:
        places = np.searchsorted(edges, np.abs(_own_residuals(data, predictor, strip.x, strip.z)))
        if data.dropped:
            places = np.where(strip.known * strip.answered, places, bins)
        return [np.bincount(places, minlength=bins + data.dropped)], None

    (counts,), _ = sum_strips(data, work, 0, MEASURING)
    return PrivateCounts(counts[None, :])


def begin_counts(data: PreparedRows, predictor: Predictor, edges: Floats) -> kernel.ResidualCounts:
    """What a thread counts tiles with."""
    slopes, level = _own_line(data, predictor)
    return kernel.ResidualCounts(data.design, slopes, level, predictor.accuracy, edges, dropped=data.dropped)


def row_meat(
    data: PreparedRows, predictor: Predictor, weights: Floats, norm: float, centres: Centres | None = None
) -> PrivateMeat:
    """``Σ u_i u_i'`` with ``u_i = weights·h_i·r_i``, around the centre of its stratum if there are strata, scaled to ‖u_i‖ ≤ norm. Under an explicit Q the residual r_i is taken from ``w_i'β``."""
    if centres is not None:

        def square_apart(u: Floats, strata: NDArray[np.int32]) -> Sums:
            u = centres.take(u, strata)
            shorten(u, norm)
            return [np.asarray(np.dot(u, u.T))]

        (meat,) = _sum_contributions(data, predictor, weights, square_apart)
        return PrivateMeat(symmetrise(meat))

    def square(x: Floats, residual: Floats) -> Floats:
        u = instruments_of(data, x) * weights[:, None] * residual
        shorten(u, norm)
        return np.asarray(np.dot(u, u.T))

    if data.matching is not None:
        x, z = data.whole()
        first = int(data.design.intercept)
        residual = z - predictor.beta[:first].sum() - data.matching @ (predictor.beta[first:] @ x)
        (meat,) = merge([[square(x[:, rows], residual[rows])] for rows in cut_strips(z.size)])
        return PrivateMeat(symmetrise(meat))
    group_weights = None if data.blocks is None else data.blocks.weights
    data = data.without_links() if group_weights is None else data
    if kernel.KERNEL is not None:
        slopes, level = _own_line(data, predictor)
        line = predictor.accuracy * slopes, level
        clip = MeatClip("row", weights, norm)
        begin = partial(kernel.ResidualSums, data.design, line, None, clip, data.blocks, None, False)
        (_, meat), _ = sum_tiles(data, begin, _VARIANCE)
        return PrivateMeat(meat + np.triu(meat, 1).T)

    def work(strip: Strip) -> tuple[Sums, None]:
        residual = _own_residuals(data, predictor, strip.x, strip.z)
        return [square(strip.x, residual if group_weights is None else residual * strip.take(group_weights))], None

    (meat,), _ = sum_strips(data, work, 0, _VARIANCE)
    return PrivateMeat(symmetrise(meat))


def row_strata(data: PreparedRows, predictor: Predictor, weights: Floats, norm: float) -> PrivateStrata:
    """Totals of the u_i of :func:`row_meat`, scaled to the norm, and numbers of rows of each stratum."""
    assert data.design.strata is not None
    number = len(data.design.levels[data.design.strata]) + 1

    def total(u: Floats, strata: NDArray[np.int32]) -> Sums:
        shorten(u, norm)
        return [
            np.stack([np.bincount(strata, row, number) for row in u], axis=1),
            np.bincount(strata, minlength=number),
        ]

    totals, numbers = _sum_contributions(data, predictor, weights, total)
    return PrivateStrata(totals, np.asarray(numbers, np.float64))


def _sum_contributions(
    data: PreparedRows, predictor: Predictor, weights: Floats, work: Callable[[Floats, NDArray[np.int32]], Sums]
) -> Sums:
    """Sum what `work` makes of the contributions ``weights·h_i·r_i`` of rows (p×k), which are of these strata (k)."""
    assert data.matching is None, "where residuals see other rows, squares are not centred"
    group_weights = None if data.blocks is None else data.blocks.weights
    data = data.without_links() if group_weights is None else data

    def add(strip: Strip) -> tuple[Sums, None]:
        assert strip.strata is not None
        u = instruments_of(data, strip.x) * weights[:, None] * _own_residuals(data, predictor, strip.x, strip.z)
        return work(u if group_weights is None else u * strip.take(group_weights), strip.strata), None

    return sum_strips(data, add, 0, _VARIANCE)[0]


def block_meat(data: PreparedRows, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
    """``Σ_b T_b T_b'`` with ``T_b = weights·Σ h_i (z_i - w_i'β)`` scaled to ‖T_b‖ ≤ norm."""
    blocks, p = data.blocks, len(data.design.names)
    assert blocks is not None
    meat = np.zeros((p, p))
    for cut, found in _total_residuals(data, blocks, predictor).cut():
        T = (found[:p] - blocks.o[cut] * found[p : 2 * p] * found[-1]) * weights[:, None]
        T *= 1.0 if blocks.weights is None else blocks.weights[cut]
        shorten(T, norm)
        meat += T @ T.T
    return PrivateMeat(meat)


def _total_residuals(data: PreparedRows, blocks: Blocks, predictor: Predictor) -> Totals:
    """Totals of ``h_i (z_i - β₀ - a x_i'β)``, of ``h_i`` and of ``x_i'β`` in each block (2p+1)."""
    first, p = int(data.design.intercept), len(data.design.names)
    slopes, level = predictor.beta[first:], float(predictor.beta[:first].sum())
    if kernel.KERNEL is not None:
        by_block, plain = MeatClip("block", np.ones(p), 0.0), replace(blocks, weights=None)
        begin = partial(
            kernel.ResidualSums, data.design, (slopes, level), None, by_block, plain, None, data.large, mixed=True
        )
        return sum_tiles(data, begin, _VARIANCE)[1]

    def work(strip: Strip) -> tuple[Sums, Floats]:
        fitted, h = np.dot(slopes, strip.x), instruments_of(data, strip.x)
        return [np.zeros(0)], np.vstack([h * (strip.z - level - strip.take(blocks.a) * fitted), h, fitted])

    return sum_strips(data, work, 2 * p + 1, _VARIANCE)[1]


def shorten(vectors: Floats, norm: float) -> None:
    """Scale columns to l2 norm at most `norm`, in place."""
    length = np.sqrt((vectors**2).sum(axis=0))
    vectors *= norm / np.maximum(length * (1.0 + 1e-12), norm)


def _own_residuals(data: PreparedRows, predictor: Predictor, x: Floats, z: Floats) -> Floats:
    """``z_i - β₀ - (γx_i + (1-γ)x̄)'β``: an estimate of each row's residual that depends on no other row."""
    slopes, level = _own_line(data, predictor)
    residual: Floats = z - level - predictor.accuracy * np.dot(slopes, x)
    return residual


def _own_line(data: PreparedRows, predictor: Predictor) -> tuple[Floats, float]:
    """Slopes, and the constant part ``β₀ + (1-γ)x̄'β`` of what a row's response is expected to be."""
    first = int(data.design.intercept)
    slopes = predictor.beta[first:]
    return slopes, float(predictor.beta[:first].sum() + (1.0 - predictor.accuracy) * (slopes @ predictor.mean))


def instruments_of(data: PreparedRows, x: Floats) -> Floats:
    """Instruments of a strip, with the intercept's ones first."""
    h = np.empty_like(x)
    data.design.instruments(x, h)
    return np.vstack([np.ones(x.shape[1]), h]) if data.design.intercept else h
