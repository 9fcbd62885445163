"""Results in sections of one file: each is measured, judged and written by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """Lines of one section, and the criteria it missed."""

    lines: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        self.lines += [*lines, ""]

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.add(
            "| " + " | ".join(header) + " |",
            "|" + "---|" + "---:|" * (len(header) - 1),
            *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        )

    def require(self, holds: bool, criterion: str) -> None:
        if not holds:
            self.missed.append(criterion)


def write_section(path: Path, heading: str, titles: Mapping[str, str], name: str, body: str) -> None:
    """Replace one section of the results, or add it in its place."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])
    parts[titles[name]] = f"\n{body}"
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = [f"## {title}\n{parts[title].rstrip()}\n" for title in titles.values() if title in parts]
    path.write_text(f"# {heading}\n\n" + "\n".join(sections), encoding="utf-8")
