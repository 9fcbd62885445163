"""Variables by which records were linked, or that seem to be made of such columns, told from names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dplinked.report.words import list_names

_BIRTH = frozenset({"birth", "birthdate", "birthday", "dob", "dateofbirth"})
_MADE_OF_BIRTH = _BIRTH | {"age", "birthyear", "yob"}


def name_words(name: str) -> set[str]:
    """The words of a column's name, in small letters."""
    return set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())) - {""}


def find_compared(variables: Iterable[str], fields: Iterable[str]) -> dict[str, str]:
    """The variables that are linking fields or, by the words of their names, may be made of one; each with that field.

    Linked rows have the right file's column as ``…_right`` if its name is in both files.
    """
    listed = list(dict.fromkeys(fields))
    found = {}
    for variable in variables:
        name = variable.removesuffix("_right")
        same = next((field for field in listed if field in (variable, name)), None)
        field = same or next((field for field in listed if _made_of(name_words(name), name_words(field))), None)
        if field is not None:
            found[variable] = field
    return found


def _made_of(words: set[str], field: set[str]) -> bool:
    """Whether a name has all words of a field's name, or is that of an age where the field is a date of birth."""
    return bool(field) and (field <= words or bool(words & _MADE_OF_BIRTH and field & _BIRTH))


def say_compared(found: Mapping[str, str]) -> list[str]:
    """What is owed to who reads a slope of such a variable, in a sentence for both kinds of them."""
    same = [name for name, field in found.items() if field in (name, name.removesuffix("_right"))]
    made = [f"{name} (of {field}?)" for name, field in found.items() if name not in same]
    told = []
    if same:
        told.append(f"Records were linked by {list_names(same)}.")
    if made:
        told.append(
            f"By {'its name' if len(made) == 1 else 'their names'}, {list_names(made)} may be made of what records were linked by."
        )
    if told:
        told.append(
            "There a wrong link is like its row, and where such a value is missing or wrong, links are worse: the correction then takes too much or too little, and slopes may be off by "
            "several percent beyond their intervals. Read the bracket beside them, and have links checked by subgroup."
        )
    return [" ".join(told)] if told else []
