"""How far estimates of the accuracy are to be trusted: held-out files, errors of groups, and what quality costs beside linking.

A section of benchmarks/linking.py. Seeds and mixes of errors are such that nothing was tuned on them: constants were chosen on seed 1, with other mixes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import dplinked as dpl
from dplinked.linker.accuracies import known_accuracies
from dplinked.linker.audit import estimate_from_audit
from dplinked.linker.quality import DOUBT
from dplinked.linker.strata import make_strata
from dplinked.not_private.simulate import people
from dplinked.privacy import noise
from dplinked.simulate import TwoFiles, review_links, two_files
from sections import Report

SEEDS = (101, 102, 103)
# Factors of the generator's rates of errors, by field; "missing" is one for all rates of missing values.
MIXES: dict[str, dict[str, float]] = {
    "as it comes, × 1.5": {"": 1.5},
    "typing errors in names × 4": {"given_name": 4.0, "surname": 4.0},
    "wrong dates × 4, missing × 3": {"date_of_birth": 4.0, "missing": 3.0},
}
FILES = (
    (1.0, 0.0),
    (0.7, 0.0),
    (1.0, 0.2),
    (0.7, 0.2),
)  # overlap, and share of people with two records in the right file
FIVE = ["given_name", "surname", "date_of_birth", "postcode", "address"]
MOST_COST = 3.0  # quality's CPU seconds over linking's
LEAST_HELD = 0.9  # of the intervals of all linkages


def draw_files(rows: int, seed: int, mix: str, overlap: float, duplicates: float) -> TwoFiles:
    """Generated files whose errors have another mix."""
    factors, rates = MIXES[mix], people.ERROR_RATES
    changed = {
        field: {
            kind: rate * factors.get(field, 1.0) * (factors.get("missing", 1.0) if kind == "missing" else 1.0)
            for kind, rate in kinds.items()
        }
        for field, kinds in rates.items()
    }
    people.ERROR_RATES = MappingProxyType(changed)
    try:
        return two_files(rows, seed, errors=factors.get("", 1.0), overlap=overlap, duplicates=duplicates)
    finally:
        people.ERROR_RATES = rates


def splink_pairs(files: TwoFiles) -> pa.Table:
    """Pairs as a user of Splink gets them: three blocking rules, two trainings, probabilities from .001 on."""
    import splink.comparison_library as cl
    from splink import DuckDBAPI, Linker, SettingsCreator, block_on

    settings = SettingsCreator(
        link_type="link_only",
        unique_id_column_name="id",
        blocking_rules_to_generate_predictions=[
            block_on("surname"),
            block_on("given_name", "postcode"),
            block_on("date_of_birth"),
        ],
        comparisons=[
            cl.JaroWinklerAtThresholds("given_name", [0.9, 0.7]),
            cl.JaroWinklerAtThresholds("surname", [0.9, 0.7]),
            cl.LevenshteinAtThresholds("date_of_birth", [1, 2]),
            cl.ExactMatch("postcode"),
        ],
    )
    logging.getLogger("splink").setLevel(logging.CRITICAL)
    database = DuckDBAPI()
    with contextlib.redirect_stdout(io.StringIO()):
        tables = [table.select(["id", *FIVE]) for table in (files.left, files.right)]
        linker = Linker(
            [database.register(t, dataset_display_name=name) for t, name in zip(tables, "AB", strict=True)], settings
        )
        linker.training.estimate_probability_two_random_records_match(
            [block_on("given_name", "surname", "date_of_birth")], recall=0.7
        )
        linker.training.estimate_u_using_random_sampling(max_pairs=1e6, seed=1)
        for columns in (("given_name", "surname"), ("date_of_birth",)):
            linker.training.estimate_parameters_using_expectation_maximisation(block_on(*columns))
        found = linker.inference.predict(threshold_match_probability=0.001).as_pyarrow_table()
    one, other = (np.array(found[name].to_pylist(), dtype=object) for name in ("id_l", "id_r"))
    swapped = np.array([name.startswith("B") for name in one])
    return pa.table(
        {
            "left": np.where(swapped, other, one).tolist(),
            "right": np.where(swapped, one, other).tolist(),
            "match_probability": found["match_probability"],
        }
    )


ROUTES: dict[str, Callable[[TwoFiles], dict[str, Any]]] = {
    "rules, five fields": lambda files: {"fields": FIVE, "block": "state"},
    "rules, names and date": lambda files: {"fields": FIVE[:3], "block": "state"},
    "splink": lambda files: {"fields": FIVE, "method": "splink"},
    "pairs of Splink, used directly": lambda files: {"method": "pairs", "pairs": splink_pairs(files)},
}


@dataclass(frozen=True)
class Found:
    """One linkage: its accuracy, errors of estimates with their intervals, and the CPU seconds of quality over those of linking."""

    true: float
    error: float
    half: float
    holds: bool
    doubtful: bool
    declared: float
    alone: float
    cost: float


def measure_one(files: TwoFiles, overlap: float, settings: dict[str, Any]) -> Found:
    """Link, estimate, compare with the truth; then once more with the overlap declared, and with nobody allowed two records."""
    start = time.process_time()
    linked = dpl.link(files.left, files.right, id="id", **settings)
    linking = time.process_time() - start
    start = time.process_time()
    assert linked.rows.num_rows
    linked.summary()
    linked.audited(review_links(linked.audit_sample(400), files)).summary()
    cost = (time.process_time() - start) / linking
    found = next(one for one in linked.estimates if one.method == "one-to-one")
    true = float(files.are_right(linked.links.right).mean())
    value, low, high = found.overall
    declared, alone = (
        replace(linked, **known).estimates[0].overall[0] - true
        for known in ({"overlap": overlap}, {"duplicates": False})
    )
    return Found(true, value - true, (high - low) / 2, low <= true <= high, found.doubtful, declared, alone, cost)


def measure_quality(quick: bool, console: Console) -> Report:
    """All of it: held-out files, cost of large ones, errors of groups."""
    report = Report()
    rows, seeds = (600, SEEDS[:1]) if quick else (2_000, SEEDS)
    routes = dict(list(ROUTES.items())[:2]) if quick else ROUTES
    cases = [(mix, *files, route) for mix in MIXES for files in FILES for route in routes]
    table, everything = [], list[Found]()
    for mix, overlap, duplicates, route in track(cases, "Held-out files", console=console):
        runs = []
        for seed in seeds:
            files = draw_files(rows, seed, mix, overlap, duplicates)
            runs.append(measure_one(files, overlap, routes[route](files)))
        everything += runs
        mean = {name: float(np.mean([getattr(run, name) for run in runs])) for name in Found.__annotations__}
        worst = max((run.error for run in runs), key=abs)
        table.append(
            [
                mix, f"{overlap:g}", f"{duplicates:g}", route, f"{mean['true']:.3f}", f"{mean['error']:+.3f} ({worst:+.3f})", f"{mean['half']:.3f}",
                f"{sum(run.holds for run in runs)}/{len(runs)}", f"{sum(run.doubtful for run in runs)}/{len(runs)}", f"{mean['declared']:+.3f}", f"{mean['alone']:+.3f}",
            ]
        )  # fmt: skip
    report.add(
        f"Generated files of {rows:,} rows, seeds {', '.join(map(str, seeds))}, with mixes of errors that nothing was tuned on. *One-to-one* is its error, mean and worst over seeds; "
        "*half width* and *held* are those of its interval, *doubtful* where it says of itself that it may be off by more than .02. *Overlap declared*: its mean error with the true "
        "overlap declared; *nobody twice*: with duplicates=False, what version 0.1 did."
    )
    report.table(
        ["errors", "overlap", "duplicates", "route", "accuracy", "one-to-one", "half width", "held", "doubtful", "overlap declared", "nobody twice"], table
    )  # fmt: skip
    off = np.array([abs(run.error) for run in everything])
    doubtful, holds = (np.array([getattr(run, name) for run in everything]) for name in ("doubtful", "holds"))
    missed = int((~doubtful & (off > DOUBT)).sum())
    report.add(
        f"Of {off.size} linkages {int((off > DOUBT).sum())} are off by more than .02, {missed} of these without being called doubtful; {int(doubtful.sum())} are called doubtful. Intervals "
        f"hold the truth in {holds.mean():.1%}. Absolute error: mean {off.mean():.4f}, largest {off.max():.4f}; with nobody twice, mean "
        f"{np.mean([abs(run.alone) for run in everything]):.4f}, largest {max(abs(run.alone) for run in everything):.4f}; with the overlap declared, "
        f"mean {np.mean([abs(run.declared) for run in everything]):.4f}, largest {max(abs(run.declared) for run in everything):.4f}."
    )
    report.require(missed == 0, f"{missed} estimates are off by more than .02 and not called doubtful")
    report.require(holds.mean() >= LEAST_HELD, f"intervals hold the truth in {holds.mean():.3f} of linkages")
    _cost(report, quick)
    _group_errors(report, 50 if quick else 300)
    _many_blocks(report, 4 if quick else 50, console)
    return report


# --- what it costs ------------------------------------------------------------------------------------


def _cost(report: Report, quick: bool) -> None:
    """CPU seconds of linking, and of everything about quality afterwards: rows, report, audit, report again."""
    rows = 1_000 if quick else 8_000
    files = two_files(rows, 104, errors=2.0)
    ways: dict[str, dict[str, Any]] = {
        "rules, names and date, within states": {"fields": FIVE[:3], "block": "state"},
        "the same from a score of 1 on": {"fields": FIVE[:3], "block": "state", "threshold": 1.0},
        "rules, names alone, within states": {"fields": FIVE[:2], "block": "state"},
        "rules, five fields, within postcodes": {"fields": [*FIVE[:3], "address", "suburb"], "block": "postcode"},
    }
    table = []
    for name, how in ways.items():
        start = time.process_time()
        linked = dpl.link(files.left, files.right, id="id", **how)
        linking = time.process_time() - start
        start = time.process_time()
        assert linked.rows.num_rows
        linked.summary()
        audited = linked.audited(review_links(linked.audit_sample(400), files))
        assert audited.rows.num_rows
        audited.summary()
        cost = time.process_time() - start
        table.append(
            [name, f"{linked.links.candidates.left.size:,}", f"{linking:.1f}", f"{cost:.1f}", f"{cost / linking:.1f}"]
        )
        report.require(
            quick or cost <= MOST_COST * linking, f"{name}: quality takes {cost / linking:.1f} times linking"
        )
    report.add(
        f"CPU seconds of linking {rows:,} by {rows:,} records, and of all that is asked afterwards: rows, report, audit read back, rows and report again."
    )
    report.table(["linked by", "candidates", "linking", "quality", "ratio"], table)


# --- errors of groups ---------------------------------------------------------------------------------


def _group_errors(report: Report, repetitions: int) -> None:
    """Whether the error of the mean accuracy that follows from those of groups is the true one."""
    rng, table = np.random.default_rng(7), []
    for groups in (9, 40):
        for spread in (0.0, 0.03, 0.1):
            for scale in (0.0, 3.0):
                runs = np.array([_audit_groups(groups, spread, scale, rng) for _ in range(repetitions)])
                held = (np.abs(runs) < 1.96).mean(axis=0)
                table.append([groups, f"{spread:g}", f"{scale:g}", *(f"{share:.1%}" for share in held)])
                report.require(
                    held[0] > 0.95 - 4 * np.sqrt(0.0475 / repetitions),
                    f"{groups} groups, spread {spread:g}, noise {scale:g}: the mean accuracy is held in {held[0]:.3f}",
                )
    report.add(
        f"Groups of 50 to 1,000 rows, accuracies of .9 ± *spread*, 1,000 links checked in all, *noise* on the number of right ones; {repetitions} audits each. How often the mean accuracy of all rows lies within "
        "1.96 standard errors, by errors of which groups share the part that comes from their common mean, and taken as independent, as they were in version 0.1."
    )
    report.table(["groups", "spread", "noise", "shared", "independent"], table)


def _audit_groups(groups: int, spread: float, scale: float, rng: np.random.Generator) -> tuple[float, float]:
    """One audit: the error of the mean accuracy over its standard error, shared and independent."""
    sizes = rng.integers(50, 1_000, groups)
    strata = make_strata(np.repeat(np.array([f"{k:02d}" for k in range(groups)], dtype=object), sizes))
    right = rng.random(sizes.sum()) < np.clip(rng.normal(0.9, spread, groups), 0.3, 1.0)[strata.of_row]
    drawn = np.flatnonzero(rng.random(right.size) < 1_000 / right.size)
    audit = estimate_from_audit(strata, drawn, right[drawn])
    assert audit.correct is not None
    assert audit.checked is not None
    noisy = audit.correct + scale * rng.normal(size=groups)
    known = known_accuracies(strata, noisy, audit.checked.astype(float), scale)
    shares = dict(zip(strata.names, strata.rows / strata.rows.sum(), strict=True))
    found = []
    for shared in (known["shared_error"], None):
        linkage = dpl.ELE(block="link_block", **{**known, "shared_error": shared}, source="public")
        mean = sum(shares[name] * accuracy for name, accuracy in dict(linkage.accuracy).items())  # type: ignore[call-overload]
        error = mean * np.sqrt(linkage.accuracy_variance(shares) or np.nan)
        found.append((mean - right.mean()) / error)
    return found[0], found[1]


def _many_blocks(report: Report, repetitions: int, console: Console) -> None:
    """Link, audit, release, fit with more than fifty blocks: half widths with and without an error of its own for rows linked across blocks."""
    formula, slope = "consumption ~ income", 0.55
    options: dict[str, Any] = {
        "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)}, "typical": {"income": (15_000, 50_000)},
        "fill": {"consumption": 20_000}, "unit": dpl.PrivacyUnit(), "epsilon": 1.0, "delta": 1e-6,
    }  # fmt: skip
    runs = []
    for seed in track(range(1, repetitions + 1), "Many blocks", console=console):
        files = two_files(3_000, 200 + seed, errors=1.0)
        linked = dpl.link(files.left, files.right, fields=FIVE[:3], id="id", block="postcode", seed=seed)
        audited = linked.audited(review_links(linked.audit_sample(600, seed), files))
        with _seeded_noise(seed):
            linkage = dpl.release_accuracy(audited, epsilon=0.5, delta=1e-6, unit=dpl.PrivacyUnit()).linkage
        assert linkage.other_error is not None
        worst = max(float(linkage.accuracy_error), linkage.other_error)  # type: ignore[arg-type]
        whole = linkage.describe_whole() | {"accuracy_error": worst, "other_error": None}
        whole.pop("model")
        ends = []
        for model in (linkage, dpl.ELE(**whole)):
            with _seeded_noise(seed):
                low, high = dpl.fit(audited.rows, formula, linkage=model, **options).conf_int()["income"]
            ends.append(((high - low) / 2, low <= slope <= high))
        runs.append((float(files.are_right(linked.links.right).mean()), *ends[0], *ends[1]))
    right, half, held, old, old_held = np.array(runs).T
    report.add(
        f"3,000 people linked within some 700 postcodes ({right.mean():.1%} right), 600 links checked, accuracies released at ε = .5, the slope at ε = 1, {repetitions} times anew: half width of the "
        f"95 % interval {np.median(half):.3f}, which holds {slope} in {held.mean():.0%}; with the largest error of any group for all rows, as in version 0.1, {np.median(old):.3f} and {old_held.mean():.0%}."
    )
    report.require(
        np.median(half) < 0.7 * np.median(old), "an error of its own for rows linked across blocks hardly helps"
    )


@contextlib.contextmanager
def _seeded_noise(seed: int) -> Iterator[None]:
    """Noise of the same scales from NumPy."""
    rng, before = np.random.default_rng([seed, 9]), noise.add_gaussian

    def add(values: Any, scale: Any) -> NDArray[np.float64]:
        return np.asarray(values, float) + np.asarray(scale) * rng.normal(size=np.shape(values))

    noise.add_gaussian = add
    try:
        yield
    finally:
        noise.add_gaussian = before
