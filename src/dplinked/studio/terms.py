"""What the form's terms mean: a sentence each, and where the documentation tells more."""

from __future__ import annotations

from dataclasses import dataclass

from htmltools import Tag, tags

from dplinked.studio.documentation import TITLES, address


@dataclass(frozen=True)
class Term:
    """What a term means, and the page of the documentation, or a heading of it (``page#heading``), that tells more."""

    sentence: str
    place: str


TERMS = {
    "path": Term("The file whose rows are linked: each row holds one person's regressors and the response that was linked to them.", "linking"),
    "family": Term("A number is explained by a line, an event by the odds that it happens, a count by the rate at which it does.", "outcomes"),
    "exposure": Term("A column that says over what time or size each count was taken, such as years observed: rates are per unit of it.", "outcomes#what-to-declare"),
    "formula": Term("What is to be explained stands left of ~, what explains it on the right, joined by +; income:age is an interaction, log(income) a logarithm.", "study-file#model"),
    "bounds": Term("The lowest and the highest value that counts: values beyond are clipped to them, and the noise follows them. They come from what is publicly known, never from the rows.", "choose-bounds"),
    "typical": Term("Where you guess that the middle 70 % of the values lie. A good guess makes the result more precise; a poor one costs precision, never privacy.", "choose-bounds"),
    "units": Term("What the numbers are counted in, such as euros or years: reports then speak in it.", "study-file#units"),
    "levels": Term("The values that a column of categories may have, written as in the rows. Others count as the reference level, the first one.", "study-file#levels"),
    "model": Term("Links by names and dates can be wrong, and results are corrected for that; links by a unique key are not.", "know-your-links#which-case-is-yours"),
    "accuracy": Term("How many of all links lead to the right person, as a share: .91 if 91 of 100 do.", "know-your-links"),
    "block": Term("A column within whose values records were linked, such as a region: a wrong link then leads to somebody of the same block.", "linking#how-good-are-the-links"),
    "checked": Term("How many links somebody looked at to find the share: intervals allow for what so many cannot tell.", "know-your-links#how-many-links-to-check"),
    "source": Term("An accuracy that was found on these very people tells of them: it is public only if it came from elsewhere, or from identifiers alone, or was paid for.", "linking#where-the-accuracy-comes-from"),
    "looked_at": Term("The columns by which records were linked and links were checked: none of them may be in the formula.", "linking#where-the-accuracy-comes-from"),
    "paid": Term("The μ that the release of the accuracy wrote beside it: it counts together with what this release spends.", "linking#where-the-accuracy-comes-from"),
    "paid_links": Term("How many other people's links one person may have displaced when the accuracy was released.", "know-your-links#what-one-person-can-do-to-the-links"),
    "accuracy_min": Term("A share that is publicly known to be reached in every block; lower estimates are raised to it.", "study-file#linkage"),
    "moves": Term("Somebody whose recorded region were another one would have been linked within another block.", "privacy-promise"),
    "takes": Term("Records compete for links: with another name, a person may take the link of somebody else, who takes that of a third.", "know-your-links#what-one-person-can-do-to-the-links"),
    "change": Term("How far all probabilities of the matching matrix together may move if one person's identifiers change.", "study-file#unit"),
    "rows": Term("Whoever has several rows changes all of them at once, so the noise has to cover them all.", "surveys#several-rows-of-a-person"),
    "epsilon": Term("How much may be learnt about one person from this release: the smaller, the more private, and the wider the intervals.", "choose-epsilon"),
    "delta": Term("The chance that the promise of ε is broken: a tiny number, below one over the number of rows.", "choose-epsilon"),
    "url": Term("The file that keeps what was spent on these people, so that many releases together stay within one budget.", "security#the-budget"),
    "population": Term("The people that the budget is about, by the name that it was opened with.", "security#the-budget"),
    "missing": Term("A row with an empty cell is left out, or counts with a public value in its place.", "choose-bounds#cells-without-a-value"),
    "weights": Term("A column that says how many people of the population a row stands for.", "surveys#a-worked-example"),
    "where": Term("A condition on the regressors' columns: rows for which it does not hold count for nothing, and how many these are stays private.", "surveys#a-worked-example"),
    "by": Term("The same regression in every level of a column, all in one release for the price of one.", "surveys#the-same-in-every-region"),
    "cluster": Term("A column that says which rows were drawn together, such as a household: intervals allow for what they have in common.", "surveys#clusters-and-strata"),
    "strata": Term("A column that says in which part of the population a row was drawn, such as a region: intervals leave out what differs between these parts.", "surveys#clusters-and-strata"),
    "errors": Term("What is publicly known of how values lie around the line: a right guess makes intervals narrower, a wrong one bends the line.", "intervals#symmetric-errors"),
    "method": Term("Noisy sums need the least noise in nearly all cases; noisy gradient descent is the paper's other way.", "study-file#model"),
    "calibration": Term("Noise as small as the promise allows, or as the paper has it.", "paper-on-your-data"),
    "r2": Term("How much of the differences between rows you guess that the model explains: 0 is nothing, 1 is all. The more it explains, the narrower the intervals.", "intervals#how-well-the-line-fits"),
    "goodness": Term("R² and the residual standard deviation, for 3 % of the budget.", "intervals#how-well-the-line-fits"),
    "large_epsilon": Term("An ε above 10 protects next to nothing, so it has to be said that it is meant.", "choose-epsilon"),
}  # fmt: skip


def explain(name: str) -> Tag:
    """What a term means, to be unfolded beside its field, and a link to the page that tells more."""
    term = TERMS[name]
    mark = tags.summary(tags.span("?", aria_hidden="true"), tags.span("What is this?", class_="visually-hidden"))
    link = tags.a(
        TITLES[term.place.partition("#")[0]],
        tags.span(" (in a new tab)", class_="visually-hidden"),
        href=address(term.place), target="_blank", rel="noopener",
    )  # fmt: skip
    return tags.details(mark, tags.p(term.sentence, " More: ", link, "."), class_="help")
