"""Releases as JSON: one writer and one reader for all that a release is made of, and the formats of earlier versions.

Records are written field by field and read back by the types that their fields declare.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

FORMAT = 2
_MARK = "dplinked_release"
T = TypeVar("T")


def write_json(value: Any) -> str:
    """A release as JSON text, with the version of the format first."""
    return json.dumps({_MARK: FORMAT, **_plain(value)}, indent=1, allow_nan=False, ensure_ascii=False)


def read_json(kind: type[T], text: str) -> T:
    """Read a release back, of this version's format or of an earlier one's; anything else is a ValueError."""
    try:
        stored = json.loads(text, parse_constant=_refuse_constant)
        version = stored.pop(_MARK)
        if version == 1:
            stored = _from_format_1(stored)
        elif version != FORMAT:
            raise ValueError(f"format {version!r}")
        return _read(kind, stored)  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        raise ValueError(str(fault)) from None


def _refuse_constant(name: str) -> Any:
    """Refuse NaN and infinities, which Python would read and JSON does not have."""
    raise ValueError(name)


def _plain(value: Any) -> Any:
    """A value as JSON has it: records and mappings as objects, arrays and tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _read(kind: Any, stored: Any) -> Any:
    """A stored value as the type that is declared for it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return stored
    if origin in (Union, types.UnionType):
        return _read_one_of(
            [one for one in arguments if one is not types.NoneType], stored, types.NoneType in arguments
        )
    if origin is np.ndarray:
        return _finite(np.array(stored, dtype=np.float64))
    if origin is tuple:
        if not isinstance(stored, list):
            raise TypeError("a list is expected")
        kinds = [arguments[0]] * len(stored) if arguments[-1] is Ellipsis else arguments
        return tuple(_read(one, item) for one, item in zip(kinds, stored, strict=True))
    if origin is dict:
        return {str(key): _read(arguments[1], item) for key, item in stored.items()}
    if is_dataclass(kind):
        declared = get_type_hints(kind)
        return kind(**{name: _read(declared[name], item) for name, item in stored.items()})  # type: ignore[operator]
    if isinstance(stored, bool) != (kind is bool):
        raise TypeError(f"a {kind.__name__} is expected")
    if kind is float and isinstance(stored, (int, float)):
        return float(_finite(np.float64(stored)))
    if not isinstance(stored, kind):
        raise TypeError(f"a {kind.__name__} is expected")
    return stored


def _finite(numbers: Any) -> Any:
    """Numbers as they are, refused where one is missing or beyond what a float holds."""
    if not np.isfinite(numbers).all():
        raise ValueError("a number is not finite")
    return numbers


def _read_one_of(kinds: list[Any], stored: Any, optional: bool) -> Any:
    """The first of several types that a stored value fits."""
    if stored is None and optional:
        return None
    for kind in kinds:
        try:
            return _read(kind, stored)
        except (TypeError, ValueError, AttributeError, KeyError):
            continue
    raise TypeError("no declared type fits")


def _from_format_1(stored: dict[str, Any]) -> dict[str, Any]:
    """What 0.1.0 wrote, arranged as this version has it."""
    released, scaling = stored["released"], dict(stored["scaling"])
    scaling["half_widths"] = scaling.pop("halves")
    names = ("matrix", "vector", "matrix_scale", "vector_scale", "symmetric", "centre")
    meat = released.get("meat")
    variance = None
    if meat is not None:
        variance = {
            "route": meat["route"],
            "meat": meat["matrix"],
            "noise": meat["scale"],
            "weights": meat["weights"],
            "residual": meat["residual"],
            "accuracy": released["accuracy_variance"],
        }
    return {
        **stored,
        "scaling": scaling,
        "released": {
            "sums": {name: released[name] for name in names} if "matrix" in released else None,
            "descent": {name: released[name] for name in ("path", "gradients", "steps", "scale")}
            if "path" in released
            else None,
            "variance": variance,
            "parts": released["parts"],
        },
    }
