"""The second pass: residuals around released coefficients, for the variance of the estimate."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import symmetrise
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import PreparedRows, Strip, cut_strips
from dplinked.sums.numpy.reduce import Sums, merge, sum_strips, sum_tiles
from dplinked.sums.types import Predictor, PrivateCounts, PrivateMeat

Floats = NDArray[np.float64]


def residual_counts(data: PreparedRows, predictor: Predictor, edges: Floats) -> PrivateCounts:
    """Histogram of the absolute residuals that rows have on their own, between increasing public edges; the last bin is open."""
    data, title = data.without_links(), "Measuring residuals"
    if kernel.KERNEL is not None:
        slopes, level = _own_line(data, predictor)
        begin = partial(kernel.ResidualCounts, data.design, slopes, level, predictor.accuracy, edges)
        (counts,), _ = sum_tiles(data, begin, title)
        return PrivateCounts(counts[None, :])

    def work(strip: Strip) -> tuple[Sums, None]:
        residual = np.abs(_own_residuals(data, predictor, strip.x, strip.z))
        return [np.bincount(np.searchsorted(edges, residual), minlength=edges.size + 1)[: edges.size + 1]], None

    (counts,), _ = sum_strips(data, work, 0, title)
    return PrivateCounts(counts[None, :])


def row_meat(data: PreparedRows, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
    """``Σ u_i u_i'`` with ``u_i = weights·h_i·r_i`` scaled to ‖u_i‖ ≤ norm. Under an explicit Q the residual r_i is taken from ``w_i'β``."""

    def square(x: Floats, residual: Floats) -> Floats:
        u = instruments_of(data, x) * weights[:, None] * residual
        shorten(u, norm)
        return np.asarray(np.dot(u, u.T))

    if data.matching is not None:
        x, z = data.whole()
        first = int(data.design.intercept)
        residual = z - predictor.beta[:first].sum() - data.matching @ (predictor.beta[first:] @ x)
        (meat,) = merge([[square(x[:, rows], residual[rows])] for rows in cut_strips(z.size)])
    else:
        group_weights = None if data.blocks is None else data.blocks.weights
        data = data.without_links() if group_weights is None else data

        def work(strip: Strip) -> tuple[Sums, None]:
            residual = _own_residuals(data, predictor, strip.x, strip.z)
            return [square(strip.x, residual if group_weights is None else residual * strip.take(group_weights))], None

        (meat,), _ = sum_strips(data, work, 0, "Variance")
    return PrivateMeat(symmetrise(meat))


def block_meat(data: PreparedRows, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
    """``Σ_b T_b T_b'`` with ``T_b = weights·Σ h_i (z_i - w_i'β)`` scaled to ‖T_b‖ ≤ norm."""
    blocks, first = data.blocks, int(data.design.intercept)
    assert blocks is not None
    p = len(data.design.names)

    def work(strip: Strip) -> tuple[Sums, Floats]:
        fitted = np.dot(predictor.beta[first:], strip.x)
        h = instruments_of(data, strip.x) * weights[:, None]
        residual = strip.z - predictor.beta[:first].sum() - strip.take(blocks.a) * fitted
        return [np.zeros(0)], np.vstack([h * residual, h, fitted])

    _, totals = sum_strips(data, work, 2 * p + 1, "Variance")
    meat = np.zeros((p, p))
    for cut, found in totals.cut():
        T = found[:p] - blocks.o[cut] * found[p : 2 * p] * found[-1]
        T *= 1.0 if blocks.weights is None else blocks.weights[cut]
        shorten(T, norm)
        meat += T @ T.T
    return PrivateMeat(meat)


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
