"""Scaled columns of a declared model, and the way back. Public constants only.

Every cell is clipped to its declared bounds; every column is then mapped by ``x = (t - shift)/scale``
with public constants so that ``|x| ≤ peak``. Coefficients are estimated on that scale and mapped back
after release (:meth:`~dplinked.study.scaling.Scaling.to_user`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.study.counting import Counting
from dplinked.study.family import Curve
from dplinked.study.formula import Factor, Interval, evaluate, product_interval
from dplinked.study.scaling import ColumnScaling, Scaling

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

NULL, UNDECLARED = -1, -2  # codes of cells that have no level
CURVE_REACH = 5.0  # of η: a curve has most of its way within ± so much
_ULP_ROOM = 1.0 + 1e-12  # room for the last digits of a norm computed in floating point
_LEAST_LOG = -700.0  # smaller numbers have fewer digits than others, and the kernel does not take their logarithms


@dataclass(frozen=True)
class Column:
    """One column t of the model and its public scaling ``x = (t - shift)/scale``.

    ``cell`` holds the (categorical column, level number) pairs whose indicator multiplies the numeric
    factors; rows outside the cell have t = 0.
    """

    name: str
    numeric: tuple[Factor, ...]
    cell: tuple[tuple[str, int], ...]
    interval: Interval
    shift: float
    scale: float

    @cached_property
    def peak(self) -> float:
        """Largest ``|x|``."""
        return max(abs((bound - self.shift) / self.scale) for bound in self.interval)

    def write(self, numbers: Mapping[str, Floats], codes: Mapping[str, Codes], out: Floats) -> None:
        """Write scaled values of some rows into `out`."""
        if self.plain is None:
            out[:] = self._evaluate(numbers, codes)
            return
        np.subtract(numbers[self.plain], self.shift, out=out)  # within the bounds already
        if self.scale != 1.0:
            out /= self.scale

    def present(self, raw: Mapping[str, Floats], codes: Mapping[str, Codes]) -> NDArray[np.bool_]:
        """In which rows no cell that this is made of is missing: null or not finite, or a null level."""
        numbers = (np.isfinite(raw[name]) for factor in self.numeric for name in factor.variables)
        levels = (codes[name] != NULL for name, _ in self.cell)
        return np.asarray(np.logical_and.reduce([*numbers, *levels]), np.bool_)

    @cached_property
    def plain(self) -> str | None:
        """Name of the data column that this is, if it is one, scaled."""
        tree = self.numeric[0].tree if len(self.numeric) == 1 and not self.cell else None
        return tree.id if isinstance(tree, ast.Name) else None

    @cached_property
    def logged(self) -> str | None:
        """Name of the data column whose logarithm this is, if it is one, scaled."""
        tree = self.numeric[0].tree if len(self.numeric) == 1 and not self.cell else None
        match tree:
            case ast.Call(func=ast.Name(id="log"), args=[ast.Name(id=name)]) if self.interval[0] > _LEAST_LOG:
                return name
        return None

    def _evaluate(self, numbers: Mapping[str, Floats], codes: Mapping[str, Codes]) -> Floats:
        if not self.numeric:
            inside = np.logical_and.reduce([_is_level(codes[name], level) for name, level in self.cell])
            return np.where(inside, (1.0 - self.shift) / self.scale, -self.shift / self.scale)
        product = evaluate(self.numeric[0], numbers)
        for factor in self.numeric[1:]:
            product = product * evaluate(factor, numbers)
        low, high = self.interval
        clipped = np.clip(np.where(np.isnan(product), low + (high - low) / 2.0, product), low, high)
        for name, level in self.cell:
            clipped = np.where(_is_level(codes[name], level), clipped, 0.0)
        clipped = clipped - self.shift
        clipped /= self.scale
        return clipped


def _is_level(codes: Codes, level: int) -> NDArray[np.bool_]:
    """Which rows have a level. Null cells count as the reference level, and so do undeclared ones."""
    return codes == level if level else codes <= 0


@dataclass(frozen=True)
class Group:
    """Columns ``start:stop`` whose scaled values never exceed `radius` in l2 norm together.

    A numeric column is a group of its own; the indicators of a categorical are one group, of radius 1:
    at most one of them is on.
    """

    start: int
    stop: int
    radius: float
    numeric: bool


@dataclass(frozen=True)
class Design:
    """The model's columns on their public scale.

    Attributes
    ----------
    half_widths
        One half-width per column for the bounded instrument ``h = clip(x / half_width, -1, 1)``. Indicator columns, and all
        columns where this is None, are their own instrument, ``h = x``.
    curve
        How the mean of the outcome follows the line, if it is not the line itself.
    exposure
        The logarithm of a count's exposure, which is added to the line.
    counting
        What rows count, if they do not all count the same.
    cluster
        The column that says which rows' contributions to the variance are squared together, if it is not each row by itself.
    strata
        The column of levels that says in which part of the population a row was drawn, if rows were drawn apart in several.
    """

    formula: str
    response: Column
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    intercept: bool
    bounds: Mapping[str, Interval]
    levels: Mapping[str, tuple[Any, ...]]
    fill: Mapping[str, float]
    half_widths: tuple[float, ...] | None = None
    curve: Curve | None = None
    exposure: Column | None = None
    counting: Counting | None = None
    cluster: str | None = None
    strata: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients, the intercept first."""
        listed = tuple(column.name for column in self.columns)
        return ("Intercept", *listed) if self.intercept else listed

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Names of all data columns that are read."""
        return (*self.bounds, *self.levels)

    @cached_property
    def response_variables(self) -> frozenset[str]:
        """Names of the data columns that the response is made of; no regressor uses them."""
        numeric = (name for factor in self.response.numeric for name in factor.variables)
        return frozenset([*numeric, *(name for name, _ in self.response.cell)])

    def response_range(self, typical: Mapping[str, Sequence[float]]) -> Interval:
        """What the response's expression makes of typical ranges of its columns."""
        narrowed = {name: (float(low), float(high)) for name, (low, high) in typical.items()}
        return product_interval(self.response.numeric, {**self.bounds, **narrowed})

    @cached_property
    def radius(self) -> float:
        """E: largest l2 norm of a row of scaled regressors, intercept left out."""
        return math.sqrt(sum(group.radius**2 for group in self.groups)) * _ULP_ROOM

    @cached_property
    def instrument_radius(self) -> float:
        """Largest l2 norm of a row of instruments, intercept left out."""
        if self.half_widths is None:
            return self.radius
        squares = (1.0 if group.numeric else group.radius**2 for group in self.groups)
        return math.sqrt(sum(squares)) * _ULP_ROOM

    def numbers(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        """Clip raw cells, of some columns or all, to their bounds; null and non-finite cells get the declared fill value."""
        clipped = {}
        for name, (low, high) in self.bounds.items():
            if (values := raw.get(name)) is None:
                continue
            inside = not values.size or (np.minimum.reduce(values) >= low and np.maximum.reduce(values) <= high)
            if not inside:  # NaN fails both
                values = np.clip(np.where(np.isfinite(values), values, self.fill[name]), low, high)
            clipped[name] = values
        return clipped

    @cached_property
    def strata_alone(self) -> frozenset[str]:
        """The column of strata, where nothing else uses it."""
        counted = () if self.counting is None else self.counting.categorical
        used = {name for column in (*self.columns, self.response) for name, _ in column.cell}
        return frozenset() if self.strata is None else frozenset([self.strata]) - used - {*counted}

    def strata_of(self, codes: Mapping[str, Codes]) -> Codes | None:
        """Number of the stratum of some rows (k), if there are strata; rows without a declared level are the last one."""
        if self.strata is None or self.strata not in codes:
            return None
        found = codes[self.strata]
        return np.where(found < 0, len(self.levels[self.strata]), found).astype(np.int32)

    def fill_rows(self, raw: Mapping[str, Floats], codes: Mapping[str, Codes], out: Floats) -> None:
        """Write scaled columns and, last, the scaled response of some rows into the rows of `out` ((d+1)×k), from raw cells."""
        if self._plain is not None and out.shape[1]:
            names, shifts, scales, lows, highs = self._plain
            for row, name, shift in zip(out, names, shifts, strict=True):
                np.subtract(raw[name], shift, out=row)
            out /= scales
            # Cells within their bounds need no clipping, and scaling keeps their order; NaN fails both comparisons.
            if np.all(np.minimum.reduce(out, axis=1) >= lows) and np.all(np.maximum.reduce(out, axis=1) <= highs):
                return
        numbers = self.numbers(raw)
        self.regressors(numbers, codes, out[:-1])
        self.response.write(numbers, codes, out[-1])

    @cached_property
    def _plain(self) -> tuple[list[str], list[float], Floats, Floats, Floats] | None:
        """Name, shift, scale and scaled bounds of each column, the response last, if all of them are data columns as they are."""
        columns = [*self.columns, self.response]
        names = [column.plain for column in columns if column.plain is not None]
        if len(names) < len(columns):
            return None
        scales = np.array([[column.scale] for column in columns])
        lows, highs = (
            np.array([(column.interval[end] - column.shift) / column.scale for column in columns]) for end in (0, 1)
        )
        return names, [column.shift for column in columns], scales, lows, highs

    def present(self, raw: Mapping[str, Floats], codes: Mapping[str, Codes]) -> tuple[Floats, Floats]:
        """What rows count, 0 for those without all regressors, and 1 for rows whose response is there, else 0 (k each)."""
        response = self.response.present(raw, codes)
        columns = [column.present(raw, codes) for column in self.columns]
        known = np.logical_and.reduce([np.ones_like(response), *columns]).astype(np.float64)
        if self.counting is not None:
            self.counting.write_factors(raw, codes, counted := np.empty_like(known))
            known *= counted
        return known, response.astype(np.float64)

    def regressors(self, numbers: Mapping[str, Floats], codes: Mapping[str, Codes], out: Floats) -> None:
        """Write the scaled columns of some rows into the rows of `out` (d×k)."""
        for row, column in zip(out, self.columns, strict=True):
            column.write(numbers, codes, row)

    def instruments(self, regressors: Floats, out: Floats) -> None:
        """Write the instruments of some rows' regressors (d×k) into `out`."""
        if self.half_widths is None:
            out[:] = regressors
            return
        for group in self.groups:
            for k in range(group.start, group.stop):
                if group.numeric:
                    np.divide(regressors[k], self.half_widths[k], out=out[k])
                    np.clip(out[k], -1.0, 1.0, out=out[k])
                else:
                    out[k] = regressors[k]

    def centred(self, middles: Mapping[int, Interval]) -> Design:
        """Aim the instrument at public middles ``{column: (low, high)}`` in the columns' own units.

        Affects precision, never privacy. Where the truth is a line, it is found wherever the middles lie; where it is curved, the line follows them.
        """
        columns, groups, half_widths = list(self.columns), list(self.groups), []
        for g, group in enumerate(groups):
            for k in range(group.start, group.stop):
                column = columns[k]
                if group.numeric and k in middles:
                    low, high = middles[k]
                    if self.intercept:
                        column = replace(column, shift=(low + high) / 2.0)
                    reach = (high - low) / 2.0 if self.intercept else max(abs(low), abs(high))
                    half_widths.append(min(reach / column.scale, column.peak))
                    columns[k] = column
                    groups[g] = replace(group, radius=column.peak)
                else:
                    half_widths.append(column.peak)
        return replace(self, columns=tuple(columns), groups=tuple(groups), half_widths=tuple(half_widths))

    def weights_alone(self) -> Design:
        """The design for summing what rows count: no regressors."""
        assert self.counting is not None
        used = {*self.counting.numeric, *self.counting.categorical, *self.response_variables}
        return replace(
            self,
            columns=(),
            groups=(),
            intercept=True,
            half_widths=None,
            bounds={name: ends for name, ends in self.bounds.items() if name in used},
            levels={name: listed for name, listed in self.levels.items() if name in used},
            strata=None,
            exposure=None,
        )

    def counted_alike(self) -> Design:
        """The same columns for passes in which all rows count the same: what weights, conditions and strata alone need is not read."""
        if self.counting is None and self.strata is None:
            return self
        made = (*self.columns, self.response, *(() if self.exposure is None else (self.exposure,)))
        used = {name for column in made for factor in column.numeric for name in factor.variables}
        used |= {name for column in made for name, _ in column.cell}
        return replace(
            self,
            bounds={name: ends for name, ends in self.bounds.items() if name in used},
            levels={name: listed for name, listed in self.levels.items() if name in used},
            counting=None,
            strata=None,
        )

    def fill_middles(self, declared: Collection[str]) -> Design:
        """The same columns, missing cells of which count as the middles that the instrument is aimed at, unless a value was declared for them."""
        fill = dict(self.fill)
        for group in self.groups:
            column = self.columns[group.start]
            name = column.plain
            if group.numeric and self.half_widths is not None and self.intercept and name and name not in declared:
                fill[name] = float(np.clip(column.shift, *self.bounds[name]))
        return replace(self, fill=fill)

    def with_instrument(self, half_widths: Sequence[float]) -> Design:
        """The same columns with instruments of other half-widths, at most as wide as the columns themselves."""
        widths = tuple(min(width, column.peak) for width, column in zip(half_widths, self.columns, strict=True))
        return replace(self, half_widths=widths)

    def with_largest(self, largest: int) -> Design:
        """The same design with counts clipped to a smaller largest one."""
        assert self.curve is not None
        response = replace(self.response, interval=(0.0, float(largest)))
        bounds, fill = dict(self.bounds), dict(self.fill)
        if response.plain is not None:
            bounds[response.plain] = response.interval
            fill[response.plain] = min(fill[response.plain], float(largest))
        return replace(self, response=response, bounds=bounds, fill=fill, curve=replace(self.curve, largest=largest))

    def exposed(self) -> Design:
        """The design of passes along the line: the exposure's logarithm comes as a last column that has no instrument."""
        if self.exposure is None:
            return self
        assert self.half_widths is not None
        last = Group(len(self.columns), len(self.columns) + 1, 0.0, numeric=True)
        return replace(
            self,
            columns=(*self.columns, self.exposure),
            groups=(*self.groups, last),
            half_widths=(*self.half_widths, math.inf),
            exposure=None,
        )

    def unscaled(self) -> Design:
        """The same columns in the user's own units, as the paper has them."""
        columns = tuple(replace(column, shift=0.0, scale=1.0) for column in self.columns)
        groups = tuple(
            replace(group, radius=max(column.peak for column in columns[group.start : group.stop]))
            for group in self.groups
        )
        response = replace(self.response, shift=0.0, scale=1.0)
        return replace(self, response=response, columns=columns, groups=groups, half_widths=None)

    @cached_property
    def scaling(self) -> Scaling:
        """The public constants that map scaled columns to the user's units."""
        listed = (ColumnScaling(column.name, column.shift, column.scale) for column in (*self.columns, self.response))
        *columns, response = listed
        return Scaling(tuple(columns), response, self.intercept, self.half_widths)

    def coefficient_range(self) -> Floats:
        """Largest plausible coefficient on the scaled columns: crossing a column's bounds crosses the response's, or most of a curve."""
        reach = self.response.peak if self.curve is None else CURVE_REACH
        slopes = [reach / column.peak if column.peak else math.inf for column in self.columns]
        return np.array([reach, *slopes] if self.intercept else slopes)
