"""What agreement tells: patterns of agreement in several fields, and how much likelier each is for a match than for others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linker.fields import Comparer

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_EM_STEPS = 200
_MOST_PATTERNS = 1 << 22


@dataclass(frozen=True, repr=False)
class Evidence:
    """How much likelier each pattern of agreement is for a match than for others.

    Attributes
    ----------
    ratio
        Likelihood ratio of each pattern.
    matches, others
        For each field, the share of each level of agreement among matches (m) and among others (u). The first place stands for a missing value, which tells nothing: 1.
    """

    ratio: Floats
    matches: tuple[Floats, ...]
    others: tuple[Floats, ...]

    def __repr__(self) -> str:
        return "Evidence(for the steward)"


def evidence_of(matches: Sequence[Floats], others: Sequence[Floats]) -> Evidence:
    """The evidence of all patterns, from shares that are known."""
    ratio = np.ones(1)
    for m, u in zip(matches, others, strict=True):
        if m.ndim != 1 or m.shape != u.shape or not (np.isfinite([m, u]).all() and min(m.min(), u.min()) > 0.0):
            raise StudyError("Shares of agreement must be numbers above 0, as many among matches as among others.")
        ratio = np.outer(ratio, m / u).ravel()
    return Evidence(ratio, tuple(matches), tuple(others))


def pattern_levels(comparers: Sequence[Comparer]) -> list[int]:
    """How many levels each field has, with one more for a missing value. Refuses fields with too many patterns."""
    levels = [len(comparer.field.grades) + 1 for comparer in comparers]
    if math.prod(levels) > _MOST_PATTERNS:
        raise StudyError(
            f"{len(comparers)} fields have too many patterns of agreement. Name the ten or so that tell most: fields=…."
        )
    return levels


def compare_records(
    comparers: Sequence[Comparer], left: Integers, right: Integers, *, each: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Score and pattern of agreement: of each left record with each right one, or of the records at the same places alone.

    A pattern is a number whose digits are the fields' levels.
    """
    shape = (left.size, right.size) if each else left.shape
    score, pattern = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.int32)
    for comparer in comparers:
        levels, part = comparer.block(left, right) if each else comparer.pairs(left, right)
        score += part
        pattern *= len(comparer.field.grades) + 1
        pattern += levels
        pattern += 1  # the level of a missing value is -1
    return score, pattern


def estimate_evidence(patterns: Integers, linked: Integers, levels: Sequence[int]) -> Evidence:
    """Estimate the likelihood ratio, match against non-match, of every pattern of agreement that occurs (Fellegi and Sunter's model).

    Parameters
    ----------
    patterns
        How many compared pairs have each pattern.
    linked
        How many of the pairs over the threshold have each pattern; the estimation starts from there.
    levels
        How many levels each field has; level 0 stands for a missing value. A pattern is a number whose digits are the fields' levels.

    Notes
    -----
    The model has two classes of pairs, matches and non-matches. Within each, fields agree independently. It is fitted by expectation
    maximisation. A missing value is no evidence either way.
    """
    places = np.flatnonzero(patterns)
    digits = (
        np.stack(np.unravel_index(places, tuple(levels)), axis=0) if places.size else np.zeros((len(levels), 0), int)
    )
    counts = patterns[places].astype(np.float64)
    posterior = np.minimum(linked[places] / np.maximum(counts, 1.0), 1.0)
    ratio, matches, others = np.ones(places.size), list[Floats](), list[Floats]()
    for _ in range(_EM_STEPS):
        both = list(zip(digits, levels, strict=True))
        matches = [_frequencies(digit, counts * posterior, size) for digit, size in both]
        others = [_frequencies(digit, counts * (1.0 - posterior), size) for digit, size in both]
        ratio = np.ones(places.size)
        for digit, m, u in zip(digits, matches, others, strict=True):
            ratio *= (m / u)[digit]
        share = min(max(float((counts * posterior).sum() / max(counts.sum(), 1.0)), 1e-12), 0.5)
        odds = ratio * share / (1.0 - share)
        before, posterior = posterior, odds / (1.0 + odds)
        if places.size == 0 or np.abs(posterior - before).max() < 1e-6:
            break
    evidence = np.ones(patterns.size)
    evidence[places] = ratio
    return Evidence(evidence, tuple(matches), tuple(others))


def _frequencies(digit: Integers, weight: Floats, size: int) -> Floats:
    """Smoothed frequency of each level, among the pairs in which neither value of the field is missing; 1 in the place of a missing value."""
    totals = np.bincount(digit, weight, size) + 0.5
    totals[0] = 0.0
    frequencies: Floats = totals / totals.sum()
    frequencies[0] = 1.0
    return frequencies
