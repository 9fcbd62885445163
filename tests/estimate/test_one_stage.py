"""One stage after a first one: the rest of the budget is divided by what the first sums told of the slopes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.privacy import noise
from dplinked.privacy.quantities.instrument import ReleasedSums, guess_length, pool_sums
from dplinked.second_stage import expectation, start

BOUNDS = {"x": (-1.0, 1.0), "y": (-4.0, 4.0)}


def fit(slope: float, rows: int) -> list[dict[str, float]]:
    """μ of each part, of both draws of the sums of a release of one stage."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.0, 1.0, rows)
    data: dict[str, Any] = {"x": x, "y": slope * x + rng.standard_normal(rows)}
    linkage = dpl.ELE(0.8)
    release = dpl.fit(
        data, "y ~ x", linkage=linkage, epsilon=1.0, delta=1e-6, bounds=BOUNDS, typical={"x": (-0.6, 0.6)}
    )
    draws: list[dict[str, float]] = []
    for part in release.released.parts:
        if part.name == "response total":
            draws.append({})
        if draws:
            draws[-1][part.name] = part.sensitivity / part.scale
    assert len(draws) == 2
    return draws


@pytest.fixture(autouse=True)
def never_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is drawn from a seed: with that of a release, rows seem to be incomplete now and then, for which a second stage is taken."""
    rng = np.random.default_rng(2)
    monkeypatch.setattr(expectation, "_pays", lambda stage, one: False)
    monkeypatch.setattr(
        noise, "add_gaussian", lambda values, scale: values + np.asarray(scale) * rng.normal(size=np.shape(values))
    )


def share_of_the_matrix(draw: dict[str, float]) -> float:
    """Share of the draw's μ² that H has, of H and b without the intercept's entries."""
    matrix, vector = draw["instrument × regressors"] ** 2, draw["instrument × response"] ** 2
    return matrix / (matrix + vector)


def test_short_slopes_leave_more_of_the_budget_to_the_responses() -> None:
    short, long = (fit(slope, 20_000) for slope in (0.5, 3.0))
    assert share_of_the_matrix(short[1]) < 0.5 * share_of_the_matrix(short[0])
    assert share_of_the_matrix(short[1]) < share_of_the_matrix(long[1]) < share_of_the_matrix(long[0])


def test_the_matrix_keeps_what_it_needs_to_stand_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The further it has to, the more it has; where nothing would do, the guess stands."""
    shares = []
    for clearly in (1.0, 12.0, 1e6):
        monkeypatch.setattr(start, "_CLEARLY", clearly)
        before, after = (share_of_the_matrix(draw) for draw in fit(0.5, 2_000))
        shares.append(after)
    assert shares[0] < shares[1] < shares[2]
    assert math.isclose(shares[2], before, rel_tol=0.01)


def test_slopes_are_guessed_longer_for_intervals_with_few_columns() -> None:
    assert guess_length(1, intervals=True) == math.sqrt(1.5)
    assert guess_length(1, intervals=False) == guess_length(20, intervals=True) == 0.5


def test_two_draws_are_weighed_by_the_precision_of_each_entry() -> None:
    """Public entries stay as they are."""

    def drawn(matrix: float, matrix_scale: float, vector: float, vector_scale: float) -> ReleasedSums:
        public = np.array([[7.0, matrix], [matrix, matrix]])
        scale = np.array([[0.0, matrix_scale], [matrix_scale, matrix_scale]])
        return ReleasedSums(public, np.full(2, vector), scale, np.full(2, vector_scale), True, np.zeros(2))

    pooled = pool_sums(drawn(1.0, 1.0, 0.0, 2.0), drawn(2.0, 2.0, 1.0, 1.0))
    assert pooled.matrix[0, 0] == 7.0
    assert pooled.matrix_scale[0, 0] == 0.0
    assert np.allclose(pooled.matrix[1], 1.2)
    assert np.allclose(pooled.matrix_scale[1], 0.8**0.5)
    assert np.allclose(pooled.vector, 0.8)
    assert np.allclose(pooled.vector_scale, 0.8**0.5)
