"""Settings 1 to 3 of [LPK24]'s numerical section: errors and variances of eight methods. NOT PRIVATE: simulations.

x ~ U(-1, 1), β = 1, blocks of 25 rows, ε = 1 and δ = n^-1.1; R, η, T and B follow from the theorems. At each point of a setting x and Q stay
the same, while errors, the linkage permutation and all noise are drawn anew in every repetition. Every method sees
the data only through a few sums, so many repetitions run at once, each as one row of a matrix product.

The paper does not say at which radius C it projects. NGD and RL-NGD alone depend on it, so they are run at each of :data:`RADII` on the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
RADIUS = 2.0  # C by default; with C = c0 = 1 the truth would lie on the border, and every other step would be projected
RADII = (1.0, 1.2, RADIUS)  # c0, the application's, and the default
DRAWS = (
    10  # noise draws for each repetition's responses where the descents' errors and variances are measured more sharply
)
EXCESS_SHARE = 0.8  # the quantile that stands for "with high probability"; a mean of RL-SSP there is none
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
    """The results of one method at one point, which are one line of the tidy table.

    Attributes
    ----------
    error, standard_error
        Mean of ``|β̂ - β|/β``, and its standard error.
    excess
        For the paper's private methods, the 80 % quantile of ``|β_priv - β_RL|²``, which the error bounds are about (β_OLS without linkage).
    """

    setting: str
    x: float
    method: str
    error: float
    standard_error: float
    empirical_variance: float
    theoretical_variance: float
    excess: float
    repetitions: int


@dataclass(frozen=True)
class PointResult:
    """The results of all methods at one point, and what claims about them need to know.

    Attributes
    ----------
    rows
        One per method of :data:`METHODS`, then NGD and RL-NGD at the other radii (:func:`at_radius`).
    sharp
        NGD and RL-NGD once more, with ten draws of noise for each repetition's responses. Their noise is most of their error, and a thousand
        runs cannot tell a straight line from a root.
    radius, iterations
        C and T of Algorithm 1 after linkage.
    projected
        Share of RL-NGD's runs that end on the projection's border, and of NGD's.
    grams
        ``W'W`` and ``X'X``, by prefix.
    largest_share
        Share of RL-SSP's empirical variance that a single run makes up, the most extreme one.
    """

    point: Point
    rows: tuple[Row, ...]
    sharp: tuple[Row, ...]
    radius: float
    iterations: int
    projected: dict[str, float]
    grams: dict[str, float]
    largest_share: float


def at_radius(method: str, C: float, radius: float) -> str:
    """The name of NGD or RL-NGD at a radius: its own at the chosen one."""
    return method if C == radius else f"{method}, C = {C:g}"


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

    @property
    def grams(self) -> dict[str, float]:
        """``X'X`` and ``W'W``, by the prefix of the methods that use them."""
        return {"": float(self.x @ self.x), "RL-": float(self.w @ self.w)}

    @property
    def constants(self) -> dict[str, Constants]:
        """The constants without and after linkage, by prefix."""
        return {"": self.unlinked, "RL-": self.linked}


def run_point(point: Point, repetitions: int, seed: int, radius: float = RADIUS) -> PointResult:
    """Run all methods at a point."""
    problem = _prepare(point, seed, radius)
    rng = np.random.default_rng([seed, int(point.setting[-1]), round(point.x * 1000)])
    sums: dict[str, list[Floats]] = {}
    for y, z in _draw_responses(problem, repetitions, rng):
        for name, values in _take_sums(problem, y, z).items():
            sums.setdefault(name, []).append(values)
    whole = {name: np.concatenate(parts) for name, parts in sums.items()}
    estimates, theory = _estimate(problem, whole, rng), _variances(problem)
    for C in (other for other in RADII if other != radius):
        elsewhere = _at_radius(problem, C)
        estimates |= {at_radius(name, C, radius): values for name, values in _descend(elsewhere, whole, rng).items()}
        theory |= {at_radius(name, C, radius): value for name, value in _descent_variances(elsewhere).items()}
    sharp_rng = np.random.default_rng([seed, int(point.setting[-1]), round(point.x * 1000), DRAWS])
    often = {name: np.repeat(values, DRAWS) for name, values in whole.items()}
    sharp = {name: values.reshape(-1, DRAWS) for name, values in _descend(problem, often, sharp_rng).items()}
    extreme = (estimates["RL-SSP"] - estimates["RL-SSP"].mean()) ** 2
    return PointResult(
        point, tuple(_row(point, name, values, _plain(name, estimates), theory[name]) for name, values in estimates.items()),
        tuple(_row(point, name, values, _plain(name, estimates)[:, None], theory[name]) for name, values in sharp.items()), radius, problem.linked.T,
        {name: float((np.abs(estimates[name]) >= radius * (1.0 - 1e-9)).mean()) for name in ("NGD", "RL-NGD")},
        problem.grams, float(extreme.max() / extreme.sum()),
    )  # fmt: skip


def _plain(method: str, estimates: dict[str, Floats]) -> Floats:
    """The estimates without noise."""
    return estimates["RL-OLS" if method.startswith("RL-") else "OLS"]


def _row(point: Point, method: str, values: Floats, plain: Floats, variance: float) -> Row:
    """A line of the table; `values` has one estimate per repetition, or several."""
    errors = np.abs(values - BETA) / BETA
    alone = errors if errors.ndim == 1 else errors.mean(axis=1)  # draws for the same responses are not independent
    published = ("GD" in method or "SSP" in method) and "tight" not in method
    return Row(
        point.setting, point.x, method, float(errors.mean()), float(alone.std(ddof=1) / math.sqrt(alone.size)),
        float(values.var(ddof=1)), variance, float(np.quantile((values - plain) ** 2, EXCESS_SHARE)) if published else math.nan, values.size,
    )  # fmt: skip


def _prepare(point: Point, seed: int, radius: float = RADIUS) -> _Problem:
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
            descent=Descent(radius / R, 2) if method == "ngd" else None,
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
    options = {"c0": 1.0, "C": radius, "c": 1.0}
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
    found = {f"{prefix}OLS": sums[f"{prefix}OLS"] / gram for prefix, gram in problem.grams.items()}
    for prefix, constants in problem.constants.items():
        gram, budget = np.array([[problem.grams[prefix]]]), (EPSILON, problem.point.delta, rng)
        found[f"{prefix}SSP"] = np.array(
            [ssp_not_private(gram, np.array([b]), constants, *budget)[0] for b in sums[f"{prefix}SSP"]]
        )
    found |= _descend(problem, sums, rng)
    found |= {name: mechanism.estimates(sums[name], rng) for name, mechanism in problem.tight.items()}
    return {name: found[name] for name in METHODS}


def _descend(problem: _Problem, sums: dict[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
    """NGD and RL-NGD, which see the same sums as SSP and RL-SSP."""
    point, found = problem.point, {}
    for prefix, constants in problem.constants.items():
        gram, cross = np.array([[problem.grams[prefix]]]), sums[f"{prefix}SSP"][:, None]
        drawn = ngd_not_private(gram, cross, point.n, constants, EPSILON, point.delta, rng, len(cross))
        found[f"{prefix}NGD"] = drawn[:, 0]
    return found


def _at_radius(problem: _Problem, C: float) -> _Problem:
    return replace(problem, linked=replace(problem.linked, C=C), unlinked=replace(problem.unlinked, C=C))


def _variances(problem: _Problem) -> dict[str, float]:
    """Theoretical variances: Σ^RL, Theorems 4.6 and 4.7, and the same for the methods without linkage and the tight ones."""
    found = _descent_variances(problem)
    for prefix, constants in problem.constants.items():
        gram = np.array([[problem.grams[prefix]]])
        plain = _meat(problem, prefix) / gram**2
        omega = ssp_noise(constants, EPSILON, problem.point.delta)
        found[f"{prefix}OLS"] = float(plain[0, 0])
        found[f"{prefix}SSP"] = float(ssp_variance_not_private(gram, plain, np.array([BETA]), omega)[0, 0])
    return found | {name: tight.variance(problem.tight_meat[name], BETA) for name, tight in problem.tight.items()}


def _descent_variances(problem: _Problem) -> dict[str, float]:
    point, found = problem.point, {}
    for prefix, k in problem.constants.items():
        gram, omega = np.array([[problem.grams[prefix]]]), ngd_noise(k, point.n, EPSILON, point.delta)
        variance = ngd_variance_not_private(gram, _meat(problem, prefix), point.n, k.eta, k.T, omega)
        found[f"{prefix}NGD"] = float(variance[0, 0])
    return found


def _meat(problem: _Problem, prefix: str) -> Floats:
    return np.array([[problem.rl_meat if prefix else problem.point.sigma**2 * problem.grams[prefix]]])
