"""The linkage unit's side: how alike filters are, and how much that tells.

Filters are compared by the share of bits that they have in common. What a likeness is worth follows from the files: how often pairs are so alike by chance is counted over all
compared pairs, and how often matches are from those pairs that one-to-one probabilities take for matches, in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.assignment import Candidates
from dplinked.linker.encodings.encode import Encodings
from dplinked.linker.matches import Matches, find_matches
from dplinked.linker.passes import BlockingPass
from dplinked.linker.scored import Scored

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_BINS = 400  # of likeness, from -1 to 1
_AT_ONCE = 16_000_000  # pairs that are compared together
_DEVIATIONS = 2.5  # how far above chance a pair must be alike to be a candidate
_MOST = 12  # candidates of a left record in a pass
_SAMPLED = 400  # records of each file whose pairs tell what chance makes alike
_TURNS = 12
_SMOOTHED = 3.0  # bins over which shares are smoothed
_MOST_LEFT_OVER = 2e10  # pairs of records that no block brought together which are compared in the end


@dataclass(frozen=True)
class _Pairs:
    """Candidate pairs, how alike they are, the pass that found them first, and how many compared pairs fall into each bin of likeness."""

    left: Integers
    right: Integers
    alike: Floats
    found_by: Integers
    counts: Floats
    passes: tuple[BlockingPass, ...]


class Filters:
    """Filters as vectors of length one around their mean: the product of two is how alike they are, from -1 to 1."""

    def __init__(self, encodings: Encodings) -> None:
        self.packed = encodings.filters

    def rows(self, places: Integers) -> NDArray[np.float32]:
        """The vectors of some records (k, bits)."""
        bits = np.unpackbits(self.packed[places], axis=1).astype(np.float32)
        bits -= bits.mean(axis=1, keepdims=True)
        size = np.linalg.norm(bits, axis=1, keepdims=True)
        np.divide(bits, size, out=bits, where=size > 0.0)
        return bits


def score_encodings(left: Encodings, right: Encodings) -> Scored:
    """Compare encodings within the blocks that holders declared, or all of them, and score the pairs that might be matches."""
    n, m = len(left.pseudonyms), len(right.pseudonyms)
    comparing = _Comparing(left, right)
    if left.blocks:
        for number, keys in enumerate(zip(left.blocks, right.blocks, strict=True)):
            comparing.add(f"block key {number + 1}", _same_block(*keys))
        _, matched = _weigh(comparing.pairs(), n, m)
        comparing.add("left over", _left_over(comparing.pairs(), matched.probability, n, m))
    else:
        comparing.add("all pairs", iter([(np.arange(n), np.arange(m))]))
    pairs = comparing.pairs()
    found, matched = _weigh(pairs, n, m)
    evidence = found.evidence
    prior = max(float(matched.probability.sum()), 0.5) / (float(n) * m)
    score = np.log2(np.clip(evidence, 1e-30, 1e30)) + np.log2(prior / (1.0 - prior))
    return Scored(replace(found, score=score), pairs.found_by, pairs.passes, None)


class _Comparing:
    """Passes of comparisons, one after the other."""

    def __init__(self, left: Encodings, right: Encodings) -> None:
        self.a, self.b, self.m = Filters(left), Filters(right), len(right.pseudonyms)
        self.low = _chance(self.a, self.b, len(left.pseudonyms), self.m)
        self.counts = np.zeros(_BINS)
        self.parts: list[tuple[Integers, Integers, Floats, Integers]] = []
        self.passes: list[BlockingPass] = []

    def add(self, name: str, blocks: Iterator[tuple[Integers, Integers]]) -> None:
        """Compare the records of each block."""
        compared, made = 0, list[tuple[Integers, Integers, Floats, Integers]]()
        for rows, others in blocks:
            compared += rows.size * others.size
            for found in _alike(self.a, self.b, rows, others, self.low, self.counts):
                made.append((*found, np.full(found[0].size, len(self.passes))))
        self.parts += made
        self.passes.append(BlockingPass(name, compared, sum(part[0].size for part in made)))

    def pairs(self) -> _Pairs:
        """All pairs that were found, each once."""
        empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
        left, right, alike, found_by = (np.concatenate(column) for column in zip(empty, *self.parts, strict=True))
        first = np.unique(left * self.m + right, return_index=True)[1]
        return _Pairs(left[first], right[first], alike[first], found_by[first], self.counts, tuple(self.passes))


def _left_over(pairs: _Pairs, probability: Floats, n: int, m: int) -> Iterator[tuple[Integers, Integers]]:
    """Records that have no likely partner yet, if their pairs are not too many to compare."""
    rows, others = (
        np.flatnonzero(np.bincount(side, probability, size) < 0.5) for side, size in ((pairs.left, n), (pairs.right, m))
    )
    if 0 < float(rows.size) * others.size <= _MOST_LEFT_OVER:
        yield rows, others


def _weigh(pairs: _Pairs, n: int, m: int) -> tuple[Candidates, Matches]:
    """Pairs with their evidence, and how probable that makes them."""
    found = Candidates(pairs.left, pairs.right, np.zeros(pairs.left.size), _evidence(pairs, n, m), n, m)
    return found, find_matches(found)


def _chance(a: Filters, b: Filters, n: int, m: int) -> float:
    """How alike pairs must be to be more alike than chance makes most of them."""
    rng = np.random.default_rng(0)
    rows, others = (np.sort(rng.choice(size, min(size, _SAMPLED), replace=False)) for size in (n, m))
    drawn = a.rows(rows) @ b.rows(others).T
    middle = np.median(drawn)
    return float(middle + _DEVIATIONS * 1.4826 * np.median(np.abs(drawn - middle)))


def _same_block(left: list[str | None], right: list[str | None]) -> Iterator[tuple[Integers, Integers]]:
    """Places of the records that share a block key."""
    members: dict[str, tuple[list[int], list[int]]] = {}
    for side, keys in enumerate((left, right)):
        for place, key in enumerate(keys):
            if key is not None:
                members.setdefault(key, ([], []))[side].append(place)
    for rows, others in members.values():
        if rows and others:
            yield np.array(rows), np.array(others)


def _alike(
    a: Filters, b: Filters, rows: Integers, others: Integers, low: float, counts: Floats
) -> Iterator[tuple[Integers, Integers, Floats]]:
    """The pairs of a block that are alike enough, and at most so many of each left record. Counts all pairs by their likeness."""
    across = max(1, min(others.size, 20_000))
    step = max(1, _AT_ONCE // across)
    for begin in range(0, rows.size, step):
        here = rows[begin : begin + step]
        vectors = a.rows(here)
        found: list[tuple[Integers, Integers, Floats]] = []
        for start in range(0, others.size, across):
            there = others[start : start + across]
            likeness = vectors @ b.rows(there).T
            counts += np.bincount(_bins(likeness).ravel(), minlength=_BINS)
            row, column = np.nonzero(likeness > low)
            found.append((here[row], there[column], likeness[row, column].astype(np.float64)))
        left, right, alike = (np.concatenate([part[i] for part in found]) for i in range(3))
        best = np.lexsort((-alike, left))
        left, right, alike = left[best], right[best], alike[best]
        place = np.arange(left.size) - np.searchsorted(left, left)
        kept = place < _MOST
        yield left[kept], right[kept], alike[kept]


def _bins(alike: NDArray[np.floating]) -> Integers:
    return np.clip(((alike + 1.0) * (_BINS / 2)).astype(np.int64), 0, _BINS - 1)


def _evidence(pairs: _Pairs, n: int, m: int) -> Floats:
    """How much likelier each candidate's likeness is for a match than by chance.

    It starts from pairs that are each other's best, takes what one-to-one probabilities say of all pairs, and goes on in turns.
    """
    bins = _bins(pairs.alike)
    probability = _best_of_both(pairs, n, m).astype(np.float64)
    evidence = np.ones(bins.size)
    for _ in range(_TURNS):
        matched = np.asarray(np.bincount(bins, probability, _BINS), dtype=np.float64)
        m_share = _shares(matched)
        u_share = _shares(np.maximum(pairs.counts - matched, 0.0))
        ratio = _rising(np.log(m_share / u_share), matched + 1e-3 * pairs.counts + 1e-9)
        evidence = np.exp(np.clip(ratio, -60.0, 60.0))[bins]
        before = probability
        probability = find_matches(Candidates(pairs.left, pairs.right, evidence, evidence, n, m)).probability
        if probability.size == 0 or np.abs(probability - before).max() < 1e-3:
            break
    return evidence


def _best_of_both(pairs: _Pairs, n: int, m: int) -> NDArray[np.bool_]:
    """Pairs that are the most alike of both their records, and clearly more than the next ones."""
    best_left, best_right = np.full(n, -1.0), np.full(m, -1.0)
    np.maximum.at(best_left, pairs.left, pairs.alike)
    np.maximum.at(best_right, pairs.right, pairs.alike)
    return (pairs.alike >= best_left[pairs.left]) & (pairs.alike >= best_right[pairs.right])


def _shares(counts: Floats) -> Floats:
    """Smoothed shares of the bins."""
    reach = np.arange(-12, 13)
    kernel = np.exp(-0.5 * (reach / _SMOOTHED) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same") + 1e-9 * max(counts.sum(), 1.0) / _BINS + 1e-12
    return np.asarray(smooth / smooth.sum())


def _rising(values: Floats, weights: Floats) -> Floats:
    """The rising sequence nearest to values: more alike is never less evidence."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values, weights=weights).x)
