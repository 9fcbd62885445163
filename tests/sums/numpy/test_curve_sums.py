"""Sums along curves: the kernel, NumPy and a plain loop agree, in memory and in files; and linked rows tell what right links would."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.study.build import build_design
from dplinked.study.design import Design
from dplinked.study.family import Curve
from dplinked.sums.engine import open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.numpy import circle, kernel
from dplinked.sums.types import MeatClip, ResidualClip

N = 600
FAMILIES = {"logistic": "died ~ x + w + C(g)", "poisson": "visits ~ x + w + C(g)"}
BOUNDS = {"x": (-1.0, 1.0), "w": (0.0, 3.0), "visits": (0, 6), "years": (0.5, 4.0)}
LINKAGES = {
    "ele": (dpl.ELE(0.8, block="b"), dpl.PrivacyUnit()),
    "table": (dpl.ELE({"0": 0.6, "1": 0.95}, block="b", other=0.7), dpl.PrivacyUnit()),
    "mover": (dpl.ELE(0.8, block="b", other=0.8), dpl.PrivacyUnit(moves_block=True)),
    "one block": (dpl.ELE(0.9), dpl.PrivacyUnit()),
    "exact": (dpl.Exact(), dpl.PrivacyUnit()),
    "matching": (
        dpl.Matching(sp.csr_array(0.9 * np.eye(N) + 0.1 * np.eye(N)[np.roll(np.arange(N), 1)]), accuracy_min=0.9),
        dpl.PrivacyUnit(linkage_change=0.0, displaced_links=0),
    ),
}


def draw_rows(seed: int = 0, n: int = N) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    rows = {"x": rng.normal(0, 0.6, n), "w": rng.gamma(1.0, 1.0, n), "years": rng.uniform(0.2, 5.0, n)}
    rows["x"][:3] = np.nan, np.inf, 1e300
    rows["g"] = rng.choice(["a", "b", "c"], n)
    rows["died"] = rng.choice(["no", "yes", "unknown"], n)
    return {**rows, "visits": rng.poisson(2.0, n).astype(float), "b": rng.integers(0, 12, n)}


def make_design(family: str, *, intercept: bool = True, **counted: str) -> Design:
    formula = FAMILIES[family] if intercept else FAMILIES[family].replace("~", "~ 0 +")
    levels, exposure = {"g": ["a", "b", "c"], "died": ["no", "yes"]}, "years" if family == "poisson" else None
    design = build_design(formula, BOUNDS, levels, family=family, exposure=exposure, **counted)
    return design.with_instrument([0.6] * len(design.columns))


def open_rows(data: Any, linkage: str, family: str, *, intercept: bool = True, **counted: str) -> LinkedRows:
    """Linked rows, without missing cells where they are `counted` by weights or a condition."""
    rows = open_source(data).linked_rows(make_design(family, intercept=intercept, **counted), *LINKAGES[linkage])
    return rows.without_missing() if counted else rows


def make_clip(rows: LinkedRows, limit: float = 0.9) -> ResidualClip:
    beta = np.linspace(-0.7, 1.1, len(rows.design.names))
    return ResidualClip(beta, limit, 0.5 * rows.design.intercept, 1.0, curve=rows.design.curve)


def by_hand(rows: LinkedRows, clip: ResidualClip, level: float, weights: Any, counted: Any) -> tuple[Any, Any]:
    """The sums by a loop over rows, with the weights of their blocks and what they are `counted` as."""
    design, first = rows.design, int(rows.design.intercept)
    data = rows.with_design(design.exposed()).engine.data
    (x, _), d, curve = data.whole(), len(design.columns), design.curve
    p = d + first
    vector, matrix = np.zeros(p), np.zeros((p, p))
    for i in range(x.shape[1]):
        h = x[:d, i].copy()
        for group in design.groups:
            if group.numeric:
                h[group.start] = np.clip(h[group.start] / design.half_widths[group.start], -1, 1)
        shift = x[d, i] if design.exposure is not None else 0.0
        eta = np.array([clip.beta[:first].sum() + clip.beta[first:] @ x[:d, i] + shift])
        mean, slope = curve.mean_and_slope(eta)
        share = weights[i] * counted[i] * min(1.0, clip.limit / np.hypot(clip.intercept_weight, np.linalg.norm(h)))
        h, own = np.append(np.ones(first), h), np.append(np.ones(first), x[:d, i])
        vector += share * h * (mean[0] - level)
        matrix += share * slope[0] * np.outer(h, own)
    return vector, matrix


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch, family: str, linkage: str, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(kernel, "KERNEL", None)
    rows = open_rows(draw_rows(), linkage, family, intercept=linkage != "table")
    blocks = rows.engine.data.blocks
    weights = np.ones(N) if blocks is None else blocks.a[rows.engine.data.block_codes()]
    clip = make_clip(rows)
    found, (vector, matrix) = rows.curve_sums(clip, 0.4), by_hand(rows, clip, 0.4, weights, np.ones(N))
    np.testing.assert_allclose(found.vector, vector, atol=1e-9)
    np.testing.assert_allclose(found.matrix, matrix, atol=1e-9)


COUNTED = {
    "weights": {"weights": "w"},
    "a condition": {"where": "x > -0.5 and g != 'c'"},
    "both": {"weights": "w", "where": "x > -0.5 and g != 'c'"},
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("counted", COUNTED)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_count_by_weights_and_conditions(
    monkeypatch: pytest.MonkeyPatch, family: str, counted: str, compiled: bool
) -> None:
    """What a row counts is a factor on its instruments, which are shortened whatever it is, in the sums along the curve as in the equation of responses."""
    if not compiled:
        monkeypatch.setattr(kernel, "KERNEL", None)
    data = draw_rows()
    rows = open_rows(data, "ele", family, **COUNTED[counted])
    x = np.clip(data["x"], -1.0, 1.0)
    holds = (x > -0.5) & (data["g"] != "c") if counted != "weights" else np.ones(N, bool)
    omega = np.where(np.isfinite(data["x"]) & holds, 1.0 if counted == "a condition" else np.minimum(data["w"], 3.0) / 3.0, 0.0)  # fmt: skip
    weights, clip = rows.engine.data.blocks.a[rows.engine.data.block_codes()], make_clip(rows)
    found, (vector, matrix) = rows.curve_sums(clip, 0.4), by_hand(rows, clip, 0.4, weights, omega)
    np.testing.assert_allclose(found.vector, vector, atol=1e-9)
    np.testing.assert_allclose(found.matrix, matrix, atol=1e-9)
    number = rows.complete_rows()
    assert number.known == pytest.approx((omega > 0.0).sum())
    if family == "poisson":
        assert number.complete == number.known


@pytest.mark.parametrize("counted", COUNTED)
def test_responses_count_as_their_rows_do(counted: str) -> None:
    """Around a level, an exact join's equation is what rows count, times instruments, times the response around it: what the sums along a flat curve have, with means in its place."""
    rows = open_rows(draw_rows(), "exact", "poisson", **COUNTED[counted])
    clip = replace(make_clip(rows), beta=np.zeros(len(rows.design.names)), exposed=False)
    at_zero, at_level = (replace(clip, around=level) for level in (0.0, 1.0))
    ones = rows.right_residuals(at_zero).vector - rows.right_residuals(at_level).vector
    np.testing.assert_allclose(ones, rows.curve_sums(clip, 0.0).vector - rows.curve_sums(clip, 1.0).vector, atol=1e-9)


@pytest.mark.parametrize("counted", [{}, COUNTED["both"]], ids=["alike", "counted"])
@pytest.mark.parametrize("linkage", [name for name in LINKAGES if name != "matching"])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernel_and_numpy_have_the_same_residuals(
    monkeypatch: pytest.MonkeyPatch, family: str, linkage: str, counted: dict[str, str]
) -> None:
    """Means, partners and squares of rows."""
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(kernel, "KERNEL", None)
            rows = open_rows(draw_rows(), linkage, family, **counted)
            meat = MeatClip("row", np.linspace(0.5, 2.0, len(rows.design.names)), 1.0)
            found.append(rows.right_residuals(make_clip(rows), meat))
    one, two = found
    np.testing.assert_allclose(one.vector, two.vector, atol=1e-7)
    np.testing.assert_allclose(one.meat, two.meat, atol=1e-7)
    assert one.limit == 0.9 * (1.0 if family == "logistic" else 6.0)


def test_files_have_the_sums_of_memory(tmp_path: Path) -> None:
    data = draw_rows()
    pq.write_table(pa.table(data), tmp_path / "rows.parquet", row_group_size=100)
    for family in FAMILIES:
        one, two = (open_rows(source, "ele", family) for source in (data, tmp_path / "rows.parquet"))
        np.testing.assert_allclose(
            one.curve_sums(make_clip(one), 0.3).matrix, two.curve_sums(make_clip(two), 0.3).matrix, atol=1e-9
        )
        np.testing.assert_allclose(
            one.right_residuals(make_clip(one)).vector, two.right_residuals(make_clip(two)).vector, atol=1e-7
        )


@pytest.mark.parametrize(("m", "gamma"), [(2, 0.7), (3, 0.5), (4, 0.6)])
def test_linked_events_tell_what_right_links_would(monkeypatch: pytest.MonkeyPatch, m: int, gamma: float) -> None:
    """Over all wrong links, responses less expected means have γ - o times the mean that right links have."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    rng = np.random.default_rng(m)
    x, y = rng.uniform(-1, 1, m), np.arange(m) % 2
    unit, linkage = dpl.PrivacyUnit(moves_block=True), dpl.ELE(gamma, block="b", other=gamma)
    design = build_design("y ~ x", {"x": (-1, 1)}, {"y": [0, 1]}, family="logistic").with_instrument([0.5])
    level = ResidualClip(np.zeros(2), 0.8, 0.7, 1.0, curve=Curve("logistic"), exposed=False)
    line = ResidualClip(np.array([0.2, 1.5]), 0.8, 0.7, 1.0, curve=Curve("logistic"))

    def equation(y: Any, linkage: Any, unit: Any) -> Any:
        rows = open_source({"x": x, "y": y, "b": np.zeros(m)}).linked_rows(design, linkage, unit)
        return rows.right_residuals(level).vector - rows.curve_sums(line, 0.5).vector

    monkeypatch.setattr(circle, "order_by_position", lambda codes: np.arange(m))
    derangements = [list(p) for p in itertools.permutations(range(m)) if all(p[i] != i for i in range(m))]
    wrong = np.mean([equation(y[p], linkage, unit) for p in derangements], axis=0)
    found = gamma * equation(y, linkage, unit) + (1.0 - gamma) * wrong
    right = equation(y, dpl.Exact(), dpl.PrivacyUnit())
    np.testing.assert_allclose(found, (gamma - (1.0 - gamma) / (m - 1)) * right, atol=1e-8)


def test_level_lines_bound_residuals_more_closely() -> None:
    rows = open_rows(draw_rows(), "ele", "poisson")
    beta = np.zeros(len(rows.design.names))
    beta[0] = rows.design.curve.find_eta(2.0)
    clip = ResidualClip(beta, 0.9, 0.5, 1.0, curve=rows.design.curve, exposed=False)
    assert rows.right_residuals(clip).limit == pytest.approx(0.9 * 4.0)
    exposed = ResidualClip(beta, 0.9, 0.5, 1.0, curve=rows.design.curve)  # then means differ, though the line is level
    assert rows.right_residuals(exposed).limit == pytest.approx(0.9 * 6.0)


@pytest.mark.parametrize("largest", [None, 1, 2, 5, 6, 7, 8, 300])
def test_kernels_means_are_those_of_the_curve(largest: int | None) -> None:
    """Row by row, from one end of η to the other and beyond."""
    assert kernel.KERNEL is not None
    family, bounds = ("logistic", {}) if largest is None else ("poisson", {"y": (0, largest)})
    design = build_design(
        "y ~ 0 + x", {"x": (-1, 1), **bounds}, {"y": [0, 1]} if largest is None else None, family=family
    )
    clip = ResidualClip(np.array([40.0]), 10.0, 0.0, 1.0, curve=design.curve)
    for x in np.linspace(-1.0, 1.0, 101):
        rows = open_source({"x": [x], "y": [0]}).linked_rows(
            design.with_instrument([1e-9]), dpl.Exact(), dpl.PrivacyUnit()
        )
        found = rows.curve_sums(clip, 0.0)
        mean, slope = design.curve.mean_and_slope(np.array([40.0 * x]))
        assert abs(found.vector[0]) == pytest.approx(mean[0] * (x != 0.0), rel=1e-12, abs=1e-13 * (largest or 1))
        assert abs(found.matrix[0, 0]) == pytest.approx(slope[0] * abs(x), rel=1e-11, abs=1e-14)
