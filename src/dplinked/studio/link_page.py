"""The page *Link*: what is compared, linking with its progress, and what it found."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.data.arrow import to_arrow
from dplinked.data.format import File, split_file
from dplinked.errors import StudyError
from dplinked.errors import shown as shown_value
from dplinked.linker.encodings.encode import is_encoded
from dplinked.linker.files import ROWS
from dplinked.linker.suggest import Blocks, Suggestions, preview_blocks, suggest_fields
from dplinked.studio import outside
from dplinked.studio.desk import Fault, Job, attempt
from dplinked.studio.draft import Draft
from dplinked.studio.files_page import SAME, is_same
from dplinked.studio.link_form import (
    Files,
    answers_fault,
    find_faults,
    link_fields,
    request_of,
    sent_values,
    show_fault,
    values_of,
)
from dplinked.studio.linking import MadeLinks, Request, data_changes, link_files, page_of, quoted, was_written
from dplinked.studio.look import panel, render_to, rows, say, section, show, steward_only
from dplinked.studio.path import State
from dplinked.studio.room import Held, Room, steady

if TYPE_CHECKING:
    import pyarrow as pa

_ENCODED = (
    "Encoded files (.clk) are linked on the command line: dplinked link LEFT.clk RIGHT.clk --out linked. Then choose "
    "linked/linked.parquet on Files, as one file whose rows are linked already."
)
_ASKS = {
    "fields": "Say what is compared",
    "id_left": "Say which columns name a record",
    "id_right": "Say which columns name a record",
    "block": "Say within what is linked",
    "method": "Say how links are made",
    "threshold": "Say which links count",
    "overlap": "Say how many people are in both files",
    "carriers": "Say how many rows may share a record",
    "out": "Say where the linked rows go",
    "size": "Say how many links are drawn for a review",
}
_NO_SUGGESTION = Suggestions((), (None, None), None)


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "link",
        ui.output_ui("link_missing"),
        ui.output_ui("link_form"),
        ui.output_ui("link_compared"),
        ui.output_ui("link_start"),
        ui.output_ui("link_progress"),
        ui.output_ui("stop_link_shown"),
        ui.output_ui("link_found"),
        ui.output_ui("link_outside"),
    )


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour."""
    desk = room.desk
    refused = Held[Fault | None](None)
    count = iter(range(1, 1_000_000))
    shown = Held[tuple[int, Files] | None](None)  # the form's number, and the files it is about

    running = steady(lambda: runs(room))
    asked = steady(lambda: linked_request(room))  # what was linked, if the files that it wrote are there

    whose = steady(lambda: _study_of(room, asked()))  # the study at hand, and whether it is about the linked rows

    def find_states() -> list[Any]:
        """When the two files were written: other programs may write or remove them at any time."""
        room.files()
        return [None if file is None else _state(file) for file in (room.source("left"), room.source("right"))]

    states = steady(find_states)

    @reactive.calc
    def chosen() -> Files | Fault | None:
        states()
        return None if _linked_already(room) else files_of(room)

    @reactive.calc
    def form() -> dict[str, Any]:
        files = chosen()
        return values_of(room.kept("link"), files) if isinstance(files, Files) else {}

    @reactive.calc
    def request() -> Request | None:
        files = chosen()
        return request_of(form(), files) if isinstance(files, Files) else None

    @reactive.calc
    def faults() -> dict[str, str]:
        files, wanted = chosen(), request()
        if not isinstance(files, Files) or wanted is None:
            return {}
        found = find_faults(wanted, form(), files, desk.folder)
        held = None if wanted == asked() else answers_fault(wanted, desk.folder)
        return {**({} if held is None else {"size": held}), **found}

    # --- the form --------------------------------------------------------------------------------

    @render.ui
    def link_missing() -> Tag | None:
        files = chosen()
        if _linked_already(room):
            return say("Nothing needs linking: on Files, one file was chosen whose rows are linked already.")
        if isinstance(files, Fault):
            return say(files.text, "bad")
        return say("Choose two files on Files first.") if files is None else None

    @render.ui
    def link_form() -> TagList | None:
        files = chosen()
        if not isinstance(files, Files):
            shown.set(None)
            return None
        number = next(count)
        with reactive.isolate():
            values = values_of(room.kept("link"), files)
            shown.set((number, files))
        for place, name in enumerate(files.names[0]):
            show_fault(f"field_{place}_{number}", f"field {name}", faults)
        return link_fields(values, files, number)

    for name in ("fields", "id_left", "id_right", "block", "method", "threshold", "overlap", "carriers", "out", "size"):
        show_fault(name, name, faults)

    @reactive.effect
    def _keep() -> None:
        about = shown()
        if about is None:
            return
        number, files = about
        sent = sent_values(input, number, files)
        with reactive.isolate():
            if sent is not None and sent != {name: room.kept("link").get(name) for name in sent}:
                room.keep("link", **sent)

    # --- what is compared, and linking -------------------------------------------------------------

    @render.ui
    def link_compared() -> Tag | None:
        files, wanted = chosen(), request()
        if not isinstance(files, Files) or wanted is None:
            return None
        found = attempt(lambda: preview_blocks(*files.tables, wanted.block))
        if isinstance(found, Fault):
            return None
        return section(
            "What blocks find", steward_only("These numbers are counted in the rows."), *_compared(found, files, wanted)
        )

    @render.ui
    def link_start() -> TagList | None:
        if not isinstance(chosen(), Files):
            return None
        if running():
            return None
        wrong = faults()
        told = [say("Something is missing or does not fit: see beside the fields above.", "bad")] if wrong else []
        stopped = refused()
        told += [say(stopped.text, "bad")] if stopped is not None else []
        words = "Link again" if asked() is not None else "Link"
        return TagList(
            *told, tags.div(ui.input_action_button("do_link", words, class_="btn-primary"), class_="buttons")
        )

    @reactive.effect
    @reactive.event(input.do_link)
    def _start() -> None:
        wanted = request()
        if wanted is None or faults():
            return
        if (held := answers_fault(wanted, desk.folder)) is not None:
            refused.set(Fault(held))
            return
        at = time.time()
        begun = attempt(
            lambda: desk.start("link", lambda report: link_files(wanted, desk.folder, report), stoppable=True)
        )
        refused.set(begun)
        if begun is None:
            room.keep("link", asked={"request": wanted.kept(), "at": at})

    @render.ui
    def link_progress() -> Tag | None:
        return progress_of(room.job(), "link")

    show_stop(room, "link", "stop_link")

    @reactive.effect
    @reactive.event(input.stop_link)
    def _stop() -> None:
        desk.stop()

    # --- what it found ---------------------------------------------------------------------------

    @reactive.effect
    def _tell_study() -> None:
        """The study is about the linked rows from now on, once for each time they are linked."""
        last = _last_linked(room)
        if last is None or not room.here() or room.kept("link").get("told") == last[1].get("at"):
            return
        with reactive.isolate():
            if room.draft().sections is not None:
                room.keep("link", told=last[1].get("at"), linked=last[1])
                room.change(data_changes(Draft(0, "", room.text()), last[0], desk.folder))

    @render.ui
    def link_found() -> Tag | None:
        done = asked()
        if done is None or running():
            return None
        made = desk.results.get("link")
        known = made if isinstance(made, MadeLinks) and made.request == done else None
        return _found(done, known, desk.folder, *whose())

    @reactive.effect
    @reactive.event(input.use_links)
    def _use() -> None:
        """Another study than the one that was open when the files were linked takes the linked rows, too."""
        done = asked()
        if done is not None and room.here() and room.draft().sections is not None:
            room.change(data_changes(Draft(0, "", room.text()), done, desk.folder))

    @render.ui
    def link_outside() -> Tag | None:
        wanted = request()
        return (
            None
            if wanted is None or not wanted.fields
            else outside.same(wanted.in_shell(), wanted.in_python(desk.folder), room.text())
        )

    def state() -> State:
        files, wanted, done = chosen(), request(), asked()
        if _linked_already(room):
            return State("aside", "Your rows are linked already.", "Next, say what the study is.")
        if isinstance(files, Fault):
            return State("missing", "The files cannot be linked here: see below.", "Mend it on Files.")
        if files is None:
            return State("missing", "Choose two files first.", "Then say what is compared.")
        if running() and (job := room.job()) is not None and job.kind == "link":
            return State("ready", "The files are being linked.", "You may close this page; it goes on.")
        if faults() and (done is None or done != wanted):
            return State("missing", f"{_missing(faults())}: something is missing or does not fit.", "Then link.")
        if done is None:
            return State("ready", "The files are not linked yet.", "Look at what is compared, then link.")
        if done != wanted:
            return State(
                "ready",
                "The settings were changed since the files were linked.",
                "Link again, or go on with the links as they are.",
            )
        return State("done", "The files are linked.", "Next, have links reviewed.")

    return state


def _missing(faults: Mapping[str, str]) -> str:
    """What has to be said before the files can be linked, the first thing of the form."""
    return next((words for name, words in _ASKS.items() if name in faults), "Say what is compared")


def runs(room: Room) -> bool:
    """Whether a job is running."""
    job = room.job()
    return job is not None and job.running


def _linked_already(room: Room) -> bool:
    return room.kept("files").get("way") == "linked"


def linked_request(room: Room) -> Request | None:
    """What was asked for when the files were linked last, if what was written is still there."""
    found = _last_linked(room)
    return None if found is None else found[0]


def _last_linked(room: Room) -> tuple[Request, Mapping[str, Any]] | None:
    """The last linkage that was written, and what is kept of it. One that was stopped leaves the one before it as it was."""
    room.files()
    job = room.job()
    if _linked_already(room) or (job is not None and job.running and job.kind == "link"):
        return None
    for name in ("asked", "linked"):
        kept = room.kept("link").get(name) or {}
        done = Request.from_kept(kept.get("request"))
        if done is not None and was_written(room.desk.folder / done.out, float(kept.get("at") or math.inf)):
            return done, kept
    return None


def files_of(room: Room) -> Files | Fault | None:
    """The two chosen files, if both can be read here."""
    left, right = room.source("left"), room.source("right")
    if left is None or right is None:
        return None
    if any(is_encoded(split_file(side)[0]) for side in (left, right)):
        return Fault(_ENCODED)
    if is_same(left, right):
        return Fault(SAME)
    kept = room.kept("files")
    found = attempt(lambda: (_table(left, "first"), _table(right, "second")))
    if isinstance(found, Fault):
        return found
    suggested = attempt(lambda: _suggested(_state(left), _state(right), left, right))
    return Files(kept["left"], kept["right"], found, _NO_SUGGESTION if isinstance(suggested, Fault) else suggested)


def _table(file: File | Path, where: str) -> pa.Table:
    path, _ = split_file(file)
    if not os.path.isfile(path):
        raise StudyError(f"There is no file {shown_value(path.name)}. Choose the {where} file on Files.")
    return _read(file, _state(file))


def _state(file: File | Path) -> tuple[int, int] | None:
    path, _ = split_file(file)
    return (path.stat().st_mtime_ns, path.stat().st_size) if os.path.isfile(path) else None


@lru_cache(maxsize=2)
def _read(file: File | Path, state: tuple[int, int] | None) -> pa.Table:
    """A file's rows, read again only if it has changed."""
    return to_arrow(file, "file")


@lru_cache(maxsize=2)
def _suggested(
    a: tuple[int, int] | None, b: tuple[int, int] | None, left: File | Path, right: File | Path
) -> Suggestions:
    return suggest_fields(_read(left, a), _read(right, b))


# --- what is shown -----------------------------------------------------------------------------------------


def _compared(blocks: Blocks, files: Files, request: Request) -> list[Tag]:
    left, right = (table.num_rows for table in files.tables)
    said = [f"{left:,} rows of the first file are linked to {right:,} of the second."]
    if request.block:
        within = f"{blocks.shared:,} blocks by {quoted([show(name) for name in request.block])} are in both files."
        said.append(f"{within} They have {blocks.pairs:,} pairs of records, the largest one {blocks.largest:,}.")
        said.append(
            f"{blocks.outside[0]:,} rows of the first and {blocks.outside[1]:,} of the second file are in no such block, and are compared across blocks."
        )
    else:
        said.append(f"Without blocks there are {blocks.pairs:,} pairs of records.")
    if request.method == "splink":
        said.append(
            "Splink chooses in several passes which pairs are worth comparing; afterwards you see what each pass found."
        )
    return [tags.p(" ".join(said))]


def show_stop(room: Room, kind: str, stop: str) -> None:
    """A button that stops a job of some kind. It is made once for each, beside its progress: one that is made anew with every tick would miss clicks."""

    def stoppable() -> bool:
        job = room.job()
        return job is not None and job.kind == kind and job.running and job.stoppable

    shown = steady(stoppable)

    @render_to(f"{stop}_shown")
    def _shown() -> Tag | None:
        return tags.div(ui.input_action_button(stop, "Stop"), class_="buttons") if shown() else None


def progress_of(job: Job | None, kind: str) -> Tag | None:
    """How far a job of some kind is, or what went wrong with it."""
    if job is None or job.kind != kind:
        return None
    if not job.running:
        return None if job.fault is None else say(job.fault.text, "bad")
    known = {"max": str(job.total), "value": str(min(job.done, job.total))} if job.total else {}
    return tags.div(
        tags.label(f"{job.title} …", for_=f"{kind}_bar"), tags.progress(id=f"{kind}_bar", **known),
        class_="note", role="status",
    )  # fmt: skip


def _study_of(room: Room, done: Request | None) -> tuple[str, bool]:
    """The name of the study at hand, and whether its data are the linked rows."""
    path = Draft(0, "", room.text()).get("data", "path")
    return room.draft().name, done is not None and path == f"{done.out}/{ROWS}"


def _found(request: Request, made: MadeLinks | None, folder: Path, study: str, about: bool) -> Tag:
    """What linking found, and whether the study at hand is about it."""
    rows_at = f"The linked rows are in {request.out}/{ROWS}."
    use = ui.input_action_button("use_links", f"Use them in {show(study)}")
    told = (
        [say(f"{rows_at} They are the data of {study}.", "good")]
        if about
        else [say(f"{rows_at} {study}, the study that is open now, is not about them.", "warning"), tags.div(use, class_="buttons")]
    )  # fmt: skip
    page = page_of(folder / request.out)
    return section(
        "What linking found",
        steward_only("All of it is read from the rows."),
        *told,
        *([tags.p(made.linked.answer), _passes(made)] if made is not None else []),
        tags.iframe(srcdoc=page, sandbox="", title="How good are the links?", class_="report") if page else None,
    )


def _passes(made: MadeLinks) -> Any:
    """What blocking compared and found, pass by pass."""

    def cell(number: int | None) -> str:
        return "" if number is None else f"{number:,}"

    cells = [(show(one.name), cell(one.pairs), cell(one.found), cell(one.linked)) for one in made.linked.passes]
    return rows(("compared", "pairs", "that might be links", "links"), cells, "What was compared") if cells else None
