"""What the browser sent for the form of a study, and the changes that it makes to the study's text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shiny import Inputs

from dplinked.studio.draft import Changes, Draft, list_from, number_from, table_from

_USUAL = {  # what the text need not say
    "family": "linear",
    "missing": "drop",
    "method": "ssp",
    "calibration": "tight",
    "errors": "any",
}
_TEXTS = ("weights", "where", "by", "cluster", "strata")
_PAID = {"paid": "paid", "displaced_links": "paid_links"}  # settings of released accuracies, and their fields


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

    def number(self, name: str, column: str | None = None) -> Any:
        """The number in a field; None if it is empty, and what was typed if it cannot be read as a number."""
        return number_from(self.get(name, column))

    def chosen(self, name: str) -> Any:
        """What the form says of the model; nothing for what is usual where the text says nothing, since that is what it is then."""
        written = self._draft.get("model", name)
        if not self.has(name):
            return written
        value = self.get(name)
        return None if value == _USUAL.get(name, "") and written is None else value

    @property
    def exposure(self) -> Any:
        """The exposure's column that the form says; nothing for what is no count."""
        if not self.has("exposure"):
            return self._draft.get("model", "exposure")
        return self.get("exposure") if self.chosen("family") == "poisson" else None


def form_changes(draft: Draft, fields: Fields) -> Changes:
    """The changes that the form makes to all settings except those of columns."""
    return {
        **_model_changes(draft, fields),
        **_unit_changes(draft, fields),
        **_linkage_changes(draft, fields),
        ("privacy", "epsilon"): fields.number("epsilon"),
        ("privacy", "delta"): fields.number("delta"),
        ("ledger", "url"): fields.get("url"),
        ("ledger", "population"): fields.get("population"),
    }


def data_changes(path: Any, written: Mapping[str, Any]) -> Changes:
    """The changes that another data file makes: where it is, and how it is written."""
    options = ("separator", "decimal", "thousands", "encoding", "sheet")
    return {("data", "path"): path, **{("data", name): written.get(name) for name in options}}


def _model_changes(draft: Draft, fields: Fields) -> Changes:
    changes: Changes = {("model", name): fields.chosen(name) for name in (*_USUAL, *_TEXTS)}
    changes["model", "formula"] = fields.get("formula")
    changes["model", "exposure"] = fields.exposure
    ticked = (("model", "goodness"), ("privacy", "large_epsilon"))
    return changes | {key: value for key in ticked if (value := _ticked(draft, fields, *key)) is not None}


def _ticked(draft: Draft, fields: Fields, section: str, key: str) -> bool | None:
    """Whether a box is ticked; None where the text need not say that it is not."""
    written = draft.get(section, key)
    if not fields.has(key):
        return written if isinstance(written, bool) else None
    return True if fields.get(key) else None if written is None else False


def _unit_changes(draft: Draft, fields: Fields) -> Changes:
    """What the answers to the three questions say, as far as it is not what the text says by saying nothing."""
    if not fields.has("moves"):
        return {}
    get, several = fields.get, fields.get("several") == "yes"
    change = (
        fields.number("change") if get("source") == "estimated" or draft.get("linkage", "model") == "matching" else None
    )
    said: Changes = {
        ("unit", "moves_block"): get("moves") == "yes",
        ("unit", "displaced_links"): fields.number("displaced") if get("takes") == "yes" else 0,
        ("unit", "linkage_change"): change,
        ("unit", "rows"): fields.number("rows") if several else 1,
        ("unit", "id"): get("id") if several else None,
        ("unit", "response_id"): get("response_id") if several else None,
    }
    usual = {"moves_block": False, "displaced_links": 0, "rows": 1}
    stated = get("source") not in (None, "", "public")  # such accuracies ask for a unit that is stated
    return {
        (section, key): value
        for (section, key), value in said.items()
        if draft.get(section, key) is not None or value != usual.get(key) or (stated and key != "rows")
    }


def _linkage_changes(draft: Draft, fields: Fields) -> Changes:
    get = fields.get
    if get("model") == "exact":
        return {**{("linkage", key): None for key in draft.keys("linkage")}, ("linkage", "model"): "exact"}
    if draft.get("linkage", "model") == "matching" or not fields.has("model"):
        return {}
    source = get("source")
    changes: Changes = {
        ("linkage", "model"): "ele" if draft.get("linkage", "model") else None,
        ("linkage", "block"): get("block"),
        ("linkage", "source"): source,
        ("linkage", "accuracy"): fields.number("accuracy")
        if get("kind") == "one"
        else table_from(get("accuracies") or ""),
        ("linkage", "accuracy_min"): fields.number("accuracy_min") if source == "estimated" else None,
    }
    if source == "identifiers":
        changes["linkage", "fields"] = list_from((get("looked_at") or "").replace(",", "\n"), None)
    for key, field in _PAID.items():
        changes["linkage", key] = (
            None if source != "released" else fields.number(field) if fields.has(field) else draft.get("linkage", key)
        )
    if fields.number("checked") is not None or not isinstance(draft.get("linkage", "checked"), dict):
        changes["linkage", "checked"] = fields.number("checked")
    return changes


def column_changes(draft: Draft, fields: Fields, numeric: Iterable[str], categorical: Iterable[str]) -> Changes:
    """The changes that the form makes to the settings of columns. What was said of columns that left the formula goes with them."""
    numeric, categorical = list(numeric), list(categorical)
    changes: Changes = {}
    if numeric or categorical:
        for part in ("typical", "units"):
            changes |= {(part, column): None for column in draft.keys(part) if column not in numeric}
    for column in numeric:
        for part in ("bounds", "typical"):
            if fields.has(f"{part}0", column) and fields.has(f"{part}1", column):
                changes[part, column] = _range(fields.number(f"{part}0", column), fields.number(f"{part}1", column))
        if fields.has("unit", column):
            changes["units", column] = fields.get("unit", column)
    for column in categorical:
        if column not in numeric:  # an event was a number before, if it has bounds
            changes |= {(part, column): None for part in ("bounds", "typical")}
        if fields.has("levels", column):
            changes["levels", column] = list_from(fields.get("levels", column), draft.get("levels", column))
    return changes


def _range(low: Any, high: Any) -> list[Any]:
    """Two ends as the text holds them; one that is not said yet leaves the other in its place."""
    if high is None:
        return [] if low is None else [low]
    return [math.nan if low is None else low, high]
