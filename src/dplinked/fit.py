"""The whole way, on one screen: study and data to a release."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.design import Design
from dplinked.errors import DplinkedError, ReleaseError, raise_alone
from dplinked.estimate.ngd import last_iterate, public_steps
from dplinked.estimate.planning import MIDDLE, Plan, better_instrument, plan_errors
from dplinked.estimate.ssp import Estimate, solve_sums
from dplinked.linkage import ELE, Linkage, LinkageExposure, PrivacyUnit
from dplinked.privacy import mechanism as door
from dplinked.privacy import sensitivity as sens
from dplinked.privacy.calibration import noise_multiplier, privacy_mu
from dplinked.release import Privacy, Release
from dplinked.study import Study
from dplinked.sums.memory import Encoded, column_counts, encode, instrument_sums, paper_sums
from dplinked.sums.rows import Rows

Floats = NDArray[np.float64]


def fit(
    data: Any,
    formula: str,
    *,
    bounds: Mapping[str, Sequence[float]],
    linkage: Linkage,
    epsilon: float,
    delta: float,
    levels: Mapping[str, Sequence[Any]] | None = None,
    unit: PrivacyUnit | None = None,
    method: str = "ssp",
    calibration: str = "tight",
    typical: Mapping[str, Sequence[float]] | None = None,
    ranges: str = "declared",
    fill: Mapping[str, float] | None = None,
    descent: door.Descent | None = None,
    response_bound: float | None = None,
    row_norm: float | None = None,
    ridge: float | None = None,
    large_epsilon: bool = False,
) -> Release:
    """Fit a linear regression on linked rows, with differential privacy.

    Parameters
    ----------
    data
        Linked rows: a pandas, polars or pyarrow table, a mapping of arrays, or the path of a Parquet or CSV file.
    formula
        Like ``"consumption ~ income + C(region)"``; ``0 +`` drops the intercept. Columns, ``C()``, ``log()``,
        ``sqrt()``, ``I()``, ``:`` and ``*`` are understood.
    bounds
        Public bounds of every numeric column, response included. Cells are clipped to them.
    linkage
        How the rows were linked: :class:`ELE`, :class:`Exact` or :class:`Matching`.
    epsilon, delta
        The privacy budget this release may spend.
    levels
        Public levels of every categorical column, the reference level first.
    unit
        What one individual can change besides their x and y; see :class:`PrivacyUnit`.
    method
        ``"ssp"`` (sufficient-statistics perturbation) or ``"ngd"`` (noisy gradient descent).
    calibration
        ``"tight"``, or ``"paper"`` for Algorithms 1 and 2 of [LPK24] with Theorem 4.1's noise.
    typical
        Public guess of each column's middle. Affects precision only, never privacy or bias.
    ranges
        ``"private"`` finds the middles within the bounds, for about 5 % of the budget.
    fill
        Public value for null and non-finite cells; by default the middle of the bounds.
    descent
        Settings of ``method="ngd"``.
    response_bound, row_norm
        R and c of the paper's algorithms, in the user's units; by default what the bounds imply.
    ridge
        A declared penalty on the slopes instead of the shrinkage chosen from released values.
    large_epsilon
        Must be True for an epsilon above 10.

    Returns
    -------
    Release

    Privacy
    -------
    (ε, δ)-differentially private for the stated unit: neighbouring data differ in one individual's
    regressors and response, and in what `unit` says that identifiers may do to the linkage. The number of
    rows, the schema, every argument and, unless ``unit.moves_block``, the block keys are public.
    """
    study = Study(
        formula, bounds, epsilon, delta, linkage, unit or PrivacyUnit(), levels or {}, method, calibration,
        typical or {}, ranges, fill or {}, descent, response_bound, row_norm, ridge, large_epsilon,
    )  # fmt: skip
    return fit_study(study, data)


def fit_study(study: Study, data: Any) -> Release:
    """Run a study on data. What can be wrong with the study or schema is found before any row counts."""
    design, links = study.prepare()
    rows = Rows(data, [*design.variables, *([study.linkage.block] if study.linkage.block else [])])
    study.check_count(rows.count)
    rows.require(design.variables, numeric=list(design.bounds))
    if study.linkage.block is not None:
        rows.require([study.linkage.block])
    if study.calibration == "paper":
        design = design.unscaled()
    else:
        design = replace(design, halves=None) if study.method == "ngd" else design
    run = {"paper": _run_paper, "tight": _run_descent if study.method == "ngd" else _run_sums}[study.calibration]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about a number is a message about rows
            return run(study, encode(rows, design, study.linkage, study.unit), links)
    except DplinkedError:
        raise
    except Exception:
        raise_alone(ReleaseError("The release failed while it read the rows. The steward's 'check' shows the details."))


def _run_sums(study: Study, data: Encoded, links: LinkageExposure) -> Release:
    """Sufficient statistics of the bounded instrument, tightly calibrated (the default)."""
    mu, count = privacy_mu(study.epsilon, study.delta), data.rows.count
    remaining, found = mu, data.design
    if study.ranges == "private":
        found, spent = _private_ranges(data, mu)
        remaining = math.sqrt(mu**2 - spent**2)
    if found.halves is not None:
        unaimed = replace(study, typical={}).prepare()[0]
        found = better_instrument(found, unaimed, links, count, remaining)
    sums = instrument_sums(replace(data, design=found))
    released = door.release_sums(sums, found, links, remaining)
    estimate = solve_sums(
        released, intercept=found.intercept, prior_scale=1.0 / max(1, len(found.columns)), ridge=study.ridge
    )
    return _make_release(study, found, count, mu, estimate, _describe_sums(released))


def _private_ranges(data: Encoded, mu: float) -> tuple[Design, float]:
    """Aim the instrument at privately found middles; returns the design and the μ this cost."""
    numeric = [group.start for group in data.design.groups if group.numeric]
    planned = door.plan_ranges(2 * len(numeric), data.rows.count, mu)
    if planned is None:
        return data.design, 0.0
    found = door.release_ranges(column_counts(data, 1 << door.RANGE_STEPS), planned)
    middles = {}
    for k, (low, high) in zip(numeric, found, strict=True):
        start, stop = data.design.columns[k].interval
        middles[k] = (start + low * (stop - start), start + high * (stop - start))
    return data.design.centred(middles), planned.mu


def _run_descent(study: Study, data: Encoded, links: LinkageExposure) -> Release:
    """Noisy gradient descent on (H, b) with h = x, tightly calibrated."""
    mu, design, descent = privacy_mu(study.epsilon, study.delta), data.design, study.descent or door.Descent()
    sums = instrument_sums(data)
    E, p = design.radius, len(design.names)
    largest = (E + 1.0) * (links.column_sum * (E + 1.0) * descent.radius * math.sqrt(p) + design.response.peak)
    plan = door.plan_descent(
        p, door.descent_sensitivity(design, links, descent), 1.0 / mu, descent, data.rows.count, largest
    )
    steps = public_steps(study.prepare()[0], _mean_accuracy(study.linkage), descent)
    released = door.release_descent(sums, plan, descent, steps)
    return _make_release(study, design, data.rows.count, mu, last_iterate(released), _describe_descent(released))


def _run_paper(study: Study, data: Encoded, links: LinkageExposure) -> Release:
    """Algorithms 1 and 2 of [LPK24] with Theorem 4.1's noise, with declared constants and no redraw."""
    design, count = data.design, data.rows.count
    c = study.row_norm or math.hypot(design.radius, float(design.intercept))
    R = study.response_bound or design.response.peak
    p, W_norm = len(design.names), c * links.column_sum
    if study.method == "ssp":
        multiplier = noise_multiplier(study.epsilon, study.delta, "classic")
        sensitivity = sens.paper_ssp_sensitivity(c, R, links)
        sums = paper_sums(data, c, R)
        released = door.release_paper_sums(sums, sensitivity, multiplier, W_norm * max(W_norm, R))
        estimate = solve_sums(released, intercept=False, prior_scale=(R / c) ** 2, ridge=study.ridge, only_if_weak=True)
        return _make_release(study, design, count, 1.0 / multiplier, estimate, _describe_sums(released))
    descent = study.descent or door.Descent()
    multiplier = noise_multiplier(study.epsilon, study.delta, "paper-zcdp")
    sensitivity = sens.paper_ngd_sensitivity(c, R, descent.radius, links)
    largest = W_norm * (W_norm * descent.radius * math.sqrt(p) + R)
    plan = door.plan_descent(p, sensitivity, multiplier, descent, count, largest)
    path = door.release_descent(paper_sums(data, c, R), plan, descent, public_steps(design, 1.0, descent))
    return _make_release(study, design, count, 1.0 / multiplier, last_iterate(path), _describe_descent(path))


def plan(
    count: int,
    formula: str,
    *,
    bounds: Mapping[str, Sequence[float]],
    linkage: Linkage,
    epsilon: float | Sequence[float] = (0.1, 0.3, 1.0, 3.0),
    delta: float,
    levels: Mapping[str, Sequence[Any]] | None = None,
    unit: PrivacyUnit | None = None,
    typical: Mapping[str, Sequence[float]] | None = None,
    r_squared: float = 0.5,
) -> Plan:
    """Expected standard errors of a tight SSP release over a list of ε, touching no data.

    Parameters
    ----------
    count
        Number of rows, public.
    r_squared
        Guessed share of the response's variance that the model explains. The response is taken to spread
        over its typical range where one is declared, else over its bounds.
    """
    epsilons = [epsilon] if isinstance(epsilon, (int, float)) else list(epsilon)
    study = Study(
        formula, bounds, max(epsilons), delta, linkage, unit or PrivacyUnit(), levels or {}, typical=typical or {}
    )
    return plan_study(study, count, epsilons, r_squared)


def plan_study(study: Study, count: int, epsilons: Sequence[float], r_squared: float = 0.5) -> Plan:
    """Plan for a study; see :func:`plan`."""
    design, links = study.prepare()
    study.check_count(count)
    response = design.response
    name = response.numeric[0].variables[0]
    typical = response.name == name and name in study.typical
    low, high = study.typical[name] if typical else response.interval
    level = ((low + high) / 2.0 - response.shift) / response.scale
    deviation = (high - low) / (2.0 * math.sqrt(3.0) * response.scale * (MIDDLE if typical else 1.0))
    accuracy = _mean_accuracy(study.linkage)
    rows = plan_errors(design, links, accuracy, count, epsilons, study.delta, (level, deviation), r_squared)
    return Plan(
        count,
        study.delta,
        rows,
        f"Assumes columns spread evenly over their typical ranges (else bounds) and uncorrelated, R² = {r_squared:g}, "
        f"accuracy {accuracy:g}. Privacy noise is exact given the sums; the rest is a guess.",
    )


def _mean_accuracy(linkage: Linkage) -> float:
    return float(np.mean(linkage.declared)) if isinstance(linkage, ELE) else 1.0


def _make_release(
    study: Study, design: Design, count: int, mu: float, estimate: Estimate, released: dict[str, Any]
) -> Release:
    matrix, offset = design.to_user()
    coef = matrix @ estimate.beta + offset
    covariance = matrix @ estimate.covariance @ matrix.T
    identified = 1.96 * estimate.plain_error <= _coefficient_range(design)
    names = design.names
    return Release(
        formula=study.formula,
        method=study.method,
        calibration=study.calibration,
        count=count,
        coef=dict(zip(names, coef.tolist(), strict=True)),
        noise_std_err=dict(zip(names, np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist(), strict=True)),
        identified=dict(zip(names, identified.tolist(), strict=True)),
        covariance=tuple(map(tuple, covariance.tolist())),
        privacy=_describe_privacy(study, mu),
        linkage=study.linkage.describe(),
        released=released,
        scaling={
            "columns": [{"name": c.name, "shift": c.shift, "scale": c.scale} for c in design.columns],
            "response": {"name": design.response.name, "shift": design.response.shift, "scale": design.response.scale},
            "intercept": design.intercept,
            "halves": None if design.halves is None else list(design.halves),
        },
        versions={name: metadata.version(name) for name in ("dplinked", "opendp", "numpy")},
    )


def _coefficient_range(design: Design) -> Floats:
    """Largest plausible coefficient on the scaled columns: crossing a column's bounds crosses the response's."""
    slopes = [design.response.peak / column.peak if column.peak else math.inf for column in design.columns]
    return np.array([design.response.peak, *slopes] if design.intercept else slopes)


def _describe_privacy(study: Study, mu: float) -> Privacy:
    public = ["the number of rows", "the schema", "bounds, levels and all other settings", "the linkage accuracy"]
    if study.linkage.block is not None and not study.unit.moves_block:
        public.append(f"the block keys ({study.linkage.block})")
    statement = (
        f"({study.epsilon:g}, {study.delta:g})-differentially private. Protected is {study.unit.describe()} "
        "Neighbouring files have the same number of rows."
    )
    return Privacy(study.epsilon, study.delta, mu, asdict(study.unit), statement, tuple(public))


def _describe_sums(released: door.ReleasedSums) -> dict[str, Any]:
    return {
        "matrix": released.matrix.tolist(),
        "vector": released.vector.tolist(),
        "matrix_scale": released.matrix_scale.tolist(),
        "vector_scale": released.vector_scale.tolist(),
        "symmetric": released.symmetric,
        "parts": [asdict(part) for part in released.plan.parts],
    }


def _describe_descent(released: door.ReleasedDescent) -> dict[str, Any]:
    return {
        "path": released.path.tolist(),
        "gradients": released.gradients.tolist(),
        "steps": released.steps.tolist(),
        "scale": released.scale,
        "parts": [asdict(part) for part in released.plan.parts],
    }
