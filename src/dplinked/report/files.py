"""Reports as files."""

from __future__ import annotations

from pathlib import Path

from dplinked.errors import StudyError, shown


def write_or_return(text: str, path: str | Path | None) -> str | None:
    """Write a text to a file if there is one, else return it."""
    if path is None:
        return text
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError):
        raise StudyError(f"{shown(Path(path).name)} cannot be written. Choose a file in an existing folder.") from None
    return None
