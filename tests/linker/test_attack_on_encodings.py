"""An attack by somebody who has encodings and no key: which bits go together tells which records share a letter pair, and a few known people tell which pair it is.

It is a frequency attack with known plaintext, as in the literature on Bloom filters of names. It must succeed against filters that are neither folded nor balanced nor turned over, else it
would show nothing, and fail at the defaults.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dplinked as dpl
from dplinked.linker.encodings.schema import read_schema
from dplinked.linker.encodings.tokens import tokens
from dplinked.simulate import two_files

FIELDS = {"given_name": "name", "surname": "name", "address": "text"}
PLAIN = {"fold": False, "balance": False, "flip": 0.0}
KNOWN = 150  # people whose records the attacker recognises

Sets = list[frozenset[tuple[str, str]]]


def letter_pairs(table: Any) -> Sets:
    """The letter pairs of each record."""
    fields = read_schema({"fields": FIELDS}).fields
    columns = {field.name: table[field.name].to_pylist() for field in fields}
    return [
        frozenset((field.kind, token) for field in fields for token in tokens(field, columns[field.name][i] or ""))
        for i in range(table.num_rows)
    ]


def marked_records(filters: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Groups of bits that are set together, and the records that have all bits of a group."""
    bits = np.unpackbits(filters, axis=1)
    together = np.nan_to_num(np.corrcoef(bits.T.astype(np.float32)))
    np.fill_diagonal(together, 0.0)
    used, found = np.zeros(len(together), dtype=bool), []
    for bit in np.argsort(-together.max(axis=1)):
        group = [
            bit,
            *(other for other in np.argsort(-together[bit])[:12] if together[bit, other] > 0.5 and not used[other]),
        ]
        if not used[bit] and len(group) >= 4:
            used[group] = True
            found.append(bits[:, group].min(axis=1) > 0)
    return [records for records in found if records.mean() > 0.02]


def identified(marks: list[np.ndarray[Any, Any]], truth: Sets) -> int:
    """How many letter pairs the attacker names right, and tells of nearly all strangers whether they have them."""
    known, strangers = truth[:KNOWN], truth[KNOWN:]
    right = set()
    for records in marks:
        own, others = (
            [s for s, marked in zip(known, records[:KNOWN], strict=True) if marked is flag]
            for flag in (np.True_, np.False_)
        )
        guesses = frozenset.intersection(*own) - frozenset().union(*others) if own else frozenset()
        for pair in guesses if len(guesses) == 1 else ():
            has = np.array([pair in s for s in strangers])
            if (has & records[KNOWN:]).sum() > 0.9 * (has | records[KNOWN:]).sum():
                right.add(pair)
    return len(right)


@pytest.mark.parametrize(("settings", "least", "most"), [(PLAIN, 8, 1000), ({}, 0, 0)], ids=["plain", "defaults"])
def test_letter_pairs_are_found_in_plain_filters_and_not_at_the_defaults(
    tmp_path: Path, settings: dict[str, Any], least: int, most: int
) -> None:
    files = two_files(5_000, seed=5, errors=1.0)
    dpl.encodings.new_key(tmp_path / "secret.key")
    made = dpl.encode(files.left, key=tmp_path / "secret.key", schema={"fields": FIELDS, "encoding": settings}, id="id")
    own = dict(zip(made.own["pseudonym"].to_pylist(), range(made.own.num_rows), strict=True))
    pairs = letter_pairs(files.left)
    truth = [pairs[own[name]] for name in made.table["pseudonym"].to_pylist()]
    filters = np.stack([np.frombuffer(cell, np.uint8) for cell in made.table["filter"].to_pylist()])
    assert least <= identified(marked_records(filters), truth) <= most


def test_common_records_are_told_by_their_frequency_in_plain_filters_and_not_at_the_defaults(tmp_path: Path) -> None:
    """Whoever is called what many are called, and lives where many live, has a filter that occurs often."""
    names = np.random.default_rng(1).zipf(1.6, 4_000) % 300
    table = {
        "given_name": [f"given{i}" for i in names],
        "surname": [f"family{i}" for i in names],
        "suburb": [f"place{i}" for i in names],
    }
    dpl.encodings.new_key(tmp_path / "secret.key")
    for settings, told in ((PLAIN, True), ({}, False)):
        schema = {"fields": {"given_name": "name", "surname": "name", "suburb": "text"}, "encoding": settings}
        made = dpl.encode(table, key=tmp_path / "secret.key", schema=schema)
        place = {
            name: int(i) for name, i in zip(made.own["pseudonym"].to_pylist(), made.own["id"].to_pylist(), strict=True)
        }
        cells = dict(zip(made.table["pseudonym"].to_pylist(), made.table["filter"].to_pylist(), strict=True))
        common = Counter(cells.values()).most_common(1)[0][0]
        holders = [name for name, cell in cells.items() if cell == common]
        most = np.bincount(names).argmax()
        right = sum(names[place[name]] == most for name in holders)
        assert bool(len(holders) == (names == most).sum() and right == len(holders)) is told
