"""CSV files: every cell is read as text, so that no cell decides how another one is read."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dplinked.errors import StudyError

if TYPE_CHECKING:
    import pyarrow as pa

FROM_TEXT = {b"dplinked": b"text"}  # Arrow metadata that marks a column of a CSV file; Parquet files keep it
_END = "dplinked: the end of the file"  # a line that is added to find quotes that are never closed


def read_csv(path: Path, columns: Sequence[str] | None) -> tuple[pa.Table, list[str]]:
    """Read some columns of a CSV file, all of them as text; also returns the names of all columns.

    A CSV file has no types, and guessing them would make one cell's meaning depend on the others. For the same reason the file is read
    in one piece and its encoding is not checked: a long cell, a line break within a cell or broken UTF-8 must not
    decide whether another cell can be read.
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
    # One thread only: a process that ends while Arrow's reading threads still run may abort, for instance when a study is refused.
    size = min(path.stat().st_size + 1 + 40 * (len(known) + 1), 2**31 - 1)
    whole = pyarrow.csv.ReadOptions(use_threads=False, block_size=size)
    if len(set(known)) != len(known):
        raise StudyError(f"{path.name!r} has two columns of the same name. Rename one.")
    # In a file with a single column an empty line is a row with a null cell.
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(known) != 1)
    content = path.read_bytes()
    content += b"" if content.endswith((b"\n", b"\r")) else b"\n"
    # A quote that is never closed swallows all rows after it without an error. So a known last line is added, which must come back.
    content += b",".join([_END.encode()] * len(known)) + b"\n"
    table = pyarrow.csv.read_csv(
        pa.BufferReader(content), read_options=whole, parse_options=parse, convert_options=options
    )
    last = table.slice(max(0, table.num_rows - 1))
    if not last.num_rows or any(column.cast(pa.binary())[0].as_py() != _END.encode() for column in last.columns):
        raise StudyError(f"{path.name!r} cannot be read as csv: a quote is opened and never closed.")
    table = table.slice(0, table.num_rows - 1)
    return table.cast(pa.schema([field.with_metadata(FROM_TEXT) for field in table.schema])), known
