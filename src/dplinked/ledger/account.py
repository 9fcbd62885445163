"""A budget in words: what was spent on what, and how much that leaves. Text, Markdown and the studio's page follow from it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dplinked.ledger.balance import Balance
from dplinked.ledger.costs import UNITS, budget_units, cost
from dplinked.ledger.events import Event
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
    said.append(
        f"What is left allows one release of epsilon = {describe_epsilon_left(balance)} at delta = {balance.delta:g}."
    )
    if mu is not None:
        said.append(f"{_count(releases_left(balance, mu))} like {asked or 'this one'}.")
    return said


def describe_epsilon_left(balance: Balance) -> str:
    """The ε of the largest release that is left, rounded down; of a budget of which nothing was spent, as it was opened."""
    return round_down(balance.epsilon_left) if balance.spent else f"{balance.epsilon:g}"


def allows(balance: Balance, mu: float) -> bool:
    """Whether what is left pays for a release of μ."""
    return cost(mu) <= balance.total - balance.spent


def describe_spending(balance: Balance, mu: float) -> str:
    """What a release of μ takes from a budget and what it leaves, in one sentence. What is spent is rounded up, what is left down."""
    left = max(0, balance.total - balance.spent)
    share, rest = _share_up(cost(mu), balance.total), left - cost(mu)
    if rest < 0:
        return f"This release needs {share} of the budget of {balance.population}, and {_share_down(left, balance.total)} is left."
    more = releases_left(replace(balance, spent=balance.spent + cost(mu)), mu)
    then = "which is too little for another one like it" if more == 0 else f"enough for {_about(more, ' more')} like it"
    return f"This release spends {share} of the budget of {balance.population} and leaves {_share_down(rest, balance.total)} of it, {then}."


def describe_left(balance: Balance, mu: float | None) -> str:
    """What is left in words; with `mu`, how many releases of that size it allows."""
    left = max(0, balance.total - balance.spent)
    if not left:
        return "Nothing is left: no further release is possible."
    said = f"{_share_down(left, balance.total)} of the budget is left" if balance.spent else "All of the budget is left"
    if mu is None:
        return f"{said}."
    count = releases_left(balance, mu)
    then = f"enough for {_about(count, ' more')} like this one" if count else "too little for a release like this one"
    return f"{said}, {then}."


def describe_size(epsilon: float, delta: float, mu: float | None = None) -> str:
    """What a budget (ε, δ) means in words; with `mu`, how many releases of that size it holds.

    Whoever hesitates between two possibilities guesses right with probability Φ(μ/2) at best after Gaussian releases that fit into the budget, as those of regressions are; accuracies from a secret sample are not.
    """
    from scipy.special import ndtr

    total = budget_units(epsilon, delta)
    guess = math.ceil(1000.0 * float(ndtr(math.sqrt(2.0 * total / UNITS) / 2.0))) / 10
    said = (
        "Suppose somebody knows everything else in the files and hesitates between two possibilities for one person's values. After seeing all regressions that are "
        f"ever released from this budget, they guess the right one at most {guess:g} % of the time; without them 50 %."
    )
    if mu is None:
        return said
    count = total // cost(mu)
    return f"{said} {'It is too small for one release' if count == 0 else f'It is enough for {_about(count)}'} like this study's."


def _about(releases: int, more: str = "") -> str:
    return f"one{more} release" if releases == 1 else f"about {releases:,}{more} releases"


def _share_up(units: int, total: int) -> str:
    return f"{math.ceil(1000 * units / total) / 10 if total else 100.0:g} %"


def _share_down(units: int, total: int) -> str:
    return f"{math.floor(1000 * units / total) / 10 if total else 0.0:g} %"


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
