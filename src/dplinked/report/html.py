"""Documents as HTML: as a page of their own, and as a fragment for a cell of a notebook."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dplinked.report import page
from dplinked.report.document import (
    Bullets,
    Chart,
    Code,
    Details,
    Document,
    Download,
    Facts,
    Heading,
    Lead,
    Notes,
    Part,
    Section,
    Steps,
    Table,
)


def write_page(document: Document) -> str:
    """A document as one page that needs nothing else, and loads nothing."""
    body = [part for section in document.sections for part in _section(section)]
    return page.page(document.title, _name_apart("\n".join(body)), warning=document.warning or None)


def write_fragment(document: Document) -> str:
    """A document for a cell of a notebook: what it is about, then its parts; titles of sections are left out."""
    title, subject = page.to_html(document.title), page.to_html(document.subject)
    parts = [part for section in document.sections for part in _parts(section.parts)]
    return page.notebook_cell(f"<p><strong>{title}</strong><br><code>{subject}</code></p>", *parts)


def _name_apart(html: str) -> str:
    """The same with numbers behind names that screen readers would say twice, as those of tables of several results."""
    said: Counter[str] = Counter()

    def number(label: re.Match[str]) -> str:
        said[label[1]] += 1
        return label[0] if said[label[1]] == 1 else f'aria-label="{label[1]} ({said[label[1]]})"'

    return re.sub(r'aria-label="([^"]*)"', number, html)


def _section(section: Section) -> Iterator[str]:
    parts = _parts(section.parts)
    if section.title:
        yield page.section(section.title, *parts, folded=section.folded)
    else:
        yield from parts


def _parts(parts: Sequence[Part]) -> list[str]:
    return [html for part in parts for html in _part(part)]


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, str):
        yield page.paragraph(part)
    elif isinstance(part, Lead):
        yield from map(page.lead, part.items)
    elif isinstance(part, Notes):
        yield from map(page.paragraph, part.items)
    elif isinstance(part, Facts):
        yield page.table((), part.rows, label=part.label)
    elif isinstance(part, Table):
        yield page.table(part.header, part.rows, label=part.label)
    elif isinstance(part, Chart):
        yield page.chart(part.draw, part.caption, part.wide)
    elif isinstance(part, Bullets):
        yield page.unordered_list(part.items)
    elif isinstance(part, Steps):
        yield page.ordered_list(part.items)
    elif isinstance(part, Heading):
        yield page.heading(part.text)
    elif isinstance(part, Code):
        yield page.code_block(part.text, part.label)
    elif isinstance(part, Download):
        yield page.download(part.text, part.file, part.kind)
    elif isinstance(part, Details):
        yield page.details(part.summary, *_parts(part.parts))
