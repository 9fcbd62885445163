"""Replay: what is drawn on one neighbour is fed to the other, and nothing else may tell them apart."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import optimize, special

from dplinked.privacy import noise

Run = Callable[[], Any]
Prepare = Callable[[], Run]  # puts the rows in their place: both neighbours may use the same files, one after the other


@dataclass(frozen=True)
class Call:
    """One call of the noise: what went in, with which scales, and what came out."""

    values: np.ndarray
    scale: np.ndarray
    output: np.ndarray


@dataclass
class Outcome:
    """All that can be seen of a run: the result or the error, warnings and printed text, and the calls of the noise."""

    result: Any = None
    seen: dict[str, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)


class OtherCalls(BaseException):
    """The second neighbour called the noise in another way."""


@dataclass(frozen=True)
class Verdict:
    """How far apart two neighbours are, as a share of what is allowed; or by what they can be told apart."""

    ratio: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    refused: str | None = None
    broken: str | None = None


def _observe(run: Run, add: Callable[[Any, Any], np.ndarray], calls: list[Call]) -> Outcome:
    outcome, printed = Outcome(calls=calls), io.StringIO()
    original = noise.add_gaussian
    noise.add_gaussian = add
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("always")
            try:
                outcome.result = run()
            except Exception as error:
                outcome.seen["error"] = (
                    f"{type(error).__name__}: {error} | {error.__cause__!r} | {error.__suppress_context__ or error.__context__!r}"
                )
    finally:
        noise.add_gaussian = original
    outcome.seen["warnings"] = "\n".join(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    outcome.seen["printed"] = printed.getvalue()
    return outcome


def record(run: Run, draw: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Outcome:
    """Run on the first neighbour, with noise by `draw`."""
    calls: list[Call] = []

    def add(values: Any, scale: Any) -> np.ndarray:
        values, scale = _arrays(values, scale)
        calls.append(Call(values, scale, draw(values, scale)))
        return calls[-1].output.copy()

    return _observe(run, add, calls)


def feed(run: Run, recorded: list[Call]) -> Outcome:
    """Run on the second neighbour, which is given what was drawn on the first."""
    calls: list[Call] = []

    def add(values: Any, scale: Any) -> np.ndarray:
        values, scale = _arrays(values, scale)
        if len(calls) >= len(recorded) or recorded[len(calls)].values.shape != values.shape:
            raise OtherCalls
        calls.append(Call(values, scale, recorded[len(calls)].output))
        return calls[-1].output.copy()

    return _observe(run, add, calls)


def _arrays(values: Any, scale: Any) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(values, float).copy()
    return values, np.broadcast_to(np.asarray(scale, float), values.shape).copy()


def compare(
    first: Prepare,
    second: Prepare,
    draw: Callable[[np.ndarray, np.ndarray], np.ndarray],
    show: Callable[[Any], dict[str, str]],
    weaken: float = 1.0,
) -> Verdict:
    """Tell two neighbours apart if that can be done; `weaken` scales the noise, as a control."""
    one = record(first(), draw)
    try:
        two = feed(second(), one.calls)
    except OtherCalls:
        return Verdict(broken="the noise is called in another way")
    if (one.result is None) != (two.result is None):
        return Verdict(broken=f"only one neighbour is refused ({one.seen.get('error') or two.seen.get('error')})")
    for way in one.seen:
        if one.seen[way] != two.seen.get(way):
            return Verdict(broken=f"{way} differ: {one.seen[way]!r} / {two.seen.get(way)!r}"[:600])
    if one.result is None:
        return Verdict(refused=one.seen["error"])
    return _measure(one, two, show, weaken)


def _measure(one: Outcome, two: Outcome, show: Callable[[Any], dict[str, str]], weaken: float) -> Verdict:
    if not one.calls or len(one.calls) != len(two.calls):
        return Verdict(broken="no noise, or another number of draws")
    if any(not np.array_equal(a.scale, b.scale) for a, b in zip(one.calls, two.calls, strict=True)):
        return Verdict(broken="the noise scales depend on the data")
    shown, again = show(one.result), show(two.result)
    for way, text in shown.items():
        if again[way] != text:
            return Verdict(broken=f"{way} of the release differs although all noisy values agree")
    privacy, moved = (
        getattr(one.result, "privacy", one.result),
        [(a.values - b.values) / weaken for a, b in zip(one.calls, two.calls, strict=True)],
    )
    distance = math.sqrt(
        sum(float(((change / call.scale) ** 2).sum()) for change, call in zip(moved, one.calls, strict=True))
    )
    ratio, parts = distance / privacy.mu, _parts(one, moved)
    if not privacy.mu <= exact_mu(privacy.epsilon, privacy.delta) * (1 + 1e-9):
        return Verdict(ratio, parts, broken="mu is larger than epsilon and delta allow")
    if not ratio <= 1:
        return Verdict(ratio, parts, broken="neighbours are further apart than mu allows")
    return Verdict(ratio, parts)


def _parts(outcome: Outcome, moved: list[np.ndarray]) -> dict[str, float]:
    """The largest change of each released part, as a share of the sensitivity that the release states for it."""
    stated, largest, place = list(getattr(getattr(outcome.result, "released", None), "parts", ())), {}, -1
    for call, change in zip(outcome.calls, moved, strict=True):
        start = 0
        while start < change.size:
            again = (
                start == 0
                and place >= 0
                and stated[place].entries == change.size
                and call.scale[0] == stated[place].scale
            )
            place += not again
            if place >= len(stated) or call.scale[start] != stated[place].scale:
                return largest
            part = stated[place]
            size = float(np.linalg.norm(change[start : start + part.entries]))
            largest[part.name] = max(largest.get(part.name, 0.0), size / part.sensitivity)
            start += part.entries
    return largest


def exact_mu(epsilon: float, delta: float) -> float:
    """The largest mu of a Gaussian release that is (epsilon, delta)-private, computed without the library (Balle and Wang)."""

    def excess(logarithm: float) -> float:
        mu = math.exp(logarithm)
        high, low = special.log_ndtr(mu / 2 - epsilon / mu), epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return high + math.log(-math.expm1(min(low - high, -1e-300))) - math.log(delta)

    return math.exp(optimize.brentq(excess, math.log(epsilon) - 12, math.log(epsilon + 10) + 3, xtol=1e-13))
