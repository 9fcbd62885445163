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

Open = Callable[..., Any]


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=sparks.MARKS)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens an Arrow table, written as Parquet, with an engine; columns may be given other names then."""
    spark = request.getfixturevalue("session") if request.param == "spark" else None

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


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
