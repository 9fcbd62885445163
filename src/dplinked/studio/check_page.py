"""The page *Check* shows the steward what is odd about the data. NOT FOR PUBLICATION."""

from __future__ import annotations

import asyncio

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.check import WARNING, Finding, check_study
from dplinked.studio.desk import Fault, attempt, data_of
from dplinked.studio.look import panel, say, show
from dplinked.studio.study_page import Room
from dplinked.study.study import Study


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "Check",
        "check",
        tags.p("Looks for what would stop a release of this study, or bias it. Nothing is spent."),
        tags.div(ui.input_task_button("run_check", "Look at the data", label_busy="Looking …"), class_="buttons"),
        ui.output_ui("check_found"),
    )


def serve(input: Inputs, room: Room) -> None:
    """Give the page its behaviour. Findings belong to one text of the study, and are not shown once it has changed."""
    found = reactive.value[tuple[str, list[Finding] | Fault] | None](None)

    @ui.bind_task_button(button_id="run_check")
    @reactive.extended_task
    async def look(text: str, study: Study) -> tuple[str, list[Finding] | Fault]:
        return text, await asyncio.to_thread(attempt, lambda: check_study(study, data_of(study)))

    @reactive.effect
    @reactive.event(input.run_check)
    def _start() -> None:
        study, text = room.study(), room.text()
        if isinstance(study, Fault):
            found.set((text, study))
        else:
            look(text, study)

    @reactive.effect
    def _done() -> None:
        if look.status() == "success":
            found.set(look.result())

    @render.ui
    def check_found() -> Tag | TagList | None:
        if (seen := found()) is None:
            return None
        text, findings = seen
        if text != room.text():
            return say("The study has changed since. Look again.")
        if isinstance(findings, Fault):
            return say(findings.text, "bad")
        listed = [
            tags.li(tags.strong("Stops a release: ") if one.fault else None, show(one.text), class_="fault" if one.fault else None)
            for one in findings
        ]  # fmt: skip
        return TagList(say(WARNING, "warning"), tags.ul(*listed, class_="findings"))
