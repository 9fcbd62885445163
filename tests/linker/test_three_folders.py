"""The worked example of files that may not be shared: three places, and what crosses between them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.cli.main import main
from dplinked.simulate import two_files

PAGE = Path(__file__).parents[2] / "docs" / "encodings.md"
IDENTIFIERS = ("given_name", "surname", "date_of_birth", "postcode", "address", "suburb", "id", "national_id")
STUDY = """\
[data]
path = "joined.parquet"
[model]
formula = "consumption ~ income"
[bounds]
income = [0, 150000]
consumption = [0, 120000]
[unit]
displaced_links = 0
[privacy]
epsilon = 2.0
delta = 1e-6
"""


def test_the_page_goes_through_and_no_identifier_crosses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = [
        " ".join(line.split())
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    files = two_files(1_500, seed=3, errors=1.5)
    hospital, office, unit, analysis = (tmp_path / name for name in ("hospital", "office", "unit", "analysis"))
    for folder in (hospital, office, unit, analysis):
        folder.mkdir()
    pyarrow.csv.write_csv(files.left, hospital / "incomes.csv")
    pyarrow.csv.write_csv(files.right, office / "spending.csv")
    for folder in (hospital, office):
        (folder / "fields.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")

    def run(folder: Path, command: str) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", command.partition("#")[0].split())
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code, command

    crossed: list[Path] = []

    def send(source: Path, target: Path) -> None:
        shutil.copy(source, target)
        crossed.append(source)

    make_key, encode, link, *answers, judge, relink, join, fit = commands
    run(hospital, make_key)
    shutil.copy(hospital / "secret.key", office / "secret.key")  # in person
    run(hospital, encode)
    run(
        office,
        encode.replace("incomes", "spending").replace("--analysis income --analysis region", "--analysis consumption"),
    )
    send(hospital / "incomes.clk", unit)
    send(office / "spending.clk", unit)
    run(unit, link)
    for side, (folder, command) in zip(("left", "right"), zip((hospital, office), answers, strict=True), strict=True):
        (folder / "links").mkdir()
        send(unit / "links" / f"audit-{side}.csv", folder / "links")
        run(folder, command)
        send(folder / f"{side}.csv", unit)
    run(unit, judge)
    run(unit, relink)
    (analysis / "links").mkdir()
    send(unit / "links" / "linked.parquet", analysis / "links")
    send(unit / "links" / "linkage.toml", analysis)
    send(hospital / "incomes.rows.parquet", analysis)
    send(office / "spending.rows.parquet", analysis)
    run(analysis, join)
    (analysis / "study.toml").write_text(
        STUDY + (analysis / "linkage.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    run(analysis, fit)

    low, high = dpl.Release.load(analysis / "release.json").conf_int(0.9999)["income"]
    assert low < 0.55 < high
    assert not list(unit.rglob("*.key")) + list(analysis.rglob("*.key"))
    written = "\n".join(_shown(path) for path in crossed)
    values = {
        str(value)
        for table in (files.left, files.right)
        for name in IDENTIFIERS
        for value in table[name].to_pylist()
        if value
    }
    cells = set(re.findall(r"[^\s,\"]+(?: [^\s,\"]+)*", written))
    assert not {value for value in values if len(value) > 3} & cells
    assert "income" in written  # what is looked through is what was sent


def _shown(path: Path) -> str:
    """All cells of a file that crossed, one to a line, binary ones too."""
    if path.suffix not in (".clk", ".parquet"):
        return path.read_text(encoding="utf-8").replace(",", "\n")
    table = pq.read_table(path)
    return "\n".join([*table.column_names, *(str(cell) for column in table.columns for cell in column.to_pylist())])
