"""Several records of one person in a file, and several rows that share a record: found, counted, declared, or refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dplinked as dpl
from dplinked.cli.main import app
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.matches import find_matches_of_rows
from dplinked.simulate import TwoFiles, two_files

FIELDS = ["given_name", "surname", "date_of_birth", "national_id"]
HOUSE = ["surname", "address", "postcode", "suburb"]
MODEL: dict[str, Any] = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "typical": {"income": (15_000, 50_000)},
    "epsilon": 1.0,
    "delta": 1e-6,
}


# --- one file ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twice() -> TwoFiles:
    return two_files(1_000, 8, errors=1.0, duplicates=0.2)


def test_records_of_one_person_come_together(twice: TwoFiles) -> None:
    found = dpl.dedupe(twice.right, fields=FIELDS, id="id")
    owner = twice.owner
    assert owner is not None
    person = np.where(owner < 0, -np.arange(owner.size) - 2, owner)
    assert abs(found.people - np.unique(person).size) < 30, "of 200 further records few are missed"
    joined = [twice.right["id"].to_pylist().index(name) for name in found.pairs["first"].to_pylist()[:40]]
    other = [twice.right["id"].to_pylist().index(name) for name in found.pairs["second"].to_pylist()[:40]]
    assert (person[joined] == person[other]).mean() > 0.9
    assert found.unique.num_rows == found.people
    assert found.rows.num_rows == 1_200
    assert set(found.rows["cluster"].to_pylist()) == set(range(found.people))
    assert np.flatnonzero(np.diff(np.maximum.accumulate(found.cluster)) > 1).size == 0, "numbered by first records"
    assert "FOR THE STEWARD" in found.summary()
    assert repr(found) == "Deduped(for the steward)"


def test_a_file_without_duplicates_stays_whole() -> None:
    found = dpl.dedupe(two_files(800, 9, errors=1.0).right, fields=FIELDS, id="id")
    assert found.people == 800
    assert found.unique.num_rows == 800


def test_the_fullest_record_is_kept_and_chains_connect() -> None:
    table = pa.table(
        {
            "name": ["ann lee", "ann lee", "ann lee", *(f"{k * 7919 % 10007:05} x" for k in range(40))],
            "born": [None, "1970-02-03", None, *(f"19{50 + k}-01-01" for k in range(40))],
            "place": ["rome", "rome", "rome", *(f"{k * 31 % 97:03}" for k in range(40))],
        }
    )
    found = dpl.dedupe(table, fields={"name": "name", "born": "date", "place": "id"})
    assert found.cluster[:3].tolist() == [0, 0, 0]
    assert found.people == 41
    assert found.unique["born"].to_pylist()[0] == "1970-02-03"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": ["nam"]}, "Column 'nam' is not in the given file. Did you mean 'name'"),
        ({"fields": []}, "at least one field"),
        ({"least": 1.0}, "least must be a probability"),
        ({"threshold": 9.0}, "threshold must lie between"),
        ({"seed": -1}, "seed must be"),
        ({"id": "name"}, "must be there and differ"),
    ],
)
def test_bad_settings_of_one_file_are_refused(change: dict[str, Any], message: str) -> None:
    table = pa.table({"name": ["x", "x", "y"], "place": ["a", "b", "c"]})
    with pytest.raises(dpl.StudyError) as fault:
        dpl.dedupe(table, **{"fields": ["name", "place"], **change})
    assert message in str(fault.value)


def test_other_bad_input_of_one_file_is_refused() -> None:
    with pytest.raises(dpl.StudyError, match="no rows"):
        dpl.dedupe({"name": pa.array([], pa.string())}, fields=["name"])
    with pytest.raises(dpl.StudyError, match="'cluster'"):
        dpl.dedupe({"cluster": ["x", "y"]}, fields=["cluster"])
    with pytest.raises(dpl.StudyError, match=r"dpl\.dedupe"):
        dpl.link({"name": ["x"]}, {"name": ["y"]}, method="dedupe")
    assert dpl.dedupe({"name": ["x"]}, fields=["name"]).people == 1


def test_reports_count_duplicates_of_both_files(twice: TwoFiles) -> None:
    linked = dpl.link(twice.left, twice.right, fields=FIELDS, id="id", block="state")
    left, right = linked.likely_duplicates or (-1, -1)
    assert left <= 2
    assert 150 < right < 220
    text = " ".join(linked.summary().split())
    assert f"about {left:,} of the left file and {right:,} of the right file" in text
    assert "may have responses on several rows" in text
    assert "has regressors on all of them" not in text
    turned = dpl.link(twice.right, twice.left, fields=FIELDS, id="id", block="state")
    assert "has regressors on all of them" in " ".join(turned.summary().split())


def test_the_command_line_keeps_one_record_of_each_person(twice: TwoFiles, tmp_path: Path) -> None:
    pq.write_table(twice.right, tmp_path / "file.parquet")
    out, clusters = tmp_path / "unique.parquet", tmp_path / "clusters.parquet"
    call = ["dedupe", str(tmp_path / "file.parquet"), "--id", "id", "--out", str(out), "--clusters", str(clusters)]
    for field in FIELDS:
        call += ["--field", field]
    told = CliRunner().invoke(app, call)
    assert told.exit_code == 0, told.output
    assert pq.read_table(out).num_rows == len(set(pq.read_table(clusters)["cluster"].to_pylist())) < 1_100
    with pytest.raises(dpl.StudyError, match="would be overwritten"):
        CliRunner().invoke(app, [*call[:4], "--out", call[1], "--field", "surname"], catch_exceptions=False)


# --- several rows for one record ---------------------------------------------------------------------


def households(count: int = 500, seed: int = 3, errors: float = 1.0) -> tuple[pa.Table, pa.Table, np.ndarray]:
    """People of the left file, one to three of each household, which the right file has one record of; and each row's household."""
    files = two_files(count, seed, errors=errors)
    rng = np.random.default_rng(seed)
    home = np.repeat(np.arange(count), rng.integers(1, 4, count))
    rng.shuffle(home)
    left = files.left.take(home)
    left = left.set_column(0, "id", pa.array([f"P{k}" for k in range(home.size)]))
    income = np.clip(left["income"].to_numpy() * rng.uniform(0.8, 1.2, home.size), 0, 150_000)
    return (
        left.set_column(left.column_names.index("income"), "income", pa.array(income)),
        files.right,
        files.truth[home],
    )


@pytest.fixture(scope="module")
def homes() -> tuple[pa.Table, pa.Table, np.ndarray]:
    return households()


@pytest.fixture(scope="module")
def shared(homes: tuple[pa.Table, pa.Table, np.ndarray]) -> dpl.Linked:
    return dpl.link(homes[0], homes[1], fields=HOUSE, id="id", block="state", links="many-to-one", carriers=3)


def test_room_is_kept_and_the_best_links_are_found() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        room = rng.integers(0, 3, 3)
        every = np.array([(i, j) for i, j in product(range(4), range(3)) if rng.random() < 0.7]).reshape(-1, 2)
        gain = rng.normal(0.5, 1.0, len(every)).round(2)
        taken = assign_sparse(every[:, 0], every[:, 1], gain, room)
        used = np.bincount(every[taken, 1], minlength=3)
        assert (used <= room).all()
        assert np.bincount(every[taken, 0], minlength=4).max() <= 1
        best = 0.0
        for choice in product(range(-1, 3), repeat=4):
            pairs = [(i, j) for i, j in enumerate(choice) if j >= 0]
            places = [np.flatnonzero((every == pair).all(axis=1)) for pair in pairs]
            fits = (np.bincount([j for _, j in pairs], minlength=3) <= room).all() if pairs else True
            if fits and all(place.size for place in places):
                best = max(best, sum(float(gain[place[0]]) for place in places))
        assert gain[taken].sum() == pytest.approx(best)


@pytest.mark.parametrize("how", [{}, pytest.param({"method": "splink"}, marks=pytest.mark.slow), {"memory": 2e5}])
def test_rows_share_records_and_no_record_has_more_rows_than_declared(
    homes: tuple[pa.Table, pa.Table, np.ndarray], how: dict[str, Any]
) -> None:
    left, right, truth = homes
    block = ["state", "postcode"] if "memory" in how else "state"
    linked = dpl.link(left, right, fields=HOUSE, id="id", block=block, links="many-to-one", carriers=3, **how)
    accuracy = float((linked.links.right == truth).mean())
    assert np.bincount(linked.links.right[linked.links.right >= 0]).max() <= 3
    assert accuracy > 0.88, "one household in ten has moved, and has but its name left"
    one = dpl.link(left, right, fields=HOUSE, id="id", block=block, **how)
    assert (one.links.right == truth).mean() < 0.6, "one to one cannot link them"
    found = linked.estimates[0]
    assert found.overall[0] == pytest.approx(accuracy, abs=0.03)
    assert found.doubtful, "only an audit tells"
    assert linked.matches.further[0] == pytest.approx(1.0, abs=0.15), "two rows for each household"


def test_one_row_each_is_what_one_to_one_is() -> None:
    files = two_files(300, 4)
    linked = dpl.link(files.left, files.right, fields=FIELDS, id="id", links="many-to-one", carriers=2)
    assert files.are_right(linked.links.right).mean() > 0.99


def test_probabilities_of_rows_are_each_for_itself() -> None:
    left, right = np.array([0, 0, 1, 2]), np.array([0, 1, 0, 0])
    evidence = np.array([200.0, 100.0, 1e6, 1e-6])
    found = find_matches_of_rows(Candidates(left, right, evidence, evidence, 3, 100), overlap=0.5)
    assert found.probability == pytest.approx([2 / 4, 1 / 4, 1e4 / (1 + 1e4), 1e-8], rel=1e-3)


@pytest.mark.slow
def test_the_fit_takes_the_carriers_and_finds_the_slope() -> None:
    left, right, truth = households(2_000, 5, errors=3.0)
    linked = dpl.link(left, right, fields=HOUSE, id="id", block="state", links="many-to-one", carriers=3)
    correct = linked.links.right == truth
    assert correct.mean() < 0.97, "this test is of links with errors"
    answers = ["yes" if linked_right else "no" for linked_right in correct.tolist()]
    sample = linked.audit_sample(1_500)
    place = {name: k for k, name in enumerate(left["id"].to_pylist())}
    told = [answers[place[name]] for name in sample["left_id"].to_pylist()]
    linkage = linked.audited(
        sample.set_column(sample.column_names.index("correct"), "correct", pa.array(told))
    ).linkage_by_identifiers()
    assert linkage.carriers == 3
    release = dpl.fit(
        linked.rows, "consumption ~ income", linkage=linkage, unit=dpl.PrivacyUnit(), **{**MODEL, "epsilon": 8.0}
    )
    assert "at most 3 rows" in release.privacy.statement
    best = dpl.baseline.ols({"income": left["income"], "consumption": right["consumption"].take(pa.array(truth))}, "consumption ~ income").coef["income"]  # fmt: skip
    naive = dpl.baseline.ols(linked.rows, "consumption ~ income").coef["income"]
    assert abs(release.coef["income"] - best) < 4 * release.std_err["income"]
    assert abs(release.coef["income"] - best) < abs(naive - best)


def test_what_the_unit_does_not_cover_is_refused(
    shared: dpl.Linked, homes: tuple[pa.Table, pa.Table, np.ndarray]
) -> None:
    assert shared.linkage.carriers == 3
    left, right, _ = homes
    for kind in ("one-to-many", "many-to-many"):
        with pytest.raises(dpl.StudyError, match=r"several records.*dpl\.dedupe"):
            dpl.link(left, right, fields=HOUSE, links=kind)
    for given, message in (
        ({"links": "some"}, "links must be"),
        ({"links": "many-to-one"}, "needs carriers"),
        ({"links": "many-to-one", "carriers": 1}, "needs carriers"),
        ({"links": "many-to-one", "carriers": True}, "needs carriers"),
        ({"carriers": 2}, "One-to-one links have"),
        ({"links": "many-to-one", "carriers": 2, "assignment": "greedy"}, "greedy"),
    ):
        with pytest.raises(dpl.StudyError, match=message):
            dpl.link(left, right, fields=HOUSE, **given)
    with pytest.raises(dpl.StudyError, match="one-to-one links"):
        shared.matching()
    with pytest.raises(dpl.StudyError, match="do not compete"):
        shared.resemblance(["income"])
    turned = {"bounds": {"income": (0, 150_000), "consumption": (0, 120_000)}, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(dpl.StudyError, match="many to one"):
        dpl.fit(
            shared.rows, "income ~ consumption", unit=dpl.PrivacyUnit(),
            linkage=dpl.ELE(0.9, source="public", carriers=3), **turned,
        )  # fmt: skip
    sample = shared.audit_sample(200).to_pydict()
    audited = shared.audited({**sample, "correct": ["yes"] * len(sample["correct"])})
    with pytest.raises(dpl.StudyError, match="one to one"):
        dpl.release_accuracy(audited, epsilon=1.0, delta=1e-6, unit=dpl.PrivacyUnit())


def test_reports_say_that_rows_share_records(shared: dpl.Linked) -> None:
    text = " ".join(shared.summary().split())
    assert "many to one" in text
    assert "at most 3; each row is another person's, unless" in text
    assert "rows for each record that has any" in text
    assert "Do wrong links resemble" not in text


def test_pairs_made_elsewhere_may_share_records_as_declared() -> None:
    left, right = pa.table({"id": ["1", "2", "3"]}), pa.table({"id": ["7", "8", "9"]})
    pairs = {"left": ["1", "2"], "right": ["7", "7"]}
    linked = dpl.link(left, right, method="pairs", id="id", pairs=pairs, links="many-to-one", carriers=2)
    assert linked.links.right[:2].tolist() == [0, 0]
    with pytest.raises(dpl.StudyError, match="twice, or more often than links may"):
        dpl.link(left, right, method="pairs", id="id", pairs=pairs)


def test_rows_that_carry_a_record_several_times_say_so_wherever_they_go(shared: dpl.Linked) -> None:
    """Linked again one to one, or declared as another linkage, they would need more noise than they get."""
    declared = {
        "bounds": {"income": (0, 150_000), "consumption": (0, 120_000)},
        "epsilon": 1.0,
        "delta": 1e-6,
        "unit": dpl.PrivacyUnit(),
    }
    for linkage in (dpl.Exact(), dpl.ELE(0.9, source="public"), dpl.ELE(0.9, source="public", carriers=2)):
        with pytest.raises(dpl.StudyError, match=r"many to one.*carriers=3"):
            dpl.fit(shared.rows, "consumption ~ income", linkage=linkage, **declared)
    third = shared.right.select(["id"]).append_column("rent", shared.right["consumption"])
    first = shared.rows.select(["income", "consumption"]).append_column(
        "id", pa.array(list(map(str, range(shared.rows.num_rows))))
    )
    pairs = pa.table({"left": first["id"][:20], "right": third["id"][:20], "probability": np.ones(20)})
    again = dpl.link(first, third, method="pairs", pairs=pairs, id="id")
    found = again.rows.schema.field("consumption").metadata
    assert found[b"dplinked.carriers"] == b"3"
