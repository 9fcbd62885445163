"""Formulas: what is understood, what is refused, and bounds by interval arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dplinked.errors import StudyError
from dplinked.study.build import build_design
from dplinked.study.formula import evaluate, interval_of, parse_formula

BOUNDS = {"y": (0.0, 10.0), "x": (1.0, 4.0), "w": (-2.0, 3.0), "my col": (0.0, 2.0), "log(x)": (5.0, 6.0)}
LEVELS = {"g": ["a", "b", "c"], "s": ["u", "v"]}


@pytest.mark.parametrize(
    ("formula", "names"),
    [
        ("y ~ x", ("Intercept", "x")),
        ("y ~ 0 + x", ("x",)),
        ("y ~ x - 1", ("x",)),
        ("y ~ 1", ("Intercept",)),
        ("y ~ x*w", ("Intercept", "x", "w", "x:w")),
        ("y ~ log(x) + sqrt(x) + I(w**2)", ("Intercept", "log(x)", "sqrt(x)", "I(w ** 2)")),
        ("y ~ C(g)", ("Intercept", "C(g)[b]", "C(g)[c]")),
        ("y ~ g", ("Intercept", "g[b]", "g[c]")),
        ("y ~ 0 + C(g)", ("C(g)[a]", "C(g)[b]", "C(g)[c]")),
        ("y ~ x + C(s):x", ("Intercept", "x", "C(s)[v]:x")),
        ("y ~ 0 + C(s):x", ("C(s)[u]:x", "C(s)[v]:x")),
        ("y ~ C(g)*C(s)", ("Intercept", "C(g)[b]", "C(g)[c]", "C(s)[v]", "C(g)[b]:C(s)[v]", "C(g)[c]:C(s)[v]")),
        ("log(x) ~ `my col`", ("Intercept", "my col")),
        ("y ~ `log(x)`", ("Intercept", "log(x)")),
        ("y ~ I(x - x*0 - x)", ("Intercept", "I(x - x * 0 - x)")),
    ],
)
def test_understood(formula: str, names: tuple[str, ...]) -> None:
    assert build_design(formula, BOUNDS, LEVELS).names == names


def test_a_quoted_column_is_not_an_expression() -> None:
    assert build_design("y ~ `log(x)`", BOUNDS).columns[0].interval == (5.0, 6.0)
    assert build_design("y ~ log(x)", BOUNDS).columns[0].interval == (0.0, np.log(4.0))


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ scale(x)", "y ~ center(x)", "y ~ poly(x, 2)", "y ~ {x+1}", "y ~ np.log(x)", "y ~ bs(x, df=3)", "y ~ C(g, contr.sum)",
        "y ~ I(x**0.5)", "y ~ I(x**w)", "y ~ I(2)", "y ~ I(x.mean())", "y ~ I(__import__('os'))", "y ~ log(x, 2)", "y ~ I(x if w else y)",
        "y + w ~ x", "~ x", "y", "y ~ 0", "C(g) ~ x", "y ~ x +* w", "y ~ x[0]", "y ~ I(x**99)", "y ~ lag(x)", "y ~ hashed(x)", "y ~ x + x:y", "y ~ I(y**2)", "log(x) ~ x", "y ~ I(0*(x*1e200*1e200)+x)",
    ],
)  # fmt: skip
def test_refused(formula: str) -> None:
    with pytest.raises(StudyError):
        build_design(formula, BOUNDS, LEVELS)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ incme", "no declared bounds"),
        ("y ~ C(region)", "no declared levels"),
        ("y ~ log(w)", "lower bound above 0"),
        ("y ~ sqrt(w)", "at least 0"),
        ("y ~ I(1/w)", "contain 0"),
    ],
)
def test_says_what_is_missing(formula: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        build_design(formula, BOUNDS, LEVELS)


EXPRESSIONS = [
    "I(w**2)",
    "I(w**3)",
    "I(x*w - w)",
    "I(1/x + w)",
    "log(x)",
    "sqrt(x)",
    "I(-w)",
    "I((x+w)**2)",
    "I(log(x)*sqrt(x))",
    "I(x/(x+1))",
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(EXPRESSIONS), st.floats(1, 4), st.floats(-2, 3))
def test_interval_arithmetic_contains_every_value(text: str, x: float, w: float) -> None:
    factor = parse_formula(f"y ~ {text}").terms[0][0]
    low, high = interval_of(factor, BOUNDS)
    value = float(evaluate(factor, {"x": np.array([x]), "w": np.array([w])})[0])
    assert low - 1e-12 * abs(low) <= value <= high + 1e-12 * abs(high)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["y ~ x + C(g)*C(s)", "y ~ 0 + C(g) + C(s):w", "y ~ x*w + I(w**3)", "y ~ C(g):C(s)"]),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_no_row_exceeds_the_declared_radius(formula: str, seed: int, aimed: bool) -> None:
    """Row norms of regressors and instruments, in floating point, for any cells."""
    rng = np.random.default_rng(seed)
    typical = {"w": (-2.0, -1.5)} if aimed and "w" in formula else None
    design = build_design(formula, BOUNDS, LEVELS, typical)
    n = 50
    raw = {
        k: rng.choice([rng.uniform(*b, n), np.full(n, b[0]), np.full(n, b[1]), rng.normal(0, 1e9, n)])
        for k, b in design.bounds.items()
    }
    codes = {k: rng.integers(0, len(v), n).astype(np.int32) for k, v in design.levels.items()}
    x = np.empty((len(design.columns), n))
    design.regressors(design.numbers(raw), codes, x)
    h = np.empty_like(x)
    design.instruments(x, h)
    assert np.linalg.norm(x, axis=0).max() <= design.radius
    assert np.linalg.norm(h, axis=0).max() <= design.instrument_radius
    for group in design.groups:
        assert np.linalg.norm(x[group.start : group.stop], axis=0).max() <= group.radius * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["y ~ x + C(g) + w", "y ~ 0 + x + w", "y ~ x*w"]))
def test_coefficients_map_back(seed: int, formula: str) -> None:
    """Predictions on the scaled columns and in the user's units agree."""
    rng = np.random.default_rng(seed)
    design = build_design(formula, BOUNDS, LEVELS, {"x": (1.5, 2.0)})
    n = 20
    raw = {k: rng.uniform(*b, n) for k, b in design.bounds.items()}
    codes = {k: rng.integers(0, len(v), n).astype(np.int32) for k, v in design.levels.items()}
    scaled, plain = (np.empty((len(design.columns), n)) for _ in range(2))
    design.regressors(raw, codes, scaled)
    design.unscaled().regressors(raw, codes, plain)
    if design.intercept:
        scaled, plain = (np.vstack([np.ones(n), part]) for part in (scaled, plain))
    beta = rng.normal(size=len(design.names))
    matrix, offset = design.scaling.to_user()
    predicted = design.response.shift + design.response.scale * (beta @ scaled)
    np.testing.assert_allclose((matrix @ beta + offset) @ plain, predicted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bounds": {"y": (0, 1), "x": (2, 1)}}, "low one must come first"),
        ({"bounds": {"y": (0, 1), "x": (1, 1)}}, "low one must come first"),
        ({"bounds": {"y": (0, 1), "x": (0, float("nan"))}}, "finite"),
        ({"bounds": {"y": (0, 1), "x": (0, float("inf"))}}, "finite"),
        ({"bounds": {"y": (0, 1), "x": (0, 1, 2)}}, "two numbers"),
        ({"bounds": {"y": (0, 1), "x": "ab"}}, "two numbers"),
        ({"bounds": {"y": (0, 1), "x": (0, 1)}, "typical": {"x": (0.5, 2)}}, "within its bounds"),
        ({"bounds": {"y": (0, 1), "x": (0, 1)}, "typical": {"w": (0.5, 2)}}, "not a numeric column"),
        ({"bounds": {"y": (0, 1), "x": (0, 1)}, "fill": {"x": 3}}, "fill value"),
        ({"bounds": {"y": (0, 1), "x": (0, 1)}, "levels": {"g": ["a"]}}, "two different"),
        ({"bounds": {"y": (0, 1), "x": (0, 1)}, "levels": {"g": ["a", "a"]}}, "two different"),
        ({"bounds": {"y": (0, 1), "x": (0, 5e-324)}}, "too large or too close"),
        ({"bounds": {"y": (0, 1), "x": (-1.7e308, 1.7e308)}}, "too large or too close"),
    ],
)  # fmt: skip
def test_declarations_are_checked(arguments, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        build_design("y ~ x", **arguments)


def test_misspelled_columns_get_a_hint() -> None:
    with pytest.raises(StudyError, match="Did you mean 'income'"):
        build_design("y ~ incme", {"y": (0, 1), "income": (0, 1)})


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("x > 5", "holds for no row"),
        ("x < 0.5 and w > 0", "holds for no row"),
        ("not x <= 4.5", "holds for no row"),
        ("x * w > 13", "holds for no row"),
        ("not g in ['a', 'b', 'c']", "holds for no row"),
        ("g == a", "names the level 'a' without quotes: write 'a'"),
    ],
)
def test_conditions_that_declarations_rule_out_are_refused(where: str, told: str) -> None:
    with pytest.raises(StudyError, match=told):
        build_design("y ~ x", BOUNDS, LEVELS, where=where)


@pytest.mark.parametrize(
    "where", ["x >= 4", "x < 0.5 or w > 0", "not x > 5", "x * w < 12", "g != 'a'", "x == 1", "x != 1"]
)
def test_conditions_that_may_hold_are_taken(where: str) -> None:
    assert build_design("y ~ x", BOUNDS, LEVELS, where=where).counting is not None


@pytest.mark.parametrize(
    ("formula", "levels", "told"),
    [
        ("y ~ x^2", LEVELS, r"I\(income\*\*2\)"),
        ("y ~ x | w", LEVELS, "means nothing here"),
        ("y ~ g", {"g": {"a", "b"}}, "a set, which has no order"),
        ("y ~ x + h", LEVELS, "if it is a category, levels="),
    ],
)
def test_what_is_easily_misread_is_refused_with_a_hint(formula: str, levels: dict[str, Any], told: str) -> None:
    with pytest.raises(StudyError, match=told):
        build_design(formula, BOUNDS, levels)
