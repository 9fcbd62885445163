"""The page *Check* shows the steward what is odd about the data, beside what to do about it. NOT FOR PUBLICATION."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.check import Check, Finding, check_study
from dplinked.check.document import MEANING, levels_table, numbers_table
from dplinked.check.findings import FAULT, LOOK, LOOK_AGAIN, NOT_USABLE, NOTE, READY
from dplinked.check.receipt import keep_receipt, state_of_files, was_checked
from dplinked.data.files import find_files
from dplinked.data.look import as_toml
from dplinked.data.sources import is_path
from dplinked.report.document import Table
from dplinked.studio import outside
from dplinked.studio.desk import Fault, Report, attempt, data_of
from dplinked.studio.draft import Draft
from dplinked.studio.look import panel, render_to, rows, say, section, show, steward_only
from dplinked.studio.path import State
from dplinked.studio.room import Held, Room
from dplinked.studio.study_page import say_incomplete
from dplinked.study.study import Study

_LOOKS = {READY: "good", LOOK_AGAIN: "warning", NOT_USABLE: "bad"}
_FOUND = {FAULT: "What makes it unusable", LOOK: "What to look at again", NOTE: "Also seen"}
_DETAILS = " The steward's 'check' shows the details."  # which is said here


@dataclass(frozen=True)
class Seen:
    """A look at the data.

    Attributes
    ----------
    text
        The text of the study, without its ledger.
    files
        When the files of the rows were written, and their sizes.
    check
        What was found.
    """

    text: str
    files: list[tuple[str, int, int]]
    check: Check | Fault


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "check",
        steward_only("Everything that is found here is read from the rows without noise."),
        tags.p("Looks for whatever would stop a release of this study, or bend it. Nothing is spent."),
        tags.div(ui.input_action_button("run_check", "Look at the data", class_="btn-primary"), class_="buttons"),
        ui.output_ui("check_running"),
        ui.output_ui("check_found"),
        ui.output_ui("check_outside"),
    )


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour. What was seen belongs to one text of the study and to files as they were, and is not shown once either has changed."""
    desk = room.desk
    refused = Held[Fault | None](None)
    begun = Held(0)

    @reactive.calc
    def absent() -> Fault | None:
        """What is wrong with where the rows are, before anybody looks."""
        begun(), input.page()  # it may be there by now
        study = room.study()
        found = None if isinstance(study, Fault) else attempt(lambda: _locate(study))
        return found if isinstance(found, Fault) else None

    def written() -> list[tuple[str, int, int]]:
        study = room.study()
        return [] if isinstance(study, Fault) else state_of_files(data_of(study))

    @reactive.calc
    def files() -> list[tuple[str, int, int]]:
        """When the files of the rows were written: another program may write them at any time."""
        room.files(), input.page()
        return written()

    @reactive.calc
    def seen() -> Seen | None:
        """What was looked at last, and what was found; None if nobody looked, or is looking."""
        begun(), room.job()
        running = desk.job
        if running is not None and running.running and running.kind == "check":
            return None
        return desk.results.get("check")

    @reactive.effect
    @reactive.event(input.run_check)
    def _start() -> None:
        study, text, file, state = room.study(), about_rows(room.text()), room.saved(), written()
        if isinstance(study, Fault):
            refused.set(Fault(say_incomplete(room)))
            return
        looked = lambda report: Seen(text, state, attempt(lambda: _look(study, file, report)))  # noqa: E731
        done = attempt(lambda: desk.start("check", looked))
        refused.set(done if isinstance(done, Fault) else None)
        begun.set(begun() + 1)

    @render.ui
    def check_running() -> Tag | None:
        job = room.job()
        if job is None or not job.running or job.kind != "check":
            return None
        bar = tags.progress(value=str(job.done), max=str(job.total)) if job.total else tags.progress()
        bar.attrs["aria-label"] = "How much was looked at"
        return tags.div(tags.span(f"{job.title} …"), bar, class_="note", role="status")

    @render.ui
    def check_found() -> Tag | TagList | None:
        if (fault := refused() or absent()) is not None:
            return say(fault.text, "bad")
        if (found := seen()) is None:
            return None
        if found.text != about_rows(room.text()):
            return say("The study has changed since. Look again.")
        if found.files != files():
            return say("The file has changed since. Look again.", "warning")
        check = found.check
        return say(check.text.removesuffix(_DETAILS), "bad") if isinstance(check, Fault) else TagList(*_shown(check))

    @render_to("check_outside")
    def _outside() -> Tag:
        return outside.same(*in_lines(room.draft().name), study=room.text())

    def state() -> State:
        study, found = room.study(), seen()
        if isinstance(study, Fault):
            return State("missing", "The study is not complete yet.", "Go back to Study: it says what is missing.")
        if (fault := absent()) is not None:
            return State("missing", fault.text, "Put it there, or choose another file at Files or Study.")
        if found is not None and (found.text, found.files) == (about_rows(room.text()), files()):
            return _state(found.check)
        file = room.saved()
        if file is not None and was_checked(file, data_of(study)):
            return State("done", "The data was looked at with this study.", "Next, see what to expect.")
        return State("ready", "Nobody has looked at the data with this study yet.", "Look at it, then plan.")

    return state


def about_rows(text: str) -> str:
    """The text of a study without its ledger, which changes nothing of what is seen in the rows."""
    found = attempt(lambda: Draft(0, "", text).changed({("ledger", key): None for key in ("url", "population", "key")}))
    return text if isinstance(found, Fault) else found.strip()


def _state(check: Check | Fault) -> State:
    if isinstance(check, Fault):
        return State("missing", "The data could not be looked at.", "See below why.")
    if check.verdict == NOT_USABLE:
        return State("missing", "The data is not usable as it is.", "See below what to do.")
    said = (
        "Nothing was seen that speaks against a release."
        if check.verdict == READY
        else "Some things want a second look."
    )
    return State("done", said, "Next, see what to expect.")  # fmt: skip


def _locate(study: Study) -> Any:
    """Find the files of the rows; what is wrong with them is the library's to say."""
    data = data_of(study)
    return find_files(data) if is_path(data) else data


def _look(study: Study, file: Any, report: Report) -> Check:
    """Look at the data, and note that it was looked at if the study is in a file."""
    seen = check_study(study, data_of(study), progress=report)
    if file is not None:
        keep_receipt(file, data_of(study))
    return seen


def _shown(check: Check) -> Iterator[Tag]:
    """The verdict, and what was seen beside what to do about it."""
    yield say(MEANING[check.verdict], _LOOKS[check.verdict])
    if check.advice:
        written = tags.pre(show("[data]\n" + as_toml(check.advice)))
        yield section("How the file is written", tags.p("Choose so at Files, or write into the study file:"), written)
    of = {grade: [one for one in check.findings if one.grade == grade] for grade in _FOUND}
    for grade in (FAULT, LOOK):
        if of[grade]:
            yield section(_FOUND[grade], _findings(of[grade]))
    if check.numbers and check.count:
        yield section("Numbers", _table(numbers_table(check, check.count)))
    if check.levels:
        yield section("Levels", _table(levels_table(check)))
    if of[NOTE]:
        yield section(_FOUND[NOTE], _findings(of[NOTE]))


def _findings(found: Sequence[Finding]) -> Tag:
    items = [
        tags.li(
            tags.p(show(one.text.removesuffix(_DETAILS))),
            tags.p(tags.strong("What to do: "), show(one.remedy), class_="todo") if one.remedy else None,
        )
        for one in found
    ]
    return tags.ul(*items, class_="findings")


def _table(table: Table) -> Tag:
    return tags.div(rows(table.header, table.rows, table.label))


def in_lines(name: str) -> tuple[str, str]:
    """A shell's and Python's lines that look at the data."""
    python = [
        "import dplinked as dpl",
        "",
        f"study = dpl.Study.from_toml({name!r})",
        "print(dpl.check_study(study, study.data).summary())",
    ]
    return f"dplinked check {shlex.quote(name)}", "\n".join(python)
