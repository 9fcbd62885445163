"""Queries: they run once, and say nothing that one person's cell could make fail."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb as ddb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.sums.sql.duckdb import open_query

TOTAL = [
    "select * from t",
    "from t",
    "select * exclude (code), try(income * 1000) as k from t",
    "select try_cast(code as double) as v, try(income % 7) as r from t where try(code::integer) > 3",
    "select income / 2 as h, upper(code) as u, coalesce(d, 1.0) as d, d is null as m from t where d between 0 and 1 and code like 'a%'",
    "select case when d > 1 and code = 'a' then 1 else 0 end as f from t",
    "select a.income, b.d from t a join t b using (code)",
    "with a as (select code, max(d) as d from t group by code) select t.income, a.d from t join a on t.code = a.code",
    "select code, sum(try_cast(income as double)) as s, count(*) as n from t group by code",
    "select *, row_number() over (partition by code order by d) as r from t",
    "select sum(income) as s, avg(d) as a from t",
    "select d * 2 + 1 as e, -d as n, income > 1.5 as b from t where income in (1, 2)",
    "select a.d from t a join wide b on a.income = b.id where exists (select 1 from t c where c.code = a.code)",
    "select income from t union all select id from wide",
    "select * from t where dt > date '2020-01-01'",
    "select * from kept",
]
PARTIAL = {
    "select income * 1000 as k from t": r"'\*'",
    "select income % 7 as k from t": "'%'",
    "select -income as k from t": "'-'",
    "select code::integer as k from t": "a cast",
    "select cast(d as float) as k from t": "a cast",
    "select * from t where code::integer > 3": "a cast",
    "select * from t order by income + 1": r"'\+'",
    "select * from (select income * 2 as k from t) x": r"'\*'",
    "with a as (select code::date as k from t) select * from a": "a cast",
    "select sum(h) as s from wide": "'sum'",
    "select avg(big) as s from wide": "'avg'",
    "select error(code) as e from t": "'error'",
    "select sqrt(d) as r from t": "'sqrt'",
    "select * replace (income + 1 as income) from t": r"'\+'",
    "select a.* from t a join t b on a.income + 1 = b.income": r"'\+'",
    "select * from doubled": r"'\*'",
    "select * from over_doubled": r"'\*'",
    "select * from t where code = income": "a cast",
    "select * from t where code in (5, 6)": "a cast",
    "select * from t where code": "a cast",
    "select case code when 5 then 1 else 0 end as k from t": "a cast",
    "select a.d from t a join wide b on a.code = b.h": "a cast",
    "select a.d from t a join (select income as code from t) b using (code)": "a cast",
    "select * from t where dt < ts": "a cast",
    "select * from wide where big < small": "a cast",
    "select g from made": "a cast",
    "select base.main.half(code) as k from t": "a cast",
    "select (select b.d from t b where b.income = a.income) as k from t a": "a subquery that must have one row",
    "select (select d from t) as k from t": "'error'",
    "select * from t limit (select min(income) from t)": "a limit from a subquery",
    "select min(d, income) as k from t": "'min'",
    "select [1, 2][1:2:income] as k from t": "'array_slice'",
    "select sum(d) over (rows between income preceding and current row) as k from t": "a window function",
    "select i from t, generate_series(1, 10, income) r(i)": "'generate_series'",
    "select (ts - ts) / income as k from t": "'[/-]'",
    "with recursive r as (select 1 as i union all select i + 1 from r where i < 3) select * from r": "recursive cte",
    "select try(ts at time zone code) as k from t": "'timezone'",
    "select try(code like 'a' escape code) as k from t": "'like_escape'",
    "select unnest([income]) as k from t": "unnest",
    "select * from t using sample 3": "sample",
}


@pytest.fixture
def attach(tmp_path: Path) -> dict[str, str]:
    base = ddb.connect(str(tmp_path / "rows.db"))
    base.execute("create table t (income int, code varchar, d double, dt date, ts timestamp)")
    base.execute("insert into t values (2147483647, 'abc', 1e308, '2020-01-01', null), (1, '5', null, null, null)")
    base.execute("create table wide (id bigint, h hugeint, big decimal(38, 0), small decimal(38, 30))")
    base.execute("create table made (code varchar, g int generated always as (cast(code as int)))")
    base.execute("create macro half(x) as cast(x as int)")
    base.execute("create view doubled as select income * 2 as k from t")
    base.execute("create view over_doubled as select k from doubled where k > 1")
    base.execute("create view kept as select income, d from t where d > 1")
    base.close()
    return {"base": str(tmp_path / "rows.db")}


def named(query: str) -> str:
    """The query with tables of the attached database."""
    return re.sub(r"\b(from|join) (t|doubled|over_doubled|kept|wide|made)\b", r"\1 base.\2", query)


@pytest.mark.parametrize("query", TOTAL)
def test_expressions_that_have_a_value_for_all_cells_run(attach: dict[str, str], query: str) -> None:
    assert open_query(dpl.Query(named(query), attach)).count <= 4


@pytest.mark.parametrize("query", PARTIAL)
def test_expressions_that_one_cell_can_make_fail_are_refused(attach: dict[str, str], query: str) -> None:
    """Whatever the rows: also the empty table, for which nothing fails."""
    with pytest.raises(
        dpl.StudyError, match=f"The query uses {PARTIAL[query]}, which can fail for a single person's cell"
    ):
        open_query(dpl.Query(named(query), attach))


def test_only_the_columns_of_a_study_are_kept(attach: dict[str, str]) -> None:
    rows = open_query(dpl.Query("select * from base.t", attach), ["d", "income"])
    assert rows.columns == ("income", "code", "d", "dt", "ts")
    rows.require(["income", "d"], numeric=["income", "d"])
    with pytest.raises(dpl.StudyError, match="Did you mean 'income'"):
        rows.require(["incme"])


def test_what_fails_inside_try_is_a_null_cell(attach: dict[str, str]) -> None:
    rows = open_query(dpl.Query("select try(income * 1000) as k from base.t", attach))
    assert rows.summarise_column("k", 0, 1e9).missing == 1


def test_attached_databases_are_closed_when_the_query_ran(attach: dict[str, str]) -> None:
    rows = open_query(dpl.Query("select * from base.t", attach))
    with ddb.connect(attach["base"]) as base:
        base.execute("delete from t")
    assert rows.count == rows.count_keys("code")["abc"] + 1 == 2


def test_files_are_those_of_the_querys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the working directory, where DuckDB would look first."""
    for name, value in (("steward", 1.0), ("elsewhere", 2.0)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": [value] * 3}), tmp_path / name / "rows.parquet")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for query in (
        "select * from 'rows.parquet'",
        "select * from 'row*.parquet'",
        "select read_parquet.x from read_parquet(['rows.parquet'])",
    ):
        rows = open_query(dpl.Query(query, folder=tmp_path / "steward"))
        assert rows.summarise_column("x", 0.0, 1.5).above == 0
    assert open_query(dpl.Query("select rows.x from 'rows.parquet'")).summarise_column("x", 0.0, 1.5).above == 3


def test_types_do_not_follow_from_other_files(tmp_path: Path) -> None:
    (tmp_path / "age=30").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "age=30" / "a.parquet")
    with pytest.raises(dpl.StudyError, match="guess types from their names"):
        open_query(dpl.Query("select * from '*/*.parquet'", folder=tmp_path))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["word"]}), tmp_path / "b.parquet")
    with pytest.raises(dpl.StudyError, match="the same columns with the same types"):
        open_query(dpl.Query("select * from '*.parquet'", folder=tmp_path))
