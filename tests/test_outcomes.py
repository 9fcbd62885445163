"""Fits of events and counts: they find what rows were drawn from, and say it."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked import outcomes
from dplinked.data.arrow import mark_origin
from dplinked.errors import StudyError
from dplinked.not_private.baseline import chambers
from dplinked.privacy import noise
from dplinked.release.notes import LEFT_OUT
from dplinked.sums.numpy import kernel

TRUTH = {"Intercept": -0.8, "age": 0.9, "C(sex)[m]": 0.6}
BOUNDS = {"age": (-1.0, 1.0)}
LEVELS = {"sex": ["f", "m"], "died": ["no", "yes"]}
EVENTS: dict[str, Any] = {
    "formula": "died ~ age + C(sex)", "family": "logistic", "bounds": BOUNDS, "levels": LEVELS, "delta": 1e-6,
}  # fmt: skip
COUNTS: dict[str, Any] = {
    **EVENTS, "formula": "visits ~ age + C(sex)", "family": "poisson", "exposure": "years",
    "bounds": {**BOUNDS, "visits": (0, 30), "years": (0.5, 4.0)},
}  # fmt: skip
BOTH = {"logistic": EVENTS, "poisson": COUNTS}


def draw_rows(n: int = 40_000, block: int = 40, accuracy: float = 0.8, seed: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    age, male, years = rng.uniform(-1, 1, n), rng.random(n) < 0.5, rng.uniform(0.5, 4.0, n)
    line = TRUTH["Intercept"] + TRUTH["age"] * age + TRUTH["C(sex)[m]"] * male
    died, visits = rng.random(n) < 1 / (1 + np.exp(-line)), rng.poisson(years * np.exp(line))
    order = np.arange(n)
    for start in range(0, n, block):
        wrong = start + rng.permutation(block)[: round((1 - accuracy) * block)]
        order[wrong] = np.roll(wrong, 1)
    return {
        "age": age, "sex": np.where(male, "m", "f"), "years": years, "died": np.where(died, "yes", "no")[order], "visits": visits[order],
        "block": np.arange(n) // block,
    }  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    return draw_rows()


def fit(rows: Any, family: str, **settings: Any) -> dpl.Release:
    return dpl.fit(rows, **{"linkage": dpl.ELE(0.8, block="block"), "epsilon": 4.0, **BOTH[family], **settings})


@pytest.mark.parametrize("family", BOTH)
def test_fits_find_what_rows_were_drawn_from(rows: dict[str, Any], family: str) -> None:
    release = fit(rows, family)
    for name, value in TRUTH.items():
        assert abs(release.coef[name] - value) < 4.5 * release.std_err[name]
        assert release.std_err[name] < 0.08
    naive = fit(rows, family, linkage=dpl.Exact())
    assert naive.coef["age"] < 0.85 * TRUTH["age"]


@pytest.mark.parametrize("family", BOTH)
def test_without_noise_coefficients_solve_the_equation(
    monkeypatch: pytest.MonkeyPatch, rows: dict[str, Any], family: str
) -> None:
    """At the coefficients, responses less expected means are nothing but the rest that the last step leaves."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    kept: list[Any] = []
    wrote = outcomes.write_equation
    monkeypatch.setattr(outcomes, "write_equation", lambda *given: kept.append(wrote(*given)) or kept[-1])
    release = fit(rows, family, epsilon=10.0)
    (equation,) = kept
    matrix, offset = release.scaling.to_user()
    beta = np.linalg.solve(matrix, np.array(list(release.coef.values())) - offset)
    responses = equation.rows.right_residuals(equation.at(equation.level_line, exposed=False)).vector
    sums = equation.rows.curve_sums(equation.at(beta), equation.level)
    left = np.linalg.solve(sums.matrix, responses - sums.vector)
    assert np.abs(left).max() < 2e-3


@pytest.mark.parametrize("family", BOTH)
def test_files_give_the_release_of_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: dict[str, Any], family: str
) -> None:
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", row_group_size=7_000)
    one, two = fit(rows, family), fit(tmp_path / "rows.parquet", family)
    for name in TRUTH:
        assert one.coef[name] == pytest.approx(two.coef[name], abs=1e-6)


@pytest.mark.parametrize("family", BOTH)
def test_databases_give_the_release_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str) -> None:
    """In blocks so small that all others of a block are partners, whichever engine sums."""
    pytest.importorskip("duckdb")
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    rows = draw_rows(8_000, block=16)
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    one, two = fit(rows, family), fit(dpl.Query("select * from 'rows.parquet'", folder=tmp_path), family)
    for name in TRUTH:
        assert one.coef[name] == pytest.approx(two.coef[name], abs=1e-6)
        assert one.std_err[name] == pytest.approx(two.std_err[name], rel=1e-5)


def with_holes(rows: dict[str, Any], chance: float = 0.3, seed: int = 3) -> dict[str, Any]:
    """The same rows without some ages, sexes, exposures and outcomes: more of them where people are old."""
    rng, holed = np.random.default_rng(seed), dict(rows)
    for name in ("age", "sex", "years", "died", "visits"):
        hole = rng.random(len(rows["age"])) < chance * (rows["age"] > 0.0)
        holed[name] = pa.array(rows[name], mask=hole)
    return holed


@pytest.mark.parametrize("family", BOTH)
def test_rows_with_missing_cells_are_left_out(
    monkeypatch: pytest.MonkeyPatch, rows: dict[str, Any], family: str
) -> None:
    """A third of each cell of the old is missing; those that wrong links bring are other people's. Filled cells bend the slopes."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    release, filled = (fit(with_holes(rows), family, epsilon=10.0, missing=missing) for missing in ("drop", "fill"))
    for name in ("age", "C(sex)[m]"):
        assert abs(release.coef[name] - TRUTH[name]) < 4.0 * release.std_err[name]
        assert abs(filled.coef[name] - TRUTH[name]) > 4.0 * filled.std_err[name]
    assert LEFT_OUT in release.to_html()
    assert LEFT_OUT not in filled.to_html()


@pytest.mark.parametrize("family", BOTH)
def test_without_noise_complete_rows_solve_the_equation(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """With right links: what a fit of the complete rows alone finds."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    rows = draw_rows(20_000, accuracy=1.0)
    holed = with_holes(rows, chance=0.2)
    complete = np.ones(20_000, bool)
    for name in ("age", "sex", *(["died"] if family == "logistic" else ["years", "visits"])):
        complete &= ~np.asarray(holed[name].is_null())
    whole = {name: np.asarray(column)[complete] for name, column in rows.items()}
    one, two = (fit(data, family, epsilon=10.0, linkage=dpl.Exact()) for data in (holed, whole))
    for name in TRUTH:
        assert one.coef[name] == pytest.approx(two.coef[name], abs=0.012)
        assert one.std_err[name] == pytest.approx(two.std_err[name], rel=0.15)  # shares of the budget differ


@pytest.mark.parametrize("family", BOTH)
def test_databases_leave_out_the_rows_that_memory_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    rows = with_holes(draw_rows(8_000, block=16))
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    one, two = fit(rows, family), fit(dpl.Query("select * from 'rows.parquet'", folder=tmp_path), family)
    monkeypatch.setattr(kernel, "KERNEL", None)
    three = fit(rows, family)
    for name in TRUTH:
        assert one.coef[name] == pytest.approx(two.coef[name], abs=1e-6)
        assert one.coef[name] == pytest.approx(three.coef[name], abs=1e-6)
        assert one.std_err[name] == pytest.approx(two.std_err[name], rel=1e-5)


COUNTED: dict[str, dict[str, Any]] = {
    "a condition": {"where": "sex == 'm' and age > -0.5"},
    "weights": {"weights": "w"},
    "both": {"weights": "w", "where": "age > -0.5"},
}


def counted_fit(rows: dict[str, Any], family: str, counted: str, **settings: Any) -> dpl.Release:
    """A fit of age alone, so that the line of some rows is not that of all: men and women differ."""
    bounds = {**BOTH[family]["bounds"], **({"w": (0.0, 5.0)} if counted != "a condition" else {})}
    outcome = "died" if family == "logistic" else "visits"
    return fit(rows, family, **{"formula": f"{outcome} ~ age", "bounds": bounds, **COUNTED[counted], **settings})


def with_weights(rows: dict[str, Any]) -> dict[str, Any]:
    """The same rows with weights: women count for much."""
    rng, n = np.random.default_rng(11), len(rows["age"])
    return {**rows, "w": np.where(rows["sex"] == "m", rng.uniform(0.2, 1.0, n), rng.uniform(1.0, 5.0, n))}


@pytest.fixture(scope="module")
def weighted(rows: dict[str, Any]) -> dict[str, Any]:
    return with_weights(rows)


@pytest.mark.parametrize("counted", COUNTED)
@pytest.mark.parametrize("family", BOTH)
def test_weights_and_conditions_have_the_line_of_right_links(
    monkeypatch: pytest.MonkeyPatch, weighted: dict[str, Any], family: str, counted: str
) -> None:
    """That of weighted maximum likelihood, which is far from the line of all rows."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
    release = counted_fit(weighted, family, counted, epsilon=10.0)
    bounds = {**BOTH[family]["bounds"], "w": (0.0, 5.0)}
    of = {"family": family, **({"exposure": "years"} if family == "poisson" else {})}
    right, wanted = with_weights(draw_rows(accuracy=1.0)), [COUNTED[counted], {}]
    one, plain = (
        chambers(right, release.declared.formula, bounds=bounds, levels=LEVELS, linkage=dpl.Exact(), **of, **rule)
        for rule in wanted
    )
    for name in ("Intercept", "age"):
        assert abs(release.coef[name] - one.coef[name]) < 3.0 * release.std_err[name]
    assert abs(plain.coef["Intercept"] - one.coef["Intercept"]) > 6.0 * release.std_err["Intercept"]
    if "where" in COUNTED[counted]:
        holds = weighted["age"] > -0.5
        holds &= (weighted["sex"] == "m") | (counted == "both")
        assert release.subgroup[0] == pytest.approx(holds.sum())
    assert "weighted" in release.summary() or counted == "a condition"


@pytest.mark.parametrize("family", BOTH)
def test_weights_and_conditions_are_released_with_noise(weighted: dict[str, Any], family: str) -> None:
    """At a usual budget, by memory: the number of rows that count lies within its interval, and slopes near those of all rows, which are the same."""
    for counted in COUNTED:
        release = counted_fit(weighted, family, counted)
        assert abs(release.coef["age"] - TRUTH["age"]) < 4.5 * release.std_err["age"] + 0.1
        assert release.std_err["age"] < 0.25
        again = dpl.Release.from_json(release.to_json())
        assert again.subgroup == release.subgroup
        assert again.summary() == release.summary()
    holds = (weighted["age"] > -0.5).sum()
    _, low, high = release.subgroup
    assert low - 2.0 * (high - low) < holds < high + 2.0 * (high - low)


def test_weights_and_conditions_that_cannot_be_taken_are_refused(weighted: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="missing='drop'"):
        counted_fit(weighted, "logistic", "weights", missing="fill")
    with pytest.raises(StudyError, match="visits"):  # the response's own column is on a linked row
        counted_fit(weighted, "poisson", "a condition", where="visits > 2")
    for setting in ({"by": "sex"}, {"cluster": "sex"}, {"strata": "sex"}, {"goodness": True}):
        with pytest.raises(StudyError, match="family='linear'"):
            fit(weighted, "logistic", formula="died ~ age", **setting)


@pytest.mark.parametrize(("file", "refused"), [("left", False), ("right", True)])
def test_without_regressors_conditions_are_not_of_the_responses_file(file: str, refused: bool) -> None:
    """On a linked row they would be somebody else's, and go with the response."""
    rows = draw_rows(4_000)
    fields = [
        mark_origin(pa.field("sex", pa.string()), file), mark_origin(pa.field("died", pa.string()), "right"), pa.field("block", pa.int64()),
    ]  # fmt: skip
    table = pa.table({name: rows[name] for name in ("sex", "died", "block")}, schema=pa.schema(fields))
    if refused:
        with pytest.raises(StudyError, match="which comes from another file"):
            fit(table, "logistic", formula="died ~ 1", where="sex == 'f'")
    else:
        fit(table, "logistic", formula="died ~ 1", where="sex == 'f'")


def test_an_empty_subgroup_is_released_all_the_same(monkeypatch: pytest.MonkeyPatch, weighted: dict[str, Any]) -> None:
    """Even if noise should be nothing."""
    for quiet in (False, True):
        if quiet:
            monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.asarray(values, float))
        for family in BOTH:
            release = fit({**weighted, "age": np.full(40_000, -0.9)}, family, where="age > 0.5")
            assert all(math.isfinite(value) for value in release.coef.values())
            assert release.subgroup[1] < 300.0


def test_releases_say_ratios(rows: dict[str, Any]) -> None:
    release = fit(rows, "logistic")
    ratio, low, high = release.ratios()["age"]
    assert ratio == pytest.approx(math.exp(release.coef["age"]))
    assert (low, high) == pytest.approx(tuple(map(math.exp, release.conf_int()["age"])))
    assert "Intercept" not in release.ratios()
    listed = list(csv.DictReader(io.StringIO(release.to_csv())))
    assert float(listed[1]["odds_ratio"]) == pytest.approx(ratio)
    assert listed[0]["odds_ratio"] == ""
    for text in (release.summary(), release.to_markdown(), release.to_html()):
        assert "Private logistic regression" in text
        assert "odds ratio" in text
        assert "rows far out in a column" in " ".join(text.split())
    again = dpl.Release.from_json(release.to_json())
    assert again.ratios() == release.ratios()


def test_counts_say_rate_ratios_and_where_they_were_clipped(rows: dict[str, Any]) -> None:
    release = fit(rows, "poisson")
    assert 3 <= release.released.largest < 30
    text = " ".join(release.summary().split())
    assert "rate ratio" in text
    assert f"Counts above {release.released.largest} count as" in text
    assert release.declared.bounds["visits"] == (0.0, 30.0)
    assert "years" in release.to_html()


def test_predictions_are_probabilities_and_counts(rows: dict[str, Any]) -> None:
    new = {"age": [0.0, 1.0], "sex": ["f", "m"]}
    release = fit(rows, "logistic")
    (mean, low, high), other = release.predict(new)
    assert mean == pytest.approx(1 / (1 + math.exp(-release.coef["Intercept"])))
    assert 0.0 < low < mean < high < other[0] < 1.0
    counts = fit(rows, "poisson")
    one, two = counts.predict(new)[0], counts.predict({**new, "years": [2.0, 2.0]})[0]
    assert np.array(two) == pytest.approx(2.0 * np.array(one))


def test_tests_and_smaller_models_go_on_working(rows: dict[str, Any]) -> None:
    release = fit(rows, "logistic")
    assert release.test("age = 0").p_value < 1e-6
    assert release.in_region(TRUTH, 0.9999)
    smaller = release.submodel("died ~ age")
    assert list(smaller.ratios()) == ["age"]
    assert "logistic" in str(smaller)
    moved = release.with_accuracy(-0.05).coef["age"]
    assert moved == pytest.approx(
        fit(rows, "logistic", linkage=dpl.ELE(0.75, block="block"), epsilon=10.0).coef["age"], abs=0.06
    )
    with pytest.raises(StudyError, match="family='linear'"):
        release.ridge(0.1)


def test_lines_have_no_ratios() -> None:
    rng = np.random.default_rng(0)
    line = dpl.fit(
        {"x": rng.uniform(0, 1, 400), "y": rng.uniform(0, 1, 400)}, "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=dpl.Exact(),
        epsilon=1.0, delta=1e-6, intervals=False,
    )  # fmt: skip
    with pytest.raises(StudyError, match="no odds ratios"):
        line.ratios()


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("outcome", ["none", "all", "separated"])
def test_hopeless_outcomes_are_released_all_the_same(family: str, outcome: str) -> None:
    """No events, nothing else, or a column that separates them: shrunk, and never an error."""
    rows = draw_rows(400)
    chosen = {"none": np.zeros(400), "all": np.ones(400), "separated": rows["age"] > 0.0}[outcome].astype(bool)
    rows |= {"died": np.where(chosen, "yes", "no"), "visits": 30 * chosen}
    for epsilon in (0.1, 8.0):
        release = fit(rows, family, epsilon=epsilon)
        assert all(math.isfinite(value) and abs(value) < 100.0 for value in release.coef.values())
        assert release.summary()


def test_intercepts_may_be_missing_or_alone(rows: dict[str, Any]) -> None:
    alone = fit(rows, "logistic", formula="died ~ 1")
    share = (rows["died"] == "yes").mean()
    assert alone.predict({})[0][0] == pytest.approx(share, abs=0.02)
    assert fit(rows, "logistic", formula="died ~ 0 + age").coef["age"] > 0.3
    rate = fit(rows, "poisson", formula="visits ~ 1").coef["Intercept"]
    assert rate == pytest.approx(math.log(rows["visits"].sum() / rows["years"].sum()), abs=0.05)


def test_matrices_that_cannot_be_unlinked_are_refused() -> None:
    rows = draw_rows(40)
    with pytest.raises(StudyError, match="accuracy_min"):
        fit(
            rows,
            "logistic",
            linkage=dpl.Matching(sp.csr_array(np.eye(40)), accuracy_min=0.4),
            unit=dpl.PrivacyUnit(linkage_change=0.0, displaced_links=0),
        )
