"""The released result: frozen, complete, and made of released and declared values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from dplinked.errors import StudyError, plain_faults, raise_alone, shown
from dplinked.release.inference import LEVEL
from dplinked.release.json import read_json, write_json
from dplinked.release.result import Result
from dplinked.report.files import HTML, write_or_return
from dplinked.report.words import shorten

_SHOWN = 4  # coefficients in a repr


@dataclass(frozen=True, repr=False)
class Release(Result):
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
    shrunken
        With ``calibration="paper"`` and ``method="ssp"``, if the noisy matrix is unusable: coefficients drawn towards zero. Empty otherwise.
    """

    # --- as frames -------------------------------------------------------------------------------

    def tidy(self, level: float = LEVEL) -> Any:
        """One row for each coefficient, as broom has them: term, estimate, std_error, statistic, p_value, conf_low, conf_high.

        A pandas frame where pandas is installed, else an Arrow table. The statistic is the estimate over its standard error; interval and p-value belong to the test of
        :meth:`conf_int`. Without intervals there are the first three columns.
        """
        from dplinked.release.frames import make_frame, tidy_columns

        return make_frame(tidy_columns(self, level))

    def glance(self) -> Any:
        """One row about the release as a whole: its model, the number of rows, and the privacy budget."""
        from dplinked.release.frames import glance_columns, make_frame

        return make_frame(glance_columns(self))

    def cov_params(self) -> Any:
        """Covariance of the coefficients as a frame, with the squares of `std_err` on its diagonal."""
        from dplinked.release.frames import covariance_frame

        return covariance_frame(self)

    # --- as text ---------------------------------------------------------------------------------

    def summary(self) -> str:
        """Return the result as a table of text, with the privacy statement under it."""
        from dplinked.release.summary import summary_document
        from dplinked.report.text import write_text

        return write_text(summary_document(self))

    def to_markdown(self) -> str:
        """Return the result as Markdown."""
        from dplinked.release.summary import markdown_document
        from dplinked.report.markdown import write_markdown

        return write_markdown(markdown_document(self))

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        shown_first = [f"{name}={value:.4g} (s.e. {self.std_err[name]:.2g})" for name, value in self.coef.items()]
        more = [f"{len(shown_first) - _SHOWN} more"] if len(shown_first) > _SHOWN else []
        promise = f"epsilon={self.privacy.epsilon:g}, delta={self.privacy.delta:g}"
        return f"<Release {shorten(self.formula, 60)!r}: {', '.join([*shown_first[:_SHOWN], *more])}; {self.count:,} rows, {promise}>"

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
        from dplinked.release.document import report_document
        from dplinked.report.html import write_page

        return write_or_return(write_page(report_document(self)), path, HTML)

    def _repr_html_(self) -> str:
        """The release in a notebook."""
        from dplinked.release.document import notebook_document
        from dplinked.report.html import write_fragment

        return write_fragment(notebook_document(self))

    @overload
    def to_csv(self, path: None = None) -> str: ...
    @overload
    def to_csv(self, path: str | Path) -> None: ...
    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write the coefficients as CSV, or return it: name, coef, std_err, z, low, high, p_value, sampling, linkage, privacy."""
        from dplinked.release.coefficients import coefficients_csv

        return write_or_return(coefficients_csv(self), path, (".csv",))

    @overload
    def to_latex(self, path: None = None) -> str: ...
    @overload
    def to_latex(self, path: str | Path) -> None: ...
    def to_latex(self, path: str | Path | None = None) -> str | None:
        """Write the coefficients as a LaTeX table (booktabs), or return it."""
        from dplinked.release.coefficients import coefficients_latex

        return write_or_return(coefficients_latex(self), path, (".tex",))

    @overload
    def for_the_board(self, path: None = None) -> str: ...
    @overload
    def for_the_board(self, path: str | Path) -> None: ...
    def for_the_board(self, path: str | Path | None = None) -> str | None:
        """Write a text for an ethics board, filled in from the release, as a page or as Markdown (.html, .md), or return it as Markdown.

        It answers what NIST SP 800-226 and the five safes ask. What no release knows is left in square brackets.
        """
        from dplinked.release.board import board_document
        from dplinked.report.html import write_page
        from dplinked.report.markdown import write_markdown

        document = board_document(self)
        if path is None:
            return write_markdown(document) + "\n"
        page = Path(path).suffix.lower() in HTML
        return write_or_return(write_page(document) if page else write_markdown(document) + "\n", path, (*HTML, ".md"))

    def to_json(self) -> str:
        """Return the result as JSON text."""
        return write_json(self)

    @classmethod
    def from_json(cls, text: str) -> Release:
        """Read a release back from JSON text, of this version or an earlier one."""
        try:
            release = read_json(cls, text)
            release.check_sizes()
            return release
        except ValueError:
            raise_alone(StudyError("This is not a release that this version of dplinked can read."))

    @plain_faults
    def save(self, path: str | Path) -> None:
        """Write the release to a JSON file."""
        write_or_return(self.to_json() + "\n", path, (".json",))

    @classmethod
    @plain_faults
    def load(cls, path: str | Path) -> Release:
        """Read a release from a JSON file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except Exception:
            raise_alone(no_release(path))


def no_release(path: str | Path) -> StudyError:
    """One error whatever a file holds that is no release: it may be the data's. Another if there is none."""
    if not Path(path).exists():
        return StudyError(
            f"There is no file {shown(Path(path).name)} at the given path. Give the JSON file that 'fit --out' wrote."
        )
    return StudyError(
        f"{shown(Path(path).name)} is no release that this version of dplinked can read. Give the JSON file that 'fit --out' wrote."
    )
