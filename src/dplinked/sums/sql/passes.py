"""The passes over rows by SQL, which all SQL engines share. They give the sums that NumPy gives.

Every statement is generated here as text; a :class:`SqlEngine` adds its dialect and runs it. Rows stay where they
are: a statement returns sums, counts, or one number of rows per declared accuracy key.

No cell of a row can make a statement fail. Cells are clipped before anything is computed from them, casts and
parsing give null instead of an error, logarithms and roots are guarded, and sums cannot overflow
(:mod:`dplinked.sums.sql.exact_sums`). Columns are renamed by position (c0, c1, …) and texts are written in hexadecimal, so no name and no
key is ever part of a statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.study.design import Design
from dplinked.sums.border import add_border, symmetrise
from dplinked.sums.sql.blocks import BlockTable, LinkTable, OneBlock, total_columns
from dplinked.sums.sql.columns import DesignColumns
from dplinked.sums.sql.curve import curve_sums
from dplinked.sums.sql.dialect import SqlEngine
from dplinked.sums.sql.exact_sums import ExactSums, Scaled, log2_ceiling, matrix_places, shorten
from dplinked.sums.sql.pairs import PairTable
from dplinked.sums.sql.right_residuals import (
    centred,
    contribution_sizes,
    right_residuals,
    square,
    squared_residuals,
    stratum_totals,
    total_strata,
    whitened_squares,
)
from dplinked.sums.types import (
    BlockFacts,
    Centres,
    MeatClip,
    Predictor,
    PrivateCounts,
    PrivateMeat,
    PrivateMoments,
    PrivateResiduals,
    PrivateSizes,
    PrivateSquares,
    PrivateStrata,
    PrivateSums,
    ResidualClip,
    Whitening,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class SqlPass:
    """The passes of :class:`dplinked.sums.engine.Pass`, by SQL. What the methods return is private."""

    rows: object  # the source, which keeps alive what the engine knows the rows by
    columns: DesignColumns
    count: int
    link_table: LinkTable
    blocks: BlockFacts | None

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""
        return self.columns.design

    @property
    def engine(self) -> SqlEngine:
        """What runs the statements."""
        return self.columns.engine

    def with_design(self, design: Design) -> SqlPass:
        """The same rows with another scaling or instrument."""
        return self._with_columns(design, self.columns.dropped)

    def without_missing(self) -> SqlPass:
        """The same rows, of which missing responses and rows with a missing regressor count 0."""
        return self._with_columns(self.design, True)

    def _with_columns(self, design: Design, dropped: bool) -> SqlPass:
        columns = self.columns
        return replace(self, columns=DesignColumns(self.engine, columns.stored, columns.source, design, dropped))

    def close(self) -> None:
        """Forget the blocks or pairs that the engine keeps. They are forgotten anyway when the last pass over them is gone."""
        self.link_table.close()

    def with_weights(self, weights: Mapping[str | None, float]) -> SqlPass:
        """The same rows, the instruments of each group's multiplied by its weight."""
        if not isinstance(self.link_table, BlockTable):
            return self
        return replace(self, link_table=self.link_table.weigh(self.engine, weights))

    def own_rows(self, weighted: bool = False) -> SqlPass:
        """The same rows without their links, weighed by the weight and the contrast of their groups if they are to be."""
        match self.link_table:
            case BlockTable() as table if weighted:
                return replace(self, link_table=table.alone(self.engine))
            case OneBlock(a=a, weight=weight) if weighted:
                return replace(self, link_table=OneBlock(1.0, 0.0, weight * a))
        return replace(self, link_table=OneBlock(1.0, 0.0), blocks=None)

    def whitened_squares(self, whitening: Whitening) -> PrivateMeat:
        """Sum of squares of whitened rows by themselves."""
        return whitened_squares(self.columns, self.link_table, self.count, whitening)

    def right_residuals(self, clip: ResidualClip, meat: MeatClip | None = None) -> PrivateResiduals:
        """The clipped residual equation of right links, and the squares of its contributions if they are asked for."""
        return right_residuals(self.columns, self.link_table, self.count, clip, meat)

    def contribution_sizes(self, clip: ResidualClip, meat: MeatClip, norms: Floats) -> PrivateSizes:
        """How long the totals are that `meat` squares."""
        return contribution_sizes(self.columns, self.link_table, self.count, clip, meat, norms)

    def stratum_totals(self, clip: ResidualClip, clustered: bool) -> PrivateStrata:
        """The equation of the rows of each stratum, and how many rows or clusters it has."""
        return stratum_totals(self.columns, self.link_table, self.count, clip, clustered)

    def squared_residuals(self, clip: ResidualClip) -> PrivateSquares:
        """Sum of clipped squares of right links' residuals, and the squares of what rows contribute to it."""
        return squared_residuals(self.columns, self.link_table, self.count, clip)

    def curve_sums(self, clip: ResidualClip, level: float) -> PrivateSums:
        """What a curve makes of the regressors of rows by themselves: the outcome's expected equation, and its slope."""
        return curve_sums(self.columns, self.link_table, self.count, clip, level)

    # --- the bounded instrument ---------------------------------------------------------------------

    def instrument_sums(self) -> PrivateSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
        if self.columns.dropped:
            return self._known_sums()
        columns, table, d = self.columns, self.link_table, len(self.design.columns)
        symmetric = self.design.half_widths is None and not isinstance(table, PairTable)
        rows, h, x, z = columns.rows(table.key, instruments=True), columns.h, columns.x, columns.z
        if isinstance(table, BlockTable) and table.linked:
            return self._linked_sums(table, rows, symmetric)
        source, weight, joined = rows, list[Scaled](), "*"
        if isinstance(table, BlockTable):
            source, weight, joined = table.join_columns(rows, "v"), [Scaled("v")], "v"
        elif isinstance(table, PairTable):
            source, x = table.join_matches(self.engine, rows, x)
        sums = ExactSums(self.engine, self.count)
        sums.add_matrix(h, x, *weight, symmetric=symmetric)
        for column in (*(_product(one, z) for one in h), *h, *x, z, *([_one(self.engine)] if weight else [])):
            sums.add(column, *weight)
        found = sums.fetch(source, self.count, joined)
        core, b, sum_h, sum_x = found.matrix(d, d, symmetric=symmetric), *(found.take(d) for _ in range(3))
        (sum_z,), total = found.take(1), float(found.take(1)[0]) if weight else float(self.count)
        if isinstance(table, OneBlock):
            core = table.a * core + table.o * np.outer(sum_h, sum_x)
            core, b, sum_h, sum_x = (table.weight * each for each in (core, b, sum_h, sum_x))
            sum_z, total = table.weight * sum_z, table.weight * total
        core = symmetrise(core) if symmetric else core
        return add_border(self.design, self.count, core, b, sum_h, sum_x, float(sum_z), total)

    def _linked_sums(self, table: BlockTable, rows: str, symmetric: bool) -> PrivateSums:
        """The sums of blocks with links between their rows, ``Σ a h x' + o s_h s_x'``.

        All rows of a block have the same a. So products are totalled by block too, where that is not too many numbers, and one statement does. Elsewhere a comes to
        the rows by a join.
        """
        (h, x, z), d = (self.columns.h, self.columns.x, self.columns.z), len(self.design.columns)
        places, crossed = matrix_places(d, d, symmetric), [_product(one, z) for one in h]
        products = [_product(h[i], x[j]) for i, j in places]
        sums, weight = ExactSums(self.engine, self.count), table.weight
        at_once = table.holds(len({*products, *crossed, *h, *x}) + 1, (d + 2) * self.count)
        added = [products, crossed, [z]] if at_once else []
        totals, (s_h, s_x, *grouped) = total_columns(self.engine, table.largest, h, x, *added)
        if at_once:
            for (i, j), total in zip(places, grouped[0], strict=True):  # at most m + 2m, since o ≤ 1/(m-1)
                both = f"(a * {total.sql} + o * {s_h[i].sql} * {s_x[j].sql})"
                sums.add(Scaled(both, total.log), *weight, room=2)
            rest = [*grouped[1], *grouped[2]]
        else:
            sums.add_matrix(s_h, s_x, Scaled("o"), *weight, symmetric=symmetric, room=1)
            rest = []
        for column in (*rest, *s_h, *s_x, Scaled("m")):
            sums.add(column, *weight)  # at most m
        found = sums.fetch(table.total_whole(rows, totals), table.blocks)
        core = found.matrix(d, d, symmetric=symmetric)
        if not at_once:
            by_row = ExactSums(self.engine, self.count)
            by_row.add_matrix(h, x, Scaled("a"), *weight, symmetric=symmetric)
            for column in (*crossed, z):
                by_row.add(column, *weight)
            joined = table.join_columns(rows, "a", *(column.sql for column in weight))
            other = by_row.fetch(joined, self.count, "a")
            core = core + other.matrix(d, d, symmetric=symmetric)
        b, (sum_z,) = (found if at_once else other).take(d), (found if at_once else other).take(1)
        sum_h, sum_x, (total_weight,) = found.take(d), found.take(d), found.take(1)
        core = symmetrise(core) if symmetric else core
        return add_border(self.design, self.count, core, b, sum_h, sum_x, float(sum_z), float(total_weight))

    def _known_sums(self) -> PrivateSums:
        """``h'X`` of rows by themselves, without those that have a missing regressor; responses do not enter."""
        columns, table, d, (known,) = self.columns, self.link_table, len(self.design.columns), self.columns.known
        assert not isinstance(table, PairTable), "under links every row's regressors are needed"
        source, weight, joined, count = columns.rows(table.key, instruments=True), list[Scaled](), "*", self.count
        h, x, symmetric = columns.h, columns.x, self.design.half_widths is None
        one, zero = self.engine.double(1.0), self.engine.double(0.0)
        answered = Scaled(f"(case when {columns.is_missing('z')} then {zero} else {one} end)")
        terms = [_product(h[i], x[j]) for i, j in matrix_places(d, d, symmetric)]
        terms = [known, *(_product(known, each) for each in (answered, *h, *x, *terms))]
        if isinstance(table, BlockTable):
            weight = table.weight
            if table.holds(len(set(terms)), (d + 2) * self.count):
                totals, (terms,) = total_columns(self.engine, table.largest, terms)
                source, count = table.total_whole(source, totals), table.blocks
            else:
                source, joined = table.join_columns(source, "v"), "v"
        sums = ExactSums(self.engine, self.count)
        for term in terms:
            sums.add(term, *weight)
        found = sums.fetch(source, count, joined)
        scale = table.weight if isinstance(table, OneBlock) else 1.0
        weights, complete = (scale * found.take(2)).tolist()
        sum_h, sum_x, core = found.take(d), found.take(d), found.matrix(d, d, symmetric=symmetric)
        core, sum_h, sum_x = (scale * each for each in (core, sum_h, sum_x))
        result = add_border(self.design, self.count, core, np.zeros(d), sum_h, sum_x, 0.0, weights)
        return replace(result, known=weights, complete=complete)

    # --- the paper's W -------------------------------------------------------------------------------

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """``W'W``, ``W'z*`` and ``z*'z*`` of Algorithms 1 and 2: rows scaled to norm ≤ c, responses clipped to ±R."""
        columns, link_table, engine = self.columns, self.link_table, self.engine
        limit = math.ldexp(response_bound, -columns.z.log)
        small = min(0, log2_ceiling(limit))
        z = f"{engine.clip('z', -limit, limit)} * {engine.double(math.ldexp(1.0, -small))} as z"
        regressors = [*columns.ones, *columns.x]
        rows, x = shorten(engine, columns.rows(link_table.key), regressors, row_norm, f"k, {z}")
        y, p = Scaled("z", columns.z.log + small), len(x)
        source, squared, single = rows, list[Scaled](), list[Scaled]()
        if isinstance(link_table, BlockTable):
            source, squared, single = link_table.join_columns(rows, "a"), [Scaled("a * a")], [Scaled("a")]
        elif isinstance(link_table, PairTable):
            source, x = link_table.join_matches(engine, rows, x)
        sums = ExactSums(engine, self.count)
        sums.add_matrix(x, x, *squared, symmetric=True)
        sums.add_matrix(x, [y], *single)
        sums.add(y, y)
        for column in (*x, y):
            sums.add(column)
        found = sums.fetch(source, self.count, "a" if isinstance(link_table, BlockTable) else "*")
        gram, cross, (squares,) = found.matrix(p, p, symmetric=True), found.take(p), found.take(1)
        s, (t,) = found.take(p), found.take(1)
        if isinstance(link_table, OneBlock):
            a, o = link_table.a, link_table.o
            gram = a * a * gram + (2.0 * a * o + self.count * o * o) * np.outer(s, s)
            cross = a * cross + o * s * t
        elif isinstance(link_table, BlockTable):
            totals, (block_x, block_y) = total_columns(engine, link_table.largest, x, [y])
            blocks = ExactSums(engine, self.count)
            # (2ao + mo²)ss' is at most 4m + 4m of totals that are at most m
            blocks.add_matrix(block_x, block_x, Scaled("(2 * a * o + m * o * o)"), symmetric=True, room=3)
            blocks.add_matrix(block_x, block_y, Scaled("o"), room=1)
            added = blocks.fetch(link_table.total(rows, totals), link_table.blocks)
            gram, cross = gram + added.matrix(p, p, symmetric=True), cross + added.take(p)
        return PrivateSums(gram, cross, self.count, float(squares))

    # --- counting ------------------------------------------------------------------------------------

    def column_counts(self, bins: int) -> PrivateCounts:
        """Histogram of each numeric column over its bounds, on a public grid (numeric groups×bins)."""
        numeric = [group.start for group in self.design.groups if group.numeric]
        counts = np.zeros((len(numeric), bins), dtype=np.int64)
        if not numeric:
            return PrivateCounts(counts)
        double, places = self.engine.double, []
        for i, k in enumerate(numeric):
            column = self.design.columns[k]
            low, high = ((edge - column.shift) / column.scale for edge in column.interval)
            place = f"(x{k} - {double(low)}) * {double(bins / (high - low))}"
            places.append(f"{self.engine.as_int(f'floor({place})')} as p{i}")
        query = f"select {', '.join(places)} from ({self.columns.rows(None, scaled=False)}) cells"
        for row, place, count in self.engine.fetch(self.engine.histograms(query, len(numeric))):
            counts[row, min(max(place, 0), bins - 1)] += count  # the upper bound, and what rounding puts beyond an end
        return PrivateCounts(counts)

    def weight_moments(self) -> PrivateMoments:
        """Sums of what rows count, of its square and of its fourth power."""
        alone = self.with_design(self.design.weights_alone()).without_missing().columns
        sums, (counted,) = ExactSums(self.engine, self.count), alone.known
        for power in (1, 2, 4):
            sums.add(*[counted] * power)
        return PrivateMoments(sums.fetch(alone.rows(None), self.count).take(3))

    def residual_counts(self, predictor: Predictor, edges: Floats, ahead: bool = False) -> PrivateCounts:
        """Histogram of the absolute residuals that rows have on their own, between increasing public edges; the last bin is open.

        If missing cells are dropped, it has those of complete rows, and then the number of others.
        """
        residual, _ = self._own_residual(predictor)
        columns, bins = self.columns, edges.size + 1
        place = _count_below(self.engine, "r", edges)
        kept = "".join(f", {name}" for name in ("z", "e") if columns.dropped)
        if columns.dropped:
            lost = f"{columns.is_missing('z', scaled=False)} or e = {self.engine.double(0.0)}"
            place = f"case when {lost} then {bins} else {place} end"
        query = f"select abs({residual}) as r{kept} from ({columns.rows(None, scaled=False)}) cells"
        found = self.engine.fetch(f"select {place} as p, count(*) from ({query}) residuals group by {place}")
        counts = np.zeros(bins + columns.dropped, dtype=np.int64)
        for row, count in found:
            counts[row] = count
        return PrivateCounts(counts[None, :])

    # --- residuals -----------------------------------------------------------------------------------

    def row_meat(
        self, predictor: Predictor, weights: Floats, norm: float, centres: Centres | None = None
    ) -> PrivateMeat:
        """``Σ u_i u_i'`` with ``u_i = weights·h_i·r_i``, around the centre of its stratum if there are strata, scaled to ‖u_i‖ ≤ norm. Under an explicit Q the residual r_i is taken from ``w_i'β``."""
        query, terms = self._contributions(predictor, weights)
        if centres is not None:
            query, terms = centred(self.engine, query, terms, centres)
        return self._meat(query, terms, norm, self.count)

    def row_strata(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateStrata:
        """Totals of the u_i of :meth:`row_meat`, scaled to the norm, and numbers of rows of each stratum."""
        assert self.design.strata is not None
        query, terms = self._contributions(predictor, weights)
        source, u = shorten(self.engine, query, terms, norm, "s")
        return total_strata(self.engine, source, u, self.count, len(self.design.levels[self.design.strata]) + 1)

    def _contributions(self, predictor: Predictor, weights: Floats) -> tuple[str, list[Scaled]]:
        """Query of rows with their contributions ``weights·h_i·r_i``, and these."""
        double = self.engine.double
        rows = self.columns.rows(self.link_table.key, instruments=True, scaled=False)
        if isinstance(self.link_table, PairTable):
            fitted, reach = self.columns.fitted(predictor.beta, [0] * len(self.design.columns))
            log = log2_ceiling(reach)
            with_fitted = f"select cells.*, {double(math.ldexp(1.0, -log))} * {fitted} as f from ({rows}) cells"
            rows, (w,) = self.link_table.join_matches(self.engine, with_fitted, [Scaled("f", log)])
            level = float(predictor.beta[: int(self.design.intercept)].sum())
            residual = f"z - {double(level)} - {double(math.ldexp(1.0, log))} * {w.sql}"
            largest = self.design.response.peak + abs(level) + reach
        else:
            residual, largest = self._own_residual(predictor)
        if isinstance(self.link_table, BlockTable) and self.link_table.weighed:
            rows, residual = self.link_table.join_columns(rows, "v"), f"v * ({residual})"
        query = f"select cells.*, {residual} as r from ({rows}) cells"
        terms = []
        for h, weight in zip(self.columns.instruments, weights, strict=True):
            log = log2_ceiling(weight) + h.log + log2_ceiling(largest)
            terms.append(Scaled(f"{double(math.ldexp(weight, -log))} * {h.sql} * r", log))
        return query, terms

    def block_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """``Σ_b T_b T_b'`` with ``T_b = weights·Σ h_i (z_i - w_i'β)`` scaled to ‖T_b‖ ≤ norm."""
        columns, link_table, double = self.columns, self.link_table, self.engine.double
        assert not isinstance(link_table, PairTable)
        level = float(predictor.beta[: int(self.design.intercept)].sum())
        fitted, reach = self.columns.fitted(predictor.beta, [x.log for x in columns.x])
        log_v, log_f = log2_ceiling(self.design.response.peak + abs(level)), log2_ceiling(reach)
        v = f"{double(math.ldexp(1.0, columns.z.log - log_v))} * z - {double(math.ldexp(level, -log_v))} as v"
        f = f"{double(math.ldexp(1.0, -log_f))} * {fitted} as f"
        rows = f"select cells.*, {v}, {f} from ({columns.rows(link_table.key, instruments=True)}) cells"
        h = self.columns.instruments
        products = [[Scaled(f"{one.sql} * {name}", one.log) for one in h] for name in ("v", "f")]
        if isinstance(link_table, OneBlock):
            return self._one_block_meat(
                link_table, rows, [*products[0], *products[1], *h, Scaled("f")], (log_v, log_f), weights, norm
            )
        totals, (s1, s2, sh, (sf,)) = total_columns(self.engine, link_table.largest, *products, h, [Scaled("f")])
        top = max(log_v, log_f)
        terms = []
        for one, two, three, weight in zip(s1, s2, sh, weights, strict=True):
            log = log2_ceiling(weight) + three.log + top + 2 + log2_ceiling(max(1, link_table.largest))
            by_v, by_f = (double(math.ldexp(weight, part + three.log - log)) for part in (log_v, log_f))
            total = f"({by_v} * {one.sql} - {by_f} * (a * {two.sql} + o * {three.sql} * {sf.sql}))"
            terms.append(Scaled(f"v * {total}" if link_table.weighed else total, log))
        return self._meat(link_table.total(rows, totals), terms, norm, link_table.blocks)

    def _one_block_meat(
        self,
        link_table: OneBlock,
        rows: str,
        totals: Sequence[Scaled],
        logs: tuple[int, int],
        weights: Floats,
        norm: float,
    ) -> PrivateMeat:
        """The meat of a single block."""
        p, sums = len(self.design.names), ExactSums(self.engine, self.count)
        for column in totals:
            sums.add(column)
        found = sums.fetch(rows, self.count)
        s1, s2 = (np.ldexp(found.take(p), log) for log in logs)
        sh, sf = found.take(p), math.ldexp(found.take(1)[0], logs[1])
        return PrivateMeat(square(weights * (s1 - link_table.a * s2 - link_table.o * sh * sf), norm))

    def _meat(self, query: str, terms: Sequence[Scaled], norm: float, count: int) -> PrivateMeat:
        source, u = shorten(self.engine, query, terms, norm)
        sums = ExactSums(self.engine, self.count)
        sums.add_matrix(u, u, symmetric=True)
        return PrivateMeat(sums.fetch(source, count).matrix(len(u), len(u), symmetric=True))

    def _own_residual(self, predictor: Predictor) -> tuple[str, float]:
        """``z_i - β₀ - (γx_i + (1-γ)x̄)'β``, an estimate of a row's residual that depends on no other row, and a bound on it."""
        first, double = int(self.design.intercept), self.engine.double
        slopes, accuracy = predictor.beta[first:], predictor.accuracy
        level = float(predictor.beta[:first].sum() + (1.0 - accuracy) * (slopes @ predictor.mean))
        fitted, reach = self.columns.fitted(predictor.beta, [0] * slopes.size)
        return f"z - {double(level)} - {double(accuracy)} * {fitted}", self.design.response.peak + abs(level) + reach


def _product(left: Scaled, right: Scaled) -> Scaled:
    """The product of two columns."""
    return Scaled(f"{left.sql} * {right.sql}", left.log + right.log)


def _one(engine: SqlEngine) -> Scaled:
    return Scaled(engine.double(1.0))


def _count_below(engine: SqlEngine, value: str, edges: Floats) -> str:
    """How many of the edges lie below a value. On a grid of equal ratios its logarithm tells, up to the last digit of an edge."""
    steps = np.diff(np.log2(edges))
    if not (steps.size and np.ptp(steps) <= 1e-9):
        return _search(engine, value, edges.tolist())
    double, first, last = engine.double, float(edges[0]), float(edges[-1])
    step = (edges.size - 1) / math.log2(last / first)
    between = f"ceil({double(step)} * log2({value} / {double(first)}))"
    inside = f"case when {value} > {double(first)} then {between} else {double(0.0)} end"
    return engine.as_int(f"case when {value} > {double(last)} then {double(edges.size)} else {inside} end")


def _search(engine: SqlEngine, value: str, edges: Sequence[float], first: int = 0) -> str:
    """How many of the edges lie below a value, found by halving."""
    if not edges:
        return str(first)
    middle = len(edges) // 2
    below = _search(engine, value, edges[:middle], first)
    above = _search(engine, value, edges[middle + 1 :], first + middle + 1)
    return f"case when {value} <= {engine.double(edges[middle])} then {below} else {above} end"
