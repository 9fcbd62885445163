"""Which columns seem to hold the same, and what blocks would compare."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dplinked as dpl
from dplinked.linker.suggest import Blocks, preview_blocks, suggest_fields
from dplinked.simulate import two_files

FILES = two_files(1_500, seed=4, errors=1.0)
NAMES = ["rid", "first", "last", "born", "nr", "street", "town", "zip", "land", "ssn", "consumption"]


def test_columns_of_one_name_are_suggested_and_ids_are_not_compared() -> None:
    found = suggest_fields(FILES.left, FILES.right)
    compared = {one.left: (one.right, one.kind) for one in found.fields if one.compare}
    assert compared["given_name"] == ("given_name", "name")
    assert compared["date_of_birth"] == ("date_of_birth", "date")
    assert compared["national_id"] == ("national_id", "id")
    assert {"id", "state", "income", "region", "consumption"}.isdisjoint(compared)
    assert (found.ids, found.block) == (("id", "id"), "state")


def test_columns_of_other_names_are_found_by_their_contents() -> None:
    found = suggest_fields(FILES.left, FILES.right.rename_columns(NAMES))
    assert {one.left: one.right for one in found.fields} == {
        "given_name": "first", "surname": "last", "date_of_birth": "born", "street_number": "nr", "address": "street",
        "suburb": "town", "postcode": "zip", "national_id": "ssn",
    }  # fmt: skip
    assert {one.left: one.kind for one in found.fields}["date_of_birth"] == "date"
    assert (found.ids, found.block) == (("id", "rid"), None)  # a block has one name in both files


def test_nothing_is_suggested_where_nothing_agrees() -> None:
    found = suggest_fields(pa.table({"a": ["x", "y"], "b": [[1], [2]]}), pa.table({"c": ["p", "q", "p"]}))
    assert (found.fields, found.ids, found.block) == ((), ("a", None), None)


def test_suggested_fields_link() -> None:
    found = suggest_fields(FILES.left, FILES.right.rename_columns(NAMES))
    fields = [dpl.Field(one.left, kind=one.kind, right=one.right) for one in found.fields if one.compare]
    linked = dpl.link(FILES.left, FILES.right.rename_columns(NAMES), fields=fields, id=found.ids)
    assert (linked.links.right == FILES.truth).mean() > 0.95


def test_blocks_are_counted_as_they_are_compared() -> None:
    left = pa.table({"k": ["a", "a", "b", None, "c"], "name": list("vwxyz")})
    right = pa.table({"k": ["a", "b", "b", "d"], "name": list("vwxy")})
    assert preview_blocks(left, right, ["k"]) == Blocks(2, 2 * 1 + 1 * 2, 2, (2, 1))
    assert preview_blocks(left, right, []) == Blocks(1, 20, 20, (0, 0))
    linked = dpl.link(FILES.left, FILES.right, fields=["surname"], id="id", block="state")
    assert linked.passes[0].pairs == preview_blocks(FILES.left, FILES.right, ["state"]).pairs
    with pytest.raises(dpl.StudyError, match="No block key"):
        preview_blocks(left, pa.table({"k": ["z"]}), ["k"])


def test_progress_is_told_and_an_error_in_it_stops_linking() -> None:
    told: list[tuple[str, int, int]] = []
    dpl.link(FILES.left, FILES.right, id="id", block="state", progress=lambda *step: told.append(step))
    assert told[0] == ("Reading the files", 0, 0)
    within = [step for step in told if step[0] == "Comparing within blocks"]
    assert [done for _, done, _ in within] == list(range(len(within)))
    assert {total for *_, total in within} == {len(within)}
    assert told[-1][0] == "Comparing what is left over"

    def stop(title: str, done: int, total: int) -> None:
        if done == 2:
            raise dpl.StudyError("Stopped.")

    with pytest.raises(dpl.StudyError, match=r"^Stopped\.$"):
        dpl.link(FILES.left, FILES.right, id="id", block="state", progress=stop)
