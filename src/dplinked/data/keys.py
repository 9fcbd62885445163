"""One text for one key: block keys and levels are compared cell by cell, whatever type their column has.

A column's type may hang on a single cell (one word makes a column of numbers a column of text), so nothing
about a key may follow from its column's type: 1, 1.0 and "1" are the same key, null and NaN are none. The same holds for
numbers: 1, 1.0 and "1" are the same number, and so are True and "true", wherever a cell comes from.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

# How a text is read as a number, by every engine: without the whitespace around it, it is a decimal number or a word for true or false.
WHITESPACE = " \t\n\v\f\r"
NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NUMBER = re.compile(NUMBER)


def key_text(value: Any) -> str | None:
    """The text of a key; None for null, for NaN, and for values that cannot be keys."""
    try:
        return _text(value.item() if type(value).__module__ == "numpy" else value)
    except Exception:  # whatever a cell may hold, it must not stop a release
        return None


def _text(value: Any) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**300 else None
        case complex():  # one of these makes a whole column complex
            return _text(value.real) if value.imag == 0 else None
        case np.floating():  # longer than a double
            return _text(float(value))
        case float() | Decimal():
            if not math.isfinite(value):
                return None
            return str(int(value)) if value == int(value) else repr(float(value))
        case bytes():
            return value.decode("utf-8")
        case datetime.datetime() if value != value:
            return None
        case datetime.date() | datetime.time() | datetime.datetime():
            return value.isoformat()
    return None


def level_numbers(levels: Sequence[Any]) -> list[float]:
    """The numbers that levels are, NaN for others; none at all if two levels are the same number, like "01" and "1".

    A cell has a level's number as well as its text: one word turns numbers like 1.0 into the texts "1.0", and one empty cell turns True into 1.0, on all rows.
    """
    numbers = [number(level) for level in levels]
    told = [value for value in numbers if math.isfinite(value)]
    return numbers if len(set(told)) == len(told) else [math.nan] * len(numbers)


def number(value: Any) -> float:
    """The number a single cell holds; NaN for anything else."""
    try:
        match value:
            case str():
                return _text_number(value)
            case bytes():
                return _text_number(value.decode("utf-8"))
            case complex() | np.complexfloating():  # one of these makes a whole column complex
                return float(value.real) if value.imag == 0 else math.nan
            case np.ndarray():  # NumPy would take its only element, and warn
                return math.nan
        return float(value)
    except Exception:  # whatever a cell may hold, it must not stop a release
        return math.nan


def _text_number(text: str) -> float:
    """The number that a text is; NaN for any other text."""
    trimmed = text.strip(WHITESPACE)
    if trimmed in TRUE or trimmed in FALSE:
        return float(trimmed in TRUE)
    return float(trimmed) if _NUMBER.fullmatch(trimmed) else math.nan
