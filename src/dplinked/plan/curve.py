"""Expected errors of logistic and Poisson regressions, from public values and guesses: noise as it would be drawn, on examples of the rows as they are guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.curve import (
    NEARLY_ALL,
    WORTH_A_SEARCH,
    Instruments,
    choose_instruments,
    choose_slope_share,
    expected_slope,
    furthest_count,
    spread_of_outcome,
)
from dplinked.estimate.residuals import CLEAR, counted_sizes
from dplinked.linkage import LinkageExposure
from dplinked.plan.errors import ExpectedErrors, Setting, aim_at_middles
from dplinked.plan.rows import Guess, example_rows, numeric_columns
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities.curve import plan_expected, plan_slope, response_share
from dplinked.privacy.quantities.meat import SCALE_ALONE, choose_route
from dplinked.privacy.quantities.residual_scale import plan_residual_scale, residual_edges
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity
from dplinked.privacy.spending import ANSWERED, CLIPPING, CURVE_SLOPE, LEVEL_SLOPE, MEAT, NEARER, WEIGHTS
from dplinked.study.design import Design
from dplinked.study.family import Curve
from dplinked.sums.partners import PARTNERS

Floats = NDArray[np.float64]

_SOME = 256  # examples that tell how counts spread


@dataclass(frozen=True, eq=False)
class _Outcomes:
    """Examples of rows, whose outcomes follow a curve.

    Attributes
    ----------
    columns
        A 1 for the intercept, and the scaled columns (k×p).
    beta
        Coefficients on them (p): each column explains an equal part of what varies along the line, with a positive slope.
    line
        η of each example (k).
    """

    columns: Floats
    beta: Floats
    line: Floats


def curve_errors(setting: Setting, guess: Guess, count: int, epsilon: float) -> ExpectedErrors:
    """The equation's response part once, and the means and the slope of the last step."""
    study, exposure = setting.study, setting.exposure
    mu = privacy_mu(epsilon, study.delta) / study.unit.rows
    route = choose_route(len(setting.aimed.names), exposure, None, count, mu * math.sqrt(MEAT))
    paid = study.intervals and route is not SCALE_ALONE
    kept = (MEAT if paid else 0.0) + (ANSWERED if study.drops_missing else 0.0)
    kept += WEIGHTS if study.weights is not None else 0.0
    design, share = aim_at_middles(setting, count, mu, 1.0 - kept)
    outcomes, sized = _expect_outcomes(setting.aimed, design, guess), counted_sizes(design)
    total, squares = count * guess.subgroup * sized.mean, count * guess.subgroup * sized.square
    design, share = _clip_counts(design, outcomes, exposure, (count, squares), mu, share, counted=study.drops_missing)
    curve, first = design.curve, int(design.intercept)
    assert curve is not None
    instruments = choose_instruments(design, exposure, mu, squares)
    terms = _instrument_terms(instruments, outcomes.columns)
    contrast = guess.accuracy if exposure.symmetric else 1.0
    level = contrast * total * (terms.T @ outcomes.columns) / len(terms)
    last = choose_slope_share(expected_slope(level, curve), curve, instruments, exposure, count, mu)
    responses, means = _vector_noise(instruments, curve, exposure, count, mu, share - LEVEL_SLOPE - last)
    mean, slope = curve.mean_and_slope(outcomes.line)
    matrix = contrast * total * ((terms * slope[:, None]).T @ outcomes.columns) / len(terms)
    core = centred_core(matrix, design.intercept)
    gain = np.linalg.pinv(matrix)
    privacy = gain @ np.diag(responses**2 + means**2) @ gain.T
    spread = squares * gain @ _meat(terms, mean, curve, guess.accuracy) @ gain.T
    noise = _slope_noise(instruments, curve, exposure, count, mu, last)
    wrong = spread_of_outcome(curve, guess.accuracy, float(mean.mean()), float(mean.var()))[1]
    moved = gain @ np.concatenate([np.zeros(first), core @ outcomes.beta[first:]])
    return ExpectedErrors(design, spread * (1.0 - wrong), spread * wrong, privacy, moved, weak=_is_weak(core, noise))


def line_deviation(curve: Curve, mean: float, r_squared: float) -> float:
    """Deviation of η that a share of explained variance implies.

    Of events, the share of the variance of a latent outcome whose own errors are logistic, π²/3; of counts, that of counts whose rates are lognormal.
    """
    explained = r_squared / (1.0 - r_squared)
    return math.sqrt(math.log1p(explained / mean) if curve.counts else explained * math.pi**2 / 3.0)


def _expect_outcomes(aimed: Design, design: Design, guess: Guess) -> _Outcomes:
    """Examples of rows on the scale of `design`, spread as `aimed` says, with the guessed mean of the outcome."""
    curve, first = design.curve, int(design.intercept)
    assert curve is not None
    cells, exposed = example_rows(aimed, design)
    slopes = line_deviation(curve, guess.level, guess.r_squared) / (
        math.sqrt(max(1, len(design.columns))) * np.maximum(cells.std(axis=0), 1e-300)
    )
    line = cells @ slopes + exposed
    level = _level_of(curve, line, guess.level) if first else 0.0
    columns = np.column_stack([np.ones((len(cells), first)), cells])
    return _Outcomes(columns, np.concatenate([np.full(first, level), slopes]), line + level)


def _level_of(curve: Curve, line: Floats, mean: float) -> float:
    """The intercept beside which the outcome has a mean, before counts are clipped."""
    from scipy.optimize import brentq

    if curve.counts:
        return math.log(mean) - math.log(float(np.exp(line).mean()))
    return float(brentq(lambda level: float(curve.mean(line + level).mean()) - mean, -60.0, 60.0))


def _clip_counts(
    design: Design,
    outcomes: _Outcomes,
    exposure: LinkageExposure,
    counts: tuple[int, float],
    mu: float,
    share: float,
    *,
    counted: bool,
) -> tuple[Design, float]:
    """The design with counts clipped where a release would clip them, and what is left of the budget; complete rows may be `counted`.

    `counts` are the number of rows, and that of the squares of what they count.
    """
    from scipy.special import pdtr

    curve = design.curve
    assert curve is not None
    planned = plan_residual_scale(exposure, counts[0], mu * math.sqrt(CLIPPING), NEARLY_ALL, counted=counted)
    if curve.largest < WORTH_A_SEARCH or planned is None:
        return design, share
    edges, level = residual_edges(curve.largest / 2.0), planned[1]
    below = pdtr(np.floor(edges)[:, None], np.exp(np.minimum(outcomes.line[:_SOME], 700.0))).mean(axis=1)
    found = int(np.searchsorted(below, level))
    size = float(edges[min(found, edges.size - 1)])
    share -= CLIPPING
    rest = mu * math.sqrt(share - LEVEL_SLOPE - NEARER - CURVE_SLOPE[0])
    return design.with_largest(furthest_count(design, exposure, counts[1], rest, size, level)), share


def _instrument_terms(instruments: Instruments, columns: Floats) -> Floats:
    """``s(1, h)`` of each example (k×p)."""
    design, first = instruments.design, int(instruments.design.intercept)
    assert design.half_widths is not None
    cells, widths = columns[:, first:], np.array(design.half_widths)
    h = np.where(numeric_columns(design), np.clip(cells / widths, -1.0, 1.0), cells)
    length = np.sqrt(instruments.iota**2 + (h**2).sum(axis=1))
    shortened = np.minimum(1.0, instruments.limit / np.maximum(length, 1e-300))
    return np.asarray(np.column_stack([columns[:, :first], h]) * shortened[:, None], np.float64)


def _vector_noise(
    instruments: Instruments, curve: Curve, exposure: LinkageExposure, count: int, mu: float, share: float
) -> tuple[Floats, Floats]:
    """Standard deviation of the noise in the responses' part of the equation, and in the last step's means (p each). One step before the last is paid for."""
    p, share = len(instruments.design.names), share - NEARER
    weights = np.ones(p)
    weights[: int(instruments.design.intercept)] = instruments.iota
    for_responses = response_share(exposure)
    responses = right_residuals_sensitivity(instruments.limit * curve.largest / 2.0, exposure)
    level = curve.level(instruments.design.intercept)[1]
    reach = max(level, curve.largest - level)
    means = plan_expected(
        p, instruments.limit, reach, exposure, count, mu * math.sqrt(share * (1.0 - for_responses))
    ).scales()
    return responses / (mu * math.sqrt(share * for_responses)) / weights, means / weights


def _slope_noise(
    instruments: Instruments, curve: Curve, exposure: LinkageExposure, count: int, mu: float, share: float
) -> float:
    """Standard deviation of the noise in the last step's slope, in an entry with a regressor."""
    design = instruments.design
    plan = plan_slope(
        len(design.names), len(design.columns), instruments.limit, curve.steepest, design.radius, exposure, count,
        mu * math.sqrt(share),
    )  # fmt: skip
    return plan.parts[-1].scale


def _is_weak(core: Floats, noise: float) -> bool:
    """Whether the weakest direction of the slope is not expected to stand clear of its noise."""
    if not core.size:
        return False
    return bool(np.linalg.svd(core, compute_uv=False)[-1] < CLEAR * noise * math.sqrt(2.0 * len(core)))


def _meat(terms: Floats, mean: Floats, curve: Curve, accuracy: float) -> Floats:
    """Variance of one row's term in the equation (p×p), in blocks of many rows.

    A row has its own outcome with probability γ, around its own mean, and else any other's. What partners tell is taken off, ``(1-γ)`` times the mean of c of them.
    """
    own = mean if curve.counts else mean * (1.0 - mean)
    middle, wrong = float(mean.mean()), 1.0 - accuracy
    others = float(own.mean() + mean.var())
    varies = accuracy * own + wrong * others + accuracy * wrong * (middle - mean) ** 2 + wrong**2 * others / PARTNERS
    return np.asarray((terms * varies[:, None]).T @ terms / len(terms), np.float64)
