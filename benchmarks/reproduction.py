"""How much faster the vectorised repetitions are than a straightforward implementation, one repetition at a time.

    python benchmarks/reproduction.py [--repetitions 1000] [--out benchmarks/results/reproduction_speed.md]

Straightforward means: Q as dense blocks of 25 × 25, W = QX and z built anew, T gradient steps over all rows, one repetition after
the other. It is timed on a few repetitions and scaled up; both are timed in the same run at setting 1, n = 10,000.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np

from dplinked.not_private.paper import settings
from dplinked.not_private.paper.algorithms import ngd_noise, ssp_not_private
from machine import describe_machine


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=20, help="repetitions of the straightforward version")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    point = settings.setting_points("setting1")[-1]
    settings.run_point(point, 20, 1)  # imports and caches
    start = time.perf_counter()
    fast = settings.run_point(point, arguments.repetitions, 1)
    middle = time.perf_counter()
    slow = straightforward(point, arguments.slow, 1)
    end = time.perf_counter()
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
        "| | ms a repetition |\n|---|---:|\n"
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
