"""Public constants that map scaled columns to the user's units, and coefficients back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dplinked.records import ReadableByKey

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnScaling(ReadableByKey):
    """One column t and its scaling ``x = (t - shift)/scale``."""

    name: str
    shift: float
    scale: float


@dataclass(frozen=True)
class Scaling(ReadableByKey):
    """How all columns of a model are scaled.

    Attributes
    ----------
    columns, response
        The regressors' scaling, and the response's.
    intercept
        Whether the model has an intercept, which then is the first coefficient.
    half_widths
        Half-widths of the bounded instrument on the scaled columns; None where the instrument is the column itself.
    """

    columns: tuple[ColumnScaling, ...]
    response: ColumnScaling
    intercept: bool
    half_widths: tuple[float, ...] | None

    OLD_KEYS: ClassVar[Mapping[str, str]] = {"halves": "half_widths"}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients, the intercept first."""
        listed = tuple(column.name for column in self.columns)
        return ("Intercept", *listed) if self.intercept else listed

    def to_user(self) -> tuple[Floats, Floats]:
        """Return (A, a) such that coefficients in the user's units are ``Aβ + a`` for β on the scaled columns."""
        first, size = int(self.intercept), len(self.names)
        matrix, offset = np.zeros((size, size)), np.zeros(size)
        for k, column in enumerate(self.columns, first):
            matrix[k, k] = self.response.scale / column.scale
            if first:
                matrix[0, k] = -self.response.scale * column.shift / column.scale
        if first:
            matrix[0, 0], offset[0] = self.response.scale, self.response.shift
        return matrix, offset
