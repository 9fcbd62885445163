"""Several records of the same person in one file: which they are, and how many. For the steward, not for publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.evidence import Evidence, compare_records, estimate_evidence, pattern_levels
from dplinked.linker.fields import Comparer, Field, make_comparers
from dplinked.linker.passes import choose_passes, make_keys, pair_budget, pairs_of

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MATCH = 0.5  # least probability of two records to be one person's
START_SHARE = (
    0.6  # of the largest score: what tells one person's records from others is learned from pairs that reach it
)
_SAMPLED = 1_000  # records whose pairs tell how records agree by chance
_AT_ONCE = 1_000_000  # pairs that are compared at a time
_LEAST_SHARE = 0.3  # of the largest score that a pair must reach to be looked at any further
_ROUNDS, _CLOSE = 100, 1e-3
_FEW_PAIRS = 200_000  # within a file that are always worth comparing, to count duplicates


@dataclass(frozen=True, repr=False)
class Compared:
    """Pairs of records of one file that agree somewhere, the first record before the second (positions, N each), their scores and patterns."""

    first: Integers
    second: Integers
    score: Floats
    pattern: Integers


@dataclass(frozen=True, repr=False)
class Duplicates:
    """Pairs of records that may be one person's.

    Attributes
    ----------
    first, second, score, probability
        Positions of both records, the first before the second, and how probable it is that they are one person's (N each).
    count
        Number of records of the file.
    """

    first: Integers
    second: Integers
    score: Floats
    probability: Floats
    count: int

    def clusters(self, least: float = MATCH) -> Integers:
        """The cluster of each record, numbered by their first records: records that chains of pairs of at least this probability connect (n)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        linked = self.probability >= least
        pairs = self.first[linked], self.second[linked]
        graph = coo_array((np.ones(pairs[0].size), pairs), shape=(self.count, self.count))
        labels = connected_components(graph, directed=False)[1]
        _, first = np.unique(labels, return_index=True)
        return np.asarray(np.argsort(np.argsort(first))[labels], np.int64)


def comparers_within(table: pa.Table, fields: Sequence[Field], *, right: bool = False) -> list[Comparer]:
    """Read the values of fields of one file, to compare its records with each other; `right` says that it is the right one of two."""
    names = [str(field.right) if right else field.name for field in fields]
    return make_comparers(
        table, table, [replace(field, name=name, right=name) for field, name in zip(fields, names, strict=True)]
    )


def compare_within(comparers: Sequence[Comparer], budget: int) -> Compared:
    """Compare records of one file with each other, all of them or, in passes of blocking, as many pairs as the budget allows."""
    largest = sum(comparer.field.weight for comparer in comparers)
    plans, _ = choose_passes(make_keys(comparers), budget)
    count = comparers[0].left.size
    keys, parts = np.zeros(0, np.int64), [(np.zeros(0), np.zeros(0, np.int64))]
    for plan in plans:
        for left, right in pairs_of(plan, _AT_ONCE):
            once = left < right
            left, right = left[once], right[once]
            score, pattern = compare_records(comparers, left, right, each=False)
            alike = score >= _LEAST_SHARE * largest
            keys = np.append(keys, left[alike] * count + right[alike])
            parts.append((score[alike].astype(np.float64), pattern[alike].astype(np.int64)))
    keys, kept = np.unique(keys, return_index=True)
    scores, patterns = (np.concatenate(part)[kept] for part in zip(*parts, strict=True))
    return Compared(keys // count, keys % count, scores, patterns)


def learn_within(comparers: Sequence[Comparer], compared: Compared, threshold: float, seed: int) -> Evidence | None:
    """Estimate what tells pairs of one person from others; None if no pair reaches the threshold."""
    levels, count = pattern_levels(comparers), comparers[0].left.size
    over = compared.score >= threshold
    if not over.any():
        return None
    size = int(np.prod(levels))
    chance = _by_chance(comparers, np.random.default_rng(seed))
    everything = np.bincount(chance, minlength=size) * (count * (count - 1) / 2.0 / max(chance.size, 1))
    seen = np.bincount(compared.pattern, minlength=size)
    patterns = np.rint(np.maximum(everything, seen)).astype(np.int64)
    return estimate_evidence(patterns, np.bincount(compared.pattern[over], minlength=size), levels)


def _by_chance(comparers: Sequence[Comparer], rng: np.random.Generator) -> Integers:
    """Patterns of random pairs of different records."""
    some = rng.permutation(comparers[0].left.size)[:_SAMPLED]
    pattern = compare_records(comparers, some, some)[1]
    return pattern[np.triu_indices(some.size, 1)].astype(np.int64)


def judge_pairs(compared: Compared, evidence: Evidence, count: int) -> Duplicates:
    """How probable it is that pairs of records are one person's.

    Notes
    -----
    Of n(n-1)/2 pairs, D are expected to be one person's, so a pair has the prior odds ``D/(n(n-1)/2 - D)``. The D that the probabilities add up to is iterated to its fixed point.
    """
    ratio, every = evidence.ratio[compared.pattern], max(count * (count - 1) / 2.0, 1.0)
    expected, probability = 0.05 * count, np.zeros(ratio.size)
    for _ in range(_ROUNDS):
        odds = ratio * expected / max(every - expected, 0.5)
        probability = odds / (1.0 + odds)
        before, expected = expected, max(float(probability.sum()), 1e-3)
        if abs(expected - before) < _CLOSE * before:
            break
    return Duplicates(compared.first, compared.second, compared.score, probability, count)


def find_duplicates(comparers: Sequence[Comparer], budget: int, share: float, seed: int = 0) -> Duplicates:
    """Find pairs of records of one file that may be one person's; learning starts from those that reach this share of the largest score."""
    count = comparers[0].left.size
    compared = compare_within(comparers, budget)
    evidence = learn_within(comparers, compared, share * sum(one.field.weight for one in comparers), seed)
    if evidence is None:
        return Duplicates(compared.first, compared.second, compared.score, np.zeros(compared.first.size), count)
    return judge_pairs(compared, evidence, count)


def count_duplicates(left: pa.Table, right: pa.Table, fields: Sequence[Field]) -> tuple[int, int]:
    """About how many records of the left and of the right file are further records of somebody in it."""
    found = (
        find_duplicates(
            comparers_within(table, fields, right=right), pair_budget(table.num_rows, table.num_rows, _FEW_PAIRS), START_SHARE
        ).clusters()
        for table, right in ((left, False), (right, True))
    )  # fmt: skip
    further = [int(clusters.size - np.unique(clusters).size) for clusters in found]
    return further[0], further[1]
