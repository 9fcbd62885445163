"""The command line in the tests' own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dplinked.cli.main import main

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same in this process, without the seconds that a start takes."""
    monkeypatch.setenv("COLUMNS", "100")

    def run_main(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["dplinked", *map(str, arguments)])
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(stopped.value.code or 0), shown.out, shown.err)

    return run_main
