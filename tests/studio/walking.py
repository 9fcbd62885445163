"""A person who walks the studio's path from two files to a published page. What they do is counted, and how long the page takes to answer is measured in the browser."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from browsing import see

from dplinked.linker.audit import read_audit
from dplinked.simulate import review_links, two_files

# When something was done first since the last question, and when the page changed last.
WATCH = """(() => {
  const watch = window.watch = { done: null, changed: 0 };
  const note = () => { watch.done ??= performance.now(); };
  for (const kind of ['pointerdown', 'keydown', 'input', 'change']) addEventListener(kind, note, true);
  new MutationObserver(() => { watch.changed = performance.now(); })
    .observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
})()"""
_QUIET = 450  # milliseconds: browsers hold back what is typed for 250
_SETTLED = f"""() => !document.documentElement.classList.contains('shiny-busy')
  && performance.now() - Math.max(window.watch.done ?? 0, window.watch.changed) > {_QUIET}"""


@dataclass(frozen=True)
class Action:
    """Something a person did: a click, a field that was filled in, a key. How long the page took to answer, and what the server computed for it, in milliseconds; None for what shows its progress."""

    name: str
    took: float | None
    computed: float | None = None


class Person:
    """Somebody at a window."""

    def __init__(self, page: Any, server: int | None = None) -> None:
        """Sit down at a page; with the `server`'s process, what it computes is measured too."""
        self.page, self._server = page, server
        self.actions: list[Action] = []
        page.evaluate(WATCH)

    def click(self, name: str, *, slow: bool = False, within: Any = None, opens: Any = None) -> None:
        """Press a button, which leads to another step or `opens` something."""
        button = (within or self.page.locator(".tab-pane.active")).get_by_role("button", name=name, exact=True)
        step = name.rpartition(": ")[2].lower() if name.startswith(("Next: ", "Back: ")) else None
        self._do(name, lambda: (self._press(name, button, step), opens and opens.wait_for()), slow)

    def _press(self, name: str, button: Any, step: str | None) -> None:
        """Press a button that leads to a step, once more if the page moved under the pointer; that counts as well."""
        button.click()
        if step is None:
            return
        arrived, end = self.page.locator(f".tab-pane.active[data-value={step}]"), time.monotonic() + 20.0
        while not arrived.is_visible() and time.monotonic() < end:
            self.page.wait_for_timeout(10)
        if not arrived.is_visible():
            self.actions.append(Action(f"{name}, missed", None))
            button.click()
            self._arrive(step)

    def turn(self, step: str) -> None:
        """Turn to a step by the navigation."""
        link = self.page.locator(f"a[data-value={step}]")
        self._do(f"turn to {step}", lambda: (link.click(), self._arrive(step)))

    def _arrive(self, step: str | None) -> None:
        if step is not None:
            self.page.locator(f".tab-pane.active[data-value={step}]").wait_for()

    def fill(self, field: Any, value: str, *, enter: bool = False) -> None:
        """Fill in a field, and go on to the next one."""

        def do() -> None:
            field.fill(value)
            field.press("Enter" if enter else "Tab")

        self._do(f"fill in {value}", do)

    def choose(self, field: Any, value: str) -> None:
        """Choose from a list."""
        self._do(f"choose {value}", lambda: field.select_option(value))

    def _do(self, name: str, do: Callable[[], Any], slow: bool = False) -> None:
        self.page.evaluate("window.watch.done = null")
        before = cpu_of(self._server)
        do()
        if slow:
            self.actions.append(Action(name, None))
            return
        self.page.wait_for_function(_SETTLED, polling=50, timeout=300_000)
        done, changed = self.page.evaluate("[window.watch.done, window.watch.changed]")
        after = cpu_of(self._server)
        computed = None if before is None or after is None else after - before
        self.actions.append(Action(name, max(0.0, changed - done), computed))


def cpu_of(process: int | None) -> float | None:
    """Milliseconds that a process has computed so far; None where Linux does not tell."""
    stat = Path(f"/proc/{process}/stat")
    if process is None or not stat.exists():
        return None
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return 1000.0 * (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Walk:
    """What a walk took: seconds of linking and of releasing, and what was counted and measured on the way."""

    actions: list[Action]
    linking: float
    releasing: float


def write_files(folder: Path, rows: int, errors: float = 2.0) -> Any:
    """Write two files about the same people, with semicolons and decimal commas. Returns them."""
    files = two_files(rows, seed=1, errors=errors)
    for name, table in (("incomes.csv", files.left), ("spending.csv", files.right)):
        pa.table(table).to_pandas().to_csv(folder / name, sep=";", decimal=",", index=False)
    return files


def fill_in(path: Path, files: Any) -> None:
    """Answer all links of a list, as reviewers do in a spreadsheet."""
    pyarrow.csv.write_csv(review_links(read_audit(path), files), path)


def walk(page: Any, folder: Path, files: Any, server: int | None = None) -> Walk:
    """Walk from two files to a published page: the demo's study. Links are reviewed elsewhere, so that answers are not counted."""
    person = Person(page, server)
    field = page.locator(".tab-pane.active").get_by_label

    person.choose(page.locator("#pick_left"), "incomes.csv")
    person.choose(page.locator("#pick_right"), "spending.csv")
    person.click("Next: Link")

    begun = time.monotonic()
    person.click("Link", slow=True)
    see(page, "The files are linked.", ".state")
    linking = time.monotonic() - begun
    fill_in(folder / "linked" / "audit.csv", files)
    page.wait_for_timeout(1_500)  # the studio looks once a second at what others write: that is no reaction
    person.click("Next: Review")

    page.locator(".tab-pane.active").get_by_role("button", name="Use it in the study").wait_for()
    person.click("Use it in the study", slow=True)
    see(page, "Next, say what the study is.", ".state")
    person.click("Next: Study")

    person.choose(field("What is to be explained"), "consumption")
    person.choose(field("income numbers"), "number")
    person.choose(field("region levels"), "category")
    for name, value in (
        ("consumption: Lowest", "0"), ("consumption: Highest", "120000"), ("income: Lowest", "0"), ("income: Highest", "150000"),
        ("income: Typical from", "15000"), ("income: to", "50000"),
    ):  # fmt: skip
        person.fill(field(name), value)
    person.fill(field("region: Add levels"), "north, south", enter=True)
    person.click("Save")
    see(page, "'study.toml' is saved")

    person.click("Next: Check")
    person.click("Look at the data", slow=True)
    see(page, "Ready: nothing was seen", ".good")
    person.click("Next: Plan")
    page.locator(".tab-pane.active figure svg").first.wait_for()

    person.turn("budget")
    person.fill(field("Who these people are"), "households")
    person.click("Open this budget …", opens=page.get_by_role("dialog"))
    person.click("Open it for good", slow=True, within=page.get_by_role("dialog"))
    see(page, "All of the budget is left", ".lead")
    person.click("Back: Release")

    person.click("Release …", opens=page.get_by_role("dialog"))
    begun = time.monotonic()
    person.click("Spend it and release", slow=True, within=page.get_by_role("dialog"))
    see(page, "Written to 'release.json'", ".good")
    releasing = time.monotonic() - begun
    page.frame_locator(".tab-pane.active iframe.report").get_by_role("heading", level=1).wait_for()
    with page.expect_download() as waiting:
        person._do("Page (HTML)", page.get_by_role("link", name="Page (HTML)").click)
    waiting.value.save_as(folder / "published.html")
    return Walk(person.actions, linking, releasing)
