"""The clipped residual equation of right links: unlinking is exact, and no neighbour moves it, its squares or its slope further than claimed."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.linkage import EXACT, LinkageExposure
from dplinked.privacy.noise_plan import NoisePlan
from dplinked.privacy.quantities import right_residuals as quantity
from dplinked.privacy.quantities.contribution_sizes import release_contribution_sizes
from dplinked.privacy.quantities.instrument import release_curvature, release_sums, row_total_sensitivity
from dplinked.privacy.quantities.meat import release_meat, row_meat_sensitivity
from dplinked.privacy.quantities.residual_scale import release_residual_size, residual_edges
from dplinked.privacy.quantities.right_residuals import (
    pair_weights,
    release_residual_meat,
    release_right_residuals,
    right_residuals_sensitivity,
    weight_change,
)
from dplinked.privacy.quantities.squared_residuals import release_squared_residuals
from dplinked.privacy.quantities.stratum_totals import (
    release_strata,
    stratum_numbers_sensitivity,
    stratum_totals_sensitivity,
)
from dplinked.privacy.quantities.whitened_gram import release_whitened_gram
from dplinked.privacy.spending import GOODNESS, MEAT, STRATA, TOTALS_MEAT, TOTALS_SIZES, Spending
from dplinked.study.build import build_design
from dplinked.study.counting import Counting, declare_counting
from dplinked.study.design import Design
from dplinked.sums import files as file_engine
from dplinked.sums.engine import open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.numpy import circle, kernel
from dplinked.sums.numpy import right_residuals as by_numpy
from dplinked.sums.numpy.circle import order_by_position, to_whole
from dplinked.sums.partners import NEAR, PARTNERS, unlinking_terms
from dplinked.sums.types import Centres, MeatClip, Predictor, ResidualClip, Whitening
from duckdb_ways import add_by_sql
from neighbours import BOUNDS, FURTHER_KINDS, KINDS, LEVELS, Pair, group_matrix, make_pair
from replay import Leak, draw_alike, replay

Floats = np.ndarray
LINE = {"y": (-1.0, 1.0), "x": (-1.0, 1.0), "v": (-1.0, 1.0)}  # scaled cells are the cells
FORMULAS = ("y ~ x", "y ~ 0 + x + w", "y ~ x + w + C(g)")
SIZES = ([17, 18, 1, 2, 3], [18, 17, 2], [1, 1, 2, 40])


def open_rows(
    data: Any, linkage: Any, unit: Any, formula: str, typical: Any = None, strata: bool = False
) -> LinkedRows:
    source = open_source(data)
    bounds, levels = (LINE, None) if "w" not in source.columns else (BOUNDS, LEVELS)
    design = build_design(formula, bounds, levels, typical)
    cluster = unit.id or ("g" if "g" in source.columns else None)
    design = dataclasses.replace(design, cluster=cluster)
    return source.linked_rows(drawn_in_strata(design, unit.fixes_blocks) if strata else design, linkage, unit)


# --- unlinking ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "partners", "gamma"), [(2, 16, 0.7), (3, 16, 0.5), (4, 2, 0.6), (4, 1, 0.9)])
def test_linked_pairs_are_unlinked_exactly(
    monkeypatch: pytest.MonkeyPatch, m: int, partners: int, gamma: float
) -> None:
    """Over all wrong links, and over all orders of partners, the mean of the equation is γ - o times that of right links."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    monkeypatch.setattr(by_numpy, "PARTNERS", partners)
    rng = np.random.default_rng(m)
    x, y = rng.uniform(-1, 1, (2, m))
    clip = ResidualClip(np.array([0.1, 0.4]), 0.4, 0.8, 4.0)
    unit, linkage = dpl.PrivacyUnit(moves_block=True), dpl.ELE(gamma, block="b", other=gamma)

    def equation(linkage: Any, unit: Any, y: Floats) -> Floats:
        rows = open_rows({"x": x, "y": y, "b": np.zeros(m)}, linkage, unit, "y ~ x")
        return rows.right_residuals(clip).vector

    derangements = [list(p) for p in itertools.permutations(range(m)) if all(p[i] != i for i in range(m))]
    found = []
    for order in map(np.array, itertools.permutations(range(m))):
        monkeypatch.setattr(circle, "order_by_position", lambda codes, order=order: order)
        wrong = np.mean([equation(linkage, unit, y[p]) for p in derangements], axis=0)
        found.append(gamma * equation(linkage, unit, y) + (1.0 - gamma) * wrong)
    o = (1.0 - gamma) / (m - 1)
    right = equation(dpl.Exact(), dpl.PrivacyUnit(), y)
    np.testing.assert_allclose(np.mean(found, axis=0), (gamma - o) * right, atol=1e-8)
    assert m <= partners or np.ptp(found, axis=0).max() > 1e-3  # a single order has another mean


@pytest.mark.parametrize("least", [0.78, 0.9, 0.99])
def test_explicit_matrices_are_unlinked_to_a_hundredth(least: float) -> None:
    rng = np.random.default_rng(1)
    Q = least * np.eye(30) + (1.0 - least) * rng.dirichlet(np.full(30, 0.2), 30)
    rest = np.eye(30) - unlinking(Q, least) @ Q
    assert np.abs(rest).sum(axis=1).max() <= 0.01


def unlinking(Q: Floats, least: float) -> Floats:
    """C as the pass has it."""
    n = len(Q)
    linkage = dpl.Matching(sp.csr_array(Q), accuracy_min=least, column_sum=float(n), carriers=1)
    unit = dpl.PrivacyUnit(linkage_change=0.0, displaced_links=0)
    rows = open_rows({"x": np.zeros(n), "y": np.zeros(n)}, linkage, unit, "y ~ x")
    return by_numpy._unlinking(rows.engine.data).toarray()


@pytest.mark.parametrize("fault", [None, "filled partners", "filled responses"])
@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_missing_responses_and_rows_are_unlinked_exactly(
    monkeypatch: pytest.MonkeyPatch, gamma: float, fault: str | None
) -> None:
    """Over all wrong links, the mean of the equation is γ - o times that of complete rows. It is not where a missing response counts as if it were there."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    if fault == "filled partners":
        monkeypatch.setattr(by_numpy, "GAP", None)
    if fault == "filled responses":
        rows_of = by_numpy._row_terms
        monkeypatch.setattr(
            by_numpy,
            "_row_terms",
            lambda data, clip, ring, strip: rows_of(data, clip, ring, dataclasses.replace(strip, answered=1.0)),
        )
    rng, m = np.random.default_rng(5), 4
    x, y = rng.uniform(-1, 1, (2, m))
    x[1], y[2] = np.nan, np.nan
    clip = ResidualClip(np.array([0.1, 0.4]), 0.4, 0.8, 4.0)

    def equation(linkage: Any, x: Floats, y: Floats) -> Floats:
        rows = open_rows({"x": x, "y": y, "b": np.zeros(len(x))}, linkage, dpl.PrivacyUnit(), "y ~ x")
        return rows.without_missing().right_residuals(clip).vector

    linkage = dpl.ELE(gamma, block="b")
    wrong = [list(p) for p in itertools.permutations(range(m)) if all(p[i] != i for i in range(m))]
    mean = gamma * equation(linkage, x, y)
    mean += (1.0 - gamma) * np.mean([equation(linkage, x, y[p]) for p in wrong], axis=0)
    complete = [0, 3]
    right = (gamma - (1.0 - gamma) / (m - 1)) * equation(dpl.Exact(), x[complete], y[complete])
    assert (np.abs(mean - right).max() < 1e-8) == (fault is None)


# --- weights: the largest change that any functions of pairs allow --------------------------------------


def partner_weights(groups: Floats, accuracy: Callable[[int, int], float], partners: int = PARTNERS) -> Floats:
    """Weight of each response in each row's bracket (n×n), with partners in the pass's order; `accuracy` of a group and its size."""
    found, order = np.zeros((groups.size, groups.size)), order_by_position(groups)
    for group in np.unique(groups):
        rows = order[groups[order] == group]
        m = rows.size
        gamma = accuracy(int(group), m) if m > 1 else 1.0
        found[rows, rows] = 1.0 - (1.0 - gamma) / max(1, m - 1)
        c = min(partners, m - 1)
        for lag in range(1, 1 + c):
            found[rows, np.roll(rows, -lag)] -= (1.0 - gamma) / c
    return found


def test_partner_weights_are_those_of_the_pass() -> None:
    """The pass itself, with a response that one row alone has, tells a column of them."""
    groups = np.repeat([0, 1, 2, 3], [20, 17, 2, 1])
    x, beta = np.ones(groups.size), np.array([0.0])
    linkage, unit = dpl.ELE(0.7, block="b", other=0.7), dpl.PrivacyUnit(moves_block=True)
    weights = partner_weights(groups, lambda *_: 0.7)
    for column in (0, 21, 38, 39):
        y = np.where(np.arange(groups.size) == column, 0.5, 0.0)
        rows = open_rows({"x": x, "y": y, "b": groups}, linkage, unit, "y ~ 0 + x")
        found = rows.right_residuals(ResidualClip(beta, 1.0, 0.0, 4.0)).vector[0]
        assert found == pytest.approx(0.5 * weights[:, column].sum(), abs=1e-7)


def largest_move(before: Floats, after: Floats, row: int, columns: Any) -> float:
    """Largest change of ``Σ c_il g_il`` over all |g| ≤ 1 that may differ in a row and in some columns only."""
    free = np.zeros(before.shape, bool)
    free[row], free[:, list(columns)] = True, True
    return float(np.where(free, np.abs(before) + np.abs(after), np.abs(after - before)).sum())


EXPOSED = LinkageExposure(exact=False, symmetric=True, accuracy_min=0.5, column_sum=1.0, matrix_change=0.0, displaced=0)


@pytest.mark.parametrize("gamma", [0.3, 0.6, 0.95])
def test_cells_and_links_move_pairs_within_and_up_to_the_bound(gamma: float) -> None:
    """Own row, carriers and displaced links in blocks of all kinds; without displaced links the bound is reached."""
    rng, reached = np.random.default_rng(4), 0.0
    for sizes in ([40, 40], [17, 18, 1, 2], [2, 2, 2], [1, 5]):
        groups = np.repeat(np.arange(len(sizes)), sizes)
        c = partner_weights(groups, lambda _, m: max(gamma, 1.0 / m))
        for carriers, displaced in itertools.product((1, 2), (0, 1, 2)):
            exposure = dataclasses.replace(EXPOSED, accuracy_min=gamma, carriers=carriers, displaced=displaced)
            bound = right_residuals_sensitivity(1.0, exposure)
            for _ in range(20):
                chosen = rng.permutation(groups.size)[: 1 + carriers + displaced]
                moved = largest_move(c, c, chosen[0], chosen if displaced else chosen[1:])
                assert moved <= bound + 1e-9
                reached = max(reached, moved / bound if not displaced else 0.0)
    assert reached > 0.97


def test_moves_change_weights_as_claimed() -> None:
    """Blocks of all sizes around those at which partners become a sample, before and after; the mover's own row is counted elsewhere."""
    rng, reached = np.random.default_rng(5), 0.0
    for sizes in itertools.product((1, 2, 3, 16, 17, 18, 19, 40), repeat=2):
        groups = rng.permutation(np.repeat([0, 1], sizes))
        table = rng.choice([0.2, 0.5, 0.9, 1.0], 2)
        for floored in (False, True):  # accuracies that are estimates are raised to those of random links

            def accuracy(group: int, m: int, table: Any = table, floored: bool = floored) -> float:
                return max(table[group], 1.0 / m) if floored else table[group]

            j = rng.choice(np.flatnonzero(groups == 0))
            after = groups.copy()
            after[j] = 1
            change = np.abs(partner_weights(groups, accuracy) - partner_weights(after, accuracy))
            change[j] = 0.0
            least = table.min()
            bound = weight_change(
                dataclasses.replace(EXPOSED, matrix_change=6.0 * (1.0 - least), moved_change=6.0 * (1.0 - least))
            )
            assert change.sum() <= bound + 1e-9
            reached = max(reached, change.sum() / bound if bound else 0.0)
    assert reached > 0.6


@pytest.mark.parametrize("gamma", [0.3, 0.9])
def test_movers_move_pairs_within_the_bound(gamma: float) -> None:
    """All that a mover does at once: the row, the response's old place and its new one, the own row linked anew, and partners."""
    rng, linkage = np.random.default_rng(6), dpl.ELE(gamma, block="b", other=gamma)
    bound = right_residuals_sensitivity(1.0, linkage.exposure(dpl.PrivacyUnit(moves_block=True)))
    reached = 0.0
    for sizes in itertools.product((1, 2, 3, 17, 18, 30), repeat=2):
        groups = rng.permutation(np.repeat([0, 1, 2], [*sizes, 3]))
        j = int(rng.choice(np.flatnonzero(groups == 0)))
        after = groups.copy()
        after[j] = 1
        c, c2 = (partner_weights(g, lambda _, m: gamma) for g in (groups, after))
        for _ in range(10):
            moved = largest_move(c, c2, j, [j, *rng.choice(groups.size, 2)])
            assert moved <= bound + 1e-9
            reached = max(reached, moved / bound)
    assert reached > 0.7


def regrouping_bound(c: int) -> float:
    """What is proved of c partners, from the least eigenvalue of their circle."""
    turn = np.linspace(0.0, math.pi, 4001)
    kernel = 1.0 + 2.0 * sum(np.cos(s * turn) for s in range(1, c + 1))
    r = (2 * c + 1 - float(kernel.min())) / (2 * c)
    return max(1.5 * r + 0.5 / (c + 1), r + 0.5 + 1.0 / c, 1.0 + 0.75 * r)


def test_the_claim_is_what_is_proved_of_so_many_partners() -> None:
    assert regrouping_bound(PARTNERS) < weight_change(dataclasses.replace(EXPOSED, matrix_change=1.0)) == 2.0
    assert regrouping_bound(6) > 2.0


@pytest.mark.parametrize("partners", [1, 2, 4, PARTNERS])
def test_regrouping_changes_weights_as_claimed(partners: int) -> None:
    """Any partition into any other, and other accuracies: a climb stays within what is proved, whatever the number of partners."""
    rng, bound = np.random.default_rng(7), regrouping_bound(partners)
    for _ in range(25):
        n, kinds = int(rng.integers(4, 60)), int(rng.integers(1, 4))
        both = [rng.integers(0, kinds, n), rng.integers(0, kinds + 1, n)]
        if rng.random() < 0.7:
            both[1] = np.where(rng.random(n) < rng.choice([0.1, 0.5]), rng.integers(0, kinds + 1, n), both[0])
        tables = [rng.choice([0.0, 0.3, 0.9], kinds + 3)] * 2
        if rng.random() < 0.3:
            tables[1] = np.clip(tables[0] + rng.normal(0.0, rng.choice([0.05, 0.5]), kinds + 3), 0.0, 1.0)
        ratio = change_ratio(both, tables, partners)
        for _ in range(15):
            side, rows = int(rng.integers(2)), rng.choice(n, 2)
            tried = [groups.copy() for groups in both]
            tried[side][rows] = rng.integers(0, kinds + 2, rows.size)
            if (found := change_ratio(tried, tables, partners)) >= ratio:
                both, ratio = tried, found
        assert ratio <= bound + 1e-9


@pytest.mark.parametrize(("partners", "least"), [(1, 2.0), (2, 1.75), (PARTNERS, 1.5)])
def test_regrouping_comes_near_the_bound(partners: int, least: float) -> None:
    """Two blocks exchange rows, each of which is the partner of rows that lose or gain no other."""
    before, after = list[int](), list[int]()
    for going, coming in itertools.repeat((0, 1), 4):
        for mover in (going, coming):
            before += [0, 1] * partners + [mover]
            after += [0, 1] * partners + [1 - mover]
    order = order_by_position(np.zeros(len(before)))
    both = [np.zeros(len(before), int) for _ in range(2)]
    both[0][order], both[1][order] = before, after
    assert least < change_ratio(both, [np.full(2, 0.5)] * 2, partners) <= regrouping_bound(partners)


def change_ratio(groups: list[Floats], tables: list[Floats], partners: int) -> float:
    """Change of the weights over that of the matching matrix."""
    weights = [
        partner_weights(g, lambda key, m, t=t: float(t[key]), partners) for g, t in zip(groups, tables, strict=True)
    ]
    matrices = [group_matrix(g, dict(enumerate(t.tolist())), 0.0) for g, t in zip(groups, tables, strict=True)]
    M = float(np.abs(matrices[0] - matrices[1]).sum())
    return float(np.abs(weights[0] - weights[1]).sum()) / M if M > 1e-9 else 0.0


def test_weights_under_an_explicit_matrix_stay_within() -> None:
    """Rows, columns and the change of C, for matrices with column sums above one, one of whose rows changes."""
    rng, reached = np.random.default_rng(8), np.zeros(3)
    for _ in range(60):
        n, least = 12, float(rng.choice([0.78, 0.85, 0.95]))
        noise = rng.dirichlet(np.full(n, rng.choice([0.05, 1.0])), n)
        noise = np.eye(n)[rng.integers(0, 2, n)] if rng.random() < 0.3 else noise  # columns that many rows link to
        Q = least * np.eye(n) + (1.0 - least) * noise
        Q2 = Q.copy()
        i = rng.integers(n)
        Q2[i] = least * np.eye(n)[i] + (1.0 - least) * np.eye(n)[rng.integers(n)]
        S = max(1.0, *(float(matrix.sum(axis=0).max()) for matrix in (Q, Q2)))
        exposure = LinkageExposure(False, False, least, S, float(np.abs(Q - Q2).sum()), 0)
        C, C2 = unlinking(Q, least), unlinking(Q2, least)
        row, column, others = pair_weights(exposure)
        size = np.abs(C)
        ratios = size.sum(axis=1).max() / row, size.sum(axis=0).max() / column
        ratios += (np.abs(C - C2).sum() / max(weight_change(exposure), 1e-12),)
        assert max(ratios) <= 1.0 + 1e-9
        assert (size.sum(axis=0) - np.diag(size)).max() <= others
        reached = np.maximum(reached, ratios)
    assert reached.min() > 0.5


# --- the releases themselves ----------------------------------------------------------------------------


def release_equation(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    spending = Spending(1.0)
    return release_right_residuals(rows.right_residuals(clip), spending, spending.take(1.0))


def release_squares(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    assert meat is not None
    share = TOTALS_MEAT if meat.clustered else MEAT
    return release_residual_meat(rows.right_residuals(clip, meat), Spending(1.0 / math.sqrt(share)))


def release_sizes(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    assert meat is not None
    norms = meat.norm * np.array([0.5, 1.0, 4.0])
    private = rows.contribution_sizes(clip, meat, norms)
    return release_contribution_sizes(private, Spending(1.0 / math.sqrt(TOTALS_SIZES)))


def in_strata(rows: LinkedRows) -> LinkedRows:
    """The same rows, which are drawn in strata by g and in clusters by blocks, or by w where these may change on many rows."""
    return rows.with_design(drawn_in_strata(rows.design, rows.fixed_blocks))


def drawn_in_strata(design: Design, fixed_blocks: bool) -> Design:
    """The design of such rows. A copy of rows holds no columns but those of the design that it was opened for."""
    cluster, levels = "block" if fixed_blocks else "w", {**design.levels, "g": ("a", "b", "c")}
    return dataclasses.replace(design, strata="g", cluster=cluster, levels=levels)


def release_strata_of(rows: LinkedRows, clip: ResidualClip, clustered: bool) -> Any:
    private = in_strata(rows).stratum_totals(clip, clustered=clustered)
    weights = np.linspace(1.0, 2.0, clip.beta.size)
    released = release_strata(private, weights, Spending(1.0 / math.sqrt(STRATA)))
    return released.centres.middles, released.centres.factors


def release_row_strata(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_strata_of(rows, clip, clustered=False)


def release_cluster_strata(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_strata_of(rows, clip, clustered=True)


def centred(meat: MeatClip | None, route: str) -> MeatClip:
    """Squares around any centres, which are public by then."""
    assert meat is not None
    rng, p = np.random.default_rng(7), meat.weights.size
    centres = Centres(meat.norm * rng.normal(0.0, 0.7, (4, p)), rng.uniform(1.0, 1.4, 4))
    return dataclasses.replace(meat, route=route, centres=centres)


def release_centred_rows(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_squares(in_strata(rows), clip, centred(meat, "row"))


def release_centred_clusters(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_squares(in_strata(rows), clip, centred(meat, "cluster"))


def release_centred_sizes(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_sizes(in_strata(rows), clip, centred(meat, "cluster"))


def release_own_strata(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    """Those of one stage, which sees no other row's response."""
    assert meat is not None
    private = in_strata(rows).row_strata(
        Predictor(clip.beta, np.zeros(len(rows.design.columns)), 0.8), meat.weights, meat.norm
    )
    released = release_strata(private, np.ones(clip.beta.size), Spending(1.0 / math.sqrt(STRATA)))
    return released.centres.middles, released.centres.factors


def release_own_centred(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    assert meat is not None
    around, rows = Predictor(clip.beta, np.zeros(len(rows.design.columns)), 0.8), in_strata(rows)
    private = rows.meat("row", around, meat.weights, meat.norm, centred(meat, "row").centres)
    return release_meat(private, Spending(1.0 / math.sqrt(MEAT)))


def release_fit(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    private = rows.squared_residuals(clip.beta, clip.limit)
    return release_squared_residuals(private, Spending(1.0 / math.sqrt(GOODNESS / 2.0)))


def release_slopes(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_curvature(rows.own_gram(), Spending(1.0), intervals=True, share=1.0).matrix


def release_first(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_sums(rows.instrument_sums(), Spending(1.0), intervals=False).matrix


def release_size(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    around = Predictor(clip.beta, np.zeros(len(rows.design.columns)), 1.0)
    counts = dataclasses.replace(rows.residual_counts(around, residual_edges(1.0)), rows=10**6)  # none is too few
    return release_residual_size(counts, Spending(1.0), 1.0)


def release_whitened(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    return release_equation(rows, whitened(clip), meat)


def release_whitened_squares(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    assert meat is not None
    return release_squares(rows, whitened(clip), dataclasses.replace(meat, route="row"))


def release_whitened_slopes(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
    rows = rows.with_design(dataclasses.replace(rows.design, half_widths=None))
    return release_whitened_gram(
        rows.whitened_gram(whitened(clip).whitening, counted=rows.dropped), Spending(1.0), 1.0
    ).matrix


def whitened(clip: ResidualClip) -> ResidualClip:
    """The clip with instruments that a matrix of its own turns and scales, some of which are longer than the norm."""
    if clip.whitening is not None:
        return clip
    p = clip.beta.size
    rng = np.random.default_rng([p, int(100.0 * clip.limit)])
    matrix = rng.normal(0, 1, (p, p)) * rng.choice([0.3, 1.0, 10.0], p)[:, None]
    return dataclasses.replace(
        clip, intercept_weight=0.0, whitening=Whitening(matrix, float(rng.choice([0.5, 2.0, 20.0])))
    )


RELEASES = {
    "equation": release_equation,
    "row squares": release_squares,
    "block squares": release_squares,
    "cluster squares": release_squares,
    "cluster sizes": release_sizes,
    "strata of rows": release_row_strata,
    "strata of clusters": release_cluster_strata,
    "centred rows": release_centred_rows,
    "centred clusters": release_centred_clusters,
    "centred sizes": release_centred_sizes,
    "squared residuals": release_fit,
    "slopes": release_slopes,
    "first sums": release_first,
    "whitened equation": release_whitened,
    "whitened squares": release_whitened_squares,
    "whitened slopes": release_whitened_slopes,
}
ONE_STAGE = {"own strata": release_own_strata, "own centred": release_own_centred}
SIZE = {**ONE_STAGE, "size": release_size, "person squares": release_squares, "person sizes": release_sizes}
Change = Callable[[LinkedRows], LinkedRows]


def check(
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    pair: Pair,
    clip: ResidualClip,
    formula: str,
    typical: Any = None,
    change: Change = lambda rows: rows,
    norm: float = 0.3,
    store: Callable[[Any], Any] = lambda data: data,
    weights: Any = None,
) -> float:
    """Distance of the neighbours in units of the noise, which has μ = 1 for each row of a person; Leak if it is above that."""
    p = clip.beta.size
    meat = MeatClip(what.split()[0], np.linspace(1.0, 2.0, p) if weights is None else weights, norm)
    sides = ((pair.data, pair.linkage), (pair.other, pair.other_linkage))

    def run(data: Any, linkage: Any) -> Any:
        strata = "strata" in what or "centred" in what
        rows = open_rows(store(data), linkage, pair.unit, formula, typical, strata)
        return {**RELEASES, **SIZE}[what](change(rows), clip, meat)

    runs = [partial(run, *side) for side in sides]
    return replay(monkeypatch, *runs, float(pair.unit.rows), show=str)


def draw_clip(rng: np.random.Generator, p: int, intercept: bool) -> ResidualClip:
    iota = float(rng.choice([0.1, 0.5, 1.0])) if intercept else 0.0
    return ResidualClip(rng.normal(0, rng.choice([0.0, 0.5]), p), float(rng.choice([0.05, 0.3, 2.0])), iota, 4.0)


def can_be_unlinked(pair: Pair) -> bool:
    exposure = pair.linkage.exposure(pair.unit)
    return exposure.symmetric or unlinking_terms(exposure.accuracy_min) is not None


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER_KINDS])
@pytest.mark.parametrize("what", RELEASES)
def test_no_neighbour_moves_a_release_further(monkeypatch: pytest.MonkeyPatch, what: str, kind: str) -> None:
    rng, done = np.random.default_rng([len(kind), len(what)]), 0
    for seed in range(16):
        pair = make_pair(rng, kind, SIZES[seed % 3] if seed % 2 else None)
        formula, typical = FORMULAS[seed % 3], {"x": (2.0, 4.0)} if seed % 4 < 2 else None
        intercept = "0 +" not in formula
        clip = draw_clip(rng, 2 if seed % 3 < 2 else 5, intercept)
        blocks = kind != "matching" and kind != "exact" and pair.unit.fixes_blocks
        if can_be_unlinked(pair) and (blocks or what != "block squares"):
            check(monkeypatch, what, pair, clip, formula, typical)
            done += 1
    assert done >= 3 or what == "block squares"


@pytest.mark.parametrize("kind", [kind for kind in (*KINDS, *FURTHER_KINDS) if kind != "matching"])
@pytest.mark.parametrize("what", ONE_STAGE)
def test_no_neighbour_moves_strata_of_one_stage_further(monkeypatch: pytest.MonkeyPatch, what: str, kind: str) -> None:
    rng = np.random.default_rng([len(kind), len(what)])
    for seed in range(12):
        pair = make_pair(rng, kind, SIZES[seed % 3] if seed % 2 else None)
        formula, typical = FORMULAS[seed % 3], {"x": (2.0, 4.0)} if seed % 4 < 2 else None
        clip = draw_clip(rng, 2 if seed % 3 < 2 else 5, "0 +" not in formula)
        check(monkeypatch, what, pair, clip, formula, typical, norm=float(rng.choice([0.1, 1.0])))


MISSING_RELEASES = (
    *(
        "equation",
        "row squares",
        "block squares",
        "cluster squares",
        "cluster sizes",
        "strata of rows",
        "strata of clusters",
        "centred rows",
        "centred clusters",
        "centred sizes",
        "slopes",
        "size",
        "squared residuals",
    ),
    *("whitened equation", "whitened squares", "whitened slopes"),
)


def lose_cells(pair: Pair, rng: np.random.Generator) -> Pair:
    """The same pair, in which some cells are missing on both sides, and more of those that differ on one side or the other."""
    sides = [{name: column.copy() for name, column in side.items()} for side in (pair.data, pair.other)]
    for name in ("x", "w", "y"):
        if name in sides[0]:
            lost = rng.random(sides[0][name].size) < 0.2
            changed = sides[0][name] != sides[1][name]
            for side in sides:
                side[name][lost & ~changed] = np.nan
            sides[int(rng.integers(2))][name][changed & (rng.random(changed.size) < 0.7)] = np.nan
    if "g" in sides[0] and sides[0]["g"].dtype == object:
        changed = np.flatnonzero(sides[0]["g"] != sides[1]["g"])
        sides[int(rng.integers(2))]["g"][changed] = None
    return dataclasses.replace(pair, data=sides[0], other=sides[1])


IN_TURN = [  # every third by default
    pytest.param(what, kind, marks=pytest.mark.slow if (i + j) % 3 else ())
    for i, what in enumerate(MISSING_RELEASES)
    for j, kind in enumerate([*KINDS, *FURTHER_KINDS])
]


@pytest.mark.parametrize(("what", "kind"), IN_TURN)
def test_no_cell_that_becomes_missing_moves_a_release_further(
    monkeypatch: pytest.MonkeyPatch, what: str, kind: str
) -> None:
    """Regressors and responses of a person become missing or present, on both of their rows."""
    rng, done = np.random.default_rng([len(kind), len(what), 1]), 0
    for seed in range(12):
        pair = lose_cells(make_pair(rng, kind, SIZES[seed % 3] if seed % 2 else None), rng)
        formula, typical = FORMULAS[seed % 3], {"x": (2.0, 4.0)} if seed % 4 < 2 else None
        clip = draw_clip(rng, 2 if seed % 3 < 2 else 5, "0 +" not in formula)
        blocks = kind != "matching" and kind != "exact" and pair.unit.fixes_blocks
        if can_be_unlinked(pair) and (blocks or what != "block squares"):
            check(monkeypatch, what, pair, clip, formula, typical, LinkedRows.without_missing)
            done += 1
    assert done >= 3 or what == "block squares"


def count_by_x(rows: LinkedRows) -> LinkedRows:
    """The same rows, which count by their own x, and nothing if it is small."""
    low, high = rows.design.bounds["x"]
    counting = declare_counting("x", f"x > {low + 0.1 * (high - low)}", {"x": (0.0, high)}, {})
    return rows.with_design(dataclasses.replace(rows.design, counting=counting)).without_missing()


@pytest.mark.parametrize(("what", "kind"), IN_TURN)
def test_nothing_that_a_row_counts_moves_a_release_further(
    monkeypatch: pytest.MonkeyPatch, what: str, kind: str
) -> None:
    """What a person's row counts changes with the person's x, from nothing to all or anywhere between."""
    rng, done = np.random.default_rng([len(kind), len(what), 2]), 0
    for seed in range(12):
        pair = make_pair(rng, kind, SIZES[seed % 3] if seed % 2 else None)
        pair = lose_cells(pair, rng) if seed % 3 == 0 else pair
        formula, typical = FORMULAS[seed % 3], {"x": (2.0, 4.0)} if seed % 4 < 2 else None
        clip = draw_clip(rng, 2 if seed % 3 < 2 else 5, "0 +" not in formula)
        blocks = kind != "matching" and kind != "exact" and pair.unit.fixes_blocks
        if can_be_unlinked(pair) and (blocks or what != "block squares"):
            check(monkeypatch, what, pair, clip, formula, typical, count_by_x)
            done += 1
    assert done >= 3 or what == "block squares"


@pytest.mark.parametrize("kind", ["ele", "displaced", "mover"])
def test_nothing_that_a_row_counts_moves_another_engine_further(
    monkeypatch: pytest.MonkeyPatch, kind: str, store: Callable[[Any], Any]
) -> None:
    rng = np.random.default_rng(len(kind))
    for what, sizes in itertools.product(("equation", "slopes"), ([18, 17, 2, 1], [16, 3])):
        pair = make_pair(rng, kind, sizes)
        check(monkeypatch, what, pair, draw_clip(rng, 2, True), "y ~ x", None, count_by_x, store=store)


@pytest.mark.parametrize(("largest", "what"), list(itertools.product([1.0, 1.5], ["equation", "whitened slopes"])))
def test_catches_rows_that_count_for_more_than_one(monkeypatch: pytest.MonkeyPatch, largest: float, what: str) -> None:
    """The slopes have no room for it, and neither has the equation if its clips do not know of it."""
    pair = turn(opposed_pair(0.5, 40)) if what == "equation" else exact_pair()
    clip = ResidualClip(np.zeros(2), 0.5, 0.01, 4.0)
    if what == "whitened slopes":
        clip = dataclasses.replace(clip, intercept_weight=0.0, whitening=Whitening(np.eye(2), 1.4))
    widths, counting = ResidualClip.widths, declare_counting("x", None, {"x": (0.0, 1.0)}, {})
    monkeypatch.setattr(kernel, "KERNEL", None)
    monkeypatch.setattr(Counting, "write_factors", lambda counting, raw, codes, out: out.fill(largest))
    monkeypatch.setattr(ResidualClip, "widths", lambda clip, h, counted=1.0: widths(clip, h))

    def counted(rows: LinkedRows) -> LinkedRows:
        return rows.with_design(dataclasses.replace(rows.design, counting=counting)).without_missing()

    with pytest.raises(Leak) if largest > 1.0 else nullcontext():
        assert check(monkeypatch, what, pair, clip, "y ~ x", change=counted) > 0.7


@pytest.mark.parametrize("kind", ["ele", "displaced", "mover"])
def test_no_cell_that_becomes_missing_moves_another_engine_further(
    monkeypatch: pytest.MonkeyPatch, kind: str, store: Callable[[Any], Any]
) -> None:
    rng = np.random.default_rng(len(kind))
    for what, sizes in itertools.product(("equation", "slopes"), ([18, 17, 2, 1], [16, 3])):
        pair = lose_cells(make_pair(rng, kind, sizes), rng)
        check(monkeypatch, what, pair, draw_clip(rng, 2, True), "y ~ x", None, LinkedRows.without_missing, store=store)


@pytest.fixture(params=["NumPy", "parquet", "duckdb", "copy"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Data as another engine gets it."""
    if request.param == "NumPy":
        monkeypatch.setattr(kernel, "KERNEL", None)
        return lambda data: data

    def save(data: Any) -> Path:
        pq.write_table(pa.table(data), tmp_path / "rows.parquet", row_group_size=7)
        return tmp_path / "rows.parquet"

    if request.param == "parquet":
        monkeypatch.setattr(file_engine, "IN_MEMORY", 0)
        monkeypatch.setattr(importlib.import_module("dplinked.data.parquet"), "PART", 8)
        return save
    draw_alike(monkeypatch)
    if request.param == "duckdb":
        add_by_sql(monkeypatch)
    return lambda data: dpl.Query(f"select * from '{save(data)}'")


@pytest.mark.parametrize("kind", ["ele", "displaced", "mover", "regrouped"])
@pytest.mark.parametrize(
    "what",
    [
        "equation",
        "whitened equation",
        "cluster squares",
        "centred clusters",
        "squared residuals",
        *(
            pytest.param(what, marks=pytest.mark.slow)
            for what in (
                "strata of rows",
                "strata of clusters",
                "centred rows",
                "centred sizes",
                "row squares",
                "cluster sizes",
                "slopes",
                "whitened slopes",
            )
        ),
    ],
)
def test_no_neighbour_moves_a_release_of_another_engine_further(
    monkeypatch: pytest.MonkeyPatch, what: str, kind: str, store: Callable[[Any], Any]
) -> None:
    rng = np.random.default_rng([len(kind), len(what)])
    for sizes in ([18, 17, 2, 1], [40, 3]):
        check(monkeypatch, what, make_pair(rng, kind, sizes), draw_clip(rng, 2, True), "y ~ x", store=store)


def weighed(rows: LinkedRows, weights: dict[int, float], accuracy: dict[int, float]) -> LinkedRows:
    return rows.with_weights({str(key): (weights[key], accuracy[key]) for key in weights})


@pytest.mark.parametrize("typical", [None, {"x": (2.0, 4.0)}])
@pytest.mark.parametrize("what", RELEASES)
def test_weighed_groups_move_releases_within(monkeypatch: pytest.MonkeyPatch, what: str, typical: Any) -> None:
    """Groups of different accuracies and weights; sensitivities count the largest product, not the product of the largest."""
    rng = np.random.default_rng(len(what))
    for seed in range(16):
        pair = make_pair(rng, ("ele", "displaced")[seed % 2], [20, 17, 2])
        accuracy = {0: 0.95, 1: float(rng.uniform(0.3, 0.6)), 2: 0.5}
        weights = {0: 1.0, 1: float(rng.uniform(0.05, 1.0)), 2: float(rng.uniform(0.05, 1.0))}
        linkage = dpl.ELE(accuracy, block="block", other=0.9)
        pair = dataclasses.replace(pair, linkage=linkage, other_linkage=linkage)
        clip = draw_clip(rng, 2, seed % 2 == 0)
        check(
            monkeypatch,
            what,
            pair,
            clip,
            FORMULAS[seed % 2],
            typical,
            lambda rows, weights=weights, accuracy=accuracy: weighed(rows, weights, accuracy),
        )


# --- neighbours that reach the bound --------------------------------------------------------------------


def opposed_pair(gamma: float, m: int, weights: Any = None) -> Pair:
    """Row 0 turns its instrument, and the response of another block goes from one end to the other.

    Rows stand at 0, so that all residuals are beyond their clips. Row 0 has another response than its partners; the row of the changed response
    has another instrument than those whose partner it is.
    """
    x, y, b = np.full(2 * m, -1.0), np.full(2 * m, -1.0), np.repeat([0, 1], m)
    x[0], y[0] = 1.0, 1.0
    x[m], y[m] = 1.0, -1.0
    other = {"x": x.copy(), "y": y.copy(), "b": b}
    other["x"][0], other["y"][m] = -1.0, 1.0
    linkage = dpl.ELE(gamma, block="b", other=gamma)
    return Pair({"x": x, "y": y, "b": b}, other, linkage, linkage, dpl.PrivacyUnit())


def turn(pair: Pair) -> Pair:
    """The same with the change of row 0 in the other direction, as that of the response goes."""
    data, other = ({**side, "x": side["x"].copy()} for side in (pair.data, pair.other))
    data["x"][0], other["x"][0] = -1.0, 1.0
    return dataclasses.replace(pair, data=data, other=other)


@pytest.mark.parametrize(("gamma", "m"), [(0.5, 40), (0.8, 40), (0.8, 18), (0.95, 17), (0.95, 6)])
def test_rows_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float, m: int) -> None:
    """Real rows by the real pass; an intercept, whose 1 nobody can turn, leaves more room."""
    pair = turn(opposed_pair(gamma, m))
    reached = check(monkeypatch, "equation", pair, ResidualClip(np.zeros(1), 0.5, 0.0, 4.0), "y ~ 0 + x")
    assert reached > (0.95 if m > 17 else 0.85)
    clip = ResidualClip(np.zeros(2), 0.5, 0.4, 4.0)
    assert check(monkeypatch, "equation", pair, clip, "y ~ x") > 0.8


@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_rows_with_holes_elsewhere_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float) -> None:
    """Dropping other people's cells makes no room; and a response that becomes missing goes half of the way that it may go."""
    pair, clip = turn(opposed_pair(gamma, 40)), ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)
    for side in (pair.data, pair.other):
        side["x"], side["y"] = np.r_[side["x"], np.nan], np.r_[side["y"], 1.0]
        side["b"] = np.r_[side["b"], 7]
    drop = LinkedRows.without_missing
    assert check(monkeypatch, "equation", pair, clip, "y ~ 0 + x", change=drop) > 0.95
    lost = {**pair.other, "y": np.where(pair.data["y"] != pair.other["y"], np.nan, pair.other["y"])}
    half = dataclasses.replace(pair, other=lost)
    assert 0.7 < check(monkeypatch, "equation", half, clip, "y ~ 0 + x", change=drop) < 0.76


TURNING = Whitening(
    np.array([[0.1, 0.0], [0.05, 2.0]]), 1.0
)  # rows at both ends are nearly opposite, and longer than the norm


@pytest.mark.parametrize(("gamma", "m"), [(0.5, 40), (0.95, 17)])
def test_whitened_rows_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float, m: int) -> None:
    clip = ResidualClip(np.zeros(2), 0.3, 0.0, 4.0, TURNING)
    assert check(monkeypatch, "whitened equation", turn(opposed_pair(gamma, m)), clip, "y ~ x") > 0.85


def count_by_weight(rows: LinkedRows) -> LinkedRows:
    """The same rows, which count by a weight of their own, and only if it is above 0."""
    bounds = {**rows.design.bounds, "v": (0.0, 1.0)}
    counting = declare_counting("v", "v > 0", bounds, {})
    fill = {**rows.design.fill, "v": 0.5}
    return rows.with_design(
        dataclasses.replace(rows.design, counting=counting, bounds=bounds, fill=fill)
    ).without_missing()


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_weighted_rows_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float) -> None:
    """Weights make no room: with the largest on all rows a person moves the equation as far as without, and one that comes from outside of the subgroup half as far by their row."""
    pair, clip = turn(opposed_pair(gamma, 40)), ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)
    for side in (pair.data, pair.other):
        side["v"] = np.ones(80)
    assert check(monkeypatch, "equation", pair, clip, "y ~ 0 + x", change=count_by_weight) > 0.95
    pair.data["v"] = np.r_[0.0, np.ones(79)]
    assert 0.7 < check(monkeypatch, "equation", pair, clip, "y ~ 0 + x", change=count_by_weight) < 0.8


def test_the_weighted_slope_and_the_subgroups_number_reach_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes: a row turns at the largest weight, as far as where all count the same. Numbers: one more is in the subgroup, and its row has a response."""
    n, clip = 40, ResidualClip(np.zeros(3), 0.5, 0.4, 4.0)
    side = {"x": np.full(n, 10.0), "w": np.full(n, 1.0), "g": np.full(n, "a"), "y": np.zeros(n), "v": np.ones(n)}
    turned = {**side, "w": np.r_[-3.0, side["w"][1:]]}
    pair = Pair(side, turned, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit())
    plain, weighted = (
        check(monkeypatch, "slopes", pair, clip, "y ~ x + w", change=change)
        for change in (LinkedRows.without_missing, count_by_weight)
    )
    assert weighted == pytest.approx(plain)
    assert weighted > 0.85  # of core and totals together, which do not move the most at once: see release_curvature
    around = {"x": np.full(40, 0.9), "y": np.zeros(40), "v": np.ones(40)}
    outside = {**around, "v": np.r_[0.0, np.ones(39)]}
    pair = Pair(around, outside, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit())
    counts = [open_rows(side, dpl.Exact(), pair.unit, "y ~ x") for side in (around, outside)]
    found = [count_by_weight(rows).own_gram().sums for rows in counts]
    assert found[0].known - found[1].known == pytest.approx(row_total_sensitivity(EXACT))
    assert found[0].complete - found[1].complete == pytest.approx(row_total_sensitivity(EXACT))


@pytest.mark.parametrize("gamma", [None, 0.5, 0.9])
def test_rows_of_a_person_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float | None) -> None:
    """Three rows turn together, and three responses: three times what one does."""
    m = 60
    x, y, b = np.full(2 * m, -1.0), np.full(2 * m, -1.0), np.repeat([0, 1], m)
    own, held = slice(0, 3), slice(m, m + 3)
    y[own] = 1.0
    x[held] = 1.0
    person, owner = np.arange(2 * m), np.arange(2 * m) + 1000
    person[own], owner[held] = 7, 1007
    person[7], owner[7] = 5000, 5000
    data = {"x": x, "y": y, "b": b, "person": person, "owner": owner}
    other = {**data, "x": x.copy(), "y": y.copy()}
    other["x"][own] = 1.0
    if gamma is not None:
        other["y"][held] = 1.0
    unit = dpl.PrivacyUnit(rows=3, id="person", response_id=None if gamma is None else "owner")
    linkage: Any = dpl.Exact() if gamma is None else dpl.ELE(gamma, block="b", other=gamma)
    pair = Pair(data, other, linkage, linkage, unit)
    clip = ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)
    assert check(monkeypatch, "equation", pair, clip, "y ~ 0 + x") > 0.9


def exact_pair() -> Pair:
    """A row whose (1, x) goes from (1, 1) to (1, -1)."""
    data = {"x": np.linspace(-1.0, 1.0, 40), "y": np.zeros(40)}
    other = {**data, "x": np.r_[1.0, data["x"][1:]]}
    return Pair(data, other, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit())


@pytest.mark.parametrize("norm", [0.3, 1.0, 1.4])
def test_squares_of_whitened_rows_reach_the_bound(monkeypatch: pytest.MonkeyPatch, norm: float) -> None:
    clip = ResidualClip(np.zeros(2), 0.3, 0.0, 4.0, Whitening(np.eye(2), norm))
    assert check(monkeypatch, "whitened slopes", exact_pair(), clip, "y ~ x") > 0.99


def squared_pair(gamma: float) -> tuple[Pair, float]:
    """Row 0 turns its instrument from v to x; a changed response brings its row, whose instrument is x, a square, and each row that has it as a partner more of one. Also the norm, over K, at which nothing is lost by cutting.

    Own responses of these 16 rows are above their lines, and of the 15 others that each of them meets 8 are above and 7 below it, so that its contribution grows just up to the norm. Lines
    fall along the circle, so that a response which is just above its own line is below those of all rows before it.
    """
    m, above = 40, [-1, 1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1]
    x, v, y, b = np.zeros(2 * m), np.zeros(2 * m), np.ones(2 * m), np.repeat([0, 1], m)
    v[0], y[0] = 1.0, -1.0
    placed = np.argsort(circle.rank_slots(b, np.array([0, m, 2 * m]), np.zeros(2, np.uint32)))[m:]
    meeting, changed, met = placed[:16], placed[16], placed[17:33]
    x[meeting] = 0.8 - 0.04 * np.arange(16)
    y[meeting] = np.where([True] + [sign > 0 for sign in above], 1.0, x[meeting] + 0.02)
    y[met] = [*above, above[0]]
    x[changed] = y[changed] = 0.9
    other = {"x": x.copy(), "v": v.copy(), "y": y.copy(), "b": b}
    other["x"][0], other["v"][0], other["y"][changed] = 1.0, 0.0, -1.0
    linkage = dpl.ELE(gamma, block="b", other=gamma)
    pair = Pair({"x": x, "v": v, "y": y, "b": b}, other, linkage, linkage, dpl.PrivacyUnit())
    return pair, 1.0 - (1.0 - gamma) / (m - 1)


@pytest.mark.parametrize("gamma", [0.5, 0.7, 0.9, 0.99])
def test_squares_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float) -> None:
    """Where cutting is looser or closer than this less can be reached: partners' contributions are then cut, or shorter than the norm."""
    (pair, norm), clip = squared_pair(gamma), ResidualClip(np.array([1.0, 0.0]), 1e-4, 0.0, 4.0)
    cut, weights = norm * clip.limit, np.ones(2)
    assert check(monkeypatch, "row squares", pair, clip, "y ~ 0 + x + v", norm=cut, weights=weights) > 0.95


def test_squares_that_nothing_cuts_are_no_longer_than_contributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the norm, a row turns no more than its longest contribution."""
    data = {"x": np.r_[1.0, np.zeros(9)], "v": np.zeros(10), "y": np.ones(10)}
    other = {**data, "x": np.zeros(10), "v": np.r_[1.0, np.zeros(9)]}
    pair = Pair(data, other, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit())
    clip, weights = ResidualClip(np.zeros(2), 0.1, 0.0, 4.0), np.ones(2)
    for norm in (0.05, 0.1, 0.5, 10.0):
        assert check(monkeypatch, "row squares", pair, clip, "y ~ 0 + x + v", norm=norm, weights=weights) > 0.99


@pytest.mark.parametrize(("gamma", "least"), [(None, 0.99), (0.5, 0.88), (0.9, 0.88)])
def test_squared_residuals_reach_the_bound(monkeypatch: pytest.MonkeyPatch, gamma: float | None, least: float) -> None:
    """Row 0's own square goes from nothing to all, and those with its partners from all to nothing; and so does the response on row m, as its own and as a partner's."""
    m = 40
    x, y, b = np.r_[np.full(m, 1.0), -1.0, np.full(m - 1, 1.0)], np.full(2 * m, -1.0), np.repeat([0, 1], m)
    y[0] = 1.0
    other = {"x": x.copy(), "y": y.copy(), "b": b}
    other["x"][0] = -1.0
    if gamma is not None:
        other["y"][m] = 1.0
    linkage: Any = dpl.Exact() if gamma is None else dpl.ELE(gamma, block="b", other=gamma)
    pair = Pair({"x": x, "y": y, "b": b}, other, linkage, linkage, dpl.PrivacyUnit())
    clip = ResidualClip(np.array([1.0]), 0.5, 0.0, 4.0)
    assert check(monkeypatch, "squared residuals", pair, clip, "y ~ 0 + x") > least


def clustered_pair(what: str) -> Pair:
    """Row 0 leaves cluster a for b. Squares: the total of a was its own, and that of b becomes its other own. Sizes: it was all there is of a, and leaves nothing of b."""
    first, second = (1.0, 0.0), (0.0, 1.0)
    listed = {
        "squares": [(*first, "a", 1.0), (*second, "a", 0.1), (*first, "b", 0.1)],
        "sizes": [(*first, "a", 1.0), (*first, "b", -1.0)],
    }[what]
    x, w, g, y = (np.array(column) for column in zip(*listed, strict=True))
    data = {"x": 5.0 + 5.0 * x, "w": -1.0 + 2.0 * w, "g": g, "y": 2.0 + 4.0 * y}
    other = {name: column.copy() for name, column in data.items()}
    other["g"][0] = "b"
    if what == "squares":
        other["x"][0], other["w"][0] = data["x"][1], data["w"][1]
    return Pair(data, other, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit())


@pytest.mark.parametrize("what", ["squares", "sizes"])
def test_a_row_that_changes_its_cluster_reaches_the_bound(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    clip = ResidualClip(np.zeros(3), 3.0, 1.0, 4.0)
    weights = np.array([1e-9, 1.0, 1.0])  # the intercept's entry, which nobody can turn, is left aside
    pair, norm = clustered_pair(what), 0.05 if what == "squares" else 1e-3
    assert check(monkeypatch, f"cluster {what}", pair, clip, "y ~ x + w", norm=norm, weights=weights) > 0.95


@pytest.mark.parametrize(("what", "kind"), list(itertools.product(["squares", "sizes"], ["exact", "ele", "matching"])))
def test_rows_of_a_person_move_totals_within(monkeypatch: pytest.MonkeyPatch, what: str, kind: str) -> None:
    """All rows of a person change together, and so do the rows that hold the person's responses; noise is planned for one of three."""
    rng, n, reached = np.random.default_rng(len(kind + what)), 30, 0.0
    for _ in range(20):
        x, y, person = rng.choice([-1.0, 1.0], n), rng.choice([-1.0, 1.0], n), np.arange(n) // 3
        owner = person if kind == "exact" else rng.permutation(person)
        data = {"x": x, "y": y, "b": np.arange(n) // 10, "person": person, "owner": owner}
        other = {**data, "x": np.where(person == 2, -x, x), "y": np.where(owner == 2, -y, y)}
        unit = dpl.PrivacyUnit(rows=3, id="person", response_id=None if kind == "exact" else "owner")
        linkage: Any = dpl.Exact() if kind == "exact" else dpl.ELE(0.8, block="b")
        if kind == "matching":
            around = sp.diags_array([0.8, 0.2, 0.2], offsets=[0, 1, 1 - n], shape=(n, n)).tocsr()
            linkage = dpl.Matching(around, accuracy_min=0.8)
            unit = dataclasses.replace(unit, linkage_change=0.0, displaced_links=0)
        pair = Pair(data, other, linkage, linkage, unit)
        clip, norm = draw_clip(rng, 2, True), float(rng.choice([0.1, 0.5, 2.0]))
        reached = max(reached, check(monkeypatch, f"person {what}", pair, clip, "y ~ x", norm=norm))
    assert reached > (0.3 if kind == "exact" else 0.1)  # by chance; the next test has the worst


def turned_totals(n: int, persons: int) -> dict[str, Any]:
    """Rows whose totals a response turns from v to x when it falls from one end to the other: rows 10, 20, … hold it, and the next row of each stands between both."""
    x, v, y = np.zeros(n), np.zeros(n), np.ones(n)
    holding = 10 * (1 + np.arange(persons))
    x[holding], v[holding] = -0.5, 0.5
    x[holding + 1], v[holding + 1] = 0.5, 0.5
    return {"x": x, "v": v, "y": y, "b": np.zeros(n, int), "holding": holding}


@pytest.mark.parametrize(("gamma", "least"), [(None, 0.99), (0.9, 0.83), (0.99, 0.95)])
def test_rows_of_a_person_turn_totals_as_far_as_the_bound(
    monkeypatch: pytest.MonkeyPatch, gamma: float | None, least: float
) -> None:
    """All rows of a person turn, and with each of the person's responses the total of another one. Only rows with changed partners do not add here what they might: a tenth of the bound at γ = .9."""
    n, L = 120, 3
    data = turned_totals(n, L)
    holding = data.pop("holding")
    person, owner = np.arange(n), np.arange(n) + 1000
    person[:L], owner[holding] = 0, 1000
    person[holding + 1] = person[holding]
    owner[:L] = 1000 + holding
    data["v"][:L], data["x"][:L] = 1.0, 0.0
    other = {**data, "x": data["x"].copy(), "v": data["v"].copy(), "y": data["y"].copy()}
    other["x"][:L], other["v"][:L] = 1.0, 0.0
    if gamma is not None:
        other["y"][holding] = -1.0
    for side in (data, other):
        side.update(person=person, owner=owner)
    unit = dpl.PrivacyUnit(rows=L, id="person", response_id=None if gamma is None else "owner")
    linkage: Any = dpl.Exact() if gamma is None else dpl.ELE(gamma, block="b")
    pair = Pair(data, other, linkage, linkage, unit)
    clip, weights = ResidualClip(np.zeros(2), 0.1, 0.0, 4.0), np.ones(2)
    norm = 0.1 if gamma is None else 0.14
    assert check(monkeypatch, "person squares", pair, clip, "y ~ 0 + x + v", norm=norm, weights=weights) > least


@pytest.mark.parametrize("gamma", [None, 0.995])
def test_rows_of_a_person_reach_the_bound_of_sizes(monkeypatch: pytest.MonkeyPatch, gamma: float | None) -> None:
    """The person's own total grows from nothing, and so do those of the three rows that hold the person's responses. Rows with changed partners, which are allowed for, add little here."""
    n, L = 120, 3
    x, y, person, owner = np.ones(n), np.zeros(n), np.arange(n), np.arange(n) + 1000
    holding = 10 * (1 + np.arange(L))
    person[:L], owner[holding], owner[:L] = 0, 1000, 1000 + holding
    x[:L], y[:L] = 0.0, 1.0
    data = {"x": x, "y": y, "b": np.zeros(n, int), "person": person, "owner": owner}
    other = {**data, "x": np.ones(n), "y": y.copy()}
    if gamma is not None:
        other["y"][holding] = 1.0
    unit = dpl.PrivacyUnit(rows=L, id="person", response_id=None if gamma is None else "owner")
    linkage: Any = dpl.Exact() if gamma is None else dpl.ELE(gamma, block="b")
    clip = ResidualClip(np.zeros(1), 0.1, 0.0, 4.0)
    pair = Pair(data, other, linkage, linkage, unit)
    assert check(monkeypatch, "person sizes", pair, clip, "y ~ 0 + x", norm=0.024, weights=np.ones(1)) > 0.9


def test_a_row_that_changes_its_cluster_and_a_response_reach_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three totals turn: the one that the row leaves, the one that it enters, and that of the row which holds the response."""
    n = 60
    data = turned_totals(n, 1)
    (holding,) = data.pop("holding")
    g = np.array([f"{row}" for row in range(n)], object)
    g[holding + 1] = g[holding]
    data["v"][0], data["x"][1], data["x"][2], data["v"][2] = 1.0, 0.1, 0.0, 0.1
    g[:2], g[2] = "from", "to"  # 0 and 1 together, and 2 alone
    data["y"][[1, 2]] = 0.01  # short contributions
    other = {**data, "x": data["x"].copy(), "v": data["v"].copy(), "y": data["y"].copy()}
    other["x"][0], other["v"][0], other["y"][holding] = 1.0, 0.0, -1.0
    moved = g.copy()
    moved[0] = "to"
    linkage = dpl.ELE(0.999, block="b")
    pair = Pair({**data, "g": g}, {**other, "g": moved}, linkage, linkage, dpl.PrivacyUnit())
    clip, weights = ResidualClip(np.zeros(2), 0.01, 0.0, 4.0), np.ones(2)
    assert check(monkeypatch, "cluster squares", pair, clip, "y ~ 0 + x + v", norm=1e-3, weights=weights) > 0.9


@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_totals_of_strata_reach_the_bound(gamma: float) -> None:
    """The equation of one stratum moves as far as that of all rows, also where responses are met in others; and numbers where a row leaves one for another."""
    pair, clip = turn(opposed_pair(gamma, 40)), ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)
    g = np.repeat(["a", "b"], 40)
    apart, alike = (np.where(np.arange(80) % 40 == 0, "a", g), np.full(80, "a"))
    for strata, least in ((alike, 0.95), (apart, 0.7)):
        found = [
            in_strata(open_rows({**side, "g": strata}, pair.linkage, pair.unit, "y ~ 0 + x")).stratum_totals(
                clip, clustered=False
            )
            for side in (pair.data, pair.other)
        ]
        moved = float(np.linalg.norm(found[0].totals - found[1].totals))
        assert least < moved / stratum_totals_sensitivity(clip.limit, found[0].exposure) <= 1.0
    left = {**pair.data, "g": np.append(["c"], apart[1:])}
    numbers = [
        in_strata(open_rows(side, pair.linkage, pair.unit, "y ~ 0 + x")).stratum_totals(clip, clustered=False).numbers
        for side in ({**pair.data, "g": apart}, left)
    ]
    assert np.linalg.norm(numbers[0] - numbers[1]) == pytest.approx(stratum_numbers_sensitivity(clustered=False))


def test_numbers_of_clusters_move_within() -> None:
    """A row of the first stratum leaves a cluster, which then is one of the second, and enters another, which then is one of the first."""
    g, block = np.array(["a", "b", "b", "b"]), np.array([0, 0, 1, 1])
    data = {"x": np.zeros(4), "y": np.zeros(4), "g": g, "b": np.zeros(4), "block": block}
    other = {**data, "block": np.array([1, 0, 1, 1])}
    clip = ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)
    found = [
        in_strata(open_rows(side, dpl.Exact(), dpl.PrivacyUnit(), "y ~ 0 + x"))
        .stratum_totals(clip, clustered=True)
        .numbers
        for side in (data, other)
    ]
    assert found[0].tolist() == [1, 1, 0, 0]
    assert found[1].tolist() == [1, 1, 0, 0]
    alone = {**data, "g": np.array(["a", "b", "c", "c"]), "block": np.array([0, 0, 1, 1])}
    moved = {**alone, "block": np.array([1, 0, 1, 1])}
    gone = [
        in_strata(open_rows(side, dpl.Exact(), dpl.PrivacyUnit(), "y ~ 0 + x"))
        .stratum_totals(clip, clustered=True)
        .numbers
        for side in (alone, moved)
    ]
    assert gone[0].tolist() == [1, 0, 1, 0]
    assert gone[1].tolist() == [1, 1, 0, 0]
    assert np.linalg.norm(gone[0] - gone[1]) <= stratum_numbers_sensitivity(clustered=True)


@pytest.mark.parametrize("container", ["NumPy", "duckdb"])
def test_numbers_of_clusters_reach_the_bound(container: str, tmp_path: Path) -> None:
    """A row that goes from a to b was the first of the cluster that it leaves, whose others are in b, and is the first of the one that it enters, which was in c. No other change of one row does more."""
    clip = ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)

    def numbers(strata: str, clusters: str) -> Floats:
        rows: Any = {"x": np.zeros(5), "y": np.zeros(5), "b": np.zeros(5), "g": np.array(list(strata)), "block": np.array(list(clusters))}  # fmt: skip
        if container == "duckdb":
            pytest.importorskip("duckdb")
            pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
            rows = dpl.Query("select * from 'rows.parquet'", folder=tmp_path)
        opened = in_strata(open_rows(rows, dpl.Exact(), dpl.PrivacyUnit(), "y ~ 0 + x", strata=True))
        return np.asarray(opened.stratum_totals(clip, clustered=True).numbers)

    bound = stratum_numbers_sensitivity(clustered=True)
    found = numbers("abcdd", "00122"), numbers("bbcdd", "10122")
    assert [one.tolist() for one in found] == [[1, 0, 1, 1], [0, 2, 0, 1]]
    assert np.linalg.norm(found[0] - found[1]) == pytest.approx(bound)
    rng, most = np.random.default_rng(3), 0.0
    for _ in range(300 if container == "NumPy" else 5):
        strata, clusters = ("".join(rng.choice(list(of), 5)) for of in ("abcd", "012"))
        other = numbers(rng.choice(list("abcd")) + strata[1:], rng.choice(list("0123")) + clusters[1:])
        most = max(most, float(np.linalg.norm(numbers(strata, clusters) - other)))
    assert most <= bound * (1.0 + 1e-12)


def test_centred_squares_come_near_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around a centre, contributions that keep their direction turn too: row 0, and the row that holds its response."""
    n, clip = 60, ResidualClip(np.zeros(2), 0.1, 0.0, 4.0)
    x, v, y, b = np.zeros(n), np.zeros(n), np.ones(n), np.zeros(n, int)
    v[0], x[10], v[10] = 1.0, -0.5, 0.5
    g = np.full(n, "b")
    g[10] = "a"
    data = {"x": x, "v": v, "y": y, "g": g, "b": b, "block": b}
    other = {**data, "x": x.copy(), "v": v.copy(), "y": y.copy()}
    other["x"][0], other["v"][0], other["y"][10] = 1.0, 0.0, -1.0
    linkage = dpl.ELE(0.999, block="b")
    centres = Centres(np.array([[-0.07, -0.07], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), np.ones(4))
    pair = Pair(data, other, linkage, linkage, dpl.PrivacyUnit())

    def release(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None) -> Any:
        return release_squares(in_strata(rows), clip, MeatClip("row", np.ones(2), 0.1, centres))

    monkeypatch.setitem(RELEASES, "centred", release)
    assert check(monkeypatch, "centred", pair, clip, "y ~ 0 + x + v") > 0.95
    monkeypatch.setattr(
        quantity, "centred_meat_sensitivity", lambda norm, met, exposure: row_meat_sensitivity(norm, exposure)
    )
    with pytest.raises(Leak):  # as if they kept their directions
        check(monkeypatch, "centred", pair, clip, "y ~ 0 + x + v")


def test_catches_centres_that_were_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means that squares are taken around tell of all rows."""
    values = NoisePlan.scales
    monkeypatch.setattr(
        NoisePlan, "scales", lambda plan: values(plan) * (1e-9 if plan.parts[0].name == "totals of strata" else 1.0)
    )
    pair = make_pair(np.random.default_rng(3), "ele", [18, 17, 2])
    with pytest.raises(Leak):
        check(monkeypatch, "strata of rows", pair, draw_clip(np.random.default_rng(3), 2, True), "y ~ x")


@pytest.mark.parametrize("what", ["squares", "sizes"])
def test_catches_a_cluster_that_nobody_leaves(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Half of the noise would do if cells of clusters were held fixed."""
    changed = quantity.changed_totals

    def held(route: str, exposure: LinkageExposure) -> tuple[float, float]:
        found, met = changed(route, exposure)
        return found - 1.0, met

    monkeypatch.setattr(quantity, "changed_totals", held)
    monkeypatch.setattr(
        importlib.import_module("dplinked.privacy.quantities.contribution_sizes"), "changed_totals", held
    )
    with pytest.raises(Leak):
        test_a_row_that_changes_its_cluster_reaches_the_bound(monkeypatch, what)


def test_rows_reach_the_bound_of_weighed_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of the larger product of weight and 2 - γ has both rows."""
    pair = turn(opposed_pair(0.5, 40))
    linkage = dpl.ELE({0: 0.5, 1: 0.5}, block="b", other=0.5)
    pair = dataclasses.replace(pair, linkage=linkage, other_linkage=linkage)
    clip = ResidualClip(np.zeros(1), 0.5, 0.0, 4.0)
    reached = check(
        monkeypatch,
        "equation",
        pair,
        clip,
        "y ~ 0 + x",
        change=lambda rows: weighed(rows, {0: 1.0, 1: 0.9}, {0: 0.5, 1: 0.5}),
    )
    assert reached > 0.9


def test_responses_are_rounded_for_both_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows by themselves, their residuals at the jump of ψ, and one of them joins another: the others' residuals stay as they are."""
    n, clip = 300, ResidualClip(np.zeros(2), 0.3, 0.8, 4.0)
    edge = NEAR * float(clip.widths(np.zeros((1, 1)))[0])
    unit = 1.0 / (2**31 - 1)
    tried = edge + np.linspace(-1e-9, 1e-9, 8001)
    jumping = tried[((unit * to_whole(tried, 0.0, unit)) <= edge) != (tried <= edge)]
    y, groups = jumping[jumping.size // 2], np.arange(n)
    data = {"x": np.zeros(n), "y": np.full(n, y), "b": groups}
    joined = {**data, "b": np.where(groups == 1, 0, groups)}
    linkage = dpl.ELE(0.9, block="b", other=0.9)
    pair = Pair(data, joined, linkage, linkage, dpl.PrivacyUnit(moves_block=True))
    check(monkeypatch, "equation", pair, clip, "y ~ x")


# --- faults that must be caught -------------------------------------------------------------------------

TURNED = turn(opposed_pair(0.8, 40))
PLAIN = ResidualClip(np.zeros(1), 0.25, 0.0, 4.0)


def test_catches_half_the_noise_of_whitened_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = NoisePlan.scales
    monkeypatch.setattr(NoisePlan, "scales", lambda plan: scales(plan) / 2.0)
    clip = ResidualClip(np.zeros(2), 0.3, 0.0, 4.0, Whitening(np.eye(2), 1.0))
    with pytest.raises(Leak):
        check(monkeypatch, "whitened slopes", exact_pair(), clip, "y ~ x")


@pytest.mark.parametrize("what", ["equation", "row squares", "slopes"])
def test_catches_half_the_noise(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    scales = NoisePlan.scales
    monkeypatch.setattr(NoisePlan, "scales", lambda plan: scales(plan) / 2.0)
    pair = {"equation": TURNED, "row squares": squared_pair(0.9)[0], "slopes": crossing_pair(1.0)}[what]
    squares = ResidualClip(np.array([1.0, 0.0]), 1e-4, 0.0, 4.0), "y ~ 0 + x + v"
    clip, formula = squares if what == "row squares" else (PLAIN, "y ~ 0 + x")
    with pytest.raises(Leak):
        check(monkeypatch, what, pair, clip, formula, norm=clip.limit, weights=np.ones(clip.beta.size))


def test_catches_residuals_around_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 1 stands where row 0 does, so that the person moves it too."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    data, other = ({**side, "y": side["y"].copy()} for side in (TURNED.data, TURNED.other))
    data["y"][1] = other["y"][1] = 0.0
    pair, clip = dataclasses.replace(TURNED, data=data, other=other), dataclasses.replace(PLAIN, beta=np.array([0.4]))
    assert check(monkeypatch, "equation", pair, clip, "y ~ 0 + x") > 0.9
    found = by_numpy._row_clips

    def rolled(data: Any, clip: ResidualClip, x: Floats, counted: Any) -> Any:
        h, fitted, widths = found(data, clip, x, counted)
        return h, np.roll(fitted, 1), widths

    monkeypatch.setattr(by_numpy, "_row_clips", rolled)
    with pytest.raises(Leak):
        check(monkeypatch, "equation", pair, clip, "y ~ 0 + x")


def filled_high(rows: LinkedRows) -> LinkedRows:
    """Missing cells, which are dropped, are filled with the upper bound beforehand."""
    return rows.with_design(dataclasses.replace(rows.design, fill={"y": 0.0, "x": 1.0})).without_missing()


def test_catches_presence_that_is_seen_from_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing regressor takes away the next row, while its own goes on with a filled one."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    data, other = ({**side, "x": side["x"].copy()} for side in (TURNED.data, TURNED.other))
    data["x"][0], other["x"][0] = -1.0, np.nan
    data["y"][1] = other["y"][1] = 1.0
    pair = dataclasses.replace(TURNED, data=data, other=other)
    check(monkeypatch, "equation", pair, PLAIN, "y ~ 0 + x", change=filled_high)
    rows_of = by_numpy._row_terms

    def rolled(data: Any, clip: ResidualClip, ring: Any, strip: Any) -> Any:
        return rows_of(data, clip, ring, dataclasses.replace(strip, known=np.roll(strip.known, 1)))

    monkeypatch.setattr(by_numpy, "_row_terms", rolled)
    with pytest.raises(Leak):
        check(monkeypatch, "equation", pair, PLAIN, "y ~ 0 + x", change=filled_high)


def test_catches_an_intercept_that_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with no instrument but the intercept's, whose residuals are clipped furthest out."""
    data, other = ({**side, "x": np.zeros(80)} for side in (TURNED.data, TURNED.other))
    pair, clip = dataclasses.replace(TURNED, data=data, other=other), ResidualClip(np.zeros(2), 0.05, 0.1, 4.0)
    check(monkeypatch, "equation", pair, clip, "y ~ x")
    made = LinkedRows.right_residuals
    monkeypatch.setattr(
        LinkedRows, "right_residuals", lambda *told: dataclasses.replace(made(*told), intercept_weight=1.0)
    )
    with pytest.raises(Leak):
        check(monkeypatch, "equation", pair, clip, "y ~ x")


def test_catches_clips_that_are_wider_than_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LinkedRows.right_residuals

    def wider(rows: LinkedRows, clip: ResidualClip, meat: MeatClip | None = None) -> Any:
        found = made(rows, dataclasses.replace(clip, limit=1.1 * clip.limit), meat)
        return dataclasses.replace(found, limit=clip.limit)

    monkeypatch.setattr(LinkedRows, "right_residuals", wider)
    with pytest.raises(Leak):
        check(monkeypatch, "equation", TURNED, PLAIN, "y ~ 0 + x")


def test_catches_weights_that_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    linkage = dpl.ELE({0: 0.8, 1: 0.8}, block="b", other=0.8)
    pair = dataclasses.replace(TURNED, linkage=linkage, other_linkage=linkage)

    def squared(rows: LinkedRows) -> LinkedRows:
        found = weighed(rows, {0: 0.7, 1: 0.7}, {0: 0.8, 1: 0.8})
        told = tuple((weight**2, gamma) for weight, gamma in found.exposure.weighed)
        return dataclasses.replace(found, exposure=dataclasses.replace(found.exposure, weighed=told))

    with pytest.raises(Leak):
        check(monkeypatch, "equation", pair, PLAIN, "y ~ 0 + x", change=squared)


def test_catches_forgotten_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensitivity of plain residuals, which a row with a response of another end exceeds."""
    monkeypatch.setattr(quantity, "pair_weights", lambda exposure: (1.0, 1.0, 0.0))
    with pytest.raises(Leak):
        check(monkeypatch, "equation", turn(opposed_pair(0.5, 40)), PLAIN, "y ~ 0 + x")


def test_catches_clips_of_rows_that_are_not_whitened(monkeypatch: pytest.MonkeyPatch) -> None:
    """K over the length of (ι, h) does not bound instruments that a matrix has made longer."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    clip, found = ResidualClip(np.zeros(2), 0.3, 0.0, 4.0, TURNING), by_numpy._row_clips
    check(monkeypatch, "whitened equation", TURNED, clip, "y ~ x")

    def plainly(data: Any, clip: ResidualClip, x: Floats, counted: Any) -> Any:
        widths = dataclasses.replace(clip, intercept_weight=1.0, whitening=None).widths(x)
        return TURNING.matrix @ by_numpy.instruments_of(data, x), found(data, clip, x, counted)[1], widths

    monkeypatch.setattr(by_numpy, "_row_clips", plainly)
    with pytest.raises(Leak):
        check(monkeypatch, "whitened equation", TURNED, clip, "y ~ x")


def test_catches_whitened_rows_that_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = ResidualClip(np.zeros(2), 0.3, 0.0, 4.0, Whitening(np.eye(2), 1.0))
    made = LinkedRows.whitened_gram

    def whole(rows: LinkedRows, whitening: Whitening, **counted: bool) -> Any:
        return dataclasses.replace(made(rows, dataclasses.replace(whitening, norm=9.0)), norm=whitening.norm)

    monkeypatch.setattr(LinkedRows, "whitened_gram", whole)
    with pytest.raises(Leak):
        check(monkeypatch, "whitened slopes", exact_pair(), clip, "y ~ x")


def crossing_pair(gamma: float, carriers: int = 1) -> Pair:
    """One row goes to the middle of its bounds; all others stand at one end."""
    data = {"x": np.ones(40), "y": np.zeros(40), "b": np.zeros(40)}
    linkage = dpl.ELE(gamma, block="b", carriers=carriers)
    other = {**data, "x": np.r_[0.0, data["x"][1:]]}
    return Pair(data, other, linkage, linkage, dpl.PrivacyUnit())


@pytest.mark.parametrize("carriers", [1, 3])
def test_catches_links_in_the_slope(monkeypatch: pytest.MonkeyPatch, carriers: int) -> None:
    """Rows by themselves have the sensitivity of an exact join, linked rows have more."""
    pair = crossing_pair(0.5, carriers)
    turned = dataclasses.replace(pair, other={**pair.other, "x": np.r_[-1.0, pair.data["x"][1:]]})
    check(monkeypatch, "slopes", turned, PLAIN, "y ~ 0 + x")
    monkeypatch.setattr(LinkedRows, "own_gram", own_gram_with_links)
    with pytest.raises(Leak):
        check(monkeypatch, "slopes", turned, PLAIN, "y ~ 0 + x")


def own_gram_with_links(rows: LinkedRows) -> Any:
    return dataclasses.replace(rows.instrument_sums(), exposure=dpl.Exact().exposure(dpl.PrivacyUnit()))


@pytest.mark.parametrize("moves", [False, True])
def test_catches_partners_in_an_order_of_cells(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    """One response more changes everyone's partners, if their order follows from all of them."""
    linkage = dpl.ELE(0.6, block="b", other=0.6)
    rng = np.random.default_rng(13)
    data = {"x": rng.choice([-1.0, 1.0], 9000), "y": rng.choice([-1.0, 1.0], 9000), "b": np.zeros(9000)}
    other = {**data, "y": np.r_[-data["y"][0], data["y"][1:]]}
    pair = Pair(data, other, linkage, linkage, dpl.PrivacyUnit(moves_block=moves))
    check(monkeypatch, "equation", pair, PLAIN, "y ~ 0 + x")
    place = circle._read_circle

    def by_cells(prepared: Any) -> circle.Circle:
        found = place(prepared)
        mixed = np.random.default_rng(int(prepared.whole()[1].sum()) + 9000).permutation(found.values)
        return dataclasses.replace(found, values=mixed)

    monkeypatch.setattr(circle, "_read_circle", by_cells)
    with pytest.raises(Leak):
        check(monkeypatch, "equation", pair, PLAIN, "y ~ 0 + x")


def test_catches_corrections_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the responses of partners a mean is no longer that of right links."""
    monkeypatch.setattr(by_numpy, "_meet_partners", lambda circle, strip, clip, fitted, widths: np.zeros_like(fitted))
    with pytest.raises(AssertionError):
        test_linked_pairs_are_unlinked_exactly(monkeypatch, 3, 16, 0.5)


def test_sums_that_do_not_know_dropped_cells_refuse_them() -> None:
    """Whatever stands for a missing cell would count as a value there."""
    data = {"x": np.array([0.5, 0.5]), "y": np.array([0.5, np.nan])}
    rows = open_rows(data, dpl.Exact(), dpl.PrivacyUnit(), "y ~ x").without_missing()
    around = Predictor(np.zeros(2), np.zeros(1), 1.0)
    for refused in (
        rows.instrument_sums,
        lambda: rows.column_counts(4),
        lambda: rows.paper_sums(1.0, 1.0),
        lambda: rows.meat("row", around, np.ones(2), 1.0),
    ):
        with pytest.raises(AssertionError, match="dropped cells"):
            refused()
