"""Links from scored pairs: first those over the threshold, then the best of the rest, then at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.passes import BlockingPass
from dplinked.linker.rules import FURTHER, LAST, Links, settle_groups


@dataclass(frozen=True)
class Scored:
    """Candidates of Splink, the pass that found each of them (N), all passes, and the model that scored them."""

    candidates: Candidates
    found_by: NDArray[np.int64]
    passes: tuple[BlockingPass, ...]
    model: Any


def link_scored(
    first: Scored, further: Scored | None, threshold: float, blocks: NDArray[np.object_], seed: int, carriers: int = 1
) -> Links:
    """Link candidates one to one, or up to `carriers` rows to one record: first pairs over the probability threshold, then the best of the rest, then at random."""
    candidates, found_by = first.candidates, first.found_by
    late = np.zeros(candidates.left.size, dtype=bool)  # found by a further pass
    passes = first.passes
    if further is not None:
        candidates, found_by, late = _with_further(first, further)
        passes = (*first.passes, *further.passes)
    n, m, rng = candidates.left_count, candidates.right_count, np.random.default_rng(seed)
    right, score = np.full(n, -1), np.full(n, np.nan)
    room = np.full(m, carriers)
    block, used = blocks.astype(object), np.zeros(len(passes), dtype=np.int64)

    def add_links(gain: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        chosen = assign_sparse(candidates.left, candidates.right, gain, None if carriers == 1 else room)
        left = candidates.left[chosen]
        right[left], score[left] = candidates.right[chosen], candidates.score[chosen]
        np.subtract.at(room, candidates.right[chosen], 1)
        np.add.at(used, found_by[chosen], 1)
        return left, late[chosen]

    add_links(np.where(late, -1.0, candidates.score - log_odds(threshold)))
    block[right < 0] = LAST
    open_pairs = (right[candidates.left] < 0) & (room[candidates.right] > 0)
    rows, by_further = add_links(np.where(open_pairs, candidates.score - candidates.score.min(initial=0.0) + 1.0, -1.0))
    block[rows] = np.where(by_further, FURTHER, blocks[rows])
    below = np.zeros(n, dtype=bool)
    below[rows] = ~by_further
    left_over, right_over = np.flatnonzero(right < 0), np.repeat(np.arange(m), room)
    few = min(left_over.size, right_over.size)
    right[rng.permutation(left_over)[:few]] = rng.permutation(right_over)[:few]
    settle_groups(block, right, below)
    counted = [
        one if one.found is None else replace(one, linked=int(links)) for one, links in zip(passes, used, strict=True)
    ]
    return Links(
        right, score, block, candidates, passes=tuple(counted), below=below, model=first.model, carriers=carriers
    )


def _with_further(first: Scored, further: Scored) -> tuple[Candidates, NDArray[np.int64], NDArray[np.bool_]]:
    """The candidates of all passes, each once: what found them, and whether that was a further pass."""
    a, b = first.candidates, further.candidates
    new = ~np.isin(b.left * b.right_count + b.right, a.left * a.right_count + a.right)
    left, right, score, evidence = (
        np.concatenate([getattr(a, name), getattr(b, name)[new]]) for name in ("left", "right", "score", "evidence")
    )
    joined = Candidates(left, right, score, evidence, a.left_count, a.right_count)
    found_by = np.concatenate([first.found_by, further.found_by[new] + len(first.passes)])
    return joined, found_by, np.arange(found_by.size) >= a.left.size


def log_odds(probability: float) -> float:
    """A probability as Splink's match weight."""
    return float(np.log2(probability / (1.0 - probability)))
