"""How a link is shown to a reviewer: both records side by side, their differences marked; and what answers come to, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from htmltools import Tag, tags

from dplinked.linker.differences import Part, find_difference
from dplinked.linker.reviewing import Agreement, FoundSoFar, Pair, Reviewer, ReviewList, open_review
from dplinked.studio.look import show

REVIEWERS: dict[Reviewer, str] = {"first": "the first reviewer", "second": "the second reviewer"}


def show_pair(at_hand: ReviewList, place: int, apart: str | None) -> Tag:
    """Both records of a line, and its answer; `apart` says what both reviewers answered, if that is being settled."""
    pair, answer = at_hand.pair(place), at_hand.answer_of(place)
    number, total = at_hand.places.index(place) + 1, len(at_hand.places)
    where = f" in block {show(pair.block)}" if pair.block else ""
    return tags.div(
        tags.h2(f"Link {number:,} of {total:,}: is it the same person?"),
        tags.p(f"Records {show(pair.ids[0])} and {show(pair.ids[1])}{where}.", class_="hint"),
        tags.table(
            tags.caption("Both records, field by field", class_="visually-hidden"),
            tags.thead(tags.tr(*(tags.th(head, scope="col") for head in ("field", "first file", "second file", "difference")))),
            tags.tbody(*_lines(pair)),
            class_="both-records",
        ),
        tags.p(tags.strong("Answered before: "), apart) if apart else None,
        tags.p(tags.strong(f"Answered: {answer}." if answer else "Not answered yet."), class_=f"given {answer or 'open'}"),
        tags.details(tags.summary("What the score is made of"), tags.p(show(pair.why), class_="hint")) if pair.why else None,
    )  # fmt: skip


def _lines(pair: Pair) -> list[Tag]:
    lines = []
    for left, right, one, other in pair.fields:
        found = find_difference(one, other)
        name = show(left) if left == right else f"{show(left)} / {show(right)}"
        alike = found.says.startswith(("the same", "missing"))
        lines.append(
            tags.tr(
                tags.th(name, scope="row"),
                tags.td(_marked(found.left), data_label="first file", _add_ws=False),
                tags.td(_marked(found.right), data_label="second file", _add_ws=False),
                tags.td(found.says if alike else tags.strong(found.says), data_label="difference", _add_ws=False),
            )
        )
    return lines


def _marked(parts: tuple[Part, ...]) -> Tag:
    """A value whose differing letters are marked."""
    if not parts:
        return tags.span("missing", class_="hint", _add_ws=False)
    pieces = [show(part.text) if part.same else tags.mark(show(part.text), _add_ws=False) for part in parts]
    return tags.span(*pieces, _add_ws=False)


def say_apart(out: Path, place: int, kept: Mapping[str, object]) -> str:
    """What both reviewers answered before a difference is settled."""
    said = {name: open_review(out, name).answer_of(place) for name in REVIEWERS}
    return "; ".join(f"{show(str(kept.get(name) or REVIEWERS[name]))}: {answer}" for name, answer in said.items())


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.1f} %"


def say_agreement(found: Agreement) -> str:
    """How far two reviewers agree, in words."""
    chance = (
        f"Cohen's kappa is {found.kappa:.2f}: 1 is always, 0 is as often as chance would have it."
        if found.kappa is not None
        else "As all answers are the same, kappa says nothing."
    )
    return f"Both answered {found.both:,} links and agree on {found.same:,} of them ({percent(found.same / max(1, found.both))}). {chance}"


def say_found(found: FoundSoFar, *, all_answered: bool = False) -> tuple[str, str]:
    """What the answers tell so far: the share of right links, and what it is made of."""
    which = "of the links" if all_answered else "of the links answered so far"
    share = f"{percent(found.share)} {which} are right, 95 % interval {percent(found.low)} to {percent(found.high)}."
    more = (
        f" The unsure ones count as no; were they all right, it would be {percent(found.at_most)}."
        if found.unsure
        else ""
    )
    return share, f" Yes {found.right:,}, no {found.wrong:,}, unsure {found.unsure:,}.{more}"
