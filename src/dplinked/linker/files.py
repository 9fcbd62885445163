"""What a linkage writes: the linked rows, the study's ``[linkage]`` section, the quality report, a sample to check."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dplinked.errors import StudyError, raise_alone
from dplinked.linkage import ELE
from dplinked.linker.audit import answer_column, read_audit, write_audit
from dplinked.linker.encodings.audit import audit_lists

if TYPE_CHECKING:
    import pyarrow as pa

    from dplinked.linker.linked import Linked

ROWS, LINKAGE, REPORT, PAGE = "linked.parquet", "linkage.toml", "quality.txt", "quality.html"
AUDIT, ACCURACY = "audit.csv", "accuracy.json"
FIRST, SECOND = "audit-first.csv", "audit-second.csv"  # what two reviewers answered apart
ASKED = ("audit-left.csv", "audit-right.csv")  # an audit of encodings, as each holder gets it
_OURS = (ROWS, LINKAGE, REPORT, PAGE, AUDIT, ACCURACY, *ASKED)  # the last four if they are asked for
_STALE = {LINKAGE, ACCURACY}  # if a linkage does not write them anew, they describe an earlier one


def save_linked(
    linked: Linked, folder: Path, *, sample: pa.Table | None, linkage: ELE | None, by: Sequence[str] = ()
) -> list[str]:
    """Write all files, and a sample of links to check, into a folder, or none of them if one cannot be written; returns their names."""
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{folder.name!r} is a file. Name a folder to write to.")
    parent = folder if folder.is_dir() else folder.resolve().parent
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise StudyError(f"{str(folder)!r} cannot be written. Name a folder in an existing one.")
    for name in (AUDIT, FIRST, SECOND) if sample is not None else ():
        if has_answers(folder / name):
            raise StudyError(
                f"{str(folder / name)!r} holds a reviewer's answers. Move it, or read audit.csv back with --audited."
            )
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".dplinked-") as work:
            _write(linked, Path(work), sample, linkage, by)
            return _move(Path(work), folder)
    except OSError:
        raise_alone(StudyError(f"{str(folder)!r} could not be written; nothing in it was changed."))


def check_kept(folder: Path, *read: Path | None) -> None:
    """Refuse to write over files that are read, or that hold a key."""
    ours = {(folder / name).resolve() for name in _OURS}
    if clash := ours & {path.resolve() for path in read if path is not None}:
        raise StudyError(f"{clash.pop().name!r} is read and would be overwritten. Name another file or another folder.")


def _write(linked: Linked, work: Path, sample: pa.Table | None, linkage: ELE | None, by: Sequence[str]) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(linked.rows, work / ROWS)
    if linkage is not None or any(found.secret is None and found.by is None for found in linked.estimates):
        (work / LINKAGE).write_text(linkage_section(linkage or linked.linkage), encoding="utf-8")
    (work / REPORT).write_text(linked.summary(by) + "\n", encoding="utf-8")
    linked.to_html(work / PAGE, by=by)
    if sample is not None:
        write_audit(sample, work / AUDIT)
        for name, asked in zip(ASKED, audit_lists(sample), strict=True) if linked.method == "encodings" else ():
            write_audit(asked, work / name)
    for file in work.iterdir():  # nobody else could look into their folder so far
        file.chmod(0o600)


def _move(work: Path, folder: Path) -> list[str]:
    """Move finished files to their folder, and remove those of an earlier linkage that they do not replace."""
    folder.mkdir(exist_ok=True)
    written = sorted(path.name for path in work.iterdir())
    for file in written:
        (work / file).replace(folder / file)
    for file in _STALE - set(written):
        (folder / file).unlink(missing_ok=True)
    return written


def linkage_section(linkage: ELE) -> str:
    """A linkage model as the study's ``[linkage]`` section (TOML)."""
    lines = [
        "# The linkage of a study. FOR THE STEWARD: accuracies estimated from the files are data, not public values."
    ]
    if linkage.source == "estimated":
        lines += [
            "# source says where the accuracies come from; `fit` refuses 'estimated' as it stands. If links are held fixed and were checked by identifiers",
            "# alone, let the audit tell them (dplinked link … --audited … --by-identifiers). Or release them (--release-accuracy), or replace them by public ones",
            '# and write source = "public", or keep them and declare accuracy_min here and linkage_change in [unit].',
        ]
    lines.append("[linkage]")
    for key, value in linkage.describe_whole().items():
        if value is not None and key != "model":
            lines.append(f"{key} = {_toml(value)}")
    lines += [
        "",
        "# What one person's identifiers may change about the links has to be said in [unit]: linking does not tell.",
        "",
    ]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A text, a number or a table as TOML writes it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def has_answers(path: Path) -> bool:
    """Whether a file is an audit that a reviewer has begun to fill in."""
    if not path.is_file():
        return False
    table = read_audit(path)
    answered = answer_column(table.column_names)
    return answered is not None and table.column(answered).null_count < table.num_rows
