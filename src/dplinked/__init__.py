"""Differentially private linear regression on data joined by imperfect record linkage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dplinked import privacy
from dplinked.errors import CalibrationError, DplinkedError, ReleaseError, StudyError
from dplinked.estimate import baseline
from dplinked.estimate.planning import Plan, plan, plan_study
from dplinked.fit import fit, fit_study
from dplinked.linkage import ELE, Exact, Matching, PrivacyUnit
from dplinked.privacy.plan import Descent
from dplinked.release import Release
from dplinked.study import Study

if TYPE_CHECKING:
    from dplinked.regression import LinkedRegression

__version__ = "0.1.0"

__all__ = [
    "ELE",
    "CalibrationError",
    "Descent",
    "DplinkedError",
    "Exact",
    "LinkedRegression",
    "Matching",
    "Plan",
    "PrivacyUnit",
    "Release",
    "ReleaseError",
    "Study",
    "StudyError",
    "baseline",
    "fit",
    "fit_study",
    "plan",
    "plan_study",
    "privacy",
]


def __getattr__(name: str) -> Any:
    if name == "LinkedRegression":  # scikit-learn brings pandas along: loaded when asked for
        from dplinked.regression import LinkedRegression

        return LinkedRegression
    raise AttributeError(f"module 'dplinked' has no attribute {name!r}")
