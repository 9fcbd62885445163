"""What reviewers check: lists of links with both records side by side, drawn and read back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_texts
from dplinked.errors import StudyError, shown
from dplinked.ledger.key import audit_key
from dplinked.linker.audit import (
    ANSWER,
    CHANCE,
    DRAWN_BY,
    SECRET,
    answer_column,
    draw_audit,
    estimate_from_audit,
    read_answers,
    read_audit,
    read_chances,
    sampling_rate,
    seed_key,
)
from dplinked.linker.joined import BLOCK, SCORE, partners
from dplinked.linker.quality import AccuracyEstimate, SecretAudit
from dplinked.linker.reasons import explain_links
from dplinked.linker.subgroups import level_rates, levels_of

if TYPE_CHECKING:
    import pyarrow as pa

    from dplinked.linker.linked import Linked

WHY = "why"  # the column of a reviewer's list that says what each field adds to the score


def draw_list(linked: Linked, size: int, seed: int, *, key: str | Path | bytes | None, by: str | None) -> pa.Table:
    """Draw links for a person to check, both records side by side."""
    import pyarrow as pa

    if isinstance(size, bool) or not isinstance(size, int):
        raise StudyError(f"size must be a whole number of links to check, not {shown(size)}.")
    if key is not None and seed:
        raise StudyError("A sample is drawn by a public seed or by a secret key, not by both. Leave out seed=….")
    if key is not None and by is not None:
        raise StudyError(
            "In a secret sample every row has the same chance to be drawn, by which its noise is reckoned. Draw links by the levels of a variable with a seed, without key=…."
        )
    rates = None if by is None else level_rates(levels_of(linked.left, by), size)
    secret = seed_key(seed) if key is None else audit_key(key, create=True)
    rows = draw_audit(linked.links, linked.strata, size, secret, rates)
    pairs = linked.pairs.take(rows)
    table = {"left_id": pairs["left"], "right_id": pairs["right"], "block": pairs[BLOCK], "score": pairs[SCORE]}
    for field in linked.fields:
        table[f"{field.name} (left)"] = linked.left.column(field.name).take(rows)
        table[f"{field.right} (right)"] = linked.right.column(field.right).take(
            partners(linked.links).take(pa.array(rows))
        )
    if linked.model is not None:
        known = np.flatnonzero(linked.links.right[rows] >= 0)
        told = explain_links(linked, rows[known]) if known.size else None
        why = {int(k): told.line(place) for place, k in enumerate(known)} if told is not None else {}
        table[WHY] = pa.array([why.get(k) for k in range(rows.size)], pa.string())
    table[ANSWER] = pa.array(["no" if right < 0 else None for right in linked.links.right[rows]], pa.string())
    if rates is not None:
        table[DRAWN_BY], table[CHANCE] = pa.array([by] * rows.size), pa.array(rates[rows])
    if key is not None:
        table[SECRET] = pa.array(["show to nobody"] * rows.size, pa.string())
    return pa.table(table)


def read_list(linked: Linked, answers: Any, key: str | Path | bytes | None, size: int | None) -> AccuracyEstimate:
    """The accuracies that a checked list tells."""
    table = read_audit(answers)
    answered = answer_column(table.column_names)
    missing = {"left_id", "right_id", answered or ANSWER} - set(table.column_names)
    if answered is None or missing:
        raise StudyError(f"The audit lacks the column(s) {sorted(missing)}. Fill in what audit_sample wrote.")
    if (key is not None) != (SECRET in table.column_names):
        raise StudyError(
            f"The list of a secret sample has the column {SECRET!r}, and no other list has it. Read a secret one back with its key and its size, and any other without them."
        )
    rows = _listed_rows(linked, table)
    if rows == [] and key is None:
        raise StudyError("The audit has no answers.")
    if rows is None:
        raise StudyError(
            "The audit belongs to other links: link the same files with the same settings as when it was drawn."
        )
    if len(set(rows)) != len(rows):
        raise StudyError("The audit names a link twice.")
    correct = read_answers(table.column(answered).to_pylist(), answered)
    checked = np.array(rows, dtype=np.int64)
    found = estimate_from_audit(linked.strata, checked, correct, *read_chances(table))
    return replace(found, secret=_secret_audit(linked, checked, key, size))


def is_list_of(linked: Linked, path: Path) -> bool:
    """Whether a list of links to check, which was drawn earlier, is of these links and was not drawn in secret: then its answers can be read back without drawing again."""
    table = read_audit(path)
    named = {"left_id", "right_id"} <= set(table.column_names)
    return named and SECRET not in table.column_names and _listed_rows(linked, table) is not None


def _listed_rows(linked: Linked, table: pa.Table) -> list[int] | None:
    """The rows whose links a list names; None if any of them is no link of these files."""
    left_id, right_id = (column_texts(table, name, "audit").to_pylist() for name in ("left_id", "right_id"))
    known = dict(zip(linked.pairs["left"].to_pylist(), range(linked.left.num_rows), strict=True))
    partner = linked.pairs["right"].to_pylist()
    rows = [known.get(one, -1) for one in left_id]
    same = all(row >= 0 and partner[row] == other for row, other in zip(rows, right_id, strict=True))
    return rows if same else None


def _secret_audit(
    linked: Linked, checked: NDArray[np.int64], key: str | Path | bytes | None, size: int | None
) -> SecretAudit | None:
    """How the checked rows were drawn in secret. Rows that the key does not draw are refused: who else chose them may have told of it, or looked at them."""
    if (key is None) != (size is None):
        raise StudyError(
            "A secret sample is known by its key and its size: give both, as in audit_sample(size, key=…)."
        )
    if key is None or size is None:
        return None
    secret = audit_key(key)
    if not np.array_equal(np.sort(checked), draw_audit(linked.links, linked.strata, size, secret)):
        raise StudyError(
            "These are not all the links that the key draws, and no others. Give the size and the key that they were drawn with, and answer every line; "
            "links drawn by a seed have no key."
        )
    return SecretAudit(sampling_rate(size, linked.left.num_rows), hashlib.sha256(b"tag" + secret).hexdigest())
