"""Do wrong links resemble the rows they fall on? What the linker's own candidates tell. For the steward, not for publication.

The correction takes a wrong link to be equally likely to bring the response of any other row of its group. Two things break that: wrong partners
that are like the row itself (relatives, neighbours, the same day), and an accuracy that differs with a regressor within a group. Both show in the left file
alone: a wrong link brings the response of a left row whose record competed for the same partner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.assignment import holders
from dplinked.linker.rules import Links, encode_names

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LEAST_PROBABILITY = 1e-5  # pairs that are less likely cannot be told from any others
_DRAWS = 40
_CLEAR = 3.5  # standard errors
_LEAST_MEASURE = 0.05
_LEAST_CHANGE = 0.02
_LEAST_ROWS = 20  # of a level that is compared with the others
MOST_LEVELS = 50
_MOST_COMPARED = 20  # columns that the report compares between rows and their wrong partners

RESEMBLES = (
    "Wrong links bring responses of rows like their own, so the correction overstates slopes. Read the release's bracket, link within narrower groups, or "
    "compare a field that tells such people apart."
)
DEPENDS = (
    "Links of some of these rows are worse than others'. Read the release's bracket, or make groups of like links (linked.banded) if wrong links then stay "
    "within groups."
)


@dataclass(frozen=True)
class Resemblance:
    """How far wrong links are from falling on any row of their group alike, as to one column of the left file.

    Attributes
    ----------
    column
        Its name.
    measure, error
        How alike plausible wrong partners are: 0 if they are like random rows of their group, 1 if they have the row's own value; and its standard error.
        Numbers are compared by their ranks, texts by whether they are the same. NaN if no records compete.
    change, change_error
        How much the one-to-one probability of links differs within groups: upper half less lower half of a number, or the level that stands out less the others;
        and its standard error.
    within
        Share of plausible wrong partners that are in the row's own group, as the correction takes all of them to be. NaN if no records compete.
    """

    column: str
    measure: float
    error: float
    change: float
    change_error: float
    within: float

    @property
    def resembles(self) -> bool:
        """Whether wrong partners are clearly like their rows."""
        return self.measure > max(_LEAST_MEASURE, _CLEAR * self.error)

    @property
    def depends(self) -> bool:
        """Whether the accuracy clearly differs with the column."""
        return abs(self.change) > max(_LEAST_CHANGE, _CLEAR * self.change_error)

    @property
    def flagged(self) -> bool:
        """Whether links are clearly not exchangeable as to this column."""
        return self.resembles or self.depends

    @property
    def advice(self) -> str:
        """What to do; empty if nothing stands out."""
        return " ".join([RESEMBLES] * self.resembles + [DEPENDS] * self.depends)


def comparable_columns(table: pa.Table, used: set[str | None]) -> list[str]:
    """The columns that the report compares between rows and their wrong partners: the first ones that can be and are not `used` for linking."""
    named = [name for name in table.column_names if name not in used]
    return [name for name in named if is_comparable(table.column(name))][:_MOST_COMPARED]


def measure_resemblance(
    column: pa.ChunkedArray, name: str, links: Links, groups: Integers, pair_probability: Floats, own: Floats
) -> Resemblance:
    """Compare each row with its plausible wrong partners, in one column of the left file.

    Parameters
    ----------
    groups
        The group of each row, within which wrong links are taken to be exchangeable (n).
    pair_probability, own
        One-to-one probabilities of the candidate pairs, and of each row's link (n).

    Notes
    -----
    Row i carries the response of record ``links.right[i]``, which belongs to row j with probability ``p_j``. The measure is one less the mean distance over these pairs,
    weighed by ``p_j``, over the mean distance that other rows of i's group have from row i, among which the correction takes j to be. Its error is the spread of the same measure with every
    value drawn at random from its row's group.
    """
    values, is_number = _read_values(column)
    rows = _Rows(values, groups, is_number)
    row, partner, weight = _plausible_partners(links, pair_probability, ~np.isnan(values))
    measure, error = _alike(rows, row, partner, weight)
    within = float(weight @ (groups[row] == groups[partner]) / weight.sum()) if row.size else math.nan
    linked = ~np.isnan(values) & (links.right >= 0)
    change, change_error = _split(values[linked], groups[linked], own[linked], is_number)
    return Resemblance(name, measure, error, change, change_error, within)


def is_comparable(column: pa.ChunkedArray) -> bool:
    """Whether a column holds numbers, dates, or few levels."""
    import pyarrow as pa

    return is_number(column.type) or (
        not pa.types.is_nested(column.type) and 1 < len(column.unique()) <= MOST_LEVELS < len(column)
    )


def is_number(kind: pa.DataType) -> bool:
    """Whether a column's type is one of numbers or dates."""
    import pyarrow as pa

    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp
    return any(test(kind) for test in tests)


def number_values(column: pa.ChunkedArray) -> Floats:
    """Numbers, or dates in milliseconds, as floats; NaN for missing cells."""
    import pyarrow as pa

    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _read_values(column: pa.ChunkedArray) -> tuple[Floats, bool]:
    """Ranks of numbers and dates within (0, 1), or codes of other values; NaN for missing cells. And whether they are ranks."""
    from scipy.stats import rankdata

    if not is_number(column.type):
        names, codes = encode_names(np.array([*column.to_pylist(), None], dtype=object)[:-1])
        return np.array([np.nan if name is None else k for k, name in enumerate(names)])[codes], False
    values = number_values(column)
    ranks, known = np.full(values.size, np.nan), np.isfinite(values)
    ranks[known] = (rankdata(values[known]) - 0.5) / max(int(known.sum()), 1)
    return ranks, True


def _plausible_partners(
    links: Links, probability: Floats, known: NDArray[np.bool_]
) -> tuple[Integers, Integers, Floats]:
    """Rows, the rows whose responses a wrong link may have brought them, and how probably; as far as both values are known."""
    row, owner = holders(links.right, links.candidates), links.candidates.left
    kept = (row >= 0) & (row != owner) & (probability > _LEAST_PROBABILITY) & known[row] & known[owner]
    return row[kept], owner[kept], probability[kept]


class _Rows:
    """The values of rows in their groups: how far two of them are apart, how far random ones would be, and random ones themselves."""

    def __init__(self, values: Floats, groups: Integers, is_number: bool) -> None:
        self.values, self.groups, self.is_number = values, groups, is_number
        members = np.argsort(groups, kind="stable")
        self.members = members[~np.isnan(values[members])]
        group, value = groups[self.members], values[self.members]
        self.sizes = np.bincount(group, minlength=int(groups.max(initial=0)) + 1)
        self.starts = np.cumsum(self.sizes) - self.sizes
        if is_number:
            self.sums, self.squares = (np.bincount(group, part, self.sizes.size) for part in (value, value**2))
        else:
            self.levels = value.max(initial=0.0) + 1.0
            self.cells, self.counts = np.unique(group * self.levels + value, return_counts=True)

    def apart(self, a: Integers, b: Integers) -> Floats:
        """Distance between rows a and b."""
        x, y = self.values[a], self.values[b]
        return (x - y) ** 2 if self.is_number else (x != y).astype(np.float64)

    def expected(self, a: Integers) -> Floats:
        """Mean distance between rows a and any other row of their groups."""
        x, group = self.values[a], self.groups[a]
        size = self.sizes[group]
        if self.is_number:
            total = size * x**2 - 2.0 * x * self.sums[group] + self.squares[group]
        else:
            key = group * self.levels + x
            place = np.minimum(np.searchsorted(self.cells, key), self.cells.size - 1)
            total = (size - np.where(self.cells[place] == key, self.counts[place], 0)).astype(np.float64)
        return np.asarray(total / np.maximum(size - 1, 1), np.float64)

    def draw(self, rows: Integers, rng: np.random.Generator) -> Integers:
        """For each row, one of its group at random."""
        group = self.groups[rows]
        place = self.starts[group] + (rng.random(rows.size) * self.sizes[group]).astype(np.int64)
        return np.asarray(self.members[place], np.int64)


def _alike(rows: _Rows, row: Integers, partner: Integers, weight: Floats) -> tuple[float, float]:
    """The measure and its standard error."""
    if row.size == 0:
        return math.nan, math.nan

    def measure(a: Integers, b: Integers) -> float:
        expected = float(weight @ rows.expected(a))
        return 1.0 - float(weight @ rows.apart(a, b)) / expected if expected > 0.0 else 0.0

    rng, places, involved = np.random.default_rng(0), np.arange(rows.groups.size), np.union1d(row, partner)
    found, by_chance = measure(row, partner), []
    for _ in range(_DRAWS):
        places[involved] = rows.draw(involved, rng)
        by_chance.append(measure(places[row], places[partner]))
    return min(1.0, max(0.0, found)), float(np.std(by_chance))


def _split(values: Floats, groups: Integers, own: Floats, is_number: bool) -> tuple[float, float]:
    """How much links' probabilities differ within groups between the halves of a number, or between a level and the others; and the standard error."""
    if values.size < 2 * _LEAST_ROWS:
        return 0.0, np.nan
    centred = own - _group_means(own, groups)
    if is_number:
        order = np.lexsort((values, groups))
        rank, starts = np.empty(values.size), np.flatnonzero(np.diff(groups[order], prepend=-1))
        sizes = np.diff(np.append(starts, values.size))
        rank[order] = (np.arange(values.size) - np.repeat(starts, sizes) + 0.5) / np.repeat(sizes, sizes)
        return _difference(centred, rank > 0.5)
    levels = [
        level for level, count in zip(*np.unique(values, return_counts=True), strict=True) if count >= _LEAST_ROWS
    ]
    found = [_difference(centred, values == level) for level in levels]
    return max(found, key=lambda one: abs(one[0]) / one[1] if one[1] > 0.0 else 0.0, default=(0.0, np.nan))


def _group_means(values: Floats, groups: Integers) -> Floats:
    counts = np.maximum(np.bincount(groups), 1)
    return np.asarray((np.bincount(groups, values) / counts)[groups], np.float64)


def _difference(values: Floats, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean of the chosen values less that of the others, and its standard error."""
    if chosen.all() or not chosen.any():
        return 0.0, np.nan
    parts = values[chosen], values[~chosen]
    error = np.sqrt(sum(part.var() / part.size for part in parts))
    return float(parts[0].mean() - parts[1].mean()), float(error)
