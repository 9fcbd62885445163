"""The steward's look at how a file is written. FOR THE STEWARD: it reads cells. A release never looks; it reads a file as the study says."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dplinked.data.csv import open_bytes
from dplinked.data.files import find_files, kind_of
from dplinked.data.format import DECIMALS, PLAIN, SEPARATORS, THOUSANDS, File, Format, split_file
from dplinked.data.programs import sheet_names
from dplinked.errors import DplinkedError, StudyError

_SAMPLE = 1 << 18  # bytes from the beginning in which marks are looked for
_LINES = 400
_PIECE = 1 << 22
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ANY = "ascii"  # letters that all encodings have
# Numbers by their marks: what tells a decimal comma or point, and what tells a mark between thousands.
_DECIMAL = {
    ",": r"[+-]?(\d+,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+)",
    ".": r"[+-]?(\d+\.(\d{1,2}|\d{4,})|\d{1,3}(,\d{3})+\.\d+)",
}
GROUPED = {
    ",": r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?",
    ".": r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?",
    " ": "[+-]?\\d{1,3}([ \u00a0\u202f]\\d{3})+([.,]\\d+)?",
    "'": "[+-]?\\d{1,3}(['\u2019]\\d{3})+([.,]\\d+)?",
}


@dataclass(frozen=True)
class Look:
    """What a look at a file found.

    Attributes
    ----------
    path
        The file.
    format
        How a text file seems to be written; ``encoding`` is "ascii" where any would do.
    columns
        The names in its first line, if it is a text file.
    sheets
        Names of the sheets, if it is an Excel file.
    """

    path: Path
    format: Format
    columns: tuple[str, ...] = ()
    sheets: tuple[str, ...] = ()

    def advice(self, declared: Format) -> dict[str, Any]:
        """The options to declare, where the file seems to be written otherwise than is declared."""
        if not self.columns:
            return {}
        found, told = self.format.options(), declared.options()
        if self.format.encoding == ANY:
            found = {name: value for name, value in found.items() if name != "encoding"} | {
                "encoding": declared.encoding
            }
        names = [
            name for name in ("separator", "decimal", "thousands", "encoding") if found.get(name) != told.get(name)
        ]
        defaults = {"separator": ",", "decimal": ".", "encoding": "utf-8"}
        advice = {name: found.get(name, defaults.get(name)) for name in names}
        return {name: value for name, value in advice.items() if value is not None}


def look_at(path: str | os.PathLike[str]) -> Look | None:
    """Look at a text or Excel file; None for other kinds, and for what cannot be read at all."""
    given = Path(path)
    if not os.path.isfile(given):  # such as a pipe, which never ends
        return None
    try:
        kind = kind_of(given)
        if kind == "xlsx":
            return Look(given, PLAIN, sheets=tuple(sheet_names(given)))
        return _look_at_text(given) if kind == "csv" else None
    except (OSError, EOFError, zlib.error, csv.Error, DplinkedError):
        return None


def look_at_data(data: Any) -> list[Look]:
    """Look at the files that a path, or a :class:`File`, stands for."""
    try:
        found = [look_at(path) for path in find_files(data).paths]
    except DplinkedError:
        return []
    return [look for look in found if look is not None]


def tell_format(data: Any) -> None:
    """Refuse a file that is about to be read in a way in which it is not written, and warn where its numbers seem to be. The message says what to declare."""
    if not isinstance(data, (str, Path, File)):
        return
    path, declared = split_file(data)
    look = look_at(path)
    advice = {} if look is None else look.advice(_settled(path, declared))
    if look is None or not advice:
        return
    whole = {**declared.options(), **advice}
    said = (
        f"{path.name!r} seems to be written with {in_words(advice)}. Say so: {as_options(whole)} on the command line, "
        f"or dpl.File({path.name!r}, {as_arguments(whole)}) in Python."
    )
    if advice.keys() & {"separator", "encoding"}:
        raise StudyError(said)
    warnings.warn(said, stacklevel=3)


def _settled(path: Path, declared: Format) -> Format:
    try:
        return find_files(File(path, **declared.options())).format
    except DplinkedError:
        return declared


# --- what to write ---------------------------------------------------------------------------------


def in_words(options: Mapping[str, Any]) -> str:
    """How a file is written, in words."""
    words: dict[str, Callable[[Any], str]] = {
        "separator": lambda mark: f"{SEPARATORS[mark]} between cells",
        "decimal": lambda mark: f"decimal {DECIMALS[mark]}",
        "thousands": lambda mark: f"{THOUSANDS[mark]} between thousands",
        "encoding": lambda name: f"letters in {_spelled(name)}",
        "sheet": lambda name: f"the sheet {name!r}",
    }
    parts = [words[name](value) for name, value in options.items()]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def as_toml(options: Mapping[str, Any]) -> str:
    """The options as lines of a study's [data] section."""
    return "\n".join(f"{name} = {_quoted(name, value)}" for name, value in options.items())


def as_options(options: Mapping[str, Any]) -> str:
    """The options as those of a command."""
    return " ".join(f"--{name} {'tab' if value == chr(9) else _shell(name, value)}" for name, value in options.items())


def as_arguments(options: Mapping[str, Any]) -> str:
    """The options as arguments of :class:`File`."""
    return ", ".join(f"{name}={_quoted(name, value)}" for name, value in options.items())


def _spelled(encoding: str) -> str:
    """The name of an encoding as people write it."""
    return {"iso8859-1": "latin-1"}.get(encoding, encoding)


def _shell(name: str, value: Any) -> str:
    text = _spelled(value) if name == "encoding" else str(value)
    return text if re.fullmatch(r"[\w.,-]+", text) else f'"{text}"'


def _quoted(name: str, value: Any) -> str:
    text = _spelled(value) if name == "encoding" else value
    return str(value) if isinstance(value, int) else f'"{text}"'.replace("\t", "\\t")


# --- text files ------------------------------------------------------------------------------------


def _look_at_text(path: Path) -> Look:
    encoding = _find_encoding(path)
    with open_bytes(path) as file:
        read = "utf-8-sig" if encoding in (None, ANY) else encoding
        text = file.read(_SAMPLE).decode(str(read), errors="replace")
    lines = text.splitlines(keepends=True)
    sample = "".join(lines[: _LINES + 1] if len(text) < _SAMPLE // 4 or len(lines) < 3 else lines[:-1][: _LINES + 1])
    separator = _find_separator(sample)
    rows = _cut(sample, separator)
    decimal, thousands = _find_marks(cell for row in rows[1:] for cell in row)
    format = Format(
        separator=None if separator == "," else separator, decimal=decimal, thousands=thousands, encoding=encoding
    )
    return Look(path, format, tuple(rows[0]) if rows else ("",))


def _find_encoding(path: Path) -> str | None:
    """The encoding of a whole file; None for UTF-8."""
    decoder, plain, single = codecs.getincrementaldecoder("utf-8")("strict"), True, Counter[bool]()
    with open_bytes(path) as file:
        first = file.read(4096)
        for bom, name in _BOMS.items():
            if first.startswith(bom):
                return name
        zeros = [first[side::2].count(0) for side in (0, 1)]
        if sum(zeros) > len(first) // 5:
            return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
        valid, piece = True, first
        while piece:
            plain = plain and piece.isascii()
            if valid:
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError:
                    valid = False
            single[any(0x80 <= byte < 0xA0 for byte in piece) if not piece.isascii() else False] += 1
            piece = file.read(_PIECE)
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            valid = False
    if plain:
        return ANY
    return None if valid else "cp1252" if single[True] else "latin-1"


def _find_separator(sample: str) -> str:
    """The mark that cuts most lines into the same number of cells, and into more than one; of several such marks the one that cuts the first line so too, which has names and no decimal commas."""

    def fits(mark: str) -> tuple[float, bool, int]:
        rows = _cut(sample, mark)
        widths = Counter(map(len, rows))
        width, lines = max(widths.items(), key=lambda item: item[1], default=(1, 0))
        return (lines / max(1, widths.total()) if width > 1 else 0.0), bool(rows) and len(rows[0]) == width, width

    shares = {mark: fits(mark) for mark in (",", ";", "\t", "|")}
    best = max(shares, key=lambda mark: (round(shares[mark][0], 1), *shares[mark][1:]))
    return best if shares[best][0] > 0.5 else ","


def _cut(sample: str, separator: str) -> list[list[str]]:
    """The cells of the first lines."""
    try:
        return [row for row in islice(csv.reader(io.StringIO(sample), delimiter=separator), _LINES) if row]
    except csv.Error:
        return []


def _find_marks(cells: Iterable[str]) -> tuple[str, str | None]:
    """The decimal mark and the one between thousands, as far as cells tell them."""
    texts = [cell.strip() for cell in cells if any(mark in cell for mark in ",. '\u00a0\u202f\u2019")]
    counts = {mark: _count(texts, pattern) for mark, pattern in _DECIMAL.items()}
    decimal = "," if counts[","] > counts["."] else "."
    grouped = {mark: _count(texts, pattern) for mark, pattern in GROUPED.items() if mark != decimal}
    if decimal == "." and not counts["."]:  # 1.234 may be a number, or a thousand and more
        grouped.pop(".", None)
    thousands = max(grouped, key=lambda mark: grouped[mark])
    return decimal, thousands if grouped[thousands] else None


def _count(texts: Sequence[str], pattern: str) -> int:
    found = re.compile(pattern)
    return sum(found.fullmatch(text) is not None for text in texts)
