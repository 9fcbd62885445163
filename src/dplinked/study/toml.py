"""A study file (TOML) as the settings of a study."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dplinked.data.format import File
from dplinked.data.sources import Query, SparkTable
from dplinked.errors import StudyError, raise_alone, shown, suggest
from dplinked.linkage import ELE, UNSTATED, Exact, Linkage, Matching, PrivacyUnit
from dplinked.study.descent import Descent

FILE_OPTIONS = ("separator", "decimal", "thousands", "encoding", "sheet")  # how the files at a path are written
_LINKAGES: dict[str, tuple[str, ...]] = {
    "ele": (
        "accuracy",
        "block",
        "other",
        "checked",
        "accuracy_error",
        "other_error",
        "shared_error",
        "source",
        "accuracy_min",
        "paid",
        "displaced_links",
        "carriers",
        "fields",
    ),
    "exact": (),
    "matching": ("pairs", "id", "column_sum", "accuracy_min", "carriers"),
}
SECTIONS: dict[str, tuple[str, ...]] = {
    "data": ("path", *FILE_OPTIONS, "query", "attach", "spark"),
    "model": (
        "formula",
        "family",
        "exposure",
        "weights",
        "where",
        "by",
        "cluster",
        "strata",
        "goodness",
        "method",
        "calibration",
        "ranges",
        "errors",
        "missing",
        "ridge",
        "intervals",
    ),
    "bounds": (),
    "levels": (),
    "typical": (),
    "fill": (),
    "units": (),
    "linkage": ("model", *dict.fromkeys(key for keys in _LINKAGES.values() for key in keys)),
    "unit": ("moves_block", "displaced_links", "linkage_change", "rows", "id", "response_id"),
    "privacy": ("epsilon", "delta", "large_epsilon"),
    "descent": ("radius", "step", "iterations", "start", "curvature"),
    "paper": ("response_bound", "row_norm"),
    "ledger": ("url", "population", "key"),
}


def read_settings(text: str, folder: Path, name: str) -> dict[str, Any]:
    """Return the arguments of :class:`~dplinked.Study` that a study file declares; relative paths count from `folder`."""
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        # The rest may quote the file, which may be the data's; so may the line of a file that is called something else.
        place = re.search(r"\(at (line \d+)", str(fault))
        told = f": see {place[1] if place else 'its end'}" if name.lower().endswith(".toml") else ""
        headers = [line.strip() for line in text.splitlines()]
        repeated = [section for section in SECTIONS if headers.count(f"[{section}]") > 1]
        twice = f" The section [{repeated[0]}] stands there twice: join the two." if repeated else ""
        raise_alone(StudyError(f"The study file {shown(name)} is not valid TOML{told}.{twice}"))
    _check_names(declared)

    def section(name: str, *required: str) -> dict[str, Any]:
        values = dict(declared.get(name, {}))
        for key in required:
            if key not in values:
                raise StudyError(f"The study lacks {key!r} in [{name}].")
        return values

    model, privacy = section("model", "formula"), section("privacy", "epsilon", "delta")
    return {
        "bounds": section("bounds"),
        "linkage": _linkage_from(section("linkage", *([] if "linkage" in declared else ["accuracy"])), folder),
        "unit": PrivacyUnit(**section("unit")) if "unit" in declared else UNSTATED,
        "levels": section("levels"),
        "typical": section("typical"),
        "fill": section("fill"),
        "units": section("units"),
        "descent": Descent(**section("descent")) if "descent" in declared else None,
        "data": _data_from(section("data"), folder),
        **_ledger_settings(section("ledger", *(["url"] if "ledger" in declared else [])), folder),
        **model,
        **privacy,
        **section("paper"),
    }


def read_ledger(text: str, folder: Path) -> dict[str, Any]:
    """Which ledger a study file names, as arguments of :class:`~dplinked.Study`, whatever else it lacks; empty if it names none."""
    try:
        declared = tomllib.loads(text).get("ledger")
    except tomllib.TOMLDecodeError:
        return {}
    return _ledger_settings(declared, folder) if isinstance(declared, dict) and "url" in declared else {}


def _ledger_settings(declared: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {
        "ledger": _ledger_from(declared, folder),
        "population": declared.get("population"),
        "ledger_key": _key_from(declared.get("key"), folder),
    }


def _check_names(declared: Mapping[str, Any]) -> None:
    """Refuse sections and keys that a study does not have."""
    for heading, values in declared.items():
        if heading not in SECTIONS:
            raise StudyError(f"The study has an unknown section{_like(heading, SECTIONS)}")
        if not isinstance(values, dict):
            raise StudyError(f"The study's {heading!r} must be a section: write [{heading}].")
        for key in values if SECTIONS[heading] else ():
            if key not in SECTIONS[heading]:
                raise StudyError(f"[{heading}] has an unknown key{_like(key, SECTIONS[heading])}")


def _like(name: str, known: Iterable[str]) -> str:
    """A name that a study does not have. It is shown if it is like one that it has: rows may stand in the place of a study."""
    hint = suggest(name, known)
    return f" {shown(name)}.{hint}" if hint else f". There are {', '.join(known)}."


def _data_from(declared: dict[str, Any], folder: Path) -> Path | File | Query | SparkTable | None:
    """Where the rows are, and how the files are written; relative paths count from the study's folder."""
    kinds = [kind for kind in ("path", "query", "spark") if kind in declared]
    written = {key: declared[key] for key in FILE_OPTIONS if key in declared}
    if len(kinds) > 1 or ("attach" in declared and kinds != ["query"]) or (written and kinds != ["path"]):
        raise StudyError(
            f"[data] takes one of path, query and spark; attach belongs to query, and {', '.join(FILE_OPTIONS)} belong to path."
        )
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
        return File(folder / value, **written) if written else folder / value
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


def _key_from(key: Any, folder: Path) -> Path | None:
    """The file of the ledger's key; a relative path counts from the study's folder."""
    if key is not None and not isinstance(key, str):
        raise StudyError("The ledger's key must be a text: the path of the file that holds it.")
    return None if key is None else folder / key


def _linkage_from(declared: dict[str, Any], folder: Path) -> Linkage:
    """The linkage model; a relative path of the pairs of a matching matrix counts from the study's folder."""
    kind = declared.pop("model", "ele")
    if not isinstance(kind, str) or kind not in _LINKAGES:
        raise StudyError(f"[linkage] model must be 'ele', 'exact' or 'matching', not {shown(kind)}.")
    if foreign := [key for key in declared if key not in _LINKAGES[kind]]:
        taken = f"{', '.join(_LINKAGES[kind])}, not {foreign[0]}" if _LINKAGES[kind] else "no other settings"
        raise StudyError(f"[linkage] model = {kind!r} takes {taken}.")
    if kind == "exact":
        return Exact()
    if kind == "matching":
        pairs = declared.pop("pairs", None)
        if not isinstance(pairs, str):
            raise StudyError(
                "[linkage] model = 'matching' needs pairs = '…': the path of a Parquet or CSV file with the columns row, match and probability."
            )
        return Matching(folder / pairs, **declared)
    if "accuracy" not in declared:
        raise StudyError("The study lacks 'accuracy' in [linkage]. For a join on a unique key, write model = 'exact'.")
    return ELE(**declared)
