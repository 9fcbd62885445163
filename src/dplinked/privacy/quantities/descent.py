"""Noisy gradient descent on the sums: the sensitivity of a step, the plan of all steps, and the draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError
from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.instrument import (
    instrument_matrix_sensitivity,
    instrument_response_sensitivity,
    instrument_total_sensitivity,
    regressor_total_sensitivity,
    response_total_sensitivity,
    symmetric_matrix_sensitivity,
)
from dplinked.privacy.spending import CURVATURE, VARIANCE, Spending
from dplinked.records import Record
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.sums.clipped import ClippedSums
from dplinked.sums.rounding import rounding_slack
from dplinked.sums.types import PrivateSums

Floats = NDArray[np.float64]


def descent_sensitivity(design: Design, exposure: LinkageExposure, descent: Descent) -> float:
    """Sensitivity of a gradient sum ``Hβ - b`` with ``‖β‖ ≤ C`` and the instrument h = x: ``Δ_b + CΔ_H``.

    Proof. ``‖(H - H')β - (b - b')‖ ≤ ‖H - H'‖_F‖β‖ + ‖b - b'‖``. Parts of b, and of H, are disjoint entries, so their squared
    sensitivities add. The intercept's own entry of H is n, public; its row and column are counted once each.
    """
    E, R = design.radius, design.response.peak
    b = [instrument_response_sensitivity(R, E, exposure)]
    if exposure.symmetric:
        H = [symmetric_matrix_sensitivity(E, exposure)]
    else:
        H = [instrument_matrix_sensitivity(E, E, exposure)]
    if design.intercept:
        b.append(response_total_sensitivity(R, exposure))
        H += [regressor_total_sensitivity(E, exposure), instrument_total_sensitivity(E)]
    return math.hypot(*b) + descent.radius * math.hypot(*H)


def plan_descent(
    p: int, sensitivity: float, multiplier: float, descent: Descent, count: int, largest: float
) -> NoisePlan:
    """Plan the noise of T gradient sums: T adaptive steps cost one Gaussian release with √T the sensitivity."""
    total = sensitivity + rounding_slack(count, largest, p)
    T = descent.iterations
    step = Part("gradient", p, total, 1.0, total * multiplier * math.sqrt(T))
    room = make_room_for_draw(NoisePlan((step,), 1.0 / (multiplier * math.sqrt(T))), count * largest)
    return NoisePlan(room.parts, 1.0 / multiplier)


def largest_gradient(design: Design, exposure: LinkageExposure, descent: Descent) -> float:
    """Bound on one row's term in an entry of a gradient sum."""
    E, p = design.radius, len(design.names)
    reach = exposure.column_sum * (E + 1.0) * descent.radius * math.sqrt(p)
    return (E + 1.0) * (reach + design.response.peak)


@dataclass(frozen=True, eq=False)
class ReleasedDescent(Record):
    """The transcript of a noisy gradient descent.

    Attributes
    ----------
    path
        Iterates β⁰ … β^T ((T+1)×p).
    gradients
        The noisy gradient sums that led from one iterate to the next (T×p).
    steps
        Step size of each coefficient (p).
    scale
        Standard deviation of the noise in each entry of a gradient sum.
    radius
        Declared bound on the norm of iterates; None in releases of 0.1.0.
    """

    path: Floats
    gradients: Floats
    steps: Floats
    scale: float
    radius: float | None = None


def release_descent(
    private: ClippedSums, spending: Spending, descent: Descent, steps: Floats, start: Floats, *, intervals: bool
) -> ReleasedDescent:
    """Release a gradient descent on (H, b) with h = x, for all of the budget but what H itself and intervals need.

    Privacy
    -------
    Each step is one Gaussian draw with sensitivity at most :func:`descent_sensitivity` (‖β‖ ≤ C holds throughout), so T
    steps are μ-GDP with the plan's μ, whatever the iterates.
    """
    sums, design = private.sums, private.design
    sensitivity = descent_sensitivity(design, private.exposure, descent)
    multiplier = 1.0 / spending.take_rest(keep=CURVATURE + (VARIANCE if intervals else 0.0))
    largest = largest_gradient(design, private.exposure, descent)
    plan = plan_descent(len(design.names), sensitivity, multiplier, descent, sums.count, largest)
    return run_descent(sums, spending.note(plan), descent, steps, start)


def run_descent(sums: PrivateSums, plan: NoisePlan, descent: Descent, steps: Floats, start: Floats) -> ReleasedDescent:
    """``β ← Π_C(β - η/n · (Hβ - b + noise))`` from a declared start of norm at most C, with the plan's noise in every step."""
    if not float(np.linalg.norm(start)) <= descent.radius:
        raise ReleaseError("The descent would start outside of the radius that its noise covers. Nothing was drawn.")
    path, gradients = [start], []
    for _ in range(descent.iterations):
        gradient = noise.add_gaussian(sums.matrix @ path[-1] - sums.vector, plan.scales())
        moved = path[-1] - steps * gradient / sums.count
        norm = float(np.linalg.norm(moved))
        path.append(moved * min(1.0, descent.radius * (1.0 - 1e-12) / norm) if norm > 0 else moved)
        gradients.append(gradient)
    return ReleasedDescent(np.array(path), np.array(gradients), steps, plan.parts[0].scale, descent.radius)
