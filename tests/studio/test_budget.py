"""The page *Budget*: opened from here or elsewhere, watched without a reload, verified in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import fetch, go, look, see, settle, wait_for

import dplinked as dpl
from dplinked.studio import budget_page
from studies import STUDY


def command(folder: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "dplinked.cli", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )


def test_a_form_says_what_it_lacks() -> None:
    whole = {"population": "people", "url": "budget.db", "epsilon": 1.0, "delta": 1e-6}
    assert budget_page._lacking(whole) is None
    assert (
        budget_page._lacking({**whole, "population": " ", "delta": None}) == "Fill in who these people are and delta."
    )


@pytest.mark.slow
@pytest.mark.parametrize("opening", [None, {"epsilon": 2.0, "delta": 1e-6}])
def test_the_lines_outside_do_what_the_page_does(folder: Path, opening: dict[str, float] | None) -> None:
    if opening is not None:
        (folder / "budget.db").unlink()
    code = budget_page.in_python("study.toml", opening)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert f"epsilon={2.0 if opening else 1.5}" in done.stdout
    if opening is not None:
        (folder / "budget.db").unlink()
    for line in budget_page.in_shell("study.toml", opening).splitlines():
        assert line.startswith("dplinked ")
        command(folder, *line.split()[1:])
    assert dpl.Ledger(folder / "budget.db").balance().epsilon == (2.0 if opening else 1.5)


# --- in a browser ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_is_opened_here(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    (folder / "budget.db").unlink()
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    page = start(folder / "study.toml").open()
    go(page, "budget")
    see(page, "The study names no budget, so nobody keeps count.", ".state")
    see(page, "they guess the right one at most 62.7 % of the time", "p")
    look(page, axe, "form")
    page.get_by_role("button", name="Open this budget").click()
    see(page, "Fill in who these people are.", ".bad")
    page.get_by_label("Who these people are").fill("households")
    page.get_by_label("Epsilon of the whole budget").fill("1.5")
    see(page, "It is enough for about 2 releases like this study's.", "p")
    page.reload()
    page.get_by_label("Who these people are").wait_for()
    assert page.get_by_label("Who these people are").input_value() == "households"
    assert page.get_by_label("Epsilon of the whole budget").input_value() == "1.5"
    page.get_by_role("button", name="Open this budget").click()
    dialog = page.get_by_role("dialog", name="Open this budget?")
    dialog.get_by_text("It cannot be taken back, made larger or begun anew.").wait_for()
    look(page, axe, "question")
    dialog.get_by_role("button", name="Open it for good").click()
    see(page, "All of the budget is left, enough for about 2 more releases like this one.", ".lead")
    look(page, axe, "open")
    account = dpl.Ledger(folder / "budget.db", "households")
    assert [event.kind for event in account.events()] == ["open", "register"]
    assert account.balance().epsilon == 1.5
    page.get_by_role("button", name="Verify the ledger").click()
    see(page, "Nothing was changed: every event fits the one before it", ".good")
    name, text = fetch(page, "Download all events")
    assert (name, [json.loads(line)["kind"] for line in text.splitlines()]) == ("ledger.jsonl", ["open", "register"])
    go(page, "study")
    see(page, 'population = "households"', "pre")


@pytest.mark.slow
def test_what_others_do_appears_by_itself(start: Any, folder: Path) -> None:
    """A budget that is opened in a terminal, its charges, and releases that others write, without a reload and without emptying a field."""
    (folder / "budget.db").unlink()
    page = start(folder / "study.toml").open()
    go(page, "study")
    page.get_by_label("File name").fill("mine.toml")
    go(page, "budget")
    see(page, "was not opened yet", ".state")
    page.get_by_label("Epsilon of the whole budget").fill("1.25")
    command(folder, "budget", "init", "study.toml", "--epsilon", "1.5", "--delta", "1e-6")
    see(page, "All of the budget is left", ".lead")
    go(page, "study")
    assert page.get_by_label("File name").input_value() == "mine.toml"
    go(page, "release")
    page.get_by_label("Name of this release").fill("half")
    command(folder, "fit", "study.toml", "--id", "theirs", "--out", "theirs.json", "--unchecked")
    see(page, "leaves 5.4 % of it", ".lead")
    page.get_by_label("The newest first").wait_for()
    assert page.get_by_label("The newest first").input_value() == "theirs.json"
    assert page.get_by_label("Name of this release").input_value() == "half"
    go(page, "budget")
    see(page, "52.7 % of the budget is left, enough for one more release like this one.", ".lead")
    see(page, "theirs", "th")
    see(page, "47.25 %", "td")


@pytest.mark.slow
def test_a_ledger_that_was_changed_is_told(start: Any, folder: Path) -> None:
    before = (folder / "budget.db").read_bytes()
    command(folder, "fit", "study.toml", "--unchecked")
    page = start(folder / "study.toml").open()
    go(page, "budget")
    see(page, "52.7 % of the budget is left", ".lead")
    (folder / "budget.db").write_bytes(before)
    see(page, "All of the budget is left", ".lead")
    page.get_by_role("button", name="Verify the ledger").click()
    see(page, "The ledger was rolled back: it does not know a release that was made from it.", ".bad")
    (folder / "budget.db.key").chmod(0o644)
    (folder / "budget.db").write_bytes(before)
    see(page, "can be read by others", ".note")


@pytest.mark.slow
def test_data_is_registered_here(start: Any, folder: Path) -> None:
    (folder / "budget.db").unlink()
    dpl.Ledger.create(folder / "budget.db", "households", epsilon=1.5, delta=1e-6)
    page = start(folder / "study.toml").open()
    go(page, "release")
    see(page, "is not registered for the budget", ".bad")
    settle(page)
    assert page.get_by_role("button", name="Release …").count() == 0
    page.get_by_role("button", name="Go to Budget").click()
    page.get_by_role("button", name="Register the data").click()
    wait_for(lambda: [e.kind for e in dpl.Ledger(folder / "budget.db").events()] == ["open", "register"])
    go(page, "release")
    page.get_by_role("button", name="Release …").wait_for()
