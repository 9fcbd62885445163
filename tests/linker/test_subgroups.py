"""Quality by subgroup, audits that are drawn by the levels of a variable, and what is said of formulas with linking fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dplinked as dpl
from dplinked.check import check_study
from dplinked.cli.main import app
from dplinked.linkage.compared import find_compared
from dplinked.linker.audit import count_answers
from dplinked.linker.subgroups import MISSING, read_levels
from dplinked.simulate import TwoFiles, review_links, two_files

FIELDS = ["given_name", "surname", "date_of_birth"]
MODEL: dict[str, Any] = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000), "age": (0, 120), "birth_year": (1900, 2020)},
    "epsilon": 1.0,
    "delta": 1e-6,
}


def files_with_sex() -> TwoFiles:
    """Files in which one woman in ten has her surname missing in the left file, and women are one person in ten."""
    files = two_files(1500, 4, errors=2.0)
    rng = np.random.default_rng(5)
    woman = rng.random(1500) < 0.1
    lost = woman & (rng.random(1500) < 0.7)
    left = files.left
    for name in ("surname", "given_name"):
        cells = [None if gone else cell for gone, cell in zip(lost, left[name].to_pylist(), strict=True)]
        left = left.set_column(left.column_names.index(name), name, pa.array(cells, pa.string()))
    years = [None if cell is None else int(cell[:4]) for cell in left["date_of_birth"].to_pylist()]
    left = left.append_column("sex", pa.array(np.where(woman, "f", "m").tolist()))
    left = left.append_column("age", pa.array([50.0 if y is None else 2020.0 - y for y in years]))
    return TwoFiles(left, files.right, files.truth, files.owner)


@pytest.fixture(scope="module")
def files() -> TwoFiles:
    return files_with_sex()


@pytest.fixture(scope="module")
def linked(files: TwoFiles) -> dpl.Linked:
    return dpl.link(files.left, files.right, fields=FIELDS, id="id", block="state")


@pytest.fixture(scope="module")
def by_sex(files: TwoFiles, linked: dpl.Linked) -> dpl.Linked:
    return linked.audited(review_links(linked.audit_sample(400, by="sex"), files))


# --- quality by subgroup -----------------------------------------------------------------------------


def test_estimated_quality_follows_the_truth_on_each_level(files: TwoFiles, linked: dpl.Linked) -> None:
    right = files.are_right(linked.links.right)
    sex = np.array(files.left["sex"].to_pylist())
    for level, found in linked.quality_by("sex").items():
        assert found.rows == (sex == level).sum()
        assert found.estimated is not None
        assert found.estimated[1] <= right[sex == level].mean() <= found.estimated[2]
        assert (found.checked, found.audited) == (0, None)
    assert right[sex == "f"].mean() < right[sex == "m"].mean() - 0.05, "this test is of levels that differ"


def test_audits_by_a_variable_draw_as_many_of_each_level_and_tell_of_all(files: TwoFiles, linked: dpl.Linked) -> None:
    right, sex = files.are_right(linked.links.right), np.array(files.left["sex"].to_pylist())
    held = {"f": 0, "m": 0}
    overall = []
    for seed in range(20):
        checked = linked.audited(review_links(linked.audit_sample(300, seed, by="sex"), files))
        for level, found in checked.quality_by("sex").items():
            assert found.checked > 90
            assert found.audited is not None
            held[level] += found.audited[1] <= right[sex == level].mean() <= found.audited[2]
        overall.append(checked.estimates[0].overall[0])
    assert min(held.values()) >= 16, "exact intervals hold 95 %; below 16 of 20 is three in a thousand"
    error = np.std(overall, ddof=1) / np.sqrt(len(overall))
    assert abs(np.mean(overall) - right.mean()) < 4 * error + 0.004, "weights make up for the unequal chances"
    unweighted = 0.5 * (right[sex == "f"].mean() + right[sex == "m"].mean())
    assert abs(np.mean(overall) - right.mean()) < abs(unweighted - right.mean()) / 2


def test_effective_counts_are_the_counts_where_chances_are_equal() -> None:
    of_row, answers = np.array([0, 0, 1, 0]), np.array([True, False, True, True])
    for chance in (None, np.full(4, 0.2)):
        good, checked = count_answers(of_row, 3, answers, chance)
        assert good == pytest.approx([2, 1, 0])
        assert checked == pytest.approx([3, 1, 0])
    good, checked = count_answers(np.zeros(2, int), 1, np.array([True, False]), np.array([0.1, 0.9]))
    assert good / checked == pytest.approx([0.9])
    assert checked[0] < 1.3


def test_levels_of_numbers_are_classes_and_many_texts_are_refused(files: TwoFiles, linked: dpl.Linked) -> None:
    income = linked.quality_by("income")
    assert len(income) == 4
    assert sum(one.rows for one in income.values()) == 1500
    found = read_levels(pa.chunked_array([[1, None, 2]]), "x")
    assert found.names == ("1", "2", MISSING)
    assert found.of_row.tolist() == [0, 2, 1]
    with pytest.raises(dpl.StudyError, match="too many levels"):
        linked.quality_by("surname")
    with pytest.raises(dpl.StudyError, match=r"'sx'.*Did you mean 'sex'"):
        linked.quality_by("sx")
    with pytest.raises(dpl.StudyError, match="a list of names"):
        linked.summary(by="sex")


def test_the_report_tells_of_levels_and_where_they_differ(by_sex: dpl.Linked) -> None:
    text = by_sex.summary(["sex"])
    assert "Quality by subgroup" in text
    assert "Links differ with sex" in text
    assert "Quality by subgroup" in by_sex.to_html(by=["sex"])
    assert "Quality by subgroup" not in by_sex.summary()
    assert repr(by_sex.quality_by("sex")["f"]) == "LevelQuality(for the steward)"


# --- what such an audit may be used for --------------------------------------------------------------


def test_audits_by_a_variable_are_not_released_nor_hidden_nor_secret(
    by_sex: dpl.Linked, linked: dpl.Linked, tmp_path: Path
) -> None:
    with pytest.raises(dpl.StudyError, match="drawn by the levels of 'sex'"):
        dpl.release_accuracy(by_sex, epsilon=1.0, delta=1e-6, unit=dpl.PrivacyUnit())
    with pytest.raises(dpl.StudyError, match="same chance"):
        linked.audit_sample(400, by="sex", key=tmp_path / "key")
    assert not (tmp_path / "key").exists()
    assert by_sex.linkage.checked is None, "the estimate stands for it"
    with pytest.raises(dpl.StudyError, match="too small for 2 levels"):
        linked.audit_sample(9, by="sex")


def test_a_secret_audit_tells_nothing_by_subgroup(files: TwoFiles, linked: dpl.Linked, tmp_path: Path) -> None:
    sample = review_links(linked.audit_sample(400, key=tmp_path / "key"), files)
    secret = linked.audited(sample, key=tmp_path / "key", size=400)
    assert all(one.checked == 0 and one.audited is None for one in secret.quality_by("sex").values())


def test_accuracies_by_identifiers_are_not_those_of_links_drawn_by_another_variable(by_sex: dpl.Linked) -> None:
    """Who is checked depends on it, so that accuracies without noise would tell of it."""
    with pytest.raises(dpl.StudyError, match=r"drawn by the levels of 'sex'"):
        by_sex.linkage_by_identifiers()


@pytest.mark.parametrize("change", [{"chance": 0.0}, {"drawn by": None}, {"chance": 7.0}])
def test_chances_that_were_touched_are_refused(files: TwoFiles, linked: dpl.Linked, change: dict[str, Any]) -> None:
    sample = review_links(linked.audit_sample(400, by="sex"), files).to_pydict()
    (name, value), *_ = change.items()
    sample[name][3] = value
    with pytest.raises(dpl.StudyError, match="as audit_sample"):
        linked.audited(sample)


def test_the_command_line_draws_and_reports_by_a_variable(files: TwoFiles, tmp_path: Path) -> None:
    for name, table in (("a", files.left), ("b", files.right)):
        pq.write_table(table.slice(0, 400) if name == "a" else table, tmp_path / f"{name}.parquet")
    call = [
        "link",
        str(tmp_path / "a.parquet"),
        str(tmp_path / "b.parquet"),
        "--id",
        "id",
        "--out",
        str(tmp_path / "o"),
    ]
    for field in FIELDS:
        call += ["--field", field]
    drawn = [*call, "--audit-sample", "120", "--audit-by", "sex", "--by", "sex"]
    told = CliRunner().invoke(app, drawn)
    assert told.exit_code == 0, told.output
    assert "Quality by subgroup" in told.output
    assert set(pyarrow.csv.read_csv(tmp_path / "o/audit.csv")["drawn by"].to_pylist()) == {"sex"}
    with pytest.raises(dpl.StudyError, match="--audit-by needs"):
        CliRunner().invoke(app, [*call, "--audit-by", "sex"], catch_exceptions=False)


# --- formulas with linking fields --------------------------------------------------------------------


def test_names_tell_which_variables_were_compared_or_made_of_such() -> None:
    fields = ["surname", "date_of_birth", "postcode"]
    assert find_compared(["income", "postcode", "surname_right"], fields) == {
        "postcode": "postcode",
        "surname_right": "surname",
    }
    assert find_compared(["age", "birthYear", "postcode_area", "wage", "message"], fields) == {
        "age": "date_of_birth",
        "birthYear": "date_of_birth",
        "postcode_area": "postcode",
    }


def study(formula: str, linkage: dpl.ELE) -> dpl.Study:
    return dpl.Study(formula=formula, linkage=linkage, unit=dpl.PrivacyUnit(), **MODEL)


def test_fit_plan_and_check_say_that_a_variable_was_compared(linked: dpl.Linked, tmp_path: Path) -> None:
    pq.write_table(linked.rows, tmp_path / "linked.parquet")
    named = dpl.ELE(0.9, block="link_block", other=0.5, source="public", fields=linked.compared)
    silent = dpl.ELE(0.9, block="link_block", other=0.5, source="public")
    lost = {name: linked.rows[name] for name in ("consumption", "income", "age", "link_block")}  # without marks
    told = "age (of date_of_birth?) may be made of what records were linked by"
    for data, linkage in ((linked.rows, silent), (tmp_path / "linked.parquet", silent), ({**lost}, named)):
        declared = study("consumption ~ income + age", linkage)
        release = dpl.fit_study(declared, data)
        assert release.declared.compared == {"age": "date_of_birth"}
        assert told in " ".join(release.summary().split())
        assert any(told in one.text for one in check_study(declared, data).findings)
    assert told in release.to_html()
    assert dpl.Release.from_json(release.to_json()) == release
    assert told in " ".join(str(dpl.plan_study(study("consumption ~ income + age", named), [1500], [1.0])).split())
    plain = dpl.fit_study(study("consumption ~ income", named), linked.rows)
    assert plain.declared.compared == {}
    assert "linked by" not in plain.summary()
    older = json.loads(plain.to_json())
    older["declared"].pop("compared")
    assert dpl.Release.from_json(json.dumps(older)) == plain, "releases that did not say it are read"


def test_linked_regression_says_it_too_and_refuses_what_was_looked_at(linked: dpl.Linked) -> None:
    rows = linked.rows.select(["income", "age"])
    settings: dict[str, Any] = {"bounds": {"income": (0, 150_000), "age": (0, 120)}, "response_bounds": (0, 120_000)}
    model = dpl.LinkedRegression(
        linkage=dpl.ELE(0.9, source="public", fields=["date_of_birth"]), epsilon=1.0, delta=1e-6, unit=dpl.PrivacyUnit(), **settings
    )  # fmt: skip
    model.fit(rows, linked.rows["consumption"])
    assert model.release_.declared.compared == {"age": "date_of_birth"}
    model.set_params(linkage=dpl.ELE(0.9, source="identifiers", checked=400, fields=["age"]))
    with pytest.raises(dpl.StudyError, match="'age' is one that linking"):
        model.fit(rows, linked.rows["consumption"])


def test_variables_made_of_what_was_looked_at_are_refused(linked: dpl.Linked) -> None:
    """As far as names tell: an age is made of a date of birth."""
    linkage = dpl.ELE(0.9, source="identifiers", checked=400, fields=["date_of_birth"])
    for variable in ("age", "birth_year", "date_of_birth_right"):
        with pytest.raises(dpl.StudyError, match=f"'{variable}'.*by its name is made of"):
            dpl.Study(
                formula=f"consumption ~ {variable}", linkage=linkage, unit=dpl.PrivacyUnit(), bounds={"consumption": (0, 1), variable: (0, 1)},
                epsilon=1.0, delta=1e-6,
            ).prepare()  # fmt: skip
    rows = linked.rows.select(["income"])
    model = dpl.LinkedRegression(
        linkage=linkage,
        epsilon=1.0,
        delta=1e-6,
        unit=dpl.PrivacyUnit(),
        bounds={"income": (0, 150_000)},
        response_bounds=(0, 120),
    )
    with pytest.raises(dpl.StudyError, match="'age' is one that linking"):
        model.fit(rows, linked.rows.select(["consumption"]).to_pandas()["consumption"].rename("age"))
    model.set_params(bounds={"income": (0, 150_000), "link_score": (0, 9)})
    with pytest.raises(dpl.StudyError, match="'link_score' is a result of linking"):
        model.fit(linked.rows.select(["income", "link_score"]), linked.rows["consumption"])
