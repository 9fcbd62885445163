"""Linked rows that Spark reads: a frame, a table, a SELECT. Only SQL and frames are used, so that Spark Connect works too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dplinked.data.arrow import to_arrow
from dplinked.data.files import find_files
from dplinked.data.keys import WHITESPACE
from dplinked.data.sources import Progress, SparkTable, is_spark
from dplinked.errors import StudyError, raise_alone
from dplinked.sums.sql.dialect import (
    LARGEST,
    UNREADABLE,
    Kept,
    SqlColumn,
    SqlEngine,
    decimal_column,
    integer_limits,
)
from dplinked.sums.sql.rows import SqlRows

_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_KINDS = {
    "boolean": "boolean",
    "float": "float",
    "double": "float",
    "date": "date",
    "timestamp": "instant",
    "timestamp_ntz": "timestamp",
}
_TEXTS = re.compile(r"string( collate \w+)?|(var)?char\(\d+\)( collate \w+)?")
_ANSI = "spark.sql.ansi.enabled"
_NAME = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")


class SparkEngine(SqlEngine):
    """Spark's dialect of SQL, on a session."""

    same = "<=>"
    collate = "collate UTF8_BINARY"
    text_type = "string"
    double_type = "double"
    bigint_type = "bigint"
    int_type = "int"
    checks_cells = False
    random = "rand()"
    circle = 1 << 14

    def __init__(self, session: Any) -> None:
        self._session = session
        self.parts = 1 << 20  # most parts of what is kept; a table of blocks has no more rows than the data

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its few rows."""
        with _quiet():
            return [tuple(row) for row in self._session.sql(statement).collect()]

    def keep(self, name: str, query: str) -> None:
        """Keep a query's result in Spark's cache, in few parts if there are few rows, under the name of a temporary view."""
        with _quiet():
            self._session.sql(query).coalesce(self.parts).createOrReplaceTempView(name)
            self._session.catalog.cacheTable(name)

    def keep_table(self, name: str, table: Any, columns: str) -> None:
        """Keep columns of an Arrow table under the name of a temporary view."""
        raw = f"{name}_raw"
        self._session.createDataFrame(table).createOrReplaceTempView(raw)
        self._session.sql(f"select {columns} from {raw}").createOrReplaceTempView(name)
        self._session.catalog.dropTempView(raw)

    def drop(self, name: str) -> None:
        """Drop a view, and with it what is cached of it; never fails."""
        try:
            with _quiet():
                self._session.catalog.dropTempView(name)
        except Exception:  # the session is over, and its cache with it
            return

    def key(self, column: SqlColumn) -> str:
        """A cell as a key; Spark does not check that texts are UTF-8."""
        return super().key(replace(column, sql=f"try_validate_utf8({column.sql})") if column.kind == "text" else column)

    def double(self, value: float) -> str:
        """A literal marked as a double, whatever the session takes others for."""
        text = f"{float(value)!r}D"
        return f"({text})" if text.startswith("-") else text

    def text(self, value: str) -> str:
        """A text literal, in hexadecimal."""
        return f"cast(X'{value.encode().hex()}' as string)"

    def whole(self, value: str) -> str:
        """A cast of the rounded number, ties to even, because the cast alone cuts off."""
        return f"cast(rint({value}) as {self.bigint_type})"

    def rounded(self, value: str) -> str:
        """Spark's own function."""
        return f"rint({value})"

    def matches(self, value: str, pattern: str) -> str:
        r"""Whether a whole text matches; ``\z``, since ``$`` would leave out a last line break."""
        whole = self.text(rf"^(?:{pattern})\z")
        return f"({value} rlike {whole})"

    def trimmed(self, value: str) -> str:
        """A text without ASCII whitespace around it."""
        return f"trim(both {self.text(WHITESPACE)} from {value})"

    def divided(self, left: str, right: str) -> str:
        """A quotient, null where the divisor is 0."""
        return f"try_divide({left}, {right})"

    def finite(self, number: str) -> str:
        """A comparison, which also leaves out NaN: it lies above every number."""
        return f"{number} between {self.double(-LARGEST)} and {self.double(LARGEST)}"

    def histograms(self, query: str, size: int) -> str:
        """Count column by column, because grouping sets would copy each row as often as there are columns."""
        counted = (f"select {i}, p{i}, count(*) from ({query}) places group by p{i}" for i in range(size))
        return " union all ".join(counted)

    def quantile(self, value: str, share: float) -> str:
        """An approximate quantile."""
        return f"percentile_approx({value}, {self.double(share)})"

    def sha256(self, text: str) -> str:
        """SHA-256 of a text, in hexadecimal."""
        return f"sha2({text}, 256)"

    def hex_number(self, text: str) -> str:
        """Hexadecimal digits as a decimal, because sums of 64-bit whole numbers would overflow."""
        return f"cast(conv({text}, 16, 10) as decimal(20, 0))"

    def gathered(self, value: str) -> str:
        """The values of a group as a list, in any order."""
        return f"collect_list({value})"

    def added(self, values: str, term: str) -> str:
        """The sum of a term over the values q of a list."""
        return f"aggregate({values}, {self.double(0.0)}, (s, q) -> s + ({term}))"

    def place_in_circles(
        self, rows: str, circle: str, columns: Sequence[str], partners: int, weigh: Callable[[str], str]
    ) -> tuple[str, list[Kept]]:
        """Windows over circles, each within one task: one that looks ahead, and one that has the first responses."""
        lags, listed = range(1, 1 + partners), ", ".join(columns)
        drawn = f"select cells.*, {self.random} as place from ({rows}) cells"
        nexts = "".join(
            f", lead(z, {lag}) over line as n{lag}, nth_value(z, {lag}) over whole as f{lag}" for lag in lags
        )
        line = f"partition by {circle} order by place"
        windows = f"line as ({line}), whole as ({line} rows between unbounded preceding and unbounded following)"
        lined = f"select {listed}{nexts} from ({drawn}) cells window {windows}"
        partner = "".join(f", {_partner(lag)} as y{lag}" for lag in lags)
        kept = Kept(self, "circles")
        self.hold(kept.name, f"select {listed}, own, others{partner} from ({weigh(lined)}) cells")
        return f"select * from {kept.name}", [kept]

    def as_text(self, column: SqlColumn) -> str:
        """A cell of any type as a text; bytes in hexadecimal."""
        return f"hex({column.sql})" if column.type == "binary" else super().as_text(column)

    def open_pairs(self, pairs: Any) -> tuple[str, tuple[SqlColumn, ...], Kept | None]:
        """Source and columns of the pairs of a matching matrix, and the view that must be kept until they are read."""
        if isinstance(pairs, (str, Path)) and (files := find_files(pairs)).kind in ("csv", "parquet", "json"):
            listed = [str(file.resolve()) for file in files.paths]
            csv = files.kind == "csv"
            frame = (
                _read_csv(self._session, listed, files.format.separator) if csv else self._session.read.parquet(*listed)
            )
        elif is_spark(pairs):
            frame = pairs
        else:
            frame = self._session.createDataFrame(to_arrow(pairs, "pairs"))
        return self.open_frame(frame)

    def open_frame(self, frame: Any) -> tuple[str, tuple[SqlColumn, ...], Kept]:
        """Source and columns of a frame, renamed by position, and the view that must be kept."""
        columns = tuple(
            make_column(field.name, f"c{i}", field.dataType.simpleString())
            for i, field in enumerate(frame.schema.fields)
        )
        kept = Kept(self, "rows")
        frame.toDF(*(f"c{i}" for i in range(len(columns)))).createOrReplaceTempView(kept.name)
        return kept.name, columns, kept


def _partner(lag: int) -> str:
    """The response so many places further on in the circle: beyond the last row, the first ones follow."""
    turned = "".join(f" when n{lag - place} is not null then f{place}" for place in range(1, lag))
    return f"case when n{lag} is not null then n{lag} when m <= {lag} then null{turned} else f{lag} end"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PySpark's loggers: they write why a statement failed, and that may quote a cell."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _read_csv(session: Any, paths: Sequence[str], separator: str | None) -> Any:
    """CSV files with every column as text, because types must not be guessed from cells."""
    return session.read.csv(
        list(paths), sep=separator or ",", header=True, inferSchema=False, multiLine=True, escape='"', encoding="UTF-8"
    )


def make_column(name: str, sql: str, type: str) -> SqlColumn:
    """The column of a Spark type."""
    if type in _INTEGERS:
        return SqlColumn(name, sql, "integer", type, limits=integer_limits(_INTEGERS[type], True))
    if type.startswith("decimal("):
        return decimal_column(name, sql, type)
    if _TEXTS.fullmatch(type):
        return SqlColumn(name, sql, "text", "string")
    if type == "void":
        return SqlColumn(name, "cast(null as int)", "integer", "int", limits=integer_limits(32, True))
    if type == "float":
        return SqlColumn(name, f"cast({sql} as double)", "float", "double")
    return SqlColumn(name, sql, _KINDS.get(type, "other"), type)


class SparkRows(SqlRows):
    """Linked rows in Spark, of a frame."""

    def __init__(self, frame: Any) -> None:
        engine = SparkEngine(frame.sparkSession)
        opened = None
        try:
            opened = engine.open_frame(frame)
        except Exception:
            raise_alone(StudyError(UNREADABLE))
        source, columns, self._kept = opened
        super().__init__(engine, source, columns)
        engine.parts = max(1, self.count >> 20)


def resolve_data(data: Any) -> Any:
    """The rows as they are now: Spark keeps them on its workers and forgets where they came from."""
    frame = find_frame(data.table) if isinstance(data, SparkTable) else data
    frozen = None
    try:
        with _quiet():
            frozen = frame.localCheckpoint(eager=True)
    except Exception:
        raise_alone(StudyError(UNREADABLE))
    return frozen


def open_data(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> SparkRows:
    """Open a table or SELECT of the session at work, or a frame."""
    return open_table(data.table) if isinstance(data, SparkTable) else open_frame(data)


def data_content(data: Any) -> Iterator[bytes]:
    """The names of the columns and a digest of the rows."""
    return open_data(data).content()


def open_frame(frame: Any) -> SparkRows:
    """Rows of a Spark frame, classic or Connect."""
    return SparkRows(frame)


def open_table(table: str, session: Any = None) -> SparkRows:
    """Rows of a table, by its name, or those that a SELECT gives."""
    return SparkRows(find_frame(table, session))


def find_frame(table: str, session: Any = None) -> Any:
    """The frame of a table, by its name, or of a SELECT, in the session at work.

    Expressions of the SELECT have a value for all cells: outside of ANSI mode, a cast that fails is null, and whole numbers wrap around.
    """
    if session is None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    frame, ansi = None, session.conf.get(_ANSI)
    try:
        session.conf.set(_ANSI, "false")
        # in parentheses nothing but a query can be read, and nothing but that is run
        frame = (
            session.table(table) if _NAME.fullmatch(table.strip()) else session.sql(f"select * from ({table}\n) query")
        )
        assert frame.schema is not None  # analysed now, outside of ANSI mode
    except Exception:
        raise_alone(
            StudyError("Spark finds no such table, or a fault in the SELECT. Give a table's name or one SELECT.")
        )
    finally:
        session.conf.set(_ANSI, ansi)
    return frame
