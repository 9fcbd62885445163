"""What a plan rests on, and where its figures cannot be used, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dplinked.linkage import ELE, Matching
from dplinked.linkage.compared import say_compared
from dplinked.linkage.ele import LAST
from dplinked.plan.curve import line_deviation
from dplinked.plan.errors import ExpectedErrors, Setting, wanted_clusters
from dplinked.plan.rows import Guess
from dplinked.privacy.calibration import round_up
from dplinked.report.numbers import format_percent
from dplinked.report.words import list_names
from dplinked.study.family import Curve
from dplinked.study.study import Study

_UNSAID = 0.01  # share of the way that a descent may leave without a word

_FIGURES = {
    ("ssp", "tight"): "Figures are for noisy sums: the noise that would be drawn, and what it does to coefficients to first order.",
    ("ngd", "tight"): "Figures are for noisy gradient descent: the noise that would be drawn in gradients and curvature, and what it does to "
    "coefficients to first order.",
    ("ssp", "paper"): "Figures are for Algorithm 2 of [LPK24] as published: noise by Theorem 4.1, standard errors by Theorem 4.7, to first order, all "
    "slopes taken as positive. Rows and responses are taken to lie within c and R.",
    ("ngd", "paper"): "Figures are for Algorithm 1 of [LPK24] as published: noise by Theorem 4.1, standard errors by Theorem 4.6. It leaves out the "
    "projection, so they are capped at its radius. Rows and responses are taken to lie within c and R.",
}  # fmt: skip


def describe_assumptions(study: Study, guess: Guess) -> str:
    """Say what was guessed, and where the figures come from."""
    curve = study.prepare()[0].curve
    if curve is not None:
        return _describe_outcomes(study, guess, curve)
    return (
        "Assumes columns spread evenly over their typical ranges (else bounds) and uncorrelated, "
        f"R² = {guess.r_squared:g}{_describe_errors(study)}{_describe_counted(study, guess)}{_describe_links(study, guess)}.{_describe_response(study)} {_FIGURES[study.method, study.calibration]}"
    )


def _describe_outcomes(study: Study, guess: Guess, curve: Curve) -> str:
    """The same for events and counts."""
    varies = f"with a standard deviation of {line_deviation(curve, guess.level, guess.r_squared):.2g} (R² = {guess.r_squared:g})"
    if curve.counts:
        told = f"counts of {guess.level:g} on average, logarithms of rates that vary {varies}"
    else:
        told = f"events on {format_percent(guess.level)} of the rows, log odds that vary {varies}"
    exposed = "" if study.exposure is None else ", exposures spread evenly over their bounds"
    return (
        f"Assumes {told}, columns spread evenly over their typical ranges (else bounds) and uncorrelated{exposed}{_describe_counted(study, guess)}{_describe_links(study, guess)}. Figures are for coefficients, "
        "whose exponentials are the ratios: the noise that would be drawn, and what it does to them to first order. The rarer the outcome, the wider the intervals: guess its mean well."
    )


def _describe_errors(study: Study) -> str:
    return {"symmetric": ", errors symmetric around the line", "skewed": ", errors that may be skewed"}.get(
        study.errors, ""
    )


def _describe_counted(study: Study, guess: Guess) -> str:
    counted = "" if study.where is None else f", {study.where} on {format_percent(guess.subgroup)} of the rows"
    if study.weights is not None:
        counted += ", weights within their typical range (else most of their bounds)"
    if study.cluster is not None or study.unit.rows > 1:
        together = "person" if study.cluster is None else "cluster"
        counted += f", rows of a {together} that have no more in common than any rows: if they do, errors by sampling are larger"
    if study.strata is not None:
        counted += ", strata that do not differ: if they do, errors by sampling are smaller"
    return counted


def _describe_links(study: Study, guess: Guess) -> str:
    if isinstance(study.linkage, Matching):
        return ". A matching matrix declares no accuracy: all links are taken as right, and the less certain they are, the larger errors will be"
    accuracy = f", accuracy {guess.accuracy:g}{_describe_groups(study)}"
    if not guess.accuracy_variance:
        return f"{accuracy}, known exactly" if guess.accuracy < 1.0 else accuracy
    error = guess.accuracy * math.sqrt(guess.accuracy_variance)
    return f"{accuracy} with a standard error of {error:.2g}, which is a part of the linkage error"


def _describe_groups(study: Study) -> str:
    """How several accuracies were taken together: a plan opens no data, so it does not know how many rows have which."""
    linkage = study.linkage.public
    declared = linkage.declared if isinstance(linkage, ELE) else ()
    if len(declared) < 2:
        return ""
    planned = linkage.planned_shares if isinstance(linkage, ELE) else {}
    few = f" without {LAST}, rows that were linked at random and are taken to be few" if 0 < len(planned) < len(declared) else ""  # fmt: skip
    if len(planned) == 1:
        return f" ({few.strip()})"
    return f" (the mean of {len(planned or declared)} declared ones{few}, each counted the same, whatever its number of rows: plan with one accuracy, that of all rows, if you know it)"


def _describe_response(study: Study) -> str:
    """What is assumed of a response without a typical range."""
    if any(name in study.typical for name in study.prepare()[0].response_variables):
        return ""
    return " The response is taken to spread evenly over its bounds, which makes errors by sampling and links too large where most values lie closer together: declare its typical range."


def describe_limits(study: Study, errors: Mapping[tuple[float, int], ExpectedErrors]) -> tuple[str, ...]:
    """Say where the method is of no use, and what the figures leave out."""
    said = []
    weak = [f"epsilon = {epsilon:g} with {count:,} rows" for (epsilon, count), found in errors.items() if found.weak]
    if weak and study.family != "linear":
        said.append(
            f"At {list_names(weak)}, the slope of the equation is not expected to stand clear of its noise: coefficients would be drawn towards zero, intervals may be unbounded, and these figures "
            "mean little. More rows, a larger budget, fewer columns or tighter bounds help."
        )
    elif weak:
        said.append(
            f"Algorithm 2 is unusable at {list_names(weak)}: the smallest eigenvalue of W'W is expected within 4√(2d) times its noise, where the "
            "estimate has no finite variance, and figures of it mean little. More rows, a larger budget, tighter bounds, columns of like size or the tight calibration help."
        )
    left = max(found.left for found in errors.values())
    if left > _UNSAID:
        said.append(
            f"The descent's steps leave {format_percent(left)} of the way from its start in the direction that it learns slowest. Figures leave out "
            "this bias, which a release counts as an error: declare more steps, or longer ones."
        )
    if isinstance(study.linkage, ELE) and not study.linkage.knows_error and study.linkage.mean_accuracy < 1.0:
        said.append(
            "The accuracy is taken as known exactly, which it hardly is: declare how many links were checked (checked=…) or its standard error (accuracy_error=…). An "
            f"accuracy that is off by .02 moves slopes by about {format_percent(0.02 / study.linkage.mean_accuracy)}, however many rows there are."
        )
    return (*said, *say_compared(study.compared_variables()))


def describe_refused(points: Sequence[tuple[float, int]]) -> tuple[str, ...]:
    """Say at which budgets a release would be refused."""
    if not points:
        return ()
    listed = list_names([f"epsilon = {epsilon:g} with {count:,} rows" for epsilon, count in points])
    return (
        f"Left out: {listed}, where a release would refuse weights, conditions, clusters and goodness, for want of a second stage.",
    )


def describe_clusters(setting: Setting, epsilon: float) -> tuple[str, ...]:
    """Say how many clusters intervals by clusters take: nobody knows how many there are."""
    study = setting.study
    if study.cluster is None or not study.intervals:
        return ()
    wanted = round_up(wanted_clusters(setting, epsilon), 2)
    return (
        f"Intervals by clusters take about {float(wanted):,.0f} different cells of {study.cluster} at epsilon = {epsilon:g}. With fewer, noise hides how much rows have in common, "
        "and intervals are longer than these figures, many times so with a tenth of them.",
    )
