"""Planned standard errors against the errors of releases, for each method and calibration, with accuracies known and found by checking links.

    python benchmarks/planning.py [--runs 1000] [--cells NAME ...] [--room 0] [--out benchmarks/results/planning.md]

In each run rows, links, the links that are checked and noise are drawn anew. Columns spread evenly, as a plan assumes, and R² is the plan's. A cell
compares .6745 times the planned standard error with the median absolute error of the releases' slopes, and misses where the two are further apart
than 15 %; so with intercepts, where there are some. That median is known to 4 % with 1,000 releases, to 8 % with 200; `--room` allows for it where there are few. Releases run through the library with NumPy noise of the same
scales in place of the exact sampler, which is slower.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import track

import dplinked as dpl
from dplinked.plan.expectations import PlannedError
from dplinked.privacy import noise
from dplinked.simulate import mislink
from machine import describe_machine

WITHIN = 0.15
QUARTILE = 0.6745  # of a normal distribution with standard deviation 1
BLOCK = 25


@dataclass(frozen=True)
class Cell:
    """One situation. One column: no intercept, as in the paper's settings; three: an intercept, and columns that are not centred."""

    method: str
    calibration: str
    d: int
    n: int
    checked: int | None = None
    epsilon: float = 1.0
    accuracy: float = 0.75
    sigma: float = 1.0
    intervals: bool = True

    @property
    def name(self) -> str:
        known = f"{self.checked} checked" if self.checked else "known"
        without = "" if self.intervals else ", no intervals"
        return f"{self.calibration} {self.method}, d = {self.d}, n = {self.n:,}, ε = {self.epsilon:g}, {known}{without}"

    @property
    def formula(self) -> str:
        return "y ~ 0 + x0" if self.d == 1 else "y ~ " + " + ".join(f"x{k}" for k in range(self.d))

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of each column, which it fills."""
        return (-1.0, 1.0) if self.d == 1 else (-0.5, 1.5)

    @property
    def level(self) -> float:
        return 0.0 if self.d == 1 else 1.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the response: columns of variance 1/3 with slopes 1."""
        return math.sqrt(self.d / 3.0 + self.sigma**2)

    def declared(self, accuracy: float) -> dict[str, Any]:
        """What a plan and a release declare alike; the accuracy is what was found for it."""
        middle, reach = self.level, self.deviation
        found = {} if self.checked is None else {"checked": self.checked, "source": "public"}
        settings: dict[str, Any] = {
            "bounds": {f"x{k}": self.bounds for k in range(self.d)}
            | {"y": (middle - 4.5 * reach, middle + 4.5 * reach)},
            "typical": {"y": (middle - 0.7 * math.sqrt(3.0) * reach, middle + 0.7 * math.sqrt(3.0) * reach)},
            "linkage": dpl.ELE(accuracy, block="block", **found),
            "method": self.method,
            "calibration": self.calibration,
            "intervals": self.intervals,
            "epsilon": self.epsilon,
            "delta": self.n**-1.1,
        }
        if self.calibration == "paper":
            settings["unit"] = dpl.PrivacyUnit(linkage_change=1.0)
        if self.calibration == "paper" and self.method == "ngd":
            step, iterations = (0.2, 240) if self.d == 1 else (0.5, 120)
            settings["descent"] = dpl.Descent(
                radius=2.0 * math.hypot(self.d, self.level), step=step, iterations=iterations
            )
        return settings


CELLS = [
    Cell(method, calibration, d, n, checked, epsilon)
    for calibration, method, d, n, epsilon in (
        ("paper", "ssp", 1, 20_000, 1.0),
        ("paper", "ssp", 3, 100_000, 2.0),
        ("paper", "ngd", 1, 40_000, 1.0),
        ("paper", "ngd", 3, 100_000, 5.0),
        ("tight", "ssp", 1, 5_000, 1.0),
        ("tight", "ssp", 3, 20_000, 1.0),
        ("tight", "ngd", 1, 5_000, 1.0),
        ("tight", "ngd", 3, 20_000, 1.0),
    )
    for checked in (None, 50)
]
CELLS += [replace(cell, intervals=False) for cell in CELLS if cell.calibration == "tight" and not cell.checked]


def make_plan(cell: Cell) -> dict[str, PlannedError]:
    """The plan of a cell, at its true accuracy and R², by coefficient."""
    explained = cell.d / 3.0 / cell.deviation**2
    plan = dpl.plan(cell.n, cell.formula, r_squared=explained, **cell.declared(cell.accuracy))
    return {row.name: row for row in plan.rows}


def draw(cell: Cell, rng: np.random.Generator) -> tuple[dict[str, Any], float]:
    """Linked rows, and the accuracy that is declared for them: the true one, or the share of right ones among the links that were checked."""
    x = rng.uniform(*cell.bounds, (cell.n, cell.d))
    y = cell.level + (x - np.mean(cell.bounds)).sum(axis=1) + rng.normal(0.0, cell.sigma, cell.n)
    blocks = np.arange(cell.n) // BLOCK
    z = y[mislink(blocks, np.full(blocks[-1] + 1, cell.accuracy), rng)]
    found = cell.accuracy if cell.checked is None else rng.binomial(cell.checked, cell.accuracy) / cell.checked
    return {f"x{k}": x[:, k].copy() for k in range(cell.d)} | {"y": z, "block": blocks}, found


def run_one(job: tuple[Cell, int]) -> dict[str, list[float]]:
    """Errors of one release: those of its slopes, and that of its intercept if it has one."""
    cell, seed = job
    rng = np.random.default_rng([seed, *cell.name.encode()])
    noise.add_gaussian = lambda values, scale: (
        np.asarray(values, float) + np.asarray(scale) * rng.normal(size=np.shape(values))
    )
    data, found = draw(cell, rng)
    coef = dpl.fit(data, cell.formula, **cell.declared(found)).coef
    level = cell.level - cell.d * float(np.mean(cell.bounds))
    return {
        "slopes": [coef[f"x{k}"] - 1.0 for k in range(cell.d)],
        "intercept": [coef["Intercept"] - level] if "Intercept" in coef else [],
    }


def judge(cell: Cell, runs: Sequence[dict[str, list[float]]], room: float = 0.0) -> dict[str, Any]:
    """Planned against measured, slopes pooled: they are alike. `room` is what a cell may miss by chance."""
    plan = make_plan(cell)
    measured = {name: float(np.median(np.abs([run[name] for run in runs]))) for name in runs[0] if runs[0][name]}
    planned = {"slopes": plan["x0"], "intercept": plan.get("Intercept")}
    ratios = {name: QUARTILE * planned[name].total / found for name, found in measured.items()}
    return {
        "cell": cell.name,
        "releases": len(runs),
        "planned": plan["x0"],
        "measured": measured["slopes"],
        "ratios": ratios,
        "holds": all(abs(math.log(ratio)) <= math.log(1.0 + WITHIN + room) for ratio in ratios.values()),
    }


def write_results(rows: Sequence[dict[str, Any]]) -> str:
    held = sum(row["holds"] for row in rows)
    lines = [
        "# Plans against releases",
        "",
        f"{describe_machine('dplinked', 'numpy')}. Made by `make bench-plan`.",
        "",
        "Planned standard errors of a slope, by where they come from; .6745 times the whole against the median absolute error of the slopes of as many "
        "releases, each of new rows, links, checked links and noise. A ratio above 1 means that the plan expected too much error. "
        f"{held} of {len(rows)} cells are within {100 * WITHIN:g} %.",
        "",
        "| cell | releases | sampling | linkage | of it, the accuracy's | privacy | planned | measured | ratio | the intercept's | within 15 % |",
        "|---|" + "---:|" * 9 + "---|",
    ]
    for row in rows:
        planned = row["planned"]
        parts = (planned.sampling, planned.linkage, planned.accuracy, planned.privacy, QUARTILE * planned.total)
        figures = " | ".join(f"{value:.4f}" for value in (*parts, row["measured"]))
        ratios = " | ".join(
            f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in ("slopes", "intercept")
        )
        lines.append(
            f"| {row['cell']} | {row['releases']} | {figures} | {ratios} | {'yes' if row['holds'] else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--cells", nargs="*", help="parts of the cells' names")
    parser.add_argument("--room", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    cells = [cell for cell in CELLS if not arguments.cells or any(part in cell.name for part in arguments.cells)]
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for cell in track(cells, "Cells"):
            runs = list(pool.map(run_one, [(cell, seed) for seed in range(arguments.runs)], chunksize=10))
            rows.append(judge(cell, runs, arguments.room))
            ratios = " ".join(f"{name}={ratio:.3f}" for name, ratio in rows[-1]["ratios"].items())
            print(f"{cell.name:<56} {ratios} {'holds' if rows[-1]['holds'] else 'MISSES'}", flush=True)
    text = write_results(rows)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
