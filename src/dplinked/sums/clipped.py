"""Private values, each bound to what it was clipped to.

The door computes a sensitivity from the value that it is given, so it cannot be that of another clip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.study.design import Design
from dplinked.sums.types import (
    MeatClip,
    Private,
    PrivateSums,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class ClippedSums(Private):
    """``h'QX`` and ``h'z`` of rows clipped and scaled as `design` says, under the declared linkage.

    If rows with a missing regressor count 0, the number of the others, which is the intercept's own entry, is private, and so is that of rows with a response;
    `dropped` is then what one person can change about the responses of rows. It is None where cells are filled.
    """

    sums: PrivateSums
    design: Design
    exposure: LinkageExposure
    dropped: LinkageExposure | None = None


@dataclass(frozen=True, repr=False)
class ClippedPaperSums(Private):
    """``W'W``, ``W'z`` and ``z'z`` of rows of norm at most `row_norm` and responses within ±`response_bound`."""

    sums: PrivateSums
    row_norm: float
    response_bound: float
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class ColumnCounts(Private):
    """Histograms of the numeric columns of `rows` rows, each over its bounds (columns×bins)."""

    counts: NDArray[np.int64]
    rows: int


@dataclass(frozen=True, repr=False)
class ResidualCounts(Private):
    """Histogram of the absolute residuals of `rows` rows between increasing public edges; the last bin is open (bins).

    Where missing cells are dropped, rows that lack one have no residual and stand in the last bin. `incomplete` is the number of these rows, None where cells are filled.
    """

    counts: NDArray[np.int64]
    rows: int
    edges: Floats
    exposure: LinkageExposure
    incomplete: int | None = None


@dataclass(frozen=True, repr=False)
class ClippedMeat(Private):
    """Sum of squared contributions (p×p), each of norm at most `norm`.

    Attributes
    ----------
    route
        ``"row"`` or ``"block"``: whose contributions they are.
    rows
        Number of rows, public.
    norm
        The norm that every contribution was scaled down to.
    instrument
        Bound on the norm of a row's weighted instruments.
    reach
        Bound on ``|x'β|``.
    centred
        Whether contributions are taken around centres of strata before they are scaled.
    """

    matrix: Floats
    route: str
    rows: int
    norm: float
    instrument: float
    reach: float
    exposure: LinkageExposure
    centred: bool = False


@dataclass(frozen=True, repr=False)
class WhitenedGram(Private):
    """Sum of squares of whitened rows by themselves (p×p), each at most `norm`² long; `rows` is their number, public.

    If rows with a missing regressor are dropped, and the others `counted`, these are their number and that of rows with a response too; `exposure` is what one person can
    change about responses.
    """

    matrix: Floats
    norm: float
    rows: int
    counted: tuple[float, float] | None
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class ClippedResiduals(Private):
    """The clipped residual equation of right links, and the squares of its contributions if they were asked for.

    Attributes
    ----------
    vector
        The equation (p), the intercept's entry first.
    limit, intercept_weight
        K and ι: a row's term, with the intercept's entry times ι, is at most K long for each response that it meets.
    meat
        Sum of squared contributions, cut as `meat_clip` says.
    largest
        Bound on the weighted contribution of a row before it is cut, per response that it meets.
    rows
        Number of rows, public.
    """

    vector: Floats
    limit: float
    intercept_weight: float
    meat: Floats | None
    meat_clip: MeatClip | None
    largest: float
    rows: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class ContributionSizes(Private):
    """``Σ_c min(‖T_c‖²/K², 1)`` over totals of contributions to the equation, for increasing public norms K.

    `route`, `largest` and `rows` are what they are in :class:`ClippedResiduals` and its `meat_clip`.
    """

    sizes: Floats
    norms: Floats
    route: str
    largest: float
    rows: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class StratumTotals(Private):
    """The equation of the rows of each stratum (`totals`, G×p), and how many rows it has, or clusters if they are `clustered` (`numbers`, G).

    `limit`, `intercept_weight` and `rows` are what they are in :class:`ClippedResiduals`. If `own`, terms are contributions of rows that see no response but their own, scaled down to norm at most `limit`.
    """

    totals: Floats
    numbers: Floats
    clustered: bool
    limit: float
    intercept_weight: float
    rows: int
    exposure: LinkageExposure
    own: bool = False


@dataclass(frozen=True, repr=False)
class SquaredResiduals(Private):
    """``Σ B_i`` and ``Σ B_i²``, B_i what row i contributes of squared residuals of right links, each clipped to `limit`; `rows` is the number of rows, public."""

    total: float
    squares: float
    limit: float
    rows: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class CurveSums(Private):
    """What a curve makes of the regressors of rows by themselves, each times γ - o and the weight of its block; no response enters.

    Attributes
    ----------
    vector
        ``Σ s (1, h)(m - level)`` (p), m the curve's mean.
    matrix
        ``Σ s m' (1, h)(1, x)'`` (p×p), m' the curve's slope.
    limit, intercept_weight
        K and ι: ``s(ι, h)`` is at most K long.
    reach
        Bound on ``|m - level|``.
    steepest
        Bound on m'.
    radius
        Bound on ‖x‖.
    rows
        Number of rows, public.
    """

    vector: Floats
    matrix: Floats
    limit: float
    intercept_weight: float
    reach: float
    steepest: float
    radius: float
    rows: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class CompleteRows(Private):
    """Numbers of rows that have all regressors, and of those that have a response too, each row times γ - o and the weight of its block where blocks are public.

    If there are weights or a condition, they are those of rows that count at all, each as one.
    `rows` is the number of all rows, public.
    """

    known: float
    complete: float
    rows: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class WeightMoments(Private):
    """Sums of what rows count, of its square and of its fourth power (3); `rows` is the number of rows, public."""

    sums: Floats
    rows: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class RightLinks(Private):
    """Numbers of right links per group among `checked` links in all."""

    counts: NDArray[np.int64]
    checked: int
    exposure: LinkageExposure


@dataclass(frozen=True, repr=False)
class SecretLinks(Private):
    """Numbers of right links and of checked links per group, in a secret sample of `rows` rows."""

    correct: NDArray[np.int64]
    checked: NDArray[np.int64]
    rows: int
