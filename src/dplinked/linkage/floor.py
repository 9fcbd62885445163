"""The least that a study may assume about the links of registered data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dplinked.linkage.exact import Exact
from dplinked.linkage.matching import Matching
from dplinked.linkage.unit import PrivacyUnit

if TYPE_CHECKING:
    from dplinked.linkage import Linkage


@dataclass(frozen=True)
class LinkageFloor:
    """What the steward states about links when data is registered. A study of the data may protect more than this, never less.

    Attributes
    ----------
    linked
        Whether the data is linked rows at all. Files that are only linked later have links that nobody can state yet.
    exact
        Whether rows were joined on a unique key.
    keys
        Columns of blocks and ids. Their cells are public, unless the unit says otherwise, so no other column may serve as one.
    carriers
        How many rows may hold one person's response.
    moves_block, displaced_links, linkage_change
        As in :class:`~dplinked.PrivacyUnit`.
    rows, id, response_id
        How many rows one person may have, and by which columns these are known.
    column_sum, accuracy_min
        As in :class:`~dplinked.Matching`; None for other models. Whether a matrix is as declared is seen from the matrix, so tighter limits
        than were registered would ask about it, and for too little noise besides.
    """

    linked: bool
    exact: bool
    keys: tuple[str, ...]
    carriers: int
    moves_block: bool
    displaced_links: int
    linkage_change: float
    column_sum: float | None = None
    accuracy_min: float | None = None
    rows: int = 1
    id: str | None = None
    response_id: str | None = None

    @classmethod
    def of(cls, linkage: Linkage | None, unit: PrivacyUnit) -> LinkageFloor:
        """What a linkage model and a unit state. Without a linkage model, the data is a file that is yet to be linked."""
        named = (getattr(linkage, "block", None), getattr(linkage, "id", None), *unit.ids)
        return cls(
            linked=linkage is not None,
            exact=isinstance(linkage, Exact),
            keys=tuple(name for name in named if name is not None),
            carriers=getattr(linkage, "carriers", 1),
            moves_block=unit.moves_block,
            displaced_links=unit.displaced_links or 0,
            linkage_change=unit.linkage_change or 0.0,
            column_sum=linkage.column_sum if isinstance(linkage, Matching) else None,
            accuracy_min=linkage.accuracy_min if isinstance(linkage, Matching) else None,
            rows=unit.rows,
            id=unit.id,
            response_id=unit.response_id,
        )

    def undercut_by(self, study: LinkageFloor) -> str | None:
        """Say what a study must state that assumes less than was registered; None for a study that does not."""
        if not study.linked:
            study = replace(study, exact=self.exact, carriers=self.carriers)
        rules = {
            "moves_block must be true": study.moves_block >= self.moves_block,
            f"displaced_links must be at least {self.displaced_links}": study.displaced_links >= self.displaced_links,
            f"linkage_change must be at least {self.linkage_change:g}": study.linkage_change >= self.linkage_change,
            "the data was registered without its links": self.linked or not study.linked,
            "the links can be wrong, so they are not exact": self.exact or not study.exact,
            f"no columns but {list(self.keys)} hold blocks or ids": set(study.keys) <= set(self.keys),
            f"carriers must be at least {self.carriers}": study.carriers >= self.carriers,
            f"rows must be at least {self.rows}": study.rows >= self.rows,
            f"id must be {self.id!r} and response_id {self.response_id!r}": self.rows == 1
            or (study.id, study.response_id) == (self.id, self.response_id),
            **self._matrix_rules(study),
        }
        return next((rule for rule, holds in rules.items() if not holds), None)

    def _matrix_rules(self, study: LinkageFloor) -> dict[str, bool]:
        """What must hold of the declared limits of a matching matrix, where there is one on both sides."""
        rules = {}
        if self.column_sum is not None and study.column_sum is not None:
            rules[f"column_sum must be at least {self.column_sum!r}"] = study.column_sum >= self.column_sum
        if self.accuracy_min is not None and study.accuracy_min is not None:
            rules[f"accuracy_min must be at most {self.accuracy_min!r}"] = study.accuracy_min <= self.accuracy_min
        return rules
