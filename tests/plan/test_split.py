"""How a budget is divided between accuracy and fit: within the budget, and at its best."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import dplinked as dpl
from dplinked.linkage.secret_sample import SecretSample
from dplinked.plan.figures import guess_rows, make_setting
from dplinked.plan.split import IDENTIFIERS, PUBLIC, SECRET, Split, SplitPlan, _Planner
from dplinked.privacy.calibration import privacy_epsilon, privacy_mu
from dplinked.privacy.secret_sample import secret_epsilon

DELTA, COUNT = 1e-6, 50_000
TOTAL = privacy_epsilon(math.hypot(privacy_mu(0.3, DELTA), privacy_mu(1.0, DELTA)), DELTA)


def study(**settings: Any) -> dpl.Study:
    """The demo's model, for the budget that (.3, 1) took in all."""
    return dpl.Study(
        **{
            "formula": "consumption ~ income + C(region)",
            "bounds": {"income": (0, 150_000), "consumption": (0, 120_000)},
            "levels": {"region": ["north", "south"]},
            "typical": {"income": (15_000, 50_000)},
            "linkage": dpl.ELE(0.9),
            "epsilon": TOTAL,
            "delta": DELTA,
            "unit": dpl.PrivacyUnit(),
            **settings,
        }
    )


@pytest.fixture(scope="module")
def plan() -> SplitPlan:
    return dpl.plan_split(study(), COUNT, [1_000])


def of(plan: SplitPlan, way: str) -> Split:
    return next(split for split in plan.splits if split.way == way)


def spent(split: Split, rows: int = 2) -> float:
    """ε of both releases together."""
    mu = privacy_mu(split.epsilon_fit, DELTA)
    if split.way == IDENTIFIERS:
        return privacy_epsilon(mu, DELTA)
    if split.way == SECRET:
        return secret_epsilon([SecretSample(split.links / COUNT, rows, split.scale, 0.9)], DELTA, mu)
    return privacy_epsilon(math.hypot(mu, privacy_mu(split.epsilon_accuracy, DELTA)), DELTA)


def test_the_pair_that_costs_the_same_and_errs_less(plan) -> None:
    """(.3, 1) and (.80, .65) cost the same in all; the second is expected to take a third off the slopes' errors, and the plan finds it."""
    assert TOTAL == pytest.approx(1.056, abs=1e-3)
    assert math.hypot(privacy_mu(0.80, DELTA), privacy_mu(0.65, DELTA)) == pytest.approx(
        math.hypot(privacy_mu(0.3, DELTA), privacy_mu(1.0, DELTA)), rel=3e-3
    )
    found = of(plan, PUBLIC)
    assert found.epsilon_accuracy == pytest.approx(0.80, abs=0.03)
    assert found.epsilon_fit == pytest.approx(0.65, abs=0.03)
    declared = study()
    setting = make_setting(declared)
    planner = _Planner(setting, guess_rows(declared, setting, 0.5), COUNT, declared.linkage)
    before = planner._split(PUBLIC, 1_000, 2.0 / privacy_mu(0.3, DELTA), privacy_mu(1.0, DELTA), 0.3)
    assert found.error < 0.65 * before.error
    for factor in (0.8, 1.25):  # and neither side of it is better
        scale = factor * found.scale
        left = math.sqrt(privacy_mu(TOTAL, DELTA) ** 2 - (2.0 / scale) ** 2)
        assert planner._split(PUBLIC, 1_000, scale, left, 0.0).error >= found.error


def test_no_way_exceeds_the_budget_and_a_secret_one_costs_little(plan) -> None:
    assert [split.way for split in plan.splits] == [IDENTIFIERS, SECRET, PUBLIC]
    for split in plan.splits:
        assert TOTAL * (1 - 1e-3) < spent(split) <= TOTAL
    free, secret, public = plan.splits
    assert plan.best == free
    assert secret.error < 1.03 * free.error < 0.8 * public.error
    assert secret.epsilon_fit > 0.95 * TOTAL


def test_protected_identifiers_leave_two_ways() -> None:
    found = dpl.plan_split(study(unit=dpl.PrivacyUnit(displaced_links=1)), COUNT, [500])
    assert [split.way for split in found.splits] == [SECRET, PUBLIC]
    assert all(spent(split, rows=3) <= TOTAL for split in found.splits)
    shown = str(found)
    assert "no data touched" in shown
    assert "secret sample" in shown
    assert "± income" in shown


@pytest.mark.parametrize(
    "settings",
    [
        {"linkage": dpl.Exact()},
        {"linkage": dpl.ELE(0.9, carriers=2)},
        {"linkage": dpl.ELE(0.9, "region2", other=0.9), "unit": dpl.PrivacyUnit(moves_block=True)},
    ],
)
def test_what_cannot_be_released_is_refused(settings) -> None:
    with pytest.raises(dpl.StudyError, match="Accuracies can be released for"):
        dpl.plan_split(study(**settings), COUNT)


@pytest.mark.parametrize("links", [[0], [COUNT + 1], [True], [1.5], ["many"]])
def test_numbers_of_links_are_checked(links) -> None:
    with pytest.raises(dpl.StudyError, match="whole numbers of links"):
        dpl.plan_split(study(), COUNT, links)


def test_the_errors_are_those_of_the_plan(plan) -> None:
    """With the accuracy's error declared as the split has it, the plan of the fit says the same."""
    split = of(plan, SECRET)
    error = math.sqrt(0.09 / 1_000 + (split.scale / 1_000) ** 2)
    linkage = dpl.ELE(0.9, accuracy_error=error, source="public")
    declared = replace(study(), linkage=linkage)
    found = dpl.plan_study(declared, [COUNT], [split.epsilon_fit])
    assert [row.total for row in found.rows] == pytest.approx([row.total for row in split.rows])
