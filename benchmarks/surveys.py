"""Survey weights, subpopulations and several rows of a person: how often intervals hold the weighted line, and how long they are.

    python benchmarks/surveys.py [--runs 200] [--out benchmarks/results]
    python benchmarks/surveys.py --strata              # rows drawn in strata, which are declared or not
    python benchmarks/surveys.py --quick               # two cells, 40 runs, for CI
    python benchmarks/surveys.py --quick --control     # weights and conditions left out: intervals must be found to miss the line

Rows, links and noise are drawn anew in each run; releases run through the library with NumPy noise of the same scales. The truth is the weighted least-squares line of four million
perfectly linked rows that count. Weights are lognormal, clipped to their declared bounds (1, 20); informative ones go with the slope and with the level of the response, slightly informative ones half as much. In strata one row in fifteen has the largest weight and a slope of its own, the others the smallest.
Subgroups have a slope of their own. Without tails, regressors are uniform within their bounds, so that the first step of the second stage may be the last. Where rows are drawn in `strata` of a fixed size, one after the other, these differ in the levels of x and y, or are alike; `not declared` is the same without saying so. Rows of one person, or of one cluster, have half of the variance of x and of the residuals in common. Intervals must hold the slopes in 93 to 98 % of the runs (binomial tests, 1 % in all), and their median length (`interval`) may be at most 1.25 of that which
the spread of the estimates gives (`length`), beyond two standard errors of that, unless strata are not declared. `error` is the root mean square error of slopes, beside that of the same rows without privacy, perfectly linked.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from scipy import stats

import dplinked as dpl
from dplinked.privacy import noise
from sections import close_report, covers_too_little, report_head, write_results

Floats = NDArray[np.float64]

LEAST_COVERED, MOST_COVERED, MOST_LENGTH = 0.93, 0.98, 1.25
CHUNK = 20
BOUNDS = {"y": (-20.0, 30.0), "w": (1.0, 20.0), "age": (0.0, 100.0)}


@dataclass(frozen=True)
class Cell:
    """One design. `links` is the number of rows of a block, 0 for one block of all rows, 1 for perfect links."""

    name: str
    n: int = 20_000
    epsilon: float = 1.0
    columns: int = 1
    weights: str = ""  # "", "plain", "slightly" or more "informative", or "strata"
    where: str = ""
    links: int = 25
    accuracy: float = 0.9
    rows: int = 1  # of each person, one after the other
    cluster: int = 1  # rows of each cluster, one after the other
    flat: bool = False  # regressors uniform within their bounds, which have no tails to look for
    strata: int = 0  # of equal numbers of rows, one after the other
    levels: float = 0.0  # how far the strata's levels lie apart
    told: bool = True  # whether strata are declared


OLD = "age >= 90"  # one row in ten
FLAT = math.sqrt(3.0)  # uniform within ± of it: of variance one
FEW = "age >= 85 and g == 'b'"  # one in twenty
CELLS = [
    Cell("weights", weights="plain"),
    Cell("weights, exact", weights="plain", links=1),
    Cell("weights, one block", weights="plain", links=0),
    Cell("weights, pairs", weights="plain", links=2),
    Cell("weights, accuracy .7", weights="plain", accuracy=0.7),
    Cell("weights, d = 5", weights="plain", columns=5),
    Cell("weights, n = 5,000", weights="plain", n=5_000),
    Cell("weights, n = 100,000", weights="plain", n=100_000),
    Cell("weights, ε = 8", weights="plain", epsilon=8.0),
    Cell("informative", weights="informative"),
    Cell("informative, exact", weights="informative", links=1),
    Cell("informative, ε = 8", weights="informative", epsilon=8.0),
    Cell("informative, n = 100,000", weights="informative", n=100_000),
    Cell("strata", weights="strata"),
    Cell("strata, exact", weights="strata", links=1),
    Cell("strata, accuracy .7, n = 100,000", weights="strata", accuracy=0.7, n=100_000),
    Cell("strata, half", weights="strata", where="age < 50", n=50_000),
    Cell("a tenth", where=OLD),
    Cell("a twentieth", where=FEW, n=50_000),
    Cell("a twentieth, exact", where=FEW, n=50_000, links=1),
    Cell("a twentieth, ε = 4", where=FEW, epsilon=4.0),
    Cell("a twentieth, d = 3", where=FEW, n=100_000, columns=3),
    Cell("half", where="age < 50"),
    Cell("half, accuracy .7", where="age < 50", accuracy=0.7),
    Cell("half, informative weights", where="age < 50", weights="informative"),
    Cell("a tenth, informative weights", where=OLD, weights="informative", n=50_000),
    Cell("3 rows, exact", rows=3, links=1, epsilon=4.0),
    Cell("10 rows, exact", rows=10, links=1, n=50_000, epsilon=4.0),
    Cell("3 rows, blocks of 30", rows=3, links=30, epsilon=4.0),
    Cell("10 rows, blocks of 30", rows=10, links=30, n=100_000, epsilon=8.0),
    Cell("3 rows, weights, exact", rows=3, links=1, weights="plain", n=50_000, epsilon=4.0),
    Cell("clusters of 5, exact", cluster=5, links=1, n=50_000, epsilon=4.0),
    Cell("clusters of 20, exact", cluster=20, links=1, n=100_000, epsilon=4.0),
    Cell("clusters of 10, blocks of 25", cluster=10, n=100_000, epsilon=4.0),
    Cell("clusters of 10, blocks of 50, weights", cluster=10, links=50, weights="plain", n=100_000, epsilon=8.0),
    Cell("no tails, weights", weights="plain", n=50_000, epsilon=8.0, flat=True),
    Cell("no tails, slightly informative", weights="slightly", n=50_000, epsilon=8.0, flat=True),
    Cell("no tails, informative", weights="informative", n=50_000, epsilon=8.0, flat=True),
    Cell("no tails, slightly informative, exact", weights="slightly", n=50_000, links=1, epsilon=8.0, flat=True),
    Cell("no tails, half, weights", weights="plain", where="age < 50", n=50_000, epsilon=8.0, flat=True),
]
STRATIFIED = [
    Cell("8 strata, exact", strata=8, levels=3.0, links=1, epsilon=4.0),
    Cell("8 strata, blocks of 25", strata=8, levels=3.0, n=50_000, epsilon=4.0),
    Cell("8 strata, one block", strata=8, levels=3.0, n=50_000, epsilon=4.0, links=0),
    Cell("8 strata, weights", strata=8, levels=3.0, n=50_000, epsilon=4.0, weights="plain"),
    Cell("8 strata, half", strata=8, levels=3.0, n=50_000, epsilon=4.0, where="age < 50"),
    Cell("8 strata, n = 20,000, ε = 1", strata=8, levels=3.0),
    Cell("48 strata, d = 3", strata=48, levels=3.0, n=50_000, epsilon=4.0, columns=3),
    Cell("4 strata, clusters of 10", strata=4, levels=3.0, n=100_000, epsilon=8.0, cluster=10, links=1),
    Cell("4 strata, clusters of 10, blocks of 50", strata=4, levels=3.0, n=100_000, epsilon=8.0, cluster=10, links=50),
    Cell("8 strata alike", strata=8, n=50_000, epsilon=4.0),
    Cell("8 strata alike, weights", strata=8, n=50_000, epsilon=4.0, weights="plain"),
]
STRATIFIED = [
    one for cell in STRATIFIED for one in (replace(cell, name=f"{cell.name}, not declared", told=False), cell)
]
QUICK = ("informative, ε = 8", "strata, exact")


def draw_people(cell: Cell, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """People with regressors, weights and responses of their own."""
    x = _in_common(cell, rng.normal(size=(cell.columns, n)), rng)
    if cell.flat:
        x = rng.uniform(-1.0, 1.0, size=x.shape) * FLAT
    w = np.clip(np.exp(rng.normal(1.2, 0.7, n)), *BOUNDS["w"])
    if cell.weights == "strata":
        w = np.where(rng.random(n) < 1 / 15, *BOUNDS["w"][::-1])
    age, g = rng.uniform(*BOUNDS["age"], n), rng.choice(["a", "b", "c"], n, p=[0.5, 1 / 3, 1 / 6])
    telling = {"informative": 1.0, "slightly": 0.5}.get(cell.weights, 0.0)
    slope = 1.0 + 0.4 * telling * (np.log(w) - 1.2) + 0.6 * (age >= 85)
    slope = slope + (0.8 * (w == BOUNDS["w"][1]) if cell.weights == "strata" else 0.0)
    level = 3.0 + 0.5 * telling * np.log(w) + 0.02 * age
    of = strata_of(cell, n)
    x, level = x + cell.levels * (of % 2 - 0.5), level + cell.levels * (of // 2 % 2 - 0.5)  # the line stays straight
    y = level + slope * x.sum(axis=0) / np.sqrt(cell.columns) + 1.5 * _in_common(cell, rng.normal(size=(1, n)), rng)[0]
    return {**{f"x{k}": column for k, column in enumerate(x)}, "w": w, "age": age, "g": g, "y": y}


def strata_of(cell: Cell, n: int) -> Floats:
    """Number of the stratum of each row."""
    return np.arange(n) * max(1, cell.strata) // n


def _in_common(cell: Cell, drawn: Floats, rng: np.random.Generator) -> Floats:
    """Draws of rows (k×n), half of whose variance the rows of one person or cluster have in common."""
    together = max(cell.rows, cell.cluster)
    if together == 1:
        return drawn
    persons = rng.normal(size=(len(drawn), -(-drawn.shape[1] // together)))
    return (drawn + np.repeat(persons, together, axis=1)[:, : drawn.shape[1]]) / np.sqrt(2.0)


def what_counts(cell: Cell, people: dict[str, Any]) -> Floats:
    """What each person counts, by the cell's declarations, worked out apart from the library."""
    counted = {
        "": np.ones_like(people["age"], bool),
        OLD: people["age"] >= 90,
        FEW: (people["age"] >= 85) & (people["g"] == "b"),
        "age < 50": people["age"] < 50,
    }[cell.where]
    return counted * (people["w"] if cell.weights else 1.0)


def weighted_slopes(cell: Cell, people: dict[str, Any]) -> Floats:
    """Slopes of weighted least squares on perfectly linked rows."""
    X = np.stack([np.ones(people["y"].size), *(people[f"x{k}"] for k in range(cell.columns))], axis=1)
    counted = what_counts(cell, people)[:, None] * X
    return np.linalg.solve(counted.T @ X, counted.T @ people["y"])[1:]


@lru_cache
def true_slopes(cell: Cell) -> tuple[float, ...]:
    """The line of the population."""
    return tuple(weighted_slopes(cell, draw_people(cell, 4_000_000, np.random.default_rng(7))).tolist())


def link_rows(cell: Cell, people: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The people as linked rows: some responses of a block are handed round."""
    n, size = people["y"].size, cell.links or people["y"].size
    block, order = np.arange(n) // size, np.arange(n)
    wrong = np.flatnonzero(rng.random(n) > cell.accuracy) if cell.links != 1 else np.zeros(0, int)
    for rows in np.split(wrong, np.flatnonzero(np.diff(block[wrong])) + 1):
        rows = rng.permutation(
            rows
        )  # wrong links bring any response of the block, not that of the next row, which may be of the same cluster
        order[rows] = np.roll(rows, 1)
    moved = (order != np.arange(n)).mean() if cell.links != 1 else 0.0
    person = np.arange(n) // cell.rows
    return {
        **people,
        "y": people["y"][order],
        "block": block,
        "right": 1.0 - moved,
        "person": person,
        "owner": person[order],
        "cluster": np.arange(n) // cell.cluster,
        "stratum": strata_of(cell, n).astype(str),
    }


def run_once(cell: Cell, plain: bool, seed: int) -> dict[str, Any]:
    """One release: slopes, whether their intervals hold the truth, and how long they are; `plain` leaves out weights and conditions."""
    rng = np.random.default_rng([seed, (*CELLS, *STRATIFIED).index(cell)])
    people = draw_people(cell, cell.n, rng)
    rows = link_rows(cell, people, rng)
    right = rows.pop("right")
    linkage = dpl.Exact() if cell.links == 1 else dpl.ELE(right, block="block")
    unit = dpl.PrivacyUnit()
    if cell.rows > 1:
        unit = dpl.PrivacyUnit(rows=cell.rows, id="person", response_id=None if cell.links == 1 else "owner")
    noise.add_gaussian = lambda values, scale: values + scale * rng.normal(size=np.shape(values))
    names = [f"x{k}" for k in range(cell.columns)]
    release = dpl.fit(
        rows,
        f"y ~ {' + '.join(names)}",
        bounds=BOUNDS | dict.fromkeys(names, (-FLAT, FLAT) if cell.flat else (-5.0, 5.0)),
        levels={"g": ["a", "b", "c"], "stratum": [f"{h}" for h in range(max(2, cell.strata))]},
        linkage=linkage,
        unit=unit,
        epsilon=cell.epsilon,
        delta=1e-6,
        weights=None if plain or not cell.weights else "w",
        where=None if plain or not cell.where else cell.where,
        cluster=None if plain or cell.cluster == 1 else "cluster",
        strata="stratum" if cell.strata and cell.told and not plain else None,
    )
    intervals = release.conf_int()
    ends = [intervals[name] for name in names]
    truth = np.array(true_slopes(cell))
    return {
        "estimate": [release.coef[name] for name in names],
        "held": [low <= t <= high for t, (low, high) in zip(truth, ends, strict=True)],
        "length": [high - low for low, high in ends],
        "not private": (weighted_slopes(cell, people) - truth).tolist(),
    }


def run_chunk(cell: Cell, plain: bool, first: int, count: int) -> list[dict[str, Any]]:
    """Some runs of a cell, in a process of their own."""
    return [run_once(cell, plain, seed) for seed in range(first, first + count)]


def describe(cell: Cell, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs of a cell show, over all slopes."""
    estimates, truth = np.array([run["estimate"] for run in runs]), np.array(true_slopes(cell))
    spread = 2.0 * 1.96 * np.median(np.abs(estimates - np.median(estimates, axis=0)), axis=0) / stats.norm.ppf(0.75)
    lengths = np.array([run["length"] for run in runs])
    bounded = np.where(np.isfinite(lengths), lengths, np.nan)
    return {
        **asdict(cell),
        "runs": len(runs),
        "error": float(np.sqrt(((estimates - truth) ** 2).mean())),
        "not private": float(np.sqrt(np.mean(np.square([run["not private"] for run in runs])))),
        "off": float(((estimates.mean(axis=0) - truth) / truth).mean()),
        "coverage": float(np.mean([run["held"] for run in runs])),
        "length": float(np.mean(np.nanmedian(bounded, axis=0) / spread)),
        "interval": float(np.mean(np.nanmedian(bounded, axis=0))),
        "unbounded": float(1.0 - np.isfinite(lengths).mean()),
    }


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """Where intervals hold the slopes too rarely or too often, or are too long."""
    missed = []
    for row in rows:
        hits = round(row["coverage"] * row["runs"])
        too_much = row["told"] and stats.binom.sf(hits - 1, row["runs"], MOST_COVERED) < 0.01 / len(rows)
        if too_much or covers_too_little(row["coverage"], row["runs"], LEAST_COVERED, len(rows)):
            missed.append(f"{row['name']}: intervals hold the slopes in {row['coverage']:.1%} of the runs")
        by_chance = 2.0 * 1.17 / math.sqrt(2.0 * row["runs"])  # of a spread from the median absolute deviation
        if row["told"] and row["length"] > MOST_LENGTH * (1.0 + by_chance):
            missed.append(f"{row['name']}: intervals are {row['length']:.2f} times as long as the spread asks for")
    return missed


def write_report(rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Surveys", __doc__, notes),
        "| cell | n | ε | d | error | without privacy | off | coverage of 95 % | interval | length | unbounded |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        listed = [row["name"], f"{row['n']:,}", f"{row['epsilon']:g}", str(row["columns"]), f"{row['error']:.4f}"]
        listed += [
            f"{row['not private']:.4f}",
            f"{row['off']:+.1%}",
            f"{row['coverage']:.3f}",
            f"{row['interval']:.4f}",
            f"{row['length']:.2f}",
        ]
        lines.append("| " + " | ".join([*listed, f"{row['unbounded']:.3f}"]) + " |")
    return close_report(lines, missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", nargs="*", help="names of cells; all by default")
    parser.add_argument("--strata", action="store_true", help="rows drawn in strata; writes strata.md and strata.csv")
    parser.add_argument("--quick", action="store_true", help="two cells, 40 runs")
    parser.add_argument("--control", action="store_true", help="weights and conditions left out: must be found to miss")
    parser.add_argument("--out", type=Path, help="folder for surveys.md and surveys.csv")
    options = parser.parse_args()
    cells = STRATIFIED if options.strata else CELLS
    count, wanted = (40, QUICK) if options.quick else (options.runs, options.cells)
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell in track([cell for cell in cells if not wanted or cell.name in wanted], "Cells"):
            firsts = range(0, count, CHUNK)
            run = partial(run_chunk, cell, options.control)
            chunks = pool.map(run, firsts, [min(CHUNK, count - first) for first in firsts])
            rows.append(describe(cell, [run for chunk in chunks for run in chunk]))
    missed = judge(rows)
    report = write_report(rows, missed, [f"{count} runs of each cell."])
    print(report)
    if options.out:
        write_results(options.out, "strata" if options.strata else "surveys", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
