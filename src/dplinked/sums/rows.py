"""Linked rows in memory, whatever holds them: pandas, polars, Arrow, a mapping of arrays, a file.

What a cell means depends on the cell alone. Types are taken from the schema where there is one; where a
container would infer them from its cells (lists, object columns, CSV), cells are read one by one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError, StudyError, raise_alone, suggest
from dplinked.keys import key_text, number
from dplinked.tables import read_file, text_columns

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Distinct = list[str | None] | NDArray[np.int64]  # distinct keys; an array where they are whole numbers

_UNREADABLE = "A column could not be read. The steward's 'check' shows the details."
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
        for name in names:
            if name not in self.columns:
                known = () if self._text else self.columns  # the first line of a CSV file may be a row
                raise StudyError(f"Column {name!r} is not in the data.{suggest(name, known)}")
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

        values = None
        try:
            values = _arrow(column[start:stop])
            if name in self._text:
                values = _parse_numbers(values)
            if values.type != pa.float64():
                values = values.cast(pa.float64(), safe=False)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise_alone(ReleaseError(_UNREADABLE))
        return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)

    def coded(self, name: str, place: Callable[[list[str | None]], Sequence[int]]) -> Codes:
        """Code a whole key column: `place` maps the texts of its distinct keys to numbers."""
        codes, distinct = self.encode_keys(name)
        coded: Codes = np.asarray(place(key_texts(distinct)), dtype=np.int32)[codes]
        return coded

    def encode_keys(self, name: str) -> tuple[Codes, Distinct]:
        """Code of each row's key, and the distinct keys in the order of their codes."""
        column = self._columns[name]
        if isinstance(column, np.ndarray):
            return _encode_texts(list(map(key_text, column)))
        import pyarrow as pa
        import pyarrow.compute as pc

        encoded = None
        try:
            values = _arrow(column)
            if pa.types.is_dictionary(values.type):  # else nulls would have no code
                values = values.dictionary_decode()
            if pa.types.is_integer(values.type) and values.null_count == 0:
                found = _encode_integers(values.to_numpy(zero_copy_only=False))
                if found is not None:
                    return found
            encoded = pc.dictionary_encode(values, null_encoding="encode")
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise_alone(ReleaseError(_UNREADABLE))
        texts, places = _encode_texts([_scalar_text(key) for key in encoded.dictionary])
        return texts[encoded.indices.to_numpy(zero_copy_only=False)], places


def _scalar_text(scalar: Any) -> str | None:
    """Text of one Arrow value; None where Python cannot hold it (a date beyond its calendar, broken UTF-8)."""
    try:
        return key_text(scalar.as_py())
    except Exception:  # whatever a cell may hold, it must not stop a release
        return None


def key_texts(distinct: Distinct) -> list[str | None]:
    """Distinct keys as texts."""
    return list(map(str, distinct.tolist())) if isinstance(distinct, np.ndarray) else distinct


def count_codes(codes: Codes, size: int) -> NDArray[np.int64]:
    """How often each code occurs, in pieces: `bincount` would copy the whole column as 64-bit numbers."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, codes.size, _PIECE):
        counts += np.bincount(codes[start : start + _PIECE], minlength=size)
    return counts


def _encode_integers(keys: NDArray[Any]) -> tuple[Codes, NDArray[np.int64]] | None:
    """Code whole numbers by their distance from the smallest; None where they lie too far apart for that."""
    if keys.size == 0:
        return None
    low, high = int(keys.min()), int(keys.max())
    if high - low >= min(4 * keys.size + 1024, 2**31 - 1) or high >= 2**63:
        return None
    codes = np.empty(keys.size, dtype=np.int32)
    np.subtract(keys, keys.dtype.type(low), out=codes, dtype=np.int64, casting="unsafe")
    present = np.flatnonzero(count_codes(codes, high - low + 1))
    if present.size <= high - low:
        numbers = np.zeros(high - low + 1, dtype=np.int32)
        numbers[present] = np.arange(present.size)
        codes = numbers[codes]
    return codes, present + low


def _encode_texts(texts: list[str | None]) -> tuple[Codes, list[str | None]]:
    places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return np.fromiter((places[text] for text in texts), np.int32, len(texts)), list(places)


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
        values = pa.array(values)
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
