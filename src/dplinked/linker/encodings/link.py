"""Link encoded files, and join what their holders hand over for the analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import LEFT, RIGHT, column_origins, mark_origin, to_arrow
from dplinked.errors import StudyError, plain_faults
from dplinked.linker.checks import require_column
from dplinked.linker.encodings.compare import score_encodings
from dplinked.linker.encodings.encode import PSEUDONYM, Encodings, check_alike, read_encodings
from dplinked.linker.joined import BLOCK
from dplinked.linker.rules import Links
from dplinked.linker.scored import link_scored

if TYPE_CHECKING:
    import pyarrow as pa


def link_encodings(
    left: Any, right: Any, *, threshold: float, seed: int, carriers: int, everyone: str, other: str, rare: int
) -> tuple[pa.Table, pa.Table, Links, tuple[str, ...]]:
    """Link two encoded files. Returns a table of pseudonyms for each, the links, and the names of the columns that were encoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    a, b = read_encodings(left, "left"), read_encodings(right, "right")
    check_alike(a, b)
    if pc.any(pc.is_in(a.pseudonyms, b.pseudonyms)).as_py():
        raise StudyError("The two files have pseudonyms in common: a file cannot be linked with itself.")
    scored = score_encodings(a, b)
    links = link_scored(scored, None, threshold, _groups(a, b, everyone, other, rare), seed, carriers)
    return pa.table({PSEUDONYM: a.pseudonyms}), pa.table({PSEUDONYM: b.pseudonyms}), links, a.columns


def _groups(left: Encodings, right: Encodings, everyone: str, other: str, rare: int) -> NDArray[np.object_]:
    """Groups of left records whose accuracies are told apart: blocks of the first key, those that are rare or in one file alone together.

    They are numbered in the order of the keyed hashes, so that their names tell nothing.
    """
    groups = np.full(len(left.pseudonyms), everyone, dtype=object)
    if left.blocks:
        (keys, present), (others, have) = left.blocks[0], right.blocks[0]
        distinct, code, counts = np.unique(keys[present], return_inverse=True, return_counts=True)
        common = (counts * rare >= groups.size) & np.isin(distinct, others[have])
        names = np.full(distinct.size, other, dtype=object)
        names[common] = [f"block {number}" for number in range(1, int(common.sum()) + 1)]
        groups[:] = other
        groups[present] = names[code]
    return groups


@plain_faults
def join_encoded(links: Any, left: Any, right: Any) -> pa.Table:
    """The analysis unit's rows: what both holders handed over, put together by the links between their pseudonyms.

    Parameters
    ----------
    links
        ``linked.parquet`` of the linkage unit, or ``linked.rows``.
    left, right
        The holders' ``….rows.parquet``.

    Returns
    -------
    A table of both files' columns and of the links' groups, for :func:`dplinked.fit`. Rows are those of the left file, pseudonyms are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found, a, b = to_arrow(links, "links"), to_arrow(left, "left"), to_arrow(right, "right")
    for table, name, where in ((found, PSEUDONYM, "links"), (found, f"{PSEUDONYM}_right", "links"), (a, PSEUDONYM, "left"), (b, PSEUDONYM, "right")):  # fmt: skip
        require_column(table, name, where)
    for table, where in ((a, "left"), (b, "right")):
        if pc.count_distinct(table[PSEUDONYM]).as_py() != table.num_rows:
            raise StudyError(f"The {where} file names a pseudonym twice. Ask its holder for the file again.")
    if clash := (set(a.column_names) & set(b.column_names)) - {PSEUDONYM}:
        raise StudyError(f"Both files have the column(s) {sorted(clash)}. Ask a holder to rename them.")
    place = pc.index_in(found[PSEUDONYM], a[PSEUDONYM])
    partner = pc.index_in(found[f"{PSEUDONYM}_right"], b[PSEUDONYM])
    unknown = place.null_count or partner.null_count != found[f"{PSEUDONYM}_right"].null_count
    if unknown or found.num_rows != a.num_rows:
        raise StudyError(
            "The links name other pseudonyms than the two files have. Give the files that belong to them, that of the left holder first."
        )
    carriers = column_origins(found).carriers.get(f"{PSEUDONYM}_right", 1)
    columns, fields = [], []
    for table, order, name in ((a, place, LEFT), (b, partner, RIGHT)):
        taken = table.drop_columns([PSEUDONYM]).take(order)
        columns += taken.columns
        rows = carriers if name == RIGHT else 1
        fields += [mark_origin(field.with_nullable(True), name, carriers=rows) for field in taken.schema]
    groups = found.schema.field(BLOCK)
    return pa.table([*columns, found[BLOCK]], schema=pa.schema([*fields, groups]))
