"""A plan as one HTML page, and as a fragment for notebooks: from public values and guesses, no data touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dplinked.privacy.calibration import round_up
from dplinked.report import page as html
from dplinked.report import plots
from dplinked.report.charts import Series, interval_chart
from dplinked.report.exports import format_delta, format_number, format_percent
from dplinked.report.words import list_names

if TYPE_CHECKING:
    from dplinked.plan.planning import Plan

TITLE = "What a release would be worth"
_PANELS = 4  # coefficients that are drawn; tables have all of them
_BARS = 12
_ROWS = 48  # of a table that is shown without being asked for
_AXES = {
    "epsilon": ("Against the budget", "ε (more is less private)"),
    "rows": ("Against the number of rows", "rows"),
    "accuracy": ("Against the quality of the links", "share of links that are right"),
}
_MEANING = {
    "epsilon": "The dashed line is what no budget can beat at this number of rows: sampling and linkage errors alone. Where the two lines meet, more budget "
    "buys nothing.",
    "rows": "Privacy noise falls with the number of rows, sampling and linkage errors only with its root: with enough rows, privacy costs next to nothing.",
    "accuracy": "Slopes are divided by about the accuracy, so all errors grow as it falls.",
}


def render_page(plan: Plan) -> str:
    """The whole planning report."""
    body = [
        html.paragraph(
            "How wide the intervals of a private release are likely to be, before anything is spent. No data was touched: this page "
            "is made of declared values and guesses only."
        ),
        html.table(
            (),
            [
                ("Model", plan.formula),
                ("Compared with", _point_text(plan)),
                ("Assumed", plan.assumptions),
            ],
            label="The plan in short",
        ),
        html.section("What to expect", *_expected(plan)),
        *([html.section("What a wanted precision needs", html.unordered_list(_needed(plan)))] if plan.needed else []),
        html.section("What would help most", *_levers(plan)),
    ]
    for quantity, (title, axis) in _AXES.items():
        body.append(html.section(title, *_curve(plan, quantity, title, axis)))
    return html.page(TITLE, "\n".join(body))


def render_fragment(plan: Plan) -> str:
    """The plan's tables, for a cell of a notebook."""
    title, axis = _AXES["epsilon"]
    body = [
        f"<p><strong>{TITLE}</strong> (no data touched)<br><code>{html.to_html(plan.formula)}</code></p>",
        _error_table(plan),
        *(html.paragraph(text) for text in (*_needed(plan), *_lever_text(plan))),
        html.details(title, *_curve(plan, "epsilon", title, axis)),
        html.paragraph(plan.assumptions),
    ]
    return html.notebook_cell(*body)


# --- expected errors ---------------------------------------------------------------------------------


def _expected(plan: Plan) -> list[str]:
    return [
        html.paragraph(
            "Expected standard errors, by where they come from, and the half-width of a 95 % interval: an interval is the estimate give or take that much."
        ),
        _error_table(plan),
    ]


def _error_table(plan: Plan) -> str:
    header = ["name", "ε", "rows", "sampling", "linkage", "privacy", "± 95 %"]
    rows = []
    for name in _names(plan):
        own = [row for row in plan.rows if row.name == name]
        least = min(row.total for row in own)  # the same digits for all of them
        for row in own:
            parts = (row.sampling, row.linkage, row.privacy, row.half_width())
            cells = [format_number(part, least) for part in parts]
            rows.append([name, f"{row.epsilon:g}", f"{row.count:,}", *cells])
    table = html.table(header, rows, label="Expected standard errors")
    return table if len(rows) <= _ROWS else html.details(f"Expected errors of {len(_names(plan))} coefficients", table)


def _names(plan: Plan) -> list[str]:
    return list(dict.fromkeys(row.name for row in plan.rows))


def _needed(plan: Plan) -> list[str]:
    said = []
    for name, wanted, epsilon in plan.needed:
        start = f"For {name} give or take {wanted:g}, with {plan.point.count:,} rows: "
        if epsilon is None:
            said.append(start + "no budget is enough. Sampling and linkage errors alone are larger.")
        else:
            said.append(start + f"ε = {round_up(epsilon, 3)}.")
    return said


def _point_text(plan: Plan) -> str:
    point = plan.point
    links = "" if point.accuracy == 1.0 else f", {format_percent(point.accuracy)} of the links right"
    return f"ε = {point.epsilon:g}, δ = {format_delta(plan.delta)}, {point.count:,} rows{links}"


# --- levers ------------------------------------------------------------------------------------------


def _levers(plan: Plan) -> list[str]:
    changes = list(dict.fromkeys(lever.change for lever in plan.levers))
    names = list(dict.fromkeys(lever.name for lever in plan.levers))
    if not names:
        return [html.paragraph("There is no slope that anything could help.")]
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

    parts = [
        html.paragraph(
            f"By how much one change alone would move the standard error. Compared with {_point_text(plan)}."
        ),
        *(html.paragraph(text) for text in _lever_text(plan)),
        html.chart(draw, _only(drawn, names)),
        html.table(["name", *changes], table, label="What would help most, in numbers"),
    ]
    if "bounds half as wide" not in changes:
        parts.append(
            html.paragraph(
                "What tighter bounds would do is told only where typical ranges are declared: without them, rows are taken to fill their bounds."
            )
        )
    return parts


def _lever_text(plan: Plan) -> list[str]:
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


def _change(factor: float) -> str:
    return f"{100.0 * (factor - 1.0):+.0f} %"


# --- curves ------------------------------------------------------------------------------------------


def _curve(plan: Plan, quantity: str, title: str, axis: str) -> list[str]:
    curves = [curve for curve in plan.curves if curve.quantity == quantity]
    if not curves:
        return [html.paragraph("No share of wrong links is declared for this linkage, so there is nothing to vary.")]
    slopes = [curve for curve in curves if curve.name != "Intercept"] or curves
    wanted = [name for name, _, _ in plan.needed]
    drawn = sorted(slopes, key=lambda curve: curve.name not in wanted)[:_PANELS]
    own = {"epsilon": plan.point.epsilon, "rows": float(plan.point.count), "accuracy": plan.point.accuracy}[quantity]
    lines = [plots.Line(curve.name, curve.values, curve.half_width, curve.floor, (own, curve.now)) for curve in drawn]

    def draw() -> str:
        labels = ("half-width", "without privacy noise")
        return plots.curve_chart(
            lines, title=f"Half-width: {title.lower()}", axis=axis, log=quantity != "accuracy", labels=labels
        )

    shown = [*range(0, len(curves[0].values), 4)]
    header = ["name", *(_place(quantity, curves[0].values[k]) for k in shown)]
    rows = [
        [curve.name, *(format_number(curve.half_width[k], 10.0 * curve.half_width[k]) for k in shown)]
        for curve in curves
    ]
    fixed = {
        "epsilon": f"{plan.point.count:,} rows",
        "rows": f"ε = {plan.point.epsilon:g}",
        "accuracy": f"ε = {plan.point.epsilon:g} and {plan.point.count:,} rows",
    }[quantity]
    caption = f"Half-width of 95 % intervals at {fixed}; the dot is the plan's own point. {_only([c.name for c in drawn], [c.name for c in slopes])}"
    return [
        html.paragraph(_MEANING[quantity]),
        html.chart(draw, caption.strip()),
        html.details("As a table", html.table(header, rows, label=f"Half-width, in numbers: {title.lower()}")),
    ]


def _place(quantity: str, value: float) -> str:
    return f"{value:,.0f}" if quantity == "rows" else f"{value:.3g}"


def _only(drawn: list[str], names: list[str]) -> str:
    """Says so where a chart shows some of the slopes only."""
    return f"{len(drawn)} of {len(names)} slopes are drawn; the table has all." if len(drawn) < len(names) else ""
