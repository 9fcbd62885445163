"""What a release holds, and what can be computed from it: intervals, tests, smaller models, predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_faults, plain_number, shown
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.goodness import Goodness
from dplinked.estimate.hypotheses import TestResult
from dplinked.ledger.events import LedgerEntry
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.release.contents import Declared, Privacy, Released
from dplinked.release.family import expected_outcome
from dplinked.release.inference import LEVEL, PLAUSIBLE, Inference, checked_level, chi2_quantile
from dplinked.release.predict import model_rows, prediction_frame
from dplinked.release.what_if import WhatIf, suppose_accuracy
from dplinked.study.build import build_design
from dplinked.study.design import CURVE_REACH
from dplinked.study.formula import parse_formula
from dplinked.study.scaling import Scaling

_LIKE_ALPHA = 0.2  # a level that is more likely meant as statsmodels' alpha


@dataclass(frozen=True)
class Result:
    """The values of a release, and the questions that they answer; see :class:`~dplinked.Release`."""

    formula: str
    method: str
    calibration: str
    count: int
    coef: dict[str, float]
    std_err: dict[str, float]
    error_parts: dict[str, dict[str, float]]
    identified: dict[str, bool]
    privacy: Privacy
    linkage: DeclaredLinkage
    declared: Declared
    released: Released
    scaling: Scaling
    versions: dict[str, str]
    dropped: tuple[str, ...] = ()
    ledger: LedgerEntry | None = None
    shrunken: dict[str, float] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """``"linear"``, ``"logistic"`` or ``"poisson"``."""
        return self.declared.family

    # --- names that users of statsmodels know ----------------------------------------------------

    @property
    def params(self) -> dict[str, float]:
        """The coefficients: another name of `coef`."""
        return self.coef

    @property
    def bse(self) -> dict[str, float]:
        """The standard errors: another name of `std_err`."""
        return self.std_err

    @property
    def nobs(self) -> int:
        """The number of rows, which is public: another name of `count`."""
        return self.count

    @property
    def zvalues(self) -> dict[str, float]:
        """Coefficients over their standard errors. The p-values of :attr:`pvalues` are those of another test."""
        self._inference  # noqa: B018 - noise alone makes no standard error that a coefficient could be divided by
        return {
            name: value / self.std_err[name] if self.std_err[name] else math.inf for name, value in self.coef.items()
        }

    tvalues = zvalues

    @property
    def pvalues(self) -> dict[str, float]:
        """p-values of the tests that each coefficient is zero: of those tests that :meth:`conf_int` inverts.

        Below .05 exactly where the 95 % interval leaves out zero. Such a test takes the error as it would be were the coefficient zero, and stays right where noise is
        strong, so its p-value is not that of :attr:`zvalues`.
        """
        return self._inference.p_values()

    def covariance(self) -> NDArray[np.float64]:
        """Covariance of the coefficients, in their order (p×p), with the squares of `std_err` on the diagonal."""
        kept = [k for k, name in enumerate(self.scaling.names) if name not in self.dropped]
        whole = self._inference.coefficients()[1][np.ix_(kept, kept)]
        own = np.sqrt(np.maximum(np.diag(whole), np.finfo(float).tiny))
        errors = np.array(list(self.std_err.values()))
        return np.asarray(whole * np.outer(errors / own, errors / own), np.float64)

    # --- intervals and tests ---------------------------------------------------------------------

    def conf_int(
        self, level: float = LEVEL, *, alpha: float | None = None, method: str = "test"
    ) -> dict[str, tuple[float, float]]:
        """Confidence interval of each coefficient.

        Parameters
        ----------
        level
            Nominal coverage.
        alpha
            One minus that, as statsmodels has it; if given, it counts instead of `level`.
        method
            ``"test"`` inverts a test and stays honest when the noisy matrix is nearly singular: an interval may be
            unbounded, which says that this budget does not identify the coefficient. ``"wald"`` is the familiar
            estimate ± standard errors.
        """
        if alpha is not None:
            level = 1.0 - plain_number(alpha)
        elif 0.0 < plain_number(level) <= _LIKE_ALPHA:
            warnings.warn(
                f"conf_int({level:g}) has intervals of {100.0 * level:g} %. For those of {100.0 * (1.0 - level):g} %, say conf_int(alpha={level:g}).",
                UserWarning,
                stacklevel=2,
            )
        return self._inference.conf_int(level, method)

    def ratios(self, level: float = 0.95) -> dict[str, tuple[float, float, float]]:
        """Odds ratios of a logistic regression, rate ratios of a Poisson regression: of each slope the ratio and the ends of its interval.

        Without intervals the ends are infinitely far.
        """
        if self.family == "linear":
            raise StudyError(
                "A linear regression has no odds ratios or rate ratios: family='logistic' and 'poisson' have."
            )
        intervals = self.conf_int(level) if self.has_intervals else {}
        return {
            name: (expected_outcome("poisson", value), *self._ratio_ends(intervals.get(name)))
            for name, value in self.coef.items()
            if name != "Intercept"
        }

    @staticmethod
    def _ratio_ends(interval: tuple[float, float] | None) -> tuple[float, float]:
        low, high = (-math.inf, math.inf) if interval is None else interval
        return float(np.exp(min(low, 700.0))), math.inf if high > 700.0 else math.exp(high)

    @plain_faults
    def test(self, hypothesis: str | Sequence[str]) -> TestResult:
        """Test linear hypotheses jointly, like ``"income = 0.5"`` or ``"income = 0.5, C(region)[south] = 0"``."""
        return self._inference.test(hypothesis)

    @plain_faults
    def f_test(self) -> TestResult:
        """Test that all slopes are zero: the joint test of a regression's table. ``statistic / degrees`` is F, whose second degrees of freedom are taken as infinite."""
        slopes = [name for name in self.coef if name != "Intercept"]
        if not slopes:
            raise StudyError("The model has no slopes to test.")
        return self.test([f"{name} = 0" for name in slopes])

    @property
    def residual_sd(self) -> tuple[float, float, float] | None:
        """Standard deviation of the errors around the line, those of right links, and the ends of its 95 % interval. None unless ``goodness=True`` paid for it, and of a submodel."""
        goodness = self._goodness
        return None if goodness is None else goodness.residual_sd(LEVEL)

    @property
    def r_squared(self) -> tuple[float, float, float] | None:
        """Share of the response's variance that the line explains (R²), were all links right, and the ends of its 95 % interval; without an intercept, of the response's mean square.

        None unless ``goodness=True`` paid for it, and of a submodel.
        """
        goodness = self._goodness
        return None if goodness is None else goodness.r_squared(LEVEL)

    @property
    def _goodness(self) -> Goodness | None:
        return None if self.dropped else self.released.goodness

    @plain_faults
    def in_region(self, coef: Mapping[str, float], level: float = 0.95) -> bool:
        """Whether the joint confidence region of the named coefficients contains the given values."""
        if not isinstance(coef, Mapping) or not all(name in self.coef for name in coef):
            raise StudyError(
                f"in_region takes a mapping of coefficients to values; the coefficients are {list(self.coef)}."
            )
        asked = [f"{name} = {plain_number(value)!r}" for name, value in coef.items()]
        return self.test(asked).p_value >= 1.0 - checked_level(level)

    @plain_faults
    def submodel(self, formula: str) -> Self:
        """The same release with fewer columns: those left out have coefficient zero. Costs nothing."""
        levels, names = self.declared.levels, self.scaling.names
        known, events = [name for name in levels if name not in self.declared.bounds], self.family == "logistic"
        parsed = parse_formula(formula, known, events=events)
        own = {*self.declared.bounds, *levels}
        for name in (name for factors in parsed.terms for factor in factors for name in factor.variables):
            if name not in own:
                raise StudyError(
                    f"A smaller model has only columns of the release, and {shown(name)} is none: they are {list(names)}."
                )
        kept = build_design(formula, self.declared.bounds, levels, family=self.family).names
        response = parse_formula(self.formula, list(levels), events=events).response.text
        if any(name not in names for name in kept) or parsed.response.text != response:
            raise StudyError(f"A submodel keeps the response {response!r} and some of the columns {list(names)}.")
        dropped = tuple(name for name in names if name not in kept)
        coef, covariance = replace(self._inference, dropped=dropped).coefficients()
        errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        places = [k for k, name in enumerate(names) if name in kept]
        return replace(
            self,
            formula=formula,
            dropped=dropped,
            coef={names[k]: float(coef[k]) for k in places},
            std_err={names[k]: float(errors[k]) for k in places},
            error_parts={},
            identified={names[k]: self.identified[names[k]] for k in places},
            shrunken={},
        )

    def ridge(self, penalty: float) -> dict[str, float]:
        """Coefficients with a ridge penalty on the slopes, as a share of the number of rows, on the scaled columns."""
        if self.dropped:
            raise StudyError("Ask the whole model for its ridge, not a submodel.")
        if self._tells_last_iterate:
            raise StudyError("The last iterate of Algorithm 1 has no ridge; a release with method='ssp' has.")
        if self.family != "linear":
            raise StudyError(f"ridge is for family='linear'; this release has family={self.family!r}.")
        if not 0.0 <= plain_number(penalty) < math.inf:
            raise StudyError(f"The penalty must be a finite number, 0 or more, not {shown(penalty)}.")
        estimate = solve_sums(
            self._inference.sums, intercept=self.scaling.intercept, prior_scale=1.0, ridge=penalty * self.count
        )
        matrix, offset = self.scaling.to_user()
        return dict(zip(self.scaling.names, (matrix @ estimate.beta + offset).tolist(), strict=True))

    def predict(self, rows: Any, level: float = LEVEL) -> Any:
        """Mean response and its interval for each row. Cells are clipped to their declared bounds.

        Of a mapping of columns they are a list of (mean, low, high); of a frame (pandas, polars, Arrow), a frame of the same kind with these three columns.

        Of a logistic regression it is the probability of the event, of a Poisson regression the expected count: for the row's exposure, or for an exposure of one if
        the rows have none.

        The mean is that of the coefficients shown; the interval belongs to the unshrunk solution, so with very
        little budget the mean may lie outside.
        """
        quantile, names = chi2_quantile(checked_level(level), 1), self.scaling.names
        matrix, offset = self.scaling.to_user()
        coef = np.array([self.coef.get(name, 0.0) for name in names])
        kept = [k for k, name in enumerate(names) if name not in self.dropped]
        found = []
        for given, exposure in zip(*model_rows(rows, self.formula, self.declared), strict=True):
            row = np.zeros(len(names))
            row[kept] = given
            low, high = self._inference.interval(row @ matrix, float(row @ offset), quantile)
            mean, low, high = (
                float(expected_outcome(self.family, end + exposure)) for end in (float(row @ coef), low, high)
            )
            found.append((mean, low, high))
        return found if isinstance(rows, Mapping) else prediction_frame(rows, found)

    def with_accuracy(self, change: float) -> WhatIf:
        """What the release would say had the linkage accuracy been declared higher by `change`."""
        if self._tells_last_iterate:
            raise StudyError(
                "The last iterate of Algorithm 1 does not tell what another accuracy would do; a release with method='ssp' does."
            )
        return suppose_accuracy(change, self.linkage, self._inference, self.coef, self.std_err, self.error_parts)

    def uncorrected(self) -> WhatIf:
        """What the release would say had no link been wrong: right if wrong links bring responses of rows that resemble their own, not of any row of the block alike."""
        return self.with_accuracy(1.0)

    def bracket(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """An interval of each coefficient from its corrected interval to its uncorrected one.

        It holds, at the level, for wrong links that fall on any row of their block alike, for those that bring responses of rows just like their own, and for what lies
        between: the more wrong links resemble their row, the closer the truth is to the uncorrected end.
        """
        corrected, uncorrected = self.conf_int(level), self.uncorrected().conf_int(level)
        return {
            name: (min(low, uncorrected[name][0]), max(high, uncorrected[name][1]))
            for name, (low, high) in corrected.items()
        }

    def check_sizes(self) -> None:
        """Refuse, by a ValueError, values that do not fit together: names, and the sizes of what was released."""
        names, (sums, variance) = self.scaling.names, (self.released.sums, self.released.variance)
        kept = [name for name in names if name not in self.dropped]
        listed: list[Mapping[str, Any]] = [self.coef, self.std_err, self.identified, self.shrunken or self.coef]
        sizes = (
            []
            if sums is None
            else [(sums.matrix, 2), (sums.matrix_scale, 2), (sums.vector, 1), (sums.vector_scale, 1), (sums.centre, 1)]
        )
        sizes += [(sums.basis, 2)] if sums is not None and sums.basis is not None else []
        sizes += [] if variance is None else [(variance.meat, 2), (variance.weights, 1)]
        if not self._has_whole_transcript(len(names)):
            raise ValueError("the transcript does not fit")
        named = all(list(one) == kept for one in listed)
        if not (named and self.count > 0 and all(array.shape == (len(names),) * axes for array, axes in sizes)):
            raise ValueError("names or sizes do not fit together")

    @property
    def subgroup(self) -> tuple[float, float, float] | None:
        """About how many complete rows the declared condition holds for: a noisy number, and the ends of its 95 % interval. None without a condition."""
        if self.released.counted is None:
            return None
        number, noise = self.released.counted
        low, high = (min(max(0.0, number + step * 1.96 * noise), float(self.count)) for step in (-1.0, 1.0))
        return min(max(0.0, number), float(self.count)), low, high

    @property
    def tells_other_accuracies(self) -> bool:
        """Whether :meth:`with_accuracy` can be asked."""
        whole = self.has_intervals and not self.dropped and self.scaling.intercept and not self._tells_last_iterate
        return whole and self.linkage.model == "ELE" and self.linkage.accuracy is not None

    @property
    def has_intervals(self) -> bool:
        """Whether intervals, tests and models after release are available."""
        return self.released.variance is not None

    @cached_property
    def _inference(self) -> Inference:
        sums, variance = self.released.sums, self.released.variance
        if sums is None or variance is None:
            raise StudyError("This release paid for no intervals. Fit with intervals=True to have them.")
        descent = self.released.descent if self._tells_last_iterate else None
        return Inference(
            sums,
            variance,
            self.scaling,
            self.dropped,
            self.count,
            descent,
            bounded=self.calibration == "tight",
            plausible=PLAUSIBLE if self.family == "linear" else CURVE_REACH,
        )

    def _has_whole_transcript(self, size: int) -> bool:
        """Whether a descent's path, gradients and steps fit together, and are there if intervals rest on them."""
        descent = self.released.descent
        if descent is None:
            return not (self._tells_last_iterate and self.has_intervals)
        steps = len(descent.gradients)
        shapes = (descent.path.shape, descent.gradients.shape, descent.steps.shape)
        return steps > 0 and shapes == ((steps + 1, size), (steps, size), (size,))

    @property
    def _tells_last_iterate(self) -> bool:
        """Whether coefficients are a descent's last iterate, as in the paper, and not the solution of released sums."""
        return self.method == "ngd" and self.calibration == "paper"
