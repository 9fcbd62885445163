"""Study files that the command line is tested with: the demo's, with a declared accuracy, and with a ledger."""

from __future__ import annotations

from pathlib import Path

from dplinked.cli.demo import DEMO_STUDY

STUDY = (
    DEMO_STUDY
    + """[linkage]
block = "state"
accuracy = 0.91
"""
)
LEDGER_STUDY = (
    STUDY
    + """
[ledger]
url = "budget.db"
population = "households"
"""
)


def edit(folder: Path, old: str, new: str) -> Path:
    """Replace a text in a folder's study, which must have it."""
    path = folder / "study.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path
