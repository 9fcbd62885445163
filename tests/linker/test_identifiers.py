"""Accuracies that a check of identifiers found: used as they are, and only where identifiers are not protected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.linker.accuracies import LEAST_SHOWN
from dplinked.simulate import linked_households

SETTINGS: dict[str, Any] = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "epsilon": 1.0,
    "delta": 1e-6,
}


def found(**settings: Any) -> dpl.ELE:
    return dpl.ELE(0.9, block="state", source="identifiers", **{"checked": 500, "fields": ["surname"], **settings})


def prepare(linkage: dpl.ELE, unit: dpl.PrivacyUnit, formula: str = "consumption ~ income") -> None:
    bounds = {**SETTINGS["bounds"], "income_right": (0, 150_000)}
    dpl.Study(formula=formula, linkage=linkage, unit=unit, **{**SETTINGS, "bounds": bounds}).prepare()


def test_needs_the_columns_that_were_looked_at_and_how_many_links() -> None:
    for fields in (None, [], "surname", [1]):
        with pytest.raises(dpl.StudyError, match="needs fields"):
            found(fields=fields)
    with pytest.raises(dpl.StudyError, match="how many links were checked"):
        found(checked=None)
    with pytest.raises(dpl.StudyError, match="a list of the names"):
        dpl.ELE(0.9, fields="surname")
    assert dpl.ELE(0.9, fields=["surname"]).looked_at(["surname"]) == []
    with pytest.raises(dpl.StudyError, match="needs its source"):
        dpl.ELE(0.9, checked=500)


@pytest.mark.parametrize(
    "unit",
    [dpl.PrivacyUnit(moves_block=True), dpl.PrivacyUnit(displaced_links=1), dpl.PrivacyUnit(linkage_change=1.0)],
)
def test_is_refused_where_identifiers_are_protected(unit: dpl.PrivacyUnit) -> None:
    prepare(found(), dpl.PrivacyUnit())
    with pytest.raises(dpl.StudyError, match="which this unit protects"):
        prepare(found(), unit)


def test_asks_for_the_unit() -> None:
    with pytest.raises(dpl.StudyError, match="State it"):
        dpl.Study(formula="consumption ~ income", linkage=found(), **SETTINGS)


@pytest.mark.parametrize("formula", ["consumption ~ income", "income ~ consumption", "consumption ~ income_right"])
def test_is_refused_where_the_formula_uses_what_was_looked_at(formula: str) -> None:
    with pytest.raises(dpl.StudyError, match="which linking or checking the links looked at"):
        prepare(found(fields=["surname", "income"]), dpl.PrivacyUnit(), formula)


def test_the_release_says_what_it_rests_on() -> None:
    release = dpl.fit(
        linked_households(5_000, seed=1), "consumption ~ income", linkage=found(), unit=dpl.PrivacyUnit(), **SETTINGS
    )
    assert release.linkage.fields == ("surname",)
    assert any("a check of identifiers found it" in said for said in release.privacy.assumed_public)
    page = release.to_html()
    assert "Linking and checking the links looked at surname alone" in page
    assert "no noise was added" in page
    assert dpl.Release.from_json(release.to_json()) == release


def two_files(amounts: np.ndarray) -> tuple[pa.Table, pa.Table]:
    names = [f"{k * 7919 % 10007:05} {k:04}" for k in range(amounts.size)]
    blocks = ["large"] * (amounts.size - 14) + ["small"] * 8 + ["tiny"] * 6
    left = pa.table({"surname": names, "place": blocks, "income": amounts})
    return left, pa.table({"surname": names[::-1], "place": blocks[::-1], "consumption": amounts[::-1] / 2.0})


def answer(sample: pa.Table, *wrong: str) -> pa.Table:
    """Find all links right, but for those of some blocks."""
    answers = ["no" if block in wrong else "yes" for block in sample["block"].to_pylist()]
    return sample.set_column(sample.column_names.index("correct"), "correct", pa.array(answers))


def checked_links(amounts: np.ndarray, *wrong: str) -> dpl.ELE:
    linked = dpl.link(*two_files(amounts), fields=[dpl.Field("surname", compare="exact")], block="place")
    return linked.audited(answer(linked.audit_sample(amounts.size), *wrong)).linkage_by_identifiers()


def test_no_amount_changes_what_the_check_found() -> None:
    """The promise needs it: accuracies are no function of the columns of the formula."""
    amounts = np.random.default_rng(1).uniform(0.0, 1e5, 200)
    one, other = checked_links(amounts), checked_links(amounts[::-1] + 7.0)
    assert one == other
    assert set(one.fields or ()) == {"surname", "place"}
    assert one.source == "identifiers"


def test_groups_with_few_checked_links_share_their_accuracy() -> None:
    """Six wrong links of a tiny group show only together with those of the other small one."""
    accuracy = checked_links(np.arange(200.0), "tiny").accuracy
    assert LEAST_SHOWN == 10
    assert accuracy["small"] == accuracy["tiny"] < accuracy["large"]


def test_links_made_elsewhere_need_their_columns() -> None:
    left, right = two_files(np.arange(100.0))
    pairs = pa.table({"left": [str(k + 1) for k in range(100)], "right": [str(100 - k) for k in range(100)]})
    linked = dpl.link(left, right, method="pairs", pairs=pairs)
    with pytest.raises(dpl.StudyError, match="No links were checked"):
        linked.linkage_by_identifiers()
    linked = linked.audited(answer(linked.audit_sample(100)))
    with pytest.raises(dpl.StudyError, match="by which columns"):
        linked.linkage_by_identifiers()
    assert linked.linkage_by_identifiers(["surname"]).fields == ("surname",)
