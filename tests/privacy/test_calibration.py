"""Calibration rules against each other, against dp-accounting, and where they must refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dplinked.errors import CalibrationError, StudyError
from dplinked.privacy.calibration import (
    noise_multiplier,
    privacy_delta,
    privacy_epsilon,
    privacy_mu,
    round_down,
    round_up,
)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("classic", 4.381), ("paper-zcdp", 6.123), ("exact-rho", 4.442), ("cks", 3.548), ("analytic", 3.226)],
)
def test_multipliers_of_the_table(rule: str, expected: float) -> None:
    """σ/Δ at ε = 1, δ = 8.5e-5 (docs/mathematics.md, calibration)."""
    assert noise_multiplier(1.0, 8.5e-5, rule) == pytest.approx(expected, abs=6e-4)


def test_the_classic_rule_refuses_where_it_is_not_private() -> None:
    with pytest.raises(CalibrationError, match="would not be private"):
        noise_multiplier(10.0, 1e-6, "classic")


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 9.0), st.floats(1e-12, 1e-2))
def test_no_rule_goes_below_the_analytic_one(epsilon: float, delta: float) -> None:
    needed = noise_multiplier(epsilon, delta)
    for rule in ("classic", "paper-zcdp", "exact-rho", "cks"):
        try:
            assert noise_multiplier(epsilon, delta, rule) >= needed * (1 - 1e-9)
        except CalibrationError:
            assert rule in ("classic", "paper-zcdp")


@settings(max_examples=100, deadline=None)
@given(st.floats(0.001, 50.0), st.floats(1e-15, 0.1))
def test_mu_uses_the_budget_up_and_no_more(epsilon: float, delta: float) -> None:
    mu = privacy_mu(epsilon, delta)
    assert privacy_delta(mu, epsilon) <= delta
    assert privacy_delta(mu * (1 + 1e-6), epsilon) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 8.5e-5), (3.0, 1e-6), (8.0, 1e-5)])
def test_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    multiplier = noise_multiplier(epsilon, delta)
    theirs = pld.from_gaussian_mechanism(multiplier, value_discretization_interval=1e-4)
    assert theirs.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=2e-3)


def test_steps_compose_like_dp_accounting() -> None:
    """T steps with √T the noise cost what one release costs."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    multiplier = noise_multiplier(1.0, 1e-5)
    steps = pld.from_gaussian_mechanism(multiplier * math.sqrt(5), value_discretization_interval=1e-4).self_compose(5)
    assert steps.get_delta_for_epsilon(1.0) == pytest.approx(1e-5, rel=5e-3)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-6), (-1, 1e-6), (math.nan, 1e-6), (math.inf, 1e-6), (1, 0), (1, 1), (1, math.nan)]
)
def test_refuses_what_is_no_budget(epsilon: float, delta: float) -> None:
    with pytest.raises(StudyError):
        privacy_mu(epsilon, delta)


def test_refuses_an_unknown_rule() -> None:
    with pytest.raises(StudyError, match="no calibration rule"):
        noise_multiplier(1.0, 1e-6, "magic")


@pytest.mark.parametrize("mu", [0.05, 0.24, 1.0, 4.0])
def test_epsilon_and_mu_are_inverse(mu: float) -> None:
    epsilon = privacy_epsilon(mu, 1e-6)
    assert privacy_delta(mu, epsilon) <= 1e-6
    assert privacy_delta(mu, epsilon * (1 - 1e-5)) > 1e-6
    assert privacy_mu(epsilon, 1e-6) == pytest.approx(mu, rel=1e-4)


@pytest.mark.parametrize(
    ("value", "shown"), [(1.45467, "1.455"), (1.0, "1"), (1e-6, "1e-06"), (0.12410001, "0.1242"), (13.0, "13")]
)
def test_promises_are_rounded_up(value: float, shown: str) -> None:
    assert round_up(value) == shown
    assert float(round_up(value)) >= value


def test_what_is_left_of_a_budget_that_is_used_up_can_be_said() -> None:
    for mu in (7e-7, 1e-12, 0.0):
        assert float(round_down(privacy_epsilon(mu, 1e-6))) < 1e-50
