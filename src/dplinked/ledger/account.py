"""A budget in words: what was spent on what, and how much that leaves. Text, Markdown and the studio's page follow from it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dplinked.ledger.costs import UNITS, cost
from dplinked.ledger.events import Event
from dplinked.ledger.ledger import Balance
from dplinked.privacy.calibration import privacy_epsilon, round_down, round_up
from dplinked.report.document import Document, Part, Section, Table

SHARES = (
    "Shares of the budget add up. Values of epsilon do not: several releases together have a smaller epsilon than the sum of theirs. Shares are those of rho, the measure of "
    "privacy loss in which such releases add. It is half the square of mu, and mu tells how far one person can move a result, in standard deviations of its noise."
)
_HEADER = ("name", "what", "time (UTC)", "epsilon", "share")
_RANDOM = re.compile(r"[0-9a-f]{16}")  # what releases without a name were called before 0.2


@dataclass(frozen=True)
class Spending:
    """One thing that was paid for: its name, what became of it, when, and its units."""

    name: str
    what: str
    time: str
    units: int


def list_spending(events: Sequence[Event]) -> list[Spending]:
    """All that was charged or booked, in order."""
    stored = {event.release: event.body for event in events if event.kind == "release"}
    failed = {event.release for event in events if event.kind == "failed"}
    found = []
    for event in events:
        if event.kind == "booked":
            what, name = "booked by the steward", str(json.loads(event.body).get("note", ""))
        elif event.kind == "charge":
            ended = "failed; its charge stays" if event.release in failed else "not finished; its charge stays"
            what, name = "release" if event.release in stored else ended, name_release(event.release, stored)
        else:
            continue
        found.append(Spending(name, what, event.time[:16].replace("T", " "), event.units))
    return found


def name_release(id: str | None, stored: dict[str | None, str]) -> str:
    """The name of a release; its formula with its id, where that is one of the random ids of earlier versions."""
    if id is None or not _RANDOM.fullmatch(id):
        return id or ""
    released = json.loads(stored.get(id, "{}"))
    formula = released.get("formula") or ("linkage accuracy" if "correct" in released or "right" in released else "")
    return f"{formula} ({id})" if formula else id


def epsilon_of(units: int, delta: float) -> float:
    """ε, at a δ, of a single release that costs so many units."""
    return privacy_epsilon(math.sqrt(2.0 * units / UNITS), delta) if units else 0.0


def describe_balance(balance: Balance, mu: float | None = None, asked: str = "") -> list[str]:
    """What is left, in sentences; with `mu`, how often a release that costs it is still affordable, `asked` telling which release that is."""
    share = 100.0 * balance.spent / balance.total if balance.total else 100.0
    said = [
        f"The budget of {balance.population} is epsilon = {balance.epsilon:g} at delta = {balance.delta:g}. {share:.1f} % of it is spent.",
    ]
    if balance.spent >= balance.total:
        return [*said, "Nothing is left: no further release is possible."]
    left = round_down(balance.epsilon_left) if balance.spent else f"{balance.epsilon:g}"
    said.append(f"What is left allows one release of epsilon = {left} at delta = {balance.delta:g}.")
    if mu is not None:
        said.append(f"{_count(releases_left(balance, mu))} like {asked or 'this one'}.")
    return said


def releases_left(balance: Balance, mu: float) -> int:
    """How many more releases of μ the budget allows."""
    return max(0, balance.total - balance.spent) // cost(mu)


def spending_table(balance: Balance, events: Sequence[Event]) -> Table | None:
    """What was paid for, under its name, with its ε at the budget's δ and its share; None if nothing was."""
    rows = [
        [
            one.name,
            one.what,
            one.time,
            round_up(epsilon_of(one.units, balance.delta)),
            f"{100.0 * one.units / balance.total:.2f} %",
        ]
        for one in list_spending(events)
    ]
    return Table(_HEADER, rows, "Releases and bookings") if rows else None


def budget_document(balance: Balance, events: Sequence[Event], mu: float | None, asked: str) -> Document:
    """The whole account."""
    table = spending_table(balance, events)
    listed: list[Part] = ["Nothing was spent yet."] if table is None else [table, SHARES]
    return Document(
        f"The budget of {balance.population}",
        [
            Section("", [" ".join(describe_balance(balance, mu, asked))]),
            Section("What was spent", listed),
            Section("", [f"Ledger head {balance.head}"]),
        ],
    )


def _count(releases: int) -> str:
    if releases == 0:
        return "It does not allow one"
    return "Or it allows 1 more release" if releases == 1 else f"Or it allows {releases:,} more releases"
