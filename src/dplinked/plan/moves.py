"""What a plan's figures would be elsewhere: with one thing changed, and over everything that a steward can choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dplinked.errors import StudyError
from dplinked.linkage import ELE, Linkage
from dplinked.plan.errors import Setting
from dplinked.plan.expectations import Curve, Lever, Point
from dplinked.plan.figures import guess_rows, make_setting, plan_rows, try_rows
from dplinked.plan.rows import Guess
from dplinked.study.budget import LARGE_EPSILON
from dplinked.study.formula import Interval

_CURVE = 25  # places on a curve
_WIDTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # of bounds, the study's own being 1

_Place = tuple[Setting, Guess, float, int]  # what figures are of, at a budget and a number of rows


def find_levers(setting: Setting, guess: Guess, point: Point) -> tuple[Lever, ...]:
    """What twice the budget, twice the rows, half the linkage errors, an accuracy known better and bounds half as wide would do."""
    linkage, epsilon, count = setting.study.linkage, point.epsilon, point.count
    better = _at_accuracy(linkage, guess, (1.0 + guess.accuracy) / 2.0)
    changed = {
        "twice the budget": try_rows(setting, guess, 2.0 * epsilon, count),
        "twice the rows": try_rows(setting, guess, epsilon, 2 * count),
        "half the linkage errors": try_rows(setting, better, epsilon, count),
    }
    if guess.accuracy_variance:
        checked = _is_checked(linkage)
        better = replace(guess, accuracy_variance=guess.accuracy_variance / (2.0 if checked else 4.0))
        change = "twice as many links checked" if checked else "half the accuracy's error"
        changed[change] = try_rows(setting, better, epsilon, count)
    narrow = _with_bounds(setting, guess, 0.5)
    if narrow is not None:
        changed["bounds half as wide"] = try_rows(*narrow, epsilon, count)
    now = plan_rows(setting, guess, epsilon, count)
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


def find_curves(
    setting: Setting, guess: Guess, point: Point, counts: Sequence[int], epsilons: Sequence[float]
) -> tuple[Curve, ...]:
    """Half-widths over budgets, numbers of rows, widths of bounds and, where links may be wrong, accuracies and checked links: each from a tenth, or a quarter, to as many times."""
    linkage = setting.study.linkage
    highest = math.ceil(1.0 / setting.study.delta) - 1  # delta must stay below 1/n
    budgets = _steps(
        min(point.epsilon / 10.0, *epsilons), max(min(10.0 * point.epsilon, LARGE_EPSILON), *epsilons), point.epsilon
    )
    numbers = _steps(
        max(1.0, min(point.count / 10.0, *counts)), min(max(10.0 * point.count, *counts), highest), point.count
    )
    own = (setting, guess, point.epsilon, point.count)
    at: dict[str, list[tuple[float, _Place]]] = {
        "epsilon": [(budget, (setting, guess, budget, point.count)) for budget in budgets],
        "rows": [(number, (setting, guess, point.epsilon, number)) for number in sorted(set(map(round, numbers)))],
    }
    places = {"epsilon": point.epsilon, "rows": float(point.count), "accuracy": point.accuracy, "bounds": 1.0}
    if isinstance(linkage, ELE):
        shares = sorted({*np.linspace(min(0.5, point.accuracy / 2.0), 1.0, _CURVE).round(4).tolist(), point.accuracy})
        guesses = [guess if share == guess.accuracy else _at_accuracy(linkage, guess, share) for share in shares]
        at["accuracy"] = [(moved.accuracy, (setting, moved, *own[2:])) for moved in guesses]
        checked = count_checked(linkage.public)
        if checked or guess.accuracy_variance:  # where nobody says how many were checked, so many times as many
            name, number, least = ("checked", checked, 1.0) if checked else ("review", 1.0, 0.1)
            places[name] = number
            at[name] = [
                (
                    other,
                    (setting, replace(guess, accuracy_variance=guess.accuracy_variance * number / other), *own[2:]),
                )
                for other in _steps(max(least, number / 10.0), 10.0 * number, number)
            ]
    moved = {width: _with_bounds(setting, guess, width) for width in _WIDTHS}
    if moved[1.0] is not None:
        at["bounds"] = [(width, (*other, *own[2:])) for width, other in moved.items() if other is not None]
    now = plan_rows(*own)
    found = []
    for quantity, listed in at.items():
        errors = {float(value): try_rows(*place) for value, place in listed}
        known = {value: rows for value, rows in errors.items() if rows is not None}
        for k, row in enumerate(now):
            widths = tuple(rows[k].half_width() for rows in known.values())
            floor = tuple(replace(rows[k], privacy=0.0).half_width() for rows in known.values())
            found.append(Curve(quantity, row.name, tuple(known), widths, floor, row.half_width(), places[quantity]))
    return tuple(found)


def count_checked(linkage: ELE) -> float:
    """How many links were checked in all blocks together, 0 if nobody said."""
    if isinstance(linkage.checked, Mapping):
        return float(sum(linkage.checked.values()))
    blocks = len(linkage.accuracy) if isinstance(linkage.accuracy, Mapping) else 1
    return float(linkage.checked or 0.0) * blocks


def _steps(low: float, high: float, own: float) -> list[float]:
    """Places between two ends, evenly by their logarithm, the plan's own among them."""
    places = np.geomspace(min(low, own), max(high, own), _CURVE).tolist()
    return sorted([float(own), *(place for place in places if abs(place - own) > 1e-6 * own)])


def _with_bounds(setting: Setting, guess: Guess, width: float) -> tuple[Setting, Guess] | None:
    """The same study with bounds so many times as wide; None where that tells nothing.

    It tells something only of columns whose typical range says that rows lie well within their bounds, and nothing of events and counts: noise along a curve
    follows instruments, not bounds.
    """
    study, bounds = setting.study, setting.aimed.bounds
    typical = {name: study.typical[name] for name in bounds if name in study.typical}
    if not typical or setting.aimed.curve is not None:
        return None
    moved = {name: _widened(bounds[name], middle, width) for name, middle in typical.items()}
    try:
        other = make_setting(replace(study, bounds={**study.bounds, **moved}))
        other = replace(other, exposure=setting.exposure, outcomes=setting.outcomes)
        return other, replace(guess_rows(other.study, other, guess.r_squared), subgroup=guess.subgroup)
    except StudyError:
        return None  # a transform that these bounds do not allow


def _widened(interval: Interval, typical: Sequence[float], width: float) -> Interval:
    """Bounds so many times as wide: narrower ones around the typical range, within the old ones and never inside it; wider ones to both sides."""
    half = max(width * (interval[1] - interval[0]) / 2.0, (typical[1] - typical[0]) / 2.0)
    if width > 1.0:
        middle = (interval[0] + interval[1]) / 2.0
        return middle - half, middle + half
    low = min(max((typical[0] + typical[1]) / 2.0 - half, interval[0]), interval[1] - 2.0 * half)
    return max(low, interval[0]), min(low + 2.0 * half, interval[1])
