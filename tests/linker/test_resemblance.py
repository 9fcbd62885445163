"""The diagnosis flags links that are not exchangeable, and leaves those alone that are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linker.link import link
from dplinked.linker.linked import Linked

NOT_EXCHANGEABLE = ["areas", "relatives", "some relatives", "poor records"]
EXCHANGEABLE = ["states", "miswritten states", "names", "lognormal", "few fields"]


def draw_people(design: str, rng: np.random.Generator, n: int) -> tuple[dict[str, Any], NDArray[np.float64], Any]:
    """Identifiers of families of four, what is known of everybody, and how often identifiers are written wrongly in the other file."""
    family = np.arange(n) // 4
    area, state = (rng.integers(0, count, n // 4)[family] for count in (40, 4))
    names = n // 4 if "relatives" in design else n // 25  # relatives have a surname of their own
    people = {
        "surname": rng.integers(0, names, n // 4)[family],
        "given": rng.integers(0, 30, n),
        "area": area,
        "year": rng.integers(0, 60, n),
        "state": state,
    }
    income, rate = rng.normal(size=n), np.full(n, 0.25)
    if design == "areas":
        income += rng.normal(0, 3.0, 40)[area]
    elif "relatives" in design:
        alike = rng.random(n) < (0.5 if design.startswith("some") else 1.0)
        income += 2.0 * alike * rng.normal(size=n // 4)[family]
    elif design == "poor records":
        rate = np.where(income < 0.0, 0.45, 0.05)
    elif "states" in design:
        income += 3.0 * state
    elif design == "lognormal":
        income = np.exp(1.5 * income)
    return people, income, rate


def link_files(design: str, seed: int, n: int = 2_000) -> Linked:
    """Link two files about the same people by fields that are compared as they are."""
    rng = np.random.default_rng(seed)
    people, income, rate = draw_people(design, rng, n)
    written, order = {}, rng.permutation(n)
    for name, values in people.items():
        states = 0.4 if design == "miswritten states" else 0.0
        often = {"area": 0.2, "given": 1.4 if "relatives" in design else 1.0, "state": states}.get(name, 1.0)
        written[name] = np.where(rng.random(n) < often * rate, rng.permutation(values), values)[order]
    fields = ["surname", "given", "area"] + ["year"] * (design not in ("few fields", "relatives", "some relatives"))
    left = people | {"income": income, "person": np.arange(n)}
    right = written | {"person": order}
    return link(left, right, fields=dict.fromkeys(fields, "id"), id="person", block="state", threshold=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("design", [*NOT_EXCHANGEABLE, *EXCHANGEABLE])
def test_links_that_are_not_exchangeable_are_flagged_and_no_others(design: str) -> None:
    """By chance, a measure is rarely 3.5 standard errors away: once in two thousand times.

    If incomes follow the state, links are exchangeable within states: those below the threshold too, whose wrong partners are of their state. Where states are miswritten, partners of
    such rows are in the group of records that are linked across states, and are of the row's own state: like the rows that the correction takes them from, not like their group.
    """
    found = link_files(design, 1).resemblance(["income"])["income"]
    assert found.flagged == (design not in EXCHANGEABLE), found
    assert bool(found.advice) == found.flagged


def link_pairs(left: dict[str, Any], probability: NDArray[np.float64] | float) -> Linked:
    """Link the even rows with a record each, with that probability; the row after each of them competes for its record with what remains."""
    n = len(left["income"])
    own = np.broadcast_to(probability, n // 2)
    pairs = {
        "left": np.concatenate([np.arange(1, n, 2), np.arange(2, n + 1, 2)]),
        "right": np.tile(np.arange(1, n // 2 + 1), 2),
        "probability": np.concatenate([own, 1.0 - own]),
    }
    return link(left, {"y": np.zeros(n // 2)}, method="pairs", pairs=pairs)


def twins(values: NDArray[Any]) -> NDArray[Any]:
    """Each value twice."""
    return np.repeat(values, 2)


def test_the_measure_is_one_for_twins_and_none_for_strangers() -> None:
    rng, n = np.random.default_rng(5), 2_000
    left = {
        "income": rng.lognormal(size=n),
        "sex": rng.choice(["f", "m"], n),
        "age": twins(rng.lognormal(size=n // 2)),
        "town": twins(rng.choice(["Aa", "Bern", "Chur"], n // 2)),
        "day": twins(np.datetime64("2020-01-01") + np.arange(n // 2)),
        "rent": twins(rng.lognormal(size=n // 2)) * rng.lognormal(size=n),
    }
    found = link_pairs(left, 0.8).resemblance()
    assert list(found) == list(left)
    assert [found[name].measure for name in ("age", "town", "day")] == pytest.approx([1.0, 1.0, 1.0], abs=0.01)
    assert 0.4 < found["rent"].measure < 0.6
    assert all(0.02 < one.error < 0.05 for one in found.values())
    assert [name for name, one in found.items() if not one.flagged] == ["income", "sex"]
    assert not any(one.depends for one in found.values())


def test_an_error_is_the_spread_that_chance_has() -> None:
    """Over values that have nothing to do with links, the measure, which is cut at 0, spreads as its error says."""
    rng, n = np.random.default_rng(6), 400
    names = ["income", *map(str, range(99))]
    found = list(link_pairs({name: rng.normal(size=n) for name in names}, 0.8).resemblance(names).values())
    spread = np.sqrt(2.0 * np.mean([one.measure**2 for one in found]))
    assert spread == pytest.approx(np.mean([one.error for one in found]), rel=0.35)


def test_an_accuracy_that_depends_on_a_column_is_flagged() -> None:
    rng, n = np.random.default_rng(7), 2_000
    income, age = rng.normal(size=(2, n))
    left = {"income": income, "age": age, "poor": np.where(income < 0, "yes", "no")}
    found = link_pairs(left, np.where(income[::2] < 0, 0.7, 0.9)).resemblance()
    poor, rich = (p**2 / (p**2 + (1.0 - p) ** 2) for p in (0.7, 0.9))  # one of the two rows has the record
    assert found["income"].change == pytest.approx(rich - poor, abs=0.01)
    assert abs(found["poor"].change) == pytest.approx(rich - poor, abs=0.01)
    assert [name for name, one in found.items() if one.depends] == ["income", "poor"]
    assert "banded" in found["income"].advice
    assert not found["age"].advice


def test_the_report_says_which_columns_stand_out() -> None:
    rng, n = np.random.default_rng(8), 1_000
    linked = link_pairs({"income": twins(rng.normal(size=n // 2)), "age": rng.normal(size=n)}, 0.8)
    text, page = " ".join(linked.summary().split()), linked.to_html()
    assert "Do wrong links resemble their rows?" in text
    assert "income: Wrong links bring responses of rows like their own" in text
    assert "age: " not in text
    assert "0 % of these competing rows are in the group of their rival" in text  # here they stay without a record
    assert "Wrong links bring responses" in page


def test_rows_that_compete_within_their_group_are_counted() -> None:
    """Of six rows, each linked with a record of its own, one pair competes within a block and one across blocks."""
    n = 6
    pairs = {
        "left": [*range(1, n + 1), 2, 1, 4, 3],
        "right": [*range(1, n + 1), 1, 2, 3, 4],
        "probability": [0.6] * n + [0.6] * 4,
    }
    left = {"x": np.arange(6.0), "town": ["a", "a", "a", "b", "b", "b"]}
    linked = link(left, {"y": np.arange(6.0), "town": left["town"]}, method="pairs", pairs=pairs, block="town")
    assert linked.resemblance(["x"])["x"].within == pytest.approx(0.5, abs=0.01)


def test_columns_that_tell_nothing_are_not_flagged() -> None:
    n = 200
    left = {"income": np.ones(n), "none": [None] * n, "few": [1.0] + [None] * (n - 1)}
    found = link_pairs(left, 0.8).resemblance(["income", "none", "few"])
    assert not any(one.flagged for one in found.values())


def test_what_cannot_be_compared_is_refused() -> None:
    linked = link_pairs({"income": np.arange(50.0)}, 0.8)
    with pytest.raises(StudyError, match="Did you mean 'income'"):
        linked.resemblance(["incme"])
    with pytest.raises(StudyError, match="list of names"):
        linked.resemblance("income")
    bare = link({"x": np.arange(9.0)}, {"y": np.arange(9.0)}, method="pairs", pairs={"left": [1], "right": [1]})
    with pytest.raises(StudyError, match="without probabilities"):
        bare.resemblance(["x"])
