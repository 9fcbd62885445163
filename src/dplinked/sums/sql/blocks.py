"""Blocks as tables that rows are joined with, and what stands for the linkage in statements."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dplinked.errors import ReleaseError
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
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
from dplinked.sums.sql.columns import DesignColumns
from dplinked.sums.sql.dialect import Kept, SqlColumn, SqlEngine, plain_text
from dplinked.sums.sql.exact_sums import CHANGED, ExactSums, Scaled, exact_total, log2_ceiling
from dplinked.sums.sql.pairs import PairTable, keep_matching
from dplinked.sums.types import BlockFacts


@dataclass(frozen=True)
class OneBlock:
    """All rows in one block, or right links (a = 1, o = 0): ``Q = a I + o 11'``."""

    a: float
    o: float
    key: None = None

    def close(self) -> None:
        """Do nothing: there is no table."""


@dataclass(frozen=True)
class BlockTable:
    """Blocks of a key column, in a table that the engine keeps.

    The table has one row per block: its key k, its place g, its number of rows m, its weights a and o, and totals of the columns of
    `design`. Another design's totals take a pass of their own.

    With a single accuracy, each key is a block, null included. With an accuracy `table`, each declared key is a block, and g is its place
    in that table; all other rows are one block, for which k is null and g is -1.
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
        """Join each row's block weight `a`. Null keys are handled apart, because null-safe joins are slow."""
        where = "g = -1" if self.table else "k is null"
        other = f"(select max(a) from {self.kept.name} where {where})"
        a = f"coalesce(b.a, {other})" if self.table else f"case when cells.k is null then {other} else b.a end"
        return f"select cells.*, {a} as a from ({rows}) cells left join {self.kept.name} b on cells.k = b.k"

    def totals(self, rows: str, totals: str) -> str:
        """Query of each block's totals, which `totals` lists, with its m, a and o."""
        if self.table:
            rows = f"select cells.*, coalesce(b.g, -1) as g from ({rows}) cells left join {self.kept.name} b on cells.k = b.k"
        key, kept = ("g", "g") if self.table else ("k", "k")
        same = "=" if self.table else self.same
        return (
            f"select t.*, b.m, b.a, b.o from (select {key}{totals} from ({rows}) grouped group by {key}) t "
            f"join {self.kept.name} b on t.{key} {same} b.{kept}"
        )


LinkTable = OneBlock | BlockTable | PairTable  # what stands for Q in statements


def find_link_table(
    columns: DesignColumns, count: int, linkage: Linkage, unit: PrivacyUnit
) -> tuple[LinkTable, BlockFacts | None]:
    """Find the blocks or pairs. Only what is public under the unit can make it fail."""
    if isinstance(linkage, Exact):
        return OneBlock(1.0, 0.0), None
    if isinstance(linkage, Matching):
        return keep_matching(columns, count, linkage), None
    if linkage.block is None:
        return _one_block(count, linkage, unit)
    kept = _keep_blocks(columns, count, linkage)
    return _check_blocks(columns, kept, count, linkage, unit)


def _one_block(count: int, linkage: ELE, unit: PrivacyUnit) -> tuple[OneBlock, BlockFacts]:
    """All rows as one block."""
    sizes, accuracy = np.array([count]), np.array([linkage.accuracy_of("")], np.float64)
    a, o = weigh_blocks(sizes, accuracy, linkage, unit)
    return OneBlock(float(a[0]), float(o[0])), find_facts(sizes, a)


def total_columns(engine: SqlEngine, most: int, *groups: Sequence[Scaled]) -> tuple[str, list[list[Scaled]]]:
    """Totals of columns over blocks of at most `most` rows, each column once; returns their text, and the totals s0, s1, … of each group."""
    log = log2_ceiling(max(1, most))
    names = {column.sql: f"s{i}" for i, column in enumerate(dict.fromkeys(itertools.chain(*groups)))}
    text = "".join(f", {exact_total(engine, sql, log)} as {name}" for sql, name in names.items())
    return text, [[Scaled(names[column.sql], column.log) for column in group] for group in groups]


def _keep_blocks(columns: DesignColumns, count: int, linkage: ELE) -> Kept:
    """Keep m, a, o and totals of each block. Accuracies are joined from a table, never written into a statement."""
    engine, table = columns.engine, isinstance(linkage.accuracy, Mapping)
    assert linkage.block is not None
    accuracies = _keep_accuracies(engine, columns.stored[linkage.block], linkage)
    rows, name = columns.rows(linkage.block, instruments=True), accuracies.name
    totals, listed = total_columns(engine, count, columns.h, columns.x)
    also = "".join(f", {sql}" for sql in dict.fromkeys(total.sql for total in itertools.chain(*listed)))
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


def _keep_accuracies(engine: SqlEngine, column: SqlColumn, linkage: ELE) -> Kept:
    """Keep a table of accuracies y by key k and place g.

    Those of an accuracy table have the places 0, 1, …; the other block has -1, and a single accuracy -2.
    """
    import pyarrow as pa

    rows: list[tuple[int, str | None, float | None]] = [(-1, None, linkage.other_accuracy)]
    if isinstance(linkage.accuracy, Mapping):
        rows += [(g, key, linkage.accuracy_of(key)) for g, key in enumerate(linkage.accuracy)]
    else:
        rows.append((-2, None, linkage.accuracy_of("")))
    texts = [None if key is None else plain_text(column, key) for _, key, _ in rows]
    kept = Kept(engine, "accuracies")
    listed = [(g, text, y) for (g, key, y), text in zip(rows, texts, strict=True) if key is None or text is not None]
    types = {"g": pa.int32(), "t": pa.string(), "y": pa.float64()}
    table = pa.table(
        {name: pa.array(values, types[name]) for name, values in zip(types, zip(*listed, strict=True), strict=True)}
    )
    engine.keep_table(kept.name, table, f"g, {engine.typed(column, 't')} as k, y")
    return kept


def _check_blocks(
    columns: DesignColumns, kept: Kept, count: int, linkage: ELE, unit: PrivacyUnit
) -> tuple[BlockTable, BlockFacts]:
    """Check the blocks that are kept, and find the facts about them."""
    engine, table = columns.engine, isinstance(linkage.accuracy, Mapping)
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
    block_table = BlockTable(kept, linkage.block, engine.same, table, int(blocks), int(largest or 0), columns.design)
    return block_table, BlockFacts(block_table.largest, by_key, sums.read(found).take(1)[0] / max(1, count))
