"""The budget ledger: what was spent on a population, append-only and hash-chained, in SQLite or PostgreSQL.

A release is charged before it reads any rows. The order is: reserve (commit), compute, record (commit), show. If the process crashes in
between, the charge stays. A request that was answered before is answered by the stored release. Costs are whole units of ρ = μ²/2, rounded up, since μ² adds for Gaussian releases; a release from
a secret sample costs the units that Gaussian ones lose by it. The balance is one row per
population. It is updated in the same transaction as the event that explains it, and sealed by a checksum over itself and the chain's head.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dplinked.errors import BudgetError, LedgerError, ReleaseError, StudyError, plain_faults, raise_alone
from dplinked.ledger.balance import Balance, Charge, balance_of
from dplinked.ledger.costs import budget_units, check_size, cost, pure_mu, sample_units
from dplinked.ledger.database import (
    FAULT,
    connect,
    create_tables,
    execute,
    guarded,
    insert_event,
    is_intact,
    list_events,
    list_populations,
    lock_all,
    make_private,
    sqlite_path,
)
from dplinked.ledger.events import START, Event, canonical, chain_event, chained_again, seal_row
from dplinked.ledger.key import create_key, key_path, read_key
from dplinked.ledger.registration import (
    REFUSED,
    CheckedLinks,
    Registration,
    allowed_at,
    find_content,
    find_pairs,
    find_place,
    found_or_refused,
    read_registrations,
    with_pairs,
)
from dplinked.linkage import UNSTATED, Linkage, LinkageFloor, Matching, PrivacyUnit
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import privacy_mu, round_down
from dplinked.study.budget import check_budget
from dplinked.sums.engine import source_bytes

_WAIT = 600.0  # seconds that a second request waits for the first one's result
_POLL = 0.05
_LONGEST = 120  # letters of a formula that a release is called by
_ACTIVE: set[str] = set()  # charges whose release this process is computing now


class Ledger:
    """The budget of one population, in a ledger that exists already. :meth:`create` opens a new budget.

    Parameters
    ----------
    url
        A path, ``sqlite:///path`` or ``postgresql://…``.
    population
        The population whose budget it is; not needed if the ledger holds only one.
    key
        The file with the key of the fingerprints. By default it stands beside a SQLite file, under its name and ``.key``. For PostgreSQL it must
        be named, here or by the environment variable ``DPLINKED_LEDGER_KEY``.
    """

    @plain_faults
    def __init__(self, url: str | Path, population: str | None = None, *, key: str | Path | None = None) -> None:
        self._engine = connect(url)
        self._key_path = key_path(sqlite_path(self._engine), key)
        with self._transaction() as connection:
            known = list_populations(connection)
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

    # --- for the steward -------------------------------------------------------------------------

    @classmethod
    @plain_faults
    def create(
        cls, url: str | Path, population: str, *, epsilon: float, delta: float, key: str | Path | None = None
    ) -> Ledger:
        """Open a budget for a population. A second one for the same population is refused.

        The ledger's file and its key are made such that only their owner can read them.
        """
        check_budget(epsilon, delta)
        check_size(epsilon)
        _check_name(population, "A budget belongs to a population: give its name")
        total = budget_units(epsilon, delta)
        engine = connect(url, create=True)
        make_private(engine)
        create_key(key_path(sqlite_path(engine), key))
        with guarded(), engine.begin() as connection:
            create_tables(connection, engine.dialect.name)
            if population in list_populations(connection):
                raise StudyError(
                    f"There is a budget for {population!r} already. Budgets are opened once and never reset."
                )
            body = canonical({"epsilon": epsilon, "delta": delta, "total": total})
            event = chain_event(1, population, "open", None, None, 0, body, START)
            insert_event(connection, event)
            row = {
                "population": population, "epsilon": repr(float(epsilon)), "delta": repr(float(delta)), "total": total, "spent": 0,
                "seq": 1, "head": event.hash, "secret": "",
            }  # fmt: skip
            execute(
                connection,
                "INSERT INTO budget (population, epsilon, delta, total, spent, seq, head, secret, seal) "
                "VALUES (:population, :epsilon, :delta, :total, :spent, :seq, :head, :secret, :seal)",
                {**row, "seal": seal_row(row)},
            )
        return cls(url, population, key=key)

    @plain_faults
    def register(self, source: Any, *, linkage: Linkage | None = None, unit: PrivacyUnit = UNSTATED) -> None:
        """Register data about the population: where it is, what it holds, and how its rows were linked.

        From then on, releases from it are charged to this budget. A study of the data may assume no less about the links than `linkage` and
        `unit` state, and may use no other matching matrix than the one of `linkage`. Without `linkage`, the data is a file that is yet to be
        linked, from which only accuracies can be released.
        """
        make_private(self._engine)
        floor = LinkageFloor.of(linkage, unit)
        pairs = (
            (find_place(self._digest(), linkage.pairs), find_pairs(self._digest(), linkage))
            if isinstance(linkage, Matching)
            else None
        )
        new = Registration(find_place(self._digest(), source), self.fingerprint(source), floor, pairs)
        with self._transaction() as connection:
            row = self._locked(connection)
            same = [known for known in read_registrations(self._events(connection, "register")) if known.names(new)]
            if not same or same[-1] != new:
                body = canonical({"place": new.place, "floor": floor, **({} if pairs is None else {"pairs": pairs})})
                self._append(connection, row, "register", None, new.content, 0, body)

    @plain_faults
    def book(self, *, epsilon: float, delta: float, note: str) -> None:
        """Book spending that happened outside the ledger. It may exceed what is left; then nothing is left.

        With δ > 0 it is booked as one Gaussian release of (ε, δ), which is what this ledger adds up. With δ = 0 it may be any ε-DP
        release, and is booked at a higher cost. Other mechanisms with δ > 0 must be booked as a Gaussian release that is less private; accuracies from a secret sample by
        :meth:`book_sample`.
        """
        check_budget(epsilon, delta or 0.5)
        check_size(epsilon)
        mu = privacy_mu(epsilon, delta) if delta else pure_mu(epsilon)
        self._book(mu, {"epsilon": epsilon, "delta": delta, "note": note})

    @plain_faults
    def book_sample(self, sample: SecretSample, *, note: str) -> None:
        """Book accuracies that were released from a secret sample outside the ledger, by what they cost: ``released.linkage.paid``.

        At a δ below their own they need a larger ε than a Gaussian release of the same (ε, δ), so they are added up as they are.
        """
        if not isinstance(sample, SecretSample):
            raise StudyError("Book what accuracies from a secret sample cost: their linkage.paid.")
        self._book(sample, {"sample": asdict(sample), "note": note})

    def _book(self, price: float | SecretSample, body: Mapping[str, Any]) -> None:
        """Book a price that was paid outside the ledger."""
        with self._transaction() as connection:
            row = self._locked(connection)
            self._append(connection, row, "booked", None, None, self._units(connection, row, price), canonical(body))

    def events(self) -> list[Event]:
        """All events of the population, in order."""
        with self._transaction() as connection:
            return list_events(connection, self.population)

    def verify(self, head: str | None = None) -> Balance:
        """Check the whole chain, its sums and its seal. A `head` that a release printed must be in it, or the ledger was rolled back."""
        with self._transaction() as connection:
            row, events = self._locked(connection), list_events(connection, self.population)
            intact = is_intact(connection)
        previous, spent = START, 0
        for seq, event in enumerate(events, 1):
            if chained_again(event) != event or (event.seq, event.previous) != (seq, previous):
                raise LedgerError(f"The ledger was changed: event {seq} does not fit the chain.")
            previous, spent = event.hash, spent + event.units
        opened = json.loads(events[0].body) if events else {}
        stated = {"epsilon": float(row["epsilon"]), "delta": float(row["delta"]), "total": row["total"]}
        if not intact or previous != row["head"] or spent != row["spent"] or opened != stated:
            raise LedgerError("The ledger was changed: its balance does not follow from its events.")
        if head is not None and head not in {event.hash for event in events}:
            raise LedgerError("The ledger was rolled back: it does not know a release that was made from it.")
        return balance_of(row)

    # --- for everybody ---------------------------------------------------------------------------

    def balance(self) -> Balance:
        """The budget, and how much of it was spent."""
        with self._transaction() as connection:
            return balance_of(self._locked(connection))

    def fingerprint(self, source: Any) -> str:
        """Fingerprint of a file's bytes or a table's content. It is keyed with a secret of the ledger, without which it tells nothing."""
        return find_content(self._digest(), source_bytes(source), source)

    def know_links(self, key: str | None, rows: Sequence[int] | None) -> CheckedLinks:
        """By what checked links are known again: fingerprints of the tag of their key, and of their rows, that are the same in all populations."""

        def known(what: str, value: Any) -> str | None:
            if value is None:
                return None
            digest = self._digest([])
            digest.update(canonical([what, value]).encode())
            return digest.hexdigest()

        return CheckedLinks(known("key", key), known("rows", rows))

    def check_place(self, data: Any, unit: PrivacyUnit, linkage: Linkage | None = None) -> Sequence[Registration]:
        """What was registered at the place of the data, and of the pairs of its matching matrix if it has one. Nothing of them is opened.

        Data and pairs elsewhere are refused, and so is a study that assumes less about the links than was registered.
        """
        place = find_place(self._digest(), data)
        with self._transaction() as connection:
            found = read_registrations(self._events(connection, "register"))
        allowed = allowed_at(place, found, LinkageFloor.of(linkage, unit))
        return with_pairs(allowed, 0, linkage, lambda pairs: find_place(self._digest(), pairs.pairs))

    def check_content(self, source: Any, allowed: Sequence[Registration], linkage: Linkage | None = None) -> str:
        """The fingerprint of data whose content was registered. Whatever else is found there is refused with one message.

        The pairs of a matching matrix must be those that were registered with it.
        """
        found = found_or_refused(lambda: self.fingerprint(source), REFUSED)
        here = [known for known in allowed if known.content == found]
        if not here:
            raise LedgerError(REFUSED)
        with_pairs(here, 1, linkage, lambda pairs: find_pairs(self._digest(), pairs))
        return found

    def check_registered(self, *sources: Any, unit: PrivacyUnit = UNSTATED) -> list[str]:
        """Return the fingerprints of registered data. Data that is not registered is refused before anything is spent."""
        allowed = [self.check_place(source, unit) for source in sources]
        return [self.check_content(source, known) for source, known in zip(sources, allowed, strict=True)]

    def reserve(
        self,
        release: str | None,
        request: Mapping[str, Any],
        mu: float | SecretSample,
        *,
        again: bool = False,
        links: CheckedLinks | None = None,
    ) -> Charge:
        """Charge a release before it is computed, and commit; or return the stored release of the same request.

        A release from a secret sample is charged by that instead of a μ. The checked `links` of an accuracy are known again: those of a secret sample may be used once. If the id was charged for another request, this is an error. If the same request is being computed at this moment, its
        result is waited for. With `again`, the same request is charged anew.
        """
        if release is not None:
            _check_name(release, "A release's id must be a text of at most 200 printable characters")
        wanted = hashlib.sha256(canonical(dict(request)).encode()).hexdigest()
        limit = time.monotonic() + _WAIT
        while True:
            with self._transaction() as connection:
                row = self._locked(connection)
                charged = self._charged_before(connection, release, wanted, again)
                if charged is None:
                    name = release or self._new_name(connection, request)
                    return self._charge(connection, row, name, wanted, mu, links)
                recorded = self._find(connection, "release", charged.release)
                if recorded is not None:
                    return Charge(str(charged.release), wanted, charged.hash, balance_of(row), recorded.body)
                failed = self._find(connection, "failed", charged.release) is not None
                # Asked while the row is locked, so that the other process cannot record its release and end in between.
                alive = _alive(json.loads(charged.body), charged.hash)
            if failed or not alive or time.monotonic() > limit:
                raise LedgerError(
                    f"The release {charged.release!r} was charged, but never finished. The charge stays; use another id for a new release, or "
                    "ask again (again=True, --again)."
                )
            time.sleep(_POLL)

    def _new_name(self, connection: Any, request: Mapping[str, Any]) -> str:
        """A name for a release that was given none: what it is about, and a number if there are several of it."""
        formula = str(request.get("formula", "linkage accuracy"))
        formula += "".join(f", {word} {request[word]}" for word in ("by", "where") if request.get(word))
        about = formula if len(formula) <= _LONGEST and formula.isprintable() else "release"
        taken = {event.release for event in self._events(connection, "charge")}
        numbered = (f"{about} ({k})" for k in itertools.count(2))
        return next(name for name in itertools.chain([about], numbered) if name not in taken)

    def _charged_before(self, connection: Any, release: str | None, wanted: str, again: bool) -> Event | None:
        """The charge that answers a request: the one of its id, else one whose release was recorded, else, without an id, any."""
        named = None if release is None else self._find(connection, "charge", release)
        if named is not None:
            if again or named.request != wanted:
                raise StudyError(
                    f"A release called {release!r} was made {'before' if again else 'from another request'}. Nothing was spent. Use another id."
                )
            return named
        same = [] if again else self._events(connection, "charge", "request", wanted)
        finished = [event for event in same if self._find(connection, "release", event.release) is not None]
        return next(iter(finished), same[-1] if same and release is None else None)

    def _charge(
        self,
        connection: Any,
        row: dict[str, Any],
        name: str,
        wanted: str,
        price: float | SecretSample,
        links: CheckedLinks | None,
    ) -> Charge:
        """Charge a new release, unless the budget does not allow it."""
        about = {} if links is None else {"links": asdict(links)}
        if isinstance(price, SecretSample):
            about["sample"] = asdict(price)
        if links is not None:
            self._check_unused(connection, links, "sample" in about)
        units = self._units(connection, row, price)
        if units > row["total"] - row["spent"]:
            raise BudgetError(
                f"The budget of {self.population!r} does not allow this release: it has epsilon = "
                f"{round_down(balance_of(row).epsilon_left)} left at delta = {float(row['delta']):g}. Nothing was spent."
            )
        owner = canonical({"host": socket.gethostname(), "process": os.getpid(), **about})
        after = self._append(connection, row, "charge", name, wanted, units, owner)
        _ACTIVE.add(after["head"])
        return Charge(name, wanted, after["head"], balance_of(after))

    def _check_unused(self, connection: Any, links: CheckedLinks, secret: bool) -> None:
        """Refuse links of a secret sample that a release was charged from before, in any population: such releases are not independent, so costs do not add."""
        lock_all(connection)
        for population in list_populations(connection):
            for event in self._events(connection, "charge", population=population):
                body = json.loads(event.body)
                if "links" in body and links.are(CheckedLinks(**body["links"]), secret or "sample" in body):
                    raise StudyError(
                        "A release was charged from this secret sample before, and a second one would tell who is in it. Nothing was spent. Draw another sample with a "
                        "new key."
                    )

    def _units(self, connection: Any, row: Mapping[str, Any], price: float | SecretSample) -> int:
        """What a release costs; one from a secret sample beside the earlier ones, booked ones among them."""
        if not isinstance(price, SecretSample):
            return cost(price)
        events = [*self._events(connection, "charge"), *self._events(connection, "booked")]
        bodies = [json.loads(event.body) for event in sorted(events, key=lambda event: event.seq)]
        earlier = [SecretSample(**body["sample"]) for body in bodies if "sample" in body]
        return sample_units(float(row["epsilon"]), float(row["delta"]), earlier, price)

    def record(self, charge: Charge, release: str) -> None:
        """Store the finished release, and commit. Only then may it be shown."""
        with self._transaction() as connection:
            self._append(connection, self._locked(connection), "release", charge.release, charge.request, 0, release)

    @contextlib.contextmanager
    def finishing(self, charge: Charge) -> Iterator[None]:
        """Guard the computation of a charged release: if anything fails, the charge stays, and the message does not say why."""
        try:
            yield
        except BaseException as fault:
            with contextlib.suppress(Exception):  # the charge stays, even if the failure cannot be recorded
                self.record_failure(charge)
            if not isinstance(fault, Exception):  # an interruption is passed on as it is
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
                connection, self._locked(connection), "failed", charge.release, charge.request, 0, canonical({})
            )

    # --- rows ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A transaction that commits at the end; errors of the database are replaced by the ledger's."""
        with guarded(), self._engine.begin() as connection:
            yield connection

    def _locked(self, connection: Any) -> dict[str, Any]:
        """The population's row, locked until the transaction ends. Its seal is checked."""
        lock = " FOR UPDATE" if self._engine.dialect.name == "postgresql" else ""
        found = execute(
            connection, f"SELECT * FROM budget WHERE population = :population{lock}", {"population": self.population}
        )
        row = found.mappings().first()
        if row is None or row["seal"] != seal_row(row):
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
        """Append an event and update the balance accordingly; returns the population's new row."""
        event = chain_event(row["seq"] + 1, self.population, kind, release, request, units, body, row["head"])
        insert_event(connection, event)
        after = {**row, "seq": event.seq, "spent": row["spent"] + units, "head": event.hash}
        moved = execute(
            connection,
            "UPDATE budget SET spent = :spent, seq = :seq, head = :head, seal = :seal "
            "WHERE population = :population AND seq = :before",
            {**after, "seal": seal_row(after), "before": row["seq"]},
        )
        if moved.rowcount != 1:
            raise LedgerError(FAULT)
        return after

    def _find(self, connection: Any, kind: str, release: str | None) -> Event | None:
        """The event of a kind that belongs to a release, if there is one."""
        found = self._events(connection, kind, "release", release)
        return found[0] if found else None

    def _events(
        self,
        connection: Any,
        kind: str,
        column: str | None = None,
        value: str | None = None,
        population: str | None = None,
    ) -> list[Event]:
        """The events of a kind, in order, or those of them that have a value in a column; of another population, if one is named. Their hashes are checked."""
        wanted = "" if column is None else f" AND {column} = :value"
        found = execute(
            connection,
            f"SELECT * FROM events WHERE population = :population AND kind = :kind{wanted} ORDER BY seq",
            {"population": population or self.population, "kind": kind} | ({} if column is None else {"value": value}),
        )
        events = [Event(**row) for row in found.mappings()]
        if any(event != chained_again(event) for event in events):
            raise LedgerError("The ledger was changed: an event is not the one that was written.")
        return events

    # --- data ------------------------------------------------------------------------------------

    def _digest(self, begin: Sequence[str] | None = None) -> hmac.HMAC:
        """A digest with the ledger's key, begun with the population unless another beginning is given. Versions before 0.2 kept a key for each population in the ledger."""
        with self._transaction() as connection:
            kept = self._locked(connection)["secret"]
        if kept:
            return hmac.new(bytes.fromhex(kept), digestmod=hashlib.sha256)
        return hmac.new(
            read_key(self._key_path), canonical([self.population] if begin is None else begin).encode(), hashlib.sha256
        )


# --- checks and conversions ---------------------------------------------------------------------------


def _check_name(name: Any, fault: str) -> None:
    """Refuse names that are too long or not printable, since names are shown."""
    if not (isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()):
        raise StudyError(f"{fault}.")


def _alive(owner: Mapping[str, Any], head: str) -> bool:
    """Whether the process that was charged may still be at work.

    A process on another host cannot be probed and counts as alive until the timeout.
    """
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
