"""The budget ledger: what was spent on a population, append-only and hash-chained, in SQLite or PostgreSQL.

A release is charged before it looks at rows: reserve (commit), compute, record (commit), show. A crash in between leaves the charge.
Costs are whole units of ρ = μ²/2, rounded up; μ² adds for Gaussian releases. The balance is one row per population, updated in
the same transaction as the event that explains it, and sealed by a checksum over itself and the chain's head.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import re
import secrets as tokens
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from dplinked.errors import BudgetError, LedgerError, ReleaseError, StudyError, raise_alone
from dplinked.privacy.calibration import check_budget, privacy_epsilon, privacy_mu, round_down
from dplinked.tables import to_arrow

UNITS = 10**15  # of ρ: one unit is 1e-15
_LARGEST = 1000.0  # ε of a budget or a booking; sums of units stay within 64 bits
_START = "0" * 64  # what the first event of a population is chained to
_WAIT = 600.0  # seconds that a second request waits for the first one's result
_POLL = 0.05
_ACTIVE: set[str] = set()  # charges this process is computing for
_FAULT = (
    "The ledger cannot be read or written. Nothing was released. The steward's 'dplinked budget verify' tells more."
)


@dataclass(frozen=True)
class Balance:
    """A population's budget, in units of 1e-15 ρ."""

    population: str
    epsilon: float
    delta: float
    total: int
    spent: int
    head: str

    @property
    def epsilon_left(self) -> float:
        """ε that one further release could still have at the budget's δ."""
        left = max(0, self.total - self.spent)
        return privacy_epsilon(math.sqrt(2.0 * left / UNITS), self.delta) * (1.0 - 1e-6) if left else 0.0


@dataclass(frozen=True)
class Event:
    """One line of the ledger."""

    seq: int
    population: str
    kind: str
    release: str | None
    request: str | None
    units: int
    body: str
    time: str
    nonce: str
    previous: str
    hash: str


@dataclass(frozen=True)
class Charge:
    """A committed reservation; `stored` holds the release if the same request was answered before."""

    release: str
    request: str
    head: str
    balance: Balance
    stored: str | None = None

    def describe(self) -> dict[str, Any]:
        """What a release says of its charge. The head is masked by the events' nonces, so it tells nothing of the data."""
        left = self.balance
        return {
            "population": left.population, "id": self.release, "head": self.head, "epsilon": left.epsilon, "delta": left.delta,
            "epsilon_left": left.epsilon_left,
        }  # fmt: skip


def cost(mu: float) -> int:
    """Units that a release of μ costs, rounded up.

    Proof that costs add: releases of μ₁, μ₂, … chosen one after the other are together √(Σμᵢ²)-GDP (Dong, Roth and Su 2022), so ρ = μ²/2 adds.
    """
    if not (math.isfinite(mu) and mu > 0.0):
        raise StudyError("A release's mu must be a finite number above 0.")
    return math.ceil(mu * mu / 2.0 * UNITS * (1.0 + 1e-12))


def budget_units(epsilon: float, delta: float) -> int:
    """Units of a budget (ε, δ), rounded down: the largest μ within it, converted once.

    `privacy_mu` leaves a ten-millionth of μ unused; half of that is given back, so that a budget allows one release of its own size.
    """
    return math.floor(privacy_mu(epsilon, delta) ** 2 / 2.0 * UNITS * (1.0 + 1e-7))


def _check_size(epsilon: float) -> None:
    if epsilon > _LARGEST:
        raise StudyError(f"epsilon={epsilon:g} is beyond what a ledger holds; use at most {_LARGEST:g}.")


def pure_mu(epsilon: float) -> float:
    """μ of the Gaussian release that is no more private than any ε-DP one: ``μ = 2Φ⁻¹(e^ε/(1+e^ε))``.

    Proof. Among ε-DP mechanisms randomised response with odds e^ε is the least private; its trade-off function lies above that
    of N(0,1) against N(μ,1) when the latter passes below its corner, (1/(1+e^ε), 1/(1+e^ε)), which this μ does.
    """
    from scipy.special import ndtri_exp

    return float(-2.0 * ndtri_exp(-math.log1p(math.exp(epsilon)) if epsilon < 30 else -epsilon))


class Ledger:
    """One population's budget in a ledger that exists. See :meth:`create` for opening a budget."""

    def __init__(self, url: str | Path, population: str | None = None) -> None:
        self._engine = _connect(url)
        with self._transaction() as connection:
            known = _populations(connection)
        if population is None:
            if not known:
                raise LedgerError("The ledger holds no budget. The steward opens one with 'dplinked budget init'.")
            if len(known) != 1:
                raise StudyError("The ledger holds several populations. Name one: population = '…' in [ledger].")
            population = known[0]
        if population not in known:
            raise StudyError(
                "The ledger has no budget for this population. The steward opens one with 'dplinked budget init'."
            )
        self.population: str = population

    def __repr__(self) -> str:
        return f"Ledger(population={self.population!r})"

    # --- the steward's ---------------------------------------------------------------------------

    @classmethod
    def create(cls, url: str | Path, population: str, *, epsilon: float, delta: float) -> Ledger:
        """Open a budget for a population, once; a second one for the same population is refused."""
        check_budget(epsilon, delta)
        _check_size(epsilon)
        _check_name(population, "A budget belongs to a population: give its name")
        total = budget_units(epsilon, delta)
        engine = _connect(url, create=True)
        with _guard(), engine.begin() as connection:
            _create_tables(connection, engine.dialect.name)
            if population in _populations(connection):
                raise StudyError(
                    f"There is a budget for {population!r} already. Budgets are opened once and never reset."
                )
            body = _canonical({"epsilon": epsilon, "delta": delta, "total": total})
            event = _chain(1, population, "open", None, None, 0, body, _START)
            _insert_event(connection, event)
            row = {
                "population": population, "epsilon": repr(float(epsilon)), "delta": repr(float(delta)), "total": total, "spent": 0,
                "seq": 1, "head": event.hash, "secret": tokens.token_hex(32),
            }  # fmt: skip
            _execute(
                connection,
                "INSERT INTO budget (population, epsilon, delta, total, spent, seq, head, secret, seal) "
                "VALUES (:population, :epsilon, :delta, :total, :spent, :seq, :head, :secret, :seal)",
                {**row, "seal": _seal(row)},
            )
        return cls(url, population)

    def register(self, source: Any) -> None:
        """Register a file or table about the population: releases from it draw on this budget."""
        mark = self.fingerprint(source)
        with self._transaction() as connection:
            row = self._locked(connection)
            if mark not in self._registered(connection):
                self._append(connection, row, "register", None, mark, 0, _canonical({}))

    def book(self, *, epsilon: float, delta: float, note: str) -> None:
        """Book spending that happened elsewhere; it may exceed what is left, which then is nothing.

        With δ > 0 it counts as one Gaussian release of (ε, δ), which is what this ledger adds up; with δ = 0 as any ε-DP release, which
        costs more. Other mechanisms with δ > 0 have to be booked by a Gaussian that is less private than they are.
        """
        check_budget(epsilon, delta or 0.5)
        _check_size(epsilon)
        units = cost(privacy_mu(epsilon, delta) if delta else pure_mu(epsilon))
        with self._transaction() as connection:
            row = self._locked(connection)
            self._append(
                connection,
                row,
                "booked",
                None,
                None,
                units,
                _canonical({"epsilon": epsilon, "delta": delta, "note": note}),
            )

    def events(self) -> list[Event]:
        """All events of the population, in order."""
        with self._transaction() as connection:
            return _events(connection, self.population)

    def verify(self, head: str | None = None) -> Balance:
        """Check the whole chain, its sums and seal; `head`, from a release, must be in it, else the ledger was rolled back."""
        with self._transaction() as connection:
            row, events = self._locked(connection), _events(connection, self.population)
            intact = _intact(connection)
        previous, spent = _START, 0
        for seq, event in enumerate(events, 1):
            again = _chain(
                seq,
                self.population,
                event.kind,
                event.release,
                event.request,
                event.units,
                event.body,
                previous,
                event.time,
                event.nonce,
            )
            if again != event:
                raise LedgerError(f"The ledger was changed: event {seq} does not fit the chain.")
            previous, spent = event.hash, spent + event.units
        opened = json.loads(events[0].body) if events else {}
        stated = {"epsilon": float(row["epsilon"]), "delta": float(row["delta"]), "total": row["total"]}
        if not intact or previous != row["head"] or spent != row["spent"] or opened != stated:
            raise LedgerError("The ledger was changed: its balance does not follow from its events.")
        if head is not None and head not in {event.hash for event in events}:
            raise LedgerError("The ledger was rolled back: it does not know a release that was made from it.")
        return _balance(row)

    # --- everybody's -----------------------------------------------------------------------------

    def balance(self) -> Balance:
        """What is left."""
        with self._transaction() as connection:
            return _balance(self._locked(connection))

    def fingerprint(self, source: Any) -> str:
        """Keyed fingerprint of a file's bytes or a table's content; without the ledger's key it tells nothing."""
        with self._transaction() as connection:
            secret = self._locked(connection)["secret"]
        digest = hmac.new(bytes.fromhex(secret), digestmod=hashlib.sha256)
        for piece in _content(source):
            digest.update(piece)
        return digest.hexdigest()

    def check_registered(self, *sources: Any) -> list[str]:
        """Fingerprints of registered data; anything else is refused, and nothing was spent."""
        marks = [self.fingerprint(source) for source in sources]
        with self._transaction() as connection:
            known = self._registered(connection)
        if not known.issuperset(marks):
            raise LedgerError(
                "This data is not registered for the budget, or has changed since. Nothing was spent. The steward registers data with "
                "'dplinked budget register'."
            )
        return marks

    def reserve(self, release: str | None, request: Mapping[str, Any], mu: float) -> Charge:
        """Charge a release before it is computed, and commit; or find the stored release of the same request.

        With an id that was charged for another request it is a conflict; where the same request is still being computed, its
        result is waited for.
        """
        name = release or tokens.token_hex(8)
        _check_name(name, "A release's id must be a text of at most 200 printable characters")
        wanted = hashlib.sha256(_canonical(dict(request)).encode()).hexdigest()
        units, limit = cost(mu), time.monotonic() + _WAIT
        while True:
            with self._transaction() as connection:
                row = self._locked(connection)
                charged = self._find(connection, "charge", name)
                if charged is None:
                    left = row["total"] - row["spent"]
                    if units > left:
                        raise BudgetError(
                            f"The budget of {self.population!r} does not allow this release: it has epsilon = "
                            f"{round_down(_balance(row).epsilon_left)} left at delta = {float(row['delta']):g}. Nothing was spent."
                        )
                    owner = _canonical({"host": socket.gethostname(), "process": os.getpid()})
                    after = self._append(connection, row, "charge", name, wanted, units, owner)
                    _ACTIVE.add(after["head"])
                    return Charge(name, wanted, after["head"], _balance(after))
                if charged.request != wanted:
                    raise StudyError(
                        f"A release called {name!r} was made from another request. Nothing was spent. Use another id."
                    )
                recorded = self._find(connection, "release", name)
                if recorded is not None:
                    return Charge(name, wanted, charged.hash, _balance(row), recorded.body)
                failed = self._find(connection, "failed", name) is not None
                alive = _alive(
                    json.loads(charged.body), charged.hash
                )  # asked under the lock: it cannot record and end in between
            if failed or not alive or time.monotonic() > limit:
                raise LedgerError(
                    f"The release {name!r} was charged, but never finished. The charge stays; use another id for a new release."
                )
            time.sleep(_POLL)

    def record(self, charge: Charge, release: str) -> None:
        """Store the finished release, and commit: only then may it be shown."""
        with self._transaction() as connection:
            self._append(connection, self._locked(connection), "release", charge.release, charge.request, 0, release)

    @contextlib.contextmanager
    def finishing(self, charge: Charge) -> Iterator[None]:
        """Around the computation of a charged release: whatever goes wrong, the charge stays, and nothing is told of why."""
        try:
            yield
        except BaseException as fault:
            with contextlib.suppress(LedgerError):  # whatever the ledger says now, the charge was made
                self.record_failure(charge)
            if not isinstance(fault, Exception):  # an interruption is passed on
                raise
            raise_alone(
                ReleaseError(
                    "The release failed after it was charged; the charge stays. The steward's 'check' shows the details."
                )
            )
        finally:
            _ACTIVE.discard(charge.head)

    def record_failure(self, charge: Charge) -> None:
        """Note that a charged release failed; the charge stays."""
        with self._transaction() as connection:
            self._append(
                connection, self._locked(connection), "failed", charge.release, charge.request, 0, _canonical({})
            )

    # --- rows ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        with _guard(), self._engine.begin() as connection:
            yield connection

    def _locked(self, connection: Any) -> dict[str, Any]:
        """The population's row, locked until the transaction ends, its seal checked."""
        lock = " FOR UPDATE" if self._engine.dialect.name == "postgresql" else ""
        found = _execute(
            connection, f"SELECT * FROM budget WHERE population = :population{lock}", {"population": self.population}
        )
        row = found.mappings().first()
        if row is None or row["seal"] != _seal(row):
            raise LedgerError("The ledger was changed: its balance is not the one that was written.")
        return dict(row)

    def _append(
        self,
        connection: Any,
        row: dict[str, Any],
        kind: str,
        release: str | None,
        request: str | None,
        units: int,
        body: str,
    ) -> dict[str, Any]:
        """Add an event and move the balance with it; returns the new row."""
        event = _chain(row["seq"] + 1, self.population, kind, release, request, units, body, row["head"])
        _insert_event(connection, event)
        after = {**row, "seq": event.seq, "spent": row["spent"] + units, "head": event.hash}
        moved = _execute(
            connection,
            "UPDATE budget SET spent = :spent, seq = :seq, head = :head, seal = :seal "
            "WHERE population = :population AND seq = :before",
            {**after, "seal": _seal(after), "before": row["seq"]},
        )
        if moved.rowcount != 1:
            raise LedgerError(_FAULT)
        return after

    def _find(self, connection: Any, kind: str, release: str) -> Event | None:
        found = _execute(
            connection,
            "SELECT * FROM events WHERE population = :population AND kind = :kind AND release = :release",
            {"population": self.population, "kind": kind, "release": release},
        )
        row = found.mappings().first()
        if row is None:
            return None
        event = Event(**row)
        if event != _again(event) or (event.kind, event.release) != (kind, release):
            raise LedgerError("The ledger was changed: an event is not the one that was written.")
        return event

    def _registered(self, connection: Any) -> set[str]:
        found = _execute(
            connection,
            "SELECT * FROM events WHERE population = :population AND kind = 'register'",
            {"population": self.population},
        )
        events = [Event(**row) for row in found.mappings()]
        if any(event != _again(event) for event in events):
            raise LedgerError("The ledger was changed: an event is not the one that was written.")
        return {str(event.request) for event in events}


# --- what is hashed ----------------------------------------------------------------------------------


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """Arrays and series in full, as their text leaves out digits and elements."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    for method in ("tolist", "to_list"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, (Path, Decimal)):
        return str(value)
    raise StudyError(
        f"A setting of type {type(value).__name__} cannot be told apart from others. Use numbers, texts, lists or tables."
    )


def _chain(
    seq: int, population: str, kind: str, release: str | None, request: str | None, units: int, body: str, previous: str,
    when: str | None = None, nonce: str | None = None,
) -> Event:  # fmt: skip
    """An event with its hash; a nonce goes in, so that hashes tell nothing to those who see only them."""
    when, nonce = when or datetime.now(UTC).isoformat(timespec="seconds"), nonce or tokens.token_hex(16)
    text = _canonical([seq, population, kind, release, request, units, body, when, nonce, previous])
    return Event(
        seq,
        population,
        kind,
        release,
        request,
        units,
        body,
        when,
        nonce,
        previous,
        hashlib.sha256(text.encode()).hexdigest(),
    )


def _again(event: Event) -> Event:
    """The event as its own fields chain it."""
    e = event
    return _chain(e.seq, e.population, e.kind, e.release, e.request, e.units, e.body, e.previous, e.time, e.nonce)


def _check_name(name: Any, fault: str) -> None:
    """Names are shown: printable, and not too long."""
    if not (isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()):
        raise StudyError(f"{fault}.")


def _seal(row: Mapping[str, Any]) -> str:
    """Checksum of a population's row: a flipped bit in the balance is noticed before anything is charged."""
    names = ("population", "epsilon", "delta", "total", "spent", "seq", "head", "secret")
    if not all(isinstance(row[name], (str, int)) for name in names):
        return ""
    return hashlib.sha256(_canonical([row[name] for name in names]).encode()).hexdigest()


def _balance(row: Mapping[str, Any]) -> Balance:
    return Balance(
        row["population"], float(row["epsilon"]), float(row["delta"]), row["total"], row["spent"], row["head"]
    )


def settle_source(source: Any) -> Any:
    """The same data for the fingerprint and for the sums: links in a path followed once, a lazy frame collected once."""
    import narwhals as nw

    if isinstance(source, (str, Path)):
        return Path(source).resolve()
    frame = nw.from_native(source, pass_through=True)
    return frame.collect().to_native() if isinstance(frame, nw.LazyFrame) else source


def source_state(source: Any) -> tuple[int, ...] | None:
    """What would tell that a file was exchanged or written to: device, inode, size and time of change."""
    if not isinstance(source, Path) or not source.is_file():
        return None
    found = source.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _content(source: Any) -> Iterator[bytes]:
    """A file's bytes, or a table's columns as Arrow writes them."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise StudyError(f"There is no file {path.name!r} at the given path.")
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                yield piece
        return
    import pyarrow as pa

    table = to_arrow(source, "given").combine_chunks()
    for field, column in zip(table.schema, table.columns, strict=True):
        yield _canonical([field.name, str(field.type), len(column)]).encode()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([pa.field("c", field.type)])) as writer:
            writer.write_table(pa.table([column], schema=pa.schema([pa.field("c", field.type)])))
        yield sink.getvalue().to_pybytes()


def _alive(owner: Mapping[str, Any], head: str) -> bool:
    """Whether the process that was charged may still be at work; another host's is given the time."""
    if owner.get("host") != socket.gethostname():
        return True
    if owner.get("process") == os.getpid():
        return head in _ACTIVE
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, KeyError, ValueError):
        return True
    return True


# --- the database ------------------------------------------------------------------------------------


def _connect(url: str | Path, *, create: bool = False) -> Any:
    import sqlalchemy as sa

    parsed = _address(str(url))
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        if not create and not path.is_file():
            raise LedgerError(f"There is no ledger {path.name!r}. The steward opens one with 'dplinked budget init'.")
        if create and not path.resolve().parent.is_dir():
            raise StudyError(f"There is no folder for the ledger {path.name!r}.")
        if path.is_file() and path.stat().st_nlink > 1:
            raise LedgerError(
                "The ledger's file has a second name (a hard link), under which it could be written unseen. Remove it."
            )
        engine = sa.create_engine(parsed, poolclass=sa.pool.NullPool)
        _prepare_sqlite(engine)
        return engine
    if parsed.get_backend_name() != "postgresql":
        raise StudyError("A ledger lives in SQLite or PostgreSQL: a path, sqlite:///path or postgresql://….")
    try:
        return sa.create_engine(parsed, poolclass=sa.pool.NullPool)
    except ImportError:
        raise_alone(StudyError("A ledger in PostgreSQL needs psycopg: pip install 'dplinked[postgres]'."))


def _address(text: str) -> Any:
    """A ledger's address, understood; never quoted, as it may hold a password."""
    import sqlalchemy as sa

    if "://" not in text:
        if re.match(r"[A-Za-z][A-Za-z0-9+]+:", text):
            raise StudyError("The ledger's address must be a path, sqlite:///path or postgresql://….")
        return sa.URL.create("sqlite", database=text)
    if text.startswith("sqlite:///"):
        return sa.URL.create("sqlite", database=text.removeprefix("sqlite:///"))
    parsed: Any = None
    try:
        parsed = sa.make_url(text.replace("postgresql://", "postgresql+psycopg://", 1))
    except (sa.exc.ArgumentError, ValueError):
        raise_alone(StudyError("The ledger's address must be a path, sqlite:///path or postgresql://…."))
    return parsed


def _prepare_sqlite(engine: Any) -> None:
    """Write-ahead log, full synchronisation, and transactions that lock before they read."""
    import sqlalchemy as sa

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        for setting in (
            "busy_timeout = 60000",
            "journal_mode = WAL",
            "synchronous = FULL",
            "wal_autocheckpoint = 1",
            "cell_size_check = ON",
        ):
            connection.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextlib.contextmanager
def _guard() -> Iterator[None]:
    """A database's own errors quote statements and values: the ledger's are constant."""
    import sqlalchemy as sa

    try:
        yield
    except sa.exc.SQLAlchemyError:
        raise_alone(LedgerError(_FAULT))
    except (TypeError, ValueError, KeyError, OverflowError) as fault:
        if isinstance(fault, StudyError):
            raise
        raise_alone(LedgerError(_FAULT))


def _execute(connection: Any, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    import sqlalchemy as sa

    return connection.execute(sa.text(statement), dict(values or {}))


_TABLES = (
    "CREATE TABLE IF NOT EXISTS budget (population TEXT PRIMARY KEY, epsilon TEXT NOT NULL, delta TEXT NOT NULL, total BIGINT NOT NULL, "
    "spent BIGINT NOT NULL, seq BIGINT NOT NULL, head TEXT NOT NULL, secret TEXT NOT NULL, seal TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS events (seq BIGINT NOT NULL, population TEXT NOT NULL, kind TEXT NOT NULL, release TEXT, request TEXT, "
    "units BIGINT NOT NULL CHECK (units >= 0), body TEXT NOT NULL, time TEXT NOT NULL, nonce TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL, "
    "PRIMARY KEY (population, seq))",
    "CREATE UNIQUE INDEX IF NOT EXISTS one_charge ON events (population, release) WHERE kind = 'charge'",
    "CREATE UNIQUE INDEX IF NOT EXISTS one_release ON events (population, release) WHERE kind = 'release'",
)
_SQLITE_TRIGGERS = (
    "CREATE TRIGGER IF NOT EXISTS events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS events_remain BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS budget_remains BEFORE DELETE ON budget BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS budget_grows BEFORE UPDATE ON budget WHEN NEW.spent < OLD.spent OR NEW.total <> OLD.total "
    "OR NEW.seq <> OLD.seq + 1 OR NEW.population <> OLD.population OR NEW.epsilon <> OLD.epsilon OR NEW.delta <> OLD.delta "
    "OR NEW.secret <> OLD.secret BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS events_once BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE population = NEW.population "
    "AND seq = NEW.seq) BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS budget_once BEFORE INSERT ON budget WHEN EXISTS (SELECT 1 FROM budget WHERE population = NEW.population) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
)
_POSTGRES_TRIGGERS = (
    "CREATE OR REPLACE FUNCTION dplinked_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'append only'; END $$",
    "CREATE OR REPLACE TRIGGER events_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION dplinked_append_only()",
    "CREATE OR REPLACE TRIGGER budget_remains BEFORE DELETE OR TRUNCATE ON budget FOR EACH STATEMENT EXECUTE FUNCTION dplinked_append_only()",
    "CREATE OR REPLACE TRIGGER budget_grows BEFORE UPDATE ON budget FOR EACH ROW WHEN (NEW.spent < OLD.spent OR NEW.total <> OLD.total "
    "OR NEW.seq <> OLD.seq + 1 OR NEW.population <> OLD.population OR NEW.epsilon <> OLD.epsilon OR NEW.delta <> OLD.delta "
    "OR NEW.secret <> OLD.secret) EXECUTE FUNCTION dplinked_append_only()",
)


def _create_tables(connection: Any, dialect: str) -> None:
    for statement in (*_TABLES, *(_SQLITE_TRIGGERS if dialect == "sqlite" else _POSTGRES_TRIGGERS)):
        connection.exec_driver_sql(statement)


def _populations(connection: Any) -> list[str]:
    return [row[0] for row in _execute(connection, "SELECT population FROM budget ORDER BY population")]


def _events(connection: Any, population: str) -> list[Event]:
    found = _execute(
        connection, "SELECT * FROM events WHERE population = :population ORDER BY seq", {"population": population}
    )
    return [Event(**row) for row in found.mappings()]


def _insert_event(connection: Any, event: Event) -> None:
    _execute(
        connection,
        "INSERT INTO events (seq, population, kind, release, request, units, body, time, nonce, previous, hash) "
        "VALUES (:seq, :population, :kind, :release, :request, :units, :body, :time, :nonce, :previous, :hash)",
        event.__dict__,
    )


def _intact(connection: Any) -> bool:
    """SQLite's own check of its pages; PostgreSQL looks after its own."""
    if connection.engine.dialect.name != "sqlite":
        return True
    return bool(_execute(connection, "PRAGMA integrity_check").scalar() == "ok")
