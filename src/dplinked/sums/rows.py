"""Linked rows in memory, whatever holds them: pandas, polars, Arrow, a mapping of arrays, a file."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError, StudyError, suggest

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]


class Rows:
    """Read access to the columns of a table, tile by tile. Its schema and length are public."""

    def __init__(self, data: Any, columns: Sequence[str] | None = None) -> None:
        import narwhals as nw

        known = None
        if isinstance(data, (str, Path)):
            data, known = _read_file(Path(data), columns)
        elif isinstance(data, Mapping):
            data = _table_of(data)
        try:
            frame = nw.from_native(data)
        except TypeError:
            raise StudyError(
                f"Data of type {type(data).__name__} is not supported. Give a pandas, polars or pyarrow table, a mapping "
                "of arrays, or the path of a Parquet or CSV file."
            ) from None
        self._frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        self.columns: tuple[str, ...] = tuple(known or self._frame.columns)
        self.count: int = len(self._frame)

    def __repr__(self) -> str:
        return f"Rows({self.count} rows, columns {list(self.columns)})"

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, and the numeric ones numbers."""
        for name in names:
            if name not in self.columns:
                raise StudyError(f"Column {name!r} is not in the data.{suggest(name, self.columns)}")
        for name in numeric:
            dtype = self._frame.schema[name]
            if not (dtype.is_numeric() or str(dtype) in ("Boolean", "Unknown")):
                raise StudyError(f"Column {name!r} holds {dtype}, not numbers. Convert it before fitting.")

    def numbers(self, name: str, start: int, stop: int) -> Floats:
        """Rows start:stop of a numeric column; nulls as NaN."""
        import pyarrow as pa

        try:
            column = self._frame.get_column(name)[start:stop].to_arrow()
            if column.type != pa.float64():
                column = column.cast(pa.float64(), safe=False)
            return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
        except (pa.ArrowException, TypeError, ValueError):
            raise ReleaseError(
                "A column could not be read as numbers. The steward's 'check' shows the details."
            ) from None

    def coded(self, name: str, place: Callable[[list[Any]], Sequence[int]]) -> Codes:
        """Code a whole key column: `place` maps its distinct values to numbers."""
        codes, distinct = self._encode(name)
        return np.asarray(place(distinct), dtype=np.int32)[codes]

    def _encode(self, name: str) -> tuple[NDArray[np.int32], list[Any]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        series = self._frame.get_column(name)
        try:
            column = series.to_arrow()
            if isinstance(column, pa.ChunkedArray):
                column = column.combine_chunks()
            encoded = pc.dictionary_encode(column, null_encoding="encode")
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
            return codes, encoded.dictionary.to_pylist()
        except (pa.ArrowException, TypeError, ValueError, AttributeError):
            return _encode_objects(series.to_list())


def _encode_objects(values: list[Any]) -> tuple[NDArray[np.int32], list[Any]]:
    """Code a column of mixed objects, which Arrow has no type for."""
    places: dict[Hashable, int] = {}
    codes = np.empty(len(values), dtype=np.int32)
    for i, value in enumerate(values):
        key = value if isinstance(value, Hashable) else None
        codes[i] = places.setdefault(None if key != key else key, len(places))
    return codes, list(places)


def _table_of(columns: Mapping[str, Any]) -> Any:
    """An Arrow table over a mapping of arrays, without copying numbers; Arrow's errors quote cells."""
    import pyarrow as pa

    try:
        return pa.table({name: pa.array(np.asarray(values)) for name, values in columns.items()})
    except (pa.ArrowException, TypeError, ValueError):
        raise StudyError("The columns must be arrays of one length, each of numbers or of text alone.") from None


def _read_file(path: Path, columns: Sequence[str] | None) -> tuple[Any, list[str]]:
    """Read a Parquet or CSV file, and the names of all its columns; parser errors are replaced, since they quote cells."""
    import pyarrow as pa

    suffix = path.suffix.lower()
    if suffix not in (".parquet", ".pq", ".csv"):
        raise StudyError(f"{path.name!r}: only .parquet and .csv files are read. Convert the file first.")
    if not path.is_file():
        raise StudyError(f"There is no file {path.name!r} at the given path.")
    try:
        if suffix == ".csv":
            import pyarrow.csv

            table = pyarrow.csv.read_csv(path)
            return table, table.column_names
        import pyarrow.parquet

        known = pyarrow.parquet.read_schema(path).names
        wanted = None if columns is None else [name for name in columns if name in known]
        return pyarrow.parquet.read_table(path, columns=wanted), known
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise StudyError(
            f"{path.name!r} cannot be read as {suffix[1:]}. The steward's 'check' shows the details."
        ) from None
