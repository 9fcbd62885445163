"""The page *Study*: a study written from nothing, what it lacks beside its fields, chips, questions on persons, work that is kept."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE, fetch, go, look, see, settle, wait_for

import dplinked as dpl
from dplinked.studio.study_page import in_lines, linkage_files, read_linkage
from studies import LEDGER_STUDY

COMPLETE = "The study is complete"
LINKAGE = '[linkage]\nblock = "state"\naccuracy = {nsw = 0.9, vic = 0.8}\nchecked = 50\nsource = "identifiers"\nfields = ["surname"]\n'


def test_links_are_taken_over_from_files_of_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "linkage.toml").write_text(LINKAGE)
    (tmp_path / "linkage.toml").write_text("[model]\n")
    (tmp_path / "study.toml").write_text(LINKAGE)
    assert linkage_files(tmp_path) == ["linkage.toml", "linked/linkage.toml"]
    assert read_linkage(tmp_path, "linked/linkage.toml")["accuracy"] == {"nsw": 0.9, "vic": 0.8}
    with pytest.raises(dpl.StudyError, match="says nothing of links"):
        read_linkage(tmp_path, "linkage.toml")
    for name in ("study.toml", "../linkage.toml", str(tmp_path / "linkage.toml")):
        with pytest.raises(dpl.StudyError, match="not there any more"):
            read_linkage(tmp_path, name)


def test_the_lines_outside_read_the_study(folder: Path) -> None:
    name = "it's mine.toml"
    (folder / name).write_text(LEDGER_STUDY, encoding="utf-8")
    shell, python = in_lines(name)
    run = subprocess.run(
        [sys.executable, "-c", f"{python}\nprint(study.epsilon)"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "1.0\n"
    command = shell.replace("dplinked ", f"{sys.executable} -m dplinked.cli ", 1)
    told = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert "income" in told


# --- in a browser ------------------------------------------------------------------------------------


def faults(page: Any) -> list[str]:
    """What stands beside fields, as far as it can be seen."""
    shown = "nodes => nodes.filter(node => node.offsetParent).map(node => node.innerText)"
    return list(page.locator(".tab-pane.active .asked > .fault").evaluate_all(shown))


def told(page: Any, text: str) -> None:
    page.locator(".tab-pane.active .asked > .fault").filter(has_text=text).first.wait_for()


def holds(page: Any, text: str) -> None:
    """Wait until a field of the formula holds a text."""
    fields = page.get_by_label("Formula", exact=True), page.get_by_label("Further terms")
    wait_for(lambda: text in [one.input_value() for one in fields])


def turn(page: Any) -> None:
    """Turn to the study, as soon as the studio is there."""
    page.locator(".tab-pane.active .state").wait_for()
    go(page, "study")
    page.get_by_label("Formula", exact=True).wait_for()


def chips(page: Any) -> list[str]:
    return [one.inner_text() for one in page.locator(".chips .level").all()]


@pytest.mark.slow
def test_a_study_is_written_from_nothing(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    studio = start()
    page = studio.open()
    turn(page)
    see(page, "Still missing: the data file, the formula and the share of links that are right.", ".state")
    assert faults(page) == []
    assert page.locator(".tab-pane.active .bad").count() == 0

    page.get_by_label("Data file").fill("linked.parquet")
    page.get_by_label("Data file").press("Tab")
    page.get_by_label("What is to be explained").select_option("consumption")
    page.get_by_label("income numbers").select_option("number")
    page.get_by_label("region levels").select_option("category")
    page.locator("pre", has_text='formula = "consumption ~ income + C(region)"').wait_for()
    formula = page.get_by_label("Formula", exact=True)
    wait_for(lambda: formula.input_value() == "consumption ~ income + C(region)")
    assert faults(page) == []
    see(
        page,
        re.compile("the bounds of consumption, the bounds of income, the levels of region and the share"),
        ".state",
    )
    for name, value in {
        "consumption: Lowest": "0", "consumption: Highest": "120000", "income: Lowest": "0", "income: Highest": "150000",
        "income: Typical from": "15000", "income: to": "50000", "Column of the blocks": "state",
        "Share of links that are right": "0.91", "File of the budget": "budget.db", "Whose budget": "households",
    }.items():  # fmt: skip
        page.get_by_label(name).fill(value)
    page.get_by_label("region: Add levels").fill("north")
    page.get_by_label("region: Add levels").press("Enter")
    page.get_by_label("region: Add levels").fill("south")
    page.get_by_label("region: Add levels").press("Tab")
    see(page, COMPLETE, ".state")
    assert chips(page) == ["north (reference)", "south"]
    see(page, "54.8 % of the time after this release", ".follows")
    page.get_by_role("button", name="Save").click()
    see(page, "'study.toml' is saved")
    assert fetch(page, "Download study file") == ("study.toml", (folder / "study.toml").read_text(encoding="utf-8"))
    assert dpl.Study.from_toml(folder / "study.toml") == dpl.Study.from_text(LEDGER_STUDY, folder)
    page.get_by_label("income: Unit").fill("euros")
    page.locator("pre", has_text='[units]\nincome = "euros"').wait_for()
    page.locator("#next_study").click()
    page.locator(".tab-pane.active[data-value=check]").wait_for()


@pytest.mark.slow
def test_faults_appear_beside_fields_and_go(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    highest, epsilon = page.get_by_label("income: Highest"), page.get_by_label("Epsilon of")
    highest.fill("-3")
    see(page, "To be mended: the bounds of income", ".state")
    assert faults(page) == []  # whoever is typing is not told yet
    epsilon.focus()
    told(page, "Highest must be larger than lowest.")
    assert highest.get_attribute("aria-invalid") == "true"
    assert page.locator(f"#{highest.get_attribute('aria-describedby')}").inner_text() == faults(page)[0]
    epsilon.fill("-1")
    page.get_by_label("Share of links that are right").fill("91")
    page.get_by_label("Formula", exact=True).fill("consumption ~ scale(income) + C(region)")
    page.get_by_label("Formula", exact=True).press("Tab")
    told(page, "Epsilon must be a number above 0.")
    told(page, "Write a share: 0.91 for 91 %.")
    told(page, "is not supported")
    wait_for(lambda: len(faults(page)) == 3)  # those of columns wait for a formula that can be read
    page.get_by_label("Formula", exact=True).fill("consumption ~ income + C(region)")
    page.get_by_label("Formula", exact=True).press("Tab")
    told(page, "Highest must be larger than lowest.")
    highest.fill("150.000")
    epsilon.fill("0,5")
    told(page, "write 150000 or 150.0000")
    page.locator("pre", has_text="epsilon = 0.5").wait_for()
    epsilon.fill("1")
    page.get_by_label("Share of links that are right").fill("0.91")
    highest.fill("150000")
    see(page, COMPLETE, ".state")
    assert faults(page) == []
    assert highest.get_attribute("aria-invalid") is None


@pytest.mark.slow
def test_next_shows_all_that_is_missing_and_stays(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    page = start().open()
    turn(page)
    page.get_by_label("Formula", exact=True).fill("consumption ~ income + C(region)")
    page.get_by_label("Formula", exact=True).press("Tab")
    page.get_by_label("income: Highest").wait_for()
    settle(page)
    assert faults(page) == []
    page.get_by_label("income: Highest").fill("9")
    page.get_by_label("income: Unit").focus()
    told(page, "Say both the lowest and the highest value.")
    assert len(faults(page)) == 1
    page.locator("#next_study").click()
    told(page, "Say which levels region has.")
    said = faults(page)
    assert said == [
        "Choose the file with the linked rows.",
        "Say the lowest and the highest value that consumption may have.",
        "Say both the lowest and the highest value.",
        "Say which levels region has.",
        "Say what share of the links is right.",
    ]
    assert page.locator(".tab-pane.active").get_attribute("data-value") == "study"
    assert page.evaluate("document.activeElement.id").startswith("path_")
    page.get_by_label("Data file").fill("absent.parquet")
    page.get_by_label("Data file").press("Tab")
    told(page, "There is no file 'absent.parquet'")
    page.locator("#next_study").click()  # whoever insists may go on
    page.locator(".tab-pane.active[data-value=check]").wait_for()
    see(page, "Go back to Study", ".state")


@pytest.mark.slow
def test_levels_are_chips(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    entry = page.get_by_label("region: Add levels")
    entry.wait_for()
    page.evaluate(
        """() => { const data = new DataTransfer(); data.setData('text', 'east\\t"north, far"\\nwest; west,');
        const entry = document.querySelector('.chips .entry'); entry.focus();
        entry.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true})) }"""
    )
    assert chips(page) == ["north (reference)", "south", "east", "north, far", "west"]
    page.locator("pre", has_text='["north", "south", "east", "north, far", "west"]').wait_for()
    page.get_by_role("button", name="region: remove south").press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "region: remove east"
    page.get_by_role("button", name="region: make west the reference level").press("Enter")
    assert chips(page) == ["west (reference)", "north", "east", "north, far"]
    entry.press("Backspace")
    page.locator("pre", has_text='["west", "north", "east"]').wait_for()
    for name in ("west", "north", "east"):
        page.get_by_role("button", name=f"region: remove {name}").click()
    page.get_by_label("Epsilon of").focus()
    told(page, "Say which levels region has.")
    entry.fill("a")
    entry.press("Enter")
    entry.press("Tab")
    told(page, "Say at least two levels of region.")
    entry.fill("b")
    entry.press("Enter")
    see(page, COMPLETE, ".state")
    assert faults(page) == []


@pytest.mark.slow
def test_the_list_of_columns_and_the_formula_keep_in_step(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    formula, income = page.get_by_label("Formula", exact=True), page.get_by_label("income numbers")
    assert (income.input_value(), page.get_by_label("region levels").input_value()) == ("number", "category")
    formula.fill("consumption ~ income + income:region + log(age)")
    formula.press("Tab")
    holds(page, "income:region + log(age)")
    settle(page)
    assert page.get_by_label("region levels").input_value() == ""
    page.get_by_label("state levels").select_option("category")
    holds(page, "consumption ~ income + C(state) + income:region + log(age)")
    page.get_by_label("age: Lowest").wait_for()
    page.get_by_label("Further terms").fill("")
    page.get_by_label("Further terms").press("Tab")
    page.get_by_label("age: Lowest").wait_for(state="detached")
    page.get_by_label("What is to be explained").focus()
    page.get_by_label("What is to be explained").select_option("income")  # which then explains nothing
    holds(page, "income ~ C(state)")
    settle(page)
    assert income.input_value() == ""
    page.get_by_label("region levels").select_option("category")
    holds(page, "income ~ C(state) + C(region)")
    formula.fill("income ~ C(state)")  # what the list said before may be typed again
    formula.press("Tab")
    text = page.locator("pre", has_text='formula = "income ~ C(state)"')
    text.wait_for()
    assert "[15000, 50000]" in text.inner_text()  # as long as income is in the formula


@pytest.mark.slow
def test_three_questions_set_the_unit(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    see(page, "Links and blocks are held fixed", ".follows")
    yes, no = page.get_by_label("Yes", exact=True), page.get_by_label("No", exact=True)
    yes.nth(0).check()
    see(page, "may move the person to another block", ".follows")
    yes.nth(1).check()
    page.get_by_label("From how many at most?").fill("3")
    see(page, "displace at most 3 further link(s)", ".follows")
    page.locator("pre", has_text="moves_block = true\ndisplaced_links = 3").wait_for()
    see(page, COMPLETE, ".state")
    yes.nth(2).check()
    page.get_by_label("Delta of").focus()
    told(page, "answer No to both questions above")
    no.nth(0).check()
    no.nth(1).check()
    page.get_by_label("How many at most?", exact=True).fill("4")
    page.get_by_label("whose regressors").fill("person")
    page.get_by_label("whose responses").fill("person")
    page.get_by_label("Delta of").focus()
    told(page, "This must be another column")
    page.get_by_label("whose responses").fill("payer")
    see(page, COMPLETE, ".state")
    see(page, "Protected is all that the model uses about any one person: at most 4 rows", ".follows")
    page.get_by_role("button", name="Save").click()
    see(page, "is saved")
    assert dpl.Study.from_toml(folder / "study.toml").unit == dpl.PrivacyUnit(
        rows=4, id="person", response_id="payer", displaced_links=0
    )
    no.nth(2).check()
    see(page, "Links and blocks are held fixed", ".follows")
    page.locator("pre", has_text="person").wait_for(state="detached")


@pytest.mark.slow
def test_accuracies_come_from_where_they_were_found(start: Any, folder: Path) -> None:
    """Released ones ask for what they cost; what review or the command line wrote is taken over."""
    (folder / "linked").mkdir()
    (folder / "linked" / "linkage.toml").write_text(LINKAGE)
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    cost = page.get_by_label("What its release cost")
    settle(page)
    assert not cost.is_visible()
    page.get_by_label("Where the accuracy").select_option("released")
    see(page, "Still missing: what the accuracy cost and the links it was paid for", ".state")
    cost.fill("0.3")
    page.get_by_label("Displaced links it was paid for").fill("0")
    see(page, COMPLETE, ".state")
    page.locator("pre", has_text="paid = 0.3").wait_for()
    page.get_by_label("Where the accuracy").select_option("estimated")
    page.get_by_label("Lowest share in any block").fill("0.5")
    page.get_by_label("How far may the matching matrix change").fill("2")
    see(page, COMPLETE, ".state")
    page.locator("pre", has_text="paid = 0.3").wait_for(state="detached")

    page.get_by_label("Taken over from").select_option("linked/linkage.toml")
    page.get_by_role("button", name="Take over").click()
    page.locator("pre", has_text='fields = ["surname"]').wait_for()
    see(page, COMPLETE, ".state")
    settle(page)
    assert page.get_by_label("Blocks and their shares").input_value() == "nsw = 0.9\nvic = 0.8"
    page.get_by_role("button", name="Save").click()
    see(page, "is saved")
    linkage = dpl.Study.from_toml(folder / "study.toml").linkage
    assert linkage == dpl.ELE({"nsw": 0.9, "vic": 0.8}, "state", checked=50, source="identifiers", fields=["surname"])


@pytest.mark.slow
def test_counts_ask_for_an_exposure_and_events_for_levels(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    exposure = page.get_by_label("Column of exposures")
    settle(page)
    assert not exposure.is_visible()
    page.get_by_label("The response is").select_option("poisson")
    exposure.wait_for()
    told(page, "Of a count, lowest is 0 and highest the largest count")
    page.get_by_label("The response is").select_option("logistic")
    page.get_by_label("consumption: Add levels").fill("no, yes")
    page.get_by_label("consumption: Add levels").press("Enter")
    see(page, COMPLETE, ".state")


@pytest.mark.slow
def test_several_studies_are_kept_through_reload_and_restart(start: Any, folder: Path) -> None:
    """What the form cannot hold stays in the text, too."""
    text = LEDGER_STUDY.replace("[privacy]", "[fill]\nincome = 30000  # a guess\n\n[privacy]").replace(
        "[ledger]", "[ledger]  # ours"
    )
    (folder / "other.toml").write_text(text, encoding="utf-8")
    studio = start(folder / "study.toml")
    page = studio.open()
    see(page, COMPLETE, ".state")
    page.get_by_label("income: Highest").fill("")
    page.get_by_label("income: Unit").fill("euros")
    page.get_by_label("region: Add levels").fill("east")
    page.get_by_label("region: Add levels").press("Enter")
    page.locator("pre", has_text='"south", "east"').wait_for()
    page.get_by_label("In this folder").select_option("other.toml")
    page.get_by_role("button", name="Open", exact=True).click()
    see(page, "'other.toml' is saved")
    settle(page)
    page.get_by_label("Epsilon of").fill("0.5")
    see(page, "Not saved")
    page.reload()
    see(page, "Not saved")
    settle(page)
    studio.process.send_signal(signal.SIGKILL)
    studio.process.wait(PATIENCE)
    studio.killed = True

    page = start().open()
    see(page, "Not saved")
    assert page.get_by_label("Epsilon of").input_value() == "0.5"
    page.get_by_role("button", name="Save").click()
    see(page, "'other.toml' is saved")
    assert (folder / "other.toml").read_text(encoding="utf-8") == text.replace("epsilon = 1.0", "epsilon = 0.5")
    page.get_by_label("In this folder").select_option("study.toml")
    page.get_by_role("button", name="Open", exact=True).click()
    see(page, "the bounds of income", ".state")
    settle(page)
    assert page.get_by_label("income: Highest").input_value() == ""
    assert (page.get_by_label("income: Lowest").input_value(), page.get_by_label("income: Unit").input_value()) == ("0", "euros")  # fmt: skip
    assert chips(page) == ["north (reference)", "south", "east"]


@pytest.mark.slow
def test_a_study_that_changed_on_disk_is_opened_anew(start: Any, folder: Path) -> None:
    file = folder / "study.toml"
    page = start(file).open()
    see(page, "'study.toml' is saved")
    file.write_text(LEDGER_STUDY.replace("epsilon = 1.0", "epsilon = 0.7"), encoding="utf-8")
    see(page, "has changed since it was opened here")
    page.get_by_role("button", name="Open", exact=True).click()
    page.locator("pre", has_text="epsilon = 0.7").wait_for()
    see(page, "'study.toml' is saved")
    settle(page)

    page.get_by_label("income: Unit").fill("euros")
    page.locator("pre", has_text='income = "euros"').wait_for()
    file.write_text(LEDGER_STUDY.replace("epsilon = 1.0", "epsilon = 0.8"), encoding="utf-8")
    see(page, "has changed since it was opened here")
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_role("button", name="Keep what was typed").click()
    page.locator("pre", has_text='income = "euros"').wait_for()
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_role("button", name="Load the file").click()
    page.locator("pre", has_text="epsilon = 0.8").wait_for()
    settle(page)
    assert page.get_by_label("income: Unit").input_value() == ""
    file.unlink()
    see(page, "'study.toml' is gone, or cannot be read any more. Save writes it again.", ".bad")
    page.get_by_role("button", name="Save").click()
    see(page, "'study.toml' is saved")
    assert "epsilon = 0.8" in file.read_text()


@pytest.mark.slow
def test_the_text_can_be_edited(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    for text, says in (
        ("epsilon = = 1", "is not valid TOML"),
        (LEDGER_STUDY + "\n[descent]\nradius = 1\n", "descent belongs to"),
    ):
        page.get_by_role("button", name="Edit as text").click()
        page.get_by_label("Study file (TOML)").fill(text)
        page.get_by_role("button", name="Use this text").click()
        see(page, says, ".bad")
    page.get_by_text("More: missing cells").click()
    page.get_by_label("How it is fitted").select_option("ngd")
    see(page, COMPLETE, ".state")


@pytest.mark.slow
def test_the_form_is_readable(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    (folder / "linkage.toml").write_text(LINKAGE)
    page = start(folder / "study.toml").open()
    see(page, COMPLETE, ".state")
    page.get_by_text("More: missing cells").click()
    look(page, axe, "complete")
    page.get_by_label("Yes", exact=True).nth(1).check()
    page.get_by_label("Yes", exact=True).nth(2).check()
    page.get_by_label("Where the accuracy").select_option("released")
    page.get_by_label("income: Highest").fill("-3")
    page.get_by_role("button", name="region: remove north").click()
    for term in page.locator(".help summary").all():
        if term.is_visible():
            term.click()
    page.locator("#next_study").click()
    told(page, "Highest must be larger")
    assert len(faults(page)) >= 5
    look(page, axe, "faults and help")
    page.get_by_text("The same outside the studio").locator("visible=true").click()
    look(page, axe, "outside")


@pytest.mark.slow
def test_a_study_is_written_by_keyboard_alone(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    page = start().open()
    turn(page)
    page.get_by_label("Data file").focus()

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    page.keyboard.type("linked.parquet")
    press("Tab", "Enter")  # the help beside it
    page.get_by_text("each row holds one person's regressors").wait_for()
    page.get_by_label("What is to be explained").wait_for()
    settle(page)
    press("Tab", "Tab", "Tab", "Tab")  # by the link that the help ends in
    page.keyboard.type("cons")
    press("Tab", "Tab")
    page.keyboard.type("as a n")
    holds(page, "consumption ~ income")
    page.get_by_label("income: Highest").wait_for()
    assert page.evaluate("document.activeElement.id").startswith("use")  # nothing took the focus away
