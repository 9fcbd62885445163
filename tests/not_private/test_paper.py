"""The paper's algorithms to the letter, its variances and bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import dplinked as dpl
from dplinked.data.table import Rows
from dplinked.not_private.baseline import rl_covariance, rl_meat
from dplinked.not_private.paper.settings import BETA, BLOCK_SIZE, EPSILON, setting_points
from dplinked.not_private.paper.variances import ssp_excess_quantile
from dplinked.paper import (
    Constants,
    constants_not_private,
    ngd_bias_not_private,
    ngd_excess_error,
    ngd_not_private,
    ngd_total_error,
    ngd_variance_not_private,
    ssp_excess_error,
    ssp_not_private,
    ssp_total_error,
    ssp_variance_not_private,
    unclipped_probability,
)
from dplinked.simulate import linked_households, mislink, paper_design
from dplinked.study.build import build_design
from dplinked.sums.numpy.prepare import prepare_rows


def test_constants_are_the_theorems() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (5000, 1))
    constants = constants_not_private(X, 0.8 * X, 1.0, M=1.0, c0=1.0)
    assert constants.R == pytest.approx(math.sqrt(2 * math.log(5000)))
    assert pytest.approx(1 / (0.64 * (X**2).mean())) == constants.L
    assert pytest.approx(1 / constants.L) == constants.eta
    assert math.ceil(constants.L**2 * math.log(5000)) == constants.T
    assert constants.ssp_sensitivity == pytest.approx(
        constants.R * constants.c * 5 + max(6 * constants.c**2, 2 * constants.R**2)
    )
    assert constants.ngd_sensitivity == pytest.approx(constants.R * constants.c * 5 + 6 * constants.C * constants.c**2)


def test_settings_are_those_of_the_paper() -> None:
    """Section 5.1: n from 3,000 to 10,000 at σ = 1; σ from .5 to 1.8 and γ from .6 to 1 at n = 10,000; M = 1, in setting 3 down to 0; δ = n^-1.1."""
    first, second, third = (setting_points(f"setting{k}") for k in (1, 2, 3))
    assert [point.n for point in first] == list(range(3000, 10001, 1000))
    assert {(point.sigma, point.accuracy, point.M) for point in first} == {(1.0, None, 1.0)}
    assert (second[0].sigma, second[-1].sigma, {(point.n, point.M) for point in second}) == (0.5, 1.8, {(10_000, 1.0)})
    assert (third[0].accuracy, third[-1].accuracy, third[0].M, third[-1].M) == (0.6, 1.0, 1.0, 0.0)
    assert all(point.delta == pytest.approx(point.n**-1.1) for point in (*first, *second, *third))
    assert (BLOCK_SIZE, EPSILON, BETA) == (25, 1.0, 1.0)


def test_variance_of_the_descent_matches_simulation() -> None:
    """Theorem 4.6 with 4,000 runs of the algorithm, projection off: ratio within 5 sd (±11 %); bias within 5 sd."""
    rng = np.random.default_rng(1)
    gram, cross, n = np.array([[300.0, 50.0], [50.0, 200.0]]), np.array([150.0, -60.0]), 1000
    beta = np.linalg.solve(gram, cross)
    constants = Constants(R=1.0, c=1.0, L=3.0, eta=1.5, T=7, C=1e9, M=0.0)
    omega = 0.02
    iterates = np.zeros((4000, 2))
    for _ in range(constants.T):
        iterates = iterates - constants.eta / n * (iterates @ gram - cross) + rng.normal(0, omega, iterates.shape)
    claimed = ngd_variance_not_private(gram, np.zeros((2, 2)), n, constants.eta, constants.T, omega)
    np.testing.assert_allclose(np.diag(np.cov(iterates.T)) / np.diag(claimed), 1.0, atol=0.12)
    bias = ngd_bias_not_private(gram, beta, n, constants.eta, constants.T)
    np.testing.assert_allclose(iterates.mean(axis=0) - beta, bias, atol=5 * omega * 2 / math.sqrt(4000))
    many = ngd_variance_not_private(gram, gram, n, constants.eta, 10_000, 0.0)
    np.testing.assert_allclose(many, np.linalg.inv(gram), rtol=1e-6)  # Remark: tends to Σ^RL


def test_variance_of_ssp_matches_simulation() -> None:
    """Theorem 4.7, first order: noise a few percent of the matrix, 20,000 draws, within 6 %."""
    rng = np.random.default_rng(2)
    gram, beta, omega = np.array([[300.0, 50.0], [50.0, 200.0]]), np.array([0.7, -0.4]), 4.0
    draws = []
    for _ in range(20_000):
        U = np.triu(rng.normal(0, omega, (2, 2)))
        draws.append(np.linalg.solve(gram + U + np.triu(U, 1).T, gram @ beta + rng.normal(0, omega, 2)))
    claimed = ssp_variance_not_private(gram, np.zeros((2, 2)), beta, omega)
    np.testing.assert_allclose(np.diag(np.cov(np.array(draws).T)) / np.diag(claimed), 1.0, atol=0.06)


def test_meat_and_covariance_fit_together() -> None:
    rng = np.random.default_rng(3)
    x, blocks, accuracy = paper_design(500, rng)
    data = {"x": x, "y": x, "b": blocks}
    design = build_design("y ~ 0 + x", {"x": (-1, 1), "y": (-1, 1)}).unscaled()
    prepared = prepare_rows(Rows(data), design, dpl.ELE(dict(enumerate(accuracy)), block="b"), dpl.PrivacyUnit())
    X, beta = x[:, None], np.array([1.0])
    W = dpl.baseline.apply_matching(prepared, X)
    meat = rl_meat(prepared, X, beta, 0.5)
    assert rl_covariance(prepared, X, beta, 0.5)[0, 0] == pytest.approx(meat[0, 0] / (W.T @ W)[0, 0] ** 2)


@pytest.mark.parametrize(("bound", "power"), [(ngd_excess_error, 2), (ssp_excess_error, 4)])
def test_the_error_bounds_scale_as_printed(bound, power: int) -> None:
    """Theorems 4.4 and 4.5: what is left beside 1/n scales with each argument as the theorem prints it, and is 1 where all of them are."""
    n, d, sigma, epsilon, delta = 10_000, 2, 1.3, 0.5, 1e-6

    def noise(n=n, d=d, sigma=sigma, epsilon=epsilon, delta=delta) -> float:
        return bound(n, d, sigma, epsilon, delta) - (1.0 / n if power == 2 else 0.0)

    assert noise(sigma=2 * sigma) / noise() == pytest.approx(2**power)
    assert noise(d=3 * d) / noise() == pytest.approx(27)
    assert noise(epsilon=epsilon / 4) / noise() == pytest.approx(16)
    assert noise(delta=delta**2) / noise() == pytest.approx(2)
    assert noise(n=n**2) / noise() == pytest.approx(4 / n**2, rel=1e-6)
    assert noise(3, 1, 1.0, math.log(3) / 3, math.exp(-1)) == pytest.approx(1.0)


def test_the_corollary_is_the_sum_of_both_parts() -> None:
    """Corollary 4.1: tr Σ^RL and the noise term of the theorem; the 1/n of Theorem 4.4 is not in it."""
    arguments = (5000, 3, 0.8, 0.7, 1e-5)
    assert ngd_total_error(0.25, *arguments) == pytest.approx(0.25 + ngd_excess_error(*arguments) - 1 / 5000)
    assert ssp_total_error(0.25, *arguments) == pytest.approx(0.25 + ssp_excess_error(*arguments))
    assert ngd_total_error(0.0, *arguments) < ngd_excess_error(*arguments)


def test_no_response_is_clipped_only_now_and_then() -> None:
    """3,000 draws at n = 3,000, within 5 sd (±.042); the figures that the pages state; without a signal 1/√(π ln n) are missing."""
    rng = np.random.default_rng(8)
    n, R = 3000, math.sqrt(2 * math.log(3000))
    x = rng.uniform(-1, 1, n)
    free = np.mean([np.abs(x + rng.normal(size=n)).max() <= R for _ in range(3000)])
    assert unclipped_probability(n, 1.0) == pytest.approx(free, abs=0.042)
    figures = [unclipped_probability(n, 1.0) for n in (3000, 10_000, 10**6)]
    assert figures == pytest.approx([0.320, 0.269, 0.108], abs=0.001)
    missing = 1 - unclipped_probability(10**12, 1.0, signal=0.0)
    assert missing == pytest.approx(1 / math.sqrt(math.pi * math.log(10**12)), rel=0.1)
    assert unclipped_probability(n, 3.0, signal=3.0) == pytest.approx(unclipped_probability(n, 1.0))


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_quantiles_of_algorithm_2_are_exact(share: float) -> None:
    """40,000 runs with noise a third of the matrix, where first order no longer holds: within 5 sd (3 %)."""
    rng = np.random.default_rng(9)
    gram, slope, omega = 600.0, 0.9, 200.0
    U, u = rng.normal(0, omega, (2, 40_000))
    drawn = np.quantile(np.abs((slope * gram + u) / (gram + U) - slope), share)
    assert ssp_excess_quantile(gram, slope, omega, share) == pytest.approx(drawn, rel=0.03)


class Drawn:
    """A generator that gives the noise it is told to, and no more than that."""

    def __init__(self, *noise: list[float]) -> None:
        self.noise = [np.array(one, float) for one in noise]

    def normal(self, loc: float, scale: float, size: object) -> np.ndarray:
        return self.noise.pop(0)


def test_the_redraw_gives_up_only_on_singular_matrices() -> None:
    """Two noisy matrices without an inverse are given up, with the noise that came with them; a weak one is kept."""
    constants = Constants(R=1.0, c=1.0, L=3.0, eta=1.0, T=5, C=1.0, M=0.0)
    gram, cross, none = np.diag([2.0, 4.0]), np.array([6.0, 8.0]), [0.0, 0.0]
    zero, one_row, weak = [[-2.0, 0.0], [0.0, -4.0]], [[0.0, 0.0], [9.0, -4.0]], [[0.0, 0.0], [0.0, -4.0 + 2e-12]]
    redrawn = Drawn(zero, [7.0, 7.0], one_row, [7.0, 7.0], [[0.0, 0.0], [0.0, 0.0]], none, weak, none)
    np.testing.assert_allclose(ssp_not_private(gram, cross, constants, 1.0, 1e-5, redrawn), [3.0, 2.0])
    assert len(redrawn.noise) == 2  # the third matrix was kept
    kept = ssp_not_private(gram, cross, constants, 1.0, 1e-5, redrawn)
    np.testing.assert_allclose(kept, [3.0, 4e12], rtol=1e-3)
    assert redrawn.noise == []
    with pytest.raises(dpl.StudyError, match="singular in 100 draws"):
        ssp_not_private(gram, cross, constants, 1.0, 1e-5, Drawn(*[zero, none] * 100))
    strong = ssp_not_private(np.array([[1e6]]), np.array([5e5]), constants, 1.0, 1e-5, np.random.default_rng(4))
    assert strong[0] == pytest.approx(0.5, abs=0.01)


def test_the_descent_stays_within_its_radius() -> None:
    """The solution, 0.5, lies outside the smaller radius: steps end on its border. Within the larger one they come near it."""
    constants = Constants(R=1.0, c=1.0, L=3.0, eta=1.0, T=20, C=1.0, M=0.0)
    for radius, expected in ((0.25, 0.25), (1.0, 0.5)):
        found = ngd_not_private(
            np.array([[1e6]]), np.array([5e5]), 3_000_000, replace(constants, C=radius), 1.0, 1e-5,
            np.random.default_rng(4), repetitions=3,
        )  # fmt: skip
        assert found.shape == (3, 1)
        assert np.abs(found).max() <= radius
        np.testing.assert_allclose(found, expected, atol=0.01)


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize(
    ("gamma", "m"), [(gamma, m) for gamma in (0.2, 0.75, 0.95, 1.0) for m in (2, 5, 25) if gamma * m >= 1]
)  # less accurate than random links there are none
def test_mislinked_rows_have_exchangeable_errors(gamma: float, m: int, varying: bool) -> None:
    """Share of right links γ, wrong ones spread evenly, always a permutation within blocks (5 sd)."""
    rng = np.random.default_rng(5)
    blocks = np.repeat(np.arange(4000), m)
    links = mislink(blocks, np.full(4000, gamma), rng, varying=varying)
    assert np.array_equal(np.sort(links), np.arange(links.size))
    assert np.array_equal(blocks[links], blocks)
    right = (links == np.arange(links.size)).mean()
    assert right == pytest.approx(gamma, abs=5 * math.sqrt(gamma * (1 - gamma) * m / links.size) + 1e-12)
    if gamma < 1:
        first = links[::m] - np.arange(4000) * m  # where row 0 of each block got its response from
        shares = np.bincount(first, minlength=m)[1:] / 4000
        expected = (1 - gamma) / (m - 1)
        assert np.abs(shares - expected).max() <= 5 * math.sqrt(expected / 4000)
    if m == 25 and gamma < 0.9:  # how the numbers of wrong links vary
        spread = (links != np.arange(links.size)).reshape(-1, m).sum(axis=1).std()
        independent = math.sqrt(m * gamma * (1 - gamma))
        assert spread == pytest.approx(independent, rel=0.05) if varying else spread <= 0.6


def test_generated_households_are_as_described() -> None:
    data = linked_households(50_000, 7)
    wrong = (np.asarray(data["consumption"]) != np.asarray(data["true_consumption"])).mean()
    assert wrong == pytest.approx(0.09, abs=0.01)
    assert dpl.baseline.ols(data, "true_consumption ~ income + C(region)", levels={"region": ["north", "south"]}).coef[
        "income"
    ] == pytest.approx(0.55, abs=0.005)
