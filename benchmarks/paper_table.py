"""Mean relative errors at the paper's settings 1 and 2, as published and tight, at the same privacy.

    python benchmarks/paper_table.py [--repetitions 400] [--out benchmarks/results/paper_table.md]

x ~ U(-1, 1), β = 1, blocks of 25, accuracies U(.6, .9), M = 1, ε = 1, δ = n^-1.1, R = σ√(2 ln n).
X and Q stay, errors, links and noise are redrawn. Tight releases go through the library's own door.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from rich.progress import track

import dplinked as dpl
from dplinked.paper import constants_not_private, ngd_not_private, ssp_not_private
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities import paper
from dplinked.simulate import mislink, paper_design
from machine import describe_machine

CELLS = ((10_000, 0.5), (10_000, 1.0), (10_000, 1.8), (3_000, 1.0))


def cell_errors(n: int, sigma: float, repetitions: int, seed: int) -> dict[str, float]:
    """Mean |β̂ - 1| of each method in one cell."""
    rng = np.random.default_rng(seed)
    x, blocks, accuracy = paper_design(n, rng)
    sizes = np.bincount(blocks)
    o = (1 - accuracy) / (sizes - 1)
    w = (accuracy - o)[blocks] * x + (o * np.bincount(blocks, weights=x))[blocks]
    epsilon, delta, R = 1.0, n**-1.1, sigma * math.sqrt(2 * math.log(n))
    gram = np.array([[w @ w]])
    settings = {C: constants_not_private(x[:, None], w[:, None], sigma, M=1.0, c0=1.0, C=C, c=1.0) for C in (1.0, 2.0)}
    linkage = dpl.ELE(dict(enumerate(accuracy.tolist())), block="block", other=0.6)
    options = {
        "bounds": {"y": (-R, R), "x": (-1.0, 1.0)},
        "linkage": linkage,
        "epsilon": epsilon,
        "delta": delta,
        "intervals": False,
    }
    paper_unit, typical = dpl.PrivacyUnit(linkage_change=1.0), {"x": (-0.6, 0.6)}
    releases = {
        "RL-SSP tight, declared bounds alone": {"unit": paper_unit},
        "RL-SSP tight, declared typical range": {"unit": paper_unit, "typical": typical},
        "RL-SSP tight, typical range, Q unchanged (M = 0)": {"typical": typical},
        "RL-NGD tight (T = 2, C = 2)": {"unit": paper_unit, "method": "ngd", "descent": dpl.Descent(2.0 / R, 2)},
        "RL-SSP, calibration='paper'": {"unit": paper_unit, "calibration": "paper"},
    }
    errors: dict[str, list[float]] = {}

    def note(name: str, estimate: float) -> None:
        errors.setdefault(name, []).append(abs(estimate - 1.0))

    links = linkage.exposure(paper_unit)
    mu = privacy_mu(epsilon, delta)
    kappa = float((accuracy**2 + (1 - accuracy) ** 2 / (sizes - 1)).min())
    delta_G, delta_b = paper.gram_sensitivity(1.0, links, kappa), paper.cross_sensitivity(1.0, R, links)
    omega_b, omega_G = math.sqrt(delta_b * (delta_b + delta_G)) / mu, math.sqrt(delta_G * (delta_G + delta_b)) / mu
    for _ in track(range(repetitions), f"n = {n:,}, sigma = {sigma}"):
        y = x + rng.normal(0.0, sigma, n)
        z = y[mislink(blocks, accuracy, rng)]
        clipped = np.clip(z, -R, R)
        cross = np.array([w @ clipped])
        note("OLS on (X, y), no privacy", float(x @ y / (x @ x)))
        note("RL-OLS, no privacy", float(w @ z / gram[0, 0]))
        note("RL-SSP as in the paper", float(ssp_not_private(gram, cross, settings[1.0], epsilon, delta, rng)[0]))
        noisy = (cross[0] + omega_b * rng.normal()) / (gram[0, 0] + omega_G * rng.normal())
        note("RL-SSP with W, tight sensitivities", float(noisy))
        for C, constants in settings.items():
            estimate = ngd_not_private(gram, cross, n, constants, epsilon, delta, rng)[0, 0]
            note(f"RL-NGD as in the paper (C = {C:g})", float(estimate))
        data = {"x": x, "y": z, "block": blocks}
        for name, extra in releases.items():
            note(name, dpl.fit(data, "y ~ 0 + x", **options, **extra).coef["x"])
    return {name: float(np.mean(values)) for name, values in errors.items()} | {"T of the paper": settings[1.0].T}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cells", type=int, default=len(CELLS))
    arguments = parser.parse_args()
    table = [
        cell_errors(n, sigma, arguments.repetitions, seed) for seed, (n, sigma) in enumerate(CELLS[: arguments.cells])
    ]
    heads = [f"n = {n:,}, σ = {sigma}" for n, sigma in CELLS[: arguments.cells]]
    lines = [
        "# Mean relative error at the paper's settings",
        "",
        f"{arguments.repetitions} repetitions a cell; {describe_machine('dplinked', 'numpy', 'opendp')}.",
        "Made by `python benchmarks/paper_table.py`.",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(heads),
    ]
    lines += [f"| {name} | " + " | ".join(f"{column[name]:.3f}" for column in table) + " |" for name in table[0]]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    # At σ = 1, n = 10,000; three standard errors of the mean are about .003 at 400 repetitions.
    at_one = table[min(1, len(table) - 1)]
    room = 1.0 + 3.0 * 0.76 / math.sqrt(arguments.repetitions)
    misses = [
        name
        for name, limit in (
            ("RL-SSP tight, declared bounds alone", 0.032),
            ("RL-SSP tight, declared typical range", 0.028),
        )
        if len(table) > 1 and not at_one[name] <= limit * room
    ]
    for name in misses:
        print(f"MISSED: {name} at n = 10,000, sigma = 1: {at_one[name]:.4f}", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
