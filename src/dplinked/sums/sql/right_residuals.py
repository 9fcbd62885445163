"""The clipped residual equation of right links by SQL: each row meets its own response and those of its partners.

See :mod:`dplinked.sums.partners`. Where every row keeps its block and blocks are small, all other rows of a block are partners: a row is joined
with the list of its block's responses. Elsewhere every row draws a random number, which depends on no cell, and the rows of a block stand in a circle
in the order of these numbers. To order them costs more than all else, so it is done once: rows are kept beside the responses of their partners, y1, y2, …,
and later passes over the same rows meet the same partners. Windows are lines, not circles: behind the last row of a block come its first ones.

Residuals are clipped by comparing the response with the ends between which it is near the line t, ``t ± NEAR·w``. With u = 2⁻⁵³, rounding these ends
and the residual adds at most ``4u(|z| + |t|)`` to a residual that is near; twice the largest that this can be is taken off from NEAR·w beforehand, so that
none exceeds its clip w. The mean over partners adds up to 16 of them by fewer than 40 roundings, for which
:func:`dplinked.sums.rounding.rounding_bound` has room.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError
from dplinked.sums.partners import NEAR, PARTNERS
from dplinked.sums.rounding import UNIT_ROUNDOFF
from dplinked.sums.sql.blocks import BlockTable, LinkTable, OneBlock, total_columns
from dplinked.sums.sql.columns import MISSING, DesignColumns
from dplinked.sums.sql.curve import follow_curve
from dplinked.sums.sql.dialect import SqlEngine, with_columns
from dplinked.sums.sql.exact_sums import CHANGED, ExactSums, Scaled, exact_total, log2_ceiling, shorten
from dplinked.sums.sql.pairs import LARGEST_ROW, PairTable
from dplinked.sums.types import (
    Centres,
    MeatClip,
    PrivateMeat,
    PrivateResiduals,
    PrivateSizes,
    PrivateSquares,
    PrivateStrata,
    ResidualClip,
    Whitening,
)

Floats = NDArray[np.float64]

WHOLE = 1 + PARTNERS  # rows of the largest block up to which all others of a block are partners, as in NumPy


def right_residuals(
    columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip, meat: MeatClip | None = None
) -> PrivateResiduals:
    """The equation (p), and the squares of its contributions if `meat` asks for them, by one statement."""
    if meat is not None and meat.route == "block" and isinstance(link_table, OneBlock):
        vector = right_residuals(columns, link_table, count, clip).vector
        return PrivateResiduals(vector, square(meat.weights * vector, meat.norm))
    engine, (query, terms, largest) = columns.engine, _find_terms(columns, link_table, count, clip, meat)
    sums, p = ExactSums(engine, count), len(terms)
    for term in terms:
        sums.add(term)
    if meat is not None:
        query, weighted = _contributions(engine, query, terms, largest, meat)
        query, cut = shorten(engine, query, weighted, meat.norm, ", ".join(["m", *(term.sql for term in terms)]))
        sums.add_matrix(cut, cut, symmetric=True)
    found = sums.fetch(query, count, "m", "sum")
    return PrivateResiduals(found.take(p), None if meat is None else found.matrix(p, p, symmetric=True))


def contribution_sizes(
    columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip, meat: MeatClip, norms: Floats
) -> PrivateSizes:
    """``Σ_c min(‖T_c‖²/K², 1)`` over the totals that `meat` squares, for each norm K; that of `meat` does not count."""
    engine, double = columns.engine, columns.engine.double
    query, terms, largest = _find_terms(columns, link_table, count, clip, meat)
    query, weighted = _contributions(engine, query, terms, largest, meat)
    top = max(term.log for term in weighted)
    shorter = (f"{double(math.ldexp(1.0, term.log - top))} * {term.sql}" for term in weighted)
    squares = " + ".join(f"y{i} * y{i}" for i in range(len(weighted)))
    listed = ", ".join(f"{text} as y{i}" for i, text in enumerate(shorter))
    query = f"select m, {squares} as square from (select m, {listed} from ({query}) totals) totals"
    sums, one = ExactSums(engine, count), double(1.0)
    for norm in norms.tolist():
        sums.add(Scaled(f"least({double(math.ldexp(1.0 / norm, top) ** 2)} * square, {one})"))
    return PrivateSizes(sums.fetch(query, count, "m", "sum").take(norms.size))


def stratum_totals(
    columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip, clustered: bool
) -> PrivateStrata:
    """The equation of the rows of each stratum, and how many rows each has, or clusters if they are `clustered`."""
    assert columns.design.strata is not None
    engine, number = columns.engine, len(columns.design.levels[columns.design.strata]) + 1
    query, terms = _row_terms(columns, link_table, count, clip)
    found = total_strata(engine, query, terms, count, number)
    if clustered:
        numbers = np.zeros(number)
        first = f"select min(s) as s from ({columns.rows(link_table.key)}) cells group by c"
        for s, counted in engine.fetch(f"select s, count(*) from ({first}) clusters group by s"):
            numbers[int(s)] = int(counted)
        found = PrivateStrata(found.totals, numbers)
    return found


def total_strata(engine: SqlEngine, query: str, terms: list[Scaled], count: int, number: int) -> PrivateStrata:
    """Totals of terms of rows, and numbers of rows, of so many strata s."""
    sums, totals, numbers = ExactSums(engine, count), np.zeros((number, len(terms))), np.zeros(number)
    for term in terms:
        sums.add(term)
    counted = f"count({terms[0].sql})"
    for s, found, *listed in engine.fetch(f"select s, {counted}{sums.selected()} from ({query}) terms group by s"):
        totals[int(s)], numbers[int(s)] = sums.read(listed).take(len(terms)), int(found)
    if numbers.sum() != count:
        raise ReleaseError(CHANGED)
    return PrivateStrata(totals, numbers)


def squared_residuals(columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip) -> PrivateSquares:
    """``Σ B_i`` and ``Σ B_i²``, B_i the bracket of squared residuals of row i."""
    query, (term,) = _row_terms(columns, link_table, count, clip)
    sums = ExactSums(columns.engine, count)
    sums.add(term)
    sums.add(term, term)
    total, squares = sums.fetch(query, count, term.sql).take(2).tolist()
    return PrivateSquares(total, squares)


def _find_terms(
    columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip, meat: MeatClip | None
) -> tuple[str, list[Scaled], int]:
    """Query of the contributions of rows, blocks or clusters with their numbers of rows m; the contributions, and the most rows that one is made of."""
    query, terms = _row_terms(columns, link_table, count, clip)
    engine = columns.engine
    if meat is None or not meat.totalled:
        found = f"case when {terms[0].sql} is null then 0 else 1 end as m"
        kept = [found, *(term.sql for term in terms), *(["s"] if columns.design.strata is not None else [])]
        return f"select {', '.join(kept)} from ({query}) terms", terms, 1
    if meat.clustered:
        totals, (terms,) = total_columns(engine, count, terms)
        first = "" if columns.design.strata is None else ", min(s) as s"
        return f"select count(*) as m{first}{totals} from ({query}) terms group by c", terms, count
    assert isinstance(link_table, BlockTable)
    totals, (terms,) = total_columns(engine, link_table.largest, terms)
    return link_table.total(query, totals), terms, link_table.largest


def square(contribution: Floats, norm: float) -> Floats:
    """The square of a single contribution, which is cut to the norm (p×p)."""
    cut = contribution * (norm / max(math.hypot(*contribution) * (1.0 + 1e-12), norm))
    return np.outer(cut, cut)


def _contributions(
    engine: SqlEngine, query: str, terms: list[Scaled], largest: int, meat: MeatClip
) -> tuple[str, list[Scaled]]:
    """The query, and its terms times their weights, around the centre of their stratum if there are strata."""
    weighted = [_times(engine, term, weight, largest) for term, weight in zip(terms, meat.weights, strict=True)]
    return (query, weighted) if meat.centres is None else centred(engine, query, weighted, meat.centres)


def centred(engine: SqlEngine, query: str, terms: list[Scaled], centres: Centres) -> tuple[str, list[Scaled]]:
    """The query with terms around the centres of strata s, times their factors, and these."""
    listed, found = [], []
    for i, (term, middles) in enumerate(zip(terms, centres.middles.T.tolist(), strict=True)):
        log = max(term.log, log2_ceiling(max(map(abs, middles)))) + 1 + log2_ceiling(centres.stretch)
        middle = _by_stratum(engine, [math.ldexp(value, -log) for value in middles])
        factor = _by_stratum(engine, centres.factors.tolist())
        listed.append(f"{factor} * ({engine.double(math.ldexp(1.0, term.log - log))} * {term.sql} - {middle}) as d{i}")
        found.append(Scaled(f"d{i}", log))
    return f"select totals.*, {', '.join(listed)} from ({query}) totals", found


def _by_stratum(engine: SqlEngine, values: list[float]) -> str:
    """The number among these that a row's stratum has."""
    cases = "".join(f" when {s} then {engine.double(value)}" for s, value in enumerate(values[:-1]))
    return f"case s{cases} else {engine.double(values[-1])} end"


def _times(engine: SqlEngine, term: Scaled, weight: float, largest: int) -> Scaled:
    """A term of at most `largest` times a weight."""
    log = log2_ceiling(weight) + log2_ceiling(largest)
    return Scaled(f"{engine.double(math.ldexp(weight, -log))} * {term.sql}", term.log + log)


# --- rows -----------------------------------------------------------------------------------------------


def _row_terms(
    columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip
) -> tuple[str, list[Scaled]]:
    """Query of the keys and of ``(1, h_i)`` times the bracket of each row, and these terms."""
    rows, unit = columns.rows(link_table.key), columns.z.log
    most = 2.0  # a bracket is at most so many times its row's clip
    largest = 1.0 if clip.curve is None else float(clip.curve.largest)  # residual that counts whole
    match link_table:
        case PairTable():
            # What a row counts comes later, and rows that count little are clipped as far out as any.
            reach = columns.widest(clip) if columns.design.counting is None else clip.widest
            reach = clip.limit**2 / 2.0**unit if clip.squared else reach
            widest, most = math.ldexp(largest * reach, -unit), LARGEST_ROW
            query = _meet_pairs(columns, link_table, clip, _clipped_rows(columns, rows, clip), widest)
        case OneBlock(o=0.0):
            query = (
                f"select cells.*, {_clipped(columns, clip, 'z')} as u from ({_clipped_rows(columns, rows, clip)}) cells"
            )
        case BlockTable(fixed=True, largest=size) if size <= WHOLE:
            query = _meet_block(columns, link_table, clip, _clipped_rows(columns, rows, clip))
        case OneBlock() | BlockTable():
            circles = _place_in_circles(columns, link_table, count)
            query = _meet_circle(columns, clip, _clipped_rows(columns, circles, clip), link_table.partners)
    weight = link_table.weight if isinstance(link_table, OneBlock) else 1.0  # brackets have that of a table's blocks
    whitened = None if clip.whitening is None else _whitened(clip.whitening)
    bracket = "u" + "".join(f" * {known.sql}" for known in columns.known)
    if clip.squared:
        log = log2_ceiling(most * clip.limit**2)
        listed = f"{columns.engine.double(math.ldexp(weight, 2 * unit - log))} * {bracket} as t0"
        return f"select {', '.join(columns.keys_listed)}, {listed} from ({query}) brackets", [Scaled("t0", log)]
    terms, listed = columns.terms(clip, bracket, most * largest, unit=unit, weight=weight, instruments=whitened)
    return f"select {', '.join(columns.keys_listed)}, {listed} from ({query}) brackets", terms


def _clipped_rows(columns: DesignColumns, cells: str, clip: ResidualClip) -> str:
    """Query of rows with their instruments, the line t, the clip w, and the ends low and high between which residuals are not clipped.

    These are in units of z. Along a curve t is its mean, and w is what the instruments are multiplied by.
    """
    double, rows, unit, whitened = columns.engine.double, columns.add_instruments(cells), columns.z.log, None
    if clip.squared:
        ends = f"{columns.line(clip.beta, unit)[0]} as t", f"{double(math.ldexp(clip.limit, -unit))} as w"
        return with_columns(cells, *ends)
    if clip.whitening is not None:
        rows, whitened = _whiten(columns, rows, clip.whitening), _whitened(clip.whitening)
    if clip.curve is not None:
        (line, _), width = columns.line(clip.beta), columns.width(clip, instruments=whitened)
        rows = follow_curve(columns.engine, clip.curve, with_columns(rows, f"{line} as line", f"{width} as w"))
        return with_columns(rows, f"{double(math.ldexp(1.0, -unit))} * mean as t")
    (line, reach), width = columns.line(clip.beta, unit), columns.width(clip, unit, whitened)
    near = f"greatest({double(NEAR)} * w - {double(8.0 * UNIT_ROUNDOFF * (1.0 + reach))}, {double(0.0)})"
    rows = with_columns(with_columns(rows, f"{line} as t", f"{width} as w"), f"{near} as near")
    high = "t + near"
    if columns.dropped:  # no missing response is near the line, wherever that is; all others are at most 1
        most = double(MISSING / 2.0)
        high = f"case when t + near < {most} then t + near else {most} end"
    return with_columns(rows, "t - near as low", f"{high} as high")


def _whiten(columns: DesignColumns, cells: str, whitening: Whitening) -> str:
    """Query of rows with their whitened instruments e0, e1, …, times what the row counts; see :meth:`Whitening.apply`."""
    double, found = columns.engine.double, columns.whitened(whitening.matrix)
    top, own = max(u.log for u in found), log2_ceiling(whitening.norm)
    limit = double(math.ldexp(whitening.norm, -top) ** 2)
    listed = "".join(f", {double(math.ldexp(1.0, u.log - top))} * {u.sql} as s{i}" for i, u in enumerate(found))
    square = " + ".join(f"s{i} * s{i}" for i in range(len(found)))
    counted = f"{limit} / greatest(({square}) * {double((1.0 + 1e-12) ** 2)}, {limit}) as counted"
    rows = f"select cells.*, {counted} from (select cells.*{listed} from ({cells}) cells) cells"
    factor = double(math.ldexp(1.0, top - own))
    return f"select cells.*{''.join(f', {factor} * s{i} * counted as e{i}' for i in range(len(found)))} from ({rows}) cells"


def _whitened(whitening: Whitening) -> list[Scaled]:
    """Columns of :func:`_whiten`, which are no longer than the norm."""
    return [Scaled(f"e{i}", log2_ceiling(whitening.norm)) for i in range(len(whitening.matrix))]


def whitened_squares(columns: DesignColumns, link_table: LinkTable, count: int, whitening: Whitening) -> PrivateMeat:
    """``Σ c_i u_i u_i'`` of whitened rows (p×p), c what a row counts times the weight of its block; links do not enter."""
    engine, rows, weight = columns.engine, columns.rows(link_table.key, instruments=True), columns.known
    if isinstance(link_table, BlockTable) and link_table.weighed:
        rows = link_table.join_columns(rows, *(column.sql for column in link_table.weight))
        weight = [*link_table.weight, *weight]
    kept = ", ".join(column.sql for column in weight) or "1 as one"
    query, u = shorten(engine, rows, columns.whitened(whitening.matrix), whitening.norm, kept)
    sums, p = ExactSums(engine, count), len(u)
    sums.add_matrix(u, u, *weight, symmetric=True)
    factor = link_table.weight if isinstance(link_table, OneBlock) else 1.0
    found = sums.fetch(query, count, weight[0].sql if weight else "*")
    return PrivateMeat(factor * found.matrix(p, p, symmetric=True))


# --- what rows meet -------------------------------------------------------------------------------------


def _clipped(columns: DesignColumns, clip: ResidualClip, response: str) -> str:
    """ψ, the clipped residual of a row with a response, or along a curve the part of it that counts; 0 for none.

    If the response is missing and dropped, it is 0, or what the curve's mean would count. What is most often so comes first, since engines go on with the other rows alone.
    """
    double, zero = columns.engine.double, columns.engine.double(0.0)
    gap = f" when {columns.is_missing(response)} then {zero}" if columns.dropped else ""
    if clip.squared:
        square = f"({response} - t) * ({response} - t)"
        return f"case{gap} when {square} < w * w then {square} when {response} is null then {zero} else w * w end"
    if clip.curve is not None:
        level = "t" if clip.around is None else double(math.ldexp(clip.around, -columns.z.log))
        gap = gap if clip.around is None or not gap else f" when {columns.is_missing(response)} then w * (t - {level})"
        return f"case{gap} when {response} is null then {zero} else w * ({response} - {level}) end"
    ends = f"when {response} < low then - w when {response} > high then w"
    return f"case when {response} between low and high then {response} - t{gap} {ends} else {zero} end"


def _brackets(columns: DesignColumns, clip: ResidualClip, rows: str, met: str) -> str:
    """Rows with their brackets, from the weights of what they meet and the sum over partners."""
    return with_columns(rows, f"own * ({_clipped(columns, clip, 'z')}) - others * ({met}) as u")


def _weights(engine: SqlEngine, partners: str, weighed: bool) -> str:
    """What a row's own residual counts, ``1-o``, and what those with its partners' responses do, ``(1-γ)/partners``, both times v."""
    one, v = engine.double(1.0), "v * " if weighed else ""
    return f"{v}({one} - o) as own, {v}({one} - (a + o)) / {partners} as others"


def _meet_block(columns: DesignColumns, table: BlockTable, clip: ResidualClip, rows: str) -> str:
    """Rows with their brackets, all other rows of their block being partners."""
    engine, key = columns.engine, table.own_key
    lists = table.total(columns.rows(table.key), f", {engine.gathered('z')} as zs")
    placed = rows if table.keys is None else table.join_columns(rows, "g")
    weights = _weights(engine, "greatest(m - 1, 1)", table.weighed)
    joined = (
        f"select cells.*, b.zs, {weights} from ({placed}) cells join ({lists}) b on cells.{key} {table.same} b.{key}"
    )
    partners = f"{engine.added('zs', _clipped(columns, clip, 'q'))} - ({_clipped(columns, clip, 'z')})"
    return _brackets(columns, clip, joined, partners)


# --- circles --------------------------------------------------------------------------------------------


def _place_in_circles(columns: DesignColumns, table: OneBlock | BlockTable, count: int) -> str:
    """Query of kept rows, each beside the responses of its partners, y1, y2, …, null where a block has fewer, and the weights of what it meets."""
    engine, partners = columns.engine, table.partners
    listed = [*columns.keys_listed, "z", *(x.sql for x in (*columns.x, *columns.known))]
    circles = 1 if engine.circle is None else count // engine.circle
    rows, circle = table.cut_circles(engine, columns.rows(table.key), circles)
    weights = _weights(engine, f"least({partners}, greatest(m - 1, 1))", table.weighed)

    def weigh(cells: str) -> str:
        return with_columns(table.join_weights(engine, cells, count), weights)

    return table.circles.place(engine, rows, circle, listed, partners, weigh)


def _meet_circle(columns: DesignColumns, clip: ResidualClip, rows: str, partners: int) -> str:
    """Rows with their brackets, the next rows of their circle being partners."""
    return _brackets(
        columns, clip, rows, " + ".join(_clipped(columns, clip, f"y{lag}") for lag in range(1, 1 + partners))
    )


def _meet_pairs(columns: DesignColumns, table: PairTable, clip: ResidualClip, rows: str, widest: float) -> str:
    """Rows with their brackets under an explicit matrix, ``Σ_l C_il ψ_i(z_l)``; no ψ is larger than `widest`."""
    engine, log = columns.engine, log2_ceiling(widest)
    term = f"{engine.double(math.ldexp(1.0 / LARGEST_ROW, -log))} * c * ({_clipped(columns, clip, 'y')})"
    ends = ", ".join(
        f"cells.{name}" for name in ("t", "w", *(() if clip.squared or clip.curve is not None else ("low", "high")))
    )
    pairs = (
        f"select p.i, p.c, {ends}, partners.z as y from {table.unlink(engine).name} p "
        f"join ({rows}) cells on p.i = cells.k join ({columns.rows(table.key)}) partners on p.j = partners.k"
    )
    total = f"{engine.double(math.ldexp(LARGEST_ROW, log))} * ({exact_total(engine, term, 1)})"
    brackets = f"select i, {total} as u from ({pairs}) pairs group by i"
    return f"select cells.*, met.u from ({rows}) cells join ({brackets}) met on cells.k = met.i"
