"""What a release would be worth, from public values only. No data is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, overload

import numpy as np

from dplinked.errors import StudyError, plain_faults, plain_number, shown, shown_type, suggest
from dplinked.estimate.variance import accuracy_variance
from dplinked.linkage import ELE, UNSTATED, Linkage, PrivacyUnit
from dplinked.plan.assumptions import describe_assumptions, describe_limits
from dplinked.plan.curve import curve_errors
from dplinked.plan.errors import EXPECTED, ExpectedErrors, Setting
from dplinked.plan.expectations import Curve, Expectations, Lever, PlannedError, Point
from dplinked.plan.rows import Guess, guess_response
from dplinked.report.files import HTML, write_or_return
from dplinked.report.words import shorten
from dplinked.study.budget import LARGE_EPSILON
from dplinked.study.descent import Descent
from dplinked.study.formula import Interval
from dplinked.study.study import Study

_CURVE = 25  # places on a curve
_SHOWN = 4  # coefficients in a repr
_USUAL_EVENTS = 0.1  # share of rows with an event, if nothing is guessed


@dataclass(frozen=True, repr=False)
class Plan(Expectations):
    """Expected standard errors over budgets and numbers of rows, from public values and guesses alone."""

    def __str__(self) -> str:
        from dplinked.plan.document import lines_document
        from dplinked.report.text import write_lines

        return write_lines(lines_document(self))

    def __repr__(self) -> str:
        found = self.slopes_at_point
        widths = [f"{row.name} ± {row.half_width():.3g}" for row in found[:_SHOWN]]
        more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        promise = f"epsilon={self.point.epsilon:g}, {self.point.count:,} rows"
        return (
            f"<Plan {shorten(self.formula, 60)!r}: {promise}; expected 95 % intervals: {', '.join([*widths, *more])}>"
        )

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> None: ...
    def to_html(self, path: str | Path | None = None) -> str | None:
        """Write the plan as one HTML page, or return it: it needs nothing else, and loads nothing."""
        from dplinked.plan.document import report_document
        from dplinked.report.html import write_page

        return write_or_return(write_page(report_document(self)), path, HTML)

    def _repr_html_(self) -> str:
        """The plan in a notebook."""
        from dplinked.plan.document import notebook_document
        from dplinked.report.html import write_fragment

        return write_fragment(notebook_document(self))


@plain_faults
def plan(
    count: int | Sequence[int],
    formula: str,
    *,
    bounds: Mapping[str, Sequence[float]],
    linkage: Linkage,
    epsilon: float | Sequence[float] = (0.1, 0.3, 1.0, 3.0),
    delta: float,
    levels: Mapping[str, Sequence[Any]] | None = None,
    unit: PrivacyUnit | None = None,
    method: str = "ssp",
    calibration: str = "tight",
    typical: Mapping[str, Sequence[float]] | None = None,
    errors: str = "any",
    missing: str = "drop",
    descent: Descent | None = None,
    response_bound: float | None = None,
    row_norm: float | None = None,
    intervals: bool = True,
    family: str = "linear",
    exposure: str | None = None,
    weights: str | None = None,
    where: str | None = None,
    by: str | None = None,
    cluster: str | None = None,
    goodness: bool = False,
    r_squared: float = 0.5,
    response_mean: float | None = None,
    subgroup: float = 0.1,
    half_width: Mapping[str, float] | None = None,
) -> Plan:
    """Expected intervals of a release over budgets and numbers of rows, touching no data.

    What is not listed here is as in :func:`dplinked.fit`.

    Parameters
    ----------
    count
        Number of rows, public; or several to compare.
    linkage
        As in :func:`dplinked.fit`. What is declared about its accuracy's error (``checked``, ``accuracy_error``) counts as a part of the linkage error.
    r_squared
        Guessed share of the response's variance that the model explains. Columns and response are taken to
        spread evenly around their typical ranges (the middle 70 %) where declared, else over their bounds. Of events, the share of a latent outcome's variance
        (McKelvey and Zavoina's R²): .5 makes log odds vary with a standard deviation of 1.8, .2 with .9. Of counts, that of counts whose rates are lognormal.
    response_mean
        Guessed mean of events (their share of the rows) or counts; by default .1, and 1.
    subgroup
        Guessed share of rows for which the condition `where` holds. Levels of `by` are taken to have an equal share of them each: the plan is that of one level.
    half_width
        Wanted half-widths of 95 % intervals, by coefficient: the plan says which epsilon they need.
    """
    epsilons = [float(epsilon)] if isinstance(epsilon, Real) else _listed(epsilon, "epsilon", LARGE_EPSILON)
    study = Study(
        formula=formula,
        bounds=bounds,
        epsilon=max(epsilons),
        delta=delta,
        linkage=linkage,
        unit=UNSTATED if unit is None else unit,
        levels={} if levels is None else levels,
        method=method,
        calibration=calibration,
        typical={} if typical is None else typical,
        errors=errors,
        missing=missing,
        descent=descent,
        response_bound=response_bound,
        row_norm=row_norm,
        intervals=intervals,
        family=family,
        exposure=exposure,
        weights=weights,
        where=where,
        by=by,
        cluster=cluster,
        goodness=goodness,
    )
    counts: Any = [count] if isinstance(count, Integral) else count
    return plan_study(study, counts, epsilons, r_squared, half_width, response_mean, subgroup)


@plain_faults
def plan_study(
    study: Study,
    counts: Sequence[int],
    epsilons: Sequence[float],
    r_squared: float = 0.5,
    half_width: Mapping[str, float] | None = None,
    response_mean: float | None = None,
    subgroup: float = 0.1,
) -> Plan:
    """Plan for a study; see :func:`plan`."""
    if not 0.0 < plain_number(subgroup) <= 1.0:
        raise StudyError(f"subgroup must be a share of the rows, above 0 and up to 1, not {shown(subgroup)}.")
    _check_counts(counts)
    if not _is_one_number(counts):
        counts = [int(number) for number in _listed(counts, "count", 1.0 / study.delta)]
    if not _is_one_number(epsilons):
        epsilons = _listed(epsilons, "epsilon", LARGE_EPSILON)
    for count in counts:
        study.check_count(count)
    asked = (counts, epsilons, r_squared, half_width or {}, response_mean, subgroup)
    if study.by is not None:
        return _plan_level(study, *asked)
    if study.parts:
        _check_wanted(
            half_width or {}, [f"{key}: {name}" for key, one in study.parts.items() for name in one.prepare()[0].names]
        )
        return _join_plans(study, {name: _plan_outcome(study, name, *asked) for name in study.parts})
    return _plan_one(study, make_setting(study), *asked)


def _plan_one(
    study: Study,
    setting: Setting,
    counts: Sequence[int],
    epsilons: Sequence[float],
    r_squared: float,
    half_width: Mapping[str, float],
    response_mean: float | None,
    subgroup: float,
) -> Plan:
    """Plan for one result."""
    guess = guess_rows(study, setting, r_squared, response_mean)
    if study.where is not None:
        guess = replace(guess, subgroup=float(subgroup))
    points = [(epsilon, count) for epsilon in epsilons for count in counts]
    errors = {point: expect_errors(setting, guess, *point) for point in points}
    point = Point(epsilons[len(epsilons) // 2], counts[0], guess.accuracy)
    return Plan(
        study.delta,
        tuple(row for place, found in errors.items() for row in list_errors(guess, found, *place)),
        _levers(setting, guess, point),
        _needed(setting, guess, counts[0], half_width),
        describe_assumptions(study, guess),
        study.formula,
        point,
        _curves(setting, guess, point, counts, epsilons),
        describe_limits(study, errors),
        study.family,
    )


def _plan_level(
    study: Study,
    counts: Sequence[int],
    epsilons: Sequence[float],
    r_squared: float,
    half_width: Mapping[str, float],
    response_mean: float | None,
    subgroup: float,
) -> Plan:
    """Plan for one of several levels, which are taken to have equal shares of the rows."""
    levels, part = len(study.parts), next(iter(study.parts.values()))
    setting = make_setting(part)
    setting = replace(setting, exposure=replace(setting.exposure, levels=levels))
    share = (1.0 if study.where is None else subgroup) / levels
    found = _plan_one(part, setting, counts, epsilons, r_squared, half_width, response_mean, share)
    said = f"Figures are for one level of {study.by}, of which all {levels} are taken to be of the same size and to cost what one does. "
    return replace(found, formula=f"{study.formula}, by {study.by}", assumptions=said + found.assumptions)


def _plan_outcome(
    study: Study,
    outcome: str,
    counts: Sequence[int],
    epsilons: Sequence[float],
    r_squared: float,
    half_width: Mapping[str, float],
    response_mean: float | None,
    subgroup: float,
) -> Plan:
    """Plan for one of several outcomes, coefficients called by it."""
    part, start = study.parts[outcome], f"{outcome}: "
    known = [start + name for name in part.prepare()[0].names]
    wanted = {name.removeprefix(start): width for name, width in half_width.items() if name in known}
    setting = replace(make_setting(part), outcomes=len(study.parts))
    found = _plan_one(part, setting, counts, epsilons, r_squared, wanted, response_mean, subgroup)
    return replace(
        found,
        rows=tuple(replace(row, name=start + row.name) for row in found.rows),
        levers=tuple(replace(lever, name=start + lever.name) for lever in found.levers),
        needed=tuple((start + name, width, epsilon) for name, width, epsilon in found.needed),
        curves=tuple(replace(curve, name=start + curve.name) for curve in found.curves),
    )


def _join_plans(study: Study, plans: Mapping[str, Plan]) -> Plan:
    """The plans of all outcomes as one."""
    first = next(iter(plans.values()))
    said = (
        f"The {len(plans)} outcomes share the budget equally, and pay for what is about the regressors alone together. "
    )
    return replace(
        first,
        rows=tuple(row for found in plans.values() for row in found.rows),
        levers=tuple(lever for found in plans.values() for lever in found.levers),
        needed=tuple(one for found in plans.values() for one in found.needed),
        curves=tuple(curve for found in plans.values() for curve in found.curves),
        limits=tuple(dict.fromkeys(limit for found in plans.values() for limit in found.limits)),
        formula=study.formula,
        assumptions=said + first.assumptions,
    )


def _check_counts(counts: Any) -> None:
    """Refuse anything but whole numbers in a list or tuple: a column may stand in their place."""
    listed = isinstance(counts, (list, tuple))
    if not listed or not all(isinstance(count, Integral) and not isinstance(count, bool) for count in counts):
        held = "a list with something else in it" if listed else shown_type(type(counts).__name__)
        raise StudyError(f"count must be a whole number of rows (int), or a list or tuple of such numbers, not {held}.")


def _is_one_number(values: Any) -> bool:
    return len(values) == 1 and isinstance(values[0], Real)


def _listed(values: Any, name: str, limit: float) -> list[float]:
    """Several numbers to compare, none of which is told if one is out of range: rows may stand in their place."""
    numbers = [plain_number(value) for value in values]
    if not numbers or not all(0.0 < number <= limit for number in numbers):
        raise StudyError(f"{name} must be a number, or several; each of several above 0 and at most {limit:g}.")
    return numbers


def make_setting(study: Study) -> Setting:
    """A study as planning needs it."""
    design, exposure = study.prepare()
    return Setting(study, design, replace(study, typical={}).prepare()[0], exposure)


def guess_rows(study: Study, setting: Setting, r_squared: float, response_mean: float | None = None) -> Guess:
    """What a study, a guessed R² and a guessed mean outcome make of the rows."""
    if not 0.0 <= plain_number(r_squared) < 1.0:
        raise StudyError(f"r_squared must lie in [0, 1), not {shown(r_squared)}.")
    named = [name for name in setting.aimed.response_variables if name in study.typical]
    linkage, curve = study.linkage.public, setting.aimed.curve
    level, deviation = guess_response(setting.aimed, {name: study.typical[name] for name in named})
    if curve is not None:
        level, deviation = _checked_mean(curve.largest, curve.counts, response_mean), 0.0
    elif response_mean is not None:
        raise StudyError(
            "response_mean is for events and counts (family='logistic' or 'poisson'): leave it out, a line's response follows from its bounds or typical range."
        )
    return Guess(level, deviation, r_squared, linkage.mean_accuracy, accuracy_variance(linkage, None) or 0.0)


def _checked_mean(largest: int, counts: bool, guessed: float | None) -> float:
    """The guessed mean of events or counts; what is usual if nothing is guessed."""
    if guessed is None:
        return min(1.0, largest / 2.0) if counts else _USUAL_EVENTS
    if not 0.0 < plain_number(guessed) < largest:
        raise StudyError(
            f"response_mean must lie between 0 and {largest}, the share of rows with an event or the mean count, not {shown(guessed)}."
        )
    return float(guessed)


def expect_errors(setting: Setting, guess: Guess, epsilon: float, count: int) -> ExpectedErrors:
    """Expected errors by the study's method and calibration, or family."""
    if setting.aimed.curve is not None:
        return curve_errors(setting, guess, count, epsilon)
    return EXPECTED[setting.study.method, setting.study.calibration](setting, guess, count, epsilon)


def list_errors(guess: Guess, errors: ExpectedErrors, epsilon: float, count: int) -> list[PlannedError]:
    """Expected standard errors of all coefficients, in the user's units."""
    parts = errors.in_user_units(guess.accuracy_variance)
    return [
        PlannedError(epsilon, count, name, *map(float, own))
        for name, *own in zip(errors.design.names, *parts, strict=True)
    ]


def _plan_rows(setting: Setting, guess: Guess, epsilon: float, count: int) -> list[PlannedError]:
    return list_errors(guess, expect_errors(setting, guess, epsilon, count), epsilon, count)


def _try_rows(setting: Setting, guess: Guess, epsilon: float, count: int) -> list[PlannedError] | None:
    """Expected errors; None for a budget that the calibration refuses, or a descent that would not settle."""
    try:
        return _plan_rows(setting, guess, epsilon, count)
    except StudyError:
        return None


def _needed(
    setting: Setting, guess: Guess, count: int, half_width: Mapping[str, float]
) -> tuple[tuple[str, float, float | None], ...]:
    """The smallest epsilon for each wanted half-width."""
    names, found = setting.aimed.names, []
    _check_wanted(half_width, names)
    for name, wanted in half_width.items():
        found.append((name, float(wanted), _needed_epsilon(setting, guess, count, names.index(name), wanted)))
    return tuple(found)


def _check_wanted(half_width: Mapping[str, float], names: Sequence[str]) -> None:
    """Refuse half-widths of what is no coefficient."""
    for name in half_width:
        if name not in names:
            hint = suggest(name, names)
            raise StudyError(f"half_width names {shown(name) if hint else 'something'}, which is no coefficient.{hint}")


def _needed_epsilon(setting: Setting, guess: Guess, count: int, place: int, wanted: float) -> float | None:
    """Smallest epsilon whose expected half-width is at most the wanted one; None if none up to 100, or to what the calibration allows, is."""

    def width(epsilon: float) -> float:
        rows = _try_rows(setting, guess, epsilon, count)
        return math.inf if rows is None else rows[place].half_width()

    def search(low: float, high: float, too_low: Callable[[float], bool]) -> tuple[float, float]:
        for _ in range(50):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if too_low(middle) else (low, middle)
        return low, high

    low, high = 1e-3, 100.0
    if math.isinf(width(high)):
        high, _ = search(low, high, lambda epsilon: math.isfinite(width(epsilon)))
    if not width(high) <= wanted:
        return None
    return search(low, high, lambda epsilon: width(epsilon) > wanted)[1]


def _levers(setting: Setting, guess: Guess, point: Point) -> tuple[Lever, ...]:
    """What twice the budget, twice the rows, half the linkage errors, an accuracy known better and bounds half as wide would do."""
    study, linkage, epsilon, count = setting.study, setting.study.linkage, point.epsilon, point.count
    better = _at_accuracy(linkage, guess, (1.0 + guess.accuracy) / 2.0)
    changed = {
        "twice the budget": _try_rows(setting, guess, 2.0 * epsilon, count),
        "twice the rows": _try_rows(setting, guess, epsilon, 2 * count),
        "half the linkage errors": _try_rows(setting, better, epsilon, count),
    }
    if guess.accuracy_variance:
        checked = _is_checked(linkage)
        better = replace(guess, accuracy_variance=guess.accuracy_variance / (2.0 if checked else 4.0))
        change = "twice as many links checked" if checked else "half the accuracy's error"
        changed[change] = _try_rows(setting, better, epsilon, count)
    # Halving bounds tells something only where a typical range says that the rows lie well within them.
    bounds = setting.aimed.bounds
    typical = {name: study.typical[name] for name in bounds if name in study.typical}
    if typical and setting.aimed.curve is None:  # noise along a curve follows instruments, not bounds
        tighter = {name: _halved(bounds[name], middle) for name, middle in typical.items()}
        try:
            narrow = make_setting(replace(study, bounds={**study.bounds, **tighter}))
            narrow = replace(narrow, exposure=setting.exposure, outcomes=setting.outcomes)
            guessed = replace(guess_rows(narrow.study, narrow, guess.r_squared), subgroup=guess.subgroup)
            changed["bounds half as wide"] = _try_rows(narrow, guessed, epsilon, count)
        except StudyError:
            pass  # a transform that the narrower bounds do not allow
    now = _plan_rows(setting, guess, epsilon, count)
    return tuple(
        Lever(change, before.name, after.total / before.total)
        for change, rows in changed.items()
        if rows is not None
        for before, after in zip(now, rows, strict=True)
        if before.name != "Intercept"
    )


def _is_checked(linkage: Linkage) -> bool:
    return isinstance(linkage, ELE) and linkage.checked is not None


def _at_accuracy(linkage: Linkage, guess: Guess, accuracy: float) -> Guess:
    """The guess at another accuracy: found by checking as many links, or with the same standard error."""
    variance = guess.accuracy_variance * (guess.accuracy / accuracy) ** 2
    if _is_checked(linkage) and guess.accuracy < 1.0:
        variance *= accuracy * (1.0 - accuracy) / (guess.accuracy * (1.0 - guess.accuracy))
    return replace(guess, accuracy=accuracy, accuracy_variance=variance)


def _curves(
    setting: Setting, guess: Guess, point: Point, counts: Sequence[int], epsilons: Sequence[float]
) -> tuple[Curve, ...]:
    """Half-widths over budgets, numbers of rows and, where links may be wrong, accuracies: each from a tenth to ten times."""
    linkage = setting.study.linkage
    highest = math.ceil(1.0 / setting.study.delta) - 1  # delta must stay below 1/n
    budgets = _steps(
        min(point.epsilon / 10.0, *epsilons), max(min(10.0 * point.epsilon, LARGE_EPSILON), *epsilons), point.epsilon
    )
    numbers = _steps(
        max(1.0, min(point.count / 10.0, *counts)), min(max(10.0 * point.count, *counts), highest), point.count
    )
    at: dict[str, list[tuple[float, Guess, float, int]]] = {
        "epsilon": [(budget, guess, budget, point.count) for budget in budgets],
        "rows": [(number, guess, point.epsilon, number) for number in sorted({round(number) for number in numbers})],
    }
    if isinstance(linkage, ELE):
        shares = sorted({*np.linspace(min(0.5, point.accuracy / 2.0), 1.0, _CURVE).round(4).tolist(), point.accuracy})
        own = [guess if share == guess.accuracy else _at_accuracy(linkage, guess, share) for share in shares]
        at["accuracy"] = [(moved.accuracy, moved, point.epsilon, point.count) for moved in own]
    now = _plan_rows(setting, guess, point.epsilon, point.count)
    found = []
    for quantity, places in at.items():
        errors = {float(value): _try_rows(setting, own, epsilon, count) for value, own, epsilon, count in places}
        known = {value: rows for value, rows in errors.items() if rows is not None}
        for k, row in enumerate(now):
            widths = tuple(rows[k].half_width() for rows in known.values())
            floor = tuple(replace(rows[k], privacy=0.0).half_width() for rows in known.values())
            found.append(Curve(quantity, row.name, tuple(known), widths, floor, row.half_width()))
    return tuple(found)


def _steps(low: float, high: float, own: float) -> list[float]:
    """Places between two ends, evenly by their logarithm, the plan's own among them."""
    places = np.geomspace(min(low, own), max(high, own), _CURVE).tolist()
    return sorted([float(own), *(place for place in places if abs(place - own) > 1e-6 * own)])


def _halved(interval: Interval, typical: Sequence[float]) -> Interval:
    """Bounds half as wide around the typical range, within the old ones and never inside it."""
    half = max((interval[1] - interval[0]) / 4.0, (typical[1] - typical[0]) / 2.0)
    low = min(max((typical[0] + typical[1]) / 2.0 - half, interval[0]), interval[1] - 2.0 * half)
    return max(low, interval[0]), min(low + 2.0 * half, interval[1])
