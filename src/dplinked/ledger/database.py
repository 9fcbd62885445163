"""The ledger's tables in SQLite or PostgreSQL, and the statements that read and write them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dplinked.errors import LedgerError, StudyError, raise_alone, shown, shown_place
from dplinked.ledger.events import Event

_LOCK = 0x64706C69  # what transactions that look at every population lock in PostgreSQL
FAULT = "The ledger cannot be read or written. Nothing was released. The steward's 'dplinked budget verify' tells more."


def connect(url: str | Path, *, create: bool = False) -> Any:
    """Connect to the database at an address. With `create`, a SQLite file need not exist yet."""
    import sqlalchemy as sa

    if not isinstance(url, (str, Path)):
        raise StudyError(f"A ledger is given by its path or address, not by {shown(url)}.")
    parsed = _address(str(url))
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        if not create and not path.is_file():
            raise LedgerError(
                f"There is no ledger {shown_place(path)}. The steward opens one with 'dplinked budget init'."
            )
        if create and not path.resolve().parent.is_dir():
            raise StudyError(f"There is no folder for the ledger {shown_place(path)}.")
        if path.is_file() and path.stat().st_nlink > 1:
            raise LedgerError(
                "The ledger's file has a second name (a hard link), under which it could be written unseen. Remove it."
            )
        if create:
            _create_private(path)
        engine = sa.create_engine(parsed, poolclass=sa.pool.NullPool)
        _prepare_sqlite(engine)
        return engine
    if parsed.get_backend_name() != "postgresql":
        raise StudyError("A ledger lives in SQLite or PostgreSQL: a path, sqlite:///path or postgresql://….")
    try:
        return sa.create_engine(parsed, poolclass=sa.pool.NullPool)
    except ImportError:
        raise_alone(StudyError("A ledger in PostgreSQL needs psycopg: pip install 'dplinked[postgres]'."))


def populations_at(url: str | Path) -> list[str]:
    """Names of the populations that have a budget at an address; none if nobody has opened one there yet."""
    parsed = _address(str(url))
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        return []
    with guarded(), connect(url).begin() as connection:
        return list_populations(connection) if _has_budgets(connection) else []


def _has_budgets(connection: Any) -> bool:
    import sqlalchemy as sa

    return bool(sa.inspect(connection).has_table("budget"))


def sqlite_path(engine: Any) -> Path | None:
    """The file of a SQLite database; None for another database."""
    return Path(engine.url.database) if engine.dialect.name == "sqlite" else None


def make_private(engine: Any) -> None:
    """Close a SQLite file of one's own to all others, as a new one is made. SQLite's files beside it are closed too."""
    path = sqlite_path(engine)
    if path is None or os.name != "posix":
        return
    for file in (path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm"))):
        with contextlib.suppress(OSError):
            found = file.stat()
            if found.st_uid == os.geteuid() and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                file.chmod(0o600)


def _create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, unless there is a file. SQLite gives the files beside it the same rights."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError:
        raise_alone(StudyError(f"The ledger {shown_place(path)} cannot be written. Name a file in a folder of yours."))


def _address(text: str) -> Any:
    """Parse a ledger's address. Errors never quote it, as it may hold a password."""
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
    """Set up SQLite: a write-ahead log, full synchronisation, and transactions that lock the database before they read."""
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
def guarded() -> Iterator[None]:
    """Replace a database's own errors, which quote statements and values, by one constant message."""
    import sqlalchemy as sa

    try:
        yield
    except sa.exc.SQLAlchemyError:
        raise_alone(LedgerError(FAULT))
    except (TypeError, ValueError, KeyError, OverflowError) as fault:
        if isinstance(fault, StudyError):
            raise
        raise_alone(LedgerError(FAULT))


def execute(connection: Any, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Run one SQL statement with named values."""
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


def create_tables(connection: Any, dialect: str) -> None:
    """Create the tables, and the triggers that make them append-only, unless they exist."""
    for statement in (*_TABLES, *(_SQLITE_TRIGGERS if dialect == "sqlite" else _POSTGRES_TRIGGERS)):
        connection.exec_driver_sql(statement)


def lock_all(connection: Any) -> None:
    """Wait for all others who look at every population, until the transaction ends. SQLite's transactions wait anyhow."""
    if connection.engine.dialect.name == "postgresql":
        execute(connection, "SELECT pg_advisory_xact_lock(:number)", {"number": _LOCK})


def list_populations(connection: Any) -> list[str]:
    """Names of the populations that have a budget."""
    return [row[0] for row in execute(connection, "SELECT population FROM budget ORDER BY population")]


def list_events(connection: Any, population: str) -> list[Event]:
    """All events of a population, in order."""
    found = execute(
        connection, "SELECT * FROM events WHERE population = :population ORDER BY seq", {"population": population}
    )
    return [Event(**row) for row in found.mappings()]


def insert_event(connection: Any, event: Event) -> None:
    """Append an event."""
    execute(
        connection,
        "INSERT INTO events (seq, population, kind, release, request, units, body, time, nonce, previous, hash) "
        "VALUES (:seq, :population, :kind, :release, :request, :units, :body, :time, :nonce, :previous, :hash)",
        event.__dict__,
    )


def is_intact(connection: Any) -> bool:
    """Whether SQLite's own check of its file succeeds. PostgreSQL checks its files itself."""
    if connection.engine.dialect.name != "sqlite":
        return True
    return bool(execute(connection, "PRAGMA integrity_check").scalar() == "ok")
