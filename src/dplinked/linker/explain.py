"""Why two records were linked: what each field adds to the score of a link. For the steward, not for publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.evidence import Evidence
from dplinked.linker.fields import MISSING, Comparer, Field

Floats = NDArray[np.float64]

PRIOR = "(before any field)"  # what a pair starts from, in Splink's model
REST = "(rest)"  # what a score has beyond these weights: it was found among fewer records, or cut off
_NEGLIGIBLE = 1e-4


@dataclass(frozen=True, repr=False)
class Explanation:
    """What the scores of some links are made of (R links).

    Attributes
    ----------
    parts
        What adds to the score: the fields, and with Splink what a pair starts from.
    weights
        What each part adds (R × parts).
    agreement
        How the two values agree, in words (R × parts).
    evidence
        For rules: log2 of how much likelier the agreement is for a match (R × parts); None for Splink, whose weights are that.
    """

    parts: tuple[str, ...]
    weights: Floats
    agreement: list[list[str]]
    evidence: Floats | None = None

    def completed(self, score: Floats) -> Explanation:
        """The same with a last part such that weights add up to the scores; scores that are not known are left alone."""
        rest = np.where(np.isfinite(score), score - self.weights.sum(axis=1), 0.0)
        if np.abs(rest).max(initial=0.0) < _NEGLIGIBLE:
            return self
        told = [[*words, ""] for words in self.agreement]
        return Explanation((*self.parts, REST), np.column_stack([self.weights, rest]), told, self.evidence)

    def line(self, k: int) -> str:
        """One link in a line: ``surname +1, date_of_birth +0.5 = 1.5``."""
        added = ", ".join(f"{name} {weight:+.3g}" for name, weight in zip(self.parts, self.weights[k], strict=True))
        return f"{added} = {self.weights[k].sum():.3g}"


def explain_by_rule(comparers: Sequence[Comparer], evidence: Evidence | None) -> Explanation:
    """Explain the pairs of records at the same places of both files, which are linked by rule."""
    rows = np.arange(comparers[0].left.size)
    told = [comparer.pairs(rows, rows) for comparer in comparers]
    words = [[level_word(one.field, int(k)) for k in levels] for one, (levels, _) in zip(comparers, told, strict=True)]
    weights = np.column_stack([score.astype(np.float64) for _, score in told])
    ratios = None
    if evidence is not None:
        both = zip(evidence.matches, evidence.others, told, strict=True)
        ratios = np.column_stack([np.log2((m / u)[levels.astype(np.int64) + 1]) for m, u, (levels, _) in both])
    names = tuple(comparer.field.name for comparer in comparers)
    return Explanation(names, weights, [list(row) for row in zip(*words, strict=True)], ratios)


def level_word(field: Field, level: int) -> str:
    """A level of agreement in words."""
    if level == MISSING:
        return "missing"
    if field.compare in ("date", "number"):
        return ("differs", "near", "same")[level]
    if field.compare == "jaro-winkler":
        alike = field.threshold is not None or level < len(field.grades) - 1
        return "differs" if level == 0 else "alike" if alike else "same"
    return ("differs", "same")[level]
