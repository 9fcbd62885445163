"""How a budget is best divided between the accuracy of the links and the fit, and how many links to check: before anybody checks them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dplinked.errors import StudyError, plain_faults
from dplinked.linkage import ELE
from dplinked.plan.errors import Setting
from dplinked.plan.expectations import PlannedError
from dplinked.plan.figures import expect_errors, guess_rows, list_errors, make_setting
from dplinked.plan.rows import Guess
from dplinked.privacy.calibration import privacy_epsilon, privacy_mu, round_down
from dplinked.privacy.quantities.right_links import affords_groups, changed_answers
from dplinked.privacy.secret_sample import calibrate_sample, mu_beside, secret_epsilon
from dplinked.report.document import Document, Notes, Section, Table
from dplinked.report.text import write_lines
from dplinked.study.study import Study

IDENTIFIERS, SECRET, PUBLIC = "identifiers", "secret sample", "public sample"
LINKS = (200, 500, 1000, 2000)
_SHOWN = 3  # slopes in the table
_MOST_NOISE = 10.0  # of what the counts would need for the whole budget: more is never better
_SAFE = 1.0 - 1e-6  # conversions back and forth round


@dataclass(frozen=True)
class Split:
    """One way to spend a budget, and what the coefficients' errors would be.

    Attributes
    ----------
    way
        ``"identifiers"``: links are held fixed and checked by identifiers alone, at no cost. ``"secret sample"``: they are drawn by a secret key. ``"public sample"``: by a seed.
    links
        How many links are checked.
    epsilon_accuracy, epsilon_fit
        What `release_accuracy` and `fit` are given, both at the plan's δ.
    scale
        Noise on each group's number of right links.
    rows
        Expected standard errors.
    """

    way: str
    links: int
    epsilon_accuracy: float
    epsilon_fit: float
    scale: float
    rows: tuple[PlannedError, ...]

    @property
    def slopes(self) -> tuple[PlannedError, ...]:
        """Expected errors of the slopes; of the intercept if there is no slope."""
        return tuple(row for row in self.rows if row.name != "Intercept") or self.rows

    @property
    def error(self) -> float:
        """Geometric mean of the slopes' standard errors, by which ways are compared."""
        return math.exp(sum(math.log(row.total) for row in self.slopes) / len(self.slopes))


@dataclass(frozen=True)
class SplitPlan:
    """The best split for each way and number of links; ε and δ are those of accuracy and fit together."""

    epsilon: float
    delta: float
    count: int
    accuracy: float
    splits: tuple[Split, ...]

    @property
    def best(self) -> Split:
        """The split with the smallest errors."""
        return min(self.splits, key=lambda split: split.error)

    def __str__(self) -> str:
        names = [row.name for row in self.splits[0].slopes][:_SHOWN]
        header = ["way", "links", "ε accuracy", "ε fit", *(f"± {name}" for name in names)]
        rows = [
            [
                split.way,
                f"{split.links:,}",
                round_down(split.epsilon_accuracy, 3) if split.epsilon_accuracy else "-",
                round_down(split.epsilon_fit, 3),
                *(f"{row.half_width():.4g}" for row in split.slopes[:_SHOWN]),
            ]
            for split in self.splits
        ]
        table = Table(header, rows, "Accuracy and fit")
        notes = Notes(
            [
                f"± is the expected half-width of a 95 % interval, with {self.count:,} rows and an accuracy of about {self.accuracy:g}. A secret sample is drawn by a key: "
                f"audit_sample(…, key=…), --audit-key, and released with guess={self.accuracy:g}."
            ]
        )
        title = f"Accuracy and fit together at epsilon = {self.epsilon:g}, delta = {self.delta:g} (no data touched)"
        return write_lines(Document(title, [Section("", [table, notes])]))


@plain_faults
def plan_split(
    study: Study, count: int, links: Sequence[Any] = LINKS, r_squared: float = 0.5, response_mean: float | None = None
) -> SplitPlan:
    """Divide a study's whole budget between releasing the links' accuracy and the fit, for several numbers of links to check. No data is touched.

    Parameters
    ----------
    study
        Its epsilon and delta are those of both releases together, and the accuracy of its linkage is a guess.
    count
        Number of rows, public.
    links
        Numbers of links that might be checked.
    r_squared, response_mean
        As in :func:`dplinked.plan`.

    Returns
    -------
    SplitPlan
        For each number of links and each way to use them that the unit allows, the split with the smallest errors of the slopes.
    """
    linkage, unit = study.linkage, study.unit
    if not isinstance(linkage, ELE) or not unit.fixes_blocks or linkage.carriers > 1:
        raise StudyError(
            "Accuracies can be released for linkage errors within blocks (ELE), links that are one to one, and a unit without moves_block and linkage_change."
        )
    if not isinstance(count, int) or isinstance(count, bool):
        raise StudyError("count must be a whole number of rows (int).")
    if not isinstance(links, (list, tuple)) or not all(
        isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= count for size in links
    ):
        raise StudyError("links must be whole numbers of links to check, each from 1 to the number of rows.")
    if study.parts:
        raise StudyError(
            "A split between accuracy and fit is planned for one result: plan it for one of the outcomes, or without by."
        )
    setting = make_setting(study)
    study.check_count(count)
    ways: list[Callable[[int], Split]] = []
    planner = _Planner(setting, guess_rows(study, setting, r_squared, response_mean), count, linkage)
    if not unit.displaced_links:
        ways.append(planner.by_identifiers)
    ways += [planner.by_secret_sample, planner.by_public_sample]
    splits = tuple(way(size) for size in links for way in ways)
    return SplitPlan(study.epsilon, study.delta, count, planner.guess.accuracy, splits)


@dataclass(frozen=True)
class _Planner:
    """What splits are found from."""

    setting: Setting
    guess: Guess
    count: int
    linkage: ELE

    def _counts(self, links: int, scale: float) -> int:
        """How many counts of right links there are, each with noise: one of each group, or one of all."""
        groups = 1 if isinstance(self.linkage.accuracy, float) else len(self.linkage.accuracy)
        return groups if affords_groups(groups, links, scale) else 1

    @property
    def _turned(self) -> int:
        """Rows that one person may change the answers of."""
        return changed_answers(ELE(0.5).exposure(self.setting.study.unit))

    @property
    def _mu(self) -> float:
        return privacy_mu(self.setting.study.epsilon, self.setting.study.delta)

    def by_identifiers(self, links: int) -> Split:
        return self._split(IDENTIFIERS, links, 0.0, self._mu, 0.0)

    def by_public_sample(self, links: int) -> Split:
        turned, whole = self._turned, self._mu
        return self._best(
            PUBLIC,
            links,
            1.01 * turned / whole,
            lambda scale: math.sqrt(whole**2 - (turned / scale) ** 2),
            lambda scale: privacy_epsilon(turned / scale, self.setting.study.delta),
        )

    def by_secret_sample(self, links: int) -> Split:
        epsilon, delta = self.setting.study.epsilon, self.setting.study.delta
        least = calibrate_sample(links / self.count, self._turned, self.guess.accuracy, epsilon, delta)
        return self._best(
            SECRET,
            links,
            1.01 * least.scale,
            lambda scale: mu_beside([replace(least, scale=scale)], epsilon, delta),
            lambda scale: secret_epsilon([replace(least, scale=scale)], delta),
        )

    def _best(
        self,
        way: str,
        links: int,
        least: float,
        left: Callable[[float], float],
        price: Callable[[float], float],
    ) -> Split:
        """The split with the smallest errors, over noise of `least` or more on the counts: what it leaves for the fit, as μ, and its price, as ε."""
        from scipy.optimize import minimize_scalar

        most = max(_MOST_NOISE * self._turned / self._mu, 2.0 * least)
        found = minimize_scalar(
            lambda log: self._split(way, links, math.exp(log), left(math.exp(log)), 0.0).error,
            bounds=(math.log(least), math.log(most)),
            method="bounded",
            options={"xatol": 0.03},
        )
        scale = math.exp(float(found.x))
        return self._split(way, links, scale, left(scale), price(scale))

    def _split(self, way: str, links: int, scale: float, mu: float, price: float) -> Split:
        """A fit of μ whose accuracy was found with noise of `scale`, for ε = `price`."""
        accuracy = self.guess.accuracy
        epsilon = privacy_epsilon(mu, self.setting.study.delta) * _SAFE
        variance = accuracy * (1.0 - accuracy) / links + self._counts(links, scale) * (scale / links) ** 2
        guess = replace(self.guess, accuracy_variance=variance / accuracy**2)
        errors = expect_errors(self.setting, guess, epsilon, self.count)
        rows = tuple(list_errors(guess, errors, epsilon, self.count))
        return Split(way, links, price * _SAFE, epsilon, scale, rows)
