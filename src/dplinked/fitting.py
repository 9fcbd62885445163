"""The whole way, on one screen: study and data to a release."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dplinked.data.fingerprint import locate, source_state
from dplinked.errors import DplinkedError, LedgerError, ReleaseError, StudyError, plain_faults, raise_alone
from dplinked.estimate.groups import overall_accuracy
from dplinked.ledger.ledger import Ledger
from dplinked.ledger.registration import REFUSED
from dplinked.linkage import ELE, UNSTATED, Linkage, PrivacyUnit
from dplinked.methods import method_of, spending_of
from dplinked.privacy.calibration import round_up
from dplinked.release.release import Release
from dplinked.release.releases import Releases, change_all, read_release
from dplinked.several import Linked, check_parts, fit_parts, link_parts
from dplinked.study.descent import Descent
from dplinked.study.origins import check_origins
from dplinked.study.study import Study
from dplinked.sums.engine import Progress, Source, open_source, resolve_source


@plain_faults
def fit(
    data: Any,
    formula: str,
    *,
    bounds: Mapping[str, Sequence[float]],
    linkage: Linkage,
    epsilon: float,
    delta: float,
    levels: Mapping[str, Sequence[Any]] | None = None,
    family: str = "linear",
    exposure: str | None = None,
    weights: str | None = None,
    where: str | None = None,
    by: str | None = None,
    cluster: str | None = None,
    strata: str | None = None,
    goodness: bool = False,
    unit: PrivacyUnit | None = None,
    method: str = "ssp",
    calibration: str = "tight",
    typical: Mapping[str, Sequence[float]] | None = None,
    ranges: str = "auto",
    errors: str = "any",
    missing: str = "drop",
    fill: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    descent: Descent | None = None,
    response_bound: float | None = None,
    row_norm: float | None = None,
    ridge: float | None = None,
    large_epsilon: bool = False,
    intervals: bool = True,
    ledger: str | Path | None = None,
    population: str | None = None,
    ledger_key: str | Path | None = None,
    release_id: str | None = None,
    again: bool = False,
) -> Release | Releases:
    """Fit a linear, logistic or Poisson regression on linked rows, with differential privacy.

    Parameters
    ----------
    data
        Linked rows: a pandas, polars or pyarrow table, a mapping of arrays; the path of files (Parquet, CSV, JSON, Excel, Stata, SPSS, SAS; a file, a folder, a glob) or a :class:`File` that says how they are written;
        a :class:`Query` or DuckDB relation; a Spark frame or :class:`SparkTable`; an Arrow stream or :class:`Stream`.
    formula
        Like ``"consumption ~ income + C(region)"``; ``0 +`` drops the intercept. Columns, ``C()``, ``log()``,
        ``sqrt()``, ``I()``, ``:`` and ``*`` are understood. ``"cbind(consumption, savings) ~ income"`` fits several outcomes of one file, as a :class:`Releases` by outcome.
    bounds
        Public bounds of every numeric column, response included. Cells are clipped to them.
    linkage
        How the rows were linked: :class:`ELE`, :class:`Exact` or :class:`Matching`.
    epsilon, delta
        The privacy budget this release may spend.
    levels
        Public levels of every categorical column, the reference level first.
    family
        ``"linear"``; ``"logistic"`` for a response of two levels, which are declared in `levels`, the reference first; ``"poisson"`` for counts, with bounds
        (0, largest). Coefficients are then logarithms of odds ratios and of rate ratios; see :meth:`Release.ratios`.
    exposure
        Name of the column, with bounds above 0, that counts are taken by, such as years under observation: its logarithm is added to the line.
    weights
        Name of a column of the regressors' file, with bounds from 0 on, that says how much a row counts, such as a survey's weights. The line is that of weighted least squares, or of weighted maximum likelihood.
        How large they are on the whole is released too, for 1.5 % of the budget.
    where
        A condition over columns of the regressors' file, such as ``"age >= 65 and region == 'north'"``: rows for which it does not hold count nothing. Their number stays private, and a
        noisy one is released; see :attr:`Release.subgroup`.
    by
        Name of a column of the regressors' file with declared `levels`: the same regression in every one of them, as a :class:`Releases` by level. All of them together cost what one does.
    cluster
        Name of a column of the regressors' file that says which rows were drawn together, such as a survey's primary sampling units or schools. Intervals then hold whatever the rows of a cluster have
        in common, for 11 % of the budget in the place of 5 %. Cells of the column are protected like any others.
    strata
        Name of a column of the regressors' file, with declared levels, that says in which part of the population rows were drawn, if samples were drawn apart in several, such as a survey's regions.
        Intervals then leave out what differs between strata, for 4 % of the budget. Cells of the column are protected like any others.
    goodness
        Spend 3 % of the budget on squares of residuals, for :attr:`Release.residual_sd` and :attr:`Release.r_squared`.
    unit
        What one individual can change besides their x and y; see :class:`PrivacyUnit`.
    method
        ``"ssp"`` (sufficient-statistics perturbation) or ``"ngd"`` (noisy gradient descent).
    calibration
        ``"tight"``, or ``"paper"`` for Algorithm 1 (``method="ngd"``) and Algorithm 2 (``method="ssp"``) of [LPK24], with their own estimates and
        Theorem 4.1's noise.
    typical
        Public guess of each column's middle. It affects precision, never privacy. Where the truth is curved, the line follows the middle a little more than
        least squares does, and the release says so.
    ranges
        ``"private"`` finds the middles within the bounds, for 3 % of the budget; ``"declared"`` takes what is declared; ``"auto"`` looks for them if no
        regressor's typical range is declared.
    errors
        ``"symmetric"`` declares that errors are as often as far above the line as below, wherever on it, and the larger the rarer. The second stage then clips
        residuals where that is most precise. If they are skewed and larger in some rows than in others, slopes may be bent by a tenth, so ``"any"`` clips them
        further out. ``"skewed"`` is for amounts whose errors are skewed and grow with a regressor that has a long tail: it clips at ten deviations, at two to three times the noise.
    missing
        ``"drop"`` leaves rows with a missing cell (null or not finite) out of the second stage, and out of events and counts, as least squares in other programs does, for next to nothing of the budget.
        ``"fill"`` gives such cells a public value, which bends slopes; a null event is then the reference level. A line that ends with the first stage fills them in any case, and says so.
    fill
        Public value for null and non-finite cells where they are filled; by default the middle of the typical range or of the bounds.
    units
        In which units numeric columns are, in the plural, like ``{"income": "euros"}``: the sentences of reports use them. They change no figure.
    descent
        Settings of ``method="ngd"``.
    response_bound, row_norm
        R and c of the paper's algorithms, in the user's units; by default what the bounds imply.
    intervals
        Spend 8 % of the budget (of μ²) on the variance that intervals and tests need. With ``calibration="paper"`` Algorithm 2's sums hold it, and
        Algorithm 1 gets it from the part of (ε, δ) that its own noise leaves unused.
    ridge
        A declared penalty on the slopes instead of the shrinkage chosen from released values. With ``calibration="paper"``, where nothing
        is shrunk, it is added to W'W.
    large_epsilon
        Must be True for an epsilon above 10.
    ledger, population
        Path or URL of a budget ledger, and the population in it whose budget is charged before rows are looked at. The data must be registered.
    ledger_key
        The file with the ledger's key; see :class:`Ledger`.
    release_id
        Name of this release in the ledger.
    again
        Pay for a new release even if the ledger has seen the same request. By default that returns the stored release, free of charge.

    Returns
    -------
    Release, or Releases of several outcomes or levels

    Privacy
    -------
    (ε, δ)-differentially private for the stated unit: neighbouring data differ in one individual's
    regressors and response, and in what `unit` says that identifiers may do to the linkage. The number of
    rows, the schema, every argument and, if ``unit.fixes_blocks``, the block keys are public.
    """
    study = Study(
        formula=formula,
        bounds=bounds,
        linkage=linkage,
        epsilon=epsilon,
        delta=delta,
        levels={} if levels is None else levels,
        family=family,
        exposure=exposure,
        weights=weights,
        where=where,
        by=by,
        cluster=cluster,
        strata=strata,
        goodness=goodness,
        unit=UNSTATED if unit is None else unit,
        method=method,
        calibration=calibration,
        typical={} if typical is None else typical,
        ranges=ranges,
        errors=errors,
        missing=missing,
        fill={} if fill is None else fill,
        units={} if units is None else units,
        descent=descent,
        response_bound=response_bound,
        row_norm=row_norm,
        ridge=ridge,
        large_epsilon=large_epsilon,
        intervals=intervals,
        ledger=ledger,
        population=population,
        ledger_key=ledger_key,
    )
    return fit_study(study, data, release_id=release_id, again=again)


@plain_faults
def fit_study(
    study: Study, data: Any, *, release_id: str | None = None, again: bool = False, progress: Progress | None = None
) -> Release | Releases:
    """Run a study on data. What can be wrong with the study, schema or ledger is found before any row counts or budget is spent.

    `again` pays anew for a request that the ledger has seen.
    `progress` is called with a pass's title, the parts of the data that are done, and their number.
    """
    study.prepare()
    if study.ledger is not None:
        return _fit_charged(study, data, release_id, again, progress)
    opened = _open_source(study, data, progress)
    return _run(study, opened, _find_rows(study, opened))


def _fit_charged(
    study: Study, data: Any, release_id: str | None, again: bool, progress: Progress | None
) -> Release | Releases:
    """Charge a release of registered data to the ledger, and run it; or return the stored release of the same request.

    The place of the data is checked before it is opened, its content before anything else is told about it, and both before the charge.
    """
    assert study.ledger is not None
    ledger = Ledger(study.ledger, study.population, key=study.ledger_key)
    located = _locate(data)
    allowed = ledger.check_place(located, study.unit, study.linkage)
    source = _freeze(located)
    before, fingerprint = _state(study, source), ledger.check_content(source, allowed, study.linkage)
    opened = _open_source(study, source, progress)
    rows = _find_rows(study, opened)
    if _state(study, source) != before:
        raise LedgerError("The data changed while it was read. Nothing was spent. Try again.")
    charge = ledger.reserve(release_id, study.request([fingerprint]), release_mu(study), again=again)
    if charge.stored is not None:
        charge.tell_if_seen(release_id)
        return _in_units(study, read_release(charge.stored))
    with ledger.finishing(charge):
        entry = charge.describe()
        release = change_all(_run(study, opened, rows), lambda one: replace(one, ledger=entry))
        if _state(study, source) != before:
            raise ReleaseError("The data changed while it was read. The charge stays.")
        ledger.record(charge, release.to_json())  # only then may it be shown
    return release


def _run(study: Study, opened: Source, rows: Linked) -> Release | Releases:
    """Make the release, and note which of its variables records were linked by."""
    compared = study.compared_variables(opened.origins.compared)
    release: Release | Releases
    with _quietly():
        if study.parts:
            release = fit_parts(study, rows, spending_of(study))
        else:
            release = method_of(study).run(study, rows[""], spending_of(study))
    release = _with_overall_accuracy(_in_units(study, release), study, rows)
    if not compared:
        return release
    return change_all(release, lambda one: replace(one, declared=replace(one.declared, compared=compared)))


def _with_overall_accuracy(release: Release | Releases, study: Study, rows: Linked) -> Release | Releases:
    """The release with the mean accuracy of all rows, where declared accuracies and public sizes of groups tell it."""
    overall = overall_accuracy(study.linkage, next(iter(rows.values())).blocks)
    if overall is None:
        return release
    return change_all(release, lambda one: replace(one, linkage=replace(one.linkage, overall=overall)))


def _in_units(study: Study, release: Release | Releases) -> Release | Releases:
    """The release with the units that the study states now: they are words, and decide nothing that was released."""
    units = {name: unit.strip() for name, unit in study.units.items()}
    if not units:
        return release
    return change_all(release, lambda one: replace(one, declared=replace(one.declared, units=units)))


def _locate(data: Any) -> Any:
    """The data with the symlinks of its paths resolved, which happens only here. Files that are not there are not registered."""
    try:
        return locate(data)
    except StudyError:
        raise_alone(LedgerError(REFUSED))


def _freeze(data: Any) -> Any:
    """The rows at a registered place, the same for fingerprint and sums. What cannot be found there is not what was registered."""
    try:
        with _quietly():
            return resolve_source(data)
    except DplinkedError:
        raise_alone(LedgerError(REFUSED))


def _state(study: Study, source: Any) -> tuple[Any, ...]:
    """The state of the files that a release reads: those of its rows, and that of the pairs of a matching matrix."""
    return source_state(source), source_state(getattr(study.linkage, "pairs", None))


def _open_source(study: Study, source: Any, progress: Progress | None) -> Source:
    """Open the columns that the study needs."""
    plain = study.family == "linear" and not study.needs_second_stage and study.unit.rows == 1
    once = plain and not study.intervals and study.ranges != "private" and not study.parts
    return open_source(source, [*study.prepare()[0].variables, *key_columns(study)], once=once, progress=progress)


def key_columns(study: Study) -> list[str]:
    """The columns of blocks, ids and clusters."""
    named = (study.linkage.block, getattr(study.linkage, "id", None), *study.unit.ids, study.cluster)
    return [name for name in named if name is not None]


def _find_rows(study: Study, opened: Source) -> Linked:
    """Find the blocks or pairs, checking all that can be checked before anything is spent."""
    design, _ = study.prepare()
    study.check_count(opened.count)
    _check_change(study, opened.count)
    opened.require(design.variables, numeric=list(design.bounds))
    opened.require(key_columns(study))
    check_origins(study, design, opened.origins)
    try:
        with _quietly():
            check_ids(study, opened)
            if study.parts:
                linked = link_parts(study, opened)
                check_parts(study, linked)
                return linked
            method = method_of(study)
            rows = opened.linked_rows(method.prepare(design), study.linkage, study.unit)
            method.check(study, rows)
            return {"": rows}
    except ReleaseError as fault:
        if study.ledger is None:
            raise
        raise_alone(StudyError(f"{fault} Nothing was spent."))


def check_ids(study: Study, opened: Source) -> None:
    """Refuse ids that are missing, or of more rows than a person may have. Which rows belong together is public where persons have several."""
    design, exposure = study.prepare()
    alone = replace(design, bounds={}, levels={})  # no other column is read
    for name in study.unit.ids:
        found = opened.linked_rows(alone, ELE(0.5, block=name, other=0.5), PrivacyUnit()).blocks
        most = study.unit.rows * (1 if name == study.unit.id else exposure.carriers)
        if found is None or found.by_key.get(None, 0) or found.largest > most:
            raise StudyError(
                f"An id in {name!r} is on more rows than unit.rows={study.unit.rows} allows, or ids are missing. Keep at most as many rows of each in the files before they are linked "
                "(dplinked limit-rows, dpl.limit_rows), or declare more; all noise grows in proportion."
            )


def release_mu(study: Study) -> float:
    """μ that a release of this study spends."""
    return method_of(study).mu(study)


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


def _check_change(study: Study, count: int) -> None:
    """Accuracies from checked links move with the people checked; the declared change of Q must cover that."""
    if not isinstance(study.linkage, ELE):
        return
    needed = study.linkage.audit_change(study.unit, count)
    if needed > (study.unit.linkage_change or 0.0):
        raise StudyError(
            f"Checked links tell the accuracy of whole blocks, so one person can change the matching matrix by {round_up(needed)}, and more if "
            "accuracies were drawn towards each other: declare linkage_change at least as large, or release the accuracies instead "
            "(dpl.release_accuracy)."
        )
