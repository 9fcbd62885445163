"""The page *Study* shows a study file as a form, with its text beside it, and says while it is edited what is missing and what is wrong."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.session import require_active_session
from shiny.types import NavSetArg

from dplinked.check.files import FileFacts, suggest_options
from dplinked.data.format import File
from dplinked.errors import StudyError
from dplinked.linkage import PrivacyUnit
from dplinked.linkage.ele import RESULTS_OF_LINKING
from dplinked.release.promise import promise_of_budget
from dplinked.studio import outside
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import BLANK, Changes
from dplinked.studio.fields import Fields, column_changes, data_changes, form_changes
from dplinked.studio.files_page import data_files, facts_of
from dplinked.studio.form import builder, column_fields, form, use_of
from dplinked.studio.look import ask, panel, prose, say, section, show
from dplinked.studio.path import State
from dplinked.studio.room import Held, Room, steady
from dplinked.study.columns import FormulaParts, join_formula, named_columns, split_formula
from dplinked.study.faults import SettingFault, find_faults, say_faults
from dplinked.study.toml import FILE_OPTIONS

_NEW = ""  # stands for a new study among the files that can be opened


def layout() -> NavSetArg:
    """Lay out the page."""
    text = tags.div(ui.output_code("study_text"), role="region", tabindex="0", aria_label="Text of the study file")
    return panel(
        "study",
        tags.div(
            tags.div(ui.output_ui("study_together"), ui.output_ui("study_form")),
            tags.div(
                section("File", ui.output_ui("study_files"), ui.output_ui("study_saved")),
                section(
                    "Text",
                    tags.p("What the form writes. Settings that the form does not show can be edited here.", class_="hint"),
                    text,
                    tags.div(
                        ui.input_action_button("edit_text", "Edit as text"),
                        ui.download_button("download_study", "Download study file"),
                        class_="buttons",
                    ),
                ),
                ui.output_ui("study_outside"),
            ),
            class_="split",
        ),
    )  # fmt: skip


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour."""
    desk, draft = room.desk, room.draft
    told = Held[Fault | None](None)
    slots: dict[str, int] = {}

    def fields() -> Fields:
        return Fields(input, draft(), slots)

    def load(text: str, name: str, saved: str | None) -> None:
        room.load(text, name, saved)
        told.set(None)

    number = steady(lambda: draft().number)  # the form is made anew for another draft, not for one that was saved

    @reactive.calc
    def typed() -> str:
        written = fields().get("formula") if fields().has("formula") else draft().get("model", "formula")
        return written if isinstance(written, str) else ""

    listed = Held[_Listed | None](None)  # the formula that the list of columns wrote last

    @reactive.calc
    def formula() -> str:
        return typed() if (said := listed()) is None or not said.is_newer(draft().number, typed()) else said.text

    @reactive.effect
    def _settle() -> None:
        """From here on the field is right: what the list wrote has come back, or somebody typed."""
        if (said := listed()) is not None and not said.is_newer(draft().number, typed()):
            listed.set(None)

    def write_listed(text: str) -> None:
        listed.set(_Listed.after(listed(), draft().number, typed(), text))

    @reactive.calc
    def columns() -> tuple[list[str], list[str]]:
        levels = [name for name in draft().keys("levels") if name not in draft().keys("bounds")]
        form = fields()
        counted = (form.chosen(name) for name in ("weights", "where", "by", "strata"))
        return named_columns(formula(), levels, form.chosen("family") or "linear", form.exposure, *counted)

    @reactive.calc
    def placed() -> Changes:
        """Where the rows are: of another file than before, how it is written as well."""
        path = fields().get("path")
        if path == draft().get("data", "path") or not (path or draft().get("data", "path")):
            return {}
        return data_changes(path, _written(room, path) if path else {})

    @reactive.calc
    def text_now() -> str:
        if draft().sections is None or not fields().has("formula"):
            return draft().text
        changes = {**form_changes(draft(), fields()), **placed(), **column_changes(draft(), fields(), *columns())}
        changes["model", "formula"] = formula()
        written = attempt(lambda: draft().changed(changes))
        return draft().text if isinstance(written, Fault) else written

    room.typed(text_now)

    def rows_file() -> Path | File | None:
        path = fields().get("path") if fields().has("path") else draft().get("data", "path")
        return _data_file(room, path) if path else None

    @reactive.calc
    def rows_known() -> FileFacts | None:
        """What the file of the rows holds, as it is now."""
        room.files()
        file = rows_file()
        found = None if file is None else attempt(lambda: facts_of(file))
        return None if isinstance(found, Fault) else found

    @reactive.calc
    def faults() -> list[SettingFault]:
        known = rows_known()
        columns, count = ([], None) if known is None else (known.names, known.rows)
        found = attempt(lambda: find_faults(room.text(), desk.folder, draft().name, columns=columns, count=count))
        return [SettingFault("", "", "the text", found.text)] if isinstance(found, Fault) else found

    @reactive.effect
    async def _tell() -> None:
        """Let the browser put each fault beside its field."""
        listed = [
            {"place": f"{one.section}/{one.key}", "text": show(one.text), "missing": one.missing} for one in faults()
        ]
        await require_active_session(None).send_custom_message("faults", {"draft": draft().number, "faults": listed})

    @render.ui
    def study_together() -> Tag | None:
        """What is wrong with no single setting."""
        found = [one.text for one in faults() if not one.section]
        return say(found[0], "bad") if found else None

    @render.ui
    def study_form() -> Tag | TagList:
        number()
        with reactive.isolate():
            if draft().sections is None:
                return say("The form cannot show a text that is not valid TOML. Edit it as text.")
            return form(draft(), fields(), data_files(desk.folder), linkage_files(desk.folder))

    asked = steady(columns)  # fields are made anew only if other columns are: else what is being typed would be lost

    @render.ui
    def study_columns() -> TagList:
        numeric, categorical = asked()
        number()
        with reactive.isolate():
            return column_fields(draft(), fields(), numeric, categorical)

    @render.ui
    def study_unit() -> Tag | None:
        said = _unit_of(room.text())
        return None if said is None else tags.p(tags.strong("What follows: "), prose(said), class_="follows")

    @render.ui
    def study_promise() -> Tag | None:
        if any(one.section == "privacy" for one in faults()):
            return None
        budget = _section(room.text(), "privacy")
        said = attempt(lambda: promise_of_budget(budget["epsilon"], budget["delta"]))
        return None if isinstance(said, Fault) else tags.p(tags.strong("What follows: "), prose(said), class_="follows")

    @render.code
    def study_text() -> str:
        return show(room.text())

    @render.ui
    def study_outside() -> Tag:
        return outside.same(*in_lines(draft().name))

    _serve_builder(room, fields, formula, number, write_listed)

    # --- links that were written elsewhere ---------------------------------------------------------

    @reactive.effect
    @reactive.event(input.take)
    def _take() -> None:
        name = str(input.take_linkage())
        found = attempt(lambda: read_linkage(desk.folder, name)) if name else {}
        if isinstance(found, Fault):
            told.set(found)
        elif found:
            kept = draft().keys("linkage")
            room.change({("linkage", key): found.get(key) for key in dict.fromkeys([*kept, *found])})

    # --- files -----------------------------------------------------------------------------------

    @render.ui
    def study_files() -> TagList:
        names = {_NEW: "a new study", **{name: show(name) for name in desk.study_files()}}
        chosen = draft().name if draft().name in names else _NEW
        return TagList(
            tags.div(
                ui.input_select("file", "In this folder", names, selected=chosen),
                ui.input_action_button("open_file", "Open"),
                class_="beside",
            ),
            tags.div(
                ui.input_text("file_name", "File name", draft().name, spellcheck="false"),
                ui.input_action_button("save_file", "Save", class_="btn-primary"),
                class_="beside",
            ),
        )

    @reactive.calc
    def on_disk() -> str | None:
        """What the study's file holds now; None if it is gone or cannot be read."""
        room.files()
        found = attempt(lambda: desk.read(draft().name))
        return None if isinstance(found, Fault) else found

    @render.ui
    def study_saved() -> Tag:
        message, opened = told(), draft()
        if message is not None:
            return say(message.text, "bad")
        if opened.saved is not None and on_disk() is None:
            return say(f"The file {opened.name!r} is gone, or cannot be read any more. Save writes it again.", "bad")
        if opened.saved is not None and on_disk() != opened.saved:
            return say(
                f"The file {opened.name!r} has changed since it was opened here. Open it to see what it holds.", "bad"
            )
        if draft().saved == room.text():
            return say(f"{draft().name!r} is saved.")
        return say("Not saved.")

    @reactive.effect
    @reactive.event(input.open_file)
    def _open() -> None:
        name = str(input.file())
        if name == _NEW:
            load(BLANK, desk.free_name(), None)
            return
        found, now = attempt(lambda: room.text_of(name)), attempt(lambda: desk.read(name))
        if isinstance(now, Fault) or isinstance(found, Fault):
            told.set(now if isinstance(now, Fault) else found)  # type: ignore[arg-type]
        elif now == found[1]:
            load(found[0], name, now)
        elif found[0] in (found[1], now):
            load_file(name)
        else:
            asking.set(name)
            ask(
                f"{show(name)} has changed",
                tags.p(
                    "The file does not hold any more what was opened here, and what was typed here since is not in it."
                ),
                ui.input_action_button("keep_typed", "Keep what was typed"),
                yes=ui.input_action_button("load_file", "Load the file", class_="btn-primary"),
            )

    asking = Held("")  # the study that was asked about

    def load_file(name: str) -> None:
        """Go on with what a file holds. What was typed is forgotten."""
        found = attempt(lambda: desk.read(name))
        if isinstance(found, Fault):
            told.set(found)
        else:
            room.forget(name)
            load(found, name, found)

    @reactive.effect
    @reactive.event(input.load_file)
    def _load_file() -> None:
        ui.modal_remove()
        load_file(asking())

    @reactive.effect
    @reactive.event(input.keep_typed)
    def _keep_typed() -> None:
        ui.modal_remove()
        found = attempt(lambda: room.text_of(asking()))
        if not isinstance(found, Fault):
            load(found[0], asking(), found[1])

    @reactive.effect
    @reactive.event(input.save_file)
    def _save() -> None:
        name, text = str(input.file_name()), room.text()
        before = draft().saved if name == draft().name else None
        done = attempt(lambda: desk.write(name, text, before))
        if isinstance(done, Fault):
            told.set(done)
        else:
            room.save(name, text)
            told.set(None)

    # --- as text ---------------------------------------------------------------------------------

    @reactive.effect
    @reactive.event(input.edit_text)
    def _edit() -> None:
        area = ui.input_text_area(
            "whole_text", "Study file (TOML)", room.text(), rows=20, width="100%", spellcheck="false"
        )
        use = ui.input_action_button("use_text", "Use this text", class_="btn-primary")
        ask("Edit as text", area, yes=use, size="xl")

    @reactive.effect
    @reactive.event(input.use_text)
    def _use() -> None:
        ui.modal_remove()
        load(input.whole_text(), draft().name, draft().saved)

    @render.download_button(filename=lambda: draft().name, media_type="application/toml")
    def download_study() -> Iterator[str]:
        yield room.text()

    return lambda: _state(faults())


@dataclass(frozen=True)
class _Listed:
    """A formula that the list of columns wrote for a draft. It holds until the formula's field says something else than before, and than what the list wrote meanwhile."""

    draft: int
    text: str
    earlier: frozenset[str]

    def is_newer(self, draft: int, typed: str) -> bool:
        return draft == self.draft and typed in self.earlier

    @classmethod
    def after(cls, before: _Listed | None, draft: int, typed: str, text: str) -> _Listed:
        known = before.earlier | {before.text} if before is not None and before.is_newer(draft, typed) else frozenset()
        return cls(draft, text, (known | {typed}) - {text})


def _serve_builder(
    room: Room,
    fields: Callable[[], Fields],
    formula: Callable[[], str],
    number: Callable[[], int],
    write: Callable[[str], None],
) -> None:
    """Keep the list of columns and the formula in step: whichever of the two is changed, the other follows."""
    draft = room.draft

    def find_columns() -> dict[str, str]:
        """The columns of the rows, or of the files that are linked to rows, by what their cells are; those by which links were made come last."""
        path = fields().get("path") if fields().has("path") else draft().get("data", "path")
        files = [_data_file(room, path)] if path else [room.source("left"), room.source("right")]
        found = [attempt(lambda file=file: facts_of(file)) for file in files if file is not None]  # type: ignore[misc]
        known = [column for one in found if not isinstance(one, Fault) for column in one.columns]
        compared = draft().get("linkage", "fields")
        last = [*compared] if isinstance(compared, list) else []  # they may not be in the formula
        named = sorted(known, key=lambda one: one.name.removesuffix("_right") in last)
        return {one.name: one.kind for one in named if one.name not in RESULTS_OF_LINKING}

    listed = steady(
        find_columns
    )  # the list is made anew only if other columns are listed: else it loses the focus, and what is being chosen

    def parts_of(text: str) -> FormulaParts:
        return split_formula(text, draft().keys("levels"))

    @render.ui
    def study_builder() -> TagList | None:
        columns = listed()
        number()
        with reactive.isolate():
            return builder(draft(), fields(), parts_of(formula()), columns) if columns else None

    seen: dict[str, Any] = {}  # values of the list's fields, by their ids

    @reactive.effect
    def _write() -> None:
        """Edit the formula by what has changed in the list. Values that followed the formula change nothing more."""
        form, names = fields(), [*_ALONE, *(("use", name) for name in listed())]
        now = {field: form.get(*field) for field in names if form.has(*field)}
        with reactive.isolate():
            before = after = parts_of(formula())
            for field, value in now.items():
                if seen.setdefault(form.id(*field), value) != value:
                    after = _edited(after, field, value)
                seen[form.id(*field)] = value
            if after != before:
                write(join_formula(after))
                ui.update_text(form.id("formula"), value=join_formula(after))

    @reactive.effect
    def _follow() -> None:
        parts = parts_of(formula())
        with reactive.isolate():
            form = fields()
            if form.has("response") and form.get("response") != parts.response:
                ui.update_select(form.id("response"), selected=parts.response)
            if form.has("further") and form.get("further") != parts.further:
                ui.update_text(form.id("further"), value=parts.further)
            for name in listed():
                if form.has("use", name) and form.get("use", name) != use_of(parts, name):
                    ui.update_select(form.id("use", name), selected=use_of(parts, name))


_ALONE: tuple[tuple[str, str | None], ...] = (("response", None), ("further", None))


def _edited(parts: FormulaParts, field: tuple[str, str | None], value: Any) -> FormulaParts:
    """A formula after one field of the list was changed. What is to be explained does not explain itself."""
    kind, column = field
    if kind == "further":
        return replace(parts, further=value or "")
    name = str(value or "") if kind == "response" else str(column)
    if kind == "use" and use_of(parts, name) == value:
        return parts
    numbers, categories = (tuple(one for one in part if one != name) for part in (parts.numbers, parts.categories))
    if kind == "response":
        return replace(parts, response=name, numbers=numbers, categories=categories)
    if name != parts.response:
        numbers += (name,) if value == "number" else ()
        categories += (name,) if value == "category" else ()
    return replace(parts, numbers=numbers, categories=categories)


def _data_file(room: Room, path: str) -> Any:
    """The data file, as it is said to be written."""
    options = {name: value for name in FILE_OPTIONS if (value := room.draft().get("data", name)) is not None}
    if path != room.draft().get("data", "path"):
        options = dict(_written(room, path))
    found = room.desk.folder / path
    if not found.is_file():
        return None
    made = attempt(lambda: File(found, **options)) if options else found
    return None if isinstance(made, Fault) else made


def _written(room: Room, path: str) -> Mapping[str, Any]:
    """How a file is written: as *Files* says if it was chosen there, otherwise as it seems to be."""
    for side in ("linked", "left", "right"):
        chosen = room.kept("files").get(side) or {}
        if chosen.get("path") == path:
            return chosen.get("options") or {}
    found = attempt(lambda: suggest_options(room.desk.folder / path))
    return {} if isinstance(found, Fault) else found


def say_incomplete(room: Room) -> str:
    """Why other pages have no study to work with, in the words of the form."""
    found = attempt(lambda: find_faults(room.text(), room.desk.folder, room.draft().name))
    if isinstance(found, Fault):
        said = found.text
    else:
        said = " ".join([say_faults(found), *(one.text for one in found if one.section and not one.missing)])
    return f"The study is not complete yet. {said} The page Study says it beside its fields."


def linkage_files(folder: Path) -> list[str]:
    """Files of a folder and its subfolders that say how rows were linked, as *Link*, *Review* and the command line write them."""
    found = sorted([*folder.glob("linkage*.toml"), *folder.glob("*/linkage*.toml")])
    return [str(path.relative_to(folder)) for path in found if path.is_file()]


def read_linkage(folder: Path, name: str) -> dict[str, Any]:
    """The settings of the links that a file of the folder holds."""
    if name not in linkage_files(folder):
        raise StudyError("This file is not there any more. Choose another one.")
    found = attempt(lambda: (folder / name).read_text(encoding="utf-8"))
    linkage = {} if isinstance(found, Fault) else _section(found, "linkage")
    if not linkage:
        raise StudyError(f"{show(name)} says nothing of links that could be taken over.")
    return linkage


def _section(text: str, name: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(text).get(name)
    except tomllib.TOMLDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _unit_of(text: str) -> str | None:
    """What the declared unit means, in the library's words."""
    carriers = _section(text, "linkage").get("carriers", 1)
    said = attempt(lambda: PrivacyUnit(**_section(text, "unit")).describe(carriers))
    return said if isinstance(said, str) else None


def in_lines(name: str) -> tuple[str, str]:
    """A shell's and Python's lines that read the study."""
    return (
        f"dplinked plan {shlex.quote(name)} --rows 10000",
        f"import dplinked as dpl\n\nstudy = dpl.Study.from_toml({name!r})",
    )


def _state(faults: list[SettingFault]) -> State:
    if faults:
        return State("missing", say_faults(faults), "Then look at the data.")
    return State("done", "The study is complete, and its settings fit together.", "Next, look at the data.")
