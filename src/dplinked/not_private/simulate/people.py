"""Two generated files about the same people, with the errors that make linking them hard.

Until the end, texts are kept as byte arrays of fixed width, so that a million people take only seconds. An empty text is a
missing value. Names, suburbs and streets do not depend on the seed: the country stays the same, only the people change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.not_private.simulate import households
from dplinked.not_private.simulate.words import (
    ABBREVIATIONS,
    GIVEN_NAMES,
    GIVEN_PARTS,
    MISREADINGS,
    NICKNAMES,
    STREET_PARTS,
    SUBURB_PARTS,
    SURNAME_PARTS,
    SURNAMES,
)

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Texts = NDArray[np.bytes_]
Columns = dict[str, Texts]
NAME = "S28"  # wide enough for any name and the letters that errors add

# How often each error is tried in a record of the right file at ``errors = 1``, in this order. The rates are not taken from a
# study, but chosen so that about 45 % of the records have no error in names, date of birth and national id.
# Some tries change nothing: a name has no nickname, a date would not exist, two equal letters are transposed.
ERROR_RATES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "given_name": {"nickname": 0.14, "initial": 0.04, "typo": 0.09, "misreading": 0.06, "missing": 0.02},
        "surname": {"typo": 0.11, "misreading": 0.08, "missing": 0.01},
        "date_of_birth": {"wrong_date": 0.14, "day_month": 0.06, "missing": 0.03},
        "street_number": {"typo": 0.04, "missing": 0.03},
        "address": {"abbreviation": 0.15, "typo": 0.06, "misreading": 0.03, "missing": 0.02},
        "suburb": {"typo": 0.05, "misreading": 0.02, "missing": 0.02},
        "postcode": {"wrong_digit": 0.02, "missing": 0.02},
        "state": {"typo": 0.006, "missing": 0.008},
        "national_id": {"wrong_digit": 0.06, "missing": 0.10},
    }
)
SWAPPED_NAMES = 0.03
MOVED = 0.10  # share of people who have moved, in the right file only, since a move is a difference between the files
MOVED_STATE = 0.20  # share of those who moved to another state
LEFT_SHARE = 1.0 / 3.0  # error rates of the left file, relative to those of the right file

FIRST_POSTCODES = (2600, 2000, 800, 4000, 5000, 7000, 3000, 6000)  # by state; each range holds its suburbs' postcodes
SUBURBS, SUBURBS_PER_POSTCODE, STREETS_PER_SUBURB = 2_400, 3, 60
KEYBOARD = {0: "qwertyuiop", 1: "asdfghjkl", 2: "zxcvbnm", 9: "1234567890"}  # by line; digits lie beside digits only


@dataclass(frozen=True, repr=False)
class TwoFiles:
    """Two files about the same people.

    Attributes
    ----------
    left, right
        The files.
    truth
        For each left row a position of the same person in ``right``, -1 if absent (n).
    owner
        For each right row the position of the same person in ``left``, -1 if absent; None if nobody has two records in ``right``, where `truth` says it all.
    """

    left: pa.Table
    right: pa.Table
    truth: Integers
    owner: Integers | None = None

    def __repr__(self) -> str:
        return f"<TwoFiles of {self.left.num_rows:,} and {self.right.num_rows:,} rows>"

    def are_right(self, links: Integers) -> NDArray[np.bool_]:
        """Which left rows are linked to a record of the same person; `links` are positions in ``right``, -1 for none (n)."""
        if self.owner is None:
            return np.asarray((links == self.truth) & (links >= 0))
        return np.asarray((links >= 0) & (self.owner[links] == np.arange(links.size)))


def two_files(
    n: int, seed: int, *, errors: float = 1.0, overlap: float = 1.0, slope: float = 0.55, duplicates: float = 0.0
) -> TwoFiles:
    """Draw two files of n rows about the same people, each with its own errors.

    Both have an ``id`` of their own and the identifiers ``given_name``, ``surname``, ``date_of_birth``,
    ``street_number``, ``address``, ``suburb``, ``postcode``, ``state`` and ``national_id``, as texts or null.
    The left file also has ``income`` and ``region``. The right file, in random order, also has ``consumption``.

    Parameters
    ----------
    n
        Number of rows of each file.
    seed
        Two calls with the same seed but different ``errors`` or ``slope`` describe the same people in the same order.
    errors
        Factor that multiplies every error rate of `ERROR_RATES`; 0 makes clean copies. The left file has a third as many
        errors as the right file, and in it nobody has moved.
    overlap
        Share of the left file's people who are also in the right file. The rest of the right file are other people.
    slope
        Slope of consumption on income.
    duplicates
        Share of the right file's people who have a second record in it, with errors of its own. The right file is larger by these.
    """
    _check_settings(n, errors, overlap, duplicates)
    people_rng, order_rng, left_rng, right_rng = np.random.default_rng(seed).spawn(4)
    shared = round(overlap * n)
    people = _draw_people(2 * n - shared, people_rng)
    money = households.draw_money(2 * n - shared, people_rng, slope)
    members = order_rng.permutation(np.concatenate([order_rng.permutation(n)[:shared], np.arange(n, 2 * n - shared)]))
    if duplicates:
        members = order_rng.permutation(
            np.concatenate([members, order_rng.permutation(members)[: round(duplicates * n)]])
        )
    left = {name: values[:n].copy() for name, values in people.items()}
    right = {name: values[members] for name, values in people.items()}
    del people
    _move_some(right, errors * MOVED, right_rng)
    _make_errors(right, errors, right_rng)
    _make_errors(left, errors * LEFT_SHARE, left_rng)
    region = np.where(money.south[:n], "south", "north")
    return TwoFiles(
        _table("A", left, {"income": money.income[:n], "region": region}),
        _table("B", right, {"consumption": money.consumption[members]}),
        _positions(members, n),
        np.where(members < n, members, -1) if duplicates else None,
    )


def review_links(sample: pa.Table, files: TwoFiles) -> pa.Table:
    """Fill in an audit sample as a reviewer who knows the truth would."""
    import pyarrow as pa

    rows, records = (
        {name: place for place, name in enumerate(table.column(0).to_pylist())} for table in (files.left, files.right)
    )
    links = np.full(len(rows), -1)
    checked = [rows[name] for name in sample["left_id"].to_pylist()]
    links[checked] = [records.get(name, -1) for name in sample["right_id"].to_pylist()]
    answers = pa.array(np.where(files.are_right(links)[checked], "yes", "no").tolist(), pa.string())
    return sample.set_column(sample.column_names.index("correct"), "correct", answers)


def _check_settings(n: int, errors: float, overlap: float, duplicates: float) -> None:
    """Refuse settings that no files can have."""
    if n < 1:
        raise StudyError(f"n = {n} must be at least 1.")
    if not 0.0 <= errors < np.inf:
        raise StudyError(f"errors = {errors} must be 0 or more. 1 gives the rates of ERROR_RATES, 0 clean copies.")
    if not 0.0 <= overlap <= 1.0:
        raise StudyError(f"overlap = {overlap} must lie between 0 and 1.")
    if not 0.0 <= duplicates <= 1.0:
        raise StudyError(f"duplicates = {duplicates} must lie between 0 and 1.")


def _positions(members: Integers, n: int) -> Integers:
    """Position of each left person in the right file, -1 if absent."""
    truth = np.full(n, -1, dtype=np.int64)
    places = np.flatnonzero(members < n)
    truth[members[places]] = places
    return truth


def _table(prefix: str, identifiers: Columns, values: Mapping[str, NDArray[np.generic]]) -> pa.Table:
    """Make an Arrow table, with ids in the order of the file. Empty texts become null."""
    import pyarrow as pa

    n = identifiers["surname"].size
    ids = np.strings.add(prefix.encode(), _number_texts(np.arange(1, n + 1), max(7, len(str(n)))))
    columns = {name: pa.array(value) for name, value in values.items()}
    # Texts are converted as binary first, which drops the zero bytes at the end of fixed-width texts; strings would keep them.
    texts = {name: pa.array(text, pa.binary(), mask=text == b"") for name, text in {"id": ids, **identifiers}.items()}
    return pa.table({name: text.cast(pa.string()) for name, text in texts.items()} | columns)


# People


def _draw_people(n: int, rng: np.random.Generator) -> Columns:
    """Identifiers of n people, without errors."""
    states = rng.choice(len(households.STATES), n, p=households.STATE_SHARES)
    days = _calendar()
    first, last = np.searchsorted(days, [b"1935-01-01", b"2005-01-01"])
    numbers = rng.choice(max(10_000_000, n), n, replace=False) % 10_000_000  # distinct up to ten million people
    return {
        "given_name": _draw_names(_names(GIVEN_NAMES, GIVEN_PARTS), n, 20.0, 1.4, rng),
        "surname": _draw_names(_names(SURNAMES, SURNAME_PARTS), n, 8.0, 1.0, rng),
        "date_of_birth": days[rng.integers(first, last, n)],
        **_draw_homes(states, rng),
        "national_id": _number_texts(numbers, 7),
    }


def _draw_homes(states: Integers, rng: np.random.Generator) -> Columns:
    """A street number, street, suburb and postcode in each of the states given."""
    n, suburbs, streets = states.size, _suburbs(), _streets()
    within = 0.999_999 * rng.random(n)  # never rounds up into the next state
    suburb = np.searchsorted(suburbs.cumulative, states + within, side="right")
    street = suburb * STREETS_PER_SUBURB + rng.integers(0, STREETS_PER_SUBURB, n)
    number = 1 + np.minimum(rng.exponential(40.0, n), 998.0).astype(np.int64)
    return {
        "street_number": np.arange(1_000).astype("S4")[number],
        "address": streets[street % streets.size],
        "suburb": suburbs.names[suburb],
        "postcode": suburbs.postcodes[suburb],
        "state": np.array(households.STATES, "S4")[states],
    }


def _draw_names(names: Texts, n: int, offset: float, exponent: float, rng: np.random.Generator) -> Texts:
    """Draw names whose frequencies follow the Zipf-Mandelbrot law ``(rank + offset)^-exponent``."""
    cumulative = np.cumsum((np.arange(names.size) + offset) ** -exponent)
    drawn: Texts = names[np.searchsorted(cumulative[:-1], rng.random(n) * cumulative[-1], side="right")]
    return drawn


def _number_texts(numbers: Integers, width: int) -> Texts:
    """Write numbers as texts with leading zeros."""
    digits = np.empty((numbers.size, width), dtype=np.uint8)
    for place in range(width):
        digits[:, place] = 48 + numbers // 10 ** (width - 1 - place) % 10
    return digits.view(f"S{width}")[:, 0]


# The country they live in


@dataclass(frozen=True)
class Suburbs:
    """Names and postcodes of the suburbs (S each), and for each its cumulative share within the state plus the state's number (S)."""

    names: Texts
    postcodes: Texts
    cumulative: Floats


def _compose(*parts: str) -> list[str]:
    """All texts made of one piece from each part, in a mixed order that is always the same."""
    texts = sorted({"".join(pieces).replace("_", " ").strip() for pieces in product(*map(str.split, parts))})
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]


def _pairs(text: str) -> list[tuple[bytes, bytes]]:
    """The pairs ``old:new`` of a text."""
    pairs = (pair.encode().replace(b"_", b" ").partition(b":") for pair in text.split())
    return [(old, new) for old, _, new in pairs]


@cache
def _names(common: str, parts: tuple[str, ...]) -> Texts:
    """Names, the most frequent first: first the common ones, then a long tail of composed ones."""
    return np.array(list(dict.fromkeys([*common.split(), *_compose(*parts)])), dtype=NAME)


@cache
def _suburbs() -> Suburbs:
    """Suburbs in the order of their states, the larger ones first. Neighbouring suburbs share a postcode."""
    counts = [round(SUBURBS * share) for share in households.STATE_SHARES]
    places = [(state, place) for state, count in enumerate(counts) for place in range(count)]
    codes = np.array([FIRST_POSTCODES[state] + place // SUBURBS_PER_POSTCODE for state, place in places])
    shares = [np.cumsum(1.0 / (np.arange(count) + 20.0)) for count in counts]
    return Suburbs(
        np.array(_compose(*SUBURB_PARTS)[: len(places)], dtype=NAME),
        _number_texts(codes, 4),
        np.concatenate([state + share / share[-1] for state, share in enumerate(shares)]),
    )


@cache
def _streets() -> Texts:
    """Street names. Many suburbs have a street of each name."""
    return np.array(_compose(*STREET_PARTS), dtype=NAME)


@cache
def _calendar() -> Texts:
    """All possible dates of birth, in order."""
    return np.datetime_as_string(np.arange("1900-01-01", "2020-01-01", dtype="datetime64[D]")).astype("S10")


# Errors


def _make_errors(columns: Columns, errors: float, rng: np.random.Generator) -> None:
    """Add errors to the columns, in place."""
    rows = np.flatnonzero(rng.random(columns["surname"].size) < errors * SWAPPED_NAMES)
    given = columns["given_name"][rows]
    columns["given_name"][rows], columns["surname"][rows] = columns["surname"][rows], given
    for name, rates in ERROR_RATES.items():
        for kind, rate in rates.items():
            values = columns[name]
            rows = np.flatnonzero((rng.random(values.size) < errors * rate) & (values != b""))
            values[rows] = ERROR_KINDS[kind](values[rows], rng)


def _move_some(columns: Columns, rate: float, rng: np.random.Generator) -> None:
    """Give some people another home, a fifth of them in another state. The columns are changed in place."""
    rows = np.flatnonzero(rng.random(columns["state"].size) < rate)
    home, _ = _find(np.array(households.STATES, "S4"), columns["state"][rows])
    waits = rng.exponential(size=(rows.size, len(households.STATES))) / np.array(households.STATE_SHARES)
    waits[np.arange(rows.size), home] = np.inf  # the least of the others picks each state in proportion to its share
    away = rng.random(rows.size) < MOVED_STATE
    for name, values in _draw_homes(np.where(away, np.argmin(waits, axis=1), home), rng).items():
        columns[name][rows] = values


@cache
def _near_keys() -> NDArray[np.uint8]:
    """For each character, six keys beside it on the keyboard, some repeated (128 x 6). The space bar lies below b, n, m and v."""
    table = np.tile(np.frombuffer(b"bnmvbn", np.uint8), (128, 1))
    keys = {key: complex(place + line / 2, line) for line, row in KEYBOARD.items() for place, key in enumerate(row)}
    for key, spot in keys.items():
        table[ord(key)] = np.resize([ord(other) for other, at in keys.items() if 0 < abs(at - spot) < 1.2], 6)
    return table


def _typo(values: Texts, rng: np.random.Generator) -> Texts:
    """Insert, drop, replace or transpose one letter of each text. Wrong letters come from neighbouring keys."""
    letters = values[:, None].view(np.uint8)
    n, width = letters.shape
    length = np.count_nonzero(letters, axis=1)[:, None]
    kind = np.where(length < 2, 1, rng.integers(0, 4, (n, 1)))
    insert, replace, drop, transpose = (kind == i for i in range(4))
    at = (rng.random((n, 1)) * (length - transpose)).astype(np.int64)
    place = np.arange(width)
    source = place + (drop & (place >= at)) - (insert & (place > at))
    source += (transpose & (place == at)).astype(np.int64) - (transpose & (place == at + 1))
    typed = np.take_along_axis(letters, np.minimum(source, width - 1), axis=1)
    key = _near_keys()[np.take_along_axis(letters, at, axis=1), rng.integers(0, 6, (n, 1))]
    struck = (place == np.minimum(at + insert, width - 1)) & (insert | replace)
    return np.where(struck, key, typed).view(values.dtype)[:, 0]


def _wrong_digit(values: Texts, rng: np.random.Generator) -> Texts:
    """Replace one digit of each text by another one."""
    letters = values[:, None].view(np.uint8).copy()
    is_digit = (letters >= 48) & (letters <= 57)
    rows, at = np.arange(values.size), np.argmax(rng.random(letters.shape) * is_digit, axis=1)
    letters[rows, at] = 48 + (letters[rows, at] - 48 + rng.integers(1, 10, values.size)) % 10
    return letters.view(values.dtype)[:, 0]


def _wrong_date(values: Texts, rng: np.random.Generator) -> Texts:
    """Replace one digit of each date, if the result is a date."""
    return _keep_dates(values, _wrong_digit(values, rng))


def _swap_day_month(values: Texts, rng: np.random.Generator) -> Texts:
    """Swap day and month of each date, if the result is a date."""
    letters = values[:, None].view(np.uint8)[:, [0, 1, 2, 3, 4, 8, 9, 7, 5, 6]]
    return _keep_dates(values, np.ascontiguousarray(letters).view(values.dtype)[:, 0])


def _keep_dates(values: Texts, changed: Texts) -> Texts:
    """Return the changed dates that exist, and the old ones otherwise: a form would have refused dates that do not exist."""
    return np.where(_find(_calendar(), changed)[1], changed, values)


def _replace_part(values: Texts, parts: list[tuple[bytes, bytes]], rng: np.random.Generator) -> Texts:
    """Replace one part of each text, chosen at random among the parts that occur in it."""
    has = np.stack([np.strings.find(values, old) >= 0 for old, _ in parts], axis=1)
    chosen = np.where(has.any(axis=1), np.argmax(rng.random(has.shape) * has, axis=1), -1)
    changed = values.copy()
    for part in np.unique(chosen[chosen >= 0]):
        rows, (old, new) = np.flatnonzero(chosen == part), parts[part]
        changed[rows] = np.strings.replace(values[rows], old, new, 1)
    return changed


def _nickname(values: Texts, rng: np.random.Generator) -> Texts:
    """Shorten the names that have a short form."""
    formal, short = np.array(sorted(_pairs(NICKNAMES)), dtype=NAME).T
    place, known = _find(formal, values)
    return np.where(known, short[place], values)


def _find(known: Texts, values: Texts) -> tuple[Integers, NDArray[np.bool_]]:
    """Position of each value in a sorted list, and whether the list has it."""
    place = np.minimum(np.searchsorted(known, values), known.size - 1)
    return place, known[place] == values


ERROR_KINDS: Mapping[str, Callable[[Texts, np.random.Generator], Texts]] = MappingProxyType(
    {
        "abbreviation": lambda values, rng: _replace_part(values, _pairs(ABBREVIATIONS), rng),
        "day_month": _swap_day_month,
        "initial": lambda values, rng: values.astype("S1"),
        "misreading": lambda values, rng: _replace_part(values, _pairs(MISREADINGS), rng),
        "missing": lambda values, rng: np.zeros_like(values),
        "nickname": _nickname,
        "typo": _typo,
        "wrong_date": _wrong_date,
        "wrong_digit": _wrong_digit,
    }
)
