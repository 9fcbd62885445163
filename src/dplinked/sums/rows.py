"""Linked rows in memory, whatever holds them: pandas, polars, Arrow, a mapping of arrays, a file.

What a cell means depends on the cell alone. Types are taken from the schema where there is one; where a
container would infer them from its cells (lists, object columns, CSV), cells are read one by one instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, raise_alone, suggest
from dplinked.keys import number
from dplinked.sums.coding import Keys, dense_codes, dense_range, encode_part, guarded, is_dense
from dplinked.tables import read_file, text_columns

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

PART = 1 << 18  # rows read at once
_PIECE = 1 << 20  # rows counted at once
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class Rows:
    """Read access to the columns of a table, tile by tile. Its schema and length are public.

    Parameters
    ----------
    data
        A pandas, polars or pyarrow table, a mapping of arrays or lists, or the path of a Parquet or CSV file.
    columns
        Names to read from a file; all of them unless given.
    """

    def __init__(self, data: Any, columns: Sequence[str] | None = None) -> None:
        known = None
        if isinstance(data, (str, Path)):
            data, known = read_file(Path(data), columns)
        self._text = text_columns(data)
        self._columns = _open_columns(data)
        self.columns: tuple[str, ...] = tuple(known or self._columns)
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise StudyError("The columns must all have the same number of rows.")
        self.count: int = lengths.pop() if lengths else 0

    def __repr__(self) -> str:
        return f"Rows({self.count} rows, columns {list(self.columns)})"

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, and the numeric ones numbers."""
        check_columns(names, self.columns, secret=bool(self._text))  # the first line of a CSV file may be a row
        for name in numeric:
            kind = _kind(self._columns[name])
            if not (kind == "number" or kind == "object" or name in self._text):
                raise StudyError(f"Column {name!r} holds {kind}, not numbers. Convert it before fitting.")

    def numbers(self, name: str, start: int, stop: int) -> Floats:
        """Rows start:stop of a numeric column; whatever is no number is NaN."""
        column = self._columns[name]
        if isinstance(column, np.ndarray):
            return np.fromiter(map(number, column[start:stop]), np.float64, stop - start)
        import pyarrow as pa

        def read() -> Any:
            values = _arrow(column[start:stop])
            if name in self._text:
                values = _parse_numbers(values)
            return values if values.type == pa.float64() else values.cast(pa.float64(), safe=False)

        return np.asarray(guarded(read).to_numpy(zero_copy_only=False), dtype=np.float64)

    def keys(self, name: str) -> Any:
        """A column's cells as they are: an Arrow array, or objects."""
        column = self._columns[name]
        return column if isinstance(column, np.ndarray) else guarded(lambda: _arrow(column))

    # --- in parts -----------------------------------------------------------------------------------

    @property
    def parts(self) -> int:
        """Number of parts of consecutive rows that are read one at a time; each but the last has `PART` rows or more."""
        return max(1, -(-self.count // PART))

    def read(self, part: int, columns: Sequence[str]) -> Iterator[Rows]:
        """The rows of one part, in one piece."""
        start, stop = part * PART, min((part + 1) * PART, self.count)
        rows = copy(self)
        rows._columns = {name: self._columns[name][start:stop] for name in columns}
        rows.count = stop - start
        yield rows

    def check_key(self, name: str) -> None:
        """Refuse a column whose type cannot be compared; its cells are not looked at."""
        encode_part(self.keys(name)[:0])

    def find_keys(self, name: str) -> Keys:
        """Distinct keys of a column; the codes of all rows are kept, 4 bytes each, unless keys are their own codes."""
        values = self.keys(name)
        found = dense_range(values)
        if found is not None and is_dense(*found, self.count):
            return Keys(count_codes(dense_codes(values, found[0]), found[1] - found[0] + 1), low=found[0])
        codes, texts = encode_part(values)
        kept = {(part, 0): codes[part * PART : (part + 1) * PART] for part in range(self.parts)}
        return Keys(count_codes(codes, len(texts)), texts, kept=kept)


def check_columns(names: Sequence[str], columns: Sequence[str], *, secret: bool = False) -> None:
    """Refuse names that are not among the columns; secret ones are not hinted at."""
    for name in names:
        if name not in columns:
            raise StudyError(f"Column {name!r} is not in the data.{suggest(name, () if secret else columns)}")


def count_codes(codes: Codes, size: int) -> NDArray[np.int64]:
    """How often each code occurs, in pieces: `bincount` would copy the whole column as 64-bit numbers."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, codes.size, _PIECE):
        counts += np.bincount(codes[start : start + _PIECE], minlength=size)
    return counts


def _open_columns(data: Any) -> dict[str, Any]:
    """Columns by name: narwhals series (typed), or NumPy object arrays (read cell by cell)."""
    import narwhals as nw

    if isinstance(data, Mapping):
        return {name: _open_array(values) for name, values in data.items()}
    frame = None
    try:
        frame = nw.from_native(data)
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        names = frame.columns
    except (TypeError, ValueError, nw.exceptions.NarwhalsError):
        raise_alone(
            StudyError(
                f"Data of type {type(data).__name__} is not supported. Give a pandas, polars or pyarrow table with unique "
                "column names, a mapping of arrays, or the path of a Parquet or CSV file."
            )
        )
    columns = {}
    for name in names:
        column = frame.get_column(name)
        native = column.to_native()
        cellwise = str(getattr(native, "dtype", "")) in ("object", "category")  # their cells may be of any type
        columns[name] = np.asarray(native, dtype=object) if cellwise else column
    return columns


def _open_array(values: Any) -> Any:
    """A typed array as it is, anything else as objects: NumPy would take a list's type from its cells."""
    import narwhals as nw
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biufU":
        with suppress(UnicodeError):  # half a surrogate pair: cell by cell, then
            values = pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        chunks = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
        return nw.from_native(chunks, series_only=True)
    listed = values.tolist() if isinstance(values, np.ndarray) and values.dtype != object else list(values)
    column = np.empty(len(listed), dtype=object)
    column[:] = listed
    return column


def _kind(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return "object"
    import pyarrow as pa

    dtype = column.dtype
    if dtype.is_numeric() or str(dtype) == "Boolean":
        return "number"
    if str(dtype) == "Unknown" and pa.types.is_null(_arrow(column[:0]).type):  # a column of nulls alone
        return "number"
    return str(dtype)


def _arrow(column: Any) -> Any:
    """A typed column as one Arrow array; a single chunk is not copied (narwhals' `to_arrow` would)."""
    import pyarrow as pa

    native = column.to_native()
    values = native if isinstance(native, (pa.Array, pa.ChunkedArray)) else column.to_arrow()
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            return values.chunk(0)
        return values.combine_chunks() if values.num_chunks else pa.array([], values.type)
    return values


def _parse_numbers(values: Any) -> Any:
    """Text cells as numbers, cell by cell; what is no number becomes null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.ascii_trim_whitespace(values)
    return pc.if_else(pc.match_substring_regex(trimmed, _NUMBER), trimmed, pa.scalar(None, pa.string())).cast(
        pa.float64()
    )
