"""Pictures of a plan: how wide intervals are to be expected over everything that a steward can choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dplinked.plan.expectations import Curve, Expectations
from dplinked.report import plots
from dplinked.report.document import Chart, Details, Part, Table
from dplinked.report.drawing import WIDE, WIDTH
from dplinked.report.numbers import format_number

PANELS = 4  # coefficients that are drawn; tables have all of them


@dataclass(frozen=True)
class Axis:
    """A quantity that half-widths are drawn over: its heading, what stands at the axis and, in short, above a column, what it means, and what is said where it cannot vary."""

    title: str
    label: str
    short: str
    meaning: str
    unvaried: str = ""


AXES = {
    "epsilon": Axis(
        "Against the budget",
        "ε (more is less private)", "ε",
        "The dashed line is what no budget can beat at this number of rows: sampling and linkage errors alone, the accuracy's own error among them. Where the two lines meet, more budget "
        "buys nothing.",
    ),
    "rows": Axis(
        "Against the number of rows",
        "rows", "rows",
        "Privacy noise falls with the number of rows, sampling and linkage errors only with its root: with enough rows, privacy costs next to nothing. The error of the accuracy itself does not fall with the rows at all.",
    ),
    "accuracy": Axis(
        "Against the quality of the links",
        "share of links that are right", "share",
        "Slopes are divided by about the accuracy, so all errors grow as it falls.",
        "No share of wrong links is declared for this linkage, so there is nothing to vary.",
    ),
    "checked": Axis(
        "Against the links that were checked",
        "links checked", "checked",
        "The more links are checked, the better their accuracy is known, until its error is a small part of all.",
        "How well the share of right links is known is not declared, so there is nothing to vary.",
    ),
    "review": Axis(
        "Against the links that were checked",
        "times as many links checked as were", "times",
        "The more links are checked, the better their accuracy is known, until its error is a small part of all.",
    ),
    "bounds": Axis(
        "Against the width of the bounds",
        "width of the bounds, the study's own being 1", "width",
        "Noise follows bounds, as far as they are wider than the rows are spread. Bounds that cut off real values bend the result, and no interval tells.",
        "What other bounds would do is told only of lines, and where typical ranges are declared: without them, rows are taken to fill their bounds.",
    ),
}  # fmt: skip


def has_curves(plan: Expectations, quantity: str) -> bool:
    """Whether a quantity can vary in a plan."""
    return any(curve.quantity == quantity for curve in plan.curves)


def show_curves(plan: Expectations, quantity: str, *, drawn: bool = True) -> list[Part]:
    """What a quantity does: in words, drawn unless that was done before, and as a table."""
    axis, curves = AXES[quantity], [curve for curve in plan.curves if curve.quantity == quantity]
    if not curves:
        return [axis.unvaried]
    shown = [*range(0, len(curves[0].values), 4 if len(curves[0].values) > 12 else 1)]
    header = ["name", *(_place(quantity, curves[0].values[k]) for k in shown)]
    rows = [
        [curve.name, *(format_number(curve.half_width[k], 10.0 * curve.half_width[k]) for k in shown)]
        for curve in curves
    ]
    table = Table(header, rows, label=f"Half-width, in numbers: {axis.title.lower()}")
    pictures = [axis.meaning, *draw_curves(plan, quantity)] if drawn else []
    return [*pictures, Details("As a table", [table])]


def draw_curves(plan: Expectations, quantity: str) -> list[Part]:
    """Half-widths over a quantity, drawn for some of the slopes."""
    axis, curves = AXES[quantity], [curve for curve in plan.curves if curve.quantity == quantity]
    if not curves:
        return []
    slopes = [curve for curve in curves if curve.name != "Intercept"] or curves
    wanted = [name for name, _, _ in plan.needed]
    chosen = sorted(slopes, key=lambda curve: curve.name not in wanted)[:PANELS]
    lines = [_line(curve) for curve in chosen]

    def draw(more: str = "", width: float = WIDTH) -> str:
        named = f"Half-width: {axis.title.lower()}{more}"
        return plots.curve_chart(lines, title=named, axis=axis.label, log=quantity != "accuracy", labels=_LABELS, width=width)  # fmt: skip

    fixed = {"epsilon": f"{plan.point.count:,} rows", "rows": f"ε = {plan.point.epsilon:g}"}.get(
        quantity, f"ε = {plan.point.epsilon:g} and {plan.point.count:,} rows"
    )
    caption = f"Half-width of 95 % intervals at {fixed}; the dot is the plan's own point. {say_only([c.name for c in chosen], [c.name for c in slopes])}"
    return [Chart(draw, caption.strip(), wide=lambda: draw(", drawn wide", WIDE))]


_LABELS = ("half-width", "without privacy noise")


def _line(curve: Curve, before: Curve | None = None) -> plots.Line:
    marked = None if before is None else (before.place, before.now)
    return plots.Line(curve.name, curve.values, curve.half_width, curve.floor, (curve.place, curve.now), marked)


def draw_slope(plan: Expectations, name: str, quantity: str, study: Expectations) -> str:
    """One coefficient's half-width over one quantity, the study as it is marked beside the plan's own point."""
    curve, before = find_curve(plan, name, quantity), find_curve(study, name, quantity)
    assert curve is not None
    axis = AXES[quantity]
    moved = before is not None and (before.place, before.now) != (curve.place, curve.now)
    title = f"Half-width of the 95 % interval of {name}, {axis.title.lower()}: {_in_words(quantity, curve)}"
    labels = (*_LABELS, "the study as it is") if moved else _LABELS
    line = _line(curve, before if moved else None)
    return plots.curve_chart([line], title=title, axis=axis.label, log=quantity != "accuracy", labels=labels)


def find_curve(plan: Expectations, name: str, quantity: str) -> Curve | None:
    """One coefficient's curve over a quantity; None if that cannot vary."""
    return next((curve for curve in plan.curves if (curve.name, curve.quantity) == (name, quantity)), None)


def list_places(curve: Curve, most: int = 7) -> list[tuple[str, str, str]]:
    """A curve as rows of a table, its own place marked: places, half-widths, and what they would be without privacy noise."""
    own = min(range(len(curve.values)), key=lambda k: abs(curve.values[k] - curve.place))
    step = max(1, len(curve.values) // (most - 1))
    chosen = sorted({*range(0, len(curve.values), step), own, len(curve.values) - 1})
    return [
        (
            _place(curve.quantity, curve.values[k]) + (" (now)" if k == own else ""),
            f"±{_width(curve.half_width[k])}",
            f"±{_width(curve.floor[k])}",
        )
        for k in chosen
    ]


def _in_words(quantity: str, curve: Curve) -> str:
    """A curve for those who cannot see it."""
    ends = [f"±{_width(curve.half_width[k])} at {_place(quantity, curve.values[k])}" for k in (0, -1)]
    return f"from {ends[0]} to {ends[1]}, and ±{_width(curve.now)} at {_place(quantity, curve.place)}"


def _width(value: float) -> str:
    return format_number(value, value)


def _place(quantity: str, value: float) -> str:
    return f"{value:,.0f}" if quantity in ("rows", "checked") else f"{value:.3g}"


def say_only(drawn: Sequence[str], names: Sequence[str]) -> str:
    """Says so where a chart shows some of the slopes only."""
    return f"{len(drawn)} of {len(names)} slopes are drawn; the table has all." if len(drawn) < len(names) else ""
