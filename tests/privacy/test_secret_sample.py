"""The privacy curve of counts over a secret sample, against brute force and dp-accounting; and faults it must not hide."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dplinked.errors import StudyError
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import privacy_delta, privacy_epsilon, privacy_mu
from dplinked.privacy.secret_sample import (
    add_payment,
    calibrate_sample,
    mu_beside,
    secret_delta,
    secret_epsilon,
)
from secret_samples import brute_delta

DELTA = 1e-6


RATES, SCALES = st.sampled_from([0.005, 0.02, 0.1, 0.4]), st.floats(0.6, 6.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(RATES, SCALES, st.floats(0.0, 1.0), st.floats(0.02, 2.0), st.lists(st.booleans(), min_size=1, max_size=4))
def test_no_change_in_one_group_exceeds_the_curve(rate, scale, guess, epsilon, right) -> None:
    found = secret_delta([SecretSample(rate, len(right), scale, guess)], epsilon)
    assert brute_delta(rate, scale, guess, epsilon, [(0, one) for one in right]) <= found * (1 + 1e-6) + 1e-13


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("guess", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("rate", "epsilon"), [(0.02, 0.3), (0.05, 0.3), (0.02, 1.0)])
def test_the_curve_is_exact_where_all_answers_turn_in_one_group(rows, guess, rate, epsilon) -> None:
    sample = calibrate_sample(rate, rows, guess, epsilon, DELTA)
    worst = max(brute_delta(rate, sample.scale, guess, epsilon, [(0, right)] * rows) for right in (True, False))
    assert worst == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("changes", [[(0, True), (1, True)], [(0, True), (1, False)], [(0, False), (1, False)]])
@pytest.mark.parametrize("guess", [0.5, 0.9])
def test_rows_in_two_groups_do_not_exceed_the_curve(changes, guess) -> None:
    sample = calibrate_sample(0.02, 2, guess, 0.3, DELTA)
    assert brute_delta(0.02, sample.scale, guess, 0.3, changes) <= DELTA
    assert brute_delta(0.02, sample.scale / 2.0, guess, 0.3, changes) > DELTA or changes[0][1]


@pytest.mark.parametrize("guess", [0.0, 0.5, 0.9])
def test_a_fit_beside_the_sample_does_not_exceed_the_curve(guess) -> None:
    sample, mu = calibrate_sample(0.02, 2, guess, 0.3, DELTA), privacy_mu(1.0, DELTA)
    total = secret_epsilon([sample], DELTA, mu)
    brute = max(
        brute_delta(0.02, sample.scale, guess, total, [(0, right)] * 2, mu=sign * mu)
        for right in (True, False)
        for sign in (1.0, -1.0)
    )
    assert 0.97 * DELTA <= brute <= DELTA
    assert total < 1.03  # 1.3 if the values of epsilon were added up
    assert mu_beside([sample], total, DELTA) == pytest.approx(mu, rel=1e-4)


@pytest.mark.parametrize(("rate", "scale"), [(0.02, 1.5), (0.1, 3.0)])
def test_agrees_with_dp_accounting(rate: float, scale: float) -> None:
    """One row whose answer turns: with a guess of 0 it is there or not, with one half it is replaced by its opposite."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    for guess, relation in ((0.0, NeighboringRelation.ADD_OR_REMOVE_ONE), (0.5, NeighboringRelation.REPLACE_ONE)):
        theirs = pld.from_gaussian_mechanism(
            scale, 1.0 - guess, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=1e-4
        )
        for epsilon in (0.2, 0.5):
            ours = secret_delta([SecretSample(rate, 1, scale, guess)], epsilon)
            assert ours == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=5e-3)


@pytest.mark.parametrize(("size", "count", "expected"), [(1_000, 50_000, 1.732), (500, 10_000, 2.675)])
def test_noise_of_the_table(size: int, count: int, expected: float) -> None:
    """The noise on right links alone at (.3, 1e-6), two rows per person; 26 were the sample public."""
    assert calibrate_sample(size / count, 2, 0.0, 0.3, DELTA).scale == pytest.approx(expected, abs=1e-3)
    assert calibrate_sample(1.0, 2, 0.0, 0.3, DELTA).scale == pytest.approx(2.0 / privacy_mu(0.3, DELTA), rel=1e-5)
    assert 2.0 / privacy_mu(0.3, DELTA) == pytest.approx(26.0, abs=0.1)


@pytest.mark.parametrize("guess", [0.0, 0.5, 0.9])
def test_faults_in_the_accounting_show(guess: float) -> None:
    """A sample that is public, and one row per person where there are two: neither noise is enough."""
    sample = calibrate_sample(0.02, 2, guess, 0.3, DELTA)
    assert brute_delta(1.0, sample.scale, guess, 0.3, [(0, True)] * 2) > 1e4 * DELTA
    one_row = calibrate_sample(0.02, 1, guess, 0.3, DELTA)
    assert max(brute_delta(0.02, one_row.scale, guess, 0.3, [(0, right)] * 2) for right in (True, False)) > 2 * DELTA


@settings(max_examples=6, deadline=None, derandomize=True)
@given(RATES, st.integers(1, 5), st.floats(0.0, 1.0), st.floats(0.05, 3.0))
def test_conversions_keep_the_budget_and_use_it_up(rate, rows, guess, epsilon) -> None:
    sample = calibrate_sample(rate, rows, guess, epsilon, DELTA)
    assert secret_delta([sample], epsilon) <= DELTA
    assert secret_epsilon([sample], DELTA) == pytest.approx(epsilon, rel=1e-3)
    assert sample.scale <= rows / privacy_mu(epsilon, DELTA) * (1 + 1e-5)
    mu = mu_beside([sample], 2.0 * epsilon, DELTA)
    assert secret_delta([sample], 2.0 * epsilon, mu) <= DELTA
    assert 0.0 < mu < privacy_mu(2.0 * epsilon, DELTA)


def test_two_samples_cost_about_their_sum_and_not_less_than_they_tell() -> None:
    sample = calibrate_sample(0.02, 2, 0.9, 0.2, DELTA)
    assert 0.2 < secret_epsilon([sample, sample], DELTA) < 0.41
    one_row = SecretSample(0.02, 1, 1.5, 0.5)
    both = brute_delta(0.02, 1.5, 0.5, 0.3, [(0, True), (1, True)])  # one row in each of two samples
    assert 0.0 < both <= secret_delta([one_row, one_row], 0.3)
    assert mu_beside([sample] * 2, 0.1, DELTA) == 0.0
    with pytest.raises(StudyError, match="more secret samples"):
        secret_delta([SecretSample(0.02, 999, 2.0, 0.5)] * 2, 1.0)


def test_without_a_secret_the_gaussian_curve_is_left() -> None:
    assert secret_delta([], 0.5, 0.3) == privacy_delta(0.3, 0.5)
    samples, mu = add_payment(0.3, 0.4)
    assert secret_epsilon(samples, DELTA, mu) == pytest.approx(privacy_epsilon(0.5, DELTA))


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (10.0, 1e-12), (20.0, 1e-9), (30.0, 1e-6), (1.0, 1e-30)])
def test_a_sample_that_tells_nothing_adds_nothing_to_a_fit(epsilon: float, delta: float) -> None:
    """Small tails keep their digits: the table's sum is the Gaussian curve then."""
    mu = privacy_mu(epsilon, delta)
    alone = privacy_delta(mu, epsilon)
    assert secret_delta([SecretSample(0.02, 2, 1e7, 0.9)], epsilon, mu) == pytest.approx(alone, rel=1e-6)
    assert secret_delta([calibrate_sample(0.02, 2, 0.9, 0.3, delta)], epsilon, mu) > alone


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-16), (0.5, 1e-30), (0.5, 1e-100), (1_000.0, 1e-6)])
def test_small_deltas_and_large_epsilons_are_added_up(epsilon: float, delta: float) -> None:
    sample, mu = calibrate_sample(0.02, 2, 0.9, 0.3, delta), privacy_mu(epsilon, delta)
    total = secret_epsilon([sample], delta, mu)
    assert epsilon < total < epsilon + 0.3
    assert secret_delta([sample], total, mu) <= delta
    assert mu_beside([sample], total, delta) == pytest.approx(mu, rel=1e-4)


def test_a_sample_with_little_noise_has_a_total_at_a_small_delta() -> None:
    """At ε = 60 it alone tells more than δ; the total lies beyond, and is found."""
    sample = SecretSample(0.02, 2, 0.2, 0.9)
    alone = secret_epsilon([sample], 1e-12)
    assert secret_delta([sample], 60.0) > 1e-12
    assert alone < secret_epsilon([sample], 1e-12, 0.1) < 1.1 * alone


@pytest.mark.parametrize(
    "wrong",
    [(0.0, 2, 1.0, 0.5), (0.02, 0, 1.0, 0.5), (0.02, 2, 0.0, 0.5), (0.02, 2, 1.0, 1.5), (0.02, 10**6, 1.0, 0.5)],
)
def test_numbers_that_are_no_samples_are_refused(wrong) -> None:
    with pytest.raises(StudyError, match="secret sample"):
        SecretSample(*wrong)
