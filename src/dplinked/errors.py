"""What can go wrong, each with the exit code the command line gives it.

Messages name the offending *setting*, what is allowed, and what to do next. They never hold
anything computed from rows. Rows may stand in the place of a setting, so values go into messages by :func:`shown` only.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MOST_COLUMNS = 30  # that a message lists
_LONGEST_TEXT = 120  # characters of a text that messages show
_LARGEST_NUMBER = 10**20


class DplinkedError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1


class StudyError(DplinkedError, ValueError):
    """The study, the schema or an argument is at fault. Nothing was spent."""

    exit_code = 2


class CalibrationError(StudyError):
    """The requested noise would be less than the stated privacy needs."""


class BudgetError(DplinkedError):
    """The budget does not allow the release. Nothing was spent."""

    exit_code = 3


class LedgerError(DplinkedError):
    """The ledger is missing, was changed or cannot be used, or data is not registered in it. Nothing new was spent."""

    exit_code = 4


class ReleaseError(DplinkedError):
    """The release failed after its budget was charged; the charge stays."""

    exit_code = 5


def raise_alone(error: Exception) -> NoReturn:
    """Raise an error without the one being handled: parser and engine errors quote cells, also as a context."""
    try:
        raise error
    finally:
        error.__context__ = None
        error.__suppress_context__ = True
        del error  # else it and its traceback would hold each other, and what the frames hold, such as an engine's tables, would stay


def plain_faults(call: Callable[P, R]) -> Callable[P, R]:
    """Let a public function raise errors of this package only. Others may quote what stands in the place of an argument, which may be data."""
    name = call.__qualname__.partition("._")[0].replace("Result.", "Release.")  # the public class of a result's methods

    @functools.wraps(call)
    def guarded(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return call(*arguments, **named)
        except (DplinkedError, MemoryError, Warning):
            raise
        except Exception as fault:
            if isinstance(fault, TypeError) and fault.__traceback__ is not None and not fault.__traceback__.tb_next:
                raise  # an argument is missing or unknown, which Python itself says
            raise_alone(
                StudyError(
                    f"{name} was given something of a wrong type or size. help(dplinked.{name}) tells what it takes."
                )
            )

    return guarded


def shown(value: Any) -> str:
    """A value as messages show it: plain numbers and short texts as they are, and of anything else only the name of its type."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        short = len(value) <= _LONGEST_TEXT and value.isprintable()
        return str.__repr__(value) if short else "[a long text]"
    if isinstance(value, int):
        return int.__repr__(value) if abs(value) < _LARGEST_NUMBER else "[a huge number]"
    return repr(plain_number(value)) if isinstance(value, (Real, Decimal)) else f"[{type(value).__name__}]"


def shown_type(type: Any) -> str:
    """The plain name of a column's type, without what stands in brackets: names of fields, categories and lengths may be those of cells."""
    return re.split(r"[\[(<{,]", str(type), maxsplit=1)[0].strip()


def shown_place(path: Path) -> str:
    """A database's file by its name, unless its path looks like an address, which may hold a password."""
    return "[an address]" if re.search("[:@=]", str(path)[len(path.drive) :]) else shown(path.name)


def plain_number(value: Any) -> float:
    """A setting as a number; NaN, which lies in no range, if it is none. A table or array never is."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, (Real, Decimal)) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def suggest(name: Any, known: Iterable[Any]) -> str:
    """Return `` Did you mean …?`` for a close match, whatever its case, else nothing."""
    texts = {text.casefold(): text for text in known if isinstance(text, str)}
    close = difflib.get_close_matches(name.casefold(), texts, n=1) if isinstance(name, str) else []
    return f" Did you mean {shown(texts[close[0]])}?" if close else ""


def list_columns(names: Sequence[Any]) -> str:
    """Return `` It has the columns …`` with the first of them. What is no text is no name of a column, and may be a cell."""
    if not all(isinstance(name, str) for name in names):
        return ""
    more = f" and {len(names) - _MOST_COLUMNS} more" if len(names) > _MOST_COLUMNS else ""
    return (
        f" It has the columns {', '.join(map(shown, names[:_MOST_COLUMNS]))}{more}." if names else " It has no columns."
    )
