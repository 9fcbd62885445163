"""The tight mechanisms in simulations: the library's own plans and solvers, but with NumPy's noise.

This is for experiments with a thousand repetitions, in which x and Q stay the same and only the responses and the noise change. Nothing
here can make a release. A test compares it with :func:`dplinked.fit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.table import Rows
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.descent import descent_sums, solve_descent
from dplinked.linkage import LinkageExposure
from dplinked.plan.expected import better_instrument
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.noise_plan import NoisePlan
from dplinked.privacy.quantities.descent import (
    ReleasedDescent,
    descent_sensitivity,
    largest_gradient,
    plan_descent,
)
from dplinked.privacy.quantities.instrument import ReleasedSums, entry_noise, is_symmetric, plan_sums
from dplinked.privacy.spending import CURVATURE, Spending
from dplinked.study.design import Design
from dplinked.study.instrument import public_steps
from dplinked.study.study import Study
from dplinked.sums.numpy.instrument import instrument_sums
from dplinked.sums.numpy.prepare import prepare_rows

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tight:
    """A study of a single slope without intercept, with x and Q held fixed.

    Attributes
    ----------
    instrument
        The instrument h of each row, on the scale of the sums (n).
    matrix
        ``h'QX``, without noise.
    to_user
        Factor that converts a coefficient of the scaled columns to the user's units.
    """

    study: Study
    design: Design
    exposure: LinkageExposure
    instrument: Floats
    matrix: float
    to_user: float
    count: int

    def vector(self, z: Floats) -> Floats:
        """``h'z`` for one response vector per row of `z` (repetitions×n), clipped to the declared bounds and scaled."""
        response = self.design.response
        low, high = self.design.bounds[response.name]
        return np.asarray((np.clip(z, low, high) / response.scale) @ self.instrument, np.float64)

    def estimates(self, vector: Floats, rng: np.random.Generator) -> Floats:
        """Coefficients, one per entry of `vector`, in the user's units."""
        return (self._descents if self.study.method == "ngd" else self._solutions)(vector, rng) * self.to_user

    def variance(self, meat: float, beta: float) -> float:
        """Expected variance of a coefficient: `meat` is ``h'Σ_z h`` of the scaled problem, `beta` the true slope.

        To first order: the noise of b, and that of the matrix times how far the coefficient is from where the matrix' noise counts for
        nothing. That is 0 for sums, and the mean iterate for a descent.
        """
        scaled = beta / self.to_user
        if self.study.method == "ngd":
            plan, steps = self._descent_plan()
            T, left = self._descent.iterations, 1.0 - float(steps[0]) * self.matrix / self.count
            b, H = plan.parts[0].scale / np.sqrt(T), entry_noise(self._curvature_plan()).diagonal
            distance = scaled * float(np.mean(left ** np.arange(T)))
        else:
            b, H = self._scales(self._plan())
            distance = scaled
        return float((meat + b**2 + (H * distance) ** 2) / self.matrix**2) * self.to_user**2

    @property
    def _descent(self) -> Any:
        assert self.study.descent is not None
        return self.study.descent

    @property
    def _mu(self) -> float:
        return privacy_mu(self.study.epsilon, self.study.delta)

    def _plan(self) -> NoisePlan:
        return plan_sums(self.design, self.exposure, self.count, self._mu)

    def _scales(self, plan: NoisePlan) -> tuple[float, float]:
        noise = entry_noise(plan)
        return noise.response, noise.diagonal

    def _solutions(self, vector: Floats, rng: np.random.Generator) -> Floats:
        plan = self._plan()
        b, H = self._scales(plan)
        symmetric, found = is_symmetric(self.design, self.exposure), np.empty(vector.size)
        noise = rng.normal(size=(vector.size, 2)) * (b, H)
        for k, value in enumerate(vector):
            released = ReleasedSums(
                np.array([[self.matrix + noise[k, 1]]]), np.array([value + noise[k, 0]]), np.array([[H]]), np.array([b]),
                symmetric, np.zeros(1),
            )  # fmt: skip
            found[k] = solve_sums(released, intercept=False, prior_scale=1.0).beta[0]
        return found

    def _descent_plan(self) -> tuple[NoisePlan, Floats]:
        descent = self._descent
        largest = largest_gradient(self.design, self.exposure, descent)
        sensitivity = descent_sensitivity(self.design, self.exposure, descent)
        mu = Spending(self._mu).rest(keep=CURVATURE)
        plan = plan_descent(1, sensitivity, 1.0 / mu, descent, self.count, largest)
        return plan, public_steps(self.study.prepare()[0], self.study.linkage.public.mean_accuracy, descent)

    def _curvature_plan(self) -> NoisePlan:
        mu = Spending(self._mu).share(CURVATURE)
        return plan_sums(self.design, self.exposure, self.count, mu, matrix_only=True, intervals=True)

    def _descents(self, vector: Floats, rng: np.random.Generator) -> Floats:
        """Descents of all repetitions side by side, each finished by solving with a noisy curvature of its own."""
        plan, steps = self._descent_plan()
        scale, radius = plan.parts[0].scale, self._descent.radius
        path, gradients = [np.zeros(vector.size)], []
        for _ in range(self._descent.iterations):
            gradients.append(self.matrix * path[-1] - vector + rng.normal(0.0, scale, vector.size))
            path.append(np.clip(path[-1] - steps[0] * gradients[-1] / self.count, -radius, radius))
        H = entry_noise(self._curvature_plan()).diagonal
        curvatures = self.matrix + rng.normal(0.0, H, vector.size)
        symmetric, zero = is_symmetric(self.design, self.exposure), np.zeros(1)
        found = np.empty(vector.size)
        for k, (iterates, steep) in enumerate(zip(np.array(path).T, np.array(gradients).T, strict=True)):
            released = ReleasedDescent(iterates[:, None], steep[:, None], steps, scale)
            curvature = ReleasedSums(np.array([[curvatures[k]]]), zero, np.array([[H]]), zero, symmetric, zero)
            found[k] = solve_descent(descent_sums(released, curvature), intercept=False, prior_scale=1.0).beta[0]
        return found


def prepare_tight(study: Study, data: dict[str, Any]) -> Tight:
    """Compute all that stays the same over repetitions: the design, the instrument and ``h'QX``."""
    design, exposure = study.prepare()
    count = len(next(iter(data.values())))
    if study.method == "ngd":
        design = replace(design, half_widths=None)
    elif design.half_widths is not None:
        unaimed = replace(study, typical={}).prepare()[0]
        design = better_instrument(design, unaimed, exposure, count, privacy_mu(study.epsilon, study.delta))
    prepared = prepare_rows(Rows(data), design, study.linkage, study.unit)
    x, _ = prepared.whole()
    h = np.empty_like(x)
    design.instruments(x, h)
    matrix, _ = design.scaling.to_user()
    assert matrix.shape == (1, 1)
    return Tight(
        study, design, exposure, h[0], float(instrument_sums(prepared).matrix[0, 0]), float(matrix[0, 0]), count
    )
