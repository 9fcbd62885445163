"""How far one person can move each released quantity: l2 sensitivities, with their proofs.

Throughout, neighbours have the same number of rows. One person's regressors (row j) and response may
change; their response sits on some row p, which is j itself only for an exact join. ``R`` bounds
``|z|``, ``E`` the norm of a row of regressors (without the intercept's 1), ``h`` the norm of a row of
instruments. :class:`~dplinked.linkage.LinkageExposure` says what else may change: the matching matrix
by M in entrywise l1 norm, and k further rows' responses. No argument may come from the data.
"""

from __future__ import annotations

import math

from dplinked.linkage import LinkageExposure

# --- the bounded instrument: b = h'z and H = h'QX --------------------------------------------------


def response_total_sensitivity(R: float, links: LinkageExposure) -> float:
    """Sensitivity of ``Σ z_i``, the intercept's entry of b.

    Proof. One row's response (row p) changes by at most 2R, and so does that of every row linked anew: the
    displaced ones, row j itself where there are such, and further carriers of the person's response. (If links are one to one the sum stays that of all
    responses, and 2R would do; this does not rely on it.)
    """
    return 2.0 * R * (1 + links.relinked)


def instrument_response_sensitivity(R: float, h: float, links: LinkageExposure) -> float:
    """Sensitivity of ``Σ h_i z_i``.

    Proof. Row j goes from ``h z`` to ``h' z'``, each of norm at most hR, whether its response changes or not:
    2hR, which is all for an exact join. Otherwise row p's response changes under an instrument that stays,
    ``‖h_p (z' - z)‖ ≤ 2hR``; j = p is the exact case and smaller. Each displaced link changes one more row's
    response: 2hR, and so does each further row that carries the person's (one-to-many links). Q does not enter.
    """
    own = 2.0 if links.exact else 2.0 + 2.0 * links.carriers
    return h * R * (own + 2.0 * links.displaced)


def instrument_total_sensitivity(h: float) -> float:
    """Sensitivity of ``Σ h_i``, the intercept's column of H.

    Proof. ``h'Q1 = h'1`` since rows of Q sum to one; only row j's instrument changes, by at most 2h.
    """
    return 2.0 * h


def regressor_total_sensitivity(E: float, links: LinkageExposure) -> float:
    """Sensitivity of ``1'QX``, the intercept's row of H.

    Proof. ``1'QX = Σ_j s_j x_j`` with s the column sums of Q. Doubly stochastic: s = 1 for both
    neighbours whatever happens to Q, and only x_j changes, by at most 2E. With column sums up to S the
    change of x_j weighs S, and a change of Q by M in l1 adds at most ME.
    """
    if links.column_sum == 1.0:
        return 2.0 * E
    return 2.0 * E * links.column_sum + links.matrix_change * E


def instrument_matrix_sensitivity(h: float, E: float, links: LinkageExposure) -> float:
    """Frobenius sensitivity of the core of ``H = h'QX``.

    Proof. Let Q stay first. Only row j's (h_j, x_j) change, from (s, t) to (s', t') in units of h and E. With
    ``γ = q_jj`` and ``(1-γ)û``, ``(1-γ)v̂`` the weighted means of the other rows' instruments and regressors
    (‖û‖, ‖v̂‖ ≤ 1, doubly stochastic), the change is ``γA + (1-γ)B`` with ``A = s't'ᵀ - stᵀ`` and
    ``B = û(t'-t)ᵀ + (s'-s)v̂ᵀ``. Its norm is convex in γ, at most 4 at γ = 0 and 2 at γ = 1. At γ = 1/2 twice
    the change is ``2[a(v̂+l)ᵀ + (û+m)bᵀ]`` with ``a, m = (s'∓s)/2`` and ``b, l = (t'∓t)/2``; all points may be taken on
    spheres (the expression is affine in each), so a⊥m, b⊥l, and its square is at most ``16(1-‖m‖²‖l‖²)`` by
    ``2(a·û)(b·v̂) ≤ ‖a‖²v₁² + ‖b‖²u₁²`` and ``‖v̂+l‖² + v₁² ≤ 2 + 2‖l‖²`` (u₁, v₁ the components along a, b).
    So at most 2 at γ = 1/2, and the chords give ``2hE·max(1, 2(1-γ))``, decreasing in γ: the smallest
    declared accuracy counts. With column sums up to S, by the triangle inequality
    ``‖ΔH‖ ≤ γ·2hE + (S-γ)·2hE + (1-γ)·2hE = 2hE(1 + S - γ)``.
    If Q changes as well, ``‖h'(Q - Q')X‖_F ≤ Σ|q_ij - q'_ij|·‖h_i‖‖x_j‖ ≤ M hE``.
    """
    if links.exact:
        return 2.0 * h * E
    if links.column_sum == 1.0:
        factor = 2.0 * max(1.0, 2.0 * (1.0 - links.accuracy_min))
    else:
        factor = 2.0 * (1.0 + links.column_sum - links.accuracy_min)
    return h * E * (factor + links.matrix_change)


def symmetric_matrix_sensitivity(E: float, links: LinkageExposure) -> float:
    """Frobenius sensitivity of ``X'QX`` for a symmetric doubly stochastic Q (the instrument h = x).

    Proof. With Q fixed the change is ``γ(pp' - rr')``, p and r in a ball of radius E around
    ``u/γ``, ``‖u‖ ≤ (1-γ)E``: :func:`rank_one_range` at κ = γ. M adds at most M·E².
    """
    return E**2 * (rank_one_range(links.accuracy_min) + links.matrix_change)


def rank_one_range(kappa: float) -> float:
    """g(κ): largest ``κ‖pp' - rr'‖_F`` for p, r in the unit ball around a point at distance (1-κ)/κ.

    Proof. With the centre w at distance c = (1-κ)/κ: for fixed r, ``‖pp' - rr'‖²`` is convex in λ² along the ray λp,
    so p and r may lie on the sphere (p = 0 is no better than a point orthogonal to r). Write ``p, r = w + m ± a``:
    a·m = 0, ``‖a‖² = 1-e²``, e = ‖m‖, and ``‖pp' - rr'‖² = 8(‖a‖²‖w+m‖² + (a·w)²) ≤ 8(1-e²)(2c² + 2e² - (w₂-e)²)``,
    w₂ ≤ c the component of w along m. For e ≤ c, w₂ = e gives ``16(1-e²)(c²+e²)``, largest at
    ``e² = max(0, (1-c²)/2)``: 4c if c ≥ 1, 2(1+c²) if 1/3 ≤ c² < 1. For e ≥ c, w₂ = c gives ``8(1-e²)(e+c)²``, largest
    at ``e = (√(c²+8)-c)/4``, which is at least c iff c² ≤ 1/3. Equality for w in the plane of a and m.
    Decreasing in κ, from 4 at κ = 0 to √2 at κ = 1.
    """
    if kappa <= 0.0:
        return 4.0
    c = (1.0 - kappa) / kappa
    if c >= 1.0:
        return 4.0 * (1.0 - kappa)
    if 3.0 * c * c >= 1.0:
        return 2.0 * kappa * (1.0 + c * c)
    e = (math.sqrt(c * c + 8.0) - c) / 4.0
    return kappa * math.sqrt(8.0 * (1.0 - e * e)) * (c + e)


def joint_distance(E: float, R: float, matrix_scale: float, vector_scale: float) -> float:
    """Largest joint distance of ``(svec X'X, X'z)`` in units of their noise, for an exact join.

    Proof. Both squared changes are convex in z and z' and, for a fixed angle, grow with the norms: take
    ‖x‖ = ‖x'‖ = E, |z| = |z'| = R, and t = |x·x'|. Then ``‖xx' - x'x''‖_F² = 2E⁴ - 2t²`` and
    ``‖xz - x'z'‖² ≤ 2R²E² + 2R²t``. The weighted sum is concave in t and largest at ``t = min(R²B/2A, E²)`` with
    ``A = 1/matrix_scale²``, ``B = 1/vector_scale²``.
    """
    A, B = matrix_scale**-2, vector_scale**-2
    t = min(R * R * B / (2.0 * A), E * E)
    return math.sqrt(2.0 * A * (E**4 - t * t) + 2.0 * B * R * R * (E * E + t))


# --- the paper's W = QX ----------------------------------------------------------------------------


def gram_sensitivity(c: float, links: LinkageExposure, kappa: float = 0.0) -> float:
    """Frobenius sensitivity of ``W'W``, rows of norm at most c.

    Proof. The paper's: ``Σ‖w_i - w'_i‖ ≤ c(M + 2S)``, so ``‖ΔW'W‖ ≤ 2c²(M + 2S)``, a sum of rank-one
    terms in which Frobenius and spectral norm agree. With Q fixed and ``κ ≤ Σ_i q_ij²`` the change is
    ``κ(pp' - rr')`` with p, r in a ball of radius c around a point at distance at most (1-κ)c/κ, so at most
    ``c² g(κ)``; a change of Q then adds 2c² per unit of M. The smaller of the two. Responses do not enter.
    """
    M, S = links.matrix_change, links.column_sum
    paper = 2.0 * c * c * (M + 2.0 * S)
    if S != 1.0:
        return paper
    return min(paper, c * c * (rank_one_range(1.0 if links.exact else kappa) + 2.0 * M))


def cross_sensitivity(c: float, R: float, links: LinkageExposure) -> float:
    """Sensitivity of ``W'z``: ``Rc(M + 2S + 2)``, 2Rc more for each relinked row; 2Rc for an exact join.

    Proof. ``‖(W - W')'z‖ ≤ Rc(M + 2S)``, and each response that changes moves 2R on a row of norm at most c:
    row p's and those of the relinked rows.
    """
    if links.exact:
        return 2.0 * R * c
    return R * c * (links.paper_change + 2.0 * links.column_sum + 2.0)


def paper_ngd_sensitivity(c: float, R: float, C: float, links: LinkageExposure) -> float:
    """B of Theorem 4.1(i) of [LPK24]: ``Rc(M+4) + 2Cc²(M+2)``, for gradient sums with ‖β‖ ≤ C."""
    M, S = links.paper_change, links.column_sum
    return R * c * (M + 2.0 + 2.0 * S) + 2.0 * C * c * c * (M + 2.0 * S)


def paper_ssp_sensitivity(c: float, R: float, links: LinkageExposure) -> float:
    """B of Theorem 4.1(ii) of [LPK24]: ``Rc(M+4) + max{2c²(M+2), 2R²}``.

    It bounds a spectral norm; it is safe for the upper triangle of W'W and W'z as they are released,
    since ``√(Δ_G² + Δ_b²) ≤ Δ_G + Δ_b``.
    """
    M, S = links.paper_change, links.column_sum
    return R * c * (M + 2.0 + 2.0 * S) + max(2.0 * c * c * (M + 2.0 * S), 2.0 * R * R)


# --- counts ----------------------------------------------------------------------------------------


def counts_sensitivity(queries: int) -> float:
    """Sensitivity of `queries` counts "rows with x below a threshold".

    Proof. One row's x changes; each count moves by at most 1. Linkage does not enter: x is not linked.
    """
    return math.sqrt(queries)


def residual_count_sensitivity(links: LinkageExposure) -> float:
    """Sensitivity of a count "rows whose own residual is below a threshold".

    Proof. A row's own residual ``z_i - β₀ - (γx_i + (1-γ)x̄)'β`` sees its own cells and public values only. Row j
    changes, and the row p that holds the person's response, and each displaced row; an exact join has row j
    alone. Each moves the count by at most 1. Q does not enter.
    """
    return 1.0 if links.exact else 1.0 + links.carriers + links.displaced


def right_links_sensitivity(links: LinkageExposure) -> float:
    """Sensitivity of the numbers of right links among checked ones, per group of rows (l2 over the groups).

    Proof. Which rows are checked, and to which group each belongs, is the same for both neighbours. Whether a row's link
    is right can change for the person's own row, for the rows that hold the person's response, and for each displaced row;
    each moves one group's count by at most 1, and the l2 norm of the changes is at most their l1 norm.
    """
    return 1.0 + links.carriers + links.displaced


# --- meat: the variance of b - Hβ ------------------------------------------------------------------


def row_meat_sensitivity(norm: float, links: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ u_i u_i'``, ``u_i = h_i r_i`` from the row's own residual, scaled to ‖u_i‖ ≤ norm.

    Proof. Row j goes from one positive semidefinite rank-one matrix to another, each of norm at most K²:
    ``‖A - B‖² = ‖A‖² + ‖B‖² - 2 tr AB ≤ 2K⁴``. Rows that hold the person's response, and displaced ones, keep the
    direction of h and change the length within [0, K²]: K² each. Nothing else sees the change, whatever
    happens to Q.
    """
    others = 0.0 if links.exact else float(links.carriers + links.displaced)
    return norm**2 * (math.sqrt(2.0) + others)


def matching_meat_sensitivity(norm: float, h: float, reach: float, links: LinkageExposure) -> float:
    """The same with residuals ``z_i - w_i'β`` under an explicit Q, ‖h_i‖ ≤ h and ``|x'β| ≤ reach``.

    Proof. As above for row j, the carriers and the displaced rows. Of the other rows, row i's w_i'β moves by at
    most ``2 q_ij·reach`` through x_j and by ``Σ_l |q_il - q'_il|·reach`` through Q. ``min(h²r², K²)`` has slope at most
    ``2Kh`` in r. Together ``2Kh·reach·(2(S-γ) + M)``.
    """
    spread = 2.0 * (links.column_sum - links.accuracy_min) + links.matrix_change
    return row_meat_sensitivity(norm, links) + 2.0 * norm * h * reach * spread


def block_meat_sensitivity(norm: float, links: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ_b T_b T_b'``, block totals ``T_b = Σ h_i r_i`` scaled to ‖T_b‖ ≤ norm.

    Proof. All that a person changes lies in the block of row j, the block of row p, and one more block for each
    displaced link (a move's new block is that of its displaced link). In each, one positive semidefinite
    rank-one matrix of norm at most K² replaces another: ``√2K²``. Not for a declared change of Q, which may
    lie in any block.
    """
    return (1.0 + links.carriers + links.displaced) * math.sqrt(2.0) * norm**2
