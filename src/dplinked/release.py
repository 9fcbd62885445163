"""The released result: frozen, complete, and made of released and declared values only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError

Floats = NDArray[np.float64]

FORMAT = 1


@dataclass(frozen=True)
class Privacy:
    """What is promised: (ε, δ), the μ actually used, for whom, and what was taken as public."""

    epsilon: float
    delta: float
    mu: float
    unit: dict[str, Any]
    statement: str
    assumed_public: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """A differentially private regression result.

    Attributes
    ----------
    coef
        Coefficients in the user's units.
    noise_std_err
        Standard error of each coefficient that privacy noise causes (with shrinkage, where there is some).
        Sampling and linkage error come on top and are not in it.
    identified
        False where privacy noise alone exceeds the declared range of the coefficient: the budget does not
        tell it from any other value in its range.
    released
        The released sums (or descent transcript) with the exact noise scale of every entry.
    scaling
        Public constants that map scaled columns to the user's units.
    """

    formula: str
    method: str
    calibration: str
    count: int
    coef: dict[str, float]
    noise_std_err: dict[str, float]
    identified: dict[str, bool]
    covariance: tuple[tuple[float, ...], ...]
    privacy: Privacy
    linkage: dict[str, Any]
    released: dict[str, Any]
    scaling: dict[str, Any]
    versions: dict[str, str]

    def summary(self) -> str:
        """Return the result as a table of text, with the privacy statement under it."""
        from dplinked.report.text import render_text

        return render_text(self)

    def to_markdown(self) -> str:
        """Return the result as Markdown."""
        from dplinked.report.text import render_markdown

        return render_markdown(self)

    def __str__(self) -> str:
        return self.summary()

    def to_json(self) -> str:
        """Return the result as JSON text."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["privacy"] = vars(self.privacy)
        return json.dumps({"dplinked_release": FORMAT, **fields}, indent=1, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Release:
        """Read a release back from JSON text."""
        try:
            fields = json.loads(text)
            if fields.pop("dplinked_release") != FORMAT:
                raise KeyError
            privacy = fields.pop("privacy")
            privacy["assumed_public"] = tuple(privacy["assumed_public"])
            fields["covariance"] = tuple(tuple(row) for row in fields["covariance"])
            return cls(privacy=Privacy(**privacy), **fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StudyError("This is not a release that this version of dplinked can read.") from None

    def save(self, path: str | Path) -> None:
        """Write the release to a JSON file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Release:
        """Read a release from a JSON file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise StudyError(
                f"{Path(path).name!r} cannot be read. Give the JSON file that 'fit --out' wrote."
            ) from None
        return cls.from_json(text)
