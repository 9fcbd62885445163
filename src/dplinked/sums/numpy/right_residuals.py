"""The clipped residual equation of right links, from linked rows: each row meets its own response and those of its partners."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import symmetrise
from dplinked.sums.numpy.prepare import PreparedRows, cut_strips
from dplinked.sums.numpy.reduce import merge
from dplinked.sums.numpy.residuals import shorten
from dplinked.sums.partners import PARTNERS
from dplinked.sums.types import MeatClip, PrivateResiduals, ResidualClip

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def right_residuals(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None = None) -> PrivateResiduals:
    """The equation (p), and the squares of its contributions if `meat` asks for them."""
    x, z = data.whole()
    h = np.empty_like(x)
    data.design.instruments(x, h)
    first = int(data.design.intercept)
    fitted = clip.beta[:first].sum() + clip.beta[first:] @ x
    widths = clip.widths(h)
    brackets = _brackets(data, z, fitted, widths)
    instruments = np.vstack([np.ones((first, z.size)), h])
    strips = cut_strips(z.size)
    (vector,) = merge([[instruments[:, rows] @ brackets[rows]] for rows in strips])
    if meat is None:
        return PrivateResiduals(vector)
    contributions = instruments * brackets * meat.weights[:, None]
    if meat.route == "block":
        assert data.blocks is not None
        codes = data.block_codes()
        contributions = np.stack([np.bincount(codes, row, data.blocks.sizes.size) for row in contributions])
    shorten(contributions, meat.norm)
    (squares,) = merge([[contributions[:, rows] @ contributions[:, rows].T] for rows in cut_strips(contributions.shape[1])])
    return PrivateResiduals(vector, symmetrise(squares))


def _brackets(data: PreparedRows, z: Floats, fitted: Floats, widths: Floats) -> Floats:
    """What each row's instruments are multiplied by (n)."""
    own = np.clip(z - fitted, -widths, widths)
    if data.matching is not None:
        return _unlinked(data.matching, z, fitted, widths)
    if data.blocks is None:
        return own
    codes = data.block_codes()
    o = data.blocks.o[codes]
    accuracy = data.blocks.a[codes] + o
    met, partners = np.zeros_like(own), np.minimum(PARTNERS, data.blocks.sizes - 1)
    for lag, theirs in partner_places(codes, data.blocks.sizes):
        met += np.where(lag <= partners[codes], np.clip(z[theirs] - fitted, -widths, widths), 0.0)
    return (1.0 - o) * own - (1.0 - accuracy) / np.maximum(partners[codes], 1) * met


def partner_places(codes: NDArray[np.int32], sizes: Places) -> Iterator[tuple[int, Places]]:
    """For each lag, the place of each row's partner, which counts if the lag is at most the number of its partners."""
    order = np.lexsort((scatter(np.arange(codes.size)), codes))
    starts = np.cumsum(sizes) - sizes
    slots = np.empty(codes.size, np.int64)
    slots[order] = np.arange(codes.size)
    within, size = slots - starts[codes], sizes[codes]
    for lag in range(1, 1 + min(PARTNERS, int(sizes.max(initial=1)) - 1)):
        yield lag, order[starts[codes] + (within + lag) % size]


def scatter(places: Places) -> NDArray[np.uint64]:
    """A number for each place of a row, one to one, by which an order of places looks random (the finaliser of SplitMix64)."""
    mixed = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _unlinked(Q: object, z: Floats, fitted: Floats, widths: Floats) -> Floats:
    raise NotImplementedError
