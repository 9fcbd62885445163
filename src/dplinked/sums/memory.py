"""The pass over rows: read in parts, clip, scale, sum in strips, merge in a fixed order.

Under exchangeable linkage errors ``h'Qx = a Σ h_i x_i' + o s_h s_x'`` per block, with ``a = γ - o`` and
block totals s, so Q is never built: one pass gives the row products and the block totals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from threading import Event, Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dplinked.design import Design
from dplinked.errors import StudyError
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.linkage.matching import is_whole
from dplinked.sums import kernel
from dplinked.sums.coding import Keys, block_places, encode_part, place_texts
from dplinked.sums.rows import Rows
from dplinked.sums.sums import STRIP, TILE, BlockFacts, PrivateCounts, PrivateSums

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Progress = Callable[[str, int, int], None]

_FEW_RUNS = 16  # blocks in a strip up to which they are summed one by one
WORKERS = min(8, os.cpu_count() or 1)


class Parts(Protocol):
    """Rows that are read part by part: a table in memory, or Parquet files."""

    columns: tuple[str, ...]
    count: int

    @property
    def parts(self) -> int:
        """Number of parts."""

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema."""

    def read(self, part: int, columns: Sequence[str]) -> Iterator[Rows]:
        """The rows of one part, in pieces that fit into memory."""

    def check_key(self, name: str) -> None:
        """Refuse a column whose type cannot be compared."""

    def find_keys(self, name: str) -> Keys:
        """Distinct keys of a column."""


@dataclass(frozen=True, repr=False)
class Blocks:
    """Rows in blocks: per block size m, ``a = γ - o`` and ``o = (1-γ)/(m-1)``, and the keys that tell a row's block.

    ``names`` names the blocks of an accuracy table, the other block by None; it is empty without a table.
    """

    sizes: NDArray[np.int64]
    a: Floats
    o: Floats
    names: tuple[str | None, ...] = ()
    column: str | None = None
    keys: Keys | None = None

    def codes(self, piece: tuple[int, int], rows: Rows) -> Codes:
        """Block number of each row of a piece."""
        if self.keys is None or self.column is None:
            return np.zeros(rows.count, np.int32)
        column = self.column
        return self.keys.codes(piece, lambda: rows.keys(column))

    def weights(self, strip: Strip) -> Floats:
        """a of each row's block; of all of them together where they are in one."""
        codes = strip.codes
        assert codes is not None
        if codes.size and codes[0] == codes[-1] and np.array_equal(codes, np.broadcast_to(codes[0], codes.shape)):
            codes = codes[:1]
        return np.asarray(self.a.take(codes), np.float64)

    def facts(self) -> BlockFacts:
        """What the release needs to know of public block sizes."""
        shared = self.sizes[self.sizes > 1]
        extra = np.minimum(0.5, 0.9 / np.sqrt(np.maximum(shared, 1)))
        dependence = float((extra * shared).sum() / max(1, int(self.sizes.sum())))
        return BlockFacts(int(self.sizes.max()), dict(zip(self.names, self.sizes.tolist(), strict=False)), dependence)


@dataclass(frozen=True, repr=False)
class Piece:
    """Rows as they are read: numbers by column, level numbers by column, and the rows' blocks' numbers."""

    count: int
    raw: Mapping[str, Floats]
    levels: Mapping[str, Codes]
    codes: Codes | None

    def cut(self, size: int) -> Iterator[Piece]:
        """The same rows, at most `size` at a time."""
        for start in range(0, max(1, self.count), size):
            rows = slice(start, min(start + size, self.count))
            raw = {name: column[rows] for name, column in self.raw.items()}
            levels = {name: column[rows] for name, column in self.levels.items()}
            yield Piece(rows.stop - rows.start, raw, levels, None if self.codes is None else self.codes[rows])


@dataclass(frozen=True, repr=False)
class Strip:
    """A few thousand rows: scaled regressors (d×k), scaled responses (k), and their blocks' numbers (k)."""

    x: Floats
    z: Floats
    codes: Codes | None = None


@dataclass(frozen=True, repr=False)
class Encoded:
    """Rows ready for the pass: blocks found, cells not read yet."""

    rows: Parts
    design: Design
    blocks: Blocks | None
    matching: Any = None
    progress: Progress | None = None

    @property
    def large(self) -> bool:
        """Whether a block is too large for its rows to be added one by one."""
        return self.blocks is not None and bool(self.blocks.sizes.max(initial=0) > TILE)

    def pieces(self, part: int) -> Iterator[Piece]:
        """The rows of one part, as they are read."""
        design, blocks = self.design, self.blocks
        key = None if blocks is None or blocks.keys is None else blocks.column
        columns = list(dict.fromkeys([*design.variables, *([key] if key else [])]))
        for piece, rows in enumerate(self.rows.read(part, columns)):
            raw = {name: rows.numbers(name, 0, rows.count) for name in design.bounds}
            levels = {name: _level_codes(rows, name, known) for name, known in design.levels.items()}
            yield Piece(rows.count, raw, levels, None if blocks is None else blocks.codes((part, piece), rows))

    def strips(self, piece: Piece) -> Iterator[Strip]:
        """The rows of a piece, few at a time, so that they stay in the cache."""
        for rows in piece.cut(STRIP):
            both = np.empty((len(self.design.columns) + 1, rows.count))
            self.design.fill_rows(rows.raw, rows.levels, both)
            yield Strip(both[:-1], both[-1], rows.codes)

    def whole(self) -> tuple[Floats, Floats]:
        """Scaled regressors (d×n) and responses (n) of all rows."""
        pieces = (piece for part in range(self.rows.parts) for piece in self.pieces(part))
        strips = [strip for piece in pieces for strip in self.strips(piece)]
        return np.concatenate([strip.x for strip in strips], axis=1), np.concatenate([strip.z for strip in strips])

    def block_codes(self) -> Codes:
        """Block number of each row."""
        assert self.blocks is not None
        columns = [self.blocks.column] if self.blocks.column else list(self.design.variables)
        pieces = (
            ((part, piece), rows)
            for part in range(self.rows.parts)
            for piece, rows in enumerate(self.rows.read(part, columns))
        )
        return np.concatenate([self.blocks.codes(place, rows) for place, rows in pieces])


def encode(
    rows: Parts, design: Design, linkage: Linkage, unit: PrivacyUnit, progress: Progress | None = None
) -> Encoded:
    """Find the blocks. Only what is public under the unit can make it fail."""
    for name in design.levels:
        rows.check_key(name)
    if isinstance(linkage, Matching):
        matrix = linkage.matrix_for(None if linkage.id is None else _ids(rows, linkage.id))
        if matrix.shape[0] != rows.count:
            raise StudyError(f"The matching matrix is for {matrix.shape[0]} rows, the data has {rows.count}.")
        return Encoded(rows, design, None, matrix, progress)
    return Encoded(
        rows, design, None if isinstance(linkage, Exact) else _find_blocks(rows, linkage, unit), None, progress
    )


def _ids(rows: Parts, name: str) -> Any:
    """A whole id column, as Arrow's whole numbers or texts."""
    import pyarrow as pa

    pieces = [piece.keys(name) for part in range(rows.parts) for piece in rows.read(part, [name])]
    if not isinstance(pieces[0], np.ndarray) and is_whole(pieces[0].type):
        return pa.concat_arrays(pieces)
    coded = map(encode_part, pieces)
    return pa.concat_arrays([texts.take(pa.array(codes)) for codes, texts in coded])


def _level_codes(rows: Rows, name: str, levels: tuple[Any, ...]) -> Codes:
    """Number of each row's level; undeclared ones count as the reference level, the first."""
    codes, texts = encode_part(rows.keys(name))
    return np.maximum(place_texts(texts, levels), 0)[codes]


def _find_blocks(rows: Parts, linkage: ELE, unit: PrivacyUnit) -> Blocks:
    if linkage.block is None:
        whole = np.array([rows.count]), np.array([linkage.accuracy_of("")], np.float64)
        return Blocks(whole[0], *_weights(linkage, unit, *whole))
    keys = rows.find_keys(linkage.block)
    places, names = block_places(keys, linkage.accuracy if isinstance(linkage.accuracy, Mapping) else None)
    sizes = keys.counts
    if places is not None:
        keys = replace(keys, places=places)
        sizes = np.bincount(places, weights=sizes, minlength=0 if names is None else len(names)).astype(np.int64)
        sizes = sizes if names is None else sizes[: len(names)]  # numbers in between that do not occur have no block
    if names is not None:
        accuracies = np.array([linkage.accuracy_of(name) for name in names], np.float64)  # NaN for the other block
    else:
        accuracies = np.full(sizes.size, linkage.accuracy_of(""), np.float64)
        if places is not None:  # null keys come last
            accuracies[-1] = np.nan
    if np.isnan(accuracies).any() and linkage.other_accuracy is None:
        raise StudyError(
            f"No accuracy for other blocks: {linkage.block!r} has null keys or keys absent from the accuracy "
            "table. Add them, or declare ELE(…, other=…)."
        )
    accuracies[np.isnan(accuracies)] = linkage.other_accuracy
    return Blocks(sizes, *_weights(linkage, unit, sizes, accuracies), tuple(names or ()), linkage.block, keys)


def _weights(linkage: ELE, unit: PrivacyUnit, sizes: NDArray[np.int64], accuracies: Floats) -> tuple[Floats, Floats]:
    """a and o of each block; a block of one row is right."""
    gamma = np.where(sizes == 1, 1.0, accuracies)
    if linkage.source == "estimated":  # data: whatever they are, they must not stop a release
        gamma = np.maximum(gamma, 1.0 / np.maximum(sizes, 1))
    if not unit.moves_block and np.any((sizes > 1) & (gamma * sizes < 1.0 - 1e-9)):
        raise StudyError(
            "The accuracy of a block is below 1/(its number of rows), less than random links have. "
            "Merge small blocks or correct the accuracy."
        )
    o = np.where(sizes > 1, (1.0 - gamma) / np.maximum(sizes - 1, 1), 0.0)
    return gamma - o, o


# --- the bounded instrument -----------------------------------------------------------------------


def instrument_sums(data: Encoded) -> PrivateSums:
    """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
    design, d = data.design, len(data.design.columns)
    if data.matching is not None:
        return _matched_sums(data)
    symmetric = design.halves is None
    if kernel.KERNEL is not None:
        (core, b, sum_h, sum_x, sum_z), totals = _sum_compiled(data)
    else:
        (core, b, sum_h, sum_x, sum_z), totals = _sum_instruments(data, symmetric)
    if data.blocks is not None and d:
        core = core + totals.product(slice(-d, None), slice(d), data.blocks.o)
    return _bordered(design, data.rows.count, core, sum_h, sum_x, b, float(sum_z), symmetric)


def _sum_compiled(data: Encoded) -> tuple[list[NDArray[Any]], Totals]:
    """Sums, and totals of regressors and instruments, tile by tile."""
    a = None if data.blocks is None else data.blocks.a

    def begin() -> tuple[Callable[[Piece], list[NDArray[Any]]], list[Floats]]:
        mine = kernel.InstrumentSums(data.design, a, data.large)

        def add(piece: Piece) -> list[NDArray[Any]]:
            tiles = (mine.add(tile.count, tile.raw, tile.levels, tile.codes) for tile in piece.cut(TILE))
            return _add_up(tiles)

        return add, mine.totals

    return _sum_parts(data, begin, "Summing")


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
        weighted = x * (
            1.0 if data.blocks is None else data.blocks.weights(strip)
        )  # a copy: x.x' is slow where both are one
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
    return _bordered(design, data.rows.count, core, sum_h, sum_x, b, float(sum_z), False)


def cut_strips(count: int) -> list[slice]:
    """Rows in strips."""
    return [slice(start, min(start + STRIP, count)) for start in range(0, max(1, count), STRIP)]


def _bordered(
    design: Design, count: int, core: Floats, sum_h: Floats, sum_x: Floats, b: Floats, sum_z: float, symmetric: bool
) -> PrivateSums:
    """Put the intercept's row and column around the core; its own entry is n, public."""
    if symmetric:
        core = (core + core.T) / 2.0
    if not design.intercept:
        return PrivateSums(core, b, count)
    matrix = np.block([[np.full((1, 1), float(count)), sum_x[None, :]], [sum_h[:, None], core]])
    return PrivateSums(matrix, np.concatenate([[sum_z], b]), count)


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
    return PrivateSums((gram + gram.T) / 2.0, cross, data.rows.count)


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


# --- parts, pieces and strips ----------------------------------------------------------------------

_SUMMING = Lock()  # between NumPy's short steps threads queue for Python's lock: one sums, the others read


@dataclass(frozen=True, repr=False)
class Totals:
    """Totals of blocks as the sum of arrays (width×blocks), one or two a thread, of which only the pages it touched take memory."""

    arrays: list[Floats]

    def cut(self) -> Iterator[tuple[slice, Floats]]:
        """Totals of a few thousand blocks at a time."""
        for blocks in cut_strips(self.arrays[0].shape[1]):
            found = self.arrays[0][:, blocks].copy()
            for others in self.arrays[1:]:
                found += others[:, blocks]
            yield blocks, found

    def product(self, left: slice, right: slice, weights: Floats) -> Floats:
        """``Σ_b weight_b left_b right_b'`` over blocks, of some rows of the totals."""
        strips = [[np.dot(found[left] * weights[blocks], found[right].T)] for blocks, found in self.cut()]
        return np.asarray(merge(strips)[0])


def _sum_parts(
    data: Encoded, begin: Callable[[], tuple[Callable[[Piece], list[NDArray[Any]]], list[Floats]]], title: str
) -> tuple[list[NDArray[Any]], Totals]:
    """Sum all rows; return merged sums and totals of blocks.

    Each thread takes consecutive parts; it begins with a function that sums a piece, and arrays to which this adds the totals of its blocks.
    For a given number of threads the order of every addition is fixed.
    """
    parts, stopped = data.rows.parts, Event()
    done = iter(range(1, parts + 1))

    def run(mine: NDArray[Any]) -> tuple[list[list[NDArray[Any]]], list[Floats]]:
        add, totals = begin()
        sums: list[list[NDArray[Any]]] = []
        for part in mine.tolist():
            found = []
            for piece in data.pieces(part):
                if stopped.is_set():
                    return [], []
                found.append(add(piece))
            sums.append(_add_up(found))
            if data.progress is not None:
                data.progress(title, next(done), parts)
        return sums, totals

    shares = [share for share in np.array_split(np.arange(parts), min(WORKERS, parts)) if share.size]
    with ThreadPoolExecutor(max_workers=len(shares)) as pool:
        try:
            results = list(pool.map(run, shares))
        finally:
            stopped.set()
    totals = Totals([array for _, arrays in results for array in arrays])
    return merge([sums for result, _ in results for sums in result]), totals


def sum_strips(
    data: Encoded, work: Callable[[Strip], tuple[list[NDArray[Any]], Floats | None]], width: int, title: str
) -> tuple[list[NDArray[Any]], Totals]:
    """Run `work` over all rows by NumPy; it returns a strip's sums, and what is to be totalled by block (width×rows) where `width` is not 0."""

    def begin() -> tuple[Callable[[Piece], list[NDArray[Any]]], list[Floats]]:
        totals = None if data.blocks is None or not width else np.zeros((width, data.blocks.sizes.size))

        def one(strip: Strip) -> list[NDArray[Any]]:
            sums, held = work(strip)
            if totals is not None and held is not None and strip.codes is not None:
                _total_blocks(totals, held, strip.codes, data.large)
            return sums

        def add(piece: Piece) -> list[NDArray[Any]]:
            with _SUMMING:
                return _add_up(map(one, data.strips(piece)))

        return add, [] if totals is None else [totals]

    with threadpool_limits(limits=1, user_api="blas"):
        return _sum_parts(data, begin, title)


def _add_up(sums: Iterable[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Add sums one after the other."""
    return reduce(lambda left, right: [np.add(*both) for both in zip(left, right, strict=True)], sums)


def _total_blocks(totals: Floats, held: Floats, codes: Codes, large: bool) -> None:
    """Add a strip's columns to the totals of their blocks; rows of one block that follow each other are summed first.

    Where blocks are `large`, each total gets one addition a strip: row by row they would lose more digits than the rounding bound allows.
    """
    if not codes.size:
        return
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    if starts.size <= _FEW_RUNS:
        ends = [*starts[1:], codes.size]
        held = np.stack([held[:, start:stop].sum(axis=1) for start, stop in zip(starts, ends, strict=True)], axis=1)
        codes = codes[starts]
    elif 2 * starts.size <= codes.size:
        held, codes = np.add.reduceat(held, starts, axis=1), codes[starts]
    if np.array_equal(codes, np.arange(codes[0], codes[0] + codes.size)):  # keys in order, as files often are
        totals[:, codes[0] : codes[0] + codes.size] += held
        return
    if large:
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        held, codes = np.add.reduceat(held[:, order], starts, axis=1), codes[starts]
    codes = codes.astype(np.intp)
    for row, values in zip(totals, held, strict=True):
        np.add.at(row, codes, values)


def merge(parts: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Add sums pairwise, in order."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [[np.add(*both) for both in zip(*pair, strict=True)] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]
