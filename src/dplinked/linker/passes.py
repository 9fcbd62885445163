"""Passes of blocking: which pairs are worth comparing where all of them are too many, and what each pass costs.

A pass compares the pairs that agree on its keys: a part of a date, how a name sounds, the first letters of a text. One pass loses every pair with an error
in its keys, so several are run, on different fields. Which ones follows from what they cost and from a simple model of errors, not from who was found.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.linker.fields import Comparer

Integers = NDArray[np.int64]

ALL_PAIRS = "all pairs"
_LEAST_BUDGET, _BUDGET_PER_ROW = (
    2_000_000,
    25,
)  # pairs that are compared at most, and how many for each record of the larger file
_MOST_PASSES = 12
_LEAST_GAIN = 0.001  # share of true pairs that a pass must add, by the model of errors
_SAMPLE = 5_000  # records of each file from which costs are foretold
_LEFT_OUT = 3  # passes that were too expensive, of which the report tells what they would cost
# The model of errors: how often a value is the same in both records of a person, how often it differs slightly, and how often a
# part of it then is the same. These are rough guesses; they decide in which order passes are tried, and nothing else.
_SAME, _SLIGHTLY_OFF, _PART_SAME = 0.6, 0.25, 0.55
_PATTERNS = 4_000


@dataclass(frozen=True)
class BlockingPass:
    """What one pass of blocking compared and found. FOR THE STEWARD: it is read from the files without noise.

    Attributes
    ----------
    name
        What pairs of this pass agree on.
    pairs
        How many pairs it compares, those of earlier passes too; about so many if it was not run. None if that is not known.
    found
        How many of them might be links and were found by no earlier pass. None if the pass was not run, being too expensive.
    linked
        How many links come from them.
    """

    name: str
    pairs: int | None
    found: int | None = None
    linked: int | None = None


@dataclass(frozen=True)
class Key:
    """A part of a field's value: its code in each record of the left and of the right file, -1 if it is missing, and whether it survives some errors."""

    name: str
    field: int
    left: Integers
    right: Integers
    lenient: bool

    def of(self, left: Integers, right: Integers) -> Key:
        """The key of some records alone."""
        return Key(self.name, self.field, self.left[left], self.right[right], self.lenient)


@dataclass(frozen=True)
class Plan:
    """A pass that is to be run, with the code that the records of a pair must share (-1: in no pair), and how many pairs do."""

    name: str
    left: Integers
    right: Integers
    pairs: int


# --- keys --------------------------------------------------------------------------------------------


def make_keys(comparers: Sequence[Comparer]) -> list[Key]:
    """The parts of the fields' values by which pairs can be found."""
    keys = []
    for place, comparer in enumerate(comparers):
        for part, values, lenient in _parts(comparer):
            known: dict[Any, int] = {}
            codes = [-1 if value is None else known.setdefault(value, len(known)) for value in values]
            of_value = np.array(
                [*codes, -1], dtype=np.int64
            )  # the last one stands for a missing value, whose code is -1
            sides = of_value[comparer.left], of_value[comparer.right]
            keys.append(Key(f"{comparer.field.name}{part}", place, *sides, lenient))
    return keys


def _parts(comparer: Comparer) -> Iterator[tuple[str, list[Any], bool]]:
    """For each key of a field: what it is, its value for each distinct value of the field, and whether it survives some errors."""
    values, compare = comparer.values, comparer.field.compare
    if compare == "date":
        year, month, day = (values[:, part].tolist() for part in range(3))
        either = [(y, min(m, d), max(m, d)) for y, m, d in zip(year, month, day, strict=True)]
        yield " (day, month either way)", either, False
        for name, parts in (
            ("year and month", (year, month)),
            ("month and day", (month, day)),
            ("year and day", (year, day)),
        ):
            yield f" ({name})", list(zip(*parts, strict=True)), True
        return
    if compare == "number":
        width = 2.0 * (comparer.field.near or 0.0)
        yield "", [float(value) if np.isfinite(value) else None for value in values], False
        for name, shift in (("about the same", 0.0), ("about the same, shifted", 0.5)) if width > 0.0 else ():
            steps = np.floor(values / width + shift)
            yield f" ({name})", [float(step) if np.isfinite(step) else None for step in steps], True
        return
    texts = values.tolist()
    yield "", texts, False
    for name, part in _TEXT_PARTS.get(comparer.field.kind or "text", ()):
        yield f" ({name})", [part(text) or None for text in texts], True


def _sound(text: str) -> str:
    """How the first word of a text sounds, roughly: the classes of its first four consonants, and whether it starts with a vowel."""
    word = unicodedata.normalize("NFKD", text).partition(" ")[0].replace("ph", "f")
    classes = [_CLASSES.get(letter, "") for letter in word if "a" <= letter <= "z"]
    heard = [one for one, before in zip(classes, ["", *classes], strict=False) if one and one != before]
    return ("a" if classes and not classes[0] else "") + "".join(heard[:4])


_CLASSES = {
    letter: group[0] for group in ("bp", "fvw", "cgkqjxsz", "dt", "l", "mn", "r") for letter in group
}  # letters that are often heard or read as each other
_TEXT_PARTS: dict[str, tuple[tuple[str, Callable[[str], str]], ...]] = {
    "name": (("sound", _sound), ("first letters", lambda text: text[:3]), ("last letters", lambda text: text[-3:])),
    "text": (("sound", _sound), ("first letters", lambda text: text[:4]), ("last letters", lambda text: text[-4:])),
    "id": (
        ("first half", lambda text: text[: (len(text) + 1) // 2]),
        ("second half", lambda text: text[len(text) // 2 :]),
    ),
    "postcode": (("without last letter", lambda text: text[:-1]), ("last letters", lambda text: text[1:])),
}


# --- which passes ------------------------------------------------------------------------------------


def pair_budget(left: int, right: int, least: int) -> int:
    """How many pairs of two files of so many records are compared at most: so many for each record, and `least` in small files."""
    return max(least, _BUDGET_PER_ROW * max(left, right))


def choose_passes(keys: Sequence[Key], budget: int) -> tuple[list[Plan], list[BlockingPass]]:
    """Choose the passes that find most for what they cost, and name some that would cost too much.

    Notes
    -----
    Considered are single keys, and two keys of different fields together. By a model of errors, each pass finds a share of the true pairs. Passes are
    taken one after the other, each time the one that adds most to what the passes before it find for what it costs, where each pass also costs an even part of
    the budget; until the budget is used up or hardly anything is added. If all pairs fit into the budget, the only pass is all of them.
    """
    n, m = keys[0].left.size, keys[0].right.size
    if n * m <= budget:
        return [Plan(ALL_PAIRS, np.zeros(n, np.int64), np.zeros(m, np.int64), n * m)], []
    options: list[tuple[Key, ...]] = [(key,) for key in keys]
    options += [(one, other) for one, other in combinations(keys, 2) if one.field != other.field]
    costs = _foretell_costs(options)
    finds = _modelled_finds(keys, options)
    chosen, spent, missed = list[int](), 0.0, np.ones(_PATTERNS, dtype=bool)
    while len(chosen) < _MOST_PASSES:
        gains = finds[:, missed].sum(axis=1) / _PATTERNS
        open_ones = (gains >= _LEAST_GAIN) & (spent + costs <= budget)
        if not open_ones.any():
            break
        best = int(np.argmax(np.where(open_ones, gains / (costs + budget / _MOST_PASSES), -1.0)))
        chosen.append(best)
        spent += costs[best]
        missed &= ~finds[best]
    if not chosen:  # all of them cost more than is allowed: the cheapest is better than none
        chosen = [int(np.argmin(costs))]
    gains = finds[:, missed].sum(axis=1) / _PATTERNS
    dear = [
        k for k in np.argsort(-gains, kind="stable").tolist() if gains[k] >= _LEAST_GAIN and spent + costs[k] > budget
    ]
    return [plan_pass(options[k]) for k in chosen], [
        BlockingPass(_pass_name(options[k]), round(costs[k])) for k in dear[:_LEFT_OUT]
    ]


def _pass_name(keys: Sequence[Key]) -> str:
    return ", ".join(key.name for key in keys)


def plan_pass(keys: Sequence[Key]) -> Plan:
    """The pass of some keys, which a pair must all share."""
    left, right = _joint_codes(keys)
    return Plan(_pass_name(keys), left, right, _count_pairs(left, right))


def _joint_codes(keys: Sequence[Key]) -> tuple[Integers, Integers]:
    """One code for the keys together, -1 where one of them is missing."""
    n = keys[0].left.size
    joint, missing = np.zeros(n + keys[0].right.size, dtype=np.int64), np.zeros(n + keys[0].right.size, dtype=bool)
    for key in keys:
        codes = np.concatenate([key.left, key.right])
        missing |= codes < 0
        joint = np.unique(joint * (codes.max(initial=0) + 2) + codes + 1, return_inverse=True)[1].astype(np.int64)
    joint[missing] = -1
    return joint[:n], joint[n:]


def _count_pairs(left: Integers, right: Integers) -> int:
    """How many pairs share a code."""
    size = int(max(left.max(initial=-1), right.max(initial=-1))) + 1
    counts = [np.bincount(codes[codes >= 0], minlength=size) for codes in (left, right)]
    return int(counts[0] @ counts[1])


def _foretell_costs(options: Sequence[tuple[Key, ...]]) -> NDArray[np.float64]:
    """About how many pairs each pass compares, from some of the records."""
    first = options[0][0]
    some = [
        np.unique(np.linspace(0, size - 1, min(size, _SAMPLE)).astype(np.int64))
        for size in (first.left.size, first.right.size)
    ]
    scale = first.left.size * first.right.size / (some[0].size * some[1].size)
    sampled = {id(key): key.of(*some) for key in {id(key): key for keys in options for key in keys}.values()}
    return np.array([scale * _count_pairs(*_joint_codes([sampled[id(key)] for key in keys])) for keys in options])


def _modelled_finds(keys: Sequence[Key], options: Sequence[tuple[Key, ...]]) -> NDArray[np.bool_]:
    """Whether each pass would find each of many simulated true pairs, by the model of errors (passes × pairs)."""
    rng = np.random.default_rng(0)
    state = {field: rng.random(_PATTERNS) for field in sorted({key.field for key in keys})}
    agrees = {}
    for key in keys:
        slightly = (state[key.field] < _SAME + _SLIGHTLY_OFF) & (rng.random(_PATTERNS) < _PART_SAME * key.lenient)
        agrees[id(key)] = (state[key.field] < _SAME) | slightly
    return np.array([np.logical_and.reduce([agrees[id(key)] for key in keys]) for keys in options])


# --- pairs -------------------------------------------------------------------------------------------


def pairs_of(plan: Plan, most: int) -> Iterator[tuple[Integers, Integers]]:
    """The pairs of a pass, by positions, about `most` at a time."""
    order = np.argsort(plan.right, kind="stable")
    codes = plan.right[order]
    rows = np.flatnonzero(plan.left >= 0)
    start, end = (np.searchsorted(codes, plan.left[rows], side=side) for side in ("left", "right"))
    counts = end - start
    cut = np.searchsorted(np.cumsum(counts), np.arange(most, counts.sum() + most, most), side="left") + 1
    for part in np.split(np.arange(rows.size), np.minimum(cut, rows.size)):
        if size := int(counts[part].sum()):
            ends = np.cumsum(counts[part])
            within = np.arange(size) - np.repeat(ends - counts[part], counts[part])
            yield np.repeat(rows[part], counts[part]), order[np.repeat(start[part], counts[part]) + within]
