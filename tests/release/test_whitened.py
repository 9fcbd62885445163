"""A release of whitened rows says what any other does: intervals, tests, smaller models, other accuracies, and it reads back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.estimate.intervals import noise_covariance
from dplinked.privacy import noise

SLOPES = np.array([0.5, -0.3, 0.4])


def linked_rows(n: int, accuracy: float) -> dict[str, np.ndarray]:
    """Columns with correlations .95 in blocks of 20."""
    rng = np.random.default_rng(8)
    x = math.sqrt(0.95) * rng.standard_normal((n, 1)) + math.sqrt(0.05) * rng.standard_normal((n, 3))
    y = 1.0 + x @ SLOPES + 0.4 * rng.standard_normal(n)
    blocks = np.arange(n) // 20
    order = np.arange(n)
    for start in range(0, n, 20):  # the first of every block's rows change their responses
        wrong = order[start : start + round((1.0 - accuracy) * 20)]
        order[start : start + wrong.size] = np.roll(wrong, 1)
    return {**{f"x{k}": x[:, k] for k in range(3)}, "y": y[order], "block": blocks}


def fit_seeded(formula: str, accuracy: float, linkage: Any) -> dpl.Release:
    """A fit whose noise comes from a seed."""
    rng = np.random.default_rng(5)
    bounds = {**{f"x{k}": (-4.0, 4.0) for k in range(3)}, "y": (-8.0, 10.0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            noise, "add_gaussian", lambda values, scale: np.asarray(values) + scale * rng.normal(size=np.shape(values))
        )
        return dpl.fit(linked_rows(20_000, accuracy), formula, bounds=bounds, linkage=linkage, epsilon=2.0, delta=1e-6)


@pytest.fixture(scope="module")
def release() -> dpl.Release:
    return fit_seeded("y ~ x0 + x1 + x2", 0.9, dpl.ELE(0.9, block="block", checked=2000, source="public"))


def test_rows_that_hang_together_are_whitened(release: dpl.Release) -> None:
    assert "whitened matrix" in [part.name for part in release.released.parts]
    found = np.array([release.coef[f"x{k}"] for k in range(3)])
    errors = np.array([release.std_err[f"x{k}"] for k in range(3)])
    assert errors.max() < 0.1
    assert np.abs(found - SLOPES).max() < 5.0 * errors.max()
    assert release.test([f"x{k} = {slope}" for k, slope in enumerate(SLOPES)]).p_value > 1e-4
    assert release.test("x0 = 0, x1 = 0, x2 = 0").p_value < 1e-6


def test_intervals_by_tests_are_those_by_standard_errors(release: dpl.Release) -> None:
    """Noise is small here, so both ways agree; the parts of the error add up to it."""
    for name, (low, high) in release.conf_int().items():
        reach = 1.96 * release.std_err[name]
        assert high - low == pytest.approx(2.0 * reach, rel=0.15)
        assert release.coef[name] == pytest.approx((low + high) / 2.0, abs=0.3 * reach)
        assert math.hypot(*release.error_parts[name].values()) == pytest.approx(release.std_err[name])


def test_it_reads_back(release: dpl.Release) -> None:
    again = dpl.Release.from_json(release.to_json())
    assert again == release
    assert again.released.sums.basis is not None
    assert again.conf_int() == release.conf_int()
    sums = replace(release.released.sums, basis=np.eye(2))
    other = replace(release, released=replace(release.released, sums=sums))
    with pytest.raises(dpl.StudyError):
        dpl.Release.from_json(other.to_json())


def test_smaller_models_follow(release: dpl.Release) -> None:
    smaller = release.submodel("y ~ x0 + x2")
    assert smaller.std_err["x0"] < release.std_err["x0"]
    low, high = smaller.conf_int()["x0"]
    assert low < smaller.coef["x0"] < high
    assert release.ridge(0.0)["x0"] == pytest.approx(release.coef["x0"], abs=release.std_err["x0"])


def test_other_accuracies_follow(release: dpl.Release) -> None:
    """Slopes move together; the noise of the slopes' part of the matrix grows with it."""
    same, other = release.with_accuracy(0.0), release.with_accuracy(-0.1)
    assert same.coef == pytest.approx(release.coef)
    for name, ends in release.conf_int().items():
        assert same.conf_int()[name] == pytest.approx(ends, rel=1e-3)
    ratios = [other.coef[f"x{k}"] / release.coef[f"x{k}"] for k in range(3)]
    assert min(ratios) > 1.0
    assert np.ptp(ratios) < 1e-6
    for name, (low, high) in release.bracket().items():
        assert low <= release.conf_int()[name][0] < release.conf_int()[name][1] <= high
    sums, beta = release.released.sums, np.array([0.0, 1.0, 0.0, 0.0])
    moved = other._inference.sums
    before, after = (
        noise_covariance(replace(s, vector_scale=0.0 * s.vector_scale), s.centre + beta) for s in (sums, moved)
    )
    factor = 0.8 / 0.9
    np.testing.assert_allclose(after[1:, 1:], factor**2 * before[1:, 1:], rtol=0.3)


def test_an_exact_join_is_whitened_too() -> None:
    release = fit_seeded("y ~ 0 + x0 + x1 + x2", 1.0, dpl.Exact())
    assert "whitened matrix" in [part.name for part in release.released.parts]
    assert all(math.isfinite(high - low) for low, high in release.conf_int().values())
