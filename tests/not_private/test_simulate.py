"""Generated files: the truth is true, errors come at their rates, and money follows its law.

Seeds are fixed. With another one each of these bounds is at least five standard errors away, a false alarm in a
million runs.
"""

from __future__ import annotations

import re
from datetime import date

import numpy as np
import pyarrow as pa
import pytest

from dplinked.errors import StudyError
from dplinked.not_private.simulate.households import STATE_SHARES, STATES
from dplinked.simulate import TwoFiles, linked_patients, two_files

IDENTIFIERS = [
    *("given_name", "surname", "date_of_birth", "street_number", "address", "suburb", "postcode", "state"),
    "national_id",
]
ROWS = 30_000


def changed(table: pa.Table, clean: pa.Table) -> dict[str, np.ndarray]:
    """Which values differ from the clean ones, per identifier."""
    pairs = {name: zip(table[name].to_pylist(), clean[name].to_pylist(), strict=True) for name in IDENTIFIERS}
    return {name: np.array([ours != theirs for ours, theirs in both]) for name, both in pairs.items()}


@pytest.fixture(scope="module")
def clean() -> TwoFiles:
    return two_files(ROWS, seed=1, errors=0.0)


@pytest.fixture(scope="module")
def usual() -> TwoFiles:
    return two_files(ROWS, seed=1)


def test_same_seed_same_files() -> None:
    one, two = two_files(1_000, seed=7, overlap=0.9), two_files(1_000, seed=7, overlap=0.9)
    assert one.left.equals(two.left)
    assert one.right.equals(two.right)
    assert np.array_equal(one.truth, two.truth)


def test_other_seed_other_files() -> None:
    one, two = two_files(1_000, seed=7), two_files(1_000, seed=8)
    assert not np.array_equal(one.truth, two.truth)
    for name in [*IDENTIFIERS, "income"]:
        assert not one.left[name].equals(two.left[name]), name


@pytest.mark.parametrize("overlap", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("n", [1, 2, 1_000])
def test_truth_finds_the_same_person(n: int, overlap: float) -> None:
    files = two_files(n, seed=3, errors=0.0, overlap=overlap)
    present = np.flatnonzero(files.truth >= 0)
    assert files.left.num_rows == files.right.num_rows == files.truth.size == n
    assert present.size == np.unique(files.truth[present]).size == round(overlap * n)
    ours, theirs = files.left.take(present), files.right.take(files.truth[present])
    assert ours.select(IDENTIFIERS).equals(theirs.select(IDENTIFIERS))


def test_the_rest_of_the_right_file_are_other_people() -> None:
    files = two_files(1_000, seed=3, errors=0.0, overlap=0.7)
    absent = files.left.take(np.flatnonzero(files.truth < 0))
    assert absent.num_rows == 300
    assert not set(absent["national_id"].to_pylist()) & set(files.right["national_id"].to_pylist())


def test_the_order_of_the_right_file_is_random(clean: TwoFiles) -> None:
    correlation = np.corrcoef(clean.truth, np.arange(ROWS))[0, 1]
    assert abs(correlation) < 5.0 / np.sqrt(ROWS)


@pytest.mark.parametrize("n", [1, 2, 1_000])
@pytest.mark.parametrize("errors", [0.0, 1.0, 1_000.0])
def test_any_size_and_rate(n: int, errors: float) -> None:
    files = two_files(n, seed=5, errors=errors)
    for table in (files.left, files.right):
        for name in ["id", *IDENTIFIERS]:
            assert table.schema.field(name).type == pa.string()
            for value in table[name].to_pylist():
                assert value is None or re.fullmatch(r"[A-Za-z0-9 -]+", value), name


def test_columns_and_ids(usual: TwoFiles) -> None:
    assert usual.left.column_names == ["id", *IDENTIFIERS, "income", "region"]
    assert usual.right.column_names == ["id", *IDENTIFIERS, "consumption"]
    assert usual.left["id"].to_pylist() == [f"A{i:07d}" for i in range(1, ROWS + 1)]
    assert usual.right["id"].to_pylist() == [f"B{i:07d}" for i in range(1, ROWS + 1)]


def test_dates_and_numbers_keep_their_form(usual: TwoFiles) -> None:
    for table in (usual.left, usual.right):
        for value in table["date_of_birth"].drop_null().to_pylist():
            assert date.fromisoformat(value).isoformat() == value
        for name, width in (("postcode", 4), ("national_id", 7)):
            assert all(len(value) == width and value.isdigit() for value in table[name].drop_null().to_pylist())


def test_geography_is_consistent(clean: TwoFiles) -> None:
    columns = (clean.left[name].to_pylist() for name in ("suburb", "postcode", "state"))
    places = set(zip(*columns, strict=True))
    assert len({suburb for suburb, _, _ in places}) == len(places) > 1_000
    assert len({(postcode, state) for _, postcode, state in places}) == len({postcode for _, postcode, _ in places})
    states = clean.left["state"].to_pylist()
    for state, share in zip(STATES, STATE_SHARES, strict=True):
        assert states.count(state) / ROWS == pytest.approx(share, abs=0.025)


def test_names_are_many_and_uneven(clean: TwoFiles) -> None:
    for name, least in (("given_name", 2_000), ("surname", 8_000)):
        counts = np.array([row["counts"] for row in clean.left[name].value_counts().to_pylist()])
        assert counts.size > least
        assert 0.005 < counts.max() / ROWS < 0.05


def test_usual_error_rates(usual: TwoFiles, clean: TwoFiles) -> None:
    wrong = changed(usual.right, clean.right)
    people = np.any([wrong[name] for name in ("given_name", "surname", "date_of_birth", "national_id")], axis=0)
    assert 1.0 - people.mean() == pytest.approx(0.45, abs=0.02)
    assert 0.02 < wrong["state"].mean() < 0.04
    assert (wrong["suburb"] & wrong["postcode"]).mean() == pytest.approx(0.10, abs=0.02)
    assert usual.right["national_id"].null_count / ROWS == pytest.approx(0.10, abs=0.02)


def test_errors_scale_and_are_fewer_on_the_left(usual: TwoFiles, clean: TwoFiles) -> None:
    doubled = two_files(ROWS, seed=1, errors=2.0)
    once, twice = changed(usual.right, clean.right), changed(doubled.right, clean.right)
    left = changed(usual.left, clean.left)
    for name in IDENTIFIERS:
        assert 1.5 < twice[name].mean() / once[name].mean() < 2.5, name
    for name in ("given_name", "surname", "date_of_birth", "national_id"):  # those that moving leaves alone
        assert 0.25 < left[name].mean() / once[name].mean() < 0.45, name


@pytest.mark.parametrize("slope", [0.55, 0.2])
def test_ols_through_the_truth_recovers_the_slope(slope: float) -> None:
    files = two_files(ROWS, seed=2, overlap=0.9, slope=slope)
    present = files.truth >= 0
    income = files.left["income"].to_numpy()[present]
    south = (np.array(files.left["region"].to_pylist()) == "south")[present]
    consumption = files.right["consumption"].to_numpy()[files.truth[present]]
    design = np.column_stack([np.ones(income.size), income, south])
    estimate = np.linalg.lstsq(design, consumption)[0]
    assert estimate[1] == pytest.approx(slope, abs=0.02)
    assert estimate[2] == pytest.approx(1_500.0, abs=500.0)
    assert income.min() >= 2_000.0
    assert consumption.min() >= 500.0


@pytest.mark.parametrize("setting", [{"n": 0}, {"errors": -0.1}, {"errors": float("nan")}, {"overlap": 1.1}])
def test_impossible_settings_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(StudyError, match=next(iter(setting))):
        two_files(**{"n": 10, "seed": 1, **setting})


def test_patients_follow_their_curves() -> None:
    """About one in eighteen dies; 93 % of the links are right, so outcomes differ on less than 7 % of the rows; both outcomes follow age and smoking."""
    rows = linked_patients(60_000, seed=2)
    died, own, smoker = rows["died"] == "yes", rows["true_died"] == "yes", rows["smoker"] == "yes"
    assert own.mean() == pytest.approx(0.056, abs=0.005)
    assert died.sum() == own.sum()
    assert (rows["stays"] != rows["true_stays"]).mean() < 0.07
    odds = [own[smoker == level].mean() / (1 - own[smoker == level].mean()) for level in (True, False)]
    assert np.log(odds[0] / odds[1]) == pytest.approx(0.8, abs=0.25)
    rates = [
        rows["true_stays"][smoker == level].sum() / rows["years"][smoker == level].sum() for level in (True, False)
    ]
    assert np.log(rates[0] / rates[1]) == pytest.approx(0.4, abs=0.06)
    assert (rows["stays"][rows["age"] > 70].mean() / rows["stays"][rows["age"] < 50].mean()) > 1.4


def test_some_people_have_two_records_in_the_right_file() -> None:
    """The second ones are further rows with errors of their own, links to either are right, and the first ones' people are the same as without."""
    files, plain = two_files(500, 3, duplicates=0.2), two_files(500, 3)
    assert files.right.num_rows == 600
    assert files.left.equals(plain.left)
    assert files.owner is not None
    counts = np.bincount(files.owner, minlength=500)
    assert np.bincount(counts).tolist() == [0, 400, 100]
    assert plain.owner is None
    twice = np.flatnonzero(counts == 2)
    for place in (0, 1):
        links = np.full(500, -1)
        links[twice] = [np.flatnonzero(files.owner == person)[place] for person in twice]
        assert files.are_right(links).sum() == 100
    with pytest.raises(StudyError, match="duplicates"):
        two_files(10, 1, duplicates=1.5)
