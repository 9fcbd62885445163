"""Files as people have them: marks, encodings and kinds, read as declared, the same by every engine, and known again by a ledger."""

from __future__ import annotations

import csv
import datetime
import gzip
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.data.arrow import with_numbers
from dplinked.data.csv import FROM_TEXT
from dplinked.data.files import find_files, read_file
from dplinked.data.fingerprint import source_place
from dplinked.data.look import look_at
from dplinked.sums.engine import open_source
from dplinked.sums.numpy.tables import Tables
from dplinked.sums.sql.duckdb import open_data as open_by_duckdb
from neighbours import CONTAINERS

TEXT = 'name;amount;other\nMüller;"1.234,5";31.12.2020\nÉlan;12,5;0123\n;1.234;-5,25\nx;12.5;1 234,0\nlast;;5e2\n'
ENCODINGS = ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le"]


def by_duckdb(file: dpl.File) -> list[dict[str, Any]]:
    rows = open_by_duckdb(find_files(file))
    found = rows._engine.run(f"select * from {rows._source}")
    return sorted((dict(zip(rows.columns, row, strict=True)) for row in found), key=repr)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_marks_and_encodings_are_read_as_declared_by_every_engine(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT.encode(encoding))
    file = dpl.File(tmp_path / "a.csv", separator=";", decimal=",", thousands=".", encoding=encoding)
    found = read_file(file, None)[0].to_pylist()
    assert [row["name"] for row in found] == ["Müller", "Élan", None, "x", "last"]
    # 12.5 is no number where the decimal mark is a comma, and dates, codes and other thousands stay as they are
    assert [row["amount"] for row in found] == ["1234.5", "12.5", "1234", "12,5", None]
    assert [row["other"] for row in found] == ["31.12.2020", "0123", "-5.25", "1 234,0", "5e2"]
    assert by_duckdb(file) == sorted(found, key=repr)


@pytest.mark.parametrize(
    ("options", "cell", "text"),
    [
        ({"decimal": ","}, "1234,5", "1234.5"),
        ({"decimal": ","}, "1.234", "1,234"),  # no number, rather than one that is a thousand times too small
        ({"decimal": ","}, "1.234,5", "1.234,5"),
        ({"thousands": ","}, "1,234,567.25", "1234567.25"),
        ({"thousands": ","}, "1,23", "1,23"),
        ({"thousands": " ", "decimal": ","}, "1\u202f234\u00a0567,5", "1234567.5"),
        ({"thousands": "'"}, "1'234", "1234"),
        ({"thousands": "."  , "decimal": ","}, "-1.234,", "-1234."),
        ({}, "1,5", "1,5"),
        ({}, "1.5", "1.5"),
    ],
)  # fmt: skip
def test_each_number_is_read_by_itself(tmp_path: Path, options: dict[str, str], cell: str, text: str) -> None:
    (tmp_path / "a.csv").write_text(f"x;y\n{cell};word\n", encoding="utf-8")
    file = dpl.File(tmp_path / "a.csv", separator=";", **options)
    assert read_file(file, None)[0].to_pylist() == [{"x": text, "y": "word"}] == by_duckdb(file)


def test_bytes_that_are_no_text_stop_nothing(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "b.tsv.gz", "wb") as file:
        file.write(b"a\tb\n1\t\xff2,5\n\xff3,5\t4,5\n")
    found = read_file(dpl.File(tmp_path / "b.tsv.gz", decimal=","), None)[0]
    assert found.column("b").cast(pa.binary()).to_pylist() == [b"\xff2,5", b"4.5"]


def test_sheets_are_read_cell_by_cell(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    first = book.active
    for row in [
        ["x", "code", "day", None],
        [1.5, "007", datetime.datetime(2020, 1, 1)],
        [2, None, "n/a", "beyond the names"],
        [None, None, None],
    ]:
        first.append(row)
    first["A4"].font = openpyxl.styles.Font(bold=True)  # an empty row that the sheet has counts
    book.create_sheet("two").append(["k"])
    book.save(tmp_path / "a.xlsx")
    table, known = read_file(tmp_path / "a.xlsx", ["code", "x"])
    assert known == ["x", "code", "day"]
    assert table.to_pylist() == [
        {"code": "007", "x": "1.5"},
        {"code": None, "x": "2"},
        {"code": None, "x": None},
    ]
    assert read_file(dpl.File(tmp_path / "a.xlsx", sheet=2), None)[1] == ["k"]
    for sheet in ("three", 9):
        with pytest.raises(dpl.StudyError, match="There is no sheet"):
            read_file(dpl.File(tmp_path / "a.xlsx", sheet=sheet), None)


def test_files_of_other_programs_have_types(tmp_path: Path) -> None:
    pyreadstat, pandas = pytest.importorskip("pyreadstat"), pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "x": [1.5, None, 3.0],
            "s": ["a", "", "Ü"],
            "d": [datetime.date(2020, 1, 1), None, datetime.date(1955, 6, 7)],
            "t": pandas.to_datetime(["2020-01-01 05:30", None, "1955-06-07 23:59"]),
        }
    )
    for ending, write in (("dta", "write_dta"), ("sav", "write_sav"), ("xpt", "write_xport")):
        getattr(pyreadstat, write)(frame, str(tmp_path / f"a.{ending}"))
        table, known = read_file(tmp_path / f"a.{ending}", None)
        assert known == ["x", "s", "d", "t"]
        assert table.column("x").to_pylist() == [1.5, None, 3.0]
        assert table.column("s").to_pylist() == ["a", None, "Ü"]
        assert table.column("d").to_pylist() == frame["d"].tolist()
        assert table.column("t").to_pylist()[0] == datetime.datetime(2020, 1, 1, 5, 30)
        assert table.column("t").to_pylist()[1] is None


@pytest.mark.parametrize("ending", [".xlsx", ".dta", ".sav", ".sas7bdat", ".csv.gz"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"bad{ending}"
    path.write_bytes(b"SECRET nope\n" * 20)
    with pytest.raises(dpl.StudyError, match="cannot be read as") as fault:
        read_file(path, None)
    assert "SECRET" not in str(fault.value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a.csv", {"separator": "x"}, "separator must be one of"),
        ("a.csv", {"encoding": "rot13"}, "encoding must be that of a text"),
        ("a.csv", {"encoding": "nope"}, "encoding must be that of a text"),
        ("a.csv", {"decimal": ",", "thousands": ","}, "both ','"),
        ("a.csv", {"sheet": 1}, "sheet is for Excel files"),
        ("a.parquet", {"decimal": ","}, "decimal is for text files"),
        ("a.parquet", {"encoding": "latin-1"}, "encoding is for text files and those of Stata"),
        ("a.xlsx", {"sheet": True}, "sheet must be"),
    ],
)
def test_options_that_a_file_cannot_have_are_refused(tmp_path: Path, name: str, options: Any, said: str) -> None:
    (tmp_path / name).write_text("x\n1\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match=said):
        find_files(dpl.File(tmp_path / name, **options))


def test_how_a_file_is_written_is_part_of_its_place(tmp_path: Path) -> None:
    """Other options make other rows of the same bytes, so a ledger knows a file together with them; a plain one is known as before."""
    (tmp_path / "a.csv").write_text("x;y\n1;2\n", encoding="utf-8")
    plain, declared = tmp_path / "a.csv", dpl.File(tmp_path / "a.csv", separator=";")
    assert source_place(plain) == ["path", "csv", str(plain.resolve())]
    assert source_place(dpl.File(plain, separator=",", encoding="utf-8")) == source_place(plain)
    assert source_place(declared) == ["path", "csv", str(plain.resolve()), {"separator": ";"}]
    ledger = dpl.Ledger.create(str(tmp_path / "b.db"), "all", epsilon=1, delta=1e-6)
    unit = dpl.PrivacyUnit()
    ledger.register(declared, linkage=dpl.Exact(), unit=unit)
    assert ledger.check_registered(declared, unit=unit)
    for other in (
        plain,
        dpl.File(plain, separator=";", decimal=","),
        dpl.File(plain, separator=";", encoding="utf-16"),
    ):
        with pytest.raises(dpl.LedgerError):
            ledger.check_registered(other, unit=unit)


@pytest.mark.parametrize("container", ["csv abroad", "sheet"])
def test_containers_of_the_replay_hold_what_they_are_given(tmp_path: Path, container: str) -> None:
    cells: dict[str, list[Any]] = {"x": [0.5, -1234.25, 1e-07, None, 3.0], "g": ["a", "b", None, "a", "1,5"]}
    rows = open_source(CONTAINERS[container](cells, tmp_path))
    assert isinstance(rows, Tables)
    assert rows.rows.numbers("x", 0, 5).tolist() == pytest.approx(
        [0.5, -1234.25, 1e-07, float("nan"), 3.0], nan_ok=True
    )
    assert rows.count_keys("g") == {"a": 2, "b": 1, None: 1, "1.5" if container == "csv abroad" else "1,5": 1}


# --- the steward's look ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding", "found"),
    [
        (TEXT, "latin-1", {"separator": ";", "decimal": ",", "thousands": ".", "encoding": "iso8859-1"}),
        ("a,b\n1.5,2\n3.25,x\n", "ascii", {"encoding": "ascii"}),
        ("a,b\n1.5,ü\n", "utf-8", {}),
        ("a\tb\nü\t2,5\n", "utf-16", {"separator": "\t", "decimal": ",", "encoding": "utf-16"}),
        ('a,b\n"1,234",€\n', "cp1252", {"thousands": ",", "encoding": "cp1252"}),
        ("a|b|c\nü|2|3\n", "utf-8", {"separator": "|"}),
        ("a;b\nü;1.234\n", "utf-8", {"separator": ";"}),  # may be a number with three decimals
    ],
)
def test_the_look_finds_how_a_text_is_written(tmp_path: Path, text: str, encoding: str, found: dict[str, str]) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    look = look_at(tmp_path / "a.csv")
    assert look is not None
    assert look.format.options() == found
    told = dpl.File(tmp_path / "a.csv", **{key: value for key, value in found.items() if value != "ascii"})
    assert look.advice(told.format) == {}


def people(path: Path, names: list[str], *, mark: str, encoding: str, side: str) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        write = csv.writer(file, delimiter=";")
        write.writerow(["nr", "surname", "postcode", "amount" if side == "left" else "spent", "phone"])
        for k, name in enumerate(names):
            write.writerow([k, name, f"0{k % 10}123", f"{k}{mark}5", f"+49{k}"])


def test_link_says_how_files_are_written_and_makes_numbers(tmp_path: Path) -> None:
    names = [f"Mül{'abcdefghij'[k % 10]}{'klmnopqrst'[k // 10]}er" for k in range(60)]
    left, right = tmp_path / "left.csv", tmp_path / "right.csv"
    people(left, names, mark=",", encoding="latin-1", side="left")
    people(right, names, mark=".", encoding="utf-8", side="right")
    with pytest.raises(dpl.StudyError, match="semicolons between cells") as fault:
        dpl.link(left, right, fields=["surname", "postcode"], id="nr")
    assert '--separator ";" --decimal , --encoding latin-1' in str(fault.value)
    files = (dpl.File(left, separator=";", encoding="latin-1"), dpl.File(right, separator=";"))
    with pytest.warns(UserWarning, match="decimal commas"):
        dpl.link(*files, fields=["surname", "postcode"], id="nr")
    files = (dpl.File(left, separator=";", encoding="latin-1", decimal=","), files[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linked = dpl.link(*files, fields=["surname", "postcode"], id="nr")
    pq.write_table(linked.rows, tmp_path / "linked.parquet")
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "linked.parquet")}
    assert types["amount"] == types["spent"] == "double"
    assert {types[name] for name in ("nr", "surname", "postcode", "postcode_right", "phone")} == {"string"}
    assert linked.rows.column("postcode")[0].as_py() == "00123"
    assert linked.rows.column("surname")[0].as_py() == names[0]
    assert linked.rows.column("amount")[1].as_py() == 1.5


def test_columns_that_hold_plain_numbers_become_numbers() -> None:
    cells: dict[str, list[str | None]] = {
        "whole": ["1", None, "-20"], "half": ["1.50", "2", None], "zero": ["007", "1", "2"], "plus": ["+1", "2", "3"],
        "long": ["1234567890123456", "1", "2"], "word": ["1", "x", "2"], "none": [None, None, None], "kept": ["1", "2", "3"],
    }  # fmt: skip
    fields = [pa.field(name, pa.string(), metadata=FROM_TEXT) for name in cells]
    table = pa.table([pa.array(column, pa.string()) for column in cells.values()], schema=pa.schema(fields))
    found = with_numbers(table, ["kept"])
    assert {field.name for field in found.schema if field.type != pa.string()} == {"whole", "half"}
    assert found.column("whole").to_pylist() == [1, None, -20]
    assert found.column("half").to_pylist() == [1.5, 2.0, None]
    assert not found.schema.field("half").metadata


# --- in a study ------------------------------------------------------------------------------------

STUDY = """
[data]
path = "{path}"
{options}
[model]
formula = "y ~ x"
[bounds]
x = [0, 10]
y = [0, 20]
[linkage]
model = "exact"
[privacy]
epsilon = 8.0
delta = 1e-6
"""


def test_a_study_fixes_how_its_file_is_written(tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w", encoding="utf-16", newline="") as file:
        csv.writer(file, delimiter=";").writerows(
            [["x", "y"], *([f"{k % 11},0", f"{2 * (k % 11) % 20},0"] for k in range(3000))]
        )
    options = 'separator = ";"\ndecimal = ","\nencoding = "utf-16"'
    (tmp_path / "study.toml").write_text(STUDY.format(path="rows.csv", options=options), encoding="utf-8")
    study = dpl.Study.from_toml(tmp_path / "study.toml")
    assert study.data == dpl.File(tmp_path / "rows.csv", separator=";", decimal=",", encoding="utf-16")
    assert dpl.fit_study(study, study.data).count == 3000
    (tmp_path / "other.toml").write_text(
        STUDY.format(path="rows.csv", options='decimal = ","').replace("path =", "spark ="), encoding="utf-8"
    )
    with pytest.raises(dpl.StudyError, match="belong to path"):
        dpl.Study.from_toml(tmp_path / "other.toml")


def test_missing_columns_are_listed_where_they_are_a_schema(tmp_path: Path) -> None:
    rows = {"Income": [1.0, 2.0], "age": [3.0, 4.0]}
    settings: dict[str, Any] = {
        "bounds": {"income": (0, 1), "age": (0, 1)},
        "linkage": dpl.Exact(),
        "epsilon": 1,
        "delta": 1e-6,
    }
    with pytest.raises(dpl.StudyError, match=r"Did you mean 'Income'\? It has the columns 'Income', 'age'\."):
        dpl.fit(rows, "income ~ age", **settings)
    (tmp_path / "rows.csv").write_text("SECRET,age\n1,2\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="The steward's 'check' lists its columns") as fault:
        dpl.fit(tmp_path / "rows.csv", "income ~ age", **settings)
    assert "SECRET" not in str(fault.value)


@pytest.mark.parametrize("columns", [2, 3])
def test_decimal_commas_in_all_columns_are_no_separators(tmp_path: Path, columns: int) -> None:
    """As many cells either way: names tell, which have no commas. A file that is declared as it is written is not refused."""
    from dplinked.data.look import look_at, tell_format

    lines = [";".join(f"{i},5" for _ in range(columns - 1)) for i in range(30)]
    names = ";".join(f"column{k}" for k in range(columns))
    path = tmp_path / "rows.csv"
    path.write_text(names + "\n" + "\n".join(f"0{i};{line}" for i, line in enumerate(lines)), encoding="utf-8")
    found = look_at(path)
    assert found is not None
    assert (found.format.separator, found.format.decimal) == (";", ",")
    tell_format(dpl.File(path, separator=";", decimal=","))
