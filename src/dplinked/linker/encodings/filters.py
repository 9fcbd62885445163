"""Keyed Bloom filters of records, hardened against those who count bits."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.encodings.schema import BlockPart, EncodedField, Schema
from dplinked.linker.encodings.tokens import take_part, tokens

Bits = NDArray[np.uint8]
Integers = NDArray[np.int64]

_AT_ONCE = 2_048  # records whose filters are made together
_MOST_HASHES = 32  # bits that a token can set under a salt
_GROUPS = 256  # of records, by their salt
KEY_BYTES = 8  # of a block key


@dataclass(frozen=True)
class Texts:
    """A column as its distinct values, and which of them each record has; -1 where it is missing."""

    values: list[str]
    codes: Integers

    @classmethod
    def of(cls, column: Any) -> Texts:
        """Read a column of Arrow texts. Empty ones are missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column.cast(pa.string()))
        coded = found.combine_chunks().dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return cls(coded.dictionary.to_pylist(), codes.astype(np.int64))

    def part(self, part: BlockPart) -> Texts:
        """The same part of every value."""
        codes: dict[str | None, int] = {}
        taken = [take_part(part, value) for value in self.values]
        new = np.array([-1 if one is None else codes.setdefault(one, len(codes)) for one in taken] + [-1], np.int64)
        return Texts(list(map(str, codes)), new[self.codes])

    def take(self, order: Integers) -> Texts:
        """The same records in another order."""
        return Texts(self.values, self.codes[order])


def derive(key: bytes, *purpose: str) -> bytes:
    """A key for one purpose, from which no other follows."""
    return hashlib.blake2b(
        "\x1f".join(purpose).encode("utf-8"), key=key, digest_size=32, person=b"dplinked-encode"
    ).digest()


def make_filters(schema: Schema, columns: dict[str, Texts], key: bytes) -> Bits:
    """The filters of all records, packed into bytes (n, length / 8)."""
    count = next(iter(columns.values())).codes.size
    width = schema.bits * (2 if schema.fold else 1)
    total = sum(field.weight for field in schema.fields)
    insertions = -np.log1p(-schema.fill) * width  # how many hashes set that share of the bits
    groups = {salt: _groups(columns[salt.column].part(salt), derive(key, "salt", str(salt))) for salt in schema.salts}
    fields = []
    for field in schema.fields:
        hashes = [
            _Hashes(derive(key, *_purpose(field), str(salt)), width, insertions * field.weight / total / len(salts))
            for salts in [schema.salts_of(field)]
            for salt in salts
        ]
        fields.append((_Tokens(field, columns[field.name]), hashes, schema.salts_of(field)))
    order = _permutation(derive(key, "balance"), schema.length) if schema.balance else None
    filters = np.empty((count, schema.length // 8), dtype=np.uint8)
    for start in range(0, count, _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, count))
        bits = np.zeros((width, rows.stop - rows.start), dtype=bool)
        for texts, hashes, salts in fields:
            record, token, lengths = texts.of(rows)
            for one, salt in zip(hashes, salts, strict=True):
                one.set(bits, record, token, lengths, None if salt is None else groups[salt][rows], texts.names)
        filters[rows] = _upright(_harden(schema, np.packbits(bits, axis=1), order), bits.shape[1])
    return filters


def _purpose(field: EncodedField) -> tuple[str, str]:
    """What the key of a field's hashes is for. Given names and surnames that changed places still agree."""
    return "field", "names" if field.kind == "name" else f"column {field.name}"


def _groups(salts: Texts, key: bytes) -> Integers:
    """The group of each record, by its salt; -1 where that is missing."""
    marks = [hashlib.blake2b(text.encode("utf-8"), key=key, digest_size=1).digest()[0] for text in salts.values]
    return np.array([*marks, -1], np.int64)[salts.codes]


class _Tokens:
    """The tokens of a field's values; values that occur often are read once."""

    def __init__(self, field: EncodedField, texts: Texts) -> None:
        known: dict[str, int] = {}
        found = [[known.setdefault(token, len(known)) for token in tokens(field, text)] for text in texts.values]
        self.codes, self.names = texts.codes, list(known)
        self.lengths = np.array([*map(len, found), 0], np.int64)  # the last one is that of a missing value
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.tokens = np.fromiter((token for some in found for token in some), np.int64, int(self.lengths.sum()))

    def of(self, rows: slice) -> tuple[Integers, Integers, Integers]:
        """The tokens of some records, one after the other: the record and the token of each, and how many the record has."""
        codes = self.codes[rows]
        lengths = self.lengths[codes]
        record = np.repeat(np.arange(codes.size), lengths)
        within = np.arange(record.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return record, self.tokens[self.starts[codes][record] + within], lengths[record]


class _Hashes:
    """Which bits the tokens of a field set under a salt, remembered."""

    def __init__(self, key: bytes, width: int, share: float) -> None:
        self.key, self.width, self.share = key, width, share
        self.places = np.zeros((1, _MOST_HASHES), dtype=np.uint16)
        self.row = np.zeros(0, np.int32)  # of each token in each group, 0 where it is not known yet
        self.known = 1

    def set(
        self, bits: NDArray[np.bool_], record: Integers, token: Integers, lengths: Integers, groups: Integers | None, names: list[str]
    ) -> None:  # fmt: skip
        """Set the bits of some records (width, rows)."""
        group = np.zeros_like(record) if groups is None else groups[record]
        salted = group >= 0
        record, code = record[salted], token[salted] * _GROUPS + group[salted]
        self._learn(code, names)
        each = np.clip(np.rint(self.share / lengths[salted]), 1, _MOST_HASHES).astype(np.int64)
        used = np.arange(int(each.max(initial=1))) < each[:, None]
        places = self.places[self.row[code], : used.shape[1]]
        bits[places[used], np.repeat(record, each)] = True

    def _learn(self, code: Integers, names: list[str]) -> None:
        """Hash the tokens that were not met before in their group."""
        if self.row.size == 0:
            self.row = np.zeros(len(names) * _GROUPS, np.int32)
        new = np.unique(code[self.row[code] == 0])
        self.row[new] = self.known + np.arange(new.size)
        made = [_places(names[one // _GROUPS], one % _GROUPS, self.key) for one in new.tolist()]
        if self.known + new.size > len(self.places):
            grown = np.zeros((2 * (self.known + new.size), _MOST_HASHES), dtype=np.uint16)
            grown[: self.known] = self.places[: self.known]
            self.places = grown
        if made:
            self.places[self.known : self.known + new.size] = np.stack(made) % self.width
        self.known += new.size


def _places(token: str, group: int, key: bytes) -> NDArray[np.uint16]:
    """The bits that a token may set, as long numbers that follow from the key."""
    digest = hashlib.blake2b(token.encode("utf-8"), key=key, digest_size=2 * _MOST_HASHES, salt=bytes([group])).digest()
    return np.frombuffer(digest, dtype="<u2")


def _harden(schema: Schema, lying: Bits, order: Integers | None) -> Bits:
    """Fold, turn bits over, and balance filters that lie on their side: a row for each bit, records packed into bytes."""
    if schema.fold:
        half = len(lying) // 2
        lying = lying[:half] ^ lying[half:]
    if schema.flip:
        lying = lying ^ _random_bits(lying.shape, schema.flip)
    return lying if order is None else np.concatenate([lying, ~lying])[order]


def _upright(lying: Bits, count: int) -> Bits:
    """Packed filters of `count` records (count, bytes), from a row for each bit."""
    bits = np.unpackbits(lying, axis=1, count=count).reshape(len(lying) // 8, 8, count)
    shifts = np.arange(7, -1, -1, dtype=np.uint8)[None, :, None]
    return np.asarray(np.bitwise_or.reduce(bits << shifts, axis=1).T)


def _random_bits(shape: tuple[int, ...], probability: float) -> Bits:
    """Packed bits that are set with a probability, a multiple of 2**-16, from the operating system's random numbers.

    Sixteen fair bits, read as a number, are less than a limit with that probability; the comparison is made from the last bit on, for eight records at once.
    """
    limit, made = round(probability * 2**16), np.zeros(shape, dtype=np.uint8)
    for place in range(16):
        fair = np.frombuffer(secrets.token_bytes(made.size), dtype=np.uint8).reshape(shape)
        made = made | ~fair if limit >> place & 1 else made & ~fair
    return made


def _permutation(key: bytes, size: int) -> Integers:
    """An order of the bits that follows from the key."""
    marks = [hashlib.blake2b(i.to_bytes(4, "little"), key=key, digest_size=16).digest() for i in range(size)]
    return np.array(sorted(range(size), key=marks.__getitem__), dtype=np.int64)


def block_keys(schema: Schema, columns: dict[str, Texts], key: bytes) -> list[Any]:
    """The keyed hash of each record's block keys (Arrow, eight bytes each); null where a part is missing."""
    import pyarrow as pa

    made = []
    for number, parts in enumerate(schema.blocks):
        own = derive(key, "block", str(number))
        read = [columns[part.column].part(part) for part in parts]
        missing, codes, firsts = _joined([texts.codes for texts in read])
        values = zip(*([texts.values[code] for code in texts.codes[firsts]] for texts in read), strict=True)
        hashed = pa.array([_hashed(value, own) for value in values], pa.binary(KEY_BYTES))
        made.append(hashed.take(pa.array(codes, mask=missing)))
    return made


def _joined(columns: Sequence[Integers]) -> tuple[NDArray[np.bool_], Integers, Integers]:
    """Which records miss a part; the code of what each has together, any where one is missing; and a record that has each code."""
    missing = np.min(columns, axis=0) < 0
    present = np.flatnonzero(~missing)
    codes = np.zeros(present.size, np.int64)
    for column in columns:
        codes = np.unique(codes * (int(column.max(initial=0)) + 1) + column[present], return_inverse=True)[1]
    firsts = np.unique(codes, return_index=True)[1]
    spread = np.zeros(missing.size, np.int64)
    spread[present] = codes
    return missing, spread, present[firsts]


def _hashed(values: Sequence[str], key: bytes) -> bytes:
    return hashlib.blake2b("\x1f".join(values).encode("utf-8"), key=key, digest_size=KEY_BYTES).digest()
