"""The page *Release* shows what a release will cost, asks once, shows its progress, and then its report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.fitting import release_mu
from dplinked.ledger.account import releases_left
from dplinked.ledger.costs import cost
from dplinked.ledger.ledger import Ledger
from dplinked.privacy.calibration import round_down
from dplinked.release.release import Release
from dplinked.release.releases import Releases
from dplinked.studio.desk import Desk, Fault, Job, Made, attempt
from dplinked.studio.look import ask, panel, rows, say, section, show
from dplinked.studio.study_page import Room
from dplinked.study.study import Study


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "Release",
        "release",
        section("What it will cost", ui.output_ui("release_cost")),
        ui.output_ui("release_progress"),
        ui.output_ui("release_made"),
    )


def serve(input: Inputs, desk: Desk, room: Room, job: reactive.Value[Job | None]) -> None:
    """Give the page its behaviour. A release belongs to the desk: it goes on, and is kept, even if this window is closed."""
    fault = reactive.value[Fault | None](None)

    @reactive.calc
    def running() -> bool:
        now = job()
        return now is not None and now.running

    @reactive.calc
    def charge() -> list[tuple[str, str]] | Fault:
        running()  # when a release ends, the balance has changed
        study = room.study()
        return study if isinstance(study, Fault) else attempt(lambda: describe_charge(study))

    @render.ui
    def release_cost() -> Tag | TagList:
        facts = charge()
        if isinstance(facts, Fault):
            return say(facts.text, "bad")
        if running():
            return TagList(rows((), facts, "Charge"))
        return TagList(
            rows((), facts, "Charge"),
            ui.input_text("release_id", "Name of this release in the ledger (optional)", spellcheck="false"),
            ui.input_checkbox("pay_anew", "Pay anew, even if the ledger has seen this very request", width="100%"),
            tags.div(ui.input_action_button("ask_release", "Release …", class_="btn-primary"), class_="buttons"),
        )

    @reactive.effect
    @reactive.event(input.ask_release)
    def _ask() -> None:
        facts, study = charge(), room.study()
        if isinstance(facts, Fault) or isinstance(study, Fault):
            return
        yes = ui.input_action_button("do_release", "Spend it and release", class_="btn-primary")
        reminder = tags.p(
            f"What is spent is spent, whatever the result looks like. {_repeated(study, input.pay_anew())}"
        )
        ask("Make this release?", rows((), facts, "Charge"), reminder, yes=yes)

    @reactive.effect
    @reactive.event(input.do_release)
    def _start() -> None:
        ui.modal_remove()
        study = room.study()
        refused = (
            study
            if isinstance(study, Fault)
            else attempt(lambda: desk.start(study, input.release_id().strip() or None, again=bool(input.pay_anew())))
        )
        fault.set(refused)
        job.set(desk.job)

    @render.ui
    def release_progress() -> Tag | None:
        now = job()
        if now is not None and now.running:
            return _progress(now)
        refused = fault() or (None if now is None else now.fault)
        return None if refused is None else say(refused.text, "bad")

    @reactive.calc
    def chosen() -> Made:
        running()
        made = desk.made
        k = int(input.which_release()) if input.which_release.is_set() else len(made) - 1
        return made[min(k, len(made) - 1)]

    @render.ui
    def release_made() -> TagList | None:
        if running() or not desk.made:
            return None
        names = {str(k): f"{k + 1}. {_name(made.release)}" for k, made in enumerate(desk.made)}
        last = str(len(desk.made) - 1)
        return TagList(
            section(
                "Report",
                ui.input_select("which_release", "Releases since the studio was started", names, selected=last)
                if len(names) > 1 else None,
                ui.output_ui("release_kept"),
                tags.div(
                    ui.download_button("download_release", "Download release (JSON)"),
                    ui.download_button("download_report", "Download report"),
                    class_="buttons",
                ),
                ui.output_ui("release_report"),
            )
        )  # fmt: skip

    @render.ui
    def release_kept() -> TagList:
        return _describe(chosen())

    @render.ui
    def release_report() -> Tag:
        page = attempt(chosen().release.to_html)
        if isinstance(page, Fault):
            return say(page.text, "bad")
        return tags.iframe(srcdoc=page, sandbox="", title="Report of the release", class_="report")

    @render.download_button(filename="release.json", media_type="application/json")
    def download_release() -> Iterator[str]:
        yield chosen().release.to_json() + "\n"

    @render.download_button(filename="report.html", media_type="text/html")
    def download_report() -> Iterator[str]:
        yield chosen().release.to_html()


def describe_charge(study: Study) -> list[tuple[str, str]]:
    """What a release of this study costs, and what is left of the budget that it is charged to."""
    mu = release_mu(study)
    facts = [
        ("This release", f"epsilon = {study.epsilon:g}, delta = {study.delta:g}"),
        ("Who is protected", study.unit.describe()),
    ]
    if study.ledger is None:
        return [
            *facts,
            ("Charged to", "nobody's budget: the study names no ledger. Whoever makes several releases must add them."),
        ]
    before = Ledger(study.ledger, study.population, key=study.ledger_key).balance()
    after = replace(before, spent=before.spent + cost(mu))
    left = before.total - before.spent
    share = f"{100 * cost(mu) / left:.2f} % of what is left" if 0 < cost(mu) <= left else "more than is left"
    return [
        *facts,
        ("Charged to", f"the budget of {before.population}: {share}"),
        ("Left before", f"epsilon = {round_down(before.epsilon_left)} at delta = {before.delta:g}"),
        (
            "Left after",
            f"epsilon = {round_down(after.epsilon_left)} at delta = {after.delta:g}: {releases_left(after, mu):,} more releases like this one",
        ),
    ]


def _repeated(study: Study, anew: bool) -> str:
    """What happens to a request that the ledger has seen."""
    if study.ledger is None:
        return ""
    if anew:
        return "It is spent even if the ledger has seen this very request."
    return "If the ledger has seen this very request, its release is shown again and nothing is spent."


def _describe(made: Made) -> TagList:
    """Where a release is kept, and whether it was paid for now."""
    stored = (
        "The ledger had this release already, so it is shown again and nothing was spent. "
        "To have it computed and paid for again, tick 'Pay anew' before you release."
    )
    return TagList(say(stored) if made.stored else None, _describe_file(made))


def _describe_file(made: Made) -> Tag:
    if isinstance(made.file, str):
        return say(f"Written to {made.file!r} in the study's folder.", "good")
    elsewhere = "The ledger keeps it." if made.release.ledger else "Nothing but this page holds it."
    return say(f"{made.file.text} {elsewhere} Download it before you stop the studio.", "bad")


def _name(release: Release | Releases) -> str:
    return show(f"{release.formula} ({release.ledger.id})" if release.ledger else release.formula)


def _progress(job: Job) -> Tag:
    known = {"max": str(job.total), "value": str(min(job.done, job.total))} if job.total else {}
    return tags.div(
        tags.label(f"{job.title} …", for_="release_bar"), tags.progress(id="release_bar", **known),
        class_="note", role="status",
    )  # fmt: skip
