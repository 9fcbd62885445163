"""Files that hold rows: which files a path stands for, and how a single one is read."""

from __future__ import annotations

import csv
import glob
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dplinked.data.csv import read_csv
from dplinked.data.format import PLAIN, File, Format, split_file
from dplinked.data.programs import PROGRAMS, read_program_file, read_sheet
from dplinked.errors import StudyError, raise_alone, shown

if TYPE_CHECKING:
    import pyarrow as pa

_TABS = (".tsv", ".tab", ".tsv.gz")
_KINDS = {
    ".parquet": "parquet", ".pq": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".xlsx": "xlsx", ".xlsm": "xlsx",
    **dict.fromkeys((".csv", ".csv.gz", *_TABS), "csv"), **PROGRAMS,
}  # fmt: skip
_READ = ".parquet, .csv, .tsv, .csv.gz, .json, .xlsx, .dta, .sav and .sas7bdat"


@dataclass(frozen=True)
class Files:
    """Files of one kind that together hold the rows.

    Attributes
    ----------
    paths
        The files, in the order of their rows.
    kind
        ``"parquet"``, ``"csv"``, ``"json"``, ``"xlsx"``, ``"stata"``, ``"spss"`` or ``"sas"``.
    place
        What was given, with its symlinks resolved: by it a ledger knows the files before it opens them.
    root
        The folder that was given, if one was; the names of its subfolders may hold Hive partitions.
    format
        How the files are written.
    """

    paths: tuple[Path, ...]
    kind: str
    place: str = ""
    root: Path | None = None
    format: Format = PLAIN


def kind_of(path: Path) -> str:
    """The kind of a file by its ending; empty for kinds that are not read."""
    return _KINDS.get(_ending(path), "")


def _ending(path: Path) -> str:
    """The ending of a file's name; of compressed files with the one before it."""
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def find_files(data: str | os.PathLike[str] | File) -> Files:
    """Find the files that a path stands for: one file, all Parquet files in a folder, or those of a glob like ``rows/*.csv``.

    Symlinks are resolved here, once: what a file is and what it holds are found out about the same file.
    """
    given, format = split_file(data)
    real = Path(os.path.realpath(given))
    if os.path.isdir(real):  # no path is too long or too odd for these
        found = sorted(file for file in real.rglob("*") if kind_of(file) == "parquet" and file.is_file())
        shown_files = tuple(file for file in found if not file.name.startswith(("_", ".")))
        files = Files(shown_files, "parquet", str(real), real)
    elif os.path.isfile(real) or not glob.has_magic(str(given)):
        files = Files((real,), kind_of(given), str(real))
    else:
        pattern = _real_pattern(given)
        named = sorted(file for file in map(Path, glob.glob(pattern, recursive=True)) if file.is_file())
        kinds = {kind_of(file) for file in named}
        real_files = tuple(Path(os.path.realpath(file)) for file in named)
        files = Files(real_files, kinds.pop() if len(kinds) == 1 else "", pattern)
    if not files.paths:
        raise StudyError(f"There are no files at {shown(given.name)}.")
    if not files.kind:
        raise StudyError(f"{shown(given.name)}: only {_READ} files are read, of one kind at a time.")
    for file in files.paths:
        if not os.path.isfile(file):
            raise StudyError(f"There is no file {shown(file.name)} at the given path.")
    if len(files.paths) > 1 and files.kind not in ("parquet", "csv", "json"):
        raise StudyError(f"{shown(given.name)}: files of this kind are read one at a time. Name one.")
    return replace(files, format=settle_format(files.kind, files.paths, format))


def settle_format(kind: str, paths: Sequence[Path], format: Format) -> Format:
    """How files are written, with the separator that their endings tell if none is declared; None for commas. Options that they do not have are refused."""
    format.check_kind(kind)
    if kind != "csv":
        return format
    tabs = {_ending(path) in _TABS for path in paths}
    if format.separator is None and len(tabs) > 1:
        raise StudyError(
            "Some of these files are .csv and some .tsv. Give files of one kind, or say what separates their cells: separator = '…'."
        )
    separator = format.separator or ("\t" if True in tabs else ",")
    return replace(format, separator=None if separator == "," else separator)


def _real_pattern(given: Path) -> str:
    """A glob whose folders without wildcards have their symlinks resolved."""
    parts = Path(os.path.abspath(given)).parts
    first = next(k for k, part in enumerate(parts) if glob.has_magic(part))
    return str(Path(os.path.realpath(Path(*parts[:first])), *parts[first:]))


def read_file(
    data: Path | File, columns: Sequence[str] | None, kind: str | None = None, format: Format | None = None
) -> tuple[pa.Table, list[str]]:
    """Read some columns of one file of any kind but JSON; also returns the names of all columns.

    The parsers' own errors quote cells, so they are replaced. Give `kind` if the file's name has another ending, and `format` if it is settled already.
    """
    import pyarrow as pa

    path, declared = split_file(data)
    kind = kind or kind_of(path)
    if not kind or kind == "json":
        raise StudyError(
            f"{shown(path.name)}: only {_READ.replace('.json, ', '')} files are read. Convert the file first."
        )
    format = format or settle_format(kind, [path], declared)
    if not os.path.isfile(path):
        raise StudyError(f"There is no file {shown(path.name)} at the given path.")
    try:
        match kind:
            case "csv":
                return read_csv(path, columns, format)
            case "parquet":
                return _read_parquet(path, columns)
            case "xlsx":
                return read_sheet(path, columns, format)
        return read_program_file(path, columns, format)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error, EOFError, zlib.error):
        raise_alone(unreadable(path, kind))


def unreadable(path: Path, kind: str) -> StudyError:
    """That a file cannot be read as what its ending says."""
    return StudyError(f"{shown(path.name)} cannot be read as {kind}. The steward's 'check' shows the details.")


def _read_parquet(path: Path, columns: Sequence[str] | None) -> tuple[pa.Table, list[str]]:
    import pyarrow.parquet

    known = pyarrow.parquet.read_schema(path).names
    wanted = None if columns is None else [name for name in columns if name in known]
    return pyarrow.parquet.read_table(path, columns=wanted), known
