"""The steward's check foresees what clipping does to coefficients, and says which bound does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.check import ClippingBias, check_study, foresee_clipping
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
    assert not any("Clipping moves" in one.text for one in check_study(declare(WIDE), households))


def test_the_bound_that_matters_comes_first(households: dict[str, Any]) -> None:
    """A response that is clipped often moves the slope down, a regressor that is clipped a little moves it up less."""
    bounds = {"consumption": (-1e4, 40_000), "income": (0, 120_000)}
    found = foresee(declare(bounds), households)
    assert found is not None
    assert list(found.by_bound) == [("consumption", 1), ("income", 1)]
    (first, second), slope = found.by_bound.values(), 1
    assert first[slope] < -0.01 < 0.0 < second[slope] < 0.01
    assert found.bias == pytest.approx(first + second, rel=0.2)
    said = [one.text for one in check_study(declare(bounds), households) if not one.fault]
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
    told = [one.text for one in check_study(study, data)]
    assert any(text.startswith("income: 10.00 % null") and said in text for text in told)
    assert any("40 rows with a null level are left out" in text for text in told) == (missing == "drop")
    assert any("40 rows with 1 undeclared or null" in text for text in told) == (missing == "fill")


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
    assert any("cannot be foreseen" in one.text for one in check_study(study, zero))


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
    return [one.text for one in check_study(Study(**shared, **declared), data) if not one.fault]


EVENTS: dict[str, Any] = {"formula": "died ~ x", "family": "logistic", "bounds": {"x": (0, 1)}, "levels": {"died": ["no", "yes"]}}  # fmt: skip


def test_events_are_counted_and_odd_levels_named() -> None:
    told = findings(outcomes(died=["yes"] * 30 + ["No"] * 10 + ["no"] * 360), **EVENTS)
    assert "died: 30 rows (7.50 %) with 'yes', the level that is modelled" in told
    assert any("10 rows with 1 undeclared level(s) count as the reference level 'no': 'No'" in one for one in told)
    assert any("Clipping moves coefficients by about" in one and "in x" in one for one in told)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("drop", ["died: 40 rows with a null level are left out", "died: if null means 'no', declare missing='fill'"]),
        ("fill", ["died: 40 rows with 1 undeclared or null level(s) count as the reference level 'no': None"]),
    ],
)
def test_events_without_a_cell_are_said(missing: str, said: list[str]) -> None:
    told = findings(outcomes(died=["yes"] * 30 + [None] * 40 + ["no"] * 330), missing=missing, **EVENTS)
    assert set(said) <= set(told)
    assert any(one.startswith("x: 0.00 % null") and ("left out" in one) is (missing == "drop") for one in told)


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
    assert any(one.startswith("years: 0.00 % null") for one in told)
    assert not any("not foreseen" in one for one in told)
