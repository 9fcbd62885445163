"""What a row counts: survey weights, and conditions that say which rows count at all. Public declarations over the regressors' side.

A row counts ω, between 0 and 1: its weight over the largest that is declared, and 0 if the condition does not hold or a cell that either needs is missing or, of a column with levels, none of these.
ω is a function of the row's own cells, clipped to their bounds, so nobody else's cells change it.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text
from dplinked.errors import StudyError, raise_alone, shown, suggest
from dplinked.study.formula import Factor, Interval, evaluate, interval_of, parse_expression

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Bools = NDArray[np.bool_]

_ALLOWED = (
    "Compare columns with numbers (<, <=, ==, !=, >=, >) or with declared levels (==, !=, in, not in), and join comparisons by and, or, not: "
    "\"age >= 65 and region in ['north', 'east']\"."
)
_QUOTED = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`([^`]*)`"""
)  # texts, and names in backquotes outside of them
_SPREAD = 30.0  # largest weight over the smallest that is taken for usual, where nothing is known of them
_SIGNS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", np.less),
    ast.LtE: ("<=", np.less_equal),
    ast.Eq: ("=", np.equal),
    ast.NotEq: ("<>", np.not_equal),
    ast.GtE: (">=", np.greater_equal),
    ast.Gt: (">", np.greater),
}


_OPPOSITES = {"<": ">=", "<=": ">", "=": "<>", "<>": "=", ">=": "<", ">": "<="}


@dataclass(frozen=True)
class Comparison:
    """Two numeric expressions and the sign between them, as SQL writes it."""

    left: Factor
    sign: str
    right: Factor


@dataclass(frozen=True)
class HasLevel:
    """A categorical column has one of some levels, by their numbers."""

    name: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """Conditions joined by ``"and"`` or ``"or"``, or a single one that is turned round by ``"not"``."""

    word: str
    parts: tuple[Condition, ...]


Condition = Comparison | HasLevel | Joined


@dataclass(frozen=True)
class Sizes:
    """What rows count: on average, its mean square, on average over what counts, and in rows that most of the squares come from."""

    mean: float
    square: float
    usual: float
    large: float


@dataclass(frozen=True)
class Counting:
    """What rows count.

    Attributes
    ----------
    weight
        Name of the column of weights, and their declared bounds.
    condition
        Which rows count at all.
    numeric, categorical
        Names of the columns that these need.
    typical
        Where weights are guessed to lie, for plans.
    moments
        Released means of ω, ω² and ω⁴ over all rows. What rows count does not hang on them.
    """

    weight: str | None
    bounds: Mapping[str, Interval]
    condition: Condition | None
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    typical: Interval | None = None
    moments: tuple[float, float, float] | None = field(default=None, compare=False)

    @property
    def largest(self) -> float:
        """The largest weight; 1 without weights."""
        return 1.0 if self.weight is None else self.bounds[self.weight][1]

    def sizes(self, present: float = 1.0) -> Sizes:
        """How much rows count that count at all, which are a share `present` of all: by released moments, or as it is guessed for plans."""
        if self.weight is None:
            return Sizes(1.0, 1.0, 1.0, 1.0)
        if self.moments is not None:
            mean, square, fourth = self.moments
            return Sizes(
                min(1.0, mean / present), min(1.0, square / present), square / mean, math.sqrt(fourth / square)
            )
        low, high = self.bounds[self.weight]
        low, high = (max(low, high / _SPREAD), high) if self.typical is None else self.typical
        mean, spread = (low + high) / 2.0 / self.largest, (high - low) / 2.0 / self.largest
        if self.typical is None:  # evenly spread on a logarithmic scale
            mean, spread = math.sqrt(low * high) / self.largest, 0.5 * math.sqrt(low * high) / self.largest
        square = mean**2 + spread**2
        return Sizes(mean, square, square / mean, min(1.0, mean + 3.0 * spread))

    def write_factors(self, raw: Mapping[str, Floats], codes: Mapping[str, Codes], out: Floats) -> None:
        """Write ω of some rows into `out` (k), from raw cells."""
        if self.weight is not None and self.condition is None:
            weights, (low, high) = raw[self.weight], self.bounds[self.weight]
            if weights.size and weights.min() >= low and weights.max() <= high:  # as most are; NaN fails both
                np.divide(weights, self.largest, out=out)
                return
        cells = {name: np.clip(raw[name], *self.bounds[name]) for name in self.numeric}
        present = [np.isfinite(raw[name]) for name in self.numeric] + [codes[name] >= 0 for name in self.categorical]
        holds = np.logical_and.reduce(present)
        if self.condition is not None:
            holds = holds & _holds(self.condition, cells, codes)
        out[:] = holds
        if self.weight is not None:
            out[:] = np.where(holds, cells[self.weight] / self.largest, 0.0)


def _holds(condition: Condition, cells: Mapping[str, Floats], codes: Mapping[str, Codes]) -> Bools:
    match condition:
        case Comparison(left, sign, right):
            compare = next(function for text, function in _SIGNS.values() if text == sign)
            found = compare(_value(left, cells), _value(right, cells))
        case HasLevel(name, places):
            found = np.isin(codes[name], places)
        case Joined("not", (part,)):
            found = ~_holds(part, cells, codes)
        case Joined(word, parts):
            join = np.logical_and if word == "and" else np.logical_or
            found = join.reduce([_holds(part, cells, codes) for part in parts])
    return np.asarray(found, np.bool_)


def _value(factor: Factor, cells: Mapping[str, Floats]) -> Floats:
    """A numeric expression. Where it is undefined, which within the bounds it is nowhere but for rounding, comparisons fail."""
    with np.errstate(all="ignore"):
        return evaluate(factor, cells)


# --- from declarations ----------------------------------------------------------------------------------


def declare_counting(
    weights: str | None,
    where: str | None,
    bounds: Mapping[str, Interval],
    levels: Mapping[str, Sequence[Any]],
) -> Counting | None:
    """What rows count, from the names and texts of a study; None if all count the same. Bounds and levels are checked already."""
    if weights is None and where is None:
        return None
    condition = None if where is None else _Reader(where, bounds, levels).read()
    named = [] if weights is None else [weights]
    named += [] if condition is None else _names(condition)
    numeric = tuple(dict.fromkeys(name for name in named if name in bounds))
    if weights is not None and not bounds[weights][0] >= 0.0:
        raise StudyError(f"The bounds of the weights {shown(weights)} must not begin below 0.")
    categorical = tuple(dict.fromkeys(name for name in named if name not in bounds))
    return Counting(weights, {name: bounds[name] for name in numeric}, condition, numeric, categorical)


def counted_columns(weights: str | None, where: str | None, levels: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The columns that weights and a condition name: numeric ones, and categorical ones, which have declared levels."""
    if weights is not None and weights in levels:
        raise StudyError(
            f"The weights {shown(weights)} have levels. Weights are numbers: declare their bounds instead."
        )
    names = [] if weights is None else [weights]
    if where is not None:
        tree, quoted = _tree(where)
        _refuse_bare_levels(where, tree, levels)
        called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        named = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called]
        names += [quoted.get(name, name) for name in named]
    names = list(dict.fromkeys(names))
    return [name for name in names if name not in levels], [name for name in names if name in levels]


def _refuse_bare_levels(where: str, tree: ast.expr, levels: Mapping[str, Any]) -> None:
    """Refuse a level that is written like a column, without quotes."""
    for node in ast.walk(tree):
        named = (
            [side.id for side in ast.walk(node) if isinstance(side, ast.Name)] if isinstance(node, ast.Compare) else []
        )
        for column, other in itertools.permutations(named, 2):
            if column in levels and other in levels[column] and other not in levels:
                raise StudyError(
                    f"where={shown(where)} names the level {shown(other)} without quotes: write '{other}'."
                )


def level_condition(where: str | None, by: str, level: str | None) -> str:
    """The condition for rows to be of one level of a column, among those that fulfil another condition.

    Rows of different levels must be different ones, else a person would count in several. So what comes out is read back: it must be the condition *and* that level, whatever texts were given.
    """
    name = by if by.isidentifier() and not keyword.iskeyword(by) else f"`{by}`"
    if where is not None:
        _tree(where)  # refused if it is no condition by itself
    text = f"{name} == {level!r}" if where is None else f"({where}) and {name} == {level!r}"
    root, quoted = _tree(text)
    last = root if where is None else root.values[-1] if _joins_two(root) else None
    match last:
        case ast.Compare(left=ast.Name(id=found), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
            if quoted.get(found, found) == by and value == level:
                return text
    raise StudyError(
        f"by={shown(by)} does not go with where={shown(where)}: write the condition without brackets that close early."
    )


def _joins_two(root: ast.expr) -> TypeGuard[ast.BoolOp]:
    """Whether a condition is two parts joined by and."""
    return isinstance(root, ast.BoolOp) and isinstance(root.op, ast.And) and len(root.values) == 2


def compared_with_texts(where: str) -> list[str]:
    """The columns that a condition compares with texts, and so must have levels."""
    tree, quoted = _tree(where)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node)
        ):
            found += [quoted.get(part.id, part.id) for part in ast.walk(node) if isinstance(part, ast.Name)]
    return list(dict.fromkeys(found))


def _tree(text: str) -> tuple[ast.expr, dict[str, str]]:
    """A condition as Python reads it, with stand-ins for names in backquotes, and what these stand for."""
    quoted: dict[str, str] = {}

    def hide(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group(0)
        quoted[name := f"_quoted_{len(quoted)}"] = match.group(1)
        return name

    try:
        return ast.parse(_QUOTED.sub(hide, text).strip(), mode="eval").body, quoted
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise_alone(StudyError(f"where={shown(text)} cannot be read. {_ALLOWED}"))


def _names(condition: Condition) -> list[str]:
    match condition:
        case Comparison(left, _, right):
            return [*left.variables, *right.variables]
        case HasLevel(name, _):
            return [name]
        case Joined(_, parts):
            return [name for part in parts for name in _names(part)]


def _may_compare(left: Interval, sign: str, right: Interval) -> bool:
    """Whether some numbers of two intervals compare so. Ends count as a little further out, for rounding."""
    slack = 1e-9 * max(map(abs, (*left, *right)))
    match sign:
        case "<" | "<=":
            return left[0] <= right[1] + slack
        case ">" | ">=":
            return left[1] >= right[0] - slack
        case "=":
            return left[0] <= right[1] + slack and left[1] >= right[0] - slack
    return not (left[0] == left[1] == right[0] == right[1])


class _Reader:
    """Reads a condition over columns with bounds or levels."""

    def __init__(self, text: str, bounds: Mapping[str, Interval], levels: Mapping[str, Sequence[Any]]) -> None:
        self._text, self._bounds, self._levels = text, bounds, levels
        self._root, self._quoted = _tree(text)

    def read(self) -> Condition:
        """The condition, or what is wrong with it."""
        condition = self._condition(self._root)
        if not _names(condition):
            raise StudyError(f"where={shown(self._text)} names no column. {_ALLOWED}")
        if not self._may_hold(condition, wanted=True):
            raise StudyError(
                f"where={shown(self._text)} holds for no row: the declared bounds and levels leave nothing that it could hold for. Mend the condition, or the bounds."
            )
        return condition

    def _may_hold(self, condition: Condition, *, wanted: bool) -> bool:
        """Whether a condition may come out as `wanted`, by declarations alone. Parts that are joined are judged one by one, so some that are never met pass."""
        match condition:
            case Comparison(left, sign, right):
                return _may_compare(
                    interval_of(left, self._bounds),
                    sign if wanted else _OPPOSITES[sign],
                    interval_of(right, self._bounds),
                )
            case HasLevel(name, places):
                return bool(set(places)) if wanted else len(set(places)) < len(self._levels[name])
            case Joined("not", (part,)):
                return self._may_hold(part, wanted=not wanted)
            case Joined(word, parts):
                every = (word == "and") == wanted
                return (all if every else any)(self._may_hold(part, wanted=wanted) for part in parts)

    def _condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp(op=op, values=values):
                return Joined(
                    "and" if isinstance(op, ast.And) else "or", tuple(self._condition(value) for value in values)
                )
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Joined("not", (self._condition(operand),))
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                parts = tuple(self._comparison(sides[i], op, sides[i + 1]) for i, op in enumerate(ops))
                return parts[0] if len(parts) == 1 else Joined("and", parts)
        raise self._fault()

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        if (name := self._level_column(left)) is not None:
            return self._has_level(name, op, right)
        if (name := self._level_column(right)) is not None and isinstance(op, (ast.Eq, ast.NotEq)):
            return self._has_level(name, op, left)
        if type(op) not in _SIGNS:
            raise self._fault()
        sides = self._number(left), self._number(right)
        if not any(side.variables for side in sides):
            raise StudyError(f"where={shown(self._text)} compares numbers with each other. {_ALLOWED}")
        return Comparison(sides[0], _SIGNS[type(op)][0], sides[1])

    def _level_column(self, node: ast.expr) -> str | None:
        name = self._quoted.get(node.id, node.id) if isinstance(node, ast.Name) else None
        return name if name in self._levels else None

    def _has_level(self, name: str, op: ast.cmpop, node: ast.expr) -> Condition:
        several = isinstance(op, (ast.In, ast.NotIn))
        if not several and not isinstance(op, (ast.Eq, ast.NotEq)):
            raise StudyError(
                f"where={shown(self._text)} orders the levels of {shown(name)}, which have no order. {_ALLOWED}"
            )
        listed = node.elts if several and isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
        has = HasLevel(name, tuple(self._place(name, level) for level in listed))
        return Joined("not", (has,)) if isinstance(op, (ast.NotEq, ast.NotIn)) else has

    def _place(self, name: str, node: ast.expr) -> int:
        """The number of a level that is written in the condition."""
        try:
            level = key_text(ast.literal_eval(node))
        except (ValueError, TypeError, SyntaxError):
            raise_alone(self._fault())
        known = list(self._levels[name])
        if level not in known:
            raise StudyError(
                f"where={shown(self._text)} names a level of {shown(name)} that is not declared.{suggest(str(level), known)} "
                f"Declare it: levels={{{shown(name)}: […]}}."
            )
        return known.index(level)

    def _number(self, node: ast.expr) -> Factor:
        try:
            factor = parse_expression(node, self._quoted)
        except StudyError:
            raise_alone(self._fault())
        for name in factor.variables:
            if name not in self._bounds:
                raise StudyError(
                    f"where={shown(self._text)} names {shown(name)}, which has no declared bounds or levels."
                )
        interval_of(factor, self._bounds)  # refuses what is not defined everywhere within the bounds
        return factor

    def _fault(self) -> StudyError:
        return StudyError(f"where={shown(self._text)} is not a condition that can be used. {_ALLOWED}")
