"""Symmetric matrices as vectors of their upper triangle, scaled so that the vector's norm is the matrix's."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pack_symmetric(matrix: Floats) -> Floats:
    """The upper triangle row by row, entries off the diagonal times √2: its l2 norm is the Frobenius norm."""
    upper = np.triu_indices(matrix.shape[0])
    return np.asarray(matrix[upper] * _weights(upper), np.float64)


def unpack_symmetric(values: Floats | float, size: int) -> Floats:
    """The symmetric matrix of a packed vector, or of one number for all entries."""
    upper = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[upper] = values / _weights(upper)
    matrix.T[upper] = matrix[upper]
    return matrix


def _weights(upper: tuple[NDArray[np.intp], NDArray[np.intp]]) -> Floats:
    return np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
