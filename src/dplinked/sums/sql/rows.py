"""Linked rows that a SQL engine reads, behind the interface of all sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dplinked.data.files import Files
from dplinked.data.fingerprint import content_bytes
from dplinked.data.keys import key_text
from dplinked.data.table import check_columns
from dplinked.errors import StudyError, raise_alone, shown
from dplinked.linkage import Linkage, Matching, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.engine import Source
from dplinked.sums.linked_rows import Pass
from dplinked.sums.sql.blocks import find_link_table
from dplinked.sums.sql.columns import DesignColumns
from dplinked.sums.sql.dialect import UNREADABLE, SqlColumn, SqlEngine
from dplinked.sums.sql.passes import SqlPass
from dplinked.sums.types import CellFacts

MOST_ROWS = 2**37
_REFUSED = ("text", "date", "timestamp", "instant")  # kinds of cells that a file may hold and an engine refuse


class SqlRows(Source):
    """Linked rows that a SQL engine reads.

    Parameters
    ----------
    engine
        Writes and runs the statements.
    source
        What stands behind ``from``.
    columns
        The columns of the source.
    files
        The files that the rows come from, by whose bytes a ledger knows them again. Rows of a query or table are known by themselves.
    known
        Names of all columns, if the source has only some of them.
    """

    def __init__(
        self,
        engine: SqlEngine,
        source: str,
        columns: Sequence[SqlColumn],
        files: Files | None = None,
        known: Sequence[str] | None = None,
    ) -> None:
        self._engine, self._source, self._files = engine, source, files
        self.columns = tuple(known or (column.name for column in columns))
        self._stored = {column.name: column for column in columns}
        if len(self._stored) != len(columns):
            raise StudyError("The data has two columns of the same name. Rename one.")
        self.count = self._count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count} rows, columns {list(self.columns)})"

    def _count(self) -> int:
        """Count the rows; an error of the engine is replaced, because it may quote cells."""
        found = None
        try:
            ((found,),) = self._engine.run(f"select count(*) from {self._source}")
        except Exception:
            raise_alone(StudyError(UNREADABLE))
        if found > MOST_ROWS:
            raise StudyError(f"An engine sums at most {MOST_ROWS:,} rows exactly.")
        return int(found)

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns there, the numeric ones numbers, the others keys."""
        check_columns(names, self.columns, secret=any(column.parsed for column in self._stored.values()))
        for name in numeric:
            column = self._stored[name]
            if not column.numeric:
                kind = "Date" if column.kind == "date" else column.type_name
                raise StudyError(f"Column {shown(name)} holds {kind}, not numbers. Convert it before fitting.")
        for name in set(names) - set(numeric):
            if not self._stored[name].comparable:
                raise StudyError(
                    f"Column {shown(name)} holds {self._stored[name].type_name}, which cannot be compared. Convert it to text first."
                )

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> Pass:
        """Find the blocks; only what is public under the unit can make it fail."""
        self.require(design.variables, numeric=list(design.bounds))
        self.require(key_columns(design, linkage))
        return self.begin(design, linkage, unit)

    def begin(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> Pass:
        """Find the blocks for passes by SQL, once the schema is known to be right."""
        self._read_cells([*design.variables, *([] if design.cluster is None else [design.cluster])])
        columns = DesignColumns(self._engine, self._stored, self._source, design)
        link_table, facts = find_link_table(columns, self.count, linkage, unit)
        return SqlPass(self, columns, self.count, link_table, facts)

    def _read_cells(self, names: Sequence[str]) -> None:
        """Read texts and moments once, if the engine may refuse one: it would stop a later pass. Keys are read for the blocks anyway."""
        suspects = [self._stored[name] for name in names if self._stored[name].kind in _REFUSED]
        if suspects and self._engine.checks_cells:
            lengths = ", ".join(f"sum(length({self._engine.as_text(column)}))" for column in suspects)
            self._engine.fetch(f"select {lengths} from {self._source}")

    def summarise_column(self, name: str, low: float, high: float) -> CellFacts:
        """Missing and clipped cells, middle 70 % and ends of a numeric column. FOR THE STEWARD."""
        self.require([name], numeric=[name])
        engine = self._engine
        cells = f"select {engine.number(self._stored[name])} as v from {self._source}"
        finite = f"select case when {engine.finite('v')} then v end as v from ({cells}) cells"
        outside = (
            f"sum(case when v {sign} {engine.double(end)} then 1 else 0 end)" for sign, end in (("<", low), (">", high))
        )
        middle = (engine.quantile("v", share) for share in (0.15, 0.85))
        found = ", ".join(["count(*) - count(v)", *outside, *middle, "min(v)", "max(v)"])
        ((missing, below, above, *places),) = engine.fetch(f"select {found} from ({finite}) finite")
        known = None if places[0] is None else tuple(map(float, places))
        return CellFacts(int(missing), int(below or 0), int(above or 0), known and known[:2], known and known[2:])

    def content(self) -> Iterator[bytes]:
        """The bytes of the files, or the names of the columns and a digest of the rows."""
        if self._files is not None:
            yield from content_bytes(self._files)
        else:
            yield repr(self.columns).encode()
            yield self._digest()

    def _digest(self) -> bytes:
        """A digest of the rows that their order does not change: sums of pieces of each row's SHA-256."""
        engine = self._engine
        texts = [engine.as_text(column) for column in self._stored.values()]
        listed = ", ".join(f"coalesce(concat(length({text}), ':', {text}), '-')" for text in texts)
        hashes = f"select {engine.sha256(f'concat({listed})')} as h from {self._source}"
        pieces = ", ".join(f"sum({engine.hex_number(f'substring(h, {first}, 12)')})" for first in range(1, 61, 12))
        (numbers,) = engine.fetch(f"select count(*), {pieces} from ({hashes}) hashed")
        return " ".join(map(str, numbers)).encode()

    def holds_texts(self, name: str) -> bool:
        """Whether a column may hold texts, by its type."""
        return self._stored[name].kind == "text"

    def count_keys(self, name: str) -> dict[str | None, int]:
        """Rows per key. FOR THE STEWARD."""
        self.require([name])
        keys = f"select {self._engine.key(self._stored[name])} as k from {self._source}"
        found = self._engine.fetch(f"select k, count(*) from ({keys}) keys group by k")
        return {key_text(key): int(count) for key, count in found}


def key_columns(design: Design, linkage: Linkage) -> list[str]:
    """Names of the columns that links and clusters are known by."""
    key = linkage.id if isinstance(linkage, Matching) else linkage.block
    return [name for name in (key, design.cluster) if name is not None]
