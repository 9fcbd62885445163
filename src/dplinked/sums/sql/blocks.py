"""Blocks as tables that rows are joined with, and what stands for the linkage in statements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from dplinked.errors import ReleaseError
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.sums.blocks import (
    DEPENDENCE,
    LEAST_PRODUCT,
    MOST_DEPENDENCE,
    check_accuracies,
    check_others,
    check_weights,
    find_facts,
    rows_apart,
    weigh_blocks,
)
from dplinked.sums.partners import enough_partners
from dplinked.sums.sql.columns import DesignColumns
from dplinked.sums.sql.dialect import Kept, SqlColumn, SqlEngine, plain_text
from dplinked.sums.sql.exact_sums import CHANGED, ExactSums, Scaled, block_total, log2_ceiling
from dplinked.sums.sql.pairs import PairTable, keep_matching
from dplinked.sums.types import BlockFacts

MOST_TOTALS = 100  # of a block in one statement: beyond, Spark no longer compiles it


class Circles:
    """Rows beside the responses of their partners, kept for later passes over the same rows."""

    def __init__(self) -> None:
        self._asked: tuple[str, str, tuple[str, ...]] | None = None
        self._query, self._kept = "", list[Kept]()

    def place(
        self,
        engine: SqlEngine,
        rows: str,
        circle: str,
        columns: Sequence[str],
        partners: int,
        weigh: Callable[[str], str],
    ) -> str:
        """What :meth:`SqlEngine.place_in_circles` gives: drawn on its first use, and the same until other rows take their place."""
        asked = rows, circle, tuple(columns)
        if self._asked != asked:
            self.close()
            self._query, self._kept = engine.place_in_circles(rows, circle, columns, partners, weigh)
            self._asked = asked
        return self._query

    def close(self) -> None:
        """Forget them."""
        for kept in self._kept:
            kept.close()
        self._asked, self._kept = None, []


@dataclass(frozen=True, repr=False)
class OneBlock:
    """All rows in one block, or right links (a = 1, o = 0): ``Q = a I + o 11'``. Instruments are times `weight`."""

    a: float
    o: float
    weight: float = 1.0
    key: None = None
    partners: int = 1
    circles: Circles = field(default_factory=Circles, compare=False)
    weighed: ClassVar[bool] = False  # each block by a number of its own

    def close(self) -> None:
        """Forget the rows that stand in circles."""
        self.circles.close()

    def cut_circles(self, engine: SqlEngine, rows: str, circles: int) -> tuple[str, str]:
        """Query of rows with the circle that they stand in, and that column's name. They are dealt out at random if there are to be several."""
        if circles <= 1:
            return rows, "k"
        dealt = f"floor({engine.double(circles)} * {engine.random})"
        return f"select cells.*, {dealt} as circle from ({rows}) cells", "circle"

    def join_weights(self, engine: SqlEngine, rows: str, count: int) -> str:
        """Rows with the number m of rows of their block, and its weights a and o."""
        return f"select cells.*, {count} as m, {engine.double(self.a)} as a, {engine.double(self.o)} as o from ({rows}) cells"


@dataclass(frozen=True, repr=False)
class BlockTable:
    """Blocks of a key column, in a table that the engine keeps.

    The table has one row per block: its key k, its place g, its number of rows m, its weights a and o, and what its instruments are multiplied by, v.

    With a single accuracy, each key is a block, null included. With an accuracy table, each of its keys is a block, and g is its place
    in that table; all other rows are one block, for which k is null and g is -1.

    Attributes
    ----------
    keys
        Those of an accuracy table, by place; None without one.
    fixed
        Whether every row keeps its block between neighbours, so that sizes are public.
    partners
        How many partners a row has, in blocks of more rows than that.
    weighed
        Whether v is another number than 1.
    linked
        Whether links lead from row to row; if not, a is 1 and o is 0.
    """

    kept: Kept
    key: str
    same: str
    keys: tuple[str, ...] | None
    blocks: int
    largest: int
    fixed: bool
    partners: int
    weighed: bool = False
    linked: bool = True
    circles: Circles = field(default_factory=Circles, compare=False)

    def close(self) -> None:
        """Forget the table, and the rows that stand in circles."""
        self.kept.close()
        self.circles.close()

    @property
    def weight(self) -> list[Scaled]:
        """What instruments are multiplied by, if it is not 1."""
        return [Scaled("v")] if self.weighed else []

    @property
    def own_key(self) -> str:
        """The column that tells blocks apart."""
        return "k" if self.keys is None else "g"

    def join_columns(self, rows: str, *names: str) -> str:
        """Join columns of each row's block. Null keys are handled apart, because null-safe joins are slow."""
        where = "k is null" if self.keys is None else "g = -1"

        def joined(name: str) -> str:
            other = f"(select max({name}) from {self.kept.name} where {where})"
            null = "cells.k is null" if self.keys is None else "b.k is null"
            return f", case when {null} then {other} else b.{name} end as {name}"

        listed = "".join(map(joined, names))
        return f"select cells.*{listed} from ({rows}) cells left join {self.kept.name} b on cells.k = b.k"

    def cut_circles(self, engine: SqlEngine, rows: str, circles: int) -> tuple[str, str]:
        """Query of rows with the circle that they stand in, and that column's name: the rows of a block stand in one."""
        return rows if self.keys is None else self.join_columns(rows, "g"), self.own_key

    def join_weights(self, engine: SqlEngine, rows: str, count: int) -> str:
        """Rows with the number m of rows of their block, its weights a and o, and v if it is another number than 1."""
        return self.join_columns(rows, "m", "a", "o", *(["v"] if self.weighed else []))

    def total(self, rows: str, totals: str) -> str:
        """Query of each block's totals, which `totals` lists, with its m, a, o and v."""
        key, same = self.own_key, self.same if self.keys is None else "="
        rows = rows if self.keys is None else self.join_columns(rows, "g")
        return (
            f"select t.*, b.m, b.a, b.o, b.v from (select {key}{totals} from ({rows}) grouped group by {key}) t "
            f"join {self.kept.name} b on t.{key} {same} b.{key}"
        )

    def total_whole(self, rows: str, totals: str) -> str:
        """As :meth:`total`, without blocks that have not as many rows as were counted in them."""
        return f"select * from ({self.total(rows, f', count(*) as c{totals}')}) whole where c = m"

    def holds(self, totals: int, numbers: int) -> bool:
        """Whether so many totals of all blocks are no more than all the `numbers` that rows have, and few enough for one statement."""
        return totals <= MOST_TOTALS and totals * self.blocks <= numbers

    def weigh(self, engine: SqlEngine, weights: Mapping[str | None, float]) -> BlockTable:
        """The same blocks, with weights by key of the accuracy table. Without such a table they have no names."""
        check_weights(weights)
        listed = {-1: weights.get(None, 1.0), **{g: weights.get(key, 1.0) for g, key in enumerate(self.keys or ())}}
        if self.keys is None or set(listed.values()) == {1.0}:
            return self
        import pyarrow as pa

        given = Kept(engine, "weights")
        table = pa.table({"g": pa.array(listed.keys(), pa.int32()), "v": pa.array(listed.values(), pa.float64())})
        engine.keep_table(given.name, table, "g, v")
        source = f"{self.kept.name} b join {given.name} y on b.g = y.g"
        return self._replace_columns(engine, "b.a, b.o, y.v", source)

    def alone(self, engine: SqlEngine) -> BlockTable:
        """Blocks of right links, weighed by ``w·a``."""
        one, zero = engine.double(1.0), engine.double(0.0)
        columns = f"{one} as a, {zero} as o, b.v * b.a as v"
        return replace(self._replace_columns(engine, columns, f"{self.kept.name} b"), linked=False)

    def _replace_columns(self, engine: SqlEngine, columns: str, source: str) -> BlockTable:
        """The same blocks with other columns a, o and v."""
        kept = Kept(engine, "blocks")
        engine.hold(kept.name, f"select b.k, b.g, b.m, {columns} from {source}")
        return replace(self, kept=kept, weighed=True, circles=Circles())


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
    return _check_blocks(columns, _keep_blocks(columns, linkage), count, linkage, unit)


def _one_block(count: int, linkage: ELE, unit: PrivacyUnit) -> tuple[OneBlock, BlockFacts]:
    """All rows as one block."""
    sizes, accuracy = np.array([count]), np.array([linkage.accuracy_of("")], np.float64)
    a, o = weigh_blocks(sizes, accuracy, linkage, unit)
    block = OneBlock(float(a[0]), float(o[0]), partners=_partners(linkage, unit))
    return block, find_facts(sizes, a)


def _partners(linkage: ELE, unit: PrivacyUnit) -> int:
    """How many partners a row has, from public values."""
    return enough_partners(min(linkage.declared), regrouped=bool(unit.linkage_change))


def total_columns(engine: SqlEngine, most: int, *groups: Sequence[Scaled]) -> tuple[str, list[list[Scaled]]]:
    """Totals of columns over blocks of at most `most` rows, each column once; returns their text, and the totals s0, s1, … of each group."""
    log = log2_ceiling(max(1, most))
    names = {column.sql: f"s{i}" for i, column in enumerate(dict.fromkeys(itertools.chain(*groups)))}
    text = "".join(f", {block_total(engine, sql, log)} as {name}" for sql, name in names.items())
    return text, [[Scaled(names[column.sql], column.log) for column in group] for group in groups]


def _keep_blocks(columns: DesignColumns, linkage: ELE) -> Kept:
    """Keep m, a, o and v of each block. Accuracies are joined from a table, never written into a statement."""
    engine, table = columns.engine, isinstance(linkage.accuracy, Mapping)
    assert linkage.block is not None
    accuracies = _keep_accuracies(engine, columns.stored[linkage.block], linkage)
    rows, name = columns.keys(linkage.block), accuracies.name
    if table:
        placed = f"select cells.*, y.k as key, coalesce(y.g, -1) as g from ({rows}) cells left join {name} y on cells.k = y.k"
        counted = f"select key as k, g, count(*) as m from ({placed}) placed group by key, g"
        found = f"select c.*, y.y from ({counted}) c join {name} y on c.g = y.g"
    else:
        counted = f"select k, 0 as g, count(*) as m from ({rows}) cells group by k"
        other, own = (f"(select y from {name} where g = {g})" for g in (-1, -2))
        found = f"select c.*, case when k is null then {other} else {own} end as y from ({counted}) c"
    one = engine.double(1.0)
    raised = f"greatest(y, {one} / m)" if linkage.source == "estimated" else "y"
    found = f"select k, g, m, case when m = 1 then {one} else {raised} end as y from ({found}) c"
    o = f"case when m > 1 then ({one} - y) / greatest(m - 1, 1) else {engine.double(0.0)} end"
    kept = Kept(engine, "blocks")
    weighed = f"select k, g, m, y - o as a, o, {one} as v from (select c.*, {o} as o from ({found}) c) c"
    engine.hold(kept.name, weighed)
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
    engine, double = columns.engine, columns.engine.double
    keys = tuple(linkage.accuracy) if isinstance(linkage.accuracy, Mapping) else None
    small = f"sum(case when m > 1 and (a + o) * m < {double(LEAST_PRODUCT)} then 1 else 0 end)"
    others = f"sum(case when {'k is null' if keys is None else 'g = -1'} then m else 0 end)"
    sums = ExactSums(engine, count)
    shared = f"m * least({double(MOST_DEPENDENCE)}, {double(DEPENDENCE)} / sqrt(m))"
    sums.add(Scaled(f"case when m > 1 then {shared} else {double(0.0)} end"))
    sums.add(Scaled("m * a"))
    statement = f"select count(*), sum(m), max(m), {small}, {others}{sums.selected()} from {kept.name}"
    ((blocks, total, largest, small_blocks, other_rows, *found),) = engine.fetch(statement)
    if int(total or 0) != count:
        raise ReleaseError(CHANGED)
    check_others(keys is not None and bool(other_rows), linkage)
    check_accuracies(bool(small_blocks), unit)
    by_key = rows_apart(count, int(other_rows or 0))
    if keys is not None:
        names = dict(enumerate(keys))
        by_key = {names.get(int(g)): int(m) for g, m in engine.fetch(f"select g, m from {kept.name} order by g")}
    assert linkage.block is not None
    block_table = BlockTable(
        kept,
        linkage.block,
        engine.same,
        keys,
        int(blocks),
        int(largest or 0),
        unit.fixes_blocks,
        _partners(linkage, unit),
    )
    dependence, contrast = sums.read(found).take(2) / max(1, count)
    return block_table, BlockFacts(block_table.largest, by_key, float(dependence), float(contrast))
