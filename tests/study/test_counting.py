"""Weights and conditions: what they may be, what rows count by them, and what is refused in which words."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.errors import StudyError
from dplinked.privacy import noise
from dplinked.study.counting import Counting, HasLevel, Joined, declare_counting, level_condition
from dplinked.study.design import NULL, UNDECLARED
from dplinked.study.origins import check_origins

BOUNDS = {"age": (0.0, 100.0), "income": (0.0, 10.0), "w": (1.0, 4.0)}
LEVELS = {"region": ("north", "south", "east"), "odd name": ("1", "2")}
ROWS = {
    "age": np.array([10.0, 64.0, 65.0, 900.0, np.nan, -5.0]),
    "income": np.array([1.0, 2.0, 3.0, 4.0, 5.0, np.inf]),
    "w": np.array([1.0, 2.0, 4.0, 40.0, 2.0, 2.0]),
}
CODES = {
    "region": np.array([0, 1, 2, 0, 1, NULL], np.int32),
    "odd name": np.array([0, 1, 0, 1, 0, 1], np.int32),
}


def counted(weights: str | None, where: str | None) -> list[float]:
    counting = declare_counting(weights, where, BOUNDS, LEVELS)
    assert counting is not None
    return found(counting, ROWS, CODES)


def found(counting: Counting, raw: dict[str, Any], codes: dict[str, Any]) -> list[float]:
    counting.write_factors(raw, codes, out := np.empty(len(next(iter(codes.values())))))
    return out.tolist()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("age >= 65", [0, 0, 1, 1, 0, 0]),
        ("age == 100", [0, 0, 0, 1, 0, 0]),  # as it is clipped
        ("20 <= age < 65", [0, 1, 0, 0, 0, 0]),
        ("not age >= 65", [1, 1, 0, 0, 0, 1]),
        ("income * 2 > 3 + 1", [0, 0, 1, 1, 1, 0]),
        ("region == 'north'", [1, 0, 0, 1, 0, 0]),
        ("region != 'north'", [0, 1, 1, 0, 1, 0]),
        ("region in ['south', 'east']", [0, 1, 1, 0, 1, 0]),
        ("region not in ('south', 'east')", [1, 0, 0, 1, 0, 0]),
        ("'south' == region", [0, 1, 0, 0, 1, 0]),
        ("`odd name` == 2 and age > 5", [0, 1, 0, 1, 0, 0]),
        ("region == 'north' or age == 65", [1, 0, 1, 1, 0, 0]),
    ],
)
def test_conditions_hold_where_they_say(where: str, expected: list[float]) -> None:
    """Rows that lack a cell which the condition names count nothing, also where it would hold without it."""
    assert counted(None, where) == expected


def test_a_cell_of_no_declared_level_does_not_count() -> None:
    counting = declare_counting(None, "region == 'north'", BOUNDS, LEVELS)
    other = declare_counting(None, "region != 'south'", BOUNDS, LEVELS)
    codes = {"region": np.array([0, UNDECLARED, NULL, 1], np.int32)}
    assert counting is not None
    assert other is not None
    assert found(counting, {}, codes) == found(other, {}, codes) == [1.0, 0.0, 0.0, 0.0]


def test_functions_are_no_columns() -> None:
    assert counted(None, "sqrt(income) > 1.5") == [0, 0, 1, 1, 1, 0]
    design, _ = dpl.Study(**STUDY, where="sqrt(w) > 1 and log(w + 1) < 2").prepare()
    assert set(design.variables) == {"y", "x", "w"}


def test_weights_are_clipped_and_divided_by_their_largest() -> None:
    assert counted("w", None) == [0.25, 0.5, 1.0, 1.0, 0.5, 0.5]
    assert counted("w", "age >= 65") == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("age >=", "cannot be read"),
        ("age", "not a condition"),
        ("age + 1", "not a condition"),
        ("1 < 2", "compares numbers"),
        ("0 < 1 < age", "compares numbers"),
        ("region == 'north' and 1 < 2", "compares numbers"),
        ("agee > 5", "no declared bounds"),
        ("region > 'north'", "no order"),
        ("region == 'nord'", "not declared"),
        ("region == age", "not a condition"),
        ("max(age) > 5", "not a condition"),
        ("__import__('os') == 1", "not a condition"),
        ("income / age > 1", "contain 0"),
        ("log(income) > 1", "above 0"),
        ("(age > 5) & (income > 2)", "not a condition"),
        ("age > 5 if income > 2 else age < 3", "not a condition"),
    ],
)
def test_other_conditions_are_refused(where: str, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        declare_counting(None, where, BOUNDS, LEVELS)


STUDY: dict[str, Any] = {
    "formula": "y ~ x",
    "bounds": {"y": (-5, 5), "x": (0, 1), "w": (0, 3)},
    "levels": {"g": ["a", "b"]},
    "linkage": dpl.ELE(0.9, block="k"),
    "unit": dpl.PrivacyUnit(),
    "epsilon": 1.0,
    "delta": 1e-6,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": "v"}, "has no declared bounds"),
        ({"weights": "g"}, "Weights are numbers"),
        ({"weights": "y"}, "response's own column"),
        ({"where": "y > 1"}, "response's own column"),
        ({"weights": "w", "bounds": {"y": (-5, 5), "x": (0, 1), "w": (-1, 3)}}, "must not begin below 0"),
        ({"weights": "w", "missing": "fill"}, "missing='drop'"),
        ({"where": "g == 'a'", "method": "ngd"}, "method='ssp'"),
        ({"where": "g == 'a'", "calibration": "paper"}, "calibration='tight'"),
        ({"weights": "w", "ridge": 1.0}, "leave out ridge"),
        ({"weights": 3}, "must be a text"),
        ({"where": "k == 1"}, "no declared bounds"),
    ],
)
def test_studies_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        dpl.Study(**{**STUDY, **change}).prepare()


def linked(n: int = 4000) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, n)
    g = rng.choice(["a", "b"], n)
    return {
        "x": x,
        "y": x * (1 + (g == "b")) + rng.normal(0, 0.3, n),
        "w": rng.uniform(0, 3, n),
        "g": g,
        "k": np.arange(n) // 10,
    }


def test_too_few_rows_are_refused_before_anything_is_spent() -> None:
    with pytest.raises(StudyError, match="need a second stage"):
        dpl.fit_study(dpl.Study(**{**STUDY, "weights": "w", "epsilon": 0.01}), linked(60))


def test_links_no_better_than_chance_are_refused_before_anything_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of two whose links are right half of the time, nothing of right links can be told from the others."""
    monkeypatch.setattr(noise, "add_gaussian", lambda *drawn: pytest.fail("something was drawn"))
    linkage = dpl.ELE(0.5, block="pair")
    with pytest.raises(StudyError, match="need a second stage"):
        dpl.fit_study(
            dpl.Study(**{**STUDY, "linkage": linkage, "cluster": "k", "epsilon": 8.0}),
            {**linked(), "pair": np.arange(4000) // 2},
        )


def test_columns_of_the_other_file_are_refused() -> None:
    """As far as columns say which of the linked files they come from."""
    design, _ = dpl.Study(**STUDY, where="g == 'a'").prepare()
    study = dpl.Study(**STUDY, where="g == 'a'")
    with pytest.raises(StudyError, match="take columns of the regressors"):
        check_origins(study, design, {"x": "left", "g": "right", "y": "right"})


def test_the_line_is_that_of_the_rows_that_count() -> None:
    release = dpl.fit_study(
        dpl.Study(**{**STUDY, "where": "g == 'b'", "weights": "w", "epsilon": 8.0, "linkage": dpl.Exact()}),
        linked(40_000),
    )
    assert abs(release.coef["x"] - 2.0) < 5 * release.std_err["x"] < 0.5
    assert release.subgroup is not None
    number, low, high = release.subgroup
    assert low < number < high
    assert abs(number - 20_000) < 500
    text = release.summary()
    assert "g == 'b' holds" in text
    assert "weighted by w" in text
    assert dpl.Release.from_json(release.to_json()).subgroup == release.subgroup
    assert "g == 'b' holds" in html.unescape(release.to_html())
    assert release.predict({"x": [0.5]})


def test_plans_know_subgroups() -> None:
    declared = {name: value for name, value in STUDY.items() if name not in ("formula", "epsilon")}
    whole = dpl.plan(50_000, "y ~ x", epsilon=1.0, **declared)
    part = dpl.plan(50_000, "y ~ x", epsilon=1.0, where="g == 'a'", subgroup=0.1, **declared)
    whole_error, part_error = (next(row for row in plan.rows if row.name == "x") for plan in (whole, part))
    assert part_error.half_width() > 3 * whole_error.half_width()
    with pytest.raises(StudyError, match="subgroup must be a share"):
        dpl.plan(50_000, "y ~ x", epsilon=1.0, where="g == 'a'", subgroup=0.0, **declared)


@pytest.mark.parametrize("change", [{"weights": "w"}, {"where": "w > 1"}, {"where": "g == 'b'"}])
def test_weights_and_conditions_of_the_other_file_are_refused(change: dict[str, Any]) -> None:
    study = dpl.Study(**{**STUDY, **change})
    check_origins(study, study.prepare()[0], {"x": "left", "w": "left", "g": "left", "y": "right"})
    with pytest.raises(StudyError, match="Weights, conditions, levels and strata take columns of the regressors' file"):
        check_origins(study, study.prepare()[0], {"x": "left", "w": "right", "g": "right", "y": "right"})


def test_clusters_of_the_other_file_are_refused() -> None:
    study = dpl.Study(**{**STUDY, "cluster": "psu"})
    check_origins(study, study.prepare()[0], {"x": "left", "psu": "left", "y": "right"})
    with pytest.raises(StudyError, match="does not come from the file"):
        check_origins(study, study.prepare()[0], {"x": "left", "psu": "right", "y": "right"})
    for name in ("y", "link_block"):
        with pytest.raises(StudyError, match="The clusters"):
            dpl.Study(**{**STUDY, "cluster": name}).prepare()


STRATA = {"levels": {"h": ["a", "b"], "g": ["a", "b"]}, "strata": "h"}


def test_strata_of_the_other_file_are_refused() -> None:
    study = dpl.Study(**{**STUDY, **STRATA})
    design = study.prepare()[0]
    assert (design.strata, design.strata_alone) == ("h", {"h"})
    check_origins(study, design, {"x": "left", "h": "left", "y": "right"})
    with pytest.raises(StudyError, match="The strata are 'h', which comes from another file"):
        check_origins(study, design, {"x": "left", "h": "right", "y": "right"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strata": "k"}, "must name a column with declared levels"),
        ({"strata": "x"}, "must name a column with declared levels"),
        ({"strata": "link_block", "levels": {"link_block": ["a", "b"]}}, "result of linking"),
        ({"intervals": False}, "strata belongs to intervals"),
        ({"method": "ngd"}, "strata belongs to method='ssp'"),
        ({"calibration": "paper"}, "strata belongs to method='ssp'"),
        ({"family": "logistic", "formula": "g ~ x"}, "strata belongs to method='ssp'"),
        ({"missing": "fill"}, "strata belongs to method='ssp'"),
        ({"ridge": 0.1}, "strata belongs to method='ssp'"),
        ({"by": "g"}, "strata and by do not go together"),
        ({"cluster": "h"}, "strata and cluster are the same column"),
        ({"linkage": dpl.Exact(), "unit": dpl.PrivacyUnit(rows=2, id="p")}, "need the clusters"),
        ({"linkage": dpl.ELE(0.9, block="h"), "unit": dpl.PrivacyUnit(linkage_change=1.0)}, "change on many rows"),
    ],
)
def test_strata_are_refused_where_they_make_no_sense(change: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        dpl.Study(**{**STUDY, **STRATA, **change}).prepare()


def test_strata_may_be_the_blocks_or_a_regressor() -> None:
    """Where blocks are held fixed nobody changes their stratum; where a person may move, it is the person's own."""
    for unit in (dpl.PrivacyUnit(), dpl.PrivacyUnit(moves_block=True)):
        study = dpl.Study(**{**STUDY, **STRATA, "linkage": dpl.ELE(0.9, block="h", other=0.9), "unit": unit})
        assert study.prepare()[0].strata == "h"
    design = dpl.Study(**{**STUDY, **STRATA, "formula": "y ~ x + C(h)"}).prepare()[0]
    assert design.strata_alone == set()
    with pytest.raises(StudyError, match="the column of the blocks"):
        dpl.Study(**{**STUDY, **STRATA, "formula": "y ~ x + C(h)", "linkage": dpl.ELE(0.9, block="h")}).prepare()


def test_clusters_that_many_people_may_change_are_refused() -> None:
    """A change of Q may move many rows to other blocks, and so to other clusters."""
    unit = dpl.PrivacyUnit(linkage_change=1.0)
    with pytest.raises(StudyError, match="change on many rows"):
        dpl.Study(**{**STUDY, "cluster": "b", "linkage": dpl.ELE(0.9, block="b"), "unit": unit}).prepare()


def test_studies_without_strata_ask_for_the_same_as_before() -> None:
    assert "strata" not in dpl.Study(**STUDY).request(["one"])
    assert dpl.Study(**{**STUDY, **STRATA}).request(["one"])["strata"] == "h"


@pytest.mark.parametrize(
    "where", ["x > -2) or (x < 5", "x > 1) or True or (x < 5", "x > 1 #", "x > 1) and (h == 'p`q'"]
)
def test_levels_stay_apart_whatever_the_condition_says(where: str) -> None:
    """A condition that is pasted together with a level must not let rows into several levels."""
    with pytest.raises(StudyError):
        level_condition(where, "g", "a")


def test_backquotes_in_texts_name_no_columns() -> None:
    text = level_condition("h == 'p`q'", "the group", "a`b")
    condition = declare_counting(None, text, {}, {"h": ["p`q", "r"], "the group": ["a`b", "c"]}).condition
    assert condition == Joined("and", (HasLevel("h", (0,)), HasLevel("the group", (0,))))
