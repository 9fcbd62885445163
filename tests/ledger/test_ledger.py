"""The ledger: what it charges, what it refuses, and that neither crashes, races nor damaged files make it forget."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import dplinked as dpl
from dplinked import fitting
from dplinked.cli import main as cli
from dplinked.errors import BudgetError, LedgerError, ReleaseError, StudyError
from dplinked.ledger import ledger as ledgers
from dplinked.ledger.costs import UNITS, budget_units, cost
from dplinked.ledger.ledger import Ledger
from dplinked.ledger.registration import CheckedLinks
from dplinked.linkage.secret_sample import SecretSample
from dplinked.linker.audit import read_audit
from dplinked.privacy.calibration import privacy_epsilon, privacy_mu
from dplinked.simulate import linked_households, review_links, two_files

BUDGET = {"epsilon": 3.0, "delta": 1e-6}
MU = privacy_mu(0.5, 1e-6)
MODEL: dict[str, Any] = {
    "formula": "consumption ~ income", "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)}, "epsilon": 1.0, "delta": 1e-6,
    "linkage": dpl.ELE(0.91, block="state"),
}  # fmt: skip
LINKS: dict[str, Any] = {"linkage": MODEL["linkage"]}  # what is registered of the links
NUMBERS = itertools.count()


# --- two databases -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A PostgreSQL of our own; gives addresses of new, empty databases."""
    pytest.importorskip("psycopg")
    folder, server = tempfile.mkdtemp(prefix="dplinked-pg-"), None  # a short path, for its socket
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a runtime folder that is not set
            pgserver = pytest.importorskip("pgserver")
            server = pgserver.get_server(folder)
    except Exception as fault:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL did not start: {type(fault).__name__}")

    for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # nothing here outlives the machine
        server.psql(f"ALTER SYSTEM SET {setting} = off;")
    server.psql("SELECT pg_reload_conf();")

    def new_database() -> str:
        name = f"ledger{next(NUMBERS)}"
        server.psql(f"CREATE DATABASE {name};")
        return str(server.get_uri(database=name))

    yield new_database
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def named_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers in PostgreSQL keep their key in a file that must be named."""
    monkeypatch.setenv("DPLINKED_LEDGER_KEY", str(tmp_path_factory.getbasetemp() / "postgres.key"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be created, in either database."""
    if request.param == "sqlite":
        return str(tmp_path / "budget.db")
    return str(request.getfixturevalue("postgres")())


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger.create(url, "people", **BUDGET)


@pytest.fixture(scope="module")
def households() -> pd.DataFrame:
    return pd.DataFrame(linked_households(400, 4)).drop(columns="true_consumption")


@pytest.fixture
def data(households: pd.DataFrame, tmp_path: Path) -> Path:
    """The households as a file."""
    path = tmp_path / "linked.parquet"
    pq.write_table(pa.Table.from_pandas(households), path)
    return path


@pytest.fixture
def registered(ledger: Ledger, data: Path) -> Ledger:
    ledger.register(data, **LINKS)
    return ledger


def fit(data: Any, url: str, **options: Any) -> dpl.Release:
    return dpl.fit(data, **{**MODEL, "ledger": url, "population": "people", **options})


def kinds(ledger: Ledger) -> list[str]:
    return [event.kind for event in ledger.events()]


# --- opening and showing -----------------------------------------------------------------------------


def test_opened_registered_booked_shown_and_verified(url: str, data: Path) -> None:
    made = Ledger.create(url, "people", **BUDGET)
    made.register(data)
    made.register(data)  # known already
    made.book(epsilon=0.5, delta=1e-6, note="a table of 2019")
    again = Ledger(url)
    assert again.population == "people"
    assert kinds(again) == ["open", "register", "booked"]
    balance = again.balance()
    assert balance == again.verify() == again.verify(balance.head)
    assert (balance.epsilon, balance.delta, balance.total) == (3.0, 1e-6, budget_units(3.0, 1e-6))
    assert balance.spent == cost(MU)
    assert json.loads(again.events()[2].body)["note"] == "a table of 2019"


def test_a_budget_is_opened_once(ledger: Ledger, url: str) -> None:
    ledger.reserve("a", {}, MU)
    with pytest.raises(StudyError, match="already"):
        Ledger.create(url, "people", epsilon=9.0, delta=1e-6)
    assert ledger.verify().spent == cost(MU)
    assert ledger.balance().epsilon == 3.0


def test_a_missing_ledger_is_not_created(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "nowhere.db"
    for address in (path, f"sqlite:///{path}"):
        with pytest.raises(LedgerError, match=r"no ledger 'nowhere\.db'"):
            Ledger(address, "people")
        with pytest.raises(LedgerError) as caught:
            fit(data, str(address))
        assert caught.value.exit_code == 4
    assert not list(tmp_path.glob("nowhere*"))


def test_an_empty_database_is_no_ledger(url: str) -> None:
    if "://" not in url:
        Path(url).touch()
    with pytest.raises(LedgerError):
        Ledger(url, "people")


def test_several_populations_in_one_ledger(ledger: Ledger, url: str, data: Path) -> None:
    other = Ledger.create(url, "firms", epsilon=1.0, delta=1e-7)
    ledger.register(data)
    ledger.reserve("a", {}, MU)
    assert (other.verify().spent, ledger.verify().spent) == (0, cost(MU))
    assert other.reserve("a", {}, 0.1).stored is None  # ids are each population's own
    with pytest.raises(LedgerError, match="not registered"):
        other.check_registered(data)
    with pytest.raises(StudyError, match="Name one"):
        Ledger(url)
    with pytest.raises(StudyError, match="no budget for this population"):
        Ledger(url, "elsewhere")


@pytest.mark.parametrize("address", ["mysql://host/base", "://", "sqlite:////no/such/folder/b.db"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(StudyError):
        Ledger.create(address, "people", **BUDGET)


def test_an_unreachable_database_is_told_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError) as caught:
        Ledger("postgresql://steward:hunter2@localhost:1/base?connect_timeout=1", "people")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("secret_first", [True, False])
def test_links_of_a_secret_sample_are_known_again_in_every_population(url: str, secret_first: bool) -> None:
    first, second = (Ledger.create(url, name, **BUDGET) for name in ("people", "others"))
    prices = [SecretSample(0.02, 2, 5.0, 0.9), 0.1]

    def charge(ledger: Ledger, price: Any, key: str | None, rows: list[int] | None) -> None:
        request = {"price": str(price), "key": key, "rows": rows}
        ledger.record(ledger.reserve(None, request, price, links=ledger.know_links(key, rows)), "{}")

    charge(first, prices[not secret_first], "key" if secret_first else None, [100, 3, 5])
    for ledger in (first, second):
        with pytest.raises(dpl.StudyError, match="charged from this secret sample before"):
            charge(ledger, prices[secret_first], None if secret_first else "key", [100, 3, 5])
        charge(ledger, 0.1, None, [100, 3, 6])
        charge(ledger, prices[0], ledger.population, None)
    charge(second, 0.2, None, [100, 3, 6])  # a public sample may be released from twice
    if secret_first:
        with pytest.raises(dpl.StudyError, match="charged from this secret sample before"):
            charge(second, prices[0], "key", [200, 7])
    assert len({text for ledger in (first, second) for text in dataclasses.astuple(ledger.know_links("key", [1]))}) == 2
    assert first.know_links(None, None) == CheckedLinks(None, None)


def test_two_populations_at_once_do_not_use_one_secret_sample(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    books = [Ledger.create(url, name, **BUDGET) for name in ("people", "others")]
    units = Ledger._units

    def slowly(*arguments: Any) -> int:
        time.sleep(0.3)  # between the look at all charges and the new one
        return units(*arguments)

    monkeypatch.setattr(Ledger, "_units", slowly)

    def charge(ledger: Ledger) -> bool:
        with contextlib.suppress(StudyError):
            ledger.reserve(None, {}, SecretSample(0.02, 2, 5.0, 0.9), links=ledger.know_links("key", None))
            return True
        return False

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(charge, books)) == [False, True]


# --- what it costs -----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-5, 10.0))
def test_costs_are_whole_and_rounded_up(mu: float) -> None:
    from fractions import Fraction

    exact = Fraction(mu) ** 2 / 2 * UNITS
    assert isinstance(cost(mu), int)
    assert exact <= cost(mu) <= exact * (1 + Fraction(1, 10**9)) + 3


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 20.0), st.floats(1e-10, 1e-3))
def test_budgets_are_rounded_down(epsilon: float, delta: float) -> None:
    from fractions import Fraction

    total = budget_units(epsilon, delta)
    assert isinstance(total, int)
    assert total <= Fraction(privacy_mu(epsilon, delta) * (1 + 1e-7)) ** 2 / 2 * UNITS


@settings(max_examples=12, deadline=None)
@given(charges=st.lists(st.tuples(st.sampled_from(["reserve", "book"]), st.floats(0.001, 2.0)), max_size=8))
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_balance_is_the_sum_of_costs(
    database: str, charges: list[tuple[str, float]], shared: dict[str, str]
) -> None:
    ledger = Ledger.create(shared[database], f"people {next(NUMBERS)}", **BUDGET)
    spent = 0
    for kind, epsilon in charges:
        left, mu = ledger.balance().total - spent, privacy_mu(epsilon, 1e-6)
        if kind == "book":
            ledger.book(epsilon=epsilon, delta=1e-6, note="")
            spent += cost(mu)
        elif cost(mu) <= left:
            assert ledger.reserve(None, {}, mu, again=True).balance.spent == spent + cost(mu)
            spent += cost(mu)
        else:
            with pytest.raises(BudgetError):
                ledger.reserve(None, {}, mu, again=True)
        balance = ledger.verify()
        assert balance.spent == spent == sum(event.units for event in ledger.events())
        if not any(kind == "book" for kind, _ in charges):
            assert spent <= balance.total
    if spent < ledger.balance().total:
        check_affordable(ledger)


@pytest.fixture(scope="module")
def shared(postgres: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One ledger of each database, for many populations."""
    return {"sqlite": str(tmp_path_factory.mktemp("shared") / "budget.db"), "postgresql": postgres()}


def check_affordable(ledger: Ledger) -> None:
    """What is said to be left is accepted as a release, and 1 % more is not."""
    left = ledger.balance().epsilon_left
    with pytest.raises(BudgetError) as caught:
        ledger.reserve(None, {}, privacy_mu(left * 1.01, 1e-6), again=True)
    assert caught.value.exit_code == 3
    assert ledger.reserve(None, {}, privacy_mu(left, 1e-6), again=True).balance.spent <= ledger.balance().total


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99, 0.9999])
def test_what_is_left_is_affordable(tmp_path: Path, share: float) -> None:
    ledger = Ledger.create(tmp_path / "budget.db", "people", **BUDGET)
    if share:
        ledger.reserve(None, {}, privacy_mu(3.0, 1e-6) * math.sqrt(share))
    check_affordable(ledger)
    assert ledger.verify().epsilon_left < 0.01


def test_nothing_is_left_after_more_was_booked(ledger: Ledger) -> None:
    ledger.book(epsilon=5.0, delta=1e-6, note="before the ledger")
    assert ledger.verify().spent > ledger.balance().total
    assert ledger.balance().epsilon_left == 0.0
    with pytest.raises(BudgetError):
        ledger.reserve(None, {}, 1e-4)


def test_composition_agrees_with_dp_accounting(tmp_path: Path) -> None:
    """ε of all charges together, by μ² that add, against a composition of privacy loss distributions."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    mus = [0.15, 0.2, 0.3, 0.25, 0.1]
    ledger = Ledger.create(tmp_path / "budget.db", "people", **BUDGET)
    whole = None
    for mu in mus:
        ledger.reserve(None, {}, mu, again=True)
        one = pld.from_gaussian_mechanism(1.0 / mu, value_discretization_interval=1e-4)
        whole = one if whole is None else whole.compose(one)
    together = math.sqrt(2.0 * ledger.balance().spent / UNITS)
    assert together == pytest.approx(math.sqrt(sum(mu * mu for mu in mus)), rel=1e-9)
    assert privacy_epsilon(together, 1e-6) == pytest.approx(whole.get_epsilon_for_delta(1e-6), rel=1e-3)


def test_a_charge_costs_the_mu_that_the_release_states(registered: Ledger, url: str, data: Path) -> None:
    release = fit(data, url)
    assert registered.balance().spent == cost(release.privacy.mu) == cost(privacy_mu(1.0, 1e-6))


# --- reserving and recording -------------------------------------------------------------------------


def test_the_same_request_is_answered_once(ledger: Ledger) -> None:
    charge = ledger.reserve("first", {"x": [1, 2.5]}, MU)
    assert charge.stored is None
    ledger.record(charge, "the release")
    again = ledger.reserve("first", {"x": [1, 2.5]}, MU)
    assert (again.stored, again.head) == ("the release", charge.head)
    assert ledger.verify().spent == cost(MU)
    assert kinds(ledger) == ["open", "charge", "release"]


def test_another_request_under_the_same_id_is_a_conflict(ledger: Ledger) -> None:
    ledger.record(ledger.reserve("first", {"x": 1}, MU), "the release")
    with pytest.raises(StudyError, match="another request") as caught:
        ledger.reserve("first", {"x": 2}, MU)
    assert caught.value.exit_code == 2
    assert ledger.verify().spent == cost(MU)


def test_long_arrays_are_told_apart(ledger: Ledger) -> None:
    """NumPy prints few digits and few elements; a request is all of them."""
    ledger.record(ledger.reserve("first", {"x": np.arange(2000.0)}, MU), "the release")
    other = np.arange(2000.0)
    other[1000] += 1e-9
    with pytest.raises(StudyError, match="another request"):
        ledger.reserve("first", {"x": other}, MU)


@pytest.mark.parametrize("name", ["x" * 201, 7, "a\nb", "a\0b"])
def test_ids_are_short_texts(ledger: Ledger, name: Any) -> None:
    with pytest.raises(StudyError, match="200 printable characters"):
        ledger.reserve(name, {}, MU)
    assert ledger.verify().spent == 0


def test_a_charge_survives_the_death_of_its_process(ledger: Ledger, url: str) -> None:
    code = (
        "import os, sys; from dplinked.ledger.ledger import Ledger\n"
        "Ledger(sys.argv[1], 'people').reserve('first', {'x': 1}, float(sys.argv[2])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, url, repr(MU)], check=False).returncode == 9
    for _ in range(2):
        with pytest.raises(LedgerError, match="never finished") as caught:
            ledger.reserve("first", {"x": 1}, MU)
        assert caught.value.exit_code == 4
    assert ledger.verify().spent == cost(MU)
    assert ledger.reserve("second", {"x": 1}, MU).stored is None


def test_a_process_elsewhere_is_waited_for(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ledgers.socket, "gethostname", lambda: "another host")
        ledger.reserve("first", {}, MU)
    monkeypatch.setattr(ledgers, "_WAIT", 0.3)
    started = time.monotonic()
    with pytest.raises(LedgerError, match="never finished"):
        ledger.reserve("first", {}, MU)
    assert time.monotonic() - started >= 0.3


def test_an_exhausted_budget_refuses_and_spends_nothing(ledger: Ledger) -> None:
    ledger.reserve(None, {}, privacy_mu(2.9, 1e-6))
    before = ledger.verify()
    with pytest.raises(BudgetError, match="Nothing was spent") as caught:
        ledger.reserve("first", {}, privacy_mu(1.0, 1e-6))
    assert caught.value.exit_code == 3
    assert ledger.verify() == before
    assert ledger.reserve("first", {}, 0.01).stored is None


# --- releases through the ledger ---------------------------------------------------------------------


def test_a_release_names_its_charge(registered: Ledger, url: str, data: Path) -> None:
    release = fit(data, url, release_id="first")
    assert release.ledger is not None
    assert (release.ledger.id, release.ledger.population) == ("first", "people")
    balance = registered.verify(release.ledger.head)
    assert release.ledger.epsilon_left == balance.epsilon_left
    assert kinds(registered) == ["open", "register", "charge", "release"]
    again = fit(data, url, release_id="first")
    assert again.to_json() == release.to_json() == registered.events()[-1].body
    assert registered.balance() == balance
    with pytest.raises(StudyError, match="another request"):
        fit(data, url, release_id="first", epsilon=0.5)
    fit(data, url, epsilon=0.5)  # another request is another release, with or without a name
    assert registered.verify().spent == cost(privacy_mu(1.0, 1e-6)) + cost(MU)


def test_unregistered_and_changed_data_is_refused(registered: Ledger, url: str, data: Path, tmp_path: Path) -> None:
    table = pq.read_table(data)
    pq.write_table(table.slice(0, 300), tmp_path / "other.parquet")
    with pytest.raises(LedgerError, match="not registered") as caught:
        fit(tmp_path / "other.parquet", url)
    assert caught.value.exit_code == 4
    assert fit(str(data), url, epsilon=0.1).ledger is not None
    spent = registered.balance().spent
    income = table["income"].to_numpy().copy()
    income[7] += 1.0
    pq.write_table(table.set_column(table.column_names.index("income"), "income", pa.array(income)), data)
    with pytest.raises(LedgerError, match="has changed since"):
        fit(data, url)
    assert registered.verify().spent == spent


def test_tables_in_memory_are_registered_by_content(ledger: Ledger, url: str, households: pd.DataFrame) -> None:
    with pytest.raises(LedgerError, match="not registered"):
        fit(households, url)
    assert ledger.verify().spent == 0
    ledger.register(households, **LINKS)
    first = fit(households.copy(), url, release_id="first")
    assert first.to_json() == fit(households, url, release_id="first").to_json()
    changed = households.copy()
    changed.loc[7, "income"] += 1.0
    with pytest.raises(LedgerError, match="not registered"):
        fit(changed, url)
    with pytest.raises(LedgerError, match="not registered"):
        fit(households.iloc[::-1], url)


def test_a_rolled_back_copy_is_noticed(tmp_path: Path, data: Path) -> None:
    url = tmp_path / "budget.db"
    ledger = Ledger.create(url, "people", **BUDGET)
    ledger.register(data, **LINKS)
    shutil.copy(url, tmp_path / "copy.db")
    release = fit(data, str(url))
    assert release.ledger is not None
    ledger.verify(release.ledger.head)
    assert not list(tmp_path.glob("budget.db-*"))  # all of it is in the one file
    shutil.copy(tmp_path / "copy.db", url)
    assert Ledger(url, "people").verify().spent == 0  # it is a ledger, but an old one
    with pytest.raises(LedgerError, match="rolled back"):
        Ledger(url, "people").verify(release.ledger.head)


@pytest.fixture(scope="module")
def audited() -> Any:
    files = two_files(600, 4)
    fields = ["given_name", "surname", "date_of_birth", "address", "national_id"]
    linked = dpl.link(files.left, files.right, fields=fields, id="id", block="state")
    return linked.audited(review_links(linked.audit_sample(100), files))


def test_released_accuracies_are_charged(ledger: Ledger, url: str, audited: Any) -> None:
    options: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": dpl.PrivacyUnit(), "ledger": url, "population": "people"}  # fmt: skip
    ledger.register(audited.left)
    with pytest.raises(LedgerError, match="not registered"):
        dpl.release_accuracy(audited, **options)
    assert ledger.verify().spent == 0
    ledger.register(audited.sources[1])
    ledger.register(audited.sources[0])
    paid = dpl.release_accuracy(audited, **options, release_id="accuracy")
    assert paid.ledger is not None
    assert ledger.verify(paid.ledger.head).spent == cost(MU)
    again = dpl.release_accuracy(audited, **options, release_id="accuracy")
    assert again.to_json() == paid.to_json()
    with pytest.raises(StudyError, match="another request"):
        dpl.release_accuracy(audited, **{**options, "epsilon": 0.6}, release_id="accuracy")
    with pytest.raises(BudgetError):
        dpl.release_accuracy(audited, **{**options, "epsilon": 3.0})
    assert ledger.verify().spent == cost(MU)


def test_accuracies_recorded_by_an_older_version_are_not_taken_for_others(
    ledger: Ledger, url: str, audited: Any
) -> None:
    """Version 0.1 did not say which links were checked, so that two samples that found the same were one request."""
    options: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": dpl.PrivacyUnit()}
    for source in audited.sources:
        ledger.register(source)
    answers = {"checked": audited.audit.checked.tolist(), "right": audited.audit.correct.tolist()}
    request = {
        "accuracy": ledger.fingerprint(answers),
        "files": ledger.check_registered(*audited.sources),
        "groups": list(audited.strata.names),
        "epsilon": 0.5,
        "delta": 1e-6,
        "unit": {"moves_block": False, "displaced_links": None, "linkage_change": None},
    }
    paid = dpl.release_accuracy(audited, **options)
    charge = ledger.reserve("accuracy", request, MU)
    ledger.record(charge, paid.to_json().replace('"correct":', '"right":'))
    with pytest.raises(StudyError, match="from another request"):
        dpl.release_accuracy(audited, **options, ledger=url, population="people", release_id="accuracy")
    first = dpl.release_accuracy(audited, **options, ledger=url, population="people", release_id="again")
    assert dpl.release_accuracy(audited, **options, ledger=url, population="people", release_id="again") == first
    assert ledger.verify().spent == 2 * cost(MU)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Two files with semicolons and decimal commas, and the people in them."""
    folder, files = tmp_path_factory.mktemp("written"), two_files(300, 4)
    for name, table in (("left.csv", files.left), ("right.csv", files.right)):
        lines = [";".join(table.column_names)]
        lines += [";".join(str(cell).replace(".", ",") for cell in row.values()) for row in table.to_pylist()]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder, files


WRITTEN: dict[str, Any] = {"separator": ";", "decimal": ",", "encoding": "latin-1"}
OTHERWISE: dict[str, Any] = {**WRITTEN, "thousands": "."}


@pytest.mark.parametrize(
    ("registered", "linked_as", "released"),
    [
        (WRITTEN, WRITTEN, True),
        (OTHERWISE, OTHERWISE, True),
        (WRITTEN, OTHERWISE, False),
        (OTHERWISE, WRITTEN, False),
        ({}, WRITTEN, False),
    ],
)
def test_accuracies_of_files_are_released_as_they_were_registered(
    tmp_path: Path, written: tuple[Path, Any], registered: dict[str, Any], linked_as: dict[str, Any], released: bool
) -> None:
    """The same bytes read with other options are other data."""
    folder, files = written
    paths = [folder / "left.csv", folder / "right.csv"]
    ledger = Ledger.create(tmp_path / "budget.db", "people", **BUDGET)
    for path in paths:
        ledger.register(dpl.File(path, **registered))
    linked = dpl.link(
        *(dpl.File(path, **linked_as) for path in paths), fields=["given_name", "surname", "date_of_birth"], id="id"
    )
    linked.save(tmp_path / "linked", audit_sample=60)
    answers = tmp_path / "linked" / "audit.csv"
    pyarrow.csv.write_csv(review_links(pyarrow.csv.read_csv(answers), files), answers)
    audited = linked.audited(answers)
    options: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": dpl.PrivacyUnit(), "ledger": tmp_path / "budget.db"}  # fmt: skip
    if released:
        assert dpl.release_accuracy(audited, **options).ledger is not None
        assert ledger.verify().spent == cost(MU)
        paths[1].touch()
        with pytest.raises(LedgerError, match="changed since they were linked"):
            dpl.release_accuracy(audited, **options)
        return
    with pytest.raises(LedgerError, match="not registered"):
        dpl.release_accuracy(audited, **options)
    assert ledger.verify().spent == 0


def test_the_command_line_pays_for_files_as_they_were_registered(
    tmp_path: Path, written: tuple[Path, Any], data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    folder, files = written
    paths = [str(folder / "left.csv"), str(folder / "right.csv")]
    how = ["--separator", ";", "--decimal", ",", "--encoding", "latin-1"]
    Path("study.toml").write_text(STUDY, encoding="utf-8")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dplinked", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = "".join(capsys.readouterr())
        assert ended.value.code == code, out
        return out

    link = ["link", *paths, *how, "--out", "linked", "--id", "id", "--field", "surname", "--field", "date_of_birth"]
    run(*link, "--audit-sample", "60")
    answers = Path("linked/audit.csv")
    pyarrow.csv.write_csv(review_links(read_audit(answers), files), answers)
    pay = ["--audited", str(answers), "--release-accuracy", "0.5", "--delta", "1e-6", "--displaced-links", "0", "--ledger", "budget.db"]  # fmt: skip
    run("budget", "init", "study.toml", "--epsilon", "2", "--delta", "1e-6", "--register", paths[0], *how)
    assert "not registered" in run(*link, *pay, code=4)
    assert "in [data]" in run("budget", "register", "study.toml", *how, code=2)
    run("budget", "register", "study.toml", paths[1], *how)
    run(*link, *pay)
    assert Ledger("budget.db").verify().spent == cost(MU)


def test_files_exchanged_after_linking_are_refused(tmp_path: Path) -> None:
    """Registered or not, and by whatever way: the release would be charged to files that it does not describe."""
    files, paths = two_files(300, 4), [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    ledger = Ledger.create(tmp_path / "budget.db", "people", **BUDGET)
    for path, table in zip(paths, (files.left, files.right), strict=True):
        pq.write_table(table, path)
        ledger.register(path)
    (tmp_path / "link.parquet").symlink_to(paths[0])
    linked = dpl.link(tmp_path / "link.parquet", str(paths[1]), fields=["surname", "date_of_birth"], id="id")
    linked = linked.audited(review_links(linked.audit_sample(60), files))
    options: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": dpl.PrivacyUnit(), "ledger": tmp_path / "budget.db"}  # fmt: skip
    other = tmp_path / "other.parquet"
    pq.write_table(files.left.slice(0, 200), other)
    ledger.register(other)
    (tmp_path / "link.parquet").unlink()
    (tmp_path / "link.parquet").symlink_to(other)
    assert dpl.release_accuracy(linked, **options).ledger is not None  # of the file that was linked
    for exchange in (
        lambda: shutil.copy(other, paths[0]),
        lambda: paths[0].unlink(),
        lambda: other.replace(paths[0]),
        lambda: pq.write_table(files.left, paths[0]),
    ):
        exchange()
        with pytest.raises(LedgerError, match=r"changed since they were linked\. Nothing was spent") as caught:
            dpl.release_accuracy(linked, **options)
        assert caught.value.exit_code == 4
    assert ledger.verify().spent == cost(MU)


# --- what goes wrong after the charge ----------------------------------------------------------------


def fail(fault: BaseException) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise fault

    return run


def failing(fault: BaseException) -> Callable[..., Any]:
    """The study's own method, which fails when it is run."""
    method_of = fitting.method_of
    return lambda study: replace(method_of(study), run=fail(fault))


@pytest.mark.parametrize("fault", [RuntimeError("income 31415"), MemoryError(), StudyError("income 31415")])
def test_a_failure_keeps_the_charge_and_tells_nothing(
    registered: Ledger, url: str, data: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "method_of", failing(fault))
        with pytest.raises(ReleaseError, match="the charge stays") as caught:
            fit(data, url, release_id="first")
    assert caught.value.exit_code == 5
    assert "31415" not in str(caught.value)
    assert caught.value.__context__ is None
    assert kinds(registered)[-2:] == ["charge", "failed"]
    assert registered.verify().spent == cost(privacy_mu(1.0, 1e-6))
    with pytest.raises(LedgerError, match="never finished"):
        fit(data, url, release_id="first")
    assert fit(data, url, release_id="second").ledger is not None


def test_an_interruption_keeps_the_charge(
    registered: Ledger, url: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "method_of", failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            fit(data, url, release_id="first")
    assert registered.verify().spent == cost(privacy_mu(1.0, 1e-6))
    with pytest.raises(LedgerError, match="never finished"):  # at once, though this process is alive
        fit(data, url, release_id="first")


def test_a_failure_is_one_of_the_release_even_if_the_ledger_is_gone(
    registered: Ledger, url: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "method_of", failing(RuntimeError()))
        patched.setattr(Ledger, "record_failure", fail(LedgerError("")))
        with pytest.raises(ReleaseError, match="the charge stays"):
            fit(data, url)
    assert registered.verify().spent == cost(privacy_mu(1.0, 1e-6))


def test_nothing_is_shown_that_was_not_recorded(
    registered: Ledger, url: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record", fail(LedgerError("gone")))
        with pytest.raises((LedgerError, ReleaseError)):
            fit(data, url)
    assert registered.verify().spent == cost(privacy_mu(1.0, 1e-6))


# --- append only, and nothing to read from hashes ----------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET units = 0",
        "UPDATE events SET body = body WHERE kind = 'charge'",
        "DELETE FROM events",
        "DELETE FROM events WHERE kind = 'charge'",
        "DELETE FROM budget",
        "UPDATE budget SET spent = 0",
        "UPDATE budget SET spent = 0, seq = seq + 1",
        "UPDATE budget SET total = total + 1, seq = seq + 1",
        "UPDATE budget SET epsilon = '9.0', seq = seq + 1",
        "UPDATE budget SET secret = '00', seq = seq + 1",
    ],
)
def test_events_and_spending_only_grow(url: str, statement: str) -> None:
    ledger = Ledger.create(url, "people", **BUDGET)
    ledger.reserve("first", {}, MU)
    before = ledger.verify()
    with pytest.raises(sa.exc.DBAPIError, match="append only"), ledger._engine.begin() as connection:
        connection.exec_driver_sql(statement)
    assert ledger.verify() == before


@pytest.mark.parametrize("table", ["events", "budget"])
def test_tables_cannot_be_emptied(postgres: Callable[[], str], table: str) -> None:
    ledger = Ledger.create(postgres(), "people", **BUDGET)
    with pytest.raises(sa.exc.DBAPIError, match="append only"), ledger._engine.begin() as connection:
        connection.exec_driver_sql(f"TRUNCATE {table}")
    ledger.verify()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE events SET units = units - 1 WHERE kind = 'charge'", "event 2 does not fit"),
        ("UPDATE events SET body = 'x' WHERE kind = 'release'", "event 3 does not fit"),
        ("DELETE FROM events WHERE seq = 2", "event 2 does not fit"),
        ("DELETE FROM events WHERE seq = 3", "balance"),
        ("DELETE FROM events", "balance"),
        ("UPDATE budget SET spent = 0", "balance is not the one"),
        ("UPDATE budget SET total = total * 2", "balance is not the one"),
        ("DELETE FROM budget", "balance is not the one"),
    ],
)
def test_changes_past_the_triggers_are_noticed(url: str, statement: str, message: str) -> None:
    ledger = Ledger.create(url, "people", **BUDGET)
    ledger.record(ledger.reserve("first", {}, MU), "the release")
    triggers = {"events": ["events_stay", "events_remain"], "budget": ["budget_grows", "budget_remains"]}
    with ledger._engine.begin() as connection:
        for table, names in triggers.items():
            for name in names:
                sql = f"DROP TRIGGER IF EXISTS {name}" + ("" if connection.dialect.name == "sqlite" else f" ON {table}")
                connection.exec_driver_sql(sql)
        connection.exec_driver_sql(statement)
    with pytest.raises(LedgerError, match=message):
        ledger.verify()


def test_the_same_history_has_other_hashes(tmp_path: Path, data: Path) -> None:
    """Heads are printed: they must not be computable from what happened, nor fingerprints from the file."""
    books = [Ledger.create(tmp_path / f"{k}.db", "people", **BUDGET) for k in range(2)]
    books.append(Ledger.create(tmp_path / "0.db", "others", **BUDGET))
    for book in books:
        book.register(data)
        book.reserve("first", {"x": 1}, MU)
    assert len({book.balance().head for book in books}) == 3
    marks = {book.fingerprint(data) for book in books}
    assert len(marks) == 3
    import hashlib

    assert hashlib.sha256(data.read_bytes()).hexdigest() not in marks


def test_tables_that_arrow_cannot_hold_are_known_again(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "0.db", "people", **BUDGET)
    cells = {"k": ["a", 1, None, "\ud800", object()], "x": [0.5, "1e3", None, 2, math.nan]}
    marks = {
        book.fingerprint(cells | changed)
        for changed in ({}, {"x": [0.5, "1e3", None, 3, math.nan]}, {"k": list("abcde")})
    }
    assert len(marks) == 3
    assert book.fingerprint({name: list(column) for name, column in cells.items()}) in marks


STUDY = """\
[data]
path = "linked.parquet"
[model]
formula = "consumption ~ income"
[bounds]
income = [0, 150000]
consumption = [0, 120000]
[linkage]
accuracy = 0.91
block = "state"
[privacy]
epsilon = 1.0
delta = 1e-6
[ledger]
url = "budget.db"
population = "people"
"""


def test_commands_never_print_fingerprints(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY, encoding="utf-8")
    said = []

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dplinked", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = "".join(capsys.readouterr())
        assert ended.value.code == code, out
        said.append(out)
        return out

    run("budget", "show", "study.toml", code=4)
    assert not Path("budget.db").exists()
    run("budget", "init", "study.toml", "--epsilon", "2", "--delta", "1e-6")
    run("budget", "init", "study.toml", "--epsilon", "9", "--delta", "1e-6", code=2)
    run("fit", "study.toml", "--id", "first")
    run("fit", "study.toml", "--id", "first", "--force")
    run("budget", "book", "study.toml", "--epsilon", "1.5", "--delta", "1e-6", "--note", "a table")
    assert "first" in run("budget", "show", "study.toml")
    run("fit", "study.toml", "--id", "second", "--again", "--out", "second.json", code=3)
    head = dpl.Release.load("release.json").ledger.head
    assert "The chain holds" in run("budget", "verify", "study.toml", "--head", head)
    run("budget", "verify", "study.toml", "--head", "0" * 64, code=4)
    run("budget", "export", "study.toml")
    pq.write_table(pq.read_table(data).slice(0, 350), data)
    run("budget", "register", "study.toml", "linked.parquet")
    pq.write_table(pq.read_table(data).slice(0, 300), data)
    run("fit", "study.toml", "--out", "third.json", code=4)
    ledger = Ledger("budget.db")
    said += [Path(name).read_text(encoding="utf-8") for name in ("release.json", "ledger.jsonl")]
    secret = Path("budget.db.key").read_text(encoding="ascii").strip()
    hidden = {event.request for event in ledger.events() if event.request} | {event.nonce for event in ledger.events()}
    assert len(hidden) > 8
    for text in said:
        assert not any(value in text for value in {*hidden, secret})


# --- many at once ------------------------------------------------------------------------------------


def test_racers_on_one_id_make_one_release(ledger: Ledger, url: str) -> None:
    computed, barrier = itertools.count(), threading.Barrier(64)

    def race(_: int) -> str:
        book = Ledger(url, "people")
        barrier.wait()
        charge = book.reserve("first", {"x": 1}, MU)
        if charge.stored is not None:
            return charge.stored
        time.sleep(0.2)
        text = f"release {next(computed)}"
        book.record(charge, text)
        return text

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(race, range(64)))
    assert results == ["release 0"] * 64
    assert next(computed) == 1
    assert ledger.verify().spent == cost(MU)
    assert kinds(ledger) == ["open", "charge", "release"]


@pytest.mark.slow
def test_racing_processes_fit_once(registered: Ledger, url: str, data: Path) -> None:
    """64 processes ask for the same fit: all get the one release."""
    code = """
import hashlib, os, sys
import numpy as np
import dplinked as dpl
model = dict(formula="consumption ~ income", bounds={"consumption": (0, 120_000), "income": (0, 150_000)}, epsilon=1.0, delta=1e-6)
rows = {name: np.arange(9.0) for name in ("consumption", "income")}
dpl.fit(rows, **model, linkage=dpl.Exact()).to_json()  # what is imported late is imported once
for _ in range(64):
    if os.fork() == 0:
        ledger = dict(ledger=sys.argv[1], population="people", release_id="first")
        release = dpl.fit(sys.argv[2], **model, linkage=dpl.ELE(0.91, block="state"), **ledger)
        os.write(1, (hashlib.sha256(release.to_json().encode()).hexdigest() + "\\n").encode())
        os._exit(0)
assert all(os.wait()[1] == 0 for _ in range(64))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, url, str(data)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 64
    assert len(set(done.stdout.split())) == 1
    assert registered.verify().spent == cost(privacy_mu(1.0, 1e-6))
    assert kinds(registered) == ["open", "register", "charge", "release"]


@pytest.mark.slow
def test_a_release_finished_meanwhile_is_not_taken_for_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking for the result and asking whether its maker lives, the maker must not record and end."""
    ledger, alive = Ledger.create(tmp_path / "budget.db", "people", **BUDGET), ledgers._alive
    monkeypatch.setattr(ledgers, "_POLL", 0.0)
    monkeypatch.setattr(ledgers, "_alive", lambda *known: time.sleep(0.003) or alive(*known))

    def race(k: int) -> str | None:
        charge = ledger.reserve(f"release {k}", {"k": k}, 0.001)
        if charge.stored is not None:
            return charge.stored
        with ledger.finishing(charge):
            time.sleep(0.01)
            ledger.record(charge, str(k))
        return str(k)

    with ThreadPoolExecutor(8) as pool:
        for k in range(25):
            assert set(pool.map(race, [k] * 8)) == {str(k)}


def test_racers_never_overspend(ledger: Ledger, url: str) -> None:
    """48 ask for a tenth of the budget each: ten at most get it."""
    mu, accepted = privacy_mu(3.0, 1e-6) * math.sqrt(0.0999), []

    def race(_: int) -> None:
        with contextlib.suppress(BudgetError):
            accepted.append(Ledger(url, "people").reserve(None, {}, mu, again=True).release)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(race, range(48)))
    assert len(set(accepted)) == 10
    assert ledger.verify().spent == 10 * cost(mu) <= ledger.balance().total


# --- damaged files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Any]:
    """A SQLite ledger with a few dozen events: its bytes and balance."""
    path = tmp_path_factory.mktemp("whole") / "budget.db"
    ledger = Ledger.create(path, "people", **BUDGET)
    Ledger.create(path, "firms", epsilon=1.0, delta=1e-6).reserve("a", {}, 0.01)
    for k in range(15):
        charge = ledger.reserve(f"release {k}", {"k": k}, 0.05)
        ledger.record(charge, "x" * 40 * k)
    return path.read_bytes(), ledger.verify()


def check_damaged(path: Path, content: bytes, right: Any) -> bool:
    """Whether damage was noticed; where not, the balance must be right. Errors other than ours are raised."""
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    path.write_bytes(content)
    noticed = False
    for look in (lambda book: book.balance(), lambda book: book.verify()):
        try:
            found = look(Ledger(path, "people"))
        except (LedgerError, StudyError):  # StudyError: the population's name was hit
            noticed = True
        else:
            assert found == right
    return noticed


def flip(content: bytes, bits: list[int]) -> bytes:
    damaged = bytearray(content)
    for bit in bits:
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.parametrize(
    "trials", [pytest.param(400, id="400"), pytest.param(2_000, id="2000", marks=pytest.mark.slow)]
)
def test_flipped_bits_never_change_the_balance(tmp_path: Path, whole: tuple[bytes, Any], trials: int) -> None:
    content, right = whole
    rng, noticed = random.Random(trials), 0
    for trial in range(trials):
        size = 100 * 8 if trial % 4 == 0 else len(content) * 8  # the file's header more often
        bits = [rng.randrange(size) for _ in range(rng.choice([1, 1, 1, 2, 8]))]
        noticed += check_damaged(tmp_path / "budget.db", flip(content, bits), right)
    assert noticed > trials / 4


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"SQLite format 3\0", b"{}"], ids=["0", "zeros", "head", "json"]
)
def test_other_files_are_no_ledger(tmp_path: Path, whole: tuple[bytes, Any], content: bytes) -> None:
    assert check_damaged(tmp_path / "budget.db", content, whole[1])


def test_truncated_files_are_noticed(tmp_path: Path, whole: tuple[bytes, Any]) -> None:
    content, right = whole
    rng = random.Random(1)
    for size in [*range(0, len(content), 1024), *(rng.randrange(len(content)) for _ in range(60)), len(content) - 1]:
        assert check_damaged(tmp_path / "budget.db", content[:size], right)
    assert not check_damaged(tmp_path / "budget.db", content, right)


def test_a_changed_head_is_noticed(tmp_path: Path, whole: tuple[bytes, Any]) -> None:
    path, head = tmp_path / "budget.db", whole[1].head.encode()
    for where in (whole[0].index(head), whole[0].rindex(head)):  # in the balance and in its event
        path.write_bytes(flip(whole[0], [8 * where]))
        with pytest.raises(LedgerError, match="was changed"):
            Ledger(path, "people").verify()


# --- what messages and files tell ------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["host=db password=hunter2", "steward:hunter2@db", "host=h password=a/hunter2"])
def test_no_message_shows_a_password(tmp_path: Path, address: str) -> None:
    attached = dpl.Query("select * from pg.t", {"pg": address}, tmp_path)
    for call in (
        lambda: Ledger(str(tmp_path / address)),
        lambda: dpl.fit(attached, **MODEL),
        lambda: Ledger.create(str(tmp_path / "none" / address), "p", **BUDGET),
    ):
        with pytest.raises((LedgerError, StudyError), match=r"\[an address\]") as fault:
            call()
        assert "hunter2" not in str(fault.value)


def test_one_message_whatever_a_key_file_holds(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "budget.db", "people", **BUDGET)
    told = set()
    for held in (None, b"10\n25\n", b"n/a\n", b"\xff", b"00" * 31):
        key = tmp_path / "ids.csv"
        key.unlink(missing_ok=True)
        if held is not None:
            key.write_bytes(held)
            key.chmod(0o600)
        with pytest.raises(LedgerError) as fault:
            Ledger(tmp_path / "budget.db", key=key).fingerprint(tmp_path / "budget.db")
        told.add(str(fault.value))
        assert fault.value.__context__ is None
    assert len(told) == 1


@pytest.mark.skipif(os.name != "posix", reason="files have modes on POSIX only")
def test_a_ledger_of_ones_own_is_closed_to_others(tmp_path: Path) -> None:
    database, data = tmp_path / "budget.db", tmp_path / "rows.csv"
    database.write_bytes(b"")
    database.chmod(0o644)
    data.write_text("a\n1\n", encoding="utf-8")
    opened = Ledger.create(database, "people", **BUDGET)
    assert database.stat().st_mode & 0o777 == 0o600
    database.chmod(0o664)
    opened.register(data)
    assert database.stat().st_mode & 0o777 == 0o600


def test_a_failure_that_cannot_be_recorded_is_a_failed_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(tmp_path / "budget.db", "people", **BUDGET)
    charge = ledger.reserve(None, {"a": 1}, MU)

    def full(_: Any) -> None:
        raise OSError("secret")

    monkeypatch.setattr(ledger, "record_failure", full)
    with pytest.raises(ReleaseError, match="the charge stays"), ledger.finishing(charge):
        raise ValueError("secret")


# --- in words ----------------------------------------------------------------------------------------


def test_an_account_tells_names_and_how_many_releases_are_left(tmp_path: Path) -> None:
    from dplinked.ledger.account import describe_balance, list_spending, releases_left, spending_table

    ledger = dpl.Ledger.create(tmp_path / "b.db", "people", epsilon=3.0, delta=1e-6)
    mu = privacy_mu(1.0, 1e-6)
    for formula in ("y ~ x", "y ~ x", "y ~ x\u202e"):
        charge = ledger.reserve(None, {"formula": formula, "data": []}, mu, again=True)
        ledger.record(charge, "{}")
    ledger.record_failure(ledger.reserve("mine", {"formula": "z ~ x", "data": []}, mu))
    ledger.book(epsilon=0.5, delta=1e-6, note="last year's table")
    found = list_spending(ledger.events())
    assert [one.name for one in found] == ["y ~ x", "y ~ x (2)", "release", "mine", "last year's table"]
    assert found[3].what == "failed; its charge stays"
    balance = ledger.balance()
    left = releases_left(balance, mu)
    assert f"Or it allows {left} more releases like this one." in " ".join(describe_balance(balance, mu))
    table = spending_table(balance, ledger.events())
    assert table is not None
    assert [float(row[3]) for row in table.rows] == pytest.approx([1.0] * 4 + [0.5], rel=1e-3)
    assert sum(float(row[4].split()[0]) for row in table.rows) == pytest.approx(
        100 * balance.spent / balance.total, abs=0.05
    )
    for k in range(left):
        ledger.reserve(f"further {k}", {"formula": f"y ~ {k}"}, mu)
    assert releases_left(ledger.balance(), mu) == 0
    with pytest.raises(dpl.BudgetError):
        ledger.reserve("too much", {"formula": "y ~ 1"}, mu)
    assert "It does not allow one like this one." in " ".join(describe_balance(ledger.balance(), mu))


def test_random_ids_of_earlier_versions_are_shown_with_their_formula() -> None:
    from dplinked.ledger.account import name_release

    id = "0123456789abcdef"
    assert name_release(id, {id: '{"formula": "y ~ x"}'}) == f"y ~ x ({id})"
    assert name_release(id, {}) == id
    assert name_release("slope", {}) == "slope"
