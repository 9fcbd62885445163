"""Engines by what they accept, and data that a ledger knows again whichever engine reads it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.sums import engine, files

N = 120
BOUNDS = {"x": (-1.0, 1.0), "y": (-3.0, 3.0)}


def records() -> list[dict[str, float]]:
    rng = np.random.default_rng(1)
    return [{"x": float(x), "y": float(y), "k": i // 10} for i, (x, y) in enumerate(rng.uniform(-1, 1, (N, 2)))]


def write_json(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, records())), encoding="utf-8")
    return path


def write_csv(folder: Path, names: tuple[str, ...] = ("rows.csv",)) -> Path:
    lines = [",".join(map(str, record.values())) for record in records()]
    for i, name in enumerate(names):
        (folder / name).write_text("\n".join(["x,y,k", *lines[i :: len(names)], ""]), encoding="utf-8")
    return folder / names[0]


def write_several(folder: Path) -> Path:
    write_csv(folder, ("part-0.csv", "part-1.csv"))
    return folder / "part-*.csv"


FILES: dict[str, Callable[[Path], Path]] = {"json": write_json, "large csv": write_csv, "several csv": write_several}


@pytest.fixture(params=FILES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that DuckDB reads."""
    pytest.importorskip("duckdb")
    monkeypatch.setattr(files, "LARGEST_TEXT", 0)
    return FILES[request.param](tmp_path)


def declare(folder: Path) -> dpl.Study:
    return dpl.Study(
        formula="y ~ x",
        bounds=BOUNDS,
        epsilon=0.5,
        delta=1e-6,
        linkage=dpl.ELE(0.8, block="k"),
        unit=dpl.PrivacyUnit(),
        ledger=folder / "ledger.db",
    )


def test_files_are_known_by_their_bytes_whoever_reads_them(path: Path, tmp_path: Path) -> None:
    ledger = dpl.Ledger.create(tmp_path / "ledger.db", "people", epsilon=3.0, delta=1e-5)
    with pytest.raises(dpl.LedgerError, match="not registered"):
        dpl.fit_study(declare(tmp_path), path)
    ledger.register(path, linkage=dpl.ELE(0.8, block="k"))
    assert dpl.fit_study(declare(tmp_path), path).count == N
    first = min(path.parent.glob(path.name))
    first.write_text(first.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(dpl.LedgerError, match="not registered"):
        dpl.fit_study(declare(tmp_path), path)


@pytest.mark.parametrize("moment", ["check_content", "reserve"])
def test_files_that_change_while_they_are_read_stop_the_release(
    path: Path, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the charge or after it, even if the very same bytes are back."""
    ledger = dpl.Ledger.create(tmp_path / "ledger.db", "people", epsilon=3.0, delta=1e-5)
    ledger.register(path, linkage=dpl.ELE(0.8, block="k"))
    original = getattr(dpl.Ledger, moment)

    def exchange(*arguments: object, **named: object) -> object:
        first = min(path.parent.glob(path.name))
        content = first.read_bytes()
        first.unlink()
        first.write_bytes(content)
        os.utime(first, ns=(1, 1))
        return original(*arguments, **named)

    monkeypatch.setattr(dpl.Ledger, moment, exchange)
    with pytest.raises(dpl.DplinkedError) as fault:
        dpl.fit_study(declare(tmp_path), path)
    assert "changed while it was read" in str(fault.value) or "after it was charged" in str(fault.value)
    assert (ledger.balance().spent == 0) == (moment == "check_content")


def given(tmp_path: Path) -> dict[str, Any]:
    """Data of every kind, by the engine that opens it."""
    table = pa.table({"x": [0.5]})
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    return {
        "duckdb": [dpl.Query("select 1 as x")],
        "spark": [dpl.SparkTable("rows")],
        "streams": [batches, dpl.Stream(batches)],
        "files": [tmp_path, str(tmp_path), write_json(tmp_path)],
        "tables": [table, {"x": [0.5]}, [1.0]],
    }


def test_every_kind_of_data_has_its_engine(tmp_path: Path) -> None:
    found = {name: [engine.find_engine(one).name for one in data] for name, data in given(tmp_path).items()}
    assert found == {name: [name] * len(names) for name, names in found.items()}


@pytest.mark.parametrize("registered", engine.ENGINES, ids=lambda registered: registered.name)
def test_engines_have_what_the_interface_asks_for(registered: engine.Engine) -> None:
    if registered.package is not None:
        pytest.importorskip(registered.package)
    module = registered.load()
    assert all(callable(getattr(module, name)) for name in ("resolve_data", "open_data", "data_content"))


def test_engines_are_told_apart_without_their_packages() -> None:
    code = (
        "import sys, dplinked as dpl\n"
        "from dplinked.sums.engine import find_engine\n"
        "data = (dpl.Query('select 1'), dpl.SparkTable('t'), {}, 'a.csv')\n"
        "print([find_engine(one).name for one in data], {'duckdb', 'pyspark'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['duckdb', 'spark', 'tables', 'files'] set()"


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(dpl.StudyError, match=r"not installed: pip install 'dplinked\[duckdb\]'\."):
        engine.open_source(dpl.Query("select 1 as x"))


def test_a_new_engine_takes_a_module_and_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pickled rows, say: nothing but the registry is told of them, and fit, check and the ledger take them."""
    (tmp_path / "rows_of_pickles.py").write_text(
        "import pickle\n"
        "from dplinked.data.table import Rows\n"
        "from dplinked.sums.numpy.tables import Tables\n"
        "def resolve_data(data): return data\n"
        "def open_data(data, columns=None, *, once=False, progress=None):\n"
        "    return Tables(Rows(pickle.loads(data), columns), progress, pickle.loads(data))\n"
        "def data_content(data): return open_data(data).content()\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    pickles = engine.Engine("pickles", lambda data: isinstance(data, bytes), "rows_of_pickles")
    monkeypatch.setattr(engine, "ENGINES", (pickles, *engine.ENGINES))
    columns = {name: np.array([record[name] for record in records()]) for name in ("x", "y", "k")}
    data = pickle.dumps(columns)
    ledger = dpl.Ledger.create(tmp_path / "ledger.db", "people", epsilon=3.0, delta=1e-5)
    ledger.register(data, linkage=dpl.ELE(0.8, block="k"))
    assert dpl.fit_study(declare(tmp_path), data).count == N
    assert ledger.fingerprint(data) == ledger.fingerprint(columns)
