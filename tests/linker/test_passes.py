"""Passes of blocking: which pairs they find, what they cost, and what is linked by what is left over."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.linker.fields import Comparer, Field, make_comparer
from dplinked.linker.passes import ALL_PAIRS, choose_passes, make_keys, pair_budget, pairs_of
from dplinked.linker.rules import FURTHER, LAST, LATE, settle_groups
from dplinked.simulate import two_files

NAMES = ["given_name", "surname", "date_of_birth"]


def comparer(field: Field, left: list, right: list) -> Comparer:
    return make_comparer(field, *(pa.chunked_array([pa.array(texts, pa.string())]) for texts in (left, right)))


def shared(field: Field, one: str | None, other: str | None) -> set[str]:
    """The keys that two values of a field share."""
    keys = make_keys([comparer(field, [one], [other])])
    return {key.name for key in keys if key.left[0] == key.right[0] >= 0}


@pytest.mark.parametrize(
    ("field", "one", "other", "keys"),
    [
        (Field("x", "date"), "1990-05-12", "1990-12-05", {"x (day, month either way)"}),
        (Field("x", "date"), "1990-05-12", "1990-05-13", {"x (year and month)"}),
        (Field("x", "date"), "1990-05-12", "1991-05-12", {"x (month and day)"}),
        (Field("x", "name"), "Philips", "fillips", {"x (sound)", "x (last letters)"}),
        (Field("x", "name"), "anderson", "andersen", {"x (sound)", "x (first letters)"}),
        (Field("x", "name"), "", None, set()),
        (Field("x", "id"), "1234567", "1234560", {"x (first half)"}),
        (Field("x", "postcode"), "2600", "2601", {"x (without last letter)"}),
        (Field("x", "number"), "100", "100.9", {"x (about the same)", "x (about the same, shifted)"}),
        (Field("x", "number"), "nothing", "nothing", set()),
        (Field("x", "name"), "王芳", "王芳", {"x", "x (first letters)", "x (last letters)"}),
    ],
)  # fmt: skip
def test_keys_survive_the_errors_they_are_for(field: Field, one: str, other: str, keys: set[str]) -> None:
    assert shared(field, one, other) == keys


def plans_of(files, names: list[str], budget: int):
    comparers = [comparer(Field(name), files.left[name].to_pylist(), files.right[name].to_pylist()) for name in names]
    return choose_passes(make_keys(comparers), budget)


@pytest.mark.parametrize("names", [NAMES, ["date_of_birth", "address"], ["surname", "postcode"]])
def test_several_passes_find_most_pairs_within_their_budget(names: list[str]) -> None:
    """Pairs of the same date alone would find less than three quarters of these people."""
    files = two_files(3_000, 11, errors=2.0)
    plans, _ = plans_of(files, names, 2_000_000)
    found = np.logical_or.reduce([(plan.left == plan.right[files.truth]) & (plan.left >= 0) for plan in plans])
    assert len(plans) > 2
    assert sum(plan.pairs for plan in plans) <= 2_000_000
    assert found.mean() > 0.93


def test_passes_say_what_they_cost_and_list_each_pair_once() -> None:
    files = two_files(400, 12)
    plans, dear = plans_of(files, NAMES, 2_000)
    for plan in plans:
        wanted = {(i, j) for i, a in enumerate(plan.left) for j, b in enumerate(plan.right) if a == b >= 0}
        left, right = (np.concatenate(part) for part in zip(*pairs_of(plan, 7), strict=True))
        assert plan.pairs == left.size == len(wanted)
        assert set(zip(left.tolist(), right.tolist(), strict=True)) == wanted
    assert dear
    assert all(one.found is None and one.pairs > 0 for one in dear)


def test_all_pairs_are_one_pass_where_they_fit() -> None:
    files = two_files(100, 13)
    plans, dear = plans_of(files, NAMES, pair_budget(100, 100, 10_000))
    assert [(plan.name, plan.pairs) for plan in plans] == [(ALL_PAIRS, 10_000)]
    assert not dear


# --- what is left over --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files():
    return two_files(1_500, 14, errors=2.0)


def link_dates(files, **options):
    fields = ["given_name", "surname", "postcode", "address"]
    return dpl.link(files.left, files.right, fields=fields, id="id", block="date_of_birth", **options)


@pytest.mark.parametrize("memory", [2e9, 1e5])
def test_evidence_below_the_threshold_is_used(files, memory: float) -> None:
    """A wrong date of birth puts a third of these people into another block. Most are found again, whether all pairs fit into memory or not."""
    linked = link_dates(files, memory=memory)
    right, block = linked.links.right == files.truth, linked.links.block
    assert np.isin(block, LATE).mean() > 0.3
    assert right.mean() > 0.97
    k = linked.strata.names.index(FURTHER)
    assert linked.estimates[0].accuracy[k] == pytest.approx(right[block == FURTHER].mean(), abs=0.03)
    same = (
        np.array(files.left["date_of_birth"].to_pylist())
        == np.array(files.right["date_of_birth"].to_pylist())[linked.links.right]
    )
    below = linked.links.below
    assert below.any()
    assert same[below].all()
    assert same[(block == FURTHER) & ~below].mean() < 0.02  # a few random ones may have joined them
    assert (block[below] == FURTHER).all()  # few people share a date of birth


def test_links_below_the_threshold_stay_in_their_block(files) -> None:
    """Wrong ones among them bring responses of their own block: in a group of all blocks they would resemble their rows wherever blocks differ."""
    fields = ["given_name", "surname", "date_of_birth"]
    linked = dpl.link(files.left, files.right, fields=fields, id="id", block="state", threshold=2.5)
    state, block, below = np.array(files.left["state"].to_pylist(), object), linked.links.block, linked.links.below
    assert below.sum() > 100
    assert (block[below] == state[below]).all()


def test_further_passes_are_run_where_pairs_are_too_many(files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dplinked.linker.leftovers.pair_budget", lambda *_: 10_000)
    linked = link_dates(files, memory=1e5)
    names = [one.name for one in linked.passes if one.found is not None]
    assert names[:2] == ["within blocks", "left over: within blocks"]
    assert sum(name.startswith("left over: ") for name in names) > 3
    assert (linked.links.right == files.truth).mean() > 0.95


def test_passes_tell_what_was_found(files) -> None:
    linked = link_dates(files)
    ran = [one for one in linked.passes if one.found is not None]
    assert sum(one.linked for one in ran) == np.isfinite(linked.links.score).sum() > 1_400  # all but those at random
    assert all(one.linked <= one.found <= one.pairs for one in ran)
    for one in ran:
        assert one.name in linked.summary()
    with pytest.raises(AttributeError):
        linked.passes = ()


def test_groups_of_few_rows_join_others() -> None:
    block = np.array(["x"] * 5 + ["y"] * 12 + [FURTHER] * 30 + [LAST], dtype=object)
    below = np.isin(np.arange(block.size), (0, 1, 5))
    settle_groups(block, np.arange(block.size), below)
    assert block.tolist() == [FURTHER] * 2 + ["x"] * 3 + ["y"] * 12 + [FURTHER] * 31
    alone = np.array(["x", LAST], dtype=object)
    settle_groups(alone, np.arange(2), np.zeros(2, dtype=bool))
    assert alone.tolist() == ["x", LAST]


# --- Splink --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_splink_finds_people_whose_dates_differ() -> None:
    """Every date is a day off: a pass on the same date would find no pair at all."""
    rng = np.random.default_rng(15)
    days = np.datetime64("1950-01-01") + rng.integers(0, 20_000, 500)
    names = np.array(["".join(rng.choice(list("abcdefghijklmnop"), 9)) for _ in range(500)])
    left = {"id": np.arange(500), "date_of_birth": days.astype(str), "memo": names}
    right = {
        "id": np.arange(500),
        "date_of_birth": (days + 1).astype(str),
        "memo": names,
        "spending": rng.normal(size=500),
    }
    linked = dpl.link(left, right, id="id", fields=["date_of_birth", "memo"], method="splink")
    assert (linked.links.right == np.arange(500)).mean() > 0.99


@pytest.mark.slow
def test_splink_finds_more_in_several_passes() -> None:
    files = two_files(3_000, 16, errors=2.0)
    linked = dpl.link(files.left, files.right, id="id", fields=NAMES, method="splink")
    assert (linked.links.right == files.truth).mean() > 0.88
    assert "method='rules' compares every one of them" in " ".join(linked.summary().split())
    assert any(one.name.startswith("left over") for one in linked.passes)
