"""Settings 1 to 3 of [LPK24]'s numerical section: errors and variances of eight methods. NOT PRIVATE: simulations.

x ~ U(-1, 1), β = 1, blocks of 25 rows, ε = 1 and δ = n^-1.1; R, η, T and B follow from the theorems. At each point of a setting x and Q stay
the same, while errors, the linkage permutation and all noise are drawn anew in every repetition. Every method sees
the data only through a few sums, so many repetitions run at once, each as one row of a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.data.table import Rows
from dplinked.linkage import ELE, PrivacyUnit
from dplinked.not_private.baseline import rl_meat
from dplinked.not_private.paper.algorithms import (
    Constants,
    constants_not_private,
    ngd_noise,
    ngd_not_private,
    ssp_noise,
    ssp_not_private,
)
from dplinked.not_private.paper.tight import Tight, prepare_tight
from dplinked.not_private.paper.variances import ngd_variance_not_private, ssp_variance_not_private
from dplinked.not_private.simulate.households import mislink
from dplinked.study.descent import Descent
from dplinked.study.study import Study
from dplinked.sums.numpy.prepare import prepare_rows

Floats = NDArray[np.float64]

METHODS = ("OLS", "RL-OLS", "NGD", "SSP", "RL-NGD", "RL-SSP", "RL-NGD tight", "RL-SSP tight")
BLOCK_SIZE = 25
EPSILON, BETA = 1.0, 1.0
C = 2.0  # radius of the projection; with C = c0 = 1 the truth would lie on the border, and every other step would be projected
_CHUNK = 400_000  # rows drawn at once
_SIZES = (3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000)
_SIGMAS = (0.5, 0.7, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8)
_ACCURACIES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Point:
    """One point on the axis of a setting."""

    setting: str
    x: float
    n: int
    sigma: float
    accuracy: float | None  # None: drawn from U(.6, .9) for each block
    M: float

    @property
    def delta(self) -> float:
        """``δ = n^-1.1``."""
        return float(self.n**-1.1)


@dataclass(frozen=True)
class Row:
    """The results of one method at one point, which are one line of the tidy table."""

    setting: str
    x: float
    method: str
    error: float
    empirical_variance: float
    theoretical_variance: float
    repetitions: int


@dataclass(frozen=True)
class PointResult:
    """The results of all methods at one point, T of Algorithm 1, and the share of its runs that end on the projection's border."""

    rows: tuple[Row, ...]
    iterations: int
    projected: float


def setting_points(setting: str) -> list[Point]:
    """The points of ``setting1``, ``setting2`` or ``setting3``."""
    if setting == "setting1":
        return [Point(setting, n, n, 1.0, None, 1.0) for n in _SIZES]
    if setting == "setting2":
        return [Point(setting, sigma, 10_000, sigma, None, 1.0) for sigma in _SIGMAS]
    return [Point(setting, accuracy, 10_000, 1.0, accuracy, (1.0 - accuracy) / 0.4) for accuracy in _ACCURACIES]


@dataclass(frozen=True)
class _Problem:
    """What stays the same over the repetitions of a point."""

    point: Point
    x: Floats
    w: Floats
    blocks: NDArray[np.int64]
    accuracy: Floats
    rl_meat: float
    linked: Constants
    unlinked: Constants
    tight: dict[str, Tight]
    tight_meat: dict[str, float]


def run_point(point: Point, repetitions: int, seed: int) -> PointResult:
    """Run all methods at a point."""
    problem = _prepare(point, seed)
    rng = np.random.default_rng([seed, int(point.setting[-1]), round(point.x * 1000)])
    sums: dict[str, list[Floats]] = {}
    for y, z in _draw_responses(problem, repetitions, rng):
        for name, values in _take_sums(problem, y, z).items():
            sums.setdefault(name, []).append(values)
    whole = {name: np.concatenate(parts) for name, parts in sums.items()}
    estimates = _estimate(problem, whole, rng)
    theory = _variances(problem)
    rows = tuple(
        Row(
            point.setting, point.x, name, float(np.abs(estimates[name] - BETA).mean() / BETA),
            float(estimates[name].var(ddof=1)), theory[name], repetitions,
        )
        for name in METHODS
    )  # fmt: skip
    projected = float((np.abs(estimates["RL-NGD"]) >= C * (1.0 - 1e-9)).mean())
    return PointResult(rows, problem.linked.T, projected)


def _prepare(point: Point, seed: int) -> _Problem:
    """Draw x and Q. All points of a seed share them: a point with fewer rows has the first rows of those with more."""
    n, sigma = point.n, point.sigma
    design = [np.random.default_rng([seed, part]) for part in (1, 2)]
    x, blocks = design[0].uniform(-1.0, 1.0, n), np.arange(n) // BLOCK_SIZE
    count = int(blocks[-1]) + 1
    accuracy = design[1].uniform(0.6, 0.9, count) if point.accuracy is None else np.full(count, point.accuracy)
    linkage = ELE(dict(enumerate(accuracy.tolist())), block="block")
    R = sigma * math.sqrt(2.0 * math.log(n))
    tight, meats = {}, {}
    data = {"x": x, "y": np.zeros(n), "block": blocks}
    for name, method in (("RL-SSP tight", "ssp"), ("RL-NGD tight", "ngd")):
        study = Study(
            formula="y ~ 0 + x", bounds={"y": (-R, R), "x": (-1.0, 1.0)}, epsilon=EPSILON, delta=point.delta,
            linkage=linkage, unit=PrivacyUnit(linkage_change=point.M), method=method, intervals=False, typical={"x": (-0.7, 0.7)} if method == "ssp" else {},
            descent=Descent(C / R, 2) if method == "ngd" else None,
        )  # fmt: skip
        tight[name] = prepare_tight(study, data)
    plain = tight["RL-NGD tight"]
    prepared = prepare_rows(Rows(data), plain.design, linkage, plain.study.unit)
    assert prepared.blocks is not None
    a, o = prepared.blocks.a[blocks], prepared.blocks.o[blocks]
    w = a * x + o * np.bincount(blocks, weights=x)[blocks]
    X, beta, variance = x[:, None], np.array([BETA]), sigma**2
    for name, mechanism in tight.items():
        h = mechanism.instrument[:, None] / mechanism.design.response.scale
        meats[name] = float(rl_meat(prepared, X, beta, variance, h)[0, 0])
    options = {"c0": 1.0, "C": C, "c": 1.0}
    return _Problem(
        point, x, w, blocks, accuracy, float(rl_meat(prepared, X, beta, variance)[0, 0]),
        constants_not_private(X, w[:, None], sigma, M=point.M, **options),
        constants_not_private(X, X, sigma, M=0.0, **options), tight, meats,
    )  # fmt: skip


def _draw_responses(problem: _Problem, repetitions: int, rng: np.random.Generator) -> Iterator[tuple[Floats, Floats]]:
    """Draw true and linked responses, several repetitions at a time (k×n each)."""
    n, size, done = problem.point.n, problem.accuracy.size, 0
    while done < repetitions:
        k = min(repetitions - done, max(1, _CHUNK // n))
        y = BETA * problem.x + rng.normal(0.0, problem.point.sigma, (k, n))
        blocks = (problem.blocks[None, :] + size * np.arange(k)[:, None]).ravel()
        links = mislink(blocks, np.tile(problem.accuracy, k), rng)
        yield y, y.ravel()[links].reshape(k, n)
        done += k


def _take_sums(problem: _Problem, y: Floats, z: Floats) -> dict[str, Floats]:
    """One sum per repetition and method, which is all that a method sees of the responses."""
    R = problem.linked.R
    clipped_y, clipped_z = np.clip(y, -R, R), np.clip(z, -R, R)
    return {
        "OLS": y @ problem.x,
        "RL-OLS": z @ problem.w,
        "SSP": clipped_y @ problem.x,
        "RL-SSP": clipped_z @ problem.w,
        **{name: mechanism.vector(z) for name, mechanism in problem.tight.items()},
    }


def _estimate(problem: _Problem, sums: dict[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
    point = problem.point
    grams = {"": float(problem.x @ problem.x), "RL-": float(problem.w @ problem.w)}
    found = {"OLS": sums["OLS"] / grams[""], "RL-OLS": sums["RL-OLS"] / grams["RL-"]}
    for prefix, constants in (("", problem.unlinked), ("RL-", problem.linked)):
        gram, cross = np.array([[grams[prefix]]]), sums[f"{prefix}SSP"]
        budget = (EPSILON, point.delta, rng)
        found[f"{prefix}SSP"] = np.array([ssp_not_private(gram, np.array([b]), constants, *budget)[0] for b in cross])
        found[f"{prefix}NGD"] = ngd_not_private(gram, cross[:, None], point.n, constants, *budget, cross.size)[:, 0]
    return found | {name: mechanism.estimates(sums[name], rng) for name, mechanism in problem.tight.items()}


def _variances(problem: _Problem) -> dict[str, float]:
    """Theoretical variances: Σ^RL, Theorems 4.4 and 4.5, and the same for the methods without linkage and the tight ones."""
    point, beta = problem.point, np.array([BETA])
    found = {}
    for prefix, rows, constants in (("", problem.x, problem.unlinked), ("RL-", problem.w, problem.linked)):
        gram = np.array([[float(rows @ rows)]])
        meat = np.array([[problem.rl_meat]]) if prefix else point.sigma**2 * gram
        plain = meat / gram**2
        found[f"{prefix}OLS"] = float(plain[0, 0])
        ssp, ngd = ssp_noise(constants, EPSILON, point.delta), ngd_noise(constants, point.n, EPSILON, point.delta)
        found[f"{prefix}SSP"] = float(ssp_variance_not_private(gram, plain, beta, ssp)[0, 0])
        found[f"{prefix}NGD"] = float(
            ngd_variance_not_private(gram, meat, point.n, constants.eta, constants.T, ngd)[0, 0]
        )
    return found | {name: tight.variance(problem.tight_meat[name], BETA) for name, tight in problem.tight.items()}
