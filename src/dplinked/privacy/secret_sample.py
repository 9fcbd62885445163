"""What counts over a secret sample cost, alone and beside Gaussian releases.

The rows of a person are in the sample or not, and who does not know which sees a mixture. Its privacy curve is bounded in closed form, up to one
threshold that bisection finds. docs/mathematics.md has the proof in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import privacy_delta, privacy_mu
from dplinked.study.budget import check_budget

Floats = NDArray[np.float64]

_ROUNDING = 1e-7  # room for the last digits, of δ and of the weights
_MOST_OUTCOMES = 100_000


def secret_delta(samples: Sequence[SecretSample], epsilon: float, mu: float = 0.0) -> float:
    """A δ at which secret samples and Gaussian releases of μ, all together, are (ε, δ)-private.

    Proof. Tell the adversary all rows that were drawn but the person's own t rows of each sample. With w_S the probability that of these exactly the rows S
    were drawn, one neighbour's outputs have the law P = Σ_S w_S N(v_S, I), the other's P' = Σ_S w_S N(v'_S, I), in units of the noise; a μ-GDP release, chosen
    before or after, is dominated by one further coordinate with means μ and 0. Split each w_S into parts π and, on the other side, into parts ρ, and pair them:
    the positive part of P - e^ε P' is at most the sum of those of the pairs, ``Σ π δ(distance of the pair; ε + ln(ρ/π))``, δ(·) the Gaussian curve, which grows with
    the distance. That holds for all splittings. Here "none drawn" is paired with itself, and each other S with itself and with what is left of "none drawn" on the other side.
    Of j drawn rows each moves one group's count by at most max(guess, 1-guess), and its turned answer by 1, so the distances are at most j·presence and j·turning, whatever the rows'
    groups and answers are. The splitting has every pair's likelihood ratio cut at the same place z, the largest that the weight of "none drawn" allows. For a single group it is exact:
    all pairs are told apart by the same half-line.
    """
    if not samples:
        return privacy_delta(mu, epsilon)
    none, weight, presence, turning = _outcomes(samples)
    presence, turning = np.hypot(mu, presence), np.hypot(mu, turning)

    def own_part(z: float) -> Floats:
        """Share of each outcome that is paired with "none drawn"."""
        return np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - turning * (turning / 2.0 - presence + z))))

    def none_ratio(z: float) -> float:
        """ε + ln(ρ/π) of "none drawn", paired with itself."""
        return min(epsilon, mu * (z - mu / 2.0))

    def used(z: float) -> float:
        ratio = np.exp(np.minimum(presence * (z - presence / 2.0) - epsilon, 700.0))
        return none * math.exp(none_ratio(z) - epsilon) + float((own_part(z) * weight * ratio).sum())

    z = _largest(used, none)
    part = own_part(z)
    found = none * privacy_delta(mu, none_ratio(z))
    for w, share, near, far in zip(weight, part, presence, turning, strict=True):
        found += w * share * privacy_delta(near, near * (z - near / 2.0)) if share else 0.0
        found += w * (1.0 - share) * privacy_delta(far, epsilon - math.log1p(-share)) if share < 1.0 else 0.0
    return float(min(1.0, found * (1.0 + _ROUNDING)))


def add_payment(paid: float | SecretSample, mu: float) -> tuple[list[SecretSample], float]:
    """Secret samples and μ of a Gaussian release of μ together with what was paid before, a μ or a secret sample."""
    return ([paid], mu) if isinstance(paid, SecretSample) else ([], math.hypot(paid, mu))


def _outcomes(samples: Sequence[SecretSample]) -> tuple[float, Floats, Floats, Floats]:
    """Probability that none of the person's rows was drawn; of each other outcome its probability, and its distances ``j·presence`` and ``j·turning`` over all samples."""
    from scipy.stats import binom

    weight, presence, turning = np.ones(1), np.zeros(1), np.zeros(1)
    for sample in samples:
        drawn = np.arange(sample.rows + 1)
        if weight.size * drawn.size > _MOST_OUTCOMES:
            raise StudyError("These are more secret samples, or rows per person, than can be added up.")
        weight = np.outer(weight, binom.pmf(drawn, sample.rows, sample.rate)).ravel()
        presence = np.hypot.outer(presence, drawn * sample.presence).ravel()
        turning = np.hypot.outer(turning, drawn * sample.turning).ravel()
    return float(weight[0]), weight[1:], presence[1:], turning[1:]


def _largest(used: Callable[[float], float], allowed: float) -> float:
    """Largest z up to a thousand at which a growing function is at most what is allowed."""
    low, high = -1000.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if used(middle) <= allowed else (low, middle)
    return low


def secret_epsilon(samples: Sequence[SecretSample], delta: float, mu: float = 0.0) -> float:
    """Smallest ε at which secret samples and Gaussian releases of μ together are (ε, δ)-private (rounded up)."""
    low, high = 0.0, 1.0
    while secret_delta(samples, high, mu) > delta:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if secret_delta(samples, middle, mu) <= delta else (middle, high)
    return high * (1.0 + _ROUNDING)


def mu_beside(samples: Sequence[SecretSample], epsilon: float, delta: float) -> float:
    """Largest μ of Gaussian releases that are (ε, δ)-private together with secret samples (rounded down); 0 if the samples alone are not."""
    low, high = 0.0, privacy_mu(epsilon, delta)
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if secret_delta(samples, epsilon, middle) <= delta else (low, middle)
    return low * (1.0 - _ROUNDING)


def calibrate_sample(rate: float, rows: int, guess: float, epsilon: float, delta: float) -> SecretSample:
    """The secret sample with the least noise that is (ε, δ)-private (rounded up)."""
    check_budget(epsilon, delta)
    low, high = 0.0, 2.0 * rows / privacy_mu(epsilon, delta)  # twice what the counts would need were the sample public
    for _ in range(60):
        middle = (low + high) / 2.0
        private = secret_delta([SecretSample(rate, rows, middle, guess)], epsilon) <= delta
        low, high = (low, middle) if private else (middle, high)
    return SecretSample(rate, rows, high * (1.0 + _ROUNDING), guess)
