"""Linkage models that are kept, and links that are explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dplinked as dpl
from dplinked.cli.main import app
from dplinked.linker import rules
from dplinked.linker.evidence import estimate_evidence, evidence_of
from dplinked.linker.explain import REST, Explanation
from dplinked.linker.model import load_model
from dplinked.simulate import TwoFiles, two_files

FIELDS = ["given_name", "surname", "date_of_birth", dpl.Field("postcode", weight=0.5)]


@pytest.fixture(scope="module")
def files() -> TwoFiles:
    return two_files(700, 6, errors=1.5)


@pytest.fixture(scope="module")
def linked(files: TwoFiles) -> dpl.Linked:
    return dpl.link(files.left, files.right, fields=FIELDS, id="id", block="state")


@pytest.fixture
def kept(linked: dpl.Linked, tmp_path: Path) -> Path:
    linked.save_model(tmp_path / "model.json")
    return tmp_path / "model.json"


# --- kept --------------------------------------------------------------------------------------------


def test_a_kept_model_is_read_as_it_was(linked: dpl.Linked, kept: Path) -> None:
    read, own = load_model(kept), linked.model
    assert own is not None and own.evidence is not None and read.evidence is not None  # noqa: PT018
    assert (read.method, read.fields, read.blocks) == ("rules", linked.fields, ("state",))
    for one, other in zip(
        (*read.evidence.matches, *read.evidence.others), (*own.evidence.matches, *own.evidence.others), strict=True
    ):
        assert np.array_equal(one, other)
    assert json.loads(kept.read_text())["about"].startswith("FOR THE STEWARD")
    assert not set(linked.left["surname"].drop_null().to_pylist()) & set(kept.read_text().split('"')), "no cells"


def test_new_records_are_linked_without_training(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("trained again")

    later = two_files(500, 7, errors=1.5)
    trained = dpl.link(later.left, later.right, fields=FIELDS, id="id", block="state")
    monkeypatch.setattr(rules, "estimate_evidence", refuse)
    linked = dpl.link(later.left, later.right, id="id", model=kept)
    assert linked.blocks == ("state",)
    right = [later.are_right(one.links.right).mean() for one in (trained, linked)]
    assert right[1] > right[0] - 0.005
    assert linked.estimates[0].overall[0] == pytest.approx(right[1], abs=0.01)
    few = dpl.link(later.left.slice(0, 30), later.right, id="id", model=kept)  # too few to train on
    assert later.are_right(np.append(few.links.right, np.full(470, -1)))[:30].mean() > 0.95


def test_the_evidence_of_a_pattern_is_the_product_of_its_fields() -> None:
    rng, levels = np.random.default_rng(1), [3, 4, 2]
    patterns = rng.integers(1, 500, 24)
    linked = np.minimum(patterns, rng.integers(0, 40, 24))
    found = estimate_evidence(patterns, linked, levels)
    assert evidence_of(found.matches, found.others).ratio == pytest.approx(found.ratio)
    assert all(part[0] == 1.0 and part[1:].sum() == pytest.approx(1.0) for part in (*found.matches, *found.others))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("m"),
        lambda told: told.update(m=told["m"][:2]),
        lambda told: told["u"][0].__setitem__(1, 0.0),
        lambda told: told["u"][0].append(0.5),
        lambda told: told.update(dplinked_linkage_model=99),
        lambda told: told.update(method="magic"),
        lambda told: told.update(fields=[]),
        lambda told: told["fields"][0].update(kind="magic"),
        lambda told: told["fields"][0].update(unknown=1),
        lambda told: told.update(assignment="any"),
        lambda told: told.update(blocks="state"),
    ],
)
def test_other_files_are_refused(files: TwoFiles, kept: Path, change: Any) -> None:
    told = json.loads(kept.read_text())
    change(told)
    kept.write_text(json.dumps(told))
    with pytest.raises(dpl.StudyError, match=r"is no linkage model|kind must be one of|Shares of agreement"):
        dpl.link(files.left, files.right, id="id", model=kept)


def test_a_greedy_model_is_for_links_that_are_one_to_one(files: TwoFiles, tmp_path: Path) -> None:
    greedy = dpl.link(files.left, files.right, fields=FIELDS, id="id", assignment="greedy")
    greedy.save_model(tmp_path / "greedy.json")
    with pytest.raises(dpl.StudyError, match="one to one"):
        dpl.link(files.left, files.right, id="id", model=tmp_path / "greedy.json", links="many-to-one", carriers=2)


def test_what_goes_with_no_model_is_refused(files: TwoFiles, linked: dpl.Linked, kept: Path, tmp_path: Path) -> None:
    for given in ({"fields": FIELDS}, {"method": "splink"}, {"threshold": 2.0}):
        with pytest.raises(dpl.StudyError, match="has its own fields"):
            dpl.link(files.left, files.right, id="id", model=kept, **given)
    for path in (tmp_path / "none.json", 7):
        with pytest.raises(dpl.StudyError, match=r"none\.json' is no linkage model|model must be the path"):
            dpl.link(files.left, files.right, id="id", model=path)  # type: ignore[arg-type]
    with pytest.raises(dpl.StudyError, match="json"):
        linked.save_model(tmp_path / "model.txt")
    with pytest.raises(dpl.StudyError, match="could not be written"):
        linked.save_model(tmp_path / "nowhere" / "model.json")
    pairs = dpl.link(files.left, files.right, method="pairs", id="id", pairs=linked.pairs.select(["left", "right"]))
    with pytest.raises(dpl.StudyError, match="no model to keep"):
        pairs.save_model(tmp_path / "pairs.json")
    with pytest.raises(dpl.StudyError, match="made elsewhere"):
        pairs.explain(0)
    assert "why" not in pairs.audit_sample(100).column_names


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_splink_models_are_kept_and_their_links_explained(files: TwoFiles, tmp_path: Path, own: bool) -> None:
    import splink.comparison_library as cl
    from splink import SettingsCreator, block_on

    names = ["given_name", "surname", "date_of_birth", "postcode"]
    settings = SettingsCreator(
        link_type="link_only",
        comparisons=[cl.JaroWinklerAtThresholds(name, [0.9, 0.7]) for name in names],
        blocking_rules_to_generate_predictions=[block_on("surname"), block_on("date_of_birth")],
    )
    how: dict[str, Any] = {"settings": settings} if own else {}
    linked = dpl.link(files.left, files.right, fields=names, id="id", method="splink", **how)
    over = np.flatnonzero(linked.links.block == "(all)")
    for row in (int(over[0]), int(over[-1])):
        told = linked.explain(row)
        assert sum(told["weight"].to_pylist()) == pytest.approx(linked.links.score[row], abs=1e-6)
        assert told["field"].to_pylist()[1:5] == names
        assert told["left"].to_pylist()[1] == linked.left["given_name"][row].as_py()
    linked.save_model(tmp_path / "model.json")
    later = two_files(500, 7, errors=1.5)
    again = dpl.link(later.left, later.right, id="id", model=tmp_path / "model.json")
    trained = dpl.link(later.left, later.right, fields=names, id="id", method="splink", **how)
    right = [later.are_right(one.links.right).mean() for one in (trained, again)]
    assert again.method == "splink"
    assert right[1] > right[0] - 0.02


# --- explained ---------------------------------------------------------------------------------------


def test_weights_add_up_to_the_score_of_every_link(linked: dpl.Linked) -> None:
    known = np.flatnonzero(np.isfinite(linked.links.score))
    for row in known[:: max(1, known.size // 40)].tolist():
        told = linked.explain(row)
        assert sum(told["weight"].to_pylist()) == pytest.approx(linked.links.score[row], abs=1e-5)
    one = linked.explain(int(known[0]))
    assert one["field"].to_pylist() == ["given_name", "surname", "date_of_birth", "postcode"]
    partner = int(linked.links.right[known[0]])
    assert one["right"].to_pylist()[1] == linked.right["surname"][partner].as_py()
    assert linked.explain(linked.left["id"][int(known[0])].as_py()).equals(one), "by id as by position"


def test_evidence_tells_how_fields_agree(linked: dpl.Linked) -> None:
    same = next(row for row in range(700) if linked.links.score[row] == 3.5)
    told = linked.explain(same)
    assert told["agreement"].to_pylist() == ["alike", "alike", "same", "same"]
    assert min(told["evidence"].to_pylist()) > 2.0
    assert told["weight"].to_pylist() == [1.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("row", [-1, 700, True, "nobody", 1.5, None])
def test_rows_that_are_none_are_refused(linked: dpl.Linked, row: Any) -> None:
    with pytest.raises(dpl.StudyError, match=r"row must be|No record"):
        linked.explain(row)


def test_what_a_score_has_beyond_its_weights_is_said() -> None:
    told = Explanation(("a",), np.array([[1.0], [2.0]]), [["same"], ["same"]]).completed(np.array([1.5, np.nan]))
    assert told.parts == ("a", REST)
    assert told.weights.tolist() == [[1.0, 0.5], [2.0, 0.0]]
    assert told.line(0) == "a +1, (rest) +0.5 = 1.5"


def test_reports_and_lists_explain_without_naming_anybody(linked: dpl.Linked) -> None:
    text, page = linked.summary(), linked.to_html()
    part = text.split("Why records were linked")[1].split("Accuracy per group")[0]
    assert "a typical link over the threshold" in part
    assert "Why records were linked" in page
    values = {cell for name in ("surname", "date_of_birth") for cell in linked.left[name].drop_null().to_pylist()}
    assert not values & set(part.replace(",", " ").split())
    sample = linked.audit_sample(120)
    for why, score in zip(sample["why"].to_pylist(), sample["score"].to_pylist(), strict=True):
        assert score is None or float(why.rpartition("= ")[2]) == pytest.approx(score, rel=0.01)


def test_a_row_without_a_partner_has_no_explanation(files: TwoFiles) -> None:
    linked = dpl.link(files.left, files.right.slice(0, 300), fields=FIELDS, id="id")
    with pytest.raises(dpl.StudyError, match="no partner"):
        linked.explain(int(np.flatnonzero(linked.links.right < 0)[0]))


def test_the_command_line_keeps_and_takes_a_model(files: TwoFiles, tmp_path: Path) -> None:
    paths = []
    for name, table in (("a", files.left), ("b", files.right)):
        paths.append(str(tmp_path / f"{name}.parquet"))
        pq.write_table(pa.table(table), paths[-1])
    call = ["link", *paths, "--id", "id", "--out", str(tmp_path / "o")]
    kept = str(tmp_path / "model.json")
    told = CliRunner().invoke(app, [*call, "--field", "surname", "--field", "date_of_birth", "--save-model", kept])
    assert told.exit_code == 0, told.output
    told = CliRunner().invoke(app, [*call, "--model", kept])
    assert told.exit_code == 0, told.output
    assert "surname" in told.output


def test_a_kept_model_tells_what_it_was_found_by(tmp_path: Path) -> None:
    """Blocks too, also where it is used without them, and in the model of what it linked."""
    files = two_files(400, 5)
    first = dpl.link(files.left, files.right, fields=["surname", "date_of_birth"], id="id", block="state")
    first.save_model(tmp_path / "model.json")
    second = dpl.link(files.left, files.right, id="id", block=[], model=tmp_path / "model.json")
    assert "state" in second.compared
    assert second.model is not None
    assert "state" in second.model.looked_at
