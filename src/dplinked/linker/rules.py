"""Linking by rule: within blocks, by the sum of the fields' scores and the best one-to-one assignment; then across blocks.

The application of [LPK24] links so: scores of fields are summed, and a threshold decides. Which fields, and how similar two words must be, it does not
say. Distinct values are compared by rapidfuzz, and SciPy finds the assignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.sources import Progress
from dplinked.errors import StudyError
from dplinked.linkage.ele import LAST as LAST  # tests and other parts of the linker find it here
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.evidence import Evidence, compare_records, estimate_evidence, pattern_levels
from dplinked.linker.fields import Comparer
from dplinked.linker.leftovers import BYTES_PER_PAIR, Leftovers, compare_leftovers
from dplinked.linker.passes import BlockingPass

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FURTHER = "(further)"  # group of the rows that were linked by a further pass, across blocks, or in blocks of few rows
UNLINKED = "(unlinked)"  # group of the rows without a partner
LATE = (FURTHER, LAST, UNLINKED)  # groups that are no blocks, each a population of its own
NO_KEY = "(missing)"  # block of the rows without a block key
MEMORY = 2e9  # how many bytes the pairs of a block may take, unless it is said
_ROUNDS = ("left over", "still left over", "left over at last")  # how often records without a link are compared again
_SAMPLED = 1_000  # left-over records of each file whose pairs tell how records agree by chance
_LEAST_ROWS = 10  # of a group that is no block, or has links below the threshold
_DENSE_PAIRS = 25_000_000  # blocks with at most this many pairs are assigned as a dense matrix


@dataclass(frozen=True, repr=False)
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
    below
        Which rows were linked within their block, but below the threshold (n). They stay in its group unless it has few rows: the records that they compete with are of the same block.
    model
        What tells matches from others: the evidence of patterns, or Splink's trained settings. None for links made elsewhere.
    carriers
        How many rows may be linked to one right record.
    """

    right: Integers
    score: Floats
    block: NDArray[np.object_]
    candidates: Candidates
    floor: float = -np.inf
    band: Integers | None = None
    passes: tuple[BlockingPass, ...] = ()
    below: NDArray[np.bool_] | None = None
    model: Evidence | dict[str, Any] | None = None
    carriers: int = 1

    @property
    def room(self) -> Integers | None:
        """How many rows each right record may be linked to; None if that is one."""
        return None if self.carriers == 1 else np.full(self.candidates.right_count, self.carriers)


def link_by_rules(
    comparers: Sequence[Comparer],
    left_blocks: NDArray[np.object_],
    right_blocks: NDArray[np.object_],
    threshold: float,
    *,
    assignment: str,
    memory: float,
    seed: int,
    block_comparers: Sequence[Comparer] = (),
    evidence: Evidence | None = None,
    carriers: int = 1,
    progress: Progress | None = None,
) -> Links:
    """Link records within blocks, then what is left over by the best evidence there is, then at random.

    Parameters
    ----------
    left_blocks, right_blocks
        Block key of each record in the left and in the right file, None if it is missing.
    threshold
        A pair of the assignment is a link within its block if its score is at least this large.
    assignment
        ``"optimal"``: the assignment with the largest total score. Records of pairs under the threshold, and records without a block
        key, are compared again with each other, within their block and across blocks. ``"greedy"``, as in [LPK24]: pairs are taken in the order of their scores,
        and the rest is linked at random within the block; records without a key form a block.
    memory
        How many bytes the pairs of one block may take.
    block_comparers
        The columns that blocks are made of, unless they are fields. Across blocks, they tell how far two records agree there.
    evidence
        What tells matches from others, if that is known from files linked before. By default it is estimated.
    carriers
        How many left records may be linked to one right record; more than 1 with ``"optimal"`` only.
    progress
        Function that is called with what is being compared, the parts of it that are done, and their number.
    """
    rng, tell = np.random.default_rng(seed), progress or tell_nobody
    state = _Linking(comparers, left_blocks.size, right_blocks.size, threshold, memory, evidence, carriers)
    greedy = assignment == "greedy"
    blocks = list(_pair_blocks(left_blocks, right_blocks, missing_too=greedy))
    for _, left, right in blocks:
        state.check_room(left.size, right.size)
    for done, (name, left, right) in enumerate(blocks):
        tell("Comparing within blocks", done, len(blocks))
        state.link_block(name, left, right, greedy, rng)
    state.note_blocks(sum(left.size * right.size for _, left, right in blocks))
    if not greedy:
        codes = _block_codes(left_blocks, right_blocks)
        for done, when in enumerate(_ROUNDS):
            tell("Comparing what is left over", done, len(_ROUNDS))
            if not state.link_rest(when, left_blocks, codes, block_comparers, rng):
                break
    state.link_at_random(rng)
    return replace(state.links(), floor=threshold) if greedy else state.links()


def tell_nobody(title: str, done: int, total: int) -> None:
    """Progress that nobody follows."""


def _block_codes(left: NDArray[np.object_], right: NDArray[np.object_]) -> tuple[Integers, Integers]:
    """A number for each record's block, the same in both files; -1 if its key is missing."""
    names, codes = encode_names(np.concatenate([left, right]))
    if None in names:
        codes = np.where(codes == names.index(None), -1, codes)
    return codes[: left.size], codes[left.size :]


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


def settle_groups(block: NDArray[np.object_], right: Integers, below: NDArray[np.bool_]) -> None:
    """Name the group of rows without a partner, and join groups of few rows, in place.

    Few rows tell nothing of their accuracy, and a block of one row counts as correct: a single row without a partner joins those linked last, rows `below` the threshold leave a block of
    few rows for those linked across blocks, and few of these and few linked at random join each other.
    """
    block[right < 0] = UNLINKED if (right < 0).sum() > 1 else LAST
    codes = encode_names(block)[1]
    block[below & (np.bincount(codes)[codes] < _LEAST_ROWS)] = FURTHER
    rows = {name: int((block == name).sum()) for name in (FURTHER, LAST)}
    for name, other in ((FURTHER, LAST), (LAST, FURTHER)):
        if 0 < rows[name] < _LEAST_ROWS and rows[other]:
            block[block == name] = other
            rows[other] += rows[name]
            rows[name] = 0


class _Linking:
    """Links in the making: the partner of each left row so far, the right records that are still free, and the pairs compared."""

    def __init__(
        self,
        comparers: Sequence[Comparer],
        left: int,
        right: int,
        threshold: float,
        memory: float,
        evidence: Evidence | None,
        carriers: int,
    ) -> None:
        self.comparers, self.threshold, self.memory = comparers, threshold, memory
        self.right = np.full(left, -1)
        self.score = np.full(left, np.nan)
        self.block = np.full(left, None, dtype=object)
        self.below = np.zeros(left, dtype=bool)
        self.carriers, self.room = carriers, np.full(right, carriers)  # how many links each right record may still get
        self.levels = pattern_levels(comparers)
        self.patterns = np.zeros(math.prod(self.levels), dtype=np.int64)
        self.evidence = evidence  # of each pattern, once it is estimated
        # Candidates so far: both positions, score, pattern, and what the place where they were compared adds to the evidence.
        self.seen: list[tuple[Integers, Integers, Floats, Integers, Floats]] = []
        self.passes: list[BlockingPass] = []

    def check_room(self, left: int, right: int) -> None:
        """Refuse a block whose pairs do not fit into the allowed memory."""
        if left * right * self.carriers * BYTES_PER_PAIR > self.memory:
            raise StudyError(
                f"A block has more pairs than fit into {self.memory / 1e9:.1f} GB. Block on a finer "
                "key (a postcode, or several columns), link with method='splink', or allow more: memory=…."
            )

    def link_block(self, name: str, left: Integers, right: Integers, greedy: bool, rng: np.random.Generator) -> None:
        """Link the records of one block over the threshold; greedily, also the others."""
        # Records are shuffled, so that ties are broken at random, not by the files' order.
        left, right = rng.permutation(left), rng.permutation(right)
        score, pattern = compare_records(self.comparers, left, right)
        self.patterns += np.bincount(pattern.ravel(), minlength=self.patterns.size)
        near = np.nonzero(score >= 0.5 * self.threshold)  # pairs with lower scores cannot compete with a link
        at = score[near].astype(np.float64)
        # A pair in a block of m rows competes with m others, not with the whole file, so its prior is larger by that factor.
        # If a record may be linked to several rows, a row competes with nobody, and the records with each other.
        among = (
            min(self.right.size, self.room.size) / min(score.shape)
            if self.carriers == 1
            else self.room.size / right.size
        )
        factor = np.full(at.size, among)
        self.seen.append((left[near[0]], right[near[1]], at, pattern[near].astype(np.int64), factor))
        rows, columns = _greedy(near, at, self.threshold) if greedy else _best(score, near, at, self.carriers)
        kept = score[rows, columns] >= self.threshold
        rows, columns = rows[kept], columns[kept]
        self._add_links(name, left[rows], right[columns], score[rows, columns])
        if greedy:
            over = np.delete(np.arange(left.size), rows), np.delete(np.arange(right.size), columns)
            few = min(over[0].size, over[1].size)
            i, j = rng.permutation(over[0])[:few], rng.permutation(over[1])[:few]
            self._add_links(name, left[i], right[j], score[i, j])

    def note_blocks(self, pairs: int) -> None:
        """Note down what comparing within blocks took and found."""
        found, linked = sum(seen[0].size for seen in self.seen), int((self.right >= 0).sum())
        self.passes.append(BlockingPass("within blocks", pairs, found, linked))

    def link_rest(
        self, when: str, blocks: NDArray[np.object_], codes: tuple[Integers, Integers], block_comparers: Sequence[Comparer],
        rng: np.random.Generator,
    ) -> bool:  # fmt: skip
        """Link the records that are left over by the evidence of their pairs, within blocks and across them; says whether any were linked.

        The assignment is the one with the largest total log-likelihood ratio: of the agreement in fields, and in the columns that blocks are made of. The fewer
        are left over, the more of their pairs can be compared, and the less evidence suffices.
        """
        rest = Leftovers(
            rng.permutation(np.flatnonzero(self.right < 0)), rng.permutation(np.flatnonzero(self.room > 0)), *codes
        )
        if not (rest.left.size and rest.right.size):
            return False
        if self.evidence is None:
            self._sample_patterns(rest)
            self.evidence = self._estimate_evidence()
        ratio = self.evidence.ratio
        over = int(((self.right >= 0) & ~self.below & ~np.isin(self.block, LATE)).sum())
        found = compare_leftovers(
            rest, self.comparers, block_comparers, ratio, threshold=self.threshold, linked=over, memory=self.memory, rng=rng
        )  # fmt: skip
        pairs, evidence = found.pairs, ratio[found.pairs.pattern] * found.factor
        self.seen.append((pairs.left, pairs.right, pairs.score, pairs.pattern, found.factor))
        gain = np.log(evidence) - np.log(evidence).min(initial=0.0) + 1e-9
        taken = assign_sparse(pairs.left, pairs.right, gain, None if self.carriers == 1 else self.room)
        self._add_links(FURTHER, pairs.left[taken], pairs.right[taken], pairs.score[taken])
        weak = pairs.left[taken & found.within]
        self.below[weak], self.block[weak] = True, blocks[weak]
        links = np.bincount(pairs.found_by[taken], minlength=len(found.passes)).tolist()
        self.passes += [
            replace(one, name=f"{when}: {one.name}", linked=None if one.found is None else count)
            for one, count in zip(found.passes, links, strict=True)
        ]
        return bool(taken.any())

    def _sample_patterns(self, rest: Leftovers) -> None:
        """Count the patterns of left-over records too, from the pairs of some of them."""
        left, right = rest.left[:_SAMPLED], rest.right[:_SAMPLED]
        sampled = np.bincount(compare_records(self.comparers, left, right)[1].ravel(), minlength=self.patterns.size)
        scale = rest.left.size * rest.right.size / (left.size * right.size)
        self.patterns += np.rint(sampled * scale).astype(np.int64)

    def link_at_random(self, rng: np.random.Generator) -> None:
        """Link the remaining records at random. Those for whom nobody remains keep their place without a partner."""
        left, right = np.flatnonzero(self.right < 0), np.repeat(np.arange(self.room.size), self.room)
        few = min(left.size, right.size)
        self._add_links(LAST, rng.permutation(left)[:few], rng.permutation(right)[:few], np.full(few, np.nan))
        settle_groups(self.block, self.right, self.below)

    def _estimate_evidence(self) -> Evidence:
        """Likelihood ratio of each pattern; the estimation starts from the pairs over the threshold."""
        over = [seen[3][seen[2] >= self.threshold] for seen in self.seen]
        linked = np.bincount(np.concatenate(over or [np.zeros(0, np.int64)]), minlength=self.patterns.size)
        return estimate_evidence(self.patterns, linked, self.levels)

    def _add_links(self, name: str, left: Integers, right: Integers, score: NDArray[np.floating]) -> None:
        self.right[left], self.score[left], self.block[left] = right, score, name
        np.subtract.at(self.room, right, 1)

    def links(self) -> Links:
        """The finished links, with the evidence of all pairs that might have been some."""
        model = self._estimate_evidence() if self.evidence is None else self.evidence
        none: list[Any] = [
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros(0),
            np.zeros(0, np.int64),
            np.zeros(0),
        ]
        left, right, score, pattern, factor = map(np.concatenate, zip(none, *self.seen, strict=True))
        candidates = Candidates(left, right, score, model.ratio[pattern] * factor, self.right.size, self.room.size)
        return Links(
            self.right,
            self.score,
            self.block,
            _distinct_pairs(candidates),
            passes=tuple(self.passes),
            below=self.below,
            model=model,
            carriers=self.carriers,
        )


def _distinct_pairs(candidates: Candidates) -> Candidates:
    """Keep each pair once: it may have been compared within its block and again across blocks."""
    key = candidates.left * candidates.right_count + candidates.right
    order = np.lexsort((-candidates.evidence, key))
    first = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
    return Candidates(
        candidates.left[first], candidates.right[first], candidates.score[first], candidates.evidence[first],
        candidates.left_count, candidates.right_count,
    )  # fmt: skip


def _best(
    score: NDArray[np.float32], near: tuple[Integers, ...], at: Floats, carriers: int
) -> tuple[Integers, Integers]:
    """The assignment with the largest total score, of up to `carriers` rows to a column. In very large blocks only the pairs near the threshold are considered."""
    from scipy.optimize import linear_sum_assignment

    if score.size * carriers <= _DENSE_PAIRS:
        rows, columns = linear_sum_assignment(
            np.repeat(score, carriers, axis=1) if carriers > 1 else score, maximize=True
        )
        return np.asarray(rows), np.asarray(columns) // carriers
    chosen = assign_sparse(near[0], near[1], at, None if carriers == 1 else np.full(score.shape[1], carriers))
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
