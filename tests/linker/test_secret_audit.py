"""Links that were drawn in secret: who is drawn, what comes back, what is refused, and what the ledger books."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.ledger.costs import budget_units, cost
from dplinked.linkage.secret_sample import SecretSample
from dplinked.linker import audit as drawing
from dplinked.linker import release_accuracy
from dplinked.linker.audit import _position_hashes, seed_key
from dplinked.linker.files import linkage_section
from dplinked.linker.release_accuracy import ReleasedAccuracy
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.quantities.right_links import release_secret_links
from dplinked.privacy.secret_sample import calibrate_sample, secret_delta, secret_epsilon
from dplinked.sums.clipped import SecretLinks

COUNT, SIZE = 2_000, 200
UNIT = dpl.PrivacyUnit(displaced_links=1)
KEY = hashlib.sha256(b"key").digest()
BUDGET: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "unit": UNIT}


def key_number(k: int) -> bytes:
    return hashlib.sha256(b"key %d" % k).digest()


@pytest.fixture(autouse=True)
def nothing_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins like a process that released nothing."""
    monkeypatch.setattr(release_accuracy, "_RELEASED", {})


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


def mark(sample: pa.Table) -> pa.Table:
    return sample.append_column("secret", pa.array(["yes"] * sample.num_rows))


def drawn_by(linked: dpl.Linked, key: bytes) -> np.ndarray:
    drawn = np.zeros(COUNT, dtype=bool)
    drawn[[int(left) for left in linked.audit_sample(SIZE, key=key)["left_id"].to_pylist()]] = True
    return drawn


def check_key_decides(linked: dpl.Linked) -> None:
    """Over keys each row is drawn with the same chance, and two rows independently (bounds of 5 standard errors)."""
    keys = 60
    drawn = np.array([drawn_by(linked, key_number(k)) for k in range(keys)])
    rate, pair = SIZE / COUNT, drawn[:, ::2] & drawn[:, 1::2]
    assert abs(drawn.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / drawn.size)
    assert abs(pair.mean() - rate**2) < 5 * math.sqrt(rate**2 / pair.size)
    assert drawn.mean(axis=0).max() < rate + 6 * math.sqrt(rate * (1 - rate) / keys)


def test_the_key_decides_who_is_drawn(linked) -> None:
    check_key_decides(linked)


@pytest.mark.parametrize("fault", ["public", "groups of their own rate"])
def test_a_sample_that_is_public_or_uneven_is_caught(linked, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    hashes = _position_hashes
    if fault == "public":
        monkeypatch.setattr(drawing, "_position_hashes", lambda n, key: hashes(n, seed_key(0)))
    else:
        monkeypatch.setattr(
            drawing, "_position_hashes", lambda n, key: hashes(n, key) * np.where(np.arange(n) < 40, 0.05, 1.0)
        )
    with pytest.raises(AssertionError):
        check_key_decides(linked)


def test_a_key_file_is_made_once_and_for_its_owner_alone(linked, tmp_path: Path) -> None:
    key = tmp_path / "audit.key"
    with pytest.raises(dpl.StudyError, match="holds no audit's key"):
        linked.audited(mark(answer(linked.audit_sample(SIZE))), key=key, size=SIZE)
    first, again = linked.audit_sample(SIZE, key=key), linked.audit_sample(SIZE, key=str(key))
    assert first.equals(again)
    assert os.name != "posix" or key.stat().st_mode & 0o077 == 0
    assert audit(linked, key).audit.secret.rate == SIZE / COUNT
    assert not first.equals(linked.audit_sample(SIZE, key=tmp_path / "other.key"))


def fix_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let NumPy's noise of a seed stand in for the exact sampler's, which has none."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(
        "dplinked.privacy.noise.add_gaussian", lambda v, s: np.asarray(v) + np.asarray(s) * rng.normal(size=np.shape(v))
    )


def test_released_accuracies_are_near_and_say_how_near(linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors over keys and noise, in units of what is stated: their mean square is near 1 (within 5 standard errors of 40 draws, which are fixed; groups borrow from each other)."""
    fix_noise(monkeypatch)
    group = linked.strata.of_row
    truth = np.array([np.mean([is_right(str(k)) for k in np.flatnonzero(group == g)]) for g in range(2)])
    errors = []
    for k in range(40):
        paid = dpl.release_accuracy(audit(linked, key_number(k)), **BUDGET)
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
    with pytest.raises(dpl.StudyError, match="has the column 'secret'"):
        linked.audited(public, key=KEY, size=SIZE)  # a public sample cannot be passed off as a secret one
    with pytest.raises(dpl.StudyError, match="not all the links that the key draws"):
        linked.audited(mark(public), key=KEY, size=SIZE)
    with pytest.raises(dpl.StudyError, match="not all the links that the key draws"):
        linked.audited(sample.slice(1), key=KEY, size=SIZE)
    with pytest.raises(dpl.StudyError, match="not all the links that the key draws"):
        linked.audited(sample, key=KEY, size=SIZE // 2)
    with pytest.raises(dpl.StudyError, match="give both"):
        linked.audited(sample, key=KEY)
    with pytest.raises(dpl.StudyError, match=r"no clear answer.*without a key, a line may be taken out"):
        linked.audited(linked.audit_sample(SIZE, key=KEY), key=KEY, size=SIZE)
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
    paid.append(dpl.release_accuracy(audit(linked, key_number(1)), **{**options, "epsilon": 0.2}))
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
        dpl.release_accuracy(audit(linked, key_number(2)), **{**options, "epsilon": 0.05})
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
        dpl.release_accuracy(audit(linked, key_number(1)), **{**options, "epsilon": 1.5})


def test_neither_key_nor_sample_shows(linked) -> None:
    checked = audit(linked)
    told = repr(checked) + repr(checked.audit) + repr(checked.audit.secret)
    told += dpl.release_accuracy(checked, **BUDGET).to_json()
    assert checked.audit.secret.tag not in told
    assert KEY.hex() not in told
    assert repr(KEY) not in told
    assert "checked" not in repr(checked.audit)


def test_reports_show_nothing_that_was_found_and_files_are_their_owners(linked, tmp_path: Path) -> None:
    checked = audit(linked)
    public = linked.audited(answer(linked.audit_sample(SIZE)))
    figures = [f"{int(part.sum()):,}" for part in (checked.audit.checked, checked.audit.correct)]
    figures += [f"{value:.3f}" for value in (*checked.audit.accuracy, *checked.audit.low, *checked.audit.overall)]
    for report in (checked.summary(), checked.to_html()):
        assert not [figure for figure in figures if figure in report]
        assert "What was found stands in no report" in report
        assert "more of them checked" not in " ".join(report.split())
    shown = public.summary()
    assert f"{public.audit.low[0]:.3f}" in shown
    assert "more of them checked" in " ".join(shown.split())
    previous = os.umask(0o022)
    try:
        linked.save(tmp_path / "drawn", audit_sample=SIZE, key=tmp_path / "audit.key")
        checked.save(tmp_path / "checked")
        public.save(tmp_path / "public", audit_sample=SIZE)
    finally:
        os.umask(previous)
    if os.name == "posix":
        for folder in ("drawn", "checked", "public"):
            assert {path.stat().st_mode & 0o777 for path in (tmp_path / folder).iterdir()} == {0o600}


def test_the_key_is_not_written_over(linked, tmp_path: Path) -> None:
    for name in ("audit.csv", "quality.txt", "accuracy.json"):
        with pytest.raises(dpl.StudyError, match="would be overwritten"):
            linked.save(tmp_path, audit_sample=SIZE, key=tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", [b"short", b"\0" * 32, b"01" * 16, b"password12345678", bytes(range(5)) * 4])
def test_keys_that_can_be_guessed_are_refused(linked, key: bytes) -> None:
    with pytest.raises(dpl.StudyError, match="can be guessed"):
        linked.audit_sample(SIZE, key=key)


def test_random_keys_are_taken_also_as_digits(linked) -> None:
    for key in (KEY[:16], KEY.hex().encode()):
        assert linked.audit_sample(SIZE, key=key).num_rows > 0


# --- samples of any size, groups of any kind -----------------------------------------------------------


def link_partly(*, last: bool) -> dpl.Linked:
    """1,000 rows of which twelve have a partner, the others none; with `last`, one link crosses blocks."""
    names = ["".join(chr(97 + byte % 26) for byte in key_number(k)[:8]) for k in range(1_000)]
    ids, places = [str(k) for k in range(1_000)], ["u"] * 11 + ["v" if last else "u"]
    left = {"id": ids, "name": names, "place": ["u"] * 1_000}
    right = {"id": ids[:12], "name": names[:12], "place": places}
    if last:
        return dpl.link(left, right, fields=["name"], id="id", block="place")
    pairs = {"left": ids[:12], "right": ids[:12]}
    return dpl.link(left, right, fields=["name"], id="id", method="pairs", pairs=pairs)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("secret", [True, False])
def test_rows_without_partners_do_not_stop_a_release(last: bool, secret: bool) -> None:
    linked = link_partly(last=last)
    assert ("(further)" in linked.strata.names, "(unlinked)" in linked.strata.names) == (last, True)
    key = {"key": KEY} if secret else {}
    sample = answer(linked.audit_sample(900, **key))
    checked = linked.audited(sample, **key, **({"size": 900} if secret else {}))
    paid = dpl.release_accuracy(checked, **{**BUDGET, "unit": dpl.PrivacyUnit()})
    assert set(paid.linkage.accuracy) == set(linked.strata.names)
    assert paid.linkage.accuracy["(unlinked)"] == pytest.approx(1.0 / 988)


def test_an_empty_sample_is_released_like_any_other(tmp_path: Path) -> None:
    """Were it refused, every release would tell that its sample was not empty."""
    linked = link_partly(last=True)
    ledger = dpl.Ledger.create(tmp_path / "budget.db", "people", epsilon=1.0, delta=1e-6)
    for source in linked.sources:
        ledger.register(source)
    empty = [k for k in range(40) if linked.audit_sample(10, key=key_number(k)).num_rows == 0]
    for k in empty[:2]:  # two that are empty are not the same sample, and the second is not answered by the first
        linked.save(tmp_path / "out", audit_sample=10, key=key_number(k))
        assert len((tmp_path / "out" / "audit.csv").read_text(encoding="utf-8").splitlines()) == 1
        checked = linked.audited(tmp_path / "out" / "audit.csv", key=key_number(k), size=10)
        assert "stands in no report" in checked.summary()
        paid = dpl.release_accuracy(
            checked, epsilon=0.2, delta=1e-6, unit=dpl.PrivacyUnit(), ledger=tmp_path / "budget.db"
        )
        assert len(paid.correct) <= 2  # so few links do not bear noise on a count for each group
    with pytest.raises(dpl.StudyError, match="no answers"):
        linked.audited(linked.audit_sample(10).slice(0, 0))


def test_links_across_blocks_have_a_guess_of_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the rows is linked across blocks, half of them rightly. Means over 30 keys and fixed draws, within 5 standard errors; with another guess, a row would move the counts further than was paid for."""
    count = 300
    ids = [str(k) for k in range(count)]
    names = ["".join(chr(97 + byte % 26) for byte in key_number(k)[:8]) for k in range(count)]
    left = {"id": ids, "name": names, "place": ["u"] * count}
    right = {**left, "place": ["v" if k % 3 == 0 else "u" for k in range(count)]}
    linked = dpl.link(left, right, fields=["name"], id="id", block="place")
    assert dict(zip(linked.strata.names, linked.strata.rows.tolist(), strict=True)) == {"(further)": 100, "u": 200}
    found, guesses = [], []
    fix_noise(monkeypatch)

    def noted(private: SecretLinks, sample: SecretSample, guess: np.ndarray) -> np.ndarray:
        guesses.append(guess.tolist())
        return release_secret_links(private, sample, guess)

    monkeypatch.setattr(release_accuracy, "release_secret_links", noted)
    for k in range(30):
        sample = linked.audit_sample(60, key=key_number(k))
        right_ones = ["yes" if int(one) % 3 or int(one) % 2 else "no" for one in sample["left_id"].to_pylist()]
        sample = sample.set_column(sample.column_names.index("correct"), "correct", pa.array(right_ones))
        paid = dpl.release_accuracy(linked.audited(sample, key=key_number(k), size=60), **{**BUDGET, "epsilon": 8.0})
        found.append(paid.correct["(further)"] / paid.checked["(further)"])
    assert guesses == [[0.5, release_accuracy.GUESS]] * 30
    error = math.sqrt(20 * 0.25 + paid.scale**2) / 20
    assert abs(np.mean(found) - 0.5) < 5 * error / math.sqrt(30)
    assert 0.6 * error < np.std(found) < 1.5 * error


# --- one release from one sample -----------------------------------------------------------------------


def test_a_second_release_without_a_ledger_is_refused(linked, book, tmp_path: Path) -> None:
    checked = audit(linked)
    dpl.release_accuracy(checked, **BUDGET)
    for other in (checked, audit(linked)):  # read back anew, it is the same sample
        for place in ({}, {"ledger": tmp_path / "budget.db"}):
            with pytest.raises(dpl.StudyError, match="made from this secret sample before"):
                dpl.release_accuracy(other, **BUDGET, **place)
    assert book.verify().spent == 0
    dpl.release_accuracy(audit(linked, key_number(1)), **BUDGET, ledger=tmp_path / "budget.db")
    with pytest.raises(dpl.StudyError, match="made from this secret sample before"):
        dpl.release_accuracy(audit(linked, key_number(1)), **BUDGET)


def test_the_list_of_a_secret_sample_is_nothing_without_its_key(linked, book, tmp_path: Path) -> None:
    """Its column says so; without the column, the ledger knows the rows again, whichever way they were read first."""
    sample, ledger = answer(linked.audit_sample(SIZE, key=KEY)), {"ledger": tmp_path / "budget.db"}
    with pytest.raises(dpl.StudyError, match="has the column 'secret'"):
        linked.audited(sample)
    bare = linked.audited(sample.drop_columns(["secret"]))
    dpl.release_accuracy(audit(linked), **{**BUDGET, "epsilon": 0.2}, **ledger)
    with pytest.raises(dpl.StudyError, match="charged from this secret sample before"):
        dpl.release_accuracy(bare, **{**BUDGET, "epsilon": 0.2}, **ledger)
    other = answer(linked.audit_sample(SIZE, key=key_number(1))).drop_columns(["secret"])
    dpl.release_accuracy(linked.audited(other), **{**BUDGET, "epsilon": 0.2}, **ledger)
    with pytest.raises(dpl.StudyError, match="charged from this secret sample before"):
        dpl.release_accuracy(audit(linked, key_number(1)), **{**BUDGET, "epsilon": 0.2}, **ledger)
    dpl.release_accuracy(linked.audited(other), **{**BUDGET, "epsilon": 0.3}, **ledger)  # public twice: that adds up
    assert len([event for event in book.events() if event.kind == "charge"]) == 3


@pytest.mark.parametrize("size", [SIZE, SIZE // 2])
def test_a_key_is_good_for_one_sample_of_one_population(linked, book, tmp_path: Path, size: int) -> None:
    ledger = {**BUDGET, "epsilon": 0.2, "ledger": tmp_path / "budget.db"}
    other = dpl.Ledger.create(tmp_path / "budget.db", "others", epsilon=1.0, delta=1e-6)
    for source in linked.sources:
        other.register(source)
    dpl.release_accuracy(audit(linked), **ledger, population="people")
    again = linked.audited(answer(linked.audit_sample(size, key=KEY)), key=KEY, size=size)
    for population in ("people", "others") if size != SIZE else ("others",):
        with pytest.raises(dpl.StudyError, match="charged from this secret sample before"):
            dpl.release_accuracy(again, **ledger, population=population)
    assert other.verify().spent == 0
    dpl.release_accuracy(audit(linked, key_number(1)), **ledger, population="others")


def test_rows_that_may_agree_by_chance_are_not_compared(linked) -> None:
    few = link_partly(last=True)
    small = few.audited(answer(few.audit_sample(10, key=KEY)), key=KEY, size=10)
    assert release_accuracy._told_apart(small)[1] is None
    tag, rows = release_accuracy._told_apart(audit(linked))
    assert (tag, rows[0], len(rows) - 1) == (
        hashlib.sha256(b"tag" + KEY).hexdigest(),
        COUNT,
        drawn_by(linked, KEY).sum(),
    )


def test_a_secret_release_made_elsewhere_is_booked_as_it_is(linked, book, tmp_path: Path) -> None:
    """At the budget's δ, a hundredth of its own, it needs more than a Gaussian release of its ε and δ."""
    sample = calibrate_sample(0.02, 2, 0.9, 0.3, 1e-4)
    with pytest.raises(dpl.StudyError, match="their linkage"):
        book.book_sample(0.3, note="a mu")
    book.book_sample(sample, note="elsewhere")
    spent = book.verify().spent
    assert spent > cost(privacy_mu(0.3, 1e-4))
    later = dpl.release_accuracy(audit(linked), **{**BUDGET, "epsilon": 0.1}, ledger=tmp_path / "budget.db")
    mu = privacy_mu(book.verify().epsilon_left, 1e-6)
    assert (
        secret_delta([sample, later.linkage.paid], 1.0, mu)
        <= 1e-6
        < secret_delta([sample, later.linkage.paid], 1.0, mu * 1.01)
    )


def test_a_fit_of_a_small_delta_beside_a_secret_sample(linked) -> None:
    paid = dpl.release_accuracy(audit(linked), **BUDGET)
    rng = np.random.default_rng(1)
    rows = {"x": rng.random(COUNT), "y": rng.random(COUNT), "link_block": linked.rows["link_block"].to_pylist()}
    bounds = {"x": (0, 1), "y": (0, 1)}
    release = dpl.fit(rows, "y ~ x", linkage=paid.linkage, unit=UNIT, bounds=bounds, epsilon=0.5, delta=1e-16)
    total = secret_epsilon([paid.linkage.paid], 1e-16, release.privacy.mu)
    assert f"({math.ceil(total * 1000) / 1000:.4g}, 1e-16)" in release.privacy.statement
