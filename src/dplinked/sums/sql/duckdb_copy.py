"""A copy of the cells that a study needs, which DuckDB reads once, so that the kernel can add their rows like those of any table.

DuckDB says what a cell means, as it does where it adds rows itself: numbers are copied as doubles, keys as they are. A small copy is in memory, a larger one in a temporary file
that only its owner can read and that is deleted together with the rows. Where it is hangs on the number of rows, the columns and the free disk alone.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dplinked.data.csv import FROM_TEXT
from dplinked.data.encoding import CHANGED
from dplinked.data.sizes import PART
from dplinked.data.sources import Stream
from dplinked.data.stream import spill
from dplinked.data.table import Rows
from dplinked.errors import ReleaseError, raise_alone
from dplinked.sums.numpy.prepare import Parts
from dplinked.sums.sql.dialect import FAILED, SqlColumn
from dplinked.sums.sql.duckdb_engine import DuckDBEngine
from dplinked.sums.sql.duckdb_files import interruptible

MOST_IN_MEMORY = 1 << 28  # bytes of a copy; a larger one is a file
LONGEST = 128  # bytes of a text in a copy, unless the study names a longer one


def copy_cells(
    engine: DuckDBEngine,
    source: str,
    columns: Sequence[SqlColumn],
    keys: Collection[str],
    named: Collection[str],
    count: int,
) -> Parts | None:
    """Copy columns of a source of so many rows: those among `keys` as keys, the others as numbers. None where there is no room.

    A text that is longer than `LONGEST`, and than the keys and levels `named` by the study, stands as the number that it is, or as its digest: no text decides how large the copy is.
    """
    longest = max([LONGEST, *(len(text.encode(errors="replace")) for text in named)])
    size = count * sum(longest if column.name in keys and _is_copied_as_text(column) else 8 for column in columns)
    if size > MOST_IN_MEMORY and not has_room(size):
        return None
    cells = [_key(engine, column, longest) if column.name in keys else _number(engine, column) for column in columns]
    listed = ", ".join(f"{cell} as c{i}" for i, cell in enumerate(cells))
    stream = _open_stream(
        engine, f"select {listed} from {source}", {column.name: column.name in keys for column in columns}
    )
    rows = Rows(stream.read_all()) if size <= MOST_IN_MEMORY else spill(Stream(stream), None)
    if rows.count != count:
        raise ReleaseError(CHANGED)
    rows.ordered = False
    return rows


def has_room(size: int) -> bool:
    """Whether a temporary file may have so many bytes and as many again."""
    return shutil.disk_usage(tempfile.gettempdir()).free > 2 * size


def _is_copied_as_text(column: SqlColumn) -> bool:
    """Whether keys of a column are texts in the copy: those that are, and whole numbers for which Arrow has no type."""
    return column.kind == "text" or column.type.endswith("HUGEINT")


def _key(engine: DuckDBEngine, column: SqlColumn, longest: int) -> str:
    """A cell as a key, none of more bytes than the longest."""
    key = engine.key(column)
    if column.kind == "text":
        short = f"coalesce(cast({engine.number(column)} as varchar), {engine.sha256(key)})"
        return f"case when strlen({key}) > {longest} then {short} else {key} end"
    return engine.as_text(column) if _is_copied_as_text(column) else key


def _number(engine: DuckDBEngine, column: SqlColumn) -> str:
    """A cell as a double, which is never null: that takes less time to write and to read."""
    return f"coalesce({engine.number(column)}, cast('nan' as double))"


def _open_stream(engine: DuckDBEngine, statement: str, names: Mapping[str, bool]) -> Any:
    """A query's rows as an Arrow stream; DuckDB's own errors are replaced, because they quote cells. Of the columns' names is told whether there may be nulls."""
    import pyarrow as pa

    found: Any = None
    try:
        found = engine.stream(statement, PART)
    except Exception:
        raise_alone(ReleaseError(FAILED))
    schema = pa.schema([_field(*named, field.type) for named, field in zip(names.items(), found.schema, strict=True)])

    def batches() -> Iterator[Any]:
        try:
            with interruptible():
                for batch in found:
                    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except Exception:
            raise_alone(ReleaseError(FAILED))

    return pa.RecordBatchReader.from_batches(schema, batches())


def _field(name: str, nulls: bool, kind: Any) -> Any:
    """A column of the copy. Texts are known to be UTF-8, so they are marked like those of a file, which are kept as they are; instants are those of UTC, whatever the session's time zone."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.field(name, pa.timestamp(kind.unit, "UTC"), nulls)
    return pa.field(name, kind, nulls, FROM_TEXT if pa.types.is_string(kind) else None)
