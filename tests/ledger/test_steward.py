"""What a steward does with the budget that a study names, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm

import dplinked as dpl
from dplinked.fitting import release_mu
from dplinked.ledger.account import allows, describe_left, describe_size, describe_spending, releases_left
from dplinked.ledger.costs import UNITS, budget_units, cost
from dplinked.ledger.steward import (
    Place,
    events_as_lines,
    is_opened,
    ledger_of,
    ledger_state,
    open_budget,
    read_account,
    register,
    verify_with,
)
from dplinked.simulate import linked_households
from studies import LEDGER_STUDY, STUDY


@pytest.fixture
def study(tmp_path: Path) -> dpl.Study:
    pq.write_table(pa.table(linked_households(500, 1)), tmp_path / "linked.parquet")
    return dpl.Study.from_text(LEDGER_STUDY, tmp_path)


def test_a_budget_is_opened_with_the_studys_data(study: dpl.Study, tmp_path: Path) -> None:
    opened = open_budget(Place.of(study), study, epsilon=2.0, delta=1e-6)
    assert opened.population == "households"
    account = read_account(Place.of(study), study)
    assert [event.kind for event in account.events] == ["open", "register"]
    assert (account.balance.epsilon, account.refusal) == (2.0, None)
    with pytest.raises(dpl.StudyError, match="opened once and never reset"):
        open_budget(Place.of(study), study, epsilon=3.0, delta=1e-6)
    with pytest.raises(dpl.StudyError, match="names no ledger"):
        ledger_of(dpl.Study.from_text(STUDY, tmp_path))


def test_nothing_is_opened_for_files_that_cannot_be_read(study: dpl.Study, tmp_path: Path) -> None:
    with pytest.raises(dpl.StudyError, match="There is no file"):
        open_budget(Place.of(study), study, epsilon=2.0, delta=1e-6, further=[tmp_path / "absent.csv"])
    assert not (tmp_path / "budget.db").exists()


def test_an_account_says_which_data_would_be_refused(study: dpl.Study, tmp_path: Path) -> None:
    ledger = open_budget(Place.of(study), None, epsilon=2.0, delta=1e-6)
    refusal = read_account(Place.of(study), study).refusal
    assert refusal is not None
    assert "is not registered for the budget" in refusal
    register(ledger, study, [study.data])
    assert read_account(Place.of(study), study).refusal is None
    freer = dpl.Study.from_text(LEDGER_STUDY.replace("displaced_links = 0", "displaced_links = 1"), tmp_path)
    register(ledger, freer, [freer.data])
    assert "assumes less about the links" in str(read_account(Place.of(study), study).refusal)


def test_files_that_are_yet_to_be_linked_are_registered_without_a_study(study: dpl.Study, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;x\n1;2\n")
    place, file = Place.of(study), dpl.File(tmp_path / "a.csv", separator=";")
    assert not is_opened(place)
    ledger = open_budget(place, None, epsilon=2.0, delta=1e-6, unlinked=[file])
    assert is_opened(place)
    assert not is_opened(replace(place, population="others"))
    assert ledger.check_registered(file) == [ledger.fingerprint(file)]
    with pytest.raises(dpl.StudyError, match="registered without its links"):
        ledger.check_place(file, dpl.PrivacyUnit(), study.linkage)
    assert read_account(place).refusal is None


def test_a_place_is_read_from_a_text_that_lacks_the_rest(tmp_path: Path) -> None:
    text = '[ledger]\nurl = "budget.db"\npopulation = "people"\nkey = "a.key"\n'
    assert Place.of_text(text, tmp_path) == Place(str(tmp_path / "budget.db"), "people", tmp_path / "a.key")
    for other in ("", "[ledger]", "[ledger", "ledger = 1"):
        assert Place.of_text(other, tmp_path) is None
    with pytest.raises(dpl.StudyError, match="must be a text"):
        Place.of_text("[ledger]\nurl = 3", tmp_path)
    assert "secret" not in repr(Place("postgresql://me:secret@host/db"))


def test_what_changes_the_ledger_changes_its_state(study: dpl.Study) -> None:
    before = ledger_state(Place.of(study))
    ledger = open_budget(Place.of(study), study, epsilon=2.0, delta=1e-6)
    opened = ledger_state(Place.of(study))
    assert opened != before
    read_account(Place.of(study), study)
    assert ledger_state(Place.of(study)) == opened  # reading changes nothing
    ledger.book(epsilon=0.1, delta=1e-7, note="elsewhere")
    assert ledger_state(Place.of(study)) != opened
    assert "There is no ledger" in ledger_state(replace(Place.of(study), ledger="absent.db"))


def test_a_ledger_that_was_rolled_back_is_noticed(study: dpl.Study, tmp_path: Path) -> None:
    ledger = open_budget(Place.of(study), study, epsilon=2.0, delta=1e-6)
    kept = (tmp_path / "budget.db").read_bytes()
    release = dpl.fit_study(study, study.data)
    assert release.ledger is not None
    balance, said = verify_with(ledger, [release.ledger.head])
    assert balance == ledger.balance()
    assert "the release in this folder that was charged to it" in said
    (tmp_path / "budget.db").write_bytes(kept)
    assert "Nothing was changed" in verify_with(ledger, [])[1]
    with pytest.raises(dpl.LedgerError, match="was rolled back"):
        verify_with(ledger, [release.ledger.head])


def test_exported_events_hide_fingerprints(study: dpl.Study) -> None:
    ledger = open_budget(Place.of(study), study, epsilon=2.0, delta=1e-6)
    dpl.fit_study(study, study.data, release_id="first")
    lines = [json.loads(line) for line in events_as_lines(ledger.events()).splitlines()]
    assert [(line["kind"], line["name"]) for line in lines] == [
        ("open", ""), ("register", ""), ("charge", "first"), ("release", "first")
    ]  # fmt: skip
    assert not any({"request", "nonce"} & line.keys() for line in lines)
    assert events_as_lines([]) == ""


def test_a_budget_is_told_in_shares_and_releases(study: dpl.Study) -> None:
    ledger = open_budget(Place.of(study), study, epsilon=2.0, delta=1e-6)
    mu, whole = release_mu(study), ledger.balance()
    count = releases_left(whole, mu)
    share = cost(mu) / whole.total
    assert count == 3
    assert describe_left(whole, mu) == "All of the budget is left, enough for about 3 more releases like this one."
    said = describe_spending(whole, mu)
    told = [float(word) for word in said.replace("%", "").split() if word.replace(".", "", 1).isdigit()]
    assert told[0] == pytest.approx(100 * share, abs=0.1)
    assert told[0] >= 100 * share
    assert told[1] <= 100 * (1 - share)
    assert told[2] == 2
    assert "\n" not in said
    assert said.count(". ") == 0
    spent = replace(whole, spent=2 * cost(mu))
    assert "which is too little for another one like it" in describe_spending(spent, mu)
    assert "enough for one more release like this one" in describe_left(spent, mu)
    spent = replace(whole, spent=3 * cost(mu))
    assert not allows(spent, mu)
    assert "This release needs" in describe_spending(spent, mu)
    assert "too little for a release like this one" in describe_left(spent, mu)
    assert describe_left(replace(whole, spent=whole.total), mu).startswith("Nothing is left")


def test_a_size_is_told_by_what_can_be_guessed(study: dpl.Study) -> None:
    mu = (2 * budget_units(2.0, 1e-6) / UNITS) ** 0.5
    guess = 100 * norm.cdf(mu / 2)
    said = describe_size(2.0, 1e-6, release_mu(study))
    told = float(said.split("at most ")[1].split(" %")[0])
    assert guess <= told <= guess + 0.1
    assert said.endswith("It is enough for about 3 releases like this study's.")
    assert "too small for one release" in describe_size(0.5, 1e-6, release_mu(study))
