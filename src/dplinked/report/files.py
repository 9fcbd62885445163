"""Reports as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dplinked.errors import StudyError, raise_alone, shown

HTML = (".html", ".htm")


def check_ending(path: str | Path, endings: Sequence[str]) -> None:
    """Refuse a file whose name promises another format than is written. A name without an ending promises none."""
    ending = Path(path).suffix
    if ending and ending.lower() not in endings:
        raise StudyError(
            f"{shown(Path(path).name)} ends in {shown(ending)}, and that is not what is written here. Choose a name that ends in {', '.join(endings)}."
        )


def write_or_return(text: str, path: str | Path | None, endings: Sequence[str]) -> str | None:
    """Write a text to a file with one of these endings if there is one, else return it."""
    if path is None:
        return text
    check_ending(path, endings)
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError):
        raise_alone(StudyError(f"{shown(Path(path).name)} cannot be written. Choose a file in an existing folder."))
    return None
