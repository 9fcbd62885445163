"""The page *Check* shows the steward what is odd about the data. NOT FOR PUBLICATION."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.check import WARNING, Check, check_study
from dplinked.check.findings import LOOK_AGAIN, NOT_USABLE, READY
from dplinked.check.receipt import keep_receipt
from dplinked.report.document import Bullets, Code, Lead, Part, Table
from dplinked.studio.desk import Fault, attempt, data_of
from dplinked.studio.look import panel, rows, say, section, show
from dplinked.studio.study_page import Room
from dplinked.study.study import Study

_LOOKS = {READY: "good", LOOK_AGAIN: "warning", NOT_USABLE: "bad"}


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "Check",
        "check",
        tags.p(
            "Looks for what would stop a release of this study, or bend it, and ends in a verdict: ready, look again or not usable. Nothing is spent."
        ),
        tags.div(ui.input_task_button("run_check", "Look at the data", label_busy="Looking …"), class_="buttons"),
        ui.output_ui("check_found"),
    )


def serve(input: Inputs, room: Room) -> None:
    """Give the page its behaviour. What was seen belongs to one text of the study, and is not shown once it has changed."""
    found = reactive.value[tuple[str, Check | Fault] | None](None)

    @ui.bind_task_button(button_id="run_check")
    @reactive.extended_task
    async def look(text: str, study: Study, file: Path | None) -> tuple[str, Check | Fault]:
        return text, await asyncio.to_thread(attempt, lambda: _look(study, file))

    @reactive.effect
    @reactive.event(input.run_check)
    def _start() -> None:
        study, text = room.study(), room.text()
        if isinstance(study, Fault):
            found.set((text, study))
        else:
            look(text, study, room.saved())

    @reactive.effect
    def _done() -> None:
        if look.status() == "success":
            found.set(look.result())

    @render.ui
    def check_found() -> Tag | TagList | None:
        if (seen := found()) is None:
            return None
        text, check = seen
        if text != room.text():
            return say("The study has changed since. Look again.")
        return say(check.text, "bad") if isinstance(check, Fault) else TagList(*_shown(check))


def _look(study: Study, file: Path | None) -> Check:
    """Look at the data, and note that it was looked at if the study is in a file."""
    seen = check_study(study, data_of(study))
    if file is not None:
        keep_receipt(file, data_of(study))
    return seen


def _shown(check: Check) -> Iterator[Tag]:
    """The warning, the verdict, and what was seen."""
    first, *sections = check.document().sections
    yield say(WARNING, "warning")
    for part in first.parts:
        yield say(" ".join(part.items), _LOOKS[check.verdict]) if isinstance(part, Lead) else _part(part)
    for one in sections:
        yield section(one.title, *map(_part, one.parts))


def _part(part: Part) -> Tag:
    """A part of the document in the studio's look."""
    if isinstance(part, Bullets):
        return tags.ul(*(tags.li(show(item)) for item in part.items), class_="findings")
    if isinstance(part, Table):
        return tags.div(rows(part.header, part.rows, part.label))
    return tags.pre(show(part.text)) if isinstance(part, Code) else tags.p(show(str(part)))
