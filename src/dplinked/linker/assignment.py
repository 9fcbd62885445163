"""One-to-one links from scored pairs: the best assignment, and the matching matrix of its rows.

Pairs are sparse: a row of the left file, a row of the right file, and the evidence that they belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ROWS_AT_ONCE = 1_000  # rows whose assignment is found together, if that divides no connected ones


@dataclass(frozen=True)
class Candidates:
    """Pairs of records that were compared and might be links.

    Attributes
    ----------
    left, right
        Positions of the two records in their files (N each). Each pair occurs once.
    score
        The score that the linker ranks pairs by (N); a higher score means a likelier match.
    evidence
        Likelihood ratio of the comparison, match against non-match (N).
    left_count, right_count
        Numbers of records in the two files.
    """

    left: Integers
    right: Integers
    score: Floats
    evidence: Floats
    left_count: int
    right_count: int


def assign_sparse(left: Integers, right: Integers, gain: Floats, room: Integers | None = None) -> NDArray[np.bool_]:
    """Mark the pairs of the one-to-one assignment with the largest total gain. Pairs without a positive gain are left out.

    `room` says how many left records each right record may still be given to, if that is not one.

    Notes
    -----
    Pairs whose left record occurs in no other pair, and whose right record has room for all of its pairs, are taken at once. A right record with room for several counts as so many. The others go to SciPy's sparse assignment, connected ones together. There every left record
    also gets a dummy partner at no gain, so that a perfect matching exists.
    """
    taken = np.zeros(gain.size, dtype=bool)
    useful = np.flatnonzero((gain > 0.0) if room is None else (gain > 0.0) & (room[right] > 0))
    alone = _occurs_at_most(left[useful]) & _occurs_at_most(right[useful], None if room is None else room)
    taken[useful[alone]] = True
    contested = useful[~alone]
    if contested.size == 0:
        return taken
    rows, i = np.unique(left[contested], return_inverse=True)
    columns, j = np.unique(right[contested], return_inverse=True)
    if room is not None:
        contested, i, j, columns = _with_copies(contested, i, j, np.minimum(room[columns], np.bincount(j)))
    for piece in _pieces(i, j, rows.size, columns.size):
        chosen = piece[_assign(i[piece], j[piece], gain[contested[piece]])]
        taken[contested[chosen]] = True
    return taken


def _pieces(i: Integers, j: Integers, rows: int, columns: int) -> Iterator[Integers]:
    """Pairs in groups that have no record in common with others, each of about so many rows: SciPy's time for one grows with the square of its rows."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(i.size, np.int8), (i, rows + j)), shape=(rows + columns,) * 2)
    label = connected_components(graph, directed=False)[1]
    last = np.cumsum(np.bincount(label[:rows], minlength=int(label.max()) + 1))  # rows up to each component
    piece = ((last - 1) // _ROWS_AT_ONCE)[label[i]]
    order = np.argsort(piece, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(piece[order])) + 1)


def _assign(i: Integers, j: Integers, gain: Floats) -> NDArray[np.bool_]:
    """Mark the pairs of the best assignment among some."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    rows, i = np.unique(i, return_inverse=True)
    columns, j = np.unique(j, return_inverse=True)
    top = float(gain.max()) * 2.0 + 1.0
    own = np.arange(rows.size)
    cost = csr_array(
        (
            np.concatenate([top - gain, np.full(rows.size, top)]),
            (np.concatenate([i, own]), np.concatenate([j, columns.size + own])),
        ),
        shape=(rows.size, columns.size + rows.size),
    )
    matched_rows, matched = min_weight_full_bipartite_matching(cost)
    partner = np.full(rows.size, -1)
    partner[matched_rows] = matched
    return np.asarray(partner[i] == j)


def _with_copies(pairs: Integers, i: Integers, j: Integers, copies: Integers) -> tuple[Integers, ...]:
    """Pairs and the codes of their records, each repeated with every copy of its right record; and the codes of all copies."""
    each = copies[j]
    copy = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    first = np.cumsum(copies) - copies
    return np.repeat(pairs, each), np.repeat(i, each), np.repeat(first[j], each) + copy, np.arange(copies.sum())


def _occurs_at_most(codes: Integers, most: Integers | None = None) -> NDArray[np.bool_]:
    """Whether each code occurs only once, or at most as often as `most` says of it."""
    if codes.size == 0:
        return np.zeros(0, dtype=bool)
    return np.asarray(np.bincount(codes)[codes] <= (1 if most is None else most[codes]))


def holders(links: Integers, candidates: Candidates) -> Integers:
    """The left row that carries the right record of each candidate pair, -1 if no row does (N)."""
    holder = np.full(candidates.right_count + 1, -1)
    holder[links] = np.arange(links.size)
    holder[-1] = -1  # index -1 stands for "no link": such a row carries nobody's response
    return holder[candidates.right]


def matching_matrix(
    links: Integers, candidates: Candidates, probability: Floats, *, seed: int = 0, tolerance: float = 1e-6
) -> Any:
    """The sparse, doubly stochastic matching matrix of the linked rows: ``q_ij = P(row i carries row j's response)`` (n×n).

    Parameters
    ----------
    links
        Position in the right file that each left row is linked to, -1 for none (n).
    candidates, probability
        The compared pairs and their one-to-one probabilities.
    tolerance
        How far the sums of rows and columns may be from one.

    Notes
    -----
    Row i carries the response of right record ``links[i]``, which belongs to left row j with probability ``p_j,links[i]``. These
    entries sum to less than one. The rest stands for "anybody else" and is a floor, a matrix of rank one. Sinkhorn scaling brings the
    sums of matrix plus floor within `tolerance` of one. The floor has n² entries, so its mass is put on fewer than 2n random
    entries that have the same row and column sums.
    """
    from scipy.sparse import csr_array

    n, row = links.size, holders(links, candidates)
    kept = (row >= 0) & (probability > 0.0)
    matrix = csr_array((probability[kept], (row[kept], candidates.left[kept])), shape=(n, n))
    matrix, rows_left, columns_left = _balance(matrix, tolerance)
    floor = _lay_out(rows_left, columns_left, np.random.default_rng(seed))
    result = (matrix + floor).tocsr()
    worst = max(abs(result.sum(axis=0) - 1.0).max(), abs(result.sum(axis=1) - 1.0).max()) if n else 0.0
    if not worst <= tolerance:
        raise StudyError(
            f"The matching matrix could not be balanced to {tolerance:g}; use the accuracy per block instead."
        )
    return result


def _balance(matrix: Any, tolerance: float) -> tuple[Any, Floats, Floats]:
    """Sinkhorn scaling of matrix plus floor; returns the scaled matrix, and the row sums and column sums of the scaled floor."""
    n = matrix.shape[0]
    u, v = np.ones(n), np.ones(n)
    rows, columns = np.maximum(1.0 - matrix.sum(axis=1), 0.0), np.maximum(1.0 - matrix.sum(axis=0), 0.0)
    mass = max(float(rows.sum()), float(columns.sum()), 1e-300)
    for _ in range(10_000):
        u = 1.0 / np.maximum(matrix @ v + rows * (columns @ v) / mass, 1e-300)
        column_sums = v * (matrix.T @ u + columns * (rows @ u) / mass)
        if np.abs(column_sums - 1.0).max(initial=0.0) < tolerance / 2.0:
            break
        v = v / np.maximum(column_sums, 1e-300)
    scaled = matrix.multiply(u[:, None]).multiply(v[None, :]).tocsr()
    return scaled, u * rows * (columns @ v) / mass, v * columns * (rows @ u) / mass


def _lay_out(rows: Floats, columns: Floats, rng: np.random.Generator) -> Any:
    """A sparse nonnegative matrix with given row and column sums, at random entries. Column sums are scaled to the rows' total."""
    from scipy.sparse import csr_array

    n, mass = rows.size, float(rows.sum())
    if mass <= 0.0 or columns.sum() <= 0.0:
        return csr_array((n, n))
    i, j = rng.permutation(n), rng.permutation(n)
    row_ends, column_ends = np.cumsum(rows[i]), np.cumsum(columns[j]) * (mass / columns.sum())
    ends = np.sort(np.concatenate([row_ends, column_ends]))
    ends = np.minimum(ends, mass)
    lengths = np.diff(ends, prepend=0.0)
    middles = ends - lengths / 2.0
    used = lengths > 0.0
    place_i = np.minimum(np.searchsorted(row_ends, middles[used]), n - 1)
    place_j = np.minimum(np.searchsorted(column_ends, middles[used]), n - 1)
    return csr_array((lengths[used], (i[place_i], j[place_j])), shape=(n, n))
