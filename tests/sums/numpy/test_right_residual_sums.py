"""The clipped residual equation of right links against its formula written out, and the circles that partners come from."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.data import parquet
from dplinked.data import table as rows
from dplinked.data.table import Rows
from dplinked.errors import ReleaseError, StudyError
from dplinked.study.build import build_design
from dplinked.study.design import Design
from dplinked.sums import files as file_engine
from dplinked.sums.engine import open_source
from dplinked.sums.numpy import circle as circles
from dplinked.sums.numpy import kernel, prepare, reduce
from dplinked.sums.numpy.circle import make_circle, order_by_position, shuffle
from dplinked.sums.numpy.prepare import PreparedRows, prepare_rows
from dplinked.sums.numpy.right_residuals import MOMENTS, contribution_sizes, right_residuals, stratum_totals
from dplinked.sums.numpy.tables import TablePass
from dplinked.sums.partners import PARTNERS, clip_residuals, unlinking_terms
from dplinked.sums.rounding import rounding_bound
from dplinked.sums.types import Centres, MeatClip, Predictor, ResidualClip
from engine_sums import whitening_for
from neighbours import ele_matrix

BOUNDS = {"y": (-3.0, 5.0), "x": (-1.0, 1.0), "w": (0.0, 2.0)}
LAYOUTS = {
    "small": [2, 3, 5, 17, 4, 1] * 6,
    "large": [18, 130, 25, 33, 1, 90],
    "one": [150],
}
FIXED, MOVING = dpl.PrivacyUnit(), dpl.PrivacyUnit(moves_block=True)


@pytest.fixture(params=["compiled", "NumPy"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled kernel and without it, in several parts, by two threads."""
    monkeypatch.setattr(rows, "PART", 40)
    monkeypatch.setattr(prepare, "STRIP", 16)
    monkeypatch.setattr(reduce, "WORKERS", 2)
    if request.param == "NumPy":
        monkeypatch.setattr(kernel, "KERNEL", None)
    elif kernel.KERNEL is None:
        pytest.skip("kernel.c was not compiled")


def make_data(sizes: list[int], seed: int = 0) -> tuple[dict[str, np.ndarray], dict[int, float]]:
    """Rows of blocks in no order, some cells out of bounds; an accuracy for each block."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    x = rng.uniform(-1.1, 1.1, n)
    data = {
        "x": x,
        "w": rng.uniform(0, 2, n),
        "y": 2.0 * x + 2.0 * rng.standard_normal(n),
        "block": rng.permutation(np.repeat(np.arange(len(sizes)), sizes)),
    }
    return data, {b: float(rng.uniform(max(0.5, 1 / m), 1)) for b, m in enumerate(sizes)}


def prepared(data: Any, design: Design, linkage: Any, unit: dpl.PrivacyUnit = FIXED) -> PreparedRows:
    return prepare_rows(Rows(data), design, linkage, unit)


def clip_for(design: Design, limit: float = 0.4) -> ResidualClip:
    p = len(design.names)
    return ResidualClip(np.linspace(-0.1, 0.3, p), limit, 0.7 if design.intercept else 0.0, 0.9)


def matched_responses(data: PreparedRows) -> np.ndarray:
    """Weight of each response l in the bracket of each row i (n×n): the plain formula, with the partners that circles tell."""
    n = data.rows.count
    found, codes, blocks = np.zeros((n, n)), data.block_codes(), data.blocks
    walk, slots = make_circle(data).order.walk(0), []
    for part in range(data.rows.parts):
        slots += [walk.place(piece).slots for piece in data.pieces(part)]
    slots = np.concatenate(slots)
    for b, (m, a, o) in enumerate(zip(blocks.sizes, blocks.a, blocks.o, strict=True)):
        circle = np.flatnonzero(codes == b)
        circle = circle[np.argsort(slots[circle])]
        for place, i in enumerate(circle):
            partners = [circle[(place + lag) % m] for lag in range(1, 1 + min(PARTNERS, m - 1))]
            found[i, i] = 1.0 - o
            found[i, partners] = -(1.0 - a - o) / len(partners) if m > 1 else 0.0
    return found


def kept_or_clip(residuals: np.ndarray, clips: np.ndarray) -> np.ndarray:
    """A residual within .7 of its clip stays as it is, and one beyond becomes the clip."""
    clips = np.broadcast_to(clips, residuals.shape)
    return np.where(residuals > 0.7 * clips, clips, np.where(residuals < -0.7 * clips, -clips, residuals))


def plain_formula(
    data: PreparedRows, C: np.ndarray, clip: ResidualClip, meat: MeatClip | None, weights: Any = 1.0
) -> tuple[np.ndarray, np.ndarray | None]:
    """``Σ w (1, h_i) Σ_l C_il ψ_i(z_l - t_i)``, and squares of its contributions, from arrays of all pairs."""
    design, (x, z), (known, answered) = data.design, data.whole(), data.whole_present()
    first = int(design.intercept)
    h = x if design.half_widths is None else np.clip(x / np.array(design.half_widths)[:, None], -1, 1)
    t = clip.beta[:first].sum() + clip.beta[first:] @ x
    instruments, norms = np.vstack([np.ones((first, z.size)), h]), clip.intercept_weight**2 + (h**2).sum(axis=0)
    if clip.whitening is not None:
        u = clip.whitening.matrix @ instruments
        instruments = u * np.minimum(1.0, clip.whitening.norm**2 / (u**2).sum(axis=0))
        norms = (instruments**2).sum(axis=0)
    L = np.minimum(clip.widest, clip.limit / np.sqrt(norms))
    brackets = known * (C * answered * kept_or_clip(z[None, :] - t[:, None], L[:, None])).sum(axis=1)
    terms = instruments * brackets * weights
    if meat is None:
        return terms.sum(axis=1), None
    u = terms * meat.weights[:, None]
    if meat.route == "block":
        u = np.stack([u[:, data.block_codes() == b].sum(axis=1) for b in range(data.blocks.sizes.size)], axis=1)
    u = u * np.minimum(1.0, meat.norm / np.maximum(np.linalg.norm(u, axis=0), 1e-300))
    return terms.sum(axis=1), u @ u.T


def check(data: PreparedRows, C: np.ndarray, weights: Any = 1.0) -> None:
    plain, p = clip_for(data.design), len(data.design.names)
    turned = replace(plain, intercept_weight=0.0, whitening=whitening_for(p))
    routes = [None, "row"] if data.blocks is None else [None, "row", "block"]
    for route, clip in itertools.product(routes, (plain, turned)):
        meat = None if route is None else MeatClip(route, np.linspace(1.0, 2.0, p), 0.3)
        found, (vector, squares) = right_residuals(data, clip, meat), plain_formula(data, C, clip, meat, weights)
        np.testing.assert_allclose(found.vector, vector, rtol=1e-8, atol=1e-8)
        assert (found.meat is None) == (squares is None)
        if squares is not None:
            np.testing.assert_allclose(found.meat, squares, rtol=1e-8, atol=1e-8)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("formula", ["y ~ x + w", "y ~ 0 + x"])
@pytest.mark.parametrize("typical", [None, {"x": (-0.4, 0.2)}])
@pytest.mark.parametrize("unit", [FIXED, MOVING], ids=["fixed", "moving"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_equal_the_plain_formula(layout: str, unit: dpl.PrivacyUnit, typical: Any, formula: str) -> None:
    values, accuracy = make_data(LAYOUTS[layout])
    data = prepared(values, build_design(formula, BOUNDS, None, typical), dpl.ELE(accuracy, block="block"), unit)
    check(data, matched_responses(data))


def punch_holes(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same rows, of each column of which some cells are missing."""
    rng, holed = np.random.default_rng(3), dict(values)
    for name in ("x", "w", "y"):
        lost = rng.random(values[name].size) < 0.15
        holed[name] = np.where(lost, rng.choice([np.nan, np.inf], lost.size), values[name])
    return holed


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("formula", ["y ~ x + w", "y ~ 0 + w", "I(y**2) ~ log(w + 1) + x:w"])
@pytest.mark.parametrize("linkage", ["fixed", "moving", "matching", "exact"])
def test_missing_cells_count_nothing(formula: str, linkage: str) -> None:
    """Rows with a missing regressor and residuals with missing responses are 0, by the plain formula; and what is there is seen from a row's own cells."""
    values, accuracy = make_data(LAYOUTS["large"])
    values, model = punch_holes(values), dpl.ELE(accuracy, block="block")
    if linkage == "matching":
        values = {name: column[:60] for name, column in values.items()}
        model = dpl.Matching(sp.csr_array(0.9 * np.eye(60) + 0.1 * np.roll(np.eye(60), 1, axis=1)), accuracy_min=0.9)
    if linkage == "exact":
        model = dpl.Exact()
    typical, unit = {"w": (0.5, 1.0)}, MOVING if linkage == "moving" else FIXED
    design = build_design(formula, BOUNDS, None, typical)
    data = TablePass(prepared(values, design, model, unit)).without_missing().data
    known, answered = data.whole_present()
    regressors = [name for name in ("x", "w") if name in formula]
    np.testing.assert_array_equal(known, np.all([np.isfinite(values[name]) for name in regressors], axis=0))
    np.testing.assert_array_equal(answered, np.isfinite(values["y"]))
    if linkage == "matching":
        check(data, _dense_unlinking(data))
    else:
        check(data, np.eye(known.size) if linkage == "exact" else matched_responses(data))
    filled = right_residuals(prepared(values, design, model, unit), clip_for(design)).vector
    assert np.abs(filled - right_residuals(data, clip_for(design)).vector).max() > 1e-3


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    "linkage",
    [
        "fixed",
        pytest.param("moving", marks=pytest.mark.slow),
        "matching",
        pytest.param("exact", marks=pytest.mark.slow),
    ],
)
def test_strata_are_those_of_the_plain_formula(linkage: str) -> None:
    """Rows in the stratum of their own cell, clusters in the first of their rows'; cells that are missing or not declared are a last one."""
    values, accuracy = make_data(LAYOUTS["large"])
    rng, model = np.random.default_rng(5), dpl.ELE(accuracy, block="block")
    values |= {"h": rng.choice(np.array(["b", "a", "c", None], object), 297), "psu": rng.integers(0, 60, 297)}
    if linkage == "matching":
        values = {name: column[:60] for name, column in values.items()}
        model = dpl.Matching(sp.csr_array(0.9 * np.eye(60) + 0.1 * np.roll(np.eye(60), 1, axis=1)), accuracy_min=0.9)
    model = dpl.Exact() if linkage == "exact" else model
    design = build_design("y ~ x + w", BOUNDS, {"h": ["a", "b"]}, strata="h")
    unit = MOVING if linkage == "moving" else FIXED
    data = prepared(values, replace(design, cluster="psu"), model, unit)
    if linkage == "exact":
        C = np.eye(data.rows.count)
    else:
        C = _dense_unlinking(data) if linkage == "matching" else matched_responses(data)
    own = np.array([{"a": 0, "b": 1}.get(cell, 2) for cell in values["h"]])
    psu = np.unique(values["psu"], return_inverse=True)[1]
    first = np.array([own[psu == c].min() for c in range(psu.max() + 1)])
    clip = clip_for(design)
    terms = np.stack([plain_formula(data, np.diag(row) @ C, clip, None)[0] for row in np.eye(own.size)], axis=1)
    for clustered, of, numbers in ((False, own, own), (True, own, first)):
        found = stratum_totals(data, clip, clustered)
        expected = [terms[:, of == h].sum(axis=1) for h in range(3)]
        np.testing.assert_allclose(found.totals, expected, rtol=1e-8, atol=1e-8)
        assert found.numbers.tolist() == np.bincount(numbers, minlength=3).tolist()
    centres = Centres(np.linspace(-0.3, 0.5, 9).reshape(3, 3), np.array([1.3, 1.0, 1.1]))
    totals = np.stack([np.bincount(psu, term) for term in terms])
    norms = np.array([0.2, 1.0, 4.0])
    for route, of, listed in (("row", own, terms), ("cluster", first, totals)):
        meat = MeatClip(route, np.linspace(1.0, 2.0, 3), 0.7, centres)
        u = (listed * meat.weights[:, None] - centres.middles[of].T) * centres.factors[of]
        lengths = np.linalg.norm(u, axis=0)
        cut = u * np.minimum(1.0, meat.norm / lengths)
        found = right_residuals(data, clip, meat)
        np.testing.assert_allclose(found.vector, terms.sum(axis=1), rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.meat, cut @ cut.T, rtol=1e-7, atol=1e-7)
        if route == "cluster":
            sizes = np.minimum((lengths / norms[:, None]) ** 2, 1.0).sum(axis=1)
            np.testing.assert_allclose(contribution_sizes(data, clip, meat, norms).sizes, sizes, rtol=1e-7)


def _dense_unlinking(data: PreparedRows) -> np.ndarray:
    rest = np.eye(data.rows.count) - data.matching.toarray()
    return sum(np.linalg.matrix_power(rest, j) for j in range(data.terms))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_and_counts_have_complete_rows_only(weighted: bool) -> None:
    values, accuracy = make_data(LAYOUTS["large"])
    values = punch_holes(values)
    design = build_design("y ~ x + w", BOUNDS, None, {"x": (-0.4, 0.2)})
    engine = TablePass(prepared(values, design, dpl.ELE(accuracy, block="block"))).without_missing()
    (x, z), (known, answered), blocks = engine.data.whole(), engine.data.whole_present(), engine.data.blocks
    weights = known * (blocks.a[engine.data.block_codes()] if weighted else 1.0)
    one = np.vstack([np.ones(z.size), x])
    h = np.vstack([np.ones(z.size), np.clip(x / np.array(design.half_widths)[:, None], -1, 1)])
    sums = engine.own_rows(weighted).instrument_sums()
    np.testing.assert_allclose(sums.matrix, (h * weights) @ one.T, atol=1e-9)
    np.testing.assert_allclose([sums.known, sums.complete], [weights.sum(), weights @ answered], atol=1e-9)
    around, edges = Predictor(np.array([0.1, 0.3, -0.2]), np.zeros(2), 1.0), np.array([0.2, 0.6])
    found = engine.residual_counts(around, edges, ahead=weighted).counts[0]
    both, residuals = known * answered > 0, np.abs(z - around.beta @ one)
    assert found.tolist() == [*np.bincount(np.searchsorted(edges, residuals[both]), minlength=3), (~both).sum()]


@pytest.mark.usefixtures("both_ways")
def test_groups_are_weighed() -> None:
    values, accuracy = make_data(LAYOUTS["large"])
    del accuracy[0], accuracy[1]  # become the other block
    weights: dict[str | None, float] = {"2": 0.3, "3": 1.0, "5": 0.8, None: 0.55}
    data = prepared(values, build_design("y ~ x + w", BOUNDS), dpl.ELE(accuracy, block="block", other=0.7))
    weighed = TablePass(data).with_weights(weights).data
    w = np.array([weights.get(str(b) if b in accuracy else None, 1.0) for b in values["block"]])
    check(weighed, matched_responses(weighed), w)
    check(data, matched_responses(data))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("formula", ["y ~ x + w", "y ~ 0 + x"])
@pytest.mark.parametrize("typical", [None, {"x": (-0.4, 0.2)}])
def test_instrument_sums_are_weighed(formula: str, typical: Any) -> None:
    values, accuracy = make_data(LAYOUTS["large"])
    order = np.argsort(values["block"], kind="stable")
    values = {name: column[order] for name, column in values.items()}
    Q = ele_matrix(LAYOUTS["large"], list(accuracy.values()))
    design = build_design(formula, BOUNDS, None, typical)
    weights = {str(b): 0.3 + 0.1 * b for b in accuracy}
    plain = TablePass(prepared(values, design, dpl.ELE(accuracy, block="block")))
    found = plain.with_weights(weights)
    x, z = plain.data.whole()
    h = x if typical is None else np.clip(x / np.array(design.half_widths)[:, None], -1, 1)
    if design.intercept:
        x, h = (np.vstack([np.ones(z.size), part]) for part in (x, h))
    w = np.array([weights[str(b)] for b in values["block"]])
    a = np.array([plain.data.blocks.a[b] for b in values["block"]])
    for sums, factor, links in [
        (found.instrument_sums(), w, Q),
        (found.own_rows(weighted=True).instrument_sums(), w * a, np.eye(z.size)),
        (plain.own_rows(weighted=True).instrument_sums(), a, np.eye(z.size)),
        (found.own_rows(weighted=False).instrument_sums(), np.ones(z.size), np.eye(z.size)),
        (plain.with_weights(dict.fromkeys(weights, 1.0)).instrument_sums(), np.ones(z.size), Q),
    ]:
        np.testing.assert_allclose(sums.matrix, (h * factor) @ links @ x.T, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(sums.vector, (h * factor) @ z, rtol=1e-10, atol=1e-10)
        assert sums.count == z.size


@pytest.mark.parametrize("weight", [0.0, -0.1, 1.01, float("nan")])
def test_weights_lie_between_0_and_1(weight: float) -> None:
    values, accuracy = make_data(LAYOUTS["large"])
    found = TablePass(prepared(values, build_design("y ~ x", BOUNDS), dpl.ELE(accuracy, block="block")))
    with pytest.raises(StudyError, match="between 0 and 1"):
        found.with_weights({"2": weight})


def test_contrast_is_the_mean_of_a() -> None:
    values, accuracy = make_data(LAYOUTS["small"])
    data = prepared(values, build_design("y ~ x", BOUNDS), dpl.ELE(accuracy, block="block"))
    assert TablePass(data).blocks.contrast == pytest.approx(data.blocks.a[values["block"]].mean())


@pytest.mark.usefixtures("both_ways")
def test_exact_joins_meet_their_own_responses_alone() -> None:
    values, _ = make_data(LAYOUTS["one"])
    check(prepared(values, build_design("y ~ x + w", BOUNDS), dpl.Exact()), np.eye(150))


@pytest.mark.parametrize("accuracy", [1.0, 0.95, 0.8])
def test_matching_matrices_are_unlinked_by_powers(accuracy: float) -> None:
    rng = np.random.default_rng(3)
    values, _ = make_data([120])
    Q = np.eye(120)
    while Q.diagonal().min() > accuracy + 0.02:  # mixtures of permutations near the identity
        swap = np.eye(120)[rng.permutation(120)]
        Q = 0.99 * Q + 0.01 * swap
    data = prepared(values, build_design("y ~ x + w", BOUNDS), dpl.Matching(sp.csr_array(Q), accuracy_min=accuracy))
    k = unlinking_terms(max(0.0, accuracy - 1e-5))
    assert data.terms == k
    C = sum(np.linalg.matrix_power(np.eye(120) - Q, j) for j in range(k))
    check(data, C)
    assert np.abs(C @ Q - np.eye(120)).sum(axis=1).max() <= 0.01 + 1e-9


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("formula", ["y ~ x + w", "y ~ 0 + x"])
def test_residuals_are_counted(formula: str) -> None:
    values, accuracy = make_data(LAYOUTS["small"])
    data = prepared(values, build_design(formula, BOUNDS), dpl.ELE(accuracy, block="block"))
    x, z = data.whole()
    first, beta = int(data.design.intercept), np.linspace(-0.3, 0.4, len(data.design.names))
    mean, edges = np.linspace(-0.1, 0.2, len(x)), 2.0 ** np.linspace(-6, 0.5, 13)
    residual = np.abs(z - beta[:first].sum() - beta[first:] @ (0.8 * x + 0.2 * mean[:, None]))
    for some in (edges, edges[:1], edges[:4]):
        found = TablePass(data).residual_counts(Predictor(beta, mean, 0.8), some).counts
        expected = np.histogram(residual, [-1.0, *some, np.inf])[0]
        assert found.tolist() == [expected.tolist()]


@pytest.mark.usefixtures("both_ways")
def test_a_residual_at_an_edge_is_below_it() -> None:
    values = {"x": np.zeros(5), "y": np.array([0.25, 0.5, -0.5, 1.0, 0.0])}
    data = prepared(values, build_design("y ~ x", {"x": (-1.0, 1.0), "y": (-1.0, 1.0)}), dpl.Exact())
    found = TablePass(data).residual_counts(Predictor(np.zeros(2), np.zeros(1), 1.0), np.array([0.25, 0.5, 1.0]))
    assert found.counts.tolist() == [[2, 2, 1, 0]]


@pytest.mark.usefixtures("both_ways")
def test_own_and_partners_responses_are_rounded_alike() -> None:
    """Pairs that are alike, linked at random: nothing is left, to the last digit."""
    rng = np.random.default_rng(2)
    values = {
        "x": np.repeat(rng.uniform(-1, 1, 50), 2),
        "y": np.repeat(rng.normal(size=50), 2),
        "k": np.arange(100) // 2,
    }
    data = prepared(values, build_design("y ~ x", BOUNDS), dpl.ELE(0.5, block="k"))
    assert right_residuals(data, clip_for(data.design)).vector.tolist() == [0.0, 0.0]


@pytest.mark.usefixtures("both_ways")
def test_rounding_bound_holds_against_exact_sums() -> None:
    """Terms of very different sizes in two blocks; the reference is exact, by fractions."""
    rng = np.random.default_rng(1)
    n, gamma, K = 400, 0.75, 0.5
    sign = rng.choice([-1.0, 1.0], n)
    values = {"x": sign * 2.0 ** -rng.integers(0, 40, n), "y": rng.choice([-1.0, 1.0, 0.5], n), "k": np.arange(n) % 2}
    bounds = {"x": (-1.0, 1.0), "y": (-1.0, 1.0)}
    data = prepared(values, build_design("y ~ 0 + x", bounds), dpl.ELE(gamma, block="k"))
    clip = ResidualClip(np.array([0.25]), K, 0.0, 4.0)
    found = right_residuals(data, clip, MeatClip("block", np.ones(1), 1.5))
    circle, C = make_circle(data), matched_responses(data) < 0
    x, z = values["x"], circle.rounded(values["y"])
    widths = clip.widths(x[None, :])
    g = clip_residuals(z[None, :] - 0.25 * x[:, None], np.broadcast_to(widths[:, None], (n, n)))
    o = (1.0 - gamma) / (n / 2 - 1)
    terms = [
        Fraction(x[i])
        * (
            (1 - Fraction(o)) * Fraction(g[i, i])
            - (1 - Fraction(gamma)) / PARTNERS * sum(map(Fraction, g[i, C[i]]), Fraction(0))
        )
        for i in range(n)
    ]
    assert abs(Fraction(found.vector[0]) - sum(terms)) <= rounding_bound(n, 2 * K)
    totals = [sum(terms[b::2], Fraction(0)) for b in range(2)]
    squares = sum(min(abs(total), Fraction(1.5)) ** 2 for total in totals)
    assert abs(Fraction(found.meat[0, 0]) - squares) <= rounding_bound(n, 1.5 * max(1.5, 2 * K)) + 6e-12 * 1.5**2


# --- circles --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("unit", [FIXED, MOVING], ids=["fixed", "moving"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_response_is_the_partner_of_as_many_rows(layout: str, unit: dpl.PrivacyUnit) -> None:
    values, accuracy = make_data(LAYOUTS[layout])
    data = prepared(values, build_design("y ~ x", BOUNDS), dpl.ELE(accuracy, block="block"), unit)
    partners = (matched_responses(data) < 0).sum(axis=0)
    expected = np.minimum(PARTNERS, data.blocks.sizes - 1)[values["block"]]
    assert partners.tolist() == expected.tolist()
    circle = make_circle(data)
    assert (
        np.sort(circle.values).tolist()
        == np.sort(circles.to_whole(data.whole()[1], circle.middle, circle.unit)).tolist()
    )


def test_kernel_and_numpy_have_the_same_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel.KERNEL is None:
        pytest.skip("kernel.c was not compiled")
    values, accuracy = make_data([*LAYOUTS["large"], 70_000])
    found = []
    for _ in range(2):
        data = prepared(values, build_design("y ~ x", BOUNDS), dpl.ELE(accuracy, block="block"))
        found.append(make_circle(data).values)
        monkeypatch.setattr(kernel, "KERNEL", None)
    assert np.array_equal(*found)


@pytest.mark.parametrize("size", [18, 19, 25, 32, 33, 100, 1000])
def test_permutations_are_permutations_and_look_random(size: int) -> None:
    """Over blocks, every distance in the file is about as often one between partners: |z| < 5 for each of size-1 distances."""
    blocks = 3000 if size < 200 else 300
    ranks, keys = np.tile(np.arange(size), blocks), np.repeat(circles.scatter(np.arange(blocks)), size)
    places = shuffle(ranks, np.full(ranks.size, size), keys).reshape(blocks, size)
    assert (np.sort(places, axis=1) == np.arange(size)).all()
    assert len(np.unique(places, axis=0)) > 0.99 * blocks
    for row in (0, size // 2):
        steps = (places - places[:, [row]]) % size
        shares = ((steps >= 1) & (steps <= PARTNERS)).mean(axis=0)
        shares = np.delete(shares, row)
        expected = PARTNERS / (size - 1)
        deviation = np.sqrt(expected * (1 - expected) / blocks)
        assert np.abs(shares - expected).max() < 5 * deviation


def test_a_row_that_moves_changes_one_partner_of_16_others() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 150).astype(np.int32)
    moved = codes.copy()
    moved[40] = (codes[40] + 1) % 3

    def partners(codes: np.ndarray) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in codes]
        for b in range(3):
            circle = [i for i in order_by_position(codes) if codes[i] == b]
            for place, i in enumerate(circle):
                found[i] = {int(circle[(place + lag) % len(circle)]) for lag in range(1, 17)}
        return found

    before, after = partners(codes), partners(moved)
    changed = [i for i in range(150) if before[i] != after[i] and i != 40]
    assert len(changed) == 2 * PARTNERS
    assert all(len(before[i] - after[i]) == 1 for i in changed)


@pytest.mark.parametrize("unit", [FIXED, MOVING], ids=["fixed", "moving"])
def test_order_of_the_file_does_not_bias(unit: dpl.PrivacyUnit) -> None:
    """One large block sorted by x, links wrong in one of two rows: partners stand for all other rows, within five deviations."""
    rng = np.random.default_rng(5)
    n, gamma = 20_000, 0.5
    x = np.sort(rng.uniform(-1, 1, n))
    values = {"x": x, "y": 2.0 * x + 0.3 * rng.standard_normal(n)}
    data = prepared(values, build_design("y ~ x", {"x": (-1.0, 1.0), "y": (-3.0, 3.0)}), dpl.ELE(gamma), unit)
    clip = ResidualClip(np.array([0.0, 0.5]), 0.3, 1.0, 0.3)
    found = right_residuals(data, clip).vector
    scaled, z = data.whole()
    t = 0.5 * scaled[0]
    L = clip.widths(scaled)
    every = np.sort(z)
    total = np.concatenate([[0.0], np.cumsum(every)])
    low, high = np.searchsorted(every, t - L), np.searchsorted(every, t + L)
    inner = total[high] - total[low] - (high - low) * t + L * (n - high) - L * low
    own = kept_or_clip(z - t, L)
    o = (1 - gamma) / (n - 1)
    brackets = own - o * inner
    expected = np.array([brackets.sum(), (scaled[0] * brackets).sum()])
    deviation = (1 - gamma) / np.sqrt(PARTNERS) * 0.3 * np.sqrt(n)
    assert np.abs(found - expected).max() < 5 * deviation
    assert np.abs(expected).max() > 40 * deviation  # what a shift by a constant would miss is seen


@pytest.mark.usefixtures("both_ways")
def test_files_give_the_sums_of_memory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values, accuracy = make_data(LAYOUTS["large"])
    monkeypatch.setattr(parquet, "PART", 40)
    monkeypatch.setattr(parquet, "BATCH", 30)
    monkeypatch.setattr(file_engine, "IN_MEMORY", 0)
    pq.write_table(pa.table(values), tmp_path / "a.parquet", row_group_size=70)
    design, linkage = build_design("y ~ x + log(w + 1)", BOUNDS), dpl.ELE(accuracy, block="block")
    clip, meat = clip_for(design), MeatClip("block", np.ones(3), 0.4)
    for unit in (FIXED, MOVING):
        found = open_source(tmp_path / "a.parquet").open(design, linkage, unit).right_residuals(clip, meat)
        expected = right_residuals(prepared(values, design, linkage, unit), clip, meat)
        np.testing.assert_allclose(found.vector, expected.vector, rtol=1e-10)
        np.testing.assert_allclose(found.meat, expected.meat, rtol=1e-10)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("unit", [FIXED, MOVING], ids=["fixed", "moving"])
def test_rows_that_change_their_blocks_meanwhile_are_refused(
    unit: dpl.PrivacyUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, accuracy = make_data(LAYOUTS["large"])
    data = prepared(values, build_design("y ~ x", BOUNDS), dpl.ELE(accuracy, block="block"), unit)
    true_codes = prepare.Blocks.codes
    monkeypatch.setattr(prepare.Blocks, "codes", lambda *found: np.zeros_like(true_codes(*found)))
    with pytest.raises(ReleaseError, match="changed while"):
        right_residuals(data, clip_for(data.design))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("linkage", [dpl.Exact(), dpl.ELE(0.8), "blocks", "moves"])
def test_what_is_found_ahead_is_what_passes_of_their_own_find(linkage: Any) -> None:
    """Residuals, rows by themselves and circles in one pass, after a pass that counted the rows of blocks; or each in a pass of its own."""
    data, table = make_data([1, 2, 17, 18, 40, 65])
    design = build_design("y ~ x + w", BOUNDS, typical={"x": (-0.5, 0.5)})
    unit = dpl.PrivacyUnit(moves_block=True) if linkage == "moves" else FIXED
    if isinstance(linkage, str):
        linkage = dpl.ELE({str(b): gamma for b, gamma in table.items()}, block="block", other=0.6)
    around, edges, found = Predictor(np.array([0.1, 0.2, -0.1]), np.zeros(2), 1.0), np.array([0.1, 0.4, 0.8]), []
    for ahead in (True, False):
        engine = TablePass(prepared(data, design, linkage, unit))
        if unit.fixes_blocks:
            engine = engine.with_weights({"1": 0.5, "3": 0.25})
        if ahead:
            engine.instrument_sums()
        counts, own = engine.residual_counts(around, edges, ahead).counts, engine.own_rows(unit.fixes_blocks)
        compiled = ahead and kernel.KERNEL is not None
        assert (own.known is not None) == compiled
        stored = (design.response, False) in engine.data.kept
        assert stored == (compiled and unit.fixes_blocks and engine.data.has_partners)
        sums, rest = own.instrument_sums(), engine.right_residuals(clip_for(design), MeatClip("row", np.ones(3), 0.3))
        found.append([counts, sums.matrix, sums.vector, rest.vector, rest.meat])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("both_ways")
def test_how_large_weights_are_is_found_ahead() -> None:
    """On the way of residuals, if missing cells are dropped; of the same weights and condition alone; and no less than a pass of its own finds."""
    data, _ = make_data([2, 17, 40])
    design = build_design("y ~ x", BOUNDS | {"w": (0.0, 1.5)}, weights="w", where="x > -0.5")
    around = Predictor(np.array([0.1, 0.2]), np.zeros(1), 1.0)
    engine, alone = (TablePass(prepared(data, design, dpl.ELE(0.8, block="block"), FIXED)) for _ in range(2))
    engine.residual_counts(around, np.array([0.1]), True)  # filled cells: nothing counts yet
    assert MOMENTS not in engine.data.kept
    engine = engine.without_missing()
    engine.residual_counts(around, np.array([0.1]), True)
    assert (MOMENTS in engine.data.kept) == (kernel.KERNEL is not None)
    np.testing.assert_allclose(engine.weight_moments().sums, alone.weight_moments().sums, rtol=1e-12)
    known = replace(design, counting=replace(design.counting, moments=(0.5, 0.4, 0.3)))
    assert (engine.with_design(known).own_rows(True).known is not None) == (kernel.KERNEL is not None)
    for other in ({"weights": "w"}, {"weights": "w", "where": "x > 0.5"}):
        changed = build_design("y ~ x", BOUNDS | {"w": (0.0, 1.5)}, **other)
        expected = alone.with_design(changed).weight_moments().sums
        np.testing.assert_allclose(engine.with_design(changed).weight_moments().sums, expected, rtol=1e-12)


@pytest.mark.usefixtures("both_ways")
def test_sums_found_ahead_are_those_of_the_same_rows_only() -> None:
    data, _ = make_data([2, 17, 40])
    design, other = (build_design("y ~ x", BOUNDS, typical=typical) for typical in ({}, {"x": (-0.5, 0.5)}))
    engine = TablePass(prepared(data, design, dpl.ELE({"0": 0.7, "1": 0.9, "2": 0.8}, block="block"), FIXED))
    engine.residual_counts(Predictor(np.array([0.1, 0.2]), np.zeros(1), 1.0), np.array([0.1]), True)
    for changed in (
        engine.own_rows(False),
        engine.with_design(other).own_rows(True),
        engine.with_weights({"1": 0.5}).own_rows(True),
    ):
        assert changed.known is None
