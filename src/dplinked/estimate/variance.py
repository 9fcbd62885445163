"""What moves a coefficient, from released values: sampling, wrong links, privacy noise, and the accuracy's own error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.groups import Groups
from dplinked.linkage import ELE, Exact, Linkage, PrivacyUnit
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.records import Record
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal
from dplinked.sums.types import CLUSTERED, BlockFacts

Floats = NDArray[np.float64]
MOMENTS = "moments"


@dataclass(frozen=True, eq=False)
class NoisyVariance:
    """The variance of ``b - Hβ`` as it was drawn.

    Attributes
    ----------
    route
        ``"block"``, ``"person"``, ``"cluster"``, ``"row"`` or ``"scale"``.
    meat, weights
        Noisy meat (p×p) of instruments times public weights (p); `noise` is the standard deviation in its packed entries.
    residual
        Residual standard deviation on the scaled response.
    accuracy
        Relative variance of the linkage accuracy; None if nothing was declared about it.
    dependence
        By how much links that hang together within a block raise the linkage part of row-wise variance.
    basis
        B (p×p), if the meat is that of whitened instruments: in those of the columns it is ``B' meat B``.
    repeated
        By how much rows of one person may raise the variance beyond what is squared.
    within
        Share of the squares that is left within strata, if contributions are taken around the means of these.
    """

    route: str
    meat: Floats
    weights: Floats
    noise: float
    residual: float
    accuracy: float | None
    dependence: float
    basis: Floats | None = None
    repeated: float = 1.0
    within: float = 1.0


@dataclass(frozen=True, eq=False)
class ReleasedVariance(Record):
    """The variance of ``b - Hβ`` as intervals use it.

    Attributes
    ----------
    route
        What sampling and linkage variance came from: totals of each ``"block"``, ``"person"`` or ``"cluster"``, single ``"row"``s, the residuals' ``"scale"`` alone, or, of the paper's
        algorithms, the ``"moments"`` W'W, W'z and z'z.
    meat
        Variance by sampling and wrong links (p×p), made positive definite.
    noise, weights, residual, accuracy
        As in :class:`NoisyVariance`.
    """

    route: str
    meat: Floats
    noise: float
    weights: Floats
    residual: float
    accuracy: float | None

    OLD_KEYS: ClassVar[Mapping[str, str]] = {"matrix": "meat", "scale": "noise"}


@dataclass(frozen=True, eq=False)
class ErrorParts:
    """Variance of each coefficient in the user's units, by where it comes from (p each), and the variance they rest on.

    `sampling`, `linkage` and `released` are None where no intervals were paid for.
    """

    privacy: Floats
    sampling: Floats | None = None
    linkage: Floats | None = None
    released: ReleasedVariance | None = None

    def named(self) -> dict[str, Floats]:
        """The parts that are known, by name."""
        listed = {"linkage": self.linkage, "privacy": self.privacy, "sampling": self.sampling}
        return {name: part for name, part in listed.items() if part is not None}


def split_errors(
    design: Design,
    groups: Groups,
    estimate: Estimate,
    sums: ReleasedSums | None,
    variance: NoisyVariance | None,
    wrong_share: float | None = None,
) -> ErrorParts:
    """Take the variance of each coefficient apart. `wrong_share` is what wrong links cause of the rows' variance, if it is known."""
    to_user, _ = design.scaling.to_user()
    privacy = np.diag(to_user @ estimate.covariance @ to_user.T)
    if variance is None or sums is None:
        return ErrorParts(privacy)
    gain = to_user @ estimate.gain
    share = wrong_share
    if share is None:
        share = linkage_share(groups, design, estimate.beta, sums, variance)
    share = min(0.95, share / variance.within)  # what differs between strata is not caused by wrong links
    meat = usable_meat(variance, groups.squares) * (1.0 + share * variance.dependence) * variance.repeated
    spread = np.diag(gain @ meat @ gain.T)
    sampling, linked = spread * (1.0 - share), spread * share
    if variance.accuracy:
        moved = sums.mixing * accuracy_direction(sums, estimate.beta, design.intercept)
        linked = linked + variance.accuracy * (gain @ moved) ** 2
    released = ReleasedVariance(
        variance.route, meat, variance.noise, variance.weights, variance.residual, variance.accuracy
    )
    return ErrorParts(privacy, sampling, linked, released)


def usable_meat(variance: NoisyVariance, count: float) -> Floats:
    """The noisy meat made positive definite, and freed of its weights.

    On the weighted scale its diagonal is about ``n·τ²``; eigenvalues below a tenth of that are noise.
    """
    values, vectors = np.linalg.eigh((variance.meat + variance.meat.T) / 2.0)
    whole = (vectors * np.maximum(values, 0.1 * count * variance.residual**2)) @ vectors.T
    whole = whole / np.outer(variance.weights, variance.weights)
    return np.asarray(whole if variance.basis is None else variance.basis.T @ whole @ variance.basis, np.float64)


def linkage_share(groups: Groups, design: Design, beta: Floats, sums: ReleasedSums, variance: NoisyVariance) -> float:
    """Share of the residual variance that wrong links cause: ``(1-γ²)·Var(x'β)`` of the whole."""
    gamma = groups.accuracy
    if gamma == 1.0 or not design.columns:
        return 0.0
    explained = explained_variance(design, sums, beta, gamma, groups.total)
    return float(np.clip((1.0 - gamma**2) * explained / variance.residual**2, 0.0, 0.95))


def explained_variance(design: Design, sums: ReleasedSums, beta: Floats, accuracy: float, weight: float) -> float:
    """``Var(x'β)`` as the released matrix tells it, columns spread as the design says; rows weigh `weight` together."""
    slopes = beta[int(design.intercept) :]
    core = centred_core(sums.matrix, design.intercept)
    spread = column_spread(design) / instrument_signal(design)
    return float(slopes @ (core * spread[:, None]) @ slopes) / (weight * accuracy)


def accuracy_direction(sums: ReleasedSums, beta: Floats, intercept: bool) -> Floats:
    """``γ ∂(Hβ)/∂γ`` (p): the slopes' part of Hβ, the means taken out."""
    first = int(intercept)
    return np.concatenate([np.zeros(first), centred_core(sums.matrix, intercept) @ beta[first:]])


def accuracy_variance(linkage: Linkage, blocks: BlockFacts | None) -> float | None:
    """Relative variance of the declared accuracy; block shares only where they are public."""
    if not isinstance(linkage, ELE):
        return 0.0
    if blocks is None or not blocks.by_key:
        return linkage.accuracy_variance(None)
    total = sum(blocks.by_key.values())
    return linkage.accuracy_variance({key: rows / total for key, rows in blocks.by_key.items()})


def repeated_rows(linkage: Linkage, unit: PrivacyUnit, route: str) -> float:
    """By how much rows of one person may raise the variance beyond what is squared.

    If a person's L rows are squared one by one, the square of their sum is at most L times that (Cauchy-Schwarz), whatever they have in common. Totals of persons, and of clusters that hold whole
    persons, have it all; in an exact join the blocks are persons.
    """
    return 1.0 if route in CLUSTERED or (route == "block" and isinstance(linkage, Exact)) else float(unit.rows)


def link_dependence(linkage: Linkage, route: str, blocks: BlockFacts | None) -> float:
    """Extra linkage variance that rows by themselves do not show, as a share of theirs.

    If one response is misplaced, so is another of the same block. Simulated over random links (subsets of a
    block cycled, or each row wrong by itself), block variance exceeds row variance by up to half of its linkage
    part in blocks of two, and by less the larger the block: .9/√m covers all of them. Averaged over rows
    where block sizes are public, else one half.
    """
    if route == "block" or isinstance(linkage, Exact):
        return 0.0
    return 0.5 if blocks is None else blocks.dependence
