"""A design's columns as SQL: clipped cells, levels, formulas, scaled regressors and instruments, with the same results as in NumPy."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import level_numbers
from dplinked.study.counting import Comparison, Condition, HasLevel, Joined
from dplinked.study.design import Column, Design
from dplinked.study.formula import Factor
from dplinked.sums.sql.dialect import LARGEST, SqlColumn, SqlEngine
from dplinked.sums.sql.exact_sums import Scaled, log2_ceiling
from dplinked.sums.types import ResidualClip

Floats = NDArray[np.float64]

MISSING = 4.0  # stands for a missing response, in units in which others are at most 1


class DesignColumns:
    """The columns of a design over a source, as SQL text.

    Parameters
    ----------
    engine
        Writes and runs the statements.
    stored
        The columns of the data, by name.
    source
        What stands behind ``from``.
    design
        The scaling and the instrument.
    dropped
        Whether missing cells are dropped: then a missing response is `MISSING` times its largest value, and e is 0 for rows with a missing regressor, else 1.
    """

    def __init__(
        self, engine: SqlEngine, stored: Mapping[str, SqlColumn], source: str, design: Design, dropped: bool = False
    ) -> None:
        self.engine, self.stored, self.source, self.design, self.dropped = engine, stored, source, design, dropped
        self._numbers = {name: f"n{i}" for i, name in enumerate(design.bounds)}
        self._codes = {name: f"l{i}" for i, name in enumerate(design.levels)}

    @property
    def x(self) -> list[Scaled]:
        """The regressors' columns."""
        return [Scaled(f"x{i}", log2_ceiling(column.peak)) for i, column in enumerate(self.design.columns)]

    @property
    def h(self) -> list[Scaled]:
        """The instruments' columns. An instrument that equals its regressor is that regressor's column."""
        return [self._instrument_column(i, x) for i, x in enumerate(self.x)]

    @property
    def none(self) -> Scaled:
        """In the place of the instrument that a column does not have."""
        return Scaled(self.engine.double(0.0))

    @property
    def ones(self) -> list[Scaled]:
        """The intercept's 1, if there is one."""
        return [Scaled(self.engine.double(1.0))] if self.design.intercept else []

    @property
    def z(self) -> Scaled:
        """The response's column."""
        return Scaled("z", log2_ceiling(self.design.response.peak))

    @property
    def known(self) -> list[Scaled]:
        """What rows are multiplied by where those with a missing regressor are dropped: what they count, from 0 to 1."""
        return [Scaled("e")] if self.dropped else []

    def is_missing(self, response: str, *, scaled: bool = True) -> str:
        """Whether a response is missing, where these are dropped."""
        return f"{response} > {self.engine.double(math.ldexp(MISSING / 2.0, 0 if scaled else self.z.log))}"

    @property
    def instruments(self) -> list[Scaled]:
        """The instruments' columns after the intercept's 1, if there is one."""
        return [*self.ones, *self.h]

    def fitted(self, beta: Floats, logs: Sequence[int]) -> tuple[str, float]:
        """``x'β`` without the intercept, of columns divided by ``2^logs``, and a bound on it."""
        slopes = beta[int(self.design.intercept) :].tolist()
        terms = [
            f"{self.engine.double(math.ldexp(b, log))} * x{k}"
            for k, (b, log) in enumerate(zip(slopes, logs, strict=True))
        ]
        reach = sum(abs(slope) * column.peak for slope, column in zip(slopes, self.design.columns, strict=True))
        return f"({' + '.join(terms) or self.engine.double(0.0)})", reach

    def line(self, beta: Floats, unit: int = 0) -> tuple[str, float]:
        """``β₀ + x'β`` divided by ``2^unit``, and a bound on it."""
        level = math.ldexp(float(beta[: int(self.design.intercept)].sum()), -unit)
        fitted, reach = self.fitted(beta, [x.log - unit for x in self.x])
        return f"{self.engine.double(level)} + {fitted}", abs(level) + math.ldexp(reach, -unit)

    def width(self, clip: ResidualClip, unit: int = 0, instruments: Sequence[Scaled] | None = None) -> str:
        """What :meth:`ResidualClip.widths` has, divided by ``2^unit``: ``limit/‖(ι, h)‖``, but at most `widest`; h are the instruments unless others are given."""
        h = self.h if instruments is None else instruments
        double, top = self.engine.double, max((column.log for column in h), default=0)
        squares = [double(math.ldexp(clip.intercept_weight, -top) ** 2)]
        squares += [f"{double(math.ldexp(1.0, 2 * (column.log - top)))} * {column.sql} * {column.sql}" for column in h]
        uneven = self.dropped and self.design.counting is not None and clip.curve is None
        counted = "e * " if uneven else ""
        norm = f"{counted}sqrt({' + '.join(squares)}) * {double(1.0 + 1e-12)}"
        least = double(math.ldexp(clip.limit / clip.widest, -top))
        return f"{double(math.ldexp(clip.limit, -top - unit))} / greatest({norm}, {least})"

    def widest(self, clip: ResidualClip) -> float:
        """Bound on :meth:`width`."""
        return min(clip.widest, clip.limit / clip.intercept_weight) if clip.intercept_weight else clip.widest

    def terms(
        self,
        clip: ResidualClip,
        factor: str,
        most: float = 1.0,
        *,
        unit: int = 0,
        weight: float = 1.0,
        instruments: Sequence[Scaled] | None = None,
    ) -> tuple[list[Scaled], str]:
        """The instruments times a weight and a factor, which is at most `most` times :meth:`width` and divided by ``2^unit``: t0, t1, …, and their text.

        Instruments are the design's, the intercept's 1 first, unless others are given, among which there is no 1.
        """
        widest, listed, terms = self.widest(clip), list[str](), list[Scaled]()
        ones = len(self.ones) if instruments is None else 0
        for i, h in enumerate(self.instruments if instruments is None else instruments):
            log = log2_ceiling(most * (widest if i < ones else min(clip.limit, math.ldexp(widest, h.log))))
            listed.append(f"{self.engine.double(math.ldexp(weight, h.log + unit - log))} * {h.sql} * {factor} as t{i}")
            terms.append(Scaled(f"t{i}", log))
        return terms, ", ".join(listed)

    def rows(self, key: str | None, *, instruments: bool = False, scaled: bool = True) -> str:
        """Query of the key k, z, x0, x1, …, with `instruments` h0, h1, …, e if missing cells are dropped, the key c of the cluster if the design has a column of these, and the number s of the stratum if it has one of those.

        If `scaled`, regressors and responses are divided by powers of two, so that they are at most 1.
        """
        logs = [x.log if scaled else 0 for x in self.x]
        listed = "".join(
            f", {self._column(column, log)} as x{i}"
            for i, (column, log) in enumerate(zip(self.design.columns, logs, strict=True))
        )
        log = self.z.log if scaled else 0
        z = self._column(self.design.response, log)
        if self.dropped:
            gap = self.engine.double(math.ldexp(MISSING, self.z.log - log))
            z, listed = f"case when answered = 1 then {z} else {gap} end", f"{listed}, e"
        query = f"select {', '.join(self.keys_listed)}, {z} as z{listed} from ({self._clipped(key)}) clipped"
        return self.add_instruments(query, scaled=scaled) if instruments else query

    @property
    def keys_listed(self) -> tuple[str, ...]:
        """The columns of keys: that of the linkage, that of clusters if there are any, and the number of the stratum if there are strata."""
        return "k", *(() if self.design.cluster is None else ("c",)), *(() if self.design.strata is None else ("s",))

    def add_instruments(self, rows: str, *, scaled: bool = True) -> str:
        """Query of rows of :meth:`rows` with their instruments h0, h1, …, where these are others than regressors."""
        listed = "".join(
            f", {self._instrument(i, x.log if scaled else 0)} as h{i}"
            for i, (x, h) in enumerate(zip(self.x, self.h, strict=True))
            if h.sql == f"h{i}"
        )
        return f"select cells.*{listed} from ({rows}) cells" if listed else rows

    def whitened(self, matrix: Floats) -> list[Scaled]:
        """``matrix·(1, h)``, of columns of rows with their instruments."""
        found, logs = [], [h.log for h in self.instruments]
        for row in matrix.tolist():
            log = log2_ceiling(sum(math.ldexp(abs(weight), own) for weight, own in zip(row, logs, strict=True)))
            factors = (self.engine.double(math.ldexp(weight, own - log)) for weight, own in zip(row, logs, strict=True))
            terms = (f"{factor} * {h.sql}" for factor, h in zip(factors, self.instruments, strict=True))
            found.append(Scaled(f"({' + '.join(terms)})", log))
        return found

    def keys(self, name: str) -> str:
        """Query of a key column alone, as k."""
        return f"select {self.engine.key(self.stored[name])} as k from {self.source}"

    def _instrument_column(self, place: int, x: Scaled) -> Scaled:
        """The instrument of a regressor: clipped, none at all if it is infinitely wide, or the regressor itself."""
        numeric = any(group.numeric and group.start <= place < group.stop for group in self.design.groups)
        if not numeric or self.design.half_widths is None:
            return x
        return Scaled(f"h{place}") if math.isfinite(self.design.half_widths[place]) else self.none

    def _instrument(self, place: int, log: int) -> str:
        """``clip(x / half_width, -1, 1)`` of a regressor that is divided by ``2^log``. Cases are faster than least and greatest."""
        assert self.design.half_widths is not None
        double, half, x = self.engine.double, math.ldexp(self.design.half_widths[place], -log), f"x{place}"
        ends = f"when {x} > {double(half)} then {double(1.0)} when {x} < {double(-half)} then {double(-1.0)}"
        return f"case {ends} else {x} / {double(half)} end"

    def _clipped(self, key: str | None) -> str:
        """Query of clipped numbers, level codes and the key."""
        k = "0" if key is None else self.engine.key(self.stored[key])
        cluster = "" if self.design.cluster is None else f", {self.engine.key(self.stored[self.design.cluster])} as c"
        cluster += "" if self.design.strata is None else f", {self._stratum(self.design.strata)} as s"
        raw = "".join(f", {self.engine.number(self.stored[name])} as {sql}" for name, sql in self._numbers.items())
        codes = "".join(f", {self._code(name)} as {sql}" for name, sql in self._codes.items())
        listed = "".join(f", {self._number(name)} as {sql}" for name, sql in self._numbers.items())
        kept = "".join(f", {sql}" for sql in self._codes.values())
        if self.dropped:
            nulls = (
                f"case when {self.engine.key(self.stored[name])} is null then 1 else 0 end" for name in self._codes
            )
            codes += "".join(f", {null} as {sql}_null" for null, sql in zip(nulls, self._codes.values(), strict=True))
            if self.design.counting is not None:
                codes += "".join(
                    f", {self._declared(name)} as {self._codes[name]}_known"
                    for name in self.design.counting.categorical
                )
            kept += self._present()
        keys = ", ".join(self.keys_listed)
        return f"select {keys}{listed}{kept} from (select {k} as k{cluster}{raw}{codes} from {self.source}) raw"

    def _present(self) -> str:
        """Whether all regressors of a row are there, as e, and whether its response is, each after a comma."""
        cells = {name: self.engine.finite(sql) for name, sql in self._numbers.items()}
        cells |= {name: f"{sql}_null = 0" for name, sql in self._codes.items()}
        response = " and ".join(cells.pop(name) for name in sorted(self.design.response_variables))
        for name in (*self._exposure_alone(), *self.design.strata_alone):
            del cells[name]
        regressors = " and ".join(cells.values()) or "1 = 1"
        counted, zero = self.engine.double(1.0), self.engine.double(0.0)
        counting = self.design.counting
        if counting is not None and counting.condition is not None:
            regressors += "".join(f" and {self._codes[name]}_known = 1" for name in counting.categorical)
            regressors += f" and {self._holds(counting.condition)}"
        if counting is not None and counting.weight is not None:
            counted = f"({self._number(counting.weight)}) / {self.engine.double(counting.largest)}"
        known = f", case when {regressors} then {counted} else {zero} end as e"
        return f"{known}, case when {response} then 1 else 0 end as answered"

    def _exposure_alone(self) -> set[str]:
        """Columns that nothing but the exposure is made of, where it is not one of the regressors and rows do not count by it: see :meth:`Design.exposed`."""
        exposure, columns, counting = self.design.exposure, self.design.columns, self.design.counting
        used = {name for column in columns for factor in column.numeric for name in factor.variables}
        used |= set() if counting is None else set(counting.numeric)
        return set() if exposure is None else {name for f in exposure.numeric for name in f.variables} - used

    def _stratum(self, name: str) -> str:
        """Number of a cell's stratum; cells without a declared level are the last one."""
        cases = "".join(f" when {test} then {i}" for i, test in self._level_tests(name).items())
        last = len(self.design.levels[name])
        return f"case{cases} else {last} end" if cases else str(last)

    def _holds(self, condition: Condition) -> str:
        """Whether a condition holds, over clipped numbers and codes of levels."""
        match condition:
            case Comparison(left, sign, right):
                return f"({self._expression(left, clipped=True)} {sign} {self._expression(right, clipped=True)})"
            case HasLevel(name, places):
                return f"({self._codes[name]} in ({', '.join(map(str, places))}))"
            case Joined("not", (part,)):
                return f"(not {self._holds(part)})"
            case Joined(word, parts):
                return f"({f' {word} '.join(map(self._holds, parts))})"

    def _number(self, name: str) -> str:
        """A clipped number. Null and non-finite cells get the declared fill value."""
        double, (low, high), sql = self.engine.double, self.design.bounds[name], self._numbers[name]
        inside = f"case when {sql} < {double(low)} then {double(low)} when {sql} > {double(high)} then {double(high)} else {sql} end"
        return f"case when {self.engine.finite(sql)} then {inside} else {double(self.design.fill[name])} end"

    def _code(self, name: str) -> str:
        """Number of a cell's level. Undeclared levels count as the reference level, the first."""
        cases = "".join(f" when {test} then {i}" for i, test in self._level_tests(name).items() if i)
        return f"case{cases} else 0 end" if cases else "0"

    def _declared(self, name: str) -> str:
        """Whether a cell has one of the declared levels: 1, else 0."""
        tests = " or ".join(self._level_tests(name).values())
        return f"case when {tests} then 1 else 0 end" if tests else "0"

    def _level_tests(self, name: str) -> dict[int, str]:
        """How a cell is told to have each level, by its number; levels that no cell of the column's type has are left out."""
        column = self.stored[name]
        cell = self.engine.key(column)
        literals = [self.engine.literal(column, str(level)) for level in self.design.levels[name]]
        found = {i: [f"{cell} = {sql}"] for i, sql in enumerate(literals) if sql is not None}
        if column.numeric:  # whatever type the column has, as place_levels does
            value = self.engine.number(column)
            for i, level in enumerate(level_numbers(self.design.levels[name])):
                if math.isfinite(level):
                    found.setdefault(i, []).append(f"{value} = {self.engine.double(level)}")
        return {i: " or ".join(tests) for i, tests in sorted(found.items())}

    def _column(self, column: Column, log: int) -> str:
        """``(t - shift)/scale`` divided by ``2^log``. It is rounded as in NumPy, because a power of two changes no digit."""
        double, shift, scale = self.engine.double, column.shift, column.scale
        inside = " and ".join(f"{self._codes[name]} = {level}" for name, level in column.cell)
        if not column.numeric:
            on, off = (math.ldexp((t - shift) / scale, -log) for t in (1.0, 0.0))
            return f"case when {inside} then {double(on)} else {double(off)} end"
        value = self._product(column)
        if column.cell:
            value = f"case when {inside} then {value} else {double(0.0)} end"
        moved = f"({value})" if shift == 0 else f"(({value}) - {double(shift)})"
        return moved if scale == 1.0 and log == 0 else f"{moved} / {double(math.ldexp(scale, log))}"

    def _product(self, column: Column) -> str:
        """The numeric factors' product, clipped to its interval as :meth:`Column.write` does."""
        factors = [self._expression(factor) for factor in column.numeric]
        if len(factors) == 1 and isinstance(column.numeric[0].tree, ast.Name):  # within its bounds already
            return factors[0]
        value, double, (low, high) = f"({' * '.join(factors)})", self.engine.double, column.interval
        return (
            f"case when {value} < {double(low)} then {double(low)} when {value} <= {double(high)} then {value} "
            f"when {value} <= {double(LARGEST)} then {double(high)} else {double(low + (high - low) / 2.0)} end"
        )

    def _expression(self, factor: Factor, *, clipped: bool = False) -> str:
        """A factor's formula over numbers that are clipped already, or are to be `clipped`. Within the declared bounds nothing in it is undefined; the guards are for rounding."""
        engine = self.engine

        def walk(node: ast.expr) -> str:
            match node:
                case ast.Name(id=name):
                    return f"({self._number(name)})" if clipped else self._numbers[name]
                case ast.Constant(value=int() | float() as value):
                    return engine.double(float(value))
                case ast.UnaryOp(op=op, operand=operand):
                    return f"(- {walk(operand)})" if isinstance(op, ast.USub) else walk(operand)
                case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
                    return f"({' * '.join([walk(left)] * power)})"
                case ast.BinOp(left=left, op=ast.Div(), right=right):
                    return engine.divided(walk(left), walk(right))
                case ast.BinOp(left=left, op=op, right=right):
                    return f"({walk(left)} {_SIGNS[type(op)]} {walk(right)})"
                case ast.Call(func=ast.Name(id="log"), args=[argument]):
                    return f"ln(greatest({walk(argument)}, {engine.double(5e-324)}))"
                case ast.Call(args=[argument]):
                    return f"sqrt(greatest({walk(argument)}, {engine.double(0.0)}))"
            raise AssertionError(node)

        assert factor.tree is not None
        return walk(factor.tree)


_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
