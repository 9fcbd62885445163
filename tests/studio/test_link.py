"""The page *Link*: what is asked for, what is wrong with it, and linking."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from browsing import VIEWS, go, look, see, settle, wait_for

import dplinked as dpl
from dplinked.data.arrow import column_origins
from dplinked.errors import StudyError
from dplinked.linker.reviewing import open_review
from dplinked.linker.suggest import suggest_fields
from dplinked.simulate import two_files
from dplinked.studio.desk import Desk, Fault
from dplinked.studio.draft import BLANK, Draft
from dplinked.studio.link_form import Files, answers_fault, find_faults, request_of, values_of
from dplinked.studio.linking import Price, Request, data_changes, link_files, take_accuracy, was_written
from dplinked.studio.workspace import Workspace, save_workspace

SEMICOLONS = {"separator": ";", "decimal": ","}
LEFT, RIGHT = {"path": "incomes.csv", "options": SEMICOLONS}, {"path": "spending.csv", "options": SEMICOLONS}
REQUEST = Request(
    LEFT, RIGHT, (("given_name", "first", "name"), ("surname", "surname", "name"), ("date_of_birth", "born on", "date")),
    ("id", "rid"), ("state",), size=120,
)  # fmt: skip
NAMES = {"id": "rid", "given_name": "first", "date_of_birth": "born on"}


def write_files(folder: Path, rows: int = 400, renamed: bool = True) -> None:
    """Two files with semicolons and decimal commas, some of whose columns have other names in the second one."""
    files = two_files(rows, seed=1, errors=2.0)
    other = pa.table(files.right).rename_columns(NAMES if renamed else {})
    for name, table in (("incomes.csv", pa.table(files.left)), ("spending.csv", other)):
        table.to_pandas().to_csv(folder / name, sep=";", decimal=",", index=False)


def silent(title: str, done: int, total: int) -> None:
    """A job's progress that nobody looks at."""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


def files_in(folder: Path) -> Files:
    left, right = (
        pa.table(pa.csv.read_csv(folder / side["path"], parse_options=pa.csv.ParseOptions(delimiter=";")))
        for side in (LEFT, RIGHT)
    )
    return Files(LEFT, RIGHT, (left, right), suggest_fields(left, right))


# --- what is asked for -------------------------------------------------------------------------------


def test_what_was_asked_for_is_kept() -> None:
    for asked in (REQUEST, replace(REQUEST, id=None, block=(), carriers=3, overlap=0.5, threshold=2.0, secret=True)):
        assert Request.from_kept(asked.kept()) == asked
    for kept in (None, 3, {}, {"fields": []}, {**REQUEST.kept(), "more": 1}, {**REQUEST.kept(), "id": []}):
        assert Request.from_kept(kept) is None


def test_the_lines_outside_do_the_same(written: Path) -> None:
    """The command and the Python lines write the very rows that the page writes."""
    link_files(REQUEST, written, silent)
    page = pq.read_table(written / "linked" / "linked.parquet")
    audit = (written / "linked" / "audit.csv").read_bytes()
    command = REQUEST.in_shell()
    assert command is not None
    assert "--field 'date_of_birth=born on:date'" in command
    for folder, line in (("shell", command), ("python", REQUEST.in_python(written))):
        words = shlex.split(line) if folder == "shell" else []
        run = [sys.executable, "-m", "dplinked.cli", *words[1:]] if words else [sys.executable, "-c", line]
        (written / "linked").rename(written / f"before {folder}")
        subprocess.run(run, cwd=written, capture_output=True, check=True)
        assert pq.read_table(written / "linked" / "linked.parquet").equals(page, check_metadata=True)
        assert (written / "linked" / "audit.csv").read_bytes() == audit


def test_how_files_are_written_is_said_in_a_command() -> None:
    def options(left: Any, right: Any) -> str | None:
        command = replace(REQUEST, left=left, right=right).in_shell()
        return None if command is None else command.split("--out linked ")[1].split("--field")[0].strip()

    plain = {"path": "b.csv"}
    assert options(LEFT, RIGHT) == "--separator ';' --decimal ,"
    assert options(LEFT, plain) == "--separator ';' --separator , --decimal , --decimal ."
    assert options({"path": "a.tsv"}, LEFT) == "--separator tab --separator ';' --decimal . --decimal ,"
    assert options(LEFT, {"path": "b.xlsx", "options": {"sheet": "2"}}) == "--separator ';' --decimal , --sheet 2"
    assert options({"path": "a.csv", "options": {"thousands": "."}}, plain) is None
    assert replace(REQUEST, fields=(("a=b", "a=b", "name"),)).in_shell() is None


def test_a_secret_sample_and_its_price_are_said() -> None:
    secret = replace(REQUEST, secret=True)
    assert str(secret.in_shell()).endswith("--audit-sample 120 --audit-key linked-audit.key")
    price = Price(0.3, 1e-6, 2, Path("/f/budget.db"), "households")
    words = str(secret.in_shell("--audited", "linked/audit.csv", *price.options(Path("/f"))))
    assert words.endswith(
        "--audited linked/audit.csv --release-accuracy 0.3 --delta 1e-06 --displaced-links 2 --ledger budget.db "
        "--population households --audit-sample 120 --audit-key linked-audit.key"
    )
    assert "ledger='budget.db', population='households'" in price.arguments(Path("/f"))


def test_the_study_is_about_the_linked_rows(written: Path) -> None:
    """How good the links are is left to be said: what linking estimates is no public value."""
    before = BLANK.replace("[data]\n", '[data]\npath = "old.csv"\nseparator = ";"\n')
    before = before.replace("[linkage]\n", '[linkage]\naccuracy = 0.5\nsource = "identifiers"\n')
    link_files(REQUEST, written, silent)
    text = Draft(0, "", before).changed(data_changes(Draft(0, "", before), REQUEST, written))
    draft = Draft(0, "", text)
    assert draft.sections is not None
    assert draft.sections["data"] == {"path": "linked/linked.parquet"}
    assert draft.sections["linkage"] == {
        "block": "link_block",
        "fields": ["given_name", "first", "surname", "date_of_birth", "born on", "state"],
    }
    assert was_written(written / "linked", 0.0)
    assert not was_written(written / "linked", 1e12)


# --- what is wrong -------------------------------------------------------------------------------------


def test_suggestions_can_be_linked(written: Path) -> None:
    files = files_in(written)
    values = values_of({}, files)
    asked = request_of(values, files)
    assert asked.id == ("id", "rid")
    assert asked.block == ("state",)
    assert ("date_of_birth", "born on", "date") in asked.fields
    assert find_faults(asked, values, files, written) == {}


@pytest.mark.parametrize(
    ("field", "changed", "text"),
    [("fields", {"fields": ()}, "at least one column"), ("threshold", {"threshold": 9.0}, "at most 3"), ("overlap", {"overlap": 1.5}, "up to 100"),
     ("threshold", {"method": "splink", "threshold": 1.0}, "between 0 and 1"), ("carriers", {"carriers": 0}, "from 2 to 100"), ("out", {"out": "../a"}, "name of a folder"),
     ("out", {"out": "incomes.csv"}, "This is a file"), ("out", {"out": ""}, "name of a folder"), ("size", {"size": 10}, "draw 50 or more"),
     ("size", {"size": 0, "secret": True}, "A secret sample has links"), ("block", {"block": ("income",)}, "not in the right file"),
     ("field surname", {"fields": (("surname", "rid", "name"),)}, "names a record"), ("field income", {"fields": (("income", "empty", "text"),)}, "no values in the second file")],
)  # fmt: skip
def test_faults_stand_beside_their_fields(written: Path, field: str, changed: dict[str, Any], text: str) -> None:
    files = files_in(written)
    right = files.tables[1].append_column("empty", pa.nulls(files.tables[1].num_rows, pa.string()))
    files = replace(files, tables=(files.tables[0], right))
    asked = replace(REQUEST, **changed)
    found = find_faults(asked, values_of({}, files), files, written)
    assert set(found) == {field}
    assert text.replace("right file", "second file") in found[field]


def test_ids_must_differ_and_be_two(written: Path) -> None:
    files = files_in(written)
    left = pa.concat_tables([files.tables[0], files.tables[0].slice(0, 1)])
    files = replace(files, tables=(left, files.tables[1]))
    values = {**values_of({}, files), "ids": ["id", "rid"]}
    found = find_faults(REQUEST, values, files, written)
    assert set(found) == {"id_left"}
    assert "of the first file must be there and differ" in found["id_left"]
    one = {**values, "ids": ["", "rid"]}
    assert find_faults(request_of(one, files), one, files, written)["id_left"].startswith("Name the column")


class Chosen:
    """What the page *Files* tells of two files that were chosen."""

    def __init__(self, left: Path, right: Path) -> None:
        self.sides = {"left": left, "right": right}

    def source(self, side: str) -> Path:
        return self.sides[side]

    def kept(self, page: str) -> dict[str, Any]:
        return {side: {"path": path.name} for side, path in self.sides.items()}


def test_encoded_files_are_led_to_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("shiny", reason="the studio needs Shiny: pip install 'dplinked[studio]'")
    from dplinked.studio.link_page import files_of

    found = files_of(Chosen(tmp_path / "a.clk", tmp_path / "b.clk"))
    assert isinstance(found, Fault)
    assert "dplinked link LEFT.clk RIGHT.clk" in found.text
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("name,born\nx,y\n")
    found = files_of(Chosen(tmp_path / "a.csv", tmp_path / "b.csv"))
    assert isinstance(found, Files)
    assert found.names == (["name", "born"], ["name", "born"])


def test_answers_are_not_drawn_over(written: Path) -> None:
    link_files(REQUEST, written, silent)
    assert answers_fault(REQUEST, written) is None
    review = open_review(written / "linked")
    review.answer(review.places[0], "yes")
    assert "holds answers of a review" in str(answers_fault(REQUEST, written))
    assert answers_fault(replace(REQUEST, size=0), written) is None
    assert answers_fault(replace(REQUEST, out="other"), written) is None


def test_answers_are_kept_for_the_links_that_they_are_about(written: Path) -> None:
    """With no links to draw, the list of before stays if the links are the same; answers to others would only be refused later."""
    link_files(REQUEST, written, silent)
    kept, other = replace(REQUEST, size=0), replace(REQUEST, size=0, fields=REQUEST.fields[:1], block=())
    review = open_review(written / "linked")
    for place in review.places:
        review.answer(place, "yes")
    before = {path.name: path.read_bytes() for path in (written / "linked").iterdir()}
    assert "if the links stay the same" in str(answers_fault(REQUEST, written))
    with pytest.raises(StudyError, match="about other links"):
        link_files(other, written, silent)
    assert {path.name: path.read_bytes() for path in (written / "linked").iterdir()} == before
    link_files(kept, written, silent)
    assert take_accuracy(Desk(written), kept, None, silent).source == "identifiers"

    review.empty(range(len(review.ids)))
    link_files(other, written, silent)
    assert not (written / "linked" / "audit.csv").exists()


def test_answers_to_a_secret_sample_are_not_kept_without_it(written: Path) -> None:
    link_files(replace(REQUEST, secret=True), written, silent)
    review = open_review(written / "linked")
    review.answer(review.places[0], "yes")
    with pytest.raises(StudyError, match="drawn in secret"):
        link_files(replace(REQUEST, size=0), written, silent)


def test_linking_that_is_stopped_writes_nothing(written: Path) -> None:
    def stop(title: str, done: int, total: int) -> None:
        if title == "Judging the links":
            raise StudyError("Stopped.")

    with pytest.raises(dpl.StudyError, match="Stopped"):
        link_files(REQUEST, written, stop)
    assert not (written / "linked").exists()


# --- in a browser ----------------------------------------------------------------------------------------


def choose(page: Any, left: str = "incomes.csv", right: str = "spending.csv") -> None:
    """Choose two files and turn to the page *Link*."""
    settle(page)
    page.locator("#pick_left").select_option(left)
    page.locator("#seen_left table").wait_for()
    page.locator("#pick_right").select_option(right)
    see(page, "The files are chosen and can be read.", ".state")
    go(page, "link")


@pytest.mark.slow
def test_two_files_are_linked(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    (folder / "study.toml").unlink()
    write_files(folder, 1_500)
    page = start().open()
    see(page, "Choose", ".state")
    go(page, "link")
    see(page, "Choose two files first.", ".state")
    look(page, axe, "missing")
    go(page, "files")
    choose(page)
    see(page, "The files are not linked yet.", ".state")
    see(page, "1,500 rows of the first file are linked to 1,500 of the second.", "p")
    see(page, re.compile(r"\d+ blocks by 'state' are in both files\."), "p")
    assert page.get_by_label("date_of_birth: the same in the second file").input_value() == "born on"
    assert page.get_by_label("given_name: compared as").input_value() == "name"
    page.locator(".tab-pane.active summary", has_text="Further settings").click()
    look(page, axe, "form")
    page.get_by_label("national_id: the same in the second file").select_option("")
    page.get_by_role("button", name="Link", exact=True).click()
    see(page, "The files are linked.", ".state")
    frame = page.frame_locator("iframe.report")
    frame.get_by_text("How good are the links?").first.wait_for()
    see(page, "All 1,500 rows found a partner.", "p")
    page.locator("th", has_text="within blocks").wait_for()
    look(page, axe, "found")
    compared = column_origins(pq.read_schema(folder / "linked" / "linked.parquet")).compared
    assert {"surname", "born on"} <= compared
    assert "national_id" not in compared
    page.locator(".tab-pane.active summary", has_text="The same outside").click()
    see(page, "dplinked link incomes.csv spending.csv --out linked", "pre")
    look(page, axe, "outside")
    page.reload()
    see(page, "The files are linked.", ".state")
    page.frame_locator("iframe.report").get_by_text("How good are the links?").first.wait_for()
    assert page.get_by_label("national_id: the same in the second file").input_value() == ""
    go(page, "study")
    see(page, 'path = "linked/linked.parquet"', "pre")
    go(page, "link")
    page.get_by_label("suburb: the same in the second file").select_option("")
    see(page, "The settings were changed since the files were linked.", ".state")
    page.get_by_role("button", name="Link again").wait_for()


@pytest.mark.slow
def test_what_cannot_be_linked_is_said_beside_its_field(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    write_files(folder)
    lines = (folder / "incomes.csv").read_text().splitlines()
    (folder / "twice.csv").write_text("\n".join([*lines, lines[-1]]) + "\n")
    (folder / "else.csv").write_text("p;q\n1;2\n3;4\n")
    page = start().open()
    see(page, "Choose", ".state")
    choose(page, "twice.csv")
    page.get_by_label("Column that names a record, in the first file").select_option("id")
    see(page, "of the first file must be there and differ", ".fault")
    see(page, "Say which columns name a record: something is missing or does not fit.", ".state")
    page.get_by_role("button", name="Link", exact=True).click()
    see(page, "see beside the fields above", ".bad")
    look(page, axe, "id twice", VIEWS[:1])
    assert not (folder / "linked").exists()

    go(page, "files")
    choose(page, "else.csv")
    see(page, "Choose at least one column to compare.", ".fault")
    page.get_by_label("Links to draw").fill("1")
    see(page, "draw 2 or more", ".fault")
    page.get_by_label("may belong to several rows").check()
    see(page, "Say a whole number from 2 to 100", ".fault")
    page.get_by_label("Folder for the linked rows").fill("a/b")
    see(page, "This is the name of a folder", ".fault")
    look(page, axe, "faults", VIEWS[:1])

    (folder / "else.csv").unlink()
    page.reload()
    go(page, "link")
    see(page, "There is no file 'else.csv'", ".bad")
    look(page, axe, "no file", VIEWS[:1])
    go(page, "files")
    page.get_by_label("One file whose rows are linked already").check()
    go(page, "link")
    see(page, "Your rows are linked already.", ".state")


@pytest.mark.slow
def test_another_study_can_take_the_linked_rows(start: Any, folder: Path) -> None:
    """Linking told the study that was open then; which one is open now is said by its name."""
    write_files(folder)
    last = {"request": REQUEST.kept(), "at": time.time()}
    link_files(REQUEST, folder, silent)
    link = {"asked": last, "linked": last, "told": last["at"]}
    pages = {"files": {"way": "two", "left": dict(LEFT), "right": dict(RIGHT)}, "link": link}
    save_workspace(folder, Workspace("link", pages=pages))
    page = start(folder / "study.toml").open()
    go(page, "link")
    see(page, "study.toml, the study that is open now, is not about them.", ".warning")
    page.get_by_role("button", name="Use them in study.toml").click()
    see(page, "They are the data of study.toml.", ".good")
    page.get_by_label("Links to draw").fill("1")
    see(page, "Say how many links are drawn for a review: something is missing or does not fit.", ".state")
    go(page, "study")
    see(page, 'path = "linked/linked.parquet"', "pre")


HELD = """
import time
from pathlib import Path
from dplinked.studio import link_page
link = link_page.link_files
def held(request, folder, progress):
    def tell(*step):
        progress(*step)
        end = time.monotonic() + 600
        while Path("hold").exists() and time.monotonic() < end:
            time.sleep(.02)
            progress(*step)
    return link(request, folder, tell)
link_page.link_files = held
"""


@pytest.mark.slow
def test_one_job_at_a_time_and_linking_is_stopped(start: Any, folder: Path) -> None:
    """A job goes on over a reload; while it runs no release is made, and it can be stopped. It waits where it tells its progress, as long as a file is there."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    write_files(folder, 6_000)
    (folder / "hold").touch()
    page = start(folder / "study.toml", before=HELD).open()
    see(page, "The study is complete", ".state")
    go(page, "files")
    choose(page)
    page.get_by_label("state", exact=True).uncheck()
    see(page, "Without blocks there are 36,000,000 pairs", "p")
    page.get_by_role("button", name="Link", exact=True).click()
    see(page, "The files are being linked.", ".state")
    page.reload()
    see(page, "The files are being linked.", ".state")
    page.get_by_role("button", name="Stop").wait_for()
    look(page, axe, "running", VIEWS[:1])
    go(page, "release")
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").click()
    see(page, "Something is running already", ".bad")
    assert len(dpl.Ledger(folder / "budget.db").events()) == 2
    go(page, "link")
    page.get_by_role("button", name="Stop").click()
    see(page, "Stopped. Nothing was written.", ".bad")
    assert not (folder / "linked").exists()
    wait_for(lambda: page.get_by_role("button", name="Link", exact=True).count() == 1)
    (folder / "hold").unlink()

    # what was linked before is not lost with a linkage that is stopped
    page.get_by_label("state", exact=True).check()
    page.get_by_role("button", name="Link", exact=True).click()
    see(page, "The files are linked.", ".state")
    (folder / "hold").touch()
    page.get_by_label("state", exact=True).uncheck()
    page.get_by_role("button", name="Link again").click()
    page.get_by_role("button", name="Stop").click()
    see(page, "Stopped. Nothing was written.", ".bad")
    see(page, "The settings were changed since the files were linked.", ".state")
    go(page, "review")
    see(page, "links are answered.", ".state")
