"""Files of other programs: sheets of Excel, data of Stata, SPSS and SAS. What a cell means follows from that cell, and types from the file's own list of columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.csv import FROM_TEXT
from dplinked.data.format import Format
from dplinked.data.keys import key_text
from dplinked.errors import StudyError, raise_alone, shown

if TYPE_CHECKING:
    import pyarrow as pa

PROGRAMS = {
    ".dta": "stata", ".sav": "spss", ".zsav": "spss", ".por": "spss", ".sas7bdat": "sas", ".xpt": "sas",
}  # fmt: skip
_READERS = {
    ".dta": "read_dta", ".sav": "read_sav", ".zsav": "read_sav", ".por": "read_por", ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}  # fmt: skip
_NEEDED = "Files ending in {} need a package that is not installed: pip install 'dplinked[files]'."
# Formats of dates and moments in the lists of columns: when they count from, how many milliseconds their unit has, and whether they are dates without an hour.
_SINCE_1960 = np.datetime64("1960-01-01", "ms")
_SINCE_1582 = np.datetime64("1582-10-14", "ms")
_DAY, _SECOND, _MILLISECOND = 86_400_000, 1_000, 1
_MOMENTS: dict[str, tuple[tuple[str, np.datetime64, int, bool], ...]] = {
    "stata": ((r"%-?(td|d)", _SINCE_1960, _DAY, True), (r"%-?t[cC]", _SINCE_1960, _MILLISECOND, False)),
    "spss": ((r"DATETIME|YMDHMS", _SINCE_1582, _SECOND, False), (r"[AESJ]?DATE", _SINCE_1582, _SECOND, True)),
    "sas": (
        (r"DATETIME|DATEAMPM|MDYAMPM|[EB]8601DT", _SINCE_1960, _SECOND, False),
        (r"DATE|MMDDYY|DDMMYY|YYMMDD|[EB]8601DA|WORDDATE|WEEKDATE|JULIAN", _SINCE_1960, _DAY, True),
    ),
}
_FIRST, _LAST = np.datetime64("0001-01-01", "ms"), np.datetime64("9999-12-31", "ms")  # what other programs can show


def read_sheet(path: Path, columns: Sequence[str] | None, format: Format) -> tuple[pa.Table, list[str]]:
    """Read some columns of a sheet as texts, its first row as their names; also returns all names.

    A sheet has no types: each cell is a text, a number, a date or nothing by itself, and becomes the text that stands for it as a key.
    All rows that the sheet has count, empty ones too: whether a row counts must not follow from its cells.
    """
    import pyarrow as pa

    rows = _sheet_rows(path, format.sheet)
    known = [key_text(cell) or "" for cell in next(iter(rows), ())]
    cells = rows[1:]
    while known and not known[-1]:
        known.pop()  # beyond the last name there is no column, whatever stands there
    if not known or "" in known:
        raise StudyError(f"{shown(path.name)}: the first row of a sheet must name all columns, and some have no name.")
    if len(set(known)) != len(known):
        raise StudyError(f"{shown(path.name)} has two columns of the same name. Rename one.")
    wanted = known if columns is None else [name for name in columns if name in known]
    places = [known.index(name) for name in wanted]
    texts = (pa.array([_cell_text(row, place) for row in cells], pa.string()) for place in places)
    schema = pa.schema([pa.field(name, pa.string(), metadata=FROM_TEXT) for name in wanted])
    return pa.table(list(texts), schema=schema), known


def sheet_names(path: Path) -> list[str]:
    """Names of the sheets of an Excel file."""
    book = _open_book(path)
    try:
        return list(book.sheetnames)
    finally:
        book.close()


def _sheet_rows(path: Path, sheet: str | int | None) -> list[tuple[Any, ...]]:
    """All rows of a sheet, as the values of their cells."""
    book = _open_book(path)
    try:
        names = list(book.sheetnames)
        if sheet is None or isinstance(sheet, int):
            chosen = dict(enumerate(names, 1)).get(1 if sheet is None else sheet)
        else:
            chosen = sheet if sheet in names else None
        if chosen is None:
            raise StudyError(
                f"There is no sheet {shown(sheet)} in {shown(path.name)}. The steward's 'check' lists them."
            )
        try:
            return list(book[chosen].iter_rows(values_only=True))
        except Exception:  # openpyxl's own errors are of many kinds, and may quote cells; a sheet may also be a chart
            raise_alone(OSError("not a table"))
    finally:
        book.close()


def _open_book(path: Path) -> Any:
    """An Excel file, opened to be read; formulas give what they gave last."""
    try:
        import openpyxl
    except ImportError:
        raise StudyError(_NEEDED.format(path.suffix.lower())) from None
    try:
        return openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception:  # openpyxl's own errors are of many kinds, and may quote cells
        raise_alone(OSError("not a workbook"))


def _cell_text(row: Sequence[Any], place: int) -> str | None:
    """The text of a cell; None for an empty one, and for a date at midnight the date alone."""
    text = key_text(row[place]) if place < len(row) else None
    return text.removesuffix("T00:00:00") if text else None


def read_program_file(path: Path, columns: Sequence[str] | None, format: Format) -> tuple[pa.Table, list[str]]:
    """Read some columns of a file of Stata, SPSS or SAS; also returns the names of all columns.

    Numbers are numbers, whatever labels their values have, and dates are dates; both follow from the file's list of columns. What the file declares missing is null.
    """
    import pyarrow as pa

    try:
        import pyreadstat
    except ImportError:
        raise StudyError(_NEEDED.format(path.suffix.lower())) from None
    read = getattr(pyreadstat, _READERS[path.suffix.lower()])
    encoding = {} if format.encoding is None or path.suffix.lower() == ".por" else {"encoding": format.encoding}
    try:
        known = list(read(str(path), metadataonly=True, output_format="dict", **encoding)[1].column_names)
        wanted = known if columns is None else [name for name in columns if name in known]
        asked = wanted or known[:1]
        cells, about = read(
            str(path), output_format="dict", usecols=asked, disable_datetime_conversion=True, **encoding
        )
    except Exception:  # pyreadstat's own errors are of many kinds, and may quote cells
        raise_alone(OSError("not such a file"))
    if len(set(known)) != len(known):
        raise StudyError(f"{shown(path.name)} has two columns of the same name. Rename one.")
    types, formats = about.readstat_variable_types, about.original_variable_types
    kind = PROGRAMS[path.suffix.lower()]
    arrays = [_typed(cells[name], types[name], formats.get(name) or "", kind) for name in wanted]
    return pa.table(arrays, names=wanted), known


def _typed(cells: Iterable[Any], type: str, format: str, kind: str) -> pa.Array:
    """A column as texts, moments or numbers, whichever the file says it holds."""
    import pyarrow as pa

    if type == "string":
        return pa.array([cell if isinstance(cell, str) and cell else None for cell in cells], pa.string())
    numbers = np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    for pattern, start, unit, is_date in _MOMENTS[kind]:
        if re.match(pattern, format if kind == "stata" else format.upper()):
            moments = _moments(numbers, start, unit)
            return moments.cast(pa.date32(), safe=False) if is_date else moments
    return pa.array(numbers, pa.float64(), from_pandas=True)


def _moments(numbers: NDArray[np.float64], start: np.datetime64, unit: int) -> pa.Array:
    """Numbers of days, seconds or milliseconds since a day as moments; null beyond the years 1 to 9999."""
    import pyarrow as pa

    low, high = ((end - start).astype(np.int64) / unit for end in (_FIRST, _LAST))
    inside = np.isfinite(numbers) & (numbers >= low) & (numbers <= high)
    moments = start + (np.where(inside, numbers, 0.0) * unit).astype(np.int64).astype("timedelta64[ms]")
    return pa.array(moments, pa.timestamp("ms"), mask=~inside)
