"""The settings of noisy gradient descent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_faults, plain_number, shown, suggest
from dplinked.records import PlainlyShown
from dplinked.study.scaling import Scaling

Floats = NDArray[np.float64]

_ITERATIONS = 3
_MOST_ITERATIONS = 10**6


@dataclass(frozen=True, repr=False)
class Descent(PlainlyShown):
    """Settings of noisy gradient descent, all public.

    Parameters
    ----------
    radius
        C: coefficients are kept within this l2 norm (on the scaled columns; in the user's units with
        ``calibration="paper"``).
    iterations
        T: number of steps, 2 to 4 is best with ``calibration="tight"``.
    step
        η: step size; by default from the second moment that the declared typical ranges imply.
    start
        β⁰: coefficients to start from, by name and in the user's units; those that are not named start at 0. Something known before, like an
        earlier release, or none.
    curvature
        L of the paper's assumption (A4), with ``calibration="paper"``: all eigenvalues of d·W'W/n are known to lie between 1/L and L. Step
        and iterations then follow from Theorem 4.4 of [LPK24], η = d/L and T = ⌈L² ln(C²n)⌉, with d coefficients and n rows.
    """

    radius: float = 1.0
    iterations: int = _ITERATIONS
    step: float | None = None
    start: Mapping[str, float] | None = None
    curvature: float | None = None

    @plain_faults
    def __post_init__(self) -> None:
        if not 0 < plain_number(self.radius) <= 1e30:
            raise StudyError(f"The descent's radius must be a finite number above 0, not {shown(self.radius)}.")
        if (
            isinstance(self.iterations, bool)
            or not isinstance(self.iterations, int)
            or not 1 <= self.iterations <= _MOST_ITERATIONS
        ):
            raise StudyError(f"The descent's iterations must be a whole number above 0, not {shown(self.iterations)}.")
        if self.step is not None and not 0 < plain_number(self.step) <= 1e30:
            raise StudyError(f"The descent's step must be a finite number above 0, not {shown(self.step)}.")
        if self.curvature is not None:
            self._check_curvature()
        if self.start is not None:
            object.__setattr__(self, "start", _checked_start(self.start))
        for name in ("radius", "step", "curvature"):  # other numbers would not go into the release's JSON
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))

    def _check_curvature(self) -> None:
        if not 1.0 <= plain_number(self.curvature) <= 1000.0:
            raise StudyError(
                f"The descent's curvature, L of the paper, must be a number from 1 to 1000, not {shown(self.curvature)}: eigenvalues lie "
                "between 1/L and L."
            )
        if self.step is not None or self.iterations != _ITERATIONS:
            raise StudyError(
                "The descent's step and iterations follow from its curvature. Give either curvature, or step and iterations."
            )

    def settled(self, coefficients: int, count: int) -> Descent:
        """The same settings with step and iterations worked out from the curvature, if one is declared."""
        if self.curvature is None:
            return self
        needed = math.ceil(self.curvature**2 * math.log(max(math.e, self.radius**2 * count)))
        if needed > _MOST_ITERATIONS:
            raise StudyError(
                f"The declared curvature asks for {needed:,} steps, and {_MOST_ITERATIONS:,} is the most. Scale the columns so that their "
                "eigenvalues are closer to each other, or declare step and iterations."
            )
        return replace(self, iterations=needed, step=coefficients / self.curvature, curvature=None)

    def first_iterate(self, scaling: Scaling) -> Floats:
        """β⁰ on the scaled columns (p); refused if it names no coefficient or lies outside of the radius."""
        names = scaling.names
        if self.start is None:
            return np.zeros(len(names))
        _check_known(self.start, names)
        matrix, offset = scaling.to_user()
        first = np.array([self.start.get(name, 0.0) for name in names]) / np.diag(matrix)
        if "Intercept" in self.start and scaling.intercept:
            first[0] = (self.start["Intercept"] - offset[0] - matrix[0, 1:] @ first[1:]) / matrix[0, 0]
        if float(np.linalg.norm(first)) > self.radius:
            raise StudyError(
                "The descent's start lies outside of its radius. Declare a larger radius, or a start nearer to 0."
            )
        return np.asarray(first, np.float64)


def _checked_start(start: Mapping[str, float]) -> dict[str, float]:
    """Coefficients by name, as plain numbers."""
    known = isinstance(start, Mapping) and all(isinstance(name, str) for name in start)
    if not known or not all(abs(plain_number(value)) <= 1e30 for value in start.values()):
        raise StudyError(
            "The descent's start must name coefficients and give each a finite number, like start={'income': 0.5}."
        )
    return {name: float(value) for name, value in start.items()}


def _check_known(start: Mapping[str, float], names: Sequence[str]) -> None:
    """Refuse names that no coefficient has; a name is shown only if it is like one of them."""
    for name in start:
        if name not in names:
            hint = suggest(name, names)
            raise StudyError(
                f"The descent's start names {shown(name) if hint else 'something'}, which is no coefficient.{hint}"
            )
