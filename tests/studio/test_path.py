"""The whole path in a real browser: from two files to a published page, and all that can stop somebody on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from browsing import ODD, OVERLAPS, Studio, fetch, go, look, see, settle, wait_for
from test_whole import check_notebook, run
from walking import fill_in, walk, write_files

import dplinked as dpl
from dplinked.check.receipt import was_checked
from dplinked.studio.path import STEPS
from studies import STUDY

MOST_ACTIONS = 40  # from two files to a published page; answers to links are not counted


@pytest.mark.slow
def test_from_two_files_to_a_published_page(browser: Any, tmp_path: Path) -> None:
    files = write_files(tmp_path, 1_000)
    studio = Studio(browser, cwd=tmp_path)
    try:
        page = studio.open()
        page.locator("#pick_left").wait_for()
        walked = walk(page, tmp_path, files)
        assert len(walked.actions) <= MOST_ACTIONS
        release = dpl.Release.load(tmp_path / "release.json")
        assert release.formula == "consumption ~ income + C(region)"
        assert (release.count, release.ledger.population) == (1_000, "households")
        assert release.linkage.source == "identifiers"
        rows = tmp_path / "linked" / "linked.parquet"
        naive = dpl.baseline.ols(rows, release.formula, levels={"region": ["north", "south"]})
        assert naive.coef["income"] == pytest.approx(0.55, abs=0.1)  # decimal commas were read, and links are right
        assert (tmp_path / "published.html").read_text(encoding="utf-8") == release.to_html()
        study = dpl.Study.from_toml(tmp_path / "study.toml")
        assert str(study.ledger) == str(tmp_path / "budget.db")  # the saved study names its budget, too

        assert was_checked(tmp_path / "study.toml", study.data)  # a budget changes nothing of what was seen
        assert page.locator(".tab-pane.active .note.warning").count() == 0
        go(page, "plan")
        page.locator("#plan_checked svg").wait_for()  # how many links were reviewed counts
        page.get_by_label("Times as many links checked").wait_for()
        for step in ("files", "link", "review", "study", "check", "release", "budget"):
            page.locator(f"a[data-value={step}] .sign[class='sign done']").wait_for()
        name, notebook = fetch(page, "Download notebook")
        assert name == "studio.ipynb"
        ledger = dpl.Ledger(tmp_path / "budget.db")
        before = ledger.balance()
        cells = check_notebook(notebook)
        assert cells[0].split("\n")[0] == "import dplinked as dpl"
        run(cells, tmp_path)
        assert dpl.Release.load(tmp_path / "release-1.json") == release  # the ledger had it
        assert ledger.balance() == before
        assert json.loads(notebook)["cells"][1]["source"][0] == "## Files\n"
        titles = re.findall(r"## (\w+)", notebook)
        assert titles == ["Files", "Link", "Review", "Study", "Check", "Plan", "Release", "Budget"]
        script = fetch(page, "Download shell script")[1]
        commands = re.findall(r"^dplinked (\w+)", script, re.MULTILINE)
        assert commands == ["link", "check", "plan", "fit", "report", "budget", "budget", "budget"]
        assert "--separator ';' --decimal , " in script
        assert "--audited linked/audit.csv --by-identifiers" in script
    finally:
        studio.close()


@pytest.mark.slow
def test_the_last_steps_by_keyboard_alone(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    page.locator(".navbar").wait_for()

    def reach(name: str) -> None:
        settle(page)
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent").strip() == name:
                return
        raise AssertionError(name)

    go(page, "plan")
    reach("Next: Release")
    page.keyboard.press("Enter")
    page.locator(".tab-pane.active[data-value=release]").wait_for()
    page.get_by_role("button", name="Release …").wait_for()
    reach("Release …")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.modal.show')?.contains(document.activeElement)")
    reach("Spend it and release")
    page.keyboard.press("Enter")
    see(page, "Written to 'release.json'", ".good")
    reach("Next: Budget")
    page.keyboard.press("Enter")
    page.locator(".tab-pane.active[data-value=budget]").wait_for()
    reach("Verify the ledger")
    page.keyboard.press("Enter")
    see(page, "Nothing was changed", ".good")


# --- what can stop somebody --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wrong_or_used_address_gets_a_plain_page(start: Any, folder: Path) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    page.locator(".navbar").wait_for()
    assert re.fullmatch(re.escape(studio.origin) + r"/[\w-]{43}/", page.url)
    other = studio.open()
    assert "The studio's address works once" in other.inner_text("main")
    assert "start it anew: dplinked studio" in other.inner_text("main")
    assert other.goto(f"{studio.origin}/?token=wrong").status == 403
    assert other.locator("h1").inner_text() == "Refused"
    assert other.goto(f"{studio.origin}/lib/shiny-1/shiny.min.js").status == 403
    assert other.goto(page.url).status == 403  # the address that the first browser shows
    assert page.goto(studio.address).status == 403  # the browser that is in, at the old address
    page.go_back()
    page.locator(".navbar").wait_for()
    page.reload()
    page.locator(".navbar").wait_for()


@pytest.mark.slow
def test_a_study_that_does_not_fit_is_refused_at_each_step(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, "The study is complete", ".state")
    for label, value, told in (
        ("Epsilon of", "-1", "Epsilon must be a number above 0"), ("Share of links", "1.5", "Write a share: 0.015"),
        ("income: Highest", "-3", "Highest must be larger than lowest"), ("Formula", "consumption ~ scale(income)", "not supported"),
    ):  # fmt: skip
        field = page.get_by_label(label, exact=label == "Formula")
        right = field.input_value()
        field.fill(value)
        field.press("Tab")
        see(page, "To be mended", ".state")
        go(page, "release")
        see(page, told, ".bad")
        see(page, "The study cannot be released yet.", ".state")
        settle(page)
        assert page.get_by_role("button", name="Release …").count() == 0
        page.get_by_role("button", name="Go to Study").click()
        page.locator(".tab-pane.active[data-value=study]").wait_for()
        field.fill(right)
        field.press("Tab")
        see(page, "The study is complete", ".state")
    page.get_by_label("Data file").fill("absent.parquet")
    page.get_by_label("Data file").press("Tab")
    go(page, "release")
    see(page, "There is no file 'absent.parquet'", ".bad")
    go(page, "check")
    see(page, "absent.parquet", ".bad")


def kept_in(folder: Path) -> str:
    """What the studio keeps of what was worked on, once it does."""
    file = folder / ".dplinked-studio.json"
    return file.read_text(encoding="utf-8") if file.exists() else ""


@pytest.mark.slow
def test_a_studio_that_is_started_again_goes_on_where_it_was(start: Any, folder: Path) -> None:
    """The window of the one that was stopped says what to do, and notices when there is another one at its port."""
    studio = start(folder / "study.toml")
    page = studio.open()
    go(page, "release")
    page.get_by_label("Name of this release").fill("half typed")
    wait_for(lambda: "half typed" in kept_in(folder))
    studio.kill()
    page.get_by_role("heading", name="The studio has stopped").wait_for()
    gone = page.get_by_role("alertdialog")
    assert "Nothing is lost" in gone.inner_text()
    assert "dplinked studio" in gone.locator("code").inner_text()
    port = studio.origin.rsplit(":", 1)[1]
    another = start("--port", port)
    page.get_by_role("heading", name="The studio was started anew").wait_for()
    assert "This window is of the studio before, and can be closed." in gone.inner_text()
    page.close()
    again = another.open()
    again.locator(".tab-pane.active[data-value=release]").wait_for()
    again.get_by_label("Name of this release").wait_for()
    assert again.get_by_label("Name of this release").input_value() == "half typed"


@pytest.mark.slow
def test_a_lost_connection_is_taken_up_again(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    go(page, "release")
    page.get_by_label("Name of this release").fill("half typed")
    wait_for(lambda: "half typed" in kept_in(folder))
    page.wait_for_timeout(5_500)  # a page that is lost at once asks before it loads again
    page.evaluate("window.old = true")
    page.evaluate("Shiny.shinyapp.$socket.close()")
    page.wait_for_function("() => window.old === undefined")
    page.locator(".tab-pane.active[data-value=release]").wait_for()
    page.get_by_label("Name of this release").wait_for()
    assert page.get_by_label("Name of this release").input_value() == "half typed"


# --- every step --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_step_is_readable(browser: Any, tmp_path: Path) -> None:
    """Before anything is chosen, and as it stands in the middle of the path."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    files = write_files(tmp_path, 400)
    studio = Studio(browser, cwd=tmp_path)
    try:
        page = studio.open()
        page.locator("#pick_left").wait_for()
        for step in STEPS:
            go(page, step)
            look(page, axe, f"{step}, empty")
        go(page, "files")
        page.locator("#pick_left").select_option("incomes.csv")
        page.locator("#pick_right").select_option("spending.csv")
        see(page, "can be read", ".state")
        go(page, "link")
        page.get_by_role("button", name="Link", exact=True).click()
        see(page, "The files are linked.", ".state")
        fill_in(tmp_path / "linked" / "audit.csv", files)
        go(page, "review")
        page.get_by_role("button", name="Use it in the study").click()
        see(page, "Next, say what the study is.", ".state")
        for step in STEPS:
            go(page, step)
            look(page, axe, step)

        # planted faults are noticed
        page.add_style_tag(content=".hint { color: #808080 !important }")
        found = axe.run(page).response["violations"]
        assert "color-contrast" in [one["id"] for one in found if one["impact"] == "serious"]
        page.add_style_tag(content="h1 { margin-bottom: -3rem !important }")
        assert page.evaluate(OVERLAPS) != []
    finally:
        studio.close()


@pytest.mark.slow
def test_odd_names_are_shown_as_text(start: Any, folder: Path) -> None:
    table = pq.read_table(folder / "linked.parquet")
    pq.write_table(
        table.rename_columns([{"income": ODD, "region": ODD + "2"}.get(name, name) for name in table.column_names]),
        folder / "odd.parquet",
    )
    text = STUDY.replace("linked.parquet", "odd.parquet")
    text = text.replace("~ income + C(region)", f"~ `{ODD}` + C(`{ODD}2`)".replace('"', '\\"'))
    quoted = json.dumps(ODD, ensure_ascii=False)
    text = text.replace("income =", f"{quoted} =").replace("region =", f"{json.dumps(ODD + '2', ensure_ascii=False)} =")
    (folder / f"<b>{'x' * 40}<b>'😀.toml").write_text(text, encoding="utf-8")
    studio = start(folder / f"<b>{'x' * 40}<b>'😀.toml")
    page = studio.open(400)
    see(page, "The study is complete", ".state")
    page.get_by_label(f"{ODD}: Lowest").wait_for()
    page.get_by_label(f"{ODD}2: Add levels").wait_for()
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, ODD, "#check_found th")
    go(page, "plan")
    page.get_by_text(f"Bounds of {ODD}").wait_for()
    see(page, ODD, "th")
    page.locator(".tab-pane.active figure svg").first.wait_for()
    go(page, "release")
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").click()
    page.frame_locator(".tab-pane.active iframe.report").get_by_text(ODD).first.wait_for()
    for name in STEPS:
        go(page, name)
        settle(page)
        assert page.locator(".tab-pane.active img, .tab-pane.active b").count() == 0
        assert page.evaluate(OVERLAPS) == []
    assert page.title() == "dplinked studio"
