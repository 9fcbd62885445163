"""Linked rows ready to be summed: what an engine does, and what the door is given. Every private value leaves here together with what it was clipped to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dplinked.linkage import EXACT, LinkageExposure
from dplinked.study.design import Design
from dplinked.sums.clipped import (
    ClippedMeat,
    ClippedPaperSums,
    ClippedResiduals,
    ClippedSums,
    ColumnCounts,
    CompleteRows,
    ContributionSizes,
    CurveSums,
    ResidualCounts,
    SquaredResiduals,
    StratumTotals,
    WeightMoments,
    WhitenedGram,
)
from dplinked.sums.types import (
    BlockFacts,
    Centres,
    MeatClip,
    Predictor,
    PrivateCounts,
    PrivateMeat,
    PrivateMoments,
    PrivateResiduals,
    PrivateSizes,
    PrivateSquares,
    PrivateStrata,
    PrivateSums,
    ResidualClip,
    Whitening,
)

Floats = NDArray[np.float64]


class Pass(Protocol):
    """Rows ready to be summed: their blocks are known, their cells are not read yet.

    What the methods return is private. The attributes are public.
    """

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""

    @property
    def count(self) -> int:
        """Number of rows."""

    @property
    def blocks(self) -> BlockFacts | None:
        """Facts about the blocks, if there are any."""

    def with_design(self, design: Design) -> Pass:
        """The same rows with another scaling or instrument."""

    def instrument_sums(self) -> PrivateSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""

    def paper_sums(self, row_norm: float, response_bound: float) -> PrivateSums:
        """``W'W``, ``W'z*`` and ``z*'z*`` of the paper's algorithms."""

    def column_counts(self, bins: int) -> PrivateCounts:
        """Histogram of each numeric column over its bounds."""

    def residual_counts(self, predictor: Predictor, edges: Floats, ahead: bool = False) -> PrivateCounts:
        """Histogram of absolute residuals between public edges.

        Without missing cells, it has the residuals of complete rows, followed by the number of others.
        `ahead` says that `own_rows` will be summed and then `right_residuals`: what they need may be found on the same way through the rows.
        """

    def weight_moments(self) -> PrivateMoments:
        """Sums of what rows count, of its square and of its fourth power. Links and responses do not enter."""

    def row_meat(
        self, predictor: Predictor, weights: Floats, norm: float, centres: Centres | None = None
    ) -> PrivateMeat:
        """Sum of squared contributions of rows, around the centres of strata if there are some, scaled to a norm."""

    def row_strata(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateStrata:
        """Totals of contributions of rows, scaled to a norm, and numbers of rows, of each stratum."""

    def block_meat(self, predictor: Predictor, weights: Floats, norm: float) -> PrivateMeat:
        """Sum of squared contributions of blocks, scaled to a norm."""

    def with_weights(self, weights: Mapping[str | None, float]) -> Pass:
        """The same rows, with the instruments of each row, the intercept's 1 included, times the weight of its group.

        Groups are those of an accuracy table, by key; None is the other block. Groups that are not named weigh 1. Weights lie in (0, 1].
        """

    def without_missing(self) -> Pass:
        """The same rows for `residual_counts`, `own_rows`, `right_residuals` and `curve_sums`: residuals with missing responses are 0, rows with a missing regressor weigh 0."""

    def own_rows(self, weighted: bool = False) -> Pass:
        """The same rows without their links: each row's response is taken for its own. If `weighted`, instruments are times w·a of the group."""

    def whitened_squares(self, whitening: Whitening) -> PrivateMeat:
        """``Σ c_i u_i u_i'`` of whitened rows, c what a row counts times the weight of its group. Asked of `own_rows` whose instruments are regressors."""

    def right_residuals(self, clip: ResidualClip, meat: MeatClip | None = None) -> PrivateResiduals:
        """``Σ (1, h_i)[(1-o) ψ_i(z_i - t_i) - (1-γ) mean ψ_i(z_l - t_i)]`` over partners l; see :mod:`dplinked.sums.partners`.

        Along the clip's curve t_i is its mean at the line, and ψ_i multiplies by s_i. If the clip has a level that outcomes are taken `around`, that takes the place of t_i, and
        t_i that of a response which is missing and dropped.
        """

    def squared_residuals(self, clip: ResidualClip) -> PrivateSquares:
        """``Σ B_i`` and ``Σ B_i²`` of a clip that is `squared`: ``B_i = (1-o)ψ² - (1-γ) mean ψ²`` times what row i counts."""

    def contribution_sizes(self, clip: ResidualClip, meat: MeatClip, norms: Floats) -> PrivateSizes:
        """``Σ_c min(‖T_c‖²/K², 1)`` over the totals T_c that `meat` squares, times its weights, for each norm K."""

    def stratum_totals(self, clip: ResidualClip, clustered: bool) -> PrivateStrata:
        """The equation of the rows of each stratum of the design's column, and how many rows each has, or clusters if they are `clustered`.

        Rows without a declared level are the last stratum. A cluster is in the first of the strata that its rows are in.
        """

    def curve_sums(self, clip: ResidualClip, level: float) -> PrivateSums:
        """``Σ w a s m' (1, h)(1, x)'`` and ``Σ w a s (1, h)(m - level)`` along the clip's curve, of rows by themselves: responses are not read.

        w and a are those of the row's block, if rows have blocks.
        """


_FILLED = "only passes of the second stage know dropped cells"


@dataclass(frozen=True, repr=False)
class LinkedRows:
    """An engine's pass over linked rows, and what one person can change about their links.

    `fixed_blocks` says whether every row keeps its block between neighbours: only then are facts about the blocks public. `dropped` says that
    missing cells are dropped rather than filled, see :meth:`without_missing`.
    """

    engine: Pass
    exposure: LinkageExposure
    fixed_blocks: bool
    dropped: bool = False

    @property
    def design(self) -> Design:
        """The scaling and the instrument."""
        return self.engine.design

    @property
    def count(self) -> int:
        """Number of rows, public."""
        return self.engine.count

    @property
    def blocks(self) -> BlockFacts | None:
        """Facts about the blocks, if there are any and they are public."""
        return self.engine.blocks if self.fixed_blocks else None

    @property
    def read_once(self) -> bool:
        """Whether the rows come as a stream that is read once."""
        return bool(getattr(self.engine, "read_once", False))

    def with_design(self, design: Design) -> LinkedRows:
        """The same rows with another scaling or instrument."""
        return replace(self, engine=self.engine.with_design(design))

    def instrument_sums(self) -> ClippedSums:
        """``h'QX`` and ``h'z`` with the design's instruments h; the intercept comes first."""
        assert not self.dropped, _FILLED
        return ClippedSums(self.engine.instrument_sums(), self.design, self.exposure)

    def paper_sums(self, row_norm: float, response_bound: float) -> ClippedPaperSums:
        """``W'W``, ``W'z*`` and ``z*'z*`` of the paper's algorithms."""
        assert not self.dropped, _FILLED
        sums = self.engine.paper_sums(row_norm, response_bound)
        return ClippedPaperSums(sums, row_norm, response_bound, self.exposure)

    def column_counts(self, bins: int) -> ColumnCounts:
        """Histogram of each numeric column over its bounds."""
        assert not self.dropped, _FILLED
        return ColumnCounts(self.engine.column_counts(bins).counts, self.count)

    def residual_counts(self, predictor: Predictor, edges: Floats, ahead: bool = False) -> ResidualCounts:
        """Histogram of absolute residuals between increasing public edges; `ahead` says that the second stage's passes will follow."""
        counts = self.engine.residual_counts(predictor, edges, ahead).counts[0]
        if not self.dropped:
            return ResidualCounts(counts, self.count, edges, self.exposure)
        incomplete = int(counts[-1])
        counts = np.append(counts[:-2], counts[-2] + incomplete)
        return ResidualCounts(counts, self.count, edges, self.exposure, incomplete)

    def meat(
        self, route: str, predictor: Predictor, weights: Floats, norm: float, centres: Centres | None = None
    ) -> ClippedMeat:
        """Sum of squared contributions of rows or of blocks (`route`), each scaled down to norm at most `norm`; those of rows around centres of strata, if there are some."""
        assert not self.dropped, _FILLED
        assert centres is None or (route == "row" and self.exposure.symmetric), "others' residuals would move"
        if route == "block":
            matrix = self.engine.block_meat(predictor, weights, norm).matrix
        else:
            matrix = self.engine.row_meat(predictor, weights, norm, centres).matrix
        first = int(self.design.intercept)
        instrument = math.hypot(self.design.instrument_radius, float(first)) * float(weights.max())
        reach = self.design.radius * float(np.linalg.norm(predictor.beta[first:]))
        return ClippedMeat(matrix, route, self.count, norm, instrument, reach, self.exposure, centres is not None)

    def row_strata(self, predictor: Predictor, weights: Floats, norm: float) -> StratumTotals:
        """Totals of contributions of rows, each scaled down to norm at most `norm`, and numbers of rows of each stratum."""
        assert not self.dropped, _FILLED
        assert self.exposure.symmetric, "others' residuals would move"
        found = self.engine.row_strata(predictor, weights, norm)
        return StratumTotals(found.totals, found.numbers, False, norm, 0.0, self.count, self.exposure, own=True)

    def with_weights(self, weighed: Mapping[str | None, tuple[float, float]]) -> LinkedRows:
        """The same rows, the instruments of each group's times its weight; `weighed` has weight and accuracy of all groups that have rows.

        Blocks must be public, since sizes of groups then follow from sums.
        """
        assert self.fixed_blocks, "weights of groups tell their sizes"
        weights = {key: weight for key, (weight, _) in weighed.items()}
        exposure = replace(self.exposure, weighed=tuple(weighed.values()))
        return replace(self, engine=self.engine.with_weights(weights), exposure=exposure)

    def without_missing(self) -> LinkedRows:
        """The same rows for the second stage, missing cells dropped: see :meth:`Pass.without_missing`. Whether there are any is not known."""
        return replace(self, engine=self.engine.without_missing(), dropped=True)

    def beside(self, levels: int) -> LinkedRows:
        """The same rows, of which as many levels as are said are released side by side; the design says which of them count."""
        return replace(self, exposure=replace(self.exposure, levels=levels))

    def weight_moments(self) -> WeightMoments:
        """How large what rows count is: sums of ω, ω² and ω⁴ of rows by themselves."""
        return WeightMoments(self.engine.weight_moments().sums, self.count, self.exposure)

    def own_gram(self) -> ClippedSums:
        """``h'X`` of rows by themselves, each times γ - o and the weight of its block where blocks are public.

        Links do not enter, so that one person changes one row of it.
        """
        sums = self.engine.own_rows(weighted=self.fixed_blocks).instrument_sums()
        return ClippedSums(sums, self.design, EXACT, self.exposure if self.dropped else None)

    def whitened_gram(self, whitening: Whitening, *, counted: bool = False) -> WhitenedGram:
        """Squares of whitened rows by themselves, each times γ - o and the weight of its block where blocks are public.

        Links do not enter, so that one person changes one row of it.
        """
        assert self.design.half_widths is None, "regressors themselves are whitened"
        own = self.engine.own_rows(weighted=self.fixed_blocks)
        sums = own.instrument_sums() if counted else None
        rows = None if sums is None else (sums.known, sums.complete)
        matrix = own.whitened_squares(whitening).matrix
        return WhitenedGram(matrix, whitening.norm, self.count, rows, self.exposure)

    def right_residuals(self, clip: ResidualClip, meat: MeatClip | None = None) -> ClippedResiduals:
        """The clipped residual equation of right links, and the squares of its contributions if `meat` asks for them."""
        self._check_clip(clip)
        found = self._along(clip).engine.right_residuals(*self._stretched(clip, meat))
        limit, kept = clip.limit * self._reach(clip), slice(len(self.design.names))
        largest = 0.0 if meat is None else self._largest(clip, meat, meat.norm)
        squares = None if found.meat is None else found.meat[kept, kept]
        return ClippedResiduals(
            found.vector[kept], limit, clip.intercept_weight, squares, meat, largest, self.count, self.exposure
        )

    def contribution_sizes(self, clip: ResidualClip, meat: MeatClip, norms: Floats) -> ContributionSizes:
        """How long the totals are that `meat` squares, told by what is left of their squares if they are cut to increasing norms; its own norm does not count."""
        self._check_clip(clip)
        assert clip.curve is None, "totals of contributions are those of lines"
        found = self.engine.contribution_sizes(clip, meat, norms)
        return ContributionSizes(
            found.sizes,
            norms,
            meat.route,
            self._largest(clip, meat, float(norms.min())),
            self.count,
            self.exposure,
        )

    def stratum_totals(self, clip: ResidualClip, *, clustered: bool) -> StratumTotals:
        """The equation of the rows of each stratum, and how many rows or clusters it has."""
        self._check_clip(clip)
        assert clip.curve is None, "strata are those of lines"
        assert self.exposure.levels == 1, "a row would be counted in every level"
        found = self.engine.stratum_totals(clip, clustered)
        return StratumTotals(
            found.totals, found.numbers, clustered, clip.limit, clip.intercept_weight, self.count, self.exposure
        )

    def squared_residuals(self, beta: Floats, clip: float) -> SquaredResiduals:
        """Squares of right links' residuals around a line, residuals clipped to ±`clip`."""
        found = self.engine.squared_residuals(ResidualClip(beta, clip, 0.0, clip, squared=True))
        return SquaredResiduals(found.total, found.squares, clip**2, self.count, self.exposure)

    def _check_clip(self, clip: ResidualClip) -> None:
        """Nothing goes on with clips that do not bound the equation's terms."""
        bounded = clip.intercept_weight > 0.0 or clip.whitening is not None or not self.design.intercept
        assert bounded, "nothing would bound the intercept's entry"
        assert clip.whitening is None or clip.intercept_weight == 0.0, "whitened instruments include the intercept's"
        assert clip.whitening is None or clip.curve is None, "whitened rows are those of lines"
        assert clip.around is None or clip.curve is not None, "residuals of lines are taken around the line"

    def least_norm(self, clip: ResidualClip, weights: Floats) -> float:
        """The least norm that weighted contributions may be cut to: any, but beside other levels no less than a row contributes per response that it meets."""
        return 0.0 if self.exposure.levels == 1 else self._contribution(clip, weights)

    def _largest(self, clip: ResidualClip, meat: MeatClip, norm: float) -> float:
        """Bound on the weighted contribution of a row before it is cut to a norm, per response that it meets; around the centre of a stratum, on how far two of them are apart.

        Beside other levels it is that norm, so that sensitivities are in the same proportion to their terms in all levels: if it were not, a person could change the most of one kind in one level, of another in another,
        and together more than a level's sensitivity says. That of blocks has terms of one kind.
        """
        largest = self._contribution(clip, meat.weights) * (1.0 if meat.centres is None else meat.centres.stretch)
        assert meat.centres is None or self.exposure.levels == 1, "a row would be centred in every level"
        if self.exposure.levels == 1 or meat.route == "block":
            return largest
        assert largest <= norm * (1.0 + 1e-9), "levels side by side are cut no closer than a row's contribution"
        return norm * (1.0 + 1e-9)

    def _contribution(self, clip: ResidualClip, weights: Floats) -> float:
        first = int(self.design.intercept)
        scaled = [*(weights[:first] / (clip.intercept_weight or 1.0)), *weights[first:]]
        return float(max(scaled)) * clip.limit * self._reach(clip)

    def curve_sums(self, clip: ResidualClip, level: float) -> CurveSums:
        """What a curve makes of the regressors of rows by themselves, around a public `level` of the outcome."""
        curve, kept = clip.curve, slice(len(self.design.names))
        assert curve is not None
        assert clip.intercept_weight > 0.0 or not self.design.intercept, "nothing would bound the intercept's entry"
        found = self._along(clip).engine.curve_sums(self._stretched(clip, None)[0], level)
        return CurveSums(
            found.vector[kept],
            found.matrix[kept, kept],
            clip.limit,
            clip.intercept_weight,
            max(abs(level), abs(curve.largest - level)),
            curve.steepest,
            self.design.radius,
            self.count,
            self.exposure,
        )

    def complete_rows(self) -> CompleteRows:
        """How many rows have all regressors, the exposure among them, and how many a response too."""
        assert self.dropped, "where cells are filled, all rows are complete"
        design, weighted = self.design.with_instrument([1.0] * len(self.design.columns)).exposed(), self.fixed_blocks
        if design.counting is not None:
            design, weighted = replace(design, counting=replace(design.counting, weight=None)), False
        sums = self.with_design(design).engine.own_rows(weighted=weighted).instrument_sums()
        return CompleteRows(sums.known, sums.complete, self.count, self.exposure)

    def _along(self, clip: ResidualClip) -> LinkedRows:
        """The rows with their exposure as a last column, where they have one and a curve asks for it."""
        return self if clip.curve is None else self.with_design(self.design.exposed())

    def _stretched(self, clip: ResidualClip, meat: MeatClip | None) -> tuple[ResidualClip, MeatClip | None]:
        """The same clips for rows with an exposure. It counts whole on the line, or not at all, and has no instrument, so that its entries are 0."""
        if clip.curve is None or self.design.exposure is None:
            return clip, meat
        beta = np.append(clip.beta, float(clip.exposed))
        longer = None if meat is None else replace(meat, weights=np.append(meat.weights, 1.0))
        return replace(clip, beta=beta), longer

    def _reach(self, clip: ResidualClip) -> float:
        """Bound on residuals that are not clipped, per unit of the limit; 1 for those that are.

        Outcomes lie between 0 and the curve's largest, and so do the curve's means. If the line is level, all means are the same. Where outcomes are taken around a level, those that
        are missing count as a mean.
        """
        if clip.curve is None:
            return 1.0
        assert clip.widest == 1.0
        assert self.design.response.interval == (0.0, float(clip.curve.largest)), "another outcome than the curve's"
        assert self.design.fill.get(self.design.response.plain or "", 0.0) <= clip.curve.largest, "fills lie beyond it"
        if clip.around is not None:
            return max(abs(clip.around), abs(clip.curve.largest - clip.around))
        first = int(self.design.intercept)
        if clip.beta[first:].any() or (clip.exposed and self.design.exposure is not None):
            return float(clip.curve.largest)
        level = float(clip.curve.mean(clip.beta[:first].sum()[None])[0])
        return max(level, clip.curve.largest - level)
