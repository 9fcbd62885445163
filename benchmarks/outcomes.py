"""Logistic and Poisson regression after linkage: errors beside those of Chambers' estimator without privacy, and coverage of intervals.

    python benchmarks/outcomes.py [--runs 200] [--cells normal skewed] [--out benchmarks/results]
    python benchmarks/outcomes.py --quick               # two cells, 40 runs, for CI
    python benchmarks/outcomes.py --quick --control     # wrong links taken for right ones: must be found not to cover

The first cells were looked at while constants of the fit were set. Errors are compared there: `private` is the root mean square error of slopes; `Chambers` that of the equation of Chambers (2009) on the
same rows without noise, its curve that of clipped counts, too; `naive` that of a private fit that takes all links for right ones. There is a bound on the ratio of private to Chambers, and private must not be worse than naive.
The other cells are a grid of their own, with other slopes, columns and seeds, written down before any of it was run. All cells' intervals are judged as lines' are (`coverage.py`): coverage below .93 or above .985 at 95 %, or below .77 at 80 %, by binomial tests of 1 % in all; median lengths above 1.25 times those from the
true spread of the same estimates; more than one in 200 unbounded where that spread is within ±3. Beside the tests it is counted how many cells lie within .93 and .98 as measured. δ = 1e-6; columns are even, normal (deviation .4), skewed (exponential)
or binary (30 % at 1), within ±1; cells with holes lack the first regressor or the outcome in one row of twenty, before links are drawn; weights are lognormal, clipped to their declared bounds (1, 20), and where they are informative the first slope follows them, the truth then being weighted maximum likelihood of a million people with right links; people outside a subgroup have slopes of the opposite sign; counts are declared up to their .99 quantile unless a cell says otherwise. Cells named overdispersed are reported, not judged. With --cells, results of other cells are kept as they are.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from scipy.optimize import brentq

import dplinked as dpl
from coverage import describe_runs, list_failures, list_length_failures
from dplinked.not_private.baseline import chambers
from dplinked.privacy import noise
from dplinked.simulate import mislink
from sections import close_report, report_head, write_results

Floats = NDArray[np.float64]
CHUNK = 10
ASKED = (0.93, 0.98)  # coverage, as measured
PLAUSIBLE = 3.0  # slopes that a set is asked to bound
SEED = 18_2026  # of the grid
SLOPES = (1.5, 0.25, -1.0)
INFORMATIVE = 0.4  # of the first slope per deviation of a weight's logarithm
GRID_SLOPES = (0.9, -1.4, 0.35, 0.0, -0.7, 0.5, 0.2, -0.25)


@dataclass(frozen=True)
class Cell:
    """One situation: what is drawn, how it is linked, and how large errors may be relative to Chambers'."""

    name: str
    family: str = "logistic"
    mean: float = 0.3  # of the outcome; a rate is per unit of exposure
    slopes: tuple[float, ...] = GRID_SLOPES[:2]
    columns: str = "even"
    count: int = 20_000
    block: int = 25
    accuracy: float = 0.85
    epsilon: float = 1.0
    largest: int = 1
    exposure: bool = False
    spread: float = 0.0  # variance of a factor of rates, whose mean is 1: counts then vary more than by Poisson's law
    holes: str = ""  # what is missing in one row of twenty
    weights: str = ""  # "plain" or "informative"
    subgroup: float = 1.0  # share of the rows that count
    most: float | None = None


def wide(name: str, **settings: Any) -> Cell:
    """A cell whose errors are compared."""
    usual = {"slopes": SLOPES, "columns": "normal", "count": 50_000, "block": 500, "accuracy": 0.9, "most": 1.5}
    return Cell(name, **{**usual, **settings})


def events(**settings: Any) -> Cell:
    """A cell of the grid, named by what is not usual in it."""
    return Cell(", ".join(["events", *_said(settings)]), **settings)


def counts(rate: float, largest: int, **settings: Any) -> Cell:
    """A cell of the grid; slopes of counts are half those of events."""
    d = settings.pop("d", 2)
    given = {"slopes": tuple(slope / 2.0 for slope in GRID_SLOPES[:d]), **settings}
    name = ", ".join([f"rate {rate:g} up to {largest}", *([f"d {d}"] if d != 2 else []), *_said(settings)])
    return Cell(name, "poisson", rate, largest=largest, **given)


def _said(settings: dict[str, Any]) -> list[str]:
    """The settings of a cell in words."""
    words = {
        "count": lambda n: f"n {n:,}", "epsilon": lambda e: f"ε {e:g}", "slopes": lambda b: f"d {len(b)}", "mean": lambda m: f"{m:.0%} happen", "columns": str,
        "block": lambda m: f"blocks of {m:,}", "accuracy": lambda g: f"accuracy {g:g}", "exposure": lambda _: "exposure", "spread": lambda _: "overdispersed", "holes": lambda what: f"{what} missing",
        "weights": lambda kind: f"{kind} weights", "subgroup": lambda share: f"{share:.0%} of the rows",
    }  # fmt: skip
    return [words[key](value) for key, value in settings.items()]


COMPARED = [
    wide("normal", mean=0.4),
    wide("skewed", mean=0.3, columns="skewed"),
    wide("5 % events", mean=0.05),
    wide("strong slopes", mean=0.13, columns="skewed", slopes=(3.0, 0.5, -2.0), most=2.0),
    wide("rate .2", family="poisson", mean=0.2, slopes=(0.8, 0.25, -0.5), largest=2),
    wide("rate 5", family="poisson", mean=5.0, slopes=(0.4, 0.1, -0.3), largest=11),
    wide("rate .2, exposure", family="poisson", mean=0.2, slopes=(0.8, 0.25, -0.5), largest=3, exposure=True),
    wide("rate 5, largest 60", family="poisson", mean=5.0, slopes=(0.4, 0.1, -0.3), largest=60, most=2.0),
]
GRID = [
    *(events(count=n, epsilon=e) for n in (5_000, 20_000, 200_000) for e in (0.5, 1.0, 8.0)),
    *(events(slopes=GRID_SLOPES[:d], count=40_000, epsilon=e) for d in (1, 4, 8) for e in (1.0, 8.0)),
    *(events(mean=m, columns="normal", count=40_000, epsilon=e) for m in (0.02, 0.08, 0.5) for e in (1.0, 8.0)),
    events(mean=0.02, columns="binary", count=100_000),
    *(events(block=m, epsilon=e) for m in (2, 20_000) for e in (1.0, 8.0)),
    *(events(accuracy=g, epsilon=e) for g in (0.7, 0.99) for e in (1.0, 8.0)),
    events(accuracy=0.7, block=2, columns="normal", epsilon=2.0),
    events(columns="skewed"),
    events(columns="skewed", slopes=(2.4, -1.8, 0.6), count=50_000, epsilon=4.0),
    events(columns="binary", mean=0.1),
    *(counts(r, most, count=n) for r, most in ((0.2, 2), (5.0, 15)) for n in (5_000, 20_000, 200_000)),
    *(counts(r, most, epsilon=e) for r, most in ((0.2, 2), (5.0, 15)) for e in (0.5, 8.0)),
    *(counts(r, most, exposure=True, epsilon=e) for r, most in ((0.2, 3), (5.0, 39)) for e in (1.0, 8.0)),
    counts(0.2, 20, count=50_000),
    counts(5.0, 100, count=50_000),
    *(counts(1.0, 5, d=8, count=40_000, epsilon=e) for e in (1.0, 8.0)),
    *(counts(5.0, 15, block=m, epsilon=4.0) for m in (2, 20_000)),
    *(counts(1.0, 5, accuracy=g, epsilon=4.0) for g in (0.7, 0.99)),
    counts(5.0, 13, columns="normal", accuracy=0.7),
    counts(2.0, 9, columns="binary"),
    *(events(holes=what, epsilon=4.0) for what in ("x", "x by x", "y", "y by x")),
    *(counts(5.0, 15, holes=what) for what in ("x by x", "y by x")),
    counts(5.0, 39, exposure=True, epsilon=8.0, holes="x by x"),
    *(events(weights=kind, epsilon=e) for kind in ("plain", "informative") for e in (1.0, 8.0)),
    *(events(subgroup=share, count=100_000, epsilon=e) for share in (0.2, 0.05) for e in (1.0, 8.0)),
    events(weights="plain", subgroup=0.3, columns="normal", count=50_000, epsilon=4.0),
    *(counts(1.0, 6, weights=kind, epsilon=2.0) for kind in ("plain", "informative")),
    counts(1.0, 6, subgroup=0.1, count=100_000),
    counts(5.0, 39, exposure=True, weights="plain", subgroup=0.3, count=50_000),
    events(weights="plain", holes="x by x", epsilon=4.0),
    counts(2.0, 15, spread=0.5),
    counts(2.0, 60, spread=0.5, epsilon=4.0),
]


def draw_columns(cell: Cell, rng: np.random.Generator) -> Floats:
    """Regressors within ±1 (n×d)."""
    size = cell.count, len(cell.slopes)
    if cell.columns == "even":
        return rng.uniform(-1.0, 1.0, size)
    if cell.columns == "binary":
        return 2.0 * (rng.random(size) < 0.3) - 1.0
    x = rng.normal(0.0, 0.4, size) if cell.columns == "normal" else 0.5 * rng.exponential(1.0, size) - 1.0
    return np.clip(x, -1.0, 1.0)


def draw_rows(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Linked rows of a cell."""
    people = draw_people(cell, rng)
    x, y = cut_holes(cell, people["x"], people["y"], rng)
    blocks = np.arange(cell.count) // cell.block
    links = mislink(blocks, np.full(int(blocks[-1]) + 1, cell.accuracy), rng)
    rows = {f"x{k}": x[:, k].copy() for k in range(x.shape[1])}
    counted = {name: people[name] for name in ("w", "u") if name in people}
    return {**rows, **counted, "years": people["years"], "y": y[links], "block": blocks}


def draw_people(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Regressors x (n×d), exposures, weights w, u by which a subgroup is told, and outcomes y of people.

    People outside the subgroup have slopes of the opposite sign. Where weights are informative, those that have larger ones have a larger first slope.
    """
    n, x = cell.count, draw_columns(cell, rng)
    found = {"x": x, "years": rng.uniform(0.25, 4.0, n) if cell.exposure else np.ones(n)}
    line, counts = x @ np.array(cell.slopes), np.ones(n, bool)
    if cell.weights:
        size = rng.normal(1.0, 0.7, n)
        found["w"] = np.exp(size)
        line = line + INFORMATIVE * (size - 1.0) * x[:, 0] * (cell.weights == "informative")
    if cell.subgroup < 1.0:
        found["u"] = rng.random(n)
        counts = found["u"] < cell.subgroup
        line = np.where(counts, line, 0.5 - line)
    if cell.family == "logistic":
        inside = line[counts]
        level = brentq(lambda level: float((1.0 / (1.0 + np.exp(-level - inside))).mean()) - cell.mean, -30.0, 30.0)
        found["y"] = (rng.random(n) < 1.0 / (1.0 + np.exp(-level - line))).astype(np.int64)
    else:
        factor = rng.gamma(1.0 / cell.spread, cell.spread, n) if cell.spread else 1.0
        found["y"] = rng.poisson(factor * found["years"] * cell.mean * np.exp(line) / np.exp(line[counts]).mean())
    return found


@lru_cache
def true_slopes(cell: Cell) -> tuple[float, ...]:
    """The slopes that intervals are asked to hold: of informative weights, those of weighted maximum likelihood on a million people."""
    if cell.weights != "informative":
        return cell.slopes
    rng, many = np.random.default_rng([SEED, *cell.name.encode()]), replace(cell, count=1_000_000)
    rows = draw_rows(replace(many, accuracy=1.0), rng)
    known = chambers(rows, formula(cell), linkage=dpl.Exact(), **declared(cell))
    return tuple(known.coef[f"x{k}"] for k in range(len(cell.slopes)))


def cut_holes(cell: Cell, x: Floats, y: NDArray[Any], rng: np.random.Generator) -> tuple[Floats, NDArray[Any]]:
    """Cells with holes in one row of twenty: of the first regressor, or of the outcome; by x, nine tenths of them where that regressor is in its upper half."""
    if not cell.holes:
        return x, y
    chance = np.where(x[:, 0] > np.median(x[:, 0]), 0.09, 0.01) if cell.holes.endswith("by x") else 0.05
    hole = rng.random(cell.count) < chance
    if cell.holes.startswith("y"):
        return x, np.where(hole, np.nan, y)
    return np.column_stack([np.where(hole, np.nan, x[:, 0]), x[:, 1:]]), y


def fit_cell(cell: Cell, rows: dict[str, Any], linkage: Any) -> dict[str, Any]:
    """A private fit: its slopes, and what tells of their intervals."""
    release = dpl.fit(rows, formula(cell), linkage=linkage, epsilon=cell.epsilon, delta=1e-6, **declared(cell))
    names, first = [f"x{k}" for k in range(len(cell.slopes))], int(release.scaling.intercept)
    found = {
        "private": np.array([release.coef[name] for name in names]),
        "estimate": release._inference.coefficients()[0][first:].tolist(),
        "std_err": [release.std_err[name] for name in names],
        "route": release.released.variance.route,
        "truth": list(true_slopes(cell)),
        "range": [PLAUSIBLE] * len(names),
    }
    for key, level, method in (("95", 0.95, "test"), ("80", 0.8, "test"), ("wald", 0.95, "wald")):
        ends = release.conf_int(level, method=method)
        found[key] = [ends[name] for name in names]
    return found


def formula(cell: Cell) -> str:
    return "y ~ " + " + ".join(f"x{k}" for k in range(len(cell.slopes)))


def declared(cell: Cell) -> dict[str, Any]:
    """What is declared of a cell's columns."""
    bounds: dict[str, Any] = {f"x{k}": (-1.0, 1.0) for k in range(len(cell.slopes))}
    counted: dict[str, Any] = {}
    if cell.weights:
        bounds, counted = {**bounds, "w": (1.0, 20.0)}, {"weights": "w"}
    if cell.subgroup < 1.0:
        bounds, counted = {**bounds, "u": (0.0, 1.0)}, {**counted, "where": f"u < {cell.subgroup}"}
    if cell.family == "logistic":
        return {"family": cell.family, "bounds": bounds, "levels": {"y": [0, 1]}, **counted}
    counted |= {"exposure": "years"} if cell.exposure else {}
    return {"family": cell.family, "bounds": {**bounds, "y": (0, cell.largest), "years": (0.25, 4.0)}, **counted}


def run_chunk(job: tuple[Cell, int, int, bool]) -> list[dict[str, Any]]:
    """Some runs of one cell."""
    cell, first, count, control = job
    linkage, found = dpl.ELE(cell.accuracy, block="block"), []
    for run in range(first, first + count):
        rng = np.random.default_rng([SEED, run, *cell.name.encode()])
        noise.add_gaussian = lambda values, scale, rng=rng: values + scale * rng.normal(size=np.shape(values))
        rows = draw_rows(cell, rng)
        one = fit_cell(cell, rows, dpl.Exact() if control else linkage)
        if cell.most is not None:
            one["naive"] = fit_cell(cell, rows, dpl.Exact())["private"]
            reference = chambers(rows, formula(cell), linkage=linkage, **declared(cell))
            one["chambers"] = np.array([reference.coef[f"x{k}"] for k in range(len(cell.slopes))])
        found.append(one)
    return found


def describe(cell: Cell, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table."""
    truth = np.array(true_slopes(cell))
    errors = dict.fromkeys(("private", "chambers", "naive"), math.nan)
    errors |= {
        name: float(np.sqrt(np.mean([(run[name] - truth) ** 2 for run in runs]))) for name in errors if name in runs[0]
    }
    estimates = np.array([run["private"] for run in runs])
    away = (estimates.mean(axis=0) - truth) * np.sign(truth)  # above 0: too strong
    return {
        "cell": cell.name, "family": cell.family, "n": cell.count, "epsilon": cell.epsilon, "slopes": truth.size, **errors,
        "ratio": errors["private"] / errors["chambers"], "too_strong": float(away.sum() / np.abs(truth).sum()), **describe_runs(runs),
    }  # fmt: skip


def judge(cell: Cell, row: dict[str, Any], cells: int) -> list[str]:
    """What was missed in a cell."""
    missed = [] if cell.spread else list_failures(row, cells) + list_length_failures(row)
    if cell.most is not None and row["ratio"] > cell.most:
        missed.append(f"the error is {row['ratio']:.2f} times Chambers', above {cell.most:g}")
    if cell.most is not None and row["private"] > row["naive"]:
        missed.append("the error is larger than the naive fit's")
    return [f"{cell.name}: {line}" for line in missed]


def write_report(cells: list[Cell], rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Events and counts after linkage", __doc__, notes),
        "| cell | family | n | d | ε | runs | private | Chambers | ratio | naive | covered, 95 % | 80 % | length / from true spread | unbounded | slopes too strong by |",
        "|---|---|" + "---:|" * 13,
    ]
    for row in rows:
        errors = [f"{row[name]:.4f}" if math.isfinite(row[name]) else "" for name in ("private", "chambers")]
        errors += [f"{row['ratio']:.2f}", f"{row['naive']:.4f}"] if math.isfinite(row["ratio"]) else ["", ""]
        facts = [
            row["cell"],
            row["family"],
            f"{row['n']:,}",
            row["slopes"],
            f"{row['epsilon']:g}",
            row["runs"],
            *errors,
        ]
        shares = [f"{row['coverage_95']:.3f}", f"{row['coverage_80']:.3f}", f"{row['length_ratio']:.2f}"]
        facts += [*shares, f"{row['unbounded_95']:.1%}", f"{row['too_strong']:+.1%}"]
        lines.append("| " + " | ".join(map(str, facts)) + " |")
    judged = [row for cell, row in zip(cells, rows, strict=True) if cell in GRID and not cell.spread]
    for family in dict.fromkeys(row["family"] for row in judged):
        lines += ["", f"- {family}: {pool_coverage([row for row in judged if row['family'] == family])}"]
    return close_report(lines, missed)


def pool_coverage(rows: list[dict[str, Any]]) -> str:
    """In how many cells coverage is as asked for, as measured, and coverage of all their slopes together."""
    inside = sum(ASKED[0] <= round(row["coverage_95"], 3) <= ASKED[1] for row in rows)
    sizes = [row["runs"] * row["slopes"] for row in rows]
    whole, most = (np.average([row[f"coverage_{level}"] for row in rows], weights=sizes) for level in ("95", "80"))
    return (
        f"coverage within {ASKED[0]} and {ASKED[1]} as measured in {inside} of {len(rows)} cells of the grid; "
        f"of all their slopes, {whole:.3f} at 95 % and {most:.3f} at 80 %"
    )


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run by the names of their cells; none if there was none."""
    if not path.exists():
        return {}

    def parsed(text: str) -> Any:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return {"True": True, "False": False}.get(text, text)

    with path.open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["cell"]: {key: parsed(value) for key, value in row.items()} for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="of a cell; half as many from 100,000 rows on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", nargs="+", help="names of cells; all if left out")
    parser.add_argument("--quick", action="store_true", help="two cells, 40 runs")
    parser.add_argument(
        "--control", action="store_true", help="take wrong links for right ones: must be found not to cover"
    )
    parser.add_argument("--out", type=Path, help="folder for outcomes.md and outcomes.csv")
    options = parser.parse_args()
    known = {cell.name: cell for cell in (*COMPARED, *GRID)}
    names = options.cells or list(known)
    if options.quick:
        names, options.runs = [COMPARED[0].name, "rate 1 up to 5, accuracy 0.99, ε 4"], 40
    rows = read_rows(options.out / "outcomes.csv") if options.out and options.cells else {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell in track([known[name] for name in names], "Cells"):
            count = options.runs // (2 if cell.count >= 100_000 else 1)
            jobs = [(cell, first, min(CHUNK, count - first), options.control) for first in range(0, count, CHUNK)]
            rows[cell.name] = describe(cell, [run for part in pool.map(run_chunk, jobs) for run in part])
            if options.out:
                report_rows(known, rows, options.out)
    report, missed = report_rows(known, rows, options.out)
    print(report)
    return 1 if missed else 0


def report_rows(known: dict[str, Cell], rows: dict[str, dict[str, Any]], out: Path | None) -> tuple[str, list[str]]:
    """The report of all rows so far and what they missed; written if there is a folder for it."""
    cells = [cell for name, cell in known.items() if name in rows]
    ordered = [rows[cell.name] for cell in cells]
    missed = [line for cell, row in zip(cells, ordered, strict=True) for line in judge(cell, row, len(cells))]
    notes = [
        "Noise is NumPy's, of the same scales as the exact sampler's. Runs may be of several calls: seeds hang on cell and run alone, so that more runs of a cell go on from fewer."
    ]
    report = write_report(cells, ordered, missed, notes)
    if out:
        write_results(out, "outcomes", report, ordered)
    return report, missed


if __name__ == "__main__":
    sys.exit(main())
