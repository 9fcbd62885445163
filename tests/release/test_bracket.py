"""The bracket holds the truth where wrong links are not exchangeable, in which corrected intervals miss it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import dplinked as dpl
from dplinked.not_private.simulate.households import mislink
from dplinked.privacy import noise

SLOPE, BLOCKS, ACCURACY = 0.55, 8, 0.9
RUNS, ROWS = 20, 10_000


def swap_neighbours(rows: NDArray[np.int64], order: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whose response each of the rows gets: that of the row beside it in an order, two by two."""
    placed = rows[np.argsort(order)]
    pairs = placed[: placed.size // 2 * 2].reshape(-1, 2)
    found = dict(zip(pairs.ravel().tolist(), pairs[:, ::-1].ravel().tolist(), strict=True))
    return np.array([found.get(row, row) for row in rows.tolist()], dtype=np.int64)


def link_wrongly(
    design: str, x: NDArray[np.float64], blocks: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Whose response each row gets."""
    result, size = mislink(blocks, np.full(BLOCKS, ACCURACY), rng), (x - x.mean()) / x.std()
    if design == "accuracy by x":
        rank = np.argsort(np.argsort(x)) / x.size
        chance = ACCURACY + 0.2 * (0.5 - rank)
        result = np.arange(x.size)
        for block in range(BLOCKS):
            wrong = rng.permutation(np.flatnonzero((blocks == block) & (rng.random(x.size) > chance)))
            result[wrong] = np.roll(wrong, 1)
        return result
    blur = {"alike": 0.0, "half alike": 0.0, "like fields": 1.0}[design]
    for block in range(BLOCKS):
        wrong = np.flatnonzero((blocks == block) & (result != np.arange(x.size)))
        if design == "half alike":  # the others are linked at random among themselves
            wrong = rng.permutation(wrong)
            result[wrong] = np.roll(wrong, 1)
            result[wrong[wrong.size // 2 :]] = np.roll(wrong[wrong.size // 2 :], 1)
            wrong = wrong[: wrong.size // 2]
        result[wrong] = swap_neighbours(wrong, size[wrong] + blur * rng.normal(size=wrong.size))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("design", ["alike", "half alike", "like fields", "accuracy by x"])
def test_the_bracket_holds_the_truth(design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least nine times in ten, where wrong partners are like their rows and where the accuracy depends on the regressor."""
    rng = np.random.default_rng(23)
    monkeypatch.setattr(
        noise, "add_gaussian", lambda v, s: np.asarray(v) + np.asarray(s) * rng.normal(size=np.shape(v))
    )
    held = []
    for _ in range(RUNS):
        x = np.clip(rng.lognormal(10.2, 0.5, ROWS), 0.0, 150_000.0)
        y = 6_000.0 + SLOPE * x + 6_000.0 * rng.normal(size=ROWS)
        blocks = rng.integers(0, BLOCKS, ROWS)
        links = link_wrongly(design, x, blocks, rng)
        assert np.array_equal(np.sort(links), np.arange(ROWS))
        release = dpl.fit(
            {"x": x, "y": y[links], "block": blocks}, "y ~ x", bounds={"x": (0, 150_000), "y": (-30_000, 150_000)},
            linkage=dpl.ELE(ACCURACY, block="block", checked=1_000, source="public"), epsilon=2.0, delta=1e-6,
        )  # fmt: skip
        low, high = release.bracket()["x"]
        held.append(low <= SLOPE <= high)
    assert np.mean(held) >= 0.9
