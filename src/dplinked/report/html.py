"""A release as one HTML page, and as a fragment for notebooks: made of released and declared values only.

Privacy
-------
Nothing is spent: every figure is computed from the release, which was paid for, and from what was declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dplinked.privacy.calibration import round_up
from dplinked.report import page as html
from dplinked.report import plots
from dplinked.report.drawing import short_label
from dplinked.report.exports import (
    PARTS,
    Row,
    coefficient_rows,
    format_delta,
    format_number,
    render_csv,
    render_latex,
)
from dplinked.report.promise import (
    describe_budget,
    describe_linkage,
    describe_privacy,
    exact_statement,
    linkage_in_short,
    promise_in_short,
)
from dplinked.report.words import list_names

if TYPE_CHECKING:
    from dplinked.release.release import Release

TITLE = "Private linear regression on linked data"
_METHODS = {
    ("ssp", "tight"): "noisy sums (SSP), noise as small as the promise allows",
    ("ngd", "tight"): "noisy gradient descent (NGD), noise as small as the promise allows",
    ("ssp", "paper"): "noisy sums (SSP), Algorithm 2 of the paper with the paper's noise",
    ("ngd", "paper"): "noisy gradient descent (NGD), Algorithm 1 of the paper with the paper's noise",
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


def render_page(release: Release) -> str:
    """The whole report."""
    rows = coefficient_rows(release)
    sections = (
        html.paragraph(
            "Everything on this page was computed from the private release itself or was declared before it was made. Reading it, sharing "
            "it and computing with it costs no further privacy."
        ),
        html.table((), _facts(release), label="The release in short"),
        html.section("Coefficients", *_coefficients(release, rows)),
        html.section("What the standard errors are made of", *_error_parts(release, rows)),
        html.section("What is promised, to whom, and under which conditions", *describe_privacy(release)),
        html.section("How the rows were linked, as declared", *describe_linkage(release)),
        html.section("The budget, before and after", *describe_budget(release)),
        html.section("How to cite", *_citation(release)),
        html.section("Tables to copy", *_exports(release), folded=True),
        html.section("For the record", *_record(release), folded=True),
    )
    return html.page(TITLE, "\n".join(sections))


def render_fragment(release: Release) -> str:
    """The report's first parts, for a cell of a notebook."""
    rows = coefficient_rows(release)
    facts = f"{release.count:,} linked rows; {linkage_in_short(release.linkage)}; {promise_in_short(release)}"
    body = [
        f"<p><strong>{TITLE}</strong><br><code>{html.to_html(release.formula)}</code></p>",
        html.paragraph(f"{facts}."),
        _coefficient_table(release, rows),
        *(html.paragraph(note) for note in _coefficient_notes(release, rows)),
        html.details(
            "Chart", html.chart(lambda: _coefficient_chart(release, rows), _coefficient_caption(release, rows))
        ),
        html.details("Privacy", *exact_statement(release)),
    ]
    return html.notebook_cell(*body)


# --- in short ----------------------------------------------------------------------------------------


def _facts(release: Release) -> list[tuple[str, str]]:
    facts = [
        ("Model", release.formula),
        ("Rows", f"{release.count:,} (this number is public)"),
        ("Linkage", linkage_in_short(release.linkage)),
        ("Privacy", promise_in_short(release)),
        ("Method", _METHODS.get((release.method, release.calibration), f"{release.method}, {release.calibration}")),
        ("Intervals", "paid for, 95 %" if release.has_intervals else "none: this release did not pay for them"),
    ]
    if release.dropped:
        left_out = list_names(release.dropped)
        facts.append(("Left out", f"{left_out}; a smaller model computed from a release that has them, at no cost"))
    if release.ledger is not None:
        facts.append(("Charged to", f"the budget of {release.ledger.population}"))
    return [*facts, ("Made by", f"dplinked {release.versions.get('dplinked', '')}".strip())]


# --- coefficients ------------------------------------------------------------------------------------


def _coefficients(release: Release, rows: Sequence[Row]) -> list[str]:
    chart = html.chart(lambda: _coefficient_chart(release, rows), _coefficient_caption(release, rows)) if rows else ""
    notes = [html.paragraph(note) for note in _coefficient_notes(release, rows)]
    return [html.paragraph(_reading(release, rows)), chart, _coefficient_table(release, rows), *notes]


def _reading(release: Release, rows: Sequence[Row]) -> str:
    slopes = [row for row in rows if row.name != "Intercept"]
    response = release.scaling.response.name
    text = f"A coefficient says by how much {response} changes, on average, when its column is larger by one and the others stay the same."
    if not release.has_intervals:
        return (
            f"{text} This release did not pay for intervals: the errors shown are those of privacy noise alone, and {_other_errors(release)} "
            "come on top."
        )
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


def _other_errors(release: Release) -> str:
    """What moves a coefficient besides privacy noise."""
    return "sampling errors" if release.linkage.model == "Exact" else "sampling and linkage errors"


def _coefficient_chart(release: Release, rows: Sequence[Row]) -> str:
    unsure = [name for name, known in release.identified.items() if not known]
    title = "Coefficients with 95 % intervals" if release.has_intervals else "Coefficients with privacy noise alone"
    response = release.scaling.response.name
    return plots.coefficient_chart(rows, title=title, axis=f"change of {short_label(response)} per unit", unsure=unsure)


def _coefficient_caption(release: Release, rows: Sequence[Row]) -> str:
    if release.has_intervals:
        text = "Dots are estimates, lines their 95 % intervals. Coefficients of different sizes have axes of their own."
        if any(not row.bounded for row in rows):
            text += " Arrows: the interval has no end on that side."
    else:
        text = "Dots are estimates. Dashed lines show how far privacy noise alone may have moved them (95 %); they are no confidence intervals."
    if not all(release.identified.values()):
        text += " An open dot: privacy noise exceeds the declared range of the coefficient."
    return text


def _coefficient_table(release: Release, rows: Sequence[Row]) -> str:
    header = ["name", "coefficient", "standard error" if release.has_intervals else "noise s.e."]
    header += ["95 % interval"] if release.has_intervals else []
    cells = [
        [row.name, row.show(row.coef), row.show(row.std_err), *([row.show_interval()] if release.has_intervals else [])]
        for row in rows
    ]
    return html.table(header, cells, label="Coefficients")


def _coefficient_notes(release: Release, rows: Sequence[Row]) -> list[str]:
    notes = []
    unbounded = [row.name for row in rows if row.interval is not None and not row.bounded]
    if unbounded:
        notes.append(
            f"At this budget the release does not tell what these coefficients are, and rules out no value, or none on one side: {list_names(unbounded)}. That is "
            "the result, not a failure. Their estimates are drawn towards zero and should not be used."
        )
    hidden = [name for name, known in release.identified.items() if not known]
    if hidden:
        notes.append(f"Privacy noise exceeds the whole declared range of: {list_names(hidden)}.")
    variance = release.released.variance
    if variance is not None:
        covered = ["privacy noise", "sampling", *([] if release.linkage.model == "Exact" else ["wrong links"])]
        if release.linkage.model == "ELE" and variance.accuracy is not None:
            covered.append("the error of the declared accuracy")
        elif release.linkage.model == "ELE":
            notes.append("Intervals take the linkage accuracy as exactly known; nothing was declared about its error.")
        wrong = ", or an accuracy that is wrong beyond its stated error" if release.linkage.model == "ELE" else ""
        notes.append(
            f"Intervals cover {list_names(covered)}. They do not cover a relation that is not linear, or responses cut off by their "
            f"bounds{wrong}. Under strong noise estimates are drawn towards zero and intervals are not, so an estimate need not lie in the "
            "middle of its interval."
        )
    return notes


# --- errors ------------------------------------------------------------------------------------------


def _error_parts(release: Release, rows: Sequence[Row]) -> list[str]:
    known = [row for row in rows if row.parts]
    if not release.has_intervals:
        return [
            html.paragraph(
                f"Of privacy noise alone: this release paid for nothing that tells how large {_other_errors(release)} are. They come on "
                "top, so the true errors are larger than those shown."
            )
        ]
    if not known:
        return [
            html.paragraph(
                "A smaller model shows its whole errors only. The report of the release it was computed from shows what they are made of."
            )
        ]
    shares = [_shares(row) for row in known]
    table = [
        [row.name, *(row.show(row.parts.get(part, 0.0)) for part in PARTS), row.show(row.std_err)] for row in known
    ]
    return [
        html.paragraph(
            "Three things move a coefficient: the sample that happened to be drawn, links that are wrong, and the noise that was added for "
            "privacy. Their squares add up to the square of the standard error, so the chart shows shares of that square."
        ),
        html.chart(
            lambda: plots.share_chart(
                [row.name for row in known],
                {part: [share[k] for share in shares] for k, part in enumerate(PARTS)},
                title="What each standard error is made of",
                axis="share of the squared standard error",
            )
        ),
        html.table(["name", *PARTS, "standard error"], table, label="What the standard errors are made of"),
        html.paragraph(_largest_part(known, shares)),
        html.paragraph(f"Sampling and linkage errors come from {_route(release)}, released with noise."),
    ]


def _shares(row: Row) -> list[float]:
    squares = [row.parts.get(part, 0.0) ** 2 for part in PARTS]
    return [square / (sum(squares) or 1.0) for square in squares]


def _largest_part(rows: Sequence[Row], shares: Sequence[Sequence[float]]) -> str:
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


def _route(release: Release) -> str:
    routes = {"block": "totals of blocks", "row": "single rows", "scale": "the size of residuals alone"}
    assert release.released.variance is not None
    return routes[release.released.variance.route]


# --- citing and copying ------------------------------------------------------------------------------


def _citation(release: Release) -> list[str]:
    version = release.versions.get("dplinked", "")
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
        f"Say with the figures: {release.formula}, {release.count:,} linked rows, ({round_up(release.privacy.epsilon, 10)}, "
        f"{format_delta(release.privacy.delta)})-differentially private, by dplinked {version}."
    )
    return [
        html.paragraph(own),
        html.paragraph("The software, and the paper whose methods it builds on:"),
        html.unordered_list([software, PAPER]),
        html.details("BibTeX", html.code_block(bibtex, "BibTeX entries")),
    ]


def _exports(release: Release) -> list[str]:
    parts = []
    for name, file, kind, text in (
        ("CSV, all digits", "coefficients.csv", "text/csv", render_csv(release)),
        ("LaTeX, with booktabs", "coefficients.tex", "application/x-tex", render_latex(release)),
    ):
        parts.append(html.details(name, html.code_block(text, name), html.download(text, file, kind)))
    return parts


def _record(release: Release) -> list[str]:
    declared = release.declared
    bounds = [[name, f"{low:,.12g}", f"{high:,.12g}"] for name, (low, high) in declared.bounds.items()]
    levels = [[name, ", ".join(map(str, found))] for name, found in declared.levels.items()]
    noise = [
        [part.name, f"{part.entries:,}", format_number(part.sensitivity), format_number(part.scale)]
        for part in release.released.parts
    ]
    return [
        html.details(
            "Declared bounds and levels",
            html.paragraph("Cells beyond their bounds were clipped to them. None of this was read from the data."),
            html.table(["column", "lowest", "highest"], bounds, label="Declared bounds") if bounds else "",
            html.table(["column", "levels, the reference first"], levels, label="Declared levels") if levels else "",
        ),
        html.details(
            "What was released, and with how much noise",
            html.paragraph("On columns scaled by their bounds. Noise is Gaussian; its scale is a standard deviation."),
            html.table(["released", "entries", "sensitivity", "noise scale"], noise, label="Noise of each part"),
        ),
        html.details(
            "Versions", html.table((), [(name, found) for name, found in release.versions.items()], label="Versions")
        ),
    ]
