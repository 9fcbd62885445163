"""Plans by method and calibration, with the accuracy's own error: against formulas written down here, and against releases."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.privacy import noise

METHODS: dict[str, dict[str, Any]] = {
    "tight ssp": {},
    "tight ngd": {"method": "ngd"},
    "paper ssp": {"calibration": "paper"},
    "paper ngd": {
        "calibration": "paper",
        "method": "ngd",
        "descent": dpl.Descent(radius=4.0, step=0.5, iterations=200),
    },
}


def plan_one(
    count: int = 10_000, accuracy: float = 0.75, known: dict[str, Any] | None = None, **settings: Any
) -> dpl.Plan:
    """A plan of one centred column without an intercept: variance 1/3, slope 1, residuals of variance 1."""
    declared: dict[str, Any] = {
        "bounds": {"x": (-1, 1), "y": (-5, 5)},
        "typical": {"y": (-1.4, 1.4)},
        "linkage": dpl.ELE(accuracy, block="b", **(known or {})),
        "epsilon": 1.0,
        "delta": 4e-5,
        "r_squared": 0.25,
    }
    return dpl.plan(count, "y ~ 0 + x", **{**declared, **settings})


def slope(plan: dpl.Plan) -> Any:
    return next(row for row in plan.rows if row.name == "x")


def test_a_plan_foresees_what_symmetric_errors_allow() -> None:
    plans = [plan_one(errors=errors) for errors in ("any", "symmetric")]
    assert slope(plans[1]).total < 0.95 * slope(plans[0]).total
    assert ["errors symmetric around the line" in plan.assumptions for plan in plans] == [False, True]


# --- the figures ---------------------------------------------------------------------------------------


def test_a_plan_takes_what_a_fit_takes() -> None:
    planned, fitted = (inspect.signature(function).parameters for function in (dpl.plan, dpl.fit))
    for name in ("method", "calibration", "errors", "descent", "response_bound", "row_norm", "intervals"):
        assert planned[name].default == fitted[name].default
        assert planned[name].annotation == fitted[name].annotation


def test_published_ssp_is_planned_by_theorem_4_7() -> None:
    n, gamma, c, R = 20_000, 0.75, 1.0, 4.0
    found = slope(plan_one(n, calibration="paper", response_bound=R, unit=dpl.PrivacyUnit(linkage_change=1.0)))
    omega = (R * c * 5.0 + max(2.0 * c * c * 3.0, 2.0 * R * R)) * math.sqrt(2.0 * math.log(1.25 / 4e-5))
    gram = n * gamma**2 / 3.0
    residual = 1.4**2 / (3.0 * 0.49) * 0.75  # of the response's variance, three quarters
    beta = math.sqrt(residual)  # the other quarter is β²/3
    assert found.sampling == pytest.approx(math.sqrt(residual / gram), rel=1e-9)
    assert found.privacy == pytest.approx(omega / gram * math.hypot(1.0, beta), rel=0.02)  # the rest is of higher order
    assert found.accuracy == 0.0


def test_published_ngd_is_planned_by_theorem_4_6() -> None:
    n, gamma, eta, T, C, R = 20_000, 0.75, 0.2, 230, 2.0, 4.0
    descent = dpl.Descent(radius=C, step=eta, iterations=T)
    found = slope(plan_one(n, calibration="paper", method="ngd", descent=descent, response_bound=R))
    step = eta / n * (4.0 * R + 4.0 * C) * 2.0 * math.sqrt(T * math.log(1.0 / 4e-5))
    left = 1.0 - eta * gamma**2 / 3.0
    expected = step * math.sqrt(sum(left ** (2 * t) for t in range(T)))
    assert found.privacy == pytest.approx(expected, rel=1e-9)
    few = slope(plan_one(300, calibration="paper", method="ngd", descent=descent, response_bound=R))
    assert few.total == pytest.approx(C)  # where the projection keeps it


def test_a_start_and_a_curvature_are_planned_with() -> None:
    """A start at the coefficients leaves the curvature's noise nothing to count for; a curvature stands for its step and iterations."""
    far, near, arrived = (
        slope(plan_one(method="ngd", descent=descent)).privacy
        for descent in (
            dpl.Descent(step=1e-6, iterations=1),
            dpl.Descent(step=1e-6, iterations=1, start={"x": 1.0}),
            dpl.Descent(step=1.0, iterations=10**6),
        )
    )
    assert near == pytest.approx(arrived, rel=1e-6)
    assert far > 1.005 * near
    paper = {"calibration": "paper", "method": "ngd"}
    settled = dpl.Descent(radius=2.0, step=1.0 / 5.0, iterations=math.ceil(25.0 * math.log(4.0 * 10_000)))
    declared, stood_for = (
        slope(plan_one(descent=descent, **paper)) for descent in (dpl.Descent(radius=2.0, curvature=5.0), settled)
    )
    assert declared == stood_for


def test_tight_ngd_has_no_gain_from_more_steps_but_for_its_curvature() -> None:
    """The noise of the mean gradient is the same for any T; that of the curvature counts for the mean iterate's distance."""
    one, many = (
        slope(plan_one(method="ngd", descent=dpl.Descent(step=1.0, iterations=T))).privacy for T in (1, 1_000_000)
    )
    assert many < one < 1.5 * many


def test_intervals_take_their_share() -> None:
    for settings in ({}, {"method": "ngd"}):
        with_, without = (slope(plan_one(intervals=paid, **settings)).privacy for paid in (True, False))
        assert 0.85 < without / with_ < 0.99
    paid, unpaid = (slope(plan_one(intervals=paid, calibration="paper")).privacy for paid in (True, False))
    assert paid == unpaid


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("known", [{"checked": 100}, {"accuracy_error": 0.05}], ids=["checked", "error"])
def test_the_accuracys_own_error_is_a_part_of_linkage(method: str, known: dict[str, Any]) -> None:
    """Its relative error moves slopes by as much, and the intercept by what they carry there."""
    declared = {
        "bounds": {"x": (0, 2), "y": (-10, 14)},
        "typical": {"y": (0, 4)},
        "epsilon": 1.0,
        "delta": 1e-7,
        "r_squared": 0.5,
        **METHODS[method],
    }
    before, after = (
        {row.name: row for row in dpl.plan(1_000_000, "y ~ x", linkage=linkage, **declared).rows}
        for linkage in (dpl.ELE(0.75), dpl.ELE(0.75, source="public", **known))
    )
    error = known.get("accuracy_error", math.sqrt(0.75 * 0.25 / 100)) / 0.75
    size = math.sqrt(
        0.5 * (4.0 / 0.7) ** 2 / 12.0 * 3.0
    )  # the slope: half of the response's variance over the column's
    for name in ("x", "Intercept"):  # the column's mean is 1
        assert after[name].accuracy == pytest.approx(error * size, rel=0.02)
        assert after[name].linkage == pytest.approx(math.hypot(before[name].linkage, after[name].accuracy), rel=1e-9)
        assert (after[name].sampling, after[name].privacy) == (before[name].sampling, before[name].privacy)


def test_no_budget_beats_the_accuracys_error() -> None:
    free, known = plan_one(), plan_one(known={"checked": 100, "source": "public"})
    floor = {name: min(c.floor[-1] for c in plan.curves if c.quantity == "epsilon") for name, plan in (("free", free), ("known", known))}  # fmt: skip
    assert floor["known"] > 2.0 * floor["free"]
    wanted = (floor["free"] + floor["known"]) / 2.0
    reached, beyond = (
        plan_one(known=given, half_width={"x": wanted}).needed[0][2]
        for given in (None, {"checked": 100, "source": "public"})
    )
    assert reached is not None
    assert beyond is None


def test_links_to_check_are_a_lever_where_some_were() -> None:
    change = "twice as many links checked"
    few = plan_one(200_000, known={"checked": 100, "source": "public"}, delta=1e-6)
    factors = {lever.change: lever.factor for lever in few.levers}
    assert factors[change] == pytest.approx(math.sqrt(0.5), rel=0.03)  # nearly all of the error is the accuracy's
    twice = plan_one(200_000, known={"checked": 200, "source": "public"}, delta=1e-6)
    assert slope(twice).total / slope(few).total == pytest.approx(factors[change])
    stated = plan_one(known={"accuracy_error": 0.06, "source": "public"})
    halved = plan_one(known={"accuracy_error": 0.03, "source": "public"})
    factors = {lever.change: lever.factor for lever in stated.levers}
    assert slope(halved).total / slope(stated).total == pytest.approx(factors["half the accuracy's error"])
    for plan in (stated, plan_one()):
        assert change not in {lever.change for lever in plan.levers}


def test_the_curve_over_accuracies_checks_as_many_links() -> None:
    plan = plan_one(known={"checked": 100, "source": "public"})
    curve = next(c for c in plan.curves if c.quantity == "accuracy" and c.name == "x")
    for place in (3, len(curve.values) - 3):
        own = slope(plan_one(accuracy=curve.values[place], known={"checked": 100, "source": "public"}))
        assert curve.floor[place] == pytest.approx(1.96 * math.hypot(own.sampling, own.linkage), rel=1e-3)


# --- words ---------------------------------------------------------------------------------------------


def test_assumptions_name_method_and_theorem() -> None:
    said = {name: plan_one(**settings).assumptions for name, settings in METHODS.items()}
    assert len(set(said.values())) == len(METHODS)
    for name, words in {
        "tight ssp": "are for noisy sums",
        "tight ngd": "are for noisy gradient descent",
        "paper ssp": "Theorem 4.7",
        "paper ngd": "Theorem 4.6",
    }.items():
        assert words in said[name]
        assert "exact given" not in said[name]
    assert "known exactly" in plan_one().assumptions
    assert "standard error of 0.043" in plan_one(known={"checked": 100, "source": "public"}).assumptions
    matching = dpl.Matching(sp.eye_array(4).tocsr())
    unit = dpl.PrivacyUnit(linkage_change=1.0, displaced_links=0)
    assert "declares no accuracy" in plan_one(linkage=matching, unit=unit).assumptions


def test_several_accuracies_are_said_to_count_the_same() -> None:
    said = plan_one(linkage=dpl.ELE({"a": 0.9, "b": 0.7, "(last)": 0.2}, "b")).assumptions
    assert "accuracy 0.6 (the mean of 3 declared ones, each counted the same, whatever its number of rows" in said
    assert "counted the same" not in plan_one().assumptions


def test_a_response_without_a_typical_range_is_said_to_spread_over_its_bounds() -> None:
    """And it does: the plan is wider by far than with one."""
    with_one, without = plan_one(), plan_one(typical={"x": (-0.7, 0.7)})
    assert "The response is taken to spread evenly over its bounds" in without.assumptions
    assert "declare its typical range" not in with_one.assumptions
    assert slope(without).sampling > 2.0 * slope(with_one).sampling


def test_what_cannot_be_used_is_said() -> None:
    paper = {"calibration": "paper", "epsilon": [0.3, 3.0]}
    weak = plan_one(5_000, **paper)
    limit, exact = weak.limits
    assert "unusable at epsilon = 0.3 with 5,000 rows" in limit
    assert "accuracy is taken as known exactly" in exact
    for text in (str(weak), weak.to_html(), weak._repr_html_()):
        assert "no finite variance" in text
    assert plan_one(5_000_000, delta=1e-7, **{**paper, "epsilon": 1.0}).limits == (exact,)
    short = {"calibration": "paper", "method": "ngd"}
    limit, _ = plan_one(descent=dpl.Descent(step=0.5, iterations=10), **short).limits
    assert f"leave {100 * (1 - 0.5 * 0.75**2 / 3) ** 10:.3g} % of the way" in limit
    assert plan_one(descent=dpl.Descent(step=0.5, iterations=200), **short).limits == (exact,)
    for settings in (short, {"method": "ngd"}):
        with pytest.raises(dpl.StudyError, match="steps are too long"):
            plan_one(descent=dpl.Descent(step=20.0, iterations=10), **settings)


def test_budgets_that_the_calibration_refuses_are_left_out() -> None:
    """The published rule has too little noise for large budgets; curves, levers and searches stop where it does."""
    plan = plan_one(50, calibration="paper", delta=0.015, epsilon=1.0, half_width={"x": 1e-3})
    with pytest.raises(dpl.StudyError, match="would not be private"):
        plan_one(50, calibration="paper", delta=0.015, epsilon=9.0)
    curve = next(c for c in plan.curves if c.quantity == "epsilon")
    assert 1.0 < max(curve.values) < 9.0
    assert plan.needed[0][2] is None


# --- against releases ----------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(noise, "add_gaussian", noise.add_gaussian)  # run_one replaces it; put it back after
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    import planning

    return planning


@functools.cache
def mean_error(bench: ModuleType, cell: Any) -> float:
    """The mean absolute error of 60 releases, known to 10 %. Seeds are fixed."""
    return float(np.mean(np.abs([bench.run_one((cell, seed))["slopes"] for seed in range(1000, 1060)])))


def measured_ratio(bench: ModuleType, cell: Any, planned_for: Any) -> float:
    """The planned standard error over that of releases."""
    return float(bench.make_plan(planned_for)["x0"].total * math.sqrt(2.0 / math.pi) / mean_error(bench, cell))


def cell_of(bench: ModuleType, method: str, calibration: str, checked: int | None) -> Any:
    wanted = (method, calibration, 1, checked, True)
    return next(c for c in bench.CELLS if (c.method, c.calibration, c.d, c.checked, c.intervals) == wanted)


@pytest.mark.parametrize("checked", [pytest.param(None, marks=pytest.mark.slow), 50])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
@pytest.mark.parametrize("method", ["ssp", "ngd"])
def test_plans_agree_with_releases(bench: ModuleType, method: str, calibration: str, checked: int | None) -> None:
    cell = cell_of(bench, method, calibration, checked)
    assert 1.0 / 1.3 < measured_ratio(bench, cell, cell) < 1.3


@pytest.mark.parametrize(
    "fault", [{"calibration": "paper"}, {"checked": None}, {"epsilon": 0.1}], ids=lambda fault: next(iter(fault))
)
def test_plans_of_something_else_do_not(bench: ModuleType, fault: dict[str, Any]) -> None:
    cell = cell_of(bench, "ssp", "tight", 50)
    assert not 1.0 / 1.3 < measured_ratio(bench, cell, replace(cell, **fault)) < 1.3


def test_typical_ranges_reach_a_response_that_is_an_expression() -> None:
    """The response in hundreds: errors are a hundredth of those of the response itself."""
    declared = {"bounds": {"x": (-1, 1), "y": (-5, 5)}, "typical": {"y": (-1.4, 1.4)}}
    settings = {**declared, "linkage": dpl.ELE(0.75, block="b"), "epsilon": 1.0, "delta": 4e-5}
    own, hundreds = (slope(dpl.plan(10_000, f"{response} ~ 0 + x", **settings)) for response in ("y", "I(y / 100)"))
    for part in ("sampling", "linkage", "privacy"):
        assert getattr(hundreds, part) == pytest.approx(getattr(own, part) / 100.0)


# --- weights, conditions and clusters --------------------------------------------------------------------


def test_budgets_that_a_release_would_refuse_are_left_out_of_a_plan() -> None:
    """The budgets that are compared by default reach below what weights need: the others are planned, and the plan says so."""
    asked = {"bounds": {"x": (-1, 1), "y": (-5, 5), "w": (1, 20)}, "weights": "w", "delta": 1e-6}
    found = plan_one(6_000, epsilon=(0.01, 1.0, 3.0), **asked)
    assert {row.epsilon for row in found.rows} == {1.0, 3.0}
    assert found.point.epsilon == 1.0
    assert any("Left out: epsilon = 0.01 with 6,000 rows" in limit for limit in found.limits)
    several = dpl.plan(
        [500, 6_000], "cbind(x, v) ~ 0 + w", epsilon=(0.3, 1.0), linkage=dpl.ELE(0.9, block="b"), delta=1e-6,
        bounds={"x": (-1, 1), "v": (-1, 1), "w": (1, 20)}, where="w > 5",
    )  # fmt: skip
    assert several.point.count == 6_000
    with pytest.raises(dpl.errors.StudyError, match="would refuse weights"):
        plan_one(6_000, epsilon=(0.001, 0.01), **asked)


def test_a_plan_says_how_many_clusters_intervals_take() -> None:
    """Nobody knows how many there are. With as many and more errors are those of the plan; with a tenth of them many times as large. Fifteen releases of each: their median."""
    asked = {"linkage": dpl.Exact(), "epsilon": 4.0, "delta": 1e-6}
    found = plan_one(20_000, cluster="c", **asked)
    (said,) = [limit for limit in found.limits if "different cells of c" in limit]
    enough = int(said.split("about ")[1].split(" ")[0].replace(",", ""))
    assert 1_000 < enough < 3_000
    assert not any("different cells" in limit for limit in plan_one(20_000, **asked).limits)

    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, 20_000)
    rows = {"x": x, "y": x + rng.normal(size=x.size)}
    errors = []
    for clusters in (2 * enough, enough // 10):
        rows["c"] = rng.integers(0, clusters, x.size)
        told = [dpl.fit(rows, "y ~ 0 + x", bounds={"x": (-1, 1), "y": (-5, 5)}, cluster="c", **asked) for _ in range(15)]  # fmt: skip
        errors.append(float(np.median([one.std_err["x"] for one in told])))
    assert errors[0] < 1.5 * slope(found).total < 4.0 * slope(found).total < errors[1]


def test_rows_that_were_linked_at_random_are_planned_as_few() -> None:
    """A group of the linking's own, of some rows without a partner in their blocks: its accuracy says next to nothing of all rows."""
    groups: dict[str, Any] = {
        "block": "link_block",
        "source": "public",
        "accuracy_error": {"(last)": 0.29, "(other)": 0.005},
    }
    with_few = plan_one(unit=dpl.PrivacyUnit(), linkage=dpl.ELE({"(last)": 0.5, "(other)": 0.99}, **groups))
    alone = plan_one(
        unit=dpl.PrivacyUnit(), linkage=dpl.ELE({"(other)": 0.99}, **{**groups, "accuracy_error": {"(other)": 0.005}})
    )
    assert with_few.point.accuracy == alone.point.accuracy == 0.99
    assert slope(with_few).accuracy == pytest.approx(slope(alone).accuracy, rel=0.05)
    assert slope(with_few).total >= slope(alone).total  # noise follows the least accuracy, if it follows any
    assert "taken to be few" in with_few.assumptions
    own = plan_one(linkage=dpl.ELE({"(last)": 0.5, "(other)": 0.99}, **{**groups, "block": "b"}))
    assert own.point.accuracy == pytest.approx(0.745)  # a key of the files may be called so, too
