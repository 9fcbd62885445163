"""The page *Study* shows a study file as a form, with its text beside it, and checks it while it is edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.studio.desk import Desk, Fault, attempt
from dplinked.studio.draft import BLANK, Changes, Draft, formula_columns
from dplinked.studio.form import (
    Fields,
    column_changes,
    column_fields,
    counted_of,
    exposure_of,
    family_of,
    form,
    form_changes,
)
from dplinked.studio.look import ask, panel, say, section, show
from dplinked.study.study import Study

_NEW = ""  # stands for a new study among the files that can be opened


@dataclass(frozen=True)
class Room:
    """What one window works on.

    Attributes
    ----------
    text
        Returns the study's text as it stands.
    study
        Returns the study that the text declares, or what is wrong with it.
    change
        Changes settings of the study.
    saved
        Returns the file that holds the text as it stands, if there is one.
    """

    text: Callable[[], str]
    study: Callable[[], Study | Fault]
    change: Callable[[Changes], None]
    saved: Callable[[], Path | None]


def layout() -> NavSetArg:
    """Lay out the page."""
    text = tags.div(ui.output_code("study_text"), role="region", tabindex="0", aria_label="Text of the study file")
    return panel(
        "Study",
        "study",
        ui.output_ui("study_state"),
        tags.div(
            tags.div(ui.output_ui("study_form")),
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
            ),
            class_="split",
        ),
    )  # fmt: skip


def serve(input: Inputs, desk: Desk) -> Room:
    """Give the page its behaviour. Returns what the other pages work on."""
    first = desk.opened
    opened = None if first is None else attempt(lambda: desk.read(first))
    fine = opened if isinstance(opened, str) else None
    draft = reactive.value(Draft(0, first or desk.free_name(), BLANK if fine is None else fine, fine))
    told = reactive.value[Fault | None](opened if isinstance(opened, Fault) else None)
    slots: dict[str, int] = {}

    def fields() -> Fields:
        return Fields(input, draft(), slots)

    def load(text: str, name: str, saved: str | None) -> None:
        with reactive.isolate():
            draft.set(Draft(draft().number + 1, name, text, saved))
        told.set(None)

    @reactive.calc
    def columns() -> tuple[list[str], list[str]]:
        formula = fields().get("formula") if fields().has("formula") else draft().get("model", "formula")
        levels = [name for name in draft().keys("levels") if name not in draft().keys("bounds")]
        chosen = family_of(draft(), fields()), exposure_of(draft(), fields())
        chosen += tuple(counted_of(draft(), fields(), name) for name in ("weights", "where", "by"))
        return formula_columns(formula if isinstance(formula, str) else "", levels, *chosen)

    @reactive.calc
    def text_now() -> str:
        if draft().sections is None or not fields().has("formula"):
            return draft().text
        changes = {**form_changes(draft(), fields()), **column_changes(draft(), fields(), *columns())}
        written = attempt(lambda: draft().changed(changes))
        return draft().text if isinstance(written, Fault) else written

    @reactive.calc
    def study_now() -> Study | Fault:
        return attempt(lambda: Study.from_text(text_now(), desk.folder, name=draft().name))

    @render.ui
    def study_state() -> Tag:
        found = study_now()
        if isinstance(found, Fault):
            return say(found.text, "bad")
        return say("The study is complete, and its settings fit together.", "good")

    @render.ui
    def study_form() -> Tag | TagList:
        if draft().sections is None:
            return say("The form cannot show a text that is not valid TOML. Edit it as text.")
        return form(draft(), fields())

    @render.ui
    def study_columns() -> TagList:
        numeric, categorical = columns()
        now, sent = draft(), fields()
        with reactive.isolate():
            return column_fields(now, sent, numeric, categorical)

    @render.code
    def study_text() -> str:
        return show(text_now())

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

    @render.ui
    def study_saved() -> Tag:
        message = told()
        if message is not None:
            return say(message.text, "bad")
        if draft().saved == text_now():
            return say(f"{draft().name!r} is saved.")
        return say("Not saved.")

    def open_chosen() -> None:
        name = str(input.file())
        if name == _NEW:
            load(BLANK, desk.free_name(), None)
            return
        found = attempt(lambda: desk.read(name))
        if isinstance(found, Fault):
            told.set(found)
        else:
            load(found, name, found)

    @reactive.effect
    @reactive.event(input.open_file)
    def _open() -> None:
        if text_now() in (draft().saved, BLANK):
            open_chosen()
            return
        discard = ui.input_action_button("discard", "Discard them", class_="btn-primary")
        ask("Open another study?", "There are changes that are not saved.", yes=discard)

    @reactive.effect
    @reactive.event(input.discard)
    def _discard() -> None:
        ui.modal_remove()
        open_chosen()

    @reactive.effect
    @reactive.event(input.save_file)
    def _save() -> None:
        name, text = str(input.file_name()), text_now()
        before = draft().saved if name == draft().name else None
        done = attempt(lambda: desk.write(name, text, before))
        if isinstance(done, Fault):
            told.set(done)
        else:
            load(text, name, text)

    # --- as text ---------------------------------------------------------------------------------

    @reactive.effect
    @reactive.event(input.edit_text)
    def _edit() -> None:
        area = ui.input_text_area(
            "whole_text", "Study file (TOML)", text_now(), rows=20, width="100%", spellcheck="false"
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
        yield text_now()

    def change(changes: Changes) -> None:
        with reactive.isolate():
            load(Draft(0, "", text_now()).changed(changes), draft().name, draft().saved)

    def saved() -> Path | None:
        return desk.folder / draft().name if draft().saved == text_now() else None

    return Room(text_now, study_now, change, saved)
