"""What the documents say: examples run, names exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("README.md", "tutorial.md")  # they link thousands of people
RUN = [pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in LONG)) for path in DOCUMENTS]


@pytest.mark.parametrize("document", RUN)
def test_python_examples_run(document: Path) -> None:
    space: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(document), "exec"), space)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_names_and_links_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for name in set(re.findall(r"`(dplinked(?:\.\w+)+)(?:\(\))?`", text)):
        module, parts = "dplinked", name.split(".")[1:]
        found = importlib.import_module(module)
        for i, part in enumerate(parts):
            try:
                found = importlib.import_module(".".join(["dplinked", *parts[: i + 1]]))
            except ModuleNotFoundError:
                found = getattr(found, part)
    for file, test in set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)):
        assert re.search(rf"def {test}\(", (ROOT / file).read_text(encoding="utf-8")), f"{file}::{test}"
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / target).exists(), target


def test_the_table_of_mathematics_is_complete() -> None:
    """Every sensitivity has its row."""
    from dplinked.privacy import quantities

    text = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    functions = []
    for found in pkgutil.iter_modules(quantities.__path__, f"{quantities.__name__}."):
        module = importlib.import_module(found.name)
        functions += [
            f"{found.name}.{name}"
            for name, function in vars(module).items()
            if not name.startswith("_")
            and name.endswith(("_sensitivity", "_distance", "_range"))
            and function.__module__ == found.name
        ]
    assert len(functions) >= 19
    for name in functions:
        assert f"`{name}`" in text, name


def test_the_demo_study_is_the_documented_one() -> None:
    from dplinked.cli.demo import DEMO_STUDY
    from dplinked.study.toml import SECTIONS

    assert set(re.findall(r"^\[(\w+)\]", DEMO_STUDY, re.MULTILINE)) <= set(SECTIONS)
