"""The meat, the variance of ``b - Hβ``: sensitivities with their proofs, the choice of a route, plan and draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import LinkageExposure
from dplinked.privacy import noise
from dplinked.privacy.noise_plan import NoisePlan, Part, make_room_for_draw
from dplinked.privacy.spending import MEAT, Spending
from dplinked.privacy.symmetric import pack_symmetric, unpack_symmetric
from dplinked.sums.clipped import ClippedMeat
from dplinked.sums.rounding import rounding_slack

Floats = NDArray[np.float64]


def squares_sensitivity(norm: float, moved: float, changed: float = 1.0) -> float:
    """Frobenius sensitivity of ``Σ u_i u_i'``, ‖u_i‖ ≤ norm (K), if so many u_i are `changed` in any way and the others' squares move by at most `moved` (c) in trace norm.

    Proof. What is changed goes from a positive semidefinite matrix A to another, B, each a sum of k matrices of rank one and norm at most K²: ``‖B - A‖² ≤ ‖A‖² + ‖B‖² ≤ 2k²K⁴``, and no
    eigenvalue of B - A is larger than kK². The change C of the others has ``‖C‖ ≤ c`` and so ``tr (B - A)C ≤ kK²c``. Together
    ``‖B - A + C‖² ≤ 2k²K⁴ + 2kK²c + c² = (kK²)² + (kK² + c)²``, which is reached where B and C grow along one line, and A stood at a right angle to it. Where a contribution keeps its direction, the
    trace norm is what its squared length changes by; ``aa' - bb' = a(a - b)' + (a - b)b'`` has at most ``(‖a‖ + ‖b‖)‖a - b‖``.
    Of several levels side by side the matrices of all levels are the blocks of one, and A and B may be of different blocks: the same bound.
    """
    return math.hypot(changed * norm**2, changed * norm**2 + moved)


def row_meat_sensitivity(norm: float, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ u_i u_i'``, ``u_i = h_i r_i`` from the row's own residual, scaled to ‖u_i‖ ≤ norm.

    Proof. Row j changes in any way. Rows that hold the person's response, and displaced ones, keep the direction of h and change the length within [0, K²]: K² each. Nothing else sees the
    change, whatever happens to Q.
    """
    others = 0.0 if exposure.exact else float(exposure.carriers + exposure.displaced)
    return squares_sensitivity(norm, norm**2 * others)


def matching_meat_sensitivity(norm: float, h: float, reach: float, exposure: LinkageExposure) -> float:
    """The same with residuals ``z_i - w_i'β`` under an explicit Q, ‖h_i‖ ≤ h and ``|x'β| ≤ reach``.

    Proof. As above for row j, the carriers and the displaced rows. Of the other rows, row i's w_i'β moves by at
    most ``2 q_ij·reach`` through x_j and by ``Σ_l |q_il - q'_il|·reach`` through Q. ``min(h²r², K²)`` has slope at most
    ``2Kh`` in r. Together they change their lengths by ``2Kh·reach·(2(S-γ) + M)``.
    """
    spread = 2.0 * (exposure.column_sum - exposure.accuracy_min) + exposure.matrix_change
    changed = float(exposure.carriers + exposure.displaced)
    return squares_sensitivity(norm, norm**2 * changed + 2.0 * norm * h * reach * spread)


def block_meat_sensitivity(norm: float, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ_b T_b T_b'``, block totals ``T_b = Σ h_i r_i`` scaled to ‖T_b‖ ≤ norm.

    Proof. All that a person changes lies in the block of row j, the block of row p, and one more block for each
    displaced link (a move's new block is that of its displaced link). In each, one positive semidefinite
    rank-one matrix of norm at most K² replaces another: ``√2K²``. Not for a declared change of Q, which may
    lie in any block. An exact join has row j's block alone. If blocks are persons of up to L rows, all L steps to the neighbour lie in one block: ``√2K²`` in all,
    and so the L-th part of it for each step that noise is planned for.

    Of G levels side by side a block has G totals, each of one level's rows. A response that changes is met by partners of all levels: ``√G`` times as much for its block. Regressors are met by
    nobody else, so in the block of row j two totals change, that of the level it leaves and that of the one it enters, unless its response changes too, because links are displaced or its
    block may be another.
    """
    if exposure.exact:
        return math.sqrt(2.0 * min(exposure.levels, 2 * exposure.persons)) * norm**2 / exposure.persons
    held = exposure.displaced == 0 and exposure.matrix_change == 0.0
    own = min(exposure.levels, 2) if held else exposure.levels
    others = (exposure.carriers + exposure.displaced) * math.sqrt(exposure.levels)
    return math.sqrt(2.0) * (math.sqrt(own) + others) * norm**2


def centred_meat_sensitivity(norm: float, met: float, exposure: LinkageExposure) -> float:
    """Frobenius sensitivity of ``Σ f_i² (u_i - m_i)(u_i - m_i)'``, contributions of rows around the public centre of their stratum, times its public factor, cut to at most norm (N); other rows move by at most `met` in all, that factor included.

    Proof. Row j, each row that holds the person's response, and each displaced one change in any way: around a centre, a contribution that keeps its direction does not. Which centre
    is row j's hangs on row j alone. To cut brings no two further apart, so the squares of all others move by ``2N`` times `met` in trace norm, and :func:`squares_sensitivity` has the rest.
    """
    others = 0.0 if exposure.exact else float(exposure.carriers + exposure.displaced)
    return squares_sensitivity(norm, 2.0 * norm * met, 1.0 + others)


@dataclass(frozen=True)
class MeatRoute:
    """How the variance will be released: by blocks, by rows or by the residuals' size alone.

    `clip` is the norm that contributions are clipped to, in units of the residual deviation.
    """

    name: str
    clip: float


_NOISY = 0.12  # noise, relative to the meat, up to which contributions are clipped further out
SCALE_ALONE = MeatRoute("scale", 0.0)  # nothing more is released: the residuals' size has to do


def choose_route(
    p: int, exposure: LinkageExposure, largest_block: int | None, count: int, mu: float, *, centred: bool = False
) -> MeatRoute:
    """Choose the route from public values: the expected noise relative to the meat decides.

    Instruments are weighted to mean square one, so that the meat's diagonal is about ``n·τ²``. Block meat is right at every
    block size but needs many blocks; row meat does not see that links within a block hang together; where both drown in
    noise, so does the sampling error, and the residuals' size is enough. Clipping is as wide as
    an eighth of relative noise allows: closer, the largest contributions of skewed columns under strong signals were cut, and intervals too short. Within strata contributions are `centred`, and those of rows.
    """
    signal = mu * count
    if largest_block is not None and exposure.matrix_change == 0.0 and not centred:
        alike = (
            2 if exposure.exact and exposure.persons > 1 else 1
        )  # rows of a person may all be alike, so that they add up rather than cancel
        unit = block_meat_sensitivity(1.0, exposure) * largest_block**alike * p / signal
        least = 3.0 + 4.0 / math.sqrt(largest_block)
        if unit * least**2 <= 0.2:
            clip = min(14.0, max(least, math.sqrt(_NOISY / unit)))
            return MeatRoute("block", clip * math.sqrt(largest_block**alike * p))
    unit = (
        (centred_meat_sensitivity(1.0, 0.0, exposure) if centred else row_meat_sensitivity(1.0, exposure)) * p / signal
    )
    if unit * 16.0 <= 0.25:
        return MeatRoute("row", min(14.0, max(4.0, math.sqrt(_NOISY / unit))) * math.sqrt(p))
    return SCALE_ALONE


def meat_sensitivity(private: ClippedMeat) -> float:
    """Sensitivity of a meat for the clip it was made with."""
    exposure, norm = private.exposure, private.norm
    if private.centred:
        return centred_meat_sensitivity(norm, 0.0, exposure)
    if private.route == "block":
        return block_meat_sensitivity(norm, exposure)
    if exposure.symmetric:
        return row_meat_sensitivity(norm, exposure)
    return matching_meat_sensitivity(norm, private.instrument, private.reach, exposure)


def plan_meat(p: int, sensitivity: float, largest: float, count: int, mu: float) -> NoisePlan:
    """Plan the noise of the meat's upper triangle; terms of its sums are at most `largest`."""
    entries = p * (p + 1) // 2
    total = sensitivity + rounding_slack(count, largest, entries)
    part = Part("meat", entries, total, 1.0, total / mu)
    return make_room_for_draw(NoisePlan((part,), mu), 2.0 * count * largest)


def release_meat(private: ClippedMeat, spending: Spending) -> tuple[Floats, float]:
    """Release the meat in one Gaussian draw: the noisy matrix, and the noise in an entry of its packed form.

    Privacy
    -------
    μ-GDP for its share of the budget, given the route and clip the value was made with, which are public by then.
    """
    p, norm = private.matrix.shape[0], private.norm
    largest = norm * max(norm, private.instrument * private.reach)
    plan = spending.note(plan_meat(p, meat_sensitivity(private), largest, private.rows, spending.take(MEAT)))
    drawn = noise.add_gaussian(pack_symmetric(private.matrix), plan.scales())
    return unpack_symmetric(drawn, p), plan.parts[0].scale
