"""Several outcomes and levels in one release, from the study to reports."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.cli.main import app
from dplinked.errors import LedgerError, StudyError
from dplinked.privacy import noise
from dplinked.privacy.calibration import privacy_mu
from dplinked.release.releases import read_release
from dplinked.study.columns import named_columns
from dplinked.study.origins import check_origins
from dplinked.study.several import split_outcomes
from dplinked.sums.engine import open_source

N = 12_000
OUTCOMES = "cbind(y, v) ~ x + w"
MODEL: dict[str, Any] = {
    "bounds": {"x": (-4.0, 4.0), "w": (0.0, 1.0), "y": (-20.0, 20.0), "v": (-50.0, 50.0)},
    "levels": {"g": ["a", "b", "c"]},
    "linkage": dpl.ELE(0.9, block="b"),
    "epsilon": 4.0,
    "delta": 1e-6,
}
SLOPES = {"a": 1.0, "b": 1.5, "c": 0.5}


def make_rows(seed: int = 1, n: int = N, accuracy: float = 0.9) -> dict[str, Any]:
    """Rows whose outcomes go together with one link, in levels of different slopes for y."""
    rng = np.random.default_rng(seed)
    x, w, g = rng.normal(size=n), rng.random(n), rng.choice(["a", "b", "c", "other"], n, p=[0.4, 0.3, 0.2, 0.1])
    slope = np.array([SLOPES.get(level, 9.0) for level in g])
    outcomes = {"y": 1.0 + slope * x + rng.normal(size=n), "v": 3.0 - 2.0 * x + 4.0 * w + 2.0 * rng.normal(size=n)}
    block, order = np.arange(n) // 20, np.arange(n)
    wrong = np.flatnonzero(rng.random(n) > accuracy)
    for rows in np.split(wrong, np.flatnonzero(np.diff(block[wrong])) + 1):
        order[rows] = np.roll(rows, 1)
    return {"x": x, "w": w, "g": g, "b": block, **{name: values[order] for name, values in outcomes.items()}}


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        noise, "add_gaussian", lambda values, scale: np.asarray(values, float) + 0.0 * np.asarray(scale)
    )


@pytest.fixture(scope="module")
def outcomes() -> dpl.Releases:
    return dpl.fit(make_rows(), OUTCOMES, **MODEL)


@pytest.fixture(scope="module")
def levels() -> dpl.Releases:
    return dpl.fit(make_rows(), "y ~ x", by="g", **MODEL)


# --- what is declared -----------------------------------------------------------------------------------


def test_outcomes_are_read_from_the_formula() -> None:
    assert split_outcomes("y ~ x") == {}
    assert split_outcomes(" cbind( y , log(`a, b`) , `c d`) ~ x") == {
        "y": "y ~ x",
        "log(`a, b`)": "log(`a, b`) ~ x",
        "c d": "`c d` ~ x",
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"formula": "cbind(y) ~ x"}, "takes from two to"),
        ({"formula": "cbind(y, y) ~ x"}, "names an outcome twice"),
        ({"formula": "cbind(y, x) ~ x"}, "is on a linked row"),
        ({"formula": "cbind(y, v) ~ x", "where": "v > 0"}, "is on a linked row|outcome"),
        ({"formula": "cbind(y, v) ~ 1"}, "need a regressor"),
        ({"formula": OUTCOMES, "by": "g"}, "do not go together"),
        ({"formula": OUTCOMES, "method": "ngd"}, "belongs to method='ssp'"),
        ({"formula": OUTCOMES, "calibration": "paper"}, "belongs to method='ssp'"),
        ({"formula": OUTCOMES, "family": "poisson"}, "belongs to method='ssp'"),
        ({"formula": OUTCOMES, "typical": {"nobody": (0, 1)}}, "typical names"),
        ({"formula": "y ~ x", "by": "h"}, "must name a column with declared levels"),
        ({"formula": "y ~ x", "by": "w"}, "must name a column with declared levels"),
        ({"formula": "y ~ x + C(g)", "by": "g"}, "is the same in all rows of a level"),
        ({"formula": "y ~ x", "by": "g", "missing": "fill"}, "by belongs to"),
        ({"formula": "y ~ x", "by": "g", "ridge": 1.0}, "by and ridge do not go together"),
        ({"formula": "y ~ x", "by": "g", "method": "ngd"}, "belongs to method='ssp'"),
        ({"formula": "y ~ x", "by": 3}, "by must be a text"),
    ],
)
def test_what_makes_no_sense_is_refused_before_data_is_opened(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        dpl.fit(Path("nowhere.parquet"), **{**MODEL, **asked})


def test_outcomes_come_from_one_file() -> None:
    study = dpl.Study(formula=OUTCOMES, **MODEL)
    check_origins(study, study.prepare()[0], {"y": "right", "v": "right", "x": "left", "w": "left"})
    with pytest.raises(StudyError, match="outcomes come from both linked files"):
        check_origins(study, study.prepare()[0], {"y": "right", "v": "left", "x": "left"})


def test_levels_come_from_the_regressors_file() -> None:
    study = dpl.Study(formula="y ~ x", by="g", **MODEL)
    with pytest.raises(StudyError, match="another file than the regressors"):
        check_origins(study, study.prepare()[0], {"y": "right", "x": "left", "g": "right"})


def test_small_files_are_refused_by_levels_and_fitted_in_one_stage_by_outcomes() -> None:
    rows = make_rows(n=200)
    with pytest.raises(StudyError, match="need a second stage"):
        dpl.fit(rows, "y ~ x", by="g", **{**MODEL, "epsilon": 0.1})
    found = dpl.fit(rows, OUTCOMES, **{**MODEL, "epsilon": 0.1})
    assert all(one.has_intervals for one in found.values())


# --- what is found --------------------------------------------------------------------------------------


def test_without_noise_outcomes_are_those_of_fits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    rows = make_rows(2)
    together = dpl.fit(rows, OUTCOMES, **{**MODEL, "linkage": dpl.Exact()})
    for name, one in together.items():
        alone = dpl.fit(rows, f"{name} ~ x + w", **{**MODEL, "linkage": dpl.Exact()})
        for key, value in one.coef.items():
            assert value == pytest.approx(alone.coef[key], abs=0.3 * alone.std_err[key])


def test_missing_outcomes_are_left_out_of_their_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    rows = make_rows(3)
    rows["v"][np.random.default_rng(3).random(N) < 0.5] = np.nan
    found = dpl.fit(rows, OUTCOMES, **MODEL)
    assert found["v"].coef["x"] == pytest.approx(-2.0, abs=0.15)
    assert found["v"].coef["w"] == pytest.approx(4.0, abs=0.3)
    assert found["y"].coef["w"] == pytest.approx(0.0, abs=0.3)


def test_levels_have_lines_and_sizes_of_their_own(levels: dpl.Releases) -> None:
    rows = make_rows()
    assert list(levels) == ["a", "b", "c"]
    for level, one in levels.items():
        assert abs(one.coef["x"] - SLOPES[level]) < 5.0 * one.std_err["x"] < 0.5
        number, low, high = one.subgroup
        assert low <= number <= high
        assert abs(number - (rows["g"] == level).sum()) < 1.5 * (high - low)


def test_one_level_costs_what_all_do(levels: dpl.Releases) -> None:
    assert levels.privacy.mu == pytest.approx(privacy_mu(4.0, 1e-6))
    assert all(one.privacy == levels.privacy for one in levels.values())


def test_weights_and_conditions_hold_in_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    rows = make_rows(4)
    rows["y"] = rows["y"] + np.where(rows["w"] > 0.5, 2.0 * rows["x"], 0.0)
    found = dpl.fit(rows, "y ~ x", by="g", where="w > 0.5", weights="w", **{**MODEL, "linkage": dpl.Exact()})
    for level, one in found.items():
        kept = (rows["g"] == level) & (rows["w"] > 0.5)
        line = np.polyfit(rows["x"][kept], rows["y"][kept], 1, w=np.sqrt(rows["w"][kept]))
        assert one.coef["x"] == pytest.approx(line[0], abs=0.1)
        assert one.subgroup[0] == pytest.approx(kept.sum(), abs=1.0)


@pytest.mark.parametrize("way", ["parquet", "query"])
@pytest.mark.parametrize("asked", [{"formula": OUTCOMES}, {"formula": "y ~ x", "by": "g"}], ids=["outcomes", "levels"])
def test_engines_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str, asked: dict[str, Any]) -> None:
    """Without noise, and where no link is wrong, so that there are no partners to be drawn."""
    quiet(monkeypatch)
    rows, path = make_rows(5, n=6000), tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows), path)
    model = {**MODEL, **asked, "linkage": dpl.Exact()}
    source = path if way == "parquet" else dpl.Query(f"select * from '{path}'")
    here, there = dpl.fit(rows, **model), dpl.fit(source, **model)
    for name in here:
        assert there[name].coef == pytest.approx(here[name].coef, rel=1e-6, abs=1e-8)


@pytest.mark.slow
def test_spark_agrees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session: Any) -> None:
    quiet(monkeypatch)
    rows, path = make_rows(5, n=3000), tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows), path)
    for asked in ({"formula": OUTCOMES}, {"formula": "y ~ x", "by": "g"}):
        model = {**MODEL, **asked, "linkage": dpl.Exact()}
        here, there = dpl.fit(rows, **model), dpl.fit(session.read.parquet(str(path)), **model)
        for name in here:
            assert there[name].coef == pytest.approx(here[name].coef, rel=1e-6, abs=1e-8)


def test_persons_of_several_rows_have_levels_and_outcomes() -> None:
    rows = make_rows(6)
    rows["person"] = np.arange(N) // 2
    unit = dpl.PrivacyUnit(rows=2, id="person")
    for asked in ({"formula": OUTCOMES}, {"formula": "y ~ x", "by": "g"}):
        found = dpl.fit(rows, **{**MODEL, **asked, "linkage": dpl.Exact(), "unit": unit})
        assert all(one.has_intervals for one in found.values())


def test_clusters_and_goodness_have_levels_and_outcomes() -> None:
    rows = make_rows(7)
    rows["school"] = np.arange(N) // 30
    for asked in ({"formula": OUTCOMES}, {"formula": "y ~ x", "by": "g"}):
        found = dpl.fit(rows, cluster="school", goodness=True, **{**MODEL, **asked})
        assert all(one.released.variance.route == "cluster" for one in found.values())
        assert all(one.released.goodness is not None for one in found.values())


# --- across results -------------------------------------------------------------------------------------


def test_tests_across_results(outcomes: dpl.Releases, levels: dpl.Releases) -> None:
    assert levels.compare("x").p_value < 1e-6
    assert levels.compare().degrees == 2
    assert levels.test("b: x - a: x = 0.5, c: x - a: x = -0.5").p_value > 1e-4
    assert outcomes.test("y: x = v: x").p_value < 1e-6
    assert outcomes.test(["y: w = 0"]).statistic == pytest.approx(outcomes["y"].test("w = 0").statistic, rel=1e-6)
    for wrong in ("x = 0", "z: x = 0", "y: x = y: x"):
        with pytest.raises(StudyError):
            outcomes.test(wrong)
    with pytest.raises(StudyError, match="no coefficient"):
        levels.compare("nothing")


def test_outcomes_that_are_the_same_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in common may be anything: the bound holds for outcomes that are one and the same, and for opposite ones."""
    rng = np.random.default_rng(8)
    for sign in (1.0, -1.0):
        rejected = 0
        for seed in range(30):
            rows = make_rows(100 + seed, n=5000)
            rows["v"] = sign * (rows["y"] - 1.0)
            monkeypatch.setattr(
                noise, "add_gaussian", lambda values, scale: values + scale * rng.normal(size=np.shape(values))
            )
            found = dpl.fit(rows, "cbind(y, v) ~ x", **MODEL)
            rejected += found.test(f"y: x - {sign!r}*v: x = 0").p_value < 0.05
        assert rejected <= 6  # of 30 at 5 %: beyond this with probability .0003, and the test is on the safe side


# --- reports, files, ledger, plans ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["outcomes", "levels"])
def test_reports_show_all_results(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    releases = request.getfixturevalue(kind)
    for text in (releases.summary(), releases.to_markdown(), releases.to_html(), releases._repr_html_()):
        assert all(name in text for name in releases)
        assert len(re.findall(r"\(4, .{0,60}?\)-differentially private", text)) >= 1
    assert ("Are slopes the same in all levels of g?" in releases.summary()) == (kind == "levels")
    listed = list(csv.DictReader(io.StringIO(releases.to_csv())))
    assert len(listed) == sum(len(one.coef) for one in releases.values())
    assert releases.to_latex().count("\\begin{table}") == len(releases)
    for path, write in (("a.html", releases.to_html), ("a.csv", releases.to_csv), ("a.tex", releases.to_latex)):
        write(tmp_path / path)
        assert (tmp_path / path).stat().st_size > 100


@pytest.mark.parametrize("kind", ["outcomes", "levels"])
def test_files_hold_all_results(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    releases = request.getfixturevalue(kind)
    releases.save(tmp_path / "several.json")
    again = dpl.Releases.load(tmp_path / "several.json")
    assert again.to_json() == releases.to_json()
    assert again.summary() == releases.summary()
    assert isinstance(read_release(releases.to_json()), dpl.Releases)
    one = next(iter(releases.values()))
    assert isinstance(read_release(one.to_json()), dpl.Release)
    with pytest.raises(StudyError):
        dpl.Release.load(tmp_path / "several.json")
    with pytest.raises(StudyError):
        dpl.Releases.from_json(one.to_json())
    with pytest.raises(KeyError):
        releases["nobody"]


def test_without_intervals_there_are_no_tests() -> None:
    for asked in ({"formula": OUTCOMES}, {"formula": "y ~ x", "by": "g"}):
        found = dpl.fit(make_rows(13), intervals=False, **{**MODEL, **asked})
        assert "noise s.e." in found.summary()
        assert "Are slopes the same" not in found.to_html()
        with pytest.raises(StudyError, match="paid for no intervals"):
            found.compare()


def test_each_result_answers_for_itself(outcomes: dpl.Releases) -> None:
    one = outcomes["v"]
    assert list(one.submodel("v ~ x").coef) == ["Intercept", "x"]
    mean, low, high = one.predict({"x": [0.0], "w": [0.5]})[0]
    assert low < mean < high
    assert one.formula.startswith("v ~")


@pytest.mark.parametrize("asked", [{"formula": OUTCOMES}, {"formula": "y ~ x", "by": "g"}], ids=["outcomes", "levels"])
def test_one_charge_for_all_results(tmp_path: Path, asked: dict[str, Any]) -> None:
    path, url = tmp_path / "rows.parquet", tmp_path / "budget.db"
    pq.write_table(pa.table(make_rows(9)), path)
    ledger = dpl.Ledger.create(url, "people", epsilon=10.0, delta=1e-6)
    ledger.register(path, linkage=MODEL["linkage"])
    model = {**MODEL, **asked, "ledger": url, "population": "people"}
    first = dpl.fit(path, **model)
    with pytest.warns(UserWarning, match="nothing was charged"):
        second = dpl.fit(path, **model)
    assert first.to_json() == second.to_json()
    assert first.ledger is not None
    assert all(one.ledger == first.ledger for one in first.values())
    assert [event.kind for event in ledger.events()].count("charge") == 1
    with pytest.raises((StudyError, LedgerError, dpl.BudgetError)):
        dpl.fit(path, **{**model, "epsilon": 9.9})


def test_plans(outcomes: dpl.Releases, levels: dpl.Releases) -> None:
    """What is expected is near what was found: the model is that of plans but for R² and how far columns fill their bounds."""
    typical = {"x": (-1.0, 1.0), "w": (0.15, 0.85), "y": (-1.0, 3.0), "v": (1.0, 9.0)}
    model = {**MODEL, "typical": typical}
    together = dpl.plan(N, OUTCOMES, half_width={"v: x": 0.2}, **model)
    alone = dpl.plan(N, "v ~ x + w", **{**model, "typical": {name: typical[name] for name in "xwv"}})
    both = {row.name: row for row in together.rows}
    assert {"y: x", "v: w"} <= set(both)
    single = {row.name: row for row in alone.rows}
    assert (
        0.5 < both["v: x"].privacy / single["x"].privacy < 2.0
    )  # clips follow the budget, so that it need not be larger
    assert together.needed[0][0] == "v: x"
    with pytest.raises(StudyError, match="no coefficient"):
        dpl.plan(N, OUTCOMES, half_width={"v: y": 0.2}, **model)
    model["typical"] = {name: typical[name] for name in "xy"}
    by = dpl.plan(N, "y ~ x", by="g", **model)
    one = dpl.plan(N, "y ~ x", where="g == 'a'", subgroup=1 / 3, **model)
    ratio = (
        by.rows[1].privacy / one.rows[1].privacy
    )  # of one result both sides of the line are looked at, and clips are closer
    assert 1.0 <= ratio < 1.5
    same = [
        dpl.plan(N, "y ~ x", errors="skewed", **kind, **model)
        for kind in ({"by": "g"}, {"where": "g == 'a'", "subgroup": 1 / 3})
    ]
    assert same[0].rows[1].privacy == pytest.approx(same[1].rows[1].privacy, rel=0.2)
    assert "one level of g" in by.assumptions
    assert 0.4 < levels["a"].error_parts["x"]["privacy"] / by.rows[1].privacy < 2.5
    with pytest.raises(StudyError, match="planned for one result"):
        dpl.plan_split(dpl.Study(formula=OUTCOMES, **MODEL), N, [100])


def test_checks_look_at_all_results() -> None:
    from dplinked.check import check_study

    rows = make_rows()
    found = check_study(dpl.Study(formula=OUTCOMES, **MODEL), rows)
    assert len(found.findings) == len(set(found.findings))
    assert {seen.name for seen in found.numbers} == {"x", "w", "y", "v"}
    texts = [finding.text for finding in check_study(dpl.Study(formula="y ~ x", by="g", **MODEL), rows).findings]
    assert any("rows of no declared level" in text for text in texts)
    assert any("fulfil no condition: 'other'" in text for text in texts)
    without = check_study(dpl.Study(formula=OUTCOMES, **MODEL), {name: rows[name] for name in ("x", "w", "y", "b")})
    assert without.verdict == "not usable"


STUDY = """
[data]
path = "rows.parquet"
[model]
formula = "{formula}"
{by}
[bounds]
x = [-4, 4]
w = [0, 1]
y = [-20, 20]
v = [-50, 50]
[levels]
g = ["a", "b", "c"]
[linkage]
block = "b"
accuracy = 0.9
[privacy]
epsilon = 4.0
delta = 1e-6
"""


@pytest.mark.parametrize(("formula", "by"), [(OUTCOMES, ""), ("y ~ x", 'by = "g"')], ids=["outcomes", "levels"])
def test_the_command_line(tmp_path: Path, formula: str, by: str) -> None:
    from typer.testing import CliRunner

    pq.write_table(pa.table(make_rows(10)), tmp_path / "rows.parquet")
    study, out = tmp_path / "study.toml", tmp_path / "release.json"
    study.write_text(STUDY.format(formula=formula, by=by), encoding="utf-8")

    def run(*arguments: object) -> str:
        done = CliRunner().invoke(app, [*map(str, arguments)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "coefficient" in run("plan", study, "--rows", N, "--epsilon", 4)
    assert "Check of the data" in CliRunner().invoke(app, ["check", str(study)]).output
    shown = run("fit", study, "--out", out)
    releases = dpl.Releases.load(out)
    assert all(name in shown for name in releases)
    assert run("report", out, "--markdown").startswith("# Private linear regressions")
    for ending in ("html", "tex", "csv", "txt", "md"):
        run("report", out, "--out", tmp_path / f"report.{ending}")
    done = CliRunner().invoke(app, ["report", str(out), "--board"])
    assert isinstance(done.exception, StudyError)


def test_the_columns_of_a_study_are_known_from_its_texts() -> None:
    assert named_columns(OUTCOMES, []) == (["y", "x", "w", "v"], [])
    assert named_columns("y ~ x", ["g"], by="g") == (["y", "x"], ["g"])
    assert named_columns("y ~ x", ["g"], strata="g") == (["y", "x"], ["g"])


def test_sources_are_opened_once() -> None:
    """All outcomes are read from one open source."""
    source = open_source(make_rows(11))
    assert isinstance(dpl.fit(source, OUTCOMES, **MODEL), dpl.Releases)


def test_the_studio_makes_and_keeps_all_results(tmp_path: Path) -> None:
    pytest.importorskip("shiny")
    from dplinked.studio.desk import Desk

    pq.write_table(pa.table(make_rows(12)), tmp_path / "rows.parquet")
    (tmp_path / "study.toml").write_text(STUDY.format(formula="y ~ x", by='by = "g"'), encoding="utf-8")
    study = dpl.Study.from_toml(tmp_path / "study.toml")
    made = Desk(tmp_path)._make(study, tmp_path / "rows.parquet", None, False, lambda title, done, total: None)
    assert dpl.Releases.load(tmp_path / str(made.file)).to_json() == made.release.to_json()
    assert "g = b" in made.release.to_html()


def test_several_results_are_frames_that_name_the_result(outcomes: dpl.Releases) -> None:
    tidy, glance = outcomes.tidy(), outcomes.glance()
    assert list(tidy["outcome"]) == ["y"] * 3 + ["v"] * 3
    assert list(tidy["estimate"]) == [value for one in outcomes.values() for value in one.coef.values()]
    assert list(glance["outcome"]) == ["y", "v"]
    assert list(glance["epsilon"]) == [4.0, 4.0]
    with pytest.raises(StudyError, match=r"releases\['v'\]\.for_the_board"):
        outcomes.for_the_board()


def test_budgets_name_levels_and_conditions(tmp_path: Path) -> None:
    """Two lines of one formula, of all rows and of some, are told apart where they were paid for."""
    rows, options = make_rows(), {**MODEL, "ledger": tmp_path / "l.db", "population": "p"}
    ledger = dpl.Ledger.create(tmp_path / "l.db", "p", epsilon=50.0, delta=1e-4)
    ledger.register(rows, linkage=MODEL["linkage"])
    for asked in ({}, {"by": "g"}, {"where": "w > 0.5"}):
        dpl.fit(rows, "y ~ x", **asked, **options)
    from dplinked.ledger.account import list_spending

    assert [one.name for one in list_spending(ledger.events())] == ["y ~ x", "y ~ x, by g", "y ~ x, where w > 0.5"]
