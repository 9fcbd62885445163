"""The released result: frozen, complete, and made of released and declared values only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.estimate.hypotheses import TestResult, parse_hypotheses
from dplinked.estimate.intervals import Evidence, Solution, fit_restricted, invert_test, solve_evidence
from dplinked.estimate.ssp import solve_sums
from dplinked.privacy.mechanism import ReleasedSums
from dplinked.privacy.plan import NoisePlan
from dplinked.report.page import write_or_return
from dplinked.study.design import build_design, model_rows
from dplinked.study.formula import parse_formula

Floats = NDArray[np.float64]

FORMAT = 1
_FAR = 1e4  # a value so many times a coefficient's declared range away counts as infinitely far


@dataclass(frozen=True)
class Privacy:
    """What is promised: (ε, δ), the μ actually used, for whom, and what was taken as public."""

    epsilon: float
    delta: float
    mu: float
    unit: dict[str, Any]
    statement: str
    assumed_public: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """A differentially private regression result.

    Everything it offers is computed from what was released or declared, on any machine, at no further cost.

    Attributes
    ----------
    coef
        Coefficients in the user's units.
    std_err
        Standard errors, by everything that is known to move the coefficient: privacy noise and, where intervals
        were paid for, sampling and linkage.
    error_parts
        What each standard error is made of: ``sampling``, ``linkage`` and ``privacy`` (their squares add up).
    identified
        False where privacy noise alone exceeds the declared range of the coefficient: the budget does not
        tell it from any other value in its range.
    released
        The released sums (or descent transcript) with the exact noise scale of every entry.
    scaling
        Public constants that map scaled columns to the user's units.
    """

    formula: str
    method: str
    calibration: str
    count: int
    coef: dict[str, float]
    std_err: dict[str, float]
    error_parts: dict[str, dict[str, float]]
    identified: dict[str, bool]
    privacy: Privacy
    linkage: dict[str, Any]
    declared: dict[str, Any]
    released: dict[str, Any]
    scaling: dict[str, Any]
    versions: dict[str, str]
    dropped: tuple[str, ...] = ()
    ledger: dict[str, Any] | None = None

    # --- intervals and tests ---------------------------------------------------------------------

    def conf_int(self, level: float = 0.95, *, method: str = "test") -> dict[str, tuple[float, float]]:
        """Confidence interval of each coefficient.

        Parameters
        ----------
        level
            Nominal coverage.
        method
            ``"test"`` inverts a test and stays honest when the noisy matrix is nearly singular: an interval may be
            unbounded, which says that this budget does not identify the coefficient. ``"wald"`` is the familiar
            estimate ± standard errors.
        """
        if method not in ("test", "wald"):
            raise StudyError(f"method must be 'test' or 'wald', not {method!r}.")
        level = _checked_level(level)
        if (level, method) not in self._intervals:
            quantile, (rows, offsets) = _chi2_quantile(level, 1), self._to_user
            self._intervals[level, method] = {
                name: self._interval(rows[k], float(offsets[k]), quantile, method)
                for k, name in enumerate(self._names)
                if name not in self.dropped
            }
        return dict(self._intervals[level, method])

    @cached_property
    def _intervals(self) -> dict[tuple[float, str], dict[str, tuple[float, float]]]:
        """Intervals by level and method: many coefficients take seconds to invert, and are asked for more than once."""
        return {}

    def _interval(self, direction: Floats, offset: float, quantile: float, method: str) -> tuple[float, float]:
        """Interval of ``direction'β + offset`` on the scaled columns."""
        evidence, solution = self._evidence, self._solution
        middle = float(direction @ solution.beta) + offset
        if method == "wald":
            reach = math.sqrt(quantile * float(direction @ solution.covariance @ direction))
            return middle - reach, middle + reach
        largest = _FAR * float(np.abs(direction).sum()) * max(1.0, float(np.abs(solution.beta).max()))
        low, high = invert_test(evidence, solution, direction, quantile, largest)
        return low + offset, high + offset

    def test(self, hypothesis: str | Sequence[str]) -> TestResult:
        """Test linear hypotheses jointly, like ``"income = 0.5"`` or ``"income = 0.5, C(region)[south] = 0"``."""
        left, right, text = parse_hypotheses(hypothesis, self._names)
        matrix, offset = self._to_user
        scaled = left @ matrix
        rows = np.vstack([self._evidence.left, scaled])
        if np.linalg.matrix_rank(rows / np.linalg.norm(rows, axis=1, keepdims=True)) < len(rows):
            raise StudyError(f"The hypotheses {text!r} contradict or repeat each other, or a dropped column.")
        _, distance = fit_restricted(self._evidence, self._solution.beta, scaled, right - left @ offset)
        statistic = max(0.0, distance - self._solution.distance)
        return TestResult(text, statistic, len(left), _chi2_tail(statistic, len(left)))

    def in_region(self, coef: Mapping[str, float], level: float = 0.95) -> bool:
        """Whether the joint confidence region of the named coefficients contains the given values."""
        return self.test(
            [f"{name} = {float(value)!r}" for name, value in coef.items()]
        ).p_value >= 1.0 - _checked_level(level)

    def submodel(self, formula: str) -> Release:
        """The same release with fewer columns: those left out have coefficient zero. Costs nothing."""
        levels = self.declared["levels"]
        parsed = parse_formula(formula, [name for name in levels if name not in self.declared["bounds"]])
        names = build_design(formula, self.declared["bounds"], levels).names
        response = parse_formula(self.formula, list(levels)).response.text
        unknown = [name for name in names if name not in self._names]
        if unknown or parsed.response.text != response:
            raise StudyError(f"A submodel keeps the response {response!r} and some of the columns {list(self._names)}.")
        dropped = tuple(name for name in self._names if name not in names)
        restricted = replace(self, formula=formula, dropped=dropped, coef={}, std_err={}, error_parts={}, identified={})
        matrix, offset = self._to_user
        errors = np.sqrt(np.maximum(np.diag(matrix @ restricted._solution.covariance @ matrix.T), 0.0))
        coef = matrix @ restricted._solution.beta + offset
        kept = [k for k, name in enumerate(self._names) if name in names]
        return replace(
            restricted,
            coef={self._names[k]: float(coef[k]) for k in kept},
            std_err={self._names[k]: float(errors[k]) for k in kept},
            identified={self._names[k]: self.identified[self._names[k]] for k in kept},
        )

    def ridge(self, penalty: float) -> dict[str, float]:
        """Coefficients with a ridge penalty on the slopes, as a share of the number of rows, on the scaled columns."""
        if self.dropped:
            raise StudyError("Ask the whole model for its ridge, not a submodel.")
        if not (math.isfinite(penalty) and penalty >= 0):
            raise StudyError(f"The penalty must be a finite number, 0 or more, not {penalty!r}.")
        estimate = solve_sums(
            self._sums, intercept=self.scaling["intercept"], prior_scale=1.0, ridge=penalty * self.count
        )
        matrix, offset = self._to_user
        return dict(zip(self._names, (matrix @ estimate.beta + offset).tolist(), strict=True))

    def predict(self, rows: Any, level: float = 0.95) -> list[tuple[float, float, float]]:
        """Mean response and its interval for each row: (mean, low, high). Cells are clipped to their declared bounds.

        The mean is that of the coefficients shown; the interval belongs to the unshrunk solution, so with very
        little budget the mean may lie outside.
        """
        quantile = _chi2_quantile(_checked_level(level), 1)
        matrix, offset = self._to_user
        coef = np.array([self.coef.get(name, 0.0) for name in self._names])
        kept = [k for k, name in enumerate(self._names) if name not in self.dropped]
        found = []
        for given in model_rows(rows, {**self.declared, "formula": self.formula}):
            row = np.zeros(len(self._names))
            row[kept] = given
            low, high = self._interval(row @ matrix, float(row @ offset), quantile, "test")
            found.append((float(row @ coef), low, high))
        return found

    def with_accuracy(self, change: float) -> Release:
        """The release as it would read had the linkage accuracy been declared higher by `change`."""
        if self.linkage["model"] != "ELE" or self.dropped or not self.scaling["intercept"]:
            raise StudyError("Only a whole model with an intercept under ELE tells what another accuracy would do.")
        if self.linkage["accuracy"] is None:
            raise StudyError("The accuracies of this linkage are data and not shown, so another one cannot be tried.")
        accuracy = self._accuracy
        factor = min(1.0, max(0.01, accuracy + change)) / accuracy
        first = int(self.scaling["intercept"])
        matrix = np.array(self.released["matrix"])
        mixed = np.outer(matrix[1:, 0], matrix[0, 1:]) / matrix[0, 0] if first else 0.0
        matrix[first:, first:] = (matrix[first:, first:] - mixed) * factor + mixed
        moved = replace(self, released={**self.released, "matrix": matrix.tolist()})
        user, offset = self._to_user
        ratio = np.ones(len(self._names))
        ratio[first:] = 1.0 / factor
        beta = self._scaled_coef * ratio
        if first:
            beta[0] = self._scaled_coef[0] + matrix[0, 1:] @ (self._scaled_coef - beta)[1:] / matrix[0, 0]
        return replace(moved, coef=dict(zip(self._names, (user @ beta + offset).tolist(), strict=True)))

    # --- what the methods above share ------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, ...]:
        listed = tuple(column["name"] for column in self.scaling["columns"])
        return ("Intercept", *listed) if self.scaling["intercept"] else listed

    @property
    def _accuracy(self) -> float:
        accuracy = self.linkage.get("accuracy", 1.0)
        return float(np.mean(list(accuracy.values()))) if isinstance(accuracy, Mapping) else float(accuracy)

    @cached_property
    def _to_user(self) -> tuple[Floats, Floats]:
        """(A, a): user coefficients are ``Aβ + a`` for β on the scaled columns."""
        first, response = int(self.scaling["intercept"]), self.scaling["response"]
        matrix, offset = np.zeros((len(self._names),) * 2), np.zeros(len(self._names))
        for k, column in enumerate(self.scaling["columns"], first):
            matrix[k, k] = response["scale"] / column["scale"]
            if first:
                matrix[0, k] = -response["scale"] * column["shift"] / column["scale"]
        if first:
            matrix[0, 0], offset[0] = response["scale"], response["shift"]
        return matrix, offset

    @cached_property
    def _scaled_coef(self) -> Floats:
        matrix, offset = self._to_user
        given = np.array([self.coef[name] for name in self._names]) - offset
        return np.asarray(np.linalg.solve(matrix, given), np.float64)

    @cached_property
    def _sums(self) -> ReleasedSums:
        self._require_intervals()
        array = {name: np.array(self.released[name]) for name in ("matrix", "vector", "matrix_scale", "vector_scale")}
        return ReleasedSums(
            **array, symmetric=self.released["symmetric"], count=self.count, plan=NoisePlan((), self.privacy.mu)
        )

    @cached_property
    def _evidence(self) -> Evidence:
        sums, (matrix, offset) = self._sums, self._to_user
        held = [self._names.index(name) for name in self.dropped]
        return Evidence(
            sums.matrix,
            sums.vector,
            sums.matrix_scale,
            sums.vector_scale,
            sums.symmetric,
            np.array(self.released["meat"]["matrix"]),
            np.array(self.released["centre"]),
            self.scaling["intercept"],
            self.released["accuracy_variance"] or 0.0,
            matrix[held],
            -offset[held],
        )

    @cached_property
    def _solution(self) -> Solution:
        return solve_evidence(self._evidence)

    def _require_intervals(self) -> None:
        if "meat" not in self.released:
            raise StudyError(
                "This release paid for no intervals. Fit with intervals=True and calibration='tight' to have them."
            )

    @property
    def has_intervals(self) -> bool:
        """Whether intervals, tests and models after release are available."""
        return "meat" in self.released

    # --- as text ---------------------------------------------------------------------------------

    def summary(self) -> str:
        """Return the result as a table of text, with the privacy statement under it."""
        from dplinked.report.text import render_text

        return render_text(self)

    def to_markdown(self) -> str:
        """Return the result as Markdown."""
        from dplinked.report.text import render_markdown

        return render_markdown(self)

    def __str__(self) -> str:
        return self.summary()

    # --- as a page, and as tables to copy --------------------------------------------------------

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> None: ...
    def to_html(self, path: str | Path | None = None) -> str | None:
        """Write the report as one HTML page, or return it: it needs nothing else, and loads nothing.

        Privacy
        -------
        Nothing is spent: the page is made of released and declared values only.
        """
        from dplinked.report.html import render_page

        return write_or_return(render_page(self), path)

    def _repr_html_(self) -> str:
        """The release in a notebook."""
        from dplinked.report.html import render_fragment

        return render_fragment(self)

    @overload
    def to_csv(self, path: None = None) -> str: ...
    @overload
    def to_csv(self, path: str | Path) -> None: ...
    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write the coefficients as CSV, or return it: name, coef, std_err, low, high, sampling, linkage, privacy."""
        from dplinked.report.exports import render_csv

        return write_or_return(render_csv(self), path)

    @overload
    def to_latex(self, path: None = None) -> str: ...
    @overload
    def to_latex(self, path: str | Path) -> None: ...
    def to_latex(self, path: str | Path | None = None) -> str | None:
        """Write the coefficients as a LaTeX table (booktabs), or return it."""
        from dplinked.report.exports import render_latex

        return write_or_return(render_latex(self), path)

    def to_json(self) -> str:
        """Return the result as JSON text."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["privacy"] = vars(self.privacy)
        return json.dumps({"dplinked_release": FORMAT, **fields}, indent=1, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Release:
        """Read a release back from JSON text."""
        try:
            fields = json.loads(text)
            if fields.pop("dplinked_release") != FORMAT:
                raise KeyError
            privacy = fields.pop("privacy")
            privacy["assumed_public"] = tuple(privacy["assumed_public"])
            fields["dropped"] = tuple(fields["dropped"])
            return cls(privacy=Privacy(**privacy), **fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StudyError("This is not a release that this version of dplinked can read.") from None

    def save(self, path: str | Path) -> None:
        """Write the release to a JSON file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Release:
        """Read a release from a JSON file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise StudyError(
                f"{Path(path).name!r} cannot be read. Give the JSON file that 'fit --out' wrote."
            ) from None
        return cls.from_json(text)


def _checked_level(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise StudyError(f"level must lie strictly between 0 and 1, not {level!r}.")
    return level


def _chi2_quantile(level: float, degrees: int) -> float:
    from scipy.special import chdtri

    return float(chdtri(degrees, 1.0 - level))


def _chi2_tail(value: float, degrees: int) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(degrees, value))
