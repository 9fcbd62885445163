"""Neighbours for what is no `fit` in Python: the release of accuracies, and the command line with its files and exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dplinked as dpl
from attack_pairs import BOUNDS, draw_neighbours
from attack_pairs import Target as Study
from attack_replay import Verdict, compare
from attack_sources import SOURCES

Draw = np.random.Generator


def _normal(rng: Draw) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda values, scale: values + scale * rng.normal(size=values.shape)


# --- release_accuracy ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _linked(rows: int, blocks: int) -> Any:
    """Two files, linked by pairs made elsewhere."""
    keys = [f"s{row % blocks}" for row in range(rows)]
    left = {"id": [f"l{row}" for row in range(rows)], "state": keys, "x": [0.5] * rows}
    right = {"id": [f"r{row}" for row in range(rows)], "state": keys, "y": [0.5] * rows}
    pairs = {"left": left["id"], "right": right["id"], "probability": [0.9] * rows}
    return dpl.link(pd.DataFrame(left), pd.DataFrame(right), method="pairs", pairs=pd.DataFrame(pairs), id="id", block="state")


def attack_accuracy(rng: Draw, weaken: float) -> tuple[dict[str, str], Verdict]:
    """Neighbours in a clerical audit: one person changes the answers to their two links, and to those they displace."""
    displaced, rows = int(rng.integers(0, 4)), int(rng.choice([24, 40]))
    linked, unit = _linked(rows, int(rng.integers(1, 5))), dpl.PrivacyUnit(displaced_links=displaced)
    sample = linked.audit_sample(int(rng.integers(20, rows + 1))).to_pandas()
    first = rng.choice(["yes", "no"], size=len(sample), p=rng.choice([[0.5, 0.5], [1, 0], [0, 1]]))
    second = first.copy()
    for row in rng.permutation(len(sample))[: 2 + displaced]:
        second[row] = "no" if first[row] == "yes" or rng.random() < 0.1 else "yes"
    epsilon = float(rng.choice([0.3, 1, 10]))

    def prepare(answers: np.ndarray) -> Callable[[], Any]:
        audited = linked.audited(sample.assign(correct=answers))
        return lambda: dpl.release_accuracy(audited, epsilon=epsilon, delta=1e-3, unit=unit)

    verdict = compare(
        lambda: prepare(first), lambda: prepare(second), _normal(rng), lambda accuracy: {"to_json": accuracy.to_json(), "repr": repr(accuracy)}, weaken
    )  # fmt: skip
    said = "displaced_links" if displaced else "default"
    return {"release path": "release_accuracy", "linkage": "ELE, audited", "unit": said, "container": "linked files"}, verdict


# --- the command line ---------------------------------------------------------------------------------------------------------------

STUDY = """
[data]
{data}
[model]
formula = "{formula}"
[bounds]
{bounds}
[linkage]
{linkage}
[unit]
{unit}
[privacy]
epsilon = 1.0
delta = 1e-3
"""
DATA = {"Parquet": 'path = "rows.parquet"', "CSV": 'path = "rows.csv"', "JSON": 'path = "rows.ndjson"', "DuckDB query": "query = \"select * from 'rows.parquet'\""}
UNITS = [{}, {"displaced_links": 1}, {"moves_block": True}]


class Published:
    """What `dplinked fit` leaves behind: its exit code, what it printed, and its files."""

    def __init__(self, code: int, release: dpl.Release, texts: dict[str, str]) -> None:
        self.code, self.privacy, self.released, self.texts = code, release.privacy, release.released, texts


def attack_command_line(rng: Draw, folder: Path, weaken: float) -> tuple[dict[str, str], Verdict]:
    """Neighbours in a file: `dplinked fit` and `dplinked report` must print, write and return the same."""
    source, unit = str(rng.choice(list(DATA))), UNITS[rng.integers(len(UNITS))]
    target = Study("command line", str(rng.choice(["y ~ x", "y ~ x + w"])), "ELE", dpl.PrivacyUnit(**unit), source, int(rng.integers(4, 12)), 1.0, "normal")
    pair = draw_neighbours(rng, target, 0.4)
    _write_study(folder, target, unit)
    first, second = pair.sides()
    verdict = compare(
        lambda: _prepare(target, first, folder), lambda: _prepare(target, second, folder), _normal(rng), lambda published: published.texts, weaken
    )  # fmt: skip
    return {"release path": "command line", "linkage": "ELE", "unit": "+".join(unit) or "default", "container": source}, verdict


def _write_study(folder: Path, target: Study, unit: dict[str, Any]) -> None:
    text = STUDY.format(
        data=DATA[target.source], formula=target.formula, linkage='accuracy = 0.8\nblock = "b"',
        bounds="\n".join(f"{name} = {list(BOUNDS[name])}" for name in target.columns),
        unit="\n".join(f"{name} = {str(value).lower()}" for name, value in unit.items()),
    )  # fmt: skip
    (folder / "study.toml").write_text(text, encoding="utf-8")


def _prepare(target: Study, cells: dict[str, list[Any]], folder: Path) -> Callable[[], Any]:
    from dplinked.cli.main import main  # noqa: PLC0415

    for path in folder.glob("*"):
        if path.name != "study.toml" and path.is_file():
            path.unlink()
    SOURCES[target.source].build(cells, folder)

    def run() -> Published:
        out = folder / "release.json"
        code = _exit_code(main, "fit", folder / "study.toml", "--out", out)
        if code:
            raise RuntimeError(f"exit code {code}")
        code = _exit_code(main, "report", out, "--markdown")
        texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*")) if not path.name.startswith("rows")}
        return Published(code, dpl.Release.load(out), {**texts, "files": str(sorted(path.name for path in folder.glob("*"))), "exit code": str(code)})

    return run


def _exit_code(main: Callable[[], None], *arguments: Any) -> int:
    before, sys.argv = sys.argv, ["dplinked", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0
