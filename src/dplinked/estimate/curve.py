"""Events and counts: how far instruments are shortened, where steps start and how long they may be, and what they tell together.

Nothing here sees data. All of it follows from public and released values, so a poor guess costs precision, never privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.residuals import CLEAR, INTERCEPT_WEIGHT, instrument_sizes
from dplinked.linkage import LinkageExposure
from dplinked.privacy.quantities.curve import equation_sensitivity, plan_slope
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.spending import CURVE_SLOPE, LEVEL_SLOPE, MEAT, NEARER
from dplinked.study.design import Design
from dplinked.study.family import Curve
from dplinked.study.instrument import column_spread

Floats = NDArray[np.float64]

NEARLY_ALL = 0.99  # of the counts lie below the one that is looked for, or fewer where noise asks for it
_LEAST_LEVEL = 0.6  # of a search that is worth it
WORTH_A_SEARCH = 4  # largest counts from which on a smaller one is looked for
_BEYOND = 0.995  # how far counts are clipped beyond it, as a normal deviate relates to that of the level
_LITTLE = 0.35  # noise, relative to the sampling error, up to which counts are clipped further out
_DEVIATIONS = 4.5  # of counts, as which the one that nearly all lie below is taken
_WIDE = 2.0  # times its root mean square: how far a column's instrument follows it
_EXAMPLES = np.array([NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)])  # where ‖h‖² may lie
_TRIED = np.geomspace(0.5, 2.0, 30)  # limits, relative to the root mean square of ‖(ι, h)‖
_GUESS = 0.3  # deviation of an outcome, relative to its largest
_LONGEST = 1.5  # step, in deviations of η
_WIDEST = 3.0  # deviation of η that a start may have
_BEND = (
    1.0 / 6.0
)  # of a curve's slope, relative to what it rises by, along a way of one deviation of η: what the mean of both ends' slopes leaves out
_HERMITE = np.polynomial.hermite_e.hermegauss(41)


@dataclass(frozen=True, eq=False)
class Instruments:
    """The instruments of a curve's equation, public.

    Attributes
    ----------
    design
        The design that has them.
    sizes, ratios
        Root mean square of each column, and of each instrument (d).
    iota, limit
        What the intercept's 1 counts for, and the length of instruments.
    kept
        The root mean square of what shortening leaves of the intercept's 1, and of instruments.
    """

    design: Design
    sizes: Floats
    ratios: Floats
    iota: float
    limit: float
    kept: tuple[float, float]


def choose_instruments(design: Design, exposure: LinkageExposure, mu: float, count: float) -> Instruments:
    """Choose the instruments, and the length that they are shortened to, for a budget of μ and a number of rows (squares of what they count and of their weights)."""
    sizes = np.sqrt(column_spread(design))
    wide = design.with_instrument((_WIDE * sizes).tolist())
    ratios = instrument_sizes(wide, sizes)
    typical = math.sqrt(float((ratios**2).mean())) if ratios.size else 1.0
    iota = INTERCEPT_WEIGHT * typical * design.intercept
    share = 1.0 - MEAT - LEVEL_SLOPE - NEARER - CURVE_SLOPE[0]
    limit, kept = choose_limit(ratios, iota, equation_sensitivity(exposure) / (mu * math.sqrt(share)), count)
    return Instruments(wide, sizes, ratios, iota, limit, kept)


def choose_limit(ratios: Floats, iota: float, noise: float, count: float) -> tuple[float, tuple[float, float]]:
    """K, the length that instruments are shortened to, and the root mean square of what that leaves of the intercept's 1, and of them.

    The shorter, the less noise, and the less the rows far out tell. Norms of instruments are taken to spread as those of independent normal columns do.

    Parameters
    ----------
    ratios
        Root mean square of each instrument (d).
    iota
        What the intercept's 1 counts for.
    noise
        Standard deviation of the equation's noise per unit of K, relative to the outcome's largest.
    count
        Number of rows, squares of their weights.
    """
    square, spread = float((ratios**2).sum()), math.sqrt(2.0 * float((ratios**4).sum()))
    squares = np.clip(square + spread * _EXAMPLES, 0.05 * square, max(1.0, square, float(ratios.size)))
    typical = math.sqrt(iota**2 + square) if square or iota else 1.0

    def judge(limit: float) -> tuple[float, tuple[float, float]]:
        shares = np.minimum(1.0, limit / np.sqrt(iota**2 + squares)) if typical else np.ones(1)
        signal, sampling = float((shares * squares).mean()), float((shares**2 * squares).mean())
        d = max(1, ratios.size)
        error = (sampling / d * count * _GUESS**2 + (noise * limit) ** 2) / max(signal / d, 1e-300) ** 2
        return error, (math.sqrt(float((shares**2).mean())), math.sqrt(sampling / square))

    if not square:
        return max(iota, 1.0), (1.0, 1.0)
    limit = min((typical * tried for tried in _TRIED.tolist()), key=lambda one: judge(one)[0])
    return limit, judge(limit)[1]


def furthest_count(
    design: Design, exposure: LinkageExposure, count: float, mu: float, size: float, level: float
) -> int:
    """Where counts are clipped, if a share `level` of them is found to lie below `size`, and the equation gets a budget of μ.

    Counts that vary more than by Poisson's law bend the slopes where they are clipped, so that they are clipped as far out as costs little: until noise is no longer small
    beside the sampling error.
    """
    assert design.curve is not None
    length = math.sqrt(len(design.columns) + INTERCEPT_WEIGHT**2)
    room = _LITTLE * math.sqrt(count) * mu / (_DEVIATIONS * equation_sensitivity(exposure) * length)
    level = max(level, _LEAST_LEVEL)
    further = max(1.0, NormalDist().inv_cdf(_BEYOND) / NormalDist().inv_cdf(level), room)
    return math.ceil(min(design.curve.largest, size * further))


@dataclass(frozen=True, eq=False)
class Told:
    """What responses tell: their part of the equation, and the standard deviation of its noise (p each).

    `missing` is the share of responses that are missing and count the same everywhere, which makes `filled` (p) if all are missing. It is 0 where they count as the means that the
    equation expects.
    """

    vector: Floats
    scale: Floats
    missing: float = 0.0
    filled: Floats | float = 0.0

    def beside(self, means: Means) -> Floats:
        """The same with missing responses as these means, as if they were missing equally often everywhere (p)."""
        return self.vector + self.missing * (means.vector - self.filled)

    def joined(self, before: Told) -> Told:
        """What both tell, by their precision, if no responses are missing."""
        weight = self.scale**2 / (self.scale**2 + before.scale**2)
        vector = self.vector + weight * (before.vector - self.vector)
        return replace(self, vector=vector, scale=self.scale * np.sqrt(1.0 - weight))


@dataclass(frozen=True, eq=False)
class Means:
    """The expected equation and its slope at released coefficients, as all releases so far tell them.

    Attributes
    ----------
    centre
        The coefficients (p).
    vector, variance
        The expected equation, and the variance of its error (p each).
    slope, slope_scale
        The slope, and the standard deviation of its noise in each entry (p×p each).
    """

    centre: Floats
    vector: Floats
    variance: Floats
    slope: Floats
    slope_scale: Floats

    def joined(self, before: Means | None, sizes: Floats) -> Means:
        """These means, made more precise by those from `before`: their change is the way times the mean of both slopes, but for what a curve bends on that way.

        `sizes` are those of the columns (p), 1 for the intercept.
        """
        if before is None:
            return self
        way = self.centre - before.centre
        rise = (before.slope + self.slope) / 2.0 @ way
        bend = rise * _BEND * float(np.linalg.norm(way * sizes)) ** 2
        carried = before.variance + (before.slope_scale**2 + self.slope_scale**2) / 4.0 @ way**2 + bend**2
        weight = self.variance / (self.variance + carried)
        vector = self.vector + weight * (before.vector + rise - self.vector)
        return replace(self, vector=vector, variance=self.variance * (1.0 - weight))


def expected_slope(level: Floats, curve: Curve) -> Floats:
    """What to expect of a slope (p×p), from that along the level line over the curve's own: the curve is taken to be a quarter as steep as it can be."""
    return 0.25 * curve.steepest * level


def choose_slope_share(
    slope: Floats, curve: Curve, instruments: Instruments, exposure: LinkageExposure, count: int, mu: float
) -> float:
    """Share of a budget of μ for the last step's slope: as large as its weakest direction asks for to stand clear of the noise.

    `slope` is what is expected of it (p×p). Columns whose means are far from 0 have the noise of the intercept's entries in their own, once it is eliminated.
    """
    design, d = instruments.design, len(instruments.sizes)
    first, (least, most) = int(design.intercept), CURVE_SLOPE
    if not d:
        return least
    if first and not slope[0, 0]:  # nothing to divide by, and nothing told
        return most
    left, sizes, right = np.linalg.svd(centred_core(slope, design.intercept))
    of_h, of_x = (np.abs(one / slope[0, 0]) if first else np.zeros(d) for one in (slope[first:, 0], slope[0, first:]))
    share = least
    while share < most:
        plan = plan_slope(
            len(design.names),
            d,
            instruments.limit,
            curve.steepest,
            design.radius,
            exposure,
            count,
            mu * math.sqrt(share),
        )
        totals, entry = plan.parts[0].scale, plan.parts[-1].scale
        noise = np.broadcast_to(entry**2 + (totals * of_x) ** 2 * first, (d, d))
        noise = noise * (1.0 + (of_h[:, None] / instruments.iota) ** 2 if first else 1.0)
        if sizes[-1] >= CLEAR * math.sqrt(2.0 * d * float(left[:, -1] ** 2 @ noise @ right[-1] ** 2)):
            break
        share = min(most, share + 0.05)
    return share


def spread_of_outcome(curve: Curve, accuracy: float, mean: float, explained: float) -> tuple[float, float]:
    """Deviation of outcomes around their means, wrong links included, and the share of its square that these cause."""
    whole = mean if curve.counts else mean * (1.0 - mean)
    wrong = (1.0 - accuracy**2) * explained
    if curve.counts:
        whole += wrong
    return math.sqrt(whole), float(np.clip(wrong / whole, 0.0, 0.95))


def expect_outcome(curve: Curve, level: float, sums: ReleasedSums, rows: float) -> float:
    """Mean outcome as the released equation around a `level` tells it, as far from none and from all as half its noise, and as one row.

    `sums` are the equation and its slope along the level line, that slope over the curve's.
    """
    mean, noise = level + float(sums.vector[0] / sums.matrix[0, 0]), float(sums.vector_scale[0] / sums.matrix[0, 0])
    least = min(max(1.0 / max(rows, 2.0), noise / 2.0), curve.largest / 4.0)
    return min(curve.largest - least, max(least, mean))


def find_start(curve: Curve, mean: float, slopes: Floats, means: Floats, covariance: Floats) -> Floats:
    """Coefficients on the curve (p) from those of the straight line, the intercept first.

    If η is normal with deviation σ around μ, the line's slopes are those on the curve times ``E m'(η)`` (Stein), and the mean outcome is ``E m(η)``. So μ and the factor are
    looked for by turns.

    Parameters
    ----------
    mean
        Mean outcome.
    slopes, means
        Slopes of the straight line, and means of the columns (d each).
    covariance
        Of the columns (d×d).
    """
    nodes, weights = _HERMITE[0], _HERMITE[1] / _HERMITE[1].sum()
    spread = math.sqrt(max(0.0, float(slopes @ covariance @ slopes)))
    middle = curve.find_eta(mean)
    factor = 1.0 / max(float(curve.mean_and_slope(np.array([middle]))[1][0]), 1e-6)
    for _ in range(40):
        factor = min(factor, _WIDEST / max(spread, 1e-300))
        found, steep = curve.mean_and_slope(middle + factor * spread * nodes)
        rise = max(float(weights @ steep), 1e-6)
        middle += float(np.clip((mean - weights @ found) / rise, -1.0, 1.0))
        factor = (factor + 1.0 / rise) / 2.0
    factor = min(factor, _WIDEST / max(spread, 1e-300))
    return np.concatenate([[middle - factor * float(slopes @ means)], factor * slopes])


def column_covariance(sums: ReleasedSums, half_widths: Floats, intercept: bool) -> Floats:
    """Covariance of the columns (d×d), from the slope of a level line, whose instruments are columns over their half-widths; made positive semidefinite."""
    total = sums.matrix[0, 0] if intercept else float(np.trace(np.abs(sums.matrix))) / max(1, len(sums.matrix))
    core = centred_core(sums.matrix, intercept) * half_widths[:, None] / max(total, 1e-300)
    values, vectors = np.linalg.eigh((core + core.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T, np.float64)


def limit_step(before: Floats, after: Floats, sizes: Floats) -> tuple[Floats, float]:
    """The coefficients after a step that moves η by at most `_LONGEST` deviations, and by how many it moved it.

    `sizes` are those of the columns (p), 1 for the intercept.
    """
    way = float(np.linalg.norm((after - before) * sizes))
    return before + min(1.0, _LONGEST / max(way, 1e-300)) * (after - before), way


def with_firm_corner(sums: ReleasedSums, intercept: bool) -> ReleasedSums:
    """The same sums with the intercept's own entry at least as large as its noise, so that it can be divided by."""
    if not intercept:
        return sums
    matrix = sums.matrix.copy()
    matrix[0, 0] = max(matrix[0, 0], sums.matrix_scale[0, 0], 1e-300)
    return replace(sums, matrix=matrix)
