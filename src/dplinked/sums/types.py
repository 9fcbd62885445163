"""What a pass over linked rows leaves behind, and what engines are told: a few small arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.study.family import Curve
from dplinked.sums.partners import clip_residuals

Floats = NDArray[np.float64]

CLUSTERED = ("person", "cluster")  # routes whose totals follow the design's cluster column


class Private:
    """A value before any noise. Nothing of it may be shown, so its text withholds it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(values withheld)"


@dataclass(frozen=True, repr=False)
class PrivateSums(Private):
    """Sums over linked rows, before any noise.

    Attributes
    ----------
    matrix
        ``h'QX`` (p×p, intercept first), or ``W'W`` for the paper's estimators.
    vector
        ``h'z`` (p), or ``W'z``.
    count
        Number of rows, public.
    squares
        ``z'z``, for the paper's estimators alone.
    known, complete
        Total weight of rows that have all regressors, and of those that have a response too, where missing cells are dropped.
    """

    matrix: Floats
    vector: Floats
    count: int
    squares: float = 0.0
    known: float = 0.0
    complete: float = 0.0


@dataclass(frozen=True, repr=False)
class PrivateCounts(Private):
    """Rows per bin of a public grid; each row of `counts` is one histogram (histograms×bins)."""

    counts: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class PrivateMeat(Private):
    """Sum of squared, clipped contributions to ``b - Hβ`` (p×p)."""

    matrix: Floats


@dataclass(frozen=True, repr=False)
class PrivateResiduals(Private):
    """The clipped residual equation of right links (p), and the squares of its contributions (p×p) if they were asked for."""

    vector: Floats
    meat: Floats | None = None


@dataclass(frozen=True, repr=False)
class PrivateSquares(Private):
    """Sum of clipped squares of right links' residuals, and the sum of squares of what rows contribute to it."""

    total: float
    squares: float


@dataclass(frozen=True, repr=False)
class PrivateMoments(Private):
    """Sums of what rows count, of its square and of its fourth power (3)."""

    sums: Floats


@dataclass(frozen=True, repr=False)
class PrivateStrata(Private):
    """Of each stratum the equation of its rows (G×p), and how many rows or clusters it has (G)."""

    totals: Floats
    numbers: Floats


@dataclass(frozen=True, repr=False)
class PrivateSizes(Private):
    """``Σ_c min(‖T_c‖²/K², 1)`` over totals T_c of contributions, for each of several norms K."""

    sizes: Floats


# --- what engines are told, and what they tell of public things -----------------------------------------


@dataclass(frozen=True, repr=False)
class BlockFacts:
    """What a release needs to know of public block sizes.

    Attributes
    ----------
    largest
        Rows of the largest block.
    by_key
        Rows per key of an accuracy table, the other block under None. Of a single accuracy, those with null keys under None and all others under the empty
        text, if there are any with null keys; else empty.
    dependence
        Mean over rows of ``min(.5, .9/√m)``, m the size of the row's block, blocks of one counting 0.
    contrast
        Mean over rows of a, how much more likely the row's own response is than another one of its block.
    """

    largest: int
    by_key: Mapping[str | None, int]
    dependence: float
    contrast: float = 1.0


@dataclass(frozen=True)
class CellFacts:
    """Missing cells of a numeric column, those below and above its bounds, where the middle 70 % lie, and the smallest and largest (None without cells)."""

    missing: int
    below: int
    above: int
    middle: tuple[float, ...] | None
    ends: tuple[float, ...] | None


@dataclass(frozen=True)
class Predictor:
    """Public by then: released coefficients (p), released means of the regressors (d), declared accuracy."""

    beta: Floats
    mean: Floats
    accuracy: float


@dataclass(frozen=True)
class Whitening:
    """Public by then: a matrix (p×p) that makes instruments ``u = matrix·(1, h)`` of mean square one which hang together no more, and the norm C that they are cut to.

    A row counts ``min(1, C²/‖u‖²)``, so that its square ``uu'`` is at most C² long. What it counts is a factor on its instruments, the same in the
    equation and in its slope.
    """

    matrix: Floats
    norm: float

    def apply(self, instruments: Floats) -> tuple[Floats, Floats]:
        """u (p×k) and what each row counts (k), from instruments with the intercept's 1 (p×k)."""
        u = self.matrix @ instruments
        squares = np.einsum("ij,ij->j", u, u) * (1.0 + 1e-12) ** 2
        return u, np.asarray(self.norm**2 / np.maximum(squares, self.norm**2), np.float64)


@dataclass(frozen=True)
class ResidualClip:
    """Public by then: the line that residuals are taken around, and how far they are clipped.

    A row's residuals are clipped to ±`limit`/√(ι² + ‖h‖²), h its instruments and ι the `intercept_weight`, but to ±`widest` at most. So no row's
    ``(ι, h)`` times a clipped residual is longer than `limit`. What a row counts is a factor on its (ι, h). If there is a `whitening`, its instruments, times what the row counts, take the place of (ι, h) and of
    the equation's (1, h).

    Along a `curve` nothing is clipped, since residuals of rare events are all in one tail. Fitted values are the curve's means at the line, and residuals are multiplied by
    ``s = min(1, limit/√(ι² + ‖h‖²))`` (`widest` is 1): it is the instruments that are shortened, to at most `limit`, whatever the row counts: else rows would lose of their weights, and
    not of tails.

    Attributes
    ----------
    beta
        Released coefficients (p).
    limit
        K, the norm of a row's largest contribution.
    intercept_weight
        ι, what the intercept's 1 counts for; 0 without an intercept.
    widest
        Largest clip.
    whitening
        What makes whitened instruments, which include the intercept's; ι is 0 then.
    curve
        How the outcome's mean follows the line; None where it is the line.
    exposed
        Whether the logarithm of the exposure is added to the line, if there is an exposure.
    around
        Along a curve, a public number that outcomes are taken around, in the place of the curve's means. A missing outcome that is dropped then counts as the mean, not as nothing.
    squared
        Whether it is squares of residuals that are clipped, to `limit`², whatever the instruments.
    """

    beta: Floats
    limit: float
    intercept_weight: float
    widest: float
    whitening: Whitening | None = None
    curve: Curve | None = None
    exposed: bool = True
    around: float | None = None
    squared: bool = False

    def fit(self, line: Floats) -> Floats:
        """Fitted values of rows (k), from their values on the line."""
        return line if self.curve is None else self.curve.mean(line)

    def meet(
        self, responses: Floats, fitted: Floats, widths: Floats, answered: NDArray[np.bool_] | Floats | float
    ) -> Floats:
        """What counts of residuals (k): ψ of them, or along a curve their part that the shortened instruments leave. `answered` is 0 where a response is missing."""
        if self.squared:
            return np.asarray(np.minimum((responses - fitted) ** 2, widths * widths) * answered, np.float64)
        if self.curve is None:
            return clip_residuals(responses - fitted, widths) * answered
        mean = fitted if self.around is None else np.full_like(fitted, self.around)
        return np.asarray(np.where(answered, responses - mean, fitted - mean) * widths, np.float64)

    def widths(self, instruments: Floats, counted: Floats | float = 1.0) -> Floats:
        """How far the residuals of some rows are clipped, or by what their instruments are multiplied (k).

        From instruments without the intercept's (d×k), or from whitened ones (p×k), and from what rows count (k), which does not matter along a curve.
        """
        if self.squared:
            return np.full(instruments.shape[1], self.limit)
        counted = 1.0 if self.curve is not None else counted
        norms = counted * np.sqrt(self.intercept_weight**2 + np.einsum("ij,ij->j", instruments, instruments))
        return np.asarray(self.limit / np.maximum(norms * (1.0 + 1e-12), self.limit / self.widest), np.float64)


@dataclass(frozen=True, eq=False)
class Centres:
    """Public by then: what contributions, times their weights, are taken around in each stratum (`middles`, G×p), and what is left of them is multiplied by (`factors`, G), before they are cut and squared.

    The last stratum is that of rows whose level was not declared, or is missing.
    """

    middles: Floats
    factors: Floats

    @property
    def stretch(self) -> float:
        """How far apart contributions that differ by 1 may be taken."""
        return max(1.0, float(self.factors.max()))

    def beyond(self) -> Centres:
        """The same, with a last stratum for clusters without rows, of which nothing is left."""
        p = self.middles.shape[1]
        return Centres(np.vstack([self.middles, np.zeros((1, p))]), np.append(self.factors, 0.0))

    def take(self, contributions: Floats, strata: NDArray[np.int32]) -> Floats:
        """What is left of the contributions of some rows or clusters (p×k), which are of these strata (k)."""
        return np.asarray((contributions - self.middles[strata].T) * self.factors[strata], np.float64)


@dataclass(frozen=True)
class MeatClip:
    """Public by then: whose contributions are squared (`route`), their weights (p), the norm they are cut to, and what they are taken around before, if there are strata.

    Routes are each ``"row"`` by itself, totals of each ``"block"``, and totals of rows that have the same key in the design's cluster column: of a ``"person"``, whose ids are public, or of a
    ``"cluster"``, whose cells are as private as any.
    """

    route: str
    weights: Floats
    norm: float
    centres: Centres | None = None

    @property
    def totalled(self) -> bool:
        """Whether totals of several rows are squared."""
        return self.route != "row"

    @property
    def clustered(self) -> bool:
        """Whether they are totals by the design's cluster column."""
        return self.route in CLUSTERED
