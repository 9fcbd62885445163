"""Right residuals by SQL against the formula written out, whichever way partners are met; weights of groups, and rows by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
import sparks
from dplinked.study.build import build_design
from dplinked.study.design import Design
from dplinked.sums.engine import open_source
from dplinked.sums.partners import PARTNERS, clip_residuals, enough_partners
from dplinked.sums.sql import duckdb as duckdb_rows
from dplinked.sums.sql import right_residuals as stage
from dplinked.sums.sql.dialect import SqlEngine
from dplinked.sums.sql.duckdb_engine import DuckDBEngine
from dplinked.sums.sql.spark import SparkEngine
from dplinked.sums.types import MeatClip, ResidualClip
from duckdb_ways import add_by_sql
from stages import set_in_stage

Open = Callable[..., Any]
BY_SQL = pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=sparks.MARKS)], indirect=True)

BOUNDS = {"y": (-3.0, 5.0), "x": (-1.0, 1.0), "w": (0.0, 2.0)}
FIXED, MOVING = dpl.PrivacyUnit(), dpl.PrivacyUnit(moves_block=True)
SMALL = [2, 3, 5, 17, 4, 1] * 3
FEW = [2, 3, 5, 9, 4, 1] * 3
WHOLE = [18, 32, 1, 25]
LARGE = [1, 2, 16, 17, 18, 33, 90, 130]


def make_table(sizes: list[int]) -> pa.Table:
    """Rows of blocks in no order, some cells out of bounds; the last block has null keys."""
    rng = np.random.default_rng(len(sizes))
    x = rng.uniform(-1.1, 1.1, sum(sizes))
    keys = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return pa.table(
        {
            "x": x,
            "w": rng.uniform(0, 2, x.size),
            "y": 2.0 * x + rng.standard_normal(x.size),
            "block": pa.array(keys, mask=keys == len(sizes) - 1),
        }
    )


def read_rows(table: pa.Table, design: Design) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Instruments and regressors, the intercept's 1 first (p×n), and responses."""
    x, z = open_source(table).open(design, dpl.Exact(), FIXED).data.whole()
    h = x if design.half_widths is None else np.clip(x / np.array(design.half_widths)[:, None], -1, 1)
    ones = np.ones((int(design.intercept), z.size))
    return np.vstack([ones, h]), np.vstack([ones, x]), z


def find_blocks(table: pa.Table, accuracy: Any, other: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of each row's block, and its weights a and o; keys without an accuracy of their own are one block."""
    named = accuracy if isinstance(accuracy, Mapping) else None
    keys = [-1 if key is None or (named and str(key) not in named) else key for key in table["block"].to_pylist()]
    _, codes, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    m = sizes[codes]
    y = np.array([other if key == -1 else (named or {}).get(str(key), accuracy) for key in keys], np.float64)
    o = np.where(m > 1, (1.0 - y) / np.maximum(m - 1, 1), 0.0)
    return codes, np.where(m > 1, y, 1.0) - o, o


def plain_formula(table: pa.Table, design: Design, C: np.ndarray, clip: ResidualClip, weights: Any = 1.0) -> np.ndarray:
    """``w (1, h_i) Σ_l C_il ψ_i(z_l - t_i)`` of each row (p×n), from arrays of all pairs."""
    (h, x, z), first = read_rows(table, design), int(design.intercept)
    t = clip.beta @ x
    L = np.minimum(clip.widest, clip.limit / np.sqrt(clip.intercept_weight**2 + (h[first:] ** 2).sum(axis=0)))
    return h * weights * (C * clip_residuals(z[None, :] - t[:, None], L[:, None])).sum(axis=1)


def clip_for(design: Design, limit: float = 0.4, widest: float = 0.9) -> ResidualClip:
    p = len(design.names)
    return ResidualClip(np.linspace(-0.1, 0.3, p), limit, 0.7 if design.intercept else 0.0, widest)


def cut_squares(u: np.ndarray, norm: float) -> np.ndarray:
    u = u * np.minimum(1.0, norm / np.maximum(np.linalg.norm(u, axis=0), 1e-300))
    return u @ u.T


def check(found: Any, terms: np.ndarray, codes: np.ndarray | None, clip: ResidualClip) -> None:
    """The equation and both kinds of squares are those of the terms (p×n)."""
    weights, scale = np.linspace(1.0, 2.0, len(terms)), np.abs(terms).sum()
    assert found.right_residuals(clip).meat is None
    for route in ["row"] if codes is None else ["row", "block"]:
        result = found.right_residuals(clip, MeatClip(route, weights, 0.3))
        u = terms * weights[:, None]
        if route == "block":
            assert codes is not None
            u = np.stack([np.bincount(codes, row) for row in u])
        np.testing.assert_allclose(result.vector, terms.sum(axis=1), rtol=1e-10, atol=1e-11 * scale)
        np.testing.assert_allclose(result.meat, cut_squares(u, 0.3), rtol=1e-10, atol=1e-11 * scale)


ACCURACY = {"0": 0.9, "1": 0.7, "no such key": 0.5}
CASES = {
    "lists": (SMALL, FIXED, 0.8, "y ~ x + w", {"x": (-0.4, 0.2)}),
    "lists and a table": (WHOLE, FIXED, ACCURACY, "y ~ x + w", None),
    "lists without an intercept": (WHOLE, FIXED, 0.8, "y ~ 0 + x", None),
    "circles": (FEW, MOVING, 0.75, "y ~ 0 + x", {"x": (-0.4, 0.2)}),
    "circles and a table": (FEW, MOVING, {str(key): 0.7 + 0.01 * key for key in range(17)}, "y ~ x + w", None),
}


@pytest.mark.parametrize("case", CASES)
@BY_SQL
def test_all_others_are_partners_in_small_blocks(engine: Open, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lists where blocks are fixed, in circles elsewhere; null keys and keys without an accuracy are blocks like others."""
    monkeypatch.setattr(stage, "WHOLE", 40)
    sizes, unit, accuracy, formula, typical = CASES[case]
    table, design = make_table(sizes), build_design(formula, BOUNDS, None, typical)
    codes, a, o = find_blocks(table, accuracy, 0.6)
    C = np.where(codes[:, None] == codes, -o[:, None], 0.0) + np.eye(codes.size)
    found = engine(table).open(design, dpl.ELE(accuracy, block="block", other=0.6), unit)
    clip = clip_for(design)
    check(found, plain_formula(table, design, C, clip), codes, clip)
    assert found.blocks.contrast == pytest.approx(a.mean())
    if isinstance(accuracy, dict):
        weights = {**{key: 0.3 + 0.1 * (int(key) % 5) for key in accuracy if key.isdigit()}, None: 0.55}
        w = np.array([weights.get(str(key), weights[None]) for key in table["block"].to_pylist()])
        check(found.with_weights(weights), plain_formula(table, design, C, clip, w), codes, clip)


@pytest.mark.parametrize("accuracy", [0.8, None], ids=["blocks", "one block"])
@pytest.mark.parametrize("unit", [FIXED, MOVING], ids=["fixed", "moving"])
def test_every_response_is_the_partner_of_as_many_rows(
    engine: Open, unit: dpl.PrivacyUnit, accuracy: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a clip the equation is linear in responses, and partners cancel if all have the same load: ``Σ a (1, h)'(z - t)`` without h."""
    monkeypatch.setattr(SparkEngine, "circle", 100)  # several circles of a single block
    table, design = make_table(LARGE), build_design("y ~ x", BOUNDS)
    linkage = dpl.ELE(0.8) if accuracy is None else dpl.ELE(accuracy, block="block", other=0.6)
    codes, a, _ = find_blocks(table, 0.8, 0.6)
    n = codes.size
    a = a if accuracy is not None else np.full(n, 0.8 - 0.2 / (n - 1))
    (_, x, z), clip = read_rows(table, design), clip_for(design, 1e3, 1e3)
    found = engine(table).open(design, linkage, unit)
    for _ in range(2):
        assert found.right_residuals(clip).vector[0] == pytest.approx((a * (z - clip.beta @ x)).sum(), rel=1e-9)


@pytest.mark.parametrize("unit", [FIXED, dpl.PrivacyUnit(linkage_change=1.0)], ids=["few partners", "all partners"])
@pytest.mark.parametrize("table", [True, False], ids=["table", "one accuracy"])
@pytest.mark.usefixtures("way")
def test_circles_are_whole_in_long_tables(table: bool, unit: dpl.PrivacyUnit) -> None:
    """Many threads, blocks whose rows are far apart, some of few rows, one of null keys: every response is still the partner of as many rows."""
    duckdb = pytest.importorskip("duckdb")
    connection, n = duckdb.connect(config={"threads": 4}), 200_000
    key = "case when i % 40 = 7 then null when i < 3000 then i % 1009 + 2000 else i % 1009 end"
    rows = connection.sql(f"select sin(i) as x, cos(3 * i) + sin(i) as y, {key} as block from range({n}) r(i)")
    linkage = dpl.ELE(dict.fromkeys(range(500), 0.8) if table else 0.8, block="block", other=0.8)
    found = open_source(rows).open(build_design("y ~ x", BOUNDS), linkage, unit)
    clip, alone = clip_for(found.design, 1e3, 1e3), found.own_rows(weighted=True)
    for _ in range(2):
        assert found.right_residuals(clip).vector[0] == pytest.approx(alone.right_residuals(clip).vector[0], rel=1e-9)


def test_a_line_that_tears_circles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were rows no longer sorted before the window goes along them, a response could be the partner of other numbers of rows."""
    pytest.importorskip("duckdb")
    add_by_sql(monkeypatch)
    run = DuckDBEngine.run
    unsorted = " order by k, place"
    monkeypatch.setattr(DuckDBEngine, "run", lambda engine, text: run(engine, text.replace(unsorted, "")))
    rows = duckdb_rows.open_relation(pytest.importorskip("duckdb").connect().from_arrow(make_table(LARGE)))
    found = rows.open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="block", other=0.8), FIXED)
    with pytest.raises(dpl.ReleaseError, match="engine read the rows"):
        found.right_residuals(clip_for(found.design))


@pytest.mark.parametrize("linkage", [dpl.ELE(0.5), dpl.ELE(0.5, block="block")], ids=["one block", "blocks"])
def test_order_of_the_file_does_not_bias(engine: Open, linkage: dpl.ELE, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows sorted by x: drawn partners stand for all others, within five deviations, and other ones are drawn when rows are opened again."""
    monkeypatch.setattr(SparkEngine, "circle", 500)
    rng = np.random.default_rng(5)
    n = 2000
    x = np.sort(rng.uniform(-1, 1, n))
    table = pa.table({"x": x, "y": 2.0 * x + 0.3 * rng.standard_normal(n), "block": np.zeros(n, np.int64)})
    design, clip = build_design("y ~ x", BOUNDS), ResidualClip(np.array([0.0, 0.5]), 0.3, 1.0, 0.3)
    C = np.eye(n) - 0.5 / (n - 1)
    expected = plain_formula(table, design, C, clip).sum(axis=1)
    source = engine(table)
    first, second = (source.open(design, linkage, FIXED).right_residuals(clip).vector for _ in range(2))
    deviation = 0.5 / np.sqrt(enough_partners(0.5, regrouped=False)) * 0.3 * np.sqrt(n)
    assert max(np.abs(first - expected).max(), np.abs(second - expected).max()) < 5 * deviation
    assert np.abs(expected).max() > 10 * deviation  # what neighbours in the file would miss is seen
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("linkage", [dpl.ELE(0.8), dpl.ELE(0.8, block="block", other=0.6)], ids=["one block", "blocks"])
@BY_SQL
def test_circles_are_kept_for_later_passes(engine: Open, linkage: dpl.ELE, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both steps meet the same partners, with any instrument; another scaling of the columns takes their place, and closing forgets them."""
    table, design = make_table(LARGE), build_design("y ~ x", BOUNDS)
    clip, source, dropped = clip_for(design), engine(table), list[str]()
    monkeypatch.setattr(type(source._engine), "drop", lambda _, name: dropped.append(name))
    found = source.open(design, linkage, FIXED)
    first = found.right_residuals(clip).vector
    aimed = replace(design, half_widths=(0.5,))
    with monkeypatch.context() as patched:
        patched.setattr(SqlEngine, "hold", lambda *_: pytest.fail("circles are drawn once"))
        assert np.array_equal(found.right_residuals(clip, MeatClip("row", np.ones(2), 0.3)).vector, first)
        found.with_design(aimed).right_residuals(clip)
        assert not any("circles" in name for name in dropped)
    found.with_design(build_design("y ~ x", {**BOUNDS, "y": (-4.0, 5.0)})).right_residuals(clip)
    assert sum("circles" in name for name in dropped) == 1
    found.close()
    assert sum("circles" in name for name in dropped) == 2


@pytest.mark.parametrize("linkage", [dpl.ELE(0.9), dpl.ELE(0.9, block="block", other=0.9)], ids=["one block", "blocks"])
@BY_SQL
def test_rows_that_may_be_regrouped_have_as_many_partners_as_the_bound_is_for(engine: Open, linkage: dpl.ELE) -> None:
    table, design = make_table(LARGE), build_design("y ~ x", BOUNDS)
    assert engine(table).open(design, linkage, FIXED).link_table.partners < PARTNERS
    regrouped = dpl.PrivacyUnit(linkage_change=1.0)
    assert engine(table).open(design, linkage, regrouped).link_table.partners == PARTNERS


@pytest.mark.parametrize("accuracy", [0.5, 0.8, 0.9, 0.999, 1.0])
def test_fewer_partners_are_enough_where_links_are_accurate(accuracy: float) -> None:
    partners = enough_partners(accuracy, regrouped=False)
    assert enough_partners(accuracy, regrouped=True) == PARTNERS  # for which the change of weights is bounded
    assert 1 <= partners <= PARTNERS // 2
    assert (1.0 - accuracy) / partners <= (1 / 32 if accuracy > 0.75 else 1 / 16)
    assert partners in (1, PARTNERS // 2) or (1.0 - accuracy) / (partners - 1) > 1 / 32  # no more than needed


def test_right_links_meet_their_own_responses_alone(engine: Open) -> None:
    table, design = make_table(SMALL), build_design("y ~ x + w", BOUNDS, None, {"x": (-0.4, 0.2)})
    clip = clip_for(design)
    terms = plain_formula(table, design, np.eye(table.num_rows), clip)
    source = engine(table)
    check(source.open(design, dpl.Exact(), FIXED), terms, None, clip)
    check(source.open(design, dpl.ELE(0.8, block="block", other=0.6), FIXED).own_rows(), terms, None, clip)


@pytest.mark.parametrize("accuracy_min", [0.95, 0.8])
@BY_SQL
def test_matching_matrices_are_unlinked_by_powers(
    engine: Open, accuracy_min: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, n = np.random.default_rng(3), sum(SMALL)
    Q = accuracy_min * np.eye(n)
    for share in (0.6, 0.4):
        Q += share * (1.0 - accuracy_min) * np.eye(n)[rng.permutation(n)]
    row, match = np.nonzero(Q)
    pairs = pa.table({"row": row, "match": match, "probability": Q[row, match]})
    table, design = make_table(SMALL).append_column("id", pa.array(np.arange(n))), build_design("y ~ x + w", BOUNDS)
    linkage = dpl.Matching(pairs, id="id", accuracy_min=accuracy_min)
    clip = clip_for(design)
    found = engine(table).open(design, linkage, dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1))
    terms = found.link_table.terms
    C = sum(np.linalg.matrix_power(np.eye(n) - Q, j) for j in range(terms))
    assert terms == {0.95: 3, 0.8: 6}[accuracy_min]
    check(found, plain_formula(table, design, C, clip), None, clip)
    monkeypatch.setattr(SqlEngine, "hold", lambda *_: pytest.fail("what unlinks the matrix is found once"))
    found.right_residuals(clip)


@pytest.mark.parametrize(("formula", "typical"), [("y ~ x + w", {"x": (-0.4, 0.2)}), ("y ~ 0 + x", None)])
def test_instrument_sums_are_weighed(engine: Open, formula: str, typical: Any) -> None:
    table, design = make_table(WHOLE), build_design(formula, BOUNDS, None, typical)
    accuracy = {"0": 0.9, "1": 0.7}
    codes, a, o = find_blocks(table, accuracy, 0.6)
    h, x, z = read_rows(table, design)
    Q = np.where(codes[:, None] == codes, o[:, None], 0.0) + np.diag(a)
    weights: dict[str | None, float] = {"0": 0.3, None: 0.55}
    w = np.array([{0: 0.3, 1: 1.0}.get(key, 0.55) for key in table["block"].to_pylist()])
    plain = engine(table).open(design, dpl.ELE(accuracy, block="block", other=0.6), FIXED)
    found = plain.with_weights(weights)
    others = plain.with_design(build_design(formula, BOUNDS, None, {"x": (-0.3, 0.3)}))
    other_h, other_x, _ = read_rows(table, others.design)
    for sums, instruments, matched in [
        (found.instrument_sums(), h * w, Q @ x.T),
        (found.own_rows(weighted=True).instrument_sums(), h * w * a, x.T),
        (plain.own_rows(weighted=True).instrument_sums(), h * a, x.T),
        (found.own_rows(weighted=False).instrument_sums(), h, x.T),
        (plain.with_weights(dict.fromkeys(accuracy, 1.0)).instrument_sums(), h, Q @ x.T),
        (others.with_weights(weights).instrument_sums(), other_h * w, Q @ other_x.T),
    ]:
        np.testing.assert_allclose(sums.matrix, instruments @ matched, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(sums.vector, instruments @ z, rtol=1e-10, atol=1e-10)
        assert sums.count == z.size


def test_one_block_is_weighed_by_its_contrast(engine: Open) -> None:
    table, design = make_table(WHOLE), build_design("y ~ x", BOUNDS)
    h, x, z = read_rows(table, design)
    a = 0.8 - 0.2 / (z.size - 1)
    found = engine(table).open(design, dpl.ELE(0.8), FIXED).own_rows(weighted=True)
    np.testing.assert_allclose(found.instrument_sums().matrix, a * h @ x.T, rtol=1e-10, atol=1e-10)
    clip = clip_for(design)
    check(found, a * plain_formula(table, design, np.eye(z.size), clip), np.zeros(z.size, np.int64), clip)


@pytest.mark.parametrize("weight", [0.0, -0.1, 1.01, float("nan")])
def test_weights_lie_between_0_and_1(engine: Open, weight: float) -> None:
    linkage = dpl.ELE({"0": 0.9}, block="block", other=0.6)
    found = engine(make_table(WHOLE)).open(build_design("y ~ x", BOUNDS), linkage, FIXED)
    with pytest.raises(dpl.StudyError, match="between 0 and 1"):
        found.with_weights({"0": weight})


def test_no_residual_exceeds_its_clip(engine: Open) -> None:
    """Responses next to the line as doubles are, and a clip that is smaller still: rounding its ends must not let residuals in."""
    n, line = 64, 1.0 / 3.0
    step = np.nextafter(line, 1.0) - line
    clip = ResidualClip(np.array([line, 0.0]), 1.0, 1.0, 0.6 / 0.7 * step)
    table = pa.table({"x": np.linspace(-1, 1, n), "y": np.full(n, line + step)})
    design = build_design("y ~ x", {"y": (-1.0, 1.0), "x": (-1.0, 1.0)})
    found = engine(table).open(design, dpl.Exact(), FIXED).right_residuals(clip).vector[0]
    assert 0.99 * n * clip.widest < found <= (1.0 + 1e-9) * n * clip.widest


def test_a_fit_that_fails_leaves_no_tables_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold rows, and the connection is the user's."""
    duckdb = pytest.importorskip("duckdb")
    add_by_sql(monkeypatch)
    connection, run = duckdb.connect(), DuckDBEngine.run
    connection.execute("create table t as select i / 1000.0 as x, i / 2000.0 as y, i // 30 as b from range(1000) r(i)")

    def fail(engine: DuckDBEngine, statement: str) -> Any:
        if "circles" in statement and not statement.startswith("drop"):
            raise RuntimeError
        return run(engine, statement)

    monkeypatch.setattr(DuckDBEngine, "run", fail)
    set_in_stage(monkeypatch, "_pays", lambda *public: True)
    with pytest.raises(dpl.ReleaseError) as caught:
        dpl.fit(
            connection.table("t"),
            "y ~ x",
            bounds={"x": (0, 1), "y": (0, 1)},
            linkage=dpl.ELE(0.8, "b", other=0.8),
            epsilon=8.0,
            delta=1e-6,
            large_epsilon=True,
        )
    del caught  # a traceback holds what its frames do
    assert not connection.execute("select * from duckdb_tables() where table_name like 'dplinked%'").fetchall()
