"""What was worked on in a folder, kept in a file of it, so that a reload or a restart loses nothing.

It holds what was chosen and typed, all of it declared by the steward: names of files and columns, texts of studies, positions on pages. It holds
nothing that was read from rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError, raise_alone
from dplinked.studio.path import STEPS

NAME = ".dplinked-studio.json"
_VERSION = 1


@dataclass(frozen=True)
class Workspace:
    """What was worked on in a folder.

    Attributes
    ----------
    step
        The step at which work stopped; None before it began.
    study
        Name of the study file at hand; None for a new one.
    texts
        Texts of studies as they stood when they were left, by the names of their files.
    saved
        What these files held then, so that nobody else's changes are overwritten.
    pages
        What each page keeps.
    """

    step: str | None = None
    study: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    saved: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_text(self, name: str, text: str, saved: str | None) -> Workspace:
        """With the text of the study at hand."""
        files = {key: value for key, value in self.saved.items() if key != name}
        return replace(
            self,
            study=name,
            texts={**self.texts, name: text},
            saved=files if saved is None else {**files, name: saved},
        )

    def without(self, name: str) -> Workspace:
        """Without what is kept of a study."""
        texts, saved = ({key: value for key, value in part.items() if key != name} for part in (self.texts, self.saved))
        return replace(self, texts=texts, saved=saved)

    def with_page(self, page: str, values: Mapping[str, Any]) -> Workspace:
        """With further values that a page keeps; None takes one away."""
        kept = {**self.pages.get(page, {}), **values}
        return replace(
            self, pages={**self.pages, page: {key: value for key, value in kept.items() if value is not None}}
        )


def load_workspace(folder: Path) -> Workspace:
    """What was kept in a folder; an empty one if there is nothing, or nothing that can be read."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        if found.pop("version") != _VERSION:
            return Workspace()
        kept = Workspace(**found)
        texts = all(isinstance(text, str) for part in (kept.texts, kept.saved) for text in part.values())
        pages = all(isinstance(page, dict) for page in kept.pages.values())
        names = kept.step in (None, *STEPS) and (kept.study is None or isinstance(kept.study, str))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Workspace()
    return kept if texts and pages and names else Workspace()


def save_workspace(folder: Path, kept: Workspace) -> None:
    """Write it to a file that only its owner can read: whole, or not at all."""
    path, draft = folder / NAME, folder / f"{NAME}.{os.getpid()}"
    text = json.dumps({"version": _VERSION, **asdict(kept)}, ensure_ascii=False, indent=1)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except (OSError, UnicodeEncodeError):
        draft.unlink(missing_ok=True)
        raise_alone(
            StudyError("What you type cannot be kept: check the permissions of the folder and the space on its disk.")
        )
