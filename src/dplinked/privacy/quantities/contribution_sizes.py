"""How long the totals of contributions are, of persons or clusters: by what is left of their squares if they are cut. Sensitivity with its proof, plan, draw and choice of a norm."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.right_residuals import changed_totals, pair_weights, total_meat_sensitivity
from dplinked.privacy.spending import TOTALS_MEAT, TOTALS_SIZES, Spending
from dplinked.sums.clipped import ContributionSizes
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]

_WANTED, _BEARABLE = 0.12, 0.25  # noise of the meat, relative to it: what norms aim at, and the most
_HARDLY = 2.0  # the most of clusters, for which nothing else can stand in
_FILLED = 0.2  # of their norm, at most, totals fill on average, so that few are cut
_WHOLE = 0.9  # share of the squares that a norm must leave, beside wider ones, as far as noise lets tell
_CLEAR = 2.0  # times their noise: what sizes are taken to be smaller by
_STEP = math.sqrt(2.0)  # from norm to norm


def contribution_sizes_sensitivity(norms: Floats, largest: float, route: str, exposure: LinkageExposure) -> float:
    """Sensitivity of ``(Σ_c min(‖T_c‖²/K², 1))`` over norms K, T_c totals of contributions of persons or clusters (`route`), each at most `largest` long (T) per response met.

    Proof. Each term lies between 0 and 1, so that a total which changes in any way moves each sum by at most 1. Of the other totals, the squares ``min(‖T_c‖²/K², 1)`` have slope at most
    ``2/K``, and what these totals move by adds up to T times :func:`changed_totals`' second number. All norms together: the root of the sum of squares.
    """
    changed, met = changed_totals(route, exposure)
    return float(np.linalg.norm(changed + 2.0 * largest * met / norms))


def ladder(unit: float, longest: float) -> Floats:
    """Norms from 4 times a `unit` up to 14 times `longest` units, in equal ratios."""
    steps = math.ceil(math.log(14.0 / 4.0 * max(1.0, longest)) / math.log(_STEP))
    return np.asarray(4.0 * unit * _STEP ** np.arange(steps + 1), np.float64)


def long_ladder(unit: float, longest: float) -> Floats:
    """The same for totals of which nobody knows how many there are: half a `unit`, which most of them exceed and which tells that, and norms from a unit on."""
    below = np.append(0.5, _STEP ** np.arange(4.0))
    return np.concatenate([unit * below, ladder(unit, longest)])


def is_hopeless(p: int, route: str, exposure: LinkageExposure, totals: float, mu: float) -> bool:
    """Whether the meat of so many `totals` would drown in noise even if all of them were cut; from public values."""
    return total_meat_sensitivity(1.0, 0.0, route, exposure) * p / (mu * totals) > _BEARABLE


def enough_clusters(p: int, exposure: LinkageExposure, mu: float) -> int:
    """About how many clusters it takes for noise to leave their squares as clear as is aimed at, from public values.

    Totals fill as much of their norm as they may at best. Norms go in steps and are chosen by noisy sizes, so that it takes three times as many until intervals are hardly ever far too long, as was measured.
    """
    at_best = total_meat_sensitivity(1.0, 0.0, "cluster", exposure) * p / (mu * _WANTED * _FILLED)
    return math.ceil(3.0 * at_best)


def release_contribution_sizes(private: ContributionSizes, spending: Spending) -> tuple[Floats, float]:
    """Release the sums for all norms in one Gaussian draw: the noisy sums, and the noise in each.

    Privacy
    -------
    μ-GDP for its share of the budget: neighbours are at most :func:`contribution_sizes_sensitivity` apart, and rounding's share of a total is at most that of its square.
    """
    norms, exposure = private.norms, private.exposure
    longest = max(1.0, 2.0 * private.largest * pair_weights(exposure)[0] / float(norms.min()))
    sensitivity = contribution_sizes_sensitivity(norms, private.largest, private.route, exposure)
    sensitivity += rounding_slack(private.rows, longest, norms.size)
    mu = spending.take(TOTALS_SIZES)
    part = Part("sizes of totals", norms.size, sensitivity, 1.0, sensitivity / mu)
    plan = spending.note(make_room_for_draw(NoisePlan((part,), mu), float(private.rows)))
    return noise.add_gaussian(private.sizes, plan.scales()), plan.parts[0].scale


def choose_total_norm(
    p: int, sizes: Floats, scale: float, private: ContributionSizes, spending: Spending
) -> float | None:
    """The norm that totals are cut to before they are squared, from released values; None if their squares would drown in noise, or be cut by more than noise lets tell.

    It is the widest that the noise leaves room for, because what is cut from long totals is missing from the variance.
    """
    norms, mu = private.norms, spending.share(TOTALS_MEAT)
    sizes = np.minimum.accumulate(sizes)  # the wider the norm, the less of it totals fill
    least = np.maximum(sizes - _CLEAR * scale, 1e-9)  # sums of at least so much
    drawn = np.array([total_meat_sensitivity(norm, private.largest, private.route, private.exposure) for norm in norms])
    relative = p * drawn / (mu * least * norms**2)
    squares, clear = sizes * norms**2, least * norms**2
    wider = np.append(np.maximum.accumulate(clear[::-1])[::-1][1:], 0.0)
    many = private.rows / private.exposure.persons if private.route == "person" else float(sizes[0])
    whole = (squares >= _WHOLE * wider) & (sizes <= _FILLED * many)
    for most in (_WANTED, _BEARABLE, *([_HARDLY] if private.route == "cluster" else [])):
        fitting = np.flatnonzero(whole & (relative <= most))
        if fitting.size:
            return float(norms[fitting[-1]])
    return None
