"""Engines, measured: Parquet against decoding alone, blocks of all kinds, wide tables, what users would write, Spark, DuckDB, events and counts, the command line.

    python benchmarks/engines.py all                     # 100 million rows, some 8 GB of files
    python benchmarks/engines.py all --rows 10000000     # at most ten million
    python benchmarks/engines.py parquet wide            # some sections
    python benchmarks/engines.py all --rows 5000         # small, for CI: times are shown but not judged

Each section replaces its part of benchmarks/results/engines.md (with fewer --rows only where --out is given). Exits with 1
when a criterion is missed. Ratios are taken side by side, interleaved, in one run: the competitors of a round run one after
the other, and the ratio's median over rounds counts. Files are made in --folder and kept there; without it in a temporary
one that is removed.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import importlib.util
import inspect
import json
import math
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import dplinked as dpl
from dplinked.linkage import ELE, Matching, PrivacyUnit
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums import files
from dplinked.sums.engine import Source, open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.numpy.reduce import WORKERS
from dplinked.sums.types import PrivateSums, ResidualClip
from machine import describe_machine
from sections import Report, write_section

Floats = NDArray[np.float64]

TITLES = {
    "contract": "All engines give the same sums",
    "parquet": "Parquet against decoding alone",
    "fit": "Whole default fits against decoding alone",
    "weights": "Weighted fits against unweighted ones",
    "blocks": "Blocks of all kinds",
    "wide": "Twenty columns",
    "matching": "An explicit matching matrix",
    "rivals": "Against what users would write",
    "spark": "Spark against its own group-by",
    "sql": "Passes of a default fit by DuckDB against its own group-by",
    "curves": "Steps of events and counts against passes of a line",
    "cli": "The command line, from file to release",
}
RESULTS = Path(__file__).parent / "results" / "engines.md"
PACKAGES = ("dplinked", "numpy", "pyarrow", "duckdb", "pandas", "scikit-learn", "statsmodels", "pyspark")

SMALL, MIDDLE, LARGE = 1_000_000, 10_000_000, 100_000_000
FEW_ROWS = 500_000  # below, fixed costs rule: times are shown but not judged
COLUMNS, WIDE = 5, 20
BLOCK, LARGE_BLOCKS = 25, 10
WARM_UP = 3  # rounds of Spark
ACCURACY, SLOPE = 0.9, 0.2
GROUP = 1 << 20  # rows of a row group: pyarrow's default

# What must hold.
MOST_DEVIATION = 1e-10  # between engines, of any entry
MOST_TIME = {MIDDLE: 4.0, LARGE: 4.9}  # of decoding alone; a size is judged by the next larger one's
GOALS = {MIDDLE: 3.0, LARGE: 4.0}
MOST_GROWTH = 1.2  # of the cost per row, from the smallest file to the largest
MOST_MEMORY = 1.2  # GB, of the whole process
MOST_TIME_FIT, GOAL_FIT, MOST_GROWTH_FIT, MOST_MEMORY_FIT = 12.0, 8.0, 1.3, 1.5
MOST_TIME_LARGE_BLOCKS, MOST_TIME_WIDE, MOST_TIME_SPARK = 2.5, 4.0, 3.0
MOST_TIME_STAGE, MOST_TIME_PASS = (
    15.0,
    3.0,
)  # of DuckDB's own group-by: steps of the second stage together, any other pass
MOST_TIME_STEP = 1.5  # of the pass that sums a line, in which responses and links are summed too
MOST_SLOPE_ERROR = 1e-2
MOST_TIME_WEIGHTED = 1.2  # of an unweighted fit


@dataclass(frozen=True)
class Run:
    """What was asked for: the largest number of rows, rounds, where files are, where progress is shown, and whether times of few rows are judged too."""

    rows: int
    rounds: int
    folder: Path
    console: Console
    strict: bool = False

    @property
    def judged(self) -> bool:
        """Whether times are judged: in small files fixed costs rule."""
        return self.strict or self.rows >= FEW_ROWS

    def at_most(self, rows: int) -> int:
        return min(rows, self.rows)

    def file(self, rows: int, columns: int = COLUMNS, keys: Sequence[str] = ("block",)) -> Path:
        return make_file(self.folder, self.at_most(rows), columns, keys, self.console)


def timed(action: Callable[[], Any], repeats: int = 1) -> float:
    """Mean seconds of some calls in a row, garbage collected beforehand."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    return (time.perf_counter() - start) / repeats


# --- files and studies ------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _order(rows: int) -> NDArray[np.int64]:
    return np.random.default_rng(2).permutation(rows)


def _texts(blocks: NDArray[np.int64]) -> Any:
    return pc.binary_join_element_wise("b", pc.utf8_lpad(pc.cast(pa.array(blocks), pa.string()), 8, "0"), "")


# Keys of the rows numbered i, in a file of so many rows.
KEYS: dict[str, Callable[[NDArray[np.int64], int], Any]] = {
    "block": lambda i, rows: i // BLOCK,
    "large": lambda i, rows: i * LARGE_BLOCKS // rows,
    "pair": lambda i, rows: i // 2,
    "one": lambda i, rows: np.zeros_like(i),
    "shuffled": lambda i, rows: _order(rows)[i] // BLOCK,
    "text": lambda i, rows: _texts(i // BLOCK),
    "apart": lambda i, rows: i // BLOCK * 10**9,
    "id": lambda i, rows: i,
}
OUTCOMES = "outcomes"  # in the place of a key: the columns event, visits and years
WEIGHTS = "weights"  # in the place of a key: the columns weight and telling
LEVEL = -0.5  # of the line that events and rates follow


def make_file(folder: Path, rows: int, columns: int, keys: Sequence[str], console: Console) -> Path:
    """A Parquet file of x1 …, z and keys, by row groups, with pyarrow's defaults; kept where it is there already.

    Small files get a row group a thread, so that all sizes are read by all threads.
    """
    path = folder / f"{rows}-rows-{columns}-columns-{'-'.join(keys)}.parquet"
    if path.exists():
        return path
    group, part = min(GROUP, -(-rows // WORKERS)), path.with_suffix(".part")
    starts = range(0, rows, group)
    first = _make_rows(0, min(10, rows), rows, columns, keys)
    with pq.ParquetWriter(part, first.schema) as writer:
        for start in track(starts, f"Writing {rows:,} rows", console=console):
            writer.write_table(_make_rows(start, min(start + group, rows), rows, columns, keys), row_group_size=group)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    return part.rename(path)


def _make_rows(start: int, stop: int, rows: int, columns: int, keys: Sequence[str]) -> pa.Table:
    """Uniform x; z of slope .2 each; in every tenth block z is moved on by some rows, so that nine links in ten are right."""
    rng, i = np.random.default_rng([1, start]), np.arange(start, stop)
    data: dict[str, Any] = {f"x{k + 1}": rng.uniform(-1.0, 1.0, i.size) for k in range(columns)}
    error = 0.3 * rng.standard_normal(i.size)
    z = np.clip(sum((SLOPE * x for x in data.values()), error.copy()), -2.0, 2.0)
    first = -start % BLOCK  # a block that two row groups share keeps its links: one in some 40,000
    last = first + (i.size - first) // BLOCK * BLOCK
    moved = np.where(rng.random((last - first) // BLOCK) < ACCURACY, 0, rng.integers(1, BLOCK, (last - first) // BLOCK))
    source = i - start
    source[first:last] = (
        source[first:last].reshape(-1, BLOCK)[:, :1] + (np.arange(BLOCK) + moved[:, None]) % BLOCK
    ).ravel()
    more = _make_outcomes(rng, data, source) if OUTCOMES in keys else {}
    more |= _make_weights(data["x1"], error, start) if WEIGHTS in keys else {}
    return pa.table({**data, "z": z[source], **more, **{key: KEYS[key](i, rows) for key in keys if key in KEYS}})


def _make_weights(x: Floats, error: Floats, start: int) -> dict[str, Any]:
    """Weights from .5 to 1.5 that tell nothing, as random as the regressors, so that Parquet stores them alike; and `telling` ones, with which the slope of x1 is another."""
    return {
        "weight": np.random.default_rng([2, start]).uniform(0.5, 1.5, x.size),
        "telling": 0.5 + (error * x > 0.0),
    }


def _make_outcomes(rng: np.random.Generator, data: dict[str, Any], source: NDArray[np.int64]) -> dict[str, Any]:
    """Events and counts of slope .2 each, by a logistic and a Poisson model, linked as z is; and years, the exposure of counts, which rows have themselves."""
    line, years = LEVEL + SLOPE * sum(data.values()), rng.uniform(0.5, 4.0, source.size)
    event, visits = rng.random(source.size) < 1.0 / (1.0 + np.exp(-line)), rng.poisson(years * np.exp(line))
    return {"event": event[source].astype(np.int8), "visits": visits[source].astype(np.int8), "years": years}


def declare_study(columns: int = COLUMNS, key: str = "block", typical: bool = False) -> Study:
    """The study that the passes serve: links right with probability .9 within blocks."""
    names = [f"x{k + 1}" for k in range(columns)]
    return Study(
        formula=f"z ~ {' + '.join(names)}",
        bounds={**dict.fromkeys(names, (-1.0, 1.0)), "z": (-2.0, 2.0)},
        epsilon=1.0,
        delta=1e-9,
        linkage=ELE(ACCURACY, key),
        typical=dict.fromkeys(names, (-0.7, 0.7)) if typical else {},
    )


def read_columns(study: Study) -> list[str]:
    """Columns that the pass reads."""
    return [*study.prepare()[0].variables, str(study.linkage.block)]


def sum_source(source: Source, study: Study, design: Design) -> PrivateSums:
    """From an open source to private sums, as `fit_study` goes, noise and solving left out (milliseconds)."""
    study.check_count(source.count)
    source.require(design.variables, numeric=list(design.bounds))
    return source.open(design, study.linkage, study.unit).instrument_sums()


def our_pass(path: Path, study: Study) -> PrivateSums:
    """From a Parquet file to private sums: a pass over the keys, then one over the data."""
    design, _ = study.prepare()
    return sum_source(open_source(path, [*design.variables, str(study.linkage.block)]), study, design)


@contextmanager
def streaming() -> Iterator[None]:
    """Read small files by row groups too."""
    kept, files.IN_MEMORY = files.IN_MEMORY, 0
    try:
        yield
    finally:
        files.IN_MEMORY = kept


def duckdb_pass(path: Path, study: Study) -> PrivateSums:
    """The same, by DuckDB."""
    from dplinked.sums.sql import duckdb

    return sum_source(duckdb.open_files([path], "parquet"), study, study.prepare()[0])


def duckdb_relation(path: Path) -> Any:
    """A file as a relation of a connection of its own."""
    import duckdb

    return duckdb.connect().read_parquet(str(path))


def decode(path: Path, columns: Sequence[str]) -> None:
    """Decode columns alone with as many threads as our pass has, a row group at a time, and drop them."""
    metadata = pq.read_metadata(path)

    def read(group: int) -> None:
        with pq.ParquetFile(path, metadata=metadata, pre_buffer=False, buffer_size=1 << 20) as file:
            file.read_row_group(group, columns=list(columns), use_threads=False)

    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        list(pool.map(read, range(metadata.num_row_groups)))


# --- which engines there are ------------------------------------------------------------------------


def missing_duckdb() -> str | None:
    """Why the DuckDB engine cannot be measured, if it cannot."""
    return "DuckDB is not installed" if importlib.util.find_spec("duckdb") is None else None


def missing_spark() -> str | None:
    """Why the Spark engine cannot be measured, if it cannot."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "Spark needs Java 17, which is not installed"
    return None


def start_spark() -> Any:
    """A local session with two threads."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    }  # fmt: skip
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


# --- fresh processes --------------------------------------------------------------------------------


def status_gb(name: str, process: int | str = "self") -> float:
    """A field of a process's status in GB; not a number where the system does not tell."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024 / 1e9
    except OSError:
        pass
    return math.nan


def read_worker(worker: str, file: Path, small: Path, rounds: int = 1) -> Iterator[dict[str, Any]]:
    """What a worker in a fresh process prints, line by line."""
    if worker in ALONE:
        command = [sys.executable, "-c", _program(ALONE[worker]), str(file), str(small)]
    else:
        command = [sys.executable, __file__, "all", "--rounds", str(rounds), "--worker", worker, str(file), str(small)]
    with tempfile.TemporaryFile("w+") as faults:
        quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=faults, text=True, env=quiet)
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
        if process.wait():
            faults.seek(0)
            raise RuntimeError(f"worker {worker} failed: {faults.read()[-3000:]}")


def _program(rival: Callable[[Path], Any]) -> str:
    """A program that runs a rival and imports nothing else: memory that this file takes is not the rival's."""
    first = ["from __future__ import annotations", "import json, math, sys, time", "from pathlib import Path"]
    parts = [inspect.getsource(part) for part in (status_gb, print_costs, rival)]
    return "\n".join([*first, *parts, f"print_costs({rival.__name__}, *map(Path, sys.argv[1:]))"])


def print_costs(fit: Callable[[Path], Any], file: Path, small: Path) -> None:
    """Time and memory of a fit in this process, as JSON; a small file comes first, so that imports are nobody's."""
    fit(small)
    base, start, begun = status_gb("VmRSS"), time.perf_counter(), time.process_time()
    slopes = fit(file)
    seconds, cpu = time.perf_counter() - start, time.process_time() - begun
    print(
        json.dumps({"seconds": seconds, "cpu": cpu, "base": base, "peak": status_gb("VmHWM"), "slopes": list(slopes)})
    )


def run_worker(worker: str, file: Path, small: Path, rounds: int) -> None:
    """Work in this process."""
    if worker == "spark":
        for taken in time_spark(file, rounds):
            print(json.dumps(taken), flush=True)
    elif worker == "spark sums":
        print(json.dumps(spark_sums(file)))
    else:
        with streaming() if worker in (STREAMED, *FITS) else nullcontext():
            print_costs(OURS[worker], file, small)


def small_file(run: Run) -> Path:
    """A file for workers to warm up with."""
    return make_file(run.folder, 1000, COLUMNS, ("block",), run.console)


# --- the contract -----------------------------------------------------------------------------------


def measure_contract(run: Run) -> Report:
    report, path = Report(), run.file(SMALL)
    studies = [declare_study(typical=typical) for typical in (False, True)]
    references = [sum_source(open_source(pq.read_table(path)), study, study.prepare()[0]) for study in studies]
    with streaming():
        found = {"Parquet": [our_pass(path, study) for study in studies]}
    skipped = []
    if reason := missing_duckdb():
        skipped.append(f"DuckDB ({reason})")
    else:
        found["DuckDB"] = [duckdb_pass(path, study) for study in studies]
        with adding(BY_SQL):
            found["DuckDB, by SQL"] = [duckdb_pass(path, study) for study in studies]
    if reason := missing_spark():
        skipped.append(f"Spark ({reason})")
    else:
        with run.console.status("Spark …"):
            (both,) = read_worker("spark sums", path, small_file(run))
        found["Spark"] = [
            PrivateSums(np.array(one["matrix"]), np.array(one["vector"]), one["count"]) for one in both["sums"]
        ]
    rows, largest = [], 0.0
    for name, sums in found.items():
        each = [_deviations(one, reference) for one, reference in zip(sums, references, strict=True)]
        rows.append([name, *(f"{entry:.1e} / {scaled:.1e}" for entry, scaled in each)])
        largest = max(largest, *(scaled for _, scaled in each))
    report.add(
        f"{run.at_most(SMALL):,} rows. Deviation of matrix and vector from those of the same rows in memory, the largest over all entries: "
        "relative to the entry itself (some are sums of a million numbers that cancel) / relative to the "
        f"largest entry of its row, which is judged.{' Skipped: ' + ', '.join(skipped) + '.' if skipped else ''}"
    )
    report.table(["engine", "plain", "`typical` declared"], rows)
    report.add(f"Largest relative deviation: {largest:.1e} (at most {MOST_DEVIATION:g} allowed).")
    report.require(largest <= MOST_DEVIATION, f"sums deviate by {largest:.4g}, at most {MOST_DEVIATION:g} allowed")
    return report


def _deviations(sums: PrivateSums, reference: PrivateSums) -> tuple[float, float]:
    """Largest deviation of an entry relative to itself, and to the largest of its row; infinite where one is not a number."""
    if sums.count != reference.count:
        return math.inf, math.inf
    found, expected = (np.column_stack([one.matrix, one.vector]) for one in (sums, reference))
    gap = np.where(np.isfinite(found), np.abs(found - expected), np.inf)
    scales = (np.maximum(np.abs(expected), np.finfo(float).tiny), np.abs(expected).max(axis=1, keepdims=True))
    return tuple(float((gap / scale).max()) for scale in scales)


def spark_sums(path: Path) -> dict[str, Any]:
    """Spark's sums, for the contract."""
    from dplinked.sums.sql import spark

    session, sums = start_spark(), []
    for typical in (False, True):
        study = declare_study(typical=typical)
        found = sum_source(spark.open_frame(session.read.parquet(str(path))), study, study.prepare()[0])
        sums.append({"matrix": found.matrix.tolist(), "vector": found.vector.tolist(), "count": found.count})
    session.stop()
    return {"sums": sums}


# --- Parquet against decoding alone -----------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A file and the study that reads it."""

    name: str
    path: Path
    study: Study
    repeats: int = 1  # in a row, a few hundredths of a second being too little to time


@dataclass(frozen=True)
class Times:
    """Seconds of decoding and of our pass, side by side."""

    decoding: Floats
    ours: Floats

    @property
    def ratio(self) -> float:
        return float(np.median(self.ours / self.decoding))

    def describe(self) -> list[str]:
        ratios = self.ours / self.decoding
        return [
            f"{np.median(self.decoding):.2f}",
            f"{np.median(self.ours):.2f}",
            f"{self.ratio:.2f} ({ratios.min():.2f}–{ratios.max():.2f})",
        ]


def race(cases: Sequence[Case], run: Run) -> dict[str, Times]:
    """Time decoding and our pass in turn, all cases in every round; files are read once beforehand."""
    taken: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    columns = {case.name: read_columns(case.study) for case in cases}
    with streaming():
        for case in track(cases, "Warming up", console=run.console):
            decode(case.path, columns[case.name])
        our_pass(cases[0].path, cases[0].study)
        jobs = [case for _ in range(run.rounds) for case in cases]
        for case in track(jobs, "Our pass against decoding", console=run.console):
            decoding = timed(lambda: decode(case.path, columns[case.name]), case.repeats)  # noqa: B023
            ours = timed(lambda: our_pass(case.path, case.study), case.repeats)  # noqa: B023
            taken[case.name].append((decoding, ours))
    return {name: Times(*np.array(pairs).T) for name, pairs in taken.items()}


def measure_parquet(run: Run) -> Report:
    report, study, small = Report(), declare_study(), small_file(run)
    sizes = [*(size for size in (SMALL, MIDDLE, LARGE) if size < run.rows), run.at_most(LARGE)]
    cases = [Case(f"{size:,}", run.file(size), study, max(1, min(10, MIDDLE // size))) for size in sizes]
    times = race(cases, run)
    rows, per_row = [], {}
    for size, case in zip(sizes, cases, strict=True):
        found, key = times[case.name], MIDDLE if size <= MIDDLE else LARGE
        with run.console.status(f"Memory at {size:,} rows …"):
            (memory,) = read_worker(STREAMED, case.path, small)
        costs = [np.median(seconds) / size * 1e9 for seconds in (found.decoding, found.ours)]
        per_row[size] = float(costs[1])
        rows.append([
            case.name, *found.describe(), f"{MOST_TIME[key]:g} (goal {GOALS[key]:g})", *(f"{cost:.1f}" for cost in costs),
            f"{memory['base']:.2f}", f"{memory['peak']:.2f}",
        ])  # fmt: skip
        if size >= FEW_ROWS:
            report.require(
                found.ratio <= MOST_TIME[key],
                f"{case.name} rows take {found.ratio:.2f} times decoding, at most {MOST_TIME[key]:g} allowed",
            )
        report.require(
            not memory["peak"] > MOST_MEMORY,  # not a number where the system does not tell
            f"{case.name} rows take {memory['peak']:.2f} GB, at most {MOST_MEMORY:g} allowed",
        )
    report.add(
        f"From a Parquet file (5 columns, response and keys of blocks of {BLOCK}; row groups of {GROUP:,} rows, small files one a thread) to private sums, two passes, "
        f"against decoding the same seven columns once and dropping them, both with {WORKERS} threads. Medians over {run.rounds} "
        "interleaved rounds of all sizes (small files ten times in a row, their mean); ratio = median of (ours / decoding). Memory is that of a "
        "fresh process, imports and all."
    )
    report.table(
        [
            "rows", "decoding, s", "ours, s", "ratio", "allowed", "decoding, ns a row", "ours, ns a row", "GB after imports", "GB at most",
        ],
        rows,
    )  # fmt: skip
    if len(per_row) > 1:
        growth = max(per_row.values()) / min(per_row.values())
        report.add(
            f"Cost of a row in our pass, dearest size over cheapest: {growth:.2f} (at most {MOST_GROWTH:g} allowed). "
            f"At most {MOST_MEMORY:g} GB allowed."
        )
        if min(sizes) >= FEW_ROWS:
            report.require(
                growth <= MOST_GROWTH,
                f"cost per row differs by {growth:.2f} over sizes, at most {MOST_GROWTH:g} allowed",
            )
    return report


# --- whole fits -------------------------------------------------------------------------------------

FITS = {"one stage": 0.0, "two stages": 8e-6}  # half the width of the response's bounds: so much a row, but 2 at least


def declare_fit(name: str, path: Path) -> Study:
    """A study whose bounds are tight, so that one stage does, or so wide for its number of rows that a second one pays."""
    study, width = declare_study(), max(2.0, FITS[name] * pq.read_metadata(path).num_rows)
    return replace(study, bounds={**study.bounds, "z": (-width, width)})


def our_fit(name: str, opened: Callable[[Path], Any] = Path) -> Callable[[Path], Floats]:
    """Slopes of a default fit to a file, or to what it is opened as."""
    return lambda path: np.array(list(dpl.fit_study(declare_fit(name, path), opened(path)).coef.values())[1:])


@dataclass(frozen=True)
class FitTimes:
    """Rounds of one case: wall time and CPU time of decoding and of the whole fit, and each fit's passes with their seconds."""

    wall: Times
    cpu: Times
    passes: list[list[tuple[str, float]]]

    def tell_passes(self) -> str:
        """The passes of the first fit in their order, and what they take of decoding."""
        titles = [title for title, _ in self.passes[0]]
        alike = [
            found for found in self.passes if [title for title, _ in found] == titles
        ]  # noise may decide otherwise
        seconds = np.median([[taken for _, taken in found] for found in alike], axis=0) / np.median(self.wall.decoding)
        return ", ".join(f"{title.lower()} {share:.2f}" for title, share in zip(titles, seconds, strict=True))


def time_passes(study: Study, path: Path) -> list[tuple[str, float]]:
    """The passes of a default fit with their seconds; what comes after the last one counts as its own."""
    start, ends = time.perf_counter(), list[tuple[str, float]]()

    def note(title: str, done: int, parts: int) -> None:
        if done == parts:
            ends.append((title, time.perf_counter()))

    dpl.fit_study(study, path, progress=note)
    times = [start, *(end for _, end in ends[:-1]), time.perf_counter()]
    return list(zip([title for title, _ in ends], np.diff(times).tolist(), strict=True))


def race_fits(cases: Sequence[Case], run: Run) -> dict[str, FitTimes]:
    """Time decoding and whole fits in turn, all cases in every round; files are read once beforehand."""
    taken: dict[str, list[tuple[float, ...]]] = {case.name: [] for case in cases}
    passes: dict[str, list[list[tuple[str, float]]]] = {case.name: [] for case in cases}
    clocks = time.perf_counter, time.process_time
    with streaming():
        for case in track(cases, "Warming up", console=run.console):
            decode(case.path, read_columns(case.study))
        time_passes(cases[0].study, cases[0].path)
        for case in track(list(cases) * run.rounds, "Whole fits against decoding", console=run.console):
            gc.collect()
            start = [clock() for clock in clocks]
            decode(case.path, read_columns(case.study))
            middle = [clock() for clock in clocks]
            passes[case.name].append(time_passes(case.study, case.path))
            end = [clock() for clock in clocks]
            taken[case.name].append((*np.subtract(middle, start), *np.subtract(end, middle)))
    columns = {name: np.array(rounds).T for name, rounds in taken.items()}
    return {name: FitTimes(Times(*c[::2]), Times(*c[1::2]), passes[name]) for name, c in columns.items()}


def measure_fits(run: Run) -> Report:
    report, small = Report(), small_file(run)
    sizes = [*(size for size in (SMALL, MIDDLE, LARGE) if size < run.rows), run.at_most(LARGE)]
    rows, told = [], []
    named = {f"{way}, {size:,} rows": (way, size, run.file(size)) for way in FITS for size in sizes}
    times = race_fits([Case(name, path, declare_fit(way, path)) for name, (way, _, path) in named.items()], run)
    for name, (way, size, path) in named.items():
        found = times[name]
        with run.console.status(f"Memory: {name} …"):
            (memory,) = read_worker(way, path, small)
        ours = np.median(found.cpu.ours) / size * 1e9
        rows.append([
            name, *found.wall.describe(), f"{found.cpu.ratio:.2f}", f"{MOST_TIME_FIT:g} (goal {GOAL_FIT:g})", f"{ours:.1f}", f"{memory['peak']:.2f}",
        ])  # fmt: skip
        told.append(f"- {name}: {found.tell_passes()}")
        report.require(
            not memory["peak"] > MOST_MEMORY_FIT,  # not a number where the system does not tell
            f"{name} take {memory['peak']:.2f} GB, at most {MOST_MEMORY_FIT:g} allowed",
        )
        if size >= FEW_ROWS:
            ratio, staged = found.cpu.ratio, any(title == "Second stage" for title, _ in found.passes[0])
            report.require(ratio <= MOST_TIME_FIT, f"{name} take {ratio:.2f} times the CPU time of decoding")
            report.require(staged or way == "one stage", f"{name} do not take {way}")  # a second one may pay there too
    report.add(
        f"From a Parquet file as above to a release with intervals, ε = 1, noise and all, against decoding the same columns once, both with {WORKERS} "
        f"threads. Medians over {run.rounds} interleaved rounds of all cases; ratio = median of (ours / decoding), by wall time and by CPU time, which is judged since it does not count what else "
        "the machine does. One stage: the response within ±2. Two stages: within ±8 in a million rows, and in a larger file so much wider that a "
        "second stage pays. Memory is that of a fresh process, imports and all."
    )
    report.table(
        ["", "decoding, s", "ours, s", "ratio", "of CPU time", "allowed", "ours, ns of CPU a row", "GB at most"], rows
    )
    report.add("Passes in their order, in times of decoding:", "", *told)
    if len(sizes) > 1 and min(sizes) >= FEW_ROWS:
        for way in FITS:
            per_row = [np.median(times[name].cpu.ours) / size for name, (mine, size, _) in named.items() if mine == way]
            growth = max(per_row) / min(per_row)
            report.add(
                f"CPU time of a row, {way}, dearest size over cheapest: {growth:.2f} (at most {MOST_GROWTH_FIT:g} allowed)."
            )
            report.require(growth <= MOST_GROWTH_FIT, f"cost per row of {way} differs by {growth:.2f} over sizes")
    return report


# --- weights ----------------------------------------------------------------------------------------


def declare_weighted(path: Path) -> dict[str, Study]:
    """Fits of one step and of two, unweighted ones and weighted ones; `telling` weights take two where unweighted fits take one."""
    near = declare_fit("two stages", path)
    far = replace(near, bounds={name: (8.0 * low, 8.0 * high) for name, (low, high) in near.bounds.items()})
    found = {"one step": near, "two steps": far}
    for name, study in list(found.items()):
        found[f"{name}, weighted"] = _weigh(study, "weight")
    return found | {"one step, telling weights": _weigh(near, "telling")}


def _weigh(study: Study, name: str) -> Study:
    return replace(study, weights=name, bounds={**study.bounds, name: (0.0, 2.0)})


def measure_weights(run: Run) -> Report:
    """Weighted fits and unweighted ones of the same file in turn. What a pass costs is told apart from how many passes there are."""
    report, path = Report(), run.file(MIDDLE, keys=("block", WEIGHTS))
    studies = declare_weighted(path)
    taken = {name: list[Floats]() for name in studies}
    passes = {name: list[list[tuple[str, float]]]() for name in studies}
    with streaming():
        for study in studies.values():
            time_passes(study, path)  # to warm up
        for _ in track(range(run.rounds), "Weighted fits against unweighted ones", console=run.console):
            for name, study in studies.items():
                gc.collect()
                start = clock()
                passes[name].append(time_passes(study, path))
                taken[name].append(clock() - start)
    rows, ratios = [], {}
    for name in studies:
        (seconds, work), against = np.median(taken[name], axis=0), name.split(",")[0]
        wall, ratios[name] = np.median(np.array(taken[name]) / np.array(taken[against]), axis=0)
        listed = ", ".join(f"{title.lower()} {spent:.2f}" for title, spent in passes[name][0])
        told = ["", ""] if name == against else [f"{wall:.2f}", f"{ratios[name]:.2f}"]
        rows.append([name, f"{seconds:.2f}", f"{work:.2f}", *told, len(passes[name][0]), listed])
    report.add(
        f"{run.at_most(MIDDLE):,} rows, 5 columns, blocks of {BLOCK}, intervals, two stages. The second takes one step where residuals are hardly clipped, and two where columns may reach far out. Weights from .5 to 1.5 in "
        "a column of their own: random ones, which leave the line where it is, and telling ones, larger where the slope of one column is, so that a second step around the weighted line follows. "
        f"Medians over {run.rounds} interleaved rounds, by wall time and by CPU time, which is judged since it does not count what else the machine does. Passes with their seconds are those of the first round."
    )
    report.table(["", "seconds", "of CPU", "times unweighted", "of CPU", "passes", "which"], rows)
    report.add(f"At most {MOST_TIME_WEIGHTED:g} is allowed; telling weights are shown, and not judged.")
    for name in ("one step, weighted", "two steps, weighted") if run.judged else ():
        report.require(
            ratios[name] <= MOST_TIME_WEIGHTED,
            f"{name}: {ratios[name]:.2f} times the unweighted fit's CPU time, at most {MOST_TIME_WEIGHTED:g} allowed",
        )
    return report


# --- blocks and columns -----------------------------------------------------------------------------


def measure_blocks(run: Run) -> Report:
    report, path = Report(), run.file(MIDDLE, keys=list(KEYS))
    cases = [
        Case(f"{LARGE_BLOCKS} large blocks", path, declare_study(key="large")),
        Case(f"blocks of {BLOCK}, in order", path, declare_study()),
        Case("in order, `typical` declared", path, declare_study(typical=True)),
        Case("shuffled", path, declare_study(key="shuffled")),
        Case("text keys", path, declare_study(key="text")),
        Case("whole numbers far apart", path, declare_study(key="apart")),
    ]
    times = race(cases, run)
    rows = [[name, *found.describe(), ""] for name, found in times.items()]
    rows[0][-1] = f"{MOST_TIME_LARGE_BLOCKS:g}"
    report.add(
        f"{run.at_most(MIDDLE):,} rows, as above; text keys look like `b00000001`, numbers far apart are multiples of 10⁹. "
        f"Medians over {run.rounds} interleaved rounds. Only large blocks are judged, the others are shown."
    )
    report.table(["", "decoding, s", "ours, s", "ratio", "allowed"], rows)
    if run.rows >= FEW_ROWS:
        ratio = times[cases[0].name].ratio
        report.require(
            ratio <= MOST_TIME_LARGE_BLOCKS,
            f"large blocks take {ratio:.2f} times decoding, at most {MOST_TIME_LARGE_BLOCKS:g} allowed",
        )
    return report


def measure_wide(run: Run) -> Report:
    report = Report()
    case = Case(f"{WIDE} columns", run.file(MIDDLE, columns=WIDE), declare_study(WIDE))
    found = race([case], run)[case.name]
    report.add(f"{run.at_most(MIDDLE):,} rows, blocks of {BLOCK}. Medians over {run.rounds} interleaved rounds.")
    report.table(
        ["", "decoding, s", "ours, s", "ratio", "allowed"], [[case.name, *found.describe(), f"{MOST_TIME_WIDE:g}"]]
    )
    if run.rows >= FEW_ROWS:
        report.require(
            found.ratio <= MOST_TIME_WIDE,
            f"{WIDE} columns take {found.ratio:.2f} times decoding, at most {MOST_TIME_WIDE:g} allowed",
        )
    return report


# --- matching ---------------------------------------------------------------------------------------

CANDIDATES = ((0, 0.9), (1, 0.06), (7, 0.04))  # rows further on, and with what probability they are matched


def make_pairs(folder: Path, rows: int) -> Path:
    """Pairs of ids, a few a row; kept where they are there already."""
    path, ids = folder / f"{rows}-rows-pairs.parquet", np.arange(rows)
    if not path.exists():
        matches = np.concatenate([(ids + step) % rows for step, _ in CANDIDATES])
        probability = np.repeat([share for _, share in CANDIDATES], rows)
        pq.write_table(
            pa.table({"row": np.tile(ids, len(CANDIDATES)), "match": matches, "probability": probability}), path
        )
    return path


def measure_matching(run: Run) -> Report:
    report, path = Report(), run.file(MIDDLE, keys=("id",))
    pairs, unit = make_pairs(run.folder, run.at_most(MIDDLE)), PrivacyUnit(linkage_change=2.0, displaced_links=1)
    study = replace(declare_study(), linkage=Matching(pairs, id="id"), unit=unit)
    design, _ = study.prepare()
    openers: dict[str, Callable[[], Source]] = {"Parquet": lambda: open_source(path, [*design.variables, "id"])}
    if reason := missing_duckdb():
        report.add(f"DuckDB skipped: {reason}.")
    else:
        openers["DuckDB"] = lambda: open_source(dpl.Query(f"select * from '{path}'"))
    found, rows = {}, []
    for name, opened in openers.items():
        start = time.perf_counter()
        ready = opened().open(design, study.linkage, study.unit)
        middle = time.perf_counter()
        found[name] = ready.instrument_sums()
        rows.append([name, f"{middle - start:.1f}", f"{time.perf_counter() - middle:.1f}"])
        del ready
    report.add(
        f"{run.at_most(MIDDLE):,} rows, {len(CANDIDATES)} candidates each, pairs of whole-number ids in a Parquet file; once. Nothing is judged but "
        "that engines agree."
    )
    report.table(["engine", "pairs read, checked and joined, s", "sums, s"], rows)
    for name, sums in found.items():
        deviation = _deviations(sums, found["Parquet"])[1]
        report.require(
            deviation <= MOST_DEVIATION, f"{name} deviates by {deviation:.4g}, at most {MOST_DEVIATION:g} allowed"
        )
    return report


# --- what users would write -------------------------------------------------------------------------

NAMES = [f"x{k + 1}" for k in range(COLUMNS)]
SAME_SLOPES = 1e-9


def fit_sklearn(path: Path) -> Floats:
    """pandas and scikit-learn; wrong links are not corrected."""
    import pandas as pd
    from sklearn.linear_model import LinearRegression

    frame = pd.read_parquet(path, columns=["x1", "x2", "x3", "x4", "x5", "z"])
    return LinearRegression().fit(frame.iloc[:, :5], frame["z"]).coef_


def fit_statsmodels(path: Path) -> Floats:
    """pandas and statsmodels; wrong links are not corrected."""
    import pandas as pd
    import statsmodels.api as sm

    frame = pd.read_parquet(path, columns=["x1", "x2", "x3", "x4", "x5", "z"])
    return sm.OLS(frame["z"], sm.add_constant(frame.iloc[:, :5])).fit().params.to_numpy()[1:]


def sum_groups(path: Path) -> Floats:
    """The corrected sums by one group-by in DuckDB, d(d+1)/2 products a block; cells are not clipped."""
    import duckdb
    import numpy as np

    d = range(1, 6)
    upper = [(j, k) for j in d for k in range(j, 6)]
    sums = [f"sum(x{k}) as s{k}, sum(x{k} * z) as v{k}" for k in d]
    sums += [f"sum(x{j} * x{k}) as p{j}{k}" for j, k in upper]
    blocks = f"select block, count(*) as m, sum(z) as sz, {', '.join(sums)} from read_parquet('{path}') group by block"
    # Links are right with probability .9; all blocks have two rows or more.
    weighted = f"select *, 0.1e0 / (m - 1) as o, 0.9e0 - o as a from ({blocks})"
    totals = ["sum(m)", "sum(sz)", *(f"sum({name}{k})" for name in "sv" for k in d)]
    totals += [f"sum(a * p{j}{k} + o * s{j} * s{k})" for j, k in upper]
    found = duckdb.connect().execute(f"select {', '.join(totals)} from ({weighted})").fetchone()
    H, b = np.empty((6, 6)), [found[1], *found[7:12]]
    H[0] = H[:, 0] = [found[0], *found[2:7]]
    for (j, k), value in zip(upper, found[12:], strict=True):
        H[j, k] = H[k, j] = value
    return np.linalg.solve(H, b)[1:]


def our_slopes(summed: Callable[[Path, Study], PrivateSums]) -> Callable[[Path], Floats]:
    """Slopes from an engine's sums, without noise."""

    def solve(path: Path) -> Floats:
        study = declare_study()
        sums, (to_user, offset) = summed(path, study), study.prepare()[0].scaling.to_user()
        return (to_user @ np.linalg.solve(sums.matrix, sums.vector) + offset)[1:]

    return solve


ALONE: dict[str, Callable[[Path], Floats]] = {
    "pandas, scikit-learn": fit_sklearn,
    "pandas, statsmodels": fit_statsmodels,
    "DuckDB, group-by by hand": sum_groups,
}
STREAMED = "ours, Parquet, never whole"  # for the memory of section parquet
COPIED = "two stages, DuckDB"  # for time and memory of section sql
OURS = {
    "ours, DuckDB": our_slopes(duckdb_pass),
    "ours, Parquet": our_slopes(our_pass),
    STREAMED: our_slopes(our_pass),
    **{name: our_fit(name) for name in FITS},
    COPIED: our_fit("two stages", duckdb_relation),
}
CORRECTED = ("DuckDB, group-by by hand", "ours, DuckDB", "ours, Parquet")


def measure_rivals(run: Run) -> Report:
    report, path, small = Report(), run.file(MIDDLE), small_file(run)
    names = [name for name in (*ALONE, "ours, DuckDB", "ours, Parquet") if not ("DuckDB" in name and missing_duckdb())]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    rounds = min(3, run.rounds)
    for name in track(names * rounds, "Rivals", console=run.console):
        found[name] += read_worker(name, path, small)
    ours = found["ours, Parquet"]
    seconds = {name: np.array([each["seconds"] for each in taken]) for name, taken in found.items()}
    peak = {name: float(np.median([each["peak"] for each in taken])) for name, taken in found.items()}
    rows = []
    for name, taken in found.items():
        ratio = float(np.median(seconds[name] / seconds["ours, Parquet"]))
        rows.append([
            name, f"{np.median(seconds[name]):.2f}", f"{ratio:.2f}", f"{np.median([each['base'] for each in taken]):.2f}",
            f"{peak[name]:.2f}", f"{np.mean(taken[0]['slopes']):.4f}",
        ])  # fmt: skip
        if run.rows >= FEW_ROWS and name in ALONE:
            report.require(ratio > 1.0, f"{name} takes {ratio:.2f} times as long as our Parquet engine")
            report.require(
                not peak[name] <= peak["ours, Parquet"],
                f"{name} takes {peak[name]:.2f} GB, our Parquet engine {peak['ours, Parquet']:.2f}",
            )
        if name in CORRECTED:
            same = np.allclose(taken[0]["slopes"], ours[0]["slopes"], rtol=SAME_SLOPES, atol=0.0)
            report.require(same, f"{name} finds other slopes than our Parquet engine")
    report.add(
        f"The same file of {run.at_most(MIDDLE):,} rows, each in a fresh process, from file to slopes, imports left out of the time but not of "
        f"the memory; medians over {rounds} interleaved rounds. scikit-learn and statsmodels neither correct for wrong links (nine in ten are "
        f"right, and the slopes {SLOPE:g}) nor clip, which favours them; DuckDB by hand corrects. No noise anywhere. Our Parquet engine must be "
        "faster and smaller than all that is not ours, and whoever corrects must find the same slopes."
    )
    if reason := missing_duckdb():
        report.add(f"DuckDB skipped: {reason}.")
    report.table(["", "seconds", "times our Parquet engine's", "GB after imports", "GB at most", "mean slope"], rows)
    return report


# --- Spark ------------------------------------------------------------------------------------------


def measure_spark(run: Run) -> Report:
    report = Report()
    if reason := missing_spark():
        report.add(f"Skipped: {reason}.")
        return report
    path = run.file(MIDDLE)
    lines = read_worker("spark", path, small_file(run), run.rounds)
    taken = list(track(lines, "Spark's rounds", total=run.rounds, console=run.console))
    plain, opening, sums = (np.array([each[name] for each in taken]) for name in ("plain", "opening", "sums"))
    ratio = float(np.median((opening + sums) / plain))
    alone = float(np.median(sums / plain))
    report.add(
        f"`local[2]`, 4 GB, {run.at_most(MIDDLE):,} rows of the Parquet file, blocks of {BLOCK}. Spark's own: `select block, count(*), sum(x1) … "
        f"sum(z) group by block`, written nowhere (`noop`). Medians over {run.rounds} interleaved rounds after {WARM_UP} to warm up: Java compiles what runs often."
    )
    report.table(
        ["", "seconds", "times Spark's own", "allowed"],
        [
            ["Spark's own group-by", f"{np.median(plain):.2f}", "1", ""],
            ["ours, from frame to sums", f"{np.median(opening + sums):.2f}", f"{ratio:.2f}", f"{MOST_TIME_SPARK:g}"],
            ["of which the sums", f"{np.median(sums):.2f}", f"{alone:.2f}", ""],
        ],
    )
    if run.rows >= FEW_ROWS:
        report.require(
            ratio <= MOST_TIME_SPARK,
            f"Spark takes {ratio:.2f} times its own group-by, at most {MOST_TIME_SPARK:g} allowed",
        )
    report.add(
        "Passes of a default fit with intervals, ranges and a second stage, ε = 8, over the same frame, in the same rounds. Of passes that a fit makes twice the dearer one is shown; steps of the second stage count together."
    )
    report.table(["pass", "seconds", "times Spark's own", "allowed"], _spark_passes(taken, plain, run, report))
    return report


def _spark_passes(taken: Sequence[dict[str, float]], plain: Floats, run: Run, report: Report) -> list[list[str]]:
    """A row of each pass of a fit by Spark; those that take too long are put into the report."""
    rows = []
    for title in (name for name in taken[0] if name.startswith(PASS)):
        seconds = np.array([each[title] for each in taken])
        ratio, name = float(np.median(seconds / plain)), title.removeprefix(PASS)
        allowed = {STEPS: MOST_TIME_STAGE, ALL_PASSES: math.inf}.get(name, MOST_TIME_PASS)
        told = "" if allowed == math.inf else f"{allowed:g}"
        rows.append([name, f"{np.median(seconds):.2f}", f"{ratio:.2f}", told])
        if run.rows >= FEW_ROWS:
            report.require(
                ratio <= allowed, f"Spark's {name} takes {ratio:.2f} times its own group-by, at most {told} allowed"
            )
    report.require(any(PASS + STEPS in each for each in taken), "no second stage was taken by Spark")
    return rows


def time_spark(path: Path, rounds: int) -> Iterator[dict[str, float]]:
    """Seconds of each round; a few before them warm up."""
    from dplinked.sums.sql import spark

    session, study = start_spark(), declare_study()
    design, _ = study.prepare()
    frame = session.read.parquet(str(path))
    frame.createOrReplaceTempView("linked")
    sums = ", ".join(f"sum({name})" for name in [*NAMES, "z"])

    def plain() -> None:
        grouped = session.sql(f"select block, count(*), {sums} from linked group by block")
        grouped.write.format("noop").mode("overwrite").save()

    def ours() -> tuple[float, float]:
        gc.collect()
        start = time.perf_counter()
        source = spark.open_frame(frame)
        opened = source.open(design, study.linkage, study.unit)
        middle = time.perf_counter()
        opened.instrument_sums()
        return middle - start, time.perf_counter() - middle

    def whole() -> dict[str, float]:
        """Seconds of each pass of a default fit with a second stage."""
        found = Costs()
        with noting_passes(found, BY_SQL):
            dpl.fit_study(with_second_stage(study, reach=10_000.0), frame)
        return {PASS + name: float(cost[0]) for name, cost in name_passes(found).items()}

    for number in range(WARM_UP + rounds):
        own = timed(plain)
        opening, summing = ours()
        passes = whole()
        if number >= WARM_UP:
            yield {"plain": own, "opening": opening, "sums": summing, **passes}
    session.stop()


def with_second_stage(study: Study, linkage: ELE | None = None, reach: float = 40.0) -> Study:
    """A study with bounds so wide, the wider the more rows there are, and a budget so large, that a second stage pays."""
    return replace(study, bounds={**study.bounds, "z": (-reach, reach)}, linkage=linkage or study.linkage, epsilon=8.0)


# --- DuckDB's passes --------------------------------------------------------------------------------

PASSES = {
    "copy_cells": "copy", "begin": "blocks", "open": "blocks", "column_counts": "ranges", "instrument_sums": "sums",
    "residual_counts": "size of residuals", "right_residuals": "step",
}  # fmt: skip
STEPS, ALL_PASSES, PASS = (
    "steps of the second stage",
    "all passes",
    "pass: ",
)  # names; what stands before those of Spark's
SQL_CASES = {
    f"blocks of {BLOCK}": ("block", ACCURACY),
    f"blocks of {BLOCK}, accuracy .5": ("block", 0.5),
    "blocks of 2": ("pair", ACCURACY),
    "one large block": ("one", ACCURACY),
    "one large block, accuracy .5": ("one", 0.5),
}
SQL_COLUMNS = 3
WAYS = MEMORY, DISK, BY_SQL = (
    "copy in memory",
    "copy in a file",
    "by SQL",
)  # to add rows of DuckDB's; the last is not judged
Costs = list[tuple[str, Floats]]  # of passes by name: wall time and CPU time


def clock() -> Floats:
    """Wall time and CPU time of this process, threads and all."""
    return np.array([time.perf_counter(), time.process_time()])


@contextmanager
def adding(way: str) -> Iterator[None]:
    """Let rows of DuckDB's be added in one way, however many there are."""
    from dplinked.sums.sql import duckdb_copy

    kept = duckdb_copy.MOST_IN_MEMORY, duckdb_copy.has_room
    duckdb_copy.MOST_IN_MEMORY = 1 << 40 if way == MEMORY else -1
    duckdb_copy.has_room = lambda size: way == DISK
    try:
        yield
    finally:
        duckdb_copy.MOST_IN_MEMORY, duckdb_copy.has_room = kept


@contextmanager
def noting_passes(found: Costs, way: str) -> Iterator[None]:
    """Note what the copy and each pass takes."""
    from dplinked.sums.numpy import tables
    from dplinked.sums.sql import duckdb
    from dplinked.sums.sql.passes import SqlPass
    from dplinked.sums.sql.rows import SqlRows

    passes, first = (
        (SqlPass, [(SqlRows, "begin")])
        if way == BY_SQL
        else (tables.TablePass, [(duckdb, "copy_cells"), (tables.Tables, "open")])
    )
    named = [*first, *((passes, name) for name in PASSES if name in vars(passes))]
    kept = [(owner, name, getattr(owner, name)) for owner, name in named]

    def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def measure(*given: Any, **named: Any) -> Any:
            start = clock()
            result = method(*given, **named)
            found.append((PASSES[name], clock() - start))
            return result

        return measure

    for owner, name, method in kept:
        setattr(owner, name, noted(name, method))
    try:
        yield
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def name_passes(found: Costs) -> dict[str, Floats]:
    """The dearest call of each pass; the second sums are those of rows by themselves, and all steps count together."""
    sums = [cost for name, cost in found if name == "sums"]
    steps = [cost for name, cost in found if name == "step"]
    once = {name: max((cost for other, cost in found if other == name), key=lambda c: c[1]) for name, _ in found}
    named = {**{name: once[name] for name in once if name not in ("sums", "step")}, "sums": sums[0]}
    named |= {**({"slope": sums[1]} if sums[1:] else {}), **({STEPS: np.sum(steps, axis=0)} if steps else {})}
    return {**named, ALL_PASSES: np.sum([cost for _, cost in found], axis=0)}


def race_passes(path: Path, key: str, accuracy: float, way: str, run: Run) -> tuple[Floats, dict[str, Floats], int]:
    """Costs of the group-by (rounds×2), what passes take of it in the median round (2), and the number of steps."""
    import duckdb

    study = with_second_stage(declare_study(SQL_COLUMNS), ELE(accuracy, None if key == "one" else key))
    sums = ", ".join(f"sum({name}) as s{i}" for i, name in enumerate([*NAMES[:SQL_COLUMNS], "z"]))
    most = ", ".join(f"max(s{i})" for i in range(SQL_COLUMNS + 1))
    plain = f"select max(m), {most} from (select {key}, count(*) as m, {sums} from '{path}' group by {key})"
    connection, own, ratios, steps = duckdb.connect(), [], list[dict[str, Floats]](), 0
    for round in range(run.rounds + 1):
        gc.collect()
        found, grouped = Costs(), []
        for _ in range(5):
            start = clock()
            connection.execute(plain).fetchall()
            grouped.append(clock() - start)
        taken = np.median(grouped, axis=0)
        with adding(way), noting_passes(found, way):
            dpl.fit_study(study, connection.read_parquet(str(path)))
        if round:  # the first one warms up
            own.append(taken)
            ratios.append({name: cost / taken for name, cost in name_passes(found).items()})
            steps = sum(name == "step" for name, _ in found)
    named = {
        name: np.median([each[name] for each in ratios if name in each], axis=0) for each in ratios for name in each
    }
    return np.array(own), named, steps


def measure_sql(run: Run) -> Report:
    report, rows = Report(), []
    if reason := missing_duckdb():
        report.add(f"Skipped: {reason}.")
        return report
    path = run.file(SMALL, SQL_COLUMNS, ("block", "pair", "one"))
    for name, (key, accuracy) in track(SQL_CASES.items(), "DuckDB's passes", console=run.console):
        raced = {way: race_passes(path, key, accuracy, way, run) for way in WAYS}
        own = np.median(np.concatenate([grouped for grouped, *_ in raced.values()])[:, 1])
        for way in (MEMORY, DISK):
            report.require(STEPS in raced[way][1], f"{name}, {way}: no second stage was taken")
        for title in dict.fromkeys(title for _, ratios, _ in raced.values() for title in ratios):
            allowed = {STEPS: MOST_TIME_STAGE, ALL_PASSES: math.inf}.get(title, MOST_TIME_PASS)
            shown = f"{title} ({', '.join(str(steps) for *_, steps in raced.values())})" if title == STEPS else title
            found = {way: raced[way][1].get(title, (math.nan, math.nan)) for way in WAYS}
            told = ["" if math.isnan(ratio) else f"{ratio:.2f}" for ratios in found.values() for ratio in ratios]
            rows.append([name, shown, f"{own * 1e3:.1f}", *told, "" if allowed == math.inf else f"{allowed:g}"])
            for way in (MEMORY, DISK):
                cpu = found[way][1]
                if run.judged and not math.isnan(cpu):
                    report.require(
                        cpu <= allowed,
                        f"{name}, {way}: {title} take {cpu:.2f} times the group-by, at most {allowed:g} allowed",
                    )
    report.add(
        f"{run.at_most(SMALL):,} rows, {SQL_COLUMNS} columns, a Parquet file as a DuckDB relation; a default fit with intervals, ranges and a second stage, ε = 8. DuckDB's "
        f"own: `select block, count(*), sum(x1) … sum(z) group by block` over the same file. Ratios side by side, medians over {run.rounds} rounds after one to warm up, the "
        "group-by being the median of five in a row, by wall time and by CPU time, which is judged since it does not count what else the machine does. Of passes that a fit makes twice the dearer one is shown, but "
        "steps of the second stage count together, and their number stands beside them. DuckDB reads the rows once, into a copy in memory (so it is with so few rows) or in a temporary file, and the kernel passes over that copy. "
        "A slope of 0.00 was found on the way of the residuals. Where DuckDB adds the rows itself, by SQL, as it does without a kernel or room on the disk, passes are shown and not judged."
    )
    ways = [f"{way}, {kind}" for way in WAYS for kind in ("wall", "CPU")]
    report.table(["", "pass", "group-by, ms of CPU", *ways, "allowed"], rows)
    small, rows = small_file(run), []
    for size in (MIDDLE, LARGE):
        if size <= run.rows:
            with run.console.status(f"A fit of {size:,} rows by DuckDB …"):
                (found,) = read_worker(COPIED, run.file(size), small)
            rows.append([f"{size:,}", f"{found['seconds']:.1f}", f"{found['cpu']:.1f}", f"{found['peak']:.2f}"])
            report.require(
                not found["peak"] > MOST_MEMORY_FIT,
                f"{size:,} rows take {found['peak']:.2f} GB, at most {MOST_MEMORY_FIT:g} allowed",
            )
    if rows:
        report.add(
            f"A default fit of two stages over a Parquet file with {COLUMNS} columns as a DuckDB relation, copied to a file, in a process of its own, once:"
        )
        report.table(["rows", "seconds", "seconds of CPU", "GB at most"], rows)
    return report


# --- the command line -------------------------------------------------------------------------------

BARS = (
    "Counting blocks",
    "Counting",
    "Summing",
    "Measuring residuals",
)  # the variance or the second stage, which pays, comes next
STUDY = """\
[data]
path = {path}

[model]
{model}

[bounds]
{bounds}

[linkage]
accuracy = {accuracy}
block = "block"

[unit]
moves_block = false
displaced_links = 0

[privacy]
epsilon = 1.0
delta = 1e-9

[ledger]
url = "budget.db"
population = "people"
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit code, time and memory, and all that its terminal was sent."""

    code: int
    seconds: float
    peak: float
    shown: str


def run_command(arguments: Sequence[str], folder: Path) -> Done:
    """Run dplinked with errors and progress on a terminal; memory is looked at every twentieth of a second."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    start = time.perf_counter()
    with (folder / "stdout").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dplinked.cli", *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=end,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
    os.close(end)
    shown, peak = bytearray(), math.nan
    while True:
        found = status_gb("VmHWM", process.pid)
        peak = peak if math.isnan(found) else found
        if not select.select([terminal], [], [], 0.05)[0]:
            continue
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so when the other end is closed
            piece = b""
        if not piece:
            break
        shown += piece
    code = process.wait()
    seconds = time.perf_counter() - start
    os.close(terminal)
    return Done(code, seconds, peak, shown.decode(errors="replace"))


COMMANDS = (
    ("budget", "init", "study.toml", "--epsilon", "2", "--delta", "1e-9"),
    ("fit", "study.toml", "--out", "release.json"),
    ("report", "release.json", "--out", "report.md"),
)


def run_study(path: Path, model: str, bounds: str, run: Run, report: Report) -> tuple[Any, str]:
    """Run a study of a file by the command line, with a ledger, and add a table of time and memory; its release, and what `fit` drew."""
    rows, done = [], {}
    with tempfile.TemporaryDirectory(dir=run.folder) as name:
        folder = Path(name)
        study = STUDY.format(path=json.dumps(str(path.resolve())), model=model, bounds=bounds, accuracy=ACCURACY)
        (folder / "study.toml").write_text(study, encoding="utf-8")
        for command in track(COMMANDS, "The command line", console=run.console):
            title = " ".join(command[:2]) if command[0] == "budget" else command[0]
            done[title] = ended = run_command(command, folder)
            rows.append([f"`dplinked {title}`", f"{ended.seconds:.1f}", f"{ended.peak:.2f}", ended.code])
            report.require(not ended.code, f"dplinked {title} ended with {ended.code}: {ended.shown[-300:]!r}")
        release = dpl.Release.load(folder / "release.json") if not done["fit"].code else None
    report.add(
        f"A study of {pq.read_metadata(path).num_rows:,} rows with a ledger, ε = 1, the Parquet file of {path.stat().st_size / 1e9:.2f} GB; progress is drawn on a "
        "pseudo-terminal. Memory is the largest of the whole process."
    )
    report.table(["", "seconds", "GB at most", "exit code"], rows)
    report.require(
        not done["fit"].peak > MOST_MEMORY_FIT,
        f"dplinked fit takes {done['fit'].peak:.2f} GB, at most {MOST_MEMORY_FIT:g} allowed",
    )
    return release, done["fit"].shown


def judge_slopes(release: Any, report: Report) -> None:
    """Compare slopes of a release with the truth."""
    error = max(abs(release.coef[name] - SLOPE) for name in NAMES)
    allowed = max(MOST_SLOPE_ERROR, 5.0 * max(release.std_err[name] for name in NAMES))
    report.add(
        f"Slopes: {', '.join(f'{release.coef[name]:.4f}' for name in NAMES)}; the truth is {SLOPE:g}. Largest error {error:.1e} "
        f"(at most {allowed:.1e} allowed: {MOST_SLOPE_ERROR:g}, or five standard errors of few rows)."
    )
    report.require(error <= allowed, f"a slope is off by {error:.1e}, at most {allowed:.1e} allowed")


def measure_cli(run: Run) -> Report:
    report, path = Report(), run.file(LARGE)
    bounds = "\n".join([*(f"{name} = [-1, 1]" for name in NAMES), "z = [-2, 2]"])
    release, shown = run_study(path, f'formula = "z ~ {" + ".join(NAMES)}"', bounds, run, report)
    drawn = [bar for bar in BARS if bar in shown]
    report.add(f"Bars that `fit` drew: {', '.join(drawn) or 'none of a pass'}.")
    if run.at_most(LARGE) >= MIDDLE:  # smaller files are read whole, and passes end before they are drawn
        missing = [bar for bar in BARS if bar not in drawn]
        report.require(not missing, f"no bar was drawn of {', '.join(missing)}")
    else:
        report.require("━" in shown, "no bar was drawn at all")
    if release is not None:
        judge_slopes(release, report)
    return report


# --- events and counts ------------------------------------------------------------------------------

CURVES = {"events": 1, "counts up to 10, an exposure": 10, "counts up to 60, an exposure": 60}  # the largest outcome


def declare_outcome(largest: int) -> Study:
    """A logistic study, or a Poisson one with an exposure."""
    line = declare_study()
    bounds = {name: line.bounds[name] for name in NAMES}
    if largest == 1:
        return replace(
            line, formula=f"event ~ {' + '.join(NAMES)}", bounds=bounds, levels={"event": [0, 1]}, family="logistic"
        )
    bounds |= {"visits": (0, largest), "years": (0.5, 4.0)}
    return replace(line, formula=f"visits ~ {' + '.join(NAMES)}", bounds=bounds, family="poisson", exposure="years")


def find_passes(data: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """The pass that sums a line, and a step along each curve; blocks are found beforehand."""

    def opened(study: Study) -> LinkedRows:
        design, _ = study.prepare()
        rows = open_source(data(), read_columns(study)).linked_rows(design, study.linkage, study.unit)
        return rows.with_design(design.with_instrument([0.5] * COLUMNS))

    def step(largest: int) -> Callable[[], Any]:
        rows = opened(declare_outcome(largest))
        beta = np.array([LEVEL, *[SLOPE] * COLUMNS])
        clip = ResidualClip(beta, 1.0, 0.5, 1.0, curve=rows.design.curve)
        return lambda: rows.curve_sums(clip, 0.5 * largest)

    return {"line": opened(declare_study()).instrument_sums, **{name: step(most) for name, most in CURVES.items()}}


def race_steps(passes: dict[str, Callable[[], Any]], run: Run) -> dict[str, Floats]:
    """Costs of each pass (rounds×2), all of them in turn in every round after one to warm up."""
    taken: dict[str, list[Floats]] = {name: [] for name in passes}
    for round in track(range(run.rounds + 1), "Steps against a line's pass", console=run.console):
        for name, work in passes.items():
            gc.collect()
            start = clock()
            work()
            if round:
                taken[name].append(clock() - start)
    return {name: np.array(costs) for name, costs in taken.items()}


def measure_curves(run: Run) -> Report:
    report, rows = Report(), []
    small, path, command_path = (run.file(each, keys=("block", OUTCOMES)) for each in (SMALL, MIDDLE, LARGE))
    engines: dict[str, tuple[int, Callable[[], Any]]] = {"Parquet": (MIDDLE, lambda: path)}
    if reason := missing_duckdb():
        report.add(f"DuckDB skipped: {reason}.")
    else:
        engines["DuckDB"] = SMALL, lambda: duckdb_relation(small)
    for engine, (most, data) in engines.items():
        with streaming():
            found = race_steps(find_passes(data), run)
        for name in CURVES:
            wall, cpu = np.median(found[name] / found["line"], axis=0)
            line, step = (np.median(found[each][:, 1]) / run.at_most(most) * 1e9 for each in ("line", name))
            judged = engine == "Parquet"
            rows.append(
                [
                    f"{engine}, {name}",
                    f"{line:.1f}",
                    f"{step:.1f}",
                    f"{wall:.2f}",
                    f"{cpu:.2f}",
                    f"{MOST_TIME_STEP:g}" if judged else "",
                ]
            )
            if judged and run.judged:
                report.require(
                    cpu <= MOST_TIME_STEP,
                    f"a step of {name} takes {cpu:.2f} passes of a line, at most {MOST_TIME_STEP:g} allowed",
                )
    report.add(
        f"{run.at_most(MIDDLE):,} rows, {COLUMNS} columns, blocks of {BLOCK}, never whole in memory. A step sums the curve's means and slopes times instruments and regressors; a line's pass sums "
        f"instruments times linked regressors and responses. Medians over {run.rounds} interleaved rounds, ratios side by side, by wall time and by CPU time, which is judged since it does "
        "not count what else the machine does. DuckDB, over "
        f"{run.at_most(SMALL):,} such rows, is shown."
    )
    report.table(["", "line, ns of CPU a row", "step", "ratio, wall", "ratio, CPU", "allowed"], rows)
    bounds = "\n".join([*(f"{name} = [-1, 1]" for name in NAMES), "", "[levels]", "event = [0, 1]"])
    model = f'formula = "event ~ {" + ".join(NAMES)}"\nfamily = "logistic"'
    release, _ = run_study(command_path, model, bounds, run, report)
    if release is not None:
        judge_slopes(release, report)
    return report


# --- the report -------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[[Run], Report]] = {
    "contract": measure_contract, "parquet": measure_parquet, "fit": measure_fits, "weights": measure_weights, "blocks": measure_blocks, "wide": measure_wide,
    "matching": measure_matching, "rivals": measure_rivals, "spark": measure_spark, "sql": measure_sql, "curves": measure_curves, "cli": measure_cli,
}  # fmt: skip


def java_version() -> list[str]:
    """Java's version, where there is one."""
    if shutil.which("java") is None:
        return []
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return [f"Java {found[1]}"] if (found := re.search(r'version "([^"]+)"', said)) else []


def measure_section(name: str, run: Run, out: Path | None) -> bool:
    """Measure one section, print it, write it; whether all criteria were met."""
    load, start = os.getloadavg()[0], time.perf_counter()
    try:
        report = MEASURES[name](run)
    except Exception as fault:  # the other sections, hours maybe, are worth having
        run.console.print_exception()
        report = Report(missed=[f"the section failed: {type(fault).__name__}: {str(fault)[-300:]}"])
    seconds = time.perf_counter() - start
    installed = [
        package for package in PACKAGES if importlib.util.find_spec(package.replace("scikit-learn", "sklearn"))
    ]
    if not run.judged:
        report.add(f"Below {FEW_ROWS:,} rows fixed costs rule; times are shown but not judged.")
    verdict = [f"MISSED: {line}" for line in report.missed] or ["All criteria met."]
    made = f"`python benchmarks/engines.py {name} --rows {run.rows}` ({seconds:.0f} s; load before {load:.1f})."
    body = "\n".join([f"{made} {describe_machine(*installed, beside=java_version())}", "", *report.lines, *verdict])
    run.console.print(f"## {TITLES[name]}\n\n{body}\n", markup=False, highlight=False, soft_wrap=True)
    if out:
        write_section(out, "Engines", TITLES, name, body)
    return not report.missed


def main() -> int:
    """Measure sections, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sections", nargs="+", choices=[*TITLES, "all"], metavar="section", help=", ".join([*TITLES, "all"])
    )
    parser.add_argument("--rows", type=int, default=LARGE, help="of the largest file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file to write the sections to")
    parser.add_argument("--folder", type=Path, help="for the generated files, which are kept")
    parser.add_argument("--strict", action="store_true", help="judge times of small files too")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(options.worker[0], *map(Path, options.worker[1:]), options.rounds)
        return 0
    chosen = [name for name in TITLES if name in options.sections or "all" in options.sections]
    out = options.out or (RESULTS if options.rows >= LARGE else None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(options.rows, options.rounds, folder, Console(), options.strict)
        met = [measure_section(name, run, out) for name in chosen]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
