"""Build the site: python docs/theme/build_site.py, which make docs runs.

Its pages are written into build/docs first: those of docs/, the notebook as a page, and the measurements that pages refer to. Any builder that reads
mkdocs.yml and a folder of Markdown can go on from there, so that another one can take its place.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cells import notebook_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "site"
NOTEBOOK = "first-release"
WORKER = re.compile(
    r'(?<=src=")https:[^"]*iframe-worker[^"]*'
)  # the builder would load it; theme/worker.js takes its place
OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./(?P<path>[^)#]+)\)")


def build() -> None:
    """Write the pages and build the site from them."""
    write_pages(PAGES)
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=True)
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        here = posixpath.relpath("theme/worker.js", page.parent.relative_to(SITE).as_posix())
        page.write_text(WORKER.sub(here, text), encoding="utf-8")


def write_pages(target: Path) -> None:
    """Write the folder of pages anew."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    notebook = json.loads((DOCS / f"{NOTEBOOK}.ipynb").read_text(encoding="utf-8"))
    (target / f"{NOTEBOOK}.md").write_text(notebook_page(notebook, NOTEBOOK), encoding="utf-8")
    results = write_results(target)
    for source in DOCS.rglob("*.md"):
        page = source.relative_to(DOCS).as_posix()
        (target / page).write_text(settle_links(source.read_text(encoding="utf-8"), page, results), encoding="utf-8")


def write_results(target: Path) -> set[str]:
    """Copy the measurements that pages refer to, without their own links, which lead around in the repository. Returns their names on the site."""
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    referred = {found["path"] for text in pages for found in OUTSIDE.finditer(text)}
    names = set()
    for path in (path for path in referred if path.startswith("benchmarks/results/")):
        name = path.removeprefix("benchmarks/")
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy)
        if copy.suffix == ".md":
            plain = re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", copy.read_text(encoding="utf-8"))
            copy.write_text(plain, encoding="utf-8")
        names.add(name)
    return names


def settle_links(markdown: str, page: str, results: set[str]) -> str:
    """Lead links to the notebook and out of docs/ to what the site has of it; others become plain text."""

    def settle(found: re.Match[str]) -> str:
        name = found["path"].removeprefix("benchmarks/")
        if name not in results:
            return f"`{found['path']}`"
        return f"[{found['text']}]({posixpath.relpath(name, posixpath.dirname(page) or '.')})"

    return OUTSIDE.sub(settle, markdown.replace(f"]({NOTEBOOK}.ipynb)", f"]({NOTEBOOK}.md)"))


if __name__ == "__main__":
    build()
