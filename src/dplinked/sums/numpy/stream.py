"""Streams that are read once: batches are summed as they come, because the rows of a block follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dplinked.data.arrow import column_origins
from dplinked.data.encoding import encode_part
from dplinked.data.fingerprint import NOT_KNOWN
from dplinked.data.sizes import PART
from dplinked.data.sources import Progress, Stream
from dplinked.data.stream import spill
from dplinked.data.table import Rows, empty_rows
from dplinked.errors import StudyError
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.engine import Source
from dplinked.sums.numpy.instrument import instrument_sums
from dplinked.sums.numpy.paper import paper_sums
from dplinked.sums.numpy.prepare import prepare_rows
from dplinked.sums.numpy.reduce import merge
from dplinked.sums.numpy.tables import Tables
from dplinked.sums.types import CellFacts, PrivateSums

NOT_CONTIGUOUS = "The stream's blocks do not follow each other: a block's rows were split. Leave out contiguous=True."
_NEEDS_MORE = "A stream that is read once gives sums only. Leave out contiguous=True, or write the data to a file."


class StreamRows(Source):
    """A stream of a declared number of rows whose blocks follow each other; see :class:`dplinked.sums.engine.Source`."""

    def __init__(self, stream: Stream) -> None:
        if stream.rows is None:
            raise StudyError("A stream that is read once needs its number of rows: Stream(…, contiguous=True, rows=…).")
        self.stream, self.count = stream, stream.rows
        self.columns: tuple[str, ...] = tuple(stream.batches.schema.names)
        self.origins = column_origins(stream.batches.schema)

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, the numeric ones numbers, the others keys."""
        empty_rows(self.stream.batches.schema).require(names, numeric=numeric)

    def summarise_column(self, name: str, low: float, high: float) -> CellFacts:
        """Refused: it would take another pass."""
        raise StudyError(_NEEDS_MORE)

    def count_keys(self, name: str) -> Mapping[str | None, int]:
        """Refused: it would take another pass."""
        raise StudyError(_NEEDS_MORE)

    def holds_texts(self, name: str) -> bool:
        """Refused: it would take another pass."""
        raise StudyError(_NEEDS_MORE)

    def content(self) -> Iterator[bytes]:
        """Refused: what comes once cannot be known again."""
        raise StudyError(NOT_KNOWN)

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> StreamPass:
        """Begin the one pass. The blocks are found on the way, so nothing is checked beforehand."""
        if isinstance(linkage, Matching) or not unit.fixes_blocks:
            raise StudyError("A stream is read once only with blocks that stay as they are. Leave out contiguous=True.")
        return StreamPass(self, design, linkage, unit)


@dataclass(frozen=True, repr=False)
class StreamPass:
    """The one pass over a stream; see :class:`dplinked.sums.engine.Pass`."""

    rows: StreamRows
    design: Design
    linkage: Linkage
    unit: PrivacyUnit
    blocks: None = None
    read_once: bool = True

    @property
    def count(self) -> int:
        """Number of rows, as declared."""
        return self.rows.count

    def with_design(self, design: Design) -> StreamPass:
        """The same stream with another instrument."""
        return replace(self, design=design)

    def instrument_sums(self) -> PrivateSums:
        """Sums over the stream, block by block."""
        return self._sum(lambda rows: instrument_sums(prepare_rows(rows, self.design, self.linkage, self.unit)))

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """The paper's sums over the stream."""
        return self._sum(
            lambda rows: paper_sums(prepare_rows(rows, self.design, self.linkage, self.unit), row_norm, response_bound)
        )

    def _sum(self, work: Callable[[Rows], PrivateSums]) -> PrivateSums:
        """Sum table by table, and check the declared number of rows."""
        found = [work(Rows(table)) for table in self._cuts()]
        if sum(sums.count for sums in found) != self.count:
            raise StudyError(f"The stream does not have the {self.count} rows that were declared.")
        matrix, vector, squares = merge([[sums.matrix, sums.vector, np.array(sums.squares)] for sums in found])
        return PrivateSums(matrix, vector, self.count, float(squares))

    def _cuts(self) -> Iterator[Any]:
        """Cut the stream into tables of whole blocks, each of `PART` rows or more but the last."""
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
        """Where the last block starts, whose rows may go on in the next batch."""
        if block is None or not table.num_rows:
            return 0
        codes = encode_part(Rows(table).keys(block))[0]
        changes = np.flatnonzero(codes[1:] != codes[:-1])
        return int(changes[-1]) + 1 if changes.size else 0

    def _checked(self, table: Any, block: str | None, seen: list[Any]) -> Any:
        """Note the blocks of a table, so that one that comes again is found out. Keys without an accuracy of their own are one block."""
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
        """Refused, like the others below: it would take another pass."""
        raise StudyError(_NEEDS_MORE)

    residual_counts = row_meat = row_strata = block_meat = column_counts
    with_weights = own_rows = whitened_squares = right_residuals = curve_sums = without_missing = column_counts
    weight_moments = contribution_sizes = stratum_totals = squared_residuals = column_counts


def resolve_data(data: Any) -> Any:
    """Refused: what comes once cannot be known again."""
    raise StudyError(NOT_KNOWN)


def open_data(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> Source:
    """Open a stream: to be summed as it comes if one pass is enough and blocks follow each other, else from a temporary file."""
    stream = data if isinstance(data, Stream) else Stream(data)
    return StreamRows(stream) if once and stream.contiguous else Tables(spill(stream, columns), progress)


def data_content(data: Any) -> Iterator[bytes]:
    """Refused: what comes once cannot be known again."""
    raise StudyError(NOT_KNOWN)
