"""The sampler: its law, its grid, and an audit that can tell too little noise."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dplinked.privacy import noise
from dplinked.privacy.calibration import privacy_delta, privacy_mu


def test_noise_has_the_stated_law() -> None:
    """Kolmogorov-Smirnov at false-alarm rate 1e-6, each scale apart."""
    values, scales = np.zeros(3000), np.repeat([0.5, 2.0, 1000.0], 1000)
    drawn = noise.add_gaussian(values, scales) / scales
    for part in np.split(drawn, 3):
        assert stats.kstest(part, "norm").pvalue > 1e-6


def test_every_output_lies_on_the_grid() -> None:
    drawn = noise.add_gaussian(np.linspace(-3, 3, 200), 1.0)
    steps = drawn * 2.0**-noise.GRID
    assert np.array_equal(steps, np.round(steps))


def test_shapes_and_empty() -> None:
    assert noise.add_gaussian(np.zeros((2, 3)), 1.0).shape == (2, 3)
    assert noise.add_gaussian(np.zeros(0), 1.0).shape == (0,)


@pytest.mark.parametrize(
    ("values", "scale"), [([np.nan], 1.0), ([np.inf], 1.0), ([0.0], 0.0), ([0.0], -1.0), ([0.0], np.nan)]
)
def test_refuses_what_it_cannot_protect(values: list[float], scale: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        noise.add_gaussian(values, scale)


def test_noise_differs_after_fork_and_cannot_be_seeded() -> None:
    code = (
        "import os, numpy as np, random; from dplinked.privacy import noise\n"
        "random.seed(1); np.random.seed(1); noise.add_gaussian([0.0], 1.0)\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0: os.write(w, repr(float(noise.add_gaussian([0.0], 1.0)[0])).encode()); os._exit(0)\n"
        "print(float(noise.add_gaussian([0.0], 1.0)[0]), os.read(r, 100).decode())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True, env=os.environ
        ).stdout.split()
        for _ in range(2)
    ]
    assert len({value for run in runs for value in run}) == 4


def test_no_output_tells_by_its_last_digits() -> None:
    """Floating-point noise fails here: 1 + noise cannot reach most floats near 0, and 0 + noise can.

    Ours reaches multiples of the grid times the scale from anywhere, and nothing else.
    """
    scale, runs = 1.0 / privacy_mu(1.0, 1e-6), 4000
    naive = np.random.default_rng(1).normal(0.0, scale, (2, runs)) + np.array([[0.0], [1.0]])
    off = (np.abs(naive) < 0.25) & (naive * 2.0**53 != np.round(naive * 2.0**53))
    assert off[0].mean() > 0.02
    assert not off[1].any()
    for value in (0.0, 1.0, 1.0 / 3.0):
        drawn = noise.add_gaussian(np.full(runs, value), scale)
        assert (np.abs(drawn) < 0.25).any()
        steps = np.round(drawn / scale * 2.0**-noise.GRID)
        assert np.array_equal(steps * 2.0**noise.GRID * scale, drawn)


def audit(values: np.ndarray, other: np.ndarray, alpha: float = 1e-6) -> float:
    """Lower bound on μ from runs on two neighbours: threshold from one half, bounds from the other.

    A Gaussian mechanism's μ is bounded below by Φ⁻¹(1-FPR) - Φ⁻¹(FNR) with Clopper-Pearson upper bounds
    at α/2 each, so a right mechanism is flagged with probability at most α.
    """
    half = len(values) // 2

    def bound(threshold: float, first: np.ndarray, second: np.ndarray) -> float:
        rates = []
        for hits, total in (
            (int((first > threshold).sum()), len(first)),
            (int((second <= threshold).sum()), len(second)),
        ):
            rates.append(float(stats.beta.ppf(1 - alpha / 2, hits + 1, total - hits)) if hits < total else 1.0)
        return float(stats.norm.ppf(1 - rates[0]) - stats.norm.ppf(rates[1]))

    candidates = np.quantile(np.concatenate([values[:half], other[:half]]), np.linspace(0.02, 0.98, 49))
    best = max(candidates, key=lambda threshold: bound(threshold, values[:half], other[:half]))
    return bound(best, values[half:], other[half:])


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_audit_flags_too_little_noise(factor: float) -> None:
    """Inputs differ by exactly the sensitivity; ε = 8, 5,000 runs. Noise × 0.7 must be flagged, the right one not."""
    epsilon, delta, runs = 8.0, 1e-5, 5000
    mu = privacy_mu(epsilon, delta)
    scale = factor / mu
    found = audit(noise.add_gaussian(np.zeros(runs), scale), noise.add_gaussian(np.ones(runs), scale))
    flagged = privacy_delta(found, epsilon) > delta
    assert flagged == (factor < 1.0)
