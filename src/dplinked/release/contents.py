"""What a release is made of: what was declared, what was released, and what is promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dplinked.estimate.goodness import Goodness
from dplinked.estimate.variance import ReleasedVariance
from dplinked.linkage import PrivacyUnit
from dplinked.privacy.noise_plan import Part
from dplinked.privacy.quantities.descent import ReleasedDescent
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.records import ReadableByKey, Record


@dataclass(frozen=True)
class Privacy:
    """What is promised: (ε, δ), the μ actually used, for whom, and what was taken as public."""

    epsilon: float
    delta: float
    mu: float
    unit: PrivacyUnit
    statement: str
    assumed_public: tuple[str, ...]


@dataclass(frozen=True)
class Declared(ReadableByKey):
    """The model as it was declared: its formula, the bounds and levels of its columns, what null cells count as where they are filled, and which errors responses may have;
    the family of the regression, the column that counts are taken by, what is done with missing cells, the column of weights, the condition for rows to count, the columns of clusters and strata; and the variables that are, or by
    their names may be made of, columns by which records were linked, each with that column.
    """

    formula: str
    bounds: dict[str, tuple[float, float]]
    levels: dict[str, tuple[str | None, ...]]
    fill: dict[str, float]
    errors: str = "any"
    family: str = "linear"
    exposure: str | None = None
    missing: str = ""  # releases of versions that had no choice
    weights: str | None = None
    where: str | None = None
    cluster: str | None = None
    strata: str | None = None
    compared: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Released(Record):
    """All that was released, with its noise.

    Attributes
    ----------
    sums
        Noisy sums; None for a descent without intervals.
    descent
        The transcript of a descent, if there was one.
    variance
        The variance that intervals rest on; None if they were not paid for.
    parts
        Name, size, sensitivity and noise scale of all that was drawn, in order.
    squares
        Noisy z'z, of the paper's algorithms with intervals.
    largest
        The count that larger ones were clipped to, as it was found.
    counted
        Noisy number of complete rows for which the declared condition holds, and the standard deviation of its noise.
    goodness
        Squares of residuals, if they were paid for.
    """

    sums: ReleasedSums | None
    descent: ReleasedDescent | None
    variance: ReleasedVariance | None
    parts: tuple[Part, ...]
    squares: float | None = None
    largest: int | None = None
    counted: tuple[float, float] | None = None
    goodness: Goodness | None = None

    def __repr__(self) -> str:
        entries = sum(part.entries for part in self.parts)
        return f"<Released values: {entries:,} noisy numbers in {len(self.parts)} parts>"

    OLD_KEYS: ClassVar[Mapping[str, str]] = {
        "meat": "variance",
        "accuracy_variance": "variance.accuracy",
        "scale": "descent.scale",
        **{key: f"sums.{key}" for key in ("matrix", "vector", "matrix_scale", "vector_scale", "symmetric", "centre")},
        **{key: f"descent.{key}" for key in ("path", "gradients", "steps")},
    }
