"""Curves of events and counts, and what may be declared about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import poisson

import dplinked as dpl
from dplinked.errors import StudyError
from dplinked.study.build import build_design
from dplinked.study.family import MOST_COUNTS, Curve

ETA = np.linspace(-6.0, 5.0, 200)


@pytest.mark.parametrize("largest", [1, 2, 5, 40, MOST_COUNTS])
def test_means_of_clipped_counts_are_those_of_poissons_law(largest: int) -> None:
    mean, slope = Curve("poisson", largest).mean_and_slope(ETA)
    wanted = sum(poisson.sf(k, np.exp(ETA)) for k in range(largest))
    np.testing.assert_allclose(mean, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(slope, np.exp(ETA) * poisson.cdf(largest - 1, np.exp(ETA)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("curve", [Curve("logistic"), Curve("poisson", 1), Curve("poisson", 8)])
def test_slopes_are_those_of_means(curve: Curve) -> None:
    step = 1e-5
    wanted = (curve.mean(ETA + step) - curve.mean(ETA - step)) / (2 * step)
    np.testing.assert_allclose(curve.mean_and_slope(ETA)[1], wanted, atol=1e-6)
    for mean in (0.01, 0.3, 0.9):
        assert curve.mean(np.array([curve.find_eta(mean)]))[0] == pytest.approx(mean)
    assert curve.find_eta(-1.0) < -20.0
    assert curve.find_eta(2.0 * curve.largest) == curve.highest


@pytest.mark.parametrize("levels", [["no", "yes"], [False, True], [0, 1], [1, 2]])
def test_events_are_at_the_second_level(levels: list[Any]) -> None:
    design = build_design("died ~ x", {"x": (0, 1)}, {"died": levels}, family="logistic")
    assert design.response.cell == (("died", 1),)
    assert design.response.interval == (0.0, 1.0)
    assert design.response_variables == {"died"}
    assert design.names == ("Intercept", "x")


def test_smaller_largest_counts_hold_for_missing_cells_too() -> None:
    design = build_design("y ~ x", {"x": (0, 1), "y": (0, 60)}, family="poisson")
    smaller = design.with_largest(9)
    assert design.fill["y"] == 30.0
    assert (smaller.bounds["y"], smaller.fill["y"], smaller.curve) == ((0.0, 9.0), 9.0, Curve("poisson", 9))
    made = build_design("I(y + v) ~ x", {"x": (0, 1), "y": (0, 6), "v": (0, 4)}, family="poisson").with_largest(3)
    out = np.empty((2, 1))
    made.fill_rows({"x": np.zeros(1), "y": np.full(1, 5.0), "v": np.full(1, 4.0)}, {}, out)
    assert out[1, 0] == 3.0


OPTIONS: dict[str, Any] = {"linkage": dpl.ELE(0.9), "epsilon": 1.0, "delta": 1e-6}
EVENTS = {"formula": "died ~ x", "family": "logistic", "bounds": {"x": (0, 1)}, "levels": {"died": ["no", "yes"]}}
COUNTS = {"formula": "visits ~ x", "family": "poisson", "bounds": {"x": (0, 1), "visits": (0, 9), "years": (0.5, 4)}}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({**EVENTS, "levels": {}}, "two levels of the response"),
        ({**EVENTS, "levels": {"died": ["no", "yes", "unknown"]}}, "has more"),
        ({**EVENTS, "exposure": "x"}, "family='poisson'"),
        ({**EVENTS, "method": "ngd"}, "leave out both"),
        ({**EVENTS, "calibration": "paper"}, "leave out both"),
        ({**EVENTS, "ridge": 1.0}, "ridge belongs"),
        ({**EVENTS, "errors": "symmetric"}, "is for lines"),
        ({**EVENTS, "family": "probit"}, "must be one of"),
        ({**EVENTS, "family": "linear"}, "no declared bounds"),
        ({**COUNTS, "bounds": {"x": (0, 1), "visits": (1, 9)}}, "\\(0, largest\\)"),
        ({**COUNTS, "bounds": {"x": (0, 1), "visits": (0, 9.5)}}, "\\(0, largest\\)"),
        ({**COUNTS, "bounds": {"x": (0, 1), "visits": (0, 1000)}}, "up to 300"),
        ({**COUNTS, "exposure": "visits"}, "response's own"),
        ({**COUNTS, "exposure": "persons"}, "no declared bounds"),
        ({**COUNTS, "exposure": "x"}, "lower bound above 0"),
        ({**COUNTS, "exposure": 3}, "must be a text"),
    ],
)
def test_wrong_declarations_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        dpl.Study(**OPTIONS, **wrong).prepare()


def test_study_files_declare_families(tmp_path: Any) -> None:
    (tmp_path / "study.toml").write_text(
        '[model]\nformula = "visits ~ x"\nfamily = "poisson"\nexposure = "years"\n'
        "[bounds]\nx = [0, 1]\nvisits = [0, 9]\nyears = [0.5, 4]\n"
        "[linkage]\naccuracy = 0.9\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"
    )
    study = dpl.Study.from_toml(tmp_path / "study.toml")
    assert (study.family, study.exposure) == ("poisson", "years")
    assert study.prepare()[0].exposure is not None


def test_requests_of_lines_are_what_they_were() -> None:
    line = dpl.Study(formula="y ~ x", bounds={"y": (0, 1), "x": (0, 1)}, **OPTIONS)
    assert not {"family", "exposure"} & set(line.request([]))
    assert dpl.Study(**EVENTS, **OPTIONS).request([])["family"] == "logistic"
