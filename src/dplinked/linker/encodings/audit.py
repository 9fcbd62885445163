"""Checking links without bringing identifiers together: each holder answers for its own records with keyed sketches, and the linkage unit sees how far they agree.

A sketch is as long for any value, and both pseudonyms of its link go into it. So nothing but the two records of one link can be compared, however the lists are made: no letter pair, no length of a name
and no frequency shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_texts, to_arrow
from dplinked.data.look import tell_format
from dplinked.errors import StudyError, plain_faults, raise_alone, shown
from dplinked.ledger.key import read_key
from dplinked.linker.audit import read_audit
from dplinked.linker.checks import require_column
from dplinked.linker.encodings.encode import ENCODING, PSEUDONYM
from dplinked.linker.encodings.filters import derive
from dplinked.linker.encodings.schema import Schema, read_schema
from dplinked.linker.encodings.tokens import tokens

if TYPE_CHECKING:
    import pyarrow as pa

Sketch = NDArray[np.uint8]

NUMBER, PARTNER = "number", "partner"
MADE_BY = "made_by"  # column that tells answers of different keys or schemas apart, and nothing else
_ENOUGH = 0.48  # mean likeness of the fields from which on a link is taken as right
_SLOTS = 128  # of a sketch; the share of those that agree is known to within .09 (two deviations)
_LEAST_FIELDS = 2  # that must be there on both sides for a link to be judged


@plain_faults
def audit_lists(sample: Any) -> tuple[pa.Table, pa.Table]:
    """The list for each holder, from what ``linked.audit_sample(…)`` drew: numbers, the pseudonyms of that holder's records, and those that they were linked to."""
    import pyarrow as pa

    table = to_arrow(sample, "sample")
    for name in ("left_id", "right_id"):
        require_column(table, name, "sample")
    number = pa.array(range(table.num_rows), pa.int64())
    left, right = (
        pa.table({NUMBER: number, PSEUDONYM: table[own], PARTNER: table[other]})
        for own, other in (("left_id", "right_id"), ("right_id", "left_id"))
    )
    return left, right


@plain_faults
def answer_audit(asked: Any, data: Any, own: Any, *, key: str | Path, schema: Any, id: str | None = None) -> pa.Table:
    """A holder's answer: for each record of the list, a keyed sketch of the letter pairs, digits and parts of dates of each field. How far two sketches of one link agree is all that they tell without the key.

    Parameters
    ----------
    asked
        The list that the linkage unit sent.
    data, id
        The holder's file, as it was encoded.
    own
        The ``….own.parquet`` that stayed with the holder.
    key, schema
        As for :func:`dplinked.encode`. Fields that were not encoded, such as a place of birth, make the better judges: a schema for audits may name them.
    """
    import pyarrow as pa

    read, secret = read_schema(schema), read_key(Path(key), ENCODING)
    tell_format(data)
    table, listed, kept = to_arrow(data, "data"), read_audit(asked), to_arrow(own, "own")
    for name, of, where in (
        (NUMBER, listed, "list"),
        (PSEUDONYM, listed, "list"),
        (PARTNER, listed, "list"),
        (PSEUDONYM, kept, "own"),
        ("id", kept, "own"),
    ):
        require_column(of, name, where)
    for field in read.fields:
        require_column(table, field.name, "data")
    ids = [str(i) for i in range(table.num_rows)] if id is None else column_texts(table, id, "data").to_pylist()
    place = {name: i for i, name in enumerate(ids)}
    of_pseudonym = dict(zip(kept[PSEUDONYM].to_pylist(), kept["id"].to_pylist(), strict=True))
    names = [of_pseudonym.get(pseudonym) for pseudonym in listed[PSEUDONYM].to_pylist()]
    if None in names:
        raise StudyError(
            "The list names a pseudonym that is not one of this file's. Ask the linkage unit which file it is for."
        )
    rows = [place.get(name) for name in names]
    if None in rows:
        raise StudyError(
            "The file has other ids than when it was encoded. Give the same file and the same --id (id=…), or leave it out if it was left out then."
        )
    both = [
        sorted(pair)
        for pair in zip(*(map(str, listed[name].to_pylist()) for name in (PSEUDONYM, PARTNER)), strict=True)
    ]
    numbers, answers = listed[NUMBER].to_pylist(), dict[str, Any]()
    for label, field in zip(_labels(read), read.fields, strict=True):
        texts = column_texts(table, field.name, "data").to_pylist()
        sketched = partial(_sketch, key=derive(secret, "audit", label if label.startswith("field") else "names"))
        found = [tokens(field, texts[row] or "") for row in rows]
        answers[label] = pa.array(map(sketched, found, both), pa.string())
    # A letter goes first, so that no reader of the file takes it for a number.
    made_by = "k" + derive(secret, "which key", "audit", read.fingerprint()).hex()[:16]
    return pa.table({NUMBER: numbers, MADE_BY: pa.array([made_by] * len(numbers), pa.string()), **answers})


@plain_faults
def compare_answers(sample: Any, left: Any, right: Any) -> pa.Table:
    """The sample with its column ``correct`` filled in: yes where the fields of both records are alike, about half or more of what they are made of, and no otherwise.

    Give it to ``linked.audited(…)``. In generated files the rule judged .92 to .997 of the right links as right and .8 to 1 of the wrong ones as wrong, worse the more errors the files have.
    """
    import pyarrow as pa

    table, a, b = read_audit(sample), to_arrow(left, "left answers"), to_arrow(right, "right answers")
    if "correct" not in table.column_names:
        raise StudyError(f"The sample has no column {shown('correct')}. Give what linked.audit_sample(…) drew.")
    if (
        a.column_names != b.column_names
        or NUMBER not in a.column_names
        or a[NUMBER].to_pylist() != b[NUMBER].to_pylist()
    ):
        raise StudyError("The two answers do not belong together: they were made by other schemas, or to other lists.")
    if MADE_BY not in a.column_names:
        raise StudyError("The answers do not say by which key they were made. Let both holders answer again.")
    if a[MADE_BY].to_pylist() != b[MADE_BY].to_pylist():
        raise StudyError(
            "The two answers were made with different keys or schemas, so nothing in them can be compared. Let both holders answer with the key and the schema that they share."
        )
    if a.equals(b):
        raise StudyError("The two answers are the same. Give that of the left holder and that of the right one.")
    if a.num_rows != table.num_rows:
        raise StudyError(
            f"The answers are to a list of {a.num_rows:,} links, and the sample has another number of them."
        )
    labels = [name for name in a.column_names if name not in (NUMBER, MADE_BY)]
    cells = [[_sketches(answer[label]) for label in labels] for answer in (a, b)]
    names = [i for i, label in enumerate(labels) if not label.startswith("field")]
    said = [
        "yes" if _are_alike([part[i] for part in cells[0]], [part[i] for part in cells[1]], names) else "no"
        for i in range(a.num_rows)
    ]
    return table.set_column(table.column_names.index("correct"), "correct", pa.array(said))


def _labels(schema: Schema) -> list[str]:
    """What the linkage unit calls the fields: it is not told which they are, but names are marked, since they may have changed places."""
    return [f"{'name' if field.kind == 'name' else 'field'}{i}" for i, field in enumerate(schema.fields)]


def _sketch(found: Sequence[str], link: Sequence[str], key: bytes) -> str:
    """For each slot the token that comes first in an order of its own (MinHash), as a byte; empty if the value is missing.

    Two sketches agree in a slot with the share of all their tokens that both have. The orders follow from the key and the link.
    """
    if not found:
        return ""
    drawn = b"".join(
        hashlib.blake2b("\x1f".join((*link, token)).encode(), key=key, digest_size=64, salt=bytes([part])).digest()
        for token in found
        for part in range(_SLOTS // 16)
    )
    first = np.frombuffer(drawn, dtype="<u4").reshape(len(found), _SLOTS).min(axis=0)
    return bytes(first.astype(np.uint8)).hex()


def _sketches(column: pa.ChunkedArray) -> list[Sketch | None]:
    """Sketches that were answered; None where the value is missing."""
    try:
        read = [np.frombuffer(bytes.fromhex(text), np.uint8) if text else None for text in column.to_pylist()]
    except (TypeError, ValueError):
        read = [np.zeros(0, np.uint8)]
    if any(one is not None and one.size != _SLOTS for one in read):
        raise_alone(StudyError("The answers are damaged. Let both holders answer again."))
    return read


def _are_alike(left: Sequence[Sketch | None], right: Sequence[Sketch | None], names: Sequence[int]) -> bool:
    """Whether two records agree in about half of what their fields are made of; names in the order that suits them best."""
    others = [i for i in range(len(left)) if i not in names]
    orders = permutations(names) if len(names) <= 3 else [tuple(names)]
    best = max((_likeness([left[i] for i in names], [right[i] for i in order]) for order in orders), key=sum)
    found = best + _likeness([left[i] for i in others], [right[i] for i in others])
    return len(found) >= _LEAST_FIELDS and sum(found) >= _ENOUGH * len(found)


def _likeness(left: Sequence[Sketch | None], right: Sequence[Sketch | None]) -> list[float]:
    """Dice's coefficient of each field that both have, as sketches tell it: one slot in 256 agrees by chance."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    shared = [max(0.0, (float((a == b).mean()) - 1.0 / 256.0) * 256.0 / 255.0) for a, b in both]
    return [2.0 * share / (1.0 + share) for share in shared]
