"""Release the linkage accuracy that a clerical audit found, with noise, for a part of the privacy budget."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.fingerprint import source_state
from dplinked.errors import LedgerError, StudyError, plain_faults, raise_alone, shown
from dplinked.ledger.events import LedgerEntry
from dplinked.ledger.ledger import Ledger
from dplinked.linkage import ELE, PrivacyUnit
from dplinked.linker.linked import BLOCK, Linked
from dplinked.linker.quality import known_accuracies
from dplinked.privacy.calibration import privacy_mu, round_up
from dplinked.privacy.quantities.right_links import release_right_links
from dplinked.privacy.spending import Spending
from dplinked.study.budget import check_release_budget
from dplinked.sums.linked_rows import RightLinks

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedAccuracy:
    """Linkage accuracies that were released with differential privacy. They are public from now on.

    Attributes
    ----------
    linkage
        The linkage model for `fit`, with the accuracies' standard errors and what they cost.
    correct, scale
        Noisy number of correct links in each group, and the standard deviation of the noise.
    checked
        How many links of each group were checked.
    epsilon, delta, mu, unit
        What was spent, and the privacy unit it was spent for.
    statement
        The privacy guarantee in words.
    ledger
        What the ledger says about the charge, if there is a ledger.
    """

    linkage: ELE
    correct: dict[str, float]
    scale: float
    checked: dict[str, int]
    epsilon: float
    delta: float
    mu: float
    unit: dict[str, Any]
    statement: str
    ledger: LedgerEntry | None = None

    @property
    def right(self) -> dict[str, float]:
        """The name of `correct` before version 0.2."""
        warnings.warn("ReleasedAccuracy.right goes in 0.3: read .correct instead.", DeprecationWarning, stacklevel=2)
        return self.correct

    def to_json(self) -> str:
        """All of it, as JSON."""
        ledger = None if self.ledger is None else asdict(self.ledger)
        whole = {**self.__dict__, "linkage": self.linkage.describe_whole(), "ledger": ledger}
        return json.dumps(whole, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ReleasedAccuracy:
        """Read it back, also as versions before 0.2 wrote it."""
        try:
            return cls._from_stored(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise_alone(StudyError("These are not released accuracies that this version of dplinked can read."))

    @classmethod
    def _from_stored(cls, whole: dict[str, Any]) -> ReleasedAccuracy:
        if "right" in whole:
            whole["correct"] = whole.pop("right")
        model = whole.pop("linkage")
        model.pop("model")
        charged = whole.pop("ledger", None)
        return cls(linkage=ELE(**model), ledger=None if charged is None else LedgerEntry(**charged), **whole)

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")


@plain_faults
def release_accuracy(
    linked: Linked, *, epsilon: float, delta: float, unit: PrivacyUnit, ledger: str | Path | None = None,
    population: str | None = None, ledger_key: str | Path | None = None, release_id: str | None = None, again: bool = False,
) -> ReleasedAccuracy:  # fmt: skip
    """Release the accuracies that a clerical audit found, with differential privacy.

    Parameters
    ----------
    linked
        Linked files whose audit was read back: ``linked.audited(answers)``.
    epsilon, delta
        The privacy budget that this release spends. A fit that uses the accuracies spends its own budget in addition, and states the sum.
    unit
        What one individual can change. It must be the same as in the fit.
    ledger, population, ledger_key, release_id, again
        As in :func:`dplinked.fit`. Both files must be registered, and must not have changed since they were linked.

    Privacy
    -------
    (ε, δ)-differentially private for `unit`. This assumes that neighbours have the same groups of rows and the same checked
    links, and that a reviewer's answer to a link depends on its two records alone. Then one person can change at most
    2 + displaced_links answers. The groups, their sizes and the numbers of checked links are public.
    """
    if not isinstance(linked, Linked):
        raise StudyError(f"release_accuracy takes what dpl.link gave, not {shown(linked)}.")
    if not isinstance(unit, PrivacyUnit):
        raise StudyError("Say what one person can change: unit=dpl.PrivacyUnit(…), the same as in the fit.")
    check_release_budget(epsilon, delta, linked.left.num_rows)
    if linked.audit is None or linked.audit.checked is None or linked.audit.correct is None:
        raise StudyError(
            "There is no audit to release. Check some links (audit_sample), then read them back with audited(…)."
        )
    if not unit.fixes_blocks:
        raise StudyError(
            "If rows may change their groups (moves_block, linkage_change), so may the sample of links that were checked, and no noise on "
            "the counts covers that. Use moves_block=False without linkage_change, or declare a public accuracy."
        )
    if linked.links.band is not None and unit.displaced_links:
        raise StudyError(
            "A link that changes has another probability, and so another band: with bands, links are held fixed (displaced_links=0). Release the accuracies of "
            "groups without bands."
        )
    if not (linked.audit.checked > 0).any():
        raise StudyError("No links were checked.")
    if ledger is None:
        return _release(linked, linked.audit.checked, linked.audit.correct, epsilon, delta, unit)
    book = Ledger(ledger, population, key=ledger_key)
    _check_unchanged(linked)
    # The ledger knows a request again by its fingerprint, so the key "right" stays as it was in version 0.1.
    answers = {"checked": linked.audit.checked.tolist(), "right": linked.audit.correct.tolist()}
    request = {
        "accuracy": book.fingerprint(answers), "files": book.check_registered(*linked.sources, unit=unit), "groups": list(linked.strata.names),
        "epsilon": epsilon, "delta": delta, "unit": asdict(unit),
    }  # fmt: skip
    _check_unchanged(linked)  # checked again: they must not have changed while they were fingerprinted either
    charge = book.reserve(release_id, request, privacy_mu(epsilon, delta), again=again)
    if charge.stored is not None:
        charge.tell_if_seen(release_id)
        return ReleasedAccuracy.from_json(charge.stored)
    with book.finishing(charge):
        released = _release(linked, linked.audit.checked, linked.audit.correct, epsilon, delta, unit)
        released = replace(released, ledger=charge.describe())
        book.record(charge, released.to_json())
    return released


def _check_unchanged(linked: Linked) -> None:
    """Refuse files that changed since they were linked: the ledger would name the new ones, and the release describe the old ones."""
    if tuple(map(source_state, linked.sources)) != linked.states:
        raise LedgerError("The files changed since they were linked. Nothing was spent. Link them again.")


def _release(
    linked: Linked,
    checked: NDArray[np.int64],
    correct: NDArray[np.int64],
    epsilon: float,
    delta: float,
    unit: PrivacyUnit,
) -> ReleasedAccuracy:
    strata, groups = linked.strata, np.flatnonzero(checked > 0)
    exposure = ELE(0.5, BLOCK).exposure(unit)
    spending = Spending(privacy_mu(epsilon, delta))
    noisy = release_right_links(RightLinks(correct[groups], int(checked.sum()), exposure), spending)
    scale, mu = spending.parts[0].scale, spending.spent
    names = [strata.names[k] for k in groups]
    counts = np.zeros(len(strata.names))
    counts[groups] = noisy
    table, other, spread = known_accuracies(strata, counts, checked.astype(np.float64), scale)
    return ReleasedAccuracy(
        linkage=ELE(
            table,
            BLOCK,
            other=other,
            accuracy_error=spread,
            source="released",
            paid=mu,
            displaced_links=unit.displaced_links or 0,
        ),
        correct=dict(zip(names, noisy.tolist(), strict=True)),
        scale=scale,
        checked={name: int(checked[k]) for name, k in zip(names, groups, strict=True)},
        epsilon=float(epsilon),
        delta=float(delta),
        mu=mu,
        unit=asdict(unit),
        statement=(
            f"({round_up(epsilon, 10)}, {round_up(delta, 10)})-differentially private. Protected is {unit.describe()} Taken as public, and the "
            "same for neighbours: the rows' groups, their sizes, which links were checked, and that an answer depends on the two "
            "records alone."
        ),
    )
