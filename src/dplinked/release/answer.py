"""What a release found, in sentences that stand before everything else.

Privacy
-------
Nothing is spent: sentences are made of coefficients and intervals, which were paid for, and of what was declared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dplinked.release.coefficients import coefficient_rows
from dplinked.release.family import FAMILIES
from dplinked.release.notes import hidden_names
from dplinked.release.result import Result
from dplinked.report.numbers import format_number
from dplinked.report.plots import CoefficientRow
from dplinked.study.units import is_part_of_others, round_step

_MOST = 4  # slopes that are said; the table has all
_LEVEL = re.compile(r"C\((.*)\)\[(.*)\]")
_EVENT = re.compile(r"(?:C\()?(.*?)\)?\[(.*)\]")
_SAME = "All of this holds with the other columns staying the same."


def answer(result: Result) -> list[str]:
    """One sentence for each of the first slopes, then what holds for all of them."""
    slopes = [row for row in coefficient_rows(result) if row.name != "Intercept"]
    if not slopes:
        return [_mean(result)]
    said = [_sentence(result, row) for row in slopes[:_MOST]]
    if len(slopes) > _MOST:
        said.append(f"The table has the other {len(slopes) - _MOST} as well.")
    if not result.has_intervals:
        said.append("This release did not pay for intervals.")
    return [*said, _SAME] if len(slopes) > 1 else said


@dataclass(frozen=True)
class _Change:
    """A change of a column, in words: by how much it changes (in its own units), and how a sentence begins."""

    step: float
    start: str
    verb: str
    instead: str = ""


def _sentence(result: Result, row: CoefficientRow) -> str:
    change = _change(result, row.name)
    if change is None:
        return f"The coefficient of {row.name} is {_few(row, row.coef)}{_interval(row)}."
    ends = row.interval
    if row.name in hidden_names(result) or (ends is not None and not all(map(math.isfinite, ends))):
        return f"This budget does not tell how {_outcome(result)} changes with {_column(row.name)}: privacy noise is too strong."
    if FAMILIES[result.family].ratio:
        return _ratio_sentence(result, row, change)
    return _difference_sentence(result, row, change)


def _difference_sentence(result: Result, row: CoefficientRow, change: _Change) -> str:
    """By how much the response is higher or lower."""
    outcome, unit = _outcome(result), _unit(result, result.scaling.response.name)
    value, (low, high) = change.step * row.coef, _scaled(row, change.step)
    error = 100.0 * change.step * row.std_err
    if row.interval is not None and low <= 0.0 <= high:
        ends = f"from {format_number(low, error)} to {format_number(high, error)}{unit}"
        what = f"{outcome} with it" if change.instead else outcome
        return f"Whether {what} is higher or lower {_where(change)} cannot be told: the 95 % interval of the difference goes {ends}."
    sign = 1.0 if value >= 0.0 else -1.0
    size, ends = _sizes(value, (low, high), sign, error, row.interval is not None)
    if change.instead:
        return f"{change.start}, {outcome} is {size}{unit} {'higher' if sign > 0 else 'lower'} than {change.instead}{ends}."
    more = "more" if sign > 0 else "less"
    of = f"{unit} {more} of {outcome}" if unit else f" {more} {outcome}"
    return f"{change.start} {change.verb} {size}{of}{ends}."


def _ratio_sentence(result: Result, row: CoefficientRow, change: _Change) -> str:
    """By what the odds, or the expected count, are multiplied."""
    outcome = (
        f"the odds of {_outcome(result)}"
        if result.family == "logistic"
        else f"the expected number of {_outcome(result)}"
    )
    verb = "are" if result.family == "logistic" else "is"
    low, high = (math.exp(min(max(end, -300.0), 300.0)) for end in _scaled(row, change.step))
    value = math.exp(min(max(change.step * row.coef, -300.0), 300.0))
    error = 100.0 * value * change.step * row.std_err
    if row.interval is not None and low <= 1.0 <= high:
        ends = f"from {format_number(low, error)} to {format_number(high, error)} times"
        return (
            f"Whether {outcome} {verb} higher or lower {_where(change)} cannot be told: the 95 % interval goes {ends}."
        )
    size, ends = _sizes(value, (low, high), 1.0, error, row.interval is not None)
    than = f" as {change.instead}" if change.instead else ""
    begin = change.start if change.instead else f"With {change.start[0].lower()}{change.start[1:]}"
    return f"{begin}, {outcome} {verb} {size} times as high{than}{ends}."


def _sizes(value: float, ends: tuple[float, float], sign: float, error: float, known: bool) -> tuple[str, str]:
    """A size and its interval as texts. Where strong noise drew the estimate out of its interval, the interval is the size."""
    if not known:
        return format_number(sign * value, error), ""
    low, high = sorted(sign * end for end in ends)
    shown = [format_number(end, error) for end in (low, high)]
    if not low <= sign * value <= high:
        return f"{shown[0]} to {shown[1]}", " (95 % interval)"
    return format_number(sign * value, error), f", 95 % interval {shown[0]} to {shown[1]}"


def _scaled(row: CoefficientRow, step: float) -> tuple[float, float]:
    low, high = row.interval or (row.coef, row.coef)
    return step * low, step * high


def _where(change: _Change) -> str:
    return (
        f"{change.start[0].lower()}{change.start[1:]} than {change.instead}"
        if change.instead
        else f"with {change.start[0].lower()}{change.start[1:]}"
    )


def _interval(row: CoefficientRow) -> str:
    if row.interval is None:
        return ""
    return f", 95 % interval {_few(row, row.interval[0])} to {_few(row, row.interval[1])}"


def _few(row: CoefficientRow, value: float) -> str:
    """A value in one digit of its error."""
    return format_number(value, 100.0 * row.std_err)


# --- columns -----------------------------------------------------------------------------------------


def _change(result: Result, name: str) -> _Change | None:
    """The change that a coefficient is about; None where its column is part of other terms too, or made of several."""
    level = _LEVEL.fullmatch(name)
    if level is not None and ":" not in name and level[1] in result.declared.levels:
        reference = result.declared.levels[level[1]][0]
        return _Change(1.0, f"Where {level[1]} is {level[2]}", "", f"where it is {reference}")
    if name not in result.declared.bounds or is_part_of_others(name, result.scaling.names):
        return None
    unit = _unit(result, name)
    step = round_step(*result.declared.bounds[name]) if unit else 1.0
    if step == 1.0:
        named = f" (in{unit})" if unit else ""
        return _Change(1.0, f"Each further unit of {name}{named}", "goes with")
    return _Change(step, f"{format_number(step, 10.0 * step)}{unit} more of {name}", "go with")


def _unit(result: Result, name: str) -> str:
    unit = result.declared.units.get(name)
    return f" {unit}" if unit else ""


def _column(name: str) -> str:
    level = _LEVEL.fullmatch(name)
    return name if level is None else level[1]


def _outcome(result: Result) -> str:
    """The response; of an event, the level that is modelled."""
    name = result.scaling.response.name
    event = _EVENT.fullmatch(name) if result.family == "logistic" else None
    return name if event is None else f"{event[1]} = {event[2]}"


def _mean(result: Result) -> str:
    """What a model without slopes says."""
    rows: Sequence[CoefficientRow] = coefficient_rows(result)
    return f"{_outcome(result)} has no columns to go with: the model has an intercept alone, {_few(rows[0], rows[0].coef)}{_interval(rows[0])}."
