"""CSV files: every cell is read as text, so that no cell decides how another one is read."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dplinked.data.format import PLAIN, Format
from dplinked.errors import StudyError

if TYPE_CHECKING:
    import pyarrow as pa

FROM_TEXT = {b"dplinked": b"text"}  # Arrow metadata that marks a column of a CSV file; Parquet files keep it
_END = "dplinked_the_end_of_the_file"  # a line that is added to find quotes that are never closed
_PIECE = 1 << 22  # bytes that are decoded at once
_BLANKS = " \u00a0\u202f"  # between thousands; the last two keep numbers on one line


def read_csv(path: Path, columns: Sequence[str] | None, format: Format = PLAIN) -> tuple[pa.Table, list[str]]:
    """Read some columns of a CSV file, all of them as text; also returns the names of all columns.

    A CSV file has no types, and guessing them would make one cell's meaning depend on the others. For the same reason the file is read
    in one piece and its encoding is not checked: a long cell, a line break within a cell or broken UTF-8 must not
    decide whether another cell can be read.
    """
    import pyarrow as pa
    import pyarrow.csv

    separator = format.separator or ","
    content = b"".join(_utf8_pieces(path, format))
    known = read_header(io.BytesIO(content), separator)
    options = pyarrow.csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(known, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        include_columns=known if columns is None else [name for name in columns if name in known],
    )
    # One thread only: a process that ends while Arrow's reading threads still run may abort, for instance when a study is refused.
    size = min(len(content) + 1 + 40 * (len(known) + 1), 2**31 - 1)
    whole = pyarrow.csv.ReadOptions(use_threads=False, block_size=size)
    if len(set(known)) != len(known):
        raise StudyError(f"{path.name!r} has two columns of the same name. Rename one.")
    # In a file with a single column an empty line is a row with a null cell.
    parse = pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True, ignore_empty_lines=len(known) != 1)
    content += b"" if content.endswith((b"\n", b"\r")) else b"\n"
    # A quote that is never closed swallows all rows after it without an error. So a known last line is added, which must come back.
    content += separator.encode().join([_END.encode()] * len(known)) + b"\n"
    table = pyarrow.csv.read_csv(
        pa.BufferReader(content), read_options=whole, parse_options=parse, convert_options=options
    )
    last = table.slice(max(0, table.num_rows - 1))
    if not last.num_rows or any(column.cast(pa.binary())[0].as_py() != _END.encode() for column in last.columns):
        raise StudyError(f"{path.name!r} cannot be read as csv: a quote is opened and never closed.")
    table = table.slice(0, table.num_rows - 1)
    if (marks := number_marks(format)) is not None:
        table = pa.table([_with_points(column, *marks) for column in table.columns], names=table.column_names)
    return table.cast(pa.schema([field.with_metadata(FROM_TEXT) for field in table.schema])), known


def read_header(file: BinaryIO, separator: str) -> list[str]:
    """The names in the first line of a CSV file in UTF-8."""
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    try:
        return next(csv.reader(lines, delimiter=separator), [])
    finally:
        lines.detach()


# --- bytes ---------------------------------------------------------------------------------------


def open_bytes(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed if its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _utf8_pieces(path: Path, format: Format) -> Iterator[bytes]:
    """A text file as UTF-8. Bytes that are no text in its encoding become signs of their own: they must not decide whether another cell can be read."""
    with open_bytes(path) as file:
        if format.encoding is None:
            yield from iter(lambda: file.read(_PIECE), b"")
            return
        decoder = codecs.getincrementaldecoder(format.encoding)(errors="replace")
        for piece in iter(lambda: file.read(_PIECE), b""):
            yield decoder.decode(piece).encode("utf-8", "replace")
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def write_as_utf8(paths: Sequence[Path], format: Format) -> tuple[tuple[Path, ...], str]:
    """Copies of text files in UTF-8, for engines that read nothing else, in a temporary folder that only its owner can read; returns them and the folder."""
    folder = tempfile.mkdtemp(prefix="dplinked-")
    copies = []
    try:
        for place, path in enumerate(paths):
            copies.append(Path(folder) / f"{place}.csv")
            with copies[-1].open("wb") as file:
                file.writelines(_utf8_pieces(path, format))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return tuple(copies), folder


# --- numbers -------------------------------------------------------------------------------------


def number_marks(format: Format) -> tuple[str, str, str] | None:
    """How numbers with other marks are told, as regular expressions: a number with thousands, what stands between them, and a number with one mark; None where a file has none of these.

    A cell that holds neither stays as it is. Where the decimal mark is a comma, comma and point change places in a number with one mark: 1,5 is a
    number then, and 1.5 is none. So each cell is read by itself, and cells that differ stay different.
    """
    if format.decimal == "." and format.thousands is None:
        return None
    blank = r"[ \t]*"
    between = {" ": f"[{_BLANKS}]", "'": "['\u2019]", ",": ",", ".": r"\.", None: ""}[format.thousands]
    fraction = rf"({',' if format.decimal == ',' else chr(92) + '.'}[0-9]*)?"
    grouped = rf"{blank}[+-]?[0-9]{{1,3}}({between}[0-9]{{3}})+{fraction}{blank}" if between else "[^\\s\\S]"
    marked = rf"{blank}[+-]?[0-9]*[.,][0-9]*([eE][+-]?[0-9]+)?{blank}" if format.decimal == "," else "[^\\s\\S]"
    return grouped, between or "[^\\s\\S]", marked


def _with_points(column: Any, grouped: str, between: str, marked: str) -> Any:
    """A column of texts in which numbers are written with a decimal point and nothing between thousands."""
    import pyarrow.compute as pc

    whole = pc.replace_substring(pc.replace_substring_regex(column, between, ""), ",", ".")
    turned = pc.replace_substring(column, ",", "\x00")
    turned = pc.replace_substring(pc.replace_substring(turned, ".", ","), "\x00", ".")
    is_grouped, is_marked = (pc.match_substring_regex(column, f"^(?:{pattern})$") for pattern in (grouped, marked))
    return pc.if_else(is_grouped, whole, pc.if_else(is_marked, turned, column))
