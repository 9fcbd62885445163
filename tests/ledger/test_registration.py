"""What a ledger registers with data, and what it refuses before anything of other data is opened."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.cli.main import main
from dplinked.errors import LedgerError, StudyError
from dplinked.ledger.costs import cost
from dplinked.ledger.ledger import Ledger
from dplinked.ledger.registration import REFUSED
from dplinked.linkage import LinkageFloor
from dplinked.privacy.calibration import privacy_mu
from dplinked.simulate import linked_households

ELE = dpl.ELE(0.91, block="state")
STUDY = """\
[data]
{data}
[model]
formula = "consumption ~ income"
[bounds]
income = [0, 150000]
consumption = [0, 120000]
[linkage]
{linkage}
[unit]
displaced_links = {k}
[privacy]
epsilon = 1.0
delta = 1e-6
[ledger]
url = "budget.db"
population = "people"
"""
LINKAGE = 'accuracy = 0.91\nblock = "state"'
WHOLE = "query = \"select * from 'linked.parquet'\""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Linked rows and a study of them by a query, both registered."""
    monkeypatch.chdir(tmp_path)
    table = pa.table(linked_households(400, 4)).drop_columns(["true_consumption"])
    pq.write_table(table, tmp_path / "linked.parquet")
    Ledger.create(tmp_path / "budget.db", "people", epsilon=3.0, delta=1e-6)
    write_study(WHOLE)
    registered = dpl.Study.from_toml("study.toml")
    Ledger(tmp_path / "budget.db").register(registered.data, linkage=registered.linkage, unit=registered.unit)
    return tmp_path


def write_study(data: str, linkage: str = LINKAGE, k: int = 0) -> None:
    Path("study.toml").write_text(STUDY.format(data=data, linkage=linkage, k=k), encoding="utf-8")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command line in this process: exit code, and all that it printed."""

    def run_main(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dplinked", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), "".join(capsys.readouterr())

    return run_main


# --- data that was not registered ---------------------------------------------------------------------

OTHERS = {
    "a cell is above a threshold": "query = \"select * from 'linked.parquet' where (select max(income) from 'linked.parquet') >= 1e9\"",
    "a cell is below a threshold": "query = \"select * from 'linked.parquet' where (select max(income) from 'linked.parquet') >= 0\"",
    "the same rows by other words": "query = \"select  * from 'linked.parquet'\"",
    "the same words with an attachment": WHOLE + '\nattach = { b = "b.db" }',
    "a query that fails": "query = \"select error('no') from 'linked.parquet'\"",
    "the file itself": 'path = "linked.parquet"',
    "a right guess elsewhere": 'path = "guess.parquet"',
    "a wrong guess elsewhere": 'path = "other.parquet"',
    "no file": 'path = "absent.parquet"',
    "no data file": 'path = "study.toml"',
    "files without the columns": 'path = "narrow.csv"',
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_data_is_refused_alike_and_not_opened(
    folder: Path, run: Callable[..., tuple[int, str]], data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message and one exit code, whatever the data holds, whether or not it is there: nothing of it is looked at."""
    shutil.copy("linked.parquet", "guess.parquet")
    pq.write_table(pq.read_table("linked.parquet").slice(1), "other.parquet")
    pyarrow.csv.write_csv(pa.table({"a": [1, 2, 3]}), "narrow.csv")
    monkeypatch.setattr("dplinked.fitting.resolve_source", lambda _: pytest.fail("the data was opened"))
    write_study(data)
    assert run("fit", "study.toml") == (4, f"\ndplinked: {REFUSED}\n")
    assert Ledger("budget.db").verify().spent == 0


def test_changed_data_at_a_registered_place_is_refused_alike(folder: Path, run: Callable[..., tuple[int, str]]) -> None:
    for change in (
        lambda: pq.write_table(pq.read_table("linked.parquet").slice(1), "linked.parquet"),
        lambda: pq.write_table(pa.table({"a": [1]}), "linked.parquet"),
        lambda: Path("linked.parquet").write_bytes(b"PAR1"),
        lambda: Path("linked.parquet").unlink(),
    ):
        change()
        assert run("fit", "study.toml") == (4, f"\ndplinked: {REFUSED}\n")
    assert Ledger("budget.db").verify().spent == 0


def test_the_same_query_from_another_folder_is_other_data(folder: Path) -> None:
    (folder / "copy").mkdir()
    shutil.copy("linked.parquet", folder / "copy")
    study = dpl.Study.from_toml("study.toml")
    with pytest.raises(LedgerError, match="not registered"):
        dpl.fit_study(study, dpl.Query("select * from 'linked.parquet'", folder=folder / "copy"))
    assert dpl.fit_study(study, dpl.Query("select * from 'linked.parquet'", folder=folder)).count == 400


def test_a_link_to_a_registered_file_is_that_file(folder: Path) -> None:
    ledger, study = Ledger("budget.db"), dpl.Study.from_toml("study.toml")
    ledger.register("linked.parquet", linkage=ELE)
    Path("name.parquet").symlink_to("linked.parquet")
    assert dpl.fit_study(study, "name.parquet").count == 400
    Path("name.parquet").unlink()
    shutil.copy("linked.parquet", "name.parquet")
    with pytest.raises(LedgerError, match="not registered"):
        dpl.fit_study(study, "name.parquet")


@pytest.mark.parametrize("written", ["{}", "try({})"])
@pytest.mark.parametrize("call", ["current_query()", "random()"])
def test_a_query_cannot_tell_one_statement_from_another(tmp_path: Path, call: str, written: str) -> None:
    """It runs once, into a table that the fingerprint and the sums both read; what differs from run to run is refused on top of that."""
    ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    with pytest.raises(StudyError, match=r"can fail for a single person's cell|DuckDB finds a fault"):
        ledger.register(dpl.Query(f"select {written.format(call)} as y from range(5)"))


def test_rows_that_change_after_the_query_ran_are_not_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, table = Ledger.reserve, pq.read_table("linked.parquet")

    def exchange(*arguments: Any, **named: Any) -> Any:
        pq.write_table(table.slice(0, 100), "linked.parquet")
        return reserve(*arguments, **named)

    monkeypatch.setattr(Ledger, "reserve", exchange)
    assert dpl.fit_study(dpl.Study.from_toml("study.toml"), dpl.Study.from_toml("study.toml").data).count == 400


def test_relations_are_frozen_too(tmp_path: Path) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.execute("create table t as select i / 10.0 as income, i / 20.0 as consumption from range(50) r(i)")
    ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    ledger.register(connection.table("t"), linkage=dpl.Exact())
    bounds = {"income": (0, 5), "consumption": (0, 5)}
    options: dict[str, Any] = {"bounds": bounds, "linkage": dpl.Exact(), "epsilon": 0.5, "delta": 1e-6, "ledger": tmp_path / "budget.db"}  # fmt: skip
    assert dpl.fit(connection.table("t"), "consumption ~ income", **options).count == 50
    connection.execute("insert into t values (1, 1)")
    with pytest.raises(LedgerError, match="not registered"):
        dpl.fit(connection.table("t"), "consumption ~ income", **options)


def test_a_file_read_as_another_kind_is_other_data(tmp_path: Path) -> None:
    """A link with another ending leads to the registered bytes, but would read a person's record as the columns' names."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"income": 30, "consumption": 1}\n{"income": 31, "consumption": 2}\n', encoding="utf-8")
    ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    ledger.register(rows, linkage=dpl.Exact())
    (tmp_path / "x.csv").symlink_to(rows)
    bounds = {"income": (0, 50), "consumption": (0, 5)}
    options: dict[str, Any] = {"bounds": bounds, "linkage": dpl.Exact(), "epsilon": 0.5, "delta": 1e-6, "ledger": tmp_path / "budget.db"}  # fmt: skip
    with pytest.raises(LedgerError, match="not registered"):
        dpl.fit(tmp_path / "x.csv", "consumption ~ income", **options)
    (tmp_path / "x.jsonl").symlink_to(rows)
    assert dpl.fit(tmp_path / "x.jsonl", "consumption ~ income", **options).count == 2


def test_a_link_that_is_named_like_a_glob_is_none(tmp_path: Path) -> None:
    """It resolves to the registered pattern, while the pattern would find other files beside it."""
    for name in ("steward", "analyst"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text("income,consumption\n30,1\n31,2\n", encoding="utf-8")
    ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    ledger.register(tmp_path / "steward" / "*.csv", linkage=dpl.Exact())
    (tmp_path / "analyst" / "*.csv").symlink_to(tmp_path / "steward" / "*.csv")
    with pytest.raises(LedgerError, match="not registered"):
        ledger.check_place(tmp_path / "analyst" / "*.csv", dpl.PrivacyUnit(), dpl.Exact())
    assert ledger.check_place(tmp_path / "steward" / "*.csv", dpl.PrivacyUnit(), dpl.Exact())


def test_what_was_registered_last_counts(folder: Path) -> None:
    ledger, study = Ledger("budget.db"), dpl.Study.from_toml("study.toml")
    for unit in (dpl.PrivacyUnit(displaced_links=3), dpl.PrivacyUnit(), dpl.PrivacyUnit(displaced_links=3)):
        ledger.register(study.data, linkage=study.linkage, unit=unit)
    with pytest.raises(StudyError, match="displaced_links must be at least 3"):
        dpl.fit_study(study, study.data)
    ledger.register(study.data, linkage=study.linkage, unit=dpl.PrivacyUnit())
    assert dpl.fit_study(study, study.data).count == 400


# --- what is stated about links -----------------------------------------------------------------------

UNIT = dpl.PrivacyUnit
matrix = functools.partial(dpl.Matching, sp.eye_array(3), carriers=2)
UNDERCUT: dict[str, tuple[Any, Any, Any, Any, str | None]] = {
    "the same": (ELE, UNIT(), ELE, UNIT(), None),
    "exact for imperfect links": (ELE, UNIT(), dpl.Exact(), UNIT(), "not exact"),
    "imperfect for exact links": (dpl.Exact(), UNIT(), dpl.ELE(0.9), UNIT(), None),
    "another block column": (ELE, UNIT(), dpl.ELE(0.9, block="income"), UNIT(), "hold blocks"),
    "no blocks": (ELE, UNIT(), dpl.ELE(0.9), UNIT(), None),
    "another accuracy": (ELE, UNIT(), dpl.ELE(0.5, block="state"), UNIT(), None),
    "fewer displaced links": (ELE, UNIT(displaced_links=2), ELE, UNIT(displaced_links=1), "at least 2"),
    "more displaced links": (ELE, UNIT(displaced_links=2), ELE, UNIT(displaced_links=3), None),
    "less change of the matrix": (ELE, UNIT(linkage_change=2.5), ELE, UNIT(linkage_change=2.0), "at least 2.5"),
    "blocks that may not change": (ELE, UNIT(moves_block=True), ELE, UNIT(), "moves_block"),
    "links that were not stated": (None, UNIT(), ELE, UNIT(), "without its links"),
    "a smaller least probability": (matrix(accuracy_min=0.5), UNIT(), matrix(accuracy_min=0.4), UNIT(), None),
    "a larger least probability": (matrix(accuracy_min=0.5), UNIT(), matrix(accuracy_min=0.6), UNIT(), "at most 0.5"),
    "a smaller column sum": (matrix(column_sum=1.5), UNIT(), matrix(), UNIT(), "at least 1.5"),
    "blocks in place of a matrix": (matrix(column_sum=1.5), UNIT(), dpl.ELE(0.9, carriers=2), UNIT(), None),
    "accuracies of unlinked files": (None, UNIT(), None, UNIT(), None),
    "accuracies for a smaller unit": (None, UNIT(displaced_links=1), None, UNIT(), "at least 1"),
}


@pytest.mark.parametrize("case", UNDERCUT)
def test_a_study_may_not_assume_less_than_was_registered(case: str) -> None:
    registered, unit, stated, stated_unit, fault = UNDERCUT[case]
    found = LinkageFloor.of(registered, unit).undercut_by(LinkageFloor.of(stated, stated_unit))
    assert (found is None) == (fault is None)
    assert fault is None or fault in (found or "")


def test_fewer_carriers_than_registered_are_refused() -> None:
    many, one = (dpl.Matching(sp.eye_array(3), column_sum=float(c), carriers=c) for c in (3, 1))
    unit = UNIT(displaced_links=0, linkage_change=0.0)
    assert LinkageFloor.of(many, unit).undercut_by(LinkageFloor.of(one, unit)) == "carriers must be at least 3"


def test_exact_links_and_smaller_units_cost_nothing(folder: Path, run: Callable[..., tuple[int, str]]) -> None:
    for linkage, k in (("model = 'exact'", 0), ('accuracy = 0.91\nblock = "region"', 0)):
        write_study(WHOLE, linkage, k)
        code, said = run("fit", "study.toml")
        assert code == 2
        assert "assumes less about the links" in said
    assert Ledger("budget.db").verify().spent == 0
    write_study(WHOLE, k=2)
    assert run("fit", "study.toml")[0] == 0


def test_registering_again_states_the_links_anew(folder: Path, run: Callable[..., tuple[int, str]]) -> None:
    write_study(WHOLE, "model = 'exact'")
    assert run("fit", "study.toml")[0] == 2
    assert run("budget", "register", "study.toml") == (
        0,
        "Registered 1 file(s) for 'people': they draw on the same budget.\n",
    )
    assert run("fit", "study.toml")[0] == 0


# --- files that only their owner reads ----------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_ledger_and_key_are_their_owners(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
        with ledger._transaction() as connection:
            ledger._locked(connection)
            beside = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"budget.db", "budget.db.key"} <= set(beside)
    assert set(beside.values()) == {0o600}


def test_the_key_is_not_in_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    ledger.register({"x": [1.0]})
    key = (tmp_path / "budget.db.key").read_text(encoding="ascii").strip()
    assert len(key) == 64
    assert all(key.encode() not in path.read_bytes() for path in tmp_path.glob("budget.db*") if path.suffix != ".key")


def test_a_key_that_is_lost_shared_or_wrong(tmp_path: Path) -> None:
    ledger, key = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6), tmp_path / "budget.db.key"
    ledger.register({"x": [1.0]})
    before, content = ledger.fingerprint({"x": [1.0]}), key.read_text(encoding="ascii")
    key.write_text("ab" * 32, encoding="ascii")
    assert ledger.fingerprint({"x": [1.0]}) != before
    key.write_text("secret", encoding="ascii")
    with pytest.raises(LedgerError, match="cannot be read"):
        ledger.fingerprint({"x": [1.0]})
    key.write_text(content, encoding="ascii")
    assert ledger.fingerprint({"x": [1.0]}) == before
    key.chmod(0o640)
    with pytest.raises(LedgerError, match="read by others"):
        ledger.fingerprint({"x": [1.0]})
    key.unlink()
    with pytest.raises(LedgerError, match="missing"):
        ledger.fingerprint({"x": [1.0]})
    assert ledger.verify().spent == 0  # the balance needs no key


def test_a_key_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "safe").mkdir()
    study = STUDY.format(data='path = "rows.csv"', linkage=LINKAGE, k=0) + 'key = "safe/people.key"\n'
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    declared = dpl.Study.from_toml(tmp_path / "study.toml")
    assert declared.ledger_key == tmp_path / "safe" / "people.key"
    Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6, key=declared.ledger_key)
    assert not (tmp_path / "budget.db.key").exists()
    assert (tmp_path / "safe" / "people.key").exists()


def test_postgres_needs_a_named_key(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.delenv("DPLINKED_LEDGER_KEY", raising=False)
    with pytest.raises(StudyError, match="Name it: key ="):
        Ledger.create("postgresql://nobody@localhost:1/base", "people", epsilon=1.0, delta=1e-6)


# --- paid releases are not lost, and not paid twice ---------------------------------------------------


def test_a_seen_request_is_answered_free_and_says_so(folder: Path, run: Callable[..., tuple[int, str]]) -> None:
    assert run("fit", "study.toml", "--out", "a.json")[0] == 0
    code, said = run("fit", "study.toml", "--out", "b.json")
    assert code == 0
    assert "The ledger has seen this request" in said
    assert "nothing was charged" in said
    code, said = run("fit", "study.toml", "--out", "c.json", "--id", "another name")
    assert code == 0
    assert "The ledger has seen this request" in said
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes() == Path("c.json").read_bytes()
    once = Ledger("budget.db").verify().spent
    assert once == cost(privacy_mu(1.0, 1e-6))
    code, said = run("fit", "study.toml", "--out", "d.json", "--again")
    assert code == 0
    assert "has seen" not in said
    assert Path("d.json").read_bytes() != Path("a.json").read_bytes()
    assert Ledger("budget.db").verify().spent == 2 * once


def test_a_release_is_not_overwritten(folder: Path, run: Callable[..., tuple[int, str]]) -> None:
    assert run("fit", "study.toml")[0] == 0
    first, spent = Path("release.json").read_bytes(), Ledger("budget.db").verify().spent
    code, said = run("fit", "study.toml", "--again")
    assert code == 2
    assert "--force" in said
    assert (Path("release.json").read_bytes(), Ledger("budget.db").verify().spent) == (first, spent)
    assert run("fit", "study.toml", "--again", "--force")[0] == 0
    assert Path("release.json").read_bytes() != first


def test_an_unfinished_release_is_not_paid_again_unasked(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    with pytest.raises(dpl.ReleaseError), ledger.finishing(ledger.reserve(None, {"x": 1}, 0.01)):
        raise RuntimeError
    with pytest.raises(LedgerError, match=r"never finished.*--again"):
        ledger.reserve(None, {"x": 1}, 0.01)
    assert ledger.verify().spent == cost(0.01)
    assert ledger.reserve(None, {"x": 1}, 0.01, again=True).stored is None
    ledger.record(ledger.reserve("named", {"x": 2}, 0.01), "")
    with pytest.raises(StudyError, match="was made before"):
        ledger.reserve("named", {"x": 2}, 0.01, again=True)


def test_asking_by_id_is_quiet(folder: Path) -> None:
    study = dpl.Study.from_toml("study.toml")
    first = dpl.fit_study(study, study.data, release_id="first")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dpl.fit_study(study, study.data, release_id="first") == first
    with pytest.warns(UserWarning, match="'first'"):
        assert dpl.fit_study(study, study.data) == first
