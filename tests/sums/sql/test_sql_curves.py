"""Sums along curves by SQL against those of memory, whatever the linkage; means of counts to the last digits, and failures that tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.outcomes import bin_counts
from dplinked.study.build import build_design
from dplinked.study.design import Design
from dplinked.study.family import LEAST_ETA, MOST_COUNTS, Curve
from dplinked.sums.engine import open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.sql.curve import follow_curve
from dplinked.sums.sql.dialect import FAILED
from dplinked.sums.sql.duckdb_engine import DuckDBEngine
from dplinked.sums.sql.spark import SparkEngine
from dplinked.sums.types import MeatClip, ResidualClip
from duckdb_ways import add_by_sql

Open = Callable[..., Any]

SIZES = [1, 2, 3, 5, 9, 8, 7, 6] * 3
N = sum(SIZES)
BOUNDS = {"x": (-1.0, 1.0), "w": (0.5, 30.0), "visits": (0, 6), "years": (0.5, 4.0)}
LEVELS = {"g": ["a", "b", "c"], "died": ["no", "yes"]}
FIXED, MOVING = dpl.PrivacyUnit(), dpl.PrivacyUnit(moves_block=True)
TABLE = {**{str(key): 0.6 + 0.01 * key for key in range(len(SIZES) - 1)}, "no such key": 0.5}
LINKAGES: dict[str, tuple[Any, dpl.PrivacyUnit]] = {
    "exact": (dpl.Exact(), FIXED),
    "lists": (dpl.ELE(0.7, block="b", other=0.6), FIXED),
    "circles": (dpl.ELE(0.7, block="b", other=0.6), MOVING),
    "table": (dpl.ELE(TABLE, block="b", other=0.55), FIXED),
    "matching": (None, dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)),
}


def make_table() -> pa.Table:
    """Rows with cells out of bounds, missing, infinite, and of undeclared levels; the last block has null keys."""
    rng = np.random.default_rng(0)
    x, keys = rng.normal(0.0, 0.7, N), rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    x[:4] = np.nan, np.inf, -np.inf, 1e300
    return pa.table(
        {
            "x": x, "w": pa.array(rng.gamma(1.0, 9.0, N), mask=np.arange(N) == 7), "years": rng.uniform(0.2, 5.0, N),
            "g": pa.array(rng.choice(["a", "b", "c", "z", None], N), pa.string()), "died": rng.choice(["no", "yes", "unknown"], N),
            "visits": rng.poisson(3.0, N), "b": pa.array(keys, mask=keys == len(SIZES) - 1), "id": np.arange(N),
        }
    )  # fmt: skip


def make_design(family: str, *, intercept: bool = True, **counted: str) -> Design:
    outcome = {"logistic": "died", "poisson": "visits"}[family]
    formula = f"{outcome} ~ {'' if intercept else '0 + '}x + I(w**2) + C(g)"
    exposure = "years" if family == "poisson" else None
    design = build_design(formula, BOUNDS, LEVELS, family=family, exposure=exposure, **counted)
    return design.with_instrument([0.6] * len(design.columns))


def find_linkage(name: str) -> tuple[Any, dpl.PrivacyUnit]:
    linkage, unit = LINKAGES[name]
    if linkage is None:
        i = np.arange(N)
        pairs = {"row": np.tile(i, 2), "match": np.append(i, (i + 5) % N), "probability": np.repeat([0.9, 0.1], N)}
        linkage = dpl.Matching(pa.table(pairs), id="id", accuracy_min=0.9)
    return linkage, unit


def clip_of(rows: LinkedRows, limit: float = 0.5, size: float = 1.0, *, exposed: bool = True) -> ResidualClip:
    beta = size * np.linspace(-0.7, 1.1, len(rows.design.names))
    return ResidualClip(beta, limit, 0.4 * rows.design.intercept, 1.0, curve=rows.design.curve, exposed=exposed)


def assert_near(found: Any, expected: Any, near: float = 1e-10) -> None:
    np.testing.assert_allclose(found, expected, rtol=near, atol=near * max(1.0, np.abs(expected).max()))


def check(found: LinkedRows, expected: LinkedRows, clip: ResidualClip) -> None:
    """The sums along the curve, the equation, and the squares by all routes."""
    one, two = found.curve_sums(clip, 0.4), expected.curve_sums(clip, 0.4)
    assert_near(one.vector, two.vector)
    assert_near(one.matrix, two.matrix)
    weights, near = np.linspace(1.0, 2.0, clip.beta.size), 1e-8  # memory keeps nine digits of the responses of partners
    for route in ["row", "block"] if found.blocks is not None else ["row"]:
        left, right = (rows.right_residuals(clip, MeatClip(route, weights, 0.3)) for rows in (found, expected))
        assert_near(left.vector, right.vector, near)
        assert_near(left.meat, right.meat, near)


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_sums_are_those_of_memory(engine: Open, family: str, linkage: str) -> None:
    """Lines that are level, steep, or so far out that exponentials would overflow; instruments shortened much or not at all."""
    table, design = make_table(), make_design(family, intercept=(linkage == "table") == (family == "poisson"))
    model, unit = find_linkage(linkage)
    found, expected = (source.linked_rows(design, model, unit) for source in (engine(table), open_source(table)))
    for limit, size in [(0.5, 1.0), (10.0, 0.0), (0.1, 1e300)]:
        check(found, expected, clip_of(expected, limit, size, exposed=size > 0.0))


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_rows_that_count_unevenly_have_the_sums_of_memory(engine: Open, family: str, linkage: str) -> None:
    """By weights and a condition, missing cells dropped; and how many rows count at all."""
    table, design = make_table(), make_design(family, weights="w", where="x > -0.5 and g != 'c'")
    model, unit = find_linkage(linkage)
    found, expected = (
        source.linked_rows(design, model, unit).without_missing() for source in (engine(table), open_source(table))
    )
    for limit in (0.05, 10.0):
        check(found, expected, clip_of(expected, limit))
    one, two = found.complete_rows(), expected.complete_rows()
    assert (one.known, one.complete) == (two.known, two.complete)
    assert 0 < one.known < N
    assert_near(found.weight_moments().sums, expected.weight_moments().sums)


@pytest.mark.parametrize("counted", [{"weights": "years"}, {"where": "years > 1"}], ids=["weights", "a condition"])
def test_rows_may_count_by_their_exposure(engine: Open, counted: dict[str, str]) -> None:
    """A row without one then counts nothing, in counts of rows too, which need no exposure."""
    table, (model, unit) = make_table(), find_linkage("lists")
    years = pa.array(np.where(np.arange(N) % 9 == 0, np.nan, table["years"].to_numpy()), from_pandas=True)
    table = table.set_column(table.column_names.index("years"), "years", years)
    design = make_design("poisson", **counted)
    found, expected = (
        source.linked_rows(design, model, unit).without_missing() for source in (engine(table), open_source(table))
    )
    check(found, expected, clip_of(expected))
    one, two = bin_counts(found), bin_counts(expected)
    assert one.incomplete == two.incomplete >= N // 9
    assert np.array_equal(one.counts, two.counts)


@pytest.mark.parametrize("partners", ["drawn", "one block"])
def test_every_response_is_the_partner_of_as_many_rows(
    engine: Open, partners: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The equation is linear in responses, and where no instrument is shortened partners cancel in the intercept's entry: ``Σ a (z - m)``."""
    monkeypatch.setattr(SparkEngine, "circle", 40)
    table, design, n = make_table(), make_design("poisson"), N
    linkage = dpl.ELE(0.8) if partners == "one block" else dpl.ELE(0.8, block="b", other=0.8)
    rows = engine(table.set_column(6, "b", pa.array(np.arange(N) % 3))).linked_rows(design, linkage, FIXED)
    clip, m = clip_of(rows, 1e3, exposed=False), n if partners == "one block" else n // 3
    own = open_source(table).linked_rows(design, dpl.Exact(), FIXED).right_residuals(clip).vector[0]
    assert rows.right_residuals(clip).vector[0] == pytest.approx((0.8 - 0.2 / (m - 1)) * own, rel=1e-9)


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_intercepts_may_be_alone(engine: Open, family: str) -> None:
    """Then the exposure, which has no instrument, is the only column."""
    table, exposure = make_table(), "years" if family == "poisson" else None
    outcome = {"logistic": "died", "poisson": "visits"}[family]
    design = build_design(f"{outcome} ~ 1", BOUNDS, LEVELS, family=family, exposure=exposure).with_instrument([])
    model, unit = find_linkage("lists")
    found, expected = (source.linked_rows(design, model, unit) for source in (engine(table), open_source(table)))
    check(found, expected, clip_of(expected))


def test_groups_are_weighed(engine: Open) -> None:
    table, design = make_table(), make_design("logistic")
    model, unit = find_linkage("table")
    weighed = {key: (0.2 + 0.03 * i, accuracy) for i, (key, accuracy) in enumerate(TABLE.items())}
    found, expected = (
        source.linked_rows(design, model, unit).with_weights(weighed) for source in (engine(table), open_source(table))
    )
    check(found, expected, clip_of(expected))
    again = found.engine.own_rows(weighted=True).curve_sums(clip_of(expected), 0.4)
    assert_near(again.vector, expected.curve_sums(clip_of(expected), 0.4).vector)


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 4, 17, 100, MOST_COUNTS])
def test_means_and_slopes_are_those_of_memory(engine: Open, largest: int) -> None:
    """0 stands for events. Lines go far beyond both ends, where exponentials would overflow."""
    curve = Curve("poisson", largest) if largest else Curve("logistic")
    eta = np.concatenate([[-1e300, -900.0, 900.0, 1e300], np.linspace(LEAST_ETA - 1.0, curve.highest + 1.0, 800)])
    source = engine(pa.table({"line": eta, "i": np.arange(eta.size)}))
    found = source._engine.run(
        f"select mean, slope from ({follow_curve(source._engine, curve, f'select c0 as line, c1 as i from {source._source}')}) cells order by i"
    )
    for one, two, most in zip(
        np.array(found).T, curve.mean_and_slope(eta), (curve.largest, curve.steepest), strict=True
    ):
        assert one.min() >= 0.0
        assert one.max() <= most
        np.testing.assert_allclose(one, two, rtol=0.0, atol=2e-13 * most)


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_a_step_that_fails_leaves_nothing_behind_and_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Circles hold rows, and the connection is the user's."""
    duckdb = pytest.importorskip("duckdb")
    add_by_sql(monkeypatch)
    connection, run, kept = duckdb.connect(), DuckDBEngine.run, list[str]()
    connection.register("given", make_table())
    connection.execute("create table t as select * from given")

    def fail(engine: DuckDBEngine, statement: str) -> Any:
        if "steep" in statement and kept:
            raise RuntimeError("the cell is 123456789")
        kept.extend(name for name in ["circles"] if f"temp table dplinked_{name}" in statement)
        return run(engine, statement)

    monkeypatch.setattr(DuckDBEngine, "run", fail)
    outcome = {"logistic": "died", "poisson": "visits"}[family]
    with pytest.raises(dpl.ReleaseError) as caught:
        dpl.fit(
            connection.table("t"), f"{outcome} ~ x", bounds=BOUNDS, levels=LEVELS, family=family,
            linkage=dpl.ELE(0.8), epsilon=4.0, delta=1e-6, exposure="years" if family == "poisson" else None,
        )  # fmt: skip
    assert str(caught.value) == FAILED
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    del caught  # a traceback holds what its frames do
    assert kept
    assert not connection.execute("select * from duckdb_tables() where table_name like 'dplinked%'").fetchall()
