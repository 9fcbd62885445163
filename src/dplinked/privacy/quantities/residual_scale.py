"""The size of residuals, a noisy quantile of their absolute values: sensitivity with its proof, plan and draws."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError
from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.quantities.ranges import bisect
from dplinked.privacy.spending import RESIDUAL_SCALE, Spending
from dplinked.sums.clipped import ResidualCounts

Floats = NDArray[np.float64]

_STEPS = 6  # halvings of the grid
_BINS = 1 << _STEPS
_LEAST = 0.1  # share of rows that are taken to be complete at least, or
_FEW = 4.0  # times the noise of that share, if it is smaller
_CLEAR = 2.0  # times its noise: how far a share must lie below 1 for cells to be taken as missing


@dataclass(frozen=True)
class Present:
    """Which share of rows is taken to count and to have all cells, the noise of that share, 0 where cells are filled, and the share as it was drawn."""

    complete: float = 1.0
    noise: float = 0.0
    drawn: float = 1.0

    @property
    def is_incomplete(self) -> bool:
        """Whether cells are missing, as far as noise lets tell."""
        return 1.0 - self.complete > _CLEAR * self.noise


def residual_count_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of a count "rows whose own residual is below a threshold".

    Proof. A row's own residual ``z_i - β₀ - (γx_i + (1-γ)x̄)'β`` sees its own cells and public values only. Row j
    changes, and the row p that holds the person's response, and each displaced row; an exact join has row j
    alone. Each moves the count by at most 1. Q does not enter. Whether a row has a residual at all is seen from its own cells as well: where
    missing cells are dropped, the number of rows that have one moves by no more, whatever it weighs up to 1. So is what a row counts.
    Counts of all levels side by side: row j may leave one level and enter another, which moves two of them by 1 each, √2 in place of 1; the other rows stay in their levels.
    """
    return exposure.counted + (0.0 if exposure.exact else exposure.carriers + exposure.displaced)


def residual_edges(R: float) -> Floats:
    """Public grid for the size of residuals: from 2R down in steps of 2^(1/4)."""
    return np.asarray(2.0 * R * 2.0 ** (-np.arange(_BINS - 1, 0, -1) / 4.0), np.float64)


def plan_residual_scale(
    exposure: LinkageExposure, count: int, mu: float, highest: float = 0.97, *, counted: bool = False
) -> tuple[NoisePlan, float] | None:
    """Plan the noise of the search and the quantile to look for, `highest` at most; None where the search could only mislead.

    The quantile is as high as the noise allows: clipping levels follow from it, and wrong links sit in the tail. If they are `counted`, the number of complete rows
    is drawn too, as one step more.
    """
    sensitivity, draws = residual_count_sensitivity(exposure), _STEPS + counted
    step = Part("residuals below", 1, sensitivity, 1.0, sensitivity * math.sqrt(draws) / mu)
    level = min(highest, 1.0 - 3.0 * step.scale / count)
    if level < min(0.6, highest):
        return None
    parts = (step, replace(step, name="complete rows")) if counted else (step,)
    room = make_room_for_draw(NoisePlan(parts, mu / math.sqrt(draws)), float(count))
    return NoisePlan(room.parts, mu), level


def release_residual_scale(private: ResidualCounts, spending: Spending) -> float:
    """Residual standard deviation from a noisy quantile of the rows' own absolute residuals."""
    size, level, _ = release_residual_size(private, spending, RESIDUAL_SCALE)
    return float(size / statistics.NormalDist().inv_cdf((1.0 + level) / 2.0))


def release_residual_size(
    private: ResidualCounts, spending: Spending, share: float, highest: float = 0.97, present: Present | None = None
) -> tuple[float, float, Present]:
    """A noisy quantile of the rows' own absolute residuals, its level among rows that have one, and the share of these.

    Where missing cells are dropped, the share is drawn first, unless it is known from before (`present`).

    Privacy
    -------
    Each step draws one count that moves by at most :func:`residual_count_sensitivity`, and so does the share's: μ-GDP with the plan's μ.
    """
    counted = private.incomplete is not None and present is None
    planned = plan_residual_scale(private.exposure, private.rows, spending.take(share), highest, counted=counted)
    if planned is None:
        raise ReleaseError("The budget is too small to search for the size of residuals.")
    plan, level = spending.note(planned[0]), planned[1]
    scale = plan.parts[0].scale / private.rows
    if present is None:
        present = _release_present(private, plan)
    level = min(level, max(0.5, 1.0 - 3.0 * scale / present.complete))
    found = int(bisect(private.counts[None, :], np.array([level * present.complete]), _STEPS, plan)[0])
    return float(private.edges[min(found, private.edges.size - 1)]), level, present


def _release_present(private: ResidualCounts, plan: NoisePlan) -> Present:
    """Draw the number of complete rows as a share of all; 1 where missing cells are filled."""
    if private.incomplete is None:
        return Present()
    scale = plan.parts[1].scale
    drawn = float(noise.add_gaussian(np.array([float(private.rows - private.incomplete)]), scale)[0]) / private.rows
    spread = scale / private.rows
    return Present(min(1.0, max(min(_LEAST, _FEW * spread), drawn)), spread, drawn)
