"""What a release promises, how its rows were linked, and what it took of the budget, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from dplinked.linkage import PrivacyUnit
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import privacy_epsilon, privacy_mu, round_down, round_up
from dplinked.privacy.secret_sample import add_payment, secret_delta
from dplinked.release.coefficients import coefficient_rows
from dplinked.release.contents import Privacy
from dplinked.release.result import Result
from dplinked.report import plots
from dplinked.report.document import Bullets, Chart, Code, Details, Facts, Heading, Part, Table
from dplinked.report.numbers import format_percent, in_powers
from dplinked.report.words import list_names

ACCURACY_STEP = 0.02
LINKS_THAT_RESEMBLE = "Coefficients if wrong links resemble their rows"
METHODS = {
    ("ssp", "tight"): "noisy sums",
    ("ngd", "tight"): "noisy gradient descent",
    ("ssp", "paper"): "Algorithm 2 of the paper",
    ("ngd", "paper"): "Algorithm 1 of the paper",
}
_ERROR = "standard error"
_SHOWN = 24  # blocks whose accuracies are shown without being asked for


def format_delta(delta: float) -> str:
    """A small probability, never less than it is, in powers of ten."""
    return in_powers(round_up(delta, 10))


def promise_in_short(privacy: Privacy) -> str:
    """The promise in one line."""
    return f"ε = {round_up(privacy.epsilon, 10)}, δ = {format_delta(privacy.delta)} for {'each person in the files' if privacy.unit.rows == 1 else f'each {privacy.unit.id} in the files, with all rows'}"


def _protected(unit: PrivacyUnit) -> str:
    """Whose values are protected together, as reports call them."""
    return "person" if unit.rows == 1 else unit.id or "person"


def _range(accuracy: Mapping[str, float]) -> str:
    """From the smallest to the largest accuracy."""
    return f"{format_percent(min(accuracy.values()))} to {format_percent(max(accuracy.values()))}"


def linkage_in_short(linkage: DeclaredLinkage) -> str:
    """The linkage in one line."""
    if linkage.model == "Exact":
        return "joined on a unique key"
    if linkage.model != "ELE":
        return "probabilities of each possible link (a matching matrix)"
    said = {"released": "as released before", "identifiers": "as a check of identifiers found"}.get(
        linkage.source or "public", "as declared"
    )
    accuracy = linkage.accuracy
    if accuracy is None:
        return f"at least {format_percent(linkage.accuracy_min or 0.0)} of the links are right in every block, {said}"
    if isinstance(accuracy, Mapping) and linkage.overall is None:
        return f"{_range(accuracy)} of the links are right, by {linkage.block}, {said}"
    return f"{format_percent(linkage.mean_accuracy)} of the links are right, {said}"


# --- privacy -----------------------------------------------------------------------------------------


def describe_privacy(result: Result) -> list[Part]:
    """Who is protected, against what, and under which declared facts."""
    privacy = result.privacy
    return [
        Heading("Who is protected"),
        _who_is_protected(privacy.unit),
        Heading("Against what"),
        *_promise(result),
        Heading("Under which declared facts"),
        Bullets(_declared_facts(result)),
        Heading("What is taken as public"),
        Bullets([f"{text[0].upper()}{text[1:]}" for text in privacy.assumed_public]),
        Heading("What is not promised"),
        Bullets(
            [
                "That nothing can be learned about a person. What holds for people in general can be applied to anybody, in the files or not.",
                "Anything about side channels, about the files themselves, or about a steward who declares what was seen in the data.",
                *(
                    []
                    if result.ledger is not None
                    else ["Anything about several releases together: this one was charged to no ledger."]
                ),
            ]
        ),
        Heading("The statement in its exact words"),
        *exact_statement(privacy),
    ]


def _who_is_protected(unit: PrivacyUnit) -> str:
    if unit.rows == 1:
        return (
            "Every person who is present once in each of the two files. Whoever appears more often is protected less."
        )
    return f"Every person (or household: whoever has the same {unit.id}) with at most {unit.rows:,} rows in each of the two files, with all of them."


def plain_promise(result: Result) -> list[str]:
    """The promise as anybody may read it. The guess is right with probability (1 + δ)/2 at best, δ that of ε = 0; for a Gaussian release Φ(μ/2)."""
    privacy, paid = result.privacy, result.linkage.paid
    guess = _best_guess(SecretSample(**paid) if isinstance(paid, Mapping) else paid or 0.0, privacy.mu)
    one = _protected(privacy.unit)
    both = "this result and the released linkage accuracy" if paid else "this result"
    return [
        f"Almost the same result would have come out whatever the values of any one {one} had been.",
        f"Suppose somebody knows everything else in the files and hesitates between two possibilities for one {one}'s values. After seeing {both}, they guess the right one "
        f"at most {_percent_up(guess)} of the time. Without it, they are right 50 % of the time.",
    ]


def promise_of_budget(epsilon: float, delta: float) -> str:
    """What a release of this budget would promise, before it is made."""
    guess = _best_guess(0.0, privacy_mu(epsilon, delta))
    return (
        "Whoever knows everything else and hesitates between two possibilities for one person will guess the right one "
        f"at most {_percent_up(guess)} of the time after this release; without it, 50 % of the time."
    )


def _best_guess(paid: SecretSample | float, mu: float) -> float:
    """How often somebody who hesitates between two possibilities is right at best."""
    samples, total = add_payment(paid, mu)
    return (1.0 + secret_delta(samples, 0.0, total)) / 2.0


def _promise(result: Result) -> list[str]:
    """What is promised, against whom, and what ε and δ mean."""
    privacy = result.privacy
    factor = round_up(math.exp(min(privacy.epsilon, 700.0)), 3)
    return [
        *plain_promise(result),
        "This holds against anyone who sees the result, whatever else they know and whatever they do with it later.",
        f"In terms of ε and δ: had one {_protected(privacy.unit)}'s values been any others, whatever came out would have come out at most {factor} times as often (that is what ε = "
        f"{round_up(privacy.epsilon, 10)} says), except for a part of probability δ = {format_delta(privacy.delta)} at most.",
    ]


def _declared_facts(result: Result) -> list[str]:
    unit = result.privacy.unit
    k, change, moves = unit.displaced_links or 0, unit.linkage_change or 0.0, unit.moves_block
    rows = result.linkage.carriers or 1
    facts = [
        f"Files that are compared have the same number of rows and differ in one {_protected(unit)}'s values, in any way at all.",
        "All regressors come from one file, in which each person has one row.",
        f"Each person's response is on {'one row: links are one to one' if rows == 1 else f'at most {rows:,} rows'}.",
    ]
    if unit.rows > 1:
        facts[1:2] = [
            "All regressors come from one file.",
            f"Rows with the same {unit.id} are those of one person (or of one household), at most {unit.rows:,} of them; {'their responses are on the same rows' if unit.response_id is None else f'responses with the same {unit.response_id} are those of one person, as many at most'}. All of them may change together.",
            "Which rows belong together is public.",
        ]
    if not (k or change or moves):
        return [
            *facts,
            "Links and blocks are held fixed. What a person's name, address or date of birth did to the links, their own and those of "
            "others, is not protected.",
            *_looked_at(result.linkage),
        ]
    links = f"{k:,} further link{'s' * (k != 1)}"
    facts.append(f"If a person's identifiers change, at most {links} get another response.")
    facts.append(f"They change the matching matrix by at most {change:,g}, all entries added up.")
    facts.append(f"They {'may' if moves else 'may not'} put the person into another block.")
    return [*facts, "Whoever declared this answers for it. What identifiers do beyond it is not protected."]


def _looked_at(linkage: DeclaredLinkage) -> list[str]:
    """What an accuracy found by checking identifiers rests on."""
    if not linkage.fields or linkage.source != "identifiers":
        return []
    return [
        f"Linking and checking the links looked at {list_names(linkage.fields)} alone. No column of the formula is one of these or was made of one, and none "
        "decided which links were checked or how many."
    ]


def exact_statement(privacy: Privacy, start: str = "") -> list[str]:
    """The statement as the release has it, in exact terms, and what was taken as public."""
    return [f"{start}{privacy.statement}", "Taken as public: " + "; ".join(privacy.assumed_public) + "."]


# --- linkage -----------------------------------------------------------------------------------------


def describe_linkage(result: Result) -> list[Part]:
    """The linkage model as declared, and what a slightly different accuracy would do."""
    linkage = result.linkage
    if linkage.model == "Exact":
        return [
            "The rows were joined on a unique key: every link is right by construction, and nothing had to be corrected."
        ]
    not_shown = "Not shown: what would have come out had the wrong links been ignored. That would have to be paid for, and was not."
    if linkage.model != "ELE":
        facts = [
            ("Largest sum of a column", f"{linkage.column_sum:g}"),
            ("Smallest probability that a link is right", f"{linkage.accuracy_min:g}"),
            ("Rows that may carry one person's response", f"{linkage.carriers:,}"),
        ]
        return [
            "Each possible link has a probability, given by a matching matrix. The matrix is data and is not shown. Declared about it is:",
            Facts(facts, label="Declared about the matching matrix"),
            not_shown,
        ]
    where = f"within the same block ({linkage.block})" if linkage.block else "of the file"
    return [
        f"Some links are wrong, and the coefficients are corrected for it. A wrong link is taken to fall on any other row {where} alike.",
        _accuracy_text(linkage),
        *_accuracy_table(linkage),
        *([f"Up to {linkage.carriers:,} rows may carry one person's response."] if linkage.carriers else []),
        *(_bracket(result) or [not_shown]),
        *_other_accuracy(result),
    ]


def _accuracy_text(linkage: DeclaredLinkage) -> str:
    source = {
        "public": "The accuracy was declared; nothing here checks it.",
        "released": "The accuracy was measured on these files and released before, with noise, for a budget of its own.",
        "identifiers": "The accuracy was found on these files, by checking links by identifiers alone, and no noise was added: it tells what identifiers tell, which is not "
        "protected here, and nothing of the formula's columns.",
        "estimated": "The accuracies were estimated from these very files, so they are data: they correct the coefficients, and are not shown. Declared is only "
        f"that they are at least {format_percent(linkage.accuracy_min or 0.0)} in every block.",
    }[linkage.source or "public"]
    said = [source]
    if linkage.accuracy is not None and not isinstance(linkage.accuracy, Mapping):
        said = [f"Declared: {format_percent(linkage.accuracy)} of the links are right.", source]
    elif isinstance(linkage.accuracy, Mapping):
        said = [_groups_text(linkage, linkage.accuracy), source]
    checked, error = linkage.checked, linkage.accuracy_error
    if isinstance(checked, (int, float)):
        per = " in each block" if isinstance(linkage.accuracy, Mapping) else ""
        said.append(f"It was found by checking {checked:,.0f} links{per}.")
    if isinstance(error, (int, float)):
        apart = "" if linkage.other_error is None else f", that of rows without a block {linkage.other_error:g}"
        said.append(f"Its standard error is {error:g}{apart}.")
    if checked is None and error is None and linkage.source != "estimated":
        said.append("How well it is known was not declared.")
    return " ".join(said)


def _groups_text(linkage: DeclaredLinkage, accuracy: Mapping[str, float]) -> str:
    """Accuracies per group in a sentence, and how their mean was taken."""
    groups = f"Declared by {linkage.block}: {_range(accuracy)} of the links are right"
    if linkage.overall is not None:
        return f"{groups}, {format_percent(linkage.overall)} of those of all rows."
    return (
        f"{groups}. How many rows each group has is not public here, so where a mean is needed below, all groups count the same: "
        f"{format_percent(linkage.mean_accuracy)}. Where groups of few rows have accuracies of their own, that is not the share of all rows."
    )


def _accuracy_table(linkage: DeclaredLinkage) -> list[Part]:
    accuracy = linkage.accuracy
    if not isinstance(accuracy, Mapping):
        return []
    extras = [
        (title, known)
        for title, known in (("links checked", linkage.checked), (_ERROR, linkage.accuracy_error))
        if isinstance(known, Mapping)
    ]
    rows = [
        [name if name.strip() else "(blank)", f"{value:.3f}", *(f"{extra[name]:,g}" for _, extra in extras)]
        for name, value in accuracy.items()
    ]
    if linkage.other is not None:
        rows.append(
            ["(all other blocks)", f"{linkage.other:.3f}", *(_other_cell(linkage, title) for title, _ in extras)]
        )
    table = Table(["block", "accuracy", *(title for title, _ in extras)], rows, label="Declared accuracy per block")
    return [table] if len(rows) <= _SHOWN else [Details(f"The accuracies of {len(rows):,} blocks", [table])]


def _other_cell(linkage: DeclaredLinkage, title: str) -> str:
    error = linkage.other_error
    return f"{error:g}" if error is not None and title == _ERROR else "-"


def _bracket(result: Result) -> list[Part]:
    """Coefficients as they would be were wrong links like their rows, and the interval between: computed from the release, at no cost."""
    if not result.tells_other_accuracies:
        return []
    uncorrected, bracket = result.uncorrected().coef, result.bracket()
    rows = [
        [
            row.name,
            row.show(uncorrected[row.name]),
            row.show(row.coef),
            replace(row, interval=bracket[row.name]).show_interval(),
        ]
        for row in coefficient_rows(result)
    ]
    return [
        Heading("Were wrong links like their rows"),
        (
            "The correction takes a wrong link to bring the response of any other row alike. If wrong links rather bring responses of rows that resemble their own, such as "
            "relatives or neighbours of like income, less has to be corrected, and nothing if they are just like them: then the uncorrected coefficients are the right ones. "
            "The bracket holds both, and what lies between."
        ),
        Table(["name", "uncorrected", "corrected", "95 % bracket"], rows, label=LINKS_THAT_RESEMBLE),
    ]


def _other_accuracy(result: Result) -> list[Part]:
    """How coefficients would move were the accuracy a little off: computed from the release, at no cost."""
    if not result.tells_other_accuracies:
        return []
    lower, higher = (result.with_accuracy(step).coef for step in (-ACCURACY_STEP, ACCURACY_STEP))
    rows = [
        [row.name, *(row.show(value) for value in (lower[row.name], row.coef, higher[row.name]))]
        for row in coefficient_rows(result)
    ]
    return [
        Heading(f"Were the accuracy off by {ACCURACY_STEP:g}"),
        (
            "Coefficients as they would read had another accuracy been declared. Slopes move by about that share of themselves: a lower accuracy means a larger "
            "correction."
        ),
        Table(
            ["name", f"{ACCURACY_STEP:g} lower", "as declared", f"{ACCURACY_STEP:g} higher"],
            rows,
            label="Coefficients under another accuracy",
        ),
    ]


# --- budget ------------------------------------------------------------------------------------------


def budget_before(result: Result) -> tuple[float, float, float] | None:
    """(before, spent, left) of the ledger's budget, in units of μ²; None without a ledger.

    The ledger says what was left after the charge; what was there before follows, since μ² adds.
    """
    if result.ledger is None:
        return None
    delta, left = result.ledger.delta, result.ledger.epsilon_left
    after = privacy_mu(left, delta) ** 2 if left > 1e-6 else 0.0
    whole = privacy_mu(result.ledger.epsilon, delta) ** 2
    spent = min(result.privacy.mu**2, whole)
    return min(after + spent, whole), spent, min(after, whole - spent)


def describe_budget(result: Result) -> list[Part]:
    """What the release cost, and the ledger's budget before and after it."""
    privacy, found = result.privacy, budget_before(result)
    own = (
        f"This release spent ε = {round_up(privacy.epsilon, 10)} at δ = {format_delta(privacy.delta)}. Several releases about the same people together have a smaller ε than the sum of theirs. "
        f"What adds up is the square of μ, a measure of how far one person can move the noisy result; here μ = {round_up(privacy.mu)}."
    )
    if found is None or result.ledger is None:
        return [
            own,
            (
                "It was charged to no ledger, so nothing here tells what was spent on these people before or may be spent after. Whoever makes "
                "several releases about them has to add them up."
            ),
        ]
    charge, (before, spent, left) = result.ledger, found
    whole = privacy_mu(charge.epsilon, charge.delta) ** 2
    shares = {"spent before": max(0.0, whole - before) / whole, "this release": spent / whole, "left": left / whole}
    epsilon_before = min(charge.epsilon, privacy_epsilon(math.sqrt(before), charge.delta)) if before else 0.0
    rows = [
        ("The whole budget", f"ε = {charge.epsilon:g}"),
        ("Left before this release", f"ε = {epsilon_before:.4g}"),
        ("This release", f"ε = {round_up(privacy.epsilon, 10)} at δ = {format_delta(privacy.delta)}"),
        ("Left after it", f"ε = {round_down(charge.epsilon_left)}"),
        ("Enough for", say_further(left, spent)),
    ]
    return [
        own,
        (
            f"It was charged, as {charge.id}, to the budget of {charge.population} before any row was looked at. All of this is at δ = {format_delta(charge.delta)}; what is left is "
            "what one single further release could have:"
        ),
        Facts(rows, label="The budget before and after"),
        Chart(
            lambda: plots.share_chart(
                ["budget"],
                {name: [value] for name, value in shares.items()},
                title="The budget",
                axis="share of the budget's μ²",
            ),
            f"{format_percent(shares['spent before'])} were spent before, {format_percent(shares['this release'])} by this release, {format_percent(shares['left'])} are left. "
            "Shares of μ² add up, values of ε do not.",
        ),
        "The ledger must still know this head, else it was rolled back:",
        Code(charge.head, "Ledger head"),
    ]


def say_further(left: float, spent: float) -> str:
    """How many more releases of a size what is left allows; both in units of μ²."""
    number = math.floor(left / spent * (1.0 + 1e-9)) if spent else 0
    return {0: "no further release of this size", 1: "1 more release of this size"}.get(
        number, f"{number:,} more releases of this size"
    )


def _percent_up(share: float) -> str:
    return f"{math.ceil(1000.0 * share - 1e-9) / 10.0:g} %"
