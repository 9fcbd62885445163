"""What clipping to declared bounds does to coefficients, foreseen from the rows. FOR THE STEWARD, NOT FOR PUBLICATION."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dplinked.check.findings import LOOK, NOTE, Finding, note
from dplinked.errors import DplinkedError
from dplinked.estimate.curve import WORTH_A_SEARCH, limit_step
from dplinked.methods import method_of, spending_of
from dplinked.outcomes import bin_counts, clip_beyond, searched_level, write_equation
from dplinked.second_stage.start import one_stage_design, weigh_groups
from dplinked.study.design import Design
from dplinked.study.family import MOST_COUNTS
from dplinked.study.study import Study
from dplinked.sums.engine import Source
from dplinked.sums.linked_rows import LinkedRows
from dplinked.sums.types import CellFacts

Floats = NDArray[np.float64]

_MUCH = 0.05  # of a slope that clipping may add without a second look
_MOST_STEPS, _NEAR = 25, 1e-5  # along a curve, and the length in deviations of η that ends them
_WIDEN_COUNTS = " Counts that vary more than by Poisson's law are bent by that. Where a larger largest count is declared, a release clips as far out as its budget lets it."
_WIDEN = (
    " Widen this bound first, to a round value that the subject suggests, not to the rows' own: wide bounds cost little, as a release clips residuals "
    "to their own size."
)


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
        rows = clip_beyond(rows, groups, spending, float(counts.edges[place]), level)
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


def check_clipping(study: Study, rows: Source, facts: Mapping[str, CellFacts]) -> list[Finding]:
    """Say how far clipping moves coefficients, and which bound to widen."""
    try:
        found = foresee_clipping(study, rows, facts)
    except DplinkedError:  # what stops it stops a release, and is a finding of its own
        return []
    if found is None:
        return []
    bounds, texts, told = study.prepare()[0].bounds, [], []
    if found.by_bound:
        slopes = slice(int(found.names[0] == "Intercept"), None)
        much = bool((np.abs(found.bias[slopes]) > _MUCH * np.abs(found.free[slopes])).any())
        no_budget = (
            "No interval covers this bias"
            if _long_counts(study, facts)
            else "No budget lowers this bias and no interval covers it"
        )
        (name, end), *_ = found.by_bound
        remedy = (
            f"Widen the {('lower', 'upper')[end]} bound of {name} first, if values beyond it are real." if much else ""
        )
        told.append(
            Finding(
                LOOK if much else NOTE,
                f"Clipping moves coefficients by about {_effects(found, found.bias)}. {no_budget}. If cells beyond the bounds are errors rather than values, clipping is right, and this is no bias.",
                remedy,
            )
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
    return [*told, *map(note, texts)]


def _effects(found: ClippingBias, effect: Floats) -> str:
    """What is added to each coefficient, also in percent of it."""
    parts = []
    for name, free, added in zip(found.names, found.free, effect, strict=True):
        share = f" ({100 * added / free:+.1f} %)" if name != "Intercept" and abs(free) > abs(added) else ""
        parts.append(f"{added:+.3g} in {name}{share}")
    return ", ".join(parts)
