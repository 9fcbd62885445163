"""Neighbours for what is no `fit` in Python: the release of accuracies, and the command line with its files and exit codes."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import dplinked as dpl
from attack_pairs import BOUNDS, draw_neighbours
from attack_pairs import Target as Study
from attack_replay import Verdict, compare
from attack_sources import SOURCES

Draw = np.random.Generator


@dataclass(frozen=True)
class Published:
    """What leaves: what was spent, all texts, and the released parts if they are known."""

    privacy: Any
    texts: dict[str, str]
    released: Any = None


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
    return dpl.link(
        pd.DataFrame(left), pd.DataFrame(right), method="pairs", pairs=pd.DataFrame(pairs), id="id", block="state"
    )


def attack_accuracy(rng: Draw, weaken: float) -> tuple[dict[str, str], Verdict]:
    """Neighbours in a clerical audit: one person changes the answers to their two links, and to those they displace."""
    displaced, rows, fits = int(rng.integers(0, 4)), int(rng.choice([24, 40])), bool(rng.random() < 0.4)
    linked, unit = _linked(rows, int(rng.integers(1, 5))), dpl.PrivacyUnit(displaced_links=displaced)
    sample = linked.audit_sample(int(rng.integers(20, rows + 1))).to_pandas()
    first = rng.choice(["yes", "no"], size=len(sample), p=rng.choice([[0.5, 0.5], [1, 0], [0, 1]]))
    second = first.copy()
    for row in rng.permutation(len(sample))[: 2 + displaced]:
        second[row] = "no" if first[row] == "yes" or rng.random() < 0.1 else "yes"
    responses = rng.choice([0.0, 1.0], size=rows)
    relinked = np.where(np.arange(rows) < 1 + displaced, 1 - responses, responses)
    epsilon = float(rng.choice([0.3, 1, 10]))

    def prepare(answers: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
        audited = linked.audited(sample.assign(correct=answers))
        table = audited.rows.set_column(audited.rows.schema.get_field_index("y"), "y", [y])
        return lambda: _release_both(audited, table, fits, epsilon=epsilon, delta=1e-3, unit=unit)

    verdict = compare(
        lambda: prepare(first, responses),
        lambda: prepare(second, relinked),
        _normal(rng),
        lambda both: both.texts,
        weaken,
    )
    path = "release_accuracy, then fit" if fits else "release_accuracy"
    return {
        "release path": path,
        "linkage": "ELE, audited",
        "unit": "displaced_links" if displaced else "default",
        "container": "linked files",
    }, verdict


def _release_both(audited: Any, rows: Any, fits: bool, **budget: Any) -> Published:
    """Release the accuracies and, if asked, a fit with them: together they may cost the root of the sum of mu²."""
    accuracy = dpl.release_accuracy(audited, **budget)
    texts = {"to_json": accuracy.to_json(), "repr": repr(accuracy)}
    if not fits:
        return Published(accuracy, texts)
    release = dpl.fit(rows, "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=accuracy.linkage, **budget)
    spent = SimpleNamespace(
        mu=math.hypot(accuracy.mu, release.privacy.mu), epsilon=2 * budget["epsilon"], delta=2 * budget["delta"]
    )
    return Published(spent, {**texts, "fit": release.to_json(), "statement": release.privacy.statement})


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
DATA = {
    "Parquet": 'path = "rows.parquet"',
    "CSV": 'path = "rows.csv"',
    "JSON": 'path = "rows.ndjson"',
    "DuckDB query": "query = \"select * from 'rows.parquet'\"",
}
UNITS = [{}, {"displaced_links": 1}, {"moves_block": True}]


def attack_command_line(rng: Draw, folder: Path, weaken: float) -> tuple[dict[str, str], Verdict]:
    """Neighbours in a file: `dplinked fit` and `dplinked report` must print, write and return the same."""
    source, unit = str(rng.choice(list(DATA))), UNITS[rng.integers(len(UNITS))]
    target = Study(
        "command line",
        str(rng.choice(["y ~ x", "y ~ x + w"])),
        "ELE",
        dpl.PrivacyUnit(**unit),
        source,
        int(rng.integers(4, 12)),
        1.0,
        "normal",
    )
    pair = draw_neighbours(rng, target, 0.4)
    _write_study(folder, target, unit)
    first, second = pair.sides()
    verdict = compare(
        lambda: _prepare(target, first, folder), lambda: _prepare(target, second, folder), _normal(rng), lambda published: published.texts, weaken
    )  # fmt: skip
    return {
        "release path": "command line",
        "linkage": "ELE",
        "unit": "+".join(unit) or "default",
        "container": source,
    }, verdict


def _write_study(folder: Path, target: Study, unit: dict[str, Any]) -> None:
    text = STUDY.format(
        data=DATA[target.source], formula=target.formula, linkage='accuracy = 0.8\nblock = "b"',
        bounds="\n".join(f"{name} = {list(BOUNDS[name])}" for name in target.columns),
        unit="\n".join(f"{name} = {str(value).lower()}" for name, value in unit.items()),
    )  # fmt: skip
    (folder / "study.toml").write_text(text, encoding="utf-8")


def _prepare(target: Study, cells: dict[str, list[Any]], folder: Path) -> Callable[[], Any]:
    from dplinked.cli.main import main

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
        texts = {
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(folder.glob("*"))
            if not path.name.startswith("rows")
        }
        texts |= {"files": str(sorted(path.name for path in folder.glob("*"))), "exit code": str(code)}
        release = dpl.Release.load(out)
        return Published(release.privacy, texts, release.released)

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


# --- Parquet in pieces --------------------------------------------------------------------------------------------------------------


def attack_pieces(rng: Draw, folder: Path, weaken: float) -> tuple[dict[str, str], Verdict]:
    """Neighbours in a Parquet file that is too large to be read at once."""
    rows, moves = 2**19 + int(rng.integers(1, 1000)), bool(rng.random() < 0.5)
    person, holder = (int(row) for row in rng.choice(rows, 2, replace=False))
    keys = np.arange(rows) // 1000 if rng.random() < 0.5 else rng.integers(0, 500, rows)
    first = {"x": rng.choice([0.0, 1.0], rows), "y": np.ones(rows), "b": keys}
    second = {name: column.copy() for name, column in first.items()}
    second["x"][person], second["y"][holder] = (
        rng.choice([1 - first["x"][person], math.nan, 1e308]),
        rng.choice([0.0, math.nan, -math.inf]),
    )
    if moves:
        second["b"][person] = rng.choice([0, -1, 2**62])

    def prepare(columns: dict[str, np.ndarray]) -> Callable[[], Any]:
        pq.write_table(pa.table(columns), folder / "pieces.parquet", row_group_size=100_000)
        return lambda: dpl.fit(
            folder / "pieces.parquet", "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=dpl.ELE(0.9, block="b"),
            unit=dpl.PrivacyUnit(moves_block=moves), epsilon=1.0, delta=1e-7,
        )  # fmt: skip

    verdict = compare(
        lambda: prepare(first),
        lambda: prepare(second),
        _normal(rng),
        lambda release: {"to_json": release.to_json()},
        weaken,
    )
    return {
        "release path": "ssp tight",
        "linkage": "ELE",
        "unit": "moves_block" if moves else "default",
        "container": "Parquet in pieces",
    }, verdict
