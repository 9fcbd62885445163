"""What a release will draw, laid down from public values alone: its parts, their sensitivities and their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.privacy import noise
from dplinked.records import ReadableByKey

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part(ReadableByKey):
    """A group of released entries that share a sensitivity and a noise scale.

    `importance` weighs the variance of this part's noise in the error of the estimate.
    """

    name: str
    entries: int
    sensitivity: float
    importance: float
    scale: float = math.nan


@dataclass(frozen=True)
class NoisePlan:
    """What one draw will release, from public values alone: its parts, and μ of the whole."""

    parts: tuple[Part, ...]
    mu: float

    def scale(self, name: str) -> float:
        """Noise scale of a part; 0 if the plan has no such part."""
        return next((part.scale for part in self.parts if part.name == name), 0.0)

    def scales(self) -> Floats:
        """Noise scale of each entry, in the order of the draw."""
        return np.concatenate([np.full(part.entries, part.scale) for part in self.parts])


def allocate(parts: Sequence[Part], mu: float) -> NoisePlan:
    """Divide μ between parts so that ``Σ importance·scale²`` is least at ``Σ (Δ/scale)² = μ²``.

    Notes
    -----
    By Lagrange ``scale² = Δ/√importance · Σ Δ√importance / μ²``.
    """
    total = sum(part.sensitivity * math.sqrt(part.importance) for part in parts)
    scaled = [
        replace(part, scale=math.sqrt(part.sensitivity / math.sqrt(part.importance) * total) / mu) for part in parts
    ]
    return NoisePlan(tuple(scaled), mu)


def make_room_for_draw(plan: NoisePlan, *largest: float) -> NoisePlan:
    """Widen all scales by what grid and quotient rounding can add (`noise.draw_slack`).

    `largest` bounds the values of each part, or of all parts if it is one number.
    """
    entries = sum(part.entries for part in plan.parts)
    bounds = largest if len(largest) == len(plan.parts) else largest * len(plan.parts)
    slack = noise.draw_slack(entries, max(bound / part.scale for bound, part in zip(bounds, plan.parts, strict=True)))
    if not slack < plan.mu / 2.0:
        raise StudyError("The budget is too small, or the data too many, for noise on this machine's numbers.")
    factor = plan.mu / (plan.mu - slack)
    return NoisePlan(tuple(replace(part, scale=part.scale * factor) for part in plan.parts), plan.mu)
