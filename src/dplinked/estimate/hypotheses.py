"""Linear hypotheses about coefficients, read from text."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, raise_alone, shown, suggest

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TestResult:
    """A test's hypothesis, its χ² statistic, degrees of freedom and p-value."""

    __test__ = False  # not a test for pytest

    hypothesis: str
    statistic: float
    degrees: int
    p_value: float

    def __str__(self) -> str:
        return f"{self.hypothesis}: chi2({self.degrees}) = {self.statistic:.4g}, p = {self.p_value:.4g}"


def parse_hypotheses(text: str | Sequence[str], names: Sequence[str]) -> tuple[Floats, Floats, str]:
    """Read ``"income = 0.5, a - 2*b = 0"`` as ``left β = right`` (q×p, q) over the named coefficients."""
    listed = [text] if isinstance(text, str) else text
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) for one in listed):
        raise StudyError(f"A hypothesis is a text like 'income = 0.5', or a list of such texts, not {shown(text)}.")
    asked = ", ".join(listed)
    hidden = {name: f"_c{k}_" for k, name in enumerate(names)}
    pieces = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.])(?:{pieces})(?!\w)")
    coded = pattern.sub(lambda match: hidden[match.group()], asked)
    left, right = [], []
    for part in coded.split(","):
        sides = part.split("=")
        if len(sides) != 2:
            raise StudyError(f"Write each hypothesis like 'income = 0.5'; {shown(asked)} is not.")
        difference = _linear(sides[0], asked, names) - _linear(sides[1], asked, names)
        if not difference[:-1].any():
            raise StudyError(f"A hypothesis in {shown(asked)} names no coefficient.")
        left.append(difference[:-1])
        right.append(-difference[-1])
    return np.array(left), np.array(right), asked


def _linear(side: str, asked: str, names: Sequence[str]) -> Floats:
    """Coefficients of a linear expression, the constant last."""
    size = len(names) + 1

    def walk(node: ast.expr) -> Floats:
        out = np.zeros(size)
        match node:
            case ast.Constant(value=int() | float() as value):
                out[-1] = value
                return out
            case ast.Name(id=name) if re.fullmatch(r"_c\d+_", name):
                out[int(name[2:-1])] = 1.0
                return out
            case ast.Name(id=name):
                raise StudyError(f"There is no coefficient {name!r}.{suggest(name, names)}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -walk(operand)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return walk(left) + walk(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return walk(left) - walk(right)
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as op, right=right):
                first, second = walk(left), walk(right)
                if isinstance(op, ast.Div) and not second[:-1].any() and second[-1]:
                    return np.asarray(first / second[-1])
                if isinstance(op, ast.Mult) and not (first[:-1].any() and second[:-1].any()):
                    return np.asarray(first * second[-1] if first[:-1].any() else second * first[-1])
        raise StudyError(f"{shown(asked)} is not linear in the coefficients {list(names)}.")

    try:
        return walk(ast.parse(side.strip(), mode="eval").body)
    except SyntaxError:
        raise_alone(StudyError(f"{shown(asked)} cannot be read. Write hypotheses like 'income = 0.5, a - b = 0'."))
