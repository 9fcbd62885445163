"""The page *Release*: one question, a file at once, every form, earlier releases, refusals that say what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import fetch, go, look, see, settle

import dplinked as dpl
from dplinked.fitting import fit_study
from dplinked.ledger.steward import Place, read_account
from dplinked.release.releases import forms_of
from dplinked.studio import release_page, release_words
from dplinked.studio.desk import Desk, Fault, Job, Made
from dplinked.studio.room import NOT_OPENED
from studies import LEDGER_STUDY, STUDY


def study_of(folder: Path, text: str = LEDGER_STUDY) -> dpl.Study:
    return dpl.Study.from_text(text, folder)


def test_what_stands_in_the_way_leads_to_where_it_is_mended(folder: Path) -> None:
    study = study_of(folder)
    account = read_account(Place.of(study), study)
    find = release_words.find_obstacle
    assert find(study, account) is None
    for found, step, said in (
        (find(Fault("epsilon must be above 0."), None), "study", "not complete yet. epsilon must be"),
        (find(study_of(folder, STUDY.replace("linked.parquet", "absent.csv")), None), "study", "There is no file 'absent.csv'"),
        (find(study_of(folder, STUDY.replace('path = "linked.parquet"', "")), None), "study", "names no data"),
        (find(study, NOT_OPENED), "budget", "was not opened yet"),
        (find(study, Fault("The ledger was changed.")), "budget", "The ledger was changed."),
    ):  # fmt: skip
        assert found is not None
        assert found.step == step
        assert said in found.text
    assert release_words.advice_after(None) is None
    for kind, step in (("BudgetError", "budget"), ("LedgerError", "budget"), ("StudyError", "study")):
        assert release_words.advice_after(Fault("No.", kind)) == release_words.Obstacle("No.", step)


def test_one_sentence_says_what_is_spent_and_what_is_left(folder: Path) -> None:
    study = study_of(folder)
    account = read_account(Place.of(study), study)
    said = release_words.say_spending(study, account)
    assert (
        said
        == "This release spends 47.3 % of the budget of households and leaves 52.7 % of it, enough for one more release like it."
    )
    fit_study(study, study.data, release_id="a")
    fit_study(study, study.data, release_id="b", again=True)
    said = release_words.say_spending(study, read_account(Place.of(study), study))
    assert said.startswith("This release needs 47.3 % of the budget of households, and 5.4 % is left.")
    assert "make epsilon smaller" in said
    assert ("Left after", "nothing") not in release_words.describe_charge(study, read_account(Place.of(study), study))
    alone = study_of(folder, STUDY)
    assert "no budget is kept" in release_words.say_spending(alone, None)
    told = release_words.advise(alone, None)
    assert told is not None
    assert told.text.startswith("No budget is kept")
    untouched = dict(release_words.describe_charge(study, account))
    assert untouched["Left before"] == "epsilon = 1.5 at delta = 1e-06"


def test_a_question_says_when_nothing_is_spent(folder: Path) -> None:
    study = study_of(folder)
    account = lambda: read_account(Place.of(study), study)  # noqa: E731
    say = release_words.say_asked
    assert say(study, account(), "a", False).startswith("This release spends 47.3 %")
    assert release_words.find_offer(study, account()) == "new"
    release = fit_study(study, study.data, release_id="a")
    assert "nothing is spent. If not: This release spends 47.3 %" in say(study, account(), None, False)
    assert "is shown again if this is the same request, and refused otherwise" in say(study, account(), "a", False)
    assert "is refused and nothing is spent" in say(study, account(), "a", True)
    assert say(study, account(), "b", True).startswith("This release spends 47.3 %")
    assert release_words.find_lost(study, account(), ()) == [release]
    release.save(folder / "a.json")
    assert release_words.find_lost(study, account(), Desk(folder).shelf()) == []
    fit_study(study, study.data, release_id="b", again=True)
    assert release_words.find_offer(study, account()) == "again"
    assert "Nothing is spent either way." in say(study, account(), None, False)
    told = release_words.advise(study, account())
    assert told is not None
    assert told.step == "budget"


def test_a_delta_that_is_too_large_is_refused_before_anybody_is_asked(folder: Path) -> None:
    study = study_of(folder, STUDY.replace("delta = 1e-6", "delta = 0.5"))
    assert study.delta == 0.5
    found = release_words.find_obstacle(study, None)
    assert found is not None
    assert "delta=0.5 is too large" in found.text
    study = study_of(folder, STUDY.replace("delta = 1e-6", "delta = 0.01"))
    assert release_words.find_obstacle(study, None) is None
    found = release_words.find_obstacle(study, None, 2_000)
    assert found is not None
    assert "is not below 1/n" in found.text


def test_nobody_is_asked_without_being_told_what_was_not_done() -> None:
    assert release_words.caution(True, True) == []
    looked, saved = release_words.caution(False, False)
    assert "Nobody has looked at the data" in looked
    assert "not saved" in saved


def test_a_fault_that_was_seen_is_forgotten(folder: Path) -> None:
    desk = Desk(folder)
    desk.job = failed = Job("release", running=False, fault=Fault("No."))
    desk.forget_fault(Job("release", running=False, fault=Fault("Another.")))
    assert desk.job is failed
    desk.forget_fault(failed)
    assert desk.job == Job("release", running=False)


def test_releases_of_the_folder_are_read_from_their_files(folder: Path) -> None:
    desk, study = Desk(folder), study_of(folder)
    assert desk.shelf() == ()
    release = fit_study(study, study.data)
    release.save(folder / "old.json")
    (folder / "other.json").write_text(json.dumps({"a": 1}))
    (folder / "broken.json").write_text("{")
    (one,) = desk.shelf()
    assert (one.name, one.release, one.fault) == ("old.json", release, None)
    assert one.time[:2] == "20"
    several = study_of(folder, STUDY.replace("[bounds]", 'by = "region"\n\n[bounds]').replace("+ C(region)", ""))
    fit_study(several, several.data).save(folder / "new.json")
    os.utime(folder / "old.json", (0, 0))
    assert [kept.name for kept in desk.shelf()] == ["new.json", "old.json"]
    assert isinstance(desk.shelf()[0].release, dpl.Releases)
    desk.made = (Made(release, Fault("The disk is full.")),)
    assert desk.shelf()[0].fault == Fault("The disk is full.")


@pytest.mark.parametrize("several", [False, True])
def test_every_form_is_written(folder: Path, several: bool) -> None:
    text = STUDY.replace("consumption ~", "cbind(consumption, income2) ~") if several else STUDY
    if several:
        text = text.replace(
            "cbind(consumption, income2) ~ income + C(region)",
            "cbind(consumption, I(consumption - income)) ~ C(region)",
        )
    study = study_of(folder, text)
    release = fit_study(study, study.data)
    forms = forms_of(release)
    assert set(release_page.FORMS) | {".htm"} == set(forms)
    begins = {".html": "<!doctype html", ".md": "# ", ".tex": "% \\usepackage", ".json": "{"}
    for ending, write in forms.items():
        assert write().lower().lstrip().startswith(begins.get(ending, "")), ending


def test_the_lines_outside_make_the_same_release(folder: Path) -> None:
    code = release_page.in_python("study.toml", "first", out="release-2.json")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    lines = release_page.in_shell("study.toml", "first", out="release-3.json").splitlines()
    for line in lines:
        subprocess.run(
            [sys.executable, "-m", "dplinked.cli", *line.split()[1:]], cwd=folder, check=True, capture_output=True
        )
    first, second = (dpl.Release.load(folder / f"release-{k}.json") for k in (2, 3))
    assert first == second
    assert (folder / "release-2.html").read_text() == (folder / "release-3.html").read_text()
    assert "--again" in release_page.in_shell("study.toml", None, True)
    assert "again=True" in release_page.in_python("study.toml", None, True)


# --- in a browser ------------------------------------------------------------------------------------


def release(page: Any, name: str = "", *, anew: bool = False) -> None:
    settle(page)
    go(page, "release")
    page.get_by_label("Name of this release").fill(name)
    page.get_by_label("Pay anew").set_checked(anew)
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").click()


@pytest.mark.slow
def test_a_release_is_made_shown_and_downloaded(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    go(page, "release")
    page.get_by_label("Name of this release").fill("first")
    page.get_by_role("button", name="Release …").click()
    dialog = page.get_by_role("dialog", name="Make this release?")
    dialog.get_by_text("This release spends 47.3 % of the budget of households and leaves 52.7 % of it").wait_for()
    dialog.get_by_role("button", name="Spend it and release").click()
    see(page, "Written to 'release.json' in the study's folder.", ".good")
    page.frame_locator(".tab-pane.active iframe.report").get_by_role("heading", level=1).wait_for()
    assert page.locator(".tab-pane.active iframe.report").get_attribute("sandbox") == ""
    made = dpl.Release.load(folder / "release.json")
    assert (made.count, made.ledger.id) == (2000, "first")
    for ending, (label, _) in release_page.FORMS.items():
        assert fetch(page, label) == (f"release{ending}", forms_of(made)[ending]())

    # the same name again costs nothing, another one paid anew does, and a third one is more than is left
    release(page, "first")
    see(page, "The ledger had this release already")
    release(page, "second", anew=True)
    see(page, "Written to 'release-2.json'", ".good")
    see(page, "This release needs 47.3 % of the budget of households, and 5.4 % is left.", ".lead")
    see(page, "The budget does not allow a new release like this one.", ".warning")
    page.get_by_role("button", name="Go to Budget").wait_for()
    settle(page)
    assert page.get_by_role("button", name="Release …").count() == 0
    assert page.get_by_label("Pay anew").count() == 0
    page.get_by_role("button", name="Show again …").click()
    page.get_by_role("dialog").get_by_text("Nothing is spent either way.").wait_for()
    page.get_by_role("button", name="Show it again").click()
    see(page, "The ledger had this release already")

    # one that the folder lacks is written from the ledger
    paid = (folder / "release-2.json").read_text()
    (folder / "release-2.json").unlink()
    see(page, "no file of this folder holds: 'second'")
    page.get_by_role("button", name="Write them to this folder").click()
    see(page, "Written to 'release-2.json'", ".good")
    assert (folder / "release-2.json").read_text() == paid
    kinds = [event.kind for event in dpl.Ledger(folder / "budget.db").events()]
    assert kinds == ["open", "register", "charge", "release", "charge", "release"]

    # earlier ones are shown again, after a reload too
    page.reload()
    go(page, "release")
    which = page.get_by_label("The newest first")
    which.wait_for()
    assert which.locator("option").all_inner_texts()[0].startswith("release-2.json, 20")
    which.select_option("release.json")
    see(page, "Written to 'release.json'", ".good")
    assert fetch(page, "Release (JSON)")[1] == (folder / "release.json").read_text()


@pytest.mark.slow
def test_several_results_are_one_release(start: Any, folder: Path) -> None:
    text = STUDY.replace("[bounds]", 'by = "region"\n\n[bounds]').replace(" + C(region)", "")
    (folder / "study.toml").write_text(text, encoding="utf-8")
    page = start(folder / "study.toml").open()
    go(page, "release")
    see(page, "and no budget is kept", ".lead")
    see(page, "No budget is kept: the study names none", ".warning")
    settle(page)
    assert page.get_by_label("Name of this release").count() == 0
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").click()
    see(page, "Written to 'release.json'", ".good")
    page.frame_locator(".tab-pane.active iframe.report").get_by_text("north").first.wait_for()
    assert isinstance(dpl.Releases.load(folder / "release.json"), dpl.Releases)
    assert fetch(page, "CSV")[1].startswith("region,")


@pytest.mark.slow
def test_refusals_say_what_to_do(start: Any, folder: Path) -> None:
    (folder / "linked.parquet").rename(folder / "away.parquet")
    page = start(folder / "study.toml").open()
    go(page, "release")
    see(page, "There is no file 'linked.parquet'", ".bad")
    page.get_by_role("button", name="Go to Study").wait_for()
    (folder / "away.parquet").rename(folder / "linked.parquet")
    page.get_by_role("button", name="Release …").wait_for()  # by itself
    go(page, "study")
    page.get_by_label("Epsilon of").fill("-1")
    page.get_by_label("Epsilon of").press("Tab")
    see(page, "To be mended", ".state")
    go(page, "release")
    see(page, "The study is not complete yet. ", ".bad")
    settle(page)
    assert page.get_by_role("button", name="Release …").count() == 0
    page.get_by_role("button", name="Go to Study").click()
    page.locator(".tab-pane.active[data-value=study]").wait_for()


@pytest.mark.slow
def test_the_last_steps_are_readable(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = start(folder / "study.toml").open()
    go(page, "release")
    page.locator(".tab-pane.active details summary").click()
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").wait_for()
    look(page, axe, "question")
    page.get_by_role("button", name="Spend it and release").click()
    page.locator(".tab-pane.active iframe.report").wait_for()
    look(page, axe, "release")
    go(page, "budget")
    see(page, "release", "td")
    page.get_by_role("button", name="Verify the ledger").click()
    page.locator(".tab-pane.active details summary").click()
    see(page, "Nothing was changed", ".good")
    look(page, axe, "budget")


@pytest.mark.slow
def test_one_answer_counts_and_what_was_paid_for_is_shown(start: Any, folder: Path) -> None:
    """However often the button is clicked, one release is made; and the list, what is shown and what is downloaded are the newest one."""
    (folder / "study.toml").write_text(LEDGER_STUDY.replace("epsilon = 1.0", "epsilon = 0.3"), encoding="utf-8")
    page = start(folder / "study.toml").open()
    go(page, "release")
    for name in ("release.json", "release-2.json", "release-3.json"):
        page.get_by_label("Pay anew").set_checked(True)
        page.get_by_role("button", name="Release …").click()
        page.get_by_role("button", name="Spend it and release").wait_for()
        page.evaluate("""() => { const yes = document.getElementById('do_release');
            window.clicks = 0;
            const timer = setInterval(() => { yes.click(); Shiny.setInputValue('do_release:shiny.action', 1000 + ++clicks, {priority: 'event'});
              if (clicks >= 40) clearInterval(timer) }, 50) }""")
        see(page, f"Written to '{name}'", ".good")
        page.wait_for_function("() => window.clicks >= 40")
        settle(page)
        assert page.get_by_label("The newest first").input_value() == name
        assert fetch(page, "Release (JSON)") == (name, (folder / name).read_text())
        assert not page.get_by_label("Pay anew").is_checked()
    kinds = [event.kind for event in dpl.Ledger(folder / "budget.db").events()]
    assert kinds.count("charge") == 3
    page.get_by_label("The newest first").select_option("release-2.json")
    see(page, "Written to 'release-2.json'", ".good")


@pytest.mark.slow
def test_a_window_that_was_pushed_aside_releases_nothing(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    go(page, "release")
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").wait_for()
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="Go on in this window").click()
    page.get_by_role("dialog", name="Make this release?").wait_for(state="detached")
    page.evaluate("Shiny.setInputValue('do_release:shiny.action', 1000, {priority: 'event'})")
    settle(page)
    assert not (folder / "release.json").exists()
    assert "charge" not in [event.kind for event in dpl.Ledger(folder / "budget.db").events()]


@pytest.mark.slow
def test_a_refusal_is_gone_once_it_is_mended(start: Any, folder: Path) -> None:
    text = LEDGER_STUDY.replace("epsilon = 1.0\ndelta = 1e-6", "epsilon = 0.3\ndelta = 0.01")
    assert text != LEDGER_STUDY
    (folder / "study.toml").write_text(text, encoding="utf-8")
    page = start(folder / "study.toml").open()
    go(page, "release")
    see(page, "Nobody has looked at the data with this study", ".warning")
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").click()
    see(page, "is not below 1/n", ".bad")
    settle(page)
    assert page.locator(".tab-pane.active .bad").count() == 1  # it stays while nothing changes
    go(page, "study")
    page.get_by_label("Delta").first.fill("0.000001")
    page.get_by_label("Delta").first.press("Tab")
    go(page, "release")
    page.locator(".tab-pane.active .bad").wait_for(state="detached")
    see(page, "The study is not saved as it stands.", ".warning")
    page.get_by_role("button", name="Release …").wait_for()
