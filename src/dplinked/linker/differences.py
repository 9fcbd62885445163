"""Where two values differ, letter by letter, for people who compare records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

_LIKE = 0.5  # texts that are less alike than this are marked as a whole: single letters in common mean nothing there

_PIECES = re.compile(r"([-/. ]+)")  # what dates and names of several words are cut at


@dataclass(frozen=True)
class Part:
    """A piece of a value, and whether the other value has it too."""

    text: str
    same: bool


@dataclass(frozen=True)
class Difference:
    """Two values of a field.

    Attributes
    ----------
    left, right
        Their pieces, in order; none of a value that is missing.
    says
        How they differ, in a few words.
    """

    left: tuple[Part, ...]
    right: tuple[Part, ...]
    says: str


def find_difference(left: str | None, right: str | None) -> Difference:
    """Compare two values. A missing one is evidence neither for nor against a link."""
    a, b = left or "", right or ""
    if not (a.strip() and b.strip()):
        sides = [name for name, text in (("left", a), ("right", b)) if not text.strip()]
        where = "both" if len(sides) == 2 else f"the {sides[0]}"
        return Difference(_whole(a, True), _whole(b, True), f"missing on {where}")
    if a == b:
        return Difference(_whole(a, True), _whole(b, True), "the same")
    if a.strip().lower() == b.strip().lower():
        return Difference(_whole(a, True), _whole(b, True), "the same but for capitals or blanks")
    pieces = _PIECES.split(a), _PIECES.split(b)
    if pieces[0] != pieces[1] and sorted(pieces[0]) == sorted(pieces[1]):
        one, other = (_by_pieces(*sides) for sides in (pieces, pieces[::-1]))
        return Difference(one, other, "the same in another order")
    return _by_letters(a, b)


def _by_pieces(own: list[str], other: list[str]) -> tuple[Part, ...]:
    return tuple(Part(piece, piece == across) for piece, across in zip(own, other, strict=True))


def _by_letters(a: str, b: str) -> Difference:
    small = (a.lower(), b.lower())
    if (len(small[0]), len(small[1])) != (len(a), len(b)):  # a letter whose small form is two
        small = a, b
    matcher = SequenceMatcher(None, *small, autojunk=False)
    if matcher.ratio() < _LIKE:
        return Difference(_whole(a, False), _whole(b, False), "different")
    steps = matcher.get_opcodes()
    off = sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in steps if kind != "equal")
    apart = [one != other for one, other in zip(*small, strict=False)]
    if len(a) == len(b) and sum(apart) < off:  # letter for letter, fewer differ
        off, steps = sum(apart), [("replace" if one else "equal", k, k + 1, k, k + 1) for k, one in enumerate(apart)]
    return Difference(
        tuple(Part(a[i1:i2], kind == "equal") for kind, i1, i2, _, _ in steps if i2 > i1),
        tuple(Part(b[j1:j2], kind == "equal") for kind, _, _, j1, j2 in steps if j2 > j1),
        "1 character differs" if off == 1 else f"{off} characters differ",
    )


def _whole(text: str, same: bool) -> tuple[Part, ...]:
    return (Part(text, same),) if text else ()
