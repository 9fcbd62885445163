"""Responses in circles: those of a block stand together, in an order that looks random, so that a row's partners are the next ones.

See :mod:`dplinked.sums.partners`. The order does not depend on cells. Where every row keeps its block between neighbours, it follows from the
block's number and the rank of a row in its block. Elsewhere rows of a block are ordered by a number that follows from the row's position, so that
a row that leaves or joins a block leaves the order of all others as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.data.encoding import CHANGED
from dplinked.errors import ReleaseError, StudyError
from dplinked.study.design import Design
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.prepare import Codes, Piece, PreparedRows, Slots
from dplinked.sums.numpy.reduce import WORKERS, Order, cut_shares
from dplinked.sums.partners import PARTNERS

Floats = NDArray[np.float64]

_LARGEST = 2**31 - 1  # a response is kept as a whole number of up to this size
_MOST_ROWS = 2**31  # of a block, whose ranks are kept in 32 bits
_ROUNDS = 4


@dataclass(frozen=True, repr=False)
class Circle:
    """The responses of all rows.

    Attributes
    ----------
    values
        Responses as whole numbers (n): ``middle + unit·value`` is a response, to nine digits of its bounds.
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
    response = data.design.response
    if response not in data.kept:
        data.kept[response] = _read_circle(data)
    circle: Circle = data.kept[response]
    return circle


def _read_circle(data: PreparedRows) -> Circle:
    assert data.blocks is not None
    if data.blocks.sizes.max(initial=0) >= _MOST_ROWS:
        raise StudyError(
            "A block has more than two billion rows, too many for their responses to be compared. Declare smaller blocks."
        )
    starts = np.concatenate([[0], np.cumsum(data.blocks.sizes)])
    low, high = (
        (bound - data.design.response.shift) / data.design.response.scale for bound in data.design.response.interval
    )
    middle, unit = (low + high) / 2.0, (high - low) / 2.0 / _LARGEST
    alone = replace(data, design=_response_alone(data.design))
    values = np.zeros(data.rows.count, np.int32)
    order = ByRank(starts) if data.fixed_blocks else ByPosition(data.block_codes(), starts)
    firsts, walk = {share[0] for share in cut_shares(data.rows.parts)}, order.walk(0)
    for part, pieces in enumerate(_read_ahead(alone)):
        if part in firsts:
            walk.remember(part)
        for piece in pieces:
            _store(alone, walk.place(piece), middle, unit, values)
        if data.progress is not None:
            data.progress("Collecting responses", part + 1, data.rows.parts)
    return Circle(values, starts, middle, unit, order)


def _response_alone(design: Design) -> Design:
    """The design without its regressors."""
    bounds = {name: bounds for name, bounds in design.bounds.items() if name in design.response_variables}
    return replace(design, columns=(), groups=(), bounds=bounds, levels={}, half_widths=None)


def _read_ahead(data: PreparedRows) -> Iterator[list[Piece]]:
    """The pieces of each part in order, while threads read the next parts."""
    parts = data.rows.parts
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        waiting = [pool.submit(lambda part: list(data.pieces(part)), part) for part in range(min(2 * WORKERS, parts))]
        for part in range(parts):
            yield waiting.pop(0).result()
            if part + 2 * WORKERS < parts:
                waiting.append(pool.submit(lambda part: list(data.pieces(part)), part + 2 * WORKERS))


def _store(alone: PreparedRows, piece: Piece, middle: float, unit: float, values: NDArray[np.int32]) -> None:
    """Write the responses of a piece into their slots."""
    if kernel.KERNEL is not None:
        kernel.store_responses(alone.design, piece, middle, unit, values)
        return
    for strip in alone.strips(piece):
        values[strip.slots] = to_whole(strip.z, middle, unit)


# --- by rank, where blocks are fixed --------------------------------------------------------------------


class ByRank:
    """Slots from the ranks of rows in their blocks, sent through a permutation of the block's own."""

    def __init__(self, starts: Slots) -> None:
        self.starts = starts
        self.seen: dict[int, NDArray[np.uint32]] = {0: np.zeros(starts.size - 1, np.uint32)}

    def walk(self, part: int) -> _RankWalk:
        """A way along the rows from a part on."""
        return _RankWalk(self, self.seen[part].copy())


class _RankWalk:
    """Counts the rows of each block on the way."""

    def __init__(self, order: ByRank, seen: NDArray[np.uint32]) -> None:
        self._order, self._seen = order, seen

    def place(self, piece: Piece) -> Piece:
        """The next rows, with their slots."""
        assert piece.codes is not None
        find = rank_slots if kernel.KERNEL is None else kernel.find_slots
        return replace(piece, slots=find(piece.codes, self._order.starts, self._seen))

    def remember(self, part: int) -> None:
        """Keep how many rows of each block lie before a part, so that another way can begin there."""
        self._order.seen[part] = self._seen.copy()


def rank_slots(codes: Codes, starts: Slots, seen: NDArray[np.uint32]) -> Slots:
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

    def __init__(self, codes: Codes, starts: Slots) -> None:
        if not np.array_equal(np.bincount(codes, minlength=starts.size - 1), np.diff(starts)):
            raise ReleaseError(CHANGED)
        self.slots = np.empty(codes.size, np.int64)
        self.slots[np.lexsort((scatter(np.arange(codes.size)), codes))] = np.arange(codes.size)
        self.before = {0: 0}

    def walk(self, part: int) -> _PositionWalk:
        """A way along the rows from a part on."""
        return _PositionWalk(self, self.before[part])


class _PositionWalk:
    """Counts the rows on the way."""

    def __init__(self, order: ByPosition, start: int) -> None:
        self._order, self._start = order, start

    def place(self, piece: Piece) -> Piece:
        """The next rows, with their slots."""
        slots = self._order.slots[self._start : self._start + piece.count]
        if slots.size != piece.count:
            raise ReleaseError(CHANGED)
        self._start += piece.count
        return replace(piece, slots=slots)

    def remember(self, part: int) -> None:
        """Keep how many rows lie before a part, so that another way can begin there."""
        self._order.before[part] = self._start


def scatter(places: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A number for each place, one to one, by which an order of places looks random (the finaliser of SplitMix64)."""
    mixed = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
