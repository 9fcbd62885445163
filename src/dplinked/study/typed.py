"""Numbers as people type them, with a decimal point or a decimal comma."""

from __future__ import annotations

import math
import re

from dplinked.errors import StudyError, shown

_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?", re.IGNORECASE)
_EITHER = re.compile(r"([+-]?[1-9]\d{0,2})[.,](\d{3})")  # thousands in one country, thousandths in another


def read_number(text: str) -> int | float:
    """Read a number: ``2.5`` and ``2,5`` alike. What could be read in two ways is refused, as is what is no number."""
    typed = text.strip().replace("\N{MINUS SIGN}", "-")
    if either := _EITHER.fullmatch(typed):
        whole, rest = either.groups()
        raise StudyError(f"{shown(text.strip())} can be read in two ways: write {whole}{rest} or {whole}.{rest}0.")
    if not _NUMBER.fullmatch(typed):
        raise StudyError(
            f"{shown(text.strip())} is no number. Write it like 1500 or 2.5, with no mark between thousands."
        )
    number = float(typed.replace(",", "."))
    if not math.isfinite(number):
        raise StudyError(f"{shown(text.strip())} is too large a number.")
    return int(typed) if re.fullmatch(r"[+-]?\d+", typed) else number


def write_number(number: float) -> str:
    """Write a number so that it is read as the same one: 120.125 as ``120.1250``."""
    written = repr(number)
    return f"{written}0" if _EITHER.fullmatch(written) else written
