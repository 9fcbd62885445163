""":func:`dplinked.fit` as a scikit-learn estimator."""

from __future__ import annotations

import html
import inspect
import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from narwhals.dependencies import is_into_dataframe
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import get_tags
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from dplinked.data.arrow import Origins, column_origins
from dplinked.data.table import read_matrix
from dplinked.errors import DplinkedError, StudyError, plain_faults, raise_alone, shown, suggest
from dplinked.fitting import fit_study
from dplinked.linkage import ELE, UNSTATED, Linkage, PrivacyUnit
from dplinked.linkage.compared import find_compared
from dplinked.linkage.ele import RESULTS_OF_LINKING
from dplinked.privacy.calibration import privacy_epsilon, round_up
from dplinked.records import shown_setting
from dplinked.release.release import Release
from dplinked.study.descent import Descent
from dplinked.study.origins import check_origins
from dplinked.study.study import Study

Floats = NDArray[np.float64]

_LEARN_SHAPES = ("PolynomialFeatures", "FeatureHasher", "GaussianRandomProjection", "SparseRandomProjection")
_BESIDE = {"exposure": "e", "sample_weight": "w"}  # columns beside X, and how their names begin in formulas
_NUMBERS: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}


class LinkedRegression(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Differentially private linear regression on linked rows, as a scikit-learn estimator.

    Parameters
    ----------
    bounds
        Public bounds of the features: ``{feature name or column number: (low, high)}``, or one pair for all features.
        Cells are clipped to them. Bounds are never read from the data; if those of a feature are missing, that is an error.
    response_bounds
        Public bounds ``(low, high)`` of the response.
    weight_bounds
        Public bounds ``(low, high)``, from 0 on, of the weights that :meth:`fit` is given as `sample_weight`.
    epsilon, delta
        The privacy budget that each call of :meth:`fit` spends.
    linkage
        How the rows were linked: :class:`ELE`, :class:`Exact` or :class:`Matching`. There is no default.
    unit
        What one individual can change besides their own x and y; see :class:`PrivacyUnit`.
    fit_intercept
        Whether the model has an intercept.
    method, calibration, ranges, errors, descent, ridge, large_epsilon, intervals, goodness
        As in :func:`dplinked.fit`.
    response_bound, row_norm
        R and c of the paper's algorithms, for ``calibration="paper"``; by default what the bounds imply. A row holds a one for the
        intercept, if there is one, and the features.
    typical
        Public guess of the range of each feature's middle values, in the same form as `bounds`. It affects precision and, where the truth is curved, which line is found.
    refits
        Whether copies that scikit-learn makes of this model may be fitted, as cross-validation, searches and ensembles do. By default they are refused, since each of these fits spends
        `epsilon` and `delta` again. With True they are made, at that price, and a warning says what they spent together in this process.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Slopes, in the user's units.
    intercept_ : float
        The intercept; 0.0 without one.
    release_ : Release
        The whole release, with the noise of each coefficient, the privacy statement and the released sums.
    n_features_in_, feature_names_in_
        Number of features, and their names if `X` has names.

    Privacy
    -------
    Each call of :meth:`fit` is one release, (ε, δ)-differentially private for `unit` and the neighbours of
    :func:`dplinked.fit`. All parameters, the number of rows, the feature names and, if
    ``unit.fixes_blocks``, the block keys are public. :meth:`predict` is post-processing for an `X` that may be seen.

    The promise is about `fit` alone, and scikit-learn makes it easy to leave it:

    - k-fold cross-validation and searches over parameters fit copies many times; each fit would spend (ε, δ) again, so copies are refused unless `refits` is True. A model that is
      fitted twice says in a warning what both fits spent together.
    - ``score``, and so every cross-validation result, is computed from held-out rows with no noise.
    - Steps before this one in a pipeline must not learn from the rows (``StandardScaler`` does, and a warning says so): what they learn
      is not private, and lets one person change every row. Transform with public constants.

    Examples
    --------
    >>> model = LinkedRegression(
    ...     bounds={"income": (0, 120_000)}, response_bounds=(0, 90_000), linkage=ELE(accuracy=0.91, block="state")
    ... )
    >>> model.fit(rows[["income"]], rows["consumption"], blocks=rows["state"])  # doctest: +SKIP
    """

    _SHARED: ClassVar[tuple[str, ...]] = (
        "epsilon",
        "delta",
        "linkage",
        "method",
        "calibration",
        "ranges",
        "errors",
        "missing",
        "descent",
        "response_bound",
        "row_norm",
        "ridge",
        "large_epsilon",
        "intervals",
        "goodness",
    )

    def __init__(
        self,
        *,
        bounds: Mapping[Any, Sequence[float]] | Sequence[float] | None = None,
        response_bounds: Sequence[float] | None = None,
        weight_bounds: Sequence[float] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        linkage: Linkage | None = None,
        unit: PrivacyUnit | None = None,
        fit_intercept: bool = True,
        method: str = "ssp",
        calibration: str = "tight",
        typical: Mapping[Any, Sequence[float]] | Sequence[float] | None = None,
        ranges: str = "auto",
        errors: str = "any",
        missing: str = "drop",
        descent: Descent | None = None,
        response_bound: float | None = None,
        row_norm: float | None = None,
        ridge: float | None = None,
        large_epsilon: bool = False,
        intervals: bool = True,
        goodness: bool = False,
        refits: bool = False,
    ) -> None:
        self.bounds = bounds
        self.response_bounds = response_bounds
        self.weight_bounds = weight_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.linkage = linkage
        self.unit = unit
        self.fit_intercept = fit_intercept
        self.method = method
        self.calibration = calibration
        self.typical = typical
        self.ranges = ranges
        self.errors = errors
        self.missing = missing
        self.descent = descent
        self.response_bound = response_bound
        self.row_norm = row_norm
        self.ridge = ridge
        self.large_epsilon = large_epsilon
        self.intervals = intervals
        self.goodness = goodness
        self.refits = refits

    def __sklearn_clone__(self) -> Self:
        """A copy of the parameters that knows it is one, and what was fitted so far."""
        copied: Self = super().__sklearn_clone__()
        copied._copied, copied._spent = True, self.__dict__.setdefault("_spent", [])
        return copied

    def fit(self, X: Any, y: Any, blocks: Any = None, *, sample_weight: Any = None) -> Self:
        """Release the coefficients.

        Parameters
        ----------
        X
            Features of the linked rows: array-like or DataFrame. Lists, texts and objects are read cell by cell. Null and non-finite cells, and
            those that hold no number, get the middle of their bounds, here and in `y`. In a list of rows, a row of another length than most
            has no cells.
        y
            Linked responses.
        blocks
            Block key of each row; needed if, and only if, `linkage` has a block column.
        sample_weight
            How much each row counts, such as a survey's weights, with declared `weight_bounds`; protected like any cell. They must come from the file that X comes from: where X is a table that
            `link` made, they are a table of one column of the same.

        Privacy
        -------
        One (ε, δ)-differentially private release; see the class.
        """
        return self._release(X, y, blocks, sample_weight=sample_weight)

    def _release(self, X: Any, y: Any, blocks: Any, **beside: Any) -> Self:
        """Make the release, with columns `beside` X where they are given, and keep it with its coefficients."""
        self._check_refit()
        warn_of_learning_steps()
        origins, response = column_origins(X), getattr(y, "name", None)
        columns = {
            name: _read_beside(self, given, name, origins) for name, given in beside.items() if given is not None
        }
        X, y = self._read_rows(X, y)
        labels = [str(label) for label in getattr(self, "feature_names_in_", [f"x{k}" for k in range(X.shape[1])])]
        if len({"Intercept", *labels}) <= len(labels):
            raise StudyError("Feature names must differ from each other and from 'Intercept'. Rename the columns.")
        # Feature names may be any text, but names in a formula may not, so columns get names of their own here. They are longer than the
        # block column's name, and so differ from it.
        block = self.linkage.block if isinstance(self.linkage, Linkage) else None
        tail = "_" * len(block or "")
        names = {f"x{k}{tail}": label for k, label in enumerate(labels)}
        cells = {name: np.ascontiguousarray(column) for name, column in zip(names, X.T, strict=True)}
        cells[f"y{tail}"] = y
        for name, (column, _) in columns.items():
            if len(column) != len(X):
                raise StudyError(f"{name} has {len(column)} numbers for {len(X)} rows. Give one per row.")
            cells[_BESIDE[name] + tail] = column
        study = self._declare(f"y{tail}", names, {name: _BESIDE[name] + tail for name in columns})
        named = [*labels, *([str(response)] if response is not None else [])]
        if found := sorted(set(named) & set(RESULTS_OF_LINKING)):
            raise StudyError(
                f"The column {found[0]!r} is a result of linking: many people's identifiers make it what it is. Leave it out."
            )
        if isinstance(self.linkage, ELE) and (used := self.linkage.looked_at(named)):
            raise StudyError(
                f"The column {used[0]!r} is one that linking or checking the links looked at, so the accuracies may tell of it. Leave it out."
            )
        files = {name: origins[label] for name, label in names.items() if label in origins}
        files |= {_BESIDE[name] + tail: origin for name, (_, origin) in columns.items() if origin is not None}
        carriers = {name: origins.carriers[label] for name, label in names.items() if label in origins.carriers}
        known = Origins(files, carriers=carriers)
        labelled = names | {f"y{tail}": "y", **{own + tail: name for name, own in _BESIDE.items()}}
        try:
            check_origins(study, study.prepare()[0], known)
            release = fit_study(study, cells | self._read_blocks(block, blocks, len(y)))
            assert isinstance(release, Release)
        except StudyError as fault:
            raise_alone(type(fault)(re.sub(r"'(\w+)'", lambda name: repr(labelled.get(name[1], name[1])), str(fault))))
        self._book(release)
        self.release_ = _rename(release, labelled, f"y{tail}")
        if compared := find_compared(
            labels, [*(getattr(self.linkage, "fields", None) or ()), *sorted(origins.compared)]
        ):
            self.release_ = replace(self.release_, declared=replace(self.release_.declared, compared=compared))
        self.coef_ = np.array([self.release_.coef[label] for label in labels])
        self.intercept_: Any = self.release_.coef.get("Intercept", 0.0)
        return self

    def _check_refit(self) -> None:
        """Refuse to fit a copy, unless it was declared that copies may be."""
        if getattr(self, "_copied", False) and not self.refits:
            raise StudyError(
                "This is a copy that scikit-learn made of a model, as cross-validation, searches and ensembles do. Each of their fits would spend epsilon and delta again on the same people. "
                "Nothing was spent. Fit the model itself, once; or declare refits=True, and every copy is fitted at the full price."
            )

    def _book(self, release: Release) -> None:
        """Add up what this model and its copies spent in this process, and say it from the second fit on."""
        spent: list[float] = self.__dict__.setdefault("_spent", [])
        spent.append(release.privacy.mu)
        if len(spent) > 1:
            delta = release.privacy.delta
            together = round_up(privacy_epsilon(math.sqrt(sum(mu * mu for mu in spent)), delta))
            warnings.warn(
                f"This model and its copies were fitted {len(spent)} times in this process. On the same people, these releases together are ({together}, {delta:g})-differentially private, "
                f"not ({release.privacy.epsilon:g}, {delta:g}). No ledger adds them up.",
                UserWarning,
                stacklevel=4,
            )

    def predict(self, X: Any) -> Floats:
        """Return ``X @ coef_ + intercept_``. Nothing is clipped, and a row with NaN gives NaN."""
        return self._line(X)

    def _line(self, X: Any) -> Floats:
        """``X @ coef_ + intercept_``."""
        check_is_fitted(self)
        with short_errors():
            X = read_features(self, X, reset=False)
        return np.asarray(X @ np.ravel(self.coef_) + np.ravel(self.intercept_))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters that are not the default ones; scikit-learn would show tables and arrays among them."""
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        given = {name: value for name, value in self.get_params(deep=False).items() if value is not defaults[name]}
        listed = (f"{name}={shown_setting(value)}" for name, value in given.items())
        return f"{type(self).__name__}({', '.join(listed)})"

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # no cell may make a release fail, NaN included
        tags.non_deterministic = True  # releases cannot be seeded
        if tags.regressor_tags is not None:
            tags.regressor_tags.poor_score = (
                True  # scikit-learn's own checks use 200 rows, where the noise hides the model
            )
        return tags

    @plain_faults
    def _declare(self, response: str, names: Mapping[str, str], beside: Mapping[str, str]) -> Study:
        """The study that the parameters declare. `names` maps the formula's column names to feature names, and `beside` has the names of columns beside these."""
        bounds, typical = _by_column(self.bounds, names), _by_column(self.typical, names)
        missing = [label for name, label in names.items() if name not in bounds]
        if missing:
            hint = suggest(missing[0], self.bounds) if isinstance(self.bounds, Mapping) else ""
            raise StudyError(
                f"Feature {missing[0]!r} has no declared bounds.{hint} Bounds are public and never read from the data: "
                f"declare bounds={{{missing[0]!r}: (low, high)}}, or one pair for all features."
            )
        if isinstance(self.typical, Mapping) and len(typical) < len(self.typical):
            raise StudyError(f"typical must name features, each once: {list(names.values())}.")
        weights = beside.get("sample_weight")
        if (weights is None) != (self.weight_bounds is None):
            raise StudyError(
                "Weights and their bounds go together: weight_bounds=(low, high), public too, and fit(X, y, sample_weight=…)."
            )
        bounds |= {} if weights is None else {weights: self.weight_bounds}
        return Study(
            formula=" + ".join([f"{response} ~ {'1' if self.fit_intercept else '0'}", *names]),
            typical=typical,
            unit=UNSTATED if self.unit is None else self.unit,
            weights=weights,
            **{setting: getattr(self, setting) for setting in self._SHARED},
            **self._declare_response(response, bounds, beside.get("exposure")),
        )

    def _declare_response(self, response: str, bounds: dict[str, Any], exposure: str | None) -> dict[str, Any]:
        """What is declared of the response, beside the bounds of features."""
        if self.response_bounds is None:
            raise StudyError("The response has no declared bounds. Declare response_bounds=(low, high), public too.")
        return {"bounds": {response: self.response_bounds, **bounds}}

    def _read_rows(self, X: Any, y: Any) -> tuple[Floats, Any]:
        """Read features and responses."""
        with short_errors():
            features, response = read_features(self, X, y, reset=True), read_column(self, y, "y")
            check_consistent_length(features, response)
        return features, response

    @staticmethod
    @plain_faults
    def _read_blocks(block: str | None, blocks: Any, count: int) -> dict[str, Any]:
        """The block column by its name; empty if the linkage has none."""
        if block is None and blocks is None:
            return {}
        if block is None:
            raise StudyError("blocks are given, but the linkage has no block column: ELE(accuracy=…, block='…').")
        if blocks is None:
            raise StudyError(f"The linkage has the block column {shown(block)}. Pass its keys: fit(X, y, blocks=…).")
        return {block: list_keys(blocks, "blocks", count)}


def warn_of_learning_steps() -> None:
    """Warn of steps of the pipeline that this fit is part of that learn from its rows. They are found among the calls that led here: a model is not told what it is part of."""
    known = sys.modules.get("sklearn.pipeline")
    frame = sys._getframe(1)
    while known is not None and frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if isinstance(caller, known.Pipeline) and frame.f_code.co_name.startswith("fit"):
            for name in (name for name, step in caller.steps[:-1] if _learns(step)):
                warnings.warn(
                    f"The step {name!r} before this model learns from the rows, without noise and unpaid: what comes out is not private. Transform by public constants, or leave the step out; "
                    "columns are scaled by their declared bounds in any case.",
                    UserWarning,
                    stacklevel=4,
                )
            return


def _learns(step: Any) -> bool:
    """Whether a step of a pipeline learns more from rows than their shape."""
    if step is None or isinstance(step, str):
        return False
    parts = [part for name in ("steps", "transformers", "transformer_list") for part in getattr(step, name, ())]
    if parts:
        return any(_learns(part[1]) for part in parts)
    return type(step).__name__ not in _LEARN_SHAPES and bool(get_tags(step).requires_fit)


@plain_faults
def list_keys(given: Any, name: str, count: int) -> Any:
    """Keys listed one by one: as an array, a column of integers with a single null would become floats."""
    keys = given.iloc[:, 0] if hasattr(given, "iloc") and getattr(given, "ndim", 1) == 2 else given
    for listed in ("to_pylist", "to_list"):
        keys = getattr(keys, listed)() if hasattr(keys, listed) else keys
    if hasattr(keys, "__array__") and not hasattr(keys, "__len__"):
        keys = np.asarray(keys)
    if isinstance(keys, np.ndarray):
        keys = keys[:, 0] if keys.ndim == 2 and keys.shape[1] == 1 else keys
        if keys.ndim != 1:
            raise StudyError(f"{name} must be one key per row.")
    if isinstance(keys, (str, bytes, Mapping)) or not hasattr(keys, "__len__"):
        raise StudyError(f"{name} must be one key per row.")
    if len(keys) != count:
        raise StudyError(f"{name} has {len(keys)} keys for {count} rows. Give one key per row.")
    return keys


def _read_cells(data: Any, name: str) -> Any:
    """An array of numbers, each cell read on its own. What is no array, table or list is refused; sparse matrices are left to scikit-learn."""
    cells = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about a number is a message about rows
            cells = read_matrix(data)
    except DplinkedError:
        raise
    except Exception:  # its text may quote cells
        raise_alone(StudyError(f"{name} cannot be read. Give an array, a table or a list of rows."))
    if not (isinstance(cells, np.ndarray) and cells.ndim) and not issparse(cells):
        raise StudyError(f"{name} must be an array, a table or a list of rows, not [{type(data).__name__}].")
    return cells


def read_features(model: LinkedRegression, X: Any, y: Any = "no_validation", *, reset: bool) -> Floats:
    """Read the features, each cell on its own; check their shape and their names."""
    cells = check_array(_read_cells(X, "X"), input_name="X", estimator=model, **_NUMBERS)
    validate_data(model, X if is_into_dataframe(X) else cells, y, reset=reset, skip_check_array=True)
    return cells  # type: ignore[no-any-return]


def _read_beside(
    model: LinkedRegression, given: Any, name: str, origins: Mapping[str, str]
) -> tuple[Floats, str | None]:
    """A column that is given beside X, whose columns have these origins: its numbers, and the file that it comes from, as far as that is known."""
    files = list(column_origins(given).values())
    file = files[0] if len(files) == 1 == given.num_columns else None
    if file is None and (files or origins):
        raise StudyError(
            f"X comes from linked files, so {name} must show that it is from the same one: give it as a table of one column, {name}=linked.rows.select([…])."
        )
    with short_errors():
        return read_column(model, given if file is None else given.column(0), name), file


def read_column(model: LinkedRegression, column: Any, name: str) -> Floats:
    """Read one number per row, each cell on its own; check their shape."""
    cells = check_array(_read_cells(column, name), input_name=name, estimator=model, ensure_2d=False, **_NUMBERS)
    return column_or_1d(cells, warn=True)  # type: ignore[no-any-return]


@contextmanager
def short_errors() -> Iterator[None]:
    """Cut scikit-learn's error messages off at a colon, since they quote cells after it."""
    try:
        yield
    except DplinkedError:
        raise
    except (TypeError, ValueError, OverflowError) as fault:
        kind = TypeError if isinstance(fault, TypeError) else StudyError
        advice = (
            ". Reshape your data: rows and columns, as a table has them." if "Reshape your data" in str(fault) else ""
        )
        raise_alone(kind(re.split(r":|\n", str(fault))[0] + advice))


def _by_column(declared: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Pairs (low, high) by the formula's column names, from a mapping by feature name or column number, or from one pair for all."""
    if not isinstance(declared, Mapping):
        return {} if declared is None else dict.fromkeys(names, declared)
    keys = [(name, key) for k, (name, label) in enumerate(names.items()) for key in (k, label)]
    return {name: declared[key] for name, key in keys if key in declared}


def _rename(release: Release, names: Mapping[str, str], response: str) -> Release:
    """The same release with the user's feature names in place of the formula's column names."""

    def relabel(values: dict[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in values.items()}

    scaling = release.scaling
    labels = [names[column.name] for column in scaling.columns]
    terms = [label if label.isidentifier() else f"`{label}`" for label in labels]
    columns = tuple(replace(column, name=names[column.name]) for column in scaling.columns)
    formula = "y ~ " + " + ".join(terms if scaling.intercept else ["0", *terms])
    declared: dict[str, Any] = {part: relabel(getattr(release.declared, part)) for part in ("bounds", "levels", "fill")}
    for part in ("exposure", "weights"):
        if (column := getattr(release.declared, part)) is not None:
            declared[part] = names[column]
    named = scaling.response.name.replace(response, "y", 1)
    return replace(
        release,
        formula=formula,
        declared=replace(release.declared, formula=formula, **declared),
        error_parts=relabel(release.error_parts),
        coef=relabel(release.coef),
        std_err=relabel(release.std_err),
        identified=relabel(release.identified),
        shrunken=relabel(release.shrunken),
        scaling=replace(scaling, columns=columns, response=replace(scaling.response, name=named)),
    )
