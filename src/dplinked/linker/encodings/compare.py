"""The linkage unit's side: how alike filters are, and how much that tells.

Filters are compared by the share of bits that they have in common. What a likeness is worth follows from the files: how often pairs are so alike by chance is counted over all
compared pairs, and how often matches are from those pairs that one-to-one probabilities take for matches, in turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.assignment import Candidates
from dplinked.linker.encodings.encode import Encodings
from dplinked.linker.matches import Matches, find_matches
from dplinked.linker.passes import BlockingPass
from dplinked.linker.scored import Scored

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Keys = tuple[NDArray[np.uint64], NDArray[np.bool_]]

_BINS = 400  # of likeness, from -1 to 1
_ROWS, _ACROSS = 1_024, 8_192  # records that are compared together, each with each
_SCATTERED = 8_192  # pairs of small blocks that are compared together
_LARGE = 4_096  # pairs of a block from which on it is compared as a whole
_EVERY = 8  # of so many records one tells how alike the pairs are that are no candidates
_DEVIATIONS = 2.5  # how far above chance a pair must be alike to be a candidate
_MOST = 12  # candidates of a left record
_NO_PAIRS = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int16))
_SAMPLED = 400  # records of each file whose pairs tell what chance makes alike
_TURNS = 12
_CLOSE = 1e-4  # turns end when probabilities change less than that
_SMOOTHED = 3.0  # bins over which shares are smoothed
_HOPELESS = 1e-12
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


class _Blocks:
    """The records of a file by their block keys.

    Attributes
    ----------
    keys, sizes, starts
        The distinct keys, how many records have each, and where they begin in `order`.
    order
        The records that have a key, by their keys.
    """

    def __init__(self, keys: NDArray[np.uint64], present: NDArray[np.bool_]) -> None:
        having = np.flatnonzero(present)
        self.order = having[np.argsort(keys[having], kind="stable")]
        self.keys, self.sizes = np.unique(keys[having], return_counts=True)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def records(self, place: int) -> Integers:
        """The records of a block."""
        return self.order[self.starts[place] : self.starts[place] + self.sizes[place]]


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
        common = np.bitwise_count(self.words[rows] & other.words[others])
        both = (common.astype(np.float32) @ np.ones(common.shape[1], np.float32)).astype(np.float64)
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
            comparing.add_blocks(f"block key {number + 1}", *keys)
        pairs = comparing.pairs()
        probability = _weigh(pairs, n, m, turns=1)[1].probability
        comparing.add("left over", *_left_over(pairs, probability, n, m))
    else:
        comparing.add("all pairs", np.arange(n), np.arange(m))
    pairs = comparing.pairs()
    evidence, matched = _weigh(pairs, n, m)
    return Scored(
        Candidates(pairs.left, pairs.right, _log_odds(matched.probability, evidence), evidence, n, m),
        pairs.found_by,
        pairs.passes,
        None,
    )


class _Comparing:
    """Passes of comparisons, one after the other, each piece by piece: what is kept of a piece are its candidates and counts."""

    def __init__(self, left: Encodings, right: Encodings) -> None:
        self.a, self.b = Filters(left), Filters(right)
        self.middle, self.spread = _chance(self.a, self.b)
        self.counts, self.compared = np.zeros(_BINS), 0
        self.parts: list[tuple[Integers, Integers, Floats, NDArray[np.int16]]] = [_NO_PAIRS]
        self.passes: list[BlockingPass] = []

    def add(self, name: str, rows: Integers, others: Integers) -> None:
        """Compare each of some records with each of others."""
        self._told(name, rows.size * others.size, self._compare_all(rows, others))

    def add_blocks(self, name: str, left: Keys, right: Keys) -> None:
        """Compare the records that share a block key."""
        ours, theirs = _Blocks(*left), _Blocks(*right)
        _, i, j = np.intersect1d(ours.keys, theirs.keys, assume_unique=True, return_indices=True)
        pairs = ours.sizes[i] * theirs.sizes[j]
        large, found = pairs >= _LARGE, 0
        for one, other in zip(i[large], j[large], strict=True):
            found += self._compare_all(ours.records(one), theirs.records(other))
        found += self._compare_small(ours, theirs, i[~large], j[~large])
        self._told(name, int(pairs.sum()), found)

    def _compare_all(self, rows: Integers, others: Integers) -> int:
        """Compare each record with each, as products of matrices."""
        found = 0
        for begin in range(0, rows.size, _ROWS):
            here, made = rows[begin : begin + _ROWS], []
            vectors = self.a.rows(here)
            for start in range(0, others.size, _ACROSS):
                there = others[start : start + _ACROSS]
                likeness = vectors @ self.b.rows(there).T
                chosen = likeness > self._least(likeness)
                self._count_others(likeness, chosen)
                row, column = np.nonzero(chosen)
                made.append((here[row], there[column], likeness[row, column].astype(np.float64)))
            if made:
                found += self._keep(*(np.concatenate(column) for column in zip(*made, strict=True)))
        return found

    def _least(self, likeness: NDArray[np.float32]) -> Any:
        """How alike to each record others must be to be among its candidates."""
        if likeness.shape[1] <= _MOST:
            return self._low
        place = likeness.shape[1] - _MOST - 1
        return np.maximum(np.partition(likeness, place, axis=1)[:, place, None], self._low)

    def _count_others(self, likeness: NDArray[np.float32], chosen: NDArray[np.bool_]) -> None:
        """Count how alike the many pairs are that are no candidates, by some of the records."""
        others = likeness[::_EVERY][~chosen[::_EVERY]]
        if others.size:
            self._count(others, (chosen.size - np.count_nonzero(chosen)) / others.size)

    def _count(self, alike: NDArray[np.floating], each: float = 1.0) -> None:
        self.counts += each * np.bincount(_bins(alike), minlength=_BINS)

    def _compare_small(self, ours: _Blocks, theirs: _Blocks, i: Integers, j: Integers) -> int:
        """Compare the records of many small blocks, pair by pair."""
        left = np.repeat(ours.starts[i], ours.sizes[i]) + _within(ours.sizes[i])  # in the order of ours
        many = np.repeat(theirs.sizes[j], ours.sizes[i])
        first = np.repeat(theirs.starts[j], ours.sizes[i])
        ends, begin, found = np.cumsum(many), 0, 0
        while begin < many.size:
            done = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, done + _SCATTERED, side="right")))
            each = many[begin:end]
            rows = ours.order[np.repeat(left[begin:end], each)]
            others = theirs.order[np.repeat(first[begin:end], each) + _within(each)]
            likeness = self.a.likeness(self.b, rows, others)
            alike = likeness > self._low
            self._count(likeness[~alike])
            found += self._keep(rows[alike], others[alike], likeness[alike])
            begin = end
        return found

    @property
    def _low(self) -> float:
        """How alike pairs must be to be more alike than chance makes most of them."""
        return self.middle + _DEVIATIONS * self.spread

    def _keep(self, left: Integers, right: Integers, alike: Floats) -> int:
        """Keep the most alike pairs of each left record, and say how many."""
        kept = self._best(left, alike)
        self.parts.append((left[kept], right[kept], alike[kept], np.full(kept.size, len(self.passes), np.int16)))
        return int(kept.size)

    def _best(self, left: Integers, alike: Floats) -> Integers:
        """The most alike pairs of each left record, in order of the record; the others are counted."""
        order = np.lexsort((-alike, left))
        ordered = left[order]
        among = np.arange(order.size) - np.searchsorted(ordered, ordered) < _MOST
        self._count(alike[order[~among]])
        return np.asarray(order[among])

    def _told(self, name: str, compared: int, found: int) -> None:
        """A pass is done: of all pairs so far, each once, the most alike of each left record stay."""
        self.compared += compared
        self.passes.append(BlockingPass(name, compared, found))
        left, right, alike, found_by = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        self.parts.clear()
        first = np.unique(left * self.b.count + right, return_index=True)[1]
        kept = first[self._best(left[first], alike[first])]
        self.parts.append((left[kept], right[kept], alike[kept], found_by[kept]))

    def pairs(self) -> _Pairs:
        """All pairs that stayed. A pair that several passes compared counts once, so that matches are not taken for pairs that are alike by chance."""
        left, right, alike, found_by = self.parts[0]
        edges = NormalDist(self.middle, self.spread)
        below = np.array([edges.cdf(2.0 * i / _BINS - 1.0) for i in range(_BINS + 1)])
        rest = max(
            0.0, float(self.a.count) * self.b.count - self.compared
        )  # pairs that no block brought together: as alike as chance makes them
        counts = self.counts + np.bincount(_bins(alike), minlength=_BINS) + rest * np.diff(below)
        return _Pairs(left, right, alike, found_by.astype(np.int64), counts, tuple(self.passes))


def _left_over(pairs: _Pairs, probability: Floats, n: int, m: int) -> tuple[Integers, Integers]:
    """Records that have no likely partner yet; none if their pairs are too many to compare."""
    rows, others = (
        np.flatnonzero(np.bincount(side, probability, size) < 0.5) for side, size in ((pairs.left, n), (pairs.right, m))
    )
    few = float(rows.size) * others.size <= _MOST_LEFT_OVER
    return (rows, others) if few else (rows[:0], others[:0])


def _weigh(pairs: _Pairs, n: int, m: int, turns: int = _TURNS) -> tuple[Floats, Matches]:
    """How much likelier each candidate's likeness is for a match than by chance, and how probable that makes it.

    It starts from pairs that are each other's best, takes what one-to-one probabilities say of all pairs, and goes on in turns.
    """
    bins = _bins(pairs.alike)
    probability = _best_of_both(pairs, n, m).astype(np.float64)
    for _ in range(turns):
        matched = np.asarray(np.bincount(bins, probability, _BINS), dtype=np.float64)
        m_share = _shares(matched)
        u_share = _shares(np.maximum(pairs.counts - matched, 0.0))
        ratio = _rising(np.log(m_share / u_share), matched + 1e-3 * pairs.counts + 1e-9)
        evidence = np.exp(np.clip(ratio, -60.0, 60.0))[bins]
        found = find_matches(Candidates(pairs.left, pairs.right, evidence, evidence, n, m))
        before, probability = probability, found.probability
        if probability.size == 0 or np.abs(probability - before).mean() < _CLOSE:
            break
    return evidence, found


def _chance(a: Filters, b: Filters) -> tuple[float, float]:
    """How alike pairs are by chance: their middle and their spread."""
    rng = np.random.default_rng(0)
    rows, others = (np.sort(rng.choice(one.count, min(one.count, _SAMPLED), replace=False)) for one in (a, b))
    drawn = a.rows(rows) @ b.rows(others).T
    middle = float(np.median(drawn))
    return middle, max(1e-6, 1.4826 * float(np.median(np.abs(drawn - middle))))


def _within(sizes: Integers) -> Integers:
    """0, 1, … within each of some runs, one after the other."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _bins(alike: NDArray[np.floating]) -> Integers:
    return np.clip(((alike + 1.0) * (_BINS / 2)).astype(np.int64), 0, _BINS - 1)


def _log_odds(probability: Floats, evidence: Floats) -> Floats:
    """One-to-one probabilities as match weights; hopeless pairs come last, in order of their evidence."""
    odds = probability / np.maximum(1.0 - probability, _HOPELESS)
    return np.asarray(
        np.log2(np.maximum(odds, _HOPELESS * np.minimum(evidence / evidence.max(initial=1.0), 1.0) + 1e-30))
    )


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
