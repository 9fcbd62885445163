"""Sums against Q written out, row order, rounding, and cells no sum should trip over."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dplinked as dpl
from dplinked.data import table as rows
from dplinked.data.table import Rows
from dplinked.study.build import build_design
from dplinked.study.design import Design
from dplinked.sums.numpy import kernel, prepare
from dplinked.sums.numpy.counts import column_counts
from dplinked.sums.numpy.instrument import instrument_sums
from dplinked.sums.numpy.paper import paper_sums, scale_rows
from dplinked.sums.numpy.prepare import Blocks, Piece, PreparedRows, prepare_rows
from dplinked.sums.numpy.tables import TablePass
from dplinked.sums.rounding import rounding_bound
from dplinked.sums.types import Predictor
from neighbours import ele_matrix

BOUNDS = {"y": (-3.0, 3.0), "x": (-1.0, 1.0), "w": (0.0, 2.0)}
LAYOUTS = {
    "many small blocks": [2, 3, 5, 4] * 25,
    "few large blocks": [130, 90, 140],
    "blocks of one": [1] * 20 + [2] * 10 + [1, 7],
    "one block": [60],
}


def make_rows(
    sizes: list[int], seed: int = 0, shuffle: bool = True
) -> tuple[dict[str, np.ndarray], dict[int, float], np.ndarray]:
    """Data, accuracies, and the dense Q in the order of the rows."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    gammas = [float(rng.uniform(max(0.5, 1 / m), 1)) for m in sizes]
    Q = ele_matrix(sizes, gammas)
    order = rng.permutation(n) if shuffle else np.arange(n)
    data = {
        "x": rng.uniform(-1, 1, n),
        "w": rng.uniform(0, 2, n),
        "y": rng.normal(size=n).clip(-3, 3),
        "block": blocks[order],
    }
    return data, dict(enumerate(gammas)), Q[np.ix_(order, order)]


def prepared(data, design: Design, linkage, unit=None) -> PreparedRows:
    return prepare_rows(Rows(data), design, linkage, unit or dpl.PrivacyUnit())


@pytest.fixture(params=["compiled", "NumPy"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled kernel and without it: for tests of sums that the kernel takes part in."""
    if request.param == "NumPy":
        monkeypatch.setattr(kernel, "KERNEL", None)
    elif kernel.KERNEL is None:
        pytest.skip("kernel.c was not compiled")


INSTRUMENTS = [
    pytest.param(layout, formula, typical, id=f"{layout}-{formula}-{'declared' if typical is None else 'typical'}")
    for layout in LAYOUTS
    for formula in ("y ~ x + w", "y ~ 0 + x + w")
    for typical in (None, {"x": (-0.4, 0.2)})
]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(("layout", "formula", "typical"), INSTRUMENTS)
def test_instrument_sums_equal_dense_q(layout: str, formula: str, typical) -> None:
    data, accuracy, Q = make_rows(LAYOUTS[layout])
    check_instrument_sums(data, Q, dpl.ELE(accuracy, block="block"), build_design(formula, BOUNDS, None, typical))


@pytest.mark.parametrize(("layout", "formula", "typical"), INSTRUMENTS)
def test_instrument_sums_of_a_matching_matrix_equal_dense_q(layout: str, formula: str, typical) -> None:
    data, _, Q = make_rows(LAYOUTS[layout])
    check_instrument_sums(data, Q, dpl.Matching(sp.csr_array(Q)), build_design(formula, BOUNDS, None, typical))


def check_instrument_sums(data: dict[str, np.ndarray], Q: np.ndarray, linkage, design: Design) -> None:
    sums = instrument_sums(prepared(data, design, linkage))
    x = np.stack([(data[c.name] - c.shift) / c.scale for c in design.columns])
    z = (data["y"] - design.response.shift) / design.response.scale
    h = x if design.half_widths is None else np.clip(x / np.array(design.half_widths)[:, None], -1, 1)
    if design.intercept:
        x, h = (np.vstack([np.ones(len(z)), part]) for part in (x, h))
    np.testing.assert_allclose(sums.matrix, h @ Q @ x.T, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums.vector, h @ z, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("formula", ["y ~ x + w", "y ~ 0 + x"])
@pytest.mark.parametrize("explicit", [False, True])
def test_paper_sums_and_estimates_equal_dense_q(layout: str, formula: str, explicit: bool) -> None:
    data, accuracy, Q = make_rows(LAYOUTS[layout])
    linkage = dpl.Matching(sp.csr_array(Q)) if explicit else dpl.ELE(accuracy, block="block")
    design = build_design(formula, BOUNDS).unscaled()
    sums = paper_sums(prepared(data, design, linkage), 10.0, 10.0)
    X = np.stack([data[c.name] for c in design.columns], axis=1)
    if design.intercept:
        X = np.c_[np.ones(len(X)), X]
    W, z = Q @ X, data["y"]
    np.testing.assert_allclose(sums.matrix, W.T @ W, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums.vector, W.T @ z, rtol=1e-9, atol=1e-9)
    assert sums.squares == pytest.approx(z @ z, rel=1e-12)
    beta = np.linalg.solve(W.T @ W, W.T @ z)
    fitted = dpl.baseline.lahiri_larsen(data, formula, linkage=linkage)
    np.testing.assert_allclose(list(fitted.coef.values()), beta, rtol=1e-9, atol=1e-9)

    residuals = z - W @ beta
    apart = X[None, :] - W[:, None]
    A = np.einsum("ij,ijk,ijl->kl", Q, apart, apart)
    sigma2 = max(0.0, (residuals @ residuals - beta @ A @ beta) / (len(z) - X.shape[1]))
    np.testing.assert_allclose(fitted.covariance, dense_rl_covariance(X, Q, beta, sigma2), rtol=1e-8, atol=1e-9)


def test_lahiri_larsen_takes_large_blocks_in_bounded_memory() -> None:
    """One block of 20,000 rows: its matrix of 3.2 GB is never built, and less than 100 MB are used."""
    import tracemalloc

    rng, n = np.random.default_rng(2), 20_000
    data = {"x": rng.uniform(0, 1, n), "y": rng.uniform(0, 1, n)}
    tracemalloc.start()
    fitted = dpl.baseline.lahiri_larsen(data, "y ~ x", linkage=dpl.ELE(0.9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8
    assert fitted.std_err["x"] == pytest.approx(np.sqrt(1 / n) / 0.9, rel=0.05)  # sd(y) = sd(x), and w = .9 x


def dense_rl_covariance(X: np.ndarray, Q: np.ndarray, beta: np.ndarray, sigma2: float) -> np.ndarray:
    """Σ^RL from the double sum of Lemma 2.1, indices put right: Σ_u Σ_{v≠u} q_iu q_jv f_iu f_jv."""
    W = Q @ X
    f = (X @ beta)[None, :] - (W @ beta)[:, None]
    terms = Q * f
    Sigma = np.outer(terms.sum(axis=1), terms.sum(axis=1)) - terms @ terms.T  # all pairs less those with u = v
    np.fill_diagonal(Sigma, sigma2 + (Q * f**2).sum(axis=1))
    bread = np.linalg.inv(W.T @ W)
    return bread @ W.T @ Sigma @ W @ bread


@pytest.mark.usefixtures("both_ways")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.permutations(range(40)))
def test_row_order_changes_nothing_beyond_rounding(seed: int, order: list[int]) -> None:
    data, accuracy, _ = make_rows([3, 5, 1, 11, 20], seed)
    design = build_design("y ~ x + w", BOUNDS)
    linkage = dpl.ELE(accuracy, block="block")
    first = instrument_sums(prepared(data, design, linkage))
    second = instrument_sums(prepared({k: v[order] for k, v in data.items()}, design, linkage))
    bound = rounding_bound(40, 1.0)
    assert np.abs(first.matrix - second.matrix).max() <= 2 * bound
    assert np.abs(first.vector - second.vector).max() <= 2 * bound


@pytest.mark.usefixtures("both_ways")
def test_rounding_bound_holds_against_exact_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, so that all merges happen; reference by math.fsum."""
    monkeypatch.setattr(rows, "PART", 64)
    monkeypatch.setattr(prepare, "STRIP", 16)
    data, accuracy, _ = make_rows([50, 300, 1, 649], 3)
    design = build_design("y ~ 0 + x", {"y": (-3, 3), "x": (-1, 1)})
    sums = instrument_sums(prepared(data, design, dpl.ELE(accuracy, block="block")))
    x, z = data["x"], data["y"] / 3.0
    exact = math.fsum(x * z)
    assert abs(sums.vector[0] - exact) <= rounding_bound(1000, 1.0)
    gammas = np.array([1.0 if (data["block"] == b).sum() == 1 else g for b, g in accuracy.items()])
    sizes = np.bincount(data["block"])
    o = np.where(sizes > 1, (1 - gammas) / np.maximum(sizes - 1, 1), 0)
    H = math.fsum(((gammas - o)[data["block"]] * x) * x) + math.fsum(
        o[b] * math.fsum(x[data["block"] == b]) ** 2 for b in range(4)
    )
    assert abs(sums.matrix[0, 0] - H) <= rounding_bound(1000, 1.0)


@pytest.mark.usefixtures("both_ways")
def test_tiles_and_lanes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    data, accuracy, _ = make_rows(LAYOUTS["many small blocks"])
    design = build_design("y ~ x + w", BOUNDS, None, {"x": (-0.5, 0.5)})
    whole = instrument_sums(prepared(data, design, dpl.ELE(accuracy, block="block")))
    monkeypatch.setattr(rows, "PART", 16)
    monkeypatch.setattr(prepare, "STRIP", 4)
    tiled = instrument_sums(prepared(data, design, dpl.ELE(accuracy, block="block")))
    np.testing.assert_allclose(whole.matrix, tiled.matrix, atol=1e-10)
    again = instrument_sums(prepared(data, design, dpl.ELE(accuracy, block="block")))
    assert np.array_equal(tiled.matrix, again.matrix)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_kernel_is_there_where_it_can_be_compiled() -> None:
    assert kernel._load() is not None


def test_a_kernel_of_another_source_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.zlib, "crc32", lambda content: 0)
    assert kernel._load() is None


@pytest.mark.usefixtures("both_ways")
def test_there_are_no_more_blocks_than_rows() -> None:
    """A key far from the others would otherwise cost a counter and totals for every number in between."""
    data, design = {"x": np.linspace(-1, 1, 40), "y": np.zeros(40)}, build_design("y ~ x", BOUNDS)
    near, far = np.repeat(np.arange(4), 10), np.repeat([0, 1, 2, 1100], 10)
    one, two = (prepared(data | {"k": keys}, design, dpl.ELE(0.9, block="k")) for keys in (near, far))
    assert one.blocks is not None
    assert two.blocks is not None
    assert one.blocks.sizes.tolist() == two.blocks.sizes.tolist() == [10] * 4
    np.testing.assert_array_equal(instrument_sums(one).matrix, instrument_sums(two).matrix)


WILD = [0.0, -0.0, 1.0, -1.0, 0.3, 1e-320, 1e300, -1e300, math.inf, -math.inf, math.nan]


@pytest.mark.skipif(kernel.KERNEL is None, reason="kernel.c was not compiled")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_kernel_does_what_numpy_does(data: st.DataObject) -> None:
    """Any cells, any order of blocks, chunks that end anywhere: the terms are the same, their sums differ by rounding."""
    n = data.draw(st.sampled_from([1, 2, 255, 256, 257, 600]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    wild = lambda: np.where(rng.random(n) < 0.2, rng.choice(WILD, n), rng.uniform(-2, 3, n))  # noqa: E731
    cells = {name: wild() for name in ("x", "w", "v", "y")} | {"g": rng.choice(["a", "b", "c"], n)}
    cells["k"] = np.sort(rng.integers(0, data.draw(st.integers(1, 2 * n)), n))
    if data.draw(st.booleans()):
        rng.shuffle(cells["k"])
    formula = data.draw(
        st.sampled_from(
            [
                "y ~ x + w",
                "y ~ 0 + w",
                "y ~ x * C(g)",
                "y ~ np.log(w + 1) + C(g)",
                "y ~ 1",
                "np.log(v) ~ x",
                "y ~ np.log(v)",
            ]
        )
    )
    typical = data.draw(st.sampled_from([None, {"x": (-0.4, 0.2)}])) if "x" in formula else None
    levels = {"g": ["a", "b"]} if "g" in formula else None
    known = BOUNDS | {"v": data.draw(st.sampled_from([(0.1, 2.0), (1e-300, 1e300), (1e-320, 1.0)]))}
    named = {name: bounds for name, bounds in known.items() if name in formula}
    design = build_design(formula.replace("np.", ""), named, levels, typical)
    linkage = data.draw(st.sampled_from([dpl.Exact(), dpl.ELE(0.9), dpl.ELE(0.95, block="k")]))
    estimated = dpl.PrivacyUnit(moves_block=True)  # small blocks may be less accurate than chance
    found = []
    for compiled in (kernel._load(), None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "KERNEL", compiled)
            patch.setattr(prepare, "TILE", data.draw(st.sampled_from([100, 1 << 18])))
            found.append(instrument_sums(prepared(cells, design, linkage, estimated)))
    one, two = found
    bound = 4 * rounding_bound(n, 10.0)
    np.testing.assert_allclose(one.matrix, two.matrix, rtol=0, atol=bound)
    np.testing.assert_allclose(one.vector, two.vector, rtol=0, atol=bound)


@pytest.mark.skipif(kernel.KERNEL is None, reason="kernel.c was not compiled")
@pytest.mark.parametrize("formula", ["y ~ x + w", "y ~ 0 + w"])
@pytest.mark.parametrize("sorted_keys", [True, False])
def test_squares_by_the_kernel_are_numpys(monkeypatch: pytest.MonkeyPatch, formula: str, sorted_keys: bool) -> None:
    """Contributions of rows and of blocks, some of them cut, of groups that weigh less than others too."""
    n, rng = 700, np.random.default_rng(3)
    cells = {
        name: np.where(rng.random(n) < 0.2, rng.choice(WILD, n), rng.uniform(-2, 3, n)) for name in ("x", "w", "y")
    }
    cells["k"] = rng.integers(0, 30, n)
    cells["k"] = np.sort(cells["k"]) if sorted_keys else cells["k"]
    named = {name: bounds for name, bounds in BOUNDS.items() if name in formula}
    design = build_design(formula, named, None, {"w": (0.2, 0.6)})
    p = len(design.names)
    around = Predictor(np.linspace(0.1, 0.5, p), np.linspace(-0.1, 0.2, len(design.columns)), 0.8)
    linkage, found = dpl.ELE({str(k): 0.5 + k / 60 for k in range(30)}, block="k"), []
    for compiled in (kernel._load(), None):
        monkeypatch.setattr(kernel, "KERNEL", compiled)
        plain = TablePass(prepared(cells, design, linkage))
        for weighed in (plain, plain.with_weights({"3": 0.2, "7": 0.6})):
            for squares, norm in ((weighed.row_meat, 0.7), (weighed.block_meat, 5.0)):
                found.append(squares(around, np.linspace(1.0, 2.0, p), norm).matrix)
    for one, other in zip(found[:4], found[4:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
    assert not np.allclose(found[0], found[2])
    assert not np.allclose(found[1], found[3])


@pytest.mark.skipif(kernel.KERNEL is None, reason="kernel.c was not compiled")
def test_a_code_that_is_no_block_stops_the_kernel() -> None:
    design = build_design("y ~ x", {"x": (-1, 1), "y": (-1, 1)})
    for code in (-1, 3, 2**31 - 1):
        sums = kernel.InstrumentSums(design, Blocks(np.ones(3, np.int64), np.ones(3), np.zeros(3)), False)
        with pytest.raises(dpl.ReleaseError, match="changed"):
            sums.add(Piece(2, {"x": np.zeros(2), "y": np.zeros(2)}, {}, np.array([0, code], np.int32)))


@pytest.mark.usefixtures("both_ways")
def test_totals_of_large_blocks_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of three blocks in turn: a total that grows row by row would lose more digits than the rounding bound allows."""
    n, x = 300_000, 0.1
    monkeypatch.setattr(prepare, "TILE", 50_000)
    data = {"x": np.full(n, x), "y": np.zeros(n), "k": np.arange(n) % 3}
    design = build_design("y ~ 0 + x", {"x": (-1, 1), "y": (-1, 1)})
    sums = instrument_sums(prepared(data, design, dpl.ELE(0.9, block="k")))
    m, o = n // 3, 0.1 / (n // 3 - 1)
    exact = (0.9 - o) * math.fsum([x * x] * n) + 3 * o * math.fsum([x] * m) ** 2
    assert abs(sums.matrix[0, 0] / exact - 1) < 1e-13


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, dict, lambda d: pl.DataFrame(d).lazy()])
def test_all_tables_give_the_same_sums(make) -> None:
    data, accuracy, _ = make_rows(LAYOUTS["blocks of one"])
    linkage = dpl.ELE(accuracy, block="block")
    design = build_design("y ~ x + w", BOUNDS)
    reference = instrument_sums(prepared(data, design, linkage))
    sums = instrument_sums(prepared(make(data), design, linkage))
    assert np.array_equal(sums.matrix, reference.matrix)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_nulls_wild_cells_and_unknown_levels(make) -> None:
    """Null and non-finite cells get the fill value, huge ones the bound, unknown levels the reference, no row is dropped."""
    columns = {
        "x": [0.5, None, float("nan"), float("inf"), 1e300, -1e300],
        "y": [1.0, 2.0, None, -1e300, 0.0, 1.0],
        "g": ["a", "b", None, "zzz", "b", "a"],
    }
    design = build_design("y ~ x + C(g)", {"x": (-1, 1), "y": (-3, 3)}, {"g": ["a", "b"]}, None, {"x": 0.25}).unscaled()
    x, z = prepared(make(columns), design, dpl.Exact()).whole()
    np.testing.assert_array_equal(x[0], [0.5, 0.25, 0.25, 0.25, 1.0, -1.0])
    np.testing.assert_array_equal(x[1], [0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(z, [1.0, 2.0, 0.0, -3.0, 0.0, 1.0])


def test_null_and_undeclared_keys_form_one_block() -> None:
    data = {"x": np.linspace(-1, 1, 6), "y": np.zeros(6), "k": np.array(["a", "a", None, "b", None, "c"], dtype=object)}
    design = build_design("y ~ x", {"x": (-1, 1), "y": (-1, 1)})
    found = prepared(data, design, dpl.ELE({"a": 0.9}, block="k", other=0.6))
    assert found.blocks is not None
    assert found.blocks.sizes.tolist() == [2, 4]
    assert found.block_codes().tolist() == [0, 0, 1, 1, 1, 1]
    single = prepared(data, design, dpl.ELE(0.8, block="k")).blocks
    assert single is not None
    assert sorted(single.sizes.tolist()) == [1, 1, 2, 2]


def test_keys_of_other_types_match_their_names() -> None:
    """Study files know only text keys; whole numbers in the data match them."""
    data = {"x": np.zeros(4), "y": np.zeros(4), "k": np.array([1, 1, 2, 2])}
    design = build_design("y ~ x", {"x": (-1, 1), "y": (-1, 1)})
    blocks = prepared(data, design, dpl.ELE({"1": 0.9, "2": 0.7}, block="k")).blocks
    assert blocks is not None
    np.testing.assert_allclose(blocks.a + blocks.o, [0.9, 0.7])


@given(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3), st.floats(0.1, 10))
def test_rows_are_scaled_to_the_norm(cells: list[float], norm: float) -> None:
    x = np.array(cells)[:, None]
    direction = x.copy()
    scale_rows(x, norm)
    largest = np.abs(x).max()
    assert largest == 0 or largest * np.linalg.norm(x / largest) <= norm
    assert np.all(np.sign(x) * np.sign(direction) >= 0)


def test_counts_are_of_the_declared_grid() -> None:
    data = {"x": np.array([-1.0, -0.99, 0.0, 0.99, 1.0, 5.0]), "y": np.zeros(6)}
    design = build_design("y ~ x", {"x": (-1, 1), "y": (-1, 1)})
    counts = column_counts(prepared(data, design, dpl.Exact()), 4).counts
    assert counts.tolist() == [[2, 0, 1, 3]]


def test_private_objects_do_not_show_their_values() -> None:
    data, accuracy, _ = make_rows([5])
    design = build_design("y ~ x", BOUNDS)
    found = prepared(data, design, dpl.ELE(accuracy, block="block"))
    sums = instrument_sums(found)
    for secret in (sums, found, found.blocks, column_counts(found, 4)):
        text = repr(secret)
        assert "array" not in text
        assert "[" not in text
    assert replace(sums, count=3).count == 3
