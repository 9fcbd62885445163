"""Blocks and matching matrices as tables that rows are joined with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dplinked.errors import ReleaseError, StudyError
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
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
from dplinked.study.design import Design
from dplinked.sums.blocks import (
    DEPENDENCE,
    LEAST_PRODUCT,
    MOST_DEPENDENCE,
    check_accuracies,
    check_others,
    find_facts,
    weigh_blocks,
)
from dplinked.sums.sql.columns import Cells
from dplinked.sums.sql.dialect import Engine, Field, Kept, plain_text
from dplinked.sums.sql.exact_sums import CHANGED, ExactSums, Scaled, exact_total, log2_ceiling
from dplinked.sums.types import BlockFacts

_WHOLE = r"0|-?[1-9][0-9]*"
_WITH_WHOLE = ("integer", "float", "text")  # kinds of ids that may be whole numbers


@dataclass(frozen=True)
class Whole:
    """One block of all rows, or none: ``Q = a I + o 11'``."""

    a: float
    o: float
    key: None = None

    def close(self) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Keyed:
    """Blocks of a key column: a kept table of k, g, m, a and o, one row per block, and totals of the design's columns.

    With a single accuracy a block is a key, null included. With an accuracy `table` it is a declared key, whose place in the
    table is g, or the other block: k is null and g is -1. Another design's totals take a pass of their own.
    """

    kept: Kept
    key: str
    same: str
    table: bool
    blocks: int
    largest: int
    design: Design

    def close(self) -> None:
        """Forget the table."""
        self.kept.close()

    def weighted(self, rows: str) -> str:
        """Rows with a, null where a row's key is no block's: engines join by equality faster than with nulls as equals."""
        where = "g = -1" if self.table else "k is null"
        other = f"(select max(a) from {self.kept.name} where {where})"
        a = f"coalesce(b.a, {other})" if self.table else f"case when cells.k is null then {other} else b.a end"
        return f"select cells.*, {a} as a from ({rows}) cells left join {self.kept.name} b on cells.k = b.k"

    def totals(self, rows: str, totals: str) -> str:
        """Totals of each block with its m, a and o."""
        if self.table:
            rows = f"select cells.*, coalesce(b.g, -1) as g from ({rows}) cells left join {self.kept.name} b on cells.k = b.k"
        key, kept = ("g", "g") if self.table else ("k", "k")
        same = "=" if self.table else self.same
        return (
            f"select t.*, b.m, b.a, b.o from (select {key}{totals} from ({rows}) grouped group by {key}) t "
            f"join {self.kept.name} b on t.{key} {same} b.{kept}"
        )


@dataclass(frozen=True)
class Matched:
    """An explicit matching matrix: a kept table of pairs (i, j, q) of ids, rows summing to one."""

    kept: Kept
    key: str

    def close(self) -> None:
        """Forget the table."""
        self.kept.close()

    def spread(self, engine: Engine, rows: str, columns: Sequence[Scaled]) -> tuple[str, list[Scaled]]:
        """Rows with their rows of ``QX``, and its columns."""
        totals = "".join(f", {exact_total(engine, f'q * {x.sql}', 1)} as w{i}" for i, x in enumerate(columns))
        w = (
            f"select i{totals} from (select p.i, p.q, cells.* from {self.kept.name} p "
            f"join ({rows}) cells on p.j = cells.k) pairs group by i"
        )
        return f"select cells.*, w.* from ({rows}) cells join ({w}) w on cells.k = w.i", [
            Scaled(f"w{i}", x.log) for i, x in enumerate(columns)
        ]


Links = Whole | Keyed | Matched


def find_links(cells: Cells, count: int, linkage: Linkage, unit: PrivacyUnit) -> tuple[Links, BlockFacts | None]:
    """Find the blocks. Only what is public under the unit can make it fail."""
    if isinstance(linkage, Exact):
        return Whole(1.0, 0.0), None
    if isinstance(linkage, Matching):
        return match_rows(cells, count, linkage), None
    if linkage.block is None:
        return _one_block(count, linkage, unit)
    kept = _keep_blocks(cells, count, linkage)
    return _check_blocks(cells, kept, count, linkage, unit)


def _one_block(count: int, linkage: ELE, unit: PrivacyUnit) -> tuple[Whole, BlockFacts]:
    sizes, accuracy = np.array([count]), np.array([linkage.accuracy_of("")], np.float64)
    (a,), (o,) = weigh_blocks(sizes, accuracy, linkage, unit)
    return Whole(float(a), float(o)), find_facts(sizes)


def total_columns(engine: Engine, most: int, *groups: Sequence[Scaled]) -> tuple[str, list[list[Scaled]]]:
    """Text of totals of columns over blocks of at most `most` rows, each column once, and the totals' own columns s0, s1, …"""
    log = log2_ceiling(max(1, most))
    names = {column.sql: f"s{i}" for i, column in enumerate(dict.fromkeys(itertools.chain(*groups)))}
    text = "".join(f", {exact_total(engine, sql, log)} as {name}" for sql, name in names.items())
    return text, [[Scaled(names[column.sql], column.log) for column in group] for group in groups]


def _keep_blocks(cells: Cells, count: int, linkage: ELE) -> Kept:
    """Keep m, a, o and totals of each block; accuracies are joined, never written into a statement."""
    engine, table = cells.engine, isinstance(linkage.accuracy, Mapping)
    assert linkage.block is not None
    accuracies = _keep_accuracies(engine, cells.fields[linkage.block], linkage)
    rows, name = cells.rows(linkage.block, instruments=True), accuracies.name
    totals, listed = total_columns(engine, count, cells.h, cells.x)
    also = "".join(f", {sql}" for sql in dict.fromkeys(column.sql for column in itertools.chain(*listed)))
    if table:
        placed = f"select cells.*, y.k as key, coalesce(y.g, -1) as g from ({rows}) cells left join {name} y on cells.k = y.k"
        counted = f"select key as k, g, count(*) as m{totals} from ({placed}) placed group by key, g"
        found = f"select c.*, y.y from ({counted}) c join {name} y on c.g = y.g"
    else:
        counted = f"select k, 0 as g, count(*) as m{totals} from ({rows}) cells group by k"
        other, own = (f"(select y from {name} where g = {g})" for g in (-1, -2))
        found = f"select c.*, case when k is null then {other} else {own} end as y from ({counted}) c"
    one = engine.double(1.0)
    raised = f"greatest(y, {one} / m)" if linkage.source == "estimated" else "y"
    found = f"select k, g, m, case when m = 1 then {one} else {raised} end as y{also} from ({found}) c"
    o = f"case when m > 1 then ({one} - y) / greatest(m - 1, 1) else {engine.double(0.0)} end"
    kept = Kept(engine, "blocks")
    engine.hold(kept.name, f"select k, g, m, y - o as a, o{also} from (select c.*, {o} as o from ({found}) c) c")
    return kept


def _keep_accuracies(engine: Engine, field: Field, linkage: ELE) -> Kept:
    """Accuracies y by key k and place g: those of a table from 0, -1 the other block's, -2 a single one."""
    import pyarrow as pa

    rows: list[tuple[int, str | None, float | None]] = [(-1, None, linkage.other_accuracy)]
    if isinstance(linkage.accuracy, Mapping):
        rows += [(g, key, linkage.accuracy_of(key)) for g, key in enumerate(linkage.accuracy)]
    else:
        rows.append((-2, None, linkage.accuracy_of("")))
    cells = [None if key is None else plain_text(field, key) for _, key, _ in rows]
    kept = Kept(engine, "accuracies")
    listed = [(g, cell, y) for (g, key, y), cell in zip(rows, cells, strict=True) if key is None or cell is not None]
    types = {"g": pa.int32(), "t": pa.string(), "y": pa.float64()}
    table = pa.table(
        {name: pa.array(values, types[name]) for name, values in zip(types, zip(*listed, strict=True), strict=True)}
    )
    engine.keep_table(kept.name, table, f"g, {engine.typed(field, 't')} as k, y")
    return kept


def _check_blocks(cells: Cells, kept: Kept, count: int, linkage: ELE, unit: PrivacyUnit) -> tuple[Keyed, BlockFacts]:
    engine, table = cells.engine, isinstance(linkage.accuracy, Mapping)
    double = engine.double
    small = f"sum(case when m > 1 and (a + o) * m < {double(LEAST_PRODUCT)} then 1 else 0 end)"
    others = "sum(case when g = -1 then 1 else 0 end)"
    sums = ExactSums(engine, count)
    dependence = f"m * least({double(MOST_DEPENDENCE)}, {double(DEPENDENCE)} / sqrt(m))"
    sums.add(Scaled(f"case when m > 1 then {dependence} else {double(0.0)} end"))
    statement = f"select count(*), sum(m), max(m), {small}, {others}{sums.selected()} from {kept.name}"
    ((blocks, total, largest, small_blocks, other_blocks, *found),) = engine.fetch(statement)
    if int(total or 0) != count:
        raise ReleaseError(CHANGED)
    check_others(table and bool(other_blocks), linkage)
    check_accuracies(bool(small_blocks), unit)
    by_key: dict[str | None, int] = {}
    if table:
        names = dict(enumerate(linkage.accuracy))  # type: ignore[arg-type]
        by_key = {names.get(int(g)): int(m) for g, m in engine.fetch(f"select g, m from {kept.name} order by g")}
    assert linkage.block is not None
    keyed = Keyed(kept, linkage.block, engine.same, table, int(blocks), int(largest or 0), cells.design)
    return keyed, BlockFacts(keyed.largest, by_key, sums.read(found).take(1)[0] / max(1, count))


def match_rows(cells: Cells, count: int, linkage: Matching) -> Matched:
    """Check a matching matrix given as pairs of ids, and keep it with rows that sum to one.

    The checks and their order are those of :mod:`dplinked.linkage.matching`.
    """
    if linkage.id is None:
        raise StudyError("Rows of a database have no positions: name the id column, Matching(…, id=…).")
    engine, ids = cells.engine, cells.keys(linkage.id)
    pairs, read = _pair_query(cells, linkage)
    repeated = f"select count(*) as m from ({ids}) ids group by k"
    ((different, most),) = engine.fetch(f"select count(*), max(m) from ({repeated}) repeated")
    ((known,),) = engine.fetch(f"select count(k) from ({ids}) ids")
    if known != count or different != count or most != 1:
        raise StudyError(IDS.format(linkage.id))
    raw = Kept(engine, "raw_pairs")
    engine.hold(raw.name, pairs)
    del read
    for end in ("i", "j"):
        unknown = f"select p.{end} from {raw.name} p left join ({ids}) ids on p.{end} = ids.k where ids.k is null"
        ((lost,),) = engine.fetch(f"select count(*) from ({unknown}) lost")
        if lost:
            raise StudyError(UNKNOWN_IDS.format(linkage.id))
    kept = _keep_pairs(engine, raw, count)
    _check_pairs(engine, kept, count, linkage)
    return Matched(kept, linkage.id)


def _pair_query(cells: Cells, linkage: Matching) -> tuple[str, Kept | None]:
    """Query of the pairs: i, j and p, ids in the type of the data's; and what it reads."""
    source, listed, read = cells.engine.open_pairs(linkage.pairs)
    fields = {field.name: field for field in listed}
    missing = [name for name in ("row", "match", "probability") if name not in fields]
    if missing:
        raise StudyError(f"The pairs need the columns 'row', 'match' and 'probability'; missing: {missing}.")
    if not fields["probability"].numeric:
        raise StudyError(PROBABILITIES)
    assert linkage.id is not None
    i, j = (_id_key(cells.engine, fields[name], cells.fields[linkage.id]) for name in ("row", "match"))
    return f"select {i} as i, {j} as j, {cells.engine.number(fields['probability'])} as p from {source}", read


def _id_key(engine: Engine, field: Field, data: Field) -> str:
    """An id of the pairs as a key of the data's id column; between other types whole numbers and their texts are the same."""
    if field.kind == data.kind and field.comparable:
        return engine.key(field)
    if field.kind not in _WITH_WHOLE or data.kind not in _WITH_WHOLE:
        raise StudyError(
            f"The pairs' ids in {field.name!r} hold {field.type}, those in {data.name!r} {data.type}: convert one of them."
        )
    whole = _whole(engine, field, data.type if data.kind == "integer" else "bigint")
    if data.kind == "text":
        return f"cast({whole} as {engine.text_type})"
    if data.kind == "float":
        double = f"cast({whole} as double)"
        return f"case when {whole} = try_cast({double} as bigint) then {double} end"
    return whole


def _whole(engine: Engine, field: Field, type: str) -> str:
    """A cell that is a whole number or the text of one, in a type of whole numbers; null for any other."""
    if field.kind == "integer":
        return field.sql
    number = f"try_cast({field.sql} as {type})"
    canonical = engine.matches(field.sql, _WHOLE) if field.kind == "text" else f"{field.sql} = {number}"
    return f"case when {canonical} then {number} end"


def _keep_pairs(engine: Engine, raw: Kept, count: int) -> Kept:
    """Keep the pairs with rows that sum to one."""
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


def _check_pairs(engine: Engine, kept: Kept, count: int, linkage: Matching) -> None:
    """Check what is declared of the matrix."""
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
