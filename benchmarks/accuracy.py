"""Accuracy at perfect linkage, against non-private OLS and the private alternatives.

    python benchmarks/accuracy.py --peers     # everything, some twenty minutes
    python benchmarks/accuracy.py --quick     # a few cells, under a minute, for CI

Writes benchmarks/results/accuracy.csv and accuracy.md (not with --quick unless --out is given), and exits
with 1 when a criterion is missed.

Rules, the same for every method: neighbours replace one row (n public), δ = 1e-6, rows lie in the cube
[-1, 1]^d so that ‖x‖ ≤ √d, responses within ±R. R is public: for simulated data 1 + ‖β‖₁, the largest
signal in the cube and three residual deviations; for scikit-learn's data round bounds written down here.
Errors are l2 distances of the slopes on the scaled columns, relative to ‖β‖: to the true coefficients of
simulated data, to OLS on the rest.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from dplinked.data.table import Rows
from dplinked.fitting import fit_study
from dplinked.linkage import Exact
from dplinked.privacy import noise
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities.instrument import entry_noise, plan_sums
from dplinked.study.study import Study
from dplinked.sums.numpy.instrument import instrument_sums
from dplinked.sums.numpy.prepare import prepare_rows
from machine import describe_machine
from rivals import DataSet, draw_adassp, slopes_error, with_constant
from sections import write_results

Floats = NDArray[np.float64]

EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-6
RESIDUAL = 0.3
DRAWS = {1: 800, 5: 240, 20: 96}  # per cell, over all its data sets: medians vary less with many columns
# Data sets per cell. With one column sampling error is a single number per data set, and where it rules
# (many rows) a decile over few data sets would be that of their luck.
SETS = {1: 100, 5: 8, 20: 8}

BOOTSTRAPS = 400

MOST_BEHIND = 1.05  # of either AdaSSP's median error
MOST_SPREAD = 3.0  # 90th percentile over median; a half-normal error (d = 1, unbiased) has 2.4 by itself
MOST_WRONG = 0.05  # share of coefficients called not identified where they are

RIVALS = ("AdaSSP", "AdaSSP, GDP")
PEERS = ("diffprivlib", "OpenDP Theil-Sen")
METHODS = ("OLS", "ours", *RIVALS, *PEERS)

DIFFPRIVLIB = ("diffprivlib==0.6.6", "scikit-learn<1.9")


@dataclass
class Cell:
    """One cell of the benchmark and, per method, the relative errors of each data set (sets × draws)."""

    data: str
    rows: int
    columns: int
    epsilon: float
    errors: dict[str, list[Floats]] = field(default_factory=dict)
    identified: int = 0
    called_unidentified: int = 0
    unidentified: int = 0
    called_identified: int = 0

    @property
    def label(self) -> str:
        return f"{self.data}, n = {self.rows:,}, d = {self.columns}, ε = {self.epsilon:g}"

    def median(self, method: str) -> float:
        """Median error over data sets and draws; NaN where the method did not run."""
        return float(np.median(np.concatenate(self.errors[method]))) if self.errors.get(method) else math.nan

    def spread(self) -> float:
        """90th percentile of our error over its median."""
        pooled = np.concatenate(self.errors["ours"])
        return float(np.quantile(pooled, 0.9) / np.median(pooled))

    def ratio(self, rival: str) -> tuple[float, float, float]:
        """Ratio of median errors, ours over the rival's, with a 95 % interval by paired bootstrap.

        Data sets are drawn with replacement, the same for both, and within them releases.
        """
        rng = np.random.default_rng(0)
        medians = []
        for method in ("ours", rival):
            errors = np.stack(self.errors[method])
            sets, draws = errors.shape
            chosen = np.random.default_rng(1).integers(sets, size=(BOOTSTRAPS, sets))
            medians.append([np.median(errors[c[:, None], rng.integers(draws, size=(sets, draws))]) for c in chosen])
        ratios = np.array(medians[0]) / np.array(medians[1])
        low, high = np.quantile(ratios, [0.025, 0.975])
        return self.median("ours") / self.median(rival), float(low), float(high)


# --- data -------------------------------------------------------------------------------------------


def simulate(kind: str, rows: int, d: int, number: int) -> DataSet:
    """A simulated data set; even numbers have coefficients of equal size, odd ones a random direction."""
    rng = np.random.default_rng([number, rows, d, len(kind)])
    if kind == "uniform":
        X = rng.uniform(-1.0, 1.0, (rows, d))
    else:
        factor = math.sqrt(0.9) * rng.standard_normal((rows, 1))
        X = np.clip((factor + math.sqrt(0.1) * rng.standard_normal((rows, d))) / 3.0, -1.0, 1.0)
    beta = rng.choice([-1.0, 1.0], d) if number % 2 == 0 else rng.standard_normal(d)
    beta /= np.linalg.norm(beta)
    bound = 1.0 + float(np.abs(beta).sum())
    y = np.clip(X @ beta + RESIDUAL * rng.standard_normal(rows), -bound, bound)
    return DataSet(X, y, bound, beta, intercept=False)


# Round public bounds such as a steward would write down; the response comes last.
BUNDLED: dict[str, dict[str, tuple[float, float]]] = {
    "diabetes": {
        "age": (0, 100), "sex": (1, 2), "bmi": (10, 50), "bp": (40, 160), "s1": (50, 350), "s2": (0, 300),
        "s3": (0, 120), "s4": (0, 10), "s5": (2, 8), "s6": (40, 160), "target": (0, 400),
    },
    "linnerud": {"Chins": (0, 30), "Situps": (0, 300), "Jumps": (0, 300), "Weight": (100, 300)},
    "iris": {
        "sepal length (cm)": (3, 10), "sepal width (cm)": (1, 6), "petal length (cm)": (0, 10), "petal width (cm)": (0, 4),
    },
    "wine": {
        "malic_acid": (0, 8), "ash": (1, 4), "alcalinity_of_ash": (5, 40), "magnesium": (50, 200),
        "total_phenols": (0, 5), "flavanoids": (0, 8), "color_intensity": (0, 15), "hue": (0, 2), "proline": (0, 2000),
        "alcohol": (10, 16),
    },
    "breast cancer": {
        "mean texture": (0, 50), "mean smoothness": (0, 0.2), "mean compactness": (0, 0.5), "mean symmetry": (0, 0.4),
        "mean concave points": (0, 0.25), "mean radius": (0, 40),
    },
}  # fmt: skip


def load_bundled(name: str) -> DataSet:
    """One of scikit-learn's data sets, scaled by its public bounds, with an intercept."""
    from sklearn import datasets

    loaders: dict[str, Any] = {
        "diabetes": lambda: datasets.load_diabetes(as_frame=True, scaled=False).frame,
        "linnerud": lambda: datasets.load_linnerud(as_frame=True).frame,
        "iris": lambda: datasets.load_iris(as_frame=True).frame,
        "wine": lambda: datasets.load_wine(as_frame=True).frame,
        "breast cancer": lambda: datasets.load_breast_cancer(as_frame=True).frame,
    }
    frame, bounds = loaders[name](), BUNDLED[name]
    scaled = {}
    for column, (low, high) in bounds.items():
        raw = frame[column].to_numpy(dtype=np.float64)
        scaled[column] = (np.clip(raw, low, high) - (low + high) / 2.0) / ((high - low) / 2.0)
    *regressors, response = scaled
    X, y = np.stack([scaled[column] for column in regressors], axis=1), scaled[response]
    target = np.linalg.lstsq(np.column_stack([np.ones(len(y)), X]), y, rcond=None)[0][1:]
    return DataSet(X, y, 1.0, target, intercept=True)


def declare_study(data: DataSet, epsilon: float, **settings: Any) -> tuple[Study, dict[str, Floats]]:
    """The study for `dpl.fit`, with further settings, and its columns. The data are scaled by public bounds already."""
    names = [f"x{k + 1}" for k in range(data.X.shape[1])]
    R = data.response_bound
    study = Study(
        formula=f"y ~ {'' if data.intercept else '0 + '}{' + '.join(names)}",
        bounds={**dict.fromkeys(names, (-1.0, 1.0)), **({} if "levels" in settings else {"y": (-R, R)})},
        epsilon=epsilon,
        delta=DELTA,
        linkage=Exact(),
        **settings,
    )
    columns = {name: np.ascontiguousarray(data.X[:, k]) for k, name in enumerate(names)}
    return study, {**columns, "y": data.y}


# --- methods ----------------------------------------------------------------------------------------


def draw_ours(
    data: DataSet,
    epsilon: float,
    draws: int,
    rng: np.random.Generator,
    *,
    intervals: bool = False,
    noisier: float = 1.0,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Coefficients of `dpl.fit` with its defaults, and which of them each release calls identified (draws×p each).

    Noise is NumPy's, of the same scales as the exact sampler's, which is slower; `noisier` multiplies it.
    """
    study, columns = declare_study(data, epsilon)
    return draw_releases(replace(study, intervals=intervals), columns, draws, rng, noisier)


def draw_releases(
    study: Study, columns: dict[str, Floats], draws: int, rng: np.random.Generator, noisier: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """Coefficients of releases of a study, and which of them each calls identified (draws×p each)."""
    noise.add_gaussian = lambda values, scale: (
        np.asarray(values, float) + noisier * np.asarray(scale) * rng.normal(size=np.shape(values))
    )
    releases = [fit_study(study, columns) for _ in range(draws)]
    coefficients = np.array([list(release.coef.values()) for release in releases])
    return coefficients, np.array([list(release.identified.values()) for release in releases])


def identified_at_once(data: DataSet, epsilon: float) -> NDArray[np.bool_]:
    """Whether sampling and privacy errors, from the true sums with the noise of one stage, stay within a coefficient's range (p)."""
    study, columns = declare_study(data, epsilon)
    design, exposure = study.prepare()
    sums = instrument_sums(prepare_rows(Rows(columns), design, study.linkage, study.unit))
    entry = entry_noise(plan_sums(design, exposure, sums.count, privacy_mu(epsilon, DELTA)))
    first, d = int(data.intercept), data.X.shape[1]
    inverse = np.linalg.pinv(sums.matrix)
    beta = inverse @ sums.vector
    y = data.y / data.response_bound
    residual = y - with_constant(data) @ beta
    sampling = np.sqrt(np.maximum(np.diag(inverse), 0.0) * (residual @ residual) / max(1, y.size - beta.size))
    slopes, noisy = beta[first:], np.zeros((first + d, first + d))
    noisy[first:, first:] = entry.response**2 * np.eye(d)
    noisy[first:, first:] += entry.core**2 * (slopes @ slopes * np.eye(d) + np.outer(slopes, slopes))
    if first:
        noisy[0, 0] = entry.response_total**2 + entry.row**2 * slopes @ slopes
        noisy[1:, 1:] += entry.row**2 * beta[0] ** 2 * np.eye(d)
        noisy[0, 1:] = noisy[1:, 0] = entry.row**2 * beta[0] * slopes
    privacy = np.sqrt(np.diag(inverse @ noisy @ inverse))
    return np.asarray(1.96 * (sampling + privacy) <= design.coefficient_range())


def draw_theil_sen(data: DataSet, epsilon: float, draws: int) -> Floats:
    """OpenDP's Theil-Sen for one column. Replacing one row is symmetric distance 2; its noise is pure or zCDP."""
    import opendp.prelude as dp
    from opendp.extras.sklearn.linear_model import LinearRegression

    dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
    rho = privacy_mu(epsilon, DELTA) ** 2 / 2.0  # more than zCDP allows for (ε, δ): generous to it
    R = data.response_bound

    def build(scale: float) -> Any:
        return LinearRegression(
            dp.zero_concentrated_divergence(), x_bounds=[(-1.0, 1.0)], y_bounds=(-R, R), scale=scale
        )

    scale = dp.binary_search(lambda s: build(s).measurement.map(2) <= rho, bounds=(1e-3, 1e4))
    regression = build(scale)
    found = [regression.fit(data.X, data.y).coef_ for _ in range(draws)]
    return slopes_error(data, np.array(found))


DIFFPRIVLIB_WORKER = """
import sys, warnings, numpy as np
from diffprivlib.models import LinearRegression
warnings.simplefilter("ignore")
with np.load(sys.argv[1]) as file:
    X, y, R, intercept, draws = file["X"], file["y"], float(file["R"]), bool(file["intercept"]), int(file["draws"])
    found = {}
    for epsilon in file["epsilons"]:
        fits = [LinearRegression(epsilon=float(epsilon), bounds_X=(-1.0, 1.0), bounds_y=(-R, R), fit_intercept=intercept)
                .fit(X, y).coef_ for _ in range(draws)]
        found[str(float(epsilon))] = np.array(fits)
np.savez(sys.argv[2], **found)
"""


def prepare_diffprivlib() -> Path:
    """Return the Python of an environment with diffprivlib, made on first use: it needs an older scikit-learn."""
    import venv

    folder = Path(tempfile.gettempdir()) / "dplinked-peers"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *DIFFPRIVLIB], check=True)
        (folder / "ready").touch()
    return python


def draw_diffprivlib(python: Path, data: DataSet, epsilons: Sequence[float], draws: int) -> dict[float, Floats]:
    """diffprivlib's LinearRegression, pure ε, with symmetric bounds; returns errors per ε."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "given.npz", Path(folder) / "found.npz"
        np.savez(
            given,
            X=data.X,
            y=data.y,
            R=data.response_bound,
            intercept=data.intercept,
            draws=draws,
            epsilons=np.array(epsilons),
        )
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, "-c", DIFFPRIVLIB_WORKER, given, found], check=True, env=environment, cwd=folder)
        with np.load(found) as file:
            return {epsilon: slopes_error(data, file[str(float(epsilon))]) for epsilon in epsilons}


# --- cells ------------------------------------------------------------------------------------------


def list_groups(quick: bool) -> Iterator[tuple[str, int, int, tuple[float, ...]]]:
    """Groups of cells that share data: (data, rows, columns, epsilons)."""
    if quick:
        yield "uniform", 10_000, 1, (1.0,)
        yield "uniform", 1_000, 5, (1.0,)
        yield "correlated", 10_000, 5, (0.3,)
        yield "uniform", 100_000, 5, (3.0,)
        yield "uniform", 10_000, 20, (1.0,)
        yield "iris", 0, 0, (1.0,)
        return
    for kind in ("uniform", "correlated"):
        for rows in (1_000, 10_000, 100_000):
            for d in (1, 5, 20):
                yield kind, rows, d, EPSILONS
    for name in BUNDLED:
        yield name, 0, 0, EPSILONS


def run_group(
    kind: str, rows: int, d: int, epsilons: tuple[float, ...], peers: Path | None, theil_sen: bool, share: float
) -> list[Cell]:
    """Run all methods on one group of cells."""
    bundled = kind in BUNDLED
    if bundled:
        rows, d = load_bundled(kind).X.shape
    size = 1 if d == 1 else 5 if d <= 10 else 20
    sets = 1 if bundled else SETS[size]
    draws = max(4, int(share * DRAWS[size]) // sets)
    cells = {epsilon: Cell(kind, rows, d, epsilon) for epsilon in epsilons}
    for number in range(sets):
        data = load_bundled(kind) if bundled else simulate(kind, rows, d, number)
        rng = np.random.default_rng([7, number])
        ols = slopes_error(
            data, np.linalg.lstsq(with_constant(data), data.y, rcond=None)[0][None, int(data.intercept) :]
        )
        from_diffprivlib = (
            draw_diffprivlib(peers, data, epsilons, 100 if bundled else 20) if peers and number < 4 else {}
        )
        for epsilon, cell in cells.items():

            def add(method: str, errors: Floats, to: Cell = cell) -> None:
                to.errors.setdefault(method, []).append(errors)

            coefficients, called = draw_ours(data, epsilon, draws, rng)
            truth = identified_at_once(data, epsilon)
            cell.identified += int(truth.sum()) * draws
            cell.unidentified += int((~truth).sum()) * draws
            cell.called_unidentified += int((~called[:, truth]).sum())
            cell.called_identified += int(called[:, ~truth].sum())
            add("ours", slopes_error(data, coefficients[:, int(data.intercept) :]))
            add("OLS", ols)
            for rival in RIVALS:
                add(rival, slopes_error(data, draw_adassp(data, epsilon, DELTA, draws, rng, gdp=rival.endswith("GDP"))))
            if epsilon in from_diffprivlib:
                add("diffprivlib", from_diffprivlib[epsilon])
            if theil_sen and d == 1 and number < 4:
                add("OpenDP Theil-Sen", draw_theil_sen(data, epsilon, 50))
    return list(cells.values())


# --- report -----------------------------------------------------------------------------------------


def judge(cells: list[Cell]) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Rows for the table, missed criteria, and cells in doubt."""
    table, missed, doubtful = [], [], []
    for cell in cells:
        row: dict[str, Any] = {
            "data": cell.data, "n": cell.rows, "d": cell.columns, "epsilon": cell.epsilon,
            **{method: cell.median(method) for method in METHODS},
        }  # fmt: skip
        for rival in RIVALS:
            ratio, low, high = cell.ratio(rival)
            row |= {f"ours/{rival}": ratio, f"ours/{rival} low": low, f"ours/{rival} high": high}
            if low > MOST_BEHIND:
                missed.append(f"{cell.label}: {ratio:.3f} of {rival}'s error (95 % interval {low:.3f} to {high:.3f})")
            elif ratio > MOST_BEHIND:
                doubtful.append(
                    f"{cell.label}: {ratio:.3f} of {rival}'s error, but the interval is {low:.3f} to {high:.3f}"
                )
        row["p90/median"] = cell.spread()
        if not row["p90/median"] < MOST_SPREAD:
            missed.append(f"{cell.label}: worst decile is {row['p90/median']:.2f} times the median")
        row["identified"], row["called not identified"] = cell.identified, cell.called_unidentified
        row["not identified"], row["called identified"] = cell.unidentified, cell.called_identified
        if cell.identified and cell.called_unidentified > MOST_WRONG * cell.identified:
            share = cell.called_unidentified / cell.identified
            missed.append(f"{cell.label}: {share:.1%} of identified coefficients are called not identified")
        table.append(row)
    return table, missed, doubtful


def share_text(part: int, whole: int) -> str:
    """A share in percent, or a dash where there is nothing to share."""
    return f"{100.0 * part / whole:.1f} %" if whole else "–"


def write_report(table: list[dict[str, Any]], missed: list[str], doubtful: list[str], notes: list[str]) -> str:
    """The readable report."""
    lines = [
        "# Accuracy at perfect linkage",
        "",
        describe_machine("dplinked", "numpy", "opendp", "scikit-learn"),
        "",
        "Median relative l2 error of the slopes. " + " ".join(__doc__.split("\n\n")[-1].split()),
        "",
        "The ratio columns are ours / the rival's median error with a 95 % interval (data sets and releases bootstrapped, "
        "paired). `not id.` is how often a release calls a coefficient not identified that one stage would identify: 1.96 (sampling + privacy "
        "error, from the true sums) within its range; `id.` how often it calls one identified that one stage would not.",
        "",
        "| data | n | d | ε | OLS | ours | AdaSSP | AdaSSP, GDP | diffprivlib | Theil-Sen | ours/AdaSSP | ours/GDP | p90/median | not id. | id. |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        errors = ["–" if math.isnan(row[method]) else f"{row[method]:.3g}" for method in METHODS]
        ratios = [
            f"{row[f'ours/{rival}']:.2f} ({row[f'ours/{rival} low']:.2f}–{row[f'ours/{rival} high']:.2f})"
            for rival in RIVALS
        ]
        rates = [
            share_text(row["called not identified"], row["identified"]),
            share_text(row["called identified"], row["not identified"]),
        ]
        lines.append(
            "| " + " | ".join(
                [row["data"], f"{row['n']:,}", str(row["d"]), f"{row['epsilon']:g}", *errors, *ratios, f"{row['p90/median']:.2f}", *rates]
            ) + " |"
        )  # fmt: skip
    wins = [sum(row[f"ours/{rival}"] <= MOST_BEHIND for row in table) for rival in RIVALS]
    calls = sum(row["called not identified"] for row in table), sum(row["identified"] for row in table)
    wrong = sum(row["called identified"] for row in table), sum(row["not identified"] for row in table)
    lines += [
        "",
        f"Cells at most 5 % behind: {wins[0]} of {len(table)} (AdaSSP), {wins[1]} of {len(table)} (AdaSSP, GDP); median ratio "
        + ", ".join(f"{np.median([row[f'ours/{rival}'] for row in table]):.2f}" for rival in RIVALS)
        + f". Called not identified where one stage would identify: {share_text(*calls)} of {calls[1]:,}; called identified where it would not: "
        f"{share_text(*wrong)} of {wrong[1]:,}.",
        "",
        *[f"- {note}" for note in notes],
        "",
        *[f"IN DOUBT: {line}" for line in doubtful],
        *([f"MISSED: {line}" for line in missed] or ["All criteria met."]),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run all cells, write the report, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few cells, under a minute")
    parser.add_argument("--peers", action="store_true", help="also diffprivlib, in an environment of its own")
    parser.add_argument("--out", type=Path, help="folder for accuracy.csv and accuracy.md")
    options = parser.parse_args()
    out = options.out or (None if options.quick else Path(__file__).parent / "results")
    console, started = Console(), time.perf_counter()
    warnings.simplefilter("ignore")

    notes = [
        "Theil-Sen (OpenDP 0.16, d = 1 only, default 100 candidates) accounts symmetric distance, so one replaced row "
        "counts 2; it gets ρ = μ²/2, which is more than zCDP grants for this (ε, δ). It fits an intercept as well, and its "
        "error stops at the grid of its candidates.",
    ]
    python = None
    if options.peers:
        with console.status("Preparing an environment for diffprivlib"):
            python = prepare_diffprivlib()
        notes.append(
            "diffprivlib 0.6.6 is pure ε-DP (no δ); with an intercept it spends 1.5 ε and books 1, so scikit-learn's data "
            "favour it. 20 releases of 4 data sets per cell (100 of each bundled one)."
        )
    else:
        notes.append("diffprivlib was left out: it needs scikit-learn < 1.9, so an environment of its own (--peers).")

    cells: list[Cell] = []
    groups = list(list_groups(options.quick))
    for group in track(groups, "Cells", console=console):
        cells += run_group(*group, peers=python, theil_sen=not options.quick, share=0.5 if options.quick else 1.0)
    with console.status("Bootstrap"):
        table, missed, doubtful = judge(cells)
    notes.append(f"The run took {time.perf_counter() - started:.0f} s.")
    report = write_report(table, missed, doubtful, notes)
    console.print(report, markup=False, highlight=False, soft_wrap=True)
    if out:
        write_results(out, "accuracy", report, table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
