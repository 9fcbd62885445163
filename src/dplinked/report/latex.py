"""Tables as LaTeX, with the package booktabs."""

from __future__ import annotations

import re

from dplinked.report.document import Table
from dplinked.report.numbers import plain_digits
from dplinked.report.words import clean

_PREAMBLE = (
    "% \\usepackage{booktabs} in the preamble; \\usepackage{textcomp} and \\usepackage[T1]{fontenc} for odd names"
)
_ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
    "[": "{[}", "]": "{]}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip


def write_table(table: Table, caption: str) -> str:
    """A table whose first column names its rows and whose other cells are numbers, or intervals of two of them.

    Parameters
    ----------
    caption
        As LaTeX.
    """
    lines = [
        _PREAMBLE,
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        "\\toprule",
        " & ".join(map(_header_cell, table.header)) + " \\\\",
        "\\midrule",
    ]
    for name, *cells in table.rows:
        lines.append(" & ".join([escape_latex(name), *map(_number_cell, cells)]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def in_mathematics(shown: str) -> str:
    """A number in mathematics: a comma between thousands takes no space, powers of ten are powers."""
    mantissa, _, power = shown.partition("×10")
    if not power:
        mantissa, _, power = shown.partition("e")
    text = mantissa.replace(",", "{,}").replace("∞", "\\infty")
    return f"{text} \\times 10^{{{int(plain_digits(power))}}}" if power else text


def escape_latex(text: str) -> str:
    """Text whose characters stand for themselves in LaTeX."""
    return "".join(_ESCAPES.get(c, c) for c in clean(text))


def _header_cell(name: str) -> str:
    """A column's name; blanks after an abbreviation and before a percent sign are no ends of sentences."""
    return escape_latex(name).replace(". ", ".\\ ").replace(" \\%", "\\,\\%")


def _number_cell(cell: str) -> str:
    """A number or an interval of two as mathematics; a cell without any stays as it is."""
    if not re.search(r"[\d∞]", cell):
        return escape_latex(cell)
    interval = re.fullmatch(r"\[(.*), (.*)\]", cell)
    return f"[{', '.join(map(_number_cell, interval.groups()))}]" if interval else f"${in_mathematics(cell)}$"
