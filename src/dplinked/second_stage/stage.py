"""What the second stage starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.groups import Groups
from dplinked.estimate.residuals import Residuals
from dplinked.estimate.whitening import Geometry
from dplinked.privacy.quantities.residual_scale import Present
from dplinked.sums.linked_rows import LinkedRows

Floats = NDArray[np.float64]

# Where one step does: the least clip, in deviations of residuals; the most that a wrong start may add to their variance, relative to it; and the same of the equation's and a wrong slope.
LEAST_CLIP, MOST_OFF, MOST_BENT = 6.0, 0.02, 0.01


@dataclass(frozen=True, eq=False)
class SecondStage:
    """What the second stage starts from, public by then.

    Attributes
    ----------
    estimate
        Released coefficients.
    rows, groups
        The rows, with the instrument of the second stage, and their groups.
    geometry
        How its instruments are scaled.
    explained
        Variance of the response that the coefficients explain.
    residuals
        What is expected of residuals around them.
    gram
        Share of the budget for the equation's slope.
    same
        Whether both stages have the regressors themselves as instruments.
    near
        Whether one step does, if noise alone keeps the start from where the equation leads. Where hardly any residual is clipped, the equation is a line whose slope is released, and a second
        step from elsewhere would tell the same.
    bent
        Whether the start may be another line for other reasons: weights and conditions, which the first stage does not know, or filled cells. Then the first step tells whether it was near.
    far
        Whether columns may reach so far out that tails are looked for before the last step.
    looks
        Whether a closer clip would pay, if residuals are alike on both sides.
    errors
        Expected errors of the slopes (d).
    present
        Share of rows that are complete, where others are dropped.
    """

    estimate: Estimate
    rows: LinkedRows
    groups: Groups
    geometry: Geometry
    explained: float
    residuals: Residuals
    gram: float
    same: bool
    near: bool
    bent: bool
    far: bool
    looks: bool
    errors: Floats
    present: Present
