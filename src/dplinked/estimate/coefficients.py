"""Coefficients from noisy sums, shrunk where the noisy matrix is ill-conditioned.

Nothing here sees data. ``β = H⁻¹b`` is fine where H stands clear of its noise. Where it does not, the
inverse explodes; a floor under the eigenvalues or a redraw would be no better. Instead coefficients get a normal
prior of unknown variance, whose size is weighed by how well it explains the released b (an average over
ridges, weighted by marginal likelihood). With strong sums the prior vanishes, with none the estimate is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.privacy.quantities.instrument import ReleasedSums

Floats = NDArray[np.float64]

_PRIOR_SIZES = np.geomspace(0.05, 10.0, 31)
_OPTIMISM = 2.0  # standard errors by which weak directions are taken to be stronger than they look
_SPECTRAL = 2.0  # times the noise of an entry and the root of their number in a row: the spectral size of noise
_EIGEN_FLOOR = 0.5  # of the noise's own spectral size: below it an eigenvalue is noise


@dataclass(frozen=True)
class Estimate:
    """Coefficients on the scaled columns, and what privacy noise does to them.

    Attributes
    ----------
    beta
        Coefficients (p).
    covariance
        Covariance due to privacy noise, and to shrinkage where there is some (p×p).
    gain
        ``∂β/∂b`` (p×p): what an error in the released vector does to the coefficients.
    plain_error
        Standard deviation by privacy noise without any shrinkage (p); infinite if unbounded.
    """

    beta: Floats
    covariance: Floats
    gain: Floats
    plain_error: Floats


@dataclass(frozen=True)
class _Core:
    """The slopes' equations with the intercept eliminated: ``b = Cβ + noise``."""

    matrix: Floats
    vector: Floats
    matrix_scale: float
    vector_variance: float


def solve_sums(
    released: ReleasedSums,
    *,
    intercept: bool,
    prior_scale: float,
    ridge: float | None = None,
    turned: Floats | None = None,
) -> Estimate:
    """Solve released sums for the coefficients.

    Parameters
    ----------
    intercept
        Whether the first column is the intercept, whose matrix entry is public.
    prior_scale
        Size of a coefficient's prior variance around which the search runs.
    ridge
        A declared penalty added to the slopes' matrix instead of shrinkage.
    turned
        If the sums are those of other coordinates: the matrix (d×d) that gives these from slopes, which have the prior.
    """
    first = int(intercept)
    core = _eliminate_intercept(released) if intercept else _plain_core(released)
    d = core.vector.size
    slopes: Floats = np.zeros(0)
    plain: Floats = np.zeros(0)
    covariance: Floats = np.zeros((0, 0))
    gain: Floats = np.zeros((0, 0))
    if d:
        basis_left, s, basis_right = _decompose(core.matrix, released.symmetric)
        floor = _EIGEN_FLOOR * core.matrix_scale * math.sqrt(2.0 * d)
        if ridge is not None:
            slopes = np.asarray(
                np.linalg.lstsq(core.matrix + ridge * np.eye(d), core.vector, rcond=None)[0], np.float64
            )
            gain = np.asarray(np.linalg.pinv(core.matrix + ridge * np.eye(d)), np.float64)
            covariance = _noise_variance(core, slopes) * gain @ gain.T
        elif turned is None:
            slopes, covariance, gain = _shrink(core, basis_left, np.maximum(s, floor), basis_right, prior_scale)
        else:
            clear = np.where(
                s > _SPECTRAL * core.matrix_scale * math.sqrt(d), s, 0.0
            )  # others tell nothing of the slopes
            product = (basis_left * clear) @ basis_right.T @ turned
            scale = core.matrix_scale * float(np.sqrt((turned**2).sum() / d))
            found = _shrink(replace(core, matrix_scale=scale), *_decompose(product, symmetric=False), prior_scale)
            slopes, covariance, gain = turned @ found[0], turned @ found[1] @ turned.T, turned @ found[2]
        plain = _plain_error(core, s, basis_right, slopes, released.symmetric)
    if not intercept:
        return Estimate(slopes, covariance, gain, plain)
    n, s_x = released.matrix[0, 0], released.matrix[0, 1:]
    level = (released.vector[0] - s_x @ slopes) / n
    noise_level = (
        released.vector_scale[0] ** 2
        + (released.matrix_scale[0, 1:] * slopes) @ (released.matrix_scale[0, 1:] * slopes)
    ) / n**2
    into_level = -s_x / n
    full = np.zeros((d + first, d + first))
    full[1:, 1:] = covariance
    full[0, 1:] = full[1:, 0] = into_level @ covariance
    full[0, 0] = noise_level + into_level @ covariance @ into_level
    errors = np.concatenate([[math.sqrt(noise_level + float(((into_level * plain) ** 2).sum()))], plain])
    mean_h = released.matrix[1:, 0] / n
    total = np.block([[np.full((1, 1), 1.0 / n), np.zeros((1, d))], [-(gain @ mean_h)[:, None], gain]])
    total[0] += into_level @ total[1:]
    return Estimate(np.concatenate([[level], slopes]), full, total, errors)


def _plain_core(released: ReleasedSums) -> _Core:
    d = released.vector.size
    scale = float(np.sqrt((released.matrix_scale**2).sum() / max(d * d, 1)))
    return _Core(released.matrix, released.vector, scale, float((released.vector_scale**2).mean()))


def _eliminate_intercept(released: ReleasedSums) -> _Core:
    """Subtract the intercept's equation; its noise enters through the (small) means of h and x."""
    M, b, n = released.matrix, released.vector, released.matrix[0, 0]
    d = b.size - 1
    if d == 0:
        return _Core(np.zeros((0, 0)), np.zeros(0), 0.0, 0.0)
    mean_h, level = M[1:, 0] / n, b[0] / n
    matrix = centred_core(M, intercept=True)
    if released.symmetric:
        matrix = (matrix + matrix.T) / 2.0
    scale = float(np.sqrt((released.matrix_scale[1:, 1:] ** 2).mean()))
    variance = released.vector_scale[1:] ** 2 + (mean_h * released.vector_scale[0]) ** 2
    variance = variance + (released.matrix_scale[1:, 0] * level) ** 2
    return _Core(matrix, b[1:] - mean_h * b[0], scale, float(variance.mean()))


def _decompose(matrix: Floats, symmetric: bool) -> tuple[Floats, Floats, Floats]:
    if symmetric:
        values, vectors = np.linalg.eigh(matrix)
        return vectors, values, vectors
    left, s, right = np.linalg.svd(matrix)
    return left, s, right.T


def _noise_variance(core: _Core, slopes: Floats) -> float:
    """Variance of the noise in ``b - Cβ``, per entry."""
    return core.vector_variance + core.matrix_scale**2 * float(slopes @ slopes)


def _plain_error(core: _Core, s: Floats, right: Floats, slopes: Floats, symmetric: bool) -> Floats:
    """Standard deviation of each slope by privacy noise without shrinkage, on the optimistic side (d).

    Eigenvalues within the spectral edge of the noise, ``2ω√d``, cannot be told apart. They all get their
    mean, which the trace tells far better than any of them by itself, plus two of its standard errors.
    Noise pushes strong eigenvalues up at the weak ones' cost; that is given back.
    """
    d, scale = s.size, core.matrix_scale
    weak = s <= 2.0 * scale * math.sqrt(d)
    strength, k = s.copy(), int(weak.sum())
    if k:
        total = float(np.einsum("ij,ij->", right[:, weak], core.matrix @ right[:, weak]))
        total += k * scale**2 * float((1.0 / s[~weak]).sum())
        diagonal = scale * math.sqrt(2.0 * d / (d + 1.0)) if symmetric else scale
        strength[weak] = max(total / k + _OPTIMISM * diagonal / math.sqrt(k), 1e-6 * scale)
    return np.asarray(np.sqrt((right**2) @ (_noise_variance(core, slopes) / strength**2)), np.float64)


def _shrink(core: _Core, left: Floats, s: Floats, right: Floats, prior_scale: float) -> tuple[Floats, Floats, Floats]:
    """Average ridges over prior variances, weighted by the marginal likelihood of the released vector."""
    d = s.size
    rotated = left.T @ core.vector
    prior = _PRIOR_SIZES * prior_scale
    noise = core.vector_variance + core.matrix_scale**2 * d * prior
    noise = np.maximum(noise, np.finfo(float).tiny)
    total = noise[:, None] + np.outer(prior, s**2)
    log_weight = -0.5 * (np.log(total) + rotated**2 / total).sum(axis=1)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    means = np.outer(prior, s) / total * rotated
    mean = weight @ means
    found = max(_noise_variance(core, mean), np.finfo(float).tiny)  # rotation keeps the norm
    variances = prior[:, None] * found / (found + np.outer(prior, s**2))
    centred = means - mean
    inner = np.diag(weight @ variances) + (centred * weight[:, None]).T @ centred
    gain = (right * (weight @ (np.outer(prior, s) / total))) @ left.T
    return right @ mean, right @ inner @ right.T, gain
