"""What a check says of itself. FOR THE STEWARD, NOT FOR PUBLICATION."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dplinked.check.findings import FAULT, LOOK, LOOK_AGAIN, NOT_USABLE, NOTE, READY, WARNING
from dplinked.data.look import as_toml
from dplinked.report.document import Bullets, Code, Document, Lead, Part, Section, Table
from dplinked.report.numbers import format_number

if TYPE_CHECKING:
    from dplinked.check.study import Check

MEANING = {
    READY: "Ready: nothing was seen that would stop a release, or bend it much.",
    LOOK_AGAIN: "Look again: a release would run and spend its budget, and what follows may bend it.",
    NOT_USABLE: "Not usable: a release would be refused, or would spend its budget on something else than the columns are meant to hold.",
}
_SHOWN = 20  # levels of a column that a table lists


def describe_check(check: Check) -> Document:
    """A check as a document: the verdict, what to do, then what was seen in each column."""
    return Document(
        f"Check of the data: {check.verdict}", list(_sections(check)), subject=check.formula, warning=WARNING
    )


def _sections(check: Check) -> Iterator[Section]:
    texts = {grade: [one.told for one in check.findings if one.grade == grade] for grade in (FAULT, LOOK, NOTE)}
    parts: list[Part] = [Lead([MEANING[check.verdict]])]
    if check.advice:
        parts += ["In the study file:", Code("[data]\n" + as_toml(check.advice), "Lines for the study file")]
    yield Section("", parts)
    if texts[FAULT]:
        yield Section("What makes it unusable", [Bullets(texts[FAULT])])
    if texts[LOOK]:
        yield Section("What to look at again", [Bullets(texts[LOOK])])
    if check.numbers and check.count:
        yield Section("Numbers", [numbers_table(check, check.count)])
    if check.levels:
        yield Section("Levels", [levels_table(check)])
    if texts[NOTE]:
        yield Section("Also seen", [Bullets(texts[NOTE])])


def numbers_table(check: Check, count: int) -> Table:
    """Shares of the rows in each column of numbers."""
    rows = []
    for seen in check.numbers:
        cells = seen.cells
        shares = [
            f"{100.0 * number / count:.2f} %" for number in (seen.empty, seen.texts.rows, cells.below, cells.above)
        ]
        middle = "" if cells.middle is None else " to ".join(map(format_number, cells.middle))
        rows.append((seen.name, *shares, " to ".join(map(format_number, seen.bounds)), middle))
    header = ("column", "empty", "texts", "below", "above", "bounds", "middle 70 %")
    return Table(header, rows, "Columns of numbers: shares of cells that are empty, texts, and beyond the bounds")


def levels_table(check: Check) -> Table:
    """Rows of each level."""
    rows = []
    for seen in check.levels:
        rows += [(seen.name, level, f"{number:,}", "declared") for level, number in seen.declared.items()]
        for level, number in list(seen.undeclared.items())[:_SHOWN]:
            rows.append(
                (
                    seen.name,
                    "(empty)" if level is None else level,
                    f"{number:,}",
                    "" if level is None else "not declared",
                )
            )
    return Table(("column", "level", "rows", "in the study"), rows, "Columns of levels")
