"""What SQL engines do differently: types of columns, literals, functions, and how a statement is run.

No name and no key is ever part of a statement: columns are numbered, and texts are written in hexadecimal.
"""

from __future__ import annotations

import datetime
import itertools
import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from dplinked.data.keys import FALSE, NUMBER, TRUE, key_text
from dplinked.errors import ReleaseError, raise_alone, shown_type

UNREADABLE = "The rows cannot be read. The steward's 'check' shows the details."
FAILED = "The release failed while the engine read the rows. The steward's 'check' shows the details."
LARGEST = 1.7976931348623157e308
_KEY_DIGITS = 15  # decimals of so many digits are told apart by their doubles


@dataclass(frozen=True)
class SqlColumn:
    """A column of the data as statements see it.

    Attributes
    ----------
    name
        The column's name in the data, which is never part of a statement.
    sql
        The text that stands for a cell in statements.
    kind
        boolean, integer, float, decimal, text, date, timestamp, instant (a timestamp with a time zone), null or other.
    type
        The engine's name of the cells' type.
    limits
        Smallest and largest whole number of an integer type.
    digits, scale
        Those of a decimal type.
    parsed
        Whether the texts are those of a file without types (CSV, JSON). The first line of such a file may be a row.
    """

    name: str
    sql: str
    kind: str
    type: str
    limits: tuple[int, int] = (0, 0)
    digits: int = 0
    scale: int = 0
    parsed: bool = False

    @property
    def numeric(self) -> bool:
        """Whether cells can be read as numbers; a text is a number if it looks like one."""
        return self.kind in ("boolean", "integer", "float", "decimal", "null", "text")

    @property
    def comparable(self) -> bool:
        """Whether cells have one clear text each, so that they can be keys."""
        return self.kind != "other" and (self.kind != "decimal" or self.digits <= _KEY_DIGITS)

    @property
    def type_name(self) -> str:
        """The plain name of the type, as messages show it. DuckDB writes lists as ``INTEGER[]``."""
        return "LIST" if self.type.endswith("]") else shown_type(self.type)


def integer_limits(bits: int, signed: bool) -> tuple[int, int]:
    """Smallest and largest whole number of a type."""
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def decimal_column(name: str, sql: str, type: str) -> SqlColumn:
    """The column of a type ``decimal(digits, scale)``. If the scale is 0, it holds whole numbers."""
    found = re.fullmatch(r"(?i)decimal\((\d+), ?(\d+)\)", type)
    assert found is not None
    digits, scale = int(found[1]), int(found[2])
    if scale == 0:
        return SqlColumn(name, sql, "integer", type, limits=(1 - 10**digits, 10**digits - 1))
    return SqlColumn(name, sql, "decimal", type, digits=digits, scale=scale)


class SqlEngine(ABC):
    """A dialect of SQL and a way to run it. Whatever goes wrong while rows are read is replaced by a fixed message."""

    same: str  # operator of equality that also holds between nulls
    collate: str  # what makes texts compare byte by byte
    text_type: str
    double_type: str  # 64-bit floating-point numbers
    bigint_type: str  # 64-bit whole numbers
    int_type: str  # 32-bit whole numbers
    checks_cells: bool  # whether reading a malformed text or moment fails
    random: str  # a number in [0, 1), another one for each row
    circle: int | None  # mean number of rows in circles that a single block is cut into; None if it stands in one

    @abstractmethod
    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its few rows."""

    @abstractmethod
    def keep(self, name: str, query: str) -> None:
        """Keep a query's result under a name until it is dropped."""

    @abstractmethod
    def keep_table(self, name: str, table: Any, columns: str) -> None:
        """Keep these columns of a small Arrow table under a name."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Forget what was kept; never fails."""

    @abstractmethod
    def open_pairs(self, pairs: Any) -> tuple[str, tuple[SqlColumn, ...], Kept | None]:
        """Source and columns of the pairs of a matching matrix, and the table that must be kept until they are read, if any."""

    @abstractmethod
    def double(self, value: float) -> str:
        """A literal that is read as exactly this number."""

    @abstractmethod
    def text(self, value: str) -> str:
        """A text literal, in hexadecimal."""

    @abstractmethod
    def whole(self, value: str) -> str:
        """A number rounded to the nearest 64-bit whole number, ties to even."""

    @abstractmethod
    def rounded(self, value: str) -> str:
        """A number of at most 2^51 rounded to the nearest whole one, ties to even, as a double."""

    @abstractmethod
    def matches(self, value: str, pattern: str) -> str:
        """Whether a whole text matches a regular expression."""

    @abstractmethod
    def trimmed(self, value: str) -> str:
        """A text without ASCII whitespace around it."""

    @abstractmethod
    def divided(self, left: str, right: str) -> str:
        """A quotient that never fails."""

    @abstractmethod
    def finite(self, number: str) -> str:
        """Whether a double is neither null nor NaN nor infinite."""

    @abstractmethod
    def histograms(self, query: str, size: int) -> str:
        """Statement that counts the values of a query's columns p0, p1, …: number of the column, value, rows."""

    @abstractmethod
    def quantile(self, value: str, share: float) -> str:
        """An approximate quantile."""

    @abstractmethod
    def sha256(self, text: str) -> str:
        """SHA-256 of a text, in hexadecimal."""

    @abstractmethod
    def hex_number(self, text: str) -> str:
        """Hexadecimal digits as a number whose sums do not overflow."""

    @abstractmethod
    def gathered(self, value: str) -> str:
        """The values of a group as a list, in any order."""

    @abstractmethod
    def added(self, values: str, term: str) -> str:
        """The sum of a term over the values q of a list."""

    @abstractmethod
    def place_in_circles(
        self, rows: str, circle: str, columns: Sequence[str], partners: int, weigh: Callable[[str], str]
    ) -> tuple[str, list[Kept]]:
        """Put the rows of each circle into a random order and keep them; no cell decides it.

        `weigh` adds m, the size of the circle's block, and the columns own and others to a query of rows with their keys. Returned is a query of `columns` beside
        own, others and the responses of the next rows in the circle, y1, y2, …, which are null where there are fewer others; and what is kept for it.
        """

    def as_double(self, value: str) -> str:
        """A number as a double."""
        return f"cast({value} as {self.double_type})"

    def as_int(self, value: str) -> str:
        """A small whole number as a 32-bit one."""
        return f"cast({value} as {self.int_type})"

    def as_text(self, column: SqlColumn) -> str:
        """A cell of any type as a text."""
        return f"cast({column.sql} as {self.text_type})"

    def fetch(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement over rows. The engine's own errors are replaced, because they quote cells."""
        found = None
        try:
            found = self.run(statement)
        except Exception:
            raise_alone(ReleaseError(FAILED))
        return found

    def hold(self, name: str, query: str) -> None:
        """Keep a query's result over rows, with the errors of :meth:`fetch`."""
        try:
            self.keep(name, query)
        except Exception:
            raise_alone(ReleaseError(FAILED))

    def key(self, column: SqlColumn) -> str:
        """A cell as a key: cells of the same text have equal keys, and a cell without a text has a null key."""
        cell = column.sql
        match column.kind:
            case "text":
                return f"({cell} {self.collate})"
            case "float":
                zero = self.double(0.0)
                return f"case when {self.finite(cell)} then case when {cell} = {zero} then {zero} else {cell} end end"
            case "date" | "timestamp" | "instant":  # moments beyond Python's calendar have no text
                first, last = (self.typed(column, self.text(end)) for end in _CALENDAR[column.kind])
                return f"case when {cell} between {first} and {last} then {cell} end"
        return cell

    def typed(self, column: SqlColumn, text: str) -> str:
        """A text that :func:`plain_text` gave, cast to the column's own type."""
        return text if column.kind == "text" else f"cast({text} as {column.type})"

    def literal(self, column: SqlColumn, text: str) -> str | None:
        """The cell whose text is `text`; None if there can be none."""
        plain = plain_text(column, text)
        return None if plain is None else self.typed(column, self.text(plain))

    def number(self, column: SqlColumn) -> str:
        """A cell as a double, as :func:`dplinked.data.keys.number` reads it; null where it holds no number."""
        if column.kind == "text":
            text = self.trimmed(self.key(column))
            true, false = (", ".join(map(self.text, words)) for words in (TRUE, FALSE))
            return (
                f"case when {self.matches(text, NUMBER)} then try_cast({text} as {self.double_type}) "
                f"when {text} in ({true}) then {self.double(1.0)} when {text} in ({false}) then {self.double(0.0)} end"
            )
        return column.sql if column.kind == "float" else self.as_double(column.sql)

    def clip(self, value: str, low: float, high: float) -> str:
        """A number that is neither null nor NaN, clipped."""
        return f"greatest({self.double(low)}, least({self.double(high)}, {value}))"


def with_columns(rows: str, *columns: str) -> str:
    """Query of rows with further columns."""
    return f"select cells.*, {', '.join(columns)} from ({rows}) cells"


_CALENDAR = {
    "date": ("0001-01-01", "9999-12-31"),
    "timestamp": ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"),
    "instant": ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999+00:00"),
}


def plain_text(column: SqlColumn, text: str) -> str | None:
    """What to cast to a column's type to get the cell whose text is `text`; None if there can be no such cell."""
    try:
        return _plain_text(column, text)
    except (ValueError, OverflowError, InvalidOperation):  # no number, date or UTF-8 text
        return None


def _plain_text(column: SqlColumn, text: str) -> str | None:
    match column.kind:
        case "text":
            return text.encode().decode()
        case "boolean" if text in ("true", "false"):
            return text
        case "integer" if str(int(text)) == text and column.limits[0] <= int(text) <= column.limits[1]:
            return text
        case "float" if key_text(float(text)) == text:
            return repr(float(text))
        case "decimal" if key_text(Decimal(text)) == text:
            units = Decimal(text).scaleb(column.scale)
            return f"{Decimal(text):f}" if units == int(units) and abs(units) < 10**column.digits else None
        case "date" if datetime.date.fromisoformat(text).isoformat() == text:
            return text
        case "timestamp" | "instant":
            moment = datetime.datetime.fromisoformat(text)
            wanted = None if column.kind == "timestamp" else datetime.timedelta(0)  # instants are named in UTC
            return text if moment.isoformat() == text and moment.utcoffset() == wanted else None
    return None


class Kept:
    """A result that the engine keeps under a name of its own, until this object is closed or collected."""

    def __init__(self, engine: SqlEngine, what: str) -> None:
        self.name = f"dplinked_{what}_{os.getpid()}_{next(_NUMBERS)}"
        self._drop = weakref.finalize(self, engine.drop, self.name)

    def close(self) -> None:
        """Forget it now."""
        self._drop()


_NUMBERS = itertools.count()
