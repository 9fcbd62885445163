"""Adversarial neighbours for every release path: can they be told apart by more than the release admits?

    python benchmarks/attack.py [--pairs 12000] [--seed 1] [--chain N] [--control scales|leak] [--spark] [--out benchmarks/results/attack.md]

Written from the documentation alone. A chain draws a study (path, formula, linkage, unit, container, budget) and two neighbours as
docs/privacy-promise.md defines them: one person's regressors and response in any way, the response on any row, and what identifiers may do. Noise is
recorded on one and fed to the other. Calls, scales, texts of the release, warnings and errors must agree, and what went into the noise must be no
further apart than mu. Then the chain climbs: it changes cells at random and keeps what moved the neighbours, or one of the released parts, further apart.
Every step is a pair that is checked. A failure is reported as a finding, with the chain that makes it again; controls plant a fault and
must find it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.progress import Progress

import attack_sources
import dplinked as dpl
from attack_pairs import Draw, Neighbours, Target, draw_neighbours, draw_target, mutate, noise_of, prepare
from attack_replay import Verdict, compare
from attack_surroundings import attack_accuracy, attack_command_line, attack_pieces
from machine import describe_machine
from sections import Report

SHARES = {"climb": 0.25, "wild": 0.4, "slow": 0.23, "accuracy": 0.04, "command line": 0.07, "pieces": 0.01}  # of chains
STEPS = {"climb": 45, "wild": 10, "slow": 3, "accuracy": 10, "command line": 3, "pieces": 1}
WHOLE = 0.3  # share of chains whose last pair is compared in all texts of a release: pages take longer than all else


@dataclass
class Line:
    """One line of a table: how many pairs, how many of them were refused alike, and the largest ratio."""

    pairs: int = 0
    refused: int = 0
    largest: float = 0.0


@dataclass
class Tally:
    """What all pairs came to."""

    tables: dict[str, dict[str, Line]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Line)))
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    refusals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def pairs(self) -> int:
        return sum(line.pairs for line in self.tables["release path"].values())

    def add(self, labels: dict[str, str], verdict: Verdict, where: str) -> None:
        for table, name in labels.items():
            line = self.tables[table][name]
            line.pairs += 1
            line.refused += verdict.refused is not None
            line.largest = max(line.largest, verdict.ratio)
        for name, size in verdict.parts.items():
            self.parts[name] = max(self.parts[name], size)
        if verdict.refused:
            self.refusals[verdict.refused] += 1
        if verdict.broken:
            self.findings[f"{labels['release path']}; {verdict.broken}"].append(where)


def labels_of(target: Target) -> dict[str, str]:
    unit = target.unit
    said = {
        "moves_block": unit.moves_block,
        "displaced_links": bool(unit.displaced_links),
        "linkage_change": bool(unit.linkage_change),
    }
    return {
        "release path": target.path,
        "linkage": target.linkage,
        "unit": " + ".join(name for name, given in said.items() if given) or "default",
        "container": target.source,
        "formula": target.formula,
    }


def show(release: Any, whole: bool) -> dict[str, str]:
    """All texts of a release: the long ones for the last pair of some chains only, since they take most of the time."""
    texts = {"to_json": release.to_json(), "repr": repr(release)}
    if whole:
        texts |= {
            name: getattr(release, name)() for name in ("summary", "to_html", "to_markdown", "to_latex", "to_csv")
        }
    return texts


def attack_pair(pair: Neighbours, folder: Path, seed: list[int], weaken: float, whole: bool = False) -> Verdict:
    first, second = pair.sides()
    return compare(
        lambda: prepare(pair.target, first, pair.linkages[0], folder),
        lambda: prepare(pair.target, second, pair.linkages[1], folder),
        noise_of(pair.target, np.random.default_rng(seed)),
        lambda release: show(release, whole),
        weaken,
    )


def climb(rng: Draw, pair: Neighbours, steps: int, wild: float, attack: Callable[..., Verdict]) -> Iterator[Verdict]:
    """Check a pair, then change it step by step and keep what is further apart: in all, or in one of the parts."""
    best, part = attack(pair), None
    yield best
    for step in range(1, steps):
        if best.refused or best.broken:
            return
        if step == 1 and best.parts and rng.random() < 0.5:
            part = str(rng.choice(list(best.parts)))
        child = mutate(rng, pair, wild)
        verdict = attack(child)
        yield verdict
        if verdict.broken:
            return
        if _height(verdict, part) >= _height(best, part):
            pair, best = child, verdict
    if rng.random() < WHOLE:
        yield attack(pair, whole=True)


def _height(verdict: Verdict, part: str | None) -> float:
    return verdict.parts.get(part, 0.0) if part else verdict.ratio


def attack_chain(seed: int, chain: int, folder: Path, weaken: float) -> Iterator[tuple[dict[str, str], Verdict]]:
    """All pairs of one chain; its numbers follow from `seed` and `chain` alone."""
    rng = np.random.default_rng([seed, chain])
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if kind == "accuracy":
        yield from (attack_accuracy(rng, weaken) for _ in range(STEPS[kind]))
    elif kind == "command line":
        yield from (attack_command_line(rng, folder, weaken) for _ in range(STEPS[kind]))
    elif kind == "pieces":
        yield attack_pieces(rng, folder, weaken)
    else:
        slow = kind == "slow"
        target = draw_target(rng, slow, list(attack_sources.names(slow=slow)))
        wild = 0.0 if kind == "climb" else float(rng.choice([0.1, 0.5]))
        pair = draw_neighbours(rng, target, wild)
        labels = labels_of(target)
        for verdict in climb(
            rng, pair, STEPS[kind], wild, partial(attack_pair, folder=folder, seed=[seed, chain], weaken=weaken)
        ):
            yield labels, verdict


def plant_leak() -> None:
    """A control: `fit` puts an unpaid value into its release."""
    honest = dpl.fit

    def fit(data: Any, *given: Any, **settings: Any) -> dpl.Release:
        release = honest(data, *given, **settings)
        unpaid = str(next(iter(data["y"]))) if hasattr(data, "__getitem__") and not isinstance(data, str) else ""
        return replace(release, versions={**release.versions, "leak": unpaid})

    dpl.fit = fit


def attack_all(pairs: int, seed: int, chains: Iterator[int], control: str | None) -> Tally:
    """Run chains until there are enough pairs, or until a planted fault is found; a chain that fails by itself is a finding too."""
    tally, weaken = Tally(), 0.7 if control == "scales" else 1.0
    with Progress(disable=not sys.stderr.isatty()) as progress, contextlib.suppress(KeyboardInterrupt):
        task = progress.add_task("pairs", total=pairs)
        for chain in chains:
            where = f"--seed {seed} --chain {chain}"
            with tempfile.TemporaryDirectory() as folder:
                try:
                    for labels, verdict in attack_chain(seed, chain, Path(folder), weaken):
                        tally.add(labels, verdict, where)
                except Exception as error:
                    tally.findings[f"the attack itself failed: {error!r}"].append(where)
            progress.update(task, completed=tally.pairs, description=f"{len(tally.findings)} findings, chain {chain}")
            if tally.pairs >= pairs or (control and tally.findings):
                break
    return tally


def write_report(tally: Tally, seconds: float, command: str) -> str:
    report = Report()
    report.add(
        "# Attack: neighbours that try to be told apart",
        f"`{command}`: {tally.pairs:,} pairs in {seconds / 60:.0f} minutes.",
    )
    report.add(describe_machine("dplinked", "numpy", "scipy", "pandas", "polars", "pyarrow", "duckdb", "opendp"))
    report.add(
        "A ratio is the distance of two neighbours' values, in units of the noise, by what the release's mu allows. At most 1 is promised; a search "
        "that reaches 1 shows that the bound is tight, a lower one that the bound is generous or the search weak. *Refused* pairs were refused alike, by the same words. "
        f"`to_json` and `repr` are compared for every pair, pages and tables for the last one of {WHOLE:.0%} of the chains."
    )  # fmt: skip
    for table, lines in tally.tables.items():
        rows = [
            (name, f"{line.pairs:,}", f"{line.refused:,}", f"{line.largest:.4f}")
            for name, line in sorted(lines.items())
        ]
        report.table([table, "pairs", "refused", "largest ratio"], rows)
    report.add(
        "Released parts: the largest change that was found, by the sensitivity that the release states for the part."
    )
    report.table(["part", "largest ratio"], [(name, f"{size:.4f}") for name, size in sorted(tally.parts.items())])
    findings = [f"- {what} ({len(where)} times, first by `{where[0]}`)" for what, where in tally.findings.items()]
    report.add(f"## Findings: {len(findings)}", *(findings or ["None."]))
    return "\n".join(report.lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chain", type=int, help="run this chain alone, as a finding names it")
    parser.add_argument("--control", choices=["scales", "leak"], help="plant a fault, which must be found")
    parser.add_argument("--spark", action="store_true", help="attack Spark too, which is slow")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.spark:
        attack_sources.SOURCES.update(attack_sources.SPARK)
    if given.control == "leak":
        plant_leak()
    start = time.monotonic()
    chains = itertools.count() if given.chain is None else iter([given.chain])
    tally = attack_all(given.pairs, given.seed, chains, given.control)
    text = write_report(tally, time.monotonic() - start, " ".join(["python", "benchmarks/attack.py", *sys.argv[1:]]))
    print(text)
    for refusal, count in sorted(tally.refusals.items(), key=lambda item: -item[1]):
        print(f"refused alike {count:>5} times: {refusal}")
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
