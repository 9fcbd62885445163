"""The second stage: how far residuals are clipped, what the equation's slope is, whether it pays, and what its steps tell together.

Nothing here sees data. All of it follows from public and released values, so a poor guess costs precision, never privacy. Residuals of right links are
taken for normal where a share of them is needed; what that share multiplies is the way that is left to go, which the second step makes short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.study.counting import Sizes
from dplinked.study.design import Design
from dplinked.sums.partners import NEAR

Floats = NDArray[np.float64]

ALL = Sizes(1.0, 1.0, 1.0, 1.0)  # rows that count whole
INTERCEPT_WEIGHT = 0.85  # ι, relative to the size of an instrument
_LARGE = 2.0  # deviations of ‖h‖² above its mean: a row of large norm, whose residuals are clipped at λ deviations
_WORTH = 1.0  # noise of the equation, relative to its sampling error, up to which residuals are clipped further out
# Least clips, in deviations of residuals, where noise is _DROWNED[1] or _DROWNED[0] times the sampling error.
CLIPS = (2.0, 4.0)
SKEWED_CLIP = 10.0  # the least where errors are declared skewed
_NEAR_CLIP = 1.0  # of residuals near the line
_CLOSER = 0.92  # error with a closer clip, relative to that with the wider one, up to which both sides are looked at
_FAR_CLIP = 24.0  # deviations: wider clips are those of many rows, over which another pass costs more than noise does
_LITTLE = 0.25  # noise of the equation, relative to its sampling error, up to which residuals that are alike are clipped further out
_DROWNED = (1.5, 5.0)
_EXAMPLES = np.array([NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)])  # where ‖h‖² may lie
CLEAR = 3.0  # times its noise's spectral size: how far the weakest direction of the slope should stand above it
FEW = 3  # columns whose noise counts at least where filled cells may have bent the start: the way left to go is longer than its noise says
_WIDE = 2.5  # times its root mean square: how far a column's instrument follows it at least
_FAR_OUT = 3.5
_BESIDE = 10.0  # how much less far instruments follow columns beside indicators, but _WIDE at least
_FURTHER = (
    3.0,
    2.5,
)  # the first width beyond which instruments follow columns further out than that, and how many times as far at most
_ROOM = 7.0  # times the way that is left to go along a column of mean size: how far symmetric residuals are clipped at least

_NORMAL = NormalDist()


def share_within(limit: Floats | float) -> Floats:
    """Share of normal residuals within ±`limit` deviations."""
    from scipy.special import erf

    return np.asarray(erf(np.asarray(limit) / math.sqrt(2.0)), np.float64)


def slope_kept(clip: Floats) -> Floats:
    """Mean slope of ψ over normal residuals that are clipped at `clip` deviations: those within count whole, and so does what the jump at the end adds."""
    near = NEAR * np.asarray(clip)
    density = np.exp(-(near**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray(share_within(near) + 2.0 * (1.0 - NEAR) * clip * density, np.float64)


def clipped_square(limit: float, deviation: float) -> float:
    """Mean square of ψ over normal residuals of a `deviation` that are clipped to ±`limit`."""
    near = NEAR * limit / deviation
    within = 2.0 * _NORMAL.cdf(near) - 1.0
    inside = within - 2.0 * near * _NORMAL.pdf(near)
    inside = min(max(0.0, inside), near**2 * within)  # its digits cancel where `near` is small
    return deviation**2 * inside + limit**2 * 2.0 * (1.0 - _NORMAL.cdf(near))


_TRIED = np.geomspace(1.0, 8.0, 100)  # clips of symmetric residuals
_SQUARES = np.array([clipped_square(clip, 1.0) for clip in _TRIED])


def right_deviation(size: float, level: float, accuracy: float, explained: float) -> float:
    """Deviation of the residuals of right links, if a share `level` of all rows has absolute residuals up to `size`.

    Wrong links bring the response of an unrelated row, whose residual varies by twice the `explained` variance more.
    """
    from scipy.optimize import brentq

    def excess(deviation: float) -> float:
        wrong = math.sqrt(deviation**2 + 2.0 * max(0.0, explained))
        return float(accuracy * share_within(size / deviation) + (1.0 - accuracy) * share_within(size / wrong)) - level

    least, most = size / 8.0, size * 100.0
    return most if excess(most) > 0.0 else float(brentq(excess, least, most)) if excess(least) > 0.0 else least


@dataclass(frozen=True)
class Residuals:
    """What the equation is expected to make of residuals, on the scale where responses lie within ±1.

    Attributes
    ----------
    deviation
        Of the residuals of right links.
    clip
        λ: at how many deviations residuals of a row of large norm are clipped.
    norm, intercept_weight
        ``‖(ι, h)‖`` of a row of large norm that counts much, times what it counts, and ι.
    kept
        Shares of the slope that clipping keeps: of the intercept's own entry, of its row and column, of the rest.
    wrong
        The same of wrong links.
    explained
        Variance of the response that the coefficients explain.
    sizes
        Root mean square of each instrument (d).
    counted
        What a row counts where that is much.
    """

    deviation: float
    clip: float
    norm: float
    intercept_weight: float
    kept: tuple[float, float, float]
    wrong: float
    explained: float
    sizes: Floats
    counted: float = 1.0

    def spread(self, accuracy: float) -> float:
        """Root mean square of a row's clipped residual, right links and wrong ones together."""
        right = clipped_square(self.clip * self.deviation, self.deviation)
        return math.sqrt(accuracy * right + (1.0 - accuracy) * self._wrong_square())

    def wrong_share(self, accuracy: float) -> float:
        """Share of the variance of clipped residuals that wrong links cause."""
        return (1.0 - accuracy) * self._wrong_square() / self.spread(accuracy) ** 2

    def _wrong_square(self) -> float:
        """Mean square of a wrong link's clipped residual."""
        deviation = math.sqrt(self.deviation**2 + 2.0 * max(0.0, self.explained))
        return clipped_square(self.clip * self.deviation, deviation)

    def error(self, accuracy: float, count: float, noise: float) -> float:
        """Expected error of the equation relative to its slope, if noise per unit of K is `noise`, and rows add their squares up to `count`."""
        met = count * float((self.sizes**2).mean()) * self.spread(accuracy) ** 2
        return math.sqrt(met + (noise * self.limit) ** 2) / self.kept[2]

    def meat_weights(self, intercept: bool) -> Floats:
        """Weights that bring instruments to mean square one (p)."""
        return 1.0 / np.concatenate([np.ones(int(intercept)), self.sizes])

    @property
    def limit(self) -> float:
        """K: the largest contribution of a row."""
        return self.clip * self.deviation * self.norm


def expect_residuals(
    deviation: float,
    explained: float,
    ratios: Floats,
    intercept: bool,
    noise: float,
    count: float,
    largest: float,
    errors: str,
    closest: float = 1.0,
    most: float | None = None,
    counted: Sizes = ALL,
    wider: float = 1.0,
) -> Residuals:
    """Choose how far residuals are clipped, and expect what that keeps.

    Parameters
    ----------
    ratios
        Root mean square of each instrument (d).
    noise
        Standard deviation of the equation's noise, per unit of K.
    largest
        Beyond this nothing is clipped: no residual is larger.
    errors
        What is declared about errors, see :func:`dplinked.fit`, or was seen of them, see :func:`choose_clip`.
    closest
        The closest clip, in deviations, of errors that are symmetric or alike.
    most
        The largest ‖h‖²; the number of columns if it is not given.
    counted
        What rows count, which is a factor on their instruments.
    wider
        How many times as far out tails ask for; see :mod:`dplinked.estimate.tails`.
    """
    most = float(ratios.size) if most is None else most
    square, spread = float((ratios**2).sum()), math.sqrt(2.0 * float((ratios**4).sum()))  # mean and deviation of ‖h‖²
    typical = math.sqrt(square / max(1, ratios.size)) if ratios.size else 1.0
    iota = INTERCEPT_WEIGHT * typical * intercept
    norm = math.sqrt(iota**2 + min(most, square + _LARGE * spread)) * counted.large
    relative = noise * norm / (math.sqrt(count) * typical)
    clip = choose_clip(relative, errors, closest)
    if wider > 1.0:
        clip = max(clip, wider * choose_clip(relative, "any"))
    clip = min(clip, largest / deviation)
    squares = np.clip(square + spread * _EXAMPLES, 0.05 * square, most) if ratios.size else np.zeros(1)
    widths = clip * norm / np.sqrt(iota**2 + squares) / counted.usual
    weights = squares / squares.sum() if ratios.size else np.ones(1)
    within, beyond = slope_kept(widths), math.sqrt(1.0 + 2.0 * max(0.0, explained) / deviation**2)
    mean, core = float(within.mean()), float(within @ weights)
    wrong = float(slope_kept(widths / beyond) @ weights)
    kept = mean, math.sqrt(mean * core), core
    return Residuals(deviation, clip, norm, iota, kept, wrong, explained, ratios, counted.large)


def counted_sizes(design: Design, present: float = 1.0) -> Sizes:
    """How much rows count that count at all, a share `present` of all, as far as public and released values tell."""
    return ALL if design.counting is None else design.counting.sizes(present)


def choose_clip(noise: float, errors: str, closest: float = 1.0) -> float:
    """λ, if the equation's noise is λ·`noise` times its sampling error.

    Skewed residuals whose size follows a regressor lose more on one side, which bends the slope. So the clip is as wide as it can be at little cost; it comes
    closer only where noise drowns sampling error, and with it what clipping does; not at all where errors are declared skewed. Symmetric residuals lose as much on both
    sides: their clip is where normal ones make the slope's error smallest, but not below the `closest`, and not wider than it would be otherwise. Residuals that were seen to be "alike" on both sides are
    clipped as far out as noise hardly counts, but not closer than four deviations; those "near" the line at one, to see that.
    """
    if errors == "near":
        return _NEAR_CLIP
    if errors == "alike":
        return min(max(CLIPS[1], closest, _LITTLE / noise), choose_clip(noise, "any"))
    if errors == "skewed":
        return max(SKEWED_CLIP, _WORTH / noise)
    if errors == "symmetric":
        sharpest = float(_TRIED[np.argmin((_SQUARES + (noise * _TRIED) ** 2) / slope_kept(_TRIED) ** 2)])
        return max(sharpest, min(closest, choose_clip(noise, "any")))
    close, far = CLIPS
    least, most = (math.log(ratio) for ratio in _DROWNED)
    drowned = min(1.0, max(0.0, (math.log(far * noise) - least) / (most - least)))
    return max(far + (close - far) * drowned, _WORTH / noise)


def is_worth_a_look(
    wide: Residuals, close: Residuals, accuracy: float, count: float, noise: tuple[float, float]
) -> bool:
    """Whether a closer clip is expected to make the equation so much more precise than a wide one, whose noise per unit of K is the first `noise`, that it pays to look at both sides of the line, after which it is the second."""
    before, after = noise
    return wide.clip <= _FAR_CLIP and close.error(accuracy, count, after) <= _CLOSER * wide.error(
        accuracy, count, before
    )


def closest_clip(deviation: float, way: Floats) -> float:
    """The closest clip of symmetric residuals of a `deviation`, in deviations, around a line that is off along directions of mean square one with this covariance (d×d).

    In rows far out in a column residuals lie around the way that is left to go, not around zero. Clips leave room for it.
    """
    off = np.sqrt(np.maximum(0.0, np.diag(way)))
    return max(1.0, _ROOM * float(off.max()) / deviation)


def derivative(gram: ReleasedSums, residuals: Residuals, intercept: bool) -> ReleasedSums:
    """The equation's slope: that before clipping times the share that clipping keeps."""
    own, border, core = residuals.kept
    kept = np.full_like(gram.matrix, core)
    if intercept:
        kept[0], kept[:, 0], kept[0, 0] = border, border, own
    return replace(gram, matrix=gram.matrix * kept, matrix_scale=gram.matrix_scale * kept)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the second stage: where it was taken (p), the noisy equation (p), its noise (p), and the share that clipping kept."""

    centre: Floats
    vector: Floats
    scale: Floats
    kept: float


def combine_steps(steps: list[Step], slope: ReleasedSums) -> ReleasedSums:
    """All steps as one linear system around their mean centre, weighed by their noise; `slope` is that of the last."""
    last = steps[-1].kept
    factors = [last / step.kept for step in steps]  # brings each step to the slope of the last
    precision = np.array([(step.scale[-1] * factor) ** -2 for step, factor in zip(steps, factors, strict=True)])
    weights = precision / precision.sum()
    centre = sum(w * step.centre for w, step in zip(weights, steps, strict=True))
    total = sum(w * f * step.vector for w, f, step in zip(weights, factors, steps, strict=True))
    variance = sum((w * f * step.scale) ** 2 for w, f, step in zip(weights, factors, steps, strict=True))
    return replace(
        slope,
        vector=np.asarray(total + slope.matrix @ centre),
        vector_scale=np.sqrt(variance),
        centre=np.asarray(centre),
    )


def most_changed(way: Floats, sizes: Floats) -> float:
    """By how much residuals change at most, in root mean square, from one line to another whose coefficients differ by a `way` (p); `sizes` are the root mean squares of the columns (d).

    Residuals change by ``δ₀ + x'δ``, a sum of columns times numbers, which is no longer than these are together (Minkowski's inequality), however columns hang together.
    """
    first = way.size - sizes.size
    return float(np.abs(way[:first]).sum() + np.abs(way[first:]) @ sizes)


def column_sizes(design: Design, released: ReleasedSums, spread: Floats, accuracy: float, weight: float) -> Floats:
    """Root mean square of each column (d): what its typical range implies or, without one, what the released matrix tells; rows weigh `weight` together."""
    if design.half_widths is not None or not released.symmetric:
        return np.sqrt(spread)
    found = np.diag(released.matrix)[int(design.intercept) :] / (weight * accuracy)
    return np.sqrt(np.clip(found, spread / 100.0, spread * 3.0))


def told_gram(released: ReleasedSums, accuracy: float, contrast: float, intercept: bool) -> ReleasedSums:
    """What the first stage's matrix tells of rows by themselves: its slopes' part, the means taken out, over the accuracy; all times the `contrast`."""
    first, matrix, scale = int(intercept), released.matrix.copy(), released.matrix_scale.copy()
    core = centred_core(released.matrix, intercept)
    matrix[first:, first:] += core * (1.0 / accuracy - 1.0)
    scale[first:, first:] /= accuracy
    return replace(released, matrix=matrix * contrast, matrix_scale=scale * contrast)


def choose_width(noise: float, count: float) -> float:
    """How many times its root mean square a column's instrument follows it, if the equation's noise is `noise` per unit of K.

    The further it goes, the closer the line is to that of least squares, and the closer residuals of rows far out are clipped. So it goes as far as leaves these
    rows a clip of _FAR_OUT deviations at a noise no larger than the sampling error.
    """
    return max(_WIDE, math.sqrt(count) / (_FAR_OUT * noise))


def wider_width(width: float) -> float:
    """A width beyond one that reaches so far already that few rows lie beyond it."""
    first, most = _FURTHER
    return width * min(most, max(1.0, width / first))


def widen_instrument(design: Design, sizes: Floats, width: float) -> Design:
    """The design of the second stage, whose instruments follow their columns as far as `width` times their size.

    All entries of the equation have the same noise, so that beside indicators, which are as large as they are, small instruments would drown in it: there they follow their columns
    less far, unless noise is so small that they reach their ends.
    """
    if not all(group.numeric for group in design.groups):
        width = min(width, max(_WIDE, width / _BESIDE))
    wide = design.with_instrument((width * sizes).tolist())
    numeric = [group.start for group in design.groups if group.numeric]
    assert wide.half_widths is not None
    if all(wide.half_widths[k] == design.columns[k].peak for k in numeric):
        return replace(design, half_widths=None)
    return wide


def instrument_sizes(design: Design, sizes: Floats) -> Floats:
    """Root mean square of each instrument (d)."""
    if design.half_widths is None:
        return sizes
    numeric = np.zeros(sizes.size, bool)
    for group in design.groups:
        numeric[group.start : group.stop] = group.numeric
    return np.where(numeric, sizes / np.array(design.half_widths), sizes)


def level_of_right_links(accuracy: float) -> float:
    """The share of all rows below the size that is looked for: nearly all right links, and few wrong ones."""
    return 0.97 * accuracy + 0.3 * (1.0 - accuracy)
