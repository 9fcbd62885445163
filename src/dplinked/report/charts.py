"""Charts as SVG to put into a page: text stays text, ink takes the page's colour, and the same figures give the same bytes."""

from __future__ import annotations

import io
import math
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from dplinked.report.page import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

# After Okabe and Ito, so that colour-blind people tell them apart; 3.4:1 or more against the page in light and in dark.
PALETTE = ("#1a7fc1", "#d55e00", "#009e73", "#c56f9f")
_MARKERS = ("o", "s", "^", "D")
INK = "#010203"  # stands for the page's own text colour
WIDTH = 5.2  # inches; as wide as a phone can show with letters of readable size
_FONT = 11.0
SIDE = 0.14  # inches between what is drawn and the edge
_LABEL = 12.0  # ems of a name that fit beside a chart
_MOST_BINS = 24
_MOST_TICKS = 9
HEIGHT = {"head": 0.42, "foot": 0.62, "bar": 0.27, "panel": 1.25, "legend": 0.23}
_SVG = "http://www.w3.org/2000/svg"


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


# --- scores and names, as text reports need them too -------------------------------------------------


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


def columns(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide characters, none for those that join others."""
    return sum(0 if _joins(c) else 2 if _is_wide(c) else 1 for c in text)


def shorten(name: str, width: float, measure: Callable[[str], float] = columns) -> str:
    """A name on one line, its middle left out where it is long: names often differ at their ends only."""
    shown = clean(name)
    if measure(shown) <= width:
        return shown
    room = width - measure("…")
    head = tail = shown
    while measure(head) > 0.6 * room:
        head = head[:-1]
    while measure(tail) > room - measure(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def _joins(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")


def _round_up(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * unit for unit in (1.0, 2.0, 2.5, 5.0, 10.0) if power * unit >= width * (1.0 - 1e-9))


# --- how they are drawn ------------------------------------------------------------------------------


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib's own defaults, whatever the user's are; a letter its font lacks is the browser's business."""
    import matplotlib.style

    ours = {
        "svg.fonttype": "none", "svg.hashsalt": "dplinked", "font.family": ["sans-serif"], "font.size": _FONT,
        "axes.titlesize": _FONT, "axes.labelsize": _FONT, "xtick.labelsize": _FONT, "ytick.labelsize": _FONT,
        "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK,
        "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
        "axes.unicode_minus": True, "path.simplify": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with matplotlib.style.context(["default", ours]):
            yield


def new_figure(height: float) -> Figure:
    """A figure as wide as all of them, so many inches high."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def new_axes(figure: Figure, *, left: float, top: float, height: float) -> Axes:
    """Axes placed in inches from the figure's left and upper edges, as wide as there is room."""
    whole = figure.get_figheight()
    width = WIDTH - left - 0.3
    return figure.add_axes((left / WIDTH, 1.0 - (top + height) / whole, width / WIDTH, height / whole))


def label_room(names: Sequence[str]) -> float:
    """Inches that the names take beside a chart. Browsers choose the font, so this has to be a guess on the wide side."""
    return SIDE + 0.1 + max((text_inches(short_label(name)) for name in names), default=0.0)


def text_inches(text: str) -> float:
    """About how many inches a text takes in a chart."""
    return _FONT / 72.0 * _ems(text)


def short_label(name: str) -> str:
    """A name as long as there is room for beside a chart."""
    return shorten(name, _LABEL, _ems)


def _ems(text: str) -> float:
    """About how wide a text is in the fonts that browsers take for sans-serif."""
    return sum(
        0.0 if _joins(c) else 1.3 if _is_wide(c) else 0.36 if c in "iljtfrI.,:;'|()[] " else 1.0 if c in "mwMW@%—…�"
        else 0.74 if c.isupper() else 0.58
        for c in text
    )  # fmt: skip


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first one on top."""
    axes.set_yticks(range(len(names)), [short_label(name) for name in names], parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_alpha(0.4)


def _count_axis(axis: Any, *, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def draw_grid(axes: Axes, axis: Any) -> None:
    """Faint lines at the ticks."""
    axes.grid(axis=axis, color=INK, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_legend(figure: Figure, handles: list[Any], labels: Sequence[str]) -> None:
    """Names of what is drawn, along the upper edge, in as many lines as they need."""
    if not handles:
        return
    # Matplotlib takes labels for hidden that begin with an underscore, so they are written afterwards.
    plain = [f"series {k}" for k in range(len(handles))]
    legend = figure.legend(
        handles, plain, loc="upper left", bbox_to_anchor=(SIDE / WIDTH, 1.0), frameon=False,
        ncols=math.ceil(len(handles) / legend_lines(labels)), borderaxespad=0.2, handletextpad=0.4, columnspacing=1.2,
    )  # fmt: skip
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(short_label(label))
        as_written(text)


def legend_lines(labels: Sequence[str]) -> int:
    """Lines that a legend takes: its columns are as wide as their widest name, its markers three ems and a half."""
    wide = [_ems(short_label(name)) + 3.7 for name in labels]
    room = (WIDTH - 2 * SIDE) * 72.0 / _FONT
    for lines in range(1, len(wide)):
        per_column = [wide[k : k + lines] for k in range(0, len(wide), lines)]
        if sum(map(max, per_column)) <= room:
            return lines
    return max(len(wide), 1)


def as_written(text: Any) -> None:
    """Show a dollar as a dollar."""
    text.set_parse_math(False)


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


# --- SVG ---------------------------------------------------------------------------------------------


def to_svg(figure: Figure, label: str) -> str:
    """A figure as an SVG element with a name for screen readers, and no id that another figure has."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(file.getvalue())
    own = "c" + sha256((label + file.getvalue()).encode()).hexdigest()[:10]
    pointed = {value for node in root.iter() for name in node.attrib for value in [_target(name, node.attrib[name])]}
    for node in root.iter():
        node.tag = node.tag.removeprefix(f"{{{_SVG}}}")
        node.attrib = dict(_attributes(node.attrib, own, pointed))
        if node.tag not in ("text", "tspan"):
            node.text = None
        node.tail = None
    for defs in root.findall("defs"):
        for style in defs.findall("style"):  # it would hold for the whole page
            defs.remove(style)
        if not len(defs):
            root.remove(defs)
    title = ElementTree.Element("title")
    title.text = clean(label)
    root.insert(0, title)
    root.attrib = {
        "xmlns": _SVG, "role": "img", "aria-label": clean(label), "viewBox": root.attrib["viewBox"],
        "width": root.attrib["width"], "height": root.attrib["height"], "font-family": "sans-serif",
        "fill": "currentColor", "stroke-linejoin": "round",
    }  # fmt: skip
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(given: dict[str, str], own: str, pointed: set[str]) -> Iterator[tuple[str, str]]:
    """Attributes in the page's ink, without fonts, and with ids only where something points to them."""
    for key, value in given.items():
        name = key.rsplit("}", 1)[-1]
        if name == "id":
            if value in pointed:
                yield name, f"{own}-{value}"
        elif name == "href":
            yield name, f"#{own}-{value[1:]}"
        elif name == "clip-path":
            yield name, f"url(#{own}-{value[5:-1]})"
        elif name == "d":
            yield name, " ".join(value.split())
        elif name == "style":
            parts = [part.strip() for part in value.replace(INK, "currentColor").split(";")]
            yield name, "; ".join(part for part in parts if not part.startswith("font-family"))
        else:
            yield name, value


def _target(name: str, value: str) -> str:
    """The id that an attribute points to, if any."""
    if name.endswith("href"):
        return value[1:]
    return value[5:-1] if name == "clip-path" else ""
