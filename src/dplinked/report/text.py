"""Documents as text for a terminal. Downloads, and what pages show when asked for, are left out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dplinked.report.document import (
    Bullets,
    Chart,
    Code,
    Document,
    Facts,
    Heading,
    Lead,
    Notes,
    Part,
    Section,
    Steps,
    Table,
)
from dplinked.report.words import clean, columns, is_number, shorten

WIDTH = 96
_RULE, _THIN_RULE = "=" * WIDTH, "-" * WIDTH
_NAME = 32  # columns of a row's name where the table does not say how wide it is; a page has it whole
_PAIRED = (16, 28)  # columns of a label and its value where two facts share a line


def write_text(document: Document) -> str:
    """A document between rules: its title centred, sections under their titles, long lines wrapped."""
    lines = [clean(document.warning), ""] if document.warning else []
    lines += [document.title.center(WIDTH).rstrip(), _RULE]
    for k, section in enumerate(document.sections):
        if section.title:
            lines += ["", section.title, _THIN_RULE]
        elif k:
            lines.append(_RULE)
        lines += _section_lines(section)
    return "\n".join(lines)


def write_lines(document: Document) -> str:
    """A document as one block: a line for the title, then tables and sentences with nothing between them."""
    lines = [document.title]
    for part in (part for section in document.sections for part in section.parts):
        if isinstance(part, Table):
            lines += _table_lines(part)
        elif isinstance(part, (Notes, Lead, Bullets, Steps)):
            lines += map(clean, part.items)
        elif isinstance(part, str):
            lines.append(clean(part))
    return "\n".join(lines)


def _section_lines(section: Section) -> list[str]:
    """A section's parts, with an empty line between two of them."""
    blocks = [block for block in map(_part_lines, section.parts) if block]
    return [line for k, block in enumerate(blocks) for line in (*([""] if k else []), *block)]


def _part_lines(part: Part) -> list[str]:
    if isinstance(part, str):
        return _wrap(part)
    if isinstance(part, (Notes, Lead)):
        return [line for note in part.items for line in textwrap.wrap(clean(note), WIDTH)]
    if isinstance(part, Chart):
        return list(part.lines)
    if isinstance(part, Steps):
        return [line for k, item in enumerate(part.items, 1) for line in _wrap(item, f"{k}. ")]
    if isinstance(part, Bullets):
        return [line for item in part.items for line in _wrap(item, "- ")]
    if isinstance(part, Facts):
        return _paired_lines(part.rows) if part.paired else _fact_lines(part.rows)
    if isinstance(part, Table):
        return _table_lines(part)
    if isinstance(part, Heading):
        return [clean(part.text)]
    return part.text.splitlines() if isinstance(part, Code) else []


def _fact_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    width = 2 + max(columns(label) for label, _ in facts)
    return [line for label, value in facts for line in _wrap(value, _pad(label, width))]


def _paired_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Facts two to a line, the second half beside the first."""
    cells = [_pad(f"{label}:", _PAIRED[0]) + _pad(clean(value), _PAIRED[1], right=True) for label, value in facts]
    half = (len(cells) + 1) // 2
    pairs = zip(cells[:half], [*cells[half:], ""], strict=False)
    return [f"{left}    {right}".rstrip() for left, right in pairs]


def _table_lines(table: Table) -> list[str]:
    lines = _set_lines(table) if table.columns else _fitted_lines(table)
    return [lines[0], _THIN_RULE, *lines[1:]] if table.ruled else lines


def _set_lines(table: Table) -> list[str]:
    """A table whose columns are as wide as it says."""
    return [
        "".join(
            " " * column.gap + _pad(clean(cell), column.width, right=column.right)
            for column, cell in zip(table.columns, row, strict=True)
        )
        for row in (table.header, *table.rows)
    ]


def _fitted_lines(table: Table) -> list[str]:
    """A table whose columns are as wide as their cells; those of numbers go to the right."""
    names = [table.header[0], *(shorten(row[0], _NAME) for row in table.rows)]
    lines = [_pad(name, max(map(columns, names))) for name in names]
    for k, head in enumerate(table.header[1:], 1):
        cells = [head, *(clean(row[k]) for row in table.rows)]
        width, right = max(map(columns, cells)), all(map(is_number, cells[1:]))
        lines = [f"{line}  {_pad(cell, width, right=right)}" for line, cell in zip(lines, cells, strict=True)]
    return [line.rstrip() for line in lines]


def _wrap(text: str, start: str = "") -> list[str]:
    """Lines of a paragraph, the later ones as far in as the first; options such as --a-b stay whole."""
    inner = " " * columns(start)
    return textwrap.wrap(clean(text), WIDTH, initial_indent=start, subsequent_indent=inner, break_on_hyphens=False)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill up to a number of columns, on the left if the text goes to the right."""
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks
