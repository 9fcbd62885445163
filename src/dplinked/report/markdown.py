"""Documents as Markdown. Charts, downloads and what pages show when asked for are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dplinked.report.document import Bullets, Code, Document, Facts, Heading, Lead, Notes, Part, Steps, Table
from dplinked.report.words import clean


def write_markdown(document: Document) -> str:
    """A document as Markdown."""
    blocks = [f"# {_escape(document.title)}"]
    if document.warning:
        blocks.insert(0, f"**{_escape(document.warning)}**")
    if document.subject:
        blocks.append(f"`{clean(document.subject)}`")
    for section in document.sections:
        if section.title:
            blocks.append(f"## {_escape(section.title)}")
        blocks += [block for part in section.parts for block in _blocks(part)]
    return "\n\n".join(blocks) + "\n"


def _blocks(part: Part) -> Iterator[str]:
    if isinstance(part, str):
        yield _escape(part)
    elif isinstance(part, (Notes, Lead)):
        yield from map(_escape, part.items)
    elif isinstance(part, Facts):
        yield "\n".join(f"- {_escape(label)}: {_escape(value)}" for label, value in part.rows)
    elif isinstance(part, Bullets):
        yield "\n".join(f"- {_escape(item)}" for item in part.items)
    elif isinstance(part, Steps):
        yield "\n".join(f"{k}. {_escape(item)}" for k, item in enumerate(part.items, 1))
    elif isinstance(part, Table):
        yield "\n".join(_table_lines(part))
    elif isinstance(part, Heading):
        yield f"### {_escape(part.text)}"
    elif isinstance(part, Code):
        yield f"```\n{part.text.rstrip()}\n```"


def _table_lines(table: Table) -> Iterator[str]:
    """A table; columns that hold nothing but numbers go to the right."""
    yield "|" + "|".join(f" {_escape_cell(name)} " if name else " " for name in table.header) + "|"
    numeric = [k > 0 and _is_numeric([row[k] for row in table.rows]) for k in range(len(table.header))]
    yield "|" + "|".join("---:" if right else "---" for right in numeric) + "|"
    for row in table.rows:
        yield "| " + " | ".join(map(_escape_cell, row)) + " |"


def _is_numeric(cells: Sequence[str]) -> bool:
    try:
        for cell in filter(None, cells):
            float(cell.replace(",", ""))
    except ValueError:
        return False
    return True


def _escape(text: str) -> str:
    return clean(text).replace("<", "&lt;")


def _escape_cell(text: str) -> str:
    return _escape(text).replace("|", "\\|")
