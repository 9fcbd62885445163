"""The page on files that may not be shared, walked through in four folders, and a look into everything that crosses between them.

    python benchmarks/three_folders.py [--rows 1500] [--folder shared] [--control]

The commands are those of docs/encodings.md, each run in the folder of whoever runs it: two holders, the linkage unit, the analysis unit. Then all files in the folders of the two units are read, cell by
cell and byte by byte. None may hold the key, an identifier, or what a block key is made of, plain or hashed without the key. `--control` puts one of each into a file, and must find them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import dplinked as dpl
from dplinked.linker.encodings.filters import Texts
from dplinked.linker.encodings.schema import read_schema
from dplinked.simulate import TwoFiles, two_files

PAGE = Path(__file__).parents[1] / "docs" / "encodings.md"
SLOPE = 0.55  # of the generated people
IDENTIFIERS = ("id", "given_name", "surname", "date_of_birth", "street_number", "address", "suburb", "postcode", "national_id")  # fmt: skip
TOO_SHORT = 3  # letters up to which a value is not looked for: a column's name or a number has it by chance
SHORT = 7  # and up to which it is looked for as a whole cell only
LONG = 12  # the same of values that could be numbers, or pieces of them in hexadecimal digits
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


@dataclass(frozen=True)
class Places:
    """The folders of the two holders, the linkage unit and the analysis unit."""

    hospital: Path
    office: Path
    unit: Path
    analysis: Path

    @property
    def outside(self) -> tuple[Path, Path]:
        """Where no identifier may be."""
        return self.unit, self.analysis


def page_parts(language: str) -> list[str]:
    """The page's examples in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def page_commands() -> list[str]:
    """The commands of the page, in order: make the key, encode, link, answer twice, judge, link again, join, fit."""
    lines = (line for part in page_parts("sh") for line in part.replace("\\\n", " ").splitlines())
    return [" ".join(line.partition("#")[0].split()) for line in lines]


def run(folder: Path, command: str) -> None:
    """Run a command of the page in somebody's folder."""
    _, *words = shlex.split(command)
    environment = {**os.environ, "PYTHONPATH": str(Path(dpl.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "dplinked.cli", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{folder.name}$ {command}\n{done.stdout}{done.stderr}")


def walk(folder: Path, files: TwoFiles) -> Places:
    """All steps of the page. Only what the page says is copied from one folder into another; the key goes from holder to holder."""
    places = Places(*(folder / name for name in ("hospital", "office", "unit", "analysis")))
    for place in (places.hospital, places.office, *places.outside):
        (place / "links").mkdir(parents=True)
    pyarrow.csv.write_csv(files.left, places.hospital / "incomes.csv")
    pyarrow.csv.write_csv(files.right, places.office / "spending.csv")
    for holder in (places.hospital, places.office):
        (holder / "fields.toml").write_text(page_parts("toml")[0], encoding="utf-8")

    make_key, encode, link, *answers, judge, relink, join, fit = page_commands()
    run(places.hospital, make_key)
    shutil.copy(places.hospital / "secret.key", places.office)
    run(places.hospital, encode)
    other = encode.replace("incomes", "spending").replace("--analysis income --analysis region", "--analysis consumption")  # fmt: skip
    run(places.office, other)
    for holder, name in ((places.hospital, "incomes"), (places.office, "spending")):
        shutil.copy(holder / f"{name}.clk", places.unit)
        shutil.copy(holder / f"{name}.rows.parquet", places.analysis)
    run(places.unit, link)
    for side, holder, command in zip(("left", "right"), (places.hospital, places.office), answers, strict=True):
        shutil.copy(places.unit / "links" / f"audit-{side}.csv", holder / "links")
        run(holder, command)
        shutil.copy(holder / f"{side}.csv", places.unit)
    run(places.unit, judge)
    run(places.unit, relink)
    shutil.copy(places.unit / "links" / "linked.parquet", places.analysis / "links")
    section = (places.unit / "links" / "linkage.toml").read_text(encoding="utf-8")
    run(places.analysis, join)
    (places.analysis / "study.toml").write_text(STUDY + section, encoding="utf-8")
    run(places.analysis, fit)
    return places


# --- what may not cross ---------------------------------------------------------------------------------


def secrets_of(files: TwoFiles, key: bytes) -> dict[str, str]:
    """All that may not cross, and what it is: the key, identifiers, what block keys are made of, and their hashes without the key."""
    schema = read_schema({"fields": {}, **_schema_of_page()})
    found = {key.strip().decode("ascii"): "the key", key.strip()[:16].decode("ascii"): "half of the key"}
    for table in (files.left, files.right):
        for name in IDENTIFIERS:
            found |= {str(value): name for value in table[name].to_pylist() if value}
        for parts in schema.blocks:
            label = " and ".join(map(str, parts))
            columns = [_part(table, part) for part in parts]
            for values in set(zip(*columns, strict=True)):
                if None in values:
                    continue
                found |= {mark.join(values): f"block key {label}" for mark in ("\x1f", "|", " ", "", ",", "-")}
                text = "\x1f".join(values).encode("utf-8")
                hashed = (hashlib.blake2b(text, digest_size=8), hashlib.sha256(text), hashlib.md5(text))
                found |= {one.hexdigest()[:16]: f"block key {label}, hashed without the key" for one in hashed}
    return {value: what for value, what in found.items() if len(value) > TOO_SHORT}


def _schema_of_page() -> Any:
    import tomllib

    return tomllib.loads(page_parts("toml")[0])


def _part(table: pa.Table, part: Any) -> list[str | None]:
    """What a part of a block key is for each record."""
    texts = Texts.of(table[part.column].cast(pa.string())).part(part)
    return [None if code < 0 else texts.values[code] for code in texts.codes.tolist()]


def contents(path: Path) -> Iterator[str]:
    """Everything in a file: its cells, names and metadata, bytes as they are and in hexadecimal digits."""
    if path.suffix in (".parquet", ".clk"):
        table = pq.read_table(path)
        for about in ((table.schema.metadata or {}), *(field.metadata or {} for field in table.schema)):
            yield from (piece.decode("latin-1") for pair in about.items() for piece in pair)
        yield from table.column_names
        for column in table.columns:
            for cell in column.to_pylist():
                if isinstance(cell, bytes):
                    yield cell.decode("latin-1")
                    yield cell.hex()
                elif cell is not None:
                    yield str(cell)
        return
    whole = path.read_bytes().decode("utf-8")
    if path.suffix == ".html":
        whole = re.sub(r"<style.*?</style>| (class|scope|role)=\"[a-z -]*\"", "", whole, flags=re.DOTALL)
    yield from (cell.strip() for cell in re.split(r"[\n,;\"<>]+", whole))
    yield whole


def find_secrets(places: Places, hidden: dict[str, str]) -> list[str]:
    """What lies in the units' folders and may not: where, and what it is."""
    found, starts = set(), dict[str, list[str]]()
    for value in hidden:
        if len(value) > (LONG if re.fullmatch(r"[0-9a-f .-]+", value) else SHORT):
            starts.setdefault(value[:SHORT], []).append(value)
    for path in sorted(path for place in places.outside for path in place.rglob("*") if path.is_file()):
        name = f"{path.parent.name}/{path.name}"
        if path.suffix == ".key" or path.name.endswith(".own.parquet"):
            found.add(f"{name}: is a holder's own file")
        for text in contents(path):
            if text in hidden:
                found.add(f"{name}: {hidden[text]}")
            for place in range(len(text) - SHORT):
                for value in starts.get(text[place : place + SHORT], ()):
                    if text.startswith(value, place):
                        found.add(f"{name}: {hidden[value]}, inside a cell")
    return sorted(found)


def plant(places: Places, files: TwoFiles, key: bytes) -> None:
    """Put what may not cross into files of the units, each in another way."""
    rows = pq.read_table(places.analysis / "spending.rows.parquet")
    address = files.right["address"].to_pylist()
    pq.write_table(rows.append_column("where", pa.array([f"lives at {one}" for one in address])), places.analysis / "more.parquet")  # fmt: skip
    postcode, born = files.left["postcode"][0].as_py(), files.left["date_of_birth"][0].as_py()
    made = "\x1f".join((postcode or "2000", (born or "1950")[:4])).encode("utf-8")
    blocks = pa.table({"block0": pa.array([hashlib.blake2b(made, digest_size=8).digest()], pa.binary(8))})
    pq.write_table(blocks, places.unit / "plain.clk")
    (places.unit / "notes.txt").write_text(f"the key is {key.decode('ascii')}", encoding="utf-8")


def check(folder: Path, rows: int, control: bool) -> list[str]:
    """Walk, look, and say what should not be there, or was to be found and was not."""
    files = two_files(rows, seed=3, errors=1.5)
    places = walk(folder, files)
    key = (places.hospital / "secret.key").read_bytes()
    hidden = secrets_of(files, key)
    if control:
        plant(places, files, key)
        found = "\n".join(find_secrets(places, hidden))
        wanted = {"more.parquet: address, inside": "an address", "plain.clk: block key": "a hash without the key", "notes.txt: the key": "the key"}  # fmt: skip
        return [f"Not found, though it was put there: {what}." for where, what in wanted.items() if where not in found]
    missed = find_secrets(places, hidden)
    low, high = dpl.Release.load(places.analysis / "release.json").conf_int(0.9999)["income"]
    if not low < SLOPE < high:
        missed.append(f"The slope is {SLOPE}, and its interval goes from {low:.3f} to {high:.3f}.")
    looked = sum(path.is_file() for place in places.outside for path in place.rglob("*"))
    print(f"{looked} files in the folders of the two units, looked through for {len(hidden):,} values: {len(missed)} found.")  # fmt: skip
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_500)
    parser.add_argument("--folder", type=Path, help="where the four folders are made, and stay; by default they go")
    parser.add_argument("--control", action="store_true", help="put what may not cross into files: it must be found")
    options = parser.parse_args()
    if options.folder is not None and options.folder.exists():
        parser.error("--folder: name a folder that is not there yet")
    with tempfile.TemporaryDirectory() as scratch:
        missed = check(options.folder or Path(scratch), options.rows, options.control)
    for one in missed:
        print(one)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
