"""The clipped residual equation of right links, from linked rows: each row meets its own response and those of its partners.

See :mod:`dplinked.sums.partners`. Responses are put into circles first; then one pass gives the equation and the squares of its contributions.
The pass before it, which measures residuals, can do on its way what needs no more than it does itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
from dplinked.sums.numpy.counts import moments_of
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
    PrivateStrata,
    PrivateSums,
    ResidualClip,
    Whitening,
)

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

_TITLE = "Second stage"
OWN_ROWS, MOMENTS = "sums of rows by themselves", "how large weights are"  # where they are kept


def right_residuals(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None = None) -> PrivateResiduals:
    """The equation (p), and the squares of its contributions if `meat` asks for them."""
    (vector, squares), totals, strata = _find_terms(data, clip, meat)
    if meat is not None and meat.totalled:
        squares = _square_totals(totals, meat, strata)
    return PrivateResiduals(vector, None if meat is None else symmetrise(squares))


def contribution_sizes(data: PreparedRows, clip: ResidualClip, meat: MeatClip, norms: Floats) -> PrivateSizes:
    """``Σ_c min(‖T_c‖²/K², 1)`` over the totals that `meat` squares, for each norm K; that of `meat` does not count."""
    _, totals, strata = _find_terms(data, clip, meat)
    meat, strips = _of_totals(meat), []
    for places, found in totals.cut():
        contributions = _contributions(found, meat, None if strata is None else strata[places])
        squares = np.einsum("ij,ij->j", contributions, contributions)
        strips.append([np.minimum(squares[None, :] / norms[:, None] ** 2, 1.0).sum(axis=1)])
    return PrivateSizes(merge(strips)[0])


def stratum_totals(data: PreparedRows, clip: ResidualClip, clustered: bool) -> PrivateStrata:
    """The equation of the rows of each stratum, and how many rows each has, or clusters if they are `clustered`."""
    assert data.design.strata is not None
    number = len(data.design.levels[data.design.strata]) + 1

    def total(terms: Floats, strata: Codes) -> Sums:
        listed = [np.bincount(strata, term, number) for term in terms]
        return [np.stack(listed, axis=1), np.bincount(strata, minlength=number)]

    if data.matching is None:
        circle = make_circle(data) if data.has_partners else None

        def work(strip: Strip) -> tuple[Sums, None]:
            assert strip.strata is not None
            return total(_row_terms(data, clip, circle, strip), strip.strata), None

        (totals, numbers), _ = sum_strips(data, work, 0, _TITLE, None if circle is None else circle.order)
    else:
        strata = data.stratum_codes()
        totals, numbers = merge([total(terms, strata[rows]) for rows, terms in _matched_terms(data, clip)])
    if clustered:
        numbers = np.bincount(_strata_of_clusters(data.by_cluster()), minlength=number + 1)[:-1]
    return PrivateStrata(totals, np.asarray(numbers, np.float64))


def _strata_of_clusters(data: PreparedRows) -> Codes:
    """Number of the stratum of each cluster, the first of those that its rows are in; one beyond the last for clusters without rows. Kept for later passes."""
    assert data.clusters is not None
    assert data.design.strata is not None
    place = f"strata {data.design.strata} of {data.clusters.column}"
    if place not in data.kept:
        found = np.full(data.clusters.count, len(data.design.levels[data.design.strata]) + 1, np.int32)

        def work(strip: Strip) -> tuple[Sums, None]:  # one strip at a time, whatever the number of threads
            assert strip.strata is not None
            assert strip.clusters is not None
            np.minimum.at(found, strip.clusters, strip.strata)
            return [], None

        sum_strips(data, work, 0, _TITLE)
        data.kept[place] = found
    return np.asarray(data.kept[place])


def _find_terms(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None) -> tuple[Sums, Totals, Codes | None]:
    """The equation, squares of rows if they are asked for, totals of blocks or clusters if these are, and the strata of clusters if they are centred."""
    if meat is not None and meat.clustered:
        data = data.by_cluster()
    strata = None if meat is None or meat.centres is None or not meat.totalled else _strata_of_clusters(data)
    found = _sum_rows(data, clip, meat) if data.matching is None else _matched(data, clip, meat)
    return *found, strata


def measure_ahead(data: PreparedRows, predictor: Predictor, edges: Floats) -> PrivateCounts:
    """Histogram of absolute residuals, as :func:`~dplinked.sums.numpy.residuals.residual_counts` has it.

    The same pass sums rows by themselves and what they count and, where blocks are fixed, puts responses into circles. All of it is kept for what comes next.
    """
    own = data.own_rows(weighted=data.fixed_blocks)
    circle = empty_circle(data) if data.fixed_blocks and data.has_partners else None
    order = None if circle is None else circle.order
    (counts, moments, *sums), totals = sum_tiles(own, lambda: _Ahead(own, predictor, edges, circle), MEASURING, order)
    if circle is not None:
        keep_circle(data, circle)
    if own.dropped:
        data.kept[MOMENTS] = data.design.counting, moments
    data.kept[OWN_ROWS] = data.design, data.blocks, data.dropped, complete_sums(own, sums, totals)
    return PrivateCounts(counts[None, :])


class _Ahead:
    """One thread's tiles: counts of residuals, then the sums of rows by themselves."""

    def __init__(self, own: PreparedRows, predictor: Predictor, edges: Floats, circle: Circle | None) -> None:
        self._counts = begin_counts(own, predictor, edges)
        self._sums = kernel.InstrumentSums(own.design, own.blocks, False, dropped=own.dropped)
        self._responses, self._circle = responses_alone(own), circle
        self._counter = kernel.RowCounter(own.design) if own.dropped and own.design.counting is not None else None
        self.totals = self._sums.totals

    def add(self, tile: Piece) -> Sums:
        """Count and sum a tile, and write its responses into the circle."""
        if self._circle is not None:
            store_responses(self._responses, tile, self._circle)
        moments = np.zeros(3)
        if self._counter is not None:
            tile = replace(tile, counted=(counted := self._counter.count(tile)))
            moments = merge([[moments_of(counted[rows])] for rows in cut_strips(tile.count)])[0]
        return [*self._counts.add(tile), moments, *self._sums.add(tile)]


def known_sums(data: PreparedRows) -> PrivateSums | None:
    """Sums of rows by themselves, weighed as fixed blocks say, if :func:`measure_ahead` found them for the same design, blocks and missing cells."""
    design, blocks, dropped, sums = data.kept.get(OWN_ROWS, (None, None, None, None))
    return sums if design == data.design and blocks is data.blocks and dropped is data.dropped else None


def known_moments(data: PreparedRows) -> Floats | None:
    """Sums of powers of what rows count, if :func:`measure_ahead` found them."""
    counting, moments = data.kept.get(MOMENTS, (None, None))
    return moments if data.dropped and counting == data.design.counting else None


def _sum_rows(data: PreparedRows, clip: ResidualClip, meat: MeatClip | None) -> tuple[Sums, Totals]:
    """The same of rows whose responses are their own or those of a block."""
    circle = make_circle(data) if data.has_partners else None
    order = None if circle is None else circle.order
    centred = meat is not None and meat.centres is not None
    if kernel.KERNEL is not None and data.clusters is None and not centred:
        first = int(data.design.intercept)
        line = clip.beta[first:], float(clip.beta[:first].sum())
        begin = partial(
            kernel.ResidualSums, data.design, line, clip, meat, data.blocks, circle, data.large, dropped=data.dropped
        )
        (vector, squares), totals = sum_tiles(data, begin, _TITLE, order)
        return [vector, squares + np.triu(squares, 1).T], totals

    def work(strip: Strip) -> tuple[Sums, Floats]:
        terms = _row_terms(data, clip, circle, strip)
        return [np.add.reduce(terms, axis=1), _square_rows(terms, meat, strip.strata)], terms

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


def _contributions(terms: Floats, meat: MeatClip, strata: Codes | None) -> Floats:
    """Terms of rows, or totals of them, times their weights, and around the centre of their stratum if there are strata (p×k)."""
    weighted = terms * meat.weights[:, None]
    if meat.centres is None:
        return np.asarray(weighted, np.float64)
    assert strata is not None
    return meat.centres.take(weighted, strata)


def _square_rows(terms: Floats, meat: MeatClip | None, strata: Codes | None = None) -> Floats:
    """Squares of the contributions of rows, each cut to the norm (p×p); nothing where totals are squared."""
    if meat is None or meat.route != "row":
        return np.zeros((len(terms), len(terms)))
    contributions = _contributions(terms, meat, strata)
    shorten(contributions, meat.norm)
    return np.asarray(np.dot(contributions, contributions.T))


def _square_totals(totals: Totals, meat: MeatClip, strata: Codes | None) -> Floats:
    """Squares of the contributions of blocks or clusters, each cut to the norm (p×p)."""
    meat = replace(_of_totals(meat), route="row")
    listed = ((found, None if strata is None else strata[places]) for places, found in totals.cut())
    return np.asarray(merge([[_square_rows(found, meat, of)] for found, of in listed])[0])


def _of_totals(meat: MeatClip) -> MeatClip:
    """The same for totals, some of which may have no rows."""
    return meat if meat.centres is None else replace(meat, centres=meat.centres.beyond())


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
    codes = None if data.clusters is None else data.cluster_codes()
    strata = None if meat is None or meat.centres is None else data.stratum_codes()

    def work(rows: slice, terms: Floats) -> Sums:
        sums = [np.add.reduce(terms, axis=1), _square_rows(terms, meat, None if strata is None else strata[rows])]
        if codes is not None and data.clusters is not None:
            sums.append(np.stack([np.bincount(codes[rows], term, data.clusters.count) for term in terms]))
        return sums

    vector, squares, *totals = merge([work(*found) for found in _matched_terms(data, clip)])
    return [vector, squares], Totals(totals)


def _matched_terms(data: PreparedRows, clip: ResidualClip) -> Iterator[tuple[slice, Floats]]:
    """The terms of rows under an explicit Q (p×k), a strip at a time."""
    C, (x, z), (known, answered) = _unlinking(data), data.whole(), data.whole_present()
    for rows in cut_strips(z.size):
        h = _row_clips(data, clip, x[:, rows], known[rows])[0]
        yield rows, np.asarray(h * _matched_brackets(data, clip, C, x, z, known, answered, rows), np.float64)


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
