"""The clipped residual equation of right links, from linked rows: each row meets its own response and those of its partners.

See :mod:`dplinked.sums.partners`. Responses are put into circles first; then one pass gives the equation and the squares of its contributions.
The pass before it, which measures residuals, can do on its way what needs no more than it does itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.sums.border import symmetrise
from dplinked.sums.numpy import kernel
from dplinked.sums.numpy.circle import (
    GAP,
    Circle,
    empty_circle,
    keep_circle,
    make_circle,
    responses_alone,
    store_responses,
)
from dplinked.sums.numpy.instrument import complete_sums
from dplinked.sums.numpy.prepare import Piece, PreparedRows, Strip, cut_strips
from dplinked.sums.numpy.reduce import Sums, Totals, merge, sum_strips, sum_tiles
from dplinked.sums.numpy.residuals import MEASURING, begin_counts, instruments_of, shorten
from dplinked.sums.partners import PARTNERS
from dplinked.sums.types import (
    MeatClip,
    Predictor,
    PrivateCounts,
    PrivateMeat,
    PrivateResiduals,
    PrivateSizes,
    PrivateSquares,
    PrivateSums,
    ResidualClip,
    Whitening,
)

Floats = NDArray[np.float64]

_TITLE = "Second stage"
OWN_ROWS = "sums of rows by themselves"  # where they are kept


def right_residuals(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None = None) -> PrivateResiduals:
    """The equation (p), and the squares of its contributions if `meat` asks for them."""
    (vector, squares), totals = _find_terms(data, clip, meat)
    if meat is not None and meat.totalled:
        squares = _square_totals(totals, meat)
    return PrivateResiduals(vector, None if meat is None else symmetrise(squares))


def contribution_sizes(data: PreparedRows, clip: ResidualClip, meat: MeatClip, norms: Floats) -> PrivateSizes:
    """``Σ_c min(‖T_c‖²/K², 1)`` over the totals that `meat` squares, for each norm K; that of `meat` does not count."""
    _, totals = _find_terms(data, clip, meat)
    strips = []
    for _, found in totals.cut():
        squares = np.einsum("ij,ij->j", contributions := found * meat.weights[:, None], contributions)
        strips.append([np.minimum(squares[None, :] / norms[:, None] ** 2, 1.0).sum(axis=1)])
    return PrivateSizes(merge(strips)[0])


def _find_terms(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None) -> tuple[Sums, Totals]:
    """The equation, squares of rows if they are asked for, and totals of blocks or clusters if these are."""
    if meat is not None and meat.clustered:
        data = data.by_cluster()
    return _sum_rows(data, clip, meat) if data.matching is None else _matched(data, clip, meat)


def measure_ahead(data: PreparedRows, predictor: Predictor, edges: Floats) -> PrivateCounts:
    """Histogram of absolute residuals, as :func:`~dplinked.sums.numpy.residuals.residual_counts` has it.

    The same pass sums rows by themselves and, where blocks are fixed, puts responses into circles. Both are kept for what comes next.
    """
    own = data.own_rows(weighted=data.fixed_blocks)
    circle = empty_circle(data) if data.fixed_blocks and data.has_partners else None
    order = None if circle is None else circle.order
    (counts, *sums), totals = sum_tiles(own, lambda: _Ahead(own, predictor, edges, circle), MEASURING, order)
    if circle is not None:
        keep_circle(data, circle)
    data.kept[OWN_ROWS] = data.design, data.blocks, data.dropped, complete_sums(own, sums, totals)
    return PrivateCounts(counts[None, :])


class _Ahead:
    """One thread's tiles: counts of residuals, then the sums of rows by themselves."""

    def __init__(self, own: PreparedRows, predictor: Predictor, edges: Floats, circle: Circle | None) -> None:
        self._counts = begin_counts(own, predictor, edges)
        self._sums = kernel.InstrumentSums(own.design, own.blocks, False, dropped=own.dropped)
        self._responses, self._circle = responses_alone(own), circle
        self.totals = self._sums.totals

    def add(self, tile: Piece) -> Sums:
        """Count and sum a tile, and write its responses into the circle."""
        if self._circle is not None:
            store_responses(self._responses, tile, self._circle)
        return [*self._counts.add(tile), *self._sums.add(tile)]


def known_sums(data: PreparedRows) -> PrivateSums | None:
    """Sums of rows by themselves, weighed as fixed blocks say, if :func:`measure_ahead` found them for the same design, blocks and missing cells."""
    design, blocks, dropped, sums = data.kept.get(OWN_ROWS, (None, None, None, None))
    return sums if design is data.design and blocks is data.blocks and dropped is data.dropped else None


def _sum_rows(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None) -> tuple[Sums, Totals]:
    """The same of rows whose responses are their own or those of a block."""
    circle = make_circle(data) if data.has_partners else None
    order = None if circle is None else circle.order
    if kernel.KERNEL is not None and data.clusters is None:
        first = int(data.design.intercept)
        line = clip.beta[first:], float(clip.beta[:first].sum())
        begin = partial(
            kernel.ResidualSums, data.design, line, clip, meat, data.blocks, circle, data.large, dropped=data.dropped
        )
        (vector, squares), totals = sum_tiles(data, begin, _TITLE, order)
        return [vector, squares + np.triu(squares, 1).T], totals

    def work(strip: Strip) -> tuple[Sums, Floats]:
        terms = _row_terms(data, clip, circle, strip)
        return [np.add.reduce(terms, axis=1), _square_rows(terms, meat)], terms

    width = len(data.design.names) if meat is not None and meat.totalled else 0
    return sum_strips(data, work, width, _TITLE, order)


def _row_terms(data: PreparedRows, clip: ResidualClip, circle: Circle | None, strip: Strip) -> Floats:
    """``(1, h_i)`` times what it is multiplied by, of each row of a strip (p×k)."""
    h, fitted, widths = _row_clips(data, clip, strip.x, strip.known)
    return h * _brackets(data, clip, circle, strip, fitted, widths)


def _brackets(
    data: PreparedRows, clip: ResidualClip, circle: Circle | None, strip: Strip, fitted: Floats, widths: Floats
) -> Floats:
    """What the instruments of each row of a strip are multiplied by (k): what counts of its residuals, times what the row counts."""
    z = strip.z if circle is None else circle.rounded(strip.z)
    brackets = clip.meet(z, fitted, widths, strip.answered)
    if data.blocks is not None and circle is not None:
        o, met = strip.take(data.blocks.o), _meet_partners(circle, strip, clip, fitted, widths)
        brackets = (1.0 - o) * brackets - (1.0 - (strip.take(data.blocks.a) + o)) * met
    if data.blocks is not None and data.blocks.weights is not None:
        brackets *= strip.take(data.blocks.weights)
    return np.asarray(brackets * strip.known, np.float64)


def squared_residuals(data: PreparedRows, clip: ResidualClip) -> PrivateSquares:
    """``Σ B_i`` and ``Σ B_i²``, B_i the bracket of squared residuals of row i."""
    if data.matching is not None:
        C, (x, z), (known, answered) = _unlinking(data), data.whole(), data.whole_present()
        strips = [_matched_brackets(data, clip, C, x, z, known, answered, rows) for rows in cut_strips(z.size)]
        total, squares = merge([[found.sum(), (found * found).sum()] for found in strips])
        return PrivateSquares(float(total), float(squares))
    circle = make_circle(data) if data.has_partners else None

    def work(strip: Strip) -> tuple[Sums, None]:
        _, fitted, widths = _row_clips(data, clip, strip.x, strip.known)
        found = _brackets(data, clip, circle, strip, fitted, widths)
        return [np.add.reduce(found)[None], np.add.reduce(found * found)[None]], None

    (total, squares), _ = sum_strips(data, work, 0, _TITLE, None if circle is None else circle.order)
    return PrivateSquares(float(total[0]), float(squares[0]))


def _row_clips(
    data: PreparedRows, clip: ResidualClip, x: Floats, counted: Floats | float
) -> tuple[Floats, Floats, Floats]:
    """Instruments (p×k), fitted values (k) and widths (k) of rows, which are `counted` as they are told (k)."""
    first = int(data.design.intercept)
    h, fitted = instruments_of(data, x), clip.fit(clip.beta[:first].sum() + clip.beta[first:] @ x)
    if clip.whitening is None:
        return h, fitted, clip.widths(h[first:], counted)
    u, kept = clip.whitening.apply(h)
    u *= kept
    return u, fitted, clip.widths(u, counted)


def _meet_partners(circle: Circle, strip: Strip, clip: ResidualClip, fitted: Floats, widths: Floats) -> Floats:
    """Mean of what counts of each row's residuals with the responses of its partners; 0 in blocks of one (k)."""
    assert strip.codes is not None
    assert strip.slots is not None
    starts = circle.starts[strip.codes]
    sizes, places = circle.starts[strip.codes + 1] - starts, strip.slots - starts
    partners, met = np.minimum(PARTNERS, sizes - 1), np.zeros_like(fitted)
    for lag in range(1, 1 + int(partners.max(initial=0))):
        value = circle.values[starts + (places + lag) % sizes]
        z = np.asarray(circle.middle + circle.unit * value, np.float64)
        met += np.where(lag <= partners, clip.meet(z, fitted, widths, value != GAP), 0.0)
    return np.asarray(met / np.maximum(partners, 1))


def _square_rows(terms: Floats, meat: MeatClip | None) -> Floats:
    """Squares of the contributions of rows, each cut to the norm (p×p); nothing where totals are squared."""
    if meat is None or meat.route != "row":
        return np.zeros((len(terms), len(terms)))
    contributions = terms * meat.weights[:, None]
    shorten(contributions, meat.norm)
    return np.asarray(np.dot(contributions, contributions.T))


def _square_totals(totals: Totals, meat: MeatClip) -> Floats:
    """Squares of the contributions of blocks or clusters, each cut to the norm (p×p)."""
    by_row = MeatClip("row", meat.weights, meat.norm)
    return np.asarray(merge([[_square_rows(found, by_row)] for _, found in totals.cut()])[0])


def whitened_squares(data: PreparedRows, whitening: Whitening) -> PrivateMeat:
    """``Σ c_i u_i u_i'`` of whitened rows (p×p), c what a row counts times the weight of its block; links do not enter."""
    weights = None if data.blocks is None else data.blocks.weights
    if kernel.KERNEL is not None:
        begin = partial(kernel.WhitenedSquares, data.design, whitening, weights, data.dropped)
        (squares,), _ = sum_tiles(data, begin, MEASURING)
        return PrivateMeat(squares + np.triu(squares, 1).T)

    def work(strip: Strip) -> tuple[Sums, None]:
        u, counted = whitening.apply(instruments_of(data, strip.x))
        counted = counted * strip.known
        return [np.dot(u * (counted if weights is None else counted * strip.take(weights)), u.T)], None

    (squares,), _ = sum_strips(data, work, 0, MEASURING)
    return PrivateMeat(symmetrise(squares))


# --- explicit matrices ----------------------------------------------------------------------------------


def _matched(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None) -> tuple[Sums, Totals]:
    """The same under an explicit Q: ``Σ_l C_il ψ_i(z_l - t_i)`` takes the place of brackets."""
    C, (x, z), (known, answered) = _unlinking(data), data.whole(), data.whole_present()
    codes = None if data.clusters is None else data.cluster_codes()

    def work(rows: slice) -> Sums:
        h = _row_clips(data, clip, x[:, rows], known[rows])[0]
        terms = h * _matched_brackets(data, clip, C, x, z, known, answered, rows)
        sums = [np.add.reduce(terms, axis=1), _square_rows(terms, meat)]
        if codes is not None and data.clusters is not None:
            sums.append(np.stack([np.bincount(codes[rows], term, data.clusters.count) for term in terms]))
        return sums

    vector, squares, *totals = merge([work(rows) for rows in cut_strips(z.size)])
    return [vector, squares], Totals(totals)


def _matched_brackets(
    data: PreparedRows,
    clip: ResidualClip,
    C: Any,
    x: Floats,
    z: Floats,
    known: Floats,
    answered: Floats,
    rows: slice,
) -> Floats:
    """The brackets of some rows under an explicit Q."""
    _, fitted, widths = _row_clips(data, clip, x[:, rows], known[rows])
    pairs = C[rows]
    row = np.repeat(np.arange(fitted.size), np.diff(pairs.indptr))
    met = clip.meet(z[pairs.indices], fitted[row], widths[row], answered[pairs.indices])
    return np.asarray(np.bincount(row, pairs.data * met, fitted.size) * known[rows], np.float64)


def _unlinking(data: PreparedRows) -> Any:
    """``C = Σ_{j<k} (I-Q)^j`` (n×n, sparse), kept for later passes."""
    import scipy.sparse as sp

    assert data.terms is not None
    if "C" not in data.kept:
        unit = sp.eye_array(data.matching.shape[0], format="csr")
        C = unit
        for _ in range(data.terms - 1):
            C = unit + C @ (unit - data.matching)
        data.kept["C"] = sp.csr_array(C)
    return data.kept["C"]
