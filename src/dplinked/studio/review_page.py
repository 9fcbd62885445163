"""The page *Review*: links that people check, two reviewers who do not see each other's answers, and what the study takes from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.errors import StudyError
from dplinked.linker.files import AUDIT, SECOND
from dplinked.linker.reviewing import (
    Answer,
    Reviewer,
    ReviewList,
    begin_settling,
    compare_reviewers,
    found_so_far,
    is_settling,
    open_review,
)
from dplinked.studio.accuracy_part import accuracy_fields, serve_accuracy, source_of
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.link_page import linked_request, runs
from dplinked.studio.look import panel, say, section, show, steward_only
from dplinked.studio.path import State
from dplinked.studio.review_words import REVIEWERS, say_agreement, say_apart, say_found, show_pair
from dplinked.studio.room import Held, Room, steady

_KEYS: dict[str, Answer] = {"y": "yes", "n": "no", "u": "unsure"}
_BUTTONS = {
    "y": "Yes (y)",
    "n": "No (n)",
    "u": "Unsure (u)",
    "z": "Take back (z)",
    "left": "← Previous",
    "right": "Next →",
}
_UNSURE = "Unsure counts as no: what nobody can confirm is not counted as right, so that the accuracy is rather too low than too high."


def layout() -> NavSetArg:
    """Lay out the page."""
    buttons = [
        tags.button(
            words,
            type="button",
            data_answer=key,
            class_=f"btn btn-default {'btn-primary' if key in _KEYS else ''}".strip(),
        )
        for key, words in _BUTTONS.items()
    ]
    return panel(
        "review",
        ui.output_ui("review_missing"),
        tags.div(
            steward_only("Both records of each link are shown, to the steward and the reviewers."),
            ui.output_ui("review_who"),
            tags.div(ui.output_ui("review_progress"), class_="progressed"),
            tags.div(*buttons, class_="buttons answers", role="group", aria_label="Is this link right?"),
            tags.div(ui.output_ui("review_pair"), aria_live="polite"),
            tags.div(
                ui.input_checkbox("review_keys", "Answer with the keys y, n and u, take back with z, and go on and back with the arrows", True, width="100%"),
                tags.p(_UNSURE, class_="hint"),
                class_="keys",
            ),
            class_="reviewing",
        ),
        ui.output_ui("review_found"),
        ui.output_ui("review_agreement"),
        *accuracy_fields(),
    )  # fmt: skip


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour."""
    desk = room.desk
    given = Held(0)  # counts what was answered, so that all that follows from the files is read anew
    refused = Held[Fault | None](None)
    opened: dict[tuple[Path, str], ReviewList] = {}
    edits: list[int] = []

    done = steady(lambda: linked_request(room))

    def folder() -> Path | None:
        asked = done()
        return None if asked is None else desk.folder / asked.out

    def find_who() -> Reviewer:
        out = folder()
        given()
        if out is not None and (out / AUDIT).is_file() and is_settling(out):
            return "settled"
        return "second" if room.kept("review").get("who") == "second" else "first"

    who = steady(find_who)
    drawn = steady(
        lambda: (room.kept("link").get("asked") or {}, runs(room))
    )  # after linking anew, the links are others

    def find_edits() -> int:
        """How often the list at hand was seen to be changed by another program, such as a spreadsheet's."""
        room.files()
        edits.extend(1 for one in opened.values() if not one.current)
        return len(edits)

    edited = steady(find_edits)

    @reactive.calc
    def review() -> ReviewList | Fault | None:
        """The list that is at hand."""
        out = folder()
        given()
        edited()
        if out is None or not (out / AUDIT).is_file():
            return None
        key = out, who()
        drawn()
        if key not in opened or not opened[key].current:
            found = attempt(lambda: open_review(*key))
            if isinstance(found, Fault):
                return found
            opened[key] = found
        return opened[key]

    @reactive.calc
    def place() -> int | None:
        """The line that is shown."""
        at_hand, kept = review(), room.kept("review").get("place")
        if not isinstance(at_hand, ReviewList) or not at_hand.places:
            return None
        if isinstance(kept, int) and kept in at_hand.places:
            return kept
        return next(iter(at_hand.open_places), at_hand.places[0])

    def is_complete() -> bool:
        """Whether the list that is read back has all its answers."""
        out = folder()
        given()
        if out is None or not (out / AUDIT).is_file():
            return False
        at_hand = review() if who() != "second" else attempt(lambda: open_review(out))
        return isinstance(at_hand, ReviewList) and not at_hand.open_places

    complete = steady(is_complete)
    ready = steady(lambda: isinstance(review(), ReviewList))

    # --- who reviews -----------------------------------------------------------------------------

    @render.ui
    def review_missing() -> Tag | None:
        asked = done()
        if room.kept("files").get("way") == "linked":
            return say(
                "Your rows were linked elsewhere, so there are no links to review here. How good they are is said on Study."
            )
        if asked is None:
            return say("Link the files first; then links can be reviewed.")
        at_hand = review()
        if at_hand is None:
            return say(
                "No links were drawn to be reviewed. On Link, say how many, and link again; or say below that the accuracy is public."
            )
        return say(at_hand.text, "bad") if isinstance(at_hand, Fault) else None

    @render.ui
    def review_who() -> Tag | None:
        now = who()
        if not ready():
            return None
        with reactive.isolate():
            kept = room.kept("review")
        names = [
            ui.input_text(f"review_{one}", f"Name of {words}", str(kept.get(one) or ""), update_on="blur")
            for one, words in REVIEWERS.items()
        ]
        if now == "settled":
            return tags.p(
                "The links on which both differ are being settled, by both together. What each answered before is kept beside."
            )
        chosen = ui.input_radio_buttons(
            "review_as",
            "Who answers now?",
            {"first": "the first reviewer", "second": "a second one, who sees none of the first one's answers"},
            selected=now,
        )
        called = show(str(kept.get(now) or REVIEWERS[now]))
        return tags.details(
            tags.summary(f"Who reviews: {called}"), chosen, tags.div(*names, class_="pair"), class_="who"
        )

    @reactive.effect
    @reactive.event(input.review_as)
    def _choose_reviewer() -> None:
        if room.here() and input.review_as() != (room.kept("review").get("who") or "first"):
            room.keep("review", who=input.review_as(), place=None)

    @reactive.effect
    def _name() -> None:
        sent = {one: input[f"review_{one}"]().strip() or None for one in REVIEWERS if input[f"review_{one}"].is_set()}
        with reactive.isolate():
            if sent and any(room.kept("review").get(one) != name for one, name in sent.items()):
                room.keep("review", **sent)

    # --- answering -------------------------------------------------------------------------------

    @render.ui
    def review_progress() -> TagList | None:
        at_hand = review()
        if not isinstance(at_hand, ReviewList):
            return None
        total, missing = len(at_hand.places), len(at_hand.open_places)
        what = "differences settled" if who() == "settled" else "links answered"
        return TagList(
            tags.label(f"{total - missing:,} of {total:,} {what}", for_="review_bar"),
            tags.progress(id="review_bar", max=str(max(1, total)), value=str(total - missing)),
        )

    @render.ui
    def review_pair() -> Tag | None:
        at_hand, shown = review(), place()
        stopped = refused()
        if not isinstance(at_hand, ReviewList) or shown is None:
            return None
        said = None if stopped is None else say(stopped.text, "bad")
        out = folder()
        apart = say_apart(out, shown, room.kept("review")) if out is not None and who() == "settled" else None
        return tags.div(said, show_pair(at_hand, shown, apart), data_place=str(shown), class_="shown-pair")

    @reactive.effect
    @reactive.event(input.review_key)
    def _answer() -> None:
        sent, at_hand, shown = input.review_key(), review(), place()
        if not isinstance(at_hand, ReviewList) or shown is None or not room.here() or not isinstance(sent, Mapping):
            return
        if sent.get("key") in _KEYS and sent.get("place") != shown:  # it was meant for a link that is no longer shown
            return
        found = attempt(lambda: _follow(at_hand, shown, str(sent.get("key"))))
        refused.set(found if isinstance(found, Fault) else None)
        if isinstance(found, int):
            room.keep("review", place=found)
            given.set(given() + 1)

    # --- what it tells ---------------------------------------------------------------------------

    @render.ui
    def review_found() -> Tag | None:
        at_hand, out = review(), folder()
        if not isinstance(at_hand, ReviewList) or out is None or who() == "second":
            return None
        if who() == "settled" and at_hand.open_places:  # the links on which both agree are no random part of all
            return None
        if at_hand.secret:
            return section(
                "What the answers tell",
                tags.p(
                    "Who was drawn is secret, so nothing is told here of what is found. Answer every link; the first sample counts, however it comes out."
                ),
            )
        found = attempt(lambda: found_so_far(ReviewList(out / AUDIT) if who() == "settled" else at_hand))
        if found is None or isinstance(found, Fault):
            return None if found is None else say(found.text, "bad")
        share, more = say_found(found, all_answered=not at_hand.open_places)
        return section(
            "What the answers tell",
            steward_only("It is counted in the answers, without noise."),
            tags.p(tags.strong(share), more),
            tags.meter(min="0", max="1", value=f"{found.share:.4f}", aria_label="Share of right links"),
        )

    @render.ui
    def review_agreement() -> Tag | None:
        out, at_hand = folder(), review()
        if out is None or not isinstance(at_hand, ReviewList) or not (out / SECOND).is_file():
            return None
        found = attempt(lambda: compare_reviewers(out))
        if isinstance(found, Fault):
            return section("Two reviewers", say(found.text, "bad"))
        if found.open:
            return section(
                "Two reviewers",
                tags.p(
                    f"{found.open:,} answers of both are still missing. How far they agree is told once both answered every link, so that neither is led by the other."
                ),
            )
        told = [] if at_hand.secret else [tags.p(say_agreement(found))]
        if found.differ and not is_settling(out):
            told += [
                tags.p(
                    f"They differ on {len(found.differ):,} links. Look at these together and settle them; then the list is complete."
                ),
                tags.div(
                    ui.input_action_button("settle", "Settle the differences", class_="btn-primary"), class_="buttons"
                ),
            ]
        return section("Two reviewers", steward_only(), *told)

    @reactive.effect
    @reactive.event(input.settle)
    def _settle() -> None:
        out = folder()
        if out is None or not room.here():
            return
        begun = attempt(lambda: begin_settling(out))
        refused.set(begun)
        opened.clear()
        room.keep("review", place=None)
        given.set(given() + 1)

    serve_accuracy(input, room, done, complete)

    def state() -> State:
        asked, at_hand = done(), review()
        if room.kept("files").get("way") == "linked":
            return State("aside", "Your rows were linked elsewhere.", "Next, say what the study is.")
        if asked is None:
            return State("missing", "Link the files first.", "Then have links reviewed.")
        if source_of(room) is not None:
            return State("done", "The study knows how good its links are.", "Next, say what the study is.")
        if at_hand is None:
            return State(
                "missing",
                "No links were drawn to be reviewed.",
                "Link again with a number of links, or say that the accuracy is public.",
            )
        if isinstance(at_hand, Fault):
            return State("missing", "The list of links cannot be read: see below.")
        total, missing = len(at_hand.places), len(at_hand.open_places)
        if missing:
            what = "differences are settled" if who() == "settled" else "links are answered"
            said = f"{total - missing:,} of {total:,} {what}."
            return State("ready", said, "Answer the rest; you can stop at any time and go on later.")
        if not complete():
            return State("ready", "The second reviewer has answered every link.", "The first one has not yet.")
        return State("ready", "Every link is answered.", "Say below what the study takes from it.")

    return state


def _follow(at_hand: ReviewList, shown: int, key: str) -> int:
    """Do what a key says, and return the line to show next."""
    at = at_hand.places.index(shown)
    if key in _KEYS:
        at_hand.answer(shown, _KEYS[key])
        missing = set(at_hand.open_places)
        later = [*at_hand.places[at + 1 :], *at_hand.places[:at]]
        return next(
            (place for place in later if place in missing), at_hand.places[min(at + 1, len(at_hand.places) - 1)]
        )
    if key == "z":
        back = at_hand.undo(shown)
        return shown if back is None else back
    if key in ("left", "right"):
        return at_hand.places[min(max(at + (1 if key == "right" else -1), 0), len(at_hand.places) - 1)]
    raise StudyError("This key has no meaning here.")
