"""Matching matrices as tables of pairs that rows are joined with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dplinked.errors import StudyError, shown
from dplinked.linkage import Matching
from dplinked.linkage.matching import (
    COLUMN_SUM,
    DIAGONAL,
    IDS,
    MOST_CANDIDATES,
    PROBABILITIES,
    ROW_SUM,
    STOCHASTIC_TOLERANCE,
    UNKNOWN_IDS,
)
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.sql.columns import DesignColumns
from dplinked.sums.sql.dialect import Kept, SqlColumn, SqlEngine
from dplinked.sums.sql.exact_sums import Scaled, exact_total, log2_ceiling

LARGEST_ROW = 8.0  # bound on a row's absolute values in what unlinks a matrix: at most six terms, of at most 1 each
_WHOLE = r"0|-?[1-9][0-9]*"
_WITH_WHOLE = ("integer", "float", "text")  # kinds of ids that may be whole numbers


@dataclass(frozen=True, repr=False)
class PairTable:
    """An explicit matching matrix: a kept table of pairs (i, j, q) of ids, rows summing to one.

    `terms` is how many terms unlink it, see :func:`dplinked.sums.partners.unlinking_terms`.
    """

    kept: Kept
    key: str
    terms: int | None
    later: list[Kept] = field(default_factory=list)  # what is found on the first use and kept

    def close(self) -> None:
        """Forget the tables."""
        for kept in (self.kept, *self.later):
            kept.close()
        self.later.clear()

    def unlink(self, engine: SqlEngine) -> Kept:
        """The table of pairs (i, j, c) of ``C = Σ_{j<k} (I-Q)^j``, whose rows add up to at most `LARGEST_ROW` in absolute value."""
        if not self.later:
            assert self.terms is not None
            one = engine.double(1.0)
            unit = f"select i, i as j, {one} as c from {self.kept.name} group by i"
            rest = f"select i, j, c as d from ({unit}) unit union all select i, j, -q as d from {self.kept.name}"
            C = self._keep(engine, unit)
            for _ in range(self.terms - 1):
                product = f"select c.i, r.j, c.c * r.d as c from {C.name} c join ({rest}) r on c.j = r.i"
                total = exact_total(engine, f"{engine.double(1.0 / LARGEST_ROW)} * c", 1)
                summed = f"select i, j, {engine.double(LARGEST_ROW)} * ({total}) as c from ({unit} union all {product}) terms"
                C = self._keep(engine, f"{summed} group by i, j")
            self.later.append(C)
        return self.later[0]

    def _keep(self, engine: SqlEngine, query: str) -> Kept:
        kept = Kept(engine, "unlinking")
        engine.hold(kept.name, query)
        return kept

    def join_matches(self, engine: SqlEngine, rows: str, columns: Sequence[Scaled]) -> tuple[str, list[Scaled]]:
        """Join each row with its row of ``QX``; returns the query, and the columns of ``QX``."""
        totals = "".join(f", {exact_total(engine, f'q * {x.sql}', 1)} as w{i}" for i, x in enumerate(columns))
        w = (
            f"select i{totals} from (select p.i, p.q, cells.* from {self.kept.name} p "
            f"join ({rows}) cells on p.j = cells.k) pairs group by i"
        )
        return f"select cells.*, w.* from ({rows}) cells join ({w}) w on cells.k = w.i", [
            Scaled(f"w{i}", x.log) for i, x in enumerate(columns)
        ]


def keep_matching(columns: DesignColumns, count: int, linkage: Matching) -> PairTable:
    """Check a matching matrix given as pairs of ids, and keep it with rows that sum to one.

    The checks and their order are those of :mod:`dplinked.linkage.matching`.
    """
    if linkage.id is None:
        raise StudyError(
            "Rows of a database have no positions: name the id column, Matching(…, id=…), or id = … in [linkage]."
        )
    engine, ids = columns.engine, columns.keys(linkage.id)
    pairs, read = _pair_query(columns, linkage)
    repeated = f"select count(*) as m from ({ids}) ids group by k"
    ((different, most),) = engine.fetch(f"select count(*), max(m) from ({repeated}) repeated")
    ((known,),) = engine.fetch(f"select count(k) from ({ids}) ids")
    if known != count or different != count or most != 1:
        raise StudyError(IDS.format(shown(linkage.id)))
    raw = Kept(engine, "raw_pairs")
    engine.hold(raw.name, pairs)
    del read
    for end in ("i", "j"):
        unknown = f"select p.{end} from {raw.name} p left join ({ids}) ids on p.{end} = ids.k where ids.k is null"
        ((lost,),) = engine.fetch(f"select count(*) from ({unknown}) lost")
        if lost:
            raise StudyError(UNKNOWN_IDS.format(shown(linkage.id)))
    kept = _keep_pairs(engine, raw, count)
    _check_pairs(engine, kept, count, linkage)
    return PairTable(kept, linkage.id, unlinking_terms(linkage.least_accuracy))


def _pair_query(columns: DesignColumns, linkage: Matching) -> tuple[str, Kept | None]:
    """Query of the pairs: i, j and p, with ids in the type of the data's; and the table that it reads, if one is kept for it."""
    source, listed, read = columns.engine.open_pairs(linkage.pairs)
    given = {column.name: column for column in listed}
    missing = [name for name in ("row", "match", "probability") if name not in given]
    if missing:
        raise StudyError(f"The pairs need the columns 'row', 'match' and 'probability'; missing: {missing}.")
    if not given["probability"].numeric:
        raise StudyError(PROBABILITIES)
    assert linkage.id is not None
    i, j = (_id_key(columns.engine, given[name], columns.stored[linkage.id]) for name in ("row", "match"))
    return f"select {i} as i, {j} as j, {columns.engine.number(given['probability'])} as p from {source}", read


def _id_key(engine: SqlEngine, column: SqlColumn, data: SqlColumn) -> str:
    """An id of the pairs as a key of the data's id column. Where the types differ, whole numbers and their texts are the same id."""
    if column.kind == data.kind and column.comparable:
        return engine.key(column)
    if column.kind not in _WITH_WHOLE or data.kind not in _WITH_WHOLE:
        raise StudyError(
            f"The pairs' ids in {shown(column.name)} hold {column.type_name}, those in {shown(data.name)} {data.type_name}: convert one of them."
        )
    whole = _whole(engine, column, data.type if data.kind == "integer" else engine.bigint_type)
    if data.kind == "text":
        return f"cast({whole} as {engine.text_type})"
    if data.kind == "float":
        double = engine.as_double(whole)
        return f"case when {whole} = try_cast({double} as {engine.bigint_type}) then {double} end"
    return whole


def _whole(engine: SqlEngine, column: SqlColumn, type: str) -> str:
    """A cell that is a whole number or the text of one, in a type of whole numbers; null for any other."""
    if column.kind == "integer":
        return column.sql
    number = f"try_cast({column.sql} as {type})"
    canonical = engine.matches(column.sql, _WHOLE) if column.kind == "text" else f"{column.sql} = {number}"
    return f"case when {canonical} then {number} end"


def _keep_pairs(engine: SqlEngine, raw: Kept, count: int) -> Kept:
    """Check the probabilities, and keep the pairs with rows that sum to one."""
    double = engine.double
    good = f"{engine.finite('p')} and p >= {double(0.0)}"
    ((bad,),) = engine.fetch(f"select sum(case when {good} then 0 else 1 end) from {raw.name}")
    if bad:
        raise StudyError(PROBABILITIES)
    entries = f"select count(*) as m from {raw.name} group by i"
    ((rows, most),) = engine.fetch(f"select count(*), max(m) from ({entries}) entries")
    sums = f"select i, {exact_total(engine, f'least(p, {double(2.0)})', log2_ceiling(most or 1) + 1)} as s from {raw.name} group by i"
    near = f"s between {double(1.0 - STOCHASTIC_TOLERANCE)} and {double(1.0 + STOCHASTIC_TOLERANCE)}"
    ((wrong,),) = engine.fetch(f"select sum(case when {near} then 0 else 1 end) from ({sums}) sums")
    if rows != count or wrong:
        raise StudyError(ROW_SUM)
    if most > MOST_CANDIDATES:
        raise StudyError(f"A row of the matching matrix may have at most {MOST_CANDIDATES:,} entries.")
    kept = Kept(engine, "pairs")
    engine.hold(kept.name, f"select r.i, r.j, r.p / s.s as q from {raw.name} r join ({sums}) s on r.i = s.i")
    return kept


def _check_pairs(engine: SqlEngine, kept: Kept, count: int, linkage: Matching) -> None:
    """Check the column sums and the diagonal that are declared of the matrix."""
    columns = f"select sum(q) as s from {kept.name} group by j"
    ((largest,),) = engine.fetch(f"select max(s) from ({columns}) columns")
    if count and not largest <= linkage.column_sum + STOCHASTIC_TOLERANCE:
        raise StudyError(COLUMN_SUM.format(linkage.column_sum))
    least = linkage.accuracy_min - STOCHASTIC_TOLERANCE
    if least > 0:
        diagonal = f"select sum(q) as s from {kept.name} where i = j group by i"
        ((enough,),) = engine.fetch(f"select count(*) from ({diagonal}) diagonal where s >= {engine.double(least)}")
        if enough != count:
            raise StudyError(DIAGONAL.format(linkage.accuracy_min))
