"""What coefficients of each family say, in words, and how they are turned into what is expected of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.study.family import RATIOS

Floats = NDArray[np.float64]

_FAR_OUT = "rows far out in a column count for less"


@dataclass(frozen=True)
class Family:
    """Words for one family of regressions.

    Attributes
    ----------
    title
        Of all documents.
    ratio
        What the exponential of a coefficient is; empty for lines.
    reading
        What a coefficient says; {response} stands for the response's name.
    axis
        Of a chart of coefficients.
    missed
        What intervals do not cover.
    line
        Which coefficients are estimated.
    """

    title: str
    ratio: str
    reading: str
    axis: str
    missed: str
    line: str = ""


FAMILIES = {
    "linear": Family(
        "Private linear regression on linked data",
        "",
        "A coefficient says by how much {response} changes, on average, when its column is larger by one and the others stay the same.",
        "change of {response} per unit",
        "a relation that is not linear, or responses cut off by their bounds",
    ),
    "logistic": Family(
        "Private logistic regression on linked data",
        RATIOS["logistic"],
        "A coefficient says by how much the logarithm of the odds of {response} changes when its column is larger by one and the others stay the same; its odds ratio, by "
        "what the odds are multiplied.",
        "odds ratio of {response} per unit",
        "log odds that do not follow a line",
        f"Coefficients are close to those that maximum likelihood would find on perfectly linked rows: {_FAR_OUT}. Where log odds do not follow a line, the two differ. "
        "Where events are few for the budget, coefficients are drawn towards those of the step before.",
    ),
    "poisson": Family(
        "Private Poisson regression on linked data",
        RATIOS["poisson"],
        "A coefficient says by how much the logarithm of the expected {response} changes when its column is larger by one and the others stay the same; its rate ratio, by "
        "what the expected {response} is multiplied.",
        "rate ratio of {response} per unit",
        "rates whose logarithms do not follow a line",
        f"Coefficients are close to those that maximum likelihood would find on perfectly linked rows: {_FAR_OUT}. Where logarithms of rates do not follow a line, the two "
        "differ.",
    ),
}


def expected_outcome(family: str, eta: float) -> float:
    """What is expected of a row whose line is at `eta`: the response itself, a probability or a count."""
    if family == "logistic":
        return float(1.0 / (1.0 + np.exp(-np.clip(eta, -700.0, 700.0))))
    return float(np.exp(np.clip(eta, -700.0, 700.0))) if family == "poisson" else eta
