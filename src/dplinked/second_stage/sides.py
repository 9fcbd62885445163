"""Whether residuals lie on one side of the line more than on the other, where that would bend it: a closer clip does where they do not.

Noise is as large as the clip. A close one takes more from the long side of skewed residuals; where skewness follows a regressor, that bends the slope. Few residuals lie far out, so it is hard to see
there. But skewed residuals also move what those near the line tell by themselves: with exponential errors the zero of the equation that is clipped at one deviation is off by more than twenty times as much as at
four. So that equation is released before the last step, around the coefficients of the first. If both tell the same line, as far as noise lets tell, the last step clips closer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.centring import centred_core
from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.residuals import Residuals, derivative
from dplinked.estimate.whitening import Geometry
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.quantities.right_residuals import release_right_residuals
from dplinked.privacy.spending import SIDES, Spending
from dplinked.second_stage.clips import clip_around
from dplinked.second_stage.stage import SecondStage

Floats = NDArray[np.float64]

_APART = 0.5  # sampling errors by which both lines differ anyhow, since they weigh residuals in different ways
_SEEN = 2.0  # standard errors by which both lines differ where residuals are taken for skewed, if there is one column


def are_alike(
    stage: SecondStage,
    geometry: Geometry,
    gram: ReleasedSums,
    estimate: Estimate,
    met: Residuals,
    near: Residuals,
    spending: Spending,
) -> bool:
    """Whether residuals `near` the line tell the same slopes as those that were `met` by the estimate, as far as noise and sampling let tell."""
    rows, groups, intercept = stage.rows, stage.groups, stage.rows.design.intercept
    clip = clip_around(estimate.beta, near, rows.design, geometry.whitening)
    vector, scale = release_right_residuals(rows.right_residuals(clip), spending, spending.take(SIDES))
    slope, first = derivative(gram, near, intercept).matrix, int(intercept)
    inverse = np.linalg.pinv(centred_core(slope, intercept))
    level = slope[0, 0] if intercept else 1.0
    into = slope[first:, :first] / level  # what the intercept's equation has in the others
    sizes = geometry.sizes if geometry.whitening is None else np.ones(geometry.sizes.size)
    away = sizes * (inverse @ (vector[first:] - into @ vector[:first]))
    noise = (inverse**2) @ (scale[first:] ** 2 + (into**2) @ scale[:first] ** 2) * sizes**2
    noise = noise + np.diag(geometry.way(estimate.covariance[first:, first:]))
    sampling = groups.squares * (met.spread(groups.accuracy) / met.kept[2]) ** 2 / (groups.total * groups.contrast)
    noise = noise + _APART**2 * sampling * near.kept[2] * near.sizes * sizes * np.maximum(0.0, np.diag(inverse))
    most = _SEEN + math.sqrt(2.0 * math.log(sizes.size))
    return bool((np.abs(away) <= most * np.sqrt(noise)).all())
