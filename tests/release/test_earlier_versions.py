"""Files that 0.1.0 wrote still load and answer the same, its ledger is known again, and noise is as large as it was."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked import methods
from dplinked.linker.release_accuracy import ReleasedAccuracy

FOLDER = Path(__file__).parent / "version_0_1_0"
RELEASES = sorted(path.name.removesuffix(".answers.json") for path in FOLDER.glob("*.answers.json"))
VARIANCE = ("meat",)  # clipped by a released value, so its noise differs from run to run


def load(name: str) -> tuple[dpl.Release, dict[str, Any]]:
    answers = json.loads((FOLDER / f"{name}.answers.json").read_text(encoding="utf-8"))
    return dpl.Release.load(FOLDER / f"{name}.json"), answers


def numbers(found: Any) -> Any:
    """The same as JSON has it: lists, and None for what is not finite."""
    if isinstance(found, dict):
        return {name: numbers(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [numbers(value) for value in found]
    return found if found is None or math.isfinite(found) else None


def cells(text: str) -> list[Any]:
    """The cells of a CSV text, numbers as numbers: their last digits may differ."""

    def read(cell: str) -> Any:
        try:
            return numbers(float(cell))
        except ValueError:
            return cell

    return [[read(cell) for cell in line] for line in csv.reader(text.splitlines())]


def same(found: Any, expected: Any) -> bool:
    """Whether two nested answers agree to rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return (
        found == expected
        if found is None or isinstance(expected, (str, type(None)))
        else found == pytest.approx(expected, rel=1e-6)
    )


def test_every_path_is_there() -> None:
    assert len(RELEASES) == 18
    routes = {release.released.variance.route for name in RELEASES if (release := load(name)[0]).has_intervals}
    assert routes == {"row", "block", "scale"}


@pytest.mark.parametrize("name", RELEASES)
def test_releases_answer_as_they_did(name: str) -> None:
    release, answers = load(name)
    assert same(without_tests(cells(release.to_csv())), cells(answers["csv"]))
    for text, before in (
        (release.to_latex(), answers["latex"]),
        (release.to_markdown(), answers["markdown"]),
        (release.summary(), without_what_if(answers["summary"])),
    ):
        for name in release.coef:
            assert figures(before, name, old=True) <= figures(text, name)
        assert all(sentences in " ".join(text.split()) for sentences in said(before))
    if not release.has_intervals:
        return
    for method in ("test", "wald"):
        assert same(numbers(release.conf_int(0.9, method=method)), answers[method])
    result = release.test("income = 0.5")
    assert same([result.statistic, result.p_value], answers["hypothesis"])
    if "submodel" in answers:
        small = release.submodel("consumption ~ income")
        assert same([small.coef, small.std_err], answers["submodel"])
        assert same(release.ridge(0.01), answers["ridge"])
        new = {"income": [30_000.0, 60_000.0], "region": ["north", "south"]}
        assert same(numbers(release.predict(new)), answers["predict"])
    if "with_accuracy" in answers:
        assert same(release.with_accuracy(-0.02).coef, answers["with_accuracy"])


def without_tests(rows: list[Any]) -> list[Any]:
    """The rows of a CSV text without the columns that 0.1.0 did not write."""
    kept = [k for k, name in enumerate(rows[0]) if name not in ("z", "p_value")]
    return [[row[k] for k in kept] for row in rows]


def figures(text: str, name: str, *, old: bool = False) -> set[str]:
    """What the lines of a coefficient tell, in any order; without the z and p of 0.1.0's summary, whose z was the root of a test's statistic."""
    found: set[str] = set()
    escaped = name.replace("[", "{[}").replace("]", "{]}")
    for line in text.splitlines():
        start = next((start for start in (f"{name} ", f"| {name} |", f"{escaped} &") if line.startswith(start)), None)
        if start is not None:
            cells = [cell for cell in re.split(r"[\s|&]+", line.removeprefix(start)) if cell]
            tested = old and len(cells) == 6 and not {"|", "&"} & set(line)
            found |= {*cells[:2], *cells[4 if tested else 2 :]}
    return found


def said(text: str) -> list[str]:
    """The sentences of a summary or a Markdown text, paragraph by paragraph; tables and facts are left out."""
    blocks = re.split(r"\n\n|=\n|-\n", text)
    return [
        " ".join(block.split())
        for block in blocks
        if re.search(r"\w\.$", block) and not block.startswith(("-", "|", "%"))
    ]


def without_what_if(summary: str) -> str:
    """A summary without the tables of other accuracies and other links: 0.1.0 left the first one's noise unscaled, and had no second."""
    blocks = summary.split("\n\n")
    return "\n\n".join(block for block in blocks if not block.startswith(("If accuracy were off by", "If wrong links")))


@pytest.mark.parametrize("name", RELEASES)
def test_releases_are_written_anew_without_loss(name: str) -> None:
    release, _ = load(name)
    assert '"dplinked_release": 2' in release.to_json()
    assert dpl.Release.from_json(release.to_json()) == release


def test_old_keys_are_still_read_and_warn() -> None:
    release, _ = load("ssp")
    for record, key, now in (
        (release.released, "matrix", release.released.sums.matrix),
        (release.released, "accuracy_variance", release.released.variance.accuracy),
        (release.released.variance, "matrix", release.released.variance.meat),
        (release.scaling, "halves", release.scaling.half_widths),
        (release.linkage, "model", "ELE"),
        (release.declared, "bounds", release.declared.bounds),
        (release.privacy.unit, "moves_block", False),
        (release.released.parts[0], "scale", release.released.parts[0].scale),
    ):
        with pytest.warns(DeprecationWarning, match=r"goes in 0\.3: read"):
            assert np.all(record[key] == now)
    with pytest.raises(KeyError):
        release.released["nothing"]


def test_accuracies_load() -> None:
    paid = ReleasedAccuracy.from_json((FOLDER / "accuracy.json").read_text(encoding="utf-8"))
    assert paid.linkage.source == "released"
    assert ReleasedAccuracy.from_json(paid.to_json()) == paid


def test_a_ledger_knows_its_releases_again(tmp_path: Path) -> None:
    """Its balance and chain hold. Its data is registered again, and then the release that 0.1.0 stored costs nothing."""
    for file in ("budget.db", "rows.csv", "study.toml"):
        shutil.copy(FOLDER / file, tmp_path)
    study = dpl.Study.from_toml(tmp_path / "study.toml")
    ledger = dpl.Ledger(study.ledger, study.population)
    before = ledger.verify()
    with pytest.raises(dpl.LedgerError, match="not registered"):
        dpl.fit_study(study, study.data, release_id="first")
    ledger.register(study.data, linkage=study.linkage, unit=study.unit)
    registered = ledger.verify(before.head)
    assert dpl.fit_study(study, study.data, release_id="first") == load("ssp_ledger")[0]
    with pytest.warns(UserWarning, match="seen this request"):
        assert dpl.fit_study(study, study.data) == load("ssp_ledger")[0]
    assert ledger.verify() == registered
    assert registered.spent == before.spent
    dpl.fit_study(study, study.data, release_id="second", again=True)
    assert ledger.verify(before.head).spent == 2 * before.spent


def settings_of_0_1_0() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    spec = importlib.util.spec_from_file_location("make_0_1_0", FOLDER / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.paths()


# A descent now always pays for its curvature, and private ranges cost less.
CHANGED = ("ssp_released_accuracy", "ssp_ledger", "ssp_private_ranges", "ngd_no_intervals")


@pytest.mark.parametrize("name", [name for name in RELEASES if name not in CHANGED])
def test_noise_is_as_large_as_it_was(
    name: str, paths: dict[str, tuple[Any, str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sensitivities and scales follow from public values, so a new release of the same study has those of 0.1.0, without a second stage.

    The paper's calibration had no intervals then. What has them now has the same noise, and more parts.
    """
    monkeypatch.setattr(methods, "may_take_second_stage", lambda *_: False)
    data, formula, settings = paths[name]
    if "ssp" in name:
        settings = {"ranges": "declared", **settings}
    if name.startswith("paper"):
        settings = {**settings, "intervals": False}
    release, old = dpl.fit(data, formula, **settings), load(name)[0]
    words = {"statement": "", "assumed_public": ()}  # what is promised is said in more words than before
    assert dataclasses.replace(release.privacy, **words) == dataclasses.replace(old.privacy, **words)
    found, expected = ([part for part in one.released.parts if part.name not in VARIANCE] for one in (release, old))
    assert [(part.name, part.entries) for part in found] == [(part.name, part.entries) for part in expected]
    for new, was in zip(found, expected, strict=True):
        close = 1e-9 if name.startswith("paper") else 1e-12  # room for rounding is planned for z'z too
        assert new.sensitivity == pytest.approx(was.sensitivity, rel=close)
        assert new.scale == pytest.approx(was.scale, rel=close)


@pytest.fixture(scope="module")
def paths() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    return settings_of_0_1_0()
