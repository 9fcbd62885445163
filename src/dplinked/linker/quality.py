"""How good are the links? Estimates of the accuracy per block: from a clerical audit, from probabilities, by simulation.

Everything here is computed from the two files without noise. It is for the steward, not for publication.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import number
from dplinked.errors import StudyError
from dplinked.linker.assignment import assign_sparse
from dplinked.linker.matches import Matches
from dplinked.linker.rules import LATE, UNLINKED, Links, encode_names
from dplinked.privacy.quantities.right_links import affords_groups

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEVEL = 0.95
ANSWER = "correct"  # the column of an audit in which the reviewer answers
SECRET = "secret"  # the column that marks the list of a sample that was drawn in secret
DRAWN_BY, CHANCE = "drawn by", "chance"  # columns that say by which variable links were drawn, and with what chance
_OLD_ANSWER = "right"  # its name before version 0.2
MOST_STRATA = 50  # if there are more blocks than this, they share one accuracy
LEAST_CHECKED = 5  # an audit asks for at least this many links per stratum, or for all links
LEAST_SHOWN = 10  # strata with fewer checked links are not shown by themselves
_LEAST_BANDED = 50  # rows of a band; wrong links of fewer would hardly fall within it
_LARGEST_ERROR = 0.49  # of an accuracy, which no interval reaches beyond
DOUBT = 0.02  # an error of the accuracy that moves slopes by as much as users can live with
MOST_SIMULATED = 30_000  # candidate pairs; more of them take longer to simulate than to link
_REPETITIONS = 8
_FEW_FURTHER = 0.01  # further records per person that may be chance
_REGULAR = "(linked)"  # the stratum of all blocks together, if there are many


@dataclass(frozen=True)
class Strata:
    """Groups of rows that share an accuracy: each block is one, or all blocks together if there are many.

    Attributes
    ----------
    names
        Their names. The rows of ``(further)`` were linked across blocks, those of ``(last)`` at random; those of ``(unlinked)`` have no partner.
    of_row
        The stratum of each row, as a position in `names` (n).
    rows
        Number of rows of each stratum.
    per_block
        Whether each block is a stratum of its own.
    kinds
        The population that each stratum is drawn from, whose strata have like accuracies: its band of probabilities, if there are any, and -1 for
        rows that were not linked within their block.
    """

    names: tuple[str, ...]
    of_row: Integers
    rows: Integers
    per_block: bool
    kinds: Integers


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


def make_strata(blocks: NDArray[np.object_], bands: Integers | None = None) -> Strata:
    """Make the strata from the block of each row, and from its band of probabilities if blocks are divided into such."""
    found, codes = encode_names(blocks)
    shown = [str(name) for name in found]
    per_block = len(shown) <= MOST_STRATA
    if not per_block:
        shown = [name if name in LATE else _REGULAR for name in shown]
    names = sorted(set(shown))
    codes = np.array([names.index(name) for name in shown], dtype=np.int64)[codes]
    kinds = np.zeros(len(names), dtype=np.int64)
    if bands is not None:
        kinds[codes] = bands
    kinds[np.isin(names, LATE)] = -1
    return Strata(tuple(names), codes, np.bincount(codes, minlength=len(names)), per_block, kinds)


def choose_cuts(probability: Floats, bands: int) -> list[float]:
    """Cut points between bands of links that hold equally many wrong links each, as far as probabilities tell."""
    if probability.size == 0:
        return []
    ordered = np.sort(probability)
    wrong = np.cumsum(1.0 - ordered)
    places = np.searchsorted(wrong, wrong[-1] * np.arange(1, bands) / bands)
    return sorted({round(float(ordered[place]), 6) for place in places} - {0.0, 1.0})


def band_links(
    blocks: NDArray[np.object_], probability: Floats, cuts: Sequence[float]
) -> tuple[NDArray[np.object_], Integers]:
    """Divide each block by the probabilities of its links: the name of each row's group, and its band (n each).

    A band of a block with too few rows joins the next one. Rows that were linked across blocks, or not at all, stay together.
    """
    edges, names, bands = [0.0, *cuts, 1.0], blocks.copy(), np.full(blocks.size, -1)
    found, codes = encode_names(blocks)
    for code, name in enumerate(found):
        if name in LATE:
            continue
        rows = np.flatnonzero(codes == code)
        own = np.searchsorted(cuts, probability[rows], side="right")
        tops = _joined_bands(np.bincount(own, minlength=len(cuts) + 1))
        own = np.searchsorted(tops, own)
        for place, top in enumerate(tops):
            low = 0 if place == 0 else tops[place - 1] + 1
            chosen = rows[own == place]
            names[chosen], bands[chosen] = f"{name}, {edges[low]:.15g} to {edges[top + 1]:.15g}", top
    return names, bands


def _joined_bands(counts: Integers) -> list[int]:
    """The last band of each run of bands that go together; a run has enough rows, unless all of them together have not."""
    tops, rows = list[int](), 0
    for band, count in enumerate(counts.tolist()):
        rows += count
        if rows >= _LEAST_BANDED:
            tops.append(band)
            rows = 0
    return [*tops[:-1], counts.size - 1] if tops else [counts.size - 1]


# --- (1) clerical audit ------------------------------------------------------------------------------


def draw_audit(links: Links, strata: Strata, size: int, key: bytes, rates: Floats | None = None) -> Integers:
    """Draw about `size` rows whose links a person should check, each with the same chance or with that in `rates` (n), whatever the links are.

    Notes
    -----
    Row i is drawn if a keyed hash of i is below size/n of its range: each row by itself, with the same chance, in large groups and in small ones. No row's group and no row's link
    takes part, so another name for one person changes nobody's chance. Left out is the group of rows without a partner, whose accuracy is known;
    a row without a partner in another group counts as a wrong link. So while rows keep their groups, the numbers checked in them stay. The number of rows
    is random; its standard deviation is below the root of `size`.
    """
    groups, n = sum(name != UNLINKED for name in strata.names), links.right.size
    if size < min(LEAST_CHECKED * groups, n):
        raise StudyError(
            f"An audit of {size} links is too small for {groups} groups of links: ask for {LEAST_CHECKED} for each of them or more."
        )
    drawn = _position_hashes(n, key) < (sampling_rate(size, n) if rates is None else rates)
    return np.flatnonzero(drawn & (np.array(strata.names)[strata.of_row] != UNLINKED))


def sampling_rate(size: int, n: int) -> float:
    """The chance of each of n rows to be among about `size` drawn ones."""
    return min(1.0, size / max(n, 1))


def seed_key(seed: int) -> bytes:
    """The key of a public sample: everybody who knows the seed knows who was drawn."""
    return str(seed).encode()


def _position_hashes(n: int, key: bytes) -> Floats:
    """A number in [0, 1) for each of n positions, by a keyed hash of the position."""
    key = hashlib.sha256(key).digest()
    digests = (hashlib.blake2b(i.to_bytes(8, "little"), key=key, digest_size=8).digest() for i in range(n))
    return np.frombuffer(b"".join(digests), "<u8") / 2.0**64


def count_answers(
    of_row: Integers, size: int, answers: NDArray[np.bool_], chance: Floats | None
) -> tuple[Floats, Floats]:
    """Correct and checked links of each stratum, of `size` ones; if rows had different chances, as many of equal ones as tell as much.

    Notes
    -----
    With weights w = 1/chance, the share of correct links is ``Σwy/Σw``, as well known as from ``(Σw)²/Σw²`` links that were drawn with equal chances (Kish).
    """
    weight = np.ones(answers.size) if chance is None else 1.0 / chance
    total, squares, good = (np.bincount(of_row, part, minlength=size) for part in (weight, weight**2, weight * answers))
    checked = np.divide(total**2, squares, out=np.zeros(size), where=squares > 0.0)
    return np.divide(good, total, out=np.zeros(size), where=total > 0.0) * checked, checked


def estimate_from_audit(
    strata: Strata, rows: Integers, answers: NDArray[np.bool_], chance: Floats | None = None, by: str | None = None
) -> AccuracyEstimate:
    """Estimate the accuracies from checked links; `answers` says of each of the `rows` whether its link is correct.

    If they were drawn by the levels of a variable, `by` names it, and `chance` is the one that each row had.

    Notes
    -----
    Intervals are exact (Clopper and Pearson). Estimates are posterior means under a beta prior that is fitted to all blocks, or to those of a band, so
    those of small blocks are shrunk towards the others. Rows linked across blocks are a population of their own, and their
    estimate is not shrunk; it is one half if none of them was checked.
    """
    checked = np.bincount(strata.of_row[rows], minlength=len(strata.names))
    right = np.bincount(strata.of_row[rows], answers.astype(np.float64), minlength=len(strata.names)).astype(np.int64)
    effective = None if chance is None else count_answers(strata.of_row[rows], len(strata.names), answers, chance)
    good, counted = (right, checked) if effective is None else effective
    order = np.argsort(rows, kind="stable")
    ordinary = strata.kinds >= 0
    mean, weight = np.zeros(len(strata.names)), np.zeros(len(strata.names))
    for kind in set(strata.kinds[ordinary].tolist()):
        alike = strata.kinds == kind
        mean[alike], weight[alike] = _beta_prior(good[alike], counted[alike])
    unknown = np.isin(strata.names, LATE) & (counted == 0)  # these groups are drawn towards no other
    unknown &= np.array(strata.names) != UNLINKED
    apart = np.where(unknown, 0.5, good / np.maximum(counted, 1))
    accuracy = np.where(ordinary, (good + weight * mean) / np.maximum(counted + weight, 1e-12), apart)
    low, high = exact_interval(good, counted)
    share = strata.rows / strata.rows.sum()
    overall = float(share @ accuracy)
    raw = good / np.maximum(counted, 1)
    error = math.sqrt(
        float(np.sum(share**2 * np.maximum(raw * (1 - raw), 0.25 / np.maximum(counted, 1)) / np.maximum(counted, 1)))
    )
    return AccuracyEstimate(
        "audit", _within(accuracy, strata), low, high,
        (overall, max(0.0, overall - 1.96 * error), min(1.0, overall + 1.96 * error)),
        "that the reviewer's answers are right, and that the checked links were drawn at random", checked, right, rows=rows[order],
        answers=answers[order], chance=None if chance is None else chance[order], by=by, effective=effective,
    )  # fmt: skip


def exact_interval(good: Floats | Integers, checked: Floats | Integers) -> tuple[Floats, Floats]:
    """Clopper and Pearson's interval for each share good/checked; [0, 1] if nothing was checked."""
    from scipy.stats import beta

    tail = (1.0 - LEVEL) / 2.0
    low = np.where(good > 0, beta.ppf(tail, np.where(good > 0, good, 1), checked - good + 1), 0.0)
    high = np.where(good < checked, beta.ppf(1.0 - tail, good + 1, np.where(good < checked, checked - good, 1)), 1.0)
    return np.where(checked > 0, low, 0.0), np.where(checked > 0, high, 1.0)


def _beta_prior(good: Floats | Integers, checked: Floats | Integers) -> tuple[float, float]:
    """Fit a beta distribution to the blocks' counts: its mean, and the number of links that it weighs as much as."""
    from scipy.special import betaln

    mean = float((good.sum() + 0.5) / (checked.sum() + 1.0))
    weights = np.geomspace(2.0, 2000.0, 40)
    a, b = weights * mean, weights * (1.0 - mean)
    fit = (betaln(good[:, None] + a, (checked - good)[:, None] + b) - betaln(a, b)).sum(axis=0)
    return mean, float(weights[int(np.argmax(fit))])


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
        "one-to-one", _within(means[0, :-1], strata), low[:-1], high[:-1], (float(means[0, -1]), float(low[-1]), float(high[-1])),
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
    return said


# --- (3) simulation ----------------------------------------------------------------------------------


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
        "simulation", _within(mean[:-1], strata), low[:-1], high[:-1], (float(mean[-1]), float(low[-1]), float(high[-1])),
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


def hidden_accuracies(strata: Strata, estimate: AccuracyEstimate, least: int) -> Floats:
    """Accuracies for a fit that keeps them hidden, each from its own stratum's checked links alone.

    With g right links among m checked ones it is ``(g + 1)/(m + 2)``. Where m is below the public number `least`, the links that lack count as half
    right: ``(g + 1 + (least - m)/2)/(least + 2)``. Rows without a partner have the accuracy of random links. Estimates that rest on no checked links
    are returned as they are.

    Proof that one changed link moves it by less than ``1/least``, which :meth:`dplinked.ELE.audit_change` needs. A turned answer changes g by 1 and
    nothing else. A link that is checked only on one side changes g by 0 or 1, and m by 1. For m below `least` that moves the estimate by
    ``1/(2 least + 4)``. Else it moves from ``(g+1)/(m+2)`` to ``(g+1)/(m+3)`` or ``(g+2)/(m+3)``, by less than ``1/(m+3)``.
    """
    if estimate.checked is None or estimate.correct is None:
        return estimate.accuracy
    lacking = np.maximum(least - estimate.checked, 0)
    found = (estimate.correct + 1.0 + lacking / 2.0) / (np.maximum(estimate.checked, least) + 2.0)
    return _within(np.where(np.array(strata.names) == UNLINKED, 0.0, found), strata)


def _within(accuracy: Floats, strata: Strata) -> Floats:
    """Clip accuracies to what an exchangeable model can have: at least 1/m, the accuracy of random links, and at most 1."""
    return np.clip(accuracy, 1.0 / np.maximum(strata.rows, 1), 1.0)


def accuracy_table(strata: Strata, accuracy: Sequence[float] | Floats) -> tuple[float | dict[str, float], float | None]:
    """Return the arguments ``accuracy`` and ``other`` of :class:`~dplinked.ELE`.

    They are one accuracy per block and None, or one accuracy for all blocks and one for the rows linked across blocks.
    """
    table = {name: float(value) for name, value in zip(strata.names, accuracy, strict=True)}
    if strata.per_block:
        return table, None
    rows = {name: count for name, count in zip(strata.names, strata.rows.tolist(), strict=True) if name != _REGULAR}
    if not rows:
        return table[_REGULAR], None
    other = sum(table[name] * count for name, count in rows.items()) / sum(rows.values())
    return table.get(_REGULAR, other), other


def count_together(strata: Strata, checked: Integers | Floats, scale: float) -> Integers:
    """Which groups have their right links counted together, so that noise of `scale` on each count does not drown them: the number of its count for each group.

    All groups are counted apart if that is affordable, else those of one kind together: blocks, bands of the same kind, late ones. Kinds stay apart, since their accuracies differ, and where a
    regressor differs too, one accuracy for both would bend its slope. The count of rows without a partner is never drawn: none of their links is right.
    """
    linkable = np.array(strata.names) != UNLINKED
    affordable = affords_groups(int(linkable.sum()), float(checked[linkable].sum()), scale)
    parts = np.arange(linkable.size) if affordable else strata.kinds
    return np.unique(np.where(linkable, parts, np.inf), return_inverse=True)[1]


def known_accuracies(
    strata: Strata, correct: Floats, checked: Floats, scale: float, guess: Floats | None = None, parts: Integers | None = None
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of :class:`~dplinked.ELE` that tell accuracies and their errors, from counts that may be shown.

    `correct` of the `checked` links of each count are right, with noise of a standard deviation `scale`; `parts` says which groups share a count, else each has its own. Of a secret
    sample, `checked` is the expected number of links, and `guess` the accuracy that was subtracted from each answer. Rows without a partner have the accuracy of random links.
    Strata of one kind are drawn towards their mean, and share its error; those of one count share all of it.
    """
    linkable = np.array(strata.names) != UNLINKED
    parts = np.arange(linkable.size) if parts is None else parts
    kinds = np.full(parts.max(initial=0) + 1, -1)
    np.maximum.at(kinds, parts, strata.kinds)  # a count of blocks and of late links is taken as one of blocks
    accuracy, errors = 1.0 / np.maximum(strata.rows, 1), np.zeros(linkable.size)
    shared = []
    for kind in sorted(set(kinds.tolist())):
        alike = np.flatnonzero(linkable & (kinds[parts] == kind))
        counts, own = np.unique(parts[alike], return_inverse=True)
        found = shrink_accuracies(
            correct[counts], checked[counts], scale, [kind < 0] * counts.size, None if guess is None else guess[counts]
        )
        accuracy[alike] = np.clip(found.accuracy[own], accuracy[alike], 1.0)
        errors[alike] = np.minimum(found.error[own], _LARGEST_ERROR)
        common = errors[alike] if counts.size < alike.size else np.minimum(found.shared, errors[alike])
        if alike.size > 1 and common.any():
            shared.append({strata.names[k]: float(error) for k, error in zip(alike, common, strict=True)})
    table, other = accuracy_table(strata, accuracy)
    error, other_error = accuracy_table(strata, errors)
    known = {"accuracy": table, "other": other, "accuracy_error": error, "other_error": other_error}
    if strata.per_block:
        return {**known, "shared_error": shared}
    if isinstance(error, float) and other_error is not None and any(_REGULAR in part for part in shared):
        # One count of all: what both errors have in common is added to the first.
        late = float(np.average(np.array(strata.names) != _REGULAR, weights=strata.rows))
        both = error**2 + 2.0 * error * other_error * late / max(1.0 - late, 1e-9)
        known["accuracy_error"] = min(math.sqrt(both), _LARGEST_ERROR)
    return known


def name_counts(strata: Strata, parts: Integers) -> list[str]:
    """Names of counts: that of the group, or of what the groups of a count are."""
    names, banded = [], strata.kinds.max(initial=0) > 0
    for part in range(int(parts.max(initial=-1)) + 1):
        groups = np.flatnonzero(parts == part)
        kinds = sorted(set(strata.kinds[groups].tolist()))
        said = ["late" if kind < 0 else f"band {kind + 1}" if banded else "blocks" for kind in reversed(kinds)]
        names.append(strata.names[groups[0]] if groups.size == 1 else f"({' and '.join(said)})")
    return names


def pool_small_strata(strata: Strata, estimate: AccuracyEstimate) -> tuple[Floats, Floats]:
    """Correct and checked links of each stratum, such that none of them tells of few links: those with less than `LEAST_SHOWN` checked ones share what they found.

    Rows linked across blocks are a population of their own; with so few checked links, they count as not checked.
    """
    assert estimate.correct is not None
    assert estimate.checked is not None
    told = (estimate.correct, estimate.checked) if estimate.effective is None else estimate.effective
    correct, checked = (counts.astype(np.float64) for counts in told)
    few = estimate.checked < LEAST_SHOWN
    for kind in set(strata.kinds.tolist()):
        pooled = few & (strata.kinds == kind)
        enough = kind >= 0 and checked[pooled].sum() >= LEAST_SHOWN
        for counts in (correct, checked):
            counts[pooled] = counts[pooled].mean() if enough else 0.0
    return correct, checked


@dataclass(frozen=True)
class Shrunk:
    """Accuracies of groups, their standard errors, and the parts of these that groups have in common (all as many as there are groups)."""

    accuracy: Floats
    error: Floats
    shared: Floats


def shrink_accuracies(
    correct: Floats, checked: Floats, scale: float, apart: list[bool], guess: Floats | None = None
) -> Shrunk:
    """Estimate accuracies and their standard errors from the noisy counts alone, shrunk towards their common mean.

    The model is ``γ̃_b ~ N(γ_b, v_b)`` and ``γ_b ~ N(mean, τ²)``, where v_b comes from sampling and noise and is infinite for a group
    without checked links. Ordinary groups share a mean and a τ², which are estimated from them; the mean is that of a share, even if noise took it above one. The groups marked in `apart`, which were
    linked across blocks, have the mean and variance of a uniform distribution instead. Where the number of links that were drawn is secret, the number that is
    expected stands for it, and each drawn link adds its answer less the guess: a variance of ``γ(1-γ) + (γ - guess)²`` per link.

    The error of a group has two parts, ``(1-k_b)τ²`` of its own and ``(1-k_b)²Var(mean)``, with k_b = τ²/(τ² + v_b). The second comes from the mean alone, so groups have it in common:
    if τ² = 0 they have all of it, and many groups are no better known together than one.
    """
    ordinary, seen = ~np.array(apart, dtype=bool), checked > 0
    told, most = ordinary & seen, np.where(seen, checked, 1.0)
    y = correct / most
    pooled = _cautious_share(correct[ordinary].sum(), checked[ordinary].sum())
    typical = np.where(ordinary, pooled, _cautious_share(correct, checked))
    of_one = typical * (1.0 - typical) + (0.0 if guess is None else (typical - guess) ** 2)
    v = np.where(seen, of_one / most + (scale / most) ** 2, np.inf)
    mean, spread, doubt = np.full(y.size, 0.5), np.full(y.size, 1.0 / 12.0), np.zeros(y.size)
    if told.any():
        first = np.average(y[told], weights=1.0 / v[told])
        found = np.average((y[told] - first) ** 2 - v[told], weights=1.0 / v[told])
        spread[ordinary] = max(0.0, float(found))
        weight = 1.0 / (v[told] + spread[told])
        noise = scale * float(np.linalg.norm(weight / most[told]) / weight.sum())
        mean[ordinary] = _share_beneath_noise(float(np.average(y[told], weights=weight)), noise)
        doubt[ordinary] = 1.0 / weight.sum()
    keep = spread / (spread + v)
    accuracy = np.clip(keep * y + (1.0 - keep) * mean, 0.0, 1.0)
    shared = (1.0 - keep) * np.sqrt(doubt)
    return Shrunk(accuracy, np.sqrt((1.0 - keep) * spread + shared**2), shared)


def _share_beneath_noise(found: float, noise: float) -> float:
    """Posterior mean of a share to which `noise` of this deviation was added, so that it may be above one, under Jeffreys' prior: the share is sin²θ, and θ is uniform.

    Cutting it at one instead makes slopes vary more: by a quarter at an accuracy of .98 and noise of .04. Stated errors stay those of what was found. The posterior's own are
    shorter, but around accuracies of .93 held the truth in 91 % of cases.
    """
    if noise == 0.0:
        return found
    share = np.sin(np.linspace(0.0, np.pi / 2.0, 20_001)) ** 2
    log = -0.5 * ((found - share) / noise) ** 2
    return float(np.average(share, weights=np.exp(log - log.max())))


def _cautious_share(correct: Floats, checked: Floats) -> Floats:
    """Share of right links whose variance is cautious: two more right ones and two more wrong ones (Agresti and Coull), as far as noise leaves it between 0 and 1."""
    few = 2.0 / (checked + 4.0)
    return np.clip((correct + 2.0) / (checked + 4.0), few, 1.0 - few)


def answer_column(columns: Sequence[str]) -> str | None:
    """Name of the column that holds the reviewer's answers, None if an audit has no such column."""
    found = [name for name in (ANSWER, _OLD_ANSWER) if name in columns]
    if len(found) > 1:
        raise StudyError(
            f"The audit has answers in two columns, {ANSWER!r} and {_OLD_ANSWER!r} (its name in older files). Remove one of them."
        )
    return found[0] if found else None


def read_chances(table: pa.Table) -> tuple[Floats | None, str | None]:
    """With what chance each checked row was drawn, and by which variable; None if all had the same."""
    if DRAWN_BY not in table.column_names:
        return None, None
    named = set(table.column(DRAWN_BY).to_pylist())
    cells = table.column(CHANCE).to_pylist() if CHANCE in table.column_names else []
    chance = np.fromiter(map(number, cells), np.float64, len(cells))
    if len(named) != 1 or None in named or chance.size != table.num_rows or not ((chance > 0) & (chance <= 1)).all():
        raise StudyError(
            f"The columns {DRAWN_BY!r} and {CHANCE!r} of the audit must be as audit_sample(…, by=…) wrote them."
        )
    return chance, str(named.pop())


def read_answers(answers: Sequence[Any], column: str = ANSWER) -> NDArray[np.bool_]:
    """Read a reviewer's answers, yes or no in the usual spellings; `column` is named in the message if one is unclear."""
    spelling: Mapping[str, bool] = {
        **dict.fromkeys(("1", "y", "yes", "true", "right", "correct", "t"), True),
        **dict.fromkeys(("0", "n", "no", "false", "wrong", "incorrect", "f"), False),
    }
    texts = ["" if answer is None else str(answer).strip().lower() for answer in answers]
    if any(text not in spelling for text in texts):
        raise StudyError(
            f"Some checked links have no clear answer in the column {column!r}. Write yes or no for each. From a sample that was "
            "drawn without a key, a line may be taken out instead."
        )
    return np.array([spelling[text] for text in texts], dtype=bool)
