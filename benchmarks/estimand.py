"""Which line a fit estimates where the truth is curved, by what is said about the middle of the regressor.

    python benchmarks/estimand.py [--runs 200] [--survey shiw2012.csv] [--out benchmarks/results]
    python benchmarks/estimand.py --quick               # one curve, for CI
    python benchmarks/estimand.py --quick --control     # errors declared symmetric in place of the default: must be found off the line

The line to aim for is the one that least squares gives on perfectly linked rows, clipped to their bounds. `off` is how far the mean estimate is from its
slope, relative to it, with two Monte Carlo standard errors; `off / spread` the same in standard deviations of the estimate; coverage is that of
95 % intervals, of the line's slope. The default must be off by at most 2 % beyond two Monte Carlo standard errors, and cover the line in at least
90 % of the runs (a binomial test, 1 % in all).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import track

import situations
from sections import close_report, covers_too_little, report_head, write_results
from sharper import Runs, fit_runs
from situations import LAWS, Floats, People, Situation, numbered, numbered_law

MANY = 4_000_000  # rows that tell the line of a curve
CHUNK = 20
MOST_OFF, LEAST_COVERED = 0.02, 0.9
LINKS = ("exact", "blocks of 25, .9")
CONTROL = "symmetric"  # closer clips, and no tails are looked for


def _curved(n: int, rng: np.random.Generator, *, lognormal: bool, curve: Callable[[Floats], Floats]) -> People:
    x = np.minimum(rng.lognormal(0.0, 0.7, (n, 1)), 15.0) if lognormal else rng.uniform(0.0, 2.0, (n, 1))
    return numbered(x, curve(x[:, 0]), 0.5 * rng.standard_normal(n))


CURVES: dict[str, tuple[bool, Callable[[Floats], Floats], tuple[float, float]]] = {
    "x even, y = x + x²/2": (False, lambda x: x + x**2 / 2.0, (-3.0, 7.0)),
    "x lognormal, y = x + x²/10": (True, lambda x: x + x**2 / 10.0, (-3.0, 40.0)),
    "x lognormal, y = 3 log(1 + x)": (True, lambda x: 3.0 * np.log1p(x), (-3.0, 12.0)),
}
TYPICAL = {False: {"x0": (0.5, 1.5)}, True: {"x0": (0.5, 2.0)}}
SURVEY_TYPICAL = {"income": (15_000.0, 45_000.0)}


def add_curves() -> None:
    """Make the curves laws."""
    for name, (lognormal, curve, tight) in CURVES.items():
        edge = (0.0, 15.0 if lognormal else 2.0)
        LAWS[name] = numbered_law(partial(_curved, lognormal=lognormal, curve=curve), 1, edge, tight)


def list_situations(curves: list[str], epsilon: float) -> list[tuple[str, str, Situation]]:
    """For each curve and kind of links, one situation for each thing that may be said of the regressor's middle."""
    found = []
    for curve in curves:
        typical = TYPICAL[CURVES[curve][0]] if curve in CURVES else SURVEY_TYPICAL
        said: dict[str, dict[str, Any]] = {
            "default": {},
            "declared": {"ranges": "declared"},
            "typical": {"typical": typical},
            "private": {"ranges": "private"},
            CONTROL: {"errors": "symmetric"},
        }
        for links in LINKS:
            for middle, settings in said.items():
                rows = 20_000 if curve in CURVES else 8_000
                situation = Situation(f"{curve}, {links}, {middle}", curve, rows, links, epsilon, settings=settings)
                found.append((curve, middle, situation))
    return found


def run_chunk(job: tuple[Situation, int, int, Path | None]) -> list[dict[str, Any]]:
    """Some runs of one situation."""
    situation, first, count, survey = job
    add_curves()
    if survey:
        situations.add_survey(survey)
    return fit_runs(situation, first, count, noisier=1.0)


def describe(curve: str, middle: str, situation: Situation, runs: Runs, line: float) -> dict[str, Any]:
    """How far the estimates are from the line."""
    estimate = runs.estimate[:, 0]
    mean, spread = float(estimate.mean()), float(estimate.std(ddof=1))
    return {
        "curve": curve,
        "links": situation.links,
        "middle": middle,
        "runs": len(estimate),
        "slope of the line": line,
        "mean estimate": mean,
        "off": mean / line - 1.0,
        "off by chance": 2.0 * spread / math.sqrt(len(estimate)) / abs(line),
        "off / spread": (mean - line) / spread,
        "coverage": runs.coverage(np.array([line])),
        "unbounded": runs.unbounded,
        "length": runs.length,
    }


def judge(rows: list[dict[str, Any]], judged: str) -> list[str]:
    """Where the default is off its line."""
    missed = []
    chosen = [row for row in rows if row["middle"] == judged]
    for row in chosen:
        name = f"{row['curve']}, {row['links']}"
        if abs(row["off"]) - row["off by chance"] > MOST_OFF:
            missed.append(f"{name}: the mean estimate is {row['off']:+.1%} off the line")
        if covers_too_little(row["coverage"], row["runs"], LEAST_COVERED, len(chosen)):
            missed.append(f"{name}: the intervals hold the line in {row['coverage']:.0%} of the runs")
    return missed


def write_report(rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Which line is estimated", __doc__, notes),
        "| curve | links | middle | slope of the line | mean estimate | off | off / spread | coverage of 95 % | unbounded | length |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row["curve"],
            row["links"],
            row["middle"],
            f"{row['slope of the line']:.4f}",
            f"{row['mean estimate']:.4f}",
            f"{row['off']:+.1%} (± {row['off by chance']:.1%})",
            f"{row['off / spread']:+.2f}",
            f"{row['coverage']:.3f}",
            f"{row['unbounded']:.3f}",
            f"{row['length']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return close_report(lines, missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--survey", type=Path, help="CSV file with the columns income and consumption")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one curve, 40 runs")
    parser.add_argument(
        "--control", action="store_true", help="judge errors declared symmetric: must be found off the line"
    )
    parser.add_argument("--out", type=Path, help="folder for estimand.md and estimand.csv")
    options = parser.parse_args()
    add_curves()
    survey = options.survey.resolve() if options.survey else None
    curves = list(CURVES)
    if options.quick:  # a curve with a long tail
        curves = curves[-1:]
    if survey:
        situations.add_survey(survey)
        curves.append("survey, wide")
    judged = CONTROL if options.control else "default"
    cells = list_situations(curves, options.epsilon)
    cells = [cell for cell in cells if cell[1] == judged or not (options.quick or cell[1] == CONTROL)]
    count = 40 if options.quick else options.runs
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for curve, middle, situation in track(cells, "Cells"):
            jobs = [(situation, first, min(CHUNK, count - first), survey) for first in range(0, count, CHUNK)]
            runs = Runs.of([run for part in pool.map(run_chunk, jobs) for run in part])
            line = float(situations.true_slopes(curve, MANY)[0])
            rows.append(describe(curve, middle, situation, runs, line))
    missed = judge(rows, judged)
    notes = [f"{count} runs of each, ε = {options.epsilon:g}, 20,000 rows (8,000 of the survey)."]
    if survey is None:
        notes.append("The survey was left out: give its file with --survey.")
    report = write_report(rows, missed, notes)
    print(report)
    if options.out:
        write_results(options.out, "estimand", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
