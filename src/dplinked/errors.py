"""What can go wrong, each with the exit code the command line gives it.

Messages name the offending *setting*, what is allowed, and what to do next. They never hold
anything computed from rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn


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


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean …?`` for a close match, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
