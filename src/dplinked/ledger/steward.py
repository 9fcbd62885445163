"""What a steward does with the budget that a study names: open it, register data, check it, write it down. The command line and the studio call these."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dplinked.data.files import find_files
from dplinked.data.fingerprint import locate
from dplinked.data.format import File
from dplinked.errors import LedgerError, StudyError, raise_alone
from dplinked.ledger.account import name_release
from dplinked.ledger.balance import Balance
from dplinked.ledger.database import connect, populations_at, sqlite_path
from dplinked.ledger.events import Event
from dplinked.ledger.ledger import Ledger
from dplinked.study.study import Study
from dplinked.study.toml import read_ledger

EVERYBODY = "everybody"  # the population of a study that names none
_MASKS = ("request", "nonce")  # fingerprints of requests and data, and the nonces that mask them in hashes


@dataclass(frozen=True)
class Place:
    """Where a budget is kept.

    Attributes
    ----------
    ledger
        The ledger's address, which may hold a password.
    population
        Whose budget it is; None if the ledger holds one alone.
    ledger_key
        The file of the ledger's key; None if it is beside it.
    """

    ledger: str | Path = field(repr=False)
    population: str | None = None
    ledger_key: str | Path | None = None

    @classmethod
    def of(cls, study: Study) -> Place:
        """The place that a study names. A study without a ledger is refused."""
        if study.ledger is None:
            raise StudyError("The study names no ledger: add [ledger] with url = 'budget.db' and population = '…'.")
        return cls(study.ledger, study.population, study.ledger_key)

    @classmethod
    def of_text(cls, text: str, folder: Path) -> Place | None:
        """The place that the text of a study names, whatever else it lacks; None if it names none."""
        named = read_ledger(text, folder)
        return cls(**named) if named else None

    def budget(self) -> Ledger:
        """The budget."""
        return Ledger(self.ledger, self.population, key=self.ledger_key)


def ledger_of(study: Study) -> Ledger:
    """The budget that a study names."""
    return Place.of(study).budget()


def open_budget(
    place: Place,
    study: Study | None,
    *,
    epsilon: float,
    delta: float,
    further: Sequence[Any] = (),
    unlinked: Sequence[Any] = (),
) -> Ledger:
    """Open a budget, once, and register data about its population.

    That is the data of a `study`, if there is one already, with its links and unit, `further` files with the same, and files that are yet to be linked (`unlinked`), from which only
    accuracies can be released.
    """
    linked = [] if study is None else [*data_of(study), *further]
    for source in (*linked, *unlinked, getattr(study and study.linkage, "pairs", None)):
        check_readable(source)  # checked before, as a budget can be opened only once
    opened = Ledger.create(
        place.ledger, place.population or EVERYBODY, epsilon=epsilon, delta=delta, key=place.ledger_key
    )
    register(opened, study, linked, unlinked)
    return opened


def data_of(study: Study) -> list[Any]:
    """The study's own data, if it names any."""
    return [] if study.data is None else [study.data]


def register(ledger: Ledger, study: Study | None, linked: Iterable[Any], unlinked: Iterable[Any] = ()) -> None:
    """Register data with the links and the unit that a study states, and files that are yet to be linked."""
    if study is not None:
        for source in linked:
            ledger.register(source, linkage=study.linkage, unit=study.unit)
    for source in unlinked:
        ledger.register(source)


def check_readable(source: Any) -> None:
    """Refuse files that are missing or cannot be opened. Queries are not tried here; they run when they are registered."""
    if not isinstance(source, (Path, File)):
        return
    for path in find_files(source).paths:
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError:
            raise_alone(StudyError(f"The file {path.name!r} cannot be read. Check its permissions."))


def events_as_lines(events: Sequence[Event]) -> str:
    """Events as JSON lines, releases included."""
    stored = {event.release: event.body for event in events if event.kind == "release"}
    shown = (
        {
            "name": name_release(event.release, stored),
            **{name: value for name, value in event.__dict__.items() if name not in _MASKS},
        }
        for event in events
    )
    return "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in shown)


def verify_with(ledger: Ledger, heads: Sequence[str]) -> tuple[Balance, str]:
    """Check a ledger's chain and balance, and that it was not rolled back since releases that printed these heads. Returns the balance, and what was found in words."""
    balance = ledger.verify()
    for head in heads:
        ledger.verify(head)
    said = "Nothing was changed: every event fits the one before it, and the balance follows from them."
    if heads:
        one = "the release" if len(heads) == 1 else f"each of the {len(heads)} releases"
        said += f" The ledger knows {one} in this folder that was charged to it, so it was not rolled back since."
    return balance, said


@dataclass(frozen=True)
class Account:
    """What the ledger of a study holds at one moment.

    Attributes
    ----------
    balance, events
        The budget with what was spent of it, and all that happened to it.
    refusal
        Why the study's data, as far as its place and its links tell, would be refused; None if it is registered.
    """

    balance: Balance
    events: list[Event]
    refusal: str | None


def is_opened(place: Place) -> bool:
    """Whether a budget was opened at a place."""
    known = populations_at(place.ledger)
    return place.population in known if place.population is not None else bool(known)


def read_account(place: Place, study: Study | None = None) -> Account:
    """Read a budget, and whether the data of a study is registered for it. The data is not opened."""
    ledger = place.budget()
    return Account(ledger.balance(), ledger.events(), None if study is None else _refusal(ledger, study))


def _refusal(ledger: Ledger, study: Study) -> str | None:
    try:
        for source in data_of(study):
            ledger.check_place(locate(source), study.unit, study.linkage)
    except (StudyError, LedgerError) as fault:
        return str(fault)
    return None


def ledger_state(place: Place) -> Any:
    """Something that differs whenever a ledger may have changed: what the file system says of a SQLite file, and of another database its head."""
    try:
        path = sqlite_path(connect(place.ledger))
        if path is None:
            return place.budget().balance().head
    except (StudyError, LedgerError) as fault:
        return str(fault)
    return _file_state(path), _file_state(path.with_name(path.name + "-wal"))


def _file_state(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None for none, and for the empty log that every reader of a SQLite file leaves for a moment."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None
