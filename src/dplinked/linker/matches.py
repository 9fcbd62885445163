"""How probable is it that a candidate pair is one person, given that nearly everybody has one record in each file?

A linker scores pairs one at a time. But a person's record in one file belongs to few records of the other, and that ties pairs together: a pair with weak evidence
is probably right if nobody else is left for either record. How many people are in both files, and how many have further records in one of them, is
estimated with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.assignment import Candidates

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LARGEST_EVIDENCE = 1e12  # larger likelihood ratios add nothing, and are cut off here
_HOPELESS = (
    1e-4  # a pair with a smaller share of both its records' evidence is no match, however many people are in both files
)
_ROUNDS, _SWEEPS, _LAST_SWEEPS = 60, 10, 50
_TOLERANCE = 1e-4
_CLOSE = 5e-4  # numbers of people are found to this share of the smaller file
_LEAST_FURTHER = 1e-6  # odds of a further record that are tried even if none was seen
_MANY_FURTHER = 0.99  # per person; more of them may be namesakes
_MOST_FURTHER = 100.0
_BY_CHANCE = 0.1  # of the pairs that are taken for matches may be as much alike by chance
_FASTER = 1.6  # steps of the number of people, as they come, are too short
_LARGEST_LOG = 600.0
_MOST_COLUMNS = 16  # records with more pairs than that are summed one by one
_ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True, repr=False)
class Matches:
    """What evidence says of pairs and of the files.

    Attributes
    ----------
    probability
        Probability that each candidate pair is the same person (N).
    overlap
        Share of the smaller file's people who are in the other file too, and among its candidates.
    further
        For the left and the right file, how many further records of a person there are for each person who is in both.
    otherwise
        Where records may be somebody's further ones or namesakes', and evidence is all that tells: the probabilities if it were the other way round (N).
    """

    probability: Floats
    overlap: float
    further: tuple[float, float]
    otherwise: Floats | None = None

    def __repr__(self) -> str:
        return "Matches(for the steward)"


@dataclass(frozen=True)
class _Counts:
    """How many people are in both files, and how many further records of them each file has."""

    people: float
    left: float = 0.0
    right: float = 0.0

    def prior(self, n: int, m: int) -> tuple[float, float, float]:
        """Prior odds of a pair, and what they are multiplied by for every further record in the left and in the right file."""
        free_left, free_right = max(n - self.people - self.left, 0.5), max(m - self.people - self.right, 0.5)
        odds = self.people * math.exp(-(self.left + self.right) / self.people) / (free_left * free_right)
        left, right = (
            min(max(further / (self.people * free) / odds, _LEAST_FURTHER), 1.0)
            for further, free in ((self.left, free_left), (self.right, free_right))
        )
        return odds, left, right

    def far_from(self, other: _Counts) -> float:
        """The largest difference of two counts."""
        return max(abs(self.people - other.people), abs(self.left - other.left), abs(self.right - other.right))


def find_matches(
    candidates: Candidates, *, overlap: float | None = None, duplicates: bool = True, strength: float = 1.0
) -> Matches:
    """Find how probable candidate pairs are, and how many people both files have.

    Parameters
    ----------
    overlap
        Share of the smaller file's people who are in the other file too, if it is known.
    duplicates
        Whether a person may have further records in a file.
    strength
        A factor for the evidence of all pairs, to see what follows if it is misjudged.

    Notes
    -----
    A linkage of k people with e further records in one file, here the right one, has the prior weight ``θ^(k+e) δ^e``, and a pair multiplies it by its likelihood ratio. The marginals are
    those of the Bethe approximation, found by passing messages between records; they are exact where pairs form trees. (Sinkhorn scaling takes geometric
    means instead, which turns .99 into .91 for two records that compete.) With w_j the weights of a record's pairs times the messages they get, all its linkages together weigh
    ``1 + (Π(1 + δw_j) - 1)/δ``, and ``1 + Σw_j`` if δ = 0.

    Counting linkages of n and n' records gives the most probable θ and δ for the expected numbers of people and of further records: ``θ = k exp(-e/k) / ((n-k)(n'-k-e))`` and
    ``θδ = e / (k(n'-k-e))``. They are iterated to their fixed point.

    If there are as many further records as people, they may be namesakes: people with other records, whom the fields do not tell apart. Among all nn' pairs, no more than nn'/t are expected to
    have a likelihood ratio of t or more by chance, so evidence decides, and what would follow otherwise is told with it.
    """
    if candidates.left.size == 0:
        return Matches(np.zeros(0), overlap or 0.0, (0.0, 0.0))
    evidence = np.minimum(candidates.evidence * strength, _LARGEST_EVIDENCE)
    kept = _plausible(candidates, evidence)
    kept = kept[_by_lengths(candidates.left[kept])[0]]
    model = _Messages(candidates, kept, evidence, duplicates)
    counts, otherwise = model.settle(overlap), None
    if max(counts.left, counts.right) >= _MANY_FURTHER * counts.people:
        alone = _Messages(candidates, kept, evidence, False)
        of_alone = alone.settle(overlap)
        if model.may_be_chance():
            model, counts, alone = alone, of_alone, model
        otherwise = alone.spread(kept, candidates.left.size)
    share = counts.people / min(candidates.left_count, candidates.right_count)
    further = counts.left / counts.people, counts.right / counts.people
    return Matches(model.spread(kept, candidates.left.size), share, further, otherwise)


def find_matches_of_rows(candidates: Candidates, *, overlap: float | None = None, strength: float = 1.0) -> Matches:
    """The same if any number of left records may have the same partner: each is matched for itself.

    Notes
    -----
    With s the share of left records that have a partner, a pair has the prior odds ``s/((1-s)m)`` of m right records, and its probability is its weight over one and the weights of all pairs of
    its left record. s is iterated to its fixed point. `further` then says how many further left records there are for each right record that has any.
    """
    n, m = candidates.left_count, candidates.right_count
    evidence = np.minimum(candidates.evidence * strength, _LARGEST_EVIDENCE)
    share, probability = (0.9 if overlap is None else overlap), np.zeros(evidence.size)
    for _ in range(_ROUNDS):
        held = _within(share, n) / n
        weight = evidence * held / ((1.0 - held) * m)
        probability = weight / (1.0 + np.bincount(candidates.left, weight, n))[candidates.left]
        before, share = share, (float(probability.sum()) / n if overlap is None else share)
        if abs(share - before) < _CLOSE:
            break
    missed = np.bincount(candidates.right, np.log1p(-np.minimum(probability, 1.0 - 1e-12)), m)
    records = float((1.0 - np.exp(missed)).sum())
    return Matches(probability, share, (max(0.0, float(probability.sum()) / max(records, 1e-12) - 1.0), 0.0))


def _within(share: float, smaller: int) -> float:
    """A number of people for a share of the smaller file, at least one half and at most all but one half."""
    return min(max(share * smaller, 0.5), smaller - 0.5)


def _plausible(candidates: Candidates, evidence: Floats) -> Integers:
    """Candidates that might be matches if all people were in both files: few of those that a linker compares."""
    n, m = candidates.left_count, candidates.right_count
    most = min(n, m) - 0.5
    weight = evidence * (most / ((n - most) * (m - most)))
    sides = ((candidates.left, n), (candidates.right, m))
    shares = (weight / (1.0 + np.bincount(codes, weight, size)[codes]) for codes, size in sides)
    return np.flatnonzero(np.maximum(*shares) > _HOPELESS)


class _Messages:
    """Messages between the records of candidate pairs, and the probabilities that follow from them."""

    def __init__(self, candidates: Candidates, kept: Integers, evidence: Floats, duplicates: bool) -> None:
        self.left, self.right = _Side(candidates.left[kept]), _Side(candidates.right[kept])
        self.evidence, self.duplicates = evidence[kept], duplicates
        self.sizes = candidates.left_count, candidates.right_count
        self.messages = np.ones(kept.size)
        self.probability = np.zeros(kept.size)
        self.matched = 0.0, 0.0  # expected numbers of left and of right records with a partner

    def spread(self, kept: Integers, size: int) -> Floats:
        """The probabilities of all candidates, of which these are the `kept` ones."""
        probability = np.zeros(size)
        probability[kept] = self.probability
        return probability

    def may_be_chance(self) -> bool:
        """Whether as many pairs might be as much alike by chance, so that people and namesakes cannot be told apart."""
        taken = self.probability > 0.5
        if not taken.any():
            return True
        chance = self.sizes[0] * self.sizes[1] / float(np.median(self.evidence[taken]))
        return chance > _BY_CHANCE * int(taken.sum())

    def settle(self, overlap: float | None) -> _Counts:
        """Pass messages and count anew until the counts stay; the overlap is estimated if it is None."""
        smaller = min(self.sizes)
        counts = _Counts(_within(0.9 if overlap is None else overlap, smaller))
        for _ in range(_ROUNDS):
            self.pass_on(counts, _SWEEPS)
            before, counts = counts, self.count(counts, overlap is None)
            if counts.far_from(before) < _CLOSE * smaller:
                break
        self.pass_on(counts, _LAST_SWEEPS)
        return counts

    def pass_on(self, counts: _Counts, sweeps: int) -> None:
        """Pass messages until probabilities stay."""
        odds, further_left, further_right = counts.prior(*self.sizes)
        if not self.duplicates:
            further_left = further_right = 0.0
        weight = odds * self.evidence
        for _ in range(sweeps):
            from_left, left = self.left.open(weight * self.messages, further_right)
            to_right = weight * from_left
            from_right, right = self.right.open(to_right, further_left)
            self.messages = np.sqrt(self.messages * from_right)  # half a step: undamped messages may oscillate
            pair = to_right * from_right
            before, self.probability = self.probability, pair / (1.0 + pair)
            self.matched = left, right
            if np.abs(self.probability - before).max(initial=0.0) < _TOLERANCE:
                break

    def count(self, counts: _Counts, estimated: bool) -> _Counts:
        """The numbers that these probabilities lead to expect; that of people only if it is `estimated`."""
        pairs, smaller = float(self.probability.sum()), min(self.sizes)
        left, right = (max(0.0, pairs - records) if self.duplicates else 0.0 for records in self.matched[::-1])
        # In both files at once, further records cannot be told from namesakes.
        left, right = (left, 0.0) if left > right else (0.0, right)
        people = counts.people
        if estimated:
            step = pairs - left - right - people
            people = _within((people + _FASTER * step) / smaller, smaller)
        most = (min(max(n - people, 0.5), _MOST_FURTHER * people) for n in self.sizes)
        return _Counts(people, *(min(more, room) for more, room in zip((left, right), most, strict=True)))


class _Side:
    """Candidate pairs by the record of one file, so that sums over the pairs of each record are fast.

    Pairs are in order of how many pairs their record has, and then of the record: those of all records with k pairs form a matrix of k columns.
    """

    def __init__(self, codes: Integers) -> None:
        order, lengths = _by_lengths(codes)
        self.order = None if (np.diff(order) == 1).all() else order
        changes = np.flatnonzero(np.diff(lengths, prepend=0, append=_ENDLESS))  # where numbers of pairs begin
        self.matrices = [
            (slice(begin, end), int(lengths[begin]))
            for begin, end in pairwise(changes.tolist())
            if lengths[begin] <= _MOST_COLUMNS
        ]
        self.long = slice(self.matrices[-1][0].stop if self.matrices else 0, codes.size)
        self.starts = np.flatnonzero(np.diff(codes[order][self.long], prepend=-1))
        self.lengths = np.diff(np.append(self.starts, codes.size - self.long.start))

    def open(self, weight: Floats, further: float) -> tuple[Floats, float]:
        """How open the record of each pair is to it, given the weights of its other pairs; and how many records have a partner.

        `further` are the odds of a further record of the same person, 0 for none.
        """
        if further == 0.0:
            rest, total = self._sums(weight)
            return 1.0 / (1.0 + rest), float((total / (1.0 + total)).sum())
        rest, total = (np.expm1(np.minimum(part, _LARGEST_LOG)) for part in self._sums(np.log1p(further * weight)))
        linked = total / further
        return (1.0 + rest) / (1.0 + rest / further), float((linked / (1.0 + linked)).sum())

    def _sums(self, values: Floats) -> tuple[Floats, Floats]:
        """For each pair, the sum over the other pairs of its record; and the sum of each record. The largest value is never subtracted from a total, to avoid cancellation."""
        if values.size == 0:
            return values, values
        ordered = values if self.order is None else values[self.order]
        others, totals = np.empty(values.size), []
        for where, columns in self.matrices:
            matrix = ordered[where].reshape(-1, columns)
            rest = matrix @ (1.0 - np.eye(columns))
            others[where] = rest.ravel()
            totals.append(rest[:, 0] + matrix[:, 0])
        others[self.long], total = _others_and_totals(ordered[self.long], self.starts, self.lengths)
        total = np.concatenate([*totals, total])
        if self.order is None:
            return others, total
        result = np.empty(values.size)
        result[self.order] = others
        return result, total


def _by_lengths(codes: Integers) -> tuple[Integers, Integers]:
    """Pairs in order of how many pairs their record has, and then of the record; and these numbers in that order."""
    length = np.bincount(codes)[codes]
    order = np.lexsort((codes, length))
    return order, length[order]


def _others_and_totals(values: Floats, starts: Integers, lengths: Integers) -> tuple[Floats, Floats]:
    """The sum of all others of each run's values, and of all."""
    if values.size == 0:
        return values, values
    total, largest = np.add.reduceat(values, starts), np.maximum.reduceat(values, starts)
    is_largest = values == np.repeat(largest, lengths)
    small = np.add.reduceat(np.where(is_largest, 0.0, values), starts)
    ties = np.add.reduceat(is_largest.astype(np.float64), starts)
    others = np.where(
        is_largest,
        np.repeat(small + (ties - 1.0) * largest, lengths),
        np.repeat(total, lengths) - values,
    )
    return others, total
