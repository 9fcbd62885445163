"""NOT PRIVATE: ordinary and weighted least squares, the Lahiri-Larsen estimator and Chambers' equation on raw data, for comparison only.

These functions read the data without noise. Their results are printed as not private, and cannot become a Release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.table import Rows
from dplinked.errors import StudyError
from dplinked.linkage import Exact, Linkage, PrivacyUnit
from dplinked.study.build import build_design
from dplinked.study.counting import counted_columns
from dplinked.study.design import Design
from dplinked.study.family import MOST_COUNTS
from dplinked.sums.numpy.prepare import Blocks, PreparedRows, prepare_rows

Floats = NDArray[np.float64]

__all__ = ["NotPrivate", "chambers", "lahiri_larsen", "ols", "wls"]

_ROUNDS, _NEAR, _LONGEST = (
    100,
    1e-10,
    1.0,
)  # of Newton's method: how many, when it has arrived, and how far a step moves η at most


@dataclass(frozen=True)
class NotPrivate:
    """A result computed from raw data without any noise. It must never be published as private.

    Attributes
    ----------
    coef
        Coefficients in the user's units.
    covariance
        Estimated covariance of the coefficients (p×p): that of OLS, or Σ^RL with estimates of β and σ² plugged in.
    """

    method: str
    coef: dict[str, float]
    covariance: Floats

    @property
    def std_err(self) -> dict[str, float]:
        """Standard errors."""
        return dict(zip(self.coef, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    def __str__(self) -> str:
        width = max(map(len, self.coef))
        lines = [f"{self.method}: NOT PRIVATE (computed from raw data, no noise)"]
        lines += [
            f"{name:<{width}}  {value: .6g}  (s.e. {self.std_err[name]:.3g})" for name, value in self.coef.items()
        ]
        return "\n".join(lines)


def ols(data: Any, formula: str, **declared: Any) -> NotPrivate:
    """Ordinary least squares on the linked rows, as if all links were correct. NOT PRIVATE.

    Bounds are optional here. Without them, values are used as they are.
    """
    X, z, names, _ = _matrices(data, formula, Exact(), declared)
    beta = np.linalg.lstsq(X, z, rcond=None)[0]
    residuals = z - X @ beta
    sigma2 = float(residuals @ residuals) / max(1, len(z) - X.shape[1])
    return NotPrivate("OLS", dict(zip(names, beta.tolist(), strict=True)), sigma2 * np.linalg.pinv(X.T @ X))


def wls(
    data: Any,
    formula: str,
    *,
    weights: str | None = None,
    where: str | None = None,
    cluster: str | None = None,
    strata: str | None = None,
    **declared: Any,
) -> NotPrivate:
    """Weighted least squares on the linked rows, as if all links were correct, with standard errors of the survey's design. NOT PRIVATE.

    It is what R's ``svyglm`` computes: the line that rows which count draw, and its covariance by linearisation, ``Σ_h G_h/(G_h - 1) Σ_c (u_c - ū_h)(u_c - ū_h)'`` over the G_h clusters of stratum h, u_c the sum of a cluster's ``ω(1, x)r``.
    Without clusters every row is one; without strata all are one. Rows outside a subgroup count nothing, and are there as clusters. Rows with a missing cell are left out.

    Parameters
    ----------
    weights, where
        As in :func:`dplinked.fit`. Bounds are optional here.
    cluster, strata
        Columns that say which rows were drawn together, and from which stratum.
    """
    X, z, names, prepared = _matrices(data, formula, Exact(), declared, counted=(weights, where))
    known, answered = replace(prepared, dropped=True).whole_present()
    counted = known * answered
    bread = np.linalg.pinv((counted[:, None] * X).T @ X)
    beta = bread @ (X.T @ (counted * z))
    scores = X * (counted * (z - X @ beta))[:, None]
    groups, layers = (_codes(prepared, name, default) for name, default in ((cluster, None), (strata, 0)))
    meat = np.zeros_like(bread)
    for layer in np.unique(layers):
        inside = layers == layer
        _, places = np.unique(groups[inside], return_inverse=True)
        totals = np.stack([np.bincount(places, score) for score in scores[inside].T], axis=1)
        apart = totals - totals.mean(axis=0)
        meat += apart.T @ apart * (len(totals) / max(1, len(totals) - 1))
    return NotPrivate("WLS", dict(zip(names, beta.tolist(), strict=True)), np.asarray(bread @ meat @ bread))


def _codes(prepared: PreparedRows, name: str | None, default: int | None) -> NDArray[np.int32]:
    """Number of each row's key in a column; without one, the `default` of all rows or each row's own number (n)."""
    count = prepared.rows.count
    if name is None:
        return np.arange(count, dtype=np.int32) if default is None else np.full(count, default, np.int32)
    prepared.rows.require([name])
    return replace(prepared, design=replace(prepared.design, cluster=name)).by_cluster().cluster_codes()


def lahiri_larsen(data: Any, formula: str, *, linkage: Linkage, **declared: Any) -> NotPrivate:
    """The estimator ``(W'W)⁻¹W'z`` of Lahiri and Larsen (2005), ``W = QX``, with Σ^RL. NOT PRIVATE."""
    X, z, names, prepared = _matrices(data, formula, linkage, declared)
    W = apply_matching(prepared, X)
    beta = np.asarray(np.linalg.lstsq(W, z, rcond=None)[0], np.float64)
    # E Σ(z - w'β)² = nσ² + β' Σ_i A_i β, and Σ_i A_i = X'X - W'W for a doubly stochastic Q.
    residuals = z - W @ beta
    mismatch = float(beta @ (X.T @ X - W.T @ W) @ beta)
    sigma2 = max(0.0, (float(residuals @ residuals) - mismatch) / max(1, len(z) - X.shape[1]))
    covariance = rl_covariance(prepared, X, beta, sigma2)
    return NotPrivate("Lahiri-Larsen", dict(zip(names, beta.tolist(), strict=True)), covariance)


def chambers(
    data: Any,
    formula: str,
    *,
    linkage: Linkage,
    family: str,
    exposure: str | None = None,
    weights: str | None = None,
    where: str | None = None,
    **declared: Any,
) -> NotPrivate:
    """Logistic or Poisson regression after linkage by the equation of Chambers (2009), ``Σ x_i (z_i - Σ_j q_ij m(x_j'β)) = 0``. NOT PRIVATE.

    With ``linkage=Exact()`` it is that of maximum likelihood, as if all links were correct. The covariance is the sandwich of single rows. Counts are clipped to their
    declared largest, and m is the mean of counts that are. With `weights` or `where`, as in :func:`dplinked.fit`, what a row counts is a factor on its x_i, and rows that lack a regressor count nothing;
    with wrong links it then takes the responses of all rows to follow the line of those that count, which :func:`dplinked.fit` does not.
    """
    X, z, names, prepared = _matrices(data, formula, linkage, declared, family, exposure, (weights, where))
    curve, offset = prepared.design.curve, _exposures(prepared)
    assert curve is not None
    counted = replace(prepared, dropped=True).whole_present()[0] if weights or where else np.ones(len(z))
    beta, own = np.zeros(X.shape[1]), X * counted[:, None]
    if prepared.design.intercept:
        beta[0] = curve.find_eta(float(z.mean())) - float(offset.mean())
    for _ in range(_ROUNDS):
        mean, slope = curve.mean_and_slope(X @ beta + offset)
        residuals = z - apply_matching(prepared, mean[:, None])[:, 0]
        bread = np.linalg.pinv(own.T @ apply_matching(prepared, slope[:, None] * X))
        step = bread @ (own.T @ residuals)
        moved = float(np.abs(X @ step).max())
        beta = beta + step * min(1.0, _LONGEST / max(moved, 1e-300))
        if moved < _NEAR:
            break
    meat = (own * (residuals**2)[:, None]).T @ own
    name = f"Chambers' {family} regression"
    return NotPrivate(name, dict(zip(names, beta.tolist(), strict=True)), np.asarray(bread @ meat @ bread.T))


def _exposures(prepared: PreparedRows) -> Floats:
    """Logarithms of the rows' exposures (n), 0 without one."""
    design, rows = prepared.design, prepared.rows
    found = np.zeros(rows.count)
    if design.exposure is not None:
        pieces = [piece for part in range(rows.parts) for piece in prepared.pieces(part)]
        raw = {name: np.concatenate([piece.raw[name] for piece in pieces]) for name in design.bounds}
        design.exposure.write(design.numbers(raw), {}, found)
    return found


def rl_covariance(prepared: PreparedRows, X: Floats, beta: Floats, sigma2: float) -> Floats:
    """Σ^RL = (W'W)⁻¹ W'Σ_z W (W'W)⁻¹ of [LPK24], with the indices of Lemma 2.1 corrected. It takes time and memory in proportion to the rows, or to the entries of a sparse Q.

    ``Var(z_i) = σ² + Σ_j q_ij f_ij²`` and ``Cov(z_i, z_j) = -Σ_u q_iu q_ju f_iu f_ju`` with
    ``f_iu = (x_u - w_i)'β``, where pairs of links are taken as independent.
    """
    W = apply_matching(prepared, X)
    bread = np.linalg.pinv(W.T @ W)
    return np.asarray(bread @ rl_meat(prepared, X, beta, sigma2) @ bread)


def rl_meat(prepared: PreparedRows, X: Floats, beta: Floats, sigma2: float, weights: Floats | None = None) -> Floats:
    """``W'Σ_z W``, which enters Σ^RL and the paper's Theorem 4.6; with other weights h, ``h'Σ_z h``. NOT PRIVATE."""
    W = apply_matching(prepared, X)
    h = W if weights is None else weights
    fitted, mixed = X @ beta, W @ beta
    meat = sigma2 * h.T @ h
    if prepared.matching is not None:
        meat = meat + _matching_meat(prepared.matching, h, fitted, mixed)
    elif prepared.blocks is not None:
        meat = meat + _block_meat(prepared.blocks, prepared.block_codes(), h, fitted, mixed)
    return np.asarray(meat)


def apply_matching(prepared: PreparedRows, X: Floats) -> Floats:
    """``W = QX``. Under exchangeable errors this is ``w_i = a x_i + o s``, with s the sum over the block, so Q is never built."""
    if prepared.matching is not None:
        return np.asarray(prepared.matching @ X)
    if prepared.blocks is None:
        return X
    blocks, codes = prepared.blocks, prepared.block_codes()
    totals = np.stack([np.bincount(codes, weights=x, minlength=blocks.sizes.size) for x in X.T], axis=1)
    return blocks.a[codes, None] * X + (blocks.o[:, None] * totals)[codes]


def _block_meat(blocks: Blocks, codes: NDArray[np.int32], W: Floats, fitted: Floats, mixed: Floats) -> Floats:
    """W'(Σ_z - σ²I)W, the variance that wrong links add, in one pass over the rows: no block's matrix is built.

    With ``q_iu = o + a δ_iu``, ``F_u`` the fitted values and ``M_i`` the mixed ones, sums over a block are those of ``F`` and ``F²``, and
    ``Σ_i q_iu (F_u - M_i) w_i = o (F_u Σw - Σ M w) + a (F_u - M_u) w_u``.
    """

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(codes, values, blocks.sizes.size)[codes], np.float64)

    a, o, m = (part[codes] for part in (blocks.a, blocks.o, blocks.sizes))
    centre = total(fitted) / m  # differences alone matter, and keep more digits so
    fitted, mixed = fitted - centre, mixed - centre
    apart = fitted - mixed
    squares = total(fitted**2) + m * mixed**2  # Σ_u (F_u - M_i)²
    variance = o * squares + a * apart**2
    own = o**2 * squares + (a**2 + 2.0 * a * o) * apart**2  # Σ_u q_iu² (F_u - M_i)²
    sums, mixed_sums = (np.stack([total(x) for x in part.T], axis=1) for part in (W, mixed[:, None] * W))
    spread = o[:, None] * (fitted[:, None] * sums - mixed_sums) + (a * apart)[:, None] * W
    return np.asarray(W.T @ ((variance + own)[:, None] * W) - spread.T @ spread)


def _matching_meat(Q: Any, W: Floats, fitted: Floats, mixed: Floats) -> Floats:
    """W'(Σ_z - σ²I)W for a sparse Q, by sparse products."""
    import scipy.sparse as sp

    entries = sp.coo_array(Q)
    f = sp.csr_array((entries.data * (fitted[entries.col] - mixed[entries.row]), (entries.row, entries.col)), Q.shape)
    squared = np.asarray(f.multiply(f).sum(axis=1)).ravel()  # Σ_u q_iu² f_iu²
    variance = np.bincount(
        entries.row, entries.data * (fitted[entries.col] - mixed[entries.row]) ** 2, minlength=Q.shape[0]
    )
    spread = f.T @ W
    return np.asarray(W.T @ ((variance + squared)[:, None] * W) - spread.T @ spread)


def _matrices(
    data: Any,
    formula: str,
    linkage: Linkage,
    declared: Mapping[str, Any],
    family: str = "linear",
    exposure: str | None = None,
    counted: tuple[str | None, str | None] = (None, None),
) -> tuple[Floats, Floats, tuple[str, ...], PreparedRows]:
    """X with its intercept, z, the names of X's columns, and the prepared rows."""
    rows = Rows(data)
    if unknown := set(declared) - {"bounds", "levels", "fill"}:
        raise StudyError(f"Unknown arguments {sorted(unknown)}; the baselines take bounds, levels and fill.")
    design = _open_design(rows, formula, declared, family, exposure, *counted).unscaled()
    rows.require(design.variables, numeric=list(design.bounds))
    prepared = prepare_rows(rows, design, linkage, PrivacyUnit())
    x, z = prepared.whole()
    if design.intercept:
        x = np.vstack([np.ones(rows.count), x])
    return x.T, z, design.names, prepared


def _open_design(
    rows: Rows,
    formula: str,
    declared: Mapping[str, Any],
    family: str,
    exposure: str | None,
    weights: str | None = None,
    where: str | None = None,
) -> Design:
    """A design with the declared bounds. Where none are declared it takes those of the data, which is not private."""
    bounds: dict[str, Sequence[float]] = dict(declared.get("bounds") or {})
    levels = dict(declared.get("levels") or {})
    from dplinked.study.formula import parse_formula

    parsed = parse_formula(formula, [name for name in levels if name not in bounds], events=family == "logistic")
    if family == "poisson":
        for name in parsed.response.variables:
            bounds.setdefault(name, (0.0, float(MOST_COUNTS)))
    used = (parsed.response, *(factor for term in parsed.terms for factor in term))
    numeric = [name for factor in used if not factor.categorical for name in factor.variables]
    counted = counted_columns(weights, where, levels)[0]
    for name in [*numeric, *([] if exposure is None else [exposure]), *counted]:
        if name not in bounds:
            rows.require([name], numeric=[name])
            values = rows.numbers(name, 0, rows.count)
            values = values[np.isfinite(values)]
            low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
            bounds[name] = (low, high if high > low else low + 1.0)
    return build_design(formula, bounds, levels, None, declared.get("fill"), family, exposure, weights, where)
