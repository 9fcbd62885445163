"""Numbers for people, and a release's coefficients as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dplinked.privacy.calibration import round_up
from dplinked.report.words import clean

if TYPE_CHECKING:
    from dplinked.release.release import Release

PARTS = ("sampling", "linkage", "privacy")
_MOST_DECIMALS = 7
_LARGEST = 1e9
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
    "[": "{[}", "]": "{]}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One coefficient: its interval is None where none was paid for, and `parts` is empty where they are not known."""

    name: str
    coef: float
    std_err: float
    interval: tuple[float, float] | None
    parts: dict[str, float]

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


def coefficient_rows(release: Release) -> list[Row]:
    """All coefficients of a release, in its order."""
    intervals = release.conf_int() if release.has_intervals else {}
    return [
        Row(name, value, release.std_err[name], intervals.get(name), release.error_parts.get(name, {}))
        for name, value in release.coef.items()
    ]


def format_number(value: float, error: float | None = None) -> str:
    """A number with separators between thousands; three digits of its error, or four of its own, are shown."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "-"
    size = abs(value) if error is None or not (math.isfinite(error) and error > 0.0) else error
    digits = 3 if size == abs(value) and error is None else 2
    decimals = max(0, digits - math.floor(math.log10(size))) if size > 0.0 else 0
    if decimals > _MOST_DECIMALS or abs(value) >= _LARGEST:
        return _in_powers(value)
    return f"{value:,.{decimals}f}"


def _in_powers(value: float) -> str:
    if value == 0.0:
        return "0"
    mantissa, _, power = f"{value:.3e}".partition("e")
    return f"{mantissa}×10{str(int(power)).translate(_SUPERSCRIPTS)}"


def format_percent(share: float) -> str:
    """A share in percent, three digits of it."""
    return f"{100.0 * share:.3g} %"


def format_delta(delta: float) -> str:
    """A small probability, never less than it is, in powers of ten."""
    shown = round_up(delta, 10)
    mantissa, _, power = shown.partition("e")
    if not power:
        return shown
    factor = "" if mantissa == "1" else f"{mantissa}×"
    return f"{factor}10{str(int(power)).translate(_SUPERSCRIPTS)}"


def render_csv(release: Release) -> str:
    """Coefficients with all their digits: a name, the coefficient, its error, its interval, what the error is made of."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", "coef", "std_err", "low", "high", *PARTS])
    for row in coefficient_rows(release):
        low, high = ("", "") if row.interval is None else row.interval
        parts = [row.parts.get(part, "") for part in PARTS]
        writer.writerow([row.name, row.coef, row.std_err, low, high, *parts])
    return file.getvalue()


def render_latex(release: Release) -> str:
    """A table for LaTeX with the package booktabs; names are escaped."""
    rows, paid = coefficient_rows(release), release.has_intervals
    kept = [part for part in PARTS if any(part in row.parts for row in rows)] if paid else []
    header = ["", "Coefficient", "Std.\\ error" if paid else "Noise s.e.", *(["95\\,\\% interval"] if paid else [])]
    header += [part.capitalize() for part in kept]
    lines = [
        "% \\usepackage{booktabs} in the preamble; \\usepackage{textcomp} and \\usepackage[T1]{fontenc} for odd names",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_latex_caption(release)}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        "\\toprule",
        " & ".join(header) + " \\\\",
        "\\midrule",
    ]
    for row in rows:
        cells = [escape_latex(row.name), _latex_number(row.show(row.coef)), _latex_number(row.show(row.std_err))]
        if row.interval is not None:
            cells.append(f"[{', '.join(_latex_number(row.show(end)) for end in row.interval)}]")
        cells += [_latex_number(row.show(row.parts[part])) for part in kept]
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _latex_caption(release: Release) -> str:
    privacy = release.privacy
    budget = f"$({_in_latex(round_up(privacy.epsilon, 10))}, {_in_latex(round_up(privacy.delta, 10))})$"
    errors = "" if release.has_intervals else " Errors are those of privacy noise alone."
    return (
        f"\\texttt{{{escape_latex(release.formula)}}}: {release.count:,} linked rows, {budget}-differentially private, "
        f"by dplinked {escape_latex(release.versions.get('dplinked', ''))}.{errors}"
    )


def _latex_number(shown: str) -> str:
    return f"${_in_latex(shown)}$"


def _in_latex(shown: str) -> str:
    """A number in mathematics: a comma between thousands takes no space, powers of ten are powers."""
    mantissa, _, power = shown.partition("×10")
    if not power:
        mantissa, _, power = shown.partition("e")
    text = mantissa.replace(",", "{,}").replace("∞", "\\infty")
    plain = power.translate({code: chr(c) for c, code in _SUPERSCRIPTS.items()})
    return f"{text} \\times 10^{{{int(plain)}}}" if plain else text


def escape_latex(text: str) -> str:
    """Text whose characters stand for themselves in LaTeX."""
    return "".join(_LATEX.get(c, c) for c in clean(text))
