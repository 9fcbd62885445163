"""Formulas as pure declarations: parsed by formulaic, never evaluated by it.

formulaic would also accept transforms that read the data (``scale``, ``center``, ``poly``), so only
its parse tree is used, and each factor is checked against a short list: a column, ``C(column)``,
``log``, ``sqrt`` and arithmetic inside ``I(…)``. Bounds of derived columns follow by interval arithmetic.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, raise_alone, shown

Floats = NDArray[np.float64]
Interval = tuple[float, float]

_ALLOWED = "Allowed are columns, C(column), log(…), sqrt(…), I(…) with + - * / **, joined by +, : and *."
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


@dataclass(frozen=True)
class Factor:
    """One factor of a term: a numeric expression over columns, or a categorical column."""

    text: str
    variables: tuple[str, ...]
    tree: ast.expr | None  # None for a categorical column

    @property
    def categorical(self) -> bool:
        """Whether the factor is a set of levels."""
        return self.tree is None


@dataclass(frozen=True)
class ParsedFormula:
    """A formula taken apart: response, terms (tuples of factors), and whether there is an intercept."""

    text: str
    response: Factor
    terms: tuple[tuple[Factor, ...], ...]
    intercept: bool


def parse_formula(text: str, levels: Sequence[str] = (), *, events: bool = False) -> ParsedFormula:
    """Parse a formula; bare columns named in `levels` are categorical. The response is if it is an event."""
    return _parse(text, tuple(levels), events)


@functools.lru_cache(maxsize=64)  # a fit asks four times, a plan hundreds of times
def _parse(text: str, levels: tuple[str, ...], events: bool) -> ParsedFormula:
    unread = StudyError(f"The formula {shown(text)} cannot be read. Write it like 'consumption ~ income + C(region)'.")
    bare = re.sub(r"`[^`]*`", "", text)
    if "^" in bare:
        raise StudyError(
            f"The formula {shown(text)} has a '^', which is no power here: write I(income**2) for a square."
        )
    if "|" in bare:
        raise StudyError(f"The formula {shown(text)} has a '|', which means nothing here. {_ALLOWED}")
    if "~" not in bare:  # the empty one above all: formulaic takes long to load
        raise unread
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(text)
        left, right = list(parsed.lhs), list(parsed.rhs)
    except (FormulaicError, AttributeError, SyntaxError, ValueError, TypeError):
        raise_alone(unread)
    if len(left) != 1 or len(left[0].factors) != 1:
        raise StudyError(f"The formula {shown(text)} must have one response on the left of '~'.")
    response = _parse_factor(left[0].factors[0], levels if events else ())
    if response.categorical and not events:
        raise StudyError(
            f"The response {shown(response.text)} must be numeric; family='logistic' takes one of two levels."
        )
    if events and not response.categorical:
        name = response.variables[0]
        raise StudyError(
            f"family='logistic' needs the two levels of the response, the reference first: levels={{{shown(name)}: ['no', 'yes']}}, without bounds."
        )
    terms, intercept = [], False
    for term in right:
        factors = tuple(term.factors)
        if len(factors) == 1 and factors[0].expr == "1":
            intercept = True
            continue
        terms.append(tuple(_parse_factor(factor, levels) for factor in factors))
    if not terms and not intercept:
        raise StudyError(f"The formula {shown(text)} has no terms on the right of '~'.")
    return ParsedFormula(text, response, tuple(terms), intercept)


def _parse_factor(parsed: Any, levels: Sequence[str]) -> Factor:
    """Check one factor against the allowed forms; formulaic tells a (quoted) column from an expression."""
    text = parsed.expr
    if parsed.eval_method.name == "LOOKUP":
        return _column_factor(text, levels)
    quoted: dict[str, str] = {}

    def hide(match: re.Match[str]) -> str:
        quoted[name := f"_quoted_{len(quoted)}"] = match.group(1)
        return name

    try:
        tree = ast.parse(re.sub(r"`([^`]*)`", hide, text), mode="eval").body
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.Call):
        raise StudyError(f"The formula term {shown(text)} is not supported. {_ALLOWED} Wrap arithmetic in I(…).")
    call = tree.func.id if isinstance(tree.func, ast.Name) else ""
    if call == "C":
        if len(tree.args) != 1 or tree.keywords or not isinstance(tree.args[0], ast.Name):
            raise StudyError(
                f"The formula term {shown(text)} is not supported: write C(column), and declare its levels."
            )
        column = tree.args[0].id
        return Factor(text, (quoted.get(column, column),), None)
    if call == "I" and len(tree.args) == 1 and not tree.keywords:
        tree = tree.args[0]
    names: list[str] = []
    tree = _restore_names(tree, quoted, names, text)
    if not names:
        raise StudyError(f"The formula term {shown(text)} names no column.")
    return Factor(text, tuple(dict.fromkeys(names)), tree)


def _column_factor(name: str, levels: Sequence[str]) -> Factor:
    if name in levels:
        return Factor(name, (name,), None)
    return Factor(name, (name,), ast.Name(id=name, ctx=ast.Load()))


def parse_expression(tree: ast.expr, quoted: Mapping[str, str]) -> Factor:
    """An expression over columns that is already parsed, as a factor; `quoted` has the names that stand-ins are for."""
    names: list[str] = []
    text = ast.unparse(tree)
    tree = _restore_names(tree, quoted, names, text)
    return Factor(text, tuple(dict.fromkeys(names)), tree)


def _restore_names(tree: ast.expr, quoted: Mapping[str, str], names: list[str], text: str) -> ast.expr:
    """Put quoted names back, and refuse whatever is not arithmetic, log or sqrt of columns."""

    def walk(node: ast.expr) -> ast.expr:
        match node:
            case ast.Name(id=name):
                names.append(quoted.get(name, name))
                return ast.Name(id=names[-1], ctx=ast.Load())
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float()):
                return node
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                return ast.UnaryOp(op=node.op, operand=walk(operand))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 1 <= power <= 10:
                return ast.BinOp(left=walk(left), op=ast.Pow(), right=node.right)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return ast.BinOp(left=walk(left), op=op, right=walk(right))
            case ast.Call(func=ast.Name(id="log" | "sqrt" as name), args=[argument], keywords=[]):
                return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[walk(argument)], keywords=[])
        raise StudyError(f"The formula term {shown(text)} is not supported. {_ALLOWED}")

    return walk(tree)


def interval_of(factor: Factor, bounds: Mapping[str, Interval]) -> Interval:
    """Bounds of a numeric factor, from the bounds of its columns, by interval arithmetic."""

    def walk(node: ast.expr) -> Interval:
        low, high = inner(node)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise OverflowError
        return low, high

    def inner(node: ast.expr) -> Interval:
        match node:
            case ast.Name(id=name):
                return bounds[name]
            case ast.Constant(value=int() | float() as value):
                return float(value), float(value)
            case ast.UnaryOp(op=op, operand=operand):
                low, high = walk(operand)
                return (-high, -low) if isinstance(op, ast.USub) else (low, high)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
                return _power(walk(left), power)
            case ast.BinOp(left=left, op=op, right=right):
                return _combine(walk(left), walk(right), op, factor.text)
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                return _call(name, walk(argument), factor)
        raise AssertionError(node)

    assert factor.tree is not None
    try:
        return walk(factor.tree)
    except OverflowError:
        raise StudyError(
            f"The bounds of {shown(factor.text)} are not finite. Tighten the bounds of {list(factor.variables)}."
        ) from None


def _power(base: Interval, power: int) -> Interval:
    low, high = base[0] ** power, base[1] ** power
    if power % 2 == 0 and base[0] < 0 < base[1]:
        return 0.0, max(low, high)
    return min(low, high), max(low, high)


def _combine(left: Interval, right: Interval, op: ast.operator, text: str) -> Interval:
    if isinstance(op, ast.Sub):
        return left[0] - right[1], left[1] - right[0]
    if isinstance(op, ast.Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(op, ast.Div) and right[0] <= 0 <= right[1]:
        raise StudyError(f"{shown(text)} divides by something whose bounds contain 0.")
    corners = [_OPERATORS[type(op)](a, b) for a in left for b in right]
    return min(corners), max(corners)


def _call(name: str, argument: Interval, factor: Factor) -> Interval:
    low, high = argument
    if name == "log":
        if low <= 0:
            raise StudyError(f"{shown(factor.text)} needs a lower bound above 0 for {list(factor.variables)}.")
        return math.log(low), math.log(high)
    if low < 0:
        raise StudyError(f"{shown(factor.text)} needs a lower bound of at least 0 for {list(factor.variables)}.")
    return math.sqrt(low), math.sqrt(high)


def raised(base: Any, power: int) -> Any:
    """A whole power, by the same products in all engines."""
    return functools.reduce(operator.mul, [base] * power)


def evaluate(factor: Factor, columns: Mapping[str, Floats]) -> Floats:
    """Evaluate a numeric factor on columns that already lie within their bounds."""

    def walk(node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return columns[name]
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.UnaryOp(op=op, operand=operand):
                return -walk(operand) if isinstance(op, ast.USub) else walk(operand)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
                return raised(walk(left), power)
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](walk(left), walk(right))
            case ast.Call(func=ast.Name(id="log"), args=[argument]):
                return np.log(walk(argument))
            case ast.Call(args=[argument]):
                return np.sqrt(walk(argument))
        raise AssertionError(node)

    assert factor.tree is not None
    return walk(factor.tree)  # type: ignore[no-any-return]


def product_interval(factors: tuple[Factor, ...], bounds: Mapping[str, Interval]) -> Interval:
    """Public bounds of a product of factors."""
    low, high = 1.0, 1.0
    for factor in factors:
        corners = [a * b for a in (low, high) for b in interval_of(factor, bounds)]
        low, high = min(corners), max(corners)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise StudyError(f"The bounds of {':'.join(factor.text for factor in factors)!r} are not finite.")
    return low, high
