"""Rows prepared for a pass: the blocks are found first, then cells are read piece by piece, clipped and scaled in strips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import Origins
from dplinked.data.encoding import Keys, block_places, encode_part, place_levels
from dplinked.data.sources import Progress
from dplinked.data.table import Rows
from dplinked.errors import StudyError
from dplinked.linkage import ELE, Exact, Linkage, Matching, PrivacyUnit
from dplinked.linkage.matching import is_whole
from dplinked.study.design import NULL, UNDECLARED, Design
from dplinked.sums.blocks import check_others, check_weights, find_facts, weigh_blocks
from dplinked.sums.partners import unlinking_terms
from dplinked.sums.rounding import STRIP, TILE
from dplinked.sums.types import BlockFacts

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Slots = NDArray[np.int64]


class Parts(Protocol):
    """Rows that are read part by part: a table in memory, or Parquet files."""

    columns: tuple[str, ...]
    count: int
    origins: Origins
    ordered: bool  # whether no cell decides the order of rows

    @property
    def parts(self) -> int:
        """Number of parts."""

    def require(self, names: Sequence[str], *, numeric: Sequence[str] = ()) -> None:
        """Check the schema."""

    def read(self, part: int, columns: Sequence[str]) -> Iterator[Rows]:
        """The rows of one part, in pieces that fit into memory."""

    def check_key(self, name: str) -> None:
        """Refuse a column whose type cannot be compared."""

    def find_keys(self, name: str) -> Keys:
        """Distinct keys of a column."""

    def holds_texts(self, name: str) -> bool:
        """Whether a column may hold texts, by its type."""


@dataclass(frozen=True, repr=False)
class Blocks:
    """The blocks that rows lie in.

    Attributes
    ----------
    sizes
        Number of rows m of each block.
    a, o
        Weights of each block, see :mod:`dplinked.sums.blocks`.
    weights
        What the instruments of each block's rows are multiplied by, in (0, 1]; None if nothing.
    names
        Keys of the blocks of an accuracy table, None for the other block; empty without a table.
    column
        Name of the key column; None if all rows are one block.
    keys
        The column's keys, which tell a row's block; None if all rows are one block.
    """

    sizes: NDArray[np.int64]
    a: Floats
    o: Floats
    weights: Floats | None = None
    names: tuple[str | None, ...] = ()
    column: str | None = None
    keys: Keys | None = None

    def codes(self, piece: tuple[int, int], rows: Rows) -> Codes:
        """Block number of each row of a piece."""
        if self.keys is None or self.column is None:
            return np.zeros(rows.count, np.int32)
        column = self.column
        return self.keys.codes(piece, lambda: rows.keys(column))

    @cached_property
    def facts(self) -> BlockFacts:
        """What the release needs to know of public block sizes."""
        texts = None if self.keys is None else self.keys.texts
        nulls = int(self.sizes[-1]) if texts is not None and texts.null_count else 0  # null keys come last
        return find_facts(self.sizes, self.a, self.names, nulls)

    @cached_property
    def total_weight(self) -> float:
        """Sum of the weights of all rows, added up in strips as :mod:`dplinked.sums.rounding` counts on."""
        if self.weights is None:
            return float(self.sizes.sum())
        strips = [(self.weights[strip] * self.sizes[strip]).sum() for strip in cut_strips(self.sizes.size)]
        return float(np.sum(strips))

    def weighed(self, weights: Mapping[str | None, float]) -> Blocks:
        """The same blocks, with weights by name; blocks without a name have no weight."""
        check_weights(weights)
        listed = np.array([weights.get(name, 1.0) for name in self.names])
        return replace(self, weights=listed if np.any(listed != 1.0) else None)

    def alone(self) -> Blocks:
        """Blocks whose rows have their own responses, weighed by ``w·a``."""
        weights = self.a if self.weights is None else self.weights * self.a
        return replace(self, a=np.ones_like(self.a), o=np.zeros_like(self.o), weights=weights)


@dataclass(frozen=True, repr=False)
class Clusters:
    """Rows whose contributions are squared together: those with the same key of a column, null being one of them."""

    column: str
    keys: Keys

    @property
    def count(self) -> int:
        """How many there may be."""
        return int(self.keys.counts.size)

    def codes(self, piece: tuple[int, int], rows: Rows) -> Codes:
        """Number of the cluster of each row of a piece."""
        return self.keys.codes(piece, lambda: rows.keys(self.column))


@dataclass(frozen=True, repr=False)
class Piece:
    """Rows as they are read: numbers by column, numbers of levels by column, and the number of each row's block.

    `slots` are the places of their responses in a :class:`~dplinked.sums.numpy.circle.Circle`, where partners are needed, `clusters` the numbers of their clusters, where these are totalled, and
    `counted` what they count, where that was found already.
    """

    count: int
    raw: Mapping[str, Floats]
    levels: Mapping[str, Codes]
    codes: Codes | None
    slots: Slots | None = None
    clusters: Codes | None = None
    counted: Floats | None = None

    def cut(self, size: int) -> Iterator[Piece]:
        """The same rows, at most `size` at a time."""
        for start in range(0, max(1, self.count), size):
            rows = slice(start, min(start + size, self.count))
            raw = {name: column[rows] for name, column in self.raw.items()}
            levels = {name: column[rows] for name, column in self.levels.items()}
            codes = None if self.codes is None else self.codes[rows]
            slots = None if self.slots is None else self.slots[rows]
            clusters = None if self.clusters is None else self.clusters[rows]
            yield Piece(rows.stop - rows.start, raw, levels, codes, slots, clusters)


@dataclass(frozen=True, repr=False)
class Strip:
    """A few thousand rows: scaled regressors (d×k), scaled responses (k), and the numbers and slots of :class:`Piece` (k).

    `known` and `answered` are 0 for rows with a missing regressor and for those with a missing response, if these are dropped. `strata` are the numbers of their strata, if there are any.
    """

    x: Floats
    z: Floats
    codes: Codes | None = None
    slots: Slots | None = None
    known: Floats | float = 1.0
    answered: Floats | float = 1.0
    clusters: Codes | None = None
    strata: Codes | None = None

    def take(self, values: Floats) -> Floats:
        """The value of each row's block (k), or a single one if all rows lie in one block."""
        codes = self.codes
        assert codes is not None
        if codes.size and codes[0] == codes[-1] and np.array_equal(codes, np.broadcast_to(codes[0], codes.shape)):
            codes = codes[:1]
        return np.asarray(values.take(codes), np.float64)


@dataclass(frozen=True, repr=False)
class PreparedRows:
    """Rows ready for a pass: their blocks are known, their cells are not read yet.

    Attributes
    ----------
    blocks
        The blocks, if links are uncertain within blocks.
    matching
        An explicit matrix Q in place of blocks (n×n, sparse).
    fixed_blocks
        Whether every row keeps its block between neighbours.
    terms
        How many terms unlink the matrix, see :func:`dplinked.sums.partners.unlinking_terms`.
    kept
        What later passes need again, by what it was made of; shared by all that is made from these rows.
    dropped
        Whether missing responses and rows with a missing regressor count 0, where a pass can do without them.
    clusters
        What contributions are totalled by, for a pass that does.
    """

    rows: Parts
    design: Design
    blocks: Blocks | None
    matching: Any = None
    progress: Progress | None = None
    fixed_blocks: bool = True
    terms: int | None = None
    kept: dict[Any, Any] = field(default_factory=dict)
    dropped: bool = False
    clusters: Clusters | None = None

    @cached_property
    def large(self) -> bool:
        """Whether a block is too large for its rows to be added one by one."""
        return self.blocks is not None and bool(self.blocks.sizes.max(initial=0) > TILE)

    def without_links(self) -> PreparedRows:
        """The same rows, each with its own response. Keys of blocks are not read."""
        return replace(self, blocks=None, matching=None)

    def own_rows(self, weighted: bool) -> PreparedRows:
        """The same rows, each with its own response, weighed by the weight and the contrast of their groups if they are to be."""
        blocks = self.blocks.alone() if weighted and self.blocks is not None else None
        return replace(self.without_links(), blocks=blocks)

    def by_cluster(self) -> PreparedRows:
        """The same rows, beside the clusters that the design's column puts them into."""
        name = self.design.cluster
        assert name is not None
        place = f"clusters by {name}"
        if place not in self.kept:
            self.rows.check_key(name)
            self.kept[place] = Clusters(name, self.rows.find_keys(name))
        return replace(self, clusters=self.kept[place])

    @property
    def has_links(self) -> bool:
        """Whether responses may be those of other rows."""
        return self.matching is not None or (self.blocks is not None and bool(self.blocks.o.any()))

    @property
    def has_partners(self) -> bool:
        """Whether rows meet the responses of partners. Circles round responses, so it must be the same for neighbours: it hangs on public blocks only."""
        return self.blocks is not None and (not self.fixed_blocks or bool(self.blocks.o.any()))

    def pieces(self, part: int) -> Iterator[Piece]:
        """The rows of one part, as they are read."""
        design, blocks = self.design, self.blocks
        key = None if blocks is None or blocks.keys is None else blocks.column
        keys = [name for name in (key, self.clusters and self.clusters.column) if name]
        columns = list(dict.fromkeys([*design.variables, *keys]))
        for piece, rows in enumerate(self.rows.read(part, columns)):
            raw = {name: rows.numbers(name, 0, rows.count) for name in design.bounds}
            levels = {name: _level_codes(rows, name, known) for name, known in design.levels.items()}
            codes = None if blocks is None else blocks.codes((part, piece), rows)
            clusters = None if self.clusters is None else self.clusters.codes((part, piece), rows)
            yield Piece(rows.count, raw, levels, codes, clusters=clusters)

    def tiles(self, piece: Piece) -> Iterator[Piece]:
        """The rows of a piece, cut into tiles, which may be summed in any order."""
        yield from piece.cut(TILE)

    def strips(self, piece: Piece) -> Iterator[Strip]:
        """The rows of a piece, clipped and scaled, in strips that stay in the cache."""
        for rows in piece.cut(STRIP):
            both = np.empty((len(self.design.columns) + 1, rows.count))
            self.design.fill_rows(rows.raw, rows.levels, both)
            known, answered = self.design.present(rows.raw, rows.levels) if self.dropped else (1.0, 1.0)
            strata = self.design.strata_of(rows.levels)
            yield Strip(both[:-1], both[-1], rows.codes, rows.slots, known, answered, rows.clusters, strata)

    def whole(self) -> tuple[Floats, Floats]:
        """Scaled regressors (d×n) and responses (n) of all rows."""
        strips = self._all_strips()
        return np.concatenate([strip.x for strip in strips], axis=1), np.concatenate([strip.z for strip in strips])

    def whole_present(self) -> tuple[Floats, Floats]:
        """What rows and responses count (n each): 0 for rows with a missing regressor, and for missing responses, if these are dropped."""
        strips = self._all_strips()
        known = [np.broadcast_to(strip.known, strip.z.shape) for strip in strips]
        answered = [np.broadcast_to(strip.answered, strip.z.shape) for strip in strips]
        return np.concatenate(known), np.concatenate(answered)

    def _all_strips(self) -> list[Strip]:
        pieces = (piece for part in range(self.rows.parts) for piece in self.pieces(part))
        return [strip for piece in pieces for strip in self.strips(piece)]

    def stratum_codes(self) -> Codes:
        """Number of the stratum of each row."""
        return np.concatenate([strip.strata for strip in self._all_strips() if strip.strata is not None])

    def cluster_codes(self) -> Codes:
        """Number of the cluster of each row."""
        pieces = [piece.clusters for part in range(self.rows.parts) for piece in self.pieces(part)]
        return np.concatenate([codes for codes in pieces if codes is not None])

    def block_codes(self) -> Codes:
        """Block number of each row."""
        assert self.blocks is not None
        columns = [self.blocks.column] if self.blocks.column else list(self.design.variables)
        pieces = (
            ((part, piece), rows)
            for part in range(self.rows.parts)
            for piece, rows in enumerate(self.rows.read(part, columns))
        )
        return np.concatenate([self.blocks.codes(place, rows) for place, rows in pieces])


def prepare_rows(
    rows: Parts, design: Design, linkage: Linkage, unit: PrivacyUnit, progress: Progress | None = None
) -> PreparedRows:
    """Find the blocks, or take the matching matrix. Only what is public under the unit can make it fail."""
    for name in design.levels:
        rows.check_key(name)
    if isinstance(linkage, Matching):
        matrix = linkage.matrix_for(None if linkage.id is None else _ids(rows, linkage.id))
        if matrix.shape[0] != rows.count:
            raise StudyError(f"The matching matrix is for {matrix.shape[0]} rows, the data has {rows.count}.")
        return PreparedRows(rows, design, None, matrix, progress, terms=unlinking_terms(linkage.least_accuracy))
    blocks = None if isinstance(linkage, Exact) else _find_blocks(rows, linkage, unit)
    return PreparedRows(rows, design, blocks, None, progress, fixed_blocks=unit.fixes_blocks)


def _ids(rows: Parts, name: str) -> Any:
    """A whole id column, as Arrow's whole numbers or texts."""
    import pyarrow as pa

    pieces = [piece.keys(name) for part in range(rows.parts) for piece in rows.read(part, [name])]
    if not isinstance(pieces[0], np.ndarray) and is_whole(pieces[0].type):
        return pa.concat_arrays(pieces)
    coded = map(encode_part, pieces)
    return pa.concat_arrays([texts.take(pa.array(codes)) for codes, texts in coded])


def _level_codes(rows: Rows, name: str, levels: tuple[Any, ...]) -> Codes:
    """Number of each row's level, and other numbers for null cells and undeclared ones, which count as the reference level, the first."""
    codes, texts = encode_part(rows.keys(name))
    places = place_levels(texts, levels)
    places = np.where(places < 0, UNDECLARED, places).astype(places.dtype)
    places[texts.is_null().to_numpy(zero_copy_only=False)] = NULL
    return places[codes]


def _find_blocks(rows: Parts, linkage: ELE, unit: PrivacyUnit) -> Blocks:
    """Count the rows of each block and weigh the blocks."""
    if linkage.block is None:
        whole = np.array([rows.count]), np.array([linkage.accuracy_of("")], np.float64)
        return Blocks(whole[0], *weigh_blocks(*whole, linkage, unit))
    keys = rows.find_keys(linkage.block)
    places, names = block_places(keys, linkage.accuracy if isinstance(linkage.accuracy, Mapping) else None)
    sizes = keys.counts
    if places is not None:
        keys = replace(keys, places=places)
        sizes = np.bincount(places, weights=sizes, minlength=0 if names is None else len(names)).astype(np.int64)
        sizes = sizes if names is None else sizes[: len(names)]  # numbers in between that do not occur have no block
    if names is not None:
        accuracies = np.array([linkage.accuracy_of(name) for name in names], np.float64)  # NaN for the other block
    else:
        accuracies = np.full(sizes.size, linkage.accuracy_of(""), np.float64)
        if keys.texts is not None and keys.texts.null_count:  # null keys come last
            accuracies[-1] = np.nan
    check_others(bool(np.isnan(accuracies).any()), linkage)
    accuracies[np.isnan(accuracies)] = linkage.other_accuracy
    a, o = weigh_blocks(sizes, accuracies, linkage, unit)
    return Blocks(sizes, a, o, names=tuple(names or ()), column=linkage.block, keys=keys)


def cut_strips(count: int) -> list[slice]:
    """Consecutive places in strips, the last one shorter; one empty strip where there is nothing."""
    return [slice(start, min(start + STRIP, count)) for start in range(0, max(1, count), STRIP)]
