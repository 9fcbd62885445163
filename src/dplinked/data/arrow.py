"""Convert any table to an Arrow table, and its columns to texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dplinked.data.csv import FROM_TEXT
from dplinked.data.files import read_file
from dplinked.data.format import File
from dplinked.errors import StudyError, raise_alone, shown

if TYPE_CHECKING:
    import pyarrow as pa


LEFT, RIGHT = "left", "right"  # the two files that were linked
_ORIGIN = b"dplinked_file"  # Arrow metadata that says which of them a column comes from; Parquet files keep it
_COMPARED = b"dplinked_compared"  # the same for columns by which records were linked
_CARRIERS = b"dplinked.carriers"
_WHOLE_NUMBER = "^-?(0|[1-9][0-9]{0,14})$"
_PLAIN_NUMBER = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,3})?$"


class Origins(dict[str, str]):
    """The file that each column of linked rows comes from, for columns that say so.

    Attributes
    ----------
    compared
        The columns by which records were linked.
    carriers
        Columns of records that may be on several rows, with their number.
    """

    def __init__(
        self,
        files: Mapping[str, str] | None = None,
        compared: Iterable[str] = (),
        carriers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(files or {})
        self.compared, self.carriers = frozenset(compared), dict(carriers or {})


def mark_origin(field: pa.Field, file: str, *, compared: bool = False, carriers: int = 1) -> pa.Field:
    """A field of linked rows that says which file it comes from, if that file was linked before together with what it said then; whether records were linked by it, and how many rows may carry one."""
    known = dict(field.metadata or {})
    before = known.get(_ORIGIN)
    marks = {_ORIGIN: file.encode() + (b"" if before is None else b"/" + before)}
    if (rows := carriers * int(known.get(_CARRIERS, b"1"))) > 1:
        marks[_CARRIERS] = str(rows).encode()
    return field.with_metadata({**known, **marks, **({_COMPARED: b"yes"} if compared else {})})


def column_origins(data: Any) -> Origins:
    """The file that each column of linked rows comes from, for columns of an Arrow table or schema that say so."""
    import pyarrow as pa

    schema = data.schema if isinstance(data, pa.Table) else data
    if not isinstance(schema, pa.Schema):
        return Origins()
    marked = {field.name: field.metadata for field in schema if field.metadata}
    files = {name: marks[_ORIGIN].decode() for name, marks in marked.items() if _ORIGIN in marks}
    carriers = {name: int(marks[_CARRIERS]) for name, marks in marked.items() if _CARRIERS in marks}
    return Origins(files, (name for name, marks in marked.items() if _COMPARED in marks), carriers)


def common_origins(schemas: Iterable[Any]) -> Origins:
    """The file that each column of several tables comes from. Tables that disagree about it are refused."""
    found = Origins()
    for schema in schemas:
        origins = column_origins(schema)
        for name, origin in origins.items():
            if found.setdefault(name, origin) != origin:
                raise StudyError(
                    f"The files disagree about which linked file column {shown(name)} comes from. Give rows of one linkage."
                )
        found.compared |= origins.compared
        found.carriers |= {name: max(rows, found.carriers.get(name, 1)) for name, rows in origins.carriers.items()}
    return found


def text_columns(table: Any) -> frozenset[str]:
    """Names of the columns that came from a CSV file. Their cells are texts, each read on its own as a key or as a number."""
    import pyarrow as pa

    if not isinstance(table, pa.Table):
        return frozenset()
    return frozenset(
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) and field.metadata and FROM_TEXT.items() <= field.metadata.items()
    )


def with_numbers(table: pa.Table, kept: Iterable[str | None]) -> pa.Table:
    """The table with numbers in the place of texts, in columns that came from a text file and hold nothing else; those to be `kept` stay as they are.

    Only the plain notation of a number counts: a column with 007, +49 or more than 15 digits holds names of things, and stays text. A number and its plain text
    are the same number and the same level, so another cell that makes the column text changes nothing about this one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns, fields = list(table.columns), list(table.schema)
    for place, name in enumerate(table.column_names):
        column = columns[place]
        if name not in text_columns(table) or name in set(kept) or column.null_count == len(column):
            continue
        if not pc.all(pc.match_substring_regex(column, _PLAIN_NUMBER)).as_py():
            continue
        whole = pc.all(pc.match_substring_regex(column, _WHOLE_NUMBER)).as_py()
        columns[place] = column.cast(pa.int64() if whole else pa.float64())
        marks = {key: value for key, value in (fields[place].metadata or {}).items() if key not in FROM_TEXT}
        fields[place] = pa.field(name, columns[place].type, metadata=marks)
    return pa.table(columns, schema=pa.schema(fields))


def to_arrow(data: Any, name: str) -> pa.Table:
    """Convert any table, or the file at a path, to an Arrow table. `name` says in messages which table it is."""
    import narwhals as nw
    import pyarrow as pa

    if isinstance(data, (str, Path, File)):
        try:
            return read_file(data if isinstance(data, File) else Path(data), None)[0]
        except StudyError as fault:
            written = " Say how the file is written: its separator, decimal, thousands, encoding or sheet."
            raise_alone(StudyError(re.sub(r" The steward's 'check' .*", written, str(fault))))
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
                "each, a mapping of arrays, or the path of a file."
            )
        )
    return table


def column_texts(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    """A column as Arrow texts; null cells stay null.

    The numbers 8 and 8.0 become the text "8", and dates become ISO dates, so that files with different types can be compared.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if name in text_columns(table):
        try:
            column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowException:
            raise_alone(
                StudyError(
                    f"Column {name!r} of the {where} file is not UTF-8 text. Name the file's encoding, like latin-1, or save it as UTF-8."
                )
            )
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
