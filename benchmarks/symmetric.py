"""What the declaration that errors are symmetric does to a fit: where it is true, and where it is not.

    python benchmarks/symmetric.py [--runs 200] [--out benchmarks/results]
    python benchmarks/symmetric.py --quick               # one cell, 40 runs, for CI
    python benchmarks/symmetric.py --quick --control     # skewed errors taken for symmetric ones: must be found off the line

Each run is fitted twice, with errors="any" and with errors="symmetric", at ε = 1 and as in `sharper.py` otherwise. Pairs are any / symmetric. `off` is how far the mean
estimate is from the true slope, relative to it, over all slopes, with two Monte Carlo standard errors for symmetric. Where errors are symmetric and the larger the
rarer, the error must not grow, and intervals must hold the slope in at least 93 % of the runs (a binomial test, 1 % in all).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import track

import situations
from sections import close_report, covers_too_little, report_head, write_results
from sharper import Compared, Runs, fit_runs
from situations import LAWS, ROOT3, SITUATIONS, SYMMETRIC, Floats, People, Situation, numbered, numbered_law

CHUNK = 20
LEAST_COVERED = 0.93
Draw = Callable[[np.random.Generator, int], Floats]

ERRORS: dict[str, Draw] = {
    "even errors": lambda rng, n: rng.uniform(-ROOT3, ROOT3, n),
    "t errors, 3 degrees": lambda rng, n: rng.standard_t(3, n) / ROOT3,
    "errors of two groups": lambda rng, n: rng.choice([-1.0, 1.0], n) + 0.1 * rng.standard_normal(n),
}
SAME = (
    "d = 1, blocks of 25",
    "d = 5, blocks of 25",
    "d = 20, blocks of 25",
    "households, 1x",
    "heteroscedastic errors",
)
TRUE = (*SAME, "even errors", "t errors, 3 degrees")
SKEWED = ("heteroscedastic, skewed", "multiplicative errors")
FALSE = (*SKEWED, "errors of two groups")


def _with_errors(n: int, rng: np.random.Generator, errors: Draw) -> People:
    X = rng.uniform(-ROOT3, ROOT3, (n, 1))
    return numbered(X, X[:, 0], 0.5 * errors(rng, n))


def list_situations() -> dict[str, Situation]:
    """All cells, some of which have laws of their own."""
    for name, errors in ERRORS.items():
        LAWS[name] = numbered_law(partial(_with_errors, errors=errors), 1, (-ROOT3, ROOT3), (-4.5, 4.5))
    known = {cell.name: cell for cell in SITUATIONS}
    return {name: known[name] if name in known else Situation(name, name) for name in (*TRUE, *FALSE)}


def run_chunk(job: tuple[Situation, int, int]) -> list[dict[str, Any]]:
    """Some runs of one situation."""
    list_situations()
    return fit_runs(*job, noisier=1.0)


def describe(cell: Compared, declared: str) -> dict[str, Any]:
    """What the declaration does in one cell."""
    estimate = cell.now.estimate
    chance = 2.0 * estimate.std(axis=0, ddof=1) / math.sqrt(len(estimate))
    off = (estimate.mean(axis=0) - cell.truth) / cell.truth
    return {**cell.row(), "declared": declared, "off": float(off.mean()), "off by chance": float(np.sqrt(((chance / cell.truth) ** 2).mean() / off.size))}  # fmt: skip


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """Where a true declaration does harm."""
    missed = []
    for row in rows:
        if row["ratio low"] > 1.0:
            missed.append(f"{row['cell']}: the error is {row['ratio']:.2f} times that of any errors")
        if covers_too_little(row["coverage now"], row["runs"], LEAST_COVERED, len(rows)):
            missed.append(f"{row['cell']}: the intervals hold the slope in {row['coverage now']:.0%} of the runs")
    return missed


def write_report(rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Errors declared symmetric", __doc__, notes),
        "| cell | declaration | ratio of errors | off | coverage of 95 % | length |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratio = f"{row['ratio']:.2f} ({row['ratio low']:.2f}–{row['ratio high']:.2f})"
        pairs = [f"{row[f'{what} then']:{form}} / {row[f'{what} now']:{form}}" for what, form in (("coverage", ".3f"), ("length", ".2f"))]  # fmt: skip
        off = f"{row['off']:+.1%} (± {row['off by chance']:.1%})"
        lines.append("| " + " | ".join([row["cell"], row["declared"], ratio, off, *pairs]) + " |")
    return close_report(lines, missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one cell, 40 runs")
    parser.add_argument("--control", action="store_true", help="judge skewed errors: must be found off the line")
    parser.add_argument("--out", type=Path, help="folder for symmetric.md and symmetric.csv")
    options = parser.parse_args()
    cells, count, judged = list_situations(), 40 if options.quick else options.runs, SKEWED if options.control else TRUE
    if options.quick:
        cells = {judged[0]: cells[judged[0]]}
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, cell in track(cells.items(), "Cells"):
            chunks = [(first, min(CHUNK, count - first)) for first in range(0, count, CHUNK)]
            sides = [[(replace(cell, new=new), *chunk) for chunk in chunks] for new in ({}, SYMMETRIC)]
            both = [[run for part in pool.map(run_chunk, side) for run in part] for side in sides]
            not_private = np.array([run["not_private"] for run in both[0]])
            compared = Compared(cell, situations.true_slopes(cell.law), not_private, *map(Runs.of, both))
            rows.append(describe(compared, "true" if name in TRUE else "false"))
    missed = judge([row for row in rows if row["cell"] in judged])
    report = write_report(rows, missed, [f"{count} runs of each cell."])
    print(report)
    if options.out:
        write_results(options.out, "symmetric", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
