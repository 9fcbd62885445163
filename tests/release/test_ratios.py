"""How odds ratios and rate ratios are shown: tables, LaTeX, and charts on a logarithmic axis."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import dplinked as dpl
from dplinked.release.coefficients import ratio_columns
from dplinked.report import plots
from dplinked.report.plots import CoefficientRow


@pytest.fixture(scope="module")
def release() -> dpl.Release:
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, 4_000)
    died = np.where(rng.random(4_000) < 1 / (1 + np.exp(1 - x)), "yes", "no")
    settings: dict[str, Any] = {"family": "logistic", "bounds": {"x": (0, 1)}, "levels": {"died": ["no", "yes"]}}
    return dpl.fit({"x": x, "died": died}, "died ~ x", linkage=dpl.Exact(), epsilon=8.0, delta=1e-6, **settings)


def test_latex_has_ratios_and_no_empty_mathematics(release: dpl.Release) -> None:
    text = release.to_latex()
    assert "Odds ratio & Its 95\\,\\% interval" in text
    assert "$$" not in text
    line = next(line for line in text.splitlines() if line.startswith("x &"))
    assert line.count("[$") == 2
    assert next(line for line in text.splitlines() if line.startswith("Intercept")).count("&  &") == 1


def test_unbounded_ratios_are_words() -> None:
    row = CoefficientRow("x", 0.5, 0.1, (-math.inf, math.inf), {})
    release = FakeResult({"x": (math.exp(0.5), 0.0, math.inf)})
    assert ratio_columns(release).cells(row)[1] == "unbounded"  # type: ignore[arg-type]


class FakeResult:
    family, has_intervals = "logistic", True

    def __init__(self, ratios: dict[str, tuple[float, float, float]]) -> None:
        self.ratios = lambda: ratios


def ticks(*rows: CoefficientRow) -> list[float]:
    """The numbers beside the axes of a chart of ratios."""
    root = ElementTree.fromstring(plots.coefficient_chart(rows, title="t", axis="", ratios=True))
    texts = [node.text or "" for node in root.iter() if node.tag.endswith("text")]
    return [float(text.replace(",", "")) for text in texts if re.fullmatch(r"[\d.,e+-]+", text)]


@pytest.mark.parametrize("size", [1e-6, 0.004, 0.07, 0.6, 2.0, 9.0, 40.0, 600.0])
def test_axes_tell_ratios(size: float) -> None:
    """Round ratios on either side of 1, all of them within the axis."""
    found = ticks(CoefficientRow("a", size / 2, size, (-size, size), {}))
    assert 1.0 in found
    assert len(found) >= 2
    most = math.exp(min(1.15 * size, 310.0))
    assert all(1.0 / most <= one <= most for one in found)


def test_the_page_draws_slopes_alone(release: dpl.Release) -> None:
    page = release.to_html()
    chart = re.search(r"<svg[^>]*aria-label=\"Odds ratios with 95 % intervals.*?</svg>", page, re.DOTALL)
    assert chart is not None
    assert "Intercept" not in chart[0]
    assert "odds ratio of died[yes] per unit" in chart[0]
    assert "at 1 a column makes no difference" in page
    whole = replace(release, dropped=())
    assert whole.to_csv().splitlines()[0].endswith("odds_ratio,odds_ratio_low,odds_ratio_high")
