"""``dplinked reproduce`` runs the paper's numerical section, draws its figures and checks its claims."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from dplinked.errors import StudyError, suggest
from dplinked.not_private.paper.application import ApplicationResult, run_application
from dplinked.not_private.paper.application_claims import application_claims
from dplinked.not_private.paper.claim import Claim, variance_ratios, verdict
from dplinked.not_private.paper.claims import setting_claims, toy_claims
from dplinked.not_private.paper.figures import draw_application, draw_setting, draw_toy
from dplinked.not_private.paper.settings import RADII, RADIUS, PointResult, Row, run_point, setting_points
from dplinked.report import page as html

SETTINGS = ("setting1", "setting2", "setting3")
PARTS = ("toy", *SETTINGS, "application")
TOY = ((1.0, 2.0, 8.0), (2.0, 4.0, 4.0), (3.0, 6.0, 6.0), (4.0, 8.0, 2.0))  # x, true y, linked z
_WARNING = (
    "Reproduction of simulations and of an experiment that read their data without paying: nothing here is a private release, "
    "but for the last line of the application."
)


@dataclass(frozen=True)
class Reproduction:
    """What was run: the tables, claims, figures and notes of each part."""

    rows: dict[str, tuple[Row, ...]]
    claims: tuple[Claim, ...]
    figures: dict[str, list[str]]
    notes: dict[str, str]


def reproduce(
    parts: Sequence[str],
    out: Path,
    *,
    repetitions: int = 1000,
    seed: int = 1,
    data: Path | None = None,
    radius: float = RADIUS,
    tight: bool = False,
    jobs: int = 2,
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> Reproduction:
    """Run parts of the paper's numerical section and write tables, figures and one page.

    Parameters
    ----------
    parts
        Any of ``toy``, ``setting1``, ``setting2``, ``setting3`` and ``application``, or ``all``.
    out
        Folder for a CSV per part, PNG and SVG per panel, ``claims.csv`` and ``reproduction.html``.
    data
        The survey's file for the application, with columns income and consumption. Without it households are generated.
    radius
        C of the simulations, which the paper does not give. Claims that depend on it are checked at 1, 1.2 and 2 in any case. The application's is
        1.2, as the paper says.
    tight
        Whether the figures show the tight mechanisms beside the paper's methods. Tables and claims have them in any case.
    jobs
        Number of processes.
    progress
        Called with the part that is running, the number of points that are done, and the number of all points.
    """
    chosen = _check_parts(parts, repetitions, radius)
    out.mkdir(parents=True, exist_ok=True)
    results = _run_settings([part for part in chosen if part in SETTINGS], (repetitions, seed, radius), jobs, progress)
    tables: dict[str, tuple[Row, ...]] = {}
    claims: list[Claim] = []
    figures: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    for part in chosen:
        if part in SETTINGS:
            tables[part] = tuple(row for point in results[part] for row in point.rows)
            claims += setting_claims(part, results[part])
            figures[part] = draw_setting(part, results[part], out, tight)
            notes[part] = _variance_note(results[part])
        elif part == "application":
            progress(part, 0, 1)
            application = run_application(data, repetitions, seed)
            progress(part, 1, 1)
            tables[part] = application.rows
            claims += application_claims(application)
            figures[part] = draw_application(application, out, tight)
            notes[part] = _application_note(application)
            _write_draws(application, out / "application_draws.csv")
        else:
            tables[part] = _toy_rows()
            claims += toy_claims(tables[part])
            figures[part] = draw_toy(TOY, out)
    for part, rows in tables.items():
        write_rows(rows, out / f"{part}.csv")
    found = Reproduction(tables, tuple(claims), figures, notes)
    _write_claims(claims, out / "claims.csv")
    (out / "reproduction.html").write_text(_page(found, repetitions, seed, radius), encoding="utf-8")
    return found


def _check_parts(parts: Sequence[str], repetitions: int, radius: float) -> list[str]:
    for part in parts:
        if part not in (*PARTS, "all"):
            raise StudyError(f"There is no part {part!r}; there are {[*PARTS, 'all']}.{suggest(part, PARTS)}")
    if repetitions < 2:
        raise StudyError(f"repetitions must be 2 or more, not {repetitions!r}.")
    if not 1.0 <= radius <= 1e6:
        raise StudyError(
            f"radius must be at least 1, where the true coefficient lies, and at most 1e6, not {radius!r}."
        )
    return [part for part in PARTS if part in parts or "all" in parts]


def _run_settings(
    settings: Sequence[str], run: tuple[int, int, float], jobs: int, progress: Callable[[str, int, int], None]
) -> dict[str, list[PointResult]]:
    """Run all points of all settings in several processes; `run` is repetitions, seed and C. Each point has its own seed, so their order does not matter."""
    points = [point for setting in settings for point in setting_points(setting)]
    found: dict[Any, PointResult] = {}
    if jobs == 1:
        for point in points:
            found[point] = run_point(point, *run)
            progress(point.setting, len(found), len(points))
    elif points:
        with ProcessPoolExecutor(jobs) as pool:
            waiting = {pool.submit(run_point, point, *run): point for point in sorted(points, key=lambda p: -p.n)}
            for done in as_completed(waiting):
                found[waiting[done]] = done.result()
                progress(waiting[done].setting, len(found), len(points))
    return {setting: [found[point] for point in points if point.setting == setting] for setting in settings}


def _toy_rows() -> tuple[Row, ...]:
    """The rows of the toy example. Their error is the slope's distance from 2, and nothing is repeated."""
    nan = float("nan")
    x, y, z = (np.array(column) for column in zip(*TOY, strict=True))
    slopes = {name: float(np.polyfit(x, values, 1)[0]) for name, values in (("OLS", y), ("OLS on (X, z)", z))}
    return tuple(
        Row("toy", 0.0, name, round(abs(2.0 - slope), 12), nan, nan, nan, nan, 1) for name, slope in slopes.items()
    )


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write a tidy table with one line per method and point."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def _write_draws(result: ApplicationResult, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "estimate"])
        writer.writerows((name, value) for name, values in result.draws.items() for value in values.tolist())


def _write_claims(claims: Sequence[Claim], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["setting", "whose", "place", "claim", "measured", "holds"])
        writer.writerows((c.setting, c.source, c.place, c.text, c.measured, verdict(c)) for c in claims)


def _variance_note(results: Sequence[PointResult]) -> str:
    ratios = {
        name: variance_ratios(results, name) for name in ("RL-OLS", "RL-NGD", "RL-SSP", "RL-NGD tight", "RL-SSP tight")
    }
    parts = [f"{name} {', '.join(f'{value:.2f}' for value in ratio)}" for name, ratio in ratios.items()]
    return f"Empirical over theoretical variance, point by point: {'; '.join(parts)}."


def _application_note(result: ApplicationResult) -> str:
    k = result.constants
    return (
        f"Households: {result.sources[0]}. Links: {result.sources[1]}. R = {k.R:.2f}, c = max|x| = {k.c:.2f}, T = {k.T}, "
        f"eta = {k.eta:.2f}, C = {k.C:g}, M = {k.M:g}. {result.end_to_end.privacy.statement}"
    )


def _count_verdicts(claims: Sequence[Claim]) -> str:
    """How many of the paper's claims hold as written, in a sentence."""
    written = [claim for claim in claims if claim.source == "paper" and claim.holds is not None]
    failed = sum(not claim.holds for claim in written)
    return (
        f"Of the paper's {len(written)} claims that were checked as written, {len(written) - failed} hold and {failed} do not. A claim about several "
        "points holds if it holds at all of them."
    )


def _page(found: Reproduction, repetitions: int, seed: int, radius: float) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("dplinked", "numpy", "scipy"))
    body = [
        html.paragraph(
            "Lin, Paquette and Kolaczyk, Differentially Private Linear Regression with Linked Data (2024), Section 5. "
            f"{repetitions:,} repetitions, seed {seed}; {versions}."
        ),
        html.paragraph(
            f"C, the radius of Algorithm 1's projection, is {radius:g} in the simulations: the paper does not give it. Claims that depend on it are "
            f"checked at {', '.join(f'{C:g}' for C in RADII)} too. In the application it is 1.2, as the paper says."
        ),
        "<h2>Claims</h2>",
        html.paragraph(_count_verdicts(found.claims)),
        html.table(
            ["part", "claim", "whose", "measured", "verdict"],
            [
                [c.setting, c.text, f"{c.source}, {c.place}" if c.place else c.source, c.measured, verdict(c)]
                for c in found.claims
            ],
            label="claims, figures measured, verdicts",
        ),
    ]
    for part in found.rows:
        body += [f"<section>\n<h2>{html.to_html(part)}</h2>", *(html.figure(svg) for svg in found.figures[part])]
        if part in found.notes:
            body.append(html.paragraph(found.notes[part]))
        header = ["x", "method", "mean relative error", "standard error", "empirical variance", "theoretical variance"]
        cells = [
            [
                f"{row.x:g}",
                row.method,
                *(
                    f"{value:.4g}"
                    for value in (row.error, row.standard_error, row.empirical_variance, row.theoretical_variance)
                ),
            ]
            for row in found.rows[part]
        ]
        body += [
            "<details><summary>Table</summary>",
            html.table(header, cells, label=f"table of {part}"),
            "</details>",
            "</section>",
        ]
    return html.page("The paper, reproduced", "\n".join(body), warning=_WARNING)
