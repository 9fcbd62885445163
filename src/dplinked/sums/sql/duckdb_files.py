"""Files as DuckDB reads them: what stands behind ``from`` for CSV, JSON and Parquet files."""

from __future__ import annotations

import csv
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb

from dplinked.data.arrow import Origins, common_origins
from dplinked.data.csv import FROM_TEXT, number_marks, open_bytes, read_header, write_as_utf8
from dplinked.data.files import Files, unreadable
from dplinked.data.format import Format
from dplinked.errors import StudyError, raise_alone

_LONGEST = 1 << 27  # bytes of a line of CSV, or of a JSON record
_INTERRUPTED = "Query interrupted"  # DuckDB's words for it
_BY_LINE = (".jsonl", ".ndjson")  # JSON files whose records are lines


def text_literal(text: str) -> str:
    """A text in a statement, in hexadecimal."""
    return f"decode(unhex('{text.encode().hex()}'))"


class Utf8Files:
    """Text files as DuckDB reads them, which is in UTF-8: the files themselves, or copies that live as long as this object."""

    def __init__(self, files: Files) -> None:
        self.files = files
        if files.kind != "csv" or files.format.encoding is None:
            return
        try:
            paths, folder = write_as_utf8(files.paths, files.format)
        except (OSError, EOFError, zlib.error):
            raise_alone(unreadable(files.paths[0], "csv"))
        self.files = replace(files, paths=paths, format=replace(files.format, encoding=None))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


def file_source(files: Files) -> tuple[str, list[str] | None, frozenset[str]]:
    """What stands behind ``from``, the names of the columns if DuckDB gives them others, and the columns that hold texts to parse."""
    if files.kind == "csv":
        return _csv_source(files.paths, files.format)
    if files.kind == "parquet":
        return _parquet_source(files.paths)
    raise StudyError(f"Files of kind {files.kind!r} are not read. Give CSV, JSON or Parquet files.")


def _csv_source(files: Sequence[Path], format: Format) -> tuple[str, list[str], frozenset[str]]:
    """CSV as Python's csv module and Arrow read it. Only an empty cell without quotes is null."""
    separator = format.separator or ","
    headers = [_read_header(file, separator) for file in files]
    names = headers[0]
    if any(header != names for header in headers):
        raise StudyError("The CSV files do not all have the same columns in the same order.")
    if len(set(names)) != len(names):
        raise StudyError(f"{files[0].name!r} has two columns of the same name. Rename one.")
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
    source = (
        f"read_csv({_listed(files)}, auto_detect = false, columns = {{{columns}}}, header = true, delim = {text_literal(separator)}, "
        "quote = '\"', escape = '\"', hive_partitioning = false, nullstr = '', allow_quoted_nulls = false, "
        f"max_line_size = {_LONGEST}, buffer_size = {_LONGEST * 2})"
    )
    if (marks := number_marks(format)) is not None:
        cells = ", ".join(f"{_with_points(f'c{i}', *marks)} as c{i}" for i in range(len(names)))
        source = f"(select {cells} from {source}) cells"
    return source, names, frozenset(names)


def _with_points(cell: str, grouped: str, between: str, marked: str) -> str:
    """A cell whose number, if it is one, is written with a decimal point and nothing between thousands; as `dplinked.data.csv` does it."""
    grouped, between, marked = map(text_literal, (grouped, between, marked))
    return (
        f"case when regexp_full_match({cell}, {grouped}) then replace(regexp_replace({cell}, {between}, '', 'g'), ',', '.') "
        f"when regexp_full_match({cell}, {marked}) then translate({cell}, ',.', '.,') else {cell} end"
    )


def _read_header(file: Path, separator: str) -> list[str]:
    header = None
    try:
        with open_bytes(file) as content:
            header = read_header(content, separator)
    except (OSError, csv.Error, EOFError, zlib.error):
        raise_alone(unreadable(file, "csv"))
    if not header:
        raise_alone(unreadable(file, "csv"))
    return header


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interruption be one. DuckDB takes Ctrl-C for itself while it runs a statement, and raises an error of its own."""
    try:
        yield
    except (duckdb.InterruptException, RuntimeError) as fault:
        if not isinstance(fault, duckdb.InterruptException) and str(fault) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from None


def read_through(run: Callable[[str], Any], source: str, files: Sequence[Path]) -> None:
    """Read every cell once, so that a broken line or encoding is found before anything is spent."""
    try:
        run(f"select count(columns(*)) from {source}")
    except Exception:
        raise_alone(unreadable(files[0], "csv"))


def json_source(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], columns: Sequence[str] | None
) -> tuple[str, list[str], frozenset[str]]:
    """Records of JSON files. The columns are those asked for, and their cells the texts of the records' values.

    A record's keys are its person's, so which columns there are never follows from them: a key that a record lacks is a null cell. A record
    that is no object is a row of null cells, and so is a line that cannot be read in a file of one record per line.
    """
    if columns is None:
        raise StudyError("JSON files have no columns of their own. Name the columns to read.")
    names = list(dict.fromkeys(columns)) or [""]
    form = "newline_delimited" if all(file.suffix.lower() in _BY_LINE for file in files) else "auto"
    records = f"read_json_objects({_listed(files)}, maximum_object_size = {_LONGEST}, format = '{form}', ignore_errors = true)"
    try:
        with interruptible():
            connection.execute(f"select count(json) from {records}").fetchall()
    except Exception:
        raise_alone(unreadable(files[0], "json"))
    pointers = (text_literal("/" + name.replace("~", "~0").replace("/", "~1")) for name in names)
    cells = ", ".join(f"json_extract_string(json, {pointer}) as c{i}" for i, pointer in enumerate(pointers))
    return f"(select {cells} from {records}) records", names, frozenset(names)


def _parquet_source(files: Sequence[Path]) -> tuple[str, list[str] | None, frozenset[str]]:
    """Parquet files, which may lack columns of others. Folders named ``column=value`` give columns of texts."""
    import pyarrow as pa
    import pyarrow.parquet

    schemas: list[Any] = []
    for file in files:
        try:
            schemas.append(pyarrow.parquet.read_schema(file))
        except (pa.ArrowException, OSError):
            raise_alone(unreadable(file, "parquet"))
    stored = dict.fromkeys(name for schema in schemas for name in schema.names)
    folders = [part.partition("=")[0] for part in files[0].resolve().parent.parts if "=" in part]
    if len({name.casefold() for name in (*stored, *folders)}) != len(stored) + len(folders):
        raise StudyError("Two columns' names differ at most in upper and lower case. Rename one.")
    marked = {
        field.name for schema in schemas for field in schema if FROM_TEXT.items() <= (field.metadata or {}).items()
    }
    source = (
        f"read_parquet({_listed(files)}, union_by_name = true, hive_partitioning = {str(bool(folders)).lower()}, "
        "hive_types_autocast = false)"
    )
    return source, None, frozenset({*marked, *folders})


def parquet_origins(files: Sequence[Path]) -> Origins:
    """Which of the linked files each column comes from, as far as Parquet files say it."""
    import pyarrow.parquet

    return common_origins(map(pyarrow.parquet.read_schema, files))


def _listed(files: Sequence[Path]) -> str:
    """A list of paths as DuckDB reads it, in which the characters of globs stand for themselves."""
    return f"[{', '.join(text_literal(escaped(str(file.resolve()))) for file in files)}]"


def escaped(path: str) -> str:
    """A path in which the characters of globs stand for themselves."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
