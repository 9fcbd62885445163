"""What the site needs beyond its pages: the notebook as a page, and links to files outside docs/."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from cells import notebook_page
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
NOTEBOOK = "first-release"
RESULTS = "benchmarks/results"


def on_files(files: Files, config: Any) -> Files:
    """Add the notebook as a page, and the measurements that pages refer to."""
    notebook = json.loads((ROOT / "docs" / f"{NOTEBOOK}.ipynb").read_text(encoding="utf-8"))
    files.append(File.generated(config, f"{NOTEBOOK}.md", content=notebook_page(notebook, NOTEBOOK)))
    for page in (ROOT / "docs").glob("*.md"):
        for target in re.findall(rf"\]\(\.\./({RESULTS}/[^)#]+)\)", page.read_text(encoding="utf-8")):
            name = target.removeprefix("benchmarks/")
            if files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / target)))
                files.get_file_from_path(name).inclusion = InclusionLevel.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to the notebook and out of docs/ to what the site has of it; others become plain text."""

    def settle(found: re.Match[str]) -> str:
        name = found["path"].removeprefix("benchmarks/")
        if files.get_file_from_path(name) is None:
            return f"`{found['path']}`"
        return f"[{found['text']}]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or '.')})"

    if page.file.src_uri.startswith("results/"):  # their own links lead around in the repository
        return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", markdown)
    if page.file.src_uri != f"{NOTEBOOK}.md":
        markdown = markdown.replace(f"]({NOTEBOOK}.ipynb)", f"]({NOTEBOOK}.md)")
    return re.sub(r"\[(?P<text>[^\]]+)\]\(\.\./(?P<path>[^)#]+)\)", settle, markdown)
