"""What the steward declares, all of it public: from arguments or a TOML file."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from dplinked.data.format import File
from dplinked.data.sources import Query, SparkTable
from dplinked.errors import StudyError, plain_faults, plain_number, raise_alone, shown, suggest
from dplinked.linkage import ELE, UNSTATED, Exact, Linkage, LinkageExposure, Matching, PrivacyUnit
from dplinked.linkage.compared import find_compared
from dplinked.linkage.ele import LINK_BLOCK, RESULTS_OF_LINKING
from dplinked.records import PlainlyShown
from dplinked.study.budget import check_budget, check_delta, check_size
from dplinked.study.build import build_design
from dplinked.study.descent import Descent
from dplinked.study.design import Design
from dplinked.study.family import FAMILIES
from dplinked.study.formula import parse_formula
from dplinked.study.several import split_levels, split_outcomes
from dplinked.study.toml import read_settings

_METHODS = ("ssp", "ngd")
_CALIBRATIONS = ("tight", "paper")
_RANGES = ("auto", "declared", "private")
_ERRORS = ("any", "symmetric", "skewed")
_MISSING = ("drop", "fill")
_RANGES_IN_LEDGERS = {
    "auto": "declared",
    "declared": "none",
    "private": "private",
}  # where nothing is said, as 0.1.0 wrote it
_SMALLEST, _LARGEST = 1e-30, 1e30
_LONGEST_UNIT = 40  # letters


@dataclass(frozen=True, repr=False)
class Study(PlainlyShown):
    """A study: model, bounds, linkage, privacy unit and budget. See :func:`dplinked.fit` for the parameters."""

    formula: str
    bounds: Mapping[str, Sequence[float]] = field(repr=False)
    epsilon: float
    delta: float
    linkage: Linkage
    unit: PrivacyUnit = UNSTATED
    levels: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)
    method: str = "ssp"
    calibration: str = "tight"
    typical: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)
    ranges: str = "auto"
    fill: Mapping[str, float] = field(default_factory=dict, repr=False)
    descent: Descent | None = None
    response_bound: float | None = None
    row_norm: float | None = None
    ridge: float | None = None
    large_epsilon: bool = False
    intervals: bool = True
    data: Path | File | Query | SparkTable | None = field(default=None, repr=False)
    ledger: str | Path | None = field(default=None, repr=False)  # it may hold a password
    population: str | None = None
    ledger_key: str | Path | None = field(default=None, repr=False)
    errors: str = "any"
    family: str = "linear"
    exposure: str | None = None
    missing: str = "drop"
    weights: str | None = None
    where: str | None = None
    by: str | None = None
    cluster: str | None = None
    strata: str | None = None
    goodness: bool = False
    units: Mapping[str, str] = field(default_factory=dict, repr=False)

    @plain_faults
    def __post_init__(self) -> None:
        self._check_types()
        check_budget(self.epsilon, self.delta)
        for name in ("large_epsilon", "intervals", "goodness"):
            if type(getattr(self, name)).__name__ not in ("bool", "bool_"):  # NumPy's too
                raise StudyError(f"{name} must be true or false, not {shown(getattr(self, name))}.")
        for name in ("epsilon", "delta"):  # NumPy's numbers would not go into the release's JSON
            object.__setattr__(self, name, float(getattr(self, name)))
        if not self.large_epsilon:
            check_size(self.epsilon)
        choices = {
            "method": _METHODS,
            "calibration": _CALIBRATIONS,
            "ranges": _RANGES,
            "errors": _ERRORS,
            "family": FAMILIES,
            "missing": _MISSING,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise StudyError(f"{name} must be one of {list(allowed)}, not {shown(getattr(self, name))}.")
        if not isinstance(self.linkage, (Exact, ELE, Matching)):
            raise StudyError(
                "Say how the rows were linked: linkage=dpl.ELE(accuracy=…, block=…) for links that can be wrong, "
                "dpl.Exact() for a join on a unique key, dpl.Matching(…) for a matching matrix."
            )
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
        if self.ridge is not None and not 0.0 <= plain_number(self.ridge) < math.inf:
            raise StudyError(f"ridge must be a finite number, 0 or more, not {shown(self.ridge)}.")
        if self.ridge is not None:
            object.__setattr__(self, "ridge", float(self.ridge))
        self._check_combination()

    def _check_types(self) -> None:
        """Refuse settings of another type, in whose place rows may stand. What is refused is told by its type only."""
        if not isinstance(self.formula, str):
            raise StudyError(
                f"formula must be a text like 'consumption ~ income', not {shown(self.formula)}. The data comes first, then the formula: "
                "dpl.fit(data, formula, …)."
            )
        for name in ("bounds", "levels", "typical", "fill", "units"):
            if not isinstance(getattr(self, name), Mapping):
                raise StudyError(
                    f"{name} must be a mapping from columns' names, like {name}={{'income': …}}, not {shown(getattr(self, name))}."
                )
        optional = ("population", "exposure", "weights", "where", "by", "cluster", "strata")
        for name in ("method", "calibration", "ranges", "errors", "family", "missing", *optional):
            left_out = name in optional and getattr(self, name) is None
            if not isinstance(getattr(self, name), str) and not left_out:
                raise StudyError(f"{name} must be a text, not {shown(getattr(self, name))}.")
        if self.ledger is not None and not isinstance(self.ledger, (str, PathLike)):
            raise StudyError(f"ledger must be a path or an address, not {shown(self.ledger)}.")
        if not isinstance(self.unit, PrivacyUnit):
            raise StudyError(f"unit must be a dpl.PrivacyUnit, not {shown(self.unit)}.")
        if self.descent is not None and not isinstance(self.descent, Descent):
            raise StudyError(f"descent must be a dpl.Descent, not {shown(self.descent)}.")

    def _check_combination(self) -> None:
        declared = self.descent is not None and (self.descent.step is not None or self.descent.curvature is not None)
        if self.method == "ngd" and self.calibration == "paper" and not declared:
            raise StudyError(
                "Algorithm 1 needs declared settings: descent=dpl.Descent(radius=C, step=η, iterations=T), or dpl.Descent(radius=C, curvature=L). "
                "Reading them off the data would not be private."
            )
        if self.calibration == "tight" and self.descent is not None and self.descent.curvature is not None:
            raise StudyError(
                "The descent's curvature belongs to calibration='paper'; the tight descent has steps of its own."
            )
        if self.method == "ngd" and self.ridge is not None:
            raise StudyError("ridge belongs to method='ssp'.")
        if self.method == "ssp" and self.descent is not None:
            raise StudyError("descent belongs to method='ngd'.")
        if self.ranges == "private" and (self.calibration == "paper" or self.method == "ngd"):
            raise StudyError(
                "ranges='private' aims the bounded instrument: use it with method='ssp', calibration='tight'."
            )
        if self.errors != "any" and (self.calibration == "paper" or self.method == "ngd"):
            raise StudyError(
                "errors='symmetric' and 'skewed' say how far residuals may be clipped, which method='ssp' with calibration='tight' does: use these, or leave it out."
            )

        self._check_family()
        self._check_several()
        self._check_counting()
        self._check_cluster()
        self._check_rows_of_a_person()

    def _check_rows_of_a_person(self) -> None:
        """Refuse several rows of a person where what is released is not known to cover them."""
        if self.unit.rows == 1:
            return
        if self.calibration != "tight":
            raise StudyError("Several rows of a person (unit.rows) are covered by calibration='tight': leave it out.")
        if isinstance(self.linkage, ELE) and self.linkage.source not in ("public", "identifiers"):
            raise StudyError(
                f"Accuracies that were {self.linkage.source} are those of persons who have one row. With several rows of a person, declare public accuracies, or those of a check of identifiers."
            )
        if isinstance(self.linkage, Exact) and self.unit.response_id is not None:
            raise StudyError(
                "In an exact join a person's responses are on the person's own rows: leave out response_id."
            )
        if self.unit.response_id is not None and self.unit.response_id == self.unit.id:
            raise StudyError(
                "id and response_id must be different columns: a wrong link brings the response of somebody else, whose id is not that of the row."
            )
        if not isinstance(self.linkage, Exact) and self.unit.response_id is None:
            raise StudyError(
                "Wrong links bring responses of other people: say by response_id=… which responses belong to one person, as id=… does for regressors."
            )
        if (self.linkage.block is not None and self.linkage.block in self.unit.ids) or getattr(
            self.linkage, "id", None
        ) in self.unit.ids:
            raise StudyError("The ids of persons and the columns of the linkage (block, id) must be different columns.")

    @property
    def counts_unevenly(self) -> bool:
        """Whether rows do not all count the same."""
        return self.weights is not None or self.where is not None or self.by is not None

    @functools.cached_property
    def parts(self) -> dict[str, Study]:
        """The studies whose results are released together: one of each outcome, or of each level of `by`; none if there is a single result."""
        if self.by is not None:
            conditions = split_levels(self.by, self.where, self.formula, self.levels, self.bounds)
            return {level: replace(self, by=None, where=where, units={}) for level, where in conditions.items()}
        outcomes = split_outcomes(self.formula)
        levels = [name for name in self.levels if name not in self.bounds]
        used = {name: set(parse_formula(text, levels).response.variables) for name, text in outcomes.items()}
        found = {}
        for name, formula in outcomes.items():
            others = set().union(*used.values()) - used[name]
            typical = {key: value for key, value in self.typical.items() if key not in others}
            fill = {key: value for key, value in self.fill.items() if key not in others}
            found[name] = replace(self, formula=formula, typical=typical, fill=fill, units={})
        return found

    def _check_several(self) -> None:
        """Refuse what several outcomes and levels cannot be combined with."""
        outcomes = split_outcomes(self.formula)
        if not outcomes and self.by is None:
            return
        what = "by" if self.by is not None else "cbind(…)"
        if outcomes and self.by is not None:
            raise StudyError(
                "cbind(…) and by do not go together: fit the levels of one outcome, or the outcomes of all rows."
            )
        if self.method != "ssp" or self.calibration != "tight" or self.family != "linear":
            raise StudyError(
                f"{what} belongs to method='ssp' with calibration='tight' and family='linear': leave these out."
            )

    @property
    def needs_second_stage(self) -> bool:
        """Whether something is asked for that a second stage alone can do."""
        return self.counts_unevenly or self.cluster is not None or self.goodness

    def _check_counting(self) -> None:
        """Refuse what weights and conditions cannot be combined with: they count in the second stage of a line, and along curves."""
        if not self.counts_unevenly:
            return
        what = next(name for name in ("weights", "where", "by") if getattr(self, name) is not None)
        if not self.drops_missing:
            raise StudyError(
                f"{what} belongs to method='ssp' with calibration='tight' and missing='drop', which are the defaults: leave out what is declared instead of them."
            )
        if self.ridge is not None:
            raise StudyError(f"{what} and ridge do not go together: leave out ridge.")

    def _check_cluster(self) -> None:
        """Refuse clusters, strata and measures of fit where nothing is squared for them: that is done in the second stage of a line, with intervals."""
        asked = [name for name in ("cluster", "strata", "goodness") if getattr(self, name)]
        if not asked:
            return
        if not self._drops_from_lines or self.ridge is not None:
            raise StudyError(
                f"{asked[0]} belongs to method='ssp' with calibration='tight', family='linear' and missing='drop', without ridge: leave these out."
            )
        if not self.intervals:
            raise StudyError(f"{asked[0]} belongs to intervals: leave it out, or leave out intervals=False.")
        if self.strata is not None and self.by is not None:
            raise StudyError(
                "strata and by do not go together: a row would be there in every level. Fit levels one by one with where=…, or leave out strata."
            )
        if self.strata is not None and self.strata == self.cluster:
            raise StudyError("strata and cluster are the same column: clusters are drawn within strata.")
        if self.strata is not None and self.cluster is None and self.unit.rows > 1:
            raise StudyError(
                "Strata of persons who have several rows need the clusters that rows were drawn in: declare cluster, or leave out strata."
            )

    def _check_family(self) -> None:
        """Refuse what is for lines alone."""
        if self.exposure is not None and self.family != "poisson":
            raise StudyError("exposure belongs to family='poisson': it is what the rates of counts are taken by.")
        if self.family == "linear":
            return
        if self.method != "ssp" or self.calibration != "tight":
            raise StudyError(
                f"family={self.family!r} is fitted by method='ssp' with calibration='tight': leave out both."
            )
        if self.ridge is not None:
            raise StudyError(
                f"ridge belongs to family='linear': leave it out, coefficients of family={self.family!r} are shrunk as far as noise asks for."
            )
        if self.errors != "any":
            raise StudyError(
                f"errors={self.errors!r} is for lines: leave it out, family={self.family!r} clips no residuals."
            )

    @property
    def _drops_from_lines(self) -> bool:
        """Whether there is a second stage of a line in which rows need not count the same."""
        return self.drops_missing and self.family == "linear"

    @property
    def drops_missing(self) -> bool:
        """Whether missing cells are left out where that can be done: in the second stage of the tight sums, and along curves."""
        return self.missing == "drop" and self.method == "ssp" and self.calibration == "tight"

    @property
    def searches_ranges(self) -> bool:
        """Whether the middles of columns are looked for privately: if that is asked for, or nothing else is said and no regressor's typical range is declared."""
        aims = self.method == "ssp" and self.calibration == "tight" and self.prepare()[0].half_widths is None
        return self.ranges == "private" or (self.ranges == "auto" and aims)

    @plain_faults
    def prepare(self) -> tuple[Design, LinkageExposure]:
        """Check all declarations against each other; nothing of the data is needed. Of several results it is the first one's design, which reads the columns of all of them."""
        if self.parts:
            return self._prepare_parts()
        design = build_design(
            self.formula,
            self.bounds,
            self.levels,
            self.typical,
            self.fill,
            self.family,
            self.exposure,
            self.weights,
            self.where,
            self.strata,
        )
        if self.drops_missing:
            design = design.fill_middles(self.fill)
        _check_variables(design, self.linkage, self.unit)
        _check_units(self.units, design)
        design = replace(design, cluster=self._checked_cluster(design) or self.unit.id)
        if self.descent is not None:
            self.descent.first_iterate((design.unscaled() if self.calibration == "paper" else design).scaling)
        return design, self.linkage.exposure(self.unit)

    def _prepare_parts(self) -> tuple[Design, LinkageExposure]:
        """Check the declarations of all results."""
        designs = [part.prepare()[0] for part in self.parts.values()]
        if not designs[0].columns:
            raise StudyError("Several results in one release need a regressor: fit means one by one.")
        bounds, levels = (
            {k: v for design in designs for k, v in getattr(design, name).items()} for name in ("bounds", "levels")
        )
        responses = frozenset[str]().union(*(design.response_variables for design in designs))
        for design in designs:
            if shared := (set(design.variables) - design.response_variables) & responses:
                raise StudyError(
                    f"{shown(min(shared))} is an outcome, which is on a linked row: it cannot be a regressor too."
                )
        for setting in ("typical", "fill"):
            if unknown := [name for name in getattr(self, setting) if name not in bounds]:
                raise StudyError(
                    f"{setting} names something that is not a numeric column here.{suggest(unknown[0], bounds)}"
                )
        whole = replace(designs[0], bounds=bounds, levels=levels)
        _check_units(self.units, whole)
        return whole, self.linkage.exposure(self.unit)

    def _checked_cluster(self, design: Design) -> str | None:
        """The column of clusters; refused if it is the response's, a result of linking, or one that says whose rows are whose."""
        name = self.cluster
        if name is None:
            return None
        if name in design.response_variables:
            raise StudyError(
                f"The clusters {shown(name)} are the response's own column, which is on a linked row. Name a column of the regressors' file."
            )
        named = (*RESULTS_OF_LINKING, *self.unit.ids, getattr(self.linkage, "id", None))
        if name == self.linkage.block and self.unit.linkage_change:
            raise StudyError(
                f"The clusters {shown(name)} are the column of the blocks, which linkage_change lets change on many rows. Name another column."
            )
        if name in named:
            raise StudyError(
                f"The clusters {shown(name)} are a result of linking, or say which rows are whose. Name a column of the regressors' file that says where its rows were drawn."
            )
        return name

    def request(self, fingerprints: Sequence[str]) -> dict[str, Any]:
        """All that decides what a release answers, to tell one request from another."""
        skipped = ("data", "ledger", "population", "ledger_key", "linkage", "units")
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skipped}
        settings["ranges"] = _RANGES_IN_LEDGERS[self.ranges]
        unsaid = {
            "errors": "any",
            "family": "linear",
            "exposure": None,
            "missing": "drop",
            "weights": None,
            "where": None,
            "by": None,
            "cluster": None,
            "strata": None,
            "goodness": False,
        }  # as before there was a choice
        for name, value in unsaid.items():
            if settings[name] == value:
                del settings[name]
        return {
            **settings,
            "unit": self.unit.identity(),
            "linkage": self.linkage.identity(),
            "data": list(fingerprints),
        }

    def check_count(self, count: int) -> None:
        """Check the public number of rows against the budget."""
        if count < 1:
            raise StudyError("The data has no rows.")
        check_delta(self.delta, count)
        if self.descent is not None:
            self.descent.settled(len(self.prepare()[0].names), count)

    def compared_variables(self, marked: Iterable[str] = ()) -> dict[str, str]:
        """Variables that are linking fields or, by their names, may be made of one, each with that field; `marked` are columns of the rows that say so themselves."""
        fields = getattr(self.linkage, "fields", None) or ()
        return find_compared(self.prepare()[0].variables, [*fields, *sorted(marked)])

    @classmethod
    @plain_faults
    def from_toml(cls, path: str | Path) -> Study:
        """Read a study file; a relative data path counts from the file's folder."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise_alone(StudyError(f"The study file {shown(path.name)} does not exist."))
        except (OSError, UnicodeDecodeError):
            raise_alone(StudyError(f"The study file {shown(path.name)} cannot be read."))
        return cls.from_text(text, path.parent, name=path.name)

    @classmethod
    def from_text(cls, text: str, folder: str | Path, *, name: str = "study.toml") -> Study:
        """Read the text of a study file; a relative data path counts from the folder."""
        try:
            study = cls(**read_settings(text, Path(folder), name))
            study.prepare()
            return study
        except StudyError:
            raise
        except (TypeError, ValueError, OverflowError, AttributeError):
            raise_alone(
                StudyError(
                    "A value in the study file has the wrong type or size: numbers must be numbers, tables tables."
                )
            )


def _check_variables(design: Design, linkage: Linkage, unit: PrivacyUnit) -> None:
    """Refuse variables that say how rows were linked: a person who changes one would change the linkage, or be given away by it."""
    if found := sorted(set(design.variables) & set(RESULTS_OF_LINKING)):
        raise StudyError(
            f"The formula uses {found[0]!r}, which is a result of linking: many people's identifiers make it what it is on one row. "
            "Leave it out, or rename the column if it is something else."
        )
    if isinstance(linkage, Matching) and linkage.id in design.variables:
        raise StudyError(
            f"The formula uses {linkage.id!r}, by which the matching matrix knows the rows: leave it out of the formula."
        )
    if isinstance(linkage, ELE) and (used := linkage.looked_at(design.variables)):
        raise StudyError(
            f"The formula uses {used[0]!r}, which linking or checking the links looked at, or which by its name is made of that, so the accuracies may tell of it. Leave it out of the formula, rename it if it is something else, or let "
            "dpl.release_accuracy pay for the accuracies (source='released')."
        )
    if found := sorted(set(design.variables) & set(unit.ids)):
        raise StudyError(
            f"The study uses {found[0]!r}, which says which rows belong to one person: leave it out of the formula, of weights and of where."
        )
    if linkage.block in design.response_variables:
        raise StudyError(
            f"The response is made of {linkage.block!r}, the column of the blocks: use another block column or another response."
        )
    if linkage.block is not None and linkage.block == design.strata and unit.linkage_change:
        raise StudyError(
            f"The strata {linkage.block!r} are the column of the blocks, which linkage_change lets change on many rows. Name another column."
        )
    held = unit.fixes_blocks and linkage.block in design.strata_alone  # nobody's stratum changes then
    if linkage.block in design.variables and not held and not (unit.moves_block and not unit.linkage_change):
        raise StudyError(
            f"The formula uses {linkage.block!r}, the column of the blocks. A person who changes it would change the blocks too, which this "
            "unit does not cover. Leave it out of the formula, use another block column, or protect the block as well: "
            "PrivacyUnit(moves_block=True), without linkage_change."
        )


def _check_units(units: Mapping[str, str], design: Design) -> None:
    """Refuse units of columns that the model does not have, and what is no short text."""
    for name, unit in units.items():
        if name not in design.bounds:
            raise StudyError(
                f"[units] names {shown(name)}, which is no numeric column of the formula.{suggest(str(name), design.bounds)}"
            )
        if not (isinstance(unit, str) and 0 < len(unit.strip()) <= _LONGEST_UNIT and unit.isprintable()):
            raise StudyError(
                f"The unit of {name!r} must be a short text in the plural, like 'euros' or 'years', not {shown(unit)}."
            )


def _warn_of_positions(init: Callable[..., None]) -> Callable[..., None]:
    """Let arguments be given by position for one more minor version, with a warning."""

    @functools.wraps(init)
    def warning(self: Study, *positional: Any, **settings: Any) -> None:
        if positional:
            warnings.warn(
                "Study(…) by position goes in 0.3: name its arguments, Study(formula=…, bounds=…, …).",
                DeprecationWarning,
                stacklevel=2,
            )
        init(self, *positional, **settings)

    return warning


Study.__init__ = _warn_of_positions(Study.__init__)  # type: ignore[method-assign]


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not _SMALLEST <= plain_number(value) <= _LARGEST:
        raise StudyError(
            f"{name} must be a finite number above 0 (from {_SMALLEST:g} to {_LARGEST:g}), not {shown(value)}."
        )
