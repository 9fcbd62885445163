"""Several results of one study: outcomes of one formula, and levels of one column. Pure texts, all of them declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dplinked.data.keys import key_text
from dplinked.errors import StudyError, shown, suggest
from dplinked.study.counting import level_condition
from dplinked.study.formula import parse_formula

_BOUND = re.compile(r"\s*cbind\s*\((.*)\)\s*", re.DOTALL)
MOST_OUTCOMES, MOST_LEVELS = 50, 200


def split_outcomes(formula: str) -> dict[str, str]:
    """The formula of each outcome of ``"cbind(a, b) ~ x"``, by outcome; none if the formula has a single one."""
    left, tilde, right = formula.partition("~")
    found = _BOUND.fullmatch(left)
    if found is None or not tilde:
        return {}
    outcomes = _arguments(found.group(1))
    if len(outcomes) < 2 or len(outcomes) > MOST_OUTCOMES or not all(outcomes):
        raise StudyError(
            f"cbind(…) in {shown(formula)} takes from two to {MOST_OUTCOMES} outcomes, like cbind(consumption, savings); a single one needs no cbind."
        )
    formulas = {_name(outcome): f"{outcome} ~{right}" for outcome in outcomes}
    if len(formulas) < len(outcomes):
        raise StudyError(f"cbind(…) in {shown(formula)} names an outcome twice.")
    return formulas


def _arguments(text: str) -> list[str]:
    """What stands between commas that are not inside brackets or backquotes."""
    found, depth, quoted, start = [], 0, False, 0
    for place, letter in enumerate(text):
        quoted ^= letter == "`"
        if not quoted:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 0:
                found.append(text[start:place].strip())
                start = place + 1
    return [*found, text[start:].strip()]


def _name(outcome: str) -> str:
    """An outcome as its results are called: without the backquotes around the name of a column."""
    plain = re.fullmatch(r"`([^`]*)`", outcome)
    return outcome if plain is None else plain.group(1)


def split_levels(
    by: str, where: str | None, formula: str, levels: Mapping[str, Sequence[Any]], bounds: Any
) -> dict[str, str]:
    """The condition for rows to be of each declared level of a column, by level."""
    if by not in levels or by in bounds:
        hint = "" if by in levels else suggest(by, levels)
        raise StudyError(
            f"by={shown(by)} must name a column with declared levels, and without bounds.{hint} Levels are public: declare levels={{{shown(by)}: […]}}."
        )
    parsed = parse_formula(formula, [name for name in levels if name not in bounds])
    if any(by in factor.variables for term in parsed.terms for factor in term):
        raise StudyError(
            f"The formula uses {shown(by)}, which is the same in all rows of a level: leave it out of the formula, or leave out by."
        )
    if "`" in by:
        raise StudyError(f"by={shown(by)} has a backquote in its name: rename the column.")
    listed = [levels[by]] if isinstance(levels[by], str) else list(levels[by])
    if len(listed) > MOST_LEVELS:
        raise StudyError(f"by={shown(by)} has more than {MOST_LEVELS} levels. Declare fewer, or join some of them.")
    return {str(key): level_condition(where, by, key) for key in map(key_text, listed)}
