"""One file: which of its records are the same person's. For the steward, not for publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import to_arrow
from dplinked.data.look import tell_format
from dplinked.errors import StudyError, plain_faults, plain_number, shown
from dplinked.linker.checks import check_fields, check_file
from dplinked.linker.document import WARNING
from dplinked.linker.duplicates import MATCH, START_SHARE, Duplicates, comparers_within, find_duplicates
from dplinked.linker.fields import Comparer, Field, read_fields
from dplinked.linker.joined import id_column
from dplinked.linker.passes import pair_budget
from dplinked.report.document import Document, Facts, Section, Steps
from dplinked.report.text import write_text

if TYPE_CHECKING:
    import pyarrow as pa

CLUSTER = "cluster"
_LEAST_BUDGET = 2_000_000  # pairs that are always worth comparing


@dataclass(frozen=True, repr=False)
class Deduped:
    """A file whose records are grouped by person. FOR THE STEWARD: it is read from the file without noise.

    Attributes
    ----------
    table
        The file (an Arrow table).
    fields
        The fields that were compared.
    duplicates
        Pairs of records that may be one person's.
    cluster
        The person of each record, numbered by their first records (n).
    """

    table: pa.Table
    fields: tuple[Field, ...]
    duplicates: Duplicates
    cluster: NDArray[np.int64]
    least: float
    id: str | None
    comparers: Sequence[Comparer]

    def __repr__(self) -> str:
        return "Deduped(for the steward)"

    @property
    def people(self) -> int:
        """How many people the records belong to, as far as they were told apart."""
        return int(self.cluster.max(initial=-1)) + 1

    @cached_property
    def rows(self) -> pa.Table:
        """The file with the person of each record in the column ``cluster``."""
        import pyarrow as pa

        return self.table.append_column(CLUSTER, pa.array(self.cluster))

    @cached_property
    def unique(self) -> pa.Table:
        """One record of each person: the one with most values in the fields, of several the first."""
        there = np.sum([one.left >= 0 for one in self.comparers], axis=0)
        order = np.lexsort((np.arange(there.size), -there, self.cluster))
        first = order[np.flatnonzero(np.diff(self.cluster[order], prepend=-1))]
        return self.table.take(np.sort(first))

    @cached_property
    def pairs(self) -> pa.Table:
        """The pairs of records that were joined: their ids, score and probability."""
        import pyarrow as pa

        found = self.duplicates
        joined = np.flatnonzero(found.probability >= self.least)
        ids = id_column(self.table, self.id)
        return pa.table(
            {
                "first": ids.take(pa.array(found.first[joined])),
                "second": ids.take(pa.array(found.second[joined])),
                "score": found.score[joined],
                "probability": found.probability[joined],
            }
        )

    def summary(self) -> str:
        """What was found, as text."""
        probability, joined = self.duplicates.probability, self.duplicates.probability >= self.least
        sizes = np.bincount(np.bincount(self.cluster))
        facts = [
            ("Records", f"{self.table.num_rows:,}"),
            ("People", f"{self.people:,}"),
            ("With several records", f"{int(sizes[2:].sum()):,}, at most {sizes.size - 1} of them"),
            ("Pairs joined", f"{int(joined.sum()):,}, of them {(1.0 - probability[joined]).sum():.1f} wrongly, as far as the evidence tells"),
            ("Pairs left apart", f"{probability[~joined].sum():.1f} of those compared are one person's, as far as the evidence tells"),
        ]  # fmt: skip
        steps = [
            "Look at some of the pairs: nothing but a person's eye sees what the evidence gets wrong.",
            "Go on with one record of each person (unique), or make one of theirs, such as sums by the column 'cluster'. Unless the privacy unit says otherwise (rows=…), a promise is for people with one row; whoever is left with two is protected less.",
        ]
        compared = ", ".join(field.name for field in self.fields)
        return write_text(
            Document(
                "Which records are the same person's?",
                [Section("What was found", [Facts(facts, f"Compared: {compared}")]), Section("What to do next", [Steps(steps)])],
                warning=WARNING,
            )
        )  # fmt: skip


@plain_faults
def dedupe(
    data: Any, *, fields: Any, id: str | None = None, least: float = MATCH, threshold: float | None = None, seed: int = 0
) -> Deduped:  # fmt: skip
    """Find the records of one file that are the same person's.

    Parameters
    ----------
    data
        A table, or the path of a Parquet or CSV file.
    fields
        Columns to compare, as in :func:`dplinked.link`.
    id
        Column that names a record; by default row numbers.
    least
        The least probability of two records that are joined. Records that a chain of such pairs connects are one person's.
    threshold
        The least score of pairs that learning starts from, by default 60 % of the largest possible one. What tells a person's records from others is learned from the file.
    seed
        Seed of the random pairs that tell how records agree by chance.

    Privacy
    -------
    None. The file is read without noise, for the steward. Unless the privacy unit says otherwise (``rows=…``), a promise is for people who have one row in each file: records of one person that are not found protect them less.
    """
    tell_format(data)
    table = to_arrow(data, "given")
    check_file(table, id, "given")
    if CLUSTER in table.column_names:
        raise StudyError(f"The file has a column {CLUSTER!r}, which this adds. Rename it.")
    if not 0.0 < plain_number(least) < 1.0:
        raise StudyError(f"least must be a probability between 0 and 1, not {shown(least)}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise StudyError(f"seed must be a whole number, 0 or more, not {shown(seed)}.")
    chosen = read_fields(fields)
    check_fields(table, chosen, "given", typed=False)
    comparers = comparers_within(table, chosen)
    largest = sum(field.weight for field in chosen)
    if threshold is not None and not 0.0 < plain_number(threshold) <= largest:
        raise StudyError(f"threshold must lie between 0 and the largest score {largest:g}, not {shown(threshold)}.")
    share = START_SHARE if threshold is None else threshold / largest
    try:
        found = find_duplicates(comparers, pair_budget(table.num_rows, table.num_rows, _LEAST_BUDGET), share, seed)
    except ImportError:
        raise StudyError("Linking needs rapidfuzz: pip install 'dplinked[linkage]'.") from None
    return Deduped(table, chosen, found, found.clusters(least), least, id, comparers)
