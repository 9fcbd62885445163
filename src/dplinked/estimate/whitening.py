"""Whitening: coordinates in which all directions of the rows are equally strong, from released moments, and the way back to the coefficients.

With P the whitening matrix, rows are ``u = P(1, x)`` and coefficients θ with ``β = P'θ``, since ``u'θ = (1, x)'β``. Sums that are released of u have noise of
one size in all directions, however closely columns hang together. Nothing here sees data. A poor P costs precision, never privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import Estimate
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal
from dplinked.sums.types import Whitening

Floats = NDArray[np.float64]

_EDGE = 2.0  # times the root of a row's squared noise: the spectral size of noise
_FAR = 3.5  # deviations of ‖u‖² above its mean, of normal columns, up to which rows count in full
_CALM = 0.05  # spectral noise of the slope, relative to it, up to which rows further out count in full as well
_RARE = 0.5  # strength of a level's column, of one that is whitened, below which its rows are too few
# Strengths of the weakest direction from which whitening is followed by the slope itself, or by one whitening more.
_CLEAR, _SEEN = 0.75, 0.4


@dataclass(frozen=True, eq=False)
class Geometry:
    """How the instruments of the second stage are scaled.

    Attributes
    ----------
    ratios
        Root mean square of each instrument (d).
    sizes
        Root mean square of each column (d).
    whitening
        What whitens rows, if they are whitened.
    rounds
        How often whitened rows are squared.
    """

    ratios: Floats
    sizes: Floats
    whitening: Whitening | None = None
    rounds: int = 1

    def way(self, covariance: Floats) -> Floats:
        """Covariance (d×d) of what errors of the slopes of this `covariance` do to the line, along columns or whitened directions of mean square one."""
        turned = self.turned
        return np.asarray(turned @ covariance @ turned.T, np.float64)

    @property
    def turned(self) -> Floats:
        """What gives these directions' slopes from those of the columns (d×d)."""
        if self.whitening is None:
            return np.diag(self.sizes)
        first = len(self.whitening.matrix) - self.sizes.size
        return np.asarray(np.linalg.inv(self.whitening.matrix[first:, first:]).T, np.float64)


def whiten(moments: Floats, scale: Floats, intercept: float) -> tuple[Floats, Floats]:
    """The matrix that whitens rows, and how strong each direction is for certain (d).

    Parameters
    ----------
    moments
        Noisy mean of ``uu'`` (p×p); with an intercept, the first entry of u is constant.
    scale
        Standard deviation of the noise in each entry (p×p).
    intercept
        What the intercept's entry shall be; 0 without one.

    Notes
    -----
    Directions are measured in units of the spectral size of the noise, and 1 is added to their squares, so that those which drown in it are not blown up: their strength, the
    square that is left of one, is below ½. Means are taken out.
    """
    first, p, least = int(intercept > 0.0), len(moments), np.finfo(float).tiny
    edges = np.maximum(_EDGE * np.sqrt((scale[first:, first:] ** 2).sum(axis=1)), least) ** -0.5
    if first:
        moments = moments.copy()
        moments[0, 0] = max(moments[0, 0], _EDGE * scale[0, 0], least)
    core = centred_core(moments, bool(first)) * np.outer(edges, edges)
    values, vectors = np.linalg.eigh((core + core.T) / 2.0)
    values = np.maximum(values, 0.0)
    matrix = np.zeros((p, p))
    matrix[first:, first:] = (vectors * (1.0 + values) ** -0.5).T * edges
    if first:
        matrix[0, 0] = intercept / math.sqrt(moments[0, 0])
        matrix[1:, 0] = -matrix[1:, 1:] @ moments[1:, 0] / moments[0, 0]
    return matrix, values / (1.0 + values)


def first_moments(design: Design, start: ReleasedSums, accuracy: float, weight: float) -> tuple[Floats, Floats]:
    """Mean of ``(1, x)(1, x)'`` as the first stage's matrix tells it (p×p), and the noise in each entry; rows weigh `weight` together.

    An instrument that is a bounded function of its column tells of products with others in proportion to what it tells of the column itself.
    """
    first, p = int(design.intercept), len(design.names)
    told = (column_spread(design) / instrument_signal(design))[:, None] / (weight * accuracy)
    core = told * centred_core(start.matrix, design.intercept)
    noise = told * start.matrix_scale[first:, first:]
    moments, scale = np.zeros((p, p)), np.zeros((p, p))
    mean = start.matrix[0, first:] / start.matrix[0, 0] if first else np.zeros(p)
    moments[first:, first:] = (core + core.T) / 2.0 + (np.outer(mean, mean) if first else 0.0)
    scale[first:, first:] = noise if start.symmetric else np.hypot(noise, noise.T) / 2.0
    if first:
        moments[0, 0], moments[0, 1:], moments[1:, 0] = 1.0, mean, mean
    return moments, scale


def invert_moments(moments: Floats, scale: Floats, intercept: bool, sizes: Floats) -> Floats:
    """The inverse of the second moments of columns of these sizes (d×d), by released moments and their noise (p×p).

    Noise alone makes columns seem to hang together. So correlations are shrunk by the share of their squares that is noise, and no direction is taken to be weaker than
    the noise lets it be seen.
    """
    first = int(intercept)
    core, noise = centred_core(moments, intercept), scale[first:, first:]
    spread = np.sqrt(np.maximum(np.diag(core), _EDGE * np.sqrt((noise**2).sum(axis=1))))
    own, noise = np.eye(len(core), dtype=bool), noise / np.outer(spread, spread)
    hanging = np.where(own, 0.0, core / np.outer(spread, spread))
    unseen = float((noise[~own] ** 2).sum())
    hanging *= 1.0 - min(1.0, unseen / max(float((hanging**2).sum()), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(np.where(own, 1.0, hanging))
    inverse = (vectors / np.maximum(values, min(1.0, math.sqrt(unseen / len(core))))) @ vectors.T
    return np.asarray(inverse / np.outer(sizes, sizes), np.float64)


def has_rare_levels(design: Design, moments: Floats) -> bool:
    """Whether rows of a level seem to be so few that, whitened, they would be far longer than the norm: what they tell would be cut, and is better told by their column."""
    variances, least = np.diag(centred_core(moments, design.intercept)), least_square(len(moments))
    return any(
        column.cell and variance * least < _RARE * column.peak**2
        for column, variance in zip(design.columns, variances, strict=True)
    )


def rounds_needed(strengths: Floats) -> int:
    """How often rows are squared, the slope itself included: whitening that noise has spoilt is repeated from what it tells."""
    weakest = float(strengths.min(initial=1.0))
    return 1 if weakest >= _CLEAR else 2 if weakest >= _SEEN else 3


def spectral_noise(entries: int, scale: float, weight: float) -> float:
    """Spectral size of the noise in the squares of whitened rows of so many entries, relative to them; `scale` is that of their packed entries."""
    if weight <= 0.0:  # links that are no better than chance tell nothing
        return math.inf
    return _EDGE * scale * math.sqrt(entries / 2.0) / weight


def choose_norm(entries: int, unit: float, weight: float) -> float:
    """The norm that whitened rows of so many entries are cut to: as large as leaves their squares calm, where noise is `unit` per unit of its square."""
    return math.sqrt(max(least_square(entries), _CALM / spectral_noise(entries, unit, weight)))


def least_square(entries: int) -> float:
    """The square of the norm that whitened rows are cut to at least."""
    return entries + _FAR * math.sqrt(2.0 * entries)


# --- the way back ---------------------------------------------------------------------------------------


def estimate_coefficients(found: Estimate, whitening: Floats) -> Estimate:
    """An estimate of θ as one of the coefficients."""
    P, plain = whitening, found.plain_error
    return Estimate(
        P.T @ found.beta,
        P.T @ found.covariance @ P,
        P.T @ found.gain @ P,
        np.sqrt((P.T**2) @ plain**2),
    )


def whiten_coefficients(beta: Floats, whitening: Floats) -> Floats:
    """θ of coefficients."""
    return np.asarray(np.linalg.solve(whitening.T, beta), np.float64)


def coefficient_sums(found: ReleasedSums, whitening: Floats) -> ReleasedSums:
    """Sums of whitened rows as those of (1, x), whose noise has its scales in the whitened coordinates."""
    back = np.linalg.inv(whitening)
    return replace(
        found,
        matrix=back @ found.matrix @ back.T,
        vector=back @ found.vector,
        centre=whitening.T @ found.centre,
        basis=np.ascontiguousarray(back.T),  # as files have it, to the last digit
    )
