"""The replay check: the same noise on two neighbours must give the same calls, scales and result.

Run on D recording each noise call, run on a neighbour feeding it the recorded outputs. If nothing but
noisy values reaches the outside, both runs make the same calls with the same scales and end in the same
release, and the recorded inputs are no further apart than μ in units of the noise (after Cebere et al.).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dplinked.privacy import noise


@dataclass(frozen=True)
class Call:
    values: np.ndarray
    scale: np.ndarray
    output: np.ndarray


class Leak(BaseException):
    """The check failed: something data-dependent reached the outside unpaid."""


def record(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any], seed: int) -> tuple[Any, list[Call]]:
    calls: list[Call] = []
    rng = np.random.default_rng(seed)

    def add(values: Any, scale: Any) -> np.ndarray:
        values = np.asarray(values, float).copy()
        scale = np.broadcast_to(np.asarray(scale, float), values.shape).copy()
        output = values + scale * rng.normal(size=values.shape)
        calls.append(Call(values, scale, output))
        return output.copy()

    with monkeypatch.context() as patch:
        patch.setattr(noise, "add_gaussian", add)
        return run(), calls


def feed(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any], recorded: list[Call]) -> tuple[Any, list[Call]]:
    calls: list[Call] = []

    def add(values: Any, scale: Any) -> np.ndarray:
        values = np.asarray(values, float).copy()
        scale = np.broadcast_to(np.asarray(scale, float), values.shape).copy()
        if len(calls) >= len(recorded) or recorded[len(calls)].values.shape != values.shape:
            raise Leak("other calls than on the first neighbour")
        calls.append(Call(values, scale, recorded[len(calls)].output))
        return calls[-1].output.copy()

    with monkeypatch.context() as patch:
        patch.setattr(noise, "add_gaussian", add)
        return run(), calls


def draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the same random numbers be drawn for both neighbours: by DuckDB row by row, and places of the rows that it copied."""
    pytest.importorskip("duckdb")
    from dplinked.sums.sql.duckdb_engine import DuckDBEngine

    run, begin = DuckDBEngine.run, np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed=5: begin(seed))

    def seeded(engine: Any, statement: str) -> Any:
        for setting in ("set threads = 1", "select setseed(0.5)"):
            run(engine, setting)
        return run(engine, statement)

    monkeypatch.setattr(DuckDBEngine, "run", seeded)


def replay(
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[[], Any],
    second: Callable[[], Any],
    mu: float,
    seed: int = 0,
    show: Callable[[Any], Any] = lambda result: result.to_json(),
) -> float:
    """Return the distance of the neighbours in units of μ; raise Leak if the check fails."""
    result, calls = record(monkeypatch, first, seed)
    again, other = feed(monkeypatch, second, calls)
    if len(calls) != len(other):
        raise Leak("another number of calls")
    if not calls:
        raise Leak("no noise at all")
    total = 0.0
    for a, b in zip(calls, other, strict=True):
        if not np.array_equal(a.scale, b.scale):
            raise Leak("scales depend on the data")
        total += float((((a.values - b.values) / a.scale) ** 2).sum())
    if show(result) != show(again):
        raise Leak("the results differ although the noisy values agree")
    distance = math.sqrt(total)
    if not distance <= mu:
        raise Leak(f"inputs are {distance / mu:.4f} of the claimed distance apart")
    return distance / mu
