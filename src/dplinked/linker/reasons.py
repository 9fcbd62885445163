"""Why records were linked: the explanation of single links, and those that the report shows. For the steward, not for publication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError
from dplinked.linker.explain import Explanation, explain_by_rule
from dplinked.linker.fields import make_comparers
from dplinked.linker.joined import id_column
from dplinked.linker.rules import LATE
from dplinked.linker.splink import explain_by_splink, named_tables, own_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from dplinked.linker.linked import Linked


def explain_links(linked: Linked, rows: NDArray[np.int64]) -> Explanation:
    """What the scores of the links of some rows, which have partners, are made of."""
    if linked.model is None or not linked.fields:
        raise StudyError("These links were made elsewhere, so what they were made by is not known here.")
    pairs, score = (rows, linked.links.right[rows]), linked.links.score[rows]
    if linked.model.settings is None:
        taken = linked.left.take(pairs[0]), linked.right.take(pairs[1])
        return explain_by_rule(make_comparers(*taken, linked.fields), linked.model.evidence).completed(score)
    if linked.model.own:
        names = dict[str, str]()
        left, right = (
            own_columns(table, linked.fields, linked.blocks, where)
            for table, where in ((linked.left, "left"), (linked.right, "right"))
        )
    else:
        left, right, names = named_tables(make_comparers(linked.left, linked.right, linked.fields))
    return explain_by_splink(left, right, pairs, linked.model.settings, names, linked.engine).completed(score)


def tell_why(linked: Linked, row: int | str) -> pa.Table:
    """How each field of one link agrees, and what that adds to its score."""
    import pyarrow as pa

    place = _place(linked, row)
    if linked.links.right[place] < 0:
        raise StudyError("This row has no partner, so there is no link to explain.")
    told = explain_links(linked, np.array([place]))
    values = {
        field.name: [
            table.column(name)[int(at)].as_py()
            for table, name, at in (
                (linked.left, field.name, place),
                (linked.right, str(field.right), linked.links.right[place]),
            )
        ]
        for field in linked.fields
    }
    cells = [[None if cell is None else str(cell) for cell in values.get(part, [None, None])] for part in told.parts]
    table = {
        "field": list(told.parts),
        "left": [pair[0] for pair in cells],
        "right": [pair[1] for pair in cells],
        "agreement": told.agreement[0],
        "weight": told.weights[0],
    }
    if told.evidence is not None:
        table["evidence"] = np.append(told.evidence[0], np.zeros(len(told.parts) - told.evidence.shape[1]))
    return pa.table(table)


def _place(linked: Linked, row: int | str) -> int:
    """The position of a row of the left file that is given by position or by id."""
    if isinstance(row, str):
        ids = id_column(linked.left, linked.ids[0]).to_pylist()
        if linked.ids[0] is None or row not in ids:
            raise StudyError("No record of the left file has this id.")
        return int(ids.index(row))
    if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < linked.left.num_rows:
        raise StudyError("row must be the position of a row of the left file, from 0, or its id.")
    return int(row)


def choose_examples(linked: Linked) -> tuple[list[str], Explanation] | None:
    """Links that the report explains: of those made first a typical one and the weakest, of those made later the strongest and a typical one."""
    late, score = np.isin(linked.links.block.astype(str), LATE), linked.links.score
    late |= False if linked.links.below is None else linked.links.below
    chosen = dict[int, str]()
    for some, end, names in (
        (~late, 0, ("a typical link over the threshold", "the weakest link over the threshold")),
        (late, -1, ("a typical link made later", "the strongest link made later")),
    ):
        known = np.flatnonzero(some & np.isfinite(score) & (linked.links.right >= 0))
        if known.size:
            ordered = known[np.argsort(score[known], kind="stable")]
            chosen[int(ordered[end])] = names[1]
            chosen[int(ordered[ordered.size // 2])] = names[0]
    if linked.model is None or not chosen:
        return None
    return list(chosen.values()), explain_links(linked, np.array(list(chosen)))
