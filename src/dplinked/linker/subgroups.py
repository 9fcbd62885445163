"""Quality by subgroup: how good links are among the people of each level of a variable. For the steward, not for publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dplinked.data.table import check_columns
from dplinked.errors import StudyError
from dplinked.linker.accuracies import LEAST_SHOWN
from dplinked.linker.audit import LEAST_CHECKED, count_answers, exact_interval
from dplinked.linker.quality import AccuracyEstimate, estimate_from_probabilities
from dplinked.linker.resemblance import is_number, number_values
from dplinked.linker.rules import encode_names
from dplinked.linker.strata import Strata

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MISSING = "(missing)"
_MOST_LEVELS = 50
_MOST_NUMBERS = 12  # numbers with more distinct values are divided into classes
_CLASSES = 4


@dataclass(frozen=True)
class Levels:
    """The levels of a variable: their names, that of each row as a position among them (n), and their numbers of rows."""

    names: tuple[str, ...]
    of_row: Integers
    rows: Integers


@dataclass(frozen=True, repr=False)
class LevelQuality:
    """How good the links of one level's rows are. FOR THE STEWARD: it is read from the files without noise.

    Attributes
    ----------
    level, rows
        The level, and its number of rows.
    estimated
        Its accuracy by one-to-one probabilities, and the ends of the interval; None if links came without probabilities.
    checked, audited
        How many of its links a person checked, and what accuracy that tells, with the ends of an exact 95 % interval; None if nothing was checked, or what was found is secret.
    """

    level: str
    rows: int
    estimated: tuple[float, float, float] | None
    checked: int = 0
    audited: tuple[float, float, float] | None = None

    @property
    def known(self) -> tuple[float, float, float] | None:
        """What is best known: the audit's answer if enough links were checked, else the estimate."""
        return self.audited if self.checked >= LEAST_SHOWN else self.estimated

    def __repr__(self) -> str:
        return "LevelQuality(for the steward)"


def read_levels(column: pa.ChunkedArray, name: str) -> Levels:
    """The levels of a column. Numbers and dates with many values are divided into classes of like size."""
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        raise StudyError(f"Column {name!r} holds no levels. Name a column of texts, numbers or dates.")
    texts = np.empty(len(column), dtype=object)
    if is_number(column.type) and len(column.unique()) > _MOST_NUMBERS:
        texts[:] = _class_names(column)
    else:
        texts[:] = [MISSING if cell is None else str(cell) for cell in column.to_pylist()]
    found, codes = encode_names(texts)
    if len(found) > _MOST_LEVELS:
        raise StudyError(
            f"Column {name!r} has too many levels to tell of each. Name one with at most {_MOST_LEVELS}, or of numbers."
        )
    order = sorted(range(len(found)), key=lambda k: (found[k] == MISSING, found[k]))
    of_row = np.argsort(order)[codes]
    return Levels(tuple(str(found[k]) for k in order), of_row, np.bincount(of_row, minlength=len(order)))


def _class_names(column: pa.ChunkedArray) -> list[str]:
    """The class of each number, named after its place and its ends."""
    import pyarrow as pa

    values, cells = number_values(column), column.to_pylist()
    known = np.flatnonzero(np.isfinite(values))
    cuts = np.unique(np.quantile(values[known], np.arange(1, _CLASSES) / _CLASSES)) if known.size else np.zeros(0)
    places = np.searchsorted(cuts, values, side="right")
    dated = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    names: dict[int, str] = {}
    for place in set(places[known].tolist()):
        inside = known[places[known] == place]
        ends = [inside[np.argmin(values[inside])], inside[np.argmax(values[inside])]]
        shown = [str(cells[k])[:10] if dated else f"{values[k]:g}" for k in ends]
        names[place] = f"{place + 1}: {shown[0]} to {shown[1]}"
    return [names[place] if np.isfinite(value) else MISSING for place, value in zip(places, values, strict=True)]


def level_rates(levels: Levels, size: int) -> Floats:
    """The chance of each row to be drawn if about `size` rows are, as many of each level as there are or an even part of them (n)."""
    share = size / len(levels.names)
    if share < LEAST_CHECKED:
        raise StudyError(
            f"An audit of {size} links is too small for {len(levels.names)} levels: ask for {LEAST_CHECKED} for each of them or more."
        )
    return np.minimum(1.0, share / np.maximum(levels.rows, 1))[levels.of_row]


def judge_levels(
    levels: Levels,
    own: Floats | None,
    tried: Sequence[Floats],
    audit: AccuracyEstimate | None,
    linkable: NDArray[np.bool_],
) -> list[LevelQuality]:
    """How good links are on each level.

    Parameters
    ----------
    own, tried
        One-to-one probabilities of the rows' links, as they are found and under other strengths of the evidence (n each); None if there are none.
    audit
        What a clerical audit found, if that may be shown.
    linkable
        Which rows could be drawn; the links of others are known to be wrong (n).
    """
    strata = Strata(levels.names, levels.of_row, levels.rows, True, np.zeros(len(levels.names), np.int64))
    found = [LevelQuality(name, int(rows), None) for name, rows in zip(levels.names, levels.rows.tolist(), strict=True)]
    if own is not None:
        told = estimate_from_probabilities(strata, own, tried)
        ends = zip(told.accuracy.tolist(), told.low.tolist(), told.high.tolist(), strict=True)
        found = [replace(one, estimated=known) for one, known in zip(found, ends, strict=True)]
    if audit is None or audit.rows is None or audit.answers is None:
        return found
    raw = np.bincount(levels.of_row[audit.rows], minlength=len(found))
    good, checked = count_answers(levels.of_row[audit.rows], len(found), audit.answers, audit.chance)
    low, high = exact_interval(good, checked)
    part = np.bincount(levels.of_row, linkable, minlength=len(found)) / np.maximum(levels.rows, 1)
    shares = np.column_stack([good / np.maximum(checked, 1e-12), low, high]) * part[:, None]
    return [
        replace(one, checked=int(raw[k]), audited=(float(shares[k, 0]), float(shares[k, 1]), float(shares[k, 2])))
        if raw[k]
        else one
        for k, one in enumerate(found)
    ]


def say_difference(levels: Sequence[LevelQuality], name: str) -> list[str]:
    """That links are clearly better on one level than on another, if they are."""
    told = [(one.level, one.known) for one in levels if one.known is not None]
    if len(told) < 2:
        return []
    best, worst = max(told, key=lambda one: one[1][1]), min(told, key=lambda one: one[1][2])
    if best[1][1] <= worst[1][2]:
        return []
    return [
        f"Links differ with {name}: {best[1][0]:.3f} of those of {best[0]} are right, and {worst[1][0]:.3f} of those of {worst[0]}. As a regressor it gets a slope that is corrected too much or too "
        "little. Link within its levels (block=…), or divide links into bands."
    ]


def levels_of(left: pa.Table, column: str) -> Levels:
    """The levels of a column of the left file."""
    if not isinstance(column, str):
        raise StudyError("by must be the name of a column of the left file, like by='sex'.")
    check_columns([column], left.column_names)
    return read_levels(left.column(column), column)
