"""The form of the page *Link*: its fields, what they ask for, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, ui

from dplinked.linker.audit import LEAST_CHECKED
from dplinked.linker.checks import check_fields, check_file
from dplinked.linker.fields import KINDS, MOST_NAMES, Field
from dplinked.linker.files import AUDIT, FIRST, SECOND, has_answers
from dplinked.linker.leftovers import BYTES_PER_PAIR
from dplinked.linker.rules import MEMORY
from dplinked.linker.suggest import Blocks, Suggestions, preview_blocks
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.linking import Request
from dplinked.studio.look import group, render_to, show, steward_only

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {
    "name": "a name: similar is enough",
    "text": "other text: similar is enough",
    "date": "a date: one part may differ",
    "number": "a number: about the same",
    "id": "a code: letter for letter",
    "postcode": "a postcode: letter for letter",
}
assert set(_KINDS) == set(KINDS)
_METHODS = {
    "rules": "By rules: every pair within a block is compared. Loses least, wherever the pairs fit into memory.",
    "splink": "With Splink: probabilities, learned from the files. For files of more than some 10,000 rows in a block.",
}
_DEFAULTS: dict[str, Any] = {"method": "rules", "threshold": None, "overlap": None, "carriers": None, "out": "linked", "size": 400, "secret": False}  # fmt: skip


@dataclass(frozen=True)
class Files:
    """The two chosen files: what is kept of them, and their rows."""

    left: Mapping[str, Any]
    right: Mapping[str, Any]
    tables: tuple[pa.Table, pa.Table]
    suggested: Suggestions

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The columns of both."""
        return self.tables[0].column_names, self.tables[1].column_names

    @property
    def of(self) -> list[Any]:
        """By what a form is known to be about these files."""
        return [dict(self.left), dict(self.right)]


# --- the form ------------------------------------------------------------------------------------------


def values_of(kept: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """The form's values: as they were left, if they are about these files, else as the files suggest."""
    values = {name: kept.get(name, default) for name, default in _DEFAULTS.items()}
    if kept.get("of") == files.of:
        return {
            **values,
            "columns": kept.get("columns") or {},
            "ids": kept.get("ids") or ["", ""],
            "block": kept.get("block") or [],
        }
    suggested = files.suggested
    columns = {one.left: [one.right, one.kind] for one in suggested.fields if one.compare}
    return {
        **values,
        "columns": columns,
        "ids": [name or "" for name in suggested.ids],
        "block": [suggested.block] if suggested.block else [],
    }


def request_of(values: Mapping[str, Any], files: Files) -> Request:
    """What the form asks for. Columns that a file does not have any more are left out."""
    left, right = files.names
    fields = tuple(
        (name, own[0], own[1]) for name, own in values["columns"].items() if name in left and own[0] in right
    )
    ids = tuple(values["ids"])
    return Request(
        files.left, files.right, fields, (ids[0], ids[1]) if all(ids) else None, tuple(values["block"]), values["method"],
        values["threshold"], values["overlap"], values["carriers"], str(values["out"]), int(values["size"] or 0), bool(values["secret"]),
    )  # fmt: skip


def sent_values(input: Inputs, number: int, files: Files) -> dict[str, Any] | None:
    """What the browser sent for a form; None as long as it is not there."""

    def sent(name: str) -> Any:
        value = input[f"{name}_{number}"]
        return value() if value.is_set() else None

    names = files.names[0]
    rights = [sent(f"link_right_{place}") for place in range(len(names))]
    kinds = [sent(f"link_kind_{place}") for place in range(len(names))]
    plain = {name: sent(f"link_{name}") for name in ("id_left", "id_right", "method", "out")}
    if None in (*rights, *kinds, *plain.values()):
        return None
    overlap = sent("link_overlap")
    return {
        "of": files.of,
        "columns": {name: [right, kind] for name, right, kind in zip(names, rights, kinds, strict=True) if right},
        "ids": [plain["id_left"], plain["id_right"]],
        "block": list(sent("link_block") or ()),
        "method": plain["method"],
        "threshold": sent("link_threshold"),
        "overlap": None if overlap is None else overlap / 100.0,
        "carriers": int(sent("link_carriers") or 0) if sent("link_kind_of_links") == "many" else None,
        "out": plain["out"].strip(),
        "size": int(sent("link_size") or 0),
        "secret": bool(sent("link_secret")),
    }


def link_fields(values: Mapping[str, Any], files: Files, number: int) -> TagList:
    """All fields of the form. Their ids end in its number, so that what another form sent is not taken for theirs."""

    def id(name: str) -> str:
        return f"link_{name}_{number}"

    return TagList(
        _fields_group(values, files, number),
        _records_group(values, files, id),
        _way_group(values, id),
        _written_group(values, id),
    )


def _records_group(values: Mapping[str, Any], files: Files, id: Callable[[str], str]) -> Tag:
    """Columns that name a record, and blocks."""
    ids = [{"": "none: rows are known by their place", **{name: show(name) for name in names}} for names in files.names]
    common = {name: show(name) for name in files.names[0] if name in files.names[1] and name not in values["ids"]}
    return group(
        "Records and blocks",
        tags.div(
            _with_fault(ui.input_select(id("id_left"), "Column that names a record, in the first file", ids[0], selected=values["ids"][0]), "id_left"),
            _with_fault(ui.input_select(id("id_right"), "The same in the second file", ids[1], selected=values["ids"][1]), "id_right"),
            class_="pair top",
        ),
        _with_fault(
            ui.input_checkbox_group(id("block"), "Link within (columns that both files have)", common, selected=list(values["block"]), inline=True), "block"
        ),
        _hint("Records of different blocks are compared only if they find nobody within theirs. Good blocks are coarse and rarely wrong, such as a state. Each gets its own accuracy."),
    )  # fmt: skip


def _way_group(values: Mapping[str, Any], id: Callable[[str], str]) -> Tag:
    """How records are linked."""
    share = None if values["overlap"] is None else 100 * values["overlap"]
    kinds = {
        "one": "belongs to one row of the first",
        "many": "may belong to several rows, as a household's to its members",
    }
    return group(
        "How",
        _with_fault(ui.input_radio_buttons(id("method"), "Way of linking", _METHODS, selected=values["method"]), "method"),
        ui.input_radio_buttons(id("kind_of_links"), "A record of the second file", kinds, selected="one" if values["carriers"] is None else "many"),
        tags.div(_number("carriers", id, "To how many rows at most", values["carriers"], least=2, step=1), class_="only-many"),
        tags.details(
            tags.summary("Further settings"),
            tags.div(
                _number("threshold", id, "Least score (rules) or probability (Splink) of a link", values["threshold"]),
                _number("overlap", id, "% of the smaller file's people who are in the other file, if you know", share),
                class_="pair top",
            ),
            _hint("Leave them empty, and dplinked chooses the first and estimates the second."),
        ),
        class_="how",
    )  # fmt: skip


def _written_group(values: Mapping[str, Any], id: Callable[[str], str]) -> Tag:
    """What is written, and where."""
    return group(
        "What is written",
        tags.div(
            _with_fault(ui.input_text(id("out"), "Folder for the linked rows, beside the study", str(values["out"]), spellcheck="false"), "out"),
            _number("size", id, "Links to draw for a review, about", values["size"], least=0, step=50),
            class_="pair top",
        ),
        ui.input_checkbox(id("secret"), "Keep secret who is drawn", bool(values["secret"]), width="100%"),
        _hint(
            "Secrecy matters only if the accuracy is to be released with noise, where identifiers are protected too: then it costs a fraction. The page then tells nothing of what the review finds, "
            "and the key beside the folder is kept like the data."
        ),
    )  # fmt: skip


def _fields_group(values: Mapping[str, Any], files: Files, number: int) -> Tag:
    """One line for each column of the first file: its counterpart, and what it is compared as."""
    reasons = {one.left: one for one in files.suggested.fields}
    lines: dict[bool, list[Tag]] = {True: [], False: []}
    for place, name in enumerate(files.names[0]):
        right, kind = values["columns"].get(name) or ("", "")
        known = reasons.get(name)
        kind = kind or (known.kind if known else Field(name).kind or "text")
        why = (
            _hint(f"{known.why}: {show(known.right)}" if known and known.right != name else known.why)
            if known
            else None
        )
        lines[bool(right) or known is not None].append(_line(place, number, name, right, kind, why, files.names[1]))
    return group(
        "What is compared",
        steward_only("How far contents agree is read from the rows."),
        tags.div(tags.span("column of the first file"), tags.span("the same in the second file"), tags.span("compared as"), class_="line head", aria_hidden="true"),
        *lines[True],
        tags.details(tags.summary(f"Columns without a counterpart ({len(lines[False])})"), *lines[False]) if lines[False] else None,
        ui.output_ui("fault_fields"),
        _hint("Compare what tells people apart: names, dates of birth, addresses. What is compared should not be in the formula, nor what was made of it."),
        class_="lines",
    )  # fmt: skip


def _line(place: int, number: int, name: str, right: str, kind: str, why: Tag | None, others: Sequence[str]) -> Tag:
    listed = {"": "not compared", **{other: show(other) for other in others}}
    hidden = tags.span(f"{show(name)}: ", class_="visually-hidden")
    return tags.div(
        tags.div(tags.span(show(name), class_="column-name"), why),
        ui.input_select(f"link_right_{place}_{number}", TagList(hidden, tags.span("the same in the second file", class_="narrow")), listed, selected=right),
        tags.div(ui.input_select(f"link_kind_{place}_{number}", TagList(hidden, tags.span("compared as", class_="narrow")), _KINDS, selected=kind), class_="as"),
        ui.output_ui(f"fault_field_{place}_{number}"),
        class_="line",
    )  # fmt: skip


def _number(
    name: str, id: Callable[[str], str], label: str, value: float | None, least: float | None = None, step: Any = "any"
) -> Tag:
    return _with_fault(ui.input_numeric(id(name), label, value, min=least, step=step), name)  # type: ignore[arg-type]


def _with_fault(field: Tag, name: str) -> Tag:
    return tags.div(field, ui.output_ui(f"fault_{name}"))


def _hint(text: str) -> Tag:
    return tags.p(text, class_="hint")


def show_fault(id: str, name: str, faults: Callable[[], Mapping[str, str]]) -> None:
    """Show the fault of a field below it."""

    @render_to(f"fault_{id}")
    def _() -> Tag | None:
        text = faults().get(name)
        return None if text is None else tags.p(show(text), class_="fault", role="alert")


# --- faults ----------------------------------------------------------------------------------------------


def find_faults(request: Request, values: Mapping[str, Any], files: Files, folder: Path) -> dict[str, str]:
    """What is wrong, by the name of the field that it is about; nothing if the files can be linked."""
    found: dict[str, str | None] = {
        "fields": _fields_fault(request),
        "threshold": _threshold_fault(request),
        "overlap": None
        if request.overlap is None or 0.0 < request.overlap <= 1.0
        else "This is a share in per cent, above 0 and up to 100.",
        "carriers": _carriers_fault(request),
        "out": _folder_fault(request, folder),
        "method": "Splink is not installed: pip install 'dplinked[linkage]'."
        if request.method == "splink" and not find_spec("splink")
        else None,
    }
    for table, where, ordinal, name in zip(
        files.tables, ("left", "right"), ("first", "second"), values["ids"], strict=True
    ):
        own = name if name in table.column_names else None
        fault = attempt(lambda table=table, own=own, where=where: check_file(table, own, where))  # type: ignore[misc]
        found[f"id_{where}"] = _in_words(fault)
        if bool(name) != any(values["ids"]):
            found[f"id_{where}"] = f"Name the column of the {ordinal} file too, or none of both."
    for left, right, kind in request.fields:
        found[f"field {left}"] = _field_fault(Field(left, kind, right=right), files, request)
    blocks = attempt(lambda: preview_blocks(*files.tables, request.block))
    if isinstance(blocks, Fault):
        found["block"] = _in_words(blocks)
    else:
        found["size"] = _size_fault(request, blocks, files)
        if request.method == "rules" and blocks.largest * (request.carriers or 1) * BYTES_PER_PAIR > MEMORY:
            found["method"] = (
                f"The largest block has {blocks.largest:,} pairs, more than fit into memory. Link within narrower blocks, or with Splink."
            )
    return {name: text for name, text in found.items() if text is not None}


def _in_words(fault: Any) -> str | None:
    """A fault as a form says it: the left file is the first one."""
    if not isinstance(fault, Fault):
        return None
    return (
        fault.text.replace("the left file", "the first file")
        .replace("the right file", "the second file")
        .replace("The left file", "The first file")
        .replace("The right file", "The second file")
    )


def _fields_fault(request: Request) -> str | None:
    if len(request.fields) > MOST_NAMES:
        return f"Choose at most {MOST_NAMES} columns to compare."
    return None if request.fields else "Choose at least one column to compare."


def _field_fault(field: Field, files: Files, request: Request) -> str | None:
    if request.id is not None and (field.name == request.id[0] or field.right == request.id[1]):
        return "This column names a record, so it is not compared. Choose another one above or below."
    for table, where in zip(files.tables, ("left", "right"), strict=True):
        fault = attempt(lambda table=table, where=where: check_fields(table, [field], where, typed=False))  # type: ignore[misc]
        if isinstance(fault, Fault):
            return _in_words(fault)
    return None


def _threshold_fault(request: Request) -> str | None:
    largest = 1.0 if request.method == "splink" else float(max(1, len(request.fields)))
    if (
        request.threshold is None
        or 0.0 < request.threshold < largest
        or (request.method == "rules" and request.threshold == largest)
    ):
        return None
    return (
        "This is a probability between 0 and 1."
        if request.method == "splink"
        else f"The score is at most {largest:g}, 1 for each column compared."
    )


def _carriers_fault(request: Request) -> str | None:
    if request.carriers is None or (float(request.carriers).is_integer() and 2 <= request.carriers <= 100):
        return None
    return "Say a whole number from 2 to 100, by what the files are. The noise grows with it."


def _folder_fault(request: Request, folder: Path) -> str | None:
    name = request.out
    if not name or Path(name).name != name or name.startswith((".", "-")) or not name.isprintable():
        return "This is the name of a folder, without others around it, such as linked."
    if (folder / name).exists() and not (folder / name).is_dir():
        return "This is a file. Name a folder."
    return None


def _size_fault(request: Request, blocks: Blocks, files: Files) -> str | None:
    if not request.size:
        return "A secret sample has links: say how many, or untick it below." if request.secret else None
    groups = min(blocks.shared, 48) + 2
    least = min(LEAST_CHECKED * groups, files.tables[0].num_rows)
    if request.size < least:
        return f"With so many blocks, draw {least} or more: {LEAST_CHECKED} for each group of links. 0 draws none."
    return None


def answers_fault(request: Request, folder: Path) -> str | None:
    """Why no links can be drawn, if the folder holds answers to others."""
    if not request.size or _folder_fault(request, folder) is not None:
        return None
    if not any(has_answers(folder / request.out / name) for name in (AUDIT, FIRST, SECOND)):
        return None
    return f"{request.out!r} holds answers of a review, which a new sample would replace. Name another folder; or draw 0 links, which keeps the answers if the links stay the same."
