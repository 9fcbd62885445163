"""The paper, reproduced: simulations that are what the library does, tables, figures and the page. Claims are tested in test_claims.py."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

import dplinked as dpl
from dplinked.not_private.paper import application as applied
from dplinked.not_private.paper import settings as simulated
from dplinked.not_private.paper.reproduce import reproduce
from dplinked.not_private.paper.tight import prepare_tight
from dplinked.study.study import Study
from replay import record


def few_points(setting: str) -> list[simulated.Point]:
    points = simulated.setting_points(setting)
    return [points[0], points[len(points) // 2], points[-1]]


# --- the simulation of the tight mechanisms -----------------------------------------------------------


@pytest.mark.parametrize("method", ["ssp", "ngd"])
def test_tight_simulations_are_what_fit_does(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The sums and noise scales that fit hands to the door are the simulation's own; so are the estimates without noise."""
    rng = np.random.default_rng(3)
    n = 500
    blocks = np.arange(n) // 25
    data = {"x": rng.uniform(-1, 1, n), "y": rng.normal(0, 1, n), "block": blocks}
    study = Study(
        formula="y ~ 0 + x", bounds={"y": (-2.5, 2.5), "x": (-1, 1)}, epsilon=1.0, delta=1e-4, linkage=dpl.ELE(0.8, "block"),
        unit=dpl.PrivacyUnit(linkage_change=1.0), method=method, intervals=False, typical={"x": (-0.7, 0.7)}, descent=dpl.Descent(0.8, 2) if method == "ngd" else None,
    )  # fmt: skip
    tight = prepare_tight(study, data)
    release, calls = record(monkeypatch, lambda: dpl.fit_study(study, data), seed=1)
    vector = tight.vector(data["y"][None, :])[0]
    if method == "ssp":
        np.testing.assert_allclose(calls[0].values, [vector, tight.matrix], rtol=1e-12)
        np.testing.assert_allclose(calls[0].scale, tight._scales(tight._plan()), rtol=1e-12)
    else:
        np.testing.assert_allclose(calls[0].values, [-vector], rtol=1e-12)
        assert len(calls) == 3  # two steps, then the curvature
        np.testing.assert_allclose(calls[0].scale, tight._descent_plan()[0].parts[0].scale, rtol=1e-12)
        np.testing.assert_allclose(calls[2].values, [tight.matrix], rtol=1e-12)
        np.testing.assert_allclose(calls[2].scale, tight._curvature_plan().parts[0].scale, rtol=1e-12)

    class Recorded:
        """A generator that repeats the noise of the recorded release."""

        def __init__(self) -> None:
            self.draws = [np.asarray(call.output) - np.asarray(call.values) for call in calls]

        def normal(self, loc=0.0, scale=1.0, size=None):
            if method == "ssp":
                return np.array([self.draws[0] / calls[0].scale])
            return self.draws.pop(0)

    assert tight.estimates(np.array([vector]), Recorded())[0] == pytest.approx(release.coef["x"], rel=1e-9)


def test_repetitions_side_by_side_equal_one_at_a_time() -> None:
    """Sums of a chunk of repetitions are those of its rows."""
    point = simulated.Point("setting1", 1000, 1000, 1.0, None, 1.0)
    problem = simulated._prepare(point, 1)
    y, z = next(simulated._draw_responses(problem, 3, np.random.default_rng(0)))
    together = simulated._take_sums(problem, y, z)
    for k in range(3):
        alone = simulated._take_sums(problem, y[k : k + 1], z[k : k + 1])
        for name, values in together.items():
            assert values[k] == pytest.approx(alone[name][0])
        assert sorted(z[k]) == pytest.approx(sorted(y[k]))


# --- outputs ------------------------------------------------------------------------------------------


def test_tables_figures_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dplinked.not_private.paper.reproduce.setting_points", lambda s: few_points(s)[:2])
    seen: list[str] = []
    found = reproduce(
        ["setting1", "toy", "application"],
        tmp_path,
        repetitions=20,
        seed=2,
        jobs=1,
        progress=lambda part, done, total: seen.append(part),
    )
    assert set(seen) == {"setting1", "application"}
    with (tmp_path / "setting1.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "setting",
        "x",
        "method",
        "error",
        "standard_error",
        "empirical_variance",
        "theoretical_variance",
        "excess",
        "repetitions",
    ]
    others = {f"{name}, C = {C}" for name in ("NGD", "RL-NGD") for C in ("1", "1.2")}
    assert {row["method"] for row in rows} == {*simulated.METHODS, *others}
    for name in ("setting1_error", "setting1_variance", "application", "toy"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    page = (tmp_path / "reproduction.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert all(claim.text[:40].replace("'", "&#x27;") in page for claim in found.claims)
    assert "C, the radius of Algorithm 1&#x27;s projection, is 2 in the simulations" in page
    assert "generated households" in page
    assert "generated households" in (tmp_path / "application.svg").read_text(encoding="utf-8")


def test_the_papers_figures_show_the_papers_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tight mechanisms are drawn on demand; theoretical and empirical variances are told apart in the legend; errors have linear axes."""
    monkeypatch.setattr("dplinked.not_private.paper.reproduce.setting_points", lambda s: few_points(s)[:2])
    for tight in (False, True):
        reproduce(["setting2"], tmp_path, repetitions=20, radius=1.5, tight=tight, jobs=1)
        errors, variances = ((tmp_path / f"setting2_{kind}.svg").read_text("utf-8") for kind in ("error", "variance"))
        assert ("RL-SSP tight" in errors) == ("RL-SSP tight THR" in variances) == tight
        assert {"RL-NGD THR", "RL-NGD EMP"} <= set(re.findall(r">([^<>]+)</text>", variances))
        assert "C = 1.5" in errors
        assert "10^" not in errors
        assert "<tspan" not in errors  # powers of ten would be


@pytest.mark.slow
def test_another_radius_concerns_the_descents_alone() -> None:
    """At C = 1.2 the descents are what they are at that radius beside C = 2, up to sampling error; nothing else depends on it."""
    point = simulated.setting_points("setting2")[0]
    wide, narrow = (simulated.run_point(point, 400, 1, radius) for radius in (2.0, 1.2))
    wide_rows, narrow_rows = ({row.method: row for row in result.rows} for result in (wide, narrow))
    for name in ("OLS", "RL-OLS", "SSP", "RL-SSP"):
        assert wide_rows[name] == narrow_rows[name]
    for name in ("NGD", "RL-NGD"):
        beside, own = wide_rows[f"{name}, C = 1.2"], narrow_rows[name]
        assert beside.theoretical_variance == own.theoretical_variance < wide_rows[name].theoretical_variance
        assert abs(beside.error - own.error) < 5 * np.hypot(beside.standard_error, own.standard_error)
    assert {"RL-NGD, C = 1", "RL-NGD, C = 2"} <= set(narrow_rows)


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    point = simulated.setting_points("setting1")[0]
    assert simulated.run_point(point, 20, 5) == simulated.run_point(point, 20, 5)
    assert simulated.run_point(point, 20, 5) != simulated.run_point(point, 20, 6)


def test_unknown_parts_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dpl.StudyError, match="Did you mean 'setting"):
        reproduce(["setting"], tmp_path)
    for radius in (0.5, float("nan"), float("inf")):
        with pytest.raises(dpl.StudyError, match="radius must be at least 1"):
            reproduce(["toy"], tmp_path, radius=radius)
    with pytest.raises(dpl.StudyError, match="repetitions"):
        reproduce(["toy"], tmp_path, repetitions=1)
    (tmp_path / "few.csv").write_text("income,consumption\n1,2\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="more than 5,000 households"):
        reproduce(["application"], tmp_path, repetitions=2, data=tmp_path / "few.csv")
    (tmp_path / "other.csv").write_text("a,consumption\n1,2\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="'income' is not in the data"):
        applied.load_households(tmp_path / "other.csv", 1)
