"""Files that hold rows: which files a path stands for, and how a single one is read."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dplinked.data.csv import read_csv
from dplinked.errors import StudyError, raise_alone, shown

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


@dataclass(frozen=True)
class Files:
    """Files of one kind that together hold the rows.

    Attributes
    ----------
    paths
        The files, in the order of their rows.
    kind
        ``"parquet"``, ``"csv"`` or ``"json"``.
    place
        What was given, with its symlinks resolved: by it a ledger knows the files before it opens them.
    root
        The folder that was given, if one was; the names of its subfolders may hold Hive partitions.
    """

    paths: tuple[Path, ...]
    kind: str
    place: str = ""
    root: Path | None = None


def find_files(path: str | os.PathLike[str]) -> Files:
    """Find the files that a path stands for: one file, all Parquet files in a folder, or those of a glob like ``rows/*.csv``.

    Symlinks are resolved here, once: what a file is and what it holds are found out about the same file.
    """
    given = Path(path)
    real = Path(os.path.realpath(given))
    if real.is_dir():
        found = sorted(
            file for file in real.rglob("*") if _KINDS.get(file.suffix.lower()) == "parquet" and file.is_file()
        )
        shown_files = tuple(file for file in found if not file.name.startswith(("_", ".")))
        files = Files(shown_files, "parquet", str(real), real)
    elif real.is_file() or not glob.has_magic(str(path)):
        files = Files((real,), _KINDS.get(given.suffix.lower(), ""), str(real))
    else:
        pattern = _real_pattern(given)
        named = sorted(file for file in map(Path, glob.glob(pattern, recursive=True)) if file.is_file())
        kinds = {_KINDS.get(file.suffix.lower(), "") for file in named}
        real_files = tuple(Path(os.path.realpath(file)) for file in named)
        files = Files(real_files, kinds.pop() if len(kinds) == 1 else "", pattern)
    if not files.paths:
        raise StudyError(f"There are no files at {shown(given.name)}.")
    if not files.kind:
        raise StudyError(f"{shown(given.name)}: only .parquet, .csv and .json files are read, of one kind at a time.")
    for file in files.paths:
        if not file.is_file():
            raise StudyError(f"There is no file {shown(file.name)} at the given path.")
    return files


def _real_pattern(given: Path) -> str:
    """A glob whose folders without wildcards have their symlinks resolved."""
    parts = Path(os.path.abspath(given)).parts
    first = next(k for k, part in enumerate(parts) if glob.has_magic(part))
    return str(Path(os.path.realpath(Path(*parts[:first])), *parts[first:]))


def read_file(path: Path, columns: Sequence[str] | None, kind: str | None = None) -> tuple[pa.Table, list[str]]:
    """Read some columns of a Parquet or CSV file; also returns the names of all columns.

    The parsers' own errors quote cells, so they are replaced. Give `kind` if the file's name does not end in ``.parquet`` or ``.csv``.
    """
    import pyarrow as pa

    kind = kind or _KINDS.get(path.suffix.lower())
    if kind not in ("parquet", "csv"):
        raise StudyError(f"{shown(path.name)}: only .parquet and .csv files are read. Convert the file first.")
    if not path.is_file():
        raise StudyError(f"There is no file {shown(path.name)} at the given path.")
    read = read_csv if kind == "csv" else _read_parquet
    try:
        return read(path, columns)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):
        raise_alone(
            StudyError(f"{shown(path.name)} cannot be read as {kind}. The steward's 'check' shows the details.")
        )


def _read_parquet(path: Path, columns: Sequence[str] | None) -> tuple[pa.Table, list[str]]:
    import pyarrow.parquet

    known = pyarrow.parquet.read_schema(path).names
    wanted = None if columns is None else [name for name in columns if name in known]
    return pyarrow.parquet.read_table(path, columns=wanted), known
