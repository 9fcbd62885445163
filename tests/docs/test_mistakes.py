"""Forty mistakes of a first half hour, and what is said about each: the table of docs/mistakes.md is made here.

``python tests/docs/test_mistakes.py`` writes it anew.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dplinked as dpl
from dplinked.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
PEOPLE = 400
Cells = dict[str, list[Any]]
STUDY = """\
[data]
path = "rows.csv"

[model]
formula = "spent ~ income + C(region)"

[bounds]
income = [0, 150000]
spent = [0, 120000]

[levels]
region = ["north", "south"]

[linkage]
accuracy = { east = 0.9, west = 0.92 }
block = "office"
source = "public"

[unit]

[privacy]
epsilon = 0.5
delta = 1e-6
"""
LEDGER = '\n[ledger]\nurl = "budget.db"\npopulation = "people"\n'


def people() -> Cells:
    rng = np.random.default_rng(5)
    income = rng.lognormal(10.2, 0.4, PEOPLE)
    spent = 6_000 + 0.55 * income + rng.normal(0, 3_000, PEOPLE)
    return {
        "id": [f"P-{71_000 + 13 * k}" for k in range(PEOPLE)],
        "surname": [f"{'BDFGHJKLMN'[k % 10]}{'aeiou'[k % 5]}{'rstvw'[k // 10 % 5]}{'aeiou'[k // 50 % 5]}{'lmnpqrst'[k // 50]}ansen" for k in range(PEOPLE)],
        "income": [f"{cell:.2f}" for cell in income],
        "spent": [f"{cell:.2f}" for cell in spent],
        "region": ["north" if k % 2 else "south" for k in range(PEOPLE)],
        "office": ["east" if k % 3 else "west" for k in range(PEOPLE)],
    }  # fmt: skip


class World:
    """A folder with a study, its rows and a budget, in which something is done wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cells = folder, people()
        self.write()
        self.study()

    def write(
        self, name: str = "rows.csv", separator: str = ",", encoding: str = "utf-8", *, header: bool = True
    ) -> None:
        """Write the rows as a text file."""
        with (self.folder / name).open("w", encoding=encoding, newline="") as file:
            lines = csv.writer(file, delimiter=separator)
            lines.writerows([list(self.cells)] * header)
            lines.writerows(zip(*self.cells.values(), strict=True))

    def change(self, column: str, cell: Callable[[str, int], Any], **written: Any) -> None:
        """Write the rows with other cells in a column."""
        self.cells = self.cells | {column: [cell(old, k) for k, old in enumerate(self.cells[column])]}
        self.write(**written)

    def study(self, *changes: tuple[str, str], ledger: bool = False) -> None:
        """Write the study with some of its text replaced."""
        text = STUDY + LEDGER * ledger
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (self.folder / "study.toml").write_text(text, encoding="utf-8")

    def parquet(self, **columns: Any) -> None:
        """Write the rows as Parquet, with numbers, and let the study name them."""
        numbers = {name: pa.array(map(float, self.cells[name])) for name in ("income", "spent")}
        pq.write_table(pa.table({**self.cells, **numbers, **columns}), self.folder / "rows.parquet")
        self.study(("rows.csv", "rows.parquet"))

    def budget(self, epsilon: float) -> None:
        """Open a budget for the study's people."""
        self.study(ledger=True)
        ledger = dpl.Ledger.create(self.folder / "budget.db", "people", epsilon=epsilon, delta=1e-6)
        study = dpl.Study.from_toml(self.folder / "study.toml")
        ledger.register(study.data, linkage=study.linkage, unit=study.unit)


@dataclass(frozen=True)
class Mistake:
    """What was done wrong, by what it is found, the exit code, and the function that does it."""

    what: str
    command: str
    code: int
    do: Callable[[World], None]


MISTAKES: list[Mistake] = []
CHECK, FIT = "dplinked check study.toml", "dplinked fit study.toml --unchecked"
LINK = "dplinked link left.csv right.csv --id id --field surname"


def mistake(what: str, command: str, code: int) -> Callable[[Callable[[World], None]], None]:
    return lambda do: MISTAKES.append(Mistake(what, command, code, do))


def comma(cell: str, _: int = 0) -> str:
    return cell.replace(".", ",")


def others(world: World, cell: Callable[[str, int], str], **written: Any) -> None:
    """Other marks in both columns of numbers, as a program of another country writes them."""
    world.change("income", cell)
    world.change("spent", cell, **written)


# The rows are written otherwise than the study says.
mistake("semicolons between cells", CHECK, 11)(lambda world: world.write(separator=";"))


@mistake("semicolons, decimal commas, latin-1", CHECK, 11)
def _(world: World) -> None:
    world.change("surname", lambda cell, k: cell.replace("a", "ä"))
    others(world, comma, separator=";", encoding="latin-1")


mistake("tabs between cells of a .csv file", CHECK, 11)(lambda world: world.write(separator="\t"))
mistake("decimal commas", CHECK, 11)(lambda world: others(world, comma))
mistake("commas between thousands", CHECK, 11)(lambda world: others(world, lambda cell, k: f"{float(cell):,.2f}"))
mistake("points between thousands, decimal commas", CHECK, 11)(
    lambda world: others(world, lambda cell, k: f"{float(cell):,.2f}".translate({44: 46, 46: 44}))
)
mistake("euro signs", CHECK, 11)(lambda world: world.change("income", lambda cell, k: f"{cell} €"))
mistake("percent signs", CHECK, 11)(lambda world: world.change("income", lambda cell, k: f"{cell}%"))
mistake("dates where numbers are declared", CHECK, 11)(
    lambda world: world.change("income", lambda cell, k: f"{1 + k % 28:02d}.06.19{30 + k % 60}")
)
mistake("a file in UTF-16", CHECK, 11)(lambda world: world.write(encoding="utf-16"))
mistake("a file without a line of names", CHECK, 11)(lambda world: world.write(header=False))
mistake("a sheet that is not there", CHECK, 11)(lambda world: sheet(world, "Tabelle1"))


def sheet(world: World, name: str) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Rows"
    for row in (list(world.cells), *zip(*world.cells.values(), strict=True)):
        book.active.append(row)
    book.save(world.folder / "rows.xlsx")
    world.study(('path = "rows.csv"', f'path = "rows.xlsx"\nsheet = "{name}"'))


# The rows hold something else than the study says.
mistake("NA in every tenth cell", CHECK, 10)(
    lambda world: world.change("income", lambda cell, k: "NA" if k % 10 == 0 else cell)
)
mistake("a third of the cells empty", CHECK, 10)(
    lambda world: world.change("income", lambda cell, k: "" if k % 3 == 0 else cell)
)
mistake("a word among numbers", CHECK, 10)(
    lambda world: world.change("income", lambda cell, k: "retired" if k == 7 else cell)
)
mistake("bounds in thousands, rows in euros", CHECK, 11)(
    lambda world: world.study(("income = [0, 150000]", "income = [0, 150]"))
)
mistake("rows in thousands, bounds in euros", CHECK, 10)(
    lambda world: world.change("income", lambda cell, k: f"{float(cell) / 1000:.3f}")
)
mistake("a response that its bounds clip", CHECK, 10)(
    lambda world: world.study(("spent = [0, 120000]", "spent = [0, 28000]"))
)
mistake("a column that is the same everywhere", CHECK, 10)(
    lambda world: world.change("income", lambda cell, k: "30000")
)
mistake("levels in capital letters", CHECK, 11)(lambda world: world.study(('"north", "south"', '"NORTH", "SOUTH"')))
mistake("a level that is not declared", CHECK, 10)(
    lambda world: world.change("region", lambda cell, k: "west" if k % 25 == 0 else cell)
)
mistake("a level that no row has", CHECK, 10)(
    lambda world: world.study(('"north", "south"', '"north", "south", "west"'))
)
mistake("a block without accuracy", CHECK, 11)(lambda world: world.study(("west = 0.92", "West = 0.92")))
mistake("a column in capital letters", CHECK, 11)(
    lambda world: world.study(("spent ~ income", "spent ~ INCOME"), ("income = [", "INCOME = ["))
)


# The study is at fault.
@mistake("a misspelt column, Parquet", FIT, 2)
def _(world: World) -> None:
    world.parquet()
    world.study(("rows.csv", "rows.parquet"), ("spent ~ income", "spent ~ incme"), ("income = [", "incme = ["))


mistake("a misspelt column, CSV, whose first line may be a row", FIT, 2)(
    lambda world: world.study(("spent ~ income", "spent ~ incme"), ("income = [", "incme = ["))
)
mistake("semicolons between cells, and no check", FIT, 2)(lambda world: world.write(separator=";"))
mistake("no bounds for a column", FIT, 2)(lambda world: world.study(("income = [0, 150000]\n", "")))
mistake("bounds the wrong way round", FIT, 2)(lambda world: world.study(("[0, 150000]", "[150000, 0]")))
mistake("no levels for a category", FIT, 2)(lambda world: world.study(('region = ["north", "south"]', "")))
mistake("epsilon below zero", FIT, 2)(lambda world: world.study(("epsilon = 0.5", "epsilon = -0.5")))
mistake("an epsilon of 50", FIT, 2)(lambda world: world.study(("epsilon = 0.5", "epsilon = 50")))
mistake("a delta of one half", FIT, 2)(lambda world: world.study(("delta = 1e-6", "delta = 0.5")))
mistake("a misspelt key", FIT, 2)(lambda world: world.study(("epsilon =", "epsilom =")))
mistake("a quote that is missing in the study", FIT, 2)(lambda world: world.study(('"rows.csv"', '"rows.csv')))
mistake("an accuracy in percent", FIT, 2)(lambda world: world.study(("east = 0.9,", "east = 90,")))
mistake("a data file that is not there", FIT, 2)(lambda world: world.study(("rows.csv", "row.csv")))
mistake("a file of another program, .rds", FIT, 2)(lambda world: world.study(("rows.csv", "rows.rds")))


@mistake("decimal commas declared for Parquet", FIT, 2)
def _(world: World) -> None:
    world.parquet()
    world.study(('"rows.csv"', '"rows.parquet"\ndecimal = ","'))


mistake("an encoding that nobody knows", FIT, 2)(
    lambda world: world.study(('"rows.csv"', '"rows.csv"\nencoding = "ansi-x"'))
)


@mistake("a file that is no workbook", FIT, 2)
def _(world: World) -> None:
    world.write("rows.xlsx")
    world.study(("rows.csv", "rows.xlsx"))


mistake("dates in a typed column", FIT, 2)(
    lambda world: world.parquet(income=pa.array(range(PEOPLE), pa.int32()).cast(pa.date32()))
)


@mistake("a release that is there already", FIT, 2)
def _(world: World) -> None:
    (world.folder / "release.json").write_text("{}", encoding="utf-8")


mistake("more than the budget has left", FIT, 3)(lambda world: world.budget(0.1))


@mistake("rows that were changed after they were registered", FIT, 4)
def _(world: World) -> None:
    world.budget(2.0)
    world.change("income", lambda cell, k: "0" if k == 0 else cell)


# Linking and reporting.
def two(world: World, **written: Any) -> None:
    world.write("left.csv", **written)
    world.cells = {name: cells[::-1] for name, cells in world.cells.items()}
    world.write("right.csv")


mistake("semicolons in a file to link", LINK, 2)(lambda world: two(world, separator=";"))
mistake("a field that a file does not have", LINK.replace("surname", "Surname"), 2)(two)
mistake("the same file twice", LINK.replace("right", "left"), 2)(two)


@mistake("ids that occur twice", LINK, 2)
def _(world: World) -> None:
    world.cells = world.cells | {"id": [world.cells["id"][k // 2] for k in range(PEOPLE)]}
    two(world)


@mistake("blocks that are spelled otherwise in each file", f"{LINK} --block office", 2)
def _(world: World) -> None:
    two(world)
    world.cells = world.cells | {"office": [cell.upper() for cell in world.cells["office"]]}
    world.write("right.csv")


mistake("the study given as a release", "dplinked report study.toml", 2)(lambda world: None)


# --- the table ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    with contextlib.chdir(folder):
        yield
    assert Path.cwd() == before


def run(command: str, folder: Path) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    arguments, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = shlex.split(command)
    try:
        with inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stopped:
        return int(stopped.code or 0), out.getvalue() + err.getvalue()
    finally:
        sys.argv = arguments
    raise AssertionError(command)


def said(printed: str) -> str:
    """What was said about a mistake: the message, or what a check says is wrong."""
    if (message := re.search(r"^dplinked: (.*)", printed, re.MULTILINE)) is not None:
        return message[1]
    sections = re.findall(r"^(?:What makes|What to look).*\n-+\n((?:[- ] .*\n?)+)", printed, re.MULTILINE)
    lines = re.sub(r"\n  ", " ", "".join(f"{section.strip()}\n" for section in sections)).strip()
    told = " ".join(line.removeprefix("- ") for line in lines.splitlines())
    return re.sub(r"(Clipping moves coefficients by about ).*?(\. No )", r"\1…\2", told)  # figures of the estimator


def spent(folder: Path) -> int:
    ledger = folder / "budget.db"
    return dpl.Ledger(ledger, "people").balance().spent if ledger.exists() else 0


def make(mistake: Mistake, folder: Path) -> str:
    """Make a mistake, check that it costs and tells nothing, and return its line of the table."""
    world = World(folder)
    mistake.do(world)
    before = spent(folder), (folder / "release.json").exists()
    code, printed = run(mistake.command, folder)
    assert code == mistake.code, (mistake.what, code, printed)
    assert (spent(folder), (folder / "release.json").exists()) == before, mistake.what
    if mistake.command != CHECK:  # which is for the steward
        cells = {
            text
            for column in ("id", "surname", "income", "spent")
            for text in map(str, world.cells[column])
            if len(text) > 4
        }
        assert not [cell for cell in cells if cell in printed], mistake.what
    told = said(printed)
    assert len(told) > 20, (mistake.what, printed)
    return f"| {mistake.what} | `{mistake.command.split()[1]}` | {code} | {told.replace('|', chr(92) + '|')} |"


def table() -> str:
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for place, one in enumerate(MISTAKES):
            (world := Path(folder) / str(place)).mkdir()
            lines.append(make(one, world))
    return "\n".join(["| mistake | found by | exit code | what is said |", "|---|---|---|---|", *lines])


def test_every_mistake_is_answered_costs_nothing_and_tells_nothing() -> None:
    """At least forty, and the page shows them as they are answered."""
    assert len(MISTAKES) >= 40
    shown = PAGE.read_text(encoding="utf-8").split("<!-- mistakes -->\n\n")[1].split("\n\n<!-- end -->")[0]
    assert shown.splitlines() == table().splitlines()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- mistakes -->\n\n")
    PAGE.write_text(
        f"{before}<!-- mistakes -->\n\n{table()}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}", encoding="utf-8"
    )
