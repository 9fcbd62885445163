"""What a plan says of itself, from public values and guesses: no data is touched."""

from __future__ import annotations

import numpy as np

from dplinked.plan.expectations import Expectations, PlannedError
from dplinked.plan.pictures import AXES, PANELS, draw_curves, has_curves, say_only, show_curves
from dplinked.privacy.calibration import round_up
from dplinked.report.charts import Series, interval_chart
from dplinked.report.document import Bullets, Chart, Column, Details, Document, Facts, Lead, Notes, Part, Section, Table
from dplinked.report.numbers import format_number, format_percent, in_powers
from dplinked.report.words import list_names
from dplinked.study.family import RATIOS

TITLE = "What a release would be worth"
_BARS = 12
_PARTS = ("sampling", "linkage", "privacy", "± 95 %")
_ROWS = 48  # of a table that is shown without being asked for
_ALWAYS = ("epsilon", "rows", "accuracy")  # what is said even if there is nothing to vary
_FIRST = "epsilon"  # what the picture at the top of a page is drawn over


def report_document(plan: Expectations) -> Document:
    """The whole planning report, as a page."""
    start = (
        "How wide the intervals of a private release are likely to be, before anything is spent. No data was touched: this page "
        "is made of declared values and guesses only."
    )
    facts = [("Model", plan.formula), ("Compared with", _point_text(plan)), ("Assumed", plan.assumptions)]
    sections = [
        Section("", [Lead(_answer(plan)), *plan.limits, *draw_curves(plan, _FIRST), AXES[_FIRST].meaning]),
        Section("What to expect", _expected(plan)),
        Section("The plan in short", [Facts(facts, "The plan in short"), start]),
        *([Section("What a wanted precision needs", _wanted(plan))] if plan.needed else []),
        Section("What would help most", _levers(plan)),
        *(
            Section(axis.title, show_curves(plan, quantity, drawn=quantity != _FIRST))
            for quantity, axis in AXES.items()
            if quantity in _ALWAYS or has_curves(plan, quantity)
        ),
    ]
    return Document(TITLE, sections, subject=plan.formula)


def notebook_document(plan: Expectations) -> Document:
    """The plan's tables, for a cell of a notebook."""
    parts: list[Part] = [
        Lead(_answer(plan)),
        _error_table(plan),
        *plan.limits,
        *(_wanted(plan) if plan.needed else []),
        *say_best_levers(plan),
        Details(AXES[_FIRST].title, show_curves(plan, _FIRST)),
        plan.assumptions,
    ]
    return Document(f"{TITLE} (no data touched)", [Section("", parts)], subject=plan.formula)


def lines_document(plan: Expectations) -> Document:
    """The plan as a table and sentences, for a terminal."""
    width = max([11, *(len(row.name) for row in plan.rows)])
    parts = _parts(plan)
    columns = [Column(8), Column(11, gap=1), Column(width, right=False, gap=2)]
    columns += [Column(max(10, len(part)), gap=1) for part in parts]
    header = ["epsilon", "rows", "coefficient", *parts]
    rows = []
    for row in plan.rows:
        cells = [f"{part:.4g}" for part in (row.sampling, row.linkage, row.privacy, row.half_width())]
        rows.append([f"{row.epsilon:g}", f"{row.count:,}", row.name, *cells, *_ratio(plan, row)])
    table = Table(header, rows, "Expected standard errors", columns)
    notes = Notes([*plan.limits, *_needed(plan), *_all_levers(plan), plan.assumptions])
    return Document(
        f"Expected standard errors at delta = {plan.delta:g} (no data touched)", [Section("", [table, notes])]
    )


def _answer(plan: Expectations) -> list[str]:
    """What to expect of each slope at the plan's own point, and what would help most."""
    found = plan.slopes_at_point
    said = []
    for row in found[:PANELS]:
        if plan.family in RATIOS and row.name != "Intercept":
            said.append(
                f"the {RATIOS[plan.family]} of {row.name} up to a factor of {format_number(row.ratio(), 10.0 * (row.ratio() - 1.0))}"
            )
        else:
            said.append(
                f"the coefficient of {row.name} to ± {format_number(row.half_width(), 10.0 * row.half_width())}"
            )
    more = [f"{len(found) - PANELS} others as the table says"] if len(found) > PANELS else []
    return [
        f"With {_point_text(plan)}, a release is expected to tell {list_names([*said, *more])} (95 % intervals).",
        *say_best_levers(plan),
    ]


# --- expected errors ---------------------------------------------------------------------------------


def _expected(plan: Expectations) -> list[Part]:
    said = "Expected standard errors, by where they come from, and the half-width of a 95 % interval: an interval is the estimate give or take that much."
    if plan.family in RATIOS:
        said += f" That of its exponential, the {RATIOS[plan.family]}, is the estimate times and divided by the factor in the last column."
    return [said, _error_table(plan)]


def _parts(plan: Expectations) -> list[str]:
    """Headings of expected errors; those of ratios come last."""
    return [*_PARTS, f"{RATIOS[plan.family]} ×÷"] if plan.family in RATIOS else list(_PARTS)


def _ratio(plan: Expectations, row: PlannedError) -> list[str]:
    """The factor by which a ratio's interval reaches to either side, where coefficients have ratios; an intercept has none."""
    if plan.family not in RATIOS:
        return []
    return ["" if row.name == "Intercept" else format_number(row.ratio(), row.ratio() - 1.0)]


def _error_table(plan: Expectations) -> Part:
    header = ["name", "ε", "rows", *_parts(plan)]
    rows = []
    for name in _names(plan):
        own = [row for row in plan.rows if row.name == name]
        least = min(row.total for row in own)  # the same digits for all of them
        for row in own:
            parts = (row.sampling, row.linkage, row.privacy, row.half_width())
            cells = [format_number(part, least) for part in parts]
            rows.append([name, f"{row.epsilon:g}", f"{row.count:,}", *cells, *_ratio(plan, row)])
    table = Table(header, rows, label="Expected standard errors")
    return table if len(rows) <= _ROWS else Details(f"Expected errors of {len(_names(plan))} coefficients", [table])


def _names(plan: Expectations) -> list[str]:
    return list(dict.fromkeys(row.name for row in plan.rows))


def _wanted(plan: Expectations) -> list[Part]:
    return [f"With {plan.point.count:,} rows:", Bullets(_needed(plan))]


def _needed(plan: Expectations) -> list[str]:
    """Which budget each wanted half-width needs."""
    return [
        f"For ±{wanted:g} on {name}: "
        + (_out_of_reach(plan, name, wanted) if epsilon is None else f"epsilon = {round_up(epsilon, 3)}.")
        for name, wanted, epsilon in plan.needed
    ]


def _out_of_reach(plan: Expectations, name: str, wanted: float) -> str:
    floor = next(curve.floor[-1] for curve in plan.curves if (curve.quantity, curve.name) == ("epsilon", name))
    if floor > wanted:
        return "no budget reaches it: sampling and linkage error alone are larger."
    return "no budget up to 100, or up to what the calibration allows, reaches it."


def _point_text(plan: Expectations) -> str:
    point = plan.point
    links = "" if point.accuracy == 1.0 else f", {format_percent(point.accuracy)} of the links right"
    return f"ε = {point.epsilon:g}, δ = {in_powers(round_up(plan.delta, 10))}, {point.count:,} rows{links}"


# --- levers ------------------------------------------------------------------------------------------


def _levers(plan: Expectations) -> list[Part]:
    changes = list(dict.fromkeys(lever.change for lever in plan.levers))
    names = list(dict.fromkeys(lever.name for lever in plan.levers))
    if not names:
        return ["There is no slope that anything could help."]
    factor = {(lever.change, lever.name): lever.factor for lever in plan.levers}
    table = [[name, *(_change(factor[change, name]) for change in changes)] for name in names]
    drawn = names[:_BARS]

    def draw() -> str:
        series = []
        for change in changes:
            moved = np.array([100.0 * (factor[change, name] - 1.0) for name in drawn])
            series.append(Series(change, moved, np.minimum(moved, 0.0), np.maximum(moved, 0.0)))
        return interval_chart(
            drawn, series, title="What would help most", axis="change of the standard error, %", zero=True
        )

    parts: list[Part] = [
        f"By how much one change alone would move the standard error. Compared with {_point_text(plan)}.",
        *say_best_levers(plan),
        Chart(draw, say_only(drawn, names)),
        Table(["name", *changes], table, label="What would help most, in numbers"),
    ]
    if "bounds half as wide" not in changes and plan.family == "linear":
        parts.append(
            "What tighter bounds would do is told only where typical ranges are declared: without them, rows are taken to fill their bounds."
        )
    return parts


def say_best_levers(plan: Expectations) -> list[str]:
    """The best change for each slope, slopes with the same one together."""
    best: dict[str, list[tuple[str, float]]] = {}
    for name in dict.fromkeys(lever.name for lever in plan.levers):
        first = min((lever for lever in plan.levers if lever.name == name), key=lambda lever: lever.factor)
        best.setdefault(first.change, []).append((name, first.factor))
    said = []
    for change, found in best.items():
        low, high = sorted(round(100.0 * (1.0 - factor)) for factor in (end(f for _, f in found) for end in (min, max)))
        by = f"{low}" if low == high else f"{low} to {high}"
        names = list_names([name for name, _ in found])
        said.append(f"{change.capitalize()} would help {names} most: a standard error {by} % smaller.")
    return said


def _all_levers(plan: Expectations) -> list[str]:
    """All changes for each slope, the best first."""
    said = []
    for name in dict.fromkeys(lever.name for lever in plan.levers):
        ordered = sorted((lever for lever in plan.levers if lever.name == name), key=lambda lever: lever.factor)
        shown = ", ".join(f"{lever.change} {_change(lever.factor)}" for lever in ordered)
        said.append(f"What helps {name} most: {shown}.")
    return said


def _change(factor: float) -> str:
    return f"{100.0 * (factor - 1.0):+.0f} %"
