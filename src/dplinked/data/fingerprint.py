"""What data is known again by: the state of its files, and the bytes of its content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dplinked.data.arrow import to_arrow
from dplinked.data.files import Files
from dplinked.data.keys import key_text, number
from dplinked.errors import StudyError


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
