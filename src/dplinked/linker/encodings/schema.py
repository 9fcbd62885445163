"""What is encoded, and how: agreed on by both holders before anything is encoded."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError, plain_number, raise_alone, shown, suggest
from dplinked.linker.fields import KINDS, guess_kind

PARTS = ("start", "year", "month", "sound")
_LEAST_FIELDS = 3
_TELLING = ("name", "text", "date", "postcode", "id")  # kinds of fields of which there must be three
_SECTIONS = {"encoding": ("bits", "fill", "fold", "balance", "flip", "salt"), "fields": (), "blocks": ("keys", "alone")}


@dataclass(frozen=True)
class EncodedField:
    """A field: its column, its kind, its weight, and for numbers how far apart two values still count as near."""

    name: str
    kind: str
    weight: float = 1.0
    near: float = 1.0


@dataclass(frozen=True)
class BlockPart:
    """A column of a block key or a salt, whole or a part of it: its first three letters, a date's year or month, or how a name sounds."""

    column: str
    part: str | None = None

    def __str__(self) -> str:
        return self.column if self.part is None else f"{self.column}:{self.part}"


@dataclass(frozen=True)
class Schema:
    """How records become filters. Both holders must have the same.

    Attributes
    ----------
    fields
        The fields that are encoded.
    blocks
        Keys that divide records into blocks, each made of columns or parts of them; a record is compared where one of its keys agrees.
    alone
        Whether a block key may be made of one column, or a part of it, alone: then the linkage unit sees how often each of its values occurs.
    bits
        Length of a filter before it is balanced; a power of two.
    fill
        Share of the bits that a record sets, before filters are folded.
    fold
        Whether filters of twice the length are folded by exclusive or, so that no bit tells of a single letter pair.
    balance
        Whether the opposite of each bit is added, and all are permuted, so that every filter has the same number of bits set.
    flip
        Probability with which each bit is turned over, so that the same record never has the same filter twice.
    salts
        Columns, or parts of them, that go into the hashes, each into an equal share of a field's: the same letters set other bits where salts differ, so that bits cannot be counted over all records. None of them goes into the
        hashes of its own column if there is another.
    """

    fields: tuple[EncodedField, ...]
    blocks: tuple[tuple[BlockPart, ...], ...] = ()
    alone: bool = False
    bits: int = 1024
    fill: float = 0.2
    fold: bool = True
    balance: bool = True
    flip: float = 0.02
    salts: tuple[BlockPart, ...] = ()

    def __post_init__(self) -> None:
        if self.bits not in (512, 1024, 2048, 4096):
            raise StudyError(f"[encoding] bits must be 512, 1024, 2048 or 4096, not {shown(self.bits)}.")
        if not 0.05 <= plain_number(self.fill) <= 0.5:
            raise StudyError(f"[encoding] fill must be a share from 0.05 to 0.5, not {shown(self.fill)}.")
        if not 0.0 <= plain_number(self.flip) <= 0.2:
            raise StudyError(f"[encoding] flip must be a probability from 0 to 0.2, not {shown(self.flip)}.")
        if not isinstance(self.fold, bool) or not isinstance(self.balance, bool):
            raise StudyError("[encoding] fold and balance are true or false.")
        if not isinstance(self.alone, bool):
            raise StudyError("[blocks] alone is true or false.")
        if not self.alone and any(len({part.column for part in key}) < 2 for key in self.blocks):
            raise StudyError(
                "[blocks] A key of one column alone tells how often each of its values occurs: the largest block is the largest town. Put columns together, like "
                '["postcode", "date_of_birth:year"]; or say alone = true, if whoever links may know.'
            )
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise StudyError("[fields] names a column twice.")
        if sum(field.kind in _TELLING for field in self.fields) < _LEAST_FIELDS:
            raise StudyError(
                f"[fields] must have at least {_LEAST_FIELDS} names, texts, dates, postcodes or ids: encodings of one or two short fields are easily guessed, since common names "
                "have common encodings. Add fields that both files have."
            )

    @property
    def length(self) -> int:
        """Bits of a filter as it leaves its holder."""
        return self.bits * 2 if self.balance else self.bits

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads."""
        parts = [part.column for key in self.blocks for part in key]
        return tuple(
            dict.fromkeys([*(field.name for field in self.fields), *parts, *(salt.column for salt in self.salts)])
        )

    def salts_of(self, field: EncodedField) -> tuple[BlockPart | None, ...]:
        """The salts of a field's hashes; one that is none if there are no salts."""
        return tuple(salt for salt in self.salts if salt.column != field.name) or self.salts or (None,)

    def fingerprint(self) -> str:
        """What two schemas have in common if they are the same, and else not. It names columns, and nothing of their cells."""
        return hashlib.blake2b(json.dumps(_plain(self), sort_keys=True).encode("utf-8"), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """Dataclasses as mappings, all the way down."""
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def read_schema(given: Any) -> Schema:
    """Read a schema: a TOML file, a mapping of the same form, or a :class:`Schema`."""
    if isinstance(given, Schema):
        return given
    if isinstance(given, (str, Path)):
        given = _read_toml(Path(given))
    if not isinstance(given, Mapping):
        raise StudyError("A schema is a TOML file with the sections [fields], [encoding] and [blocks].")
    for section, settings in given.items():
        if section not in _SECTIONS:
            raise StudyError(f"A schema has no section {shown(section)}.{suggest(section, tuple(_SECTIONS))}")
        if not isinstance(settings, Mapping):
            raise StudyError(f"[{section}] must be a section of settings.")
        for name in settings if section != "fields" else ():
            if name not in _SECTIONS[section]:
                raise StudyError(f"[{section}] has no setting {shown(name)}.{suggest(name, _SECTIONS[section])}")
    settings = dict(given.get("encoding", {}))
    salt = settings.pop("salt", None)
    if not isinstance(salt, (str, list, type(None))):
        raise StudyError(f"[encoding] salt is a column, a part of one, or a list of them, not {shown(salt)}.")
    keys, alone = given.get("blocks", {}).get("keys", []), given.get("blocks", {}).get("alone", False)
    if not isinstance(keys, list):
        raise StudyError("[blocks] keys is a list of columns, or of lists of columns that make a key together.")
    fields = tuple(_read_field(name, value) for name, value in given.get("fields", {}).items())
    blocks = tuple(tuple(map(_read_part, key if isinstance(key, list) else [key])) for key in keys)
    salts = tuple(map(_read_part, [salt] if isinstance(salt, str) else salt or []))
    return Schema(fields, blocks, alone, salts=salts, **settings)


def _read_toml(path: Path) -> Any:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise_alone(StudyError(f"The schema {shown(path.name)} is missing, or is no TOML file."))


def _read_field(name: str, value: Any) -> EncodedField:
    """A field given by its kind, or by a table of settings."""
    settings = {"kind": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    kind, weight, near = (settings.pop(key, default) for key, default in (("kind", guess_kind(name)), ("weight", 1.0), ("near", 1.0)))  # fmt: skip
    if settings:
        raise StudyError(f"[fields] {shown(name)}: a field has kind, weight and near.")
    if kind not in KINDS:
        raise StudyError(f"[fields] {shown(name)}: kind must be one of {list(KINDS)}.{suggest(kind, KINDS)}")
    for setting, number in (("weight", weight), ("near", near)):
        if not 0.0 < plain_number(number) < math.inf:
            raise StudyError(f"[fields] {shown(name)}: {setting} must be a number above 0, not {shown(number)}.")
    return EncodedField(name, kind, float(weight), float(near))


def _read_part(text: Any) -> BlockPart:
    """A column, or ``column:part``."""
    if not isinstance(text, str) or not text:
        raise StudyError("Block keys and salts are columns, or parts of them: 'postcode', 'date_of_birth:year'.")
    column, _, part = text.partition(":")
    if part and part not in PARTS:
        raise StudyError(f"{shown(text)}: a part is one of {list(PARTS)}.{suggest(part, PARTS)}")
    return BlockPart(column, part or None)
