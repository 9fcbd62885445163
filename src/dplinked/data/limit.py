"""At most so many rows of a person: which ones, by a rule that no cell of anybody can influence."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np

from dplinked.data.keys import key_text
from dplinked.errors import StudyError, plain_faults, shown


@plain_faults
def limit_rows(table: Any, *, id: str, rows: int, key: str) -> Any:
    """Keep at most `rows` rows of each person.

    Parameters
    ----------
    table
        A pandas, polars or pyarrow table, before it is linked. What comes back is of the same kind, its rows in the same order.
    id
        The column that says which rows belong to one person. Rows without an id are left out.
    rows
        How many rows of a person are kept.
    key
        Any text. The rows of a person are put in the order of a hash of this text, the id and the row's number among those of the same id, and the first ones are kept. So which are kept
        depends on no other person, and on no cell but the id.
    """
    import narwhals as nw

    frame = nw.from_native(table, eager_only=True)
    if id not in frame.columns:
        raise StudyError(f"The column {shown(id)} is not in the table.")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise StudyError(f"rows must be a whole number of at least 1, not {shown(rows)}.")
    seen: Counter[str] = Counter()
    places: dict[str, list[tuple[bytes, int]]] = {}
    for place, text in enumerate(map(key_text, frame[id].to_list())):
        if text is not None:
            places.setdefault(text, []).append((_rank(key, text, seen[text]), place))
            seen[text] += 1
    kept = np.zeros(len(frame), bool)
    for listed in places.values():
        kept[[place for _, place in sorted(listed)[:rows]]] = True
    return frame.filter(kept.tolist()).to_native()


def _rank(key: str, text: str, number: int) -> bytes:
    """A hash by which the rows of a person are put in order."""
    return hashlib.blake2b(
        f"{number}:{text}".encode("utf-8", "surrogatepass"), key=hashlib.sha256(key.encode()).digest()
    ).digest()
