"""The page *Files*: which files there are, how they are written, and what their columns hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.check.files import FileFacts, check_file, suggest_options
from dplinked.data.files import kind_of
from dplinked.data.format import DECIMALS, SEPARATORS, THOUSANDS, File, split_file
from dplinked.data.look import as_arguments, look_at
from dplinked.errors import shown
from dplinked.studio import outside
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import Draft
from dplinked.studio.look import group, panel, render_to, rows, say, section, show, steward_only
from dplinked.studio.path import State
from dplinked.studio.room import Room, Side, steady, when_changed

WAYS = {
    "two": "Two files about the same people, to be linked here",
    "linked": "One file whose rows are linked already",
}
_SIDES: dict[str, tuple[Side, ...]] = {"two": ("left", "right"), "linked": ("linked",)}
_TITLES: dict[Side, str] = {
    "left": "The file with the regressors",
    "right": "The file with the response",
    "linked": "The file with linked rows",
}
_HINTS: dict[Side, str] = {
    "left": "Every row of it is kept. What explains, such as income or age, comes from here.",
    "right": "What is to be explained, such as consumption, comes from here.",
    "linked": "Each row holds the regressors of one person and the response that was linked to them.",
}
_ENCODINGS = {"": "UTF-8", "latin-1": "Latin-1 (Western European)", "cp1252": "Windows (cp1252)", "utf-16": "UTF-16"}
SAME = "Both files are the same one, so that every record would be linked to itself. Choose two files on Files."
_OTHER = "…"  # stands for a path that is typed
_OPTIONS = {
    "separator": ",",
    "decimal": ".",
    "thousands": "",
    "encoding": "",
    "sheet": "",
}  # and what they are by default


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "files",
        ui.output_ui("files_way"),
        ui.output_ui("files_where"),
        ui.output_ui("files_choose"),
        steward_only("What the columns hold is read from the rows."),
        tags.div(*(ui.output_ui(f"seen_{side}") for side in _SIDES["two"]), class_="halves"),
        ui.output_ui("seen_linked"),
        ui.output_ui("files_outside"),
    )


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour."""

    def find_listed() -> list[str]:
        room.files()
        return data_files(room.desk.folder)

    way, listed = steady(lambda: _way(room)), steady(find_listed)

    @render.ui
    def files_way() -> Tag:
        return ui.input_radio_buttons("way", "What do you have?", WAYS, selected=way())

    @reactive.effect
    @reactive.event(input.way)
    def _choose_way() -> None:
        if input.way() != way():
            room.keep("files", way=input.way())

    @render.ui
    def files_where() -> Tag:
        where = f"The studio works in the folder {show(str(room.desk.folder))}."
        none = " No file with rows is there yet: put yours there, and they are listed here."
        return tags.p(where + ("" if listed() else none), class_="hint")

    @render.ui
    def files_choose() -> Tag:
        chosen = way()
        with reactive.isolate():
            kept, names = room.kept("files"), listed()
            return tags.div(*(_chooser(names, side, kept.get(side) or {}) for side in _SIDES[chosen]), class_="halves")

    for side in _TITLES:
        _serve_side(input, room, side, way, listed)

    @reactive.effect
    def _name_data() -> None:
        """A file of linked rows is what the study is about."""
        chosen = room.kept("files").get("linked")
        if way() != "linked" or not chosen:
            return
        with reactive.isolate():
            if room.here() and room.draft().sections is not None:
                written = {("data", name): (chosen.get("options") or {}).get(name) for name in _OPTIONS}
                now = Draft(0, "", room.text())
                changes = {("data", "path"): chosen["path"], **written}
                if any(now.get(*key) != value for key, value in changes.items()):
                    room.change(changes)

    @render.ui
    def files_outside() -> Tag | None:
        chosen = [room.source(side) for side in _SIDES[way()]]
        known = [file for file in chosen if file is not None]
        if not known or len(known) < len(chosen):
            return None
        return outside.same(python=in_python(known, room.desk.folder), study=room.text())

    return lambda: _state(room, way())


def _way(room: Room) -> str:
    kept = room.kept("files").get("way")
    return str(kept) if kept in list(WAYS) else "two"


def _serve_side(input: Inputs, room: Room, side: Side, way: Callable[[], str], listed: Callable[[], list[str]]) -> None:
    """Let one file be chosen, and show what it holds."""

    def sent(name: str) -> Any:
        value = input[f"{name}_{side}"]
        return value() if value.is_set() else None

    @reactive.effect
    def _choose() -> None:
        picked, typed = sent("pick"), sent("path")
        path = typed if picked == _OTHER else picked
        with reactive.isolate():
            before = room.kept("files").get(side) or {}
            if not isinstance(path, str) or path == before.get("path", ""):
                return
            options = dict(suggest_options(room.desk.folder / path)) if path else {}
            room.keep("files", **{side: {"path": path, "options": options} if path else None})

    def list_anew() -> None:
        """Other files are in the folder: the list follows. What was chosen stays so, though it may be gone."""
        picked = sent("pick")
        if picked is not None and side in _SIDES[way()]:
            choices = _choices_among(listed())
            kept = {} if picked in choices else {picked: f"{show(picked)}, which is gone"}
            ui.update_select(f"pick_{side}", choices={**choices, **kept}, selected=picked)

    when_changed(listed, list_anew)

    @reactive.effect
    def _write() -> None:
        wanted = {name: sent(name) for name in _OPTIONS if sent(name) is not None}
        with reactive.isolate():
            before = room.kept("files").get(side)
            if not wanted or not before or sent("of") != before["path"]:
                return
            rest = {key: value for key, value in (before.get("options") or {}).items() if key not in wanted}
            chosen = {key: value for key, value in wanted.items() if value not in ("", _OPTIONS[key])}
            if {**rest, **chosen} != before.get("options"):
                room.keep("files", **{side: {**before, "options": {**rest, **chosen}}})

    @reactive.calc
    def facts() -> FileFacts | Fault | None:
        room.files()
        file = room.source(side)
        return None if file is None else look_into(file)

    @render_to(f"seen_{side}")
    def _seen() -> Tag | None:
        if side not in _SIDES[way()] or (found := facts()) is None:
            return None
        chosen = room.kept("files")[side]
        path = room.desk.folder / chosen["path"]
        return section(
            f"{_TITLES[side]}: {show(chosen['path'])}",
            *(_written(side, path, chosen["path"], chosen.get("options") or {}) if os.path.isfile(path) else ()),
            say(found.text, "bad") if isinstance(found, Fault) else _columns(found, _TITLES[side]),
        )


def _choices_among(names: Sequence[str]) -> dict[str, str]:
    """What can be chosen where these files are in the folder."""
    return {"": "choose a file", **{name: show(name) for name in names}, _OTHER: "another place …"}


def _chooser(names: Sequence[str], side: Side, kept: Mapping[str, Any]) -> Tag:
    path = str(kept.get("path") or "")
    picked = path if path in names or not path else _OTHER
    return group(
        _TITLES[side],
        tags.p(_HINTS[side], class_="hint"),
        ui.input_select(f"pick_{side}", "File in this folder", _choices_among(names), selected=picked),
        tags.div(
            ui.input_text(f"path_{side}", "Its path", path, update_on="blur", spellcheck="false"),
            class_="only-other",
        ),
        class_="picked",
    )


def _written(side: Side, path: Path, name: str, options: Mapping[str, Any]) -> Iterator[Tag]:
    """How a file is written, as it was found or is said."""
    fields = _choices(path, options)
    if fields:
        yield tags.div(
            tags.div(ui.input_text(f"of_{side}", None, name), hidden=True),
            *(
                ui.input_select(f"{option}_{side}", label, listed, selected=str(options.get(option, _OPTIONS[option])))
                for option, (label, listed) in fields.items()
            ),
            class_="pair three",
        )


def _choices(path: Path, options: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, str]]]:
    """What can be said of a file of this kind: labels and choices by the option's name."""
    if kind_of(path) == "xlsx":
        sheets = look_at(path)
        names = () if sheets is None else sheets.sheets
        return {"sheet": ("Sheet", {"": "the first", **{name: show(name) for name in names}})}
    if kind_of(path) != "csv":
        return {}
    marks = {mark: words for mark, words in SEPARATORS.items() if mark in ",;\t|"}
    own = options.get("encoding", "")
    letters = _ENCODINGS if own in _ENCODINGS else {**_ENCODINGS, own: own}
    return {
        "separator": ("Between cells", marks),
        "decimal": ("Decimal", dict(DECIMALS)),
        "thousands": ("Between thousands", {"": "nothing", **THOUSANDS}),
        "encoding": ("Letters", letters),
    }


def _columns(found: FileFacts, label: str) -> TagList:
    cells = [
        (show(one.name), one.kind, f"{100 * one.missing:.1f} %" if one.missing else "", f"{one.distinct:,}")
        for one in found.columns
    ]
    header = ("column", "cells are", "missing", "different values")
    return TagList(tags.p(f"{found.rows:,} rows, {len(cells)} columns."), rows(header, cells, f"Columns: {label}"))


def data_files(folder: Path) -> list[str]:
    """Names of the files in a folder and its subfolders that hold rows, as far as they can be read."""
    found = [*folder.glob("*"), *folder.glob("*/*")]
    named = [path for path in found if kind_of(path) and kind_of(path) != "json" and path.is_file()]
    shown = [
        path.relative_to(folder)
        for path in named
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    return [str(path) for path in sorted(shown, key=lambda path: (len(path.parts), str(path)))]


def is_same(left: File | Path | None, right: File | Path | None) -> bool:
    """Whether two files are one, read in one way: two sheets of one file are two."""
    if left is None or right is None:
        return False
    (one, how), (other, otherwise) = split_file(left), split_file(right)
    return how == otherwise and os.path.isfile(one) and os.path.isfile(other) and os.path.samefile(one, other)


def look_into(file: File | Path) -> FileFacts | Fault:
    """What a file holds, or why it is of no use."""
    found = attempt(lambda: facts_of(file))
    if isinstance(found, Fault) or found.rows:
        return found
    name = shown(split_file(file)[0].name)
    return Fault(f"{name} has no rows: it holds the names of columns, and nothing below them. Put the rows into it, or choose another file.")  # fmt: skip


def facts_of(file: File | Path) -> FileFacts:
    """What a file holds. It is read again only if it has changed."""
    path, _ = split_file(file)
    state = path.stat() if os.path.isfile(path) else None
    return _read(file, None if state is None else (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=8)
def _read(file: File | Path, state: tuple[int, int] | None) -> FileFacts:
    return check_file(file)


def in_python(files: Sequence[File | Path], folder: Path) -> str:
    """Python lines that name the files, to be run in the studio's folder."""
    names = ["rows"] if len(files) == 1 else ["left", "right"]
    lines = [f"{name} = {as_python(file, folder)}" for name, file in zip(names, files, strict=True)]
    return "\n".join(["import dplinked as dpl", "", *lines])


def as_python(file: File | Path, folder: Path) -> str:
    """A file as an expression of Python, by its path within a folder if it is there."""
    path, format = split_file(file)
    named = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    options = format.options()
    return f"dpl.File({named!r}, {as_arguments(options)})" if options else repr(named)


def _state(room: Room, way: str) -> State:
    room.files()
    missing = [_TITLES[side].lower() for side in _SIDES[way] if room.source(side) is None]
    if missing:
        return State(
            "missing",
            f"Choose {' and '.join(missing)}.",
            "Then comes linking." if way == "two" else "Then comes the study.",
        )
    if way == "two" and is_same(room.source("left"), room.source("right")):
        return State("missing", SAME)
    if any(isinstance(look_into(file), Fault) for side in _SIDES[way] if (file := room.source(side))):
        return State("missing", "A file cannot be used: see below what is wrong.")
    return State(
        "done",
        "The files are chosen and can be read.",
        "Next, link them." if way == "two" else "Next, say what the study is.",
    )
