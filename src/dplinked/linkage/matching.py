"""An explicit matching matrix Q: as a sparse matrix, or as pairs of positions or ids."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dplinked.data.arrow import column_texts, to_arrow
from dplinked.data.fingerprint import content_bytes
from dplinked.data.keys import key_text
from dplinked.data.sources import is_path, is_spark
from dplinked.errors import StudyError, plain_faults, plain_number, raise_alone, shown
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.linkage.unit import LinkageExposure, PrivacyUnit, checked_carriers

if TYPE_CHECKING:
    import pyarrow as pa

STOCHASTIC_TOLERANCE = 1e-5
MOST_CANDIDATES = (
    1 << 20
)  # entries of one row: up to here its sums stay within the rounding bound, however many pairs there are

COLUMN_SUM = (
    "A column of the matching matrix sums to more than column_sum={:g}. Balance the "
    "probabilities (Sinkhorn), or declare a larger column_sum for one-to-many links."
)
DIAGONAL = "A diagonal entry of the matching matrix is below accuracy_min={:g}."
PROBABILITIES = "Matching probabilities must be finite and not negative."
POSITIONS = "The pairs' positions must be whole numbers from 0, and there must be some."
ROW_SUM = "Each row of the matching matrix must sum to 1."
IDS = "The ids in {} must be different and not null."
UNKNOWN_IDS = "The pairs name an id that is not in {}."


@dataclass(frozen=True, init=False, repr=False)
class Matching:
    """An explicit sparse matching matrix Q, rows summing to one.

    Parameters
    ----------
    pairs
        A SciPy sparse matrix (n×n), or a table with the columns `row` (position of the linked row),
        `match` (position of the row whose response it may carry) and `probability`; or the path of a Parquet or CSV file with such a
        table, which is read when the rows are.
    column_sum
        Declared upper limit of Q's column sums: 1 for one-to-one links (Q is doubly stochastic), more for
        one-to-many links.
    accuracy_min
        Declared lower limit of Q's diagonal entries; 0 if nothing is known.
    id
        Name of the data's id column, if `row` and `match` hold ids instead of positions. Rows in a database have no positions, so there
        ids are needed; `pairs` may then also be a Spark frame, and the engine joins them.
    carriers
        How many rows may hold one person's response. It must be declared with one-to-many links, since all of
        these rows change with the person and no column sum bounds their number.

    Notes
    -----
    The matrices of all neighbours are assumed to satisfy `column_sum` and `accuracy_min`. Whether this matrix does is checked
    here, where the steward builds it, or, of ids and of files, when the rows are read. How far one person can move Q cannot be
    seen from a single Q, so ``PrivacyUnit(linkage_change=…, displaced_links=…)`` must state it.
    """

    matrix: Any
    column_sum: float
    accuracy_min: float
    carriers: int
    id: str | None
    pairs: Any
    block: None

    @plain_faults
    def __init__(
        self,
        pairs: Any,
        *,
        id: str | None = None,
        column_sum: float = 1.0,
        accuracy_min: float = 0.0,
        carriers: int | None = None,
    ) -> None:
        if not 1.0 <= plain_number(column_sum) < math.inf:
            raise StudyError(f"column_sum must be a finite number, 1 or more, not {shown(column_sum)}.")
        if not 0.0 <= plain_number(accuracy_min) <= 1.0:
            raise StudyError(f"accuracy_min must lie in [0, 1], not {shown(accuracy_min)}.")
        if carriers is None and column_sum > 1.0:
            raise StudyError(
                "One-to-many links (column_sum above 1) need carriers=…: how many rows may hold one response."
            )
        carriers = checked_carriers(1 if carriers is None else carriers)
        if id is not None and (not isinstance(id, str) or sp_matrix(pairs)):
            raise StudyError("id names the data's id column, for pairs given as a table of ids.")
        object.__setattr__(self, "column_sum", float(column_sum))
        object.__setattr__(self, "accuracy_min", float(accuracy_min))
        object.__setattr__(self, "carriers", carriers)
        object.__setattr__(self, "block", None)
        object.__setattr__(self, "id", id)
        kept = id is not None or is_path(pairs)
        object.__setattr__(self, "pairs", (Path(pairs) if is_path(pairs) else pairs) if kept else None)
        object.__setattr__(self, "matrix", None if kept else self._checked(_stochastic_matrix(pairs)))

    def _checked(self, matrix: Any) -> Any:
        """Refuse a matrix that does not satisfy the declarations."""
        if matrix.sum(axis=0).max() > self.column_sum + STOCHASTIC_TOLERANCE:
            raise StudyError(COLUMN_SUM.format(self.column_sum))
        if matrix.diagonal().min() < self.accuracy_min - STOCHASTIC_TOLERANCE:
            raise StudyError(DIAGONAL.format(self.accuracy_min))
        return matrix

    @property
    def mean_accuracy(self) -> float:
        """Always 1: the matrix itself says how likely each link is, so nothing is corrected by an accuracy."""
        return 1.0

    @property
    def least_accuracy(self) -> float:
        """What diagonal entries are held to: the declared limit, less the tolerance of the check."""
        return max(0.0, self.accuracy_min - STOCHASTIC_TOLERANCE)

    def matrix_for(self, ids: Any) -> Any:
        """The matrix for the rows with these ids, in their order (an Arrow array of integers or texts); with positions, the matrix itself."""
        if self.id is None:
            return self._checked(_stochastic_matrix(self.pairs)) if self.matrix is None else self.matrix
        import pyarrow as pa
        import pyarrow.compute as pc
        import scipy.sparse as sp

        table = to_arrow(self.pairs, "pairs")
        _require_pairs(table.column_names)
        if ids.null_count or len(pc.unique(ids)) != len(ids):
            raise StudyError(IDS.format(shown(self.id)))
        places = []
        for name in ("row", "match"):
            found = _find_ids(table, name, ids)
            if found.null_count:
                raise StudyError(UNKNOWN_IDS.format(shown(self.id)))
            places.append(np.asarray(found.to_numpy(), np.int64))
        values = _pair_numbers(table, "probability", pa.float64())
        matrix = sp.coo_array((values, tuple(places)), shape=(len(ids), len(ids)))
        return self._checked(_normalised(matrix))

    def __repr__(self) -> str:
        return f"Matching(column_sum={self.column_sum:g}, accuracy_min={self.accuracy_min:g})"

    @property
    def public(self) -> Matching:
        """The model itself: outside the sums nothing reads the matrix."""
        return self

    def exposure(self, unit: PrivacyUnit) -> LinkageExposure:
        """See :class:`LinkageExposure`."""
        if unit.linkage_change is None or unit.displaced_links is None:
            raise StudyError(
                "An explicit matching matrix does not say how far one person can change it. State both: "
                "PrivacyUnit(linkage_change=…, displaced_links=…), or in a study file linkage_change = … and displaced_links = … in [unit]."
            )
        if unit.moves_block:
            raise StudyError("A matching matrix has no blocks. Put what a move changes into linkage_change.")
        return LinkageExposure(
            exact=False,
            symmetric=False,
            accuracy_min=self.least_accuracy,
            column_sum=self.column_sum + STOCHASTIC_TOLERANCE,
            matrix_change=unit.linkage_change,
            displaced=unit.displaced_links,
            carriers=self.carriers,
            persons=unit.rows,
        )

    def identity(self) -> dict[str, Any]:
        """What distinguishes this model from others: its declarations, and a digest of the matrix or of the pairs."""
        digest = hashlib.sha256()
        for piece in self.content():
            digest.update(piece)
        named = {} if self.id is None else {"id": self.id}
        return {**self._declarations(), **named, "matrix": digest.hexdigest()}

    def content(self) -> Iterator[bytes]:
        """Bytes by which the matrix is known again: those of the pairs' file or table, else its own."""
        if is_spark(self.pairs):
            raise StudyError("Pairs in a Spark frame cannot be known again. With a ledger, give them as a file.")
        if self.pairs is not None:
            yield from content_bytes(self.pairs)
        else:
            yield from (part.tobytes() for part in (self.matrix.indptr, self.matrix.indices, self.matrix.data))

    def describe(self) -> DeclaredLinkage:
        """Return what is declared, for the release."""
        return DeclaredLinkage(**self._declarations())

    def _declarations(self) -> dict[str, Any]:
        return {
            "model": "Matching",
            "column_sum": self.column_sum,
            "accuracy_min": self.accuracy_min,
            "carriers": self.carriers,
        }


def sp_matrix(pairs: Any) -> bool:
    """Whether the pairs are given as a SciPy sparse matrix."""
    import scipy.sparse as sp

    return bool(sp.issparse(pairs))


def _require_pairs(columns: Any) -> None:
    missing = [name for name in ("row", "match", "probability") if name not in columns]
    if missing:
        raise StudyError(f"The pairs need the columns 'row', 'match' and 'probability'; missing: {missing}.")


def _stochastic_matrix(pairs: Any) -> Any:
    """Build the sparse matrix, check it, and rescale its rows so that they sum to one exactly."""
    import scipy.sparse as sp

    if sp.issparse(pairs):
        return _normalised(sp.coo_array(pairs).astype(np.float64))
    import pyarrow as pa

    table = to_arrow(pairs, "pairs")
    _require_pairs(table.column_names)
    rows, matches = (_pair_numbers(table, name, pa.int64()) for name in ("row", "match"))
    if rows.size == 0 or min(rows.min(), matches.min()) < 0:
        raise StudyError(POSITIONS)
    size = int(max(rows.max(), matches.max())) + 1
    values = _pair_numbers(table, "probability", pa.float64())
    return _normalised(sp.coo_array((values, (rows, matches)), shape=(size, size)))


def _pair_numbers(table: pa.Table, name: str, kind: Any) -> Any:
    """A column of the pairs as NumPy numbers of an Arrow type; anything else is refused."""
    import pyarrow as pa

    column = None
    with suppress(pa.ArrowException, ValueError):
        column = table.column(name).cast(kind)
    if column is None or column.null_count:
        raise_alone(StudyError(PROBABILITIES if name == "probability" else POSITIONS))
    return np.asarray(column.to_numpy())


def is_whole(kind: Any) -> bool:
    """Whether an Arrow type holds integers that fit into 64 signed bits; these are compared as they are, not as texts."""
    import pyarrow as pa

    return pa.types.is_integer(kind) and not pa.types.is_uint64(kind)


def _find_ids(table: pa.Table, name: str, ids: Any) -> Any:
    """Position of each of the pairs' ids among the data's ids, null for unknown ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_whole(ids.type) and is_whole(table.column(name).type):
        return pc.index_in(table.column(name).cast(pa.int64()), value_set=ids.cast(pa.int64()))
    return pc.index_in(_id_texts(table, name), value_set=ids.cast(pa.large_string()))


def _id_texts(table: pa.Table, name: str) -> Any:
    """The pairs' ids as texts, written as keys are (see :mod:`dplinked.data.keys`)."""
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return pa.array(map(key_text, column.to_pylist()), pa.large_string())
    return column_texts(table, name, "pairs").cast(pa.large_string())


def _normalised(entries: Any) -> Any:
    """A CSR matrix of the entries (those at the same position are added) whose rows sum to one exactly."""
    import scipy.sparse as sp

    if entries.shape[0] != entries.shape[1]:
        raise StudyError(f"The matching matrix must be square, not {entries.shape}.")
    if not (np.isfinite(entries.data).all() and (entries.data >= 0).all()):
        raise StudyError(PROBABILITIES)
    matrix = entries.tocsr()
    sums = matrix.sum(axis=1)
    if not (np.abs(sums - 1.0) <= STOCHASTIC_TOLERANCE).all():
        raise StudyError(ROW_SUM)
    if np.diff(matrix.indptr).max() > MOST_CANDIDATES:
        raise StudyError(f"A row of the matching matrix may have at most {MOST_CANDIDATES:,} entries.")
    return sp.csr_array(sp.diags_array(1.0 / sums) @ matrix)
