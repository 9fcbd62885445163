"""Whether a query has a value for all cells, so that no single cell can make it fail.

An error is an answer that nobody paid for. DuckDB binds the query without running it, and the bound plan is looked through: it shows all casts with
their types, also those that DuckDB adds by itself, and what views, macros and generated columns are made of. What is not known to be total is
refused, unless it stands inside ``try(…)``, where what fails is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from dplinked.errors import StudyError, raise_alone, shown

_STEPS = frozenset(
    f"LOGICAL_{step}"
    for step in (
        "GET", "PROJECTION", "FILTER", "COMPARISON_JOIN", "CROSS_PRODUCT", "ANY_JOIN", "UNION", "EXCEPT", "INTERSECT", "DISTINCT", "ORDER_BY",
        "AGGREGATE_AND_GROUP_BY", "WINDOW", "LIMIT", "MATERIALIZED_CTE", "CTE_REF", "DUMMY_SCAN", "EXPRESSION_GET", "EMPTY_RESULT", "COLUMN_DATA_GET",
    )
)  # fmt: skip
_SCANS = ("seq_scan", "range", "generate_series")
_JOINS = ("INNER", "LEFT", "RIGHT", "OUTER", "SEMI", "ANTI", "MARK")  # a single join fails on a second row
_EXPRESSIONS = ("REF", "COLUMN_REF", "CONSTANT", "CASE", "CONJUNCTION", "COMPARISON", "BETWEEN")
_OPERATORS = (
    "OPERATOR_IS_NULL",
    "OPERATOR_IS_NOT_NULL",
    "OPERATOR_NOT",
    "OPERATOR_COALESCE",
    "COMPARE_IN",
    "COMPARE_NOT_IN",
)
_DIGITS = {
    "TINYINT": 3, "UTINYINT": 3, "SMALLINT": 5, "USMALLINT": 5, "INTEGER": 10, "UINTEGER": 10, "BIGINT": 19, "UBIGINT": 20, "HUGEINT": 39,
}  # fmt: skip
_DOUBLES = ("DOUBLE", "FLOAT")
_TEXTS = frozenset(
    ("||", "concat", "~~", "!~~", "~~*", "!~~*", "~~~", "upper", "lower", "trim", "ltrim", "rtrim", "length", "starts_with", "ends_with",
     "contains", "prefix", "suffix", "^@"),
)  # fmt: skip
_ARITHMETIC = ("+", "-", "*", "/", "abs", "round", "floor", "ceil")  # total for doubles: they overflow into infinity
_OTHERS = ("greatest", "least", "isnan", "isfinite", "isinf", "year", "month", "day")
_AGGREGATES = ("count", "count_star", "min", "max", "any_value", "first", "last", "bool_and", "bool_or")
_WINDOWS = ("ROW_NUMBER", "RANK", "RANK_DENSE", "LEAD", "LAG", "FIRST_VALUE", "LAST_VALUE", "AGGREGATE")
_NOT_CAUGHT = ("timezone", "time_bucket", "like_escape", "ilike_escape", "not_like_escape", "not_ilike_escape")


def check_total(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse a query in which something may fail for one cell. Nothing of it is run."""
    plan: Any = None
    try:
        ((text,),) = connection.execute("select json_serialize_plan(?::varchar, optimize := false)", [query]).fetchall()
        plan = json.loads(text)
    except Exception:
        raise_alone(StudyError("The query cannot be read as SQL."))
    if plan.get("error"):
        raise StudyError(
            "The query fails, or cannot be checked: DuckDB finds a fault in it, a table or file is missing, or a view reads files by itself."
        )
    for node in _outside_try(plan):
        if (found := _partial(node)) is not None:
            raise StudyError(
                f"The query uses {found}, which can fail for a single person's cell and so tell about it. Write try_cast(column as type) for a cast, also "
                "where columns of different types are compared, and try(…) around arithmetic and other functions: what fails inside is null."
            )


def _outside_try(tree: Any) -> Iterator[Mapping[str, Any]]:
    """All nodes of a plan that stand outside ``try(…)``, and of those inside the functions whose errors it does not catch."""
    if isinstance(tree, list):
        for part in tree:
            yield from _outside_try(part)
    elif isinstance(tree, dict):
        if tree.get("type") == "OPERATOR_TRY":
            yield from (node for node in all_nodes(tree) if _function(node) in _NOT_CAUGHT)
            return
        yield tree
        for part in tree.values():
            yield from _outside_try(part)


def all_nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a tree that DuckDB wrote as JSON."""
    if isinstance(tree, list):
        for part in tree:
            yield from all_nodes(part)
    elif isinstance(tree, dict):
        yield tree
        for part in list(tree.values()):
            yield from all_nodes(part)


def _partial(node: Mapping[str, Any]) -> str | None:
    """What may fail in a node of the plan, in words; None for a node that is total."""
    kind, form = str(node.get("type", "")), str(node.get("expression_class", ""))
    if kind.startswith("LOGICAL_"):
        return _partial_step(kind, node)
    if not form or form.removeprefix("BOUND_") in _EXPRESSIONS or kind in _OPERATORS or kind.startswith("COMPARE_"):
        return None
    if kind == "OPERATOR_CAST":
        return None if _is_total_cast(node) else "a cast"
    if form == "BOUND_WINDOW":
        return _partial_window(kind, node)
    name = _function(node)
    total = _is_total_aggregate(name, node) if form == "BOUND_AGGREGATE" else _is_total_function(name, node)
    return None if total else shown(name) if name else "an expression that is not known to be safe"


def _partial_step(kind: str, node: Mapping[str, Any]) -> str | None:
    if kind not in _STEPS:
        return kind.removeprefix("LOGICAL_").lower().replace("_", " ")
    if kind == "LOGICAL_GET" and (
        _function(node) not in _SCANS or node.get("children")
    ):  # children: its arguments come from rows
        return shown(_function(node))
    if kind == "LOGICAL_COMPARISON_JOIN" and node.get("join_type") not in _JOINS:
        return "a subquery that must have one row"
    limits = [node.get(name) or {} for name in ("limit_val", "offset_val")]
    return "a limit from a subquery" if any(limit.get("expression") for limit in limits) else None


def _partial_window(kind: str, node: Mapping[str, Any]) -> str | None:
    name, bounds = kind.removeprefix("WINDOW_"), (node.get("start_expr"), node.get("end_expr"))
    known = name in _WINDOWS and not any(bounds)
    return (
        None if known and (name != "AGGREGATE" or _is_total_aggregate(_function(node), node)) else "a window function"
    )


def _function(node: Mapping[str, Any]) -> str:
    """The name of a function of DuckDB's own; those of users are shown as what they are made of."""
    path = (node.get("qname") or {}).get("path") or [""]
    return str(path[-1])


def _arguments(node: Mapping[str, Any]) -> list[str]:
    """The types of the arguments, as they come in."""
    return [_type(child) for child in node.get("children", [])]


def _type(node: Mapping[str, Any]) -> str:
    return str((node.get("return_type") or {}).get("id", "CONSTANT"))


def _is_total_function(name: str, node: Mapping[str, Any]) -> bool:
    return name in _TEXTS or name in _OTHERS or (name in _ARITHMETIC and _type(node) in _DOUBLES)


def _is_total_aggregate(name: str, node: Mapping[str, Any]) -> bool:
    """Sums of 64-bit whole numbers have room in 128 bits."""
    types = _arguments(node)
    small = all(type in _DOUBLES or _DIGITS.get(type, 99) < 20 for type in types)
    return (name in _AGGREGATES and len(types) <= 1) or (name in ("sum", "avg") and small)


def _is_total_cast(node: Mapping[str, Any]) -> bool:
    """Whether a cast has a value for all values of its type: one that gives null, one of a constant, and one to a type that holds all of them."""
    (child,) = node.get("children", [{}])
    source, target = _type(child), _type(node)
    if (node.get("function_data") or {}).get("try_cast") or child.get("expression_class") == "BOUND_CONSTANT":
        return True
    if target == "VARCHAR" or source == target != "DECIMAL":
        return True
    if target in _DOUBLES:
        return source in _DIGITS or source in ("BOOLEAN", "DECIMAL") or (source, target) == ("FLOAT", "DOUBLE")
    if target in _DIGITS:
        signs = source.startswith("U") or not target.startswith("U")
        return source == "BOOLEAN" or (source in _DIGITS and _DIGITS[source] < _DIGITS[target] and signs)
    return target == "DECIMAL" and _fits_decimal(child, source, node)


def _fits_decimal(child: Mapping[str, Any], source: str, node: Mapping[str, Any]) -> bool:
    """Whether all whole numbers or decimals of a type fit into a decimal type."""
    width, scale = _digits(node)
    if source == "DECIMAL":
        had, behind = _digits(child)
        return had - behind <= width - scale and behind <= scale
    return _DIGITS.get(source, 99) <= width - scale


def _digits(node: Mapping[str, Any]) -> tuple[int, int]:
    """Digits of a decimal type, and how many of them stand behind the point."""
    info = node["return_type"].get("type_info") or {}
    return int(info.get("width", 0)), int(info.get("scale", 0))
