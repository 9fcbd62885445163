"""What the documents say: examples run, names exist."""

from __future__ import annotations

import ast
import csv
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


LINE_BY_LINE = ROOT / "docs" / "paper-line-by-line.md"
# What the paper's LaTeX numbers, and its assumptions; lemmas and theorems share a counter.
NUMBERED = {
    "Definition ": "1 2 3",
    "Proposition ": "2.1 2.2",
    "Algorithm ": "1 2",
    "Theorem ": "4.1(i) 4.1(ii) 4.4 4.5 4.6 4.7",
    "Lemma ": "2.1 2.2 2.3 4.2 4.3 A.1 A.2 A.3 A.4 A.5 A.6 A.7 A.8",
    "Corollary ": "4.1(i) 4.1(ii)",
    "Remark ": "3.1 4.1 4.2 A.1",
    "Figure ": "1 2 3(a) 3(b) 3(c) 3(d) 3(e) 3(f) 4 5 6",
    "": "(A1) (A2) (A3) (A4) (A4')",
}


def test_the_paper_line_by_line_has_every_numbered_item() -> None:
    """Each has a row of three cells that is about it, alone or with its like; the row of its proof is not enough."""
    page = LINE_BY_LINE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!Proof)([^|]+) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    for kind, numbers in NUMBERED.items():
        for name in (kind + number for number in numbers.split()):
            about = re.compile(rf"(?:^|, |and ){re.escape(name)}(?![\d('])")
            assert any(about.search(row) for row in rows), name


def test_the_paper_line_by_line_has_every_claim() -> None:
    """The tables of claims are those of the committed run: places, words, figures and verdicts."""
    with (ROOT / "benchmarks" / "results" / "reproduction" / "claims.csv").open(encoding="utf-8") as file:
        claims = [row for row in csv.DictReader(file) if row["whose"] == "paper"]
    expected = [" | ".join([row["place"], row["claim"], row["measured"], row["holds"].lower()]) for row in claims]
    tables = LINE_BY_LINE.read_text(encoding="utf-8").split(
        "| place | claim | measured | status |\n|---|---|---|---|\n"
    )
    shown = [line for table in tables[1:] for line in table.split("\n\n")[0].splitlines()]
    assert shown == [f"| {cells} |" for cells in expected]


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
