"""How a file is written: what stands between cells, decimal and thousands marks, encoding, sheet. All of it is declared, and nothing is guessed from cells."""

from __future__ import annotations

import codecs
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError, shown
from dplinked.records import PlainlyShown

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", ":": "colons", " ": "blanks"}
DECIMALS = {".": "points", ",": "commas"}
THOUSANDS = {",": "commas", ".": "points", " ": "blanks", "'": "apostrophes"}
_TAB = ("tab", "\\t")  # as it can be written on a command line


@dataclass(frozen=True, repr=False, kw_only=True)
class Format(PlainlyShown):
    """How a file is written, as :class:`File` declares it; what is None follows from the file's ending, or is none."""

    separator: str | None = None
    decimal: str = "."
    thousands: str | None = None
    encoding: str | None = None
    sheet: str | int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.separator, str) and self.separator in _TAB:
            object.__setattr__(self, "separator", "\t")
        marks = (("separator", SEPARATORS, True), ("decimal", DECIMALS, False), ("thousands", THOUSANDS, True))
        for name, allowed, optional in marks:
            value = getattr(self, name)
            if not (value is None and optional) and not (isinstance(value, str) and value in allowed):
                listed = ", ".join(repr(mark) for mark in allowed)
                raise StudyError(f"{name} must be one of {listed}, not {shown(value)}.")
        if self.thousands == self.decimal:
            raise StudyError(f"thousands and decimal are both {self.decimal!r}. Declare the one that the file has.")
        if self.encoding is not None:
            object.__setattr__(self, "encoding", _known_encoding(self.encoding))
        if self.sheet is not None and (isinstance(self.sheet, bool) or not isinstance(self.sheet, (str, int))):
            raise StudyError(f"sheet must be a sheet's name, or its number from 1 on, not {shown(self.sheet)}.")

    def options(self) -> dict[str, Any]:
        """What is declared otherwise than it is by default, by its name in a study."""
        return {name: value for name, value in asdict(self).items() if name in _DEFAULTS and value != _DEFAULTS[name]}

    def fits(self, kind: str) -> bool:
        """Whether files of a kind have all these options."""
        return all(kind in _KINDS_WITH[name] for name in self.options())

    def check_kind(self, kind: str) -> None:
        """Refuse options that files of a kind do not have."""
        for name in self.options():
            if kind not in _KINDS_WITH[name]:
                raise StudyError(f"{name} is for {_FILES_WITH[name]}: leave it out.")


PLAIN = Format()
_DEFAULTS: dict[str, Any] = asdict(PLAIN)
_PROGRAMS = ("stata", "spss", "sas")
_KINDS_WITH = dict.fromkeys(_DEFAULTS, ("csv",)) | {"encoding": ("csv", *_PROGRAMS), "sheet": ("xlsx",)}
_FILES_WITH = dict.fromkeys(_DEFAULTS, "text files such as .csv and .tsv") | {
    "encoding": "text files and those of Stata, SPSS and SAS",
    "sheet": "Excel files",
}


@dataclass(frozen=True, repr=False)
class File(Format):
    """A file, or several of one kind, with how they are written.

    Parameters
    ----------
    path
        A file, a folder of Parquet files, or a glob like ``"rows/*.csv"``.
    separator
        What stands between the cells of a text file: ``","`` (``"\\t"`` if its name ends in .tsv), ``";"``, ``"|"``, ``":"`` or a blank.
    decimal
        The decimal mark of numbers in a text file: ``"."`` or ``","``.
    thousands
        The mark between thousands in a text file, if there is one: ``","``, ``"."``, a blank or ``"'"``.
    encoding
        The encoding of a text file, ``"utf-8"`` unless it is given, such as ``"latin-1"``, ``"cp1252"`` or ``"utf-16"``; or the one to read a file of Stata, SPSS or SAS with.
    sheet
        The sheet of an Excel file, by its name or its number from 1 on; the first unless it is given.
    """

    path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, (str, os.PathLike)):
            raise StudyError(f"A file is given by its path, not by {shown(self.path)}.")
        object.__setattr__(self, "path", Path(self.path))

    @property
    def format(self) -> Format:
        """How it is written, wherever it is."""
        return Format(**self.options())


def split_file(data: str | os.PathLike[str] | File) -> tuple[Path, Format]:
    """A path, and how the file there is written."""
    return (Path(data.path), data.format) if isinstance(data, File) else (Path(data), Format())


def _known_encoding(name: Any) -> str | None:
    """The name of an encoding of texts; None for UTF-8, which is the default."""
    found = None
    with suppress(LookupError):
        found = codecs.lookup(name) if isinstance(name, str) and name.isascii() else None
    if found is None or not getattr(found, "_is_text_encoding", True):
        raise StudyError(f"encoding must be that of a text, like 'utf-8', 'latin-1' or 'utf-16', not {shown(name)}.")
    return None if found.name in ("utf-8", "utf-8-sig") else found.name
