"""Links on files that nothing was tuned on, beside Splink and recordlinkage as their users call them.

A section of benchmarks/linking.py. Seeds and mixes of errors were used for nothing else, and no constant was changed after the figures were seen. Each linkage runs in a process of its own, whose
CPU seconds and peak memory are counted.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import stats

import dplinked as dpl
from dplinked.linker.quality import DOUBT
from dplinked.linker.rules import LATE, Links
from dplinked.not_private.simulate import people
from dplinked.privacy import noise
from dplinked.simulate import TwoFiles, review_links, two_files
from sections import Report

Integers = NDArray[np.int64]

ROWS = 3_000
FIVE = ["given_name", "surname", "date_of_birth", "postcode", "address"]
AUDITS, CHECKED = 40, 300
BEHIND = 0.01  # of the rows may be linked less well than by the better of the others, where all pairs fit


@dataclass(frozen=True)
class HeldOut:
    """Generated files: seed, factors of the generator's rates by field ("missing" for all rates of missing values, "" for all), overlap and share of people with two records on the right."""

    name: str
    seed: int
    factors: dict[str, float]
    overlap: float = 1.0
    duplicates: float = 0.0

    def draw(self, rows: int) -> TwoFiles:
        """The two files."""
        rates = people.ERROR_RATES
        people.ERROR_RATES = MappingProxyType(
            {
                field: {
                    kind: min(
                        0.9, rate * self.factors.get(field, 1.0) * (self.factors.get("missing", 1.0) if kind == "missing" else 1.0)
                    )
                    for kind, rate in kinds.items()
                }
                for field, kinds in rates.items()
            }
        )  # fmt: skip
        try:
            return two_files(
                rows, self.seed, errors=self.factors.get("", 1.0), overlap=self.overlap, duplicates=self.duplicates
            )
        finally:
            people.ERROR_RATES = rates


DATA = (
    HeldOut("names × 5", 311, {"given_name": 5.0, "surname": 5.0}),
    HeldOut("dates × 5", 312, {"date_of_birth": 5.0}),
    HeldOut("missing × 6", 313, {"missing": 6.0}),
    HeldOut("all × 2.5", 314, {"": 2.5}),
    HeldOut("all × 1.5, overlap .7", 315, {"": 1.5}, overlap=0.7),
    HeldOut("names × 3, overlap .5", 316, {"given_name": 3.0, "surname": 3.0}, overlap=0.5),
    HeldOut("addresses × 4, duplicates .2", 317, {"address": 4.0, "postcode": 4.0}, duplicates=0.2),
)


# --- routes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linked:
    """Links of a route, -1 for none, which of them are over its threshold, and what tells their quality, if anything does."""

    right: Integers
    over: NDArray[np.bool_]
    linked: dpl.Linked | None = None


def ours(**settings: Any) -> Callable[[TwoFiles], Linked]:
    def run(files: TwoFiles) -> Linked:
        linked = dpl.link(files.left, files.right, fields=FIVE, id="id", **settings)
        return Linked(linked.links.right, over_threshold(linked.links), linked)

    return run


def over_threshold(links: Links) -> NDArray[np.bool_]:
    """Which rows have a link over the threshold."""
    late = np.isin(links.block.astype(str), LATE)
    return ~late if links.below is None else ~(late | links.below)


def splink_directly(files: TwoFiles) -> Linked:
    """Splink with four blocking rules and five comparisons, two trainings, links from a probability of .5 on, the surest first."""
    import splink.comparison_library as cl
    from splink import DuckDBAPI, Linker, SettingsCreator, block_on

    logging.getLogger("splink").setLevel(logging.CRITICAL)
    settings = SettingsCreator(
        link_type="link_only",
        unique_id_column_name="id",
        blocking_rules_to_generate_predictions=[
            block_on("surname"),
            block_on("given_name", "postcode"),
            block_on("date_of_birth"),
            block_on("address"),
        ],
        comparisons=[
            cl.JaroWinklerAtThresholds("given_name", [0.9, 0.7]),
            cl.JaroWinklerAtThresholds("surname", [0.9, 0.7]),
            cl.LevenshteinAtThresholds("date_of_birth", [1, 2]),
            cl.LevenshteinAtThresholds("postcode", [1]),
            cl.JaroWinklerAtThresholds("address", [0.9, 0.7]),
        ],
    )
    database = DuckDBAPI()
    tables = [table.select(["id", *FIVE]) for table in (files.left, files.right)]
    with contextlib.redirect_stdout(io.StringIO()):
        linker = Linker(
            [database.register(t, dataset_display_name=name) for t, name in zip(tables, "AB", strict=True)], settings
        )
        linker.training.estimate_probability_two_random_records_match(
            [block_on("given_name", "surname", "date_of_birth")], recall=0.5
        )
        linker.training.estimate_u_using_random_sampling(max_pairs=1e6, seed=1)
        for columns in (("given_name", "surname"), ("date_of_birth",)):
            linker.training.estimate_parameters_using_expectation_maximisation(block_on(*columns))
        found = linker.inference.predict(threshold_match_probability=0.5).as_pyarrow_table()
    one, other = (np.array(found[name].to_pylist(), dtype=object) for name in ("id_l", "id_r"))
    swapped = np.array([name.startswith("B") for name in one])
    return _surest_first(
        files, np.where(swapped, other, one), np.where(swapped, one, other), found["match_weight"].to_numpy()
    )


def recordlinkage_directly(files: TwoFiles) -> Linked:
    """recordlinkage with four blocking keys, names and addresses alike from .85 on, its ECM classifier, links from a probability of .5 on, the surest first."""
    import pandas as pd
    import recordlinkage

    frames = [table.select(["id", *FIVE]).to_pandas().set_index("id") for table in (files.left, files.right)]
    index = recordlinkage.Index()
    for key in ("surname", ["given_name", "postcode"], "date_of_birth", "address"):
        index.block(key)
    compare = recordlinkage.Compare()
    for name in ("given_name", "surname", "address"):
        compare.string(name, name, method="jarowinkler", threshold=0.85, label=name)
    for name in ("date_of_birth", "postcode"):
        compare.exact(name, name, label=name)
    features = compare.compute(index.index(*frames), *frames)
    found = recordlinkage.ECMClassifier()
    found.fit(features)
    probability: pd.Series = found.prob(features)
    likely = probability[probability >= 0.5]
    ids = [np.array(likely.index.get_level_values(level), dtype=object) for level in (0, 1)]
    return _surest_first(files, ids[0], ids[1], likely.to_numpy())


def _surest_first(files: TwoFiles, left: NDArray[Any], right: NDArray[Any], weight: NDArray[np.float64]) -> Linked:
    """One-to-one links from pairs, the surest first."""
    rows, records = ({name: k for k, name in enumerate(table["id"].to_pylist())} for table in (files.left, files.right))
    links, taken = np.full(len(rows), -1), np.zeros(len(records), dtype=bool)
    for k in np.argsort(-weight, kind="stable"):
        i, j = rows[left[k]], records[right[k]]
        if links[i] < 0 and not taken[j]:
            links[i], taken[j] = j, True
    return Linked(links, links >= 0)


ROUTES: dict[str, Callable[[TwoFiles], Linked]] = {
    "rules": ours(),
    "rules within states": ours(block="state"),
    "splink": ours(method="splink"),
    "Splink, used directly": splink_directly,
    "recordlinkage, used directly": recordlinkage_directly,
}


# --- measured ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Shares of rows, precision and recall over the threshold; the estimate less the truth, its half width and doubt; how many audits held the truth; CPU seconds and megabytes."""

    right: float
    precision: float
    recall: float
    seconds: float
    megabytes: float
    off: float | None = None
    holds: bool = False
    doubtful: bool = False
    audits: int = 0


def measure_one(data: int, route: str, rows: int, audits: int) -> Measured:
    """Draw files and link them; only linking and what tells its quality is timed."""
    files = DATA[data].draw(rows)
    start = time.process_time()
    found = ROUTES[route](files)
    told = None if found.linked is None else found.linked.estimates[0]
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    right = files.are_right(found.right)
    both = int((files.truth >= 0).sum())
    over = found.over & (found.right >= 0)
    base = Measured(
        float(right.mean()),
        float(right[over].mean()) if over.any() else 1.0,
        float((right & over).sum() / both),
        seconds,
        peak,
    )
    if told is None or found.linked is None:
        return base
    value, low, high = told.overall
    held = 0
    for seed in range(audits):
        audit = found.linked.audited(review_links(found.linked.audit_sample(CHECKED, seed), files)).estimates[0]
        held += audit.overall[1] <= right.mean() <= audit.overall[2]
    return Measured(
        **{**asdict(base), "off": value - float(right.mean()), "holds": low <= right.mean() <= high, "doubtful": told.doubtful, "audits": held}
    )  # fmt: skip


def run_worker(job: dict[str, Any]) -> None:
    """One linkage, whose figures are printed as JSON."""
    found = measure_one(**job)
    print(
        json.dumps({name: value.item() if hasattr(value, "item") else value for name, value in asdict(found).items()})
    )


def _in_a_process(data: int, route: str, rows: int, audits: int) -> Measured:
    job = json.dumps({"data": data, "route": route, "rows": rows, "audits": audits})
    done = subprocess.run(
        [sys.executable, sys.argv[0], "heldout", "--held", job], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def measure_held_out(quick: bool, console: Console, has_recordlinkage: bool) -> Report:
    """All routes on all files."""
    report, rows, audits = Report(), 600 if quick else ROWS, 4 if quick else AUDITS
    routes = [route for route in ROUTES if has_recordlinkage or not route.startswith("recordlinkage")]
    routes = [route for route in routes if not quick or route != "splink"]
    cases = [(k, route) for k in range(1 if quick else len(DATA)) for route in routes]
    table, found = [], dict[tuple[int, str], Measured]()
    for k, route in track(cases, "Held-out files", console=console):
        one = found[k, route] = _in_a_process(k, route, rows, audits)
        told = ["-", "-", "-"]
        if one.off is not None:
            told = [f"{one.off:+.4f}", "yes" if one.doubtful else "no", f"{one.audits}/{audits}"]
        table.append(
            [DATA[k].name, route, f"{one.right:.4f}", f"{one.precision:.4f}", f"{one.recall:.4f}", *told, f"{one.seconds:.1f}", f"{one.megabytes:.0f}"]
        )  # fmt: skip
    report.add(
        f"Generated files of {rows:,} records, one for each of seeds {', '.join(str(one.seed) for one in DATA)}, with mixes of errors that were used for nothing else; five fields ({', '.join(FIVE)}). "
        "*Right* is the share of all left rows that are linked to a record of their person (others make links over their threshold alone; with an overlap of .7 no more than .7 can be right). Precision "
        "and recall are those of links over the threshold. *Estimate* is one-to-one less the truth, *doubtful* whether it says of itself that it may be off by more than .02, *audits* how many of "
        f"{audits} audits of {CHECKED} links hold the truth in their 95 % interval. CPU seconds of linking and its estimate, and the process's peak memory, libraries included."
    )
    report.table(
        ["errors", "route", "right", "precision", "recall", "estimate", "doubtful", "audits", "CPU s", "MB"], table
    )
    judge_held_out(report, found)
    estimated = {key: one for key, one in found.items() if one.off is not None}
    held = sum(one.audits for one in estimated.values()) / (audits * len(estimated))
    off = [abs(one.off or 0.0) for one in estimated.values()]
    report.add(
        f"Estimates are off by {np.mean(off):.4f} on average and {max(off):.4f} at most; their intervals hold the truth in {sum(one.holds for one in estimated.values())} of {len(estimated)} linkages, and those of audits "
        f"in {held:.1%}."
    )
    report.require(quick or held >= 0.92, f"intervals of audits hold the truth in {held:.3f}")
    return report


def judge_held_out(report: Report, found: Mapping[tuple[int, str], Measured]) -> None:
    """Every route of ours against the better of the others on the same file, where all pairs fit, and every estimate against the truth."""
    for (k, route), one in found.items():
        if "directly" in route:
            continue
        others = [other.right for (file, name), other in found.items() if file == k and "directly" in name]
        behind = max(others) - one.right
        report.require(behind <= BEHIND, f"{DATA[k].name}: {route} is {behind:.4f} behind the better of the others")
        report.require(
            abs(one.off or 0.0) <= DOUBT or one.doubtful,
            f"{DATA[k].name}, {route}: the estimate is off by {one.off:+.4f} and not called doubtful",
        )


# --- from files to slopes -------------------------------------------------------------------------------

CHAINED = ("names × 5", "missing × 6", "all × 2.5")
RUNS, PEOPLE, WIDER = 200, 4_000, 1.3
SLOPE, FORMULA = 0.55, "consumption ~ income"
FIT = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "typical": {"income": (15_000, 50_000)},
    "unit": dpl.PrivacyUnit(),
    "epsilon": 1.0,
    "delta": 1e-6,
}


def measure_chain(quick: bool, console: Console) -> Report:
    """Two files, links, an audit of 1,000 of them, and a private slope: how often intervals hold it, and how long they are."""
    report, runs, table = Report(), 20 if quick else RUNS, list[list[str]]()
    for data in DATA:
        if data.name not in CHAINED[: 1 if quick else None]:
            continue
        jobs = [replace(data, seed=1000 * data.seed + run) for run in range(runs)]
        with ProcessPoolExecutor(2) as pool:
            done = list(track(pool.map(run_chain, jobs), data.name, total=runs, console=console))
        right, covered, wide, off = (float(np.mean([one[k] for one in done])) for k in range(4))
        table.append([data.name, f"{right:.3f}", f"{covered:.3f}", f"{wide:.2f}", f"{off / SLOPE:+.1%}"])
        low, high = (stats.binom.ppf(level, runs, share) / runs for level, share in ((0.005, 0.93), (0.995, 0.98)))
        report.require(low <= covered <= high, f"{data.name}: intervals hold the slope in {covered:.1%} of the runs")
        report.require(wide <= WIDER, f"{data.name}: intervals are {wide:.2f} times as wide as with true accuracies")
    report.add(
        f"{PEOPLE:,} people in each file, linked by rules within states on names and date of birth alone; 1,000 links checked by identifiers, the slope at ε = 1. {runs} files of each kind, everything drawn anew, noise of the same "
        "scales from NumPy. Widths are those of the same rows with the true accuracy of each group, known exactly."
    )
    report.table(
        [
            "file",
            "right links",
            "95 % intervals hold the slope",
            "width, of that with true accuracies",
            "mean slope off",
        ],
        table,
    )
    return report


def run_chain(data: HeldOut) -> tuple[float, bool, float, float]:
    """One run: the share of right links, whether the interval holds the slope, its width over that with true accuracies, and how far off the slope is."""
    rng = np.random.default_rng(data.seed)
    noise.add_gaussian = lambda values, scale: (
        np.asarray(values) + np.asarray(scale) * rng.normal(size=np.shape(values))
    )
    files = data.draw(PEOPLE)
    linked = dpl.link(files.left, files.right, fields=FIVE[:3], id="id", seed=1, block="state", threshold=1.0)
    right = files.are_right(linked.links.right)
    audited = linked.audited(review_links(linked.audit_sample(1_000, data.seed), files))
    linkage = audited.linkage_by_identifiers()
    groups = np.array(audited.rows.column("link_block").to_pylist(), dtype=str)
    of_group = {name: right[groups == name] for name in np.unique(groups)}
    true = {name: float(max(found.mean(), 1.0 / found.size)) for name, found in of_group.items()}
    known = dpl.ELE(true, block="link_block", source="identifiers", fields=linkage.fields, accuracy_error=0.0)
    releases = [dpl.fit(audited.rows, FORMULA, linkage=one, **FIT) for one in (linkage, known)]
    (low, high), (start, stop) = (release.conf_int()["income"] for release in releases)
    return float(right.mean()), low <= SLOPE <= high, (high - low) / (stop - start), releases[0].coef["income"] - SLOPE
