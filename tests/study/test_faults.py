"""What is missing or wrong in a study's text: all at once, each at its setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomlkit

import dplinked as dpl
from dplinked.study.columns import FormulaParts, join_formula, named_columns, split_formula
from dplinked.study.faults import SettingFault, find_faults, say_faults
from studies import LEDGER_STUDY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "linked.parquet").touch()
    return tmp_path


def written(**changes: Any) -> str:
    """The study with settings changed, called ``section__key``; None takes one away."""
    document: Any = tomlkit.parse(LEDGER_STUDY)
    for name, value in changes.items():
        section, key = name.split("__")
        table = document.setdefault(section, tomlkit.table())
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return tomlkit.dumps(document)


def places(found: list[SettingFault]) -> set[tuple[str, str]]:
    return {(one.section, one.key) for one in found}


def test_a_study_that_is_complete_has_no_faults(folder: Path) -> None:
    assert find_faults(LEDGER_STUDY, folder) == []


def test_a_blank_study_lacks_things_and_nothing_is_wrong(folder: Path) -> None:
    from dplinked.studio.draft import BLANK

    for text in (BLANK, ""):
        found = find_faults(text, folder)
        assert all(one.missing for one in found)
        assert {("model", "formula"), ("linkage", "accuracy"), ("data", "path")} <= places(found) or not text
    said = say_faults(find_faults(BLANK, folder))
    assert said == "Still missing: the data file, the formula and the share of links that are right."


def test_all_faults_are_found_at_once(folder: Path) -> None:
    text = written(
        data__path="absent.parquet",
        bounds__income=[9, 2],
        bounds__consumption=[0],
        levels__region=["north"],
        linkage__accuracy=91,
        linkage__checked=0,
        unit__displaced_links=-1,
        privacy__epsilon=-1.0,
        privacy__delta=2.0,
        ledger__url=None,
    )
    found = {(one.section, one.key): one for one in find_faults(text, folder)}
    assert set(found) == {
        ("data", "path"), ("bounds", "income"), ("bounds", "consumption"), ("levels", "region"), ("linkage", "accuracy"),
        ("linkage", "checked"), ("unit", "displaced_links"), ("privacy", "epsilon"), ("privacy", "delta"), ("ledger", "url"),
    }  # fmt: skip
    assert found["bounds", "income"].text == "Highest must be larger than lowest."
    assert found["bounds", "consumption"].text == "Say both the lowest and the highest value."
    assert found["linkage", "accuracy"].text == "Write a share: 0.91 for 91 %."
    assert [key for key, one in found.items() if one.missing] == [
        ("bounds", "consumption"),
        ("levels", "region"),
        ("ledger", "url"),
    ]


COUNTS = {"model__family": "poisson", "model__formula": "consumption ~ income", "typical__income": None}
WRONG: list[tuple[tuple[str, str], dict[str, Any]]] = [
    (("model", "formula"), {"model__formula": "consumption ~ scale(income)"}),
    (("model", "formula"), {"model__formula": "C(region) ~ income", "typical__income": [1, 2]}),
    (("bounds", "income"), {"bounds__income": ["a", "b"]}),
    (("bounds", "income"), {"model__formula": "consumption ~ log(income)"}),
    (("bounds", "consumption"), COUNTS),
    (("bounds", "consumption"), {**COUNTS, "bounds__consumption": [0, 2.5]}),
    (("bounds", "years"), {**COUNTS, "bounds__consumption": [0, 9], "model__exposure": "years", "bounds__years": [0, 1]}),
    (("bounds", "w"), {"model__weights": "w", "bounds__w": [-1, 2]}),
    (("bounds", "w"), {"model__weights": "w"}),
    (("model", "exposure"), {"model__exposure": "income"}),
    (("model", "goodness"), {**COUNTS, "bounds__consumption": [0, 9], "model__goodness": True}),
    (("model", "where"), {"model__where": "region > 'north'"}),
    (("model", "where"), {"model__where": "income >"}),
    (("model", "where"), {"model__where": "income > 1e9"}),
    (("levels", "state"), {"model__by": "state"}),
    (("typical", "income"), {"typical__income": [2, 1]}),
    (("typical", "income"), {"typical__income": [1]}),
    (("typical", "income"), {"typical__income": [1, 1e9]}),
    (("typical", "age"), {"typical__age": [1, 2]}),
    (("fill", "income"), {"fill__income": -5}),
    (("units", "income"), {"units__income": " "}),
    (("levels", "region"), {"levels__region": ["a", "a"]}),
    (("levels", "died"), {"model__family": "logistic", "model__formula": "died ~ income", "levels__died": ["a", "b", "c"]}),
    (("linkage", "accuracy"), {"linkage__accuracy": {"nsw": 2.0}}),
    (("linkage", "accuracy"), {"linkage__accuracy": "a"}),
    (("linkage", "block"), {"linkage__accuracy": {"nsw": 0.9}, "linkage__block": None}),
    (("linkage", "block"), {"linkage__block": "region"}),
    (("linkage", "block"), {"linkage__block": "consumption"}),
    (("linkage", "source"), {"linkage__checked": 100}),
    (("linkage", "fields"), {"linkage__checked": 100, "linkage__source": "identifiers"}),
    (("linkage", "fields"), {"linkage__checked": 100, "linkage__source": "identifiers", "linkage__fields": ["income"]}),
    (("linkage", "checked"), {"linkage__source": "identifiers", "linkage__fields": ["surname"]}),
    (("linkage", "source"), {"linkage__checked": 9, "linkage__source": "identifiers", "linkage__fields": ["surname"], "unit__moves_block": True}),
    (("linkage", "paid"), {"linkage__source": "released", "linkage__displaced_links": 0}),
    (("linkage", "displaced_links"), {"linkage__source": "released", "linkage__paid": 0.3}),
    (("linkage", "source"), {"linkage__source": "released", "linkage__paid": 0.3, "linkage__displaced_links": 0, "unit__displaced_links": 1}),
    (("linkage", "accuracy_min"), {"linkage__source": "estimated", "unit__linkage_change": 2.0}),
    (("unit", "linkage_change"), {"linkage__source": "estimated", "linkage__accuracy_min": 0.5}),
    (("unit", "linkage_change"), {"unit__linkage_change": -2.0}),
    (("unit", "rows"), {"unit__rows": 0}),
    (("unit", "id"), {"unit__rows": 2, "unit__response_id": "b"}),
    (("unit", "response_id"), {"unit__rows": 2, "unit__id": "a"}),
    (("unit", "response_id"), {"unit__rows": 2, "unit__id": "a", "unit__response_id": "a"}),
    (("unit", "rows"), {"unit__rows": 2, "unit__id": "a", "unit__response_id": "b", "unit__displaced_links": 1}),
    (("unit", "id"), {"unit__id": "a"}),
    (("privacy", "epsilon"), {"privacy__epsilon": None}),
    (("privacy", "epsilon"), {"privacy__epsilon": 50.0}),
    (("privacy", "epsilon"), {"privacy__epsilon": 1e-9}),
    (("privacy", "delta"), {"privacy__delta": 1e-200}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "changes"), WRONG)
def test_what_a_study_refuses_is_told_at_its_setting(folder: Path, place: tuple[str, str], changes: dict[str, Any]) -> None:  # fmt: skip
    text = written(**changes)
    with pytest.raises(dpl.StudyError):
        dpl.Study.from_text(text, folder)
    found = find_faults(text, folder)
    assert place in places(found)
    for one in found:
        told = one.text
        assert told.endswith(".")
        assert not any(word in told for word in ("dpl.", "=…", "family=", "levels={", "bounds={", "None")), told


RIGHT: list[dict[str, Any]] = [
    {"model__formula": "consumption ~ income", "linkage__block": "region"},
    {"model__formula": "log(consumption) ~ I(income**2) + region", "bounds__consumption": [1, 9]},
    {"model__formula": "cbind(consumption, savings) ~ income", "bounds__savings": [0, 9]},
    {"model__weights": "w", "bounds__w": [0.5, 2], "model__where": "income > 3 and region == 'north'"},
    {"model__by": "quarter", "levels__quarter": ["a", "b"]},
    {
        "model__family": "logistic",
        "model__formula": "died ~ income",
        "levels__died": ["no", "yes"],
        "bounds__consumption": None,
    },
    {
        **COUNTS,
        "bounds__consumption": [0, 40],
        "model__exposure": "years",
        "bounds__years": [0.5, 3],
        "typical__income": [1, 5],
    },
    {"linkage__accuracy": {"nsw": 0.9, "vic": 0.8}, "linkage__other": 0.7},
    {"linkage__source": "released", "linkage__paid": 0.3, "linkage__displaced_links": 1, "unit__displaced_links": 1},
    {"linkage__checked": 100, "linkage__source": "identifiers", "linkage__fields": ["surname"]},
    {"linkage__source": "estimated", "linkage__accuracy_min": 0.5, "unit__linkage_change": 2.0},
    {"unit__rows": 3, "unit__id": "a", "unit__response_id": "b"},
    {"privacy__epsilon": 50.0, "privacy__large_epsilon": True},
    {"units__income": "euros", "fill__income": 3.0, "model__missing": "fill"},
]


@pytest.mark.parametrize("changes", RIGHT)
def test_what_a_study_accepts_has_no_faults(folder: Path, changes: dict[str, Any]) -> None:
    text = written(**changes)
    dpl.Study.from_text(text, folder)
    assert find_faults(text, folder) == []


def test_what_is_about_no_single_setting_is_told_in_the_librarys_words(folder: Path) -> None:
    for text in (
        written(model__method="ngd", model__calibration="paper"),
        written(model__ridge=1.0, model__by="quarter", levels__quarter=["a", "b"]),
        "a = = 1",
        written(model__unknown=1),
    ):
        (fault,) = find_faults(text, folder)
        with pytest.raises(dpl.StudyError) as refusal:
            dpl.Study.from_text(text, folder)
        assert (fault.section, fault.key, fault.text) == ("", "", str(refusal.value))


def test_odd_values_are_faults_and_no_errors(folder: Path) -> None:
    """Texts of users hold anything."""
    for value in (None, 1, "a", [], [1, 2, 3], {"a": 1}, True, [["a"]], float("nan")):
        for name in ("bounds__income", "levels__region", "typical__income", "units__income", "fill__income", "model__formula",
                     "model__where", "model__by", "model__weights", "linkage__accuracy", "linkage__checked", "linkage__source",
                     "unit__rows", "unit__displaced_links", "privacy__epsilon", "privacy__delta", "ledger__url"):  # fmt: skip
            text = written(**{name: value})
            found = find_faults(text, folder)
            try:
                dpl.Study.from_text(text, folder)
                refused = False
            except dpl.StudyError:
                refused = True
            assert bool(found) == refused, (name, value, found)


# --- formulas as lists of columns -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "parts"),
    [
        ("y ~ x + C(z)", FormulaParts("y", ("x",), ("z",))),
        ("y ~ x + z", FormulaParts("y", ("x",), ("z",))),
        ("y ~ x + C(z) + x:z + log(w)", FormulaParts("y", ("x",), ("z",), "x:z + log(w)")),
        ("log(y) ~ 0 + I(x + w)", FormulaParts("log(y)", (), (), "0 + I(x + w)")),
        ("`a ~ b` ~ x - 1", FormulaParts("`a", (), (), "b` ~ x - 1")),
        ("`a+b` ~ `c d` + C(`e f`)", FormulaParts("a+b", ("c d",), ("e f",))),
        ("cbind(a, b) ~ x", FormulaParts("cbind(a, b)", ("x",))),
        ("", FormulaParts()),
    ],
)  # fmt: skip
def test_a_formula_is_a_list_of_columns_and_what_is_left(formula: str, parts: FormulaParts) -> None:
    assert split_formula(formula, ["z"]) == parts
    if "~ b`" not in formula:
        assert split_formula(join_formula(parts), ["z"]) == parts


def test_lists_of_columns_name_the_same_columns() -> None:
    for formula in ("y ~ x + C(z) + x:w", "`a b` ~ `c+d` + C(`class`)"):
        assert named_columns(join_formula(split_formula(formula)), []) == named_columns(formula, [])


def test_columns_that_the_file_lacks_are_said_beside_the_formula(folder: Path) -> None:
    text = LEDGER_STUDY.replace("income + ", "incom + ")
    found = {
        (one.section, one.key): one.text
        for one in find_faults(text, folder, columns=["income", "consumption", "region"])
    }
    assert found["model", "formula"] == "The file has no column 'incom'. Did you mean 'income'?"
    assert ("bounds", "incom") not in found
    assert ("bounds", "incom") in places(find_faults(text, folder))
    assert find_faults(LEDGER_STUDY, folder, columns=["income", "consumption", "region", "state"], count=2_000) == []


@pytest.mark.parametrize(
    ("delta", "count", "wrong"), [(0.5, None, True), (0.4, None, False), (5e-4, 2_000, True), (4e-4, 2_000, False)]
)
def test_a_delta_that_publishes_a_row_is_said_beside_its_field(
    folder: Path, delta: float, count: int | None, wrong: bool
) -> None:
    found = find_faults(written(privacy__delta=delta), folder, count=count)
    assert places(found) == ({("privacy", "delta")} if wrong else set())


def test_bounds_too_large_to_compute_with_are_said_beside_them(folder: Path) -> None:
    (fault,) = find_faults(written(bounds__income=[0, 1e300]), folder)
    assert (fault.section, fault.key) == ("bounds", "income")
