"""Another accuracy: coefficients, their errors, their intervals and the accuracy itself move together."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dplinked as dpl
from dplinked.estimate.groups import overall_accuracy
from dplinked.release.what_if import WhatIf
from dplinked.simulate import linked_households
from dplinked.sums.types import BlockFacts

SETTINGS = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "typical": {"income": (15_000, 50_000)},
    "linkage": dpl.ELE(accuracy=0.9, block="state", checked=1000, source="public"),
    "epsilon": 3.0,
    "delta": 1e-6,
}


@pytest.fixture(scope="module")
def release() -> dpl.Release:
    return dpl.fit(linked_households(20_000, seed=2), "consumption ~ income", **SETTINGS)


def test_no_change_changes_nothing(release: dpl.Release) -> None:
    same = release.with_accuracy(0.0)
    assert same.accuracy == same.declared_accuracy == 0.9
    assert same.coef == pytest.approx(release.coef)
    assert same.std_err == pytest.approx(release.std_err)
    for name, parts in release.error_parts.items():
        assert same.error_parts[name] == pytest.approx(parts)
    for name, ends in release.conf_int().items():
        assert same.conf_int()[name] == pytest.approx(ends, rel=1e-4)


@pytest.mark.parametrize("change", [-0.3, -0.02, 0.05])
def test_everything_moves_together(release: dpl.Release, change: float) -> None:
    other = release.with_accuracy(change)
    factor = (0.9 + change) / 0.9
    assert isinstance(other, WhatIf)
    assert other.accuracy == pytest.approx(0.9 + change)
    assert other.coef["income"] == pytest.approx(release.coef["income"] / factor)
    assert other.std_err["income"] == pytest.approx(release.std_err["income"] / factor)
    squares = sum(value**2 for value in other.error_parts["income"].values())
    assert other.std_err["income"] == pytest.approx(np.sqrt(squares))
    for method in ("test", "wald"):
        before, after = release.conf_int(method=method)["income"], other.conf_int(method=method)["income"]
        assert after == pytest.approx([end / factor for end in before], rel=0.02)
    assert other.std_err["Intercept"] != release.std_err["Intercept"]


def test_the_mean_response_stays(release: dpl.Release) -> None:
    """Another accuracy turns the line around the middle of the rows; the released means tell where that is."""
    sums, scaling = release.released.sums, release.scaling
    column = scaling.columns[0]
    middle = sums.matrix[0, 1] / sums.matrix[0, 0] * column.scale + column.shift
    other = release.with_accuracy(-0.1)
    lines = [one.coef["Intercept"] + one.coef["income"] * middle for one in (release, other)]
    assert lines[0] == pytest.approx(lines[1])


def test_accuracies_stay_possible(release: dpl.Release) -> None:
    assert release.with_accuracy(0.5).accuracy == 1.0
    assert release.with_accuracy(-2.0).accuracy == 0.01


def test_a_what_if_is_no_release(release: dpl.Release) -> None:
    """It cannot be saved or published as one: nothing was released under that accuracy."""
    assert not hasattr(release.with_accuracy(0.02), "save")
    assert not hasattr(release.with_accuracy(0.02), "privacy")


def test_where_there_is_nothing_to_suppose(release: dpl.Release) -> None:
    with pytest.raises(dpl.StudyError, match="intercept under ELE"):
        dpl.fit(
            linked_households(5_000, seed=2), "consumption ~ income", **{**SETTINGS, "linkage": dpl.Exact()}
        ).with_accuracy(0.02)
    assert release.tells_other_accuracies


def test_the_bracket_reaches_from_the_corrected_to_the_uncorrected_line(release: dpl.Release) -> None:
    corrected, uncorrected = release.conf_int(), release.uncorrected()
    low, high = release.bracket()["income"]
    assert uncorrected.accuracy == 1.0
    assert low == uncorrected.conf_int()["income"][0] < corrected["income"][0]
    assert high == corrected["income"][1] > uncorrected.conf_int()["income"][1]
    assert "If wrong links resembled their rows" in release.summary()
    assert "Were wrong links like their rows" in release.to_html()


def test_an_accuracy_of_unknown_error_is_said_to_be_taken_as_exact_and_other_lines_come_first() -> None:
    told = dpl.ELE(accuracy=0.9, block="state")
    text = dpl.fit(linked_households(20_000, seed=2), "consumption ~ income", **{**SETTINGS, "linkage": told}).summary()
    assert "take the linkage accuracy as exactly known" in text
    assert text.index("If accuracy were off by") < text.index("Standard error made of")


SIZES, ACCURACIES = {"a": 9_000, "b": 950, "(last)": 50}, {"a": 0.97, "b": 0.9, "(last)": 0.1}
ROW_MEAN = sum(SIZES[key] * ACCURACIES[key] for key in SIZES) / sum(SIZES.values())  # .959; the plain mean is .657


def fit_groups(unit: dpl.PrivacyUnit) -> tuple[dpl.Release, float]:
    """A release of three groups of very different sizes and accuracies, and the slope of least squares on its linked rows."""
    rng = np.random.default_rng(5)
    group = np.repeat(list(SIZES), list(SIZES.values()))
    x = rng.uniform(0.0, 10.0, group.size)
    y = 1.0 + 0.5 * x + rng.normal(size=x.size)
    for key, accuracy in ACCURACIES.items():
        wrong = rng.permutation(np.flatnonzero((group == key) & (rng.random(x.size) > accuracy)))
        y[wrong] = y[np.roll(wrong, 1)]
    release = dpl.fit(
        {"x": x, "y": y, "group": group}, "y ~ x", bounds={"x": (0, 10), "y": (-5, 12)}, unit=unit, delta=1e-6,
        linkage=dpl.ELE(ACCURACIES, "group", other=0.5), epsilon=8.0,
    )  # fmt: skip
    return release, float(np.polyfit(x, y, 1)[0])


def test_the_mean_accuracy_is_that_of_the_rows() -> None:
    """Uncorrected coefficients are those of least squares on the linked rows, and the first lines tell the accuracy of all rows."""
    release, plain = fit_groups(dpl.PrivacyUnit())
    assert release.linkage.overall == pytest.approx(ROW_MEAN)
    assert release.with_accuracy(0.0).declared_accuracy == pytest.approx(ROW_MEAN)
    assert release.uncorrected().coef["x"] == pytest.approx(plain, abs=0.015)  # by the mean of groups it would be .33
    assert "95.9 % right" in release.summary()
    page = release.to_html()
    assert "95.9 % of the links are right" in page
    assert "10 % to 97 % of the links are right, 95.9 % of those of all rows" in page
    again = dpl.Release.from_json(release.to_json())
    assert again.linkage == release.linkage


def test_releases_without_the_mean_of_rows_take_that_of_groups() -> None:
    """Earlier versions did not write it."""
    stored = json.loads(fit_groups(dpl.PrivacyUnit())[0].to_json())
    del stored["linkage"]["overall"]
    older = dpl.Release.from_json(json.dumps(stored))
    assert older.with_accuracy(0.0).declared_accuracy == pytest.approx(np.mean(list(ACCURACIES.values())))
    assert "10 % to 97 % right" in older.summary()


@pytest.mark.parametrize("unit", [dpl.PrivacyUnit(moves_block=True), dpl.PrivacyUnit(linkage_change=1.0)])
def test_sizes_of_groups_that_are_protected_decide_nothing(unit: dpl.PrivacyUnit) -> None:
    release, _ = fit_groups(unit)
    assert release.linkage.overall is None
    assert release.linkage.mean_accuracy == pytest.approx(np.mean(list(ACCURACIES.values())))
    assert "How many rows each group has is not public here" in release.to_html()


def test_rows_without_a_key_count_by_their_number() -> None:
    blocks = BlockFacts(900, {"": 900, None: 100}, 0.0)
    assert overall_accuracy(dpl.ELE(0.9, "group", other=0.4), blocks) == pytest.approx(0.85)
    assert overall_accuracy(dpl.ELE(0.9, "group", other=0.4), None) is None
    assert overall_accuracy(dpl.Exact(), blocks) is None
