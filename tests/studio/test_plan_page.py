"""The page *Plan*: what to expect in the user's own units, pictures against everything that can be chosen, settings taken over when asked."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import drag, go, look, see, settle, wait_for

import dplinked as dpl
from dplinked.plan.pictures import draw_slope, find_curve, list_places
from dplinked.plan.planning import plan_study
from dplinked.plan.units import say_widths
from dplinked.studio.plan_page import _changes, _moved_settings, in_lines
from studies import edit

BASE: dict[str, Any] = {
    "formula": "consumption ~ income + C(region)", "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "levels": {"region": ["north", "south"]}, "typical": {"income": (15_000, 50_000)}, "epsilon": 1.0, "delta": 1e-6,
    "linkage": dpl.ELE(0.91, block="state", checked=400, source="public"), "units": {"consumption": "euros", "income": "euros"},
}  # fmt: skip


@pytest.fixture(scope="module")
def study() -> dpl.Study:
    return dpl.Study(**BASE)


def test_moved_settings_are_those_of_the_sliders_alone(study: dpl.Study) -> None:
    assert _moved_settings({}.get, study) == {}
    moved = _moved_settings({"epsilon": 2, "delta": 7, "bounds1": (0, 90_000)}.get, study)
    assert moved == {
        "epsilon": 2.0,
        "delta": 1e-7,
        "bounds": {"consumption": (0, 120_000), "income": [0.0, 90_000.0]},
    }


def test_how_good_links_are_is_planned_with_and_never_taken_over(study: dpl.Study) -> None:
    from dataclasses import replace

    after = replace(study, **_moved_settings({"accuracy": 0.99, "checked": 4_000, "epsilon": 0.5}.get, study))
    assert (after.linkage.accuracy, after.linkage.checked, after.linkage.block) == (0.99, 4_000, "state")  # type: ignore[union-attr]
    assert _changes(study, after) == {("privacy", "epsilon"): 0.5}
    known = dpl.ELE(0.75, block="k", accuracy_error=0.02, source="public", carriers=2)
    moved = _moved_settings({"accuracy": 0.9}.get, replace(study, linkage=known))["linkage"]
    assert (moved.accuracy_error, moved.accuracy, moved.carriers) == (pytest.approx(0.02), 0.9, 2)
    blocks = dpl.ELE({"a": 0.9, "b": 0.8}, "k", checked=50, source="public")
    moved = _moved_settings({"accuracy": 0.9}.get, replace(study, linkage=blocks))["linkage"]
    assert moved.checked == 100


def test_widths_are_told_in_the_columns_units(study: dpl.Study) -> None:
    from dataclasses import replace

    plan = plan_study(study, [10_000], [1.0])
    income, region = plan.slopes_at_point
    said = say_widths(study, plan)
    assert said == [
        f"For 1,000 euros more of income: the change of consumption is told to ± {1000 * income.half_width():.0f} euros.",
        f"Where region is south rather than north: the change of consumption is told to ± {region.half_width():,.0f} euros.",
    ]
    bare = replace(study, units={})
    assert say_widths(bare, plan_study(bare, [10_000], [1.0]))[0].startswith(
        "For one more of income: the change of consumption is told to ± 0."
    )
    both = replace(bare, formula="consumption ~ income + income:C(region)", levels={"region": ["north", "south"]})
    assert say_widths(both, plan_study(both, [10_000], [1.0]))[0].startswith("The coefficient of income: ")
    several = replace(
        study, formula="cbind(consumption, savings) ~ income", bounds={**study.bounds, "savings": (0, 9_000)}
    )
    told = say_widths(several, plan_study(several, [10_000], [1.0]))
    assert [text.split(" is told")[0] for text in told] == [
        "For 1,000 euros more of income: the change of consumption",
        "For 1,000 euros more of income: the change of savings",
    ]
    event = replace(
        bare,
        formula="died ~ income",
        family="logistic",
        levels={"died": ["no", "yes"]},
        bounds={"income": (0, 150_000)},
    )
    (text,) = say_widths(event, plan_study(event, [10_000], [1.0]))
    assert text.startswith("For one more of income: the odds ratio is told up to a factor of 1.")


def test_curves_over_checked_links_and_bounds_agree_with_plans_of_such_studies(study: dpl.Study) -> None:
    """Each place of a curve is what a plan says of the study with that setting."""
    from dataclasses import replace

    plan = plan_study(study, [10_000], [1.0])
    checked = find_curve(plan, "income", "checked")
    assert checked is not None
    assert checked.place == 400.0
    for k in (0, 12, 24):
        other = replace(study, linkage=dpl.ELE(0.91, block="state", checked=checked.values[k], source="public"))
        own = plan_study(other, [10_000], [1.0]).slopes_at_point[0]
        assert checked.half_width[k] == pytest.approx(own.half_width())
    assert list(checked.half_width) == sorted(checked.half_width, reverse=True)
    bounds = find_curve(plan, "income", "bounds")
    assert bounds is not None
    at = dict(zip(bounds.values, bounds.half_width, strict=True))
    assert at[1.0] == bounds.now == pytest.approx(plan.slopes_at_point[0].half_width())
    wide = replace(study, bounds={**study.bounds, "income": (-75_000, 225_000)})
    assert at[2.0] == pytest.approx(plan_study(wide, [10_000], [1.0]).slopes_at_point[0].half_width())
    half = next(one.factor for one in plan.levers if (one.change, one.name) == ("bounds half as wide", "income"))
    assert at[0.5] / at[1.0] == pytest.approx(half, rel=1e-6)
    unknown = plan_study(replace(study, typical={}, linkage=dpl.ELE(0.91)), [10_000], [1.0])
    assert {curve.quantity for curve in unknown.curves} == {"epsilon", "rows", "accuracy"}


def test_where_nobody_says_how_many_links_were_checked_it_is_told_of_times_as_many(study: dpl.Study) -> None:
    from dataclasses import replace

    def with_error(error: float) -> dpl.Study:
        return replace(study, linkage=dpl.ELE(0.91, block="state", accuracy_error=error, source="public"))

    own = plan_study(with_error(0.04), [10_000], [1.0])
    times = find_curve(own, "income", "review")
    assert times is not None
    assert find_curve(own, "income", "checked") is None
    at = dict(zip(times.values, times.half_width, strict=True))
    assert at[1.0] == times.now == pytest.approx(own.slopes_at_point[0].half_width())
    assert min(at) == pytest.approx(0.1)
    often = max(at)
    assert often == pytest.approx(10.0)
    known = plan_study(with_error(0.04 / math.sqrt(often)), [10_000], [1.0])
    assert at[often] == pytest.approx(known.slopes_at_point[0].half_width())
    assert "times as many links checked as were" in draw_slope(own, "income", "review", own)


def test_pictures_mark_the_study_and_say_what_they_show(study: dpl.Study) -> None:
    from dataclasses import replace

    own, moved = plan_study(study, [10_000], [1.0]), plan_study(replace(study, epsilon=3.0), [10_000], [3.0])
    for quantity in ("epsilon", "rows", "checked", "bounds"):
        still, drawn = (draw_slope(one, "income", quantity, own) for one in (own, moved))
        assert "the study as it is" in drawn
        assert "the study as it is" not in still
        assert 'role="img"' in drawn
        assert "currentColor" in drawn
        assert "Half-width of the 95 % interval of income" in drawn
    curve = find_curve(own, "income", "rows")
    assert curve is not None
    (marked,) = (row for row in list_places(curve) if "(now)" in row[0])
    assert marked[0] == "10,000 (now)"
    assert float(marked[1][1:]) == pytest.approx(curve.now, rel=0.01)


def test_the_lines_outside_plan_the_same(folder: Path) -> None:
    edit(folder, "[privacy]", "[units]\nincome = 'euros'\n\n[privacy]")
    guesses = {"counts": [2_000], "r_squared": 0.3, "response_mean": None, "subgroup": 0.1}
    shell, python = in_lines("study.toml", 1.0, guesses)
    command = [sys.executable, "-m", "dplinked.cli", *shell.split()[1:]]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    code = f"{python}\nprint(plan)"
    seen = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert "R² = 0.3" in told
    assert seen.split("\n")[:4] == told.split("\n")[:4]
    assert (folder / "plan.html").exists()


# --- in a browser ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plans_are_moved_and_taken_over(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    edit(folder, "[privacy]", '[units]\nincome = "euros"\nconsumption = "euros"\n\n[privacy]')
    page = start(edit(folder, "accuracy = 0.91", 'accuracy = 0.91\nchecked = 400\nsource = "public"')).open()
    see(page, "The study is complete", ".state")
    go(page, "plan")
    see(page, "With ε = 1, δ = 1e-06 and 2,000 rows", "p")  # as many as the file has
    see(page, "For 1,000 euros more of income: the change of consumption is told to ±", ".expected li")
    see(page, "would help", "strong")
    for quantity in ("epsilon", "rows", "checked", "bounds"):
        page.locator(f"#plan_{quantity} svg").wait_for()
        page.locator(f"#plan_{quantity} tbody th", has_text="(now)").wait_for()
    look(page, axe, "as it is")
    see(page, "What to expect is shown below.", ".state")
    before = page.locator(".expected li").first.inner_text()

    page.get_by_text("Epsilon", exact=True).scroll_into_view_if_needed()
    drag(page, "Epsilon", 60)
    see(page, "Settings were moved and not taken over.", ".state")
    page.locator("#plan_epsilon svg", has_text="the study as it is").wait_for()
    wait_for(lambda: page.locator(".expected li").first.inner_text() != before)
    assert "epsilon = 1.0" in page.locator("#study_text").text_content()  # the study stays as it is
    look(page, axe, "moved")
    page.locator(".tab-pane.active input[id^=checked_]").fill("4000")
    page.locator("#plan_checked tbody th", has_text="4,000 (now)").wait_for()
    page.get_by_label("What is drawn").select_option("C(region)[south]")
    page.locator("#plan_rows svg[aria-label*='C(region)[south]']").wait_for()
    page.get_by_role("button", name="Take these settings").click()
    page.locator(".tab-pane.active[data-value=study]").wait_for()
    wait_for(lambda: float(page.get_by_label("Epsilon of").input_value()) > 1)
    assert page.get_by_label("Links that were checked to find it").input_value() == "400"  # a fact, not a choice
    go(page, "plan")
    see(page, "What to expect is shown below.", ".state")


@pytest.mark.slow
def test_a_number_of_rows_that_nobody_typed_follows_the_file(start: Any, folder: Path) -> None:
    (folder / "linked.parquet").rename(folder / "aside.parquet")
    page = start(folder / "study.toml").open()
    see(page, "To be mended: the data file.", ".state")
    go(page, "plan")
    rows = page.get_by_label("Number of rows (public)")
    see(page, "and 10,000 rows", "p")
    (folder / "aside.parquet").rename(folder / "linked.parquet")
    see(page, "and 2,000 rows", "p")
    wait_for(lambda: rows.input_value() == "2000")
    rows.fill("2.5")
    see(page, "How many rows must be a whole number", ".fault")
    rows.fill("5.000")
    see(page, "write 5000 or 5.0000", ".fault")
    rows.fill("5000")
    see(page, "and 5,000 rows", "p")
    (folder / "linked.parquet").unlink()  # what somebody typed stays
    page.locator("a[data-value=study] .sign:not(.done)").wait_for()
    settle(page)
    see(page, "and 5,000 rows", "p")
    wait_for(lambda: rows.input_value() == "5000")


@pytest.mark.slow
def test_plans_of_events_ask_how_often_they_happen(start: Any, folder: Path) -> None:
    text = (folder / "study.toml").read_text().replace("consumption ~ income + C(region)", "region ~ income")
    text = text.replace("[model]", '[model]\nfamily = "logistic"').replace("consumption = [0, 120000]\n", "")
    (folder / "study.toml").write_text(text)
    page = start(folder / "study.toml").open()
    see(page, "The study is complete", ".state")
    go(page, "plan")
    see(page, "events on 10 % of the rows", ".hint")
    page.get_by_label("Share of rows with the event").fill("0.3")
    see(page, "events on 30 % of the rows", ".hint")
    page.get_by_role("columnheader", name="of the odds ratio").wait_for()
    see(page, "What other bounds would do is told only of lines", "p")
    page.get_by_label("Number of rows (public)").fill("0")
    page.get_by_label("Share of rows with the event").fill("3")
    see(page, "response_mean must lie between", ".bad")
    go(page, "study")
    page.get_by_label("Epsilon of").fill("-1")
    see(page, "epsilon", ".state")
    go(page, "plan")
    see(page, "Go back to Study", ".state")
    see(page, "The study is not complete yet. To be mended: epsilon.", ".bad")
