"""Any table as an Arrow table, and its columns as texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dplinked.data.csv import FROM_TEXT
from dplinked.data.files import read_file
from dplinked.errors import StudyError, raise_alone


def text_columns(table: Any) -> frozenset[str]:
    """Columns of an Arrow table that hold whatever a CSV file held: cells are read one by one, as texts or as numbers."""
    import pyarrow as pa

    if not isinstance(table, pa.Table):
        return frozenset()
    return frozenset(
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) and field.metadata and FROM_TEXT.items() <= field.metadata.items()
    )


def to_arrow(data: Any, name: str) -> Any:
    """Any table, or the path of a file, as an Arrow table; `name` says in messages which one it is."""
    import narwhals as nw
    import pyarrow as pa

    if isinstance(data, (str, Path)):
        return read_file(Path(data), None)[0]
    if isinstance(data, pa.Table):
        return data
    table = None
    try:
        if isinstance(data, Mapping):
            table = pa.table(dict(data))
        else:
            frame = nw.from_native(data)
            table = (frame.collect() if isinstance(frame, nw.LazyFrame) else frame).to_arrow()
    except (pa.ArrowException, TypeError, ValueError, nw.exceptions.NarwhalsError):
        raise_alone(
            StudyError(
                f"The {name} file cannot be read as a table. Give a pandas, polars or pyarrow table whose columns hold one type "
                "each, a mapping of arrays, or the path of a Parquet or CSV file."
            )
        )
    return table


def column_texts(table: Any, name: str, where: str) -> Any:
    """A column as Arrow texts, null where it is: 8, 8.0 and "8" are the same text, dates are ISO dates."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if name in text_columns(table):
        try:
            column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowException:
            raise_alone(StudyError(f"Column {name!r} of the {where} file is not UTF-8 text. Save the file as UTF-8."))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_floating(kind):
        whole = pc.equal(pc.trunc(column), column)
        small = pc.less(pc.abs(column), 2.0**53)
        number = pc.if_else(pc.and_(whole, small), column, pa.scalar(None, kind)).cast(pa.int64()).cast(pa.string())
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        return pc.coalesce(number, finite.cast(pa.string()))
    if pa.types.is_timestamp(kind):
        return pc.strftime(column, format="%Y-%m-%d")
    if pa.types.is_string(kind):
        return column
    simple = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_date,
        pa.types.is_large_string,
        pa.types.is_string_view,
    )
    if pa.types.is_null(kind) or any(check(kind) for check in simple) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    raise StudyError(
        f"Column {name!r} of the {where} file holds {kind}, which cannot be compared. Convert it to text first."
    )
