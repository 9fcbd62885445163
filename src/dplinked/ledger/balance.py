"""What a budget has left, and what was charged to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dplinked.ledger.costs import UNITS
from dplinked.ledger.events import LedgerEntry
from dplinked.privacy.calibration import privacy_epsilon


@dataclass(frozen=True)
class Balance:
    """A population's budget (ε, δ), and its total and what was spent of it in units of 1e-15 ρ."""

    population: str
    epsilon: float
    delta: float
    total: int
    spent: int
    head: str

    @property
    def epsilon_left(self) -> float:
        """The largest ε that one further release could have, at the budget's δ."""
        left = max(0, self.total - self.spent)
        return privacy_epsilon(math.sqrt(2.0 * left / UNITS), self.delta) * (1.0 - 1e-6) if left else 0.0


@dataclass(frozen=True)
class Charge:
    """A charge that is committed. If the same request was answered before, `stored` holds that release."""

    release: str
    request: str
    head: str
    balance: Balance
    stored: str | None = None

    def describe(self) -> LedgerEntry:
        """What a release says of its charge."""
        left = self.balance
        return LedgerEntry(left.population, self.release, self.head, left.epsilon, left.delta, left.epsilon_left)

    def tell_if_seen(self, release: str | None) -> None:
        """Warn that a stored release is returned, unless it was asked for by its id."""
        if release != self.release:
            warnings.warn(
                f"The ledger has seen this request: this is the release {self.release!r} that it stored, and nothing was charged. To pay for a "
                "new one, ask again (again=True, --again).",
                UserWarning,
                stacklevel=3,
            )


def balance_of(row: Mapping[str, Any]) -> Balance:
    """The balance that a row of the ledger tells."""
    return Balance(
        row["population"], float(row["epsilon"]), float(row["delta"]), row["total"], row["spent"], row["head"]
    )
