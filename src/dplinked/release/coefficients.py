"""Coefficients of a release as rows of a table, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass

from dplinked.privacy.calibration import round_up
from dplinked.release.family import FAMILIES
from dplinked.release.result import Result
from dplinked.report.document import Table
from dplinked.report.latex import escape_latex, in_mathematics, write_table
from dplinked.report.numbers import format_number
from dplinked.report.plots import CoefficientRow

PARTS = ("sampling", "linkage", "privacy")
TEST = (
    "z is the coefficient over its standard error. Interval and p-value come from a test of their own, which stays right where noise is strong: p is below .05 exactly where the "
    "95 % interval leaves out zero."
)


def coefficient_rows(result: Result) -> list[CoefficientRow]:
    """All coefficients, in the release's order."""
    intervals, p_values = (result.conf_int(), result.pvalues) if result.has_intervals else ({}, {})
    return [
        CoefficientRow(
            name,
            value,
            result.std_err[name],
            intervals.get(name),
            result.error_parts.get(name, {}),
            p_values.get(name),
        )
        for name, value in result.coef.items()
    ]


def coefficients_csv(result: Result) -> str:
    """Coefficients with all their digits: a name, the coefficient, its error, their ratio, its interval, the p-value of the test that this inverts, what the error is made of.

    Where Algorithm 2's estimate is not usable, a last column has the shrunken one. Of odds ratios and rate ratios there are columns with the ratio and its interval.
    """
    ratios = {} if result.family == "linear" else result.ratios()
    kind = FAMILIES[result.family].ratio.replace(" ", "_")
    named = [kind, f"{kind}_low", f"{kind}_high"] if ratios else []
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    beside = ["shrunken"] if result.shrunken else []
    writer.writerow(["name", "coef", "std_err", "z", "low", "high", "p_value", *PARTS, *named, *beside])
    for row in coefficient_rows(result):
        low, high = ("", "") if row.interval is None else row.interval
        z, p_value = ("", "") if row.p_value is None else (row.z, row.p_value)
        parts = [row.parts.get(part, "") for part in PARTS]
        ratio = list(ratios.get(row.name, ("", "", ""))) if ratios else []
        shrunken = [result.shrunken[row.name]] if result.shrunken else []
        writer.writerow([row.name, row.coef, row.std_err, z, low, high, p_value, *parts, *ratio, *shrunken])
    return file.getvalue()


def goodness_csv(result: Result) -> str:
    """R², the residual standard deviation and the joint test of all slopes, with all digits."""
    test = result.f_test()
    rows = [
        ["r_squared", *(result.r_squared or ("", "", ""))],
        ["residual_sd", *(result.residual_sd or ("", "", ""))],
        ["f_statistic", test.statistic / test.degrees, "", ""],
        ["f_degrees", test.degrees, "", ""],
        ["f_p_value", test.p_value, "", ""],
    ]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([["name", "value", "low", "high"], *rows])
    return file.getvalue()


@dataclass(frozen=True)
class RatioColumns:
    """Columns of odds ratios or rate ratios, and of their intervals, for tables of coefficients; none for lines."""

    header: list[str]
    ratios: Mapping[str, tuple[float, float, float]]

    def cells(self, row: CoefficientRow) -> list[str]:
        """The cells of a coefficient, in as many digits as its error leaves meaningful; empty ones for the intercept."""
        found = self.ratios.get(row.name)
        if found is None:
            return [""] * len(self.header)
        ratio, low, high = (format_number(value, found[0] * row.std_err) for value in found)
        interval = f"[{low}, {high}]" if math.isfinite(found[2]) else "unbounded"
        return [ratio, interval][: len(self.header)]


def ratio_columns(result: Result) -> RatioColumns:
    """The columns that tables of a release's coefficients have for ratios."""
    kind = FAMILIES[result.family].ratio
    if not kind:
        return RatioColumns([], {})
    return RatioColumns([kind, *(["its 95 % interval"] if result.has_intervals else [])], result.ratios())


def coefficients_latex(result: Result) -> str:
    """A table for LaTeX with the package booktabs; names are escaped."""
    rows, paid = coefficient_rows(result), result.has_intervals
    kept = [part for part in PARTS if any(part in row.parts for row in rows)] if paid else []
    ratios = ratio_columns(result)
    header = [
        "",
        "Coefficient",
        "Std. error" if paid else "Noise s.e.",
        *(["z", "95 % interval", "p-value"] if paid else []),
    ]
    cells = [
        [
            row.name,
            row.show(row.coef),
            row.show(row.std_err),
            *row.show_test()[:1],
            *([f"[{', '.join(map(row.show, row.interval))}]"] if row.interval is not None else []),
            *row.show_test()[1:],
            *([format_number(result.shrunken[row.name])] if result.shrunken else []),
            *ratios.cells(row),
            *(row.show(row.parts[part]) for part in kept),
        ]
        for row in rows
    ]
    if result.shrunken:
        header = [*header, "Shrunken"]
    header += [one[0].upper() + one[1:] for one in ratios.header]
    table = Table([*header, *(part.capitalize() for part in kept)], cells, "Coefficients")
    return write_table(table, _latex_caption(result))


def _latex_caption(result: Result) -> str:
    epsilon, delta = (in_mathematics(round_up(value, 10)) for value in (result.privacy.epsilon, result.privacy.delta))
    errors = f" {escape_latex(TEST)}" if result.has_intervals else " Errors are those of privacy noise alone."
    return (
        f"\\texttt{{{escape_latex(result.formula)}}}: {result.count:,} linked rows, $({epsilon}, {delta})$-differentially private, "
        f"by dplinked {escape_latex(result.versions.get('dplinked', ''))}.{errors}"
    )
