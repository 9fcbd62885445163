"""What the page *Release* says: what stands in the way of a release, what it spends, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from dplinked.check.findings import NOT_USABLE
from dplinked.check.study import Check
from dplinked.fitting import release_mu
from dplinked.ledger.account import allows, describe_epsilon_left, describe_spending, releases_left
from dplinked.ledger.costs import cost
from dplinked.ledger.steward import Account, check_readable
from dplinked.privacy.calibration import round_down
from dplinked.release.release import Release
from dplinked.release.releases import Releases, read_release
from dplinked.studio.desk import Fault, Kept, attempt, data_of
from dplinked.studio.room import NOT_OPENED
from dplinked.study.budget import check_delta
from dplinked.study.study import Study

Offer = Literal["new", "again"] | None  # a new release, only one that was made before, or none


@dataclass(frozen=True)
class Obstacle:
    """What stands in the way of a release, and the step at which it is mended."""

    text: str
    step: str
    kind: Literal["bad", "warning"] = "bad"


# --- what stands in the way --------------------------------------------------------------------------


def find_obstacle(study: Study | Fault, account: Account | Fault | None, count: int | None = None) -> Obstacle | None:
    """What keeps a study from being released, as far as it is known before anybody asks for it. `count` is the number of rows, if they were looked at."""
    if isinstance(study, Fault):
        return Obstacle(f"The study is not complete yet. {study.text}", "study")
    if isinstance(missing := attempt(lambda: check_readable(data_of(study))), Fault):
        return Obstacle(f"{missing.text} Choose the data file again.", "study")
    if isinstance(large := attempt(lambda: check_delta(study.delta, count or 2)), Fault):  # there are two rows at least
        told = large.text if count else f"delta={study.delta:g} is too large: it must be below 1/n, for n rows."
        return Obstacle(told, "study")
    if account == NOT_OPENED:
        return Obstacle(
            "The budget that this study names was not opened yet, so nothing can be charged to it. Open it on the page Budget.",
            "budget",
        )
    if isinstance(account, Fault):
        return Obstacle(f"The study's budget cannot be used. {account.text}", "budget")
    if isinstance(account, Account) and account.refusal is not None:
        return Obstacle(f"{account.refusal} Here, data is registered on the page Budget.", "budget")
    return None


def advise(study: Study | Fault, account: Account | Fault | None) -> Obstacle | None:
    """What to know of the budget before a release, though it stands in the way of nothing, or of nothing but a new release."""
    if account is None:
        return Obstacle(
            "No budget is kept: the study names none, so nobody counts what is spent. Open one on the page Budget before you release, or add up all releases about these people yourself.",
            "budget",
            "warning",
        )
    if isinstance(study, Study) and isinstance(account, Account) and not allows(account.balance, release_mu(study)):
        return Obstacle(
            "The budget does not allow a new release like this one. The page Budget shows what it was spent on.",
            "budget",
            "warning",
        )
    return None


def caution(looked: Check | Fault | bool, saved: bool) -> list[str]:
    """What to do before a release that nothing forces anybody to do. `looked` is what was seen in the rows, or whether anybody looked."""
    said = []
    if isinstance(looked, Fault):
        said.append("The data could not be looked at: see the page Check.")
    elif isinstance(looked, Check) and looked.verdict == NOT_USABLE:
        said.append(
            "Check found the data not usable as it is: a release may be refused, or spend its budget for nothing."
        )
    elif not looked:
        said.append(
            "Nobody has looked at the data with this study as it stands: do so on the page Check before you spend."
        )
    if not saved:
        said.append(
            "The study is not saved as it stands. The release is made from what stands here; save it on the page Study to keep it."
        )
    return said  # fmt: skip


def advice_after(fault: Fault | None) -> Obstacle | None:
    """Where to go after a release was refused."""
    if fault is None:
        return None
    return Obstacle(fault.text, "budget" if fault.kind in ("BudgetError", "LedgerError") else "study")


# --- what it spends ----------------------------------------------------------------------------------


def say_spending(study: Study, account: Account | Fault | None) -> str:
    """What a release spends and what is left afterwards, in one sentence; a second one if the budget does not allow it."""
    price = f"epsilon = {study.epsilon:g} at delta = {study.delta:g}"
    if not isinstance(account, Account):
        return f"This release spends {price}, and no budget is kept: whoever makes several releases about these people must add them up."
    mu, balance = release_mu(study), account.balance
    said = describe_spending(balance, mu)
    if allows(balance, mu):
        return said
    left = round_down(balance.epsilon_left) if balance.spent < balance.total else "0"
    return (
        f"{said} Only a request that the ledger has answered before can be shown again. For a new one, make epsilon smaller on the page Study: {left} at "
        f"delta = {balance.delta:g} is the most that is left."
    )


def describe_charge(study: Study, account: Account | Fault | None) -> list[tuple[str, str]]:
    """The figures of a release: what it costs, who is protected, and what is left before and after."""
    facts = [
        ("This release", f"epsilon = {study.epsilon:g}, delta = {study.delta:g}"),
        ("Who is protected", study.unit.describe()),
    ]
    if not isinstance(account, Account):
        return facts
    before, mu = account.balance, release_mu(study)
    facts.append(("Left before", f"epsilon = {describe_epsilon_left(before)} at delta = {before.delta:g}"))
    if allows(before, mu):
        after = replace(before, spent=before.spent + cost(mu))
        left = f"epsilon = {round_down(after.epsilon_left)} at delta = {after.delta:g}: {releases_left(after, mu):,} more like this one"
        facts.append(("Left after", left if after.spent < after.total else "nothing"))
    return facts


def say_asked(study: Study, account: Account | Fault | None, name: str | None, anew: bool) -> str:
    """What a release spends that is asked for under a name, as far as it is known before the rows are read."""
    spends = say_spending(study, account)
    if not isinstance(account, Account):
        return spends
    if name is not None and name in {event.release for event in account.events if event.kind == "charge"}:
        if anew:
            return f"The ledger has a release called {name!r}, so this one is refused and nothing is spent. Choose another name."
        return f"The ledger has a release called {name!r}. It is shown again if this is the same request, and refused otherwise: nothing is spent."
    if anew:
        return f"{spends} It is spent even if the ledger has seen this very request."
    if not find_stored(study, account):
        return spends
    if not allows(account.balance, release_mu(study)):
        return "If the ledger has seen this very request, its release is shown again. Otherwise it is refused. Nothing is spent either way."
    return (
        f"If the ledger has seen this very request, its release is shown again and nothing is spent. If not: {spends}"
    )


# --- what was paid for -------------------------------------------------------------------------------


def find_offer(study: Study | Fault, account: Account | Fault | None) -> Offer:
    """What can be asked for: a new release, or, where the budget allows none, one that the ledger has."""
    if isinstance(study, Fault):
        return None
    if not isinstance(account, Account) or allows(account.balance, release_mu(study)):
        return "new"
    return "again" if find_stored(study, account) else None


def find_stored(study: Study, account: Account) -> list[Release | Releases]:
    """The releases of a study's formula that its ledger keeps."""
    found = (_stored(event.body) for event in account.events if event.kind == "release")
    return [one for one in found if one is not None and one.formula == study.formula]


def find_lost(study: Study, account: Account | Fault | None, shelf: Sequence[Kept]) -> list[Release | Releases]:
    """Those of them that are not among the releases of the folder."""
    if not isinstance(account, Account):
        return []
    entries = [one.release.ledger for one in shelf]
    here = {(entry.population, entry.id) for entry in entries if entry is not None}
    stored = [one for one in find_stored(study, account) if one.ledger is not None]
    return [one for one in stored if one.ledger and (one.ledger.population, one.ledger.id) not in here]


@lru_cache(maxsize=1_000)
def _stored(body: str) -> Release | Releases | None:
    """A release that a ledger keeps; None for an accuracy."""
    found = attempt(lambda: read_release(body))
    return None if isinstance(found, Fault) else found
