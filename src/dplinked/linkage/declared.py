"""What a release says about the linkage: what was declared, never accuracies that are data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dplinked.records import ReadableByKey


@dataclass(frozen=True)
class DeclaredLinkage(ReadableByKey):
    """A linkage model as it was declared; None stands for what a model does not have, or does not show.

    Attributes
    ----------
    model
        ``"ELE"``, ``"Exact"`` or ``"Matching"``.
    accuracy, other, block, source
        Of an ELE: see :class:`~dplinked.ELE`. Accuracies that are data are None.
    checked, accuracy_error, other_error, shared_error, accuracy_min, paid, displaced_links
        What is known about those accuracies; `accuracy_min` also of a matching matrix.
    column_sum
        Of a matching matrix: see :class:`~dplinked.Matching`.
    carriers
        Of a matching matrix, and of an ELE if it is more than 1: how many rows may hold one person's response.
    fields
        The columns that records were linked by, if they are named; of accuracies that an audit of identifiers found, all that it looked at.
    overall
        The mean accuracy of all rows, of accuracies per group whose numbers of rows are public: block keys that are held fixed.
    """

    model: str
    accuracy: float | dict[str, float] | None = None
    block: str | None = None
    other: float | None = None
    source: str | None = None
    checked: float | dict[str, float] | None = None
    accuracy_error: float | dict[str, float] | None = None
    other_error: float | None = None
    shared_error: tuple[dict[str, float], ...] | None = None
    accuracy_min: float | None = None
    paid: float | dict[str, Any] | None = None
    displaced_links: int | None = None
    column_sum: float | None = None
    carriers: int | None = None
    fields: tuple[str, ...] | None = None
    overall: float | None = None

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy of the rows; where the sizes of groups are not public, of the groups that are shown; 1 where there are none."""
        if self.overall is not None:
            return self.overall
        if isinstance(self.accuracy, Mapping):
            return sum(self.accuracy.values()) / len(self.accuracy)
        return 1.0 if self.accuracy is None else self.accuracy
