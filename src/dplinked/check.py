"""Checks of the data before a release, for the steward. NOT FOR PUBLICATION: rows are read without noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dplinked.data.keys import key_text
from dplinked.errors import DplinkedError
from dplinked.fitting import key_columns
from dplinked.linkage import ELE, Matching, PrivacyUnit
from dplinked.study.study import Study
from dplinked.sums.engine import Source, open_source

WARNING = "FOR THE STEWARD ONLY, NOT FOR PUBLICATION: everything below is read from the rows without noise."


@dataclass(frozen=True)
class Finding:
    """One thing that the steward should know. If it is a `fault`, it stops a release; otherwise it may bias one."""

    fault: bool
    text: str


def check_study(study: Study, data: Any) -> list[Finding]:
    """Look for anything that would stop a release or bias it: null cells, clipped values, unknown levels, odd blocks."""
    findings: list[Finding] = []
    try:
        design, _ = study.prepare()
        keys = key_columns(study)
        rows = open_source(data, [*design.variables, *keys])
        study.check_count(rows.count)
        rows.require(design.variables, numeric=list(design.bounds))
        rows.require(keys)
        study.check_origins(design, rows.origins)
        if isinstance(study.linkage, Matching):
            rows.linked_rows(design, study.linkage, study.unit)
    except DplinkedError as fault:
        return [Finding(True, str(fault))]
    findings.append(Finding(False, f"{rows.count:,} rows; all declared columns are there."))
    if isinstance(study.linkage, Matching):
        findings.append(Finding(False, "The matching matrix is one of these rows, and is as declared."))
    for name, (low, high) in design.bounds.items():
        try:
            cells = rows.summarise_column(name, low, high)
        except DplinkedError as fault:
            findings.append(Finding(True, f"{name}: {fault}"))
            continue
        share = 100.0 / rows.count
        findings.append(
            Finding(
                False,
                f"{name}: {cells.missing * share:.2f} % null or not finite (replaced by {design.fill[name]:g}), "
                f"{cells.below * share:.2f} % below {low:g}, {cells.above * share:.2f} % above {high:g} (clipped)",
            )
        )
        if cells.middle is not None:
            findings.append(
                Finding(False, f"{name}: the middle 70 % lie in ({cells.middle[0]:g}, {cells.middle[1]:g})")
            )
    for name, levels in design.levels.items():
        counts = rows.count_keys(name)
        known = {key_text(level) for level in levels}
        unknown = {key: count for key, count in counts.items() if key not in known}
        findings.append(
            Finding(
                False,
                f"{name}: {sum(unknown.values()):,} rows with {len(unknown)} undeclared or null level(s) "
                f"count as the reference level {levels[0]!r}"
                + (f": {', '.join(map(repr, list(unknown)[:5]))}" if unknown else ""),
            )
        )
    if isinstance(study.linkage, ELE) and study.linkage.block is not None:
        findings += _check_blocks(rows, study.linkage.complete(study.unit), study.unit)
    return findings


def _check_blocks(rows: Source, linkage: ELE, unit: PrivacyUnit) -> list[Finding]:
    """Compare the blocks' sizes with the declared accuracies."""
    assert linkage.block is not None
    counts = rows.count_keys(linkage.block)
    sizes = np.array(list(counts.values()))
    findings = [
        Finding(
            False,
            f"{linkage.block}: {len(counts):,} blocks of {sizes.min():,} to {sizes.max():,} rows, "
            f"{int((sizes == 1).sum()):,} of one row",
        )
    ]
    other = {key: count for key, count in counts.items() if linkage.accuracy_of(key) is None}
    if other:
        text = f"{linkage.block}: {sum(other.values()):,} rows have a null key or one without accuracy: "
        fault = linkage.other_accuracy is None
        text += "declare an accuracy for other blocks" if fault else "they form the one other block"
        findings.append(Finding(fault, f"{text} ({', '.join(map(repr, list(other)[:5]))})"))
    for key, count in counts.items():
        accuracy = linkage.accuracy_of(key)
        if linkage.source != "estimated" and accuracy is not None and count > 1 and accuracy * count < 1.0 - 1e-9:
            text = f"{linkage.block}: block {key!r} has {count} rows but accuracy {accuracy:g} < 1/{count}"
            findings.append(Finding(unit.fixes_blocks, text))
    return findings
