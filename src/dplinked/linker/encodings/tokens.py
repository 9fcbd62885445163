"""What of a value is hashed: pairs of letters, digits in their places, parts of dates, neighbours of numbers."""

from __future__ import annotations

import math
import re
import unicodedata

from dplinked.linker.encodings.schema import BlockPart, EncodedField

_DATES = (
    re.compile(r"(?P<y>\d{4})[-/.]?(?P<m>\d{1,2})[-/.]?(?P<d>\d{1,2})(?:[ T].*)?"),
    re.compile(r"(?P<d>\d{1,2})[-/.](?P<m>\d{1,2})[-/.](?P<y>\d{4})"),
)
_WORDS = re.compile(r"[^\W_]+")
_NEIGHBOURS = 3  # numbers to each side that two near values share
_SOUNDS = str.maketrans("bfpvcgjkqsxzdtlmnr", "111122222222334556")


def normalise(text: str) -> str:
    """Small letters without accents, digits, and single blanks."""
    if not text.isascii():
        text = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return " ".join(_WORDS.findall(text.casefold()))


def tokens(field: EncodedField, text: str) -> list[str]:
    """The tokens of a value, none if it is missing or cannot be read."""
    if field.kind == "date":
        return _date_tokens(text)
    if field.kind == "number":
        return _number_tokens(text, field.near)
    value = normalise(text)
    if field.kind in ("postcode", "id"):
        value = value.replace(" ", "")
        return sorted({f"{i}{value[i : i + size]}" for size in (1, 2) for i in range(len(value) - size + 1)})
    return sorted({f"_{word}_"[i : i + 2] for word in value.split() for i in range(len(word) + 1)})


def read_date(text: str) -> tuple[str, str, str] | None:
    """Year, month and day of a date; None if it is none."""
    for form in _DATES:
        if found := form.fullmatch(text.strip()):
            return found["y"], found["m"].zfill(2), found["d"].zfill(2)
    return None


def _date_tokens(text: str) -> list[str]:
    """Year, month and day, and each digit in its place: one wrong digit leaves most of them."""
    found = read_date(text)
    if found is None:
        return []
    digits = "".join(found)
    return [f"y{found[0]}", f"m{found[1]}", f"d{found[2]}", *(f"{i}{digit}" for i, digit in enumerate(digits))]


def _number_tokens(text: str, near: float) -> list[str]:
    """The places of a value on a scale in steps of `near`, with its neighbours, which near values share."""
    try:
        value = float(text)
    except ValueError:
        return []
    if not math.isfinite(value) or abs(value / near) > 1e15:
        return []
    place = round(value / near)
    return [str(place + step) for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1)]


def take_part(part: BlockPart, text: str) -> str | None:
    """The part of a value that goes into a block key or a salt; None if it is missing."""
    if part.part in ("year", "month"):
        found = read_date(text)
        return None if found is None else found[0 if part.part == "year" else 1]
    value = normalise(text).replace(" ", "")
    if part.part == "start":
        value = value[:3]
    elif part.part == "sound":
        value = _sound(value)
    return value or None


def _sound(word: str) -> str:
    """Soundex: the first letter, and digits for the consonants that follow."""
    if not word:
        return ""
    coded = word.translate(_SOUNDS)
    kept = [coded[0]]
    for letter, before in zip(coded[1:], coded, strict=False):
        if letter.isdigit() and letter != before:
            kept.append(letter)
    return (word[0] + "".join(kept[1:]) + "000")[:4]
