"""Canaries: a token and a number planted in cells turn up in nothing that an analyst gets to see.

Searched are both output streams, errors with all that they were raised from, log records at DEBUG, every file that was made
(release, report, ledger and its export) and temporary files. ``check`` is the steward's and exempt; so are the files that
``link`` writes, but not its errors, and block keys in released accuracies, whose groups are declared public.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import logging
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dplinked as dpl
from dplinked.cli.main import main
from dplinked.ledger.ledger import Ledger
from dplinked.linker.accuracies import accuracy_table, count_together, known_accuracies, name_counts, shrink_accuracies
from dplinked.linker.strata import make_strata
from dplinked.simulate import linked_households, review_links, two_files
from dplinked.sums.engine import ENGINES
from studies import LEDGER_STUDY

TOKEN, NUMBER = "CANARYq7x", 918273645.5
MARKS = [
    mark.lower()
    for text in (TOKEN, "918273645", "918,273,645", "918.273.645", "9.18273645", "9.1827364", "9.18274e", "9.183e+08", "9.18e+08")
    for mark in (text.encode(), text.encode("utf-16-le"))
] + [struct.pack("<d", NUMBER), struct.pack(">d", NUMBER)]  # fmt: skip
COLUMNS = ["income", "region", "state", "consumption", "note"]


def hits(data: bytes) -> list[bytes]:
    return [mark for mark in MARKS if mark in data or mark in data.lower()]


def error_texts(error: BaseException | None, seen: set[int] | None = None) -> list[str]:
    """An error with all errors it was raised from or during, shown or suppressed, without locals."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return []
    seen.add(id(error))
    notes = getattr(error, "__notes__", [])
    own = [str(error), repr(error), repr(error.args), *notes, *traceback.format_exception(error, chain=False)]
    return own + error_texts(error.__cause__, seen) + error_texts(error.__context__, seen)


class Watch(logging.Handler):
    """Collects what could be seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.DEBUG)
        self.folder, self.seen, self.inputs = folder, list[str](), dict[Path, bytes]()
        self.codes: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += [
            record.getMessage(),
            repr(record.args),
            *error_texts(record.exc_info[1] if record.exc_info else None),
        ]

    def given(self, *paths: Path) -> None:
        """Files that hold the canary by right."""
        self.inputs |= {path: path.read_bytes() for path in paths}

    def run(self, *arguments: object) -> int:
        """The command line, in this process."""
        sys.argv = ["dplinked", *map(str, arguments)]
        try:
            main()
        except SystemExit as stopped:
            self.seen += error_texts(stopped)
            self.codes.append(int(stopped.code or 0))
        return self.codes[-1]

    def call(self, function: Callable[[], Any], *, shown: bool = False) -> Any:
        """A call of the API: its result, or its error; `shown` leaves out errors that Python does not show."""
        try:
            result = function()
        except Exception as error:
            self.seen += traceback.format_exception(error) if shown else error_texts(error)
            return error
        self.seen += [repr(result), str(result)]
        return result

    def check(self, streams: str) -> None:
        for text in (*self.seen, streams):
            assert not hits(text.encode("utf-8", "surrogateescape")), text
        for path in self.folder.rglob("*"):
            assert not hits(str(path).encode()), path
            if path.is_file() and self.inputs.get(path) != (found := path.read_bytes()):
                assert not hits(found), path


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Watch]:
    """A watch over a folder that also takes temporary files; checked when the test ends."""
    (tmp_path / "tmp").mkdir()
    for name in ("TMPDIR", "SQLITE_TMPDIR", "TEMP"):
        monkeypatch.setenv(name, str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)
    handler, root = Watch(tmp_path), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    handler.check(shown.out + shown.err)


# --- where canaries are planted -----------------------------------------------------------------------


def households() -> pa.Table:
    table = pa.table(linked_households(120, 1)).select(COLUMNS[:-1])
    return table.append_column("note", pa.array(["x"] * 120))


def as_lines() -> list[list[str]]:
    return [COLUMNS, *([str(value) for value in row.values()] for row in households().to_pylist())]


def csv_with(column: str, cell: str, row: int) -> bytes:
    lines = as_lines()
    lines[row] = [cell if name == column else text for name, text in zip(COLUMNS, lines[row], strict=True)]
    return "\n".join(",".join(line) for line in [*lines, []]).encode("utf-8", "surrogateescape")


def parquet_with(column: str, cell: Any, row: int) -> bytes:
    table = households()
    values = table.column(column).to_pylist()
    values[row - 1] = cell
    if len({type(value) for value in values}) > 1:
        values = [str(value) for value in values]
    sink = pa.BufferOutputStream()
    table = table.set_column(COLUMNS.index(column), column, pa.array(values))
    pq.write_table(table, sink, compression="none")
    return sink.getvalue().to_pybytes()


def invalid_text(column: str) -> bytes:
    """A Parquet file whose text column holds a token in broken UTF-8."""
    values = [text.encode() for text in households().column(column).to_pylist()]
    values[4] = b"\xff\xfe" + TOKEN.encode() + b"\xff"
    binary = pa.array(values, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(values), binary.buffers())
    sink = pa.BufferOutputStream()
    pq.write_table(households().set_column(COLUMNS.index(column), column, text), sink)
    return sink.getvalue().to_pybytes()


def malformed() -> dict[str, tuple[str, bytes]]:
    """Files at fault around a canary."""
    lines = as_lines()
    whole = csv_with("region", TOKEN, 5)
    first = csv_with("income", TOKEN, 1)
    number = str(NUMBER)
    cases: dict[str, bytes] = {
        f"broken utf-8 in {column}": csv_with(column, f"\udcff\udcfe{TOKEN}\udcff", 5) for column in COLUMNS
    }
    cases |= {
        "short row": whole.replace(b"\n", b"\n" + TOKEN.encode() + b"," + number.encode() + b"\n", 3),
        "long row": csv_with("note", f"x,{TOKEN},{number}", 5),
        "long first row": csv_with("note", f"x,{TOKEN},{number}", 1),
        "open quote": csv_with("region", f'"{TOKEN}', 5),
        "open quote in the first row": csv_with("income", f'"{number}', 1),
        "open quote in the header": b'income,region,state,consumption,"note\n' + first.split(b"\n", 1)[1],
        "quote within a cell": csv_with("income", f'{number}"{TOKEN}"', 5),
        "nul bytes": csv_with("state", f"\0{TOKEN}\0", 5),
        "number as text": csv_with("income", f'"{number}"', 5),
        "number with commas": csv_with("income", '"918,273,645.5"', 5),
        "number with a decimal comma": csv_with("consumption", '"918273645,5"', 5),
        "utf-16": first.decode().encode("utf-16"),
        "utf-16 without mark": first.decode().encode("utf-16-le"),
        "no header": f"{TOKEN},{number},nsw,5,x\n".encode() + first.split(b"\n", 1)[1],
        "semicolons": first.replace(b",", b";"),
        "one line": first.replace(b"\n", b","),
        "carriage returns": first.replace(b"\n", b"\r"),
        "two names": first.replace(b"note", b"income", 1),
        "much of it": "\n".join([",".join(lines[0]), *[f"{TOKEN},{TOKEN},{TOKEN},{number},{TOKEN}"] * 50, ""]).encode(),
    }
    text = parquet_with("region", TOKEN, 5)
    at = text.index(TOKEN.encode())
    parquet = {
        "truncated": text[: len(text) - 100],
        "ends in the token": text[: at + len(TOKEN)],
        "damaged page": text[: at - 6] + b"\xff\xff\xff\x7f" + text[at - 2 :],
        "damaged before": text[: at - 30] + b"\x15" * 12 + text[at - 18 :],
        "broken utf-8 in region": invalid_text("region"),
        "broken utf-8 in state": invalid_text("state"),
    }
    return {f"csv, {name}": ("d.csv", data) for name, data in cases.items()} | {
        f"parquet, {name}": ("d.parquet", data) for name, data in parquet.items()
    }


def planted() -> dict[str, tuple[str, bytes]]:
    """A token and a number in every column, in the first and in a later row, in both formats."""
    found = {}
    for column in COLUMNS:
        for row in (1, 60):
            for canary in (TOKEN, NUMBER):
                name = f"{'token' if canary == TOKEN else 'number'} in {column} {row}"
                found[f"csv, {name}"] = ("d.csv", csv_with(column, str(canary), row))
                found[f"parquet, {name}"] = ("d.parquet", parquet_with(column, canary, row))
    return found


def make_study(folder: Path, name: str, data: bytes, study: str = LEDGER_STUDY) -> Path:
    (folder / name).write_bytes(data)
    (folder / "study.toml").write_text(study.replace("linked.parquet", name), encoding="utf-8")
    book = Ledger.create(folder / "budget.db", "households", epsilon=9.0, delta=1e-5)
    book.register(folder / name, linkage=dpl.ELE(0.91, block="state"))
    return folder / "study.toml"


def commands(study: Path) -> list[list[object]]:
    """All that an analyst may run."""
    folder = study.parent
    return [
        ["fit", study, "--out", folder / "r.json", "--id", "a"],
        ["plan", study, "--rows", 120],
        ["report", folder / "r.json"],
        ["report", folder / "r.json", "--out", folder / "r.md"],
        ["report", folder / "r.json", "--markdown"],
        ["budget", "show", study],
        ["budget", "verify", study],
        ["budget", "export", study, "--out", folder / "ledger.jsonl"],
    ]


CASES = planted() | malformed()


@pytest.mark.parametrize("case", CASES)
def test_no_command_shows_a_canary(watch: Watch, case: str) -> None:
    """A fit, and in turn a third of what reads its release or ledger, a form of the report among it; in development mode, below, all of it."""
    name, data = CASES[case]
    study = make_study(watch.folder, name, data)
    watch.given(watch.folder / name)
    first, *others = commands(study)
    assert watch.run(*first) in (0, 2)
    for command in others[list(CASES).index(case) % 3 :: 3]:
        assert watch.run(*command) in ((0,) if command[0] != "report" or watch.codes[0] == 0 else (2,))
    charged = [event.kind for event in Ledger(watch.folder / "budget.db").events()].count("charge")
    assert charged == (watch.codes[0] == 0)


STUDIES = {
    "accuracy table": LEDGER_STUDY.replace("accuracy = 0.91", "accuracy = { nsw = 0.9 }"),
    "accuracy too low": LEDGER_STUDY.replace("accuracy = 0.91", "accuracy = 0.005"),
    "moves": LEDGER_STUDY.replace("moves_block = false", "moves_block = true"),
    "descent": LEDGER_STUDY.replace("[bounds]", 'method = "ngd"\n[bounds]'),
    "private ranges": LEDGER_STUDY.replace("[bounds]", 'ranges = "private"\n[bounds]'),
    "paper": LEDGER_STUDY.replace("[bounds]", 'calibration = "paper"\n[bounds]').replace(
        "epsilon = 1.0", "epsilon = 0.9"
    ),
    "a column less": LEDGER_STUDY.replace("income", "incomes"),
    "not registered": LEDGER_STUDY,
}


@pytest.mark.parametrize("kind", STUDIES)
def test_no_study_shows_a_canary(watch: Watch, kind: str) -> None:
    data = csv_with("state", TOKEN, 3).replace(b"\n", f"\n{NUMBER},{TOKEN},{TOKEN},{NUMBER},{TOKEN}\n".encode(), 1)
    study = make_study(watch.folder, "d.csv", data, STUDIES[kind])
    if kind == "not registered":
        (watch.folder / "d.csv").write_bytes(data + data.split(b"\n", 1)[1])
    watch.given(watch.folder / "d.csv")
    for command in commands(study):
        watch.run(*command)
    refused = {"accuracy table": 2, "accuracy too low": 2, "a column less": 2, "not registered": 4}
    assert watch.codes[0] == refused.get(kind, 0)


def test_tables_show_no_canary(watch: Watch) -> None:
    """The API, with tables of every library, typed and not."""
    x = [1.0] * 58 + [NUMBER, None]
    odd: list[Any] = [1.0] * 57 + [TOKEN, NUMBER, object()]
    usual = {"y": np.linspace(0, 1, 60), "g": ["a", TOKEN] * 30, "k": ["p", TOKEN, "q"] * 20}
    tables: list[Any] = [
        {**usual, "x": x}, {**usual, "x": odd}, pa.table({**usual, "x": x}), pd.DataFrame({**usual, "x": x}),
        pd.DataFrame({**usual, "x": odd}), pl.DataFrame({**usual, "x": x}), pl.DataFrame({**usual, "x": x}).lazy(),
        pd.DataFrame({**usual, "x": [TOKEN] * 60}), pl.DataFrame({**usual, "x": [TOKEN] * 60}), pa.table({**usual, "x": [[TOKEN]] * 60}),
        {**usual, "x": [TOKEN]}, [TOKEN, NUMBER],
    ]  # fmt: skip
    for number, table in enumerate(tables):
        for path in (None, watch.folder / f"{number}.db"):
            if path is not None:
                Ledger.create(path, "p", epsilon=5.0, delta=1e-5)
                watch.call(lambda: Ledger(path).register(table, linkage=dpl.ELE(0.9, block="k")))  # noqa: B023
            done = watch.call(
                lambda: dpl.fit(
                    table, "y ~ x + C(g)", bounds={"x": (0, 1), "y": (0, 1)}, levels={"g": ["a", "b"]},  # noqa: B023
                    linkage=dpl.ELE(0.9, block="k"), epsilon=1.0, delta=1e-5, ledger=path,  # noqa: B023
                )
            )  # fmt: skip
            assert isinstance(done, (dpl.Release, dpl.DplinkedError)), done
            if isinstance(done, dpl.Release):
                watch.seen += [done.to_json(), done.summary(), done.to_markdown(), str(done.conf_int())]


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_outcomes_in_databases_show_no_canary(watch: Watch, family: str) -> None:
    """Fits of a relation with canaries in all columns, and of one with a cast that fails, whose error quotes the cell."""
    duckdb = pytest.importorskip("duckdb")
    connection, n = duckdb.connect(), 60
    given = pa.table(
        {
            "x": [0.5] * (n - 1) + [NUMBER], "years": [1.0] * (n - 1) + [NUMBER], "visits": [1.0] * (n - 1) + [NUMBER],
            "died": ["no", "yes", TOKEN] * 20, "g": ["a", TOKEN] * 30, "k": ["p", TOKEN, "q"] * 20, "note": ["1"] * (n - 1) + [TOKEN],
        }
    )  # fmt: skip
    connection.register("given", given)
    connection.execute("create table t as select * from given")
    outcome, exposure = ("visits", "years") if family == "poisson" else ("died", None)
    settings: dict[str, Any] = {
        "family": family, "exposure": exposure, "bounds": {"x": (0, 1), "visits": (0, 9), "years": (0.5, 2)},
        "levels": {"g": ["a", "b"], "died": ["no", "yes"]}, "linkage": dpl.ELE(0.9, block="k"), "epsilon": 1.0, "delta": 1e-5,
    }  # fmt: skip
    done = watch.call(lambda: dpl.fit(connection.table("t"), f"{outcome} ~ x + C(g)", **settings))
    watch.seen += [done.to_json(), done.summary(), done.to_markdown(), str(done.conf_int())]
    broken = connection.sql("select * replace (cast(note as double) as x) from t")
    assert isinstance(watch.call(lambda: dpl.fit(broken, f"{outcome} ~ x + C(g)", **settings)), dpl.DplinkedError)
    assert not connection.execute("select * from duckdb_tables() where table_name like 'dplinked%'").fetchall()


def test_the_estimator_shows_no_canary(watch: Watch) -> None:
    """`fit` of LinkedRegression; `predict` is for rows that may be seen."""
    y = np.linspace(0, 1, 40)
    features: list[Any] = [
        np.full((40, 1), NUMBER), np.full((40, 1), TOKEN, dtype=object), np.full((40, 1), TOKEN), [[TOKEN]] * 40, [[NUMBER]] * 40,
        pd.DataFrame({"a": [TOKEN] * 40}), pd.DataFrame({"a": [TOKEN] * 39 + [1.0]}), pd.DataFrame({"a": pd.Categorical([TOKEN] * 40)}),
        pd.DataFrame({"a": pd.array([TOKEN] * 40, dtype="string")}), pl.DataFrame({"a": [TOKEN] * 40}), pa.table({"a": [TOKEN] * 40}),
        pd.DataFrame({"a": [{TOKEN: NUMBER}] * 40}), pd.DataFrame({"a": [complex(NUMBER, 1)] * 40}), [[10**400]] * 40,
        [[TOKEN, 1]] + [[1]] * 39, np.full((40, 1, 1), NUMBER), TOKEN, {TOKEN: NUMBER},
        pd.DataFrame({"a": pd.to_datetime(["2001-01-01"] * 40)}), [[TOKEN + ": x\n" + TOKEN]] * 40, [[b"\xff" + TOKEN.encode()]] * 40,
    ]  # fmt: skip

    def model() -> Any:
        return dpl.LinkedRegression(
            bounds=(0, 1), response_bounds=(0, 1), linkage=dpl.ELE(0.9, block="k"), epsilon=1.0, delta=1e-5
        )

    odd = ([TOKEN] * 40, np.full(40, NUMBER), pd.Series([TOKEN] * 39 + [NUMBER]))
    for number, X in enumerate(features):
        for response in (y, odd[number % 3]):
            done = watch.call(lambda: model().fit(X, response, blocks=[TOKEN] * 40), shown=True)  # noqa: B023
            if not isinstance(done, Exception):
                watch.seen += [done.release_.to_json(), done.release_.summary()]
    watch.call(lambda: model().fit(np.ones((40, 1)), y, blocks=[TOKEN] * 39))
    watch.call(lambda: model().fit(np.ones((40, 1)), y, blocks=np.full((40, 2), TOKEN)))


def test_errors_of_the_estimator_keep_no_canary(tmp_path: Path) -> None:
    seen = Watch(tmp_path)
    dates = pd.DataFrame({"a": [TOKEN] * 40, "b": pd.to_datetime(["2001-01-01"] * 40)})
    for X in ([TOKEN] * 40, np.full((40, 1, 1), TOKEN), dates, [{TOKEN: NUMBER}] * 40):
        model = dpl.LinkedRegression(bounds=(0, 1), response_bounds=(0, 1), linkage=dpl.Exact())
        assert isinstance(seen.call(lambda: model.fit(X, np.ones(40))), dpl.StudyError)  # noqa: B023
    seen.check("")


@pytest.mark.parametrize(
    "text",
    [
        f'income,region,state,"consumption\n{TOKEN}"\n1,north,nsw,"5"\n',
        f"55000,north,nsw,consumption {TOKEN}\n1,north,nsw,5\n",
    ],
)
def test_suggestions_show_no_canary(tmp_path: Path, text: str) -> None:
    (tmp_path / "d.csv").write_text(text, encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="is not in the data") as refused:
        dpl.fit(
            tmp_path / "d.csv", "consumption ~ 1", bounds={"consumption": (0, 1)}, linkage=dpl.Exact(), epsilon=1.0, delta=1e-6
        )  # fmt: skip
    assert not hits(str(refused.value).encode())


# --- rows in the place of settings ----------------------------------------------------------------------


class Row:
    """A record of a library that we do not know: whoever shows it shows its cells."""

    def __init__(self, token: str, number: float) -> None:
        self.token, self.number = token, number

    def __repr__(self) -> str:
        return f"{self.token}: {self.number}"

    def __bool__(self) -> bool:
        raise ValueError(repr(self))

    __float__ = __len__ = __iter__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = lambda self, *_: bool(self)  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def stand_ins(token: str, number: float) -> dict[str, Any]:
    """Data of 60 people, in whatever may stand where a setting should."""
    texts, numbers = ["a", token] * 30, [1.0, number] * 30
    columns = {"x": numbers, "y": numbers, "g": texts, "k": texts}
    table = pa.table(columns)
    return {
        "pandas": pd.DataFrame(columns), "polars": pl.DataFrame(columns), "lazy": pl.DataFrame(columns).lazy(), "arrow": table,
        "mapping": columns, "series": pd.Series(numbers, name="x"), "series of texts": pd.Series(texts), "one cell": pd.Series([number]),
        "polars series": pl.Series(numbers), "chunks": table["x"], "array": np.array(numbers), "array of texts": np.array(texts), "objects": np.array([*texts, number], dtype=object),
        "matrix": np.array([numbers, numbers]), "no dimension": np.array(number), "list": numbers, "list of texts": texts, "tuple": tuple(texts), "set": {*texts, number},
        "records": table.to_pylist(), "by text": {token: number}, "by number": {number: token}, "nested": {"x": {token: [number]}, "y": (token, number)},
        "pair of texts": {"x": (token, token), "y": (token, token)}, "bytes": repr(columns).encode(), "csv": "x,g\n" + "".join(f"{number},{token}\n" for _ in range(9)),
        "json": json.dumps(table.to_pylist()), "object": Row(token, number), "class": type("Record", (), {"x": number, token: number})(), "frames": [pd.DataFrame(columns)],
        "iterator": iter(numbers), "function": lambda: number, "reader": table.to_reader(), "accuracies": pd.DataFrame({"k": [f"{token}{i}" for i in range(60)], "accuracy": numbers}),
        "index": pd.Index(texts), "timestamp": pd.Timestamp("2001-01-01"), "complex": complex(number, 1), "error": ValueError(token, number),
    }  # fmt: skip


STAND_INS = list(stand_ins("", 0.0))
NEIGHBOUR = ("NEIGHBOURz", 11.25)


def positions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every public function and class that takes settings, with arguments that it accepts; each may be replaced."""
    files = two_files(60, 3, errors=1.0)
    linked = dpl.link(files.left, files.right, fields=["given_name", "surname"], id="id")
    linked = linked.audited(review_links(linked.audit_sample(30), files))
    numbers = {"x": np.linspace(0, 1, 60), "y": np.linspace(0, 1, 60), "k": ["p", "q"] * 30, "g": ["a", "b"] * 30}
    bounds, linkage = {"x": (0, 1), "y": (0, 1)}, dpl.ELE(0.9, block="k")
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}
    common = {
        "formula": "y ~ x",
        "bounds": bounds,
        "linkage": linkage,
        **budget,
        "levels": {"g": ["a", "b"]},
        "unit": dpl.PrivacyUnit(),
        "typical": {"x": (0.2, 0.8)},
    }
    study = {
        **common, "method": "ssp", "calibration": "tight", "ranges": "declared", "errors": "any", "fill": {"x": 0.5}, "descent": None, "response_bound": None, "row_norm": None,
        "ridge": None, "large_epsilon": False, "intervals": False, "ledger": None, "population": None, "family": "linear", "exposure": None,
    }  # fmt: skip
    events = {**study, "formula": "g ~ x", "family": "logistic", "bounds": {"x": (0, 1)}}
    counts = {
        **study,
        "formula": "k ~ x",
        "family": "poisson",
        "exposure": "y",
        "bounds": {"x": (0, 1), "k": (0, 3), "y": (0.5, 1)},
    }

    def regression(
        X: Any, y: Any, blocks: Any, *, cls: Any = dpl.LinkedRegression, more: Any = (), **settings: Any
    ) -> Any:
        model = cls(**{name: value for name, value in settings.items() if name not in more})
        assert not hits(f"{model!r}{model._repr_html_()}".encode())
        return model.fit(X, y, blocks=blocks, **{name: settings[name] for name in more})

    def made(cls: Any) -> Callable[..., Any]:
        return lambda **arguments: repr(cls(**arguments))

    shaped = ("method", "calibration", "errors", "descent", "response_bound", "row_norm", "intervals")
    shared = (
        "epsilon", "delta", "linkage", "method", "calibration", "ranges", "errors", "descent", "response_bound", "row_norm", "ridge", "large_epsilon", "intervals",
    )  # fmt: skip
    curved = ("epsilon", "delta", "linkage", "ranges", "large_epsilon", "intervals")
    return {
        "fit": (dpl.fit, {"data": numbers, **study, "release_id": None}),
        "fit events": (dpl.fit, {"data": numbers, **events, "release_id": None}),
        "fit counts": (dpl.fit, {"data": {**numbers, "k": [0, 1] * 30}, **counts, "linkage": dpl.Exact(), "release_id": None}),
        "plan": (
            dpl.plan,
            {"count": 1000, **{name: study[name] for name in (*common, *shaped)}, "epsilon": 1.0, "r_squared": 0.5, "half_width": {"x": 0.5}},
        ),
        "plan events": (
            dpl.plan,
            {"count": 1000, **{name: events[name] for name in common}, "epsilon": 1.0, "family": "logistic", "exposure": None, "response_mean": 0.2},
        ),
        "plan_study": (dpl.plan_study, {"study": dpl.Study(**study), "counts": [1000], "epsilons": [1.0], "r_squared": 0.5, "half_width": None}),
        "plan_split": (dpl.plan_split, {"study": dpl.Study(**study), "count": 1000, "links": [100], "r_squared": 0.5}),
        "Study": (made(dpl.Study), {**study, "data": None}),
        "fit_study": (dpl.fit_study, {"study": dpl.Study(**study), "data": numbers, "release_id": None}),
        "from_toml": (dpl.Study.from_toml, {"path": "absent.toml"}),
        "link": (
            dpl.link,
            {
                "left": files.left, "right": files.right, "fields": ["surname"], "id": "id", "block": None, "method": "rules", "threshold": None,
                "assignment": "greedy", "pairs": None, "settings": None, "engine": "duckdb", "memory": 1e9, "seed": 0, "overlap": None, "duplicates": True,
            },
        ),
        "release_accuracy": (dpl.release_accuracy, {"linked": linked, **budget, "unit": dpl.PrivacyUnit(), "guess": None, "ledger": None, "population": None, "release_id": None}),
        "audit_sample": (linked.audit_sample, {"size": 50, "seed": 0, "key": None}),
        "audited": (linked.audited, {"answers": linked.audit_sample(50), "least_checked": 5, "key": None, "size": None}),
        "ELE": (
            made(dpl.ELE),
            {"accuracy": 0.9, "block": "k", "other": 0.5, "checked": None, "accuracy_error": None, "other_error": None, "shared_error": None, "source": None, "accuracy_min": None, "paid": None, "displaced_links": None},
        ),
        "Matching": (made(dpl.Matching), {"pairs": sp.eye_array(5).tocsr(), "id": None, "column_sum": 1.0, "accuracy_min": 0.0, "carriers": 1}),
        "PrivacyUnit": (made(dpl.PrivacyUnit), {"moves_block": False, "displaced_links": 0, "linkage_change": 0.0}),
        "Descent": (made(dpl.Descent), {"radius": 1.0, "iterations": 3, "step": None}),
        "Query": (made(dpl.Query), {"query": "select 1", "attach": {}, "folder": None}),
        "SparkTable": (made(dpl.SparkTable), {"table": "t"}),
        "Stream": (made(dpl.Stream), {"batches": pa.table(numbers).to_reader(), "contiguous": False, "rows": None}),
        "Field": (made(dpl.Field), {"name": "surname", "kind": None, "compare": None, "threshold": 0.9, "tolerance": 0.0, "weight": 1.0, "right": None}),
        "Ledger": (dpl.Ledger, {"url": "absent.db", "population": None}),
        "Ledger.create": (dpl.Ledger.create, {"url": "absent/b.db", "population": "p", "epsilon": 1.0, "delta": 1e-6}),
        "LinkedRegression": (
            regression,
            {
                "X": np.ones((60, 1)), "y": np.ones(60), "blocks": ["p", "q"] * 30, "bounds": (0, 1), "response_bounds": (0, 1), "unit": None, "fit_intercept": True,
                "typical": None, **{name: study[name] for name in shared},
            },
        ),
        "LinkedLogisticRegression": (
            partial(regression, cls=dpl.LinkedLogisticRegression),
            {"X": np.ones((60, 1)), "y": [0, 1] * 30, "blocks": ["p", "q"] * 30, "bounds": (0, 1), "classes": (0, 1), "typical": None, **{name: study[name] for name in curved}},
        ),
        "LinkedPoissonRegression": (
            partial(regression, cls=dpl.LinkedPoissonRegression, more=("exposure",)),
            {
                "X": np.ones((60, 1)), "y": [0, 1] * 30, "blocks": ["p", "q"] * 30, "bounds": (0, 1), "largest": 3, "exposure": np.ones(60), "exposure_bounds": (0.5, 2),
                **{name: study[name] for name in curved},
            },
        ),
    }  # fmt: skip


POSITIONS = positions()
PLACES = [(name, argument) for name, (_, arguments) in POSITIONS.items() for argument in arguments]
PLAIN = {
    ("plan", "count"),
    ("plan", "epsilon"),
    ("plan events", "count"),
    ("plan events", "epsilon"),
    ("plan_study", "counts"),
    ("plan_study", "epsilons"),
}  # lists of numbers are settings there


def outcome(name: str, replaced: dict[str, str], cells: tuple[str, float]) -> tuple[Any, list[str]]:
    """How a call ends with rows in some places, and all that it shows."""
    call, arguments = POSITIONS[name]
    given = {argument: stand_ins(*cells)[kind] for argument, kind in replaced.items()}
    log = Watch(Path())
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = log.call(lambda: call(**{**arguments, **given}))
    finally:
        root.removeHandler(log)
        root.setLevel(before)
    shown = [*log.seen, *(str(warning.message) for warning in said)]
    kind = type(result)
    return (kind, str(result) if isinstance(result, Exception) else "", [str(w.message) for w in said]), shown


def check_places(name: str, replaced: dict[str, str]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):  # rows in the place of a path may become a file's name
        compare_places(name, replaced)


def compare_places(name: str, replaced: dict[str, str]) -> None:
    found, shown = outcome(name, replaced, (TOKEN, NUMBER))
    settings = any((name, argument) in PLAIN for argument in replaced)
    if not settings or issubclass(found[0], Exception):
        assert not [text for text in shown if hits(text.encode("utf-8", "surrogateescape"))], (name, replaced, found)
    foreign = issubclass(found[0], Exception) and not issubclass(found[0], dpl.DplinkedError)
    assert not foreign or (name.endswith("Regression") and found[0] is TypeError), (name, replaced, found)
    if not settings:
        assert found == outcome(name, replaced, NEIGHBOUR)[0], (name, replaced)


@pytest.mark.parametrize("share", [pytest.param(8, id="an eighth"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "argument"), PLACES)
def test_rows_in_the_place_of_a_setting_show_nothing(
    name: str, argument: str, share: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither in messages nor in reprs, and what comes of it is the same for neighbours; by default an eighth of the stand-ins, in turn."""
    monkeypatch.chdir(tmp_path)
    for kind in list(STAND_INS)[PLACES.index((name, argument)) % share :: share]:
        check_places(name, {argument: kind})


ANY_PLACES = st.sampled_from(sorted(POSITIONS)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.dictionaries(st.sampled_from(list(POSITIONS[name][1])), st.sampled_from(STAND_INS), min_size=1, max_size=5),
    )
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(places=ANY_PLACES)
def test_rows_in_several_places_show_nothing(places: tuple[str, dict[str, str]]) -> None:
    check_places(*places)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(places=ANY_PLACES)
def test_rows_in_several_places_show_nothing_at_length(places: tuple[str, dict[str, str]]) -> None:
    check_places(*places)


def toml_rows(token: str, number: float) -> list[str]:
    """Rows as values of TOML."""
    return [
        f"[{number}, {number}, 1.0]", f'["{token}", "{token}"]', f'{{ x = {number}, y = "{token}" }}', f'{{ "{token}" = {number} }}', f'[["{token}", {number}]]',
        f'"""\n{token},{number}\n{token},{number}\n"""', f'[{{ x = "{token}" }}, {{ x = {number} }}]',
    ]  # fmt: skip


SETTINGS = [line for line in LEDGER_STUDY.splitlines() if "=" in line]


@pytest.mark.parametrize("line", range(len(SETTINGS)))
def test_rows_in_a_study_file_show_nothing(watch: Watch, line: int) -> None:
    """As values of its settings; an exit code and a message are the same for neighbours."""
    pq.write_table(households(), watch.folder / "linked.parquet")
    for first, second in zip(toml_rows(TOKEN, NUMBER), toml_rows(*NEIGHBOUR), strict=True):
        faults = []
        for value in (first, second):
            key = SETTINGS[line].split(" = ")[0]
            study = LEDGER_STUDY.replace(SETTINGS[line], f"{key} = {value}")
            fault = watch.call(lambda: dpl.fit_study(read := dpl.Study.from_text(study, watch.folder), read.data))  # noqa: B023
            faults.append((type(fault), str(fault).replace(str(watch.folder), "")))
        assert faults[0] == faults[1]
        assert issubclass(faults[0][0], dpl.DplinkedError), faults


@pytest.mark.parametrize(
    "text",
    [
        "{token},{number}\n{token},1\n",
        "{token} = {number}\n",
        "[{token}]\na = {number}\n{token}",
        "{token} = 1\n{token} = {number}\n",
        '"{token}',
    ],
)
def test_rows_for_a_study_file_show_nothing(watch: Watch, text: str) -> None:
    faults = []
    for token, number in ((TOKEN, NUMBER), NEIGHBOUR):
        study = watch.folder / "study.toml"
        study.write_text(text.format(token=token, number=number), encoding="utf-8")
        faults.append(str(watch.call(lambda: dpl.Study.from_toml(study))))  # noqa: B023
        assert watch.run("fit", study) == 2
        study.unlink()
    assert re.sub(r"column \d+", "", faults[0]) == re.sub(r"column \d+", "", faults[1])


# --- linking: the steward's results, but everybody's errors --------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    files = two_files(200, 3, errors=1.0)
    for name, table in (("a", files.left), ("b", files.right)):
        pyarrow.csv.write_csv(table, folder / f"{name}.csv")
    return folder


def write_cells(source: Path, path: Path, column: str, *cells: bytes) -> None:
    """Copy a CSV file with the first cells of a column replaced."""
    lines = [line.split(b",") for line in source.read_bytes().splitlines()]
    at = [name.strip(b'"') for name in lines[0]].index(column.encode())
    for line, cell in zip(lines[1:], cells, strict=False):
        line[at] = cell
    path.write_bytes(b"\n".join(map(b",".join, lines)) + b"\n")


CANARY = TOKEN.encode()
LINK_FAULTS: dict[str, tuple[str, tuple[bytes, ...], list[str]]] = {
    "two ids": ("id", (CANARY, CANARY), []),
    "broken id": ("id", (b"\xff" + CANARY,), []),
    "broken field": ("surname", (b"\xff" + CANARY,), []),
    "broken block": ("state", (b"\xff" + CANARY,), ["--block", "state"]),
    "reserved block": ("state", (b"(last)", CANARY, b"(all)", b"(other)"), ["--block", "state"]),
    "long row": ("surname", (CANARY + b"," + CANARY,), []),
    "open quote": ("surname", (b'"' + CANARY,), []),
    "unknown field": ("surname", (CANARY,), ["--field", "surnames"]),
    "no memory": ("surname", (CANARY,), ["--memory", "1e-9"]),
    "canary as audit": ("surname", (CANARY,), ["--audited", "a.csv"]),
    "canary as settings": ("surname", (CANARY,), ["--method", "splink", "--settings", "a.csv"]),
    "canary as pairs": ("surname", (CANARY,), ["--method", "pairs", "--pairs", "a.csv"]),
    "not registered": ("surname", (CANARY,), ["--release-accuracy", "1", "--delta", "1e-6", "--displaced-links", "0"]),
}


@pytest.mark.parametrize("fault", LINK_FAULTS)
def test_errors_of_linking_show_no_canary(watch: Watch, two: Path, fault: str) -> None:
    column, cells, options = LINK_FAULTS[fault]
    write_cells(two / "a.csv", watch.folder / "a.csv", column, *cells)
    (watch.folder / "b.csv").write_bytes((two / "b.csv").read_bytes())
    watch.given(watch.folder / "a.csv")
    field = [] if "--field" in options else ["--field", "surname"]
    assert watch.run("link", "a.csv", "b.csv", "--out", "out", "--id", "id", *field, *options) == 2
    assert not (watch.folder / "out").exists()


@pytest.mark.parametrize(
    "table",
    [
        {"left_id": [TOKEN], "right_id": [TOKEN], "correct": ["yes"]},
        {"left_id": [TOKEN, TOKEN], "right_id": ["1", None], "correct": ["yes", "no"]},
        {"left_id": [NUMBER], "right_id": [NUMBER], "correct": [TOKEN]},
        {"left_id": [TOKEN], "correct": [TOKEN]},
        {"left_id": [[TOKEN]], "right_id": [{"a": NUMBER}], "correct": ["yes"]},
        {"left_id": ["ok"], "right_id": ["ok"], "correct": [TOKEN]},
    ],
)
def test_errors_of_audits_show_no_canary(watch: Watch, two: Path, table: dict[str, Any]) -> None:
    linked = dpl.link(two / "a.csv", two / "b.csv", fields=["surname", "given_name"], id="id")
    if table["left_id"] == ["ok"]:
        sample = linked.audit_sample(10)
        table = {"left_id": sample["left_id"], "right_id": sample["right_id"], "correct": [TOKEN] * sample.num_rows}
    assert isinstance(watch.call(lambda: linked.audited(pa.table(table))), dpl.StudyError)


def test_released_accuracies_show_no_canary(watch: Watch, two: Path) -> None:
    files = two_files(200, 3, errors=1.0)
    surnames = files.left["surname"].to_pylist()
    left = files.left.set_column(
        files.left.column_names.index("surname"), "surname", pa.array([TOKEN, str(NUMBER), *surnames[2:]])
    )
    linked = dpl.link(left, files.right, fields=["given_name", "surname", "date_of_birth"], id="id", block="state")
    linked = linked.audited(review_links(linked.audit_sample(60), files))
    path = watch.folder / "budget.db"
    book = Ledger.create(path, "p", epsilon=5.0, delta=1e-5)
    options: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": dpl.PrivacyUnit(), "ledger": path}
    assert isinstance(watch.call(lambda: dpl.release_accuracy(linked, **options)), dpl.LedgerError)
    book.register(left)
    book.register(files.right)
    released = watch.call(lambda: dpl.release_accuracy(linked, **options))
    released.save(watch.folder / "accuracy.json")
    assert [event.kind for event in book.events()].count("charge") == 1


# --- the same with all of Python's warnings ------------------------------------------------------------

DRIVER = """
import sys
from dplinked.cli.main import main
for line in sys.stdin.read().splitlines():
    sys.argv = line.split("\\t")
    try:
        main()
    except SystemExit as stopped:
        print("exit", stopped.code)
"""


@pytest.mark.slow
def test_no_canary_in_development_mode(tmp_path: Path) -> None:
    """With -X dev and PYTHONWARNINGS=always, one process for all files."""
    lines, inputs = [], set()
    for number, (name, data) in enumerate(CASES.values()):
        folder = tmp_path / f"f{number}"
        folder.mkdir()
        lines += ["\t".join(["dplinked", *map(str, command)]) for command in commands(make_study(folder, name, data))]
        inputs.add(folder / name)
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", DRIVER], input="\n".join(lines).encode(), capture_output=True, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONWARNINGS": "always", "TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.count(b"\nexit ") >= len(lines) - 1
    assert not hits(done.stdout + done.stderr)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path not in inputs:
            assert not hits(path.read_bytes()), path


def test_logs_hold_no_key_and_no_fingerprint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study = dpl.Study.from_toml(make_study(tmp_path, "d.csv", csv_with("income", "1", 1)))
    book = Ledger(tmp_path / "budget.db")
    key = (tmp_path / "budget.db.key").read_text(encoding="ascii").strip()
    mark = book.fingerprint(tmp_path / "d.csv")
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    dpl.fit_study(study, study.data)
    assert key not in caplog.text
    assert mark not in caplog.text


# --- random numbers ------------------------------------------------------------------------------------

DOOR = {"dplinked.privacy.noise"}  # draws the noise, with OpenDP
IDS = {
    "dplinked.ledger.events",
    "dplinked.ledger.key",
}  # draws ids, nonces and keys, with `secrets`
STEWARD = ("dplinked.linkage", "dplinked.linker", "dplinked.not_private")


def random_uses(tree: ast.AST) -> set[str]:
    """Names by which Python code draws random numbers, or takes a seed."""
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.Name):
            names = [node.id]
        parts = {part for name in names for part in name.split(".")}
        found |= parts & {
            "random",
            "secrets",
            "urandom",
            "default_rng",
            "Generator",
            "RandomState",
            "seed",
            "rng",
            "random_state",
            "rvs",
            "opendp",
        }
    return found


def uses_of(module: str) -> set[str]:
    return random_uses(ast.parse(inspect.getsource(importlib.import_module(module))))


# SQL engines order the rows of a block by random numbers, to find partners, and so does the kernel where DuckDB copied them: the same law for all neighbours, and no noise.
ORDERS = {f"dplinked.sums.sql.{name}" for name in ("blocks", "dialect", "duckdb_engine", "spark")}
COPIED_ORDERS = {"dplinked.sums.numpy.circle"}


def test_releases_draw_random_numbers_at_the_door_only() -> None:
    """Of all modules of ours that `dplinked.fit` imports, directly or not, one draws noise, one ids, and none takes a seed.

    `dplinked.linker.release_accuracy` also imports linking, which draws ties and samples by a seed. Without the modules of linking the same holds for it,
    and what it takes from them (a class, constants, and functions checked one by one) draws nothing.
    """
    graph = grimp.build_graph("dplinked")
    loaded = {engine.module for engine in ENGINES}  # by name, when their data comes
    reached = {"dplinked.fitting", *loaded}.union(*map(graph.find_upstream_modules, ("dplinked.fitting", *loaded)))
    assert not any(module.startswith(("dplinked.not_private", "dplinked.linker")) for module in reached)
    assert {module for module in reached if uses_of(module)} == DOOR | IDS | ORDERS | COPIED_ORDERS
    assert all(uses_of(module) == {"random"} for module in ORDERS)
    assert all(uses_of(module) == {"random", "default_rng", "Generator"} for module in COPIED_ORDERS)
    assert uses_of(*DOOR) == {"opendp"}
    assert all(uses_of(module) == {"secrets"} for module in IDS)

    taken = graph.find_modules_directly_imported_by("dplinked.linker.release_accuracy")
    for module in list(taken):
        if module.startswith(STEWARD):
            graph.remove_import(importer="dplinked.linker.release_accuracy", imported=module)
    reached = graph.find_upstream_modules("dplinked.linker.release_accuracy") | {"dplinked.linker.release_accuracy"}
    assert {module for module in reached if uses_of(module)} == DOOR | IDS
    tree = ast.parse(inspect.getsource(sys.modules["dplinked.linker.release_accuracy"]))
    taken_names = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(STEWARD)
        for alias in node.names
    }
    assert {name for _, name in taken_names} == {
        "ELE",
        "PrivacyUnit",
        "SecretSample",
        "known_accuracies",
        "count_together",
        "name_counts",
        "LATE",
        "UNLINKED",
        "BLOCK",
        "Linked",
    }
    called = (
        known_accuracies, shrink_accuracies, accuracy_table, make_strata, count_together,
        name_counts,
    )  # fmt: skip
    for function in (*called, dpl.ELE.exposure):
        assert not random_uses(ast.parse(inspect.cleandoc("\n" + inspect.getsource(function))))


def test_releases_do_not_touch_seeded_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path runs with NumPy's and Python's generators taken away."""
    data = {"x": np.linspace(0, 1, 60), "y": np.linspace(0, 1, 60), "k": ["a", "b", "c"] * 20}
    files = two_files(200, 3, errors=1.0)
    linked = dpl.link(
        files.left, files.right, fields=["given_name", "surname", "date_of_birth"], id="id", block="state"
    )
    linked = linked.audited(review_links(linked.audit_sample(60), files))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a seeded generator was asked")

    for name in (
        "default_rng",
        "RandomState",
        "Generator",
        "seed",
        "random",
        "normal",
        "standard_normal",
        "permutation",
    ):
        monkeypatch.setattr(np.random, name, refuse)
    for name in ("seed", "random", "gauss", "choice", "getrandbits"):
        monkeypatch.setattr(random, name, refuse)
    options: dict[str, Any] = {
        "bounds": {"x": (0, 1), "y": (0, 1)},
        "linkage": dpl.ELE(0.9, block="k"),
        "epsilon": 0.9,
        "delta": 1e-5,
    }
    for extra in (
        {}, {"intervals": False}, {"ranges": "private"}, {"method": "ngd"}, {"calibration": "paper"},
        {"calibration": "paper", "method": "ngd", "descent": dpl.Descent(1.0, 2, 1e-3)},
    ):  # fmt: skip
        assert dpl.fit(data, "y ~ x", **options, **extra).summary()
    dpl.release_accuracy(linked, epsilon=0.5, delta=1e-6, unit=dpl.PrivacyUnit())


@pytest.mark.parametrize(
    "given", [pd.Series([float(NUMBER), 2.0]), pd.Series([TOKEN, "b"]), {TOKEN: 1.0}, f"{TOKEN}," * 200]
)
def test_methods_of_a_release_show_no_canary(given: Any) -> None:
    """Rows in the place of what a release or a model is asked."""
    rows = {"x": np.linspace(0, 1, 30), "y": np.linspace(0, 1, 30)}
    release = dpl.fit(rows, "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=dpl.Exact(), epsilon=1.0, delta=1e-6)
    model = dpl.LinkedRegression(bounds=(0, 1), response_bounds=(0, 1), linkage=dpl.Exact(), delta=1e-6)
    model.fit(rows["x"][:, None], rows["y"])
    for call in (
        release.test,
        release.in_region,
        release.save,
        release.submodel,
        release.ridge,
        dpl.Release.load,
        model.predict,
    ):
        with pytest.raises((dpl.StudyError, TypeError, ValueError)) as fault:
            call(given)
        chain = [
            fault.value,
            fault.value.__cause__,
            fault.value.__context__ if not fault.value.__suppress_context__ else None,
        ]
        assert not any(canary in str(error) for error in chain if error for canary in (TOKEN, str(NUMBER)))
