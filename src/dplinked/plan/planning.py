"""What a release would be worth, from public values only. No data is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, overload

from dplinked.errors import StudyError, plain_faults, plain_number, shown, shown_type, suggest
from dplinked.linkage import UNSTATED, Linkage, PrivacyUnit
from dplinked.plan.assumptions import describe_assumptions, describe_clusters, describe_limits, describe_refused
from dplinked.plan.errors import Setting
from dplinked.plan.expectations import Expectations, Point
from dplinked.plan.figures import guess_rows, list_errors, make_setting, try_points, try_rows
from dplinked.plan.moves import find_curves, find_levers
from dplinked.plan.rows import Guess
from dplinked.report.files import HTML, write_or_return
from dplinked.report.words import shorten
from dplinked.study.budget import LARGE_EPSILON
from dplinked.study.descent import Descent
from dplinked.study.study import Study

_SHOWN = 4  # coefficients in a repr


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
    strata: str | None = None,
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
        strata=strata,
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
    errors, refused = try_points(setting, guess, [(epsilon, count) for epsilon in epsilons for count in counts])
    count = counts[0] if any(place[1] == counts[0] for place in errors) else min(place[1] for place in errors)
    tried = [place[0] for place in errors if place[1] == count]
    wanted = epsilons[len(epsilons) // 2]
    point = Point(wanted if wanted in tried else tried[len(tried) // 2], count, guess.accuracy)
    return Plan(
        study.delta,
        tuple(row for place, found in errors.items() for row in list_errors(guess, found, *place)),
        find_levers(setting, guess, point),
        _needed(setting, guess, count, half_width),
        describe_assumptions(study, guess),
        study.formula,
        point,
        find_curves(setting, guess, point, counts, epsilons),
        (*describe_limits(study, errors), *describe_clusters(setting, point.epsilon), *describe_refused(refused)),
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
        rows = try_rows(setting, guess, epsilon, count)
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
