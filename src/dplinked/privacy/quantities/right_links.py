"""Numbers of right links among checked ones, drawn in public or in secret: sensitivity with its proof, plan and draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import ReleaseError
from dplinked.linkage import LinkageExposure
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.spending import Spending
from dplinked.sums.clipped import RightLinks, SecretLinks

Floats = NDArray[np.float64]

_OF_ONE_LINK = 0.09  # variance of an answer where nine of ten links are right


def changed_answers(exposure: LinkageExposure) -> int:
    """How many rows one person may change the answers of: their own, those that hold their response, and displaced ones."""
    return 1 + exposure.carriers + exposure.displaced


def right_links_sensitivity(exposure: LinkageExposure) -> float:
    """Sensitivity of the numbers of right links among checked ones, per group of rows (l2 over the groups).

    Proof. Which rows are checked, and to which group each belongs, is the same for both neighbours. Whether a row's link
    is right can change for the person's own row, for the rows that hold the person's response, and for each displaced row;
    each moves one group's count by at most 1, and the l2 norm of the changes is at most their l1 norm.
    """
    return float(changed_answers(exposure))


def affords_groups(groups: int, checked: float, scale: float) -> bool:
    """Whether so many counts of right links, each with noise of `scale`, leave the accuracy over all rows as good as the check found it.

    The noise of all of them together, a variance of ``groups·scale²``, is then at most that of drawing the `checked` links. Otherwise fewer counts, of larger groups,
    tell more. Only public numbers decide.
    """
    return groups * scale**2 <= _OF_ONE_LINK * checked


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


def plan_secret_links(groups: int, sample: SecretSample, rows: int) -> NoisePlan:
    """Plan the noise of right links in a secret sample of so many rows. Its μ is what the presence of one row shows at most, were the sample known."""
    part = Part("right links", groups, 1.0, 1.0, sample.scale)
    return make_room_for_draw(
        NoisePlan((part,), sample.presence), 2.0 * rows
    )  # twice: subtracting the guess rounds too


def release_secret_links(private: SecretLinks, sample: SecretSample, guess: Floats) -> Floats:
    """Right links of each group in a secret sample, less the group's guess for each checked one, in one Gaussian draw.

    Privacy
    -------
    What :func:`dplinked.privacy.secret_sample.secret_delta` says of the sample: each drawn row moves one group's entry by ``1 - guess`` or ``-guess``, by
    no more than the sample's own guess says. How many rows were drawn is not
    released, and the noise does not depend on it. Room for the draw is made for the smaller of the two distances, so that it covers both.
    """
    if not (np.maximum(guess, 1.0 - guess) <= max(sample.guess, 1.0 - sample.guess)).all():
        raise ReleaseError("A group's guess lets a row move the counts further than was paid for. Nothing was drawn.")
    values = private.correct - guess * private.checked
    return noise.add_gaussian(values, plan_secret_links(values.size, sample, private.rows).scales())
