"""Linked rows in Parquet files, read by row groups, so that memory does not grow with the number of rows.

The first pass reads the key column alone, to count the rows of each block. Every further pass reads the columns of the model and the keys
again. Memory holds one row group per thread, one counter per block, and each thread's block totals.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import common_origins
from dplinked.data.csv import FROM_TEXT
from dplinked.data.encoding import (
    CHANGED,
    UNREADABLE,
    Dictionary,
    Keys,
    dense_codes,
    dense_range,
    encode_part,
    is_dense,
    number_texts,
)
from dplinked.data.fingerprint import source_state
from dplinked.data.sizes import BATCH, PART
from dplinked.data.sources import Progress
from dplinked.data.table import Rows, check_columns, empty_rows
from dplinked.errors import ReleaseError, StudyError, raise_alone

if TYPE_CHECKING:
    import pyarrow as pa

_WORKERS = min(8, os.cpu_count() or 1)
_MOST_COUNTERS = 8  # counters per row of a piece; if a range would need more, only the numbers that occur are counted
_COUNTING = "Counting blocks"
_BUFFER = 1 << 18  # bytes of a column that are read at once


@dataclass(frozen=True)
class _File:
    """One Parquet file: its metadata, the columns its folder's name holds, and its state when it was opened."""

    path: str
    metadata: Any
    partition: dict[str, Any]
    state: tuple[Any, ...] | None


class ParquetRows:
    """Read access to Parquet files; Hive partitions in folder names are columns. Schema and number of rows are public."""

    ordered = True  # no cell decides the order of rows

    def __init__(self, paths: Sequence[Path], root: Path | None = None, progress: Progress | None = None) -> None:
        self.progress = progress
        self._files = [_open(path, root) for path in paths]
        self._schema = self._types = _common_schema(self._files)
        self.columns: tuple[str, ...] = tuple(self._schema.names)
        self.origins = common_origins(file.metadata.schema.to_arrow_schema() for file in self._files)
        self.count = sum(file.metadata.num_rows for file in self._files)
        self._parts = list(_cut_parts(self._files))

    def __repr__(self) -> str:
        return f"ParquetRows({self.count} rows, columns {list(self.columns)})"

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns exist, the numeric ones hold numbers, and the others hold keys that can be compared."""
        check_columns(names, self.columns)
        empty_rows(self._types).require(names, numeric=numeric)

    @property
    def parts(self) -> int:
        """Number of parts that are read one at a time: row groups, with small ones merged."""
        return len(self._parts)

    def read(self, part: int, columns: Sequence[str]) -> Iterator[Rows]:
        """Read the rows of one part, in pieces that fit into memory."""
        import pyarrow as pa

        groups = self._parts[part]
        try:
            if len(groups) == 1 and groups[0][1].num_rows > PART:
                for table in self._batches(*groups[0], columns):
                    yield Rows(table)
            else:
                tables = [self._table(file, group, columns) for file, group in groups]
                yield Rows(tables[0] if len(tables) == 1 else pa.concat_tables(tables))
        except (pa.ArrowException, OSError):
            raise_alone(ReleaseError(UNREADABLE))

    def _table(self, file: _File, group: _Group, columns: Sequence[str]) -> pa.Table:
        """One row group as a table."""
        stored = [name for name in columns if name not in file.partition]
        with _reader(file) as reader:
            table = reader.read_row_group(group.number, columns=stored, use_threads=False)
        return self._completed(table, group.num_rows, file, columns)

    def _batches(self, file: _File, group: _Group, columns: Sequence[str]) -> Iterator[pa.Table]:
        """A large row group as several tables."""
        import pyarrow as pa

        stored = [name for name in columns if name not in file.partition]
        with _reader(file) as reader:
            options = {"batch_size": BATCH, "row_groups": [group.number], "use_threads": False}
            for batch in reader.iter_batches(columns=stored, **options):
                yield self._completed(pa.Table.from_batches([batch]), batch.num_rows, file, columns)

    def _completed(self, table: pa.Table, count: int, file: _File, columns: Sequence[str]) -> pa.Table:
        """The columns in the order asked for, those from the folder's name included, with the types that all files share."""
        import pyarrow as pa

        arrays = [
            pa.repeat(file.partition[name], count) if name in file.partition else table.column(name) for name in columns
        ]
        return pa.table(arrays, schema=pa.schema([self._schema.field(name) for name in columns]))

    def load(self, columns: Sequence[str] | None) -> Rows:
        """Read all rows into memory, so that a file that cannot be read is noticed before anything else happens."""
        import pyarrow as pa

        wanted = [name for name in self.columns if columns is None or name in columns] or list(self.columns[:1])
        try:
            groups = [place for part in self._parts for place in part]
            with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
                tables = list(pool.map(lambda place: self._table(place[0], place[1], wanted), groups))
            empty = pa.schema([self._schema.field(name) for name in wanted]).empty_table()
            rows = Rows(pa.concat_tables([empty, *tables]))
            rows.columns, rows.origins = self.columns, self.origins
            return rows
        except (pa.ArrowException, OSError):
            raise_alone(_unreadable(self._files[0].path))

    def check_key(self, name: str) -> None:
        """Refuse a column whose type cannot be compared. Its cells are not read."""
        empty_rows(self._types).check_key(name)

    def holds_texts(self, name: str) -> bool:
        """Whether a column may hold texts, by its type."""
        return empty_rows(self._types).holds_texts(name)

    def find_keys(self, name: str) -> Keys:
        """Find the distinct keys of a column and the number of rows of each, in one pass over the column."""
        import pyarrow as pa

        found = _Counting(self.count, dense=pa.types.is_integer(self._schema.field(name).type))

        def run(part: int, dense: bool) -> list[_Counted]:
            pieces = enumerate(self.read(part, [name]))
            return [_count_keys((part, piece), rows.keys(name), self.count if dense else 0) for piece, rows in pieces]

        ahead = 2 * _WORKERS  # parts handed out at a time, so that finished results do not pile up
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            for start in range(0, self.parts, ahead):
                parts = range(start, min(start + ahead, self.parts))
                for counted in pool.map(run, parts, [found.dense] * len(parts)):
                    found.add(counted)
                if self.progress is not None:
                    self.progress(_COUNTING, parts.stop, self.parts)
        return found.finish()


@dataclass(frozen=True)
class _Group:
    """A row group: its number in the file, and how many rows it has."""

    number: int
    num_rows: int


@dataclass(frozen=True)
class _Counted:
    """The number of rows of each key in one piece.

    Attributes
    ----------
    place
        The part, and the piece within it.
    counts
        Rows of each key, in the order of `texts` or of the integers.
    texts
        The distinct keys, if they are counted as texts; None if they are counted as integers.
    low, steps
        For integers: the smallest, and the distances from it that were counted. If `steps` is None, all integers from `low` on were.
    values
        For integers: the cells, in case they have to be counted as texts after all.
    """

    place: tuple[int, int]
    counts: NDArray[np.int64]
    texts: Any = None
    low: int = 0
    steps: Any = None
    values: Any = None


def _count_keys(place: tuple[int, int], values: Any, dense: int = 0) -> _Counted:
    """Count a piece's keys. They are counted as integers if they lie close enough together for a column of `dense` rows."""
    found = dense_range(values) if dense else None
    if found is None or not is_dense(*found, dense):
        codes, texts = encode_part(values)
        return _Counted(place, np.bincount(codes, minlength=len(texts)), texts)
    codes = dense_codes(values, found[0])
    if found[1] - found[0] <= _MOST_COUNTERS * codes.size:
        return _Counted(place, np.bincount(codes), low=found[0], values=values)
    steps, counts = np.unique(codes, return_counts=True)
    return _Counted(place, counts, low=found[0], steps=steps, values=values)


class _Counting:
    """Counts the rows of each key over all pieces.

    Integer keys share one range of counters for as long as they lie close together. All other keys are counted as texts. Whether
    further pieces are counted as integers is decided between batches of parts, so the order of keys does not depend on which thread is first.
    """

    def __init__(self, count: int, dense: bool) -> None:
        self.dense = dense
        self._counters = _Counters(count)
        self._numbered: dict[tuple[int, int], int] = {}
        self._dictionary, self._encoded = Dictionary(), list[_Counted]()

    def add(self, pieces: Sequence[_Counted]) -> None:
        """Add the pieces of a part."""
        for piece in pieces:
            if piece.texts is None and self._counters.add(piece):
                self._numbered[piece.place] = int(piece.counts.sum())
                continue
            self.dense = False
            self._add_texts(piece if piece.texts is not None else _count_keys(piece.place, piece.values))

    def _add_texts(self, piece: _Counted) -> None:
        self._dictionary.add(piece.texts)
        self._encoded.append(replace(piece, texts=None))

    def finish(self) -> Keys:
        """Return the keys: as integers if all of them are and lie close together, otherwise as texts."""
        low, counters = self._counters.low, self._counters.counts
        if not self._encoded and self.dense:
            return Keys(counters, low=low)
        used = np.flatnonzero(counters)
        self._dictionary.add(number_texts(used + low))
        (*maps, last), texts = self._dictionary.finish()
        totals = np.zeros(len(texts), np.int64)
        totals[last] = counters[used]
        for way, piece in zip(maps, self._encoded, strict=True):
            np.add.at(totals, way, piece.counts)
        common = np.zeros(counters.size, np.int32)
        common[used] = last
        places = [piece.place for piece in self._encoded]
        lengths = {piece.place: int(piece.counts.sum()) for piece in self._encoded} | self._numbered
        ways = dict(zip(places, maps, strict=True)) | dict.fromkeys(self._numbered, common)
        return Keys(totals, texts, low, ways, lengths, numbered=frozenset(self._numbered))


class _Counters:
    """Counts the rows of each integer, over a range that grows as needed."""

    def __init__(self, count: int) -> None:
        self._rows = count
        self.low, self._stop, self._grown = 0, 0, np.zeros(0, np.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each integer from the smallest to the largest."""
        return self._grown[: self._stop - self.low]

    def add(self, piece: _Counted) -> bool:
        """Add a piece's counts; returns False, and adds nothing, if its integers lie too far from the others."""
        if not self._grown.size:
            self.low = piece.low
        low, high = self.low, self.low + self._grown.size
        size = piece.counts.size if piece.steps is None else int(piece.steps[-1]) + 1
        first, last = min(piece.low, low), max(piece.low + size, high)
        if not is_dense(first, last - 1, self._rows):
            return False
        if first < low or last > high:
            if first == low:  # keys that come in ascending order: leave room for those to come
                last = max(last, min(low + 2 * self._grown.size, low + self._rows))
            grown = np.zeros(last - first, np.int64)
            grown[low - first : high - first] = self._grown
            self.low, self._grown = first, grown
        start = piece.low - self.low
        self._grown[slice(start, start + size) if piece.steps is None else start + piece.steps] += piece.counts
        self._stop = max(self._stop, piece.low + size)
        return True


def _open(path: Path, root: Path | None) -> _File:
    """Read a file's metadata, and the partition that its folders name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = None
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        raise_alone(_unreadable(str(path)))
    folders = [] if root is None else [part for part in path.relative_to(root).parent.parts if "=" in part]
    return _File(str(path), metadata, dict(map(_partition, folders)), source_state(path))


def _unreadable(path: str) -> StudyError:
    return StudyError(f"{Path(path).name!r} cannot be read as parquet. The steward's 'check' shows the details.")


def _partition(folder: str) -> tuple[str, str | None]:
    """Column and value in the name of a folder, as Hive writes them. Values are texts."""
    from urllib.parse import unquote

    name, _, value = folder.partition("=")
    return unquote(name), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)


def _common_schema(files: Sequence[_File]) -> pa.Schema:
    """The schema that all files share. The columns from folder names come last, as texts."""
    import pyarrow as pa

    schemas = [file.metadata.schema.to_arrow_schema().remove_metadata() for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if len(set(schema.names)) != len(schema.names):
            raise StudyError(f"{Path(file.path).name!r} has two columns of the same name. Rename one.")
        if not schema.equals(schemas[0]) or list(file.partition) != list(files[0].partition):
            raise StudyError(
                "The Parquet files do not all have the same columns, in the same order and of the same types."
            )
        if set(file.partition) & set(schema.names):
            raise StudyError("A column is both in the files and in the folders' names. Rename one.")
    texts = [pa.field(name, pa.string(), metadata=FROM_TEXT) for name in files[0].partition]
    return pa.schema([*schemas[0], *texts])


def _cut_parts(files: Sequence[_File]) -> Iterator[list[tuple[_File, _Group]]]:
    """Cut files into parts. Row groups are merged up to `PART` rows, so that the rounding bound does not depend on the file layout."""
    waiting: list[tuple[_File, _Group]] = []
    rows = 0
    for file in files:
        for number in range(file.metadata.num_row_groups):
            group = _Group(number, file.metadata.row_group(number).num_rows)
            if waiting and group.num_rows > PART:
                yield waiting
                waiting, rows = [], 0
            waiting.append((file, group))
            rows += group.num_rows
            if rows >= PART:
                yield waiting
                waiting, rows = [], 0
    if waiting:
        yield waiting


def _reader(file: _File) -> Any:
    """Open a file, unless it has changed since its metadata were read."""
    import pyarrow.parquet as pq

    if source_state(Path(file.path)) != file.state:
        raise ReleaseError(CHANGED)
    return pq.ParquetFile(file.path, metadata=file.metadata, pre_buffer=False, buffer_size=_BUFFER)
