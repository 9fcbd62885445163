"""The whole path outside the studio: what all steps do, as a notebook and as a shell script, to be run in the studio's folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from dplinked.ledger.steward import Account
from dplinked.linker.files import AUDIT
from dplinked.studio import budget_page, check_page, files_page, plan_page, release_page
from dplinked.studio.accuracy_part import in_lines, price_of, source_of
from dplinked.studio.desk import Fault
from dplinked.studio.link_page import linked_request
from dplinked.studio.linking import Request
from dplinked.studio.path import STEPS
from dplinked.studio.room import Room, Side

_ONCE = ("import ", "from ", "left = ", "right = ", "rows = ", "study = ")  # lines that need not stand in a second cell


@dataclass(frozen=True)
class Part:
    """A step outside the studio: its title, what it does in a sentence, and the lines that do it; None where there are none."""

    title: str
    says: str
    python: str | None = None
    shell: str | None = None


def parts_of(room: Room) -> list[Part]:
    """All steps that can be run as they stand."""
    parts = [*_data_parts(room)]
    if not isinstance(room.study(), Fault):
        parts += _study_parts(room)
    return parts


def _data_parts(room: Room) -> Iterator[Part]:
    """The parts that make linked rows of two files, or name them."""
    sides: tuple[Side, ...] = ("left", "right") if room.kept("files").get("way", "two") == "two" else ("linked",)
    files = [file for side in sides if (file := room.source(side)) is not None]
    if len(files) == len(sides):
        lines = files_page.in_python(files, room.desk.folder)
        yield Part(STEPS["files"], "The files, and how they are written.", lines)
    asked = linked_request(room)
    if asked is not None:
        yield from _link_parts(room, asked)


def _link_parts(room: Room, asked: Request) -> Iterator[Part]:
    """Linking, and reading the answers of a review back, if the study has its accuracy from there. A list with answers is not drawn anew."""
    folder, source = room.desk.folder, source_of(room)
    says = "The files are linked. Not for publication."
    reviewed = source in ("identifiers", "released") and (folder / asked.out / AUDIT).is_file()
    if not reviewed:
        again = (folder / asked.out / AUDIT).is_file()
        kept = [f"linked.save({asked.out!r})"] if again else []
        yield Part(
            STEPS["link"], says, asked.in_python(folder, *kept), asked.in_shell(*(["--seed", "0"] if again else []))
        )
        return
    price = price_of(room) if source == "released" else None
    shell, lines = in_lines(asked, price, folder)
    yield Part(STEPS["link"], says, asked.in_python(folder, "print(linked.summary())"))
    spent = " This spends privacy, unless a ledger has the answer already." if price is not None else ""
    yield Part(STEPS["review"], f"The answers of the review are read back.{spent}", "\n".join(lines), shell)


def _study_parts(room: Room) -> Iterator[Part]:
    """The parts that need a study."""
    study, name, account = room.study(), _study_name(room), room.account()
    assert not isinstance(study, Fault)
    out = next(text for k in count(1) if not (room.desk.folder / (text := f"release-{k}.json")).exists())
    yield _declared(room, name)
    shell, python = check_page.in_lines(name)
    again = f"{shell} || [ $? -eq 10 ]  # 10: look again"
    yield Part(STEPS["check"], "The steward's look at the data. Not for publication.", python, again)
    shell, python = plan_page.in_lines(name, study.epsilon, plan_page.guesses_of(room))
    yield Part(STEPS["plan"], "Intervals to expect, from public values alone.", python, shell)
    opening = None if account is None or isinstance(account, Account) else _opening(room)
    if opening is not None:
        yield _budget(name, opening, "The budget is opened once, for good.")
    yield Part(
        STEPS["release"],
        "This spends the study's budget. Where a ledger keeps count, a request that it has answered before costs nothing."
        if account is not None
        else "This spends privacy each time it is run, and nobody keeps count: the study names no ledger.",
        release_page.in_python(name, out=out),
        release_page.in_shell(name, out=out),
    )
    if isinstance(account, Account):
        yield _budget(name, None, "What is left, and whether anything was changed.")


def _study_name(room: Room) -> str:
    """The file of the study as it stands: its own if that is saved, else a new one."""
    return room.draft().name if room.saved() is not None else room.desk.free_name()


def _declared(room: Room, name: str) -> Part:
    """The study: read from its file, or written to a new one if what was typed is not saved."""
    says = "What is declared, all of it public."
    read = f"study = dpl.Study.from_toml({name!r})\nprint(study.formula)"
    if room.saved() is not None:
        return Part(STEPS["study"], says, f"import dplinked as dpl\n\n{read}")
    text = room.text()
    written = f'from pathlib import Path\n\nimport dplinked as dpl\n\nPath({name!r}).write_text({text!r}, encoding="utf-8")\n{read}'
    return Part(STEPS["study"], says, written, f"printf %s {shlex.quote(text)} > {shlex.quote(name)}")


def _opening(room: Room) -> dict[str, Any] | None:
    """Epsilon and delta of the budget that is to be opened, if they were filled in."""
    kept = room.kept("budget")
    return {name: kept[name] for name in ("epsilon", "delta")} if kept.get("epsilon") and kept.get("delta") else None


def _budget(study: str, opening: dict[str, Any] | None, says: str) -> Part:
    return Part(STEPS["budget"], says, budget_page.in_python(study, opening), budget_page.in_shell(study, opening))


# --- writing -----------------------------------------------------------------------------------------


def as_notebook(parts: Sequence[Part]) -> str:
    """The parts as a notebook (nbformat 4)."""
    start = "# From files to a published page\n\nWhat was done in the studio, to be run from top to bottom in its folder. FOR THE STEWARD: some cells show figures of rows."
    cells, seen = [_cell("markdown", start)], set[str]()
    for part in parts:
        if part.python is not None:
            cells.append(_cell("markdown", f"## {part.title}\n\n{part.says}"))
            cells.append(_cell("code", _not_again(part.python, seen)))
    named = [{**cell, "id": f"cell-{k}"} for k, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": named,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    own: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True), **own}


def _not_again(lines: str, seen: set[str]) -> str:
    """Lines of a cell without those that an earlier one has."""
    kept = []
    for line in lines.split("\n"):
        if line.startswith(_ONCE) and line in seen:
            continue
        seen.add(line)
        kept.append(line)
    return "\n".join(kept).strip("\n")


def as_script(parts: Sequence[Part]) -> str:
    """The parts as a shell script that stops at the first fault."""
    blocks = [f"# {part.title}: {part.says}\n{part.shell}" for part in parts if part.shell is not None]
    start = "#!/bin/sh\n# What was done in the studio, to be run in its folder.\nset -eu"
    return "\n\n".join([start, *blocks]) + "\n"
