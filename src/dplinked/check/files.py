"""What a file holds, column by column, before anything is declared of it. FOR THE STEWARD, NOT FOR PUBLICATION.

Least and largest values are not told: bounds that are read off the data would be released without being paid for.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dplinked.data.arrow import to_arrow
from dplinked.data.files import kind_of, unreadable
from dplinked.data.format import File, split_file
from dplinked.data.keys import number
from dplinked.data.look import look_at
from dplinked.errors import StudyError, raise_alone, shown

if TYPE_CHECKING:
    import pyarrow as pa

_FEW = 30  # texts with at most so many different values are taken for levels
_SAMPLE = 200_000  # rows by which different values are counted
_TRIED, _MOST = 1000, 0.95  # of so many different values, this share decides what they are
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|(19|20)\d{6}")


@dataclass(frozen=True)
class ColumnFacts:
    """A column: what its cells are, what share of them is missing, and how many different values there are; of a long file, in its first rows."""

    name: str
    kind: str
    missing: float
    distinct: int

    @property
    def is_number(self) -> bool:
        """Whether its cells are numbers."""
        return self.kind == "numbers"


@dataclass(frozen=True)
class FileFacts:
    """A file: its rows, and its columns in their order."""

    rows: int
    columns: tuple[ColumnFacts, ...]

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]


def check_file(data: Path | File) -> FileFacts:
    """Read a file and say what its columns hold."""
    path, _ = split_file(data)
    if not (os.path.isfile(path) or os.path.isdir(path)):
        raise StudyError(f"There is no file {shown(path.name)}. Choose one that is there.")
    table, count = _read(data, path)
    names = [name for name in table.column_names if isinstance(name, str)]
    return FileFacts(count, tuple(_facts(name, table.column(name)) for name in names))


def _read(data: Path | File, path: Path) -> tuple[pa.Table, int]:
    """A file's rows, of a Parquet file its first ones, and how many there are in all."""
    if kind_of(path) != "parquet" or not path.is_file():
        table = to_arrow(data, path.name)
        return table, table.num_rows
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            first = next(file.iter_batches(_SAMPLE), None)
            table = file.schema_arrow.empty_table() if first is None else pa.Table.from_batches([first])
            return table, file.metadata.num_rows
    except (pa.ArrowException, OSError):
        raise_alone(unreadable(path, "parquet"))


def suggest_options(path: Path) -> Mapping[str, Any]:
    """How a text file seems to be written, where that is not by commas, decimal points and UTF-8."""
    look = look_at(path) if kind_of(path) == "csv" else None
    if look is None or not look.columns:
        return {}
    return {name: value for name, value in look.format.options().items() if value != "ascii"}


def _facts(name: str, cells: pa.ChunkedArray) -> ColumnFacts:
    import pyarrow.compute as pc

    sample = cells.slice(0, _SAMPLE)
    empty = cells.null_count
    kind = _kind(cells)
    if kind == "texts":
        empty += pc.sum(pc.equal(pc.utf8_trim_whitespace(cells.cast("large_string")), "")).as_py() or 0
    values = pc.unique(sample)
    return ColumnFacts(name, _told_apart(values, kind), empty / max(1, len(cells)), len(values.drop_null()))


def _told_apart(values: pa.Array, kind: str) -> str:
    """What texts are: numbers, dates, levels, or nothing but texts. Cells of text files are texts at first."""
    if kind != "texts":
        return kind
    seen = [text.strip() for text in values.slice(0, _TRIED).to_pylist() if text is not None and text.strip()]
    for told, fits in (("numbers", _is_number), ("dates", _DATE.fullmatch)):
        if seen and sum(bool(fits(text)) for text in seen) >= _MOST * len(seen):
            return told
    return "levels" if len(values) <= _FEW else "texts"


def _is_number(text: str) -> bool:
    return math.isfinite(number(text))


def _kind(cells: pa.ChunkedArray) -> str:
    import pyarrow as pa

    held = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
    if pa.types.is_boolean(held):
        return "yes or no"
    if pa.types.is_integer(held) or pa.types.is_floating(held) or pa.types.is_decimal(held):
        return "numbers"
    if pa.types.is_temporal(held):
        return "dates"
    return "texts" if pa.types.is_string(held) or pa.types.is_large_string(held) else "other"
