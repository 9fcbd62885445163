"""The expected equation along a curve and its slope, of rows by themselves: sensitivities with their proofs, plans and draws.

With ``S = Σ (1, h) s [(1-o) z_i - (1-γ) mean z_l - a m_i]``, whose expectation is ``Σ a s (1, h)(y - m)``, what has responses in it is a sum of its own. It is released once
(:mod:`~dplinked.privacy.quantities.right_residuals`, around a level line). The rest, ``F = Σ w a s (1, h)(m - level)``, and its slope ``J = Σ w a s m' (1, h)(1, x)'`` are released
at every step. They have no response and no link in them: w and a are those of the row's block. If rows do not all count the same, what a row counts, ω from 0 to 1, is a factor of its (1, h): ``ωs(ι, h)``
is no longer than ``s(ι, h)``, and ω is seen from the row's own cells, as h is. So all that follows holds as it stands.

Where missing cells are dropped, rows that lack a regressor count 0 in all of them, and a missing response counts as the curve's mean of the row that meets it, which is one more function of
that row's regressors: terms are as long as before. How many responses are there is released beside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, allocate, make_room_for_draw
from dplinked.privacy.quantities.instrument import row_parts, share_answered
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity, weight_change
from dplinked.privacy.spending import Spending
from dplinked.sums.clipped import CompleteRows, CurveSums
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

_EXPECTED, _STEEPNESS, _SLOPES = "expected equation", "slope totals", "slope × regressors"


_CLEAR = 1.0  # times its noise: how far a share of responses must lie below 1 for some to be taken as missing


@dataclass(frozen=True)
class Answered:
    """The share of rows with a response, among those with all regressors, as far as noise lets tell, and the number of complete rows with the deviation of its noise; all of them where cells are filled."""

    share: float = 1.0
    complete: float = math.inf
    noise: float = 0.0


def own_rows_sensitivity(norm: float, exposure: LinkageExposure) -> float:
    """Sensitivity of ``Σ w a g(x)`` over rows by themselves, ‖g‖ ≤ norm (N).

    Proof. The person changes one row's regressors, and with them its term, from one of norm at most wN to another: 2wN, w the largest weight, since a ≤ 1. That holds too if the term
    of a row with a missing regressor is 0. Where responses lie does not enter. If Q changes, so may a of further rows, each by what the weights of the responses that it meets in S change together
    (``a = 1-o - (1-γ)``), so in all by at most :func:`~dplinked.privacy.quantities.right_residuals.weight_change`, times N. The rows of an explicit Q, and of an exact join,
    have a = 1 always.
    """
    whole = 2.0 * max(weight for weight, _ in exposure.groups)
    return norm * (whole + (weight_change(exposure) if exposure.symmetric and not exposure.exact else 0.0))


def equation_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of the equation per unit of K and of the outcome's largest, if responses and means share one budget as well as they can."""
    return right_residuals_sensitivity(0.5, exposure) + own_rows_sensitivity(0.5, exposure)


def response_share(exposure: LinkageExposure) -> float:
    """The responses' share of what they and the last step's means get together: noise is least in proportion to sensitivities."""
    return right_residuals_sensitivity(0.5, exposure) / equation_sensitivity(exposure)


def plan_expected(
    entries: int, limit: float, reach: float, exposure: LinkageExposure, count: int, mu: float
) -> NoisePlan:
    """Plan the noise of F, the intercept's entry times ι: terms are at most ``limit·reach`` long."""
    largest = limit * reach
    sensitivity = own_rows_sensitivity(largest, exposure) + rounding_slack(count, largest, entries)
    part = Part(_EXPECTED, entries, sensitivity, 1.0, sensitivity / mu)
    return make_room_for_draw(NoisePlan((part,), mu), count * largest)


def plan_slope(
    entries: int,
    columns: int,
    limit: float,
    steepest: float,
    radius: float,
    exposure: LinkageExposure,
    count: int,
    mu: float,
) -> NoisePlan:
    """Plan the noise of J, the intercept's row times ι, its column apart from the others.

    A row's term of the column is ``s m'(ι, h)``, at most ``limit·steepest`` long; of the rest, that times x', whose norm is the product.
    """
    sizes = {_STEEPNESS: (entries * (entries > columns), limit * steepest)}
    sizes[_SLOPES] = entries * columns, limit * steepest * radius
    parts, largest = [], []
    for name, (some, size) in sizes.items():
        if some:
            sensitivity = own_rows_sensitivity(size, exposure) + rounding_slack(count, size, some)
            parts.append(Part(name, some, sensitivity, 1.0))
            largest.append(count * size)
    return make_room_for_draw(allocate(parts, mu), *largest)


def release_expected(private: CurveSums, spending: Spending, share: float) -> tuple[Floats, Floats]:
    """Release F in one Gaussian draw: the noisy vector, and the standard deviation of the noise in each entry (p each).

    Privacy
    -------
    μ-GDP for its share of the budget: terms, with the intercept's entry times ι, are at most K·reach long, whatever the rows.
    """
    entries, mu = private.vector.size, spending.take(share)
    plan = plan_expected(entries, private.limit, private.reach, private.exposure, private.rows, mu)
    weights = _weights(private)
    drawn = noise.add_gaussian(private.vector * weights, spending.note(plan).scales())
    return drawn / weights, plan.scales() / weights


def release_slope(private: CurveSums, spending: Spending, share: float) -> tuple[Floats, Floats]:
    """Release J in one Gaussian draw: the noisy matrix, and the standard deviation of the noise in each entry (p×p each).

    Privacy
    -------
    μ-GDP for its share of the budget: terms are at most K·D long, and those with x K·D·E, whatever the rows.
    """
    entries, first = private.vector.size, int(private.intercept_weight > 0.0)
    bounds = private.limit, private.steepest, private.radius
    mu = spending.take(share)
    plan = spending.note(plan_slope(entries, entries - first, *bounds, private.exposure, private.rows, mu))
    weighted = private.matrix * _weights(private)[:, None]
    values = np.concatenate([weighted[:, :first].ravel(), weighted[:, first:].ravel()])
    drawn, scales = noise.add_gaussian(values, plan.scales()), plan.scales()
    return _as_matrix(drawn, private), _as_matrix(scales, private)


def release_answered(private: CompleteRows, spending: Spending, share: float) -> Answered:
    """Release how many rows have all regressors, and how many of these a response, in one Gaussian draw.

    Privacy
    -------
    μ-GDP for its share of the budget: numbers of rows move as :func:`~dplinked.privacy.quantities.instrument.row_total_sensitivity` and
    :func:`~dplinked.privacy.quantities.residual_scale.residual_count_sensitivity` say, whatever weights of at most 1 rows have that stay with them.
    """
    parts = row_parts(private.exposure, private.rows)
    plan = spending.note(make_room_for_draw(allocate(parts, spending.take(share)), float(private.rows)))
    known, complete = noise.add_gaussian(np.array([private.known, private.complete]), plan.scales()).tolist()
    missing = math.hypot(*plan.scales().tolist()) * _CLEAR
    share = share_answered(known, complete) if known - complete > missing else 1.0
    return Answered(share, complete, plan.parts[1].scale)


def _weights(private: CurveSums) -> Floats:
    """ι for the intercept's entry, 1 for the others (p)."""
    weights = np.ones(private.vector.size)
    weights[: int(private.intercept_weight > 0.0)] = private.intercept_weight
    return weights


def _as_matrix(values: Floats, private: CurveSums) -> Floats:
    """Entries in the order of the draw as a matrix (p×p), without the weights of its rows."""
    entries, first = private.vector.size, int(private.intercept_weight > 0.0)
    column, rest = np.split(values, [entries * first])
    matrix = np.hstack([column.reshape(entries, first), rest.reshape(entries, entries - first)])
    return np.asarray(matrix / _weights(private)[:, None], np.float64)
