"""The scikit-learn estimator: scikit-learn's own checks, and that it is the same fit as `dplinked.fit`."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import dplinked as dpl
from dplinked import ELE, Exact, LinkedRegression, PrivacyUnit, StudyError
from dplinked.data.table import read_matrix
from dplinked.privacy import noise
from dplinked.privacy.calibration import privacy_epsilon
from replay import record

PUBLIC = LinkedRegression(bounds=(-1000, 1000), response_bounds=(-1000, 1000), linkage=Exact(), refits=True)
AGAIN = "ignore:This model and its copies were fitted"

NOISE = "Fits twice and wants equal predictions; each fit draws its own noise, which cannot be seeded."
NO_BOUNDS = {  # they give weights for which no bounds are declared
    "check_all_zero_sample_weights_error", "check_sample_weight_equivalence_on_dense_data", "check_sample_weights_list", "check_sample_weights_not_an_array",
    "check_sample_weights_not_overwritten", "check_sample_weights_pandas_series", "check_sample_weights_shape",
}  # fmt: skip
EXPECTED_FAILURES = {
    **dict.fromkeys(NO_BOUNDS, "Gives weights; their bounds are public, and have to be declared."),
    "check_fit_idempotent": NOISE,
    "check_regressor_data_not_an_array": NOISE,
    "check_regressors_int": NOISE,
    "check_supervised_y_2d": NOISE,
    "check_dtype_object": "Wants an error for a dict in X; a release must not fail, or tell, because of a cell.",
    "check_complex_data": "Wants an error for complex X; a single complex cell makes a whole array complex.",
    "check_supervised_y_no_nan": "Wants an error for NaN in y; a release must not fail, or tell, because of a cell.",
}


@pytest.fixture
def silent(monkeypatch):
    """No noise: what is left must be exact."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.array(values, dtype=float))


@pytest.fixture(scope="module")
def rows():
    """Linked rows: 2,000 in 20 blocks, within the bounds of `model`."""
    rng = np.random.default_rng(7)
    X = rng.uniform((0, -1), (10, 1), size=(2_000, 2))
    y = 1.0 + X @ [0.5, -2.0] + rng.uniform(-1, 1, size=2_000)
    return X, y, np.repeat([f"b{k:02}" for k in range(20)], 100)


def model(**settings):
    declared = {"bounds": {0: (0, 10), 1: (-1, 1)}, "response_bounds": (-5, 10), "linkage": Exact()}
    return LinkedRegression(**{**declared, "epsilon": 1e4, "large_epsilon": True, **settings})


# --- scikit-learn's checks -------------------------------------------------------------------------


@pytest.mark.filterwarnings(AGAIN)
@parametrize_with_checks([PUBLIC], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learn_check(estimator, check):
    # Strict: an expected failure that passes fails here. Noise lets one pass in less than one of 10⁴ runs.
    check(estimator)


class Seedable(LinkedRegression):
    """Without noise a fit is a function of its data, and scikit-learn may check it, and its score, as one."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = tags.regressor_tags.poor_score = False
        return tags


@pytest.mark.usefixtures("silent")
@pytest.mark.filterwarnings(AGAIN)
def test_only_noise_is_behind_expected_failures_and_skipped_checks():
    estimator = Seedable(
        bounds=(-5, 5), response_bounds=(-5, 5), linkage=Exact(), epsilon=1e4, large_epsilon=True, refits=True
    )
    failed = [
        check["check_name"]
        for check in estimator_checks.check_estimator(estimator, on_fail=None, on_skip=None)
        if check["status"] == "failed"
    ]
    assert set(failed) == {"check_complex_data", "check_dtype_object", "check_supervised_y_no_nan"} | NO_BOUNDS


def test_tags_say_what_noise_and_total_semantics_do():
    tags = get_tags(PUBLIC)
    assert tags.input_tags.allow_nan
    assert tags.non_deterministic


def test_parameters_are_kept_as_given():
    given = {
        "bounds": {"a": [0, 1]}, "linkage": ELE(0.9, block="b"), "unit": PrivacyUnit(displaced_links=1),
        "epsilon": 0.5, "descent": dpl.Descent(iterations=3), "typical": (0, 1), "response_bound": 2.5, "row_norm": 1.5, "ridge": 0.25,
    }  # fmt: skip
    estimator = LinkedRegression(**given)
    assert all(estimator.get_params(deep=False)[name] is value for name, value in given.items())
    assert clone(estimator).get_params(deep=False) == estimator.get_params(deep=False)
    assert estimator.set_params(epsilon=2.0, linkage=Exact()).epsilon == 2.0
    assert estimator.linkage == Exact()


NOT_HERE = {
    "data",
    "formula",
    "levels",
    "weights",
    "where",
    "by",
    "cluster",
    "strata",
    "fill",
    "units",
    "ledger",
    "population",
    "ledger_key",
    "release_id",
    "again",
    "family",
    "exposure",
}


def test_parameters_are_those_of_fit():
    """Columns, formulas and ledgers aside: what `fit` can be told, the estimator can be told, with the same defaults where `fit` has any."""
    fit, here = (inspect.signature(one).parameters for one in (dpl.fit, LinkedRegression))
    assert set(here) == (set(fit) - NOT_HERE) | {"response_bounds", "weight_bounds", "fit_intercept", "refits"}
    assert set(fit) >= NOT_HERE
    for name in set(fit) & set(here):
        assert fit[name].default in (inspect.Parameter.empty, here[name].default), name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"response_bound": 2.0}, "response_bound belongs to calibration='paper'"),
        ({"row_norm": 2.0}, "row_norm belongs to calibration='paper'"),
        ({"calibration": "paper", "row_norm": -2.0}, "row_norm must be a finite number above 0"),
        ({"ridge": -1.0}, "ridge must be a finite number, 0 or more"),
        ({"method": "ngd", "ridge": 1.0}, "ridge belongs to method='ssp'"),
    ],
)
def test_wrong_parameters_wait_for_fit(rows, wrong, said):
    X, y, _ = rows
    estimator = model(**wrong)
    with pytest.raises(StudyError, match=said):
        estimator.fit(X, y)


def test_pipeline_and_cross_validation(rows):
    X, y, blocks = rows
    public = FunctionTransformer(lambda cells: cells / [10.0, 1.0])
    pipeline = make_pipeline(public, model(bounds=(-1, 1), linkage=ELE(0.95, block="b"), refits=True))
    pipeline.fit(X, y, linkedregression__blocks=blocks)
    assert pipeline.score(X, y) > 0.8
    with pytest.warns(UserWarning, match=r"fitted [234] times in this process"):
        scores = cross_val_score(pipeline, X, y, cv=3, params={"linkedregression__blocks": blocks})
    assert scores.shape == (3,)
    assert scores.min() > 0.8


@pytest.mark.filterwarnings("ignore:Scoring failed")
@pytest.mark.parametrize("jobs", [1, 2])
def test_copies_are_refused_before_they_spend(rows, monkeypatch, jobs):
    """Neither a search nor a cross-validation spends anything, whichever process its copies are fitted in."""
    X, y, _ = rows
    monkeypatch.setattr(noise, "add_gaussian", lambda *_: pytest.fail("noise was drawn"))
    search = GridSearchCV(model(), {"epsilon": [1.0, 2.0]}, cv=3, n_jobs=jobs)
    with pytest.raises(ValueError, match=r"(?s)All the 6 fits failed.*Nothing was spent\. Fit the model itself"):
        search.fit(X, y)
    with pytest.raises(StudyError, match="refits=True"):
        clone(model()).fit(X, y)
    with pytest.raises(StudyError, match="refits=True"):
        clone(clone(model())).fit(X, y)


def test_what_fits_spend_together_is_said(rows):
    X, y, _ = rows
    estimator = model(epsilon=1.0).fit(X, y)
    with pytest.warns(
        UserWarning, match=r"fitted 2 times in this process.*\((\S+), 1e-06\)-.*not \(1, 1e-06\)"
    ) as said:
        estimator.fit(X, y)
    together = float(re.search(r"together are \((\S+),", str(said[0].message))[1])
    assert together == pytest.approx(privacy_epsilon(math.sqrt(2) * estimator.release_.privacy.mu, 1e-6), rel=1e-3)
    assert 1.0 < together < 2.0


def test_steps_that_learn_are_warned_of(rows):
    X, y, _ = rows
    inner = ColumnTransformer([("scaled", StandardScaler(), [0])], remainder="passthrough")
    for step in (StandardScaler(), make_pipeline(StandardScaler()), inner):
        pipeline = make_pipeline(FunctionTransformer(), step, model(bounds=(-10, 10)))
        with pytest.warns(UserWarning, match="learns from the rows, without noise and unpaid"):
            pipeline.fit(X, y)
    for public in (PolynomialFeatures(1, include_bias=False), FunctionTransformer(), "passthrough"):
        make_pipeline(public, model(bounds=(-10, 10))).fit(X, y)  # warnings are errors


# --- the same fit ----------------------------------------------------------------------------------

ALGORITHMS = {
    "Algorithm 1": {"method": "ngd", "calibration": "paper", "descent": dpl.Descent(radius=2.0, step=0.01, iterations=4)},
    "Algorithm 2": {"method": "ssp", "calibration": "paper"},
    "Algorithm 2, ridge": {"method": "ssp", "calibration": "paper", "ridge": 3.0},
    "tight, ridge": {"ridge": 3.0},
    "tight descent": {"method": "ngd", "descent": dpl.Descent(iterations=2)},
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("declared", [{}, {"response_bound": 6.0, "row_norm": 7.0}], ids=["by the bounds", "declared"])
def test_every_algorithm_is_the_one_of_fit(rows, monkeypatch, algorithm, declared):
    """The same values under the same noise, and the same coefficients: R, c and the ridge are passed on."""
    X, y, blocks = rows
    paper = ALGORITHMS[algorithm].get("calibration") == "paper"
    settings = {**ALGORITHMS[algorithm], **(declared if paper else {}), "linkage": ELE(0.9, block="b"), "epsilon": 0.8}
    table = {"x0": X[:, 0], "x1": X[:, 1], "y": y, "b": blocks}
    bounds = {"x0": (0, 10), "x1": (-1, 1), "y": (-5, 10)}
    fitted, here = record(monkeypatch, lambda: model(**settings, large_epsilon=False).fit(X, y, blocks=blocks), 1)
    release, there = record(
        monkeypatch, lambda: dpl.fit(table, "y ~ x0 + x1", bounds=bounds, delta=1e-6, **settings), 1
    )
    assert len(here) == len(there) > 0
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.scale, other.scale)
        np.testing.assert_allclose(one.values, other.values, rtol=1e-12)
    np.testing.assert_allclose([fitted.intercept_, *fitted.coef_], list(release.coef.values()), rtol=1e-9)


@pytest.mark.parametrize("name", ["response_bound", "row_norm"])
def test_the_papers_bounds_set_its_noise(rows, monkeypatch, name):
    X, y, _ = rows
    settings = {"calibration": "paper", "linkage": ELE(0.9), "epsilon": 0.8, "large_epsilon": False}
    scales = []
    for bound in (20.0, 5.0):
        _, calls = record(monkeypatch, lambda bound=bound: model(**settings, **{name: bound}).fit(X, y), 1)
        scales.append(calls[0].scale.max())
    assert scales[1] < scales[0]


def test_at_huge_epsilon_equals_least_squares(rows):
    X, y, _ = rows
    fitted, exact = model().fit(X, y), LinearRegression().fit(X, y)
    errors = np.array([parts["privacy"] for parts in fitted.release_.error_parts.values()])
    assert errors.max() < 2e-3
    # Six standard errors each: a false alarm about once in 10⁸ runs.
    assert np.all(np.abs([fitted.intercept_, *fitted.coef_] - np.array([exact.intercept_, *exact.coef_])) < 6 * errors)
    np.testing.assert_allclose(fitted.predict(X), exact.predict(X), atol=0.01)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_without_noise_equals_least_squares(rows, fit_intercept):
    X, y, _ = rows
    fitted = model(fit_intercept=fit_intercept).fit(X, y)
    exact = LinearRegression(fit_intercept=fit_intercept).fit(X, y)
    np.testing.assert_allclose(fitted.coef_, exact.coef_, rtol=1e-4)
    np.testing.assert_allclose(fitted.intercept_, exact.intercept_, rtol=1e-4)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "ngd", "descent": dpl.Descent(iterations=20)},
        {"calibration": "paper", "epsilon": 1.0},
        {"ranges": "private"},
        {"errors": "symmetric"},
        {"unit": PrivacyUnit(moves_block=True, displaced_links=1)},
        {"typical": {"x0": (2, 8)}},
    ],
    ids=str,
)
def test_equals_the_functional_fit(rows, settings):
    X, y, blocks = rows
    linkage = ELE(0.9, block="state")
    fitted = model(linkage=linkage, **settings).fit(X, y, blocks)
    data = {"x0": X[:, 0], "x1": X[:, 1], "y": y, "state": blocks}
    declared = {"bounds": {"x0": (0, 10), "x1": (-1, 1), "y": (-5, 10)}, "epsilon": 1e4, "large_epsilon": True}
    release = dpl.fit(data, "y ~ x0 + x1", linkage=linkage, delta=1e-6, **{**declared, **settings})
    assert fitted.release_ == release
    assert list(fitted.coef_) == [release.coef["x0"], release.coef["x1"]]
    assert fitted.intercept_ == release.coef["Intercept"]


@pytest.mark.usefixtures("silent")
def test_bounds_and_typical_by_name_number_and_one_pair_agree(rows):
    X, y, _ = rows
    frame = pd.DataFrame(X, columns=["a", "b"])
    fits = [
        model(bounds=bounds, typical=typical).fit(frame, y).coef_.tolist()
        for bounds, typical in [
            ((-1, 10), (0, 5)),
            (np.array([-1, 10]), [0, 5]),
            ({0: (-1, 10), 1: (-1, 10)}, {0: (0, 5), 1: (0, 5)}),
            ({"b": (-1, 10), "a": (-1, 10), "unused": (0, 1)}, {"b": (0, 5), 0: (0, 5)}),
        ]
    ]
    assert fits[1:] == fits[:1] * 3
    assert model(bounds=(-1, 10)).fit(frame, y).coef_.tolist() != fits[0]


@pytest.mark.usefixtures("silent")
def test_cells_that_are_no_numbers_count_as_the_middle_of_their_bounds_where_they_are_filled(rows):
    X, y, _ = (array.copy() for array in rows)
    middle_X, middle_y = X.copy(), y.copy()
    X[3, 0], X[4, 1], y[5], y[6] = np.nan, np.inf, np.nan, -np.inf
    middle_X[3, 0], middle_X[4, 1], middle_y[5:7] = 5.0, 0.0, 2.5
    expected = model(missing="fill").fit(middle_X, middle_y).coef_.tolist()
    assert model(missing="fill").fit(X, y).coef_.tolist() == expected
    assert model().fit(X, y).coef_.tolist() != expected
    X[4, 1] = np.nan
    frame = pl.DataFrame({"a": pl.Series(X[:, 0]).fill_nan(None), "b": pl.Series(X[:, 1]).fill_nan(None)})
    assert model(missing="fill").fit(frame, y).coef_.tolist() == expected


@pytest.mark.filterwarnings(AGAIN)
def test_fits_differ():
    X = np.linspace(0, 1, 50)[:, None]
    assert PUBLIC.fit(X, X[:, 0]).coef_[0] != clone(PUBLIC).fit(X, X[:, 0]).coef_[0]


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_feature_names_come_back(rows, frame):
    X, y, blocks = rows
    features = frame({"x1": X[:, 0], "log(x1) `a|b`": X[:, 1]})
    bounds = {"x1": (0, 10), "log(x1) `a|b`": (-1, 1)}
    fitted = model(bounds=bounds, linkage=ELE(1.0, block="x1")).fit(features, y, blocks)
    release = fitted.release_
    assert list(fitted.feature_names_in_) == list(bounds)
    assert fitted.n_features_in_ == 2
    assert list(release.coef) == list(release.std_err) == list(release.identified) == ["Intercept", *bounds]
    assert list(fitted.coef_) == [release.coef[name] for name in bounds]
    assert [column.name for column in release.scaling.columns] == list(bounds)
    assert release.formula == "y ~ x1 + `log(x1) `a|b``"
    assert release.linkage.block == "x1"
    assert "the block keys (x1)" in release.privacy.assumed_public
    assert dpl.Release.from_json(release.to_json()) == release
    assert "log(x1)" in fitted.release_.summary()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(features), fitted.predict(features))


@pytest.mark.parametrize("block", ["x0", "y", "x1", "y__"])
def test_a_block_column_may_have_any_name(rows, block):
    X, y, blocks = rows
    assert model(linkage=ELE(0.9, block=block)).fit(X, y, blocks).release_.linkage.block == block


@pytest.mark.usefixtures("silent")
def test_blocks_of_any_kind_agree(rows):
    X, y, blocks = rows
    numbers = np.char.lstrip(blocks, "b").astype(int)
    accuracy = {**{f"b{k:02}": 0.8 + 0.01 * k for k in range(20)}, **{k: 0.8 + 0.01 * k for k in range(20)}}
    kinds = [
        blocks, list(blocks), pd.Series(blocks, index=range(2_000, 0, -1)), pd.Series(blocks, dtype="category"),
        pl.Series(blocks), pd.DataFrame({"b": blocks}), numbers, numbers.astype(float), numbers.astype(object),
    ]  # fmt: skip
    fits = [model(linkage=ELE(accuracy, block="b")).fit(X, y, keys).coef_.tolist() for keys in kinds]
    assert fits[1:] == fits[:1] * (len(kinds) - 1)
    nulls = pd.Series(blocks).where(blocks != "b00")
    others = model(linkage=ELE(accuracy, block="b", other=0.8)).fit(X, y, nulls).coef_
    assert others == pytest.approx(fits[0], rel=0.01)  # blocks have other numbers, and rows other partners


def test_prediction_is_plain(rows):
    X, y, _ = rows
    fitted = model(fit_intercept=False).fit(X, y)
    assert fitted.intercept_ == 0.0
    assert "Intercept" not in fitted.release_.coef
    far = np.array([[1e6, 1.0], [np.nan, 0.0]])
    np.testing.assert_array_equal(fitted.predict(far), far @ fitted.coef_)


# --- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"linkage": None}, "Say how the rows were linked.*ELE.*Exact"),
        ({"bounds": None}, "Feature 'x1' has no declared bounds. Bounds are public"),
        ({"bounds": {"x1": (0, 10), "incme": (0, 1)}}, "Feature 'income' has no.* Did you mean 'incme'"),
        ({"bounds": {0: (0, 10), 1: (1, 0)}}, "bounds of 'income' are .1, 0."),
        ({"bounds": {0: (10, 0), 1: (0, 1)}}, "bounds of 'x1' are .10, 0."),
        ({"bounds": (0, 1, 2)}, "bounds of 'x1' must be two numbers"),
        ({"response_bounds": None}, "response_bounds="),
        ({"response_bounds": (3, 3)}, "bounds of 'y'"),
        ({"typical": {"incme": (0, 1)}}, "typical must name features"),
        ({"typical": {"income": (0, 1), 1: (0, 1)}}, "each once"),
        ({"typical": {"income": (0, 5)}}, "typical range of 'income'"),
        ({"linkage": ELE(0.9, block="state")}, "block column 'state'.*blocks="),
        ({"epsilon": 11, "large_epsilon": False}, "large_epsilon"),
        ({"method": "ols"}, "method"),
    ],
)  # fmt: skip
def test_faulty_settings(rows, settings, message):
    X, y, _ = rows
    with pytest.raises(StudyError, match=message):
        model(**settings).fit(pd.DataFrame(X, columns=["x1", "income"]), y)


def test_weights_are_those_of_fit(rows, silent):
    """The line of weighted least squares, and the release of `dplinked.fit` with the same columns."""
    X, y, _ = rows
    weights = np.where(X[:, 0] > 5.0, 4.0, 0.5)
    y = y + 0.06 * X[:, 0] ** 2
    estimator = model(weight_bounds=(0.5, 4.0), response_bounds=(-5, 15), epsilon=10.0)
    estimator.fit(X, y, sample_weight=weights)
    right = LinearRegression().fit(X, y, sample_weight=weights)
    plain = LinearRegression().fit(X, y)
    np.testing.assert_allclose(estimator.coef_, right.coef_, atol=0.02)
    assert abs(plain.coef_[0] - right.coef_[0]) > 0.05
    table = {"a": X[:, 0], "b": X[:, 1], "y": y, "w": weights}
    bounds = {"a": (0, 10), "b": (-1, 1), "y": (-5, 15), "w": (0.5, 4.0)}
    release = dpl.fit(table, "y ~ a + b", bounds=bounds, weights="w", linkage=Exact(), epsilon=10.0, delta=1e-6)
    np.testing.assert_allclose(estimator.coef_, [release.coef["a"], release.coef["b"]], rtol=1e-9)
    assert estimator.release_.declared.weights == "sample_weight"
    assert "weighted by sample_weight" in " ".join(estimator.release_.summary().split())


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        ({"weight_bounds": (0, 1)}, {}, "go together"),
        ({}, {"sample_weight": np.ones(2_000)}, "go together"),
        ({"weight_bounds": (0, 1)}, {"sample_weight": np.ones(3)}, "sample_weight has 3 numbers for 2000 rows"),
        ({"weight_bounds": (-1, 1)}, {"sample_weight": np.ones(2_000)}, "'sample_weight' must not begin below 0"),
    ],
)
def test_faulty_weights(rows, declared, given, message):
    X, y, _ = rows
    with pytest.raises(StudyError, match=message):
        model(**declared).fit(X, y, **given)


@pytest.mark.parametrize(
    ("linkage", "blocks", "message"),
    [
        (Exact(), ["a"] * 3, "no block column"),
        (ELE(0.9), ["a"] * 3, "no block column"),
        (ELE(0.9, block="b"), ["a"] * 4, "4 keys for 3 rows"),
        (ELE(0.9, block="b"), np.array([["secret", 1, 2.0]], dtype=object), "one key per row"),
        (ELE({"a": 0.9}, block="b"), ["a", "a", "secret"], "No accuracy for other blocks"),
    ],
)
def test_faulty_blocks(linkage, blocks, message):
    with pytest.raises(StudyError, match=message) as fault:
        model(linkage=linkage).fit(np.zeros((3, 2)), np.zeros(3), blocks)
    assert "secret" not in str(fault.value)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        ([[1.0, 2.0]], [[731.25, 2.0]]),
        ([731.25, 2.0], [1.0, 2.0]),
        (["secret", 731.25], [1.0, 2.0]),
        ([{"a": "secret"}, {"a": 731.25}], [1.0, 2.0]),
        (np.array([["1731-02-05", "1731-02-05"]], "M8[D]"), [1.0]),
        (pd.DataFrame({"a": [731.25], "b": pd.to_datetime(["1731-02-05"])}), [1.0]),
        ([[1.0, 2.0]], pd.Series(pd.to_datetime(["1731-02-05"]))),
    ],
)
def test_faults_of_the_data_quote_no_cells(X, y):
    with pytest.raises((StudyError, TypeError)) as fault:
        model().fit(X, y)
    assert "secret" not in str(fault.value)
    assert "731" not in str(fault.value)
    assert fault.value.__context__ is None


@pytest.mark.parametrize("names", [["a", "a"], ["Intercept", "a"]])
def test_feature_names_must_differ(names):
    with pytest.raises(StudyError, match="names"):
        model().fit(pd.DataFrame(np.zeros((3, 2)), columns=names), np.zeros(3))


def test_importing_dplinked_loads_neither_scikit_learn_nor_pandas():
    code = "import sys, dplinked; print({'sklearn', 'pandas'} & set(sys.modules)); print(dplinked.LinkedRegression())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["set()", "LinkedRegression()"]


def test_one_null_key_changes_no_other_block(monkeypatch):
    """As an array, one null would make floats of all keys, and keys beyond 2⁵³ would merge."""
    seen = []
    from dplinked.sums.numpy.prepare import Blocks

    codes = Blocks.codes
    monkeypatch.setattr(Blocks, "codes", lambda self, piece, rows: seen.append(codes(self, piece, rows)) or seen[-1])
    keys = pd.Series([2**60 + i // 2 for i in range(40)], dtype="Int64")
    other = keys.copy()
    other.iloc[0] = pd.NA
    X, y = np.zeros((40, 1)), np.zeros(40)
    for given in (keys, other):
        LinkedRegression(
            bounds=(-1, 1),
            response_bounds=(-1, 1),
            linkage=ELE(0.6, block="b"),
            unit=PrivacyUnit(moves_block=True),
            delta=1e-5,
        ).fit(X, y, blocks=given)
    assert len(set(seen[0][2:])) == len(set(seen[-1][2:])) == 19


ODD_CELLS = (
    "n/a", "", b"x", 10**400, [1], (), [], [[1, 2]], {"a": 1}, pd.NA, pd.NaT, None, 1j, np.complex128(1j),
    object(), Decimal("sNaN"), Decimal("1e999"), np.inf, np.datetime64("2001-01-01"), pd.Timestamp("2001-01-01"), "\ud800", np.longdouble("1e4000"), "9" * 9999,
)  # fmt: skip


def nested(cells):
    return [list(row) for row in cells]


CONTAINERS = {
    "array": lambda cells: cells,
    "lists": nested,
    "tuples": lambda cells: tuple(tuple(row) for row in cells),
    "list of arrays": list,
    "array of lists": lambda cells: pd.Series(nested(cells)).to_numpy(),
    "frame": lambda cells: pd.DataFrame(cells, columns=["a", "b"]),
    "polars": lambda cells: pl.DataFrame(
        {name: pl.Series(list(cells[:, k]), dtype=pl.Object) for k, name in enumerate("ab")}
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.usefixtures("silent")
def test_no_cell_can_stop_a_fit_or_change_another(container):
    """Whatever the cell holds, it counts as the missing one that it is, without a word."""
    make, response = CONTAINERS[container], np.linspace(0, 3, 30)
    missing = np.column_stack([np.linspace(0, 10, 30), np.linspace(1, -1, 30)]).astype(object)
    missing[3, 0] = None
    expected = model().fit(make(missing), response).coef_
    for odd in ODD_CELLS:
        cells = missing.copy()
        cells[3, 0] = odd
        np.testing.assert_array_equal(model().fit(make(cells), response).coef_, expected)
        answers = response.astype(object)
        answers[4] = odd
        assert model().fit(missing, answers).release_.count == 30
        assert model().fit(missing, list(answers)).release_.count == 30


TEXTS = {
    "texts": lambda cells: cells.astype(str),
    "bytes": lambda cells: cells.astype(bytes),
    "lists of texts": lambda cells: cells.astype(str).tolist(),
    "pandas": lambda cells: pd.DataFrame(cells.astype(str), columns=["a", "b"]),
    "pandas nullable": lambda cells: pd.DataFrame(cells.astype(str), columns=["a", "b"], dtype="string"),
    "pandas categories": lambda cells: pd.DataFrame(cells.astype(str), columns=["a", "b"], dtype="category"),
    "polars": lambda cells: pl.DataFrame(cells.astype(str), schema=["a", "b"]),
    "arrow": lambda cells: pa.table({name: cells[:, k].astype(str) for k, name in enumerate("ab")}),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.usefixtures("silent")
def test_texts_are_read_as_numbers(rows, kind):
    X, y, _ = rows
    expected = model().fit(X, y)
    found = model().fit(TEXTS[kind](X), y)
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    np.testing.assert_array_equal(found.predict(TEXTS[kind](X[:5])), expected.predict(X[:5]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [[], [1.0], [1.0, 2.0, 3.0], "word", None, 5.0, {"a": 1}, [[1.0, 2.0]]], ids=repr)
@pytest.mark.usefixtures("silent")
def test_a_ragged_row_has_no_cells(odd):
    """The shape is public, but the length of one row among others is one person's."""
    y = np.linspace(0, 3, 30)
    X = nested(np.column_stack([np.linspace(0, 10, 30), np.linspace(1, -1, 30)]))
    coefficients = [model().fit([*X[:4], row, *X[5:]], y).coef_.tolist() for row in ([None, None], odd)]
    assert coefficients[0] == coefficients[1]


@pytest.mark.parametrize("blocks", [5, object(), {"a": 1}, 1.5])
def test_blocks_must_be_keys(blocks):
    with pytest.raises(StudyError, match="one key per row"):
        model(linkage=ELE(0.9, block="b")).fit(np.zeros((3, 2)), np.zeros(3), blocks)


class Broken(list):
    """A row of which one of the questions that a reader asks fails, or is answered wrongly."""

    def __init__(self, fault):
        super().__init__([1.0, 2.0])
        self.fault = fault

    def __len__(self):
        if self.fault == "length":
            raise RuntimeError("secret")
        return 2

    def __iter__(self):
        if self.fault == "cells":
            raise RuntimeError("secret")
        return iter([1.0] if self.fault == "short" else [1.0, 2.0, 3.0])


class Dimensionless:
    @property
    def ndim(self):
        raise RuntimeError("secret")


@pytest.mark.parametrize("row", [Broken("length"), Broken("cells"), Broken("short"), Broken("long"), Dimensionless()])
def test_a_row_that_cannot_be_read_has_no_cells(row):
    assert np.array_equal(read_matrix([[1, 2], row, [3, 4]]), [[1, 2], [np.nan, np.nan], [3, 4]], equal_nan=True)


def test_complex_arrays_are_read_cell_by_cell():
    assert np.array_equal(read_matrix(np.array([[1 + 0j, 2j]])), [[1.0, np.nan]], equal_nan=True)
