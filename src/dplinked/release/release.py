"""The released result: frozen, complete, and made of released and declared values only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from dplinked.errors import StudyError, raise_alone
from dplinked.estimate.coefficients import solve_sums
from dplinked.estimate.hypotheses import TestResult
from dplinked.ledger.events import LedgerEntry
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.release.contents import Declared, Privacy, Released
from dplinked.release.inference import Inference, checked_level, chi2_quantile
from dplinked.release.json import read_json, write_json
from dplinked.release.predict import model_rows
from dplinked.release.what_if import WhatIf, suppose_accuracy
from dplinked.report.files import write_or_return
from dplinked.study.design import build_design
from dplinked.study.formula import parse_formula
from dplinked.study.scaling import Scaling


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
    privacy, linkage, declared
        What is promised, how the rows were linked, and the model, all as declared.
    released
        The released sums, variance and descent transcript, with the noise of all that was drawn.
    scaling
        Public constants that map scaled columns to the user's units.
    dropped
        Coefficients that a smaller model, made by :meth:`submodel`, holds at zero.
    ledger
        Where the release was charged; None without a ledger.
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
    linkage: DeclaredLinkage
    declared: Declared
    released: Released
    scaling: Scaling
    versions: dict[str, str]
    dropped: tuple[str, ...] = ()
    ledger: LedgerEntry | None = None

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
        return self._inference.conf_int(level, method)

    def test(self, hypothesis: str | Sequence[str]) -> TestResult:
        """Test linear hypotheses jointly, like ``"income = 0.5"`` or ``"income = 0.5, C(region)[south] = 0"``."""
        return self._inference.test(hypothesis)

    def in_region(self, coef: Mapping[str, float], level: float = 0.95) -> bool:
        """Whether the joint confidence region of the named coefficients contains the given values."""
        return self.test([f"{name} = {float(value)!r}" for name, value in coef.items()]).p_value >= 1.0 - checked_level(
            level
        )

    def submodel(self, formula: str) -> Release:
        """The same release with fewer columns: those left out have coefficient zero. Costs nothing."""
        levels, names = self.declared.levels, self.scaling.names
        parsed = parse_formula(formula, [name for name in levels if name not in self.declared.bounds])
        kept = build_design(formula, self.declared.bounds, levels).names
        response = parse_formula(self.formula, list(levels)).response.text
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
        )

    def ridge(self, penalty: float) -> dict[str, float]:
        """Coefficients with a ridge penalty on the slopes, as a share of the number of rows, on the scaled columns."""
        if self.dropped:
            raise StudyError("Ask the whole model for its ridge, not a submodel.")
        if not (math.isfinite(penalty) and penalty >= 0):
            raise StudyError(f"The penalty must be a finite number, 0 or more, not {penalty!r}.")
        estimate = solve_sums(
            self._inference.sums, intercept=self.scaling.intercept, prior_scale=1.0, ridge=penalty * self.count
        )
        matrix, offset = self.scaling.to_user()
        return dict(zip(self.scaling.names, (matrix @ estimate.beta + offset).tolist(), strict=True))

    def predict(self, rows: Any, level: float = 0.95) -> list[tuple[float, float, float]]:
        """Mean response and its interval for each row: (mean, low, high). Cells are clipped to their declared bounds.

        The mean is that of the coefficients shown; the interval belongs to the unshrunk solution, so with very
        little budget the mean may lie outside.
        """
        quantile, names = chi2_quantile(checked_level(level), 1), self.scaling.names
        matrix, offset = self.scaling.to_user()
        coef = np.array([self.coef.get(name, 0.0) for name in names])
        kept = [k for k, name in enumerate(names) if name not in self.dropped]
        found = []
        for given in model_rows(rows, self.formula, self.declared):
            row = np.zeros(len(names))
            row[kept] = given
            low, high = self._inference.interval(row @ matrix, float(row @ offset), quantile, "test")
            found.append((float(row @ coef), low, high))
        return found

    def with_accuracy(self, change: float) -> WhatIf:
        """What the release would say had the linkage accuracy been declared higher by `change`."""
        return suppose_accuracy(change, self.linkage, self._inference, self.coef, self.std_err, self.error_parts)

    @property
    def tells_other_accuracies(self) -> bool:
        """Whether :meth:`with_accuracy` can be asked."""
        whole = self.has_intervals and not self.dropped and self.scaling.intercept
        return whole and self.linkage.model == "ELE" and self.linkage.accuracy is not None

    @property
    def has_intervals(self) -> bool:
        """Whether intervals, tests and models after release are available."""
        return self.released.variance is not None

    @cached_property
    def _inference(self) -> Inference:
        sums, variance = self.released.sums, self.released.variance
        if sums is None or variance is None:
            raise StudyError(
                "This release paid for no intervals. Fit with intervals=True and calibration='tight' to have them."
            )
        return Inference(sums, variance, self.scaling, self.dropped)

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
        return write_json(self)

    @classmethod
    def from_json(cls, text: str) -> Release:
        """Read a release back from JSON text, of this version or an earlier one."""
        try:
            return read_json(cls, text)
        except ValueError:
            raise_alone(StudyError("This is not a release that this version of dplinked can read."))

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
