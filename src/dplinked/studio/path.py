"""The steps from two files to a published page, in their order, and what each of them says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

STEPS = {
    "files": "Files",
    "link": "Link",
    "review": "Review",
    "study": "Study",
    "check": "Check",
    "plan": "Plan",
    "release": "Release",
    "budget": "Budget",
}

_MARKS = {"missing": "○", "ready": "◐", "done": "●", "aside": "–"}
_READ_ALOUD = {"missing": "something is missing", "ready": "ready", "done": "done", "aside": "not needed"}


@dataclass(frozen=True)
class State:
    """How far a step is.

    Attributes
    ----------
    kind
        Whether something is missing, it is ready to be done, it is done, or it is not needed on this way.
    says
        One sentence: what is still missing, or that it is done.
    next
        One sentence: what comes next.
    """

    kind: Literal["missing", "ready", "done", "aside"]
    says: str
    next: str = ""

    @property
    def mark(self) -> str:
        """A sign for the navigation."""
        return _MARKS[self.kind]

    @property
    def aloud(self) -> str:
        """What a screen reader says in place of the sign."""
        return _READ_ALOUD[self.kind]


def before(step: str) -> str | None:
    """The step before another one."""
    names = list(STEPS)
    place = names.index(step)
    return names[place - 1] if place else None


def after(step: str) -> str | None:
    """The step after another one."""
    names = list(STEPS)
    place = names.index(step) + 1
    return names[place] if place < len(names) else None


def number(step: str) -> int:
    """The place of a step on the way, from 1 on."""
    return list(STEPS).index(step) + 1
