"""CSV files: every cell as its text, whatever the others hold."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError

FROM_TEXT = {b"dplinked": b"text"}  # travels with a column through Parquet files
_END = "dplinked: the end of the file"


def read_csv(path: Path, columns: Sequence[str] | None) -> tuple[Any, list[str]]:
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
