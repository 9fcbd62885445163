"""Sums over the clipped residuals of right links, of which only linked rows are seen: sensitivities with their proofs.

Under exchangeable linkage errors any function of linked pairs can be unlinked exactly. For a block of m rows with ``q_ii = γ``, ``q_il = o = (1-γ)/(m-1)`` and
``a = γ - o``, and for any g,

    E Σ_i g(x_i, z_i) = a Σ_i g(x_i, y_i) + o Σ_i Σ_l g(x_i, y_l),

and the double sum does not change when responses are permuted within the block, so it is seen: ``Σ_il g(x_i, z_l)``. Hence

    E Σ_i [g(x_i, z_i) - o Σ_l g(x_i, z_l)] = a Σ_i g(x_i, y_i).
"""

from __future__ import annotations

from dplinked.linkage import LinkageExposure


def right_residuals_sensitivity(norm: float, exposure: LinkageExposure, smallest: int = 2) -> float:
    """Sensitivity of ``S = Σ_i [g_ii - o Σ_l g_il]`` with ``g_il = g(x_i, z_l)`` of norm at most `norm` (K); l runs over i's block.

    `smallest` is the number of rows of the smallest block of two or more, if sizes are public.

    Proof. In S the weight of g_ii is 1-o and that of g_il, l ≠ i, is -o. An exact join has o = 0, and row j's term is all that changes: 2K.
    Otherwise, Q staying as it is:

    - x_j changes the terms g_jl of its row, whose weights add up to ``1 - o + (m-1)o = 2 - γ - o``: at most 2K(2-γ).
    - a response changes the terms g_ip of its column, with the same weights: 2K(2-γ). That happens on each row that carries the person's response
      (ν of them) and on each displaced row (k).
    - if links are displaced, row j is relinked too. The diagonal term of its column is one of its row, which may change in any way already; the
      others weigh ``(m-1)o = 1-γ``: 2K(1-γ) more.

    If Q changes, ``ΔS = Σ c'(g' - g) + Σ (c' - c)g`` with weights c, c'. Off the diagonal weights change as Q does, with the other sign. On it, ``1-o``
    changes by as much as a single entry off the diagonal does, which is at most 1/(m-1) of the change of the row's m-1 entries. So
    ``Σ|c' - c| ≤ M·m/(m-1)``. γ is the smallest declared accuracy.
    """
    if exposure.exact:
        return 2.0 * norm
    gamma, k = exposure.accuracy_min, exposure.displaced
    pairs = (2.0 - gamma) * (2.0 + 2.0 * exposure.carriers + 2.0 * k) + 2.0 * (1.0 - gamma) * (k > 0)
    return norm * (pairs + exposure.matrix_change * smallest / (smallest - 1.0))


def right_counts_sensitivity(exposure: LinkageExposure, smallest: int = 2) -> float:
    """Sensitivity of the same with an indicator for g, as in ``#{|z_i - t_i| ≤ e} - o #{(i, l): |z_l - t_i| ≤ e}``: half of it, since 0 ≤ g ≤ 1.

    Proof. Every bound above on a change of g by 2K is one by 1 here. What a change of Q adds is at most the largest |g|, so all of it stays.
    """
    if exposure.exact:
        return 1.0
    moved = exposure.matrix_change * smallest / (smallest - 1.0)
    return (right_residuals_sensitivity(1.0, exposure, smallest) - moved) / 2.0 + moved
