"""The middles of numeric columns, found by noisy bisection: sensitivity with its proof, plan and draws."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.spending import RANGES, Spending
from dplinked.sums.clipped import ColumnCounts

Floats = NDArray[np.float64]

BINS = 1 << 12  # of the public grid on which a middle is searched
_STEPS = 12  # halvings of that grid
_LEVELS = (0.15, 0.85)


def counts_sensitivity(queries: int) -> float:
    """Sensitivity of `queries` counts "rows with x below a threshold".

    Proof. All regressors come from one file, where a person has one row. So one row's x changes, and each count moves by at most 1.
    Linkage does not enter: x is not linked, however many rows carry the person's response.
    """
    return math.sqrt(queries)


def plan_ranges(columns: int, count: int, mu: float) -> NoisePlan | None:
    """Plan the noise of the search for two ends of each column; None where so noisy a search could only mislead."""
    queries = 2 * columns
    sensitivity = counts_sensitivity(queries)
    step = Part("counts below", queries, sensitivity, 1.0, sensitivity * math.sqrt(_STEPS) / mu)
    if not queries or step.scale >= count / 10.0:
        return None
    room = make_room_for_draw(NoisePlan((step,), mu / math.sqrt(_STEPS)), float(count))
    return NoisePlan(room.parts, mu)


def release_ranges(private: ColumnCounts, spending: Spending, share: float = RANGES) -> Floats:
    """Find the middle 70 % of each column by noisy bisection: (low, high) as shares of the bounds (columns×2).

    Privacy
    -------
    Each step draws two counts per column. Each count moves by at most 1 between neighbours, so all steps together are
    μ-GDP with ``μ = √(steps · queries)/scale``. Linkage does not enter: only x is counted.
    """
    columns, bins = private.counts.shape
    plan = plan_ranges(columns, private.rows, spending.take(share))
    if plan is None:
        raise ReleaseError("The budget is too small to search for ranges.")
    counts = np.repeat(private.counts, 2, axis=0)
    found = bisect(counts, np.tile(_LEVELS, columns), _STEPS, spending.note(plan)).reshape(-1, 2)
    return np.asarray((np.sort(found, axis=1) + np.array([0, 1])) / bins, np.float64)


def bisect(counts: NDArray[np.int64], levels: Floats, steps: int, plan: NoisePlan) -> NDArray[np.int64]:
    """Bin in which each histogram's count reaches its level, by noisy bisection over ``2**steps`` bins.

    Every step draws one count per histogram, with the noise of the plan's one part.
    """
    rows = np.arange(len(counts))
    below = np.concatenate([np.zeros((len(counts), 1), dtype=np.int64), counts.cumsum(axis=1)], axis=1)
    low, high = np.zeros(len(counts), dtype=np.int64), np.full(len(counts), counts.shape[1], dtype=np.int64)
    for _ in range(steps):
        middle = (low + high) // 2
        drawn = noise.add_gaussian(below[rows, middle].astype(np.float64), plan.parts[0].scale)
        under = drawn < levels * counts.sum(axis=1)
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return low
