"""Results that were released together: the documents that are written as text, as Markdown and as a page."""

from __future__ import annotations

from dplinked.release.answer import answer
from dplinked.release.coefficients import coefficient_rows
from dplinked.release.document import (
    describe_answer,
    describe_citation,
    describe_coefficients,
    describe_errors,
    describe_facts,
    describe_record,
)
from dplinked.release.promise import describe_budget, describe_linkage, describe_privacy
from dplinked.release.release import Release
from dplinked.release.releases import Releases
from dplinked.release.summary import (
    coefficient_table,
    describe_release,
    describe_statement,
    fit_name,
    say_notes,
    whole_table,
)
from dplinked.report.document import Code, Details, Document, Download, Facts, Lead, Notes, Part, Section, Table

_MOST = 4  # results that are said first
_TITLE = "Private linear regressions on linked data"
_START = "Everything on this page was computed from the private release itself or was declared before it was made. Reading it, sharing it and computing with it costs no further privacy."


def summary_document(releases: Releases) -> Document:
    """A table of coefficients of each result, where they differ, then the privacy statement."""
    facts, one = [*describe_release(_any(releases))], _any(releases)
    facts[0] = (facts[0][0], _in_short(releases.formula))
    return Document(
        _TITLE,
        [
            Section("", [Facts(facts, "The release in short", paired=True)]),
            *(
                Section(
                    _heading(releases, name), [coefficient_table(found, fit_name(found)), *_own_notes(releases, name)]
                )
                for name, found in releases.items()
            ),
            *_comparison(releases),
            Section("Notes", [Notes(_common_notes(releases)), Notes(describe_statement(one))]),
        ],
    )


def markdown_document(releases: Releases) -> Document:
    """The same, what errors are made of beside the coefficients."""
    one = _any(releases)
    return Document(
        _TITLE,
        [
            Section("", [Facts(describe_release(one)[1:], "The release in short")]),
            *(
                Section(_heading(releases, name), [whole_table(found), *_own_notes(releases, name)])
                for name, found in releases.items()
            ),
            *_comparison(releases),
            Section("Notes", [Notes(_common_notes(releases))]),
            Section("Privacy", [Notes(describe_statement(one))]),
        ],
        subject=_subject(releases),
    )


def report_document(releases: Releases) -> Document:
    """The whole report, as one page."""
    one = _any(releases)
    facts = [("Model", _subject(releases)), *describe_facts(one)[1:]]
    return Document(
        _TITLE,
        [
            Section("", [Lead(_answers(releases)), _together(releases)]),
            *(Section(_heading(releases, name), _describe_result(found)) for name, found in releases.items()),
            *_comparison(releases),
            Section("The release in short", [Facts(facts, "The release in short"), _START]),
            Section(
                "What the standard errors are made of",
                [
                    Details(_heading(releases, name), describe_errors(found, coefficient_rows(found)))
                    for name, found in releases.items()
                ],
            ),
            Section("What is promised, to whom, and under which conditions", describe_privacy(one)),
            Section("How the rows were linked, as declared", describe_linkage(one)),
            Section("The budget, before and after", describe_budget(one)),
            Section("How to cite", describe_citation(one)),
            Section("Tables to copy", _exports(releases), folded=True),
            Section(
                "For the record",
                [Details(_heading(releases, name), describe_record(found)) for name, found in releases.items()],
                folded=True,
            ),
        ],
        subject=_subject(releases),
    )


def _answers(releases: Releases) -> list[str]:
    """The first answer of each of the first results."""
    named = {_heading(releases, name): answer(one)[0] for name, one in releases.items()}
    said = [f"{name}: {sentence[0].lower()}{sentence[1:]}" for name, sentence in named.items()]
    return said[:_MOST]


def _describe_result(one: Release) -> list[Part]:
    """What one result says, the answer first."""
    rows = coefficient_rows(one)
    return [*describe_answer(one, rows), *describe_coefficients(one, rows)]


def _any(releases: Releases) -> Release:
    return next(iter(releases.values()))


def _subject(releases: Releases) -> str:
    return releases.formula if releases.by is None else f"{releases.formula}, by {releases.by}"


def _in_short(text: str) -> str:
    return text if len(text) <= 28 else text[:27] + "…"


def _heading(releases: Releases, name: str) -> str:
    return name if releases.by is None else f"{releases.by} = {name}"


def _together(releases: Releases) -> str:
    if releases.by is None:
        return f"The {len(releases)} outcomes were released together: the promise is that of all of them, and what is about the regressors alone was paid for once."
    return (
        f"The {len(releases)} levels of {releases.by} were released together: the promise is that of all of them. Each row counts in one level, so that together they cost what one does. "
        "Rows of other levels, and of levels that were not declared, count in none."
    )


def _comparison(releases: Releases) -> list[Section]:
    """Joint tests that slopes are the same in all levels; those of outcomes are in units of their own."""
    if releases.by is None or not releases.has_intervals:
        return []
    slopes = [name for name in _any(releases).coef if name != "Intercept"]
    tests = {name: releases.compare(name) for name in slopes}
    if len(slopes) > 1:
        tests["all slopes"] = releases.compare()
    rows = [[name, f"{one.statistic:.2f}", str(one.degrees), f"{one.p_value:.3f}"] for name, one in tests.items()]
    table = Table(["Coefficient", "chi2", "degrees", "P>chi2"], rows, "Tests that coefficients are the same")
    return [Section(f"Are slopes the same in all levels of {releases.by}?", [table])]


def _common_notes(releases: Releases) -> list[str]:
    """What has to be said beside the coefficients of all results alike."""
    first, *others = (say_notes(one) for one in releases.values())
    return [_together(releases), *(note for note in first if all(note in said for said in others))]


def _own_notes(releases: Releases, name: str) -> list[Part]:
    """What has to be said beside the coefficients of one result alone: of a level, about how many rows it has."""
    common = _common_notes(releases)
    own = [note for note in say_notes(releases[name]) if note not in common]
    return [Notes(own)] if own else []


def _exports(releases: Releases) -> list[Part]:
    return [
        Details(name, [Code(text, name), Download(text, file, kind)])
        for name, file, kind, text in (
            ("CSV, all digits", "coefficients.csv", "text/csv", releases.to_csv()),
            ("LaTeX, with booktabs", "coefficients.tex", "application/x-tex", releases.to_latex()),
        )
    ]
