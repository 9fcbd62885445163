"""What a linkage says of itself: how good its links are, for the steward.

Privacy
-------
None: the document is read from the two files without noise, and says so first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.explain import Explanation
from dplinked.linker.fields import Field
from dplinked.linker.leftovers import BYTES_PER_PAIR
from dplinked.linker.quality import AccuracyEstimate, Strata
from dplinked.linker.resemblance import Resemblance
from dplinked.linker.rules import FURTHER, LAST, LATE, MEMORY, UNLINKED, Links
from dplinked.linker.subgroups import LevelQuality, say_difference
from dplinked.report import charts
from dplinked.report.document import Chart, Document, Facts, Part, Section, Steps, Table

Floats = NDArray[np.float64]

WARNING = "FOR THE STEWARD ONLY, NOT FOR PUBLICATION: everything below is read from the two files without noise."
_TITLE = "How good are the links?"
_STEP = 0.02  # an error in the accuracy that is easily made
_BAR = 22
_FEW_TWICE = 0.002  # of a file's records that may be duplicates without a word
_ALL = "overall"
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
_METHODS = {
    "rules": "rules: sums of field scores, one to one within blocks, then by evidence across them",
    "splink": "splink: match weights from Splink, one to one",
    "pairs": "pairs: links made elsewhere, one to one",
}
_NOT_SHOWN = "Links were drawn in secret and checked. What was found stands in no report: it tells of who was drawn, and whether to release it must not depend on it."
_LATE_STAGES = {FURTHER: "linked by further passes", LAST: "linked last, at random"}
_LINKED, _OTHER = "(linked)", "(other)"  # groups that are no blocks


@dataclass(frozen=True)
class LinkageFacts:
    """What a quality report is made of.

    Attributes
    ----------
    rows
        Numbers of rows of the left and the right file.
    estimates
        Accuracies by every method that tells them, the best first. What an audit of links that were drawn in secret found is not shown, and is not among them.
    resemblance
        How alike wrong links are to their rows, in columns of the left file.
    secret
        Whether links that were drawn in secret were checked.
    readable
        For each field, the share of the left and of the right records whose value could be compared.
    subgroups
        How good links are on the levels of some columns.
    examples
        Links that are explained: what they are examples of, and what their scores are made of.
    duplicates
        About how many records of the left and of the right file are further records of somebody in it, if that is known.
    """

    rows: tuple[int, int]
    links: Links
    fields: Sequence[Field]
    method: str
    strata: Strata
    estimates: Sequence[AccuracyEstimate]
    resemblance: Sequence[Resemblance] = ()
    secret: bool = False
    readable: Sequence[tuple[float, float]] = ()
    subgroups: Mapping[str, Sequence[LevelQuality]] | None = None
    examples: tuple[Sequence[str], Explanation] | None = None
    duplicates: tuple[int, int] | None = None


def quality_document(linked: LinkageFacts) -> Document:
    """The quality report."""
    sections = [
        Section("What was linked", _describe_files(linked)),
        *([Section("What was compared", _describe_passes(linked))] if linked.links.passes else []),
        Section("Links per group", _describe_groups(linked)),
        Section("Scores", _describe_scores(linked)),
        *(
            []
            if linked.examples is None
            else [Section("Why records were linked", _describe_examples(*linked.examples))]
        ),
        Section("Accuracy per group", _describe_accuracy(linked)),
    ]
    if linked.estimates:
        sections.append(Section("What an accuracy that is wrong by .02 does", _describe_error(linked)))
    if linked.resemblance:
        sections.append(Section("Do wrong links resemble their rows?", _describe_resemblance(linked.resemblance)))
    if linked.subgroups:
        sections.append(Section("Quality by subgroup", _describe_subgroups(linked.subgroups)))
    sections.append(Section("What to do next", [Steps(_next_steps(linked))]))
    return Document(_TITLE, sections, warning=WARNING)


# --- what was linked ---------------------------------------------------------------------------------


def _describe_files(linked: LinkageFacts) -> list[Part]:
    n, m = linked.rows
    without = int((linked.links.right < 0).sum())
    facts = [
        ("Left file", f"{_count(n)}, every one kept"),
        (
            "Right file",
            f"{_count(m)}, {m - np.unique(linked.links.right[linked.links.right >= 0]).size:,} of them left over",
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
    for name, chosen in _stages(linked):
        facts.append((name.capitalize(), f"{int(chosen.sum()):,} ({_percent(int(chosen.sum()), n)})"))
    facts.append(("Unlinked", f"{without:,} ({_percent(without, n)}); keep their place with the public response"))
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


def _describe_passes(linked: LinkageFacts) -> list[Part]:
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


def _stages(linked: LinkageFacts) -> list[tuple[str, NDArray[np.bool_]]]:
    """How links were made, the surest first: in words, and which rows were linked so."""
    block, has = linked.links.block.astype(str), linked.links.right >= 0
    first = "linked within blocks" if linked.method == "rules" else "linked over the threshold"
    below = np.zeros(has.size, bool) if linked.links.below is None else linked.links.below
    early = has & ~np.isin(block, LATE)
    late = ((words, has & (block == name)) for name, words in _LATE_STAGES.items())
    return [(first, early & ~below), ("linked below the threshold", early & below), *late]


# --- groups and scores -------------------------------------------------------------------------------


def _describe_groups(linked: LinkageFacts) -> list[Part]:
    strata, order, score = linked.strata, _order(linked), linked.links.score
    rows = []
    for k in order:
        known = score[(strata.of_row == k) & np.isfinite(score)]
        median = f"{np.median(known):.3g}" if known.size and _has_scores(linked) else "-"
        count = int(strata.rows[k])
        rows.append((_name(strata.names[k]), f"{count:,}", _percent(count, linked.rows[0]), median))
    names, counts = [row[0] for row in rows], [int(strata.rows[k]) for k in order]
    meaning = {
        _LINKED: "all blocks together, being too many for an accuracy each",
        _OTHER: "blocks that are missing, rare or in one file only",
        **_LATE_STAGES,
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


def _order(linked: LinkageFacts) -> list[int]:
    """Groups by name, those that are no blocks at the end."""
    names, late = linked.strata.names, ("", _OTHER, *LATE)
    return sorted(range(len(names)), key=lambda k: (late.index(names[k]) if names[k] in late else 0, names[k]))


def _name(group: str) -> str:
    return group if group.strip() else "(blank)"


def _has_scores(linked: LinkageFacts) -> bool:
    """Pairs that came without probabilities have a score that says nothing."""
    return not (linked.method == "pairs" and linked.links.candidates.left.size == 0)


def _describe_scores(linked: LinkageFacts) -> list[Part]:
    score, has = linked.links.score, linked.links.right >= 0
    if not (_has_scores(linked) and np.isfinite(score[has]).any()):
        return ["The links have no scores."]
    stages = _stages(linked)
    first = stages[0][1]
    names = stages[0][0], "linked later"
    axis = "score (sum of the fields')" if linked.method == "rules" else "match weight (log2 of the odds)"
    shown = np.where(has, score, np.nan)

    def draw() -> str:
        return charts.score_histogram(shown, ~first, names=names, axis=axis)

    rows = []
    for name, chosen in stages:
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


def _describe_examples(names: Sequence[str], told: Explanation) -> list[Part]:
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


# --- accuracy ----------------------------------------------------------------------------------------


def _describe_accuracy(linked: LinkageFacts) -> list[Part]:
    hidden: list[Part] = [_NOT_SHOWN] if linked.secret else []
    if not linked.estimates:
        return hidden or [
            "Nothing tells how good these links are: no pair came with evidence, and no links were checked. "
            "Have some of them checked before anything is fitted to them."
        ]
    strata, order, found = linked.strata, _order(linked), linked.estimates
    drawn = [k for k in order if strata.names[k] != UNLINKED]
    names = [*(_name(strata.names[k]) for k in drawn), _ALL]
    series = [
        charts.Series(
            one.method, *(np.append(part[drawn], whole) for part, whole in zip(parts, one.overall, strict=True))
        )
        for one in found
        for parts in [(one.accuracy, one.low, one.high)]
    ]
    rows = [(_name(strata.names[k]), *_accuracy_cells(found, k)) for k in order]
    rows.append((_ALL, *_accuracy_cells(found, None)))
    header = ["group"]
    for one in found:
        header += (
            [one.method] + ["95 % interval"] * _has_interval(one) + ["checked", "correct"] * (one.checked is not None)
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
        cells.append(_decimal(value))
        if _has_interval(one):
            cells.append(f"[{_decimal(low)}, {_decimal(high)}]" if math.isfinite(low) and math.isfinite(high) else "-")
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
    ends = f"from {_decimal(float(each[:, k].min()))} to {_decimal(float(each[:, k].max()))}"
    return [f"The methods differ most in group {_name(linked.strata.names[groups[k]])}: {ends}."]


def _describe_error(linked: LinkageFacts) -> list[Part]:
    best, names = linked.estimates[0], linked.strata.names
    cases = [(_ALL, best.overall[0])]
    groups = [k for k in range(len(names)) if names[k] != UNLINKED and math.isfinite(best.accuracy[k])]
    if len(groups) > 1:
        worst = min(groups, key=lambda k: float(best.accuracy[k]))
        cases.append((f"worst group: {_name(names[worst])}", float(best.accuracy[worst])))
    rows = [(name, _decimal(value), *slope_changes(value)) for name, value in cases]
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


def _describe_resemblance(found: Sequence[Resemblance]) -> list[Part]:
    """Whether links are exchangeable as to each column, and what to do where they are not."""
    text = (
        "The correction takes a wrong link to fall on any other row of its group alike. Alike: how far the rows that compete for the same partner are like each other, 0 if "
        "like random rows of the group, 1 if they have the same value. Change: how much better links are in the upper half of a column, or in the level that stands out."
    )
    rows = [
        (
            one.column,
            _decimal(one.measure),
            _decimal(one.error),
            _signed(one.change),
            _decimal(one.change_error),
            "yes" * one.flagged or "no",
        )
        for one in found
    ]
    table = Table(("column", "alike", "± s.e.", "change", "± s.e.", "stands out"), rows, "Wrong links and their rows")
    within = [one.within for one in found if math.isfinite(one.within)]
    share = [f"{100 * within[0]:.0f} % of these competing rows are in the group of their rival."] if within else []
    return [text, table, *share, *(f"{one.column}: {one.advice}" for one in found if one.flagged)]


def _describe_subgroups(found: Mapping[str, Sequence[LevelQuality]]) -> list[Part]:
    """How good links are on each level of some columns, and where they differ."""
    parts: list[Part] = [
        "Shares of right links among the rows of each level, linked or not: as one-to-one probabilities tell, and as checked links do."
    ]
    for name, levels in found.items():
        checked = any(one.checked for one in levels)
        rows = [
            (
                _name(one.level),
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
    return ("-", "-") if known is None else (_decimal(known[0]), f"[{_decimal(known[1])}, {_decimal(known[2])}]")


def slope_changes(accuracy: float) -> tuple[str, str]:
    """By how many percent a slope changes if the true accuracy is .02 lower, and .02 higher but at most 1."""
    lower = f"{100 * (accuracy / (accuracy - _STEP) - 1):+.1f} %" if accuracy > _STEP else "anything"
    highest = min(1.0, accuracy + _STEP)
    higher = f"{100 * (accuracy / highest - 1):+.1f} %" if accuracy > 0.0 else "anything"
    return lower, higher


def _next_steps(linked: LinkageFacts) -> list[str]:
    audits = [one for one in linked.estimates if one.checked is not None]
    if linked.secret:
        checked = (
            "Release what the check of secretly drawn links found, once: release_accuracy, or --release-accuracy. Draw no further ones because of anything that was seen in it, and "
            "destroy key and lists then."
        )
    elif audits and audits[0].checked is not None:
        checked = (
            f"{int(audits[0].checked.sum()):,} links have been checked. Where intervals are wider than you can live with, have "
            "more of them checked: audit_sample(size=…), or --audit-sample."
        )
    else:
        checked = (
            "Have links checked by a person: linked.audit_sample(), or --audit-sample, writes some of them down with both "
            "records side by side; linked.audited(…), or --audited, reads the answers back. The other methods cannot "
            "see their own mistakes."
        )
    fits = linked.method == "splink" and linked.rows[0] * linked.rows[1] * BYTES_PER_PAIR <= MEMORY
    rules = "All pairs of these files fit into memory: method='rules' compares every one of them, so that no match is lost by blocking. Compare what both find."
    return [
        *([rules] if fits else []),
        checked,
        "Accuracies that come from the files or an audit are data. Release them with noise (release_accuracy, or "
        "--release-accuracy), or declare public ones in [linkage].",
        "Say in [unit] what one person may change about the links: displaced_links, linkage_change, moves_block. "
        "Linking does not tell.",
    ]


def _decimal(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _signed(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else "-"


def _count(rows: int) -> str:
    return f"{rows:,} row" + "s" * (rows != 1)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
