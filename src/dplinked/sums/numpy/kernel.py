"""The compiled pass over rows (kernel.c), if the package was built with a C compiler. Otherwise NumPy does the same, more slowly.

NumPy releases Python's lock for short steps only, so threads wait for each other. The kernel sums a quarter of a million rows without
the lock.
"""

from __future__ import annotations

import ctypes
import math
import sysconfig
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.encoding import CHANGED
from dplinked.errors import ReleaseError
from dplinked.study.design import Design

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
        library.dplinked_workspace.argtypes, library.dplinked_workspace.restype = [whole], whole
        library.dplinked_sum.argtypes = [whole, whole, pointer, pointer, ctypes.c_int, whole, *[pointer] * 6]
    except (OSError, AttributeError):
        return None
    return library


KERNEL: Any = _load()


class InstrumentSums:
    """The sums of one thread: :meth:`add` returns those of one tile, while totals of blocks grow from tile to tile.

    Parameters
    ----------
    design
        The scaling and the instrument.
    a
        Weights of the blocks; None without blocks.
    compensated
        Whether totals keep what rounding loses (Neumaier), in a second array.
    """

    def __init__(self, design: Design, a: Floats | None, compensated: bool) -> None:
        d, clipped = len(design.columns), design.half_widths is not None
        self._design, self._clipped = design, clipped
        self._a = np.ones(1) if a is None else np.require(a, np.float64, ["C", "A"])
        self._scaling = np.array([_scaling(design, k) for k in range(d + 1)])
        self._workspace = np.empty(KERNEL.dplinked_workspace(d))
        arrays = 0 if a is None else 1 + compensated
        self._arrays = [np.zeros((self._a.size, 2 * d if clipped else d)) for _ in range(arrays)]

    @property
    def totals(self) -> list[Floats]:
        """Arrays (width×blocks) whose sum is the totals of regressors and then, if they differ, of instruments."""
        return [array.T for array in self._arrays]

    def add(
        self, count: int, raw: Mapping[str, Floats], levels: Mapping[str, Codes], codes: Codes | None
    ) -> list[Floats]:
        """Sum a tile: ``Σ a h x'``, ``h'z``, ``Σh``, ``Σx`` and ``Σz``. The rows are also added to the totals of their blocks."""
        design, d = self._design, len(self._design.columns)
        cells = self._cells(count, raw, levels)
        codes = None if codes is None else np.require(codes, np.int32, ["C", "A"])
        sums = np.zeros(d * d + 3 * d + 1)
        pointers = (ctypes.c_void_p * (d + 1))(*(column.ctypes.data for column in cells))
        totals, lost = ([array.ctypes.data for array in self._arrays] + [None, None])[:2]
        done = KERNEL.dplinked_sum(
            count, d, pointers, self._scaling.ctypes.data, self._clipped, self._a.size,
            None if codes is None else codes.ctypes.data, self._a.ctypes.data, totals, lost, sums.ctypes.data,
            self._workspace.ctypes.data,
        )  # fmt: skip
        if not done:
            raise ReleaseError(CHANGED)
        core, b, sum_h, sum_x, sum_z = np.split(sums, np.cumsum([d * d, d, d, d]))
        core = core.reshape(d, d)
        if design.half_widths is None:
            core, sum_x = core + np.triu(core, 1).T, sum_h
        return [core, b, sum_h, sum_x, sum_z[0]]

    def _cells(self, count: int, raw: Mapping[str, Floats], levels: Mapping[str, Codes]) -> list[Floats]:
        """The columns as the data has them, which the kernel scales. Columns that are computed from others come from NumPy, scaled already."""
        columns = (*self._design.columns, self._design.response)
        made = np.empty((sum(column.plain is None for column in columns), count))
        numbers, rest = self._design.numbers(raw) if len(made) else {}, iter(made)
        cells = []
        for column in columns:
            if column.plain is None:
                cells.append(next(rest))
                column.write(numbers, levels, cells[-1])
            else:
                cells.append(np.require(raw[column.plain], np.float64, ["C", "A"]))
        return cells


def _scaling(design: Design, place: int) -> tuple[float, ...]:
    """What kernel.c calls a Scaling: bounds, fill, shift, scale and half-width of a column; the response comes last."""
    column = (*design.columns, design.response)[place]
    numeric = any(group.numeric and group.start <= place < group.stop for group in design.groups)
    half = design.half_widths[place] if design.half_widths is not None and numeric else math.nan
    if column.plain is None:
        return *_SCALED, half
    return *design.bounds[column.plain], design.fill[column.plain], column.shift, column.scale, half
