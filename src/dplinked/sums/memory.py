"""The pass over rows in memory: clip, scale, sum in tiles, merge in a fixed order.

Under exchangeable linkage errors ``h'Qx = a Σ h_i x_i' + o s_h s_x'`` per block, with ``a = γ - o`` and
block totals s, so Q is never built: one pass gives the row products and the block totals.
"""

from __future__ import annotations

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
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.sums.rows import Rows
from dplinked.sums.sums import TILE, PrivateCounts, PrivateSums

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

LANES = 2  # a constant, so that the order of summation does not depend on the machine


@dataclass(frozen=True, repr=False)
class Blocks:
    """Rows in blocks: block number of each row (n), and per block size m, ``a = γ - o`` and ``o = (1-γ)/(m-1)``."""

    codes: Codes
    sizes: NDArray[np.int64]
    a: Floats
    o: Floats


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
        return Encoded(rows, design, codes, None, linkage.matrix)
    return Encoded(rows, design, codes, None if isinstance(linkage, Exact) else _find_blocks(rows, linkage, unit))


def _place_levels(levels: Sequence[Any], distinct: list[Any]) -> list[int]:
    """Number of each level; undeclared ones count as the reference level, the first."""
    known = {level: i for i, level in enumerate(levels)}
    return [known.get(value, 0) if value.__hash__ else 0 for value in distinct]


def _find_blocks(rows: Rows, linkage: ELE, unit: PrivacyUnit) -> Blocks:
    accuracies: list[float] = []

    def place(distinct: list[Any]) -> list[int]:
        """Number the blocks; null and undeclared keys share the last one."""
        found = [linkage.accuracy_of(key) for key in distinct]
        accuracies.extend(accuracy for accuracy in found if accuracy is not None)
        other = len(accuracies)
        if None in found:
            if linkage.other_accuracy is None:
                raise StudyError(
                    f"No accuracy for other blocks: {linkage.block!r} has null keys or keys absent from the accuracy "
                    "table. Add them, or declare ELE(…, other=…)."
                )
            accuracies.append(linkage.other_accuracy)
        numbers = iter(range(other))
        return [other if accuracy is None else next(numbers) for accuracy in found]

    if linkage.block is None:
        codes = np.zeros(rows.count, dtype=np.int32)
        assert not isinstance(linkage.accuracy, Mapping)
        accuracies.append(linkage.accuracy)
    else:
        codes = rows.coded(linkage.block, place)
    sizes = np.bincount(codes, minlength=len(accuracies))
    gamma = np.where(sizes == 1, 1.0, np.asarray(accuracies))
    if not unit.moves_block and np.any((sizes > 1) & (gamma * sizes < 1.0 - 1e-9)):
        raise StudyError(
            "The accuracy of a block is below 1/(its number of rows), less than random links have. "
            "Merge small blocks or correct the accuracy."
        )
    o = np.where(sizes > 1, (1.0 - gamma) / np.maximum(sizes - 1, 1), 0.0)
    return Blocks(codes, sizes, gamma - o, o)


# --- the bounded instrument -----------------------------------------------------------------------


def instrument_sums(data: Encoded) -> PrivateSums:
    """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
    design, d = data.design, len(data.design.columns)
    if data.matching is not None:
        x, z = data.tile(0, data.rows.count)
        h = np.empty_like(x)
        design.instruments(x, h)
        return _assemble(design, data.rows.count, x @ data.matching.T @ h.T, x @ data.matching.sum(axis=0), h, z)
    symmetric = design.halves is None

    def tile(start: int, stop: int, totals: Floats | None) -> list[Floats]:
        x, z = data.tile(start, stop)
        h = x if symmetric else np.empty_like(x)
        design.instruments(x, h)
        parts = [h @ z, h.sum(axis=1), x.sum(axis=1), np.asarray(z.sum())]
        if data.blocks is None:
            return [h @ x.T, *parts]
        codes = data.blocks.codes[start:stop]
        assert totals is not None
        for row, values in zip(totals, x if symmetric else [*x, *h], strict=True):
            row += np.bincount(codes, weights=values, minlength=row.size)
        return [h @ (x * data.blocks.a[codes]).T, *parts]

    width = 0 if data.blocks is None else d * (1 if symmetric else 2)
    (core, b, sum_h, sum_x, sum_z), totals = _sum_tiles(data, tile, width)
    if data.blocks is not None and totals is not None:
        core = core + _block_product(totals[-d:] if d else totals, totals[:d], data.blocks.o)
    return _bordered(design, data.rows.count, core, sum_h, sum_x, b, float(sum_z), symmetric)


def _assemble(design: Design, count: int, core_t: Floats, sum_x: Floats, h: Floats, z: Floats) -> PrivateSums:
    return _bordered(design, count, core_t.T, h.sum(axis=1), sum_x, h @ z, float(z.sum()), False)


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

    def tile(start: int, stop: int, totals: Floats | None) -> list[Floats]:
        x, z = rows(start, stop)
        if data.blocks is None:
            return [x @ x.T, x @ z]
        codes = data.blocks.codes[start:stop]
        assert totals is not None
        for row, values in zip(totals, [*x, z], strict=True):
            row += np.bincount(codes, weights=values, minlength=row.size)
        x *= data.blocks.a[codes]
        return [x @ x.T, x @ z]

    (gram, cross), totals = _sum_tiles(data, tile, 0 if data.blocks is None else p + 1)
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

    def tile(start: int, stop: int, _: Floats | None) -> list[NDArray[Any]]:
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

    (counts,), _ = _sum_tiles(data, tile, 0)
    return PrivateCounts(counts)


# --- tiles -----------------------------------------------------------------------------------------


def _sum_tiles(
    data: Encoded, tile: Callable[[int, int, Floats | None], list[NDArray[Any]]], width: int
) -> tuple[list[NDArray[Any]], Floats | None]:
    """Run `tile` over all rows in a fixed set of lanes; return merged parts and block totals (width×blocks)."""
    starts = list(range(0, data.rows.count, TILE)) or [0]
    cut = -(-len(starts) // LANES)
    lanes = [starts[i * cut : (i + 1) * cut] for i in range(LANES) if starts[i * cut : (i + 1) * cut]]

    def run(lane: list[int]) -> tuple[list[NDArray[Any]], Floats | None]:
        totals = np.zeros((width, data.blocks.sizes.size)) if width and data.blocks is not None else None
        parts = [tile(start, min(start + TILE, data.rows.count), totals) for start in lane]
        return _merge(parts), totals

    with threadpool_limits(limits=1, user_api="blas"):
        if len(lanes) == 1:
            done = [run(lanes[0])]
        else:
            with ThreadPoolExecutor(max_workers=LANES) as pool:
                done = list(pool.map(run, lanes))
    totals = [lane_totals for _, lane_totals in done if lane_totals is not None]
    for later in totals[1:]:
        totals[0] += later
    return _merge([parts for parts, _ in done]), totals[0] if totals else None


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
