"""Encode a column's keys: find its distinct keys and give each row the integer code of its key. The column is read in parts.

If the keys are integers that lie close together, their distance from the smallest one is the code. All other keys are encoded by Arrow, part
by part, and the parts' dictionaries are merged into one. For each part a map from its own codes to the common codes is kept, so that keys
need not be compared again when the column is read a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text, level_numbers, number
from dplinked.errors import ReleaseError, raise_alone

if TYPE_CHECKING:
    import pyarrow as pa

Codes = NDArray[np.int32]
Counts = NDArray[np.int64]

UNREADABLE = "A column could not be read. The steward's 'check' shows the details."
CHANGED = "The data changed while it was read."
_MOST_KEYS = 2**31 - 1
_ALWAYS_DENSE = 1 << 24  # for a range of so many integers, one counter for each is always cheap enough


def guarded(read: Callable[[], Any]) -> Any:
    """Run a reading step, and replace Arrow's own errors, since they quote cells."""
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise_alone(ReleaseError(UNREADABLE))


def encode_part(values: Any) -> tuple[Codes, pa.Array]:
    """Encode the keys of one part: each row's code, and the distinct keys as Arrow texts. Cells without a key have the key null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, np.ndarray):  # cells of any type
        return _encode(cell_texts(values))

    def encode() -> tuple[Codes, pa.Array]:
        plain = values if pa.types.is_string(values.type) else widened(values)
        encoded = pc.dictionary_encode(plain, null_encoding="encode")
        texts, different = distinct_texts(encoded.dictionary)
        codes: Codes = encoded.indices.to_numpy(zero_copy_only=False)
        if different:
            return codes, texts
        merged, texts = _encode(texts)
        return merged[codes], texts

    return guarded(encode)  # type: ignore[no-any-return]


def widened(values: pa.Array) -> pa.Array:
    """Texts and bytes in the Arrow types that can hold more than 2 GiB; other values unchanged.

    Dictionaries and views are turned into plain values, which is what Arrow can concatenate.
    """
    import pyarrow as pa

    kind = values.type
    if pa.types.is_dictionary(kind):
        return widened(values.dictionary).take(values.indices)
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.large_string(), safe=False)  # not checked: it may be broken UTF-8
    return values.cast(pa.large_binary()) if pa.types.is_binary(kind) or pa.types.is_binary_view(kind) else values


def _encode(texts: pa.Array) -> tuple[Codes, pa.Array]:
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(texts, null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary


def distinct_texts(distinct: pa.Array) -> tuple[pa.Array, bool]:
    """Texts of distinct Arrow values, and whether these texts are known to differ (those of -0.0 and 0.0 are the same)."""
    import pyarrow as pa

    kind = distinct.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return distinct.cast(pa.large_string()), True
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            return distinct.cast(pa.large_binary()).cast(pa.large_string()), True  # the casts check that they are UTF-8
        except pa.ArrowException:
            pass
    return _texts(map(_scalar_text, distinct)), False


def cell_texts(cells: Iterable[Any]) -> pa.Array:
    """The keys of cells of any type as Arrow texts, each cell read on its own."""
    return _texts(map(key_text, cells))


def _texts(texts: Iterable[str | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array(_encodable(texts), pa.large_string())


def _scalar_text(scalar: Any) -> str | None:
    """Text of one Arrow value; None if Python cannot hold it (a date outside its calendar, broken UTF-8)."""
    try:
        return key_text(scalar.as_py())
    except Exception:  # whatever a cell may hold, it must not stop a release
        return None


def _encodable(texts: Iterable[str | None]) -> list[str | None]:
    """Replace texts with half of a surrogate pair by None, as they cannot be encoded as UTF-8."""
    listed = list(texts)
    try:
        "".join(text for text in listed if text is not None).encode()
    except UnicodeEncodeError:
        listed = [None if text is None or _broken(text) else text for text in listed]
    return listed


def _broken(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def place_texts(texts: pa.Array, known: Iterable[str]) -> Codes:
    """Position of each text among the known ones, -1 for null and for unknown texts."""
    import pyarrow.compute as pc

    found = pc.index_in(texts, value_set=_texts(known), skip_nulls=True)
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int32)


def place_levels(texts: pa.Array, levels: Sequence[str]) -> Codes:
    """Position of each text among the levels, by its text or by the number that it is; -1 for null and for unknown texts."""
    places, numbers = place_texts(texts, levels).copy(), level_numbers(levels)
    unknown = np.flatnonzero(places < 0) if any(map(math.isfinite, numbers)) else np.zeros(0, np.int64)
    by_number = {value: place for place, value in enumerate(numbers) if math.isfinite(value)}
    for k in unknown.tolist():
        places[k] = by_number.get(number(texts[k].as_py()), -1)
    return places


class Dictionary:
    """Merges the distinct texts of all parts into one dictionary.

    Parts wait until they hold about as many texts as the dictionary, so that the total cost of hashing stays linear.
    """

    def __init__(self) -> None:
        self._known: pa.Array | None = None
        self._waiting: list[pa.Array] = []
        self._maps: list[Codes] = []

    def add(self, distinct: pa.Array) -> None:
        """Add the distinct texts of a part."""
        self._waiting.append(distinct)
        if sum(map(len, self._waiting)) > (1 << 20) + (0 if self._known is None else len(self._known)):
            self._unify()

    def _unify(self) -> None:
        """Merge the parts that wait."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first = [] if self._known is None else [self._known]  # first, so that known texts keep their codes
        if arrays := [*first, *self._waiting]:
            encoded = pc.dictionary_encode(pa.concat_arrays(arrays), null_encoding="encode")
            ends = np.cumsum([len(array) for array in arrays])[:-1]
            self._maps += np.split(encoded.indices.to_numpy(zero_copy_only=False), ends)[len(first) :]
            self._known, self._waiting = encoded.dictionary, []

    def finish(self) -> tuple[list[Codes], pa.Array]:
        """Return each part's map from its own codes to the common codes, and the distinct texts in the order of the common codes."""
        if self._waiting or self._known is None:
            self._unify()
        known = _texts([]) if self._known is None else self._known
        if len(known) > _MOST_KEYS:
            raise_alone(ReleaseError(UNREADABLE))
        return self._maps, known


@dataclass(frozen=True, repr=False)
class Keys:
    """The distinct keys of a column, and how the rows of each piece get their codes. A piece is named by (part, number within the part).

    Attributes
    ----------
    counts
        Number of rows of each distinct key, in the order of the common codes.
    texts
        The distinct keys as Arrow texts. None if the keys are integers that serve as codes: then code k is the integer ``low + k``.
    low
        The smallest integer key.
    maps
        For each piece, the common code of each of the piece's own codes.
    lengths
        Number of rows of each piece, to notice if the column is cut differently when it is read again.
    numbered
        Pieces with integer keys, whose own codes are distances from `low`. The other pieces have Arrow's codes.
    kept
        The codes of each piece's rows, if they were kept. Then the column need not be read again.
    places
        The number that is used instead of each common code (a block number). None if the common codes are used.
    """

    counts: Counts
    texts: pa.Array | None = None
    low: int = 0
    maps: Mapping[tuple[int, int], Codes] = field(default_factory=dict)
    lengths: Mapping[tuple[int, int], int] = field(default_factory=dict)
    numbered: frozenset[tuple[int, int]] = frozenset()
    kept: Mapping[tuple[int, int], Codes] | None = None
    places: Codes | None = None

    def distinct(self) -> pa.Array:
        """The distinct keys that occur, as Arrow texts."""
        return number_texts(np.flatnonzero(self.counts) + self.low) if self.texts is None else self.texts

    def codes(self, piece: tuple[int, int], values: Callable[[], Any]) -> Codes:
        """Codes of the rows of one piece. Its cells are read, by calling `values`, only if they are needed."""
        if self.kept is not None:
            codes = self.kept[piece]
        elif self.texts is None:
            codes = dense_codes(values(), self.low)
        else:
            cells = values()
            codes = dense_codes(cells, self.low) if piece in self.numbered else encode_part(cells)[0]
            if codes.size != self.lengths[piece]:  # the column is cut differently than when it was counted
                raise ReleaseError(UNREADABLE)
            codes = self.maps[piece][codes]
        return codes if self.places is None else self.places[codes]


def number_texts(numbers: NDArray[np.int64]) -> pa.Array:
    """Integers as Arrow texts."""
    import pyarrow as pa

    return pa.array(numbers).cast(pa.large_string())


def dense_codes(values: pa.Array, low: int) -> Codes:
    """Distances of integers from the smallest one, `low`."""
    keys = values.to_numpy(zero_copy_only=False)
    codes = np.empty(keys.size, dtype=np.int32)
    np.subtract(keys, keys.dtype.type(low), out=codes, dtype=np.int64, casting="unsafe")
    return codes


def dense_range(values: Any) -> tuple[int, int] | None:
    """Smallest and largest key of a part with integer keys; None if the keys are not integers, or some cell is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, np.ndarray) or not pa.types.is_integer(values.type) or values.null_count or not len(values):
        return None
    found = pc.min_max(values)
    return int(found["min"].as_py()), int(found["max"].as_py())


def is_dense(low: int, high: int, count: int) -> bool:
    """Whether integers between `low` and `high` lie close enough together, for `count` rows, to serve as codes."""
    size = high - low + 1
    return high < 2**63 and size <= min(4 * count + 1024, _MOST_KEYS) and size <= max(_ALWAYS_DENSE, count // 2)


def block_places(keys: Keys, accuracy: Mapping[str, float] | None) -> tuple[Codes | None, list[str | None] | None]:
    """Block number of each distinct key (None if the codes are block numbers already), and the names of the blocks.

    Blocks have names only with an accuracy table. Keys that are not in the table then form one last block, named None. Without
    a table every key is a block of its own, and null keys form the last one. Integers that do not occur get no
    block, so there are never more blocks than rows, however far apart the keys lie.
    """
    import pyarrow.compute as pc

    if accuracy is None:
        if keys.texts is None:
            return None if keys.counts.all() else np.cumsum(keys.counts > 0, dtype=np.int32) - 1, None
        if not keys.texts.null_count:
            return None, None
        missing = pc.is_null(keys.texts).to_numpy(zero_copy_only=False)
        places = np.cumsum(~missing, dtype=np.int32) - 1
        places[missing] = len(keys.texts) - 1
        return places.astype(np.int32), None
    names = list(accuracy)
    found = np.full(keys.counts.size, -1, dtype=np.int32)
    where = slice(None) if keys.texts is not None else np.flatnonzero(keys.counts)
    found[where] = place_texts(keys.distinct(), names)
    unknown = (found < 0) & (keys.counts > 0)
    present = np.unique(found[found >= 0])
    number = np.full(len(names) + 1, len(present), dtype=np.int32)
    number[present] = np.arange(present.size)
    listed: list[str | None] = [names[k] for k in present]
    return number[found], [*listed, None] if unknown.any() else listed
