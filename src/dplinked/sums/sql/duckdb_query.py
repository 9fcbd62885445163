"""A SELECT that DuckDB runs once: what it may say, the databases it reads, and its result, frozen for all passes.

A query runs a single time, and its result is kept as a table of our own. The fingerprint and all sums read that table, so a query cannot show
different rows to them. What one person's cell can make fail is refused before it runs: an error is an answer that nobody paid for.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dplinked.data.sources import Query
from dplinked.errors import StudyError, raise_alone, shown_place
from dplinked.sums.sql.dialect import UNREADABLE, Kept
from dplinked.sums.sql.duckdb_engine import DuckDBEngine, connect

_FAULT = "The query fails: DuckDB finds a fault in it, or a table or file is missing."
_OPERATORS = (
    "/",
    "||",
    "~~",
    "!~~",
    "~~*",
    "!~~*",
    "~~~",
    "^@",
)  # division gives a double; the others compare or join texts
_AGGREGATES = ("count", "count_star", "min", "max", "avg", "any_value", "first", "last", "bool_and", "bool_or")
_TEXTS = ("upper", "lower", "trim", "ltrim", "rtrim", "length", "concat", "starts_with", "ends_with", "contains")
_OTHERS = ("greatest", "least", "isnan", "isfinite", "year", "month", "day", "struct_pack", "list_value", "row")
_TABLES = ("parquet_scan", "range", "generate_series", "unnest")
_WINDOWS = ("row_number", "rank", "dense_rank", "lag", "lead", "first_value", "last_value")
TOTAL = frozenset((*_OPERATORS, *_AGGREGATES, *_TEXTS, *_OTHERS, *_TABLES, *_WINDOWS))


class FrozenQuery:
    """The result of a query, which ran once, in a database of our own.

    Parameters
    ----------
    query
        The query.
    columns
        Names of the columns to keep; all of them unless given.
    threads
        Number of threads; as many as the machine has cores by default.

    Attributes
    ----------
    engine, source
        Runs statements, and what stands behind ``from`` in them.
    names, known
        Names of the columns that were kept, and of all columns of the query.
    """

    def __init__(self, query: Query, columns: Sequence[str] | None = None, threads: int | None = None) -> None:
        _check_single(query.query)
        connection = connect(threads)
        self.engine = DuckDBEngine(connection)
        if query.folder is not None:
            connection.execute(f"set file_search_path = {_quoted(_plain_path(connection, query.folder))}")
        for name, database in query.attach.items():
            _attach(connection, name, database, query.folder)
        text = _bare(query.query)
        check_total(connection, text)
        self.known: list[str] = []
        plan = ""
        try:
            relation = connection.sql(text)
            self.known = list(relation.columns)  # in a subquery DuckDB would rename those that differ in case only
            plan = relation.explain()
        except Exception:
            raise_alone(StudyError(_FAULT))
        refuse_guessed_types(plan)
        wanted = [i for i, name in enumerate(self.known) if columns is None or name in columns] or [0]
        self.names = [self.known[i] for i in wanted]
        self._kept = freeze(self.engine, f"({text}\n) query", len(self.known), wanted)
        self.source = self._kept.name
        for name in query.attach:  # their files are closed
            connection.execute(f"detach {_identifier(name)}")


def freeze(engine: DuckDBEngine, source: str, width: int, wanted: Sequence[int]) -> Kept:
    """Keep some of a source's columns, by position, as a table that no change of the source reaches."""
    kept = Kept(engine, "frozen")
    numbered = ", ".join(f"c{i}" for i in range(width))
    try:
        engine.keep(
            kept.name,
            f"select {', '.join(f'c{i}' for i in wanted)} from (select * from {source}) source({numbered})",
        )
    except Exception:
        raise_alone(StudyError(UNREADABLE))
    return kept


def check_total(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse a query in which an expression may fail for one cell: a cast, arithmetic or a function that is not known to be total.

    The query's own text and the definitions of the views that it names are looked at. Inside ``try(…)`` everything is allowed, since what fails there
    is null.
    """
    pending, seen = [query], set[str]()
    views = _view_texts(connection)
    while pending:
        tree = _parsed(connection, pending.pop())
        for node in _nodes(tree):
            if (found := _partial(node)) is not None:
                raise StudyError(
                    f"The query uses {found}, which can fail for a single person's cell and so tell about it. Write try_cast(column as type) for a cast, "
                    "and try(…) around arithmetic and other functions: what fails inside is null."
                )
            name = str(node.get("table_name", "")).lower()
            if name in views and name not in seen:
                seen.add(name)
                pending.append(views[name])


def _parsed(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The syntax tree of a SELECT."""
    tree: Any = None
    try:
        ((text,),) = connection.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
        tree = json.loads(text)
    except Exception:
        raise_alone(StudyError(_FAULT))
    if tree.get("error"):
        raise StudyError(_FAULT)
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a tree that stand outside ``try(…)``."""
    if isinstance(tree, list):
        for part in tree:
            yield from _nodes(part)
    elif isinstance(tree, dict) and tree.get("type") != "OPERATOR_TRY":
        yield tree
        for part in tree.values():
            yield from _nodes(part)


def _partial(node: Mapping[str, Any]) -> str | None:
    """What makes an expression fail for some cell; None for an expression that has a value for all cells."""
    name = node.get("function_name")
    if node.get("class") == "CAST":
        constant = isinstance(node.get("child"), dict) and node["child"].get("class") == "CONSTANT"
        return None if node.get("try_cast") or constant else "a cast"
    if node.get("class") not in ("FUNCTION", "WINDOW") or name in TOTAL or _is_sum_of_doubles(node):
        return None
    return None if str(name).startswith("read_") else f"{name!r}"  # files with guessed types are refused by the plan


def _is_sum_of_doubles(node: Mapping[str, Any]) -> bool:
    """Whether this is a sum of ``try_cast(… as double)``, which cannot overflow into an error as sums of whole numbers and decimals can."""
    summed = [argument.get("expression", {}) for argument in node.get("arguments", [])]
    doubles = [one.get("try_cast") and one["type_expr"].get("type_name", "").lower() == "double" for one in summed]
    return node.get("function_name") == "sum" and doubles == [True]


def _view_texts(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The SELECT of each view that a user made, by its name in lower case."""
    found = connection.execute("select lower(view_name), sql from duckdb_views() where not internal").fetchall()
    return {
        name: re.sub(r"(?is)^\s*create\s.*?\sas\s+(?=with\b|select\b|from\b|\()", "", sql).rstrip("; \n")
        for name, sql in found
    }


def refuse_guessed_types(plan: str) -> None:
    """Refuse queries over CSV and JSON files and pandas' objects: DuckDB takes their types from cells, so one cell would change what others mean."""
    if re.search(r"READ_(CSV|JSON|NDJSON)|PANDAS_SCAN", plan):
        raise StudyError(
            "A query over a CSV or JSON file, or over a pandas frame, would guess types from cells. Give the file's path or the frame itself, or "
            "convert it to Parquet."
        )


def _check_single(query: str) -> None:
    """Refuse everything but a single SELECT."""
    statements = None
    try:
        statements = duckdb.extract_statements(query)
    except Exception:
        raise_alone(StudyError("The query cannot be read as SQL."))
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise StudyError("Give one SELECT statement, and nothing else.")


def _bare(query: str) -> str:
    """A statement without the semicolons and comments behind it."""
    content = query.encode()
    for start, kind in reversed(duckdb.tokenize(query)):
        if kind != duckdb.token_type.comment and content[start : start + 1] != b";":
            break
        content = content[:start]
    return content.decode()


def _plain_path(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """A folder's path. If it has commas, DuckDB would take it for a list of paths, so a link to it is made."""
    path = folder.resolve()
    if "," not in str(path):
        return str(path)
    place = tempfile.mkdtemp(prefix="dplinked-")
    weakref.finalize(connection, shutil.rmtree, place, ignore_errors=True)
    link = Path(place) / "rows"
    try:
        link.symlink_to(path, target_is_directory=True)
    except OSError:
        raise_alone(StudyError("DuckDB cannot look for files in a folder whose path has a comma. Rename it."))
    return str(link)


def _attach(connection: duckdb.DuckDBPyConnection, name: str, database: str, folder: Path | None) -> None:
    """Attach a database to be read, with an extension that is installed already."""
    extension = "postgres" if database.startswith(("postgres:", "postgresql:")) else None
    if extension is None:
        path = (folder or Path()) / database
        if not path.is_file():
            raise StudyError(f"There is no database {shown_place(path)} at the given path.")
        with path.open("rb") as file:
            extension = "sqlite" if file.read(15) == b"SQLite format 3" else None
        database = str(path.resolve())
    if extension is not None:
        try:
            connection.execute(f"load {extension}")
        except Exception:
            raise_alone(
                StudyError(
                    f"Database {name!r} needs DuckDB's extension {extension!r}. Install it once, with access to the "
                    f'network: duckdb.sql("install {extension}").'
                )
            )
    kind = "" if extension is None else f"type {extension}, "
    try:
        connection.execute(f"attach {_quoted(database)} as {_identifier(name)} ({kind}read_only)")
    except Exception:
        raise_alone(StudyError(f"Database {name!r} cannot be opened."))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
