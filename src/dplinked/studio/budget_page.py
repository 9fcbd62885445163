"""The page *Budget* shows how much of the budget was spent, and how much is left."""

from __future__ import annotations

from collections.abc import Callable

from htmltools import Tag, TagList, tags
from shiny import Inputs, render, ui
from shiny.types import NavSetArg

from dplinked.errors import StudyError
from dplinked.fitting import release_mu
from dplinked.ledger.account import SHARES, describe_balance, spending_table
from dplinked.ledger.events import Event
from dplinked.ledger.ledger import Balance, Ledger
from dplinked.studio.desk import Fault, Job, attempt
from dplinked.studio.look import panel, rows, say, section, show
from dplinked.studio.study_page import Room
from dplinked.study.study import Study


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


def _read(study: Study) -> tuple[Study, Balance, list[Event]]:
    """Read the ledger that the study names."""
    if study.ledger is None:
        raise StudyError(
            "The study names no ledger, so nobody keeps count. Fill in ledger and population to have a budget."
        )
    ledger = Ledger(study.ledger, study.population, key=study.ledger_key)
    return study, ledger.balance(), ledger.events()


def _show(study: Study, balance: Balance, events: list[Event]) -> TagList:
    share = balance.spent / balance.total if balance.total else 1.0
    asked = f"the one that this study asks for (epsilon = {study.epsilon:g}, delta = {study.delta:g})"
    said = describe_balance(balance, release_mu(study), asked)
    listed, spent = spending_table(balance, events), f"{100 * share:.2f} % of the budget is spent."
    return TagList(
        tags.p(show(" ".join(said)), class_="lead"),
        tags.p(
            tags.label(spent, for_="budget_meter"), tags.meter(spent, id="budget_meter", min="0", max="1", value=f"{min(share, 1.0):.4f}"),
            class_="meter",
        ),
        section(
            "What was spent",
            tags.p("Nothing was spent yet.") if listed is None else rows(listed.header, listed.rows, listed.label),
            None if listed is None else tags.p(SHARES),
        ),
        rows((), [("Ledger head", balance.head)], f"The ledger of {show(balance.population)}"),
    )  # fmt: skip
