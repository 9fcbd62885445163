"""Keyed Bloom filters of records, hardened against those who count bits."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.encodings.schema import BlockPart, EncodedField, Schema
from dplinked.linker.encodings.tokens import take_part, tokens

Bits = NDArray[np.uint8]
Texts = Sequence[str | None]

_AT_ONCE = 8_192  # distinct values whose filters are made together
_MOST_HASHES = 64  # bits that a token can set
_MISSING = b""


def derive(key: bytes, *purpose: str) -> bytes:
    """A key for one purpose, from which no other follows."""
    return hashlib.blake2b(
        "\x1f".join(purpose).encode("utf-8"), key=key, digest_size=32, person=b"dplinked-encode"
    ).digest()


def make_filters(schema: Schema, columns: dict[str, Texts], key: bytes) -> Bits:
    """The filters of all records, packed into bytes (n, length / 8)."""
    count = len(next(iter(columns.values())))
    width = schema.bits * (2 if schema.fold else 1)
    salts = (
        None
        if schema.salt is None
        else [None if text is None else take_part(schema.salt, text) for text in columns[schema.salt.column]]
    )
    filters = np.zeros((count, width // 8), dtype=np.uint8)
    total = sum(field.weight for field in schema.fields)
    insertions = -np.log1p(-schema.fill) * width  # how many hashes set that share of the bits
    for field in schema.fields:
        share = insertions * field.weight / total
        space = (
            "names" if field.kind == "name" else f"column {field.name}"
        )  # given names and surnames that changed places still agree
        filters |= _field_filters(field, columns[field.name], salts, derive(key, "field", space), width, share)
    return _harden(schema, filters, key)


def _field_filters(
    field: EncodedField, texts: Texts, salts: Texts | None, key: bytes, width: int, share: float
) -> Bits:
    """The bits of one field, of each record. Values that occur often are hashed once."""
    places: dict[tuple[str | None, str | None], int] = {}
    pairs = zip(texts, [None] * len(texts) if salts is None else salts, strict=True)
    codes = np.fromiter((places.setdefault(pair, len(places)) for pair in pairs), dtype=np.int64, count=len(texts))
    distinct = list(places)
    made = np.zeros((len(distinct), width // 8), dtype=np.uint8)
    hashes = _Hashes(key, width)
    for start in range(0, len(distinct), _AT_ONCE):
        some = distinct[start : start + _AT_ONCE]
        bits = np.zeros((len(some), width), dtype=bool)
        for row, (text, salt) in enumerate(some):
            found = [] if text is None else tokens(field, text)
            each = min(_MOST_HASHES, max(1, round(share / len(found)))) if found else 0
            for token in found:
                bits[row, hashes.of(token, salt or "")[:each]] = True
        made[start : start + len(some)] = np.packbits(bits, axis=1)
    return made[codes]


class _Hashes:
    """Which bits tokens set, remembered."""

    def __init__(self, key: bytes, width: int) -> None:
        self.key, self.width, self.known = key, width, dict[tuple[str, str], NDArray[np.int64]]()

    def of(self, token: str, salt: str) -> NDArray[np.int64]:
        found = self.known.get((token, salt))
        if found is None:
            text = f"{token}\x1f{salt}".encode()
            digests = b"".join(
                hashlib.blake2b(text, key=self.key, digest_size=64, salt=bytes([part])).digest()
                for part in range(_MOST_HASHES // 32)
            )
            found = np.frombuffer(digests, dtype="<u2").astype(np.int64) % self.width
            self.known[token, salt] = found
        return found


def _harden(schema: Schema, filters: Bits, key: bytes) -> Bits:
    """Fold, turn bits over, and balance."""
    if schema.fold:
        half = filters.shape[1] // 2
        filters = filters[:, :half] ^ filters[:, half:]
    if schema.flip:
        filters = filters ^ _random_bits(filters.shape, schema.flip)
    return _balance(filters, _permutation(derive(key, "balance"), schema.length)) if schema.balance else filters


def _balance(filters: Bits, order: NDArray[np.int64]) -> Bits:
    """Filters with the opposite of each of their bits, in another order."""
    made = np.empty((len(filters), order.size // 8), dtype=np.uint8)
    for start in range(0, len(filters), _AT_ONCE):
        bits = np.unpackbits(filters[start : start + _AT_ONCE], axis=1)
        made[start : start + _AT_ONCE] = np.packbits(np.concatenate([bits, 1 - bits], axis=1)[:, order], axis=1)
    return made


def _random_bits(shape: tuple[int, ...], probability: float) -> Bits:
    """Packed bits that are set with a probability, from the operating system's random numbers."""
    limit = round(probability * 2**16)
    made = np.empty(shape, dtype=np.uint8)
    for start in range(0, shape[0], _AT_ONCE):
        rows = min(_AT_ONCE, shape[0] - start)
        drawn = np.frombuffer(secrets.token_bytes(rows * shape[1] * 16), dtype="<u2") < limit
        made[start : start + rows] = np.packbits(drawn.reshape(rows, -1), axis=1)
    return made


def _permutation(key: bytes, size: int) -> NDArray[np.int64]:
    """An order of the bits that follows from the key."""
    marks = [hashlib.blake2b(i.to_bytes(4, "little"), key=key, digest_size=16).digest() for i in range(size)]
    return np.array(sorted(range(size), key=marks.__getitem__), dtype=np.int64)


def block_keys(schema: Schema, columns: dict[str, Texts], key: bytes) -> list[list[bytes]]:
    """The keyed hash of each record's block keys; empty where a part is missing."""
    made = []
    for number, parts in enumerate(schema.blocks):
        own = derive(key, "block", str(number))
        read = [_parts(part, columns[part.column]) for part in parts]
        made.append([_hashed(values, own) for values in zip(*read, strict=True)])
    return made


def _parts(part: BlockPart, texts: Texts) -> list[str | None]:
    return [None if text is None else take_part(part, text) for text in texts]


def _hashed(values: tuple[str | None, ...], key: bytes) -> bytes:
    if any(value is None for value in values):
        return _MISSING
    return hashlib.blake2b("\x1f".join(map(str, values)).encode("utf-8"), key=key, digest_size=8).digest()
