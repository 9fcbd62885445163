"""What [LPK24] says about errors in its simulations, as it says it, and what the tight mechanisms change.

Each claim is a short function of results, so that a test can change the results and see the claim fail.
"""

from __future__ import annotations

import numpy as np

from dplinked.not_private.paper.claim import (
    Claim,
    Floats,
    Setting,
    axis,
    listed,
    ratio_errors,
    ratios,
    rises,
    series,
    sharp_series,
    where,
)
from dplinked.not_private.paper.settings import METHODS, RADII, at_radius

PAIRS = (("RL-OLS", "OLS"), ("RL-NGD", "NGD"), ("RL-SSP", "SSP"))
_PAPER = METHODS[:6]
_SIMULATIONS = "Section 5.1"


def check_iterations(setting: str, results: Setting) -> Claim:
    found = [point.iterations for point in results]
    return Claim(
        setting, "“The number of iterations for RL-NGD results fall within the range of (210, 260)”", f"{min(found)} to {max(found)}",
        all(210 < T < 260 for T in found), place="Figure 3",
    )  # fmt: skip


def check_falls_with_n(setting: str, results: Setting) -> Claim:
    """The last error lies below the first, and no step goes up by more than three standard errors."""
    holds = True
    for method in _PAPER:
        errors, deviations = series(results, method, "error"), series(results, method, "standard_error")
        holds = holds and bool(errors[-1] < errors[0]) and not rises(errors, deviations)
    last = {m: series(results, m, "error")[-1] / series(results, m, "error")[0] for m in _PAPER}
    return Claim(
        setting, "“The errors of all methods decrease with a growing sample size” (up to sampling error)",
        f"last over first point: {', '.join(f'{m} {ratio:.2f}' for m, ratio in last.items())}", holds, place=f"{_SIMULATIONS}; 6 (1)",
    )  # fmt: skip


def check_linkage_costs(setting: str, results: Setting) -> Claim:
    """It fails where some ratio lies below 1 by more than its standard error."""
    holds = all((ratios(results, *pair) >= 1.0 - ratio_errors(results, *pair)).all() for pair in PAIRS)
    least = ", ".join(f"{pair[0]} {ratios(results, *pair).min():.2f}" for pair in PAIRS)
    return Claim(
        setting, "The post-RL methods “naturally always yield larger errors than their counterparts run on (X, y)”",
        f"smallest ratio: {least}", holds, place=f"{_SIMULATIONS}; 6 (2)",
    )  # fmt: skip


# --- SSP against NGD -----------------------------------------------------------------------------------


def check_ssp_outperforms(setting: str, results: Setting) -> list[Claim]:
    """The paper does not give C, on which RL-NGD depends: one claim for each radius, and the comparison without linkage at the chosen one."""
    chosen = results[0].radius
    after = [
        _outperforms(
            setting, results, "RL-SSP", at_radius("RL-NGD", C, chosen),
            f"“With σ = 1, post-RL SSP outperforms post-RL NGD in terms of both accuracy and variance” (all n; C = {C:g})",
        )
        for C in sorted({*RADII, chosen})
    ]  # fmt: skip
    without = _outperforms(
        setting, results, "SSP", "NGD",
        f"“Similar trends are observed” for non-RL NGD and SSP: SSP outperforms NGD in accuracy and variance (all n; C = {chosen:g})",
    )  # fmt: skip
    return [*after, without]


def _outperforms(setting: str, results: Setting, ssp: str, ngd: str, text: str) -> Claim:
    accuracy, variance = ratios(results, ssp, ngd), ratios(results, ssp, ngd, "empirical_variance")
    measured = (
        f"smaller error {where(results, accuracy < 1.0)} (ratios {listed(accuracy)}), "
        f"smaller variance {where(results, variance < 1.0)} (ratios {listed(variance)})"
    )
    return Claim(setting, text, measured, bool((accuracy < 1.0).all() and (variance < 1.0).all()), place=_SIMULATIONS)


def check_ssp_wins_at_the_end(setting: str, results: Setting) -> Claim:
    """Our narrower version: at the largest n, and in accuracy alone."""
    ssp, ngd = (series(results, name, "error")[-1] for name in ("RL-SSP", "RL-NGD"))
    return Claim(
        setting, f"With σ = 1, n = 10,000 and C = {results[0].radius:g}, RL-SSP's error is below RL-NGD's",
        f"RL-SSP {ssp:.3f}, RL-NGD {ngd:.3f}", bool(ssp < ngd), "ours",
    )  # fmt: skip


def check_crossing(setting: str, results: Setting) -> list[Claim]:
    """SSP is better at first, NGD from some σ on. After linkage, for each radius, SSP is better up to σ = 1, as the paper says before."""
    chosen = results[0].radius
    after = [
        _crosses(
            setting, results, "RL-SSP", at_radius("RL-NGD", C, chosen), 1.0,
            f"RL-SSP is better at σ = 1 and below; “as σ increases, post-RL NGD starts [to] perform better” (C = {C:g})",
        )
        for C in sorted({*RADII, chosen})
    ]  # fmt: skip
    without = _crosses(
        setting, results, "SSP", "NGD", axis(results)[0],
        f"“Similar trends are observed” for non-RL NGD and SSP: SSP is better at small σ, NGD at large σ (C = {chosen:g})",
    )  # fmt: skip
    return [*after, without]


def _crosses(setting: str, results: Setting, ssp: str, ngd: str, until: float, text: str) -> Claim:
    ratio = ratios(results, ssp, ngd)
    behind = ratio > 1.0
    once = bool(behind[-1]) and not (np.diff(behind.astype(int)) < 0).any()
    return Claim(
        setting, text, f"{ssp} over {ngd}, σ from .5 to 1.8: {listed(ratio)}", once and not behind[axis(results) <= until].any(),
        place=f"{_SIMULATIONS}; 6 (4)",
    )  # fmt: skip


# --- growth in σ ---------------------------------------------------------------------------------------

_SHAPES = {"√σ": 0.5, "σ": 1.0, "σ²": 2.0, "σ³": 3.0}


def exponent(results: Setting, method: str) -> float:
    """Exponent p of a fitted power law, error ~ xᵖ; points count by their precision."""
    errors = sharp_series(results, method, "error")
    weights = errors / sharp_series(results, method, "standard_error")
    return float(np.polyfit(np.log(axis(results)), np.log(errors), 1, w=weights)[0])


def misfits(results: Setting, method: str) -> dict[str, float]:
    """For each shape f, how far ``a + b·f(σ)`` with a constant part misses the errors: the sum of squares in standard errors."""
    errors, deviations = (sharp_series(results, method, column) for column in ("error", "standard_error"))
    found = {}
    for name, power in _SHAPES.items():
        columns = np.stack([np.ones_like(errors), axis(results) ** power], axis=1) / deviations[:, None]
        residuals = errors / deviations - columns @ np.linalg.lstsq(columns, errors / deviations, rcond=None)[0]
        found[name] = float(residuals @ residuals)
    return found


def check_growth(setting: str, results: Setting) -> list[Claim]:
    """“Linearly” and “quadratically” can be read in two ways, and both are checked, for the non-RL methods too.

    As what a figure shows: a straight line or a parabola with a constant part, which must fit better than √σ and every other shape. As what
    the error bounds say, σ² and σ⁴ for squared errors: a power law with exponent 1 or 2, within a quarter.
    """
    claims = []
    for method, shape, words in (
        ("RL-NGD", "σ", "“The error grows linearly for post-RL NGD”"),
        ("RL-SSP", "σ²", "“and quadratically for post-RL SSP”"),
        ("NGD", "σ", "“Similar trends are observed” for non-RL NGD: linear growth"),
        ("SSP", "σ²", "“Similar trends are observed” for non-RL SSP: quadratic growth"),
    ):
        missed, power = misfits(results, method), exponent(results, method)
        shown = ", ".join(f"{name} {value:.1f}" for name, value in missed.items())
        claims.append(Claim(
            setting, f"{words} (read as a figure: a + b{shape} fits best)", f"misfits with a constant part, chi² on 6 degrees: {shown}",
            min(missed, key=lambda name: missed[name]) == shape, place=_SIMULATIONS,
        ))  # fmt: skip
        claims.append(Claim(
            setting, f"{words} (read as the error bounds: proportional to {shape})", f"exponent {power:.2f}",
            abs(power - _SHAPES[shape]) < 0.25, place=_SIMULATIONS,
        ))  # fmt: skip
    return claims


# --- setting 3 -----------------------------------------------------------------------------------------


def check_approach(setting: str, results: Setting) -> Claim:
    """The ratio after linkage over without falls, up to sampling error; of what it is above 1 at γ = .6 less than a quarter is left at γ = .95.

    The end point does not count: at γ = 1 and M = 0 both are the same method, whatever happens in between.
    """
    before, parts, holds = results[:-1], [], True
    for pair in PAIRS:
        ratio, errors = ratios(before, *pair), ratio_errors(before, *pair)
        parts.append(f"{pair[0]} {listed(ratio)}")
        holds = holds and not rises(ratio, errors) and bool(ratio[-1] - 1.0 < (ratio[0] - 1.0) / 4.0)
    return Claim(
        setting, "“Where linkage error tends to zero, the post-RL versions of the three estimators approach the corresponding non-RL versions”",
        f"error over that without linkage, γ from .6 to .95: {'; '.join(parts)}", holds, place=_SIMULATIONS,
    )  # fmt: skip


def check_privacy_costs(setting: str, results: Setting) -> Claim:
    """Strictly: above 1 by more than three standard errors."""
    methods = ("NGD", "SSP", "RL-NGD", "RL-SSP")
    least = {m: float((ratios(results, m, "OLS") - 3.0 * ratio_errors(results, m, "OLS")).min()) for m in methods}
    shown = ", ".join(f"{m} {ratios(results, m, 'OLS').min():.1f}" for m in methods)
    return Claim(
        setting, "“NGD and SSP methods have strictly larger error than OLS due to the cost of privacy”", f"smallest ratio: {shown}",
        min(least.values()) > 1.0, place=_SIMULATIONS,
    )  # fmt: skip


# --- ours ----------------------------------------------------------------------------------------------


def check_figures(setting: str, results: Setting) -> list[Claim]:
    """Compare mean relative errors at n = 10,000 and σ = 1 with figures measured elsewhere."""
    claims = []
    for method, low, high in (("RL-OLS", 0.017, 0.021), ("RL-SSP", 0.13, 0.19), ("RL-SSP tight", 0.0, 0.03)):
        found, slack = (float(series(results, method, column)[-1]) for column in ("error", "standard_error"))
        text = f"{method} at n = 10,000: mean relative error " + (
            f"at most {high:g}" if low == 0 else f"{low:g} to {high:g}"
        )
        holds = low - 3.0 * slack <= found <= high + 3.0 * slack
        claims.append(Claim(setting, text, f"{found:.4f}", holds, "ours"))
    return claims


def check_tight_wins(setting: str, results: Setting) -> Claim:
    ratio: Floats = np.maximum(*(ratios(results, "RL-SSP tight", name) for name in ("RL-SSP", "RL-NGD")))
    return Claim(
        setting, "Tight RL-SSP is below both published methods everywhere: the crossing disappears",
        f"its error is {ratio.min():.2f} to {ratio.max():.2f} of the better one's", bool(ratio.max() < 1.0), "ours",
    )  # fmt: skip


def check_tight_growth(setting: str, results: Setting) -> Claim:
    found = exponent(results, "RL-SSP tight")
    return Claim(
        setting, "Tight RL-SSP's error grows about linearly in σ", f"exponent {found:.2f}", 0.75 < found < 1.25, "ours"
    )
