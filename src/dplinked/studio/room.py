"""What one window works on. Everything it shows follows from this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from htmltools import Tag, TagChild
from shiny import reactive, ui

from dplinked.data.format import File
from dplinked.errors import DplinkedError
from dplinked.ledger.steward import Account, Place, is_opened, ledger_state, read_account
from dplinked.studio.desk import Desk, Fault, Job, Kept, attempt
from dplinked.studio.draft import BLANK, Changes, Draft
from dplinked.studio.look import ask
from dplinked.studio.path import STEPS
from dplinked.studio.workspace import Workspace
from dplinked.study.study import Study

_POLL = 0.25  # seconds between two looks at what other windows and jobs do
_OUTSIDE = 4  # every so many of them, what other programs do to the ledger and the folder is looked at too

Side = Literal["left", "right", "linked"]
T = TypeVar("T")


class Held(reactive.Value[T]):
    """A reactive value. Of one without a name Shiny would look for one in the sources of all callers, which takes longer than all else that makes a page."""

    def __init__(self, start: T) -> None:
        super().__init__(start, name="held")


def steady(found: Callable[[], T]) -> Callable[[], T]:
    """What a function finds, reactive; what follows from it is done anew only if it finds something else."""
    with reactive.isolate():
        now = Held(found())

    @reactive.effect(priority=10)
    def _() -> None:
        later = found()
        with reactive.isolate():
            if later != now():
                now.set(later)

    return now


def when_changed(found: Callable[[], Any], act: Callable[[], Any]) -> None:
    """Act whenever a function finds something else than before."""
    known: list[Any] = []

    @reactive.effect(priority=5)
    def _() -> None:
        now = found()
        changed = bool(known) and known[0] != now
        known[:] = [now]
        if changed:
            with reactive.isolate():
                act()


NOT_OPENED = Fault("The budget that this study names was not opened yet.")


@lru_cache(maxsize=8)
def _read_study(text: str, folder: Path, name: str) -> Study:
    """The study that a text declares, the same one for the same text, so that what is computed of it can be kept."""
    return Study.from_text(text, folder, name=name)


def _account_of(place: Place, study: Study | None) -> Account | Fault:
    return read_account(place, study) if is_opened(place) else NOT_OPENED


class Room:
    """What one window works on. All that it tells is reactive.

    One window works at a time: who comes later is asked whether to go on there, and whoever is asked to wait changes nothing.

    Attributes
    ----------
    desk
        What all windows share.
    draft
        The text of the study that the form starts from.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._open = True
        self._pages = {step: Held[Mapping[str, Any]](desk.workspace.pages.get(step, {})) for step in STEPS}
        self._texts = Held[Mapping[str, str]](desk.workspace.texts)
        self._job = Held[Job | None](desk.job)
        self._here = Held[bool](desk.enter(self))
        self._told = Held[Fault | None](None)
        opened = self._opened(0)
        self.draft = Held[Draft](opened)
        self._known = opened.name, opened.text, opened.saved
        self._typed = Held[Callable[[], str]](lambda: self.draft().text)

        @reactive.calc
        def text() -> str:
            return self._typed()()

        @reactive.calc
        def study() -> Study | Fault:
            return attempt(lambda: _read_study(text(), desk.folder, self.draft().name))

        self._outside = Held[Any](None)
        self._listed: Any = None
        self._files = Held[Any](desk.files_state())
        self._shelf = Held[tuple[Kept, ...]](desk.shelf())

        @reactive.calc
        def place() -> Place | Fault | None:
            return attempt(lambda: Place.of_text(text(), desk.folder))

        @reactive.calc
        def account() -> Account | Fault | None:
            self._outside(), self._files()
            where, found = place(), study()
            if where is None or isinstance(where, Fault):
                return where
            return attempt(lambda: _account_of(where, None if isinstance(found, Fault) else found))

        self._place = place
        self._text, self._study, self._account = text, study, account
        self._keep_text()

    # --- the study ---------------------------------------------------------------------------------

    def text(self) -> str:
        """The study's text as it stands."""
        return self._text()

    def study(self) -> Study | Fault:
        """The study that the text declares, or what is wrong with it."""
        return self._study()

    def typed(self, text: Callable[[], str]) -> None:
        """Say what the form writes: the text of its draft with what was typed since."""
        self._typed.set(text)

    def change(self, changes: Changes) -> None:
        """Change settings of the study."""
        with reactive.isolate():
            draft = self.draft()
            self.load(Draft(0, "", self.text()).changed(changes), draft.name, draft.saved)

    def load(self, text: str, name: str, saved: str | None) -> None:
        """Go on with another text. `saved` is what the study's file holds, None if there is no file."""
        with reactive.isolate():
            self.draft.set(Draft(self.draft().number + 1, name, text, saved))

    def save(self, name: str, text: str) -> None:
        """Say that a file holds the text as it stands. The form stays as it is."""
        with reactive.isolate():
            self.draft.set(replace(self.draft(), name=name, text=text, saved=text))

    def saved(self) -> Path | None:
        """The file that holds the text as it stands, if there is one."""
        return self.desk.folder / self.draft().name if self.draft().saved == self.text() else None

    # --- what was spent and made -------------------------------------------------------------------

    def account(self) -> Account | Fault | None:
        """What the ledger that the study's text names holds, whoever wrote it; None if it names none."""
        return self._account()

    def place(self) -> Place | Fault | None:
        """Where the budget is that the study's text names; None if it names none."""
        return self._place()

    def files(self) -> Any:
        """Something that differs whenever a file of the folder or its subfolders was written, whoever did."""
        return self._files()

    def shelf(self) -> tuple[Kept, ...]:
        """The releases of the folder, whoever made them, the newest first."""
        return self._shelf()

    # --- what pages keep ---------------------------------------------------------------------------

    def kept(self, page: str) -> Mapping[str, Any]:
        """What a page keeps."""
        return self._pages[page]()

    def keep(self, page: str, **values: Any) -> None:
        """Keep something for a page: values of JSON that were declared, never anything read from rows. None takes one away."""
        self._store(self.desk.workspace.with_page(page, values))

    def source(self, side: Side) -> File | Path | None:
        """A file that was chosen on *Files*, with how it is written; None if none was, or if what was said of it does not fit."""
        chosen = self.kept("files").get(side)
        if not isinstance(chosen, Mapping) or not isinstance(chosen.get("path"), str):
            return None
        options = chosen.get("options") or {}
        path = self.desk.folder / chosen["path"]
        try:
            return File(path, **options) if options else path
        except (DplinkedError, TypeError):
            return None

    def texts(self) -> Mapping[str, str]:
        """Texts of all studies that were worked on here, by the names of their files."""
        return self._texts()

    def text_of(self, name: str) -> tuple[str, str | None]:
        """The text of a study as it was left, and what its file held then; of one that was not worked on, what its file holds."""
        work = self.desk.workspace
        if name in work.texts:
            return work.texts[name], work.saved.get(name)
        found = self.desk.read(name)
        return found, found

    def forget(self, name: str) -> None:
        """Forget what was typed into a study and not saved."""
        self._store(self.desk.workspace.without(name))

    # --- where we are ------------------------------------------------------------------------------

    def go(self, step: str) -> None:
        """Turn to another step."""
        ui.update_navset("page", selected=step)

    def stay(self, step: str) -> None:
        """Keep the step that is shown."""
        self._store(replace(self.desk.workspace, step=step))

    def job(self) -> Job | None:
        """The running or last job, followed while it runs."""
        return self._job()

    def busy(self) -> bool:
        """Whether a job is running."""
        now = self._job()
        return now is not None and now.running

    def here(self) -> bool:
        """Whether this window is the one that works."""
        return self._here()

    def told(self) -> Fault | None:
        """What keeps work from being kept, if anything does."""
        return self._told()

    def take(self) -> None:
        """Go on in this window with what was done in another one."""
        self.desk.take(self)
        self._show_work()
        with reactive.isolate():
            opened = self._opened(self.draft().number + 1)
        self._known = opened.name, opened.text, opened.saved
        self.draft.set(opened)
        self._here.set(True)

    def watch(self) -> None:
        """Follow running jobs, and whether another window works, as long as this window is open."""
        self._watching = asyncio.create_task(self._watch())

    def leave(self) -> None:
        """The window was closed."""
        self._open = False
        self.desk.leave(self)

    # --- inside ------------------------------------------------------------------------------------

    def _opened(self, number: int) -> Draft:
        """The study at hand as it was left."""
        work, desk = self.desk.workspace, self.desk
        name = work.study or desk.free_name()
        text, saved = work.texts.get(name), work.saved.get(name)
        if text is not None and text != saved:
            return Draft(number, name, text, saved)
        read = attempt(lambda: desk.read(name)) if name in desk.study_files() else None
        found = read if isinstance(read, str) else None
        return Draft(number, name, found or text or BLANK, found)

    def _store(self, work: Workspace) -> None:
        if not self.desk.holds(self):
            return
        done = attempt(lambda: self.desk.keep_work(work))
        self._show_work()
        self._told.set(done if isinstance(done, Fault) else None)

    def _show_work(self) -> None:
        """Tell what is kept to what follows it, unless it is as it was."""
        work = self.desk.workspace
        kept = [(self._texts, work.texts), *((value, work.pages.get(step, {})) for step, value in self._pages.items())]
        with reactive.isolate():
            for value, now in kept:
                if value() != now:
                    value.set(now)

    def _keep_text(self) -> None:
        """Keep what is typed, as it is typed."""

        @reactive.effect
        def _() -> None:
            now = self.draft().name, self.text(), self.draft().saved
            if now != self._known:
                self._known = now
                self._store(self.desk.workspace.with_text(*now))

    async def _watch(self) -> None:
        with suppress(asyncio.CancelledError):  # by which the studio stops
            looks = 0
            while self._open:
                await asyncio.sleep(_POLL)
                looks += 1
                ended = self._job_ended()
                if ended or looks % _OUTSIDE == 0:
                    await self._look_outside()
                if ended or self._others_changed():
                    async with reactive.lock():
                        self._follow_others()
                        await reactive.flush()

    def _job_ended(self) -> bool:
        with reactive.isolate():
            before, now = self._job(), self.desk.job
        return now is not None and not now.running and before != now

    async def _look_outside(self) -> None:
        """See whether other programs, or a job, changed the ledger or the folder."""
        with reactive.isolate():
            place = self.place()
        found = await asyncio.to_thread(attempt, lambda: self._state_of(place))
        with reactive.isolate():
            if isinstance(found, Fault) or found == (self._outside(), self._files(), self._listed):
                return
            ledger, files, self._listed = found
            async with reactive.lock():
                for value, now in ((self._outside, ledger), (self._files, files)):
                    if value() != now:
                        value.set(now)
                if (shelf := self.desk.shelf()) != self._shelf():
                    self._shelf.set(shelf)
                await reactive.flush()

    def _state_of(self, place: Place | Fault | None) -> tuple[Any, Any, Any]:
        """The states of the ledger, of the files and of the releases in the folder."""
        ledger = ledger_state(place) if isinstance(place, Place) else None
        return ledger, self.desk.files_state(), self.desk.shelf_state()

    def _others_changed(self) -> bool:
        with reactive.isolate():
            return self._job() is not self.desk.job or not self._here() or not self.desk.holds(self)

    def _follow_others(self) -> None:
        with reactive.isolate():
            self._job.set(self.desk.job)
            if not self._here() and self.desk.enter(self):
                self.take()
            self._here.set(self.desk.holds(self))


class Question(Generic[T]):
    """A question in a dialog. One answer to it counts, and only in the window that works: whoever is pushed aside, or clicks twice, does nothing more."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._about: T | None = None

    def ask(self, about: T, title: str, *children: TagChild, yes: Tag) -> None:
        """Ask it. `about` is what its answer is about, as it was when it was asked."""
        self._about = about
        ask(title, *children, yes=yes)

    def answer(self) -> T | None:
        """What was asked, if this is the first answer and this window is the one that works; else None."""
        ui.modal_remove()
        about, self._about = self._about, None
        return about if self._room.desk.holds(self._room) else None
