"""Text that is no release is refused, whatever is wrong with it, and a release reads back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dplinked as dpl
from dplinked.linker.release_accuracy import ReleasedAccuracy

STORED = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def stored() -> dict[str, Any]:
    return json.loads(dpl.Release.load(STORED / "ssp.json").to_json())


def test_a_release_reads_back(stored: dict[str, Any]) -> None:
    release = dpl.Release.from_json(json.dumps(stored))
    assert release == dpl.Release.load(STORED / "ssp.json")
    assert release.coef == stored["coef"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("dplinked_release", 3),
        ("dplinked_release", None),
        ("count", True),
        ("count", -1),
        ("count", "20000"),
        ("coef", {}),
        ("coef", [1.0, 2.0, 3.0]),
        ("coef.income", 10**400),
        ("coef.income", float("nan")),
        ("coef.income", float("inf")),
        ("std_err.income", None),
        ("privacy.mu", float("inf")),
        ("privacy", "private"),
        ("dropped", "abc"),
        ("released.sums.matrix", [1.0, 2.0]),
        ("released.sums.vector", [1.0, None, 2.0]),
        ("released.variance.meat", [[1.0]]),
        ("scaling.columns", []),
        ("linkage", []),
        ("more", 1),
    ],
)
def test_what_does_not_fit_is_refused(stored: dict[str, Any], place: str, value: Any) -> None:
    *path, last = place.split(".")
    inner = stored
    for name in path:
        inner = inner[name]
    inner[last] = value
    refused(json.dumps(stored))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", "[" * 200_000, '{"dplinked_release": 2}', '{"dplinked_release": 1}']
)
def test_what_is_no_release_is_refused(text: str) -> None:
    refused(text)
    with pytest.raises(dpl.StudyError, match="not released accuracies"):
        ReleasedAccuracy.from_json(text)


@pytest.mark.parametrize("name", ["coef", "released", "privacy", "scaling", "versions", "linkage"])
def test_nothing_may_be_missing(stored: dict[str, Any], name: str) -> None:
    del stored[name]
    refused(json.dumps(stored))


def refused(text: str) -> None:
    with pytest.raises(dpl.StudyError, match="not a release") as fault:
        dpl.Release.from_json(text)
    assert fault.value.__context__ is None
