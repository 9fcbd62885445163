"""How data is recognised: by its place, by the state of its files, and by the bytes of its content."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dplinked.data.arrow import to_arrow
from dplinked.data.files import Files, find_files
from dplinked.data.format import File
from dplinked.data.keys import key_text, number
from dplinked.data.sources import Query, SparkTable, is_path, is_stream
from dplinked.errors import StudyError, shown

if TYPE_CHECKING:
    import pyarrow as pa

NOT_KNOWN = "A stream cannot be known again. With a ledger, give a file, a table or a query."


def locate(data: Any) -> Any:
    """The same data with the symlinks of its paths resolved, once: what is compared with a ledger is what is opened then."""
    if isinstance(data, Query):
        folder = Path(os.path.realpath(data.folder or Path()))
        return Query(data.query, {name: _database_place(folder, base) for name, base in data.attach.items()}, folder)
    return find_files(data) if is_path(data) and not isinstance(data, Files) else data


def source_place(data: Any) -> list[Any]:
    """Where data is, so that a ledger can tell before anything is opened whether it was registered there.

    That is a path with its symlinks resolved, the kind of its files and how they are declared to be written; a query with its attachments and the folder that its paths start from; the text of a Spark
    table. What is in memory has no place of its own: it is known by its content alone.
    """
    match data:
        case Query():
            located = locate(data)
            return ["query", data.query, dict(located.attach), str(located.folder)]
        case SparkTable():
            return ["spark", data.table]
        case Files():
            options = data.format.options()  # none of them is what version 0.1 registered
            return ["path", data.kind, data.place, *([options] if options else [])]
    if is_stream(data):
        raise StudyError(NOT_KNOWN)
    return source_place(find_files(data)) if is_path(data) else ["memory"]


def _database_place(folder: Path, database: str) -> str:
    """The path of an attached file; the address of a server as it is."""
    return database if database.startswith(("postgres:", "postgresql:")) else os.path.realpath(folder / database)


def source_state(source: Any) -> tuple[Any, ...] | None:
    """Device, inode, size and times of change of files; they differ if a file was replaced or written to. None for tables."""
    if isinstance(source, Files):
        return tuple(map(source_state, source.paths))
    if isinstance(source, File):
        return source_state(Path(source.path))
    if not isinstance(source, Path) or not source.is_file():
        return None
    found = source.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def content_bytes(source: Any) -> Iterator[bytes]:
    """The bytes that identify data: a file's own, or a table's columns as Arrow writes them.

    For several files, the name and size of each file come before its bytes; within a folder, names include the subfolders.
    """
    if isinstance(source, File):
        source = find_files(source)
    if isinstance(source, Files) and (
        options := source.format.options()
    ):  # other options make other rows of the same bytes
        yield json.dumps(options, sort_keys=True).encode()
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
            raise StudyError(f"There is no file {shown(path.name)} at the given path.")
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
    if table is None:  # a column holds cells of several types, which Arrow cannot convert
        yield from _cell_bytes(source)
        return
    for field_, column in zip(table.schema, table.columns, strict=True):
        yield json.dumps([field_.name, str(field_.type), len(column)]).encode()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([pa.field("c", field_.type)])) as writer:
            writer.write_table(pa.table([column], schema=pa.schema([pa.field("c", field_.type)])))
        yield sink.getvalue().to_pybytes()


def _cell_bytes(source: Any) -> Iterator[bytes]:
    """The bytes of each cell as a release reads it: its text as a key, and its number."""
    import narwhals as nw

    columns = (
        source if isinstance(source, Mapping) else nw.from_native(source, eager_only=True).to_dict(as_series=False)
    )
    for name, cells in columns.items():
        yield json.dumps([str(name), len(cells)]).encode()
        for cell in cells:
            yield json.dumps([key_text(cell), repr(number(cell))]).encode()


def _combined(table: pa.Table) -> pa.Table:
    """The table in one chunk. If the chunks' dictionaries do not fit into one, its categories become plain values."""
    import pyarrow as pa

    try:
        return table.combine_chunks()
    except pa.ArrowException:
        dictionaries = {f.name: f.type.value_type for f in table.schema if pa.types.is_dictionary(f.type)}
        plain = [pa.field(f.name, dictionaries.get(f.name, f.type)) for f in table.schema]
        return table.cast(pa.schema(plain)).combine_chunks()
