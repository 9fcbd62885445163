"""Blocks of exchangeable linkage errors: their weights, the checks on them, and the facts about them that a release needs.

In a block of m rows with accuracy γ, ``Q = a I + o 11'`` with ``o = (1 - γ)/(m - 1)`` and ``a = γ - o``. NumPy computes this here for all
blocks at once; SQL engines write the same formulas with the constants of this module, because their blocks stay in tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, shown
from dplinked.linkage import ELE, PrivacyUnit
from dplinked.sums.types import BlockFacts

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

LEAST_PRODUCT = 1.0 - 1e-9  # of accuracy and size: random links have 1
MOST_DEPENDENCE = 0.5
DEPENDENCE = 0.9  # over the square root of the block's size


def weigh_blocks(sizes: Counts, accuracies: Floats, linkage: ELE, unit: PrivacyUnit) -> tuple[Floats, Floats]:
    """Weights a and o of each block. A block of one row is right."""
    gamma = np.where(sizes == 1, 1.0, accuracies)
    if linkage.source == "estimated":  # estimates are data: whatever they are, they must not stop a release
        gamma = np.maximum(gamma, 1.0 / np.maximum(sizes, 1))
    check_accuracies(bool(np.any((sizes > 1) & (gamma * sizes < LEAST_PRODUCT))), unit)
    o = np.where(sizes > 1, (1.0 - gamma) / np.maximum(sizes - 1, 1), 0.0)
    return gamma - o, o


def check_accuracies(below_chance: bool, unit: PrivacyUnit) -> None:
    """Refuse blocks whose accuracy is below that of random links, where the sizes of blocks are public."""
    if below_chance and unit.fixes_blocks:
        raise StudyError(
            "The accuracy of a block is below 1/(its number of rows), less than random links have. "
            "Merge small blocks or correct the accuracy."
        )


def check_others(others: bool, linkage: ELE) -> None:
    """Refuse rows without a block of their own where no accuracy is declared for them."""
    if others and linkage.other_accuracy is None:
        raise StudyError(
            f"No accuracy for other blocks: {shown(linkage.block)} has null keys or keys absent from the accuracy "
            "table. Add them, or declare ELE(…, other=…)."
        )


def check_weights(weights: Mapping[str | None, float]) -> None:
    """Refuse weights of groups that would let an instrument grow, or that leave a group out."""
    if not all(0.0 < weight <= 1.0 for weight in weights.values()):
        raise StudyError("The weights of groups must lie between 0 and 1.")


def find_facts(sizes: Counts, a: Floats, names: Sequence[str | None] = (), nulls: int = 0) -> BlockFacts:
    """Facts about blocks from their sizes and weights a; `names` are those of an accuracy table, in the same order. `nulls` rows have null keys."""
    shared = sizes[sizes > 1]
    dependence = np.minimum(MOST_DEPENDENCE, DEPENDENCE / np.sqrt(np.maximum(shared, 1)))
    count = max(1, int(sizes.sum()))
    mean = float((dependence * shared).sum() / count)
    by_key = dict(zip(names, sizes.tolist(), strict=False)) or rows_apart(int(sizes.sum()), nulls)
    return BlockFacts(int(sizes.max()), by_key, mean, float((a * sizes).sum() / count))


def rows_apart(count: int, nulls: int) -> dict[str | None, int]:
    """Rows per key as :class:`BlockFacts` has them under a single accuracy."""
    return {"": count - nulls, None: nulls} if nulls else {}
