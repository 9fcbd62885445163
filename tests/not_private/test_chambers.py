"""Chambers' equation without privacy: a dense solver finds the same solution, and wrong links do not bend it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import root
from scipy.stats import poisson

import dplinked as dpl
from dplinked.not_private.baseline import chambers
from neighbours import ele_matrix

LINKAGE = dpl.ELE(0.7, block="b")


def draw_rows(seed: int, family: str, sizes: list[int], gamma: float) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    x, w, e = rng.normal(0, 1, n), rng.uniform(0, 2, n), rng.uniform(0.5, 3, n)
    eta = -0.5 + 0.8 * x - 0.4 * w
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int) if family == "logistic" else rng.poisson(e * np.exp(eta))
    z, start = y.copy(), 0
    for m in sizes:
        if m > 1 and rng.random() < m * (1 - gamma) / (
            m - 1
        ):  # then all are permuted at random, of which one in m stays on average
            z[start : start + m] = rng.permutation(y[start : start + m])
        start += m
    return {"x": x, "w": w, "e": e, "y": z, "b": np.repeat(np.arange(len(sizes)), sizes)}


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_a_dense_solver_finds_the_same(family: str) -> None:
    sizes = [1, 2, 30, 7, 60]
    rows = draw_rows(1, family, sizes, 0.7)
    X, Q = np.column_stack([np.ones(100), rows["x"], rows["w"]]), ele_matrix(sizes, [0.7] * 5)
    largest = 3
    z = np.minimum(rows["y"], largest)

    def mean(beta: Any) -> Any:
        if family == "logistic":
            return 1 / (1 + np.exp(-X @ beta))
        return sum(poisson.sf(k, rows["e"] * np.exp(X @ beta)) for k in range(largest))

    wanted = root(lambda beta: X.T @ (z - Q @ mean(beta)), np.zeros(3), tol=1e-12).x
    declared = {"levels": {"y": [0, 1]}} if family == "logistic" else {"bounds": {"y": (0, largest)}, "exposure": "e"}
    found = chambers(rows, "y ~ x + w", linkage=LINKAGE, family=family, **declared)
    np.testing.assert_allclose(list(found.coef.values()), wanted, atol=1e-7)
    assert "NOT PRIVATE" in str(found)


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_wrong_links_do_not_bend_it(family: str) -> None:
    rows = draw_rows(2, family, [20] * 2000, 0.7)
    declared: dict[str, Any] = {"levels": {"y": [0, 1]}} if family == "logistic" else {"exposure": "e"}
    right = chambers(rows, "y ~ x + w", linkage=LINKAGE, family=family, **declared)
    naive = chambers(rows, "y ~ x + w", linkage=dpl.Exact(), family=family, **declared)
    for name, slope in {"x": 0.8, "w": -0.4}.items():
        assert abs(right.coef[name] - slope) < 4.0 * right.std_err[name]
    assert naive.coef["x"] < 0.65
