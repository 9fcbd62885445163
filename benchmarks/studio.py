"""The studio as a person meets it: how soon its first page is there, how many actions lead from two files to a published page, and how long each waits for an answer.

    python benchmarks/studio.py --out benchmarks/results
    python benchmarks/studio.py --quick               # the actions, and reactions over those that do nothing: no seconds
    python benchmarks/studio.py --quick --control     # with checks of a study that take far longer: must be found

A browser (Chromium, by Playwright) walks the path. A reaction lasts from a click or a key in the page to the page's last change that follows from it, as the page itself sees them: with the quarter of a
second for which browsers hold back what is typed, and with all that fades in. Linking, looking at the data, opening a budget and releasing show their progress, and are not among the reactions.
An empty reaction is to turn to a step in a studio in which nothing was chosen yet.

Exits with 1 when a criterion is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "studio")]  # where the person who walks the path lives

from browsing import CHROMIUM, Studio  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from walking import Action, Person, Walk, cpu_of, walk, write_files  # noqa: E402

from machine import describe_machine  # noqa: E402

MOST_ACTIONS = 40
FIRST_PAGE, REACTION = 2.0, 0.5  # seconds
OVER_EMPTY, WORST_OVER_EMPTY = 4.0, 60.0  # times an empty reaction that the median and the slowest one may last
_SLOW = """
import time
import dplinked.study.study as module
prepare = module.Study.prepare
def slow(self):
    end = time.perf_counter() + 0.1
    for _ in range(12_000_000):
        pass
    time.sleep(max(0.0, end - time.perf_counter()))
    return prepare(self)
module.Study.prepare = slow
"""  # planted: every check of a study takes longer, and as much longer as anything else where a machine is slow


@dataclass(frozen=True)
class Found:
    """Seconds to the first page of several starts, and what the studio computed until then; milliseconds of empty reactions, and the walk."""

    starts: list[float]
    computed: list[float]
    empty: list[float]
    walk: Walk

    @property
    def reactions(self) -> list[Action]:
        """All actions that no progress is shown of."""
        return [one for one in self.walk.actions if one.took is not None]

    @property
    def median(self) -> float:
        """Median reaction, in milliseconds."""
        return statistics.median(one.took for one in self.reactions if one.took is not None)

    @property
    def worst(self) -> Action:
        """The slowest reaction."""
        return max(self.reactions, key=lambda one: one.took or 0.0)


def first_page(browser: Any, folder: Path) -> tuple[float, float]:
    """Seconds from the command to the first page that says what is missing, in a browser that runs already, and seconds of the studio's CPU until then."""
    begun = time.perf_counter()
    studio = Studio(browser, cwd=folder)
    page = studio.open()
    page.locator("#state_files .state").wait_for()
    took, computed = time.perf_counter() - begun, cpu_of(studio.process.pid) or 0.0
    studio.close()
    return took, computed / 1000.0


def measure(browser: Any, rows: int, starts: int, before: str | None) -> Found:
    """Start the studio some times, and walk the path once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [first_page(browser, folder) for _ in range(starts)]
        files = write_files(folder, rows)
        studio = Studio(browser, cwd=folder, before=before)
        page = studio.open()
        page.locator("#pick_left").wait_for()
        person = Person(page)
        for step in ("check", "link", "budget", "release", "link", "check", "budget", "files"):
            person.turn(step)
        empty = [one.took for one in person.actions if one.took is not None]
        walked = walk(page, folder, files, studio.process.pid)
        studio.close()
    return Found([took for took, _ in found], [computed for _, computed in found], empty, walked)


def judge(found: Found, quick: bool) -> list[str]:
    """What was missed."""
    missed, count, worst = [], len(found.walk.actions), found.worst
    if count > MOST_ACTIONS:
        missed.append(f"{count} actions from files to page, {MOST_ACTIONS} asked")
    ratio = found.median / statistics.median(found.empty)
    if ratio > OVER_EMPTY:
        missed.append(f"the median reaction lasts {ratio:.0f} times an empty one, {OVER_EMPTY:g} asked")
    slowest = (worst.took or 0.0) / statistics.median(found.empty)
    if slowest > WORST_OVER_EMPTY:
        missed.append(f"the slowest reaction lasts {slowest:.0f} times an empty one, {WORST_OVER_EMPTY:g} asked")
    if quick:
        return missed
    if statistics.median(found.starts) > FIRST_PAGE:
        missed.append(f"first page after {statistics.median(found.starts):.2f} s, {FIRST_PAGE:g} asked")
    if (worst.took or 0.0) > 1000 * REACTION:
        missed.append(f"'{worst.name}' took {worst.took:.0f} ms, {1000 * REACTION:.0f} asked")
    return missed


def report(found: Found, rows: int, missed: list[str]) -> str:
    """The results as Markdown."""
    load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "unknown"
    empty, count = statistics.median(found.empty), len(found.walk.actions)
    starts = ", ".join(f"{one:.2f}" for one in found.starts)
    lines = [
        "# The studio as a person meets it",
        "",
        f"`make bench-studio`. {describe_machine('dplinked', 'shiny', 'playwright', beside=[f'load {load} at the end'])}.",
        f"Two files of {rows:,} rows, with semicolons and decimal commas; the demo's study.",
        "",
        "| what | measured | asked |",
        "|---|---|---|",
        f"| actions from two files to a published page, answers to links not counted | {count} | {MOST_ACTIONS} |",
        f"| first page after the command, seconds (median of {starts}) | {statistics.median(found.starts):.2f} | {FIRST_PAGE:g} |",
        f"| of which the studio's CPU, seconds | {statistics.median(found.computed):.2f} | |",
        f"| median reaction, milliseconds | {found.median:.0f} | {1000 * REACTION:.0f} |",
        f"| slowest reaction, milliseconds | {found.worst.took:.0f} ({found.worst.name}) | {1000 * REACTION:.0f} |",
        f"| median reaction over an empty one ({empty:.0f} ms) | {found.median / empty:.1f} | {OVER_EMPTY:g} |",
        f"| linking, seconds, with its progress | {found.walk.linking:.1f} | |",
        f"| releasing, seconds, with its progress | {found.walk.releasing:.1f} | |",
        "",
        "Missed: " + ("; ".join(missed) if missed else "nothing") + ".",
        "",
        "| action | milliseconds | of the server's CPU |",
        "|---|---|---|",
        *(_line(one) for one in found.walk.actions),
    ]
    return "\n".join(lines) + "\n"


def _line(one: Action) -> str:
    if one.took is None:
        return f"| {one.name} | progress is shown | |"
    return f"| {one.name} | {one.took:.0f} | {'' if one.computed is None else f'{one.computed:.0f}'} |"


def main() -> int:
    """Measure, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--out", type=Path, help="Folder for studio.md.")
    parser.add_argument("--quick", action="store_true", help="One walk over small files; no seconds are judged.")
    parser.add_argument("--control", action="store_true", help="With a planted slowness, which must be found.")
    given = parser.parse_args()
    rows = 400 if given.quick else given.rows
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        found = measure(browser, rows, 1 if given.quick else 3, _SLOW if given.control else None)
        browser.close()
    missed = judge(found, given.quick)
    text = report(found, rows, missed)
    print(text)
    for one in missed:
        print(f"MISSED: {one}")
    if given.out is not None:
        (given.out / "studio.md").write_text(text, encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
