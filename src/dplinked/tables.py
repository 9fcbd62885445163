"""Tables as they come: Parquet and CSV files, frames of any library, columns as texts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError, raise_alone

_FROM_TEXT = {b"dplinked": b"text"}  # travels with a column through Parquet files


def read_file(path: Path, columns: Sequence[str] | None) -> tuple[Any, list[str]]:
    """Read a Parquet or CSV file, and the names of all its columns; parser errors are replaced, since they quote cells."""
    import pyarrow as pa

    suffix = path.suffix.lower()
    if suffix not in (".parquet", ".pq", ".csv"):
        raise StudyError(f"{path.name!r}: only .parquet and .csv files are read. Convert the file first.")
    if not path.is_file():
        raise StudyError(f"There is no file {path.name!r} at the given path.")
    read = _read_csv if suffix == ".csv" else _read_parquet
    try:
        return read(path, columns)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):
        raise_alone(
            StudyError(f"{path.name!r} cannot be read as {suffix[1:]}. The steward's 'check' shows the details.")
        )


def _read_parquet(path: Path, columns: Sequence[str] | None) -> tuple[Any, list[str]]:
    import pyarrow.parquet

    known = pyarrow.parquet.read_schema(path).names
    wanted = None if columns is None else [name for name in columns if name in known]
    return pyarrow.parquet.read_table(path, columns=wanted), known


def _read_csv(path: Path, columns: Sequence[str] | None) -> tuple[Any, list[str]]:
    """Every column as text: a CSV file has no types, and guessing them would look at all cells.

    The file is read in one piece, and text is not checked, so that no cell's length, line break or broken
    encoding decides whether another can be read.
    """
    import pyarrow as pa
    import pyarrow.csv

    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        known = next(csv.reader(file), [])
    options = pyarrow.csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(known, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        include_columns=known if columns is None else [name for name in columns if name in known],
    )
    whole = pyarrow.csv.ReadOptions(block_size=min(path.stat().st_size + 1, 2**31 - 1))
    if len(set(known)) != len(known):
        raise StudyError(f"{path.name!r} has two columns of the same name. Rename one.")
    # An empty line of a file with one column is a null cell, not the absence of a row.
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(known) != 1)
    table = pyarrow.csv.read_csv(path, read_options=whole, parse_options=parse, convert_options=options)
    return table.cast(pa.schema([field.with_metadata(_FROM_TEXT) for field in table.schema])), known


def text_columns(table: Any) -> frozenset[str]:
    """Columns of an Arrow table that hold whatever a CSV file held: cells are read one by one, as texts or as numbers."""
    import pyarrow as pa

    if not isinstance(table, pa.Table):
        return frozenset()
    return frozenset(
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) and field.metadata and _FROM_TEXT.items() <= field.metadata.items()
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


def settle_source(source: Any) -> Any:
    """The same data for the fingerprint and for the sums: links in a path followed once, a lazy frame collected once."""
    import narwhals as nw

    if isinstance(source, (str, Path)):
        return Path(source).resolve()
    frame = nw.from_native(source, pass_through=True)
    return frame.collect().to_native() if isinstance(frame, nw.LazyFrame) else source


def source_state(source: Any) -> tuple[int, ...] | None:
    """What would tell that a file was exchanged or written to: device, inode, size and time of change."""
    if not isinstance(source, Path) or not source.is_file():
        return None
    found = source.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def content_bytes(source: Any) -> Iterator[bytes]:
    """A file's bytes, or a table's columns as Arrow writes them."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise StudyError(f"There is no file {path.name!r} at the given path.")
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                yield piece
        return
    import pyarrow as pa

    table = to_arrow(source, "given").combine_chunks()
    for field, column in zip(table.schema, table.columns, strict=True):
        yield json.dumps([field.name, str(field.type), len(column)]).encode()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([pa.field("c", field.type)])) as writer:
            writer.write_table(pa.table([column], schema=pa.schema([pa.field("c", field.type)])))
        yield sink.getvalue().to_pybytes()
