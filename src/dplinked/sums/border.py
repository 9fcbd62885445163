"""The intercept's row and column around sums of the other columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.study.design import Design
from dplinked.sums.types import PrivateSums

Floats = NDArray[np.float64]


def add_border(
    design: Design,
    count: int,
    core: Floats,
    b: Floats,
    sum_h: Floats,
    sum_x: Floats,
    sum_z: float,
    weight: float | None = None,
) -> PrivateSums:
    """Sums ``h'QX`` and ``h'z`` with the intercept first, if the design has one.

    Parameters
    ----------
    design
        The scaling and the instrument.
    count
        Number of rows, public.
    core
        ``h'QX`` of the design's columns (d×d).
    b
        ``h'z`` of these (d).
    sum_h, sum_x
        Totals of the instruments and of ``QX`` (d).
    sum_z
        Total of the responses.
    weight
        The intercept's own entry: the total of the weights of rows, if they have some, else their number.
    """
    if not design.intercept:
        return PrivateSums(core, b, count)
    own = float(count) if weight is None else weight
    matrix = np.block([[np.full((1, 1), own), sum_x[None, :]], [sum_h[:, None], core]])
    return PrivateSums(matrix, np.concatenate([[sum_z], b]), count)


def symmetrise(matrix: Floats) -> Floats:
    """The mean of a matrix and its transpose, where rounding alone can tell them apart."""
    return np.asarray((matrix + matrix.T) / 2.0)
