"""The slopes' part of a matrix of sums, the means taken out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def centred_core(matrix: Floats, intercept: bool) -> Floats:
    """``H_xx - H_x1 H_1x / n`` (d×d): what is left of H for the slopes once the intercept is eliminated; H itself without one.

    Under exchangeable linkage errors it is proportional to the accuracy, and the rest of H does not depend on it.
    """
    if not intercept:
        return matrix
    return np.asarray(matrix[1:, 1:] - np.outer(matrix[1:, 0], matrix[0, 1:]) / matrix[0, 0], np.float64)
