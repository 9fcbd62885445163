"""Rows joined on a unique key: no link can be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dplinked.errors import StudyError
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.linkage.unit import LinkageExposure, PrivacyUnit


@dataclass(frozen=True)
class Exact:
    """Rows were joined on a unique key: every link is right by construction.

    Not the same as ``ELE(accuracy=1)``. A perfect accuracy is a statistical claim about links that may
    still be wrong, and needs more noise; a join on a unique key cannot put a response on another row.
    """

    block: None = field(default=None, init=False)

    @property
    def public(self) -> Exact:
        """The part of the model that may be used outside the sums: all of it."""
        return self

    @property
    def mean_accuracy(self) -> float:
        """Share of links that are correct."""
        return 1.0

    def identity(self) -> dict[str, Any]:
        """What distinguishes this model from others in a ledger's request."""
        return {"model": "Exact"}

    def exposure(self, unit: PrivacyUnit) -> LinkageExposure:
        """See :class:`LinkageExposure`."""
        if unit.moves_block or unit.displaced_links or unit.linkage_change:
            raise StudyError(
                "Exact() is a join on a unique key: identifiers cannot displace links. "
                "Use PrivacyUnit() with it, or ELE(accuracy=…) for links that can be wrong."
            )
        return LinkageExposure(True, True, 1.0, 1.0, 0.0, 0, persons=unit.rows)

    def describe(self) -> DeclaredLinkage:
        """Return what a release shows of the model."""
        return DeclaredLinkage("Exact")


EXACT = Exact().exposure(PrivacyUnit())  # rows by themselves, without their links
