"""What counts over a secret sample tell, by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np


def brute_delta(
    rate: float,
    scale: float,
    guess: float,
    epsilon: float,
    changes: list[tuple[int, bool]],
    mu: float | None = None,
    steps: int = 20_001,
) -> float:
    """δ by adding up the positive part of P - e^ε P' on a grid.

    Each of the changes is a row's group (0 or 1) and whether its link is right on the first side; on the other side it is the opposite. With `mu`, the second coordinate is a
    Gaussian release beside the counts, and all rows are in group 0.
    """
    planar = mu is not None or any(group for group, _ in changes)
    reach = 9.0 * scale + len(changes)
    x = np.linspace(-reach, reach, 1_001 if planar else steps)
    first, second = (0.0 if not planar else np.zeros((x.size, x.size)) for _ in range(2))
    side = np.linspace(-9.0, 9.0 + (mu or 0.0), x.size) if mu is not None else x
    spread = 1.0 if mu is not None else scale

    def density(mean: np.ndarray, end: float) -> np.ndarray:
        own = np.exp(-((x - mean[0]) ** 2) / (2.0 * scale**2)) / (scale * math.sqrt(2.0 * math.pi))
        if not planar:
            return own
        beside = np.exp(-((side - mean[1] - end) ** 2) / (2.0 * spread**2)) / (spread * math.sqrt(2.0 * math.pi))
        return np.outer(own, beside)

    for drawn in itertools.product([0, 1], repeat=len(changes)):
        weight = math.prod(rate if one else 1.0 - rate for one in drawn)
        means = np.zeros((2, 2))
        for one, (group, right) in zip(drawn, changes, strict=True):
            means[:, group] += one * (np.array([right, not right]) - guess)
        first = first + weight * density(means[0], mu or 0.0)
        second = second + weight * density(means[1], 0.0)
    cell = (x[1] - x[0]) * ((side[1] - side[0]) if planar else 1.0)
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * cell)
