"""Strata declared for a release: its errors are those within them, in all ways to declare it, and it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.check import check_study
from dplinked.fitting import fit_study
from dplinked.privacy import noise
from dplinked.privacy.quantities.stratum_totals import choose_centres
from dplinked.privacy.spending import STRATA
from dplinked.sums.engine import open_source

N, H = 20_000, 8
MODEL: dict[str, Any] = {
    "bounds": {"x": (-8.0, 8.0), "w": (0.0, 2.0), "y": (-20.0, 20.0)},
    "levels": {"h": [f"h{k}" for k in range(H)]},
    "unit": dpl.PrivacyUnit(),
    "epsilon": 16.0,
    "large_epsilon": True,
    "delta": 1e-6,
}


def make_rows(seed: int, apart: float = 3.0, together: int = 1, accuracy: float = 1.0) -> dict[str, Any]:
    """Rows of strata of equal sizes, whose levels of x and y lie apart; in clusters that have much in common, and in blocks within strata."""
    rng = np.random.default_rng(seed)
    stratum = np.arange(N) * H // N
    common = np.repeat(rng.normal(size=(2, N // together)), together, axis=1) * (together > 1)
    x = rng.normal(size=N) + common[0] + apart * (stratum % 2 - 0.5)
    y = 1.0 + x + apart * (stratum // 2 % 2 - 0.5) + rng.normal(size=N) + common[1]
    block, order = np.arange(N) // 25, np.arange(N)
    wrong = np.flatnonzero(rng.random(N) > accuracy)
    for rows in np.split(wrong, np.flatnonzero(np.diff(block[wrong])) + 1):
        rows = rng.permutation(rows)
        order[rows] = np.roll(rows, 1)
    names = np.array([f"h{k}" for k in range(H)])
    weights = rng.uniform(0.5, 2.0, N)
    return {"x": x, "y": y[order], "h": names[stratum], "w": weights, "psu": np.arange(N) // together, "b": block}


def sampling(release: dpl.Release) -> np.ndarray:
    """Standard errors by sampling and wrong links, without those by noise."""
    parts = release.error_parts.values()
    return np.array([np.hypot(part["sampling"], part["linkage"]) for part in parts])


def ratio(data: dict[str, Any], linkage: Any = None, *, strata: str | None = "h", **asked: Any) -> np.ndarray:
    """Errors of a release over those of the same design without privacy."""
    options = {**MODEL, "linkage": linkage or dpl.Exact(), **asked}
    release = dpl.fit(data, "y ~ x", strata=strata, **options)
    design = {name: asked[name] for name in ("cluster", "weights", "where") if name in asked}
    whole = dpl.baseline.wls(data, "y ~ x", strata="h", levels=options["levels"], bounds=MODEL["bounds"], **design)
    return sampling(release) / np.array(list(whole.std_err.values()))


@pytest.fixture(autouse=True)
def _noise_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    monkeypatch.setattr(
        noise,
        "add_gaussian",
        lambda values, scale: np.asarray(values, float) + scale * rng.normal(size=np.shape(values)),
    )


def test_errors_are_those_within_strata() -> None:
    """And not far longer where they are not declared: what strata differ by counts then."""
    data = make_rows(1)
    assert np.allclose(ratio(data), 1.0, atol=0.1)
    assert np.all(ratio(data, strata=None) > [1.6, 1.3])


def test_errors_are_those_of_weighted_subgroups_in_strata() -> None:
    data = make_rows(2)
    data["half"] = np.random.default_rng(2).choice(["yes", "no"], N)
    levels = {**MODEL["levels"], "half": ["yes", "no"]}
    found = ratio(data, weights="w", where="half == 'yes'", levels=levels)
    assert np.allclose(found, 1.0, atol=0.1)


def test_errors_are_those_of_clusters_in_strata() -> None:
    data = make_rows(3, together=4)
    found = ratio(data, cluster="psu")
    assert np.allclose(found, 1.0, atol=0.15)
    assert np.all(ratio(data, strata=None, cluster="psu") > found + np.array([0.2, 0.1]))


@pytest.mark.parametrize("linkage", [dpl.Exact(), dpl.ELE(0.9, block="b")])
def test_one_stage_takes_strata_too(linkage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dplinked.methods.may_take_second_stage", lambda *public: False)
    data = make_rows(12, accuracy=1.0 if isinstance(linkage, dpl.Exact) else 0.9)
    release = dpl.fit(data, "y ~ x", strata="h", linkage=linkage, **MODEL)
    assert not any(part.name == "right residuals" for part in release.released.parts)
    assert "drawn apart in strata by h" in " ".join(str(release.summary()).split())
    found = ratio(data, linkage)
    assert np.all((found > 0.9) & (found < (1.1 if isinstance(linkage, dpl.Exact) else 1.6)))
    assert np.all(ratio(data, linkage, strata=None) > found * [1.4, 1.1])


def test_strata_that_are_alike_change_nothing() -> None:
    assert np.allclose(ratio(make_rows(4, apart=0.0)), 1.0, atol=0.1)


def test_blocks_within_strata_do_not_count_their_levels() -> None:
    """Squares of blocks' totals have it that rows of a block have a level in common, which strata take out."""
    data, linkage = make_rows(5, accuracy=0.9), dpl.ELE(0.9, block="b", checked=10_000, source="public")
    release = dpl.fit(data, "y ~ x", strata="h", linkage=linkage, **MODEL)
    without = dpl.fit(data, "y ~ x", linkage=linkage, **MODEL)
    assert release.released.variance.route == "row"
    assert np.all(sampling(without) > 2.0 * sampling(release))
    assert "within" not in str(without.summary())
    assert "what differs between these is left out of the variance" in " ".join(str(release.summary()).split())


def test_errors_do_not_sink_below_what_wrong_links_cause() -> None:
    """Wrong links across strata bring the levels of others: that is no difference between strata."""
    data = make_rows(6)
    right = dpl.baseline.wls(data, "y ~ x", strata="h", levels=MODEL["levels"], bounds=MODEL["bounds"])
    rng, order = np.random.default_rng(6), np.arange(N)
    wrong = rng.permutation(np.flatnonzero(rng.random(N) > 0.8))
    order[wrong] = np.roll(wrong, 1)
    data["y"] = data["y"][order]
    linkage = dpl.ELE(0.8, checked=100_000, source="public")
    release = dpl.fit(data, "y ~ x", strata="h", linkage=linkage, **MODEL)
    assert np.all(sampling(release) > 1.3 * np.array(list(right.std_err.values())))


def test_cells_of_no_stratum_are_one_more() -> None:
    data = make_rows(7)
    data["h"] = np.where(data["h"] == "h3", None, data["h"]).astype(object)
    data["h"][data["h"] == "h5"] = "undeclared"
    release = dpl.fit(data, "y ~ x", strata="h", linkage=dpl.Exact(), **MODEL)
    assert [part.entries for part in release.released.parts if part.name == "numbers of strata"] == [H + 1]
    assert release.coef["x"] == pytest.approx(dpl.baseline.ols(data, "y ~ x").coef["x"], abs=0.05)  # none is left out


def test_study_files_and_engines_take_strata(tmp_path: Path) -> None:
    pq.write_table(pa.table(make_rows(8)), tmp_path / "rows.parquet")
    (tmp_path / "study.toml").write_text(
        """
[data]
path = "rows.parquet"
[model]
formula = "y ~ x"
strata = "h"
[bounds]
x = [-8, 8]
y = [-20, 20]
[levels]
h = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"]
[linkage]
model = "exact"
[privacy]
epsilon = 4.0
delta = 1e-6
"""
    )
    study = dpl.Study.from_toml(tmp_path / "study.toml")
    assert study.strata == "h"
    release = fit_study(study, study.data)
    again = dpl.Release.from_json(release.to_json())
    assert again.declared.strata == "h"
    assert "drawn apart in strata by h" in again.to_markdown()
    by_sql = dpl.fit(
        dpl.Query(f"select * from '{tmp_path / 'rows.parquet'}'"), "y ~ x", strata="h", linkage=dpl.Exact(), **MODEL
    )
    assert np.allclose(sampling(by_sql), sampling(release), rtol=0.4)


def test_outcomes_have_strata() -> None:
    data = make_rows(9)
    data["w"] = data["w"] + 0.1 * data["y"]
    found = dpl.fit(
        data,
        "cbind(y, w) ~ x",
        strata="h",
        linkage=dpl.Exact(),
        **{**MODEL, "bounds": {**MODEL["bounds"], "w": (-3.0, 5.0)}},
    )
    assert all(one.declared.strata == "h" for one in found.values())


def test_plans_count_what_strata_cost() -> None:
    options = {**MODEL, "linkage": dpl.Exact(), "epsilon": 4.0}
    del options["large_epsilon"]
    plain, told = (dpl.plan(N, "y ~ x", cluster="psu", strata=strata, **options) for strata in (None, "h"))
    noise_of = [next(row.privacy for row in plan.rows if row.name == "x") for plan in (plain, told)]
    assert noise_of[0] < noise_of[1] < noise_of[0] * (1.0 + STRATA)
    assert "strata that do not differ" in str(told)


def test_the_steward_sees_strata() -> None:
    data = make_rows(10)
    data["h"] = data["h"].astype(object)
    data["h"][:3] = "other"
    study = dpl.Study(formula="y ~ x", strata="h", linkage=dpl.Exact(), **MODEL)
    text = " ".join(finding.text for finding in check_study(study, open_source(data)).findings)
    assert "h: 8 strata of 2,497 to 2,500 rows." in text
    assert "3 rows have a level that is not declared and are a stratum of their own" in text


# --- centres --------------------------------------------------------------------------------------------


def test_squares_around_noisy_centres_are_those_around_means_on_average() -> None:
    rng, n = np.random.default_rng(1), 400
    u = rng.normal(size=(n, 2)) + np.array([1.0, -0.5])
    expected = (u - u.mean(axis=0)).T @ (u - u.mean(axis=0)) * (n / (n - 1))
    found = []
    for _ in range(4000):
        blur = np.array([30.0, 20.0])
        total = u.sum(axis=0) + blur * rng.normal(size=2)
        strata = choose_centres(total[None], np.array([n + rng.normal()]), blur, 1.0, np.inf)
        centred = strata.centres.take(u.T, np.zeros(n, np.int32))
        found.append(centred @ centred.T - np.diag(strata.blurred))
    assert np.allclose(np.mean(found, axis=0), expected, rtol=0.01, atol=2.0)


@pytest.mark.parametrize(("totals", "number"), [((0.5, 0.5), 100.0), ((50.0, 50.0), 4.0), ((50.0, 50.0), -3.0)])
def test_centres_that_are_noise_are_not_taken(totals: tuple[float, float], number: float) -> None:
    strata = choose_centres(np.array([totals]), np.array([number]), np.ones(2), 2.0, np.inf)
    assert not strata.centres.middles.any()
    assert strata.centres.factors.tolist() == [1.0]
    assert not strata.blurred.any()


def test_a_centre_is_no_longer_than_a_contribution() -> None:
    strata = choose_centres(np.array([[300.0, 400.0]]), np.array([10.0]), np.ones(2), 0.1, 2.0)
    assert np.allclose(strata.centres.middles, [[1.2, 1.6]])
    assert strata.centres.factors[0] == pytest.approx(np.sqrt(10 / 9))
