"""Engines behind one interface: what they open, and the passes over rows that releases are made of.

An engine is a module with the functions of :class:`EngineModule`. It is registered by one line of :data:`ENGINES`, which says by a light
test which data it is for; the module is imported when such data comes. Everybody opens data by :func:`open_source`.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import Origins
from dplinked.data.keys import number
from dplinked.data.sources import Progress as Progress
from dplinked.data.sources import Query, SparkTable, is_duckdb, is_path, is_spark, is_stream
from dplinked.errors import StudyError
from dplinked.linkage import ELE, Exact, Linkage, PrivacyUnit
from dplinked.study.design import Design
from dplinked.sums.linked_rows import LinkedRows, Pass
from dplinked.sums.types import CellFacts

Floats = NDArray[np.float64]


class Source(ABC):
    """Linked rows that an engine has opened. Schema and number of rows are public.

    Attributes
    ----------
    columns
        Names of all columns.
    count
        Number of rows.
    origins
        Which of the linked files each column comes from, and by which records were linked, as far as the rows say it.
    """

    columns: tuple[str, ...]
    count: int
    origins: Origins = Origins()

    @abstractmethod
    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema: all columns are there, the numeric ones are numbers, and the others can be keys."""

    @abstractmethod
    def open(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> Pass:
        """Find the blocks. Only what is public under the unit can make it fail."""

    def linked_rows(self, design: Design, linkage: Linkage, unit: PrivacyUnit) -> LinkedRows:
        """Rows ready to be summed, together with what one person can change about their links."""
        complete = linkage.complete(unit) if isinstance(linkage, ELE) else linkage
        if (
            isinstance(linkage, Exact) and unit.id is not None
        ):  # persons are blocks in which no link is wrong, so that their rows can be squared together
            complete = ELE(1.0, block=unit.id, other=1.0)
        return LinkedRows(self.open(design, complete, unit), linkage.exposure(unit), unit.fixes_blocks)

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """Bytes by which a ledger knows the rows again."""

    @abstractmethod
    def summarise_column(self, name: str, low: float, high: float) -> CellFacts:
        """Missing and clipped cells, middle 70 % and ends of a numeric column. FOR THE STEWARD."""

    @abstractmethod
    def count_keys(self, name: str) -> Mapping[str | None, int]:
        """Rows per key. FOR THE STEWARD."""

    @abstractmethod
    def holds_texts(self, name: str) -> bool:
        """Whether a column may hold texts, by its type."""

    def texts_among_numbers(self, name: str) -> dict[str, int]:
        """Texts of a column that hold no number, with how many rows hold each. FOR THE STEWARD."""
        counts = self.count_keys(name) if self.holds_texts(name) else {}
        return {key: rows for key, rows in counts.items() if key is not None and math.isnan(number(key))}


class EngineModule(Protocol):
    """The functions that the module of an engine has."""

    def resolve_data(self, data: Any) -> Any:
        """The same data for the fingerprint and for the sums: symlinks are resolved, lazy frames collected and queries run, once."""

    def open_data(
        self, data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
    ) -> Source:
        """Open the data; see :func:`open_source`."""

    def data_content(self, data: Any) -> Iterator[bytes]:
        """Bytes by which a ledger knows the data again."""


@dataclass(frozen=True)
class Engine:
    """A registered engine.

    Attributes
    ----------
    name
        Its name, and that of the extra that installs its package.
    accepts
        Whether data is for this engine. It must not import the engine's package.
    module
        The module of the engine, see :class:`EngineModule`.
    package
        The optional package that it needs, if any.
    """

    name: str
    accepts: Callable[[Any], bool]
    module: str
    package: str | None = None

    def load(self) -> EngineModule:
        """Import the engine's module."""
        if self.package is not None:
            try:
                importlib.import_module(self.package)
            except ImportError:
                raise StudyError(
                    f"This data needs an engine that is not installed: pip install 'dplinked[{self.name}]'."
                ) from None
        return cast(EngineModule, importlib.import_module(self.module))


DUCKDB = Engine("duckdb", lambda data: isinstance(data, Query) or is_duckdb(data), "dplinked.sums.sql.duckdb", "duckdb")
SPARK = Engine(
    "spark", lambda data: isinstance(data, SparkTable) or is_spark(data), "dplinked.sums.sql.spark", "pyspark"
)
STREAMS = Engine("streams", is_stream, "dplinked.sums.numpy.stream")
FILES = Engine("files", is_path, "dplinked.sums.files")
TABLES = Engine("tables", lambda data: True, "dplinked.sums.numpy.tables")

ENGINES = (DUCKDB, SPARK, STREAMS, FILES, TABLES)  # the first that accepts the data opens it


def find_engine(data: Any) -> Engine:
    """The engine for data."""
    return next(engine for engine in ENGINES if engine.accepts(data))


def open_source(
    data: Any, columns: Sequence[str] | None = None, *, once: bool = False, progress: Progress | None = None
) -> Source:
    """Open linked rows with the engine that accepts them.

    Parameters
    ----------
    data
        A table, a mapping of arrays, the path of files, a :class:`Query`, a Spark frame or table, an Arrow stream.
    columns
        Names to read; all of them unless given.
    once
        Whether one pass is all that the study needs, so that a stream need not be kept.
    progress
        Called with a title, what is done and what is to be done.
    """
    if isinstance(data, Source):
        return data
    return find_engine(data).load().open_data(data, columns, once=once, progress=progress)


def resolve_source(data: Any) -> Any:
    """The same data for the fingerprint and for the sums: symlinks are resolved, lazy frames collected and queries run, once."""
    return find_engine(data).load().resolve_data(data)


def source_bytes(data: Any) -> Iterator[bytes]:
    """Content of data or of an open source, to know it again.

    That is the bytes of files, the columns of tables, and of a query's rows a digest that their order does not change.
    """
    yield from data.content() if isinstance(data, Source) else find_engine(data).load().data_content(data)
