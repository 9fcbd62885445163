"""The page *Half an hour*: its commands, in their order, lead from two files of an office to a page that may be published."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from dplinked.cli.main import main
from dplinked.simulate import review_links

PAGE = (Path(__file__).parents[2] / "docs" / "half-hour.md").read_text(encoding="utf-8")
PYTHON, SHELL, TOML = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "sh", "toml"))
SECRETS = ("fletcher", "A0000001", "2003-09-15")  # names, ids and dates of the files


def fill_in(audit: Path, people: Any) -> None:
    """A reviewer's answers, saved by a spreadsheet program of a country with decimal commas."""
    table = review_links(pyarrow.csv.read_csv(audit), people)
    pyarrow.csv.write_csv(table, audit, pyarrow.csv.WriteOptions(delimiter=";"))


def test_the_commands_lead_to_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda *_, **__: str(tmp_path))
    space: dict[str, Any] = {}
    fewer = PYTHON[0].replace("two_files(2_000", "two_files(500")  # the same commands, in seconds
    exec(compile(fewer, "half-hour.md", "exec"), space)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    done: dict[str, tuple[int, str]] = {}

    def run(command: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return int(stopped.value.code or 0), shown.out + shown.err

    for command in (block.strip() for block in SHELL):
        if command.startswith("cat "):
            (source, target) = command.removeprefix("cat ").split(" >> ")
            Path(target).write_text(TOML[0] + "\n" + Path(source).read_text(encoding="utf-8"), encoding="utf-8")
            continue
        code, said = run(command)
        name = command.split()[1]
        expected = 2 if name == "link" and "--separator" not in command else 0
        assert code == expected, (command, said)
        done[f"{name}{len(done)}"] = code, said
        if expected == 2:
            assert '--separator ";" --decimal , --encoding latin-1' in said
        if "--audit-sample" in command and not expected:
            fill_in(Path("linked/audit.csv"), space["people"])
        if name == "plan":
            assert "Assumes columns" in said
            assert "declare its typical range" not in said
        if name == "fit":
            assert "nobody has looked" not in said
    assert [name.rstrip("0123456789") for name in done] == ["link", "link", "link", "check", "plan", "fit", "report"]
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert "income" in page
    assert not any(secret in page for secret in SECRETS)
    assert "FOR THE STEWARD ONLY" in Path("check.html").read_text(encoding="utf-8")
