"""DuckDB and Spark give the sums that memory gives, whatever the cells, keys and names; one body, every engine."""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb as ddb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dplinked as dpl
import sparks
from dplinked.data.csv import FROM_TEXT
from dplinked.data.keys import key_text
from dplinked.data.table import Rows
from dplinked.study.build import build_design
from dplinked.sums.engine import open_source
from dplinked.sums.sql import blocks, dialect, duckdb, duckdb_engine, duckdb_files
from dplinked.sums.sql import exact_sums as exact
from dplinked.sums.types import ResidualClip
from duckdb_ways import add_by_sql, copy_to_file
from engine_sums import every_sum

N = 301
BOUNDS = {"x": (-1.0, 1.0), "w": (0.5, 2.0), "y": (-3.0, 3.0)}
LEVELS = {"g": ["a", "b", "c"], "s": ["1", "2", "3"]}
UNIT = dpl.PrivacyUnit()
Open = Callable[..., Any]
BY_SQL = pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=sparks.MARKS)], indirect=True)


def make_table(seed: int = 0, keys: Any = None) -> pa.Table:
    """Rows with cells that no sum should trip over."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1.2, 1.2, N), rng.normal(size=N)
    x[3], x[50], x[90], x[91], x[92] = np.nan, np.inf, 1e300, -np.inf, -0.0
    y[3], y[11], y[12] = np.nan, np.nan, np.inf
    return pa.table(
        {
            "x": pa.array(x, mask=np.arange(N) == 7),
            "w": pa.array(rng.uniform(0.4, 2.1, N).astype(np.float32)),
            "y": y,
            "g": pa.array(rng.choice(["a", "b", "c", "zzz", None], N), pa.string()),
            "s": pa.array(rng.integers(1, 5, N)),
            "k": pa.array(rng.integers(100, 130, N) if keys is None else keys),
        }
    )


def all_sums(
    source: Any, formula: str, linkage: Any, unit: Any = UNIT, typical: Any = None, **counted: str
) -> dict[str, np.ndarray]:
    """What every verb of an engine returns."""
    design = build_design(formula, BOUNDS, LEVELS, typical, **counted)
    found = source.open(design, linkage, unit)
    result = every_sum(found)
    result["counts"] = found.column_counts(16).counts
    if found.blocks is not None:
        result["keys"] = np.array(sorted((str(k), m) for k, m in found.blocks.by_key.items()), dtype=object)
    return result


def assert_equal_sums(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        if values.dtype == object or values.dtype.kind == "i":
            np.testing.assert_array_equal(other[name], values, err_msg=name)
        else:
            near = 1e-8 if name.startswith("right") else 1e-10  # NumPy keeps nine digits of the responses of partners
            largest = np.abs(values).max(initial=0.0)
            largest = max(largest, largest**0.5) if name.startswith("right") else largest  # small squares keep fewer
            room = near * largest + 1e-15  # a grid does not hold the smallest numbers
            np.testing.assert_allclose(other[name], values, rtol=near, atol=room, err_msg=name)


KEYS: dict[str, Any] = {
    "many small blocks": np.arange(N) // 3,
    "few large blocks": np.arange(N) % 3,
    "blocks of one": np.where(np.arange(N) < 200, np.arange(N), 1000 + np.arange(N) % 7),
    "one block": np.zeros(N, np.int64),
    "nulls": pa.array([None] * N, pa.int64()),
    "small integers": pa.array(np.arange(N) % 9, pa.int8()),
    "texts": pa.array([None if i % 40 == 0 else ["é", "e", "E", "e ", "'; --", "日本", ""][i % 7] for i in range(N)]),
    "floats": np.where(np.arange(N) % 50 == 0, np.nan, np.where(np.arange(N) % 3 == 0, -0.0, np.arange(N) // 20 * 0.5)),
    "infinite floats": np.where(np.arange(N) % 7 == 0, np.inf, np.where(np.arange(N) % 5 == 0, -np.inf, 2.0)),
    "single floats": pa.array(np.arange(N) % 5 / np.float32(3), pa.float32()),
    "booleans": pa.array([None if i % 30 == 0 else i % 2 == 0 for i in range(N)]),
    "dates": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(i // 11) for i in range(N)]),
    "timestamps": pa.array([datetime.datetime(2020, 1, 1, 12) + datetime.timedelta(0, i // 9) for i in range(N)]),
    "instants": pa.array(np.arange(N) // 9 * 10**6, pa.timestamp("us", tz="UTC")),
    "decimals": pa.array([Decimal(i // 11) / 4 for i in range(N)], pa.decimal128(10, 2)),
    "whole decimals": pa.array([Decimal(10) ** 25 + i // 11 for i in range(N)], pa.decimal128(30, 0)),
}
FORMULAS = ["y ~ x + log(w) + C(g)", "y ~ 0 + x*w", "y ~ x:C(g) + sqrt(w) + C(s) + I((x + 2)**3 / w - 1)"]


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        pytest.param(kind, FORMULAS[i % 3], marks=pytest.mark.slow if i % 4 else ())  # every fourth by default
        for i, kind in enumerate(KEYS)
    ],
)
def test_one_accuracy(engine: Open, kind: str, formula: str) -> None:
    table = make_table(1, KEYS[kind])
    linkage, typical = dpl.ELE(0.8, block="k", other=0.9), {"x": (-0.4, 0.2)} if len(kind) % 2 else None
    unit = dpl.PrivacyUnit(moves_block=True)
    expected = all_sums(open_source(table), formula, linkage, unit, typical)
    assert_equal_sums(expected, all_sums(engine(table), formula, linkage, unit, typical))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if i % 4 != 1 else ())
        for i, kind in enumerate(KEYS)
        if kind not in ("nulls", "one block", "blocks of one")
    ],
)
def test_accuracy_tables(engine: Open, kind: str) -> None:
    """Every other key declared, by its text; texts that no cell of the column's type has are there too."""
    table = make_table(2, KEYS[kind])
    texts = sorted({str(key_text(key)) for key in table.column("k").to_pylist()} - {"None"})
    accuracy = {text: 0.6 + 0.3 / (1 + i) for i, text in enumerate(texts[::2])}
    accuracy |= {"no such key": 0.5, "1.0": 0.5, "01": 0.5, "1e1": 0.5, "9" * 40: 0.5, "2020-1-1": 0.5}
    linkage, unit = dpl.ELE(accuracy, block="k", other=0.7), dpl.PrivacyUnit(moves_block=True)
    expected = all_sums(open_source(table), "y ~ x + w", linkage, unit)
    assert_equal_sums(expected, all_sums(engine(table), "y ~ x + w", linkage, unit))


@pytest.mark.parametrize("linkage", [dpl.Exact(), dpl.ELE(0.8)], ids=["exact", "one block"])
@pytest.mark.parametrize("formula", ["y ~ x + I(w**2)", "y ~ 0 + C(g)", "y ~ 1"])
def test_without_blocks(engine: Open, linkage: Any, formula: str) -> None:
    table = make_table(3)
    assert_equal_sums(all_sums(open_source(table), formula, linkage), all_sums(engine(table), formula, linkage))


@pytest.mark.parametrize(
    "counted",
    [
        {"weights": "w"},
        {"where": "x > -0.3 and not g == 'b'"},
        {"weights": "w", "where": "(x + 1)**2 / w <= 1.5 or g in ['a', 'c']"},
        {"weights": "w", "where": "-0.5 < x <= 0.5"},
    ],
)
@pytest.mark.parametrize(
    "linkage", [dpl.ELE(0.8, block="k"), dpl.ELE(0.8), dpl.Exact()], ids=["blocks", "one", "exact"]
)
def test_what_rows_count(engine: Open, linkage: Any, counted: dict[str, str]) -> None:
    table = make_table(8, np.arange(N) // 6)
    expected = all_sums(open_source(table), "y ~ x", linkage, **counted)
    assert_equal_sums(expected, all_sums(engine(table), "y ~ x", linkage, **counted))
    plain = all_sums(open_source(table), "y ~ x", linkage)
    assert np.abs(expected["complete own S"] - plain["complete own S"]).max() > 1e-3


def test_rows_that_count_nothing_may_lie_anywhere_beside_a_matching_matrix(engine: Open) -> None:
    """Their residuals are clipped as far out as any, and must still fit into sums."""
    ids = pa.array(np.arange(N))
    pairs = pa.table(
        {
            "row": pa.concat_arrays([ids, ids]),
            "match": pa.concat_arrays([ids, ids.take(pa.array(np.roll(np.arange(N), 1)))]),
            "probability": np.repeat([0.9, 0.1], N),
        }
    )
    table, linkage = make_table(9).append_column("i", ids), dpl.Matching(pairs, id="i", accuracy_min=0.85)
    unit = dpl.PrivacyUnit(linkage_change=0.0, displaced_links=0)
    design = build_design("y ~ x", {**BOUNDS, "w": (0.0, 1e6)}, LEVELS, weights="w", where="x > 0.2")
    clip = ResidualClip(np.zeros(2), 1e-4, 1.0, 4.0)
    found = [
        source.open(design, linkage, unit).without_missing().right_residuals(clip).vector
        for source in (open_source(table), engine(table))
    ]
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("where", [None, "x > 0.2 and g != 'b'"])
def test_how_large_weights_are_is_the_same_everywhere(engine: Open, where: str | None) -> None:
    table = make_table(9)
    design = build_design("y ~ x", {**BOUNDS, "w": (0.0, 1.5)}, LEVELS, weights="w", where=where)
    found = [
        source.open(design, dpl.ELE(0.8, block="k"), dpl.PrivacyUnit()).weight_moments().sums
        for source in (open_source(table), engine(table))
    ]
    weights = [cell if cell is not None and np.isfinite(cell) else 0.0 for cell in table["w"].to_pylist()]
    assert where is not None or found[0][0] == pytest.approx((np.clip(weights, 0.0, 1.5) / 1.5).sum())
    assert 0.0 < found[0][2] < found[0][1] < found[0][0]
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_estimated_accuracies_are_raised(engine: Open) -> None:
    table = make_table(4, np.arange(N) // 2)
    linkage = dpl.ELE(0.3, block="k", source="estimated", accuracy_min=0.2)
    unit = dpl.PrivacyUnit(linkage_change=1.0)
    expected = all_sums(open_source(table), "y ~ x", linkage, unit)
    assert_equal_sums(expected, all_sums(engine(table), "y ~ x", linkage, unit))


def test_cells_that_statistics_of_parquet_pass_over(engine: Open) -> None:
    """The file says that all of x lies in [-½, ½]; it does not say that NaN is among it."""
    x = np.linspace(-0.5, 0.5, N)
    x[::10] = np.nan
    table = make_table(5).set_column(0, "x", pa.array(x))
    linkage = dpl.ELE(0.8, block="k")
    assert_equal_sums(all_sums(open_source(table), "y ~ x", linkage), all_sums(engine(table), "y ~ x", linkage))


def test_numeric_columns_of_other_types(engine: Open) -> None:
    table = make_table(6)
    columns = {
        "x": pa.array([None if i % 9 == 0 else i % 2 == 0 for i in range(N)]),
        "w": pa.array([None if i % 8 == 0 else Decimal(i) / 100 for i in range(N)], pa.decimal128(20, 4)),
        "y": pa.array(np.arange(N) % 9 - 4, pa.int16()),
    }
    for i, (name, column) in enumerate(columns.items()):
        table = table.set_column(i, name, column)
    linkage = dpl.ELE(0.8, block="k")
    assert_equal_sums(all_sums(open_source(table), "y ~ x + w", linkage), all_sums(engine(table), "y ~ x + w", linkage))


def matching_pairs(rng: np.random.Generator, ids: Any) -> pa.Table:
    other = rng.permutation(len(ids))
    return pa.table(
        {
            "row": pa.concat_arrays([ids, ids, ids]),
            "match": pa.concat_arrays([ids, ids.take(pa.array(other)), ids]),
            "probability": np.repeat([0.5, 0.3, 0.2], len(ids)) * (1 + 1e-6),
        }
    )


@pytest.mark.parametrize("kind", ["texts", "integers", "a file", "a CSV file"])
def test_a_matching_matrix_of_ids(engine: Open, kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    order = rng.permutation(N)
    ids = pa.array([f"é{i}" for i in order]) if kind == "texts" else pa.array(order)
    table, unit = make_table(7).append_column("id", ids), dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)
    pairs: Any = matching_pairs(rng, ids)
    expected = all_sums(open_source(table), "y ~ x + w", dpl.Matching(pairs, id="id"), unit)
    folder = tmp_path / "pairs"
    folder.mkdir()
    if kind == "a file":
        pq.write_table(pairs, folder / "pairs.parquet")
        pairs = folder / "pairs.parquet"
    if kind == "a CSV file":
        pa.csv.write_csv(pairs, folder / "pairs.csv")
        pairs = str(folder / "pairs.csv")
    found = all_sums(engine(table), "y ~ x + w", dpl.Matching(pairs, id="id", accuracy_min=0.7), unit)
    assert_equal_sums(expected, found)


WHOLE = {"integers": pa.int16(), "floats": pa.float64(), "texts": pa.string()}


@pytest.mark.parametrize("data", WHOLE)
@pytest.mark.parametrize("kind", WHOLE)
def test_ids_are_the_same_whatever_their_types(engine: Open, data: str, kind: str) -> None:
    """1, 1.0 and "1" are one id."""
    order = np.random.default_rng(7).permutation(N)
    table = make_table(7).append_column("id", pa.array(order).cast(WHOLE[data]))
    pairs = matching_pairs(np.random.default_rng(8), pa.array(order).cast(WHOLE[kind]))
    linkage, unit = dpl.Matching(pairs, id="id"), dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)
    expected = open_source(table).open(build_design("y ~ x", BOUNDS), linkage, unit).instrument_sums()
    found = engine(table).open(build_design("y ~ x", BOUNDS), linkage, unit).instrument_sums()
    np.testing.assert_allclose(found.matrix, expected.matrix, rtol=1e-10)


@pytest.mark.parametrize("wrong", [0.5, math.nan, 1e300, None, "-0", "0.0"])
@pytest.mark.parametrize("data", ["integers", "texts"])
def test_what_is_no_id_is_unknown(engine: Open, data: str, wrong: Any) -> None:
    table = make_table(7).append_column("id", pa.array(np.arange(N)).cast(WHOLE[data]))
    kind = pa.string() if isinstance(wrong, str) else pa.float64()
    ids = pa.concat_arrays([pa.array([wrong], kind), pa.array(np.arange(1, N)).cast(kind)])
    pairs = pa.table({"row": ids, "match": ids, "probability": np.ones(N)})
    linkage, unit = dpl.Matching(pairs, id="id"), dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)
    for source in (open_source(table), engine(table)):
        with pytest.raises(dpl.StudyError, match="not in 'id'"):
            source.open(build_design("y ~ x", BOUNDS), linkage, unit)


FAULTS: dict[str, Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table, dict[str, Any]]]] = {
    "an unknown id": lambda rows, pairs: (rows.slice(1), pairs, {}),
    "an id twice": lambda rows, pairs: (pa.concat_tables([rows, rows.slice(0, 1)]), pairs, {}),
    "a row without pairs": lambda rows, pairs: (rows, pairs.slice(1), {}),
    "a negative probability": lambda rows, pairs: (
        rows,
        pairs.set_column(2, "probability", pa.array(np.repeat(-0.5, pairs.num_rows))),
        {},
    ),
    "opposite signs": lambda rows, pairs: (
        rows,
        pairs.set_column(2, "probability", pa.array(np.repeat([2.0, 0.3, -1.3], N))),
        {},
    ),
    "NaN": lambda rows, pairs: (rows, pairs.set_column(2, "probability", pa.array([math.nan] * pairs.num_rows)), {}),
    "accuracy_min": lambda rows, pairs: (rows, pairs, {"accuracy_min": 0.8}),
    "column_sum": lambda rows, pairs: (
        rows,
        pairs.set_column(1, "match", pa.repeat(rows.column("id")[0], pairs.num_rows)),
        {},
    ),
    "a missing column": lambda rows, pairs: (rows, pairs.drop_columns("match"), {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_matching_matrix_are_those_of_memory(engine: Open, fault: str) -> None:
    rng = np.random.default_rng(8)
    table = make_table(8).append_column("id", pa.array(np.arange(N)))
    rows, pairs, declared = FAULTS[fault](table, matching_pairs(rng, table.column("id").combine_chunks()))
    linkage, design = dpl.Matching(pairs, id="id", **declared), build_design("y ~ x", BOUNDS)
    unit = dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)
    with pytest.raises(dpl.StudyError) as expected:
        open_source(rows).open(design, linkage, unit)
    with pytest.raises(dpl.StudyError) as found:
        engine(rows).open(design, linkage, unit)
    assert str(found.value) == str(expected.value)


def test_positions_mean_nothing_in_a_database(engine: Open) -> None:
    import scipy.sparse as sp

    unit = dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)
    with pytest.raises(dpl.StudyError, match="no positions"):
        engine(make_table()).open(build_design("y ~ x", BOUNDS), dpl.Matching(sp.eye_array(N).tocsr()), unit)


def test_columns_are_found_whatever_their_names(engine: Open) -> None:
    names = {"x": 'a"b', "w": "a`b.c", "y": '"; drop table x; --', "g": "sélect\n🎲", "s": "k", "k": "K"}
    table = make_table(9)
    bounds = {names[name]: limits for name, limits in BOUNDS.items()}
    source = engine(table, [names[name] for name in table.column_names])
    assert source.columns == tuple(names[name] for name in table.column_names)
    expected = open_source(table).open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k"), UNIT)
    design = build_design('`"; drop table x; --` ~ `a"b`', bounds)
    found = source.open(design, dpl.ELE(0.8, block="K"), UNIT)
    np.testing.assert_allclose(found.instrument_sums().matrix, expected.instrument_sums().matrix, rtol=1e-12)


@pytest.mark.parametrize(
    ("formula", "linkage"),
    [
        ("y ~ x + nowhere", dpl.ELE(0.8, block="k")),
        ("y ~ x", dpl.ELE(0.8, block="kk")),
        ("y ~ x + day", dpl.Exact()),
        ("y ~ x", dpl.ELE({"101": 0.9}, block="k")),
        ("y ~ x", dpl.ELE(0.01, block="k")),
    ],
)
def test_faults_are_those_of_memory(engine: Open, formula: str, linkage: Any) -> None:
    table = make_table(10).append_column("day", KEYS["dates"])
    design = build_design(formula, {**BOUNDS, "nowhere": (0.0, 1.0), "day": (0.0, 1.0)})

    def run(source: Any) -> None:
        source.require(design.variables, numeric=list(design.bounds))
        if linkage.block is not None:
            source.require([linkage.block])
        source.open(design, linkage, UNIT)

    with pytest.raises(dpl.StudyError) as expected:
        run(open_source(table))
    with pytest.raises(dpl.StudyError) as found:
        run(engine(table))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"\xff"] * N),
        pa.array([[1]] * N),
        pa.array([{"a": 1}] * N),
        pa.array([Decimal("0.5")] * N, pa.decimal128(38, 18)),
    ],
    ids=["bytes", "lists", "structs", "long decimals"],
)
def test_what_has_no_clear_text_is_no_key(engine: Open, column: Any) -> None:
    source = engine(make_table(11, column))
    with pytest.raises(dpl.StudyError, match=r"'k' holds .* cannot be compared"):
        source.require(["k"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_texts_are_the_numbers_that_memory_reads(engine: Open, kind: Any) -> None:
    texts = [
        "0.1", " +2.5e-1\t", "-.5", "1.", "1e400", "true", "True", "FALSE", "0.30000000000000004", "word", "", " ", "nan", "inf", "1_000", "１２",
        "0x10", "1,5", "--1", "tRue", "1e", "5 5", "🎲", "9" * 5000, None, "1d", "1f", "0b1", "\n1\n", "1\n2", "\u00a01",
    ]  # fmt: skip
    table = make_table(30)
    texts = [texts[i % len(texts)] for i in range(N)]
    column = pa.array(texts).dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else pa.array(texts, kind)
    table = table.set_column(0, "x", column)
    linkage = dpl.ELE(0.8, block="k")
    assert_equal_sums(all_sums(open_source(table), "y ~ x + w", linkage), all_sums(engine(table), "y ~ x + w", linkage))
    assert_equal_sums(
        all_sums(open_source({**table.to_pydict(), "x": texts}), "y ~ x", linkage),
        all_sums(engine(table), "y ~ x", linkage),
    )


def test_literals_are_read_as_they_are(engine: Open) -> None:
    rng = np.random.default_rng(12)
    values = rng.integers(0, 2**63, 400, dtype=np.uint64).view(np.float64) * rng.choice([-1.0, 1.0], 400)
    values = [v for v in values.tolist() if math.isfinite(v)]
    values += [0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 4.47, 1e22, -1e-7, 2.0**61]
    source = engine(make_table())
    (found,) = source._engine.run(f"select {', '.join(map(source._engine.double, values))}")
    assert [np.float64(v).tobytes() for v in found] == [np.float64(v).tobytes() for v in values]
    texts = ["", "'", '"', "\\", "a\nb", "é🎲", "\0", "$x", "%s", "{}", "'; drop table x; --"]
    (found,) = source._engine.run(f"select {', '.join(map(source._engine.text, texts))}")
    assert list(found) == texts


def assert_any_order(open_rows: Open) -> None:
    """Sums of shuffled rows are the same to the last digit, and those of memory but for rounding."""
    table = make_table(13)
    shuffled = table.take(pa.array(np.random.default_rng(13).permutation(N)))
    linkage = dpl.ELE(0.8, block="k")
    one, other = (all_sums(open_rows(data), "y ~ x + log(w)", linkage) for data in (table, shuffled))
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values, err_msg=name)
    assert_equal_sums(all_sums(open_source(table), "y ~ x + log(w)", linkage), one)


@BY_SQL
def test_sums_are_the_same_in_any_order(engine: Open) -> None:
    """Whole numbers are added."""
    assert_any_order(engine)


@pytest.mark.parametrize(("most", "grid"), [(100, 0), (0, 6)])
def test_larger_blocks_and_more_columns_do_not_mind_the_order(
    most: int, grid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Totals of blocks on two grids, and products of rows that their blocks are joined with."""
    monkeypatch.setattr(blocks, "MOST_TOTALS", most)
    monkeypatch.setattr(exact, "_ONE_TOTAL", grid)
    add_by_sql(monkeypatch)
    connection = ddb.connect()
    assert_any_order(lambda table: open_source(connection.from_arrow(table)))


@pytest.mark.parametrize("log", [0, 1, 5, 6, 7, 12])
def test_totals_of_blocks_are_exact(log: int) -> None:
    """Terms are rounded to steps of a grid, whose sum is that of fractions; a second grid has the rest of terms of large blocks."""
    engine = duckdb_engine.DuckDBEngine(duckdb_engine.connect(2))
    terms = [*np.random.default_rng(log).uniform(-1.0, 1.0, 2**log - 1).tolist(), 1.0]
    engine.keep_table("terms", pa.table({"v": terms}), "*")
    ((found,),) = engine.run(f"select {exact.block_total(engine, 'v', log)} from terms")
    step, total = Fraction(2) ** -min(51, 52 - log), sum(map(Fraction, terms))
    if log <= 6:
        assert Fraction(found) == sum(round(Fraction(term) / step) for term in terms) * step
        assert abs(Fraction(found) - total) <= (len(terms) + 80) * len(terms) * Fraction(2) ** -53
    else:
        assert found == float(sum(round(Fraction(term) / step**2) for term in terms) * step**2)
        assert found == float(total)


@BY_SQL
def test_many_rows_are_summed_on_a_second_grid(engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_ONE_GRID", 0)
    table, linkage = make_table(14), dpl.ELE(0.8, block="k")
    assert_equal_sums(all_sums(open_source(table), "y ~ x + w", linkage), all_sums(engine(table), "y ~ x + w", linkage))


def test_the_steward_can_look(engine: Open) -> None:
    table = make_table(15, KEYS["texts"])
    source, expected = engine(table), open_source(table)
    assert source.count_keys("k") == dict(expected.count_keys("k"))
    found, known = source.summarise_column("x", -1.0, 1.0), expected.summarise_column("x", -1.0, 1.0)
    assert (found.missing, found.below, found.above) == (known.missing, known.below, known.above)
    assert found.middle == pytest.approx(known.middle, abs=0.05)


@BY_SQL
def test_what_is_kept_goes_with_the_pass(engine: Open) -> None:
    source = engine(make_table(16))

    def kept() -> int:
        listed = source._engine.run("show tables")
        return sum("dplinked_blocks" in str(row) or "dplinked_acc" in str(row) for row in listed)

    before = kept()
    found = source.open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k"), UNIT)
    assert kept() == before + 1
    aimed = found.with_design(found.design)
    del found
    assert kept() == before + 1
    aimed.close()
    assert kept() == before


def test_nothing_private_is_shown(engine: Open) -> None:
    source = engine(make_table(17))
    found = source.open(build_design("y ~ x + w", BOUNDS), dpl.ELE(0.8, block="k"), UNIT)
    assert "withheld" in repr(found.instrument_sums())
    assert str(N) in repr(source)


def test_a_pass_needs_no_other_hold_on_its_rows(engine: Open) -> None:
    found = engine(make_table(18)).open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k"), UNIT)
    assert found.with_design(found.design).instrument_sums().count == N


# --- Spark alone ------------------------------------------------------------------------------------


def spark_only(test: Callable[..., None]) -> Callable[..., None]:
    for mark in sparks.MARKS:
        test = mark(test)
    return test


@spark_only
def test_spark_errors_tell_nothing_of_rows(session: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from dplinked.sums.sql import spark

    frame = session.sql("select cast(concat('secret', id) as double) as x, id as y, id as k from range(9)")
    unit = dpl.PrivacyUnit(moves_block=True)
    with pytest.raises(dpl.ReleaseError) as fault:
        spark.open_frame(frame).open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k"), unit).instrument_sums()
    assert str(fault.value) == dialect.FAILED
    assert fault.value.__context__ is None
    assert "secret" not in "".join(capfd.readouterr())


CONNECTED = """
import sys

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

import dplinked as dpl
from dplinked.sums.engine import open_source

sys.path.append("../..")  # where sparks.py is
from test_sql_engines import BOUNDS, UNIT, build_design, make_table, pa

session = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
table = make_table(4).append_column("id", pa.array(range(make_table(4).num_rows)))
frame, design, ids = session.createDataFrame(table), build_design("y ~ x", BOUNDS), table["id"]
pairs = pa.table({"row": ids, "match": ids, "probability": np.ones(len(ids))})
for linkage in (dpl.ELE(0.8, block="k", other=0.9), dpl.Exact(), dpl.Matching(pairs, id="id")):
    one, two = (open_source(data).open(design, linkage, UNIT).instrument_sums() for data in (table, frame))
    np.testing.assert_allclose(two.matrix, one.matrix, atol=1e-9)
print(type(frame).__module__, len(session.catalog.listTables()))
"""


@spark_only
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark Connect is not installed")
def test_spark_connect() -> None:
    """A frame of a remote session; in a process of its own, since a process has sessions of one kind."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CONNECTED],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(sparks.__file__).parent), os.environ.get("PYTHONPATH", "")]),
        },
        check=False,
    )
    assert done.stdout.split() == ["pyspark.sql.connect.dataframe", "0"], done.stderr[-2000:]
    assert "dplinked_" not in done.stderr


@spark_only
def test_spark_tables_and_selects(session: Any) -> None:
    from dplinked.sums.sql import spark

    session.range(20).selectExpr("id as x", "id as y", "id % 4 as k").createOrReplaceTempView("some_rows")
    assert spark.open_table("some_rows", session).count == 20
    assert spark.open_table("select * from some_rows where k > 0 -- not all", session).count == 15
    for wrong in ("nowhere", "drop view some_rows", "select 1; drop view some_rows", "cache table some_rows"):
        with pytest.raises(dpl.StudyError, match="Spark finds no such table"):
            spark.open_table(wrong, session)
    assert spark.open_table("some_rows", session).count == 20


@spark_only
def test_spark_collations_do_not_merge_keys(session: Any) -> None:
    from dplinked.sums.sql import spark

    frame = session.sql(
        "select id as y, id as x, collate(k, 'UTF8_LCASE') as k from values (1, 'a'), (2, 'A'), (3, 'a ') t(id, k)"
    )
    assert spark.open_frame(frame).count_keys("k") == {"a": 1, "A": 1, "a ": 1}


@spark_only
def test_spark_keys_that_are_not_utf8_are_none(session: Any) -> None:
    from dplinked.sums.sql import spark

    frame = session.sql(
        "select id as y, id as x, cast(unhex(k) as string) as k from values (1, 'FF'), (2, 'FE'), (3, '61'), (4, null) t(id, k)"
    )
    assert spark.open_frame(frame).count_keys("k") == {None: 3, "a": 1}


@spark_only
def test_spark_selects_have_a_value_for_all_cells(session: Any) -> None:
    """A word in place of a number, and a product that overflows, are cells like others; the session's own mode is as it was."""
    from dplinked.sums.sql import spark

    session.sql("select * from values ('7', 2147483647), ('word', 1) t(code, income)").createOrReplaceTempView("cells")
    before = session.conf.get("spark.sql.ansi.enabled")
    rows = spark.open_table(
        "select cast(code as int) as x, income * 1000 as y, 1 / (income - 1) as w from cells", session
    )
    assert [rows.summarise_column(name, -1e12, 1e12).missing for name in "xyw"] == [1, 0, 1]
    assert session.conf.get("spark.sql.ansi.enabled") == before


@spark_only
def test_a_ledger_freezes_spark_tables(session: Any, tmp_path: Path) -> None:
    """A file that changes changes the frame; fingerprint and sums see the rows of one moment."""
    from dplinked.sums.sql import spark

    pq.write_table(pa.table({"x": np.linspace(0, 1, 50), "y": np.linspace(0, 1, 50)}), tmp_path / "rows.parquet")
    frame = session.read.parquet(str(tmp_path / "rows.parquet"))
    frozen = spark.resolve_data(frame)
    before = b"".join(spark.open_data(frozen).content())
    assert before == b"".join(spark.open_data(frame).content())
    pq.write_table(pa.table({"x": np.linspace(0, 1, 50), "y": np.linspace(1, 0, 50)}), tmp_path / "rows.parquet")
    assert b"".join(spark.open_data(frozen).content()) == before
    frozen.createOrReplaceTempView("frozen_rows")
    ledger = dpl.Ledger.create(tmp_path / "budget.db", "people", epsilon=2.0, delta=1e-5)
    ledger.register(dpl.SparkTable("frozen_rows"), linkage=dpl.Exact())
    options: dict[str, Any] = {"bounds": {"x": (0, 1), "y": (0, 1)}, "linkage": dpl.Exact(), "epsilon": 0.5, "delta": 1e-6}  # fmt: skip
    assert dpl.fit(dpl.SparkTable("frozen_rows"), "y ~ x", **options, ledger=tmp_path / "budget.db").count == 50
    with pytest.raises(dpl.LedgerError, match="not registered"):
        dpl.fit(dpl.SparkTable("select * from frozen_rows"), "y ~ x", **options, ledger=tmp_path / "budget.db")


# --- DuckDB alone -----------------------------------------------------------------------------------

NUMBERS = [
    "1",
    " 2\t",
    "+.5",
    "-1e-1",
    "1.",
    "",
    '""',
    "abc",
    "1e400",
    "-1e400",
    "1e-400",
    "NaN",
    "inf",
    "0x1",
    "1_0",
    "1 2",
    "٣",
]


@pytest.mark.usefixtures("way")
def test_csv_files_are_texts(tmp_path: Path) -> None:
    words = ["a", "b", "", '""', " a", "é"]
    lines = [f"{NUMBERS[i % len(NUMBERS)]},{i % 3},{words[i % 6]},b{i % 4}" for i in range(N)]
    path = tmp_path / "rows.csv"
    path.write_text("x,y,g,k\n" + "\n".join(lines) + '\n0.5,1,"a","b\n1"\n', encoding="utf-8")
    expected = all_sums(open_source(path), "y ~ x + C(g)", dpl.ELE(0.8, block="k"))
    found = duckdb.open_files([path], "csv")
    assert_equal_sums(expected, all_sums(found, "y ~ x + C(g)", dpl.ELE(0.8, block="k")))
    assert dict(found.count_keys("g")) == dict(open_source(path).count_keys("g"))
    with pytest.raises(dpl.StudyError, match=r"Column 'X' is not in the data\. The steward's 'check' lists"):
        found.require(["X"])


def test_several_csv_files(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text(f"x,y,k\n0.{i},1,a\n0.5,{i},b\n", encoding="utf-8")
    assert duckdb.open_files(str(tmp_path / "*.csv"), "csv").count == 6
    (tmp_path / "3.csv").write_text("y,x,k\n1,1,a\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="same columns"):
        duckdb.open_files(str(tmp_path / "*.csv"), "csv")


@pytest.mark.parametrize(
    "content", [b"x,y\n1\n", b"x,y\n1,2,secret\n", b"x,y\n1,\xff\xfesecret\n", b"", b'x,y\n1,"secret']
)
def test_broken_csv_files_are_found_before_anything_is_spent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(dpl.StudyError, match="cannot be read as csv") as fault:
        duckdb.open_files([path], "csv")
    assert "secret" not in str(fault.value)
    assert fault.value.__context__ is None


@pytest.mark.parametrize("lines", [True, False])
def test_json_files_are_texts(tmp_path: Path, lines: bool) -> None:
    cells = [1, "2", 0.25, None, "abc", {"a": 1}, [2], 1e300, "1e400"]
    records = [
        {
            "x": cells[i % 9],
            "y": i % 3,
            "g": ["a", "b", None, 7][i % 4],
            "k": f"b{i % 5}",
            **({"K/~": 1} if i == 9 else {}),
        }
        for i in range(N)
    ]
    del records[0]["x"]
    path = tmp_path / "rows.json"
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=1)
    path.write_text(text, encoding="utf-8")
    source = duckdb.open_files([path], "json", ["x", "y", "g", "k", "K/~", "absent"])
    assert source.columns == ("x", "y", "g", "k", "K/~", "absent")
    assert source.count_keys("K/~") == {"1": 1, None: N - 1}
    assert source.count_keys("absent") == {None: N}
    numbers = [r.get("x") if isinstance(r.get("x"), (int, float, str)) else None for r in records]
    table = pa.table(
        {
            "x": pa.array([float(v) if v is not None and v != "abc" else None for v in numbers]),
            "y": pa.array([r["y"] for r in records]),
            "g": pa.array([None if r["g"] is None else str(r["g"]) for r in records]),
            "k": pa.array([r["k"] for r in records]),
        }
    )
    linkage = dpl.ELE(0.8, block="k")
    assert_equal_sums(all_sums(open_source(table), "y ~ x + C(g)", linkage), all_sums(source, "y ~ x + C(g)", linkage))


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        '{"z": 1}',
        '{"x": true}',
        "5",
        "null",
        "[1, 2]",
        '"x"',
        '{"x": 1, "x": "secret"}',
        '{"x": "\\ud800"}',
        '{"X": 1, "secret": {"y": 1}}',
    ],
)
@pytest.mark.parametrize("suffix", ["json", "jsonl", "array"])
def test_no_record_decides_which_columns_there_are(tmp_path: Path, suffix: str, record: str) -> None:
    """One person's keys, or a record that is no object, change neither the columns nor the number of rows."""
    if suffix == "array" and "ud800" in record:
        pytest.skip("DuckDB takes an array with half a surrogate pair for malformed as a whole.")
    usual = ['{"x": 0.5, "y": 1}', '{"x": "0.25", "y": 2}', '{"x": null}']
    records = [usual[0], record, *usual[1:]]
    path = tmp_path / ("rows.json" if suffix == "array" else f"rows.{suffix}")
    path.write_text(f"[{', '.join(records)}]" if suffix == "array" else "\n".join(records), encoding="utf-8")
    source = open_source(path, ["x", "y", "z"])
    assert (source.count, source.columns) == (4, ("x", "y", "z"))
    source.require(["x", "y", "z"], numeric=["x", "y", "z"])
    assert source.open(build_design("y ~ x", BOUNDS), dpl.Exact(), UNIT).instrument_sums().count == 4


def test_a_line_that_is_no_record_is_a_row_of_nulls(tmp_path: Path) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_bytes(b'{"x": 1}\n{"x": [}\n{"x": "\xff"}\n{"x": 3}\n')
    assert open_source(path, ["x"]).count_keys("x") == {"1": 1, "3": 1, None: 2}


def test_json_files_have_no_columns_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"secret": 1}', encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="Name the columns to read") as refused:
        open_source(tmp_path / "rows.json")
    assert "secret" not in str(refused.value)


def test_parquet_files_and_partitions(tmp_path: Path) -> None:
    table = make_table(20, np.arange(N) % 6)
    for key in range(6):
        folder = tmp_path / f"k={key if key else '__HIVE_DEFAULT_PARTITION__'}"
        folder.mkdir()
        pq.write_table(table.filter(pa.compute.equal(table["k"], key)).drop_columns("k"), folder / "a[1].parquet")
    source = duckdb.open_files(sorted(tmp_path.rglob("*.parquet")), "parquet")
    keys = [None if key == 0 else str(key) for key in table.column("k").to_pylist()]
    expected = all_sums(open_source(table.set_column(5, "k", pa.array(keys))), "y ~ x + w", dpl.ELE(0.8, block="k"))
    assert_equal_sums(expected, all_sums(source, "y ~ x + w", dpl.ELE(0.8, block="k")))


def test_names_that_duckdb_confuses_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1], "K": [2]}), tmp_path / "a.parquet")
    with pytest.raises(dpl.StudyError, match="upper and lower case"):
        duckdb.open_files([tmp_path / "a.parquet"], "parquet")


def test_queries_over_databases(tmp_path: Path) -> None:
    table = make_table(21)
    with ddb.connect(str(tmp_path / "rows.db")) as connection:
        connection.register("given_table", table)
        connection.execute('create table "my rows" as select * from given_table')
    query = 'select x, w, y, g, s, k from base."my rows" where true -- all of them\n;'
    source = duckdb.open_query(dpl.Query(query, {"base": "rows.db"}, tmp_path))
    expected = all_sums(open_source(table), "y ~ x + C(g)", dpl.ELE(0.8, block="k"))
    assert_equal_sums(expected, all_sums(source, "y ~ x + C(g)", dpl.ELE(0.8, block="k")))


@pytest.mark.parametrize("end", ["", ";", " ;; ", "; -- 'all'", "-- all; of them", "/* ; */;\n-- é;\n", ' -- "'])
def test_queries_end_as_they_like(end: str) -> None:
    source = duckdb.open_query(dpl.Query(f"select i as x, ';é' as g from range(9) t(i){end}"))
    assert (source.count, source.columns) == (9, ("x", "g"))


@pytest.mark.parametrize("name", ["a, b", "a[1]", "it's *"])
def test_queries_in_folders_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for part in range(2):
        pq.write_table(make_table(part), folder / f"part-{part}.parquet")
    assert duckdb.open_query(dpl.Query("select * from 'part-*.parquet'", folder=folder)).count == 2 * N
    assert duckdb.open_query(dpl.Query("select * from 'part-1.parquet'", folder=folder)).count == N


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1; select 2 -- both", "one SELECT"),
        ("drop table x", "one SELECT"),
        ("select 1; select 2", "one SELECT"),
        ("copy (select 1) to '/tmp/x.csv'", "one SELECT"),
        ("selec 'secret'", "cannot be read as SQL"),
        ("select secret from nowhere", "The query fails"),
    ],
)
def test_queries_that_are_refused(query: str, message: str) -> None:
    with pytest.raises(dpl.StudyError, match=message) as fault:
        duckdb.open_query(dpl.Query(query))
    assert "secret" not in str(fault.value)


def test_databases_that_cannot_be_attached(tmp_path: Path) -> None:
    with pytest.raises(dpl.StudyError, match=r"no database 'x\.db'"):
        duckdb.open_query(dpl.Query("select 1", {"base": str(tmp_path / "x.db")}))
    (tmp_path / "y.db").write_text("no database", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="'base' cannot be opened"):
        duckdb.open_query(dpl.Query("select 1", {"base": str(tmp_path / "y.db")}))
    connection = sqlite3.connect(tmp_path / "z.db")
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()
    installed = ddb.sql("select installed from duckdb_extensions() where extension_name like 'sqlite%'").fetchall()
    if not installed[0][0]:
        with pytest.raises(dpl.StudyError, match="extension 'sqlite'"):
            duckdb.open_query(dpl.Query("select * from base.t", {"base": str(tmp_path / "z.db")}))


def test_a_relation_is_fitted() -> None:
    connection = ddb.connect()
    connection.register("given_table", make_table(22))
    relation = connection.sql("select * from given_table")
    release = dpl.fit(relation, "y ~ x", bounds=BOUNDS, linkage=dpl.ELE(0.8, block="k"), epsilon=1.0, delta=1e-5)
    assert release.count == N
    assert not connection.sql("select table_name from duckdb_tables() where table_name like 'dplinked%'").fetchall()


@pytest.mark.parametrize("kind", ["table", "view", "temp view"])
def test_tables_of_a_connection_do_not_hide_accuracies(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB looks for a name in the connection first, and then among Python's variables."""
    add_by_sql(monkeypatch)
    connection, run = ddb.connect(), duckdb_engine.DuckDBEngine.run
    connection.register("given_table", make_table(22))
    monkeypatch.setattr(dialect.Kept, "__init__", lambda self, engine, what: setattr(self, "name", f"kept_{what}"))

    def hide(self: duckdb_engine.DuckDBEngine, statement: str) -> Any:
        """Before a name is looked for, have a table of that name and of the one that would come next."""
        for name in ("KEPT_accuracies_given", "kept_accuracies_given_", "dplinked_declared_accuracies_as_arrow_table"):
            connection.execute(f"create or replace {kind} {name} as select 0 as g, '101' as t, 0.1 as y")
        return run(self, statement)

    monkeypatch.setattr(duckdb_engine.DuckDBEngine, "run", hide)
    linkage = dpl.ELE({"101": 0.9}, block="k", other=0.7)
    found = open_source(connection.table("given_table")).open(build_design("y ~ x", BOUNDS), linkage, UNIT)
    expected = open_source(make_table(22)).open(build_design("y ~ x", BOUNDS), linkage, UNIT)
    np.testing.assert_allclose(found.instrument_sums().matrix, expected.instrument_sums().matrix, rtol=1e-10)


def test_a_connection_that_hides_python_from_duckdb_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DuckDB adds rows itself; a copy needs no tables of Python's."""
    connection = ddb.connect()
    connection.execute("create table t as select 1.0 as x, 1.0 as y, 1 as k")
    connection.execute("set python_enable_replacements = false; set enable_external_access = false")
    source, design = open_source(connection.table("t")), build_design("y ~ x", BOUNDS)
    assert source.open(design, dpl.ELE(0.9, block="k"), UNIT).instrument_sums().count == 1
    add_by_sql(monkeypatch)
    with pytest.raises(dpl.StudyError, match="python_enable_replacements"):
        source.open(design, dpl.ELE(0.9, block="k"), UNIT)


BROKEN: dict[str, Any] = {
    "texts": pa.array([b"a", b"\xff"] * 150 + [b"b"]).view(pa.string()),
    "moments": pa.array([2**62] * N, pa.timestamp("ms")),
    "instants": pa.array([2**62] * N, pa.timestamp("ms", tz="UTC")),
}


def broken_file(folder: Path, kind: str, name: str) -> Path:
    table = make_table(23)
    field = pa.field(name, BROKEN[kind].type, metadata=FROM_TEXT if name == "x" else None)
    table = table.set_column(table.schema.get_field_index(name), field, BROKEN[kind])
    # DuckDB would find most of them by their statistics, and refuse the file when it is opened
    pq.write_table(table, folder / "a.parquet", write_statistics=False)
    return folder / "a.parquet"


@pytest.mark.parametrize(
    ("kind", "name"), [("texts", "x"), *((kind, name) for kind in ("texts", "moments", "instants") for name in "gk")]
)
@pytest.mark.usefixtures("way")
def test_cells_that_duckdb_refuses_are_found_with_the_blocks(tmp_path: Path, kind: str, name: str) -> None:
    source = duckdb.open_files([broken_file(tmp_path, kind, name)], "parquet")
    design, unit = build_design("y ~ x + C(g)", BOUNDS, LEVELS), dpl.PrivacyUnit(moves_block=True)
    with pytest.raises(dpl.ReleaseError) as fault:
        source.open(design, dpl.ELE(0.8, block="k", other=0.8), unit)
    assert str(fault.value) == dialect.FAILED
    assert fault.value.__context__ is None


@pytest.mark.parametrize("name", ["g", "k"])
def test_cells_that_duckdb_refuses_cost_nothing(tmp_path: Path, name: str) -> None:
    broken_file(tmp_path, "texts", name)
    ledger = dpl.Ledger.create(tmp_path / "l.db", "people", epsilon=3.0, delta=1e-5)
    bounds = {name: BOUNDS[name] for name in ("x", "y")}
    study = dpl.Study(
        formula="y ~ x + C(g)",
        bounds=bounds,
        epsilon=0.5,
        delta=1e-6,
        linkage=dpl.ELE(0.8, block="k"),
        levels={"g": ["a", "b"]},
        ledger=tmp_path / "l.db",
    )
    with pytest.raises(dpl.StudyError, match="cannot be read"):
        ledger.register(dpl.Query("select * from 'a.parquet'", folder=tmp_path), linkage=study.linkage)
    with pytest.raises(dpl.LedgerError, match=r"Nothing was spent\."):
        dpl.fit_study(study, dpl.Query("select * from 'a.parquet'", folder=tmp_path))
    assert ledger.balance().spent == 0


@pytest.mark.usefixtures("way")
def test_engine_errors_tell_nothing_of_rows() -> None:
    """A relation is the caller's own: what fails in it is told without the engine's words, which quote cells."""
    query = (
        "select case when i = 7 then cast('secret' || i as double) else i end as x, i as y, i as k from range(9) t(i)"
    )
    for block in (None, "k"):  # blocks are totalled when they are found, before anything is spent
        source, linkage = duckdb.open_relation(ddb.connect().sql(query)), dpl.ELE(0.8, block=block)
        with pytest.raises(dpl.ReleaseError) as fault:
            source.open(build_design("y ~ x", BOUNDS), linkage, dpl.PrivacyUnit(moves_block=True)).instrument_sums()
        assert str(fault.value) == dialect.FAILED
        assert fault.value.__context__ is None


@pytest.mark.usefixtures("way")
def test_collations_do_not_merge_keys() -> None:
    connection = ddb.connect()
    connection.execute("create table t (x double, y double, k varchar collate nocase)")
    connection.execute("insert into t values (1, 1, 'a'), (0.5, 1, 'A'), (0, 2, 'a'), (0, 2, 'A')")
    source = duckdb.open_relation(connection.table("t"))
    assert source.count_keys("k") == {"a": 2, "A": 2}
    found = source.open(build_design("y ~ x", BOUNDS), dpl.ELE({"a": 0.9}, block="k", other=0.7), UNIT)
    assert found.blocks is not None
    assert found.blocks.by_key == {"a": 2, None: 2}


CELLS = st.one_of(
    st.none(), st.floats(width=64), st.floats(-2, 2), st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, 1e308])
)


ANY_ROWS = st.lists(
    st.tuples(CELLS, CELLS, CELLS, st.sampled_from(["a", "b", "q", None]), st.one_of(st.none(), st.integers(0, 5))),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("examples", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_any_cells(examples: int) -> None:
    @given(ANY_ROWS, st.sampled_from(FORMULAS[:2]), st.sampled_from([0.7, {"0": 0.9, "1": 0.8}]))
    @settings(max_examples=examples, deadline=None)
    def sums_are_those_of_memory(cells: list[tuple[Any, ...]], formula: str, accuracy: Any) -> None:
        x, w, y, g, k = zip(*cells, strict=True)
        floats = [pa.array(column, pa.float64()) for column in (x, w, y)]
        names = ["x", "w", "y", "g", "k"]
        table = pa.table([*floats, pa.array(g, pa.string()), pa.array(k, pa.int64())], names=names)
        linkage, unit = dpl.ELE(accuracy, block="k", other=0.75), dpl.PrivacyUnit(moves_block=True)
        connection = ddb.connect()
        connection.register("given_table", table)
        expected = all_sums(open_source(table), formula, linkage, unit)
        for way in (add_by_sql, copy_to_file, None):
            with pytest.MonkeyPatch.context() as patch:
                if way is not None:
                    way(patch)
                found = all_sums(duckdb.open_relation(connection.table("given_table")), formula, linkage, unit)
            assert_equal_sums(expected, found)

    sums_are_those_of_memory()


@pytest.mark.parametrize("query", ["select * from 'a.csv'", "select * from read_json('a.json')", "select * from seen"])
def test_queries_that_guess_types_from_cells_are_refused(tmp_path: Path, query: str) -> None:
    """One person's "zz" would turn a column of numbers into texts, and everybody's 1.0 into another level."""
    (tmp_path / "a.csv").write_text("x,y\n1.0,2\n", encoding="utf-8")
    (tmp_path / "a.json").write_text('{"x": 1.0}\n', encoding="utf-8")
    import duckdb as engine

    base = engine.connect(str(tmp_path / "b.db"))
    base.execute(f"create view seen as select * from '{tmp_path / 'a.csv'}'")
    base.close()
    attach = {"b": "b.db"} if "seen" in query else {}
    with pytest.raises(dpl.StudyError, match=r"guess types|a view reads files by itself"):
        duckdb.open_query(dpl.Query(query.replace("seen", "b.seen"), attach, tmp_path))
    relation = engine.connect().sql(f"select * from '{tmp_path / 'a.csv'}'")
    with pytest.raises(dpl.StudyError, match="guess types"):
        open_source(relation)


def test_folders_with_equal_signs_are_no_columns_of_csv_files(tmp_path: Path) -> None:
    folder = tmp_path / "c1=0"
    folder.mkdir()
    for part in ("a", "b"):
        (folder / f"{part}.csv").write_text("x,y\n0.5,1\n0.25,2\n", encoding="utf-8")
    found = open_source(str(folder / "*.csv")).summarise_column("y", 1.5, 9.0)
    assert (found.missing, found.below, found.above) == (0, 2, 0)


@pytest.mark.parametrize("fault", [ddb.InterruptException("INTERRUPT"), RuntimeError("Query interrupted")])
def test_an_interruption_of_duckdb_is_one(fault: Exception, tmp_path: Path) -> None:
    class Interrupted:
        def execute(self, _: str) -> None:
            raise fault

    connection: Any = Interrupted()
    engine = duckdb_engine.DuckDBEngine(connection)
    for call in (
        lambda: engine.run("select 1"),
        lambda: engine.keep("t", "select 1"),
        lambda: engine.keep_table("t", pa.table({"a": [1]}), "*"),
        lambda: duckdb_files.read_through(engine.run, "t", [tmp_path]),
        lambda: duckdb_files.json_source(connection, [tmp_path], ["a"]),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()


def test_messages_show_plain_names_of_types_only() -> None:
    kinds = {"STRUCT(secret INTEGER)": "STRUCT", "INTEGER[]": "LIST", "array<int>": "array", "DATE": "DATE"}
    assert {kind: dialect.SqlColumn("k", "c0", "other", kind).type_name for kind in kinds} == kinds
    cells = pl.DataFrame({"k": [{"secret": 1}]})
    with pytest.raises(dpl.StudyError, match="'k' holds Struct, which") as fault:
        Rows(cells).check_key("k")
    assert "secret" not in str(fault.value)
