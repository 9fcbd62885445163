"""How good are the links? Estimates of the accuracy per block, from probabilities and by simulation.

Everything here is computed from the two files without noise. It is for the steward, not for publication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.assignment import assign_sparse
from dplinked.linker.matches import Matches
from dplinked.linker.rules import Links
from dplinked.linker.strata import Strata, within_reach

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DOUBT = 0.02  # an error of the accuracy that moves slopes by as much as users can live with
MOST_SIMULATED = 30_000  # candidate pairs; more of them take longer to simulate than to link
_REPETITIONS = 8
_FEW_FURTHER = 0.01  # further records per person that may be chance


@dataclass(frozen=True)
class SecretAudit:
    """How checked links were drawn in secret.

    Attributes
    ----------
    rate
        The chance of each row to be drawn. It is public.
    tag
        A hash by which the key is known again. It is not shown.
    """

    rate: float
    tag: str = field(repr=False)


@dataclass(frozen=True)
class AccuracyEstimate:
    """The accuracy of each stratum, estimated by one method.

    Attributes
    ----------
    method
        ``audit``, ``one-to-one`` or ``simulation``.
    accuracy, low, high
        For each stratum, its accuracy and the ends of a 95 % interval. The ends are NaN if the method has no intervals.
    overall
        The accuracy over all rows, and the ends of its interval.
    checked, correct
        For an audit only: how many links of each stratum were checked, and how many of these are correct.
    assumes
        What the method assumes, as the end of the sentence "it assumes …".
    secret
        For an audit of links that were drawn in secret: how they were.
    rows
        For an audit only: the rows that were checked, in ascending order.
    says
        What else the method found, in sentences.
    answers, chance, by
        For an audit only: the answers to these rows; and if they were drawn by the levels of a variable, the chance that each had, and that variable.
    effective
        Of such an audit: for each stratum, how many links of equal chances would tell as much, and how many of them are correct, in this order: correct, checked.
    unopposed
        Whether rows compete for no record, so that nothing holds an error of the evidence in check.
    """

    method: str
    accuracy: Floats
    low: Floats
    high: Floats
    overall: tuple[float, float, float]
    assumes: str
    checked: Integers | None = None
    correct: Integers | None = None
    secret: SecretAudit | None = None
    rows: Integers | None = None
    says: tuple[str, ...] = ()
    answers: NDArray[np.bool_] | None = None
    chance: Floats | None = None
    by: str | None = None
    effective: tuple[Floats, Floats] | None = None
    unopposed: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether the accuracy over all rows is not known to two percentage points by this method; never of one without intervals."""
        return self.unopposed or self.overall[2] - self.overall[1] > 2.0 * DOUBT

    def __repr__(self) -> str:
        return f"AccuracyEstimate(method={self.method!r}, {self.accuracy.size} groups)"


# --- (1) clerical audit ------------------------------------------------------------------------------


# --- (2) one-to-one probabilities --------------------------------------------------------------------


def link_probabilities(links: Links, probability: Floats) -> Floats:
    """One-to-one probability of the link of each row (n); 0 if its pair was never a candidate."""
    candidates = links.candidates
    chosen = links.right[candidates.left] == candidates.right
    own = np.zeros(links.right.size)
    own[candidates.left[chosen]] = probability[chosen]
    return own


def estimate_from_probabilities(
    strata: Strata, own: Floats, tried: Sequence[Floats] = (), says: Sequence[str] = ()
) -> AccuracyEstimate:
    """Estimate each stratum's accuracy by the mean one-to-one probability of its links.

    `tried` are these probabilities under other strengths of the evidence, and with the overlap estimated if it was declared. Intervals reach over all of them, and by chance further: links are right or wrong,
    and those of three rows may be so against all evidence.
    """

    def sums(values: Floats) -> Floats:  # of each stratum, and of all rows
        return np.append(np.bincount(strata.of_row, values, len(strata.names)), values.sum())

    rows = np.maximum(np.append(strata.rows, own.size), 1)
    means = np.array([sums(each) / rows for each in (own, *tried)])
    chance = (1.96 * np.sqrt(sums(own * (1.0 - own))) + 3.0) / rows
    low, high = np.clip([means.min(axis=0) - chance, means.max(axis=0) + chance], 0.0, 1.0)
    if not tried:
        low[:], high[:] = math.nan, math.nan
    return AccuracyEstimate(
        "one-to-one", within_reach(means[0, :-1], strata), low[:-1], high[:-1], (float(means[0, -1]), float(low[-1]), float(high[-1])),
        "that the evidence of the fields is calibrated (fields agree independently given a match or none); its interval is no confidence interval, but reaches over the accuracies that "
        "follow if all evidence is several times stronger or weaker", says=tuple(says),
    )  # fmt: skip


def describe_matches(matches: Matches, declared: float | None, carriers: int = 1) -> list[str]:
    """What the model of one-to-one probabilities found about the two files, for the steward."""
    if carriers > 1:
        share = (
            f"{100 * matches.overlap:.0f} % of the left file's rows have a record in the right file, as far as the evidence tells"
            if declared is None
            else f"{100 * declared:g} % of the left file's rows have a record in the right file: this was declared"
        )
        return [
            f"{share}; there are {1.0 + matches.further[0]:.1f} rows for each record that has any. Rows do not compete for records, so that nothing holds an error of the evidence in check: such estimates were "
            "too high by .02 to .06 where address, postcode and suburb change together."
        ]
    told = (
        f"{100 * matches.overlap:.0f} % of the smaller file's people have a record among their candidates in the other file, as far as the evidence tells."
        if declared is None
        else f"{100 * declared:g} % of the smaller file's people are in the other file too: this was declared."
    )
    said = [told]
    for side, further in zip(("left", "right"), matches.further, strict=True):
        if further > _FEW_FURTHER:
            said.append(
                f"The {side} file seems to hold further records of the same people, {100 * further:.0f} for every hundred who are in both files. "
                + ("A link to any of them counts as right here. " if side == "right" else "")
                + "One person's response may then be on several rows: remove duplicates before linking, or declare how many with carriers=…."
            )
    if matches.otherwise is not None:
        said.append(
            "Many records look alike. They may be further records of the same people, or other people whom these fields do not tell apart: the interval reaches over both. If several rows belong to one record of the right "
            "file, link them so, links='many-to-one'; if nobody has two records in a file, say so, duplicates=False; or compare a field that tells them apart."
        )
    return said


# --- (3) simulation ----------------------------------------------------------------------------------


def simulate_if_small(strata: Strata, links: Links, probability: Floats) -> list[AccuracyEstimate]:
    """The estimate by simulation where it does not take longer than linking."""
    if links.candidates.left.size > MOST_SIMULATED:
        return []
    return [estimate_by_simulation(strata, links, probability)]


def estimate_by_simulation(
    strata: Strata, links: Links, probability: Floats, *, repetitions: int = _REPETITIONS, seed: int = 0
) -> AccuracyEstimate:
    """Estimate the accuracies by simulating the linkage from its own model (after Chipperfield).

    Notes
    -----
    Each repetition has three steps. First, the true partner of each left row is drawn among its candidates, with the pairs' probabilities,
    or the row has none. Then each pair gets the score of another pair, drawn among the matches if it is a true pair and
    among the non-matches otherwise. Last, the assignment is made again, and the correct links are counted.
    """
    candidates, rng = links.candidates, np.random.default_rng(seed)
    n, found = links.right.size, []
    if candidates.left.size:
        matches, others = _cumulated(probability), _cumulated(1.0 - probability)
        for _ in range(repetitions):
            truth = _draw_truth(candidates.left, probability, n, rng)
            drawn = np.where(truth, _draw(matches, truth.size, rng), _draw(others, truth.size, rng))
            score = candidates.score[drawn]
            least = max(float(score.min()), links.floor)
            taken = assign_sparse(candidates.left, candidates.right, score - least + 1e-3, links.room)
            correct = np.bincount(candidates.left[taken & truth], minlength=n) * (links.right >= 0)
            found.append(np.bincount(strata.of_row, correct, minlength=len(strata.names)) / strata.rows)
    else:
        found = [np.zeros(len(strata.names))] * 2
    each = np.array(found)
    each = np.column_stack([each, each @ (strata.rows / strata.rows.sum())])
    mean, spread = each.mean(axis=0), 1.96 * each.std(axis=0, ddof=1)
    low, high = np.clip([mean - spread, mean + spread], 0.0, 1.0)
    return AccuracyEstimate(
        "simulation", within_reach(mean[:-1], strata), low[:-1], high[:-1], (float(mean[-1]), float(low[-1]), float(high[-1])),
        "the same, and that comparisons of different pairs are independent; rows keep their group whatever is drawn, and the interval is "
        "the simulation's own spread",
    )  # fmt: skip


def _draw_truth(left: Integers, probability: Floats, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark at most one candidate of each left row as the true pair, each with its probability."""
    order = np.argsort(left, kind="stable")
    sums = np.cumsum(probability[order])
    before = np.concatenate([[0.0], sums[:-1]])
    first = np.searchsorted(left[order], np.arange(n))
    base = np.concatenate([[0.0], sums])[first][left[order]]
    point = rng.random(n)[left[order]] + base
    truth = np.zeros(left.size, dtype=bool)
    truth[order] = (point >= before) & (point < sums)
    return truth


def _cumulated(weight: Floats) -> Floats:
    """Cumulative distribution of pairs drawn with these weights."""
    total = np.cumsum(np.maximum(weight, 1e-12))
    return np.asarray(total / total[-1], dtype=np.float64)


def _draw(cumulated: Floats, size: int, rng: np.random.Generator) -> Integers:
    """Draw pairs from a cumulative distribution, with replacement."""
    return np.minimum(np.searchsorted(cumulated, rng.random(size)), cumulated.size - 1).astype(np.int64)


# --- what fit needs ----------------------------------------------------------------------------------
