"""What the steward declares, all of it public: from arguments or a TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dplinked.design import Design, build_design
from dplinked.errors import StudyError, raise_alone, suggest
from dplinked.linkage import ELE, UNSTATED, Exact, Linkage, LinkageExposure, Matching, PrivacyUnit
from dplinked.linkage.model import LINK_BLOCK
from dplinked.privacy.calibration import check_budget
from dplinked.privacy.plan import Descent
from dplinked.tables import Query, SparkTable

_METHODS = ("ssp", "ngd")
_CALIBRATIONS = ("tight", "paper")
_RANGES = ("declared", "private")
_LARGE_EPSILON = 10.0
_SMALLEST = 1e-30


@dataclass(frozen=True)
class Study:
    """A study: model, bounds, linkage, privacy unit and budget. See :func:`dplinked.fit` for the parameters."""

    formula: str
    bounds: Mapping[str, Sequence[float]]
    epsilon: float
    delta: float
    linkage: Linkage
    unit: PrivacyUnit = UNSTATED
    levels: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    method: str = "ssp"
    calibration: str = "tight"
    typical: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ranges: str = "declared"
    fill: Mapping[str, float] = field(default_factory=dict)
    descent: Descent | None = None
    response_bound: float | None = None
    row_norm: float | None = None
    ridge: float | None = None
    large_epsilon: bool = False
    intervals: bool = True
    data: Path | Query | SparkTable | None = None
    ledger: str | Path | None = field(default=None, repr=False)  # it may hold a password
    population: str | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        for name in ("large_epsilon", "intervals"):
            if type(getattr(self, name)).__name__ not in ("bool", "bool_"):  # NumPy's too
                raise StudyError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        for name in ("epsilon", "delta"):  # NumPy's numbers would not go into the release's JSON
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.epsilon > _LARGE_EPSILON and not self.large_epsilon:
            raise StudyError(_too_large(self.epsilon))
        for name, allowed in (("method", _METHODS), ("calibration", _CALIBRATIONS), ("ranges", _RANGES)):
            if getattr(self, name) not in allowed:
                raise StudyError(f"{name} must be one of {list(allowed)}, not {getattr(self, name)!r}.")
        if not isinstance(self.linkage, (Exact, ELE, Matching)):
            raise StudyError(
                "Say how the rows were linked: linkage=dpl.ELE(accuracy=…, block=…) for links that can be wrong, "
                "dpl.Exact() for a join on a unique key, dpl.Matching(…) for a matching matrix."
            )
        if not isinstance(self.unit, PrivacyUnit):
            raise StudyError(f"unit must be a dpl.PrivacyUnit, not {type(self.unit).__name__}.")
        if isinstance(self.linkage, ELE):
            self.linkage.check_source(self.unit)
            found = self.linkage.source != "public" or self.linkage.block == LINK_BLOCK
            if found and self.unit is UNSTATED:
                raise StudyError(
                    "Linking the files does not tell what one person's identifiers may change about the links. State it: "
                    "unit=dpl.PrivacyUnit(moves_block=…, displaced_links=…); PrivacyUnit() holds links and blocks fixed."
                )
        for name in ("response_bound", "row_norm"):
            _check_positive(name, getattr(self, name))
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
            if getattr(self, name) is not None and self.calibration != "paper":
                raise StudyError(f"{name} belongs to calibration='paper'; the tight one clips to the declared bounds.")
        if self.ridge is not None and not (math.isfinite(self.ridge) and self.ridge >= 0):
            raise StudyError(f"ridge must be a finite number, 0 or more, not {self.ridge!r}.")
        if self.ridge is not None:
            object.__setattr__(self, "ridge", float(self.ridge))
        self._check_combination()

    def _check_combination(self) -> None:
        if self.method == "ngd" and self.calibration == "paper" and (self.descent is None or self.descent.step is None):
            raise StudyError(
                "Algorithm 1 needs declared settings: descent=dpl.Descent(radius=C, step=η, iterations=T). "
                "Reading them off the data would not be private."
            )
        if self.method == "ngd" and self.ridge is not None:
            raise StudyError("ridge belongs to method='ssp'.")
        if self.method == "ssp" and self.descent is not None:
            raise StudyError("descent belongs to method='ngd'.")
        if self.ranges == "private" and (self.calibration == "paper" or self.method == "ngd"):
            raise StudyError(
                "ranges='private' aims the bounded instrument: use it with method='ssp', calibration='tight'."
            )

    def prepare(self) -> tuple[Design, LinkageExposure]:
        """Check all declarations against each other; nothing of the data is needed."""
        design = build_design(self.formula, self.bounds, self.levels, self.typical, self.fill)
        return design, self.linkage.exposure(self.unit)

    def request(self, fingerprints: Sequence[str]) -> dict[str, Any]:
        """All that decides what a release answers, to tell one request from another."""
        skipped = ("data", "ledger", "population", "linkage")
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skipped}
        return {**settings, "linkage": self.linkage.identity(), "data": list(fingerprints)}

    def check_count(self, count: int) -> None:
        """Check the public number of rows against the budget."""
        if count < 1:
            raise StudyError("The data has no rows.")
        if self.delta >= 1.0 / count:
            raise StudyError(_not_below(self.delta, count))

    @classmethod
    def from_toml(cls, path: str | Path) -> Study:
        """Read a study file; a relative data path counts from the file's folder."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise StudyError(f"The study file {path.name!r} cannot be read.") from None
        return cls.from_text(text, path.parent, name=path.name)

    @classmethod
    def from_text(cls, text: str, folder: str | Path, *, name: str = "study.toml") -> Study:
        """Read the text of a study file; a relative data path counts from the folder."""
        try:
            declared = tomllib.loads(text)
        except tomllib.TOMLDecodeError as fault:
            raise StudyError(f"The study file {name!r} is not valid TOML: {fault}.") from None
        return _study_from(declared, Path(folder))


def check_release_budget(epsilon: float, delta: float, count: int) -> None:
    """Check the budget of a release outside a study against itself and the public number of rows."""
    check_budget(epsilon, delta)
    if epsilon > _LARGE_EPSILON:
        raise StudyError(_too_large(epsilon))
    if delta >= 1.0 / count:
        raise StudyError(_not_below(delta, count))


def _too_large(epsilon: float) -> str:
    return (
        f"epsilon={epsilon:g} protects next to nothing. If that is meant, say large_epsilon=True; "
        "usual values lie between 0.1 and 3."
    )


def _not_below(delta: float, count: int) -> str:
    return (
        f"delta={delta:g} is not below 1/n = {1.0 / count:.3g}: it would allow publishing one person's "
        f"record outright. Use something like {0.1 / count:.1g} or smaller."
    )


_SECTIONS: dict[str, tuple[str, ...]] = {
    "data": ("path", "query", "attach", "spark"),
    "model": ("formula", "method", "calibration", "ranges", "ridge", "intervals"),
    "bounds": (),
    "levels": (),
    "typical": (),
    "fill": (),
    "linkage": (
        "model",
        "accuracy",
        "block",
        "other",
        "checked",
        "accuracy_error",
        "source",
        "accuracy_min",
        "paid",
        "displaced_links",
    ),
    "unit": ("moves_block", "displaced_links", "linkage_change"),
    "privacy": ("epsilon", "delta", "large_epsilon"),
    "descent": ("radius", "step", "iterations"),
    "paper": ("response_bound", "row_norm"),
    "ledger": ("url", "population"),
}


def _study_from(declared: Mapping[str, Any], folder: Path) -> Study:
    for heading, values in declared.items():
        if heading not in _SECTIONS:
            raise StudyError(f"The study has an unknown section [{heading}].{suggest(heading, _SECTIONS)}")
        if not isinstance(values, dict):
            raise StudyError(f"The study's {heading!r} must be a section: write [{heading}].")
        for key in values if _SECTIONS[heading] else ():
            if key not in _SECTIONS[heading]:
                raise StudyError(f"[{heading}] has an unknown key {key!r}.{suggest(key, _SECTIONS[heading])}")

    def section(name: str, *required: str) -> dict[str, Any]:
        values = dict(declared.get(name, {}))
        for key in required:
            if key not in values:
                raise StudyError(f"The study lacks {key!r} in [{name}].")
        return values

    model, privacy = section("model", "formula"), section("privacy", "epsilon", "delta")
    try:
        study = Study(
            bounds=section("bounds"),
            linkage=_linkage_from(section("linkage", *([] if "linkage" in declared else ["accuracy"]))),
            unit=PrivacyUnit(**section("unit")) if "unit" in declared else UNSTATED,
            levels=section("levels"),
            typical=section("typical"),
            fill=section("fill"),
            descent=Descent(**section("descent")) if "descent" in declared else None,
            data=_data_from(section("data"), folder),
            ledger=_ledger_from(section("ledger", *(["url"] if "ledger" in declared else [])), folder),
            population=section("ledger").get("population"),
            **model,
            **privacy,
            **section("paper"),
        )
        study.prepare()
        return study
    except StudyError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise_alone(
            StudyError("A value in the study file has the wrong type or size: numbers must be numbers, tables tables.")
        )


def _data_from(declared: dict[str, Any], folder: Path) -> Path | Query | SparkTable | None:
    """Where the rows are; relative paths count from the study's folder."""
    kinds = [kind for kind in ("path", "query", "spark") if kind in declared]
    if len(kinds) > 1 or ("attach" in declared and kinds != ["query"]):
        raise StudyError("[data] takes one of path, query and spark; attach belongs to query.")
    if not kinds:
        return None
    value, attach = declared[kinds[0]], declared.get("attach", {})
    if (
        not isinstance(value, str)
        or not isinstance(attach, dict)
        or not all(isinstance(db, str) for db in attach.values())
    ):
        raise StudyError('In [data] path, query and spark are texts, and attach = { name = "database" }.')
    if kinds == ["path"]:
        return folder / value
    return SparkTable(value) if kinds == ["spark"] else Query(value, attach, folder)


def _ledger_from(declared: dict[str, Any], folder: Path) -> str | None:
    """The ledger's address; a relative path of a SQLite file counts from the study's folder."""
    url = declared.get("url")
    if url is None or not isinstance(url, str):
        if url is None:
            return None
        raise StudyError("The ledger's url must be a text: a path, sqlite:///path or postgresql://….")
    if "://" in url and not url.startswith("sqlite:///"):
        return url
    return str(folder / url.removeprefix("sqlite:///"))


def _linkage_from(declared: dict[str, Any]) -> Linkage:
    kind = declared.pop("model", "ele")
    if kind == "exact":
        if declared:
            raise StudyError(f"[linkage] model = 'exact' takes no {sorted(declared)}.")
        return Exact()
    if kind != "ele":
        raise StudyError(f"[linkage] model must be 'ele' or 'exact', not {kind!r}.")
    if "accuracy" not in declared:
        raise StudyError("The study lacks 'accuracy' in [linkage]. For a join on a unique key, write model = 'exact'.")
    return ELE(**declared)


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and _SMALLEST <= value <= 1.0 / _SMALLEST):
        raise StudyError(
            f"{name} must be a finite number above 0 (from {_SMALLEST:g} to {1.0 / _SMALLEST:g}), not {value!r}."
        )
