"""Charts of coefficients, shares and curves; see :mod:`dplinked.report.drawing` for how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.report.drawing import (
    HEIGHT,
    INK,
    PALETTE,
    SIDE,
    WIDTH,
    as_written,
    draw_grid,
    draw_legend,
    drawing,
    label_room,
    name_rows,
    new_axes,
    new_figure,
    short_label,
    text_inches,
    to_svg,
)
from dplinked.report.numbers import format_number, format_p_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

_ALIKE = 8.0  # coefficients whose sizes are within this factor share an axis
_WHISKER = 1.959964
_PANEL = 1.05  # inches
_TICKS = 0.42
_CLOSE_RATIO = 4.0  # ends of an axis of ratios between which places are evenly spaced
_FAR_RATIO = 300.0  # logarithm beyond which a ratio is drawn no further


@dataclass(frozen=True)
class CoefficientRow:
    """One coefficient: its interval and its p-value are None where none were paid for, and `parts` is empty where they are not known."""

    name: str
    coef: float
    std_err: float
    interval: tuple[float, float] | None
    parts: dict[str, float]
    p_value: float | None = None

    @property
    def z(self) -> float:
        """The coefficient over its standard error."""
        return self.coef / self.std_err if self.std_err else math.inf

    def show_test(self) -> list[str]:
        """z and the p-value as texts."""
        return [] if self.p_value is None else [f"{self.z:.2f}", format_p_value(self.p_value)]

    @property
    def bounded(self) -> bool:
        """Whether there is an interval with two ends."""
        return self.interval is not None and all(map(math.isfinite, self.interval))

    def show(self, value: float) -> str:
        """A number in the coefficient's units, in as many digits as its error leaves meaningful."""
        return format_number(value, self.std_err)

    def show_interval(self) -> str:
        """The interval as text."""
        if self.interval is None:
            return "not paid for"
        if not any(map(math.isfinite, self.interval)):
            return "unbounded"
        return f"[{self.show(self.interval[0])}, {self.show(self.interval[1])}]"


@dataclass(frozen=True)
class Line:
    """One panel of a curve chart: half-widths over a quantity, the same without privacy noise, where the plan stands, and where it stood before something was moved."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    floor: Sequence[float]
    now: tuple[float, float]
    before: tuple[float, float] | None = None


def coefficient_chart(
    rows: Sequence[CoefficientRow],
    *,
    title: str,
    axis: str,
    unsure: Iterable[str] = (),
    ratios: bool = False,
    width: float = WIDTH,
) -> str:
    """One row per coefficient, with its interval; without one, what privacy noise alone may do, dashed. With `ratios`, the axis tells their exponentials.

    Coefficients of very different sizes get axes of their own. An open marker stands for one of those in `unsure`, and
    an arrow for an interval without an end.
    """
    open_markers, groups = set(unsure), _alike(rows)
    heights = [max(len(group), 1) * 1.2 * HEIGHT["bar"] for group in groups]
    left = label_room([row.name for row in rows])
    with drawing():
        figure = new_figure(SIDE + sum(heights) + _TICKS * len(groups) + 0.25, width)
        top = SIDE
        for k, (group, height) in enumerate(zip(groups, heights, strict=True)):
            axes = new_axes(figure, left=left, top=top, height=height)
            top += height + _TICKS
            axes.set_xlim(*_limits(group))
            for place, row in enumerate(group):
                _draw_interval(axes, place, row, row.name in open_markers)
            name_rows(axes, [row.name for row in group])
            axes.axvline(0.0, color=INK, alpha=0.6, linewidth=0.9)
            _few_ticks(axes, width - left - 0.3, ratios=ratios)
            draw_grid(axes, "x")
            if k + 1 == len(groups):
                axes.set_xlabel(axis, parse_math=False)
        return to_svg(figure, title)


def _reach(row: CoefficientRow) -> list[float]:
    """What of a coefficient has to be on the axis; where its interval has no end, as much as errors would reach."""
    ends = [] if row.interval is None else [end for end in row.interval if math.isfinite(end)]
    if len(ends) < 2:
        ends += [row.coef - _WHISKER * row.std_err, row.coef + _WHISKER * row.std_err]
    return [end for end in (*ends, row.coef) if math.isfinite(end)]


def _alike(rows: Sequence[CoefficientRow]) -> list[list[CoefficientRow]]:
    """Neighbouring coefficients of about the same size."""
    groups: list[list[CoefficientRow]] = []
    sizes: list[float] = []
    for row in rows:
        size = max(map(abs, _reach(row)), default=0.0)
        together = [*sizes, size]
        if groups and max(together) <= _ALIKE * min(together):
            groups[-1].append(row)
            sizes.append(size)
        else:
            groups.append([row])
            sizes = [size]
    return groups


def _limits(group: Sequence[CoefficientRow]) -> tuple[float, float]:
    shown = [0.0, *(end for row in group for end in _reach(row))]
    low, high = min(shown), max(shown)
    room = 0.06 * (high - low) or 0.05
    return low - room, high + room


def _draw_interval(axes: Axes, place: int, row: CoefficientRow, hollow: bool) -> None:
    edges, colour = axes.get_xlim(), PALETTE[0]
    low, high = row.interval or (row.coef - _WHISKER * row.std_err, row.coef + _WHISKER * row.std_err)
    inside = 0.012 * (edges[1] - edges[0])  # where the arrows' tips stay clear of names
    ends = max(low, edges[0] + inside), min(high, edges[1] - inside)
    axes.hlines(place, *ends, color=colour, linewidth=2.0, linestyle="-" if row.interval else (0, (3, 2)))
    for whole, end, marker in zip((low, high), ends, ("<", ">"), strict=True):
        if not math.isfinite(whole):
            axes.plot([end], [place], marker, color=colour, markersize=6.0, clip_on=False)
    face = "none" if hollow else colour
    axes.plot(
        [row.coef], [place], "o", color=colour, markersize=6.0, clip_on=False, markerfacecolor=face, markeredgewidth=1.6
    )


def share_chart(names: Sequence[str], parts: Mapping[str, Sequence[float]], *, title: str, axis: str) -> str:
    """One bar per name, split into parts that add up to one."""
    height = HEIGHT["bar"] * max(len(names), 1)
    with drawing():
        figure = new_figure(HEIGHT["head"] + height + HEIGHT["foot"])
        axes = new_axes(figure, left=label_room(names), top=HEIGHT["head"], height=height)
        start, handles = np.zeros(len(names)), []
        for colour, values in zip(PALETTE, parts.values(), strict=False):
            share = 100.0 * np.asarray(values, np.float64)
            drawn = axes.barh(np.arange(len(names)), share, left=start, height=0.66, color=colour)
            handles.append(drawn)
            start = start + share
        axes.set_xlim(0.0, 100.0)
        name_rows(axes, names)
        axes.set_xticks(range(0, 101, 25), [f"{value} %" for value in range(0, 101, 25)])
        axes.set_xlabel(axis, parse_math=False)
        draw_grid(axes, "x")
        draw_legend(figure, handles, list(parts))
        return to_svg(figure, title)


def curve_chart(
    lines: Sequence[Line], *, title: str, axis: str, log: bool, labels: Sequence[str], width: float = WIDTH
) -> str:
    """One panel per coefficient over the same quantity; half-widths on a logarithmic scale."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    step = _PANEL + HEIGHT["head"]
    with drawing():
        figure = new_figure(HEIGHT["head"] + step * len(lines) + HEIGHT["foot"], width)
        handles: list[Any] = []
        for k, line in enumerate(lines):
            axes = new_axes(figure, left=0.85, top=HEIGHT["head"] + k * step + 0.3, height=_PANEL)
            axes.set_yscale("log")
            if log:
                axes.set_xscale("log")
            handles = axes.plot(line.x, line.y, color=PALETTE[0], linewidth=2.0)
            handles += axes.plot(line.x, line.floor, color=PALETTE[1], linewidth=1.8, linestyle=(0, (4, 2)))
            axes.plot(*[[value] for value in line.now], "o", color=PALETTE[0], markersize=6.5)
            stood = [] if line.before is None else [line.before]
            for place, value in stood:
                handles += axes.plot(
                    [place],
                    [value],
                    "D",
                    color=PALETTE[2],
                    markersize=8.0,
                    markerfacecolor="none",
                    markeredgewidth=2.0,
                    clip_on=False,
                )
            low, high = _log_limits([*line.y, *line.floor, *(value for _, value in stood)])
            axes.set_ylim(low, high)
            reach = [*line.x, *(place for place, _ in stood)]
            axes.set_xlim(min(reach), max(reach))
            ticks: dict[Any, list[float]] = {axes.yaxis: round_ticks(low, high, 4)}
            if log:
                ticks[axes.xaxis] = round_ticks(min(reach), max(reach), 5)
            for one, places in ticks.items():
                one.set_major_locator(FixedLocator(places))
                one.set_minor_locator(NullLocator())
                one.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
            as_written(axes.set_title(short_label(line.name), loc="left"))
            draw_grid(axes, "both")
            if k + 1 == len(lines):
                axes.set_xlabel(axis, parse_math=False)
            else:
                axes.tick_params(labelbottom=False)
        draw_legend(figure, handles, labels)
        return to_svg(figure, title)


def _log_limits(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis: at least a factor of four apart, so that a flat line looks flat."""
    known = [value for value in values if math.isfinite(value) and value > 0.0] or [1.0]
    low, high = 0.85 * min(known), 1.18 * max(known)
    room = max(1.0, math.sqrt(4.0 * low / high))
    return low / room, high * room


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers on a logarithmic axis, at most so many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for units, skip in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 5)):
        found = [float(f"{unit}e{power}") for power in range(first, last + 1) if power % skip == 0 for unit in units]
        found = [value for value in found if low * (1.0 - 1e-9) <= value <= high * (1.0 + 1e-9)]
        if len(found) <= most:
            break
    return found


def _few_ticks(axes: Axes, inches: float, *, ratios: bool = False) -> None:
    """As many round ticks, up to five, as have room for their numbers; where places are logarithms of ratios, at round ratios."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    low, high = axes.get_xlim()
    places: list[float] = []
    for most in (4, 3, 2, 1):
        places = _round_ratios(low, high, most) if ratios else _round_places(low, high, most)
        if sum(text_inches(_tick(place)) + 0.1 for place in places) <= inches:
            break
    labels = {math.log(place) if ratios else place: _tick(place) for place in places}
    axes.xaxis.set_major_locator(FixedLocator(list(labels)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: labels.get(value, "")))


def _round_places(low: float, high: float, most: int) -> list[float]:
    """Evenly spaced round numbers between two ends."""
    from matplotlib.ticker import MaxNLocator

    return [float(f"{place:.10g}") for place in MaxNLocator(most).tick_values(low, high) if low <= place <= high]


def _round_ratios(low: float, high: float, most: int) -> list[float]:
    """Round ratios between two ends, whose logarithms are given: evenly spaced where the ends are close, else by powers of ten; and 1, where zero is between them."""
    ends = (math.exp(min(max(end, -_FAR_RATIO), _FAR_RATIO)) for end in (low, high))
    first, last = ends
    found = _round_places(first, last, most) if last < _CLOSE_RATIO * first else round_ticks(first, last, most)
    return sorted({*(place for place in found if place > 0.0), *([1.0] if first <= 1.0 <= last else [])})


def _tick(value: float) -> str:
    """A round number beside an axis."""
    return f"{value:,.10g}" if value == 0.0 or 1e-5 <= abs(value) < 1e6 else f"{value:.3g}"
