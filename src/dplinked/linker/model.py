"""A linkage model that is kept: how often fields agree for matches and for others, with the settings, to link new records without training again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dplinked.errors import StudyError, raise_alone, shown
from dplinked.linker.evidence import Evidence, evidence_of
from dplinked.linker.fields import Field

ASSIGNMENTS = ("optimal", "greedy")
_MARK, _FORMAT = "dplinked_linkage_model", 1
_ABOUT = "FOR THE STEWARD, NOT FOR PUBLICATION: how often fields agree was read from identifiers without noise."


@dataclass(frozen=True, repr=False)
class LinkageModel:
    """What linking new records takes from files that were linked before. FOR THE STEWARD: it is read from identifiers without noise.

    Attributes
    ----------
    method, fields, blocks, threshold, assignment
        How records are linked: see :func:`dplinked.link`.
    evidence
        For rules: how often each level of agreement occurs among matches (m) and others (u), in each field.
    looked_at
        Columns that the evidence was found by: fields and blocks, also of models that it was taken from.
    settings, own
        For Splink: its trained settings, and whether they were given, so that they take columns in their own types.
    """

    method: str
    fields: tuple[Field, ...]
    blocks: tuple[str, ...]
    threshold: float | None
    assignment: str
    evidence: Evidence | None = None
    settings: dict[str, Any] | None = None
    own: bool = False
    looked_at: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"LinkageModel(method={self.method!r}, {len(self.fields)} fields)"

    def save(self, path: str | Path) -> None:
        """Write the model to a JSON file."""
        told: dict[str, Any] = {_MARK: _FORMAT, "about": _ABOUT, "method": self.method}
        told |= {"fields": [asdict(field) for field in self.fields], "blocks": list(self.blocks)}
        told |= {"threshold": self.threshold, "assignment": self.assignment, "looked_at": list(self.looked_at)}
        if self.evidence is not None:
            told |= {"m": [part.tolist() for part in self.evidence.matches]}
            told |= {"u": [part.tolist() for part in self.evidence.others]}
        else:
            told |= {"settings": self.settings, "own": self.own}
        try:
            Path(path).write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError:
            raise_alone(
                StudyError(f"{shown(Path(path).name)} could not be written. Name a file in a folder that is there.")
            )


def load_model(path: str | Path | LinkageModel) -> LinkageModel:
    """Read a model that :meth:`dplinked.Linked.save_model` wrote."""
    if isinstance(path, LinkageModel):
        return path
    if not isinstance(path, (str, Path)):
        raise StudyError(f"model must be the path of a file that linked.save_model wrote, not {shown(path)}.")
    try:
        return _read(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise_alone(
            StudyError(
                f"{shown(Path(path).name)} is no linkage model that this version of dplinked can read. Give the file that linked.save_model wrote."
            )
        )


def _read(told: dict[str, Any]) -> LinkageModel:
    """The model that a file tells of; anything else raises."""
    listed = all(isinstance(told[name], list) for name in ("fields", "blocks", "looked_at"))
    if told[_MARK] != _FORMAT or told["method"] not in ("rules", "splink") or not (listed and told["fields"]):
        raise ValueError
    if told["assignment"] not in ASSIGNMENTS:
        raise ValueError
    fields = tuple(Field(**field) for field in told["fields"])
    rules, evidence = told["method"] == "rules", None
    if rules:
        evidence = evidence_of(*([np.array(part, dtype=np.float64) for part in told[name]] for name in ("m", "u")))
        sizes = [len(field.grades) + 1 for field in fields]
        if any([part.size for part in side] != sizes for side in (evidence.matches, evidence.others)):
            raise ValueError
    return LinkageModel(
        told["method"], fields, tuple(map(str, told["blocks"])), told["threshold"], told["assignment"], evidence,
        None if rules else dict(told["settings"]), not rules and told["own"] is True, tuple(map(str, told["looked_at"])),
    )  # fmt: skip
