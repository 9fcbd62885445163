"""DuckDB's dialect of SQL, and the connections that statements run on."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dplinked.data.arrow import to_arrow
from dplinked.data.files import find_files
from dplinked.data.keys import WHITESPACE
from dplinked.data.sources import is_spark
from dplinked.errors import ReleaseError, StudyError, raise_alone
from dplinked.sums.sql.dialect import (
    FAILED,
    UNREADABLE,
    Kept,
    SqlColumn,
    SqlEngine,
    decimal_column,
    integer_limits,
)
from dplinked.sums.sql.duckdb_files import file_source, interruptible, read_through, text_literal

RELATION = "dplinked_rows"  # a relation's name in statements on its own connection
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
_NO_SCANS = (
    "This DuckDB connection may not read tables of Python's, which accuracies and pairs are. Set enable_external_access and "
    "python_enable_replacements to true, or save the rows to a file."
)


class DuckDBEngine(SqlEngine):
    """DuckDB's dialect of SQL, on a connection, or on the connection of a relation."""

    same = "is not distinct from"
    collate = 'collate "C"'
    text_type = "varchar"
    double_type = "double"
    bigint_type = "bigint"
    int_type = "int"
    checks_cells = True
    random = "random()"
    circle = None

    def __init__(self, connection: duckdb.DuckDBPyConnection | None, relation: Any = None) -> None:
        self._connection, self._relation = connection, relation

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its few rows."""
        with interruptible():
            if self._connection is not None:
                return self._connection.execute(statement).fetchall()
            found = self._relation.query(RELATION, statement)
            return [] if found is None else list(found.fetchall())

    def stream(self, query: str, rows: int) -> Any:
        """A query's result as an Arrow stream, so many rows at a time. No other statement may run before its end."""
        with interruptible():
            found = self._relation.query(RELATION, query) if self._connection is None else self._connection.sql(query)
            return found.arrow(rows)

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
        """A literal with an exponent, because without one it would be a decimal."""
        text = repr(float(value))
        text = text if "e" in text else f"{text}e0"
        return f"({text})" if text.startswith("-") else text

    def text(self, value: str) -> str:
        """A text literal, in hexadecimal."""
        return text_literal(value)

    def whole(self, value: str) -> str:
        """A cast, which rounds to the nearest whole number, ties to even."""
        return f"cast({value} as {self.bigint_type})"

    def rounded(self, value: str) -> str:
        """Beside a number of this size doubles have no digits behind the point. DuckDB's `round_even` takes several times as long."""
        size = self.double(1.5 * 2.0**52)
        return f"(({value} + {size}) - {size})"

    def matches(self, value: str, pattern: str) -> str:
        """Whether a whole text matches a regular expression."""
        return f"regexp_full_match({value}, {self.text(pattern)})"

    def trimmed(self, value: str) -> str:
        """A text without ASCII whitespace around it."""
        return f"trim({value}, {self.text(WHITESPACE)})"

    def divided(self, left: str, right: str) -> str:
        """A quotient; division by zero gives infinity or null, never an error."""
        return f"({left} / {right})"

    def finite(self, number: str) -> str:
        """No comparison with the largest double: DuckDB would decide it by a Parquet file's statistics, which pass over NaN."""
        return f"isfinite({number})"

    def histograms(self, query: str, size: int) -> str:
        """Count the values of all columns in one scan."""
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
        return f"cast(concat('0x', {text}) as {self.bigint_type})"

    def gathered(self, value: str) -> str:
        """The values of a group as a list, in any order."""
        return f"list({value})"

    def added(self, values: str, term: str) -> str:
        """The sum of a term over the values q of a list."""
        return f"list_reduce({values}, lambda s, q: s + ({term}), {self.double(0.0)})"

    def place_in_circles(
        self, rows: str, circle: str, columns: Sequence[str], partners: int, weigh: Callable[[str], str]
    ) -> tuple[str, list[Kept]]:
        """Sort all rows into one line, circle after circle, look ahead along it, and close the circles.

        A window without an order of its own takes rows as they come, which is much faster than windows over circles. Where a circle ends, it looks into the next
        one: there the first responses of its own circle follow, which the row that begins it has met already. What one person changes rests on each circle being
        one piece of the line, so that is checked; it hangs on the engine alone.
        """
        lags, listed = range(1, 1 + partners), ", ".join(dict.fromkeys([*columns, circle]))
        line, starts = Kept(self, "circles"), Kept(self, "starts")
        drawn = f"select cells.*, {self.whole(f'{self.double(2.0**62)} * {self.random}')} as place from ({rows}) cells"
        ahead = "".join(f", lead(z, {lag}) over () as y{lag}" for lag in lags)
        begins = f"row_number() over () = 1 or lag({circle}) over () is distinct from {circle}"
        lined = f"select {listed}, row_number() over () as place, {begins} as begins{ahead} from (select {listed} from ({drawn}) cells order by {circle}, place) line"
        met = "".join(f", y{lag}" for lag in lags)
        self.hold(line.name, f"select {listed}, place, begins, m, own, others{met} from ({weigh(lined)}) cells")
        firsts = "".join(f", {f'y{lag - 1}' if lag > 1 else 'z'} as f{lag}" for lag in lags)
        self.hold(starts.name, f"select {circle}, place + m - 1 as last{firsts} from {line.name} where begins")
        torn = f"select {circle} from {starts.name} group by {circle} having count(*) > 1"
        if self.fetch(f"select 1 from ({torn}) torn limit 1"):
            raise ReleaseError(FAILED)
        turned = ", ".join(f"y{lag} = {_turned(lag)}" for lag in lags)
        where = f"line.{circle} {self.same} starts.{circle} and place > last - {partners}"
        self.fetch(f"update {line.name} line set {turned} from {starts.name} starts where {where}")
        starts.close()
        return f"select * from {line.name}", [line]

    def open_pairs(self, pairs: Any) -> tuple[str, tuple[SqlColumn, ...], Kept | None]:
        """Source and columns of the pairs of a matching matrix, and the table that must be kept until they are read, if any."""
        if is_spark(pairs):
            raise StudyError("The pairs are a Spark frame, the rows are not. Save the pairs as a Parquet file.")
        if isinstance(pairs, (str, Path)) and (files := find_files(pairs)).kind in ("csv", "parquet", "json"):
            source, names, parsed = file_source(files)
            if files.kind == "csv":
                read_through(self.run, source, files.paths)
            return *self.read_columns(source, names, parsed), None
        kept = Kept(self, "table")
        self.keep_table(kept.name, to_arrow(pairs, "pairs"), "*")
        return *self.read_columns(kept.name), kept

    def read_columns(
        self, source: str, names: Sequence[str] | None = None, parsed: frozenset[str] = frozenset()
    ) -> tuple[str, tuple[SqlColumn, ...]]:
        """The source with its columns renamed to c0, c1, …, and these columns."""
        described = None
        try:
            described = [(str(row[0]), str(row[1])) for row in self.run(f"describe select * from {source}")]
        except Exception:
            raise_alone(StudyError(UNREADABLE))
        numbered = ", ".join(f"c{i}" for i in range(len(described)))
        listed = names if names is not None else [name for name, _ in described]
        columns = (
            make_column(name, f"c{i}", kind, name in parsed)
            for i, (name, (_, kind)) in enumerate(zip(listed, described, strict=True))
        )
        return f"(select * from {source}) source({numbered})", tuple(columns)


def _turned(lag: int) -> str:
    """The response so many places further on in the circle of a row near its end: beyond the last row, the first ones follow."""
    follow = "".join(f" when place = last - {left} then f{lag - left}" for left in range(lag))
    return f"case when m <= {lag} then null{follow} else y{lag} end"


def make_column(name: str, sql: str, type: str, parsed: bool = False) -> SqlColumn:
    """The column of a DuckDB type."""
    unsigned = type.startswith("U") and type[1:] in _INTEGERS
    if type in _INTEGERS or unsigned:
        bits = _INTEGERS[type[1:] if unsigned else type]
        return SqlColumn(name, sql, "integer", type, limits=integer_limits(bits, not unsigned))
    if type.startswith("DECIMAL("):
        return decimal_column(name, sql, type)
    if type.startswith("ENUM("):
        return SqlColumn(name, f"cast({sql} as varchar)", "text", "VARCHAR")
    if type.strip('"') == "NULL":
        return SqlColumn(name, "cast(null as integer)", "integer", "INTEGER", limits=integer_limits(32, True))
    kind = _KINDS.get(type, "other")
    if type == "FLOAT":
        return SqlColumn(name, f"cast({sql} as double)", kind, "DOUBLE")
    if type in ("TIMESTAMP_S", "TIMESTAMP_MS"):
        return SqlColumn(name, f"try_cast({sql} as timestamp)", kind, "TIMESTAMP")
    return SqlColumn(name, sql, kind, type, parsed=parsed and kind == "text")


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
