"""What the documents say: examples run, names exist."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("README.md", "tutorial.md")  # they link thousands of people


def examples(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)


RUN = [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in LONG))
    for path in DOCUMENTS
    if examples(path)
]


@pytest.mark.parametrize("document", RUN)
def test_python_examples_run(document: Path) -> None:
    """Examples are run one after the other, as a reader would; an error in one fails the test."""
    space: dict[str, object] = {}
    for block in examples(document):
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


def first_example() -> dict[str, Any]:
    """What README's first example declares to `fit`; its data and its linkage are made where it runs."""
    for block in examples(ROOT / "README.md"):
        for call in ast.walk(ast.parse(block)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "dpl.fit" and "C(region)" in ast.unparse(call):
                named = {part.arg: part.value for part in call.keywords if part.arg not in ("linkage", None)}
                return {"formula": ast.literal_eval(call.args[1])} | {k: ast.literal_eval(v) for k, v in named.items()}
    raise AssertionError("README.md has no example with regions")


def test_the_demo_study_is_the_documented_one() -> None:
    """README calls the demo's study its first example as a file: they declare the same, with links held fixed, and nothing else."""
    from dplinked.cli.demo import DEMO_STUDY

    shown = first_example()
    assert {"formula", "bounds", "levels", "typical", "epsilon", "delta"} == set(shown)
    study = tomllib.loads(DEMO_STUDY)
    assert {name: tuple(pair) for name, pair in study.pop("bounds").items()} == shown["bounds"]
    assert {name: tuple(pair) for name, pair in study.pop("typical").items()} == shown["typical"]
    assert study == {
        "data": {"path": "linked.parquet"},
        "model": {"formula": shown["formula"]},
        "levels": shown["levels"],
        "unit": {"moves_block": False, "displaced_links": 0},
        "privacy": {"epsilon": shown["epsilon"], "delta": shown["delta"]},
    }
