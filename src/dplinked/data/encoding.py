"""Keys to codes: the distinct keys of a column that comes in parts, and the code of each row's key.

Whole numbers that lie close together are their own codes. Everything else is encoded part by part by Arrow, and the parts' dictionaries
are made one; what is kept is each part's way from its own codes to the common ones, so that a second reading need not compare keys again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text
from dplinked.errors import ReleaseError, raise_alone

Codes = NDArray[np.int32]
Counts = NDArray[np.int64]

UNREADABLE = "A column could not be read. The steward's 'check' shows the details."
CHANGED = "The data changed while it was read."
_MOST_KEYS = 2**31 - 1
_ALWAYS_DENSE = 1 << 24  # a range of whole numbers for which one counter each is cheap


def guarded(read: Callable[[], Any]) -> Any:
    """Arrow's own errors quote cells: replace them."""
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise_alone(ReleaseError(UNREADABLE))


def encode_part(values: Any) -> tuple[Codes, Any]:
    """Codes of one part's keys, and its distinct keys as Arrow texts, null among them where a cell is no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, np.ndarray):  # cells of any type
        return _encode(cell_texts(values))

    def encode() -> tuple[Codes, Any]:
        plain = values if pa.types.is_string(values.type) else widened(values)
        encoded = pc.dictionary_encode(plain, null_encoding="encode")
        texts, different = distinct_texts(encoded.dictionary)
        codes: Codes = encoded.indices.to_numpy(zero_copy_only=False)
        if different:
            return codes, texts
        merged, texts = _encode(texts)
        return merged[codes], texts

    return guarded(encode)  # type: ignore[no-any-return]


def widened(values: Any) -> Any:
    """Texts and bytes as Arrow holds more than 2 GiB of them, and so those of dictionaries and views; anything else as it is."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_dictionary(kind):
        return widened(values.dictionary).take(values.indices)
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.large_string(), safe=False)  # not UTF-8, perhaps
    return values.cast(pa.large_binary()) if pa.types.is_binary(kind) or pa.types.is_binary_view(kind) else values


def _encode(texts: Any) -> tuple[Codes, Any]:
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(texts, null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary


def distinct_texts(distinct: Any) -> tuple[Any, bool]:
    """Texts of distinct Arrow values, and whether they differ for sure (-0.0 and 0.0 do not)."""
    import pyarrow as pa

    kind = distinct.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return distinct.cast(pa.large_string()), True
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            return distinct.cast(pa.large_binary()).cast(pa.large_string()), True  # checks that they are UTF-8
        except pa.ArrowException:
            pass
    return _texts(map(_scalar_text, distinct)), False


def cell_texts(cells: Iterable[Any]) -> Any:
    """Arrow texts of cells of any type, one by one."""
    return _texts(map(key_text, cells))


def _texts(texts: Iterable[str | None]) -> Any:
    import pyarrow as pa

    return pa.array(_encodable(texts), pa.large_string())


def _scalar_text(scalar: Any) -> str | None:
    """Text of one Arrow value; None where Python cannot hold it (a date beyond its calendar, broken UTF-8)."""
    try:
        return key_text(scalar.as_py())
    except Exception:  # whatever a cell may hold, it must not stop a release
        return None


def _encodable(texts: Iterable[str | None]) -> list[str | None]:
    """Half of a surrogate pair is no text."""
    listed = list(texts)
    try:
        "".join(text for text in listed if text is not None).encode()
    except UnicodeEncodeError:
        listed = [None if text is None or _broken(text) else text for text in listed]
    return listed


def _broken(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def place_texts(texts: Any, known: Iterable[str]) -> Codes:
    """Place of each text among the known ones, -1 for null and unknown ones."""
    import pyarrow.compute as pc

    found = pc.index_in(texts, value_set=_texts(known), skip_nulls=True)
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int32)


class Dictionary:
    """Distinct texts of all parts. Parts are added in batches as large as what is known, so that hashing stays linear."""

    def __init__(self) -> None:
        self._known: Any = None
        self._waiting: list[Any] = []
        self._maps: list[Codes] = []

    def add(self, distinct: Any) -> None:
        """Take in a part's distinct texts."""
        self._waiting.append(distinct)
        if sum(map(len, self._waiting)) > (1 << 20) + (0 if self._known is None else len(self._known)):
            self._unify()

    def _unify(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        first = [] if self._known is None else [self._known]  # comes first, so that known texts keep their codes
        if arrays := [*first, *self._waiting]:
            encoded = pc.dictionary_encode(pa.concat_arrays(arrays), null_encoding="encode")
            ends = np.cumsum([len(array) for array in arrays])[:-1]
            self._maps += np.split(encoded.indices.to_numpy(zero_copy_only=False), ends)[len(first) :]
            self._known, self._waiting = encoded.dictionary, []

    def finish(self) -> tuple[list[Codes], Any]:
        """Each part's way from its own codes to the common ones, and the distinct texts in the order of these."""
        if self._waiting or self._known is None:
            self._unify()
        known = _texts([]) if self._known is None else self._known
        if len(known) > _MOST_KEYS:
            raise_alone(ReleaseError(UNREADABLE))
        return self._maps, known


@dataclass(frozen=True, repr=False)
class Keys:
    """A column's keys: rows per distinct key, its texts (None: the whole numbers from `low` on), and how parts are coded.

    ``maps`` leads from a piece's own codes to the common ones; those of ``numbered`` pieces are distances from `low`. ``places`` maps common codes to the numbers in use (blocks); None leaves them as they are.
    """

    counts: Counts
    texts: Any = None
    low: int = 0
    maps: Mapping[tuple[int, int], Codes] = field(default_factory=dict)
    lengths: Mapping[tuple[int, int], int] = field(default_factory=dict)
    numbered: frozenset[tuple[int, int]] = frozenset()
    kept: Mapping[tuple[int, int], Codes] | None = None
    places: Codes | None = None

    def distinct(self) -> Any:
        """Distinct keys as Arrow texts; with whole numbers those that occur."""
        return number_texts(np.flatnonzero(self.counts) + self.low) if self.texts is None else self.texts

    def codes(self, piece: tuple[int, int], values: Callable[[], Any]) -> Codes:
        """Codes of one piece of a part, whose cells `values` reads if they are needed."""
        if self.kept is not None:
            codes = self.kept[piece]
        elif self.texts is None:
            codes = dense_codes(values(), self.low)
        else:
            cells = values()
            codes = dense_codes(cells, self.low) if piece in self.numbered else encode_part(cells)[0]
            if codes.size != self.lengths[piece]:  # cut in another way than when they were counted
                raise ReleaseError(UNREADABLE)
            codes = self.maps[piece][codes]
        return codes if self.places is None else self.places[codes]


def number_texts(numbers: NDArray[np.int64]) -> Any:
    """Whole numbers as Arrow texts."""
    import pyarrow as pa

    return pa.array(numbers).cast(pa.large_string())


def dense_codes(values: Any, low: int) -> Codes:
    """Distance of whole numbers from the smallest."""
    keys = values.to_numpy(zero_copy_only=False)
    codes = np.empty(keys.size, dtype=np.int32)
    np.subtract(keys, keys.dtype.type(low), out=codes, dtype=np.int64, casting="unsafe")
    return codes


def dense_range(values: Any) -> tuple[int, int] | None:
    """Smallest and largest of a part's whole numbers; None where a cell is null or they are no whole numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, np.ndarray) or not pa.types.is_integer(values.type) or values.null_count or not len(values):
        return None
    found = pc.min_max(values)
    return int(found["min"].as_py()), int(found["max"].as_py())


def is_dense(low: int, high: int, count: int) -> bool:
    """Whether whole numbers lie close enough together to be their own codes."""
    size = high - low + 1
    return high < 2**63 and size <= min(4 * count + 1024, _MOST_KEYS) and size <= max(_ALWAYS_DENSE, count // 2)


def block_places(keys: Keys, accuracy: Mapping[str, float] | None) -> tuple[Codes | None, list[str | None] | None]:
    """Block number of each distinct key, and with an accuracy table the blocks' names; the last block may be the other one, None.

    Without a table every key but null is a block of its own. Returns no numbers where codes are block numbers already. Whole numbers
    that do not occur get none: there are never more blocks than rows, however far apart keys lie.
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
