"""What all commands share: the study argument, progress bars, checks of output files, and errors as exit codes."""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console

from dplinked.errors import DplinkedError, StudyError, raise_alone

if TYPE_CHECKING:
    from dplinked.data.format import File
    from dplinked.study.study import Study

StudyFile = Annotated[Path, typer.Argument(help="The study file (TOML).")]
_TWICE = "Twice if the two files differ: left, then right."
Separator = Annotated[
    list[str] | None, typer.Option(help=f"What separates the cells of text files, like ';' or tab. {_TWICE}")
]
Decimal = Annotated[list[str] | None, typer.Option(help="The decimal mark of numbers in text files: . or ,")]
Thousands = Annotated[list[str] | None, typer.Option(help="The mark between thousands in text files, if there is one.")]
Encoding = Annotated[list[str] | None, typer.Option(help="The encoding of text files, like latin-1 or utf-16.")]
Sheet = Annotated[list[str] | None, typer.Option(help="The sheet of Excel files; the first unless it is given.")]
progress = Console(stderr=True)
_INTERRUPTED = 130


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar. The function it yields moves it: it takes the current step, how much is done, and how much there is."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    bars = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*bars, console=progress, transient=True) as shown:
        task = shown.add_task(title, total=None)
        yield lambda part, done, total: shown.update(task, description=part, completed=done, total=total)


@contextmanager
def told_warnings() -> Iterator[None]:
    """Print the library's own warnings as one line each, once the work is done."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in said:
        if warning.category is UserWarning:
            typer.echo(f"dplinked: {warning.message}", err=True)


def as_written(paths: Sequence[Path], **options: list[str] | None) -> list[Path | File]:
    """Files with how they are written. An option that is given once is that of all files that can have it."""
    from dplinked.data.files import kind_of
    from dplinked.data.format import File, Format

    declared: list[dict[str, Any]] = [{} for _ in paths]
    for name, values in options.items():
        if values and len(values) not in (1, len(paths)):
            raise StudyError(f"--{name} is given once, or once for each file.")
        for place, value in enumerate(values * len(paths) if values and len(values) == 1 else values or ()):
            declared[place][name] = int(value) if name == "sheet" and value.isdecimal() else value
    for place, path in enumerate(paths):
        for name, value in list(declared[place].items()):
            once, kind = len(options[name] or ()) == 1, kind_of(path)
            others = [other for other in paths if kind_of(other) != kind]
            if once and others and not Format(**{name: value}).fits(kind):
                del declared[place][name]
    return [File(path, **given) if given else path for path, given in zip(paths, declared, strict=True)]


def files_of(study: Study) -> list[Path]:
    """The files that a study stands on: its data's, its pairs', its ledger and the ledger's key. What is not there yet, or no file, is left out."""
    from dplinked.data.files import find_files
    from dplinked.data.format import File, split_file
    from dplinked.data.sources import Query
    from dplinked.ledger.key import key_path
    from dplinked.linkage import Matching

    found = []
    if isinstance(study.data, (Path, File)):
        found.append(split_file(study.data)[0])
        with suppress(StudyError):  # that there are none is told once they are read
            found.extend(find_files(study.data).paths)
    if isinstance(study.data, Query):
        found.extend((study.data.folder or Path()) / database for database in study.data.attach.values())
    if isinstance(study.linkage, Matching) and isinstance(study.linkage.pairs, Path):
        found.append(study.linkage.pairs)
    if study.ledger is not None:
        address = str(study.ledger)
        database = None if "://" in address else Path(address)
        found.extend(path for path in (database, key_path(database, study.ledger_key)) if path is not None)
    return found


@contextmanager
def reserved(path: Path, *, force: bool) -> Iterator[None]:
    """Hold an output file before anything is spent, so that no other command writes it. A file that was made here goes again if nothing is written."""
    with ExitStack() as held:
        free, existed = False, path.exists()
        try:
            free = _is_free(held.enter_context(path.open("a", encoding="utf-8")), existed)
        except OSError:
            raise_alone(StudyError(f"{str(path)!r} cannot be written. Choose a file in an existing folder with --out."))
        if not free and not force:
            raise StudyError(
                f"{str(path)!r} is there already, and may hold a release that was paid for. Choose another file with --out, or overwrite it with --force."
            )
        try:
            yield
        finally:
            with suppress(OSError):
                if not existed and path.is_file() and not path.stat().st_size:
                    path.unlink()


def _is_free(file: TextIO, existed: bool) -> bool:
    """Lock an output file, and tell whether it is empty and nobody else's. A command that was killed leaves an empty file without a lock."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a device or pipe, which keeps nothing
        return True
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # files cannot be locked here
        return not existed
    return file.tell() == 0


def check_writable(path: Path, *read: Any) -> None:
    """Refuse, before anything is spent, an output file that cannot be written or that is also an input."""
    try:
        folder, whole = path.resolve().parent, path.resolve()
        fine = not path.is_dir() and folder.is_dir() and os.access(path if path.exists() else folder, os.W_OK)
        clash = whole in {Path(name).resolve() for name in read if isinstance(name, (str, Path))}
    except (OSError, ValueError):
        fine, clash = False, False
    if clash:
        raise StudyError(f"{path.name!r} is read and would be overwritten. Choose another file with --out.")
    if not fine:
        raise StudyError(f"{str(path)!r} cannot be written. Choose a file in an existing folder with --out.")


def write_text(path: Path, text: str) -> None:
    """Write a text file; an error says that it could not be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        raise_alone(StudyError(f"{str(path)!r} could not be written. Choose another file with --out."))


def check_folder(path: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be written."""
    parent = path if path.is_dir() else path.resolve().parent
    if (path.exists() and not path.is_dir()) or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise StudyError(f"{str(path)!r} cannot be written. Name a folder in an existing one with --out.")


def run_app(app: typer.Typer) -> NoReturn:
    """Run the command line. Each of the library's own errors becomes one line of text and an exit code."""
    try:
        code = app(standalone_mode=False) or 0
        if code == _INTERRUPTED:  # Typer may turn an interruption into this exit code without a message
            raise KeyboardInterrupt
        sys.exit(code)
    except DplinkedError as error:
        typer.echo(f"dplinked: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("dplinked: interrupted", err=True)
        sys.exit(_INTERRUPTED)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # Click's own usage errors have one
        typer.echo(f"dplinked: {usage() if usage else 'unexpected error; please report it'}", err=True)
        sys.exit(getattr(error, "exit_code", 1))
