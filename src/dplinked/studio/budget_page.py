"""The page *Budget* shows how much of the budget was spent, and how much is left."""

from __future__ import annotations

from collections.abc import Callable

from htmltools import Tag, TagList, tags
from shiny import Inputs, render, ui
from shiny.types import NavSetArg

from dplinked.errors import StudyError
from dplinked.ledger.costs import UNITS
from dplinked.ledger.events import Event
from dplinked.ledger.ledger import Balance, Ledger
from dplinked.privacy.calibration import round_down
from dplinked.studio.desk import Fault, Job, attempt
from dplinked.studio.look import panel, rows, say, section, show
from dplinked.studio.study_page import Room
from dplinked.study.study import Study

_KINDS = {"charge": "release", "booked": "booked", "failed": "failed; its charge stays"}


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "Budget",
        "budget",
        tags.p("What the ledger that the study names holds about its population."),
        tags.div(ui.input_action_button("read_ledger", "Read again"), class_="buttons"),
        ui.output_ui("budget_shown"),
    )


def serve(input: Inputs, room: Room, job: Callable[[], Job | None]) -> None:
    """Give the page its behaviour. The ledger is read again whenever a release is finished."""

    @render.ui
    def budget_shown() -> Tag | TagList:
        input.read_ledger()
        now, study = job(), room.study()
        if now is not None and now.running:
            return say("A release is running. The budget is shown when it is done.")
        if isinstance(study, Fault):
            return say(study.text, "bad")
        found = attempt(lambda: _read(study))
        return say(found.text, "bad") if isinstance(found, Fault) else _show(*found)


def _read(study: Study) -> tuple[Balance, list[Event]]:
    """Read the ledger that the study names."""
    if study.ledger is None:
        raise StudyError(
            "The study names no ledger, so nobody keeps count. Fill in ledger and population to have a budget."
        )
    ledger = Ledger(study.ledger, study.population, key=study.ledger_key)
    return ledger.balance(), ledger.events()


def _show(balance: Balance, events: list[Event]) -> TagList:
    share = balance.spent / balance.total if balance.total else 1.0
    facts = [
        ("Population", balance.population),
        ("Whole budget", f"epsilon = {balance.epsilon:g}, delta = {balance.delta:g}"),
        ("Left", f"one release of epsilon = {round_down(balance.epsilon_left)} at delta = {balance.delta:g}"),
        ("Ledger head", balance.head),
    ]
    listed = [
        (event.time[:19].replace("T", " "), _KINDS[event.kind], event.release or "", f"{event.units / UNITS:.3g}", f"{100 * event.units / balance.total:.2f} %")
        for event in events
        if event.kind in _KINDS
    ]  # fmt: skip
    header = ("time (UTC)", "what", "name", "rho", "of the budget")
    spent = f"{100 * share:.2f} % of the budget is spent."
    return TagList(
        tags.p(
            tags.label(spent, for_="budget_meter"), tags.meter(spent, id="budget_meter", min="0", max="1", value=f"{min(share, 1.0):.4f}"),
            class_="meter",
        ),
        rows((), facts, f"The budget of {show(balance.population)}"),
        section("Releases", rows(header, listed, "Releases and bookings") if listed else tags.p("Nothing was spent yet.")),
    )  # fmt: skip
