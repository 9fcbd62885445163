"""Queries: they run once, and say nothing that one person's cell could make fail."""

from __future__ import annotations

from pathlib import Path

import duckdb as ddb
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
    "select sum(income) as s from t": "'sum'",
    "select error(code) as e from t": "'error'",
    "select sqrt(d) as r from t": "'sqrt'",
    "select * replace (income + 1 as income) from t": r"'\+'",
    "select a.* from t a join t b on a.income + 1 = b.income": r"'\+'",
    "select * from doubled": r"'\*'",
    "select * from over_doubled": r"'\*'",
    "select * from t qualify sum(income) over () > 3": "'sum'",
}


@pytest.fixture
def attach(tmp_path: Path) -> dict[str, str]:
    base = ddb.connect(str(tmp_path / "rows.db"))
    base.execute("create table t (income int, code varchar, d double, dt date)")
    base.execute("insert into t values (2147483647, 'abc', 1e308, '2020-01-01'), (1, '5', null, null)")
    base.execute("create view doubled as select income * 2 as k from t")
    base.execute("create view over_doubled as select k from doubled where k > 1")
    base.execute("create view kept as select income, d from t where d > 1")
    base.close()
    return {"base": str(tmp_path / "rows.db")}


def named(query: str) -> str:
    """The query with tables of the attached database."""
    for table in ("t", "doubled", "over_doubled", "kept"):
        for word in ("from", "join"):
            query = query.replace(f"{word} {table} ", f"{word} base.{table} ")
            query = query.removesuffix(f"{word} {table}") + (
                f"{word} base.{table}" if query.endswith(f"{word} {table}") else ""
            )
            query = query.replace(f"{word} {table})", f"{word} base.{table})")
    return query


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
    assert rows.columns == ("income", "code", "d", "dt")
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
