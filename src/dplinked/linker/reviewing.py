"""Reviewing a sample of links: one answer at a time, on disk at once; a second reviewer who sees none of the first; and what becomes of differences.

All lists are files like the ``audit.csv`` that a linkage writes, in its folder, so that a review can be begun here and finished in a spreadsheet, or the other way. They hold identifiers, and are for the
steward and the reviewers alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dplinked.data.arrow import column_texts
from dplinked.errors import StudyError, raise_alone
from dplinked.linker.audit import (
    NO,
    SECRET,
    UNSURE,
    YES,
    answer_column,
    count_answers,
    exact_interval,
    read_answers,
    read_audit,
    read_chances,
    write_audit,
)
from dplinked.linker.files import AUDIT, FIRST, SECOND

if TYPE_CHECKING:
    import pyarrow as pa

Answer = Literal["yes", "no", "unsure"]
Reviewer = Literal["first", "second", "settled"]
ANSWERS: tuple[Answer, ...] = ("yes", "no", "unsure")
_LEFT, _RIGHT = " (left)", " (right)"  # how the columns of both records are called


@dataclass(frozen=True)
class Pair:
    """Two records that were linked.

    Attributes
    ----------
    ids, block
        The ids of both records, and the block in which they were linked.
    fields
        For each field that was compared: its name in both files, and both values.
    why
        What each field adds to the score, if that is known.
    """

    ids: tuple[str, str]
    block: str | None
    fields: tuple[tuple[str, str, str | None, str | None], ...]
    why: str | None


class ReviewList:
    """A list of links to review, and its answers so far. Every answer is in the file before the call returns.

    Links come in an order of their own, shuffled but always the same, so that those answered so far are a random part of the list. A row that has no partner is answered already.

    Attributes
    ----------
    path
        The file.
    places
        The lines that are for a person to answer, in the order in which they are shown.
    """

    def __init__(self, path: Path, among: Sequence[int] | None = None) -> None:
        self.path = path
        self._given: list[tuple[int, Answer | None]] = []  # what was answered, the latest last, and what it was before
        self._read()
        shuffled = np.random.default_rng(0).permutation(self._table.num_rows).tolist()
        chosen = range(self._table.num_rows) if among is None else among
        asked = {place for place in chosen if self.ids[place][1]}
        self.places: tuple[int, ...] = tuple(place for place in shuffled if place in asked)

    # --- what it holds -----------------------------------------------------------------------------

    @property
    def ids(self) -> list[tuple[str, str | None]]:
        """The ids of both records of each line."""
        return self._ids

    @property
    def secret(self) -> bool:
        """Whether it was drawn in secret. Then nothing is told of what was found, since it tells of who was drawn."""
        return SECRET in self._table.column_names

    @property
    def table(self) -> pa.Table:
        """The list as it stands in the file."""
        return self._table

    @property
    def current(self) -> bool:
        """Whether the file is as it was read or written here last."""
        return _state(self.path) == self._state

    def pair(self, place: int) -> Pair:
        """Both records of a line."""
        names = self._table.column_names

        def cell(name: str) -> str | None:
            return self._cells[name][place] if name in self._cells else None

        fields = tuple(
            (left.removesuffix(_LEFT), right.removesuffix(_RIGHT), cell(left), cell(right))
            for left, right in pairwise(names)
            if left.endswith(_LEFT) and right.endswith(_RIGHT)
        )
        left_id, right_id = self.ids[place]
        return Pair((left_id, right_id or ""), cell("block"), fields, cell("why"))

    def answer_of(self, place: int) -> Answer | None:
        """The answer to a line; None if there is none yet, or none that is clear."""
        return self._answers[place]

    @property
    def open_places(self) -> list[int]:
        """The lines that nobody answered yet."""
        return [place for place in self.places if self._answers[place] is None]

    # --- answering ---------------------------------------------------------------------------------

    def answer(self, place: int, answer: Answer | None) -> None:
        """Answer a line, or take its answer away with None."""
        if place not in self.places or answer not in (None, *ANSWERS):
            raise StudyError("There is no such link to answer, or no such answer.")
        self._follow_file()
        self._given.append((place, self._answers[place]))
        self._write([*self._answers[:place], answer, *self._answers[place + 1 :]])

    def undo(self, before: int | None = None) -> int | None:
        """Take back the latest answer and return its line; None if there is none. After a restart that is the answer that stands last in front of the line `before`."""
        self._follow_file()
        if self._given:
            place, earlier = self._given.pop()
        else:
            end = self.places.index(before) if before in self.places else len(self.places)
            answered = [place for place in self.places[:end] if self._answers[place] is not None]
            if not answered:
                return None
            place, earlier = answered[-1], None
        self._write([*self._answers[:place], earlier, *self._answers[place + 1 :]])
        return place

    def empty(self, places: Sequence[int]) -> None:
        """Take the answers of some lines away."""
        gone = set(places)
        self._write([None if place in gone else answer for place, answer in enumerate(self._answers)])

    # --- the file ----------------------------------------------------------------------------------

    def _read(self) -> None:
        if not self.path.is_file():
            raise StudyError(f"There is no list of links {self.path.name!r}. Link the files with links to check.")
        self._state = _state(self.path)
        table = read_audit(self.path)
        answered = answer_column(table.column_names)
        if answered is None or not {"left_id", "right_id"} <= set(table.column_names):
            raise StudyError(f"{self.path.name!r} is no list of links to check.")
        self._table, self._column = table, answered
        self._cells = {name: column_texts(table, name, "audit").to_pylist() for name in table.column_names}
        self._ids = list(zip(self._cells["left_id"], (one or None for one in self._cells["right_id"]), strict=True))
        self._answers = [_clear(cell) for cell in self._cells[answered]]

    def _follow_file(self) -> None:
        """Read the file again if somebody else wrote it. Lines that are others now are refused."""
        if self.current:
            return
        before = self.ids
        self._read()
        self._given = []
        if self.ids != before:
            raise StudyError(f"{self.path.name!r} holds other links now. Open the page anew.")

    def _write(self, answers: Sequence[Answer | None]) -> None:
        """Write the list with these answers: whole, or not at all."""
        import pyarrow as pa

        at = self._table.column_names.index(self._column)
        unclear = [
            now if now is not None or _clear(cell) is not None else cell
            for now, cell in zip(answers, self._cells[self._column], strict=True)
        ]  # what nobody understands stays as it was written
        table = self._table.set_column(at, self._column, pa.array(unclear, pa.string()))
        write_list(table, self.path)
        self._table, self._answers, self._state = table, list(answers), _state(self.path)
        self._cells[self._column] = unclear


def _clear(cell: str | None) -> Answer | None:
    """An answer as it is meant; None if it is not clear."""
    text = (cell or "").strip().lower()
    if text in ("", UNSURE):
        return UNSURE if text else None  # type: ignore[return-value]
    try:
        return "yes" if read_answers([text])[0] else "no"
    except StudyError:
        return None


def _state(path: Path) -> tuple[int, int] | None:
    found = path.stat() if path.is_file() else None
    return None if found is None else (found.st_mtime_ns, found.st_size)


def write_list(table: pa.Table, path: Path) -> None:
    """Write a list of links: whole and safe from a power cut, or not at all. Who could read the file before can still read it, and nobody else."""
    text = io.BytesIO()
    write_audit(table, text)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise_alone(
            StudyError(
                f"The answer could not be written to {path.name!r}. Check the folder's permissions and its disk."
            )
        )


# --- two reviewers -----------------------------------------------------------------------------------


def open_review(folder: Path, reviewer: Reviewer = "first") -> ReviewList:
    """The list of a reviewer of the links in a folder; for ``"settled"``, that of the links on which two differed.

    The first reviewer's list is ``audit.csv``, which ``dplinked link --audited`` reads. The second reviewer's is made from it without its answers. Once differences are being settled, ``audit.csv`` is the list of the
    settled answers, and the first reviewer's stay in ``audit-first.csv``.
    """
    main = folder / AUDIT
    if reviewer == "first":
        return ReviewList(folder / FIRST if is_settling(folder) else main)
    if reviewer == "second":
        first = ReviewList(main)
        if not (folder / SECOND).is_file() or not _same_links(first, ReviewList(folder / SECOND)):
            _write_blank(first, folder / SECOND)
        return ReviewList(folder / SECOND)
    differ = compare_reviewers(folder).differ
    return ReviewList(main, differ)


def is_settling(folder: Path) -> bool:
    """Whether differences between two reviewers are being settled, or were."""
    return (
        (folder / FIRST).is_file()
        and (folder / SECOND).is_file()
        and _same_links(ReviewList(folder / AUDIT), ReviewList(folder / FIRST))
    )


def begin_settling(folder: Path) -> None:
    """Put the first reviewer's answers aside, and empty those on which the second one differs. Until they are settled, nobody can read the list back by mistake."""
    found = compare_reviewers(folder)
    if found.open:
        raise StudyError(f"{found.open:,} answers are still missing. Both reviewers answer every link first.")
    if is_settling(folder):
        return
    main = ReviewList(folder / AUDIT)
    aside = folder / f".{FIRST}"
    write_list(main.table, aside)
    main.empty(found.differ)  # first, so that a crash in between leaves no answer in the list that nobody settled
    aside.replace(folder / FIRST)


def _same_links(one: ReviewList, other: ReviewList) -> bool:
    return one.ids == other.ids


def _write_blank(first: ReviewList, path: Path) -> None:
    """A list without answers, but for rows that have no partner."""
    import pyarrow as pa

    at = first.table.column_names.index(first._column)
    blank = pa.array([None if right else NO for _, right in first.ids], pa.string())
    write_list(first.table.set_column(at, first._column, blank), path)


@dataclass(frozen=True)
class Agreement:
    """How far two reviewers agree, unsure being an answer like the others. FOR THE STEWARD, not for publication.

    Attributes
    ----------
    both, same
        How many links both answered, and how many of them alike.
    kappa
        Cohen's kappa: 1 where they always agree, 0 where they agree as often as chance would have it. None if it says nothing, as all answers are the same.
    differ
        The lines on which they differ.
    open
        How many answers are missing, of both together.
    """

    both: int
    same: int
    kappa: float | None
    differ: tuple[int, ...]
    open: int


def compare_reviewers(folder: Path) -> Agreement:
    """How far the two reviewers of the links in a folder agree."""
    first, second = open_review(folder, "first"), open_review(folder, "second")
    answers = [(place, first.answer_of(place), second.answer_of(place)) for place in first.places]
    both = [(one, other) for _, one, other in answers if one is not None and other is not None]
    differ = tuple(place for place, one, other in answers if None not in (one, other) and one != other)
    return Agreement(
        len(both),
        sum(one == other for one, other in both),
        cohens_kappa(both),
        differ,
        len(first.open_places) + len(second.open_places),
    )


def cohens_kappa(answers: Sequence[tuple[str, str]]) -> float | None:
    """Agreement beyond chance, (p - e)/(1 - e): p is the share of equal answers, e what it would be if both gave theirs independently (Cohen 1960)."""
    if not answers:
        return None
    one, other = zip(*answers, strict=True)
    n = len(answers)
    expected = sum(one.count(answer) * other.count(answer) for answer in {*one, *other}) / n**2
    found = sum(a == b for a, b in answers) / n
    return None if expected >= 1.0 else (found - expected) / (1.0 - expected)


# --- what answers tell so far ------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundSoFar:
    """What the answers so far tell of links that have a partner. FOR THE STEWARD, not for publication.

    Attributes
    ----------
    right, wrong, unsure
        How many links have which answer.
    share, low, high
        Share of right ones, unsure counting as wrong, and the ends of its 95 % interval (Clopper and Pearson).
    at_most
        The share if all unsure ones were right.
    """

    right: int
    wrong: int
    unsure: int
    share: float
    low: float
    high: float
    at_most: float


def found_so_far(answered: ReviewList) -> FoundSoFar | None:
    """The share of right links among those answered; None if none are yet, or if they were drawn in secret."""
    places = [place for place in answered.places if answered.answer_of(place) is not None]
    if answered.secret or not places:
        return None
    given = [answered.answer_of(place) for place in places]
    chances, _ = read_chances(answered.table)
    chance = None if chances is None else chances[places]
    group = np.zeros(len(places), dtype=np.int64)
    good, counted = count_answers(group, 1, np.array([one == YES for one in given]), chance)
    hoped, _ = count_answers(group, 1, np.array([one != NO for one in given]), chance)
    low, high = exact_interval(good, counted)
    return FoundSoFar(
        given.count("yes"), given.count("no"), given.count("unsure"), float(good[0] / counted[0]), float(low[0]), float(high[0]),
        float(hoped[0] / counted[0]),
    )  # fmt: skip
