"""The paper's own estimates and their variances, from released values: Algorithms 1 and 2 of [LPK24], Theorems 4.6 and 4.7."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import Estimate, solve_sums
from dplinked.estimate.intervals import noise_covariance
from dplinked.estimate.theorems import descent_gain, descent_noise
from dplinked.estimate.variance import MOMENTS, ErrorParts, ReleasedVariance
from dplinked.linkage import ELE, Exact, Linkage
from dplinked.privacy.quantities.descent import ReleasedDescent
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.paper import PaperMoments

Floats = NDArray[np.float64]

LARGEST_STEP = 2.0  # times the inverse of the curvature: longer steps overshoot more and more
CLEAR = 4.0  # a matrix is usable if its least eigenvalue exceeds so many times the spectral size of its noise
_UNKNOWN_ACCURACY = 0.5  # of an explicit matching matrix without a declared least accuracy


# --- the estimates ---------------------------------------------------------------------------------------


def solve_paper_sums(sums: ReleasedSums, prior_scale: float, ridge: float | None) -> tuple[Estimate, Estimate]:
    """Algorithm 2's estimate ``(W'W)⁻¹W'z`` of released sums, and a shrunken one beside it.

    Its covariance is that of Theorem 4.7 with the square of the estimate in the place of the three second moments there, whose sum it
    estimates. A declared ridge is added to the matrix.
    """
    shrunken = solve_sums(sums, intercept=False, prior_scale=prior_scale)
    gain = np.asarray(np.linalg.pinv(sums.matrix + (ridge or 0.0) * np.eye(sums.vector.size)), np.float64)
    beta = gain @ sums.vector
    covariance = gain @ noise_covariance(sums, beta) @ gain.T
    return replace(shrunken, beta=beta, covariance=covariance, gain=gain), shrunken


def clearance(sums: ReleasedSums, ridge: float = 0.0) -> float:
    """The least eigenvalue of the noisy matrix and a ridge, in units of the spectral size ``ω√(2p)`` of its noise."""
    size = float(sums.matrix_scale.max()) * math.sqrt(2.0 * sums.vector.size)
    return (float(np.linalg.eigvalsh(sums.matrix).min()) + ridge) / size


def is_usable(sums: ReleasedSums, ridge: float = 0.0) -> bool:
    """Whether the noisy matrix and a ridge stand clear of the noise. Where they do not, Algorithm 2's estimate may be anything."""
    return clearance(sums, ridge) > CLEAR


def last_iterate(descent: ReleasedDescent, gram: Floats, count: int) -> Estimate:
    """Algorithm 1's estimate, its last iterate, with the covariance of Theorem 4.6 for a given W'W.

    The theorem leaves out projections, which only bring iterates nearer to any coefficients within the radius C; so no direction gets a variance
    above C², and one in which steps would diverge gets that. What stopping after T steps leaves of the way from β⁰, ``(I-A)^T``, counts as
    an error too.
    """
    T, eta, beta = len(descent.gradients), float(descent.steps[0]), descent.path[-1]
    values, vectors = _contraction(descent, gram, count)
    steady = (vectors * np.minimum(values, LARGEST_STEP)) @ vectors.T * (count / eta)
    found = (eta * descent.scale / count) ** 2 * descent_noise(steady, count, eta, T)
    variances = np.where(values > LARGEST_STEP, math.inf, np.einsum("ij,ij->j", vectors, found @ vectors))
    privacy = (vectors * np.minimum(variances, _limit(descent) ** 2)) @ vectors.T
    left = left_to_go(descent, gram, count)
    covariance = np.asarray(privacy + np.outer(left, left), np.float64)
    return Estimate(beta, covariance, descent_gain(steady, count, eta, T), np.sqrt(np.diag(covariance)))


def _contraction(descent: ReleasedDescent, gram: Floats, count: int) -> tuple[Floats, Floats]:
    """Eigenvalues (p) and eigenvectors (p×p) of ``A = ηW'W/n``. Above 2 steps overshoot more and more."""
    values, vectors = np.linalg.eigh(float(descent.steps[0]) / count * gram)
    return np.maximum(values, 0.0), vectors


def _limit(descent: ReleasedDescent) -> float:
    """C, which releases before 0.2 do not hold."""
    return 1e100 if descent.radius is None else descent.radius


def is_settling(descent: ReleasedDescent, gram: Floats, count: int) -> bool:
    """Whether steps of the declared size come to rest under a given W'W."""
    return bool((_contraction(descent, gram, count)[0] <= LARGEST_STEP).all())


def left_to_go(descent: ReleasedDescent, gram: Floats, count: int) -> Floats:
    """``β^T - β`` without noise, for a given W'W (p).

    With r = (1-ηλ/n)^T it is r/(1-r) times ``β⁰ - β^T`` in the direction of an eigenvector, and at most twice the radius.
    """
    values, vectors = _contraction(descent, gram, count)
    rest, limit = (1.0 - np.minimum(values, LARGEST_STEP)) ** len(descent.gradients), 2.0 * _limit(descent)
    back = vectors.T @ (descent.path[0] - descent.path[-1])
    gone = 1.0 - rest
    left = np.divide(rest * back, gone, out=np.full_like(back, limit), where=gone * limit > np.abs(rest * back))
    return np.asarray(vectors @ left, np.float64)


def declared_gram(descent: ReleasedDescent, count: int) -> Floats:
    """The W'W that a declared step stands for: with η = d/L all eigenvalues are at least n/(dL) = nη/d² (p×p).

    No step of the theorem exceeds d, so that A is at most 1.
    """
    p, eta = descent.steps.size, float(descent.steps[0])
    return np.asarray(np.eye(p) * count * min(eta / p**2, 1.0 / eta), np.float64)


# --- the variance of responses, from released moments ---------------------------------------------------


@dataclass(frozen=True)
class PaperVariance:
    """Variance of ``W'(z - Wβ)`` by sampling and wrong links, and what it rests on.

    Attributes
    ----------
    meat
        The variance (p×p).
    residual
        Standard deviation of ``z - Wβ``.
    share
        Share of the residual variance that wrong links cause.
    moved
        What a relative error of the accuracy does to ``W'z - W'Wβ`` (p).
    """

    meat: Floats
    residual: float
    share: float
    moved: Floats


def paper_variance(
    moments: PaperMoments, beta: Floats, count: int, R: float, linkage: Linkage, dependence: float, intercept: bool
) -> PaperVariance:
    """The variance of the estimating equation around coefficients that are not far off.

    The residual variance is ``τ² = (z'z - 2β'W'z + β'W'Wβ)/n``, at least the noise of z'z and at most R². Wrong links make it larger where x'β
    is far from its mean: by ``γ(1-γ)`` times the squared distance of a row's own part. With the fourth moments of normal columns that
    adds ``2(1-γ)/γ · (Kβ)(Kβ)'/n`` to ``τ²W'W``, K the slopes' part of W'W. (Columns with lighter tails, like even ones, need less.)
    Links that hang together within a block raise the linkage part by the share `dependence`.
    """
    assert moments.squares is not None
    sums, gamma, gram = moments.sums, _own_accuracy(linkage), positive(moments.sums.matrix)
    found = float(moments.squares - 2.0 * sums.vector @ beta + beta @ sums.matrix @ beta) / count
    square = min(max(found, moments.squares_scale / count), R * R)
    moved = moved_by_accuracy(gram, beta, intercept)
    explained = max(0.0, float(moved @ beta)) / (count * gamma**2)
    share = min(0.95, (1.0 - gamma**2) * explained / square)
    meat = square * gram + 2.0 * (1.0 - gamma) / gamma * np.outer(moved, moved) / count
    return PaperVariance(meat * (1.0 + share * dependence), math.sqrt(square), share, moved)


def positive(matrix: Floats) -> Floats:
    """A noisy matrix of squares without its negative eigenvalues (p×p)."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T, np.float64)


def moved_by_accuracy(gram: Floats, beta: Floats, intercept: bool) -> Floats:
    """``Kβ`` with K the slopes' part of W'W (p); all of W'W where noise leaves nothing of the intercept's."""
    first = int(intercept)
    known = intercept and gram[0, 0] > 0.0
    core = centred_core(gram, known) if known or not intercept else gram[1:, 1:]
    return np.concatenate([np.zeros(first), core @ beta[first:]])


def _own_accuracy(linkage: Linkage) -> float:
    """The mean accuracy; for an explicit matching matrix its declared least one."""
    if isinstance(linkage, (ELE, Exact)):
        return linkage.public.mean_accuracy
    return max(linkage.accuracy_min, _UNKNOWN_ACCURACY)


def split_paper_errors(estimate: Estimate, variance: PaperVariance, accuracy: float | None) -> ErrorParts:
    """Take the variance of each coefficient apart."""
    spread = np.diag(estimate.gain @ variance.meat @ estimate.gain.T)
    linked = spread * variance.share + (accuracy or 0.0) * (estimate.gain @ variance.moved) ** 2
    weights = np.ones(estimate.beta.size)
    released = ReleasedVariance(MOMENTS, variance.meat, 0.0, weights, variance.residual, accuracy)
    return ErrorParts(np.diag(estimate.covariance), spread * (1.0 - variance.share), linked, released)


def descent_covariance(
    descent: ReleasedDescent, gram: Floats, variance: ReleasedVariance, count: int, intercept: bool
) -> Floats:
    """Second moments of the last iterate's distance from the coefficients, from released values (p×p)."""
    estimate = last_iterate(descent, positive(gram), count)
    moved = estimate.gain @ moved_by_accuracy(positive(gram), estimate.beta, intercept)
    spread = estimate.gain @ variance.meat @ estimate.gain.T
    return np.asarray(estimate.covariance + spread + (variance.accuracy or 0.0) * np.outer(moved, moved), np.float64)
