"""An attack by somebody who has encodings and no key: which bits go together tells which records share a letter pair, and a few known people tell which pair it is.

It is a frequency attack with known plaintext, as in the literature on Bloom filters of names. It must succeed against filters that are neither folded nor balanced nor turned over, else it
would show nothing, and fail at the defaults. A stronger attack, which learns each letter pair's bits from known people, succeeds at the defaults, as the page says, and fails against salts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import dplinked as dpl
from dplinked.linker.encodings.schema import read_schema
from dplinked.linker.encodings.tokens import tokens
from dplinked.simulate import two_files

ALL = {"given_name": "name", "surname": "name", "date_of_birth": "date", "postcode": "postcode", "address": "text"}
SALTS = ["given_name:sound", "surname:sound", "date_of_birth:year", "postcode"]
FIELDS = {"given_name": "name", "surname": "name", "address": "text"}
PLAIN = {"fold": False, "balance": False, "flip": 0.0}
KNOWN = 150  # people whose records the attacker recognises

Sets = list[frozenset[tuple[str, str]]]


def letter_pairs(table: Any, kinds: dict[str, str] = FIELDS) -> Sets:
    """The letter pairs of each record."""
    fields = read_schema({"fields": kinds}).fields
    columns = {field.name: table[field.name].to_pylist() for field in fields}
    return [
        frozenset((field.kind, token) for field in fields for token in tokens(field, columns[field.name][i] or ""))
        for i in range(table.num_rows)
    ]


def marked_records(filters: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Groups of bits that are set together, and the records that have all bits of a group."""
    bits = np.unpackbits(filters, axis=1)
    with np.errstate(invalid="ignore"):  # a bit that nobody sets
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


def learnt(filters: np.ndarray[Any, Any], truth: Sets) -> float:
    """How well an attacker tells which strangers have a common letter pair, from the bits that known people with and without it have: 1 always, .5 by guessing.

    Balancing is undone first: of two bits that are always opposite, the rarer one is kept.
    """
    bits = np.unpackbits(filters, axis=1).astype(np.float32)
    bits = bits[:, bits.mean(axis=0) < 0.5]
    known, strangers = bits[:KNOWN], bits[KNOWN:]
    told = []
    for pair, _ in Counter(pair for some in truth for pair in some).most_common(40):
        has = np.array([pair in some for some in truth])
        one, other = known[has[:KNOWN]], known[~has[:KNOWN]]
        off = np.sqrt((known.var(axis=0) + 1e-9) * (1.0 / len(one) + 1.0 / len(other)))
        surprise = (one.mean(axis=0) - other.mean(axis=0)) / off
        score = strangers @ np.where(np.abs(surprise) > 3.0, surprise, 0.0)
        told.append(
            mannwhitneyu(score[has[KNOWN:]], score[~has[KNOWN:]]).statistic / has[KNOWN:].sum() / (~has[KNOWN:]).sum()
        )
    return float(np.mean(told))


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [(PLAIN, 0.95, 1.0), ({}, 0.9, 1.0), ({"salt": SALTS}, 0.4, 0.56)],
    ids=["plain", "defaults", "salts"],
)
def test_whoever_knows_some_people_tells_letter_pairs_of_all_unless_there_are_salts(
    tmp_path: Path, settings: dict[str, Any], least: float, most: float
) -> None:
    files = two_files(4_000, seed=5, errors=1.0)
    dpl.encodings.new_key(tmp_path / "secret.key")
    made = dpl.encode(files.left, key=tmp_path / "secret.key", schema={"fields": ALL, "encoding": settings}, id="id")
    own = dict(zip(made.own["pseudonym"].to_pylist(), range(made.own.num_rows), strict=True))
    pairs = letter_pairs(files.left, ALL)
    truth = [pairs[own[name]] for name in made.table["pseudonym"].to_pylist()]
    filters = np.stack([np.frombuffer(cell, np.uint8) for cell in made.table["filter"].to_pylist()])
    assert least <= learnt(filters, truth) <= most


def test_block_keys_of_one_column_are_told_by_their_frequency_and_columns_together_are_not(tmp_path: Path) -> None:
    """Whoever knows how common postcodes are takes the largest block for the most common one, and so on."""
    places = np.minimum(np.random.default_rng(3).zipf(1.5, 20_000) - 1, 400)
    born = np.random.default_rng(4).integers(1930, 2010, places.size)
    table = {
        "given_name": [f"given{i % 97}" for i in range(places.size)],
        "surname": [f"family{i % 89}" for i in range(places.size)],
        "postcode": [f"{i:04d}" for i in places],
        "date_of_birth": [f"{year}-01-01" for year in born],
    }
    fields = {"given_name": "name", "surname": "name", "postcode": "postcode", "date_of_birth": "date"}
    common = np.bincount(places).argsort()[::-1]  # what the census says
    dpl.encodings.new_key(tmp_path / "secret.key")
    shares = {}
    for blocks in ({"keys": ["postcode"], "alone": True}, {"keys": [["postcode", "date_of_birth:year"]]}):
        made = dpl.encode(table, key=tmp_path / "secret.key", schema={"fields": fields, "blocks": blocks})
        place = dict(zip(made.own["pseudonym"].to_pylist(), map(int, made.own["id"].to_pylist()), strict=True))
        found = Counter(made.table["block0"].to_pylist()).most_common(5)
        guess = {key: common[rank] for rank, (key, _) in enumerate(found)}
        cells = zip(made.table["pseudonym"].to_pylist(), made.table["block0"].to_pylist(), strict=True)
        shares[len(shares)] = np.mean([places[place[name]] == guess.get(key) for name, key in cells])
    assert shares[0] > 0.5
    assert shares[1] < 0.03
