"""Linked rows in memory, given as a pandas, polars or Arrow table, a mapping of arrays, or a file.

What a cell means depends on that cell alone. Where there is a schema, types are taken from it. Where types would have to be inferred
from the cells (in lists, object columns and CSV files), each cell is read on its own instead. So is each cell of a column of texts that
is used as numbers: one word among its numbers is what made it a column of texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_origins, text_columns
from dplinked.data.encoding import Keys, cell_texts, dense_codes, dense_range, encode_part, guarded, is_dense, widened
from dplinked.data.files import read_file
from dplinked.data.keys import FALSE, NUMBER, TRUE, number
from dplinked.data.sizes import PART
from dplinked.errors import ReleaseError, StudyError, list_columns, raise_alone, shown, shown_type, suggest

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

_PIECE = 1 << 20  # rows whose codes are counted at once


class Rows:
    """Read access to the columns of a table, some rows at a time. Its schema and its number of rows are public.

    Parameters
    ----------
    data
        A pandas, polars or pyarrow table, a mapping of arrays or lists, or the path of a Parquet or CSV file.
    columns
        Names of the columns to read from a file; all of them by default.
    known
        Names of all columns, if the table has only some of them.
    """

    ordered = True  # no cell decides the order of rows

    def __init__(self, data: Any, columns: Sequence[str] | None = None, *, known: Sequence[str] | None = None) -> None:
        if isinstance(data, (str, Path)):
            data, known = read_file(Path(data), columns)
        self._text = text_columns(data)
        self.origins = column_origins(data)
        self._columns = _open_columns(data)
        self.columns: tuple[str, ...] = tuple(known or self._columns)
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise StudyError("The columns must all have the same number of rows.")
        self.count: int = lengths.pop() if lengths else 0

    def __repr__(self) -> str:
        return f"Rows({self.count} rows, columns {list(self.columns)})"

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns exist, the numeric ones hold numbers, and the others hold keys that can be compared."""
        # The first line of a CSV file may be a row, so its names are not shown.
        check_columns(names, self.columns, secret=bool(self._text))
        for name in numeric:
            kind = _kind(self._columns[name])
            if kind not in ("number", "text", "object"):
                raise StudyError(f"Column {shown(name)} holds {kind}, not numbers. Convert it before fitting.")
        for name in names:
            if name not in numeric:
                self.check_key(name)

    def numbers(self, name: str, start: int, stop: int) -> Floats:
        """Rows start:stop of a numeric column; cells that hold no number become NaN."""
        column = self._columns[name]
        if isinstance(column, np.ndarray) or _is_complex(column):
            return np.fromiter(map(number, column[start:stop]), np.float64, stop - start)
        import pyarrow as pa

        def read() -> Any:
            values = widened(_arrow(column[start:stop]))
            if pa.types.is_large_string(values.type):
                values = _parse_numbers(values)
            return values if values.type == pa.float64() else values.cast(pa.float64(), safe=False)

        return np.asarray(guarded(read).to_numpy(zero_copy_only=False), dtype=np.float64)

    def keys(self, name: str) -> pa.Array | NDArray[np.object_]:
        """The cells of a column as they are: an Arrow array, or a NumPy array of objects."""
        column = self._columns[name]
        if _is_complex(column):
            return np.array(list(column), object)
        return column if isinstance(column, np.ndarray) else guarded(lambda: _arrow(column))

    def kept(self, name: str) -> pa.Array:
        """The column in a form Parquet can store: numbers unchanged, other keys as text, null if a cell has no key."""
        import pyarrow as pa

        column = self._columns[name]
        if name in self._text or _kind(column) == "number":
            return guarded(lambda: _arrow(column))
        if not self._comparable(name):
            return pa.nulls(self.count)
        codes, texts = encode_part(self.keys(name))
        return texts.take(pa.array(codes))

    # --- in parts -----------------------------------------------------------------------------------

    @property
    def parts(self) -> int:
        """Number of parts, which hold consecutive rows and are read one at a time; all but the last have at least `PART` rows."""
        return max(1, -(-self.count // PART))

    def read(self, part: int, columns: Sequence[str]) -> Iterator[Rows]:
        """Read the rows of one part; they come in one piece."""
        start, stop = part * PART, min((part + 1) * PART, self.count)
        rows = copy(self)
        rows._columns = {name: self._columns[name][start:stop] for name in columns}
        rows.count = stop - start
        yield rows

    def check_key(self, name: str) -> None:
        """Refuse a column whose type cannot be compared. Its cells are not read."""
        if not self._comparable(name):
            kind = _type(self._columns[name])
            raise StudyError(f"Column {shown(name)} holds {kind}, which cannot be compared. Convert it to text first.")

    def holds_texts(self, name: str) -> bool:
        """Whether a column may hold texts, by its type. Its cells are not read."""
        return _kind(self._columns[name]) in ("text", "object")

    def _comparable(self, name: str) -> bool:
        """Whether a column's type can be encoded as keys, tried on no rows."""
        column = self._columns[name]
        objects = isinstance(column, np.ndarray) or _is_complex(column)
        return objects or _works(lambda: encode_part(_arrow(column[:0])))

    def find_keys(self, name: str) -> Keys:
        """Find the distinct keys of a column. The codes of all rows are kept, 4 bytes each, unless the keys serve as codes themselves."""
        values = self.keys(name)
        found = dense_range(values)
        if found is not None and is_dense(*found, self.count):
            return Keys(count_codes(dense_codes(values, found[0]), found[1] - found[0] + 1), low=found[0])
        codes, texts = encode_part(values)
        kept = {(part, 0): codes[part * PART : (part + 1) * PART] for part in range(self.parts)}
        return Keys(count_codes(codes, len(texts)), texts, kept=kept)


def empty_rows(schema: pa.Schema) -> Rows:
    """A table of an Arrow schema without rows, to find out what can be known from types alone."""
    import pyarrow as pa

    return Rows(pa.table([pa.nulls(0, field.type) for field in schema], schema=schema))


def read_matrix(data: Any) -> Any:
    """The numbers of a table, an array or nested lists as an array of floats, each cell read on its own; NaN where a cell holds no number.

    What holds no cells, like a number or a mapping, is returned as it is; so are arrays of records.
    """
    import narwhals as nw
    import pyarrow as pa

    if isinstance(data, np.ndarray):
        return _read_array(data)
    if isinstance(data, pa.Array):
        data = pa.chunked_array([data])
    if nw.dependencies.is_into_series(data):
        return _read_table(nw.from_native(data, series_only=True).to_frame())[:, 0]
    if nw.dependencies.is_into_dataframe(data):
        return _read_table(data)
    if isinstance(data, (list, tuple, range)):
        return _read_nested(data)
    return _read_array(np.asarray(data)) if hasattr(data, "__array__") else data


def _read_array(data: NDArray[Any]) -> NDArray[Any]:
    """An array as floats. Its type is public, but one of objects tells nothing about its cells."""
    kind = data.dtype.kind
    if kind in "biuf":
        with np.errstate(all="ignore"):  # a long float may be too large for a double
            return data.astype(np.float64, copy=False)
    if kind in "mM":
        raise StudyError("An array of dates or durations holds no numbers. Convert it before fitting.")
    if kind == "O" and data.ndim == 1:
        return _read_nested(data.tolist())
    return np.fromiter(map(number, data.flat), np.float64, data.size).reshape(data.shape) if kind in "OUSc" else data


def _read_table(data: Any) -> Floats:
    """All columns of a table, side by side."""
    rows = Rows(data)
    rows.require(rows.columns, numeric=rows.columns)
    columns = [rows.numbers(name, 0, rows.count) for name in rows.columns]
    return np.column_stack(columns) if columns else np.empty((rows.count, 0))


def _read_nested(rows: Sequence[Any]) -> Floats:
    """A list of rows, or of numbers. Its width is that of most rows: a row of another width is one person's, and its cells are missing."""
    widths = [_width(row) for row in rows]
    width = max(Counter(widths).items(), key=lambda item: item[1], default=(None, 0))[0]
    if width is None:
        return np.fromiter(map(number, rows), np.float64, len(rows))
    cells = np.full((len(rows), width), np.nan)
    for place, (row, found) in enumerate(zip(rows, widths, strict=True)):
        if found == width:
            cells[place] = _read_row(row, width)
    return cells


def _width(row: Any) -> int | None:
    """Number of cells of a row; None for what is no row, or cannot be asked."""
    try:
        return len(row) if isinstance(row, (list, tuple, range)) or getattr(row, "ndim", 0) == 1 else None
    except Exception:  # whatever a row may be, it must not stop a release
        return None


def _read_row(row: Any, width: int) -> list[float]:
    """The numbers of a row; its cells are missing if they cannot be read, or are not as many as it said."""
    missing = [np.nan] * width
    try:
        cells = [number(cell) for cell in islice(row, width + 1)]
    except Exception:
        return missing
    return cells if len(cells) == width else missing


def check_columns(names: Sequence[str], columns: Sequence[str], *, secret: bool = False) -> None:
    """Refuse names that are not among the columns. If the columns are `secret`, since their names may be a row, the message lists none of them."""
    for name in names:
        if name not in columns:
            known = (
                " The steward's 'check' lists its columns."
                if secret
                else suggest(name, columns) + list_columns(columns)
            )
            raise StudyError(f"Column {shown(name)} is not in the data.{known}")


def count_codes(codes: Codes, size: int) -> NDArray[np.int64]:
    """Count how often each code occurs. This goes piece by piece, as `bincount` copies its whole input as 64-bit integers."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, codes.size, _PIECE):
        counts += np.bincount(codes[start : start + _PIECE], minlength=size)
    return counts


def _open_columns(data: Any) -> dict[str, Any]:
    """The columns by name: typed ones as Arrow or narwhals columns, others as NumPy object arrays, which are read cell by cell."""
    import narwhals as nw
    import pyarrow as pa

    if isinstance(data, pa.Table) and len(set(data.column_names)) == data.num_columns:
        return dict(zip(data.column_names, data.columns, strict=True))
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
        dtype = str(getattr(native, "dtype", ""))
        cellwise = dtype in ("object", "Object", "category")  # such a column may hold cells of any type
        columns[name] = np.asarray(native, dtype=object) if cellwise else column
    return columns


def _open_array(values: Any) -> Any:
    """A typed array becomes an Arrow column, anything else an object array: NumPy would infer a list's type from its cells."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biufU":
        # Arrow cannot hold half a surrogate pair or long floats; such arrays are read cell by cell below.
        with suppress(UnicodeError, pa.ArrowException):
            values = pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    listed = values.tolist() if isinstance(values, np.ndarray) and values.dtype != object else list(values)
    return np.fromiter(listed, dtype=object, count=len(listed))  # cells that are lists stay lists


def _kind(column: Any) -> str:
    """Return ``"number"``, ``"text"``, ``"object"`` or the name of a type that holds no numbers. Cells are not read."""
    if isinstance(column, np.ndarray) or _is_complex(column):
        return "object"
    import pyarrow as pa

    def texts() -> bool:
        return bool(pa.types.is_large_string(widened(_arrow(column[:0])).type))

    def numbers() -> bool:
        empty, types = widened(_arrow(column[:0])), pa.types
        tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
        return any(test(empty.type) for test in tests) and len(empty.cast(pa.float64())) == 0

    return "text" if _works(texts) else "number" if _works(numbers) else _type(column)


def _is_complex(column: Any) -> bool:
    """Whether a column holds complex numbers: pandas makes one of real numbers because of a single cell."""
    native = column.to_native() if hasattr(column, "to_native") else column
    return getattr(getattr(native, "dtype", None), "kind", "") == "c"


def _type(column: Any) -> str:
    """The type of a typed column, as messages name it."""
    import narwhals as nw

    series = nw.from_native(column, series_only=True, pass_through=True)
    native, dtype = series.to_native(), str(series.dtype)
    return shown_type(getattr(native, "dtype", None) or native.type if dtype == "Unknown" else dtype)


def _works(convert: Callable[[], Any]) -> bool:
    """Whether a conversion works; it is tried on a column without rows, so the outcome depends on the type alone."""
    try:
        return guarded(convert) is not False
    except ReleaseError:
        return False


def _arrow(column: Any) -> pa.Array:
    """A typed column as one Arrow array. A single chunk is not copied, as narwhals' `to_arrow` would do."""
    import pyarrow as pa

    values = column
    if not isinstance(values, pa.ChunkedArray):
        try:
            values = column.to_arrow()
        except UnicodeError:  # Arrow cannot hold half a surrogate pair
            return cell_texts(column.to_native())
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(map(widened, chunks)) if chunks else pa.nulls(0, values.type)


def _parse_numbers(texts: pa.Array) -> pa.Array:
    """Read each text as a number, as :func:`dplinked.data.keys.number` does; a text that is none becomes null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def among(words: tuple[str, ...]) -> Any:
        return pc.is_in(trimmed, value_set=pa.array(words, trimmed.type))

    trimmed, none = pc.ascii_trim_whitespace(texts), pa.scalar(None, pa.float64())
    decimal = pc.match_substring_regex(trimmed, f"^(?:{NUMBER})$")
    numbers = pc.if_else(decimal, trimmed, pa.scalar(None, trimmed.type)).cast(pa.float64())
    return pc.coalesce(numbers, pc.if_else(among(TRUE), 1.0, pc.if_else(among(FALSE), 0.0, none)))
