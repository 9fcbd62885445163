"""Linked rows that DuckDB reads: files, a SELECT over databases, a relation."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dplinked.data.arrow import to_arrow
from dplinked.data.csv import FROM_TEXT
from dplinked.data.files import find_files
from dplinked.data.sources import is_spark
from dplinked.errors import StudyError, raise_alone
from dplinked.sums.sql.dialect import UNREADABLE, WHITESPACE, Engine, Field, Kept, decimal_field, integer_limits
from dplinked.sums.sql.passes import SqlRows

_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_KINDS = {
    "BOOLEAN": "boolean",
    "FLOAT": "float",
    "DOUBLE": "float",
    "VARCHAR": "text",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "instant",
}
_LONGEST = 1 << 27  # bytes of a line of CSV, or of a JSON record
_VIEW = "dplinked_rows"  # a relation's name in its own connection
_NO_SCANS = (
    "This DuckDB connection may not read tables of Python's, which accuracies and pairs are. Set enable_external_access and "
    "python_enable_replacements to true, or save the rows to a file."
)


class DuckDBEngine(Engine):
    """SQL as DuckDB has it, on a connection, or on the connection of a relation."""

    same = "is not distinct from"
    collate = 'collate "C"'
    text_type = "varchar"
    checks_cells = True

    def __init__(self, connection: duckdb.DuckDBPyConnection | None, relation: Any = None) -> None:
        self._connection, self._relation = connection, relation

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its few rows."""
        if self._connection is not None:
            return self._connection.execute(statement).fetchall()
        found = self._relation.query(_VIEW, statement)
        return [] if found is None else list(found.fetchall())

    def keep(self, name: str, query: str) -> None:
        """Keep a query's result as a temporary table."""
        self.run(f"create temp table {name} as {query}")

    def keep_table(self, name: str, table: Any, columns: str) -> None:
        """Keep columns of an Arrow table as a temporary table; DuckDB finds it among this module's variables."""
        variable = self._free_name(f"{name}_given")
        globals()[variable] = table
        try:
            self.run(f"create temp table {name} as select {columns} from {variable}")
        except duckdb.CatalogException:
            raise_alone(StudyError(_NO_SCANS))
        finally:
            del globals()[variable]

    def _free_name(self, name: str) -> str:
        """A name that no table or view of the connection has: these would be found before a variable is."""
        listed = "select table_name as n from duckdb_tables() union all select view_name from duckdb_views()"
        while self.run(f"select n from ({listed}) listed where lower(n) = {self.text(name)} limit 1"):
            name += "_"
        return name

    def drop(self, name: str) -> None:
        """Drop a temporary table; never fails."""
        try:
            self.run(f"drop table if exists {name}")
        except Exception:  # the connection is closed, and the table with it
            return

    def double(self, value: float) -> str:
        """A literal with an exponent: without one it would be a decimal."""
        text = repr(float(value))
        text = text if "e" in text else f"{text}e0"
        return f"({text})" if text.startswith("-") else text

    def text(self, value: str) -> str:
        """A text literal, in hexadecimal."""
        return f"decode(unhex('{value.encode().hex()}'))"

    def whole(self, value: str) -> str:
        """The cast rounds to the nearest whole number, ties to even."""
        return f"cast({value} as bigint)"

    def matches(self, value: str, pattern: str) -> str:
        """Whether a whole text matches a regular expression."""
        return f"regexp_full_match({value}, {self.text(pattern)})"

    def trimmed(self, value: str) -> str:
        """A text without ASCII whitespace around it."""
        return f"trim({value}, {self.text(WHITESPACE)})"

    def divided(self, left: str, right: str) -> str:
        """Division by zero gives infinity or null, never an error."""
        return f"({left} / {right})"

    def finite(self, number: str) -> str:
        """Not a comparison: DuckDB would decide it by a Parquet file's smallest and largest value, which pass over NaN."""
        return f"isfinite({number})"

    def histograms(self, query: str, size: int) -> str:
        """All columns in one scan."""
        names = [f"p{i}" for i in range(size)]
        which = "".join(f" when grouping({name}) = 0 then {i}" for i, name in enumerate(names))
        return (
            f"select case{which} end, coalesce({', '.join(names)}), count(*) from ({query}) places "
            f"group by grouping sets ({', '.join(f'({name})' for name in names)})"
        )

    def quantile(self, value: str, share: float) -> str:
        """An approximate quantile."""
        return f"approx_quantile({value}, {share})"

    def sha256(self, text: str) -> str:
        """SHA-256 of a text, in hexadecimal."""
        return f"sha256({text})"

    def hex_number(self, text: str) -> str:
        """Hexadecimal digits as a number; sums of these are 128 bits wide."""
        return f"cast(concat('0x', {text}) as bigint)"

    def open_pairs(self, pairs: Any) -> tuple[str, tuple[Field, ...], Kept | None]:
        """Source and fields of the pairs of a matching matrix."""
        if is_spark(pairs):
            raise StudyError("The pairs are a Spark frame, the rows are not. Save the pairs as a Parquet file.")
        if isinstance(pairs, (str, Path)):
            files = find_files(pairs)
            source, names, parsed = _file_source(list(files.paths), files.kind)
            return *self.read_fields(source, names, parsed), None
        kept = Kept(self, "table")
        self.keep_table(kept.name, to_arrow(pairs, "pairs"), "*")
        return *self.read_fields(kept.name), kept

    def read_fields(
        self, source: str, names: Sequence[str] | None = None, parsed: frozenset[str] = frozenset()
    ) -> tuple[str, tuple[Field, ...]]:
        """A source with its columns renamed to c0, c1, …, and its fields."""
        described = None
        try:
            described = [(str(row[0]), str(row[1])) for row in self.run(f"describe select * from {source}")]
        except Exception:
            raise_alone(StudyError(UNREADABLE))
        columns = ", ".join(f"c{i}" for i in range(len(described)))
        listed = names if names is not None else [name for name, _ in described]
        fields = (
            make_field(name, f"c{i}", kind, name in parsed)
            for i, (name, (_, kind)) in enumerate(zip(listed, described, strict=True))
        )
        return f"(select * from {source}) source({columns})", tuple(fields)


def make_field(name: str, sql: str, type: str, parsed: bool = False) -> Field:
    """The field of a DuckDB type."""
    unsigned = type.startswith("U") and type[1:] in _INTEGERS
    if type in _INTEGERS or unsigned:
        bits = _INTEGERS[type[1:] if unsigned else type]
        return Field(name, sql, "integer", type, limits=integer_limits(bits, not unsigned))
    if type.startswith("DECIMAL("):
        return decimal_field(name, sql, type)
    if type.startswith("ENUM("):
        return Field(name, f"cast({sql} as varchar)", "text", "VARCHAR")
    if type.strip('"') == "NULL":
        return Field(name, "cast(null as integer)", "integer", "INTEGER", limits=integer_limits(32, True))
    kind = _KINDS.get(type, "other")
    if type == "FLOAT":
        return Field(name, f"cast({sql} as double)", kind, "DOUBLE")
    if type in ("TIMESTAMP_S", "TIMESTAMP_MS"):
        return Field(name, f"try_cast({sql} as timestamp)", kind, "TIMESTAMP")
    return Field(name, sql, kind, type, parsed=parsed and kind == "text")


class DuckDBRows(SqlRows):
    """Linked rows in DuckDB.

    Parameters
    ----------
    connection
        Where statements run.
    source
        What stands behind ``from``.
    names
        Names of the columns, if they are others than DuckDB gives them.
    parsed
        Columns of texts that hold whatever a CSV file held.
    relation
        Instead of a connection, the relation on whose connection statements run.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection | None,
        source: str,
        names: Sequence[str] | None = None,
        parsed: frozenset[str] = frozenset(),
        *,
        relation: Any = None,
    ) -> None:
        engine = DuckDBEngine(connection, relation)
        super().__init__(engine, *engine.read_fields(source, names, parsed))


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A database of our own in memory that spills to a private folder; the order of rows is of no account.

    Extensions are never downloaded: what reads the rows is what the steward installed.
    """
    folder = tempfile.mkdtemp(prefix="dplinked-")
    settings: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": folder,
        "memory_limit": "60%",
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "ieee_floating_point_ops": "true",
        **({} if threads is None else {"threads": str(int(threads))}),
    }
    connection = duckdb.connect(":memory:", config=settings)
    weakref.finalize(connection, shutil.rmtree, folder, ignore_errors=True)
    return connection


def open_files(paths: Sequence[str | Path] | str, kind: str, *, threads: int | None = None) -> DuckDBRows:
    """Rows of files of one kind: ``"csv"``, ``"json"`` (an array, or a record per line) or ``"parquet"``.

    CSV and JSON files have no types, and guessing them would look at cells: all columns are texts, and a cell is a
    number if its text is. They are read through once here, so that a file that cannot be read is found out now.
    """
    files = list(find_files(paths).paths) if isinstance(paths, str) else [Path(path) for path in paths]
    connection = connect(threads)
    if kind == "json":
        return DuckDBRows(connection, *_json_source(connection, files))
    source, names, parsed = _file_source(files, kind)
    if kind == "csv":
        _read_through(connection, source, files)
    rows = DuckDBRows(connection, source, names, parsed)
    rows._engine.checks_cells = kind != "csv"
    return rows


def _file_source(files: Sequence[Path], kind: str) -> tuple[str, list[str] | None, frozenset[str]]:
    """What stands behind ``from``, names of the columns and those that hold texts to parse."""
    if kind == "csv":
        return _csv_source(files)
    if kind == "parquet":
        return _parquet_source(files)
    raise StudyError(f"Files of kind {kind!r} are not read. Give CSV, JSON or Parquet files.")


def _csv_source(files: Sequence[Path]) -> tuple[str, list[str], frozenset[str]]:
    """The dialect of Python's csv module and Arrow; only an empty field without quotes is null."""
    headers = [_read_header(file) for file in files]
    names = headers[0]
    if any(header != names for header in headers):
        raise StudyError("The CSV files do not all have the same columns in the same order.")
    if len(set(names)) != len(names):
        raise StudyError(f"{files[0].name!r} has two columns of the same name. Rename one.")
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
    source = (
        f"read_csv({_listed(files)}, auto_detect = false, columns = {{{columns}}}, header = true, delim = ',', "
        "quote = '\"', escape = '\"', hive_partitioning = false, nullstr = '', allow_quoted_nulls = false, "
        f"max_line_size = {_LONGEST}, buffer_size = {_LONGEST * 2})"
    )
    return source, names, frozenset(names)


def _read_header(file: Path) -> list[str]:
    header = None
    try:
        with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
            header = next(csv.reader(lines), [])
    except (OSError, csv.Error):
        raise_alone(_unreadable(file, "csv"))
    if not header:
        raise_alone(_unreadable(file, "csv"))
    return header


def _read_through(connection: duckdb.DuckDBPyConnection, source: str, files: Sequence[Path]) -> None:
    """Read every cell once: a broken line or encoding is found before anything is spent."""
    try:
        connection.execute(f"select count(columns(*)) from {source}").fetchall()
    except Exception:
        raise_alone(_unreadable(files[0], "csv"))


def _unreadable(file: Path, kind: str) -> StudyError:
    return StudyError(f"{file.name!r} cannot be read as {kind}. The steward's 'check' shows the details.")


def _json_source(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> tuple[str, list[str], frozenset[str]]:
    """Records as they are; a column is a key that any record has, and its cells are the texts of its values."""
    records = f"read_json_objects({_listed(files)}, maximum_object_size = {_LONGEST})"
    names = None
    try:
        found = connection.execute(f"select distinct unnest(json_keys(json)) as name from {records} order by name")
        names = [name for (name,) in found.fetchall()]
    except Exception:
        raise_alone(_unreadable(files[0], "json"))
    if not names:
        raise StudyError(f"{files[0].name!r} holds no records.")
    engine = DuckDBEngine(connection)
    pointers = (engine.text("/" + name.replace("~", "~0").replace("/", "~1")) for name in names)
    cells = ", ".join(f"json_extract_string(json, {pointer}) as c{i}" for i, pointer in enumerate(pointers))
    return f"(select {cells} from {records}) records", names, frozenset(names)


def _parquet_source(files: Sequence[Path]) -> tuple[str, list[str] | None, frozenset[str]]:
    """Files may lack columns of others; folders named ``column=value`` give columns of texts."""
    import pyarrow as pa
    import pyarrow.parquet

    schemas: list[Any] = []
    for file in files:
        try:
            schemas.append(pyarrow.parquet.read_schema(file))
        except (pa.ArrowException, OSError):
            raise_alone(_unreadable(file, "parquet"))
    stored = dict.fromkeys(name for schema in schemas for name in schema.names)
    folders = [part.partition("=")[0] for part in files[0].resolve().parent.parts if "=" in part]
    if len({name.casefold() for name in (*stored, *folders)}) != len(stored) + len(folders):
        raise StudyError("Two columns' names differ at most in upper and lower case. Rename one.")
    marked = {
        field.name for schema in schemas for field in schema if FROM_TEXT.items() <= (field.metadata or {}).items()
    }
    source = (
        f"read_parquet({_listed(files)}, union_by_name = true, hive_partitioning = {str(bool(folders)).lower()}, "
        "hive_types_autocast = false)"
    )
    return source, None, frozenset({*marked, *folders})


def _listed(files: Sequence[Path]) -> str:
    """A list of paths as DuckDB reads it; characters of globs in names stand for themselves."""
    engine = DuckDBEngine(None)
    escaped = (str(file.resolve()) for file in files)
    return f"[{', '.join(engine.text(_escaped(path)) for path in escaped)}]"


def _escaped(path: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


def open_query(
    query: str,
    attach: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    threads: int | None = None,
) -> DuckDBRows:
    """Rows that a single SELECT gives, over files and attached databases, all read as they were at one moment."""
    statements = None
    try:
        statements = duckdb.extract_statements(query)
    except Exception:
        raise_alone(StudyError("The query cannot be read as SQL."))
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise StudyError("Give one SELECT statement, and nothing else.")
    query, connection = _bare(query), connect(threads)
    if folder is not None:
        connection.execute(f"set file_search_path = {_quoted(_plain_path(connection, folder))}")
    for name, database in (attach or {}).items():
        _attach(connection, name, database, folder)
    connection.execute("begin transaction")
    names, plan = None, ""
    try:
        relation = connection.sql(query)
        names = relation.columns  # in a subquery DuckDB would rename those that differ in case only
        plan = relation.explain()
    except Exception:
        raise_alone(StudyError("The query fails: DuckDB finds a fault in it, or a table or file is missing."))
    _refuse_guessed_types(plan)
    return DuckDBRows(connection, f"({query}\n) query", names)


def _bare(query: str) -> str:
    """A statement without the semicolons and comments behind it."""
    content = query.encode()
    for start, kind in reversed(duckdb.tokenize(query)):
        if kind != duckdb.token_type.comment and content[start : start + 1] != b";":
            break
        content = content[:start]
    return content.decode()


def _plain_path(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """A folder's path, by a link if it has commas: DuckDB takes it for a list of paths."""
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


def _refuse_guessed_types(plan: str) -> None:
    """CSV and JSON files and pandas' objects have types that DuckDB takes from cells: one cell would change what others mean."""
    if re.search(r"READ_(CSV|JSON|NDJSON)|PANDAS_SCAN", plan):
        raise StudyError(
            "A query over a CSV or JSON file, or over a pandas frame, would guess types from cells. Give the file's path or the frame itself, or "
            "convert it to Parquet."
        )


def _attach(connection: duckdb.DuckDBPyConnection, name: str, database: str, folder: Path | None) -> None:
    extension = "postgres" if database.startswith(("postgres:", "postgresql:")) else None
    if extension is None:
        path = (folder or Path()) / database
        if not path.is_file():
            raise StudyError(f"There is no database {path.name!r} at the given path.")
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
    identifier = '"' + name.replace('"', '""') + '"'
    try:
        connection.execute(f"attach {_quoted(database)} as {identifier} ({kind}read_only)")
    except Exception:
        raise_alone(StudyError(f"Database {name!r} cannot be opened."))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def open_relation(relation: Any) -> DuckDBRows:
    """Rows of a relation, on its own connection, where a few temporary tables come and go."""
    _refuse_guessed_types(relation.explain())
    return DuckDBRows(None, _VIEW, list(relation.columns), relation=relation)
