"""Weighted least squares with errors of the survey's design, against statsmodels and the survey package svy, and strata against their formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

import dplinked as dpl
from dplinked.errors import StudyError

N = 400
DESIGNS = {
    "weights": {},
    "villages": {"cluster": "village"},
    "areas": {"strata": "area"},
    "villages in areas": {"cluster": "village", "strata": "area"},
}


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    village = rng.integers(0, 40, N)
    x = rng.normal(size=N) + rng.normal(size=40)[village]
    y = 1.0 + 2.0 * x + rng.normal(size=N) * (1.0 + x**2) + rng.normal(size=40)[village]
    return pd.DataFrame(
        {
            "x": x,
            "g": rng.choice(["a", "b"], N),
            "w": rng.uniform(1, 9, N),
            "y": y,
            "village": village,
            "area": village // 10,
        }
    )


def same(found: dpl.baseline.NotPrivate, fitted: Any, factor: float) -> None:
    names = dict(zip(found.coef, ["Intercept", "x", "C(g)[T.b]"], strict=False))
    for own, theirs in names.items():
        assert found.coef[own] == pytest.approx(fitted.params[theirs], rel=1e-9)
        assert found.std_err[own] == pytest.approx(fitted.bse[theirs] * np.sqrt(factor), rel=1e-9)


def test_rows_drawn_one_by_one(rows: pd.DataFrame) -> None:
    found = dpl.baseline.wls(rows, "y ~ x + C(g)", weights="w", levels={"g": ["a", "b"]})
    same(found, smf.wls("y ~ x + C(g)", rows, weights=rows["w"]).fit(cov_type="HC0"), N / (N - 1))
    assert "NOT PRIVATE" in str(found)


def test_rows_drawn_in_villages(rows: pd.DataFrame) -> None:
    found = dpl.baseline.wls(rows, "y ~ x + C(g)", weights="w", cluster="village", levels={"g": ["a", "b"]})
    groups = {"groups": rows["village"], "use_correction": False}
    fitted = smf.wls("y ~ x + C(g)", rows, weights=rows["w"]).fit(cov_type="cluster", cov_kwds=groups)
    same(found, fitted, 40 / 39)


def test_a_subgroup_has_the_line_of_its_rows(rows: pd.DataFrame) -> None:
    """And errors in which the others are rows that count nothing, as R's survey package has them."""
    found = dpl.baseline.wls(rows, "y ~ x", where="x > 0 and g == 'b'", weights="w", levels={"g": ["a", "b"]})
    inside = rows[(rows["x"] > 0) & (rows["g"] == "b")]
    fitted = smf.wls("y ~ x", inside, weights=inside["w"]).fit(cov_type="HC0")
    same(found, fitted, N / (N - 1))


def test_strata_take_their_means_out(rows: pd.DataFrame) -> None:
    found = dpl.baseline.wls(rows, "y ~ x", weights="w", cluster="village", strata="area")
    X, w = np.stack([np.ones(N), rows["x"]], axis=1), rows["w"].to_numpy()
    bread = np.linalg.inv((w[:, None] * X).T @ X)
    beta = bread @ (X.T @ (w * rows["y"]))
    rows[["u0", "u1"]] = X * (w * (rows["y"].to_numpy() - X @ beta))[:, None]
    totals = rows.groupby(["area", "village"])[["u0", "u1"]].sum()
    meat = sum(
        10 / 9 * (part - part.mean()).T.to_numpy() @ (part - part.mean()).to_numpy()
        for _, part in totals.groupby("area")
    )
    assert np.allclose(found.covariance, bread @ meat @ bread, rtol=1e-9)


@pytest.mark.parametrize("where", [None, "sex == 'f'"])
@pytest.mark.parametrize("design", DESIGNS)
def test_designs_have_the_errors_that_survey_packages_give(design: str, where: str | None) -> None:
    """svy's lines and errors, which are those of R's `svyglm`: `survey_reference.py` wrote them."""
    reference = json.loads(Path(__file__).with_name("survey_reference.json").read_text(encoding="utf-8"))
    levels = {"sex": ["f", "m"]}
    found = dpl.baseline.wls(
        pd.DataFrame(reference["rows"]), "y ~ x", weights="w", where=where, levels=levels, **DESIGNS[design]
    )
    theirs = reference["fits"][f"{design}; {where or ''}"]
    for own, name in (("Intercept", "_intercept_"), ("x", "x")):
        assert (found.coef[own], found.std_err[own]) == pytest.approx(theirs[name], rel=1e-7)


def test_rs_svyglm_has_the_same_line_and_error() -> None:
    """R's survey package on its data `fpc` (strata, clusters within them, weights): svyglm(y ~ x, svydesign(~psuid, strata = ~stratid, weights = ~weight, nest = TRUE, data = fpc)).

    The figures are those that clarite-python's tests keep of R; x and y are those that R has, in single precision.
    """
    fpc = pd.DataFrame(
        {
            "stratid": list("11111222"),
            "psuid": ["1-1", "1-2", "1-3", "1-4", "1-5", "2-1", "2-2", "2-3"],
            "weight": [3.0] * 5 + [4.0] * 3,
            "x": np.float32([2.8, 4.1, 6.8, 6.8, 9.2, 3.7, 6.6, 4.2]).astype(float),
            "y": np.float32([5.3, 7.1, 10.3, 10.8, 13.7, 8.2, 11.6, 9.7]).astype(float),
        }
    )
    for clusters in ({"cluster": "psuid"}, {}):  # of one row each
        found = dpl.baseline.wls(fpc, "y ~ x", weights="weight", strata="stratid", **clusters)
        assert (found.coef["x"], found.std_err["x"]) == pytest.approx((1.12743994469334, 0.153027403391202), rel=1e-7)


def test_missing_cells_are_left_out(rows: pd.DataFrame) -> None:
    rows.loc[:20, "x"] = np.nan
    rows.loc[30:40, "y"] = np.nan
    found = dpl.baseline.wls(rows, "y ~ x", weights="w")
    whole = rows.dropna()
    same(found, smf.wls("y ~ x", whole, weights=whole["w"]).fit(cov_type="HC0"), N / (N - 1))


def test_columns_that_are_not_there_are_refused(rows: pd.DataFrame) -> None:
    with pytest.raises(StudyError, match="vilage"):
        dpl.baseline.wls(rows, "y ~ x", cluster="vilage")
