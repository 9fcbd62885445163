"""Linking by rule: within blocks, by the sum of the fields' scores and the best one-to-one assignment; then across blocks.

The application of [LPK24] links so: scores of fields are summed, and a threshold decides. Which fields, and how similar two words must be, it does not
say. Distinct values are compared by rapidfuzz, and SciPy finds the assignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.fields import Comparer
from dplinked.linker.passes import BlockingPass

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WEAK = "(weak)"  # group of the rows that were linked below the threshold, within their block
FURTHER = "(further)"  # group of the rows that were linked by a further pass, across blocks
LAST = "(last)"  # group of the rows that were linked last, at random
UNLINKED = "(unlinked)"  # group of the rows without a partner
LATE = (WEAK, FURTHER, LAST, UNLINKED)  # groups that are no blocks, each a population of its own
NO_KEY = "(missing)"  # block of the rows without a block key
_BYTES_PER_PAIR = 16  # for its score, its pattern of agreement, and the assignment's own copy of the score
_DENSE_PAIRS = 25_000_000  # blocks with at most this many pairs are assigned as a dense matrix
_EM_STEPS = 200
_MOST_PATTERNS = 1 << 22


@dataclass(frozen=True)
class Links:
    """The one-to-one links of the left file's rows.

    Attributes
    ----------
    right
        Position of each row's partner in the right file, -1 for none (n).
    score
        Score of each row's link, NaN if the two records were not compared (n).
    block
        Name of the block in which each row was linked (n).
    candidates
        The compared pairs that might have been links.
    floor
        A candidate with a lower score than this is not preferred to a random link.
    band
        Band of probabilities that each link is in, if blocks are divided into bands (n).
    passes
        What was compared, pass by pass, and what that found.
    """

    right: Integers
    score: Floats
    block: NDArray[np.object_]
    candidates: Candidates
    floor: float = -np.inf
    band: Integers | None = None
    passes: tuple[BlockingPass, ...] = ()


def link_by_rules(
    comparers: Sequence[Comparer],
    left_blocks: NDArray[np.object_],
    right_blocks: NDArray[np.object_],
    threshold: float,
    *,
    assignment: str,
    memory: float,
    seed: int,
) -> Links:
    """Link records within blocks, then the remaining ones across blocks.

    Parameters
    ----------
    left_blocks, right_blocks
        Block key of each record in the left and in the right file, None if it is missing.
    threshold
        A pair of the assignment is a link within its block if its score is at least this large.
    assignment
        ``"optimal"``: the assignment with the largest total score. Records of pairs under the threshold, and records without a block
        key, are linked last, across blocks. ``"greedy"``, as in [LPK24]: pairs are taken in the order of their scores, and the rest is
        linked at random within the block; records without a key form a block.
    memory
        How many bytes the pairs of one block may take.
    """
    rng = np.random.default_rng(seed)
    state = _Linking(comparers, left_blocks.size, right_blocks.size, threshold, memory)
    greedy = assignment == "greedy"
    blocks = list(_pair_blocks(left_blocks, right_blocks, missing_too=greedy))
    for _, left, right in blocks:
        state.check_room(left.size, right.size)
    for name, left, right in blocks:
        state.link_block(name, left, right, greedy, rng)
    state.link_last(rng, greedy)
    return replace(state.links(), floor=threshold) if greedy else state.links()


def _pair_blocks(
    left: NDArray[np.object_], right: NDArray[np.object_], *, missing_too: bool
) -> Iterator[tuple[str, Integers, Integers]]:
    """For each block that both files have, its name and the positions of its records in both files."""
    groups = []
    for keys in (left, right):
        names, codes = encode_names(keys)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        groups.append(dict(zip(names, np.split(order, ends[:-1]), strict=True)))
    for name in sorted(groups[0], key=lambda name: (name is None, name)):
        if name in groups[1] and (name is not None or missing_too):
            yield (NO_KEY if name is None else name), groups[0][name], groups[1][name]


def encode_names(keys: NDArray[np.object_]) -> tuple[list[str | None], Integers]:
    """The distinct keys, and the position of each row's key among them."""
    places: dict[str | None, int] = {}
    codes = np.fromiter((places.setdefault(key, len(places)) for key in keys.tolist()), np.int64, keys.size)
    return list(places), codes


def unlinked_name(right: Integers) -> str:
    """Name of the group of rows without a partner. A single such row joins those linked last, since a block of one row counts as correct."""
    return UNLINKED if (right < 0).sum() > 1 else LAST


class _Linking:
    """Links in the making: the partner of each left row so far, the right records that are still free, and the pairs compared."""

    def __init__(self, comparers: Sequence[Comparer], left: int, right: int, threshold: float, memory: float) -> None:
        self.comparers, self.threshold, self.memory = comparers, threshold, memory
        self.right = np.full(left, -1)
        self.score = np.full(left, np.nan)
        self.block = np.full(left, None, dtype=object)
        self.free_right = np.ones(right, dtype=bool)
        self.levels = [len(comparer.field.grades) + 1 for comparer in comparers]  # one more level for a missing value
        if math.prod(self.levels) > _MOST_PATTERNS:
            raise StudyError(
                f"{len(comparers)} fields have too many patterns of agreement. Name the ten or so that tell most: fields=…."
            )
        self.patterns = np.zeros(math.prod(self.levels), dtype=np.int64)
        self.seen: list[tuple[Integers, Integers, Floats, Integers, float]] = []

    def check_room(self, left: int, right: int) -> None:
        """Refuse a block whose pairs do not fit into the allowed memory."""
        if left * right * _BYTES_PER_PAIR > self.memory:
            raise StudyError(
                f"A block has more pairs than fit into {self.memory / 1e9:.1f} GB. Block on a finer "
                "key (a postcode, or several columns), link with method='splink', or allow more: memory=…."
            )

    def compare(self, left: Integers, right: Integers) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Score and pattern of agreement of every pair of a block. A pattern is a number whose digits are the fields' levels."""
        score = np.zeros((left.size, right.size), dtype=np.float32)
        pattern = np.zeros((left.size, right.size), dtype=np.int32)
        for comparer, base in zip(self.comparers, self.levels, strict=True):
            levels, part = comparer.block(left, right)
            score += part
            pattern *= base
            pattern += levels
            pattern += 1  # the level of a missing value is -1
        return score, pattern

    def link_block(
        self, name: str, left: Integers, right: Integers, greedy: bool, rng: np.random.Generator, *, last: bool = False
    ) -> None:
        """Link the records of one block. With `last`, the block holds all remaining records, and no threshold applies."""
        # Records are shuffled, so that ties are broken at random, not by the files' order.
        left, right = rng.permutation(left), rng.permutation(right)
        score, pattern = self.compare(left, right)
        self.patterns += np.bincount(pattern.ravel(), minlength=self.patterns.size)
        # Pairs with lower scores cannot compete with a link.
        near = np.nonzero(score >= (0.25 if last else 0.5) * self.threshold)
        at = score[near].astype(np.float64)
        self.seen.append((left[near[0]], right[near[1]], at, pattern[near].astype(np.int64), float(min(score.shape))))
        rows, columns = _greedy(near, at, self.threshold) if greedy else _best(score, near, at)
        if not last:
            kept = score[rows, columns] >= self.threshold
            rows, columns = rows[kept], columns[kept]
        self._add_links(name, left[rows], right[columns], score[rows, columns])
        if greedy or last:
            over = np.delete(np.arange(left.size), rows), np.delete(np.arange(right.size), columns)
            few = min(over[0].size, over[1].size)
            i, j = rng.permutation(over[0])[:few], rng.permutation(over[1])[:few]
            self._add_links(name, left[i], right[j], score[i, j])

    def link_last(self, rng: np.random.Generator, greedy: bool) -> None:
        """Link the remaining records across blocks: by score if all pairs fit into memory, otherwise at random."""
        left, right = np.flatnonzero(self.right < 0), np.flatnonzero(self.free_right)
        if left.size and right.size and not greedy and left.size * right.size * _BYTES_PER_PAIR <= self.memory:
            self.link_block(LAST, left, right, False, rng, last=True)
        elif left.size and right.size:
            few = min(left.size, right.size)
            chosen = rng.permutation(left)[:few]
            self._add_links(LAST, chosen, rng.permutation(right)[:few], np.full(few, np.nan))
        self.block[self.right < 0] = unlinked_name(self.right)

    def _add_links(self, name: str, left: Integers, right: Integers, score: NDArray[np.floating]) -> None:
        self.right[left], self.score[left], self.block[left] = right, score, name
        self.free_right[right] = False

    def links(self) -> Links:
        """The finished links, with the evidence of all pairs that were near the threshold."""
        if self.seen:
            parts = [np.concatenate([seen[k] for seen in self.seen]) for k in range(4)]
        else:
            parts = [np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64)]
        left, right, score, pattern = parts
        share = np.bincount(pattern[score >= self.threshold], minlength=self.patterns.size)
        evidence = estimate_evidence(self.patterns, share, self.levels)[pattern]
        # A pair in a block of m rows competes with m others, not with the whole file, so its prior is larger by that factor.
        sizes = np.concatenate([np.full(seen[0].size, seen[4]) for seen in self.seen]) if self.seen else np.zeros(0)
        evidence = evidence * min(self.right.size, self.free_right.size) / np.maximum(sizes, 1.0)
        candidates = Candidates(left, right, score, evidence, self.right.size, self.free_right.size)
        return Links(self.right, self.score, self.block, _distinct_pairs(candidates))


def _distinct_pairs(candidates: Candidates) -> Candidates:
    """Keep each pair once: it may have been compared within its block and again across blocks."""
    key = candidates.left * candidates.right_count + candidates.right
    order = np.lexsort((-candidates.evidence, key))
    first = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
    return Candidates(
        candidates.left[first], candidates.right[first], candidates.score[first], candidates.evidence[first],
        candidates.left_count, candidates.right_count,
    )  # fmt: skip


def _best(score: NDArray[np.float32], near: tuple[Integers, ...], at: Floats) -> tuple[Integers, Integers]:
    """The assignment with the largest total score. In very large blocks only the pairs near the threshold are considered."""
    from scipy.optimize import linear_sum_assignment

    if score.size <= _DENSE_PAIRS:
        rows, columns = linear_sum_assignment(score, maximize=True)
        return np.asarray(rows), np.asarray(columns)
    chosen = assign_sparse(near[0], near[1], at)
    return near[0][chosen], near[1][chosen]


def _greedy(near: tuple[Integers, ...], at: Floats, threshold: float) -> tuple[Integers, Integers]:
    """Take pairs from the highest score down to the threshold, each record at most once."""
    order = np.argsort(-at, kind="stable")
    order = order[at[order] >= threshold]
    rows, columns, taken = set[int](), set[int](), []
    for k in order.tolist():
        i, j = int(near[0][k]), int(near[1][k])
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            taken.append((i, j))
    found = np.array(taken, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def estimate_evidence(patterns: Integers, linked: Integers, levels: Sequence[int]) -> Floats:
    """Estimate the likelihood ratio, match against non-match, of every pattern of agreement (Fellegi and Sunter's model).

    Parameters
    ----------
    patterns
        How many compared pairs have each pattern.
    linked
        How many of the pairs over the threshold have each pattern; the estimation starts from there.
    levels
        How many levels each field has; level 0 stands for a missing value. A pattern is a number whose digits are the fields' levels.

    Notes
    -----
    The model has two classes of pairs, matches and non-matches. Within each, fields agree independently. It is fitted by expectation
    maximisation. A missing value is no evidence either way.
    """
    places = np.flatnonzero(patterns)
    digits = (
        np.stack(np.unravel_index(places, tuple(levels)), axis=0) if places.size else np.zeros((len(levels), 0), int)
    )
    counts = patterns[places].astype(np.float64)
    posterior = np.minimum(linked[places] / np.maximum(counts, 1.0), 1.0)
    ratio = np.ones(places.size)
    for _ in range(_EM_STEPS):
        ratio = np.ones(places.size)
        for digit, size in zip(digits, levels, strict=True):
            present = digit > 0
            ratio *= np.where(
                present,
                _frequencies(digit, counts * posterior, size) / _frequencies(digit, counts * (1.0 - posterior), size),
                1.0,
            )
        share = min(max(float((counts * posterior).sum() / max(counts.sum(), 1.0)), 1e-12), 0.5)
        odds = ratio * share / (1.0 - share)
        before, posterior = posterior, odds / (1.0 + odds)
        if places.size == 0 or np.abs(posterior - before).max() < 1e-6:
            break
    evidence = np.ones(patterns.size)
    evidence[places] = ratio
    return evidence


def _frequencies(digit: Integers, weight: Floats, size: int) -> Floats:
    """Smoothed frequency of each pair's level, among the pairs in which neither value of the field is missing."""
    totals = np.bincount(digit, weight, size) + 0.5
    totals[0] = 0.0
    frequencies: Floats = (totals / totals.sum())[digit]
    return np.where(digit > 0, frequencies, 1.0)
