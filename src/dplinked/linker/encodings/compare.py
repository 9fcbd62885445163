"""The linkage unit's side: how alike filters are, and how much that tells.

Filters are compared by the share of bits that they have in common. What a likeness is worth follows from the files: how often pairs are so alike by chance is counted over all
compared pairs, and how often matches are from those pairs that one-to-one probabilities take for matches, in turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

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
_AT_ONCE = 16_000_000  # pairs that are compared together, each record with each
_PAIRS_AT_ONCE = 300_000  # pairs of blocks that are compared together
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
        self.packed, self.count = encodings.filters, len(encodings.pseudonyms)
        self.bits = 8 * self.packed.shape[1]
        self.words = np.ascontiguousarray(self.packed).view(np.uint64)
        self.weight = np.bitwise_count(self.words).sum(axis=1, dtype=np.float64)

    def rows(self, places: Integers) -> NDArray[np.float32]:
        """The vectors of some records (k, bits)."""
        bits = np.unpackbits(self.packed[places], axis=1).astype(np.float32)
        bits -= bits.mean(axis=1, keepdims=True)
        size = np.linalg.norm(bits, axis=1, keepdims=True)
        np.divide(bits, size, out=bits, where=size > 0.0)
        return bits

    def likeness(self, other: Filters, rows: Integers, others: Integers) -> Floats:
        """How alike the records at the same places are (k)."""
        both = np.bitwise_count(self.words[rows] & other.words[others]).sum(axis=1, dtype=np.float64)
        a, b, n = self.weight[rows], other.weight[others], float(self.bits)
        size = np.sqrt(a * (n - a) * b * (n - b))
        alike: Floats = np.divide(n * both - a * b, size, out=np.zeros_like(both), where=size > 0.0)
        return alike


def score_encodings(left: Encodings, right: Encodings) -> Scored:
    """Compare encodings within the blocks that holders declared, or all of them, and score the pairs that might be matches."""
    n, m = len(left.pseudonyms), len(right.pseudonyms)
    comparing = _Comparing(left, right)
    if left.blocks:
        for number, keys in enumerate(zip(left.blocks, right.blocks, strict=True)):
            comparing.add_block(f"block key {number + 1}", *keys)
        pairs = comparing.pairs()
        _, matched = _weigh(pairs, n, m)
        comparing.add("left over", *_left_over(pairs, matched.probability, n, m))
    else:
        comparing.add("all pairs", np.arange(n), np.arange(m))
    pairs = comparing.pairs()
    found, matched = _weigh(pairs, n, m)
    evidence = found.evidence
    prior = max(float(matched.probability.sum()), 0.5) / (float(n) * m)
    score = np.log2(np.clip(evidence, 1e-30, 1e30)) + np.log2(prior / (1.0 - prior))
    return Scored(replace(found, score=score), pairs.found_by, pairs.passes, None)


class _Comparing:
    """Passes of comparisons, one after the other."""

    def __init__(self, left: Encodings, right: Encodings) -> None:
        self.a, self.b = Filters(left), Filters(right)
        self.middle, self.spread = _chance(self.a, self.b)
        self.counts, self.compared = np.zeros(_BINS), 0
        self.parts: list[tuple[Integers, Integers, Floats, Integers]] = []
        self.passes: list[BlockingPass] = []

    def add(self, name: str, rows: Integers, others: Integers) -> None:
        """Compare each of some records with each of others."""
        across = max(1, min(others.size, 20_000))
        step, found = max(1, _AT_ONCE // across), 0
        for begin in range(0, rows.size, step):
            here = rows[begin : begin + step]
            vectors, made = self.a.rows(here), []
            for start in range(0, others.size, across):
                there = others[start : start + across]
                likeness = vectors @ self.b.rows(there).T
                self.counts += np.bincount(_bins(likeness).ravel(), minlength=_BINS)
                row, column = np.nonzero(likeness > self._low)
                made.append((here[row], there[column], likeness[row, column].astype(np.float64)))
            found += self._keep(*(np.concatenate(column) for column in zip(*made, strict=True)))
        self._told(name, rows.size * others.size, found)

    def add_block(self, name: str, left: list[str | None], right: list[str | None]) -> None:
        """Compare the records that share a block key."""
        codes: dict[str | None, int] = {None: -1}
        ours, theirs = (
            np.fromiter((codes.setdefault(key, len(codes)) for key in keys), dtype=np.int64, count=len(keys))
            for keys in (left, right)
        )
        order = np.argsort(theirs, kind="stable")
        first, last = (np.searchsorted(theirs[order], ours, side=side) for side in ("left", "right"))
        many = np.where(ours < 0, 0, last - first)
        ends, begin, found = np.cumsum(many), 0, 0
        while begin < many.size:
            done = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
            rows = np.repeat(np.arange(begin, end), many[begin:end])
            within = np.arange(rows.size) - np.repeat(ends[begin:end] - many[begin:end] - done, many[begin:end])
            others = order[first[rows] + within]
            likeness = self.a.likeness(self.b, rows, others)
            self.counts += np.bincount(_bins(likeness), minlength=_BINS)
            alike = likeness > self._low
            found += self._keep(rows[alike], others[alike], likeness[alike])
            begin = end
        self._told(name, int(many.sum()), found)

    @property
    def _low(self) -> float:
        """How alike pairs must be to be more alike than chance makes most of them."""
        return self.middle + _DEVIATIONS * self.spread

    def _keep(self, left: Integers, right: Integers, alike: Floats) -> int:
        """Keep the most alike pairs of each left record, and say how many."""
        best = np.lexsort((-alike, left))
        left, right, alike = left[best], right[best], alike[best]
        kept = np.arange(left.size) - np.searchsorted(left, left) < _MOST
        self.parts.append((left[kept], right[kept], alike[kept], np.full(int(kept.sum()), len(self.passes))))
        return int(kept.sum())

    def _told(self, name: str, compared: int, found: int) -> None:
        self.compared += compared
        self.passes.append(BlockingPass(name, compared, found))

    def pairs(self) -> _Pairs:
        """All pairs that were found, each once."""
        empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
        left, right, alike, found_by = (np.concatenate(column) for column in zip(empty, *self.parts, strict=True))
        first = np.unique(left * self.b.count + right, return_index=True)[1]
        edges = NormalDist(self.middle, self.spread)
        below = np.array([edges.cdf(2.0 * i / _BINS - 1.0) for i in range(_BINS + 1)])
        rest = max(
            0.0, float(self.a.count) * self.b.count - self.compared
        )  # pairs that no block brought together: as alike as chance makes them
        counts = self.counts + rest * np.diff(below)
        return _Pairs(left[first], right[first], alike[first], found_by[first], counts, tuple(self.passes))


def _left_over(pairs: _Pairs, probability: Floats, n: int, m: int) -> tuple[Integers, Integers]:
    """Records that have no likely partner yet; none if their pairs are too many to compare."""
    rows, others = (
        np.flatnonzero(np.bincount(side, probability, size) < 0.5) for side, size in ((pairs.left, n), (pairs.right, m))
    )
    few = float(rows.size) * others.size <= _MOST_LEFT_OVER
    return (rows, others) if few else (rows[:0], others[:0])


def _weigh(pairs: _Pairs, n: int, m: int) -> tuple[Candidates, Matches]:
    """Pairs with their evidence, and how probable that makes them."""
    found = Candidates(pairs.left, pairs.right, np.zeros(pairs.left.size), _evidence(pairs, n, m), n, m)
    return found, find_matches(found)


def _chance(a: Filters, b: Filters) -> tuple[float, float]:
    """How alike pairs are by chance: their middle and their spread."""
    rng = np.random.default_rng(0)
    rows, others = (np.sort(rng.choice(one.count, min(one.count, _SAMPLED), replace=False)) for one in (a, b))
    drawn = a.rows(rows) @ b.rows(others).T
    middle = float(np.median(drawn))
    return middle, max(1e-6, 1.4826 * float(np.median(np.abs(drawn - middle))))


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
        if probability.size == 0 or np.abs(probability - before).mean() < 1e-4:
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
