"""How charts are drawn, as SVG to put into a page: text stays text, ink takes the page's colour, and the same figures give the same bytes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dplinked.report.words import clean, is_wide, joins_others, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# After Okabe and Ito, so that colour-blind people tell them apart; 3.4:1 or more against the page in light and in dark.
PALETTE = ("#1a7fc1", "#d55e00", "#009e73", "#c56f9f")
INK = "#010203"  # stands for the page's own text colour
WIDTH = 5.2  # inches; as wide as a phone can show with letters of readable size
WIDE = 9.6  # inches; as wide as a page is
_FONT = 11.0
SIDE = 0.14  # inches between what is drawn and the edge
_LABEL = 12.0  # ems of a name that fit beside a chart
HEIGHT = {"head": 0.42, "foot": 0.62, "bar": 0.27, "panel": 1.25, "legend": 0.23}
_SVG = "http://www.w3.org/2000/svg"


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


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """A figure so many inches high, as wide as all of them unless another width is given."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def new_axes(figure: Figure, *, left: float, top: float, height: float) -> Axes:
    """Axes placed in inches from the figure's left and upper edges, as wide as there is room."""
    wide, whole = figure.get_figwidth(), figure.get_figheight()
    width = wide - left - 0.3
    return figure.add_axes((left / wide, 1.0 - (top + height) / whole, width / wide, height / whole))


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
        0.0 if joins_others(c) else 1.3 if is_wide(c) else 0.36 if c in "iljtfrI.,:;'|()[] " else 1.0 if c in "mwMW@%—…�"
        else 0.74 if c.isupper() else 0.58
        for c in text
    )  # fmt: skip


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first one on top."""
    axes.set_yticks(range(len(names)), [short_label(name) for name in names], parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_alpha(0.4)


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
        handles, plain, loc="upper left", bbox_to_anchor=(SIDE / figure.get_figwidth(), 1.0), frameon=False,
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
