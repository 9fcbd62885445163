"""Which columns of two files seem to hold the same, and what linking within blocks would compare. FOR THE STEWARD: it is read from the rows.

A suggestion is no decision: who links says which columns are compared, and what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dplinked.data.arrow import column_texts
from dplinked.errors import StudyError
from dplinked.linkage.compared import name_words
from dplinked.linker.fields import guess_kind
from dplinked.linker.link import both_block_keys

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 20_000  # by which contents are compared
_ALIKE = 0.5  # columns of other names seem to hold the same if so many of their values are in both
_UNLIKE = 0.02  # columns of one name that share fewer values than this are compared by nobody
_TELLING = 12  # with fewer different values, a column tells hardly anybody apart, and any two such columns look alike
_MOST_BLOCKS, _WHOLE = 50, 0.8  # blocks with an accuracy of their own, and the share of rows that must have a key
_RARE = 500  # a value that fewer than one row in 500 has may be a typing error


@dataclass(frozen=True)
class Counterpart:
    """A column of the left file, and the one of the right file that seems to hold the same.

    Attributes
    ----------
    left, right
        Their names.
    kind
        What kind of field they seem to be.
    why
        Why they are suggested.
    compare
        Whether comparing them seems to help: they share values, and tell people apart.
    """

    left: str
    right: str
    kind: str
    why: str
    compare: bool


@dataclass(frozen=True)
class Suggestions:
    """What two files suggest: counterparts of columns, columns that name a record, and a column to link within."""

    fields: tuple[Counterpart, ...]
    ids: tuple[str | None, str | None]
    block: str | None


class _Column:
    """The different values of a column, its capitals aside."""

    def __init__(self, name: str, texts: list[str | None]) -> None:
        self.name, self.words = name, name_words(name)
        cells = [text.strip().lower() for text in texts if text is not None and text.strip()]
        counts = Counter(cells)
        self.values, self.unique = set(counts), len(cells) == len(texts) == len(counts) > 1
        often = {value for value, count in counts.items() if count >= max(2, len(texts) / _RARE)}
        few = len(often) <= _MOST_BLOCKS and sum(counts[value] for value in often) >= _WHOLE * len(texts) > 0
        self.levels = (
            often if few else None
        )  # its few values, those that typing errors made aside; None if they are many

    def alike(self, other: _Column) -> float:
        """Share of the values of the column with fewer of them that are in the other one too."""
        fewer = min(len(self.values), len(other.values))
        return len(self.values & other.values) / fewer if fewer else 0.0


def suggest_fields(left: pa.Table, right: pa.Table) -> Suggestions:
    """Suggest what to compare, by names and by contents."""
    a, b = _columns(left), _columns(right)
    found = sorted(
        (
            (_same_name(one, other), one.alike(other), i, j)
            for i, one in enumerate(a)
            for j, other in enumerate(b)
            if _same_name(one, other) or (_telling(one, other) and one.alike(other) >= _ALIKE)
        ),
        key=lambda pair: (-pair[0], -pair[1], pair[2], pair[3]),
    )
    pairs: dict[int, tuple[int, bool, float]] = {}
    for same, alike, i, j in found:
        if i not in pairs and j not in {other for other, _, _ in pairs.values()}:
            pairs[i] = (j, same, alike)
    fields = tuple(_counterpart(a[i], b[j], same, alike) for i, (j, same, alike) in sorted(pairs.items()))
    return Suggestions(fields, (_id(a, b), _id(b, a)), _block([(a[i], b[j]) for i, (j, _, _) in pairs.items()]))


def _columns(table: pa.Table) -> list[_Column]:
    found = []
    for name in table.column_names:
        try:
            found.append(_Column(name, column_texts(table.slice(0, _ROWS), name, "").to_pylist()))
        except StudyError:  # its cells are no texts, such as lists
            continue
    return found


def _same_name(one: _Column, other: _Column) -> bool:
    return one.name.casefold() == other.name.casefold() or (bool(one.words) and one.words == other.words)


def _telling(one: _Column, other: _Column) -> bool:
    return all(len(column.values if column.levels is None else column.levels) >= _TELLING for column in (one, other))


def _counterpart(one: _Column, other: _Column, same: bool, alike: float) -> Counterpart:
    reasons = ["same name"] if same else []
    if alike >= _UNLIKE:
        reasons.append(f"{100 * alike:.0f} % of the values are in both")
    else:
        reasons.append("hardly any value is in both")
    return Counterpart(
        one.name,
        other.name,
        _kind(one.name, other.name),
        ", ".join(reasons),
        alike >= _UNLIKE and _telling(one, other),
    )


def _kind(left: str, right: str) -> str:
    """The kind that either name tells."""
    kind = guess_kind(left)
    return guess_kind(right) if kind == "text" else kind


def _id(own: Sequence[_Column], others: Sequence[_Column]) -> str | None:
    """The first column that is different in every row, one whose name says that it is an id before others."""
    unique = [column for column in own if column.unique]
    named = [column.name for column in unique if "id" in column.words]
    shared = {column.name for column in others}
    return next(iter([*named, *(column.name for column in unique if column.name not in shared)]), None)


def _block(pairs: Sequence[tuple[_Column, _Column]]) -> str | None:
    """The column of both files whose values divide them best: few different ones, the same in both, and hardly any missing."""
    fit = [
        (len(one.levels & other.levels), one.name)
        for one, other in pairs
        if one.name == other.name
        and one.levels
        and other.levels
        and 2 <= len(one.levels & other.levels) >= _WHOLE * max(len(one.levels), len(other.levels))
    ]
    return max(fit)[1] if fit else None


@dataclass(frozen=True)
class Blocks:
    """What linking within blocks would compare at first. FOR THE STEWARD, not for publication.

    Attributes
    ----------
    shared
        How many blocks have records in both files.
    pairs
        How many pairs of records are compared within them.
    largest
        How many pairs the largest block has.
    outside
        How many records of the left and of the right file are in no shared block. They are compared across blocks.
    """

    shared: int
    pairs: int
    largest: int
    outside: tuple[int, int]


def preview_blocks(left: pa.Table, right: pa.Table, names: Sequence[str]) -> Blocks:
    """Count what blocks would compare, refusing what is no block."""
    keys = both_block_keys(left, right, names)
    counts = [Counter(key for key in side.tolist() if key is not None) for side in keys]
    shared = counts[0].keys() & counts[1].keys()
    pairs = [counts[0][key] * counts[1][key] for key in shared]
    outside = tuple(side.size - sum(count[key] for key in shared) for side, count in zip(keys, counts, strict=True))
    return Blocks(len(shared), sum(pairs), max(pairs, default=0), (outside[0], outside[1]))
