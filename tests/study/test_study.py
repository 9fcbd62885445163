"""What a study is told by name and by position, and what it refuses before any data is opened."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dplinked as dpl

NAMED = {
    "formula": "y ~ x",
    "bounds": {"y": (0, 1), "x": (0, 1)},
    "epsilon": 1.0,
    "delta": 1e-6,
    "linkage": dpl.Exact(),
}


def test_positions_still_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match="by position goes in"):
        study = dpl.Study(*NAMED.values())
    assert study == dpl.Study(**NAMED)
    assert list(inspect.signature(dpl.Study).parameters)[:5] == list(NAMED)


def test_fit_passes_every_setting_on() -> None:
    """`fit` takes all that a study takes, but for where its rows are, and with the same defaults or none."""
    study, fit = (inspect.signature(one).parameters for one in (dpl.Study, dpl.fit))
    assert set(fit) - {"data", "release_id", "again"} == set(study) - {"data"}


# --- what may not be a variable ------------------------------------------------------------------------

MOVES = dpl.PrivacyUnit(moves_block=True)
BOUNDS = dict.fromkeys(("y", "x", "w", "block", "id", "link_score", "link_probability"), (0.5, 2))
LEVELS = {"block": ["a", "b"], "link_block": ["a", "b"]}


def prepare(formula: str, linkage, unit: dpl.PrivacyUnit | None = None) -> None:
    used = {name: ends for name, ends in BOUNDS.items() if name != "block" or "C(block)" not in formula}
    dpl.Study(
        **{**NAMED, "formula": formula, "bounds": used, "linkage": linkage, "unit": unit or dpl.PrivacyUnit()},
        levels=LEVELS,
    ).prepare()


@pytest.mark.parametrize("unit", [dpl.PrivacyUnit(), MOVES])
@pytest.mark.parametrize("response", ["block", "log(block)", "I(block + w)"])
def test_the_block_column_is_no_response(response: str, unit: dpl.PrivacyUnit) -> None:
    with pytest.raises(dpl.StudyError, match="The response is made of 'block'"):
        prepare(f"{response} ~ x", dpl.ELE(0.9, "block", other=0.8), unit)


@pytest.mark.parametrize("term", ["block", "C(block)", "C(block):x", "x*block", "I(x + block)", "log(block)"])
def test_the_block_column_is_a_regressor_only_if_it_may_move(term: str) -> None:
    linkage = dpl.ELE(0.9, "block", other=0.8)
    for unit in (dpl.PrivacyUnit(), dpl.PrivacyUnit(linkage_change=1.0), dpl.PrivacyUnit(True, 0, 1.0)):
        with pytest.raises(dpl.StudyError, match="'block', the column of the blocks"):
            prepare(f"y ~ {term}", linkage, unit)
    prepare(f"y ~ {term}", linkage, MOVES)
    prepare(f"y ~ {term}", dpl.ELE(0.9, "state"))


@pytest.mark.parametrize("name", ["link_score", "link_probability", "C(link_block)"])
@pytest.mark.parametrize("linkage", [dpl.Exact(), dpl.ELE(0.9)])
def test_results_of_linking_are_no_variables(name: str, linkage) -> None:
    with pytest.raises(dpl.StudyError, match="a result of linking"):
        prepare(f"y ~ x + {name}", linkage)
    if "C(" not in name:
        with pytest.raises(dpl.StudyError, match="a result of linking"):
            prepare(f"sqrt({name}) ~ x", linkage)


@pytest.mark.parametrize("formula", ["y ~ id", "id ~ x", "y ~ x:I(id**2)"])
def test_ids_of_a_matching_matrix_are_no_variables(formula: str) -> None:
    pairs = {"row": [0], "match": [0], "probability": [1.0]}
    unit = dpl.PrivacyUnit(linkage_change=0.0, displaced_links=0)
    with pytest.raises(dpl.StudyError, match="by which the matching matrix knows the rows"):
        prepare(formula, dpl.Matching(pairs, id="id"), unit)
    prepare("y ~ x", dpl.Matching(pairs, id="id"), unit)


# --- what a linkage declares -------------------------------------------------------------------------

STUDY = """
[model]
formula = "y ~ x"
[bounds]
y = [0, 1]
x = [0, 1]
[privacy]
epsilon = 1.0
delta = 1e-6
[linkage]
accuracy = 0.9
"""


@pytest.mark.parametrize("known", [{"checked": 1000}, {"accuracy_error": 0.01}])
def test_an_accuracy_from_checked_links_says_where_they_were(known, tmp_path) -> None:
    with pytest.raises(dpl.StudyError, match=r"needs its source.*'public'.*other files.*'released'.*'estimated'"):
        dpl.ELE(0.9, "state", **known)
    assert dpl.ELE(0.9, "state", source="public", **known).source == "public"
    assert dpl.ELE(0.9, "state").source == "public"  # nothing was checked: known from elsewhere
    ((name, value),) = known.items()
    with pytest.raises(dpl.StudyError, match="needs its source"):
        dpl.Study.from_text(f"{STUDY}{name} = {value}\n", tmp_path)
    assert dpl.Study.from_text(f'{STUDY}{name} = {value}\nsource = "public"\n', tmp_path).linkage.source == "public"


def test_carriers_are_declared_shown_and_promised(tmp_path) -> None:
    one, two = (dpl.Study.from_text(f"{STUDY}carriers = {carriers}\n", tmp_path) for carriers in (1, 2))
    assert one.request([]) == dpl.Study.from_text(STUDY, tmp_path).request([])
    assert "carriers" not in one.linkage.identity()
    assert two.linkage.identity()["carriers"] == two.linkage.describe().carriers == 2
    assert two.prepare()[1].carriers == 2
    hidden = dpl.ELE(0.9, "state", source="estimated", accuracy_min=0.5, carriers=3)
    assert hidden.describe().carriers == hidden.public.carriers == 3
    known = dpl.ELE(0.9, checked=100, source="estimated", accuracy_min=0.5, carriers=3)
    assert known.audit_change(dpl.PrivacyUnit(displaced_links=2), 1000) == 2 * 1000 * (1 + 3 + 2) / 100
    assert "links are one to one" in one.unit.describe()
    assert "response is on at most 2 rows" in two.unit.describe(2)
    for wrong in (0, True, 1.5, "2"):
        with pytest.raises(dpl.StudyError, match="carriers must be a whole number"):
            dpl.ELE(0.9, carriers=wrong)
    with pytest.raises(dpl.StudyError, match="one to one"):
        dpl.Study(**{**NAMED, "linkage": dpl.ELE(0.9, source="released", paid=0.1, displaced_links=0, carriers=2)})


def test_symmetric_errors_are_declared_and_told(tmp_path) -> None:
    """In study files, to the ledger, whose earlier requests stay what they were, and by the release."""
    plain, any_, symmetric = (
        dpl.Study.from_text(STUDY.replace("[bounds]", f"{line}\n[bounds]"), tmp_path)
        for line in ("", 'errors = "any"', 'errors = "symmetric"')
    )
    assert plain.request([]) == any_.request([])
    assert "errors" not in plain.request([])
    assert symmetric.request([])["errors"] == "symmetric"
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, 4000)
    rows = {"x": x, "y": 0.2 + 0.6 * x + 0.05 * rng.standard_normal(x.size)}
    for study, said in ((plain, False), (symmetric, True)):
        release = dpl.fit_study(study, rows)
        assert "right residuals" in [part.name for part in release.released.parts]
        told = (release.summary(), release.to_html(), release.to_markdown())
        assert [" ".join(text.split()).count("declared symmetric") > 0 for text in told] == [said] * 3
        assert dpl.Release.from_json(release.to_json()) == release
        assert release.declared.errors == study.errors
        assert release.submodel("y ~ 1").declared.errors == study.errors


def test_what_becomes_of_missing_cells_is_declared_and_told(tmp_path) -> None:
    """Requests that say nothing are those of versions that had no choice. What a release says does not hang on whether cells are missing."""
    drop, fill = (
        dpl.Study.from_text(STUDY.replace("[bounds]", f"{line}\n[bounds]"), tmp_path)
        for line in ("", 'missing = "fill"')
    )
    assert fill.request([]) == {**drop.request([]), "missing": "fill"}
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, 4000)
    rows = {"x": x, "y": 0.2 + 0.6 * x + 0.05 * rng.standard_normal(x.size)}
    holes = {**rows, "x": np.where(rng.random(x.size) < 0.1, np.nan, x)}
    weak = {**rows, "y": rng.choice([0.0, 1.0], x.size)}
    for study, data, said in (
        (drop, rows, "Rows with a missing cell are left out"),
        (drop, holes, "Rows with a missing cell are left out"),
        (drop, weak, "are not left out of this release, which has no second stage"),
        (fill, rows, "Missing cells, if there are any, count as values in the middle"),
    ):
        release = dpl.fit_study(study, data)
        assert said in " ".join(release.to_html().split())
        assert ("no second stage" in " ".join(release.summary().split())) == (data is weak)
        assert dpl.Release.from_json(release.to_json()) == release
        assert release.submodel("y ~ 1").declared.missing == study.missing


def test_a_release_says_how_many_rows_carry_a_response() -> None:
    rows = {"y": [0.1, 0.9] * 40, "x": [0.2, 0.8] * 40}
    settings = {name: value for name, value in NAMED.items() if name not in ("linkage", "formula")}
    for carriers, said in ((1, "links are one to one"), (5, "at most 5 rows")):
        release = dpl.fit(rows, "y ~ x", linkage=dpl.ELE(0.9, carriers=carriers), **settings)
        assert said in release.privacy.statement
        assert said in release.to_html()
        assert dpl.Release.from_json(release.to_json()) == release
        assert release.linkage.carriers == (None if carriers == 1 else carriers)


def test_one_person_always_moves_estimated_accuracies() -> None:
    hidden = dpl.ELE(0.9, "state", checked=100, source="estimated", accuracy_min=0.5)
    for change in (None, 0.0):
        with pytest.raises(dpl.StudyError, match="M above 0"):
            hidden.check_source(dpl.PrivacyUnit(linkage_change=change))
    hidden.check_source(dpl.PrivacyUnit(linkage_change=1.0))


def test_the_error_of_estimated_accuracies_is_no_setting() -> None:
    hidden = dpl.ELE(0.9, "state", accuracy_error=0.01234, source="estimated", accuracy_min=0.5)
    with pytest.raises(dpl.StudyError, match="Give one public number") as fault:
        hidden.check_source(dpl.PrivacyUnit(linkage_change=1.0))
    assert "0.01234" not in str(fault.value)


@pytest.mark.parametrize(("name", "told"), [("study.toml", True), ("rows.csv", False)])
def test_the_line_of_a_fault_is_told_of_study_files_only(tmp_path: Path, name: str, told: bool) -> None:
    (tmp_path / name).write_text("a = 1\nb = 2\nsecret secret\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="not valid TOML") as fault:
        dpl.Study.from_toml(tmp_path / name)
    assert ("line 3" in str(fault.value)) is told


@pytest.mark.parametrize(
    "count", [731.5, [731.5], [731, 731.5], pd.Series([731.5]), np.array([731, 732]), "731", (True,), iter([731])]
)
def test_a_plan_takes_whole_numbers_of_rows_only(count: Any) -> None:
    with pytest.raises(dpl.StudyError, match=r"whole number of rows \(int\)") as fault:
        dpl.plan(count, "y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=dpl.Exact(), epsilon=1.0, delta=1e-6)
    assert "731" not in str(fault.value)
    assert fault.value.__context__ is None


def test_faults_of_study_files_are_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(dpl.StudyError, match=r"'none\.toml' does not exist"):
        dpl.Study.from_toml(tmp_path / "none.toml")
    twice = tmp_path / "twice.toml"
    twice.write_text("[linkage]\nmodel = 'exact'\n[linkage]\nmodel = 'ele'\n")
    with pytest.raises(dpl.StudyError, match=r"The section \[linkage\] stands there twice"):
        dpl.Study.from_toml(twice)
