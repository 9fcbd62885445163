"""Differentially private regression on data joined by imperfect record linkage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dplinked import privacy
from dplinked.data.format import File
from dplinked.data.limit import limit_rows
from dplinked.data.sources import Query, SparkTable, Stream
from dplinked.errors import BudgetError, CalibrationError, DplinkedError, LedgerError, ReleaseError, StudyError
from dplinked.fitting import fit, fit_study
from dplinked.ledger.ledger import Ledger
from dplinked.linkage import ELE, Exact, Matching, PrivacyUnit
from dplinked.plan.planning import Plan, plan, plan_study
from dplinked.plan.split import plan_split
from dplinked.release.release import Release
from dplinked.release.releases import Releases
from dplinked.study.descent import Descent
from dplinked.study.study import Study

if TYPE_CHECKING:
    from dplinked import encodings
    from dplinked.check.study import Check, check_study
    from dplinked.linker.dedupe import dedupe
    from dplinked.linker.encodings.encode import encode
    from dplinked.linker.fields import Field
    from dplinked.linker.link import link
    from dplinked.linker.linked import Linked
    from dplinked.linker.release_accuracy import release_accuracy
    from dplinked.not_private import baseline
    from dplinked.outcome_regression import LinkedLogisticRegression, LinkedPoissonRegression
    from dplinked.regression import LinkedRegression

if not __debug__:
    raise ImportError(
        "dplinked checks what its promises rest on by assertions, which Python leaves out under -O and PYTHONOPTIMIZE. Run it without them."
    )

__version__ = "0.2.0.dev0"  # the only place; pyproject.toml reads it here

__all__ = [
    "ELE",
    "BudgetError",
    "CalibrationError",
    "Check",
    "Descent",
    "DplinkedError",
    "Exact",
    "Field",
    "File",
    "Ledger",
    "LedgerError",
    "Linked",
    "LinkedLogisticRegression",
    "LinkedPoissonRegression",
    "LinkedRegression",
    "Matching",
    "Plan",
    "PrivacyUnit",
    "Query",
    "Release",
    "ReleaseError",
    "Releases",
    "SparkTable",
    "Stream",
    "Study",
    "StudyError",
    "baseline",
    "check_study",
    "dedupe",
    "encode",
    "encodings",
    "fit",
    "fit_study",
    "limit_rows",
    "link",
    "plan",
    "plan_split",
    "plan_study",
    "privacy",
    "release_accuracy",
]


# Loaded when they are asked for: linking is not needed for a fit, and scikit-learn brings pandas along.
_LATER = {
    "Check": "dplinked.check.study:Check",
    "check_study": "dplinked.check.study:check_study",
    "Field": "dplinked.linker.fields:Field",
    "Linked": "dplinked.linker.linked:Linked",
    "LinkedLogisticRegression": "dplinked.outcome_regression:LinkedLogisticRegression",
    "LinkedPoissonRegression": "dplinked.outcome_regression:LinkedPoissonRegression",
    "LinkedRegression": "dplinked.regression:LinkedRegression",
    "baseline": "dplinked.not_private.baseline",
    "dedupe": "dplinked.linker.dedupe:dedupe",
    "encode": "dplinked.linker.encodings.encode:encode",
    "encodings": "dplinked.encodings",
    "link": "dplinked.linker.link:link",
    "release_accuracy": "dplinked.linker.release_accuracy:release_accuracy",
}


def __getattr__(name: str) -> Any:
    from pkgutil import resolve_name

    if name not in _LATER:
        raise AttributeError(f"module 'dplinked' has no attribute {name!r}")
    return globals().setdefault(name, resolve_name(_LATER[name]))
