"""A release as tables to compute with: pandas frames where pandas is installed, Arrow tables elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dplinked.release.inference import LEVEL
from dplinked.release.result import Result


def make_frame(columns: Mapping[str, Sequence[Any]], names: Sequence[str] = ()) -> Any:
    """Columns as a pandas frame or an Arrow table; `names` of rows are the frame's index, or the table's first column ``term``."""
    if find_spec("pandas") is None:
        import pyarrow as pa

        return pa.table({**({"term": list(names)} if names else {}), **columns})
    import pandas as pd

    return pd.DataFrame(dict(columns), index=list(names) if names else None)


def tidy_columns(result: Result, level: float = LEVEL) -> dict[str, list[Any]]:
    """A cell for each coefficient, in the columns of broom's ``tidy``; without intervals, what they tell is missing."""
    names = list(result.coef)
    columns: dict[str, list[Any]] = {
        "term": names,
        "estimate": list(result.coef.values()),
        "std_error": list(result.std_err.values()),
    }
    if result.has_intervals:
        intervals, z, p = result.conf_int(level), result.zvalues, result.pvalues
        columns |= {
            "statistic": [z[name] for name in names],
            "p_value": [p[name] for name in names],
            "conf_low": [intervals[name][0] for name in names],
            "conf_high": [intervals[name][1] for name in names],
        }
    return columns


def glance_columns(result: Result) -> dict[str, list[Any]]:
    """One row about the release as a whole."""
    return {
        "formula": [result.formula],
        "family": [result.family],
        "nobs": [result.count],
        "epsilon": [result.privacy.epsilon],
        "delta": [result.privacy.delta],
        "mu": [result.privacy.mu],
        "method": [result.method],
        "linkage": [result.linkage.model],
        **_goodness_columns(result),
    }


def stacked_frame(named: str, parts: Mapping[str, Mapping[str, Sequence[Any]]]) -> Any:
    """The rows of several results under each other; the first column, called `named`, says which result a row is of."""
    counts = {name: len(next(iter(part.values()))) for name, part in parts.items()}
    columns: dict[str, list[Any]] = {named: [name for name, count in counts.items() for _ in range(count)]}
    for column in dict.fromkeys(column for part in parts.values() for column in part):
        columns[column] = [cell for name, part in parts.items() for cell in part.get(column, [None] * counts[name])]
    return make_frame(columns)


def _goodness_columns(result: Result) -> dict[str, list[float]]:
    """The joint test of all slopes, and how well the line fits if that was paid for; in the words of broom's ``glance``, each beside its interval."""
    columns: dict[str, list[float]] = {}
    if result.has_intervals and any(name != "Intercept" for name in result.coef):
        test = result.f_test()
        columns |= {"statistic": [test.statistic / test.degrees], "p_value": [test.p_value], "df": [test.degrees]}
    for name, found in (("r_squared", result.r_squared), ("sigma", result.residual_sd)):
        if found is not None:
            columns |= {name: [found[0]], f"{name}_low": [found[1]], f"{name}_high": [found[2]]}
    return columns


def covariance_frame(result: Result) -> Any:
    """Covariance of the coefficients, by name."""
    names = list(result.coef)
    covariance = result.covariance()
    return make_frame({name: covariance[:, k].tolist() for k, name in enumerate(names)}, names)
