"""What counts over a secret sample cost, alone and beside Gaussian releases.

The rows of a person are in the sample or not, and who does not know which sees a mixture. Its privacy curve is bounded in closed form, up to one
threshold that bisection finds; beside Gaussian releases it is integrated over what they tell. docs/mathematics.md has the proofs in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import privacy_delta, privacy_mu
from dplinked.study.budget import check_budget

Floats = NDArray[np.float64]

_ROUNDING = 1e-7  # room for the last digits
_MOST_OUTCOMES = 10_000
# Places at which a curve is tabulated: evenly up to 1, then 1 % apart, up to 60 or twice ε and more.
_FINE, _STEP, _LARGEST = 1.0, 0.005, 60.0


def secret_delta(samples: Sequence[SecretSample], epsilon: float, mu: float = 0.0) -> float:
    """A δ at which secret samples and Gaussian releases of μ, all together, are (ε, δ)-private.

    Proof. The Gaussian releases' privacy loss L is normal with mean μ²/2 and variance μ² on one side, and mean -μ²/2 on the other (or dominated by that). Given what they
    show, the samples have to make up for ε - L, so ``δ = E H(e^(ε-L))``, H the samples' curve. H falls and is convex in its argument, so between two places of the table it lies below the chord, whose
    expectation needs no more than the probabilities of L between them on either side.
    """
    if not samples:
        return privacy_delta(mu, epsilon)
    if mu <= 0.0:
        return float(_sample_deltas(tuple(samples), np.array([epsilon]))[0])
    from scipy.special import ndtr

    largest = _LARGEST
    while (
        largest < 2.0 * epsilon
    ):  # else the curve's end, which stands for all that lies beyond, would be all that is left
        largest *= 2.0
    places, heights = _table(tuple(samples), largest)
    own, other = ((epsilon - places - sign * mu * mu / 2.0) / mu for sign in (1.0, -1.0))
    # Between two places, a and b: the probability of ε - L on one side, and e^(ε-a) times that on the other, which lies between 1 and e^(b-a) of the first.
    chance, moment = _chances(own, 0.0), _chances(other, epsilon - places[:-1])
    slope = np.diff(heights) / np.expm1(np.diff(places))
    between = heights[:-1] * chance + slope * (moment - chance)
    found = ndtr((places[0] - epsilon + mu * mu / 2.0) / mu) + between.sum() + heights[-1] * ndtr(own[-1])
    return float(min(1.0, found * (1.0 + _ROUNDING)))


def _chances(ends: Floats, logarithm: Floats | float) -> Floats:
    """Probabilities of a normal number between falling ends, times a factor given by its logarithm. Tails are subtracted from the side that is small, which keeps their digits."""
    from scipy.special import log_ndtr

    upper = ends[1:] > 0.0
    larger, smaller = np.where(upper, -ends[1:], ends[:-1]), np.where(upper, -ends[:-1], ends[1:])
    return _difference(log_ndtr(larger) + logarithm, log_ndtr(smaller) + logarithm)


@lru_cache(maxsize=64)
def _table(samples: tuple[SecretSample, ...], largest: float) -> tuple[Floats, Floats]:
    """Places up to the largest on either side of 0, and the samples' curve H at ``e^place``: below 1, ``H(a) = 1 - a + a·H(1/a)`` with both sides exchanged, which the bound covers too."""
    further = np.geomspace(_FINE, largest, math.ceil(math.log(largest / _FINE) / 0.01))
    places = np.concatenate([np.arange(0.0, _FINE, _STEP), further])
    heights = _sample_deltas(samples, places)
    mirrored = -np.expm1(-places) + np.exp(-places) * heights
    return np.concatenate([-places[:0:-1], places]), np.concatenate([mirrored[:0:-1], heights])


def _sample_deltas(samples: tuple[SecretSample, ...], epsilon: Floats) -> Floats:
    """δ of secret samples alone at each ε (0 or more).

    Proof. Tell the adversary all rows that were drawn but the person's own t rows of each sample. With w_S the probability that of these exactly the rows S
    were drawn, one neighbour's outputs have the law P = Σ_S w_S N(v_S, I), the other's P' = Σ_S w_S N(v'_S, I), in units of the noise. Split each w_S into parts π and, on the other side, into
    parts ρ, and pair them: the positive part of P - e^ε P' is at most the sum of those of the pairs, ``Σ π δ(distance of the pair; ε + ln(ρ/π))``, δ(·) the Gaussian curve, which grows
    with the distance. That holds for all splittings. Here "none drawn" is paired with e^-ε of itself, which adds nothing, and each other S with itself and with what is left of "none drawn" on the
    other side. Of j drawn rows each moves one group's count by at most max(guess, 1-guess), and its turned answer by 1, so the distances are at most j·presence and j·turning, whatever the
    rows' groups and answers are. The splitting has every pair's likelihood ratio cut at the same place z, the largest that the weight of "none drawn" allows. For a single sample and group it is
    exact: all pairs are told apart by the same half-line.
    """
    none, weight, presence, turning = _outcomes(samples)
    epsilon = epsilon[:, None]
    allowed = none * -np.expm1(-epsilon[:, 0])

    def paired_with_none(z: Floats) -> Floats:
        """Share of each outcome that is paired with "none drawn"; never all of it."""
        share = -np.expm1(np.minimum(0.0, epsilon - turning * (turning / 2.0 - presence + z[:, None])))
        return np.asarray(np.minimum(share, 1.0 - 1e-15))

    def used(z: Floats) -> Floats:
        ratio = np.exp(np.minimum(presence * (z[:, None] - presence / 2.0) - epsilon, 700.0))
        return np.asarray((paired_with_none(z) * weight * ratio).sum(axis=1))

    low, high = np.full(allowed.size, -1e3), np.full(allowed.size, 1e3)
    for _ in range(64):
        middle = (low + high) / 2.0
        fits = used(middle) <= allowed
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    share, z = paired_with_none(low), low[:, None]
    with_none = _gaussian(presence, presence * (z - presence / 2.0))
    with_itself = _gaussian(turning, epsilon - np.log1p(-share))
    found = share * with_none + (1.0 - share) * with_itself
    return np.asarray(np.minimum(1.0, (found * weight).sum(axis=1) * (1.0 + _ROUNDING)))


def _gaussian(mu: Floats, epsilon: Floats) -> Floats:
    """:func:`dplinked.privacy.calibration.privacy_delta` of many numbers."""
    from scipy.special import log_ndtr

    return _difference(log_ndtr(mu / 2.0 - epsilon / mu), log_ndtr(-mu / 2.0 - epsilon / mu) + epsilon)


def _difference(first: Floats, second: Floats) -> Floats:
    """``e^first - e^second``, and 0 where that is below."""
    return np.asarray(np.exp(first) * -np.expm1(np.minimum(0.0, second - first)))


def _outcomes(samples: Sequence[SecretSample]) -> tuple[float, Floats, Floats, Floats]:
    """Probability that none of the person's rows was drawn; of each other outcome its probability, and its distances ``j·presence`` and ``j·turning`` over all samples."""
    from scipy.special import gammaln, xlog1py, xlogy

    weight, presence, turning = np.ones(1), np.zeros(1), np.zeros(1)
    for sample in samples:
        t, drawn = sample.rows, np.arange(sample.rows + 1)
        if weight.size * drawn.size > _MOST_OUTCOMES:
            raise StudyError("These are more secret samples, or rows per person, than can be added up.")
        ways = gammaln(t + 1) - gammaln(drawn + 1) - gammaln(t - drawn + 1)
        chance = np.exp(ways + xlogy(drawn, sample.rate) + xlog1py(t - drawn, -sample.rate))
        weight = np.outer(weight, chance).ravel()
        presence = np.hypot.outer(presence, drawn * sample.presence).ravel()
        turning = np.hypot.outer(turning, drawn * sample.turning).ravel()
    return float(weight[0]), weight[1:], presence[1:], turning[1:]


def add_payment(paid: float | SecretSample, mu: float) -> tuple[list[SecretSample], float]:
    """Secret samples and μ of a Gaussian release of μ together with what was paid before, a μ or a secret sample."""
    return ([paid], mu) if isinstance(paid, SecretSample) else ([], math.hypot(paid, mu))


def secret_epsilon(samples: Sequence[SecretSample], delta: float, mu: float = 0.0) -> float:
    """Smallest ε at which secret samples and Gaussian releases of μ together are (ε, δ)-private (rounded up)."""
    low, high = 0.0, 1.0
    while secret_delta(samples, high, mu) > delta:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (low, middle) if secret_delta(samples, middle, mu) <= delta else (middle, high)
    return high * (1.0 + _ROUNDING)


def mu_beside(samples: Sequence[SecretSample], epsilon: float, delta: float) -> float:
    """Largest μ of Gaussian releases that are (ε, δ)-private together with secret samples (rounded down); 0 if the samples alone are not."""
    low, high = 0.0, privacy_mu(epsilon, delta)
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if secret_delta(samples, epsilon, middle) <= delta else (low, middle)
    return low * (1.0 - _ROUNDING)


@lru_cache(maxsize=64)
def calibrate_sample(rate: float, rows: int, guess: float, epsilon: float, delta: float) -> SecretSample:
    """The secret sample with the least noise that is (ε, δ)-private (rounded up)."""
    check_budget(epsilon, delta)
    low, high = 0.0, 2.0 * rows / privacy_mu(epsilon, delta)  # twice what the counts would need were the sample public
    for _ in range(50):
        middle = (low + high) / 2.0
        private = secret_delta([SecretSample(rate, rows, middle, guess)], epsilon) <= delta
        low, high = (low, middle) if private else (middle, high)
    return SecretSample(rate, rows, high * (1.0 + _ROUNDING), guess)
