"""Expected intervals in the columns' own units, for people."""

from __future__ import annotations

import re

from dplinked.plan.expectations import Expectations, PlannedError
from dplinked.report.numbers import format_number
from dplinked.study.design import Design
from dplinked.study.family import RATIOS
from dplinked.study.study import Study
from dplinked.study.units import is_part_of_others, round_step

_LEVEL = re.compile(r"C\((.*)\)\[(.*)\]")


def say_widths(study: Study, plan: Expectations) -> list[str]:
    """How closely a release would tell each slope, in the units that the study declares."""
    designs = {f"{name}: ": part.prepare()[0] for name, part in study.parts.items()} if study.by is None else {}
    plain = study.prepare()[0]
    said = []
    for row in plan.slopes_at_point:
        start = next((start for start in designs if row.name.startswith(start)), "")
        name = row.name.removeprefix(start)
        if not start or name != "Intercept":
            said.append(_say(study, plan, row, name, designs.get(start, plain)))
    return said


def _say(study: Study, plan: Expectations, row: PlannedError, name: str, design: Design) -> str:
    step, change = _change(study, name, design)
    if plan.family in RATIOS and name != "Intercept":
        factor = PlannedError(row.epsilon, row.count, name, *(step * part for part in (row.sampling, row.linkage, row.privacy))).ratio()  # fmt: skip
        return f"{change}: the {RATIOS[plan.family]} is told up to a factor of {format_number(factor, 10.0 * (factor - 1.0))}."
    response = design.response.name
    unit = study.units.get(design.response.plain or "")
    width = step * row.half_width()
    return f"{change}: the change of {response} is told to ± {format_number(width, 10.0 * width)}{f' {unit}' if unit else ''}."


def _change(study: Study, name: str, design: Design) -> tuple[float, str]:
    """A change of what a coefficient is about, by how much, and in words."""
    level = _LEVEL.fullmatch(name)
    if level is not None and ":" not in name and level[1] in design.levels:
        return 1.0, f"Where {level[1]} is {level[2]} rather than {design.levels[level[1]][0]}"
    if name not in design.bounds or is_part_of_others(name, design.names):
        return 1.0, f"The coefficient of {name}" if name != "Intercept" else "The mean"
    unit = study.units.get(name)
    step = round_step(*design.bounds[name]) if unit else 1.0
    return step, f"For {format_number(step, 10.0 * step)} {unit} more of {name}" if unit else f"For one more of {name}"
