"""Stated standard errors against releases: every path that states one is run many times.

NumPy's noise of the same scales stands in for the exact sampler, which is slower. The limits leave four standard errors of a standard deviation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.privacy import noise
from dplinked.simulate import mislink

RUNS = 300
ROOM = 4.0 / math.sqrt(2.0 * RUNS)
N, SLOPE, SIGMA, ACCURACY, RADIUS = 6_000, 0.8, 0.7, 0.8, 2.0
BLOCKS = np.arange(N) // 25
L = 1.02 / (ACCURACY**2 / 3.0)
PATHS = {
    "ssp": {},
    "ngd": {"method": "ngd"},
    "ngd, far start": {"method": "ngd", "descent": dpl.Descent(1.0, 2, start={"x": -0.6})},
    "paper ssp": {"calibration": "paper"},
    "paper ssp, ridge": {"calibration": "paper", "ridge": 400.0},
    "paper ngd": {"calibration": "paper", "method": "ngd", "descent": dpl.Descent(RADIUS, curvature=L)},
    "paper ngd, step": {"calibration": "paper", "method": "ngd", "descent": dpl.Descent(RADIUS, 40, 1.0 / L)},
}


def options(path: str) -> dict[str, Any]:
    return {
        "bounds": {"x": (-1.0, 1.0), "y": (-4.0, 4.0)},
        "linkage": dpl.ELE(ACCURACY, block="b"),
        "unit": dpl.PrivacyUnit(linkage_change=1.0),
        "epsilon": 2.0,
        "delta": 1e-5,
        **PATHS[path],
    }


def draw(rng: np.random.Generator) -> dict[str, Any]:
    x = rng.uniform(-1.0, 1.0, N)
    y = SLOPE * x + rng.normal(0.0, SIGMA, N)
    return {"x": x, "y": y[mislink(BLOCKS, np.full(BLOCKS[-1] + 1, ACCURACY), rng)], "b": BLOCKS}


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> np.random.Generator:
    found = np.random.default_rng(15)

    def add_noise(values: Any, scale: Any) -> np.ndarray:
        return np.asarray(values) + scale * found.normal(size=np.shape(values))

    monkeypatch.setattr(noise, "add_gaussian", add_noise)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PATHS if "ridge" not in path])  # a ridge's bias is counted nowhere
def test_standard_errors_are_the_spread_over_samples(path: str, rng: np.random.Generator) -> None:
    releases = [dpl.fit(draw(rng), "y ~ 0 + x", **options(path)) for _ in range(RUNS)]
    check_ratio(releases, SLOPE, 0.9, 1.25 if "paper ngd" in path else 1.15)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_noise_errors_are_the_spread_over_releases_of_the_same_rows(path: str, rng: np.random.Generator) -> None:
    """Without intervals, errors are those of privacy noise alone. Algorithm 1 takes the curvature that its declared step stands for."""
    data = draw(rng)
    releases = [dpl.fit(data, "y ~ 0 + x", **options(path), intervals=False) for _ in range(RUNS)]
    reached = dpl.baseline.lahiri_larsen(data, "y ~ 0 + x", linkage=options(path)["linkage"]).coef["x"]
    middle = np.mean([release.coef["x"] for release in releases]) if "ridge" in path else reached
    check_ratio(releases, middle, 0.9, 1.15)


def check_ratio(releases: list[dpl.Release], middle: float, low: float, high: float) -> None:
    """Stated errors over the root of the mean squared distance from `middle`: what stopping early leaves to go counts."""
    spread, stated = (
        math.sqrt(np.mean(np.square(values)))
        for values in ([one.coef["x"] - middle for one in releases], [one.std_err["x"] for one in releases])
    )
    assert low - ROOM <= stated / spread <= high + ROOM, stated / spread


def test_algorithm_1_states_the_theorems_value() -> None:
    """Theorem 4.6 with η = d/L, T steps and the curvature 1/L: ω²(1 - (1-A)^2T)/(1 - (1-A)²), A = 1/L². The last step alone is far less."""
    release = dpl.fit(draw(np.random.default_rng(1)), "y ~ 0 + x", **options("paper ngd"), intervals=False)
    path = release.released.descent
    T, left = len(path.gradients), (1.0 - L**-2) ** 2
    omega = path.steps[0] * path.scale / N
    assert math.ceil(L**2 * math.log(RADIUS**2 * N)) == T
    assert release.std_err["x"] == pytest.approx(omega * math.sqrt((1.0 - left**T) / (1.0 - left)), rel=1e-3)
    assert release.std_err["x"] > 2.0 * omega
