"""Exact sums by SQL: whole numbers of steps of a grid are added, so that no engine's order of addition matters.

Engines add in any order, and floating-point sums depend on it. So each term v is rounded to a whole number of
steps q of a grid, and whole numbers are added. With n terms of ``Σ|v| ≤ n·V`` and

    q = 2^(⌈log2 V⌉ + ⌈log2 n⌉ - 61),    Σ rint(v/q) ≤ n·V/q + n/2 ≤ 2^61 + 2^61,

64 bits hold every partial sum, so the total is the same in any order, and off from Σv by at most n·q/2. Dividing by a
power of two is exact, and each term is a function of one row (or block) alone: a person changes a sum by what the
terms change and one step per changed term, whatever the number of rows. Above 2^26 rows what rounding leaves,
|v - rint(v/q)·q| ≤ q/2, is summed in the same way on a grid finer by 2^(61 - ⌈log2 n⌉).

*Totals of blocks.* Engines add doubles by group much faster than whole numbers, whose sums they keep in 128 bits. So there numbers of steps stay doubles, on a
grid on which doubles are exact: with at most m rows a block, terms of at most 1, and

    q = 2^(⌈log2 m⌉ - 52) ≤ 4m·2⁻⁵³,    Σ|rint(v/q)| ≤ 2^52 + m/2 < 2^53,

every partial sum is a whole number that a double holds, and the total is the same in any order. It is off by at most m·q/2. Up to m = 64 that is no more than ``m + 80`` roundings
of the sum of m, which is what step 5 of :func:`dplinked.sums.rounding.rounding_bound` allows. In larger blocks what rounding leaves is summed on a grid finer by 2^(52 - ⌈log2 m⌉).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError, StudyError
from dplinked.sums.sql.dialect import SqlEngine

Floats = NDArray[np.float64]

CHANGED = "The release failed: the rows changed while they were read, or an id or key is there twice."
_ONE_GRID = 26  # log2 of the number of rows up to which one grid is fine enough
_ONE_TOTAL = 6  # the same of a block's rows, where numbers of steps are doubles


def log2_ceiling(value: float) -> int:
    """The smallest whole e with value ≤ 2^e; -900 for less than that, 0 included."""
    mantissa, exponent = math.frexp(value)
    return max(-900, exponent - 1 if mantissa == 0.5 else exponent) if value > 0 else -900


def _steps(engine: SqlEngine, term: str, bits: int, log_count: int) -> list[tuple[str, int]]:
    """Whole numbers whose sums, each times its ``2^-bits``, make the sum of a term of at most 2^(61-log_count-bits)."""
    step = f"{engine.double(math.ldexp(1.0, bits))} * {term}"
    high = engine.whole(step)
    if log_count <= _ONE_GRID:
        return [(high, bits)]
    finer = 61 - log_count
    rest = f"{engine.double(math.ldexp(1.0, finer))} * ({step} - {engine.as_double(high)})"
    return [(high, bits), (engine.whole(rest), bits + finer)]


def exact_total(engine: SqlEngine, term: str, log_count: int) -> str:
    """Exact sum over a group of at most ``2^log_count`` rows of terms that are at most 1, as a double."""
    parts = _steps(engine, term, 61 - log_count, log_count)
    return " + ".join(
        f"{engine.as_double(f'sum({whole})')} * {engine.double(math.ldexp(1.0, -bits))}" for whole, bits in parts
    )


def block_total(engine: SqlEngine, term: str, log_count: int) -> str:
    """Exact sum over a block of at most ``2^log_count`` rows of terms that are at most 1, as a double; see the module's text."""
    bits = min(51, 52 - log_count)
    scale, unit = (engine.double(math.ldexp(1.0, power)) for power in (bits, -bits))
    high = engine.rounded(f"{scale} * {term}")
    if log_count <= _ONE_TOTAL:
        return f"sum({high}) * {unit}"
    rest = engine.rounded(f"{scale} * ({scale} * {term} - {high})")
    return f"(sum({high}) + sum({rest}) * {unit}) * {unit}"


@dataclass(frozen=True)
class Scaled:
    """A column of a statement whose absolute values are at most 1. It stands for ``2^log`` times itself."""

    sql: str
    log: int = 0


class ExactSums:
    """Terms to sum on their grids (see the module's text), and their sums read back."""

    def __init__(self, engine: SqlEngine, count: int) -> None:
        self._engine, self._log_count = engine, log2_ceiling(max(1, count))
        self._terms: list[tuple[list[tuple[str, int]], int]] = []

    def add(self, *factors: Scaled, room: int = 0) -> None:
        """Add a product whose absolute values are at most ``2^room``, on average over all rows."""
        term = " * ".join(factor.sql for factor in factors)
        steps = _steps(self._engine, term, 61 - self._log_count - room, self._log_count)
        self._terms.append((steps, sum(factor.log for factor in factors)))

    def add_matrix(
        self, left: Sequence[Scaled], right: Sequence[Scaled], *weights: Scaled, symmetric: bool = False, room: int = 0
    ) -> None:
        """Add all products of two lists; if `symmetric`, those of one triangle."""
        for i, j in matrix_places(len(left), len(right), symmetric):
            self.add(*weights, left[i], right[j], room=room)

    def selected(self) -> str:
        """The sums, in steps of their grids, each after a comma."""
        return "".join(f", sum({whole})" for steps, _ in self._terms for whole, _ in steps)

    def read(self, found: Iterable[Any]) -> Reader:
        """Sums from the numbers that the engine found for :meth:`selected`."""
        sums, exact = iter(found), []
        for steps, log in self._terms:
            exact.append(math.fsum(math.ldexp(int(next(sums) or 0), log - bits) for _, bits in steps))
        return Reader(np.array(exact, dtype=np.float64))

    def fetch(self, source: str, count: int, joined: str = "*", counted: str = "count") -> Reader:
        """Sum over `count` rows. A join that lost or doubled some of them, or left `joined` null, is found out. Where rows are grouped, `joined` is how many there are in each, and they are `counted` by ``"sum"``."""
        ((found, *sums),) = self._engine.fetch(f"select {counted}({joined}){self.selected()} from ({source}) terms")
        if int(found) != count:
            raise ReleaseError(CHANGED)
        return self.read(sums)


class Reader:
    """Sums in the order they were added."""

    def __init__(self, sums: Floats) -> None:
        self._left = sums

    def take(self, size: int) -> Floats:
        """The next `size` sums."""
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def matrix(self, left: int, right: int, *, symmetric: bool = False) -> Floats:
        """The next matrix."""
        places = matrix_places(left, right, symmetric)
        matrix = np.zeros((left, right))
        for (i, j), entry in zip(places, self.take(len(places)), strict=True):
            matrix[i, j] = entry
            if symmetric:
                matrix[j, i] = entry
        return matrix


def matrix_places(left: int, right: int, symmetric: bool) -> list[tuple[int, int]]:
    """Entries of a matrix row by row; those of the upper triangle if it is symmetric."""
    return [(i, j) for i in range(left) for j in range(i if symmetric else 0, right)]


def shorten(
    engine: SqlEngine, query: str, columns: Sequence[Scaled], norm: float, kept: str = "1 as one"
) -> tuple[str, list[Scaled]]:
    """Columns of a query, scaled so that each row's l2 norm is at most `norm`; the columns that `kept` lists stay beside them.

    The columns are first divided by a common power of two that keeps them below 1, so that their squares cannot overflow.
    """
    double, top = engine.double, max((column.log for column in columns), default=0)
    limit = math.ldexp(norm, -top)
    if not limit > 2.0**-400:
        raise StudyError("The norm that rows are to be scaled to is too small for the declared bounds.")
    small = min(0, log2_ceiling(limit))
    listed = "".join(f", {double(math.ldexp(1.0, c.log - top))} * {c.sql} as y{i}" for i, c in enumerate(columns))
    inner = f"select {kept}{listed} from ({query}) cells"
    length = f"sqrt({' + '.join(f'y{i} * y{i}' for i in range(len(columns))) or double(0.0)})"
    largest = f"greatest({length} * {double(1.0 + 1e-12)}, {double(limit)})"
    factor = f"select lengths.*, {double(math.ldexp(limit, -small))} / {largest} as factor from ({inner}) lengths"
    scaled = "".join(f", y{i} * factor as u{i}" for i in range(len(columns)))
    return f"select short.*{scaled} from ({factor}) short", [Scaled(f"u{i}", top + small) for i in range(len(columns))]
