"""What a report is made of, whoever writes it: as text, Markdown or HTML.

A document is built by what it is about (a release, a plan, a linkage) and written by :mod:`~dplinked.report.text`,
:mod:`~dplinked.report.markdown` or :mod:`~dplinked.report.html`. Cells and sentences are plain text; writers escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """How a column of a table is set in text: so many letters wide, its cells to the left or to the right.

    Attributes
    ----------
    gap
        Blanks before it.
    """

    width: int
    right: bool = True
    gap: int = 0


@dataclass(frozen=True)
class Table:
    """Cells as texts, the first of each row its name.

    Attributes
    ----------
    header
        Column names.
    label
        What a screen reader calls the table.
    columns
        How text sets it; where there are none, columns are as wide as their cells.
    ruled
        Whether text draws a line under the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    label: str
    columns: Sequence[Column] = ()
    ruled: bool = False


@dataclass(frozen=True)
class Facts:
    """Labels with a value each; `paired` if text puts them side by side, the second half beside the first."""

    rows: Sequence[tuple[str, str]]
    label: str
    paired: bool = False


@dataclass(frozen=True)
class Notes:
    """Short paragraphs that belong together: text leaves no line between them."""

    items: Sequence[str]


@dataclass(frozen=True)
class Lead:
    """What a document says first, and pages in larger letters: a sentence each."""

    items: Sequence[str]


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Steps:
    """A numbered list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Chart:
    """A drawing for the page, and the lines that stand in its place in text.

    Attributes
    ----------
    draw
        Returns an SVG element; raises ImportError where there is no plotting library.
    wide
        Returns the same drawing for a page that is wide, if it is to fill the page there.
    """

    draw: Callable[[], str]
    caption: str = ""
    lines: Sequence[str] = ()
    wide: Callable[[], str] | None = None


@dataclass(frozen=True)
class Code:
    """Lines to copy as they are."""

    text: str
    label: str


@dataclass(frozen=True)
class Download:
    """A text to save as a file; `kind` is its media type."""

    text: str
    file: str
    kind: str


@dataclass(frozen=True)
class Details:
    """Parts that a page shows when asked for."""

    summary: str
    parts: Sequence[Part]


Part = str | Table | Facts | Notes | Lead | Bullets | Steps | Heading | Chart | Code | Download | Details
"""A piece of a section; a plain text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """Parts under a title, or without one at the beginning; `folded` if all of them are details."""

    title: str
    parts: Sequence[Part]
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes
    ----------
    subject
        What it is about, to be shown as code: a formula.
    warning
        What has to be read before anything else.
    """

    title: str
    sections: Sequence[Section]
    subject: str = ""
    warning: str = ""
