"""Changes of a column that people can picture: round steps in its own unit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_PARTS = 20.0  # a step is at most so small a part of a column's bounds


def round_step(low: float, high: float) -> float:
    """A round step that is a small part of a column's bounds; ten rather than one, so that units are in the plural."""
    step = 10.0 ** math.floor(math.log10((high - low) / _PARTS))
    return 10.0 * step if step == 1.0 and high - low >= _PARTS else step


def is_part_of_others(name: str, names: Iterable[str]) -> bool:
    """Whether a column is part of other coefficients' terms too, so that it cannot change alone."""
    mentions = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    return any(other != name and mentions.search(other) for other in names)
