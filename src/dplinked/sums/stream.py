"""Batches that come once: kept in a temporary file, or summed as they come where blocks follow each other."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dplinked.design import Design
from dplinked.errors import ReleaseError, StudyError, raise_alone
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.sums.adding import merge
from dplinked.sums.coding import UNREADABLE, encode_part
from dplinked.sums.encoded import encode
from dplinked.sums.memory import instrument_sums, paper_sums
from dplinked.sums.parquet import ParquetRows
from dplinked.sums.rows import PART, Rows, empty_rows
from dplinked.sums.sums import PrivateSums
from dplinked.tables import Stream

NOT_CONTIGUOUS = "The stream's blocks do not follow each other: a block's rows were split. Leave out contiguous=True."
_FILE = "rows.parquet"
_NEEDS_MORE = "A stream that is read once gives sums only. Leave out contiguous=True, or write the data to a file."


class SpilledRows(ParquetRows):
    """A stream's rows in a temporary file that only its owner can read and that goes with the object."""

    def __init__(self, folder: str, types: Any) -> None:
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        super().__init__([Path(folder) / _FILE])
        self._types, self.columns = types, tuple(types.names)


def spill(stream: Stream, columns: Sequence[str] | None) -> ParquetRows:
    """Write a stream's columns to a temporary file: numbers as they are, keys as their texts, so that every cell can be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = stream.batches.schema
    empty, known = empty_rows(types), types.names
    wanted = [name for name in known if columns is None or name in columns] or known[:1]
    schema = pa.schema([types.field(name).with_type(empty.kept(name).type) for name in wanted])
    folder = tempfile.mkdtemp(prefix="dplinked-")
    try:
        with pq.ParquetWriter(Path(folder) / _FILE, schema, compression="zstd", use_dictionary=False) as writer:
            for batch in stream.batches:
                rows = Rows(pa.Table.from_batches([batch], types))
                writer.write_table(pa.table([rows.kept(name) for name in wanted], schema=schema))
    except BaseException as fault:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(fault, (pa.ArrowException, OSError)):
            raise
        raise_alone(ReleaseError(UNREADABLE))
    return SpilledRows(folder, types)


class StreamRows:
    """Read access to a stream of a declared number of rows whose blocks follow each other."""

    def __init__(self, stream: Stream) -> None:
        if stream.rows is None:
            raise StudyError("A stream that is read once needs its number of rows: Stream(…, contiguous=True, rows=…).")
        self.stream, self.count = stream, stream.rows
        self.columns: tuple[str, ...] = tuple(stream.batches.schema.names)

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, the numeric ones numbers, the others keys."""
        empty_rows(self.stream.batches.schema).require(names, numeric=numeric)

    def look_at(self, *_: Any) -> Any:
        """Not in one pass."""
        raise StudyError(_NEEDS_MORE)

    count_keys = look_at

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> StreamPass:
        """Nothing can be looked at beforehand."""
        if isinstance(linkage, Matching) or unit.moves_block:
            raise StudyError("A stream is read once only with blocks that stay as they are. Leave out contiguous=True.")
        return StreamPass(self, design, linkage, unit)


@dataclass(frozen=True, repr=False)
class StreamPass:
    """The one pass over a stream; see :class:`dplinked.sums.passes.Pass`."""

    rows: StreamRows
    design: Design
    linkage: Linkage
    unit: PrivacyUnit
    blocks: None = None

    @property
    def count(self) -> int:
        """Number of rows, as declared."""
        return self.rows.count

    def aimed(self, design: Design) -> StreamPass:
        """The same stream with another instrument."""
        return replace(self, design=design)

    def instrument_sums(self) -> PrivateSums:
        """Sums over the stream, block by block."""
        return self._sum(lambda rows: instrument_sums(encode(rows, self.design, self.linkage, self.unit)))

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """The paper's sums over the stream."""
        return self._sum(
            lambda rows: paper_sums(encode(rows, self.design, self.linkage, self.unit), row_norm, response_bound)
        )

    def _sum(self, work: Callable[[Rows], PrivateSums]) -> PrivateSums:
        found = [work(Rows(table)) for table in self._cuts()]
        if sum(sums.count for sums in found) != self.count:
            raise StudyError(f"The stream does not have the {self.count} rows that were declared.")
        matrix, vector = merge([[sums.matrix, sums.vector] for sums in found])
        return PrivateSums(matrix, vector, self.count)

    def _cuts(self) -> Iterator[Any]:
        """Tables of whole blocks, of `PART` rows or more each but the last."""
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = self.rows.stream.batches.schema
        block = self.linkage.block if isinstance(self.linkage, ELE) else None
        waiting, seen = pa.Table.from_batches([], schema), list[Any]()
        for batch in self.rows.stream.batches:
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch], schema)])
            last = waiting.num_rows if isinstance(self.linkage, Exact) else self._last_start(waiting, block)
            if last >= PART:
                yield self._checked(waiting.slice(0, last), block, seen)
                waiting = waiting.slice(last)
        if waiting.num_rows:
            yield self._checked(waiting, block, seen)
        if seen and pc.count_distinct(pa.chunked_array(seen), mode="all").as_py() != sum(len(texts) for texts in seen):
            raise StudyError(NOT_CONTIGUOUS)

    def _last_start(self, table: Any, block: str | None) -> int:
        """Where the last block, which may go on, starts."""
        if block is None or not table.num_rows:
            return 0
        codes = encode_part(Rows(table).keys(block))[0]
        changes = np.flatnonzero(codes[1:] != codes[:-1])
        return int(changes[-1]) + 1 if changes.size else 0

    def _checked(self, table: Any, block: str | None, seen: list[Any]) -> Any:
        """Note the blocks of a cut; those without an accuracy of their own are one."""
        if block is not None and isinstance(self.linkage, ELE):
            texts = encode_part(Rows(table).keys(block))[1]
            if isinstance(self.linkage.accuracy, dict):
                import pyarrow as pa
                import pyarrow.compute as pc

                known = pc.is_in(texts, value_set=pa.array(list(self.linkage.accuracy), pa.large_string()))
                texts = pc.unique(pc.if_else(known, texts, pa.scalar(None, texts.type)))
            seen.append(texts)
        return table

    def column_counts(self, *_: Any) -> Any:
        """Not in one pass; nor are the others."""
        raise StudyError(_NEEDS_MORE)

    residual_counts = row_meat = block_meat = column_counts
