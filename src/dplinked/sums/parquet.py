"""Linked rows in Parquet files, read by row groups: memory does not grow with the number of rows.

The first pass reads the key column alone, to count the blocks; every further pass reads the columns of the model and the keys
again. What is held is one row group a thread, a counter a block, and the block totals of each thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError, StudyError, raise_alone
from dplinked.sums.coding import UNREADABLE, Dictionary, Keys, dense_codes, dense_range, encode_part, is_dense
from dplinked.sums.rows import PART, Rows, check_columns
from dplinked.tables import FROM_TEXT, source_state

Progress = Callable[[str, int, int], None]

LARGEST_GROUP = 1 << 21  # rows; larger row groups are read in batches of half that
_WORKERS = min(8, os.cpu_count() or 1)
_COUNTING = "Counting blocks"


@dataclass(frozen=True)
class _File:
    path: str
    metadata: Any
    partition: dict[str, Any]
    state: tuple[Any, ...] | None


class ParquetRows:
    """Read access to Parquet files: a file, a folder (Hive partitions are columns) or a glob. Schema and length are public."""

    def __init__(self, paths: Sequence[Path], root: Path | None = None, progress: Progress | None = None) -> None:
        self.progress = progress
        self._files = [_open(path, root) for path in paths]
        self._schema = _common_schema(self._files)
        self.columns: tuple[str, ...] = tuple(self._schema.names)
        self.count = sum(file.metadata.num_rows for file in self._files)
        self._parts = list(_cut_parts(self._files))

    def __repr__(self) -> str:
        return f"ParquetRows({self.count} rows, columns {list(self.columns)})"

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, and the numeric ones numbers."""
        empty = Rows(self._schema.empty_table())
        check_columns(names, self.columns)
        empty.require(names, numeric=numeric)

    @property
    def parts(self) -> int:
        """Number of parts: row groups, small ones taken together."""
        return len(self._parts)

    def read(self, part: int, columns: Sequence[str]) -> Iterator[Rows]:
        """The rows of one part, in pieces that fit into memory."""
        import pyarrow as pa

        groups = self._parts[part]
        try:
            if len(groups) == 1 and groups[0][1].num_rows > LARGEST_GROUP:
                for table in self._batches(*groups[0], columns):
                    yield Rows(table)
            else:
                tables = [self._table(file, group, columns) for file, group in groups]
                yield Rows(tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks())
        except (pa.ArrowException, OSError):
            raise_alone(ReleaseError(UNREADABLE))

    def _table(self, file: _File, group: _Group, columns: Sequence[str]) -> Any:
        stored = [name for name in columns if name not in file.partition]
        with _reader(file) as reader:
            table = reader.read_row_group(group.number, columns=stored, use_threads=False)
        return self._completed(table, group.num_rows, file, columns)

    def _batches(self, file: _File, group: _Group, columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa

        stored = [name for name in columns if name not in file.partition]
        with _reader(file) as reader:
            options = {"batch_size": LARGEST_GROUP // 2, "row_groups": [group.number], "use_threads": False}
            for batch in reader.iter_batches(columns=stored, **options):
                yield self._completed(pa.Table.from_batches([batch]), batch.num_rows, file, columns)

    def _completed(self, table: Any, count: int, file: _File, columns: Sequence[str]) -> Any:
        """The columns in order, those of the folder's name added, all of the common types."""
        import pyarrow as pa

        arrays = [
            pa.repeat(file.partition[name], count) if name in file.partition else table.column(name) for name in columns
        ]
        return pa.table(arrays, schema=pa.schema([self._schema.field(name) for name in columns]))

    def load(self, columns: Sequence[str] | None) -> Rows:
        """Everything, in memory; what cannot be read is found before anything else happens."""
        import pyarrow as pa

        wanted = [name for name in self.columns if columns is None or name in columns] or list(self.columns[:1])
        try:
            groups = [place for part in self._parts for place in part]
            with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
                tables = list(pool.map(lambda place: self._table(place[0], place[1], wanted), groups))
            empty = pa.schema([self._schema.field(name) for name in wanted]).empty_table()
            rows = Rows(pa.concat_tables([empty, *tables]))
            rows.columns = self.columns
            return rows
        except (pa.ArrowException, OSError):
            raise_alone(_unreadable(self._files[0].path))

    def check_key(self, name: str) -> None:
        """Refuse a column whose type cannot be compared."""
        Rows(self._schema.empty_table()).check_key(name)

    def find_keys(self, name: str) -> Keys:
        """Distinct keys of a column and their counts, in one pass over it; a second one where whole numbers lie far apart."""
        if keys := self._dense_keys(name):
            return keys
        dictionary, counted = Dictionary(), []

        def encode(values: Any) -> tuple[Any, NDArray[np.int64]]:
            codes, texts = encode_part(values)
            return texts, np.bincount(codes, minlength=len(texts))

        places = []
        for place, (texts, counts) in self._over_keys(name, encode):
            dictionary.add(texts)
            counted.append(counts)
            places.append(place)
        lengths = {place: int(counts.sum()) for place, counts in zip(places, counted, strict=True)}
        maps, texts = dictionary.finish()
        totals = np.zeros(len(texts), np.int64)
        for codes, counts in zip(maps, counted, strict=True):
            np.add.at(totals, codes, counts)
        return Keys(totals, texts, maps=dict(zip(places, maps, strict=True)), lengths=lengths)

    def _dense_keys(self, name: str) -> Keys | None:
        import pyarrow as pa

        if not pa.types.is_integer(self._schema.field(name).type):
            return None
        found = _Counters(self.count)
        for _, counts in self._over_keys(name, lambda values: _count_dense(values, self.count)):
            if counts is None or not found.add(*counts):
                return None
        return Keys(found.counts, low=found.low)

    def _over_keys(self, name: str, work: Callable[[Any], Any]) -> Iterator[tuple[tuple[int, int], Any]]:
        """Results over one column by (part, piece), in order; a few parts ahead at a time, so that results do not pile up."""

        def run(part: int) -> list[tuple[tuple[int, int], Any]]:
            return [((part, piece), work(rows.keys(name))) for piece, rows in enumerate(self.read(part, [name]))]

        ahead = 2 * _WORKERS
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            for start in range(0, self.parts, ahead):
                for results in pool.map(run, range(start, min(start + ahead, self.parts))):
                    yield from results
                if self.progress is not None:
                    self.progress(_COUNTING, min(start + ahead, self.parts), self.parts)


@dataclass(frozen=True)
class _Group:
    number: int
    num_rows: int


class _Counters:
    """Rows per whole number, over a range that grows."""

    def __init__(self, count: int) -> None:
        self._rows = count
        self.low, self.counts = 0, np.zeros(0, np.int64)

    def add(self, low: int, counts: NDArray[np.int64]) -> bool:
        """Add a part's counters; False where the numbers turn out to lie too far apart."""
        if not self.counts.size:
            self.low, self.counts = low, counts
            return True
        first, last = min(low, self.low), max(low + counts.size, self.low + self.counts.size)
        if not is_dense(first, last - 1, self._rows):
            return False
        if first < self.low or last > self.low + self.counts.size:
            if first == self.low:  # keys in order: leave room
                last = max(last, min(self.low + 2 * self.counts.size, self.low + self._rows))
            grown = np.zeros(last - first, np.int64)
            grown[self.low - first : self.low - first + self.counts.size] = self.counts
            self.low, self.counts = first, grown
        self.counts[low - self.low : low - self.low + counts.size] += counts
        return True


def _count_dense(values: Any, count: int) -> tuple[int, NDArray[np.int64]] | None:
    found = dense_range(values)
    if found is None or not is_dense(*found, count):
        return None
    return found[0], np.bincount(dense_codes(values, found[0]), minlength=found[1] - found[0] + 1)


def _open(path: Path, root: Path | None) -> _File:
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
    """Column and value of a folder's name, as Hive writes them: values are texts."""
    from urllib.parse import unquote

    name, _, value = folder.partition("=")
    return unquote(name), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)


def _common_schema(files: Sequence[_File]) -> Any:
    """The schema that all files share, folders' columns last, as texts."""
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
    """Row groups one after the other, taken together up to `PART` rows: how files are cut does not decide how sums are."""
    waiting: list[tuple[_File, _Group]] = []
    rows = 0
    for file in files:
        for number in range(file.metadata.num_row_groups):
            group = _Group(number, file.metadata.row_group(number).num_rows)
            if waiting and group.num_rows > LARGEST_GROUP:
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
    import pyarrow.parquet as pq

    if source_state(Path(file.path)) != file.state:
        raise ReleaseError("The data changed while it was read.")
    return pq.ParquetFile(file.path, metadata=file.metadata, pre_buffer=False, buffer_size=1 << 20)
