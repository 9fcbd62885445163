"""Bad input through the command line: what each fault says, its exit code, and what it costs.

Nothing is spent on faults of the study, schema, registration, ledger and output path. Rows cannot be at fault: whatever
their cells hold, the release succeeds and is charged once. What fails after the charge keeps it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.cli.main import main
from dplinked.data.table import Rows
from dplinked.errors import plain_faults
from dplinked.fitting import fit_study, release_mu
from dplinked.ledger.costs import cost
from dplinked.ledger.ledger import Ledger
from dplinked.simulate import linked_households, two_files
from studies import LEDGER_STUDY, edit

COLUMNS = ["income", "region", "state", "consumption"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    pq.write_table(pa.table(linked_households(300, 1)).select(COLUMNS), folder / "linked.parquet")
    (folder / "study.toml").write_text(LEDGER_STUDY, encoding="utf-8")
    Ledger.create(folder / "budget.db", "households", epsilon=5.0, delta=1e-5)
    return folder


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(base, tmp_path / "study"))
    register(folder, folder / "linked.parquet")
    return folder


def register(folder: Path, data: Path) -> None:
    """Register data with the links of the study."""
    linkage = dpl.Study.from_toml(folder / "study.toml").linkage
    Ledger(folder / "budget.db", "households").register(data, linkage=linkage)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The command line in this process, in a folder of its own: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))

    def run_main(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dplinked", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert "unexpected error" not in shown.err, stopped.value.__context__
        return int(stopped.value.code or 0), shown.out, " ".join(shown.err.split())

    return run_main


def charges(folder: Path) -> int:
    """Number of charges in the ledger; its chain holds, and units are those of the charges."""
    events = [event for event in Ledger(folder / "budget.db", "households").events() if event.kind == "charge"]
    assert Ledger(folder / "budget.db", "households").verify().spent == sum(event.units for event in events)
    return len(events)


def replace_data(folder: Path, data: pa.Table | bytes, name: str, *, registered: bool = True) -> Path:
    """Write other data, name it in the study, and register it."""
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif name.endswith(".csv"):
        pyarrow.csv.write_csv(data, path)
    else:
        pq.write_table(data, path)
    text = (folder / "study.toml").read_text(encoding="utf-8")
    (folder / "study.toml").write_text(re.sub(r'(?m)^path = ".*"', f'path = "{name}"', text), encoding="utf-8")
    if registered:
        register(folder, path)
    return path


def households(**columns: Any) -> pa.Table:
    table = pa.table(linked_households(300, 1)).select(COLUMNS)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def cells(name: str, *values: Any) -> pa.Table:
    """The households with the first cells of a column replaced."""
    column = households().column(name).to_pylist()
    return households(**{name: [*values, *column[len(values) :]]})


def as_csv(table: pa.Table) -> list[list[str]]:
    return [table.column_names, *(["" if v is None else str(v) for v in row.values()] for row in table.to_pylist())]


def csv_bytes(lines: list[list[str]], delimiter: str = ",", encoding: str = "utf-8") -> bytes:
    return "\n".join(delimiter.join(line) for line in [*lines, []]).encode(encoding)


def json_bytes(records: list[Any], *, lines: bool = False) -> bytes:
    return ("\n".join(map(json.dumps, records)) if lines else json.dumps(records)).encode()


# --- faults of the study: exit 2, nothing spent ---------------------------------------------------------

HUGE = "1" + "0" * 400
FORMULA = 'formula = "consumption ~ income + C(region)"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 1.0", "epsilon = 0", "epsilon must be"),
        ("epsilon = 1.0", "epsilon = -1.0", "epsilon must be"),
        ("epsilon = 1.0", "epsilon = nan", "epsilon must be"),
        ("epsilon = 1.0", "epsilon = inf", "epsilon must be"),
        ("epsilon = 1.0", "epsilon = 10.5", "large_epsilon"),
        ("epsilon = 1.0", "epsilon = 1e-9", "too small"),
        ("epsilon = 1.0", "epsilon = '1'", "epsilon must be a finite number"),
        ("epsilon = 1.0", f"epsilon = {HUGE}", "epsilon"),
        ("epsilon = 1.0", "epsilon = true", "epsilon"),
        ("epsilon = 1.0", "epsilon = 10.5\nlarge_epsilon = 'no'", "large_epsilon"),
        ("delta = 1e-6", "delta = 0", "delta must"),
        ("delta = 1e-6", "delta = 1", "delta must"),
        ("delta = 1e-6", "delta = nan", "delta must"),
        ("delta = 1e-6", "delta = inf", "delta must"),
        ("delta = 1e-6", "delta = 0.00334", "not below 1/n"),
        ("income = [0, 150000]", "income = [150000, 0]", "low one must come first"),
        ("income = [0, 150000]", "income = [5, 5]", "low one must come first"),
        ("income = [0, 150000]", "income = [0, nan]", "must be finite"),
        ("income = [0, 150000]", "income = [-inf, inf]", "must be finite"),
        ("income = [0, 150000]", "income = [0]", "two numbers"),
        ("income = [0, 150000]", "income = [0, 1e-300]", "too close together"),
        ("income = [0, 150000]", f"income = [0, {HUGE}]", "two numbers"),
        ("income = [15000, 50000]", "income = [nan, 50000]", "must be finite"),
        ("income = [15000, 50000]", "income = [50000, 15000]", "low before high"),
        ("[unit]", "[fill]\nincome = nan\n[unit]", "fill value"),
        ("[unit]", "[fill]\nincome = inf\n[unit]", "fill value"),
        ("[unit]", "[fill]\nincome = 'x'\n[unit]", "fill value"),
        ('region = ["north", "south"]', "region = []", "at least two"),
        ('region = ["north", "south"]', 'region = ["a", "a"]', "at least two"),
        ('region = ["north", "south"]', "region = 5", "wrong type or size"),
        (FORMULA, "formula = 5", "formula must be a text"),
        (FORMULA, 'formula = ""', "cannot be read"),
        (FORMULA, 'formula = "consumption ~ poly(income, 2)"', "not supported"),
        (FORMULA, 'formula = "consumption ~ __import__(\'os\').getcwd()"', "cannot be read"),
        (FORMULA, 'formula = "consumption ~ wealth"', "no declared bounds"),
        (FORMULA, 'formula = "consumption ~ income + C(state)"', "no declared levels"),
        (FORMULA, 'formula = "consumption ~ income + consumption"', "response's own column"),
        ('block = "state"', 'block = "stat"', "no columns but ['state'] hold blocks"),
        ('block = "state"', "block = 5", "block"),
        ("accuracy = 0.91", "accuracy = 0", "accuracy must lie"),
        ("accuracy = 0.91", "accuracy = 1.01", "accuracy must lie"),
        ("accuracy = 0.91", "accuracy = nan", "accuracy must lie"),
        ("accuracy = 0.91", "accuracy = inf", "accuracy must lie"),
        ("accuracy = 0.91", "accuracy = 0.001", "below 1/(its number of rows)"),
        ("accuracy = 0.91", "accuracy = { nsw = 0.9, nsw = 0.8 }", "not valid TOML"),
        ("accuracy = 0.91", 'accuracy = { nsw = 0.9, "" = 0.8 }', "No accuracy for other blocks"),
        ("accuracy = 0.91", "accuracy = { nsw = 0.9 }", "absent from the accuracy table"),
        ("accuracy = 0.91", "accuracy = {}", "accuracy table is empty"),
        ("accuracy = 0.91", "accuracy = 0.91\nchecked = nan", "checked must be"),
        ("accuracy = 0.91", "accuracy = 0.91\naccuracy_error = nan", "accuracy_error must be"),
        ("accuracy = 0.91", "accuracy = 0.91\nother = nan", "other blocks must lie"),
        ("accuracy = 0.91", f"accuracy = {HUGE}", "accuracy"),
        ("displaced_links = 0", "displaced_links = -1", "displaced_links must be"),
        ("displaced_links = 0", "displaced_links = nan", "displaced_links must be"),
        ("displaced_links = 0", "displaced_links = 0\nlinkage_change = nan", "linkage_change must be"),
        ("displaced_links = 0", "displaced_links = 0\nlinkage_change = inf", "linkage_change must be"),
        ("displaced_links = 0", f"displaced_links = {HUGE}", "displaced_links"),
        ("moves_block = false", "moves_block = 'no'", "moves_block"),
        ("[bounds]", "ridge = nan\n[bounds]", "ridge must be"),
        ("[bounds]", "ridge = -1\n[bounds]", "ridge must be"),
        ("[bounds]", "intervals = 'no'\n[bounds]", "intervals"),
        ("[bounds]", "method = 'ngd'\n[descent]\nradius = inf\n[bounds]", "radius must be"),
        ("[bounds]", "method = 'ngd'\n[descent]\nstep = nan\n[bounds]", "step must be"),
        ("[bounds]", "method = 'ngd'\n[descent]\niterations = 0\n[bounds]", "iterations must be"),
        ("[bounds]", f"method = 'ngd'\n[descent]\niterations = {HUGE}\n[bounds]", "iterations"),
        ("[bounds]", "method = 'ngd'\n[descent]\nradius = 1e300\n[bounds]", "radius"),
        ("displaced_links = 0", "displaced_links = 0\nlinkage_change = 1e308", "linkage_change"),
        ("[bounds]", "calibration = 'paper'\n[paper]\nrow_norm = nan\n[bounds]", "row_norm must be"),
        ("[bounds]", "calibration = 'paper'\n[paper]\nresponse_bound = 0\n[bounds]", "response_bound must be"),
        ("[bounds]", "calibration = 'paper'\nmethod = 'ngd'\n[bounds]", "needs declared settings"),
        ('url = "budget.db"', "url = 5", "must be a text"),
        ('url = "budget.db"', "url = 'mysql://x/y'", "SQLite or PostgreSQL"),
        ('population = "households"', "population = \"'; DROP TABLE budget; --\"", "no budget for this population"),
        ('path = "linked.parquet"', 'query = "select 1", spark = "t"', "not valid TOML"),
        ('path = "linked.parquet"', 'query = "select 1"\nspark = "t"', "one of path, query and spark"),
        ('path = "linked.parquet"', "query = 5", "are texts"),
    ],
)  # fmt: skip
def test_faults_of_the_study_cost_nothing(folder: Path, run: Run, old: str, new: str, message: str) -> None:
    code, _, said = run("fit", edit(folder, old, new), "--out", folder / "r.json")
    assert charges(folder) == 0
    assert (code, message in said) == (2, True), said
    assert not (folder / "r.json").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_faults_of_arguments_cost_nothing(folder: Path, value: float) -> None:
    study = dpl.Study.from_toml(folder / "study.toml")
    for name in ("epsilon", "delta"):
        with pytest.raises(dpl.StudyError, match=name):
            replace(study, **{name: value})
    assert charges(folder) == 0


def test_an_accuracy_table_with_a_block_twice_is_refused() -> None:
    with pytest.raises(dpl.StudyError, match="names a block twice"):
        dpl.ELE(pa.table({"state": ["nsw", "nsw"], "accuracy": [0.9, 0.8]}), block="state")
    with pytest.raises(dpl.StudyError, match="twice"):
        dpl.ELE({1: 0.9, "1": 0.8}, block="state")
    with pytest.raises(dpl.StudyError, match="twice, or not by a key"):
        dpl.ELE({None: 0.9}, block="state")


def test_the_formula_before_the_data_is_told_so() -> None:
    """The order of statsmodels and of R; what was given in its place is not shown."""
    frame = pa.table({"income": [731.25] * 3}).to_pandas()
    with pytest.raises(
        dpl.StudyError, match=r"not \[DataFrame\]. The data comes first, then the formula: dpl.fit\(data, formula, …\)"
    ):
        dpl.fit("consumption ~ income", frame, bounds={}, linkage=dpl.Exact(), epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": np.array([731.25])}, r"epsilon must be a finite number above 0, not \[ndarray\]"),
        ({"delta": pa.table({"x": [731.25]})}, r"delta must lie strictly between 0 and 1, not \[Table\]"),
        ({"bounds": pa.table({"x": [731.25]})}, "bounds must be a mapping from columns' names"),
        ({"bounds": {"income": [731.25] * 3, "consumption": (0, 1)}}, "The bounds of 'income' must be two numbers, low and high"),
        ({"levels": [731.25]}, r"levels must be a mapping .* not \[list\]"),
        ({"fill": {"income": [731.25]}}, "The fill value of 'income' must lie within its bounds"),
        ({"fill": {"secret 731": 1.0}}, "fill names something, which is not a numeric column here"),
        ({"typical": {"incme": (0, 1)}}, "typical names 'incme', which is not a numeric column here. Did you mean 'income'"),
        ({"unit": np.array([731.25])}, r"unit must be a dpl.PrivacyUnit, not \[ndarray\]"),
        ({"ridge": [731.25]}, r"ridge must be a finite number, 0 or more, not \[list\]"),
        ({"method": np.array(["secret 731"])}, r"method must be a text, not \[ndarray\]"),
        ({"ledger": pa.table({"x": [731.25]})}, r"ledger must be a path or an address, not \[Table\]"),
        ({"formula": "731.25,731.25\n" * 100}, r"The formula \[a long text\] cannot be read"),
        ({"linkage": {"accuracy": 731.25}}, "Say how the rows were linked"),
    ],
)  # fmt: skip
def test_what_stands_for_a_setting_is_told_by_its_type(change: dict[str, Any], message: str) -> None:
    declared: dict[str, Any] = {
        "formula": "consumption ~ income", "bounds": {"income": (0, 1), "consumption": (0, 1)}, "linkage": dpl.Exact(), "epsilon": 1.0, "delta": 1e-6,
    }  # fmt: skip
    with pytest.raises(dpl.StudyError, match=message) as refused:
        dpl.fit({"income": [1.0], "consumption": [1.0]}, **{**declared, **change})
    assert "731" not in str(refused.value)
    assert refused.value.__context__ is None


def test_an_argument_that_is_missing_is_still_named() -> None:
    with pytest.raises(TypeError, match=r"missing 4 required keyword-only arguments: 'bounds'"):
        dpl.fit({"income": [1.0]}, "consumption ~ income")  # type: ignore[call-arg]


@pytest.mark.parametrize("out", ["no/such/r.json", ".", "study.toml/r.json"])
def test_output_that_cannot_be_written_costs_nothing(folder: Path, run: Run, out: str) -> None:
    code, _, said = run("fit", folder / "study.toml", "--out", folder / out)
    assert (code, charges(folder)) == (2, 0)
    assert "cannot be written" in said


def test_an_output_named_for_another_format_costs_nothing(folder: Path, run: Run) -> None:
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "release.pdf")
    assert (code, charges(folder)) == (2, 0)
    assert "Choose a name that ends in .json" in said


@pytest.mark.parametrize("out", ["budget.db", "linked.parquet", "study.toml"])
@pytest.mark.parametrize("command", ["fit", "budget export"])
def test_an_output_never_overwrites_what_the_study_reads(folder: Path, run: Run, command: str, out: str) -> None:
    before = (folder / out).read_bytes()
    code, _, _said = run(*command.split(), folder / "study.toml", "--out", folder / out)
    assert (folder / out).read_bytes() == before
    assert (code, charges(folder)) == (2, 0)


def test_an_output_with_too_long_a_name_costs_nothing(folder: Path, run: Run) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / ("x" * 300))[0] == 2
    assert charges(folder) == 0


@pytest.mark.parametrize("command", ["report r.json", "budget export study.toml"])
def test_other_outputs_that_cannot_be_written(folder: Path, run: Run, command: str) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / "r.json")[0] == 0
    *words, file = command.split()
    assert run(*words, folder / file, "--out", "/dev/full")[0] == 2
    assert charges(folder) == 1


def test_usage_faults_cost_nothing(folder: Path, run: Run) -> None:
    assert run("fit")[0] == 2
    assert run("fit", folder / "study.toml", "--nonsense")[0] == 2
    assert run("fit", folder / "absent.toml")[0] == 2
    assert run("report", folder / "absent.json")[0] == 2
    assert run("budget", "init", folder / "study.toml", "--epsilon", "nan", "--delta", "1e-6")[0] == 2
    assert run("budget", "book", folder / "study.toml", "--epsilon", "-1", "--delta", "0.1", "--note", "x")[0] == 2
    assert run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "x" * 201)[0] == 2
    code, _, said = run("budget", "init", folder / "study.toml", "--epsilon", "1", "--delta", "1e-6")
    assert (code, charges(folder)) == (2, 0)
    assert "opened once" in said


def test_a_file_that_cannot_be_read_is_not_registered(folder: Path, run: Run) -> None:
    unreadable = folder / "mem.csv"
    unreadable.symlink_to("/proc/self/mem")  # for root as well
    code, _, said = run("budget", "register", folder / "study.toml", unreadable)
    assert (code, charges(folder)) == (2, 0)
    assert "'mem.csv' cannot be read" in said
    (folder / "budget.db").unlink()
    opening = ["budget", "init", folder / "study.toml", "--epsilon", "1", "--delta", "1e-6"]
    assert run(*opening, "--register", unreadable)[0] == 2
    assert not (folder / "budget.db").exists()


# --- faults of the schema: exit 2, nothing spent --------------------------------------------------------


def schema_faults() -> dict[str, tuple[str, bytes | pa.Table, str]]:
    table = households()
    lines = as_csv(table)
    latin = [[name.replace("income", "Einkünfte") for name in lines[0]], *lines[1:]]
    return {
        "empty csv": ("d.csv", b"", "cannot be read"),
        "header only": ("d.csv", csv_bytes(lines[:1]), "no rows"),
        "empty parquet": ("d.parquet", b"", "cannot be read"),
        "parquet without rows": ("d.parquet", table.slice(0, 0), "no rows"),
        "missing column": ("d.parquet", table.drop_columns(["income"]), "'income' is not in the data"),
        "missing block column": ("d.csv", table.drop_columns(["state"]), "'state' is not in the data"),
        "wrong delimiter": ("d.csv", csv_bytes(lines, ";"), "is not in the data"),
        "tabs": ("d.csv", csv_bytes(lines, "\t"), "is not in the data"),
        "utf-16": ("d.csv", csv_bytes(lines, encoding="utf-16"), "cannot be read as csv"),
        "latin-1 header": ("d.csv", csv_bytes(latin, encoding="latin-1"), "is not in the data"),
        "two columns of one name": ("d.csv", csv_bytes([[*lines[0], "x", "x"], *([*r, "1", "2"] for r in lines[1:])]), "two columns"),
        "ragged, one short": ("d.csv", csv_bytes([*lines[:9], lines[9][:2], *lines[10:]]), "cannot be read"),
        "ragged, one long": ("d.csv", csv_bytes([*lines[:9], [*lines[9], "x"], *lines[10:]]), "cannot be read"),
        "no parquet": ("d.parquet", csv_bytes(lines), "cannot be read"),
        "dates for numbers": ("d.parquet", households(income=np.arange(300).astype("M8[D]")), "not numbers"),
    }  # fmt: skip


@pytest.mark.parametrize("fault", schema_faults())
def test_faults_of_the_schema_cost_nothing(folder: Path, run: Run, fault: str) -> None:
    name, data, message = schema_faults()[fault]
    replace_data(folder, data, name)
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert (code, charges(folder)) == (2, 0), said
    assert message in said


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_truncated_parquet_costs_nothing(folder: Path, run: Run, share: float) -> None:
    whole = (folder / "linked.parquet").read_bytes()
    replace_data(folder, whole[: int(len(whole) * share)], "linked.parquet")
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert (code, charges(folder)) == (2, 0)
    assert "cannot be read" in said


@pytest.mark.parametrize("name", ["region", "state"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string()), pa.int8(), pa.uint64(), pa.float32(),
        pa.float16(), pa.bool_(), pa.date32(), pa.timestamp("ns"), pa.time64("us"), pa.duration("s"), pa.decimal128(30, 2), pa.null(),
        pa.list_(pa.int8()),
        pa.struct([("a", pa.int8())]),
    ],
    ids=str,
)  # fmt: skip
def test_key_columns_of_any_type_release_or_are_refused(folder: Path, run: Run, name: str, kind: pa.DataType) -> None:
    """A type is schema: it may be refused, exit 2 and nothing spent; never a failure on the way."""
    values: Any = pa.nulls(300, kind)
    if not (pa.types.is_nested(kind) or pa.types.is_null(kind)):
        values = _cast(pa.array(["1", "0", None] * 100), kind)
    replace_data(folder, households(**{name: values}), "d.parquet")
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert (code, charges(folder)) in {(0, 1), (2, 0)}, said


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts of small numbers in another type, over whole numbers where Arrow has no way."""
    if pa.types.is_dictionary(kind):
        return text.dictionary_encode().cast(kind)
    for through in (pa.string(), pa.int64(), pa.int32(), pa.float32()):
        with contextlib.suppress(pa.ArrowException):
            return text.cast(through).cast(kind)
    raise AssertionError(kind)


# --- rows: always a release, one charge -----------------------------------------------------------------


def row_faults() -> dict[str, tuple[str, bytes | pa.Table]]:
    table = households()
    lines, income = as_csv(table), table["income"].to_pylist()

    def with_cells(column: int, *texts: str) -> list[list[str]]:
        return [
            lines[0],
            *([*row[:column], text, *row[column + 1 :]] for row, text in zip(lines[1:], texts, strict=False)),
            *lines[len(texts) + 1 :],
        ]

    odd = (
        "nan",
        "inf",
        "-Infinity",
        "1e400",
        "-1e308",
        "",
        " ",
        "NULL",
        "1_000",
        "0x10",
        "１２",
        "12 000",
        "abc",
        "--1",
        '"',
    )
    return {
        "nan, inf and huge": ("d.parquet", cells("income", float("nan"), float("inf"), float("-inf"), 1.7e308, -1.7e308, None)),
        "such a response": ("d.parquet", cells("consumption", float("nan"), float("inf"), float("-inf"), 1.7e308, -1.7e308, None)),
        "such texts": ("d.csv", csv_bytes(with_cells(0, *odd[:-1]))),
        "such responses in text": ("d.csv", csv_bytes(with_cells(3, *odd[:-1]))),
        "quoted cells": ("d.csv", csv_bytes(with_cells(0, '""', '"1"', '"a""b"', '"x\ny"', '"12,5"'))),
        "one row": ("d.parquet", table.slice(0, 1)),
        "one row of csv": ("d.csv", csv_bytes(lines[:2])),
        "two rows": ("d.parquet", table.slice(0, 2)),
        "constant column": ("d.parquet", households(income=[3e4] * 300)),
        "constant at a bound": ("d.parquet", households(income=[0.0] * 300, consumption=[120_000.0] * 300)),
        "one level only": ("d.parquet", households(region=["north"] * 300)),
        "undeclared levels": ("d.parquet", households(region=["east", None, ""] * 100)),
        "a block of one": ("d.parquet", cells("state", "alone")),
        "null keys": ("d.parquet", cells("state", None, None, "")),
        "one null key": ("d.csv", csv_bytes(with_cells(2, ""))),
        "all keys null": ("d.parquet", households(state=pa.nulls(300, pa.string()))),
        "numbers as text": ("d.csv", csv_bytes(with_cells(0, *(f'"{value}"' for value in income)))),
        "decimal commas": ("d.csv", csv_bytes(with_cells(0, *(f'"{value}"'.replace(".", ",") for value in income)))),
        "latin-1 cells": ("d.csv", csv_bytes(with_cells(2, "Würzburg", "Köln"), encoding="latin-1")),
        "latin-1 numbers": ("d.csv", csv_bytes(with_cells(0, "ü", "1ü"), encoding="latin-1")),
        "byte order mark": ("d.csv", csv_bytes(lines, encoding="utf-8-sig")),
        "windows lines": ("d.csv", csv_bytes(lines).replace(b"\n", b"\r\n")),
        "nul bytes": ("d.csv", csv_bytes(with_cells(1, "no\0rth", "\0"))),
        "whole numbers": ("d.parquet", households(income=[int(value) for value in income])),
        "true and false": ("d.parquet", households(income=[True, False, None] * 100)),
        "single precision": ("d.parquet", households(income=pa.array(income, pa.float32()))),
        "decimals": ("d.parquet", households(income=pa.array([1, None, 3] * 100).cast(pa.decimal128(30, 2)))),
        "null column": ("d.parquet", households(income=pa.nulls(300))),
        "text column": ("d.parquet", households(income=[str(v) for v in income])),
        "a word in a text column": ("d.parquet", households(income=["word", *map(str, income[1:])])),
        "only words": ("d.parquet", households(income=["word"] * 300, consumption=["word"] * 300)),
        "categories of numbers": ("d.parquet", households(income=pa.array(map(str, income)).dictionary_encode())),
        "json": ("d.json", json_bytes(table.to_pylist())),
        "json by lines": ("d.jsonl", json_bytes(table.to_pylist(), lines=True)),
        "json with a key of one record": ("d.json", json_bytes([{**table.to_pylist()[0], "secret": 1}, *table.to_pylist()[1:]])),
        "json without a key": ("d.json", json_bytes([{}, *table.to_pylist()[1:]])),
        "json that never has a key": ("d.json", json_bytes(table.drop_columns(["income"]).to_pylist())),
        "json of records and others": ("d.jsonl", b"5\nnull\n[1]\n" + json_bytes(table.to_pylist()[3:], lines=True)),
        "json with a broken line": ("d.jsonl", b'{"income": [}\n' + json_bytes(table.to_pylist()[1:], lines=True)),
    }  # fmt: skip


ROW_FAULTS = row_faults()


@pytest.mark.parametrize("fault", ROW_FAULTS)
def test_rows_cannot_stop_a_release(folder: Path, run: Run, fault: str) -> None:
    name, data = ROW_FAULTS[fault]
    replace_data(folder, data, name)
    code, shown, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert (code, charges(folder)) == (0, 1), said
    assert "differentially private" in shown
    assert all(np.isfinite(value) for value in dpl.Release.load(folder / "r.json").coef.values())
    study = dpl.Study.from_toml(folder / "study.toml")
    assert Ledger(folder / "budget.db").balance().spent == cost(release_mu(study))


STRANGE = [
    "a'b",
    'a"b',
    "x'); DROP TABLE events; --",
    "<script>alert(1)</script>",
    "a b",
    "größe",
    "a\\b",
    "%s {0}",
    "| x |",
]


@pytest.mark.parametrize("name", STRANGE)
def test_strange_column_names(folder: Path, run: Run, name: str) -> None:
    """As a block column any name does; in a formula it is quoted, or refused at no cost."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    table = households().rename_columns(["income", "region", name, "consumption"])
    path = replace_data(folder, table, "d.parquet", registered=False)
    study = edit(folder, 'block = "state"', f'block = "{quoted}"')
    register(folder, path)
    assert run("fit", study, "--out", folder / "r.json")[0] == 0
    assert charges(folder) == 1
    assert run("report", folder / "r.json", "--out", folder / "r.md")[0] == 0
    edit(folder, f'block = "{quoted}"', 'block = "state"')
    replace_data(folder, households().rename_columns([name, "region", "state", "consumption"]), "e.csv")
    edit(folder, "income = ", f'"{quoted}" = ')
    code, _, said = run("fit", edit(folder, "~ income", f"~ `{quoted}`"), "--out", folder / "s.json")
    assert (code, charges(folder)) in {(0, 2), (2, 1)}, said


# --- every path, whatever the rows ----------------------------------------------------------------------

PATHS: dict[str, dict[str, Any]] = {
    "ssp": {},
    "ssp without intervals": {"intervals": False},
    "ssp with a ridge": {"ridge": 0.5},
    "private ranges": {"ranges": "private"},
    "private ranges without intervals": {"ranges": "private", "intervals": False},
    "ngd": {"method": "ngd"},
    "ngd without intervals": {"method": "ngd", "intervals": False},
    "paper ssp": {"calibration": "paper"},
    "paper ngd": {"calibration": "paper", "method": "ngd", "descent": dpl.Descent(2.0, 3, 1e-9)},
}


def extreme_rows() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    x, n = rng.uniform(0, 10, 60), 60
    usual = {"x": x, "w": rng.uniform(0, 10, n), "g": ["a", "b"] * 30, "k": ["p", "q", "r"] * 20, "y": x / 2 + 1}
    return {
        "all null": {name: pa.nulls(n, pa.string() if name in "gk" else pa.float64()) for name in usual},
        "all not finite": {**usual, "x": np.full(n, np.nan), "w": np.full(n, np.inf), "y": np.full(n, -np.inf)},
        "all clipped": {**usual, "x": np.full(n, 1e300), "w": np.full(n, -1e300), "y": np.full(n, 1e308)},
        "collinear": {**usual, "w": x, "y": x},
        "two rows": {name: values[:2] for name, values in usual.items()},
        "one row": {name: values[:1] for name, values in usual.items()},
        "blocks of one row": {**usual, "k": [f"k{i}" for i in range(n)]},
    }


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        pytest.param(path, rows, marks=pytest.mark.slow if (i + j) % 2 else ())  # every other pair by default
        for i, path in enumerate(PATHS)
        for j, rows in enumerate(extreme_rows())
    ],
)
def test_every_path_is_total(tmp_path: Path, path: str, rows: str) -> None:
    table = pa.table(extreme_rows()[rows])
    study = dpl.Study(
        formula="y ~ x + w + C(g)", bounds={"x": (0, 10), "w": (0, 10), "y": (0, 10)}, epsilon=0.9, delta=1e-5,
        linkage=dpl.ELE(0.8, block="k", other=0.8), unit=dpl.PrivacyUnit(moves_block=True), levels={"g": ["a", "b"]},
        ledger=tmp_path / "b.db", **PATHS[path],
    )  # fmt: skip
    Ledger.create(tmp_path / "b.db", "p", epsilon=2.0, delta=1e-5).register(table, linkage=study.linkage)
    release = fit_study(study, table)
    assert all(np.isfinite(value) for value in release.coef.values())
    assert release.summary()
    assert release.ledger is not None
    kinds = [event.kind for event in Ledger(tmp_path / "b.db").events()]
    assert kinds == ["open", "register", "charge", "release"]
    assert Ledger(tmp_path / "b.db").verify().spent == cost(release_mu(study))


# --- ledger and registration: exit 4, nothing spent ----------------------------------------------------


def test_changed_data_costs_nothing(folder: Path, run: Run) -> None:
    pq.write_table(cells("income", 1.0), folder / "linked.parquet")
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert (code, charges(folder)) == (4, 0)
    assert "not registered for the budget, or not at this place, or it has changed since" in said
    assert run("budget", "register", folder / "study.toml", folder / "linked.parquet")[0] == 0
    assert run("fit", folder / "study.toml", "--out", folder / "r.json")[0] == 0


def test_a_missing_ledger_is_not_made(folder: Path, run: Run) -> None:
    (folder / "budget.db").unlink()
    for command in ("fit", "budget show", "budget verify", "budget export"):
        code, _, said = run(*command.split(), folder / "study.toml")
        assert code == 4
        assert "There is no ledger 'budget.db'" in said
    assert not (folder / "budget.db").exists()


def damage_ledger(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("epsilon = everything\n" * 500, encoding="utf-8")
    elif how == "header":
        path.write_bytes(b"\0" * 100 + whole[100:])
    elif how == "half":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "one page":
        path.write_bytes(whole[:4096])
    elif how == "zeroed pages":
        path.write_bytes(whole[:4096] + b"\0" * (len(whole) - 4096))
    else:
        connection = sqlite3.connect(path)
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(how)
        connection.commit()
        connection.close()


@pytest.mark.parametrize(
    "how",
    [
        "empty", "text", "header", "half", "one page", "zeroed pages", "DROP TABLE budget", "DROP TABLE events",
        "ALTER TABLE budget DROP COLUMN secret",
    ],
)  # fmt: skip
def test_a_corrupt_ledger_says_one_thing(folder: Path, run: Run, how: str) -> None:
    damage_ledger(folder / "budget.db", how)
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert code == 4
    assert said == (
        "dplinked: The ledger cannot be read or written. Nothing was released. The steward's 'dplinked budget verify' tells more."
    )
    assert not (folder / "r.json").exists()


@pytest.mark.parametrize(
    "how",
    [
        "UPDATE budget SET spent = -5", "UPDATE budget SET total = total * 2", "UPDATE budget SET spent = 'x'",
        "UPDATE budget SET seal = ''", "UPDATE budget SET secret = 'zz'", "UPDATE budget SET epsilon = 'x'", "UPDATE budget SET head = x'ff00'",
    ],
)  # fmt: skip
def test_a_changed_balance_is_noticed(folder: Path, run: Run, how: str) -> None:
    damage_ledger(folder / "budget.db", how)
    for command in ("fit", "budget show", "budget verify"):
        code, _, said = run(*command.split(), folder / "study.toml")
        assert code == 4
        assert said == "dplinked: The ledger was changed: its balance is not the one that was written."


@pytest.mark.slow
def test_no_flipped_byte_of_a_ledger_gives_another_error(folder: Path) -> None:
    """300 ledgers with 1 to 20 damaged bytes: ours, or a release whose charge is in the ledger."""
    rng, whole = np.random.default_rng(5), (folder / "budget.db").read_bytes()
    for _ in range(300):
        damaged = np.frombuffer(whole, np.uint8).copy()
        at = rng.integers(0, len(whole), rng.integers(1, 21))
        damaged[at] = rng.integers(0, 256, at.size)
        for leftover in folder.glob("budget.db*"):
            leftover.unlink()
        (folder / "budget.db").write_bytes(damaged.tobytes())
        study = dpl.Study.from_toml(folder / "study.toml")
        try:
            release = fit_study(study, study.data)
        except (dpl.LedgerError, dpl.StudyError):
            continue
        assert release.ledger is not None
        with contextlib.suppress(dpl.LedgerError):
            assert Ledger(folder / "budget.db", "households").balance().spent == cost(release_mu(study))


def test_a_spent_budget_is_refused(folder: Path, run: Run) -> None:
    assert run("budget", "book", folder / "study.toml", "--epsilon", "5", "--delta", "1e-5", "--note", "all")[0] == 0
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json")
    assert code == 3
    assert "does not allow this release" in said
    assert not any(event.kind == "charge" for event in Ledger(folder / "budget.db").events())


# --- after the charge: it stays -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", [OSError("disk"), MemoryError(), ValueError("cell 5"), pa.ArrowInvalid("cell 5")])
def test_rows_that_cannot_be_read_after_the_charge_keep_it(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "numbers", fail)
        code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
    assert (code, charges(folder)) == (5, 1)
    assert "the charge stays" in said
    assert "cell 5" not in said
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
    assert (code, charges(folder)) == (4, 1)
    assert "charged, but never finished" in said
    assert run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "b")[0] == 0


def test_a_full_disk_for_the_output_costs_no_second_charge(folder: Path, run: Run) -> None:
    code, _, said = run("fit", folder / "study.toml", "--out", "/dev/full", "--id", "a", "--force")
    assert (code, charges(folder)) == (5, 1)
    assert "run again with another --out, at no cost" in said
    assert run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")[0] == 0
    assert charges(folder) == 1


def test_an_id_stands_for_one_request(folder: Path, run: Run) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")[0] == 0
    first = (folder / "r.json").read_bytes()
    assert run("fit", folder / "study.toml", "--out", folder / "s.json", "--id", "a")[0] == 0
    assert (folder / "s.json").read_bytes() == first
    code, _, said = run("fit", edit(folder, "epsilon = 1.0", "epsilon = 0.9"), "--out", folder / "t.json", "--id", "a")
    assert (code, charges(folder)) == (2, 1)
    assert "made from another request" in said


def test_an_interrupted_release_is_not_waited_for_in_the_same_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = dpl.Study.from_toml(folder / "study.toml")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "numbers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit_study(study, study.data, release_id="a")
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it was waited for"))
    monkeypatch.setattr("dplinked.ledger.ledger.time", clock)
    with pytest.raises(dpl.LedgerError, match="never finished"):
        fit_study(study, study.data, release_id="a")


def test_a_result_that_cannot_be_recorded_is_a_failure_after_the_charge(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise dpl.LedgerError("The ledger cannot be read or written.")

    monkeypatch.setattr(Ledger, "record", fail)
    code, _, _said = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
    assert (code, charges(folder)) == (5, 1)
    assert not (folder / "r.json").exists()


def test_a_result_that_cannot_be_written_down_is_a_failure_after_the_charge(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> str:
        raise ValueError("Out of range float values are not JSON compliant: nan")

    monkeypatch.setattr(dpl.Release, "to_json", fail)
    code, _, _said = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
    assert (code, charges(folder)) == (5, 1)


# --- processes: signals, limits, races ----------------------------------------------------------------

WRAPPER = """
import pathlib, resource, signal, sys, time
flag, where, limit = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1), int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)
from importlib import import_module
from dplinked.cli.main import main
from dplinked.ledger.ledger import Ledger

def pausing(call):
    def paused(*arguments, **named):
        flag.touch()
        time.sleep(600)
        return call(*arguments, **named)
    return paused

if where == "before":
    Ledger.check_content = pausing(Ledger.check_content)
elif where == "after":
    passes = import_module("dplinked.sums.numpy.tables").TablePass
    passes.instrument_sums = pausing(passes.instrument_sums)
elif where == "recorded":
    release = import_module("dplinked.release.release").Release
    release.save = pausing(release.save)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""


def start(folder: Path, where: str, *arguments: object, limit: int = 0) -> subprocess.Popen[str]:
    """A real process of 'fit' that touches a flag and pauses before or after the charge, or writes files up to a limit."""
    (folder / "flag").unlink(missing_ok=True)
    command = [sys.executable, "-c", WRAPPER, str(folder / "flag"), where, str(limit)]
    return subprocess.Popen(
        [*command, "fit", str(folder / "study.toml"), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip


def stop(process: subprocess.Popen[str], folder: Path, how: signal.Signals) -> tuple[int, str]:
    limit = time.monotonic() + 200
    while not (folder / "flag").exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(how)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.parametrize(
    ("where", "charged"), [("before", 0), ("after", 1), pytest.param("recorded", 1, marks=pytest.mark.slow)]
)
def test_interrupting(folder: Path, run: Run, where: str, charged: int) -> None:
    process = start(folder, where, "--out", folder / "r.json", "--id", "a")
    code, said = stop(process, folder, signal.SIGINT)
    assert code == 130, said
    assert said.strip() == "dplinked: interrupted"
    assert charges(folder) == charged
    assert not (folder / "r.json").exists()
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
    assert code == (4 if where == "after" else 0), said
    assert charges(folder) == 1


def test_killed_after_the_charge(folder: Path, run: Run) -> None:
    process = start(folder, "after", "--out", folder / "r.json", "--id", "a")
    assert stop(process, folder, signal.SIGKILL)[0] == -signal.SIGKILL
    assert charges(folder) == 1
    code, _, said = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
    assert (code, charges(folder)) == (4, 1)
    assert "charged, but never finished" in said
    assert run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "b")[0] == 0
    assert charges(folder) == 2


@pytest.mark.slow
def test_two_at_once_with_budget_for_one(folder: Path) -> None:
    (folder / "budget.db").unlink()
    Ledger.create(folder / "budget.db", "households", epsilon=1.1, delta=1e-6)
    register(folder, folder / "linked.parquet")
    both = [start(folder, "", "--out", folder / f"{k}.json", "--again") for k in range(2)]
    said = [process.communicate(timeout=300)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 3], said
    assert charges(folder) == 1
    assert len(list(folder.glob("?.json"))) == 1


def full_disk(folder: Path, run: Run, limit: int) -> tuple[int, int]:
    """Fit with files limited in size; returns the exit code and what was charged. What was stored costs nothing to get again."""
    process = start(folder, "", "--out", folder / "r.json", "--id", "a", limit=limit)
    _, said = process.communicate(timeout=300)
    assert "Traceback" not in said
    spent = charges(folder)
    if (
        process.returncode != 0 and spent
    ):  # stored: the same id gets it; filled up before that: the charge stays, and says so
        code, _, again = run("fit", folder / "study.toml", "--out", folder / "r.json", "--id", "a")
        assert (code, process.returncode) in {(0, 5), (4, 5)}, (process.returncode, said, again)
        assert charges(folder) == 1
    return process.returncode, spent


def many_columns(folder: Path) -> None:
    """A model whose release, some 60 kB, takes more room than its charge; without intervals, which take long for so many."""
    edit(folder, '"south"]', '"south", ' + ", ".join(f'"r{k}"' for k in range(45)) + "]")
    edit(folder, "[bounds]", "intervals = false\n[bounds]")


@pytest.mark.parametrize("size", [8 << 10, 60 << 10])
def test_a_full_disk_never_hides_a_charge(folder: Path, run: Run, size: int) -> None:
    many_columns(folder)
    assert full_disk(folder, run, size) in {(4, 0), (5, 1), (0, 1)}


@pytest.mark.slow
def test_a_disk_may_fill_up_anywhere(base: Path, tmp_path: Path, run: Run) -> None:
    found = []
    for size in range(20 << 10, 220 << 10, 20 << 10):  # from 160 kB on all of it has room
        folder = Path(shutil.copytree(base, tmp_path / f"s{size}"))
        register(folder, folder / "linked.parquet")
        many_columns(folder)
        found.append(full_disk(folder, run, size))
    assert set(found) == {(4, 0), (5, 1), (0, 1)}


def test_a_warning_that_is_an_error_stays_one() -> None:
    @plain_faults
    def warned() -> None:
        raise UserWarning("told")

    with pytest.raises(UserWarning, match="told"):
        warned()


def test_methods_raise_errors_of_this_package_only(tmp_path: Path) -> None:
    rows = {"x": [0.1, 0.9] * 30, "y": [0.2, 0.7] * 30}
    release = dpl.fit(rows, "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=dpl.Exact(), epsilon=1, delta=1e-6)
    linked = dpl.link({"id": [1, 2], "name": ["a", "b"]}, {"id": [2, 1], "name": ["b", "a"]}, id="id", fields=["name"])
    table = [["secret"]]
    for call in (
        lambda: release.save(table), lambda: release.submodel(table), lambda: dpl.Release.load(table), lambda: release.save("secret" * 99),
        lambda: linked.matching(tolerance=table), lambda: linked.audit_sample(table), lambda: linked.audited(object()),
    ):  # fmt: skip
        with pytest.raises(dpl.StudyError) as fault:
            call()
        assert "secret" not in str(fault.value)
        assert fault.value.__context__ is None


# --- two files to link -----------------------------------------------------------------------------------

NAMES = ["given_name", "surname", "date_of_birth"]


def files_to_link() -> dict[str, tuple[pa.Table, list[str], str]]:
    """Faults of the right file: the file, further arguments, and what the steward is told to do."""
    files, others = two_files(120, 41), two_files(120, 977).right

    def changed(name: str, values: Any) -> pa.Table:
        return files.right.set_column(files.right.column_names.index(name), name, [pa.array(values, pa.string())])

    ids = files.right["id"].to_pylist()
    return {
        "no candidates": (others, [], "Check that the fields hold the same things in both files"),
        "one field empty everywhere": (changed("surname", [" "] * 120), [], "'surname' has no values in the right file. Leave it out."),
        "one field null everywhere": (changed("surname", [None] * 120), [], "'surname' has no values in the right file. Leave it out."),
        "all keys missing": (changed("state", [None] * 120), ["--block", "state"], "Leave block out, or name another column."),
        "keys of another kind": (changed("state", ["?"] * 120), ["--block", "state"], "Write the keys alike in both, or leave block out."),
        "duplicated ids": (changed("id", [ids[1], *ids[1:]]), ["--id", "id"], "Keep one record for each person and id, or leave id out"),
        "an id missing": (changed("id", [None, *ids[1:]]), ["--id", "id"], "Keep one record for each person and id, or leave id out"),
        "the same file": (files.left, [], "every record would be linked to itself. Give two files."),
        "no rows": (files.right.slice(0, 0), [], "The right file has no rows."),
    }  # fmt: skip


@pytest.mark.parametrize("fault", files_to_link())
def test_files_that_cannot_be_linked_are_refused_in_words(run: Run, tmp_path: Path, fault: str) -> None:
    right, more, message = files_to_link()[fault]
    pq.write_table(two_files(120, 41).left, tmp_path / "left.parquet")
    pq.write_table(right, tmp_path / "right.parquet")
    fields = [part for name in NAMES for part in ("--field", name)]
    out = tmp_path / "out"
    code, _, said = run("link", tmp_path / "left.parquet", tmp_path / "right.parquet", "--out", out, *fields, *more)
    assert code == 2
    assert message in said
    assert not out.exists()
