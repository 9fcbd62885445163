"""From a formula and declared bounds to a design."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text
from dplinked.errors import StudyError, plain_number, raise_alone, shown, suggest
from dplinked.study.counting import counted_columns, declare_counting
from dplinked.study.design import Column, Design, Group
from dplinked.study.family import MOST_COUNTS, Curve
from dplinked.study.formula import Factor, Interval, ParsedFormula, interval_of, parse_formula, product_interval

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]


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
    low, high = product_interval(factors, bounds)
    if not low < high:
        raise StudyError(f"The bounds of {shown(name)} leave it constant; drop the term or widen the bounds.")
    shift = (low + high) / 2.0 if centre else 0.0
    scale = (high - low) / 2.0 if centre else max(abs(low), abs(high))
    if not (math.isfinite(shift) and 1e-60 < scale < 1e60):
        raise StudyError(f"The bounds of {shown(name)} are too large or too close together to compute with.")
    return Column(name, factors, (), (low, high), shift, scale)


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
        low, high = product_interval(numeric, bounds)
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
            low, high = product_interval(column.numeric, narrowed)
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
