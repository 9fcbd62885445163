"""The page *Plan* shows which intervals to expect from a release. It uses public values only, and opens no data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from htmltools import HTML, Tag, TagList, tags
from shiny import Inputs, reactive, render, ui
from shiny.types import NavSetArg

from dplinked.linkage import ELE
from dplinked.plan.planning import Plan, plan_study
from dplinked.report.numbers import format_number
from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import Changes
from dplinked.studio.look import panel, rows, say, section, show
from dplinked.studio.study_page import Room
from dplinked.study.family import RATIOS
from dplinked.study.study import Study

_LARGEST = 5.0  # the slider's largest epsilon, unless the study's own is larger


def layout() -> NavSetArg:
    """Lay out the page."""
    return panel(
        "Plan",
        "plan",
        tags.p("Drag, and see what intervals to expect. No data is opened, nothing is spent."),
        tags.div(
            tags.div(
                section(
                    "Guesses",
                    ui.input_numeric("plan_rows", "Number of rows (public)", 10_000, min=1, step=1000),
                    ui.input_slider("plan_r2", "R² of the model", 0.0, 0.95, 0.5, step=0.05),
                    ui.output_ui("plan_outcome"),
                ),
                ui.output_ui("plan_settings"),
            ),
            tags.div(ui.output_ui("plan_shown")),
            class_="split plan",
        ),
    )


def serve(input: Inputs, room: Room) -> None:
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
        if isinstance(study, Fault):
            return study
        return attempt(lambda: replace(study, **_sliders(moved, study)))

    @reactive.calc
    def plans() -> tuple[Plan, Plan] | Fault:
        """The plan of the study as it is, and that with the sliders' settings."""
        own, wanted = room.study(), planned()
        if isinstance(own, Fault):
            return own
        if isinstance(wanted, Fault):
            return wanted
        count, guess = input.plan_rows(), input.plan_r2()
        if not isinstance(count, int):
            return Fault("The number of rows must be a whole number.")
        mean = input.plan_mean() if own.family != "linear" and input.plan_mean.is_set() else None
        return attempt(
            lambda: (
                plan_study(own, [count], [own.epsilon], guess, response_mean=mean),
                plan_study(wanted, [count], [wanted.epsilon], guess, response_mean=mean),
            )
        )

    @reactive.calc
    def family() -> str:
        study = room.study()
        return "linear" if isinstance(study, Fault) else study.family

    @render.ui
    def plan_outcome() -> Tag | None:
        if family() == "linear":
            return None
        label = "Share of rows with the event" if family() == "logistic" else "Mean count"
        return ui.input_numeric("plan_mean", label, 0.1 if family() == "logistic" else 1.0, min=0, step=0.01)

    @render.ui
    def plan_settings() -> Tag | None:
        study = room.study()
        return None if isinstance(study, Fault) else _controls(study, tag())

    @render.ui
    def plan_shown() -> Tag | TagList:
        found = plans()
        if isinstance(found, Fault):
            return say(found.text, "bad")
        shown = attempt(lambda: _show(*found))
        return say(shown.text, "bad") if isinstance(shown, Fault) else shown

    @reactive.effect
    @reactive.event(input.use_plan)
    def _use() -> None:
        study, wanted = room.study(), planned()
        if not (isinstance(study, Fault) or isinstance(wanted, Fault)):
            room.change(_changes(study, wanted))
            ui.update_navset("page", selected="study")


def _controls(study: Study, tag: str) -> Tag:
    exponent, epsilon = round(-math.log10(study.delta)), study.epsilon
    shown: list[Tag] = [
        ui.input_slider(f"epsilon_{tag}", "Epsilon", min(0.05, epsilon), max(_LARGEST, epsilon), epsilon, step=0.01),
        ui.input_slider(f"delta_{tag}", "Delta", min(3, exponent), max(12, exponent), exponent, pre="1e-"),
    ]
    if isinstance(study.linkage, ELE):
        accuracy = study.linkage.public.mean_accuracy
        least = min(0.5, accuracy)
        shown.append(ui.input_slider(f"accuracy_{tag}", "Accuracy of the links", least, 1.0, accuracy, step=0.001))
    for k, (name, (low, high)) in enumerate(study.prepare()[0].bounds.items()):
        width = high - low
        least = 0.0 if 0 <= low <= width else low - width
        label = f"Bounds of {show(name)}"
        shown.append(ui.input_slider(f"bounds{k}_{tag}", label, least, high + width, (low, high), step=_step(width)))
    use = tags.div(ui.input_action_button("use_plan", "Use these settings in the study"), class_="buttons")
    return section("Settings", *shown, use)


def _sliders(moved: Callable[[str], Any], study: Study) -> dict[str, Any]:
    """The settings of the study that change with the sliders that were moved."""
    changes: dict[str, Any] = {}
    if (epsilon := moved("epsilon")) is not None:
        changes["epsilon"] = float(epsilon)
    if (exponent := moved("delta")) is not None:
        changes["delta"] = 10.0 ** -int(exponent)
    if isinstance(study.linkage, ELE) and (accuracy := moved("accuracy")) is not None:
        changes["linkage"] = _with_accuracy(study.linkage, float(accuracy))
    bounds = {name: moved(f"bounds{k}") for k, name in enumerate(study.prepare()[0].bounds)}
    return {**changes, "bounds": {**study.bounds, **{name: ends for name, ends in bounds.items() if ends is not None}}}


def _with_accuracy(linkage: ELE, accuracy: float) -> ELE:
    """The same links with another accuracy, which is known as well as the declared one."""
    declared = linkage.public
    error = declared.mean_accuracy * math.sqrt(declared.accuracy_variance(None) or 0.0)
    return ELE(accuracy, linkage.block, accuracy_error=error or None, source="public", carriers=linkage.carriers)


def _changes(before: Study, after: Study) -> Changes:
    """The changes to the study's text that its new settings make."""
    changes: Changes = {("privacy", "epsilon"): after.epsilon, ("privacy", "delta"): after.delta}
    changes |= {("bounds", name): list(ends) for name, ends in after.bounds.items()}
    if after.linkage != before.linkage and isinstance(after.linkage, ELE):
        changes["linkage", "accuracy"] = after.linkage.accuracy
    return changes


def _show(own: Plan, moved: Plan) -> TagList:
    from dplinked.report.charts import Series, interval_chart

    names = [row.name for row in moved.rows]
    nothing, whole = np.zeros(len(names)), np.full(len(names), 100.0)
    width = np.array(
        [100 * after.half_width() / before.half_width() for before, after in zip(own.rows, moved.rows, strict=True)]
    )
    series = [
        Series("the study as it is", nothing, -whole, whole),
        Series("with these settings", nothing, -width, width),
    ]
    title = "Expected 95 % intervals, compared with those of the study as it is"
    chart = interval_chart(names, series, title=title, axis="half-width, % of the study's own", zero=True)
    ratio = RATIOS.get(moved.family)
    cells = [
        (
            row.name,
            f"±{_figures(row.half_width())}",
            *(
                []
                if ratio is None
                else ["" if row.name == "Intercept" else f"×÷{format_number(row.ratio(), row.ratio() - 1.0)}"]
            ),
            *map(_figures, (row.sampling, row.linkage, row.privacy)),
        )
        for row in moved.rows
    ]
    header = ["coefficient", "95 % interval", *([] if ratio is None else [f"of the {ratio}"])]
    header += ["sampling error", "linkage error", "privacy error"]
    at = "".join(
        f"At {row.count:,} rows, epsilon = {row.epsilon:g}, delta = {moved.delta:g}. " for row in moved.rows[:1]
    )
    return TagList(
        section(
            "Expected intervals",
            tags.figure(HTML(chart)),
            rows(header, cells, "Expected intervals"),
            *(say(limit, "warning") for limit in moved.limits),
            tags.p(at + moved.assumptions, class_="hint"),
        )
    )


def _figures(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def _step(width: float) -> float:
    """A step for a slider: a power of ten, about a hundredth of the range."""
    return float(10.0 ** math.floor(math.log10(width / 50.0)))
