"""Every release path under the replay check, with neighbours of every kind; and faults it must catch."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked import methods
from dplinked.data import csv as text_files
from dplinked.linker import accuracies
from dplinked.linker.audit import estimate_from_audit
from dplinked.linker.quality import SecretAudit
from dplinked.linker.release_accuracy import GUESS
from dplinked.privacy import spending as spent
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.noise_plan import NoisePlan
from dplinked.privacy.quantities import (
    instrument,
    meat,
    ranges,
    residual_scale,
    right_links,
    right_residuals,
    stratum_totals,
)
from dplinked.second_stage import expectation, sides, slope, start, steps
from dplinked.sums import files as file_engine
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.numpy import kernel, tables
from dplinked.sums.numpy.tables import TablePass
from dplinked.sums.partners import unlinking_terms
from duckdb_ways import add_by_sql, copy_to_file
from neighbours import (
    BOUNDS,
    CONTAINERS,
    FURTHER_KINDS,
    KINDS,
    LEVELS,
    UNREADABLE,
    WILD_CELLS,
    Pair,
    by_id,
    make_pair,
    wild_pair,
)
from replay import Leak, record, replay
from secret_samples import brute_delta
from stages import set_in_stage

EPSILON, DELTA = 1.0, 1e-5
SECRET_RATE = 0.05
FORMULAS = ("y ~ x", "y ~ 0 + x + w", "y ~ x + C(g)", "y ~ x*w + I(x**2)", "y ~ 0 + C(g):x")
PATHS = {
    "ssp": {"ranges": "declared", "intervals": False},
    "row meat": {"ranges": "declared"},
    "block meat": {"ranges": "declared"},
    "row meat, strata": {"ranges": "declared", "strata": "g"},
    "weighed groups": {},
    "typical": {"typical": {"x": (2.0, 4.0)}},
    "private ranges": {"ranges": "private", "intervals": False},
    "fall-back": {},
    "second stage": {"intervals": False},
    "second stage, row meat": {},
    "second stage, block meat": {},
    "second stage, scale alone": {},
    "second stage, weighed groups": {},
    "second stage, symmetric errors": {"errors": "symmetric"},
    "second stage, one step": {},
    "second stage, filled cells": {"missing": "fill"},
    "second stage, whitened": {},
    "second stage, tails": {},
    "second stage, tails, filled cells": {"missing": "fill"},
    "second stage, whitened, tails": {"intervals": False},
    "second stage, both sides": {},
    "second stage, whitened, both sides": {"intervals": False},
    "fall-back, far columns": {"typical": {"x": (2.0, 4.0)}},
    "second stage, weights": {"weights": "x"},
    "second stage, weights, block meat": {"weights": "x", "typical": {"x": (1.0, 3.0)}},
    "second stage, weights, scale alone": {"weights": "x", "ranges": "declared"},
    "second stage, weights, begun near": {"weights": "x"},
    "second stage, whitened, begun near, a condition": {"where": "not g == 'c' or w < 0"},
    "second stage, a condition": {"where": "x > 4 and g != 'b'"},
    "second stage, whitened, a condition and weights": {"where": "not g == 'c' or w < 0", "weights": "x"},
    "second stage, clusters": {"cluster": "g"},
    "second stage, whitened, clusters and weights": {"cluster": "g", "weights": "x"},
    "second stage, strata": {"strata": "g"},
    "second stage, strata, scale alone": {"strata": "g"},
    "second stage, strata and clusters": {"strata": "g", "cluster": "x"},
    "second stage, whitened, strata and weights": {"strata": "g", "weights": "x", "where": "w < 0"},
    "second stage, goodness": {"goodness": True},
    "second stage, whitened, goodness and weights": {"goodness": True, "weights": "x"},
    "second stage, declared ranges": {"typical": {"x": (2.0, 4.0)}, "ranges": "declared"},
    "ngd": {"method": "ngd", "intervals": False},
    "ngd with intervals": {"method": "ngd"},
    "paper ssp": {"calibration": "paper", "epsilon": 0.9},
    "paper ssp alone": {"calibration": "paper", "epsilon": 0.9, "intervals": False},
    "paper ngd": {"calibration": "paper", "method": "ngd", "descent": dpl.Descent(2.0, 5, 0.01)},
    "paper ngd alone": {
        "calibration": "paper",
        "method": "ngd",
        "descent": dpl.Descent(2.0, curvature=1.2),
        "intervals": False,
    },
}
IN_BLOCKS = ("ele", "ele-one", "table", "displaced")  # elsewhere there are no blocks, or one person can change them


def is_possible(kind: str, path: str) -> bool:
    """Blocks are squared where there are some and everyone knows them; groups have weights where a table declares them."""
    if "weighed" in path:
        return kind == "table"
    return "block meat" not in path or kind in (*IN_BLOCKS, "carriers")


CELLS = [(kind, path) for kind in KINDS for path in PATHS if is_possible(kind, path)]
FURTHER_CELLS = [(kind, path) for kind in FURTHER_KINDS for path in PATHS if is_possible(kind, path)]
ENGINES = ("NumPy", "parquet", "stream", "duckdb", "copy")


def is_other(engine: str, kind: str, path: str) -> bool:
    """Whether an engine does anything else than memory: NumPy alone stands in for the kernel, which the paper's sums and Q do not call, and DuckDB copies nothing for Q."""
    if engine == "copy":
        return kind != "matching"
    return engine != "NumPy" or not (kind == "matching" or path.startswith("paper"))


def tries(path: str, many: int = 10, few: int = 5) -> int:
    """Pairs to try, with each formula equally many. The releases of the second stage are tried one by one in `test_right_residuals.py`."""
    return few if path.startswith(("second stage", "fall-back", "weighed")) else many


def in_memory(data: dict[str, Any], linkage: Any) -> tuple[Any, Any]:
    return data, linkage


def count_steps(release: dpl.Release) -> int:
    """Steps of the second stage, a look at both sides of the line among them; 0 without one."""
    return [part.name for part in release.released.parts].count("right residuals")


def can_be_unlinked(pair: Pair) -> bool:
    exposure = pair.linkage.exposure(pair.unit)
    return exposure.symmetric or unlinking_terms(exposure.accuracy_min) is not None


def check(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, formula: str, path: str, seed: int, engine: Any = in_memory
) -> float:
    options = {"epsilon": EPSILON, **PATHS[path]}
    if {"weights", "where", "cluster", "strata", "goodness"} & options.keys() and not can_be_unlinked(pair):
        return 0.0  # refused

    def run(data, linkage):
        data, linkage = engine(data, linkage)
        release = dpl.fit(
            data, formula, bounds=BOUNDS, levels=LEVELS, linkage=linkage, unit=pair.unit, delta=DELTA, **options
        )
        staged = path.startswith("second stage") and can_be_unlinked(pair)
        steps = 1 if "one step" in path else 3 if "both sides" in path else 2
        assert count_steps(release) == (steps if staged else 0)
        meats = [part.name for part in release.released.parts].count("meat")
        assert not (staged and "tails" in path) or meats == (1 if "whitened" in path else 2)
        whitened = any(part.name == "whitened matrix" for part in release.released.parts)
        assert whitened == (staged and "whitened" in path)
        # What is declared may differ between the two (a changed Q); everything else may not.
        hidden = getattr(linkage, "source", "") == "estimated"
        return release if hidden else dataclasses.replace(release, linkage={})

    mu = privacy_mu(options["epsilon"], DELTA)
    with monkeypatch.context() as patch:
        take_path(patch, path)
        return replay(
            patch, lambda: run(pair.data, pair.linkage), lambda: run(pair.other, pair.other_linkage), mu, seed
        )


@pytest.fixture(autouse=True)
def _releases_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files would skip private ranges and the size of residuals; here they must run."""
    plan_ranges, plan_scale = ranges.plan_ranges, residual_scale.plan_residual_scale
    for module in (ranges, methods):
        monkeypatch.setattr(module, "plan_ranges", lambda columns, count, mu: plan_ranges(columns, 10**9, mu))

    def plan(exposure, count, mu, highest=0.97, **kind):
        return plan_scale(exposure, 10**9, mu, highest, **kind)

    for module in (residual_scale, methods):
        monkeypatch.setattr(module, "plan_residual_scale", plan)
    set_in_stage(monkeypatch, "plan_residual_scale", plan)


def take_path(patch: pytest.MonkeyPatch, path: str) -> None:
    """Let public values decide as the path wants it: for a second stage or against it, and for a route to the variance."""
    decides, route_of = expectation.may_take_second_stage, meat.choose_route
    allowed = path.startswith(("fall-back", "second stage"))
    patch.setattr(methods, "may_take_second_stage", lambda *public: allowed and decides(*public))
    set_in_stage(patch, "_pays", lambda *public: not path.startswith("fall-back"))
    is_far = "tails" in path or "far columns" in path
    set_in_stage(patch, "far_columns", lambda design, sizes: np.full(sizes.size, is_far))
    set_in_stage(patch, "choose_tail_norm", lambda *public: 0.5)  # a tight one, which must bite
    set_in_stage(patch, "widen_clip", lambda squares, *_: 2.0 + 0.1 * math.tanh(squares.max()))
    set_in_stage(patch, "is_calm", lambda *public: "tails" in path)
    set_in_stage(patch, "is_worth_a_look", lambda *public: "both sides" in path)
    set_in_stage(patch, "_is_near", lambda *public: "one step" in path or "begun near" in path)
    set_in_stage(patch, "began_near", lambda *public: public[-1].beta[-1] > public[-2].beta[-1])  # now and then
    set_in_stage(patch, "_hang_together", lambda inverse, sizes: "whitened" in path)
    set_in_stage(patch, "has_rare_levels", lambda *public: False)
    set_in_stage(patch, "_choose", lambda by_columns, whitened: whitened if "whitened" in path else by_columns)
    if "weighed" in path:
        set_in_stage(patch, "choose_weights", lambda groups, noise: np.linspace(0.2, 1.0, groups.sizes.size)[::-1])
    wanted = "block" if "block meat" in path else "scale" if "scale alone" in path else "row"

    def choose(p, exposure, largest_block, count, mu, **kind):
        if wanted == "scale":
            return meat.SCALE_ALONE
        route = route_of(p, exposure, largest_block if wanted == "block" else None, 10**9, mu, **kind)
        assert route.name == wanted
        return dataclasses.replace(route, clip={"block": 1.0, "row": 0.7}[route.name])  # tight clips: they must bite

    patch.setattr(methods, "choose_route", choose)
    set_in_stage(patch, "choose_route", choose)
    patch.setattr(stratum_totals, "_CLEAR", 0.0)  # strata of few rows have centres too
    patch.setattr(stratum_totals, "_TELLING", 0.0)
    set_in_stage(patch, "choose_total_norm", lambda p, sizes, scale, private, spending: private.norms[0] / 4.0)


def check_pairs(monkeypatch: pytest.MonkeyPatch, kind: str, path: str, first: int, count: int) -> None:
    """Random pairs of a kind, with the formulas in turn; `first` tells series of pairs apart."""
    rng = np.random.default_rng([first + (*KINDS, *FURTHER_KINDS).index(kind), len(path)])
    for seed in range(count):
        pair = make_pair(rng, kind)
        if "block meat" not in path or pair.unit.fixes_blocks:
            check(monkeypatch, pair, FORMULAS[seed % len(FORMULAS)], path, seed)


def in_turn(cells: list[tuple[str, str]]) -> list[Any]:
    """All cells, but of what rows count every third by default: their releases are tried one by one in `test_right_residuals.py`."""
    counted = [cell for cell in cells if {"weights", "where", "cluster", "strata", "goodness"} & PATHS[cell[1]].keys()]
    late = {cell for k, cell in enumerate(counted) if k % 3}
    return [pytest.param(*cell, marks=pytest.mark.slow) if cell in late else cell for cell in cells]


@pytest.mark.parametrize(("kind", "path"), in_turn(CELLS))
def test_release_paths_replay(monkeypatch: pytest.MonkeyPatch, kind: str, path: str) -> None:
    check_pairs(monkeypatch, kind, path, 0, tries(path))


@pytest.mark.parametrize(("kind", "path"), in_turn(FURTHER_CELLS))
def test_further_neighbours_replay(monkeypatch: pytest.MonkeyPatch, kind: str, path: str) -> None:
    """One-to-many links, and rows that change their groups within the declared change of Q."""
    check_pairs(monkeypatch, kind, path, 0, tries(path))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), [*CELLS, *FURTHER_CELLS])
def test_release_paths_replay_at_length(monkeypatch: pytest.MonkeyPatch, kind: str, path: str) -> None:
    check_pairs(monkeypatch, kind, path, 1000, tries(path, 60, 20))


@pytest.mark.parametrize("engine", ["parquet", "stream", "duckdb", "copy"], indirect=True)
@pytest.mark.parametrize("kind", FURTHER_KINDS)
def test_further_neighbours_replay_by_engine(monkeypatch: pytest.MonkeyPatch, kind: str, engine: Any) -> None:
    rng = np.random.default_rng(3)
    for seed in range(4):
        check(monkeypatch, make_pair(rng, kind), FORMULAS[seed], "row meat", seed, engine)


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Data as another engine gets it; a matching matrix as pairs of ids where rows have no positions."""

    def parquet(data: dict[str, Any], linkage: Any) -> tuple[Any, Any]:
        pq.write_table(pa.table(data), tmp_path / "rows.parquet", row_group_size=3)
        return tmp_path / "rows.parquet", linkage

    def stream(data: dict[str, Any], linkage: Any) -> tuple[Any, Any]:
        table = pa.table(data)
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2)), linkage

    def duckdb(data: dict[str, Any], linkage: Any) -> tuple[Any, Any]:
        pytest.importorskip("duckdb")
        data, linkage = by_id(data, linkage)
        parquet(data, linkage)
        return dpl.Query("select * from 'rows.parquet'", folder=tmp_path), linkage

    if request.param == "NumPy":
        monkeypatch.setattr(kernel, "KERNEL", None)
        return in_memory
    monkeypatch.setattr(file_engine, "IN_MEMORY", 0)
    monkeypatch.setattr(importlib.import_module("dplinked.data.parquet"), "PART", 4)
    if request.param in ("duckdb", "copy"):
        (add_by_sql if request.param == "duckdb" else copy_to_file)(monkeypatch)
        return duckdb
    return {"parquet": parquet, "stream": stream}[request.param]


TURNS = [
    (next(kind for kind in (*KINDS[i % len(KINDS) :], *KINDS) if is_possible(kind, path)), path)
    for i, path in enumerate(PATHS)
]


@pytest.mark.parametrize(
    ("engine", "kind", "path"),
    [(engine, *turn) for engine in ENGINES for turn in TURNS if is_other(engine, *turn)],
    indirect=["engine"],
)
def test_engines_replay(monkeypatch: pytest.MonkeyPatch, kind: str, path: str, engine: Any) -> None:
    """Every kind of neighbours by one path each; all by all paths below."""
    check(monkeypatch, make_pair(np.random.default_rng(KINDS.index(kind)), kind), FORMULAS[2], path, 1, engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "kind", "path"),
    [(engine, *cell) for engine in ENGINES for cell in CELLS if is_other(engine, *cell)],
    indirect=["engine"],
)
def test_engines_replay_by_all_paths(monkeypatch: pytest.MonkeyPatch, kind: str, path: str, engine: Any) -> None:
    turn = CELLS.index((kind, path))
    pair = make_pair(np.random.default_rng([2000, turn]), kind)
    check(monkeypatch, pair, FORMULAS[turn % len(FORMULAS)], path, turn, engine)


def check_wild_cells(
    monkeypatch: pytest.MonkeyPatch, folder: Path, container: str, wild: list[str], column: str, path: str
) -> None:
    """One cell of one person is replaced: the same calls, scales and release, the allowed distance, and not a word."""
    rng = np.random.default_rng([len(container), len(path)])
    for seed, name in enumerate(wild):
        if (container, name) in UNREADABLE:
            continue
        pair = wild_pair(rng, ("exact", "ele")[seed % 2], column, WILD_CELLS[name])

        def opened(cells: Any, linkage: Any) -> tuple[Any, Any]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # readers of files warn of what they guess
                return CONTAINERS[container](cells, folder), linkage

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(monkeypatch, pair, FORMULAS[2], path, seed, opened)


SLOW_TO_OPEN = ("json", "json lines", "query")


@pytest.mark.parametrize("container", CONTAINERS)
def test_wild_cells_replay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, container: str) -> None:
    """Every container, every fourth kind of cell in turn; all of them by all paths below."""
    share = 8 if container in SLOW_TO_OPEN else 4
    chosen = list(WILD_CELLS)[list(CONTAINERS).index(container) % share :: share]
    check_wild_cells(monkeypatch, tmp_path, container, chosen, "x", "ssp")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["ssp", "row meat", "private ranges", "ngd", "paper ssp"])
@pytest.mark.parametrize("column", ["x", "y", "g"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_wild_cells_replay_by_all_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, container: str, column: str, path: str
) -> None:
    """Every container and every kind of cell in every column; of the five paths each takes a fifth of the cells, in turn."""
    first = ["ssp", "row meat", "private ranges", "ngd", "paper ssp"].index(path) + list(CONTAINERS).index(container)
    check_wild_cells(monkeypatch, tmp_path, container, list(WILD_CELLS)[first % 5 :: 5], column, path)


def test_a_decimal_mark_that_a_column_decides_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A planted fault: commas are decimal marks unless a word is in the column."""
    by_cell = text_files._with_points

    def by_column(column: Any, *marks: str) -> Any:
        return column if pc.any(pc.equal(column, WILD_CELLS["word"])).as_py() else by_cell(column, *marks)

    monkeypatch.setattr(text_files, "_with_points", by_column)
    with pytest.raises(Leak):
        check_wild_cells(monkeypatch, tmp_path, "csv abroad", ["word"] * 6, "x", "ssp")


def audited_pair(rng: np.random.Generator, displaced: int) -> tuple[dpl.Linked, dpl.Linked]:
    """The same links and checked rows; at most 2 + k of the answers differ."""
    n = int(rng.integers(12, 60))
    ids = [str(i) for i in range(n)]
    files = [{"id": ids, "name": ids, "state": rng.choice(["x", "y", "z"], n).tolist()} for _ in range(2)]
    linked = dpl.link(
        *files, fields=["name"], id="id", block="state", method="pairs", pairs={"left": ids, "right": ids}
    )
    rows = np.flatnonzero(rng.random(n) < 0.7)
    rows = rows if rows.size > displaced + 2 else np.arange(n)
    answers = rng.random(rows.size) < 0.8
    other = answers.copy()
    turned = rng.choice(rows.size, displaced + 2, replace=False)
    other[turned] = ~answers[turned] if rng.random() < 0.5 else not answers[turned[0]]
    found = [estimate_from_audit(linked.strata, rows, right) for right in (answers, other)]
    return dataclasses.replace(linked, audit=found[0]), dataclasses.replace(linked, audit=found[1])


def check_accuracy(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, seed: int) -> float:
    displaced = int(rng.integers(0, 4))
    monkeypatch.setattr(accuracies, "affords_groups", lambda *_: bool(seed % 2))  # counts of groups, and one of all
    pair, unit = audited_pair(rng, displaced), dpl.PrivacyUnit(displaced_links=displaced)
    runs = [lambda side=side: dpl.release_accuracy(side, epsilon=EPSILON, delta=DELTA, unit=unit) for side in pair]
    return replay(monkeypatch, *runs, privacy_mu(EPSILON, DELTA), seed)


def test_released_accuracies_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    reached = max(check_accuracy(monkeypatch, rng, seed) for seed in range(150))
    assert reached > 0.95 * privacy_mu(EPSILON, DELTA)  # all turned answers in one group: the bound is attained


TAGS = itertools.count()  # a sample is released from once


def release_in_secret(linked: dpl.Linked, unit: dpl.PrivacyUnit) -> Any:
    """Release an audit as one of links that were drawn in secret."""

    def release() -> Any:
        audit = dataclasses.replace(linked.audit, secret=SecretAudit(SECRET_RATE, f"tag {next(TAGS)}"))
        drawn = dataclasses.replace(linked, audit=audit)
        return dpl.release_accuracy(drawn, epsilon=EPSILON, delta=DELTA, unit=unit)

    return release


def check_secret_accuracy(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, seed: int) -> None:
    """The same sample on both neighbours: the same calls and result. And over all who may have been drawn, by brute force: no more than (ε, δ)."""
    displaced = int(rng.integers(0, 3))
    monkeypatch.setattr(accuracies, "affords_groups", lambda *_: bool(seed % 2))
    pair, unit = audited_pair(rng, displaced), dpl.PrivacyUnit(displaced_links=displaced)
    runs = [release_in_secret(side, unit) for side in pair]
    replay(monkeypatch, *runs, math.inf, seed)
    scale = float(record(monkeypatch, runs[0], seed)[1][0].scale.min())
    turned = [[(0, right)] * (displaced + 2) for right in (True, False)]
    if max(brute_delta(SECRET_RATE, scale, GUESS, EPSILON, changes) for changes in turned) > DELTA * (1.0 + 1e-6):
        raise Leak("the noise is too small for who may have been drawn")


def check_sample_stays_secret(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, seed: int) -> None:
    """Two samples of the same links differ in the noisy counts and in nothing else."""
    linked = audited_pair(rng, 0)[0]
    samples = [np.flatnonzero(rng.random(linked.left.num_rows) < share) for share in (0.3, 0.6)]
    right = rng.random(linked.left.num_rows) < 0.8
    audits = [estimate_from_audit(linked.strata, rows, right[rows]) for rows in samples]
    runs = [release_in_secret(dataclasses.replace(linked, audit=audit), dpl.PrivacyUnit()) for audit in audits]
    replay(monkeypatch, *runs, math.inf, seed)


def test_accuracies_of_a_secret_sample_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    for seed in range(6):
        check_secret_accuracy(monkeypatch, rng, seed)
        check_sample_stays_secret(monkeypatch, rng, seed)


@pytest.mark.parametrize(
    "fault", ["half the noise", "one person, one row", "public sample", "numbers shown", "noise by numbers"]
)
def test_catches_faults_in_accuracies_of_a_secret_sample(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    accuracy = importlib.import_module("dplinked.linker.release_accuracy")
    check = check_secret_accuracy
    if fault == "half the noise":
        scales = NoisePlan.scales
        monkeypatch.setattr(NoisePlan, "scales", lambda plan: scales(plan) / 2.0)
    elif fault == "one person, one row":
        calibrate = accuracy.calibrate_sample
        monkeypatch.setattr(
            accuracy,
            "calibrate_sample",
            lambda rate, rows, *rest: dataclasses.replace(calibrate(rate, 1, *rest), rows=rows),
        )
    elif fault == "public sample":  # whoever looks knows who was drawn
        exact = brute_delta
        monkeypatch.setattr(sys.modules[__name__], "brute_delta", lambda rate, *rest: exact(1.0, *rest))
    elif fault == "numbers shown":
        draw, check = accuracy._draw_in_secret, check_sample_stays_secret
        monkeypatch.setattr(
            accuracy,
            "_draw_in_secret",
            lambda linked, sample: dataclasses.replace(draw(linked, sample), checked=linked.audit.checked),
        )
    else:
        release, check = accuracy.release_secret_links, check_sample_stays_secret
        monkeypatch.setattr(
            accuracy,
            "release_secret_links",
            lambda private, sample, guess: release(
                dataclasses.replace(private, rows=int(private.checked.sum()) << 20), sample, guess
            ),
        )
    rng = np.random.default_rng(8)

    def search() -> None:
        for seed in range(8):
            check(monkeypatch, rng, seed)

    with pytest.raises(Leak):
        search()


def _put(noisy: np.ndarray, checked: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Noisy counts with the true ones in their places."""
    noisy = noisy.copy()
    noisy[checked > 0] = counts
    return noisy


@pytest.mark.parametrize(
    "fault",
    ["half the noise", "one person, one answer", "accuracies from the counts", "groups joined by what was found"],
)
def test_catches_faults_in_released_accuracies(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    accuracy = importlib.import_module("dplinked.linker.release_accuracy")
    if fault == "half the noise":
        scales = NoisePlan.scales
        monkeypatch.setattr(NoisePlan, "scales", lambda plan: scales(plan) / 2.0)
    elif fault == "one person, one answer":
        monkeypatch.setattr(right_links, "right_links_sensitivity", lambda exposure: 1.0)
    elif fault == "groups joined by what was found":
        count, together = accuracy._counts, accuracy.count_together
        told: list[int] = []
        monkeypatch.setattr(
            accuracy, "_counts", lambda linked: (told.append(int(count(linked)[0].sum())), count(linked))[1]
        )
        monkeypatch.setattr(accuracy, "count_together", lambda strata, *rest: together(strata, *rest) * (told[-1] % 2))
    else:
        known = accuracy.known_accuracies
        seen: list[np.ndarray] = []
        release = accuracy.release_right_links
        monkeypatch.setattr(
            accuracy,
            "release_right_links",
            lambda private, spending: (seen.append(private.counts), release(private, spending))[1],
        )
        monkeypatch.setattr(
            accuracy,
            "known_accuracies",
            lambda strata, counts, checked, *rest: known(strata, _put(counts, checked, seen[-1]), checked, *rest),
        )
    rng = np.random.default_rng(8)

    def search() -> None:
        for seed in range(150):
            check_accuracy(monkeypatch, rng, seed)

    with pytest.raises(Leak):
        search()


def test_catches_estimated_accuracies_that_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpl.ELE, "describe", dpl.ELE.describe_whole)
    assert caught(monkeypatch, "estimated")


def test_catches_estimated_accuracies_outside_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        dpl.ELE,
        "declared",
        property(lambda self: tuple(self.accuracy.values()) if isinstance(self.accuracy, dict) else (self.accuracy,)),
    )
    assert caught(monkeypatch, "estimated")


# --- faults that must be caught --------------------------------------------------------------------


def caught(
    monkeypatch: pytest.MonkeyPatch, kind: str, path: str = "ssp", tries: int = 300, formula: str | None = None
) -> bool:
    rng = np.random.default_rng(5)
    for seed in range(tries):
        try:
            check(monkeypatch, make_pair(rng, kind), formula or FORMULAS[seed % 2], path, seed)
        except Leak:
            return True
    return False


@pytest.mark.slow
def test_without_faults_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not caught(monkeypatch, "exact")
    assert not caught(monkeypatch, "displaced")


def test_catches_data_dependent_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    original = tables.prepare_rows

    def from_data(rows, design, linkage, unit, progress):
        values = rows.numbers("x", 0, rows.count)
        values = values[np.isfinite(values)]
        top = float(np.clip(values.max(initial=1.0), 1.0, 10.0))
        columns = tuple(dataclasses.replace(c, scale=c.scale * top / 10.0) for c in design.columns)
        return original(rows, dataclasses.replace(design, columns=columns), linkage, unit)

    monkeypatch.setattr(tables, "prepare_rows", from_data)
    assert caught(monkeypatch, "exact")


def test_catches_scaling_by_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TablePass.instrument_sums

    def standardised(data):
        sums = original(data)
        spread = 1e-3 + np.abs(np.diag(sums.matrix)).max() / sums.count
        return dataclasses.replace(sums, matrix=sums.matrix / spread)

    monkeypatch.setattr(TablePass, "instrument_sums", standardised)
    assert caught(monkeypatch, "exact")


def test_catches_a_count_of_rows_that_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TablePass.instrument_sums

    def dropping(data):
        kept = int(np.isfinite(data.data.rows.numbers("x", 0, data.count)).sum())
        return dataclasses.replace(original(data), count=max(1, kept))

    monkeypatch.setattr(TablePass, "instrument_sums", dropping)
    assert caught(monkeypatch, "exact")


@pytest.mark.parametrize("path", ["row meat", "block meat"])
def test_catches_too_little_noise_on_the_meat(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Only the meat's own noise is cut; a pair must move it further than that allows."""
    sensitivity = meat.meat_sensitivity
    monkeypatch.setattr(meat, "meat_sensitivity", lambda private: 0.04 * sensitivity(private))
    assert caught(monkeypatch, "ele", path, tries=600)


def test_catches_residuals_that_look_at_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals from the block's mean move with every row of the block; the counts' sensitivity knows of two."""
    from dplinked.sums.numpy import residuals

    own = residuals._own_residuals

    def shifted(data, predictor, x, z):
        return own(data, predictor, x, z) - 10.0 * x.mean()

    monkeypatch.setattr(kernel, "KERNEL", None)
    monkeypatch.setattr(residuals, "_own_residuals", shifted)
    monkeypatch.setattr(residual_scale, "RESIDUAL_SCALE", 0.9)
    monkeypatch.setattr(methods, "VARIANCE", 0.95)
    monkeypatch.setattr(instrument, "VARIANCE", 0.95)
    assert caught(monkeypatch, "ele", "row meat", tries=600)


@pytest.mark.parametrize("path", ["ssp", "ngd", "paper ssp", "paper ngd", "private ranges"])
def test_catches_half_the_noise(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Pairs that reach the sensitivity: an exact join for the tight paths, whose bounds are attained."""
    scales = NoisePlan.scales
    factor = 0.5 if path in ("ssp", "ngd") else 0.1  # the paper's calibration has that much to spare
    if path == "private ranges":
        original = ranges.bisect

        def weaken(counts, levels, steps, plan):
            parts = tuple(dataclasses.replace(part, scale=part.scale * 0.02) for part in plan.parts)
            return original(counts, levels, steps, NoisePlan(parts, plan.mu))

        monkeypatch.setattr(ranges, "bisect", weaken)
    else:
        monkeypatch.setattr(NoisePlan, "scales", lambda plan: scales(plan) * factor)
    assert caught(monkeypatch, "exact" if path in ("ssp", "private ranges") else "ele", path)


def test_catches_a_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_it_looks_good(private, spending, **kind):
        released = instrument.release_sums(private, spending, **kind)
        while abs(np.linalg.det(released.matrix)) < abs(np.linalg.det(private.sums.matrix)) * 0.5:
            released = instrument.release_sums(private, spent.Spending(spending.mu), **kind)
        return released

    monkeypatch.setattr(methods, "release_sums", until_it_looks_good)
    assert caught(monkeypatch, "exact")


def test_catches_a_ridge_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TablePass.instrument_sums
    seen = {}

    def remember(data):
        seen["sums"] = original(data)
        return seen["sums"]

    solve = methods.solve_sums
    monkeypatch.setattr(TablePass, "instrument_sums", remember)
    monkeypatch.setattr(
        methods,
        "solve_sums",
        lambda released, **k: solve(released, **{**k, "ridge": abs(np.linalg.eigvals(seen["sums"].matrix)).min()}),
    )
    assert caught(monkeypatch, "exact")


def test_catches_a_forgotten_displaced_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrument, "response_total_sensitivity", lambda R, exposure: 2.0 * R)
    monkeypatch.setattr(instrument, "instrument_response_sensitivity", lambda R, h, exposure: 4.0 * R * h)
    assert caught(monkeypatch, "displaced")


def test_catches_a_move_without_its_displaced_link(monkeypatch: pytest.MonkeyPatch) -> None:
    exposure = dpl.ELE.exposure

    def forgetful(self, unit):
        return dataclasses.replace(exposure(self, unit), displaced=0)

    monkeypatch.setattr(dpl.ELE, "exposure", forgetful)
    assert caught(monkeypatch, "mover", tries=1500)


@pytest.mark.parametrize("forgotten", ["carriers", "displaced"])
def test_catches_forgotten_carriers(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    """Further rows that carry the person's response, and further rows that a mover's response moves to."""
    exposure = dpl.ELE.exposure

    def forgetful(self, unit):
        return dataclasses.replace(
            exposure(self, unit), **{forgotten: int(forgotten == "carriers" or unit.moves_block)}
        )

    monkeypatch.setattr(dpl.ELE, "exposure", forgetful)
    assert caught(monkeypatch, "carriers", tries=600)


@pytest.mark.parametrize("path", ["row meat", "second stage, scale alone", "second stage, weighed groups"])
def test_catches_facts_about_groups_that_may_change(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(LinkedRows, "blocks", property(lambda rows: rows.engine.blocks))
    if "weighed" in path:
        weigh = LinkedRows.with_weights

        def unasked(rows, weighed):
            fixed = weigh(dataclasses.replace(rows, fixed_blocks=True), weighed)
            return dataclasses.replace(fixed, fixed_blocks=False)

        monkeypatch.setattr(LinkedRows, "with_weights", unasked)
    else:
        monkeypatch.setattr(methods, "weigh_groups", lambda study, rows, _: (rows, start.all_rows(study, rows)))
    assert caught(monkeypatch, "regrouped", path)


def test_weights_of_groups_that_may_change_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkedRows, "blocks", property(lambda rows: rows.engine.blocks))
    with pytest.raises(dpl.ReleaseError):
        caught(monkeypatch, "regrouped", "second stage")


def test_catches_a_size_of_residuals_that_was_not_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(private, spending, share, highest=0.97, present=None):
        below = np.cumsum(private.counts) / private.rows
        size = float(private.edges[min(int(np.searchsorted(below, highest)), private.edges.size - 1)])
        return size, highest, residual_scale.Present()

    set_in_stage(monkeypatch, "release_residual_size", seen)
    assert caught(monkeypatch, "ele", "second stage")


@pytest.mark.parametrize("fault", ["complete rows", "rows of the slope", "responses of the slope"])
def test_catches_numbers_of_missing_cells_that_were_not_paid(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Cells of one person become missing; their number decides, or is shown, as it is."""
    drawn, gram, sensitivity = (
        residual_scale._release_present,
        LinkedRows.own_gram,
        instrument.residual_count_sensitivity,
    )
    if fault == "complete rows":
        monkeypatch.setattr(
            residual_scale,
            "_release_present",
            lambda private, plan: dataclasses.replace(
                drawn(private, plan), complete=1.0 - private.incomplete / private.rows
            ),
        )
    elif fault == "rows of the slope":
        monkeypatch.setattr(LinkedRows, "own_gram", lambda rows: dataclasses.replace(gram(rows), dropped=None))
    else:
        monkeypatch.setattr(instrument, "residual_count_sensitivity", lambda exposure: 1e-4 * sensitivity(exposure))
    pair = make_pair(np.random.default_rng(2), "ele")
    for column in ("x", "y"):
        pair.data[column][:], pair.other[column][:] = 2.0, 2.0
        pair.other[column][0] = np.nan
    with pytest.raises(Leak):
        check(monkeypatch, pair, "y ~ x", "second stage, scale alone", 0)


def test_catches_whitening_by_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments that were not released say in which coordinates sums are, and the released ones differ although noisy values agree."""
    seen, sums, whiten = {}, TablePass.instrument_sums, slope.whiten

    def remember(data):
        seen["moments"] = sums(data).matrix / data.count
        return sums(data)

    monkeypatch.setattr(TablePass, "instrument_sums", remember)
    set_in_stage(monkeypatch, "whiten", lambda moments, *public: whiten(seen["moments"], *public))
    assert caught(monkeypatch, "exact", "second stage, whitened", formula="y ~ 0 + x + w")


@pytest.mark.parametrize("fault", ["not drawn", "little noise"])
def test_catches_tails_that_were_not_paid(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Squares of contributions decide how far the last step clips: as they are, or with too little noise."""
    release = right_residuals.release_residual_meat

    def seen(private, spending, share=None):
        found = release(private, spending, share)
        return (private.meat, found[1]) if share == spent.TAILS else found

    if fault == "not drawn":
        set_in_stage(monkeypatch, "release_residual_meat", seen)
    else:
        sensitivity = right_residuals.residual_meat_sensitivity
        monkeypatch.setattr(right_residuals, "residual_meat_sensitivity", lambda *of: 0.02 * sensitivity(*of))
    assert caught(monkeypatch, "exact", "second stage, tails")


@pytest.mark.parametrize("fault", ["decided by the data", "drawn again unpaid"])
def test_catches_an_equation_that_is_released_again(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Whether the first step is the last hangs on what was not released; or the same equation is drawn again for more than is left."""
    take, draw = take_path, steps.release_right_residuals

    def again(private: Any, spending: Any, mu: float) -> Any:
        drawn, purse = [part.name for part in spending.parts].count("right residuals"), spent.Spending(9.0 * mu)
        paid = draw(private, spending, mu)
        return draw(private, purse, purse.take(1.0)) if drawn else paid

    def faulty(patch: pytest.MonkeyPatch, path: str) -> None:
        take(patch, path)
        if fault == "decided by the data":
            set_in_stage(patch, "began_near", lambda stage, *_: stage.rows.weight_moments().sums[0] % 0.1 < 0.05)
        else:
            set_in_stage(patch, "began_near", lambda *public: True)
            set_in_stage(patch, "release_right_residuals", again)

    monkeypatch.setattr(sys.modules[__name__], "take_path", faulty)
    assert caught(monkeypatch, "exact", "second stage, weights, begun near")


@pytest.mark.parametrize("fault", ["not drawn", "little noise"])
def test_catches_a_look_at_both_sides_that_was_not_paid(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """What residuals near the line tell decides how far the last step clips: as it is, or with too little noise."""
    release, sensitivity = sides.release_right_residuals, right_residuals.right_residuals_sensitivity

    def seen(private, spending, mu):
        found = release(private, spending, mu)
        return (private.vector, found[1]) if fault == "not drawn" else found

    def drawn(private, spending, mu):
        with monkeypatch.context() as patch:
            patch.setattr(right_residuals, "right_residuals_sensitivity", lambda *of: 0.02 * sensitivity(*of))
            return release(private, spending, mu)

    monkeypatch.setattr(sides, "release_right_residuals", seen if fault == "not drawn" else drawn)
    monkeypatch.setattr(
        sides, "_SEEN", 0.03
    )  # few rows tell little beside their noise: the choice must turn on one of them
    assert caught(monkeypatch, "exact", "second stage, both sides", formula="y ~ x")


def test_catches_clips_that_follow_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    residuals = LinkedRows.right_residuals

    def fitted(rows, clip, meat=None):
        seen = residuals(rows, clip, None).vector
        return residuals(rows, dataclasses.replace(clip, limit=clip.limit * (1.0 + 1e-3 * float(seen[0]))), meat)

    monkeypatch.setattr(LinkedRows, "right_residuals", fitted)
    assert caught(monkeypatch, "ele", "second stage")


@pytest.mark.parametrize("kind", ["exact", "ele", "table"])
def test_files_that_need_no_forcing_replay(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Several hundred rows on a line: the second stage is taken because it pays, and by what public and released values say."""
    monkeypatch.undo()
    rng = np.random.default_rng(11)
    for seed in range(3):
        pair, taken = make_pair(rng, kind, [200, 150, 40, 2, 1]), []
        if kind != "exact":
            accuracy = 0.9 if kind == "ele" else {0: 0.95, 1: 0.85}
            pair = dataclasses.replace(pair, linkage=dpl.ELE(accuracy, block="block", other=0.9))
        sides = [dict(pair.data), dict(pair.other)]
        x = rng.uniform(0, 10, len(pair.data["x"]))
        line = {"x": x, "y": 0.5 * x + rng.normal(0, 0.1, x.size)}
        for side, name in itertools.product(sides, line):  # only the person's cells stay off the line
            side[name] = np.where(pair.data[name] != pair.other[name], side[name], line[name])

        def run(data, pair=pair, taken=taken):
            release = dpl.fit(
                data, "y ~ x", bounds=BOUNDS, linkage=pair.linkage, unit=pair.unit, epsilon=8.0, delta=DELTA
            )
            taken.append(count_steps(release) > 0)
            return release

        runs = [partial(run, side) for side in sides]
        replay(monkeypatch, *runs, privacy_mu(8.0, DELTA), seed)
        assert all(taken)


def test_catches_perfect_link_noise_for_accuracy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exposure = dpl.ELE.exposure
    monkeypatch.setattr(dpl.ELE, "exposure", lambda self, unit: dataclasses.replace(exposure(self, unit), exact=True))
    assert caught(monkeypatch, "ele-one")


def test_catches_a_sensitivity_with_the_lower_bound_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffprivlib 0.6.6: Σx² with bounds (0, b) had sensitivity 0, so it was released exactly."""
    plan_sums = instrument.plan_sums

    def mistaken(design, exposure, count, mu, **kind):
        plan = plan_sums(design, exposure, count, mu, **kind)
        parts = []
        for part in plan.parts:
            low, _ = design.columns[0].interval
            parts.append(
                dataclasses.replace(part, scale=max(abs(low) * abs(low), 1e-9)) if "matrix" in part.name else part
            )
        return NoisePlan(tuple(parts), plan.mu)

    monkeypatch.setattr(instrument, "plan_sums", mistaken)
    assert caught(monkeypatch, "exact", formula="y ~ x")


@pytest.mark.parametrize("path", ["ssp", "row meat", "ngd with intervals", "paper ssp"])
def test_catches_a_purse_that_hands_out_too_much(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Twice the budget that there is; the paper's noise has more to spare."""
    factor = 10.0 if path.startswith("paper") else 2.0
    monkeypatch.setattr(spent.Spending, "share", lambda self, share: factor * self.mu * np.sqrt(share))
    monkeypatch.setattr(spent.Spending, "note", lambda self, plan: self._plans.append(plan) or plan)
    assert caught(monkeypatch, "exact" if path == "ssp" else "ele", path)


@pytest.mark.parametrize("path", ["row meat", "block meat"])
def test_catches_a_meat_that_was_clipped_less_than_it_says(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    name = path.replace(" ", "_")
    original = getattr(TablePass, name)
    monkeypatch.setattr(
        TablePass,
        name,
        lambda data, predictor, weights, norm, *centres: original(data, predictor, weights, 8.0 * norm, *centres),
    )
    assert caught(monkeypatch, "ele", path, tries=600)


@pytest.mark.parametrize("path", ["ssp", "paper ssp"])
def test_catches_sums_of_another_clip_than_they_carry(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Rows are summed with wider bounds, or longer, than the value that is released says."""
    if path == "ssp":
        original = LinkedRows.instrument_sums

        def wider(rows):
            columns = tuple(dataclasses.replace(column, scale=column.scale / 3.0) for column in rows.design.columns)
            found = original(rows.with_design(dataclasses.replace(rows.design, columns=columns)))
            return dataclasses.replace(found, design=rows.design)

        monkeypatch.setattr(LinkedRows, "instrument_sums", wider)
    else:
        sums = TablePass.paper_sums
        monkeypatch.setattr(TablePass, "paper_sums", lambda data, c, R: sums(data, 8.0 * c, 8.0 * R))
    options = {"row_norm": 1.0, "response_bound": 0.5} if path == "paper ssp" else {}
    monkeypatch.setitem(PATHS, path, {**PATHS[path], **options})
    assert caught(monkeypatch, "exact" if path == "ssp" else "ele", path)


def test_replay_catches_nan_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    class Result:
        def to_json(self) -> str:
            return ""

    def run(value: float):
        from dplinked.privacy import noise

        noise.add_gaussian(np.array([value]), 1.0)
        return Result()

    with pytest.raises(Leak):
        replay(monkeypatch, lambda: run(np.nan), lambda: run(0.0), 1.0)
