"""The same sums as in memory, by SQL: what DuckDB and Spark share.

Every statement is generated here as text; an :class:`Engine` adds its dialect and runs it. Rows stay where they
are: a statement returns sums, counts, or one number of rows per declared accuracy key.

A row's cell can make no statement fail. Cells are clipped before anything is computed from them, casts and
parsing give null instead of an error, logarithms and roots are guarded, and sums cannot overflow (below). Columns
are renamed by position (c0, c1, …) and texts are written in hexadecimal, so no name and no key is ever part of a
statement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text
from dplinked.data.table import check_columns
from dplinked.errors import StudyError, raise_alone
from dplinked.linkage import Linkage, Matching, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.border import add_border, symmetrise
from dplinked.sums.sql.blocks import Keyed, Links, Matched, Whole, find_links, total_columns
from dplinked.sums.sql.columns import Cells
from dplinked.sums.sql.dialect import UNREADABLE, Engine, Field
from dplinked.sums.sql.exact_sums import ExactSums, Reader, Scaled, log2_ceiling
from dplinked.sums.types import BlockFacts, CellFacts, Predictor, PrivateCounts, PrivateMeat, PrivateSums

Floats = NDArray[np.float64]

MOST_ROWS = 2**37
_REFUSED = ("text", "date", "timestamp", "instant")  # kinds of cells that a file may hold and an engine refuse


class SqlRows:
    """Linked rows in an engine. Schema and number of rows are public."""

    def __init__(self, engine: Engine, source: str, fields: Sequence[Field]) -> None:
        self._engine, self._source = engine, source
        self.columns: tuple[str, ...] = tuple(field.name for field in fields)
        self._fields = {field.name: field for field in fields}
        if len(self._fields) != len(fields):
            raise StudyError("The data has two columns of the same name. Rename one.")
        self.count = self._count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count} rows, columns {list(self.columns)})"

    def _count(self) -> int:
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
        check_columns(names, self.columns, secret=any(field.parsed for field in self._fields.values()))
        for name in numeric:
            field = self._fields[name]
            if not field.numeric:
                kind = {"text": "String", "date": "Date"}.get(field.kind, field.type)
                raise StudyError(f"Column {name!r} holds {kind}, not numbers. Convert it before fitting.")
        for name in set(names) - set(numeric):
            if not self._fields[name].comparable:
                raise StudyError(
                    f"Column {name!r} holds {self._fields[name].type}, which cannot be compared. Convert it to text first."
                )

    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> SqlPass:
        """Find the blocks; only what is public under the unit can make it fail."""
        self.require(design.variables, numeric=list(design.bounds))
        key = linkage.id if isinstance(linkage, Matching) else linkage.block
        if key is not None:
            self.require([key])
        self._read_cells(design.variables)
        cells = Cells(self._engine, self._fields, self._source, design)
        links, facts = find_links(cells, self.count, linkage, unit)
        return SqlPass(self, cells, self.count, links, facts)

    def _read_cells(self, names: Sequence[str]) -> None:
        """Read texts and moments once where one that the engine refuses would stop a later pass; keys are read for the blocks anyway."""
        fields = [self._fields[name] for name in names if self._fields[name].kind in _REFUSED]
        if fields and self._engine.checks_cells:
            lengths = ", ".join(f"sum(length({self._engine.as_text(field)}))" for field in fields)
            self._engine.fetch(f"select {lengths} from {self._source}")

    def summarise_column(self, name: str, low: float, high: float) -> CellFacts:
        """Missing, clipped and middle-70 % counts of a numeric column. FOR THE STEWARD."""
        self.require([name], numeric=[name])
        engine = self._engine
        cells = f"select {engine.number(self._fields[name])} as v from {self._source}"
        finite = f"select case when {engine.finite('v')} then v end as v from ({cells}) cells"
        outside = (
            f"sum(case when v {sign} {engine.double(end)} then 1 else 0 end)" for sign, end in (("<", low), (">", high))
        )
        middle = (engine.quantile("v", share) for share in (0.15, 0.85))
        statement = f"select count(*) - count(v), {', '.join(outside)}, {', '.join(middle)} from ({finite}) finite"
        ((missing, below, above, *ends),) = engine.fetch(statement)
        return CellFacts(
            int(missing), int(below or 0), int(above or 0), None if ends[0] is None else tuple(map(float, ends))
        )

    def digest(self) -> bytes:
        """The rows' content, in whatever order they come, to know it again: sums of pieces of each row's SHA-256."""
        engine = self._engine
        texts = [engine.as_text(field) for field in self._fields.values()]
        listed = ", ".join(f"coalesce(concat(length({text}), ':', {text}), '-')" for text in texts)
        hashes = f"select {engine.sha256(f'concat({listed})')} as h from {self._source}"
        pieces = ", ".join(f"sum({engine.hex_number(f'substring(h, {first}, 12)')})" for first in range(1, 61, 12))
        (numbers,) = engine.fetch(f"select count(*), {pieces} from ({hashes}) hashed")
        return " ".join(map(str, numbers)).encode()

    def count_keys(self, name: str) -> dict[str | None, int]:
        """Rows per key. FOR THE STEWARD."""
        self.require([name])
        keys = f"select {self._engine.key(self._fields[name])} as k from {self._source}"
        found = self._engine.fetch(f"select k, count(*) from ({keys}) keys group by k")
        return {key_text(key): int(count) for key, count in found}


@dataclass(frozen=True, repr=False)
class SqlPass:
    """Rows ready to be summed: blocks found, cells not read yet. What the methods return is private."""

    rows: SqlRows  # keeps alive what the engine knows them by
    cells: Cells
    count: int
    links: Links
    blocks: BlockFacts | None

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""
        return self.cells.design

    @property
    def engine(self) -> Engine:
        """What runs the statements."""
        return self.cells.engine

    def with_design(self, design: Design) -> SqlPass:
        """The same rows with another scaling or instrument."""
        return replace(self, cells=Cells(self.engine, self.cells.fields, self.cells.source, design))

    def close(self) -> None:
        """Forget the blocks or pairs that the engine keeps; so does the end of all passes over them."""
        self.links.close()

    # --- the bounded instrument ---------------------------------------------------------------------

    def instrument_sums(self) -> PrivateSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
        cells, links, d = self.cells, self.links, len(self.design.columns)
        rows, h, x, z = cells.rows(links.key, instruments=True), cells.h, cells.x, cells.z
        symmetric = self.design.half_widths is None and not isinstance(links, Matched)
        weights: tuple[Scaled, ...] = ()
        sums = ExactSums(self.engine, self.count)
        if isinstance(links, Keyed):
            source, weights = links.weighted(rows), (Scaled("a"),)
        elif isinstance(links, Matched):
            source, x = links.spread(self.engine, rows, x)
        else:
            source = rows
        sums.add_matrix(h, x, *weights, symmetric=symmetric)
        for column in h:
            sums.add(column, z)
        sums.add(z)
        for column in () if isinstance(links, Keyed) else (*h, *x):
            sums.add(column)
        found = sums.fetch(source, self.count, "a" if isinstance(links, Keyed) else "*")
        core, b, (sum_z,) = found.matrix(d, d, symmetric=symmetric), found.take(d), found.take(1)
        if isinstance(links, Keyed):
            found = self._block_sums(links, rows, symmetric)
            core = core + found.matrix(d, d, symmetric=symmetric)
        sum_h, sum_x = found.take(d), found.take(d)
        if isinstance(links, Whole):
            core = links.a * core + links.o * np.outer(sum_h, sum_x)
        core = symmetrise(core) if symmetric else core
        return add_border(self.design, self.count, core, b, sum_h, sum_x, float(sum_z))

    def _block_sums(self, links: Keyed, rows: str, symmetric: bool) -> Reader:
        """``Σ o s_h s_x'`` over blocks, ``Σh`` and ``Σx``, from totals that are kept if they are this design's."""
        totals, (h, x) = total_columns(self.engine, links.largest, self.cells.h, self.cells.x)
        source = links.kept.name if links.design == self.design else links.totals(rows, totals)
        sums = ExactSums(self.engine, self.count)
        sums.add_matrix(h, x, Scaled("o"), symmetric=symmetric, room=1)  # at most 2m, since o ≤ 1/(m-1)
        for column in (*h, *x):
            sums.add(column)  # at most m
        return sums.fetch(source, links.blocks)

    # --- the paper's W -------------------------------------------------------------------------------

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """``W'W`` and ``W'z*`` of Algorithms 1 and 2: rows scaled to norm ≤ c, responses clipped to ±R."""
        cells, links, engine = self.cells, self.links, self.engine
        limit = math.ldexp(response_bound, -cells.z.log)
        small = min(0, log2_ceiling(limit))
        z = f"{engine.clip('z', -limit, limit)} * {engine.double(math.ldexp(1.0, -small))} as z"
        columns = [*([self._one] if self.design.intercept else []), *cells.x]
        rows, x = _shortened(engine, cells.rows(links.key), columns, row_norm, f"k, {z}")
        y, p = Scaled("z", cells.z.log + small), len(x)
        source, squared, single = rows, list[Scaled](), list[Scaled]()
        if isinstance(links, Keyed):
            source, squared, single = links.weighted(rows), [Scaled("a * a")], [Scaled("a")]
        elif isinstance(links, Matched):
            source, x = links.spread(engine, rows, x)
        sums = ExactSums(engine, self.count)
        sums.add_matrix(x, x, *squared, symmetric=True)
        sums.add_matrix(x, [y], *single)
        for column in (*x, y):
            sums.add(column)
        found = sums.fetch(source, self.count, "a" if isinstance(links, Keyed) else "*")
        gram, cross = found.matrix(p, p, symmetric=True), found.take(p)
        s, (t,) = found.take(p), found.take(1)
        if isinstance(links, Whole):
            a, o = links.a, links.o
            gram = a * a * gram + (2.0 * a * o + self.count * o * o) * np.outer(s, s)
            cross = a * cross + o * s * t
        elif isinstance(links, Keyed):
            totals, (block_x, block_y) = total_columns(engine, links.largest, x, [y])
            blocks = ExactSums(engine, self.count)
            # (2ao + mo²)ss' is at most 4m + 4m of totals that are at most m
            blocks.add_matrix(block_x, block_x, Scaled("(2 * a * o + m * o * o)"), symmetric=True, room=3)
            blocks.add_matrix(block_x, block_y, Scaled("o"), room=1)
            added = blocks.fetch(links.totals(rows, totals), links.blocks)
            gram, cross = gram + added.matrix(p, p, symmetric=True), cross + added.take(p)
        return PrivateSums(gram, cross, self.count)

    @property
    def _one(self) -> Scaled:
        return Scaled(self.engine.double(1.0))

    # --- counting ------------------------------------------------------------------------------------

    def column_counts(self, bins: int) -> PrivateCounts:
        """Histogram of each numeric column over its bounds, on a public grid (rows: numeric groups)."""
        numeric = [group.start for group in self.design.groups if group.numeric]
        counts = np.zeros((len(numeric), bins), dtype=np.int64)
        if not numeric:
            return PrivateCounts(counts)
        double, places = self.engine.double, []
        for i, k in enumerate(numeric):
            column = self.design.columns[k]
            low, high = ((edge - column.shift) / column.scale for edge in column.interval)
            place = f"floor((x{k} - {double(low)}) * {double(bins / (high - low))})"
            places.append(f"cast({self.engine.clip(place, 0.0, bins - 1.0)} as int) as p{i}")
        query = f"select {', '.join(places)} from ({self.cells.rows(None, scaled=False)}) cells"
        for row, place, count in self.engine.fetch(self.engine.histograms(query, len(numeric))):
            counts[row, place] = count
        return PrivateCounts(counts)

    def residual_counts(self, predictor: Predictor, edges: Floats) -> PrivateCounts:
        """Histogram of the rows' own absolute residuals between increasing public edges; the last bin is open."""
        residual, _ = self._own_residual(predictor)
        query = f"select abs({residual}) as r from ({self.cells.rows(None, scaled=False)}) cells"
        place = _search(self.engine, "r", edges.tolist())
        found = self.engine.fetch(f"select {place} as p, count(*) from ({query}) residuals group by {place}")
        counts = np.zeros(edges.size + 1, dtype=np.int64)
        for row, count in found:
            counts[row] = count
        return PrivateCounts(counts[None, :])

    # --- residuals -----------------------------------------------------------------------------------

    def row_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """``Σ u_i u_i'`` with ``u_i = weights·h_i·r_i`` scaled to ‖u_i‖ ≤ norm; under an explicit Q, r_i from ``w_i'β``."""
        double = self.engine.double
        rows = self.cells.rows(self.links.key, instruments=True, scaled=False)
        if isinstance(self.links, Matched):
            fitted, reach = self._fitted(predictor, [0] * len(self.design.columns))
            log = log2_ceiling(reach)
            with_fitted = f"select cells.*, {double(math.ldexp(1.0, -log))} * {fitted} as f from ({rows}) cells"
            rows, (w,) = self.links.spread(self.engine, with_fitted, [Scaled("f", log)])
            level = float(predictor.beta[: int(self.design.intercept)].sum())
            residual = f"z - {double(level)} - {double(math.ldexp(1.0, log))} * {w.sql}"
            largest = self.design.response.peak + abs(level) + reach
        else:
            residual, largest = self._own_residual(predictor)
        query = f"select cells.*, {residual} as r from ({rows}) cells"
        terms = []
        for h, weight in zip(self._instruments(), weights, strict=True):
            log = log2_ceiling(weight) + h.log + log2_ceiling(largest)
            terms.append(Scaled(f"{double(math.ldexp(weight, -log))} * {h.sql} * r", log))
        return self._meat(query, terms, norm, self.count)

    def block_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """``Σ_b T_b T_b'`` with ``T_b = weights·Σ h_i (z_i - w_i'β)`` scaled to ‖T_b‖ ≤ norm."""
        cells, links, double = self.cells, self.links, self.engine.double
        assert not isinstance(links, Matched)
        level = float(predictor.beta[: int(self.design.intercept)].sum())
        fitted, reach = self._fitted(predictor, [x.log for x in cells.x])
        log_v, log_f = log2_ceiling(self.design.response.peak + abs(level)), log2_ceiling(reach)
        v = f"{double(math.ldexp(1.0, cells.z.log - log_v))} * z - {double(math.ldexp(level, -log_v))} as v"
        f = f"{double(math.ldexp(1.0, -log_f))} * {fitted} as f"
        rows = f"select cells.*, {v}, {f} from ({cells.rows(links.key, instruments=True)}) cells"
        h = self._instruments()
        products = [[Scaled(f"{one.sql} * {name}", one.log) for one in h] for name in ("v", "f")]
        if isinstance(links, Whole):
            return self._whole_meat(
                links, rows, [*products[0], *products[1], *h, Scaled("f")], (log_v, log_f), weights, norm
            )
        totals, (s1, s2, sh, (sf,)) = total_columns(self.engine, links.largest, *products, h, [Scaled("f")])
        top = max(log_v, log_f)
        terms = []
        for one, two, three, weight in zip(s1, s2, sh, weights, strict=True):
            log = log2_ceiling(weight) + three.log + top + 2 + log2_ceiling(max(1, links.largest))
            by_v, by_f = (double(math.ldexp(weight, part + three.log - log)) for part in (log_v, log_f))
            terms.append(Scaled(f"({by_v} * {one.sql} - {by_f} * (a * {two.sql} + o * {three.sql} * {sf.sql}))", log))
        return self._meat(links.totals(rows, totals), terms, norm, links.blocks)

    def _whole_meat(
        self, links: Whole, rows: str, totals: Sequence[Scaled], logs: tuple[int, int], weights: Floats, norm: float
    ) -> PrivateMeat:
        """The meat of a single block."""
        p, sums = len(self.design.names), ExactSums(self.engine, self.count)
        for column in totals:
            sums.add(column)
        found = sums.fetch(rows, self.count)
        s1, s2 = (np.ldexp(found.take(p), log) for log in logs)
        sh, sf = found.take(p), math.ldexp(found.take(1)[0], logs[1])
        T = weights * (s1 - links.a * s2 - links.o * sh * sf)
        T *= norm / max(math.hypot(*T) * (1.0 + 1e-12), norm)
        return PrivateMeat(np.outer(T, T))

    def _meat(self, query: str, terms: Sequence[Scaled], norm: float, count: int) -> PrivateMeat:
        source, u = _shortened(self.engine, query, terms, norm)
        sums = ExactSums(self.engine, self.count)
        sums.add_matrix(u, u, symmetric=True)
        return PrivateMeat(sums.fetch(source, count).matrix(len(u), len(u), symmetric=True))

    def _instruments(self) -> list[Scaled]:
        return [*([self._one] if self.design.intercept else []), *self.cells.h]

    def _fitted(self, predictor: Predictor, logs: Sequence[int]) -> tuple[str, float]:
        """``x'β`` without the intercept, of columns divided by ``2^logs``, and a bound on it."""
        slopes = predictor.beta[int(self.design.intercept) :].tolist()
        terms = [
            f"{self.engine.double(math.ldexp(b, log))} * x{k}"
            for k, (b, log) in enumerate(zip(slopes, logs, strict=True))
        ]
        reach = sum(abs(slope) * column.peak for slope, column in zip(slopes, self.design.columns, strict=True))
        return f"({' + '.join(terms) or self.engine.double(0.0)})", reach

    def _own_residual(self, predictor: Predictor) -> tuple[str, float]:
        """``z_i - β₀ - (γx_i + (1-γ)x̄)'β``, what a row tells of its residual without looking at others, and a bound on it."""
        first, double = int(self.design.intercept), self.engine.double
        slopes, accuracy = predictor.beta[first:], predictor.accuracy
        level = float(predictor.beta[:first].sum() + (1.0 - accuracy) * (slopes @ predictor.mean))
        fitted, reach = self._fitted(predictor, [0] * slopes.size)
        return f"z - {double(level)} - {double(accuracy)} * {fitted}", self.design.response.peak + abs(level) + reach


def _shortened(
    engine: Engine, query: str, columns: Sequence[Scaled], norm: float, kept: str = "1 as one"
) -> tuple[str, list[Scaled]]:
    """Columns of a query scaled so that each row's l2 norm is at most `norm`, beside those `kept`.

    Columns are first divided by a common power of two that keeps them below 1: their squares cannot overflow.
    """
    double, top = engine.double, max((column.log for column in columns), default=0)
    limit = math.ldexp(norm, -top)
    if not limit > 2.0**-400:
        raise StudyError("The norm that rows are to be scaled to is too small for the declared bounds.")
    small = min(0, log2_ceiling(limit))
    listed = "".join(f", {double(math.ldexp(1.0, c.log - top))} * {c.sql} as y{i}" for i, c in enumerate(columns))
    inner = f"select {kept}{listed} from ({query}) cells"
    length = f"sqrt({' + '.join(f'y{i} * y{i}' for i in range(len(columns))) or double(0.0)})"
    largest = f"greatest({length} * {double(1.0 + 1e-12)}, {double(limit)})"
    factor = f"select lengths.*, {double(math.ldexp(limit, -small))} / {largest} as factor from ({inner}) lengths"
    scaled = "".join(f", y{i} * factor as u{i}" for i in range(len(columns)))
    return f"select short.*{scaled} from ({factor}) short", [Scaled(f"u{i}", top + small) for i in range(len(columns))]


def _search(engine: Engine, value: str, edges: Sequence[float], first: int = 0) -> str:
    """How many edges lie below a value, by halving."""
    if not edges:
        return str(first)
    middle = len(edges) // 2
    below = _search(engine, value, edges[:middle], first)
    above = _search(engine, value, edges[middle + 1 :], first + middle + 1)
    return f"case when {value} <= {engine.double(edges[middle])} then {below} else {above} end"
