"""One generator of neighbouring data for all privacy tests.

A :class:`Pair` is two linked files that differ in one individual as far as its privacy unit allows: the
person's regressors and response, where the response sits, and, if the unit says so, links, blocks and Q.
Extremes are drawn often, since that is where sensitivities are reached.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

import dplinked as dpl

BOUNDS = {"y": (-2.0, 6.0), "x": (0.0, 10.0), "w": (-3.0, 1.0)}
LEVELS = {"g": ["a", "b", "c"]}
NUMERIC = ("x", "w")
WILD = (np.nan, np.inf, -np.inf, 1e300, -1e300, 1e9, -1e9)


@dataclass(frozen=True)
class Pair:
    """Neighbouring data, the linkage of each, and the unit under which they are neighbours."""

    data: dict[str, Any]
    other: dict[str, Any]
    linkage: Any
    other_linkage: Any
    unit: dpl.PrivacyUnit
    note: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def rows(rng: np.random.Generator, n: int, style: str) -> dict[str, np.ndarray]:
    """Numeric cells: `aligned` puts all at one corner, `extreme` at random corners, `inside` anywhere, `wild` beyond."""
    out = {}
    for name, (low, high) in BOUNDS.items():
        if style == "aligned":
            values = np.full(n, rng.choice([low, high]))
        elif style == "extreme":
            values = rng.choice([low, high], n)
        else:
            values = rng.uniform(low, high, n)
        if style == "wild":
            chosen = rng.random(n) < 0.4
            values[chosen] = rng.choice(WILD, chosen.sum())
        out[name] = values
    out["g"] = rng.choice(["a", "b", "c", "undeclared", None], n).astype(object)
    return out


def make_pair(rng: np.random.Generator, kind: str, sizes: Sequence[int] | None = None) -> Pair:
    """Draw a pair for a linkage kind, one of `KINDS` or `FURTHER_KINDS`; its blocks may be given by their sizes."""
    n = int(rng.choice([4, 7, 12, 30]) if sizes is None else sum(sizes))
    style = rng.choice(["aligned", "extreme", "inside", "wild"])
    base = rows(rng, n, style)
    blocks = rng.integers(0, max(1, n // 4), n)
    if sizes is not None:
        blocks = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    holder = np.arange(n)  # holder[i]: whose response sits on row i
    if kind != "exact":
        for b in np.unique(blocks):
            where = np.flatnonzero(blocks == b)
            if rng.random() < 0.7:
                holder[where] = rng.permutation(where)
    y = base.pop("y")
    data = {**base, "y": y[holder], "block": blocks.astype(np.int64)}

    # The person: most often flips from corner to corner.
    j = int(rng.integers(n))
    p = int(np.flatnonzero(holder == j)[0])
    other = {name: column.copy() for name, column in data.items()}
    fresh = rows(rng, 1, rng.choice(["extreme", "extreme", "inside", "wild"]))
    flip = rng.random() < 0.6
    for name in NUMERIC:
        low, high = BOUNDS[name]
        value = low + high - np.clip(np.nan_to_num(data[name][j], nan=low), low, high) if flip else fresh[name][0]
        other[name][j] = value
    other["g"][j] = fresh["g"][0]
    low, high = BOUNDS["y"]
    other["y"][p] = low + high - np.clip(np.nan_to_num(data["y"][p], nan=low), low, high) if flip else fresh["y"][0]
    if kind == "exact":
        return Pair(data, other, dpl.Exact(), dpl.Exact(), dpl.PrivacyUnit(), style)
    if kind == "matching":
        return _matching_pair(rng, data, other, j, p, style)

    unit, accuracy = dpl.PrivacyUnit(), float(rng.choice([0.35, 0.6, 0.8, 0.95, 1.0]))
    linkage = dpl.ELE(max(accuracy, 0.5), block="block", other=0.5)
    if kind == "ele-one":
        linkage = dpl.ELE(1.0, block="block")
    if kind == "table":
        keys = np.unique(blocks)
        linkage = dpl.ELE({int(k): float(rng.uniform(0.5, 1)) for k in [*keys[1:], -1]}, block="block", other=0.55)
    if kind == "displaced":
        unit = _displace(rng, other, j, p)
    if kind == "mover":
        least = float(rng.choice([0.2, 0.9, 0.99]))
        table = {int(k): float(rng.uniform(least, 1)) for k in np.unique(blocks)[::2]}
        linkage = dpl.ELE(table, block="block", other=least)
        if rng.random() < 0.5:
            return _worst_move(data, linkage)
        unit = _move(rng, data, other, j, p)
    if kind == "carriers":
        return _copied_response(rng, data, other, j, linkage)
    if kind == "regrouped":
        return _changed_groups(rng, data, other)
    if kind == "paper-m":
        return _changed_accuracy(rng, data, other, blocks)
    if kind == "estimated":
        return _estimated_accuracy(rng, data, other, blocks)
    return Pair(data, other, linkage, linkage, unit, style)


def _displace(rng: np.random.Generator, other: dict[str, Any], j: int, p: int) -> dpl.PrivacyUnit:
    free = [i for i in range(len(other["y"])) if i not in (j, p)]
    k = int(min(len(free), rng.integers(1, 4)))
    chosen = rng.choice(free, k, replace=False) if k else []
    low, high = BOUNDS["y"]
    if k and j != p and rng.random() < 0.5:  # the person's own row is linked anew as well
        chosen = [*chosen, j]
    for i in chosen:  # a global linker may bring any response here, from other blocks too
        other["y"][i] = low + high - np.clip(np.nan_to_num(other["y"][i], nan=low), low, high)
    return dpl.PrivacyUnit(displaced_links=k)


def _move(rng: np.random.Generator, data: dict[str, Any], other: dict[str, Any], j: int, p: int) -> dpl.PrivacyUnit:
    """Person j moves to another block; row p takes what row j held, row r there gives its response to j."""
    target = int(rng.integers(0, data["block"].max() + 2))
    theirs = np.flatnonzero((data["block"] == target) & (np.arange(len(data["y"])) != j))
    person_response = other["y"][p]
    other["block"][j] = target
    if p != j:
        other["y"][p] = data["y"][j]
    if len(theirs) and rng.random() < 0.8:
        r = int(rng.choice(theirs))
        if r != p:
            other["y"][j], other["y"][r] = other["y"][r], person_response
            return dpl.PrivacyUnit(moves_block=True)
    other["y"][j] = person_response
    return dpl.PrivacyUnit(moves_block=True)


def _worst_move(data: dict[str, Any], linkage: Any, carriers: int = 1) -> Pair:
    """A move in which the mover's row, the rows that held their response and those that take it all pull one way."""
    n = len(data["y"])
    j, p, r = 0, np.arange(1, 1 + carriers), np.arange(1 + carriers, 1 + 2 * carriers)
    data = {name: column.copy() for name, column in data.items()}
    data["block"][[j, *p]], data["block"][r] = 0, 1
    data["g"][:] = "a"
    (low, high) = BOUNDS["y"]
    data["y"][:n] = high
    data["y"][p] = low
    for name in NUMERIC:
        data[name][[j, *r]], data[name][p] = BOUNDS[name][1], BOUNDS[name][0]
    other = {name: column.copy() for name, column in data.items()}
    other["block"][j] = 1
    for name in NUMERIC:
        other[name][j] = BOUNDS[name][0]
    other["y"][j], other["y"][p], other["y"][r] = data["y"][r[0]], data["y"][j], low
    return Pair(data, other, linkage, linkage, dpl.PrivacyUnit(moves_block=True), "worst move")


def _copied_response(
    rng: np.random.Generator, data: dict[str, Any], other: dict[str, Any], j: int, linkage: Any
) -> Pair:
    """One-to-many links: up to 1, 2 or 5 rows carry the person's response, and all of them change with it."""
    n, low, high = len(data["y"]), *BOUNDS["y"]
    most = int(rng.choice([c for c in (1, 2, 5) if 2 * c < n]))
    linkage = dpl.ELE(linkage.accuracy, "block", other=0.5, carriers=most)
    if rng.random() < 0.3:
        return _worst_move(data, linkage, most)
    rows = rng.choice([i for i in range(n) if i != j], most, replace=False)
    data["y"][rows] = y = rng.choice([low, high])
    other["y"][:] = data["y"]
    other["y"][rows] = low + high - y
    if rng.random() < 0.5:  # rows that pull one way: there the bounds are reached
        for name in NUMERIC:
            data[name][rows] = other[name][rows] = data[name][rows[0]]
    return Pair(data, other, linkage, linkage, dpl.PrivacyUnit(), f"{most} carriers")


def _changed_groups(rng: np.random.Generator, data: dict[str, Any], other: dict[str, Any]) -> Pair:
    """Rows change their groups within the declared M: sizes change, groups come and go, also such that nobody listed."""
    groups = other["block"] = data["block"].copy()
    for i in rng.choice(groups.size, int(rng.integers(1, 4)), replace=False):
        groups[i] = rng.integers(0, data["block"].max() + 2)
    keys = [int(key) for key in np.unique(data["block"])]
    accuracy, found = {key: float(rng.uniform(0.3, 1.0)) for key in keys}, {key: 20.0 + key for key in keys}
    linkage = dpl.ELE(accuracy, "block", checked=found, source="public")
    before, after = (group_matrix(table["block"], accuracy, min(accuracy.values())) for table in (data, other))
    unit = dpl.PrivacyUnit(linkage_change=float(np.abs(before - after).sum()) + 1e-9)
    return Pair(data, other, linkage, linkage, unit, "regrouped")


def _changed_accuracy(rng: np.random.Generator, data: dict[str, Any], other: dict[str, Any], blocks: Any) -> Pair:
    """The paper's model: Q changes by at most M, here through the accuracy of one block."""
    table = {int(k): int(rng.integers(36, 60)) / 64 for k in np.unique(blocks)}  # binary fractions: their mean is exact
    changed, moved = dict(table), 0.0
    if len(table) > 1:  # up here, down there: what is declared of the table (mean and minimum) is the same
        change = int(rng.integers(1, 4)) / 64
        for key, sign in zip(rng.choice(list(table), 2, replace=False), (1, -1), strict=True):
            size = int((blocks == key).sum())
            changed[int(key)] = table[int(key)] + sign * change
            moved += 2.0 * size * change if size > 1 else 0.0
    unit = dpl.PrivacyUnit(linkage_change=moved + 1e-9)
    return Pair(
        data,
        other,
        dpl.ELE(table, block="block", other=0.5),
        dpl.ELE(changed, block="block", other=0.5),
        unit,
        "accuracy",
    )


def _estimated_accuracy(rng: np.random.Generator, data: dict[str, Any], other: dict[str, Any], blocks: Any) -> Pair:
    """Accuracies that are data: any of them may differ, within the declared M, and nothing of the table may show."""
    table = {int(k): float(rng.uniform(0.1, 1.0)) for k in np.unique(blocks)}
    changed = {k: float(rng.uniform(0.1, 1.0)) if rng.random() < 0.5 else value for k, value in table.items()}
    sizes = {k: int((blocks == k).sum()) for k in table}
    moved = sum(2.0 * sizes[k] * abs(max(table[k], 0.5) - max(changed[k], 0.5)) for k in table if sizes[k] > 1)
    models = [dpl.ELE(t, block="block", source="estimated", accuracy_min=0.5) for t in (table, changed)]
    return Pair(data, other, *models, dpl.PrivacyUnit(linkage_change=moved + 1e-9), "estimated")


def _matching_pair(
    rng: np.random.Generator, data: dict[str, Any], other: dict[str, Any], j: int, p: int, note: str
) -> Pair:
    """An explicit matrix, of links that are rather wrong or that are near enough to right for pairs to be unlinked."""
    n, near = len(data["y"]), rng.random() < 0.5
    Q, wrong = np.eye(n), 0.04 if near else 0.4
    for _ in range(3):
        Q = (1.0 - wrong) * Q + wrong * Q[rng.permutation(n)]
    Q2 = Q.copy()
    t = 0.0
    if n > 1:
        a, b = rng.choice(n, 2, replace=False)
        c, d = rng.choice(n, 2, replace=False)
        t = float(min(Q2[a, c], Q2[b, d], 0.1 if near else 1.0)) * rng.random()
        Q2[a, c] -= t
        Q2[b, d] -= t
        Q2[a, d] += t
        Q2[b, c] += t
    unit = dpl.PrivacyUnit(linkage_change=4 * t + 1e-9, displaced_links=0)
    if rng.random() < 0.5:
        extra = _displace(rng, other, j, p)
        unit = dpl.PrivacyUnit(linkage_change=4 * t + 1e-9, displaced_links=extra.displaced_links)
    least = 0.78 if near else 0.0
    both = (dpl.Matching(sp.csr_array(matrix), accuracy_min=least) for matrix in (Q, Q2))
    return Pair(data, other, *both, unit, note)


KINDS = ("exact", "ele", "ele-one", "table", "displaced", "mover", "paper-m", "estimated", "matching")


FURTHER_KINDS = ("carriers", "regrouped")


def by_id(data: dict[str, Any], linkage: Any) -> tuple[dict[str, Any], Any]:
    """Rows whose matching matrix, if they have one, is given as pairs of ids: rows of a database have no positions."""
    if not isinstance(linkage, dpl.Matching):
        return data, linkage
    n, entries = linkage.matrix.shape[0], sp.coo_array(linkage.matrix)
    pairs = pa.table({"row": entries.row, "match": entries.col, "probability": entries.data})
    declared = {name: getattr(linkage, name) for name in ("column_sum", "accuracy_min", "carriers")}
    return {**data, "id": np.arange(n)}, dpl.Matching(pairs, id="id", **declared)


def group_matrix(groups: np.ndarray, accuracy: dict[int, float], other: float) -> np.ndarray:
    """The matching matrix of exchangeable linkage errors for the group of each row; groups that are not listed form one, `other`."""
    known = np.array([key if key in accuracy else -1 for key in groups.tolist()])
    Q = np.zeros((known.size, known.size))
    for key in np.unique(known):
        where = np.flatnonzero(known == key)
        Q[np.ix_(where, where)] = ele_matrix([where.size], [accuracy.get(int(key), other)])
    return Q


def ele_matrix(sizes: list[int], gammas: list[float]) -> np.ndarray:
    """The matching matrix of exchangeable linkage errors, block after block."""
    n = sum(sizes)
    Q, at = np.zeros((n, n)), 0
    for m, gamma in zip(sizes, gammas, strict=True):
        block = np.full((m, m), (1 - gamma) / (m - 1)) if m > 1 else np.ones((1, 1))
        if m > 1:
            np.fill_diagonal(block, gamma)
        Q[at : at + m, at : at + m] = block
        at += m
    return Q


# --- one cell of one person, of whatever kind, in whatever holds the rows --------------------------------

WILD_CELLS: dict[str, Any] = {
    "word": "word", "empty": "", "blank": " \t", "number as text": "2.5", "text with a comma": "1,5", "huge text": "9" * 20_000, "long text": "x" * 20_000, "lines": "1\n2",
    "quote": '"', "emoji": "🎲", "other digits": "１２", "nul": "\0", "half a surrogate pair": "\ud800", "true as text": "True", "nan as text": "nan",
    "huge": 10**400, "large": 10**30, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "None": None, "NA": pd.NA, "NaT": pd.NaT, "true": True,
    "NumPy's true": np.True_, "long float": np.longdouble("1e4000"), "complex": 1 + 2j, "NumPy's complex": np.complex128(1 + 2j), "decimal": Decimal("2.5"), "decimal NaN": Decimal("sNaN"),
    "huge decimal": Decimal("1e999"), "bytes": b"2.5", "broken bytes": b"\xff\xfe", "date": datetime.date(2001, 1, 1), "time": pd.Timestamp("2001-01-01"), "duration": np.timedelta64(5, "D"),
    "list": [1.0], "nested": [[1.0], [2.0]], "no list": [], "tuple": (1.0, 2.0), "mapping": {"a": 1}, "set": {1.0}, "object": object(), "type": float,
}  # fmt: skip
Cells = dict[str, list[Any]]


def as_text(cell: Any) -> str | None:
    """A cell as a container of texts would hold it; half a surrogate pair cannot be in one."""
    missing = cell is None or cell is pd.NA or cell is pd.NaT
    return None if missing else str(cell).encode("utf-8", "replace").decode()


def text_table(cells: Cells) -> pa.Table:
    """All columns as texts."""
    return pa.table({name: pa.array(map(as_text, column), pa.string()) for name, column in cells.items()})


def write_csv(cells: Cells, folder: Path) -> Path:
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(
            ["" if cell is None else cell for cell in row]
            for row in zip(*text_table(cells).to_pydict().values(), strict=True)
        )
    return folder / "rows.csv"


def write_abroad(cells: Cells, folder: Path) -> dpl.File:
    """A text file as programs of other countries write it: semicolons, decimal commas, another encoding; compressed."""
    with gzip.open(folder / "rows.csv.gz", "wt", newline="", encoding="utf-16") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(cells)
        for row in zip(*cells.values(), strict=True):
            texts = [str(cell).replace(".", ",") if isinstance(cell, float) else as_text(cell) for cell in row]
            writer.writerow(["" if text is None else text for text in texts])
    return dpl.File(folder / "rows.csv.gz", separator=";", decimal=",", thousands=".", encoding="utf-16")


def write_sheet(cells: Cells, folder: Path) -> Path:
    """A sheet, whose cells are numbers, dates, texts or nothing each by itself."""
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(list(cells))
    for row in zip(*cells.values(), strict=True):
        known = (bool, int, float, datetime.date)
        held = [cell if type(cell) in known and abs_below(cell) else as_text(cell) for cell in row]
        sheet.append([ILLEGAL_CHARACTERS_RE.sub("", cell) if isinstance(cell, str) else cell for cell in held])
    book.save(folder / "rows.xlsx")
    return folder / "rows.xlsx"


def abs_below(cell: Any) -> bool:
    """Whether a sheet can hold a cell as it is."""
    return not isinstance(cell, (int, float)) or abs(cell) < 1e300


def write_json(cells: Cells, path: Path) -> Path:
    """Records, in lines or not; what JSON cannot hold is a text."""
    records = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    texts = [json.dumps(record, default=str) for record in records]
    path.write_text("\n".join(texts) if path.suffix == ".jsonl" else f"[{', '.join(texts)}]", encoding="utf-8")
    return path


def write_texts(cells: Cells, folder: Path) -> Path:
    pq.write_table(text_table(cells), folder / "rows.parquet", row_group_size=3)
    return folder / "rows.parquet"


def polars_objects(cells: Cells) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, column, dtype=pl.Object) for name, column in cells.items()])


CONTAINERS: dict[str, Callable[[Cells, Path], Any]] = {
    "lists": lambda cells, _: cells,
    "objects": lambda cells, _: {name: np.fromiter(column, object, len(column)) for name, column in cells.items()},
    "arrays of texts": lambda cells, _: {name: np.array([as_text(cell) or "" for cell in column]) for name, column in cells.items()},
    "pandas": lambda cells, _: pd.DataFrame({name: pd.Series(column) for name, column in cells.items()}),
    "pandas objects": lambda cells, _: pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()}),
    "pandas texts": lambda cells, _: text_table(cells).to_pandas(),
    "polars": lambda cells, _: pl.from_arrow(text_table(cells)),
    "polars objects": lambda cells, _: polars_objects(cells),
    "arrow": lambda cells, _: text_table(cells),
    "arrow dictionaries": lambda cells, _: pa.table({n: c.combine_chunks().dictionary_encode() for n, c in zip(cells, text_table(cells).columns, strict=True)}),
    "stream": lambda cells, _: text_table(cells).to_reader(max_chunksize=2),
    "csv": write_csv,
    "read csv": lambda cells, folder: pd.read_csv(write_csv(cells, folder)),
    "csv abroad": write_abroad,
    "sheet": write_sheet,
    "parquet": write_texts,
    "json": lambda cells, folder: write_json(cells, folder / "rows.json"),
    "json lines": lambda cells, folder: write_json(cells, folder / "rows.jsonl"),
    "query": lambda cells, folder: dpl.Query(f"select * from '{write_texts(cells, folder)}'"),
}  # fmt: skip
# What pandas cannot hold, and what DuckDB takes for a file that is malformed as a whole.
UNREADABLE = {("pandas", "half a surrogate pair"), ("json", "half a surrogate pair")}


def wild_pair(rng: np.random.Generator, kind: str, column: str, cell: Any) -> Pair:
    """Neighbours as lists of plain cells, in the second of which one cell of one person is replaced.

    Numbers are such that every reader of CSV files reads them alike.
    """
    pair = make_pair(rng, kind)
    cells: Cells = {name: column.tolist() for name, column in pair.data.items()}
    for name in (*NUMERIC, "y"):
        cells[name] = [round(value * 64) / 64 if abs(value) < 1e3 else value for value in cells[name]]
    other = {name: list(column) for name, column in cells.items()}
    other[column][int(rng.integers(len(cells["y"])))] = cell
    return replace(pair, data=cells, other=other)
