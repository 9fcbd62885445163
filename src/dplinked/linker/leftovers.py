"""Records that no link over the threshold took: which of their pairs still have evidence, within their block and across blocks.

Where all of their pairs fit into memory, all are compared. Otherwise those within blocks are, and those of further passes of blocking.
"""

from __future__ import annotations

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
    factor
        What agreement in the columns of blocks adds to the evidence.
    within
        Whether both records are in the same block.
    found_by
        The pass that found each pair first, as a position in `passes`.
    """

    left: Integers
    right: Integers
    score: Floats
    pattern: Integers
    factor: Floats
    within: NDArray[np.bool_]
    found_by: Integers
    passes: list[BlockingPass]


def compare_leftovers(
    rest: Leftovers, comparers: Sequence[Comparer], block_comparers: Sequence[Comparer], ratio: Floats, *,
    threshold: float, linked: int, memory: float, rng: np.random.Generator,
) -> Found:  # fmt: skip
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
    least = min(rest.left.size, rest.right.size) / _HOPELESS
    at_once = int(np.clip(memory / (4 * BYTES_PER_PAIR), *_AT_ONCE))
    parts = []
    for k, plan in enumerate(plans):
        for left, right, each in _chunks(plan, rest, at_once):
            score, pattern = compare_records(comparers, left, right, each=each)
            levels = [(one.block if each else one.pairs)(left, right)[0] for one in block_comparers]
            likely = ratio[pattern]
            for level, share in zip(levels, chance, strict=True):
                likely = likely / share[level]
            kept = np.nonzero(likely >= least)
            i, j = (left[kept[0]], right[kept[1]]) if each else (left[kept], right[kept])
            parts.append(
                (
                    i,
                    j,
                    score[kept].astype(np.float64),
                    pattern[kept].astype(np.int64),
                    np.full(i.size, k),
                    *(level[kept] for level in levels),
                )
            )
    left, right, score, pattern, found_by, *levels = (np.concatenate(part) for part in zip(*parts, strict=True))
    new = _first_of_each(left * rest.right_block.size + right)
    left, right, score, pattern, found_by, *levels = (
        part[new] for part in (left, right, score, pattern, found_by, *levels)
    )
    within = (rest.left_block[left] == rest.right_block[right]) & (rest.left_block[left] >= 0)
    sure = ~within & (score >= threshold) & (ratio[pattern] >= min(rest.left.size, rest.right.size))
    sure[sure] = _first_of_each(left[sure], mask=True)
    factor = np.ones(left.size)
    for level, share in zip(levels, chance, strict=True):
        factor *= _matching_levels(level[sure], linked, share.size - 1)[level] / share[level]
    kept = ratio[pattern] * factor >= least
    passes = [BlockingPass(plan.name, plan.pairs, int((found_by[kept] == k).sum())) for k, plan in enumerate(plans)]
    return Found(*(part[kept] for part in (left, right, score, pattern, factor, within, found_by)), [*passes, *dear])


def _plan_passes(
    rest: Leftovers, comparers: Sequence[Comparer], memory: float
) -> tuple[list[Plan], list[BlockingPass]]:
    """All pairs if they fit into memory; otherwise those within blocks, and those of further passes."""
    n, m = rest.left.size, rest.right.size
    if n * m * BYTES_PER_PAIR <= memory:
        return [Plan(ALL_PAIRS, np.zeros(n, np.int64), np.zeros(m, np.int64), n * m)], []
    budget = pair_budget(n, m)
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


def _first_of_each(keys: Integers, *, mask: bool = False) -> NDArray[np.int64] | NDArray[np.bool_]:
    """Positions of the first occurrence of each key, in order; or a mask of them."""
    first = np.sort(np.unique(keys, return_index=True)[1])
    if not mask:
        return first
    marked = np.zeros(keys.size, dtype=bool)
    marked[first] = True
    return marked
