"""Groups of rows with different accuracies: what each contributes, and what all of them together have of right links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import ELE, Linkage
from dplinked.sums.types import BlockFacts

Floats = NDArray[np.float64]

_WRONG = 8.0  # variance of clipped residuals of wrong links, relative to that of right ones
_LEAST = 1e-3  # weight, and contrast that a group is taken to have


@dataclass(frozen=True, eq=False)
class Groups:
    """Public groups of rows: their sizes, declared accuracies and weights, and their keys in an accuracy table (None: the other block).

    `present` is the released share of rows that have all cells, where others are dropped. `mean` and `square` are what such a row counts, and the square of it,
    on average, as far as public and released values tell.
    """

    keys: tuple[str | None, ...]
    sizes: Floats
    accuracies: Floats
    weights: Floats
    present: float = 1.0
    mean: float = 1.0
    square: float = 1.0

    @property
    def weighed(self) -> dict[str | None, tuple[float, float]]:
        """Weight and accuracy by key."""
        return dict(zip(self.keys, zip(self.weights.tolist(), self.accuracies.tolist(), strict=True), strict=True))

    @property
    def contrasts(self) -> Floats:
        """γ - o of each group."""
        wrong = (1.0 - self.accuracies) / np.maximum(self.sizes - 1.0, 1.0)
        return np.where(self.sizes > 1.0, self.accuracies - wrong, 1.0)

    @property
    def accuracy(self) -> float:
        """Mean accuracy of weighed rows."""
        return self._mean(self.accuracies)

    @property
    def contrast(self) -> float:
        """Mean of γ - o over weighed rows."""
        return self._mean(self.contrasts)

    @property
    def plain_accuracy(self) -> float:
        """Mean accuracy of rows."""
        return float((self.accuracies * self.sizes).sum() / self.sizes.sum())

    @property
    def total(self) -> float:
        """Number of rows that are present, each times its weight and what it counts."""
        return self.present * self.mean * float((self.weights * self.sizes).sum())

    @property
    def squares(self) -> float:
        """Number of rows that are present, each times the square of its weight and of what it counts."""
        return self.present * self.square * float((self.weights**2 * self.sizes).sum())

    def _mean(self, values: Floats) -> float:
        shares = self.weights * self.sizes
        return float((shares * values).sum() / shares.sum())


def find_groups(linkage: Linkage, blocks: BlockFacts | None, count: int, contrast: float) -> Groups:
    """The groups of an accuracy table whose sizes are public, all with weight 1; otherwise all rows as one group, with the declared mean accuracy."""
    declared = linkage.accuracy if isinstance(linkage, ELE) else None
    if blocks is None or not isinstance(declared, Mapping) or not isinstance(linkage, ELE):
        one = np.ones(1)
        return _OneGroup((None,), one * count, one * linkage.mean_accuracy, one, known=contrast)
    keys = tuple(key for key, size in blocks.by_key.items() if size)
    sizes = np.array([blocks.by_key[key] for key in keys], np.float64)
    accuracies = np.array([linkage.other_accuracy if key is None else declared[key] for key in keys], np.float64)
    return Groups(keys, sizes, np.where(sizes == 1.0, 1.0, accuracies), np.ones(len(keys)))


def overall_accuracy(linkage: Linkage, blocks: BlockFacts | None) -> float | None:
    """Mean accuracy of all rows, of several accuracies that are shown and whose numbers of rows are public; else None."""
    if not isinstance(linkage, ELE) or linkage.source == "estimated" or blocks is None or not blocks.by_key:
        return None
    if isinstance(linkage.accuracy, Mapping):
        return find_groups(linkage, blocks, 0, 1.0).plain_accuracy
    apart = blocks.by_key.get(None, 0) / sum(blocks.by_key.values())
    return (1.0 - apart) * linkage.accuracy + apart * float(linkage.other_accuracy or linkage.accuracy)


@dataclass(frozen=True, eq=False)
class _OneGroup(Groups):
    """All rows as one group, whose mean of γ - o is known."""

    known: float = 1.0

    @property
    def contrast(self) -> float:
        """Mean of γ - o."""
        return self.known


def choose_weights(groups: Groups, noise: float) -> Floats:
    """Weights of groups, the largest 1, for the least error of slopes that public values let expect.

    A row of a group tells ``a = γ - o`` of a right one, and varies by ``γ + (1-γ)q``, q for the size of wrong links' residuals. Without noise its best weight
    is in proportion to a over that. Noise does not depend on the weights, so the more of it there is, the more of the groups get the full weight.
    `noise` is its standard deviation, relative to the deviation of a right row's contribution.
    """
    sizes, contrasts = groups.sizes, groups.contrasts
    varies = groups.accuracies + (1.0 - groups.accuracies) * _WRONG
    best = np.maximum(contrasts, _LEAST) / varies

    def error(weights: Floats) -> float:
        return float(((weights**2 * varies * sizes).sum() + noise**2) / (weights * contrasts * sizes).sum() ** 2)

    tried = [np.clip(best / step, _LEAST, 1.0) for step in np.geomspace(best.max(), best.min(), 40)]
    return min(tried, key=error)
