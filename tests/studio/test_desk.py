"""What the windows of a studio share: studies as files, one job at a time, releases that are kept."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from browsing import wait_for

import dplinked as dpl
from dplinked.studio.desk import Desk, Fault, Job, Made, attempt
from dplinked.studio.serve import run_studio


def test_only_our_own_errors_are_shown() -> None:
    def fails() -> None:
        raise ValueError("a cell")

    assert attempt(fails) == Fault("Unexpected error; please report it.")
    refused = attempt(lambda: dpl.ELE(2.0))
    assert isinstance(refused, Fault)
    assert "accuracy must lie" in refused.text


@pytest.mark.parametrize("name", ["", "a", "../a.toml", "/etc/a.toml", "a/b.toml", "a\n.toml", ".toml/"])
def test_files_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(dpl.StudyError, match="is not a name for a study file"):
        desk.read(name)
    with pytest.raises(dpl.StudyError, match="is not a name for a study file"):
        desk.write(name, "", None)


def test_a_file_is_not_overwritten_unseen(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write("a.toml", "one", None)
    with pytest.raises(dpl.StudyError, match="is there already"):
        desk.write("a.toml", "two", None)
    desk.write("a.toml", "two", "one")
    assert desk.read("a.toml") == "two"
    assert (desk.study_files(), desk.free_name()) == (["a.toml"], "study.toml")


def test_one_release_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going, begun = threading.Event(), []

    def slow(*_: Any, progress: Any, **__: Any) -> Any:
        begun.append(progress("reading", 1, 2))
        going.wait(90)
        raise dpl.BudgetError("No.")

    monkeypatch.setattr("dplinked.studio.desk.fit_study", slow)
    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    desk.release(study, None)
    with pytest.raises(dpl.StudyError, match="is running already"):
        desk.release(study, None)
    going.set()
    made_on(desk)
    assert len(begun) == 1
    assert desk.job == Job("release", running=False, fault=Fault("No."))


def test_a_job_is_stopped_only_if_it_may_be(tmp_path: Path) -> None:
    desk, going, done = Desk(tmp_path), threading.Event(), []

    def work(report: Any) -> None:
        report("one", 1, 2)
        going.wait(90)
        report("two", 2, 2)
        done.append(True)

    for stoppable in (True, False):
        going.clear()
        desk.start("link", work, stoppable=stoppable)
        wait_for(lambda: desk.job.title == "one")
        desk.stop()
        going.set()
        wait_for(lambda: not desk.job.running)
        assert desk.job.fault == (Fault("Stopped. Nothing was written.") if stoppable else None)
        assert done == [] or not stoppable
    assert done == [True]


def made_on(desk: Desk) -> tuple[Made, ...]:
    """What was made, as soon as nothing is running any more."""
    wait_for(lambda: desk.job is not None and not desk.job.running)
    return desk.made


def test_a_release_is_written_before_it_is_shown(folder: Path) -> None:
    (folder / "release.json").write_text("mine")
    (folder / "release-2.json").symlink_to(folder / "nowhere")
    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    desk.release(study, "first")
    (made,) = made_on(desk)
    assert (made.file, made.stored) == ("release-3.json", False)
    assert dpl.Release.load(folder / "release-3.json") == made.release
    assert (folder / "release.json").read_text() == "mine"
    assert not (folder / "nowhere").exists()

    desk.release(study, "first")  # the ledger has it: nothing is spent, and nothing is written twice
    again = made_on(desk)[-1]
    assert (again.file, again.stored, again.release) == ("release-3.json", True, made.release)
    desk.release(study, "second", again=True)
    another = made_on(desk)[-1]
    assert (another.file, another.stored) == ("release-4.json", False)


def test_a_release_that_cannot_be_written_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves no file that looks like a release, and the page keeps it."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    def open_full(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        opened = whole(path, mode, *rest, **options)
        if mode != "x":
            return opened
        opened.close()
        return Full()

    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    whole = Path.open
    monkeypatch.setattr(Path, "open", open_full)
    desk.release(study, None)
    (made,) = made_on(desk)
    assert {path for path in folder.iterdir() if path.suffix == ".json"} == set()
    assert isinstance(made.file, Fault)
    assert "could not be written to the study's folder" in made.file.text
    assert made.release.count == 2000
    assert desk.job == Job("release", running=False)


def test_paying_anew_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(*_: Any, again: bool, **__: Any) -> Any:
        asked.append(again)
        raise dpl.BudgetError("No.")

    monkeypatch.setattr("dplinked.studio.desk.fit_study", refuse)
    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    desk.release(study, None)
    made_on(desk)
    desk.release(study, None, again=True)
    made_on(desk)
    assert asked == [False, True]


def test_it_says_why_it_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dpl.StudyError, match=r"no study file 'absent\.toml'"):
        run_studio(tmp_path / "absent.toml")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(dpl.StudyError, match="cannot be used"):
            run_studio(None, port=taken.getsockname()[1])
    monkeypatch.setattr("dplinked.studio.serve.find_spec", lambda name: None)
    with pytest.raises(dpl.StudyError, match="pip install 'dplinked"):
        run_studio(None)


def test_the_library_does_not_load_the_studio() -> None:
    code = "import sys, dplinked, dplinked.cli.main; print([m for m in sys.modules if 'studio' in m or m in ('shiny', 'uvicorn')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
