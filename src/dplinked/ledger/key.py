"""Keys in files of their own: of a ledger's fingerprints, which tell nothing about the data without it, and of an audit's secret sample."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from dplinked.errors import LedgerError, StudyError, raise_alone, shown

LEDGER, AUDIT = "ledger", "audit"
_LEAST_BYTES, _LEAST_DIFFERENT = 16, 8
_LEAST_TEXT = 32  # characters of a key that is a text, such as hexadecimal digits
NAMED_BY = "DPLINKED_LEDGER_KEY"  # environment variable that names the key file of a ledger in PostgreSQL


def key_path(database: Path | None, key: str | Path | None) -> Path | None:
    """Where the key is: in the file that was named, or beside a SQLite file, whose path is `database`. None if no file was named."""
    if key is not None:
        if not isinstance(key, (str, os.PathLike)):
            raise StudyError("The ledger's key must be the path of a file.")
        return Path(key)
    if database is not None:
        return database.with_name(database.name + ".key")
    return Path(os.environ[NAMED_BY]) if os.environ.get(NAMED_BY) else None


def create_key(path: Path | None, whose: str = LEDGER) -> None:
    """Write a new key that only its owner can read. A key that is there already stays."""
    if path is None:
        raise StudyError(
            "A ledger in PostgreSQL keeps its key in a file outside the database. Name it: key = 'budget.key' in [ledger], or key=…."
        )
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
    except FileExistsError:
        read_key(path, whose)
    except OSError:
        raise_alone(
            StudyError(f"The {whose}'s key {shown(path.name)} cannot be written. Name a file in an existing folder.")
        )


def read_key(path: Path | None, whose: str = LEDGER) -> bytes:
    """Read the key. One that others may read is refused, since it would tell them fingerprints from guesses, or who was checked."""
    if path is None:
        raise StudyError("Name the ledger's key: key = 'budget.key' in [ledger], or key=….")
    open_to_others, found = False, b""
    with contextlib.suppress(OSError, ValueError):  # one message for whatever the file holds: it may be the data's
        open_to_others = os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
        found = b"" if open_to_others else bytes.fromhex(path.read_text(encoding="ascii"))
    refusal = LedgerError if whose == LEDGER else StudyError
    unspent = " Nothing was spent." if whose in (LEDGER, AUDIT) else ""
    if open_to_others:
        raise_alone(refusal(f"The {whose}'s key {shown(path.name)} can be read by others.{unspent} Run: chmod 600."))
    if len(found) != 32:
        raise_alone(
            refusal(
                f"The file {shown(path.name)} is missing, cannot be read or holds no {whose}'s key.{unspent} Name the key's file."
            )
        )
    return found


def audit_key(key: str | Path | bytes, *, create: bool = False) -> bytes:
    """The key of a secret sample: as it is given, or as its file holds it. With `create`, a file that is not there yet is written with a new key."""
    if isinstance(key, bytes):
        if _is_poor(key):
            raise StudyError(
                "An audit's key that can be guessed tells who was drawn. Name a file, which is made with a key if it is not there, or give random bytes, as secrets.token_bytes(32) makes them."
            )
        return key
    if not isinstance(key, (str, os.PathLike)):
        raise StudyError("An audit's key must be the path of a file, or random bytes.")
    if create:
        create_key(Path(key), AUDIT)
    return read_key(Path(key), AUDIT)


def _is_poor(key: bytes) -> bool:
    """Whether a key is too short, nearly always the same byte, or a short text."""
    text = key.isascii() and key.decode("ascii").isprintable()
    return len(key) < (_LEAST_TEXT if text else _LEAST_BYTES) or len(set(key)) < _LEAST_DIFFERENT
