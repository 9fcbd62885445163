"""What has to be said beside a release's coefficients, in sentences that text and page share."""

from __future__ import annotations

from collections.abc import Sequence

from dplinked.release.result import Result
from dplinked.report.plots import CoefficientRow
from dplinked.report.words import list_names

NOISE_ALONE = "Noise s.e. is what privacy noise does to the coefficient; sampling and linkage error come on top."
EXACTLY_KNOWN = "Intervals take the linkage accuracy as exactly known; declare checked=… to include its error."
_ROUTES = {"block": "block totals", "row": "single rows", "scale": "the residuals' size alone"}


def unbounded_names(rows: Sequence[CoefficientRow]) -> list[str]:
    """Coefficients whose intervals lack an end."""
    return [row.name for row in rows if row.interval is not None and not row.bounded]


def hidden_names(result: Result) -> list[str]:
    """Coefficients that privacy noise hides: it exceeds the range that was declared for them."""
    return [name for name, known in result.identified.items() if not known]


def say_unbounded(names: Sequence[str]) -> str:
    """That intervals have no end."""
    return f"This budget does not identify {list_names(names)}: no value of {_those(names, 'it', 'them')} can be ruled out."


def say_hidden(names: Sequence[str]) -> str:
    """That privacy noise hides coefficients."""
    verb, whose = _those(names, "is", "are"), _those(names, "its", "their")
    return f"{list_names(names)} {verb} not identified: at this budget privacy noise exceeds {whose} declared range."


def say_accuracy(result: Result) -> list[str]:
    """That intervals leave out the error of the accuracy, if they do."""
    variance = result.released.variance
    left_out = variance is not None and variance.accuracy is None and result.linkage.model == "ELE"
    return [EXACTLY_KNOWN] if left_out else []


def say_route(result: Result) -> list[str]:
    """Where the variance of intervals comes from; nothing if they were not paid for."""
    variance = result.released.variance
    if variance is None:
        return []
    return [f"Sampling and linkage variance come from {_ROUTES[variance.route]}, released with noise."]


def _those(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several
