"""A release in short: the documents that are written as text and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dplinked.linkage.declared import DeclaredLinkage
from dplinked.privacy.calibration import round_down, round_up
from dplinked.release.answer import answer
from dplinked.release.coefficients import PARTS, TEST, coefficient_rows
from dplinked.release.family import FAMILIES
from dplinked.release.notes import (
    FILLED,
    NOISE_ALONE,
    STAGE_LINES,
    hidden_names,
    say_accuracy,
    say_counted,
    say_descent,
    say_goodness,
    say_hidden,
    say_line,
    say_linking_fields,
    say_missing,
    say_route,
    say_unbounded,
    say_unusable,
    unbounded_names,
)
from dplinked.release.promise import (
    ACCURACY_STEP,
    LINKS_THAT_RESEMBLE,
    METHODS,
    budget_before,
    exact_statement,
    plain_promise,
    say_further,
)
from dplinked.release.result import Result
from dplinked.report.document import Column, Document, Facts, Lead, Notes, Part, Section, Table
from dplinked.report.numbers import format_percent

_NAME = 24  # columns of the text for a coefficient's name, if no name is longer
_FACT = 28  # letters of a fact that have room in the text


def summary_document(result: Result) -> Document:
    """A table in the manner of statsmodels, what the errors are made of, then the privacy statement."""
    name = fit_name(result)
    errors, links = _error_table(result, name), [*_accuracy_table(result, name), *_bracket_table(result, name)]
    details = [
        *_ratio_table(result, name),
        *_shrunken_table(result, name),
        *([*links, *errors] if say_accuracy(result) else [*errors, *links]),
    ]
    return Document(
        FAMILIES[result.family].title,
        [
            Section("", [Facts(describe_release(result), "The release in short", paired=True)]),
            Section("", [coefficient_table(result, name)]),
            Section("", [Notes(say_notes(result)), *details, Notes(describe_statement(result))]),
        ],
    )


def markdown_document(result: Result) -> Document:
    """The same, what errors are made of beside the coefficients."""
    ratios = _ratio_table(result, Column(_NAME, right=False))
    return Document(
        FAMILIES[result.family].title,
        [
            Section(
                "",
                [
                    Lead(answer(result)),
                    whole_table(result),
                    *ratios,
                    Notes(say_notes(result)),
                    Facts(describe_release(result)[1:], "The release in short"),
                ],
            ),
            Section("Privacy", [Notes(describe_statement(result))]),
        ],
        subject=result.formula,
    )


def fit_name(result: Result) -> Column:
    """A column of the text that is wide enough for the names of coefficients."""
    return Column(max([_NAME, *map(len, result.coef)]), right=False)


# --- tables ------------------------------------------------------------------------------------------


def coefficient_table(result: Result, name: Column) -> Table:
    """Coefficients with their errors, tests and intervals."""
    if not result.has_intervals:
        rows = [[key, f"{value:.6g}", f"{result.std_err[key]:.4g}"] for key, value in result.coef.items()]
        return Table(["", "coef", "noise s.e."], rows, "Coefficients", [name, Column(12), Column(12)], ruled=True)
    rows = []
    for row in coefficient_rows(result):
        z, p_value = row.show_test()
        low, high = row.interval or (math.nan, math.nan)
        rows.append([row.name, f"{row.coef:.6g}", f"{row.std_err:.4g}", z, f"{low:.6g}", f"{high:.6g}", p_value])
    header = ["", "coef", "std err", "z", "[0.025", "0.975]", "p-value"]
    return Table(header, rows, "Coefficients", [name, *map(Column, (12, 12, 10, 14, 14, 10))], ruled=True)


def _shrunken_table(result: Result, name: Column) -> list[Part]:
    """The shrunken coefficients, where Algorithm 2's own are not usable."""
    if not result.shrunken:
        return []
    rows = [[key, f"{value:.6g}"] for key, value in result.shrunken.items()]
    return [Table(["Coefficients instead", "shrunken"], rows, "Shrunken coefficients", [name, Column(12)])]


def _ratio_table(result: Result, name: Column) -> list[Part]:
    """Odds ratios or rate ratios, with their intervals."""
    kind = FAMILIES[result.family].ratio
    if not kind:
        return []
    rows = [[key, *(f"{value:.5g}" for value in found)] for key, found in result.ratios().items()]
    header = ["", kind, *(["[0.025", "0.975]"] if result.has_intervals else [])]
    columns = [name, Column(14), *([Column(14), Column(14)] if result.has_intervals else [])]
    return [Table(header, [row[: len(header)] for row in rows], f"{kind.capitalize()}s", columns)] if rows else []


def _error_table(result: Result, name: Column) -> list[Part]:
    """What each standard error is made of."""
    if not result.error_parts:
        return []
    rows = [[key, *_part_cells(parts, 4)] for key, parts in result.error_parts.items()]
    columns = [name, *(Column(12) for _ in PARTS)]
    return [Table(["Standard error made of", *PARTS], rows, "What the standard errors are made of", columns)]


def _accuracy_table(result: Result, name: Column) -> list[Part]:
    """How coefficients would move if the accuracy were a little off."""
    if not result.tells_other_accuracies:
        return []
    steps = (-ACCURACY_STEP, ACCURACY_STEP)
    moved = [result.with_accuracy(step) for step in steps]
    intervals = [other.conf_int(method="wald") for other in moved]
    rows = [
        [key, *(f"{other.coef[key]:.5g} {_interval(ends[key])}" for other, ends in zip(moved, intervals, strict=True))]
        for key in result.coef
    ]
    header = ["If accuracy were off by", *(f"{step:.2f}" for step in steps)]
    return [Table(header, rows, "Coefficients under another accuracy", [name, Column(30), Column(36)])]


def _bracket_table(result: Result, name: Column) -> list[Part]:
    """What wrong links that resemble their rows would mean."""
    if not result.tells_other_accuracies:
        return []
    uncorrected, bracket = result.uncorrected().coef, result.bracket()
    rows = [[key, f"{uncorrected[key]:.5g}", _interval(bracket[key])] for key in result.coef]
    header = ["If wrong links resembled their rows", "coef", "95 % bracket, whatever they resemble"]
    width = max(name.width, len(header[0]))
    return [Table(header, rows, LINKS_THAT_RESEMBLE, [Column(width, right=False), Column(12), Column(40)])]


def whole_table(result: Result) -> Table:
    """Coefficients, intervals and what errors are made of in one table."""
    rows = [
        [
            row.name,
            f"{row.coef:.6g}",
            f"{row.std_err:.4g}",
            *row.show_test()[:1],
            "not paid for" if row.interval is None else _interval(row.interval),
            *row.show_test()[1:],
            *([f"{result.shrunken[row.name]:.6g}"] if result.shrunken else []),
            *_part_cells(row.parts, 3),
        ]
        for row in coefficient_rows(result)
    ]
    tested = ["z", "95 % interval", "p-value"] if result.has_intervals else ["95 % interval"]
    beside = ["shrunken"] if result.shrunken else []
    return Table(["", "coefficient", "std. error", *tested, *beside, *PARTS], rows, "Coefficients")


def _part_cells(parts: Mapping[str, float], digits: int) -> list[str]:
    return [f"{parts[part]:.{digits}g}" if part in parts else "" for part in PARTS]


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.5g}, {ends[1]:.5g}]" if all(map(math.isfinite, ends)) else "unbounded"


# --- facts and notes ---------------------------------------------------------------------------------


def describe_release(result: Result) -> list[tuple[str, str]]:
    """The release in short, the model first."""
    formula, privacy = result.formula, result.privacy
    return [
        ("Model", formula if len(formula) <= _FACT else formula[: _FACT - 1] + "…"),
        ("Rows", f"{result.count:,} (public)"),
        ("Links", _links(result.linkage)),
        ("Method", METHODS[result.method, result.calibration]),
        ("epsilon", round_up(privacy.epsilon, 10)),
        ("delta", round_up(privacy.delta, 10)),
        ("Protected", "any one person" if privacy.unit.rows == 1 else f"any one {privacy.unit.id}"),
        ("dplinked", result.versions.get("dplinked", "")),
    ]


def _links(linkage: DeclaredLinkage) -> str:
    if linkage.model == "Exact":
        return "joined on a unique key"
    if linkage.model != "ELE":
        return "a probability for each"
    accuracy = linkage.accuracy
    if accuracy is None:
        return f"at least {format_percent(linkage.accuracy_min or 0.0)} right"
    if isinstance(accuracy, dict) and linkage.overall is None:
        return f"{format_percent(min(accuracy.values()))} to {format_percent(max(accuracy.values()))} right"
    return f"{format_percent(linkage.mean_accuracy)} right"


def say_notes(result: Result) -> list[str]:
    """What has to be said beside the coefficients, a sentence for each of those that are not identified."""
    return [
        *([TEST] if result.has_intervals else []),
        *say_unusable(result),
        *say_descent(result),
        *(say_unbounded([name]) for name in unbounded_names(coefficient_rows(result))),
        *say_counted(result),
        *say_goodness(result),
        *say_accuracy(result),
        *say_linking_fields(result),
        *(say_route(result) or [NOISE_ALONE]),
        *(line for line in say_line(result) if line in STAGE_LINES.values() or result.family != "linear"),
        *(line for line in say_missing(result) if line == FILLED),
        *(say_hidden([name]) for name in hidden_names(result)),
    ]


def describe_statement(result: Result) -> list[str]:
    """The privacy statement, where the release was charged, and the head by which a rolled-back ledger is noticed."""
    charge, said = result.ledger, [*plain_promise(result), *exact_statement(result.privacy, "In exact terms: ")]
    if charge is None:
        alone = f"It was charged to no ledger. Whoever makes several releases about the same people adds them up by the squares of their mu, here {round_up(result.privacy.mu)}."
        return [*said, alone]
    found = budget_before(result)
    further = "" if found is None else f" What was left is enough for {say_further(found[2], found[1])}."
    return [
        *said,
        f"Charged to the budget of {charge.population} ({charge.epsilon:g}, {charge.delta:g}) as {charge.id}; after it, "
        f"epsilon = {round_down(charge.epsilon_left)} was left. Ledger head {charge.head}.{further}",
    ]
