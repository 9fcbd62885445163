"""A running studio, a browser in it, and what people do there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ODD = '<img src=x onerror="document.title=1">\'&amp;😀'  # a column's name


PATIENCE = 90.0  # seconds that anything may take on a machine that has much else to do


def wait_for(done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


class Sent:
    """What a browser sent for the form of a draft: values by the ids of fields."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __getitem__(self, id: str) -> Any:
        field = lambda: self.values[id]  # noqa: E731
        field.is_set = lambda: id in self.values
        return field


class Studio:
    """A running studio, and windows in it."""

    def __init__(self, browser: Any, *arguments: object, cwd: Path, before: str | None = None) -> None:
        """Start it in a folder; Python code may be run before it, to plant a fault."""
        run = (
            ["-m", "dplinked.cli"]
            if before is None
            else ["-c", f"{before}\nfrom dplinked.cli.main import main\nmain()"]
        )
        command = [sys.executable, *run, "studio", "--no-browser", *map(str, arguments)]
        self.errors = cwd / "stderr.txt"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        self.address = next(line.strip() for line in self.process.stdout if "token=" in line)
        self.origin = self.address.split("/?")[0]
        self._browser, self._contexts = browser, []
        self.killed = False
        self.asked: list[str] = []
        self.logged: list[str] = []

    def open(self, width: int = 1280, scheme: str = "light", address: str | None = None) -> Any:
        """A window of a browser of its own at the printed address, or at another one."""
        context = self._browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(1000 * PATIENCE)
        self._contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url.replace("ws://", "http://")))
        page.on("console", lambda message: self.logged.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.logged.append(str(error)))
        page.goto(address or self.address)
        return page

    def kill(self) -> None:
        """End the studio at once, as a machine that is switched off does."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.killed = True

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        if not self.killed:
            self.process.send_signal(2)
            assert self.process.wait(PATIENCE) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()
        told = self.errors.read_text()
        assert not told, told
        assert {url[: len(self.origin)] for url in self.asked} <= {self.origin}, "something was loaded from elsewhere"
        expected = (
            "404",
            "403",
            *(("ERR_CONNECTION_REFUSED",) if self.killed else ()),
        )  # no icon; refusals; nobody there
        assert [line for line in self.logged if not any(said in line for said in expected)] == []


def go(page: Any, name: str) -> None:
    """Turn to a step; on a small screen from the menu, which opens and closes by and by."""
    page.locator(".navbar").wait_for()
    link, moving = page.locator(f"a[data-value={name}]"), page.locator(".navbar .collapsing")
    moving.wait_for(state="detached")
    if not link.is_visible():
        page.get_by_role("button", name="Toggle navigation").click()
        page.wait_for_timeout(50)
        moving.wait_for(state="detached")
    link.click()
    page.locator(f".tab-pane.active[data-value={name}]").wait_for()
    settle(page, 0)


def see(page: Any, text: str | re.Pattern[str], kind: str = ".note") -> None:
    page.locator(f".tab-pane.active {kind}").filter(has_text=text).first.wait_for()


# Browsers hold back what is typed for a quarter of a second. A session takes messages one after the other, so that an answer to
# a question, here to one that it does not know, comes after all that was said before, and so does what the page shows of that.
SETTLED = """async ([typed, patience]) => {
  const pause = time => new Promise(done => setTimeout(done, time));
  const late = pause(patience).then(() => { throw new Error('the server does not answer') });
  const answered = () => Promise.race([late, new Promise(done => Shiny.shinyapp.makeRequest('nothing', [], done, done))]);
  await pause(typed);
  await answered();
  await pause(30);  // what the page says of fields that appeared
  await answered();
}"""


def settle(page: Any, typed: int = 300) -> None:
    """Wait until the server knows what was done, with what was typed up to so many milliseconds ago, and has nothing more to say."""
    page.wait_for_function("() => window.Shiny?.shinyapp?.config")  # there is a session
    page.evaluate(SETTLED, [typed, 1000 * PATIENCE])
    page.locator("html:not(.shiny-busy)").wait_for(state="attached")


def drag(page: Any, label: str, by: int) -> None:
    handle = page.locator(f".shiny-input-container:has(label:text-is({json.dumps(label)})) .irs-handle").last
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + by, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()


def fetch(page: Any, button: str) -> tuple[str, str]:
    with page.expect_download() as waiting:
        page.get_by_role("link", name=button).click()
    return waiting.value.suggested_filename, waiting.value.path().read_text(encoding="utf-8")


OVERLAPS = """() => {
  const seen = node => { const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    return box.width > 1 && box.height > 1 && style.visibility == 'visible' && !['absolute', 'fixed'].includes(style.position) };
  const parts_of = node => [...node.children].flatMap(
    part => getComputedStyle(part).display == 'contents' ? parts_of(part) : [part]);
  const found = [];
  for (const parent of document.querySelectorAll('nav *, .tab-pane.active, .tab-pane.active *')) {
    if (parent.closest('svg, .irs, table')) continue;
    const parts = parts_of(parent).filter(seen);
    for (let i = 0; i < parts.length; i++) for (let j = i + 1; j < parts.length; j++) {
      const a = parts[i].getBoundingClientRect(), b = parts[j].getBoundingClientRect();
      if (getComputedStyle(parts[i]).display == 'inline' || getComputedStyle(parts[j]).display == 'inline') continue;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
        found.push(parts[i].outerHTML.slice(0, 80) + ' / ' + parts[j].outerHTML.slice(0, 80));
    } }
  for (const node of document.querySelectorAll('.tab-pane.active *')) {
    if (node.closest('svg, .irs, .scroll, .visually-hidden') || !seen(node)) continue;
    if (node.getBoundingClientRect().right > innerWidth + 1) found.push('beyond the edge: ' + node.outerHTML.slice(0, 80));
    if (node.scrollWidth > node.clientWidth + 1 && node.clientWidth && !['INPUT', 'TEXTAREA', 'SELECT'].includes(node.tagName)
        && getComputedStyle(node).display != 'inline') found.push('wider than it is: ' + node.outerHTML.slice(0, 80));
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page scrolls sideways');
  return found;
}"""


# Nothing fades or moves any more, but for what does so without end.
STILL = "() => document.getAnimations().every(one => one.playState != 'running' || one.effect.getTiming().iterations == Infinity)"

VIEWS = ((1280, "light"), (400, "dark"), (1280, "dark"), (400, "light"))  # widths, and whether it is light or dark


def look(page: Any, axe: Any, name: str, views: Sequence[tuple[int, str]] = VIEWS) -> None:
    """Nothing overlaps or leaves the page, and axe finds nothing serious: on a screen and on a phone, in light and in dark."""
    for width, scheme in views:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("scheme => document.documentElement.dataset.bsTheme == scheme", arg=scheme)
        settle(page)
        page.wait_for_function(STILL)
        where = f"{name}, {scheme}, {width} wide"
        assert page.evaluate(OVERLAPS) == [], where
        found = axe.run(page).response["violations"]
        shown = [
            (one["id"], node["html"], node["failureSummary"])
            for one in found
            for node in one["nodes"]
            if one["impact"] in ("serious", "critical")
        ]
        assert shown == [], where
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    settle(page)
    page.wait_for_function(STILL)
