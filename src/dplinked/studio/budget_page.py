"""The page *Budget* opens the budget of a study, and shows what was spent of it, by whomever, and what is left."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from htmltools import Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.check.receipt import keep_receipt, was_checked
from dplinked.fitting import release_mu
from dplinked.ledger.account import SHARES, describe_epsilon_left, describe_left, describe_size, spending_table
from dplinked.ledger.balance import Balance
from dplinked.ledger.steward import (
    Account,
    Place,
    data_of,
    events_as_lines,
    open_budget,
    register,
    verify_with,
)
from dplinked.studio import outside
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import Changes, Draft, number_from
from dplinked.studio.files_page import as_python
from dplinked.studio.form import number_fault, number_field
from dplinked.studio.look import group, panel, prose, render_to, rows, say, section, show
from dplinked.studio.path import State
from dplinked.studio.room import NOT_OPENED, Held, Question, Room, Side
from dplinked.studio.study_page import say_incomplete
from dplinked.study.study import Study
from dplinked.study.typed import read_number

_FIELDS = {"population": "", "url": "budget.db", "key": "", "epsilon": 3.0, "delta": 1e-6}
_NUMBERS = ("epsilon", "delta")


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "budget",
        ui.output_ui("budget_told"),
        ui.output_ui("budget_form"),
        ui.output_ui("budget_shown"),
        ui.output_ui("budget_acts"),
        ui.output_ui("budget_verified"),
        ui.output_ui("budget_outside"),
    )


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour. What other programs do to the ledger appears by itself, and empties no field."""
    desk = room.desk
    closed = Held[bool](False)
    is_open = Held[bool](False)
    told = Held[Fault | None](None)
    verified = Held[tuple[str, str] | None](None)
    question = Question[dict[str, Any]](room)

    @reactive.effect
    def _follow() -> None:
        """The form is shown anew only if a budget was opened meanwhile, and never while it is being filled in."""
        account = room.account()
        for value, now in (
            (closed, account is None or account == NOT_OPENED),
            (is_open, isinstance(account, Account)),
        ):
            if value() != now:
                value.set(now)

    @render.ui
    def budget_told() -> TagList:
        now = room.job()
        failed = now.fault if now is not None and now.kind == "budget" else None
        account = room.account()
        broken = account if isinstance(account, Fault) and account != NOT_OPENED else None
        fault, opening = told() or failed or broken, now is not None and now.kind == "budget" and now.running
        return TagList(
            say("Reading the data, to know it again …") if opening else None,
            None if fault is None or opening else say(fault.text, "bad"),
        )

    # --- opening ---------------------------------------------------------------------------------

    @render.ui
    def budget_form() -> Tag | None:
        if not closed():
            return None
        with reactive.isolate():
            draft, kept = Draft(0, "", room.text()), room.kept("budget")
        named = {
            "population": draft.get("ledger", "population"),
            "url": draft.get("ledger", "url"),
            "key": draft.get("ledger", "key"),
        }
        return _form({**_FIELDS, **kept, **{name: value for name, value in named.items() if value}})

    def filled() -> dict[str, Any] | None:
        fields = {name: input[f"budget_{name}"] for name in _FIELDS}
        if not all(field.is_set() for field in fields.values()):
            return None
        return {name: number_from(field()) if name in _NUMBERS else field() for name, field in fields.items()}

    for name in _NUMBERS:
        _serve_fault(f"budget_{name}", input)

    @reactive.effect
    def _keep() -> None:
        now = filled()
        if now is not None:
            with reactive.isolate():
                room.keep("budget", **{name: value or None for name, value in now.items()})

    @render.ui
    def budget_means() -> Tag | None:
        now, study = filled(), room.study()
        if now is None or any(isinstance(now[name], str) for name in _NUMBERS):
            return None
        mu = None if isinstance(study, Fault) else attempt(lambda: release_mu(study))
        said = attempt(
            lambda: describe_size(
                float(now["epsilon"] or 0), float(now["delta"] or 0), mu if isinstance(mu, float) else None
            )
        )
        return say(said.text, "bad") if isinstance(said, Fault) else tags.p(prose(said))

    def files() -> list[Any]:
        """The two files that are linked here: registered, so that the links' accuracy can be paid from the budget."""
        sides: tuple[Side, ...] = ("left", "right") if room.kept("files").get("way", "two") == "two" else ()
        return [file for side in sides if (file := room.source(side)) is not None]

    @reactive.effect
    @reactive.event(input.ask_open)
    def _ask() -> None:
        now, study = filled() or {}, room.study()
        missing = _lacking(now)
        if missing is None and isinstance(study, Fault) and not files():
            missing = f"A budget is opened with data: choose files on the page Files, or complete the study. {say_incomplete(room)}"
        told.set(None if missing is None else Fault(missing))
        if missing is not None:
            return
        yes = ui.input_action_button("do_open", "Open it for good", class_="btn-primary")
        question.ask(
            now,
            "Open this budget?",
            tags.p(
                prose(
                    f"All that is ever released about {now['population']} from data registered here will spend at most epsilon = {now['epsilon']:g} at delta = {now['delta']:g}."
                ),
                class_="lead",
            ),
            tags.p("A budget is opened once. It cannot be taken back, made larger or begun anew."),
            yes=yes,
        )

    @reactive.effect
    @reactive.event(input.do_open)
    def _open() -> None:
        now, study, unlinked = question.answer(), room.study(), files()
        if now is None:
            return
        text = attempt(lambda: Draft(0, "", room.text()).changed(_changes(now)))
        place = text if isinstance(text, Fault) else attempt(lambda: Place.of_text(text, desk.folder))
        if not isinstance(place, Place):
            told.set(place)
            return
        epsilon, delta = float(now["epsilon"]), float(now["delta"])
        whole = None if isinstance(study, Fault) else study
        begun = attempt(
            lambda: desk.start(
                "budget", lambda _: open_budget(place, whole, epsilon=epsilon, delta=delta, unlinked=unlinked)
            )
        )
        told.set(begun)
        if begun is None:
            _name_budget(room, str(text))

    # --- what was spent --------------------------------------------------------------------------

    @render.ui
    def budget_shown() -> Tag | TagList | None:
        account, study = room.account(), room.study()
        return _show(account, study, room.place()) if isinstance(account, Account) else None

    @render.ui
    def budget_acts() -> Tag | None:
        if not is_open():
            return None
        return tags.div(
            ui.input_action_button("verify_ledger", "Verify the ledger"),
            ui.input_action_button("register_data", "Register the data"),
            ui.download_button("export_ledger", "Download all events (JSON lines)"),
            class_="buttons",
        )

    @reactive.effect
    @reactive.event(input.verify_ledger)
    def _verify() -> None:
        place, heads = room.place(), _heads(room)
        if not isinstance(place, Place):
            return
        found = attempt(lambda: verify_with(place.budget(), heads))
        at = datetime.now().astimezone().strftime("%H:%M:%S")
        verified.set((found.text, "bad") if isinstance(found, Fault) else (f"{found[1]} (Verified at {at}.)", "good"))

    @render.ui
    def budget_verified() -> Tag | None:
        found = verified()
        return None if found is None else say(*found)

    @reactive.effect
    @reactive.event(input.register_data)
    def _register() -> None:
        place, study, unlinked = room.place(), room.study(), files()
        whole = None if isinstance(study, Fault) else study
        linked = [] if whole is None else data_of(whole)
        if isinstance(place, Place) and desk.holds(room):
            told.set(attempt(lambda: desk.start("budget", lambda _: register(place.budget(), whole, linked, unlinked))))

    @render.download_button(filename="ledger.jsonl", media_type="application/jsonl")
    def export_ledger() -> Iterator[str]:
        account = room.account()
        if isinstance(account, Account):
            yield events_as_lines(account.events)

    @render.ui
    def budget_outside() -> Tag:
        now = filled() if closed() else None
        if now is not None:  # what cannot be read is said beside its field
            now |= {name: 0 for name in _NUMBERS if isinstance(now[name], str)}
        name = room.draft().name
        unlinked = [as_python(file, desk.folder) for file in files()]
        return outside.same(in_shell(name, now), in_python(name, now, unlinked), study=room.text())

    def state() -> State:
        account = room.account()
        if isinstance(account, Account):
            return State(
                "done",
                "The study's releases are charged to a budget.",
                "It is the last step: what was released may be published."
                if any(event.kind == "release" for event in account.events)
                else "Nothing was released from it yet: go back to Release.",
            )
        if account is None:
            return State("ready", "The study names no budget, so nobody keeps count.", "Open one before you release.")
        if account == NOT_OPENED:
            return State("missing", NOT_OPENED.text, "Open it here.")
        return State("missing", "The study's budget cannot be used.", "See below.")

    return state


# --- opening -----------------------------------------------------------------------------------------


def _serve_fault(id: str, input: Inputs) -> None:
    """Say beside a field for a number that what stands there cannot be read."""

    @render_to(f"{id}_fault")
    def _fault() -> Tag | None:
        return number_fault(input[id]()) if input[id].is_set() else None


def _form(values: Mapping[str, Any]) -> Tag:
    return group(
        "Open a budget",
        tags.p("A budget limits all that is ever released about the same people, whoever releases it and from whichever file."),
        tags.div(
            ui.input_text("budget_population", "Who these people are", values["population"], placeholder="households", spellcheck="false"),
            ui.input_text("budget_url", "The ledger's file, or its address", values["url"], spellcheck="false"),
            *(
                tags.div(number_field(f"budget_{name}", f"{name.title()} of the whole budget", values[name]), ui.output_ui(f"budget_{name}_fault"), class_="asked")
                for name in _NUMBERS
            ),
            class_="pair",
        ),
        ui.input_text("budget_key", "The ledger's key file (optional)", values["key"], placeholder="beside the ledger", spellcheck="false"),
        tags.p(
            "By the key the ledger knows data again. Without it nothing can be registered or released any more, and whoever has it can try guesses at the data: back it up, show it "
            "to nobody. A ledger in PostgreSQL needs its file named.",
            class_="hint",
        ),
        ui.output_ui("budget_means"),
        tags.div(ui.input_action_button("ask_open", "Open this budget …", class_="btn-primary"), class_="buttons"),
    )  # fmt: skip


def _name_budget(room: Room, text: str) -> None:
    """Let the study name its budget. A study that is saved is saved anew, so that no command releases from a file without it."""
    with reactive.isolate():
        draft, saved, study = room.draft(), room.saved(), room.study()
        data = None if isinstance(study, Fault) else study.data
        looked = saved is not None and data is not None and was_checked(saved, data)
        written = Fault("") if saved is None else attempt(lambda: room.desk.write(draft.name, text, draft.saved))
        if saved is not None and written is None and looked:  # a budget changes nothing of what was seen in the rows
            keep_receipt(saved, data)
        room.load(text, draft.name, text if written is None else draft.saved)


def _lacking(fields: Mapping[str, Any]) -> str | None:
    """What a form lacks, in words."""
    words = {"population": "who these people are", "url": "the ledger's file", "epsilon": "epsilon", "delta": "delta"}
    lacking = [said for name, said in words.items() if not str(fields.get(name) or "").strip()]
    if lacking:
        return f"Fill in {' and '.join(lacking)}."
    unread = [str(fields[name]) for name in _NUMBERS if isinstance(fields[name], str)]
    told = attempt(lambda: read_number(unread[0])) if unread else None
    return told.text if isinstance(told, Fault) else None


def _changes(fields: Mapping[str, Any]) -> Changes:
    """What a budget changes in the study's text."""
    return {("ledger", name): str(fields.get(name) or "").strip() for name in ("url", "population", "key")}


# --- what was spent ----------------------------------------------------------------------------------


def _show(account: Account, study: Study | Fault, place: Place | Fault | None) -> TagList:
    balance, mu = account.balance, None if isinstance(study, Fault) else release_mu(study)
    share = balance.spent / balance.total if balance.total else 1.0
    listed, spent = spending_table(balance, account.events), f"{100 * share:.2f} % of the budget is spent."
    return TagList(
        None if account.refusal is None else say(f"{account.refusal} Here: the button below registers it.", "warning"),
        tags.p(prose(describe_left(balance, mu)), class_="lead"),
        tags.p(
            tags.label(spent, for_="budget_meter"), tags.meter(spent, id="budget_meter", min="0", max="1", value=f"{min(share, 1.0):.4f}"),
            class_="meter",
        ),
        section(
            "What was spent",
            tags.p("Nothing was spent yet.") if listed is None else rows(listed.header, listed.rows, listed.label),
            None if listed is None else tags.p(SHARES, class_="hint"),
        ),
        rows((), _facts(balance, place), f"The ledger of {show(balance.population)}"),
    )  # fmt: skip


def _facts(balance: Balance, place: Place | Fault | None) -> list[tuple[str, str]]:
    left = f"one release of epsilon = {describe_epsilon_left(balance)}, or several smaller ones"
    facts = [
        ("Whose budget it is", show(balance.population)),
        ("The whole budget", f"epsilon = {balance.epsilon:g} at delta = {balance.delta:g}"),
        ("Left", left if balance.spent < balance.total else "nothing"),
        ("Its head, a fingerprint of all that was spent", balance.head),
    ]
    if isinstance(place, Place):
        address, key = str(place.ledger), place.ledger_key
        named = "beside the ledger, under its name and .key" if key is None else show(Path(key).name)
        facts += [("Ledger", "a database" if "://" in address else show(Path(address).name)), ("Its key file", named)]
    return facts


def _heads(room: Room) -> list[str]:
    """The heads that releases of this folder printed, of those that were charged to the study's budget."""
    account = room.account()
    if not isinstance(account, Account):
        return []
    entries = [one.release.ledger for one in room.shelf()]
    return [entry.head for entry in entries if entry is not None and entry.population == account.balance.population]


# --- the same outside --------------------------------------------------------------------------------


def in_shell(study: str, opening: Mapping[str, Any] | None = None) -> str:
    """Shell lines that show a study's budget; with `opening`, that open it first."""
    first = "" if opening is None else (
        f"dplinked budget init {shlex.quote(study)} --epsilon {opening['epsilon'] or 0:g} --delta {opening['delta'] or 0:g}\n"
    )  # fmt: skip
    name = shlex.quote(study)
    return f"{first}dplinked budget show {name}\ndplinked budget verify {name}\ndplinked budget export {name}"


def in_python(study: str, opening: Mapping[str, Any] | None = None, unlinked: Sequence[str] = ()) -> str:
    """Python lines that do the same; a budget that is opened registers files that are yet to be linked, too."""
    lines = ["import dplinked as dpl", "", f"study = dpl.Study.from_toml({study!r})"]
    if opening is not None:
        lines += [
            f"ledger = dpl.Ledger.create(study.ledger, study.population, epsilon={opening['epsilon'] or 0:g}, delta={opening['delta'] or 0:g}, key=study.ledger_key)",
            "ledger.register(study.data, linkage=study.linkage, unit=study.unit)",
            *(f"ledger.register({file})" for file in unlinked),
        ]
    else:
        lines.append("ledger = dpl.Ledger(study.ledger, study.population, key=study.ledger_key)")
    return "\n".join([*lines, "print(ledger.verify())"])
