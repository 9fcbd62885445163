"""What was worked on survives reloads and restarts, and one window works at a time."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from browsing import go, see, settle, wait_for

import dplinked as dpl
from dplinked.studio.desk import Desk
from dplinked.studio.path import STEPS, State, after, before, number
from dplinked.studio.workspace import NAME, Workspace, load_workspace, save_workspace

WORK = Workspace("link", "a.toml", {"a.toml": "x = 'é'\n", "b.toml": ""}, {"b.toml": "y"}, {"link": {"size": 3}})


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    assert load_workspace(tmp_path) == Workspace()
    save_workspace(tmp_path, WORK)
    assert load_workspace(tmp_path) == WORK
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "{}", '{"version": 2}', '{"version": 1, "step": "nowhere"}', '{"version": 1, "texts": {"a": 1}}',
     '{"version": 1, "pages": {"link": 3}}', '{"version": 1, "more": 1}', '{"version": 1, "study": 1}', '{"version": 1, "texts": 4}'],
)  # fmt: skip
def test_a_file_that_is_none_of_ours_is_taken_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert load_workspace(tmp_path) == Workspace()


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()  # a folder in the file's place
    with pytest.raises(dpl.StudyError, match="cannot be kept"):
        save_workspace(tmp_path, WORK)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_texts_and_values_are_kept_by_their_names() -> None:
    changed = WORK.with_text("a.toml", "z", "old").with_page("link", {"size": None, "seed": 1})
    assert (changed.texts["a.toml"], changed.saved["a.toml"], changed.texts["b.toml"]) == ("z", "old", "")
    assert changed.pages == {"link": {"seed": 1}}
    assert "a.toml" not in changed.with_text("a.toml", "z", None).saved
    assert changed.without("a.toml").texts == {"b.toml": ""}


def test_the_steps_lead_to_each_other() -> None:
    assert (before("files"), after("files"), after("budget"), number("budget")) == (None, "link", None, 8)
    assert all(before(after(step)) == step for step in list(STEPS)[:-1])
    assert State("done", "It is done.").aloud == "done"


def test_one_window_works_at_a_time(tmp_path: Path) -> None:
    desk, first, second = Desk(tmp_path), object(), object()
    assert desk.enter(first)
    assert not desk.enter(second)
    desk.leave(second)  # who only waited takes nobody's place with it
    assert desk.holds(first)
    desk.take(second)
    assert (desk.holds(first), desk.holds(second)) == (False, True)
    desk.leave(first)
    assert not desk.enter(first)
    desk.leave(second)
    assert desk.enter(first)


def test_a_study_that_is_named_is_opened(tmp_path: Path) -> None:
    save_workspace(tmp_path, WORK)
    assert (Desk(tmp_path).workspace.study, Desk(tmp_path).workspace.step) == ("a.toml", "link")
    assert (Desk(tmp_path, "b.toml").workspace.study, Desk(tmp_path, "b.toml").workspace.step) == ("b.toml", "study")


# --- in a browser ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_work_survives_a_reload_and_a_restart(start: Any, folder: Path) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    page.get_by_label("Epsilon of").fill("0.7")
    see(page, "Not saved")
    page.reload()
    see(page, "Not saved")
    assert page.get_by_label("Epsilon of").input_value() == "0.7"
    studio.kill()

    another = start()
    page = another.open()
    assert page.locator(".tab-pane.active").get_attribute("data-value") == "study"
    see(page, "Not saved")
    assert page.get_by_label("Epsilon of").input_value() == "0.7"
    assert "epsilon = 0.7" not in (folder / "study.toml").read_text()
    kept = json.loads((folder / NAME).read_text(encoding="utf-8"))
    assert "epsilon = 0.7" in kept["texts"]["study.toml"]


@pytest.mark.slow
def test_a_second_window_asks_before_it_takes_over(start: Any, folder: Path) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    page.get_by_label("Epsilon of").fill("0.7")
    see(page, "Not saved")
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("heading", name="The studio is open in another window").wait_for()
    assert not other.locator(".tab-pane.active").is_visible()
    other.get_by_role("button", name="Go on in this window").click()
    see(other, "Not saved")
    settle(other)
    assert other.get_by_label("Epsilon of").input_value() == "0.7"
    page.get_by_role("heading", name="The studio is open in another window").wait_for()
    settle(other)
    other.get_by_label("Epsilon of").fill("0.8")
    wait_for(lambda: "epsilon = 0.8" in load_workspace(folder).texts["study.toml"])
    other.close()  # then the first one goes on by itself, with what was done in the other
    page.locator(".elsewhere").wait_for(state="detached")
    wait_for(lambda: page.get_by_label("Epsilon of").input_value() == "0.8")


@pytest.mark.slow
def test_steps_say_what_is_missing_and_lead_on(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    page = start().open()
    see(
        page,
        re.compile(r"Step 1 of 8\. Choose the file with the regressors and the file with the response\."),
        ".state",
    )
    page.get_by_role("button", name="Next: Link").click()
    page.locator(".tab-pane.active[data-value=link]").wait_for()
    page.wait_for_function("() => document.activeElement.textContent == 'Link'")
    page.get_by_role("button", name="Back: Files").click()
    page.locator(".tab-pane.active[data-value=files]").wait_for()
    go(page, "study")
    page.reload()
    page.locator(".tab-pane.active[data-value=study]").wait_for()
