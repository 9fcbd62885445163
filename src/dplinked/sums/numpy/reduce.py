"""Sums over parts: threads sum them strip by strip, add totals of blocks, and the results are merged in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, reduce
from threading import Event, Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dplinked.sums.numpy.prepare import Piece, PreparedRows, Strip, cut_strips
from dplinked.sums.rounding import MOST_THREADS

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Sums = list[NDArray[Any]]  # several sums over the same rows
AddPiece = Callable[[Piece], Sums]  # sums a piece, and adds its rows to totals of blocks

WORKERS = min(8, os.cpu_count() or 1)
assert WORKERS <= MOST_THREADS, "the rounding bound counts the threads whose totals are added"
_FEW_RUNS = 16  # blocks in a strip up to which they are summed one by one
_SUMMING = Lock()  # NumPy releases the GIL too briefly for threads to sum in parallel; one sums while the others decode


class Walk(Protocol):
    """A way along consecutive rows that tells where their responses stand."""

    def place(self, piece: Piece) -> Piece:
        """The next rows, with their slots."""


class Order(Protocol):
    """Tells where the responses of rows stand, see :mod:`dplinked.sums.numpy.circle`."""

    def walk(self, part: int) -> Walk:
        """A way along the rows from a part on that begins a share."""


@dataclass(frozen=True, repr=False)
class Totals:
    """Totals of blocks, kept as arrays (width×blocks) that have to be added up.

    Each thread has one or two of them. A page of memory is used only if a thread adds to a block in it, so sorted keys need little more
    than one array.
    """

    arrays: list[NDArray[Any]]

    def cut(self) -> Iterator[tuple[slice, Floats]]:
        """Totals of a few thousand blocks at a time. Products of so few are not worth BLAS's threads, which wait for more by turning in circles."""
        with _blas().limit(limits=1, user_api="blas"):
            for blocks in cut_strips(self.arrays[0].shape[1]):
                found = self.arrays[0][:, blocks].copy()
                for others in self.arrays[1:]:
                    found += others[:, blocks]
                yield blocks, found

    def product(self, left: slice, right: slice, weights: Floats) -> Floats:
        """``Σ_b weight_b left_b right_b'`` over blocks; `left` and `right` choose rows of the totals."""
        strips = [[np.dot(found[left] * weights[blocks], found[right].T)] for blocks, found in self.cut()]
        return np.asarray(merge(strips)[0])


def cut_shares(parts: int) -> list[list[int]]:
    """Consecutive parts for each thread."""
    return [share.tolist() for share in np.array_split(np.arange(parts), min(WORKERS, parts)) if share.size]


def sum_parts(
    data: PreparedRows, begin: Callable[[], tuple[AddPiece, list[NDArray[Any]]]], title: str, order: Order | None = None
) -> tuple[Sums, Totals]:
    """Sum all rows; return merged sums and totals of blocks.

    Each thread takes consecutive parts. It calls `begin` once, for a function that sums a piece and for the arrays to which that function
    adds totals of blocks. For a given number of threads the order of every addition is fixed. With an `order`, pieces have slots.
    """
    parts, stopped = data.rows.parts, Event()
    done = iter(range(1, parts + 1))

    def run(mine: list[int]) -> tuple[list[Sums], list[Floats]]:
        add, totals = begin()
        walk = None if order is None else order.walk(mine[0])
        sums: list[Sums] = []
        try:
            for part in mine:
                found = []
                for piece in data.pieces(part):
                    if stopped.is_set():
                        return [], []
                    found.append(add(piece if walk is None else walk.place(piece)))
                sums.append(add_up(found))
                if data.progress is not None:
                    data.progress(title, next(done), parts)
        except BaseException:
            stopped.set()  # the others need not go on
            raise
        return sums, totals

    shares = cut_shares(parts)
    results = [run(shares[0])] if len(shares) == 1 else _run_threads(run, shares, stopped)
    totals = Totals([array for _, arrays in results for array in arrays])
    return merge([sums for result, _ in results for sums in result]), totals


def _run_threads(run: Callable[[Any], Any], shares: list[Any], stopped: Event) -> list[Any]:
    """Run all shares, each in a thread; what stops one stops the others."""
    with ThreadPoolExecutor(max_workers=len(shares)) as pool:
        try:
            return list(pool.map(run, shares))
        finally:
            stopped.set()


def sum_strips(
    data: PreparedRows,
    work: Callable[[Strip], tuple[Sums, Floats | None]],
    width: int,
    title: str,
    order: Order | None = None,
) -> tuple[Sums, Totals]:
    """Sum all rows by NumPy. `work` returns the sums of a strip and, unless `width` is 0, what is to be totalled (width×rows): by cluster, if the rows have some, else by block."""
    clustered = data.clusters is not None
    groups = data.clusters.count if data.clusters is not None else 0 if data.blocks is None else data.blocks.sizes.size

    def begin() -> tuple[AddPiece, list[Floats]]:
        totals = np.zeros((width, groups)) if groups and width else None

        def one(strip: Strip) -> Sums:
            sums, totalled = work(strip)
            codes = strip.clusters if clustered else strip.codes
            if totals is not None and totalled is not None and codes is not None:
                _total_blocks(totals, totalled, codes, data.large or clustered)
            return sums

        def add(piece: Piece) -> Sums:
            with _SUMMING, _blas().limit(limits=1, user_api="blas"):
                return add_up(map(one, data.strips(piece)))

        return add, [] if totals is None else [totals]

    return sum_parts(data, begin, title, order)


def sum_tiles(
    data: PreparedRows, begin: Callable[[], Any], title: str, order: Order | None = None
) -> tuple[Sums, Totals]:
    """Sum all rows by the kernel, tile by tile. `begin` makes what a thread adds tiles to, such as :class:`~dplinked.sums.numpy.kernel.InstrumentSums`."""

    def begin_thread() -> tuple[AddPiece, list[Floats]]:
        mine = begin()
        return lambda piece: add_up(map(mine.add, data.tiles(piece))), mine.totals

    return sum_parts(data, begin_thread, title, order)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def add_up(sums: Iterable[Sums]) -> Sums:
    """Add sums one after the other."""
    return reduce(lambda left, right: [np.add(*both) for both in zip(left, right, strict=True)], sums)


def _total_blocks(totals: Floats, totalled: Floats, codes: Codes, large: bool) -> None:
    """Add the columns of `totalled`, one per row of a strip, to the totals of their blocks.

    Rows of one block that follow each other are summed first. Where blocks are `large`, each total gets one addition a strip, because
    additions row by row would lose more digits than the rounding bound allows.
    """
    if not codes.size:
        return
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    if starts.size <= _FEW_RUNS:
        ends = [*starts[1:], codes.size]
        totalled = np.stack(
            [totalled[:, start:stop].sum(axis=1) for start, stop in zip(starts, ends, strict=True)], axis=1
        )
        codes = codes[starts]
    elif 2 * starts.size <= codes.size:
        totalled, codes = np.add.reduceat(totalled, starts, axis=1), codes[starts]
    if np.array_equal(codes, np.arange(codes[0], codes[0] + codes.size)):  # keys in order, as files often are
        totals[:, codes[0] : codes[0] + codes.size] += totalled
        return
    if large:
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        totalled, codes = np.add.reduceat(totalled[:, order], starts, axis=1), codes[starts]
    codes = codes.astype(np.intp)
    for row, values in zip(totals, totalled, strict=True):
        np.add.at(row, codes, values)


def merge(parts: list[Sums]) -> Sums:
    """Add sums pairwise, in order."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [[np.add(*both) for both in zip(*pair, strict=True)] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]
