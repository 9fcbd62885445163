"""The whole path outside the studio: a notebook and a shell script that run from top to bottom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dplinked as dpl
from dplinked.studio.desk import Desk
from dplinked.studio.whole import Part, as_notebook, as_script, parts_of

shiny = pytest.importorskip("shiny", reason="the studio needs Shiny: pip install 'dplinked[studio]'")


def parts(desk: Desk) -> list[Part]:
    from dplinked.studio.room import Room

    with shiny.reactive.isolate():
        room = Room(desk)
        return parts_of(room)


def check_notebook(text: str) -> list[str]:
    """The code cells of a notebook, which must be one of nbformat 4.5."""
    whole = json.loads(text)
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert set(whole) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert whole["metadata"]["kernelspec"].keys() >= {"name", "display_name"}
    ids = [cell["id"] for cell in whole["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in whole["cells"]:
        own = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | own
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
    return ["".join(cell["source"]) for cell in whole["cells"] if cell["cell_type"] == "code"]


def run(cells: list[str], folder: Path) -> str:
    """Run cells one after the other, as a kernel does."""
    code = "import json, sys\nspace = {}\nfor cell in json.load(sys.stdin):\n    exec(compile(cell, 'cell', 'exec'), space)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(cells), cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook_runs_from_top_to_bottom(folder: Path) -> None:
    (folder / "release-1.json").write_text("{}")
    cells = check_notebook(as_notebook(parts(Desk(folder, "study.toml"))))
    said = run(cells, folder)
    assert "Ready: nothing was seen" in said
    assert "Balance(population='households'" in said
    release = dpl.Release.load(folder / "release-2.json")
    assert release.formula == "consumption ~ income + C(region)"
    assert (folder / "release-2.html").is_file()
    assert sum("import dplinked as dpl" in cell for cell in cells) == 1
    run(cells, folder)  # again: the ledger has the release
    assert dpl.Release.load(folder / "release-2.json") == release


@pytest.mark.slow
def test_the_script_runs_from_top_to_bottom(folder: Path) -> None:
    (folder / "studio.sh").write_text(as_script(parts(Desk(folder, "study.toml"))), encoding="utf-8")
    tools = folder / "bin"
    tools.mkdir()
    (tools / "dplinked").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dplinked.cli "$@"\n')
    (tools / "dplinked").chmod(0o755)
    path = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "studio.sh"], cwd=folder, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "The chain holds." in done.stdout
    assert dpl.Release.load(folder / "release-1.json").count == 2000


def test_what_was_typed_and_not_saved_is_written_to_a_new_file(folder: Path) -> None:
    desk = Desk(folder, "study.toml")
    typed = (folder / "study.toml").read_text().replace("epsilon = 1.0", 'epsilon = 0.5  # it\'s "half"')
    desk.keep_work(desk.workspace.with_text("study.toml", typed, (folder / "study.toml").read_text()))
    found = parts(Desk(folder, "study.toml"))
    (cell,) = [part.python for part in found if part.title == "Study"]
    assert cell is not None
    run([cell], folder)
    assert (folder / "study1.toml").read_text() == typed
    (folder / "study1.toml").unlink()
    (line,) = [part.shell for part in found if part.title == "Study"]
    subprocess.run(["sh", "-c", str(line)], cwd=folder, check=True)
    assert (folder / "study1.toml").read_text() == typed


def test_steps_that_are_not_ready_are_left_out(tmp_path: Path) -> None:
    found = parts(Desk(tmp_path))
    assert found == []
    assert check_notebook(as_notebook(found)) == []
    subprocess.run(["sh", "-c", as_script(found)], cwd=tmp_path, check=True)
