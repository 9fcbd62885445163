"""Sums along a curve by SQL: the outcome's expected equation, and its slope, of rows by themselves. No response is read.

Means and slopes are those of :class:`dplinked.study.family.Curve`. η is clipped before anything is computed from it, so that nothing overflows. For counts one polynomial
tells both: with ``λ = e^η`` and ``G = P(Y < L) = e^-λ Σ_{k<L} λ^k/k!``,

    E min(Y, L) = L - Σ_{k<L} (L-k) P(Y = k) = L - (L-λ) G - λ P(Y = L-1),    and its slope is λG.

Terms of G are written as ``(R^k/k!) (λ/R)^k``, R the largest λ: powers are at most 1, and coefficients at most e^R, where R is 640 at most. All terms are positive. Horner's
rule adds them by pieces of some √L, so that no statement is nested deeply. With u = 2⁻⁵³, G is off by at most ``(4L + 2R)u`` of itself and ``λ P(Y = L-1)`` by ``8L(1 + log R)u``.

A row's mean is a function of its regressors alone, so that its rounding is the same for neighbours that share them. Sums are exact on their grids
(:mod:`dplinked.sums.sql.exact_sums`), whose unit is at most eight times what a term can be: :func:`dplinked.sums.rounding.rounding_bound` has room for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dplinked.study.family import LEAST_ETA, Curve
from dplinked.sums.sql.blocks import BlockTable, LinkTable, OneBlock
from dplinked.sums.sql.columns import DesignColumns
from dplinked.sums.sql.dialect import SqlEngine, with_columns
from dplinked.sums.sql.exact_sums import ExactSums, Scaled, log2_ceiling
from dplinked.sums.types import PrivateSums, ResidualClip


def curve_sums(
    columns: DesignColumns, link_table: LinkTable, count: int, clip: ResidualClip, level: float
) -> PrivateSums:
    """``Σ w a s m' (1, h)(1, x)'`` (p×p) and ``Σ w a s (1, h)(m - level)`` (p), m the curve's mean at the line and m' its slope, by one statement."""
    engine, curve = columns.engine, clip.curve
    assert curve is not None
    assert clip.whitening is None
    (line, _), width = columns.line(clip.beta), columns.width(clip)
    rows = columns.rows(link_table.key, instruments=True)
    query, weights = follow_curve(engine, curve, with_columns(rows, f"{line} as line", f"{width} as w")), list[str]()
    if isinstance(link_table, BlockTable):
        weights = [*(["a"] if link_table.linked else []), *(column.sql for column in link_table.weight)]
        query = link_table.join_columns(query, *weights)
    whole = link_table.a * link_table.weight if isinstance(link_table, OneBlock) else 1.0
    known = [column.sql for column in columns.known]
    short, listed = columns.terms(clip, " * ".join([*weights, *known, "w"]), weight=whole)
    rise, reach = log2_ceiling(curve.steepest), log2_ceiling(max(abs(level), abs(curve.largest - level)))
    steep = f"{engine.double(math.ldexp(1.0, -rise))} * slope as steep"
    away = f"{engine.double(math.ldexp(1.0, -reach))} * (mean - {engine.double(level)}) as away"
    sums, x = ExactSums(engine, count), [*columns.ones, *columns.x]
    kept = [i for i, h in enumerate(columns.instruments) if h != columns.none]
    sums.add_matrix([short[i] for i in kept], x, Scaled("steep", rise))
    for i in kept:
        sums.add(short[i], Scaled("away", reach))
    found = sums.fetch(with_columns(query, steep, away, listed), count, weights[0] if weights else "*")
    matrix, vector = np.zeros((len(x), len(x))), np.zeros(len(x))
    matrix[kept], vector[kept] = found.matrix(len(kept), len(x)), found.take(len(kept))
    return PrivateSums(matrix, vector, count)


def follow_curve(engine: SqlEngine, curve: Curve, rows: str) -> str:
    """Query of rows that have a column `line`, with the curve's `mean` there and its `slope`."""
    one = engine.double(1.0)
    rows = with_columns(rows, f"{_cut(engine, 'line', LEAST_ETA, curve.highest)} as eta")
    if curve.counts:
        rows, mean, slope = _count(engine, curve, rows)
    else:
        rows, mean, slope = (
            with_columns(rows, f"{one} / ({one} + exp(- eta)) as share"),
            "share",
            f"share * ({one} - share)",
        )
    rows = with_columns(rows, f"{mean} as raw_mean", f"{slope} as raw_slope")
    return with_columns(
        rows,
        f"{_cut(engine, 'raw_mean', 0.0, float(curve.largest))} as mean",
        f"{_cut(engine, 'raw_slope', 0.0, curve.steepest)} as slope",
    )


def _count(engine: SqlEngine, curve: Curve, rows: str) -> tuple[str, str, str]:
    """Rows with what the mean of a clipped count and its slope are made of, and these two."""
    double, most = engine.double, curve.largest
    highest, piece = math.exp(curve.highest), math.isqrt(most - 1) + 1
    coefficients = [double(c) for c in accumulate(range(1, most), lambda c, k: c * highest / k, initial=1.0)]
    pieces = [_horner(coefficients[first : first + piece], "share") for first in range(0, most, piece)]
    rows = with_columns(with_columns(rows, "exp(eta) as rate"), f"{double(1.0 / highest)} * rate as share")
    rows = with_columns(rows, f"{' * '.join(['share'] * piece)} as power")
    rows = with_columns(rows, f"exp(- rate) * {_horner(pieces, 'power')} as below")
    last = f"exp({double(most)} * eta - rate - {double(math.lgamma(most))})"
    return rows, f"{double(most)} - ({double(most)} - rate) * below - {last}", "rate * below"


def _horner(terms: Sequence[str], variable: str) -> str:
    """The polynomial of these coefficients, that of the constant first."""
    *rest, text = terms
    for term in reversed(rest):
        text = f"({term} + {variable} * {text})"
    return text


def _cut(engine: SqlEngine, value: str, low: float, high: float) -> str:
    """A column within two ends."""
    least, most = engine.double(low), engine.double(high)
    return f"case when {value} < {least} then {least} when {value} > {most} then {most} else {value} end"
