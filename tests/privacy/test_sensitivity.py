"""Sensitivities against neighbours: never exceeded, and reached where the bound is a closed form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dplinked as dpl
from dplinked.linkage import LinkageExposure
from dplinked.privacy.quantities import instrument, paper, residual_scale, right_links
from dplinked.privacy.quantities.meat import block_meat_sensitivity, matching_meat_sensitivity, row_meat_sensitivity
from dplinked.study.build import build_design
from duckdb_ways import add_by_sql
from neighbours import ele_matrix

ELE = LinkageExposure(exact=False, symmetric=True, accuracy_min=0.8, column_sum=1.0, matrix_change=0.0, displaced=0)
EXACT = LinkageExposure(exact=True, symmetric=True, accuracy_min=1.0, column_sum=1.0, matrix_change=0.0, displaced=0)


def ball(rng: np.random.Generator, n: int, d: int, corner: bool) -> np.ndarray:
    """Points in the unit ball; on its boundary if `corner`."""
    v = rng.normal(size=(n, d))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    return v if corner else v * rng.random((n, 1)) ** (1 / d)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 3),
    gamma=st.floats(0.05, 1.0),
    displaced=st.integers(0, 3),
    corner=st.booleans(),
)
def test_instrument_sums_stay_within(seed: int, d: int, gamma: float, displaced: int, corner: bool) -> None:
    rng = np.random.default_rng(seed)
    links = dataclasses.replace(ELE, accuracy_min=gamma, displaced=displaced)
    sizes = [5, 3, 1]
    n = sum(sizes)
    Q = ele_matrix(sizes, [gamma, min(1.0, gamma + 0.1), 1.0])
    h, x, z = ball(rng, n, d, corner), ball(rng, n, d, corner), rng.choice([-1.0, 1.0], n)
    j, p = rng.integers(n), rng.integers(n)
    h2, x2, z2 = h.copy(), x.copy(), z.copy()
    h2[j], x2[j] = ball(rng, 1, d, corner)[0], ball(rng, 1, d, corner)[0]
    z2[p] = -z[p]
    for i in rng.choice(n, min(displaced, n), replace=False):
        z2[i] = -z2[i]
    b = np.linalg.norm(h.T @ z - h2.T @ z2)
    assert b <= instrument.instrument_response_sensitivity(1.0, 1.0, links) + 1e-12
    assert abs(z.sum() - z2.sum()) <= instrument.response_total_sensitivity(1.0, links) + 1e-12
    H = np.linalg.norm(h.T @ Q @ x - h2.T @ Q @ x2)
    assert H <= instrument.instrument_matrix_sensitivity(1.0, 1.0, links) + 1e-12
    S = np.linalg.norm(x.T @ Q @ x - x2.T @ Q @ x2)
    assert S <= instrument.symmetric_matrix_sensitivity(1.0, links) + 1e-12
    assert np.linalg.norm((Q @ x - Q @ x2).sum(axis=0)) <= instrument.regressor_total_sensitivity(1.0, links) + 1e-12
    assert np.linalg.norm((h - h2).sum(axis=0)) <= instrument.instrument_total_sensitivity(1.0) + 1e-12


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 3), displaced=st.integers(0, 2), corner=st.booleans())
def test_a_changed_matrix_stays_within(seed: int, d: int, displaced: int, corner: bool) -> None:
    """Arbitrary stochastic Q with column sums up to S, changing by M; W'W and W'z as well."""
    rng = np.random.default_rng(seed)
    n = 7
    Q = rng.dirichlet(np.full(n, 0.3), n)
    Q2 = Q.copy()
    rows = rng.choice(n, 2, replace=False)
    Q2[rows] = rng.dirichlet(np.full(n, 0.3), 2)
    M = float(np.abs(Q - Q2).sum())
    S = max(1.0 + 1e-9, float(Q.sum(axis=0).max()), float(Q2.sum(axis=0).max()))
    links = LinkageExposure(False, False, min(Q.diagonal().min(), Q2.diagonal().min()), S, M, displaced)
    h, x, z = ball(rng, n, d, corner), ball(rng, n, d, corner), rng.choice([-1.0, 1.0], n)
    j, p = rng.integers(n, size=2)
    h2, x2, z2 = h.copy(), x.copy(), z.copy()
    h2[j], x2[j] = -h[j], -x[j]
    z2[p] = -z[p]
    H = np.linalg.norm(h.T @ Q @ x - h2.T @ Q2 @ x2)
    assert H <= instrument.instrument_matrix_sensitivity(1.0, 1.0, links) + 1e-12
    totals = np.linalg.norm((Q @ x).sum(axis=0) - (Q2 @ x2).sum(axis=0))
    assert totals <= instrument.regressor_total_sensitivity(1.0, links) + 1e-12
    others = [i for i in range(n) if i not in (j, p)]
    for i in rng.choice(others, displaced, replace=False):
        z2[i] = -z2[i]
    # for W a displaced response means its row of Q is permuted away with it: the rest is covered by 2 per link
    W, W2 = Q @ x, Q2 @ x2
    assert np.linalg.norm(W.T @ W - W2.T @ W2) <= paper.gram_sensitivity(1.0, links) + 1e-12
    assert np.linalg.norm(W.T @ z - W2.T @ z2) <= paper.cross_sensitivity(1.0, 1.0, links) + 1e-12
    short = z2 * rng.choice([0.0, 1.0], n)  # z'z moves most where responses vanish
    changed = np.where(z == z2, z, short)
    assert abs(z @ z - changed @ changed) <= paper.squares_sensitivity(1.0, links) + 1e-12


@settings(max_examples=300, deadline=None)
@given(
    ratio=st.floats(0.02, 50),
    M=st.floats(0, 50),
    displaced=st.integers(0, 20),
    carriers=st.integers(1, 4),
    S=st.floats(1, 5),
)
def test_squares_fit_into_the_papers_bound(ratio: float, M: float, displaced: int, carriers: int, S: float) -> None:
    """z'z beside W'W and W'z: their squared sensitivities over squared scales stay within μ², and Algorithm 2's noise is B over μ."""
    links = LinkageExposure(False, False, 0.5, S, M, displaced, carriers)
    c, R, mu, count = 1.0, ratio, 0.2, 1000
    parts = {part.name: part for part in paper.plan_paper_sums(2, c, R, links, mu, count, squares=True).parts}
    alone = paper.plan_paper_sums(2, c, R, links, mu, count, squares=False).parts[0]
    B = paper.paper_ssp_sensitivity(c, R, links)
    assert alone.scale == pytest.approx(B / mu, rel=1e-6)
    sums, squares = parts["W'W and W'z"], parts["z'z"]
    assert sums.scale == pytest.approx(alone.scale, rel=1e-5)
    own = math.hypot(paper.gram_sensitivity(c, links), paper.cross_sensitivity(c, R, links))
    spent = (own / sums.scale) ** 2 + (paper.squares_sensitivity(R, links) / squares.scale) ** 2
    assert 0.999 * mu**2 <= spent <= mu**2
    if displaced == 0 and carriers == 1:
        assert squares.scale <= sums.scale


@pytest.mark.parametrize(
    ("gamma", "m"), [(gamma, m) for m in (5, 25) for gamma in (0.1, 0.3, 0.5, 0.6, 0.8, 0.9, 1.0) if gamma * m >= 1]
)  # less accurate than random links there are none
def test_symmetric_and_gram_bounds_are_reached(gamma: float, m: int) -> None:
    """Others aligned with the axis, the person's two rows as the proof of g places them."""
    for form in ("symmetric", "gram"):
        best = 0.0
        Q = ele_matrix([m], [gamma])
        kappa = float((Q[:, 0] ** 2).sum()) if form == "gram" else gamma
        for mean in np.linspace(0, 1, 21):  # the others' average along the axis, from 0 to 1
            others = np.zeros((m - 1, 2))
            others[:, 0] = mean
            angles = np.linspace(0, np.pi, 91)
            points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
            both = [np.vstack([point, others]) for point in np.vstack([points, points * [1, -1]])]
            mats = np.array([x.T @ (Q.T @ Q if form == "gram" else Q) @ x for x in both])
            best = max(best, float(np.sqrt(((mats[:, None] - mats[None]) ** 2).sum(axis=(2, 3))).max()))
        links = dataclasses.replace(ELE, accuracy_min=gamma)
        bound = (
            instrument.symmetric_matrix_sensitivity(1.0, links)
            if form == "symmetric"
            else paper.gram_sensitivity(1.0, links, kappa)
        )
        assert 0.95 * bound <= best <= bound * (1 + 1e-9), (form, best / bound)


@pytest.mark.parametrize("gamma", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_instrument_matrix_bound_is_reached(gamma: float) -> None:
    m = 25
    Q = ele_matrix([m], [gamma])
    best = 0.0
    for others in (np.ones(m - 1), np.tile([1.0, -1.0], (m - 1) // 2)):
        for h, h2, x, x2 in [(1, -1, 1, 1), (1, -1, 1, -1), (1, -1, -1, 1), (1, 1, 1, -1)]:
            H = [np.r_[a, others] @ Q @ np.r_[b, others] for a, b in ((h, x), (h2, x2))]
            best = max(best, abs(H[0] - H[1]))
    bound = instrument.instrument_matrix_sensitivity(1.0, 1.0, dataclasses.replace(ELE, accuracy_min=gamma))
    assert 0.95 * bound <= best <= bound * (1 + 1e-12)


def test_the_proof_of_the_instrument_matrix_at_half() -> None:
    """The middle of that proof on a grid: at γ = 1/2 no four points of the plane exceed 4."""
    grid = np.linspace(0, np.pi / 2, 46)
    t, f, a, b = np.meshgrid(grid, grid, grid, grid, indexing="ij", sparse=True)
    for s1 in (1, -1):
        for s2 in (1, -1):
            C, D, A, B = np.cos(t), np.cos(f), np.cos(a), np.cos(b)
            square = (C * A) ** 2 + (D * B) ** 2 - 2 * C * D * A * B * np.cos(t + s1 * f) * np.cos(a + s2 * b)
            assert square.max() <= 1 + 1e-12


@pytest.mark.parametrize("displaced", [0, 2])
@pytest.mark.parametrize("d", [1, 3])
def test_response_bounds_are_reached(d: int, displaced: int) -> None:
    """Every row pulls the same way: h flips under z = R, responses flip under h of the same direction."""
    e = np.ones(d) / math.sqrt(d)
    h, z = np.tile(-e, (4 + displaced, 1)), np.ones(4 + displaced)
    h[0], h2, z2 = e, h.copy(), z.copy()
    h2[0] = -e
    h[1:] = h2[1:] = e
    z2[1 : 2 + displaced] = -1.0
    totals = z2.copy()
    totals[0] = -1.0 if displaced else 1.0  # row j itself is linked anew where links are displaced
    links = dataclasses.replace(ELE, displaced=displaced)
    assert np.linalg.norm(h.T @ z - h2.T @ z2) == pytest.approx(
        instrument.instrument_response_sensitivity(1.0, 1.0, links)
    )
    assert abs(z.sum() - totals.sum()) == pytest.approx(instrument.response_total_sensitivity(1.0, links))


def test_exact_bounds_are_reached() -> None:
    assert instrument.instrument_response_sensitivity(1.0, 1.0, EXACT) == 2.0  # h z -> (-h) z
    x, x2 = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    moved = np.linalg.norm(np.outer(x, x) - np.outer(x2, x2))
    assert moved == pytest.approx(instrument.symmetric_matrix_sensitivity(1.0, EXACT))


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.0, 10.0])
def test_joint_distance_is_reached_and_never_exceeded(ratio: float) -> None:
    rng = np.random.default_rng(3)
    bound = instrument.joint_distance(1.0, 1.0, 1.0, ratio)
    best = 0.0
    for angle in np.linspace(0, np.pi, 721):
        x, x2 = np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])
        for z, z2 in ((1.0, 1.0), (1.0, -1.0)):
            G = np.linalg.norm(np.outer(x, x) - np.outer(x2, x2))
            best = max(best, math.hypot(G, np.linalg.norm(x * z - x2 * z2) / ratio))
    for _ in range(3000):
        x, x2 = ball(rng, 2, 2, bool(rng.integers(2)))
        z, z2 = rng.uniform(-1, 1, 2)
        G = np.linalg.norm(np.outer(x, x) - np.outer(x2, x2))
        assert math.hypot(G, np.linalg.norm(x * z - x2 * z2) / ratio) <= bound + 1e-12
    assert 0.95 * bound <= best <= bound + 1e-12


@pytest.mark.parametrize("gamma", [0.6, 0.9])
@pytest.mark.parametrize("d", [1, 2])
def test_matrix_with_intercept_is_nearly_reached(gamma: float, d: int) -> None:
    """Root of the summed squares of core, totals of x and totals of h: a search reaches 80 % at least."""
    rng = np.random.default_rng(1)
    links = dataclasses.replace(ELE, accuracy_min=gamma)
    m = 9
    Q = ele_matrix([m], [gamma])
    h_norm, E = math.sqrt(d), math.sqrt(d)
    bound = math.hypot(
        instrument.instrument_matrix_sensitivity(h_norm, E, links),
        instrument.regressor_total_sensitivity(E, links),
        instrument.instrument_total_sensitivity(h_norm),
    )
    best = 0.0
    for _ in range(4000):
        h, x = rng.choice([-1.0, 1.0], (m, d)), rng.choice([-1.0, 1.0], (m, d))
        h2, x2 = h.copy(), x.copy()
        h2[0], x2[0] = -h[0], rng.choice([-1.0, 1.0]) * x[0]
        parts = (h.T @ Q @ x - h2.T @ Q @ x2, (x - x2).sum(axis=0), (h - h2).sum(axis=0))
        best = max(best, math.sqrt(sum(float((part**2).sum()) for part in parts)))
    # with x held, h'Qx moves by the block's mean of x: aligned others reach the most
    for x0 in (1.0, -1.0):
        h, x = np.ones((m, d)), np.ones((m, d))
        h2, x2 = h.copy(), x.copy()
        h[0], h2[0], x[0], x2[0] = 1.0, -1.0, x0, -x0
        parts = (h.T @ Q @ x - h2.T @ Q @ x2, (x - x2).sum(axis=0), (h - h2).sum(axis=0))
        best = max(best, math.sqrt(sum(float((part**2).sum()) for part in parts)))
    assert 0.8 * bound <= best <= bound + 1e-12


def test_rank_one_range_decreases() -> None:
    values = [instrument.rank_one_range(k) for k in np.linspace(0, 1, 2001)]
    assert values[0] == 4.0
    assert values[-1] == pytest.approx(math.sqrt(2))
    assert np.all(np.diff(values) <= 1e-12)


@pytest.mark.parametrize(("gamma", "other"), [(0.9, 0.9), (0.6, 0.6), (0.95, 0.5), (1.0, 0.7)])
@pytest.mark.parametrize("sizes", [(4, 4), (2, 3), (1, 3), (3, 1), (2, 1), (1, 1), (9, 2)])
def test_a_move_changes_the_matrix_as_claimed(gamma: float, other: float, sizes: tuple[int, int]) -> None:
    """Brute force over Q before and after a move, blocks of one included."""
    linkage = dpl.ELE({"a": gamma, "b": other}, block="k", other=1.0)
    bound = linkage.exposure(dpl.PrivacyUnit(moves_block=True)).matrix_change

    def matrix(keys: list[str]) -> np.ndarray:
        Q = np.zeros((len(keys), len(keys)))
        for key, accuracy in (("a", gamma), ("b", other)):
            where = [i for i, k in enumerate(keys) if k == key]
            if where:
                Q[np.ix_(where, where)] = ele_matrix([len(where)], [accuracy])
        return Q

    keys = ["a"] * sizes[0] + ["b"] * sizes[1]
    moved = ["b", *keys[1:]]
    change = float(np.abs(matrix(keys) - matrix(moved)).sum())
    assert change <= bound + 1e-12
    if gamma == other and min(sizes) > 1:
        assert change == pytest.approx(bound)


def test_paper_constants() -> None:
    """B of Theorem 4.1 at M = 1: R c 5 + 2 C c² 3, and R c 5 + max(6 c², 2 R²)."""
    links = dataclasses.replace(ELE, matrix_change=1.0)
    assert paper.paper_ngd_sensitivity(1.5, 2.0, 3.0, links) == pytest.approx(2 * 1.5 * 5 + 2 * 3 * 2.25 * 3)
    assert paper.paper_ssp_sensitivity(1.5, 2.0, links) == pytest.approx(2 * 1.5 * 5 + max(2 * 2.25 * 3, 8))


def test_displaced_links_are_permuted_rows_for_the_paper() -> None:
    """Swapping responses equals permuting rows of Q: at most 2 in l1 per displaced row."""
    Q = ele_matrix([4, 4], [0.9, 0.9])
    order = np.array([4, 1, 2, 3, 0, 5, 6, 7])
    assert np.abs(Q - Q[order]).sum() <= 2.0 * 2 + 1e-12
    assert dataclasses.replace(ELE, displaced=2).paper_change == 6.0


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 3),
    kind=st.sampled_from(["exact", "ele", "displaced"]),
    clip=st.floats(0.1, 3.0),
)
def test_meats_stay_within(seed: int, d: int, kind: str, clip: float) -> None:
    """Row and block meat of clipped residuals, rows changed as the unit allows; blocks of any make-up."""
    rng = np.random.default_rng(seed)
    k = 2 if kind == "displaced" else 0
    links = EXACT if kind == "exact" else dataclasses.replace(ELE, displaced=k)
    n = 9
    blocks = rng.integers(0, 4, n)
    h, r = ball(rng, n, d, True), rng.normal(0, 2, n)
    h2, r2 = h.copy(), r.copy()
    j, p = rng.integers(n, size=2)
    p = j if kind == "exact" else p
    changed = [j, p, *rng.choice([i for i in range(n) if i not in (j, p)], k, replace=False)]
    h2[j], r2[changed] = ball(rng, 1, d, True)[0], rng.normal(0, 2, len(changed))

    def rows(h: np.ndarray, r: np.ndarray) -> np.ndarray:
        u = h * r[:, None]
        u /= np.maximum(np.linalg.norm(u, axis=1, keepdims=True) / clip, 1.0)
        return u.T @ u

    moved = np.linalg.norm(rows(h, r) - rows(h2, r2))
    assert moved <= row_meat_sensitivity(clip, links) + 1e-9

    def totals(h: np.ndarray, r: np.ndarray) -> np.ndarray:
        T = np.array([(h[blocks == b] * r[blocks == b, None]).sum(axis=0) for b in range(4)])
        T /= np.maximum(np.linalg.norm(T, axis=1, keepdims=True) / clip, 1.0)
        return T.T @ T

    # within the touched blocks every residual may move (block means change), elsewhere none
    touched = np.isin(blocks, blocks[changed])
    r2 = np.where(touched, r2 + rng.normal(0, 1, n), r2)
    assert np.linalg.norm(totals(h, r) - totals(h2, r2)) <= block_meat_sensitivity(clip, links) + 1e-9
    counts = [(np.abs(x) < 1.0).sum() for x in (r[np.unique(changed)], r2[np.unique(changed)])]
    assert abs(counts[0] - counts[1]) <= residual_scale.residual_count_sensitivity(links)


def test_meat_bounds_are_reached() -> None:
    e, f = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    one, other = np.outer(e, e), np.outer(f, f)
    assert np.linalg.norm(one - other) == pytest.approx(row_meat_sensitivity(1.0, EXACT))
    # row j from e to f, row p (h = f) from 0 to 1
    assert np.linalg.norm(other + other - one) == pytest.approx(row_meat_sensitivity(1.0, ELE))
    # two blocks, each from e to f
    assert 2 * np.linalg.norm(one - other) == pytest.approx(block_meat_sensitivity(1.0, ELE))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), carriers=st.integers(1, 3))
def test_matching_meat_stays_within(seed: int, carriers: int) -> None:
    """Residuals z - w'β under an explicit Q that changes too; several rows may carry the person's response."""
    rng = np.random.default_rng(seed)
    n, d, clip = 8, 2, 1.0
    Q = rng.dirichlet(np.full(n, 0.4), n)
    Q2 = Q.copy()
    Q2[rng.integers(n)] = rng.dirichlet(np.full(n, 0.4))
    S = max(1.0 + 1e-9, Q.sum(axis=0).max(), Q2.sum(axis=0).max())
    least = min(Q.diagonal().min(), Q2.diagonal().min())
    links = LinkageExposure(False, False, least, S, float(np.abs(Q - Q2).sum()), 0, carriers)
    h, x, z, beta = ball(rng, n, d, True), ball(rng, n, d, True), rng.normal(size=n), rng.normal(size=d)
    h2, x2, z2 = h.copy(), x.copy(), z.copy()
    j = rng.integers(n)
    h2[j], x2[j] = ball(rng, 1, d, True)[0], -x[j]
    z2[rng.choice(n, carriers, replace=False)] += rng.normal(0, 3, carriers)

    def meat(h, x, z, Q):
        u = h * (z - Q @ x @ beta)[:, None]
        u /= np.maximum(np.linalg.norm(u, axis=1, keepdims=True) / clip, 1.0)
        return u.T @ u

    moved = np.linalg.norm(meat(h, x, z, Q) - meat(h2, x2, z2, Q2))
    assert moved <= matching_meat_sensitivity(clip, 1.0, float(np.linalg.norm(beta)), links) + 1e-9


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), displaced=st.integers(0, 4))
def test_right_links_stay_within(seed: int, displaced: int) -> None:
    """One person's row, the row that holds their record and k more are linked anew; the others keep their links."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 25))
    truth, links, groups, checked = rng.permutation(n), rng.permutation(n), rng.integers(0, 3, n), rng.random(n) < 0.7
    j = int(rng.integers(n))
    p = int(np.flatnonzero(links == truth[j])[0])
    free = np.setdiff1d(np.arange(n), [j, p])
    rows = np.concatenate([[j, p], rng.choice(free, min(displaced, free.size), replace=False)])
    other = links.copy()
    other[rows] = rng.permutation(links[rows]) if rng.random() < 0.5 else truth[rows]
    counts = [np.bincount(groups[checked], (side == truth)[checked], 3) for side in (links, other)]
    exposure = dpl.ELE(0.5, "b").exposure(dpl.PrivacyUnit(displaced_links=displaced))
    assert np.linalg.norm(counts[0] - counts[1]) <= right_links.right_links_sensitivity(exposure)


def test_the_bound_on_right_links_is_reached() -> None:
    """Three rows in a wrong cycle that one changed record sets right: own row, holder, one displaced."""
    truth, links = np.arange(3), np.array([1, 2, 0])
    exposure = dpl.ELE(0.5, "b").exposure(dpl.PrivacyUnit(displaced_links=1))
    assert (truth == truth).sum() - (links == truth).sum() == right_links.right_links_sensitivity(exposure)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 3),
    carriers=st.sampled_from([1, 2, 5]),
    moves=st.booleans(),
    aligned=st.booleans(),
)
def test_one_to_many_links_stay_within(seed: int, d: int, carriers: int, moves: bool, aligned: bool) -> None:
    """All quantities that see responses, with 1, 2 or 5 rows that carry one person's; a mover's is carried on to as many others."""
    rng = np.random.default_rng(seed)
    linkage = dpl.ELE(0.7, "b", other=0.7, carriers=carriers)
    links = linkage.exposure(dpl.PrivacyUnit(moves_block=moves))
    n, clip = 20, 1.0
    h, z = ball(rng, n, d, True), rng.choice([-1.0, 1.0], n)
    j, *others = rng.permutation(n)
    held, taken = others[:carriers], others[carriers : 2 * carriers] if moves else []
    changed = [*held, *taken, *([j] if moves else [])]
    if aligned:
        h[changed], z[changed] = h[j], 1.0
    h2, z2 = h.copy(), z.copy()
    h2[j] = -h[j]
    z2[changed] = -z[changed]
    if aligned and moves:
        z2[j] = z[j]
    assert np.linalg.norm(h.T @ z - h2.T @ z2) <= instrument.instrument_response_sensitivity(1.0, 1.0, links) + 1e-12
    assert abs(z.sum() - z2.sum()) <= instrument.response_total_sensitivity(1.0, links) + 1e-12
    # W'z with W = QX: rows of norm at most 1, the person's own x turned as well
    Q = ele_matrix([n], [0.7])
    moved = np.linalg.norm((Q @ h).T @ z - (Q @ h2).T @ z2)
    assert moved <= paper.cross_sensitivity(1.0, 1.0, links) + 1e-12

    r, r2 = z - (h @ np.ones(d)) / d, z2 - (h2 @ np.ones(d)) / d
    counts = [int((np.abs(one) < 1.0).sum()) for one in (r, r2)]
    assert abs(counts[0] - counts[1]) <= residual_scale.residual_count_sensitivity(links)

    def squares(u: np.ndarray) -> np.ndarray:
        u = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True) / clip, 1.0)
        return u.T @ u

    rows = squares(h * r[:, None]) - squares(h2 * r2[:, None])
    assert np.linalg.norm(rows) <= row_meat_sensitivity(clip, links) + 1e-9
    blocks = np.eye(n)[rng.integers(0, n, n)].T  # block totals: one row of indicators for each block
    totals = squares(blocks @ (h * r[:, None])) - squares(blocks @ (h2 * r2[:, None]))
    assert np.linalg.norm(totals) <= block_meat_sensitivity(clip, links) + 1e-9
    right = [(one == 1.0)[sorted({j, *changed})].sum() for one in (z, z2)]  # an answer for each of these links
    assert abs(int(right[0]) - int(right[1])) <= right_links.right_links_sensitivity(links)


@pytest.mark.parametrize("carriers", [1, 2, 5])
def test_one_to_many_bounds_are_reached(carriers: int) -> None:
    """All carriers pull one way, and so does the person's own row."""
    links = dpl.ELE(0.7, "b", carriers=carriers).exposure(dpl.PrivacyUnit())
    h, z = np.ones(carriers + 1), np.ones(carriers + 1)
    h2, z2 = np.r_[-1.0, h[1:]], np.r_[1.0, -z[1:]]
    assert abs(h @ z - h2 @ z2) == instrument.instrument_response_sensitivity(1.0, 1.0, links)
    assert abs(z.sum() - z2.sum()) == instrument.response_total_sensitivity(1.0, links)
    assert (
        residual_scale.residual_count_sensitivity(links) == right_links.right_links_sensitivity(links) == 1 + carriers
    )


@pytest.mark.parametrize("container", ["memory", "NumPy", "duckdb", "copy"])
def test_weights_move_their_moments_by_no_more(monkeypatch: pytest.MonkeyPatch, container: str, tmp_path: Any) -> None:
    """One person's weight, or whether they count, changes in all ways; from nothing to the largest it moves all three sums by 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dplinked.privacy.quantities.weights import weight_moments_sensitivity
    from dplinked.sums.engine import open_source
    from dplinked.sums.numpy import kernel

    rng, design = (
        np.random.default_rng(1),
        build_design("y ~ x", {"x": (0, 1), "y": (0, 1), "w": (0, 5)}, weights="w", where="x > 0.3"),
    )
    data = {"x": rng.random(40), "y": rng.random(40), "w": rng.uniform(0, 6, 40)}
    if container == "NumPy":
        monkeypatch.setattr(kernel, "KERNEL", None)
    if container == "duckdb":
        add_by_sql(monkeypatch)

    def moments(weight: float, x: float) -> np.ndarray:
        changed = {name: column.copy() for name, column in data.items()}
        changed["w"][7], changed["x"][7] = weight, x
        source: Any = changed
        if container in ("duckdb", "copy"):
            pq.write_table(pa.table(changed), tmp_path / "rows.parquet")
            source = dpl.Query("select * from 'rows.parquet'", folder=tmp_path)
        return open_source(source).linked_rows(design, dpl.Exact(), dpl.PrivacyUnit()).weight_moments().sums

    none, most, limit = moments(0.0, 0.9), moments(5.0, 0.9), weight_moments_sensitivity(EXACT)
    assert np.linalg.norm(most - none) == pytest.approx(limit)
    for weight, x in ((2.5, 0.9), (np.nan, 0.9), (np.inf, 0.9), (1e9, 0.9), (-3.0, 0.9), (5.0, 0.1), (5.0, np.nan)):
        found = moments(weight, x)
        assert np.linalg.norm(found - none) <= limit * (1 + 1e-9)
        assert np.linalg.norm(found - most) <= limit * (1 + 1e-9)
