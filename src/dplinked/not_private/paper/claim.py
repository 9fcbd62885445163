"""A claim with its verdict, and what claims about settings measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.not_private.paper.settings import PointResult

Floats = NDArray[np.float64]
Setting = Sequence[PointResult]

AXES = {"setting1": "n", "setting2": "σ", "setting3": "γ"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper or of this library, what was measured, and whether the claim holds.

    Attributes
    ----------
    text
        The claim. With the source "paper" it is the paper's sentence, as written or nearly so, over all points it is about; how it
        was read stands in brackets.
    holds
        None if the measurement is only shown.
    source, place
        Whose claim it is, and where the paper makes it.
    """

    setting: str
    text: str
    measured: str
    holds: bool | None
    source: str = "paper"
    place: str = ""


def verdict(claim: Claim) -> str:
    """Whether a claim holds, in a word."""
    return "shown only" if claim.holds is None else "holds" if claim.holds else "DOES NOT HOLD"


def series(results: Setting, method: str, column: str) -> Floats:
    """The values of one column, for one method, over the points of a setting."""
    return np.array([getattr(row, column) for point in results for row in point.rows if row.method == method])


def sharp_series(results: Setting, method: str, column: str) -> Floats:
    """As :func:`series`, measured with ten times the noise draws where there are such: for NGD and RL-NGD."""
    found = [getattr(row, column) for point in results for row in point.sharp if row.method == method]
    return np.array(found) if found else series(results, method, column)


def axis(results: Setting) -> Floats:
    """The positions of a setting's points on its axis."""
    return np.array([point.point.x for point in results])


def repetitions(results: Setting) -> int:
    """How often each point was repeated."""
    return results[0].rows[0].repetitions


def ratios(results: Setting, above: str, below: str, column: str = "error") -> Floats:
    """One method's errors or variances over another's, point by point."""
    return series(results, above, column) / series(results, below, column)


def ratio_errors(results: Setting, above: str, below: str) -> Floats:
    """Standard errors of the ratios of errors. Both are taken as independent, though they share responses: on the wide side."""
    relative = [series(results, m, "standard_error") / series(results, m, "error") for m in (above, below)]
    return np.asarray(ratios(results, above, below) * np.hypot(*relative))


def variance_ratios(results: Setting, method: str) -> Floats:
    """Empirical over theoretical variance."""
    return series(results, method, "empirical_variance") / series(results, method, "theoretical_variance")


def variance_error(runs: float) -> float:
    """Relative standard error of the empirical variance of so many normal estimates."""
    return math.sqrt(2.0 / runs)


def rises(values: Floats, errors: Floats) -> bool:
    """Whether some step goes up by more than three of its standard errors."""
    return bool((np.diff(values) > 3.0 * np.hypot(errors[1:], errors[:-1])).any())


def where(results: Setting, met: Iterable[bool]) -> str:
    """At which points something is met, in words."""
    found = [bool(one) for one in met]
    if all(found) or not any(found):
        return "everywhere" if all(found) else "nowhere"
    shown = ", ".join(f"{x:,g}" for x, one in zip(axis(results), found, strict=True) if one)
    return f"at {AXES[results[0].point.setting]} = {shown}"


def listed(values: Iterable[float], digits: int = 2) -> str:
    """Numbers as a list."""
    return ", ".join(f"{value:.{digits}f}" for value in values)
