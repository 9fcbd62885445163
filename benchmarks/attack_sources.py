"""The same rows in every container that `fit` accepts, and the worst cells that each of them can hold."""

from __future__ import annotations

import csv
import datetime
import gc
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import dplinked as dpl

Cells = Mapping[str, Sequence[Any]]

NUMBERS = ("x", "w", "v", "y")  # all other columns are keys
CANARY = "CANARY-7351"
MISSING = object()  # a JSON record without this key

FLOATS: list[Any] = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, None]
TEXTS: list[Any] = [
    None,
    "",
    CANARY,
    "NA",
    "nan",
    "-inf",
    "1e999",
    "1,5",
    " 1 ",
    "0x1F",
    "１",
    "'\";--\n,|\t",
    "é\u200b",
    "x" * 5000,
]
NESTED: list[Any] = [[1, 2], {"a": CANARY}, [], True]
OBJECTS: list[Any] = [
    *NESTED, 10**400, -(10**400), 2**63, b"\xff\xfe", "\ud800", "a\0b", 1 + 2j, Decimal("sNaN"), Decimal("1e999"), Fraction(1, 3), object(),
    np.array([1.0, 2.0]), np.datetime64("NaT"), pd.NA, pd.NaT, datetime.date(1, 1, 1), np.float16("nan"), np.ma.masked, (1,), {1}, float, ...,
]  # fmt: skip
WILD: dict[str, list[Any]] = {
    "floats": FLOATS,
    "texts": TEXTS,
    "decimals": [None, Decimal("9e20"), Decimal("-9e20"), Decimal("1e-6")],
    "integers": [None, 2**63 - 1, -(2**63), 2**53 + 1],
    "folders": [None, "word", "01", "1.5", "99999999999999999999"],
    "json": [None, MISSING, 1e308, 10**400, *NESTED, *TEXTS],
    "objects": [*FLOATS, *TEXTS, *OBJECTS],
}


@dataclass(frozen=True)
class Source:
    """A container: how it is filled, which wild cells it can hold, and how many steps a search may take in it."""

    build: Callable[[Cells, Path], Any]
    wild: str
    slow: bool = False
    keys: str = "texts"

    def wild_cells(self, column: str) -> list[Any]:
        return WILD[self.wild if column in NUMBERS or self.wild in ("objects", "json") else self.keys]


def arrow_table(cells: Cells, keys: pa.DataType | None = None, numbers: pa.DataType | None = None) -> pa.Table:
    """An Arrow table whose schema is the same for all rows that it could hold."""
    kinds = {name: (numbers or pa.float64()) if name in NUMBERS else (keys or pa.string()) for name in cells}
    return pa.table({name: _column(column, kinds[name]) for name, column in cells.items()})


def _column(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pa.array([None if cell is None else float(cell) for cell in cells], pa.float64()).cast(kind, safe=False)
    if pa.types.is_decimal(kind):
        return pa.array([None if cell is None else round(Decimal(cell), 6) for cell in cells], kind)
    if pa.types.is_integer(kind):
        return pa.array([None if cell is None else int(cell) for cell in cells], kind)
    texts = pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
    return texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts


def object_array(cells: Sequence[Any]) -> np.ndarray:
    column = np.empty(len(cells), object)
    for row, cell in enumerate(cells):
        column[row] = cell
    return column


def _arrays(cells: Cells) -> dict[str, np.ndarray]:
    return {
        name: np.array([math.nan if cell is None else float(cell) for cell in column]) if name in NUMBERS else object_array(column)
        for name, column in cells.items()
    }  # fmt: skip


def _objects(cells: Cells) -> dict[str, np.ndarray]:
    return {name: object_array(column) for name, column in cells.items()}


def _texts(cells: Cells) -> dict[str, list[str | None]]:
    return {name: [None if cell is None else str(cell) for cell in column] for name, column in cells.items()}


def _pandas_objects(cells: Cells, _: Path) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in _objects(cells).items()})


def _pandas_nullable(cells: Cells, _: Path) -> pd.DataFrame:
    return arrow_table(cells).to_pandas().astype(dict.fromkeys([name for name in cells if name in NUMBERS], "Float64"))


def _pandas_categories(cells: Cells, _: Path) -> pd.DataFrame:
    return (
        arrow_table(cells)
        .to_pandas()
        .astype(dict.fromkeys([name for name in cells if name not in NUMBERS], "category"))
    )


def _polars_categories(cells: Cells, _: Path) -> pl.DataFrame:
    return pl.from_arrow(arrow_table(cells)).with_columns(
        pl.col([name for name in cells if name not in NUMBERS]).cast(pl.Categorical)
    )


def _parquet(table: pa.Table, folder: Path, **options: Any) -> Path:
    pq.write_table(table, folder / "rows.parquet", **options)
    return folder / "rows.parquet"


def _csv(cells: Cells, folder: Path) -> Path:
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*_texts(cells).values(), strict=True))
    return folder / "rows.csv"


def _csv_files(cells: Cells, folder: Path) -> str:
    half = len(cells["id"]) // 2
    for part, rows in (("first", slice(half)), ("second", slice(half, None))):
        _csv({name: column[rows] for name, column in cells.items()}, folder).rename(folder / f"{part}.csv")
    return str(folder / "*.csv")


def _partitions(cells: Cells, folder: Path) -> Path:
    """A folder for each block key, as Hive has them."""
    table, root = arrow_table(cells), folder / "partitions"
    shutil.rmtree(root, ignore_errors=True)
    for key in dict.fromkeys(cells["b"]):
        place = root / f"b={'__HIVE_DEFAULT_PARTITION__' if key is None else key}"
        place.mkdir(parents=True)
        _parquet(table.filter(pa.array([cell == key for cell in cells["b"]])).drop_columns("b"), place)
    return root


def _json(cells: Cells, folder: Path) -> Path:
    records = (
        {name: cell for name, cell in zip(cells, row, strict=True) if cell is not MISSING}
        for row in zip(*cells.values(), strict=True)
    )
    lines = (json.dumps(_strict(record)) + "\n" for record in records)
    (folder / "rows.ndjson").write_text("".join(lines), encoding="utf-8")
    return folder / "rows.ndjson"


def _json_array(cells: Cells, folder: Path) -> Path:
    lines = _json(cells, folder)
    (folder / "rows.json").write_text(
        "[" + ",\n".join(lines.read_text(encoding="utf-8").splitlines()) + "]", encoding="utf-8"
    )
    return folder / "rows.json"


def _strict(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(cell, float) and not math.isfinite(cell) else cell for name, cell in record.items()
    }


def _batches(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3))


def _database(cells: Cells, folder: Path) -> dpl.Query:
    path = folder / "rows.duckdb"
    gc.collect()  # an earlier fit may still have it open
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.register("given", arrow_table(cells))
        connection.execute("create table linked as select * from given")
    return dpl.Query("select * from people.linked", attach={"people": str(path)})


def _query(cells: Cells, folder: Path) -> dpl.Query:
    _parquet(arrow_table(cells), folder)
    return dpl.Query("select * from 'rows.parquet'", folder=folder)


def _spark(cells: Cells, folder: Path) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate().read.parquet(str(_parquet(arrow_table(cells), folder)))


DICTIONARY = pa.dictionary(pa.int32(), pa.string())
SOURCES: dict[str, Source] = {
    "lists": Source(lambda cells, _: {name: list(column) for name, column in cells.items()}, "objects"),
    "NumPy": Source(lambda cells, _: _arrays(cells), "floats"),
    "NumPy objects": Source(lambda cells, _: _objects(cells), "objects"),
    "pandas": Source(lambda cells, _: arrow_table(cells).to_pandas(), "floats"),
    "pandas objects": Source(_pandas_objects, "objects"),
    "pandas nullable": Source(_pandas_nullable, "floats"),
    "pandas categories": Source(_pandas_categories, "floats"),
    "polars": Source(lambda cells, _: pl.from_arrow(arrow_table(cells)), "floats"),
    "polars categories": Source(_polars_categories, "floats"),
    "Arrow": Source(lambda cells, _: arrow_table(cells), "floats"),
    "Arrow floats of 4 bytes": Source(lambda cells, _: arrow_table(cells, numbers=pa.float32()), "floats"),
    "Arrow decimals": Source(lambda cells, _: arrow_table(cells, numbers=pa.decimal128(38, 6)), "decimals"),
    "Arrow integers": Source(lambda cells, _: arrow_table(cells, numbers=pa.int64()), "integers"),
    "Arrow dictionaries": Source(lambda cells, _: arrow_table(cells, keys=DICTIONARY), "floats"),
    "Arrow stream": Source(lambda cells, _: _batches(arrow_table(cells)), "floats"),
    "Parquet": Source(lambda cells, folder: _parquet(arrow_table(cells), folder, row_group_size=3), "floats"),
    "Parquet dictionaries": Source(lambda cells, folder: _parquet(arrow_table(cells, keys=DICTIONARY), folder), "floats"),
    "Parquet partitions": Source(_partitions, "floats", keys="folders"),
    "CSV": Source(_csv, "texts"),
    "CSV files": Source(_csv_files, "texts", slow=True),
    "JSON array": Source(_json_array, "json", slow=True),
    "JSON": Source(_json, "json", slow=True),
    "DuckDB query": Source(_query, "floats", slow=True),
    "DuckDB database": Source(_database, "floats", slow=True),
    "DuckDB relation": Source(lambda cells, _: duckdb.connect().from_arrow(arrow_table(cells)), "floats", slow=True),
}  # fmt: skip
SPARK = {"Spark": Source(_spark, "floats", slow=True)}


def names(*, slow: bool) -> Iterator[str]:
    return (name for name, source in SOURCES.items() if source.slow == slow)
