"""Which columns a study's texts name, and formulas as lists of columns. Pure texts: no data is opened."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dplinked.errors import StudyError
from dplinked.study.counting import compared_with_texts, counted_columns
from dplinked.study.formula import ParsedFormula, parse_formula
from dplinked.study.several import split_outcomes

_QUOTED = re.compile(r"`([^`]+)`")
_CATEGORY = re.compile(r"C\(\s*(.*?)\s*\)")


def parse_all(formula: str, levels: Sequence[str], family: Any = "linear") -> list[ParsedFormula]:
    """A formula taken apart, for each of its outcomes. An event may be written as a bare column: its levels follow."""
    events = family == "logistic"
    return [
        parse_formula(one, levels, events=events and one.lstrip().startswith("C("))
        for one in (split_outcomes(formula) or {"": formula}).values()
    ]


def named_columns(
    formula: str,
    levels: Sequence[str],
    family: Any = "linear",
    exposure: Any = None,
    weights: Any = None,
    where: Any = None,
    by: Any = None,
    strata: Any = None,
) -> tuple[list[str], list[str]]:
    """The numeric and the categorical columns of a formula, the response first, then an exposure, what says how much rows count, whose levels are told apart, and in which strata rows were drawn.

    Both lists are empty if the formula is not valid.
    """
    events = family == "logistic"
    try:
        parsed = parse_all(formula, levels, family)
    except StudyError:
        return [], []
    factors = [
        factor for one in parsed for factor in (*([] if events else [one.response]), *itertools.chain(*one.terms))
    ]
    numeric = [name for factor in factors if not factor.categorical for name in factor.variables]
    categorical = [name for one in parsed for name in one.response.variables] if events else []
    categorical += [name for factor in factors if factor.categorical for name in factor.variables]
    numeric += [exposure] if family == "poisson" and isinstance(exposure, str) and exposure else []
    weights, where = (text if isinstance(text, str) and text else None for text in (weights, where))
    try:
        texts = [*levels, *(compared_with_texts(where) if where else [])]
        counted = counted_columns(weights, where, dict.fromkeys(texts))
    except StudyError:  # a fault of its own
        counted = ([weights] if weights else [], [])
    categorical += [*counted[1], *(name for name in (by, strata) if isinstance(name, str) and name)]
    return list(dict.fromkeys([*numeric, *counted[0]])), list(dict.fromkeys(categorical))


def columns_of(declared: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The numeric and the categorical columns that a study file's sections ask bounds and levels of."""
    model, bounds, levels = (_section(declared, name) for name in ("model", "bounds", "levels"))
    formula = model.get("formula")
    known = [name for name in levels if name not in bounds]
    chosen = (model.get(name) for name in ("family", "exposure", "weights", "where", "by", "strata"))
    return named_columns(formula, known, *chosen) if isinstance(formula, str) else ([], [])


def _section(declared: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = declared.get(name, {})
    return found if isinstance(found, Mapping) else {}


# --- formulas as lists of columns -------------------------------------------------------------------------


@dataclass(frozen=True)
class FormulaParts:
    """A formula as a list of columns, and what does not fit into one.

    Attributes
    ----------
    response
        The column on the left, or the text there if that is more than a column.
    numbers, categories
        Columns on the right that stand alone, by what they are taken as.
    further
        All other terms on the right, as they are written.
    """

    response: str = ""
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    further: str = ""


def split_formula(formula: str, levels: Iterable[str] = ()) -> FormulaParts:
    """A formula as a list of columns. A bare column is a category if it is one of those with `levels`."""
    left, _, right = formula.partition("~")
    numbers: list[str] = []
    categories: list[str] = []
    further: list[str] = []
    for term in split_terms(right):
        category = _CATEGORY.fullmatch(term)
        name = read_name(term if category is None else category[1])
        if name is None:
            further.append(term)
        else:
            (numbers if category is None and name not in levels else categories).append(name)
    response = left.strip()
    numbers, categories = list(dict.fromkeys(numbers)), list(dict.fromkeys(categories))
    return FormulaParts(read_name(response) or response, tuple(numbers), tuple(categories), " + ".join(further))


def join_formula(parts: FormulaParts) -> str:
    """The formula of a list of columns."""
    shown = [write_name(name) for name in parts.numbers]
    shown += [f"C({write_name(name)})" for name in parts.categories]
    terms = " + ".join([*shown, *([parts.further.strip()] if parts.further.strip() else [])])
    return f"{write_response(parts.response)} ~ {terms}" if parts.response or terms else ""


def write_response(text: str) -> str:
    """The left side of a formula: a column's name, or more than that as it is written."""
    return text if "(" in text and ")" in text else write_name(text) if text else ""


def write_name(name: str) -> str:
    """A column's name as formulas write it: in backquotes if it is no plain word."""
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"`{name}`"


def read_name(text: str) -> str | None:
    """The column that a text names, if it names one and nothing else."""
    quoted = _QUOTED.fullmatch(text)
    return quoted[1] if quoted else text if text.isidentifier() and not keyword.iskeyword(text) else None


def split_terms(text: str) -> Iterator[str]:
    """What stands between the plus signs that are not inside brackets or backquotes."""
    depth, quoted, start = 0, False, 0
    for place, letter in enumerate(text):
        quoted ^= letter == "`"
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == "+" and depth == 0 and not quoted:
            yield from filter(None, [text[start:place].strip()])
            start = place + 1
    yield from filter(None, [text[start:].strip()])
