"""The page *Check*: a missing file said at once, progress, findings beside what to do about them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browsing import VIEWS, go, look, see, wait_for

import dplinked as dpl
from dplinked.check.receipt import was_checked
from dplinked.studio.check_page import in_lines
from dplinked.studio.desk import Desk
from studies import STUDY, edit


def test_a_look_says_how_far_it_is(folder: Path) -> None:
    study, told = dpl.Study.from_toml(folder / "study.toml"), []
    dpl.check_study(study, study.data, progress=lambda *step: told.append(step))
    titles = [title for title, *_ in told]
    for title in ("The column income", "The column region", "What clipping does", "Blocks and clusters"):
        assert title in titles
    columns = [(done, total) for title, done, total in told if title.startswith("The column")]
    assert columns == [(0, 5), (1, 5), (2, 5)]


def test_what_wants_a_second_look_says_what_to_do(folder: Path) -> None:
    study = dpl.Study.from_toml(edit(folder, "[0, 150000]", "[0, 60000]"))
    check = dpl.check_study(study, study.data)
    (clipped,) = (one for one in check.findings if one.text.startswith("income: ") and "clipped to it" in one.text)
    assert "not to the rows' own" in clipped.remedy
    assert clipped.told.startswith(clipped.text)
    assert "not to the rows' own" in " ".join(check.summary().split())
    assert all(one.remedy == "" for one in check.findings if one.grade == 0)


def test_the_lines_outside_look_at_the_same(folder: Path) -> None:
    shell, python = in_lines("study.toml")

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout

    seen = run(sys.executable, "-c", python)
    told = run(*shell.replace("dplinked", f"{sys.executable} -m dplinked.cli").split())
    assert seen == told
    assert "2,000 rows" in seen


# --- in a browser ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_data_is_looked_at(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = start(edit(folder, "[0, 150000]", "[0, 60000]")).open()
    see(page, "The study is complete", ".state")
    go(page, "check")
    see(page, "Nobody has looked at the data with this study yet.", ".state")
    see(page, "For the steward alone, not for publication.", ".steward")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "Look again: a release would run", ".warning")
    see(page, "Some things want a second look.", ".state")
    finding = page.locator(".findings li", has_text="clipped to it").first
    assert "What to do: If these are real values, widen the bounds" in finding.inner_text()
    see(page, "2,000 rows; all declared columns are there", ".findings li")
    look(page, axe, "seen")
    assert was_checked(folder / "study.toml", dpl.Study.from_toml(folder / "study.toml").data)

    page.reload()  # what was seen is not lost with a window, and belongs to this text alone
    see(page, "Look again: a release would run", ".warning")
    go(page, "study")
    page.get_by_label("Epsilon of").fill("0.7")
    page.get_by_label("Epsilon of").press("Tab")
    see(page, "Not saved")
    go(page, "check")
    see(page, "The study has changed since. Look again.")
    see(page, "Nobody has looked at the data with this study yet.", ".state")


@pytest.mark.slow
def test_a_missing_file_is_said_at_once_and_a_bad_one_when_it_is_read(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = start(edit(folder, "linked.parquet", "later.parquet")).open()
    see(page, "To be mended: the data file.", ".state")
    go(page, "check")
    see(page, "later.parquet", ".bad")
    see(page, "Put it there, or choose another file", ".state")
    look(page, axe, "missing", VIEWS[:1])
    (folder / "later.parquet").write_bytes(b"PAR1 nothing")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "cannot be read as parquet", ".findings li")
    assert "'check' shows" not in page.locator(".tab-pane.active").inner_text()
    see(page, "The data is not usable as it is.", ".state")
    look(page, axe, "bad", VIEWS[:1])
    table = pq.read_table(folder / "linked.parquet")
    pq.write_table(table.rename_columns({"income": "incomes"}), folder / "later.parquet")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "Did you mean 'incomes'?", ".findings li")
    texts = pa.array(["?"] * 2_000)
    pq.write_table(table.set_column(table.column_names.index("income"), "income", texts), folder / "later.parquet")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "Not usable: a release would be refused", ".bad")


@pytest.mark.slow
def test_a_look_is_at_the_files_as_they_were(start: Any, folder: Path) -> None:
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    page = start(folder / "study.toml").open()
    see(page, "The study is complete", ".state")
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "Next, see what to expect.", ".state")
    table = pq.read_table(folder / "linked.parquet")
    pq.write_table(table.drop_columns(["income"]), folder / "linked.parquet")
    see(page, "The file has changed since. Look again.", ".warning")
    see(page, "Nobody has looked at the data with this study yet.", ".state")
    go(page, "release")
    see(page, "Nobody has looked at the data with this study as it stands", ".warning")
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "The data is not usable as it is.", ".state")
    go(page, "release")
    see(page, "Check found the data not usable as it is", ".warning")


HELD = """
import time
from pathlib import Path
from dplinked.studio import check_page
look = check_page.check_study
def held(study, data, progress):
    def tell(*step):
        progress(*step)
        end = time.monotonic() + 90
        while not Path("go").exists() and time.monotonic() < end:
            time.sleep(.02)
    return look(study, data, progress=tell)
check_page.check_study = held
"""


def test_a_look_shows_its_progress(start: Any, folder: Path) -> None:
    """The look waits at its first step until it was seen."""
    page = start(folder / "study.toml", before=HELD).open()
    see(page, "The study is complete", ".state")
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, re.compile(r"…"), "#check_running .note:has(progress)")
    (folder / "go").touch()
    see(page, "2,000 rows", ".findings li")
    page.locator("#check_running progress").wait_for(state="detached")


def test_only_one_job_runs_at_a_time(folder: Path) -> None:
    import threading

    going, desk = threading.Event(), Desk(folder)
    desk.start("release", lambda report: going.wait(90))
    with pytest.raises(dpl.StudyError, match="Something is running already"):
        desk.start("check", lambda report: None)
    going.set()
    wait_for(lambda: desk.job is not None and not desk.job.running)
