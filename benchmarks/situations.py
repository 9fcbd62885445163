"""Situations in which two versions of the library are compared: rows, links, what is declared, and the line that is true.

Rows are drawn by this file and :mod:`dplinked.simulate` alone, so that versions that draw them from the same seed get the same ones
(`Drawn.checksum` tells). The truth is the line that least squares gives on perfectly linked rows without errors: found from the mean of
the response given the regressors, over many rows.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dplinked as dpl
from dplinked.simulate import draw_money, mislink

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MISSING = 0.05  # of the cells of a column that has holes
POPULATION = 400_000  # rows that tell the true line where it is straight: any would do
ROOT3 = math.sqrt(3.0)
STATE_SHARES = np.array([0.02, 0.34, 0.01, 0.19, 0.08, 0.03, 0.23, 0.10])
LARGE_STATE, NEARLY_RANDOM = 1, 0.05
SURVEY_SIZES = np.array([50, 72, 1686, 32, 939, 384, 128, 1238, 471])
SURVEY_ACCURACY = np.array([0.880, 0.903, 0.918, 0.938, 0.905, 0.875, 0.898, 0.917, 0.898])


@dataclass(frozen=True)
class People:
    """Perfectly linked rows: columns of the fit, regressors as numbers (n×d), the mean of the response given them (n), the response (n)."""

    columns: Mapping[str, NDArray[Any]]
    X: Floats
    mean: Floats
    y: Floats


@dataclass(frozen=True)
class Law:
    """How people are drawn, and what is declared about them: formula, bounds, and the response's tight bounds."""

    draw: Callable[[int, np.random.Generator], People]
    formula: str
    bounds: Mapping[str, tuple[float, float]]
    response: str
    tight: tuple[float, float]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """One cell. `width` widens the response's bounds; `settings` are further arguments of the fit, and `new` those that an earlier version does not have.

    `holes` names what is missing of one row in twenty, before rows are linked: "x", the first regressor, or "y", the response; "x by x" and "y by x" are missing
    the more often the larger the first regressor is.
    """

    name: str
    law: str
    n: int = 20_000
    links: str = "blocks of 25"
    epsilon: float = 1.0
    width: float = 1.0
    holes: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawn:
    """What one run fits, and the estimate that needs no privacy: Lahiri and Larsen's on linked rows without holes (d)."""

    data: dict[str, Any]
    arguments: dict[str, Any]
    not_private: Floats

    @property
    def checksum(self) -> int:
        """A number that tells whether two versions were given the same rows."""
        found = 0
        for name in sorted(self.data):
            found = zlib.crc32("".join(map(str, self.data[name][:50])).encode(), found)
            if np.asarray(self.data[name]).dtype.kind in "fi":
                found = zlib.crc32(np.ascontiguousarray(self.data[name]).tobytes(), found)
        return found


# --- laws ----------------------------------------------------------------------------------------------


def _households(n: int, rng: np.random.Generator) -> People:
    """Incomes and consumption of :func:`~dplinked.simulate.draw_money`, where consumption is cut off at 500 from below."""
    money = draw_money(n, rng)
    X = np.column_stack([money.income, money.south.astype(float)])
    line = 6_000.0 + X @ [0.55, 1_500.0]
    away = (500.0 - line) / 6_000.0
    cut = 6_000.0 * (away * _normal_cdf(away) + np.exp(-(away**2) / 2.0) / math.sqrt(2.0 * math.pi))
    columns = {"income": money.income, "region": np.where(money.south, "south", "north")}
    return People(columns, X, line + cut, money.consumption)


def _normal_cdf(value: Floats) -> Floats:
    from scipy.special import ndtr

    return np.asarray(ndtr(value))


def _slopes(d: int) -> Floats:
    """Slopes of changing sign whose signal has about the same spread with any number of columns."""
    return np.where(np.arange(d) % 2, -0.6, 1.0) / math.sqrt(d)


def numbered(X: Floats, mean: Floats, errors: Floats) -> People:
    return People({f"x{k}": X[:, k].copy() for k in range(X.shape[1])}, X, mean, mean + errors)


def _uniform(n: int, d: int, sigma: float, rng: np.random.Generator) -> People:
    X = rng.uniform(-ROOT3, ROOT3, (n, d))
    return numbered(X, X @ _slopes(d), sigma * rng.standard_normal(n))


def _correlated(n: int, d: int, rng: np.random.Generator) -> People:
    """Columns with correlations .9, within four deviations."""
    X = math.sqrt(0.9) * rng.standard_normal((n, 1)) + math.sqrt(0.1) * rng.standard_normal((n, d))
    X = np.clip(X, -4.0, 4.0)
    return numbered(X, X @ _slopes(d), 0.5 * rng.standard_normal(n))


def _lognormal(n: int, rng: np.random.Generator) -> People:
    X = np.minimum(rng.lognormal(0.0, 0.7, (n, 1)), 45.0)
    return numbered(X, 1.0 + X[:, 0], 0.5 * rng.standard_normal(n))


def _multiplicative(n: int, rng: np.random.Generator) -> People:
    X = rng.uniform(0.0, 2.0, (n, 1))
    mean = 1.0 + X[:, 0]
    return numbered(X, mean, mean * (np.exp(0.5 * rng.standard_normal(n) - 0.125) - 1.0))


def _heteroscedastic(n: int, rng: np.random.Generator) -> People:
    X = rng.uniform(-ROOT3, ROOT3, (n, 1))
    return numbered(X, X[:, 0], (0.2 + 0.8 * np.abs(X[:, 0])) * rng.standard_normal(n))


def _skewed(n: int, rng: np.random.Generator) -> People:
    """Errors that are skewed, and larger where x is."""
    X = rng.uniform(-ROOT3, ROOT3, (n, 1))
    return numbered(X, X[:, 0], (0.2 + 0.3 * (X[:, 0] + ROOT3)) * (rng.exponential(size=n) - 1.0))


def _rare_level(n: int, rng: np.random.Generator) -> People:
    """One row in a hundred is of a level with a slope of its own."""
    x, rare = rng.uniform(-ROOT3, ROOT3, n), rng.random(n) < 0.01
    X = np.column_stack([x, rare, x * rare])
    mean = X @ [1.0, 0.5, 0.5]
    columns = {"x0": x, "group": np.where(rare, "rare", "common")}
    return People(columns, X, mean, mean + 0.5 * rng.standard_normal(n))


def _setting1(n: int, rng: np.random.Generator) -> People:
    X = rng.uniform(-1.0, 1.0, (n, 1))
    return numbered(X, X[:, 0], rng.standard_normal(n))


def numbered_law(
    draw: Callable[[int, np.random.Generator], People],
    d: int,
    bounds: tuple[float, float],
    tight: tuple[float, float],
    start: str = "",
) -> Law:
    names = [f"x{k}" for k in range(d)]
    return Law(draw, f"y ~ {start}{' + '.join(names)}", dict.fromkeys(names, bounds), "y", tight)


def _spread(sigma: float, d: int, deviations: float) -> tuple[float, float]:
    """Bounds of the response at so many of its standard deviations."""
    reach = deviations * math.hypot(sigma, float(np.linalg.norm(_slopes(d))))
    return -reach, reach


def _laws() -> dict[str, Law]:
    income = {"income": (0.0, 150_000.0)}
    edge = (-ROOT3, ROOT3)
    laws = {
        "households": Law(
            _households,
            "consumption ~ income + C(region)",
            income,
            "consumption",
            (0.0, 110_000.0),
            {"region": ("north", "south")},
        ),
        "lognormal": numbered_law(_lognormal, 1, (0.0, 45.0), (-5.0, 50.0)),
        "multiplicative": numbered_law(_multiplicative, 1, (0.0, 2.0), (0.0, 20.0)),
        "heteroscedastic": numbered_law(_heteroscedastic, 1, edge, (-8.0, 8.0)),
        "skewed": numbered_law(_skewed, 1, edge, (-4.0, 14.0)),
        "weak": numbered_law(lambda n, rng: _uniform(n, 1, 5.0, rng), 1, edge, _spread(5.0, 1, 3.5)),
        "rare level": Law(
            _rare_level, "y ~ x0 * C(group)", {"x0": edge}, "y", (-5.0, 5.0), {"group": ("common", "rare")}
        ),
        "setting 1": numbered_law(
            _setting1, 1, (-1.0, 1.0), (-math.sqrt(2 * math.log(10_000)), math.sqrt(2 * math.log(10_000))), "0 + "
        ),
        "correlated": numbered_law(lambda n, rng: _correlated(n, 5, rng), 5, (-4.0, 4.0), _spread(0.5, 5, 4.0)),
    }
    for d in (1, 5, 20):
        laws[f"d = {d}"] = numbered_law(
            lambda n, rng, d=d: _uniform(n, d, 0.5, rng),
            d,
            edge,
            _spread(0.5, d, 4.0),
        )
    return laws


LAWS = _laws()


def add_survey(path: Path) -> None:
    """Make the survey's households a law: rows drawn from them with replacement, so that they are the population."""
    import pyarrow.csv

    table = pyarrow.csv.read_csv(path)
    incomes, spending = (table[name].to_numpy().astype(float) for name in ("income", "consumption"))
    for name, (highest, tight) in {"survey": (120e3, 90e3), "survey, wide": (500e3, 300e3)}.items():

        def draw(n: int, rng: np.random.Generator, highest: float = highest, tight: float = tight) -> People:
            drawn = rng.integers(incomes.size, size=n) if n < POPULATION else np.arange(incomes.size)
            x, y = np.clip(incomes[drawn], 0.0, highest), np.clip(spending[drawn], 0.0, tight)
            return People({"income": x}, x[:, None], y, y)

        LAWS[name] = Law(draw, "consumption ~ income", {"income": (0.0, highest)}, "consumption", (0.0, tight))


# --- links ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Links:
    """Blocks of rows (n) and the accuracy of each block; rows may be left out before they are linked."""

    blocks: Integers
    accuracy: Floats
    kept: NDArray[np.bool_] | None = None


def _draw_links(kind: str, n: int, rng: np.random.Generator) -> Links | None:
    """The blocks of a situation; None where links are exact."""
    if kind == "exact":
        return None
    if kind == "blocks of 25":
        blocks = np.arange(n) // 25
        return Links(blocks, rng.uniform(0.6, 0.9, int(blocks[-1]) + 1))
    if kind == "blocks of 25, .9":
        return Links(np.arange(n) // 25, np.full((n + 24) // 25, 0.9))
    if kind == "blocks of 2":
        return Links(np.arange(n) // 2, np.full((n + 1) // 2, 0.8))
    if kind == "one block":
        return Links(np.zeros(n, dtype=np.int64), np.array([0.8]))
    if kind == "nine blocks":
        shares = SURVEY_SIZES / SURVEY_SIZES.sum()
        return Links(rng.choice(9, n, p=shares), SURVEY_ACCURACY)
    blocks, accuracy = rng.choice(8, n, p=STATE_SHARES), np.full(8, 0.91)
    if kind == "states":
        return Links(blocks, accuracy)
    accuracy[LARGE_STATE] = NEARLY_RANDOM
    if kind == "states, one nearly random":
        return Links(blocks, accuracy)
    if kind == "states, that one left out":
        return Links(blocks, accuracy, blocks != LARGE_STATE)
    raise ValueError(f"No links of the kind {kind!r}.")


def _lahiri_larsen(X: Floats, z: Floats, links: Links | None, intercept: bool) -> Floats:
    """Slopes of ``(W'W)⁻¹W'z`` with W = QX; least squares where links are exact."""
    W = X
    if links is not None:
        sizes = np.bincount(links.blocks, minlength=links.accuracy.size)
        o = np.where(sizes > 1, (1.0 - links.accuracy) / np.maximum(sizes - 1, 1), 0.0)
        a = np.where(sizes > 1, links.accuracy - o, 1.0)
        totals = np.stack([np.bincount(links.blocks, x, links.accuracy.size) for x in X.T], axis=1)
        W = a[links.blocks, None] * X + (o[:, None] * totals)[links.blocks]
    if intercept:
        W = np.column_stack([np.ones(len(z)), W])
    return np.asarray(np.linalg.lstsq(W, z, rcond=None)[0][int(intercept) :])


# --- drawing -------------------------------------------------------------------------------------------


def declared_bounds(situation: Situation) -> dict[str, tuple[float, float]]:
    """Bounds of all columns; the response's are as many times as wide as the tight ones, around the same middle or from zero."""
    law = LAWS[situation.law]
    low, high = law.tight
    middle, reach = (low + high) / 2.0, situation.width * (high - low) / 2.0
    wide = (0.0, 2.0 * reach) if low == 0.0 else (middle - reach, middle + reach)
    return {**law.bounds, law.response: wide}


def _find_holes(situation: Situation, people: People, seed: int) -> NDArray[np.bool_]:
    """Which rows lack the cell that is missing: a share of `MISSING` of all, and where it hangs on x, none of the lowest and twice the share of the highest (n)."""
    x = people.X[:, 0]
    ranks = np.argsort(np.argsort(x)) / x.size
    share = MISSING * (2.0 * ranks if "by x" in situation.holes else np.ones(x.size))
    return np.asarray(np.random.default_rng([seed, 17]).random(x.size) < share)


def draw(situation: Situation, seed: int) -> Drawn:
    """Draw one run's linked rows and what is declared about them. Situations of one law and size have the same people."""
    law = LAWS[situation.law]
    rng = np.random.default_rng([seed, zlib.crc32(f"{situation.law} {situation.n}".encode())])
    people, links = law.draw(situation.n, rng), _draw_links(situation.links, situation.n, rng)
    columns, X, y = dict(people.columns), people.X, people.y
    shown = y
    linkage: Any = dpl.Exact()
    if situation.holes:
        lost, first = _find_holes(situation, people, seed), next(iter(columns))
        shown = np.where(lost & situation.holes.startswith("y"), np.nan, y)
        columns[first] = np.where(lost & situation.holes.startswith("x"), np.nan, columns[first])
    if links is not None:
        if links.kept is not None:
            columns = {name: values[links.kept] for name, values in columns.items()}
            X, y, shown = X[links.kept], y[links.kept], shown[links.kept]
            links = Links(links.blocks[links.kept], links.accuracy)
        order = mislink(links.blocks, links.accuracy, rng)
        y, shown = y[order], shown[order]
        columns["block"] = links.blocks
        linkage = dpl.ELE({int(b): float(links.accuracy[b]) for b in np.unique(links.blocks)}, block="block")
    arguments = {
        "formula": law.formula,
        "bounds": declared_bounds(situation),
        "levels": dict(law.levels),
        "linkage": linkage,
        "epsilon": situation.epsilon,
        "delta": 1e-6,
        **situation.settings,
    }
    not_private = _lahiri_larsen(X, y, links, intercept="0 +" not in law.formula)
    return Drawn({**columns, law.response: shown}, arguments, not_private)


@cache
def true_slopes(law: str, population: int = POPULATION) -> Floats:
    """Slopes of the least-squares line of perfectly linked rows, from the mean of the response over many of them (d)."""
    declared = LAWS[law]
    people = declared.draw(population, np.random.default_rng(0))
    first = int("0 +" not in declared.formula)
    X = np.column_stack([np.ones(len(people.X)), people.X]) if first else people.X
    return np.asarray(np.linalg.lstsq(X, people.mean, rcond=None)[0][first:])


# --- the cells -----------------------------------------------------------------------------------------

TIGHT, WIDE = 1.0, 4.0
SETTING1 = {"unit": dpl.PrivacyUnit(linkage_change=1.0), "delta": 10_000**-1.1}
ALONE = {**SETTING1, "typical": {"x0": (-0.6, 0.6)}, "intervals": False}  # as 0.1.0 was measured
ESTIMATE_ALONE, SYMMETRIC_ALONE = "setting 1, estimate alone", "setting 1, symmetric errors, estimate alone"
SYMMETRIC = {"errors": "symmetric"}
WITH_RANDOM, WITHOUT_RANDOM = "a nearly random state", "without that state"

SITUATIONS = [
    *(Situation(f"households, {w:g}x", "households", links="states", width=w) for w in (TIGHT, 2.0, WIDE)),
    Situation("households, n = 5,000", "households", 5_000, "states"),
    Situation("households, n = 200,000", "households", 200_000, "states"),
    Situation("households, ε = .3", "households", links="states", epsilon=0.3),
    Situation("households, ε = 8", "households", links="states", epsilon=8.0),
    Situation(WITH_RANDOM, "households", links="states, one nearly random"),
    Situation(WITHOUT_RANDOM, "households", links="states, that one left out"),
    Situation("lognormal", "lognormal", 10_000),
    Situation("lognormal, ε = 8", "lognormal", 10_000, epsilon=8.0),
    Situation("multiplicative errors", "multiplicative"),
    Situation("heteroscedastic errors", "heteroscedastic"),
    Situation("heteroscedastic, skewed", "skewed"),
    Situation("blocks of 2", "d = 1", links="blocks of 2"),
    Situation("one block", "d = 1", links="one block"),
    *(Situation(f"d = {d}, {links}", f"d = {d}", links=links) for d in (1, 5, 20) for links in ("exact", "blocks of 25")),
    *(Situation(f"correlated, {links}", "correlated", links=links) for links in ("exact", "blocks of 25")),
    Situation("n = 5,000, ε = .3", "d = 1", 5_000, epsilon=0.3),
    Situation("n = 200,000, ε = 8", "d = 1", 200_000, epsilon=8.0),
    Situation("weak signal, tight bounds", "weak"),
    Situation("a rare level", "rare level"),
    Situation("setting 1", "setting 1", 10_000, settings=SETTING1),
    Situation(ESTIMATE_ALONE, "setting 1", 10_000, settings=ALONE),
    Situation(SYMMETRIC_ALONE, "setting 1", 10_000, settings=ALONE, new=SYMMETRIC),
    Situation("d = 5, blocks of 25, symmetric errors", "d = 5", new=SYMMETRIC),
]  # fmt: skip

SURVEY_SITUATIONS = [
    *(Situation(f"survey, {w:g}x", "survey", 8_000, "nine blocks", width=w) for w in (TIGHT, 2.0, WIDE)),
    Situation("survey, 500k/300k", "survey, wide", 8_000, "nine blocks"),
]
