"""How the studio's pages look: the parts they are made of. Texts are children of tags, so that they are shown as text, not as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from htmltools import HTML, Tag, TagChild, TagList, tags
from shiny import render, ui
from shiny.types import NavSetArg

from dplinked.report.page import table, to_content
from dplinked.report.words import clean
from dplinked.studio.path import STEPS, after, before, number

STYLE = Path(__file__).with_name("studio.css")
SCRIPT = Path(__file__).with_name("studio.js")


def panel(step: str, *children: TagChild) -> NavSetArg:
    """The page of a step: its heading, what it still lacks, and the ways to the steps before and after it."""
    name = STEPS[step]
    title = TagList(tags.span(f"{number(step)} ", class_="place"), name, " ", ui.output_ui(f"mark_{step}", inline=True))
    ways = [
        ui.input_action_button(f"{way}_{step}", f"{words}: {STEPS[to]}", class_="btn-primary" if way == "next" else "")
        for way, words, to in (("back", "Back", before(step)), ("next", "Next", after(step)))
        if to is not None
    ]
    body = tags.main(
        tags.h1(name),
        ui.output_ui(f"state_{step}"),
        *children,
        tags.nav(*ways, class_="ways", aria_label="Steps before and after"),
    )
    return ui.nav_panel(title, body, value=step)


def steward_only(why: str = "") -> Tag:
    """A band that marks what the steward alone may see."""
    return tags.p(
        tags.strong("For the steward alone, not for publication."), f" {why}" if why else "", class_="steward"
    )


def section(title: str, *children: TagChild) -> Tag:
    """A part of a page with a heading."""
    return tags.section(tags.h2(title), *children, class_="part")


def group(title: str, *children: TagChild, class_: str = "") -> Tag:
    """Fields of a form that belong together."""
    return tags.fieldset(tags.legend(title), *children, class_=f"fields {class_}".strip())


def say(text: str, kind: str = "plain") -> Tag:
    """A message: plain, good, bad or warning."""
    return tags.p(prose(text), class_=f"note {kind}", role="alert" if kind == "bad" else "status")


def ask(title: str, *children: TagChild, yes: Tag, size: Literal["m", "xl"] = "m") -> None:
    """Ask a question in a dialog. `yes` is the button beside *Cancel*."""
    footer = TagList(ui.modal_button("Cancel"), yes)
    asked = ui.modal(*children, title=title, footer=footer, size=size)
    asked.attrs["aria-label"] = title
    ui.modal_show(asked)


def show(text: str) -> str:
    """A text that is safe to show: characters that would change the direction of writing are made visible."""
    return "\n".join(clean(line) for line in text.expandtabs(4).split("\n"))


def prose(text: str) -> HTML:
    """A text that is safe to show, within whose numbers, such as 1e-06, no line is broken."""
    return HTML("\n".join(to_content(line) for line in text.expandtabs(4).split("\n")))


def rows(header: Sequence[str], cells: Sequence[Sequence[str]], label: str) -> HTML:
    """A table that scrolls within the page."""
    return HTML(table(header, cells, label=label))


def render_to(name: str) -> Callable[[Callable[[], Any]], Any]:
    """Render to an output whose name is put together."""

    def bind(function: Callable[[], Any]) -> Any:
        function.__name__ = name
        return render.ui(function)

    return bind
