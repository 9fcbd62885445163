"""Whitening: what it makes of released moments, and that sums of whitened rows tell the same of coefficients as others."""

from __future__ import annotations

import numpy as np
import pytest

from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.intervals import Evidence, noise_covariance
from dplinked.estimate.whitening import (
    choose_norm,
    coefficient_sums,
    estimate_coefficients,
    first_moments,
    has_rare_levels,
    invert_moments,
    least_square,
    rounds_needed,
    spectral_noise,
    whiten,
    whiten_coefficients,
)
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.symmetric import unpack_symmetric
from dplinked.study.build import build_design

RNG = np.random.default_rng(3)
MEAN = np.array([0.3, -0.2, 0.1])
CORE = np.array([[1.0, 0.9, 0.9], [0.9, 1.0, 0.9], [0.9, 0.9, 1.0]]) / 9.0


def moments_of(mean: np.ndarray = MEAN, core: np.ndarray = CORE) -> np.ndarray:
    """Mean of (1, x)(1, x)'."""
    row = np.r_[1.0, mean]
    found = np.outer(row, row)
    found[1:, 1:] += core
    return found


def noise_of(size: float, p: int = 4) -> np.ndarray:
    scale = np.full((p, p), size)
    scale[0] = scale[:, 0] = 0.0
    return scale


def test_clear_moments_become_those_of_rows_that_do_not_hang_together() -> None:
    matrix, strengths = whiten(moments_of(), noise_of(1e-9), 0.85)
    np.testing.assert_allclose(matrix @ moments_of() @ matrix.T, np.diag([0.85**2, 1.0, 1.0, 1.0]), atol=1e-6)
    np.testing.assert_array_equal(matrix[0, 1:], 0.0)  # the intercept's entry stays constant
    assert strengths.min() > 0.999
    assert rounds_needed(strengths) == 1


def test_directions_that_drown_are_not_blown_up() -> None:
    """Two of three directions are weaker than the noise: none is larger than one afterwards, and moments may be anything."""
    noise = 0.02
    matrix, strengths = whiten(moments_of(), noise_of(noise), 0.85)
    found = np.linalg.eigvalsh((matrix @ moments_of() @ matrix.T)[1:, 1:])
    assert found.max() < 1.0
    np.testing.assert_allclose(found, strengths, atol=1e-9)
    assert rounds_needed(strengths) == 3
    odd = moments_of(core=CORE - 0.5 * np.eye(3))
    odd[0, 0] = -1.0
    for released in (odd, np.zeros((4, 4))):
        matrix, strengths = whiten(released, np.full((4, 4), noise), 0.85)
        assert np.isfinite(np.linalg.inv(matrix)).all()
        assert 0.0 <= strengths.min() <= strengths.max() < 1.0


def test_whitening_again_finishes_it() -> None:
    first, _ = whiten(moments_of(), noise_of(0.02), 0.85)
    second, strengths = whiten(first @ moments_of() @ first.T, noise_of(0.01), 0.85)
    values = np.linalg.eigvalsh((second @ first @ moments_of() @ first.T @ second.T)[1:, 1:])
    assert values.min() > 3.0 * np.linalg.eigvalsh((first @ moments_of() @ first.T)[1:, 1:]).min()
    assert strengths.min() > 0.6
    assert (second @ first)[0, 0] == pytest.approx(0.85)


def test_moments_follow_from_the_first_stage() -> None:
    """By the regressors themselves, and by a bounded instrument of columns that fill their typical ranges."""
    x = RNG.uniform(-1.0, 1.0, (2, 200_000))
    x[1] = 0.6 * x[0] + 0.4 * x[1]
    for typical, atol in ((None, 1e-9), ({"a": (-0.7, 0.7), "b": (-0.5, 0.5)}, 0.03)):
        design = build_design("y ~ a + b", {"y": (-1, 1), "a": (-1, 1), "b": (-1, 1)}, None, typical)
        h = np.empty_like(x)
        design.instruments(x, h)
        rows, left = (np.vstack([np.ones(x.shape[1]), part]) for part in (x, h))
        matrix = left @ rows.T
        scale, none = noise_of(10.0, 3), np.zeros(3)
        start = ReleasedSums(matrix, none, scale, none, design.half_widths is None, none)
        found, noise = first_moments(design, start, 1.0, x.shape[1])
        np.testing.assert_allclose(found, rows @ rows.T / x.shape[1], atol=atol)
        assert 0.0 < noise[1:, 1:].min() <= noise.max() < 1e-3


def test_noise_does_not_make_columns_hang_together() -> None:
    noise = unpack_symmetric(RNG.normal(0, 0.05, 55), 10)
    hanging = np.full((10, 10), 0.9) + 0.1 * np.eye(10)
    inflation = [
        np.diag(invert_moments(core + noise, np.full((10, 10), 0.05), False, np.ones(10))).mean()
        for core in (np.eye(10), hanging)
    ]
    assert inflation[0] < 1.2
    assert inflation[1] > 3.0


def test_rare_levels_are_told_by_released_moments() -> None:
    design = build_design("y ~ x + C(g)", {"y": (-1, 1), "x": (-1, 1)}, {"g": ["a", "b"]})
    scale = np.array([column.peak for column in design.columns])
    for share, rare in ((0.3, False), (0.005, True)):
        core = np.diag(scale**2 * [0.3, share * (1.0 - share)])
        assert has_rare_levels(design, moments_of(np.zeros(2), core)) == rare


def test_rows_far_out_count_in_full_where_noise_is_small() -> None:
    close, far = (choose_norm(6, 1.0, weight) for weight in (10.0, 1e9))
    assert close**2 == pytest.approx(least_square(6))
    assert far > 100.0 * close
    assert spectral_noise(6, far**2, 1e9) == pytest.approx(0.05)
    u = RNG.normal(size=(6, 100_000))
    assert ((u**2).sum(axis=0) > close**2).mean() < 0.02


# --- the way back ---------------------------------------------------------------------------------------


def whitened_sums() -> tuple[ReleasedSums, np.ndarray]:
    matrix, _ = whiten(moments_of(), noise_of(0.002), 0.85)
    gram = 1e4 * matrix @ moments_of() @ matrix.T
    theta = whiten_coefficients(np.array([0.1, 0.5, -0.4, 0.2]), matrix)
    centre = whiten_coefficients(np.array([0.0, 0.3, -0.3, 0.1]), matrix)
    return ReleasedSums(gram, gram @ theta, unpack_symmetric(80.0, 4), np.full(4, 20.0), True, centre), matrix


def test_noise_has_its_scales_in_whitened_coordinates() -> None:
    """Drawn there and brought back, it has the covariance that intervals use."""
    sums, matrix = whitened_sums()
    beta, back, found = np.array([0.1, 0.5, -0.4, 0.2]), np.linalg.inv(matrix), []
    offset = whiten_coefficients(beta, matrix) - sums.centre
    for _ in range(20_000):
        U = unpack_symmetric(80.0 * RNG.normal(size=10), 4)
        found.append(back @ (20.0 * RNG.normal(size=4) - U @ offset))
    expected = noise_covariance(coefficient_sums(sums, matrix), beta)
    root = np.linalg.inv(np.linalg.cholesky(expected))
    np.testing.assert_allclose(root @ np.cov(np.array(found).T) @ root.T, np.eye(4), atol=0.06)


def test_whitened_sums_are_those_of_the_columns() -> None:
    sums, matrix = whitened_sums()
    beta, found = np.array([0.1, 0.5, -0.4, 0.2]), coefficient_sums(sums, matrix)
    np.testing.assert_allclose(found.matrix, 1e4 * moments_of(), rtol=1e-9)
    np.testing.assert_allclose(found.vector, 1e4 * moments_of() @ beta, rtol=1e-9)
    np.testing.assert_allclose(found.centre, [0.0, 0.3, -0.3, 0.1], atol=1e-9)
    estimate = estimate_coefficients(
        solve_sums(sums, intercept=True, prior_scale=1.0, turned=np.linalg.inv(matrix[1:, 1:]).T), matrix
    )
    np.testing.assert_allclose(estimate.beta, beta, atol=0.01)
    np.testing.assert_allclose(estimate.gain, np.linalg.inv(found.matrix), atol=0.1 * np.abs(estimate.gain).max())


def test_gradients_know_of_the_coordinates() -> None:
    sums, matrix = whitened_sums()
    found = coefficient_sums(sums, matrix)
    evidence = Evidence(
        found.matrix, found.vector, found.matrix_scale, found.vector_scale, True, 300.0 * moments_of(), found.centre,
        True, 0.01, np.zeros((0, 4)), np.zeros(0), found.basis,
    )  # fmt: skip
    beta = np.array([0.2, 0.9, -0.1, 0.0])
    shifts = np.eye(4) * 1e-6
    numeric = [(evidence.measure(beta + s).distance - evidence.measure(beta - s).distance) / 4e-6 for s in shifts]
    np.testing.assert_allclose(evidence.half_gradient(evidence.measure(beta)), numeric, rtol=2e-4)


def test_slopes_stay_where_nothing_is_told_of_them() -> None:
    """A direction whose square is noise does not move, however large its entry of the vector is."""
    gram = np.diag([1e4, 1e4, 50.0])
    sums = ReleasedSums(
        gram, np.array([0.0, 2e3, 400.0]), unpack_symmetric(80.0, 3), np.full(3, 20.0), True, np.zeros(3)
    )
    turned = np.diag([0.5, 0.05])
    found = solve_sums(sums, intercept=True, prior_scale=0.5, turned=turned)
    assert found.beta[1] == pytest.approx(0.2, rel=0.05)
    assert found.beta[2] == 0.0
    assert found.covariance[2, 2] > 0.01 * turned[1, 1] ** 2
