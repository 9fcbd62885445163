"""Releases as text and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dplinked.release import Release

WIDTH = 86


def render_text(release: Release) -> str:
    """A table in the manner of statsmodels, then the privacy statement."""
    head = _facts(release)
    half = (len(head) + 1) // 2
    lines = ["Private linear regression on linked data".center(WIDTH), "=" * WIDTH]
    for left, right in zip(head[:half], [*head[half:], ("", "")], strict=False):
        pair = [f"{label + ':' if label else '':<16}{value:>25}" for label, value in (left, right)]
        lines.append(f"{pair[0]}    {pair[1]}".rstrip())
    width = max(16, *(len(name) for name in release.coef)) if release.coef else 16
    lines += [
        "=" * WIDTH,
        f"{'':<{width}}{'coef':>14}{'noise s.e.':>14}{'noise [0.025':>16}{'0.975]':>12}",
        "-" * WIDTH,
    ]
    for name, value in release.coef.items():
        error = release.noise_std_err[name]
        row = f"{name:<{width}}{value:>14.6g}{error:>14.4g}{value - 1.96 * error:>16.5g}{value + 1.96 * error:>12.5g}"
        lines.append(row if release.identified[name] else f"{row}  *")
    lines.append("=" * WIDTH)
    if not all(release.identified.values()):
        lines.append("* not identified: at this budget privacy noise exceeds the coefficient's declared range.")
    lines += _wrap("Noise s.e. is what privacy noise does to the coefficient; sampling and linkage error come on top.")
    lines += ["", *(line for paragraph in _statement(release) for line in _wrap(paragraph))]
    return "\n".join(lines)


def render_markdown(release: Release) -> str:
    """The same as a Markdown document."""
    lines = ["# Private linear regression on linked data", "", f"`{release.formula}`", ""]
    lines += [f"- {label}: {value}" for label, value in _facts(release)[1:]]
    lines += ["", "| | coefficient | noise s.e. | |", "|---|---:|---:|---|"]
    for name, value in release.coef.items():
        note = "" if release.identified[name] else "not identified at this budget"
        lines.append(f"| {_escape(name)} | {value:.6g} | {release.noise_std_err[name]:.4g} | {note} |")
    lines += ["", "Noise s.e. is what privacy noise does to the coefficient; sampling and linkage error come on top."]
    lines += ["", "## Privacy", "", *(f"{paragraph}\n" for paragraph in _statement(release))]
    return "\n".join(lines)


def _facts(release: Release) -> list[tuple[str, str]]:
    privacy = release.privacy
    return [
        ("Model", release.formula if len(release.formula) <= 25 else release.formula[:24] + "…"),
        ("Method", f"{release.method} ({release.calibration})"),
        ("Observations", f"{release.count:,} (public)"),
        ("Linkage", _linkage(release.linkage)),
        ("epsilon", f"{privacy.epsilon:g}"),
        ("delta", f"{privacy.delta:g}"),
        ("mu (GDP)", f"{privacy.mu:.4f}"),
        ("dplinked", release.versions.get("dplinked", "")),
    ]


def _linkage(linkage: dict[str, Any]) -> str:
    if linkage["model"] != "ELE":
        return str(linkage["model"])
    accuracy = linkage["accuracy"]
    if isinstance(accuracy, dict):
        return f"ELE, {min(accuracy.values()):g}-{max(accuracy.values()):g}"
    return f"ELE, accuracy {accuracy:g}"


def _statement(release: Release) -> list[str]:
    return [
        release.privacy.statement,
        "Taken as public: " + "; ".join(release.privacy.assumed_public) + ".",
    ]


def _wrap(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
