"""From estimates to the release object: descriptions of what was released, and error budgets."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.estimate.ssp import Estimate
from dplinked.linkage import ELE, Exact, Linkage, Matching
from dplinked.privacy import mechanism as door
from dplinked.privacy.calibration import privacy_epsilon, round_up
from dplinked.privacy.plan import NoisePlan
from dplinked.release.release import Privacy, Release
from dplinked.study.design import Design
from dplinked.study.instrument import column_spread, instrument_signal
from dplinked.study.study import Study
from dplinked.sums.types import BlockFacts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Variance:
    """The released variance of ``b - Hβ``.

    Attributes
    ----------
    route
        ``"block"``, ``"row"`` or ``"scale"``.
    matrix, weights
        Noisy meat (p×p) of instruments times public weights (p), as released; `scale` is the noise in its svec entries.
    residual
        Residual standard deviation on the scaled response.
    accuracy
        Relative variance of the linkage accuracy; None if nothing was declared about it.
    dependence
        By how much links that hang together within a block raise the linkage part of row-wise variance.
    """

    route: str
    matrix: Floats
    weights: Floats
    scale: float
    residual: float
    accuracy: float | None
    dependence: float
    plans: tuple[NoisePlan, ...]


def build_release(
    study: Study,
    design: Design,
    count: int,
    mu: float,
    estimate: Estimate,
    released: dict[str, Any],
    variance: Variance | None,
) -> Release:
    """Put a release together from released and declared values."""
    matrix, offset = design.to_user()
    names = design.names
    parts = {"privacy": np.diag(matrix @ estimate.covariance @ matrix.T)}
    if variance is not None:
        gain = matrix @ estimate.gain
        share = linkage_share(study, design, estimate.beta, released, variance, count)
        meat = usable_meat(variance, count) * (1.0 + share * variance.dependence)
        spread = np.diag(gain @ meat @ gain.T)
        parts["sampling"], parts["linkage"] = spread * (1.0 - share), spread * share
        if variance.accuracy:
            moved = accuracy_direction(released, estimate.beta, design.intercept)
            parts["linkage"] = parts["linkage"] + variance.accuracy * (gain @ moved) ** 2
        released = {
            **released,
            "meat": {
                "route": variance.route,
                "matrix": meat.tolist(),
                "scale": variance.scale,
                "weights": variance.weights.tolist(),
                "residual": variance.residual,
            },
            "accuracy_variance": variance.accuracy,
            "parts": [*released["parts"], *describe_parts(*variance.plans)],
        }
    total = sum(np.maximum(part, 0.0) for part in parts.values())
    identified = 1.96 * estimate.plain_error <= coefficient_range(design)
    return Release(
        formula=study.formula,
        method=study.method,
        calibration=study.calibration,
        count=count,
        coef=dict(zip(names, (matrix @ estimate.beta + offset).tolist(), strict=True)),
        std_err=dict(zip(names, np.sqrt(total).tolist(), strict=True)),
        error_parts={
            name: {part: math.sqrt(max(0.0, float(value[k]))) for part, value in sorted(parts.items())}
            for k, name in enumerate(names)
        },
        identified=dict(zip(names, identified.tolist(), strict=True)),
        privacy=describe_privacy(study, mu),
        linkage=study.linkage.describe(),
        declared={
            "formula": study.formula,
            "bounds": {name: list(interval) for name, interval in design.bounds.items()},
            "levels": {name: list(levels) for name, levels in design.levels.items()},
            "fill": dict(design.fill),
        },
        released=released,
        scaling={
            "columns": [{"name": c.name, "shift": c.shift, "scale": c.scale} for c in design.columns],
            "response": {"name": design.response.name, "shift": design.response.shift, "scale": design.response.scale},
            "intercept": design.intercept,
            "halves": None if design.half_widths is None else list(design.half_widths),
        },
        versions={name: metadata.version(name) for name in ("dplinked", "opendp", "numpy")},
    )


def usable_meat(variance: Variance, count: int) -> Floats:
    """The noisy meat made positive definite, and freed of its weights.

    On the weighted scale its diagonal is about ``n·τ²``; eigenvalues below a tenth of that are noise.
    """
    values, vectors = np.linalg.eigh((variance.matrix + variance.matrix.T) / 2.0)
    whole = (vectors * np.maximum(values, 0.1 * count * variance.residual**2)) @ vectors.T
    return np.asarray(whole / np.outer(variance.weights, variance.weights), np.float64)


def linkage_share(
    study: Study, design: Design, beta: Floats, released: dict[str, Any], variance: Variance, count: int
) -> float:
    """Share of the residual variance that wrong links cause: ``(1-γ²)·Var(x'β)`` of the whole."""
    gamma, first = study.linkage.public.mean_accuracy, int(design.intercept)
    if gamma == 1.0 or not design.columns:
        return 0.0
    slopes = beta[first:]
    H = np.array(released["matrix"])
    core = H[first:, first:] - (np.outer(H[1:, 0], H[0, 1:]) / count if first else 0.0)
    spread = column_spread(design) / instrument_signal(design)
    explained = float(slopes @ (core * spread[:, None]) @ slopes) / (count * gamma)
    return float(np.clip((1.0 - gamma**2) * explained / variance.residual**2, 0.0, 0.95))


def accuracy_direction(released: dict[str, Any], beta: Floats, intercept: bool) -> Floats:
    """``γ ∂(Hβ)/∂γ`` (p): the slopes' part of Hβ, the means taken out."""
    H, first = np.array(released["matrix"]), int(intercept)
    core = H[first:, first:] - (np.outer(H[1:, 0], H[0, 1:]) / H[0, 0] if first else 0.0)
    return np.concatenate([np.zeros(first), core @ beta[first:]])


def accuracy_variance(linkage: Linkage, blocks: BlockFacts | None) -> float | None:
    """Relative variance of the declared accuracy; block shares only where they are public."""
    if not isinstance(linkage, ELE):
        return 0.0
    if blocks is None or not blocks.by_key:
        return linkage.accuracy_variance(None)
    total = sum(blocks.by_key.values())
    return linkage.accuracy_variance({key: rows / total for key, rows in blocks.by_key.items()})


def link_dependence(linkage: Linkage, route: str, blocks: BlockFacts | None) -> float:
    """Extra linkage variance that rows by themselves do not show, as a share of theirs.

    If one response is misplaced, so is another of the same block. Simulated over random links (subsets of a
    block cycled, or each row wrong by itself), block variance exceeds row variance by up to half of its linkage
    part in blocks of two, and by less the larger the block: .9/√m covers all of them. Averaged over rows
    where block sizes are public, else one half.
    """
    if route == "block" or isinstance(linkage, Exact):
        return 0.0
    return 0.5 if blocks is None else blocks.dependence


def coefficient_range(design: Design) -> Floats:
    """Largest plausible coefficient on the scaled columns: crossing a column's bounds crosses the response's."""
    slopes = [design.response.peak / column.peak if column.peak else math.inf for column in design.columns]
    return np.array([design.response.peak, *slopes] if design.intercept else slopes)


def describe_privacy(study: Study, mu: float) -> Privacy:
    """State what is promised, to whom, and what was taken as public."""
    public = ["the number of rows", "the schema", "bounds, levels and all other settings", *_accuracy_is(study.linkage)]
    if study.linkage.block is not None and not study.unit.moves_block:
        public.append(f"the block keys ({study.linkage.block})")
    statement = (
        f"({round_up(study.epsilon, 10)}, {round_up(study.delta, 10)})-differentially private. Protected is {study.unit.describe()} "
        "Neighbouring files have the same number of rows."
    )
    paid = study.linkage.paid if isinstance(study.linkage, ELE) else None
    if paid is not None:
        total = math.hypot(mu, paid)
        statement += (
            f" The linkage accuracy was released before, at mu = {round_up(paid)}; both releases together are "
            f"({round_up(privacy_epsilon(total, study.delta))}, {round_up(study.delta, 10)})-differentially private."
        )
    return Privacy(study.epsilon, study.delta, mu, asdict(study.unit), statement, tuple(public))


def _accuracy_is(linkage: Linkage) -> list[str]:
    """What is taken as public about the accuracy."""
    if not isinstance(linkage, ELE):
        return ["the linkage model's declarations"] if isinstance(linkage, Matching) else []
    return {
        "public": ["the linkage accuracy (declared)"],
        "released": ["the linkage accuracy (released before)"],
        "estimated": [
            f"that no block's linkage accuracy is below {linkage.accuracy_min:g} (the accuracies themselves are not shown)"
        ]
        if linkage.accuracy_min is not None
        else [],
    }[linkage.source]


def describe_sums(released: door.ReleasedSums, centre: Floats | None = None) -> dict[str, Any]:
    """Released sums with the noise scale of every entry."""
    return {
        "matrix": released.matrix.tolist(),
        "vector": released.vector.tolist(),
        "matrix_scale": released.matrix_scale.tolist(),
        "vector_scale": released.vector_scale.tolist(),
        "symmetric": released.symmetric,
        "centre": (np.zeros(released.vector.size) if centre is None else centre).tolist(),
        "parts": describe_parts(released.plan),
    }


def describe_descent(released: door.ReleasedDescent) -> dict[str, Any]:
    """The transcript of a descent with its noise scale."""
    return {
        "path": released.path.tolist(),
        "gradients": released.gradients.tolist(),
        "steps": released.steps.tolist(),
        "scale": released.scale,
        "parts": describe_parts(released.plan),
    }


def describe_parts(*plans: NoisePlan) -> list[dict[str, Any]]:
    """Name, size, sensitivity and noise scale of all parts that were drawn."""
    return [asdict(part) for plan in plans for part in plan.parts]
