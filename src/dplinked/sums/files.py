"""Files as linked rows: NumPy sums Parquet files, text files of moderate size and those of other programs, DuckDB reads all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike

from dplinked.data.files import Files, find_files, read_file
from dplinked.data.fingerprint import content_bytes
from dplinked.data.format import File
from dplinked.data.parquet import ParquetRows
from dplinked.data.sources import Progress
from dplinked.data.table import Rows
from dplinked.sums.engine import DUCKDB, Source
from dplinked.sums.numpy.tables import Tables

IN_MEMORY = 1 << 19  # rows of Parquet files up to which they are read once, whole
LARGEST_TEXT = 1 << 30  # bytes of a CSV file beyond which DuckDB reads it
_COMPRESSED = 8  # such a file, compressed, is about so many times smaller


def resolve_data(data: str | PathLike[str] | File | Files) -> Files:
    """The files that a path means, with symlinks resolved, so that fingerprint and sums see the same ones."""
    return data if isinstance(data, Files) else find_files(data)


def open_data(
    data: str | PathLike[str] | File | Files,
    columns: Sequence[str] | None = None,
    *,
    once: bool = False,
    progress: Progress | None = None,
) -> Source:
    """Open files of one kind."""
    files = data if isinstance(data, Files) else find_files(data)
    if files.kind == "parquet":
        rows = ParquetRows(files.paths, files.root, progress)
        return Tables(rows.load(columns) if rows.count <= IN_MEMORY else rows, progress, files)
    if files.kind not in ("csv", "json") or (files.kind == "csv" and _is_moderate(files)):
        table, known = read_file(files.paths[0], columns, files.kind, files.format)
        return Tables(Rows(table, known=known), progress, files)
    return DUCKDB.load().open_data(files, columns, once=once, progress=progress)


def _is_moderate(files: Files) -> bool:
    """Whether this is one text file that fits into memory."""
    size = sum(path.stat().st_size * (_COMPRESSED if path.suffix.lower() == ".gz" else 1) for path in files.paths)
    return len(files.paths) == 1 and size <= LARGEST_TEXT


def data_content(data: str | PathLike[str] | File | Files) -> Iterator[bytes]:
    """The bytes of the files, whichever engine reads them."""
    return content_bytes(resolve_data(data))
