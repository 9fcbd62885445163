"""Checks of the data before a release, for the steward. NOT FOR PUBLICATION: rows are read without noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.encoding import place_levels
from dplinked.errors import DplinkedError
from dplinked.estimate.curve import WORTH_A_SEARCH, limit_step
from dplinked.fitting import check_ids, key_columns
from dplinked.linkage import ELE, Matching, PrivacyUnit
from dplinked.linkage.compared import say_compared
from dplinked.methods import method_of, spending_of
from dplinked.outcomes import bin_counts, clip_beyond, searched_level, write_equation
from dplinked.second_stage import one_stage_design, weigh_groups
from dplinked.study.design import Design
from dplinked.study.family import MOST_COUNTS
from dplinked.study.study import Study
from dplinked.sums.engine import Source, open_source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.types import CellFacts

Floats = NDArray[np.float64]

WARNING = "FOR THE STEWARD ONLY, NOT FOR PUBLICATION: everything below is read from the rows without noise."
_FEW_COUNTS = 0.02  # of all counts may lie above the largest without a word
_MOST_STEPS, _NEAR = 25, 1e-5  # along a curve, and the length in deviations of η that ends them
_WIDEN_COUNTS = " Counts that vary more than by Poisson's law are bent by that. Where a larger largest count is declared, a release clips as far out as its budget lets it."
_WIDEN = (
    " Widen this bound first, to a round value that the subject suggests, not to the rows' own: wide bounds cost little, as a release clips residuals "
    "to their own size."
)


@dataclass(frozen=True)
class Finding:
    """One thing that the steward should know. If it is a `fault`, it stops a release; otherwise it may bias one."""

    fault: bool
    text: str


def check_study(study: Study, data: Any) -> list[Finding]:
    """Look for anything that would stop a release or bias it: null cells, clipped values, unknown levels, odd blocks."""
    if study.parts:
        return _check_parts(study, data)
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
        check_ids(study, rows)
    except DplinkedError as fault:
        return [Finding(True, str(fault))]
    findings.append(Finding(False, f"{rows.count:,} rows; all declared columns are there."))
    findings += [Finding(False, said) for said in say_compared(study.compared_variables(rows.origins.compared))]
    if isinstance(study.linkage, Matching):
        findings.append(Finding(False, "The matching matrix is one of these rows, and is as declared."))
    facts: dict[str, CellFacts] = {}
    for name, (low, high) in design.bounds.items():
        try:
            facts[name] = cells = rows.summarise_column(name, low, high)
        except DplinkedError as fault:
            findings.append(Finding(True, f"{name}: {fault}"))
            continue
        share, filled = 100.0 / rows.count, f"replaced by {design.fill[name]:g}"
        left_out = f"left out by the second stage, else {filled}" if design.curve is None else "left out"
        lost = left_out if study.drops_missing else filled
        findings.append(
            Finding(
                False,
                f"{name}: {cells.missing * share:.2f} % null or not finite ({lost}), "
                f"{cells.below * share:.2f} % below {low:g}, {cells.above * share:.2f} % above {high:g} (clipped)",
            )
        )
        if cells.middle is not None:
            findings.append(
                Finding(False, f"{name}: the middle 70 % lie in ({cells.middle[0]:g}, {cells.middle[1]:g})")
            )
    if design.curve is not None:
        findings += _check_outcome(design, facts, rows)
    findings += _check_clipping(study, rows, facts)
    for name, levels in design.levels.items():
        counts = rows.count_keys(name)
        unknown = {key: counts[key] for key, place in _place_keys(counts, levels).items() if place < 0}
        nulls = unknown.pop(None, 0) if study.drops_missing else 0
        kinds = "undeclared" if study.drops_missing else "undeclared or null"
        findings.append(
            Finding(
                False,
                f"{name}: {sum(unknown.values()):,} rows with {len(unknown)} {kinds} level(s) "
                f"count as the reference level {levels[0]!r}"
                + (f": {', '.join(map(repr, list(unknown)[:5]))}" if unknown else ""),
            )
        )
        if nulls:
            by = " by the second stage, else count so" if design.curve is None else ""
            findings.append(Finding(False, f"{name}: {nulls:,} rows with a null level are left out{by}"))
            if name in design.response_variables:
                findings.append(Finding(False, f"{name}: if null means {levels[0]!r}, declare missing='fill'"))
    if isinstance(study.linkage, ELE) and study.linkage.block is not None:
        findings += _check_blocks(rows, study.linkage.complete(study.unit), study.unit)
    return findings


def _check_parts(study: Study, data: Any) -> list[Finding]:
    """What is found of all results, each thing once; of levels, how many rows each has."""
    try:
        design = study.prepare()[0]
        rows = open_source(data, [*design.variables, *key_columns(study)])
        rows.require([*design.variables, *key_columns(study)], numeric=list(design.bounds))
        study.check_origins(design, rows.origins)
    except DplinkedError as fault:
        return [Finding(True, str(fault))]
    if study.by is None:
        found = {finding: None for part in study.parts.values() for finding in check_study(part, rows)}
        return list(found)
    counts, levels = rows.count_keys(study.by), list(study.parts)
    places = _place_keys(counts, levels)
    sizes = [sum(count for key, count in counts.items() if places[key] == place) for place in range(len(levels))]
    shown = ", ".join(f"{level!r} {size:,}" for level, size in zip(levels, sizes, strict=True))
    none = rows.count - sum(sizes)
    told = f"{study.by}: rows of each level, of which those count that also fulfil where: {shown}; {none:,} rows of no declared level count in none"
    return [*check_study(next(iter(study.parts.values())), rows), Finding(False, told)]


def _place_keys(keys: Iterable[str | None], levels: Sequence[Any]) -> dict[str | None, int]:
    """Which level each key is, -1 for those that are none."""
    import pyarrow as pa

    listed = list(keys)
    return dict(zip(listed, place_levels(pa.array(listed, pa.large_string()), levels).tolist(), strict=True))


def _check_outcome(design: Design, facts: Mapping[str, CellFacts], rows: Source) -> list[Finding]:
    """Say how often events happen, and how many counts lie beyond the largest."""
    texts, (response,) = [], tuple(design.response_variables)
    if response in design.levels:
        event = design.levels[response][1]
        counts = rows.count_keys(response)
        happened = sum(counts[key] for key, place in _place_keys(counts, design.levels[response]).items() if place == 1)
        texts.append(
            f"{response}: {happened:,} rows ({100.0 * happened / rows.count:.2f} %) with {event!r}, the level that is modelled"
        )
        if not 0 < happened < rows.count:
            texts.append(
                f"{response}: the outcome is the same on all rows, so there is nothing to model. Is the level spelled as in the data?"
            )
    elif facts.get(response) is not None and facts[response].above > _FEW_COUNTS * rows.count:
        texts.append(
            f"{response}: more than {100 * _FEW_COUNTS:.0f} % of the counts lie above the largest. The model allows for clipped counts as far as they follow Poisson's law, and counts "
            "with a long tail do not: declare a larger one, as a release looks for a smaller one by itself where it can."
        )
    return [Finding(False, text) for text in texts]


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


# --- clipping ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClippingBias:
    """How far clipping to declared bounds moves coefficients, in the user's units.

    Attributes
    ----------
    names, free, bias
        The coefficients' names, what they are without clipping, and what clipping adds to them (p each).
    by_bound
        Of each clipped bound, ``(column, 0 or 1 for the lower or the upper one)``, what clipping at it adds to the coefficients (p); the largest
        effect on slopes first.
    unknown
        Clipped bounds that the formula does not let be widened as far as the cells go.
    """

    names: tuple[str, ...]
    free: Floats
    bias: Floats
    by_bound: Mapping[tuple[str, int], Floats]
    unknown: Sequence[tuple[str, int]]


def foresee_clipping(study: Study, rows: Source, facts: Mapping[str, CellFacts]) -> ClippingBias | None:
    """Foresee what clipping does to the coefficients of a release; None if nothing is clipped. FOR THE STEWARD.

    The same rows are solved without noise within the declared bounds and within bounds as wide as the cells, corrected for wrong links and with the instrument of a release.
    Where columns may reach far beyond their middles that is x itself, as if the budget were large enough to see their tails; a small one moves the line by a third to a half of that.
    Counts are clipped where the release would clip them, too.
    """
    clipped = [(name, end) for name, cells in facts.items() for end, n in enumerate((cells.below, cells.above)) if n]
    clipped = list(dict.fromkeys([*clipped, *_long_counts(study, facts)]))
    alone = {bound: _widened(study, facts, [bound]) for bound in clipped}
    known = {bound: design for bound, design in alone.items() if design is not None}
    declared, free = _widened(study, facts, []), _widened(study, facts, list(known))
    if not clipped or declared is None or free is None:
        return None
    linked = rows.linked_rows(declared, study.linkage, study.unit)
    within, beyond = _solve(study, linked, declared), _solve(study, linked, free)
    by_bound = {bound: within - _solve(study, linked, design) for bound, design in known.items()}
    scale = np.linalg.inv(declared.scaling.to_user()[0])[int(declared.intercept) :]
    order = sorted(known, key=lambda bound: -float(np.linalg.norm(scale @ by_bound[bound])))
    unknown = [bound for bound in clipped if bound not in known]
    return ClippingBias(declared.names, beyond, within - beyond, {bound: by_bound[bound] for bound in order}, unknown)


def _long_counts(study: Study, facts: Mapping[str, CellFacts]) -> list[tuple[str, int]]:
    """The upper bound of counts, which a release may lower, if there are any beyond the smallest that it looks for."""
    names = [name for name in study.prepare()[0].response_variables if study.family == "poisson" and name in facts]
    return [(name, 1) for name in names if (facts[name].ends or (0.0, 0.0))[1] >= WORTH_A_SEARCH]


def _widened(study: Study, facts: Mapping[str, CellFacts], bounds: Sequence[tuple[str, int]]) -> Design | None:
    """The design of a study with some bounds as wide as the cells; None if its formula does not allow that. Fill values stay."""
    declared, typical = study.prepare()[0], dict(study.typical)
    wide = {name: list(ends) for name, ends in declared.bounds.items()}
    for name, end in bounds:
        wide[name][end] = (facts[name].ends or wide[name])[end]
        if study.family == "poisson" and name in declared.response_variables:
            wide[name][end] = min(MOST_COUNTS, math.ceil(max(wide[name][end], 1.0)))
    if study.searches_ranges:
        for name in facts.keys() - declared.response_variables:
            low, high = np.clip(facts[name].middle or (0.0, 0.0), *declared.bounds[name]).tolist()
            typical |= {name: (low, high)} if low < high else {}
    try:
        design, _ = replace(study, bounds=wide, fill=declared.fill, typical=typical).prepare()
    except DplinkedError:
        return None
    design = method_of(study).prepare(design)
    return one_stage_design(design) if study.family == "linear" and study.errors != "symmetric" else design


def _solve(study: Study, linked: LinkedRows, design: Design) -> Floats:
    """Coefficients in the user's units, corrected for wrong links, without noise."""
    rows, (to_user, offset) = linked.with_design(design), design.scaling.to_user()
    if design.curve is not None:
        return np.asarray(to_user @ _follow_curve(study, rows, linked.design) + offset)
    sums = rows.instrument_sums().sums
    return np.asarray(to_user @ np.linalg.lstsq(sums.matrix, sums.vector, rcond=None)[0] + offset)


def _follow_curve(study: Study, rows: LinkedRows, declared: Design) -> Floats:
    """Coefficients of an event or a count, by the equation of a release. Counts are clipped where a release would clip them, unless they are wider than `declared`."""
    spending = spending_of(study)
    rows, groups = weigh_groups(study, rows.without_missing() if study.drops_missing else rows, spending)
    level = searched_level(rows, spending)
    if rows.design.curve == declared.curve and level is not None:
        counts = bin_counts(rows)
        below = np.cumsum(counts.counts) / max(1, rows.count - (counts.incomplete or 0))
        place = min(int(np.searchsorted(below, level)), counts.edges.size - 1)
        rows = clip_beyond(rows, spending, float(counts.edges[place]), level)
    equation = write_equation(rows, groups, spending)
    beta = equation.level_line
    for _ in range(_MOST_STEPS):
        clip = equation.at(beta)
        left, slope = equation.rows.right_residuals(clip).vector, equation.rows.curve_sums(clip, equation.level).matrix
        step = np.linalg.lstsq(slope, left, rcond=None)[0]
        beta, way = limit_step(beta, beta + step, equation.all_sizes)
        if way < _NEAR:
            break
    return beta


def _check_clipping(study: Study, rows: Source, facts: Mapping[str, CellFacts]) -> list[Finding]:
    """Say how far clipping moves coefficients, and which bound to widen."""
    try:
        found = foresee_clipping(study, rows, facts)
    except DplinkedError:  # what stops it stops a release, and is a finding of its own
        return []
    if found is None:
        return []
    bounds, texts = study.prepare()[0].bounds, []
    if found.by_bound:
        no_budget = (
            "No interval covers this bias"
            if _long_counts(study, facts)
            else "No budget lowers this bias and no interval covers it"
        )
        texts.append(
            f"Clipping moves coefficients by about {_effects(found, found.bias)}. {no_budget}. If cells beyond the bounds are errors rather than values, clipping is right, and this is no bias."
        )
    for place, ((name, end), effect) in enumerate(found.by_bound.items()):
        does = "does that" if len(found.by_bound) == 1 else f"alone moves them by {_effects(found, effect)}"
        counts = study.family == "poisson" and (name, end) in _long_counts(study, facts)
        where = f"at {bounds[name][end]:g}" + (", or where the release finds few counts beyond," if counts else "")
        texts.append(f"{name}: clipping {where} {does}.{'' if place else _WIDEN_COUNTS if counts else _WIDEN}")
    for name, end in found.unknown:
        texts.append(
            f"{name}: what clipping at {bounds[name][end]:g} does cannot be foreseen, as the formula has no value beyond."
        )
    return [Finding(False, text) for text in texts]


def _effects(found: ClippingBias, effect: Floats) -> str:
    """What is added to each coefficient, also in percent of it."""
    parts = []
    for name, free, added in zip(found.names, found.free, effect, strict=True):
        share = f" ({100 * added / free:+.1f} %)" if name != "Intercept" and abs(free) > abs(added) else ""
        parts.append(f"{added:+.3g} in {name}{share}")
    return ", ".join(parts)
