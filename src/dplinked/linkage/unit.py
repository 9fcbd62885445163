"""What one person can change: the declared privacy unit, and what it means under a linkage model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dplinked.errors import StudyError, plain_faults, plain_number, shown
from dplinked.records import PlainlyShown, ReadableByKey

_MOST_ROWS = 1000  # of one person
_MOST = 10**9  # largest number of displaced links, and largest change of the matching matrix, that may be declared


@dataclass(frozen=True, repr=False)
class PrivacyUnit(PlainlyShown, ReadableByKey):
    """What one individual can change, beyond their own x and y.

    Parameters
    ----------
    moves_block
        Whether a change of the person's identifiers may put them into another block.
    displaced_links
        How many rows may receive another response because this person's identifiers changed (k). The person's own row and the
        row that holds the person's response do not count. With 0, links are held fixed. With 1 or more, the person's own
        row may be linked anew as well.
    linkage_change
        How far the matching matrix may change, ``‖Q - Q'‖₁`` entrywise (the paper's M). If it is above 0, rows may change their
        groups within it, so nothing but the noisy sums follows the groups. This does not protect declared accuracies: they are public, and
        a release prints them.
    rows, id, response_id
        How many rows one person has at most, or one household: as many with their regressors, and as many with their responses. `id` is the column that says which rows of the regressors' file
        belong together, `response_id` the same of the response's file; an exact join needs none. Which rows belong together is public. It needs links and blocks that are held fixed.

    Notes
    -----
    Unless `rows` says otherwise, all regressors of a person are taken to sit on one row, and their response on one row too, possibly another; on up to as many as the
    linkage declares (`carriers`) if links are one to many. The regressors must therefore all come from one file, in which the person has
    one row, and the response may come from either. If links may change, or are one to many, it must be the file whose rows are kept and to
    which links bring responses. The default protects x and y with links and blocks held fixed. What identifiers do to the linkage is
    then *not* protected, and every release says so. With an explicit matching matrix (:class:`Matching`), `displaced_links` and
    `linkage_change` cannot be derived and must be stated.
    """

    moves_block: bool = False
    displaced_links: int | None = None
    linkage_change: float | None = None
    rows: int = 1
    id: str | None = None
    response_id: str | None = None

    @plain_faults
    def __post_init__(self) -> None:
        if type(self.moves_block).__name__ not in ("bool", "bool_"):  # NumPy's booleans are accepted too
            raise StudyError(f"moves_block must be true or false, not {shown(self.moves_block)}.")
        object.__setattr__(self, "moves_block", bool(self.moves_block))
        k, change = self.displaced_links, self.linkage_change
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= _MOST):
            raise StudyError(f"displaced_links must be a whole number from 0 to 1e9, not {shown(k)}.")
        if change is not None and not 0 <= plain_number(change) <= _MOST:
            raise StudyError(f"linkage_change must be a number from 0 to 1e9, not {shown(change)}.")
        if change is not None:
            object.__setattr__(self, "linkage_change", float(change))
        self._check_rows()

    def _check_rows(self) -> None:
        """Refuse several rows of a person that nobody could count, or whose links may change."""
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or not 1 <= self.rows <= _MOST_ROWS:
            raise StudyError(f"rows must be a whole number from 1 to {_MOST_ROWS}, not {shown(self.rows)}.")
        for name in ("id", "response_id"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise StudyError(f"{name} must be the name of a column, not {shown(getattr(self, name))}.")
        if self.rows == 1 and self.ids:
            raise StudyError(
                "id and response_id say which rows belong to one person: give rows=… too, how many these may be."
            )
        if self.rows > 1 and not self.id:
            raise StudyError("rows=… needs id=…: the column that says which rows belong to one person.")
        if self.rows > 1 and (not self.fixes_blocks or self.displaced_links):
            raise StudyError(
                "Several rows of a person are covered where links and blocks are held fixed: leave out moves_block, displaced_links and linkage_change, or rows."
            )

    def identity(self) -> dict[str, Any]:
        """What distinguishes this unit from others in a ledger's request. Units of one row are written as they were before there were others."""
        stated = {
            "moves_block": self.moves_block,
            "displaced_links": self.displaced_links,
            "linkage_change": self.linkage_change,
        }
        if self.rows == 1:
            return stated
        return {**stated, "rows": self.rows, "id": self.id, "response_id": self.response_id}

    @property
    def ids(self) -> tuple[str, ...]:
        """The columns of ids, if persons have several rows."""
        return tuple(name for name in (self.id, self.response_id) if name is not None)

    @property
    def fixes_blocks(self) -> bool:
        """Whether every row keeps its block between neighbours, so that block keys and sizes are public."""
        return not (self.moves_block or self.linkage_change)

    def describe(self, carriers: int = 1) -> str:
        """Say in sentences who is protected against what; up to `carriers` rows hold one person's response."""
        k, change = self.displaced_links or 0, self.linkage_change or 0.0
        said = [
            "Protected is all that the model uses about any one person, who is once in each of the two files, with all regressors from one of them."
            if self.rows == 1
            else f"Protected is all that the model uses about any one {self.id}: at most {self.rows} rows of regressors, those with the same {self.id}, and at most {self.rows} responses, "
            "all of them together.",
            "Each response is on one row (links are one to one)."
            if carriers == 1
            else f"Each response is on at most {carriers} rows.",
        ]
        if not (self.moves_block or k or change):
            said.append(
                "Links and blocks are held fixed: what names and other identifiers do to the links is not protected."
            )
        else:
            said.append(
                f"Identifiers are protected too, as far as those of one person displace at most {k} further link(s), change the matching matrix by at most {change:g} (all entries added up), and "
                f"{'may' if self.moves_block else 'may not'} move the person to another block."
            )
        return " ".join(said)


def checked_carriers(carriers: int) -> int:
    """Refuse a number of rows that hold one response which is none."""
    if isinstance(carriers, bool) or not isinstance(carriers, int) or not 1 <= carriers <= _MOST:
        raise StudyError(f"carriers must be a whole number from 1 to 1e9, not {shown(carriers)}.")
    return carriers


# Stands for "no unit was stated". It is compared by identity, since it equals a stated PrivacyUnit().
UNSTATED = PrivacyUnit()


@dataclass(frozen=True)
class LinkageExposure:
    """How far the linkage can differ between neighbours: all that sensitivities need to know about it.

    Attributes
    ----------
    exact
        Whether rows were joined on a unique key, so that a person's response always sits on the person's own row.
    symmetric
        Whether Q is symmetric, so that ``x'Qx`` is symmetric too.
    accuracy_min
        Smallest ``q_jj`` that any record may have, from declared values only.
    column_sum
        Largest sum of a column of Q (1 if doubly stochastic).
    matrix_change
        M: largest ``‖Q - Q'‖₁`` between neighbours. Rows that get another response are counted by `displaced`, not here.
    displaced
        k': the number of rows whose response may change, not counting the person's own row and the rows that hold the person's
        response. If it is not 0, the person's own row may carry another response as well.
    carriers
        How many rows may hold one person's response (1 unless links are one-to-many).
    moved_change
        The part of M that the person's own move to another block accounts for.
    weighed
        Weight and accuracy of each group of rows, if groups are weighed, which they are only if every row keeps its block.
    persons
        How many rows a person has at most; noise is planned for steps of one row.
    levels
        In how many levels of a declared column the same is released side by side, each row counting in its own alone. 1 elsewhere.
    """

    exact: bool
    symmetric: bool
    accuracy_min: float
    column_sum: float
    matrix_change: float
    displaced: int
    carriers: int = 1
    moved_change: float = 0.0
    weighed: tuple[tuple[float, float], ...] = ()
    persons: int = 1
    levels: int = 1

    @cached_property
    def groups(self) -> tuple[tuple[float, float], ...]:
        """Weight and smallest accuracy of each group of rows; a single one of weight 1 unless groups are weighed."""
        return self.weighed or ((1.0, self.accuracy_min),)

    @cached_property
    def counted(self) -> float:
        """How far row j moves numbers of rows: by 1; by √2 beside other levels, since it may leave one for another."""
        return 1.0 if self.levels == 1 else math.sqrt(2.0)

    @cached_property
    def relinked(self) -> int:
        """Number of rows whose response may change, not counting the first row that holds the person's response."""
        return self.displaced + int(self.displaced > 0) + self.carriers - 1

    @cached_property
    def paper_change(self) -> float:
        """M as it enters the paper's bounds: a relinked row moves W'z by at most 2Rc, which is what two units of M do."""
        return self.matrix_change + 2.0 * self.relinked
