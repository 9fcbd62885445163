"""Several released results as one: of outcomes, or of levels."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_faults, raise_alone, shown, suggest
from dplinked.estimate.hypotheses import TestResult, parse_hypotheses
from dplinked.estimate.intervals import fit_restricted, solve_evidence
from dplinked.estimate.joint import join_evidence, share_variance
from dplinked.ledger.events import LedgerEntry
from dplinked.release.coefficients import coefficients_csv, coefficients_latex
from dplinked.release.contents import Privacy
from dplinked.release.inference import LEVEL, chi2_tail
from dplinked.release.json import read_json, write_json
from dplinked.release.release import Release, no_release
from dplinked.report.files import HTML, write_or_return

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Releases(Mapping[str, Release]):
    """Differentially private regression results that were released together: a :class:`Release` of each outcome, or of each level of a column.

    It is a mapping: ``releases["savings"].conf_int()``. The promise is that of all of them together, and each result repeats it.

    Attributes
    ----------
    formula
        The formula as it was declared.
    by
        The column whose levels they are of; None if they are of outcomes.
    results
        The results, by outcome or level.
    """

    formula: str
    by: str | None
    results: dict[str, Release]

    def __getitem__(self, name: str) -> Release:
        if name not in self.results:
            raise KeyError(f"There is no {shown(name)}.{suggest(name, self.results)}")
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def privacy(self) -> Privacy:
        """What is promised for all results together."""
        return self._any.privacy

    @property
    def ledger(self) -> LedgerEntry | None:
        """Where the release was charged, once for all results; None without a ledger."""
        return self._any.ledger

    @property
    def has_intervals(self) -> bool:
        """Whether intervals and tests are available."""
        return self._any.has_intervals

    @property
    def _any(self) -> Release:
        return next(iter(self.results.values()))

    # --- across results --------------------------------------------------------------------------

    @plain_faults
    def test(self, hypothesis: str | Sequence[str]) -> TestResult:
        """Test linear hypotheses across results jointly, like ``"consumption: income = savings: income"``; coefficients are called by the result and their name.

        Levels have rows of their own, so their errors are independent but for that of the accuracy, which is in the test. Errors of outcomes hang together in a way that is not
        released: the test allows for the worst of it, so it rejects a true hypothesis no more often than it says, and may overlook a false one. A difference of two outcomes as
        an outcome of its own, ``cbind(a, b, I(a - b))``, is tested exactly.
        """
        names = {key: [f"{key}: {name}" for name in one.scaling.names] for key, one in self.results.items()}
        left, right, text = parse_hypotheses(hypothesis, [name for listed in names.values() for name in listed])
        ends = np.cumsum([len(listed) for listed in names.values()])[:-1]
        rows = dict(zip(names, np.split(left, ends, axis=1), strict=True))
        used = [key for key in names if rows[key].any()]
        inferences = [self.results[key]._inference for key in used]
        maps = [one.scaling.to_user() for one in inferences]
        scaled = [rows[key] @ matrix for key, (matrix, _) in zip(used, maps, strict=True)]
        offset = sum(rows[key] @ shift for key, (_, shift) in zip(used, maps, strict=True))
        factors = [1.0] * len(used)
        if self.by is None:
            factors = share_variance([one.solution.covariance for one in inferences], scaled)
        evidence = join_evidence([one.evidence for one in inferences], factors)
        asked = np.concatenate(scaled, axis=1)
        whole = np.vstack([evidence.left, asked])
        if np.linalg.matrix_rank(whole / np.linalg.norm(whole, axis=1, keepdims=True)) < len(whole):
            raise StudyError(f"The hypotheses {shown(text)} contradict or repeat each other, or a dropped column.")
        solution = solve_evidence(evidence)
        _, distance = fit_restricted(evidence, solution.beta, asked, right - offset)
        statistic = max(0.0, distance - solution.distance)
        return TestResult(text, statistic, len(left), chi2_tail(statistic, len(left)))

    def compare(self, *names: str) -> TestResult:
        """Test that the named coefficients, or all slopes, are the same in all results."""
        known = self._any.scaling.names
        for name in names:
            if name not in known:
                raise StudyError(f"There is no coefficient {shown(name)}.{suggest(name, known)}")
        first, *others = self.results
        kept = names or [name for name in known if name != "Intercept"]
        return self.test([f"{first}: {name} = {other}: {name}" for name in kept for other in others])

    # --- as frames -------------------------------------------------------------------------------

    def tidy(self, level: float = LEVEL) -> Any:
        """One row for each coefficient of each result: the outcome or level, then as :meth:`Release.tidy`."""
        from dplinked.release.frames import stacked_frame, tidy_columns

        return stacked_frame(self._part, {name: tidy_columns(one, level) for name, one in self.results.items()})

    def glance(self) -> Any:
        """One row about each result: the outcome or level, then as :meth:`Release.glance`. The privacy budget on each row is that of all of them together."""
        from dplinked.release.frames import glance_columns, stacked_frame

        return stacked_frame(self._part, {name: glance_columns(one) for name, one in self.results.items()})

    @property
    def _part(self) -> str:
        """What frames call the column that names the result."""
        return "outcome" if self.by is None else "level"

    # --- as text, pages and tables ---------------------------------------------------------------

    def summary(self) -> str:
        """Return all results as tables of text, with the privacy statement under them."""
        from dplinked.release.releases_document import summary_document
        from dplinked.report.text import write_text

        return write_text(summary_document(self))

    def to_markdown(self) -> str:
        """Return all results as Markdown."""
        from dplinked.release.releases_document import markdown_document
        from dplinked.report.markdown import write_markdown

        return write_markdown(markdown_document(self))

    def __str__(self) -> str:
        return self.summary()

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> None: ...
    def to_html(self, path: str | Path | None = None) -> str | None:
        """Write the report of all results as one HTML page, or return it: it needs nothing else, and loads nothing.

        Privacy
        -------
        Nothing is spent: the page is made of released and declared values only.
        """
        from dplinked.release.releases_document import report_document
        from dplinked.report.html import write_page

        return write_or_return(write_page(report_document(self)), path, HTML)

    def _repr_html_(self) -> str:
        """All results in a notebook."""
        from dplinked.release.releases_document import markdown_document
        from dplinked.report.html import write_fragment

        return write_fragment(markdown_document(self))

    @overload
    def to_csv(self, path: None = None) -> str: ...
    @overload
    def to_csv(self, path: str | Path) -> None: ...
    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write all coefficients as CSV, or return it: the outcome or level, then as :meth:`Release.to_csv`."""
        return write_or_return(_join_csv(self), path, (".csv",))

    @overload
    def to_latex(self, path: None = None) -> str: ...
    @overload
    def to_latex(self, path: str | Path) -> None: ...
    def to_latex(self, path: str | Path | None = None) -> str | None:
        """Write a LaTeX table (booktabs) of the coefficients of each result, or return them."""
        tables = [coefficients_latex(self._captioned(name)) for name in self.results]
        return write_or_return("\n".join(tables), path, (".tex",))

    def _captioned(self, name: str) -> Release:
        """A result whose formula says which level it is of."""
        one = self.results[name]
        return one if self.by is None else replace(one, formula=f"{one.formula}, {self.by} = {name}")

    def for_the_board(self, path: str | Path | None = None) -> NoReturn:
        """Refuse: a text for an ethics board is about one result. Each of them can write its own, which tells the promise of all together."""
        raise StudyError(
            "A text for a board is about one result, and these are several. Write one of each: "
            + ", ".join(f"releases[{shown(name)}].for_the_board()" for name in self.results)
            + "."
        )

    def to_json(self) -> str:
        """Return all results as JSON text."""
        return write_json(self)

    @classmethod
    def from_json(cls, text: str) -> Releases:
        """Read results back from JSON text."""
        try:
            releases = read_json(cls, text)
            if not releases.results:
                raise ValueError("no results")
            for one in releases.results.values():
                one.check_sizes()
            return releases
        except ValueError:
            raise_alone(StudyError("These are no releases that this version of dplinked can read."))

    @plain_faults
    def save(self, path: str | Path) -> None:
        """Write all results to one JSON file."""
        write_or_return(self.to_json() + "\n", path, (".json",))

    @classmethod
    @plain_faults
    def load(cls, path: str | Path) -> Releases:
        """Read results from a JSON file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except Exception:
            raise_alone(no_release(path))


def _join_csv(releases: Releases) -> str:
    """The rows of all results, each with the outcome or level that it is of."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for place, (name, one) in enumerate(releases.items()):
        header, *rows = csv.reader(io.StringIO(coefficients_csv(one)))
        if place == 0:
            writer.writerow(["outcome" if releases.by is None else releases.by, *header])
        writer.writerows([name, *row] for row in rows)
    return file.getvalue()


def change_all(release: Release | Releases, change: Callable[[Release], Release]) -> Release | Releases:
    """A release, or each of several results, changed."""
    if isinstance(release, Release):
        return change(release)
    return replace(release, results={name: change(one) for name, one in release.items()})


def forms_of(release: Release | Releases) -> dict[str, Callable[[], str]]:
    """The forms in which a release can be written, by the ending of a file's name."""
    return {
        **dict.fromkeys(HTML, release.to_html),
        ".md": lambda: release.to_markdown() + "\n",
        ".tex": release.to_latex,
        ".csv": release.to_csv,
        ".txt": lambda: release.summary() + "\n",
        ".json": lambda: release.to_json() + "\n",
    }


def read_release(text: str) -> Release | Releases:
    """Read a release, or several results that were released together, from JSON text."""
    try:
        return Release.from_json(text)
    except StudyError:
        return Releases.from_json(text)


def load_release(path: str | Path) -> Release | Releases:
    """Read a release, or several results that were released together, from a JSON file."""
    try:
        return read_release(Path(path).read_text(encoding="utf-8"))
    except Exception:
        raise_alone(no_release(path))
