"""Generated patients of a health study: who died and how often they went to hospital, linked with errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dplinked.not_private.simulate.households import mislink

DEATHS = {"Intercept": -3.2, "age": 0.05, "C(smoker)[yes]": 0.8}  # log odds at 60 years, per year, and of smokers
STAYS = {"Intercept": -1.2, "age": 0.02, "C(smoker)[yes]": 0.4}  # logarithms of yearly rates


def linked_patients(n: int, seed: int) -> dict[str, NDArray[np.generic]]:
    """Patients of a register, linked within 200 practices to deaths and hospital stays; 93 % of the links are right.

    ``died`` is yes or no, with log odds of ``-3.2 + .05·(age - 60) + .8·[smoker]``: about one patient in eighteen. ``stays`` counts stays in hospital during the ``years`` under
    observation, with a yearly rate of ``exp(-1.2 + .02·(age - 60) + .4·[smoker])``. Both columns hold the linked values, ``true_died`` and ``true_stays`` the patients' own.
    """
    rng = np.random.default_rng(seed)
    practice = rng.integers(0, 200, n)
    age, smoker, years = rng.uniform(40.0, 80.0, n), rng.random(n) < 0.25, rng.uniform(0.5, 5.0, n)

    def line(truth: dict[str, float]) -> NDArray[np.float64]:
        return truth["Intercept"] + truth["age"] * (age - 60.0) + truth["C(smoker)[yes]"] * smoker

    died = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-line(DEATHS))), "yes", "no")
    stays = rng.poisson(years * np.exp(line(STAYS)))
    links = mislink(practice, np.full(200, 0.93), rng)
    return {
        "age": np.round(age, 1),
        "smoker": np.where(smoker, "yes", "no"),
        "years": np.round(years, 2),
        "practice": practice,
        "died": died[links],
        "stays": stays[links],
        "true_died": died,
        "true_stays": stays,
    }
