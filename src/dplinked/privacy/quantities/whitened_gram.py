"""The squares of whitened rows by themselves, from which the slope of the second stage's equation follows: sensitivity with its proof, plan and draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import EXACT, LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, allocate, make_room_for_draw
from dplinked.privacy.quantities.instrument import (
    ReleasedSums,
    row_parts,
    share_answered,
    symmetric_matrix_sensitivity,
)
from dplinked.privacy.spending import Spending
from dplinked.privacy.symmetric import pack_symmetric, unpack_symmetric
from dplinked.sums.clipped import WhitenedGram
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

_FOR_ROWS = 0.03  # of the budget for the squares: each of the numbers of rows beside them


def whitened_gram_sensitivity(norm: float) -> float:
    """Frobenius sensitivity of ``Σ w_i c_i u_i u_i'``, ``c_i = min(1, C²/‖u_i‖²)`` with C the `norm`, and weights w_i of at most 1.

    Proof. ``√c_i·u_i`` is at most C long, whatever the row and whatever matrix whitened it, for that matrix is public. No link enters, and a row's weight is that of its block, which
    is public where there are weights. So one person changes one row, as in an exact join with E = C and no centre: ``w(pp' - rr')`` with p and r at most C long.
    """
    return symmetric_matrix_sensitivity(norm, EXACT)


def plan_whitened_gram(
    entries: int, norm: float, count: int, mu: float, counted: LinkageExposure | None = None
) -> NoisePlan:
    """Plan the noise of the squares of rows of so many entries (p), and of the numbers of rows that are `counted` beside them, if there are."""
    packed = entries * (entries + 1) // 2
    sensitivity = whitened_gram_sensitivity(norm) + rounding_slack(count, 2.0 * norm**2, packed)
    parts = [Part("whitened matrix", packed, sensitivity, 1.0)]
    if counted is not None:
        for part in row_parts(counted, count):
            parts.append(replace(part, importance=(_FOR_ROWS * sensitivity / part.sensitivity) ** 2))
    return make_room_for_draw(allocate(parts, mu), 2.0 * count * max(1.0, norm**2))


def release_whitened_gram(private: WhitenedGram, spending: Spending, share: float) -> ReleasedSums:
    """Release the squares in one Gaussian draw, as the matrix of sums whose vector is 0, with no claim to it.

    Privacy
    -------
    μ-GDP for its share of the budget, for the matrix and the norm that rows were whitened with, which are public by then. If rows are counted, their numbers are drawn
    beside, as in :func:`~dplinked.privacy.quantities.instrument.release_curvature`.
    """
    p, none, counted = private.matrix.shape[0], np.zeros(private.matrix.shape[0]), private.counted
    exposure = None if counted is None else private.exposure
    plan = spending.note(plan_whitened_gram(p, private.norm, private.rows, spending.take(share), exposure))
    values = np.concatenate([pack_symmetric(private.matrix), np.array(counted or ())])
    drawn = noise.add_gaussian(values, plan.scales())
    answered = 1.0 if counted is None else share_answered(*drawn[-2:])
    matrix = answered * unpack_symmetric(drawn[: p * (p + 1) // 2], p)
    return ReleasedSums(matrix, none, answered * unpack_symmetric(plan.parts[0].scale, p), none, True, none)
