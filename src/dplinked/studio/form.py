"""The form of a study: its fields, and the changes they make to the study's text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from htmltools import Tag, TagChild, TagList, tags
from shiny import Inputs, ui

from dplinked.studio.draft import Changes, Draft, lines_of, list_from, table_from
from dplinked.studio.look import group, show

_SOURCES = {
    "": "not said",
    "public": "public",
    "identifiers": "found by checking identifiers",
    "released": "released, paid for",
    "estimated": "estimated from these files",
}
_FAMILIES = {
    "linear": "a number (a line)",
    "logistic": "an event, yes or no (logistic)",
    "poisson": "a count (Poisson)",
}
_MISSING = {"drop": "are left out", "fill": "count, with a public value in its place"}
_MATCHING = "A matching matrix says how likely each link is. This form keeps it as it is: edit it as text."
_NUMERIC = {"bounds0": "Lowest", "bounds1": "Highest", "typical0": "Typical from", "typical1": "to"}


class Fields:
    """The values that the browser sent for the form of one draft.

    Column names may hold any character, so the ids of fields use numbers for columns.
    """

    def __init__(self, input: Inputs, draft: Draft, slots: dict[str, int]) -> None:
        self._input, self._draft, self._slots = input, draft, slots

    def id(self, name: str, column: str | None = None) -> str:
        """The id of a field in the page."""
        slot = "" if column is None else f"_{self._slots.setdefault(column, len(self._slots))}"
        return f"{name}{slot}_{self._draft.number}"

    def has(self, name: str, column: str | None = None) -> bool:
        """Whether the browser has sent the field."""
        return self._input[self.id(name, column)].is_set()

    def get(self, name: str, column: str | None = None) -> Any:
        """The value of a field; None if it is empty or was not sent."""
        return self._input[self.id(name, column)]() if self.has(name, column) else None


def form(draft: Draft, fields: Fields) -> TagList:
    """All fields except those of columns, which depend on the formula."""
    get, id = draft.get, fields.id
    return TagList(
        group(
            "Data and model",
            ui.input_text(id("path"), "Data file", _text(get("data", "path")), placeholder="linked.parquet"),
            ui.input_text(
                id("formula"), "Formula", _text(get("model", "formula")), placeholder="consumption ~ income + C(region)",
                update_on="blur", spellcheck="false",
            ),
            ui.input_select(id("family"), "The response is", _FAMILIES, selected=_text(get("model", "family")) or "linear"),
            tags.div(
                ui.input_text(
                    id("exposure"), "Column of exposures, if counts are of different times or sizes", _text(get("model", "exposure")),
                    update_on="blur", spellcheck="false",
                ),
                class_="only-counts",
            ),
            ui.input_select(
                id("missing"), "Rows with a missing cell", _MISSING, selected=_text(get("model", "missing")) or "drop"
            ),
            ui.input_text(
                id("weights"), "Column of weights, if rows do not all count the same", _text(get("model", "weights")),
                update_on="blur", spellcheck="false",
            ),
            ui.input_text(
                id("where"), "Only rows for which this holds", _text(get("model", "where")),
                placeholder="age >= 65 and region == 'north'", update_on="blur", spellcheck="false",
            ),
            ui.input_text(
                id("by"), "The same in every level of this column", _text(get("model", "by")), update_on="blur", spellcheck="false",
            ),
            ui.input_text(
                id("cluster"), "Column of clusters, if rows were drawn together", _text(get("model", "cluster")),
                update_on="blur", spellcheck="false",
            ),
            ui.input_checkbox(
                id("goodness"), "R² and the residual standard deviation, for 3 % of the budget", bool(get("model", "goodness"))
            ),
            class_="model",
        ),
        group(
            "Columns",
            _hint("Public, never read from the data. Typical ranges are guesses: they help precision, nothing else."),
            ui.output_ui("study_columns"),
        ),
        _linkage_group(draft, fields),
        group(
            "Who is protected",
            _hint("One individual: any change of their values, and of their identifiers as far as said here."),
            tags.div(
                _number(id("displaced"), "Further links they may displace", get("unit", "displaced_links"), step="1"),
                _number(id("change"), "Change of the matching matrix", get("unit", "linkage_change")),
                class_="pair",
            ),
            ui.input_checkbox(id("moves"), "They may move to another block", get("unit", "moves_block") is True),
        ),
        group(
            "Privacy budget",
            tags.div(
                _number(id("epsilon"), "Epsilon of this release", get("privacy", "epsilon")),
                _number(id("delta"), "Delta of this release", get("privacy", "delta")),
                ui.input_text(id("url"), "Ledger", _text(get("ledger", "url")), placeholder="budget.db", spellcheck="false"),
                ui.input_text(id("population"), "Population", _text(get("ledger", "population")), placeholder="households"),
                class_="pair",
            ),
        ),
    )  # fmt: skip


def _linkage_group(draft: Draft, fields: Fields) -> Tag:
    """The fields of the linkage. A matching matrix has none."""
    get, id = draft.get, fields.id
    if get("linkage", "model") == "matching":
        return group("Linkage", _hint(_MATCHING))
    accuracy = get("linkage", "accuracy")
    per_block = isinstance(accuracy, dict)
    return group(
        "Linkage",
        ui.input_radio_buttons(
            id("model"), "How rows were linked", {"ele": "links can be wrong", "exact": "by a unique key"},
            selected="exact" if get("linkage", "model") == "exact" else "ele", inline=True,
        ),
        tags.div(
            ui.input_text(id("block"), "Block column", _text(get("linkage", "block")), spellcheck="false"),
            ui.input_radio_buttons(
                id("kind"), "Accuracy", {"one": "one for all", "each": "one per block"},
                selected="each" if per_block else "one", inline=True,
            ),
            tags.div(_number(id("accuracy"), "Share of links that are right", accuracy), class_="only-one"),
            tags.div(
                ui.input_text_area(
                    id("accuracies"), "Blocks and their accuracies, one per line", lines_of(accuracy) if per_block else "",
                    placeholder="nsw = 0.918", rows=4, spellcheck="false",
                ),
                class_="only-each",
            ),
            _number(id("checked"), "Links that were checked to find it", get("linkage", "checked")),
            ui.input_select(id("source"), "Where the accuracy comes from", _SOURCES, selected=_text(get("linkage", "source"))),
            ui.input_text(
                id("looked_at"), "Columns by which links were made and checked, if identifiers were",
                ", ".join(get("linkage", "fields") or []), spellcheck="false",
            ),
            class_="only-ele pair",
        ),
        class_="linkage",
    )  # fmt: skip


def column_fields(draft: Draft, fields: Fields, numeric: Iterable[str], categorical: Iterable[str]) -> TagList:
    """Fields for bounds and typical ranges of numeric columns and for levels of categorical ones. What was typed already is kept."""

    def now(name: str, column: str, opened: Any) -> Any:
        return fields.get(name, column) if fields.has(name, column) else opened

    shown: list[Tag] = []
    for column in numeric:
        ends = {f"{part}{k}": _item(draft.get(part, column), k) for part in ("bounds", "typical") for k in (0, 1)}
        inputs = [
            _number(fields.id(name, column), _label(column, label), now(name, column, ends[name]))
            for name, label in _NUMERIC.items()
        ]
        shown.append(tags.div(tags.h3(show(column)), tags.div(*inputs, class_="four"), class_="column"))
    for column in categorical:
        written = now("levels", column, lines_of(draft.get("levels", column)))
        label = _label(column, "Levels, one per line, the reference level first")
        area = ui.input_text_area(fields.id("levels", column), label, written, rows=3, spellcheck="false")
        shown.append(tags.div(tags.h3(show(column)), area, class_="column"))
    return TagList(*shown) if shown else TagList(_hint("They follow the formula."))


def form_changes(draft: Draft, fields: Fields) -> Changes:
    """The changes that the form makes to all settings except those of columns."""
    get = fields.get
    changes: Changes = {
        ("data", "path"): get("path"),
        ("model", "formula"): get("formula"),
        ("model", "family"): family_of(draft, fields),
        ("model", "exposure"): exposure_of(draft, fields),
        ("model", "missing"): _chosen(draft, fields, "missing", "drop"),
        ("model", "weights"): counted_of(draft, fields, "weights"),
        ("model", "where"): counted_of(draft, fields, "where"),
        ("model", "by"): counted_of(draft, fields, "by"),
        ("model", "cluster"): counted_of(draft, fields, "cluster"),
        ("privacy", "epsilon"): get("epsilon"),
        ("privacy", "delta"): get("delta"),
        ("unit", "displaced_links"): get("displaced"),
        ("unit", "linkage_change"): get("change"),
        ("ledger", "url"): get("url"),
        ("ledger", "population"): get("population"),
    }
    if get("moves") or draft.get("unit", "moves_block") is not None:
        changes["unit", "moves_block"] = bool(get("moves"))
    if fields.has("goodness") and (get("goodness") or draft.get("model", "goodness") is not None):
        changes["model", "goodness"] = bool(get("goodness"))
    if get("model") == "exact":
        return {**changes, **{("linkage", key): None for key in draft.keys("linkage")}, ("linkage", "model"): "exact"}
    if draft.get("linkage", "model") == "matching":
        return changes
    changes["linkage", "model"] = "ele" if draft.get("linkage", "model") else None
    changes["linkage", "block"] = get("block")
    changes["linkage", "accuracy"] = get("accuracy") if get("kind") == "one" else table_from(get("accuracies") or "")
    changes["linkage", "source"] = get("source")
    changes["linkage", "fields"] = (
        list_from((get("looked_at") or "").replace(",", "\n"), None)
        if get("source") == "identifiers"
        else draft.get("linkage", "fields")
    )
    if get("checked") is not None or not isinstance(draft.get("linkage", "checked"), dict):
        changes["linkage", "checked"] = get("checked")
    return changes


def family_of(draft: Draft, fields: Fields) -> Any:
    """The family that the form says."""
    return _chosen(draft, fields, "family", "linear")


def _chosen(draft: Draft, fields: Fields, name: str, usual: str) -> Any:
    """What the form says of the model; nothing for what is `usual` where the text says nothing, since that is what it is then."""
    written = draft.get("model", name)
    if not fields.has(name):
        return written
    chosen = fields.get(name)
    return None if chosen == usual and written is None else chosen


def exposure_of(draft: Draft, fields: Fields) -> Any:
    """The exposure's column that the form says; nothing for what is no count."""
    if not fields.has("exposure"):
        return draft.get("model", "exposure")
    return fields.get("exposure") if family_of(draft, fields) == "poisson" else None


def counted_of(draft: Draft, fields: Fields, name: str) -> Any:
    """The weights, the condition, the column of levels or the clusters that the form says."""
    return fields.get(name) if fields.has(name) else draft.get("model", name)


def column_changes(draft: Draft, fields: Fields, numeric: Iterable[str], categorical: Iterable[str]) -> Changes:
    """The changes that the form makes to the settings of columns."""
    changes: Changes = {}
    for column in numeric:
        for part in ("bounds", "typical"):
            if fields.has(f"{part}0", column) and fields.has(f"{part}1", column):
                ends = [fields.get(f"{part}{k}", column) for k in (0, 1)]
                changes[part, column] = [end for end in ends if end is not None]
    for column in categorical:
        if column not in numeric:  # an event was a number before, if it has bounds
            changes |= {(part, column): None for part in ("bounds", "typical")}
        if fields.has("levels", column):
            changes["levels", column] = list_from(fields.get("levels", column), draft.get("levels", column))
    return changes


def _label(column: str, text: str) -> Tag:
    """The label of a field. Screen readers also read the column's name."""
    return tags.span(tags.span(f"{show(column)}: ", class_="visually-hidden"), text)


def _number(id: str, label: TagChild, value: Any, step: Any = "any") -> Tag:
    given: Any = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return ui.input_numeric(id, label, given, step=step)


def _hint(text: str) -> Tag:
    return tags.p(text, class_="hint")


def _item(values: Any, k: int) -> Any:
    return values[k] if isinstance(values, list) and len(values) == 2 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
