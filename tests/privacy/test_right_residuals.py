"""Sums over residuals of right links: unlinking is exact, and no neighbour moves them further than claimed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dplinked.linkage import LinkageExposure
from dplinked.privacy.quantities.right_residuals import right_counts_sensitivity, right_residuals_sensitivity


def weights(sizes: list[int], accuracies: list[float]) -> np.ndarray:
    """1-o on the diagonal and -o in the rest of a block; a block of one row is right."""
    n = sum(sizes)
    found, start = np.zeros((n, n)), 0
    for m, gamma in zip(sizes, accuracies, strict=True):
        o = (1.0 - gamma) / (m - 1) if m > 1 else 0.0
        found[start : start + m, start : start + m] = np.eye(m) - o
        start += m
    return found


def links(sizes: list[int], accuracies: list[float]) -> np.ndarray:
    """Q."""
    n = sum(sizes)
    found, start = np.zeros((n, n)), 0
    for m, gamma in zip(sizes, accuracies, strict=True):
        o = (1.0 - gamma) / (m - 1) if m > 1 else 0.0
        found[start : start + m, start : start + m] = np.eye(m) * ((gamma if m > 1 else 1.0) - o) + o
        start += m
    return found


@pytest.mark.parametrize(("m", "gamma"), [(2, 0.7), (3, 0.5), (4, 0.9)])
def test_linked_pairs_are_unlinked_exactly(m: int, gamma: float) -> None:
    """Over all permutations, weighed so that the share of fixed points is γ: the mean of S is a Σ g(x_i, y_i)."""
    rng = np.random.default_rng(m)
    g = rng.normal(size=(m, m))  # g[i, l]: row i with the response of person l
    c, o = weights([m], [gamma]), (1.0 - gamma) / (m - 1)
    derangements = [p for p in itertools.permutations(range(m)) if all(p[i] != i for i in range(m))]
    mean = gamma * (c * g).sum() + (1.0 - gamma) * np.mean([(c * g[:, list(p)]).sum() for p in derangements])
    assert mean == pytest.approx((gamma - o) * np.trace(g))


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    displaced=st.integers(0, 2),
    carriers=st.integers(1, 2),
    counts=st.booleans(),
)
def test_no_neighbour_moves_them_further(
    seed: int, sizes: list[int], displaced: int, carriers: int, counts: bool
) -> None:
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    accuracies = [max(float(rng.uniform(0.3, 1.0)), 1.0 / m) for m in sizes]
    other = [max(float(rng.uniform(0.3, 1.0)), 1.0 / m) for m in sizes] if rng.random() < 0.3 else accuracies
    M = float(np.abs(links(sizes, accuracies) - links(sizes, other)).sum())
    c, c2 = weights(sizes, accuracies), weights(sizes, other)
    multiple = [m for m in sizes if m > 1]
    smallest = min(multiple, default=2)
    least = min([g for m, g in zip(sizes * 2, accuracies + other, strict=True) if m > 1], default=1.0)
    exposure = LinkageExposure(False, True, least, 1.0, M, displaced, carriers)
    low = 0.0 if counts else -1.0
    g = rng.choice([low, 1.0], (n, n))
    g2 = g.copy()
    changed = rng.permutation(n)
    j, columns = (
        changed[0],
        changed[: carriers + displaced] if rng.random() < 0.5 else changed[1 : 1 + carriers + displaced],
    )
    push = (
        np.sign(c) if rng.random() < 0.8 else rng.choice([-1.0, 1.0], (n, n))
    )  # adversarial: every term goes the way that counts
    for rows, cols in [([j], range(n)), *((range(n), [p]) for p in columns), *([(range(n), [j])] if displaced else [])]:
        for i, l in itertools.product(rows, cols):
            g[i, l], g2[i, l] = (low, 1.0) if push[i, l] > 0 else (1.0, low)
    moved = abs((c * g).sum() - (c2 * g2).sum())
    bound = (
        right_counts_sensitivity(exposure, smallest) if counts else right_residuals_sensitivity(1.0, exposure, smallest)
    )
    assert moved <= bound + 1e-9


@pytest.mark.parametrize(("gamma", "m"), [(0.5, 20), (0.8, 20), (0.9, 40)])
def test_the_bound_is_nearly_reached(gamma: float, m: int) -> None:
    """Row j and the row that holds the response in different blocks, every term turned."""
    c = weights([m, m], [gamma, gamma])
    g, g2 = (np.zeros((2 * m, 2 * m)) for _ in range(2))
    g[0], g[:, m] = -np.sign(c[0]), -np.sign(c[:, m])
    g2[0], g2[:, m] = np.sign(c[0]), np.sign(c[:, m])
    moved = (c * g2).sum() - (c * g).sum()
    bound = right_residuals_sensitivity(1.0, LinkageExposure(False, True, gamma, 1.0, 0.0, 0))
    assert 0.97 * bound <= moved <= bound
