"""Studies to attack, and neighbours as docs/privacy-promise.md defines them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

import dplinked as dpl
from attack_sources import SOURCES, Source, object_array

Draw = np.random.Generator

BOUNDS: dict[str, tuple[float, float]] = {"x": (0.0, 1.0), "w": (-3.0, 5.0), "v": (1.0, 100.0), "y": (-2.0, 6.0)}
LEVELS = {"g": ["a", "b", "c"]}
FORMULAS = [
    "y ~ x", "y ~ x + w", "y ~ 0 + x", "y ~ 0 + x + w", "y ~ C(g)", "y ~ 0 + C(g)", "y ~ x + C(g)", "y ~ x * w", "y ~ x:C(g)", "y ~ x * C(g)",
    "y ~ log(v)", "y ~ sqrt(v) + x", "y ~ I(x**2) + x", "y ~ I(1/v) + w", "y ~ 1", "I(y**2) ~ x",
]  # fmt: skip
DESCENT = dpl.Descent(radius=1.5, step=0.05, iterations=2)
PATHS: dict[str, dict[str, Any]] = {
    "ssp tight": {},
    "ssp tight, typical": {"typical": {"x": (0.3, 0.6), "w": (0.0, 1.0), "v": (10.0, 30.0)}},
    "ssp tight, no intervals": {"intervals": False},
    "ssp tight, private ranges": {"ranges": "private"},
    "ssp tight, private ranges, no intervals": {"ranges": "private", "intervals": False},
    "ssp tight, ridge": {"ridge": 0.1},
    "ssp tight, fill at a bound": {"fill": {"x": 1.0, "w": -3.0, "v": 1.0, "y": 6.0}},
    "ssp paper": {"calibration": "paper"},
    "ssp paper, row norm": {"calibration": "paper", "row_norm": 1.2, "response_bound": 3.0},
    "ngd tight": {"method": "ngd"},
    "ngd tight, no intervals": {"method": "ngd", "intervals": False, "descent": DESCENT},
    "ngd tight, typical": {"method": "ngd", "typical": {"x": (0.3, 0.6), "w": (0.0, 1.0), "v": (10.0, 30.0)}},
    "ngd paper": {"method": "ngd", "calibration": "paper", "descent": DESCENT},
    "LinkedRegression": {},
}
LINKAGES = [
    "Exact", "ELE", "ELE, one block", "ELE, table", "ELE, table and other", "ELE, perfect", "ELE, checked", "ELE, released", "ELE, estimated",
    "ELE, estimated, one block", "Matching", "Matching, table", "Matching, ids", "Matching, one to many", "Matching, accuracy_min",
]  # fmt: skip
if "carriers" in inspect.signature(dpl.ELE).parameters:
    LINKAGES.append("ELE, carriers")
MOVABLE = [
    "ELE",
    "ELE, table and other",
    "ELE, perfect",
    "ELE, checked",
    "ELE, estimated",
    *(kind for kind in LINKAGES if "carriers" in kind),
]
ARRAYS = ["NumPy", "NumPy objects", "pandas", "pandas objects", "polars"]  # containers for LinkedRegression
UNITS = [
    {}, {"displaced_links": 1}, {"displaced_links": 3}, {"linkage_change": 2.0}, {"linkage_change": 0.5, "displaced_links": 2},
    {"moves_block": True}, {"moves_block": True, "displaced_links": 1}, {"moves_block": True, "linkage_change": 0.1, "displaced_links": 2},
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A study in a container, and how noise is drawn in the attack: everything that both neighbours share."""

    path: str
    formula: str
    linkage: str
    unit: dpl.PrivacyUnit
    source: str
    rows: int
    epsilon: float
    noise: str

    @property
    def columns(self) -> list[str]:
        return [name for name in (*BOUNDS, *LEVELS) if name in re.findall(r"\w+", self.formula)]

    @property
    def container(self) -> Source:
        return SOURCES[self.source]


def draw_target(rng: Draw, slow: bool, sources: list[str]) -> Target:
    """Draw a study at random, among those that the documentation allows."""
    path, unit, source = str(rng.choice(list(PATHS))), dict(UNITS[rng.integers(len(UNITS))]), str(rng.choice(sources))
    if path == "LinkedRegression":
        source = str(rng.choice(ARRAYS))
    linkage = _draw_linkage(
        rng, unit, with_ids=slow and path != "LinkedRegression", with_id_column=path != "LinkedRegression"
    )
    if linkage == "ELE, released":  # takes the unit that its accuracies were released for
        unit = {"displaced_links": unit.get("displaced_links", 0)}
    if linkage.startswith(("Matching", "ELE, estimated")):
        unit = {"displaced_links": 0, "linkage_change": 1.0, **unit}
    formulas = [f for f in FORMULAS if path != "LinkedRegression" or re.fullmatch(r"y ~ (0 \+ )?x( \+ w)?", f)]
    # Large ones reach the variance's routes with few rows; the paper's calibrations hold below 1.
    epsilons = [0.3, 0.9] if "paper" in path else [0.3, 1, 10, 300, 1e4, 1e6]
    rows = int(rng.integers(4, 31 if rng.random() < 0.3 else 12))
    noise = str(rng.choice(["normal", "none", "large", "one side", "anything"]))
    return Target(
        path,
        str(rng.choice(formulas)),
        linkage,
        dpl.PrivacyUnit(**unit),
        source,
        rows,
        float(rng.choice(epsilons)),
        noise,
    )


def _draw_linkage(rng: Draw, unit: dict[str, Any], with_ids: bool, with_id_column: bool) -> str:
    """A linkage that goes with the unit; rows in a database have ids and no positions, and arrays have no ids."""
    if unit.get("moves_block"):
        return str(rng.choice(MOVABLE))
    kinds = [kind for kind in LINKAGES if kind != "Exact" or not unit]
    kinds = [kind for kind in kinds if kind == "Matching, ids" or not (with_ids and kind.startswith("Matching"))]
    return str(rng.choice([kind for kind in kinds if kind != "Matching, ids" or with_id_column]))


def noise_of(target: Target, rng: Draw) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Noise for the first neighbour: the bounds must hold whatever was drawn."""
    draws: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "normal": lambda _: rng.normal(size=_.shape),
        "none": np.zeros_like,
        "large": lambda _: 30 * rng.normal(size=_.shape),
        "one side": lambda _: np.full(_.shape, 3.0),
        "anything": lambda _: rng.choice([-1e4, -5.0, 0.0, 5.0, 1e4], size=_.shape),
    }
    return lambda values, scale: values + scale * draws[target.noise](values)


@dataclass
class Neighbours:
    """Rows of D, the cells that D' has instead, and both linkages. Cells of one group hold the same value: one person's response."""

    target: Target
    cells: dict[str, list[Any]]
    other: dict[tuple[str, int], Any]
    groups: list[list[tuple[str, int]]]
    linkages: tuple[Any, Any]
    moved: tuple[int, Any] | None = None
    carriers: list[int] = field(default_factory=list)

    def sides(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        second = {name: list(column) for name, column in self.cells.items()}
        for (name, row), cell in self.other.items():
            second[name][row] = cell
        return self.cells, second

    def copy(self) -> Neighbours:
        cells = {name: list(column) for name, column in self.cells.items()}
        return Neighbours(self.target, cells, dict(self.other), self.groups, self.linkages, self.moved, self.carriers)


def draw_cell(rng: Draw, target: Target, column: str, wild: float) -> Any:
    """A corner of the bounds most of the time, a cell that no column should hold for a share `wild` of the time."""
    if rng.random() < wild:
        cells = target.container.wild_cells(column)
        return cells[rng.integers(len(cells))]
    if column in LEVELS:
        return LEVELS[column][rng.integers(3)]
    low, high = BOUNDS[column]
    share = float(rng.choice([0, 1, 0, 1, 0, 1, 0.5, rng.random(), -3.0]))
    cell = low + share * (high - low)
    return str(cell) if target.container.wild == "texts" else cell


def draw_neighbours(rng: Draw, target: Target, wild: float) -> Neighbours:
    """Neighbours at random, often with all rows pulling one way."""
    cells: dict[str, list[Any]] = {}
    for name in target.columns:
        whole, same = draw_cell(rng, target, name, 0), rng.random() < 0.5
        cells[name] = [whole if same else draw_cell(rng, target, name, wild) for _ in range(target.rows)]
    keys = ["p", "q", "r"][: rng.integers(1, 4)]
    cells["b"] = [keys[rng.integers(len(keys))] for _ in range(target.rows)]
    if "other" in target.linkage and not target.linkage.endswith("one block"):
        cells["b"] = [None if rng.random() < 0.2 else key for key in cells["b"]]
    cells["id"] = [f"i{row}" for row in range(target.rows)]
    person, carriers, relinked, moved = _draw_person(rng, target, cells["b"])
    groups = (
        [[(name, person)] for name in target.columns if name != "y"]
        + [[("y", row) for row in carriers]]
        + [[("y", row)] for row in relinked]
    )
    pair = Neighbours(target, cells, {}, groups, (None, None), moved, carriers)
    if moved:
        pair.other["b", person] = moved[1]
    for group in groups:
        set_first(pair, group[0], cells[group[0][0]][group[0][1]])
        set_second(pair, group, draw_cell(rng, target, group[0][0], wild))
    pair.linkages = draw_linkages(rng, target, pair)
    return pair


def _draw_person(
    rng: Draw, target: Target, keys: list[Any]
) -> tuple[int, list[int], list[int], tuple[int, Any] | None]:
    """Whose row, the rows that hold their response, the rows linked anew, and the block moved to."""
    unit, order = target.unit, [int(row) for row in rng.permutation(target.rows)]
    person, moved = order[0], None
    right = target.linkage == "Exact" or rng.random() < 0.4
    count = 3 if "one to many" in target.linkage or "carriers" in target.linkage else 1
    carriers = ([person] if right else []) + order[1 : 1 + count - right]
    relinked = [row for row in order[4 : 4 + (unit.displaced_links or 0)] if row not in carriers]
    if unit.moves_block and rng.random() < 0.85:
        wild = target.container.wild_cells("b")
        moved = (person, [*dict.fromkeys(keys), "new", wild[rng.integers(len(wild))]][rng.integers(len(set(keys)) + 2)])
        relinked += [
            row
            for row, key in enumerate(keys)
            if _same_key(key, moved[1]) and row not in (person, *carriers, *relinked)
        ][:1]
    if (unit.displaced_links or moved) and person not in carriers:
        relinked.append(person)
    return person, carriers, relinked, moved


def _same_key(key: Any, other: Any) -> bool:
    return key is other or (isinstance(other, str) and key == other)


def set_first(pair: Neighbours, place: tuple[str, int], cell: Any) -> None:
    """Put a cell into D, and into D' where that does not differ."""
    name, row = place
    for at in pair.carriers if name == "y" and row in pair.carriers else [row]:
        pair.cells[name][at] = cell


def set_second(pair: Neighbours, group: list[tuple[str, int]], cell: Any) -> None:
    for place in group:
        pair.other[place] = cell


def mutate(rng: Draw, pair: Neighbours, wild: float) -> Neighbours:
    """Change a few cells of D or D' at random."""
    child, target = pair.copy(), pair.target
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.4:
            group = pair.groups[rng.integers(len(pair.groups))]
            set_second(child, group, draw_cell(rng, target, group[0][0], wild))
        elif rng.random() < 0.15:
            name = str(rng.choice(target.columns))
            whole = draw_cell(rng, target, name, 0)
            for row in range(target.rows):
                set_first(child, (name, row), whole)
        else:
            name = str(rng.choice(target.columns))
            set_first(child, (name, int(rng.integers(target.rows))), draw_cell(rng, target, name, wild))
    return child


# --- linkages -----------------------------------------------------------------------------------------------------------------------


def draw_linkages(rng: Draw, target: Target, pair: Neighbours) -> tuple[Any, Any]:
    """The linkage of both neighbours: the same one, unless it is data and the unit lets it change."""
    kind = target.linkage
    if kind == "Exact":
        return dpl.Exact(), dpl.Exact()
    if kind.startswith("Matching"):
        return _draw_matchings(rng, target)
    if "estimated" in kind:
        return _draw_estimates(rng, target, pair)
    block = None if "one block" in kind else "b"
    accuracy = float(rng.choice([0.5, 0.6, 0.75, 0.95, 1.0]))
    table = {"p": 0.6, "q": accuracy, "r": 1.0}
    model = {
        "ELE": lambda: dpl.ELE(accuracy, block=block),
        "ELE, one block": lambda: dpl.ELE(accuracy),
        "ELE, table": lambda: dpl.ELE(pd.DataFrame({"b": list(table), "accuracy": list(table.values())}), block=block),
        "ELE, table and other": lambda: dpl.ELE(table, block=block, other=0.7),
        "ELE, perfect": lambda: dpl.ELE(1.0, block=block),
        "ELE, checked": lambda: dpl.ELE(table, block=block, other=0.8, checked=40, source="public"),
        "ELE, released": lambda: dpl.ELE(table, block=block, other=0.8, source="released", paid=0.3, displaced_links=target.unit.displaced_links or 0),
        "ELE, carriers": lambda: dpl.ELE(accuracy, block=block, carriers=3),
    }[kind]()  # fmt: skip
    return model, model


def _draw_estimates(rng: Draw, target: Target, pair: Neighbours) -> tuple[Any, Any]:
    """Two accuracies that move the matching matrix by at most the declared change."""
    change, least = target.unit.linkage_change or 0.0, 0.5
    settings: dict[str, Any] = {"source": "estimated", "accuracy_min": least}
    if "one block" in target.linkage:
        moved = min(change / (2 * target.rows), 0.5) * rng.choice([1.0, 1.0, 0.3])
        low = float(rng.uniform(least - 0.2, 1 - moved))
        return dpl.ELE(low, **settings), dpl.ELE(low + moved, **settings)
    first = {key: float(rng.uniform(least, 1)) for key in ("p", "q", "r")}
    size = max(pair.cells["b"].count("p"), 1)
    moved = 0.0 if pair.moved else min(change / (2 * size), 0.5)
    first["p"] = float(rng.uniform(least, 1 - moved))
    second = {**first, "p": first["p"] + moved}
    return dpl.ELE(first, block="b", other=0.9, **settings), dpl.ELE(second, block="b", other=0.9, **settings)


def _draw_matchings(rng: Draw, target: Target) -> tuple[Any, Any]:
    """Two matching matrices within the declared change: doubly stochastic ones, or one-to-many."""
    n, change, many = target.rows, target.unit.linkage_change or 0.0, "one to many" in target.linkage
    weights = rng.dirichlet(np.full(4, 0.7))
    weights = np.array([0.6, *(0.4 * weights[1:] / weights[1:].sum())]) if "accuracy_min" in target.linkage else weights
    orders = [np.arange(n), *(rng.permutation(n) for _ in range(3))]
    first = sum(weight * np.eye(n)[order] for weight, order in zip(weights, orders, strict=True))
    least = 0.5 if "accuracy_min" in target.linkage else 0.0
    second = _move_mass(rng, first.copy(), change, least, many)
    return _matching(target, first), _matching(target, second)


def _move_mass(rng: Draw, matrix: np.ndarray, change: float, least: float, many: bool) -> np.ndarray:
    """Move probability around until the change is used up, keeping rows' sums, and columns' sums unless one-to-many."""
    n = len(matrix)
    for _ in range(60):
        a, c, b, d = *rng.choice(n, 2, replace=False), *rng.choice(n, 2, replace=False)
        floor = least * np.eye(n)
        if many:
            step = min(matrix[a, b] - floor[a, b], change / 2, 1.9 - matrix[:, d].sum())
            moves = [(a, b, -1), (a, d, 1)]
        else:
            step = min(matrix[a, b] - floor[a, b], matrix[c, d] - floor[c, d], change / 4)
            moves = [(a, b, -1), (c, d, -1), (a, d, 1), (c, b, 1)]
        if step > 0:
            for row, column, sign in moves:
                matrix[row, column] += sign * step
            change -= step * len(moves)
    return matrix


def _matching(target: Target, matrix: np.ndarray) -> Any:
    settings: dict[str, Any] = {"accuracy_min": 0.5} if "accuracy_min" in target.linkage else {}
    if "one to many" in target.linkage:
        settings = {"column_sum": 2.0, "carriers": 3}
    kept = sparse.coo_matrix(np.where(np.abs(matrix) < 1e-12, 0, matrix))
    if "ids" in target.linkage:
        pairs = {
            "row": [f"i{row}" for row in kept.row],
            "match": [f"i{row}" for row in kept.col],
            "probability": kept.data,
        }
        return dpl.Matching(pairs, id="id", **settings)
    if "table" in target.linkage:
        return dpl.Matching(pd.DataFrame({"row": kept.row, "match": kept.col, "probability": kept.data}), **settings)
    return dpl.Matching(kept.tocsr(), **settings)


# --- runs ---------------------------------------------------------------------------------------------------------------------------


def prepare(target: Target, cells: dict[str, list[Any]], linkage: Any, folder: Path) -> Callable[[], Any]:
    """Put rows into their container, and return the release of them, ready to be run."""
    data = target.container.build(cells, folder)
    settings = {name: _only_used(target, value) for name, value in PATHS[target.path].items()}
    common = {
        "linkage": linkage, "unit": target.unit, "epsilon": target.epsilon, "delta": 1e-3, "large_epsilon": True, **settings,
    }  # fmt: skip
    if target.path == "LinkedRegression":
        return lambda: _estimate(target, data, cells, common)
    return lambda: dpl.fit(
        data, target.formula, bounds=_only_used(target, BOUNDS), levels=_only_used(target, LEVELS), **common
    )


def _only_used(target: Target, value: Any) -> Any:
    return (
        {name: setting for name, setting in value.items() if name in target.columns}
        if isinstance(value, dict)
        else value
    )


def _estimate(target: Target, data: Any, cells: dict[str, list[Any]], common: dict[str, Any]) -> Any:
    from dplinked.regression import LinkedRegression

    features = [name for name in target.columns if name != "y"]
    model = LinkedRegression(
        bounds={i if isinstance(data, dict) else name: BOUNDS[name] for i, name in enumerate(features)}, response_bounds=BOUNDS["y"],
        fit_intercept="0 +" not in target.formula, **common,
    )  # fmt: skip
    rows = np.column_stack([data[name] for name in features]) if isinstance(data, dict) else data[features]
    blocks = object_array(cells["b"]) if getattr(common["linkage"], "block", None) else None
    return model.fit(rows, data["y"], blocks=blocks).release_
