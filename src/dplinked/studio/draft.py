"""The text of a study, of which the form edits some settings. Comments and all other settings stay as they are."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dplinked.errors import StudyError
from dplinked.study.counting import compared_with_texts, counted_columns
from dplinked.study.formula import parse_formula
from dplinked.study.several import split_outcomes

Changes = dict[tuple[str, str], Any]

BLANK = """\
# Everything here is public: nothing was read from the data.
[data]

[model]

[bounds]

[linkage]

[unit]
moves_block = false
displaced_links = 0

[privacy]
epsilon = 1.0
delta = 1e-6
"""


@dataclass(frozen=True)
class Draft:
    """The text of a study as it was opened.

    Attributes
    ----------
    number
        Distinguishes this draft, and the fields of its form, from earlier ones.
    name, text
        The study file's name, and the text that the form starts from.
    saved
        What the file holds; None if there is no file yet.
    sections
        The parsed text; None if it is not valid TOML.
    """

    number: int
    name: str
    text: str
    saved: str | None = None
    sections: Mapping[str, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            sections = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError:
            sections = None
        object.__setattr__(self, "sections", sections)

    def get(self, section: str, key: str) -> Any:
        """The value of a setting when the draft was opened; None if it was not set."""
        values = (self.sections or {}).get(section)
        return values.get(key) if isinstance(values, dict) else None

    def keys(self, section: str) -> list[str]:
        """The names of the settings in a section."""
        values = (self.sections or {}).get(section)
        return list(values) if isinstance(values, dict) else []

    def changed(self, changes: Changes) -> str:
        """The text with some settings changed. An empty value removes a setting."""
        import tomlkit

        document = tomlkit.parse(self.text)
        for (section, key), value in changes.items():
            if value == self.get(section, key) or (value in (None, "", [], {}) and self.get(section, key) is None):
                continue
            if section not in document:
                document[section] = tomlkit.table()
            table: Any = document[section]
            if not hasattr(table, "items"):
                continue  # not a table; the check of the whole study says what is wrong
            if value in (None, "", [], {}):
                del table[key]
            elif isinstance(value, dict):
                table[key] = tomlkit.inline_table()
                table[key].update(value)
            else:
                table[key] = value
        for section in ("data", "ledger"):
            if section in document and not document[section]:
                del document[section]
        return tomlkit.dumps(document)


def formula_columns(
    formula: str,
    levels: list[str],
    family: Any = "linear",
    exposure: Any = None,
    weights: Any = None,
    where: Any = None,
    by: Any = None,
) -> tuple[list[str], list[str]]:
    """The numeric and the categorical columns of a formula, the response first, then an exposure, what says how much rows count, and whose levels are told apart; two empty lists if the formula is not valid."""
    events = family == "logistic"
    try:
        if outcomes := split_outcomes(formula):
            found = [formula_columns(one, levels, family, exposure, weights, where, by) for one in outcomes.values()]
            numeric, categorical = ([name for part in parts for name in part] for parts in zip(*found, strict=True))
            return list(dict.fromkeys(numeric)), list(dict.fromkeys(categorical))
        parsed = parse_formula(formula, levels, events=events and formula.lstrip().startswith("C("))
    except StudyError:
        return [], []
    factors = [*([] if events else [parsed.response]), *itertools.chain.from_iterable(parsed.terms)]
    split = ([f for f in factors if not f.categorical], [f for f in factors if f.categorical])
    numeric, categorical = ([name for factor in part for name in factor.variables] for part in split)
    categorical = [*(parsed.response.variables if events else ()), *categorical]
    numeric += [exposure] if family == "poisson" and isinstance(exposure, str) and exposure else []
    try:
        named = [*levels, *(compared_with_texts(where) if where else [])]
        counted = counted_columns(weights or None, where or None, dict.fromkeys(named))
    except StudyError:  # which the check of the whole study says
        counted = counted_columns(weights or None, None, {})
    told_apart = [by] if isinstance(by, str) and by else []
    numeric, categorical = numeric + counted[0], categorical + counted[1] + told_apart
    return list(dict.fromkeys(numeric)), list(dict.fromkeys(categorical))


def lines_of(values: Any) -> str:
    """Write a list or a table one item per line."""
    if isinstance(values, dict):
        return "\n".join(f"{key} = {value}" for key, value in values.items())
    return "\n".join(map(str, values)) if isinstance(values, list) else ""


def table_from(lines: str) -> dict[str, Any]:
    """Read a table from lines like ``nsw = 0.918``."""
    split = [line.rpartition("=") for line in lines.splitlines() if line.strip()]
    return {name.strip(): _number(value) for name, _, value in split}


def list_from(lines: str, before: Any) -> list[Any]:
    """Read a list with one value per line. Values that were in the list `before` keep their type."""
    known = {str(value): value for value in before} if isinstance(before, list) else {}
    return [known.get(line.strip(), line.strip()) for line in lines.splitlines() if line.strip()]


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text.strip()
