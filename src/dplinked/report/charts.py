"""Charts of links, and of any figures with intervals; see :mod:`dplinked.report.drawing` for how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.report.drawing import (
    HEIGHT,
    INK,
    PALETTE,
    SIDE,
    as_written,
    draw_grid,
    draw_legend,
    drawing,
    label_room,
    legend_lines,
    name_rows,
    new_axes,
    new_figure,
    to_svg,
)

Floats = NDArray[np.float64]

_MARKERS = ("o", "s", "^", "D")
_MOST_BINS = 24
_MOST_TICKS = 9


@dataclass(frozen=True)
class Series:
    """One method's values for the rows of a chart.

    Attributes
    ----------
    label
        Its name in the legend.
    value, low, high
        Per row; NaN where there is none.
    """

    label: str
    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Bins:
    """Where scores are counted.

    Attributes
    ----------
    edges
        One more than bins.
    labels
        Of each bin: a value if scores take few, else a range.
    single
        Whether bins hold one value each, their middle.
    """

    edges: Floats
    labels: tuple[str, ...]
    single: bool


# --- charts ------------------------------------------------------------------------------------------


def score_histogram(
    scores: Floats,
    linked_last: NDArray[np.bool_],
    *,
    title: str = "Distribution of link scores",
    names: tuple[str, str] = ("linked within blocks", "linked last"),
    axis: str = "score",
) -> str:
    """Scores of the links made first above those of the links made last, each on a scale of its own; NaN are left out."""
    known = np.isfinite(scores)
    bins = make_bins(scores[known])
    parts = [(name, scores[known & chosen]) for name, chosen in zip(names, (~linked_last, linked_last), strict=True)]
    drawn = [(name, part, colour) for (name, part), colour in zip(parts, PALETTE, strict=False) if part.size]
    with drawing():
        height = max(len(drawn), 1) * (HEIGHT["panel"] + HEIGHT["head"]) + HEIGHT["foot"]
        figure = new_figure(height)
        for k, (name, part, colour) in enumerate(drawn):
            top = k * (HEIGHT["panel"] + HEIGHT["head"]) + HEIGHT["head"]
            panel = new_axes(figure, left=0.75, top=top, height=HEIGHT["panel"])
            counts, width = np.histogram(part, bins.edges)[0], np.diff(bins.edges)
            middle = bins.edges[:-1] + width / 2
            panel.bar(middle, counts, 0.9 * width, color=colour)
            if bins.single and middle.size <= _MOST_TICKS:
                panel.set_xticks(middle, bins.labels)
            as_written(panel.set_title(f"{name} ({part.size:,})", loc="left"))
            panel.set_xlim(bins.edges[0], bins.edges[-1])
            _count_axis(panel.yaxis, most=3)
            draw_grid(panel, "y")
            if k + 1 == len(drawn):
                panel.set_xlabel(axis, parse_math=False)
            else:
                panel.tick_params(labelbottom=False)
        return to_svg(figure, title)


def accuracy_chart(
    names: Sequence[str], estimates: Sequence[Series], *, title: str = "Accuracy per group, with 95 % intervals"
) -> str:
    """Accuracy of each group by each method."""
    axis = "accuracy (share of links that are right)"
    return interval_chart(names, estimates, title=title, axis=axis, limits=(0.0, 1.0))


def interval_chart(
    names: Sequence[str],
    series: Sequence[Series],
    *,
    title: str,
    axis: str,
    limits: tuple[float, float] = (-math.inf, math.inf),
    zero: bool = False,
) -> str:
    """One row per name, one marker with its interval per series.

    Parameters
    ----------
    limits
        Values that cannot be exceeded, so that the axis need not.
    zero
        Whether to draw a line at zero.
    """
    step = HEIGHT["bar"] * max(1.0, 0.45 * len(series) + 0.2)
    offsets = (np.arange(len(series)) - (len(series) - 1) / 2) * (0.72 / max(len(series), 2))
    head = HEIGHT["head"] + HEIGHT["legend"] * (legend_lines([one.label for one in series]) - 1)
    with drawing():
        figure = new_figure(head + step * max(len(names), 1) + HEIGHT["foot"])
        axes = new_axes(figure, left=label_room(names), top=head, height=step * max(len(names), 1))
        place = np.arange(len(names))
        handles = []
        for k, (one, shift) in enumerate(zip(series, offsets, strict=True)):
            colour, marker = PALETTE[k % len(PALETTE)], _MARKERS[k % len(_MARKERS)]
            axes.hlines(place + shift, one.low, one.high, color=colour, linewidth=1.8)
            handles += axes.plot(one.value, place + shift, marker, color=colour, markersize=5.5, clip_on=False)
        axes.set_xlim(*_span(series, limits, zero))
        name_rows(axes, names)
        for edge in place[1:] - 0.5:
            axes.axhline(edge, color=INK, alpha=0.15, linewidth=0.6)
        if zero:
            axes.axvline(0.0, color=INK, alpha=0.6, linewidth=0.9)
        axes.set_xlabel(axis, parse_math=False)
        draw_grid(axes, "x")
        draw_legend(figure, handles, [one.label for one in series])
        return to_svg(figure, title)


def waterfall(names: Sequence[str], steps: Floats, *, title: str) -> str:
    """One bar per name, from the sum of those above it to the sum with it, and the whole sum at the end."""
    ends = np.cumsum(steps)
    starts, total = ends - steps, float(ends[-1]) if ends.size else 0.0
    labels, step = [*names, "score"], HEIGHT["bar"]
    with drawing():
        figure = new_figure(HEIGHT["head"] + step * len(labels) + HEIGHT["foot"])
        axes = new_axes(figure, left=label_room(labels), top=HEIGHT["head"], height=step * len(labels))
        colours = [PALETTE[0] if value >= 0.0 else PALETTE[1] for value in steps]
        axes.barh(np.arange(len(names)), steps, left=starts, height=0.72, color=colours)
        axes.barh([len(names)], [total], height=0.72, color=INK)
        axes.axvline(0.0, color=INK, alpha=0.6, linewidth=0.9)
        name_rows(axes, labels)
        as_written(axes.set_title(title, loc="left"))
        axes.set_xlabel("what each adds to the score", parse_math=False)
        draw_grid(axes, "x")
        return to_svg(figure, title)


def links_per_block(names: Sequence[str], rows: Sequence[int], *, title: str = "Rows per group") -> str:
    """One bar per group, its number at the end."""
    counts = np.asarray(rows, dtype=np.int64)
    step = HEIGHT["bar"]
    with drawing():
        height = step * max(len(names), 1)
        figure = new_figure(SIDE + height + HEIGHT["foot"])
        axes = new_axes(figure, left=label_room(names), top=SIDE, height=height)
        axes.barh(np.arange(len(names)), counts, height=0.72, color=PALETTE[0])
        largest = int(counts.max(initial=1))
        axes.set_xlim(0, 1.18 * largest)
        for k, count in enumerate(counts.tolist()):
            axes.text(count + 0.012 * largest, k, f"{count:,}", va="center_baseline", ha="left")
        name_rows(axes, names)
        _count_axis(axes.xaxis, most=5)
        axes.set_xlabel("rows", parse_math=False)
        draw_grid(axes, "x")
        return to_svg(figure, title)


# --- scores, as text reports need them too -----------------------------------------------------------


def make_bins(scores: Floats) -> Bins:
    """At most two dozen bins: one per value where scores take few evenly spaced ones, else round numbers."""
    values = np.unique(np.round(scores[np.isfinite(scores)], 6))
    if values.size == 0:
        return Bins(np.array([0.0, 1.0]), ("none",), False)
    step = float(np.diff(values).min()) if values.size > 1 else 1.0
    places = (values - values[0]) / step
    if places[-1] < _MOST_BINS and np.allclose(places, np.rint(places), atol=1e-3):
        centres = values[0] + step * np.arange(round(float(places[-1])) + 1)
        edges = np.append(centres - step / 2, centres[-1] + step / 2)
        return Bins(edges, tuple(f"{centre:.4g}" for centre in centres), True)
    width = _round_up(float(values[-1] - values[0]) / (_MOST_BINS - 4))
    first, last = math.floor(float(values[0]) / width), math.floor(float(values[-1]) / width) + 1
    ends = [width * k for k in range(first, last + 1)]
    return Bins(np.array(ends), tuple(f"{low:.4g} to {high:.4g}" for low, high in pairwise(ends)), False)


def _round_up(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * unit for unit in (1.0, 2.0, 2.5, 5.0, 10.0) if power * unit >= width * (1.0 - 1e-9))


# --- axes -------------------------------------------------------------------------------------------


def _count_axis(axis: Any, *, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _span(series: Sequence[Series], limits: tuple[float, float], zero: bool) -> tuple[float, float]:
    """Ends of the axis: what is drawn and a little more, within the limits."""
    parts = [part for one in series for part in (one.value, one.low, one.high)]
    drawn = np.concatenate([*(np.asarray(part, dtype=np.float64) for part in parts), [0.0] if zero else []])
    drawn = drawn[np.isfinite(drawn)]
    if drawn.size == 0:
        return (0.0, 1.0)
    low, high = float(drawn.min()), float(drawn.max())
    room = 0.06 * (high - low) or 0.05
    low, high = max(low - room, limits[0]), min(high + room, limits[1])
    return (low, high) if high > low else (low - 0.05, high)
