"""One text for one key: block keys and levels are compared cell by cell, whatever type their column has.

A column's type may hang on a single cell (one word makes a column of numbers a column of text), so nothing
about a key may follow from its column's type: 1, 1.0 and "1" are the same key, null and NaN are none.
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any


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


def number(value: Any) -> float:
    """The number a single cell holds; NaN for anything else."""
    try:
        return float(value)
    except Exception:  # whatever a cell may hold, it must not stop a release
        return math.nan
