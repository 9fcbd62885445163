"""Links in bands of like probabilities: groups, their accuracies, and lines where the accuracy depends on a regressor."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dplinked as dpl
from dplinked.errors import StudyError
from dplinked.linker.accuracies import known_accuracies, pool_small_strata
from dplinked.linker.audit import estimate_from_audit
from dplinked.linker.link import link
from dplinked.linker.linked import Linked
from dplinked.linker.rules import LAST, UNLINKED
from dplinked.linker.strata import band_links, make_strata
from dplinked.privacy import noise

SLOPE = 0.55


class Told(Linked):
    """Links whose one-to-one probabilities are those that they came with."""

    @property
    def _own_probability(self) -> NDArray[np.float64]:  # type: ignore[override]
        return np.asarray(1.0 / (1.0 + np.exp2(-self.links.score)))


def link_by_probability(n: int, rng: np.random.Generator, blocks: int = 4) -> tuple[Linked, NDArray[np.bool_]]:
    """Links made elsewhere, right with the probability that they come with, which falls with income; and whether each is right.

    Wrong links fall on rows of about the same probability: records are taken for others that are as poor.
    """
    income = rng.lognormal(10.2, 0.5, n)
    state = rng.integers(0, blocks, n)
    rank = np.argsort(np.argsort(income)) / n
    probability = np.clip(0.99 - 0.6 * rank * rng.beta(2.0, 2.0, n), 0.51, 0.99)
    partner, right = np.arange(n), rng.random(n) < probability
    for block in range(blocks):
        wrong = np.flatnonzero(~right & (state == block))
        wrong = wrong[np.argsort(probability[wrong] + rng.normal(0.0, 0.02, wrong.size))]
        partner[wrong] = np.roll(wrong, 1)
    left = {"income": income, "state": [f"s{k}" for k in state]}
    other = {"spent": 6_000 + SLOPE * income + 6_000 * rng.normal(size=n), "state": left["state"]}
    pairs = {"left": np.arange(1, n + 1), "right": partner + 1, "probability": probability}
    linked = link(left, other, method="pairs", pairs=pairs, block="state")
    return Told(**{field.name: getattr(linked, field.name) for field in fields(linked)}), right


def audit(linked: Linked, right: NDArray[np.bool_], size: int) -> Linked:
    """Answers that are the truth."""
    sample = linked.audit_sample(size).to_pydict()
    known = right[np.array(sample["left_id"], dtype=np.int64) - 1]
    return linked.audited({**sample, "correct": np.where(known, "yes", "no").tolist()})


def test_groups_are_divided_by_probability() -> None:
    linked, right = link_by_probability(4_000, np.random.default_rng(1))
    banded = linked.banded([0.7, 0.9])
    own, block = np.asarray(banded.rows["link_probability"]), banded.rows["link_block"].to_pylist()
    ends = {name: own[[one == name for one in block]] for name in set(block)}
    assert set(ends) == {f"s{k}, {band}" for k in range(4) for band in ("0 to 0.7", "0.7 to 0.9", "0.9 to 1")}
    for name, probability in ends.items():
        low, high = map(float, name.split(", ")[1].split(" to "))
        assert low <= probability.min() <= probability.max() <= high
    found = audit(banded, right, 1_500).linkage_by_identifiers(["name"]).accuracy
    assert isinstance(found, dict)
    for name, accuracy in found.items():
        truth = right[[one == name for one in block]].mean()
        assert accuracy == pytest.approx(truth, abs=0.08), name


def test_as_many_bands_as_asked_for_hold_equally_many_wrong_links() -> None:
    linked, right = link_by_probability(8_000, np.random.default_rng(2), blocks=1)
    banded = linked.banded(3)
    wrong = np.bincount(banded.strata.of_row, ~right)
    assert wrong.size == 3
    assert wrong / wrong.sum() == pytest.approx(np.full(3, 1 / 3), abs=0.05)


def test_bands_of_few_rows_join_the_next() -> None:
    blocks = np.array(["a"] * 200 + ["b"] * 60 + ["c"] * 10 + [LAST, UNLINKED], dtype=object)
    probability = np.concatenate(
        [np.repeat([0.1, 0.6, 0.9], [100, 20, 80]), np.repeat([0.6, 0.9], [50, 10]), np.full(12, 0.2)]
    )
    names, bands = band_links(blocks, probability, [0.5, 0.8])
    counts = {name: int((names == name).sum()) for name in dict.fromkeys(names)}
    assert counts == {"a, 0 to 0.5": 100, "a, 0.5 to 1": 100, "b, 0 to 1": 60, "c, 0 to 1": 10, LAST: 1, UNLINKED: 1}
    strata = make_strata(names, bands)
    assert dict(zip(strata.names, strata.kinds.tolist(), strict=True)) == {
        "a, 0 to 0.5": 0, "a, 0.5 to 1": 2, "b, 0 to 1": 2, "c, 0 to 1": 2, LAST: -1, UNLINKED: -1,
    }  # fmt: skip


def test_accuracies_are_drawn_towards_those_of_the_same_band() -> None:
    """A group with few checked links takes after its own band, not after all groups."""
    blocks = np.array(["a low"] * 100 + ["b low"] * 100 + ["a high"] * 100 + ["b high"] * 100, dtype=object)
    strata = make_strata(blocks, np.repeat([0, 1], 200))
    rows = np.concatenate([np.arange(80), [100, 101], np.arange(200, 280), [300, 301]])
    answers = np.concatenate([np.arange(80) % 2 == 0, [True, False], np.ones(82, bool)])
    found = estimate_from_audit(strata, rows, answers)
    shown = known_accuracies(strata, *pool_small_strata(strata, found), scale=0.0)["accuracy"]
    assert isinstance(shown, dict)
    for accuracy in (dict(zip(strata.names, found.accuracy, strict=True)), shown):
        assert accuracy["b low"] == pytest.approx(0.5, abs=0.1)
        assert accuracy["b high"] > 0.9


def test_what_cannot_be_divided_is_refused() -> None:
    linked, right = link_by_probability(2_000, np.random.default_rng(3), blocks=2)
    for bands in (1, 0.5, [], [0.9, 0.5], [0.0, 0.5], [0.5, 1.0], "thirds", True, [float("nan")]):
        with pytest.raises(StudyError, match="bands must be"):
            linked.banded(bands)  # type: ignore[arg-type]
    for done in (linked.banded(2), audit(linked, right, 200)):
        with pytest.raises(StudyError, match="before the answers"):
            done.banded(2)
    with pytest.raises(StudyError, match="too many for an accuracy each"):
        link_by_probability(4_000, np.random.default_rng(3), blocks=30)[0].banded([0.85])
    bare = link({"x": np.arange(9.0)}, {"y": np.arange(9.0)}, method="pairs", pairs={"left": [1], "right": [1]})
    with pytest.raises(StudyError, match="without probabilities"):
        bare.banded()


def test_accuracies_of_bands_are_released_for_links_that_are_held_fixed_only() -> None:
    linked, right = link_by_probability(2_000, np.random.default_rng(4), blocks=2)
    checked, budget = audit(linked.banded(2), right, 500), {"epsilon": 1.0, "delta": 1e-6}
    plenty = {**budget, "epsilon": 10.0}
    assert len(dpl.release_accuracy(checked, unit=dpl.PrivacyUnit(), **plenty).correct) == 4
    few = dpl.release_accuracy(checked, unit=dpl.PrivacyUnit(), **budget)  # bands stay apart, whatever noise there is
    assert list(few.correct) == ["(band 1)", "(band 2)"]
    with pytest.raises(StudyError, match="another band"):
        dpl.release_accuracy(checked, unit=dpl.PrivacyUnit(displaced_links=1), **budget)


def covers(linked: Linked, right: NDArray[np.bool_]) -> bool:
    """Whether a release with accuracies that an audit of identifiers found has the slope in its interval."""
    checked = audit(linked, right, 1_000)
    release = dpl.fit(
        checked.rows, "spent ~ income", linkage=checked.linkage_by_identifiers(["name"]), unit=dpl.PrivacyUnit(),
        bounds={"income": (0, 200_000), "spent": (-30_000, 150_000)}, epsilon=4.0, delta=1e-6,
    )  # fmt: skip
    low, high = release.conf_int()["income"]
    return low <= SLOPE <= high


@pytest.mark.slow
def test_bands_cover_where_the_accuracy_depends_on_a_regressor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage is at most .75 over blocks alone and at least .9 with five bands; 200 runs had .01 and .94, and .84 with three bands."""
    rng = np.random.default_rng(17)
    monkeypatch.setattr(
        noise, "add_gaussian", lambda v, s: np.asarray(v) + np.asarray(s) * rng.normal(size=np.shape(v))
    )
    found: list[Any] = []
    for _ in range(100):
        linked, right = link_by_probability(10_000, rng)
        found.append([covers(one, right) for one in (linked, linked.banded(5))])
    plain, banded = np.mean(found, axis=0)
    assert plain <= 0.75
    assert banded >= 0.9
