"""What a linkage says of itself: how good its links are, for the steward.

Privacy
-------
None: the document is read from the two files without noise, and says so first.
"""

from __future__ import annotations

from dplinked.linker.describe_links import (
    describe_examples,
    describe_files,
    describe_groups,
    describe_passes,
    describe_scores,
)
from dplinked.linker.describe_quality import (
    describe_accuracy,
    describe_answer,
    describe_error,
    describe_resemblance,
    describe_subgroups,
)
from dplinked.linker.facts import LinkageFacts
from dplinked.linker.leftovers import BYTES_PER_PAIR
from dplinked.linker.rules import MEMORY
from dplinked.report.document import Document, Lead, Section, Steps

WARNING = "FOR THE STEWARD ONLY, NOT FOR PUBLICATION: everything below is read from the two files without noise."
_TITLE = "How good are the links?"


def quality_document(linked: LinkageFacts) -> Document:
    """The quality report."""
    sections = [
        Section("", [Lead(describe_answer(linked))]),
        Section("Accuracy per group", describe_accuracy(linked)),
        Section("What was linked", describe_files(linked)),
        *([Section("What was compared", describe_passes(linked))] if linked.links.passes else []),
        Section("Links per group", describe_groups(linked)),
        Section("Scores", describe_scores(linked)),
        *([] if linked.examples is None else [Section("Why records were linked", describe_examples(*linked.examples))]),
    ]
    if linked.estimates:
        sections.append(Section("What an accuracy that is wrong by .02 does", describe_error(linked)))
    if linked.resemblance:
        sections.append(Section("Do wrong links resemble their rows?", describe_resemblance(linked.resemblance)))
    if linked.subgroups:
        sections.append(Section("Quality by subgroup", describe_subgroups(linked.subgroups)))
    sections.append(Section("What to do next", [Steps(_next_steps(linked))]))
    return Document(_TITLE, sections, warning=WARNING)


def _next_steps(linked: LinkageFacts) -> list[str]:
    audits = [one for one in linked.estimates if one.checked is not None]
    if linked.secret:
        checked = (
            "Release what the check of secretly drawn links found, once: release_accuracy, or --release-accuracy. Draw no further ones because of anything that was seen in it, and "
            "destroy key and lists then."
        )
    elif audits and audits[0].checked is not None:
        checked = (
            f"{int(audits[0].checked.sum()):,} links have been checked. Where intervals are wider than you can live with, have "
            "more of them checked: audit_sample(size=…), or --audit-sample."
        )
    elif linked.method == "encodings":
        checked = (
            "Have links checked by the holders: --audit-sample draws some, each holder answers for its own records (dplinked answer), and dplinked judge compares what they say. "
            "The other methods cannot see their own mistakes."
        )
    else:
        checked = (
            "Have links checked by a person: linked.audit_sample(), or --audit-sample, writes some of them down with both "
            "records side by side; linked.audited(…), or --audited, reads the answers back. The other methods cannot "
            "see their own mistakes."
        )
    fits = linked.method == "splink" and linked.rows[0] * linked.rows[1] * BYTES_PER_PAIR <= MEMORY
    rules = "All pairs of these files fit into memory: method='rules' compares every one of them, so that no match is lost by blocking. Compare what both find."
    return [
        *([rules] if fits else []),
        checked,
        "Accuracies that come from the files or an audit are data. Release them with noise (release_accuracy, or "
        "--release-accuracy), or declare public ones in [linkage].",
        "Say in [unit] what one person may change about the links: displaced_links, linkage_change, moves_block. "
        "Linking does not tell.",
    ]
