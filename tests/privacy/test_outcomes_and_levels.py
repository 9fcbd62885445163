"""Several outcomes and levels in one release: all that one person changes of them together is no further apart than the release says."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.errors import ReleaseError
from dplinked.linkage import LinkageExposure
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.noise_plan import NoisePlan, Part
from dplinked.privacy.quantities.instrument import row_total_sensitivity
from dplinked.privacy.quantities.meat import block_meat_sensitivity
from dplinked.privacy.quantities.residual_scale import residual_count_sensitivity, residual_edges
from dplinked.privacy.quantities.responses import divide_share
from dplinked.privacy.quantities.right_residuals import residual_meat_sensitivity, right_residuals_sensitivity
from dplinked.privacy.quantities.weights import weight_moments_sensitivity
from dplinked.privacy.spending import Spending
from dplinked.study.counting import Counting
from dplinked.sums.engine import open_source
from dplinked.sums.types import MeatClip, Predictor, ResidualClip
from duckdb_ways import add_by_sql
from replay import Leak, draw_alike, replay

N, EPSILON, DELTA = 3000, 8.0, 1e-5
BOUNDS = {"x": (-1.0, 1.0), "w": (0.0, 2.0), "y": (-9.0, 9.0), "v": (-9.0, 9.0)}
LEVELS = {"g": ["a", "b", "c"]}
OUTCOMES = "cbind(y, v, I(y - v)) ~ x"


def make_rows(rng: np.random.Generator) -> dict[str, Any]:
    """Rows at the ends of their bounds."""
    x = rng.choice([-1.0, 1.0], N)
    return {
        "x": x,
        "w": rng.choice([0.1, 2.0], N),
        "y": 0.5 * x + rng.normal(0, 0.2, N),
        "v": rng.normal(0, 0.1, N) - 0.3 * x,
        "g": rng.choice(["a", "b", "c", "d"], N),
        "b": np.arange(N) // 10,
        "c": rng.integers(0, 600, N),
    }


def neighbours(rng: np.random.Generator, exact: bool, leaves: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A person turns round, who may go to another level too, and with them all outcomes on the row that holds them. In an exact join outcomes alone turn, which moves sums further."""
    data = make_rows(rng)
    j, p = 7, 7 if exact else 3
    data["g"][[j, p]], data["w"][[j, p]] = "a", 2.0
    data["x"][[j, p]], data["y"][p], data["v"][p] = 1.0, -9.0, 9.0
    other = {name: column.copy() for name, column in data.items()}
    other["x"][j], other["y"][p], other["v"][p] = 1.0 if exact else -1.0, 9.0, -9.0
    if leaves:
        other["g"][j], other["c"][j] = "b", 601
    return data, other


def matching() -> dpl.Matching:
    matrix = sp.csr_array(sp.diags_array([0.9, 0.1, 0.1], offsets=[0, 1, 1 - N], shape=(N, N)))
    return dpl.Matching(matrix, accuracy_min=0.85)


FIXED = dpl.PrivacyUnit()
LINKAGES: dict[str, tuple[Any, dpl.PrivacyUnit]] = {
    "exact": (dpl.Exact(), FIXED),
    "ele": (dpl.ELE(0.8, block="b"), FIXED),
    "one block": (dpl.ELE(0.7), FIXED),
    "displaced": (dpl.ELE(0.8, block="b"), dpl.PrivacyUnit(displaced_links=2)),
    "mover": (dpl.ELE(0.9, block="b"), dpl.PrivacyUnit(moves_block=True)),
    "matching": (matching(), dpl.PrivacyUnit(displaced_links=0, linkage_change=0.0)),
}
WAYS: dict[str, dict[str, Any]] = {
    "outcomes": {"formula": OUTCOMES},
    "weighted outcomes": {"formula": OUTCOMES, "weights": "w"},
    "levels": {"formula": "y ~ x", "by": "g"},
    "weighted levels": {"formula": "y ~ x", "by": "g", "weights": "w", "where": "x > -2"},
    "clustered levels": {"formula": "y ~ x", "by": "g", "cluster": "c", "goodness": True},
    "one stage": {"formula": OUTCOMES, "ridge": 0.001},
}


def run(data: Any, kind: str, way: str) -> Any:
    linkage, unit = LINKAGES[kind]
    options = {"bounds": BOUNDS, "levels": LEVELS, "linkage": linkage, "unit": unit, "epsilon": EPSILON, "delta": DELTA}
    return dpl.fit(data, **{**options, **WAYS[way]})


def distance(
    monkeypatch: pytest.MonkeyPatch, kind: str, way: str, seed: int = 1, leaves: bool = False, claimed: float = 1.0
) -> float:
    data, other = neighbours(np.random.default_rng(seed), kind == "exact", leaves)
    mu = claimed * privacy_mu(EPSILON, DELTA)
    return replay(monkeypatch, lambda: run(data, kind, way), lambda: run(other, kind, way), mu)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LINKAGES)
def test_several_results_replay(monkeypatch: pytest.MonkeyPatch, kind: str, way: str) -> None:
    for leaves in (False, True):
        assert distance(monkeypatch, kind, way, leaves=leaves) > 0.05


@pytest.mark.parametrize("way", ["duckdb", "copy"])
def test_several_results_replay_by_sql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str) -> None:
    draw_alike(monkeypatch)
    if way == "duckdb":
        add_by_sql(monkeypatch)
    pair = neighbours(np.random.default_rng(2), False, True)
    for place, rows in enumerate(pair):
        pq.write_table(pa.table(rows), tmp_path / f"{place}.parquet")
    first, second = (dpl.Query(f"select * from '{tmp_path / f'{place}.parquet'}'") for place in (0, 1))
    for way in ("outcomes", "levels"):
        mu = privacy_mu(EPSILON, DELTA)
        replay(monkeypatch, lambda way=way: run(first, "ele", way), lambda way=way: run(second, "ele", way), mu)


# --- planted faults -------------------------------------------------------------------------------------


def test_catches_outcomes_that_each_spend_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    divide = Spending.slices

    def whole(spending: Spending, number: int) -> list[Spending]:
        found = divide(spending, number)
        for one in found:
            one.mu = spending.mu
        return found

    monkeypatch.setattr(Spending, "slices", whole)
    with pytest.raises(Leak):
        distance(monkeypatch, "exact", "outcomes")


def test_catches_levels_in_which_all_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels cost what one does because each row counts in one of them."""
    monkeypatch.setattr(Counting, "write_factors", lambda counting, raw, codes, out: out.fill(1.0))
    with pytest.raises(Leak):
        distance(monkeypatch, "exact", "levels")


@pytest.mark.parametrize("way", ["outcomes", "levels"])
def test_catches_half_the_noise_of_several_results(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    scales = NoisePlan.scales
    monkeypatch.setattr(NoisePlan, "scales", lambda plan: 0.5 * scales(plan))
    with pytest.raises(Leak):
        distance(monkeypatch, "exact", way)


def test_levels_must_draw_the_same() -> None:
    plan = NoisePlan((Part("one", 1, 1.0, 1.0, 2.0),), 0.5)
    others = {
        "another cost": NoisePlan(plan.parts, 0.4),
        "another part": NoisePlan((dataclasses.replace(plan.parts[0], name="two"),), 0.5),
        "more parts": NoisePlan(plan.parts * 2, 0.5),
        "otherwise divided": NoisePlan((dataclasses.replace(plan.parts[0], scale=2.1),), 0.5),
    }
    for other in others.values():
        first, second = Spending(1.0).side_by_side(2)
        for purse in (first, second):
            purse.take(0.5)
        first.note(plan)
        with pytest.raises(ReleaseError, match="would draw differently"):
            second.note(other)
        second.note(plan)


def test_what_outcomes_pay_for_together_is_taken_from_each() -> None:
    whole = Spending(1.0)
    whole.take(0.2)
    purses = whole.slices(4)
    whole.take(0.3)
    assert all(math.isclose(purse.unspent(), 0.5) for purse in purses)
    assert math.isclose(sum(purse.take(0.5) ** 2 for purse in purses), 0.5)
    with pytest.raises(ReleaseError):
        whole.take(0.1)
    assert math.isclose(purses[0].spent, 1.0)


def test_the_division_between_matrix_and_outcomes_is_the_best() -> None:
    """No other division of the same cost has less noise in all outcomes together."""
    study = dpl.Study(formula="y ~ x + w", bounds=BOUNDS, linkage=dpl.ELE(0.9), epsilon=1.0, delta=DELTA)
    design, exposure = study.prepare()
    from dplinked.privacy.quantities.instrument import instrument_parts

    parts = instrument_parts(design, exposure, 1000, False)
    response = sum(p.sensitivity * math.sqrt(p.importance) for p in parts if "response" in p.name)
    matrix = sum(p.sensitivity * math.sqrt(p.importance) for p in parts if "response" not in p.name)
    for outcomes in (1, 2, 5):

        def noise(share: float, outcomes: int = outcomes) -> float:
            return outcomes * matrix**2 / share + outcomes**2 * response**2 / (1.0 - share)

        best, alone = divide_share(design, exposure, 1000, outcomes, intervals=False)
        assert all(noise(best) <= noise(best + step) for step in (-0.05, 0.05))
        assert math.isclose(alone, divide_share(design, exposure, 1000, 1, intervals=False)[0])


# --- sensitivities of levels side by side ---------------------------------------------------------------


def linked(data: dict[str, Any], accuracy: float, formula: str = "y ~ x") -> dict[str, Any]:
    """Rows of each level, of which missing cells are dropped."""
    study = dpl.Study(
        formula=formula, bounds=BOUNDS, levels=LEVELS, by="g", linkage=dpl.ELE(accuracy, block="b"),
        epsilon=1.0, delta=DELTA,
    )  # fmt: skip
    source = open_source(data)
    return {
        level: source.linked_rows(part.prepare()[0], study.linkage, study.unit).beside(3).without_missing()
        for level, part in study.parts.items()
    }


def small_rows(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return {
        "x": rng.choice([-1.0, 1.0], n), "y": rng.choice([-9.0, 9.0], n), "g": rng.choice(["a", "b", "c", "d"], n),
        "b": np.sort(rng.integers(0, max(1, n // 4), n)),
    }  # fmt: skip


def changed(rng: np.random.Generator, data: dict[str, Any]) -> dict[str, Any]:
    """The person's row with other regressors, perhaps of another level, and another response on a row of its block."""
    other = {name: column.copy() for name, column in data.items()}
    j = int(rng.integers(data["x"].size))
    p = int(rng.choice(np.flatnonzero(data["b"] == data["b"][j])))
    other["x"][j], other["y"][p] = -data["x"][j], -data["y"][p]
    if rng.random() < 0.6:
        other["g"][j] = rng.choice(["a", "b", "c", "d"])
    return other


def test_equations_of_all_levels_move_as_one() -> None:
    """Searched over small blocks: never beyond the bound of one equation, and close to it where the person stays in a level."""
    rng, reached = np.random.default_rng(5), 0.0
    clip, meat = ResidualClip(np.zeros(1), 0.1, 0.0, 4.0), MeatClip("row", np.ones(1), 0.15)
    for _ in range(150):
        accuracy = float(rng.choice([0.5, 0.8, 0.99]))
        data = small_rows(rng, int(rng.choice([2, 5, 12])))
        if rng.random() < 0.5:
            data["x"][:], data["g"][:] = 1.0, "a"
            data["b"][:] = 0
        before, after = (linked(rows, accuracy, "y ~ 0 + x") for rows in (data, changed(rng, data)))
        sums = [
            (before[level].right_residuals(clip, meat), after[level].right_residuals(clip, meat)) for level in before
        ]
        exposure = before["a"].exposure
        moved = math.sqrt(sum(float(((one.vector - two.vector) ** 2).sum()) for one, two in sums))
        squares = math.sqrt(sum(float(((one.meat - two.meat) ** 2).sum()) for one, two in sums))
        bound = right_residuals_sensitivity(clip.limit, exposure)
        assert moved <= bound * (1.0 + 1e-9)
        assert squares <= residual_meat_sensitivity(0.15, sums[0][0].largest, exposure) * (1.0 + 1e-9)
        reached = max(reached, moved / bound)
    assert reached > 0.9


def test_squares_of_blocks_of_all_levels_stay_within() -> None:
    """By chance; the next test has the worst."""
    rng, reached = np.random.default_rng(6), 0.0
    clip, meat = ResidualClip(np.array([0.0, 0.0]), 0.1, 1.0, 4.0), MeatClip("block", np.ones(2), 0.02)
    for _ in range(150):
        data = small_rows(rng, int(rng.choice([4, 8])))
        data["b"][:] = 0
        before, after = linked(data, 0.5), linked(changed(rng, data), 0.5)
        pairs = [(before[g].right_residuals(clip, meat), after[g].right_residuals(clip, meat)) for g in before]
        squares = math.sqrt(sum(float(((one.meat - two.meat) ** 2).sum()) for one, two in pairs))
        bound = block_meat_sensitivity(0.02, before["a"].exposure)
        assert squares <= bound * (1.0 + 1e-9)
        reached = max(reached, squares / bound)
    assert reached > 0.4
    exact = LinkageExposure(True, True, 1.0, 1.0, 0.0, 0, levels=3)
    assert math.isclose(
        block_meat_sensitivity(1.0, exact), 2.0
    )  # one total ends and another begins: √2, which 2 covers


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_squares_of_blocks_of_all_levels_reach_the_bound(gamma: float) -> None:
    """Row 0 leaves a level for another and turns the totals of both in its block; a response turns those of all three in another block, whose rows have it as a partner.

    Each total is a row that turns and a short one, not clipped, between both directions. Two blocks of three levels do not turn the same share of each: .95 of the bound is the most there can be.
    """
    m, K = 17, 1e-3
    met = (1.0 - gamma) * K / (m - 1)  # half of what a response that turns adds to a row
    x, v, y = np.zeros(2 * m), np.zeros(2 * m), np.tile([1.0, -1.0], m)
    g, b = np.full(2 * m, "a"), np.repeat([0, 1], m)
    g[:3], x[0] = ["a", "a", "b"], 1.0
    v[1], x[2], y[:3], y[3:m] = 0.05 * K, 0.05 * K, 1.0, -1.0
    turning, between = m + 1 + np.arange(3), m + 4 + np.arange(3)
    g[turning], g[between] = ["a", "b", "c"], ["a", "b", "c"]
    x[turning], v[turning] = -math.sqrt(0.5), math.sqrt(0.5)
    y[turning] = -met / (1.0 - 3.0 * (1.0 - gamma) / (m - 1))
    x[between] = v[between] = met * math.sqrt(0.5) / (1.0 + (1.0 - gamma) * (1.0 - 4.0 / m) / m)
    y[m], y[between] = 1.0, 1.0
    y[m + 7 :] = [1.0] * 3 + [-1.0] * 7
    data = {"x": x, "v": v, "y": y, "g": g, "b": b}
    other = {name: column.copy() for name, column in data.items()}
    other["x"][0], other["v"][0], other["g"][0], other["y"][m] = 0.0, 1.0, "b", -1.0
    study = dpl.Study(
        formula="y ~ 0 + x + v", bounds=dict.fromkeys("xvy", (-1.0, 1.0)), levels=LEVELS, by="g",
        linkage=dpl.ELE(gamma, block="b"), epsilon=1.0, delta=DELTA,
    )  # fmt: skip
    clip, meat = ResidualClip(np.zeros(2), K, 0.0, 4.0), MeatClip("block", np.ones(2), met)

    def squares(data: dict[str, Any]) -> np.ndarray:
        rows = [
            open_source(data).linked_rows(part.prepare()[0], study.linkage, study.unit).beside(3).without_missing()
            for part in study.parts.values()
        ]
        return np.array([one.right_residuals(clip, meat).meat for one in rows])

    exposure = dataclasses.replace(study.linkage.exposure(study.unit), levels=3)
    moved = float(np.linalg.norm(squares(data) - squares(other)))
    assert 0.9 < moved / block_meat_sensitivity(met, exposure) <= 1.0


def test_counts_of_all_levels_are_reached() -> None:
    """Row j leaves a level for another, and the row that holds the person's response leaves the count of the first: (-2, 1)."""
    data = {
        "x": np.zeros(6), "y": np.zeros(6), "g": np.array(["a", "a", "b", "b", "c", "c"]), "b": np.zeros(6, int),
    }  # fmt: skip
    other = {name: column.copy() for name, column in data.items()}
    other["g"][0], other["y"][1] = "b", 9.0
    around, edges = Predictor(np.zeros(2), np.zeros(1), 1.0), residual_edges(1.0)
    before, after = linked(data, 0.8), linked(other, 0.8)
    below = [
        [int(rows[level].residual_counts(around, edges).counts[:-8].sum()) for level in LEVELS["g"]]
        for rows in (before, after)
    ]
    moved = float(np.linalg.norm(np.subtract(*below)))
    bound = residual_count_sensitivity(before["a"].exposure)
    assert 0.9 * bound < moved <= bound
    assert moved > residual_count_sensitivity(dataclasses.replace(before["a"].exposure, levels=1))  # a fault would show


def test_numbers_of_rows_and_weights_of_all_levels_are_reached() -> None:
    """A row of the largest weight leaves a level for another."""
    data = {
        "x": np.zeros(4), "y": np.zeros(4), "w": np.full(4, 2.0), "g": np.array(["a", "a", "b", "c"]),
        "b": np.zeros(4, int),
    }  # fmt: skip
    other = {name: column.copy() for name, column in data.items()}
    other["g"][0] = "b"
    study = dpl.Study(
        formula="y ~ x", bounds=BOUNDS, levels=LEVELS, by="g", weights="w", linkage=dpl.Exact(), epsilon=1.0, delta=DELTA,
    )  # fmt: skip

    def moments(rows: dict[str, Any]) -> np.ndarray:
        source = open_source(rows)
        return np.concatenate([
            source.linked_rows(part.prepare()[0], study.linkage, study.unit).beside(3).weight_moments().sums
            for part in study.parts.values()
        ])  # fmt: skip

    exposure = dataclasses.replace(study.linkage.exposure(study.unit), levels=3)
    moved = moments(data) - moments(other)
    assert math.isclose(float(np.linalg.norm(moved)), weight_moments_sensitivity(exposure))
    assert math.isclose(float(np.linalg.norm(moved[::3])), row_total_sensitivity(exposure))
