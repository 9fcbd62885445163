"""What [LPK24] says about variances, noise and error bounds, as it says it.

The noise is checked against the paper's formulas written out once more, from n, σ, γ and M alone: a fault in the functions that simulations and
theoretical variances share would go unseen otherwise.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from dplinked.not_private.paper.claim import (
    Claim,
    Setting,
    listed,
    repetitions,
    rises,
    series,
    sharp_series,
    variance_error,
    variance_ratios,
    where,
)
from dplinked.not_private.paper.settings import BETA, EXCESS_SHARE, RADII, PointResult, at_radius
from dplinked.not_private.paper.variances import (
    ngd_excess_error,
    ssp_excess_error,
    ssp_excess_quantile,
    unclipped_probability,
)

_SIMULATIONS = "Section 5.1"
_IDLE = 0.002  # share of runs on the projection's border below which it is taken to be idle
_CLOSE = 0.1  # what "closely aligns" is taken to mean, beside the sampling error
_FACTOR = 3.0  # a power of n or σ too many in the squared error would move the ratio by 3.3 or 3.6 from end to end


# --- variances -----------------------------------------------------------------------------------------


def check_ngd_variance(setting: str, results: Setting) -> list[Claim]:
    """Within a tenth and three standard errors: at all points as the paper says it, and where the projection is idle as we do."""
    measured, theory, runs = (
        sharp_series(results, "RL-NGD", column)
        for column in ("empirical_variance", "theoretical_variance", "repetitions")
    )
    ratio, slack = measured / theory, _CLOSE + 3.0 * variance_error(runs[0])
    idle = np.array([point.projected["RL-NGD"] < _IDLE for point in results])
    written = Claim(
        setting, "“The theoretical variance of post-RL NGD closely aligns with the empirical variance at the chosen level of projection C” "
        f"(within 10 % and sampling error; all points; C = {results[0].radius:g})",
        f"empirical/theoretical {listed(ratio)}", bool((np.abs(ratio - 1.0) < slack).all()), place=_SIMULATIONS,
    )  # fmt: skip
    text = "Theorem 4.6's variance of RL-NGD agrees with the empirical one where the projection is idle"
    if not idle.any():
        return [written, Claim(setting, text, "projection active everywhere", None, "ours")]
    free = ratio[idle]
    shown = f"empirical/theoretical {free.min():.2f} to {free.max():.2f}, mean {free.mean():.2f}; idle {where(results, idle)}"
    close = bool(abs(free.mean() - 1.0) < _CLOSE and (np.abs(free - 1.0) < slack).all())
    return [written, Claim(setting, text, shown, close, "ours")]


def check_conservative(setting: str, results: Setting) -> Claim:
    """No empirical variance above the theoretical one, up to sampling error, and on average the further below the smaller C is."""
    chosen = results[0].radius
    levels = sorted({*RADII, chosen})
    found = {C: variance_ratios(results, at_radius("RL-NGD", C, chosen)) for C in levels}
    above = any((found[C] > 1.0 + 3.0 * variance_error(repetitions(results))).any() for C in levels[:-1])
    means = [found[C].mean() for C in levels]
    return Claim(
        setting, "“With a lower level of projection on the gradient update, we anticipate [the theoretical variance] to be conservative”",
        f"empirical/theoretical {'; '.join(f'C = {C:g}: {r.min():.2f} to {r.max():.2f}' for C, r in found.items())}",
        bool(not above and (np.diff(means) > 0.0).all()), place=_SIMULATIONS,
    )  # fmt: skip


def check_ssp_variance(setting: str, results: Setting) -> list[Claim]:
    """Two sentences: good at one end of the axis, too small at the other."""
    ratio = variance_ratios(results, "RL-SSP")
    hard, easy = (ratio[0], ratio[-1]) if setting == "setting1" else (ratio[-1], ratio[0])
    ends = ("n = 10,000", "n = 3,000") if setting == "setting1" else ("σ = .5", "σ = 1.8")
    return [
        Claim(
            setting, "“The theoretical variance of post-RL SSP approximates well with moderately large n and small σ” "
            f"(within 25 % at {ends[0]})", f"empirical/theoretical {listed(ratio)}", bool(0.75 < easy < 1.25), place=_SIMULATIONS,
        ),
        Claim(
            setting, "“In scenarios with small n and/or large σ, our theoretical variance may underestimate the reality” "
            f"(by half or more at {ends[1]})", f"empirical/theoretical {hard:.1f}", bool(hard > 1.5), place=_SIMULATIONS,
        ),
    ]  # fmt: skip


def check_no_finite_mean(setting: str, results: Setting) -> Claim:
    """Of normal estimates, the most extreme of 1,000 makes up about a hundredth of the empirical variance."""
    hard = results[0] if setting == "setting1" else results[-1]
    return Claim(
        setting, "Algorithm 2's estimate has no finite mean or variance, so where its noise reaches the matrix its empirical variance is that "
        "of a few runs", f"the most extreme run alone makes up {100 * hard.largest_share:.0f} % of it at the hard end",
        hard.largest_share > 0.1, "ours",
    )  # fmt: skip


def check_variance_falls(setting: str, results: Setting) -> Claim:
    """Every step falls, up to sampling error, and less than half is left at the end."""
    parts, holds = [], True
    for method in ("RL-NGD", "RL-SSP"):
        values = series(results, method, "empirical_variance")
        parts.append(f"{method} {values[-1] / values[0]:.2f}")
        holds = (
            holds
            and bool(values[-1] < 0.5 * values[0])
            and not rises(values, values * variance_error(repetitions(results)))
        )
    return Claim(
        setting, "“As the linkage error vanishes, the variance reduces as a result of the smaller DP noise needed”",
        f"last over first: {', '.join(parts)}", holds, place=_SIMULATIONS,
    )  # fmt: skip


def check_tight_variance(setting: str, results: Setting) -> Claim:
    found = {m: variance_ratios(results, m) for m in ("RL-SSP tight", "RL-NGD tight")}
    slack = 0.2 + 3.0 * variance_error(repetitions(results))
    shown = "; ".join(f"{m} {r.min():.2f} to {r.max():.2f}" for m, r in found.items())
    holds = all((np.abs(r - 1.0) < slack).all() for r in found.values())
    return Claim(
        setting, "The tight mechanisms' first-order variances agree with the empirical ones", shown, holds, "ours"
    )


# --- noise ---------------------------------------------------------------------------------------------


def expected_excess(result: PointResult, method: str) -> float:
    """The 80 % quantile of ``|β_priv - β_RL|`` that Algorithms 1 and 2 have with Theorem 4.1's B, δ = n^-1.1 and ε = c = 1, written out."""
    linked = method.startswith("RL-")
    n, R = result.point.n, result.point.sigma * math.sqrt(2.0 * math.log(result.point.n))
    M, gram = result.point.M if linked else 0.0, result.grams["RL-" if linked else ""]
    if method.endswith("SSP"):
        B = R * (M + 4.0) + max(2.0 * (M + 2.0), 2.0 * R**2)
        return ssp_excess_quantile(gram, BETA, B * math.sqrt(2.0 * math.log(1.25 * n**1.1)), EXCESS_SHARE)
    L = n / gram
    T = math.ceil(L**2 * math.log(n))
    B = R * (M + 4.0) + 2.0 * result.radius * (M + 2.0)
    omega = 2.0 / L * B * math.sqrt(T * 1.1 * math.log(n)) / n
    kept = (1.0 - 1.0 / L**2) ** 2  # of a step's noise variance, in the next
    deviation = omega * math.sqrt((1.0 - kept**T) / (1.0 - kept))
    return float(norm.ppf((1.0 + EXCESS_SHARE) / 2.0)) * deviation


def check_noise(setting: str, results: Setting) -> Claim:
    """For each method and for all together: the mean logarithm of measured over expected is 0, within three standard errors.

    NGD counts where its projection is idle. The standard error of the logarithm of an 80 % quantile is .89/√repetitions for normal
    estimates, up to 1.2 for RL-SSP at large σ; 1 is taken.
    """
    logs: dict[str, list[float]] = {}
    for result in results:
        measured = {row.method: math.sqrt(row.excess) for row in result.rows if row.excess > 0.0}
        for method in ("NGD", "SSP", "RL-NGD", "RL-SSP"):
            if result.projected.get(method, 0.0) < _IDLE:
                logs.setdefault(method, []).append(math.log(measured[method] / expected_excess(result, method)))
    logs["all"] = [value for values in logs.values() for value in values]
    each = 1.0 / math.sqrt(repetitions(results))
    holds = all(abs(np.mean(values)) < 3.0 * each / math.sqrt(len(values)) for values in logs.values())
    shown = ", ".join(f"{name} {math.exp(np.mean(values)):.3f}" for name, values in logs.items())
    return Claim(
        setting, "The noise is that of Algorithms 1 and 2 with Theorem 4.1's B, δ = n^-1.1 and M as stated: ω = 2ηB√(T ln(1/δ))/(nε) a step, "
        "ω = B√(2 ln(1.25/δ))/ε", f"measured over expected distance from the estimate without noise: {shown}", holds, "ours",
    )  # fmt: skip


# --- error bounds --------------------------------------------------------------------------------------


def check_bounds(setting: str, results: Setting) -> list[Claim]:
    """The measured distance over the bound's noise term moves by less than a wrong power of n or σ would make it.

    The 1/n of Theorem 4.4 is left out: it bounds the error of stopping after T steps, a hundredth of the noise's at most, and has no free constant.
    """
    claims = []
    for method, number, bound in (("RL-NGD", "4.4", ngd_excess_error), ("RL-SSP", "4.5", ssp_excess_error)):
        orders = []
        for result in results:
            n = result.point.n
            orders.append(
                bound(n, 1, result.point.sigma, 1.0, n**-1.1) - (1.0 / n if bound is ngd_excess_error else 0.0)
            )
        constant = series(results, method, "excess") / np.array(orders)
        moved = float(constant.max() / constant.min())
        claims.append(Claim(
            setting, f"The error “aligns with the theoretical results on the error bounds”: {method} and Theorem {number} (‖β_priv - β_RL‖² over "
            f"the bound's order is constant up to a factor of {_FACTOR:g})",
            f"from {constant.min():,.0f} to {constant.max():,.0f}, a factor of {moved:.2f}", moved < _FACTOR, place=_SIMULATIONS,
        ))  # fmt: skip
    return claims


def check_unclipped(setting: str, results: Setting) -> Claim:
    """1 - c₁n^-c₂ would grow with n and be near 1; .9 at the largest n of the setting is asked for."""
    sizes = (*(result.point.n for result in results), 1_000_000)
    found = [unclipped_probability(n, results[0].point.sigma) for n in sizes]
    shown = ", ".join(
        f"{p:.2f} at n = {n:,}" for n, p in zip(sizes, found, strict=True) if n in (sizes[0], *sizes[-2:])
    )
    return Claim(
        setting, "That no response is clipped “is a high-probability event”, of probability 1 - c₁n^-c₂ or more (.9 at n = 10,000, growing with n)",
        shown, bool(found[-2] > 0.9 and (np.diff(found) > 0.0).all()), place="Section 4.2",
    )  # fmt: skip
