"""Responses in circles: those of a block stand together, in an order that looks random, so that a row's partners are the next ones.

See :mod:`dplinked.sums.partners`. The order does not depend on cells. Where every row keeps its block between neighbours, it follows from the
block's number and the rank of a row in its block. Elsewhere rows of a block are ordered by a number that follows from the row's position, so that
a row that leaves or joins a block leaves the order of all others as it is. Where cells may decide the order in which rows come, as in a copy that DuckDB made, all orders are drawn
with the same probability instead, once for all passes: then neighbours have the same law of orders, whatever the order of their rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.data.encoding import CHANGED
from dplinked.errors import ReleaseError, StudyError
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import Codes, Piece, PreparedRows, Slots
from dplinked.sums.numpy.reduce import AddPiece, Order, Sums, Walk, cut_shares, sum_parts
from dplinked.sums.partners import PARTNERS
from dplinked.sums.rounding import TILE

Floats = NDArray[np.float64]
Seen = NDArray[np.uint32]  # how many rows of each block lie before a row
Places = NDArray[np.unsignedinteger]  # of rows in their blocks, in as few bytes as the largest block needs

_LARGEST = 2**31 - 1  # a response is kept as a whole number of up to this size
GAP = -(2**31)  # and a missing one, where it is dropped, as this
_MOST_ROWS = 2**31  # of a block, whose ranks are kept in 32 bits
_MOST_COUNTERS = 8  # per row of a piece; where blocks lie further apart, only those that occur are counted
_ROUNDS = 4
_TITLE = "Collecting responses"
SHARES = "rows of each block in the share of each thread"  # where a pass that counts them on its way keeps them


@dataclass(frozen=True, repr=False)
class Circle:
    """The responses of all rows.

    Attributes
    ----------
    values
        Responses as whole numbers (n): ``middle + unit·value`` is a response, to nine digits of its bounds. `GAP` is none.
    starts
        Where the responses of each block begin, and at last where they end (blocks + 1).
    order
        Where the response of a row stands.
    """

    values: NDArray[np.int32]
    starts: Slots
    middle: float
    unit: float
    order: Order

    def rounded(self, z: Floats) -> Floats:
        """Responses as the circle has them: a row must treat its own like those of its partners."""
        return self.middle + self.unit * to_whole(z, self.middle, self.unit)


def to_whole(z: Floats, middle: float, unit: float) -> Floats:
    """Responses as whole numbers."""
    return np.clip(np.rint((z - middle) / unit), -_LARGEST, _LARGEST)


def make_circle(data: PreparedRows) -> Circle:
    """Read the responses and put them into circles; they are kept for later passes."""
    if (data.design.response, data.dropped) not in data.kept:
        keep_circle(data, _read_circle(data))
    circle: Circle = data.kept[data.design.response, data.dropped]
    return circle


def keep_circle(data: PreparedRows, circle: Circle) -> None:
    """Keep a circle that has all responses for later passes."""
    data.kept[data.design.response, data.dropped] = circle


def _read_circle(data: PreparedRows) -> Circle:
    circle = empty_circle(data)
    alone = responses_alone(data)

    def store(piece: Piece) -> Sums:
        store_responses(alone, piece, circle)
        return []

    sum_parts(alone, lambda: (store, []), _TITLE, circle.order)
    return circle


def empty_circle(data: PreparedRows) -> Circle:
    """A circle that waits for the responses of all rows."""
    assert data.blocks is not None
    response, starts = data.design.response, np.concatenate([[0], np.cumsum(data.blocks.sizes)])
    low, high = ((bound - response.shift) / response.scale for bound in response.interval)
    order = ByRank(data, starts) if data.fixed_blocks else ByPosition(data, starts)
    values = np.zeros(data.rows.count, np.int32)
    return Circle(values, starts, (low + high) / 2.0, (high - low) / 2.0 / _LARGEST, order)


def store_responses(alone: PreparedRows, piece: Piece, circle: Circle) -> None:
    """Write the responses of rows into their slots; `alone` has no columns but the response's."""
    if kernel.KERNEL is not None:
        kernel.store_responses(alone.design, piece, circle.middle, circle.unit, circle.values, alone.dropped)
        return
    for strip in alone.strips(piece):
        whole = to_whole(strip.z, circle.middle, circle.unit)
        circle.values[strip.slots] = np.where(np.broadcast_to(strip.answered, whole.shape) > 0.0, whole, GAP)


def responses_alone(data: PreparedRows) -> PreparedRows:
    """The same rows, of which responses and keys alone are read."""
    return _choose_columns(data, data.design.response_variables)


def _choose_columns(data: PreparedRows, names: Collection[str]) -> PreparedRows:
    """The same rows without regressors; of the response's columns those are read that are named, and keys are."""
    design = data.design
    bounds = {name: bounds for name, bounds in design.bounds.items() if name in names}
    levels = {name: levels for name, levels in design.levels.items() if name in names}
    alone = replace(
        design, columns=(), groups=(), bounds=bounds, levels=levels, half_widths=None, counting=None, strata=None
    )
    return replace(data, design=alone)


def _keys_alone(data: PreparedRows) -> PreparedRows:
    """The same rows, of which keys alone are read; or, if all rows are one block, responses alone, which tell how many there are."""
    assert data.blocks is not None
    return responses_alone(data) if data.blocks.keys is None else _choose_columns(data, ())


# --- by rank, where blocks are fixed --------------------------------------------------------------------


class ByRank:
    """Slots from the ranks of rows in their blocks, sent through a permutation of the block's own."""

    def __init__(self, data: PreparedRows, starts: Slots) -> None:
        if np.diff(starts).max(initial=0) >= _MOST_ROWS:
            raise StudyError(
                "A block has more than two billion rows, too many for their responses to be compared. Declare smaller blocks."
            )
        self._starts, self._seen = starts, dict[int, Seen]()
        self._drawn = None if data.rows.ordered else draw_places(starts, np.random.default_rng())
        shares, before = cut_shares(data.rows.parts), np.zeros(starts.size - 1, np.uint32)
        counted = data.kept.get(SHARES) or (_count_shares(data) if len(shares) > 1 else [before])
        for share, counts in zip(shares, counted, strict=True):
            self._seen[share[0]], before = before, before + counts

    def walk(self, part: int) -> Walk:
        """A way along the rows from a part on."""
        return _RankWalk(self._starts, self._seen[part].copy(), self._drawn)


def _count_shares(data: PreparedRows) -> list[Seen]:
    """Rows of each block in the share of each thread."""
    assert data.blocks is not None
    blocks = data.blocks.sizes.size

    def begin() -> tuple[AddPiece, list[Seen]]:
        counts = np.zeros(blocks, np.uint32)

        def add(piece: Piece) -> Sums:
            if piece.codes is not None and piece.count:
                _count_codes(piece.codes, counts)
            return []

        return add, [counts]

    return sum_parts(_keys_alone(data), begin, _TITLE)[1].arrays


def _count_codes(codes: Codes, counts: Seen) -> None:
    """Add the rows of each block to its count."""
    low, high = int(codes.min()), int(codes.max())
    if low < 0 or high >= counts.size:
        raise ReleaseError(CHANGED)
    if high - low <= _MOST_COUNTERS * codes.size:
        counts[low : high + 1] += np.bincount(codes - low).astype(np.uint32)
    else:
        np.add.at(counts, codes, 1)


@dataclass(frozen=True, repr=False)
class _RankWalk:
    """Counts the rows of each block on the way. If places were `drawn`, each slot stands for another of its block."""

    starts: Slots
    seen: Seen
    drawn: Places | None

    def place(self, piece: Piece) -> Piece:
        """The next rows, with their slots."""
        assert piece.codes is not None
        find = rank_slots if kernel.KERNEL is None else kernel.find_slots
        if self.drawn is not None and self.starts.size == 2:  # rows of a single block follow each other
            first = int(self.seen[0])
            self.seen[0] += piece.count
            return replace(piece, slots=self.drawn[first : first + piece.count].astype(np.int64))
        slots = find(piece.codes, self.starts, self.seen)
        return replace(piece, slots=slots if self.drawn is None else self.starts[piece.codes] + self.drawn[slots])


def draw_places(starts: Slots, generator: np.random.Generator) -> Places:
    """A place in its block for each slot (n), in an order that is drawn for each block."""
    sizes = np.diff(starts)
    drawn = np.empty(starts[-1], np.min_scalar_type(sizes.max(initial=0)))
    by_size = np.argsort(sizes, kind="stable")
    for blocks in np.split(by_size, np.flatnonzero(np.diff(sizes[by_size])) + 1):
        places = np.arange(sizes[blocks].max(initial=0))
        many = TILE // max(1, places.size) + 1
        for first in range(0, blocks.size, many):
            slots = starts[blocks[first : first + many], None] + places
            drawn[slots] = generator.permuted(np.broadcast_to(places.astype(drawn.dtype), slots.shape), axis=1)
    return drawn


def rank_slots(codes: Codes, starts: Slots, seen: Seen) -> Slots:
    """The slots of rows by NumPy, where there is no kernel; `seen` goes on to count the rows of each block."""
    order = np.argsort(codes, kind="stable")
    listed = codes[order]
    first = np.flatnonzero(np.concatenate([[True], listed[1:] != listed[:-1]])) if codes.size else np.zeros(0, np.int64)
    lengths = np.diff(np.append(first, codes.size))
    ranks = np.empty(codes.size, np.int64)
    ranks[order] = np.arange(codes.size) - np.repeat(first, lengths) + seen[listed]
    seen[listed[first]] += lengths.astype(np.uint32)
    sizes = starts[codes + 1] - starts[codes]
    if np.any(ranks >= sizes):
        raise ReleaseError(CHANGED)
    return np.asarray(starts[codes] + shuffle(ranks, sizes, scatter(codes)))


def shuffle(ranks: Slots, sizes: Slots, keys: NDArray[np.uint64]) -> Slots:
    """Places of ranks in permutations of ``0 … size-1``, another one for each key. Blocks whose rows are all partners stay as they are.

    Each round is one to one on numbers of so many bits, and is repeated for numbers that fall out of the block.
    """
    places = ranks.astype(np.uint64)
    out = np.flatnonzero(sizes > PARTNERS + 1)
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64)
    masks, downs = (np.uint64(1) << bits) - np.uint64(1), (bits + np.uint64(1)) >> np.uint64(1)
    while out.size:
        x, mask, key = places[out], masks[out], keys[out]
        for _ in range(_ROUNDS):
            x = ((x ^ key) & mask) * ((key >> np.uint64(8)) | np.uint64(1)) & mask
            x ^= x >> downs[out]
            key = key >> np.uint64(16) | key << np.uint64(48)
        places[out] = x
        out = out[x >= sizes[out].astype(np.uint64)]
    return places.astype(np.int64)


# --- by position, where rows may change their blocks ----------------------------------------------------


class ByPosition:
    """Slots of all rows, those of a block ordered by numbers that follow from the positions of rows."""

    def __init__(self, data: PreparedRows, starts: Slots) -> None:
        keys, found, self._before = _keys_alone(data), list[Codes](), dict[int, int]()
        for part in range(data.rows.parts):
            self._before[part] = sum(codes.size for codes in found)
            found += [piece.codes for piece in keys.pieces(part) if piece.codes is not None]
        codes = np.concatenate(found)
        if not np.array_equal(np.bincount(codes, minlength=starts.size - 1), np.diff(starts)):
            raise ReleaseError(CHANGED)
        self._slots = np.empty(codes.size, np.int64)
        if data.rows.ordered:
            order = order_by_position(codes)
        else:
            order = np.lexsort((np.random.default_rng().permutation(codes.size), codes))
        self._slots[order] = np.arange(codes.size)

    def walk(self, part: int) -> Walk:
        """A way along the rows from a part on."""
        return _PositionWalk(self._slots[self._before[part] :])


class _PositionWalk:
    """Has the slots of the rows ahead."""

    def __init__(self, ahead: Slots) -> None:
        self._ahead = ahead

    def place(self, piece: Piece) -> Piece:
        """The next rows, with their slots."""
        slots, self._ahead = self._ahead[: piece.count], self._ahead[piece.count :]
        if slots.size != piece.count:
            raise ReleaseError(CHANGED)
        return replace(piece, slots=slots)


def order_by_position(codes: Codes) -> Slots:
    """Places of rows, block by block, and within a block by numbers that follow from the places alone."""
    return np.lexsort((scatter(np.arange(codes.size)), codes))


def scatter(places: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A number for each place, one to one, by which an order of places looks random (the finaliser of SplitMix64)."""
    mixed = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
