"""Reviewing links: every answer is on disk, a second reviewer is blind to the first, and differences are settled."""

from __future__ import annotations

import csv
import itertools
import os
import re
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dplinked as dpl
from dplinked.linker.audit import read_answers, read_audit, write_audit
from dplinked.linker.differences import find_difference
from dplinked.linker.reviewing import (
    ReviewList,
    begin_settling,
    cohens_kappa,
    compare_reviewers,
    found_so_far,
    is_settling,
    open_review,
    write_list,
)
from dplinked.simulate import review_links, two_files

FILES = two_files(1_000, seed=2, errors=2.0, overlap=0.97)
LINKED = dpl.link(
    FILES.left, FILES.right.slice(0, 960), fields=["given_name", "surname", "date_of_birth"], id="id", block="state"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LINKED.save(tmp_path, audit_sample=200)
    return tmp_path


def fill(review: ReviewList, answers: str) -> None:
    """Answer open links by letters, in their order."""
    letters = {"y": "yes", "n": "no", "u": "unsure"}
    for place, letter in zip(review.open_places, answers, strict=False):
        review.answer(place, letters[letter])


def test_every_answer_is_in_the_file_at_once(folder: Path) -> None:
    review = ReviewList(folder / "audit.csv")
    assert sorted(review.places) == [k for k, (_, right) in enumerate(review.ids) if right]
    assert list(review.places) != sorted(review.places)
    first, second, third = review.places[:3]
    for place, answer in ((first, "yes"), (second, "no"), (third, "unsure")):
        review.answer(place, answer)
        again = ReviewList(folder / "audit.csv")
        assert again.answer_of(place) == answer
        assert again.places == review.places
    assert len(review.open_places) == len(review.places) - 3
    assert os.listdir(folder).count("audit.csv") == 1
    assert not [name for name in os.listdir(folder) if name.startswith(".audit")]


def test_nothing_but_answers_changes(folder: Path) -> None:
    before = read_audit(folder / "audit.csv")
    review = ReviewList(folder / "audit.csv")
    fill(review, "yn")
    after = read_audit(folder / "audit.csv")
    assert after.drop_columns(["correct"]).to_pylist() == before.drop_columns(["correct"]).to_pylist()
    assert after.column_names == before.column_names


FORMULAS = [
    '=HYPERLINK("http://example.org","x")', "-2+3", "@SUM(A1)", "+49 30 1234", "-", "\t=1", " =1", "\n=1", "'=1", "''=1", "＝1",
    "'", "'Hara", "O'Hara", "a=b", "", " ", "7", "-5", "na", None,
]  # fmt: skip
_TAKEN_AS_FORMULA = re.compile(r"\s*([=+@＝＋－＠]|-(?!\d+$))")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_lists_hold_no_formulas_and_give_their_texts_back(tmp_path: Path, kind: pa.DataType) -> None:
    names = pa.array(FORMULAS, pa.string()).cast(kind)
    table = pa.table({"=left": names, "number": pa.array(range(-3, len(FORMULAS) - 3)), "correct": ["yes"] * len(FORMULAS)})  # fmt: skip
    write_audit(table, tmp_path / "list.csv")
    with (tmp_path / "list.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.reader(file))
    assert [name for name in written[0] if _TAKEN_AS_FORMULA.match(name)] == []
    assert [line[0] for line in written[1:] if _TAKEN_AS_FORMULA.match(line[0])] == []
    assert written[1][0] == "'" + FORMULAS[0]
    assert written[1][1] == "-3"  # numbers stay numbers
    again = read_audit(tmp_path / "list.csv")
    assert again.column_names == table.column_names
    assert [cell or "" for cell in again["=left"].to_pylist()] == [cell or "" for cell in FORMULAS]
    write_list(again, tmp_path / "again.csv")
    assert read_audit(tmp_path / "again.csv").equals(again)
    with (tmp_path / "again.csv").open(encoding="utf-8", newline="") as file:
        assert [line[1] for line in csv.reader(file)] == [line[1] for line in written]


@given(st.lists(st.text(alphabet="'=+-@a \t1＝", max_size=6), min_size=1))
def test_any_text_comes_back_from_a_list(tmp_path_factory: pytest.TempPathFactory, cells: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    write_audit(pa.table({"name": ["x", *cells], "correct": ["yes"] * (len(cells) + 1)}), path)
    assert [cell or "" for cell in read_audit(path)["name"].to_pylist()] == ["x", *cells]


def test_links_of_people_whose_names_are_formulas_are_reviewed(tmp_path: Path) -> None:
    """In the list that a linkage writes, in the browser's lists, and when it is read back."""
    left = FILES.left.slice(0, 300)
    at, name = left.column_names.index("surname"), left["surname"].to_pylist()
    ids = ["-" + one if k % 2 else "+" + one for k, one in enumerate(map(str, left["id"].to_pylist()))]
    left = left.set_column(at, "surname", pa.array(["=" + one if one else one for one in name]))
    left = left.set_column(left.column_names.index("id"), "id", pa.array(ids))
    linked = dpl.link(left, FILES.right.slice(0, 300), fields=["given_name", "surname", "date_of_birth"], id="id")
    linked.save(tmp_path, audit_sample=60)
    drawn = linked.audit_sample(60)
    with (tmp_path / "audit.csv").open(encoding="utf-8", newline="") as file:
        assert not [cell for line in csv.reader(file) for cell in line if cell.startswith(("=", "+", "-", "@"))]
    review = open_review(tmp_path)
    assert [one for one, _ in review.ids] == drawn["left_id"].to_pylist()
    fill(review, "y" * len(review.places))
    second = open_review(tmp_path, "second")
    assert [one for one, _ in second.ids] == drawn["left_id"].to_pylist()
    assert review.pair(review.places[0]).fields[1][2] == drawn["surname (left)"].to_pylist()[review.places[0]]
    assert linked.audited(tmp_path / "audit.csv").audit is not None


def test_a_finished_list_is_what_the_library_reads_back(folder: Path) -> None:
    """The same accuracies as if the answers had been written by hand."""
    wanted = review_links(read_audit(folder / "audit.csv"), FILES)
    truth = dict(zip(wanted["left_id"].to_pylist(), wanted["correct"].to_pylist(), strict=True))
    review = ReviewList(folder / "audit.csv")
    for place in review.places:
        review.answer(place, truth[review.ids[place][0]])
    mine, theirs = LINKED.audited(folder / "audit.csv").audit, LINKED.audited(wanted).audit
    assert mine is not None
    assert theirs is not None
    assert mine.overall == theirs.overall
    assert mine.rows.tolist() == theirs.rows.tolist()
    assert mine.answers.tolist() == theirs.answers.tolist()


def test_unsure_counts_as_no() -> None:
    assert read_answers(["yes", "Unsure", "no"]).tolist() == [True, False, False]
    with pytest.raises(dpl.StudyError, match="unsure counts as no"):
        read_answers(["perhaps"])


def test_undo_takes_back_what_was_answered_last(folder: Path) -> None:
    review = ReviewList(folder / "audit.csv")
    a, b = review.places[0], review.places[7]
    review.answer(b, "yes")
    review.answer(a, "no")
    review.answer(b, "unsure")
    assert (review.undo(), review.answer_of(b)) == (b, "yes")
    assert (review.undo(), review.answer_of(a)) == (a, None)
    assert (review.undo(), review.answer_of(b)) == (b, None)
    assert review.undo() is None
    fill(review, "yyy")
    later = ReviewList(folder / "audit.csv")  # after a restart: the one before the link that is shown
    assert later.undo(later.places[3]) == later.places[2]
    assert later.undo(later.places[1]) == later.places[0]
    assert [later.answer_of(place) for place in later.places[:3]] == [None, "yes", None]


def test_answers_of_a_spreadsheet_are_gone_on_with(folder: Path) -> None:
    """Other separators and spellings, and cells that nobody understands, which stay as they are."""
    table = read_audit(folder / "audit.csv")
    review = ReviewList(folder / "audit.csv")
    a, b, c = review.places[:3]
    cells: list[str | None] = [None] * table.num_rows
    cells[a], cells[b] = "Y", "who knows"
    table = table.set_column(table.column_names.index("correct"), "correct", pa.array(cells))
    pyarrow.csv.write_csv(table, folder / "audit.csv", pyarrow.csv.WriteOptions(delimiter=";"))
    review.answer(c, "no")  # written by another program meanwhile, and read again
    assert [review.answer_of(place) for place in (a, b, c)] == ["yes", None, "no"]
    kept = read_audit(folder / "audit.csv")["correct"].to_pylist()
    assert (kept[b], kept[c]) == ("who knows", "no")


def test_what_is_no_list_is_refused(folder: Path) -> None:
    with pytest.raises(dpl.StudyError, match=r"no list of links 'absent\.csv'"):
        ReviewList(folder / "absent.csv")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(dpl.StudyError, match="is no list of links"):
        ReviewList(folder / "other.csv")
    review = ReviewList(folder / "audit.csv")
    with pytest.raises(dpl.StudyError, match="no such link"):
        review.answer(10_000, "yes")
    with pytest.raises(dpl.StudyError, match="no such link"):
        review.answer(review.places[0], "perhaps")  # type: ignore[arg-type]
    LINKED.save(folder, audit_sample=60, seed=9)
    with pytest.raises(dpl.StudyError, match="holds other links now"):
        review.answer(review.places[0], "yes")


def test_a_list_that_cannot_be_written_stays_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    review = ReviewList(folder / "audit.csv")
    before = (folder / "audit.csv").read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dplinked.linker.reviewing.os.fsync", fail)
    with pytest.raises(dpl.StudyError, match="could not be written"):
        review.answer(review.places[0], "yes")
    assert (folder / "audit.csv").read_bytes() == before
    assert review.answer_of(review.places[0]) is None
    assert not [name for name in os.listdir(folder) if name.startswith(".audit")]


def test_a_secret_list_stays_secret(tmp_path: Path) -> None:
    LINKED.save(tmp_path, audit_sample=100, key=tmp_path / "audit.key")
    review = open_review(tmp_path)
    fill(review, "y" * 200)
    open_review(tmp_path, "second")
    assert found_so_far(review) is None
    for name in ("audit.csv", "audit-second.csv"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert LINKED.audited(tmp_path / "audit.csv", key=tmp_path / "audit.key", size=100).audit is not None


def test_what_answers_tell_so_far(folder: Path) -> None:
    review = ReviewList(folder / "audit.csv")
    assert found_so_far(review) is None
    fill(review, "y" * 17 + "nuu")
    found = found_so_far(review)
    assert found is not None
    assert (found.right, found.wrong, found.unsure, found.share, found.at_most) == (17, 1, 2, 0.85, 0.95)
    assert (found.low, found.high) == pytest.approx((0.6211, 0.9679), abs=1e-4)  # Clopper and Pearson's of 17 of 20


def test_links_drawn_by_levels_are_weighed(tmp_path: Path) -> None:
    LINKED.save(tmp_path, audit_sample=150, audit_by="region")
    review = open_review(tmp_path)
    chance = [float(cell) for cell in review.table["chance"].to_pylist()]
    fill(review, "ynyyn" * 40)
    given = [place for place in review.places if review.answer_of(place) is not None]
    weights = [1 / chance[place] for place in given]
    right = [1 / chance[place] for place in given if review.answer_of(place) == "yes"]
    assert found_so_far(review).share == pytest.approx(sum(right) / sum(weights))


# --- two reviewers -----------------------------------------------------------------------------------


def test_the_second_reviewer_starts_from_nothing(folder: Path) -> None:
    fill(open_review(folder), "yny")
    second = open_review(folder, "second")
    assert second.open_places == list(second.places)
    assert not set(second.table["correct"].to_pylist()) & {"yes", "unsure"}
    fill(second, "nn")
    assert len(open_review(folder, "second").open_places) == len(second.places) - 2  # and is gone on with
    assert len(open_review(folder).open_places) == len(second.places) - 3


def test_differences_are_settled_before_the_list_is_read_back(folder: Path) -> None:
    first, second = open_review(folder), open_review(folder, "second")
    n = len(first.places)
    fill(first, "y" * (n - 10) + "n" * 10)
    with pytest.raises(dpl.StudyError, match="answers are still missing"):
        begin_settling(folder)
    fill(second, "y" * (n - 12) + "u" * 2 + "n" * 8 + "y" * 2)
    found = compare_reviewers(folder)
    assert (found.both, found.same, found.open, len(found.differ)) == (n, n - 4, 0, 4)
    begin_settling(folder)
    assert is_settling(folder)
    with pytest.raises(dpl.StudyError, match="no clear answer"):
        LINKED.audited(folder / "audit.csv")
    settled = open_review(folder, "settled")
    assert set(settled.places) == set(found.differ)
    fill(settled, "ynuy")
    assert compare_reviewers(folder) == found  # of what both said apart, not of what was settled
    begin_settling(folder)  # again, which changes nothing
    assert open_review(folder, "settled").open_places == []
    assert LINKED.audited(folder / "audit.csv").audit is not None


def test_links_are_not_drawn_over_answers(folder: Path) -> None:
    fill(open_review(folder, "second"), "y")
    before = (folder / "audit.csv").read_bytes()
    with pytest.raises(dpl.StudyError, match=r"audit-second\.csv' holds a reviewer's answers"):
        LINKED.save(folder, audit_sample=60, seed=9)
    assert (folder / "audit.csv").read_bytes() == before


def test_a_second_list_of_other_links_is_begun_anew(folder: Path) -> None:
    open_review(folder, "second")
    (folder / "audit.csv").unlink()
    (folder / "audit-second.csv").rename(folder / "kept.csv")
    LINKED.save(folder, audit_sample=60, seed=9)
    (folder / "kept.csv").rename(folder / "audit-second.csv")
    assert open_review(folder, "second").ids == open_review(folder).ids


def test_kappa_is_agreement_beyond_chance() -> None:
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)  # the textbook's table: .7 found, .5 expected
    assert cohens_kappa([("yes", "yes"), ("no", "no"), ("unsure", "unsure")]) == 1.0
    assert cohens_kappa([("yes", "no"), ("no", "yes")]) == pytest.approx(-1.0)
    assert cohens_kappa([("yes", "yes")] * 3) is None
    assert cohens_kappa([]) is None


# --- letter by letter --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [("smith", "smith", "the same"), ("Smith ", "smith", "the same but for capitals or blanks"), ("smith", "smyth", "1 character differs"),
     ("smith", "smit", "1 character differs"), ("1990-04-01", "1990-01-04", "the same in another order"), ("1990-04-01", "1990-10-04", "3 characters differ"), ("anna maria", "maria anna", "the same in another order"), ("anna", "zoe", "different"), (None, "x", "missing on the left"),
     ("x", " ", "missing on the right"), (None, "", "missing on both"), ("İstanbul", "Istanbul", "1 character differs")],
)  # fmt: skip
def test_differences_are_said(left: str | None, right: str | None, says: str) -> None:
    found = find_difference(left, right)
    assert "".join(part.text for part in found.left) == (left or "")
    assert "".join(part.text for part in found.right) == (right or "")
    assert found.says == says


def test_the_letters_that_differ_are_marked() -> None:
    found = find_difference("johnston", "johnson")
    assert [part.text for part in found.left if not part.same] == ["t"]
    assert [part.text for part in found.right if not part.same] == []
    for one, other in itertools.permutations(["maria", "marie", "mara"], 2):
        found = find_difference(one, other)
        alike = ["".join(part.text for part in side if part.same) for side in (found.left, found.right)]
        assert alike[0] == alike[1]
