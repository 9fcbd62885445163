"""The figures of a plan: expected errors of a study's coefficients at one budget and one number of rows, from public values and guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dplinked.errors import StudyError, plain_number, shown
from dplinked.estimate.variance import accuracy_variance
from dplinked.linkage import ELE, Linkage
from dplinked.plan.curve import curve_errors
from dplinked.plan.errors import EXPECTED, ExpectedErrors, RefusedError, Setting
from dplinked.plan.expectations import PlannedError
from dplinked.plan.rows import Guess, guess_response
from dplinked.study.study import Study

_USUAL_EVENTS = 0.1  # share of rows with an event, if nothing is guessed


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
    return Guess(level, deviation, r_squared, *_overall_accuracy(linkage))


def _overall_accuracy(linkage: Linkage) -> tuple[float, float]:
    """The accuracy of all rows, as far as groups are planned for, and its relative variance."""
    shares = linkage.planned_shares if isinstance(linkage, ELE) else {}
    if not isinstance(linkage, ELE) or not shares:
        return linkage.mean_accuracy, accuracy_variance(linkage, None) or 0.0
    listed = dict(linkage.accuracy) if isinstance(linkage.accuracy, Mapping) else {}
    mean = sum(share * (listed[key] if key is not None else linkage.other or 0.0) for key, share in shares.items())
    return mean, linkage.accuracy_variance(shares) or 0.0


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


def try_points(
    setting: Setting, guess: Guess, points: Sequence[tuple[float, int]]
) -> tuple[dict[tuple[float, int], ExpectedErrors], list[tuple[float, int]]]:
    """Expected errors at budgets and numbers of rows, and those at which a release would be refused; an error if it would be at all of them."""
    found: dict[tuple[float, int], ExpectedErrors] = {}
    refused = []
    for point in points:
        try:
            found[point] = expect_errors(setting, guess, *point)
        except RefusedError as problem:
            refused.append((point, problem))
    if not found:
        raise refused[-1][1]
    return found, [point for point, _ in refused]


def list_errors(guess: Guess, errors: ExpectedErrors, epsilon: float, count: int) -> list[PlannedError]:
    """Expected standard errors of all coefficients, in the user's units."""
    parts = errors.in_user_units(guess.accuracy_variance)
    return [
        PlannedError(epsilon, count, name, *map(float, own))
        for name, *own in zip(errors.design.names, *parts, strict=True)
    ]


def plan_rows(setting: Setting, guess: Guess, epsilon: float, count: int) -> list[PlannedError]:
    """Expected standard errors of all coefficients."""
    return list_errors(guess, expect_errors(setting, guess, epsilon, count), epsilon, count)


def try_rows(setting: Setting, guess: Guess, epsilon: float, count: int) -> list[PlannedError] | None:
    """Expected errors; None for a budget that the calibration refuses, or a descent that would not settle."""
    try:
        return plan_rows(setting, guess, epsilon, count)
    except StudyError:
        return None
