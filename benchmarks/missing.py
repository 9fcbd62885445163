"""What leaving out missing cells does to a fit: where one cell in twenty is missing, and what it costs where none is.

    python benchmarks/missing.py [--runs 200] [--out benchmarks/results]
    python benchmarks/missing.py --quick               # one cell of each kind, 40 runs, for CI
    python benchmarks/missing.py --quick --control     # cells that are filled: intervals must be found to miss the slope

Each run is fitted twice, with missing="fill" and with missing="drop", at ε = 1 and as in `sharper.py` otherwise. Pairs are fill / drop. `off` is how far the mean
estimate is from the true slope, relative to it, over all slopes, with two Monte Carlo standard errors for drop. With holes, intervals must hold the slope in 93 to 98 % of the
runs (binomial tests, 1 % in all). Without any, the error must not grow by more than a twentieth, beyond its own 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import track
from scipy import stats

import situations
from sections import close_report, covers_too_little, report_head, write_results
from sharper import Compared, Runs
from situations import SITUATIONS, Situation
from symmetric import CHUNK, describe, run_chunk

LEAST_COVERED, MOST_COVERED = 0.93, 0.98
MOST_COST = 1.05
WAYS: tuple[dict[str, Any], ...] = ({"missing": "fill"}, {"missing": "drop"})
WHERE = {
    "households": Situation("households", "households", links="states"),
    "households, exact": Situation("households, exact", "households", links="exact"),
    "central": Situation("central", "d = 1"),
    "central, exact": Situation("central, exact", "d = 1", links="exact"),
}
HOLES = [
    replace(WHERE[where], name=f"{where}: {holes}", holes=holes)
    for where, listed in {
        "households": ("x", "x by x", "y", "y by x"),
        "households, exact": ("x", "y by x"),
        "central": ("y by x",),
        "central, exact": ("y",),
    }.items()
    for holes in listed
]
CLEAN = ("households, 1x", "lognormal", "d = 1, blocks of 25", "d = 5, exact", "d = 5, blocks of 25", "d = 20, exact")


def list_cells(quick: bool) -> list[Situation]:
    """Cells with holes, and then those without."""
    clean = [cell for cell in SITUATIONS if cell.name in CLEAN]
    return [HOLES[0], clean[0]] if quick else [*HOLES, *clean]


def judge(rows: list[dict[str, Any]], covered: str) -> list[str]:
    """Where intervals hold the slope too rarely or too often, and where nothing is missing and the error grows."""
    missed, holes = [], [row for row in rows if row["holes"]]
    for row in holes:
        hits = round(row[f"coverage {covered}"] * row["runs"])
        too_much = stats.binom.sf(hits - 1, row["runs"], MOST_COVERED) < 0.01 / len(holes)
        if too_much or covers_too_little(row[f"coverage {covered}"], row["runs"], LEAST_COVERED, len(holes)):
            missed.append(f"{row['cell']}: intervals hold the slope in {row[f'coverage {covered}']:.1%} of the runs")
    for row in rows:
        if not row["holes"] and row["ratio low"] > MOST_COST:
            missed.append(f"{row['cell']}: without holes the error is {row['ratio']:.2f} times that with filled cells")
    return missed


def write_report(rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Missing cells", __doc__, notes),
        "| cell | missing | ratio of errors | off | coverage of 95 % | length |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratio = f"{row['ratio']:.2f} ({row['ratio low']:.2f}–{row['ratio high']:.2f})"
        pairs = [f"{row[f'{what} then']:{form}} / {row[f'{what} now']:{form}}" for what, form in (("coverage", ".3f"), ("length", ".2f"))]  # fmt: skip
        off = f"{row['off then']:+.1%} / {row['off']:+.1%} (± {row['off by chance']:.1%})"
        lines.append("| " + " | ".join([row["cell"], row["holes"] or "none", ratio, off, *pairs]) + " |")
    return close_report(lines, missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", nargs="*", help="names of cells; all by default")
    parser.add_argument("--quick", action="store_true", help="one cell of each kind, 40 runs")
    parser.add_argument("--control", action="store_true", help="judge filled cells: must be found to miss the slope")
    parser.add_argument("--out", type=Path, help="folder for missing.md and missing.csv")
    options = parser.parse_args()
    count, rows = 40 if options.quick else options.runs, []
    cells = [cell for cell in list_cells(options.quick) if not options.cells or cell.name in options.cells]
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell in track(cells, "Cells"):
            chunks = [(first, min(CHUNK, count - first)) for first in range(0, count, CHUNK)]
            sides = [[(replace(cell, new=new), *chunk) for chunk in chunks] for new in WAYS]
            both = [[run for part in pool.map(run_chunk, side) for run in part] for side in sides]
            not_private = np.array([run["not_private"] for run in both[0]])
            compared = Compared(cell, situations.true_slopes(cell.law), not_private, *map(Runs.of, both))
            filled = ((compared.then.estimate.mean(axis=0) - compared.truth) / compared.truth).mean()
            rows.append({**describe(compared, ""), "holes": cell.holes, "off then": float(filled)})
    missed = judge(rows, "then" if options.control else "now")
    report = write_report(rows, missed, [f"{count} runs of each cell."])
    print(report)
    if options.out:
        write_results(options.out, "missing", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
