"""The command line: the main job, and exit codes of what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.cli.terminal import reserved
from dplinked.linkage.secret_sample import SecretSample
from dplinked.simulate import linked_households, review_links, two_files
from studies import STUDY, edit

Run = Callable[..., subprocess.CompletedProcess[str]]


def start(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command line as users start it: a process."""
    return subprocess.run(
        [sys.executable, "-m", "dplinked.cli", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "100"}, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = pa.table(linked_households(2_000, 1)).drop_columns(["true_consumption"])
    pq.write_table(table, tmp_path / "linked.parquet")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    return tmp_path


def test_the_demo_goes_through_where_nothing_links_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dplinked.cli import demo as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    module.demo(tmp_path, rows=2_000, seed=1)
    assert dpl.Release.load(tmp_path / "release.json").linkage.accuracy == 0.91
    assert not (tmp_path / "incomes.csv").exists()


def test_a_text_for_the_board_is_filled_in_from_a_release(folder: Path, run: Run) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / "release.json").returncode == 0
    shown = run("report", folder / "release.json", "--board")
    assert shown.returncode == 0
    release = dpl.Release.load(folder / "release.json")
    for said in (
        release.privacy.statement,
        release.formula,
        "2,000 records",
        "NIST SP 800-226",
        "Safe outputs",
        "[purpose,",
    ):
        assert said in shown.stdout
    assert run("report", folder / "release.json", "--board", "--out", folder / "board.html").returncode == 0
    page = (folder / "board.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "five safes" in page
    assert run("report", folder / "release.json", "--board", "--out", folder / "board.csv").returncode == 2


def test_demo_does_the_main_job(tmp_path: Path) -> None:
    done = start("demo", "--rows", 2000, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "differentially private" in done.stdout
    release = dpl.Release.load(tmp_path / "demo" / "release.json")
    assert release.count == 2000
    assert (tmp_path / "demo" / "report.md").read_text(encoding="utf-8").startswith("# Private linear regression")


def test_fit_then_report(folder: Path, run: Run) -> None:
    done = start("fit", folder / "study.toml", "--out", folder / "release.json")
    assert done.returncode == 0, done.stderr
    shown = run("report", folder / "release.json")
    assert shown.stdout.strip() in done.stdout
    assert run("report", folder / "release.json", "-o", folder / "report.md").stdout.startswith("Written to ")
    assert "| income |" in (folder / "report.md").read_text(encoding="utf-8")
    assert run("report", folder / "release.json", "--markdown").stdout.startswith("# Private")
    for suffix, begins in ((".html", "<!DOCTYPE html>"), (".tex", "% "), (".csv", "name,coef,std_err")):
        assert run("report", folder / "release.json", "-o", folder / f"report{suffix}").returncode == 0
        assert (folder / f"report{suffix}").read_text(encoding="utf-8").startswith(begins)


@pytest.mark.parametrize("name", ["report.pdf", "report.xlsx", "report.docx", "report.json", "report.HTML.png"])
def test_no_format_is_written_under_anothers_name(folder: Path, run: Run, name: str) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / "release.json").returncode == 0
    for command in (["report", folder / "release.json"], ["plan", folder / "study.toml", "--rows", 2000]):
        done = run(*command, "--out", folder / name)
        assert (done.returncode, (folder / name).exists()) == (2, False)
        assert f"{name!r} ends in" in done.stderr
        assert "Choose a name that ends in .html, .htm" in done.stderr
    done = run("report", folder / "release.json", "--out", folder / name)
    assert ".html, .htm, .md, .tex, .csv, .txt." in done.stderr


def test_markdown_is_not_written_as_a_page(folder: Path, run: Run) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / "release.json").returncode == 0
    done = run("report", folder / "release.json", "--markdown", "--out", folder / "report.html")
    assert (done.returncode, (folder / "report.html").exists()) == (2, False)
    for name, begins in (("report.txt", "# Private"), ("REPORT.MD", "# Private")):
        assert run("report", folder / "release.json", "--markdown", "--out", folder / name).returncode == 0
        assert (folder / name).read_text(encoding="utf-8").startswith(begins)
    assert run("report", folder / "release.json", "--out", folder / "report").returncode == 0
    assert (folder / "report").read_text(encoding="utf-8") == run("report", folder / "release.json").stdout


def test_csv_works_too(folder: Path, run: Run) -> None:
    import pyarrow.csv

    pyarrow.csv.write_csv(pq.read_table(folder / "linked.parquet"), folder / "linked.csv")
    assert run("fit", edit(folder, "linked.parquet", "linked.csv"), "--out", folder / "r.json").returncode == 0


def test_plan_opens_no_data(folder: Path, run: Run) -> None:
    (folder / "linked.parquet").unlink()
    done = run("plan", folder / "study.toml", "--rows", 2000, "--epsilon", 0.5, "--epsilon", 2)
    assert done.returncode == 0, done.stderr
    assert "no data touched" in done.stdout
    assert "0.5" in done.stdout
    divided = run("plan", folder / "study.toml", "--rows", 2000, "--links", 100)
    assert divided.returncode == 0, divided.stderr
    assert "Accuracy and fit together" in divided.stdout
    written = run("plan", folder / "study.toml", "--rows", "50000", "--out", folder / "plan.html")
    assert written.returncode == 0
    assert "No data was touched" in (folder / "plan.html").read_text(encoding="utf-8")
    assert run("plan", folder / "study.toml", "--rows", "50000", "--out", folder / "study.toml").returncode == 2


def test_plan_knows_what_the_study_declares(folder: Path, run: Run) -> None:
    before = run("plan", folder / "study.toml", "--rows", "2000", "--epsilon", "1").stdout
    edit(folder, "[model]", '[model]\ncalibration = "paper"')
    after = run("plan", folder / "study.toml", "--rows", "2000", "--epsilon", "1").stdout
    assert "Theorem 4.7" in after
    assert "Algorithm 2 is unusable at epsilon = 1 with 2,000 rows" in after
    assert before.splitlines()[2:5] != after.splitlines()[2:5]


def test_events_go_the_whole_way(folder: Path, run: Run) -> None:
    """plan, check, fit and report of a study with events, which text files declare as well."""
    rows = pq.read_table(folder / "linked.parquet")
    died = ["yes" if spent > 30_000 else "no" for spent in rows["consumption"].to_pylist()]
    pq.write_table(rows.append_column("died", pa.array(died)), folder / "linked.parquet")
    edit(folder, 'formula = "consumption ~ income + C(region)"', 'formula = "died ~ income"\nfamily = "logistic"')
    edit(folder, "[levels]", '[levels]\ndied = ["no", "yes"]')
    planned = run("plan", folder / "study.toml", "--rows", 2000, "--epsilon", 1, "--response-mean", 0.4)
    assert "events on 40 % of the rows" in planned.stdout, planned.stderr
    assert "odds ratio ×÷" in planned.stdout
    assert "the level that is modelled" in run("check", folder / "study.toml").stdout
    fitted = run("fit", folder / "study.toml", "--out", folder / "release.json")
    assert fitted.returncode == 0, fitted.stderr
    assert "Private logistic regression" in fitted.stdout
    for ending in ("html", "md", "tex", "csv", "txt"):
        assert run("report", folder / "release.json", "--out", folder / f"report.{ending}").returncode == 0
        written = (folder / f"report.{ending}").read_text(encoding="utf-8")
        assert "odds ratio" in written.lower().replace("_", " ")


def test_check_is_marked_and_ends_in_a_verdict(folder: Path, run: Run) -> None:
    done = run("check", folder / "study.toml", "--out", folder / "check.html")
    assert done.returncode == 0
    assert done.stdout.startswith("FOR THE STEWARD ONLY, NOT FOR PUBLICATION")
    assert "Check of the data: ready" in done.stdout
    page = (folder / "check.html").read_text(encoding="utf-8")
    assert "FOR THE STEWARD ONLY, NOT FOR PUBLICATION" in page
    bad = run("check", edit(folder, "accuracy = 0.91", "accuracy = { nsw = 0.9 }"))
    assert bad.returncode == 11
    assert "Check of the data: not usable" in bad.stdout
    assert run("check", folder / "study.toml", "--out", folder / "study.toml").returncode == 2
    edit(folder, "accuracy = { nsw = 0.9 }", "accuracy = 0.91")
    odd = run("check", edit(folder, "consumption = [0, 120000]", "consumption = [0, 30000]"))
    assert (odd.returncode, "Check of the data: look again" in odd.stdout) == (10, True)


def test_fit_reminds_who_has_not_looked_and_runs_all_the_same(folder: Path, run: Run) -> None:
    """The receipt says that data was looked at, whatever was seen. It changes nothing but the reminder."""
    study, said = folder / "study.toml", "nobody has looked at this data with this study"

    def fits(*options: str) -> tuple[int, bool]:
        done = run("fit", study, "--out", folder / "release.json", "--force", *options)
        return done.returncode, said in done.stderr

    assert fits() == (0, True)
    assert fits("--unchecked") == (0, False)
    assert run("check", study).returncode == 0
    assert fits() == (0, False)
    receipt = folder / "study.toml.checked"
    kept = receipt.read_text(encoding="utf-8")
    assert re.fullmatch(r'\[\s*"[0-9a-f]{64}"\s*\]\s*', kept)
    edit(folder, "consumption = [0, 120000]", "consumption = [0, 30000]")  # another study
    assert fits() == (0, True)
    assert run("check", study).returncode == 10
    assert fits() == (0, False)
    edit(folder, "consumption = [0, 30000]", "consumption = [0, 120000]")
    assert fits() == (0, False)  # the earlier one was looked at, too
    os.utime(folder / "linked.parquet", ns=(1, 1))  # other data
    assert fits() == (0, True)
    receipt.write_text("{not a receipt", encoding="utf-8")
    assert fits() == (0, True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 1.0", "epsilon = -1.0", "epsilon must be"),
        ("epsilon = 1.0", "epsilon = 50.0", "large_epsilon"),
        ("epsilon = 1.0", "epsilon = nan", "epsilon must be"),
        ("delta = 1e-6", "delta = 0.01", "not below 1/n"),
        ("income = [0, 150000]", "income = [150000, 0]", "low one must come first"),
        ("income = [0, 150000]", 'income = "all"', "two numbers"),
        ("[privacy]", "[privcy]", "unknown section"),
        ("epsilon = 1.0", "epsilon = 1.0\nepsiln = 2", "unknown key"),
        ("accuracy = 0.91", "accuracy = 1.5", "accuracy must lie"),
        ("accuracy = 0.91", "", "lacks 'accuracy'"),
        ('block = "state"', 'block = "stat"', "Did you mean 'state'"),
        ("consumption ~ income + C(region)", "consumption ~ scale(income)", "not supported"),
        ("consumption ~ income + C(region)", "consumption ~ wealth", "no declared bounds"),
        ("linked.parquet", "absent.parquet", "no file"),
        ("linked.parquet", "study.toml", "only .parquet, .csv"),
        ('[data]\npath = "linked.parquet"', "", "names no data"),
        ("[privacy]", "[ledger]\nulr = 'x'\n[privacy]", "has an unknown key"),
        ("epsilon = 1.0", "epsilon = = 1", "not valid TOML"),
        ("displaced_links = 0", 'displaced_links = "none"', "displaced_links must be"),
    ],
)  # fmt: skip
def test_faults_of_the_study_exit_2(folder: Path, run: Run, old: str, new: str, message: str) -> None:
    done = run("fit", edit(folder, old, new), "--out", folder / "release.json")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "release.json").exists()


def test_output_that_cannot_be_written_exits_2(folder: Path, run: Run) -> None:
    done = run("fit", folder / "study.toml", "--out", folder / "no" / "such" / "r.json")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_truncated_parquet_shows_nothing(folder: Path) -> None:
    whole = (folder / "linked.parquet").read_bytes()
    (folder / "linked.parquet").write_bytes(whole[: len(whole) // 2])
    done = start("fit", folder / "study.toml", "--out", folder / "r.json")
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").stdout.split() == ["dplinked", dpl.__version__]


def test_usage_errors_exit_2(run: Run) -> None:
    assert start("fit").returncode == 2
    assert run("fit", "--nonsense").returncode == 2
    assert run("report", "absent.json").returncode == 2


def test_exact_and_descent_studies(folder: Path, run: Run) -> None:
    edit(folder, 'block = "state"\naccuracy = 0.91', 'model = "exact"')
    assert run("fit", folder / "study.toml", "--out", folder / "r.json").returncode == 0
    edit(folder, "[privacy]", "[descent]\niterations = 2\n\n[privacy]")
    edit(folder, "[bounds]", 'method = "ngd"\n\n[bounds]')
    done = run("fit", folder / "study.toml", "--out", folder / "r.json", "--force")
    assert done.returncode == 0, done.stderr
    assert dpl.Release.load(folder / "r.json").method == "ngd"


# --- link ---------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    import pyarrow.csv

    files = two_files(800, 3, errors=1.5)
    pyarrow.csv.write_csv(files.left, tmp_path / "a.csv")
    pyarrow.csv.write_csv(files.right, tmp_path / "b.csv")
    return tmp_path


FIELDS = [f"--field={name}" for name in ("given_name", "surname", "date_of_birth", "address", "national_id:id")]


def test_link_audit_release_fit(two: Path, run: Run) -> None:
    """The steward's way: link, have links checked, release the accuracies, fit; all from CSV files."""
    import pyarrow.csv

    files = two_files(800, 3, errors=1.5)
    base = ["link", two / "a.csv", two / "b.csv", "--out", two / "out", "--id", "id", "--block", "state", *FIELDS]
    done = start(*base, "--audit-sample", 150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FOR THE STEWARD ONLY, NOT FOR PUBLICATION")
    assert {path.name for path in (two / "out").iterdir()} == {
        "audit.csv", "linkage.toml", "linked.parquet", "quality.html", "quality.txt",
    }  # fmt: skip
    study = STUDY.split("[linkage]")[0].replace("linked.parquet", "out/linked.parquet")
    (two / "study.toml").write_text(
        study + (two / "out" / "linkage.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    refused = run("fit", two / "study.toml", "--out", two / "r.json")
    assert refused.returncode == 2
    assert "they are data" in refused.stderr

    sample = pyarrow.csv.read_csv(
        two / "out" / "audit.csv", convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    )
    pyarrow.csv.write_csv(review_links(sample, files), two / "answers.csv")
    done = run(
        *base, "--audited", two / "answers.csv", "--release-accuracy", 0.5, "--delta", 1e-6, "--displaced-links", 0
    )
    assert done.returncode == 0, done.stderr
    (two / "study.toml").write_text(
        study + (two / "out" / "linkage.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    done = run("fit", two / "study.toml", "--out", two / "r.json")
    assert done.returncode == 0, done.stderr
    assert "both releases together" in " ".join(done.stdout.split())
    assert (two / "out" / "accuracy.json").exists()


def test_links_are_divided_into_bands(two: Path, run: Run) -> None:
    import pyarrow.parquet

    named = ["--field=given_name"]
    done = run("link", two / "a.csv", two / "b.csv", "--out", two / "out", "--bands", 2, *named)
    assert done.returncode == 0, done.stderr
    groups = set(pyarrow.parquet.read_table(two / "out" / "linked.parquet")["link_block"].to_pylist())
    assert sum(group.startswith("(all), ") for group in groups) == 2


def test_link_with_an_audit_in_secret(two: Path, run: Run) -> None:
    import pyarrow.csv

    files = two_files(800, 3, errors=1.5)
    base = ["link", two / "a.csv", two / "b.csv", "--out", two / "out", "--id", "id", "--block", "state", *FIELDS]
    secret = ["--audit-sample", 150, "--audit-key", two / "audit.key"]
    done = run(*base, *secret)
    assert done.returncode == 0, done.stderr
    assert "Who was drawn is secret" in done.stdout
    assert len((two / "audit.key").read_text(encoding="ascii")) == 65
    sample = pyarrow.csv.read_csv(
        two / "out" / "audit.csv", convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    )
    pyarrow.csv.write_csv(review_links(sample, files), two / "answers.csv")
    price = ["--release-accuracy", 0.5, "--delta", 1e-6, "--displaced-links", 1]
    done = run(*base, *secret, "--audited", two / "answers.csv", *price)
    assert done.returncode == 0, done.stderr
    assert "rests on a secret" in (two / "out" / "accuracy.json").read_text(encoding="utf-8")
    assert "paid = { " in (two / "out" / "linkage.toml").read_text(encoding="utf-8")
    assert "stands in no report" in " ".join(done.stdout.split())
    for options, message in (
        (["--audited", two / "answers.csv", *price], "has the column 'secret'"),
        (["--audit-sample", 150, "--audit-key", two / "out" / "audit.csv"], "would be overwritten"),
        (["--audit-sample", 150, "--audit-key", two / "out" / "accuracy.json"], "would be overwritten"),
        (["--audited", two / "answers.csv", *secret[2:], *price], "--audit-key needs --audit-sample"),
        (
            ["--audited", two / "answers.csv", "--audit-sample", 100, *secret[2:], *price],
            "not all the links that the key draws",
        ),
        (["--audited", two / "answers.csv", *secret, "--by-identifiers"], "drawn in secret"),
    ):
        done = run(*base, *options)
        assert done.returncode == 2
        assert message in done.stderr
    assert (two / "out" / "accuracy.json").exists()
    filled_in = two / "out" / "audit.csv"
    (two / "answers.csv").replace(filled_in)
    assert run(*base, *secret, "--audited", filled_in).returncode == 0  # answers may stand where the list stood


def test_accuracies_that_were_released_elsewhere_are_booked(two: Path, run: Run) -> None:
    """As what they cost: a secret sample by its own numbers, a public one by its epsilon and delta."""
    from dplinked.linker.release_accuracy import ReleasedAccuracy

    study = two / "study.toml"
    study.write_text(STUDY.replace("linked.parquet", "a.csv") + '[ledger]\nurl = "budget.db"\n', encoding="utf-8")
    book = dpl.Ledger.create(two / "budget.db", "everybody", epsilon=3.0, delta=1e-6)
    sample, public = SecretSample(0.02, 2, 5.0, 0.9), 0.2
    for paid, mu in ((sample, None), (public, public)):
        linkage = dpl.ELE(0.9, "state", accuracy_error=0.01, source="released", paid=paid, displaced_links=0)
        released = ReleasedAccuracy(linkage, {}, 5.0, {}, 0.5, 1e-6, mu, {}, "")
        released.save(two / "accuracy.json")
        done = run("budget", "book", study, "--accuracy", two / "accuracy.json", "--note", "elsewhere")
        assert done.returncode == 0, done.stderr
    bodies = [json.loads(event.body) for event in book.events() if event.kind == "booked"]
    assert bodies == [
        {"sample": dataclasses.asdict(sample), "note": "elsewhere"},
        {"epsilon": 0.5, "delta": 1e-6, "note": "elsewhere"},
    ]
    for options in ([], ["--epsilon", 1], ["--epsilon", 1, "--delta", 0, "--accuracy", two / "accuracy.json"]):
        done = run("budget", "book", study, *options, "--note", "x")
        assert (done.returncode, "by --accuracy alone" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--field", "nme"], "not in the left file"),
        (["--field", "surname", "--block", "stat"], "Did you mean 'state'"),
        (["--field", "surname", "--memory", "0.000001"], "finer key"),
        (["--field", "surname", "--audited", "none.csv"], "no file 'none.csv'"),
        (["--field", "surname", "--release-accuracy", "1"], "needs --audited"),
        (["--field", "surname", "--method", "magic"], "method must be one of"),
        (["--field", "surname", "--bands", "1"], "bands must be a number of bands"),
        (["--field", "surname:colour"], "Column 'surname:colour'"),
    ],
)
def test_faults_of_linking_exit_2_and_write_nothing(two: Path, run: Run, arguments: list[str], message: str) -> None:
    done = run("link", two / "a.csv", two / "b.csv", "--out", two / "out", *arguments, cwd=two)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (two / "out").exists()


def test_files_that_cannot_be_linked_exit_2(two: Path, run: Run) -> None:
    (two / "empty.csv").write_text("", encoding="utf-8")
    (two / "header.csv").write_text("id,surname\n", encoding="utf-8")
    (two / "other.csv").write_text("colour\nred\n", encoding="utf-8")
    for name, message in [
        ("empty.csv", "cannot be read"),
        ("header.csv", "no rows"),
        ("other.csv", "no column in common"),
        ("no.csv", "no file"),
    ]:
        done = run("link", two / "a.csv", two / name, "--out", two / "out")
        assert done.returncode == 2, name
        assert message in done.stderr
    assert run("link", two / "a.csv", two / "b.csv", "--out", two / "a.csv").returncode == 2
    assert not (two / "out").exists()


def test_reproduce_writes_tables_and_a_page(tmp_path: Path, run: Run) -> None:
    done = run("reproduce", "toy", "--repetitions", 2, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "holds          toy" in done.stdout
    assert (tmp_path / "out" / "reproduction.html").exists()
    assert run("reproduce", "setting9", "--out", tmp_path / "out").returncode == 2
    options = ("reproduce", "toy", "--repetitions", 2, "--out", tmp_path / "other", "--tight", "--radius")
    assert run(*options, 1.2).returncode == 0
    assert "projection, is 1.2 in the simulations" in (tmp_path / "other" / "reproduction.html").read_text("utf-8")
    assert run(*options, 0.5).returncode == 2


# --- output files ------------------------------------------------------------------------------------------


def with_ledger(folder: Path, data: str = "linked.parquet", key: str = "budget.key") -> Path:
    text = (
        STUDY.replace("linked.parquet", data) + f'\n[ledger]\nurl = "budget.db"\npopulation = "people"\nkey = "{key}"\n'
    )
    (folder / "kept.toml").write_text(text, encoding="utf-8")
    return folder / "kept.toml"


def test_neither_key_nor_data_is_overwritten(folder: Path, run: Run) -> None:
    (folder / "rows").mkdir()
    (folder / "linked.parquet").rename(folder / "rows" / "a.parquet")
    for data in ("rows", "rows/*.parquet"):
        study = with_ledger(folder, data, key="key.json")
        run("budget", "init", study, "--epsilon", 3, "--delta", 1e-6)
        for name in ("key.json", "rows/a.parquet"):
            held = (folder / name).read_bytes()
            done = run("budget", "export", study, "--out", folder / name)
            assert (done.returncode, "would be overwritten" in done.stderr) == (2, True), done.stderr
            assert (folder / name).read_bytes() == held
        held = (folder / "key.json").read_bytes()
        assert run("fit", study, "--force", "--out", folder / "key.json").returncode == 2
        assert (folder / "key.json").read_bytes() == held


def test_a_fit_holds_its_output_before_it_is_charged(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = folder / "release.json", []

    def failing(*_: object, **__: object) -> None:
        seen.append(out.exists())
        raise dpl.ReleaseError("failed")

    monkeypatch.setattr("dplinked.fitting.fit_study", failing)
    assert run("fit", folder / "study.toml", "--out", out).returncode == 5
    assert (seen, out.exists()) == ([True], False)
    with reserved(out, force=False):  # another fit is at work
        assert "is there already" in run("fit", folder / "study.toml", "--out", out).stderr
        assert (len(seen), out.exists()) == (1, True)
    out.touch()  # a fit was killed
    assert run("fit", folder / "study.toml", "--out", out).returncode == 5
    out.write_text("a release", encoding="utf-8")
    assert run("fit", folder / "study.toml", "--out", out, "--force").returncode == 5
    assert out.read_text(encoding="utf-8") == "a release"


def test_report_has_one_message_whatever_a_file_holds(folder: Path, run: Run) -> None:
    assert run("fit", folder / "study.toml", "--out", folder / "release.json").returncode == 0
    release = (folder / "release.json").read_text(encoding="utf-8")
    broken = release.replace('"formula": "', '"formula": "~', 1).replace('"route"', '"path"', 1)
    told = set()
    for held in (b"a,b\n1,2\n", b"\xff\xfe", b"[1]", b"{}", b'{"dplinked_release": 2}', broken.encode()):
        (folder / "x.json").write_bytes(held)
        done = run("report", folder / "x.json")
        told.add((done.returncode, done.stderr))
    ((code, said),) = told
    assert code == 2
    assert "is no release" in said
    (folder / "x.json").unlink()
    assert "There is no file 'x.json'" in run("report", folder / "x.json").stderr


def test_a_fit_that_fails_leaves_devices_and_older_files_alone(tmp_path: Path) -> None:
    older = tmp_path / "empty.json"
    older.touch()
    for path in (Path(os.devnull), older, tmp_path / "new.json"):
        with pytest.raises(RuntimeError), reserved(path, force=False):
            raise RuntimeError
    assert Path(os.devnull).is_char_device()
    assert older.exists()
    assert not (tmp_path / "new.json").exists()


def test_rows_of_a_file_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rows as from Python, with cells as they are written."""
    from dplinked.cli.main import main

    stays = tmp_path / "stays.csv"
    stays.write_text("person;cost\n" + "\n".join(f"0{i % 4};{i},5" for i in range(20)), encoding="utf-8")
    asked = ["limit-rows", str(stays), "--id", "person", "--rows", "2", "--key", "k", "--out", str(tmp_path / "kept.parquet")]  # fmt: skip

    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["dplinked", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    assert run(*asked) == 2
    assert "semicolons between cells" in capsys.readouterr().err
    assert run(*asked, "--separator", ";", "--decimal", ",") == 0
    assert "Kept 8 of 20 rows, at most 2 of each person" in capsys.readouterr().out
    kept = pq.read_table(tmp_path / "kept.parquet").to_pydict()
    table = {"person": [f"0{i % 4}" for i in range(20)], "cost": [f"{i}.5" for i in range(20)]}
    import pandas as pd

    same = dpl.limit_rows(pd.DataFrame(table), id="person", rows=2, key="k")
    assert kept["person"] == list(same["person"])
    assert list(map(float, kept["cost"])) == [float(cost) for cost in same["cost"]]
    assert run("report", str(tmp_path / "nothing.json")) == 2
    assert "There is no file 'nothing.json'" in capsys.readouterr().err
