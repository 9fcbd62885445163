"""What has to be said beside a release's coefficients, in sentences that text and page share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dplinked.estimate.paper import CLEAR, clearance, is_settling, left_to_go
from dplinked.linkage.compared import say_compared
from dplinked.privacy.quantities.right_residuals import RIGHT_RESIDUALS
from dplinked.privacy.quantities.stratum_totals import STRATUM_TOTALS
from dplinked.release.family import FAMILIES
from dplinked.release.result import Result
from dplinked.report.plots import CoefficientRow
from dplinked.report.words import list_names

NOISE_ALONE = "Noise s.e. is what privacy noise does to the coefficient; sampling and linkage error come on top."
STEP_ALONE = (
    "The noise of all steps is added up by the paper's theorem for a step of d/L, which means that eigenvalues of W'W/n are not below η/d². Where columns are "
    "more alike, it is larger: intervals=True has it from released values."
)
EXACTLY_KNOWN = "Intervals take the linkage accuracy as exactly known; declare checked=… to include its error."
LEAST_SQUARES_LINE = (
    "The line is the one that least squares would find on perfectly linked rows, clipped to their bounds."
)
RESIDUAL_LINE = (
    "The line is close to the one that least squares would find on perfectly linked rows, clipped to their bounds: large residuals, and rows far out in a column, "
    "count for less. Where the truth is curved or errors are skewed, the two differ, and intervals are about this one."
)
SYMMETRIC_LINE = (
    "Errors were declared symmetric around the line, and the larger the rarer, so residuals are clipped close to it. If they are, the line is close to the one that least "
    "squares would find on perfectly linked rows, clipped to their bounds. If they are skewed, and larger in some rows than in others, slopes may be bent by a tenth, "
    "which intervals do not cover."
)
SKEWED_LINE = (
    "Errors were declared skewed, so residuals are clipped far from the line, which is close to the one that least squares would find on perfectly linked rows, clipped to "
    "their bounds: rows far out in a column count for less. Where the truth is curved, the two differ, and intervals are about this one."
)
AIMED_LINE = "The line follows the middle of the columns. It is the one of least squares on perfectly linked rows where the truth is a line, and another where it is curved."
LEFT_OUT = "Rows with a missing cell are left out of the coefficients, whether there are any or not."
FILLED = (
    "Missing cells, if there are any, are not left out of this release, which has no second stage: they count as values in the middle of their columns, or as "
    "those declared for them, and bend slopes."
)
FILLED_AS_ASKED = "Missing cells, if there are any, count as values in the middle of their columns, or as those declared for them, which bends slopes."
STAGE_LINES = {"any": RESIDUAL_LINE, "symmetric": SYMMETRIC_LINE, "skewed": SKEWED_LINE}
_ROUTES = {
    "block": "block totals",
    "person": "totals of each person's rows",
    "cluster": "totals of clusters",
    "row": "single rows",
    "scale": "the residuals' size alone",
    "moments": "W'W, W'z and z'z",
}
_HARDLY = 0.05  # noise of a clusters' variance, relative to it, above which it is said to tell little
_STOPPED = 0.2  # share of a standard error above which it is said that a descent stopped early


def unbounded_names(rows: Sequence[CoefficientRow]) -> list[str]:
    """Coefficients whose intervals lack an end."""
    return [row.name for row in rows if row.interval is not None and not row.bounded]


def hidden_names(result: Result) -> list[str]:
    """Coefficients that privacy noise hides: it exceeds the range that was declared for them."""
    return [name for name, known in result.identified.items() if not known]


def say_unbounded(names: Sequence[str]) -> str:
    """That intervals have no end."""
    return f"This budget does not identify {list_names(names)}: values however large cannot be ruled out."


def say_hidden(names: Sequence[str]) -> str:
    """That privacy noise hides coefficients."""
    verb, whose = _those(names, "is", "are"), _those(names, "its", "their")
    return f"{list_names(names)} {verb} not identified: at this budget privacy noise exceeds {whose} declared range."


def say_unusable(result: Result) -> list[str]:
    """That the noisy matrix of Algorithm 2 is unusable, if it is, and what the estimate beside it is."""
    if not result.shrunken or result.released.sums is None:
        return []
    found = clearance(result.released.sums)
    least = "is not positive" if found <= 0.0 else f"is {found:.2g} times the size of the noise in that matrix"
    return [
        f"Algorithm 2's estimate is not usable here: the least eigenvalue of the noisy W'W {least}, where more than {CLEAR:g} times are needed. It can be "
        "far off, and has no finite variance. Shown beside it as 'shrunken' is what the same sums tell when coefficients are drawn towards zero as far as "
        "the noise asks for."
    ]


def say_descent(result: Result) -> list[str]:
    """That Algorithm 1 stopped before it arrived, or at the border of its radius, if it did; from released values."""
    descent = result.released.descent
    if (
        descent is None or descent.radius is None or result.calibration != "paper"
    ):  # releases of 0.1.0 do not hold the radius
        return []
    said = []
    if float(np.linalg.norm(descent.path[-1])) >= descent.radius * (1.0 - 1e-9):
        said.append(
            f"The last iterate lies on the border of the declared radius, {descent.radius:g}: coefficients beyond it cannot be found. Standard errors, "
            "which leave projections out, are on the safe side for coefficients within."
        )
    if result.released.sums is None:
        return [*said, STEP_ALONE]
    if not is_settling(descent, result.released.sums.matrix, result.count):
        said.append(
            "By the released W'W the steps are too long to come to rest, or its noise is too large to tell. Standard errors are those of the radius there. "
            "Declare a shorter step or a larger curvature."
        )
    else:
        left = dict(
            zip(result.scaling.names, left_to_go(descent, result.released.sums.matrix, result.count), strict=True)
        )
        if any(abs(left[name]) > _STOPPED * error for name, error in result.std_err.items()):
            said.append(
                f"{len(descent.gradients)} steps are too few: the descent stopped before it arrived. Standard errors count what is left of the way. Declare "
                "more iterations, or a curvature from which they follow."
            )
    return said


def say_accuracy(result: Result) -> list[str]:
    """That intervals leave out the error of the accuracy, if they do."""
    variance = result.released.variance
    left_out = variance is not None and variance.accuracy is None and result.linkage.model == "ELE"
    return [EXACTLY_KNOWN] if left_out else []


def say_line(result: Result) -> list[str]:
    """Which line is estimated; that of the paper's algorithms is theirs."""
    if result.calibration != "tight":
        return []
    if result.family != "linear":
        return [FAMILIES[result.family].line, *_say_largest(result)]
    if any(part.name == RIGHT_RESIDUALS for part in result.released.parts):
        return [STAGE_LINES[result.declared.errors]]
    return [LEAST_SQUARES_LINE if result.scaling.half_widths is None else AIMED_LINE]


def _say_largest(result: Result) -> list[str]:
    """Which counts were clipped, and what that rests on."""
    largest = result.released.largest
    if largest is None:
        return []
    return [
        f"Counts above {largest} count as {largest}. The regression allows for that, as far as counts follow Poisson's law."
    ]


def say_counted(result: Result) -> list[str]:
    """Which rows count, and how much, if they do not all count the same."""
    said, declared, found = [], result.declared, result.subgroup
    if found is not None:
        number, low, high = (f"{round(end):,}" for end in found)
        said.append(
            f"Only rows count for which {declared.where} holds: about {number} complete ones, 95 % interval {low} to {high}. The number itself stays private."
        )
    if declared.weights is not None:
        of = "least squares" if declared.family == "linear" else "maximum likelihood"
        said.append(f"Rows are weighted by {declared.weights}: the line is that of weighted {of}.")
    return said


def say_goodness(result: Result) -> list[str]:
    """How well the line fits, if that was paid for, and the joint test of all slopes."""
    if result.residual_sd is None or result.r_squared is None:
        return []
    (deviation, *ends), (share, low, high) = result.residual_sd, result.r_squared
    said = f"Residual standard deviation {deviation:.4g}, 95 % interval {ends[0]:.4g} to {ends[1]:.4g}; R² {share:.3f}, {low:.3f} to {high:.3f}, of right links."
    if all(name == "Intercept" for name in result.coef):
        return [said]
    test = result.f_test()
    p_value = f"p = {test.p_value:.2g}" if test.p_value >= 1e-4 else "p < 0.0001"
    return [f"{said} All slopes zero: F({test.degrees}, ∞) = {test.statistic / test.degrees:.4g}, {p_value}."]


def say_missing(result: Result) -> list[str]:
    """What became of missing cells, the same whether there are any or not. Releases of earlier versions and the paper's algorithms fill them."""
    if result.calibration != "tight" or result.declared.missing == "":
        return []
    if result.declared.missing == "fill":
        return [FILLED_AS_ASKED]
    two = any(part.name == RIGHT_RESIDUALS for part in result.released.parts)
    return [LEFT_OUT if two else FILLED]


def say_linking_fields(result: Result) -> list[str]:
    """That variables are columns by which records were linked, if any are."""
    return say_compared(result.declared.compared)


def say_route(result: Result) -> list[str]:
    """Where the variance of intervals comes from; nothing if they were not paid for."""
    variance = result.released.variance
    if variance is None:
        return []
    said = [f"Sampling and linkage variance come from {_ROUTES[variance.route]}, released with noise."]
    if variance.route == "scale" and result.declared.family != "linear":
        said = [
            "Sampling and linkage variance are what the curve itself implies: the budget is too small to release them."
        ]
    if variance.route == "cluster":
        said.append(f"Intervals allow for whatever rows with the same {result.declared.cluster} have in common.")
        if variance.noise > _HARDLY * float(np.trace(variance.meat * np.outer(variance.weights, variance.weights))):
            said.append(
                "This budget hardly tells how much that is, for want of clusters: intervals are longer than they would be with a larger one."
            )
    if result.declared.strata is not None:
        said.append(
            f"Rows were drawn apart in strata by {result.declared.strata}: what differs between these is left out of the variance, as far as noise lets it be told."
            if any(part.name == STRATUM_TOTALS for part in result.released.parts)
            else f"Strata by {result.declared.strata} are not taken into account, which makes intervals longer, if anything: the budget is too small, or links are a matrix that one stage takes as it is."
        )
    return said


def _those(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several
