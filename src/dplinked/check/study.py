"""A study and its data, looked at before a release. FOR THE STEWARD, NOT FOR PUBLICATION: rows are read without noise."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dplinked.check.clipping import check_clipping
from dplinked.check.columns import (
    LevelsSeen,
    NumbersSeen,
    count_rows,
    judge_blocks,
    judge_levels,
    judge_numbers,
    judge_sizes,
    see_clusters,
    see_counted,
    see_levels,
    see_numbers,
    see_strata,
)
from dplinked.check.document import describe_check
from dplinked.check.findings import Finding, fault, look, note, verdict_of
from dplinked.data.files import find_files
from dplinked.data.format import PLAIN
from dplinked.data.keys import number
from dplinked.data.look import as_toml, in_words, look_at_data
from dplinked.data.sources import Progress, is_path
from dplinked.errors import DplinkedError, list_columns, plain_faults, shown, suggest
from dplinked.fitting import check_ids, key_columns
from dplinked.linkage import ELE, Matching
from dplinked.linkage.compared import say_compared
from dplinked.report.document import Document
from dplinked.report.files import HTML, write_or_return
from dplinked.report.html import write_page
from dplinked.report.text import write_text
from dplinked.report.words import list_names
from dplinked.study.design import Design
from dplinked.study.origins import check_origins
from dplinked.study.study import Study
from dplinked.sums.engine import Source, open_source
from dplinked.sums.types import CellFacts

_FEW_COUNTS = 0.02  # of all counts may lie above the largest without a word


@dataclass(frozen=True, repr=False)
class Check:
    """What a look at a study's data found. FOR THE STEWARD, NOT FOR PUBLICATION.

    Attributes
    ----------
    formula
        The study's formula.
    count
        Number of rows; None if they could not be opened.
    numbers, levels
        What each column holds.
    findings
        What the steward should know, each with a grade.
    advice
        What to declare about how the file is written, where it seems to be written otherwise.
    """

    formula: str
    count: int | None
    numbers: tuple[NumbersSeen, ...]
    levels: tuple[LevelsSeen, ...]
    findings: tuple[Finding, ...]
    advice: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<Check {shown(self.formula)}: {self.verdict}>"

    @property
    def verdict(self) -> str:
        """``"ready"``, ``"look again"`` or ``"not usable"``, by the worst finding. It is the steward's: nothing of it may decide a release."""
        return verdict_of(self.findings)

    def document(self) -> Document:
        """The check as a document."""
        return describe_check(self)

    def summary(self) -> str:
        """The check as text."""
        return write_text(self.document())

    @plain_faults
    def to_html(self, path: str | Path | None = None) -> str | None:
        """The check as a page: written to a file, or returned."""
        return write_or_return(write_page(self.document()), path, HTML)


@plain_faults
def check_study(study: Study, data: Any, *, progress: Progress | None = None) -> Check:
    """Look for anything that would stop a release or bend it: missing cells, clipped values, unknown levels, odd blocks, texts where numbers are declared.

    Parameters
    ----------
    study
        The study.
    data
        Its rows, as :func:`dplinked.fit_study` takes them.
    progress
        Function that is called with what is being looked at, and how many things of how many were.

    Returns
    -------
    Check
        What was seen, ending in a verdict: ready, look again or not usable.

    Privacy
    -------
    None: rows are read without noise, for the steward alone.
    """
    tell = progress or (lambda step, done, total: None)
    tell("How the files are written", 0, 0)
    looks = look_at_data(data) if is_path(data) else []
    declared = _declared_format(data)
    advice = next((told for one in looks if (told := one.advice(declared))), {})
    findings = _judge_files(advice)
    try:
        rows = _open(study, data, progress)
    except DplinkedError as problem:
        text = re.sub(r" The steward's 'check' (shows|lists) .*", "", str(problem))
        sheets = [f" There are {list_names([repr(name) for name in one.sheets])}." for one in looks if one.sheets]
        return Check(study.formula, None, (), (), (fault(text + "".join(sheets)), *findings), advice)
    if study.parts:
        return _check_parts(study, rows, findings, advice)
    design, _ = study.prepare()
    total = len(design.variables) + 2
    findings = [note(f"{rows.count:,} rows; all declared columns are there."), *findings]
    findings += map(note, say_compared(study.compared_variables(rows.origins.compared)))
    if isinstance(study.linkage, Matching):
        findings.append(note("The matching matrix is one of these rows, and is as declared."))
    numbers: list[NumbersSeen] = []
    for name, bounds in design.bounds.items():
        tell(f"The column {name}", len(numbers), total)
        try:
            numbers.append(see_numbers(rows, name, bounds))
        except DplinkedError as problem:
            findings.append(fault(f"{name}: {problem}"))
    levels: list[LevelsSeen] = []
    for name, declared_levels in design.levels.items():
        tell(f"The column {name}", len(design.bounds) + len(levels), total)
        levels.append(see_levels(rows, name, declared_levels))
    for seen in numbers:
        findings += judge_numbers(seen, study, design, rows.count, text_file=_is_text(data), advice=advice)
    facts = {seen.name: seen.cells for seen in numbers}
    if design.curve is not None:
        findings += _judge_outcome(design, facts, levels, rows)
    findings += see_counted(study, rows)
    tell("What clipping does", total - 2, total)
    findings += check_clipping(study, rows, facts)
    for kind in levels:
        findings += judge_levels(kind, study, design, rows.count)
    tell("Blocks and clusters", total - 1, total)
    if isinstance(study.linkage, ELE) and study.linkage.block is not None:
        findings += judge_blocks(rows, study.linkage.complete(study.unit), study.unit)
    if study.cluster is not None:
        findings.append(see_clusters(rows, study.cluster))
    findings += [finding for kind in levels if kind.name == design.strata for finding in see_strata(kind)]
    return Check(study.formula, rows.count, tuple(numbers), tuple(levels), tuple(findings), advice)


def _check_parts(study: Study, rows: Source, findings: list[Finding], advice: Mapping[str, Any]) -> Check:
    """What is found of all results of a study, each thing once; of levels, how many rows each has."""
    if study.by is None:
        checks = [check_study(part, rows) for part in study.parts.values()]
    else:
        checks = [check_study(next(iter(study.parts.values())), rows)]
    numbers = {seen.name: seen for one in checks for seen in one.numbers}
    levels = {seen.name: seen for one in checks for seen in one.levels}
    found = dict.fromkeys([*findings, *(finding for one in checks for finding in one.findings)])
    if study.by is not None:
        seen = see_levels(rows, study.by, list(study.parts))
        shown_levels = ", ".join(f"{level!r} {size:,}" for level, size in seen.declared.items())
        none = rows.count - sum(seen.declared.values())
        told = f"{study.by}: rows of each level: {shown_levels}; {none:,} rows of no declared level count in none."
        sizes = dict(seen.declared)
        if study.where is not None:
            sizes = {level: round(count_rows(part, rows)) for level, part in study.parts.items()}
            told += f" Of these count, as {study.where}: {', '.join(f'{level!r} {size:,}' for level, size in sizes.items())}."
        own = see_counted(next(iter(study.parts.values())), rows)  # what is seen of one level is not said of all
        found = {one: None for one in found if one not in own} | {judge_sizes(told, sizes): None}
    return Check(study.formula, rows.count, tuple(numbers.values()), tuple(levels.values()), tuple(found), advice)


def _open(study: Study, data: Any, progress: Progress | None) -> Source:
    """Open the rows, and refuse what a release would refuse before it is charged."""
    design, _ = study.prepare()
    keys = key_columns(study)
    rows = open_source(data, [*design.variables, *keys], progress=progress)
    for name in (
        *design.variables,
        *keys,
    ):  # a release does not list the columns of text files, whose first line may be a row
        if name not in rows.columns:
            known = suggest(name, rows.columns) + list_columns(rows.columns)
            if any(math.isfinite(number(column)) for column in rows.columns):
                known += " Some of these are numbers: is there a line with the columns' names?"
            raise DplinkedError(f"Column {shown(name)} is not in the data.{known}")
    study.check_count(rows.count)
    rows.require(design.variables, numeric=list(design.bounds))
    rows.require(keys)
    check_origins(study, design, rows.origins)
    if isinstance(study.linkage, Matching):
        rows.linked_rows(design, study.linkage, study.unit)
    check_ids(study, rows)
    return rows


def _declared_format(data: Any) -> Any:
    """How the files are declared to be written."""
    try:
        return find_files(data).format if is_path(data) else PLAIN
    except DplinkedError:
        return PLAIN


def _is_text(data: Any) -> bool:
    """Whether rows are read from a text file, for which marks of numbers can be declared."""
    try:
        return is_path(data) and find_files(data).kind == "csv"
    except DplinkedError:
        return False


def _judge_files(advice: Mapping[str, Any]) -> list[Finding]:
    """Say how files seem to be written, where the study says otherwise."""
    found = []
    if advice:
        wrong = fault if "separator" in advice else look
        written = as_toml(advice).replace("\n", ", ")
        found.append(wrong(f"The file seems to be written with {in_words(advice)}.", f"Write into [data]: {written}."))
    return found


def _judge_outcome(
    design: Design, facts: Mapping[str, CellFacts], levels: list[LevelsSeen], rows: Source
) -> list[Finding]:
    """Say how often events happen, and how many counts lie beyond the largest."""
    found, (response,) = [], tuple(design.response_variables)
    if response in design.levels:
        event = design.levels[response][1]
        happened = list(next(seen for seen in levels if seen.name == response).declared.values())[1]
        found.append(
            note(
                f"{response}: {happened:,} rows ({100.0 * happened / rows.count:.2f} %) with {event!r}, the level that is modelled."
            )
        )
        if not 0 < happened < rows.count:
            found.append(
                fault(
                    f"{response}: the outcome is the same on all rows, so there is nothing to model.",
                    "Is the level spelled as in the data?",
                )
            )
    elif facts.get(response) is not None and facts[response].above > _FEW_COUNTS * rows.count:
        found.append(
            look(
                f"{response}: more than {100 * _FEW_COUNTS:.0f} % of the counts lie above the largest. The model allows for clipped counts as far as they follow Poisson's law, and counts "
                "with a long tail do not: declare a larger one, as a release looks for a smaller one by itself where it can."
            )
        )
    return found
