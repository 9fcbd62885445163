"""The SQL engines that one suite runs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
import sparks
from dplinked.sums.sql import duckdb
from duckdb_ways import add_by_sql, copy_to_file

Open = Callable[..., Any]


@pytest.fixture(params=["duckdb", "copy", pytest.param("spark", marks=sparks.MARKS)])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens an Arrow table, written as Parquet, with an engine; columns may be given other names then. DuckDB adds rows itself, or copies them for the kernel."""
    spark = request.getfixturevalue("session") if request.param == "spark" else None
    if spark is None:
        (add_by_sql if request.param == "duckdb" else copy_to_file)(monkeypatch)

    def open_table(table: pa.Table, names: list[str] | None = None) -> Any:
        path = tmp_path / f"rows-{len(list(tmp_path.iterdir()))}.parquet"
        pq.write_table(table, path)
        named = list(zip(table.column_names, names or table.column_names, strict=True))
        if spark is None:
            quoted = ", ".join(f"{old} as {quote(new)}" for old, new in named)
            return duckdb.open_query(dpl.Query(f"select {quoted} from '{path}'"))
        from dplinked.sums.sql import spark as spark_rows

        return spark_rows.open_frame(spark.read.parquet(str(path)).toDF(*(new for _, new in named)))

    return open_table


@pytest.fixture(params=["duckdb", "copy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows of DuckDB's are added: by itself, or by the kernel from a copy in memory."""
    if request.param == "duckdb":
        add_by_sql(monkeypatch)
    return str(request.param)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
