"""The page *Review*: three hundred links by keyboard, stopped and gone on with; two reviewers; and what the study takes."""

from __future__ import annotations

import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE, VIEWS, go, look, see, settle, wait_for
from test_link import REQUEST, silent, write_files

import dplinked as dpl
from dplinked.linker.reviewing import ReviewList, open_review
from dplinked.studio.desk import Desk
from dplinked.studio.draft import Draft
from dplinked.studio.linking import (
    Price,
    Request,
    accuracy_changes,
    link_files,
    links_of,
    public_changes,
    released_before,
    take_accuracy,
)
from dplinked.studio.workspace import NAME, Workspace, save_workspace

WORDS = {"y": "yes", "n": "no", "u": "unsure"}


def linked_folder(folder: Path, request: Request, rows: int) -> Request:
    """A folder in which files were linked in the studio, before it was closed."""
    write_files(folder, rows)
    at = time.time()
    link_files(request, folder, silent)
    files = {"way": "two", "left": dict(request.left), "right": dict(request.right)}
    save_workspace(
        folder, Workspace("review", pages={"files": files, "link": {"asked": {"request": request.kept(), "at": at}}})
    )
    return request


def fill(review: ReviewList, letters: str) -> None:
    for place, letter in zip(review.open_places, letters, strict=False):
        review.answer(place, WORDS[letter])


def press(page: Any, key: str) -> int:
    """Press a key, and wait until another link is shown. Returns the line that was shown."""
    shown = page.locator("[data-place]").get_attribute("data-place")
    page.keyboard.press(key)
    page.wait_for_function("shown => document.querySelector('[data-place]').dataset.place != shown", arg=shown)
    return int(shown)


# --- what the study takes --------------------------------------------------------------------------------


def test_links_are_made_again_only_if_files_have_changed(tmp_path: Path) -> None:
    linked_folder(tmp_path, REQUEST, 400)
    desk = Desk(tmp_path)
    made = link_files(replace(REQUEST, out="other"), tmp_path, silent)
    desk.results["link"] = made
    assert links_of(desk, made.request, silent) is made.linked
    again = links_of(desk, REQUEST, silent)
    assert again is not made.linked
    assert again.pairs.equals(made.linked.pairs)
    (tmp_path / "incomes.csv").write_text((tmp_path / "incomes.csv").read_text() + "\n")
    assert links_of(desk, made.request, silent) is not made.linked


def test_the_study_takes_what_identifiers_told(tmp_path: Path) -> None:
    linked_folder(tmp_path, REQUEST, 400)
    desk, review = Desk(tmp_path), open_review(tmp_path / "linked")
    with pytest.raises(dpl.StudyError, match="no clear answer"):
        take_accuracy(desk, REQUEST, None, silent)
    fill(review, "yyyyyyyyyu" * 20)
    linkage = take_accuracy(desk, REQUEST, None, silent)
    text = Draft(0, "", STUDY).changed(accuracy_changes(Draft(0, "", STUDY), REQUEST, tmp_path))
    study = dpl.Study.from_text(text, tmp_path)
    assert study.linkage.describe_whole() == linkage.describe_whole()
    assert linkage.source == "identifiers"
    assert open_review(tmp_path / "linked").open_places == []  # the answers are still there
    public = Draft(0, "", text).changed(public_changes(Draft(0, "", text), 0.97, 800))
    section = Draft(0, "", public).sections["linkage"]  # type: ignore[index]
    assert section == {
        "accuracy": 0.97, "checked": 800, "source": "public", "block": "link_block", "fields": ["given_name", "first", "surname", "date_of_birth", "born on", "state"],
    }  # fmt: skip


@pytest.mark.parametrize("secret", [False, True])
def test_the_study_takes_a_released_accuracy(tmp_path: Path, secret: bool) -> None:
    request = linked_folder(tmp_path, replace(REQUEST, secret=secret), 400)
    fill(open_review(tmp_path / "linked"), "y" * 200)
    assert not released_before(tmp_path / "linked")
    linkage = take_accuracy(Desk(tmp_path), request, Price(0.5, 1e-6), silent)
    assert released_before(tmp_path / "linked")
    text = Draft(0, "", STUDY).changed(accuracy_changes(Draft(0, "", STUDY), request, tmp_path))
    assert dpl.Study.from_text(text, tmp_path).linkage.describe_whole() == linkage.describe_whole()


def test_a_released_accuracy_is_written_and_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked_folder(tmp_path, REQUEST, 400)
    fill(open_review(tmp_path / "linked"), "y" * 200)
    ledger = dpl.Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    for file in REQUEST.files(tmp_path):
        ledger.register(file)
    price = Price(0.5, 1e-7, 0, tmp_path / "budget.db", "people")
    linkage = take_accuracy(Desk(tmp_path), REQUEST, price, silent)
    assert linkage.source == "released"
    assert (tmp_path / "linked" / "accuracy.json").is_file()
    spent = ledger.balance().spent
    assert spent > 0

    def full(*_: Any, **__: Any) -> Any:
        raise dpl.StudyError("The disk is full.")

    (tmp_path / "linked" / "accuracy.json").unlink()
    monkeypatch.setattr("dplinked.linker.linked.save_linked", full)
    seen = pytest.warns(UserWarning, match="has seen this request")
    with pytest.raises(dpl.StudyError, match="disk is full"), seen:
        take_accuracy(Desk(tmp_path), REQUEST, price, silent)  # what was paid for is written all the same
    assert (tmp_path / "linked" / "accuracy.json").is_file()
    assert ledger.balance().spent == spent


STUDY = """\
[data]
path = "linked/linked.parquet"

[model]
formula = "consumption ~ income"

[bounds]
income = [0, 150000]
consumption = [0, 120000]

[linkage]
accuracy = 0.5
shared_error = [{ act = 0.1 }]

[unit]
moves_block = false
displaced_links = 0

[privacy]
epsilon = 1.0
delta = 1e-6
"""

# --- in a browser ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_hundred_links_by_keyboard_stopped_twice(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    request = linked_folder(folder, replace(REQUEST, size=340), 1_500)
    total = len(open_review(folder / "linked").places)
    assert total >= 300
    studio = start()
    page = studio.open()
    see(page, f"0 of {total} links are answered.", ".state")
    expected: dict[int, str] = {}

    def answer(upto: int) -> None:
        while len(expected) < upto:
            key = "u" if len(expected) % 29 == 5 else "n" if len(expected) % 11 == 3 else "y"
            place = press(page, key)
            assert place not in expected
            expected[place] = WORDS[key]
            if len(expected) % 50 == 0:
                assert on_disk(folder) == expected

    answer(100)
    page.reload()
    see(page, f"100 of {total} links are answered.", ".state")
    answer(200)
    studio.process.send_signal(signal.SIGKILL)
    studio.process.wait(PATIENCE)
    studio.killed = True
    assert on_disk(folder) == expected

    page = start().open()
    see(page, f"200 of {total} links are answered.", ".state")
    answer(220)
    for _ in range(3):
        press(page, "z")
        place = int(page.locator("[data-place]").get_attribute("data-place"))
        assert expected.popitem()[0] == place
    see(page, f"217 of {total} links are answered.", ".state")
    press(page, "ArrowLeft")
    see(page, re.compile("Answered: "), ".given")
    press(page, "ArrowRight")
    answer(300)
    assert on_disk(folder) == expected
    yes = list(expected.values()).count("yes")
    see(page, f"{100 * yes / 300:.1f} % of the links answered so far are right", "strong")
    assert not any(
        word in (folder / NAME).read_text() for word in ("yes", "unsure", "A0000")
    )  # answers live in the list

    answer(total - 1)
    page.keyboard.press("y")
    see(page, "Every link is answered.", ".state")
    assert len(on_disk(folder)) == total
    page.get_by_role("button", name="Use it in the study").click()
    see(page, "The study knows how good its links are.", ".state")
    mine = (folder / "linked" / "linkage.toml").read_text()
    assert 'source = "identifiers"' in mine
    go(page, "study")
    see(page, 'source = "identifiers"', "pre")

    # the command line reads the same list back, and finds the same
    words = shlex.split(str(request.in_shell("--audited", "linked/audit.csv", "--by-identifiers")))
    subprocess.run([sys.executable, "-m", "dplinked.cli", *words[1:]], cwd=folder, check=True, capture_output=True)
    assert (folder / "linked" / "linkage.toml").read_text() == mine


def on_disk(folder: Path) -> dict[int, str]:
    """The answers in the list that is read back, by their lines."""
    review = ReviewList(folder / "linked" / "audit.csv")
    return {place: answer for place in review.places if (answer := review.answer_of(place)) is not None}


@pytest.mark.slow
def test_a_key_answers_the_link_that_is_shown_and_no_other(start: Any, folder: Path) -> None:
    """Keys that are hit too early, in a field, or with the switch off, answer nothing."""
    linked_folder(folder, replace(REQUEST, size=60, block=()), 400)
    page = start().open()
    see(page, "Link 1 of", "h2")
    for _ in range(5):
        page.keyboard.press("y")
    wait_for(lambda: 0 < len(on_disk(folder)))
    wait_for(lambda: int(page.locator("[data-place]").get_attribute("data-place")) not in on_disk(folder))
    settle(page)
    order = open_review(folder / "linked").places
    assert list(on_disk(folder)) == list(order[: len(on_disk(folder))])  # each was shown when it was answered
    count = len(on_disk(folder))
    page.locator("summary", has_text="Who reviews").click()
    page.get_by_label("Name of the first reviewer").press_sequentially("yny")
    page.keyboard.press("Control+y")
    page.get_by_label("Answer with the keys").uncheck()
    page.keyboard.press("y")
    settle(page)
    assert len(on_disk(folder)) == count
    page.get_by_role("button", name="No (n)").click()
    wait_for(lambda: len(on_disk(folder)) == count + 1)
    page.get_by_role("button", name="Take back (z)").click()
    wait_for(lambda: len(on_disk(folder)) == count)
    page.reload()
    see(page, "Who reviews: yny", "summary")


@pytest.mark.slow
def test_the_second_reviewer_is_blind_and_differences_are_settled(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    (folder / "study.toml").unlink()
    linked_folder(folder, replace(REQUEST, size=24, block=()), 400)
    fill(open_review(folder / "linked"), "yyyyyyyyyyyyyyynuyyy" * 5)
    first = on_disk(folder)
    page = start().open()
    see(page, "Every link is answered.", ".state")
    page.locator("summary", has_text="Who reviews").click()
    page.get_by_label("a second one").check()
    see(page, f"0 of {len(first)} links are answered.", ".state")
    settle(page)
    assert page.locator(".tab-pane.active").get_by_text(re.compile("% of the links")).count() == 0
    assert page.locator(".given").inner_text() == "Not answered yet."
    page.locator("body").click(position={"x": 5, "y": 300})
    for k in range(len(first) - 1):
        press(page, "n" if k in (2, 3) else "y")
        assert page.locator(".tab-pane.active").get_by_text("kappa").count() == 0
    page.keyboard.press("y")
    see(page, "Cohen's kappa is", "p")
    assert on_disk(folder) == first
    look(page, axe, "agreement", VIEWS[:1])
    second = open_review(folder / "linked", "second")
    differ = [place for place in second.places if second.answer_of(place) != first[place]]
    see(page, f"agree on {len(first) - len(differ)} of them", "p")
    page.get_by_role("button", name="Settle the differences").click()
    see(page, f"Link 1 of {len(differ)}", "h2")
    see(page, "the first reviewer: ", "p")
    see(page, f"0 of {len(differ)} differences are settled.", ".state")
    settle(page)
    assert page.locator(".tab-pane.active").get_by_text(re.compile("% of the links")).count() == 0
    look(page, axe, "settling", VIEWS[:1])
    assert len(on_disk(folder)) == len(first) - len(differ)
    for _ in differ[1:]:
        press(page, "y")
    page.keyboard.press("n")
    see(page, "Every link is answered.", ".state")
    see(page, "% of the links are right", "strong")
    now = on_disk(folder)
    assert sorted(now[place] for place in differ) == ["no", *["yes"] * (len(differ) - 1)]
    assert {place: now[place] for place in first if place not in differ} == {
        place: first[place] for place in first if place not in differ
    }


@pytest.mark.slow
def test_the_page_is_readable_in_every_state(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    (folder / "study.toml").unlink()
    studio = start()
    page = studio.open()
    see(page, "Choose", ".state")
    go(page, "review")
    see(page, "Link the files first.", ".state")
    look(page, axe, "missing")
    page.close()
    studio.process.send_signal(2)
    studio.process.wait(PATIENCE)
    studio.killed = True

    linked_folder(folder, replace(REQUEST, size=40, block=()), 400)
    page = start().open()
    see(page, "Link 1 of", "h2")
    look(page, axe, "first")
    page.locator("summary", has_text="Who reviews").click()
    page.locator("summary", has_text="What the score is made of").click()
    page.locator("body").click(position={"x": 2, "y": 300})
    for key in "ynyu":
        press(page, key)
    press(page, "ArrowLeft")
    see(page, "Answered: unsure.", ".given")
    look(page, axe, "answered")
    fill(open_review(folder / "linked"), "y" * 100)
    page.reload()
    see(page, "Every link is answered.", ".state")
    page.get_by_label("Public: the accuracy is known").check()
    see(page, "Say which share of links is right", ".fault")
    look(page, axe, "public")
    page.get_by_label("Released, and paid for").check()
    page.get_by_role("button", name="Use it in the study").click()
    page.get_by_text("This spends epsilon = 0.3").wait_for()
    look(page, axe, "question")
    page.get_by_role("button", name="Spend it and release").click()
    see(page, "The study knows how good its links are.", ".state")
    assert 'source = "released"' in (folder / "linked" / "linkage.toml").read_text()
    look(page, axe, "taken")
    page.reload()
    see(page, "The study knows how good its links are.", ".state")
    paid = (folder / "linked" / "accuracy.json").read_text()
    see(page, "It was released before", ".hint")
    page.get_by_role("button", name="Use it in the study").click()
    settle(page)
    assert page.get_by_role("button", name="Spend it and release").count() == 0
    assert (folder / "linked" / "accuracy.json").read_text() == paid


@pytest.mark.slow
def test_a_secret_review_tells_nothing_of_what_it_finds(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    request = linked_folder(folder, replace(REQUEST, size=60, block=(), secret=True), 400)
    assert stat.S_IMODE((folder / request.key).stat().st_mode) == 0o600
    page = start().open()
    see(page, "Who was drawn is secret", "p")
    press(page, "y")
    settle(page)
    assert page.locator(".tab-pane.active").get_by_text(re.compile("% of the links")).count() == 0
    assert page.get_by_label("By identifiers").count() == 0
    assert stat.S_IMODE((folder / "linked" / "audit.csv").stat().st_mode) == 0o600


@pytest.mark.slow
def test_odd_values_are_shown_as_text(start: Any, folder: Path) -> None:
    """What a record holds is no HTML, and no writing direction."""
    odd = '<img src=x onerror="document.title=1">\'&amp;😀\u202e'
    write_files(folder, 400)
    for name in ("incomes.csv", "spending.csv"):
        lines = (folder / name).read_text().replace(";vic;", f";{odd.replace(';', '')};")
        (folder / name).write_text(lines)
    at = time.time()
    request = replace(REQUEST, size=30, block=(), fields=(*REQUEST.fields, ("state", "state", "text")))
    link_files(request, folder, silent)
    files = {"way": "two", "left": dict(request.left), "right": dict(request.right)}
    save_workspace(
        folder, Workspace("review", pages={"files": files, "link": {"asked": {"request": request.kept(), "at": at}}})
    )
    page = start().open()
    see(page, "Link 1 of", "h2")
    for _ in range(12):
        assert page.locator(".tab-pane.active img").count() == 0
        press(page, "ArrowRight")
    assert page.title() == "dplinked studio"
    assert "\u202e" not in page.content()
