"""A text for an ethics board or a disclosure committee, filled in from a release.

It answers what NIST SP 800-226 asks of a differentially private release, layer by layer, and what the five safes ask of a project. What no release
knows stands in square brackets, for its steward to write.

Privacy
-------
Nothing is spent: every figure is the release's own, or was declared.
"""

from __future__ import annotations

from dplinked.privacy.calibration import round_up
from dplinked.release.promise import (
    describe_budget,
    describe_privacy,
    format_delta,
    linkage_in_short,
    promise_in_short,
)
from dplinked.release.result import Result
from dplinked.report.document import Bullets, Chart, Document, Facts, Part, Section, Table
from dplinked.report.words import list_names

_TO_FILL_IN = "What stands in square brackets is yours to write: no release knows it."


def board_document(result: Result) -> Document:
    """The whole text."""
    return Document(
        "A private regression on linked data, for the board",
        [
            Section("", [_in_short(result), _TO_FILL_IN, Facts(_facts(result), "The release in short")]),
            Section("What the people in the files are promised", describe_privacy(result)),
            Section(
                "What NIST SP 800-226 asks",
                [Table(("question", "answer"), _nist(result), "Questions of NIST SP 800-226")],
            ),
            Section("The five safes", [Table(("safe", "answer"), _safes(result), "The five safes")]),
            Section("What can go wrong", [Bullets(_risks(result))]),
            Section("What was spent", _without_charts(describe_budget(result))),
        ],
        subject=result.formula,
    )


def _in_short(result: Result) -> str:
    response = result.scaling.response.name
    return (
        f"We ask to publish {len(result.coef)} coefficients that say how {response} goes with {_regressors(result)}, from {result.count:,} records that were linked from two "
        f"files. The figures are corrected for wrong links. Noise was added to them that hides every single person: {promise_in_short(result.privacy)}."
    )


def _regressors(result: Result) -> str:
    declared = [*result.declared.bounds, *result.declared.levels]
    return list_names([name for name in declared if name != result.scaling.response.name]) or "nothing else"


def _facts(result: Result) -> list[tuple[str, str]]:
    return [
        ("Purpose", "[why the figures are needed, and who benefits]"),
        ("Model", result.formula),
        ("Records", f"{result.count:,}; this number is published"),
        ("Links", linkage_in_short(result.linkage)),
        ("Promise", promise_in_short(result.privacy)),
        ("Legal basis", "[law, consent or permission under which the files may be linked and used]"),
        ("Responsible", "[steward of the files, and whom to ask]"),
    ]


def _nist(result: Result) -> list[tuple[str, str]]:
    """Its pyramid from the top down."""
    privacy = result.privacy
    ledger = result.ledger
    together = (
        f"A ledger keeps count: the budget of {ledger.population} allows ε = {ledger.epsilon:g} at δ = {format_delta(ledger.delta)} in all, and refuses what goes beyond it."
        if ledger is not None
        else "No ledger kept count of this release: [what else was, and will be, released about these people, and what it adds up to]."
    )
    return [
        ("How strong is the guarantee?", f"{promise_in_short(privacy)}; μ = {round_up(privacy.mu)} of Gaussian differential privacy, from which the others follow."),
        ("Who or what is the unit of privacy?", privacy.statement),
        ("What do several releases add up to?", together),
        ("By which mechanism?", "Gaussian noise on sums over clipped records, calibrated exactly; the sensitivity of every sum is proved, and rounding is part of it. The proofs are public, with the program."),
        ("How is it implemented?", f"dplinked {result.versions.get('dplinked', '')}".rstrip() + ", with OpenDP's exact sampler and the operating system's random numbers. Every release path is replayed on neighbouring data in its tests."),
        ("What of bounds, clipping and missing values?", "All bounds and levels were declared before the data was opened, and none was read from it. Cells beyond their bounds are clipped, which can bend coefficients where bounds are too tight."),
        ("Does the noise treat groups unequally?", "Coefficients of small groups have wider intervals, which are published with them. [Whether a decision about a small group rests on them]"),
        ("Which trust model?", "Central: the steward holds the linked records and is trusted with them; readers of the release are not trusted with anything."),
        ("Side channels?", "Not covered: who can watch the computation's time or memory, or read its disks, is outside of the promise. [How the computer is guarded]"),
        ("What of the collected data itself?", "Noise protects what is published, and not the files. [Where they are kept, who has access, when they are destroyed]"),
    ]  # fmt: skip


def _safes(result: Result) -> list[tuple[str, str]]:
    fixed = not (
        result.privacy.unit.displaced_links or result.privacy.unit.linkage_change or result.privacy.unit.moves_block
    )
    linked = "Links were held fixed: whoever linked the files saw identifiers, and what identifiers did to the links is not protected by the noise."
    moved = "What one person's identifiers can do to the links is part of the promise, as it was declared."
    return [
        ("Safe projects", "[purpose, public benefit, approval]"),
        ("Safe people", "[who linked, who analysed, their training and obligations; whether those who linked saw the variables of the model]"),
        ("Safe settings", "[where the program ran, and who could use it]"),
        ("Safe data", f"Only the columns of the formula were used: {result.formula}. {linked if fixed else moved}"),
        ("Safe outputs", f"The release alone leaves the house. It is {promise_in_short(result.privacy)}, whatever else readers know, so that it needs no further check of cell counts or of dominance."),
    ]  # fmt: skip


def _risks(result: Result) -> list[str]:
    return [
        "What holds for people in general can be applied to anybody, in the files or not. No method that publishes results prevents this.",
        "A wrong declaration is a wrong promise: bounds that were read from the data, people who are present more often than was declared, or links that depend on more than was declared.",
        "A wrong accuracy of the links, or wrong links that resemble their rows, would bend the coefficients. The report shows by how much.",
        *(["Further releases about the same people that no ledger counts would weaken the promise."] if result.ledger is None else []),
    ]  # fmt: skip


def _without_charts(parts: list[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Chart)]
