"""From (ε, δ) to noise: how many standard deviations per unit of sensitivity.

The analytic calibration is exact for one Gaussian release: ``μ`` below is its signal-to-noise ratio
Δ/σ, releases compose as ``μ² = Σ μ_i²``, and ``ρ = μ²/2`` is the same in zero-concentrated terms. The
others are the paper's rules and their relatives; each refuses where it would add less noise than the
analytic calibration shows to be needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dplinked.errors import CalibrationError, StudyError, shown
from dplinked.study.budget import check_budget

_HALVINGS = 200  # at most: what is 0 is approached, not reached


def privacy_delta(mu: float, epsilon: float) -> float:
    """Smallest δ at which a Gaussian release with Δ/σ = μ is (ε, δ)-private.

    ``δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)`` (Balle and Wang 2018), evaluated in logarithms.
    """
    from scipy.special import log_ndtr

    if mu <= 0:
        return 0.0
    first = float(log_ndtr(mu / 2.0 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    return 0.0 if second >= first else math.exp(first) * -math.expm1(second - first)


def privacy_mu(epsilon: float, delta: float) -> float:
    """Largest μ = Δ/σ of a Gaussian release that is (ε, δ)-private (rounded down)."""
    check_budget(epsilon, delta)
    low, high = 0.0, 1.0
    while privacy_delta(high, epsilon) <= delta:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        if not low < (middle := (low + high) / 2.0) < high:
            break
        low, high = (middle, high) if privacy_delta(middle, epsilon) <= delta else (low, middle)
    return low * (1.0 - 1e-7)  # room for the last digits of δ


def privacy_epsilon(mu: float, delta: float) -> float:
    """Smallest ε at which Gaussian releases of μ in all are (ε, δ)-private (rounded up)."""
    low, high = 0.0, 1.0
    while privacy_delta(mu, high) > delta:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        if not low < (middle := (low + high) / 2.0) < high:
            break
        low, high = (low, middle) if privacy_delta(mu, middle) <= delta else (middle, high)
    return high * (1.0 + 1e-7)


def round_up(value: float, digits: int = 4) -> str:
    """A positive number in so many digits, never less than it is: what is promised must not be understated."""
    if not (math.isfinite(value) and value > 0):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return f"{math.ceil(value / step * (1.0 - 1e-14)) * step:.{digits}g}"


def round_down(value: float, digits: int = 4) -> str:
    """A number in so many digits, never more than it is: what is said to be left must be there."""
    if not (math.isfinite(value) and value > 0):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return f"{math.floor(value / step * (1.0 + 1e-14)) * step:.{digits}g}"


def _classic(epsilon: float, delta: float) -> float:
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def _paper_zcdp(epsilon: float, delta: float) -> float:
    return 2.0 * math.sqrt(math.log(1.0 / delta)) / epsilon


def _exact_rho(epsilon: float, delta: float) -> float:
    log = math.log(1.0 / delta)
    # ρ = ε + 2 ln(1/δ) - 2√((ε + ln(1/δ)) ln(1/δ)), written without cancellation
    rho = (epsilon / (math.sqrt(epsilon + log) + math.sqrt(log))) ** 2
    return 1.0 / math.sqrt(2.0 * rho)


def _cks_delta(rho: float, epsilon: float) -> float:
    """δ of ρ-zCDP by Canonne, Kamath and Steinke (2020), Proposition 12: minimise over the order α."""
    from scipy.optimize import minimize_scalar

    def log_delta(t: float) -> float:
        alpha = 1.0 + math.exp(t)
        return (alpha - 1.0) * (alpha * rho - epsilon) + alpha * math.log1p(-1.0 / alpha) - math.log(alpha - 1.0)

    best = minimize_scalar(log_delta, bounds=(-12.0, 18.0), method="bounded", options={"xatol": 1e-10})
    return math.exp(min(0.0, float(best.fun)))


def _cks(epsilon: float, delta: float) -> float:
    low, high = 1e-9, max(1.0, 2.0 * epsilon)
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _cks_delta(middle, epsilon) <= delta else (low, middle)
    return 1.0 / math.sqrt(2.0 * low)


def _analytic(epsilon: float, delta: float) -> float:
    return 1.0 / privacy_mu(epsilon, delta)


RULES: dict[str, Callable[[float, float], float]] = {
    "classic": _classic,
    "paper-zcdp": _paper_zcdp,
    "exact-rho": _exact_rho,
    "cks": _cks,
    "analytic": _analytic,
}


def noise_multiplier(epsilon: float, delta: float, rule: str = "analytic") -> float:
    """σ/Δ of a Gaussian release under a calibration rule.

    Parameters
    ----------
    rule
        ``analytic`` (exact), ``classic`` (Algorithm 2 of [LPK24], √(2 ln(1.25/δ))/ε), ``paper-zcdp``
        (Algorithm 1, 2√ln(1/δ)/ε), ``exact-rho`` (its ρ before the last inequality), ``cks``.

    Raises
    ------
    CalibrationError
        Where the rule adds less noise than (ε, δ) needs; the classic one does for large ε.
    """
    check_budget(epsilon, delta)
    if not isinstance(rule, str) or rule not in RULES:
        raise StudyError(f"There is no calibration rule {shown(rule)}; choose one of {sorted(RULES)}.")
    multiplier, needed = RULES[rule](epsilon, delta), _analytic(epsilon, delta)
    if not multiplier >= needed * (1.0 - 1e-9):
        raise CalibrationError(
            f"The {rule} calibration adds {multiplier:.4g} per unit of sensitivity at epsilon={epsilon:g}, delta={delta:g}; "
            f"{needed:.4g} is needed, so the release would not be private. Use calibration='tight' or a smaller epsilon."
        )
    return max(multiplier, needed)
