"""Coverage and length of confidence intervals over a named design of cells.

    python benchmarks/coverage.py [--runs 1000] [--cells NAME ...] [--calibration tight|paper] [--out benchmarks/results/coverage.csv]

The cells were written down before any was run; since then only the response's bounds with lognormal x were
widened, where clipping the response made the slope itself another one. In each run rows, links and noise are drawn anew; intervals
come from the release alone. Releases run through the library with NumPy noise of the same scales in place of
the exact sampler, which is slower. A cell fails by a binomial test (Bonferroni over cells, 1 % in all) of
coverage below .93 or above .985 at nominal 95 % (below .77 at 80 %), pooled over slopes; when intervals are more than
1.25 times as long as errors ask for; or when more than one set in 200 is unbounded although an interval from the true spread of the estimator lies within
the declared coefficient range. How long errors ask for is told by their spread in multiples of their own interval: lengths differ from run to run where far tails may be seen, and
so do errors.

Links of these cells are wrong in numbers that hardly vary from block to block. Intervals cannot know that, and count links as wrong independently of each other; where linkage is most of the error
(strong signals, ε = 8) they are longer than errors ask for. Cells named "varying" draw the numbers too.

Cells with the paper's calibration are those of its simulations (x even on [-1, 1], blocks of 25, accuracies even on [.6, .9], M = 1, δ = n^-1.1), with R =
σ√(2 ln n) and the largest signal on top, since the paper's own R clips responses; L is that of the model, 5 % larger. Algorithm 2 is
inverted by tests, Algorithm 1 is Wald's. Their noise is the paper's, so they are not asked for bounded or short sets, but for standard errors within .9 and
1.1 (Algorithm 2, where no set is unbounded) and .95 and 1.25 (Algorithm 1) of the true spread.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import track
from scipy import stats

import dplinked as dpl
from dplinked.privacy import noise
from dplinked.simulate import mislink
from machine import describe_machine


@dataclass(frozen=True)
class Cell:
    """One situation. Blocks: rows per block (0: nine large ones). Accuracy: one number, or a range drawn per block."""

    name: str
    n: int = 10_000
    d: int = 1
    epsilon: float = 1.0
    accuracy: tuple[float, float] = (0.6, 0.9)
    block: int = 25
    x: str = "uniform"
    strong: bool = False
    generous: bool = False
    method: str = "ssp"
    checked: int = 0  # links checked to estimate the accuracy; 0: known
    off: float = 0.0  # misspecified accuracy: reported, not required
    reported: bool = False  # a known weak spot: reported, not required
    errors: str = (
        "normal"  # or "multiplicative" or "skewed": as large as the line is, or as x is away from its lower bound
    )
    declares: str = "any"  # what is declared about errors
    varying: bool = False  # whether numbers of wrong links vary as those of independent ones do
    calibration: str = "tight"
    sigma: float = 1.0  # with the paper's calibration: standard deviation of the errors
    radius: float = 2.0  # with the paper's calibration: C of Algorithm 1


def _cells() -> list[Cell]:
    """The named design: every factor at its levels around a middle, and the known weak spots."""
    cells = []
    for n in (1_000, 10_000, 100_000):
        for epsilon in (0.3, 1.0, 8.0):
            cells.append(Cell(f"n{n}-e{epsilon:g}", n=n, epsilon=epsilon))
    for d in (3, 8):
        for epsilon in (0.3, 1.0, 8.0):
            cells.append(Cell(f"d{d}-e{epsilon:g}", d=d, n=20_000, epsilon=epsilon))
            cells.append(Cell(f"d{d}-e{epsilon:g}-strong", d=d, n=20_000, epsilon=epsilon, strong=True))
    for block in (2, 5, 0):
        for epsilon in (1.0, 8.0):
            for strong in (False, True):
                for x in ("normal", "lognormal"):
                    name = f"m{block or 'large'}-e{epsilon:g}-{x}{'-strong' if strong else ''}"
                    cells.append(Cell(name, block=block, epsilon=epsilon, strong=strong, x=x, accuracy=(0.8, 0.8)))
    for x in ("normal", "lognormal"):
        for epsilon in (1.0, 8.0):
            cells.append(Cell(f"{x}-strong-e{epsilon:g}", x=x, strong=True, epsilon=epsilon))
    cells += [
        Cell("perfect", accuracy=(1.0, 1.0)),
        Cell("perfect-strong-e8", accuracy=(1.0, 1.0), strong=True, epsilon=8.0, x="normal"),
        Cell("generous", generous=True),
        Cell("generous-lognormal-e8", generous=True, x="lognormal", epsilon=8.0),
        Cell("generous-d3", generous=True, d=3, n=20_000),
        Cell("ngd", method="ngd"),
        Cell("ngd-e8-strong", method="ngd", epsilon=8.0, strong=True),
        Cell("ngd-d3", method="ngd", d=3, n=20_000),
        Cell("ngd-normal-n100000", method="ngd", n=100_000, x="normal"),
        Cell("checked", checked=200, accuracy=(0.8, 0.8)),
        Cell("checked-e8-strong", checked=200, accuracy=(0.8, 0.8), epsilon=8.0, strong=True),
        Cell("checked-m2-e8", checked=200, accuracy=(0.8, 0.8), epsilon=8.0, block=2),
        Cell("off", off=0.02, accuracy=(0.8, 0.8)),
        Cell("off-e8-strong", off=0.02, accuracy=(0.8, 0.8), epsilon=8.0, strong=True),
    ]
    for n in (20_000, 100_000):
        for errors in ("multiplicative", "skewed"):
            cells.append(Cell(f"{errors}-n{n}", n=n, errors=errors))
            cells.append(Cell(f"{errors}-n{n}-e8", n=n, errors=errors, epsilon=8.0))
    long_tail = Cell("multiplicative-lognormal", n=20_000, x="lognormal", errors="multiplicative", reported=True)
    cells += [
        long_tail,
        replace(long_tail, name="multiplicative-lognormal-declared", declares="skewed", reported=False),
    ]
    varying = [
        replace(cell, name=f"{cell.name}-varying", varying=True)
        for cell in cells
        if cell.name in ("normal-strong-e8", "mlarge-e8-normal-strong")
    ]
    return [*cells, *(_paper_cell(method, **own) for method in ("ssp", "ngd") for own in _PAPER), *varying]


_PAPER: tuple[dict[str, Any], ...] = (
    {"n": 3_000},
    {"n": 10_000},
    {"n": 10_000, "sigma": 0.5},
    {"n": 30_000, "sigma": 1.8},
    {"n": 100_000, "sigma": 0.5},
    {"n": 100_000, "d": 3},
    {"n": 30_000, "accuracy": (0.8, 0.8), "checked": 200},
    {"n": 300_000, "x": "normal", "sigma": 0.3},
    {"n": 30_000, "radius": 1.2},
)


def _paper_cell(method: str, **own: Any) -> Cell:
    said = "-".join(
        f"{key[0]}{value if isinstance(value, (int, float, str)) else value[0]}" for key, value in own.items()
    )
    return Cell(f"paper-{method}-{said}", method=method, calibration="paper", **own)


CELLS = _cells()
SE_RATIOS = {"ssp": (0.9, 1.1), "ngd": (0.95, 1.25)}


def draw_paper(cell: Cell, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], np.ndarray]:
    """Data, arguments of the fit and true slopes in the manner of the paper's simulations, with d columns of norm at most 1."""
    n, d = cell.n, cell.d
    x = np.clip(rng.normal(0.0, 0.25, (n, d)), -1.0, 1.0) if cell.x == "normal" else rng.uniform(-1.0, 1.0, (n, d))
    x /= math.sqrt(d)
    square = (0.0625 if cell.x == "normal" else 1.0 / 3.0) / d
    slopes = np.array([1.0, -0.5, 0.3])[:d]
    blocks = np.arange(n) // cell.block
    accuracy = rng.uniform(*cell.accuracy, int(blocks[-1]) + 1)
    z = (x @ slopes + rng.normal(0.0, cell.sigma, n))[mislink(blocks, accuracy, rng)]
    middle, spread = sum(cell.accuracy) / 2.0, (cell.accuracy[1] - cell.accuracy[0]) ** 2 / 12.0
    L = 1.05 / (d * square * (middle**2 + spread + ((1.0 - middle) ** 2 + spread) / (cell.block - 1)))
    R = cell.sigma * math.sqrt(2.0 * math.log(n)) + float(np.abs(slopes).sum()) / math.sqrt(d)
    linkage = dpl.ELE(dict(enumerate(accuracy.tolist())), block="block")
    if cell.checked:
        found = rng.binomial(cell.checked, middle) / cell.checked
        linkage = dpl.ELE(found, block="block", checked=cell.checked, source="public")
    data = {f"x{k}": x[:, k].copy() for k in range(d)} | {"y": z, "block": blocks}
    edge = 1.0 / math.sqrt(d)
    arguments = {
        "formula": "y ~ 0 + " + " + ".join(f"x{k}" for k in range(d)),
        "bounds": {f"x{k}": (-edge, edge) for k in range(d)} | {"y": (-R, R)},
        "linkage": linkage,
        "unit": dpl.PrivacyUnit(linkage_change=1.0),
        "epsilon": cell.epsilon,
        "delta": n**-1.1,
        "method": cell.method,
        "calibration": "paper",
        "row_norm": 1.0,
        "descent": dpl.Descent(cell.radius, curvature=L) if cell.method == "ngd" else None,
    }
    return data, arguments, slopes


def draw_errors(
    cell: Cell, x: np.ndarray, signal: np.ndarray, sigma: float, low: float, rng: np.random.Generator
) -> np.ndarray:
    """Errors of mean zero given x (n)."""
    if cell.errors == "multiplicative":
        return (0.5 + signal - low) * np.expm1(rng.normal(-0.125, 0.5, cell.n))
    if cell.errors == "skewed":
        return (0.1 + 0.3 * (x[:, 0] - low)) * (rng.exponential(1.0, cell.n) - 1.0)
    return rng.normal(0.0, sigma, cell.n)


def draw(cell: Cell, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], np.ndarray]:
    """Data, arguments of the fit and true slopes."""
    if cell.calibration == "paper":
        return draw_paper(cell, rng)
    n, d = cell.n, cell.d
    wide = 3.0 if cell.generous else 1.0
    if cell.x == "uniform":
        x, low, high = rng.uniform(-math.sqrt(3), math.sqrt(3), (n, d)), -math.sqrt(3) * wide, math.sqrt(3) * wide
    elif cell.x == "normal":
        x, low, high = rng.normal(size=(n, d)), -4.0 * wide, 4.0 * wide
    else:
        x, low, high = rng.lognormal(0.0, 0.7, (n, d)), 0.0, 15.0 * wide
    slopes = np.ones(d) / math.sqrt(d) * np.where(np.arange(d) % 2, -0.6, 1.0)
    signal = np.clip(x, low, high) @ slopes
    sigma = float(np.std(signal)) * (0.5 if cell.strong else 2.0)
    y = signal + draw_errors(cell, x, signal, sigma, low, rng)
    if cell.block:
        blocks = np.arange(n) // cell.block
    else:
        blocks = np.sort(rng.choice(9, n, p=np.array([1, 2, 34, 1, 19, 8, 3, 24, 8]) / 100))
    count = int(blocks.max()) + 1
    accuracy = (
        rng.uniform(*cell.accuracy, count) if cell.accuracy[0] < cell.accuracy[1] else np.full(count, cell.accuracy[0])
    )
    z = y[mislink(blocks, accuracy, rng, varying=cell.varying)]
    # four deviations hold the response; with lognormal x or skewed errors its tail needs three times that, else clipping biases
    tail = cell.x == "lognormal" or cell.errors != "normal"
    spread = 4.0 * float(np.hypot(sigma, np.std(signal))) * (max(wide, 3.0) if tail else wide)
    centre = float(np.mean(signal))
    declared: Any = dict(enumerate(accuracy.tolist()))
    extra: dict[str, Any] = {}
    if cell.accuracy[0] == cell.accuracy[1]:
        gamma = cell.accuracy[0]
        declared = gamma + cell.off
        if cell.checked:
            declared = min(1.0, max(0.3, rng.binomial(cell.checked, gamma) / cell.checked))
            extra |= {"checked": cell.checked, "source": "public"}
    linkage = dpl.Exact() if cell.accuracy == (1.0, 1.0) else dpl.ELE(declared, block="block", **extra)
    data = {f"x{k}": x[:, k].copy() for k in range(d)} | {"y": z, "block": blocks}
    arguments = {
        "formula": "y ~ " + " + ".join(f"x{k}" for k in range(d)),
        "bounds": {f"x{k}": (low, high) for k in range(d)} | {"y": (centre - spread, centre + spread)},
        "linkage": linkage,
        "epsilon": cell.epsilon,
        "delta": 1e-6,
        "method": cell.method,
        "ranges": "private" if cell.generous else "declared",
        "errors": cell.declares,
    }
    if not cell.generous and cell.x == "lognormal":
        arguments["typical"] = {f"x{k}": (0.5, 2.0) for k in range(d)}
    if cell.method == "ngd" and cell.x == "normal":
        arguments["typical"] = {f"x{k}": (-1.0, 1.0) for k in range(d)}
    return data, arguments, slopes


def run_one(job: tuple[Cell, int]) -> dict[str, Any]:
    """One run: estimates, hits and lengths of every slope."""
    cell, seed = job
    rng = np.random.default_rng([seed, CELLS.index(cell) if cell in CELLS else 10_000])
    noise.add_gaussian = lambda values, scale: (
        np.asarray(values, float) + np.asarray(scale) * rng.normal(size=np.shape(values))
    )
    data, arguments, slopes = draw(cell, rng)
    release = dpl.fit(data, **arguments)
    out: dict[str, Any] = {"estimate": [], "truth": slopes.tolist(), "route": release.released.variance.route}
    solution, _ = release._inference.coefficients()
    first = int(release.scaling.intercept)
    out["estimate"] = solution[first:].tolist()
    out["std_err"] = [release.std_err[f"x{k}"] for k in range(cell.d)]
    for name, level, method in (("95", 0.95, "test"), ("80", 0.8, "test"), ("wald", 0.95, "wald")):
        ends = release.conf_int(level, method=method)
        out[name] = [ends[f"x{k}"] for k in range(cell.d)]
    response = release.scaling.response.scale
    out["range"] = [response / c.scale for c in release.scaling.columns]
    return out


def describe_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Coverage and lengths of a cell's intervals, slopes pooled; lengths beside those from the true spread of the estimates."""
    truth = np.array([run["truth"] for run in runs])
    estimate = np.array([run["estimate"] for run in runs])
    row: dict[str, Any] = {"runs": len(runs), "routes": "/".join(sorted({run["route"] for run in runs}))}
    for name in ("95", "80", "wald"):
        low, high = np.array([run[name] for run in runs]).transpose(2, 0, 1)
        row[f"coverage_{name}"] = float(((low <= truth) & (truth <= high)).mean())
        row[f"length_{name}"] = float(np.median(high - low))
        row[f"unbounded_{name}"] = float((~np.isfinite(high - low)).mean())
    robust = stats.median_abs_deviation(estimate, axis=0, scale="normal")
    row["bias"] = float(np.mean(np.abs(np.median(estimate, axis=0) - truth[0]) / robust))
    row["true_length"] = float(np.mean(2 * 1.96 * robust))
    low, high = np.array([run["95"] for run in runs]).transpose(2, 0, 1)
    in_lengths = 2 * 1.96 * (estimate - np.median(estimate, axis=0)) / (high - low)
    row["length_ratio"] = float(np.median(1.0 / stats.median_abs_deviation(in_lengths, axis=0, scale="normal")))
    row["se_ratio"] = float(np.median([np.array(run["std_err"]) / robust for run in runs]))
    row["identified"] = bool((1.96 * robust <= np.array(runs[0]["range"])).all())
    return row


def list_failures(row: dict[str, Any], cells: int) -> list[str]:
    """What a cell's coverage misses (tests count runs, as slopes of a run hang together)."""
    failures, alpha, runs = [], 0.01 / (3 * cells), row["runs"]
    hits95, hits80 = (row[f"coverage_{name}"] * runs for name in ("95", "80"))
    if stats.binom.cdf(round(hits95), runs, 0.93) < alpha:
        failures.append("covers too little")
    if stats.binom.sf(round(hits95) - 1, runs, 0.985) < alpha:
        failures.append("covers too much")
    if stats.binom.cdf(round(hits80), runs, 0.77) < alpha:
        failures.append("covers too little at 80 %")
    return failures


def list_length_failures(row: dict[str, Any]) -> list[str]:
    """What a cell's lengths miss."""
    failures = []
    if row["length_ratio"] > 1.25 * (1.0 + _spread_room(row)):
        failures.append("too long")
    if row["identified"] and row["unbounded_95"] > 0.005:
        failures.append("unbounded where identified")
    return failures


def _spread_room(row: dict[str, Any]) -> float:
    """Room for the spread, which is itself an estimate."""
    return 2.0 * 1.16 / math.sqrt(row["runs"])


def judge(cell: Cell, runs: list[dict[str, Any]], cells: int) -> dict[str, Any]:
    """Coverage, lengths and verdict of a cell."""
    row = asdict(cell) | describe_runs(runs)
    failures = list_failures(row, cells)
    if cell.calibration == "tight":
        failures += list_length_failures(row)
    elif row["unbounded_95"] == 0.0:  # Algorithm 2's estimate has hardly a spread where its matrix is not clear
        low, high = SE_RATIOS[cell.method]
        if not low * (1.0 - _spread_room(row)) <= row["se_ratio"] <= high * (1.0 + _spread_room(row)):
            failures.append("standard errors off")
    row["verdict"] = "reported" if cell.off or cell.reported else ("; ".join(failures) or "holds")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--cells", nargs="*")
    parser.add_argument("--calibration", choices=["tight", "paper"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    cells = [cell for cell in CELLS if not arguments.cells or cell.name in arguments.cells]
    cells = [cell for cell in cells if arguments.calibration in (None, cell.calibration)]
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for cell in track(cells, "Cells"):
            runs = list(pool.map(run_one, [(cell, seed) for seed in range(arguments.runs)], chunksize=10))
            rows.append(judge(cell, runs, len(cells)))
            shown = ("coverage_95", "coverage_80", "coverage_wald", "length_ratio", "se_ratio", "unbounded_95", "bias")
            print(
                f"{cell.name:<28}",
                *(f"{key.replace('coverage_', 'c')}={rows[-1][key]:.3f}" for key in shown),
                rows[-1]["routes"],
                rows[-1]["verdict"],
                flush=True,
            )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# {describe_machine('dplinked', 'numpy', 'scipy')}\n")
            writer = csv.DictWriter(
                file, [*(f.name for f in fields(Cell)), *(k for k in rows[0] if k not in Cell.__dataclass_fields__)]
            )
            writer.writeheader()
            writer.writerows(rows)
    failed = [row["name"] for row in rows if row["verdict"] not in ("holds", "reported")]
    print(f"{len(rows) - len(failed)} of {len(rows)} cells hold" + (f"; not: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
