"""Extreme bounds, files and draws: a fit is refused before its first draw, or it ends in a release that can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.errors import StudyError
from dplinked.estimate.residuals import clipped_square
from dplinked.privacy import noise
from dplinked.privacy.quantities import residual_scale
from stages import set_in_stage

SCALES = 10.0 ** np.array([-30, -8, 0, 0, 0, 8, 30])


def draw_column(rng: np.random.Generator, n: int) -> tuple[tuple[float, float], np.ndarray]:
    """Bounds of any scale and width, and cells between them, at their ends or all the same."""
    unit = float(rng.choice(SCALES))
    low = float(rng.choice([0.0, -1.0, -0.5, 1.0])) * unit
    high = low + unit * float(rng.choice([1.0, 1.0, 0.001, 100.0]))
    cells = rng.choice([low, high], n) if rng.random() < 0.4 else rng.uniform(low, high, n)
    return (low, high), np.full(n, low) if rng.random() < 0.2 else cells


def draw_linkage(rng: np.random.Generator, blocks: np.ndarray) -> tuple[Any, dpl.PrivacyUnit | None]:
    """A linkage of any kind and accuracy that these blocks allow, and a unit."""
    n, gamma = blocks.size, float(rng.choice([1.0, 0.99, 0.9, 0.6, 0.5]))
    sizes = {int(key): int((blocks == key).sum()) for key in np.unique(blocks)}
    match rng.choice(["exact", "blocks", "table", "whole", "matching", "moves", "changes"]):
        case "exact":
            return dpl.Exact(), None
        case "blocks":
            return dpl.ELE(gamma, block="b"), None
        case "table":
            listed = {key: max(float(rng.choice([1.0, 0.9, 0.5, 0.1])), 1.0 / m) for key, m in sizes.items()}
            return dpl.ELE(dict(list(listed.items())[: rng.integers(1, 1 + len(sizes))]), block="b", other=gamma), None
        case "whole":
            return dpl.ELE(gamma), None
        case "matching":
            Q = sp.csr_array(0.9 * np.eye(n) + 0.1 * np.eye(n)[rng.permutation(n)])
            unit = dpl.PrivacyUnit(displaced_links=int(rng.integers(2)), linkage_change=float(rng.integers(2)))
            return dpl.Matching(Q, accuracy_min=0.9), unit
        case "moves":
            return dpl.ELE({0: float(rng.choice([0.01, 0.9]))}, block="b", other=gamma), dpl.PrivacyUnit(True)
        case _:
            return dpl.ELE(gamma, block="b", other=gamma), dpl.PrivacyUnit(linkage_change=2.0)


def draw_fit(rng: np.random.Generator) -> dict[str, Any]:
    """All that a fit is given: 2 to 300 rows, up to six columns and their products, with an intercept or without one."""
    n, d = int(rng.choice([2, 3, 5, 10, 20, 40, 60, 300])), int(rng.integers(0, 7))
    bounds, data = {}, {}
    for name in ("y", *(f"x{i}" for i in range(d))):
        bounds[name], data[name] = draw_column(rng, n)
    terms = [f"x{i}" for i in range(d)]
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        terms.append("C(g)")
        data["g"], options["levels"] = rng.choice(["a", "b"], n), {"g": ["a", "b"]}
    if d > 0 and rng.random() < 0.2:
        terms.append("I(x0**2)")
    if d > 0 and rng.random() < 0.3:
        low, high = bounds["x0"]
        options["typical"] = {"x0": (low + 0.4 * (high - low), low + 0.6 * (high - low))}
    first = "1" if rng.random() < 0.7 or not terms else "0"
    data["b"] = np.arange(n) % int(rng.choice([1, 2, n, max(1, n // 3)]))
    options["linkage"], options["unit"] = draw_linkage(rng, data["b"])
    return {
        "data": data,
        "formula": "y ~ " + " + ".join([first, *terms]),
        "bounds": bounds,
        "epsilon": float(rng.choice([0.01, 0.3, 1.0, 8.0, 50.0, 300.0])),
        "delta": 1e-5,
        "large_epsilon": True,
        "intervals": bool(rng.random() < 0.7),
        **options,
    }


def run_extreme(monkeypatch: pytest.MonkeyPatch, seed: int) -> bool:
    """Fit with noise up to a million times as large as planned; whether a release came of it."""
    rng = np.random.default_rng(seed)
    told, factor, drawn = draw_fit(rng), float(rng.choice([0.0, 1.0, 1000.0, 1e6])), [0]

    def add(values: Any, scale: Any) -> np.ndarray:
        values, scales = np.asarray(values, float), np.broadcast_to(np.asarray(scale, float), np.shape(values))
        assert np.isfinite(values).all()
        assert np.isfinite(scales).all()
        assert (scales > 0.0).all()
        drawn[0] += 1
        return np.asarray(values + factor * scales * rng.normal(size=values.shape))

    plan = residual_scale.plan_residual_scale
    with monkeypatch.context() as patch:
        patch.setattr(noise, "add_gaussian", add)
        if seed % 2:  # the second stage, whatever it costs

            def plan_for_many(exposure, count, mu, highest=0.97, **kind):
                return plan(exposure, 10**9, mu, highest, **kind)

            patch.setattr(residual_scale, "plan_residual_scale", plan_for_many)
            set_in_stage(patch, "plan_residual_scale", plan_for_many)
            set_in_stage(patch, "_pays", lambda *public: public[0].groups.contrast > 1e-6)
        try:
            release = dpl.fit(**told)
        except StudyError:
            assert drawn[0] == 0, "refused after a draw"
            return False
        release.to_json()
        str(release.summary())
        return True


def test_extremes_end_in_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(run_extreme(monkeypatch, seed) for seed in range(16)) > 10


@pytest.mark.slow
def test_many_extremes_end_in_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(run_extreme(monkeypatch, seed) for seed in range(1000, 1100)) > 70


@pytest.mark.parametrize("limit", [1e-12, 1e-9, 1e-7, 1e-3, 1.0])
def test_squares_of_clipped_residuals_do_not_cancel(limit: float) -> None:
    """Where nearly all residuals are beyond their clip, their mean square is the clip's."""
    assert 0.0 < clipped_square(limit, 1.0) <= limit**2 * (1.0 + 1e-9)
