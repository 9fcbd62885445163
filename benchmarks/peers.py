"""Our default fit at perfect linkage against private regression by others, on the same terms.

    python benchmarks/peers.py [--survey shiw2012.csv] [--housing housing.csv] [--out benchmarks/results]
    python benchmarks/peers.py --rivals benchmarks/results/peers.csv    # ours anew, on the same data sets; rivals' errors as they were found then
    python benchmarks/peers.py --quick               # two cells, for CI
    python benchmarks/peers.py --quick --control     # the same with forty times our noise: must be found behind

Rivals are in `rivals.py`. All are given the same bounds, δ = 1e-6 and an intercept. Those tuned by an oracle get the settings with the smallest
median error on rows of the cell, found without privacy and for free; the others get what their papers recommend. One more is shown whose oracle also scales the columns. "Ours" is `dpl.fit` with its
defaults but without intervals, which no rival has; with them is shown beside. Noise is NumPy's, of the same scales as the exact sampler's.

Errors are l2 distances of the slopes on columns scaled by their bounds to [-1, 1], relative to the slopes' norm: to the true ones of simulated
rows, to least squares on the rest. TukeyEM needs parts with enough rows for a fit each, and gives zeros where its test fails; Theil-Sen has one column.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import track

from accuracy import DELTA, draw_ours, load_bundled, simulate
from machine import describe_machine
from rivals import (
    DataSet,
    Floats,
    draw_adassp,
    draw_binagg,
    draw_boosted,
    draw_descent,
    draw_mixing,
    draw_theil_sen,
    draw_tukey,
    least_squares,
    slopes_error,
    tukey_runs,
)
from sections import write_results

EPSILONS = (0.3, 1.0, 3.0)
SIZES = (2_000, 20_000, 100_000)
SIMULATED = ("uniform d=5", "correlated d=5", "lognormal d=1", "heteroscedastic d=10")
BUNDLED = ("diabetes", "breast cancer", "wine", "iris")
SETS, DRAWS, TUNING_DRAWS = 8, 12, 8

MUCH = 40.0  # what the control multiplies our noise by

MOST_BEHIND, ENOUGH_CELLS = 1.05, 0.9  # of the best rival that needs no tuning, in so many of the cells
MOST_BEHIND_TUNED, ENOUGH_TUNED = 1.5, 0.5  # of the best that an oracle tuned

OURS, WITH_INTERVALS, BARE = "ours", "ours, with intervals", "least squares"
Draw = Callable[..., Floats]

UNTUNED: dict[str, Draw] = {
    "AdaSSP": draw_adassp,
    "AdaSSP, GDP": partial(draw_adassp, gdp=True),
    "BoostedAdaSSP": draw_boosted,
    "TukeyEM": draw_tukey,
    "Theil-Sen": draw_theil_sen,
    "Theil-Sen, widened": partial(draw_theil_sen, widened=0.01),
    "BinAgg": draw_binagg,
    "IHM": draw_mixing,
}
SCALED = "DP-GD, tuned and scaled"  # shown, not judged: its oracle knows the columns, not only what to set
DESCENTS = [
    {"steps": steps, "clip": clip, "rate": rate}
    for steps, rate in ((5, 0.5), (5, 1.0), (20, 1.0), (60, 1.8), (200, 1.8))
    for clip in (0.01, 0.03, 0.1, 0.2, 0.5)
]
TUNED: dict[str, tuple[Draw, list[dict[str, Any]]]] = {
    "BoostedAdaSSP, tuned": (
        draw_boosted,
        [
            {"rounds": rounds, "clip": clip}
            for rounds, clip in product((2, 5, 15, 40, 100), (0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0))
        ],
    ),
    "TukeyEM, tuned": (draw_tukey, [{"parts": parts} for parts in (150, 300, 600, 1000, 2000, 4000)]),
    "DP-GD, tuned": (draw_descent, DESCENTS),
    SCALED: (partial(draw_descent, scaled=True), DESCENTS),
}


@dataclass(frozen=True)
class Cell:
    """Data of a kind, of n rows where they are simulated, at one ε."""

    kind: str
    rows: int
    epsilon: float
    file: Path | None = None

    @property
    def label(self) -> str:
        return f"{self.kind}, n = {self.rows:,}, ε = {self.epsilon:g}"


# --- data ----------------------------------------------------------------------------------------------


def draw_data(cell: Cell, number: int) -> DataSet:
    """A data set of the cell; files and scikit-learn's sets are the same each time."""
    if cell.kind in BUNDLED:
        return load_bundled(cell.kind)
    if cell.file is not None:
        return load_file(cell.file, FILES[cell.kind])
    kind, d = cell.kind.split(" d=")
    rng = np.random.default_rng([number, cell.rows, int(d), 11])
    if kind == "lognormal":
        x = np.minimum(rng.lognormal(0.0, 0.7, cell.rows), 45.0)
        return scaled(
            {"x": x, "y": 1.0 + x + 0.5 * rng.standard_normal(cell.rows)}, {"x": (0, 45), "y": (-5, 50)}, [1.0]
        )
    if kind == "heteroscedastic":
        return _heteroscedastic(cell.rows, int(d), rng)
    return replace(simulate(kind, cell.rows, int(d), number), intercept=True)


def _heteroscedastic(rows: int, d: int, rng: np.random.Generator) -> DataSet:
    """Even columns, and errors that grow with the first one."""
    X = rng.uniform(-1.0, 1.0, (rows, d))
    slopes = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    bound = 1.0 + float(np.abs(slopes).sum())
    errors = (0.1 + 0.4 * np.abs(X[:, 0])) * rng.standard_normal(rows)
    return DataSet(X, np.clip(X @ slopes + errors, -bound, bound), bound, slopes, intercept=True)


def scaled(
    columns: dict[str, Floats], bounds: dict[str, tuple[float, float]], slopes: Sequence[float] | None
) -> DataSet:
    """Columns scaled by public bounds, the response last; compared with true slopes or, without them, with least squares."""
    found, widths = [], []
    for name, (low, high) in bounds.items():
        width = (high - low) / 2.0
        found.append((np.clip(columns[name], low, high) - (low + high) / 2.0) / width)
        widths.append(width)
    X, y = np.stack(found[:-1], axis=1), found[-1]
    data = DataSet(X, y, 1.0, np.ones(X.shape[1]), intercept=True)
    target = least_squares(data)[0] if slopes is None else np.array(slopes) * widths[:-1] / widths[-1]
    return replace(data, target=target)


# Round public bounds such as a steward would write down; the response comes last.
FILES: dict[str, dict[str, tuple[float, float]]] = {
    "survey": {"income": (0, 500_000), "consumption": (0, 300_000)},
    "housing": {
        "MedInc": (0, 15), "HouseAge": (0, 60), "AveRooms": (0, 20), "AveBedrms": (0, 5), "Population": (0, 5_000),
        "AveOccup": (0, 10), "Latitude": (32, 42), "Longitude": (-125, -114), "MedHouseVal": (0, 6),
    },
}  # fmt: skip


def load_file(path: Path, bounds: dict[str, tuple[float, float]]) -> DataSet:
    """A CSV file, clipped and scaled by its bounds."""
    import pyarrow.csv

    table = pyarrow.csv.read_csv(path)
    return scaled({name: table[name].to_numpy().astype(float) for name in bounds}, bounds, None)


# --- methods -------------------------------------------------------------------------------------------


def fit_ours(
    data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator, **settings: Any
) -> Floats:
    """Slopes of our fit (draws×d), called as rivals are."""
    assert delta == DELTA
    return draw_ours(data, epsilon, draws, rng, **settings)[0][:, int(data.intercept) :]


def can_run(name: str, data: DataSet, parts: int = 1000) -> bool:
    """Whether a rival can be used on the data at all."""
    if name.startswith("Theil-Sen"):
        return data.X.shape[1] == 1
    return not name.startswith("TukeyEM") or tukey_runs(data, parts)


def tune(name: str, cell: Cell, data: DataSet) -> dict[str, Any] | None:
    """The settings with the smallest median error on one data set; None if none can be used."""
    draw, grid = TUNED[name]
    rng, draws = np.random.default_rng(5), TUNING_DRAWS if len(data.y) <= 50_000 else TUNING_DRAWS // 2
    usable = [given for given in grid if can_run(name, data, given.get("parts", 1000))]
    if not usable:
        return None
    errors = [np.median(slopes_error(data, draw(data, cell.epsilon, DELTA, draws, rng, **given))) for given in usable]
    return usable[int(np.argmin(errors))]


def list_rivals(cell: Cell, first: DataSet) -> dict[str, Draw]:
    """Rivals that can be used on a cell, those that are tuned with what suits its first data set best."""
    methods = {name: draw for name, draw in UNTUNED.items() if can_run(name, first)}
    for name, (draw, _) in TUNED.items():
        if (best := tune(name, cell, first)) is not None:
            methods[name] = partial(draw, **best)
    return methods


def read_errors(path: Path) -> dict[tuple[str, int, float], dict[str, dict[str, float]]]:
    """Median and root mean square errors of an earlier run, by kind, rows and ε of the cell and by method."""
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            names = [
                name.removesuffix(" rmse") for name in row if name.endswith(" rmse") and not name.startswith("ours/")
            ]
            known = {name: (float(row[name]), float(row[f"{name} rmse"])) for name in names}
            known = {name: errors for name, errors in known.items() if not math.isnan(errors[0])}
            medians, squares = ({name: errors[k] for name, errors in known.items()} for k in (0, 1))
            found[row["data"], int(row["n"]), float(row["epsilon"])] = {"medians": medians, "rmse": squares}
    return found


def run_cell(cell: Cell, sets: int, draws: int, noisier: float, earlier: Path | None = None) -> dict[str, Any]:
    """All methods on one cell: median and root mean square errors by method. Those of rivals may be known from an `earlier` run."""
    warnings.simplefilter("ignore")
    started, first = time.perf_counter(), draw_data(cell, 0)
    sets, draws = (sets, draws) if cell.kind in SIMULATED else (1, sets * draws)
    known = read_errors(earlier)[cell.kind, len(first.y), cell.epsilon] if earlier else {}
    methods = {} if known else list_rivals(cell, first)
    methods |= {
        OURS: partial(fit_ours, noisier=noisier),
        WITH_INTERVALS: partial(fit_ours, intervals=True, noisier=noisier),
    }
    found = collect_errors(cell, methods, lambda number: draw_data(cell, number), (BARE, least_squares), sets, draws)
    merged = {name: {**known.get(name, {}), **found[name]} for name in ("medians", "rmse")}
    return {**found, **merged, "d": first.X.shape[1], "rows": len(first.y), "seconds": time.perf_counter() - started}


def collect_errors(
    cell: Cell,
    methods: dict[str, Draw],
    draw_set: Callable[[int], DataSet],
    bare: tuple[str, Callable[[DataSet], Floats]],
    sets: int,
    draws: int,
) -> dict[str, Any]:
    """Median and root mean square errors of all methods on data sets of a cell; `bare` has no privacy."""
    errors: dict[str, list[Floats]] = {name: [] for name in (bare[0], *methods)}
    for number in range(sets):
        data, rng = draw_set(number), np.random.default_rng([number, 3])
        errors[bare[0]].append(slopes_error(data, bare[1](data)))
        for name, draw in methods.items():
            errors[name].append(slopes_error(data, draw(data, cell.epsilon, DELTA, draws, rng)))
    pooled = {name: np.concatenate(found) for name, found in errors.items()}
    medians = {name: float(np.median(found)) for name, found in pooled.items()}
    squares = {name: float(np.sqrt((found**2).mean())) for name, found in pooled.items()}
    return {"cell": cell, "medians": medians, "rmse": squares}


def check_rivals() -> list[str]:
    """Rivals that do not find the line although ε = 100 lets them: each is at most three times least squares' error and a twentieth away."""
    data = replace(simulate("uniform", 30_000, 1, 1), intercept=True)
    rng, off = np.random.default_rng(2), []
    bare = float(slopes_error(data, least_squares(data))[0])
    for name, draw in UNTUNED.items():
        error = float(np.median(slopes_error(data, draw(data, 100.0, DELTA, 5, rng))))
        if error > 3.0 * bare + 0.05:
            off.append(f"{name} is {error:.2f} from the line at ε = 100")
    return off


# --- report --------------------------------------------------------------------------------------------


def best_of(errors: dict[str, float], names: Sequence[str]) -> tuple[str, float]:
    """The rival with the smallest error."""
    name = min((name for name in names if name in errors), key=errors.__getitem__)
    return name, errors[name]


def compare(
    found: dict[str, Any],
    untuned: Sequence[str] = tuple(UNTUNED),
    tuned: Sequence[str] = tuple(TUNED),
    bare: str = BARE,
) -> dict[str, Any]:
    """One row: errors by method, and ours relative to the best rivals; `bare` has no privacy."""
    cell, medians, squares = found["cell"], found["medians"], found["rmse"]
    row: dict[str, Any] = {"data": cell.kind, "n": found["rows"], "d": found["d"], "epsilon": cell.epsilon}
    for kind, names in (("untuned", untuned), ("tuned", [name for name in tuned if name != SCALED])):
        row[f"best {kind}"], error = best_of(medians, names)
        row[f"ours/{kind}"] = medians[OURS] / error
        row[f"ours/{kind} rmse"] = squares[OURS] / best_of(squares, names)[1]
    for name in (bare, OURS, WITH_INTERVALS, *untuned, *tuned):
        row[name] = medians.get(name, math.nan)
        row[f"{name} rmse"] = squares.get(name, math.nan)
    return row


def judge(
    rows: Sequence[dict[str, Any]], few: bool, shares: tuple[float, float] = (ENOUGH_CELLS, ENOUGH_TUNED)
) -> tuple[list[str], list[str]]:
    """What was found about each criterion, and the criteria that were missed; a few cells do not tell how often an oracle is too far ahead."""
    found, missed = [], []
    for kind, most, enough in (("untuned", MOST_BEHIND, shares[0]), ("tuned", MOST_BEHIND_TUNED, shares[1])):
        ratios = np.array([row[f"ours/{kind}"] for row in rows])
        near = int((ratios <= most).sum())
        line = (
            f"at most {most:g} of the best {kind} rival's median error: {near} of {len(rows)} cells "
            f"({enough:.0%} asked for); median {np.median(ratios):.2f}, largest {ratios.max():.1f}"
        )
        found.append(line)
        if near < enough * len(rows) and not (few and kind == "tuned"):
            missed.append(line)
    return found, missed


def write_report(
    rows: Sequence[dict[str, Any]],
    found: Sequence[str],
    missed: Sequence[str],
    notes: Sequence[str],
    title: str = "Peers at perfect linkage",
    about: str = __doc__,
) -> str:
    """The readable report."""
    methods = [
        name.removesuffix(" rmse") for name in rows[0] if name.endswith(" rmse") and not name.startswith("ours/")
    ]
    header = ["data", "n", "d", "ε", *methods, "ours / best untuned (RMSE)", "ours / best tuned (RMSE)"]
    lines = [
        f"# {title}",
        "",
        describe_machine("dplinked", "numpy", "scipy", "scikit-learn"),
        "",
        *[" ".join(part.split()) + "\n" for part in about.split("\n\n")[-2:]],
        *[f"- {note}" for note in notes],
        "",
        "Median errors:",
        "",
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
    ]
    for row in rows:
        errors = ["–" if math.isnan(row[name]) else f"{row[name]:.3g}" for name in methods]
        ratios = [
            f"{row[f'ours/{kind}']:.2f} ({row[f'ours/{kind} rmse']:.2f}), {row[f'best {kind}'].removesuffix(', tuned')}"
            for kind in ("untuned", "tuned")
        ]
        lines.append(
            "| "
            + " | ".join([row["data"], f"{row['n']:,}", str(row["d"]), f"{row['epsilon']:g}", *errors, *ratios])
            + " |"
        )
    lines += ["", *[f"- {line}" for line in found], ""]
    return "\n".join([*lines, *([f"MISSED: {line}" for line in missed] or ["All criteria met."])])


def list_cells(survey: Path | None, housing: Path | None) -> list[Cell]:
    """All cells; those of files where there are files."""
    cells = [Cell(kind, rows, epsilon) for kind in SIMULATED for rows in SIZES for epsilon in EPSILONS]
    cells += [Cell(kind, 0, epsilon) for kind in BUNDLED for epsilon in EPSILONS]
    for kind, file in (("survey", survey), ("housing", housing)):
        cells += [Cell(kind, 0, epsilon, file) for epsilon in EPSILONS if file is not None]
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--survey", type=Path, help="CSV file with the columns income and consumption")
    parser.add_argument("--housing", type=Path, help="CSV file with the columns of scikit-learn's California housing")
    parser.add_argument("--kinds", nargs="*", help="kinds of data; all by default")
    parser.add_argument("--rivals", type=Path, help="peers.csv of an earlier run, whose errors of rivals are taken")
    parser.add_argument("--sets", type=int, default=SETS, help="simulated data sets of a cell")
    parser.add_argument("--draws", type=int, default=DRAWS, help="releases of a data set")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two cells")
    parser.add_argument("--control", action="store_true", help="forty times our noise: must be found behind")
    parser.add_argument("--out", type=Path, help="folder for peers.md and peers.csv")
    options = parser.parse_args()
    started, off = time.perf_counter(), check_rivals()
    cells = [
        cell for cell in list_cells(options.survey, options.housing) if not options.kinds or cell.kind in options.kinds
    ]
    sets, draws = options.sets, options.draws
    if options.quick:
        cells, sets, draws = [Cell("uniform d=5", 2_000, 1.0), Cell("uniform d=5", 20_000, 1.0)], 4, 5
    noisier = MUCH if options.control else 1.0
    run = partial(run_cell, sets=sets, draws=draws, noisier=noisier, earlier=options.rivals)
    with ProcessPoolExecutor(options.jobs) as pool:
        done = list(track(pool.map(run, cells), "Cells", total=len(cells)))
    rows = [compare(found) for found in done]
    found, missed = judge(rows, few=options.quick)
    notes = [
        f"{sets} data sets of each simulated cell and {draws} releases of each, {sets * draws} of the others; "
        f"{time.perf_counter() - started:.0f} s in all."
    ]
    notes += [
        f"The {kind} cells were left out: give the file with --{kind}."
        for kind, file in (("survey", options.survey), ("housing", options.housing))
        if file is None
    ]
    if options.rivals is not None:
        notes.append(
            "Ours was run anew on the same data sets (`--rivals`); errors of rivals are those of the run before."
        )
    report = write_report(rows, found, [*off, *missed], notes)
    print(report)
    if options.out:
        write_results(options.out, "peers", report, rows)
    return 1 if off or missed else 0


if __name__ == "__main__":
    sys.exit(main())
