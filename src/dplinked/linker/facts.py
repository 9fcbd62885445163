"""What a quality report is made of, and how it names groups and writes numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.explain import Explanation
from dplinked.linker.fields import Field
from dplinked.linker.quality import AccuracyEstimate
from dplinked.linker.resemblance import Resemblance
from dplinked.linker.rules import FURTHER, LAST, LATE, Links
from dplinked.linker.strata import Strata
from dplinked.linker.subgroups import LevelQuality

LATE_STAGES = {FURTHER: "linked by further passes", LAST: "linked last, at random"}
OTHER = "(other)"  # a group of blocks that are none of their own


@dataclass(frozen=True)
class LinkageFacts:
    """What a quality report is made of.

    Attributes
    ----------
    rows
        Numbers of rows of the left and the right file.
    estimates
        Accuracies by every method that tells them, the best first. What an audit of links that were drawn in secret found is not shown, and is not among them.
    resemblance
        How alike wrong links are to their rows, in columns of the left file.
    secret
        Whether links that were drawn in secret were checked.
    readable
        For each field, the share of the left and of the right records whose value could be compared.
    subgroups
        How good links are on the levels of some columns.
    examples
        Links that are explained: what they are examples of, and what their scores are made of.
    duplicates
        About how many records of the left and of the right file are further records of somebody in it, if that is known.
    """

    rows: tuple[int, int]
    links: Links
    fields: Sequence[Field]
    method: str
    strata: Strata
    estimates: Sequence[AccuracyEstimate]
    resemblance: Sequence[Resemblance] = ()
    secret: bool = False
    readable: Sequence[tuple[float, float]] = ()
    subgroups: Mapping[str, Sequence[LevelQuality]] | None = None
    examples: tuple[Sequence[str], Explanation] | None = None
    duplicates: tuple[int, int] | None = None


def stages(linked: LinkageFacts) -> list[tuple[str, NDArray[np.bool_]]]:
    """How links were made, the surest first: in words, and which rows were linked so."""
    block, has = linked.links.block.astype(str), linked.links.right >= 0
    first = "linked within blocks" if linked.method == "rules" else "linked over the threshold"
    below = np.zeros(has.size, bool) if linked.links.below is None else linked.links.below
    early = has & ~np.isin(block, LATE)
    late = ((words, has & (block == name)) for name, words in LATE_STAGES.items())
    return [(first, early & ~below), ("linked below the threshold", early & below), *late]


def order_groups(linked: LinkageFacts) -> list[int]:
    """Groups by name, those that are no blocks at the end."""
    names, late = linked.strata.names, ("", OTHER, *LATE)
    return sorted(range(len(names)), key=lambda k: (late.index(names[k]) if names[k] in late else 0, names[k]))


def group_name(group: str) -> str:
    return group if group.strip() else "(blank)"


def has_scores(linked: LinkageFacts) -> bool:
    """Pairs that came without probabilities have a score that says nothing."""
    return not (linked.method == "pairs" and linked.links.candidates.left.size == 0)


def decimal(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def signed(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else "-"


def count_rows(rows: int) -> str:
    return f"{rows:,} row" + "s" * (rows != 1)


def percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
