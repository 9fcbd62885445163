"""Tests across results that were released together: their evidence as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.intervals import Evidence

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class JointEvidence(Evidence):
    """Evidence of several results about all of their coefficients, one after the other; an error of the accuracy moves all of them at once."""

    moved: Floats = None  # type: ignore[assignment]  # what a relative error of the accuracy does to the matrix, in its standard errors (p×p)

    @cached_property
    def _moved(self) -> Floats:
        return self.moved


def join_evidence(results: Sequence[Evidence], factors: Sequence[float]) -> JointEvidence:
    """The evidence of results whose privacy noise was drawn independently, and whose variance is raised by a factor each.

    Notes
    -----
    Contributions v_k of one row, or block, to the equations of outcomes hang together, as do all that H's common noise adds to them. For any positive shares s_k that add up to one,
    ``(Σ v_k)(Σ v_k)' ≤ Σ v_k v_k'/s_k`` in the order of positive semidefinite matrices (Cauchy-Schwarz): with factors 1/s_k the joint variance is at least the true one, whatever the outcomes have in common, and
    tests reject no more often than they say. Rows of different levels are different rows: factors of 1.
    """
    raised = [
        replace(one, meat=one.meat * factor, matrix_scale=one.matrix_scale * np.sqrt(factor))
        for one, factor in zip(results, factors, strict=True)
    ]
    basis = None
    if any(one.basis is not None for one in raised):
        basis = _diagonal([np.eye(one.size) if one.basis is None else one.basis for one in raised])
    return JointEvidence(
        _diagonal([one.matrix for one in raised]),
        np.concatenate([one.vector for one in raised]),
        _diagonal([one.matrix_scale for one in raised]),
        np.concatenate([one.vector_scale for one in raised]),
        raised[0].symmetric,
        _diagonal([one.meat for one in raised]),
        np.concatenate([one.centre for one in raised]),
        False,
        1.0,
        _diagonal([one.left for one in raised]),
        np.concatenate([one.right for one in raised]),
        basis,
        moved=_diagonal([one._moved * np.sqrt(one.accuracy_variance) for one in raised]),
    )


def share_variance(covariances: Sequence[Floats], left: Sequence[Floats]) -> list[float]:
    """Factors for the variance of results in a test of ``Σ left_k β_k``, that make its bound smallest: 1/s_k with s_k in proportion to the standard error that a result brings.

    `covariances` are those of the coefficients (p×p each), `left` the hypotheses' rows for each result (q×p each).
    """
    squares = np.array([np.diag(rows @ own @ rows.T) for own, rows in zip(covariances, left, strict=True)])
    parts = np.sqrt((squares / np.maximum(squares.sum(axis=0), 1e-300)).mean(axis=1))
    shares = np.maximum(parts / parts.sum(), 1e-3)
    return [float(one) for one in shares.sum() / shares]


def _diagonal(blocks: Sequence[Floats]) -> Floats:
    """Matrices as blocks of one (block diagonal)."""
    whole = np.zeros(tuple(sum(block.shape[axis] for block in blocks) for axis in (0, 1)))
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole
