"""Texts where numbers are declared, and the likely reason. FOR THE STEWARD, NOT FOR PUBLICATION: cells are quoted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dplinked.data.format import THOUSANDS
from dplinked.data.look import GROUPED
from dplinked.report.words import list_names

_SIGNS = r"[€$£¥]|EUR|USD|GBP|CHF"
_AMOUNT = r"[+-]?[\d.,' \u00a0\u202f\u2019]+"
_PATTERNS = {
    "currency": rf"(?:(?:{_SIGNS})\s*{_AMOUNT}|{_AMOUNT}\s*(?:{_SIGNS}))",
    "percent": rf"{_AMOUNT}\s*%",
    "date": r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*",
    **{f"thousands {mark}": pattern for mark, pattern in GROUPED.items()},
    "decimal ,": r"[+-]?\d*,\d+",
    "missing": r"(?i:n/?a|#n/a|nan|null|none|nil|missing|unknown|not available|k\.? ?a\.?|-+|\.+|\?+|)",
}
_PLAIN = ": write plain numbers"
_WORDS = {  # what the texts have, and what to do
    "currency": ("a sign of a currency", _PLAIN),
    "percent": ("a percent sign", _PLAIN),
    "date": ("dates", ", which are no numbers: compute an age, a year or a number of days first"),
    "missing": ("a word for a missing value", ""),
    "word": ("words", ""),
}
_SHOWN = 3


@dataclass(frozen=True)
class Texts:
    """Texts where numbers are declared: how many rows hold them, what they are like, and what to declare about the file.

    Attributes
    ----------
    rows
        Rows with a text that is no number.
    for_missing
        Those whose text only says that a value is missing.
    sentences
        What they are like, the most frequent first.
    options
        What to declare about a text file, so that they are numbers.
    """

    rows: int
    for_missing: int
    sentences: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def explain_texts(counts: Mapping[str, int]) -> Texts:
    """Find the likely reasons why texts are no numbers, from how often each occurs."""
    kinds = {text: _kind(text) for text in counts}
    if any(kind == "decimal ," for kind in kinds.values()):  # then 1,234 is a decimal number, too
        kinds = {text: "decimal ," if kind == "thousands ," else kind for text, kind in kinds.items()}
    found = Counter[str]()
    for text, kind in kinds.items():
        found[kind] += counts[text]
    sentences: list[str] = []
    options: dict[str, Any] = {}
    for kind, number in found.most_common():
        examples = [repr(text) for text in sorted(kinds, key=lambda text: -counts[text]) if kinds[text] == kind]
        reason, remedy = _reason(kind)
        rows = f"{number:,} row{'' if number == 1 else 's'}"
        sentences.append(f"{reason} in {rows} (like {list_names(examples[:_SHOWN])}){remedy}")
        if kind.startswith(("decimal", "thousands")):
            name, mark = kind.split(" ", 1)
            options.setdefault(name, mark)
    if options.get("thousands") == options.get("decimal", "."):
        options.setdefault("decimal", ",")
    return Texts(found.total(), found["missing"], tuple(sentences), options)


def _kind(text: str) -> str:
    """What a text that is no number is like."""
    trimmed = text.strip()
    return next((kind for kind, pattern in _PATTERNS.items() if re.fullmatch(pattern, trimmed)), "word")


def _reason(kind: str) -> tuple[str, str]:
    """What texts of a kind have, and what to do about them where that is not to be declared."""
    name, _, mark = kind.partition(" ")
    if name == "thousands":
        return f"{THOUSANDS[mark]} between thousands", ""
    return ("decimal commas", "") if name == "decimal" else _WORDS[kind]
