"""What all windows of a studio share: the folder, and the release that is running. Only one may run at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from dplinked.errors import DplinkedError, StudyError, raise_alone
from dplinked.fitting import fit_study
from dplinked.ledger.ledger import Ledger
from dplinked.release.release import Release
from dplinked.release.releases import Releases
from dplinked.study.study import Study

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """What went wrong, in words that may be shown."""

    text: str


def attempt(work: Callable[[], T]) -> T | Fault:
    """Do some work. If it fails, return what to show instead: the library's own messages, but nothing from any other error."""
    try:
        return work()
    except DplinkedError as error:
        return Fault(str(error))
    except Exception:
        return Fault("Unexpected error; please report it.")


@dataclass(frozen=True)
class Job:
    """A release that is running or has ended: its current step and progress, and what went wrong, if anything did."""

    title: str = "Starting"
    done: int = 0
    total: int = 0
    running: bool = True
    fault: Fault | None = None


@dataclass(frozen=True)
class Made:
    """A release, and what became of it.

    Attributes
    ----------
    release
        The release.
    file
        Name of the file that holds it, or why it could not be written.
    stored
        Whether the ledger had it already, so that nothing was spent.
    """

    release: Release | Releases
    file: str | Fault
    stored: bool = False


class Desk:
    """A folder with study files, and the releases made since the studio was started.

    A release was paid for, so it is written to a file before it is shown, and it outlives the window that asked for it: a window that is
    opened later shows it too.
    """

    def __init__(self, folder: Path, opened: str | None = None) -> None:
        self.folder, self.opened = folder, opened
        self.job: Job | None = None
        self.made: tuple[Made, ...] = ()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, study: Path | None) -> Desk:
        """Open the desk for the folder of a study file, or for the current folder."""
        if study is None:
            return cls(Path.cwd())
        if not study.is_file():
            raise StudyError(
                f"There is no study file {study.name!r}. Without one, 'dplinked studio' starts a new study."
            )
        return cls(study.resolve().parent, study.name)

    # --- study files -----------------------------------------------------------------------------

    def study_files(self) -> list[str]:
        """Names of the folder's study files."""
        return sorted(path.name for path in self.folder.glob("*.toml") if path.is_file())

    def free_name(self) -> str:
        """A name for a new study file that is not taken yet."""
        names = self.study_files()
        return next(name for k in range(len(names) + 1) if (name := f"study{k or ''}.toml") not in names)

    def read(self, name: str) -> str:
        """Read a study file of the folder."""
        try:
            return self._path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise_alone(StudyError(f"The study file {name!r} cannot be read."))

    def write(self, name: str, text: str, before: str | None) -> None:
        """Write a study file. An existing file is overwritten only if it still holds the text `before`, with which it was opened."""
        path = self._path(name)
        if path.exists() and self.read(name) != before:
            raise StudyError(f"{name!r} is there already, or was changed meanwhile. Open it, or choose another name.")
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            raise_alone(StudyError(f"{name!r} could not be written. Check the folder's permissions."))

    def _path(self, name: str) -> Path:
        """The path of a study file. Names that lead out of the folder are refused."""
        if not name.endswith(".toml") or Path(name).name != name or not name.isprintable():
            raise StudyError(
                f"{name!r} is not a name for a study file. Use something like 'study.toml', without folders."
            )
        return self.folder / name

    # --- the one release -------------------------------------------------------------------------

    def start(self, study: Study, release_id: str | None, *, again: bool = False) -> None:
        """Run a release in a thread of its own. This is refused while another one is running.

        With `again`, a request that the ledger has seen is computed and paid for anew.
        """
        data = data_of(study)
        with self._lock:
            if self.job is not None and self.job.running:
                raise StudyError("A release is running already. Nothing more was spent. Wait until it is done.")
            self.job = Job()
        threading.Thread(target=self._run, args=(study, data, release_id, again)).start()

    def _run(self, study: Study, data: Any, release_id: str | None, again: bool) -> None:
        found = attempt(lambda: self._make(study, data, release_id, again))
        if isinstance(found, Fault):
            self.job = Job(running=False, fault=found)
        else:
            self.made = (*self.made, found)
            self.job = Job(running=False)

    def _make(self, study: Study, data: Any, release_id: str | None, again: bool) -> Made:
        """Make a release and write it to a file."""
        charged = _charged(study)
        release = fit_study(study, data, release_id=release_id, again=again, progress=self._report)
        stored = release.ledger is not None and release.ledger.id in charged
        return Made(release, attempt(lambda: self.keep(release)), stored)

    def keep(self, release: Release | Releases) -> str:
        """Write a release to a file of the folder and return its name. No file is overwritten, and none is written twice."""
        text = release.to_json() + "\n"
        names = ("release.json" if k == 1 else f"release-{k}.json" for k in count(1))
        try:
            return next(name for name in names if _write_new(self.folder / name, text))
        except OSError:
            raise_alone(
                StudyError(
                    "The release could not be written to the study's folder. Check its permissions and the space on its disk."
                )
            )

    def _report(self, title: str, done: int, total: int) -> None:
        if self.job is not None:
            self.job = replace(self.job, title=title, done=done, total=total)


def data_of(study: Study) -> Any:
    """Where the study's rows are. A study that does not say so is refused."""
    if study.data is None:
        raise StudyError("The study names no data. Fill in the data file.")
    return study.data


def _charged(study: Study) -> set[str | None]:
    """Names of the releases that the study's ledger has charged so far."""
    if study.ledger is None:
        return set()
    return {event.release for event in Ledger(study.ledger, study.population, key=study.ledger_key).events()}


def _write_new(path: Path, text: str) -> bool:
    """Write a file that does not exist yet, whole or not at all. Returns False if another one has this name and does not hold the text."""
    try:
        file = path.open("x", encoding="utf-8", newline="\n")
    except FileExistsError:
        return path.is_file() and os.access(path, os.R_OK) and path.read_bytes() == text.encode()
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink()
        raise
    return True
