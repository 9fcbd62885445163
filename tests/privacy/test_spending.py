"""A budget is handed out in shares, never more of it than there is, and what was drawn is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dplinked.errors import ReleaseError
from dplinked.privacy.noise_plan import NoisePlan, Part
from dplinked.privacy.spending import MEAT, RESIDUAL_SCALE, VARIANCE, Spending


def plan(mu: float) -> NoisePlan:
    return NoisePlan((Part("part", 1, 1.0, 1.0, 1.0 / mu),), mu)


@given(st.floats(1e-3, 10.0), st.lists(st.floats(1e-6, 1.0), max_size=12))
def test_never_more_than_the_budget(mu: float, shares: list[float]) -> None:
    spending, handed_out = Spending(mu), 0.0
    for share in shares:
        try:
            handed_out += spending.take(share) ** 2
        except ReleaseError:
            assert handed_out / mu**2 + share > 1.0
    assert handed_out <= mu**2 * (1.0 + 1e-8)
    assert spending.spent == pytest.approx(math.sqrt(handed_out)) if handed_out else spending.spent == 0.0


def test_the_rest_leaves_what_is_kept_and_nothing_more() -> None:
    spending = Spending(2.0)
    assert spending.take_rest(keep=VARIANCE) == pytest.approx(2.0 * math.sqrt(1.0 - VARIANCE))
    assert spending.spent == 2.0  # what is kept is spent, drawn or not
    spending.take(RESIDUAL_SCALE)
    spending.take(MEAT)
    with pytest.raises(ReleaseError, match="more than its budget"):
        spending.take(MEAT)
    assert spending.spent == 2.0


def test_planning_takes_nothing() -> None:
    spending = Spending(1.0)
    assert spending.rest(VARIANCE) == pytest.approx(math.sqrt(1.0 - VARIANCE))
    assert spending.share(0.25) == 0.5
    assert spending.take_rest() == 1.0


def test_nothing_is_drawn_that_costs_more_than_was_handed_out() -> None:
    spending = Spending(1.0)
    with pytest.raises(ReleaseError, match="not drawn"):
        spending.note(plan(0.1))
    mu = spending.take(0.5)
    noted = spending.note(plan(mu))
    assert spending.parts == noted.parts
    with pytest.raises(ReleaseError, match="not drawn"):
        spending.note(plan(0.1))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(ReleaseError):
        Spending(1.0).take(share)


@pytest.mark.parametrize("mu", [0.0, -1.0, math.inf, math.nan])
def test_budgets_that_are_none_are_refused(mu: float) -> None:
    with pytest.raises(ReleaseError):
        Spending(mu)
