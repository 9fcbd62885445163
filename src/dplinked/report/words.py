"""Words for people: text made safe to show, names in a sentence, and the room that they take."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

_JOINERS = "\u200c\u200d"  # invisible, but emoji and several scripts are written with them
_LISTED = 12


def columns(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide characters, none for those that join others."""
    return sum(0 if joins_others(c) else 2 if is_wide(c) else 1 for c in text)


def shorten(name: str, width: float, measure: Callable[[str], float] = columns) -> str:
    """A name on one line, its middle left out where it is long: names often differ at their ends only."""
    shown = clean(name)
    if measure(shown) <= width:
        return shown
    room = width - measure("…")
    head = tail = shown
    while measure(head) > 0.6 * room:
        head = head[:-1]
    while measure(tail) > room - measure(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def joins_others(character: str) -> bool:
    """Whether a character is drawn onto its neighbour and takes no room of its own."""
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def is_wide(character: str) -> bool:
    """Whether a character takes the room of two."""
    return unicodedata.east_asian_width(character) in ("W", "F")


def clean(text: str) -> str:
    """Text on one line: characters that control a terminal, a parser or the direction of writing show as �."""
    return "".join(
        "�" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in _JOINERS else c for c in text
    )


def is_number(cell: str) -> bool:
    """Whether a cell holds figures and no words; a dash stands for a figure that is not there."""
    return cell == "-" or (any(c.isdigit() for c in cell) and not any(c.isalpha() for c in cell))


def list_names(names: Sequence[str]) -> str:
    """Names in a sentence; of many, the first ones and how many more."""
    shown = [*names[:_LISTED], *([f"{len(names) - _LISTED} more"] if len(names) > _LISTED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
