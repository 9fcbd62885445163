"""What the study takes from a review: the part of the page *Review* that says how good the links are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from htmltools import Tag, tags
from shiny import Inputs, reactive, render, ui

from dplinked.ledger.ledger import Ledger
from dplinked.linker.files import AUDIT, LINKAGE
from dplinked.privacy.calibration import round_down
from dplinked.studio import outside
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import Draft
from dplinked.studio.link_page import progress_of, show_stop
from dplinked.studio.linking import Price, Request, accuracy_changes, public_changes, released_before, take_accuracy
from dplinked.studio.look import group, prose, say, show
from dplinked.studio.room import Held, Question, Room, steady, when_changed

_WAYS = {
    "identifiers": "By identifiers: links were made and reviewed by names and other identifiers alone. It costs nothing and adds no noise. The promise then covers all other columns; what identifiers do to the links is not protected.",
    "released": "Released, and paid for: identifiers are protected too. Noise is added to the number of right links, and a part of the budget is spent on it. From then on the accuracy is public.",
    "public": "Public: the accuracy is known from elsewhere, such as the linker's documentation or last year's files. What was found here is not used.",
}
_SOURCES = tuple(_WAYS)


def accuracy_fields() -> tuple[Tag, ...]:
    """The places of this part in the page."""
    shown = ("accuracy_take", "accuracy_progress", "stop_accuracy_shown", "accuracy_taken", "accuracy_outside")
    return tuple(ui.output_ui(name) for name in shown)


def serve_accuracy(input: Inputs, room: Room, done: Callable[[], Request | None], complete: Callable[[], bool]) -> None:
    """Let the study take the accuracy of the links that were made, once every link is answered."""
    desk = room.desk
    refused = Held[Fault | None](None)
    question = Question[tuple[Request, Price | None]](room)

    when_changed(lambda: (room.busy(), room.files(), room.text()), lambda: refused.set(None))

    def find_way() -> str:
        kept = room.kept("review").get("way")
        return kept if kept in _WAYS else "identifiers"

    way = steady(find_way)

    @render.ui
    def accuracy_take() -> Tag | None:
        asked = done()
        if asked is None:
            return None
        with reactive.isolate():
            kept, displaced = room.kept("review"), _displaced(room)
            chosen = "released" if asked.secret and way() == "identifiers" else way()
        ways = {name: words for name, words in _WAYS.items() if name != "identifiers" or not asked.secret}
        return tags.div(
            group(
                "How good the links are, as the study is told",
                ui.input_radio_buttons("review_way", "Where the accuracy comes from", ways, selected=chosen),
                tags.div(
                    ui.input_numeric("public_accuracy", "Right links, in %", kept.get("public_accuracy"), min=0, max=100, step="any"),  # type: ignore[arg-type]
                    ui.input_numeric("public_checked", "Links that were checked to find it", kept.get("public_checked"), min=1, step=1),  # type: ignore[arg-type]
                    class_="pair only-public",
                ),
                tags.div(
                    ui.input_numeric("paid_epsilon", "Epsilon of the accuracy", kept.get("paid_epsilon", 0.3), min=0, step="any"),  # type: ignore[arg-type]
                    ui.input_numeric("paid_delta", "Delta of the accuracy", kept.get("paid_delta", 1e-6), min=0, step="any"),  # type: ignore[arg-type]
                    ui.input_numeric("paid_displaced", "Further links one person may displace, as on Study", displaced, min=0, step=1),
                    class_="pair three only-released",
                ),
                tags.p(
                    "By identifiers holds only if nobody looked at anything else: not in linking, not in reviewing, not in deciding how many links to review.", class_="hint only-identifiers",
                ),
                ui.output_ui("accuracy_ready"),
                class_="take",
            )
        )  # fmt: skip

    @reactive.effect
    def _keep_way() -> None:
        names = {
            "way": "review_way",
            **{
                name: name
                for name in ("public_accuracy", "public_checked", "paid_epsilon", "paid_delta", "paid_displaced")
            },
        }
        sent = {name: input[id]() for name, id in names.items() if input[id].is_set()}
        with reactive.isolate():
            if sent and any(room.kept("review").get(name) != value for name, value in sent.items()):
                room.keep("review", **sent)

    @reactive.calc
    def fault() -> str | None:
        return _take_fault(way(), room.kept("review"), complete(), done())

    @render.ui
    def accuracy_ready() -> Tag:
        text = fault()
        if text is not None:
            return tags.p(show(text), class_="fault" if complete() or way() == "public" else "hint", role="status")
        use = ui.input_action_button("take_accuracy", "Use it in the study", class_="btn-primary")
        asked = done()
        room.job()
        again = asked is not None and way() == "released" and released_before(desk.folder / asked.out)
        hint = "It was released before: that one is used, and nothing is spent. To pay for another one, link again."
        return tags.div(tags.p(hint, class_="hint") if again else None, tags.div(use, class_="buttons"))

    def price() -> Price | None:
        return price_of(room) if way() == "released" else None

    @reactive.effect
    @reactive.event(input.take_accuracy)
    def _take() -> None:
        asked, kept = done(), room.kept("review")
        if asked is None or fault() is not None or not room.here():
            return
        if way() == "public":
            room.change(
                public_changes(
                    Draft(0, "", room.text()), float(kept["public_accuracy"]) / 100.0, int(kept["public_checked"])
                )
            )
        elif released_before(desk.folder / asked.out) and way() == "released":
            room.change(accuracy_changes(Draft(0, "", room.text()), asked, desk.folder))
        elif way() == "released":
            paid = price()
            spent = attempt(lambda: _describe_price(paid))
            text = spent.text if isinstance(spent, Fault) else spent
            question.ask(
                (asked, paid),
                "Release the accuracy?",
                tags.p(prose(text)),
                tags.p("What is spent is spent, whatever is found."),
                yes=ui.input_action_button("do_release_accuracy", "Spend it and release", class_="btn-primary"),
            )
        else:
            _begin(asked, None)

    @reactive.effect
    @reactive.event(input.do_release_accuracy)
    def _release() -> None:
        answered = question.answer()
        if answered is not None and fault() is None:
            _begin(*answered)

    def _begin(asked: Request, paid: Price | None) -> None:
        at = time.time()
        begun = attempt(
            lambda: desk.start(
                "accuracy", lambda report: take_accuracy(desk, asked, paid, report), stoppable=paid is None
            )
        )
        refused.set(begun)
        if begun is None:
            room.keep("review", taking=at)

    @render.ui
    def accuracy_progress() -> Tag | None:
        stopped = refused()
        return say(stopped.text, "bad") if stopped is not None else progress_of(room.job(), "accuracy")

    show_stop(room, "accuracy", "stop_accuracy")

    @reactive.effect
    @reactive.event(input.stop_accuracy)
    def _stop() -> None:
        desk.stop()

    @reactive.effect
    def _tell_study() -> None:
        """The study takes the accuracy once it is written, if the window is closed meanwhile when it is opened again."""
        job, asked, kept = room.job(), done(), room.kept("review")
        at = kept.get("taking")
        if (
            asked is None
            or at is None
            or at == kept.get("taken")
            or (job is not None and job.running)
            or not room.here()
        ):
            return
        written = desk.folder / asked.out / LINKAGE
        if not written.is_file() or written.stat().st_mtime < at - 0.05:
            return
        with reactive.isolate():
            if room.draft().sections is not None:
                room.keep("review", taken=at)
                room.change(accuracy_changes(Draft(0, "", room.text()), asked, desk.folder))

    @render.ui
    def accuracy_taken() -> Tag | None:
        source = source_of(room)
        return (
            None
            if source is None or done() is None
            else say(
                f"The study has its accuracy: {_WAYS[source].partition(':')[0].lower()}. It stands on the page Study, under Links.",
                "good",
            )
        )

    @render.ui
    def accuracy_outside() -> Tag | None:
        asked = done()
        if asked is None:
            return None
        if way() == "public":
            kept = room.kept("review")
            known = f"accuracy = {(kept.get('public_accuracy') or 95) / 100:g}\nchecked = {int(kept.get('public_checked') or 1000)}"
            return outside.same(study=f'[linkage]\n{known}\nsource = "public"\nblock = "link_block"')
        shell, lines = in_lines(asked, price(), desk.folder)
        return outside.same(shell, asked.in_python(desk.folder, *lines), study=room.text())


def source_of(room: Room) -> str | None:
    """Where the study's accuracy comes from, if it has one."""
    draft = Draft(0, "", room.text())
    source = draft.get("linkage", "source")
    return source if draft.get("linkage", "accuracy") and source in _SOURCES else None


def _take_fault(way: str, kept: Mapping[str, Any], complete: bool, asked: Request | None) -> str | None:
    """Why the accuracy cannot be taken yet, in the words of the form."""
    if asked is None:
        return "Link the files first."
    if way == "public":
        accuracy, checked = kept.get("public_accuracy"), kept.get("public_checked")
        if accuracy is None or not 0 < float(accuracy) <= 100:
            return "Say which share of links is right, in per cent."
        return (
            None
            if checked and int(checked) >= 1
            else "Say how many links were checked to find it. The fewer, the wider the intervals."
        )
    if not complete:
        return "Answer every link first. Links that cannot be decided are unsure, which counts as no."
    if way == "identifiers" and asked.secret:
        return "Links that were drawn in secret are for an accuracy that is released."
    if way == "released" and not (_positive(kept.get("paid_epsilon", 0.3)) and _positive(kept.get("paid_delta", 1e-6))):
        return "Say how much of the budget the accuracy may cost: epsilon and delta, both above 0."
    return None


def _displaced(room: Room) -> int:
    """Further links that one person may displace: as it is said here, or else on *Study*."""
    said = room.kept("review").get("paid_displaced")
    known = Draft(0, "", room.text()).get("unit", "displaced_links") if said is None else said
    return int(known) if isinstance(known, (int, float)) else 0


def _positive(value: Any) -> bool:
    return value is not None and float(value) > 0.0


def _describe_price(price: Price | None) -> str:
    """What releasing an accuracy spends, and what was left before."""
    if price is None:
        return ""
    spent = f"This spends epsilon = {price.epsilon:g} at delta = {price.delta:g}, for everybody in both files."
    if price.ledger is None:
        return f"{spent} The study names no ledger, so that it is charged to nobody's budget: whoever makes several releases must add them."
    left = Ledger(price.ledger, price.population, key=price.key).balance()
    return f"{spent} It is charged to the budget of {left.population!r}, of which epsilon = {round_down(left.epsilon_left)} at delta = {left.delta:g} is left."


def price_of(room: Room) -> Price:
    """What an accuracy that is released costs, as it was filled in, and the budget that the study names."""
    kept, draft, folder = room.kept("review"), Draft(0, "", room.text()), room.desk.folder
    url, key = draft.get("ledger", "url"), draft.get("ledger", "key")
    ledger = None if not url else url if "://" in str(url) else folder / str(url)
    return Price(
        float(kept.get("paid_epsilon", 0.3)), float(kept.get("paid_delta", 1e-6)), _displaced(room), ledger,
        draft.get("ledger", "population") or None, folder / str(key) if key else None,
    )  # fmt: skip


def in_lines(asked: Request, price: Price | None, folder: Path) -> tuple[str | None, list[str]]:
    """A command that links and reads the answers back, and the Python lines that read them back after linking."""
    audited = f"{asked.out}/{AUDIT}"
    shell = ["--audited", audited, *(["--by-identifiers"] if price is None else price.options(folder))]
    secret = f", key={asked.key!r}, size={asked.size}" if asked.secret else ""
    lines = [f"linked = linked.audited({audited!r}{secret})"]
    if price is None:
        lines += [f"linked.save({asked.out!r}, linkage=linked.linkage_by_identifiers())"]
    else:
        lines += [
            f"paid = dpl.release_accuracy(linked, {price.arguments(folder)})",
            f"linked.save({asked.out!r}, linkage=paid.linkage)",
            f"paid.save({asked.out + '/accuracy.json'!r})",
        ]
    return asked.in_shell(*shell), lines
