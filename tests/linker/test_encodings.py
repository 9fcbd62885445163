"""Encodings: what they keep, what they hide, and what is refused."""

from __future__ import annotations

import os
import stat
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from threadpoolctl import threadpool_limits

import dplinked as dpl
from dplinked.encodings import Encoded, answer_audit, audit_lists, compare_answers, join_encoded, new_key
from dplinked.errors import StudyError
from dplinked.linker.encodings import compare
from dplinked.linker.encodings.encode import read_encodings
from dplinked.linker.encodings.schema import EncodedField, read_schema
from dplinked.linker.encodings.tokens import normalise, tokens
from dplinked.simulate import TwoFiles, two_files

FIELDS = {"given_name": "name", "surname": "name", "date_of_birth": "date", "postcode": "postcode", "address": "text"}


@pytest.fixture(scope="module")
def files() -> TwoFiles:
    return two_files(1_500, seed=11, errors=1.5)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "secret.key"
    new_key(path)
    return path


def both(files: TwoFiles, key: Path, **settings: Any) -> tuple[Encoded, Encoded]:
    schema = {"fields": FIELDS, **settings}
    left = dpl.encode(files.left, key=key, schema=schema, id="id", analysis=["income", "region"])
    return left, dpl.encode(files.right, key=key, schema=schema, id="id", analysis=["consumption"])


def right_links(files: TwoFiles, left: Encoded, right: Encoded, linked: dpl.Linked) -> np.ndarray[Any, Any]:
    """Which links are right, by what only holders know."""
    known = [
        dict(zip(own["pseudonym"].to_pylist(), own["id"].to_pylist(), strict=True)) for own in (left.own, right.own)
    ]
    ids = [[str(value) for value in table["id"].to_pylist()] for table in (files.left, files.right)]
    truth = {ids[0][i]: ids[1][j] if j >= 0 else None for i, j in enumerate(files.truth)}
    names = [
        [known[side][name] for name in table["pseudonym"].to_pylist()]
        for side, table in enumerate((linked.left, linked.right))
    ]
    return np.array([j >= 0 and truth[a] == names[1][j] for a, j in zip(names[0], linked.links.right, strict=True)])


# --- linking ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"encoding": {"fold": False, "balance": False, "flip": 0.0}}, {"blocks": {"keys": ["postcode", ["surname:sound", "date_of_birth:year"], "date_of_birth"], "alone": True}}])  # fmt: skip
def test_encodings_link_nearly_as_well_as_the_fields_themselves(
    files: TwoFiles, key: Path, settings: dict[str, Any]
) -> None:
    left, right = both(files, key, **settings)
    linked = dpl.link(left, right)
    found = right_links(files, left, right, linked)
    plain = dpl.link(files.left, files.right, fields=list(FIELDS), id="id")
    assert found.mean() > (plain.links.right == files.truth).mean() - 0.02
    estimate = linked.estimates[0]
    assert estimate.doubtful or abs(linked.overall(linked.linkage) - found.mean()) < 0.02


def test_what_is_handed_over_is_joined_by_pseudonyms_and_fitted(files: TwoFiles, key: Path) -> None:
    left, right = both(files, key)
    linked = dpl.link(left, right)
    rows = join_encoded(linked.rows, left.rows, right.rows)
    assert rows.column_names == ["income", "region", "consumption", "link_block"]
    incomes = dict(zip(files.left["id"].to_pylist(), files.left["income"].to_pylist(), strict=True))
    own = dict(zip(left.own["pseudonym"].to_pylist(), left.own["id"].to_pylist(), strict=True))
    expected = [incomes[type(next(iter(incomes)))(own[name])] for name in linked.rows["pseudonym"].to_pylist()]
    assert rows["income"].to_pylist() == expected
    release = dpl.fit(
        rows, "consumption ~ income", bounds={"consumption": (0, 120_000), "income": (0, 150_000)},
        linkage=dpl.ELE(accuracy=0.98, source="public"), epsilon=8.0, delta=1e-6, intervals=False,
    )  # fmt: skip
    assert 0.4 < release.coef["income"] < 0.7
    with pytest.raises(StudyError, match="regressors"):
        dpl.fit(
            rows, "region ~ income + consumption", bounds={"consumption": (0, 1), "income": (0, 1)}, levels={"region": ["north", "south"]},
            linkage=dpl.ELE(0.9), epsilon=1.0, delta=1e-6, family="logistic",
        )  # fmt: skip


def test_an_audit_is_answered_by_each_holder_alone(files: TwoFiles, key: Path) -> None:
    left, right = both(files, key)
    linked = dpl.link(left, right)
    sample = linked.audit_sample(400)
    lists = audit_lists(sample)
    schema = {"fields": FIELDS}
    answers = [
        answer_audit(asked, table, own, key=key, schema=schema, id="id")
        for asked, table, own in zip(lists, (files.left, files.right), (left.own, right.own), strict=True)
    ]
    judged = compare_answers(sample, *answers)
    place = {name: i for i, name in enumerate(linked.left["pseudonym"].to_pylist())}
    truth = right_links(files, left, right, linked)[[place[name] for name in judged["left_id"].to_pylist()]]
    said = np.array([answer == "yes" for answer in judged["correct"].to_pylist()])
    assert (said == truth).mean() > 0.97
    another = key.with_name("another.key")
    new_key(another)
    weighted = {"fields": {**FIELDS, "surname": {"kind": "name", "weight": 2.0}}}
    for wrong in ({"key": another, "schema": schema}, {"key": key, "schema": weighted}):
        with pytest.raises(StudyError, match="different keys or schemas"):
            compare_answers(sample, answers[0], answer_audit(lists[1], files.right, right.own, id="id", **wrong))
    with pytest.raises(StudyError, match="two answers are the same"):
        compare_answers(sample, answers[0], answers[0])
    with pytest.raises(StudyError, match="not one of this file's"):
        answer_audit(lists[0], files.right, right.own, key=key, schema=schema, id="id")
    with pytest.raises(StudyError, match="other ids than when it was encoded"):
        answer_audit(lists[1], files.right, right.own, key=key, schema=schema)
    cut = answers[1].set_column(2, "name0", pa.array(["ab"] * answers[1].num_rows))
    with pytest.raises(StudyError, match="damaged"):
        compare_answers(sample, answers[0], cut)
    with pytest.raises(StudyError, match="by which key"):
        compare_answers(sample, *(answer.drop_columns(["made_by"]) for answer in answers))
    audited = linked.audited(judged)
    assert audited.audit is not None
    assert (
        abs(audited.overall(audited.linkage_by_identifiers()) - right_links(files, left, right, linked).mean()) < 0.03
    )
    words = {str(value).casefold() for name in FIELDS for value in files.left[name].to_pylist() if value}
    cells = {str(cell) for answer in answers for name in answer.column_names for cell in answer[name].to_pylist()}
    assert not words & {cell.casefold() for cell in cells - {str(number) for number in range(len(said))}}
    assert not {name for answer in answers for name in answer.column_names} & set(FIELDS)


def test_answers_tell_nothing_but_how_alike_the_records_of_one_link_are(files: TwoFiles, key: Path) -> None:
    """However a list is made: sketches of one record in two links have nothing in common, and all are as long."""
    left, right = both(files, key)
    mine, theirs = left.own["pseudonym"].to_pylist()[0], right.own["pseudonym"].to_pylist()[:300]
    asked = {"number": [0] * 300, "pseudonym": [mine] * 300, "partner": theirs}
    answer = answer_audit(asked, files.left, left.own, key=key, schema={"fields": FIELDS}, id="id")
    sketches = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in answer["name0"].to_pylist()]
    agree = [(sketches[0] == other).mean() for other in sketches[1:]]
    assert np.mean(agree) == pytest.approx(1.0 / 256.0, abs=0.003)
    everybody = {
        "number": range(300),
        "pseudonym": left.own["pseudonym"].to_pylist()[:300],
        "partner": [theirs[0]] * 300,
    }
    answer = answer_audit(everybody, files.left, left.own, key=key, schema={"fields": FIELDS}, id="id")
    cells = [cell for name in answer.column_names[2:] for cell in answer[name].to_pylist()]
    assert {len(cell) for cell in cells} <= {0, 256}
    assert len(set(cells) - {""}) == sum(map(bool, cells))  # namesakes do not show


# --- what filters hide --------------------------------------------------------------------------------


def test_the_same_record_never_has_the_same_filter_twice_and_all_have_as_many_bits(files: TwoFiles, key: Path) -> None:
    twice = pa.concat_tables([files.left.slice(0, 1)] * 50).set_column(0, "id", pa.array([str(i) for i in range(50)]))
    made = dpl.encode(twice, key=key, schema={"fields": FIELDS}, id="id").table["filter"].to_pylist()
    assert len(set(made)) == 50
    assert {int.from_bytes(bits, "little").bit_count() for bits in made} == {1024}
    bare = {"fields": FIELDS, "encoding": {"fold": False, "balance": False, "flip": 0.0}}
    assert len(set(dpl.encode(twice, key=key, schema=bare, id="id").table["filter"].to_pylist())) == 1


def test_nothing_but_filters_leaves_the_holder(files: TwoFiles, key: Path, tmp_path: Path) -> None:
    left, _ = both(files, key, blocks={"keys": ["postcode"], "alone": True})
    written = left.save(tmp_path / "left.clk")
    assert [path.name for path in written] == ["left.clk", "left.own.parquet", "left.rows.parquet"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    assert left.largest_blocks()[0] == pytest.approx(
        np.unique(files.left["postcode"].to_numpy(zero_copy_only=False).astype(str), return_counts=True)[1].max()
        / 1_500,
        abs=0.02,
    )
    assert pq.read_table(written[0]).column_names == ["pseudonym", "filter", "block0"]
    assert (
        left.table["pseudonym"].to_pylist() != left.own["pseudonym"].to_pylist() != left.rows["pseudonym"].to_pylist()
    )
    content = written[0].read_bytes() + written[2].read_bytes()
    for column in (*FIELDS, "id"):
        for value in set(map(str, files.left[column].to_pylist())):
            assert len(value) < 6 or value.encode() not in content
    assert repr(left) == "Encoded(1,500 records)"


def test_a_salt_parts_people_who_differ_there(files: TwoFiles, key: Path) -> None:
    left, right = both(files, key, encoding={"salt": "date_of_birth:year", "flip": 0.0})
    linked = dpl.link(left, right)
    assert right_links(files, left, right, linked).mean() > 0.8
    same = {"given_name": ["anna"], "surname": ["berg"], "postcode": ["2000"], "address": ["high street"]}
    settings = {"salt": ["date_of_birth:year"], "flip": 0.0, "fold": False, "balance": False}

    def bits(born: str) -> np.ndarray[Any, Any]:
        made = dpl.encode({**same, "date_of_birth": [born]}, key=key, schema={"fields": FIELDS, "encoding": settings})
        return np.unpackbits(np.frombuffer(made.table["filter"][0].as_py(), np.uint8)).astype(bool)

    one, other, another = bits("1980-05-06"), bits("1980-05-06"), bits("1981-05-06")
    assert (one == other).all()
    shared = (one & another).sum() / one.sum()
    assert shared < 2.0 * one.mean()  # the date's own letters have no other salt, and chance makes some alike


def test_the_same_candidates_are_found_in_large_and_in_small_blocks(
    files: TwoFiles, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = both(
        files,
        key,
        blocks={
            "keys": [
                ["postcode", "date_of_birth:year"],
                ["surname:sound", "postcode"],
                ["given_name:start", "surname:sound"],
            ]
        },
    )
    found = []
    for large, rows, across in ((1, 7, 11), (4_096, 1_024, 8_192), (10**9, 1_024, 8_192)):
        monkeypatch.setattr(compare, "_LARGE", large)
        monkeypatch.setattr(compare, "_ROWS", rows)
        monkeypatch.setattr(compare, "_ACROSS", across)
        scored = compare.score_encodings(read_encodings(left, "left"), read_encodings(right, "right"))
        found.append(scored)
    first = found[0]
    for other in found[1:]:
        assert [one.pairs for one in other.passes[:-1]] == [one.pairs for one in first.passes[:-1]]
        pairs = [
            set(zip(one.candidates.left.tolist(), one.candidates.right.tolist(), strict=True)) for one in (first, other)
        ]
        assert len(pairs[0] & pairs[1]) > 0.99 * len(
            pairs[0] | pairs[1]
        )  # those that were left over may differ a little


def test_a_pair_of_several_blocks_counts_once(files: TwoFiles, key: Path) -> None:
    """Else matches, which agree on every key, are taken for pairs that are often so alike by chance."""
    one, other = (
        read_encodings(dpl.encode(table.slice(0, 900), key=key, schema={"fields": FIELDS}), "left")
        for table in (files.left, files.right)
    )
    everybody = (np.zeros(900, np.uint64), np.ones(900, bool))
    once, thrice = compare._Comparing(one, other), compare._Comparing(one, other)
    once.add_blocks("everybody", everybody, everybody)
    for _ in range(3):
        thrice.add_blocks("everybody", everybody, everybody)
    high = slice(compare._bins(np.array([once._low + 8.0 * once.spread]))[0], None)
    assert once.pairs().counts[high].sum() > 300
    assert thrice.pairs().counts[high].sum() == pytest.approx(once.pairs().counts[high].sum(), rel=0.01)


def test_comparing_takes_the_memory_of_a_piece_and_the_time_of_a_matrix_product(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen times the pairs take little more memory, and all of them a few times what the bare product takes beside.

    Threads of a matrix product that wait for each other count as computing, the more of them the less of the machine they get: one thread here.
    """
    monkeypatch.setattr(compare, "_ROWS", 256)
    monkeypatch.setattr(compare, "_ACROSS", 512)
    many = two_files(6_000, seed=12, errors=1.0)
    taken, spent, bare = [], 0.0, 0.0
    for rows in (1_500, 6_000):
        one, other = (
            read_encodings(dpl.encode(table.slice(0, rows), key=key, schema={"fields": FIELDS}), "left")
            for table in (many.left, many.right)
        )
        everybody = (np.zeros(rows, np.uint64), np.ones(rows, bool))
        comparing = compare._Comparing(one, other)
        tracemalloc.start()
        began = time.process_time()
        with threadpool_limits(1):
            comparing.add_blocks("everybody", everybody, everybody)
        spent = time.process_time() - began
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert comparing.passes[0].pairs == rows * rows
        assert comparing.pairs().counts.sum() == pytest.approx(rows * rows)
        assert comparing.pairs().left.size <= compare._MOST * rows
        vectors = [side.rows(np.arange(rows)) for side in (comparing.a, comparing.b)]
        began = time.process_time()
        with threadpool_limits(1):
            for start in range(0, rows, 512):
                vectors[0][start : start + 512] @ vectors[1].T
        bare = time.process_time() - began
    assert taken[1] < 2.0 * taken[0] < 6_000 * 6_000
    assert spent < 8.0 * bare


def test_values_are_read_alike_however_they_are_written() -> None:
    assert normalise("  O'Brién-SMITH ") == "o brien smith"
    date = EncodedField("born", "date")
    assert tokens(date, "1984-03-07") == tokens(date, "7.3.1984") == tokens(date, "19840307")
    assert tokens(date, "unknown") == tokens(EncodedField("age", "number"), "n/a") == []
    near, far = (set(tokens(EncodedField("age", "number"), text)) for text in ("41", "44"))
    assert near & far
    assert not near & set(tokens(EncodedField("age", "number"), "60"))


# --- refusals -----------------------------------------------------------------------------------------


def test_files_that_do_not_belong_together_are_not_linked(files: TwoFiles, key: Path, tmp_path: Path) -> None:
    left, right = both(files, key)
    new_key(tmp_path / "other.key")
    with pytest.raises(StudyError, match="different keys"):
        dpl.link(left, dpl.encode(files.right, key=tmp_path / "other.key", schema={"fields": FIELDS}))
    with pytest.raises(StudyError, match="different schemas"):
        dpl.link(left, dpl.encode(files.right, key=key, schema={"fields": FIELDS, "encoding": {"bits": 512}}))
    with pytest.raises(StudyError, match="with itself"):
        dpl.link(left, left)
    with pytest.raises(StudyError, match="linked with each other"):
        dpl.link(left, files.right, id="id")
    with pytest.raises(StudyError, match="leave out fields"):
        dpl.link(left, right, fields=["surname"])


def test_damaged_files_are_refused(files: TwoFiles, key: Path, tmp_path: Path) -> None:
    left, right = both(files, key)
    left.save(tmp_path / "left.clk")
    whole = (tmp_path / "left.clk").read_bytes()
    for name, content in (("cut", whole[: len(whole) // 2]), ("empty", b""), ("other", b"surname;born\nsmith;1984\n")):
        (tmp_path / f"{name}.clk").write_bytes(content)
        with pytest.raises(StudyError, match="missing, damaged or holds no encodings"):
            dpl.link(tmp_path / f"{name}.clk", right)
    with pytest.raises(StudyError, match="missing, damaged"):
        dpl.link(tmp_path / "nowhere.clk", right)
    twice = pa.concat_tables([left.table, left.table.slice(0, 1)])
    with pytest.raises(StudyError, match="pseudonym twice"):
        dpl.link(Encoded(twice, left.own, None), right)
    with pytest.raises(StudyError, match="other pseudonyms"):
        join_encoded(dpl.link(left, right).rows, right.rows, left.rows)


def test_keys_that_are_missing_or_open_are_refused(files: TwoFiles, key: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="missing"):
        dpl.encode(files.left, key=tmp_path / "none.key", schema={"fields": FIELDS})
    with pytest.raises(StudyError, match="there already"):
        new_key(key)
    new_key(tmp_path / "open.key")
    assert stat.S_IMODE((tmp_path / "open.key").stat().st_mode) == 0o600
    os.chmod(tmp_path / "open.key", 0o644)
    with pytest.raises(StudyError, match="read by others"):
        dpl.encode(files.left, key=tmp_path / "open.key", schema={"fields": FIELDS})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"fields": {"surname": "name"}}, "at least 3"),
        ({"fields": {"surname": "name", "given_name": "name", "age": "number"}}, "at least 3"),
        ({"fields": FIELDS, "encoding": {"bits": 1000}}, "bits must be"),
        ({"fields": FIELDS, "encoding": {"flips": 0.1}}, "Did you mean 'flip'"),
        ({"fields": {**FIELDS, "surname": "nme"}}, "kind must be one of"),
        ({"fields": FIELDS, "blocks": {"keys": ["surname:sounds"]}}, "a part is one of"),
        ({"fields": FIELDS, "blocks": {"keys": ["postcode"]}}, "one column alone"),
        ({"fields": FIELDS, "blocks": {"keys": [["date_of_birth:year", "date_of_birth:month"]]}}, "one column alone"),
        ({"fields": FIELDS, "blocks": {"keys": ["postcode"], "alone": 1}}, "true or false"),
        ({"field": FIELDS}, "no section 'field'"),
        ("nowhere.toml", "is missing"),
        (7, "TOML file"),
    ],
)
def test_schemas_that_hide_nothing_or_are_misspelt_are_refused(schema: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        read_schema(schema)


def test_columns_of_the_analysis_are_not_encoded_ones(files: TwoFiles, key: Path) -> None:
    with pytest.raises(StudyError, match="in the clear"):
        dpl.encode(files.left, key=key, schema={"fields": FIELDS}, id="id", analysis=["postcode"])
    with pytest.raises(StudyError, match="in the clear"):
        dpl.encode(files.left, key=key, schema={"fields": FIELDS}, id="id", analysis=["id"])


def test_the_commands_of_holders_read_files_as_they_are_written(tmp_path: Path, key: Path) -> None:
    from typer.testing import CliRunner

    from dplinked.cli.main import app

    persons = tmp_path / "persons.csv"
    persons.write_bytes("id;surname;born;city\n7;Müller;1980-01-02;Köln\n8;Maier;1981-03-04;Bonn\n".encode("latin-1"))
    (tmp_path / "fields.toml").write_text("[fields]\nsurname = 'name'\nborn = 'date'\ncity = 'text'\n")
    shared = ["--key", str(key), "--schema", str(tmp_path / "fields.toml"), "--id", "id"]
    written = ["--separator", ";", "--encoding", "latin-1"]
    encode = ["encode", str(persons), *shared, "--out", str(tmp_path / "persons.clk")]
    refused = CliRunner().invoke(app, [*encode, "--separator", ";"]).exception
    assert isinstance(refused, StudyError)
    assert "encoding" in str(refused)
    assert "check" not in str(refused)
    done = CliRunner().invoke(app, [*encode, *written])
    assert done.exit_code == 0, done.output
    own = tmp_path / "persons.own.parquet"
    asked = pa.table({"number": [0, 1], "pseudonym": pq.read_table(own)["pseudonym"], "partner": ["a", "b"]})
    pq.write_table(asked, tmp_path / "asked.parquet")
    answer = ["answer", str(tmp_path / "asked.parquet"), str(persons), "--own", str(own), *shared, *written]
    done = CliRunner().invoke(app, [*answer, "--out", str(tmp_path / "answer.csv")])
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "answer.csv").read_text().splitlines()) == 3


def test_a_file_is_encoded_once(files: TwoFiles, key: Path, tmp_path: Path) -> None:
    """Nothing is written over: what was sent could not be answered for any more, and two encodings tell more than one."""
    left, _ = both(files, key)
    written = left.save(tmp_path / "left.clk")
    before = [path.read_bytes() for path in written]
    for missing in ([], [0], [0, 2]):
        for place in missing:
            written[place].unlink(missing_ok=True)
        with pytest.raises(StudyError, match="Encode a file once"):
            left.save(tmp_path / "left.clk")
    assert written[1].read_bytes() == before[1]
    written[1].unlink()
    assert left.save(tmp_path / "left.clk") == written


def test_encoding_says_how_a_file_seems_to_be_written_and_what_sounds_like_an_identifier(
    tmp_path: Path, key: Path
) -> None:
    """Both would be found out at the analysis unit only, where it is too late."""
    persons = tmp_path / "persons.csv"
    rows = [f"{i};name{i};19{i + 10}-01-02;town{i};{i},5;T{i}" for i in range(60)]
    persons.write_text("id;surname;born;city;income;insurance_no\n" + "\n".join(rows), encoding="utf-8")
    schema = {"fields": {"surname": "name", "born": "date", "city": "text"}}
    with pytest.raises(StudyError, match="semicolons"):
        dpl.encode(persons, key=key, schema=schema, id="id", analysis=["income"])
    with pytest.warns(UserWarning, match="decimal commas"):
        dpl.encode(dpl.File(persons, separator=";"), key=key, schema=schema, id="id", analysis=["income"])
    file = dpl.File(persons, separator=";", decimal=",")
    with pytest.warns(UserWarning, match="'insurance_no' of the analysis sounds like an identifier"):
        dpl.encode(file, key=key, schema=schema, id="id", analysis=["income", "insurance_no"])
    made = dpl.encode(file, key=key, schema=schema, id="id", analysis=["income"])
    assert made.rows is not None
    assert sorted(map(float, made.rows["income"].to_pylist()))[0] == 0.5
