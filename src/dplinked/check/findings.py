"""What a check says, graded by what it means for a release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WARNING = "FOR THE STEWARD ONLY, NOT FOR PUBLICATION: everything below is read from the rows without noise."
NOTE, LOOK, FAULT = range(3)
READY, LOOK_AGAIN, NOT_USABLE = "ready", "look again", "not usable"
VERDICTS = (READY, LOOK_AGAIN, NOT_USABLE)  # by the worst finding
EXIT_CODES = {READY: 0, LOOK_AGAIN: 10, NOT_USABLE: 11}


@dataclass(frozen=True)
class Finding:
    """One thing that the steward should know.

    Attributes
    ----------
    grade
        `NOTE`; `LOOK` if it may bend a release; `FAULT` if it stops one, or makes it be about something else than it says.
    text
        What was seen.
    remedy
        What to do about it, where the text does not say so already.
    """

    grade: int
    text: str
    remedy: str = ""

    @property
    def told(self) -> str:
        """What was seen, and what to do about it."""
        return f"{self.text} {self.remedy}".rstrip()

    @property
    def fault(self) -> bool:
        """Whether the data is not usable as it is."""
        return self.grade == FAULT


def note(text: str) -> Finding:
    """A finding that is good to know."""
    return Finding(NOTE, text)


def look(text: str, remedy: str = "") -> Finding:
    """A finding that may bend a release."""
    return Finding(LOOK, text, remedy)


def fault(text: str, remedy: str = "") -> Finding:
    """A finding that makes data unusable."""
    return Finding(FAULT, text, remedy)


def graded(share: float, text: str, remedy: str = "", *, much: float, most: float = 0.5) -> Finding:
    """A finding about a share of the rows: a second look from `much` on, not usable from `most` on. What needs no second look needs no remedy."""
    grade = FAULT if share >= most else LOOK if share >= much else NOTE
    return Finding(grade, text, "" if grade == NOTE else remedy)


def verdict_of(findings: Iterable[Finding]) -> str:
    """The verdict that the worst finding gives."""
    return VERDICTS[max((one.grade for one in findings), default=NOTE)]
