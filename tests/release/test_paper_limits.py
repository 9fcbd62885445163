"""Releases of the paper's algorithms at the limits of their settings: made, stored and asked, or refused before anything is spent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.ledger.ledger import Ledger
from dplinked.privacy import noise
from dplinked.privacy.quantities.paper import plan_paper_moments, plan_paper_sums
from dplinked.release import notes

EXPOSURE = dpl.ELE(0.8, block="block").exposure(dpl.PrivacyUnit())


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise in every run."""
    rng = np.random.default_rng(7)
    monkeypatch.setattr(
        noise, "add_gaussian", lambda values, scale: np.asarray(values) + scale * rng.normal(size=np.shape(values))
    )


def rows(n: int, width: float = 1.0, share: float = 0.0) -> dict[str, np.ndarray]:
    """Two columns within ±width, the second made of the first by `share`, and a response."""
    rng = np.random.default_rng(n)
    x, rest = rng.uniform(-width, width, (2, n))
    w = share * x + (1.0 - share) * rest
    y = np.clip((0.6 * x - 0.2 * w) / width + 0.1 * rng.normal(size=n), -1.0, 1.0)
    return {"x": x, "w": w, "y": y, "block": np.arange(n) // 5}


def fit(data: Any, formula: str = "y ~ x", *, width: float = 1.0, **options: Any) -> dpl.Release:
    settings = {"linkage": dpl.ELE(0.8, block="block"), "epsilon": 1.0, "delta": 1e-6, "method": "ngd", **options}
    bounds = {"x": (-width, width), "w": (-width, width), "y": (-1.0, 1.0)}
    return dpl.fit(data, formula, bounds=bounds, calibration="paper", **settings)


# --- a release that was paid for can be stored and asked ----------------------------------------------


def test_a_long_step_on_short_columns_is_stored() -> None:
    """A step of 200 suits columns within ±.1, whose mean square is .0033."""
    release = fit(rows(2000, 0.1), "y ~ 0 + x + w", width=0.1, descent=dpl.Descent(20.0, 60, 200.0), intervals=False)
    assert all(math.isfinite(error) for error in release.std_err.values())
    assert dpl.Release.from_json(release.to_json()).coef == release.coef


def test_a_step_that_is_too_long_is_stored_and_asked() -> None:
    release = fit(rows(200), descent=dpl.Descent(1.0, 500, 5.0))
    assert all(math.isfinite(error) for error in release.std_err.values())
    assert release.to_json()
    assert release.summary()
    assert release.conf_int()


@pytest.mark.parametrize("intervals", ["test", "wald"])
def test_releases_with_little_budget_can_be_asked(intervals: str) -> None:
    """Noise makes eigenvalues of W'W so large that steps by them would diverge."""
    data = rows(50)
    for _ in range(40):
        fit(data, epsilon=0.05, descent=dpl.Descent(0.5, curvature=8.0)).conf_int(method=intervals)


def test_errors_stay_within_what_the_radius_allows() -> None:
    """The estimate and the coefficients lie within the radius C: no error exceeds 2C, and noise there is never said to be none."""
    data, radius = rows(50), 0.5
    for _ in range(40):
        release = fit(data, epsilon=0.05, descent=dpl.Descent(radius, curvature=8.0))
        assert min(parts["privacy"] for parts in release.error_parts.values()) > 0.0
        assert max(release.std_err.values()) < 10.0 * radius


@pytest.mark.parametrize("radius", [np.float32(2.0), np.int64(2)])
def test_any_number_may_be_a_radius(radius: Any) -> None:
    assert fit(rows(50), descent=dpl.Descent(radius, 5, 0.1)).to_json()


# --- what cannot be released is refused before it is paid for --------------------------------------------


def test_nothing_is_charged_for_a_release_that_cannot_be_made(tmp_path: Path) -> None:
    path, url, linkage = tmp_path / "rows.parquet", str(tmp_path / "budget.db"), dpl.ELE(0.8, block="block")
    pq.write_table(pa.table(rows(100)), path)
    ledger = Ledger.create(url, "people", epsilon=3.0, delta=1e-6)
    ledger.register(path, linkage=linkage)
    with pytest.raises(dpl.StudyError, match="asks for"):
        fit(path, descent=dpl.Descent(1.0, curvature=500.0), linkage=linkage, ledger=url, population="people")
    assert ledger.balance().spent == 0
    release = fit(path, descent=dpl.Descent(1.0, 500, 5.0), linkage=linkage, ledger=url, population="people")
    assert dpl.Release.from_json(release.to_json()) == release  # steps far too long: paid for, and stored


@pytest.mark.parametrize(("c", "R", "count"), [(1.0, 1e5, 100_000), (1e5, 1.0, 100_000), (1.0, 1e4, 10_000_000)])
def test_moments_of_any_units_are_planned(c: float, R: float, count: int) -> None:
    """Responses in euros beside standardised columns, or the other way round: each part is rounded on its own scale."""
    plan = plan_paper_moments(2, c, R, EXPOSURE, 0.1, count)
    assert math.hypot(*(part.sensitivity / part.scale for part in plan.parts)) > 0.099


@pytest.mark.parametrize(("c", "count"), [(1e5, 1_000_000), (1e6, 100_000)])
def test_squares_leave_the_noise_of_algorithm_2_as_it_is(c: float, count: int) -> None:
    alone, beside = (plan_paper_sums(2, c, 1.0, EXPOSURE, 0.2, count, squares=squares) for squares in (False, True))
    assert beside.parts[0].scale == pytest.approx(alone.parts[0].scale, rel=1e-3)


def test_intervals_where_the_calibration_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At this ε Algorithm 1's own rule needs the whole of (ε, δ): refused before steps are drawn."""
    drawn, add = list[int](), noise.add_gaussian
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: drawn.append(1) or add(values, scale))
    with pytest.raises(dpl.CalibrationError, match="leaves nothing"):
        fit(rows(20), epsilon=36.087323862, delta=1e-5, large_epsilon=True, descent=dpl.Descent(1.0, 5, 0.1))
    assert not drawn


# --- what is stated is so ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "settings"),
    [
        (0.95, {"descent": dpl.Descent(2.0, 50, 1.0)}),  # W'W is released, and tells how far the last iterate got
        (0.5, {"descent": dpl.Descent(2.0, curvature=8.0), "intervals": False}),  # L bounds the least eigenvalue
    ],
)
def test_stated_errors_cover_correlated_columns(share: float, settings: dict[str, Any]) -> None:
    data = rows(20_000, share=share)
    found = [fit(data, "y ~ 0 + x + w", linkage=dpl.Exact(), **settings) for _ in range(30)]
    spread = np.std([list(release.coef.values()) for release in found], axis=0)
    stated = np.median([list(release.std_err.values()) for release in found], axis=0)
    assert (stated > 0.7 * spread).all()


def test_a_step_alone_says_what_its_errors_rest_on() -> None:
    """It tells nothing of the least eigenvalue, which decides how much noise the last iterate has."""
    release = fit(rows(200), descent=dpl.Descent(2.0, 50, 1.0), intervals=False)
    assert "for a step of d/L" in release.summary().replace("\n", " ")


def test_another_accuracy_is_refused() -> None:
    """Coefficients would move, and the transcript's intervals would not."""
    release = fit(rows(5000), descent=dpl.Descent(2.0, curvature=3.0))
    assert not release.tells_other_accuracies
    with pytest.raises(dpl.StudyError, match="does not tell what another accuracy"):
        release.with_accuracy(0.1)


def test_a_small_ridge_does_not_hide_that_the_matrix_is_unusable() -> None:
    few, options = rows(200), {"method": "ssp", "epsilon": 0.9}
    assert fit(few, **options, ridge=1e-6).shrunken
    assert "not usable" in fit(few, **options, ridge=1e-6).summary()
    assert not fit(few, **options, ridge=1e6).shrunken


def test_the_shrunken_estimate_has_its_own_digits() -> None:
    """Algorithm 2's standard error may be a thousand times larger than it."""
    release = replace(fit(rows(200), method="ssp", epsilon=0.9), shrunken={"Intercept": 0.1851, "x": -0.3592})
    release = replace(release, std_err={"Intercept": 4e3, "x": 5e4})
    for written in (release.to_html(), release.to_latex()):
        assert "0.1851" in written
        assert "0.3592" in written


@pytest.mark.parametrize("options", [{"method": "ssp", "epsilon": 0.9}, {"descent": dpl.Descent(1.0, curvature=3.0)}])
def test_a_stream_states_the_error_that_a_table_states(options: dict[str, Any]) -> None:
    """Nearly all rows are in a block of which few links were checked."""
    n = 20_000
    table = pa.table({**rows(n), "block": np.where(np.arange(n) < 0.99 * n, 0, 1)})
    linkage = dpl.ELE({0: 0.8, 1: 0.95}, block="block", checked={0: 20, 1: 2000}, source="public")
    make: list[Callable[[], Any]] = [
        lambda: table,
        lambda: dpl.Stream(table.to_reader(max_chunksize=1000), contiguous=True, rows=n),
    ]
    one, other = (fit(data(), linkage=linkage, unit=dpl.PrivacyUnit(), **options) for data in make)
    assert other.released.variance.accuracy >= 0.99 * one.released.variance.accuracy


def test_a_submodel_speaks_of_its_own_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a descent stopped early is measured by each coefficient's own error."""
    release = fit(rows(3000), "y ~ x + w", descent=dpl.Descent(2.0, 6, 0.9))
    monkeypatch.setattr(notes, "left_to_go", lambda *_: np.array([0.0, 0.0, 1.0]))  # only w has a way to go
    part = replace(release, dropped=("Intercept", "x"), std_err={"w": 0.1})
    assert any("too few" in said for said in notes.say_descent(part))


@pytest.mark.parametrize("name", ["path", "gradients", "steps"])
def test_a_transcript_that_does_not_fit_is_refused(name: str) -> None:
    """Intervals of Algorithm 1 rest on its transcript, so its sizes count as those of sums do."""
    stored = json.loads(fit(rows(200), descent=dpl.Descent(2.0, 5, 0.5)).to_json())
    stored["released"]["descent"][name] = []
    with pytest.raises(dpl.StudyError):
        dpl.Release.from_json(json.dumps(stored))
