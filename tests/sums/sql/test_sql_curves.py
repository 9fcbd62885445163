"""Sums along curves by SQL against those of memory, whatever the linkage; means of counts to the last digits, and failures that tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.study.design import Design, build_design
from dplinked.study.family import LEAST_ETA, MOST_COUNTS, Curve
from dplinked.sums.engine import open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.sql import right_residuals as stage
from dplinked.sums.sql.curve import follow_curve
from dplinked.sums.sql.dialect import FAILED
from dplinked.sums.sql.duckdb_engine import DuckDBEngine
from dplinked.sums.types import MeatClip, ResidualClip

Open = Callable[..., Any]

SIZES = [1, 2, 3, 5, 9, 8, 7, 6] * 3
N = sum(SIZES)
BOUNDS = {"x": (-1.0, 1.0), "w": (0.5, 30.0), "visits": (0, 6), "years": (0.5, 4.0)}
LEVELS = {"g": ["a", "b", "c"], "died": ["no", "yes"]}
FIXED, MOVING = dpl.PrivacyUnit(), dpl.PrivacyUnit(moves_block=True)
TABLE = {**{str(key): 0.6 + 0.01 * key for key in range(len(SIZES) - 1)}, "no such key": 0.5}
LINKAGES: dict[str, tuple[Any, dpl.PrivacyUnit]] = {
    "exact": (dpl.Exact(), FIXED),
    "lists": (dpl.ELE(0.7, block="b", other=0.6), FIXED),
    "circles": (dpl.ELE(0.7, block="b", other=0.6), MOVING),
    "table": (dpl.ELE(TABLE, block="b", other=0.55), FIXED),
    "matching": (None, dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)),
}


def make_table() -> pa.Table:
    """Rows with cells out of bounds, missing, infinite, and of undeclared levels; the last block has null keys."""
    rng = np.random.default_rng(0)
    x, keys = rng.normal(0.0, 0.7, N), rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    x[:4] = np.nan, np.inf, -np.inf, 1e300
    return pa.table(
        {
            "x": x, "w": pa.array(rng.gamma(1.0, 9.0, N), mask=np.arange(N) == 7), "years": rng.uniform(0.2, 5.0, N),
            "g": pa.array(rng.choice(["a", "b", "c", "z", None], N), pa.string()), "died": rng.choice(["no", "yes", "unknown"], N),
            "visits": rng.poisson(3.0, N), "b": pa.array(keys, mask=keys == len(SIZES) - 1), "id": np.arange(N),
        }
    )  # fmt: skip


def make_design(family: str, *, intercept: bool = True) -> Design:
    outcome = {"logistic": "died", "poisson": "visits"}[family]
    formula = f"{outcome} ~ {'' if intercept else '0 + '}x + I(w**2) + C(g)"
    design = build_design(formula, BOUNDS, LEVELS, family=family, exposure="years" if family == "poisson" else None)
    return design.with_instrument([0.6] * len(design.columns))


def find_linkage(name: str) -> tuple[Any, dpl.PrivacyUnit]:
    linkage, unit = LINKAGES[name]
    if linkage is None:
        i = np.arange(N)
        pairs = {"row": np.tile(i, 2), "match": np.append(i, (i + 5) % N), "probability": np.repeat([0.9, 0.1], N)}
        linkage = dpl.Matching(pa.table(pairs), id="id", accuracy_min=0.9)
    return linkage, unit


def clip_of(rows: LinkedRows, limit: float = 0.5, size: float = 1.0, *, exposed: bool = True) -> ResidualClip:
    beta = size * np.linspace(-0.7, 1.1, len(rows.design.names))
    return ResidualClip(beta, limit, 0.4 * rows.design.intercept, 1.0, rows.design.curve, exposed)


def assert_near(found: Any, expected: Any, near: float = 1e-10) -> None:
    np.testing.assert_allclose(found, expected, rtol=near, atol=near * max(1.0, np.abs(expected).max()))


def check(found: LinkedRows, expected: LinkedRows, clip: ResidualClip) -> None:
    """The sums along the curve, the equation, and the squares by all routes."""
    one, two = found.curve_sums(clip, 0.4), expected.curve_sums(clip, 0.4)
    assert_near(one.vector, two.vector)
    assert_near(one.matrix, two.matrix)
    weights, near = np.linspace(1.0, 2.0, clip.beta.size), 1e-8  # memory keeps nine digits of the responses of partners
    for route in ["row", "block"] if found.blocks is not None else ["row"]:
        left, right = (rows.right_residuals(clip, MeatClip(route, weights, 0.3)) for rows in (found, expected))
        assert_near(left.vector, right.vector, near)
        assert_near(left.meat, right.meat, near)


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_sums_are_those_of_memory(engine: Open, family: str, linkage: str) -> None:
    """Lines that are level, steep, or so far out that exponentials would overflow; instruments shortened much or not at all."""
    table, design = make_table(), make_design(family, intercept=(linkage == "table") == (family == "poisson"))
    model, unit = find_linkage(linkage)
    found, expected = (source.linked_rows(design, model, unit) for source in (engine(table), open_source(table)))
    for limit, size in [(0.5, 1.0), (10.0, 0.0), (0.1, 1e300)]:
        check(found, expected, clip_of(expected, limit, size, exposed=size > 0.0))
