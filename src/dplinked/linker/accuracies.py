"""Accuracies for a fit, from the links that were checked: hidden ones, and ones that may be shown, with their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, shown
from dplinked.linkage import ELE
from dplinked.linker.joined import BLOCK
from dplinked.linker.quality import AccuracyEstimate
from dplinked.linker.rules import UNLINKED
from dplinked.linker.strata import REGULAR, Strata, within_reach
from dplinked.privacy.quantities.right_links import affords_groups

if TYPE_CHECKING:
    from dplinked.linker.linked import Linked

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEAST_SHOWN = 10  # strata with fewer checked links are not shown by themselves
_LARGEST_ERROR = 0.49  # of an accuracy, which no interval reaches beyond


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
    return within_reach(np.where(np.array(strata.names) == UNLINKED, 0.0, found), strata)


def accuracy_table(strata: Strata, accuracy: Sequence[float] | Floats) -> tuple[float | dict[str, float], float | None]:
    """Return the arguments ``accuracy`` and ``other`` of :class:`~dplinked.ELE`.

    They are one accuracy per block and None, or one accuracy for all blocks and one for the rows linked across blocks.
    """
    table = {name: float(value) for name, value in zip(strata.names, accuracy, strict=True)}
    if strata.per_block:
        return table, None
    rows = {name: count for name, count in zip(strata.names, strata.rows.tolist(), strict=True) if name != REGULAR}
    if not rows:
        return table[REGULAR], None
    other = sum(table[name] * count for name, count in rows.items()) / sum(rows.values())
    return table.get(REGULAR, other), other


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
    if isinstance(error, float) and other_error is not None and any(REGULAR in part for part in shared):
        # One count of all: what both errors have in common is added to the first.
        late = float(np.average(np.array(strata.names) != REGULAR, weights=strata.rows))
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


# --- linkage models ----------------------------------------------------------------------------------


def hidden_linkage(linked: Linked, estimates: Sequence[AccuracyEstimate]) -> ELE:
    """The linkage model with accuracies estimated from these very files, by the first of the `estimates` that may be used."""
    usable = [found for found in estimates if found.by is None]
    if not usable:
        raise StudyError(
            "Nothing tells how good these links are: the pairs came without probabilities. Check some of them "
            "(audit_sample, without by=…), or declare dpl.ELE(accuracy=…, block='link_block') yourlinked."
        )
    best = usable[0]
    hidden = hidden_accuracies(linked.strata, best, linked.least_checked)
    accuracy, other = accuracy_table(linked.strata, hidden)
    checked = None if best.checked is None else linked.least_checked
    return ELE(
        accuracy, BLOCK, other=other, checked=checked, source="estimated", fields=linked.compared or None, carriers=linked.carriers
    )  # fmt: skip


def linkage_by_identifiers(linked: Linked, fields: Sequence[str] | None) -> ELE:
    """The linkage model with the accuracies that an audit of identifiers found."""
    if linked.audit is None:
        raise StudyError("No links were checked. Check some (audit_sample), then read them back with audited(…).")
    if linked.audit.secret is not None:
        raise StudyError(
            "These links were drawn in secret, and accuracies as they were found would tell of who was drawn. Release them "
            "(dpl.release_accuracy), or draw links without a key."
        )
    counts = pool_small_strata(linked.strata, linked.audit)
    if not counts[1].any():
        raise StudyError(f"Too few links were checked to show an accuracy: check {LEAST_SHOWN} or more.")
    known = known_accuracies(linked.strata, *counts, scale=0.0)
    if linked.method == "pairs" and not fields:
        raise StudyError("These links were made elsewhere: say by which columns, linkage_by_identifiers(fields=[…]).")
    if linked.audit.by is not None and linked.audit.by not in linked.compared:
        raise StudyError(
            f"These links were drawn by the levels of {shown(linked.audit.by)}, by which records were not linked, so the accuracies would tell of it without noise. Check links that were drawn without by=…."
        )
    looked_at = list(dict.fromkeys([*linked.compared, *(fields or ())]))
    return ELE(block=BLOCK, **known, source="identifiers", fields=looked_at, carriers=linked.carriers)
