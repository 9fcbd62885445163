"""The ledger under fire: processes that spend a budget together while they are killed at random.

    python benchmarks/ledger.py                                  # SQLite, PostgreSQL, and a JSON file as a control
    python benchmarks/ledger.py --database sqlite --processes 4 --releases 120 --kills 20
    python benchmarks/ledger.py --out benchmarks/results/ledger.md

Each process reserves a release, works a little, records it, and only then publishes it (a line in its own file, synchronised). A
killed one is started again under the same name: it asks for the release it was at once more, which is either stored, and then free, or
lost. In the end every published release must have been charged and recorded, and no more may be spent than the budget holds. The
control keeps its balance in a JSON file without locks and must fail: else the harness could not tell.

Exits with 1 when a criterion is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from dplinked.errors import BudgetError, LedgerError
from dplinked.ledger.balance import Charge
from dplinked.ledger.costs import UNITS, budget_units, cost
from dplinked.ledger.ledger import Ledger
from machine import describe_machine

EPSILON, DELTA = 1.0, 1e-6
LONGEST_WORK = 0.005  # seconds between charge and record
LATEST_KILL = 0.9  # of the budget: kills are spread over the run up to here
PEOPLE = "people"
_fork = multiprocessing.get_context("fork")


class Book(Protocol):
    """What is tested."""

    def reserve(self, name: str) -> tuple[Any, str | None]:
        """Charge a release, or find a stored one; BudgetError when nothing is left, LedgerError when it was lost."""

    def record(self, charge: Any, text: str) -> None:
        """Store a release."""

    def spent(self) -> tuple[int, dict[str, str | None]]:
        """Units spent, and of each charged release its text or None, after a check of the whole."""


class LedgerBook:
    """Ours, in either database."""

    def __init__(self, url: str, mu: float) -> None:
        self.ledger, self.mu = Ledger(url, PEOPLE), mu

    def reserve(self, name: str) -> tuple[Charge, str | None]:
        charge = self.ledger.reserve(name, {"name": name}, self.mu)
        return charge, charge.stored

    def record(self, charge: Charge, text: str) -> None:
        self.ledger.record(charge, text)

    def spent(self) -> tuple[int, dict[str, str | None]]:
        balance, made = self.ledger.verify(), dict[str, str | None]()
        for event in self.ledger.events():
            if event.kind in ("charge", "release"):
                made[str(event.release)] = event.body if event.kind == "release" else None
        return balance.spent, made


class JsonBook:
    """The control: read, check, write to another file, rename. Never torn, but without a lock."""

    def __init__(self, url: str, mu: float) -> None:
        self.path, self.units, self.total = Path(url), cost(mu), budget_units(EPSILON, DELTA)

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text()))

    def _write(self, state: dict[str, Any]) -> None:
        new = self.path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(state))
        new.replace(self.path)

    def reserve(self, name: str) -> tuple[str, str | None]:
        state = self._read()
        if name in state["made"]:
            if state["made"][name] is None:
                raise LedgerError("The release was charged, but never finished.")
            return name, state["made"][name]
        if state["spent"] + self.units > self.total:
            raise BudgetError("Nothing is left.")
        state["made"][name] = None
        self._write({**state, "spent": state["spent"] + self.units})
        return name, None

    def record(self, charge: str, text: str) -> None:
        state = self._read()
        state["made"][charge] = text
        self._write(state)

    def spent(self) -> tuple[int, dict[str, str | None]]:
        state = self._read()
        return state["spent"], state["made"]


# --- the processes ----------------------------------------------------------------------------------


def publish(path: Path, name: str, text: str) -> None:
    """One line, written at once and synchronised."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (json.dumps([name, text]) + "\n").encode())
    os.fsync(file)
    os.close(file)


def read_published(path: Path) -> list[tuple[str, str]]:
    """What a process published, in order."""
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def work(make: type[LedgerBook] | type[JsonBook], url: str, mu: float, slot: int, tries: Any, folder: Path) -> None:
    """Make releases until the budget is used up; begin with the one at which a predecessor was killed."""
    book, path, rng = make(url, mu), folder / f"{slot}.published", random.Random()
    seen = {name for name, _ in read_published(path)}
    while True:
        name = f"{slot}-{tries[slot]}"
        try:
            charge, text = book.reserve(name)
            if text is None:
                time.sleep(LONGEST_WORK * rng.random())
                text = f"{name}: {rng.random()}"
                book.record(charge, text)
            if name not in seen:
                publish(path, name, text)
                seen.add(name)
        except BudgetError:
            return
        except LedgerError as lost:
            if "never finished" not in str(lost):
                raise
        tries[slot] += 1


@dataclass(frozen=True)
class Outcome:
    """What happened: charged and stored according to the book, published according to the processes' files."""

    database: str
    seconds: float
    kills: int
    faults: int
    spent: int
    total: int
    charged: int
    stored: int
    published: int
    overspent: float
    uncharged: int

    def misses(self, releases: int, kills: int) -> list[str]:
        """The criteria that were missed."""
        criteria = {
            f"only {self.kills} of {kills} kills happened": self.kills < kills,
            f"{self.faults} processes ended with an error": self.faults > 0,
            "more was spent than the budget holds": self.spent > self.total,
            f"{self.charged} releases were charged, {releases} fit the budget": self.charged > releases,
            f"{self.uncharged} releases were published without a charge or otherwise than stored": self.uncharged > 0,
            f"what was published costs {self.overspent:.2f} times the budget": self.overspent > 1.0,
        }
        return [text for text, missed in criteria.items() if missed]


def run(database: str, url: str, processes: int, releases: int, kills: int, seed: int, folder: Path) -> Outcome:
    """Let processes spend the budget while killing them; then compare what they published with the book."""
    make = JsonBook if database == "json" else LedgerBook
    total = budget_units(EPSILON, DELTA)
    mu = math.sqrt(2.0 * (total // releases - 2) / UNITS)
    assert releases * cost(mu) <= total < (releases + 1) * cost(mu)
    if database == "json":
        Path(url).write_text(json.dumps({"spent": 0, "made": {}}))
    else:
        Ledger.create(url, PEOPLE, epsilon=EPSILON, delta=DELTA)
    tries = _fork.RawArray("q", processes)  # no lock: a killed process would keep it
    rng, done, faults = random.Random(seed), 0, 0

    def start(slot: int) -> Any:
        process = _fork.Process(target=work, args=(make, url, mu, slot, tries, folder), daemon=True)
        process.start()
        return process

    begun = time.perf_counter()
    running = {slot: start(slot) for slot in range(processes)}
    while running:
        wanted = min(kills, math.ceil(kills * sum(tries) / (LATEST_KILL * releases)))
        if done < wanted:
            time.sleep(LONGEST_WORK * rng.random())
            slot = rng.choice(list(running))
            running[slot].kill()
            running[slot].join()
            if running[slot].exitcode == -signal.SIGKILL:
                done += 1
                running[slot] = start(slot)
        else:
            time.sleep(LONGEST_WORK * rng.random())
        for slot, process in list(running.items()):
            if not process.is_alive() and process.exitcode != -signal.SIGKILL:
                faults += process.exitcode != 0
                del running[slot]
    seconds = time.perf_counter() - begun
    spent, made = make(url, mu).spent()
    published = [line for slot in range(processes) for line in read_published(folder / f"{slot}.published")]
    assert len({name for name, _ in published}) == len(published)
    uncharged = sum(made.get(name) != text for name, text in published)
    return Outcome(
        database, seconds, done, faults, spent, total, len(made), sum(text is not None for text in made.values()), len(published),
        len(published) * cost(mu) / total, uncharged,
    )  # fmt: skip


# --- the databases ----------------------------------------------------------------------------------


@contextlib.contextmanager
def open_database(database: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Address and version of an empty database; a PostgreSQL of our own is started for the time."""
    if database != "postgres":
        name = {"sqlite": "budget.db", "json": "budget.json"}[database]
        yield str(folder / name), f"SQLite {sqlite3.sqlite_version}" if database == "sqlite" else "JSON"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a runtime folder that is not set
        import pgserver
    with tempfile.TemporaryDirectory(prefix="dplinked-pg-") as data:  # a short path, for its socket
        server = pgserver.get_server(data)
        try:
            version = server.psql("SHOW server_version;").split()[2]
            yield server.get_uri(), f"PostgreSQL {version}"
        finally:
            server.cleanup()


def write_report(
    outcomes: list[Outcome], databases: list[str], arguments: argparse.Namespace, missed: list[str]
) -> str:
    """The results, as Markdown."""
    lines = [
        f"# The ledger: {arguments.processes} processes, a budget of {arguments.releases:,} releases, {arguments.kills} kills\n",
        describe_machine("dplinked", "sqlalchemy", "psycopg", beside=databases) + "\n",
        f"Made by `python benchmarks/ledger.py {' '.join(sys.argv[1:])}`. Kills are SIGKILL at random moments; a killed process is started "
        "again and asks for the release it was at once more. JSON is the control: a file without locks, which must overspend.\n",
        "| | releases charged | recorded | published | spent of the budget, by the book | by what was published | published, not in the book | "
        "kills | charges a second |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in outcomes:
        rate = max(found.charged, found.published) / found.seconds
        lines.append(
            f"| {found.database} | {found.charged:,} | {found.stored:,} | {found.published:,} | {found.spent / found.total:.6f} | "
            f"{found.overspent:.4f} | {found.uncharged:,} | {found.kills} | {rate:.0f} |"
        )
    lines.append("\n" + ("\n".join(f"MISSED: {text}." for text in missed) or "All criteria met."))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ("sqlite", "postgres", "json")
    parser.add_argument("--database", nargs="+", choices=known, default=list(known))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--releases", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1, help="Of whom to kill; when it hits is the machine's.")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    console, outcomes, databases, missed = Console(stderr=True), list[Outcome](), list[str](), list[str]()
    for database in arguments.database:
        with (
            tempfile.TemporaryDirectory(prefix="dplinked-ledger-") as name,
            open_database(database, Path(name)) as (
                url,
                version,
            ),
        ):
            with console.status(f"{version}: {arguments.processes} processes …"):
                found = run(
                    database, url, arguments.processes, arguments.releases, arguments.kills, arguments.seed, Path(name)
                )
            outcomes.append(found)
            databases.append(version)
            misses = found.misses(arguments.releases, arguments.kills)
            if database == "json":
                misses = (
                    [] if found.overspent > 1.0 else ["the control did not overspend, so the harness proves nothing"]
                )
            missed += [f"{database}: {text}" for text in misses]
    report = write_report(outcomes, [text for text in databases if text != "JSON"], arguments, missed)
    print(report)
    if arguments.out is not None:
        arguments.out.write_text(report + "\n", encoding="utf-8")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
