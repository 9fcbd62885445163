"""What every verb of an engine returns, under one set of public values, to compare engines by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dplinked.sums.types import Centres, MeatClip, Predictor, ResidualClip, Whitening

ALL_MEET = 8  # rows of a block in which all others are partners, in every engine; in larger ones they may be drawn


def every_sum(found: Any) -> dict[str, np.ndarray]:
    """All sums but histograms of columns, which explicit matching matrices do not have."""
    p, d = len(found.design.names), len(found.design.columns)
    predictor = Predictor(np.linspace(-0.3, 0.4, p), np.linspace(-0.1, 0.2, d), 0.8)
    sums, plain = found.instrument_sums(), found.with_design(found.design.unscaled()).paper_sums(1.5, 2.0)
    result = {
        "H": sums.matrix,
        "b": sums.vector,
        "WW": plain.matrix,
        "Wz": plain.vector,
        "zz": np.array([plain.squares]),
        "residuals": found.residual_counts(predictor, np.array([0.1, 0.5, 1.0])).counts,
        "rows": found.row_meat(predictor, np.linspace(1, 2, p), 0.5).matrix,
    }
    if found.design.levels and found.blocks is not None:
        column = next(iter(found.design.levels))
        apart, number = found.with_design(replace(found.design, strata=column)), len(found.design.levels[column]) + 1
        strata = apart.row_strata(predictor, np.linspace(1, 2, p), 0.5)
        centres = Centres(np.linspace(-0.2, 0.3, number * p).reshape(number, p), np.linspace(1.0, 1.4, number))
        result |= {"strata of rows": strata.totals, "numbers of strata": strata.numbers}
        result["rows in strata"] = apart.row_meat(predictor, np.linspace(1, 2, p), 0.5, centres).matrix
    result |= second_stage("own", found.own_rows(), ["row"])
    if found.design.counting is not None and found.design.counting.weight is not None:
        result["weights"] = found.weight_moments().sums
    complete = found.without_missing()
    result["complete residuals"] = complete.residual_counts(predictor, np.array([0.1, 0.5, 1.0])).counts
    result |= second_stage("complete own", complete.own_rows(), ["row"])
    if found.blocks is not None:
        result["blocks"] = found.block_meat(predictor, np.linspace(1, 2, p), 0.5).matrix
        result["facts"] = np.array([found.blocks.largest, found.blocks.dependence, found.blocks.contrast])
        weights = {key: 1.0 / (1 + i % 4) for i, key in enumerate(sorted(found.blocks.by_key, key=str))}
        found = found.with_weights(weights)
        result["weighed rows"] = found.row_meat(predictor, np.linspace(1, 2, p), 0.5).matrix
        result["weighed blocks"] = found.block_meat(predictor, np.linspace(1, 2, p), 0.5).matrix
        result |= second_stage("weighed own", found.own_rows(weighted=True), [])
        if found.blocks.largest <= ALL_MEET:
            result |= second_stage("right", found, ["row", "block"])
            result |= right_sums("right, complete", found.without_missing(), ["row", "block"])
        result |= second_stage("weighed complete own", found.without_missing().own_rows(weighted=True), [])
    return result


def second_stage(name: str, found: Any, routes: list[str]) -> dict[str, np.ndarray]:
    """Sums of the second stage, with each way to square contributions."""
    sums = found.instrument_sums()
    rows = np.array([sums.known, sums.complete])
    return {f"{name} H": sums.matrix, f"{name} b": sums.vector, f"{name} rows": rows, **right_sums(name, found, routes)}


def right_sums(name: str, found: Any, routes: list[str]) -> dict[str, np.ndarray]:
    """The clipped residual equation, with each way to square contributions."""
    p, result = len(found.design.names), dict[str, np.ndarray]()
    clip = ResidualClip(np.linspace(-0.1, 0.3, p), 0.4, 0.7 if found.design.intercept else 0.0, 0.9)
    turned = replace(clip, intercept_weight=0.0, whitening=whitening_for(p))
    for route in routes:
        right = found.right_residuals(clip, MeatClip(route, np.linspace(1, 2, p), 0.3))
        white = found.right_residuals(turned, MeatClip(route, np.linspace(1, 2, p), 0.3))
        result |= {f"{name} S": right.vector, f"{name} {route}": right.meat}
        result |= {f"{name} whitened S": white.vector, f"{name} whitened {route}": white.meat}
    if routes:
        column = next(iter((*found.design.levels, *found.design.bounds)))
        grouped, meat = (
            found.with_design(replace(found.design, cluster=column)),
            MeatClip("cluster", np.linspace(1, 2, p), 0.6),
        )
        right = grouped.right_residuals(clip, meat)
        result |= {f"{name} clustered S": right.vector, f"{name} clusters": right.meat}
        result[f"{name} sizes"] = grouped.contribution_sizes(clip, meat, np.array([0.1, 0.4, 1.6])).sizes
        if found.design.levels:
            result |= stratified(name, found, clip)
        squared = found.squared_residuals(replace(clip, limit=0.7, squared=True))
        result[f"{name} squared"] = np.array([squared.total, squared.squares])
    if name.endswith("own"):
        plain = found.with_design(replace(found.design, half_widths=None))
        result[f"{name} squares"] = plain.whitened_squares(whitening_for(p)).matrix
    return result


def stratified(name: str, found: Any, clip: ResidualClip) -> dict[str, np.ndarray]:
    """Totals and numbers of strata, and squares around public centres of rows, and of clusters whose rows may be of several strata."""
    column, p = next(iter(found.design.levels)), len(found.design.names)
    apart = found.with_design(replace(found.design, strata=column, cluster=next(iter(found.design.bounds))))
    strata = len(found.design.levels[column]) + 1
    centres = Centres(np.linspace(-0.2, 0.3, strata * p).reshape(strata, p), np.linspace(1.0, 1.4, strata))
    rows, clusters = (MeatClip(kind, np.linspace(1, 2, p), 0.3, centres) for kind in ("row", "cluster"))
    totals, numbers = apart.stratum_totals(clip, clustered=False), apart.stratum_totals(clip, clustered=True)
    np.testing.assert_allclose(totals.totals.sum(axis=0), apart.right_residuals(clip).vector, atol=1e-9)
    return {
        f"{name} strata": totals.totals,
        f"{name} rows of strata": totals.numbers,
        f"{name} clusters of strata": numbers.numbers,
        f"{name} centred rows": apart.right_residuals(clip, rows).meat,
        f"{name} centred clusters": apart.right_residuals(clip, clusters).meat,
        f"{name} centred sizes": apart.contribution_sizes(clip, clusters, np.array([0.1, 0.4, 1.6])).sizes,
    }


def whitening_for(p: int) -> Whitening:
    """A matrix that turns and scales, and a norm that some rows exceed."""
    return Whitening(np.eye(p) + np.linspace(-0.9, 1.1, p * p).reshape(p, p), 0.8 * math.sqrt(p))
