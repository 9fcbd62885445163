"""Differentially private linear regression on data joined by imperfect record linkage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dplinked import privacy
from dplinked.accuracy import release_accuracy
from dplinked.errors import BudgetError, CalibrationError, DplinkedError, LedgerError, ReleaseError, StudyError
from dplinked.estimate import baseline
from dplinked.estimate.planning import Plan, plan, plan_study
from dplinked.fit import fit, fit_study
from dplinked.linkage import ELE, Exact, Matching, PrivacyUnit
from dplinked.linkage.fields import Field
from dplinked.linking import link
from dplinked.privacy.ledger import Ledger
from dplinked.privacy.plan import Descent
from dplinked.records import Linked
from dplinked.release import Release
from dplinked.study import Study
from dplinked.tables import Query, SparkTable, Stream

if TYPE_CHECKING:
    from dplinked.regression import LinkedRegression

__version__ = "0.1.0"

__all__ = [
    "ELE",
    "BudgetError",
    "CalibrationError",
    "Descent",
    "DplinkedError",
    "Exact",
    "Field",
    "Ledger",
    "LedgerError",
    "Linked",
    "LinkedRegression",
    "Matching",
    "Plan",
    "PrivacyUnit",
    "Query",
    "Release",
    "ReleaseError",
    "SparkTable",
    "Stream",
    "Study",
    "StudyError",
    "baseline",
    "fit",
    "fit_study",
    "link",
    "plan",
    "plan_study",
    "privacy",
    "release_accuracy",
]


def __getattr__(name: str) -> Any:
    if name == "LinkedRegression":  # scikit-learn brings pandas along: loaded when asked for
        from dplinked.regression import LinkedRegression

        return LinkedRegression
    raise AttributeError(f"module 'dplinked' has no attribute {name!r}")
