"""Linking two files end to end: what comes out, what is written, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.check import check_study
from dplinked.data.arrow import mark_origin
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.linker.files import linkage_section
from dplinked.linker.release_accuracy import ReleasedAccuracy
from dplinked.linker.rules import FURTHER, UNLINKED
from dplinked.simulate import review_links, two_files

FIELDS = ["given_name", "surname", "date_of_birth", "address", "national_id"]
MODEL = {"bounds": {"consumption": (0, 120_000), "income": (0, 150_000)}, "epsilon": 1.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def files():
    return two_files(1500, 4, errors=1.5)


@pytest.fixture(scope="module")
def linked(files):
    return dpl.link(files.left, files.right, fields=FIELDS, id="id", block="state")


@pytest.fixture(scope="module")
def audited(files, linked):
    return linked.audited(review_links(linked.audit_sample(300), files))


def accuracy(linked, files) -> float:
    return float((linked.links.right == files.truth).mean())


# --- what comes out ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"block": "state"},
        {"block": ["state", "postcode"]},
        pytest.param({"method": "splink", "block": "state"}, marks=pytest.mark.slow),
        {},
    ],
)
def test_links_are_one_to_one_and_mostly_right(files, options) -> None:
    linked = dpl.link(files.left, files.right, fields=FIELDS, id="id", **options)
    right = linked.links.right
    assert len(set(right[right >= 0].tolist())) == (right >= 0).sum() == 1500
    assert accuracy(linked, files) > 0.97
    assert linked.estimates[0].overall[0] == pytest.approx(accuracy(linked, files), abs=0.01)


def test_every_row_of_the_left_file_stays_in_its_order(files, linked) -> None:
    rows = linked.rows
    assert rows.num_rows == files.left.num_rows
    for name in files.left.column_names:
        assert rows[name].equals(files.left[name])
    assert {"consumption", "surname_right", "link_block", "link_score", "link_probability"} <= set(rows.column_names)
    partner = files.right["consumption"].to_numpy()[linked.links.right]
    assert np.array_equal(rows["consumption"].to_numpy(), partner)


def test_rows_without_a_partner_keep_their_place(files) -> None:
    linked = dpl.link(files.left, files.right.slice(0, 900), fields=FIELDS, id="id", block="state")
    assert linked.rows.num_rows == 1500
    assert linked.rows["consumption"].null_count == 600
    model = linked.linkage
    assert model.accuracy[UNLINKED] == pytest.approx(1 / 600)
    release = dpl.fit(
        linked.rows, "consumption ~ income", linkage=dpl.ELE(dict(model.accuracy), "link_block", source="public"), unit=dpl.PrivacyUnit(),
        fill={"consumption": 23_000}, **MODEL,
    )  # fmt: skip
    assert release.count == 1500


@pytest.mark.parametrize("kind", ["pandas", "polars", "mapping", "csv", "parquet"])
def test_any_table_gives_the_same_links(files, linked, kind, tmp_path: Path) -> None:
    def convert(table: pa.Table, name: str):
        match kind:
            case "pandas":
                return table.to_pandas()
            case "polars":
                return pl.from_arrow(table)
            case "mapping":
                return {column: table[column].to_pylist() for column in table.column_names}
            case "csv":
                pyarrow.csv.write_csv(table, tmp_path / f"{name}.csv")
            case "parquet":
                pq.write_table(table, tmp_path / f"{name}.parquet")
        return tmp_path / f"{name}.{kind}"

    again = dpl.link(convert(files.left, "a"), convert(files.right, "b"), fields=FIELDS, id="id", block="state")
    assert np.array_equal(again.links.right, linked.links.right)


def test_the_same_seed_gives_the_same_links(files, linked) -> None:
    again = dpl.link(files.left, files.right, fields=FIELDS, id="id", block="state")
    assert np.array_equal(again.links.right, linked.links.right)
    assert again.estimates[1].overall == linked.estimates[1].overall


def test_columns_may_have_other_names_and_types(files) -> None:
    right = files.right.rename_columns(
        ["key", *(f"r {name}" for name in files.right.column_names[1:-1]), "consumption"]
    )
    left = files.left.set_column(4, "street_number", files.left["street_number"].cast("float64", safe=False))
    fields = [dpl.Field(name, right=f"r {name}") for name in [*FIELDS, "street_number"]]
    linked = dpl.link(left, right, fields=fields, id=("id", "key"))
    assert accuracy(linked, files) > 0.97


def test_common_columns_are_compared_unless_named(files) -> None:
    linked = dpl.link(files.left, files.right, id="id", block="state")
    assert [field.name for field in linked.fields] == [
        "given_name", "surname", "date_of_birth", "street_number", "address", "suburb", "postcode", "national_id",
    ]  # fmt: skip


@pytest.mark.slow
def test_column_names_with_quotes_and_sql_in_them(files) -> None:
    odd = ['a"b', "x'; drop table a; --", "<b>", "ü 🙂"]
    names = dict(zip(["given_name", "surname", "date_of_birth", "national_id"], odd, strict=True))
    renamed = [t.rename_columns([names.get(c, c) for c in t.column_names]) for t in (files.left, files.right)]
    fields = {odd[0]: "name", odd[1]: "name", odd[2]: "date", odd[3]: "id"}
    linked = dpl.link(*renamed, fields=fields, id="id", method="splink")
    assert accuracy(linked, files) > 0.9
    assert "<b>" not in linked.to_html()


# --- Splink's own settings -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["creator", "dict", "file"])
def test_splinks_own_settings_make_the_candidates(files, kind: str, tmp_path: Path) -> None:
    """Untrained settings in each form: only pairs that agree where the settings ask for it are candidates."""
    import splink.comparison_library as cl
    from splink import SettingsCreator, block_on

    settings = SettingsCreator(
        link_type="link_only",
        comparisons=[cl.ExactMatch("surname"), cl.ExactMatch("date_of_birth"), cl.ExactMatch("national_id")],
        blocking_rules_to_generate_predictions=[block_on("national_id")],
    )
    if kind != "creator":
        settings = settings.create_settings_dict("duckdb")
    if kind == "file":
        (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        settings = tmp_path / "settings.json"
    linked = dpl.link(files.left, files.right, fields=FIELDS, id="id", method="splink", settings=settings)
    candidates = linked.links.candidates
    ids = [np.array(table["national_id"].to_pylist()) for table in (files.left, files.right)]
    assert candidates.left.size > 1000
    assert (ids[0][candidates.left] == ids[1][candidates.right]).all()
    sure = linked.links.score > 0
    assert (linked.links.right == files.truth)[sure].mean() > 0.99


def test_settings_get_columns_in_their_own_types(files) -> None:
    """A model of dates, whole numbers and lists, as Splink's own tutorials write it: none of them is a text."""
    import splink.comparison_library as cl
    from splink import SettingsCreator, block_on

    def typed(table: pa.Table) -> pa.Table:
        number = pc.cast(table["national_id"], pa.int64())
        words = pc.split_pattern(table["address"], " ")
        return pa.table(
            {
                "id": table["id"],
                "born": pc.cast(table["date_of_birth"], pa.date32()),
                "number": number,
                "words": words,
                "state": table["state"],
            }
        )

    settings = SettingsCreator(
        link_type="link_only",
        comparisons=[
            cl.DateOfBirthComparison("born", input_is_string=False),
            cl.ExactMatch("number"),
            cl.ArrayIntersectAtSizes("words", [2, 1]),
        ],
        blocking_rules_to_generate_predictions=[block_on("born"), "l.number = r.number and l.state = r.state"],
    )
    linked = dpl.link(
        typed(files.left),
        typed(files.right),
        id="id",
        fields=["born", "number", "words"],
        block="state",
        method="splink",
        settings=settings,
    )
    assert accuracy(linked, files) > 0.85
    assert linked.passes[0].found > 1000
    with pytest.raises(dpl.StudyError, match="name only fields and blocks"):
        dpl.link(
            typed(files.left),
            typed(files.right),
            id="id",
            fields=["born", "number"],
            method="splink",
            settings=settings,
        )


def test_a_trained_splink_model_is_used_as_it_is(files) -> None:
    """Weights are those of the model's own probabilities, worked out by hand."""
    m, u, prior = 0.9, 0.01, 1 / 1500

    def comparison(name: str) -> dict[str, object]:
        levels = [
            {"sql_condition": f"{name}_l IS NULL OR {name}_r IS NULL", "is_null_level": True},
            {"sql_condition": f"{name}_l = {name}_r", "m_probability": m, "u_probability": u},
            {"sql_condition": "ELSE", "m_probability": 1 - m, "u_probability": 1 - u},
        ]
        return {"output_column_name": name, "comparison_levels": levels}

    settings = {
        "comparisons": [comparison("surname"), comparison("address")],
        "blocking_rules_to_generate_predictions": ["l.national_id = r.national_id"],
        "probability_two_random_records_match": prior,
    }
    linked = dpl.link(files.left, files.right, fields=FIELDS, id="id", method="splink", settings=settings)
    candidates = linked.links.candidates
    expected = np.full(candidates.left.size, np.log2(prior / (1 - prior)))
    weights = {True: np.log2(m / u), False: np.log2((1 - m) / (1 - u)), None: 0.0}
    for name in ("surname", "address"):
        agree = pc.equal(files.left[name].take(candidates.left), files.right[name].take(candidates.right))
        expected += [weights[value] for value in agree.to_pylist()]
    assert candidates.left.size > 500
    np.testing.assert_allclose(candidates.score, expected, atol=1e-6)


# --- links made elsewhere -----------------------------------------------------------------------------


def test_pairs_with_probabilities_come_in(files, linked, tmp_path: Path) -> None:
    left, right = (table["id"].to_pylist() for table in (files.left, files.right))
    candidates = linked.links.candidates
    odds = candidates.evidence / 1500
    pairs = pa.table(
        {
            "id_l": [left[k] for k in candidates.left],
            "id_r": [right[k] for k in candidates.right],
            "match_probability": odds / (1 + odds),
        }
    )
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    again = dpl.link(files.left, files.right, id="id", method="pairs", pairs=tmp_path / "pairs.parquet", block="state")
    assert accuracy(again, files) > 0.97
    assert again.estimates[0].overall[0] == pytest.approx(accuracy(again, files), abs=0.02)


def test_pairs_without_probabilities_need_an_audit(files) -> None:
    right = np.array(files.right["id"].to_pylist())
    pairs = {"left": files.left["id"].to_pylist(), "right": right[files.truth].tolist()}
    linked = dpl.link(files.left, files.right, id="id", method="pairs", pairs=pairs)
    assert accuracy(linked, files) == 1.0
    with pytest.raises(dpl.StudyError, match="audit_sample"):
        _ = linked.linkage
    with pytest.raises(dpl.StudyError, match="without probabilities"):
        linked.matching()
    assert "othing tells" in linked.summary()
    checked = linked.audited(review_links(linked.audit_sample(50), files))
    assert checked.linkage.accuracy["(all)"] > 0.9


def test_probabilities_of_pairs_made_elsewhere_are_in_the_interval(files, linked) -> None:
    """Everybody has one candidate, which one-to-one takes for sure; whoever says that each is right with probability .8 may know better."""
    pairs = linked.pairs.select(["left", "right"]).to_pydict()
    for probability, doubtful in ((0.8, True), (0.995, False)):
        told = {**pairs, "probability": [probability] * len(pairs["left"])}
        found = dpl.link(files.left, files.right, method="pairs", id="id", pairs=told).estimates[0]
        assert found.overall[1] <= probability
        assert found.overall[0] > 0.99
        assert found.doubtful == doubtful


def test_pairs_that_do_not_fit_are_refused(files) -> None:
    ids = files.left["id"].to_pylist()[:2], files.right["id"].to_pylist()[:2]
    for pairs, fault in [
        ({"left": ids[0], "right": ["B?", "B!"]}, "not in the file"),
        ({"left": [ids[0][0]] * 2, "right": ids[1]}, "twice"),
        ({"left": [ids[0][0]] * 2, "right": [ids[1][0]] * 2, "probability": [0.5, 0.5]}, "twice"),
        ({"a": ids[0], "b": ids[1]}, "both ids"),
        ({"left": [], "right": []}, "There are no pairs"),
        ({"left": ids[0], "right": ids[1], "probability": [0.5, 1.5]}, "between 0 and 1"),
    ]:
        with pytest.raises(dpl.StudyError, match=fault):
            dpl.link(files.left, files.right, id="id", method="pairs", pairs=pairs)


# --- quality -------------------------------------------------------------------------------------------


def test_an_audit_goes_out_and_comes_back(files, linked, tmp_path: Path) -> None:
    sample = linked.audit_sample(300)
    assert {"left_id", "right_id", "surname (left)", "surname (right)", "correct"} <= set(sample.column_names)
    pyarrow.csv.write_csv(review_links(sample, files), tmp_path / "audit.csv")
    audited = linked.audited(tmp_path / "audit.csv")
    assert audited.estimates[0].method == "audit"
    assert audited.audit.overall[1] <= accuracy(linked, files) <= audited.audit.overall[2]
    assert audited.linkage.checked == 5  # a public number: how many were checked in a group follows the links
    assert linked.audited(tmp_path / "audit.csv", least_checked=20).linkage.checked == 20


@pytest.mark.parametrize("options", [{"block": "state"}, {"block": "state", "threshold": 2.5}])
def test_one_persons_identifiers_do_not_tell_whose_links_are_checked(files, options) -> None:
    """Replace one person's identifiers, the block key too, in one file or both: no other row comes into the sample or leaves it."""

    def checked(left: pa.Table, right: pa.Table) -> set[str]:
        linked = dpl.link(left, right, fields=FIELDS, id="id", **options)
        return set(linked.audit_sample(300)["left_id"].to_pylist())

    def replaced(table: pa.Table, row: int, other: int) -> pa.Table:
        for name in [*FIELDS, "state"]:
            cells = table[name].to_pylist()
            cells[row] = "zzz" if name == "surname" else cells[other]
            table = table.set_column(table.column_names.index(name), name, pa.array(cells, table[name].type))
        return table

    before = checked(files.left, files.right)
    for row, other in [(3, 700), (250, 11), (1499, 42), (77, 78), (600, 5)]:
        own = {files.left["id"][row].as_py()}
        assert checked(replaced(files.left, row, other), files.right) ^ before <= own
        assert checked(replaced(files.left, row, other), replaced(files.right, row, other)) ^ before <= own


def test_an_audit_of_an_older_version_comes_back(files, linked, tmp_path: Path) -> None:
    sample = review_links(linked.audit_sample(300), files)
    older = sample.rename_columns({"correct": "right"})
    pyarrow.csv.write_csv(older, tmp_path / "audit.csv")
    assert np.array_equal(linked.audited(tmp_path / "audit.csv").audit.correct, linked.audited(sample).audit.correct)
    with pytest.raises(dpl.StudyError, match="holds a reviewer's answers"):
        linked.save(tmp_path, audit_sample=300)
    with pytest.raises(dpl.StudyError, match="no clear answer in the column 'right'"):
        linked.audited(linked.audit_sample(300).rename_columns({"correct": "right"}))
    with pytest.raises(dpl.StudyError, match="two columns, 'correct' and 'right'"):
        linked.audited(older.append_column("correct", older["right"]))


def test_a_quality_report_is_a_page(linked, tmp_path: Path) -> None:
    with pytest.raises(dpl.StudyError, match=r"Choose a name that ends in \.html, \.htm"):
        linked.to_html(tmp_path / "quality.pdf")
    assert list(tmp_path.iterdir()) == []


def test_an_audit_of_other_links_is_refused(files, linked) -> None:
    sample = review_links(linked.audit_sample(300), files)
    other = dpl.link(files.left, files.right, fields=FIELDS[:2], id="id", block="state", assignment="greedy")
    with pytest.raises(dpl.StudyError, match="belongs to other links"):
        other.audited(sample)
    with pytest.raises(dpl.StudyError, match="no clear answer"):
        linked.audited(linked.audit_sample(300))
    with pytest.raises(dpl.StudyError, match="names a link twice"):
        linked.audited(pa.concat_tables([sample, sample]))
    with pytest.raises(dpl.StudyError, match=r"lacks the column\(s\) \['correct'\]"):
        linked.audited(sample.drop_columns(["correct"]))


def test_the_matching_matrix_corrects_like_the_blocks(files, linked) -> None:
    Q = linked.matching()
    assert Q.matrix.diagonal().mean() == pytest.approx(linked.estimates[0].overall[0], abs=0.01)
    release = dpl.fit(
        linked.rows,
        "consumption ~ income",
        linkage=Q,
        unit=dpl.PrivacyUnit(linkage_change=1.0, displaced_links=1),
        **MODEL,
    )
    assert release.linkage.model == "Matching"


# --- where the accuracy comes from ---------------------------------------------------------------------


def test_fit_refuses_estimated_accuracies_and_unstated_units(audited) -> None:
    with pytest.raises(dpl.StudyError, match=r"they are data. Choose"):
        dpl.fit(audited.rows, "consumption ~ income", linkage=audited.linkage, unit=dpl.PrivacyUnit(), **MODEL)
    paid = dpl.release_accuracy(audited, epsilon=0.5, delta=1e-6, unit=dpl.PrivacyUnit())
    with pytest.raises(dpl.StudyError, match=r"State it: unit="):
        dpl.fit(audited.rows, "consumption ~ income", linkage=paid.linkage, **MODEL)
    release = dpl.fit(audited.rows, "consumption ~ income", linkage=paid.linkage, unit=dpl.PrivacyUnit(), **MODEL)
    assert "both releases together are (1.14, 1e-06)" in release.privacy.statement
    assert "the linkage accuracy (released before)" in release.privacy.assumed_public


def test_estimated_accuracies_with_declarations_are_never_shown(audited) -> None:
    model = audited.linkage
    hidden = dpl.ELE(dict(model.accuracy), model.block, checked=model.checked, source="estimated", accuracy_min=0.5)
    with pytest.raises(dpl.StudyError, match=r"change the matching matrix by"):
        dpl.fit(audited.rows, "consumption ~ income", linkage=hidden, unit=dpl.PrivacyUnit(linkage_change=1.0), **MODEL)
    needed = hidden.audit_change(dpl.PrivacyUnit(), 1500)
    unit = dpl.PrivacyUnit(linkage_change=needed)
    release = dpl.fit(audited.rows, "consumption ~ income", linkage=hidden, unit=unit, **MODEL)
    assert release.linkage == DeclaredLinkage("ELE", block="link_block", source="estimated", accuracy_min=0.5)
    told = [repr(value)[:8] for value in model.accuracy.values() if value != 1.0]  # a 1.0 stands in every release
    assert len(told) >= 7
    assert not any(value in release.to_json() for value in told)
    assert "at least 50 % right" in release.summary()
    with pytest.raises(dpl.StudyError, match="not shown"):
        release.with_accuracy(0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "guessed"}, {"source": "released"}, {"paid": 0.1}, {"accuracy_min": 0.5},
        {"source": "estimated", "accuracy_min": 0.0}, {"source": "released", "paid": float("nan")},
    ],
)  # fmt: skip
def test_sources_that_contradict_themselves_are_refused(wrong) -> None:
    with pytest.raises(dpl.StudyError):
        dpl.ELE(0.9, **wrong)


def test_an_accuracy_is_released_only_from_an_audit_and_without_moves(linked, audited) -> None:
    with pytest.raises(dpl.StudyError, match="no audit"):
        dpl.release_accuracy(linked, epsilon=1.0, delta=1e-6, unit=dpl.PrivacyUnit())
    for unit in (dpl.PrivacyUnit(moves_block=True), dpl.PrivacyUnit(linkage_change=1.0)):
        with pytest.raises(dpl.StudyError, match="change their groups"):
            dpl.release_accuracy(audited, epsilon=1.0, delta=1e-6, unit=unit)


def test_released_accuracies_are_near_and_say_how_near(audited) -> None:
    """At ε = 8 the noise on 300 answers is small: every group within four of its errors (false alarms below 1e-3)."""
    paid = dpl.release_accuracy(audited, epsilon=8.0, delta=1e-6, unit=dpl.PrivacyUnit(displaced_links=1))
    for k, name in enumerate(audited.strata.names):
        raw = audited.audit.correct[k] / max(audited.audit.checked[k], 1)
        assert abs(paid.linkage.accuracy[name] - raw) < 4 * paid.linkage.accuracy_error[name] + 0.05
    assert paid.correct.keys() == paid.checked.keys()
    assert "1 further link" in paid.statement


def test_released_accuracies_of_an_older_version_are_read(audited) -> None:
    paid = dpl.release_accuracy(audited, epsilon=0.5, delta=1e-6, unit=dpl.PrivacyUnit())
    assert ReleasedAccuracy.from_json(paid.to_json()) == paid
    whole = json.loads(paid.to_json())
    assert "right" not in whole
    whole["right"] = whole.pop("correct")
    assert ReleasedAccuracy.from_json(json.dumps(whole)) == paid
    with pytest.warns(DeprecationWarning, match=r"goes in 0\.3"):
        assert paid.right == paid.correct


# --- what is written -----------------------------------------------------------------------------------


def test_files_are_written_and_fit_reads_them(files, audited, tmp_path: Path) -> None:
    paid = dpl.release_accuracy(audited, epsilon=0.5, delta=1e-6, unit=dpl.PrivacyUnit())
    written = audited.save(tmp_path / "out", audit_sample=100, linkage=paid.linkage)
    assert written == ["audit.csv", "linkage.toml", "linked.parquet", "quality.html", "quality.txt"]
    assert pq.read_table(tmp_path / "out" / "linked.parquet").equals(audited.rows)
    study = """[data]
path = "out/linked.parquet"
[model]
formula = "consumption ~ income"
[bounds]
income = [0, 150000]
consumption = [0, 120000]
[privacy]
epsilon = 1.0
delta = 1e-6
[unit]
displaced_links = 0
""" + (tmp_path / "out" / "linkage.toml").read_text(encoding="utf-8")
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    read = dpl.Study.from_toml(tmp_path / "study.toml")
    assert read.linkage == paid.linkage
    assert dpl.fit_study(read, read.data).count == 1500


def test_the_steward_is_told_and_toml_holds_any_block_name() -> None:
    names = {'a"b': 0.9, "x\\y": 0.8, "ü 🙂\n": 0.7, "(last)": 0.4}
    text = linkage_section(dpl.ELE(names, "link_block", source="estimated"))
    assert "FOR THE STEWARD" in text
    assert tomllib.loads(text)["linkage"]["accuracy"] == names
    assert dict(dpl.ELE(**tomllib.loads(text)["linkage"]).accuracy) == names


def test_nothing_is_half_written(linked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self, path=None, *, by=()):
        raise OSError("disk full")

    monkeypatch.setattr(dpl.Linked, "to_html", fail)
    with pytest.raises(dpl.StudyError, match="nothing in it was changed"):
        linked.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- bad input -----------------------------------------------------------------------------------------


def tables(**changes):
    a = {"id": ["1", "2", "3"], "name": ["ann", "bob", "cid"], "state": ["x", "x", "y"]}
    b = {"id": ["7", "8", "9"], "name": ["ann", "bob", "cid"], "state": ["x", "y", "y"]}
    for key, value in changes.items():
        file, column = key.split("_", 1)
        (a if file == "a" else b)[column] = value
    return a, b


@pytest.mark.parametrize(
    ("changes", "options", "fault"),
    [
        ({}, {"fields": ["nam"]}, "Column 'nam' is not in the left file. Did you mean 'name'"),
        ({}, {"fields": ["name"], "id": "rec"}, "Column 'rec' is not in the left file"),
        ({}, {"fields": ["name"], "block": "stat"}, "Column 'stat' is not in the left file"),
        ({"b_id": ["7", "7", "9"]}, {"fields": ["name"], "id": "id"}, "right file must be there and differ"),
        ({"a_id": ["7", None, "9"]}, {"fields": ["name"], "id": "id"}, "left file must be there and differ"),
        ({"b_name": [None, None, None]}, {"fields": ["name"]}, "has no values in the right file"),
        ({"a_name": ["", None, "  "]}, {"fields": ["name"]}, "has no values in the left file"),
        ({"a_name": ["", None, "  "]}, {"fields": ["name"], "method": "splink"}, "has no values in the left file"),
        (
            {"b_state": [None, "", None]},
            {"fields": ["name"], "block": "state"},
            "keys (state) are missing in the right file",
        ),
        (
            {"b_state": [None, "", None]},
            {"fields": ["name"], "block": "state", "method": "splink"},
            "keys (state) are missing in the right file",
        ),
        ({"b_state": ["X", "Y", "Y"]}, {"fields": ["name"], "block": "state"}, "No block key (state) is in both files"),
        ({}, {"fields": ["name"], "settings": {}}, "give them with method='splink'"),
        ({"a_name": [["x"], ["y"], ["z"]]}, {"fields": ["name"]}, "cannot be compared"),
        ({"a_name": ["x", 1, {"a": 2}]}, {"fields": ["name"]}, "cannot be read as a table"),
        ({}, {"fields": ["name"], "method": "magic"}, "method must be one of"),
        ({}, {"fields": ["name"], "assignment": "magic"}, "assignment must be one of"),
        ({}, {"fields": ["name"], "threshold": 7.0}, "threshold must lie between"),
        ({}, {"fields": ["name"], "method": "splink", "threshold": 7.0}, "threshold must be a probability"),
        ({}, {"fields": ["name"], "method": "splink", "engine": "flink"}, "engine must be one of"),
        ({}, {"fields": ["name"], "method": "splink", "settings": "none.json"}, "cannot be read as JSON"),
        ({}, {"fields": ["name"], "pairs": {}}, "method='pairs'"),
        ({}, {"id": ("id", "id", "id"), "fields": ["name"]}, "or two"),
        ({"a_state": ["(last)", "x", "y"]}, {"fields": ["name"], "block": "state"}, "Block keys may not be called"),
        ({}, {"fields": ["name"], "block": "state", "memory": 10.0}, "Block on a finer key"),
    ],
)
def test_bad_input_is_refused_in_words(changes, options, fault) -> None:
    a, b = tables(**changes)
    with pytest.raises(dpl.StudyError, match=re.escape(fault)) as caught:
        dpl.link(a, b, **options)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_empty_files_and_files_without_common_columns_are_refused() -> None:
    a, b = tables()
    with pytest.raises(dpl.StudyError, match="right file has no rows"):
        dpl.link(a, {name: [] for name in b}, fields=["name"])
    with pytest.raises(dpl.StudyError, match="no column in common"):
        dpl.link(a, {"other": ["1"]})
    with pytest.raises(dpl.StudyError, match="cannot be read as a table"):
        dpl.link(a, 3, fields=["name"])
    with pytest.raises(dpl.StudyError, match="two columns of the same name"):
        dpl.link(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), b, fields=["x"])


def test_mixed_types_in_pandas_objects_are_refused_without_their_cells() -> None:
    a, b = tables()
    mixed = pd.DataFrame({**a, "name": pd.Series(["secret-cell", 3.5, b"x"], dtype=object)})
    with pytest.raises(dpl.StudyError) as caught:
        dpl.link(mixed, b, fields=["name"])
    assert "secret-cell" not in str(caught.value)


def test_a_file_linked_with_itself_is_refused(files, tmp_path: Path) -> None:
    pq.write_table(files.left, tmp_path / "people.parquet")
    for right in (files.left, files.left.take(np.arange(1500)), tmp_path / "people.parquet"):
        with pytest.raises(dpl.StudyError, match="left and the right file are the same"):
            dpl.link(tmp_path / "people.parquet", right, fields=["surname"])


@pytest.mark.parametrize("method", ["rules", pytest.param("splink", marks=pytest.mark.slow)])
def test_files_without_anybody_in_common_are_refused_without_a_count(files, method: str) -> None:
    """The right file's fields hold something else. Who links them is told, and no more than that."""
    other = {name: [f"{name[0]}{k * 7919 % 100_003:06}" for k in range(200)] for name in FIELDS}
    with pytest.raises(dpl.StudyError, match="Hardly any records") as caught:
        dpl.link(files.left.slice(0, 200), other, fields=dict.fromkeys(FIELDS, "postcode"), method=method)
    assert not re.search(r"[0-9]", str(caught.value))


def test_files_of_other_people_are_refused_unless_few_in_common_are_declared(files) -> None:
    """Their names and dates are alike here and there, by chance. Four of two hundred people in both files are found when that is said."""
    others = two_files(200, 77).right
    fields = ["given_name", "surname", "date_of_birth"]
    with pytest.raises(dpl.StudyError, match="Hardly any records"):
        dpl.link(files.left.slice(0, 200), others, fields=fields)
    own = pa.concat_tables([files.right.take(files.truth[:4]), others.slice(4)])
    linked = dpl.link(files.left.slice(0, 200), own, fields=fields, overlap=0.02)
    assert linked.links.right[:4].tolist() == [0, 1, 2, 3]


def test_fields_that_cannot_be_read_are_named_in_the_report(files) -> None:
    fields = [dpl.Field("suburb", "date"), "given_name", "surname", "national_id"]
    text = " ".join(dpl.link(files.left, files.right, fields=fields, id="id", block="state").summary().split())
    assert "suburb is compared as a date, and in the left and the right file no value can be read as one" in text
    assert "suburb date date (½ within 7 days) 0.0 % 0.0 %" in text
    assert "surname is compared" not in text


def test_one_row_each_and_nothing_alike() -> None:
    linked = dpl.link({"name": ["ann"]}, {"name": ["zoe"]}, fields=["name"])
    assert linked.links.right.tolist() == [0]
    assert linked.links.block.tolist() == [FURTHER]
    assert "STEWARD" in linked.summary()


# --- what an adversary found -----------------------------------------------------------------------------


def test_released_accuracies_hold_for_their_unit_only(audited) -> None:
    paid = dpl.release_accuracy(audited, epsilon=0.5, delta=1e-6, unit=dpl.PrivacyUnit(displaced_links=1))
    assert paid.linkage.displaced_links == 1
    for unit in (dpl.PrivacyUnit(displaced_links=2), dpl.PrivacyUnit(moves_block=True)):
        with pytest.raises(dpl.StudyError, match="released for a person who displaces at most 1"):
            dpl.fit(audited.rows, "consumption ~ income", linkage=paid.linkage, unit=unit, **MODEL)


def test_groups_found_by_linking_cannot_be_moved_between(audited) -> None:
    """A rare key becomes (other) for all its rows when one person leaves it."""
    model = dpl.ELE(0.9, "link_block", other=0.5, source="public")
    with pytest.raises(dpl.StudyError, match="results of linking"):
        dpl.fit(audited.rows, "consumption ~ income", linkage=model, unit=dpl.PrivacyUnit(moves_block=True), **MODEL)


def test_accuracies_of_found_groups_are_never_public_by_omission(audited) -> None:
    with pytest.raises(dpl.StudyError, match="say where their accuracies come from"):
        dpl.fit(
            audited.rows, "consumption ~ income", linkage=dpl.ELE(dict(audited.linkage.accuracy), "link_block"), **MODEL
        )
    with pytest.raises(dpl.StudyError, match="State it"):
        dpl.fit(audited.rows, "consumption ~ income", linkage=dpl.ELE(0.9, "link_block", source="public"), **MODEL)
    assert "0.9" not in repr(dpl.ELE(0.9123, "b", source="estimated"))


def test_checked_numbers_of_hidden_accuracies_do_not_follow_the_blocks() -> None:
    with pytest.raises(dpl.StudyError, match="Give one public number"):
        dpl.ELE({"a": 0.9}, "b", checked={"a": 50}, source="estimated", accuracy_min=0.5).check_source(
            dpl.PrivacyUnit(moves_block=True, linkage_change=1.0)
        )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"epsilon": 50.0}, "next to nothing"),
        ({"delta": 0.01}, "not below 1/n"),
        ({"unit": None}, "unit=dpl.PrivacyUnit"),
    ],
)
def test_the_budget_of_released_accuracies_is_checked(audited, options, fault) -> None:
    with pytest.raises(dpl.StudyError, match=fault):
        dpl.release_accuracy(audited, **{"epsilon": 1.0, "delta": 1e-6, "unit": dpl.PrivacyUnit(), **options})


def test_pairs_about_few_people_keep_their_probabilities() -> None:
    """100 pairs at .9 between files of 1,000: links are right as often as their probabilities say."""
    files = [{"id": [f"{side}{k}" for k in range(1000)], "x": ["1"] * 1000} for side in "ab"]
    pairs = {"left": files[0]["id"][:100], "right": files[1]["id"][:100], "probability": [0.9] * 100}
    linked = dpl.link(*files, id="id", method="pairs", pairs=pairs)
    assert linked._own_probability[:100] == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("column", ["match_weight", "probability"])
def test_numbers_of_pairs_that_are_none_show_no_cell(column: str) -> None:
    files = [{"id": ["1", "2"], "x": ["1", "2"]} for _ in range(2)]
    with pytest.raises(dpl.StudyError, match="must hold") as caught:
        dpl.link(
            *files, id="id", method="pairs", pairs={"left": ["1", "2"], "right": ["1", "2"], column: ["0.5", "SECRET"]}
        )
    assert "SECRET" not in str(caught.value)


def test_answers_and_inputs_are_not_overwritten(files, linked, tmp_path: Path) -> None:
    linked.save(tmp_path / "out", audit_sample=100)
    linked.save(tmp_path / "out", audit_sample=100)  # nobody has answered yet
    pyarrow.csv.write_csv(review_links(linked.audit_sample(100), files), tmp_path / "out" / "audit.csv")
    with pytest.raises(dpl.StudyError, match="reviewer's answers"):
        linked.save(tmp_path / "out", audit_sample=100)
    (tmp_path / "out" / "accuracy.json").write_text("{}", encoding="utf-8")
    linked.save(tmp_path / "out")
    assert not (tmp_path / "out" / "accuracy.json").exists()  # of another linkage


def test_too_many_fields_and_long_keys() -> None:
    many = {f"c{k}": ["a", "b"] for k in range(25)}
    with pytest.raises(dpl.StudyError, match="too many patterns"):
        dpl.link(many, {**many, "other": ["a", "b"]})
    keyed = {"name": [str(k) for k in range(3000)], "block": ["x" * 1_000_000, *["y"] * 2999]}
    other = {**keyed, "other": keyed["name"]}
    assert dpl.link(keyed, other, fields=["name"], block="block").links.right.tolist()[0] == 0


def test_files_that_are_not_utf8_are_refused_without_their_cells(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("name\nJos\xe9\nAnn\n".encode("latin-1"))
    with pytest.raises(dpl.StudyError, match="letters in latin-1") as caught:
        dpl.link(tmp_path / "latin.csv", {"name": ["Ann"]}, fields=["name"])
    assert "Jos" not in str(caught.value)


def test_an_empty_line_of_a_file_with_one_column_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("name\nann\n\nbob\n", encoding="utf-8")
    assert dpl.link(tmp_path / "one.csv", {"name": ["ann"]}, fields=["name"]).rows.num_rows == 3
    (tmp_path / "twice.csv").write_text("name,name\nann,bob\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="two columns of the same name"):
        dpl.link(tmp_path / "twice.csv", {"name": ["ann"]}, fields=["name"])


def test_odd_settings_and_columns_are_refused_early(linked) -> None:
    for size in (2.5, True, "many"):
        with pytest.raises(dpl.StudyError, match="size must be a whole number"):
            linked.audit_sample(size)
    a, b = tables()
    for options, fault in [({"seed": -1}, "seed must"), ({"id": 5}, "or two")]:
        with pytest.raises(dpl.StudyError, match=fault):
            dpl.link(a, b, fields=["name"], **options)
    with pytest.raises(dpl.StudyError, match="which linking adds"):
        dpl.link({**a, "link_block": a["name"]}, b, fields=["name"])
    with pytest.raises(dpl.StudyError, match="no answers"):
        linked.audited(linked.audit_sample(100).slice(0, 0))
    assert tomllib.loads(linkage_section(dpl.ELE({"a\x7fb": 0.9}, "b")))["linkage"]["accuracy"] == {"a\x7fb": 0.9}


# --- which file a column comes from ------------------------------------------------------------------

BOTH = {"formula": "consumption ~ income + C(state_right)", "levels": {"state_right": ["nsw", "vic"]}}


@pytest.fixture(params=["table", "parquet", "large parquet", "stream", "contiguous stream", "DuckDB's files"])
def as_read(request, linked, tmp_path, monkeypatch):
    """Linked rows as each reader of tables and files gets them."""
    rows = linked.rows
    if request.param == "table":
        return rows
    if "stream" in request.param:
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())
        return dpl.Stream(reader, contiguous="contiguous" in request.param, rows=rows.num_rows)
    linked.save(tmp_path)
    if request.param == "large parquet":
        monkeypatch.setattr("dplinked.sums.files.IN_MEMORY", 0)
    if request.param == "DuckDB's files":
        duckdb = pytest.importorskip("dplinked.sums.sql.duckdb")
        monkeypatch.setattr(
            "dplinked.sums.files.open_data", lambda data, *_, **options: duckdb.open_files([data], "parquet")
        )
    return tmp_path / "linked.parquet"


def test_regressors_come_from_one_file(as_read) -> None:
    linkage = dpl.ELE(0.9, source="public")
    with pytest.raises(dpl.StudyError, match="regressors come from both linked files"):
        dpl.fit(as_read, **BOTH, linkage=linkage, intervals=False, **MODEL)


@pytest.mark.parametrize(
    ("formula", "linkage", "unit", "fault"),
    [
        ("consumption ~ income", dpl.ELE(0.9, carriers=2), dpl.PrivacyUnit(displaced_links=1), None),
        ("income ~ consumption", dpl.ELE(0.9), dpl.PrivacyUnit(), None),
        ("income ~ consumption", dpl.ELE(0.9, carriers=2), dpl.PrivacyUnit(), "from the right file"),
        ("income ~ consumption", dpl.ELE(0.9), dpl.PrivacyUnit(displaced_links=1), "from the right file"),
        ("income ~ consumption", dpl.ELE(0.9, "state"), dpl.PrivacyUnit(moves_block=True), "from the right file"),
        (BOTH["formula"], dpl.Exact(), dpl.PrivacyUnit(), None),  # joined on a key: all of a person is on one row
    ],
)
def test_which_file_regressors_may_come_from(linked, formula, linkage, unit, fault) -> None:
    study = dpl.Study(formula=formula, levels=BOTH["levels"], linkage=linkage, unit=unit, intervals=False, **MODEL)
    with nullcontext() if fault is None else pytest.raises(dpl.StudyError, match=fault):
        dpl.fit_study(study, linked.rows)
    faults = [finding.text for finding in check_study(study, linked.rows).findings if finding.fault]
    assert bool(faults) == (fault is not None)


def test_files_that_were_linked_before_stay_apart(linked) -> None:
    """Rows of two files are linked to a third one: regressors may not come from the first two together."""
    first = linked.rows.select(["id", "income", "consumption"])
    third = {"id": linked.rows["id"], "debt": linked.rows["income"]}
    pairs = {"left": linked.rows["id"], "right": linked.rows["id"]}
    rows = dpl.link(first, third, id="id", method="pairs", pairs=pairs).rows
    model = {**MODEL, "bounds": {**MODEL["bounds"], "debt": (0, 150_000)}, "linkage": dpl.ELE(0.9), "intervals": False}
    with pytest.raises(dpl.StudyError, match="both linked files"):
        dpl.fit(rows, "debt ~ income + consumption", **model)
    dpl.fit(rows, "debt ~ income", **model)


MARKED = pa.schema(
    [mark_origin(pa.field(name, pa.float64()), file) for name, file in (("x", "left"), ("w", "right"), ("y", "right"))]
)


def marked_rows(schema: pa.Schema = MARKED) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table([pa.array(rng.uniform(-1, 1, 60)) for _ in schema], schema=schema)


def fit_marked(data: Any, formula: str) -> dpl.Release:
    return dpl.fit(data, formula, bounds=dict.fromkeys("xwy", (-1, 1)), linkage=dpl.ELE(0.9), epsilon=1.0, delta=1e-6)


def test_a_response_of_both_files_is_refused() -> None:
    """One person would change it on two rows."""
    with pytest.raises(dpl.StudyError, match="The response is made of columns of both linked files"):
        fit_marked(marked_rows(), "I(x * y) ~ 1")
    assert fit_marked(marked_rows(), "I(w * y) ~ x").count == 60


@pytest.mark.parametrize("first", [True, False])
def test_one_file_of_several_that_says_where_columns_come_from_is_enough(tmp_path: Path, first: bool) -> None:
    plain = marked_rows(pa.schema([field.remove_metadata() for field in MARKED]))
    for name, table in zip(
        ("0.parquet", "1.parquet"), (marked_rows(), plain) if first else (plain, marked_rows()), strict=True
    ):
        pq.write_table(table, tmp_path / name)
    with pytest.raises(dpl.StudyError, match="both linked files"):
        fit_marked(tmp_path, "y ~ x + w")


def test_files_that_disagree_about_where_a_column_comes_from_are_refused(tmp_path: Path) -> None:
    other = pa.schema([mark_origin(field.remove_metadata(), "right") for field in MARKED])
    pq.write_table(marked_rows(), tmp_path / "0.parquet")
    pq.write_table(marked_rows(other), tmp_path / "1.parquet")
    with pytest.raises(dpl.StudyError, match="disagree about which linked file column 'x' comes from"):
        fit_marked(tmp_path, "y ~ x + w")


def test_the_estimator_refuses_features_of_both_files() -> None:
    table = marked_rows()
    model = dpl.LinkedRegression(bounds=(-1, 1), response_bounds=(-1, 1), linkage=dpl.ELE(0.9), delta=1e-6)
    with pytest.raises(dpl.StudyError, match="both linked files"):
        model.fit(table.select(["x", "w"]), table["y"])
    assert model.fit(table.select(["x"]), table["y"]).coef_.size == 1


def test_what_an_audit_does_not_change_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, report and audit share one computation of probabilities, and so do the links after the audit."""
    from dplinked.linker import linked as module

    files = two_files(300, 4)
    linked = dpl.link(
        files.left, files.right, fields=["given_name", "surname", "date_of_birth"], id="id", block="state"
    )
    calls = []
    find = module.find_matches
    monkeypatch.setattr(module, "find_matches", lambda *a, **k: (calls.append(k), find(*a, **k))[1])
    assert linked.rows.num_rows == 300
    assert len(calls) == 1
    linked.summary()
    linked.to_html()
    assert len(calls) == 3  # the interval takes two more
    audited = linked.audited(review_links(linked.audit_sample(100), files))
    assert audited.rows is linked.rows
    audited.summary()
    assert audited.linkage is not None
    assert len(calls) == 3
    assert [found.method for found in audited.estimates] == ["audit", "one-to-one", "simulation"]
    banded = linked.banded(2)
    assert banded.rows is not linked.rows
    assert len(calls) == 3


def test_many_candidates_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpl.linker.quality, "MOST_SIMULATED", 10)
    files = two_files(100, 4)
    linked = dpl.link(files.left, files.right, fields=["given_name", "surname"], id="id")
    assert [found.method for found in linked.estimates] == ["one-to-one"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"overlap": 0.0}, "overlap must be"), ({"overlap": 1.2}, "overlap must be"), ({"overlap": "all"}, "overlap must be"), ({"duplicates": "right"}, "True or False")],
)  # fmt: skip
def test_refuses_declarations_that_no_files_have(wrong: dict, message: str) -> None:
    files = two_files(20, 4)
    with pytest.raises(dpl.StudyError, match=message):
        dpl.link(files.left, files.right, fields=["surname"], id="id", **wrong)
