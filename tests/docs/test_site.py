"""The documentation's site: it builds, loads nothing from the network, and tells all there is."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import dplinked as dpl
from dplinked.simulate import review_links, two_files
from dplinked.study.toml import SECTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def theme(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules beside the pages."""
    monkeypatch.syspath_prepend(DOCS / "theme")
    return {name: importlib.import_module(name) for name in ("cells", "command_line")}


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.DOTALL)


# --- the site ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Path:
    build = [sys.executable, "docs/theme/build_site.py"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "site"


class Loads(HTMLParser):
    """What a page makes the browser fetch. Links that a reader may follow are not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.found += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link" or tag in ("use", "image"):
            self.found += [given[name] for name in ("href", "xlink:href") if name in given]
        self.found += re.findall(r"url\(([^)]+)\)", given.get("style", ""))


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loads = Loads()
        loads.feed(text)
        styles = re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL)
        loads.found += [url for style in styles for url in re.findall(r"(?:@import|url\()\s*([^\s);]+)", style)]
        for url in loads.found:
            assert not re.match(r"\W*(?:https?:)?//", url), f"{page.name}: {url}"
    for sheet in site.rglob("*.css"):
        for url in re.findall(r"(?:@import|url\()\s*([^\s);]+)", sheet.read_text(encoding="utf-8")):
            assert not re.match(r"\W*(?:https?:)?//", url), f"{sheet.name}: {url}"


@pytest.mark.slow
def test_pages_of_the_site_are_complete(site: Path) -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    for name, target in documented().items():
        assert f'id="{target}"' in shown, name
    assert not re.search(r":(?:class|func|meth|mod):", shown)
    notebook = (site / "first-release.html").read_text(encoding="utf-8")
    assert "Private linear regression on linked data" in notebook
    assert (site / "first-release.ipynb").exists()
    assert (site / "results" / "linking.html").exists()


@pytest.mark.slow
def test_searching_works_from_disk(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium") or shutil.which("chromium-browser")) is None:
        pytest.skip("searching is tried in Chromium: apt install chromium")
    asked = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "api" / "fit.html").as_uri())
        page.keyboard.press("/")
        page.get_by_placeholder("Search").first.fill("carriers")
        page.get_by_text("How many rows may be linked to one record").first.wait_for(timeout=90_000)
        browser.close()
    assert all(url.startswith(("file:", "about:")) for url in asked), asked


# --- the reference ----------------------------------------------------------------------------------


def documented() -> dict[str, str]:
    """Public names and where the reference takes them from."""
    found = {}
    for target in re.findall(
        r"^::: (\S+)", "\n".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md")), re.M
    ):
        module, _, name = target.rpartition(".")
        try:
            value = getattr(importlib.import_module(module), name)
        except AttributeError:
            value = importlib.import_module(target)
        for public in dpl.__all__:
            if value is getattr(dpl, public):
                found[public] = target
    for line in re.findall(r"members: \[(.*)\]", read("api/errors.md")):
        found |= {name: f"dplinked.errors.{name}" for name in line.split(", ")}
    return found | {"privacy": "dplinked.privacy.noise"}


def test_every_public_name_is_in_the_reference() -> None:
    assert set(documented()) >= set(dpl.__all__)
    index = read("api/index.md")
    for name in dpl.__all__:
        assert f"`{name}`" in index, name


def test_the_study_file_is_documented_whole() -> None:
    text = read("study-file.md")
    sections = dict(re.findall(r"^## \[(\w+)\]\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(SECTIONS)
    for section, keys in SECTIONS.items():
        assert tuple(sorted(re.findall(r"^\| `(\w+)` \|", sections[section], re.MULTILINE))) == tuple(sorted(keys)), (
            section
        )


def test_the_command_line_is_documented_whole(theme: dict[str, ModuleType]) -> None:
    """If this fails: python docs/theme/command_line.py."""
    text = read("command-line.md")
    assert theme["command_line"].written(text) == text


def test_examples_of_study_files_are_studies(tmp_path: Path) -> None:
    for text in [*blocks("study-file.md", "toml"), *blocks("tutorial.md", "toml")]:
        (tmp_path / "study.toml").write_text(text, encoding="utf-8")
        assert dpl.Study.from_toml(tmp_path / "study.toml").data is not None


# --- examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["choose-epsilon.md", "tutorial.md"])
def test_plans_print_what_the_page_says(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans hold no noise, so they can be quoted to the letter."""
    shown = [text for text in blocks(page, "text") if text.startswith("Expected standard errors")]
    code = [block for block in blocks(page, "python") if "dpl.plan(" in block]
    assert len(shown) == len(code) == 1
    exec(code[0], {"dpl": dpl})
    assert shown[0] in capsys.readouterr().out


def test_the_notebook_runs(theme: dict[str, ModuleType]) -> None:
    notebook = json.loads(read("first-release.ipynb"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "Clear its outputs."
    values = [value for _, value in theme["cells"].run_cells(notebook)]
    assert len(values) == len(code)
    kinds = [type(value).__name__ for value in values]
    assert "Plan" in kinds
    release = values[kinds.index("Release")]
    assert 0.4 < release.coef["income"] < 0.7
    assert all("<table" in value._repr_html_() for value in values if hasattr(value, "_repr_html_"))


@pytest.mark.slow
def test_the_tutorial_goes_through_on_the_command_line(tmp_path: Path) -> None:
    """Its commands, one after the other, with what a person does between them."""
    import pyarrow.csv

    files = two_files(20_000, seed=1, errors=2.0)
    pyarrow.csv.write_csv(files.left, tmp_path / "incomes.csv")
    pyarrow.csv.write_csv(files.right, tmp_path / "spending.csv")
    study, audit = tmp_path / "study.toml", tmp_path / "linked" / "audit.csv"
    study.write_text(blocks("tutorial.md", "toml")[0], encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("dplinked", path=path) is None:
        pytest.skip("dplinked is not installed")
    for commands in blocks("tutorial.md", "sh"):
        done = subprocess.run(
            ["bash", "-e", "-c", commands], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}{done.stderr}"
        if "--audit-sample" in commands:
            pyarrow.csv.write_csv(review_links(pyarrow.csv.read_csv(audit), files), audit)
        if "--audited" in commands:
            linkage = (tmp_path / "linked" / "linkage.toml").read_text(encoding="utf-8")
            study.write_text(
                re.sub(r"\[linkage\]\n.*", "", study.read_text("utf-8"), flags=re.DOTALL) + linkage, encoding="utf-8"
            )
            assert tomllib.loads(study.read_text(encoding="utf-8"))["linkage"]["source"] == "released"
    low, high = dpl.Release.load(tmp_path / "release.json").conf_int(1 - 1e-7)["income"]
    assert low < 0.55 < high
