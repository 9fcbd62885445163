"""Logistic and Poisson regression after linkage: errors beside those of Chambers' estimator without privacy, and coverage of intervals.

    python benchmarks/outcomes.py [--runs 200] [--cells normal skewed] [--out benchmarks/results]
    python benchmarks/outcomes.py --quick               # one cell, 40 runs, for CI
    python benchmarks/outcomes.py --quick --control     # wrong links taken for right ones: must be found not to cover

`private` is the root mean square error of slopes; `Chambers` that of the equation of Chambers (2009) on the same rows without noise, its curve that of clipped counts, too; `naive` that
of a private fit that takes all links for right ones. The cells named first have a bound on the ratio of private to Chambers, and must not be worse than naive. In all cells 95 % intervals
must hold the slopes in at least 93 % of the cases, by a binomial test (1 % in all, slopes of one fit counted as one and a half). δ = 1e-6; columns are normal (deviation .4) or skewed
(exponential), clipped to ±1.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from scipy.optimize import brentq

import dplinked as dpl
from dplinked.not_private.baseline import chambers
from sections import close_report, covers_too_little, report_head, write_results

Floats = NDArray[np.float64]
CHUNK = 20
LEAST_COVERED = 0.93
SLOPES = (1.5, 0.25, -1.0)


@dataclass(frozen=True)
class Cell:
    """One situation: what is drawn, how it is linked, and how large errors may be relative to Chambers'."""

    name: str
    family: str = "logistic"
    mean: float = 0.3  # of the outcome; a rate is per unit of exposure
    slopes: tuple[float, ...] = (1.2, -0.6)
    skewed: bool = False
    count: int = 20_000
    block: int = 25
    accuracy: float = 0.9
    epsilon: float = 1.0
    largest: int = 1
    exposure: bool = False
    spread: float = 0.0  # variance of a factor of rates, whose mean is 1: counts then vary more than by Poisson's law
    most: float | None = None


def wide(name: str, **settings: Any) -> Cell:
    """A cell whose errors are compared."""
    return Cell(name, **{"slopes": SLOPES, "count": 50_000, "block": 500, "most": 1.5, **settings})


COMPARED = [
    wide("normal", mean=0.4),
    wide("skewed", mean=0.3, skewed=True),
    wide("5 % events", mean=0.05),
    wide("strong slopes", mean=0.13, skewed=True, slopes=(3.0, 0.5, -2.0), most=2.0),
    wide("rate .2", family="poisson", mean=0.2, slopes=(0.8, 0.25, -0.5), largest=2),
    wide("rate 5", family="poisson", mean=5.0, slopes=(0.4, 0.1, -0.3), largest=11),
    wide("rate .2, exposure", family="poisson", mean=0.2, slopes=(0.8, 0.25, -0.5), largest=3, exposure=True),
    wide("rate 5, largest 60", family="poisson", mean=5.0, slopes=(0.4, 0.1, -0.3), largest=60, most=2.0),
]
COVERED = [
    Cell("n 5,000", count=5_000),
    Cell("n 20,000"),
    Cell("n 200,000", count=200_000),
    Cell("ε .5", epsilon=0.5),
    Cell("ε 3", epsilon=3.0),
    Cell("ε 8", epsilon=8.0),
    Cell("n 5,000, ε .5", count=5_000, epsilon=0.5),
    Cell("n 200,000, ε 8", count=200_000, epsilon=8.0),
    Cell("d 1", slopes=(1.2,)),
    Cell("d 1, n 5,000, ε 8", slopes=(1.2,), count=5_000, epsilon=8.0),
    Cell("d 8", slopes=(1.2, -0.6, 0.3, 0.0) * 2, count=50_000),
    Cell("d 8, ε 8", slopes=(1.2, -0.6, 0.3, 0.0) * 2, epsilon=8.0),
    Cell("2 % events", mean=0.02, count=50_000),
    Cell("2 % events, ε 8", mean=0.02, count=50_000, epsilon=8.0),
    Cell("2 % events, n 5,000", mean=0.02, count=5_000),
    Cell("10 % events, skewed", mean=0.1, skewed=True),
    Cell("50 % events", mean=0.5),
    Cell("blocks of 2", block=2),
    Cell("blocks of 2, ε 8", block=2, epsilon=8.0),
    Cell("one block", block=20_000),
    Cell("one block, ε 8", block=20_000, epsilon=8.0),
    Cell("accuracy .7", accuracy=0.7),
    Cell("accuracy .7, ε 8", accuracy=0.7, epsilon=8.0),
    Cell("accuracy .99", accuracy=0.99),
    Cell("accuracy .7, blocks of 2, ε 8", accuracy=0.7, block=2, epsilon=8.0),
    Cell("strong, skewed, ε 8", slopes=(3.0, -2.0), skewed=True, count=50_000, epsilon=8.0),
    Cell("rate 1", family="poisson", mean=1.0, largest=5),
    Cell("rate 1, ε 8", family="poisson", mean=1.0, largest=5, epsilon=8.0),
    Cell("rate 1, blocks of 2, ε 8", family="poisson", mean=1.0, largest=5, epsilon=8.0, block=2),
    Cell("rate 1, accuracy .7, ε 8", family="poisson", mean=1.0, largest=5, epsilon=8.0, accuracy=0.7),
    Cell("rate 1, n 5,000", family="poisson", mean=1.0, largest=5, count=5_000),
    Cell("rate 2, overdispersed", family="poisson", mean=2.0, slopes=(0.6, -0.3), largest=15, spread=0.5),
]


def draw_rows(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Linked rows of a cell, of which the wrongly linked ones of a block have each other's outcomes."""
    n, d = cell.count, len(cell.slopes)
    x = 0.5 * rng.exponential(1.0, (n, d)) - 1.0 if cell.skewed else rng.normal(0.0, 0.4, (n, d))
    x = np.clip(x, -1.0, 1.0)
    years = rng.uniform(0.25, 4.0, n) if cell.exposure else np.ones(n)
    line = x @ np.array(cell.slopes)
    if cell.family == "logistic":
        level = brentq(lambda level: float((1.0 / (1.0 + np.exp(-level - line))).mean()) - cell.mean, -30.0, 30.0)
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(-level - line))).astype(np.int64)
    else:
        factor = rng.gamma(1.0 / cell.spread, cell.spread, n) if cell.spread else 1.0
        y = rng.poisson(factor * years * cell.mean * np.exp(line) / np.exp(line).mean())
    rows = {f"x{k}": x[:, k] for k in range(d)}
    return {**rows, "years": years, "y": link_wrongly(cell, y, rng), "block": np.arange(n) // cell.block}


def link_wrongly(cell: Cell, y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Outcomes after linkage: of each block a random share is cycled, never a single row."""
    z, m = y.copy(), cell.block
    for start in range(0, cell.count, m):
        size = min(m, cell.count - start)
        expected = (1.0 - cell.accuracy) * size
        if size == 2:
            wrong = 2 * int(rng.random() < 1.0 - cell.accuracy)
        else:
            wrong = max(0, round(expected + rng.uniform(-0.5, 0.5))) if size > 3 else 0
            wrong = 2 * int(rng.random() < 0.5) if wrong == 1 else wrong
        places = start + rng.permutation(size)[:wrong]
        z[places] = y[np.roll(places, 1)]
    return z


def fit_cell(cell: Cell, rows: dict[str, Any], linkage: Any) -> tuple[Floats, Floats]:
    """Slopes and ends of their intervals (d, d×2) by a private fit."""
    release = dpl.fit(rows, formula(cell), linkage=linkage, epsilon=cell.epsilon, delta=1e-6, **declared(cell))
    intervals = release.conf_int()
    names = [f"x{k}" for k in range(len(cell.slopes))]
    return np.array([release.coef[name] for name in names]), np.array([intervals[name] for name in names])


def formula(cell: Cell) -> str:
    return "y ~ " + " + ".join(f"x{k}" for k in range(len(cell.slopes)))


def declared(cell: Cell) -> dict[str, Any]:
    """What is declared of a cell's columns."""
    bounds: dict[str, Any] = {f"x{k}": (-1.0, 1.0) for k in range(len(cell.slopes))}
    if cell.family == "logistic":
        return {"family": cell.family, "bounds": bounds, "levels": {"y": [0, 1]}}
    exposure = {"exposure": "years"} if cell.exposure else {}
    return {"family": cell.family, "bounds": {**bounds, "y": (0, cell.largest), "years": (0.25, 4.0)}, **exposure}


def run_chunk(job: tuple[Cell, int, int, bool]) -> list[dict[str, Any]]:
    """Some runs of one cell."""
    cell, first, count, control = job
    linkage, found = dpl.ELE(cell.accuracy, block="block"), []
    for run in range(first, first + count):
        rows = draw_rows(cell, np.random.default_rng([run, *cell.name.encode()]))
        private, ends = fit_cell(cell, rows, dpl.Exact() if control else linkage)
        one = {"private": private, "ends": ends}
        if cell.most is not None:
            one["naive"] = fit_cell(cell, rows, dpl.Exact())[0]
            reference = chambers(rows, formula(cell), linkage=linkage, **declared(cell))
            one["chambers"] = np.array([reference.coef[f"x{k}"] for k in range(len(cell.slopes))])
        found.append(one)
    return found


def describe(cell: Cell, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table."""
    truth = np.array(cell.slopes)
    ends = np.array([run["ends"] for run in runs])
    covered = (ends[:, :, 0] <= truth) & (truth <= ends[:, :, 1])
    estimates = np.array([run["private"] for run in runs])
    off = np.abs(estimates.mean(axis=0) - truth) / (estimates.std(axis=0, ddof=1) / math.sqrt(len(runs)))
    row = {
        "cell": cell.name, "family": cell.family, "n": cell.count, "epsilon": cell.epsilon, "runs": len(runs), "slopes": truth.size,
        "private": _error(runs, "private", truth), "chambers": math.nan, "naive": math.nan, "ratio": math.nan,
        "off in standard errors": float(off.max()), "coverage": float(covered.mean()), "unbounded": float((~np.isfinite(ends)).any(axis=2).mean()),
    }  # fmt: skip
    if cell.most is not None:
        row.update({name: _error(runs, name, truth) for name in ("chambers", "naive")})
        row["ratio"] = row["private"] / row["chambers"]
    return row


def _error(runs: list[dict[str, Any]], name: str, truth: Floats) -> float:
    return float(np.sqrt(np.mean([(run[name] - truth) ** 2 for run in runs])))


def judge(cells: list[Cell], rows: list[dict[str, Any]]) -> list[str]:
    """What was missed."""
    missed = []
    for cell, row in zip(cells, rows, strict=True):
        if cell.most is not None and row["ratio"] > cell.most:
            missed.append(f"{cell.name}: the error is {row['ratio']:.2f} times Chambers', above {cell.most:g}")
        if cell.most is not None and row["private"] > row["naive"]:
            missed.append(f"{cell.name}: the error is larger than the naive fit's")
        cases = round(row["runs"] * (1.0 if row["slopes"] == 1 else 1.5))
        if covers_too_little(row["coverage"], cases, LEAST_COVERED, len(rows)):
            missed.append(f"{cell.name}: the intervals hold {row['coverage']:.1%} of the slopes")
    return missed


def write_report(rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Events and counts after linkage", __doc__, notes),
        "| cell | family | n | ε | private | Chambers | ratio | naive | coverage of 95 % | unbounded |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        errors = [f"{row[name]:.4f}" if math.isfinite(row[name]) else "" for name in ("private", "chambers")]
        errors += [f"{row['ratio']:.2f}", f"{row['naive']:.4f}"] if math.isfinite(row["ratio"]) else ["", ""]
        facts = [row["cell"], row["family"], f"{row['n']:,}", f"{row['epsilon']:g}", *errors]
        lines.append("| " + " | ".join([*facts, f"{row['coverage']:.3f}", f"{row['unbounded']:.0%}"]) + " |")
    return close_report(lines, missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", nargs="+", help="names of cells; all if left out")
    parser.add_argument("--quick", action="store_true", help="one cell, 40 runs")
    parser.add_argument(
        "--control", action="store_true", help="take wrong links for right ones: must be found not to cover"
    )
    parser.add_argument("--out", type=Path, help="folder for outcomes.md and outcomes.csv")
    options = parser.parse_args()
    cells = [cell for cell in (*COMPARED, *COVERED) if options.cells is None or cell.name in options.cells]
    cells, count = (COMPARED[:1], 40) if options.quick else (cells, options.runs)
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell in track(cells, "Cells"):
            jobs = [(cell, first, min(CHUNK, count - first), options.control) for first in range(0, count, CHUNK)]
            rows.append(describe(cell, [run for part in pool.map(run_chunk, jobs) for run in part]))
    missed = judge(cells, rows)
    report = write_report(rows, missed, [f"{count} runs of each cell."])
    print(report)
    if options.out:
        write_results(options.out, "outcomes", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
