"""A release put together from released and declared values."""

from __future__ import annotations

import math
from functools import cache
from importlib import metadata

import numpy as np

from dplinked.estimate.coefficients import Estimate
from dplinked.estimate.goodness import Goodness
from dplinked.estimate.variance import ErrorParts
from dplinked.privacy.quantities.descent import ReleasedDescent
from dplinked.privacy.quantities.instrument import ReleasedSums
from dplinked.privacy.spending import Spending
from dplinked.release.contents import Declared, Released
from dplinked.release.release import Release
from dplinked.release.statement import describe_privacy
from dplinked.study.design import Design
from dplinked.study.study import Study


def build_release(
    study: Study,
    design: Design,
    count: int,
    spending: Spending,
    estimate: Estimate,
    errors: ErrorParts,
    *,
    sums: ReleasedSums | None = None,
    descent: ReleasedDescent | None = None,
    squares: float | None = None,
    shrunken: Estimate | None = None,
    counted: tuple[float, float] | None = None,
    goodness: Goodness | None = None,
) -> Release:
    """Put a release together; what it spent is read off its spending."""
    matrix, offset = design.scaling.to_user()
    names = design.names
    parts = errors.named()
    total = sum(np.maximum(part, 0.0) for part in parts.values())
    identified = 1.96 * estimate.plain_error <= design.coefficient_range()
    return Release(
        formula=study.formula,
        method=study.method,
        calibration=study.calibration,
        count=count,
        coef=dict(zip(names, (matrix @ estimate.beta + offset).tolist(), strict=True)),
        std_err=dict(zip(names, np.sqrt(total).tolist(), strict=True)),
        error_parts={
            name: {part: math.sqrt(max(0.0, float(value[k]))) for part, value in parts.items()}
            for k, name in enumerate(names)
        },
        identified=dict(zip(names, identified.tolist(), strict=True)),
        privacy=describe_privacy(study, spending.spent * study.unit.rows),
        linkage=study.linkage.describe(),
        declared=Declared(
            study.formula,
            dict(design.bounds),
            dict(design.levels),
            _fills(study.prepare()[0]),
            study.errors,
            study.family,
            study.exposure,
            study.missing,
            study.weights,
            study.where,
            study.cluster,
            study.strata,
        ),
        released=Released(
            sums,
            descent,
            errors.released,
            spending.parts,
            squares,
            _largest(design),
            counted,
            None if goodness is None else goodness.scaled(design.response.scale**2),
        ),
        scaling=design.scaling,
        versions=dict(_versions()),
        shrunken={} if shrunken is None else dict(zip(names, (matrix @ shrunken.beta + offset).tolist(), strict=True)),
    )


def _fills(design: Design) -> dict[str, float]:
    """What missing cells of the formula's columns count as."""
    used = {name for column in (*design.columns, design.response) for f in column.numeric for name in f.variables}
    used |= set() if design.exposure is None else {name for f in design.exposure.numeric for name in f.variables}
    return {name: value for name, value in design.fill.items() if name in used}


def _largest(design: Design) -> int | None:
    """The count that larger ones were clipped to."""
    return design.curve.largest if design.curve is not None and design.curve.counts else None


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Versions of what made the release; looking them up takes longer than the noise."""
    return tuple((name, metadata.version(name)) for name in ("dplinked", "opendp", "numpy"))
