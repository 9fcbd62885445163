"""The pass over rows in memory: clip, scale, sum in tiles, merge in a fixed order.

Under exchangeable linkage errors ``h'Qx = a Σ h_i x_i' + o s_h s_x'`` per block, with ``a = γ - o`` and
block totals s, so Q is never built: one pass gives the row products and the block totals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dplinked.design import Design
from dplinked.errors import StudyError
from dplinked.keys import key_text
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.sums.rows import Rows, count_codes, key_texts
from dplinked.sums.sums import TILE, PrivateCounts, PrivateSums

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

MATCHING_ROWS = 16 * TILE  # summed in one piece, within the factor 16 of the rounding bound
STRIP = 1 << 15  # rows worked on at once, so that they stay in the cache
WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, repr=False)
class Blocks:
    """Rows in blocks: block number of each row (n), and per block size m, ``a = γ - o`` and ``o = (1-γ)/(m-1)``.

    ``keys`` names the blocks of an accuracy table, the other block by None; it is empty without a table.
    """

    codes: Codes
    sizes: NDArray[np.int64]
    a: Floats
    o: Floats
    keys: tuple[str | None, ...] = ()


@dataclass(frozen=True, repr=False)
class Encoded:
    """Rows ready for the pass: categorical codes and blocks found, cells not read yet."""

    rows: Rows
    design: Design
    codes: dict[str, Codes]
    blocks: Blocks | None
    matching: Any = None

    def tile(self, start: int, stop: int) -> tuple[Floats, Floats]:
        """Scaled regressors (d×k) and responses (k) of rows start:stop."""
        raw = {name: self.rows.numbers(name, start, stop) for name in self.design.bounds}
        numbers = self.design.numbers(raw)
        codes = {name: column[start:stop] for name, column in self.codes.items()}
        regressors = np.empty((len(self.design.columns), stop - start))
        self.design.regressors(numbers, codes, regressors)
        return regressors, self.design.response.values(numbers, codes)


def encode(rows: Rows, design: Design, linkage: Linkage, unit: PrivacyUnit) -> Encoded:
    """Find categorical codes and blocks. Only what is public under the unit can make it fail."""
    codes = {name: rows.coded(name, partial(_place_levels, levels)) for name, levels in design.levels.items()}
    if isinstance(linkage, Matching):
        if linkage.matrix.shape[0] != rows.count:
            raise StudyError(f"The matching matrix is for {linkage.matrix.shape[0]} rows, the data has {rows.count}.")
        if rows.count > MATCHING_ROWS:
            raise StudyError(f"An explicit matching matrix may have at most {MATCHING_ROWS:,} rows in memory.")
        return Encoded(rows, design, codes, None, linkage.matrix)
    return Encoded(rows, design, codes, None if isinstance(linkage, Exact) else _find_blocks(rows, linkage, unit))


def _place_levels(levels: Sequence[Any], distinct: list[str | None]) -> list[int]:
    """Number of each level; undeclared ones count as the reference level, the first."""
    known = {key_text(level): i for i, level in enumerate(levels)}
    return [0 if text is None else known.get(text, 0) for text in distinct]


def _find_blocks(rows: Rows, linkage: ELE, unit: PrivacyUnit) -> Blocks:
    accuracies: list[float] = []
    keys: list[str | None] = []

    def place(distinct: list[str | None]) -> list[int]:
        """Number the blocks; null and undeclared keys share the last one."""
        found = [linkage.accuracy_of(key) for key in distinct]
        accuracies.extend(accuracy for accuracy in found if accuracy is not None)
        keys.extend(key for key, accuracy in zip(distinct, found, strict=True) if accuracy is not None)
        other = len(accuracies)
        if None in found:
            if linkage.other_accuracy is None:
                raise StudyError(
                    f"No accuracy for other blocks: {linkage.block!r} has null keys or keys absent from the accuracy "
                    "table. Add them, or declare ELE(…, other=…)."
                )
            accuracies.append(linkage.other_accuracy)
            keys.append(None)
        numbers = iter(range(other))
        return [other if accuracy is None else next(numbers) for accuracy in found]

    if linkage.block is None:
        codes = np.zeros(rows.count, dtype=np.int32)
        accuracy = linkage.accuracy_of("")
        assert accuracy is not None
        accuracies.append(accuracy)
    else:
        codes, distinct = rows.encode_keys(linkage.block)
        if isinstance(distinct, np.ndarray) and not isinstance(linkage.accuracy, Mapping):
            accuracies.extend(
                [linkage.accuracy_of("") or 1.0] * distinct.size
            )  # whole numbers, none null: a block each
        else:
            codes = np.asarray(place(key_texts(distinct)), dtype=np.int32)[codes]
    sizes = count_codes(codes, len(accuracies))
    gamma = np.where(sizes == 1, 1.0, np.asarray(accuracies))
    if linkage.source == "estimated":  # data: whatever they are, they must not stop a release
        gamma = np.maximum(gamma, 1.0 / np.maximum(sizes, 1))
    if not unit.moves_block and np.any((sizes > 1) & (gamma * sizes < 1.0 - 1e-9)):
        raise StudyError(
            "The accuracy of a block is below 1/(its number of rows), less than random links have. "
            "Merge small blocks or correct the accuracy."
        )
    o = np.where(sizes > 1, (1.0 - gamma) / np.maximum(sizes - 1, 1), 0.0)
    return Blocks(codes, sizes, gamma - o, o, tuple(keys))


# --- the bounded instrument -----------------------------------------------------------------------


def instrument_sums(data: Encoded) -> PrivateSums:
    """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
    design, d = data.design, len(data.design.columns)
    if data.matching is not None:
        x, z = data.tile(0, data.rows.count)
        h = np.empty_like(x)
        design.instruments(x, h)
        core, sum_x = h @ (data.matching @ x.T), x @ data.matching.sum(axis=0)
        return _bordered(design, data.rows.count, core, h.sum(axis=1), sum_x, h @ z, float(z.sum()), False)
    symmetric = design.halves is None

    def strip(start: int, stop: int, held: Floats | None) -> list[Floats]:
        x, z = data.tile(start, stop)
        h = x if symmetric else np.empty_like(x)
        if not symmetric:
            design.instruments(x, h)
        parts = [h @ z, h.sum(axis=1), x.sum(axis=1), np.asarray(z.sum())]
        if data.blocks is None or held is None:
            return [h @ x.T, *parts]
        held[:d] = x
        if not symmetric:
            held[d:] = h
        x *= data.blocks.a[data.blocks.codes[start:stop]]
        return [held[:d] @ x.T if symmetric else h @ x.T, *parts]

    width = 0 if data.blocks is None else d * (1 if symmetric else 2)
    (core, b, sum_h, sum_x, sum_z), totals = sum_tiles(data, strip, width)
    if data.blocks is not None and totals is not None:
        core = core + _block_product(totals[-d:] if d else totals, totals[:d], data.blocks.o)
    return _bordered(design, data.rows.count, core, sum_h, sum_x, b, float(sum_z), symmetric)


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
    p = len(data.design.names)

    def rows(start: int, stop: int) -> tuple[Floats, Floats]:
        x, z = data.tile(start, stop)
        if data.design.intercept:
            x = np.vstack([np.ones(stop - start), x])
        scale_rows(x, row_norm)
        return x, np.clip(z, -response_bound, response_bound)

    if data.matching is not None:
        x, z = rows(0, data.rows.count)
        w = x @ data.matching.T
        return PrivateSums(w @ w.T, w @ z, data.rows.count)

    def strip(start: int, stop: int, held: Floats | None) -> list[Floats]:
        x, z = rows(start, stop)
        if data.blocks is None or held is None:
            return [x @ x.T, x @ z]
        held[:p], held[p] = x, z
        x *= data.blocks.a[data.blocks.codes[start:stop]]
        return [x @ x.T, x @ z]

    (gram, cross), totals = sum_tiles(data, strip, 0 if data.blocks is None else p + 1)
    if data.blocks is not None and totals is not None:
        a, o, m = data.blocks.a, data.blocks.o, data.blocks.sizes
        gram = gram + _block_product(totals[:p], totals[:p], 2.0 * a * o + m * o**2)
        cross = cross + _block_product(totals[:p], totals[p:], o)[:, 0]
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

    def strip(start: int, stop: int, _: Floats | None) -> list[NDArray[Any]]:
        x, _z = data.tile(start, stop)
        counts = np.zeros((len(numeric), bins), dtype=np.int64)
        for row, k in zip(counts, numeric, strict=True):
            low, high = (
                (edge - data.design.columns[k].shift) / data.design.columns[k].scale
                for edge in data.design.columns[k].interval
            )
            place = ((x[k] - low) * (bins / (high - low))).astype(np.int64)
            row += np.bincount(np.clip(place, 0, bins - 1), minlength=bins)
        return [counts]

    (counts,), _ = sum_tiles(data, strip, 0)
    return PrivateCounts(counts)


# --- tiles -----------------------------------------------------------------------------------------


def sum_tiles(
    data: Encoded, strip: Callable[[int, int, Floats | None], list[NDArray[Any]]], width: int
) -> tuple[list[NDArray[Any]], Floats | None]:
    """Run `strip` over all rows; return merged parts and block totals (width×blocks).

    A strip fits the cache and returns its sums; what is to be totalled by block it writes into its last
    argument (width×rows of the strip), and a whole tile of strips is totalled at once, column by column.
    Threads share out strips and columns; the order of every addition is fixed, whatever their number.
    """
    count, blocks = data.rows.count, data.blocks
    totals = held = None
    if width and blocks is not None:
        totals, held = np.zeros((width, blocks.sizes.size)), np.empty((width, min(TILE, count)))
    tiles = []
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(max_workers=WORKERS) as pool:
        for start in range(0, max(count, 1), TILE):
            stop = min(start + TILE, count)
            firsts = list(range(start, stop, STRIP)) or [start]
            lasts = [min(first + STRIP, stop) for first in firsts]
            views = [
                None if held is None else held[:, first - start : last - start]
                for first, last in zip(firsts, lasts, strict=True)
            ]
            tiles.append(_merge(list(pool.map(strip, firsts, lasts, views))))
            if totals is not None and held is not None and blocks is not None and stop > start:
                codes = blocks.codes[start:stop]
                low, high = int(codes.min()), int(codes.max()) + 1
                add = partial(_add_by_place, np.subtract(codes, low, dtype=np.intp))
                list(pool.map(add, totals[:, low:high], held[:, : stop - start]))
    return _merge(tiles), totals


def _add_by_place(places: NDArray[np.intp], totals: Floats, values: Floats) -> None:
    totals += np.bincount(places, weights=values, minlength=totals.size)


def _merge(parts: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Add tiles pairwise, in order."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [[np.add(*both) for both in zip(*pair, strict=True)] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def _block_product(left: Floats, right: Floats, weights: Floats) -> Floats:
    """``Σ_b weight_b left_b right_b'`` over blocks, in tiles."""
    tiles = [
        [(left[:, start : start + TILE] * weights[start : start + TILE]) @ right[:, start : start + TILE].T]
        for start in range(0, weights.size, TILE)
    ]
    return np.asarray(_merge(tiles)[0]) if tiles else np.zeros((left.shape[0], right.shape[0]))
