"""What all windows of a studio share: the folder, what was worked on in it, and the job that is running. Only one runs at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from dplinked.data.files import kind_of
from dplinked.errors import DplinkedError, StudyError, raise_alone
from dplinked.fitting import fit_study
from dplinked.ledger.ledger import Ledger
from dplinked.release.release import Release
from dplinked.release.releases import Releases, load_release
from dplinked.studio.workspace import Workspace, load_workspace, save_workspace
from dplinked.study.study import Study

T = TypeVar("T")
_MOST_FILES = 2_000  # of a folder that are watched
_LARGEST_RELEASE = 50_000_000  # bytes; larger files are not looked at


@dataclass(frozen=True)
class Fault:
    """What went wrong, in words that may be shown, and the name of its kind of error."""

    text: str
    kind: str = field(default="", compare=False)


def attempt(work: Callable[[], T]) -> T | Fault:
    """Do some work. If it fails, return what to show instead: the library's own messages, but nothing from any other error."""
    try:
        return work()
    except DplinkedError as error:
        return Fault(str(error), type(error).__name__)
    except Exception:
        return Fault("Unexpected error; please report it.")


Report = Callable[[str, int, int], None]  # what a job calls with its step, and how much of how much of it is done


@dataclass(frozen=True)
class Job:
    """A job that is running or has ended: what kind it is, its current step and progress, what went wrong, if anything did, and whether it may be stopped."""

    kind: str = "release"
    title: str = "Starting"
    done: int = 0
    total: int = 0
    running: bool = True
    fault: Fault | None = None
    stoppable: bool = False


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


@dataclass(frozen=True)
class Kept:
    """A release that a file of the folder holds, or one made here that could not be written to it.

    Attributes
    ----------
    name
        Name of the file.
    time
        When the file was written, to the minute.
    release
        The release.
    fault
        Why it could not be written; None if the file holds it.
    """

    name: str
    time: str
    release: Release | Releases
    fault: Fault | None = None


class Desk:
    """A folder with study files, what was worked on in it, and what was made since the studio was started.

    A release was paid for, so it is written to a file before it is shown, and it outlives the window that asked for it: a window that is
    opened later shows it too.

    Attributes
    ----------
    workspace
        What was worked on, kept in a file of the folder.
    job
        The job that is running, or the last one.
    results
        What the last job of each kind returned, or what went wrong.
    made
        Releases since the studio was started.
    """

    def __init__(self, folder: Path, opened: str | None = None) -> None:
        kept = load_workspace(folder)
        self.folder = folder
        self.workspace = kept if opened is None else replace(kept, study=opened, step="study")
        self.job: Job | None = None
        self.results: dict[str, Any] = {}
        self.made: tuple[Made, ...] = ()
        self._read: dict[tuple[str, int, int], Release | Releases | None] = {}
        self._holder: object | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

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

    # --- one window works at a time --------------------------------------------------------------

    def enter(self, window: object) -> bool:
        """Let a window work if no other one does. Returns whether it may."""
        with self._lock:
            if self._holder is None:
                self._holder = window
            return self._holder is window

    def take(self, window: object) -> None:
        """Let a window work, whichever did before."""
        with self._lock:
            self._holder = window

    def leave(self, window: object) -> None:
        """A window was closed."""
        with self._lock:
            if self._holder is window:
                self._holder = None

    def holds(self, window: object) -> bool:
        """Whether a window is the one that works."""
        return self._holder is window

    def keep_work(self, work: Workspace) -> None:
        """Keep what was worked on."""
        self.workspace = work
        save_workspace(self.folder, work)

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

    # --- the one job -----------------------------------------------------------------------------

    def start(self, kind: str, work: Callable[[Report], Any], *, stoppable: bool = False) -> None:
        """Run a job in a thread of its own. This is refused while another one is running. One that is `stoppable` ends with an error where it tells its progress next."""
        with self._lock:
            if self.job is not None and self.job.running:
                raise StudyError(
                    "Something is running already. Nothing more was begun or spent. Wait until it is done."
                )
            self._stopping.clear()
            self.job = Job(kind, stoppable=stoppable)
        threading.Thread(target=self._run, args=(kind, work)).start()

    def forget_fault(self, seen: Job | None) -> None:
        """Forget why a job failed, once that was seen and does not hold any more."""
        with self._lock:
            if seen is not None and self.job is seen and not seen.running and seen.fault is not None:
                self.job = replace(seen, fault=None)

    def stop(self) -> None:
        """Stop the running job, if it may be stopped."""
        self._stopping.set()

    def _run(self, kind: str, work: Callable[[Report], Any]) -> None:
        found = attempt(lambda: work(self._report))
        self.results[kind] = found
        self.job = Job(kind, running=False, fault=found if isinstance(found, Fault) else None)

    def release(self, study: Study, release_id: str | None, *, again: bool = False) -> None:
        """Make a release as a job. With `again`, a request that the ledger has seen is computed and paid for anew."""
        data = data_of(study)
        self.start("release", lambda report: self._make(study, data, release_id, again, report))

    def _make(self, study: Study, data: Any, release_id: str | None, again: bool, report: Report) -> Made:
        """Make a release and write it to a file."""
        charged = _charged(study)
        release = fit_study(study, data, release_id=release_id, again=again, progress=report)
        stored = release.ledger is not None and release.ledger.id in charged
        made = Made(release, attempt(lambda: self.keep(release)), stored)
        self.made = (*self.made, made)
        return made

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

    # --- releases of the folder ------------------------------------------------------------------

    def shelf(self) -> tuple[Kept, ...]:
        """All releases of the folder, the newest first: those in its files, whoever wrote them, and those made here that could not be written."""
        states = self.shelf_state()
        self._read = {state: self._read[state] if state in self._read else self._load(state[0]) for state in states}
        files = [(time, name, found) for (name, time, _), found in self._read.items() if found is not None]
        kept = [
            Kept(name, _minute(time / 1e9), found)
            for time, name, found in sorted(files, key=lambda one: one[:2], reverse=True)
        ]
        lost = [
            Kept("not written", "now", made.release, made.file) for made in self.made if isinstance(made.file, Fault)
        ]
        return (*reversed(lost), *kept)

    def shelf_state(self) -> tuple[tuple[str, int, int], ...]:
        """Names, times and sizes of the files that may be releases."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError):
                state = path.stat()
                if path.is_file() and not path.name.startswith(".") and state.st_size <= _LARGEST_RELEASE:
                    found.append((path.name, state.st_mtime_ns, state.st_size))
        return tuple(found)

    def files_state(self) -> tuple[tuple[str, int, int], ...]:
        """Names, times and sizes of the files of the folder and its subfolders, as far as they are a person's: what others write there is seen by it."""
        found: list[tuple[str, int, int]] = []
        for path in (*self.folder.glob("[!.]*"), *self.folder.glob("[!.]*/[!.]*")):
            with contextlib.suppress(OSError):
                state = path.stat()
                if path.is_file() and (kind_of(path) or path.suffix == ".toml") and len(found) < _MOST_FILES:
                    found.append((str(path.relative_to(self.folder)), state.st_mtime_ns, state.st_size))
        return tuple(sorted(found))

    def _load(self, name: str) -> Release | Releases | None:
        """The release that a file holds; None for any other file."""
        found = attempt(lambda: load_release(self.folder / name))
        return None if isinstance(found, Fault) else found

    def _report(self, title: str, done: int, total: int) -> None:
        if self.job is not None:
            if self.job.stoppable and self._stopping.is_set():
                raise StudyError("Stopped. Nothing was written.")
            self.job = replace(self.job, title=title, done=done, total=total)


def _minute(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


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
