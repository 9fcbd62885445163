"""The whole way, on one screen: study and data to a release."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.fingerprint import source_state
from dplinked.errors import DplinkedError, LedgerError, ReleaseError, StudyError, raise_alone
from dplinked.estimate.ngd import descent_sums, last_iterate, public_steps, solve_descent
from dplinked.estimate.ssp import solve_sums
from dplinked.ledger.ledger import Ledger
from dplinked.linkage import ELE, UNSTATED, Linkage, LinkageExposure, PrivacyUnit
from dplinked.plan.planning import better_instrument
from dplinked.privacy import mechanism as door
from dplinked.privacy import plan as planned
from dplinked.privacy import sensitivity as sens
from dplinked.privacy.calibration import noise_multiplier, privacy_mu, round_up
from dplinked.release.build import (
    Variance,
    accuracy_variance,
    build_release,
    describe_descent,
    describe_parts,
    describe_sums,
    link_dependence,
)
from dplinked.release.release import Release
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.instrument import instrument_squares
from dplinked.study.study import Study
from dplinked.sums.engine import Pass, Progress, open_source, resolve_source
from dplinked.sums.types import Predictor

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
    descent: Descent | None = None,
    response_bound: float | None = None,
    row_norm: float | None = None,
    ridge: float | None = None,
    large_epsilon: bool = False,
    intervals: bool = True,
    ledger: str | Path | None = None,
    population: str | None = None,
    release_id: str | None = None,
) -> Release:
    """Fit a linear regression on linked rows, with differential privacy.

    Parameters
    ----------
    data
        Linked rows: a pandas, polars or pyarrow table, a mapping of arrays; the path of Parquet, CSV or JSON files (a file, a folder, a glob);
        a :class:`Query` or DuckDB relation; a Spark frame or :class:`SparkTable`; an Arrow stream or :class:`Stream`.
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
    intervals
        Spend 8 % of the budget (of μ²) on the variance that intervals and tests need.
    ridge
        A declared penalty on the slopes instead of the shrinkage chosen from released values.
    large_epsilon
        Must be True for an epsilon above 10.
    ledger, population
        Path or URL of a budget ledger, and the population in it whose budget is charged before rows are looked at.
    release_id
        Name of this release in the ledger: the same name with the same request returns the stored release free of charge.

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
        formula, bounds, epsilon, delta, linkage, unit or UNSTATED, levels or {}, method, calibration,
        typical or {}, ranges, fill or {}, descent, response_bound, row_norm, ridge, large_epsilon, intervals, None,
        ledger, population,
    )  # fmt: skip
    return fit_study(study, data, release_id=release_id)


def fit_study(study: Study, data: Any, *, release_id: str | None = None, progress: Progress | None = None) -> Release:
    """Run a study on data. What can be wrong with the study, schema or ledger is found before any row counts or budget is spent.

    `progress` is called with a pass's title, the parts of the data that are done, and their number.
    """
    source = resolve_source(data) if study.ledger is not None else data
    before = source_state(source)
    design, links = study.prepare()
    keys = [name for name in (study.linkage.block, getattr(study.linkage, "id", None)) if name is not None]
    once = not study.intervals and study.ranges == "declared"
    rows = open_source(source, [*design.variables, *keys], once=once, progress=progress)
    study.check_count(rows.count)
    rows.require(design.variables, numeric=list(design.bounds))
    rows.require(keys)
    if study.calibration == "paper":
        design = design.unscaled()
    else:
        design = replace(design, half_widths=None) if study.method == "ngd" else design
    run = {"paper": _run_paper, "tight": _run_descent if study.method == "ngd" else _run_sums}[study.calibration]
    try:
        with _quietly():
            opened = rows.open(design, study.linkage, study.unit)
            _check_change(study, opened)
    except ReleaseError as fault:
        if study.ledger is None:
            raise
        raise_alone(StudyError(f"{fault} Nothing was spent."))
    if study.ledger is None:
        with _quietly():
            return run(study, opened, links)
    ledger = Ledger(study.ledger, study.population)
    marks = _known_marks(ledger, rows)
    if source_state(source) != before:
        raise LedgerError("The data changed while it was read. Nothing was spent. Try again.")
    charge = ledger.reserve(release_id, study.request(marks), release_mu(study))
    if charge.stored is not None:
        return Release.from_json(charge.stored)
    with ledger.finishing(charge), _quietly():
        release = replace(run(study, opened, links), ledger=charge.describe())
        if source_state(source) != before or (rows.known_by_rows and ledger.fingerprint(rows) not in marks):
            raise ReleaseError("The data changed while it was read. The charge stays.")
        ledger.record(charge, release.to_json())  # only then may it be shown
    return release


def _known_marks(ledger: Ledger, content: Any) -> list[str]:
    """Fingerprints of registered data; rows that cannot be read for them cost nothing."""
    try:
        return ledger.check_registered(content)
    except ReleaseError as fault:
        raise_alone(StudyError(f"{fault} Nothing was spent."))


def release_mu(study: Study) -> float:
    """μ that a release of this study spends: one over its noise multiplier."""
    if study.calibration == "tight":
        return privacy_mu(study.epsilon, study.delta)
    return 1.0 / noise_multiplier(study.epsilon, study.delta, "classic" if study.method == "ssp" else "paper-zcdp")


@contextmanager
def _quietly() -> Iterator[None]:
    """Rows are read here: a warning about a number is a message about rows, and so is any error but ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except DplinkedError:
        raise
    except Exception:
        raise_alone(ReleaseError("The release failed while it read the rows. The steward's 'check' shows the details."))


def _check_change(study: Study, data: Pass) -> None:
    """Accuracies from checked links move with the people checked; the declared change of Q must cover that."""
    if not isinstance(study.linkage, ELE) or data.blocks is None:
        return
    needed = study.linkage.audit_change(study.unit, data.blocks.by_key, data.count)
    if needed > (study.unit.linkage_change or 0.0):
        raise StudyError(
            f"Checked links tell the accuracy of whole blocks, so one person can change the matching matrix by {round_up(needed)}, and more if "
            "accuracies were drawn towards each other: declare linkage_change at least as large, or release the accuracies instead "
            "(dpl.release_accuracy)."
        )


def _run_sums(study: Study, data: Pass, links: LinkageExposure) -> Release:
    """Sufficient statistics of the bounded instrument, tightly calibrated (the default)."""
    mu, count = privacy_mu(study.epsilon, study.delta), data.count
    left = 1.0 - (planned.SCALE_SHARE + planned.MEAT_SHARE if study.intervals else 0.0)
    design, before = data.design, list[planned.NoisePlan]()
    if study.ranges == "private":
        design, search = _private_ranges(data, mu)
        left -= (search.mu / mu) ** 2
        before.append(search)
    if design.half_widths is not None:
        unaimed = replace(study, typical={}).prepare()[0]
        design = better_instrument(design, unaimed, links, count, mu * math.sqrt(left))
    data = data.with_design(design)
    mu_sums = mu * math.sqrt(left)
    released = door.release_sums(data.instrument_sums(), design, links, mu_sums, intervals=study.intervals)
    estimate = solve_sums(
        released, intercept=design.intercept, prior_scale=1.0 / max(1, len(design.columns)), ridge=study.ridge
    )
    variance = _release_variance(study, data, links, released, estimate.beta, mu)
    described = {**describe_sums(released), "parts": describe_parts(*before, released.plan)}
    return build_release(study, design, count, mu, estimate, described, variance)


def _run_descent(study: Study, data: Pass, links: LinkageExposure) -> Release:
    """Noisy gradient descent on (H, b) with h = x, tightly calibrated.

    For intervals H is released too. The steps' noisy gradients then tell b around the iterates,
    ``b̃ = mean(H̃β_t - g̃_t)``, in which H̃'s noise counts only for the distance left to go.
    """
    mu, design, descent = privacy_mu(study.epsilon, study.delta), data.design, study.descent or Descent()
    count, p, E = data.count, len(design.names), design.radius
    left = 1.0 - (planned.SCALE_SHARE + planned.MEAT_SHARE + planned.CURVATURE_SHARE if study.intervals else 0.0)
    sums = data.instrument_sums()
    largest = (E + 1.0) * (links.column_sum * (E + 1.0) * descent.radius * math.sqrt(p) + design.response.peak)
    sensitivity = planned.descent_sensitivity(design, links, descent)
    plan = planned.plan_descent(p, sensitivity, 1.0 / (mu * math.sqrt(left)), descent, count, largest)
    steps = public_steps(study.prepare()[0], study.linkage.public.mean_accuracy, descent)
    path = door.release_descent(sums, plan, descent, steps)
    if not study.intervals:
        return build_release(study, design, count, mu, last_iterate(path), describe_descent(path), None)
    mu_curvature = mu * math.sqrt(planned.CURVATURE_SHARE)
    curvature = door.release_sums(sums, design, links, mu_curvature, matrix_only=True, intervals=True)
    released, centre = descent_sums(path, curvature)
    estimate = solve_descent(released, centre, design.intercept, 1.0 / max(1, len(design.columns)))
    variance = _release_variance(study, data, links, released, estimate.beta, mu)
    described = {
        **describe_descent(path),
        **describe_sums(released, centre),
        "parts": describe_parts(path.plan, curvature.plan),
    }
    return build_release(study, design, count, mu, estimate, described, variance)


def _private_ranges(data: Pass, mu: float) -> tuple[Design, planned.NoisePlan]:
    """Aim the instrument at privately found middles; returns the design and what was drawn for it."""
    numeric = [group.start for group in data.design.groups if group.numeric]
    search = planned.plan_ranges(2 * len(numeric), data.count, mu)
    if search is None:
        return data.design, planned.NoisePlan((), 0.0)
    found = door.release_ranges(data.column_counts(1 << planned.RANGE_STEPS), search)
    middles = {}
    for k, (low, high) in zip(numeric, found, strict=True):
        start, stop = data.design.columns[k].interval
        middles[k] = (start + low * (stop - start), start + high * (stop - start))
    return data.design.centred(middles), search


def _release_variance(
    study: Study, data: Pass, links: LinkageExposure, released: door.ReleasedSums, beta: Floats, mu: float
) -> Variance | None:
    """The second, small release around the released coefficients: size of residuals, then meat."""
    if not study.intervals:
        return None
    design, count = data.design, data.count
    first, R = int(design.intercept), design.response.peak
    mean = np.clip(released.matrix[0, 1:] / count, -design.radius, design.radius) if first else np.zeros(beta.size)
    predictor = Predictor(beta, mean, study.linkage.public.mean_accuracy)
    residual, plans = R / 2.0, []
    if scale := planned.plan_scale(links, count, mu):
        edges = planned.residual_edges(R)
        residual = door.release_scale(data.residual_counts(predictor, edges), *scale, edges)
        plans.append(scale[0])
    blocks = None if study.unit.moves_block else data.blocks
    largest_block, p = (None if blocks is None else blocks.largest), len(design.names)
    route = planned.choose_meat(p, links, largest_block, count, mu) if scale else planned.MeatRoute("scale", 0.0)
    squares = instrument_squares(design)
    if released.symmetric:  # h = x: the released matrix tells its mean squares
        squares = np.clip(
            np.diag(released.matrix)[first:] / (count * predictor.accuracy), squares / 100.0, squares * 3.0
        )
    weights = 1.0 / np.sqrt(np.concatenate([np.ones(first), squares]))
    if route.name == "scale":
        matrix, noise_scale = count * residual**2 * np.eye(p), 0.0
    else:
        norm = route.clip * residual
        meat = (data.block_meat if route.name == "block" else data.row_meat)(predictor, weights, norm)
        h = math.hypot(design.instrument_radius, float(first)) * float(weights.max())
        reach = design.radius * float(np.linalg.norm(beta[first:]))
        sensitivity = planned.meat_sensitivity(route.name, norm, h, reach, links)
        matrix, plan = door.release_meat(meat, sensitivity, norm * max(norm, h * reach), count, mu)
        noise_scale = plan.parts[0].scale
        plans.append(plan)
    accuracy = accuracy_variance(study.linkage.public, blocks)
    dependence = link_dependence(study.linkage, route.name, blocks)
    return Variance(route.name, matrix, weights, noise_scale, residual, accuracy, dependence, tuple(plans))


def _run_paper(study: Study, data: Pass, links: LinkageExposure) -> Release:
    """Algorithms 1 and 2 of [LPK24] with Theorem 4.1's noise, with declared constants and no redraw."""
    design, count = data.design, data.count
    c = study.row_norm or math.hypot(design.radius, float(design.intercept))
    R = study.response_bound or design.response.peak
    p, W_norm = len(design.names), c * links.column_sum
    if study.method == "ssp":
        multiplier = noise_multiplier(study.epsilon, study.delta, "classic")
        sensitivity = sens.paper_ssp_sensitivity(c, R, links)
        sums = data.paper_sums(c, R)
        released = door.release_paper_sums(sums, sensitivity, multiplier, W_norm * max(W_norm, R))
        estimate = solve_sums(released, intercept=False, prior_scale=(R / c) ** 2, ridge=study.ridge, only_if_weak=True)
        return build_release(study, design, count, 1.0 / multiplier, estimate, describe_sums(released), None)
    descent = study.descent or Descent()
    multiplier = noise_multiplier(study.epsilon, study.delta, "paper-zcdp")
    sensitivity = sens.paper_ngd_sensitivity(c, R, descent.radius, links)
    largest = W_norm * (W_norm * descent.radius * math.sqrt(p) + R)
    plan = planned.plan_descent(p, sensitivity, multiplier, descent, count, largest)
    path = door.release_descent(data.paper_sums(c, R), plan, descent, public_steps(design, 1.0, descent))
    return build_release(study, design, count, 1.0 / multiplier, last_iterate(path), describe_descent(path), None)
