"""Copies of rows of DuckDB's: odd cells mean in them what they mean to DuckDB, and nothing of them is left behind or told."""

from __future__ import annotations

import gc
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.data.encoding import CHANGED
from dplinked.study.build import build_design
from dplinked.sums.engine import Source, open_source
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.circle import draw_places, make_circle
from dplinked.sums.numpy.tables import TablePass
from dplinked.sums.partners import PARTNERS
from dplinked.sums.sql import duckdb_copy
from dplinked.sums.sql.dialect import FAILED
from dplinked.sums.sql.duckdb_engine import DuckDBEngine
from dplinked.sums.sql.passes import SqlPass
from duckdb_ways import add_by_sql, copy_to_file
from engine_sums import every_sum

N = 240
BOUNDS = {"x": (-1.0, 1.0), "y": (-3.0, 3.0)}
DESIGN, BLOCKS, UNIT = build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k", other=0.9), dpl.PrivacyUnit()
LONG = "é" * 70  # more bytes than a copy keeps, fewer letters


def make_table(**columns: Any) -> pa.Table:
    rng = np.random.default_rng(0)
    given = {"x": rng.uniform(-1, 1, N), "y": rng.normal(size=N), "k": np.arange(N) // 4}
    return pa.table({**given, **columns})


def relation(table: pa.Table, query: str = "select * from t") -> Any:
    connection = duckdb.connect()
    connection.register("given", table)
    connection.execute("create table t as select * from given")
    return connection.sql(query)


def folders(tmp_path: Path) -> list[Path]:
    gc.collect()
    return list(tmp_path.glob("dplinked-*"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; every copy is one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy_to_file(monkeypatch)
    return tmp_path


def repeat(*cells: Any) -> list[Any]:
    return [cells[i % len(cells)] for i in range(N)]


NUMERAL = "0." + "0" * 200 + "1"
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "numbers": ({"x": repeat(0.5, np.nan, np.inf, -np.inf, 1e300, -0.0, None, 5e-324)}, "select * from t"),
    "texts as numbers": ({"x": repeat(" 0.25\t", "1e400", "true", "FALSE", "word", "", None, NUMERAL, LONG, "-.5")}, "select * from t"),
    "long keys": ({"k": repeat(LONG, LONG + "a", LONG + "b", "k", "", None, "x" * 5000, NUMERAL)}, "select * from t"),
    "long levels": ({"g": repeat(LONG, LONG + "a", "1", "1.0", "2." + "0" * 300, "b", None, "no level")}, "select * from t"),
    "the largest whole numbers": ({"k": repeat(*range(7))}, "select * replace (170141183460469231731687303715884105727::hugeint - k as k) from t"),
    "whole numbers without signs": ({"k": repeat(*range(7))}, "select * replace (340282366920938463463374607431768211455::uhugeint - k::uhugeint as k) from t"),
    "decimals": ({"k": pa.array(repeat(Decimal("1.50"), Decimal("2.00"), None), pa.decimal128(9, 2))}, "select * from t"),
    "lists": ({"k": repeat("a", "b"), "x": repeat("a", "b", None)}, "select * replace (x::enum('a', 'b') as x, k::enum('a', 'b') as k) from t"),
    "moments": ({"k": pa.array(repeat(0, 10**15, None, 2**62), pa.timestamp("us", tz="Asia/Tokyo"))}, "select * from t"),
    "days": ({"k": pa.array(repeat(0, 20_000, None, 2**30), pa.date32())}, "select * from t"),
    "a key that is a number too": ({"x": repeat("0.5", " 0.5", "word", NUMERAL, None)}, "select *, x as k2 from t"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_odd_cells_give_the_same_sums_either_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, query = ODD[kind]
    formula, block = ("y ~ x + C(g)", "k") if "g" in columns else ("y ~ x", "x" if "a key that" in kind else "k")
    design = build_design(formula, BOUNDS, {"g": ["b", "1", "2", LONG]})
    source = open_source(relation(make_table(**columns), query))
    unit, found = dpl.PrivacyUnit(moves_block=True), list[Any]()
    for way in (lambda patch: None, copy_to_file, add_by_sql):
        with monkeypatch.context() as patch:
            way(patch)
            found.append(source.open(design, dpl.ELE(0.9, block=block, other=0.8), unit))
    *copies, by_sql = map(every_sum, found)
    assert [type(each) for each in found] == [TablePass, TablePass, SqlPass]
    for copied in copies:
        assert copied.keys() == by_sql.keys()
        for name, values in by_sql.items():
            near = 1e-8 if name.startswith("right") else 1e-10
            np.testing.assert_allclose(
                copied[name], values, rtol=near, atol=near * np.abs(values).max() + 1e-15, err_msg=name
            )


def test_a_table_of_accuracies_may_have_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(relation(make_table(k=repeat(LONG, LONG + "a", "b"))))
    linkage = dpl.ELE({LONG + "a": 0.9, "b": 0.8}, block="k", other=0.7)
    for way in (lambda patch: None, add_by_sql):
        way(monkeypatch)
        found = source.open(DESIGN, linkage, UNIT).blocks
        assert found is not None
        assert found.by_key == {LONG + "a": N // 3, "b": N // 3, None: N // 3}


def test_a_copy_is_its_owners_alone_and_goes_with_the_rows(temporary: Path) -> None:
    found = open_source(relation(make_table())).open(DESIGN, BLOCKS, UNIT)
    (folder,) = folders(temporary)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    aimed = found.with_design(found.design)
    del found
    assert folders(temporary)
    assert aimed.instrument_sums().count == N
    del aimed
    assert not folders(temporary)


def test_a_small_copy_is_no_file(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_copy, "MOST_IN_MEMORY", 1 << 28)
    found = open_source(relation(make_table())).open(DESIGN, BLOCKS, UNIT)
    assert isinstance(found, TablePass)
    assert not folders(temporary)


def test_where_there_is_no_room_duckdb_adds(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(temporary)
    source = open_source(relation(make_table()))
    for free, kind in ((2 * 24 * N + 1, TablePass), (2 * 24 * N, SqlPass)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        found = source.open(DESIGN, BLOCKS, UNIT)
        assert isinstance(found, kind)
        assert found.instrument_sums().count == N


def test_no_cell_decides_how_much_room_is_asked_for(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    asked: list[int] = []
    monkeypatch.setattr(duckdb_copy, "has_room", lambda size: asked.append(size) or True)
    for keys in (repeat("a", "b"), repeat("a", "b" * 100_000), repeat(None)):
        open_source(relation(make_table(k=pa.array(keys, pa.string())))).open(DESIGN, BLOCKS, UNIT)
    assert asked == [N * (8 + 8 + duckdb_copy.LONGEST)] * 3


def test_without_a_kernel_and_under_an_explicit_matrix_duckdb_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = pa.array(np.arange(N))
    source = open_source(relation(make_table(i=ids)))
    matching = dpl.Matching(pa.table({"row": ids, "match": ids, "probability": np.ones(N)}), id="i")
    assert isinstance(source.open(DESIGN, matching, UNIT), SqlPass)
    monkeypatch.setattr(kernel, "KERNEL", None)
    assert isinstance(source.open(DESIGN, BLOCKS, UNIT), SqlPass)


def test_ids_are_checked_without_the_other_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    statements, stream = list[str](), DuckDBEngine.stream
    monkeypatch.setattr(
        DuckDBEngine, "stream", lambda engine, query, rows: statements.append(query) or stream(engine, query, rows)
    )
    unit = dpl.PrivacyUnit(id="k", rows=4)
    dpl.fit(relation(make_table()), "y ~ x", bounds=BOUNDS, linkage=dpl.Exact(), unit=unit, epsilon=1.0, delta=1e-5)
    assert [query.count(" as c") for query in statements] == [1, 3]


def fails_at(place: int) -> Any:
    """A relation that fails at one row, in another batch than the first."""
    return duckdb.connect().sql(
        f"select case when i = {place} then cast('secret' || i as double) else i / 1e6 end as x, 1.0 as y, i // 9 as k from range(600000) r(i)"
    )


@pytest.mark.parametrize("small", [True, False])
def test_an_error_while_copying_tells_nothing_and_leaves_nothing(
    small: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        monkeypatch.setattr(duckdb_copy, "MOST_IN_MEMORY", 1 << 28)
    source = open_source(fails_at(500_000))
    with pytest.raises(dpl.ReleaseError) as fault:
        source.open(DESIGN, BLOCKS, UNIT)
    assert str(fault.value) == FAILED
    assert fault.value.__context__ is None
    assert fault.value.__cause__ is None
    assert not folders(temporary)


@pytest.mark.parametrize("small", [True, False])
def test_an_interruption_while_copying_is_one(small: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        monkeypatch.setattr(duckdb_copy, "MOST_IN_MEMORY", 1 << 28)

    class Interrupted:
        def __init__(self, stream: Any) -> None:
            self.schema, self._stream = stream.schema, stream

        def __iter__(self) -> Iterator[Any]:
            yield next(iter(self._stream))
            raise RuntimeError("Query interrupted")

    stream = DuckDBEngine.stream
    monkeypatch.setattr(DuckDBEngine, "stream", lambda *given: Interrupted(stream(*given)))
    source = open_source(relation(make_table()))
    with pytest.raises(KeyboardInterrupt):
        source.open(DESIGN, BLOCKS, UNIT)
    assert not folders(temporary)


def test_rows_that_come_and_go_are_noticed(temporary: Path) -> None:
    rows = relation(make_table())
    source = open_source(rows)
    rows.query("t2", "insert into t select * from t limit 1")
    with pytest.raises(dpl.ReleaseError, match=CHANGED):
        source.open(DESIGN, BLOCKS, UNIT)
    assert not folders(temporary)


# --- the order of rows ----------------------------------------------------------------------------------


def test_places_are_drawn_within_blocks_and_all_orders_are_alike() -> None:
    """Whatever the order in which rows come, each is equally likely to be a partner of each other: |z| < 5."""
    sizes = np.array([*[20] * 3000, 3, 17, *[31] * 3000, 0, 1])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    drawn = draw_places(starts, np.random.default_rng(1))
    assert drawn.dtype == np.uint8
    for b in (0, 1, 2999, 3000, 3001, 3002, 6001, 6002, 6003):
        assert sorted(drawn[starts[b] : starts[b + 1]]) == list(range(sizes[b]))
    for size, first in ((20, 0), (31, 3002)):
        places = drawn[starts[first] : starts[first] + 3000 * size].reshape(3000, size).astype(np.int64)
        for row in (0, size // 2):
            steps = (places - places[:, [row]]) % size
            shares = np.delete(((steps >= 1) & (steps <= PARTNERS)).mean(axis=0), row)
            expected = PARTNERS / (size - 1)
            assert np.abs(shares - expected).max() < 5 * np.sqrt(expected * (1 - expected) / 3000)


@pytest.mark.parametrize("unit", [UNIT, dpl.PrivacyUnit(moves_block=True)], ids=["fixed", "moving"])
def test_responses_stand_in_an_order_of_their_own_each_time(unit: dpl.PrivacyUnit) -> None:
    """Their order follows from that of the rows where that is public, and is drawn where DuckDB may have changed it."""

    def values(source: Source) -> Callable[[], np.ndarray]:
        found: Any = source.open(DESIGN, dpl.ELE(0.8), unit)
        return make_circle(found.data).values

    table = make_table()
    known, copied = open_source(table), open_source(relation(table))
    assert np.array_equal(values(known), values(known))
    assert not np.array_equal(values(copied), values(copied))
    assert np.array_equal(np.sort(values(known)), np.sort(values(copied)))
