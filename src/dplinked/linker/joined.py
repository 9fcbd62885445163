"""The joined rows of two linked files, and the ids of each link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import LEFT, RIGHT, column_texts, mark_origin, with_numbers
from dplinked.errors import StudyError
from dplinked.linkage.ele import RESULTS_OF_LINKING
from dplinked.linker.rules import LATE, Links

if TYPE_CHECKING:
    import pyarrow as pa

    from dplinked.linker.linked import Linked

BLOCK, SCORE, PROBABILITY = RESULTS_OF_LINKING


def id_column(table: pa.Table, name: str | None) -> pa.Array:
    """The ids of a file's records as texts; row numbers from 1 on if there is no id column."""
    import pyarrow as pa

    if name is None:
        return pa.array(np.arange(1, table.num_rows + 1)).cast(pa.string())
    return column_texts(table, name, "").combine_chunks()


def partners(links: Links) -> pa.Array:
    """Position of each row's partner in the right file, null if it has none."""
    import pyarrow as pa

    return pa.array(links.right, pa.int64(), mask=links.right < 0)


def join_pairs(linked: Linked, probability: NDArray[np.float64]) -> pa.Table:
    """The ids of both records of each link, with what is known about it; `probability` is that of each row's link (n)."""
    import pyarrow as pa

    files = zip((linked.left, linked.right), linked.ids, strict=True)
    left_ids, right_ids = (id_column(table, name) for table, name in files)
    return pa.table(
        {"left": left_ids, "right": right_ids.take(partners(linked.links)), **_about_links(linked, probability)}
    )


def join_rows(linked: Linked, probability: NDArray[np.float64]) -> pa.Table:
    """The left file's columns, the right file's, and what is known about each link; `probability` is that of each row's link (n)."""
    import pyarrow as pa

    named = (
        {*linked.blocks, *(field.name for field in linked.fields)},
        {*linked.blocks, *(f.right for f in linked.fields)},
    )
    left = with_numbers(linked.left, {*named[0], linked.ids[0]})
    right = with_numbers(linked.right, {*named[1], linked.ids[1]})
    columns = list(left.columns)
    fields = [mark_origin(field, LEFT, compared=field.name in named[0]) for field in left.schema]
    taken, names = right.take(partners(linked.links)), set(left.column_names)
    about = _about_links(linked, probability)
    for column, field in zip(taken.columns, taken.schema, strict=True):
        marked = mark_origin(
            field.with_nullable(True), RIGHT, compared=field.name in named[1], carriers=linked.carriers
        )
        columns.append(column)
        fields.append(marked.with_name(f"{field.name}_right" if field.name in names else field.name))
    known = [field.name for field in fields] + list(about)
    if len(set(known)) < len(known):
        raise StudyError(
            f"Linked rows would have two columns of one name (…_right, or {list(about)}). Rename them first."
        )
    schema = pa.schema([*fields, *(pa.field(name, array.type) for name, array in about.items())])
    return pa.table([*columns, *about.values()], schema=schema)


def _about_links(linked: Linked, probability: NDArray[np.float64]) -> dict[str, pa.Array]:
    """Block, score and probability of each link, as columns."""
    import pyarrow as pa

    block = linked.links.block
    if not linked.strata.per_block:  # all blocks share one accuracy; a null key gets the accuracy `other`
        block = block.copy()
        block[np.isin(block.astype(str), LATE)] = None
    score = linked.links.score
    return {
        BLOCK: pa.array(block.tolist(), pa.string()),
        SCORE: pa.array(score, mask=np.isnan(score)),
        PROBABILITY: pa.array(probability),
    }
