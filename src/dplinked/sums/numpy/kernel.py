"""The compiled pass over rows (kernel.c), if the package was built with a C compiler. Otherwise NumPy does the same, more slowly.

NumPy releases Python's lock for short steps only, so threads wait for each other. The kernel sums a quarter of a million rows without
the lock.
"""

from __future__ import annotations

import ctypes
import math
import sysconfig
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.encoding import CHANGED
from dplinked.errors import ReleaseError
from dplinked.study.design import Design
from dplinked.sums.numpy.prepare import Blocks, Piece, cut_strips
from dplinked.sums.partners import NEAR, PARTNERS
from dplinked.sums.types import MeatClip, ResidualClip, Whitening

if TYPE_CHECKING:
    from dplinked.sums.numpy.circle import Circle

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

LIBRARY = f"libkernel{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}"
_SCALED = (-math.inf, math.inf, 0.0, 0.0, 1.0)  # bounds, fill, shift and scale of a column that NumPy has scaled


def _load() -> Any:
    """Load the library; None if there is none, or if it was built from another source."""
    source, whole, pointer = Path(__file__).with_name("kernel.c"), ctypes.c_int64, ctypes.c_void_p
    try:
        library = ctypes.CDLL(str(source.with_name(LIBRARY)))
        library.dplinked_source.restype = ctypes.c_uint32
        if library.dplinked_source() != zlib.crc32(source.read_bytes()):
            return None
        library.dplinked_partners.restype = whole
        library.dplinked_nearby.restype = ctypes.c_double
        if library.dplinked_partners() != PARTNERS or library.dplinked_nearby() != NEAR:
            return None
        library.dplinked_workspace.argtypes, library.dplinked_workspace.restype = [whole], whole
        library.dplinked_sum.argtypes = [
            whole, whole, pointer, pointer, ctypes.c_int, ctypes.c_int, whole, *[pointer] * 7
        ]  # fmt: skip
        library.dplinked_slots.argtypes = [whole, pointer, whole, *[pointer] * 3]
        library.dplinked_store.argtypes = [whole, ctypes.c_int, *[pointer] * 5]
        library.dplinked_residuals.argtypes = [
            whole, whole, *[ctypes.c_int] * 3, *[pointer] * 5, whole, *[pointer] * 12
        ]  # fmt: skip
        library.dplinked_squares.argtypes = [
            whole, whole, ctypes.c_int, ctypes.c_int, *[pointer] * 3, ctypes.c_double, whole, *[pointer] * 4
        ]  # fmt: skip
        library.dplinked_curve.argtypes = [
            whole, whole, ctypes.c_int, ctypes.c_int, *[pointer] * 4, whole, *[pointer] * 4
        ]  # fmt: skip
        library.dplinked_places.argtypes = [whole, whole, *[pointer] * 4, whole, *[pointer] * 2]
        library.dplinked_counts.argtypes = [
            whole, whole, ctypes.c_int, *[pointer] * 3, ctypes.c_double, ctypes.c_double, whole, *[pointer] * 3
        ]  # fmt: skip
    except (OSError, AttributeError):
        return None
    return library


KERNEL: Any = _load()


class _Columns:
    """The columns of a design as the kernel takes them: cells as the data has them, and how they are scaled."""

    def __init__(self, design: Design, *, dropped: bool = False) -> None:
        self.design, self.count, self.dropped = design, len(design.columns), dropped
        self._scaling = np.array([_scaling(design, k) for k in range(self.count + 1)])
        self._workspace = np.empty(KERNEL.dplinked_workspace(self.count))
        self._counter = RowCounter(design)
        columns = (*design.columns, design.response)
        self._computed = [column for column in columns if column.plain is None and column.logged is None]
        factors = (factor for column in self._computed for factor in column.numeric)
        self._read = tuple(dict.fromkeys(name for factor in factors for name in factor.variables))

    @property
    def scaling(self) -> int:
        """Address of what kernel.c calls a Scaling of each column, the response's last."""
        return self._scaling.ctypes.data

    @property
    def workspace(self) -> int:
        """Address of numbers to work with."""
        return self._workspace.ctypes.data

    def cells(self, tile: Piece) -> list[Floats | None]:
        """The columns of a tile, then the response, and last what rows count, if they do not all count the same and missing ones are dropped.

        Columns that are computed from others come from NumPy, scaled already; NaN where a cell is missing, if rows are dropped for that.
        """
        columns = (*self.design.columns, self.design.response)
        made = iter(self._made(tile))
        sources = [column.plain or column.logged for column in columns]
        counting = self.design.counting if self.dropped else None
        return [
            *(next(made) if name is None else np.require(tile.raw[name], np.float64, ["C", "A"]) for name in sources),
            None if counting is None else tile.counted if tile.counted is not None else self._counter.count(tile),
        ]

    def _made(self, tile: Piece) -> Floats:
        """The columns that are computed from others (some×rows), a strip at a time, so that what is on the way to them stays in the cache."""
        made = np.empty((len(self._computed), tile.count))
        for rows in cut_strips(tile.count) if self._computed else ():
            numbers = self.design.numbers({name: tile.raw[name][rows] for name in self._read})
            levels = {name: codes[rows] for name, codes in tile.levels.items()}
            for column, cells in zip(self._computed, made[:, rows], strict=True):
                column.write(numbers, levels, cells)
        for column, cells in zip(self._computed, made, strict=True):
            if self.dropped:
                cells[~column.present(tile.raw, tile.levels)] = math.nan
        return made


class RowCounter:
    """Tells what the rows of tiles count, one tile after the other in the same place, since new memory costs more than the numbers do."""

    def __init__(self, design: Design) -> None:
        self._counting, self._counted = design.counting, np.empty(0)

    def count(self, tile: Piece) -> Floats:
        """What rows count, a strip at a time, so that what is on the way to it stays in the cache. It is written over by the next tile's."""
        assert self._counting is not None
        if self._counted.size < tile.count:
            self._counted = np.empty(tile.count)
        counted = self._counted[: tile.count]
        for rows in cut_strips(tile.count):
            raw = {name: tile.raw[name][rows] for name in self._counting.numeric}
            codes = {name: tile.levels[name][rows] for name in self._counting.categorical}
            self._counting.write_factors(raw, codes, counted[rows])
        return counted


class InstrumentSums:
    """The sums of one thread: :meth:`add` returns those of one tile, while totals of blocks grow from tile to tile.

    Parameters
    ----------
    design
        The scaling and the instrument.
    blocks
        The blocks, if there are any.
    compensated
        Whether totals keep what rounding loses (Neumaier), in a second array.
    dropped
        Whether rows with a missing regressor weigh 0.
    """

    def __init__(self, design: Design, blocks: Blocks | None, compensated: bool, *, dropped: bool = False) -> None:
        self._columns, self._clipped = _Columns(design, dropped=dropped), design.half_widths is not None
        self._a, self._weights = np.ones(1), None
        if blocks is not None:
            self._weights = None if blocks.weights is None else np.require(blocks.weights, np.float64, ["C", "A"])
            self._a = np.require(
                blocks.a if self._weights is None else blocks.a * self._weights, np.float64, ["C", "A"]
            )
        width = self._columns.count * (2 if self._clipped else 1) + 1
        self._arrays = _totals(self._a.size, width, blocks is not None and bool(blocks.o.any()), compensated)

    @property
    def totals(self) -> list[Floats]:
        """Arrays (width×blocks) whose sum is the totals of regressors, then, if they differ, of instruments, and the number of rows."""
        return [array.T for array in self._arrays]

    def add(self, tile: Piece) -> list[Floats]:
        """Sum a tile: ``Σ wa h x'``, ``Σ w h z``, ``Σ w h``, ``Σ w x``, ``Σ w z``, ``Σ w`` and, of rows with a response, ``Σ w``. The rows are also added to the totals of their blocks."""
        d, codes = self._columns.count, _codes(tile)
        cells = self._columns.cells(tile)
        sums = np.zeros(d * d + 3 * d + 3)
        done = KERNEL.dplinked_sum(
            tile.count, d, _pointers(cells), self._columns.scaling, self._clipped, self._columns.dropped, self._a.size, _address(codes),
            _address(self._a), _address(self._weights), *_addresses(self._arrays), _address(sums), self._columns.workspace,
        )  # fmt: skip
        _check(done)
        core, b, sum_h, sum_x, (sum_z, known, complete) = np.split(sums, np.cumsum([d * d, d, d, d]))
        core = core.reshape(d, d)
        if not self._clipped:
            core, sum_x = core + np.triu(core, 1).T, sum_h
        return [core, b, sum_h, sum_x, sum_z, known, complete]


class ResidualSums:
    """The residuals of one thread, times instruments; totals of blocks grow from tile to tile where `meat` asks for blocks.

    Parameters
    ----------
    design
        The scaling and the instrument.
    line
        Slopes and level of the line that residuals are taken around.
    clip, meat
        What residuals are clipped to, if they are, and what is squared.
    blocks
        The blocks, if there are any.
    circle
        The responses of partners, if rows have partners.
    compensated
        Whether totals keep what rounding loses (Neumaier), in a second array.
    mixed
        Whether slopes count for the block's a only; then totals of instruments and of ``x'slopes`` come after those of terms.
    dropped
        Whether missing responses and rows with a missing regressor count 0.
    """

    def __init__(
        self,
        design: Design,
        line: tuple[Floats, float],
        clip: ResidualClip | None,
        meat: MeatClip | None,
        blocks: Blocks | None,
        circle: Circle | None,
        compensated: bool,
        mixed: bool = False,
        dropped: bool = False,
    ) -> None:
        self._columns, self._mixed = _Columns(design, dropped=dropped), mixed
        self._blocks, self._circle = blocks, circle
        slopes, level = line
        self._slopes = np.array(slopes, np.float64)
        scale = (0.0, 1.0) if circle is None else (circle.middle, circle.unit)
        norm = 0.0 if meat is None else meat.norm
        clips = (math.inf, 0.0, 1.0) if clip is None else (clip.limit, clip.intercept_weight, clip.widest)
        whitening = None if clip is None else clip.whitening
        self._whitening = None if whitening is None else np.array(whitening.matrix, np.float64, order="C")
        reach = 0.0 if whitening is None else whitening.norm
        self._clip = np.array([level, *clips, norm, *scale, reach, *_curve(clip)])
        by_row = meat is not None and meat.route == "row"
        self._squared = np.array(meat.weights, np.float64) if meat is not None and by_row else None
        size, p = 1 if blocks is None else blocks.sizes.size, len(design.names)
        self._arrays = _totals(size, 2 * p + 1 if mixed else p, meat is not None and not by_row, compensated)

    @property
    def totals(self) -> list[Floats]:
        """Arrays (width×blocks) whose sum is the totals of the rows' terms, and what `mixed` adds to them."""
        return [array.T for array in self._arrays]

    def add(self, tile: Piece) -> list[Floats]:
        """Sum a tile: the equation (p), and the upper triangle of the squares of rows (p×p) if they are asked for."""
        d, intercept, codes = self._columns.count, int(self._columns.design.intercept), _codes(tile)
        blocks, circle, p = self._blocks, self._circle, d + intercept
        cells = self._columns.cells(tile)
        sums = np.zeros(p + p * p)
        a, o, weights = (None, None, None) if blocks is None else (blocks.a, blocks.o, blocks.weights)
        starts, slots, values = (None, None, None) if circle is None else (circle.starts, tile.slots, circle.values)
        done = KERNEL.dplinked_residuals(
            tile.count, d, intercept, self._mixed, self._columns.dropped, _pointers(cells), self._columns.scaling,
            _address(self._slopes), _address(self._clip), _address(self._whitening), 1 if blocks is None else blocks.sizes.size, _address(codes), _address(a), _address(o), _address(weights),
            _address(starts), _address(slots), _address(values), _address(self._squared), *_addresses(self._arrays),
            _address(sums), self._columns.workspace,
        )  # fmt: skip
        _check(done)
        return [sums[:p], sums[p:].reshape(p, p)]


class CurveSums:
    """The sums of one thread along a curve, of rows by themselves; :meth:`add` returns those of one tile.

    Parameters
    ----------
    design
        The scaling and the instrument.
    clip, level
        The curve, the line, how far instruments are shortened, and what means are taken around.
    blocks
        The blocks, by whose weights rows are multiplied, if there are any.
    dropped
        Whether rows with a missing regressor count 0.
    """

    def __init__(
        self, design: Design, clip: ResidualClip, level: float, blocks: Blocks | None, *, dropped: bool = False
    ) -> None:
        self._columns, self._blocks, first = _Columns(design, dropped=dropped), blocks, int(design.intercept)
        self._slopes, around = np.array(clip.beta[first:], np.float64), float(clip.beta[:first].sum())
        limits = around, clip.limit, clip.intercept_weight, clip.widest
        self._clip = np.array([*limits, 0.0, level, 1.0, 0.0, *_curve(clip)])
        self.totals: list[Floats] = []

    def add(self, tile: Piece) -> list[Floats]:
        """Sum a tile: ``Σ s m' (1, h)(1, x)'`` (p×p) and ``Σ s (1, h)(m - level)`` (p), each row times the weight of its block."""
        d, intercept, codes = self._columns.count, int(self._columns.design.intercept), _codes(tile)
        weights, size = (None, 1) if self._blocks is None else (self._blocks.weights, self._blocks.sizes.size)
        p, cells = d + intercept, self._columns.cells(tile)
        sums = np.zeros(p * p + p)
        done = KERNEL.dplinked_curve(
            tile.count, d, intercept, self._columns.dropped, _pointers(cells), self._columns.scaling, _address(self._slopes), _address(self._clip), size,
            _address(codes), _address(weights), _address(sums), self._columns.workspace,
        )  # fmt: skip
        _check(done)
        return [sums[: p * p].reshape(p, p), sums[p * p :]]


class WhitenedSquares:
    """Sums of squares of whitened rows, tile by tile; `weights` are those of their blocks, if there are any, and rows with a missing regressor may be `dropped`."""

    def __init__(self, design: Design, whitening: Whitening, weights: Floats | None, dropped: bool) -> None:
        self._columns, self._norm = _Columns(design, dropped=dropped), whitening.norm
        self._matrix = np.array(whitening.matrix, np.float64, order="C")
        self._weights = None if weights is None else np.require(weights, np.float64, ["C", "A"])
        self.totals: list[Floats] = []

    def add(self, tile: Piece) -> list[Floats]:
        """Sum a tile: the upper triangle (p×p)."""
        intercept, codes = int(self._columns.design.intercept), _codes(tile)
        cells, sums = self._columns.cells(tile), np.zeros_like(self._matrix)
        done = KERNEL.dplinked_squares(
            tile.count, self._columns.count, intercept, self._columns.dropped, _pointers(cells), self._columns.scaling, _address(self._matrix), self._norm,
            0 if self._weights is None else self._weights.size, None if self._weights is None else _address(codes),
            _address(self._weights), _address(sums), self._columns.workspace,
        )  # fmt: skip
        _check(done)
        return [sums]


class ResidualCounts:
    """Histograms of residuals, tile by tile; if rows are `dropped`, those with a missing cell are counted apart, at the end."""

    def __init__(
        self, design: Design, slopes: Floats, level: float, share: float, edges: Floats, *, dropped: bool = False
    ) -> None:
        self._columns, self._level, self._share = _Columns(design, dropped=dropped), level, share
        self._slopes, self._edges = np.array(slopes, np.float64), np.array(edges, np.float64)
        self.totals: list[Floats] = []

    def add(self, tile: Piece) -> list[NDArray[np.int64]]:
        """Count the rows of a tile by ``|z - level - share·x'slopes|`` (bins)."""
        cells, bins = self._columns.cells(tile), self._edges.size + 1
        counts = np.zeros(bins + self._columns.dropped, np.int64)
        KERNEL.dplinked_counts(
            tile.count, self._columns.count, self._columns.dropped, _pointers(cells), self._columns.scaling, _address(self._slopes),
            self._level, self._share, bins, _address(self._edges), _address(counts), self._columns.workspace,
        )  # fmt: skip
        return [counts]


class ColumnCounts:
    """Histograms of the numeric columns over their bounds, tile by tile; `grids` has the low end and the bins per unit of each column, 0 for others."""

    def __init__(self, design: Design, grids: Floats, bins: int) -> None:
        self._columns, self._bins = _Columns(design), bins
        self._lows, self._factors = (np.array(ends, np.float64) for ends in grids.T)
        self.totals: list[Floats] = []

    def add(self, tile: Piece) -> list[NDArray[np.int64]]:
        """Count the rows of a tile (columns×bins)."""
        cells = self._columns.cells(tile)
        counts = np.zeros((self._columns.count, self._bins), np.int64)
        KERNEL.dplinked_places(
            tile.count, self._columns.count, _pointers(cells), self._columns.scaling, _address(self._lows),
            _address(self._factors), self._bins, _address(counts), self._columns.workspace,
        )  # fmt: skip
        return [counts]


def find_slots(codes: Codes, starts: NDArray[np.int64], seen: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The slots of rows, see :class:`dplinked.sums.numpy.circle.Walk`; `seen` goes on to count the rows of each block."""
    slots, codes = np.empty(codes.size, np.int64), np.require(codes, np.int32, ["C", "A"])
    _check(
        KERNEL.dplinked_slots(codes.size, _address(codes), seen.size, _address(starts), _address(seen), _address(slots))
    )
    return slots


def store_responses(
    alone: Design, piece: Piece, middle: float, unit: float, values: NDArray[np.int32], dropped: bool
) -> None:
    """Write the responses of rows into their slots, missing ones as gaps if they are `dropped`. The design has no columns but the response."""
    columns = _Columns(alone, dropped=dropped)
    cells = columns.cells(piece)
    clip = np.array([0.0, 0.0, 0.0, 0.0, 0.0, middle, unit, 0.0, *_curve(None)])
    KERNEL.dplinked_store(
        piece.count, dropped, _pointers(cells), columns.scaling, _address(clip), _address(piece.slots), _address(values)
    )


def _address(array: NDArray[Any] | None) -> int | None:
    """Where an array is; the kernel takes None for what is not there."""
    return None if array is None else array.ctypes.data


def _pointers(arrays: list[Floats | None]) -> Any:
    """Where several arrays are, or None. It does not keep them alive."""
    return (ctypes.c_void_p * len(arrays))(*map(_address, arrays))


def _addresses(arrays: list[Floats]) -> list[int | None]:
    """Where totals and what they lost are."""
    return ([array.ctypes.data for array in arrays] + [None, None])[:2]


def _totals(blocks: int, width: int, wanted: bool, compensated: bool) -> list[Floats]:
    """Arrays for totals of blocks, none if they are not wanted."""
    return [np.zeros((blocks, width)) for _ in range(wanted * (1 + compensated))]


def _codes(tile: Piece) -> Codes | None:
    return None if tile.codes is None else np.require(tile.codes, np.int32, ["C", "A"])


def _check(done: int) -> None:
    """Refuse rows that are not those whose blocks were counted."""
    if not done:
        raise ReleaseError(CHANGED)


def _curve(clip: ResidualClip | None) -> tuple[float, ...]:
    """The curve as kernel.c has it in a Clip: whether it is that of events, the largest count, the ends of η and of slopes, a logarithm that it needs of the count, and what outcomes are taken around."""
    if clip is None or clip.curve is None:
        return 0.0, 0.0, 0.0, 0.0, 0.0, math.nan
    curve, around = clip.curve, math.nan if clip.around is None else clip.around
    largest = float(curve.largest * curve.counts)
    return float(not curve.counts), largest, curve.highest, curve.steepest, math.lgamma(curve.largest), around


def _scaling(design: Design, place: int) -> tuple[float, ...]:
    """What kernel.c calls a Scaling: bounds, fill, shift, scale and half-width of a column, and the ends of a logarithm; the response comes last."""
    column = (*design.columns, design.response)[place]
    numeric = any(group.numeric and group.start <= place < group.stop for group in design.groups)
    half = design.half_widths[place] if design.half_widths is not None and numeric else math.nan
    name, ends = column.plain or column.logged, (math.nan, math.nan) if column.logged is None else column.interval
    if name is None:
        return *_SCALED, half, *ends
    return *design.bounds[name], design.fill[name], column.shift, column.scale, half, *ends
