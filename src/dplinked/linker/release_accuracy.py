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
from dplinked.errors import LedgerError, StudyError, plain_faults, plain_number, raise_alone, shown
from dplinked.ledger.events import LedgerEntry
from dplinked.ledger.ledger import Ledger
from dplinked.linkage import ELE, PrivacyUnit
from dplinked.linkage.secret_sample import SecretSample
from dplinked.linker.accuracies import count_together, known_accuracies, name_counts
from dplinked.linker.joined import BLOCK
from dplinked.linker.linked import Linked
from dplinked.linker.rules import LATE, UNLINKED
from dplinked.privacy.calibration import privacy_mu, round_up
from dplinked.privacy.quantities.right_links import (
    changed_answers,
    plan_secret_links,
    release_right_links,
    release_secret_links,
    right_links_sensitivity,
)
from dplinked.privacy.secret_sample import calibrate_sample
from dplinked.privacy.spending import Spending
from dplinked.study.budget import check_release_budget
from dplinked.sums.clipped import RightLinks, SecretLinks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

GUESS = 0.9  # accuracy that is taken for links drawn in secret if none is guessed
_LEAST_SURPRISE = (
    30.0  # no set of rows is drawn in secret with a probability above e^-30, or it is not known again by its rows
)
_RELEASED: dict[
    str, str | None
] = {}  # secret samples that this process released from, and the ledger they were charged to
_SECRECY = (
    " It rests on a secret: who was checked, how many of each group, and the key by which they were drawn, are known to nobody who sees the release, and nothing else is "
    "released from what the check found."
)


@dataclass(frozen=True, repr=False)
class ReleasedAccuracy:
    """Linkage accuracies that were released with differential privacy. They are public from now on.

    Attributes
    ----------
    linkage
        The linkage model for `fit`, with the accuracies' standard errors and what they cost.
    correct, scale
        Noisy number of correct links in each group, or in several that were counted together, and the standard deviation of the noise.
    checked
        How many links of each of these were checked; of a secret sample, how many were to be expected.
    epsilon, delta, mu, unit
        What was spent, and the privacy unit it was spent for. A secret sample has no μ: ``linkage.paid`` says what it cost.
    statement
        The privacy guarantee in words.
    ledger
        What the ledger says about the charge, if there is a ledger.
    """

    linkage: ELE
    correct: dict[str, float]
    scale: float
    checked: dict[str, float]
    epsilon: float
    delta: float
    mu: float | None
    unit: dict[str, Any]
    statement: str
    ledger: LedgerEntry | None = None

    def __repr__(self) -> str:
        return f"<ReleasedAccuracy of {len(self.correct)} groups of links: {self.linkage!r}, epsilon={self.epsilon:g}, delta={self.delta:g}>"

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
    linked: Linked, *, epsilon: float, delta: float, unit: PrivacyUnit, guess: float | None = None, ledger: str | Path | None = None,
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
    guess
        For links that were drawn in secret: a public guess of the accuracy within blocks, 0.9 by default; links below the threshold or across blocks have one half. Choose it before anybody
        looks; it affects precision, never privacy. If it is off by .1, standard errors of an accuracy of .9 grow by a twentieth.
    ledger, population, ledger_key, release_id, again
        As in :func:`dplinked.fit`. Both files must be registered, and must not have changed since they were linked.

    Privacy
    -------
    (ε, δ)-differentially private for `unit`. This assumes that neighbours have the same groups of rows and the same checked
    links, and that a reviewer's answer to a link depends on its two records alone. Then one person can change at most
    2 + displaced_links answers. The groups, their sizes and the numbers of checked links are public. Where noise on each group's count would drown what the check found, groups are counted together:
    those of one kind (blocks, or links across blocks and at random). These public numbers and the noise decide that.

    Links that were drawn in secret (``audit_sample(…, key=…)``) take far less noise: who does not know whether a person's rows were drawn learns less from the counts. Then who was
    checked, and how many of each group, is neither public nor released, and must stay secret with the key. Nothing else may be released from the same sample: a second release is refused within this
    process, and by a ledger for good. A sample that came out empty is released like any other.
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
    if linked.carriers > 1:
        raise StudyError(
            "Released accuracies are for links that are one to one. With links='many-to-one' use linkage_by_identifiers, or declare public accuracies: dpl.ELE(…, carriers=…, source='public')."
        )
    if linked.audit.by is not None:
        raise StudyError(
            f"These links were drawn by the levels of {shown(linked.audit.by)}: a person who changes it would change which links are checked, and no noise on the counts covers that. Release what a "
            "sample without by=… found."
        )
    if unit.rows > 1:
        raise StudyError(
            "Accuracies are released for persons who have one row. With several, declare public accuracies, or those of a check of identifiers (linked.linkage_by_identifiers)."
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
    if linked.audit.secret is None and not (linked.audit.checked > 0).any():
        raise StudyError("No links were checked.")
    price = _price(linked, epsilon, delta, unit, guess)
    tag, rows = _told_apart(linked)
    _check_first(tag, ledger)
    if ledger is None:
        _remember(tag, ledger)
        return _release(linked, price, epsilon, delta, unit)
    book = Ledger(ledger, population, key=ledger_key)
    _check_unchanged(linked)
    links = book.know_links(tag, rows)
    # The ledger knows a request again by its fingerprint. Samples are told apart by their rows and links, or by their key if they are secret: were one taken for another that found the same, its
    # release would tell that they agree.
    answers = {"checked": linked.audit.checked.tolist(), "right": linked.audit.correct.tolist()}
    request = {
        "accuracy": book.fingerprint(answers), "files": book.check_registered(*linked.sources, unit=unit), "groups": list(linked.strata.names),
        "epsilon": epsilon, "delta": delta, "unit": unit.identity(),
        **({"sample": asdict(price), "key": links.key} if isinstance(price, SecretSample) else {"rows": links.rows}),
        "links": book.fingerprint({"right": linked.links.right.tolist()}),
    }  # fmt: skip
    _check_unchanged(linked)  # checked again: they must not have changed while they were fingerprinted either
    charge = book.reserve(release_id, request, price, again=again, links=links)
    _remember(tag, ledger)
    if charge.stored is not None:
        charge.tell_if_seen(release_id)
        return ReleasedAccuracy.from_json(charge.stored)
    with book.finishing(charge):
        released = _release(linked, price, epsilon, delta, unit)
        released = replace(released, ledger=charge.describe())
        book.record(charge, released.to_json())
    return released


def _check_first(tag: str | None, ledger: str | Path | None) -> None:
    """Refuse a second release from a secret sample, as far as this process knows of the first; of its own, a ledger knows more."""
    if tag is None or tag not in _RELEASED or (ledger is not None and _RELEASED[tag] == str(ledger)):
        return
    raise StudyError(
        "A release was made from this secret sample before, and a second one would tell who is in it. Use the first one. A ledger stores releases, and gives the same "
        "one when it is asked again."
    )


def _remember(tag: str | None, ledger: str | Path | None) -> None:
    """Remember that a secret sample is used, before anything is drawn."""
    if tag is not None:
        _RELEASED[tag] = None if ledger is None else str(ledger)


def _told_apart(linked: Linked) -> tuple[str | None, list[int] | None]:
    """The tag of a secret sample's key, and the checked rows, by which a ledger knows links again.

    Two samples may have the same rows by chance, and refusing the second would then tell who is in the first. So rows do not count unless each set of them is drawn in secret with
    a negligible probability, whatever it is: at most ``max(p, 1-p)^n``, n the number of rows that could be drawn.
    """
    assert linked.audit is not None
    assert linked.audit.rows is not None
    rows, secret = [linked.left.num_rows, *linked.audit.rows.tolist()], linked.audit.secret
    if secret is None:
        return None, rows
    names = np.array(linked.strata.names)
    surprise = -float(linked.strata.rows[names != UNLINKED].sum()) * np.log(max(secret.rate, 1.0 - secret.rate))
    return secret.tag, rows if surprise >= _LEAST_SURPRISE else None


def _check_unchanged(linked: Linked) -> None:
    """Refuse files that changed since they were linked: the ledger would name the new ones, and the release describe the old ones."""
    if tuple(map(source_state, linked.sources)) != linked.states:
        raise LedgerError("The files changed since they were linked. Nothing was spent. Link them again.")


def _release(
    linked: Linked, price: float | SecretSample, epsilon: float, delta: float, unit: PrivacyUnit
) -> ReleasedAccuracy:
    """Draw the noise, and estimate the accuracies from the noisy counts."""
    secret = isinstance(price, SecretSample)
    drawn = _draw_in_secret(linked, price) if isinstance(price, SecretSample) else _draw(linked, price, unit)
    names, groups = name_counts(linked.strata, drawn.parts), drawn.counted
    known = known_accuracies(
        linked.strata, drawn.correct, drawn.checked.astype(np.float64), drawn.scale, drawn.guess, drawn.parts
    )
    return ReleasedAccuracy(
        linkage=ELE(
            block=BLOCK,
            **known,
            source="released",
            paid=price,
            displaced_links=unit.displaced_links or 0,
            fields=linked.compared or None,
        ),
        correct={names[k]: float(drawn.correct[k]) for k in groups},
        scale=drawn.scale,
        checked={names[k]: drawn.checked[k].item() for k in groups},
        epsilon=float(epsilon),
        delta=float(delta),
        mu=None if isinstance(price, SecretSample) else price,
        unit=unit.identity(),
        statement=(
            f"({round_up(epsilon, 10)}, {round_up(delta, 10)})-differentially private. {unit.describe()} Taken as public, and the "
            f"same for neighbours: the rows' groups, their sizes, {'the chance of each row to be checked' if secret else 'which links were checked'}, and that an answer depends on the two "
            f"records alone.{_SECRECY if secret else ''}"
        ),
    )


@dataclass(frozen=True)
class _Drawn:
    """Which groups share a count, and which counts were released; of all counts the noisy numbers of right links, how many were checked and the guess that was subtracted; and the noise."""

    parts: Integers
    counted: Integers
    correct: Floats
    checked: Integers | Floats
    scale: float
    guess: Floats | None = None


def _draw(linked: Linked, mu: float, unit: PrivacyUnit) -> _Drawn:
    """Release the right links of the groups with checked ones."""
    exposure, spending = ELE(0.5, BLOCK).exposure(unit), Spending(mu)
    correct, checked = _counts(linked)
    parts = count_together(linked.strata, checked, right_links_sensitivity(exposure) / mu)
    correct, checked = _added(parts, correct), _added(parts, checked)
    counted, noisy = np.flatnonzero(checked > 0), np.zeros(checked.size)
    noisy[counted] = release_right_links(RightLinks(correct[counted], int(checked.sum()), exposure), spending)
    return _Drawn(parts, counted, noisy, checked, spending.parts[0].scale)


def _draw_in_secret(linked: Linked, sample: SecretSample) -> _Drawn:
    """Release the right links of a secret sample, of all groups, with numbers of checked links as they are expected.

    Notes
    -----
    How many links of a group were drawn is secret too, so that ``Σ(answer - guess)`` over the drawn ones is put beside the expected number p·n of them: its expectation is
    ``p·n·(γ - guess)``, its variance ``p(1-p)n·(γ(1-γ) + (γ - guess)²)``. Right links alone, over the expected number, have γ in place of the last bracket, ten times as
    much at γ = .9. A noisy number of drawn links would tell of the sample, and would have to be paid for.
    """
    names, n = np.array(linked.strata.names), linked.left.num_rows
    expected = np.where(names == UNLINKED, 0.0, sample.rate * linked.strata.rows)
    parts = count_together(linked.strata, expected, sample.scale)
    correct, checked = (_added(parts, counts) for counts in _counts(linked))
    expected = np.bincount(parts, expected)
    counted, noisy = np.unique(parts[names != UNLINKED]), np.zeros(expected.size)
    late = np.bincount(parts, ~np.isin(names, LATE)) == 0
    guess = np.where(late, 0.5, sample.guess)  # one half moves the counts less than any other guess
    noisy[counted] = release_secret_links(SecretLinks(correct[counted], checked[counted], n), sample, guess[counted])
    scale = plan_secret_links(counted.size, sample, n).parts[0].scale
    return _Drawn(parts, counted, noisy + guess * expected, expected, scale, guess)


def _added(parts: Integers, counts: Integers) -> Integers:
    """Counts of groups, added up over those that share a count."""
    return np.bincount(parts, counts).astype(np.int64)


def _counts(linked: Linked) -> tuple[Integers, Integers]:
    """Right and checked links of each group."""
    assert linked.audit is not None
    assert linked.audit.correct is not None
    assert linked.audit.checked is not None
    return linked.audit.correct, linked.audit.checked


def _price(
    linked: Linked, epsilon: float, delta: float, unit: PrivacyUnit, guess: float | None
) -> float | SecretSample:
    """What the release costs: its μ, or the noise of its secret sample."""
    secret = linked.audit.secret if linked.audit is not None else None
    if secret is None:
        if guess is not None:
            raise StudyError(
                "guess=… belongs to links that were drawn in secret: audit_sample(size, key=…), audited(…, key=…, size=…)."
            )
        return privacy_mu(epsilon, delta)
    guess = GUESS if guess is None else plain_number(guess)
    if not 0.0 <= guess <= 1.0:
        raise StudyError("guess must be a public accuracy, from 0 to 1.")
    return calibrate_sample(secret.rate, changed_answers(ELE(0.5, BLOCK).exposure(unit)), guess, epsilon, delta)
