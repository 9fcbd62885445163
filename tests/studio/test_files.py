"""The page *Files*: which files there are, how they are written, what their columns hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browsing import go, look, see

import dplinked as dpl
from dplinked.check.files import check_file, suggest_options
from dplinked.simulate import two_files
from dplinked.studio.desk import Fault
from dplinked.studio.files_page import as_python, data_files, facts_of, in_python, is_same, look_into

CSV = "id;name;born;income;region;member;empty\n" + "".join(
    f"{k};person {k};{1950 + k % 40}-0{1 + k % 9}-11;{1000 + k},5;{'north' if k % 2 else 'south'};{'x' if k % 3 else ''};\n"
    for k in range(60)
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "people.csv").write_text(CSV, encoding="latin-1")
    return tmp_path / "people.csv"


def test_a_file_tells_how_it_is_written_and_what_it_holds(written: Path) -> None:
    options = suggest_options(written)
    assert options == {"separator": ";", "decimal": ","}
    facts = check_file(dpl.File(written, **options))
    assert facts.rows == 60
    kinds = {one.name: one.kind for one in facts.columns}
    assert kinds == {"id": "numbers", "name": "texts", "born": "dates", "income": "numbers", "region": "levels", "member": "levels", "empty": "levels"}  # fmt: skip
    seen = {one.name: one for one in facts.columns}
    assert seen["member"].missing == pytest.approx(1 / 3)
    assert (seen["empty"].missing, seen["income"].missing, seen["income"].distinct) == (1.0, 0.0, 60)


def test_no_value_of_a_column_is_told(written: Path) -> None:
    """Bounds that are read off the page would come from the data."""
    told = repr(check_file(dpl.File(written, separator=";", decimal=",")))
    assert not any(value in told for value in ("1000", "1059", "north", "1950", "person"))


def test_parquet_is_read_by_its_first_rows(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, None], "yes": [True, False], "day": pa.array([0, 1], pa.date32())})
    pq.write_table(table, tmp_path / "t.parquet")
    facts = check_file(tmp_path / "t.parquet")
    assert [(one.kind, one.missing, one.distinct) for one in facts.columns] == [
        ("numbers", 0.5, 1),
        ("yes or no", 0.0, 2),
        ("dates", 0.0, 2),
    ]
    pq.write_table(table.slice(0, 0), tmp_path / "t.parquet")
    assert facts_of(tmp_path / "t.parquet").rows == 0
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(dpl.StudyError, match="cannot be read as parquet"):
        facts_of(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(dpl.StudyError, match="There is no file"):
        facts_of(tmp_path / "t.parquet")


def test_a_file_is_read_again_when_it_has_changed(written: Path) -> None:
    written.write_text("id,b\n1,2\n")
    before = facts_of(written)
    assert facts_of(written) is before
    written.write_text("a\n1\n")
    assert (before.names, facts_of(written).names) == (["id", "b"], ["a"])


def test_a_file_of_headers_alone_is_of_no_use(tmp_path: Path) -> None:
    (tmp_path / "heads.csv").write_text("id,income\n")
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "heads.parquet")
    for name in ("heads.csv", "heads.parquet"):
        told = look_into(tmp_path / name)
        assert isinstance(told, Fault)
        assert told.text.startswith(f"'{name}' has no rows: it holds the names of columns")
    (tmp_path / "heads.csv").write_text("id,income\n1,2\n")
    assert look_into(tmp_path / "heads.csv") == check_file(tmp_path / "heads.csv")


def test_files_of_the_folder_are_listed(written: Path) -> None:
    folder = written.parent
    (folder / "linked").mkdir()
    for name in ("linked/linked.parquet", ".hidden.csv", "study.toml", "release.json", "b.xlsx"):
        (folder / name).write_text("")
    assert data_files(folder) == ["b.xlsx", "people.csv", "linked/linked.parquet"]


@pytest.mark.parametrize(
    "name", ["pipe.csv", "pipe.xlsx", "pipe.parquet", "a" * 5_000 + ".csv", "a\0b.csv", "\ud800.csv"]
)
def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    """A pipe that nobody writes to would never end."""
    path = tmp_path / name
    if name.startswith("pipe"):
        os.mkfifo(path)
    assert suggest_options(path) == {}
    for file in (path, dpl.File(path)):
        with pytest.raises(dpl.StudyError, match="There is no file"):
            facts_of(file)
    if "\0" not in name and "\ud800" not in name:
        with pytest.raises(dpl.StudyError, match="There is no file"):
            dpl.link(path, path, fields=["a"])


def test_one_file_on_both_sides_is_named_as_such(written: Path) -> None:
    (written.parent / "again.csv").symlink_to(written)
    other = written.parent / "other.csv"
    other.write_bytes(written.read_bytes())
    assert is_same(written, written.parent / "again.csv")
    assert is_same(dpl.File(written, separator=";"), dpl.File(written.parent / ".." / written.parent.name / "people.csv", separator=";"))  # fmt: skip
    assert not is_same(written, other)
    assert not is_same(written, dpl.File(written, separator=";"))
    assert not is_same(written, written.parent / "absent.csv")
    assert not is_same(written, None)


def test_the_lines_outside_read_the_same_file(written: Path) -> None:
    file = dpl.File(written, separator=";", decimal=",")
    lines = in_python([file, written], written.parent)
    code = f"{lines}\nfrom dplinked.check.files import check_file\nprint(check_file(left).rows, right)"
    run = subprocess.run([sys.executable, "-c", code], cwd=written.parent, capture_output=True, text=True, check=True)
    assert run.stdout == "60 people.csv\n"
    assert as_python(Path("/elsewhere/a.csv"), written.parent) == "'/elsewhere/a.csv'"


# --- in a browser ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_are_chosen_and_seen(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    files = two_files(300, seed=1)
    for name, table in (("incomes.csv", files.left), ("spending.csv", files.right)):
        pa.table(table).to_pandas().to_csv(folder / name, sep=";", decimal=",", index=False)
    page = start().open()
    see(page, "Choose the file with the regressors", ".state")
    look(page, axe, "empty")
    (folder / "late.csv").write_text(CSV)  # while the page is open
    page.locator("#pick_left option[value='late.csv']").wait_for(state="attached")
    page.locator("#pick_left").select_option("late.csv")
    see(page, "Choose the file with the response.", ".state")
    (folder / "late.csv").unlink()
    page.locator("#pick_left option", has_text="late.csv, which is gone").wait_for(state="attached")
    see(page, "There is no file 'late.csv'", ".bad")
    page.locator("#pick_left").select_option("incomes.csv")
    see(page, "300 rows, 12 columns.", "p")
    see(page, "Choose the file with the response.", ".state")
    page.locator("#pick_right").select_option("…")
    page.locator("#path_right").fill("absent.csv")
    page.locator("#path_right").press("Tab")
    see(page, "There is no file 'absent.csv'", ".bad")
    page.locator("#path_right").fill("spending.csv")
    page.locator("#path_right").press("Tab")
    see(page, "The files are chosen and can be read.", ".state")
    assert page.locator("#separator_left").input_value() == ";"
    assert page.locator("tr", has_text="income").first.locator("td").first.inner_text() == "numbers"
    look(page, axe, "chosen")
    page.locator("#decimal_left").select_option(".")
    page.locator("tr", has_text="income").first.locator("td", has_text="texts").wait_for()
    page.reload()
    page.locator("tr", has_text="income").first.locator("td", has_text="texts").wait_for()
    assert page.locator("#pick_left").input_value() == "incomes.csv"

    page.get_by_label("One file whose rows are linked already").check()
    page.locator("#pick_linked").select_option("linked.parquet")
    see(page, "2,000 rows", "p")
    go(page, "study")
    see(page, 'path = "linked.parquet"', "pre")


@pytest.mark.slow
def test_a_file_of_headers_alone_is_told_beside_its_field(start: Any, folder: Path) -> None:
    (folder / "heads.csv").write_text("id,name,income\n")
    (folder / "people.csv").write_text(CSV)
    page = start().open()
    page.locator("#pick_left").select_option("heads.csv")
    page.locator("#seen_left .bad", has_text="'heads.csv' has no rows").wait_for()
    page.locator("#pick_right").select_option("people.csv")
    see(page, "60 rows", "p")
    see(page, "A file cannot be used: see below what is wrong.", ".state")
    (folder / "heads.csv").write_text("id,name,income\n1,Ann,5\n")  # while the page is open
    see(page, "The files are chosen and can be read.", ".state")
    assert page.locator("#seen_left .bad").count() == 0


@pytest.mark.slow
def test_typed_paths_neither_hang_nor_break_the_page(start: Any, folder: Path) -> None:
    os.mkfifo(folder / "pipe.csv")
    (folder / "people.csv").write_text(CSV)
    page = start().open()
    see(page, "Choose the file with the regressors", ".state")
    page.evaluate("Shiny.setInputValue('pick_left', {a: 1}); Shiny.setInputValue('way', ['odd'])")
    for path in ("pipe.csv", "a" * 5_000 + ".csv"):
        page.locator("#pick_left").select_option("…")
        page.locator("#path_left").fill(path)
        page.locator("#path_left").blur()
        see(page, "There is no file", "p")
    page.locator("#pick_left").select_option("people.csv")
    page.locator("#pick_right").select_option("people.csv")
    see(page, "Both files are the same one", ".state")
    go(page, "link")
    see(page, "Both files are the same one", "p")
