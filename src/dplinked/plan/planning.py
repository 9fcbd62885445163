"""What a release would be worth, from public values only. No data is touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_faults, plain_number, shown, shown_type, suggest
from dplinked.linkage import ELE, UNSTATED, Linkage, LinkageExposure, PrivacyUnit
from dplinked.plan.expectations import Curve, Expectations, Lever, PlannedError, Point
from dplinked.plan.expected import expected_noise, expected_sampling
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities.instrument import plan_sums
from dplinked.privacy.spending import VARIANCE
from dplinked.report.files import HTML, write_or_return
from dplinked.study.budget import LARGE_EPSILON
from dplinked.study.design import Design
from dplinked.study.formula import Interval
from dplinked.study.instrument import MIDDLE, column_spread
from dplinked.study.study import Study

Floats = NDArray[np.float64]

_CURVE = 25  # places on a curve


@dataclass(frozen=True)
class Plan(Expectations):
    """Expected standard errors over budgets and numbers of rows, from public values and guesses alone."""

    def __str__(self) -> str:
        from dplinked.plan.document import lines_document
        from dplinked.report.text import write_lines

        return write_lines(lines_document(self))

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


@dataclass(frozen=True)
class Guess:
    """Guesses a plan rests on: response mean and deviation on its scaled column, R², accuracy, share for intervals."""

    level: float
    deviation: float
    r_squared: float
    accuracy: float
    share: float


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
    typical: Mapping[str, Sequence[float]] | None = None,
    r_squared: float = 0.5,
    half_width: Mapping[str, float] | None = None,
) -> Plan:
    """Expected intervals of a tight SSP release over budgets and numbers of rows, touching no data.

    Parameters
    ----------
    count
        Number of rows, public; or several to compare.
    r_squared
        Guessed share of the response's variance that the model explains. Columns and response are taken to
        spread evenly around their typical ranges (the middle 70 %) where declared, else over their bounds.
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
        typical={} if typical is None else typical,
    )
    counts: Any = [count] if isinstance(count, Integral) else count
    return plan_study(study, counts, epsilons, r_squared, half_width)


@plain_faults
def plan_study(
    study: Study,
    counts: Sequence[int],
    epsilons: Sequence[float],
    r_squared: float = 0.5,
    half_width: Mapping[str, float] | None = None,
) -> Plan:
    """Plan for a study; see :func:`plan`."""
    _check_counts(counts)
    if not _is_one_number(counts):
        counts = [int(number) for number in _listed(counts, "count", 1.0 / study.delta)]
    if not _is_one_number(epsilons):
        epsilons = _listed(epsilons, "epsilon", LARGE_EPSILON)
    if not 0.0 <= plain_number(r_squared) < 1.0:
        raise StudyError(f"r_squared must lie in [0, 1), not {shown(r_squared)}.")
    design, exposure = study.prepare()
    for count in counts:
        study.check_count(count)
    guess = _guess(study, design, r_squared)
    rows = [
        row
        for epsilon in epsilons
        for count in counts
        for row in plan_errors(design, exposure, guess, count, epsilon, study.delta)
    ]
    needed = []
    for name, wanted in (half_width or {}).items():
        if name not in design.names:
            hint = suggest(name, design.names)
            raise StudyError(f"half_width names {shown(name) if hint else 'something'}, which is no coefficient.{hint}")
        needed.append(
            (name, float(wanted), _needed_epsilon(design, exposure, guess, counts[0], study.delta, name, wanted))
        )
    point = Point(epsilons[len(epsilons) // 2], counts[0], guess.accuracy)
    levers = _levers(study, design, exposure, guess, point.count, point.epsilon)
    return Plan(
        study.delta,
        tuple(rows),
        levers,
        tuple(needed),
        f"Assumes columns spread evenly over their typical ranges (else bounds) and uncorrelated, R² = {r_squared:g}, "
        f"accuracy {guess.accuracy:g}. Privacy noise is exact given the sums; the rest is a guess.",
        study.formula,
        point,
        _curves(study, design, exposure, guess, point, counts, epsilons),
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


def _guess(study: Study, design: Design, r_squared: float) -> Guess:
    response = design.response
    name = response.numeric[0].variables[0]
    typical = response.name == name and name in study.typical
    low, high = study.typical[name] if typical else response.interval
    deviation = (high - low) / (2.0 * math.sqrt(3.0) * response.scale * (MIDDLE if typical else 1.0))
    level = ((low + high) / 2.0 - response.shift) / response.scale
    share = 1.0 - (VARIANCE if study.intervals else 0.0)
    return Guess(level, deviation, r_squared, study.linkage.public.mean_accuracy, share)


def plan_errors(
    design: Design, exposure: LinkageExposure, guess: Guess, count: int, epsilon: float, delta: float
) -> list[PlannedError]:
    """Expected standard errors of all coefficients; every column explains an equal part of the variance.

    Wrong links add ``(1-γ²)`` of the explained variance to that of the residuals.
    """
    to_user, _ = design.scaling.to_user()
    slopes = np.sqrt(guess.r_squared * guess.deviation**2 / (max(1, len(design.columns)) * column_spread(design)))
    residual = guess.deviation * math.sqrt(1.0 - guess.r_squared)
    mismatch = guess.deviation * math.sqrt(guess.r_squared * (1.0 - guess.accuracy**2))
    mu = privacy_mu(epsilon, delta) * math.sqrt(guess.share)
    noise = plan_sums(design, exposure, count, mu, intervals=guess.share < 1.0)
    scaled = (
        expected_sampling(design, guess.accuracy, count, residual),
        expected_sampling(design, guess.accuracy, count, mismatch),
        expected_noise(design, guess.accuracy, count, noise, slopes, guess.level),
    )
    user = [np.sqrt(to_user**2 @ part**2) for part in scaled]
    return [
        PlannedError(epsilon, count, name, *map(float, parts)) for name, *parts in zip(design.names, *user, strict=True)
    ]


def _needed_epsilon(
    design: Design, exposure: LinkageExposure, guess: Guess, count: int, delta: float, name: str, wanted: float
) -> float | None:
    """Smallest epsilon whose expected half-width is at most the wanted one; None if none up to 100 is."""

    def width(epsilon: float) -> float:
        rows = plan_errors(design, exposure, guess, count, epsilon, delta)
        return next(row.half_width() for row in rows if row.name == name)

    low, high = 1e-3, 100.0
    if width(high) > wanted:
        return None
    for _ in range(50):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if width(middle) > wanted else (low, middle)
    return high


def _levers(
    study: Study, design: Design, exposure: LinkageExposure, guess: Guess, count: int, epsilon: float
) -> tuple[Lever, ...]:
    """What twice the budget, twice the rows, half the linkage errors and bounds half as wide would do."""
    now = plan_errors(design, exposure, guess, count, epsilon, study.delta)
    better = replace(guess, accuracy=(1.0 + guess.accuracy) / 2.0)
    changed = {
        "twice the budget": plan_errors(design, exposure, guess, count, 2.0 * epsilon, study.delta),
        "twice the rows": plan_errors(design, exposure, guess, 2 * count, epsilon, study.delta),
        "half the linkage errors": plan_errors(design, exposure, better, count, epsilon, study.delta),
    }
    # Halving bounds tells something only where a typical range says that the rows lie well within them.
    typical = {name: study.typical[name] for name in design.bounds if name in study.typical}
    if typical:
        tighter = {name: _halved(design.bounds[name], middle) for name, middle in typical.items()}
        narrow = replace(study, bounds={**study.bounds, **tighter})
        try:
            aimed = narrow.prepare()[0]
            better = _guess(narrow, aimed, guess.r_squared)
            changed["bounds half as wide"] = plan_errors(aimed, exposure, better, count, epsilon, study.delta)
        except StudyError:
            pass  # a transform that the narrower bounds do not allow
    return tuple(
        Lever(change, before.name, after.total / before.total)
        for change, rows in changed.items()
        for before, after in zip(now, rows, strict=True)
        if before.name != "Intercept"
    )


def _curves(
    study: Study,
    design: Design,
    exposure: LinkageExposure,
    guess: Guess,
    point: Point,
    counts: Sequence[int],
    epsilons: Sequence[float],
) -> tuple[Curve, ...]:
    """Half-widths over budgets, numbers of rows and, where links may be wrong, accuracies: each from a tenth to ten times."""
    highest = math.ceil(1.0 / study.delta) - 1  # delta must stay below 1/n
    budgets = _steps(
        min(point.epsilon / 10.0, *epsilons), max(min(10.0 * point.epsilon, LARGE_EPSILON), *epsilons), point.epsilon
    )
    numbers = _steps(
        max(1.0, min(point.count / 10.0, *counts)), min(max(10.0 * point.count, *counts), highest), point.count
    )
    at: dict[str, list[tuple[float, Guess, int, float]]] = {
        "epsilon": [(budget, guess, point.count, budget) for budget in budgets],
        "rows": [(number, guess, number, point.epsilon) for number in sorted({round(number) for number in numbers})],
    }
    if isinstance(study.linkage, ELE):
        shares = sorted({*np.linspace(min(0.5, point.accuracy / 2.0), 1.0, _CURVE).round(4).tolist(), point.accuracy})
        at["accuracy"] = [(share, replace(guess, accuracy=share), point.count, point.epsilon) for share in shares]
    now = {row.name: row for row in plan_errors(design, exposure, guess, point.count, point.epsilon, study.delta)}
    found = []
    for quantity, places in at.items():
        errors = [plan_errors(design, exposure, own, count, epsilon, study.delta) for _, own, count, epsilon in places]
        for k, name in enumerate(now):
            widths = [row[k].half_width() for row in errors]
            floor = [replace(row[k], privacy=0.0).half_width() for row in errors]
            values = tuple(float(place[0]) for place in places)
            found.append(Curve(quantity, name, values, tuple(widths), tuple(floor), now[name].half_width()))
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
