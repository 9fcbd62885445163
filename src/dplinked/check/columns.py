"""What a check sees in each column: numbers, levels, blocks. FOR THE STEWARD, NOT FOR PUBLICATION."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.check.findings import Finding, fault, graded, look, note
from dplinked.check.texts import Texts, explain_texts
from dplinked.data.encoding import place_levels
from dplinked.data.look import as_options
from dplinked.errors import suggest
from dplinked.linkage import ELE, PrivacyUnit
from dplinked.report.words import list_names
from dplinked.study.design import Design
from dplinked.study.study import Study
from dplinked.sums.engine import Source
from dplinked.sums.types import CellFacts

Floats = NDArray[np.float64]

MISSING, CLIPPED, UNDECLARED = 0.05, 0.02, 0.01  # shares of rows from which on a second look is due
_NARROW = 1e-3  # of their bounds that the middle of the cells may fill without a second look
_SHOWN = 5
_FEW_COUNT = 100  # rows that count, below which a release tells next to nothing
_SMALL_WEIGHTS = (
    0.1  # mean weight, relative to the largest that is declared, below which a smaller one is worth a thought
)
_EMPTY = "Are they empty in the source, too? If an empty cell has a meaning, write it; if not, these rows tell nothing."
_CLIPPED = "If these are real values, widen the bounds to a round value that the subject suggests, not to the rows' own; if they are errors, clipping is right."
_CONSTANT = "Leave the column out of the formula, or look whether this is the right file."
_UNIT = "Write bounds in the unit of the column."
_SPELLING = "Spell levels as in the rows, declare those that are missing, or mend the rows."
_ABSENT = "Take a level that nobody has out of the study, unless it is spelled otherwise in the rows."


@dataclass(frozen=True)
class NumbersSeen:
    """A column of numbers: cells without a number, those beyond the bounds, and where most of them lie."""

    name: str
    bounds: tuple[float, float]
    cells: CellFacts
    texts: Texts

    @property
    def empty(self) -> int:
        """Rows without any value."""
        return self.cells.missing - self.texts.rows


@dataclass(frozen=True)
class LevelsSeen:
    """A column of levels: how often each declared one and each undeclared one occurs; None stands for empty cells."""

    name: str
    declared: Mapping[str, int]
    undeclared: Mapping[str | None, int]


def see_numbers(rows: Source, name: str, bounds: tuple[float, float]) -> NumbersSeen:
    """Read a column of numbers."""
    cells = rows.summarise_column(name, *bounds)
    return NumbersSeen(name, bounds, cells, explain_texts(rows.texts_among_numbers(name) if cells.missing else {}))


def judge_numbers(
    seen: NumbersSeen, study: Study, design: Design, count: int, *, text_file: bool, advice: Mapping[str, Any]
) -> list[Finding]:
    """Say what is odd about a column of numbers. What the `advice` about its file tells already is not said again."""
    name, (low, high), cells = seen.name, seen.bounds, seen.cells
    filled = f"replaced by {design.fill[name]:g}"
    left_out = f"left out by the second stage, else {filled}" if design.curve is None else "left out"
    lost = left_out if study.drops_missing else filled
    if design.counting is not None and name in design.counting.numeric:
        lost = "such rows do not count"
    found = []
    if seen.empty:
        found.append(
            graded(
                seen.empty / count,
                f"{name}: {_percent(seen.empty, count)} of the cells are empty ({lost}).",
                _EMPTY,
                much=MISSING,
            )
        )
    if seen.texts.rows:
        text = (
            f"{name} is declared as numbers and holds texts, which count as missing: {'; '.join(seen.texts.sentences)}."
        )
        told = {key: mark for key, mark in seen.texts.options.items() if key not in advice}
        only_missing = seen.texts.rows == seen.texts.for_missing
        found.append(
            graded(seen.texts.rows / count, text + _remedy(told, text_file), much=MISSING if only_missing else 0.0)
        )
    outside = cells.below + cells.above
    if outside:
        parts = [
            f"{_percent(number, count)} {side} {end:g}"
            for number, side, end in ((cells.below, "below", low), (cells.above, "above", high))
            if number
        ]
        found.append(graded(outside / count, f"{name}: {' and '.join(parts)}, clipped to it.", _CLIPPED, much=CLIPPED))
    if cells.ends is not None and cells.ends[0] == cells.ends[1] and name not in (study.exposure, study.weights):
        found.append(look(f"{name}: all cells are {cells.ends[0]:g}, so nothing can be learnt from it.", _CONSTANT))
    elif cells.middle is not None and outside < CLIPPED * count:
        width = cells.middle[1] - cells.middle[0]
        if 0.0 < width < _NARROW * (high - low):
            found.append(
                look(
                    f"{name}: the middle 70 % of the cells fill {100 * width / (high - low):.2g} % of the bounds ({low:g}, {high:g}). Are both in the same unit?",
                    _UNIT,
                )
            )
    return found


def _remedy(options: Mapping[str, Any], text_file: bool) -> str:
    """What to do about texts that are numbers by other marks."""
    if not options:
        return ""
    if text_file:
        return " Other columns seem to be written otherwise: write plain numbers here, too."
    return f" If the file was linked, link again with {as_options(options)}; else write plain numbers."


def see_levels(rows: Source, name: str, levels: Sequence[Any]) -> LevelsSeen:
    """Count the levels of a column."""
    counts = rows.count_keys(name)
    places = place_keys(counts, levels)
    declared = dict.fromkeys(map(str, levels), 0)
    names = list(declared)
    for key, place in places.items():
        if place >= 0:
            declared[names[place]] += counts[key]
    undeclared = {key: counts[key] for key, place in places.items() if place < 0}
    return LevelsSeen(name, declared, dict(sorted(undeclared.items(), key=lambda item: -item[1])))


def judge_levels(seen: LevelsSeen, study: Study, design: Design, count: int) -> list[Finding]:
    """Say what is odd about a column of levels."""
    name, undeclared = seen.name, dict(seen.undeclared)
    reference = next(iter(seen.declared))
    nulls = undeclared.pop(None, 0)
    found = []
    if undeclared:
        listed = [
            f"{key!r} ({number:,} rows{'; ' + hint.strip() if (hint := suggest(key, seen.declared)) else ''})"
            for key, number in list(undeclared.items())[:_SHOWN]
        ]
        more = f" and {len(undeclared) - _SHOWN} more" if len(undeclared) > _SHOWN else ""
        share = sum(undeclared.values()) / count
        modelled = any(name == used for column in (*design.columns, design.response) for used, _ in column.cell)
        counted = f"count as {reference!r}" if modelled else "fulfil no condition"
        counted = "are a stratum of their own" if name in design.strata_alone else counted
        text = f"{name}: {sum(undeclared.values()):,} rows have a level that is not declared and {counted}: {', '.join(listed)}{more}."
        found.append(graded(share, text, _SPELLING, much=UNDECLARED))
    if nulls and name in design.strata_alone:
        text = f"{name}: {nulls:,} rows without a level are a stratum of their own, as those of levels that are not declared."
        found.append(graded(nulls / count, text, much=UNDECLARED))
    elif nulls:
        counted = f"count as {reference!r}"
        left_out = f"are left out by the second stage, else {counted}" if design.curve is None else "are left out"
        text = f"{name}: {nulls:,} rows without a level {left_out if study.drops_missing else counted}."
        if study.drops_missing and design.curve is not None and name in design.response_variables:
            text += f" If that means {reference!r}, declare missing='fill'."
        found.append(graded(nulls / count, text, _EMPTY, much=MISSING))
    if absent := [repr(level) for level, number in seen.declared.items() if not number]:
        found.append(look(f"{name}: declared, but on no row: {list_names(absent)}.", _ABSENT))
    return found


def place_keys(keys: Iterable[str | None], levels: Sequence[Any]) -> dict[str | None, int]:
    """Which level each key is, -1 for those that are none."""
    import pyarrow as pa

    listed = list(keys)
    return dict(zip(listed, place_levels(pa.array(listed, pa.large_string()), levels).tolist(), strict=True))


def see_clusters(rows: Source, name: str) -> Finding:
    """How many clusters there are, and of how many rows."""
    sizes = np.array(list(rows.count_keys(name).values()))
    return note(f"{name}: {sizes.size:,} clusters of {sizes.min():,} to {sizes.max():,} rows.")


def see_counted(study: Study, rows: Source) -> list[Finding]:
    """For how many rows a study's condition holds, and as how many alike those that weigh unequally count (Kish's number). A release keeps both private."""
    found, number = [], float(rows.count)
    if study.where is not None:
        number = count_rows(study, rows)
        said = f"{study.where}: {number:,.0f} rows count ({_percent(round(number), rows.count)})."
        if number < _FEW_COUNT:
            said += " With so few, a release tells next to nothing."
        found.append((fault if number == 0 else look if number < _FEW_COUNT else note)(said))
    if study.weights is not None and number > 0:
        total, squares, _ = _moments(study, rows)
        if total <= 0.0:
            return [*found, fault(f"{study.weights}: no row that counts has a weight above 0.")]
        largest = study.bounds[study.weights][1]
        mean = total / max(number, 1.0)
        said = f"{study.weights}: rows that count weigh {mean * largest:.3g} on average, and tell as much as {total**2 / squares:,.0f} of equal weights."
        wide = mean < _SMALL_WEIGHTS
        remedy = f"The largest weight that is declared, {largest:g}, is {1.0 / mean:.0f} times that, and noise is as large as for it: declare a smaller one, unless few large weights are what matters; larger cells are clipped to it."
        found.append(look(said, remedy) if wide else note(said))
    return found


def judge_sizes(told: str, sizes: Mapping[str, int]) -> Finding:
    """What is told of the levels of `by`, by how many rows each has that count."""
    few = [repr(level) for level, size in sizes.items() if size < _FEW_COUNT]
    if not few:
        return note(told)
    remedy = f"Too few rows to tell anything of: {list_names(few)}. Join levels, or leave them out of the study."
    return (fault if not any(sizes.values()) else look)(told, remedy)


def count_rows(study: Study, rows: Source) -> float:
    """For how many rows a study's condition holds."""
    return float(_moments(replace(study, weights=None), rows)[0])


def _moments(study: Study, rows: Source) -> Floats:
    """Sums of what rows count, relative to the largest weight, of its square and of its fourth power."""
    return rows.linked_rows(study.prepare()[0], study.linkage, study.unit).weight_moments().sums


def see_strata(seen: LevelsSeen) -> list[Finding]:
    """How many rows strata have, and which have fewer than two: nothing varies within them."""
    sizes = {name: number for name, number in seen.declared.items() if number}
    found = (
        [note(f"{seen.name}: {len(sizes):,} strata of {min(sizes.values()):,} to {max(sizes.values()):,} rows.")]
        if sizes
        else []
    )
    if few := [repr(name) for name, number in sizes.items() if number == 1]:
        found.append(
            look(
                f"{seen.name}: strata of a single row: {list_names(few)}.",
                "Join them with others: nothing varies within them.",
            )
        )
    return found


def judge_blocks(rows: Source, linkage: ELE, unit: PrivacyUnit) -> list[Finding]:
    """Compare the blocks' sizes with the declared accuracies."""
    assert linkage.block is not None
    counts = rows.count_keys(linkage.block)
    sizes = np.array(list(counts.values()))
    findings = [
        note(
            f"{linkage.block}: {len(counts):,} blocks of {sizes.min():,} to {sizes.max():,} rows, {int((sizes == 1).sum()):,} of one row."
        )
    ]
    other = {key: count for key, count in counts.items() if linkage.accuracy_of(key) is None}
    if other:
        listed = ", ".join(f"{key!r} ({count:,} rows)" for key, count in list(other.items())[:_SHOWN])
        text = f"{linkage.block}: {sum(other.values()):,} rows have a null key or one without accuracy: {listed}."
        if linkage.other_accuracy is None:
            findings.append(fault(f"{text} Declare their accuracy, or one for all others: other = …."))
        else:
            share = sum(count for key, count in other.items() if key is not None) / rows.count
            findings.append(graded(share, f"{text} They form the one other block.", much=MISSING, most=2.0))
    for key, count in counts.items():
        accuracy = linkage.accuracy_of(key)
        if linkage.source != "estimated" and accuracy is not None and count > 1 and accuracy * count < 1.0 - 1e-9:
            text = f"{linkage.block}: block {key!r} has {count} rows but accuracy {accuracy:g} < 1/{count}."
            findings.append(fault(text) if unit.fixes_blocks else note(text))
    return findings


def _percent(number: int, count: int) -> str:
    return f"{100.0 * number / count:.2f} %"
