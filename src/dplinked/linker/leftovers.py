"""Records that no link over the threshold took: which of their pairs still have evidence, within their block and across blocks.

Where all of their pairs fit into memory, all are compared. Otherwise those within blocks are, and those of further passes of blocking.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.evidence import compare_records
from dplinked.linker.fields import Comparer
from dplinked.linker.passes import (
    ALL_PAIRS,
    BlockingPass,
    Key,
    Plan,
    choose_passes,
    make_keys,
    pair_budget,
    pairs_of,
    plan_pass,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BYTES_PER_PAIR = 16  # for its score, its pattern of agreement, and the assignment's own copy of the score
_AT_ONCE = 10_000, 1_000_000  # pairs that are compared at a time, at least and at most
_LEAST_BUDGET = 2_000_000  # pairs that are always worth comparing
_HOPELESS = 256.0  # a pair whose odds are below one in so many cannot compete
_BY_CHANCE = 1_000  # records of each file that tell how often keys of blocks agree by chance


@dataclass(frozen=True)
class Leftovers:
    """Records of both files that are left over (positions), and the code of their blocks (of all records of each file; -1 if the key is missing)."""

    left: Integers
    right: Integers
    left_block: Integers
    right_block: Integers


@dataclass(frozen=True)
class Found:
    """Pairs of records that were left over (N each).

    Attributes
    ----------
    left, right, score, pattern
        Positions of both records, and how they agree.
    levels
        Levels of agreement in the columns that blocks are made of (N × columns).
    found_by
        The pass that found each pair.
    """

    left: Integers
    right: Integers
    score: Floats
    pattern: Integers
    levels: NDArray[np.int8]
    found_by: Integers

    def take(self, rows: Integers | NDArray[np.bool_]) -> Found:
        """Some of the pairs."""
        return Found(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class Competing:
    """Pairs of left-over records with enough evidence to compete, the passes that found them, and of each (N):

    Attributes
    ----------
    factor
        What agreement in the columns of blocks adds to the evidence.
    within
        Whether both records are in the same block.
    """

    pairs: Found
    factor: Floats
    within: NDArray[np.bool_]
    passes: list[BlockingPass]


def compare_leftovers(
    rest: Leftovers, comparers: Sequence[Comparer], block_comparers: Sequence[Comparer], ratio: Floats, *,
    threshold: float, linked: int, memory: float, rng: np.random.Generator,
) -> Competing:  # fmt: skip
    """Find the pairs of left-over records that have evidence.

    Parameters
    ----------
    ratio
        Likelihood ratio of each pattern of agreement in the fields.
    linked
        How many links over the threshold there are. They agree in the columns of blocks.

    Notes
    -----
    In the columns that blocks are made of, a level of agreement has the ratio m/u: m is its share among the links over the threshold and the pairs across blocks
    that are as sure, and u its share among random pairs. While m is not known, 1 stands for it.
    """
    plans, dear = _plan_passes(rest, [*comparers, *block_comparers], memory)
    chance = [_chance_levels(comparer, rng) for comparer in block_comparers]
    fewest = min(rest.left.size, rest.right.size)
    at_once = int(np.clip(memory / (4 * BYTES_PER_PAIR), *_AT_ONCE))
    none, width = np.zeros(0, np.int64), len(block_comparers)
    parts = [Found(none, none, np.zeros(0), none, np.zeros((0, width), np.int8), none)]
    for k, plan in enumerate(plans):
        for left, right, each in _chunks(plan, rest, at_once):
            score, pattern = compare_records(comparers, left, right, each=each)
            levels = [(one.block if each else one.pairs)(left, right)[0] for one in block_comparers]
            kept = np.nonzero(
                _times_levels(ratio[pattern], levels, [1.0 / share for share in chance]) >= fewest / _HOPELESS
            )
            i, j = (left[kept[0]], right[kept[1]]) if each else (left[kept], right[kept])
            agreed = np.array([level[kept] for level in levels], dtype=np.int8).reshape(width, i.size).T
            parts.append(
                Found(i, j, score[kept].astype(np.float64), pattern[kept].astype(np.int64), agreed, np.full(i.size, k))
            )
    pairs = _joined(parts)
    pairs = pairs.take(_first_of_each(pairs.left * rest.right_block.size + pairs.right))
    within = (rest.left_block[pairs.left] == rest.right_block[pairs.right]) & (rest.left_block[pairs.left] >= 0)
    sure = pairs.take(~within & (pairs.score >= threshold) & (ratio[pairs.pattern] >= fewest))
    sure = sure.take(_first_of_each(sure.left))
    tells = [_matching_levels(sure.levels[:, c], linked, share.size - 1) / share for c, share in enumerate(chance)]
    factor = _times_levels(np.ones(pairs.left.size), list(pairs.levels.T), tells)
    enough = ratio[pairs.pattern] * factor >= fewest / _HOPELESS
    pairs = pairs.take(enough)
    counts = np.bincount(pairs.found_by, minlength=len(plans)).tolist()
    passes = [BlockingPass(plan.name, plan.pairs, count) for plan, count in zip(plans, counts, strict=True)]
    return Competing(pairs, factor[enough], within[enough], [*passes, *dear])


def _times_levels(values: Floats, levels: Sequence[NDArray[np.int8]], of_level: Sequence[Floats]) -> Floats:
    """Values times what each level of agreement stands for; the last place of `of_level` is that of a missing value, whose level is -1."""
    for level, each in zip(levels, of_level, strict=True):
        values = values * each[level]
    return values


def _joined(parts: Sequence[Found]) -> Found:
    """All pairs together."""
    return Found(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(Found)
        }
    )


def _plan_passes(
    rest: Leftovers, comparers: Sequence[Comparer], memory: float
) -> tuple[list[Plan], list[BlockingPass]]:
    """All pairs if they fit into memory; otherwise those within blocks, and those of further passes."""
    n, m = rest.left.size, rest.right.size
    if n * m * BYTES_PER_PAIR <= memory:
        return [Plan(ALL_PAIRS, np.zeros(n, np.int64), np.zeros(m, np.int64), n * m)], []
    budget = pair_budget(n, m, _LEAST_BUDGET)
    within = plan_pass([Key("within blocks", -1, rest.left_block[rest.left], rest.right_block[rest.right], False)])
    plans, dear = choose_passes([key.of(rest.left, rest.right) for key in make_keys(comparers)], budget)
    return [within] * (within.pairs <= budget) + plans, dear


def _chunks(plan: Plan, rest: Leftovers, at_once: int) -> Iterator[tuple[Integers, Integers, bool]]:
    """Records to compare, and whether each is to be compared with each."""
    if plan.pairs == rest.left.size * rest.right.size:
        rows = max(1, at_once // rest.right.size)
        yield from ((rest.left[k : k + rows], rest.right, True) for k in range(0, rest.left.size, rows))
    else:
        yield from ((rest.left[i], rest.right[j], False) for i, j in pairs_of(plan, at_once))


def _chance_levels(comparer: Comparer, rng: np.random.Generator) -> Floats:
    """Share of each level of agreement among random pairs; the last place stands for a missing value, which tells nothing."""
    left, right = (rng.permutation(codes.size)[:_BY_CHANCE] for codes in (comparer.left, comparer.right))
    levels = comparer.block(left, right)[0]
    counts = np.bincount(levels[levels >= 0].ravel(), minlength=len(comparer.field.grades)) + 0.5
    return np.append(counts / counts.sum(), 1.0)


def _matching_levels(sure: NDArray[np.int8], linked: int, size: int) -> Floats:
    """Share of each level among matches, from pairs that are sure and from links within blocks, which agree; 1 for a missing value."""
    counts = np.bincount(sure[sure >= 0], minlength=size) + 0.5
    counts[-1] += linked
    return np.append(counts / counts.sum(), 1.0)


def _first_of_each(keys: Integers) -> Integers:
    """Positions of the first occurrence of each key, in order."""
    return np.sort(np.unique(keys, return_index=True)[1])
