"""Logistic and Poisson regression as scikit-learn estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

import dplinked as dpl
from dplinked.errors import StudyError
from dplinked.privacy import noise

N = 8_000


def draw_rows() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (N, 2))
    return X, X @ [1.5, -1.0] - 0.2, rng


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1), (False, True)])
def test_classes_are_told_apart(classes: Any) -> None:
    X, line, rng = draw_rows()
    y = np.array(classes)[(rng.random(N) < 1 / (1 + np.exp(-line))).astype(int)]
    model = dpl.LinkedLogisticRegression(bounds=(-1, 1), classes=classes, linkage=dpl.Exact(), epsilon=8.0)
    assert clone(model).get_params()["classes"] == classes
    model.fit(X, y)
    np.testing.assert_allclose(model.coef_, [[1.5, -1.0]], atol=0.3)
    assert model.classes_.tolist() == list(classes)
    far = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert model.predict(far).tolist() == [classes[1], classes[0]]
    chances = model.predict_proba(far)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert chances[0, 1] == pytest.approx(1 / (1 + np.exp(-model.decision_function(far)[0])))
    assert model.release_.family == "logistic"
    assert list(model.release_.ratios()) == ["x0", "x1"]
    assert model.release_.scaling.response.name == f"y[{model.release_.declared.levels['y'][1]}]"


def test_counts_are_expected_by_exposure() -> None:
    X, line, rng = draw_rows()
    years = rng.uniform(0.5, 3.0, N)
    y = rng.poisson(years * np.exp(0.5 * line))
    model = dpl.LinkedPoissonRegression(
        bounds=(-1, 1), largest=12, exposure_bounds=(0.5, 3.0), linkage=dpl.ELE(1.0, block="b"), epsilon=8.0
    )
    model.fit(X, y, blocks=np.arange(N) // 50, exposure=years)
    np.testing.assert_allclose(model.coef_, [0.75, -0.5], atol=0.2)
    assert model.predict(np.zeros((1, 2)))[0] == pytest.approx(np.exp(model.intercept_))
    one, two = (model.release_.predict({"x0": [0.0], "x1": [0.0], **more})[0] for more in ({}, {"exposure": [2.0]}))
    assert two[0] == pytest.approx(2.0 * one[0])
    assert model.release_.declared.exposure == "exposure"


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (dpl.LinkedLogisticRegression(bounds=(-1, 1), classes=("a", "b", "c"), linkage=dpl.Exact()), {}, "two levels"),
        (dpl.LinkedLogisticRegression(bounds=(-1, 1), classes="ab", linkage=dpl.Exact()), {}, "two levels"),
        (dpl.LinkedPoissonRegression(bounds=(-1, 1), linkage=dpl.Exact()), {}, "largest"),
        (dpl.LinkedPoissonRegression(bounds=(-1, 1), largest=3, linkage=dpl.Exact()), {"exposure": np.ones(4)}, "go together"),
        (dpl.LinkedPoissonRegression(bounds=(-1, 1), largest=3, exposure_bounds=(1, 2), linkage=dpl.Exact()), {}, "go together"),
    ],
)  # fmt: skip
def test_missing_declarations_are_asked_for(model: Any, more: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        model.fit(np.zeros((4, 1)), np.zeros(4), **more)


def test_one_level_per_row() -> None:
    with pytest.raises(StudyError, match="3 keys for 4 rows"):
        dpl.LinkedLogisticRegression(bounds=(-1, 1), linkage=dpl.Exact()).fit(np.zeros((4, 1)), [0, 1, 0])
    counts = dpl.LinkedPoissonRegression(bounds=(-1, 1), largest=3, exposure_bounds=(1, 2), linkage=dpl.Exact())
    with pytest.raises(StudyError, match="3 numbers for 4 rows"):
        counts.fit(np.zeros((4, 1)), np.zeros(4), exposure=np.ones(3))


FROM_ROWS = "check_classifiers_classes"  # wants classes that were read from y: they are declared
NO_CELL_FAILS = {  # they want errors for cells; a release must not fail, or tell, because of a cell
    "check_complex_data", "check_dtype_object", "check_supervised_y_no_nan", "check_classifiers_regression_target",
}  # fmt: skip
NO_BOUNDS = {  # they give weights for which no bounds are declared
    "check_all_zero_sample_weights_error", "check_sample_weight_equivalence_on_dense_data", "check_sample_weights_list", "check_sample_weights_not_an_array",
    "check_sample_weights_not_overwritten", "check_sample_weights_pandas_series", "check_sample_weights_shape",
}  # fmt: skip
FAILS = {
    dpl.LinkedLogisticRegression(bounds=(-5, 5), linkage=dpl.Exact(), epsilon=1e4, large_epsilon=True, refits=True): {
        *NO_CELL_FAILS, *NO_BOUNDS, "check_classifiers_one_label_sample_weights", FROM_ROWS, "check_classifier_not_supporting_multiclass", "check_supervised_y_2d",  # classes are keys, which are listed, not converted
    },
    dpl.LinkedPoissonRegression(bounds=(-5, 5), largest=5, linkage=dpl.Exact(), epsilon=1e4, large_epsilon=True, refits=True): {
        *NO_CELL_FAILS - {"check_classifiers_regression_target"}, *NO_BOUNDS,
    },
}  # fmt: skip


@pytest.mark.parametrize("estimator", FAILS, ids=lambda estimator: type(estimator).__name__)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise a fit is a function of its data, and scikit-learn may check it as one."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.array(values, dtype=float))
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert {check["check_name"] for check in found if check["status"] == "failed"} == FAILS[estimator]


WEIGHTED = [
    dpl.LinkedLogisticRegression(bounds=(-5, 5), weight_bounds=(0, 9), linkage=dpl.Exact(), epsilon=1e4, large_epsilon=True, refits=True),
    dpl.LinkedPoissonRegression(bounds=(-5, 5), weight_bounds=(0, 9), largest=5, linkage=dpl.Exact(), epsilon=1e4, large_epsilon=True, refits=True),
]  # fmt: skip


@pytest.mark.parametrize("name", ["list", "not_an_array", "not_overwritten", "pandas_series", "shape"])
@pytest.mark.parametrize("estimator", WEIGHTED, ids=lambda estimator: type(estimator).__name__)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks_of_weights(estimator: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With declared bounds."""
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.array(values, dtype=float))
    getattr(estimator_checks, f"check_sample_weights_{name}")(type(estimator).__name__, clone(estimator))


def test_rows_of_twice_the_weight_are_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "add_gaussian", lambda values, scale: np.array(values, dtype=float))
    X, line, rng = draw_rows()
    y = (rng.random(N) < 1 / (1 + np.exp(-line))).astype(int)
    twice = rng.random(N) < 0.5
    declared = {"bounds": (-1, 1), "linkage": dpl.Exact(), "epsilon": 8.0, "ranges": "declared"}
    one = dpl.LinkedLogisticRegression(**declared, weight_bounds=(0, 2)).fit(X, y, sample_weight=1.0 + twice)
    two = dpl.LinkedLogisticRegression(**declared).fit(np.vstack([X, X[twice]]), np.append(y, y[twice]))
    np.testing.assert_allclose(one.coef_, two.coef_, atol=0.01)


def test_nothing_is_told_before_a_fit() -> None:
    from sklearn.exceptions import NotFittedError

    model = dpl.LinkedLogisticRegression(bounds=(-1, 1), linkage=dpl.Exact())
    for method in (model.predict, model.predict_proba, model.decision_function):
        with pytest.raises(NotFittedError):
            method(np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("declared", "beside", "said"),
    [
        ({"exposure_bounds": (0.5, 3.0)}, "exposure", "come from both linked files"),
        ({"weight_bounds": (0.5, 3.0)}, "sample_weight", "another file than the regressors"),
    ],
)
def test_columns_beside_from_the_other_file_are_refused(declared: Any, beside: str, said: str) -> None:
    """One person would change their regressors on one row and their exposure on another, or somebody else's weight would count."""
    linked = dpl.link(
        {"id": ["1", "2"], "x": [0.1, 0.2], "t": [1.0, 2.0]},
        {"id": ["2", "1"], "y": [1.0, 2.0], "e": [1.0, 2.0]},
        method="pairs", pairs={"left": ["1", "2"], "right": ["1", "2"]}, id="id",
    )  # fmt: skip
    model, rows = dpl.LinkedPoissonRegression(bounds=(0, 1), largest=9, linkage=dpl.ELE(0.9), **declared), linked.rows
    with pytest.raises(StudyError, match=said):
        model.fit(rows.select(["x"]), rows["y"], **{beside: rows.select(["e"])})
    with pytest.raises(StudyError, match="a table of one column"):
        model.fit(rows.select(["x"]), rows["y"], **{beside: np.array([1.0, 2.0])})
