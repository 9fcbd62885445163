"""A release as it would read under another linkage accuracy. No release itself: nothing was released under it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.estimate.centring import centred_core
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.release.inference import Inference

Floats = NDArray[np.float64]
_LEAST = 0.01  # accuracy


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What a release would say had another linkage accuracy been declared; computed from the release, at no cost.

    Attributes
    ----------
    accuracy
        The mean accuracy that is supposed; `declared_accuracy` is the release's own.
    coef, std_err, error_parts
        As in :class:`~dplinked.Release`, under that accuracy.
    """

    accuracy: float
    declared_accuracy: float
    coef: dict[str, float]
    std_err: dict[str, float]
    error_parts: dict[str, dict[str, float]]
    _inference: Inference

    def conf_int(self, level: float = 0.95, *, method: str = "test") -> dict[str, tuple[float, float]]:
        """Confidence interval of each coefficient under the supposed accuracy; see :meth:`dplinked.Release.conf_int`."""
        return self._inference.conf_int(level, method)

    def __repr__(self) -> str:
        return f"WhatIf(accuracy={self.accuracy:g} instead of {self.declared_accuracy:g}, coef={self.coef})"


def suppose_accuracy(
    change: float,
    linkage: DeclaredLinkage,
    inference: Inference,
    coef: dict[str, float],
    std_err: dict[str, float],
    error_parts: dict[str, dict[str, float]],
) -> WhatIf:
    """What a release would say had its accuracy been declared higher by `change`.

    Notes
    -----
    With f the ratio of the supposed to the declared accuracy, the slopes' part of H (the means taken out) is f times as large,
    noise included. So slopes are divided by f, the intercept takes up what the means then leave, and coefficients move by a
    linear map T, and standard errors with them: a slope's is divided by f as well. In the second stage, where most of the residuals of wrong links
    are clipped, b moves too, and slopes only by the share that the release calls mixing.
    """
    if linkage.model != "ELE" or inference.dropped or not inference.scaling.intercept:
        raise StudyError("Only a whole model with an intercept under ELE tells what another accuracy would do.")
    if linkage.accuracy is None:
        raise StudyError("The accuracies of this linkage are data and not shown, so another one cannot be tried.")
    declared = linkage.mean_accuracy
    supposed = min(1.0, max(_LEAST, declared + change))
    factor = supposed / declared
    to_user, offset = inference.scaling.to_user()
    moved = replace(inference, sums=_moved_sums(inference.sums, factor))
    effect = 1.0 / (1.0 - (1.0 - 1.0 / factor) * inference.sums.mixing)
    T = to_user @ _slopes_divided(moved.sums.matrix, effect) @ np.linalg.inv(to_user)
    names = inference.scaling.names
    before = np.array([coef[name] for name in names])
    covariance = inference.coefficients()[1]
    own = np.diag(covariance)
    ratio = np.sqrt(np.divide(np.diag(T @ covariance @ T.T), own, out=np.ones_like(own), where=own > 0.0))
    return WhatIf(
        accuracy=supposed,
        declared_accuracy=declared,
        coef=dict(zip(names, (T @ (before - offset) + offset).tolist(), strict=True)),
        std_err={name: std_err[name] * float(ratio[k]) for k, name in enumerate(names)},
        error_parts={
            name: {part: value * float(ratio[k]) for part, value in error_parts[name].items()}
            for k, name in enumerate(names)
            if name in error_parts
        },
        _inference=moved,
    )


def _moved_sums(sums: ReleasedSums, factor: float) -> ReleasedSums:
    """Released sums with the slopes' part of the matrix, and its noise, times `factor`; the vector stays what it is around 0, and moves around a centre."""
    matrix, scale, vector = sums.matrix.copy(), sums.matrix_scale.copy(), sums.vector.copy()
    core = centred_core(sums.matrix, intercept=True)
    matrix[1:, 1:] += (factor - 1.0) * core
    scale[1:, 1:] *= factor
    vector[1:] += (factor - 1.0) * (1.0 - sums.mixing) * core @ sums.centre[1:]
    return replace(sums, matrix=matrix, matrix_scale=scale, vector=vector)


def _slopes_divided(matrix: Floats, factor: float) -> Floats:
    """The map of scaled coefficients: slopes over `factor`, the intercept such that the means still fit (p×p)."""
    size = matrix.shape[0]
    divided = np.eye(size)
    divided[1:, 1:] /= factor
    divided[0, 1:] = (1.0 - 1.0 / factor) * matrix[0, 1:] / matrix[0, 0]
    return divided
