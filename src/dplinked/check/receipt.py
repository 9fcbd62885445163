"""A receipt that a study and its data were looked at: *that* they were, never *what* was seen.

It is a file beside the study that holds digests of the study's text, of the place of its data and of when its files were last written. Nothing in it comes from
rows, and it is written whatever the verdict. A release does not read it: `dplinked fit` does, to remind who has not looked.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dplinked.data.files import Files
from dplinked.data.fingerprint import locate, source_place
from dplinked.data.sources import Query
from dplinked.errors import DplinkedError

_MOST = 50  # digests that are kept


def receipt_path(study: Path) -> Path:
    """The file of a study's receipts."""
    return study.with_name(f"{study.name}.checked")


def keep_receipt(study: Path, data: Any) -> bool:
    """Note that a study's data was looked at. Returns False if that cannot be written."""
    digest, path = _digest(study, data), receipt_path(study)
    if digest is None:
        return False
    kept = [one for one in _read(path) if one != digest]
    try:
        path.write_text(json.dumps([*kept[1 - _MOST :], digest], indent=1) + "\n", encoding="utf-8")
    except OSError:
        return False
    return True


def was_checked(study: Path, data: Any) -> bool:
    """Whether a study's data, as both are now, was looked at."""
    return _digest(study, data) in _read(receipt_path(study))


def _read(path: Path) -> list[str]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [one for one in kept if isinstance(one, str)] if isinstance(kept, list) else []


def _digest(study: Path, data: Any) -> str | None:
    """A digest of a study's text, the place of its data and the times when its files were written; None if there is no such study or data."""
    try:
        located = locate(data)
        written = [os.stat(path).st_mtime_ns for path in _files(located)]
        known = [study.read_text(encoding="utf-8"), source_place(located), written]
    except (OSError, ValueError, DplinkedError):
        return None
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def state_of_files(data: Any) -> list[tuple[str, int, int]]:
    """Names, times of writing and sizes of the files of a study's data, as far as they are there: they differ whenever one was replaced."""
    try:
        found = [(str(path), os.stat(path)) for path in _files(locate(data))]
    except (OSError, ValueError, DplinkedError):
        return []
    return [(path, state.st_mtime_ns, state.st_size) for path, state in found]


def _files(located: Any) -> list[str | Path]:
    """The files whose times of writing are known."""
    if isinstance(located, Files):
        return list(located.paths)
    return [path for path in located.attach.values() if os.path.isfile(path)] if isinstance(located, Query) else []
