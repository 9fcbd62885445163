"""Which claims are made about which part of [LPK24]'s numerical section."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dplinked.not_private.paper import error_claims as errors
from dplinked.not_private.paper import variance_claims as variances
from dplinked.not_private.paper.claim import Claim, Setting
from dplinked.not_private.paper.settings import Row

Check = Callable[[str, Setting], Claim | list[Claim]]

_ALL: tuple[Check, ...] = (
    errors.check_iterations,
    variances.check_noise,
    variances.check_ngd_variance,
    variances.check_conservative,
)
_OURS: tuple[Check, ...] = (errors.check_tight_wins, variances.check_tight_variance)
CHECKS: dict[str, tuple[Check, ...]] = {
    "setting1": (
        *_ALL, variances.check_ssp_variance, errors.check_falls_with_n, errors.check_linkage_costs, errors.check_ssp_outperforms,
        variances.check_bounds, variances.check_unclipped, errors.check_ssp_wins_at_the_end, variances.check_no_finite_mean,
        errors.check_figures, *_OURS,
    ),
    "setting2": (
        *_ALL, variances.check_ssp_variance, errors.check_linkage_costs, errors.check_crossing, errors.check_growth,
        variances.check_bounds, variances.check_no_finite_mean, errors.check_tight_growth, *_OURS,
    ),
    "setting3": (*_ALL, errors.check_approach, errors.check_privacy_costs, variances.check_variance_falls, *_OURS),
}  # fmt: skip


def setting_claims(setting: str, results: Setting) -> list[Claim]:
    """All claims about a setting."""
    found: list[Claim] = []
    for check in CHECKS[setting]:
        claim = check(setting, results)
        found += claim if isinstance(claim, list) else [claim]
    return found


def toy_claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's introductory example: two wrong links reverse the sign of a slope."""
    true, linked = (row.error for row in rows)  # for the toy, the error column holds the slope's distance from 2
    return [
        Claim("toy", "The true pairs yield a slope of 2, the linked ones -1.6", f"{2.0 + true:g} and {2.0 - linked:g}",
              abs(true) < 1e-12 and abs(2.0 - linked + 1.6) < 1e-12, place="Figure 2")
    ]  # fmt: skip
