"""Several outcomes and levels in one release, against one release of each for the same total budget.

    python benchmarks/several.py [--runs 200] [--out benchmarks/results]
    python benchmarks/several.py --quick               # two cells, 40 runs, for CI
    python benchmarks/several.py --quick --control     # wrong links are taken for right: intervals must be found to miss the slopes

Rows, links and noise are drawn anew in each run; releases run through the library with NumPy noise of the same scales. Errors of outcomes have a correlation of .5 and all outcomes of a person go
with one link. Levels have 40, 30, 20 and 10 % of the rows (50 and 50 % if there are two) and slopes of their own. "Apart" is one release of each outcome, or of each level by `where`, each for μ/√K, so that K of them cost the same; `ratio` is the root mean square error of slopes together over that
apart. Intervals must hold the slopes in 93 to 98 % of the runs (binomial tests, 1 % in all), and errors together may be no larger than apart beyond two standard errors. `rejected` is how often a test across results
rejects a true difference of two of them at 5 %: at most that beyond chance, and less for outcomes, whose tests allow for the worst that errors may have in common.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from scipy import stats

import dplinked as dpl
from dplinked.privacy import noise
from dplinked.privacy.calibration import privacy_epsilon, privacy_mu
from sections import close_report, covers_too_little, report_head, write_results

Floats = NDArray[np.float64]

LEAST_COVERED, MOST_COVERED, DELTA, CHUNK = 0.93, 0.98, 1e-6, 10
LEVELS = ("a", "b", "c", "d")
SHARES = {2: (0.5, 0.5), 4: (0.4, 0.3, 0.2, 0.1)}


@dataclass(frozen=True)
class Cell:
    """One design: `results` outcomes, or levels if `by`. `links` is the number of rows of a block, 1 for perfect links."""

    name: str
    results: int
    by: bool = False
    n: int = 20_000
    epsilon: float = 1.0
    columns: int = 1
    links: int = 25
    missing: bool = False


CELLS = [
    Cell("2 outcomes", 2),
    Cell("2 outcomes, exact", 2, links=1),
    Cell("2 outcomes, d = 3", 2, columns=3),
    Cell("5 outcomes", 5),
    Cell("5 outcomes, exact", 5, links=1),
    Cell("5 outcomes, ε = 4", 5, epsilon=4.0),
    Cell("5 outcomes, missing cells", 5, epsilon=4.0, missing=True),
    Cell("2 levels", 2, by=True),
    Cell("2 levels, d = 3", 2, by=True, columns=3, epsilon=4.0),
    Cell("4 levels", 4, by=True, n=50_000),
    Cell("4 levels, exact", 4, by=True, n=50_000, links=1),
    Cell("4 levels, ε = 4", 4, by=True, epsilon=4.0),
]
QUICK = ("5 outcomes, ε = 4", "4 levels, ε = 4")


def slopes_of(cell: Cell, result: int) -> Floats:
    """The slopes of one outcome or level."""
    return (
        (1.0 + 0.15 * result) * np.linspace(1.0, -0.5, cell.columns)
        if cell.columns > 1
        else np.array([1.0 + 0.15 * result])
    )


def draw_rows(cell: Cell, rng: np.random.Generator) -> tuple[dict[str, Any], float]:
    """Linked rows, and the share of links that are right."""
    n, results = cell.n, cell.results
    x = rng.normal(size=(cell.columns, n))
    level = rng.choice(results, n, p=SHARES[results]) if cell.by else np.zeros(n, int)
    errors = np.sqrt(0.5) * rng.normal(size=n) + np.sqrt(0.5) * rng.normal(size=(results, n))
    columns = {f"x{k}": column for k, column in enumerate(x)}
    if cell.by:
        lines = np.stack([slopes_of(cell, g) @ x for g in range(results)])
        outcomes = {"y": 3.0 + 0.3 * level + lines[level, np.arange(n)] + 1.5 * errors[0]}
    else:
        outcomes = {f"y{k}": 3.0 + slopes_of(cell, k) @ x + 1.5 * errors[k] for k in range(results)}
    block, order = np.arange(n) // cell.links, np.arange(n)
    wrong = np.flatnonzero(rng.random(n) > 0.9) if cell.links > 1 else np.zeros(0, int)
    for rows in np.split(wrong, np.flatnonzero(np.diff(block[wrong])) + 1):
        order[rows] = np.roll(rows, 1)
    linked = {name: values[order] for name, values in outcomes.items()}
    if cell.missing:
        for k, values in enumerate(linked.values()):
            values[rng.random(n) < 0.06 * k] = np.nan
    rows = {**columns, **linked, "g": np.array(LEVELS)[level], "block": block}
    return rows, float((order == np.arange(n)).mean())


def fit_cell(cell: Cell, rows: dict[str, Any], linkage: Any, epsilon: float, **asked: Any) -> Any:
    names = [f"x{k}" for k in range(cell.columns)]
    bounds = dict.fromkeys(names, (-5.0, 5.0)) | {name: (-20.0, 30.0) for name in rows if name.startswith("y")}
    return dpl.fit(
        rows,
        f"{asked.pop('outcome')} ~ {' + '.join(names)}",
        bounds=bounds,
        levels={"g": list(LEVELS[: max(2, cell.results)])} if cell.by else {},
        linkage=linkage,
        unit=dpl.PrivacyUnit(),
        epsilon=epsilon,
        delta=DELTA,
        **asked,
    )


def run_once(cell: Cell, control: bool, seed: int) -> dict[str, Any]:
    """One release of all results, and one of each: errors of slopes, whether intervals hold them, and whether a true difference is rejected."""
    rng = np.random.default_rng([seed, CELLS.index(cell)])
    rows, right = draw_rows(cell, rng)
    linkage = dpl.Exact() if control or cell.links == 1 else dpl.ELE(right, block="block")
    noise.add_gaussian = lambda values, scale: values + scale * rng.normal(size=np.shape(values))
    each = privacy_epsilon(privacy_mu(cell.epsilon, DELTA) / np.sqrt(cell.results), DELTA)
    if cell.by:
        together = fit_cell(cell, rows, linkage, cell.epsilon, outcome="y", by="g")
        apart = [fit_cell(cell, rows, linkage, each, outcome="y", where=f"g == {name!r}") for name in together]
    else:
        listed = [f"y{k}" for k in range(cell.results)]
        together = fit_cell(cell, rows, linkage, cell.epsilon, outcome=f"cbind({', '.join(listed)})")
        apart = [fit_cell(cell, rows, linkage, each, outcome=name) for name in listed]
    names, truth = [f"x{k}" for k in range(cell.columns)], [slopes_of(cell, k) for k in range(cell.results)]
    intervals = [release.conf_int() for release in together.values()]
    keys, difference = list(together), float(truth[0][0] - truth[1][0])
    return {
        "together": [
            [one.coef[name] for name in names] - true for one, true in zip(together.values(), truth, strict=True)
        ],
        "apart": [[one.coef[name] for name in names] - true for one, true in zip(apart, truth, strict=True)],
        "held": [
            [ends[name][0] <= true[k] <= ends[name][1] for k, name in enumerate(names)]
            for ends, true in zip(intervals, truth, strict=True)
        ],
        "rejected": together.test(f"{keys[0]}: x0 - {keys[1]}: x0 = {difference!r}").p_value < 0.05,
    }


def run_chunk(cell: Cell, control: bool, first: int, count: int) -> list[dict[str, Any]]:
    """Some runs of a cell, in a process of their own."""
    return [run_once(cell, control, seed) for seed in range(first, first + count)]


def describe(cell: Cell, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs of a cell show, over all slopes of all results."""
    together, apart = (np.array([run[way] for run in runs]) for way in ("together", "apart"))
    squares = [(errors**2).mean(axis=(1, 2)) for errors in (together, apart)]
    ratio = np.sqrt(squares[0].mean() / squares[1].mean())
    spread = np.std(squares[0] / squares[0].mean() - squares[1] / squares[1].mean()) / np.sqrt(len(runs)) / 2.0 * ratio
    return {
        **asdict(cell),
        "runs": len(runs),
        "together": float(np.sqrt(squares[0].mean())),
        "apart": float(np.sqrt(squares[1].mean())),
        "ratio": float(ratio),
        "ratio error": float(spread),
        "coverage": float(np.mean([run["held"] for run in runs])),
        "rejected": float(np.mean([run["rejected"] for run in runs])),
    }


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """Where intervals hold the slopes too rarely or too often, tests reject too often, or several results in one release are less precise than apart."""
    missed = []
    for row in rows:
        hits = round(row["coverage"] * row["runs"])
        too_much = stats.binom.sf(hits - 1, row["runs"], MOST_COVERED) < 0.01 / len(rows)
        if too_much or covers_too_little(row["coverage"], row["runs"], LEAST_COVERED, len(rows)):
            missed.append(f"{row['name']}: intervals hold the slopes in {row['coverage']:.1%} of the runs")
        if stats.binom.sf(round(row["rejected"] * row["runs"]) - 1, row["runs"], 0.05) < 0.01 / len(rows):
            missed.append(f"{row['name']}: a true difference is rejected in {row['rejected']:.1%} of the runs")
        if row["ratio"] - 2.0 * row["ratio error"] > 1.0:
            missed.append(f"{row['name']}: errors are {row['ratio']:.2f} of those of releases apart")
    return missed


def write_report(rows: list[dict[str, Any]], missed: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        *report_head("Several results in one release", __doc__, notes),
        "| cell | n | ε | d | error together | error apart | ratio | coverage of 95 % | rejected |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        listed = [row["name"], f"{row['n']:,}", f"{row['epsilon']:g}", str(row["columns"]), f"{row['together']:.4f}"]
        listed += [f"{row['apart']:.4f}", f"{row['ratio']:.2f} ± {2 * row['ratio error']:.2f}"]
        lines.append("| " + " | ".join([*listed, f"{row['coverage']:.3f}", f"{row['rejected']:.3f}"]) + " |")
    return close_report(lines, missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", nargs="*", help="names of cells; all by default")
    parser.add_argument("--quick", action="store_true", help="two cells, 40 runs")
    parser.add_argument("--control", action="store_true", help="wrong links taken for right: must be found to miss")
    parser.add_argument("--out", type=Path, help="folder for several.md and several.csv")
    options = parser.parse_args()
    count, wanted = (40, QUICK) if options.quick else (options.runs, options.cells)
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell in track([cell for cell in CELLS if not wanted or cell.name in wanted], "Cells"):
            firsts = range(0, count, CHUNK)
            run = partial(run_chunk, cell, options.control)
            chunks = pool.map(run, firsts, [min(CHUNK, count - first) for first in firsts])
            rows.append(describe(cell, [run for chunk in chunks for run in chunk]))
            print(rows[-1]["name"], {key: rows[-1][key] for key in ("ratio", "coverage", "rejected")}, file=sys.stderr)
    missed = judge(rows)
    report = write_report(rows, missed, [f"{count} runs of each cell."])
    print(report)
    if options.out:
        write_results(options.out, "several", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
