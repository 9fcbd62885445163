"""Residual standard deviation, R² and the joint test of slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.errors import StudyError
from dplinked.estimate.goodness import Goodness, SumOfSquares
from dplinked.privacy import noise

N = 20_000
DECLARED: dict[str, Any] = {"bounds": {"x": (-5, 5), "v": (-5, 5), "y": (-20, 26), "w": (0, 4)}, "delta": 1e-6}


def draw(rng: np.random.Generator, accuracy: float = 1.0) -> dict[str, np.ndarray]:
    x, v, w = rng.normal(size=N), rng.normal(size=N), rng.uniform(0.5, 4, N)
    y, block = 3.0 + x - 0.5 * v + 1.5 * rng.normal(size=N), np.arange(N) // 20
    order = np.arange(N)
    wrong = np.flatnonzero(rng.random(N) > accuracy)
    for rows in np.split(wrong, np.flatnonzero(np.diff(block[wrong])) + 1):
        order[rows] = np.roll(rows, 1)
    return {"x": x, "v": v, "w": w, "y": y[order], "b": block, "own": y, "right": np.array(order == np.arange(N))}


def expected(rows: dict[str, np.ndarray], weights: np.ndarray) -> tuple[float, float]:
    """By least squares on right links."""
    X = np.stack([np.ones(N), rows["x"], rows["v"]], axis=1)
    beta = np.linalg.solve((weights[:, None] * X).T @ X, (weights[:, None] * X).T @ rows["own"])
    error = np.average((rows["own"] - X @ beta) ** 2, weights=weights)
    return float(np.sqrt(error)), float(1.0 - error / np.cov(rows["own"], aweights=weights, ddof=0))


@pytest.mark.parametrize(("accuracy", "weights"), [(1.0, None), (1.0, "w"), (0.9, None), (0.9, "w")])
def test_without_noise_it_is_what_least_squares_says(
    monkeypatch: pytest.MonkeyPatch, accuracy: float, weights: str | None
) -> None:
    """Up to what wrong links do to a sum over 20,000 rows."""
    rows = draw(np.random.default_rng(3), accuracy)
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.array(values, float))
    linkage = dpl.Exact() if accuracy == 1.0 else dpl.ELE(float(rows["right"].mean()), block="b")
    release = dpl.fit(rows, "y ~ x + v", linkage=linkage, epsilon=8.0, goodness=True, weights=weights, **DECLARED)
    sigma, share = expected(rows, rows["w"] if weights else np.ones(N))
    room = 0.004 if accuracy == 1.0 else 0.03
    assert release.residual_sd is not None
    assert release.r_squared is not None
    assert release.residual_sd[0] == pytest.approx(sigma, rel=room)
    assert release.r_squared[0] == pytest.approx(share, abs=room)


def test_a_release_tells_it_wherever_it_goes() -> None:
    rows = draw(np.random.default_rng(1))
    release = dpl.fit(rows, "y ~ x + v", linkage=dpl.Exact(), epsilon=8.0, goodness=True, **DECLARED)
    assert release.residual_sd is not None
    assert release.r_squared is not None
    value, low, high = release.residual_sd
    assert low < value < high
    assert 1.4 < value < 1.6
    again = dpl.Release.from_json(release.to_json())
    assert again.residual_sd == release.residual_sd
    assert again.r_squared == release.r_squared
    test = release.f_test()
    assert test == release.test("x = 0, v = 0")
    for text in (release.summary(), release.to_markdown(), release.to_html()):
        assert "Residual standard deviation" in text
        assert "F(2, ∞)" in text
    assert "goodness.csv" in release.to_html()
    told = release.glance()
    assert told["sigma"][0] == value
    assert told["statistic"][0] == test.statistic / 2
    smaller = release.submodel("y ~ x")
    assert smaller.residual_sd is None
    assert smaller.r_squared is None
    assert smaller.f_test().degrees == 1


def test_without_asking_nothing_is_spent_on_it() -> None:
    release = dpl.fit(draw(np.random.default_rng(1)), "y ~ x", linkage=dpl.Exact(), epsilon=4.0, **DECLARED)
    assert release.r_squared is None
    assert release.residual_sd is None
    assert not any("squared" in part.name for part in release.released.parts)
    assert release.f_test().p_value < 0.01


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "ngd"}, "goodness belongs to method='ssp'"),
        ({"missing": "fill"}, "goodness belongs to"),
        ({"ridge": 1.0}, "goodness belongs to"),
        ({"intervals": False}, "goodness belongs to intervals"),
        ({"goodness": 1}, "true or false"),
    ],
)
def test_what_has_no_squares_is_refused(change: dict[str, Any], said: str) -> None:
    settings = {"formula": "y ~ x", "linkage": dpl.Exact(), "epsilon": 1.0, "goodness": True, **DECLARED, **change}
    with pytest.raises(StudyError, match=said):
        dpl.Study(**settings)


def test_noise_that_hides_the_variance_leaves_r_squared_open() -> None:
    drowned = Goodness(SumOfSquares(50.0, 90.0, 1.0), SumOfSquares(100.0, 90.0, 1.0), 0.0, 1000.0, 0.0, 0.0)
    assert drowned.r_squared(0.95)[1:] == (0.0, 1.0)
    assert drowned.residual_sd(0.95)[1] == 0.0


@pytest.mark.slow
def test_intervals_hold_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """120 releases: fewer than 105 of 120 (or all but none to spare) happens by chance less than once in 1,000."""
    held = np.zeros(2)
    for seed in range(120):
        rng = np.random.default_rng([seed, 9])
        rows = draw(rng, 0.9)
        monkeypatch.setattr(
            noise, "add_gaussian", lambda values, scale, rng=rng: values + scale * rng.normal(size=np.shape(values))
        )
        linkage = dpl.ELE(float(rows["right"].mean()), block="b")
        release = dpl.fit(rows, "y ~ x + v", linkage=linkage, epsilon=2.0, goodness=True, **DECLARED)
        for k, (found, truth) in enumerate(((release.residual_sd, 1.5), (release.r_squared, 1.25 / 3.5))):
            assert found is not None
            held[k] += found[1] <= truth <= found[2]
    assert (held >= 105).all()
