"""Numbers of right links among checked ones: sensitivity with its proof, plan and draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.spending import Spending
from dplinked.sums.linked_rows import RightLinks

Floats = NDArray[np.float64]


def right_links_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of the numbers of right links among checked ones, per group of rows (l2 over the groups).

    Proof. Which rows are checked, and to which group each belongs, is the same for both neighbours. Whether a row's link
    is right can change for the person's own row, for the rows that hold the person's response, and for each displaced row;
    each moves one group's count by at most 1, and the l2 norm of the changes is at most their l1 norm.
    """
    return 1.0 + exposure.carriers + exposure.displaced


def plan_right_links(groups: int, exposure: LinkageExposure, checked: int, mu: float) -> NoisePlan:
    """Plan the noise of the numbers of right links among `checked` ones, in groups."""
    sensitivity = right_links_sensitivity(exposure)
    part = Part("right links", groups, sensitivity, 1.0, sensitivity / mu)
    return make_room_for_draw(NoisePlan((part,), mu), float(checked))


def release_right_links(private: RightLinks, spending: Spending) -> Floats:
    """Numbers of right links per group, in one Gaussian draw of the whole budget.

    Privacy
    -------
    μ-GDP with the spending's μ: the counts move by at most :func:`right_links_sensitivity` between neighbours.
    """
    plan = plan_right_links(private.counts.size, private.exposure, private.checked, spending.take_rest())
    return noise.add_gaussian(private.counts.astype(np.float64), spending.note(plan).scales())
