"""What the form's terms mean: a sentence each, and the page of the documentation that tells more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """What a term means, and the title of the page that tells more."""

    sentence: str
    page: str


TERMS = {
    "path": Term("The file whose rows are linked: each row holds one person's regressors and the response that was linked to them.", "From two files to linked rows"),
    "family": Term("A number is explained by a line, an event by the odds that it happens, a count by the rate at which it does.", "Events and counts"),
    "exposure": Term("A column that says over what time or size each count was taken, such as years observed: rates are per unit of it.", "Events and counts"),
    "formula": Term("What is to be explained stands left of ~, what explains it on the right, joined by +; income:age is an interaction, log(income) a logarithm.", "The study file"),
    "bounds": Term("The lowest and the highest value that counts: values beyond are clipped to them, and the noise follows them. They come from what is publicly known, never from the rows.", "Choose bounds"),
    "typical": Term("Where you guess that the middle 70 % of the values lie. A good guess makes the result more precise; a poor one costs precision, never privacy.", "Choose bounds"),
    "units": Term("What the numbers are counted in, such as euros or years: reports then speak in it.", "The study file"),
    "levels": Term("The values that a column of categories may have, written as in the rows. Others count as the reference level, the first one.", "The study file"),
    "model": Term("Links by names and dates can be wrong, and results are corrected for that; links by a unique key are not.", "Know your links"),
    "accuracy": Term("How many of all links lead to the right person, as a share: .91 if 91 of 100 do.", "Know your links"),
    "block": Term("A column within whose values records were linked, such as a region: a wrong link then leads to somebody of the same block.", "Know your links"),
    "checked": Term("How many links somebody looked at to find the share: intervals allow for what so many cannot tell.", "Know your links"),
    "source": Term("An accuracy that was found on these very people tells of them: it is public only if it came from elsewhere, or from identifiers alone, or was paid for.", "Know your links"),
    "looked_at": Term("The columns by which records were linked and links were checked: none of them may be in the formula.", "Know your links"),
    "paid": Term("The μ that the release of the accuracy wrote beside it: it counts together with what this release spends.", "Know your links"),
    "paid_links": Term("How many other people's links one person may have displaced when the accuracy was released.", "Know your links"),
    "accuracy_min": Term("A share that is publicly known to be reached in every block; lower estimates are raised to it.", "Know your links"),
    "moves": Term("Somebody whose recorded region were another one would have been linked within another block.", "The privacy promise"),
    "takes": Term("Records compete for links: with another name, a person may take the link of somebody else, who takes that of a third.", "The privacy promise"),
    "change": Term("How far all probabilities of the matching matrix together may move if one person's identifiers change.", "The privacy promise"),
    "rows": Term("Whoever has several rows changes all of them at once, so the noise has to cover them all.", "Surveys and subgroups"),
    "epsilon": Term("How much may be learnt about one person from this release: the smaller, the more private, and the wider the intervals.", "Choose ε"),
    "delta": Term("The chance that the promise of ε is broken: a tiny number, below one over the number of rows.", "Choose ε"),
    "url": Term("The file that keeps what was spent on these people, so that many releases together stay within one budget.", "Security: what is guarded, how that is tested, what is not"),
    "population": Term("The people that the budget is about, by the name that it was opened with.", "Security: what is guarded, how that is tested, what is not"),
    "missing": Term("A row with an empty cell is left out, or counts with a public value in its place.", "Choose bounds"),
    "weights": Term("A column that says how many people of the population a row stands for.", "Surveys and subgroups"),
    "where": Term("A condition on the regressors' columns: rows for which it does not hold count for nothing, and how many these are stays private.", "Surveys and subgroups"),
    "by": Term("The same regression in every level of a column, all in one release for the price of one.", "Surveys and subgroups"),
    "cluster": Term("A column that says which rows were drawn together, such as a household: intervals allow for what they have in common.", "Surveys and subgroups"),
    "strata": Term("A column that says in which part of the population a row was drawn, such as a region: intervals leave out what differs between these parts.", "Surveys and subgroups"),
    "errors": Term("What is publicly known of how values lie around the line: a right guess makes intervals narrower, a wrong one bends the line.", "Intervals"),
    "method": Term("Noisy sums need the least noise in nearly all cases; noisy gradient descent is the paper's other way.", "Mathematics"),
    "calibration": Term("Noise as small as the promise allows, or as the paper has it.", "The paper, on your data"),
    "r2": Term("How much of the differences between rows you guess that the model explains: 0 is nothing, 1 is all. The more it explains, the narrower the intervals.", "Intervals"),
    "goodness": Term("R² and the residual standard deviation, for 3 % of the budget.", "Intervals"),
    "large_epsilon": Term("An ε above 10 protects next to nothing, so it has to be said that it is meant.", "Choose ε"),
}  # fmt: skip
