"""Parts of the quality report on what was linked: files, fields, passes, groups, scores, and why some records were linked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.explain import Explanation
from dplinked.linker.facts import (
    LATE_STAGES,
    OTHER,
    LinkageFacts,
    count_rows,
    group_name,
    has_scores,
    order_groups,
    percent,
    stages,
)
from dplinked.linker.fields import Field
from dplinked.linker.rules import FURTHER, UNLINKED
from dplinked.linker.strata import REGULAR
from dplinked.report import charts
from dplinked.report.document import Chart, Facts, Part, Table

Floats = NDArray[np.float64]

_BAR = 22
_FEW_TWICE = 0.002  # of a file's records that may be duplicates without a word
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
_METHODS = {
    "rules": "rules: sums of field scores, one to one within blocks, then by evidence across them",
    "splink": "splink: match weights from Splink, one to one",
    "pairs": "pairs: links made elsewhere, one to one",
}


def describe_files(linked: LinkageFacts) -> list[Part]:
    n, m = linked.rows
    without = int((linked.links.right < 0).sum())
    facts = [
        ("Left file", f"{count_rows(n)}, every one kept"),
        (
            "Right file",
            f"{count_rows(m)}, {m - np.unique(linked.links.right[linked.links.right >= 0]).size:,} of them left over",
        ),
        ("Method", _METHODS.get(linked.method, linked.method)),
    ]
    if linked.links.carriers > 1:
        facts[2] = "Method", facts[2][1].replace("one to one", "many to one")
        facts.append(
            (
                "Rows for one record",
                f"at most {linked.links.carriers}; each row is another person's, unless the privacy unit says otherwise",
            )
        )
    for name, chosen in stages(linked):
        facts.append((name.capitalize(), f"{int(chosen.sum()):,} ({percent(int(chosen.sum()), n)})"))
    facts.append(("Unlinked", f"{without:,} ({percent(without, n)}); keep their place with the public response"))
    if linked.duplicates is not None:
        told = " and ".join(
            f"{count:,} of the {file} file" for count, file in zip(linked.duplicates, ("left", "right"), strict=True)
        )
        facts.append(("Likely duplicates", f"about {told}: further records of somebody in the same file"))
    parts: list[Part] = [Facts(facts, "Files and links"), *_describe_duplicates(linked)]
    if linked.fields:
        shares = [tuple(f"{100 * share:.1f} %" for share in both) for both in linked.readable]
        rows = [
            (_field_name(field), str(field.kind), _comparison(field, linked.method), *read)
            for field, read in zip(linked.fields, shares or [()] * len(linked.fields), strict=True)
        ]
        header = ("field", "kind", "comparison", *(("read, left", "read, right") if shares else ()))
        parts.append(Table(header, rows, "Fields compared"))
        parts += _describe_unreadable(linked)
    elif linked.method == "encodings":
        parts.append("Encodings were compared, as both holders made them.")
    else:
        parts.append("No fields were compared here.")
    return parts


def _describe_duplicates(linked: LinkageFacts) -> list[Part]:
    """What several records of one person do to the promise, where there seem to be some."""
    many = [
        file
        for count, rows, file in zip(linked.duplicates or (0, 0), linked.rows, ("left", "right"), strict=True)
        if count > _FEW_TWICE * rows
    ]
    said: list[Part] = []
    if "left" in many:
        said.append(
            "Somebody with several rows in the left file has regressors on all of them: keep one record for each person first, dpl.dedupe(file, fields=…), or let the privacy unit say how many there may be and which belong "
            "together, dpl.PrivacyUnit(rows=…, id=…)."
        )
    if "right" in many and linked.links.carriers == 1:
        said.append(
            "Somebody with several records in the right file may have responses on several rows: keep one record for each person first, dpl.dedupe(file, fields=…)."
        )
    return said


def _describe_unreadable(linked: LinkageFacts) -> list[Part]:
    """The fields that told nothing, since no value could be read as their kind says."""
    parts: list[Part] = []
    for field, shares in zip(linked.fields, linked.readable, strict=False):
        files = [name for name, share in zip(("left", "right"), shares, strict=True) if share == 0.0]
        if files:
            parts.append(
                f"{_field_name(field)} is compared as a {field.compare}, and in the {' and the '.join(files)} file no value can be read as one: the field told nothing. "
                f"Declare what it holds, dpl.Field({field.name!r}, kind='text'), or leave it out."
            )
    return parts


def describe_passes(linked: LinkageFacts) -> list[Part]:
    """What each pass compared, and what it found."""
    rows = [
        (
            str(k),
            *("-" if count is None else f"{count:,}" for count in (one.pairs, one.found, one.linked)),
            one.name if one.found is not None else f"not run: {one.name}",
        )
        for k, one in enumerate(linked.links.passes, 1)
    ]
    text = (
        "A pass compares the pairs that agree on what it is named after. A pair that no pass compares cannot be found. Might be links: pairs with enough evidence to compete that no earlier "
        "pass found. A pass that was not run would cost about so many pairs more."
    )
    return [Table(("no.", "pairs compared", "might be links", "linked", "pass"), rows, "Passes"), text]


def _field_name(field: Field) -> str:
    return field.name if field.right in (None, field.name) else f"{field.name} / {field.right}"


def _comparison(field: Field, method: str) -> str:
    if method == "splink":
        return "Splink's, by kind or settings"
    if method == "pairs":
        return "for audits only"
    shown = str(field.compare)
    if field.compare == "jaro-winkler":
        shown += ", similarity itself" if field.threshold is None else f" from {field.threshold:g}"
    if field.compare == "number" and field.tolerance:
        shown += f" within {field.tolerance:g}"
    if field.compare in ("number", "date"):
        shown += f" (½ within {field.near:g}{' days' * (field.compare == 'date')})"
    return shown if field.weight == 1.0 else f"{shown}, weight {field.weight:g}"


def describe_groups(linked: LinkageFacts) -> list[Part]:
    strata, order, score = linked.strata, order_groups(linked), linked.links.score
    rows = []
    for k in order:
        known = score[(strata.of_row == k) & np.isfinite(score)]
        median = f"{np.median(known):.3g}" if known.size and has_scores(linked) else "-"
        count = int(strata.rows[k])
        rows.append((group_name(strata.names[k]), f"{count:,}", percent(count, linked.rows[0]), median))
    names, counts = [row[0] for row in rows], [int(strata.rows[k]) for k in order]
    meaning = {
        REGULAR: "all blocks together, being too many for an accuracy each",
        OTHER: "blocks that are missing, rare or in one file only",
        **LATE_STAGES,
        UNLINKED: "no partner left",
    }
    if linked.method == "rules":
        meaning[FURTHER] += ", across blocks"
    said = "; ".join(f"{name}: {text}" for name, text in meaning.items() if name in strata.names)
    return [
        Chart(lambda: charts.links_per_block(names, counts)),
        Table(("group", "rows", "share", "median score"), rows, "Links per group"),
        *([f"{said}."] if said else []),
    ]


def describe_scores(linked: LinkageFacts) -> list[Part]:
    score, has = linked.links.score, linked.links.right >= 0
    if not (has_scores(linked) and np.isfinite(score[has]).any()):
        return ["The links have no scores."]
    made = stages(linked)
    first = made[0][1]
    names = made[0][0], "linked later"
    axis = "score (sum of the fields')" if linked.method == "rules" else "match weight (log2 of the odds)"
    shown = np.where(has, score, np.nan)

    def draw() -> str:
        return charts.score_histogram(shown, ~first, names=names, axis=axis)

    rows = []
    for name, chosen in made:
        known = score[chosen & np.isfinite(score)]
        cells = [f"{value:.3g}" for value in np.quantile(known, _QUANTILES)] if known.size else ["-"] * len(_QUANTILES)
        rows.append((name, f"{int(chosen.sum()):,}", *cells, f"{int(chosen.sum()) - known.size:,}"))
    header = ("stage", "links", "lowest", "5 %", "median", "95 %", "highest", "no score")
    return [
        Chart(draw, lines=[f"Links by {axis}", "", *_histogram_lines(shown, ~first, names)]),
        Table(header, rows, "Scores"),
    ]


def _histogram_lines(scores: Floats, last: NDArray[np.bool_], names: tuple[str, str]) -> list[str]:
    """A histogram beside the other, each on a scale of its own."""
    bins = charts.make_bins(scores)
    side = max(map(len, bins.labels))
    lines = [" " * side, *(f"{label:>{side}}" for label in bins.labels)]
    for name, chosen in zip(names, (~last, last), strict=True):
        counts = np.histogram(scores[chosen & np.isfinite(scores)], bins.edges)[0].tolist()
        digits = len(f"{max(counts):,}")
        cells = [name, *(f"{count:>{digits},} {_bar(count, max(counts))}" for count in counts)]
        width = max(digits + 1 + _BAR, len(name))
        lines = [f"{line}  {cell:<{width}}" for line, cell in zip(lines, cells, strict=True)] if any(counts) else lines
    return [line.rstrip() for line in lines]


def _bar(count: int, largest: int) -> str:
    """A bar in eighths of a column; at least one eighth for what is there."""
    eighths = max(round(8 * _BAR * count / max(largest, 1)), int(count > 0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def describe_examples(names: Sequence[str], told: Explanation) -> list[Part]:
    """What each field adds to the scores of some links."""
    parts: list[Part] = [
        "What each field adds to the score of some links; their values are left out. linked.explain(row) tells it of any link, and the list of an audit of those in it."
    ]
    for k, name in enumerate(names):
        weights, steps = told.weights[k], _waterfall_lines(told, k)
        parts.append(Chart(partial(charts.waterfall, told.parts, weights, title=name[0].upper() + name[1:]), lines=[name, *steps]))  # fmt: skip
    return parts


def _waterfall_lines(told: Explanation, k: int) -> list[str]:
    """One line for each part: its name, what it adds, how far the score is then, and how values agree."""
    side, total = max(map(len, told.parts)), 0.0
    lines = []
    for name, weight, words in zip(told.parts, told.weights[k].tolist(), told.agreement[k], strict=True):
        total += weight
        lines.append(f"  {name:<{side}}  {weight:+7.2f}  {total:7.2f}  {words}".rstrip())
    return lines
