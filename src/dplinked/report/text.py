"""Releases as text and Markdown."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from dplinked.privacy.calibration import round_down, round_up

if TYPE_CHECKING:
    from dplinked.linkage.declared import DeclaredLinkage
    from dplinked.release.release import Release

WIDTH = 96
_ACCURACY_STEP = 0.02


def render_text(release: Release) -> str:
    """A table in the manner of statsmodels, what the errors are made of, then the privacy statement."""
    head = _facts(release)
    half = (len(head) + 1) // 2
    lines = ["Private linear regression on linked data".center(WIDTH).rstrip(), "=" * WIDTH]
    for left, right in zip(head[:half], [*head[half:], ("", "")], strict=False):
        pair = [f"{label + ':' if label else '':<16}{value:>28}" for label, value in (left, right)]
        lines.append(f"{pair[0]}    {pair[1]}".rstrip())
    width = max(24, *(len(name) for name in release.coef)) if release.coef else 24
    lines += ["=" * WIDTH, *_coefficient_lines(release, width), "=" * WIDTH]
    for paragraph in _notes(release):
        lines += textwrap.wrap(paragraph, WIDTH)
    if release.error_parts:
        lines += [
            "",
            f"{'Standard error made of':<{width}}"
            + "".join(f"{part:>12}" for part in ("sampling", "linkage", "privacy")),
        ]
        for name, parts in release.error_parts.items():
            lines.append(
                f"{name:<{width}}" + "".join(_cell(parts.get(part)) for part in ("sampling", "linkage", "privacy"))
            )
    lines += _accuracy_lines(release, width)
    lines += ["", *(line for paragraph in _statement(release) for line in textwrap.wrap(paragraph, WIDTH))]
    return "\n".join(lines)


def render_markdown(release: Release) -> str:
    """The same as a Markdown document."""
    lines = ["# Private linear regression on linked data", "", f"`{release.formula}`", ""]
    lines += [f"- {label}: {value}" for label, value in _facts(release)[1:]]
    lines += [
        "",
        "| | coefficient | std. error | 95 % interval | sampling | linkage | privacy |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    intervals = release.conf_int() if release.has_intervals else {}
    for name, value in release.coef.items():
        shown = _interval(intervals[name]) if name in intervals else "not paid for"
        parts = release.error_parts.get(name, {})
        made = " | ".join(f"{parts[part]:.3g}" if part in parts else "" for part in ("sampling", "linkage", "privacy"))
        lines.append(f"| {_escape(name)} | {value:.6g} | {release.std_err[name]:.4g} | {shown} | {made} |")
    lines += ["", *(f"{note}\n" for note in _notes(release))]
    lines += ["## Privacy", "", *(f"{paragraph}\n" for paragraph in _statement(release))]
    return "\n".join(lines)


def _coefficient_lines(release: Release, width: int) -> list[str]:
    if not release.has_intervals:
        lines = [f"{'':<{width}}{'coef':>12}{'noise s.e.':>12}", "-" * WIDTH]
        return lines + [
            f"{name:<{width}}{value:>12.6g}{release.std_err[name]:>12.4g}" for name, value in release.coef.items()
        ]
    intervals = release.conf_int()
    lines = [f"{'':<{width}}{'coef':>12}{'std err':>12}{'z':>9}{'P>|z|':>9}{'[0.025':>14}{'0.975]':>14}", "-" * WIDTH]
    for name, value in release.coef.items():
        zero = release.test(f"{name} = 0")
        z, p = math.copysign(math.sqrt(zero.statistic), value), zero.p_value
        low, high = intervals[name]
        lines.append(
            f"{name:<{width}}{value:>12.6g}{release.std_err[name]:>12.4g}{z:>9.2f}{p:>9.3f}{low:>14.6g}{high:>14.6g}"
        )
    return lines


def _notes(release: Release) -> list[str]:
    notes, variance = [], release.released.variance
    if variance is not None:
        unbounded = [name for name, ends in release.conf_int().items() if not all(map(math.isfinite, ends))]
        notes += [f"This budget does not identify {name}: no value of it can be ruled out." for name in unbounded]
        if release.linkage.model == "ELE" and variance.accuracy is None:
            notes.append(
                "Intervals take the linkage accuracy as exactly known; declare checked=… to include its error."
            )
        route = {"block": "block totals", "row": "single rows", "scale": "the residuals' size alone"}
        notes.append(f"Sampling and linkage variance come from {route[variance.route]}, released with noise.")
    else:
        notes.append(
            "Noise s.e. is what privacy noise does to the coefficient; sampling and linkage error come on top."
        )
    for name, known in release.identified.items():
        if not known:
            notes.append(f"{name} is not identified: at this budget privacy noise exceeds its declared range.")
    return notes


def _accuracy_lines(release: Release, width: int) -> list[str]:
    """How coefficients would move if the accuracy were a little off."""
    if not release.tells_other_accuracies:
        return []
    lines = ["", f"{'If accuracy were off by':<{width}}" + f"{-_ACCURACY_STEP:>30.2f}{_ACCURACY_STEP:>36.2f}"]
    moved = [release.with_accuracy(step) for step in (-_ACCURACY_STEP, _ACCURACY_STEP)]
    intervals = [other.conf_int(method="wald") for other in moved]
    for name in release.coef:
        cells = [
            f"{other.coef[name]:.5g} {_interval(ends[name])}" for other, ends in zip(moved, intervals, strict=True)
        ]
        lines.append(f"{name:<{width}}{cells[0]:>30}{cells[1]:>36}")
    return lines


def _facts(release: Release) -> list[tuple[str, str]]:
    privacy = release.privacy
    return [
        ("Model", release.formula if len(release.formula) <= 28 else release.formula[:27] + "…"),
        ("Method", f"{release.method} ({release.calibration})"),
        ("Observations", f"{release.count:,} (public)"),
        ("Linkage", _linkage(release.linkage)),
        ("epsilon", round_up(privacy.epsilon, 10)),
        ("delta", round_up(privacy.delta, 10)),
        ("mu (GDP)", round_up(privacy.mu)),
        ("dplinked", release.versions.get("dplinked", "")),
    ]


def _linkage(linkage: DeclaredLinkage) -> str:
    if linkage.model != "ELE":
        return str(linkage.model)
    accuracy = linkage.accuracy
    if accuracy is None:
        return f"ELE, accuracy ≥ {linkage.accuracy_min:g}"
    if isinstance(accuracy, dict):
        return f"ELE, {min(accuracy.values()):g}-{max(accuracy.values()):g}"
    return f"ELE, accuracy {accuracy:g}"


def _statement(release: Release) -> list[str]:
    return [
        release.privacy.statement,
        "Taken as public: " + "; ".join(release.privacy.assumed_public) + ".",
        *_charge(release),
    ]


def _charge(release: Release) -> list[str]:
    """Where the release was charged, and the head by which a rolled-back ledger is noticed."""
    if release.ledger is None:
        return []
    charge = release.ledger
    return [
        f"Charged to the budget of {charge.population} ({charge.epsilon:g}, {charge.delta:g}) as {charge.id}; after it, "
        f"epsilon = {round_down(charge.epsilon_left)} was left. Ledger head {charge.head}."
    ]


def _cell(value: float | None) -> str:
    return f"{'':>12}" if value is None else f"{value:>12.4g}"


def _interval(ends: tuple[float, float]) -> str:
    return "unbounded" if not all(map(math.isfinite, ends)) else f"[{ends[0]:.5g}, {ends[1]:.5g}]"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
