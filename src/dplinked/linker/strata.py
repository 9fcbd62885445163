"""Groups of links that share an accuracy: blocks, bands of probabilities, and what was linked later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_number, shown
from dplinked.linker.rules import LATE, encode_names

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_STRATA = 50  # if there are more blocks than this, they share one accuracy
_LEAST_BANDED = 50  # rows of a band; wrong links of fewer would hardly fall within it
REGULAR = "(linked)"  # the stratum of all blocks together, if there are many


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


def make_strata(blocks: NDArray[np.object_], bands: Integers | None = None) -> Strata:
    """Make the strata from the block of each row, and from its band of probabilities if blocks are divided into such."""
    found, codes = encode_names(blocks)
    shown = [str(name) for name in found]
    per_block = len(shown) <= MOST_STRATA
    if not per_block:
        shown = [name if name in LATE else REGULAR for name in shown]
    names = sorted(set(shown))
    codes = np.array([names.index(name) for name in shown], dtype=np.int64)[codes]
    kinds = np.zeros(len(names), dtype=np.int64)
    if bands is not None:
        kinds[codes] = bands
    kinds[np.isin(names, LATE)] = -1
    return Strata(tuple(names), codes, np.bincount(codes, minlength=len(names)), per_block, kinds)


def within_reach(accuracy: Floats, strata: Strata) -> Floats:
    """Clip accuracies to what an exchangeable model can have: at least 1/m, the accuracy of random links, and at most 1."""
    return np.clip(accuracy, 1.0 / np.maximum(strata.rows, 1), 1.0)


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


def check_bands(bands: Any) -> None:
    """Refuse what is neither a number of bands nor a list of cut points."""
    if isinstance(bands, int) and not isinstance(bands, bool):
        fine = 2 <= bands <= MOST_STRATA
    else:
        edges = [0.0, *map(plain_number, bands), 1.0] if isinstance(bands, (list, tuple)) and bands else []
        fine = bool(edges) and all(low < high for low, high in pairwise(edges))
    if not fine:
        raise StudyError(
            f"bands must be a number of bands from 2 to {MOST_STRATA}, or a list of cut points between 0 and 1 in ascending order, not {shown(bands)}."
        )
