"""Links that were drawn in secret: who is drawn, what comes back, what is refused, and what the ledger books."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.ledger.costs import budget_units
from dplinked.linkage.secret_sample import SecretSample
from dplinked.linker import quality
from dplinked.linker.files import linkage_section
from dplinked.linker.release_accuracy import ReleasedAccuracy
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities.right_links import release_secret_links
from dplinked.privacy.secret_sample import secret_delta, secret_epsilon
from dplinked.sums.linked_rows import SecretLinks

COUNT, SIZE = 2_000, 200
KEY = b"sixteen bytes or more"
UNIT = dpl.PrivacyUnit(displaced_links=1)
BUDGET: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": UNIT}


@pytest.fixture(scope="module")
def linked() -> dpl.Linked:
    """Links in two groups; the answers below say that seven of eight are right."""
    ids = [str(k) for k in range(COUNT)]
    place = ["north" if k % 3 else "south" for k in range(COUNT)]
    files = [{"id": ids, "name": ids, "place": place} for _ in range(2)]
    return dpl.link(*files, fields=["name"], id="id", block="place", method="pairs", pairs={"left": ids, "right": ids})


def is_right(left: str) -> bool:
    return int(left) % 8 > 0


def answer(sample: pa.Table) -> pa.Table:
    found = ["yes" if is_right(left) else "no" for left in sample["left_id"].to_pylist()]
    return sample.set_column(sample.column_names.index("correct"), "correct", pa.array(found))


def audit(linked: dpl.Linked, key: Any = KEY) -> dpl.Linked:
    return linked.audited(answer(linked.audit_sample(SIZE, key=key)), key=key, size=SIZE)


def drawn_by(linked: dpl.Linked, key: bytes) -> np.ndarray:
    drawn = np.zeros(COUNT, dtype=bool)
    drawn[[int(left) for left in linked.audit_sample(SIZE, key=key)["left_id"].to_pylist()]] = True
    return drawn


def check_key_decides(linked: dpl.Linked) -> None:
    """Over keys each row is drawn with the same chance, and two rows independently (bounds of 5 standard errors)."""
    keys = 60
    drawn = np.array([drawn_by(linked, b"key number %06d of many" % k) for k in range(keys)])
    rate, pair = SIZE / COUNT, drawn[:, ::2] & drawn[:, 1::2]
    assert abs(drawn.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / drawn.size)
    assert abs(pair.mean() - rate**2) < 5 * math.sqrt(rate**2 / pair.size)
    assert drawn.mean(axis=0).max() < rate + 6 * math.sqrt(rate * (1 - rate) / keys)


def test_the_key_decides_who_is_drawn(linked) -> None:
    check_key_decides(linked)


@pytest.mark.parametrize("fault", ["public", "groups of their own rate"])
def test_a_sample_that_is_public_or_uneven_is_caught(linked, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    hashes = quality._position_hashes
    if fault == "public":
        monkeypatch.setattr(quality, "_position_hashes", lambda n, key: hashes(n, quality.seed_key(0)))
    else:
        monkeypatch.setattr(
            quality, "_position_hashes", lambda n, key: hashes(n, key) * np.where(np.arange(n) < 40, 0.05, 1.0)
        )
    with pytest.raises(AssertionError):
        check_key_decides(linked)


def test_a_key_file_is_made_once_and_for_its_owner_alone(linked, tmp_path: Path) -> None:
    key = tmp_path / "audit.key"
    with pytest.raises(dpl.StudyError, match="holds no audit's key"):
        linked.audited(answer(linked.audit_sample(SIZE)), key=key, size=SIZE)
    first, again = linked.audit_sample(SIZE, key=key), linked.audit_sample(SIZE, key=str(key))
    assert first.equals(again)
    assert os.name != "posix" or key.stat().st_mode & 0o077 == 0
    assert audit(linked, key).audit.secret.rate == SIZE / COUNT
    assert not first.equals(linked.audit_sample(SIZE, key=tmp_path / "other.key"))


def test_released_accuracies_are_near_and_say_how_near(linked) -> None:
    """Errors over keys and noise, in units of what is stated: their mean square is near 1 (within 5 standard errors of 40 draws; groups borrow from each other)."""
    group = linked.strata.of_row
    truth = np.array([np.mean([is_right(str(k)) for k in np.flatnonzero(group == g)]) for g in range(2)])
    errors = []
    for k in range(40):
        paid = dpl.release_accuracy(audit(linked, b"key number %06d of many" % k), **BUDGET)
        told, error = (np.array(list(v.values())) for v in (paid.linkage.accuracy, paid.linkage.accuracy_error))
        errors.append(np.mean(((told - truth) / error) ** 2))
        assert sum(paid.checked.values()) == pytest.approx(SIZE)
    assert abs(np.mean(errors) - 1.0) < 5 * math.sqrt(2 / len(errors))
    plain = dpl.release_accuracy(linked.audited(answer(linked.audit_sample(SIZE))), **BUDGET)
    assert paid.scale < plain.scale / 3.0


def test_the_model_travels_and_the_fit_states_the_sum(linked, tmp_path: Path) -> None:
    paid = dpl.release_accuracy(audit(linked), **BUDGET)
    assert ReleasedAccuracy.from_json(paid.to_json()) == paid
    assert paid.mu is None
    assert "rests on a secret" in paid.statement
    section = linkage_section(paid.linkage)
    study = (
        "[model]\nformula = 'y ~ x'\n[bounds]\nx = [0, 1]\ny = [0, 1]\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"
        f"[unit]\ndisplaced_links = 1\n{section}"
    )
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    declared = dpl.Study.from_toml(tmp_path / "study.toml")
    assert declared.linkage == paid.linkage
    rng = np.random.default_rng(1)
    rows = {"x": rng.random(COUNT), "y": rng.random(COUNT), "link_block": linked.rows["link_block"].to_pylist()}
    release = dpl.fit_study(declared, rows)
    total = secret_epsilon([paid.linkage.paid], 1e-6, release.privacy.mu)
    assert 1.0 < total < 1.5
    assert f"({math.ceil(total * 1000) / 1000:.4g}, 1e-06)" in release.privacy.statement
    assert "drawn in secret" in release.privacy.statement
    assert dpl.Release.from_json(release.to_json()) == release
    guess = (1.0 + secret_delta([paid.linkage.paid], 0.0, release.privacy.mu)) / 2.0
    assert f"{math.ceil(1000.0 * guess) / 10.0:g} %" in release.to_html()


def test_what_would_break_the_promise_is_refused(linked, tmp_path: Path) -> None:
    sample = answer(linked.audit_sample(SIZE, key=KEY))
    public = answer(linked.audit_sample(SIZE, seed=3))
    with pytest.raises(dpl.StudyError, match="not by both"):
        linked.audit_sample(SIZE, seed=3, key=KEY)
    with pytest.raises(dpl.StudyError, match="not all the links that the key draws"):
        linked.audited(public, key=KEY, size=SIZE)  # a public sample cannot be passed off as a secret one
    with pytest.raises(dpl.StudyError, match="not all the links that the key draws"):
        linked.audited(sample.slice(1), key=KEY, size=SIZE)
    with pytest.raises(dpl.StudyError, match="not all the links that the key draws"):
        linked.audited(sample, key=KEY, size=SIZE // 2)
    with pytest.raises(dpl.StudyError, match="give both"):
        linked.audited(sample, key=KEY)
    with pytest.raises(dpl.StudyError, match="random bytes or more"):
        linked.audit_sample(SIZE, key=b"short")
    with pytest.raises(dpl.StudyError, match="path of a file, or random bytes"):
        linked.audit_sample(SIZE, key=7)
    checked = audit(linked)
    with pytest.raises(dpl.StudyError, match="drawn in secret"):
        checked.linkage_by_identifiers(["name"])
    with pytest.raises(dpl.StudyError, match="Nothing tells how good"):
        _ = checked.linkage
    for unit in (dpl.PrivacyUnit(moves_block=True), dpl.PrivacyUnit(displaced_links=1, linkage_change=2.0)):
        with pytest.raises(dpl.StudyError, match="may change their groups"):
            dpl.release_accuracy(checked, **{**BUDGET, "unit": unit})
    with pytest.raises(dpl.StudyError, match="from 0 to 1"):
        dpl.release_accuracy(checked, **BUDGET, guess=1.5)
    with pytest.raises(dpl.StudyError, match="belongs to links that were drawn in secret"):
        dpl.release_accuracy(linked.audited(public), **BUDGET, guess=0.5)


def test_a_guess_that_moves_counts_further_than_was_paid_for_is_refused() -> None:
    private = SecretLinks(np.array([5]), np.array([6]), 100)
    sample = SecretSample(0.1, 2, 3.0, 0.8)
    assert release_secret_links(private, sample, np.array([0.5])).shape == (1,)
    with pytest.raises(dpl.ReleaseError, match="further than was paid for"):
        release_secret_links(private, sample, np.array([0.1]))


def test_a_fit_of_another_unit_is_refused(linked) -> None:
    paid = dpl.release_accuracy(audit(linked), **BUDGET).linkage
    settings: dict[str, Any] = {"formula": "y ~ x", "bounds": {"x": (0, 1), "y": (0, 1)}, "epsilon": 1.0, "delta": 1e-6}
    dpl.Study(linkage=paid, unit=UNIT, **settings).prepare()
    with pytest.raises(dpl.StudyError, match="displaces at most 1 link"):
        dpl.Study(linkage=paid, unit=dpl.PrivacyUnit(displaced_links=2), **settings).prepare()
    whole = paid.describe_whole()
    whole.pop("model")
    with pytest.raises(dpl.StudyError, match="too few for 2 displaced"):
        dpl.ELE(**{**whole, "displaced_links": 2})


@pytest.fixture
def book(linked, tmp_path: Path) -> dpl.Ledger:
    ledger = dpl.Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    for source in linked.sources:
        ledger.register(source)
    return ledger


def test_the_ledger_keeps_the_budget_of_all_together(linked, book, tmp_path: Path) -> None:
    options = {**BUDGET, "ledger": tmp_path / "budget.db"}
    paid = [dpl.release_accuracy(audit(linked), **{**options, "epsilon": 0.2})]
    paid.append(dpl.release_accuracy(audit(linked, b"another key of some bytes"), **{**options, "epsilon": 0.2}))
    samples = [one.linkage.paid for one in paid]
    assert all(isinstance(sample, SecretSample) for sample in samples)
    left = book.verify()
    assert left.total == budget_units(1.0, 1e-6)
    mu = privacy_mu(left.epsilon_left, 1e-6)
    charge = book.reserve("the rest", {"all": "of it"}, mu)
    book.record(charge, "{}")
    assert secret_delta(samples, 1.0, mu) <= 1e-6
    assert secret_delta(samples, 1.0, mu * 1.01) > 1e-6  # and nothing is left over
    with pytest.raises(dpl.BudgetError):
        dpl.release_accuracy(audit(linked, b"a third key of some bytes"), **{**options, "epsilon": 0.05})
    book.verify()


def test_the_ledger_refuses_a_second_release_from_one_sample(linked, book, tmp_path: Path) -> None:
    options = {**BUDGET, "ledger": tmp_path / "budget.db"}
    paid, spent = dpl.release_accuracy(audit(linked), **options, release_id="accuracy"), book.verify().spent
    assert dpl.release_accuracy(audit(linked), **options, release_id="accuracy") == paid
    for other in ({"again": True}, {"epsilon": 0.4}, {"guess": 0.8}):
        with pytest.raises(dpl.StudyError, match="from this secret sample before"):
            dpl.release_accuracy(audit(linked), **{**options, **other})
    assert book.verify().spent == spent
    with pytest.raises(dpl.BudgetError):
        dpl.release_accuracy(audit(linked, b"another key of some bytes"), **{**options, "epsilon": 1.5})


def test_neither_key_nor_sample_shows(linked) -> None:
    checked = audit(linked)
    told = repr(checked) + repr(checked.audit.secret) + dpl.release_accuracy(checked, **BUDGET).to_json()
    assert checked.audit.secret.tag not in told
    assert KEY.decode() not in told
