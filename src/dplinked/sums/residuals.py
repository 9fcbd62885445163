"""The second pass: residuals around released coefficients, for the variance of the estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.memory import Encoded, sum_tiles
from dplinked.sums.sums import PrivateCounts, PrivateMeat

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predictor:
    """Public by then: released coefficients (p), released means of the regressors (d), declared accuracy."""

    beta: Floats
    mean: Floats
    accuracy: float


def residual_counts(data: Encoded, predictor: Predictor, edges: Floats) -> PrivateCounts:
    """Histogram of the rows' own absolute residuals between increasing public edges; the last bin is open."""

    def strip(start: int, stop: int, _: Floats | None) -> list[NDArray[Any]]:
        residual = np.abs(_own_residuals(data, predictor, *data.tile(start, stop)))
        return [np.bincount(np.searchsorted(edges, residual), minlength=edges.size + 1)[: edges.size + 1]]

    (counts,), _ = sum_tiles(data, strip, 0)
    return PrivateCounts(counts[None, :])


def row_meat(data: Encoded, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
    """``Σ u_i u_i'`` with ``u_i = weights·h_i·r_i`` scaled to ‖u_i‖ ≤ norm; under an explicit Q, r_i from ``w_i'β``."""
    whole = data.matching is not None

    def strip(start: int, stop: int, _: Floats | None) -> list[NDArray[Any]]:
        x, z = data.tile(start, stop)
        if whole:
            first = int(data.design.intercept)
            residual = z - predictor.beta[:first].sum() - data.matching @ (predictor.beta[first:] @ x)
        else:
            residual = _own_residuals(data, predictor, x, z)
        u = _instruments(data, x) * weights[:, None] * residual
        _shorten(u, norm)
        return [u @ u.T]

    if whole:
        (meat,) = strip(0, data.rows.count, None)
    else:
        (meat,), _ = sum_tiles(data, strip, 0)
    return PrivateMeat((meat + meat.T) / 2.0)


def block_meat(data: Encoded, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
    """``Σ_b T_b T_b'`` with ``T_b = weights·Σ h_i (z_i - w_i'β)`` scaled to ‖T_b‖ ≤ norm."""
    blocks, first = data.blocks, int(data.design.intercept)
    assert blocks is not None
    p = len(data.design.names)

    def strip(start: int, stop: int, held: Floats | None) -> list[NDArray[Any]]:
        assert held is not None
        x, z = data.tile(start, stop)
        codes = blocks.codes[start:stop]
        fitted = predictor.beta[first:] @ x
        h = _instruments(data, x) * weights[:, None]
        residual = z - predictor.beta[:first].sum() - blocks.a[codes] * fitted
        held[:p], held[p : 2 * p], held[-1] = h * residual, h, fitted
        return []

    _, totals = sum_tiles(data, strip, 2 * p + 1)
    assert totals is not None
    T = totals[:p] - blocks.o * totals[p : 2 * p] * totals[-1]
    _shorten(T, norm)
    return PrivateMeat(T @ T.T)


def _shorten(vectors: Floats, norm: float) -> None:
    """Scale columns to l2 norm at most `norm`, in place."""
    length = np.sqrt((vectors**2).sum(axis=0))
    vectors *= norm / np.maximum(length * (1.0 + 1e-12), norm)


def _own_residuals(data: Encoded, predictor: Predictor, x: Floats, z: Floats) -> Floats:
    """``z_i - β₀ - (γx_i + (1-γ)x̄)'β``: what a row tells of its residual without looking at others."""
    first = int(data.design.intercept)
    slopes = predictor.beta[first:]
    level = float(predictor.beta[:first].sum() + (1.0 - predictor.accuracy) * (slopes @ predictor.mean))
    residual: Floats = z - level - predictor.accuracy * (slopes @ x)
    return residual


def _instruments(data: Encoded, x: Floats) -> Floats:
    h = np.empty_like(x)
    data.design.instruments(x, h)
    return np.vstack([np.ones(x.shape[1]), h]) if data.design.intercept else h
