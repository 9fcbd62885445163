"""The equation of each stratum and how many rows or clusters it has, from which follows what contributions are taken around: sensitivities with their proofs, plan, draw and choice of centres."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.right_residuals import pair_weights, right_residuals_sensitivity
from dplinked.privacy.spending import STRATA, Spending
from dplinked.sums.clipped import StratumTotals
from dplinked.sums.rounding import rounding_slack
from dplinked.sums.types import Centres

Floats = NDArray[np.float64]

STRATUM_TOTALS = "totals of strata"
FOR_MEANS = 4.0  # deviations that residuals are clipped to where means of strata are looked for
_LEAST_WITHIN = 0.1  # share of the squares that is taken to be left within strata at least
_CLEAR = 3.0  # times its noise: the least that a stratum's number is taken to be known at
_TELLING = 2.0  # times the expected square of its noise: the least square of a total that is more than noise


def stratum_totals_sensitivity(limit: float, exposure: LinkageExposure, *, own: bool = False) -> float:
    """Sensitivity of ``(S_h)``, the equations of all strata, terms at most `limit` long (K); if terms see their `own` responses alone, the totals of these.

    Proof. Row i counts in the stratum of its own cell, a function of row i's regressors' side. With e_i the unit vector of that stratum, all of it is ``Σ c_il e_i ⊗ g_il``: an equation whose terms are as long
    as g_il and functions of row i's own regressors and response l, which is all that :func:`~dplinked.privacy.quantities.right_residuals.right_residuals_sensitivity` uses. A person's response may be on a row of another stratum, and be met in others.
    Terms of one stage see no other row: row j's changes, and that of each row which holds the person's response or is displaced, by at most 2K each.
    """
    if own:
        return 2.0 * limit * (1.0 if exposure.exact else 1.0 + exposure.carriers + exposure.displaced)
    return right_residuals_sensitivity(limit, exposure)


def stratum_numbers_sensitivity(*, clustered: bool) -> float:
    """Sensitivity of the numbers of rows, or of clusters, of all strata.

    Proof. Row j may leave one stratum for another: √2. A cluster is in the first of its rows' strata. Row j, of the stratum r and then s, may leave a cluster whose other rows are in R and later strata, and enter one
    whose rows are in R' and later ones. The first goes from r to R if r < R, the second from R' to s if s < R', and else they stay where they are; so numbers move by `e_R - e_r + e_s - e_R'`. If R = s, then r < s < R',
    and if r = R', then s < r < R: of the two that are added and the two that are taken away only one pair can be the same, √6. Clusters that begin or end take away one of these, and a row that stays in its cluster moves
    numbers by √2.
    """
    return math.sqrt(6.0 if clustered else 2.0)


def plan_stratum_totals(private: StratumTotals, mu: float) -> NoisePlan:
    """Plan the noise of the equations of all strata, the intercept's entries times ι, and of their numbers, which get half of μ² each."""
    (strata, entries), exposure, count = private.totals.shape, private.exposure, private.rows
    largest = 2.0 * private.limit * (1.0 if private.own else pair_weights(exposure)[0])
    totals = stratum_totals_sensitivity(private.limit, exposure, own=private.own)
    totals += rounding_slack(count, largest, strata * entries)
    numbers = stratum_numbers_sensitivity(clustered=private.clustered)
    half = mu * math.sqrt(0.5)
    parts = (
        Part(STRATUM_TOTALS, strata * entries, totals, 1.0, totals / half),
        Part("numbers of strata", strata, numbers, 1.0, numbers / half),
    )
    return make_room_for_draw(NoisePlan(parts, mu), count * largest, float(count))


@dataclass(frozen=True, eq=False)
class ReleasedStrata:
    """What was released of strata.

    Attributes
    ----------
    centres
        What contributions, times their weights, are taken around.
    between
        Squares that this takes off them (p×p), about, and on average.
    blurred
        Squares that noise in the centres adds to them, on average (p).
    """

    centres: Centres
    between: Floats
    blurred: Floats

    def within(self, squares: Floats) -> tuple[Floats, float]:
        """The squares around the centres (p×p) without what noise in these adds, and which share of those around zero they are."""
        left = squares - np.diag(self.blurred)
        own, whole = float(np.trace(left)), float(np.trace(left)) + max(0.0, float(np.trace(self.between)))
        return left, float(np.clip(own / whole, _LEAST_WITHIN, 1.0)) if whole > 0.0 else 1.0


def release_strata(private: StratumTotals, weights: Floats, spending: Spending) -> ReleasedStrata:
    """Release the equations and numbers of strata in one Gaussian draw, and choose centres.

    Privacy
    -------
    μ-GDP for its share of the budget: neighbours are at most :func:`stratum_totals_sensitivity` and :func:`stratum_numbers_sensitivity` apart, which have half of μ² each.
    """
    strata, entries = private.totals.shape
    scaling = np.ones(entries)
    scaling[: int(private.intercept_weight > 0.0)] = private.intercept_weight
    mu = spending.take(STRATA)
    plan = plan_stratum_totals(private, mu)
    values = np.concatenate([(private.totals * scaling).ravel(), private.numbers])
    drawn = noise.add_gaussian(values, spending.note(plan).scales())
    totals = drawn[: strata * entries].reshape(strata, entries) * (weights / scaling)
    scale, blur = plan.parts[1].scale, plan.parts[0].scale * weights / scaling
    longest = (
        float(max(weights / scaling)) * private.limit * (1.0 if private.own else pair_weights(private.exposure)[0])
    )
    return choose_centres(totals, drawn[strata * entries :], blur, scale, math.inf if private.clustered else longest)


def choose_centres(totals: Floats, numbers: Floats, blur: Floats, scale: float, longest: float) -> ReleasedStrata:
    """Centres from noisy weighted totals (G×p) with noise `blur` in their entries (p), and noisy numbers with noise `scale` (G); no contribution is longer than `longest`.

    Whatever centres are, squares around them are at least those around the mean, on average over noise. A stratum of few rows or clusters, and one whose total does not stand out of its noise, keeps its
    squares around zero, which are at least those around the mean too, and need no factor ``n/(n-1)``.
    """
    known = (numbers > np.maximum(2.0, _CLEAR * scale)) & ((totals**2).sum(axis=1) > _TELLING * (blur**2).sum())
    number = np.where(known, numbers, 2.0)
    middles = np.where(known[:, None], totals / number[:, None], 0.0)
    middles *= np.minimum(1.0, longest / np.maximum(np.linalg.norm(middles, axis=1), 1e-300))[:, None]
    factors = np.where(known, np.sqrt(number / (number - 1.0)), 1.0)
    between = (middles * number[:, None]).T @ middles
    blurred = blur**2 * float((known * factors**2 / number).sum())
    return ReleasedStrata(Centres(middles, factors), between - np.diag(blurred), blurred)
