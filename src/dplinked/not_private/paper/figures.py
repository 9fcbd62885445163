"""The paper's figures, drawn from the tables. Each panel is written as PNG and SVG, and returned as SVG for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dplinked.not_private.paper.application import ApplicationResult
from dplinked.not_private.paper.claim import Setting, axis, series
from dplinked.not_private.paper.settings import METHODS
from dplinked.report.drawing import INK, drawing, to_svg

# Methods without linkage have dotted lines, those after linkage full lines, and the tight ones thick lines.
_STYLES: dict[str, dict[str, Any]] = {
    "OLS": {"color": "#7f7f7f", "ls": ":", "marker": "."},
    "RL-OLS": {"color": "#7f7f7f", "ls": "-", "marker": "o"},
    "NGD": {"color": "#1a7fc1", "ls": ":", "marker": "v"},
    "SSP": {"color": "#d55e00", "ls": ":", "marker": "^"},
    "RL-NGD": {"color": "#1a7fc1", "ls": "-", "marker": "v"},
    "RL-SSP": {"color": "#d55e00", "ls": "-", "marker": "^"},
    "RL-NGD tight": {"color": "#009e73", "ls": "-", "marker": "D", "lw": 2.4},
    "RL-SSP tight": {"color": "#c56f9f", "ls": "-", "marker": "s", "lw": 2.4},
}
_TITLES = {
    "setting1": ("Setting 1: σ = 1", "n"),
    "setting2": ("Setting 2: n = 10,000", "σ"),
    "setting3": ("Setting 3: σ = 1, n = 10,000", "linkage accuracy γ (M from 1 to 0)"),
}
_VARIANCES = ("RL-OLS", "RL-NGD", "RL-SSP", "RL-NGD tight", "RL-SSP tight")
_BOXES = ("RL-NGD", "RL-SSP", "RL-NGD T/3", "NGD T/3", "NGD", "SSP", "RL-NGD tight", "RL-SSP tight")
_RUNAWAY = 3.0  # an axis reaches this far beyond the largest error of the other methods, if RL-SSP's runs away


def draw_setting(setting: str, results: Setting, out: Path, tight: bool = False) -> list[str]:
    """Draw both panels of a setting, with the paper's six methods or the tight ones beside them; returns them as inline SVG."""
    title, label = _TITLES[setting]
    note = f"C = {results[0].radius:g}, {results[0].rows[0].repetitions:,} repetitions"
    return [
        _save(
            lambda axes: _draw_errors(axes, results, label, _shown(METHODS, tight)),
            f"{title}, average relative error ({note})",
            out / f"{setting}_error",
        ),
        _save(
            lambda axes: _draw_variances(axes, results, label, _shown(_VARIANCES, tight)),
            f"{title}, variance, theoretical (THR) and empirical (EMP) ({note})",
            out / f"{setting}_variance",
        ),
    ]


def draw_application(result: ApplicationResult, out: Path, tight: bool = False) -> list[str]:
    """Draw the box plots of the paper's last figure, or with the tight mechanisms beside them."""
    generated = [source for source in result.sources if "generated" in source]
    note = f" ({'; '.join(generated)})" if generated else ""
    return [
        _save(
            lambda axes: _draw_boxes(axes, result, _shown(_BOXES, tight)),
            f"Application: estimates of the slope{note}",
            out / "application",
        )
    ]


def _shown(methods: Sequence[str], tight: bool) -> list[str]:
    return [name for name in methods if tight or not name.endswith("tight")]


def draw_toy(points: Sequence[tuple[float, float, float]], out: Path) -> list[str]:
    """Draw the toy example: true and linked pairs with their least-squares lines."""
    return [
        _save(
            lambda axes: _draw_toy(axes, points), "Toy example: two wrong links turn the sign of the slope", out / "toy"
        )
    ]


def _save(draw: Callable[[Any], None], title: str, path: Path) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(7.2, 4.8), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title("\n".join(textwrap.wrap(title, 80)), fontsize=10, loc="left", parse_math=False)
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        svg = to_svg(figure, title)
        path.with_suffix(".svg").write_text(svg, encoding="utf-8")
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(str(path.with_suffix(".png")), metadata={"Software": None})
    return svg


def _draw_errors(axes: Any, results: Setting, label: str, methods: Sequence[str]) -> None:
    """Errors on linear axes, on which lines are lines and parabolas parabolas. Where RL-SSP's runs away, the legend says how far."""
    tallest = {method: float(series(results, method, "error").max()) for method in methods}
    top = min(max(tallest.values()), _RUNAWAY * max(height for method, height in tallest.items() if method != "RL-SSP"))
    for method in methods:
        name = f"{method} (up to {tallest[method]:.1f})" if tallest[method] > 1.05 * top else method
        axes.plot(axis(results), series(results, method, "error"), label=name, ms=4, **{"lw": 1.3, **_STYLES[method]})
    axes.set(xlabel=label, ylabel="average relative error", ylim=(0.0, 1.05 * top))
    axes.legend(fontsize=8, ncols=2, frameon=False)


def _draw_variances(axes: Any, results: Setting, label: str, methods: Sequence[str]) -> None:
    for method in methods:
        colour, marker = _STYLES[method]["color"], _STYLES[method]["marker"]
        for column, name, style in (
            ("theoretical_variance", "THR", {"ls": "-", "lw": 1.4}),
            ("empirical_variance", "EMP", {"ls": "--", "lw": 0.8, "marker": marker, "ms": 5}),
        ):
            axes.plot(axis(results), series(results, method, column), label=f"{method} {name}", color=colour, **style)
    axes.set(xlabel=label, ylabel="variance", yscale="log")
    axes.legend(fontsize=8, ncols=2, frameon=False)


def _draw_boxes(axes: Any, result: ApplicationResult, order: Sequence[str]) -> None:
    boxes = axes.boxplot(
        [result.draws[name] for name in order],
        tick_labels=order,
        patch_artist=True,
        widths=0.6,
        flierprops={"ms": 2, "alpha": 0.4},
        medianprops={"color": INK},
    )
    for name, box in zip(order, boxes["boxes"], strict=True):
        box.set(facecolor=_STYLES[name.removesuffix(" T/3")]["color"], alpha=0.55)
    axes.axhline(result.ols, color="#c00000", ls="--", lw=1.2, label=f"OLS on (X, y): {result.ols:.3f}")
    axes.axhline(
        result.clipped, color="#7f7f7f", ls=":", lw=1.2, label=f"corrected, z clipped to ±R: {result.clipped:.3f}"
    )
    axes.set_ylabel("slope")
    axes.set_ylim(
        *np.quantile(np.concatenate([result.draws[name] for name in order]), [0.003, 0.997]) + np.array([-0.1, 0.2])
    )
    axes.tick_params(axis="x", labelrotation=25, labelsize=8)
    axes.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)


def _draw_toy(axes: Any, points: Sequence[tuple[float, float, float]]) -> None:
    x, y, z = (np.array(column) for column in zip(*points, strict=True))
    ends = np.array([0.7, 4.3])
    for values, label, colour, marker in (
        (y, "true pairs (X, y)", "#1a7fc1", "o"),
        (z, "linked pairs (X, z)", "#d55e00", "s"),
    ):
        slope, intercept = np.polyfit(x, values, 1)
        axes.plot(
            x, values, marker, color=colour, ms=7, label=f"{label}: slope {slope:g}" if abs(slope) > 1e-9 else label
        )
        axes.plot(ends, intercept + slope * ends, color=colour, lw=1.2)
    axes.set(xlabel="x", ylabel="response")
    axes.legend(fontsize=9, frameon=False)
