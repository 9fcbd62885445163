"""The claims: each of them holds where the paper is right about everything, and fails under a fault made for it.

Made-up results that agree with the paper show that every check can hold; a table of faults, one for each claim, that every check can fail. Then
simulations are broken for real. They have fixed seeds; limits leave three standard errors, so that a fresh seed would change a verdict about
once in 400. So has the noise of the private releases, for which NumPy's stands in here: the exact sampler cannot be seeded.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dplinked.not_private.paper import algorithms, variance_claims
from dplinked.not_private.paper import application as applied
from dplinked.not_private.paper import settings as simulated
from dplinked.not_private.paper.application_claims import application_claims
from dplinked.not_private.paper.claim import Claim
from dplinked.not_private.paper.claims import CHECKS, setting_claims, toy_claims
from dplinked.not_private.paper.reproduce import PARTS, reproduce
from dplinked.not_private.paper.settings import PointResult, Row

ROOT = Path(__file__).parents[2]
Results = list[PointResult]

# --- a world in which the paper is right about everything ---------------------------------------------


@functools.cache
def agreeing(setting: str) -> Results:
    """Results that agree with every sentence of the paper, and with ours."""
    return [_agreeing_point(point) for point in simulated.setting_points(setting)]


def _agreeing_point(point: simulated.Point) -> PointResult:
    n, sigma = point.n, point.sigma
    cost = 2.0 if point.accuracy is None else 1.0 + 4.0 * (1.0 - point.accuracy)
    hard = 1.0 + 4.0 * (10_000 - n) / 7000 + 3.0 * max(0.0, sigma - 1.0)  # by how much Theorem 4.7 is off
    ols = 0.8 * sigma * math.sqrt(3.0 / n)
    ngd, ssp = 0.1 * sigma * 1e4 / n, 0.09 * sigma**2 * 1e4 / n
    errors = {
        "OLS": ols, "RL-OLS": (1.0 + 0.35 * (cost - 1.0)) * ols, "NGD": ngd, "SSP": ssp, "RL-NGD": cost * ngd, "RL-SSP": cost * ssp,
        "RL-NGD tight": 0.3 * cost * min(ngd, ssp), "RL-SSP tight": 0.02 * sigma * 1e4 / n,
    }  # fmt: skip
    variances = {name: (error**2, error**2) for name, error in errors.items()}
    variances["RL-SSP"] = (0.8 * errors["RL-SSP"] ** 2, 0.8 * errors["RL-SSP"] ** 2 / hard)
    for C, above in (("1", 2.5), ("1.2", 1.5)):
        for name in ("NGD", "RL-NGD"):
            errors[f"{name}, C = {C}"] = errors[name]
            variances[f"{name}, C = {C}"] = (0.95 * errors[name] ** 2, above * errors[name] ** 2)
    grams = {"": n / 3.0, "RL-": n / math.sqrt(235 / math.log(n))}
    result = PointResult(point, (), (), 2.0, 235, {"NGD": 0.0, "RL-NGD": 0.0}, grams, 0.5)
    published = {
        name: variance_claims.expected_excess(result, name) ** 2 for name in ("NGD", "SSP", "RL-NGD", "RL-SSP")
    }
    rows = tuple(
        Row(point.setting, point.x, name, error, 0.01 * error, *variances[name], published.get(name, math.nan), 1000)
        for name, error in errors.items()
    )
    sharp = tuple(
        replace(row, standard_error=0.003 * row.error, repetitions=10_000)
        for row in rows
        if row.method in ("NGD", "RL-NGD")
    )
    return replace(result, rows=rows, sharp=sharp)


def agreeing_application() -> applied.ApplicationResult:
    grid, ols = norm.ppf((np.arange(1000) + 0.5) / 1000), 0.805
    middles = {
        "RL-NGD": (ols, 0.3), "RL-SSP": (ols, 0.1), "RL-NGD T/3": (ols, 0.2), "NGD T/3": (0.87 * ols, 0.14), "NGD": (0.87 * ols, 0.24),
        "SSP": (0.87 * ols, 0.067), "RL-NGD tight": (ols, 0.03), "RL-SSP tight": (ols, 0.017),
    }  # fmt: skip
    draws = {name: middle + spread * grid for name, (middle, spread) in middles.items()}
    constants = algorithms.Constants(R=2.3, c=2.8, L=1.3, eta=0.8, T=13, C=1.2, M=1.0)
    release: Any = SimpleNamespace(coef={"income": 0.57}, conf_int=lambda: {"income": (0.5, 0.64)})
    accuracy = dict(zip(applied.BLOCKS, applied.ACCURACIES, strict=True))
    return applied.ApplicationResult(
        draws, _application_rows(draws, ols), ols, 0.73, 0.805, 0.785, constants, 0.918, accuracy, release, 0.565, ("SHIW 2012", "Febrl 4"),
    )  # fmt: skip


def _application_rows(draws: dict[str, np.ndarray], ols: float) -> tuple[Row, ...]:
    return tuple(
        Row(
            "application",
            1.0,
            name,
            float(np.abs(values - ols).mean() / ols),
            0.01,
            float(values.var()),
            math.nan,
            math.nan,
            1000,
        )
        for name, values in draws.items()
    )


@pytest.fixture
def nothing_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variance_claims, "unclipped_probability", lambda n, sigma: 1.0 - n**-0.5)


@pytest.mark.usefixtures("nothing_clipped")
@pytest.mark.parametrize("setting", CHECKS)
def test_where_the_paper_is_right_every_claim_holds(setting: str) -> None:
    assert [claim for claim in setting_claims(setting, agreeing(setting)) if claim.holds is not True] == []


def test_where_the_paper_is_right_every_claim_about_the_application_holds() -> None:
    assert [claim for claim in application_claims(agreeing_application()) if claim.holds is not True] == []


# --- a fault for each claim ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What is done to the results: one column of one method is multiplied, point by point."""

    method: str
    column: str
    factor: Callable[[simulated.Point], float]

    def __call__(self, results: Results) -> Results:
        def changed(point: PointResult, row: Row) -> Row:
            if row.method != self.method:
                return row
            return replace(row, **{self.column: getattr(row, self.column) * self.factor(point.point)})

        return [
            replace(p, rows=tuple(changed(p, row) for row in p.rows), sharp=tuple(changed(p, row) for row in p.sharp)) for p in results
        ]  # fmt: skip


def by(factor: float) -> Callable[[simulated.Point], float]:
    return lambda point: factor


def only_at(x: float, factor: float) -> Callable[[simulated.Point], float]:
    return lambda point: factor if point.x == x else 1.0


def power(exponent: float) -> Callable[[simulated.Point], float]:
    return lambda point: point.x**exponent


def everywhere(**changes: Any) -> Callable[[Results], Results]:
    return lambda results: [replace(result, **changes) for result in results]


# Part, what tells the claim from the others, and a fault that it must notice.
FAULTS: list[tuple[str, str, Callable[[Results], Results]]] = [
    *(
        fault
        for s, at in (("setting1", 5000), ("setting2", 1.2), ("setting3", 0.8))
        for fault in (
            (s, "number of iterations", everywhere(iterations=117)),
            (s, "The noise is that of", Fault("RL-NGD", "excess", by(1.4**2))),
            (s, "closely aligns with the empirical", Fault("RL-NGD", "empirical_variance", only_at(at, 0.8))),
            (s, "Theorem 4.6's variance", Fault("RL-NGD", "empirical_variance", by(1 / 1.4))),
            (s, "to be conservative", Fault("RL-NGD, C = 1", "empirical_variance", only_at(at, 4.0))),
            (s, "Tight RL-SSP is below both", Fault("RL-SSP tight", "error", only_at(at, 20.0))),
            (s, "first-order variances agree", Fault("RL-NGD tight", "empirical_variance", by(0.25))),
        )
    ),
    *(
        fault
        for s in ("setting1", "setting2")
        for fault in (
            (s, "approximates well with", Fault("RL-SSP", "empirical_variance", by(1.5))),
            (s, "may underestimate the reality", Fault("RL-SSP", "theoretical_variance", by(4.0))),
            (s, "always yield larger errors", Fault("RL-OLS", "error", by(0.9 / 1.35))),  # a ratio of .9
            (s, "no finite mean", everywhere(largest_share=0.011)),  # that of normal estimates
            (s, "RL-NGD and Theorem 4.4", Fault("RL-NGD", "excess", power(-1.0))),
            (s, "RL-SSP and Theorem 4.5", Fault("RL-SSP", "excess", power(-1.0))),
        )
    ),
    ("setting1", "decrease with a growing sample size", Fault("RL-SSP", "error", only_at(6000, 2.0))),
    *(
        ("setting1", f"in terms of both accuracy and variance” (all n; C = {C})", Fault("RL-SSP", "empirical_variance", only_at(3000, 5.0)))
        for C in ("1", "1.2", "2")
    ),
    ("setting1", "SSP outperforms NGD in accuracy and variance", Fault("SSP", "error", only_at(3000, 1.2))),
    ("setting1", "high-probability event", lambda results: results),  # without the fixture it fails by itself
    ("setting1", "With σ = 1, n = 10,000 and C", Fault("RL-SSP", "error", only_at(10_000, 1.2))),
    ("setting1", "RL-OLS at n = 10,000", Fault("RL-OLS", "error", by(1.3))),
    ("setting1", "RL-SSP at n = 10,000", Fault("RL-SSP", "error", by(1.3))),
    ("setting1", "RL-SSP tight at n = 10,000", Fault("RL-SSP tight", "error", by(2.0))),
    *(("setting2", f"starts [to] perform better” (C = {C})", Fault("RL-SSP", "error", only_at(1.0, 1.2))) for C in ("1", "1.2", "2")),
    ("setting2", "non-RL NGD and SSP: SSP is better", Fault("SSP", "error", only_at(1.8, 0.5))),
    ("setting2", "linearly for post-RL NGD” (read as a figure", Fault("RL-NGD", "error", power(-0.5))),  # √σ
    ("setting2", "linearly for post-RL NGD” (read as the error bounds", Fault("RL-NGD", "error", power(-0.5))),
    ("setting2", "quadratically for post-RL SSP” (read as a figure", Fault("RL-SSP", "error", power(-1.0))),  # σ
    ("setting2", "quadratically for post-RL SSP” (read as the error bounds", Fault("RL-SSP", "error", power(-1.0))),
    ("setting2", "non-RL NGD: linear growth (read as a figure", Fault("NGD", "error", power(-0.5))),
    ("setting2", "non-RL NGD: linear growth (read as the error bounds", Fault("NGD", "error", power(-0.5))),
    ("setting2", "non-RL SSP: quadratic growth (read as a figure", Fault("SSP", "error", power(-1.0))),
    ("setting2", "non-RL SSP: quadratic growth (read as the error bounds", Fault("SSP", "error", power(-1.0))),
    ("setting2", "Tight RL-SSP's error grows", Fault("RL-SSP tight", "error", power(-0.5))),
    ("setting3", "approach the corresponding non-RL", Fault("RL-OLS", "error", only_at(0.95, 1.2))),
    ("setting3", "strictly larger error than OLS", Fault("NGD", "error", only_at(1.0, 0.1))),
    ("setting3", "the variance reduces", Fault("RL-SSP", "empirical_variance", only_at(0.8, 5.0))),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "told", "fault"), FAULTS, ids=[f"{s}-{told}" for s, told, _ in FAULTS])
def test_each_claim_fails_under_its_fault(setting: str, told: str, fault: Callable[[Results], Results]) -> None:
    claims = [claim for claim in setting_claims(setting, fault(agreeing(setting))) if told in claim.text]
    assert [claim.holds for claim in claims] == [False]


@pytest.mark.parametrize("setting", CHECKS)
def test_every_claim_has_its_fault(setting: str) -> None:
    told = [words for part, words, _ in FAULTS if part == setting]
    for claim in setting_claims(setting, agreeing(setting)):
        assert sum(words in claim.text for words in told) == 1, claim.text


@pytest.mark.parametrize(("method", "shape"), [("RL-NGD", 0.5), ("RL-NGD", 2.0), ("RL-SSP", 1.0), ("RL-SSP", 3.0)])
def test_a_constant_part_does_not_make_another_shape_pass(method: str, shape: float) -> None:
    """a + b√σ and a + bσ² are not linear, a + bσ and a + bσ³ not quadratic: constants are allowed, other shapes are not."""
    results = Fault(method, "error", lambda point: (0.1 + 0.1 * point.x**shape) / (0.2 * point.x if method == "RL-NGD" else 0.18 * point.x**2))(
        agreeing("setting2")
    )  # fmt: skip
    words = (
        "linearly for post-RL NGD” (read as a figure"
        if method == "RL-NGD"
        else "quadratically for post-RL SSP” (read as a figure"
    )
    assert [claim.holds for claim in setting_claims("setting2", results) if words in claim.text] == [False]


def test_the_end_point_of_setting_3_proves_nothing() -> None:
    """The methods are the same there by construction, so an approach that happens at the end point alone does not count."""
    results = agreeing("setting3")
    for method in ("RL-OLS", "RL-NGD", "RL-SSP"):
        results = Fault(method, "error", lambda point: 1.0 if point.x == 1.0 else 2.0)(results)
    assert [claim.holds for claim in setting_claims("setting3", results) if "approach" in claim.text] == [False]


def moved(**shifts: float) -> Callable[[applied.ApplicationResult], applied.ApplicationResult]:
    """Draws moved by so much; underscores stand for hyphens."""

    def fault(result: applied.ApplicationResult) -> applied.ApplicationResult:
        draws = {name: values + shifts.get(name.replace("-", "_"), 0.0) for name, values in result.draws.items()}
        return replace(result, draws=draws, rows=_application_rows(draws, result.ols))

    return fault


def stretched(method: str, factor: float) -> Callable[[applied.ApplicationResult], applied.ApplicationResult]:
    def fault(result: applied.ApplicationResult) -> applied.ApplicationResult:
        middle = np.median(result.draws[method])
        draws = result.draws | {method: middle + factor * (result.draws[method] - middle)}
        return replace(result, draws=draws, rows=_application_rows(draws, result.ols))

    return fault


APPLICATION_FAULTS: list[tuple[str, Callable[[applied.ApplicationResult], applied.ApplicationResult]]] = [
    ("Around 90 %", lambda result: replace(result, overall_accuracy=0.86)),
    ("92.5 %", lambda result: replace(result, overall_accuracy=0.909)),
    ("for the 9 blocks", lambda result: replace(result, accuracy=result.accuracy | {"nt": 0.875})),
    ("excessively biased", moved(NGD=0.08)),
    ("centered around the OLS estimator", moved(RL_SSP=-0.03)),
    ("with higher variances", stretched("RL-SSP", 0.5)),
    ("One third of the iterations", stretched("RL-NGD T/3", 1.6)),
    ("greater budget efficiency", stretched("RL-SSP", 3.5)),
    ("up to the bias of clipping", moved(RL_SSP=0.04)),
    ("OLS ≈ .805", lambda result: replace(result, naive=0.8)),
    ("c_x = max(X) = 2.78", lambda result: replace(result, constants=replace(result.constants, c=3.3))),
    ("Tight RL-SSP under the same", stretched("RL-SSP tight", 4.0)),
    ("from end to end", lambda result: replace(result, reference=0.7)),
]  # fmt: skip


@pytest.mark.parametrize(("told", "fault"), APPLICATION_FAULTS, ids=[told for told, _ in APPLICATION_FAULTS])
def test_each_claim_about_the_application_fails_under_its_fault(told: str, fault: Callable[..., Any]) -> None:
    claims = [claim for claim in application_claims(fault(agreeing_application())) if told in claim.text]
    assert [claim.holds for claim in claims] == [False]


def test_every_claim_about_the_application_has_its_fault() -> None:
    for claim in application_claims(agreeing_application()):
        assert sum(told in claim.text for told, _ in APPLICATION_FAULTS) == 1, claim.text


def test_generated_data_prove_nothing_about_the_papers_figures() -> None:
    shown = [
        claim
        for claim in application_claims(replace(agreeing_application(), sources=("generated", "generated")))
        if claim.holds is None
    ]
    assert len(shown) == 5  # three of the linkage, c, and the four slopes


def test_the_toys_claim_fails_under_another_slope() -> None:
    rows = [Row("toy", 0.0, name, error, *[math.nan] * 4, 1) for name, error in (("OLS", 0.0), ("OLS on (X, z)", 3.6))]
    assert [claim.holds for claim in toy_claims(rows)] == [True]
    assert [claim.holds for claim in toy_claims([rows[0], replace(rows[1], error=0.4)])] == [False]


# --- the committed results -----------------------------------------------------------------------------


def test_the_page_lists_every_claim_that_does_not_hold() -> None:
    """With the figures of the committed run."""
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    with (ROOT / "benchmarks" / "results" / "reproduction" / "claims.csv").open(encoding="utf-8") as file:
        failed = [row for row in csv.DictReader(file) if row["holds"] == "DOES NOT HOLD"]
    assert failed
    for row in failed:
        assert row["claim"] in page, row["claim"]
        assert row["measured"] in page, row["measured"]


# --- the simulations, broken ---------------------------------------------------------------------------


def few_points(setting: str) -> list[simulated.Point]:
    points = simulated.setting_points(setting)
    return [points[0], points[len(points) // 2], points[-1]]


def run_claims(setting: str, repetitions: int = 400) -> dict[str, bool | None]:
    results = [simulated.run_point(point, repetitions, 1) for point in few_points(setting)]
    return {claim.text: claim.holds for claim in setting_claims(setting, results)}


@pytest.fixture(scope="module")
def unbroken() -> Callable[[str], dict[str, bool | None]]:
    found: dict[str, dict[str, bool | None]] = {}

    def claims(setting: str) -> dict[str, bool | None]:
        if setting not in found:
            found[setting] = run_claims(setting)
        return found[setting]

    return claims


def newly_failed(before: dict[str, bool | None], after: dict[str, bool | None]) -> list[str]:
    return [text for text in before if before[text] is True and after.get(text) is False]


def noisier_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulation and in its theoretical variance, which share the function."""
    noise = algorithms.ngd_noise
    for room in (algorithms, simulated):
        monkeypatch.setattr(room, "ngd_noise", lambda *given: 1.4 * noise(*given))


def no_linkage_change(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = simulated._prepare

    def prepared(*given: Any) -> Any:
        problem = prepare(*given)
        return replace(problem, linked=replace(problem.linked, M=0.0))

    monkeypatch.setattr(simulated, "_prepare", prepared)


def captions_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated.Point, "delta", property(lambda self: 8.5e-5))


def half_the_noise(sensitivity: str) -> Callable[[pytest.MonkeyPatch], None]:
    def fault(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = getattr(algorithms.Constants, sensitivity).fget
        monkeypatch.setattr(algorithms.Constants, sensitivity, property(lambda self: whole(self) / 2.0))

    return fault


def no_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without W = QX the corrected methods are the naive ones."""
    prepare = simulated._prepare
    monkeypatch.setattr(simulated, "_prepare", lambda *given: replace(prepare(*given), w=prepare(*given).x))


def no_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "mislink", lambda blocks, accuracy, rng: np.arange(blocks.size))


def half_the_tight_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulation alone, not in the plan: variances no longer agree."""
    estimates = simulated.Tight.estimates

    class Half:
        def __init__(self, rng: np.random.Generator) -> None:
            self.rng = rng

        def normal(self, *given: Any, **more: Any) -> np.ndarray:
            return self.rng.normal(*given, **more) / 2.0

    monkeypatch.setattr(simulated.Tight, "estimates", lambda self, vector, rng: estimates(self, vector, Half(rng)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "fault", "told", "repetitions"),
    [
        ("setting2", noisier_descent, "The noise is that of", 400),
        ("setting2", no_linkage_change, "The noise is that of", 400),
        ("setting2", captions_delta, "The noise is that of", 1500),
        ("setting2", half_the_noise("ssp_sensitivity"), "The noise is that of", 400),
        ("setting2", half_the_noise("ngd_sensitivity"), "The noise is that of", 400),
        ("setting1", no_correction, "RL-OLS at n = 10,000", 400),
        ("setting1", no_permutation, "RL-OLS at n = 10,000", 400),
        ("setting1", half_the_tight_noise, "first-order variances agree", 400),
    ],
    ids=[
        "ngd-noise-1.4",
        "no-M",
        "captions-delta",
        "half-ssp",
        "half-ngd",
        "no-correction",
        "no-permutation",
        "half-tight",
    ],
)
def test_claims_notice_a_broken_simulation(
    monkeypatch: pytest.MonkeyPatch, unbroken: Callable[..., Any], setting: str, fault: Callable[..., None], told: str, repetitions: int
) -> None:  # fmt: skip
    before = unbroken(setting)
    fault(monkeypatch)
    assert any(told in text for text in newly_failed(before, run_claims(setting, repetitions)))


# --- the whole of it -----------------------------------------------------------------------------------

# What the paper says and the reproduction does not find: docs/paper.md has the figures.
KNOWN_FAILURES = {
    "toy": [],
    "setting1": [
        "closely aligns with the empirical", "variance” (all n; C = 1)", "variance” (all n; C = 1.2)", "variance” (all n; C = 2)",
        "SSP outperforms NGD in accuracy and variance", "high-probability event",
    ],
    "setting2": [
        "perform better” (C = 1)", "perform better” (C = 1.2)", "post-RL NGD” (read as the error bounds", "post-RL SSP” (read as the error bounds",
        "NGD: linear growth (read as the error bounds", "SSP: quadratic growth (read as the error bounds",
    ],
    "setting3": ["number of iterations"],
    "application": ["centered around the OLS estimator"],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return reproduce(["all"], tmp_path_factory.mktemp("reproduction"), repetitions=400, seed=1, jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_claims_that_fail_are_the_known_ones(whole: Any, part: str) -> None:
    """All but the interval of the single private release, which misses once in twenty. Households and links are generated here."""
    claims: list[Claim] = [claim for claim in whole.claims if claim.setting == part and "end to end" not in claim.text]
    assert claims
    failed = [claim.text for claim in claims if claim.holds is False]
    assert [text for text in failed if not any(told in text for told in KNOWN_FAILURES[part])] == []
    assert [told for told in KNOWN_FAILURES[part] if not any(told in text for text in failed)] == []


@pytest.mark.slow
def test_the_private_application_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 releases; fewer than 24 intervals that hold the reference would happen by chance in 1 of 1,700 tries, were coverage .95. Draws are fixed."""
    rng, draws = np.random.default_rng(6), np.random.default_rng(7)
    monkeypatch.setattr(
        "dplinked.privacy.noise.add_gaussian",
        lambda v, s: np.asarray(v) + np.asarray(s) * draws.normal(size=np.shape(v)),
    )
    households, people = applied.load_households(None, 3), applied.link_people(3)
    hits = 0
    for _ in range(30):
        release, reference = applied._end_to_end(households, people, rng)
        low, high = release.conf_int()["income"]
        hits += low <= reference <= high
    assert hits >= 24
