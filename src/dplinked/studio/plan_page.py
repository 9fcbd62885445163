"""The page *Plan* shows which intervals to expect from a release. It uses public values only: of the data, the number of rows at most."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from htmltools import HTML, Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.data.format import File, split_file
from dplinked.errors import StudyError
from dplinked.linkage import ELE
from dplinked.plan.document import say_best_levers
from dplinked.plan.moves import count_checked
from dplinked.plan.pictures import AXES, draw_slope, find_curve, has_curves, list_places
from dplinked.plan.planning import Plan, plan_study
from dplinked.plan.units import say_widths
from dplinked.report.numbers import format_number
from dplinked.studio import outside
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import Changes, number_from
from dplinked.studio.files_page import facts_of
from dplinked.studio.form import ask, number_fault, number_field
from dplinked.studio.look import panel, prose, render_to, rows, say, section, show
from dplinked.studio.path import State
from dplinked.studio.room import Room, steady
from dplinked.studio.study_page import say_incomplete
from dplinked.study.family import RATIOS
from dplinked.study.study import Study
from dplinked.study.typed import read_number

_LARGEST = 5.0  # the slider's largest epsilon, unless the study's own is larger
_ROWS, _R2, _SUBGROUP = 10_000, 0.5, 0.1  # guessed, as long as nothing is said
_USUAL = {"r_squared": _R2, "subgroup": _SUBGROUP}
_SAID = 6  # slopes that are told in words
_DRAWN = ("epsilon", "rows", "checked", "bounds")


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "plan",
        tags.p("Move something, and see what intervals to expect. Nothing is spent, nothing of the data is used but the number of rows, which is public, and the study stays as it is until you take the settings over."),
        tags.div(
            tags.div(section("Guesses", ui.output_ui("plan_guesses")), ui.output_ui("plan_settings")),
            tags.div(ui.output_ui("plan_expected"), ui.output_ui("plan_which"), *(ui.output_ui(f"plan_{name}") for name in _DRAWN), ui.output_ui("plan_notes")),
            class_="split plan",
        ),
        ui.output_ui("plan_outside"),
    )  # fmt: skip


def serve(input: Inputs, room: Room) -> Callable[[], State]:
    """Give the page its behaviour. Sliders belong to one text of the study; after a change there are new ones."""
    homes: dict[str, Any] = {}

    @reactive.calc
    def tag() -> str:
        return hashlib.sha256(room.text().encode()).hexdigest()[:12]

    def moved(name: str) -> Any:
        """The value of a slider that was moved, otherwise None: its first position may be a rounded value of the study."""
        value = input[f"{name}_{tag()}"]
        return value() if value.is_set() and homes.setdefault(f"{name}_{tag()}", value()) != value() else None

    @reactive.calc
    def planned() -> Study | Fault:
        """The study with the settings of the sliders."""
        study = room.study()
        return study if isinstance(study, Fault) else attempt(lambda: replace(study, **_moved_settings(moved, study)))

    def count_now() -> int | None:
        """The number of rows of the file, as it is now."""
        room.files()
        study = room.study()
        return None if isinstance(study, Fault) else _count_rows(study)

    counted = steady(count_now)

    def guess() -> Mapping[str, Any]:
        counted()
        return guesses_of(room)

    guesses = steady(guess)
    known: list[tuple[Study, Mapping[str, Any], Plan | Fault]] = []  # the last plans, and what they are of

    def plan_of(study: Study | Fault) -> Plan | Fault:
        if isinstance(study, Fault):
            return study
        asked = guesses()
        for one, given, plan in known:
            if one is study and given == asked:
                return plan
        found = attempt(lambda: plan_study(study, epsilons=[study.epsilon], **asked))
        known[:] = [(study, asked, found), *known[:3]]
        return found

    @reactive.calc
    def own() -> Plan | Fault:
        """The plan of the study as it is."""
        return plan_of(room.study())

    @reactive.calc
    def plan() -> Plan | Fault:
        """The plan with the sliders' settings."""
        study, wanted = room.study(), planned()
        return own() if wanted == study else plan_of(wanted)

    @reactive.effect
    def _keep() -> None:
        """Keep the guesses: they are no settings of the study. A number of rows that nobody typed follows the file."""
        for field, name in (
            (rows_field(), "rows"),
            ("plan_r2", "r2"),
            ("plan_mean", "mean"),
            ("plan_subgroup", "subgroup"),
        ):
            if input[field].is_set():
                value = number_from(input[field]())
                if isinstance(value, str) or value is None or (name == "rows" and _rows_fault(value)):
                    continue
                said = (
                    {name: value} if name != "rows" else {name: value, "typed": value != (counted() or _ROWS) or None}
                )
                with reactive.isolate():
                    kept = room.kept("plan")
                    if any(kept.get(key) != now for key, now in said.items()):
                        room.keep("plan", **said)

    def rows_field() -> str:
        """Each number that a file has gets a field of its own, so that what another one sent is not taken for typed."""
        return f"plan_count_{counted() or 0}"

    @reactive.calc
    def asked() -> tuple[str, bool]:
        """What guesses the study needs: its family, and whether it has a subgroup."""
        study = room.study()
        return ("linear", False) if isinstance(study, Fault) else (study.family, study.where is not None)

    @render.ui
    def plan_guesses() -> TagList:
        family, subgroup = asked()
        field = rows_field()
        with reactive.isolate():
            (count,) = guesses_of(room)["counts"]
            return _guess_fields(family, subgroup, {**room.kept("plan"), "rows": count}, field)

    @render.ui
    def plan_count_fault() -> Tag | None:
        typed = input[rows_field()]() if input[rows_field()].is_set() else None
        told = None if isinstance(number_from(typed), str) else _rows_fault(number_from(typed))
        return tags.p(told, class_="fault", role="alert") if told else number_fault(typed)

    @render.ui
    def plan_mean_fault() -> Tag | None:
        return number_fault(input.plan_mean()) if input.plan_mean.is_set() else None

    @render.ui
    def plan_settings() -> TagList | None:
        study = room.study()
        return None if isinstance(study, Fault) else _controls(study, tag())

    @render.ui
    def plan_expected() -> Tag | TagList:
        if isinstance(room.study(), Fault):
            return say(say_incomplete(room), "bad")
        study, before, found = planned(), own(), plan()
        if isinstance(found, Fault) or isinstance(before, Fault) or isinstance(study, Fault):
            fault = next(one for one in (before, found, study) if isinstance(one, Fault))
            return say(fault.text, "bad")
        return _expected(study, before, found)

    @reactive.calc
    def names() -> list[str]:
        found = plan()
        return [] if isinstance(found, Fault) else [row.name for row in found.slopes_at_point]

    @render.ui
    def plan_which() -> Tag | None:
        listed = names()
        if len(listed) < 2:
            return None
        return ui.input_select("plan_slope", "What is drawn", {name: show(name) for name in listed})

    def slope() -> str:
        chosen = input.plan_slope() if input.plan_slope.is_set() else ""
        return str(chosen) if chosen in names() else names()[0]

    for quantity in _DRAWN:
        _serve_picture(quantity, plan, own, slope)

    @render.ui
    def plan_notes() -> Tag | None:
        found = plan()
        if isinstance(found, Fault):
            return None
        return tags.div(*(say(limit) for limit in found.limits), tags.p(found.assumptions, class_="hint"))

    @render.ui
    def plan_outside() -> Tag:
        study = room.study()
        epsilon = 1.0 if isinstance(study, Fault) else study.epsilon
        return outside.same(*in_lines(room.draft().name, epsilon, guesses()), study=room.text())

    @reactive.effect
    @reactive.event(input.use_plan)
    def _use() -> None:
        study, wanted = room.study(), planned()
        if not (isinstance(study, Fault) or isinstance(wanted, Fault)):
            room.change(_changes(study, wanted))
            room.go("study")

    def state() -> State:
        study = room.study()
        if isinstance(study, Fault):
            return State("missing", "The study is not complete yet.", "Go back to Study: it says what is missing.")
        if not room.kept("plan").get("rows"):
            return State("ready", "Say about how many rows there are.", "Then see what to expect.")
        if planned() != study:
            return State(
                "ready", "Settings were moved and not taken over.", "Take them into the study, or release as it is."
            )
        return State("done", "What to expect is shown below.", "Next, release.")

    return state


def _serve_picture(
    quantity: str, plan: Callable[[], Plan | Fault], own: Callable[[], Plan | Fault], slope: Callable[[], str]
) -> None:
    """Draw half-widths over one quantity, beside a table, anew only if another slope or plan is to be shown: the list of slopes sends its first choice back."""
    shown: list[tuple[Plan, Plan, str, Tag]] = []

    @render_to(f"plan_{quantity}")
    def _picture() -> Tag | None:
        found, before = plan(), own()
        if isinstance(found, Fault) or isinstance(before, Fault):
            return None
        name = slope()
        drawn = "review" if quantity == "checked" and has_curves(found, "review") else quantity
        if not (shown and shown[0][0] is found and shown[0][1] is before and shown[0][2] == name):
            shown[:] = [(found, before, name, _picture_of(found, before, name, drawn))]
        return shown[0][3]


def _picture_of(plan: Plan, own: Plan, name: str, quantity: str) -> Tag:
    axis, curve = AXES[quantity], find_curve(plan, name, quantity)
    if curve is None:
        return section(axis.title, tags.p(axis.unvaried))
    drawn = attempt(lambda: draw_slope(plan, name, quantity, own))
    picture = say(drawn.text, "bad") if isinstance(drawn, Fault) else tags.figure(HTML(drawn))
    header = (axis.short, "95 % interval", "without noise")
    table = rows(header, list_places(curve), f"{name}, {axis.title.lower()}")
    return section(axis.title, tags.div(picture, tags.div(table), class_="beside-table"), tags.p(axis.meaning, class_="hint"))  # fmt: skip


def _count_rows(study: Study) -> int | None:
    """The number of rows, which is public, if they are in a file that is there."""
    data = study.data
    if not isinstance(data, (Path, File)) or not split_file(data)[0].is_file():
        return None
    found = attempt(lambda: facts_of(data))
    return None if isinstance(found, Fault) else found.rows


def _rows_fault(count: Any) -> str | None:
    """What is wrong with a number of rows; nothing as long as none is said."""
    fits = count is None or (isinstance(count, int) and count > 0)
    return None if fits else "How many rows must be a whole number, 1 or more."


def _guess_fields(family: str, subgroup: bool, kept: Mapping[str, Any], rows_field: str) -> TagList:
    count = number_field(rows_field, "Number of rows (public)", kept["rows"])
    fields = [
        tags.div(count, ui.output_ui("plan_count_fault"), class_="asked"),
        ask("plan/r2", ui.input_slider("plan_r2", "R² of the model", 0.0, 0.95, _R2 if kept.get("r2") is None else kept["r2"], step=0.05), term="r2"),
    ]  # fmt: skip
    if family != "linear":
        label, usual = ("Share of rows with the event", 0.1) if family == "logistic" else ("Mean count", 1.0)
        mean = number_field("plan_mean", label, kept.get("mean") or usual)
        fields.append(tags.div(mean, ui.output_ui("plan_mean_fault"), class_="asked"))
    if subgroup:
        share = kept.get("subgroup") or _SUBGROUP
        fields.append(ui.input_slider("plan_subgroup", "Share of rows that the condition holds for", 0.01, 1.0, share, step=0.01))  # fmt: skip
    return TagList(*fields)


def _controls(study: Study, tag: str) -> TagList:
    """Sliders at the study's own settings; what may be taken over apart from what is a fact about the links."""
    exponent, epsilon = round(-math.log10(study.delta)), study.epsilon
    shown: list[Tag] = [
        ui.input_slider(f"epsilon_{tag}", "Epsilon", min(0.05, epsilon), max(_LARGEST, epsilon), epsilon, step=0.01),
        ui.input_slider(f"delta_{tag}", "Delta", min(3, exponent), max(12, exponent), exponent, pre="1e-"),
    ]
    for k, (name, (low, high)) in enumerate(study.prepare()[0].bounds.items()):
        width = high - low
        least = 0.0 if 0 <= low <= width else low - width
        label = f"Bounds of {show(name)}" + (f", in {show(study.units[name])}" if name in study.units else "")
        ends = ui.input_slider(f"bounds{k}_{tag}", label, least, high + width, (low, high), step=_step(width))
        shown.append(ends)
    use = ui.input_action_button("use_plan", "Take these settings into the study", class_="btn-primary")
    settings = section("Settings", *shown, tags.div(use, class_="buttons"))
    links = _link_controls(study.linkage, tag) if isinstance(study.linkage, ELE) else []
    why = tags.p(
        "How good links are is found out by checking them, not chosen: this stays on this page.", class_="hint"
    )
    return TagList(settings, section("What if links were better, or better known?", why, *links) if links else None)


def _link_controls(linkage: ELE, tag: str) -> list[Tag]:
    declared = linkage.public
    accuracy, checked = declared.mean_accuracy, count_checked(declared)
    least = min(0.5, accuracy)
    shown = [ui.input_slider(f"accuracy_{tag}", "Share of links that are right", least, 1.0, accuracy, step=0.001)]
    if checked:
        shown.append(number_field(f"checked_{tag}", "Links that were checked", round(checked)))
    elif declared.accuracy_variance(None):
        shown.append(number_field(f"times_{tag}", "Times as many links checked", 1))
    return shown


def _moved_settings(moved: Callable[[str], Any], study: Study) -> dict[str, Any]:
    """The settings of the study that change with the sliders that were moved."""
    changes: dict[str, Any] = {}
    if (epsilon := moved("epsilon")) is not None:
        changes["epsilon"] = float(epsilon)
    if (exponent := moved("delta")) is not None:
        changes["delta"] = 10.0 ** -int(exponent)
    if isinstance(study.linkage, ELE):
        accuracy = moved("accuracy")
        checked, times = (read_number(str(typed)) if (typed := moved(name)) else None for name in ("checked", "times"))
        if any(one is not None for one in (accuracy, checked, times)):
            changes["linkage"] = _moved_links(study.linkage, accuracy, checked, times)
    bounds = {name: moved(f"bounds{k}") for k, name in enumerate(study.prepare()[0].bounds)}
    ends = {name: [float(end) for end in one] for name, one in bounds.items() if one is not None}
    return {**changes, "bounds": {**study.bounds, **ends}} if ends else changes


def _moved_links(linkage: ELE, accuracy: float | None, checked: float | None, times: float | None) -> ELE:
    """The same links with another accuracy, found by checking as many of them, or by more; where nobody said how many, so many times as many."""
    declared = linkage.public
    mean = declared.mean_accuracy
    number = count_checked(declared) if checked is None else max(1, checked)
    if times is not None and not times > 0.0:
        raise StudyError("How many times as many links are checked must be a number above 0.")
    error = mean * math.sqrt((declared.accuracy_variance(None) or 0.0) / (times or 1.0))
    known = {"checked": number} if number else {"accuracy_error": error or None}
    return ELE(mean if accuracy is None else float(accuracy), linkage.block, source="public", carriers=linkage.carriers, **known)  # fmt: skip


def _changes(before: Study, after: Study) -> Changes:
    """The changes to the study's text that its new settings make. How good links are is not among them."""
    changes: Changes = {
        ("privacy", name): getattr(after, name)
        for name in ("epsilon", "delta")
        if getattr(after, name) != getattr(before, name)
    }
    return changes | {
        ("bounds", name): list(ends) for name, ends in after.bounds.items() if list(ends) != list(before.bounds[name])
    }


def _expected(study: Study, before: Plan, found: Plan) -> Tag:
    """What to expect in words, and as a table beside the study as it is."""
    point, moved = found.point, found is not before
    at = f"With ε = {point.epsilon:g}, δ = {found.delta:g} and {point.count:,} rows"
    said, best = say_widths(study, found), say_best_levers(found)
    more = [f"The table has {len(said) - _SAID} more."] if len(said) > _SAID else []
    lead = [tags.li(show(text)) for text in [*said[:_SAID], *more]]
    return section(
        "What to expect",
        tags.p(prose(f"{at}, in 95 % intervals:")),
        tags.ul(*lead, class_="expected"),
        tags.p(tags.strong(show(best[0]))) if best else None,
        tags.div(_table(before, found, moved=moved)),
    )


def _table(before: Plan, found: Plan, *, moved: bool) -> HTML:
    """Half-widths and what they are made of; those of the study as it is beside them if something was moved."""
    ratio = RATIOS.get(found.family)
    known = {row.name: row for row in before.rows}
    header = ["coefficient", *(["as it is"] if moved else []), "95 % interval"]
    header += [*([] if ratio is None else [f"of the {ratio}"]), "sampling", "linkage", "privacy"]
    cells = []
    for row in found.rows:
        old = known.get(row.name, row)
        factor = row.ratio()
        ratios = (
            [] if ratio is None else ["" if row.name == "Intercept" else f"×÷{format_number(factor, factor - 1.0)}"]
        )
        parts = [_figures(part) for part in (row.sampling, row.linkage, row.privacy)]
        was = [f"±{_figures(old.half_width())}"] if moved else []
        cells.append([row.name, *was, f"±{_figures(row.half_width())}", *ratios, *parts])
    return rows(header, cells, "Expected intervals, and the standard errors that make them")


def guesses_of(room: Room) -> dict[str, Any]:
    """The guesses that a plan needs; those that were not said are the usual ones."""
    kept = room.kept("plan")
    study = room.study()
    counted = None if isinstance(study, Fault) or kept.get("typed") else _count_rows(study)
    line = isinstance(study, Fault) or study.family == "linear"
    return {
        "counts": [counted or kept.get("rows") or _ROWS],
        "r_squared": _R2 if kept.get("r2") is None else kept["r2"],
        "response_mean": None if line else kept.get("mean"),
        "subgroup": kept.get("subgroup") or _SUBGROUP,
    }


def in_lines(name: str, epsilon: float, guesses: Mapping[str, Any]) -> tuple[str, str]:
    """A shell's and Python's lines that plan the same."""
    (count,) = guesses["counts"]
    given = {key: value for key, value in guesses.items() if key != "counts" and value not in (None, _USUAL.get(key))}
    options = "".join(f" --{key.replace('_', '-')} {value:g}" for key, value in given.items())
    settings = "".join(f", {key}={value!r}" for key, value in given.items())
    python = [
        "import dplinked as dpl",
        "",
        f"study = dpl.Study.from_toml({name!r})",
        f"plan = dpl.plan_study(study, [{count}], [{epsilon:g}]{settings})",
        'plan.to_html("plan.html")',
    ]
    return f"dplinked plan {shlex.quote(name)} --rows {count} --epsilon {epsilon:g}{options}", "\n".join(python)


def _figures(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def _step(width: float) -> float:
    """A step for a slider: a power of ten, about a hundredth of the range."""
    return float(10.0 ** math.floor(math.log10(width / 50.0)))
