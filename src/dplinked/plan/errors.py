"""Expected errors of each method's coefficients, from public values and guesses: noise as it would be drawn, on rows as they are guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.estimate.intervals import noise_covariance
from dplinked.estimate.paper import is_usable
from dplinked.estimate.residuals import (
    Residuals,
    choose_width,
    counted_sizes,
    expect_residuals,
    instrument_sizes,
    is_worth_a_look,
    level_of_right_links,
    widen_instrument,
)
from dplinked.estimate.theorems import descent_variance, sums_variance
from dplinked.estimate.variance import repeated_rows
from dplinked.linkage import EXACT, LinkageExposure
from dplinked.plan.expected import better_instrument, first_share
from dplinked.plan.rows import ExpectedRows, Guess, cut_spread, expect_rows
from dplinked.privacy.calibration import noise_multiplier, privacy_mu, round_down
from dplinked.privacy.quantities.contribution_sizes import enough_clusters, is_hopeless
from dplinked.privacy.quantities.descent import descent_sensitivity
from dplinked.privacy.quantities.instrument import (
    EntryNoise,
    ReleasedSums,
    entry_noise,
    guess_length,
    is_symmetric,
    plan_sums,
)
from dplinked.privacy.quantities.paper import paper_constants, paper_ngd_sensitivity, paper_ssp_sensitivity
from dplinked.privacy.quantities.ranges import plan_ranges
from dplinked.privacy.quantities.residual_scale import plan_residual_scale
from dplinked.privacy.quantities.right_residuals import right_residuals_sensitivity
from dplinked.privacy.spending import (
    CLIPPING,
    CURVATURE,
    GOODNESS,
    GRAM,
    MEAT,
    RANGES,
    SIDES,
    STRATA,
    TOTALS_MEAT,
    TOTALS_SIZES,
    VARIANCE,
    WEIGHTS,
)
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.instrument import MIDDLE, public_steps
from dplinked.study.study import Study
from dplinked.sums.partners import unlinking_terms

Floats = NDArray[np.float64]


class RefusedError(StudyError):
    """A budget and number of rows at which a release would be refused; others of the same plan may do."""


_CHANGE = 1e-4  # relative change of the accuracy by which its effect is found
_EDGE = 1.1  # by how much a quantile of residuals, which is one of the grid's edges, exceeds the true one
_SHORTEST = 0.02  # length of slopes as the first stage tells it at least, whose noise is in it
_SHARED = 0.5  # part of the first stage that is about the regressors alone
_AFTER_ONE_STEP = 0.1  # share of the squared way that the second stage's first step leaves


@dataclass(frozen=True)
class Setting:
    """A study as planning needs it: its design, the one without typical ranges, what one person can change about the links, and how many outcomes it shares its budget with, itself among them."""

    study: Study
    aimed: Design
    plain: Design
    exposure: LinkageExposure
    outcomes: int = 1


@dataclass(frozen=True, eq=False)
class ExpectedErrors:
    """What moves the coefficients of a design.

    Attributes
    ----------
    sampling, linkage, privacy
        Covariances on the design's columns (p×p).
    moved
        What a relative error of the accuracy does to the coefficients, per unit of it (p).
    largest
        The radius within which Algorithm 1 keeps its coefficients: noise cannot make a standard error larger.
    weak
        Whether the noisy matrix is expected within its noise.
    left
        Share of the way from its start that a descent leaves in its slowest direction.
    """

    design: Design
    sampling: Floats
    linkage: Floats
    privacy: Floats
    moved: Floats
    largest: float = math.inf
    weak: bool = False
    left: float = 0.0

    def in_user_units(self, accuracy_variance: float) -> tuple[Floats, Floats, Floats, Floats]:
        """Standard errors by sampling, linkage and privacy, and by the accuracy's own error, a part of linkage (p each)."""
        to_user, _ = self.design.scaling.to_user()
        parts = (self.sampling, self.linkage, self.privacy)
        sampling, linkage, privacy = (np.diag(to_user @ part @ to_user.T) for part in parts)
        accuracy = accuracy_variance * (to_user @ self.moved) ** 2
        linkage = linkage + accuracy
        privacy = np.minimum(privacy, np.maximum(self.largest**2 - sampling - linkage, 0.0))
        sampling, linkage, privacy, accuracy = map(np.sqrt, (sampling, linkage, privacy, accuracy))
        return sampling, linkage, privacy, accuracy


# --- tightly calibrated --------------------------------------------------------------------------------


def tight_sums(setting: Setting, guess: Guess, count: int, epsilon: float) -> ExpectedErrors:
    """Sufficient statistics of the bounded instrument, or of the symmetric one where a release would choose it; and the second stage where it pays."""
    study, exposure = setting.study, setting.exposure
    mu = privacy_mu(epsilon, study.delta) / study.unit.rows / math.sqrt(setting.outcomes)
    kept = VARIANCE + STRATA * (study.strata is not None)
    design, share = aim_at_middles(setting, count, mu, 1.0 - (kept if study.intervals else 0.0))
    if design.half_widths is not None:
        design = better_instrument(design, setting.plain, exposure, count, mu * math.sqrt(share))
    rows = expect_rows(setting.aimed, design, guess)

    def solve(slopes: float | None) -> ExpectedErrors:
        plan = plan_sums(design, exposure, count, mu * math.sqrt(share), intervals=study.intervals, slopes=slopes)
        noise = entry_noise(plan)
        vector = np.full(rows.beta.size, noise.response)
        vector[: int(design.intercept)] = noise.response_total
        return _solve(design, exposure, rows, guess, count, noise, vector, rows.beta)

    one = solve(None)
    two = _second_stage(setting, guess, design, one, count, mu, share)
    if two is not None:  # a first stage tells how long slopes are
        length, usual = (
            np.linalg.norm(rows.beta[int(design.intercept) :]),
            guess_length(len(design.columns), study.intervals),
        )
        one = min(one, solve(min(max(float(length), _SHORTEST), usual)), key=_mean_error)
    if study.needs_second_stage:
        if two is None:
            raise RefusedError(
                f"At epsilon = {epsilon:g} with {count:,} rows a release would refuse weights, conditions, clusters and goodness, for want of a second stage. Plan with more of either."
            )
        return _repeated(setting, count, mu, two)
    return _repeated(setting, count, mu, one if two is None or _mean_error(one) <= _mean_error(two) else two)


def _repeated(setting: Setting, count: int, mu: float, errors: ExpectedErrors) -> ExpectedErrors:
    """The same errors, if a person's rows may be alike; where a person's rows are squared together, it is not known how much they are."""
    study, persons, p = setting.study, setting.exposure.persons, len(setting.aimed.names)
    drowned = persons > 1 and is_hopeless(p, "person", setting.exposure, count / persons, mu * math.sqrt(TOTALS_MEAT))
    factor = repeated_rows(study.linkage, study.unit, "row" if drowned else "person")
    return replace(errors, sampling=errors.sampling * factor, linkage=errors.linkage * factor)


def wanted_clusters(setting: Setting, epsilon: float) -> int:
    """About how many clusters it takes for a release to tell how much their rows have in common."""
    study = setting.study
    mu = privacy_mu(epsilon, study.delta) / study.unit.rows / math.sqrt(setting.outcomes)
    return enough_clusters(len(setting.aimed.names), setting.exposure, mu * math.sqrt(TOTALS_MEAT))


def aim_at_middles(setting: Setting, count: int, mu: float, share: float) -> tuple[Design, float]:
    """The design, aimed at privately found ranges where a release would look for them, and what that leaves of a share of the budget."""
    design = setting.aimed
    numeric = [group.start for group in design.groups if group.numeric]
    if not setting.study.searches_ranges or plan_ranges(len(numeric), count, mu * math.sqrt(RANGES)) is None:
        return design, share
    return design.centred({k: _middle(design.columns[k].interval) for k in numeric}), share - RANGES / setting.outcomes


def _middle(interval: tuple[float, float]) -> tuple[float, float]:
    """Where private ranges would be found, if rows fill the bounds."""
    low, high = interval
    out = (1.0 - MIDDLE) / 2.0 * (high - low)
    return low + out, high - out


def _mean_error(errors: ExpectedErrors) -> float:
    """Mean logarithm of the slopes' expected errors."""
    total = errors.sampling + errors.linkage + errors.privacy
    return float(np.log(np.diag(total)[int(errors.design.intercept) :]).mean())


def _second_stage(
    setting: Setting, guess: Guess, first: Design, one: ExpectedErrors, count: int, mu: float, share: float
) -> ExpectedErrors | None:
    """Errors of the clipped residual equation around the first stage's coefficients; None where a release would not try it."""
    study, exposure, accuracy = setting.study, setting.exposure, guess.accuracy
    if (
        study.ridge is not None
        or not first.columns
        or (not exposure.symmetric and unlinking_terms(exposure.accuracy_min) is None)
    ):
        return None
    clipping, level, dropped = mu * math.sqrt(CLIPPING), level_of_right_links(accuracy), study.drops_missing
    if plan_residual_scale(exposure, count, clipping, level, counted=dropped) is None:
        return None
    start = int(first.intercept)
    plain = expect_rows(setting.aimed, first, guess)
    sizes, explained = np.sqrt(plain.spread[start:]), float(plain.beta[start:] ** 2 @ plain.spread[start:])
    begin = first_share(first, exposure, count, mu)
    half = right_residuals_sensitivity(1.0, exposure) / (mu * math.sqrt(0.5))
    sized = counted_sizes(first)
    total, squares = count * guess.subgroup * sized.mean, count * guess.subgroup * sized.square
    wide = widen_instrument(first, sizes, choose_width(half, squares))
    left = share + (VARIANCE - MEAT if study.intervals else 0.0) - begin - 2.0 * CLIPPING - GRAM[0]
    left -= GOODNESS if study.goodness else 0.0
    left -= WEIGHTS / setting.outcomes if study.weights is not None else 0.0
    left += (GRAM[0] + begin * _SHARED) * (1.0 - 1.0 / setting.outcomes)  # what outcomes share is paid for once
    together = study.cluster is not None or (study.unit.rows > 1 and study.intervals)
    left -= TOTALS_SIZES + TOTALS_MEAT - MEAT if together else 0.0
    deviation, ratios = math.sqrt(plain.sampling) * _EDGE, instrument_sizes(wide, sizes)
    largest = 4.0 * first.response.peak

    def clip(share: float, errors: str) -> tuple[Residuals, float]:
        unit = right_residuals_sensitivity(1.0, exposure) / (mu * math.sqrt(share))
        known = deviation, explained, ratios, first.intercept, unit, squares, largest, errors
        return expect_residuals(*known, counted=sized), unit

    residuals, unit = clip(left, study.errors)
    if study.errors == "any" and exposure.levels == 1 and setting.outcomes == 1 and left > SIDES:
        close, after = clip(left - SIDES, "alike")  # as most residuals are
        if is_worth_a_look(residuals, close, accuracy, squares, (unit, after)):
            residuals, unit = close, after
    contrast = 1.0 if not exposure.symmetric else accuracy
    h = np.concatenate([np.ones(start), ratios])
    gain = np.diag(1.0 / (contrast * total * residuals.kept[2] * h * np.concatenate([np.ones(start), sizes])))
    drawn = np.full(h.size, unit * residuals.limit)
    drawn[:start] /= residuals.intercept_weight or 1.0
    curvature = plan_sums(
        wide, EXACT, count, mu * math.sqrt(GRAM[0]), matrix_only=True, dropped=exposure if dropped else None
    )
    to_go = float(np.trace(one.privacy[start:, start:])) * (left / begin + 1.0) * _AFTER_ONE_STEP
    bent = (contrast * residuals.kept[2] * entry_noise(curvature).core) ** 2 * to_go
    privacy = gain @ np.diag(drawn**2 + bent) @ gain
    spread = squares * gain @ np.diag((h * residuals.spread(accuracy)) ** 2) @ gain
    wrong = residuals.wrong_share(accuracy)
    mixing = min(1.0, accuracy * residuals.wrong / (contrast * residuals.kept[2]))
    covariances = (_shift(spread * (1.0 - wrong), plain), _shift(spread * wrong, plain), _shift(privacy, plain))
    return ExpectedErrors(first, *covariances, mixing * one.moved)


def _shift(covariance: Floats, rows: ExpectedRows) -> Floats:
    """The covariance of coefficients whose slopes were found about the means of the columns."""
    if rows.mean[0] != 1.0 or not rows.mean[1:].any():
        return covariance
    to = np.eye(rows.mean.size)
    to[0, 1:] = -rows.mean[1:]
    return np.asarray(to @ covariance @ to.T, np.float64)


def tight_descent(setting: Setting, guess: Guess, count: int, epsilon: float) -> ExpectedErrors:
    """Mean gradients around the mean iterate, solved by the curvature that is released beside them.

    The mean of T noisy gradients has noise ``Δ/μ``, whatever T. The curvature's noise counts for what the mean iterate
    has left to go: ``(I-A)^t (β-β⁰)``, averaged over the steps.
    """
    study, exposure, descent = setting.study, setting.exposure, setting.study.descent or Descent()
    design = replace(setting.aimed, half_widths=None)
    rows, mu = expect_rows(setting.aimed, design, guess), privacy_mu(epsilon, study.delta) / study.unit.rows
    own = mu * math.sqrt(CURVATURE)
    curvature = plan_sums(design, exposure, count, own, matrix_only=True, intervals=study.intervals)
    gradients = mu * math.sqrt(1.0 - CURVATURE - (VARIANCE if study.intervals else 0.0))
    vector = np.full(rows.beta.size, descent_sensitivity(design, exposure, descent) / gradients)
    step = public_steps(setting.aimed, guess.accuracy, descent)[:, None] * rows.matrix(guess.accuracy)
    whole = _steps_done(step, descent.iterations) @ (rows.beta - descent.first_iterate(design.scaling))
    to_go = _solved(step, whole) / descent.iterations
    return _solve(design, exposure, rows, guess, count, entry_noise(curvature), vector, to_go)


@dataclass(frozen=True, eq=False)
class _Noise:
    """Standard deviations of the noise in H (p×p) and b (p), taken around the coefficients `centre` (p)."""

    matrix_scale: Floats
    vector_scale: Floats
    symmetric: bool
    centre: Floats
    basis: Floats | None = None


def _solve(
    design: Design,
    exposure: LinkageExposure,
    rows: ExpectedRows,
    guess: Guess,
    count: int,
    noise: EntryNoise,
    vector: Floats,
    to_go: Floats,
) -> ExpectedErrors:
    """Errors of ``β = H⁻¹b`` to first order: noise of b (`vector`, p), and of H times what is left `to_go` (p)."""
    drawn = _Noise(_matrix_scale(noise, design), vector, is_symmetric(design, exposure), rows.beta - to_go)
    matrix = rows.matrix(guess.accuracy)
    gain = np.linalg.inv(count * matrix)
    spread = count * gain @ rows.instrument_gram() @ gain.T
    privacy = gain @ noise_covariance(drawn, rows.beta) @ gain.T
    moved = _effect_of_accuracy(lambda assumed: _solved(rows.matrix(assumed), matrix @ rows.beta), guess.accuracy)
    return ExpectedErrors(design, spread * rows.sampling, spread * rows.linkage, privacy, moved)


def _matrix_scale(noise: EntryNoise, design: Design) -> Floats:
    """Standard deviation of the noise in each entry of H (p×p)."""
    first, size = int(design.intercept), len(design.names)
    scale = np.full((size, size), noise.core)
    np.fill_diagonal(scale, noise.diagonal)
    scale[:first], scale[:, :first] = noise.row, noise.column
    scale[:first, :first] = 0.0
    return scale


# --- as published --------------------------------------------------------------------------------------


def paper_sums(setting: Setting, guess: Guess, count: int, epsilon: float) -> ExpectedErrors:
    """Algorithm 2 of [LPK24], by Theorems 4.1 and 4.7."""
    design, rows, gram = _paper_rows(setting, guess, count)
    c, R = paper_constants(setting.study, design)
    multiplier = noise_multiplier(epsilon, setting.study.delta, "classic")
    omega = paper_ssp_sensitivity(c, R, setting.exposure) * multiplier
    bread = np.asarray(np.linalg.inv(gram), np.float64)
    covariance = bread * (rows.sampling + rows.linkage)  # W'Σ_zW is W'W times the variance of a response
    privacy = sums_variance(gram, covariance, rows.beta, omega) - covariance
    moved = _effect_of_accuracy(
        lambda assumed: _solved(rows.gram(assumed), rows.cross(assumed, guess.accuracy)), guess.accuracy
    )
    scales = np.full_like(gram, omega)
    expected = ReleasedSums(gram, gram @ rows.beta, scales, scales[0], True, np.zeros_like(rows.beta))
    weak = not is_usable(expected)
    return ExpectedErrors(design, bread * rows.sampling, bread * rows.linkage, privacy, moved, weak=weak)


def paper_descent(setting: Setting, guess: Guess, count: int, epsilon: float) -> ExpectedErrors:
    """Algorithm 1 of [LPK24], by Theorems 4.1 and 4.6."""
    design, rows, gram = _paper_rows(setting, guess, count)
    descent = (setting.study.descent or Descent()).settled(rows.beta.size, count)
    assert descent.step is not None  # a study without it is refused
    eta, T, start = descent.step, descent.iterations, descent.first_iterate(design.scaling)
    c, R = paper_constants(setting.study, design)
    sensitivity = paper_ngd_sensitivity(c, R, descent.radius, setting.exposure)
    omega = sensitivity * noise_multiplier(epsilon, setting.study.delta, "paper-zcdp") * math.sqrt(T) * eta / count

    def iterate(assumed: float) -> Floats:
        settled = _solved(rows.gram(assumed), rows.cross(assumed, guess.accuracy))
        return np.asarray(start + _steps_done(eta * rows.gram(assumed), T) @ (settled - start), np.float64)

    left = float(1.0 - np.linalg.eigvalsh(_steps_done(eta * gram / count, T))[0])
    meat = descent_variance(gram, gram, count, eta, T, 0.0)
    privacy = descent_variance(gram, 0.0 * gram, count, eta, T, omega)
    moved = _effect_of_accuracy(iterate, guess.accuracy)
    return ExpectedErrors(
        design, meat * rows.sampling, meat * rows.linkage, privacy, moved, largest=descent.radius, left=left
    )


def _paper_rows(setting: Setting, guess: Guess, count: int) -> tuple[Design, ExpectedRows, Floats]:
    """The design in the user's units, its rows within the paper's c and R, and the expected W'W."""
    design = setting.aimed.unscaled()
    c, R = paper_constants(setting.study, design)
    level, square = cut_spread(guess.level, guess.deviation**2, R)
    rows = expect_rows(setting.aimed, design, replace(guess, level=level, deviation=math.sqrt(square)), c)
    return design, rows, count * rows.gram(guess.accuracy)


def _steps_done(step: Floats, iterations: int) -> Floats:
    """``I - (I-A)^T``: the share of the way that T steps go, A what one goes."""
    whole, longest = np.eye(len(step)), float(np.abs(np.linalg.eigvals(step)).max())
    if not longest < 2.0:
        raise StudyError(
            "The descent's steps are too long for rows as they are expected: every step would lead further away. Declare a step at most "
            f"{round_down(1.0 / longest)} times as long (or a curvature as many times larger), or typical ranges, if rows do not fill their bounds."
        )
    return np.asarray(whole - np.linalg.matrix_power(whole - step, iterations), np.float64)


def _solved(matrix: Floats, vector: Floats) -> Floats:
    return np.asarray(np.linalg.solve(matrix, vector), np.float64)


def _effect_of_accuracy(estimate: Callable[[float], Floats], accuracy: float) -> Floats:
    """``γ ∂β/∂γ`` where the estimate takes the accuracy to be γ (p)."""
    change = estimate(accuracy * (1.0 + _CHANGE)) - estimate(accuracy * (1.0 - _CHANGE))
    return np.asarray(change / (2.0 * _CHANGE), np.float64)


EXPECTED = {
    ("ssp", "tight"): tight_sums,
    ("ngd", "tight"): tight_descent,
    ("ssp", "paper"): paper_sums,
    ("ngd", "paper"): paper_descent,
}
