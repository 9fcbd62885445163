"""The size of residuals, a noisy quantile of their absolute values: sensitivity with its proof, plan and draws."""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError
from dplinked.linkage import LinkageExposure
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.ranges import bisect
from dplinked.privacy.spending import RESIDUAL_SCALE, Spending
from dplinked.sums.linked_rows import ResidualCounts

Floats = NDArray[np.float64]

_STEPS = 6  # halvings of the grid
_BINS = 1 << _STEPS


def residual_count_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of a count "rows whose own residual is below a threshold".

    Proof. A row's own residual ``z_i - β₀ - (γx_i + (1-γ)x̄)'β`` sees its own cells and public values only. Row j
    changes, and the row p that holds the person's response, and each displaced row; an exact join has row j
    alone. Each moves the count by at most 1. Q does not enter.
    """
    return 1.0 if exposure.exact else 1.0 + exposure.carriers + exposure.displaced


def residual_edges(R: float) -> Floats:
    """Public grid for the size of residuals: from 2R down in steps of 2^(1/4)."""
    return np.asarray(2.0 * R * 2.0 ** (-np.arange(_BINS - 1, 0, -1) / 4.0), np.float64)


def plan_residual_scale(
    exposure: LinkageExposure, count: int, mu: float, highest: float = 0.97
) -> tuple[NoisePlan, float] | None:
    """Plan the noise of the search and the quantile to look for, `highest` at most; None where the search could only mislead.

    The quantile is as high as the noise allows: clipping levels follow from it, and wrong links sit in the tail.
    """
    sensitivity = residual_count_sensitivity(exposure)
    step = Part("residuals below", 1, sensitivity, 1.0, sensitivity * math.sqrt(_STEPS) / mu)
    level = min(highest, 1.0 - 3.0 * step.scale / count)
    if level < min(0.6, highest):
        return None
    room = make_room_for_draw(NoisePlan((step,), mu / math.sqrt(_STEPS)), float(count))
    return NoisePlan(room.parts, mu), level


def release_residual_scale(private: ResidualCounts, spending: Spending) -> float:
    """Residual standard deviation from a noisy quantile of the rows' own absolute residuals."""
    size, level = release_residual_size(private, spending, RESIDUAL_SCALE)
    return float(size / statistics.NormalDist().inv_cdf((1.0 + level) / 2.0))


def release_residual_size(
    private: ResidualCounts, spending: Spending, share: float, highest: float = 0.97
) -> tuple[float, float]:
    """A noisy quantile of the rows' own absolute residuals, and its level.

    Privacy
    -------
    Each step draws one count that moves by at most :func:`residual_count_sensitivity`: μ-GDP with the plan's μ.
    """
    planned = plan_residual_scale(private.exposure, private.rows, spending.take(share), highest)
    if planned is None:
        raise ReleaseError("The budget is too small to search for the size of residuals.")
    plan, level = planned
    found = int(bisect(private.counts[None, :], np.array([level]), _STEPS, spending.note(plan))[0])
    return float(private.edges[min(found, private.edges.size - 1)]), level
