"""What one person can change: the declared privacy unit, and what it means under a linkage model."""

from __future__ import annotations

from dataclasses import dataclass

from dplinked.errors import StudyError
from dplinked.records import ReadableByKey

_MOST = 10**9  # links that a person may displace, and change of the matching matrix


@dataclass(frozen=True)
class PrivacyUnit(ReadableByKey):
    """What one individual can change, beyond their own x and y.

    Parameters
    ----------
    moves_block
        Whether the person's identifiers may put them into another block.
    displaced_links
        How many rows, other than the person's own row and the row that holds the person's response,
        may receive another response because this person's identifiers changed (k). With 0, links are held
        fixed; with 1 or more, the person's own row may be linked anew as well.
    linkage_change
        How far the matching matrix may change, ``‖Q - Q'‖₁`` entrywise (the paper's M). Declared accuracies are
        public all the same, and printed.

    Notes
    -----
    A person's regressors all sit on one row, their response on another: regressors must come from the file
    that the response does not come from. The default protects x and y with links and blocks held fixed. What identifiers do to the linkage
    is then *not* protected, and every release says so. An explicit matching matrix
    (:class:`Matching`) cannot derive the last two, so there they must be stated.
    """

    moves_block: bool = False
    displaced_links: int | None = None
    linkage_change: float | None = None

    def __post_init__(self) -> None:
        if type(self.moves_block).__name__ not in ("bool", "bool_"):  # NumPy's too
            raise StudyError(f"moves_block must be true or false, not {self.moves_block!r}.")
        object.__setattr__(self, "moves_block", bool(self.moves_block))
        k, change = self.displaced_links, self.linkage_change
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= _MOST):
            raise StudyError(f"displaced_links must be a whole number from 0 to 1e9, not {k!r}.")
        if change is not None and not 0 <= change <= _MOST:
            raise StudyError(f"linkage_change must be a number from 0 to 1e9, not {change!r}.")
        if change is not None:
            object.__setattr__(self, "linkage_change", float(change))

    def describe(self) -> str:
        """Say in one sentence who is protected against what."""
        moves = "may" if self.moves_block else "may not"
        k, change = self.displaced_links or 0, self.linkage_change or 0.0
        protected = "one individual, present once in both files: any change of their x and y"
        if not (self.moves_block or k or change):
            return f"{protected}. Links and blocks are held fixed: what identifiers do to the linkage is not protected."
        return (
            f"{protected}, and of their identifiers as far as they displace at most {k} further link(s), change the "
            f"matching matrix by at most {change:g} (entrywise l1), and {moves} move the person to another block."
        )


UNSTATED = PrivacyUnit()  # the default unit where nobody stated one; compared by identity


@dataclass(frozen=True)
class LinkageExposure:
    """What the sensitivities need to know: how far linkage can differ between neighbours.

    Attributes
    ----------
    exact
        Links are a join on a unique key: a person's response always sits on the person's row.
    symmetric
        Q is symmetric, so that ``x'Qx`` is too.
    accuracy_min
        Smallest ``q_jj`` that any record may have, from declared values only.
    column_sum
        Largest sum of a column of Q (1 if doubly stochastic).
    matrix_change
        M: largest ``‖Q - Q'‖₁`` between neighbours, links unpermuted.
    displaced
        k': rows besides the person's own and those that hold the person's response whose response may change. If there are any, the person's own row
        may carry another response as well.
    carriers
        How many rows may hold one person's response (1 unless links are one-to-many).
    """

    exact: bool
    symmetric: bool
    accuracy_min: float
    column_sum: float
    matrix_change: float
    displaced: int
    carriers: int = 1

    @property
    def relinked(self) -> int:
        """Rows whose response may change, the first row that holds the person's response left out."""
        return self.displaced + int(self.displaced > 0) + self.carriers - 1

    @property
    def paper_change(self) -> float:
        """M as the paper's bounds take it: a relinked row moves W'z by at most 2Rc, what two units of M cost."""
        return self.matrix_change + 2.0 * self.relinked
