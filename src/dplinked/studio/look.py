"""How the studio's pages look: the parts they are made of. Texts are children of tags, so that they are shown as text, not as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from htmltools import HTML, Tag, TagChild, TagList, tags
from shiny import ui
from shiny.types import NavSetArg

from dplinked.report.page import table
from dplinked.report.words import clean

STYLE = Path(__file__).with_name("studio.css")


def panel(name: str, value: str, *children: TagChild) -> NavSetArg:
    """One of the studio's pages."""
    return ui.nav_panel(name, tags.main(tags.h1(name), *children), value=value)


def section(title: str, *children: TagChild) -> Tag:
    """A part of a page with a heading."""
    return tags.section(tags.h2(title), *children, class_="part")


def group(title: str, *children: TagChild, class_: str = "") -> Tag:
    """Fields of a form that belong together."""
    return tags.fieldset(tags.legend(title), *children, class_=f"fields {class_}".strip())


def say(text: str, kind: str = "plain") -> Tag:
    """A message: plain, good, bad or warning."""
    return tags.p(show(text), class_=f"note {kind}", role="alert" if kind == "bad" else "status")


def ask(title: str, *children: TagChild, yes: Tag, size: Literal["m", "xl"] = "m") -> None:
    """Ask a question in a dialog. `yes` is the button beside *Cancel*."""
    footer = TagList(ui.modal_button("Cancel"), yes)
    asked = ui.modal(*children, title=title, footer=footer, size=size)
    asked.attrs["aria-label"] = title
    ui.modal_show(asked)


def show(text: str) -> str:
    """A text that is safe to show: characters that would change the direction of writing are made visible."""
    return "\n".join(clean(line) for line in text.expandtabs(4).split("\n"))


def rows(header: Sequence[str], cells: Sequence[Sequence[str]], label: str) -> HTML:
    """A table that scrolls within the page."""
    return HTML(table(header, cells, label=label))
