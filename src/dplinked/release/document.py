"""A release at length: the documents that are written as a page, and for a cell of a notebook.

Privacy
-------
Nothing is spent: every figure is computed from the release, which was paid for, and from what was declared.
"""

from __future__ import annotations

from collections.abc import Sequence

from dplinked.privacy.calibration import round_up
from dplinked.release.answer import answer
from dplinked.release.coefficients import (
    PARTS,
    TEST,
    coefficient_rows,
    coefficients_csv,
    coefficients_latex,
    goodness_csv,
    ratio_columns,
)
from dplinked.release.family import FAMILIES
from dplinked.release.notes import (
    NOISE_ALONE,
    hidden_names,
    say_accuracy,
    say_counted,
    say_descent,
    say_goodness,
    say_hidden,
    say_line,
    say_linking_fields,
    say_missing,
    say_route,
    say_unbounded,
    say_unusable,
    unbounded_names,
)
from dplinked.release.promise import (
    METHODS,
    describe_budget,
    describe_linkage,
    describe_privacy,
    exact_statement,
    format_delta,
    linkage_in_short,
    promise_in_short,
)
from dplinked.release.result import Result
from dplinked.report import plots
from dplinked.report.document import (
    Bullets,
    Chart,
    Code,
    Details,
    Document,
    Download,
    Facts,
    Lead,
    Part,
    Section,
    Table,
)
from dplinked.report.drawing import WIDE, WIDTH, short_label
from dplinked.report.numbers import format_number
from dplinked.report.plots import CoefficientRow
from dplinked.report.words import list_names

_NOISE = {"tight": "with as little noise as the promise allows", "paper": "with the noise that the paper asks for"}
_DRAWN = "Under strong noise estimates are drawn towards zero and intervals are not, so an estimate need not lie in the middle of its interval."
_MIDDLE = {
    (
        "ssp",
        "paper",
    ): "Under strong noise an estimate need not lie in the middle of its interval. A ridge moves estimates, not intervals.",
    (
        "ngd",
        "paper",
    ): "They are estimates give or take standard errors, by the paper's variance theorem with released values.",
}
_REMEDIES = {
    "sampling": "more rows would help most",
    "linkage": "better links, or more checked ones, would help most",
    "privacy": "a larger budget, more rows or tighter bounds would help most",
}
PAPER = (
    "Lin, S., Paquette, E. and Kolaczyk, E. D. (2024). Differentially Private Linear Regression with Linked Data. "
    "Harvard Data Science Review."
)


def report_document(result: Result) -> Document:
    """The whole report."""
    rows = coefficient_rows(result)
    start = (
        "Everything on this page was computed from the private release itself or was declared before it was made. Reading it, sharing "
        "it and computing with it costs no further privacy."
    )
    return Document(
        FAMILIES[result.family].title,
        [
            Section("", describe_answer(result, rows)),
            Section("Coefficients", describe_coefficients(result, rows)),
            Section("The release in short", [Facts(describe_facts(result), "The release in short"), start]),
            Section("What the standard errors are made of", describe_errors(result, rows)),
            Section("What is promised, to whom, and under which conditions", describe_privacy(result)),
            Section("How the rows were linked, as declared", describe_linkage(result)),
            Section("The budget, before and after", describe_budget(result)),
            Section("How to cite", describe_citation(result)),
            Section("Tables to copy", _exports(result), folded=True),
            Section("For the record", describe_record(result), folded=True),
        ],
        subject=result.formula,
    )


def notebook_document(result: Result) -> Document:
    """The report's first parts, for a cell of a notebook."""
    rows = coefficient_rows(result)
    facts = f"{result.count:,} linked rows; {linkage_in_short(result.linkage)}; {promise_in_short(result.privacy)}."
    parts: list[Part] = [
        Lead(answer(result)),
        facts,
        *_ratio_table(result, rows),
        _coefficient_table(result, rows),
        *_coefficient_notes(result, rows),
        Details("Chart", [_coefficient_chart(result, rows)]),
        Details("Privacy", exact_statement(result.privacy)),
    ]
    return Document(FAMILIES[result.family].title, [Section("", parts)], subject=result.formula)


# --- in short ----------------------------------------------------------------------------------------


def describe_facts(result: Result) -> list[tuple[str, str]]:
    """The release in short, the model first."""
    facts = [
        ("Model", result.formula),
        ("Rows", f"{result.count:,} (this number is public)"),
        ("Linkage", linkage_in_short(result.linkage)),
        ("Privacy", promise_in_short(result.privacy)),
        ("Method", f"{METHODS[result.method, result.calibration]}, {_NOISE[result.calibration]}"),
        ("Intervals", "paid for, 95 %" if result.has_intervals else "none: this release did not pay for them"),
    ]
    if result.dropped:
        left_out = list_names(result.dropped)
        facts.append(("Left out", f"{left_out}; a smaller model computed from a release that has them, at no cost"))
    if result.ledger is not None:
        facts.append(("Charged to", f"the budget of {result.ledger.population}"))
    return [*facts, ("Made by", f"dplinked {result.versions.get('dplinked', '')}".strip())]


# --- coefficients ------------------------------------------------------------------------------------


def describe_answer(result: Result, rows: Sequence[CoefficientRow]) -> list[Part]:
    """What was found, in sentences and as a chart."""
    return [Lead(answer(result)), *([_coefficient_chart(result, rows)] if rows else [])]


def describe_coefficients(result: Result, rows: Sequence[CoefficientRow]) -> list[Part]:
    """Coefficients as tables, and what has to be said beside them."""
    return [
        *_ratio_table(result, rows),
        _coefficient_table(result, rows),
        _reading(result, rows),
        *_coefficient_notes(result, rows),
    ]


def _reading(result: Result, rows: Sequence[CoefficientRow]) -> str:
    slopes = [row for row in rows if row.name != "Intercept"]
    text = FAMILIES[result.family].reading.format(response=result.scaling.response.name)
    if not result.has_intervals:
        return f"{text} This release did not pay for intervals."
    clear = sum(row.interval is not None and (row.interval[0] > 0.0 or row.interval[1] < 0.0) for row in slopes)
    if not slopes:
        return text
    many = {1: "the one slope", 2: "both slopes"}.get(len(slopes), f"all {len(slopes)} slopes")
    if clear == len(slopes):
        said = f"The 95 % interval{'s' * (clear > 1)} of {many} leave{'s' * (clear == 1)} out zero."
    elif clear:
        said = f"Of {len(slopes)} slopes, {clear} {'has a 95 % interval that leaves' if clear == 1 else 'have 95 % intervals that leave'} out zero."
    else:
        said = f"The 95 % interval{'s' * (len(slopes) > 1)} of {many} contain{'s' * (len(slopes) == 1)} zero."
    return f"{text} {said}"


def _coefficient_chart(result: Result, rows: Sequence[CoefficientRow]) -> Chart:
    family = FAMILIES[result.family]
    drawn = [row for row in rows if row.name != "Intercept"] or rows
    what = f"{family.ratio.capitalize()}s" if family.ratio else "Coefficients"
    title = f"{what} with 95 % intervals" if result.has_intervals else f"{what} with privacy noise alone"
    axis, ratios = family.axis.format(response=short_label(result.scaling.response.name)), bool(family.ratio)

    def draw(title: str, width: float) -> str:
        unsure = hidden_names(result)
        return plots.coefficient_chart(drawn, title=title, axis=axis, unsure=unsure, ratios=ratios, width=width)

    return Chart(
        lambda: draw(title, WIDTH),
        _coefficient_caption(result, drawn, family.ratio),
        wide=lambda: draw(f"{title}, drawn wide", WIDE),
    )


def _coefficient_caption(result: Result, rows: Sequence[CoefficientRow], ratio: str) -> str:
    if result.has_intervals:
        text = "Dots are estimates, lines their 95 % intervals."
        if ratio:
            text = f"Dots are {ratio}s, lines their 95 % intervals, on logarithmic axes: at 1 a column makes no difference."
        if len(rows) > 1:
            text += f" {'Ratios' if ratio else 'Coefficients'} of different sizes have axes of their own."
        if any(not row.bounded for row in rows):
            text += " Arrows: the interval has no end on that side."
    else:
        text = "Dots are estimates. Dashed lines show how far privacy noise alone may have moved them (95 %); they are no confidence intervals."
    if hidden_names(result):
        text += " An open dot: privacy noise exceeds the declared range of the coefficient."
    return text


def _coefficient_table(result: Result, rows: Sequence[CoefficientRow]) -> Table:
    header = ["name", "coefficient", "standard error" if result.has_intervals else "noise s.e."]
    header += ["z", "95 % interval", "p-value"] if result.has_intervals else []
    header += ["shrunken"] if result.shrunken else []
    cells = [
        [
            row.name,
            row.show(row.coef),
            row.show(row.std_err),
            *row.show_test()[:1],
            *([row.show_interval()] if result.has_intervals else []),
            *row.show_test()[1:],
            *([format_number(result.shrunken[row.name])] if result.shrunken else []),
        ]
        for row in rows
    ]
    return Table(header, cells, label="Coefficients")


def _ratio_table(result: Result, rows: Sequence[CoefficientRow]) -> list[Part]:
    """Odds ratios or rate ratios, with the p-values of their coefficients."""
    ratios = ratio_columns(result)
    cells = [[row.name, *ratios.cells(row), *row.show_test()[1:]] for row in rows if row.name in ratios.ratios]
    if not cells:
        return []
    header = ["name", ratios.header[0], *(["95 % interval", "p-value"] if result.has_intervals else [])]
    return [Table(header, cells, label=f"{ratios.header[0].capitalize()}s")]


def _coefficient_notes(result: Result, rows: Sequence[CoefficientRow]) -> list[str]:
    notes = [*say_unusable(result), *say_descent(result)]
    if unbounded := unbounded_names(rows):
        drawn = "" if result.calibration == "paper" else "are drawn towards zero and "
        notes.append(
            f"{say_unbounded(unbounded)} Where an interval has one end, this holds for the other side. That is the result, not a failure. "
            f"Estimates without a bounded interval {drawn}should not be used."
        )
    if hidden := hidden_names(result):
        notes.append(say_hidden(hidden))
    said = _coverage(result) if result.has_intervals else NOISE_ALONE
    return [
        *([TEST] if result.has_intervals else []),
        *notes,
        *say_counted(result),
        *say_goodness(result),
        *say_accuracy(result),
        *say_linking_fields(result),
        said,
        *say_line(result),
        *say_missing(result),
    ]


def _coverage(result: Result) -> str:
    """What intervals cover, and what they do not."""
    variance, modelled = result.released.variance, result.linkage.model == "ELE"
    covered = ["privacy noise", "sampling", *([] if result.linkage.model == "Exact" else ["wrong links"])]
    if modelled and variance is not None and variance.accuracy is not None:
        covered.append("the error of the declared accuracy")
    wrong = ", or an accuracy that is wrong beyond its stated error" if modelled else ""
    return (
        f"Intervals cover {list_names(covered)}. They do not cover {FAMILIES[result.family].missed}{wrong}. "
        f"{_MIDDLE.get((result.method, result.calibration), _DRAWN)}"
    )


# --- errors ------------------------------------------------------------------------------------------


def describe_errors(result: Result, rows: Sequence[CoefficientRow]) -> list[Part]:
    """What the standard errors are made of."""
    known = [row for row in rows if row.parts]
    if not result.has_intervals:
        return [
            f"Of privacy noise alone: this release paid for nothing that tells how large {_other_errors(result)} are. They come on "
            "top, so the true errors are larger than those shown."
        ]
    if not known:
        return [
            "A smaller model shows its whole errors only. The report of the release it was computed from shows what they are made of."
        ]
    shares = [_shares(row) for row in known]
    table = [
        [row.name, *(row.show(row.parts.get(part, 0.0)) for part in PARTS), row.show(row.std_err)] for row in known
    ]
    return [
        (
            "Three things move a coefficient: the sample that happened to be drawn, links that are wrong, and the noise that was added for "
            "privacy. Their squares add up to the square of the standard error, so the chart shows shares of that square."
        ),
        Chart(
            lambda: plots.share_chart(
                [row.name for row in known],
                {part: [share[k] for share in shares] for k, part in enumerate(PARTS)},
                title="What each standard error is made of",
                axis="share of the squared standard error",
            )
        ),
        Table(["name", *PARTS, "standard error"], table, label="What the standard errors are made of"),
        _largest_part(known, shares),
        *say_route(result),
    ]


def _other_errors(result: Result) -> str:
    """What moves a coefficient besides privacy noise."""
    return "sampling errors" if result.linkage.model == "Exact" else "sampling and linkage errors"


def _shares(row: CoefficientRow) -> list[float]:
    squares = [row.parts.get(part, 0.0) ** 2 for part in PARTS]
    return [square / (sum(squares) or 1.0) for square in squares]


def _largest_part(rows: Sequence[CoefficientRow], shares: Sequence[Sequence[float]]) -> str:
    """Which part is the largest, and what would make it smaller."""
    largest = [PARTS[max(range(len(PARTS)), key=share.__getitem__)] for share in shares]
    said = []
    for part in PARTS:
        names = [row.name for row, found in zip(rows, largest, strict=True) if found == part]
        if len(names) == len(rows):
            return f"The largest part is {part} throughout: {_REMEDIES[part]}."
        if names:
            said.append(f"{part.capitalize()} is the largest part for {list_names(names)}: {_REMEDIES[part]}.")
    return " ".join(said)


# --- citing and copying ------------------------------------------------------------------------------


def describe_citation(result: Result) -> list[Part]:
    """How to cite the release."""
    version = result.versions.get("dplinked", "")
    software = f"The dplinked developers. dplinked: differentially private linear regression on linked data. Version {version}."
    bibtex = (
        "@software{dplinked,\n  author  = {{The dplinked developers}},\n"
        "  title   = {dplinked: differentially private linear regression on linked data},\n"
        f"  version = {{{version}}}\n}}\n"
        "@article{lin2024linked,\n  author  = {Lin, Shurong and Paquette, Elliot and Kolaczyk, Eric D.},\n"
        "  title   = {Differentially Private Linear Regression with Linked Data},\n"
        "  journal = {Harvard Data Science Review},\n  year    = {2024}\n}\n"
    )
    own = (
        f"Say with the figures: {result.formula}, {result.count:,} linked rows, ({round_up(result.privacy.epsilon, 10)}, "
        f"{format_delta(result.privacy.delta)})-differentially private, by dplinked {version}."
    )
    return [
        own,
        "The software, and the paper whose methods it builds on:",
        Bullets([software, PAPER]),
        Details("BibTeX", [Code(bibtex, "BibTeX entries")]),
    ]


def _exports(result: Result) -> list[Part]:
    return [
        Details(name, [Code(text, name), Download(text, file, kind)])
        for name, file, kind, text in (
            ("CSV, all digits", "coefficients.csv", "text/csv", coefficients_csv(result)),
            ("LaTeX, with booktabs", "coefficients.tex", "application/x-tex", coefficients_latex(result)),
            *(
                [("CSV of how well the line fits", "goodness.csv", "text/csv", goodness_csv(result))]
                if result.r_squared
                else []
            ),
        )
    ]


def describe_record(result: Result) -> list[Part]:
    """What was declared and drawn, and by which versions."""
    return [
        Details("Declared bounds and levels", _declarations(result)),
        Details("What was released, and with how much noise", _noise(result)),
        Details("Versions", [Facts(list(result.versions.items()), "Versions")]),
    ]


def _declarations(result: Result) -> list[Part]:
    declared = result.declared
    bounds = [[name, f"{low:,.12g}", f"{high:,.12g}"] for name, (low, high) in declared.bounds.items()]
    levels = [[name, ", ".join(map(str, found))] for name, found in declared.levels.items()]
    return [
        "Cells beyond their bounds were clipped to them. None of this was read from the data.",
        *(
            []
            if declared.exposure is None
            else [f"Counts are taken by {declared.exposure}: its logarithm is added to the line."]
        ),
        *([] if declared.errors == "any" else [f"Errors were declared {declared.errors} around the line."]),
        *([Table(["column", "lowest", "highest"], bounds, "Declared bounds")] if bounds else []),
        *([Table(["column", "levels, the reference first"], levels, "Declared levels")] if levels else []),
    ]


def _noise(result: Result) -> list[Part]:
    rows = [
        [part.name, f"{part.entries:,}", format_number(part.sensitivity), format_number(part.scale)]
        for part in result.released.parts
    ]
    units = "In the columns' own units" if result.calibration == "paper" else "On columns scaled by their bounds"
    return [
        f"{units}. Noise is Gaussian; its scale is a standard deviation.",
        Table(["released", "entries", "sensitivity", "noise scale"], rows, "Noise of each part"),
    ]
