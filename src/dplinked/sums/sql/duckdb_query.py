"""A SELECT that DuckDB runs once: which files and databases it reads, and its result, frozen for all passes.

A query runs a single time, and its result is kept as a table of our own. The fingerprint and all sums read that table, so a query cannot show
different rows to them. Files are named by absolute paths before it runs: DuckDB would look for them in the working directory first. What one person's
cell could make fail is refused before it runs (:mod:`dplinked.sums.sql.duckdb_total`).
"""

from __future__ import annotations

import copy
import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dplinked.data.sources import Query
from dplinked.errors import StudyError, raise_alone, shown_place
from dplinked.sums.sql.dialect import UNREADABLE, Kept
from dplinked.sums.sql.duckdb_engine import DuckDBEngine, connect
from dplinked.sums.sql.duckdb_files import escaped
from dplinked.sums.sql.duckdb_total import all_nodes, check_total

_FAULT = "The query fails: DuckDB finds a fault in it, or a table or file is missing."
_GUESSED = (
    "A query over a CSV or JSON file, or over a pandas frame, would guess types from cells. Give the file's path or the frame itself, or "
    "convert it to Parquet."
)
_PARTITIONS = "A query over folders that are named column=value would guess types from their names. Give the folder's path instead of a query."
_READERS = ("read_parquet", "parquet_scan")
_SHAPE = "dplinked_shape_"  # name of an empty table with the columns of a file


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
        foreign = {name for name, database in query.attach.items() if _attach(connection, name, database, query.folder)}
        tree = _parsed(connection, _bare(query.query))
        _locate_files(tree, Path(os.path.realpath(query.folder or Path())))
        text = _written(connection, tree)
        check_total(connection, _with_empty_tables(connection, tree, foreign))
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


# --- the syntax tree: which files a query reads ----------------------------------------------------------


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


def _written(connection: duckdb.DuckDBPyConnection, tree: Any) -> str:
    """The SELECT of a syntax tree."""
    text = ""
    try:
        ((text,),) = connection.execute("select json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()
    except Exception:
        raise_alone(StudyError(_FAULT))
    return str(text)


def _file_nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """The nodes that name Parquet files. Files of other kinds are refused, since their types would be guessed from cells."""
    named = {str(node["key"]) for node in all_nodes(tree) if "key" in node and "value" in node}  # by `with`
    for node in all_nodes(tree):
        if node.get("type") == "BASE_TABLE" and not (node["schema_name"] or node["catalog_name"]):
            name = node["table_name"]
            if name not in named and re.search(r"[./\\*?]", name):
                if not name.lower().endswith((".parquet", ".pq")):
                    raise StudyError(_GUESSED)
                yield node
        elif node.get("type") == "TABLE_FUNCTION":
            name = node["function"]["function_name"]
            if name in _READERS:
                yield node
            elif name.startswith("read_") or name.endswith("_scan") or name.startswith("sniff_"):
                raise StudyError(_GUESSED)


def _locate_files(tree: Any, folder: Path) -> None:
    """Give all files absolute paths, relative ones from the folder on."""
    for node in _file_nodes(tree):
        if node["type"] == "BASE_TABLE":
            path = _absolute(node["table_name"], folder)
            node.update(table_name=path, qualified_name={"path": [path]})
            _check_files(path)
            continue
        for text in all_nodes(node["function"]["arguments"][:1]):
            if text.get("kind") == "STRING":
                text["text"] = _absolute(text["text"], folder)
                _check_files(text["text"])


def _absolute(name: str, folder: Path) -> str:
    """The path of files; in the folder's own name the characters of globs stand for themselves."""
    return name if "://" in name or Path(name).is_absolute() else f"{escaped(str(folder))}/{name}"


def _check_files(path: str) -> None:
    """Refuse files whose types follow from other files: from the names of folders like column=value, or from the first file's types."""
    import pyarrow as pa
    import pyarrow.parquet

    files, schemas = glob.glob(path, recursive=True), []
    if any("=" in part for file in files or [path] for part in Path(file).parent.parts):
        raise StudyError(_PARTITIONS)
    try:
        schemas = [pyarrow.parquet.read_schema(file) for file in files]
    except (pa.ArrowException, OSError):
        raise_alone(StudyError(_FAULT))
    if any(not schema.equals(schemas[0]) for schema in schemas):
        raise StudyError("The Parquet files of a query do not all have the same columns with the same types.")


def _with_empty_tables(connection: duckdb.DuckDBPyConnection, tree: Any, foreign: set[str]) -> str:
    """The same SELECT over empty tables in place of files and of tables of other databases, whose scans DuckDB does not show in a plan."""
    tree = copy.deepcopy(tree)
    listed = [*_file_nodes(tree), *(node for node in all_nodes(tree) if _is_foreign(node, foreign))]
    for k, node in enumerate(listed):
        shape = _parsed(connection, "select * from x limit 0")
        shape["statements"][0]["node"]["from_table"] = {**node, "alias": "", "column_name_alias": []}
        try:
            connection.execute(f"create temp table {_SHAPE}{k} as {_written(connection, shape)}")
        except StudyError:
            raise
        except Exception:
            raise_alone(StudyError(_FAULT))
        table = _parsed(connection, f"select * from {_SHAPE}{k}")["statements"][0]["node"]["from_table"]
        alias, columns = node["alias"] or _alias(node), node["column_name_alias"]
        node.clear()
        node.update({**table, "alias": alias, "column_name_alias": columns})
    return _written(connection, tree)


def _is_foreign(node: dict[str, Any], foreign: set[str]) -> bool:
    """Whether a node is a table of a database that is not DuckDB's."""
    return node.get("type") == "BASE_TABLE" and bool({node["schema_name"], node["catalog_name"]} & foreign)


def _alias(node: dict[str, Any]) -> str:
    """The name by which a query may call a table that it gives no name."""
    if node["type"] == "TABLE_FUNCTION":
        return str(node["function"]["function_name"])
    name = str(node["table_name"])
    return Path(name).stem if name.lower().endswith((".parquet", ".pq")) else name


# --- what is refused, and attached databases ---------------------------------------------------------------


def refuse_guessed_types(plan: str) -> None:
    """Refuse queries over CSV and JSON files and pandas' objects: DuckDB takes their types from cells, so one cell would change what others mean."""
    if re.search(r"READ_(CSV|JSON|NDJSON)|PANDAS_SCAN", plan):
        raise StudyError(_GUESSED)


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


def _attach(connection: duckdb.DuckDBPyConnection, name: str, database: str, folder: Path | None) -> bool:
    """Attach a database to be read, with an extension that is installed already. Returns whether it is not one of DuckDB's own."""
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
    return extension is not None


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
