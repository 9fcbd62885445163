"""Plans of logistic and Poisson regressions: against releases, and what they are told and say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.plan.curve import line_deviation
from dplinked.plan.figures import expect_errors, guess_rows, list_errors, make_setting
from dplinked.plan.rows import example_rows
from dplinked.report.numbers import format_number
from dplinked.study.build import build_design
from dplinked.study.family import Curve
from replay import record

N = 20_000
DECLARED: dict[str, dict[str, Any]] = {
    "logistic": {"family": "logistic", "bounds": {"x": (-1, 3), "w": (0, 1)}, "levels": {"y": ["no", "yes"]}},
    "poisson": {
        "family": "poisson", "exposure": "years",
        "bounds": {"x": (-1, 3), "w": (0, 1), "y": (0, 40), "years": (0.5, 2.5)},
    },
}  # fmt: skip
SHARED: dict[str, Any] = {"linkage": dpl.ELE(0.9, block="b"), "delta": 1e-6, "unit": dpl.PrivacyUnit()}
MEANS = {"logistic": 0.15, "poisson": 1.5}
R_SQUARED = {"logistic": 0.2, "poisson": 0.4}


def plan_one(family: str, count: int = N, **settings: Any) -> dpl.Plan:
    guesses = {"r_squared": R_SQUARED[family], "response_mean": MEANS[family], "epsilon": 1.0}
    return dpl.plan(count, "y ~ x + w", **{**guesses, **DECLARED[family], **SHARED, **settings})


def errors_of(
    family: str, response_mean: float | None = None, epsilon: float = 1.0, subgroup: float = 1.0, **settings: Any
) -> dict[str, Any]:
    """Expected errors alone, without the curves of a plan."""
    study = dpl.Study(formula="y ~ x + w", epsilon=epsilon, **{**DECLARED[family], **SHARED, **settings})
    setting = make_setting(study)
    guess = guess_rows(study, setting, R_SQUARED[family], response_mean or MEANS[family])
    guess = replace(guess, subgroup=subgroup)
    return {row.name: row for row in list_errors(guess, expect_errors(setting, guess, epsilon, N), epsilon, N)}


def draw_rows(family: str, seed: int) -> dict[str, Any]:
    """Rows as a plan takes them: even columns that explain the same, both slopes positive, and wrong links within blocks."""
    rng = np.random.default_rng(seed)
    x, w, years = rng.uniform(-1, 3, N), rng.uniform(0, 1, N), rng.uniform(0.5, 2.5, N)
    curve = Curve(family, 40 if family == "poisson" else 1)
    each = line_deviation(curve, MEANS[family], R_SQUARED[family]) / math.sqrt(2.0)
    line = each * (x - 1) / (4 / math.sqrt(12)) + each * (w - 0.5) * math.sqrt(12)
    if family == "poisson":
        rate = years * np.exp(line)
        y = rng.poisson(rate * MEANS[family] / rate.mean()).astype(object)
    else:
        levels = np.linspace(-6, 2, 400)
        means = [(1 / (1 + np.exp(-level - line))).mean() for level in levels]
        chance = 1 / (1 + np.exp(-np.interp(MEANS[family], means, levels) - line))
        y = np.where(rng.random(N) < chance, "yes", "no").astype(object)
    wrong = rng.random(N) < 0.1
    for start in range(0, N, 100):
        rows = start + np.flatnonzero(wrong[start : start + 100])
        y[rows] = y[np.roll(rows, 1)]
    return {"x": x, "w": w, "years": years, "y": y.tolist(), "b": np.arange(N) // 100}


@pytest.mark.parametrize("family", DECLARED)
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_plans_agree_with_releases(family: str, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected errors against the median of stated ones over fixed draws, on data spread as declared, within 15 %."""
    planned = errors_of(family, epsilon=epsilon)
    stated = []
    for seed in range(3):
        fit = partial(dpl.fit, draw_rows(family, seed), "y ~ x + w", epsilon=epsilon, **{**DECLARED[family], **SHARED})
        stated.append(record(monkeypatch, fit, seed)[0])
    for name in ("x", "w"):
        assert planned[name].total == pytest.approx(np.median([one.std_err[name] for one in stated]), rel=0.15)
        halves = [math.log(high / low) / 2.0 for low, high in (one.ratios()[name][1:] for one in stated)]
        assert math.log(planned[name].ratio()) == pytest.approx(np.median(halves), rel=0.15)


@pytest.mark.parametrize("family", DECLARED)
def test_plans_agree_with_releases_of_weighted_subgroups(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows, with weights that are spread as their typical range says: within a quarter, since the middle of a subgroup's columns is not planned."""
    bounds = {**DECLARED[family]["bounds"], "v": (0.0, 4.0), "u": (0.0, 1.0)}
    counted = {"weights": "v", "where": "u < 0.5", "bounds": bounds, "typical": {"v": (1.0, 3.0)}}
    planned = errors_of(family, epsilon=4.0, subgroup=0.5, **counted)
    stated = []
    for seed in range(3):
        rng = np.random.default_rng(seed + 100)
        rows = {**draw_rows(family, seed), "v": rng.uniform(1.0, 3.0, N), "u": rng.uniform(0.0, 1.0, N)}
        fit = partial(dpl.fit, rows, "y ~ x + w", epsilon=4.0, **{**DECLARED[family], **SHARED, **counted})
        stated.append(record(monkeypatch, fit, seed)[0])
    for name in ("x", "w"):
        assert planned[name].total == pytest.approx(np.median([one.std_err[name] for one in stated]), rel=0.25)
    assert "u < 0.5 on 50 % of the rows, weights" in plan_one(family, subgroup=0.5, **counted).assumptions


def test_rare_outcomes_are_told_less_well() -> None:
    widths = [errors_of("logistic", mean)["x"].total for mean in (0.3, 0.1, 0.03)]
    assert widths[0] < widths[1] < widths[2]
    assert plan_one("logistic", response_mean=None).rows[1].total == pytest.approx(widths[1])


@pytest.mark.parametrize("family", DECLARED)
def test_budgets_rows_and_links_help(family: str) -> None:
    plan = plan_one(family, half_width={"x": 0.2}, linkage=dpl.ELE(0.9, block="b", checked=200, source="public"))
    factors = {lever.change: lever.factor for lever in plan.levers if lever.name == "x"}
    assert max(factors.values()) < 1.0
    assert set(factors) >= {
        "twice the budget",
        "twice the rows",
        "half the linkage errors",
        "twice as many links checked",
    }
    needed = plan.needed[0][2]
    assert needed is not None
    again = errors_of(family, epsilon=needed, linkage=dpl.ELE(0.9, block="b", checked=200, source="public"))
    assert 0.95 * 0.2 < again["x"].half_width() <= 0.2 * (1.0 + 1e-9)


def test_a_relative_error_of_the_accuracy_moves_slopes_by_as_much() -> None:
    known = dpl.ELE(0.9, block="b", accuracy_error=0.09, source="public")
    found = errors_of("logistic", linkage=known)["x"]
    size = line_deviation(Curve("logistic"), 0.15, 0.2) / math.sqrt(2.0) / (4.0 / math.sqrt(12.0))
    assert found.accuracy == pytest.approx(0.1 * size, rel=0.03)


def test_where_noise_hides_the_slope_a_plan_says_so() -> None:
    assert plan_one("logistic").limits[:-1] == ()
    assert "not expected to stand clear" in plan_one("logistic", count=2_000, epsilon=0.1).limits[0]


@pytest.mark.parametrize(("family", "ratio"), [("logistic", "odds ratio"), ("poisson", "rate ratio")])
def test_documents_tell_ratios(family: str, ratio: str) -> None:
    plan = plan_one(family)
    for text in (str(plan), plan.to_html(), plan._repr_html_()):
        assert f"{ratio} ×÷" in text
        assert format_number(plan.rows[1].ratio(), plan.rows[1].ratio() - 1.0) in text
    assert {"logistic": "events on 15 %", "poisson": "counts of 1.5 on average"}[family] in plan.assumptions
    assert plan.rows[1].ratio() == pytest.approx(math.exp(plan.rows[1].half_width()))


@pytest.mark.parametrize("mean", [0.0, 1.0, -0.1, math.nan, "many"])
def test_a_mean_that_cannot_be_is_refused(mean: Any) -> None:
    with pytest.raises(dpl.StudyError, match="response_mean must lie between 0 and 1"):
        plan_one("logistic", response_mean=mean)


def test_lines_have_no_guessed_mean() -> None:
    with pytest.raises(dpl.StudyError, match="response_mean is for events and counts"):
        dpl.plan(N, "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, response_mean=0.1, **SHARED)


def test_examples_spread_as_columns_are_declared_to() -> None:
    """Typical ranges hold the middle 70 %, levels are equally frequent, and columns are uncorrelated."""
    design = build_design(
        "y ~ x + C(g) + C(g):w", {"x": (0, 100), "w": (0, 2)}, {"y": [0, 1], "g": ["a", "b", "c"]}, {"x": (20, 34)},
        family="logistic",
    )  # fmt: skip
    scaled, exposed = example_rows(design, design)
    cells = scaled * [column.scale for column in design.columns] + [column.shift for column in design.columns]
    found = dict(zip([column.name for column in design.columns], cells.T, strict=True))
    assert np.quantile(found["x"], [0.15, 0.85]) == pytest.approx([20, 34], abs=0.3)
    assert found["C(g)[b]"].mean() == pytest.approx(1 / 3, abs=0.01)
    assert not (found["C(g)[b]"] * found["C(g)[c]"]).any()
    assert abs(np.corrcoef(found["x"], found["C(g)[b]"])[0, 1]) < 0.03
    assert not exposed.any()


def test_splits_are_planned_too() -> None:
    study = dpl.Study(formula="y ~ x + w", epsilon=1.0, **DECLARED["logistic"], **SHARED)
    rare, frequent = (dpl.plan_split(study, N, [500], 0.2, mean).best for mean in (0.05, 0.3))
    assert rare.error > frequent.error
