"""The steward's check foresees what clipping does to coefficients, and says which bound does it."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.check import Check, ClippingBias, check_study, foresee_clipping
from dplinked.not_private.simulate.households import mislink
from dplinked.privacy import noise
from dplinked.simulate import linked_households
from dplinked.study.study import Study
from dplinked.sums.engine import open_source

WIDE = {"consumption": (-1e4, 2e5), "income": (0, 2e5)}
LINKAGE = dpl.ELE(accuracy=0.91, block="state")


@pytest.fixture(scope="module")
def households() -> dict[str, Any]:
    return linked_households(4_000, seed=3)


def declare(bounds: dict[str, Any], formula: str = "consumption ~ income", **settings: Any) -> Study:
    return Study(**{"formula": formula, "bounds": bounds, "linkage": LINKAGE, "epsilon": 1, "delta": 1e-6} | settings)


def foresee(study: Study, data: Any) -> ClippingBias | None:
    rows = open_source(data)
    return foresee_clipping(study, rows, {name: rows.summarise_column(name, *study.bounds[name]) for name in WIDE})


def test_nothing_is_foreseen_where_nothing_is_clipped(households: dict[str, Any]) -> None:
    assert foresee(declare(WIDE), households) is None
    assert not any("Clipping moves" in one.text for one in check_study(declare(WIDE), households).findings)


def test_the_bound_that_matters_comes_first(households: dict[str, Any]) -> None:
    """A response that is clipped often moves the slope down, a regressor that is clipped a little moves it up less."""
    bounds = {"consumption": (-1e4, 40_000), "income": (0, 120_000)}
    found = foresee(declare(bounds), households)
    assert found is not None
    assert list(found.by_bound) == [("consumption", 1), ("income", 1)]
    (first, second), slope = found.by_bound.values(), 1
    assert first[slope] < -0.01 < 0.0 < second[slope] < 0.01
    assert found.bias == pytest.approx(first + second, rel=0.2)
    said = [one.text for one in check_study(declare(bounds), households).findings if not one.fault]
    told = next(text for text in said if text.startswith("consumption: clipping at 40000"))
    assert "Widen this bound first" in told
    assert f"{first[slope]:+.3g} in income" in told
    assert not any("Widen" in text for text in said if text != told)


@pytest.mark.parametrize(
    ("missing", "said"), [("drop", "left out by the second stage, else replaced by"), ("fill", "(replaced by")]
)
def test_the_steward_is_told_what_becomes_of_missing_cells(households: dict[str, Any], missing: str, said: str) -> None:
    levels = np.array(households["region"], dtype=object)
    levels[:40] = None
    income = np.where(np.arange(len(levels)) < 400, np.nan, households["income"])
    data = {**households, "region": levels, "income": income}
    study = declare(WIDE, "consumption ~ income + C(region)", levels={"region": ["north", "south"]}, missing=missing)
    told = [one.text for one in check_study(study, data).findings]
    assert any(text.startswith("income: 10.00 % of the cells are empty") and said in text for text in told)
    assert any("40 rows without a level are left out" in text for text in told) == (missing == "drop")
    assert any("40 rows without a level count as 'north'" in text for text in told) == (missing == "fill")


def test_fill_values_stay_where_bounds_are_widened(households: dict[str, Any]) -> None:
    """A missing income is filled with the middle of its declared bounds in both solutions, so it adds nothing to what clipping does."""
    bounds = {"consumption": (-1e4, 40_000), "income": (0, 150_000)}
    missing = households | {"income": np.where(np.arange(4_000) % 20 == 0, np.nan, households["income"])}
    plain = foresee(declare(bounds, fill={"income": 75_000}), missing)
    default = foresee(declare(bounds), missing)
    assert plain is not None
    assert default is not None
    assert default.bias == pytest.approx(plain.bias)


@pytest.mark.parametrize("settings", [{"method": "ngd"}, {"calibration": "paper"}, {"linkage": dpl.Exact()}])
def test_every_method_is_foreseen(households: dict[str, Any], settings: dict[str, Any]) -> None:
    found = foresee(declare({"consumption": (-1e4, 40_000), "income": (0, 2e5)}, **settings), households)
    assert found is not None
    assert found.bias[1] < -0.01


def test_engines_foresee_the_same(households: dict[str, Any], tmp_path) -> None:
    pytest.importorskip("duckdb")
    path, study = tmp_path / "rows.parquet", declare({"consumption": (-1e4, 40_000), "income": (0, 90_000)})
    pq.write_table(pa.table(households), path)
    tables, queried = foresee(study, households), foresee(study, dpl.Query(f"select * from '{path}'"))
    assert tables is not None
    assert queried is not None
    assert queried.bias == pytest.approx(tables.bias, rel=0.01)  # middles of an engine are its own
    assert list(queried.by_bound) == list(tables.by_bound)


def test_a_bound_that_the_formula_needs_is_not_foreseen(households: dict[str, Any]) -> None:
    zero = households | {"income": np.where(np.arange(4_000) < 40, 0.0, households["income"])}
    study = declare({"consumption": (-1e4, 2e5), "income": (1_000, 2e5)}, "consumption ~ log(income)")
    found = foresee(study, zero)
    assert found is not None
    assert found.unknown == [("income", 0)]
    assert any("cannot be foreseen" in one.text for one in check_study(study, zero).findings)


def draw(cell: str, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Linked rows, bounds that clip 2 % of the cells of a column, and bounds that clip none."""
    n = 20_000
    clipped, shape = cell.split(", ")
    x = rng.normal(50_000, 12_000, n) if "normal" in shape.split() else rng.lognormal(10.2, 0.5, n)
    errors = rng.exponential(size=n) - 1.0 if "skewed" in shape else rng.normal(size=n)
    y = 6_000 + 0.55 * x + (15_000 if "weak" in shape else 6_000) * errors
    blocks = rng.integers(0, 8, n)
    rows = {"x": x, "y": y[mislink(blocks, np.full(8, 0.91), rng)], "state": blocks}
    wide = {name: (float(rows[name].min()) - 1.0, float(rows[name].max()) + 1.0) for name in "xy"}
    shares = (0.01, 0.99) if "normal" in shape.split() else (0.0, 0.98)
    tight = wide | {clipped: tuple(np.quantile(rows[clipped], shares).tolist())}
    return rows, tight, wide


@pytest.mark.parametrize(
    "cell",
    ["y, lognormal", "y, lognormal skewed", "y, lognormal weak", "y, normal weak", "x, lognormal", "x, lognormal weak"],
)
def test_the_foreseen_bias_is_the_one_that_occurs(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2 % clipped, within a third of the mean difference between releases of the same rows with tight and with wide bounds."""
    rng = np.random.default_rng(11)
    monkeypatch.setattr(
        noise, "add_gaussian", lambda v, s: np.asarray(v) + np.asarray(s) * rng.normal(size=np.shape(v))
    )
    foreseen, occurred = [], []
    for _ in range(8):
        rows, tight, wide = draw(cell, rng)
        settings: dict[str, Any] = {"linkage": LINKAGE, "epsilon": 8.0, "delta": 1e-6}
        released = [dpl.fit(rows, "y ~ x", bounds=bounds, **settings).coef["x"] for bounds in (tight, wide)]
        occurred.append(released[0] - released[1])
        source = open_source(rows)
        facts = {name: source.summarise_column(name, *tight[name]) for name in "xy"}
        found = foresee_clipping(Study(formula="y ~ x", bounds=tight, **settings), source, facts)
        assert found is not None
        foreseen.append(found.bias[1])
    assert abs(np.mean(foreseen) - np.mean(occurred)) < abs(np.mean(occurred)) / 3


# --- events and counts -------------------------------------------------------------------------------


def outcomes(**columns: Any) -> dict[str, Any]:
    n = 400
    return {"x": np.linspace(-0.5, 1.5, n), "b": np.arange(n) // 20, **columns}


def findings(data: dict[str, Any], **declared: Any) -> list[str]:
    shared = {"linkage": dpl.ELE(0.9, block="b"), "epsilon": 1, "delta": 1e-6}
    return [one.text for one in check_study(Study(**shared, **declared), data).findings]


EVENTS: dict[str, Any] = {"formula": "died ~ x", "family": "logistic", "bounds": {"x": (0, 1)}, "levels": {"died": ["no", "yes"]}}  # fmt: skip


def test_events_are_counted_and_odd_levels_named() -> None:
    told = findings(outcomes(died=["yes"] * 30 + ["No"] * 10 + ["no"] * 360), **EVENTS)
    assert "died: 30 rows (7.50 %) with 'yes', the level that is modelled." in told
    assert any("10 rows have a level that is not declared and count as 'no': 'No' (10 rows" in one for one in told)
    assert any("Clipping moves coefficients by about" in one and "in x" in one for one in told)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("drop", "died: 40 rows without a level are left out. If that means 'no', declare missing='fill'."),
        ("fill", "died: 40 rows without a level count as 'no'."),
    ],
)
def test_events_without_a_cell_are_said(missing: str, said: str) -> None:
    told = findings(outcomes(died=["yes"] * 30 + [None] * 40 + ["no"] * 330), missing=missing, **EVENTS)
    assert said in told


def draw_outcomes(cell: str, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Linked outcomes, what is declared of them such that few cells are clipped, and such that none is."""
    n = 20_000
    x, blocks = rng.exponential(0.5, n), np.arange(n) // 25
    if cell == "counts":
        y = rng.poisson(rng.gamma(2.0, 0.5, n) * 1.5 * np.exp(0.4 * np.minimum(x, 2.0)))
    else:
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(1.0 - 1.5 * x))).astype(np.int64)
    rows = {
        "x": np.minimum(x, 2.0) if cell == "counts" else x,
        "y": y[mislink(blocks, np.full(800, 0.9), rng)],
        "b": blocks,
    }
    if cell == "counts":
        shared = {"family": "poisson", "formula": "y ~ x"}
        return rows, {**shared, "bounds": {"x": (0, 2), "y": (0, 6)}}, {**shared, "bounds": {"x": (0, 2), "y": (0, 40)}}
    shared = {"family": "logistic", "formula": "y ~ x", "levels": {"y": [0, 1]}}
    return rows, {**shared, "bounds": {"x": (0, 1.5)}}, {**shared, "bounds": {"x": (0, float(x.max()))}}


@pytest.mark.parametrize("cell", ["counts", "events"])
def test_what_clipping_does_to_curves_is_foreseen(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of counts that vary more than by Poisson's law, and of a regressor with a long tail: within a third of what occurs."""
    rng = np.random.default_rng(12)
    monkeypatch.setattr(
        noise, "add_gaussian", lambda v, s: np.asarray(v) + np.asarray(s) * rng.normal(size=np.shape(v))
    )
    settings: dict[str, Any] = {"linkage": dpl.ELE(0.9, block="b"), "epsilon": 8.0, "delta": 1e-6}
    foreseen, occurred = [], []
    for _ in range(4):
        rows, tight, wide = draw_outcomes(cell, rng)
        released = [dpl.fit(rows, **declared, **settings).coef["x"] for declared in (tight, wide)]
        occurred.append(released[0] - released[1])
        source, study = open_source(rows), Study(**tight, **settings)
        facts = {name: source.summarise_column(name, *ends) for name, ends in study.prepare()[0].bounds.items()}
        found = foresee_clipping(study, source, facts)
        assert found is not None
        foreseen.append(found.bias[1])
    assert abs(np.mean(occurred)) > 0.02
    assert abs(np.mean(foreseen) - np.mean(occurred)) < abs(np.mean(occurred)) / 3


@pytest.mark.parametrize("cells", [["no"] * 400, ["yes"] * 400, ["Yes"] * 400])
def test_an_outcome_that_never_differs_is_said(cells: list[str]) -> None:
    assert any("is the same on all rows" in one for one in findings(outcomes(died=cells), **EVENTS))


@pytest.mark.parametrize(("largest", "said"), [(3, True), (60, False)])
def test_counts_above_the_largest_are_said(largest: int, said: bool) -> None:
    declared = {"formula": "visits ~ x", "family": "poisson", "exposure": "years"}
    bounds = {"x": (-1, 2), "visits": (0, largest), "years": (0.5, 2)}
    told = findings(outcomes(visits=np.arange(400) % 50, years=np.ones(400)), bounds=bounds, **declared)
    assert any("of the counts lie above the largest" in one for one in told) is said
    assert not any(one.startswith("years:") for one in told)
    assert not any("not foreseen" in one for one in told)


# --- verdicts ----------------------------------------------------------------------------------------

PEOPLE = 1_000
PLAIN: dict[str, Any] = {
    "x": [f"{k % 500 + 0.25:.2f}" for k in range(PEOPLE)],
    "y": [f"{2 * (k % 500) + k % 7:.2f}" for k in range(PEOPLE)],
    "g": ["a" if k % 2 else "b" for k in range(PEOPLE)],
    "k": [f"block {k % 5}" for k in range(PEOPLE)],
}
DECLARED: dict[str, Any] = {
    "formula": "y ~ x + C(g)", "bounds": {"x": (0, 500), "y": (0, 1100)}, "levels": {"g": ["a", "b"]},
    "linkage": dpl.ELE(0.9, block="k"), "epsilon": 1, "delta": 1e-6,
}  # fmt: skip


def seen_in(tmp_path: Path, x: Any = None, options: Any = None, **declared: Any) -> Check:
    """Check a CSV file whose column x is written by a function."""
    columns = PLAIN | ({} if x is None else {"x": [x(float(cell), k) for k, cell in enumerate(PLAIN["x"])]})
    if any(re.search(r",\d\d$", cell) for cell in columns["x"]):  # all columns have the same decimal mark
        columns = columns | {"y": [cell.replace(".", ",") for cell in columns["y"]]}
    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return check_study(Study(**(DECLARED | declared)), dpl.File(tmp_path / "rows.csv", **(options or {})))


def test_a_plain_file_is_ready(tmp_path: Path) -> None:
    check = seen_in(tmp_path)
    assert check.verdict == "ready", check.summary()
    assert "Check of the data: ready" in check.summary()
    page = check.to_html()
    assert page is not None
    assert "FOR THE STEWARD ONLY, NOT FOR PUBLICATION" in page
    assert repr(check) == "<Check 'y ~ x + C(g)': ready>"


TEXTS = {
    "thousands": (lambda v, k: f"{v + 1000:,.2f}", "commas between thousands in 1,000 rows", {"thousands": ","}),
    "decimal commas": (lambda v, k: f"{v:.2f}".replace(".", ","), "decimal commas in 1,000 rows", {"decimal": ","}),
    "both": (lambda v, k: f"{v + 1000:,.2f}".translate({44: 46, 46: 44}), "points between thousands in 1,000 rows", {"decimal": ",", "thousands": "."}),
    "euros": (lambda v, k: f"€ {v:.2f}", "a sign of a currency in 1,000 rows", {}),
    "dollars": (lambda v, k: f"${v:,.2f}", "a sign of a currency in 1,000 rows", {}),
    "percent": (lambda v, k: f"{v:.1f} %", "a percent sign in 1,000 rows", {}),
    "dates": (lambda v, k: f"{k % 28 + 1}.{k % 12 + 1}.19{k % 90 + 10}", "dates in 1,000 rows", {}),
    "words": (lambda v, k: "low" if v < 250 else "high", "words in 1,000 rows", {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_where_numbers_are_declared_make_data_unusable(tmp_path: Path, kind: str) -> None:
    """The likely reason is said, and what to declare; with that declared, the data is usable."""
    write, said, options = TEXTS[kind]
    check = seen_in(tmp_path, write)
    assert check.verdict == "not usable"
    assert any(one.fault and said in one.text for one in check.findings), check.summary()
    assert dict(check.advice) == options
    if options:
        bounds = {"x": (0, 1500), "y": (0, 1100)}
        assert seen_in(tmp_path, write, options, bounds=bounds).verdict == "ready"


@pytest.mark.parametrize(
    ("write", "declared", "verdict", "said"),
    [
        (lambda v, k: "" if k % 10 == 0 else f"{v}", {}, "look again", "x: 10.00 % of the cells are empty"),
        (lambda v, k: "NA" if k % 50 == 0 else f"{v}", {}, "ready", "a word for a missing value in 20 rows"),
        (lambda v, k: "n/a" if k % 10 == 0 else f"{v}", {}, "look again", "a word for a missing value in 100 rows"),
        (lambda v, k: "SICK" if k == 5 else f"{v}", {}, "look again", "words in 1 row (like 'SICK')"),
        (None, {"bounds": {"x": (0, 450), "y": (0, 1100)}}, "look again", "x: 10.00 % above 450"),
        (None, {"bounds": {"x": (0, 100), "y": (0, 1100)}}, "not usable", "x: 80.00 % above 100"),
        (None, {"bounds": {"x": (0, 10**6), "y": (0, 1100)}}, "look again", "Are both in the same unit?"),
        (lambda v, k: "7", {}, "look again", "all cells are 7"),
        (None, {"levels": {"g": ["A", "b"]}}, "not usable", "'a' (500 rows; Did you mean 'A'?)"),
        (None, {"levels": {"g": ["a", "b", "c"]}}, "look again", "declared, but on no row: 'c'"),
        (None, {"linkage": dpl.ELE({"block 0": 0.9}, block="k")}, "not usable", "800 rows have a null key or one without accuracy"),
        (None, {"linkage": dpl.ELE({"block 0": 0.9}, block="k", other=0.8)}, "look again", "They form the one other block"),
        (None, {"formula": "y ~ X", "bounds": {"X": (0, 1), "y": (0, 1)}, "levels": {}}, "not usable", "Did you mean 'x'? It has the columns 'x', 'y', 'g', 'k'."),
    ],
)  # fmt: skip
def test_verdicts(tmp_path: Path, write: Any, declared: dict[str, Any], verdict: str, said: str) -> None:
    check = seen_in(tmp_path, write, **declared)
    assert (check.verdict, any(said in one.text for one in check.findings)) == (verdict, True), check.summary()


def test_how_a_file_is_written_is_told_with_lines_for_the_study(tmp_path: Path) -> None:
    rows = [list(PLAIN), *zip(*PLAIN.values(), strict=True)]
    with (tmp_path / "rows.csv").open("w", encoding="utf-16", newline="") as file:
        csv.writer(file, delimiter=";").writerows([[cell.replace(".", ",") for cell in row] for row in rows])
    study = Study(**DECLARED)
    check = check_study(study, tmp_path / "rows.csv")
    assert check.verdict == "not usable"
    assert '[data]\nseparator = ";"\ndecimal = ","\nencoding = "utf-16"' in check.summary()
    assert check_study(study, dpl.File(tmp_path / "rows.csv", **check.advice)).verdict == "ready"


def test_a_column_that_is_written_unlike_the_others_is_told_apart(tmp_path: Path) -> None:
    check = seen_in(tmp_path, lambda v, k: f"{v:.1f}".replace(".", ",") if k > 500 else f"{v:.1f}")
    assert (check.verdict, dict(check.advice)) == ("look again", {})
    assert any("Other columns seem to be written otherwise" in one.text for one in check.findings), check.summary()


def test_engines_see_the_same_texts(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    seen_in(tmp_path, lambda v, k: "n/a" if k % 10 == 0 else f"{v}")
    (tmp_path / "more.csv").write_text("x,y,g,k\n?,1,a,block 0\n", encoding="utf-8")
    check = check_study(Study(**DECLARED), str(tmp_path / "*.csv"))
    assert any("a word for a missing value in 101 rows" in one.text for one in check.findings), check.summary()


# --- what rows count ------------------------------------------------------------------------------------


def surveyed() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    n = 2_000
    x = rng.uniform(0, 1, n)
    weight = rng.choice([1.0, 3.0], n)
    weight[:20] = np.nan
    return {"x": x, "y": x + rng.normal(0, 0.1, n), "age": np.arange(n) % 100.0, "w": weight, "g": np.where(x < 0.03, "few", "many")}  # fmt: skip


def survey_study(**asked: Any) -> Any:
    bounds = {"x": (0, 1), "y": (-1, 2), "age": (0, 100), "w": (0, asked.pop("largest", 3))}
    return dpl.Study(
        formula="y ~ x", bounds=bounds, levels={"g": ["many", "few"]}, linkage=dpl.Exact(), epsilon=1.0, delta=1e-6, **asked,
    )  # fmt: skip


def test_a_check_says_how_many_rows_count_and_what_weights_tell() -> None:
    """A release keeps both private, so the steward sees here whether a condition is the right one."""
    rows = surveyed()
    found = dpl.check_study(survey_study(where="age < 40", weights="w"), rows)
    said = "\n".join(one.text for one in found.findings)
    assert "age < 40: 800 rows count (40.00 %)" in said
    counted = rows["w"][(rows["age"] < 40) & np.isfinite(rows["w"])]
    assert f"tell as much as {counted.sum() ** 2 / (counted**2).sum():,.0f} of equal weights" in said
    assert "w: 1.00 % of the cells are empty (such rows do not count)" in said
    assert found.verdict == "ready"


@pytest.mark.parametrize(
    ("asked", "said", "verdict"),
    [
        ({"where": "age < 2"}, "age < 2: 40 rows count (2.00 %). With so few", "look again"),
        ({"where": "age > 99.5", "weights": "w"}, "age > 99.5: 0 rows count", "not usable"),
        ({"weights": "w", "largest": 100}, "declare a smaller one", "look again"),
        ({"by": "g"}, "Too few rows to tell anything of: 'few'", "look again"),
        ({"by": "g", "where": "age < 2"}, "Of these count, as age < 2: 'many'", "look again"),
        ({"by": "g", "where": "age > 99.5"}, "'many' 0, 'few' 0", "not usable"),
    ],
)
def test_a_check_says_where_too_little_counts(asked: dict[str, Any], said: str, verdict: str) -> None:
    found = dpl.check_study(survey_study(**asked), surveyed())
    told = [one.told for one in found.findings]
    assert any(said in one for one in told)
    assert not any(one.startswith("g == ") for one in told)  # what is seen of one level is not said of all
    assert found.verdict == verdict
