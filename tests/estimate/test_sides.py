"""Whether residuals are found alike on both sides of the line, and what follows."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

import dplinked as dpl
from dplinked.second_stage import steps
from dplinked.sums.partners import clip_residuals

BOUNDS = {"x": (-2.0, 2.0), "y": (-20.0, 20.0)}


def simulate(errors: str, rows: int, seed: int) -> dict[str, Any]:
    """A line with a slope of one, and errors of mean zero whose skewness follows x, or is the same everywhere, or that have none."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.7, 1.7, rows)
    drawn = rng.standard_normal(rows) if errors == "normal" else rng.exponential(size=rows) - 1.0
    size = 0.2 + 0.3 * (x + 1.7) if errors == "skewed with x" else 0.5
    return {"x": x, "y": x + size * drawn, "g": np.where(rng.random(rows) < 0.5, "a", "b")}


def fit(data: dict[str, Any], epsilon: float = 3.0, **further: Any) -> dpl.Release:
    return dpl.fit(data, "y ~ x", linkage=dpl.Exact(), epsilon=epsilon, delta=1e-6, **{"bounds": BOUNDS, **further})


def count(release: dpl.Release) -> int:
    return [part.name for part in release.released.parts].count("right residuals")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What looks at both sides found."""
    seen: list[bool] = []
    look = steps.are_alike

    def remember(*known: Any) -> bool:
        seen.append(look(*known))
        return seen[-1]

    monkeypatch.setattr(steps, "are_alike", remember)
    return seen


LAWS = {
    "exponential": lambda rng: rng.exponential(size=400_000),
    "lognormal .5": lambda rng: rng.lognormal(0.0, 0.5, 400_000),
    "lognormal 1": lambda rng: rng.lognormal(0.0, 1.0, 400_000),
    "Pareto 3": lambda rng: rng.pareto(3.0, 400_000),
}


@pytest.mark.parametrize(
    ("law", "times"), [("exponential", 20), ("lognormal .5", 20), ("lognormal 1", 7), ("Pareto 3", 4)]
)
def test_skewness_moves_what_is_near_the_line_more_than_what_a_wider_clip_leaves(law: str, times: float) -> None:
    """The figures of docs/mathematics.md: how far off the zero of the clipped equation is, at one deviation and at four."""
    drawn = LAWS[law](np.random.default_rng(0))
    errors = drawn - drawn.mean()
    deviation = float(np.quantile(np.abs(errors), 0.97)) / NormalDist().inv_cdf(0.985)

    def off(clip: float) -> float:
        widths = np.full(errors.size, clip * deviation)
        found = brentq(lambda zero: clip_residuals(errors - zero, widths).mean(), -errors.std(), errors.std())
        return float(found / errors.std())

    assert -0.15 < off(1.0) < -0.11
    assert abs(off(1.0)) > times * abs(off(4.0))


def test_skewness_that_follows_a_regressor_is_seen(found: list[bool]) -> None:
    for seed in range(8):
        assert count(fit(simulate("skewed with x", 20_000, seed))) == 3
    assert found == 8 * [False]


@pytest.mark.parametrize("errors", ["normal", "skewed"])
def test_residuals_that_are_alike_in_all_rows_are_nearly_always_taken_for_it(found: list[bool], errors: str) -> None:
    """Skewness that is the same everywhere moves the intercept alone, whatever the clip."""
    for seed in range(20):
        fit(simulate(errors, 20_000, seed))
    assert sum(found) >= 15  # misses it with a chance below 1e-4 if one in twenty is not


def test_a_closer_clip_makes_slopes_more_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = [fit(simulate("normal", 20_000, 0))]
    monkeypatch.setattr(steps, "are_alike", lambda *known: False)
    releases.append(fit(simulate("normal", 20_000, 0)))
    closer, wider = (release.std_err["x"] for release in releases)
    assert closer < 0.9 * wider


@pytest.mark.parametrize("errors", ["symmetric", "skewed"])
def test_nobody_looks_where_errors_are_declared(found: list[bool], errors: str) -> None:
    assert count(fit(simulate("normal", 20_000, 0), errors=errors)) <= 2
    assert not found


def test_levels_and_outcomes_draw_the_same_whatever_was_seen() -> None:
    data = simulate("skewed with x", 20_000, 0)
    levels = fit(data, by="g", levels={"g": ["a", "b"]})
    outcomes = dpl.fit(
        {**data, "z": data["y"]},
        "cbind(y, z) ~ x",
        bounds={**BOUNDS, "z": BOUNDS["y"]},
        linkage=dpl.Exact(),
        epsilon=3.0,
        delta=1e-6,
    )
    assert [count(part) for part in (*levels.values(), *outcomes.values())] == [2, 2, 2, 2]


def test_few_rows_are_not_looked_at() -> None:
    """Clips are as close as they can be there, and noise would show little."""
    assert count(fit(simulate("normal", 3_000, 0), epsilon=1.0)) == 2
