"""The text of a study, of which the form edits some settings. Comments and all other settings stay as they are."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dplinked.errors import StudyError
from dplinked.study.typed import read_number

Changes = dict[tuple[str, str], Any]

BLANK = """\
# What is declared of columns and persons is public knowledge, never read from the data.
# [linkage] says what is known of the links, and where it comes from.
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


def lines_of(values: Any) -> str:
    """Write a list or a table one item per line."""
    if isinstance(values, dict):
        return "\n".join(f"{key} = {value}" for key, value in values.items())
    return "\n".join(map(str, values)) if isinstance(values, list) else ""


def table_from(lines: str) -> dict[str, Any]:
    """Read a table from lines like ``nsw = 0.918``."""
    split = [line.rpartition("=") for line in lines.splitlines() if line.strip()]
    return {name.strip(): number_from(value) for name, _, value in split}


def list_from(lines: str, before: Any) -> list[Any]:
    """Read a list with one value per line. Values that were in the list `before` keep their type."""
    known = {str(value): value for value in before} if isinstance(before, list) else {}
    return [known.get(line.strip(), line.strip()) for line in lines.splitlines() if line.strip()]


def number_from(typed: Any) -> Any:
    """Read the number of a field; None if it is empty. What cannot be read stays as it was typed: the text holds it, and it is a fault of its setting."""
    if not isinstance(typed, str):
        return typed
    try:
        return read_number(typed)
    except StudyError:
        return typed.strip() or None
