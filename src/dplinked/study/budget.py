"""Whether a privacy budget is one: checked before anything else happens."""

from __future__ import annotations

import math

from dplinked.errors import StudyError, plain_number, shown

LARGE_EPSILON = 10.0  # beyond it next to nothing is protected


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse a budget that is not one."""
    if not 0 < plain_number(epsilon) < math.inf:
        raise StudyError(f"epsilon must be a finite number above 0, not {shown(epsilon)}.")
    if epsilon < 1e-6:
        raise StudyError(f"epsilon={epsilon:g} is too small to calibrate noise for; use at least 1e-6.")
    if not 0 < plain_number(delta) < 1:
        raise StudyError(f"delta must lie strictly between 0 and 1, not {shown(delta)}.")
    if delta < 1e-100:
        raise StudyError(f"delta={delta:g} is too small to calibrate noise for; use at least 1e-100.")


def check_size(epsilon: float) -> None:
    """Refuse an epsilon that protects next to nothing."""
    if epsilon > LARGE_EPSILON:
        raise StudyError(
            f"epsilon={epsilon:g} protects next to nothing. If that is meant, say large_epsilon=True; "
            "usual values lie between 0.1 and 3."
        )


def check_delta(delta: float, count: int) -> None:
    """Refuse a delta that is not below one over the public number of rows."""
    if delta >= 1.0 / count:
        raise StudyError(
            f"delta={delta:g} is not below 1/n = {1.0 / count:.3g}: it would allow publishing one person's "
            f"record outright. Use something like {0.1 / count:.1g} or smaller."
        )


def check_release_budget(epsilon: float, delta: float, count: int) -> None:
    """Check the budget of a release outside a study against itself and the public number of rows."""
    check_budget(epsilon, delta)
    check_size(epsilon)
    check_delta(delta, count)
