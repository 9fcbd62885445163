"""The default fit against that of an earlier version, on the same rows at equal privacy, intervals included.

    python benchmarks/sharper.py [--runs 200] [--survey shiw2012.csv] [--against a319e66] [--out benchmarks/results]
    python benchmarks/sharper.py --quick               # two cells, six runs, for CI
    python benchmarks/sharper.py --quick --control     # the same with forty times the noise: must be found worse

The cells are in `situations.py`. In each run rows and links are drawn anew, the same for both versions (checksums are compared), and each
version fits them with its defaults, in processes of its own: the earlier one from the sources of its commit. Noise is NumPy's, of the same scales
as the exact sampler's, which is slower.

Errors are those of slopes, against the least-squares line of perfectly linked rows. Each is divided by the root mean square error of the
estimate that has no privacy (Lahiri and Larsen's; least squares where links are exact), and slopes are pooled. Ratios are root mean square
errors, now / then, with 95 % intervals (runs bootstrapped, paired). Lengths are medians of the bounded intervals, relative to 2·1.96 standard
deviations of the estimate itself (from the median absolute deviation over the runs).
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

import situations
from sections import report_head, write_results
from situations import (
    ESTIMATE_ALONE,
    SITUATIONS,
    SURVEY_SITUATIONS,
    SYMMETRIC_ALONE,
    WITH_RANDOM,
    WITHOUT_RANDOM,
    Situation,
)

Floats = NDArray[np.float64]

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("households, 4x", "d = 20, exact")
CHUNK = 25  # runs of one process
BOOTSTRAPS = 1000
MUCH = 40.0  # what the control multiplies noise by

MEDIAN_RATIO = 0.45
MOST_RATIO = 1.05
MOST_FOR_WIDTH = 1.25
MOST_OF_NOT_PRIVATE = 1.25
MOST_FOR_A_GROUP = 1.05


# --- one version's runs, in a process of its own -------------------------------------------------------


def fit_runs(
    situation: Situation, first: int, count: int, noisier: float, earlier: bool = False
) -> list[dict[str, Any]]:
    """Fit runs with the version of the library that this process has; `noisier` multiplies all noise, for the control. An `earlier` one gets no new settings."""
    import dplinked as dpl
    from dplinked.privacy import noise

    runs = []
    for seed in range(first, first + count):
        drawn, rng = situations.draw(situation, seed), np.random.default_rng([seed, 7])
        noise.add_gaussian = lambda values, scale, rng=rng: (
            np.asarray(values, float) + noisier * np.asarray(scale) * rng.normal(size=np.shape(values))
        )
        started = time.perf_counter()
        release = dpl.fit(drawn.data, **drawn.arguments, **({} if earlier else situation.new))
        ends = release.conf_int() if drawn.arguments.get("intervals", True) else {}
        slopes = [name for name in release.coef if name != "Intercept"]
        runs.append(
            {
                "seconds": time.perf_counter() - started,
                "checksum": drawn.checksum,
                "not_private": drawn.not_private.tolist(),
                "estimate": [release.coef[name] for name in slopes],
                "ends": [ends.get(name, (math.nan, math.nan)) for name in slopes],
            }
        )
    return runs


def work(job: dict[str, Any]) -> None:
    """Do a job that the parent process gave, and print its runs."""
    import dplinked as dpl

    if job["survey"]:
        situations.add_survey(Path(job["survey"]))
    situation = next(s for s in [*SITUATIONS, *SURVEY_SITUATIONS] if s.name == job["situation"])
    runs = fit_runs(situation, job["first"], job["count"], job["noisier"], job["earlier"])
    print(json.dumps({"version": dpl.__version__, "source": dpl.__file__, "runs": runs}))


@dataclass(frozen=True)
class Version:
    """A version of the library: its sources, what its noise is multiplied by, and whether it is the earlier one."""

    source: Path
    noisier: float = 1.0
    earlier: bool = False

    def run(self, situation: Situation, first: int, count: int, survey: Path | None) -> dict[str, Any]:
        """Runs of one situation, by a process that finds this version's sources."""
        job = {
            "situation": situation.name,
            "first": first,
            "count": count,
            "survey": str(survey) if survey else None,
            "noisier": self.noisier,
            "earlier": self.earlier,
        }
        done = subprocess.run(
            [sys.executable, __file__, "--job", json.dumps(job)],
            env={**os.environ, "PYTHONPATH": str(self.source), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{situation.name} failed with the sources in {self.source}:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        if not Path(found["source"]).is_relative_to(self.source):
            raise SystemExit("A process used another version of the library than it was given.")
        return found


@contextmanager
def sources_of(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a temporary folder."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(
            f"The commit {commit} is not in this repository's history: fetch all of it (git fetch --unshallow), or name another: --against COMMIT."
        )
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder).resolve() / "src"


# --- both versions, compared ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """One version's runs of a situation: estimates (runs×d), ends of intervals (runs×d each), seconds (runs)."""

    estimate: Floats
    low: Floats
    high: Floats
    seconds: Floats

    @classmethod
    def of(cls, runs: Sequence[dict[str, Any]]) -> Runs:
        ends = np.array([run["ends"] for run in runs], float)
        return cls(
            np.array([run["estimate"] for run in runs]),
            ends[..., 0],
            ends[..., 1],
            np.array([run["seconds"] for run in runs]),
        )

    def coverage(self, truth: Floats) -> float:
        """Share of intervals that hold the true slope; NaN without intervals."""
        if np.isnan(self.low).all():
            return math.nan
        return float(((self.low <= truth) & (truth <= self.high)).mean())

    @property
    def unbounded(self) -> float:
        return math.nan if np.isnan(self.low).all() else float((~np.isfinite(self.high - self.low)).mean())

    @property
    def length(self) -> float:
        """Median length of bounded intervals relative to that of an interval from the true spread."""
        middle = np.median(self.estimate, axis=0)
        spread = 1.4826 * np.median(np.abs(self.estimate - middle), axis=0)
        lengths = (self.high - self.low) / (2.0 * 1.96 * spread)
        bounded = lengths[np.isfinite(lengths)]
        return float(np.median(bounded)) if bounded.size else math.nan


@dataclass(frozen=True)
class Compared:
    """A situation with its true slopes (d), the estimates that have no privacy (runs×d), and the runs of both versions."""

    situation: Situation
    truth: Floats
    not_private: Floats
    then: Runs
    now: Runs

    @property
    def scale(self) -> Floats:
        """Root mean square errors of slopes without privacy (d)."""
        return np.sqrt(((self.not_private - self.truth) ** 2).mean(axis=0))

    def errors(self, estimate: Floats) -> Floats:
        """Errors of slopes in units of those without privacy (runs×d)."""
        return (estimate - self.truth) / self.scale

    def ratio(self) -> tuple[float, float, float]:
        """Root mean square error now / then, with its 95 % interval."""
        return ratio_of_errors(self.errors(self.now.estimate), self.errors(self.then.estimate))

    def row(self) -> dict[str, Any]:
        """All that is reported about the situation."""
        ratio, low, high = self.ratio()
        row: dict[str, Any] = {
            "cell": self.situation.name,
            "n": self.situation.n,
            "d": self.truth.size,
            "epsilon": self.situation.epsilon,
            "runs": len(self.now.estimate),
            "ratio": ratio,
            "ratio low": low,
            "ratio high": high,
        }
        for name, runs in (("then", self.then), ("now", self.now)):
            errors = self.errors(runs.estimate)
            row |= {
                f"rmse {name}": root_mean_square(errors),
                f"median error {name}": float(np.median(np.abs(errors))),
                f"coverage {name}": runs.coverage(self.truth),
                f"unbounded {name}": runs.unbounded,
                f"length {name}": runs.length,
                f"seconds {name}": float(np.median(runs.seconds)),
            }
        return row


def root_mean_square(errors: Floats) -> float:
    return float(np.sqrt((errors**2).mean()))


def ratio_of_errors(above: Floats, below: Floats) -> tuple[float, float, float]:
    """Ratio of root mean square errors (runs×d each) with a 95 % interval; runs are bootstrapped in pairs."""
    chosen = np.random.default_rng(1).integers(len(above), size=(BOOTSTRAPS, len(above)))
    squares = [(errors**2).mean(axis=1) for errors in (above, below)]
    ratios = np.sqrt(squares[0][chosen].mean(axis=1) / squares[1][chosen].mean(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return root_mean_square(above) / root_mean_square(below), float(low), float(high)


def compare(
    cells: Sequence[Situation], runs: int, then: Version, now: Version, survey: Path | None, jobs: int
) -> tuple[list[Compared], list[str]]:
    """Run all cells with both versions, some processes at a time; also the versions' names."""
    chunks = [(first, min(CHUNK, runs - first)) for first in range(0, runs, CHUNK)]
    tasks = [(cell, version, chunk) for cell in cells for chunk in chunks for version in (then, now)]
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda task: task[1].run(task[0], *task[2], survey), tasks)
        done = list(track(found, "Runs", total=len(tasks)))
    compared, each = [], 2 * len(chunks)
    for k, cell in enumerate(cells):
        parts = done[k * each : (k + 1) * each]
        both = [[run for part in parts[side::2] for run in part["runs"]] for side in (0, 1)]
        if [run["checksum"] for run in both[0]] != [run["checksum"] for run in both[1]]:
            raise SystemExit(f"{cell.name}: the versions drew different rows.")
        truth = situations.true_slopes(cell.law)
        not_private = np.array([run["not_private"] for run in both[0]])
        compared.append(Compared(cell, truth, not_private, Runs.of(both[0]), Runs.of(both[1])))
    return compared, [done[side]["version"] for side in (0, 1)]


# --- judgement -----------------------------------------------------------------------------------------


def judge(cells: Sequence[Compared]) -> tuple[list[str], list[str]]:
    """What was found about each criterion, and the criteria that were missed. Criteria whose cells were not run are left out."""
    by_name = {cell.situation.name: cell for cell in cells}
    compared = [cell for cell in cells if cell.situation.name != ESTIMATE_ALONE and not cell.situation.new]
    found, missed = [], []

    def limit(what: str, ratio: tuple[float, float, float], most: float) -> None:
        value, low, high = ratio
        line = f"{what}: {value:.2f} ({low:.2f}–{high:.2f}), at most {most:g} allowed"
        found.append(line)
        if value > most:
            missed.append(line)

    if compared:
        ratios = [cell.ratio() for cell in compared]
        median = float(np.median([ratio[0] for ratio in ratios]))
        line = f"median ratio over {len(ratios)} cells: {median:.2f}, at most {MEDIAN_RATIO:g} allowed"
        found.append(line)
        if median > MEDIAN_RATIO:
            missed.append(line)
        worse = [(cell, ratio) for cell, ratio in zip(compared, ratios, strict=True) if ratio[1] > MOST_RATIO]
        found.append(f"cells above {MOST_RATIO:g} beyond their interval: {len(worse)}")
        missed += [
            f"worse than before: {cell.situation.name}, {ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})"
            for cell, ratio in worse
        ]
    for kind in ("households", "survey"):
        if (wide := by_name.get(f"{kind}, 4x")) and (tight := by_name.get(f"{kind}, 1x")):
            errors = [cell.errors(cell.now.estimate) for cell in (wide, tight)]
            limit(
                f"error of the {kind} under bounds four times as wide, to tight ones",
                ratio_of_errors(*errors),
                MOST_FOR_WIDTH,
            )
    if (with_it := by_name.get(WITH_RANDOM)) and (without := by_name.get(WITHOUT_RANDOM)):
        errors = [(cell.now.estimate - cell.truth) / without.scale for cell in (with_it, without)]
        limit("error with a nearly random state, to that without it", ratio_of_errors(*errors), MOST_FOR_A_GROUP)
    for name in (ESTIMATE_ALONE, SYMMETRIC_ALONE):
        if alone := by_name.get(name):
            errors = ratio_of_errors(*(alone.errors(estimate) for estimate in (alone.now.estimate, alone.not_private)))
            limit(f"{name}, n = 10,000, σ = 1: error to that without privacy", errors, MOST_OF_NOT_PRIVATE)
    return found, missed


def write_report(
    rows: Sequence[dict[str, Any]], found: Sequence[str], missed: Sequence[str], notes: Sequence[str]
) -> str:
    """The readable report."""

    def pair(row: dict[str, Any], what: str, form: str) -> str:
        return " / ".join(
            "–" if math.isnan(row[f"{what} {of}"]) else format(row[f"{what} {of}"], form) for of in ("then", "now")
        )

    lines = [
        *report_head("Sharper at the same privacy", __doc__, notes),
        "Pairs are then / now; errors are multiples of the one without privacy.",
        "",
        "| cell | n | d | ε | RMSE | median error | ratio of RMSE | coverage of 95 % | unbounded | length | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row["cell"],
            f"{row['n']:,}",
            str(row["d"]),
            f"{row['epsilon']:g}",
            pair(row, "rmse", ".3g"),
            pair(row, "median error", ".3g"),
            f"{row['ratio']:.2f} ({row['ratio low']:.2f}–{row['ratio high']:.2f})",
            pair(row, "coverage", ".3f"),
            pair(row, "unbounded", ".3f"),
            pair(row, "length", ".2f"),
            pair(row, "seconds", ".3f"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *[f"- {line}" for line in found], ""]
    return "\n".join([*lines, *([f"MISSED: {line}" for line in missed] or ["All criteria met."])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--cells", nargs="*", help="names of cells; all by default")
    parser.add_argument("--survey", type=Path, help="CSV file with the columns income and consumption")
    parser.add_argument("--against", default="a319e66", help="commit of the earlier version; 0.1.0 by default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two cells, six runs")
    parser.add_argument("--control", action="store_true", help="forty times the noise now: must be found worse")
    parser.add_argument("--out", type=Path, help="folder for sharper.md and sharper.csv")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        work(options.job)
        return 0
    survey = options.survey.resolve() if options.survey else None
    if survey:
        situations.add_survey(survey)
    cells = [*SITUATIONS, *(SURVEY_SITUATIONS if survey else [])]
    names = QUICK if options.quick else options.cells
    if unknown := set(names or ()) - {cell.name for cell in cells}:
        raise SystemExit(f"There are no cells {sorted(unknown)}. Cells: {[cell.name for cell in cells]}.")
    cells = [cell for cell in cells if not names or cell.name in names]
    runs, started = 6 if options.quick else options.runs, time.perf_counter()
    with sources_of(options.against) as earlier:
        then, now = Version(earlier, earlier=True), Version(ROOT / "src", MUCH if options.control else 1.0)
        compared, versions = compare(cells, runs, then, now, survey, options.jobs)
    found, missed = judge(compared)
    notes = [
        f"Then is {versions[0]} (commit {options.against}), now {versions[1]}; {runs} runs a cell, {time.perf_counter() - started:.0f} s in all.",
        "The earlier version runs without its compiled kernel, so its seconds say little.",
    ]
    if survey is None:
        notes.append("The survey's cells were left out: give its file with --survey.")
    rows = [cell.row() for cell in compared]
    report = write_report(rows, found, missed, notes)
    print(report)
    if options.out:
        write_results(options.out, "sharper", report, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
