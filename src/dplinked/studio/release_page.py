"""The page *Release* says what a release spends, asks once, shows its progress, and then its report, with those made before."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.check.receipt import state_of_files, was_checked
from dplinked.check.study import Check
from dplinked.fitting import release_mu
from dplinked.ledger.account import allows
from dplinked.ledger.steward import Account
from dplinked.release.release import Release
from dplinked.release.releases import Releases, forms_of
from dplinked.studio import outside
from dplinked.studio.check_page import Seen, about_rows
from dplinked.studio.desk import Fault, Job, Kept, Made, attempt
from dplinked.studio.look import panel, prose, rows, say, section, show
from dplinked.studio.path import STEPS, State
from dplinked.studio.release_words import (
    Obstacle,
    Offer,
    advice_after,
    advise,
    caution,
    describe_charge,
    find_lost,
    find_obstacle,
    find_offer,
    say_asked,
    say_spending,
)
from dplinked.studio.room import Held, Question, Room, steady, when_changed
from dplinked.studio.study_page import say_incomplete
from dplinked.study.study import Study

FORMS = {
    ".html": ("Page (HTML)", "text/html"),
    ".txt": ("Text", "text/plain"),
    ".md": ("Markdown", "text/markdown"),
    ".tex": ("LaTeX", "application/x-tex"),
    ".csv": ("CSV", "text/csv"),
    ".json": ("Release (JSON)", "application/json"),
}  # labels and media types by endings


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "release",
        section(
            "What it will spend",
            ui.output_ui("release_obstacle"),
            ui.output_ui("release_cost"),
            ui.output_ui("release_caution"),
            ui.output_ui("release_form"),
        ),
        ui.output_ui("release_progress"),
        ui.output_ui("release_lost"),
        ui.output_ui("release_made"),
        ui.output_ui("release_outside"),
    )


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour. A release belongs to the desk: it goes on, and is kept, even if this window is closed."""
    desk = room.desk
    refused = Held[Fault | None](None)
    ready = Held[Offer](None)
    looked = Held[Seen | None](None)
    chosen = Held[str | None](None)
    question = Question[tuple[Study, str | None, bool]](room)

    @reactive.calc
    def job() -> Job | None:
        now = room.job()
        return now if now is not None and now.kind == "release" else None

    @reactive.calc
    def running() -> bool:
        now = job()
        return now is not None and now.running

    @reactive.calc
    def obstacle() -> Obstacle | None:
        room.files()
        look = seen()
        if isinstance(room.study(), Fault):
            return Obstacle(say_incomplete(room), "study")
        return find_obstacle(room.study(), room.account(), look.count if isinstance(look, Check) else None)

    @reactive.effect(priority=5)
    def _look() -> None:
        room.job()
        looked.set(desk.results.get("check"))  # the same one changes nothing, however often a job tells its progress

    @reactive.calc
    def seen() -> Check | Fault | None:
        """What was seen in the rows with this study, as both are now; None if nobody looked since the studio was started."""
        room.files()
        found, study = looked(), room.study()
        if found is None or isinstance(study, Fault) or study.data is None or found.text != about_rows(room.text()):
            return None
        return found.check if found.files == state_of_files(study.data) else None

    @reactive.calc
    def advice() -> Obstacle | None:
        return obstacle() or advice_after(refused() or _fault(job())) or advise(room.study(), room.account())

    def forget() -> None:
        refused.set(None)
        desk.forget_fault(room.job())

    when_changed(room.busy, lambda: refused.set(None))
    when_changed(lambda: (room.text(), room.files(), room.account()), forget)

    @reactive.effect
    def _ready() -> None:
        now = None if obstacle() is not None or running() else find_offer(room.study(), room.account())
        if now != ready():
            ready.set(now)

    # --- what it spends, and the question --------------------------------------------------------

    @render.ui
    def release_obstacle() -> TagList | None:
        found = advice()
        return None if found is None else _lead(found)

    @render.ui
    def release_cost() -> TagList | None:
        study = room.study()
        if isinstance(study, Fault) or obstacle() is not None:
            return None
        account = room.account()
        return TagList(
            tags.p(prose(say_spending(study, account)), class_="lead"),
            rows((), describe_charge(study, account), "Charge"),
        )

    @render.ui
    def release_caution() -> TagList | None:
        study, saved = room.study(), room.saved()
        room.files(), looked()
        if isinstance(study, Fault) or obstacle() is not None:
            return None
        known = seen() or (saved is not None and study.data is not None and was_checked(saved, study.data))
        return TagList(*(say(text, "warning") for text in caution(known, saved is not None)))

    @render.ui
    def release_form() -> TagList | None:
        offer = ready()
        if offer is None:
            return None
        if offer == "again":
            return TagList(tags.div(ui.input_action_button("ask_release", "Show again …"), class_="buttons"))
        with reactive.isolate():
            kept, study = room.kept("release"), room.study()
        named = not isinstance(study, Fault) and study.ledger is not None
        return TagList(
            ui.input_text("release_id", "Name of this release in the ledger (optional)", str(kept.get("name") or ""), spellcheck="false")
            if named else None,
            ui.input_checkbox(
                "pay_anew", "Pay anew, even if the ledger has seen this very request", width="100%"
            ) if named else None,
            tags.div(ui.input_action_button("ask_release", "Release …", class_="btn-primary"), class_="buttons"),
        )  # fmt: skip

    def asked() -> tuple[str | None, bool]:
        """The name that was typed for the release, and whether it is to be paid anew; a study without a ledger knows neither."""
        study = room.study()
        if isinstance(study, Fault) or study.ledger is None or ready() == "again" or not input.release_id.is_set():
            return None, False
        return input.release_id().strip() or None, bool(input.pay_anew())

    @reactive.effect
    def _keep() -> None:
        if input.release_id.is_set():
            name = input.release_id().strip() or None
            with reactive.isolate():
                room.keep("release", name=name)

    @reactive.effect
    @reactive.event(input.ask_release)
    def _ask() -> None:
        study, account = room.study(), room.account()
        if isinstance(study, Fault) or ready() is None:
            return
        new = ready() == "new"
        yes = ui.input_action_button(
            "do_release", "Spend it and release" if new else "Show it again", class_="btn-primary"
        )
        name, anew = asked()
        question.ask(
            (study, name, anew),
            "Make this release?" if new else "Show a release again?",
            tags.p(prose(say_asked(study, account, name, anew)), class_="lead"),
            tags.p("What is spent is spent, whatever the result looks like.") if new else None,
            yes=yes,
        )

    @reactive.effect
    @reactive.event(input.do_release)
    def _start() -> None:
        answered = question.answer()
        if answered is None:
            return
        study, name, anew = answered
        refused.set(attempt(lambda: desk.release(study, name, again=anew)))
        ui.update_checkbox("pay_anew", value=False)  # it was meant for one release

    @render.ui
    def release_progress() -> Tag | None:
        now = job()
        return _progress(now) if now is not None and now.running else None

    # --- what was made ---------------------------------------------------------------------------

    @reactive.effect
    def _show_new() -> None:
        now = job()
        if now is not None and not now.running and isinstance(made := desk.results.get("release"), Made):
            chosen.set(made.file if isinstance(made.file, str) else None)

    @reactive.effect
    @reactive.event(input.which_release)
    def _choose() -> None:
        chosen.set(str(input.which_release()))

    @reactive.calc
    def kept() -> Kept | None:
        shelf = room.shelf()
        return next((one for one in shelf if one.name == chosen()), shelf[0] if shelf else None)

    @reactive.calc
    def lost() -> list[Release | Releases]:
        study = room.study()
        return [] if isinstance(study, Fault) or room.busy() else find_lost(study, room.account(), room.shelf())

    @render.ui
    def release_lost() -> Tag | None:
        found = lost()
        if not found:
            return None
        names = ", ".join(repr(one.ledger.id) for one in found if one.ledger is not None)
        return section(
            "Releases that the ledger keeps",
            say(f"The ledger has releases of this formula that no file of this folder holds: {names}. They were paid for: writing them here spends nothing."),
            tags.div(ui.input_action_button("fetch_releases", "Write them to this folder"), class_="buttons"),
        )  # fmt: skip

    @reactive.effect
    @reactive.event(input.fetch_releases)
    def _fetch() -> None:
        written = [attempt(partial(desk.keep, one)) for one in lost()] if desk.holds(room) else []
        for name in written:
            if isinstance(name, Fault):
                refused.set(name)
            else:
                chosen.set(name)

    some = steady(lambda: bool(room.shelf()))

    @render.ui
    def release_made() -> Tag | None:
        if not some():
            return None
        return section(
            "Releases in this folder",
            ui.output_ui("release_list"),
            ui.output_ui("release_kept"),
            tags.div(
                *(ui.download_button(f"download{ending.replace('.', '_')}", label) for ending, (label, _) in FORMS.items()),
                class_="buttons",
            ),
            ui.output_ui("release_report"),
        )  # fmt: skip

    @render.ui
    def release_list() -> Tag:
        return _list(room.shelf(), kept())

    @render.ui
    def release_kept() -> TagList | None:
        now, made = kept(), desk.results.get("release")
        job()
        if now is None:
            return None
        stored = isinstance(made, Made) and made.stored and made.file == now.name
        return _describe(now, stored)

    @render.ui
    def release_report() -> Tag | None:
        now = kept()
        page = None if now is None else attempt(now.release.to_html)
        if page is None or isinstance(page, Fault):
            return None if page is None else say(page.text, "bad")
        return tags.iframe(srcdoc=page, sandbox="", title="Report of the release", class_="report")

    for ending in FORMS:
        _serve_download(ending, kept)

    @render.ui
    def release_outside() -> Tag:
        name, anew = asked()
        return outside.same(
            in_shell(room.draft().name, name, anew), in_python(room.draft().name, name, anew), study=room.text()
        )

    def state() -> State:
        found, account = obstacle(), room.account()
        if found is not None:
            return State(
                "missing", "The study cannot be released yet.", f"What is missing is on the page {STEPS[found.step]}."
            )
        study = room.study()
        if (
            isinstance(account, Account)
            and not isinstance(study, Fault)
            and not allows(account.balance, release_mu(study))
        ):
            return State("missing", "The budget does not allow this release.", "See below what can be done.")
        if room.shelf():
            return State("done", "A release is in this folder.", "Next, see what is left of the budget.")
        return State("ready", "Nothing was released yet.", "Releasing spends the study's budget.")

    lead = input.lead_release

    @reactive.effect
    @reactive.event(lead)
    def _go() -> None:
        found = advice()
        if found is not None:
            room.go(found.step)

    return state


def _serve_download(ending: str, kept: Callable[[], Kept | None]) -> None:
    """Let the release that is shown be downloaded in one form."""

    def write() -> Iterator[str]:
        now = kept()
        if now is not None:
            yield forms_of(now.release)[ending]()

    def name() -> str:
        now = kept()
        return f"{'release' if now is None or now.fault else Path(now.name).stem}{ending}"

    write.__name__ = f"download{ending.replace('.', '_')}"
    render.download_button(filename=name, media_type=FORMS[ending][1])(write)


def _fault(job: Job | None) -> Fault | None:
    return None if job is None else job.fault


def _lead(found: Obstacle) -> TagList:
    button = ui.input_action_button("lead_release", f"Go to {STEPS[found.step]}")
    return TagList(say(found.text, found.kind), tags.div(button, class_="buttons"))


# --- what was made -----------------------------------------------------------------------------------


def _describe(kept: Kept, stored: bool) -> TagList:
    """Where a release is kept, and whether it was paid for now."""
    again = (
        "The ledger had this release already, so it is shown again and nothing was spent. "
        "To have it computed and paid for again, tick 'Pay anew' before you release."
    )
    return TagList(say(again) if stored else None, _describe_file(kept))


def _describe_file(kept: Kept) -> Tag:
    if kept.fault is None:
        return say(
            f"Written to {kept.name!r} in the study's folder. Whatever is shown here was released: it may be published.",
            "good",
        )
    elsewhere = "The ledger keeps it." if kept.release.ledger else "Nothing but this page holds it."
    return say(f"{kept.fault.text} {elsewhere} Download it before you stop the studio.", "bad")


def _list(shelf: Sequence[Kept], shown: Kept | None) -> Tag:
    """The releases of the folder. Only what a person chooses is sent: a list that sent its choice whenever it is drawn would choose an older release again."""
    options = [tags.option(_title(one), value=one.name, selected="" if one == shown else None) for one in shelf]
    return tags.div(
        tags.label("The newest first", for_="which_release", class_="control-label"),
        tags.select(*options, {"data-shiny-no-bind-input": ""}, id="which_release", class_="form-select"),
        class_="form-group shiny-input-container", style="width: 100%",
    )  # fmt: skip


def _title(kept: Kept) -> str:
    return show(f"{kept.name}, {kept.time}: {_name(kept.release)}")


def _name(release: Release | Releases) -> str:
    named = release.ledger is not None and release.ledger.id != release.formula
    return f"{release.formula} ({release.ledger.id})" if named and release.ledger else release.formula


def _progress(job: Job) -> Tag:
    known = {"max": str(job.total), "value": str(min(job.done, job.total))} if job.total else {}
    return tags.div(
        tags.label(f"{job.title} …", for_="release_bar"), tags.progress(id="release_bar", **known),
        class_="note", role="status",
    )  # fmt: skip


# --- the same outside --------------------------------------------------------------------------------


def in_shell(study: str, name: str | None = None, anew: bool = False, out: str = "release.json") -> str:
    """Shell lines that release a study and write its page."""
    options: list[Any] = [*(["--id", name] if name else []), *(["--again"] if anew else [])]
    fit = shlex.join(["dplinked", "fit", study, "--out", out, *options])
    return f"{fit}\n{shlex.join(['dplinked', 'report', out, '--out', str(Path(out).with_suffix('.html'))])}"


def in_python(study: str, name: str | None = None, anew: bool = False, out: str = "release.json") -> str:
    """Python lines that do the same."""
    options = [*([f"release_id={name!r}"] if name else []), *(["again=True"] if anew else [])]
    return "\n".join(
        [
            "import dplinked as dpl",
            "",
            f"study = dpl.Study.from_toml({study!r})",
            f"release = dpl.fit_study({', '.join(['study', 'study.data', *options])})",
            f"release.save({out!r})",
            f"release.to_html({str(Path(out).with_suffix('.html'))!r})",
        ]
    )
