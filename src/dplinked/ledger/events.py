"""The ledger's events, and the hash chain that binds each event to the one before it."""

from __future__ import annotations

import hashlib
import json
import secrets as tokens
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from dplinked.errors import StudyError
from dplinked.records import ReadableByKey

START = "0" * 64  # stands for the hash before the first event of a population


@dataclass(frozen=True)
class Event:
    """One line of the ledger.

    Attributes
    ----------
    seq, population
        Number of the event within its population, from 1 on, and the population's name.
    kind
        ``open`` (a budget), ``register`` (data), ``charge``, ``release``, ``failed`` or ``booked``.
    release, request
        Name of the release, and a hash of what was asked for. For ``register``, `request` is the data's fingerprint.
    units
        What the event costs, in the ledger's units of ρ.
    body
        What else belongs to the event, as JSON; for ``release``, the whole release.
    time, nonce
        When the event was recorded, and a random text that makes its hash unguessable.
    previous, hash
        Hash of the event before it, and its own.
    """

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
class LedgerEntry(ReadableByKey):
    """What a release says of its charge: the budget it was charged to, its own id, and the chain's head by then.

    The head is masked by the events' nonces, so it tells nothing of the data; a ledger that does not know it was rolled back.
    """

    population: str
    id: str
    head: str
    epsilon: float
    delta: float
    epsilon_left: float


def canonical(value: Any) -> str:
    """Write a value as JSON, such that equal values have equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """Convert what JSON cannot hold. Arrays and series become lists, since their own texts leave out digits and elements."""
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


def chain_event(
    seq: int, population: str, kind: str, release: str | None, request: str | None, units: int, body: str, previous: str,
    when: str | None = None, nonce: str | None = None,
) -> Event:  # fmt: skip
    """Make an event and its hash. The hash covers a random nonce, so that it tells nothing to those who see only the hash."""
    when, nonce = when or datetime.now(UTC).isoformat(timespec="seconds"), nonce or tokens.token_hex(16)
    text = canonical([seq, population, kind, release, request, units, body, when, nonce, previous])
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


def chained_again(event: Event) -> Event:
    """The same event with its hash computed anew; it differs from the given one if the event was changed."""
    e = event
    return chain_event(e.seq, e.population, e.kind, e.release, e.request, e.units, e.body, e.previous, e.time, e.nonce)


def seal_row(row: Mapping[str, Any]) -> str:
    """Checksum of a population's row, so that a changed bit in the balance is noticed before anything is charged."""
    names = ("population", "epsilon", "delta", "total", "spent", "seq", "head", "secret")
    if not all(isinstance(row[name], (str, int)) for name in names):
        return ""
    return hashlib.sha256(canonical([row[name] for name in names]).encode()).hexdigest()
