"""Results as files: in sections of one file, each measured, judged and written by itself, or a report beside its figures."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy import stats

from machine import describe_machine


def report_head(title: str, about: str, notes: Sequence[str]) -> list[str]:
    """The first lines of a readable report: title, machine, the last paragraph of the benchmark's docstring, and notes."""
    machine = describe_machine("dplinked", "numpy", "scipy")
    return [
        f"# {title}",
        "",
        machine,
        "",
        " ".join(about.split("\n\n")[-1].split()),
        "",
        *[f"- {note}" for note in notes],
        "",
    ]


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


def write_results(folder: Path, name: str, report: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a report as Markdown and the rows of its table as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(report + "\n", encoding="utf-8")
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {describe_machine('dplinked', 'numpy', 'scipy')}\n")
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()} for row in rows)


def close_report(lines: Sequence[str], missed: Sequence[str]) -> str:
    """A report's lines, and at their end the criteria that were missed."""
    return "\n".join([*lines, "", *([f"MISSED: {line}" for line in missed] or ["All criteria met."])])


def covers_too_little(coverage: float, runs: int, least: float, cells: int) -> bool:
    """Whether intervals hold what they should in fewer than the share `least` of the runs, by a binomial test of 1 % over all cells."""
    return bool(stats.binom.cdf(round(coverage * runs), runs, least) < 0.01 / cells)
