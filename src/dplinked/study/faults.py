"""All that is missing or wrong in the text of a study, each fault at its setting and in the words of a form. No data is opened.

A study refuses the first fault that it meets, and speaks to those who write Python. A form has to say all of them at once, each beside its field. What is said here
is about single settings and the usual pairs of them; whatever else a study refuses is told in its own words, as a fault of no single setting.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dplinked.data.keys import key_text
from dplinked.errors import StudyError, plain_number, shown, suggest
from dplinked.linkage import ELE
from dplinked.linkage.ele import LINK_BLOCK
from dplinked.report.words import list_names
from dplinked.study.budget import LARGE_EPSILON, check_budget
from dplinked.study.columns import columns_of, parse_all
from dplinked.study.counting import declare_counting
from dplinked.study.family import MOST_COUNTS
from dplinked.study.formula import ParsedFormula, interval_of
from dplinked.study.study import Study
from dplinked.study.typed import read_number

_LONGEST_UNIT = 40  # letters
_LINES_ALONE = {  # settings that lines alone take, as a form calls them
    "by": "The same in every level",
    "cluster": "Clusters",
    "strata": "Strata",
    "goodness": "How well the line fits",
}
_NUMBERS = {  # settings that are numbers, as sentences call them
    ("linkage", "accuracy"): "the share of links that are right",
    ("linkage", "accuracy_min"): "the lowest accuracy",
    ("linkage", "checked"): "the number of checked links",
    ("linkage", "paid"): "what the accuracy cost",
    ("linkage", "displaced_links"): "the links it was paid for",
    ("unit", "displaced_links"): "the links that one person displaces",
    ("unit", "linkage_change"): "the change of the matching matrix",
    ("unit", "rows"): "the rows of one person",
    ("privacy", "epsilon"): "epsilon",
    ("privacy", "delta"): "delta",
}


@dataclass(frozen=True)
class SettingFault:
    """What is missing or wrong at one setting.

    Attributes
    ----------
    section, key
        The setting's place in the study file; two empty texts if it is a fault of no single setting.
    name
        What the setting is called in a sentence.
    text
        What to do, in a sentence.
    missing
        Whether something is still to be said, rather than wrong.
    """

    section: str
    key: str
    name: str
    text: str
    missing: bool = False


Faults = Iterator[SettingFault]
Sections = Mapping[str, Any]


def find_faults(
    text: str, folder: Path, name: str = "study.toml", *, columns: Sequence[str] = (), count: int | None = None
) -> list[SettingFault]:
    """All that is missing or wrong in the text of a study; paths count from `folder`. Nothing is found in what a release accepts.

    `columns` and `count` are those of the rows, where they are known: both are public.
    """
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        declared = {}
    found = list(_unread_faults(declared))
    unread = {(one.section, one.key) for one in found}
    if declared or not text.strip():
        for judge in (_model_faults, _column_faults, _linkage_faults, _unit_faults, _budget_faults):
            found += [one for one in judge(declared) if (one.section, one.key) not in unread]
    if columns and (absent := [name for name in _variables(declared) if name not in columns]):
        found = [one for one in found if one.key not in absent]
        said = " ".join(f"The file has no column {shown(name)}.{suggest(name, columns)}" for name in absent)
        found.append(SettingFault("model", "formula", "the formula", said))
    found += [] if ("privacy", "delta") in {(one.section, one.key) for one in found} else _delta_faults(declared, count)
    if not found:
        told = _refused(lambda: Study.from_text(text, folder, name=name))
        found += [] if told is None else [_placed(told, declared)]
    return [*_data_faults(declared, folder), *found] if declared else found


def say_faults(faults: list[SettingFault]) -> str:
    """What is missing and what is wrong, in one line; nothing if there are no faults."""
    said = []
    for start, names in (
        ("Still missing", [one.name for one in faults if one.missing]),
        ("To be mended", [one.name for one in faults if not one.missing]),
    ):
        if names:
            said.append(f"{start}: {list_names(list(dict.fromkeys(names)))}.")
    return " ".join(said)


def _refused(work: Callable[[], Any]) -> str | None:
    """What the library says against some settings; None if it accepts them."""
    try:
        work()
    except StudyError as refusal:
        return re.sub(r"^where=", "The condition ", str(refusal))
    return None


def _variables(declared: Sections) -> list[str]:
    """The columns that the formula names; none as long as it cannot be read."""
    model = _of(declared, "model")
    try:
        parsed = parse_all(model["formula"], _levels_alone(declared), model.get("family"))
    except (StudyError, KeyError, TypeError, AttributeError):
        return []
    factors = [factor for one in parsed for factor in (one.response, *(part for term in one.terms for part in term))]
    return list(dict.fromkeys(name for factor in factors for name in factor.variables))


def _placed(told: str, declared: Sections) -> SettingFault:
    """What a study refuses, beside its field if it is about bounds of one column."""
    for name in _of(declared, "bounds"):
        if told.startswith(f"The bounds of {shown(name)} "):
            return SettingFault("bounds", name, f"the bounds of {name}", told)
    return SettingFault("", "", "how the settings fit together", told)


def _unread_faults(declared: Sections) -> Faults:
    """Texts where numbers belong: what somebody typed that cannot be read as a number, or in two ways."""
    places = [(section, key, name) for (section, key), name in _NUMBERS.items()]
    for section, what in (("bounds", "bounds"), ("typical", "typical range")):
        places += [(section, key, f"the {what} of {key}") for key in _of(declared, section)]
    for section, key, name in places:
        value = _of(declared, section).get(key)
        listed = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        told = [_refused(lambda text=text: read_number(text)) for text in listed if isinstance(text, str)]  # type: ignore[misc]
        if said := next((one for one in told if one), None):
            yield SettingFault(section, key, name, said)


def _of(declared: Sections, name: str) -> Mapping[str, Any]:
    found = declared.get(name, {})
    return found if isinstance(found, Mapping) else {}


# --- data and model --------------------------------------------------------------------------------------


def _data_faults(declared: Sections, folder: Path) -> Faults:
    """No file, or one that is not there. Plans need none."""
    data = _of(declared, "data")
    path = data.get("path")
    if not any(kind in data for kind in ("path", "query", "spark")):
        yield SettingFault("data", "path", "the data file", "Choose the file with the linked rows.", missing=True)
    elif isinstance(path, str) and not any(mark in path for mark in "*?[") and not (folder / path).exists():
        yield SettingFault("data", "path", "the data file", f"There is no file {shown(path)} in the study's folder.")


def _model_faults(declared: Sections) -> Faults:
    model = _of(declared, "model")
    formula, family = model.get("formula"), model.get("family", "linear")
    if not isinstance(formula, str) or not formula.strip():
        said = "Say what is to be explained, and by what, like consumption ~ income."
        yield SettingFault("model", "formula", "the formula", said, missing=True)
        return
    if family != "logistic" and formula.lstrip().startswith("C("):
        said = "What is to be explained must be a number here. For an event, say so at 'The response is'."
        yield SettingFault("model", "formula", "the formula", said)
    elif told := _refused(lambda: parse_all(formula, _levels_alone(declared), family)):
        yield SettingFault("model", "formula", "the formula", told)
    for key, title in _LINES_ALONE.items():
        if family != "linear" and model.get(key):
            yield SettingFault(
                "model", key, title.lower(), f"{title} can be had for a number as the response, not for events and counts."
            )  # fmt: skip
    if family != "poisson" and model.get("exposure"):
        yield SettingFault("model", "exposure", "the exposure", "An exposure belongs to counts.")


def _levels_alone(declared: Sections) -> list[str]:
    return [name for name in _of(declared, "levels") if name not in _of(declared, "bounds")]


# --- columns ---------------------------------------------------------------------------------------------


def _column_faults(declared: Sections) -> Faults:
    numeric, categorical = columns_of(declared)
    if not numeric and not categorical:
        return
    model, levels = _of(declared, "model"), _of(declared, "levels")
    parsed = parse_all(model["formula"], _levels_alone(declared), model.get("family"))
    responses = {name for one in parsed for name in one.response.variables}
    for name in numeric:
        yield from _number_faults(name, declared, counts=model.get("family") == "poisson" and name in responses)
    for name in categorical:
        yield from _level_faults(name, levels.get(name), event=model.get("family") == "logistic" and name in responses)
    for section, what in (("typical", "typical range"), ("fill", "value for missing cells"), ("units", "unit")):
        for name in _of(declared, section):
            if name not in numeric:
                said = f"{shown(name)} is no column of numbers in the formula: take its {what} out of the text."
                yield SettingFault(section, name, f"the {what} of {name}", said)
    yield from _derived_faults(parsed, declared, numeric)


def _ends(value: Any) -> tuple[float, float] | None:
    """Two finite numbers; None if they are not."""
    numbers = [plain_number(end) for end in value] if isinstance(value, list) else []
    return (numbers[0], numbers[1]) if len(numbers) == 2 and all(map(math.isfinite, numbers)) else None


def _half_said(value: Any) -> bool:
    """Whether only one of two ends is said: alone, or beside one that is not a number yet."""
    return isinstance(value, list) and sum(math.isfinite(plain_number(end)) for end in value) == 1


def _number_faults(name: str, declared: Sections, *, counts: bool) -> Faults:
    given, what = _of(declared, "bounds").get(name), f"the bounds of {name}"
    ends = _ends(given)
    if ends is None:
        said = "Say both the lowest and the highest value." if _half_said(given) else (
            f"Say the lowest and the highest value that {name} may have." if given in (None, []) else
            "Lowest and highest must be numbers."
        )  # fmt: skip
        yield SettingFault("bounds", name, what, said, missing=given in (None, []) or _half_said(given))
    elif told := _bounds_refused(name, ends, _of(declared, "model"), counts=counts):
        yield SettingFault("bounds", name, what, told)
    yield from _typical_faults(name, _of(declared, "typical").get(name), ends)
    fill = _of(declared, "fill").get(name)
    if fill is not None and ends is not None and not ends[0] <= plain_number(fill) <= ends[1]:
        said = "The value for missing cells must lie between lowest and highest."
        yield SettingFault("fill", name, f"the value for missing cells of {name}", said)
    unit = _of(declared, "units").get(name)
    if unit is not None and not (
        isinstance(unit, str) and 0 < len(unit.strip()) <= _LONGEST_UNIT and unit.isprintable()
    ):
        said = "A unit is a short word in the plural, such as euros or years."
        yield SettingFault("units", name, f"the unit of {name}", said)


def _bounds_refused(name: str, ends: tuple[float, float], model: Mapping[str, Any], *, counts: bool) -> str | None:
    low, high = ends
    if counts and (low != 0.0 or high != int(high) or not 1.0 <= high <= MOST_COUNTS):
        return f"Of a count, lowest is 0 and highest the largest count that there may be: a whole number up to {MOST_COUNTS:,}."
    if not low < high:
        return "Highest must be larger than lowest."
    if name == model.get("exposure") and low <= 0.0:
        return "Lowest must be above 0: counts are taken by this column."
    if name == model.get("weights") and low < 0.0:
        return "Lowest must not be below 0: rows count by this column."
    return None


def _typical_faults(name: str, given: Any, bounds: tuple[float, float] | None) -> Faults:
    if given is None or given == []:
        return
    what, ends = f"the typical range of {name}", _ends(given)
    if ends is None:
        half = _half_said(given)
        said = "Say both ends of the typical range, or neither." if half else "A typical range is two numbers."
        yield SettingFault("typical", name, what, said, missing=half)
    elif not ends[0] < ends[1]:
        yield SettingFault("typical", name, what, "The typical range must end with the larger number.")
    elif bounds is not None and bounds[0] < bounds[1] and not bounds[0] <= ends[0] < ends[1] <= bounds[1]:
        yield SettingFault("typical", name, what, "The typical range must lie between lowest and highest.")


def _level_faults(name: str, given: Any, *, event: bool) -> Faults:
    listed = given if isinstance(given, list) else [] if given is None else [given]
    texts, told, missing = [key_text(level) for level in listed], None, False
    if not listed:
        told, missing = f"Say which levels {name} has.", True
    elif None in texts or len(set(texts)) < len(texts):
        told = "A level stands there twice, or is empty."
    elif len(listed) < 2:
        told, missing = f"Say at least two levels of {name}.", True
    elif event and len(listed) > 2:
        told = "An event has two levels: that it did not happen, then that it did."
    if told is not None:
        yield SettingFault("levels", name, f"the levels of {name}", told, missing=missing)


def _derived_faults(parsed: list[ParsedFormula], declared: Sections, numeric: list[str]) -> Faults:
    """What logarithms, roots and quotients, and a condition, ask of bounds."""
    bounds = {name: ends for name, value in _of(declared, "bounds").items() if (ends := _ends(value))}
    if any(name not in bounds or not bounds[name][0] < bounds[name][1] for name in numeric):
        return
    for one in parsed:
        for factor in (one.response, *(factor for term in one.terms for factor in term)):
            if factor.tree is None or not set(factor.variables) <= set(bounds):
                continue
            if told := _refused(lambda factor=factor: interval_of(factor, bounds)):  # type: ignore[misc]
                yield SettingFault("bounds", factor.variables[0], f"the bounds of {factor.variables[0]}", told)
    model, levels = _of(declared, "model"), _of(declared, "levels")
    weights, where = (model.get(name) or None for name in ("weights", "where"))
    known = {name: tuple(map(key_text, listed)) for name, listed in levels.items() if isinstance(listed, list)}
    if isinstance(where, str) and (told := _refused(lambda: declare_counting(weights, where, bounds, known))):
        yield SettingFault("model", "where", "the condition", told)


# --- links and persons -----------------------------------------------------------------------------------


def _linkage_faults(declared: Sections) -> Faults:
    linkage = _of(declared, "linkage")
    if linkage.get("model", "ele") != "ele":
        return
    found = [*_accuracy_faults(linkage), *_source_faults(linkage, _of(declared, "unit"))]
    yield from found
    if not found:
        given = {key: value for key, value in linkage.items() if key != "model"}
        try:
            model = ELE(**given)
        except TypeError:
            return  # a key that is none; the check of the whole study says so
        except StudyError as refusal:
            yield SettingFault("linkage", "accuracy", "the accuracy of the links", str(refusal))
            return
        yield from _block_faults(model, declared)


def _accuracy_faults(linkage: Mapping[str, Any]) -> Faults:
    accuracy, name = linkage.get("accuracy"), "the share of links that are right"
    if accuracy is None or accuracy == {}:
        yield SettingFault("linkage", "accuracy", name, "Say what share of the links is right.", missing=True)
    elif isinstance(accuracy, Mapping):
        if not all(0.0 < plain_number(value) <= 1.0 for value in accuracy.values()):
            said = "Write one block and its share on each line, like nsw = 0.918. Shares lie above 0 and up to 1."
            yield SettingFault("linkage", "accuracy", name, said)
        if not linkage.get("block"):
            said = "Say which column holds these blocks."
            yield SettingFault("linkage", "block", "the column of the blocks", said, missing=True)
    elif 1.0 < plain_number(accuracy) <= 100.0:
        said = f"Write a share: {plain_number(accuracy) / 100.0:g} for {plain_number(accuracy):g} %."
        yield SettingFault("linkage", "accuracy", name, said)
    elif not 0.0 < plain_number(accuracy) <= 1.0:
        yield SettingFault("linkage", "accuracy", name, "The share must lie above 0 and be at most 1.")
    checked = linkage.get("checked")
    listed = checked.values() if isinstance(checked, Mapping) else [] if checked is None else [checked]
    if not all(1.0 <= plain_number(number) < math.inf for number in listed):
        said = "How many links were checked must be 1 or more; leave it empty if none were."
        yield SettingFault("linkage", "checked", "the number of checked links", said)


def _source_faults(linkage: Mapping[str, Any], unit: Mapping[str, Any]) -> Faults:
    """What each way to know the accuracy needs beside it."""
    source, known = linkage.get("source"), linkage.get("checked") or linkage.get("accuracy_error")
    changes = unit.get("moves_block") or unit.get("linkage_change")

    def lacks(key: str, name: str, said: str, section: str = "linkage") -> SettingFault:
        return SettingFault(section, key, name, said, missing=True)

    if source is None and (known or linkage.get("block") == LINK_BLOCK):
        yield lacks("source", "where the accuracy comes from", "Say where the accuracy comes from.")
    if source == "identifiers":
        if not linkage.get("fields"):
            yield lacks(
                "fields", "the columns that were looked at", "Say by which columns links were made and checked."
            )
        if not known:
            yield lacks("checked", "the number of checked links", "Say how many links were checked.")
        if changes or unit.get("displaced_links"):
            said = "A check by identifiers goes with links that one person does not change: answer No to both questions about identifiers below, or pay for the accuracy."
            yield SettingFault("linkage", "source", "where the accuracy comes from", said)
    if source == "released":
        if linkage.get("paid") is None:
            yield lacks("paid", "what the accuracy cost", "Say what its release cost: the μ that it wrote.")
        if linkage.get("displaced_links") is None:
            yield lacks("displaced_links", "the links it was paid for", "Say for how many displaced links it was paid.")
        elif changes or plain_number(unit.get("displaced_links", 0)) > plain_number(linkage["displaced_links"]):
            said = (
                "It was paid for persons who change less of the links than is said below: answer as that release did."
            )
            yield SettingFault("linkage", "source", "where the accuracy comes from", said)
    if source == "estimated":
        if linkage.get("accuracy_min") is None:
            yield lacks("accuracy_min", "the lowest accuracy", "Say a public lowest share of right links in any block.")
        if not unit.get("linkage_change"):
            said = "Say how far one person can change the matching matrix: above 0, as their links were among those looked at."
            yield lacks("linkage_change", "the change of the matching matrix", said, "unit")


def _block_faults(linkage: ELE, declared: Sections) -> Faults:
    """What the formula may not use beside these links."""
    unit, (numeric, categorical) = _of(declared, "unit"), columns_of(declared)
    used = {*numeric, *categorical}
    if linkage.block in used and not (unit.get("moves_block") and not unit.get("linkage_change")):
        said = (
            f"The formula uses {shown(linkage.block)} too. Take another column of blocks, leave it out of the formula, or say below that a person may move to another block."
        )  # fmt: skip
        yield SettingFault("linkage", "block", "the column of the blocks", said)
    if looked_at := linkage.looked_at(sorted(used)):
        said = f"{list_names(looked_at)}: links were made or checked by this, or by its name by what it is made of, so the accuracy may tell of it. Leave it out of the formula."
        yield SettingFault("linkage", "fields", "the columns that were looked at", said)


def _unit_faults(declared: Sections) -> Faults:
    unit, matching = _of(declared, "unit"), _of(declared, "linkage").get("model") == "matching"
    displaced, change, rows = unit.get("displaced_links"), unit.get("linkage_change"), unit.get("rows", 1)
    name = "the links that one person displaces"
    if displaced is None and matching:
        yield SettingFault("unit", "displaced_links", name, "Say how many: with a matching matrix it does not follow.", missing=True)  # fmt: skip
    elif displaced is not None and (isinstance(displaced, bool) or not isinstance(displaced, int) or displaced < 0):
        yield SettingFault("unit", "displaced_links", name, "How many links must be a whole number, 0 or more.")
    name = "the change of the matching matrix"
    if change is None and matching:
        said = "Say how far one person can change the matching matrix."
        yield SettingFault("unit", "linkage_change", name, said, missing=True)
    elif change is not None and not 0.0 <= plain_number(change) < math.inf:
        yield SettingFault("unit", "linkage_change", name, "The change must be a number, 0 or more.")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        yield SettingFault("unit", "rows", "the rows of one person", "How many rows must be a whole number, 1 or more.")
    elif rows > 1:
        yield from _rows_faults(unit, declared)
    elif unit.get("id") is not None or unit.get("response_id") is not None:
        said = "Ids of persons are for those with several rows: say how many, or take the ids out of the text."
        yield SettingFault("unit", "id", "the rows of one person", said)


def _rows_faults(unit: Mapping[str, Any], declared: Sections) -> Faults:
    exact = _of(declared, "linkage").get("model") == "exact"
    for key, what in (("id", "regressors"), *(() if exact else (("response_id", "responses"),))):
        if not unit.get(key):
            said = f"Say which column tells whose {what} these are."
            yield SettingFault("unit", key, f"the persons' id of the {what}", said, missing=True)
    if unit.get("id") and unit.get("id") == unit.get("response_id"):
        said = "This must be another column than that of the regressors: a wrong link brings somebody else's response."
        yield SettingFault("unit", "response_id", "the persons' id of the responses", said)
    if unit.get("moves_block") or unit.get("displaced_links") or unit.get("linkage_change"):
        said = (
            "Several rows of a person are covered where identifiers change nothing: answer No to both questions above."
        )
        yield SettingFault("unit", "rows", "the rows of one person", said)


# --- budget ----------------------------------------------------------------------------------------------


def _delta_faults(declared: Sections, count: int | None) -> Faults:
    """A delta that lets a person's row be published. It must be below one over the number of rows, of which there are two at least."""
    delta = plain_number(_of(declared, "privacy").get("delta"))
    if 1.0 / (count or 2) <= delta < 1.0:
        here = f", here {1.0 / count:.3g}" if count else ""
        said = f"Delta must be below one over the number of rows{here}: more would allow publishing one person's row. 1e-6 is usual."
        yield SettingFault("privacy", "delta", "delta", said)


def _budget_faults(declared: Sections) -> Faults:
    privacy, ledger = _of(declared, "privacy"), _of(declared, "ledger")
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta")
    if epsilon is None:
        yield SettingFault("privacy", "epsilon", "epsilon", "Say how much this release may spend; 1 is usual.", missing=True)  # fmt: skip
    elif not 0.0 < plain_number(epsilon) < math.inf:
        yield SettingFault("privacy", "epsilon", "epsilon", "Epsilon must be a number above 0.")
    elif plain_number(epsilon) > LARGE_EPSILON and privacy.get("large_epsilon") is not True:
        said = f"An epsilon above {LARGE_EPSILON:g} protects next to nothing. If that is meant, say so under More."
        yield SettingFault("privacy", "epsilon", "epsilon", said)
    elif told := _refused(lambda: check_budget(epsilon, 0.5)):
        yield SettingFault("privacy", "epsilon", "epsilon", told)
    if delta is None:
        said = "Say how small the chance of more must be: below one over the number of rows."
        yield SettingFault("privacy", "delta", "delta", said, missing=True)
    elif not 0.0 < plain_number(delta) < 1.0:
        yield SettingFault("privacy", "delta", "delta", "Delta must lie between 0 and 1.")
    elif told := _refused(lambda: check_budget(1.0, delta)):
        yield SettingFault("privacy", "delta", "delta", told)
    if ledger and not ledger.get("url"):
        said = "Say which file holds the budget, like budget.db."
        yield SettingFault("ledger", "url", "the budget's file", said, missing=True)
