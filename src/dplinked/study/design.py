"""From a formula and declared bounds to scaled columns, and back. Public constants only.

Every cell is clipped to its declared bounds; every column is then mapped by ``x = (t - shift)/scale``
with public constants so that ``|x| ≤ peak``. Coefficients are estimated on that scale and mapped back
after release (:meth:`~dplinked.study.scaling.Scaling.to_user`).
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text
from dplinked.errors import StudyError, plain_number, raise_alone, shown, suggest
from dplinked.study.counting import Counting, counted_columns, declare_counting
from dplinked.study.family import MOST_COUNTS, Curve
from dplinked.study.formula import Factor, Interval, ParsedFormula, evaluate, interval_of, parse_formula
from dplinked.study.scaling import ColumnScaling, Scaling

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

NULL, UNDECLARED = -1, -2  # codes of cells that have no level
CURVE_REACH = 5.0  # of η: a curve has most of its way within ± so much
_ULP_ROOM = 1.0 + 1e-12  # room for the last digits of a norm computed in floating point
_LEAST_LOG = (
    -700.0
)  # smaller numbers than those of this logarithm have fewer digits, and the kernel does not take theirs


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
        return _product_interval(self.response.numeric, {**self.bounds, **narrowed})

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


def build_design(
    formula: str,
    bounds: Mapping[str, Sequence[float]],
    levels: Mapping[str, Sequence[Any]] | None = None,
    typical: Mapping[str, Sequence[float]] | None = None,
    fill: Mapping[str, float] | None = None,
    family: str = "linear",
    exposure: str | None = None,
    weights: str | None = None,
    where: str | None = None,
    strata: str | None = None,
) -> Design:
    """Turn declarations into a design, or say which declaration is missing or wrong."""
    declared_levels = {name: _checked_levels(name, values, formula) for name, values in (levels or {}).items()}
    known = [name for name in declared_levels if name not in bounds]
    parsed = parse_formula(formula, known, events=family == "logistic")
    factors = [parsed.response, *itertools.chain.from_iterable(parsed.terms)]
    factors += [] if exposure is None else [_exposure_factor(exposure, parsed)]
    for factor in factors[1:]:
        if shared := set(factor.variables) & set(parsed.response.variables):
            raise StudyError(
                f"{shown(factor.text)} uses the response's own column {shown(shared.pop())}, which is on a linked row."
            )
    numeric = dict.fromkeys(name for factor in factors if not factor.categorical for name in factor.variables)
    counted, sorted_by = counted_columns(weights, where, {name: declared_levels[name] for name in known})
    if shared := {*counted, *sorted_by} & set(parsed.response.variables):
        raise StudyError(
            f"What rows count is made of the response's own column {shown(shared.pop())}, which is on a linked row. Weights, conditions and levels take columns of the regressors' side."
        )
    intervals = {name: _checked_bounds(name, bounds) for name in (*numeric, *counted)}
    used_levels: dict[str, tuple[Any, ...]] = {name: declared_levels[name] for name in sorted_by}
    for factor in factors:
        if factor.categorical:
            name = factor.variables[0]
            if name not in declared_levels:
                raise StudyError(
                    f"Categorical column {shown(name)} has no declared levels. Levels are public: declare "
                    f"levels={{{shown(name)}: [...]}}, the reference level first."
                )
            used_levels[name] = declared_levels[name]
    if strata is not None:
        _check_strata(strata, known, parsed)
        used_levels[strata] = declared_levels[strata]
    columns, groups = _build_columns(parsed, intervals, used_levels)
    response, curve = _response_column(parsed, intervals, used_levels, family)
    design = Design(
        formula=formula,
        response=response,
        columns=tuple(columns),
        groups=tuple(groups),
        intercept=parsed.intercept,
        bounds=intervals,
        levels=used_levels,
        fill=_checked_fill(fill or {}, intervals),
        curve=curve,
        exposure=None if exposure is None else _exposure_column(factors[-1], intervals),
        counting=declare_counting(weights, where, intervals, used_levels),
        strata=strata,
    )
    middles = _typical_middles(design, typical or {}, intervals)
    if weights is not None and weights in (typical or {}):
        assert design.counting is not None
        design = replace(
            design, counting=replace(design.counting, typical=_checked_typical(weights, typical or {}, intervals))
        )
    return design.centred(middles) if middles else design


def _check_strata(name: str, known: Collection[str], parsed: ParsedFormula) -> None:
    """Refuse a column of strata without levels, or one of the response's."""
    if name not in known:
        raise StudyError(
            f"strata={shown(name)} must name a column with declared levels, and without bounds.{suggest(name, known)} Levels are public: declare levels={{{shown(name)}: […]}}."
        )
    if name in parsed.response.variables:
        raise StudyError(
            f"The strata {shown(name)} are the response's own column, which is on a linked row. Name a column of the regressors' file."
        )


def _response_column(
    parsed: ParsedFormula, bounds: Mapping[str, Interval], levels: Mapping[str, tuple[Any, ...]], family: str
) -> tuple[Column, Curve | None]:
    """The response, and how its mean follows the line. An event is 1 at its second level, a count is what it is."""
    factor = parsed.response
    if family == "linear":
        return _numeric_column((factor,), bounds, centre=parsed.intercept), None
    if family == "logistic":
        name = factor.variables[0]
        if len(levels[name]) != 2:
            raise StudyError(
                f"family='logistic' takes a response of two levels, the reference first; {shown(name)} has more."
            )
        return Column(f"{factor.text}[{levels[name][1]}]", (), ((name, 1),), (0.0, 1.0), 0.0, 1.0), Curve(family)
    low, high = interval_of(factor, bounds)
    if low != 0.0 or high != int(high) or not 1.0 <= high <= MOST_COUNTS:
        raise StudyError(
            f"family='poisson' takes counts: declare the bounds of {shown(factor.text)} as (0, largest), the largest a whole number up to {MOST_COUNTS}."
        )
    return Column(factor.text, (factor,), (), (low, high), 0.0, 1.0), Curve(family, int(high))


def _exposure_factor(name: str, parsed: ParsedFormula) -> Factor:
    """The logarithm of the exposure's column."""
    if name in parsed.response.variables:
        raise StudyError(
            f"The exposure {shown(name)} is the response's own column. Name a column of the regressors' side."
        )
    call = ast.Call(func=ast.Name(id="log", ctx=ast.Load()), args=[ast.Name(id=name, ctx=ast.Load())], keywords=[])
    return Factor(f"log({name})", (name,), call)


def _exposure_column(factor: Factor, bounds: Mapping[str, Interval]) -> Column:
    """The exposure's logarithm, which counts for one whole on the line."""
    return Column(factor.text, (factor,), (), interval_of(factor, bounds), 0.0, 1.0)


def _build_columns(
    parsed: ParsedFormula, bounds: Mapping[str, Interval], levels: Mapping[str, tuple[Any, ...]]
) -> tuple[list[Column], list[Group]]:
    columns: list[Column] = []
    groups: list[Group] = []
    written = {frozenset(factor.text for factor in term) for term in parsed.terms}
    if parsed.intercept:
        written.add(frozenset())
    for term in parsed.terms:
        numeric = tuple(factor for factor in term if not factor.categorical)
        categorical = [factor for factor in term if factor.categorical]
        start = len(columns)
        if categorical:
            columns += _cell_columns(term, numeric, categorical, written, bounds, levels, parsed.intercept)
            radius = 1.0
        else:
            columns.append(_numeric_column(numeric, bounds, centre=parsed.intercept))
            radius = columns[-1].peak
        groups.append(Group(start, len(columns), radius, numeric=not categorical))
    return columns, groups


def _numeric_column(factors: tuple[Factor, ...], bounds: Mapping[str, Interval], *, centre: bool) -> Column:
    """A numeric column mapped to [-1, 1]: shifted to the middle with an intercept, else only divided."""
    name = ":".join(factor.text for factor in factors)
    low, high = _product_interval(factors, bounds)
    if not low < high:
        raise StudyError(f"The bounds of {shown(name)} leave it constant; drop the term or widen the bounds.")
    shift = (low + high) / 2.0 if centre else 0.0
    scale = (high - low) / 2.0 if centre else max(abs(low), abs(high))
    if not (math.isfinite(shift) and 1e-60 < scale < 1e60):
        raise StudyError(f"The bounds of {shown(name)} are too large or too close together to compute with.")
    return Column(name, factors, (), (low, high), shift, scale)


def _product_interval(factors: tuple[Factor, ...], bounds: Mapping[str, Interval]) -> Interval:
    low, high = 1.0, 1.0
    for factor in factors:
        corners = [a * b for a in (low, high) for b in interval_of(factor, bounds)]
        low, high = min(corners), max(corners)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise StudyError(f"The bounds of {':'.join(factor.text for factor in factors)!r} are not finite.")
    return low, high


def _cell_columns(
    term: tuple[Factor, ...],
    numeric: tuple[Factor, ...],
    categorical: list[Factor],
    written: set[frozenset[str]],
    bounds: Mapping[str, Interval],
    levels: Mapping[str, tuple[Any, ...]],
    intercept: bool,
) -> list[Column]:
    """Indicator columns of a term, times its numeric factors.

    R's rule: a categorical loses its reference level where the term without it is in the model.
    """
    texts = frozenset(factor.text for factor in term)
    choices = []
    for factor in categorical:
        kept = range(len(levels[factor.variables[0]]))
        choices.append(kept[1:] if texts - {factor.text} in written else kept)
    cells = list(itertools.product(*choices))
    total = math.prod(len(levels[factor.variables[0]]) for factor in categorical)
    if numeric:
        low, high = _product_interval(numeric, bounds)
        shift, scale = 0.0, max(abs(low), abs(high))
        interval = (min(low, 0.0), max(high, 0.0))
        if not scale > 0:
            raise StudyError(f"The bounds of {':'.join(sorted(texts))!r} leave it constant.")
    else:
        shift = 1.0 / total if intercept else 0.0
        m = len(cells)
        scale = math.sqrt(max((1.0 - shift) ** 2 + (m - 1) * shift**2, m * shift**2 if m < total else 0.0))
        interval = (0.0, 1.0)
    columns = []
    for cell in cells:
        pairs = tuple((factor.variables[0], level) for factor, level in zip(categorical, cell, strict=True))
        labels = {f.text: f"{f.text}[{levels[f.variables[0]][i]}]" for f, i in zip(categorical, cell, strict=True)}
        name = ":".join(labels.get(factor.text, factor.text) for factor in term)
        columns.append(Column(name, numeric, pairs, interval, shift, scale))
    return columns


def _typical_middles(
    design: Design, typical: Mapping[str, Sequence[float]], bounds: Mapping[str, Interval]
) -> dict[int, Interval]:
    middles = {}
    for name in typical:
        if name not in bounds:
            raise StudyError(f"typical names {_misnamed(name, bounds)}")
    narrowed = {name: _checked_typical(name, typical, bounds) for name in bounds}
    for group in design.groups:
        column = design.columns[group.start]
        if group.numeric and any(name in typical for factor in column.numeric for name in factor.variables):
            low, high = _product_interval(column.numeric, narrowed)
            if low < high:
                middles[group.start] = (low, high)
    return middles


def _checked_typical(name: str, typical: Mapping[str, Sequence[float]], bounds: Mapping[str, Interval]) -> Interval:
    if name not in typical:
        return bounds[name]
    low, high = _interval(typical[name], f"typical range of {shown(name)}")
    if not (bounds[name][0] <= low < high <= bounds[name][1]):
        raise StudyError(
            f"The typical range of {shown(name)} must lie within its bounds {bounds[name]}, low before high."
        )
    return low, high


def _checked_bounds(name: str, bounds: Mapping[str, Sequence[float]]) -> Interval:
    if name not in bounds:
        raise StudyError(
            f"Column {shown(name)} has no declared bounds.{suggest(name, bounds)} Bounds are public and never read from "
            f"the data: declare bounds={{{shown(name)}: (low, high)}}, or, if it is a category, levels={{{shown(name)}: [reference, …]}}."
        )
    low, high = _interval(bounds[name], f"bounds of {shown(name)}")
    if not low < high:
        raise StudyError(
            f"The bounds of {shown(name)} are ({low:g}, {high:g}); the low one must come first and be smaller."
        )
    return low, high


def _interval(values: Sequence[float], what: str) -> Interval:
    low = high = math.nan
    try:
        low, high = (float(value) for value in values)
    except Exception:  # whatever stands there, its own errors may quote it
        raise_alone(StudyError(f"The {what} must be two numbers, low and high."))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise StudyError(f"The {what} must be finite, not ({low:g}, {high:g}).")
    return low, high


def _misnamed(name: Any, columns: Mapping[str, Interval]) -> str:
    """What is wrong with a name. It is shown if it is like that of a column: rows may stand in the place of a mapping."""
    hint = suggest(name, columns)
    return f"{shown(name) if hint else 'something'}, which is not a numeric column here.{hint}"


def _checked_levels(name: str, values: Sequence[Any], formula: str) -> tuple[str | None, ...]:
    """Levels as their texts, the reference first."""
    if isinstance(values, (set, frozenset)):
        known = shown(name) if str(name) in formula else "a column"
        raise StudyError(
            f"The levels of {known} are a set, which has no order: list them, [first, second], the reference level first."
        )
    listed = (values,) if isinstance(values, str) else tuple(values)
    if len({key_text(level) for level in listed} - {None}) != len(listed) or len(listed) < 2:
        known = shown(name) if str(name) in formula else "a column"
        raise StudyError(f"The levels of {known} must be at least two different values.")
    return tuple(key_text(level) for level in listed)


def _checked_fill(fill: Mapping[str, float], bounds: Mapping[str, Interval]) -> dict[str, float]:
    for name, value in fill.items():
        if name not in bounds:
            raise StudyError(f"fill names {_misnamed(name, bounds)}")
        if not bounds[name][0] <= plain_number(value) <= bounds[name][1]:
            raise StudyError(f"The fill value of {shown(name)} must lie within its bounds {bounds[name]}.")
    return {name: float(fill.get(name, low + (high - low) / 2.0)) for name, (low, high) in bounds.items()}
