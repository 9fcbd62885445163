"""What [LPK24] says about its numerical results, checked against what was measured, and what the tight mechanisms change.

Each claim is a short function of results, so that a test can change the results and see the claim fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.not_private.paper.application import ApplicationResult
from dplinked.not_private.paper.settings import PointResult, Row

Floats = NDArray[np.float64]
Setting = Sequence[PointResult]

_PRIVATE = ("NGD", "SSP", "RL-NGD", "RL-SSP")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper or of this library, what was measured, and whether the claim holds.

    `holds` is None if the measurement is only shown. `source` says whose claim it is.
    """

    setting: str
    text: str
    measured: str
    holds: bool | None
    source: str = "paper"


def series(results: Setting, method: str, column: str) -> Floats:
    """The values of one column, for one method, over the points of a setting."""
    return np.array([getattr(row, column) for point in results for row in point.rows if row.method == method])


def axis(results: Setting) -> Floats:
    """The positions of a setting's points on its axis."""
    return np.array([point.rows[0].x for point in results])


def exponent(results: Setting, method: str) -> float:
    """Exponent p of a fitted power law, error ~ xᵖ."""
    return float(np.polyfit(np.log(axis(results)), np.log(series(results, method, "error")), 1)[0])


def room(results: Setting, ends: int = 1) -> float:
    """How far a measured mean error may be off, relative to itself: three standard errors.

    The absolute value of a normal variable has a standard deviation of .76 times its mean. `ends` is how many measured means are compared.
    """
    return 3.0 * 0.76 * math.sqrt(ends / results[0].rows[0].repetitions)


def check_iterations(setting: str, results: Setting) -> Claim:
    found = [point.iterations for point in results]
    text = "The number of iterations of RL-NGD falls within (210, 260); accuracies are drawn, so 5 % room"
    return Claim(setting, text, f"{min(found)} to {max(found)}", all(0.95 * 210 <= T <= 1.05 * 260 for T in found))


def check_falls_with_n(setting: str, results: Setting) -> Claim:
    """Errors fall with n: the last point lies below the first, and no step goes up by more than its sampling error."""
    ratios = {m: series(results, m, "error")[-1] / series(results, m, "error")[0] for m in ("OLS", "RL-OLS", *_PRIVATE)}
    worst = max(ratios, key=lambda name: ratios[name])
    # RL-SSP is left out: at small n its error has no mean, since the estimate is a ratio with heavy tails.
    steps = [series(results, m, "error") for m in ratios if m != "RL-SSP"]
    smooth = all((np.diff(e) / e[:-1]).max() < room(results, 2) for e in steps)
    return Claim(
        setting, "The errors of all methods decrease with n",
        f"last over first point: {', '.join(f'{m} {r:.2f}' for m, r in ratios.items())}", bool(ratios[worst] < 0.9 and smooth),
    )  # fmt: skip


def check_linkage_costs(setting: str, results: Setting) -> Claim:
    pairs = (("RL-OLS", "OLS"), ("RL-NGD", "NGD"), ("RL-SSP", "SSP"))
    least = {a: float((series(results, a, "error") / series(results, b, "error")).min()) for a, b in pairs}
    return Claim(
        setting, "Methods after record linkage always have larger errors than the same without linkage errors",
        f"smallest ratio: {', '.join(f'{name} {value:.2f}' for name, value in least.items())}",
        all(value > 1.0 - room(results, 2) for value in least.values()) and min(least.values()) > 0.9,
    )  # fmt: skip


def check_ssp_wins_at_one(setting: str, results: Setting) -> Claim:
    """RL-SSP wins at σ = 1 and n = 10,000, where the heavy tails of its ratio do not matter yet."""
    ssp, ngd = (series(results, name, "error")[-1] for name in ("RL-SSP", "RL-NGD"))
    return Claim(
        setting,
        "With σ = 1, RL-SSP outperforms RL-NGD (n = 10,000)",
        f"RL-SSP {ssp:.3f}, RL-NGD {ngd:.3f}",
        bool(ssp < ngd),
    )


def check_figures(setting: str, results: Setting) -> list[Claim]:
    """Compare mean relative errors at n = 10,000 and σ = 1 with figures measured elsewhere."""
    claims = []
    for method, low, high in (("RL-OLS", 0.017, 0.021), ("RL-SSP", 0.13, 0.19), ("RL-SSP tight", 0.0, 0.03)):
        found = float(series(results, method, "error")[-1])
        slack = room(results) * found
        text = f"{method} at n = 10,000: mean relative error " + (
            f"at most {high:g}" if low == 0 else f"{low:g} to {high:g}"
        )
        claims.append(Claim(setting, text, f"{found:.4f}", low - slack <= found <= high + slack, "ours"))
    return claims


def check_crossing(setting: str, results: Setting) -> Claim:
    ratio = series(results, "RL-SSP", "error") / series(results, "RL-NGD", "error")
    return Claim(
        setting, "RL-SSP is better at small σ, RL-NGD at large σ", f"RL-SSP/RL-NGD from {ratio[0]:.2f} to {ratio[-1]:.2f}",
        bool(ratio[0] < 1.0 < ratio[-1]),
    )  # fmt: skip


def check_growth(setting: str, results: Setting) -> list[Claim]:
    """Compare how errors grow with σ. The heavy tails of RL-SSP's ratio make its error grow even faster at the end."""
    limits = (("RL-NGD", "linearly", 0.5, 1.3), ("RL-SSP", "quadratically", 1.6, 3.0))
    claims = [
        Claim(
            setting,
            f"{name}'s error grows about {how} in σ",
            f"exponent {exponent(results, name):.2f}",
            low < exponent(results, name) < high,
        )
        for name, how, low, high in limits
    ]
    found = exponent(results, "RL-SSP tight")
    claims.append(
        Claim(
            setting,
            "Tight RL-SSP's error grows about linearly in σ",
            f"exponent {found:.2f}",
            0.6 < found < 1.2,
            "ours",
        )
    )
    return claims


def check_tight_wins(setting: str, results: Setting) -> Claim:
    tight = series(results, "RL-SSP tight", "error")
    ratio = tight / np.minimum(series(results, "RL-SSP", "error"), series(results, "RL-NGD", "error"))
    return Claim(
        setting, "Tight RL-SSP is below both published methods everywhere: the crossing disappears",
        f"its error is {ratio.min():.2f} to {ratio.max():.2f} of the better one's", bool(ratio.max() < 1.0), "ours",
    )  # fmt: skip


def check_approach(setting: str, results: Setting) -> Claim:
    """The ratio of errors after and without linkage falls to 1: at γ = 1 and M = 0 both are the same method."""
    parts, holds = [], True
    for after, without in (("RL-OLS", "OLS"), ("RL-NGD", "NGD"), ("RL-SSP", "SSP")):
        ratio = series(results, after, "error") / series(results, without, "error")
        parts.append(f"{after} {ratio[0]:.2f} to {ratio[-1]:.2f}")
        holds = holds and ratio[0] > 1.2 and abs(ratio[-1] - 1.0) < room(results, 2)
    return Claim(
        setting,
        "As linkage errors vanish, the methods approach their versions without linkage",
        "; ".join(parts),
        bool(holds),
    )


def check_privacy_costs(setting: str, results: Setting) -> Claim:
    ratio = min(float((series(results, m, "error") / series(results, "OLS", "error")).min()) for m in ("NGD", "SSP"))
    return Claim(
        setting, "NGD and SSP have strictly larger errors than OLS", f"at least {ratio:.1f} times", ratio > 1.0
    )


def check_variance_falls(setting: str, results: Setting) -> Claim:
    parts = {
        m: series(results, m, "empirical_variance")[-1] / series(results, m, "empirical_variance")[0]
        for m in ("RL-NGD", "RL-SSP")
    }
    return Claim(
        setting, "As the linkage error vanishes, the variance falls",
        f"last over first: {', '.join(f'{m} {value:.2f}' for m, value in parts.items())}", max(parts.values()) < 0.5,
    )  # fmt: skip


def variance_ratios(results: Setting, method: str) -> Floats:
    """Empirical over theoretical variance."""
    return series(results, method, "empirical_variance") / series(results, method, "theoretical_variance")


def check_ngd_variance(setting: str, results: Setting) -> Claim:
    """Theorem 4.4 holds within a tenth, plus the sampling error of a variance, at points where no run ends on the projection's border."""
    free = np.array([point.projected < 0.002 for point in results])
    if not free.any():
        return Claim(
            setting,
            "Theorem 4.4's variance of RL-NGD agrees with the empirical one",
            "projection active everywhere",
            None,
        )
    ratio = variance_ratios(results, "RL-NGD")[free]
    slack = 3.0 * math.sqrt(2.0 / results[0].rows[0].repetitions)
    return Claim(
        setting, "Theorem 4.4's variance of RL-NGD agrees with the empirical one (within 10 %, projection not active)",
        f"empirical/theoretical {ratio.min():.2f} to {ratio.max():.2f}, mean {ratio.mean():.2f} over {free.sum()} points",
        bool(abs(ratio.mean() - 1.0) < 0.1 and (np.abs(ratio - 1.0) < 0.1 + slack).all()),
    )  # fmt: skip


def check_ssp_variance(setting: str, results: Setting) -> Claim:
    ratio = variance_ratios(results, "RL-SSP")
    hard, easy = (ratio[0], ratio[-1]) if setting == "setting1" else (ratio[-1], ratio[0])
    return Claim(
        setting, "Theorem 4.5's variance of RL-SSP is close at large n and small σ, and too small at small n or large σ",
        f"empirical/theoretical {easy:.2f} at the easy end, {hard:.1f} at the hard one", bool(0.8 < easy < 1.5 and hard > 1.5),
    )  # fmt: skip


def check_tight_variance(setting: str, results: Setting) -> Claim:
    ratios = {m: variance_ratios(results, m) for m in ("RL-SSP tight", "RL-NGD tight")}
    slack = 3.0 * math.sqrt(2.0 / results[0].rows[0].repetitions)
    shown = "; ".join(f"{m} {r.min():.2f} to {r.max():.2f}" for m, r in ratios.items())
    holds = all((np.abs(r - 1.0) < 0.2 + slack).all() for r in ratios.values())
    return Claim(
        setting, "The tight mechanisms' first-order variances agree with the empirical ones", shown, holds, "ours"
    )


_CHECKS: dict[str, tuple[Callable[[str, Setting], Claim | list[Claim]], ...]] = {
    "setting1": (
        check_iterations, check_falls_with_n, check_linkage_costs, check_ssp_wins_at_one, check_ngd_variance, check_ssp_variance,
        check_figures, check_tight_wins, check_tight_variance,
    ),
    "setting2": (
        check_iterations, check_linkage_costs, check_crossing, check_growth, check_ngd_variance, check_ssp_variance, check_tight_wins,
        check_tight_variance,
    ),
    "setting3": (check_approach, check_privacy_costs, check_variance_falls, check_ngd_variance, check_tight_wins, check_tight_variance),
}  # fmt: skip


def setting_claims(setting: str, results: Setting) -> list[Claim]:
    """All claims about a setting."""
    found: list[Claim] = []
    for check in _CHECKS[setting]:
        claim = check(setting, results)
        found += claim if isinstance(claim, list) else [claim]
    return found


def application_claims(result: ApplicationResult) -> list[Claim]:
    """All claims about the application. Some figures are checked only for the survey itself, not for generated households."""
    survey, febrl = result.sources[0] == "SHIW 2012", result.sources[1] == "Febrl 4"
    name, middle = "application", {method: float(np.median(values)) for method, values in result.draws.items()}
    spread = {method: float(values.std(ddof=1)) for method, values in result.draws.items()}
    bias = {method: value / result.ols - 1.0 for method, value in middle.items()}
    low, high = result.end_to_end.conf_int()["income"]
    repetitions = result.rows[0].repetitions
    # Relative standard error of a median.
    error = {m: 1.25 * spread[m] / math.sqrt(repetitions) / result.ols for m in middle}
    clipping = result.clipped / result.ols - 1.0
    return [
        Claim(name, "About 90 % of the records are linked right (the paper also says 92.5 %, which its own figures contradict: 90.9 %)",
              f"{100 * result.overall_accuracy:.1f} %", 0.895 < result.overall_accuracy < 0.925 if febrl else None),
        Claim(name, "OLS ≈ .805, naive on (X, z) ≈ .73, corrected ≈ .805; clipping at R = σ√(2 ln n) moves the corrected one to ≈ .77",
              f"{result.ols:.3f}, {result.naive:.3f}, {result.corrected:.3f}, {result.clipped:.3f}",
              all(abs(a - b) < 0.02 for a, b in ((result.ols, 0.805), (result.naive, 0.73), (result.corrected, 0.805), (result.clipped, 0.77)))
              if survey and febrl else None, "ours"),
        Claim(name, "NGD and SSP on (X, z) are biased, even at an accuracy above 90 %",
              f"medians {100 * bias['NGD']:.0f} % and {100 * bias['SSP']:.0f} % off OLS", max(bias["NGD"], bias["SSP"]) < -0.08),
        Claim(name, "RL-NGD and RL-SSP are centred around OLS, up to the bias of clipping at R",
              f"medians {100 * bias['RL-NGD']:.0f} % and {100 * bias['RL-SSP']:.0f} % off OLS; clipping alone {100 * clipping:.0f} %",
              all(abs(bias[m] - clipping) < 0.03 + 3 * error[m] for m in ("RL-NGD", "RL-SSP"))),
        Claim(name, "They have higher variances than the uncorrected ones", f"standard deviations {spread['RL-NGD']:.3f} and {spread['RL-SSP']:.3f} "
              f"against {spread['NGD']:.3f} and {spread['SSP']:.3f}", spread["RL-NGD"] > spread["NGD"] and spread["RL-SSP"] > spread["SSP"]),
        Claim(name, "A third of the iterations gives less variance, still accurate",
              f"standard deviation {spread['RL-NGD T/3']:.3f} against {spread['RL-NGD']:.3f}, median {100 * bias['RL-NGD T/3']:.0f} % off",
              spread["RL-NGD T/3"] < spread["RL-NGD"] and abs(bias["RL-NGD T/3"]) < 0.1),
        Claim(name, "Tight RL-SSP under the same assumptions and budget: less spread than any published one",
              f"standard deviation {spread['RL-SSP tight']:.3f}, median {100 * bias['RL-SSP tight']:.0f} % off",
              spread["RL-SSP tight"] < 0.5 * min(spread[m] for m in ("RL-NGD", "RL-SSP", "RL-NGD T/3")), "ours"),
        Claim(name, "Done privately from end to end (declared bounds, nobody dropped, accuracies paid for), in euros per euro: the 95 % interval "
              "holds least squares on the true pairs", f"{result.end_to_end.coef['income']:.3f} [{low:.3f}, {high:.3f}]; least squares {result.reference:.3f}",
              low <= result.reference <= high, "ours"),
    ]  # fmt: skip


def toy_claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's introductory example: two wrong links reverse the sign of a slope."""
    true, linked = (row.error for row in rows)  # for the toy, the error column holds the slope's distance from 2
    return [
        Claim("toy", "The true pairs have slope 2, the linked ones -1.6", f"{2.0 + true:g} and {2.0 - linked:g}",
              abs(true) < 1e-12 and abs(2.0 - linked + 1.6) < 1e-12)
    ]  # fmt: skip
