"""Frozen records that may hold arrays: what they have in common."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dplinked.errors import shown


class ReadableByKey:
    """A record that was a dictionary before 0.2: ``record["name"]`` still reads ``record.name``, and warns.

    `OLD_KEYS` says where a field stands now that had another key.
    """

    OLD_KEYS: ClassVar[Mapping[str, str]] = {}

    def __getitem__(self, key: str) -> Any:
        path = self.OLD_KEYS.get(key, key)
        found: Any = self
        for name in path.split("."):
            if not hasattr(found, name):
                raise KeyError(key)
            found = getattr(found, name)
        warnings.warn(
            f"{type(self).__name__}[{key!r}] goes in 0.3: read .{path} instead.", DeprecationWarning, stacklevel=2
        )
        return found


class PlainlyShown:
    """A frozen dataclass of settings that shows plain ones only: rows may stand in the place of the others."""

    def __repr__(self) -> str:
        named = ((field.name, getattr(self, field.name)) for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={shown_setting(value)}' for name, value in named)})"


def shown_setting(value: Any) -> str:
    """A setting in a repr: records as they show themselves, other values as messages show them."""
    if is_dataclass(value) and not isinstance(value, type):
        return repr(value)
    return shown(str(value) if isinstance(value, Path) else value)


class Record(ReadableByKey):
    """A frozen dataclass with arrays: equal to another one if all fields are."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(left, right, equal_nan=True)
    return bool(left == right)
