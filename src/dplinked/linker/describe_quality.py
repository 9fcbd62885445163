"""Parts of the quality report on how good links are: accuracies, what errors in them do, likeness of wrong links, and subgroups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dplinked.linker.facts import (
    LinkageFacts,
    decimal,
    group_name,
    order_groups,
    signed,
)
from dplinked.linker.quality import AccuracyEstimate
from dplinked.linker.resemblance import Resemblance
from dplinked.linker.rules import UNLINKED
from dplinked.linker.subgroups import LevelQuality, say_difference
from dplinked.report import charts
from dplinked.report.document import Chart, Part, Table
from dplinked.report.numbers import format_percent

_STEP = 0.02  # an error in the accuracy that is easily made
_ALL = "overall"
_INTERVALS = {"audit": "95 % interval", "simulation": "spread"}  # that of probabilities is no confidence interval
_NOT_SHOWN = "Links were drawn in secret and checked. What was found stands in no report: it tells of who was drawn, and whether to release it must not depend on it."


def describe_answer(linked: LinkageFacts) -> list[str]:
    """How good the links are, in a few sentences."""
    n, without = linked.rows[0], int((linked.links.right < 0).sum())
    kept = f" {without:,} of {n:,} rows found no partner." if without else f" All {n:,} rows found a partner."
    if not linked.estimates:
        said = _NOT_SHOWN if linked.secret else "Nothing tells yet how good these links are: no links were checked."
        return [said + kept]
    best = linked.estimates[0]
    value, low, high = best.overall
    bounded = math.isfinite(low) and math.isfinite(high)
    named = _INTERVALS.get(best.method, "interval")
    known = f" ({named} {format_percent(low)} to {format_percent(high)})" if bounded else ""
    if best.checked is not None:
        rests = f"as {int(best.checked.sum()):,} checked links tell."
    else:
        rests = (
            f"as the method {best.method} estimates. Nobody has checked links yet, and no method sees its own mistakes."
        )
    doubt = " The estimate is doubtful: have links checked." if best.doubtful and best.checked is None else ""
    return [f"About {format_percent(value)} of the rows have the right partner{known}, {rests}{doubt}{kept}"]


def describe_accuracy(linked: LinkageFacts) -> list[Part]:
    hidden: list[Part] = [_NOT_SHOWN] if linked.secret else []
    if not linked.estimates:
        return hidden or [
            "Nothing tells how good these links are: no pair came with evidence, and no links were checked. "
            "Have some of them checked before anything is fitted to them."
        ]
    strata, order, found = linked.strata, order_groups(linked), linked.estimates
    drawn = [k for k in order if strata.names[k] != UNLINKED]
    names = [*(group_name(strata.names[k]) for k in drawn), _ALL]
    series = [
        charts.Series(
            one.method, *(np.append(part[drawn], whole) for part, whole in zip(parts, one.overall, strict=True))
        )
        for one in found
        for parts in [(one.accuracy, one.low, one.high)]
    ]
    rows = [(group_name(strata.names[k]), *_accuracy_cells(found, k)) for k in order]
    rows.append((_ALL, *_accuracy_cells(found, None)))
    header = ["group"]
    for one in found:
        header += (
            [one.method]
            + [_INTERVALS.get(one.method, "interval")] * _has_interval(one)
            + ["checked", "correct"] * (one.checked is not None)
        )
    parts: list[Part] = [Chart(lambda: charts.accuracy_chart(names, series))]
    parts.append(Table(tuple(header), rows, "Accuracy per group"))
    parts.append(f"The linkage model of these links takes the figures of the method {found[0].method}.")
    parts += hidden
    parts += [f"{one.method} assumes {one.assumes}." for one in found]
    parts += [sentence for one in found for sentence in one.says]
    parts += [
        f"DOUBTFUL: {one.method} does not tell the accuracy to .02. Have links checked."
        for one in found
        if one.doubtful and one.checked is None
    ]
    return [*parts, *_describe_difference(linked, drawn)]


def _accuracy_cells(found: Sequence[AccuracyEstimate], group: int | None) -> list[str]:
    """One group's cells by every method, or those of all rows together."""
    cells = []
    for one in found:
        value, low, high = (
            one.overall if group is None else (float(part[group]) for part in (one.accuracy, one.low, one.high))
        )
        cells.append(decimal(value))
        if _has_interval(one):
            cells.append(f"[{decimal(low)}, {decimal(high)}]" if math.isfinite(low) and math.isfinite(high) else "-")
        if one.checked is not None and one.correct is not None:
            cells += [f"{int(part.sum() if group is None else part[group]):,}" for part in (one.checked, one.correct)]
    return cells


def _has_interval(found: AccuracyEstimate) -> bool:
    ends = np.concatenate([found.low, found.high, found.overall[1:]])
    return bool(np.isfinite(ends).any())


def _describe_difference(linked: LinkageFacts, groups: Sequence[int]) -> list[Part]:
    """Where methods disagree most: each of them assumes something, and there it matters."""
    if len(linked.estimates) < 2 or not groups:
        return []
    each = np.array([one.accuracy for one in linked.estimates])[:, groups]
    apart = each.max(axis=0) - each.min(axis=0)
    k = int(np.argmax(apart))
    if apart[k] < 0.0005:
        return []
    ends = f"from {decimal(float(each[:, k].min()))} to {decimal(float(each[:, k].max()))}"
    return [f"The methods differ most in group {group_name(linked.strata.names[groups[k]])}: {ends}."]


def describe_error(linked: LinkageFacts) -> list[Part]:
    best, names = linked.estimates[0], linked.strata.names
    cases = [(_ALL, best.overall[0])]
    groups = [k for k in range(len(names)) if names[k] != UNLINKED and math.isfinite(best.accuracy[k])]
    if len(groups) > 1:
        worst = min(groups, key=lambda k: float(best.accuracy[k]))
        cases.append((f"worst group: {group_name(names[worst])}", float(best.accuracy[worst])))
    rows = [(name, decimal(value), *slope_changes(value)) for name, value in cases]
    text = (
        "A slope is divided by about the accuracy γ. If the true accuracy is γ - .02 or γ + .02, the true slope is "
        "γ/(γ - .02) or γ/(γ + .02) times the one that is reported: larger or smaller by"
    )
    return [
        text,
        Table(
            ("rows", "accuracy γ", ".02 lower", ".02 higher (1 at most)"), rows, "What an accuracy that is wrong does"
        ),
    ]


def slope_changes(accuracy: float) -> tuple[str, str]:
    """By how many percent a slope changes if the true accuracy is .02 lower, and .02 higher but at most 1."""
    lower = f"{100 * (accuracy / (accuracy - _STEP) - 1):+.1f} %" if accuracy > _STEP else "anything"
    highest = min(1.0, accuracy + _STEP)
    higher = f"{100 * (accuracy / highest - 1):+.1f} %" if accuracy > 0.0 else "anything"
    return lower, higher


def describe_resemblance(found: Sequence[Resemblance]) -> list[Part]:
    """Whether links are exchangeable as to each column, and what to do where they are not."""
    text = (
        "The correction takes a wrong link to fall on any other row of its group alike. Alike: how far the rows that compete for the same partner are like each other, 0 if "
        "like random rows of the group, 1 if they have the same value. Change: how much better links are in the upper half of a column, or in the level that stands out."
    )
    rows = [
        (
            one.column,
            decimal(one.measure),
            decimal(one.error),
            signed(one.change),
            decimal(one.change_error),
            "yes" * one.flagged or "no",
        )
        for one in found
    ]
    table = Table(("column", "alike", "± s.e.", "change", "± s.e.", "stands out"), rows, "Wrong links and their rows")
    within = [one.within for one in found if math.isfinite(one.within)]
    share = [f"{100 * within[0]:.0f} % of these competing rows are in the group of their rival."] if within else []
    return [text, table, *share, *(f"{one.column}: {one.advice}" for one in found if one.flagged)]


def describe_subgroups(found: Mapping[str, Sequence[LevelQuality]]) -> list[Part]:
    """How good links are on each level of some columns, and where they differ."""
    parts: list[Part] = [
        "Shares of right links among the rows of each level, linked or not: as one-to-one probabilities tell, and as checked links do."
    ]
    for name, levels in found.items():
        checked = any(one.checked for one in levels)
        rows = [
            (
                group_name(one.level),
                f"{one.rows:,}",
                *_interval_cells(one.estimated),
                *([f"{one.checked:,}", *_interval_cells(one.audited)] if checked else []),
            )
            for one in levels
        ]
        header = (name, "rows", "estimated", "interval", *(("checked", "audited", "95 % interval") if checked else ()))
        parts += [Table(header, rows, f"Quality by {name}"), *say_difference(levels, name)]
    return parts


def _interval_cells(known: tuple[float, float, float] | None) -> tuple[str, str]:
    """A value and its interval."""
    return ("-", "-") if known is None else (decimal(known[0]), f"[{decimal(known[1])}, {decimal(known[2])}]")
