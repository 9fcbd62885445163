"""Logistic and Poisson regression by :func:`dplinked.fit` as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin

from dplinked.data.keys import key_text
from dplinked.errors import StudyError
from dplinked.linkage import Linkage, PrivacyUnit
from dplinked.regression import LinkedRegression, list_keys, read_features, short_errors

Floats = NDArray[np.float64]

_SHARED = ("epsilon", "delta", "linkage", "ranges", "large_epsilon", "intervals")


class LinkedLogisticRegression(ClassifierMixin, LinkedRegression):  # type: ignore[misc]
    """Differentially private logistic regression on linked rows, as a scikit-learn estimator.

    Parameters
    ----------
    classes
        The two levels of the response, the reference first: texts, numbers or booleans. Other cells count as the reference. They are public, and never read from the data.
    bounds, weight_bounds, epsilon, delta, linkage, unit, fit_intercept, typical, ranges, large_epsilon, intervals, refits
        As in :class:`LinkedRegression`.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features)
        Logarithms of odds ratios.
    intercept_ : ndarray of shape (1,)
        The intercept; 0 without one.
    classes_ : ndarray of shape (2,)
        The levels, the reference first.
    release_ : Release
        The whole release, with odds ratios and their intervals.

    Privacy
    -------
    As :class:`LinkedRegression`: each call of :meth:`fit` is one release, and ``score`` has no noise.
    """

    _SHARED: ClassVar[tuple[str, ...]] = _SHARED

    def __init__(
        self,
        *,
        bounds: Mapping[Any, Sequence[float]] | Sequence[float] | None = None,
        classes: Sequence[Any] = (0, 1),
        weight_bounds: Sequence[float] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        linkage: Linkage | None = None,
        unit: PrivacyUnit | None = None,
        fit_intercept: bool = True,
        typical: Mapping[Any, Sequence[float]] | Sequence[float] | None = None,
        ranges: str = "auto",
        large_epsilon: bool = False,
        intervals: bool = True,
        refits: bool = False,
    ) -> None:
        self.bounds = bounds
        self.classes = classes
        self.weight_bounds = weight_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.linkage = linkage
        self.unit = unit
        self.fit_intercept = fit_intercept
        self.typical = typical
        self.ranges = ranges
        self.large_epsilon = large_epsilon
        self.intervals = intervals
        self.refits = refits

    def fit(self, X: Any, y: Any, blocks: Any = None, *, sample_weight: Any = None) -> Self:
        """Release the coefficients; see :meth:`LinkedRegression.fit`. `y` holds one of `classes` per row.

        Privacy
        -------
        One (ε, δ)-differentially private release; see the class.
        """
        super().fit(X, y, blocks, sample_weight=sample_weight)
        self.classes_ = np.array(list(self.classes))
        self.coef_, self.intercept_ = self.coef_[None, :], np.array([self.intercept_])
        return self

    def decision_function(self, X: Any) -> Floats:
        """Log odds of the second class (n)."""
        return self._line(X)

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of both classes (n×2)."""
        event = expit(self._line(X))
        return np.column_stack([1.0 - event, event])

    def predict(self, X: Any) -> NDArray[Any]:
        """The likelier class of each row."""
        event = self._line(X) > 0.0
        return np.asarray(self.classes_[event.astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = (
            True  # scikit-learn's own checks use few rows, where the noise hides the model
        )
        return tags

    def _declare_response(self, response: str, bounds: dict[str, Any], exposure: str | None) -> dict[str, Any]:
        """The response's two levels."""
        listed = [] if isinstance(self.classes, str) else list(self.classes)
        if len({key_text(level) for level in listed} - {None}) != 2 or len(listed) != 2:
            raise StudyError("classes must be the two levels of the response, the reference first, like ('no', 'yes').")
        return {"bounds": bounds, "levels": {response: listed}, "family": "logistic"}

    def _read_rows(self, X: Any, y: Any) -> tuple[Floats, Any]:
        """Read features, and the responses' levels one by one."""
        with short_errors():
            features = read_features(self, X, y, reset=True)
        return features, list_keys(y, "y", len(features))


class LinkedPoissonRegression(LinkedRegression):
    """Differentially private Poisson regression on linked rows, as a scikit-learn estimator.

    Parameters
    ----------
    largest
        The largest count, public. Larger ones count as this one, which the regression allows for.
    exposure_bounds
        Public bounds ``(low, high)`` above 0 of the exposure that :meth:`fit` is given.
    bounds, weight_bounds, epsilon, delta, linkage, unit, fit_intercept, typical, ranges, large_epsilon, intervals, refits
        As in :class:`LinkedRegression`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Logarithms of rate ratios.
    intercept_ : float
        The intercept; 0.0 without one.
    release_ : Release
        The whole release, with rate ratios and their intervals.

    Privacy
    -------
    As :class:`LinkedRegression`: each call of :meth:`fit` is one release, and ``score`` has no noise.
    """

    _SHARED: ClassVar[tuple[str, ...]] = _SHARED

    def __init__(
        self,
        *,
        bounds: Mapping[Any, Sequence[float]] | Sequence[float] | None = None,
        largest: int | None = None,
        exposure_bounds: Sequence[float] | None = None,
        weight_bounds: Sequence[float] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        linkage: Linkage | None = None,
        unit: PrivacyUnit | None = None,
        fit_intercept: bool = True,
        typical: Mapping[Any, Sequence[float]] | Sequence[float] | None = None,
        ranges: str = "auto",
        large_epsilon: bool = False,
        intervals: bool = True,
        refits: bool = False,
    ) -> None:
        self.bounds = bounds
        self.largest = largest
        self.exposure_bounds = exposure_bounds
        self.weight_bounds = weight_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.linkage = linkage
        self.unit = unit
        self.fit_intercept = fit_intercept
        self.typical = typical
        self.ranges = ranges
        self.large_epsilon = large_epsilon
        self.intervals = intervals
        self.refits = refits

    def fit(self, X: Any, y: Any, blocks: Any = None, exposure: Any = None, *, sample_weight: Any = None) -> Self:
        """Release the coefficients; see :meth:`LinkedRegression.fit`. `y` holds counts, `exposure` what each is taken by, such as years.

        The exposure must come from the file that X comes from. Where X is a table that `link` made, it is a table of one column of the same.

        Privacy
        -------
        One (ε, δ)-differentially private release; see the class.
        """
        return self._release(X, y, blocks, sample_weight=sample_weight, exposure=exposure)

    def predict(self, X: Any) -> Floats:
        """Expected counts, for an exposure of one. Nothing is clipped, and a row with NaN gives NaN."""
        return np.asarray(np.exp(np.minimum(self._line(X), 700.0)))

    def _declare_response(self, response: str, bounds: dict[str, Any], exposure: str | None) -> dict[str, Any]:
        """Counts up to the largest, and what they are taken by."""
        if self.largest is None:
            raise StudyError("The response has no declared largest count. Declare largest=…, public too.")
        if (exposure is None) != (self.exposure_bounds is None):
            raise StudyError(
                "An exposure and its bounds go together: exposure_bounds=(low, high), and fit(X, y, exposure=…)."
            )
        bounds = {**bounds, response: (0, self.largest)}
        if exposure is None:
            return {"bounds": bounds, "family": "poisson"}
        return {"bounds": {**bounds, exposure: self.exposure_bounds}, "family": "poisson", "exposure": exposure}
