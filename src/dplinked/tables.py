"""Tables as they come: Parquet and CSV files, frames of any library, columns as texts."""

from __future__ import annotations

import csv
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError, raise_alone
from dplinked.keys import key_text, number

FROM_TEXT = {b"dplinked": b"text"}  # travels with a column through Parquet files
_END = "dplinked: the end of the file"
_KINDS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


@dataclass(frozen=True)
class Files:
    """Files of one kind that hold the rows together, in order, and the folder whose subfolders name partitions."""

    paths: tuple[Path, ...]
    kind: str
    root: Path | None = None


@dataclass(frozen=True)
class Query:
    """Rows that a SELECT of DuckDB gives.

    Parameters
    ----------
    query
        One SELECT statement; it may name Parquet files, ``select * from 'part-*.parquet'``, and attached databases. CSV and JSON files are given by
        their path instead: in a query their types would be guessed from cells.
    attach
        Databases by the names they have in the query: the path of a DuckDB or SQLite file, or ``postgres:…``.
    folder
        Where relative paths count from; by default the working directory.
    """

    query: str
    attach: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class SparkTable:
    """Rows of the Spark session at work: a table's name, or a SELECT."""

    table: str


@dataclass(frozen=True)
class Stream:
    """Batches that come once.

    Parameters
    ----------
    batches
        A ``pyarrow.RecordBatchReader``.
    contiguous
        Whether rows of a block follow each other. If so, and the number of rows is declared, a study without intervals and private
        ranges is summed as the batches come; otherwise they are kept in a temporary file.
    rows
        Number of rows, public.
    """

    batches: Any
    contiguous: bool = False
    rows: int | None = None


def find_files(path: str | os.PathLike[str]) -> Files:
    """Files that a path means: a file, all of a folder's Parquet files, or those of a glob like ``rows/*.csv``."""
    given = Path(path)
    if given.is_dir():
        found = sorted(
            file for file in given.rglob("*") if _KINDS.get(file.suffix.lower()) == "parquet" and file.is_file()
        )
        files = Files(tuple(file for file in found if not file.name.startswith(("_", "."))), "parquet", given)
    elif given.is_file() or not glob.has_magic(str(path)):
        files = Files((given,), _KINDS.get(given.suffix.lower(), ""))
    else:
        named = tuple(sorted(file for file in map(Path, glob.glob(str(path), recursive=True)) if file.is_file()))
        kinds = {_KINDS.get(file.suffix.lower(), "") for file in named}
        files = Files(named, kinds.pop() if len(kinds) == 1 else "")
    if not files.paths:
        raise StudyError(f"There are no files at {given.name!r}.")
    if not files.kind:
        raise StudyError(f"{given.name!r}: only .parquet, .csv and .json files are read, of one kind at a time.")
    for file in files.paths:
        if not file.is_file():
            raise StudyError(f"There is no file {file.name!r} at the given path.")
    return files


def is_spark(data: Any) -> bool:
    """Whether this is a Spark frame, classic or Connect."""
    return type(data).__module__.startswith("pyspark.sql") and type(data).__name__ == "DataFrame"


def read_file(path: Path, columns: Sequence[str] | None, kind: str | None = None) -> tuple[Any, list[str]]:
    """Read a Parquet or CSV file, and the names of all its columns; parser errors are replaced, since they quote cells.

    `kind` says what it is where its name does not.
    """
    import pyarrow as pa

    kind = kind or _KINDS.get(path.suffix.lower())
    if kind not in ("parquet", "csv"):
        raise StudyError(f"{path.name!r}: only .parquet and .csv files are read. Convert the file first.")
    if not path.is_file():
        raise StudyError(f"There is no file {path.name!r} at the given path.")
    read = _read_csv if kind == "csv" else _read_parquet
    try:
        return read(path, columns)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):
        raise_alone(StudyError(f"{path.name!r} cannot be read as {kind}. The steward's 'check' shows the details."))


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
    # One thread: a process that ends at once, on a fault in a study, would now and then abort over Arrow's.
    size = min(path.stat().st_size + 1 + 40 * (len(known) + 1), 2**31 - 1)
    whole = pyarrow.csv.ReadOptions(use_threads=False, block_size=size)
    if len(set(known)) != len(known):
        raise StudyError(f"{path.name!r} has two columns of the same name. Rename one.")
    # An empty line of a file with one column is a null cell, not the absence of a row.
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(known) != 1)
    content = path.read_bytes()
    content += b"" if content.endswith((b"\n", b"\r")) else b"\n"
    # A last line of ours must come back as it is: a quote that is never closed would swallow it, as it does the rows before.
    content += b",".join([_END.encode()] * len(known)) + b"\n"
    table = pyarrow.csv.read_csv(
        pa.BufferReader(content), read_options=whole, parse_options=parse, convert_options=options
    )
    last = table.slice(max(0, table.num_rows - 1))
    if not last.num_rows or any(column.cast(pa.binary())[0].as_py() != _END.encode() for column in last.columns):
        raise StudyError(f"{path.name!r} cannot be read as csv: a quote is opened and never closed.")
    table = table.slice(0, table.num_rows - 1)
    return table.cast(pa.schema([field.with_metadata(FROM_TEXT) for field in table.schema])), known


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


def settle_source(source: Any) -> Any:
    """The same data for the fingerprint and for the sums: links in a path followed once, a lazy frame collected once."""
    import narwhals as nw

    if isinstance(source, (str, Path)):
        files = find_files(source)
        return replace(files, paths=tuple(path.resolve() for path in files.paths)) if files.root is None else files
    if isinstance(source, Stream) or type(source).__name__ == "RecordBatchReader":
        raise StudyError("A stream cannot be known again. With a ledger, give a file, a table or a query.")
    if (
        isinstance(source, (Files, Query, SparkTable))
        or is_spark(source)
        or type(source).__name__ == "DuckDBPyRelation"
    ):
        return source
    frame = nw.from_native(source, pass_through=True)
    return frame.collect().to_native() if isinstance(frame, nw.LazyFrame) else source


def source_state(source: Any) -> tuple[Any, ...] | None:
    """What would tell that files were exchanged or written to: device, inode, size and time of change."""
    if isinstance(source, Files):
        return tuple(map(source_state, source.paths))
    if not isinstance(source, Path) or not source.is_file():
        return None
    found = source.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def content_bytes(source: Any) -> Iterator[bytes]:
    """A file's bytes, or a table's columns as Arrow writes them; of several files also the names of their folders and themselves."""
    if isinstance(source, Files) and source.root is None and len(source.paths) == 1:
        source = source.paths[0]
    if isinstance(source, Files):
        for path in source.paths:
            yield json.dumps(
                [str(path.relative_to(source.root) if source.root else path.name), path.stat().st_size]
            ).encode()
            yield from content_bytes(path)
        return
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise StudyError(f"There is no file {path.name!r} at the given path.")
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                yield piece
        return
    import narwhals as nw
    import pyarrow as pa

    table = None
    try:
        table = _combined(to_arrow(source, "given"))
    except StudyError:
        if not (isinstance(source, Mapping) or nw.dependencies.is_into_dataframe(source)):
            raise
    if table is None:  # cells that Arrow does not take together
        yield from _cell_bytes(source)
        return
    for field_, column in zip(table.schema, table.columns, strict=True):
        yield json.dumps([field_.name, str(field_.type), len(column)]).encode()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([pa.field("c", field_.type)])) as writer:
            writer.write_table(pa.table([column], schema=pa.schema([pa.field("c", field_.type)])))
        yield sink.getvalue().to_pybytes()


def _cell_bytes(source: Any) -> Iterator[bytes]:
    """Cells as a release sees them, one by one: the text of each and its number."""
    import narwhals as nw

    columns = (
        source if isinstance(source, Mapping) else nw.from_native(source, eager_only=True).to_dict(as_series=False)
    )
    for name, cells in columns.items():
        yield json.dumps([str(name), len(cells)]).encode()
        for cell in cells:
            yield json.dumps([key_text(cell), repr(number(cell))]).encode()


def _combined(table: Any) -> Any:
    """A table in one chunk; without its dictionaries where those of its chunks do not fit into one."""
    import pyarrow as pa

    try:
        return table.combine_chunks()
    except pa.ArrowException:
        dictionaries = {f.name: f.type.value_type for f in table.schema if pa.types.is_dictionary(f.type)}
        plain = [pa.field(f.name, dictionaries.get(f.name, f.type)) for f in table.schema]
        return table.cast(pa.schema(plain)).combine_chunks()
