"""An explicit matching matrix from a study file: every command takes it, and nothing but the rows' sums depends on where it was named."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.ledger.ledger import Ledger
from dplinked.ledger.registration import PAIRS_REFUSED
from replay import record

Run = Callable[..., subprocess.CompletedProcess[str]]

N = 300
STUDY = """\
[data]
{data}
[model]
formula = "y ~ x + w"
[bounds]
x = [0, 1]
w = [0, 1]
y = [0, 2]
[linkage]
model = "matching"
{linkage}
[unit]
displaced_links = 2
linkage_change = 1.5
[privacy]
epsilon = 1.0
delta = 1e-6
"""
LEDGER = """\
[ledger]
url = "budget.db"
population = "people"
"""
PATH, QUERY = 'path = "linked.parquet"', "query = \"select * from 'linked.parquet'\""
POSITIONS, IDS = 'pairs = "places.csv"', 'pairs = "pairs.parquet"\nid = "person"'
UNIT = dpl.PrivacyUnit(displaced_links=2, linkage_change=1.5)
DECLARED = {"bounds": {"x": (0, 1), "w": (0, 1), "y": (0, 2)}, "unit": UNIT, "epsilon": 1.0, "delta": 1e-6}
SECRET = "123987"  # a cell of the pairs, and no other text


def matrix() -> sp.csr_array:
    """Every row carries its own response with probability .9, else that of one of two others."""
    places = np.arange(N)
    entries = [(0.9, places), (0.07, np.roll(places, 1)), (0.03, np.roll(places, 9))]
    return sum(sp.csr_array((np.full(N, share), (places, matches)), shape=(N, N)) for share, matches in entries)


def write_pairs(path: Path, rows: np.ndarray, matches: np.ndarray, shares: np.ndarray) -> None:
    table = pa.table({"row": rows, "match": matches, "probability": shares})
    pyarrow.csv.write_csv(table, path) if path.suffix == ".csv" else pq.write_table(table, path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows in an order of their own, and their pairs by positions and by ids."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    x, w, e = rng.uniform(0, 1, (3, N))
    ids, Q = 1000 + rng.permutation(N), matrix().tocoo()
    pq.write_table(pa.table({"person": ids, "x": x, "w": w, "y": x + e}), "linked.parquet")
    write_pairs(Path("places.csv"), *Q.coords, Q.data)
    for name in ("pairs.parquet", "pairs.csv"):
        write_pairs(Path(name), ids[Q.coords[0]], ids[Q.coords[1]], Q.data)
    write_study()
    return tmp_path


def write_study(data: str = PATH, linkage: str = IDS, more: str = "") -> None:
    Path("study.toml").write_text(STUDY.format(data=data, linkage=linkage) + more, encoding="utf-8")


# --- the same fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "linkage", "rounding"),
    [
        (PATH, POSITIONS, 0.0),
        (PATH, IDS, 1e-12),
        (PATH, 'pairs = "pairs.csv"\nid = "person"', 1e-12),
        (QUERY, IDS, 1e-9),
        (QUERY, 'pairs = "pairs.csv"\nid = "person"', 1e-9),
    ],
    ids=["positions", "ids", "ids in text", "DuckDB", "DuckDB, ids in text"],
)
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_a_study_file_sums_what_python_sums(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, data: str, linkage: str, rounding: float, calibration: str
) -> None:
    table = pq.read_table("linked.parquet")
    _, expected = record(
        monkeypatch,
        lambda: dpl.fit(table, "y ~ x + w", linkage=dpl.Matching(matrix()), calibration=calibration, **DECLARED),
        seed=1,
    )
    write_study(data, linkage)
    text = Path("study.toml").read_text(encoding="utf-8")
    Path("study.toml").write_text(
        text.replace("[bounds]", f'calibration = "{calibration}"\n[bounds]'), encoding="utf-8"
    )
    done, found = record(monkeypatch, lambda: run("fit", "study.toml"), seed=1)
    assert done.returncode == 0, done.stderr
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.scale, other.scale)
        np.testing.assert_allclose(one.values, other.values, rtol=rounding, atol=rounding * N)


def swap(table: pa.Table) -> pa.Table:
    return table.rename_columns(["match", "row", "probability"])


def even_out(table: pa.Table) -> pa.Table:
    shares = np.where(np.asarray(table["probability"]) > 0.5, 0.9, 0.05)
    return table.set_column(2, "probability", pa.array(shares))


@pytest.mark.parametrize("change", [swap, even_out])
def test_another_matrix_has_other_sums(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.Table], pa.Table]
) -> None:
    """What the test above compares does depend on the file."""
    _, before = record(monkeypatch, lambda: run("fit", "study.toml"), seed=1)
    pq.write_table(change(pq.read_table("pairs.parquet")), "pairs.parquet")
    done, after = record(monkeypatch, lambda: run("fit", "study.toml", "--force"), seed=1)
    assert done.returncode == 0
    assert not np.allclose(before[0].values, after[0].values, rtol=1e-6)


def test_the_declarations_reach_the_release(folder: Path, run: Run) -> None:
    write_study(linkage=f"{IDS}\ncolumn_sum = 1.5\naccuracy_min = 0.8\ncarriers = 3")
    assert run("fit", "study.toml").returncode == 0
    linkage = dpl.Release.load("release.json").linkage
    assert (linkage.model, linkage.column_sum, linkage.accuracy_min, linkage.carriers) == ("Matching", 1.5, 0.8, 3)
    assert run("report", "release.json", "--out", "report.html").returncode == 0
    assert "given by a matching matrix" in Path("report.html").read_text(encoding="utf-8")


def test_plans_and_studies_open_no_pairs(folder: Path, run: Run) -> None:
    for name in ("pairs.parquet", "linked.parquet"):
        Path(name).unlink()
    assert run("plan", "study.toml", "--rows", N).returncode == 0
    assert dpl.Study.from_toml("study.toml").linkage.pairs == Path("pairs.parquet")


def test_relative_paths_count_from_the_study(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert run("fit", folder / "study.toml").returncode == 0


def test_check_reads_the_pairs(folder: Path, run: Run) -> None:
    done = run("check", "study.toml")
    assert (done.returncode, "The matching matrix is one of these rows" in done.stdout) == (0, True)
    write_study(linkage=f"{IDS}\naccuracy_min = 0.95")
    done = run("check", "study.toml")
    assert (done.returncode, "- A diagonal entry" in done.stdout) == (11, True)


# --- what is refused ----------------------------------------------------------------------------------

FAULTS = {
    "no pairs": ("", "needs pairs = "),
    "pairs that are no path": ("pairs = 3", "needs pairs = "),
    "no file": ('pairs = "absent.parquet"\nid = "person"', "There is no file 'absent.parquet'"),
    "no file, by positions": ('pairs = "absent.parquet"', "There is no file 'absent.parquet'"),
    "another kind of file": ('pairs = "study.toml"', "only .parquet, .csv, .tsv"),
    "other columns": ('pairs = "columns.csv"\nid = "person"', "missing: ['row', 'match', 'probability']"),
    "unknown ids": ('pairs = "unknown.csv"\nid = "person"', "The pairs name an id that is not in 'person'."),
    "no id column": ('pairs = "pairs.csv"\nid = "persn"', "Did you mean 'person'?"),
    "ids for positions": ('pairs = "pairs.csv"', "Each row of the matching matrix must sum to 1."),
    "texts for positions": ('pairs = "texts.csv"', "positions must be whole numbers"),
    "texts for probabilities": ('pairs = "words.csv"\nid = "person"', "Matching probabilities must be finite and not negative."),
    "an open quote": ('pairs = "quote.csv"\nid = "person"', "'quote.csv' cannot be read as csv"),
    "half a file": ('pairs = "half.parquet"\nid = "person"', "'half.parquet' cannot be read as parquet"),
    "too small a diagonal": (f"{IDS}\naccuracy_min = 0.95", "below accuracy_min=0.95"),
    "one to many": (f"{IDS}\ncolumn_sum = 2.0", "need carriers="),
    "an accuracy": (f"{IDS}\naccuracy = 0.9", "takes pairs, id, column_sum, accuracy_min, carriers, not accuracy"),
}  # fmt: skip


@pytest.fixture
def broken(folder: Path) -> Path:
    Path("columns.csv").write_text(f"a,b\n{SECRET},{SECRET}\n", encoding="utf-8")
    Path("unknown.csv").write_text(f"row,match,probability\n{SECRET},{SECRET},1\n", encoding="utf-8")
    Path("texts.csv").write_text(f"row,match,probability\nx{SECRET},y{SECRET},z{SECRET}\n", encoding="utf-8")
    words = Path("pairs.csv").read_text(encoding="utf-8").replace(",0.9\n", f",z{SECRET}\n")
    Path("words.csv").write_text(words, encoding="utf-8")
    Path("quote.csv").write_text(f'row,match,probability\n"{SECRET},1,1\n', encoding="utf-8")
    Path("half.parquet").write_bytes(Path("pairs.parquet").read_bytes()[:500])
    return folder


@pytest.mark.parametrize("data", [PATH, QUERY], ids=["files", "DuckDB"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_pairs_exit_2_and_show_no_cell(broken: Path, run: Run, fault: str, data: str) -> None:
    linkage, said = FAULTS[fault]
    if data == QUERY and "pairs" in linkage and "id =" not in linkage and "needs" not in said:
        said = "Rows of a database have no positions: name the id column, Matching(…, id=…), or id = … in [linkage]."
    write_study(data, linkage)
    done = run("fit", "study.toml")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("release.json").exists()


@pytest.mark.parametrize("unit", ["", "displaced_links = 2", "linkage_change = 1.5"])
def test_the_unit_must_be_stated(folder: Path, run: Run, unit: str) -> None:
    text = Path("study.toml").read_text(encoding="utf-8")
    Path("study.toml").write_text(text.replace("displaced_links = 2\nlinkage_change = 1.5", unit), encoding="utf-8")
    for command in (("fit", "study.toml"), ("plan", "study.toml", "--rows", N), ("check", "study.toml")):
        done = run(*command)
        assert done.returncode == 2
        assert "linkage_change = … and displaced_links = … in [unit]" in done.stderr


@pytest.mark.parametrize("setting", ['pairs = "pairs.csv"', 'id = "person"', "column_sum = 1.0"])
def test_other_models_take_no_pairs(folder: Path, run: Run, setting: str) -> None:
    text = Path("study.toml").read_text(encoding="utf-8").replace(IDS, f"accuracy = 0.9\n{setting}")
    for model, taken in (("ele", "takes accuracy, block"), ("exact", "takes no other settings")):
        Path("study.toml").write_text(text.replace('"matching"', f'"{model}"'), encoding="utf-8")
        done = run("plan", "study.toml", "--rows", N)
        assert (done.returncode, taken in done.stderr) == (2, True)


# --- the ledger ---------------------------------------------------------------------------------------


@pytest.fixture
def registered(folder: Path, run: Run) -> Path:
    write_study(more=LEDGER)
    assert run("budget", "init", "study.toml", "--epsilon", 3, "--delta", 1e-6).returncode == 0
    return folder


def test_the_ledger_knows_the_pairs_again(registered: Path, run: Run) -> None:
    first = run("fit", "study.toml", "--out", "first.json")
    assert first.returncode == 0, first.stderr
    spent = Ledger("budget.db").verify().spent
    assert spent > 0
    again = run("fit", "study.toml", "--out", "again.json")
    assert (again.returncode, "The ledger has seen this request" in again.stderr) == (0, True)
    assert Path("first.json").read_bytes() == Path("again.json").read_bytes()
    assert Ledger("budget.db").verify().spent == spent
    assert run("budget", "show", "study.toml").returncode == 0


OTHERS = {
    "other probabilities": lambda: pq.write_table(pq.read_table("pairs.parquet").slice(1), "pairs.parquet"),
    "the same pairs, written anew": lambda: pq.write_table(
        pq.read_table("pairs.parquet"), "pairs.parquet", compression="none"
    ),
    "no pairs any more": lambda: Path("pairs.parquet").unlink(),
    "something else": lambda: Path("pairs.parquet").write_bytes(b"PAR1"),
    "a right guess elsewhere": lambda: Path("guess.parquet").write_bytes(Path("pairs.parquet").read_bytes()),
    "a file of another kind": lambda: write_study(linkage='pairs = "linked.parquet"\nid = "person"', more=LEDGER),
}


@pytest.mark.parametrize("other", OTHERS)
def test_exchanged_pairs_are_refused_alike_and_cost_nothing(
    registered: Path, run: Run, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    OTHERS[other]()
    if Path("guess.parquet").exists():
        write_study(linkage=IDS.replace("pairs.parquet", "guess.parquet"), more=LEDGER)
    monkeypatch.setattr(dpl.Matching, "matrix_for", lambda *_: pytest.fail("the pairs were used"))
    done = run("fit", "study.toml", "--unchecked")
    assert (done.returncode, done.stderr.strip()) == (4, f"dplinked: {PAIRS_REFUSED}")
    assert Ledger("budget.db").verify().spent == 0


def test_pairs_registered_anew_are_the_ones_that_count(registered: Path, run: Run) -> None:
    old = Path("pairs.parquet").read_bytes()
    table = pq.read_table("pairs.parquet")
    pq.write_table(table.take(np.arange(table.num_rows)[::-1]), "pairs.parquet")
    assert run("fit", "study.toml").returncode == 4
    assert run("budget", "register", "study.toml").returncode == 0
    assert run("fit", "study.toml").returncode == 0
    Path("pairs.parquet").write_bytes(old)
    assert run("fit", "study.toml", "--force").returncode == 4


def test_a_matrix_that_was_not_registered_is_refused_from_python_too(folder: Path) -> None:
    table, Q = pq.read_table("linked.parquet"), matrix()
    ledger = Ledger.create("budget.db", "people", epsilon=3.0, delta=1e-6)
    settings = {**DECLARED, "ledger": "budget.db"}
    for registered in (dpl.ELE(0.9), dpl.Matching(Q.T.tocsr())):
        ledger.register(table, linkage=registered, unit=UNIT)
        with pytest.raises(dpl.LedgerError, match="pairs of the matching matrix are not registered"):
            dpl.fit(table, "y ~ x + w", linkage=dpl.Matching(Q), **settings)
    assert ledger.verify().spent == 0
    ledger.register(table, linkage=dpl.Matching(Q), unit=UNIT)
    assert dpl.fit(table, "y ~ x + w", linkage=dpl.Matching(Q), **settings).count == N
    assert dpl.fit(table, "y ~ x + w", linkage=dpl.ELE(0.9, carriers=1), **settings).count == N


def test_a_unit_below_the_registered_one_is_refused(registered: Path, run: Run) -> None:
    text = Path("study.toml").read_text(encoding="utf-8")
    Path("study.toml").write_text(text.replace("linkage_change = 1.5", "linkage_change = 1.0"), encoding="utf-8")
    done = run("fit", "study.toml")
    assert (done.returncode, "linkage_change must be at least 1.5" in done.stderr) == (2, True)


@pytest.mark.parametrize("least", [0.55, 0.85, 0.89, 0.91, 0.99])
def test_studies_cannot_search_for_what_a_matrix_holds(
    registered: Path, run: Run, monkeypatch: pytest.MonkeyPatch, least: float
) -> None:
    """Whether its diagonal, .9 here, reaches a limit is told of the registered limit alone: others are refused before the pairs are read."""
    write_study(linkage=f"{IDS}\naccuracy_min = 0.5", more=LEDGER)
    assert run("budget", "register", "study.toml").returncode == 0
    monkeypatch.setattr(dpl.Matching, "content", lambda _: pytest.fail("the pairs were read"))
    write_study(linkage=f"{IDS}\naccuracy_min = {least}", more=LEDGER)
    done = run("fit", "study.toml")
    assert (done.returncode, "accuracy_min must be at most 0.5" in done.stderr) == (2, True)


@pytest.mark.parametrize("moment", ["check_content", "reserve"])
def test_pairs_that_change_while_they_are_read_stop_the_release(
    registered: Path, run: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    original = getattr(Ledger, moment)

    def exchange(*arguments: object, **named: object) -> object:
        content = Path("pairs.parquet").read_bytes()
        Path("pairs.parquet").unlink()
        Path("kept").touch()  # takes the freed place
        Path("pairs.parquet").write_bytes(content)
        return original(*arguments, **named)

    monkeypatch.setattr(Ledger, moment, exchange)
    done = run("fit", "study.toml")
    assert done.returncode == (4 if moment == "check_content" else 5)
    assert (Ledger("budget.db").verify().spent == 0) == (moment == "check_content")


def test_no_budget_is_opened_for_pairs_that_are_not_there(folder: Path, run: Run) -> None:
    write_study(linkage=IDS.replace("pairs.parquet", "absent.parquet"), more=LEDGER)
    done = run("budget", "init", "study.toml", "--epsilon", 3, "--delta", 1e-6)
    assert (done.returncode, "no file 'absent.parquet'" in done.stderr) == (2, True)
    assert not Path("budget.db").exists()


def test_the_pairs_are_never_overwritten(registered: Path, run: Run) -> None:
    before = Path("pairs.parquet").read_bytes()
    done = run("budget", "export", "study.toml", "--out", "pairs.parquet")
    assert (done.returncode, "is read and would be overwritten" in done.stderr) == (2, True)
    assert Path("pairs.parquet").read_bytes() == before


def test_the_ledger_shows_nothing_of_the_pairs(registered: Path, run: Run) -> None:
    """Their fingerprints are keyed: the digest that anybody can compute from a guess is not in the ledger."""
    digest = dpl.Study.from_toml("study.toml").linkage.identity()["matrix"]
    assert run("fit", "study.toml").returncode == 0
    assert run("budget", "export", "study.toml").returncode == 0
    for name in ("budget.db", "ledger.jsonl", "release.json"):
        assert digest.encode() not in Path(name).read_bytes()
