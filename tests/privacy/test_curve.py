"""Events and counts: no neighbour moves what is released further than claimed, and nothing else tells them apart."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked import methods, outcomes
from dplinked.estimate.curve import Means
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities import curve, instrument, meat, ranges, residual_scale, right_residuals, weights
from dplinked.second_stage import start
from dplinked.study.build import build_design
from dplinked.study.family import Curve
from dplinked.sums import files as file_engine
from dplinked.sums.engine import open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.numpy import kernel
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.types import ResidualClip
from duckdb_ways import add_by_sql
from neighbours import BOUNDS, FURTHER_KINDS, KINDS, LEVELS, Pair, by_id, make_pair
from replay import Leak, draw_alike, replay
from stages import set_in_stage

EPSILON, DELTA = 1.0, 1e-5
EVENTS = {**LEVELS, "y": ["no", "yes"]}
COUNTS = {**BOUNDS, "y": (0.0, 6.0), "e": (0.5, 4.0)}
REGRESSORS = {name: ends for name, ends in BOUNDS.items() if name != "y"}
PATHS = {
    "events, row meat": {"family": "logistic"},
    "events, block meat": {"family": "logistic"},
    "events, scale alone": {"family": "logistic"},
    "events, no intervals": {"family": "logistic", "intervals": False, "ranges": "declared"},
    "events, weighed groups": {"family": "logistic"},
    "events, filled cells": {"family": "logistic", "missing": "fill"},
    "counts, row meat": {"family": "poisson"},
    "counts, exposure": {"family": "poisson", "exposure": "e"},
    "counts, filled cells": {"family": "poisson", "exposure": "e", "missing": "fill"},
    "counts, declared middles": {"family": "poisson", "typical": {"x": (2.0, 4.0)}},
    "events, weights": {"family": "logistic", "weights": "x"},
    "events, a condition": {"family": "logistic", "where": "x > 4 and g != 'b'"},
    "events, weights and a condition, block meat": {"family": "logistic", "weights": "x", "where": "not g == 'c' or w < 0"},
    "counts, weights": {"family": "poisson", "weights": "x"},
    "counts, exposure, weights and a condition": {
        "family": "poisson", "exposure": "e", "weights": "x", "where": "not g == 'c' or w < 0",
    },
}  # fmt: skip
COUNTED = ({}, {"weights": "x"}, {"where": "x > 4 and g != 'b'"}, {"weights": "x", "where": "not g == 'c' or w < 0"})
FORMULAS = ("y ~ x", "y ~ 0 + x + w", "y ~ x + C(g)", "y ~ x*w + I(x**2)", "y ~ 1")


def as_outcome(data: dict[str, Any], family: str, rng: np.random.Generator) -> dict[str, Any]:
    """Rows with an event for a large response, or with an exposure; wild cells stay wild."""
    exposure = rng.uniform(0.2, 5.0, len(data["y"]))
    if family == "poisson":
        return {**data, "e": exposure}
    texts = ["yes" if value > 2.0 else "no" if value > -100.0 else None for value in data["y"]]
    return {**data, "y": np.array(texts, object)}


def as_outcomes(pair: Pair, family: str, seed: int) -> Pair:
    """Neighbours with events or counts; the person's exposure is another one."""
    both = [as_outcome(data, family, np.random.default_rng(seed)) for data in (pair.data, pair.other)]
    changed = [k for k in range(len(both[0]["y"])) if pair.data["x"][k] != pair.other["x"][k]]
    if family == "poisson" and len(changed) == 1:
        both[1]["e"] = both[1]["e"].copy()
        both[1]["e"][changed] = 0.5 if both[0]["e"][changed[0]] > 2.0 else 4.0
    return dataclasses.replace(pair, data=both[0], other=both[1])


def is_possible(kind: str, path: str) -> bool:
    if "weighed" in path:
        return kind == "table"
    return "block" not in path or kind in ("ele", "ele-one", "table", "displaced", "carriers")


CELLS = [(kind, path) for kind in (*KINDS, *FURTHER_KINDS) for path in PATHS if is_possible(kind, path)]


@pytest.fixture(autouse=True)
def _releases_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files would skip private ranges and the search for a largest count; here they must run."""
    plan_ranges, plan_scale = ranges.plan_ranges, residual_scale.plan_residual_scale
    for module in (ranges, methods):
        monkeypatch.setattr(module, "plan_ranges", lambda columns, count, mu: plan_ranges(columns, 10**9, mu))
    for module in (residual_scale, outcomes):
        monkeypatch.setattr(
            module,
            "plan_residual_scale",
            lambda exposure, count, mu, highest=0.97, **more: plan_scale(exposure, 10**9, mu, highest, **more),
        )


def take_path(patch: pytest.MonkeyPatch, path: str) -> None:
    wanted, route_of = "block" if "block" in path else "row", meat.choose_route
    if "weighed" in path:
        set_in_stage(patch, "choose_weights", lambda groups, noise: np.linspace(0.2, 1.0, groups.sizes.size)[::-1])

    def choose(equation: Any, spending: Any) -> Any:
        if "scale" in path:
            return meat.SCALE_ALONE
        largest = equation.rows.blocks.largest if wanted == "block" else None
        route = route_of(1, equation.rows.exposure, largest, 10**9, 1.0)
        assert route.name == wanted
        return dataclasses.replace(route, clip=0.5)

    patch.setattr(outcomes, "_ROOM", 0.2)  # tight cuts: they must bite
    patch.setattr(outcomes, "choose_outcome_route", choose)


def check(patch: pytest.MonkeyPatch, pair: Pair, formula: str, path: str, seed: int, engine: Any = None) -> float:
    options = PATHS[path]
    pair = as_outcomes(pair, options["family"], seed)
    events = options["family"] == "logistic"

    def run(data: Any, linkage: Any) -> Any:
        data, linkage = (data, linkage) if engine is None else engine(data, linkage)
        release = dpl.fit(
            data, formula, bounds=REGRESSORS if events else COUNTS,
            levels=EVENTS if events else LEVELS, linkage=linkage, unit=pair.unit, epsilon=EPSILON, delta=DELTA, **options,
        )  # fmt: skip
        hidden = getattr(linkage, "source", "") == "estimated"
        return release if hidden else dataclasses.replace(release, linkage={})

    with patch.context() as here:
        take_path(here, path)
        first, second = (lambda: run(pair.data, pair.linkage)), (lambda: run(pair.other, pair.other_linkage))
        return replay(here, first, second, privacy_mu(EPSILON, DELTA), seed)


def can_be_unlinked(pair: Pair) -> bool:
    exposure = pair.linkage.exposure(pair.unit)
    return exposure.symmetric or unlinking_terms(exposure.accuracy_min) is not None


def check_pairs(monkeypatch: pytest.MonkeyPatch, kind: str, path: str, first: int, count: int) -> None:
    rng = np.random.default_rng([first + (*KINDS, *FURTHER_KINDS).index(kind), len(path)])
    for seed in range(count):
        pair = make_pair(rng, kind)
        if can_be_unlinked(pair) and ("block" not in path or pair.unit.fixes_blocks):
            check(monkeypatch, pair, FORMULAS[seed % (4 if "middles" in path else 5)], path, seed)


@pytest.mark.parametrize(("kind", "path"), CELLS)
def test_outcomes_replay(monkeypatch: pytest.MonkeyPatch, kind: str, path: str) -> None:
    check_pairs(monkeypatch, kind, path, 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), CELLS)
def test_outcomes_replay_at_length(monkeypatch: pytest.MonkeyPatch, kind: str, path: str) -> None:
    check_pairs(monkeypatch, kind, path, 1000, 40)


# --- engines --------------------------------------------------------------------------------------------


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Data and linkage as another engine gets them."""

    def parquet(data: dict[str, Any], linkage: Any) -> tuple[Any, Any]:
        pq.write_table(pa.table(data), tmp_path / "rows.parquet", row_group_size=3)
        return tmp_path / "rows.parquet", linkage

    def duckdb(data: dict[str, Any], linkage: Any) -> tuple[Any, Any]:
        path, linkage = parquet(*by_id(data, linkage))
        return dpl.Query(f"select * from '{path}'"), linkage

    if request.param == "NumPy":
        monkeypatch.setattr(kernel, "KERNEL", None)
        return None
    if request.param in ("duckdb", "copy"):
        draw_alike(monkeypatch)
        if request.param == "duckdb":
            add_by_sql(monkeypatch)
        return duckdb
    monkeypatch.setattr(file_engine, "IN_MEMORY", 0)
    monkeypatch.setattr(importlib.import_module("dplinked.data.parquet"), "PART", 4)
    return parquet


def check_engine(monkeypatch: pytest.MonkeyPatch, engine: Any, kind: str, path: str, count: int) -> None:
    """So many pairs of a kind that the path is possible for."""
    rng, done = np.random.default_rng([len(kind), len(path)]), 0
    while done < count:
        pair = make_pair(rng, kind)
        if can_be_unlinked(pair) and ("block" not in path or pair.unit.fixes_blocks):
            check(monkeypatch, pair, FORMULAS[done % (4 if "middles" in path else 5)], path, done, engine)
            done += 1


@pytest.mark.parametrize("path", ["events, row meat", "counts, exposure"])
@pytest.mark.parametrize("kind", ["exact", "ele", "mover", "matching"])
@pytest.mark.parametrize("engine", ["NumPy", "parquet", "copy"], indirect=True)
def test_outcomes_replay_by_engine(monkeypatch: pytest.MonkeyPatch, engine: Any, kind: str, path: str) -> None:
    check_engine(monkeypatch, engine, kind, path, 3)


TURNS = [next((kind, path) for kind in (*KINDS[i:], *KINDS) if is_possible(kind, path)) for i, path in enumerate(PATHS)]


@pytest.mark.parametrize(("kind", "path"), [*TURNS, ("matching", "counts, exposure")])
@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_outcomes_replay_by_sql(monkeypatch: pytest.MonkeyPatch, engine: Any, kind: str, path: str) -> None:
    """Every path with neighbours of one kind each; all by all paths below."""
    check_engine(monkeypatch, engine, kind, path, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), CELLS)
@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_outcomes_replay_by_sql_at_length(monkeypatch: pytest.MonkeyPatch, engine: Any, kind: str, path: str) -> None:
    check_engine(monkeypatch, engine, kind, path, 5)


# --- each quantity by itself, and faults ----------------------------------------------------------------


def open_rows(
    pair: Pair, data: Any, linkage: Any, family: str, formula: str, *, dropped: bool = False, **counted: str
) -> LinkedRows:
    events, exposure = family == "logistic", None if family == "logistic" else "e"
    bounds, levels = (REGRESSORS, EVENTS) if events else (COUNTS, LEVELS)
    design = build_design(formula, bounds, levels, family=family, exposure=exposure, **counted)
    design = design.with_instrument([0.7] * len(design.columns))
    found = open_source(data).linked_rows(design, linkage, pair.unit)
    return found.without_missing() if dropped else found


def draw_clip(rng: np.random.Generator, rows: LinkedRows) -> ResidualClip:
    """A line that is far from level, or level, and instruments that are shortened much, little or not at all."""
    beta = rng.choice([0.0, 1.0, 3.0, 10.0]) * rng.normal(size=len(rows.design.names))
    limit, level = float(rng.choice([0.3, 1.0, 10.0])), not beta.any()
    iota = float(rng.choice([0.3, 1.0])) * rows.design.intercept
    return ResidualClip(beta, limit, iota, 1.0, curve=rows.design.curve, exposed=not level)


def distances(pair: Pair, family: str, formula: str, rng: np.random.Generator, seed: int) -> dict[str, float]:
    """How far apart each quantity of two neighbours is, as a share of its sensitivity. Missing cells are dropped, or filled; where they are dropped, rows may count by weights and conditions."""
    pair, dropped = as_outcomes(pair, family, seed), bool(rng.integers(2))
    counted = COUNTED[rng.integers(len(COUNTED))] if dropped else {}
    both = [
        open_rows(pair, data, linkage, family, formula, dropped=dropped, **counted)
        for data, linkage in ((pair.data, pair.linkage), (pair.other, pair.other_linkage))
    ]
    clip = draw_clip(rng, both[0])
    weights = np.ones(len(clip.beta))
    weights[: int(clip.intercept_weight > 0.0)] = clip.intercept_weight
    level = clip.curve.largest * float(rng.choice([0.5, rng.random()]))
    one, two = (rows.curve_sums(clip, level) for rows in both)
    first = int(clip.intercept_weight > 0.0)
    slope = (one.matrix - two.matrix) * weights[:, None]
    left, right = (rows.right_residuals(clip) for rows in both)
    taken = dataclasses.replace(clip, around=level)
    before, after = (rows.right_residuals(taken) for rows in both)
    steep = curve.own_rows_sensitivity(one.limit * one.steepest, one.exposure)
    numbers = {}
    if dropped:
        few, many = (rows.complete_rows() for rows in both)
        numbers = {
            "known rows": abs(few.known - many.known) / instrument.row_total_sensitivity(few.exposure),
            "complete rows": abs(few.complete - many.complete)
            / residual_scale.residual_count_sensitivity(few.exposure),
        }
    return {
        **numbers,
        "responses around a level": np.linalg.norm((before.vector - after.vector) * weights)
        / right_residuals.right_residuals_sensitivity(before.limit, before.exposure),
        "expected": np.linalg.norm((one.vector - two.vector) * weights)
        / curve.own_rows_sensitivity(one.limit * one.reach, one.exposure),
        "slope totals": np.linalg.norm(slope[:, :first]) / steep,
        "slopes": np.linalg.norm(slope[:, first:]) / (steep * one.radius) if one.radius else 0.0,
        "responses": np.linalg.norm((left.vector - right.vector) * weights)
        / right_residuals.right_residuals_sensitivity(left.limit, left.exposure),
    }


@pytest.mark.parametrize("family", ["logistic", "poisson"])
@pytest.mark.parametrize("kind", [*KINDS, *FURTHER_KINDS])
def test_neighbours_are_no_further_apart_than_claimed(kind: str, family: str) -> None:
    rng, reached = np.random.default_rng([len(kind), len(family)]), dict[str, float]()
    for seed in range(120 if kind == "exact" else 60):
        pair = make_pair(rng, kind)
        if not can_be_unlinked(pair):
            continue
        for name, share in distances(pair, family, FORMULAS[seed % 4], rng, seed).items():
            assert share <= 1.0 + 1e-9, name
            reached[name] = max(reached.get(name, 0.0), float(share))
    assert reached["responses"] > (0.5 if kind == "exact" else 0.1)
    assert reached["responses around a level"] > (0.8 if kind == "exact" else 0.1)
    assert min(reached[name] for name in ("expected", "slope totals", "slopes")) > 0.1


def test_a_curve_that_turns_reaches_the_bound() -> None:
    pair = as_outcomes(turned_pair(means=True), "logistic", 0)
    clip = ResidualClip(np.array([0.0, 1e6]), 0.5, 1.0, 1.0, curve=Curve("logistic"))
    rows = (open_rows(pair, data, pair.linkage, "logistic", "y ~ x") for data in (pair.data, pair.other))
    one, two = (table.curve_sums(clip, 0.5) for table in rows)
    moved = float(np.linalg.norm(one.vector - two.vector))
    assert moved == pytest.approx(curve.own_rows_sensitivity(one.limit * one.reach, one.exposure), rel=1e-6)


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_curves_stay_within_their_bounds(family: str) -> None:
    for largest in (1,) if family == "logistic" else (1, 2, 7, 40, 300):
        found = Curve(family, largest)
        eta = np.concatenate([np.linspace(-900.0, 900.0, 2001), np.linspace(-10.0, 10.0, 2001)])
        mean, slope = found.mean_and_slope(eta)
        assert mean.min() >= 0.0
        assert mean.max() <= largest
        assert slope.min() >= 0.0
        assert slope.max() <= found.steepest
        assert slope.max() >= 0.99 * found.steepest


def halved(call: Any) -> Any:
    return lambda *arguments: call(*arguments) / 2.0


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "means for half their price": (curve, "own_rows_sensitivity", halved(curve.own_rows_sensitivity)),
    "responses for half their price": (
        right_residuals, "right_residuals_sensitivity", halved(right_residuals.right_residuals_sensitivity),
    ),
    "residuals taken for half as large": (LinkedRows, "_reach", halved(LinkedRows._reach)),
    "missing responses for half their price": (LinkedRows, "_reach", halved(LinkedRows._reach)),
    "numbers of rows for half their price": (
        curve, "row_parts", lambda *given: [dataclasses.replace(part, sensitivity=part.sensitivity / 2) for part in instrument.row_parts(*given)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A person at whom a steep curve turns, or whose response does, or is missing, with nothing but the faulty quantity paid for."""
    monkeypatch.setattr(*FAULTS[fault])
    means, missing, numbers = "means" in fault, "missing" in fault, "numbers" in fault
    for name in ("LEVEL_SLOPE", "NEARER", "ANSWERED"):
        monkeypatch.setattr(outcomes, name, 1.0 - 1e-5 if numbers and name == "ANSWERED" else 1e-6)
    monkeypatch.setattr(outcomes, "choose_slope_share", lambda *_: 1e-6)
    monkeypatch.setattr(outcomes, "response_share", lambda _: 1e-6 if means or numbers else 1.0 - 1e-6)
    monkeypatch.setattr(outcomes, "LAST_ANSWERS", 1.0 - 1e-6 if missing else 1e-6)
    monkeypatch.setattr(outcomes, "FIRST_ANSWERS", 1e-7)
    monkeypatch.setattr(outcomes, "start_from_line", lambda *_: (np.array([0.0, 1e6]), 0.5, 0.0))
    monkeypatch.setattr(outcomes, "approach", stand_still)
    with pytest.raises(Leak, match="apart"):
        check(monkeypatch, turned_pair(means, missing=missing or numbers), "y ~ x", "events, no intervals", 0)


def test_weights_for_half_their_price_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's weight falls from the largest to none, with nothing but the size of weights paid for."""
    for name in ("LEVEL_SLOPE", "NEARER", "ANSWERED"):
        monkeypatch.setattr(outcomes, name, 1e-6)
    monkeypatch.setattr(outcomes, "choose_slope_share", lambda *_: 1e-6)
    monkeypatch.setattr(start, "WEIGHTS", 0.85)
    pair = turned_pair(means=True)
    pair.data["x"][0], pair.other["x"][0] = 10.0, 0.0
    found = check(monkeypatch, pair, "y ~ w", "events, weights", 0)
    assert 0.9 < found <= 1.0
    monkeypatch.setattr(weights, "weight_moments_sensitivity", halved(weights.weight_moments_sensitivity))
    with pytest.raises(Leak, match="apart"):
        check(monkeypatch, pair, "y ~ w", "events, weights", 0)


def stand_still(equation: Any, _: Any, beta: Any, *__: Any) -> Any:
    """No step, and means that tell nothing."""
    p = len(beta)
    return beta, Means(beta, np.zeros(p), np.full(p, 1e12), np.eye(p), np.ones((p, p)))


def turned_pair(means: bool, *, missing: bool = False) -> Pair:
    """One person crosses the middle of x, where the curve turns, or has another response, or none."""
    n = 12
    data = {"x": np.full(n, 5.001), "w": np.zeros(n), "g": np.full(n, "a"), "y": np.full(n, 6.0), "block": np.zeros(n)}
    data["x"][1:] = 10.0 * means
    data["x"][0] = 5.001 if means else 10.0
    other = {name: column.copy() for name, column in data.items()}
    other["x"][0], other["y"][0] = (4.999, 6.0) if means else (10.0, -2.0)
    if missing:  # the curve expects the event of this row: its absence stands for one
        data["y"][0], other["y"][0] = -2.0, np.nan
    return Pair(data, other, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit())


def test_moves_pay_for_the_weights_that_they_change() -> None:
    """A mover leaves one block of two and makes another: rows that stay there change their weights, from 0 to 1 and back."""
    n, x = 4, np.array([10.0, 5.001, 4.999, 10.0])
    data = {"x": x, "w": np.zeros(n), "g": np.full(n, "a"), "y": np.full(n, 6.0), "block": np.array([0, 0, 1, 2])}
    other = {**data, "block": np.array([1, 0, 1, 2])}
    linkage = dpl.ELE(0.5, block="block", other=0.5)
    pair = Pair(data, other, linkage, linkage, dpl.PrivacyUnit(moves_block=True))
    events = [as_outcome(rows, "logistic", np.random.default_rng(0)) for rows in (data, other)]
    clip = ResidualClip(np.array([0.0, 1e6]), 0.5, 1.0, 1.0, curve=Curve("logistic"))
    one, two = (open_rows(pair, rows, linkage, "logistic", "y ~ x").curve_sums(clip, 0.5) for rows in events)
    size = one.limit * one.reach
    moved, bound = float(np.linalg.norm(one.vector - two.vector)), curve.own_rows_sensitivity(size, one.exposure)
    assert moved == pytest.approx(
        2.0 * size, rel=1e-3
    )  # and the mover's own term, which weighs nothing here, is not in it
    assert moved <= bound - 2.0 * size
