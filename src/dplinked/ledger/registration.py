"""By what a ledger knows data and links again: keyed fingerprints of where they are and of what they hold."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dplinked.data.fingerprint import source_place
from dplinked.errors import LedgerError, StudyError, raise_alone
from dplinked.ledger.events import Event, canonical
from dplinked.linkage import Linkage, LinkageFloor, Matching

REFUSED = (
    "This data is not registered for the budget, or not at this place, or it has changed since. Nothing was spent. The steward registers the data "
    "of a study with 'dplinked budget register'."
)
PAIRS_REFUSED = (
    "The pairs of the matching matrix are not registered with this data, or not at this place, or they have changed since. Nothing was spent. The "
    "steward registers the data of a study and its links with 'dplinked budget register'."
)


@dataclass(frozen=True)
class CheckedLinks:
    """By what checked links are known again in all populations of a ledger: fingerprints of the key of a secret sample and of the rows, None where they do not count."""

    key: str | None
    rows: str | None

    def are(self, earlier: CheckedLinks, secret: bool) -> bool:
        """Whether they are the links of an earlier release. Equal rows matter if either of the two samples is `secret`."""
        same_key = self.key is not None and self.key == earlier.key
        return same_key or (secret and self.rows is not None and self.rows == earlier.rows)


@dataclass(frozen=True)
class Registration:
    """Data that was registered: the fingerprints of its place and of its content, and what was stated about its links.

    With a matching matrix, the fingerprints of the place and of the content of its pairs too: they are data about the same people.
    """

    place: str
    content: str
    floor: LinkageFloor
    pairs: tuple[str, str] | None = None

    def names(self, other: Registration) -> bool:
        """Whether both are of the same data."""
        return (self.place, self.content) == (other.place, other.content)


def read_registrations(events: Iterable[Event]) -> list[Registration]:
    """All registered data. Versions before 0.2 wrote down neither place nor links: what they registered is registered anew."""
    bodies = [(event.request, json.loads(event.body)) for event in events]
    return [
        Registration(
            body["place"],
            str(content),
            LinkageFloor(**{**body["floor"], "keys": tuple(body["floor"]["keys"])}),
            tuple(body["pairs"]) if "pairs" in body else None,
        )
        for content, body in bodies
        if body
    ]


def allowed_at(place: str, registered: Iterable[Registration], study: LinkageFloor) -> list[Registration]:
    """What was registered at a place, with no more about the links than a study states. Other places are refused, and so is a study that assumes less."""
    here = {known.content: known for known in registered if known.place == place}  # what was stated last counts
    if not here:
        raise LedgerError(REFUSED)
    allowed = [known for known in here.values() if known.floor.undercut_by(study) is None]
    if not allowed:
        raise StudyError(
            f"The study assumes less about the links than the steward registered with the data: {[*here.values()][-1].floor.undercut_by(study)}. Nothing "
            "was spent. State that, or have the data registered anew with what holds: 'dplinked budget register'."
        )
    return allowed


def with_pairs(
    known: Sequence[Registration], part: int, linkage: Linkage | None, find: Callable[[Matching], str]
) -> Sequence[Registration]:
    """The registrations whose pairs are at the same place (part 0), or hold the same (part 1), as those of a linkage, if it has any."""
    if not isinstance(linkage, Matching):
        return known
    found = found_or_refused(lambda: find(linkage), PAIRS_REFUSED)
    same = [one for one in known if one.pairs is not None and one.pairs[part] == found]
    if not same:
        raise LedgerError(PAIRS_REFUSED)
    return same


def find_content(digest: hmac.HMAC, content: Iterable[bytes], source: Any) -> str:
    """Fingerprint of the content of a source."""
    try:
        for piece in content:
            digest.update(piece)
    except OSError:
        name = f" {Path(source).name!r}" if isinstance(source, (str, Path)) else ""
        raise_alone(StudyError(f"The file{name} cannot be read. Nothing was spent. Check its permissions."))
    return digest.hexdigest()


def find_pairs(digest: hmac.HMAC, linkage: Matching) -> str:
    """Fingerprint of a matching matrix."""
    return find_content(digest, linkage.content(), linkage.pairs)


def find_place(digest: hmac.HMAC, data: Any) -> str:
    """Fingerprint of the place of data; of a matching matrix, that is the place of its file, if it has one."""
    digest.update(canonical(source_place(data)).encode())
    return digest.hexdigest()


def found_or_refused(find: Callable[[], str], refusal: str) -> str:
    """A fingerprint. What cannot be found or read is not what was registered, and is refused with the same message."""
    try:
        return find()
    except LedgerError:
        raise
    except Exception:
        raise_alone(LedgerError(refusal))
